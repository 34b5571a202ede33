/* GPTQ of a block: what it did is done again group by group, with the weights that it left behind in the groups before. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/gptq.h"
#include "blocks/init.h"
#include "quant/steps.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

enum { SAMPLES = 5, TOKENS = 24, ROWS = SAMPLES * TOKENS, BACKENDS = 3 };

static const bk_backend *backend_of(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}

typedef struct env {
    bk_tiny_block t;
    bk_hadamard_plan *r3, *r4;
    bk_stream *x;
    bk_gptq_report report[BK_W_COUNT];
} env;

static void open_env(env *e, const bk_backend *be, const bk_block_quant *quant)
{
    bk_config c = bk_tiny_config();
    bk_error err = {0};
    *e = (env){.r3 = NULL};
    ok(bk_hadamard_create(c.head_dim, &e->r3, &err), &err);
    ok(bk_hadamard_create(c.inter, &e->r4, &err), &err);
    bk_block_options opt = {.quant = quant, .r3 = e->r3, .r4 = e->r4, .prefix_len = 2, .tokens = TOKENS};
    bk_tiny_block_open(&e->t, be, &c, &opt, 21);
    e->x = bk_tiny_stream(SAMPLES, TOKENS, c.hidden, 22);
}

static void close_env(env *e)
{
    bk_stream_free(e->x);
    bk_tiny_block_close(&e->t);
    bk_hadamard_free(e->r3);
    bk_hadamard_free(e->r4);
}

static void init(env *e)
{
    ok(bk_block_init(e->t.ctx, e->t.b, e->x, &(bk_init_options){.search = false}, &e->t.err), &e->t.err);
}

static const bk_block_gptq_options plain = {.percdamp = 0.01};

static void gptq(env *e, const bk_block_gptq_options *opt)
{
    init(e);
    ok(bk_block_gptq(e->t.ctx, e->t.b, e->x, opt, e->report, &e->t.err), &e->t.err);
}

static double *copy(const env *e, const bk_tensor *t)
{
    bk_error err = {0};
    double *x = malloc((size_t)bk_numel(t) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    ok(bk_read_f64(e->t.be, t, 0, x, bk_numel(t), &err), &err);
    return x;
}

static bk_tensor *parameter(env *e, int w, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "w_%s.%s", bk_linear_name[w], what);
    return bk_params_find(e->t.b->params, name);
}

/* One pass with the quantizers of sites on or off: output, and what a linear reads (`site`, which may be BLOCK_OUT for the output alone). */
static double *forward(env *e, bk_site_id site, bool act_quant, bk_tensor **kept, bk_ctx **ctx)
{
    int64_t dim[3] = {SAMPLES, TOKENS, e->t.b->cfg.hidden};
    float *host = malloc((size_t)(ROWS * dim[2]) * sizeof *host);
    double *y = NULL;
    ck_assert_ptr_nonnull(host);
    ok(bk_stream_read(e->x, 0, SAMPLES, host, &e->t.err), &e->t.err);
    ck_assert_ptr_nonnull(*ctx = bk_ctx_new(e->t.be, &e->t.err));
    bk_block_quantize(e->t.b, false, act_quant);
    for (int real = 0; real < 2; real++) {
        bk_block_values v;
        bk_step_begin(*ctx);
        bk_tensor *in = bk_real_new(*ctx, 3, dim, "x");
        if (real) ok(bk_write(e->t.be, in, 0, host, bk_numel(in), &e->t.err), &e->t.err);
        bk_tensor *out = bk_block_forward_values(*ctx, e->t.b, in, &v);
        bk_tensor *at[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = v.attn_in, [BK_SITE_O_IN] = v.o_in, [BK_SITE_MLP_IN] = v.mlp_in,
                                        [BK_SITE_DOWN_IN] = v.down_in};
        if (at[site]) *kept = bk_qinst_apply(*ctx, &e->t.b->site[site], at[site]);
        if (!real) ok(bk_ctx_commit(*ctx), &e->t.err);
        else y = copy(e, out);
    }
    ok(bk_ctx_status(*ctx), &e->t.err);
    bk_block_quantize(e->t.b, true, true);
    free(host);
    return y;
}

