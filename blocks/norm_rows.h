/* Rows sampled from what the norms of a full-precision model give (inputs of q, k, v and of gate, up), for rotations that are fitted to
 * activations alone. */
#ifndef BK_NORM_ROWS_H
#define BK_NORM_ROWS_H

#include "blocks/pass.h"
#include "blocks/prefix.h"

typedef struct bk_norm_rows {
    int64_t n, width;
    float *x; /* [n, width], block after block, attn_in before mlp_in; 2 layers per_norm width floats at most */
} bk_norm_rows;

/* per_norm tokens of each norm, drawn without replacement (all of them if there are fewer); every norm draws its own. src: norms fused, no R1
 * (bk_rotation_spec.fuse). ids [samples, tokens]; prefix: NULL, or computed from src. BK_EINVAL, BK_ENOMEM; BK_ENUMERIC names block,
 * site and channel of a value that is not finite. */
bk_status bk_norm_rows_capture(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens,
                               const bk_prefix *prefix, int64_t per_norm, uint64_t seed, const bk_watch *watch, bk_norm_rows *out,
                               bk_error *err) BK_MUST_USE;
void bk_norm_rows_free(bk_norm_rows *r); /* due after a failure too */

#endif
