#include "blocks/transforms.h"

#include <stdlib.h>
#include <string.h>

/* How the linears of a block touch the residual stream. */
static const struct {
    bool reads, writes;
    bk_norm_id norm; /* whose output it reads */
} stream[BK_W_COUNT] = {
    [BK_W_Q] = {true, false, BK_NORM_ATTN}, [BK_W_K] = {true, false, BK_NORM_ATTN},
    [BK_W_V] = {true, false, BK_NORM_ATTN}, [BK_W_GATE] = {true, false, BK_NORM_MLP},
    [BK_W_UP] = {true, false, BK_NORM_MLP}, [BK_W_O] = {.writes = true},
    [BK_W_DOWN] = {.writes = true},
};

/* ---- a linear W [out, in], seen from its sides ---- */

/* Rows of W: vectors of inputs. */
static bk_vectors inputs_of(const bk_config *c, const bk_weights_view *w, bk_linear_id id)
{
    int64_t out, in;
    bk_linear_shape(c, id, &out, &in);
    return (bk_vectors){w->type, w->w[id], out, in, in, 1};
}

/* Columns of W: vectors of outputs. */
static bk_vectors outputs_of(const bk_config *c, const bk_weights_view *w, bk_linear_id id)
{
    int64_t out, in;
    bk_linear_shape(c, id, &out, &in);
    return (bk_vectors){w->type, w->w[id], in, out, 1, in};
}

/* The bias: one more vector of outputs; none where the linear has no bias. */
static bk_vectors bias_of(const bk_config *c, const bk_weights_view *w, bk_linear_id id)
{
    int64_t out, in;
    bk_linear_shape(c, id, &out, &in);
    return (bk_vectors){w->type, w->b[id], w->b[id] != NULL, out, out, 1};
}

static bk_vectors gain_of(const bk_config *c, const bk_weights_view *w, bk_norm_id id)
{
    return (bk_vectors){w->type, w->norm[id], 1, c->hidden, c->hidden, 1};
}

/* Entries first .. first + n - 1 of each vector. */
static bk_vectors part_of(bk_vectors v, int64_t first, int64_t n)
{
    size_t size = v.type == BK_F64 ? sizeof(double) : sizeof(float);
    if (v.x) v.x = (char *)v.x + (size_t)(first * v.element_stride) * size;
    v.n = n;
    return v;
}

static void scale_outputs(const bk_config *c, const bk_weights_view *w, bk_linear_id id, const double *factor)
{
    bk_vectors weights = outputs_of(c, w, id), bias = bias_of(c, w, id);
    bk_vectors_scale(&weights, factor);
    bk_vectors_scale(&bias, factor);
}

static void scale_inputs(const bk_config *c, const bk_weights_view *w, bk_linear_id id, const double *factor)
{
    bk_vectors weights = inputs_of(c, w, id);
    bk_vectors_scale(&weights, factor);
}

/* ---- scales ---- */

/* Factors of one site and their inverses, for room [2, n]. */
static const double *factors_of(const float *scale, int64_t n, double *room)
{
    for (int64_t i = 0; i < n; i++) {
        room[i] = (double)scale[i];
        room[n + i] = 1 / room[i];
    }
    return room;
}

static void scale_norm(const bk_config *c, const bk_weights_view *w, bk_norm_id norm, const float *scale, double *room)
{
    const double *factor = factors_of(scale, c->hidden, room);
    bk_vectors gain = gain_of(c, w, norm);
    bk_vectors_scale(&gain, factor + c->hidden);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++)
        if (stream[id].reads && stream[id].norm == norm) scale_inputs(c, w, id, factor);
}

/* Query heads of a group read the same values: o has the scales of a KV head once for each of them. */
static void scale_values(const bk_config *c, const bk_weights_view *w, const float *scale, double *room)
{
    int64_t d = c->head_dim, group = c->heads / c->kv_heads, n = c->kv_heads * d;
    const double *factor = factors_of(scale, n, room);
    scale_outputs(c, w, BK_W_V, factor + n);
    for (int64_t h = 0; h < c->heads; h++) {
        bk_vectors reads = part_of(inputs_of(c, w, BK_W_O), h * d, d);
        bk_vectors_scale(&reads, factor + h / group * d);
    }
}