static double *output(env *e)
{
    bk_ctx *ctx;
    double *y = forward(e, BK_SITE_BLOCK_OUT, false, NULL, &ctx);
    bk_ctx_free(ctx);
    return y;
}

/* H += 2/N times sum x x^T over the first tokens */
static void add_first(env *e, bk_ctx *ctx, bk_hessian *h, const bk_tensor *x, double times)
{
    int64_t cols = bk_last_dim(x);
    for (int64_t s = 0; s < SAMPLES; s++) {
        bk_tensor *first;
        double row[256];
        ck_assert_int_le(cols, 256);
        ok(bk_read_f64(e->t.be, x, s * TOKENS * cols, row, cols, &e->t.err), &e->t.err);
        ok(bk_tensor_create(e->t.be, e->t.be->dtype, 2, (int64_t[]){1, cols}, "first", &first, &e->t.err), &e->t.err);
        ok(bk_write_f64(e->t.be, first, 0, row, cols, &e->t.err), &e->t.err);
        ok(bk_hessian_add(ctx, h, first, times * 2.0 / SAMPLES), &e->t.err);
        bk_tensor_destroy(e->t.be, first);
    }
}

/* Does one linear again, whose weights are the original ones in `e` while those of the groups before are done, and compares with `done`. */
static void redo(env *e, env *done, int w, const bk_block_gptq_options *opt)
{
    const bk_qspec *spec = &e->t.b->wq[w].spec;
    bk_gptq_options o = {.bits = spec->bits, .symmetric = spec->symmetric, .restricted = spec->restricted, .act_order = opt->act_order,
                         .group = spec->granularity == BK_PER_GROUP ? spec->group : 0, .static_groups = opt->static_groups,
                         .mse_clip = opt->mse_clip, .percdamp = opt->percdamp};
    bk_hessian h;
    bk_tensor *x = NULL;
    bk_ctx *ctx;
    free(forward(e, bk_linear_input(w), opt->act_quant, &x, &ctx));
    ok(bk_hessian_create(&h, e->t.be, bk_last_dim(x), "again", &e->t.err), &e->t.err);
    bk_ctx *other = bk_ctx_new(e->t.be, &e->t.err);
    ok(bk_hessian_add(other, &h, x, 2.0 / SAMPLES), &e->t.err);
    ok(bk_ctx_commit(other), &e->t.err);
    ok(bk_hessian_add(other, &h, x, 2.0 / SAMPLES), &e->t.err);
    if (opt->first_weight > 1) add_first(e, other, &h, x, opt->first_weight - 1);
    ok(bk_hessian_factor(other, &h, &o), &e->t.err);
    bk_gptq_report report;
    bk_gptq_out out = {.step = parameter(e, w, "step"), .zero = parameter(e, w, "zero")};
    ok(bk_gptq(other, &h, &o, "again", e->t.b->w[w], &out, &report), &e->t.err);
    double *want = copy(e, e->t.b->w[w]), *got = copy(done, done->t.b->w[w]), *step = copy(done, parameter(done, w, "step"));
    for (int64_t i = 0, per = bk_numel(e->t.b->w[w]) / bk_numel(out.step); i < bk_numel(e->t.b->w[w]); i++)
        ck_assert_msg(fabs(got[i] - want[i]) < 1e-6 * fabs(step[i / per]), "%s: weight %d is %g, not %g", bk_linear_name[w], (int)i, got[i], want[i]);
    ck_assert(done->report[w].done && fabs(done->report[w].loss - report.loss) < 1e-9 * report.loss);
    free(want);
    free(got);
    free(step);
    bk_hessian_free(&h);
    bk_ctx_free(other);
    bk_ctx_free(ctx);
}

