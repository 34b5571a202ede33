/* Byte-pair encoding: the adjacent pair of the lowest rank is merged, leftmost on ties, until none is left. O(n log n). */
#ifndef BK_BPE_H
#define BK_BPE_H

#include "io/strmap.h"

typedef struct bk_bpe {
    bk_pairmap merges; /* (left, right) -> rank, id of the result */
    bk_pairmap
        inside; /* adjacent single-character ids inside the result of some merge: anywhere else a word falls apart */
} bk_bpe;

void bk_bpe_free(bk_bpe *b);

typedef struct bk_symbol {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
} bk_symbol;

typedef struct bk_candidate {
    int32_t rank, at, left, right;
} bk_candidate;

/* A word under way, and the memory for it, which one thread keeps for the next word. */
typedef struct bk_word {
    bk_symbol *sym;
    bk_candidate *heap;
    int32_t n, cap;
    size_t heap_n, heap_cap;
} bk_word;

/* Appends a single-character id. A word of 2^30 is BK_EUNSUP. */
bk_status bk_word_push(bk_word *w, int32_t id, bk_error *err) BK_MUST_USE;
/* Merges; what is left are the symbols with id >= 0, in order. */
bk_status bk_word_merge(bk_word *w, const bk_bpe *b, bk_error *err) BK_MUST_USE;
void bk_word_free(bk_word *w);

#endif