static void scale_down(const bk_config *c, const bk_weights_view *w, const float *scale, double *room)
{
    const double *factor = factors_of(scale, c->inter, room);
    scale_outputs(c, w, BK_W_UP, factor + c->inter);
    scale_inputs(c, w, BK_W_DOWN, factor);
}

static int64_t largest_width(const bk_config *c)
{
    int64_t n = c->hidden > c->inter ? c->hidden : c->inter, values = c->kv_heads * c->head_dim;
    return n > values ? n : values;
}

static bk_status make_room(const bk_config *c, double **room, bk_error *err)
{
    *room = malloc((size_t)(2 * largest_width(c)) * sizeof **room);
    return *room ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the factors of channels");
}

static bk_status scales_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    const bk_config *c = &r->before;
    const bk_fitted *f = r->fitted;
    double *room;
    BK_TRY(make_room(c, &room, err));
    if (f->scale_attn_in) scale_norm(c, w, BK_NORM_ATTN, f->scale_attn_in + layer * c->hidden, room);
    if (f->scale_mlp_in) scale_norm(c, w, BK_NORM_MLP, f->scale_mlp_in + layer * c->hidden, room);
    if (f->scale_o_in) scale_values(c, w, f->scale_o_in + layer * c->kv_heads * c->head_dim, room);
    if (f->scale_down_in) scale_down(c, w, f->scale_down_in + layer * c->inter, room);
    free(room);
    return BK_OK;
}

/* ---- norm fusion ---- */

static bk_status fuse_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    (void)layer;
    const bk_config *c = &r->before;
    double *gain;
    BK_TRY(make_room(c, &gain, err));
    for (bk_norm_id norm = BK_NORM_ATTN; norm <= BK_NORM_MLP; norm++) {
        bk_vectors from = gain_of(c, w, norm);
        for (int64_t i = 0; i < c->hidden; i++) gain[i] = bk_vectors_get(&from, 0, i);
        for (bk_linear_id id = 0; id < BK_W_COUNT; id++)
            if (stream[id].reads && stream[id].norm == norm) scale_inputs(c, w, id, gain);
        for (int64_t i = 0; i < c->hidden; i++) bk_vectors_set(&from, 0, i, 1);
    }
    free(gain);
    return BK_OK;
}

static bk_status fuse_head(const bk_rotation *r, const bk_vectors *rows, bk_error *err)
{
    double *gain;
    BK_TRY(make_room(&r->before, &gain, err));
    for (int64_t i = 0; i < rows->n; i++) gain[i] = (double)r->final_norm[i];
    bk_vectors_scale(rows, gain);
    free(gain);
    return BK_OK;
}

/* ---- R1 ---- */

static bk_status r1(const bk_rotation *r, const bk_vectors *v, bk_error *err)
{
    return r->r1_dense ? bk_vectors_dense(v, r->r1_dense, err) : bk_vectors_hadamard(v, r->hidden, r->r1_signs, err);
}

static bk_status r1_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    (void)layer;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        bk_vectors side = stream[id].reads ? inputs_of(&r->before, w, id) : outputs_of(&r->before, w, id);
        bk_vectors bias = bias_of(&r->before, w, id);
        BK_TRY(r1(r, &side, err));
        if (stream[id].writes) BK_TRY(r1(r, &bias, err));
    }
    return BK_OK;
}

/* ---- R2 ---- */

static bk_status r2(const bk_rotation *r, const bk_vectors *v, const int8_t *signs, bk_error *err)
{
    return r->r2_dense ? bk_vectors_dense(v, r->r2_dense, err) : bk_vectors_hadamard(v, r->head, signs, err);
}

