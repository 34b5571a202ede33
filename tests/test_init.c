/* Initialisation of a block: measured ranges, and a search whose choices are compared with its objectives computed here by hand. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/init.h"
#include "quant/steps.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

/* A block, its inputs, and what stands where in full precision. */
typedef struct env {
    bk_tiny_block t;
    bk_hadamard_plan *r3, *r4;
    bk_stream *x;
    int64_t samples, tokens, rows;
    double *at[BK_SITE_COUNT], *q, *y, *prefix_k;
} env;

static double *copy(env *e, const bk_tensor *t)
{
    double *x = malloc((size_t)bk_numel(t) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    ok(bk_read_f64(e->t.be, t, 0, x, bk_numel(t), &e->t.err), &e->t.err);
    return x;
}

/* One pass over all samples with the quantizers as they are switched; in a context of its own. */
static void run_block(env *e, bk_block_values *v, bk_ctx **ctx)
{
    int64_t dim[3] = {e->samples, e->tokens, e->t.b->cfg.hidden};
    float *host = malloc((size_t)(e->rows * dim[2]) * sizeof *host);
    ck_assert_ptr_nonnull(host);
    ok(bk_stream_read(e->x, 0, e->samples, host, &e->t.err), &e->t.err);
    ck_assert_ptr_nonnull(*ctx = bk_ctx_new(e->t.be, &e->t.err));
    for (int real = 0; real < 2; real++) {
        bk_step_begin(*ctx);
        bk_tensor *in = bk_real_new(*ctx, 3, dim, "x");
        ok(bk_ctx_status(*ctx), &e->t.err);
        if (real) ok(bk_write(e->t.be, in, 0, host, bk_numel(in), &e->t.err), &e->t.err);
        bk_block_forward_values(*ctx, e->t.b, in, v);
        if (!real) ok(bk_ctx_commit(*ctx), &e->t.err);
    }
    ok(bk_ctx_status(*ctx), &e->t.err);
    free(host);
}

static void keep_values(env *e)
{
    bk_block_values v;
    bk_ctx *ctx;
    bk_block_quantize(e->t.b, false, false);
    run_block(e, &v, &ctx);
    const bk_tensor *at[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = v.attn_in, [BK_SITE_O_IN] = v.o_in, [BK_SITE_MLP_IN] = v.mlp_in,
                                          [BK_SITE_DOWN_IN] = v.down_in, [BK_SITE_KEY] = v.k, [BK_SITE_VALUE] = v.v};
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (at[i]) e->at[i] = copy(e, at[i]);
    e->q = copy(e, v.q);
    e->y = copy(e, v.y);
    if (e->t.b->prefix_len) e->prefix_k = copy(e, e->t.b->prefix_k);
    bk_ctx_free(ctx);
}

static void open_env(env *e, const bk_backend *be, const bk_block_quant *quant, int64_t samples, int64_t tokens, int64_t prefix)
{
    bk_config c = bk_tiny_config();
    bk_error err = {0};
    *e = (env){.samples = samples, .tokens = tokens, .rows = samples * tokens};
    ok(bk_hadamard_create(c.head_dim, &e->r3, &err), &err);
    ok(bk_hadamard_create(c.inter, &e->r4, &err), &err);
    bk_tiny_block_open(&e->t, be, &c, &(bk_block_options){.quant = quant, .r3 = e->r3, .r4 = e->r4, .prefix_len = prefix, .tokens = tokens}, 8);
    e->x = bk_tiny_stream(samples, tokens, c.hidden, 9);
    keep_values(e);
}

static void init(env *e, bool search, bool ema)
{
    ok(bk_block_init(e->t.ctx, e->t.b, e->x, &(bk_init_options){.search = search, .ema = ema}, &e->t.err), &e->t.err);
    for (int i = 0; i < BK_W_COUNT; i++) ck_assert(e->t.b->wq[i].on || !e->t.b->wq[i].q);
    for (int i = 0; i < BK_SITE_COUNT; i++) ck_assert(e->t.b->site[i].on || !e->t.b->site[i].q);
}

static void close_env(env *e)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) free(e->at[i]);
    free(e->q);
    free(e->y);
    free(e->prefix_k);
    bk_stream_free(e->x);
    bk_tiny_block_close(&e->t);
    bk_hadamard_free(e->r3);
    bk_hadamard_free(e->r4);
}