static void copy_weight(env *to, env *from, int w)
{
    double *x = copy(from, from->t.b->w[w]);
    ok(bk_write_f64(to->t.be, to->t.b->w[w], 0, x, bk_numel(to->t.b->w[w]), &to->t.err), &to->t.err);
    free(x);
}

static void order_is_right(const bk_block_quant *quant, const bk_block_gptq_options *opt)
{
    static const int group[BK_W_COUNT] = {0, 0, 0, 1, 2, 2, 3};
    env done, e;
    open_env(&done, bk_backend_ref(BK_F64), quant);
    gptq(&done, opt);
    for (int w = 0; w < BK_W_COUNT; w++) {
        open_env(&e, bk_backend_ref(BK_F64), quant);
        init(&e);
        for (int k = 0; k < BK_W_COUNT; k++)
            if (group[k] < group[w]) copy_weight(&e, &done, k);
        redo(&e, &done, w, opt);
        close_env(&e);
    }
    close_env(&done);
}

START_TEST(groups_come_in_order)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    order_is_right(&quant, &plain);
}
END_TEST

START_TEST(groups_of_columns_with_clipping)
{
    bk_block_quant quant = bk_tiny_quant("static", 3, 8, true);
    quant.weight = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    order_is_right(&quant, &(bk_block_gptq_options){.mse_clip = true, .act_order = true, .static_groups = true, .percdamp = 0.1});
}
END_TEST

START_TEST(quantizers_of_activations_take_part_when_asked)
{
    bk_block_quant quant = bk_tiny_quant("dynamic", 4, 4, true);
    order_is_right(&quant, &(bk_block_gptq_options){.act_quant = true, .percdamp = 0.01});
}
END_TEST

START_TEST(the_first_token_counts_as_often_as_asked)
{
    bk_block_quant quant = bk_tiny_quant("static", 3, 8, true);
    order_is_right(&quant, &(bk_block_gptq_options){.first_weight = 9, .percdamp = 0.01});
}
END_TEST

/* The quantizer of each weight maps it to itself, so that training and export begin from it; hardening changes nothing. */
START_TEST(affine_keeps_the_weights)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, _i / BACKENDS);
    quant.weight = bk_tiny_spec("affine", 4, _i / BACKENDS, BK_PER_GROUP, 32);
    env e;
    open_env(&e, backend_of(_i % BACKENDS), &quant);
    gptq(&e, &plain);
    double *before[BK_W_COUNT];
    for (int w = 0; w < BK_W_COUNT; w++) {
        before[w] = copy(&e, e.t.b->w[w]);
        ck_assert(e.t.b->wq[w].on);
        double *step = copy(&e, parameter(&e, w, "step")), *base = copy(&e, parameter(&e, w, "base"));
        ck_assert_mem_eq(step, base, (size_t)bk_numel(parameter(&e, w, "step")) * sizeof *step);
        free(step);
        free(base);
    }
    for (int i = 0; i < BK_SITE_COUNT; i++) ck_assert(e.t.b->site[i].on || !e.t.b->site[i].q);
    bk_ctx_measure(e.t.ctx);
    ok(bk_block_harden(e.t.ctx, e.t.b), &e.t.err);
    ok(bk_ctx_commit(e.t.ctx), &e.t.err);
    bk_block_quantize(e.t.b, true, true);
    ok(bk_block_harden(e.t.ctx, e.t.b), &e.t.err);
    for (int w = 0; w < BK_W_COUNT; w++) {
        double *after = copy(&e, e.t.b->w[w]);
        ck_assert_mem_eq(after, before[w], (size_t)bk_numel(e.t.b->w[w]) * sizeof *after);
        free(after);
        free(before[w]);
    }
    close_env(&e);
}
END_TEST