static bk_status r2_head(const bk_rotation *r, int64_t layer, int64_t h, const bk_weights_view *w, bk_error *err)
{
    const bk_config *c = &r->before;
    int64_t d = c->head_dim, group = c->heads / c->kv_heads;
    const int8_t *signs = NULL;
    if (r->r2_dense) BK_TRY(bk_dense_set(r->r2_dense, r->fitted->r2 + (layer * c->kv_heads + h) * d * d, err));
    else signs = r->r2_signs + ((r->r2_layers > 1 ? layer : 0) * r->r2_heads + (r->r2_heads > 1 ? h : 0)) * d;
    bk_vectors v = part_of(outputs_of(c, w, BK_W_V), h * d, d), bias = part_of(bias_of(c, w, BK_W_V), h * d, d);
    BK_TRY(r2(r, &v, signs, err));
    BK_TRY(r2(r, &bias, signs, err));
    for (int64_t i = h * group; i < (h + 1) * group; i++) {
        bk_vectors o = part_of(inputs_of(c, w, BK_W_O), i * d, d);
        BK_TRY(r2(r, &o, signs, err));
    }
    return BK_OK;
}

static bk_status r2_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    for (int64_t h = 0; h < r->before.kv_heads; h++) BK_TRY(r2_head(r, layer, h, w, err));
    return BK_OK;
}

/* ---- R3 ---- */

/* A fitted R3 goes along with the weights; a Hadamard is a property of the whole model. */
static bk_status r3_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    (void)err;
    const bk_config *c = &r->after;
    if (!c->r3_per_kv_head) return BK_OK;
    int64_t n = c->kv_heads * c->head_dim * c->head_dim;
    bk_vectors to = {w->type, w->r3, 1, n, n, 1};
    for (int64_t i = 0; i < n; i++) bk_vectors_set(&to, 0, i, r->fitted->r3[layer * n + i]);
    return BK_OK;
}

/* ---- the input of down ---- */

static bk_status down_order_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    const bk_config *c = &r->before;
    const int32_t *order = r->fitted->down_order + layer * c->inter;
    for (bk_linear_id id = BK_W_GATE; id <= BK_W_UP; id++) {
        bk_vectors weights = outputs_of(c, w, id), bias = bias_of(c, w, id);
        BK_TRY(bk_vectors_permute(&weights, order, err));
        BK_TRY(bk_vectors_permute(&bias, order, err));
    }
    bk_vectors down = inputs_of(c, w, BK_W_DOWN);
    return bk_vectors_permute(&down, order, err);
}

static bk_status down_signs_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    const bk_config *c = &r->before;
    const int8_t *sign = r->fitted->down_signs + layer * c->inter;
    double *factor;
    BK_TRY(make_room(c, &factor, err));
    for (int64_t i = 0; i < c->inter; i++) factor[i] = sign[i];
    scale_outputs(c, w, BK_W_UP, factor);
    scale_inputs(c, w, BK_W_DOWN, factor);
    free(factor);
    return BK_OK;
}

static bk_status r4_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    (void)layer;
    bk_vectors down = inputs_of(&r->before, w, BK_W_DOWN);
    return bk_vectors_hadamard(&down, r->inter, NULL, err);
}

/* ---- v bias ---- */

