/* Hash maps with open addressing: strings to ids, and pairs of ids to (rank, id). */
#ifndef BK_STRMAP_H
#define BK_STRMAP_H

#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"

typedef struct bk_strslot {
    const char *key; /* NULL: free */
    uint32_t len, hash;
    int32_t value;
} bk_strslot;

/* Keys are borrowed and may hold NUL. Made for a known number of keys; it does not grow. */
typedef struct bk_strmap {
    bk_strslot *slot;
    size_t mask;
} bk_strmap;

bk_status bk_strmap_init(bk_strmap *m, size_t keys, bk_error *err) BK_MUST_USE;
void bk_strmap_free(bk_strmap *m);
/* The value of the key: the given one if the key is new, else the one that was there. */
int32_t bk_strmap_put(bk_strmap *m, const char *key, uint32_t len, int32_t value);
int32_t bk_strmap_get(const bk_strmap *m, const char *key, size_t len); /* -1 if absent */

typedef struct bk_pair {
    int32_t left, right; /* ids >= 0; left = -1: free */
    int32_t rank, id;
} bk_pair;

typedef struct bk_pairmap {
    bk_pair *slot;
    size_t mask, used;
} bk_pairmap;

/* The map of an all-zero struct is empty. Puts a new pair; the entry of a pair that is there already is kept and given
 * in *old (else NULL). */
bk_status bk_pairmap_put(bk_pairmap *m, bk_pair p, const bk_pair **old, bk_error *err) BK_MUST_USE;
const bk_pair *bk_pairmap_get(const bk_pairmap *m, int32_t left, int32_t right); /* NULL if absent */
void bk_pairmap_free(bk_pairmap *m);

#endif