static float *parameter(env *e, const char *place, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", place, what);
    const bk_tensor *t = bk_params_find(e->t.b->params, name);
    return t ? bk_tiny_read(e->t.be, t) : NULL;
}

static const char *weight_place(int w)
{
    static char name[32];
    snprintf(name, sizeof name, "w_%s", bk_linear_name[w]);
    return name;
}

static int64_t site_units(env *e, int site)
{
    return e->t.b->site[site].q->units(e->t.b->site[site].state.bytes);
}

/* --- ranges --- */

/* slack: relative, where the values were computed in other batches than here */
static void check_step(const bk_qspec *q, double lo, double hi, double slack, const float *step, const float *zero, int64_t u, const char *place)
{
    float s, z;
    bk_step_of_range(q->bits, q->symmetric, false, (float)lo, (float)hi, &s, &z);
    ck_assert_msg(fabs((double)(step[u] - s)) <= slack * (double)s, "%s: step %d is %.9g, not %.9g", place, (int)u, (double)step[u], (double)s);
    if (zero) ck_assert_msg(zero[u] == z, "%s: zero point %d is %g, not %g", place, (int)u, (double)zero[u], (double)z);
}

static void check_site_ranges(env *e, int site, bool ema)
{
    const bk_qinst *q = &e->t.b->site[site];
    int64_t cols = bk_site_width(&e->t.b->cfg, site), n = site_units(e, site), group = cols / n;
    float *step = parameter(e, bk_site_name[site], "step"), *zero = parameter(e, bk_site_name[site], "zero");
    for (int64_t u = 0; u < n; u++) {
        double lo = INFINITY, hi = -INFINITY;
        for (int64_t c = u * group; c < (u + 1) * group; c++) {
            float average = 0;
            for (int64_t s = 0; s < e->samples; s++) {
                float most = 0;
                for (int64_t t = 0; t < e->tokens; t++) {
                    double v = e->at[site][(s * e->tokens + t) * cols + c];
                    most = fmaxf(most, fabsf((float)v));
                    if (!ema) lo = fmin(lo, v);
                    if (!ema) hi = fmax(hi, v);
                }
                average = s ? 0.99f * average + (1 - 0.99f) * most : most;
            }
            if (ema) hi = fmax(hi, (double)average);
        }
        if (ema) lo = -hi;
        check_step(&q->spec, lo, hi, e->t.be == bk_backend_cpu() ? 1e-6 : 0, step, zero, u, bk_site_name[site]);
    }
    free(step);
    free(zero);
}

static void check_weight_ranges(env *e, int w)
{
    const bk_qinst *q = &e->t.b->wq[w];
    int64_t cols = e->t.b->w[w]->dim[1], n = q->q->units(q->state.bytes), group = bk_numel(e->t.b->w[w]) / n;
    float *step = parameter(e, weight_place(w), "step"), *zero = parameter(e, weight_place(w), "zero");
    ck_assert_int_eq(cols % group, 0);
    for (int64_t u = 0; u < n; u++) {
        float lo = INFINITY, hi = -INFINITY;
        for (int64_t i = u * group; i < (u + 1) * group; i++) {
            lo = fminf(lo, e->t.w.w[w][i]);
            hi = fmaxf(hi, e->t.w.w[w][i]);
        }
        check_step(&q->spec, (double)lo, (double)hi, 0, step, zero, u, weight_place(w));
    }
    free(step);
    free(zero);
}

static void check_ranges(const bk_backend *be, bool symmetric, bool ema, int64_t samples, int64_t tokens)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, symmetric);
    env e;
    open_env(&e, be, &quant, samples, tokens, 2);
    init(&e, false, ema);
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) check_site_ranges(&e, i, ema);
    for (int i = 0; i < BK_W_COUNT; i++) check_weight_ranges(&e, i);
    close_env(&e);
}

START_TEST(ranges_are_those_of_all_samples)
{
    check_ranges(bk_backend_ref(BK_F32), _i, false, 3, 7);
}
END_TEST