static bk_status fold_v_bias_block(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    (void)layer, (void)err;
    const bk_config *c = &r->before;
    int64_t d = c->head_dim, group = c->heads / c->kv_heads;
    bk_vectors o = inputs_of(c, w, BK_W_O), bias = bias_of(c, w, BK_W_O), v = bias_of(c, w, BK_W_V);
    for (int64_t row = 0; row < o.count; row++) {
        double sum = bk_vectors_get(&bias, 0, row);
        for (int64_t i = 0; i < o.n; i++)
            sum += bk_vectors_get(&o, row, i) * bk_vectors_get(&v, 0, i / d / group * d + i % d);
        bk_vectors_set(&bias, 0, row, sum);
    }
    for (int64_t i = 0; i < v.n; i++) bk_vectors_set(&v, 0, i, 0);
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

static const bk_fitted nothing_fitted;

static bk_status check(const bk_config *c, const bk_rotation_spec *spec, const bk_fitted *f, bk_error *err)
{
    if (spec->fitted) BK_TRY(bk_fitted_fits(f, c, err));
    if (((spec->r1 && f->r1) || (spec->r2 && f->r2)) && !spec->be)
        return bk_fail(err, BK_EINVAL, "fitted rotations need a backend for their products");
    if (f->down_signs && !spec->r4)
        return bk_fail(
            err, BK_EINVAL,
            "fitted signs of the input of down are part of R4, which is off: switch R4 on or leave them out");
    return BK_OK;
}

static bk_status make_dense(const bk_rotation_spec *spec, const bk_fitted *f, bk_rotation *r, bk_error *err)
{
    const bk_config *c = &r->before;
    if (spec->r1 && f->r1) {
        BK_TRY(bk_dense_create(spec->be, c->hidden, &r->r1_dense, err));
        BK_TRY(bk_dense_set(r->r1_dense, f->r1, err));
    }
    return spec->r2 && f->r2 ? bk_dense_create(spec->be, c->head_dim, &r->r2_dense, err) : BK_OK;
}

static bk_status make_plans(const bk_rotation_spec *spec, const bk_fitted *f, bk_rotation *r, bk_error *err)
{
    const bk_config *c = &r->before;
    if (spec->r1 && !f->r1) BK_TRY(bk_hadamard_create(c->hidden, &r->hidden, err));
    if ((spec->r2 && !f->r2) || (spec->r3 && !f->r3)) BK_TRY(bk_hadamard_create(c->head_dim, &r->head, err));
    if (!spec->r4) return BK_OK;
    if (!spec->r4_group) return bk_hadamard_create(c->inter, &r->inter, err);
    return bk_hadamard_create_blocks(c->inter, spec->r4_group, &r->inter, err)
               ? bk_error_prefix(err, "R4, groups of the input of down")
               : BK_OK;
}

static bk_status make_signs(const bk_rotation_spec *spec, const bk_fitted *f, bk_rotation *r, bk_error *err)
{
    const bk_config *c = &r->before;
    bool r1 = spec->r1 && !f->r1, r2 = spec->r2 && !f->r2;
    r->r2_layers = spec->r2_per_kv_head ? c->layers : 1;
    r->r2_heads = spec->r2_per_kv_head ? c->kv_heads : 1;
    if (r1) r->r1_signs = random_signs(spec->seed, BK_RNG_R1, c->hidden);
    if (r2) r->r2_signs = random_signs(spec->seed, BK_RNG_R2, r->r2_layers * r->r2_heads * c->head_dim);
    return (r1 && !r->r1_signs) || (r2 && !r->r2_signs)
               ? bk_fail(err, BK_ENOMEM, "no memory for the signs of rotations")
               : BK_OK;
}

static bk_status prepare(bk_rotation *r, const bk_rotation_spec *spec, const float *final_norm, bk_error *err)
{
    const bk_fitted *f = r->fitted;
    int64_t hidden = r->before.hidden;
    BK_TRY(check(&r->before, spec, f, err));
    r->final_norm = malloc((size_t)hidden * sizeof(float));
    if (!r->final_norm) return bk_fail(err, BK_ENOMEM, "no memory for the final norm");
    memcpy(r->final_norm, final_norm, (size_t)hidden * sizeof(float));
    BK_TRY(make_plans(spec, f, r, err));
    BK_TRY(make_signs(spec, f, r, err));
    return make_dense(spec, f, r, err);
}

static void switch_on(bk_rotation *r, const bk_rotation_spec *spec)
{
    const bk_fitted *f = r->fitted;
    r->on[BK_TRANSFORM_FUSE] = spec->r1 || spec->fuse;
    r->on[BK_TRANSFORM_UNTIE] = r->on[BK_TRANSFORM_FUSE] && r->before.tied;
    r->on[BK_TRANSFORM_SCALES] = f->scale_attn_in || f->scale_mlp_in || f->scale_o_in || f->scale_down_in;
    r->on[BK_TRANSFORM_R1] = spec->r1;
    r->on[BK_TRANSFORM_R2] = spec->r2;
    r->on[BK_TRANSFORM_R3] = spec->r3;
    r->on[BK_TRANSFORM_DOWN_ORDER] = f->down_order != NULL;
    r->on[BK_TRANSFORM_DOWN_SIGNS] = f->down_signs != NULL;
    r->on[BK_TRANSFORM_R4] = spec->r4;
    r->on[BK_TRANSFORM_FOLD_V_BIAS] = spec->fold_v_bias && r->before.qkv_bias;
    if (r->on[BK_TRANSFORM_UNTIE]) r->after.tied = false;
    if (r->on[BK_TRANSFORM_FOLD_V_BIAS]) r->after.o_bias = true;
    if (spec->r3 && f->r3) r->after.r3_per_kv_head = true;
}

bk_status bk_rotation_create(const bk_config *c, const bk_rotation_spec *spec, const float *final_norm,
                             bk_rotation **out, bk_error *err)
{
    *out = NULL;
    bk_rotation *r = calloc(1, sizeof *r);
    if (!r) return bk_fail(err, BK_ENOMEM, "no memory for a rotation");
    r->before = r->after = *c;
    r->r4_group = spec->r4_group;
    r->fitted = spec->fitted ? spec->fitted : &nothing_fitted;
    switch_on(r, spec);
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
    bk_dense_free(r->r1_dense);
    bk_dense_free(r->r2_dense);
    free(r->final_norm);
    free(r->r1_signs);
    free(r->r2_signs);
    free(r);
}

const bk_hadamard_plan *bk_rotation_r3(const bk_rotation *r)
{
    return r->on[BK_TRANSFORM_R3] && !r->after.r3_per_kv_head ? r->head : NULL;
}

const bk_hadamard_plan *bk_rotation_r4(const bk_rotation *r)
{
    return r->on[BK_TRANSFORM_R4] ? r->inter : NULL;
}

bk_status bk_rotation_block_view(const bk_rotation *r, int64_t layer, const bk_weights_view *w, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].block) BK_TRY(bk_transforms[t].block(r, layer, w, err));
    return BK_OK;
}

