/* Norm fusion and rotations: against golden models, and as identities of a block written out in f64. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/transforms.h"
#include "tests/h5_golden.h"
#include "tests/ok.h"
#include "tests/suite.h"

static void *room(int64_t count, size_t size)
{
    void *p = calloc((size_t)count, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* ---- one block in f64 ---- */

static void rms_norm(const float *gain, double eps, int64_t n, const double *x, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / (double)n + eps) * (double)gain[i];
}

/* y [T, out] = x [T, in] w^T + b, added to y. */
static void add_linear(const bk_config *c, const bk_block_weights *w, bk_linear_id id, int64_t T, const double *x, double *y)
{
    int64_t out, in;
    bk_linear_shape(c, id, &out, &in);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = w->b[id] ? (double)w->b[id][o] : 0;
            for (int64_t i = 0; i < in; i++) sum += (double)w->w[id][o * in + i] * x[t * in + i];
            y[t * out + o] += sum;
        }
    }
}

/* q/k norm, RoPE at position t, R3; x [T, heads, d]. */
static void shape_heads(const bk_config *c, const float *gain, const bk_hadamard_plan *r3, int64_t T, int64_t heads, double *x)
{
    int64_t d = c->head_dim;
    bk_error err = {0};
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < heads; h++) {
            double *v = x + (t * heads + h) * d;
            if (gain) rms_norm(gain, c->eps, d, v, v);
            for (int64_t i = 0; i < d / 2; i++) {
                double angle = (double)t * pow(c->rope_theta, -2.0 * (double)i / (double)d), a = v[i], b = v[i + d / 2];
                v[i] = a * cos(angle) - b * sin(angle);
                v[i + d / 2] = b * cos(angle) + a * sin(angle);
            }
        }
    }
    if (r3) ok(bk_hadamard_apply_f64(r3, NULL, x, T * heads, d, 1, &err), &err);
}

static void attention(const bk_config *c, int64_t T, const double *q, const double *k, const double *v, double *y)
{
    int64_t d = c->head_dim, group = c->heads / c->kv_heads;
    double *score = room(T, sizeof *score);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < c->heads; h++) {
            double total = 0, top = -INFINITY;
            for (int64_t s = 0; s <= t; s++) {
                score[s] = 0;
                for (int64_t i = 0; i < d; i++) score[s] += q[(t * c->heads + h) * d + i] * k[(s * c->kv_heads + h / group) * d + i];
                score[s] /= sqrt((double)d);
                top = fmax(top, score[s]);
            }
            for (int64_t s = 0; s <= t; s++) total += score[s] = exp(score[s] - top);
            for (int64_t s = 0; s <= t; s++)
                for (int64_t i = 0; i < d; i++)
                    y[(t * c->heads + h) * d + i] += score[s] / total * v[(s * c->kv_heads + h / group) * d + i];
        }
    }
    free(score);
}

