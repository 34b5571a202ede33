/* Transforms that were fitted to a model on data, beside the ones that only need a seed: what a stage of a run finds out once and every reader
 * of weights applies (blocks/transforms.h). Row form: x' = x Q.
 *
 * Parts that are NULL are not used. Matrices are orthogonal, in f64. */
#ifndef BK_FITTED_H
#define BK_FITTED_H

#include "autograd/error.h"
#include "blocks/config.h"

typedef struct bk_fitted {
    int64_t layers, hidden, kv_heads, head_dim, inter;
    double *r1;          /* [hidden, hidden] in place of the random-sign Hadamard of R1: OffQ's U1 P1 H1, a learned rotation */
    double *r2;          /* [layers, kv_heads, head_dim, head_dim] in place of R2's */
    double *r3;          /* [layers, kv_heads, head_dim, head_dim] of keys, and of the queries that read them, after RoPE, while running */
    int32_t *down_order; /* [layers, inter] channel `new` of the input of down is channel down_order[new] of the model: rows of gate and up */
    int8_t *down_signs;  /* [layers, inter] in the new order: of the rows of up, and of the columns of down before R4 */
    /* Per-channel scales: the input x of a linear becomes x / scale, its columns W scale. They go into what writes x, before any rotation. */
    float *scale_attn_in, *scale_mlp_in; /* [layers, hidden]: into the gains of the norms */
    float *scale_o_in;                   /* [layers, kv_heads, head_dim]: into the rows (and bias) of v; query heads of a group share it */
    float *scale_down_in;                /* [layers, inter], in the model's order: into the rows of up */
} bk_fitted;

typedef enum {
    BK_FITTED_R1, BK_FITTED_R2, BK_FITTED_R3, BK_FITTED_DOWN_ORDER, BK_FITTED_DOWN_SIGNS,
    BK_FITTED_SCALE_ATTN_IN, BK_FITTED_SCALE_MLP_IN, BK_FITTED_SCALE_O_IN, BK_FITTED_SCALE_DOWN_IN, BK_FITTED_COUNT
} bk_fitted_part;

extern const char *const bk_fitted_name[BK_FITTED_COUNT]; /* "r1" ... */

/* An empty one for the shapes of c. BK_ENOMEM. */
bk_status bk_fitted_create(const bk_config *c, bk_fitted **out, bk_error *err) BK_MUST_USE;
/* Memory for a part (nothing if it has some): matrices become the identity, orders the identity, signs and scales 1. */
bk_status bk_fitted_add(bk_fitted *f, bk_fitted_part part, bk_error *err) BK_MUST_USE;
void bk_fitted_free(bk_fitted *f); /* NULL is legal */

/* BK_ESHAPE, naming the size that differs, if it was made for other shapes than those of c. */
bk_status bk_fitted_fits(const bk_fitted *f, const bk_config *c, bk_error *err) BK_MUST_USE;
/* Matrices are orthogonal, orders are permutations, signs +-1, scales positive and finite: else BK_ENUMERIC that names part, layer, head and
 * index. Orthogonal: |Q (Q^T v) - v| <= 1e-9 for 16 vectors v of random signs (Freivalds 1977), which costs O(n^2) and misses an entry of
 * Q Q^T - I above that with a chance of at most 2^-16. */
bk_status bk_fitted_check(const bk_fitted *f, bk_error *err) BK_MUST_USE;

/* One HDF5 file (docs/hdf5-layout.md): a dataset for each part that is there. Reading checks both of the above. */
bk_status bk_fitted_save(const bk_fitted *f, const char *path, bk_error *err) BK_MUST_USE;
bk_status bk_fitted_load(const char *path, const bk_config *c, bk_fitted **out, bk_error *err) BK_MUST_USE;

#endif
