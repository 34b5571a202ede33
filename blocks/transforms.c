#include "blocks/transforms.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"

/* How the linears of a block touch the residual stream. */
static const struct {
    bool reads, writes;
    bk_norm_id norm; /* whose output it reads */
} stream[BK_W_COUNT] = {
    [BK_W_Q] = {true, false, BK_NORM_ATTN},  [BK_W_K] = {true, false, BK_NORM_ATTN},   [BK_W_V] = {true, false, BK_NORM_ATTN},
    [BK_W_GATE] = {true, false, BK_NORM_MLP}, [BK_W_UP] = {true, false, BK_NORM_MLP},
    [BK_W_O] = {.writes = true},              [BK_W_DOWN] = {.writes = true},
};

static void multiply_columns(float *w, int64_t rows, int64_t cols, const float *gain)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) w[r * cols + c] *= gain[c];
}

static bk_status fuse_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    (void)layer, (void)err;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&r->before, id, &out, &in);
        if (stream[id].reads) multiply_columns(w->w[id], out, in, w->norm[stream[id].norm]);
    }
    for (int64_t i = 0; i < r->before.hidden; i++) w->norm[BK_NORM_ATTN][i] = w->norm[BK_NORM_MLP][i] = 1;
    return BK_OK;
}

static bk_status fuse_head(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    (void)err;
    multiply_columns(x, rows, r->before.hidden, r->final_norm);
    return BK_OK;
}

static bk_status r1_rows(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    return bk_hadamard_apply(r->hidden, r->r1_signs, x, rows, r->before.hidden, 1, err);
}

static bk_status r1_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    (void)layer;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&r->before, id, &out, &in);
        if (stream[id].reads) BK_TRY(r1_rows(r, out, w->w[id], err));
        if (!stream[id].writes) continue;
        BK_TRY(bk_hadamard_apply(r->hidden, r->r1_signs, w->w[id], in, 1, in, err));
        if (w->b[id]) BK_TRY(r1_rows(r, 1, w->b[id], err));
    }
    return BK_OK;
}

static bk_status r2_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    const bk_config *c = &r->before;
    int64_t d = c->head_dim, group = c->heads / c->kv_heads, o_in = c->heads * d;
    const int8_t *of_layer = r->r2_signs + (r->r2_layers > 1 ? layer : 0) * r->r2_heads * d;
    for (int64_t h = 0; h < c->kv_heads; h++) {
        const int8_t *signs = of_layer + (r->r2_heads > 1 ? h : 0) * d;
        BK_TRY(bk_hadamard_apply(r->head, signs, w->w[BK_W_V] + h * d * c->hidden, c->hidden, 1, c->hidden, err));
        if (w->b[BK_W_V]) BK_TRY(bk_hadamard_apply(r->head, signs, w->b[BK_W_V] + h * d, 1, d, 1, err));
        for (int64_t i = h * group; i < (h + 1) * group; i++)
            BK_TRY(bk_hadamard_apply(r->head, signs, w->w[BK_W_O] + i * d, c->hidden, o_in, 1, err));
    }
    return BK_OK;
}

static bk_status r4_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    (void)layer;
    return bk_hadamard_apply(r->inter, NULL, w->w[BK_W_DOWN], r->before.hidden, r->before.inter, 1, err);
}

static bk_status fold_v_bias_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    (void)layer, (void)err;
    const bk_config *c = &r->before;
    int64_t d = c->head_dim, group = c->heads / c->kv_heads, o_in = c->heads * d;
    for (int64_t row = 0; row < c->hidden; row++) {
        double sum = (double)w->b[BK_W_O][row];
        for (int64_t i = 0; i < o_in; i++) {
            int64_t channel = i / d / group * d + i % d; /* of v, that reaches input i of o */
            sum += (double)w->w[BK_W_O][row * o_in + i] * (double)w->b[BK_W_V][channel];
        }
        w->b[BK_W_O][row] = (float)sum;
    }
    memset(w->b[BK_W_V], 0, (size_t)(c->kv_heads * d) * sizeof(float));
    return BK_OK;
}

