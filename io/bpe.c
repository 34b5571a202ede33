#include "io/bpe.h"

#include <stdbool.h>
#include <stdlib.h>

void bk_bpe_free(bk_bpe *b)
{
    bk_pairmap_free(&b->merges);
    bk_pairmap_free(&b->inside);
}

bk_status bk_word_push(bk_word *w, int32_t id, bk_error *err)
{
    if (w->n == w->cap) {
        if (w->cap >= 1 << 30) return bk_fail(err, BK_EUNSUP, "a word of more than %d characters", 1 << 30);
        int32_t cap = w->cap ? 2 * w->cap : 64;
        bk_symbol *sym = realloc(w->sym, (size_t)cap * sizeof *sym);
        if (!sym) return bk_fail(err, BK_ENOMEM, "no memory for a word of %d characters", cap);
        w->sym = sym;
        w->cap = cap;
    }
    w->sym[w->n] = (bk_symbol){id, w->n - 1, w->n + 1};
    w->n++;
    return BK_OK;
}

static bool before(bk_candidate a, bk_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static bk_status heap_push(bk_word *w, bk_candidate c, bk_error *err)
{
    if (w->heap_n == w->heap_cap) {
        size_t cap = w->heap_cap ? 2 * w->heap_cap : 64;
        bk_candidate *heap = realloc(w->heap, cap * sizeof *heap);
        if (!heap) return bk_fail(err, BK_ENOMEM, "no memory for %zu merges of a word", cap);
        w->heap = heap;
        w->heap_cap = cap;
    }
    size_t i = w->heap_n++;
    for (; i > 0 && before(c, w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return BK_OK;
}

static bk_candidate heap_pop(bk_word *w)
{
    bk_candidate top = w->heap[0], last = w->heap[--w->heap_n];
    size_t i = 0;
    for (size_t kid; (kid = 2 * i + 1) < w->heap_n; i = kid) {
        if (kid + 1 < w->heap_n && before(w->heap[kid + 1], w->heap[kid])) kid++;
        if (!before(w->heap[kid], last)) break;
        w->heap[i] = w->heap[kid];
    }
    w->heap[i] = last;
    return top;
}

/* Queues the merge of the symbols at `left` and after it, if there is one. */
static bk_status offer(bk_word *w, const bk_bpe *b, int32_t left, bk_error *err)
{
    if (left < 0 || w->sym[left].next >= w->n) return BK_OK;
    int32_t l = w->sym[left].id, r = w->sym[w->sym[left].next].id;
    const bk_pair *p = bk_pairmap_get(&b->merges, l, r);
    return p ? heap_push(w, (bk_candidate){p->rank, left, l, r}, err) : BK_OK;
}

bk_status bk_word_merge(bk_word *w, const bk_bpe *b, bk_error *err)
{
    w->heap_n = 0;
    for (int32_t i = 0; i + 1 < w->n; i++) BK_TRY(offer(w, b, i, err));
    while (w->heap_n > 0) {
        bk_candidate c = heap_pop(w);
        bk_symbol *left = &w->sym[c.at];
        if (left->id != c.left || left->next >= w->n || w->sym[left->next].id != c.right) continue; /* overtaken */
        bk_symbol *right = &w->sym[left->next];
        left->id = bk_pairmap_get(&b->merges, c.left, c.right)->id;
        right->id = -1;
        left->next = right->next;
        if (left->next < w->n) w->sym[left->next].prev = c.at;
        BK_TRY(offer(w, b, left->prev, err));
        BK_TRY(offer(w, b, c.at, err));
    }
    return BK_OK;
}

void bk_word_free(bk_word *w)
{
    free(w->sym);
    free(w->heap);
    *w = (bk_word){0};
}