START_TEST(ranges_grow_over_ragged_batches)
{
    check_ranges(bk_backend_cpu(), _i, false, 5, 450); /* batches of 4 and 1 */
}
END_TEST

START_TEST(moving_averages_take_one_sequence_at_a_time)
{
    check_ranges(_i ? bk_backend_cpu() : bk_backend_ref(BK_F32), true, true, 5, 9);
}
END_TEST

START_TEST(ranges_of_groups)
{
    bk_block_quant quant = bk_tiny_quant("static", 3, 8, false);
    quant.weight = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    quant.activation = bk_tiny_spec("static", 4, true, BK_PER_GROUP, 32);
    env e;
    open_env(&e, bk_backend_ref(BK_F32), &quant, 3, 7, 0);
    init(&e, false, false);
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) check_site_ranges(&e, i, false);
    for (int i = 0; i < BK_W_COUNT; i++) check_weight_ranges(&e, i);
    close_env(&e);
}
END_TEST

/* --- objectives by hand --- */

/* Value of x under a step and zero point, as eq. 1-2 say. The largest magnitude lies on a half step: there the type of the division decides. */
static double fake(const env *e, const bk_qspec *q, double x, float s, float z)
{
    int lo, hi;
    double u = e->t.be->dtype == BK_F64 ? x / (double)s : (double)((float)x / s), zr;
    bk_code_range(q->bits, q->symmetric, &lo, &hi);
    zr = q->symmetric ? 0 : fmin(fmax(rint((double)z), lo), hi);
    return (fmin(fmax(rint(u) + zr, lo), hi) - zr) * (double)s;
}

typedef double (*objective)(env *e, int place, int64_t unit, float step, float zero);

/* Output error of one row (and group) of a linear: sum over tokens of (x . e)^2. */
static double weight_objective(env *e, int w, int64_t unit, float step, float zero)
{
    const bk_qinst *q = &e->t.b->wq[w];
    int64_t cols = e->t.b->w[w]->dim[1], group = bk_numel(e->t.b->w[w]) / q->q->units(q->state.bytes);
    int64_t first = unit * group % cols;
    const float *row = e->t.w.w[w] + unit * group;
    const double *x = e->at[bk_linear_input(w)];
    double error[256], sum = 0;
    ck_assert_int_le(group, 256);
    for (int64_t c = 0; c < group; c++) error[c] = fake(e, &q->spec, (double)row[c], step, zero) - (double)row[c];
    for (int64_t t = 0; t < e->rows; t++) {
        double dot = 0;
        for (int64_t c = 0; c < group; c++) dot += x[t * cols + first + c] * error[c];
        sum += dot * dot;
    }
    return sum;
}

static double value_objective(env *e, int site, int64_t unit, float step, float zero)
{
    const bk_qinst *q = &e->t.b->site[site];
    int64_t cols = bk_site_width(&e->t.b->cfg, site), group = cols / site_units(e, site);
    double sum = 0;
    for (int64_t t = 0; t < e->rows; t++)
        for (int64_t c = unit * group; c < (unit + 1) * group; c++) {
            double v = e->at[site][t * cols + c], d = fake(e, &q->spec, v, step, zero) - v;
            sum += d * d;
        }
    return sum;
}

/* Causal softmax of one query over prefix and keys, those quantized when step > 0. Returns the number of visible keys. */
static int64_t attention_row(env *e, int64_t sample, int64_t t, int64_t head, float step, float zero, double *p)
{
    const bk_config *c = &e->t.b->cfg;
    int64_t d = c->head_dim, kv = head / (c->heads / c->kv_heads), n = e->t.b->prefix_len + t + 1;
    const double *q = e->q + ((sample * e->tokens + t) * c->heads + head) * d;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        int64_t real = j - e->t.b->prefix_len;
        const double *k = real < 0 ? e->prefix_k + (kv * e->t.b->prefix_len + j) * d
                                   : e->at[BK_SITE_KEY] + ((sample * e->tokens + real) * c->kv_heads + kv) * d;
        p[j] = 0;
        for (int64_t i = 0; i < d; i++)
            p[j] += q[i] * (real < 0 || step == 0 ? k[i] : fake(e, &e->t.b->site[BK_SITE_KEY].spec, k[i], step, zero));
        p[j] /= sqrt((double)d);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return n;
}