START_TEST(skipped_linears_stay)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    open_env(&e, backend_of(_i), &quant);
    e.t.b->skip_weights = 1u << BK_W_K | 1u << BK_W_DOWN;
    double *k = copy(&e, e.t.b->w[BK_W_K]), *down = copy(&e, e.t.b->w[BK_W_DOWN]), *q = copy(&e, e.t.b->w[BK_W_Q]);
    gptq(&e, &plain);
    double *k2 = copy(&e, e.t.b->w[BK_W_K]), *down2 = copy(&e, e.t.b->w[BK_W_DOWN]), *q2 = copy(&e, e.t.b->w[BK_W_Q]);
    ck_assert_mem_eq(k, k2, (size_t)bk_numel(e.t.b->w[BK_W_K]) * sizeof *k);
    ck_assert_mem_eq(down, down2, (size_t)bk_numel(e.t.b->w[BK_W_DOWN]) * sizeof *k);
    ck_assert_mem_ne(q, q2, (size_t)bk_numel(e.t.b->w[BK_W_Q]) * sizeof *k);
    for (int w = 0; w < BK_W_COUNT; w++) ck_assert(e.report[w].done == (w != BK_W_K && w != BK_W_DOWN));
    ck_assert(!e.t.b->wq[BK_W_K].on && e.t.b->wq[BK_W_Q].on);
    double *all[] = {k, down, q, k2, down2, q2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    close_env(&e);
}
END_TEST

static double distance(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sum;
}

/* On its own calibration inputs, against steps from min and max and rounding to nearest */
START_TEST(block_output_is_better_than_after_rounding)
{
    bk_block_quant quant = bk_tiny_quant("static", 3, 8, true);
    double error[2];
    for (int k = 0; k < 2; k++) {
        env e;
        open_env(&e, bk_backend_cpu(), &quant);
        double *want = output(&e);
        if (k) gptq(&e, &plain);
        else init(&e);
        bk_ctx_measure(e.t.ctx);
        ok(bk_block_harden(e.t.ctx, e.t.b), &e.t.err);
        ok(bk_ctx_commit(e.t.ctx), &e.t.err);
        bk_block_quantize(e.t.b, true, true);
        ok(bk_block_harden(e.t.ctx, e.t.b), &e.t.err);
        double *got = output(&e);
        error[k] = distance(got, want, ROWS * e.t.b->cfg.hidden);
        free(want);
        free(got);
        close_env(&e);
    }
    ck_assert_msg(error[1] < 0.8 * error[0], "GPTQ %g, nearest %g", error[1], error[0]);
}
END_TEST

START_TEST(threads_do_not_change_a_bit)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    double *w[2][BK_W_COUNT];
    const bk_backend *be = bk_backend_cpu();
    int before = be->threads();
    env e;
    for (int k = 0; k < 2; k++) {
        be->set_threads(1 + k);
        open_env(&e, be, &quant);
        gptq(&e, &(bk_block_gptq_options){.mse_clip = true, .percdamp = 0.01});
        for (int i = 0; i < BK_W_COUNT; i++) w[k][i] = copy(&e, e.t.b->w[i]);
        if (k == 0) close_env(&e);
    }
    be->set_threads(before);
    for (int i = 0; i < BK_W_COUNT; i++) {
        ck_assert_mem_eq(w[0][i], w[1][i], (size_t)bk_numel(e.t.b->w[i]) * sizeof(double));
        free(w[0][i]);
        free(w[1][i]);
    }
    close_env(&e);
}
END_TEST

/* --- what cannot be done --- */

static void refuses(env *e, const bk_block_gptq_options *opt, bk_status code, const char *first, const char *second)
{
    bk_status st = bk_block_gptq(e->t.ctx, e->t.b, e->x, opt, e->report, &e->t.err);
    ck_assert_msg(st == code, "%s: %s", bk_status_name(st), e->t.err.msg);
    ck_assert_msg(strstr(e->t.err.msg, first) && strstr(e->t.err.msg, second), "\"%s\" lacks \"%s\" or \"%s\"", e->t.err.msg, first, second);
    close_env(e);
}

START_TEST(scattered_groups_are_refused)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    quant.weight = bk_tiny_spec("affine", 4, true, BK_PER_GROUP, 16);
    open_env(&e, bk_backend_cpu(), &quant);
    init(&e);
    refuses(&e, &(bk_block_gptq_options){.act_order = true, .percdamp = 0.01}, BK_EINVAL, "GPTQ of q", "static_groups");
}
END_TEST