/* x [T, hidden] in place. */
static void run_block(const bk_config *c, const bk_block_weights *w, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4, int64_t T, double *x)
{
    int64_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    double *n = room(T * c->hidden, sizeof *n), *q = room(T * wide, sizeof *q), *o = room(T * wide, sizeof *o);
    double *k = room(T * narrow, sizeof *k), *v = room(T * narrow, sizeof *v);
    double *gate = room(T * c->inter, sizeof *gate), *up = room(T * c->inter, sizeof *up);
    bk_error err = {0};
    for (int64_t t = 0; t < T; t++) rms_norm(w->norm[BK_NORM_ATTN], c->eps, c->hidden, x + t * c->hidden, n + t * c->hidden);
    add_linear(c, w, BK_W_Q, T, n, q);
    add_linear(c, w, BK_W_K, T, n, k);
    add_linear(c, w, BK_W_V, T, n, v);
    shape_heads(c, w->norm[BK_NORM_Q], r3, T, c->heads, q);
    shape_heads(c, w->norm[BK_NORM_K], r3, T, c->kv_heads, k);
    attention(c, T, q, k, v, o);
    add_linear(c, w, BK_W_O, T, o, x);
    for (int64_t t = 0; t < T; t++) rms_norm(w->norm[BK_NORM_MLP], c->eps, c->hidden, x + t * c->hidden, n + t * c->hidden);
    add_linear(c, w, BK_W_GATE, T, n, gate);
    add_linear(c, w, BK_W_UP, T, n, up);
    for (int64_t i = 0; i < T * c->inter; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    if (r4) ok(bk_hadamard_apply_f64(r4, NULL, up, T, c->inter, 1, &err), &err);
    add_linear(c, w, BK_W_DOWN, T, up, x);
    free(n), free(q), free(o), free(k), free(v), free(gate), free(up);
}

/* ---- golden models ---- */

static const char *const golden_model[] = {"tied_bias", "wide"};

typedef struct golden {
    bk_golden *file;
    const char *model;
    bk_config config;
    bk_rotation *rotation; /* everything is on; signs are those of the file */
} golden;

static golden open_golden(int which)
{
    golden g = {.file = bk_golden_open("rotation.h5"), .model = golden_model[which]};
    bk_config *c = &g.config;
    bk_error err = {0};
#define SIZE(field, name) c->field = bk_golden_attr_i64(g.file, name, "%s", g.model)
    SIZE(hidden, "hidden"), SIZE(inter, "inter"), SIZE(layers, "n_layers"), SIZE(heads, "n_heads"), SIZE(kv_heads, "n_kv_heads");
    SIZE(head_dim, "head_dim"), SIZE(vocab, "vocab"), SIZE(tied, "tie_word_embeddings");
#undef SIZE
    c->eps = bk_golden_attr(g.file, "rms_norm_eps", "%s", g.model);
    c->rope_theta = bk_golden_attr(g.file, "rope_theta", "%s", g.model);
    c->qkv_bias = c->o_bias = which == 0;
    bk_rotation_spec all = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .r2_per_kv_head = true, .seed = 1};
    ok(bk_rotation_create(c, &all, bk_golden_f32(g.file, "%s/base/weights/model.norm.weight", g.model), &g.rotation, &err), &err);
    const int32_t *r1 = bk_golden_i32(g.file, "%s/rotation/R1_signs", g.model), *r2 = bk_golden_i32(g.file, "%s/rotation/R2_signs", g.model);
    for (int64_t i = 0; i < c->hidden; i++) g.rotation->r1_signs[i] = (int8_t)r1[i];
    int64_t r2_count = bk_golden_count(g.file, "%s/rotation/R2_signs", g.model);
    ck_assert_int_eq(r2_count, c->layers * c->kv_heads * c->head_dim);
    for (int64_t i = 0; i < r2_count; i++) g.rotation->r2_signs[i] = (int8_t)r2[i];
    return g;
}

static void close_golden(golden *g)
{
    bk_rotation_free(g->rotation);
    bk_golden_close(g->file);
}

static void golden_block(golden *g, const char *stage, int64_t layer, bk_block_weights *w)
{
    bk_error err = {0};
    ok(bk_weights_alloc(&g->config, w, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&g->config, id, &out, &in);
        memcpy(w->w[id], bk_golden_f32(g->file, "%s/%s/weights/model.layers.%d.%s.weight", g->model, stage, (int)layer, bk_linear_hf[id]),
               (size_t)(out * in) * sizeof(float));
        if (w->b[id])
            memcpy(w->b[id], bk_golden_f32(g->file, "%s/%s/weights/model.layers.%d.%s.bias", g->model, stage, (int)layer, bk_linear_hf[id]),
                   (size_t)out * sizeof(float));
    }
    for (bk_norm_id id = 0; id < BK_NORM_Q; id++)
        memcpy(w->norm[id], bk_golden_f32(g->file, "%s/%s/weights/model.layers.%d.%s.weight", g->model, stage, (int)layer, bk_norm_hf[id]),
               (size_t)g->config.hidden * sizeof(float));
}

