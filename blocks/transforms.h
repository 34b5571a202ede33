/* Transforms of a model that leave its function unchanged: norm fusion and rotations (QuaRot, Ashkboos et al. 2024; SpinQuant, Liu et al. 2024;
 * OffQ, arXiv 2606.07116), per-channel scales (SmoothQuant, Xiao et al. 2023).
 *
 * In row form, with x the residual stream: x' = x R1, so that a linear that reads the stream becomes W R1 and one that writes it R1^T W (its
 * bias R1^T b), after the gains of the norms have moved into the readers. Each value head turns by R2, its bias too, and the columns of o that
 * read it turn alike. R3 (queries and keys after RoPE) and R4 (input of down) run online; R4 also turns the rows of down. Each is a random-sign
 * Hadamard, R = diag(s) M^T (R3 and R4 without signs), applied as a fast transform, or, but for R4, a fitted matrix (blocks/fitted.h), applied as
 * a dense product. Arithmetic is in f64; each transform rounds a weight once.
 *
 * Scales come first, so that they move into the gains of the norms (attn_in, mlp_in), the rows of v (o_in) and of up (down_in). The order and
 * the signs of down's input move into gate and up, and come before R4. */
#ifndef BK_TRANSFORMS_H
#define BK_TRANSFORMS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/backend.h"
#include "autograd/rng.h"
#include "blocks/config.h"
#include "blocks/fitted.h"
#include "blocks/vectors.h"
#include "blocks/weights.h"
#include "quant/hadamard.h"

typedef enum {
#define BK_TRANSFORM(E, name, block, embed, head, about) BK_TRANSFORM_##E,
#include "blocks/transforms.def"
#undef BK_TRANSFORM
    BK_TRANSFORM_COUNT
} bk_transform_id;

/* What a user asks for. r1 brings fuse, and untie for tied embeddings, with it; fold_v_bias does nothing in a model without v bias. */
typedef struct bk_rotation_spec {
    bool r1, r2, r3, r4, fold_v_bias;
    bool r2_per_kv_head; /* a Hadamard with signs of its own for each block and KV head; else one for all */
    uint64_t seed;       /* of the random signs of R1 and R2 */
    int64_t r4_group;    /* 0: R4 is of order inter; else block-diagonal, in groups of that order (bk_hadamard_create_blocks) */
    /* Lent, NULL for none. Its r1, r2 and r3 stand in for the Hadamards where those are on; its other parts are on where they are there. */
    const bk_fitted *fitted;
    const bk_backend *be; /* computes products with fitted r1 and r2 (slot gemm_f64); may be NULL where there are none */
    bool fuse;           /* fuse and untie without r1 too: what a rotation is fitted to */
} bk_rotation_spec;

/* The same made ready for one model. */
typedef struct bk_rotation {
    bk_config before, after; /* shapes are equal; `after` knows a head that was untied, a bias of o that was made, R3 per head */
    bool on[BK_TRANSFORM_COUNT];
    bk_hadamard_plan *hidden, *head, *inter; /* NULL where no transform needs it */
    float *final_norm;                       /* [hidden] gain of the norm before the head, as the file has it */
    int8_t *r1_signs;                        /* [hidden] */
    int8_t *r2_signs;                        /* [r2_layers, r2_heads, head_dim]: [1, 1] when shared, else [layers, kv_heads] */
    int64_t r2_layers, r2_heads;
    int64_t r4_group;
    const bk_fitted *fitted;
    bk_dense *r1_dense, *r2_dense; /* NULL unless fitted; r2_dense takes the matrix of one head after the other */
} bk_rotation;

/* One entry of the list; parts that are NULL leave their weights alone. Rows are vectors of the embedding or the head. */
typedef struct bk_transform {
    const char *name, *about;
    bk_status (*block)(const bk_rotation *, int64_t layer, const bk_weights_view *, bk_error *);
    bk_status (*embed)(const bk_rotation *, const bk_vectors *rows, bk_error *);
    bk_status (*head)(const bk_rotation *, const bk_vectors *rows, bk_error *);
} bk_transform;

extern const bk_transform bk_transforms[BK_TRANSFORM_COUNT];

/* final_norm: [hidden], copied. BK_ENOMEM; BK_ESHAPE for fitted parts of other shapes; BK_EINVAL for what cannot be done exactly or makes no
 * sense: r4_group that does not divide inter or has no Hadamard matrix, fitted signs without R4, fitted r1 or r2 without a backend. */
bk_status bk_rotation_create(const bk_config *c, const bk_rotation_spec *spec, const float *final_norm, bk_rotation **out,
                             bk_error *err) BK_MUST_USE;
void bk_rotation_free(bk_rotation *r);

/* The Hadamards that the running block applies to queries and keys, and to the input of down; NULL when off. A fitted R3 is none: it comes with the
 * weights of a block (bk_config.r3_per_kv_head). */
const bk_hadamard_plan *bk_rotation_r3(const bk_rotation *r);
const bk_hadamard_plan *bk_rotation_r4(const bk_rotation *r);

/* Apply what is on, in order, in place: to the weights of block `layer` (allocated for r->after), to rows [rows, hidden] of the embedding or
 * the head. */
bk_status bk_rotation_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_embed(const bk_rotation *r, int64_t rows, float *x, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_head(const bk_rotation *r, int64_t rows, float *x, bk_error *err) BK_MUST_USE;

/* The same for arrays of either type: with BK_F64 nothing is rounded to f32. */
bk_status bk_rotation_block_view(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_embed_rows(const bk_rotation *r, const bk_vectors *rows, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_head_rows(const bk_rotation *r, const bk_vectors *rows, bk_error *err) BK_MUST_USE;

/* The random-sign Hadamard of order n that a seed gives, as a matrix r[n, n] in row form. purpose: BK_RNG_R1, or BK_RNG_R2 for the one that all
 * heads share. */
bk_status bk_rotation_dense(int64_t n, bk_rng_stream purpose, uint64_t seed, double *r, bk_error *err) BK_MUST_USE;

#endif