static double key_objective(env *e, int site, int64_t unit, float step, float zero)
{
    const bk_config *c = &e->t.b->cfg;
    int64_t per = c->heads / c->kv_heads;
    double sum = 0, a[64], b[64];
    (void)site;
    ck_assert_int_le(e->tokens + e->t.b->prefix_len, 64);
    for (int64_t s = 0; s < e->samples; s++)
        for (int64_t h = unit * per; h < (unit + 1) * per; h++)
            for (int64_t t = 0; t < e->tokens; t++) {
                int64_t n = attention_row(e, s, t, h, 0, 0, a);
                attention_row(e, s, t, h, step, zero, b);
                for (int64_t j = 0; j < n; j++) sum += (a[j] - b[j]) * (a[j] - b[j]);
            }
    return sum;
}

/* The best of the grid for one unit. */
static double grid_best(env *e, objective f, int place, int64_t unit, float base, float zero, double *at_one)
{
    float best = 1;
    double least = INFINITY;
    for (int i = 0; i < 7; i++) {
        double v = f(e, place, unit, base * (1 - 0.1f * (float)i), zero);
        if (i == 0) *at_one = v;
        if (v >= least) continue;
        least = v;
        best = 1 - 0.1f * (float)i;
    }
    for (float half = 0.05f; half > 0.02f; half /= 2) {
        float middle = best;
        for (int side = 1; side >= -1; side -= 2) {
            double v = f(e, place, unit, base * (middle + (float)side * half), zero);
            if (v >= least) continue;
            least = v;
            best = middle + (float)side * half;
        }
    }
    return least;
}

/* Every unit has got a step as good as the grid's best, and not worse than min-max; returns how many differ from min-max. */
static int check_units(env *e, objective f, const char *name, int place, int64_t n, double slack)
{
    float *step = parameter(e, name, "step"), *base = parameter(e, name, "base"), *zero = parameter(e, name, "zero");
    int moved = 0;
    for (int64_t u = 0; u < n; u += e->rows > 500 ? 16 : 1) { /* long inputs: a sample of the units */
        double one, best = grid_best(e, f, place, u, base[u], zero ? zero[u] : 0, &one), got = f(e, place, u, step[u], zero ? zero[u] : 0);
        ck_assert_msg(got <= best * (1 + slack), "%s: unit %d has error %.12g with factor %g, the grid %.12g", name, (int)u, got,
                      (double)(step[u] / base[u]), best);
        ck_assert_msg(got <= one * (1 + slack), "%s: unit %d is worse than min-max: %g > %g", name, (int)u, got, one);
        moved += step[u] != base[u];
    }
    free(step);
    free(base);
    free(zero);
    return moved;
}

static void check_weights(env *e, double slack)
{
    for (int w = 0; w < BK_W_COUNT; w++) {
        const bk_qinst *q = &e->t.b->wq[w];
        char name[32];
        strcpy(name, weight_place(w));
        ck_assert_msg(check_units(e, weight_objective, name, w, q->q->units(q->state.bytes), slack) > 0, "the search left all of %s alone", name);
    }
}

/* Error of the block's output with one site quantized. */
static double output_error(env *e, int site)
{
    bk_block_values v;
    bk_ctx *ctx;
    double sum = 0;
    bk_block_quantize(e->t.b, false, false);
    e->t.b->site[site].on = true;
    run_block(e, &v, &ctx);
    double *y = copy(e, v.y);
    for (int64_t i = 0; i < e->rows * e->t.b->cfg.hidden; i++) sum += (y[i] - e->y[i]) * (y[i] - e->y[i]);
    free(y);
    bk_ctx_free(ctx);
    return sum;
}

static double replayed(env *e, int site, int64_t unit, float factor, float zero)
{
    float all[64];
    (void)unit, (void)zero;
    ck_assert_int_le(site_units(e, site), 64);
    for (int i = 0; i < 64; i++) all[i] = factor;
    ok(e->t.b->site[site].q->factors(e->t.ctx, e->t.b->site[site].state.bytes, all), &e->t.err);
    return output_error(e, site);
}