static void compare_array(golden *g, const char *stage, const char *name, const float *got, int64_t count, int64_t cols)
{
    double e = bk_golden_error_f32(got, bk_golden_f64(g->file, "%s/%s/weights/%s", g->model, stage, name), count, cols);
    ck_assert_msg(e < 1e-6, "%s, stage %s: %s is off by %g", g->model, stage, name, e);
}

static void compare_block(golden *g, const char *stage, int64_t layer, const bk_block_weights *w)
{
    char name[128];
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&g->config, id, &out, &in);
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, bk_linear_hf[id]);
        compare_array(g, stage, name, w->w[id], out * in, in);
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", (int)layer, bk_linear_hf[id]);
        if (w->b[id]) compare_array(g, stage, name, w->b[id], out, out);
    }
    for (bk_norm_id id = 0; id < BK_NORM_Q; id++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, bk_norm_hf[id]);
        compare_array(g, stage, name, w->norm[id], g->config.hidden, g->config.hidden);
    }
}

static const struct {
    bk_transform_id transform;
    const char *stage;
} stages[] = {{BK_TRANSFORM_FUSE, "norm_fused"},
              {BK_TRANSFORM_R1, "r1"},
              {BK_TRANSFORM_R2, "r1r2"},
              {BK_TRANSFORM_R4, "r1r2r3r4"},
              {BK_TRANSFORM_FOLD_V_BIAS, "v_bias_folded"}};
enum { STAGES = sizeof stages / sizeof *stages };

START_TEST(blocks_follow_golden_stages)
{
    golden g = open_golden(_i);
    bk_error err = {0};
    for (int64_t layer = 0; layer < g.config.layers; layer++) {
        bk_block_weights w;
        golden_block(&g, "base", layer, &w);
        for (int s = 0; s < STAGES && bk_golden_has(g.file, "%s/%s", g.model, stages[s].stage); s++) {
            bk_weights_view view = bk_weights_view_of(&w);
            ok(bk_transforms[stages[s].transform].block(g.rotation, layer, &view, &err), &err);
            compare_block(&g, stages[s].stage, layer, &w);
        }
        bk_weights_free(&w);
    }
    close_golden(&g);
}
END_TEST

START_TEST(whole_list_equals_the_last_golden_stage)
{
    golden g = open_golden(_i);
    const char *last = g.config.qkv_bias ? "v_bias_folded" : "r1r2r3r4";
    bk_error err = {0};
    bk_block_weights w;
    golden_block(&g, "base", 1, &w);
    ok(bk_rotation_block(g.rotation, 1, &w, &err), &err);
    compare_block(&g, last, 1, &w);
    bk_weights_free(&w);
    close_golden(&g);
}
END_TEST

START_TEST(embedding_and_head_follow_golden_stages)
{
    golden g = open_golden(_i);
    int64_t rows = g.config.vocab, hidden = g.config.hidden;
    bk_error err = {0};
    float *embed = bk_golden_f32(g.file, "%s/base/weights/model.embed_tokens.weight", g.model);
    float *head = bk_golden_f32(g.file, "%s/base/weights/%s", g.model, g.config.tied ? "model.embed_tokens.weight" : "lm_head.weight");
    bk_vectors v = {BK_F32, head, rows, hidden, hidden, 1};
    ok(bk_transforms[BK_TRANSFORM_FUSE].head(g.rotation, &v, &err), &err);
    compare_array(&g, "norm_fused", "lm_head.weight", head, rows * hidden, hidden);
    ok(bk_transforms[BK_TRANSFORM_R1].head(g.rotation, &v, &err), &err);
    ok(bk_rotation_embed(g.rotation, rows, embed, &err), &err);
    compare_array(&g, "r1", "lm_head.weight", head, rows * hidden, hidden);
    compare_array(&g, "r1", "model.embed_tokens.weight", embed, rows * hidden, hidden);
    close_golden(&g);
}
END_TEST

