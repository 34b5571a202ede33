/* The f32 weights of one block in memory: what a model streams through, one block at a time. */
#ifndef BK_WEIGHTS_H
#define BK_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"
#include "backends/kernels.h"
#include "blocks/config.h"
#include "blocks/model.h"
#include "blocks/names.h"

typedef struct bk_block_weights {
    float *w[BK_W_COUNT];       /* [out, in], shapes by bk_linear_shape */
    float *b[BK_W_COUNT];       /* [out]; NULL for a linear without bias */
    float *norm[BK_NORM_COUNT]; /* gains: [hidden] of attn and mlp, [head_dim] of q and k (NULL without q/k norm) */
    float *r3;                  /* [kv_heads, head_dim, head_dim], NULL unless bk_config.r3_per_kv_head */
    float *memory;              /* where all of them lie, each on a 64-byte boundary */
    int64_t count;              /* floats in `memory` */
} bk_block_weights;

/* The same arrays as the transforms of a model see them, all of one type: BK_F32, or BK_F64 for who wants no rounding on the way. */
typedef struct bk_weights_view {
    bk_dtype type;
    void *w[BK_W_COUNT], *b[BK_W_COUNT], *norm[BK_NORM_COUNT], *r3;
} bk_weights_view;
bk_weights_view bk_weights_view_of(const bk_block_weights *w);

/* Does the config give this linear a bias? */
bool bk_config_has_bias(const bk_config *c, bk_linear_id id);

/* One allocation of zeros for the shapes and biases of `c`. Where transforms create biases, `c` is the config that they
 * lead to (bk_source_config), not that of the file. Fails with BK_ENOMEM. */
bk_status bk_weights_alloc(const bk_config *c, bk_block_weights *w, bk_error *err) BK_MUST_USE;
void bk_weights_free(bk_block_weights *w);
/* Reads block `layer`, bit for bit as the model has it. A bias that `w` provides and the model lacks becomes zeros; one
 * that the model has and `w` does not provide is BK_ESHAPE. */
bk_status bk_weights_load(const bk_model *m, int64_t layer, bk_block_weights *w, bk_error *err) BK_MUST_USE;

#endif