START_TEST(other_quantizers_are_refused)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    open_env(&e, bk_backend_cpu(), &quant);
    init(&e);
    bk_quantizer other = *e.t.b->wq[BK_W_UP].q;
    other.name = "other";
    e.t.b->wq[BK_W_UP].q = &other;
    refuses(&e, &plain, BK_EINVAL, "`other`", "up");
}
END_TEST

START_TEST(broken_inputs_name_site_and_channel)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    open_env(&e, backend_of(_i), &quant);
    init(&e);
    int64_t width = e.t.b->cfg.hidden;
    float *x = malloc((size_t)(TOKENS * width) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    ok(bk_stream_read(e.x, 1, 1, x, &e.t.err), &e.t.err);
    x[width + 3] = INFINITY;
    ok(bk_stream_write(e.x, 1, 1, x, &e.t.err), &e.t.err);
    free(x);
    refuses(&e, &plain, BK_ENUMERIC, "attn_in", "NaN");
}
END_TEST

/* A norm gain of 0: a dead channel at two sites. */
START_TEST(dead_channels_are_counted)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    open_env(&e, backend_of(_i), &quant);
    ok(bk_write_f64(e.t.be, e.t.b->norm[BK_NORM_ATTN], 5, &(double){0}, 1, &e.t.err), &e.t.err);
    gptq(&e, &plain);
    for (int w = 0; w < BK_W_COUNT; w++) ck_assert_int_eq(e.report[w].dead, w == BK_W_Q || w == BK_W_K || w == BK_W_V);
    double *q = copy(&e, e.t.b->w[BK_W_Q]);
    for (int64_t r = 0; r < e.t.b->w[BK_W_Q]->dim[0]; r++) ck_assert(q[r * e.t.b->cfg.hidden + 5] == 0);
    free(q);
    close_env(&e);
}
END_TEST

/* up is 0, so down reads nothing but zeros. */
START_TEST(a_site_without_inputs_rounds_to_nearest)
{
    bk_block_quant quant = bk_tiny_quant("static", 4, 8, true);
    env e;
    open_env(&e, bk_backend_cpu(), &quant);
    for (int64_t i = 0; i < bk_numel(e.t.b->w[BK_W_UP]); i++) ok(bk_write_f64(e.t.be, e.t.b->w[BK_W_UP], i, &(double){0}, 1, &e.t.err), &e.t.err);
    init(&e);
    gptq(&e, &plain);
    ck_assert(e.report[BK_W_DOWN].fell_back && !e.report[BK_W_UP].fell_back);
    close_env(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gptq of a block");
    TCase *good = tcase_create("results"), *bad = tcase_create("bad input");
    tcase_set_timeout(good, 120);
    tcase_set_timeout(bad, 60);
    tcase_add_test(good, groups_come_in_order);
    tcase_add_test(good, groups_of_columns_with_clipping);
    tcase_add_test(good, quantizers_of_activations_take_part_when_asked);
    tcase_add_test(good, the_first_token_counts_as_often_as_asked);
    tcase_add_loop_test(good, affine_keeps_the_weights, 0, 2 * BACKENDS);
    tcase_add_loop_test(good, skipped_linears_stay, 0, BACKENDS);
    tcase_add_test(good, block_output_is_better_than_after_rounding);
    tcase_add_test(good, threads_do_not_change_a_bit);
    tcase_add_test(bad, scattered_groups_are_refused);
    tcase_add_test(bad, other_quantizers_are_refused);
    tcase_add_loop_test(bad, broken_inputs_name_site_and_channel, 0, BACKENDS);
    tcase_add_loop_test(bad, dead_channels_are_counted, 0, BACKENDS);
    tcase_add_test(bad, a_site_without_inputs_rounds_to_nearest);
    suite_add_tcase(s, good);
    suite_add_tcase(s, bad);
    return run_suite(s);
}