/* logits [T, vocab] of the residual stream x behind the last block. */
static void compare_logits(golden *g, const char *stage, int text, int64_t T, const double *x)
{
    int64_t hidden = g->config.hidden, vocab = g->config.vocab;
    bool tied = !bk_golden_has(g->file, "%s/%s/weights/lm_head.weight", g->model, stage);
    float *norm = bk_golden_f32(g->file, "%s/%s/weights/model.norm.weight", g->model, stage);
    float *head = bk_golden_f32(g->file, "%s/%s/weights/%s", g->model, stage, tied ? "model.embed_tokens.weight" : "lm_head.weight");
    double *want = bk_golden_f64(g->file, "%s/%s/logits%d", g->model, stage, text), *n = room(hidden, sizeof *n), *got = room(T * vocab, sizeof *got);
    for (int64_t t = 0; t < T; t++) {
        rms_norm(norm, g->config.eps, hidden, x + t * hidden, n);
        for (int64_t o = 0; o < vocab; o++)
            for (int64_t i = 0; i < hidden; i++) got[t * vocab + o] += (double)head[o * hidden + i] * n[i];
    }
    ck_assert_double_lt(bk_golden_error(got, want, T * vocab, vocab), 1e-5);
    free(n), free(got);
}

static void compare_stream(golden *g, const char *stage, int text, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4)
{
    int64_t T = bk_golden_count(g->file, "%s/tokens%d", g->model, text), size = T * g->config.hidden;
    double *hidden = bk_golden_f64(g->file, "%s/%s/hidden%d", g->model, stage, text), *x = room(size, sizeof *x);
    memcpy(x, hidden, (size_t)size * sizeof *x);
    for (int64_t layer = 0; layer < g->config.layers; layer++) {
        bk_block_weights w;
        golden_block(g, stage, layer, &w);
        run_block(&g->config, &w, r3, r4, T, x);
        ck_assert_double_lt(bk_golden_error(x, hidden + (layer + 1) * size, size, g->config.hidden), 2e-6);
        bk_weights_free(&w);
    }
    compare_logits(g, stage, text, T, x);
    free(x);
}

/* Anchors the block of this file, and the online transforms, to the golden residual streams and logits of every stage. */
START_TEST(f64_block_reproduces_golden_streams)
{
    static const char *const stage[] = {"base", "norm_fused", "r1", "r1r2", "r1r2r3r4", "v_bias_folded"};
    golden g = open_golden(_i);
    for (int s = 0; s < 6 && bk_golden_has(g.file, "%s/%s", g.model, stage[s]); s++)
        for (int text = 0; text < 2; text++) compare_stream(&g, stage[s], text, s < 4 ? NULL : g.rotation->head, s < 4 ? NULL : g.rotation->inter);
    close_golden(&g);
}
END_TEST

/* ---- identities ---- */

