/* The quantizer of docs/adding-a-quantizer.md. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "examples/quantizer_odd.c"
#include "ops/ops.h"
#include "tests/ok.h"
#include "tests/suite.h"

enum { ROWS = 4, COLS = 8, GROUP = 4, N = ROWS * COLS, TOKENS = 16 };

/* The weight of a linear with its quantizer, as a block has it. */
typedef struct fixture {
    const bk_backend *be;
    bk_error err;
    bk_params *p;
    bk_ctx *ctx;
    bk_qinst q;
    bk_tensor *w;
    float w0[N];
} fixture;

/* Three codes of two bits, five of three. */
static bk_qspec odd_spec(bk_granularity granularity, int codes)
{
    return (bk_qspec){.quantizer = "odd", .bits = codes == 3 ? 2 : 3, .symmetric = true, .restricted = true, .granularity = granularity, .group = GROUP,
                      .option = {codes}};
}

static bk_status setup_as(bk_qinst *q, const bk_qspec *spec, bk_error *err)
{
    *q = (bk_qinst){.q = &bk_quantizer_odd, .spec = *spec, .shape = {.rows = ROWS, .cols = COLS, .name = "q"}, .on = true};
    return q->q->setup(q->state.bytes, spec, &q->shape, err);
}

static void open_fixture(fixture *f, const bk_backend *be, bk_granularity granularity, int codes)
{
    bk_qspec spec = odd_spec(granularity, codes);
    int64_t dim[2] = {ROWS, COLS}, group = granularity == BK_PER_GROUP ? GROUP : COLS;
    *f = (fixture){.be = be};
    ok(setup_as(&f->q, &spec, &f->err), &f->err);
    ck_assert_ptr_nonnull(f->p = bk_params_new(be, &f->err));
    ck_assert_ptr_nonnull(f->w = bk_params_add(f->p, "w_q", BK_GROUP_WEIGHT, false, 2, dim));
    ok(f->q.q->params(f->q.state.bytes, f->p, "w_q"), &f->err);
    ok(bk_params_commit(f->p, true), &f->err);
    ck_assert_ptr_nonnull(f->ctx = bk_ctx_new(be, &f->err));

    float lo[N], hi[N];
    for (int i = 0; i < N; i++) f->w0[i] = (float)bk_rng_normal(5, BK_RNG_TEST, (uint64_t)i);
    ok(bk_write(be, f->w, 0, f->w0, N, &f->err), &f->err);
    ck_assert_int_eq(f->q.q->units(f->q.state.bytes), N / group);
    for (int64_t i = 0; i < N; i++) {
        bool first = i % group == 0;
        lo[i / group] = first ? f->w0[i] : fminf(lo[i / group], f->w0[i]);
        hi[i / group] = first ? f->w0[i] : fmaxf(hi[i / group], f->w0[i]);
    }
    ok(f->q.q->init(f->ctx, f->q.state.bytes, lo, hi), &f->err);
}

static void close_fixture(fixture *f)
{
    bk_ctx_free(f->ctx);
    bk_params_free(f->p);
}

static const bk_backend *backend(int i)
{
    return i ? bk_backend_cpu() : bk_backend_ref(BK_F32);
}

/* A dry run, the commit, and the real one. */
static void quantize(fixture *f, float y[N])
{
    bk_ctx_measure(f->ctx);
    bk_qinst_apply(f->ctx, &f->q, f->w);
    ok(bk_ctx_commit(f->ctx), &f->err);
    bk_step_begin(f->ctx);
    bk_tensor *t = bk_qinst_apply(f->ctx, &f->q, f->w);
    ok(bk_ctx_status(f->ctx), &f->err);
    ok(bk_read(f->be, t, 0, y, N, &f->err), &f->err);
}