const bk_transform bk_transforms[BK_TRANSFORM_COUNT] = {
#define BK_TRANSFORM(E, name, block, embed, head, about) {name, about, block, embed, head},
#include "blocks/transforms.def"
#undef BK_TRANSFORM
};

/* ---- made ready for a model ---- */

static int8_t *random_signs(uint64_t seed, bk_rng_stream purpose, int64_t count)
{
    int8_t *s = malloc((size_t)count);
    for (int64_t i = 0; s && i < count; i++)
        s[i] = bk_rng_u64(seed, purpose, (uint64_t)i / 64) >> (i % 64) & 1 ? -1 : 1;
    return s;
}

static bk_status prepare(bk_rotation *r, const bk_rotation_spec *spec, const float *final_norm, bk_error *err)
{
    const bk_config *c = &r->before;
    r->final_norm = malloc((size_t)c->hidden * sizeof(float));
    if (!r->final_norm) return bk_fail(err, BK_ENOMEM, "no memory for the final norm");
    memcpy(r->final_norm, final_norm, (size_t)c->hidden * sizeof(float));
    if (spec->r1) BK_TRY(bk_hadamard_create(c->hidden, &r->hidden, err));
    if (spec->r2 || spec->r3) BK_TRY(bk_hadamard_create(c->head_dim, &r->head, err));
    if (spec->r4) BK_TRY(bk_hadamard_create(c->inter, &r->inter, err));
    r->r2_layers = spec->r2_per_kv_head ? c->layers : 1;
    r->r2_heads = spec->r2_per_kv_head ? c->kv_heads : 1;
    if (spec->r1) r->r1_signs = random_signs(spec->seed, BK_RNG_R1, c->hidden);
    if (spec->r2) r->r2_signs = random_signs(spec->seed, BK_RNG_R2, r->r2_layers * r->r2_heads * c->head_dim);
    if ((spec->r1 && !r->r1_signs) || (spec->r2 && !r->r2_signs)) return bk_fail(err, BK_ENOMEM, "no memory for the signs of rotations");
    return BK_OK;
}

bk_status bk_rotation_create(const bk_config *c, const bk_rotation_spec *spec, const float *final_norm, bk_rotation **out, bk_error *err)
{
    *out = NULL;
    bk_rotation *r = calloc(1, sizeof *r);
    if (!r) return bk_fail(err, BK_ENOMEM, "no memory for a rotation");
    r->before = r->after = *c;
    r->on[BK_TRANSFORM_UNTIE] = spec->r1 && c->tied;
    r->on[BK_TRANSFORM_FUSE] = r->on[BK_TRANSFORM_R1] = spec->r1;
    r->on[BK_TRANSFORM_R2] = spec->r2;
    r->on[BK_TRANSFORM_R3] = spec->r3;
    r->on[BK_TRANSFORM_R4] = spec->r4;
    r->on[BK_TRANSFORM_FOLD_V_BIAS] = spec->fold_v_bias && c->qkv_bias;
    if (r->on[BK_TRANSFORM_UNTIE]) r->after.tied = false;
    if (r->on[BK_TRANSFORM_FOLD_V_BIAS]) r->after.o_bias = true;
    bk_status status = prepare(r, spec, final_norm, err);
    if (status) {
        bk_rotation_free(r);
        return status;
    }
    *out = r;
    return BK_OK;
}

void bk_rotation_free(bk_rotation *r)
{
    if (!r) return;
    bk_hadamard_free(r->hidden);
    bk_hadamard_free(r->head);
    bk_hadamard_free(r->inter);
    free(r->final_norm);
    free(r->r1_signs);
    free(r->r2_signs);
    free(r);
}

bk_status bk_rotation_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].block) BK_TRY(bk_transforms[t].block(r, layer, w, err));
    return BK_OK;
}

bk_status bk_rotation_embed(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].embed) BK_TRY(bk_transforms[t].embed(r, rows, x, err));
    return BK_OK;
}

bk_status bk_rotation_head(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].head) BK_TRY(bk_transforms[t].head(r, rows, x, err));
    return BK_OK;
}