static const struct {
    const char *what;
    bk_config config;
} shapes[] = {
    {"grouped heads", {.hidden = 64, .inter = 96, .heads = 4, .kv_heads = 2, .head_dim = 16, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},
    {"one KV head, head_dim 32, q/k norm", {.hidden = 64, .inter = 128, .heads = 4, .kv_heads = 1, .head_dim = 32, .qk_norm = true}},
    {"order 90 without Hadamard matrix", {.hidden = 90, .inter = 90, .heads = 3, .kv_heads = 3, .head_dim = 30, .qkv_bias = true}},
    {"Williamson 172, tied", {.hidden = 48, .inter = 172, .heads = 6, .kv_heads = 3, .head_dim = 8, .qkv_bias = true, .tied = true}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const bk_rotation_spec specs[] = {
    {.r1 = true, .seed = 3},
    {.r2 = true, .seed = 3},
    {.r2 = true, .r2_per_kv_head = true, .seed = 3},
    {.r3 = true},
    {.r4 = true},
    {.fold_v_bias = true},
    {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 4},
    {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .r2_per_kv_head = true, .seed = 5},
};
enum { SPECS = sizeof specs / sizeof *specs };

static bk_config config_of(int shape)
{
    bk_config c = shapes[shape].config;
    c.layers = 3;
    c.vocab = 11;
    c.eps = 1e-5;
    c.rope_theta = 1e4;
    return c;
}

static void fill(float *x, int64_t count, double mean, double deviation, uint64_t *counter)
{
    for (int64_t i = 0; x && i < count; i++) x[i] = (float)(mean + deviation * bk_rng_normal(9, BK_RNG_TEST, (*counter)++));
}

/* Weights of `c` in arrays allocated for `after`; biases that `c` lacks stay zero. */
static void random_block(const bk_config *c, const bk_config *after, bk_block_weights *w)
{
    uint64_t counter = 0;
    bk_error err = {0};
    ok(bk_weights_alloc(after, w, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        fill(w->w[id], out * in, 0, 1 / sqrt((double)in), &counter);
        if (bk_config_has_bias(c, id)) fill(w->b[id], out, 0.3, 1, &counter);
    }
    for (bk_norm_id id = 0; id < BK_NORM_COUNT; id++) fill(w->norm[id], id < BK_NORM_Q ? c->hidden : c->head_dim, 1, 0.3, &counter);
}

static bk_rotation *rotation_for(const bk_config *c, const bk_rotation_spec *spec)
{
    bk_rotation *r;
    bk_error err = {0};
    float gain[128];
    uint64_t counter = 1000000;
    fill(gain, c->hidden, 1, 0.3, &counter);
    ok(bk_rotation_create(c, spec, gain, &r, &err), &err);
    return r;
}

static double largest_difference(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = isnan(a[i] - b[i]) ? INFINITY : fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

/* block'(x R1) = block(x) R1, for every shape and every choice of transforms, in a layer that is not the first. */
START_TEST(blocks_keep_their_function)
{
    enum { T = 5, LAYER = 2 };
    const bk_rotation_spec *spec = &specs[_i % SPECS];
    bk_config c = config_of(_i / SPECS);
    bk_rotation *r = rotation_for(&c, spec);
    bk_block_weights before, after;
    bk_error err = {0};
    random_block(&c, &c, &before);
    random_block(&c, &r->after, &after);
    ok(bk_rotation_block(r, LAYER, &after, &err), &err);
    double x[T * 90], y[T * 90];
    for (int64_t i = 0; i < T * c.hidden; i++) x[i] = y[i] = 2 * bk_rng_normal(8, BK_RNG_TEST, (uint64_t)i) + 0.5;
    run_block(&c, &before, NULL, NULL, T, x);
    if (r->on[BK_TRANSFORM_R1]) ok(bk_hadamard_apply_f64(r->hidden, r->r1_signs, y, T, c.hidden, 1, &err), &err);
    run_block(&r->after, &after, spec->r3 ? r->head : NULL, spec->r4 ? r->inter : NULL, T, y);
    if (r->on[BK_TRANSFORM_R1]) ok(bk_hadamard_invert_f64(r->hidden, r->r1_signs, y, T, c.hidden, 1, &err), &err);
    double e = largest_difference(x, y, T * c.hidden);
    ck_assert_msg(e < 3e-6, "%s, choice %d: off by %g", shapes[_i / SPECS].what, _i % SPECS, e);
    bk_weights_free(&before);
    bk_weights_free(&after);
    bk_rotation_free(r);
}
END_TEST

/* A transform that did nothing would pass the test above. */
START_TEST(transforms_change_what_they_name)
{
    static const struct {
        bk_rotation_spec spec;
        bool changed[BK_W_COUNT];
    } cases[] = {{{.r1 = true}, {true, true, true, true, true, true, true}},
                 {{.r2 = true}, {[BK_W_V] = true, [BK_W_O] = true}},
                 {{.r3 = true}, {false}},
                 {{.r4 = true}, {[BK_W_DOWN] = true}},
                 {{.fold_v_bias = true}, {false}},
                 {{.r1 = false}, {false}}};
    bk_config c = config_of(0);
    bk_rotation *r = rotation_for(&c, &cases[_i].spec);
    bk_block_weights before, after;
    bk_error err = {0};
    random_block(&c, &c, &before);
    random_block(&c, &r->after, &after);
    ok(bk_rotation_block(r, 0, &after, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&c, id, &out, &in);
        bool changed = memcmp(before.w[id], after.w[id], (size_t)(out * in) * sizeof(float)) != 0;
        ck_assert_msg(changed == cases[_i].changed[id], "%s", bk_linear_name[id]);
    }
    bk_weights_free(&before);
    bk_weights_free(&after);
    bk_rotation_free(r);
}
END_TEST

START_TEST(nothing_on_leaves_every_bit)
{
    bk_config c = config_of(0);
    bk_rotation_spec none = {.seed = 7};
    bk_rotation *r = rotation_for(&c, &none);
    bk_block_weights before, after;
    bk_error err = {0};
    float row[64], kept[64];
    uint64_t counter = 0;
    random_block(&c, &c, &before);
    random_block(&c, &r->after, &after);
    fill(row, c.hidden, 0, 1, &counter);
    memcpy(kept, row, sizeof row);
    ok(bk_rotation_block(r, 0, &after, &err), &err);
    ok(bk_rotation_embed(r, 1, row, &err), &err);
    ok(bk_rotation_head(r, 1, row, &err), &err);
    ck_assert_int_eq(before.count, after.count);
    ck_assert_mem_eq(before.memory, after.memory, (size_t)before.count * sizeof(float));
    ck_assert_mem_eq(row, kept, sizeof row);
    ck_assert(r->after.tied == c.tied && r->after.o_bias == c.o_bias);
    bk_weights_free(&before);
    bk_weights_free(&after);
    bk_rotation_free(r);
}
END_TEST

/* head (norm(x) o g) = head' norm(x R1): the final gain moves into the head. */
START_TEST(logits_stay)
{
    bk_config c = config_of(_i);
    bk_rotation *r = rotation_for(&c, &specs[6]);
    bk_error err = {0};
    float head[90], ones[90];
    double x[90], n[90], before = 0, after = 0;
    uint64_t counter = 50;
    fill(head, c.hidden, 0, 1, &counter);
    for (int64_t i = 0; i < c.hidden; i++) x[i] = bk_rng_normal(8, BK_RNG_TEST, (uint64_t)i) + 0.5, ones[i] = 1;
    rms_norm(r->final_norm, c.eps, c.hidden, x, n);
    for (int64_t i = 0; i < c.hidden; i++) before += n[i] * (double)head[i];
    ok(bk_hadamard_apply_f64(r->hidden, r->r1_signs, x, 1, c.hidden, 1, &err), &err);
    ok(bk_rotation_head(r, 1, head, &err), &err);
    rms_norm(ones, c.eps, c.hidden, x, n);
    for (int64_t i = 0; i < c.hidden; i++) after += n[i] * (double)head[i];
    ck_assert_double_eq_tol(before, after, 3e-6);
    bk_rotation_free(r);
}
END_TEST

/* ---- what is on, and the signs ---- */

START_TEST(config_after_tells_untied_head_and_new_bias)
{
    bk_config c = config_of(3);
    bk_rotation *r = rotation_for(&c, &specs[7]);
    ck_assert(c.tied && !c.o_bias);
    ck_assert(!r->after.tied && r->after.o_bias);
    ck_assert(r->on[BK_TRANSFORM_UNTIE] && r->on[BK_TRANSFORM_FUSE] && r->on[BK_TRANSFORM_FOLD_V_BIAS]);
    bk_rotation_free(r);
}
END_TEST

START_TEST(online_rotations_alone_untie_and_fuse_nothing)
{
    bk_config c = config_of(3);
    bk_rotation_spec online = {.r3 = true, .r4 = true};
    bk_rotation *r = rotation_for(&c, &online);
    ck_assert(r->after.tied && !r->on[BK_TRANSFORM_FUSE] && !r->on[BK_TRANSFORM_UNTIE]);
    bk_rotation_free(r);
}
END_TEST

START_TEST(fold_does_nothing_without_v_bias)
{
    bk_config c = config_of(1);
    bk_rotation *r = rotation_for(&c, &specs[5]);
    ck_assert(!r->on[BK_TRANSFORM_FOLD_V_BIAS] && !r->after.o_bias);
    bk_rotation_free(r);
}
END_TEST

START_TEST(signs_depend_on_the_seed_alone)
{
    bk_config c = config_of(0);
    bk_rotation *a = rotation_for(&c, &specs[0]), *again = rotation_for(&c, &specs[0]), *other = rotation_for(&c, &specs[6]);
    ck_assert_mem_eq(a->r1_signs, again->r1_signs, (size_t)c.hidden);
    ck_assert_mem_ne(a->r1_signs, other->r1_signs, (size_t)c.hidden);
    int minus = 0;
    for (int64_t i = 0; i < c.hidden; i++) {
        ck_assert(abs(a->r1_signs[i]) == 1);
        minus += a->r1_signs[i] < 0;
    }
    ck_assert(minus > 16 && minus < 48);
    bk_rotation_free(a);
    bk_rotation_free(again);
    bk_rotation_free(other);
}
END_TEST

START_TEST(r2_signs_are_shared_or_one_per_kv_head)
{
    bk_config c = config_of(0);
    bk_rotation *shared = rotation_for(&c, &specs[1]), *own = rotation_for(&c, &specs[2]);
    ck_assert(shared->r2_layers == 1 && shared->r2_heads == 1);
    ck_assert(own->r2_layers == c.layers && own->r2_heads == c.kv_heads);
    ck_assert_mem_ne(own->r2_signs, own->r2_signs + c.head_dim, (size_t)c.head_dim);
    bk_rotation_free(shared);
    bk_rotation_free(own);
}
END_TEST

START_TEST(list_is_in_order_and_tells_what_it_does)
{
    static const char *const order[] = {"untie", "scales", "fuse", "r1", "r2", "r3", "down_order", "down_signs", "r4", "fold_v_bias"};
    ck_assert_int_eq(BK_TRANSFORM_COUNT, sizeof order / sizeof *order);
    for (int t = 0; t < BK_TRANSFORM_COUNT; t++) {
        ck_assert_str_eq(bk_transforms[t].name, order[t]);
        ck_assert_int_gt(strlen(bk_transforms[t].about), 10);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transforms");
    TCase *tc = tcase_create("transforms");
    tcase_add_loop_test(tc, blocks_follow_golden_stages, 0, 2);
    tcase_add_loop_test(tc, whole_list_equals_the_last_golden_stage, 0, 2);
    tcase_add_loop_test(tc, embedding_and_head_follow_golden_stages, 0, 2);
    tcase_add_loop_test(tc, f64_block_reproduces_golden_streams, 0, 2);
    tcase_add_loop_test(tc, blocks_keep_their_function, 0, SHAPES * SPECS);
    tcase_add_loop_test(tc, transforms_change_what_they_name, 0, 6);
    tcase_add_test(tc, nothing_on_leaves_every_bit);
    tcase_add_loop_test(tc, logits_stay, 0, SHAPES);
    tcase_add_test(tc, config_after_tells_untied_head_and_new_bias);
    tcase_add_test(tc, online_rotations_alone_untie_and_fuse_nothing);
    tcase_add_test(tc, fold_does_nothing_without_v_bias);
    tcase_add_test(tc, signs_depend_on_the_seed_alone);
    tcase_add_test(tc, r2_signs_are_shared_or_one_per_kv_head);
    tcase_add_test(tc, list_is_in_order_and_tells_what_it_does);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