static void read_all(fixture *f, const char *name, float *out)
{
    const bk_tensor *t = bk_params_find(f->p, name);
    ck_assert_msg(t != NULL, "there is no parameter %s", name);
    ok(bk_read(f->be, t, 0, out, bk_numel(t), &f->err), &f->err);
}

START_TEST(three_codes_give_minus_s_zero_or_s)
{
    fixture f;
    float y[N], s[N];
    open_fixture(&f, backend(_i), BK_PER_GROUP, 3);
    quantize(&f, y);
    read_all(&f, "w_q.step", s);
    for (int i = 0; i < N; i++)
        ck_assert_msg(y[i] == 0 || fabsf(y[i]) == s[i / GROUP], "%g with step %g became %g", (double)f.w0[i], (double)s[i / GROUP], (double)y[i]);
    close_fixture(&f);
}
END_TEST

START_TEST(the_first_step_puts_the_largest_magnitude_on_the_outermost_code)
{
    for (int codes = 3; codes <= 5; codes += 2) {
        fixture f;
        float s[N];
        open_fixture(&f, backend(_i), BK_PER_CHANNEL, codes);
        read_all(&f, "w_q.step", s);
        for (int r = 0; r < ROWS; r++) {
            float m = 0, k = (float)(codes / 2);
            for (int c = 0; c < COLS; c++) m = fmaxf(m, fabsf(f.w0[r * COLS + c]));
            ck_assert_msg(s[r] == m / k, "%d codes: step %g, largest magnitude %g", codes, (double)s[r], (double)m);
        }
        close_fixture(&f);
    }
}
END_TEST

/* What a file will hold: codes that give back apply's values, to the bit. */
START_TEST(codes_lie_in_range_and_harden_to_what_apply_gives)
{
    fixture f;
    float y[N], s[N], again[N];
    int32_t c[N];
    bk_codes out = {.codes = NULL};
    open_fixture(&f, backend(_i % 2), BK_PER_GROUP, _i < 2 ? 3 : 5);
    quantize(&f, y);
    read_all(&f, "w_q.step", s);
    ok(bk_tensor_create(f.be, BK_I32, 2, f.w->dim, "codes", &out.codes, &f.err), &f.err);
    ok(f.q.q->codes(f.ctx, f.q.state.bytes, f.w, &out), &f.err);
    ok(bk_read_i32(f.be, out.codes, 0, c, N, &f.err), &f.err);
    bk_tensor_destroy(f.be, out.codes);
    ck_assert_int_eq(out.qmin, _i < 2 ? -2 : -4);
    for (int i = 0; i < N; i++) {
        ck_assert_msg(abs(c[i]) <= (_i < 2 ? 1 : 2), "code %d", c[i]);
        float hard = (float)c[i] * s[i / GROUP];
        ck_assert_msg(hard == y[i], "code %d is %g, apply gave %g", c[i], (double)hard, (double)y[i]);
    }
    ok(bk_write(f.be, f.w, 0, y, N, &f.err), &f.err);
    quantize(&f, again);
    ck_assert_mem_eq(y, again, sizeof y);
    close_fixture(&f);
}
END_TEST

/* One training step of a linear layer: its output with quantized weights against the one with the weights it began with. */
static float train_step(fixture *f, bk_tensor *x, bk_tensor *target, int64_t t)
{
    float loss = 0;
    bk_step_begin(f->ctx);
    bk_ctx_record(f->ctx, true);
    ok(bk_params_zero_grad(f->ctx, f->p), &f->err);
    bk_tensor *y = bk_linear(f->ctx, x, bk_qinst_apply(f->ctx, &f->q, f->w), NULL);
    bk_tensor *l = bk_recon_loss(f->ctx, BK_LOSS_MSE, y, target);
    ok(bk_ctx_status(f->ctx), &f->err);
    ok(bk_backward(f->ctx, l, NULL), &f->err);
    if (bk_ctx_measuring(f->ctx)) return 0;
    ok(bk_read(f->be, l, 0, &loss, 1, &f->err), &f->err);
    int64_t floored = 0;
    const bk_adamw adamw = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const double lr[BK_MAX_GROUPS] = {[BK_GROUP_QUANT] = 1e-2};
    ok(bk_params_step(f->ctx, f->p, &adamw, lr, t, &floored), &f->err);
    return loss;
}

