/* Keys and values of the tokens that a sequence has run so far, block by block, so that it goes on without running them
 * again. They are kept as attention saw them (keys behind RoPE and R3, both behind their quantizers), and to attention
 * they are a longer prefix: what the model computes stays the same. */
#ifndef BK_CACHE_H
#define BK_CACHE_H

#include "blocks/block.h"

/* One block's share; a block whose `past` points to it adds the keys and values of every pass, which must have one
 * sample and record nothing. */
typedef struct bk_past {
    bk_tensor *memory[2]; /* of keys and of values */
    bk_tensor key, value; /* [Hkv, n, d] in that memory: the prefix, then tokens, of which a sliding window leaves the last ones */
    int64_t tokens;       /* that ran; 0: the sequence begins, behind the block's own prefix */
    int64_t room;         /* keys that the memory holds */
    bk_tensor **spare;    /* of the cache: memory to lay the keys out anew */
} bk_past;

typedef struct bk_cache bk_cache;

/* Room for a prefix and `tokens` tokens in all blocks of a model; nothing is allocated later. */
bk_status bk_cache_create(bk_cache **out, const bk_backend *be, const bk_config *cfg, int64_t prefix_len, int64_t tokens, bk_error *err) BK_MUST_USE;
void bk_cache_free(bk_cache *c);
bk_past *bk_cache_layer(bk_cache *c, int64_t layer);

/* The dry run for a sequence that begins with `first` tokens at once and goes on one by one, up to the room of the
 * cache. */
bk_status bk_cache_measure(bk_ctx *ctx, bk_block *b, bk_cache *c, int64_t first) BK_MUST_USE;

/* For the block: what attention sees before the first token of x, NULL if nothing. */
bk_tensor *bk_past_keys(const bk_block *b);
bk_tensor *bk_past_values(const bk_block *b);
/* Refuses, in the context, an x [B, T, hidden] that cannot stand behind the past. */
void bk_past_check(bk_ctx *ctx, const bk_block *b, const bk_tensor *x);
/* Adds keys and values [1, T, Hkv * d] of the tokens that ran. */
void bk_past_add(bk_ctx *ctx, bk_block *b, const bk_tensor *key, const bk_tensor *value);

#endif
