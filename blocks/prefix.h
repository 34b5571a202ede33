/* The prefixed tokens and their keys (after RoPE and R3) and values per block, computed once in full precision and never quantized.
 * Source: PrefixQuant (arXiv 2410.05265), sec. 5; docs/numerics.md, Outlier tokens and prefix. In files: docs/hdf5-layout.md. */
#ifndef BK_PREFIX_H
#define BK_PREFIX_H

#include "blocks/pass.h"

typedef struct bk_prefix {
    int64_t n, layers, kv_heads, head_dim;
    int32_t *ids; /* [n] */
    float *k, *v; /* [layers, kv_heads, n, head_dim]; NULL when n = 0 */
} bk_prefix;

/* Ids outside the vocabulary: BK_EINVAL, named. */
bk_status bk_prefix_check(const int32_t *ids, int64_t n, int64_t vocab, bk_error *err) BK_MUST_USE;
/* Runs the ids at positions 0 .. n-1 through the model. bk_prefix_check looks at them first. n = 0 gives an empty prefix. */
bk_status bk_prefix_compute(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t n, bk_prefix *out, bk_error *err) BK_MUST_USE;
void bk_prefix_free(bk_prefix *p);

/* The same one block at a time, for callers that hold the weights of a block for other reasons. All prefixes of a walk
 * have n > 0 tokens. */
typedef struct bk_prefix_walk {
    const bk_source *src;
    int64_t n;
    bk_block *b;
    bk_ctx *ctx;
    bk_stream *h;
    float *row, *k, *v; /* [n, kv_heads * head_dim]; where the keys and values of the block that is running go */
} bk_prefix_walk;
/* bk_prefix_walk_close is due after a failure too. */
bk_status bk_prefix_walk_open(bk_prefix_walk *w, const bk_backend *be, const bk_source *src, int64_t n,
                              bk_error *err) BK_MUST_USE;
/* Starts over with these ids [n]. */
bk_status bk_prefix_walk_begin(bk_prefix_walk *w, const int32_t *ids, bk_error *err) BK_MUST_USE;
/* The next block, whose weights the caller has read: keys and values [kv_heads, n, head_dim]. */
bk_status bk_prefix_walk_block(bk_prefix_walk *w, const bk_block_weights *weights, float *k, float *v,
                               bk_error *err) BK_MUST_USE;
void bk_prefix_walk_close(bk_prefix_walk *w);

/* k and v of one block, for bk_block_set_prefix */
const float *bk_prefix_k(const bk_prefix *p, int64_t layer);
const float *bk_prefix_v(const bk_prefix *p, int64_t layer);

/* rotation: text that names the rotation the keys belong to (stored, and compared when loading; NULL skips the comparison). */
bk_status bk_prefix_save(const bk_prefix *p, const char *path, const char *model, const char *model_sha256, const char *rotation,
                         bk_error *err) BK_MUST_USE;
bk_status bk_prefix_load(bk_prefix *p, const char *path, const char *rotation, bk_error *err) BK_MUST_USE;

#endif