START_TEST(steps_get_a_gradient_and_learn)
{
    fixture f;
    float v[TOKENS * COLS], y[TOKENS * ROWS], before[N], after[N], first = 0, last = 0;
    bk_tensor *x, *target;
    open_fixture(&f, backend(_i), BK_PER_CHANNEL, 3);
    ok(bk_tensor_create(f.be, BK_F32, 3, (int64_t[]){1, TOKENS, COLS}, "x", &x, &f.err), &f.err);
    ok(bk_tensor_create(f.be, BK_F32, 3, (int64_t[]){1, TOKENS, ROWS}, "target", &target, &f.err), &f.err);
    for (int i = 0; i < TOKENS * COLS; i++) v[i] = (float)bk_rng_normal(6, BK_RNG_TEST, (uint64_t)i);
    for (int i = 0; i < TOKENS * ROWS; i++) {
        y[i] = 0;
        for (int c = 0; c < COLS; c++) y[i] += v[i / ROWS * COLS + c] * f.w0[i % ROWS * COLS + c];
    }
    ok(bk_write(f.be, x, 0, v, TOKENS * COLS, &f.err), &f.err);
    ok(bk_write(f.be, target, 0, y, TOKENS * ROWS, &f.err), &f.err);
    read_all(&f, "w_q.step", before);
    ok(bk_params_start(f.p), &f.err);
    train_step(&f, x, target, 0);
    ok(bk_ctx_commit(f.ctx), &f.err);
    for (int t = 1; t <= 60; t++) {
        last = train_step(&f, x, target, t);
        if (t == 1) first = last;
    }
    read_all(&f, "w_q.step", after);
    for (int r = 0; r < ROWS; r++) ck_assert_msg(after[r] != before[r], "step %d did not move", r);
    ck_assert_msg(last < 0.9f * first, "loss %g -> %g", (double)first, (double)last);
    bk_tensor_destroy(f.be, x);
    bk_tensor_destroy(f.be, target);
    close_fixture(&f);
}
END_TEST

START_TEST(other_specs_are_refused_with_a_reason)
{
    static const char *const why[] = {"3 codes of 4 bits", "symmetric", "step: restricted", "per token", "does not divide", "4 codes", "5 codes of 2 bits"};
    for (int i = 0; i < 7; i++) {
        bk_qspec spec = odd_spec(i == 3 ? BK_PER_TOKEN : BK_PER_GROUP, 3);
        if (i == 0) spec.bits = 4;
        if (i >= 5) spec.option[0] = i == 5 ? 4 : 5;
        if (i == 1) spec.symmetric = false;
        if (i == 2) spec.restricted = false;
        if (i == 4) spec.group = 3;
        bk_qinst q;
        bk_error err = {0};
        ck_assert_int_ne(setup_as(&q, &spec, &err), BK_OK);
        ck_assert_msg(strstr(err.msg, "q: ") && strstr(err.msg, why[i]), "%s", err.msg);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("example quantizer");
    TCase *t = tcase_create("odd");
    tcase_add_loop_test(t, three_codes_give_minus_s_zero_or_s, 0, 2);
    tcase_add_loop_test(t, the_first_step_puts_the_largest_magnitude_on_the_outermost_code, 0, 2);
    tcase_add_loop_test(t, codes_lie_in_range_and_harden_to_what_apply_gives, 0, 4);
    tcase_add_loop_test(t, steps_get_a_gradient_and_learn, 0, 2);
    tcase_add_test(t, other_specs_are_refused_with_a_reason);
    suite_add_tcase(s, t);
    return run_suite(s);
}