bk_status bk_rotation_embed_rows(const bk_rotation *r, const bk_vectors *rows, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].embed) BK_TRY(bk_transforms[t].embed(r, rows, err));
    return BK_OK;
}

bk_status bk_rotation_head_rows(const bk_rotation *r, const bk_vectors *rows, bk_error *err)
{
    for (bk_transform_id t = 0; t < BK_TRANSFORM_COUNT; t++)
        if (r->on[t] && bk_transforms[t].head) BK_TRY(bk_transforms[t].head(r, rows, err));
    return BK_OK;
}

bk_status bk_rotation_block(const bk_rotation *r, int64_t layer, bk_block_weights *w, bk_error *err)
{
    bk_weights_view view = bk_weights_view_of(w);
    return bk_rotation_block_view(r, layer, &view, err);
}

static bk_vectors rows_of(const bk_rotation *r, int64_t rows, float *x)
{
    return (bk_vectors){BK_F32, x, rows, r->before.hidden, r->before.hidden, 1};
}

bk_status bk_rotation_embed(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    bk_vectors v = rows_of(r, rows, x);
    return bk_rotation_embed_rows(r, &v, err);
}

bk_status bk_rotation_head(const bk_rotation *r, int64_t rows, float *x, bk_error *err)
{
    bk_vectors v = rows_of(r, rows, x);
    return bk_rotation_head_rows(r, &v, err);
}

bk_status bk_rotation_dense(int64_t n, bk_rng_stream purpose, uint64_t seed, double *r, bk_error *err)
{
    bk_hadamard_plan *plan;
    BK_TRY(bk_hadamard_create(n, &plan, err));
    int8_t *signs = random_signs(seed, purpose, n);
    for (int64_t i = 0; i < n * n; i++) r[i] = i % (n + 1) == 0;
    bk_status st = signs ? bk_hadamard_apply_f64(plan, signs, r, n, n, 1, err)
                         : bk_fail(err, BK_ENOMEM, "no memory for the signs of a rotation");
    free(signs);
    bk_hadamard_free(plan);
    return st;
}
