/* The prefixed tokens and their keys (after RoPE and R3) and values per block, computed once in full precision and never quantized.
 * Source: PrefixQuant (arXiv 2410.05265), sec. 5; decisions 8, 9. In files: HDF5, interfaces of docs/hdf5-layout.md. */
#ifndef BK_PREFIX_H
#define BK_PREFIX_H

#include "blocks/source.h"
#include "autograd/backend.h"

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
/* k and v of one block, for bk_block_set_prefix */
const float *bk_prefix_k(const bk_prefix *p, int64_t layer);
const float *bk_prefix_v(const bk_prefix *p, int64_t layer);

/* rotation: text that names the rotation the keys belong to (stored, and compared when loading; NULL skips the comparison). */
bk_status bk_prefix_save(const bk_prefix *p, const char *path, const char *model, const char *model_sha256, const char *rotation,
                         bk_error *err) BK_MUST_USE;
bk_status bk_prefix_load(bk_prefix *p, const char *path, const char *rotation, bk_error *err) BK_MUST_USE;

#endif