static void check_replayed(env *e, int site, double slack)
{
    double got = output_error(e, site), one, best = grid_best(e, replayed, site, 0, 1, 0, &one);
    ck_assert_msg(got <= best * (1 + slack), "%s: error %.12g, the grid has %.12g", bk_site_name[site], got, best);
    ck_assert_msg(got <= one * (1 + slack), "%s is worse than min-max: %g > %g", bk_site_name[site], got, one);
}

static const int linear_sites[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};

START_TEST(static_search_finds_the_best_of_the_grid)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, _i);
    env e;
    open_env(&e, bk_backend_ref(BK_F64), &quant, 3, 11, 2);
    init(&e, true, false);
    check_weights(&e, 1e-9);
    check_units(&e, value_objective, "value", BK_SITE_VALUE, e.t.b->cfg.kv_heads, 1e-9);
    check_units(&e, key_objective, "key", BK_SITE_KEY, e.t.b->cfg.kv_heads, 1e-9);
    for (int i = 0; i < 4; i++) check_replayed(&e, linear_sites[i], 1e-9);
    close_env(&e);
}
END_TEST

START_TEST(dynamic_search_finds_the_best_of_the_grid)
{
    bk_block_quant quant = bk_tiny_quant("dynamic", 4, 4, _i);
    env e;
    open_env(&e, bk_backend_ref(BK_F64), &quant, 2, 9, 2);
    init(&e, true, false);
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!bk_site_quantized[i]) continue;
        float *gamma = parameter(&e, bk_site_name[i], "gamma"), *beta = parameter(&e, bk_site_name[i], "beta");
        ck_assert_ptr_nonnull(gamma);
        ck_assert((beta == NULL) == (_i == 1));
        if (beta) ck_assert_msg(*gamma == *beta, "%s: gamma %g and beta %g must move together", bk_site_name[i], (double)*gamma, (double)*beta);
        free(gamma);
        free(beta);
        check_replayed(&e, i, 1e-9);
    }
    close_env(&e);
}
END_TEST

START_TEST(errors_go_to_their_groups)
{
    bk_block_quant quant = bk_tiny_quant("static", 3, 16, true);
    quant.weight = bk_tiny_spec("affine", 3, _i, BK_PER_GROUP, 16);
    env e;
    open_env(&e, bk_backend_ref(BK_F64), &quant, 3, 11, 0);
    init(&e, true, false);
    check_weights(&e, 1e-9);
    close_env(&e);
}
END_TEST

/* An outlier in (out 2, group 1) changes the step of that unit alone: the error lies where the step lies. */
START_TEST(a_change_in_one_group_moves_one_step)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 16, true);
    quant.weight = bk_tiny_spec("affine", 4, true, BK_PER_GROUP, 16);
    env e;
    open_env(&e, bk_backend_ref(BK_F64), &quant, 3, 11, 0);
    init(&e, true, false);
    float *before = parameter(&e, "w_down", "step"), *after;
    int64_t groups = 96 / 16, changed = 2 * groups + 1;
    for (int i = 0; i < 16; i++) e.t.w.w[BK_W_DOWN][2 * 96 + 16 + i] *= i == 5 ? 9 : 0.3f;
    ok(bk_block_load(e.t.b, &e.t.w, &e.t.err), &e.t.err);
    init(&e, true, false);
    after = parameter(&e, "w_down", "step");
    for (int64_t u = 0; u < 64 * groups; u++)
        ck_assert_msg((before[u] != after[u]) == (u == changed), "step %d: %g, then %g", (int)u, (double)before[u], (double)after[u]);
    free(before);
    free(after);
    close_env(&e);
}
END_TEST

START_TEST(search_on_cpu_over_ragged_batches)
{
    bk_block_quant quant = bk_tiny_quant(_i ? "dynamic" : "static", 4, 4, true);
    env e;
    open_env(&e, bk_backend_cpu(), &quant, 5, 450, 2); /* batches of 4 and 1 */
    init(&e, true, false);
    check_weights(&e, 1e-4);
    if (!_i) check_units(&e, value_objective, "value", BK_SITE_VALUE, e.t.b->cfg.kv_heads, 1e-4);
    for (int i = 0; i < 4; i++) check_replayed(&e, linear_sites[i], 1e-4);
    close_env(&e);
}
END_TEST

