/* Transforms of a model that leave its function unchanged: norm fusion and rotations (QuaRot, Ashkboos et al. 2024; SpinQuant, Liu et al. 2024).
 *
 * In row form, with x the residual stream: x' = x R1, R1 = diag(s) M^T, so that a linear that reads the stream becomes W R1 and one that
 * writes it R1^T W (its bias R1^T b), after the gains of the norms have moved into the readers. Each value head turns by R2, its
 * bias too, and the columns of o that read it turn alike. R3 (queries and keys after RoPE) and R4 (input of down) run online; R4 also
 * turns the rows of down. Products are fast transforms in f64; each transform rounds a weight to f32 once. */
#ifndef BK_TRANSFORMS_H
#define BK_TRANSFORMS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"
#include "blocks/config.h"
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
    bool r2_per_kv_head; /* a rotation of its own for each block and KV head; else one for all */
    uint64_t seed;       /* of the random signs of R1 and R2 */
} bk_rotation_spec;

/* The same made ready for one model. */
typedef struct bk_rotation {
    bk_config before, after; /* shapes are equal; `after` knows a head that was untied and a bias of o that was made */
    bool on[BK_TRANSFORM_COUNT];
    bk_hadamard_plan *hidden, *head, *inter; /* NULL where no transform needs it */
    float *final_norm;                       /* [hidden] gain of the norm before the head, as the file has it */
    int8_t *r1_signs;                        /* [hidden] */
    int8_t *r2_signs;                        /* [r2_layers, r2_heads, head_dim]: [1, 1] when shared, else [layers, kv_heads] */
    int64_t r2_layers, r2_heads;
} bk_rotation;

/* One entry of the list; parts that are NULL leave their weights alone. Rows are rows of the embedding or the head, [rows, hidden]. */
typedef struct bk_transform {
    const char *name, *about;
    bk_status (*block)(const bk_rotation *, int64_t layer, bk_block_weights *, bk_error *);
    bk_status (*embed)(const bk_rotation *, int64_t rows, float *x, bk_error *);
    bk_status (*head)(const bk_rotation *, int64_t rows, float *x, bk_error *);
} bk_transform;

extern const bk_transform bk_transforms[BK_TRANSFORM_COUNT];

/* final_norm: [hidden], copied. Fails with BK_ENOMEM. */
bk_status bk_rotation_create(const bk_config *c, const bk_rotation_spec *spec, const float *final_norm, bk_rotation **out,
                             bk_error *err) BK_MUST_USE;
void bk_rotation_free(bk_rotation *r);

/* Apply what is on, in order, in place: to the weights of block `layer` (allocated for r->after), to rows of the embedding or head. */
bk_status bk_rotation_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_embed(const bk_rotation *r, int64_t rows, float *x, bk_error *err) BK_MUST_USE;
bk_status bk_rotation_head(const bk_rotation *r, int64_t rows, float *x, bk_error *err) BK_MUST_USE;

#endif