START_TEST(search_never_touches_device_memory)
{
    bk_block_quant quant = bk_tiny_quant(_i ? "dynamic" : "static", 4, 4, false);
    env e;
    open_env(&e, bk_backend_guard(BK_F32), &quant, 2, 6, 2);
    init(&e, true, false);
    init(&e, true, _i == 0);
    close_env(&e);
}
END_TEST

/* --- what is left alone --- */

START_TEST(skipped_places_are_left_alone)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    env e;
    open_env(&e, bk_backend_ref(BK_F32), &quant, 2, 6, 0);
    bk_block *b = e.t.b;
    bk_tensor *key = bk_params_find(b->params, "key.step"), *down = bk_params_find(b->params, "down_in.step"), *o = bk_params_find(b->params, "w_o.step");
    float seven[64];
    for (int i = 0; i < 64; i++) seven[i] = 7;
    ok(bk_write(e.t.be, key, 0, seven, bk_numel(key), &e.t.err), &e.t.err);
    ok(bk_write(e.t.be, down, 0, seven, bk_numel(down), &e.t.err), &e.t.err);
    ok(bk_write(e.t.be, o, 0, seven, bk_numel(o), &e.t.err), &e.t.err);
    b->skip_sites = 1u << BK_SITE_KEY | 1u << BK_SITE_DOWN_IN;
    b->skip_weights = 1u << BK_W_O;
    ok(bk_block_init(e.t.ctx, b, e.x, &(bk_init_options){.search = true}, &e.t.err), &e.t.err);
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) ck_assert_msg(b->site[i].on == (i != BK_SITE_KEY && i != BK_SITE_DOWN_IN), "%s", bk_site_name[i]);
    for (int i = 0; i < BK_W_COUNT; i++) ck_assert_msg(b->wq[i].on == (i != BK_W_O), "%s", bk_linear_name[i]);
    const bk_tensor *skipped[] = {key, down, o};
    for (int i = 0; i < 3; i++) {
        float *v = bk_tiny_read(e.t.be, skipped[i]);
        for (int64_t k = 0; k < bk_numel(skipped[i]); k++) ck_assert_msg(v[k] == 7, "%s is %g", skipped[i]->name, (double)v[k]);
        free(v);
    }
    close_env(&e);
}
END_TEST

START_TEST(weights_and_block_stay_as_they_were)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    env e;
    open_env(&e, bk_backend_cpu(), &quant, 2, 6, 2);
    init(&e, true, false);
    for (int i = 0; i < BK_W_COUNT; i++) {
        float *w = bk_tiny_read(e.t.be, e.t.b->w[i]);
        ck_assert_msg(!memcmp(w, e.t.w.w[i], (size_t)bk_numel(e.t.b->w[i]) * sizeof *w), "%s changed", bk_linear_name[i]);
        free(w);
    }
    ck_assert_ptr_null(e.t.b->tap);
    close_env(&e);
}
END_TEST

/* --- numbers at the edge --- */

/* up = 0: down reads nothing but zeros (field cases, 3). */
START_TEST(a_silent_site_gets_the_step_one)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, _i);
    env e;
    open_env(&e, bk_backend_ref(BK_F32), &quant, 2, 6, 0);
    memset(e.t.w.w[BK_W_UP], 0, (size_t)bk_numel(e.t.b->w[BK_W_UP]) * sizeof(float));
    ok(bk_block_load(e.t.b, &e.t.w, &e.t.err), &e.t.err);
    init(&e, true, false);
    float *step = parameter(&e, "down_in", "step"), *up = parameter(&e, "w_up", "step");
    ck_assert(step[0] == 1);
    ck_assert(up[0] == 1);
    for (int i = 0; i < BK_SITE_COUNT; i++) ck_assert_msg(e.t.b->silent[i] == (i == BK_SITE_DOWN_IN), "%s: %d", bk_site_name[i], (int)e.t.b->silent[i]);
    bk_block_values v;
    bk_ctx *ctx;
    run_block(&e, &v, &ctx);
    double *y = copy(&e, v.y), *h = copy(&e, v.h);
    for (int64_t i = 0; i < e.rows * e.t.b->cfg.hidden; i++) ck_assert(y[i] == h[i]);
    free(y);
    free(h);
    free(step);
    free(up);
    bk_ctx_free(ctx);
    close_env(&e);
}
END_TEST

/* Rows 2^-10, 2^-17 and 2^-23 as large get steps as much smaller, to the bit: nothing in the search knows the size of weights (field cases, 5). */
START_TEST(the_search_does_not_see_the_size_of_a_row)
{
    static const int power[] = {10, 17, 23};
    bk_block_quant quant = bk_tiny_quant("static", _i ? 8 : 4, 4, true);
    env e;
    open_env(&e, bk_backend_ref(BK_F32), &quant, 2, 6, 0);
    init(&e, true, false);
    float *before = parameter(&e, "w_gate", "step");
    int64_t cols = e.t.b->cfg.hidden;
    for (int64_t row = 0; row < 3; row++)
        for (int64_t i = 0; i < cols; i++) e.t.w.w[BK_W_GATE][row * cols + i] = ldexpf(e.t.w.w[BK_W_GATE][row * cols + i], -power[row]);
    ok(bk_block_load(e.t.b, &e.t.w, &e.t.err), &e.t.err);
    init(&e, true, false);
    float *after = parameter(&e, "w_gate", "step");
    for (int row = 0; row < 3; row++) ck_assert_float_eq(after[row], ldexpf(before[row], -power[row]));
    free(before);
    free(after);
    close_env(&e);
}
END_TEST

START_TEST(inputs_that_are_not_finite_are_an_error)
{
    static const float bad[] = {NAN, INFINITY};
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    env e;
    open_env(&e, _i / 2 ? bk_backend_cpu() : bk_backend_ref(BK_F32), &quant, 2, 6, 0);
    float x[6 * 64];
    ok(bk_stream_read(e.x, 1, 1, x, &e.t.err), &e.t.err);
    x[100] = bad[_i % 2];
    ok(bk_stream_write(e.x, 1, 1, x, &e.t.err), &e.t.err);
    bk_status st = bk_block_init(e.t.ctx, e.t.b, e.x, &(bk_init_options){.search = true}, &e.t.err);
    ck_assert_msg(st == BK_ENUMERIC, "%s: %s", bk_status_name(st), e.t.err.msg);
    ck_assert_msg(strstr(e.t.err.msg, "NaN or Inf at token") != NULL, "%s", e.t.err.msg);
    close_env(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("init");
    TCase *t = tcase_create("ranges");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, ranges_are_those_of_all_samples, 0, 2);
    tcase_add_loop_test(t, ranges_grow_over_ragged_batches, 0, 2);
    tcase_add_loop_test(t, moving_averages_take_one_sequence_at_a_time, 0, 2);
    tcase_add_test(t, ranges_of_groups);
    suite_add_tcase(s, t);
    t = tcase_create("search");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, static_search_finds_the_best_of_the_grid, 0, 2);
    tcase_add_loop_test(t, dynamic_search_finds_the_best_of_the_grid, 0, 2);
    tcase_add_loop_test(t, errors_go_to_their_groups, 0, 2);
    tcase_add_test(t, a_change_in_one_group_moves_one_step);
    tcase_add_loop_test(t, search_on_cpu_over_ragged_batches, 0, 2);
    tcase_add_loop_test(t, search_never_touches_device_memory, 0, 2);
    suite_add_tcase(s, t);
    t = tcase_create("edges");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, skipped_places_are_left_alone);
    tcase_add_test(t, weights_and_block_stay_as_they_were);
    tcase_add_loop_test(t, a_silent_site_gets_the_step_one, 0, 2);
    tcase_add_loop_test(t, the_search_does_not_see_the_size_of_a_row, 0, 2);
    tcase_add_loop_test(t, inputs_that_are_not_finite_are_an_error, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
