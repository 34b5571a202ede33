/* Training of one block where something breaks: numbers, memory, calls; and a stop. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/init.h"
#include "tests/count_alloc.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "tests/trainee.h"

/* --- numbers that break --- */

/* A rate of 1 for steps of 1e-2, 21 times: whatever the sign of a gradient, the first update pushes a step below zero or far up (field cases, 7). */
START_TEST(steps_stay_positive_under_any_rate)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    opt.epochs = 7;
    opt.lr_quant = 1;
    opt.keep_last = true;
    bk_trainee_open(&e, bk_trainee_backend(_i % 2), _i / 2 ? "dynamic" : "static");
    float *start = bk_trainee_state(&e, &n), *end = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_int_gt(e.report.floored, 0);
    ck_assert_int_eq(e.report.steps, 21);
    ck_assert(isfinite(e.report.loss_final));
    int64_t at = 0;
    for (int i = 0; i < bk_params_count(e.t.b->params); i++) {
        const bk_tensor *t = bk_params_at(e.t.b->params, i, NULL);
        for (int64_t k = 0; k < bk_numel(t); k++, at++)
            if (strstr(t->name, ".step"))
                ck_assert_msg(end[at] >= 0.999e-3f * start[at] && end[at] > 0, "%s became %g", t->name, (double)end[at]);
    }
    opt.keep_last = false;
    bk_trainee_set_state(&e, start);
    bk_trainee_train(&e, &opt);
    ck_assert(e.report.loss_final <= e.report.loss_init);
    free(start), free(end);
    bk_trainee_close(&e);
}
END_TEST

static void spoil_weight(bk_trainee *e, float value)
{
    ok(bk_write(e->t.be, e->t.b->w[BK_W_DOWN], 7, &value, 1, &e->err), &e->err);
}

START_TEST(a_broken_block_falls_back)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_trainee_backend(_i), "static");
    spoil_weight(&e, NAN);
    bk_trainee_train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_msg(strstr(e.report.why, "step 0") && strstr(e.report.why, "loss"), "%s", e.report.why);
    opt.strict = true;
    ck_assert_int_eq(bk_trainee_train_on(&e, NULL, &opt), BK_ENUMERIC);
    ck_assert_msg(strstr(e.err.msg, "strict") != NULL, "%s", e.err.msg);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(targets_beyond_float_fall_back)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    bk_trainee_open_scaled(&e, bk_backend_cpu(), &quant, 1e25f);
    bk_trainee_train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_msg(strstr(e.report.why, "inf") != NULL, "%s", e.report.why);
    bk_trainee_close(&e);
}
END_TEST

/* A backend whose fake-quantizer puts a sick value, NaN unless told otherwise, into the gradient of one step at chosen calls. */
static bk_backend sick;
static float sick_value = NAN;
static int64_t calls, sick_from, sick_to;

static bk_status sick_bwd(const bk_fakequant_bwd_args *a, const bk_work *w)
{
    bk_status st = bk_backend_ref(BK_F32)->k.fakequant_bwd(a, w);
    calls++;
    if (calls >= sick_from && calls < sick_to && a->ds) ((float *)a->ds)[0] = sick_value;
    return st;
}

static const bk_backend *sick_backend(int64_t from, int64_t to)
{
    sick = *bk_backend_ref(BK_F32);
    sick.name = "sick";
    sick.k.fakequant_bwd = sick_bwd;
    calls = 0;
    sick_from = from;
    sick_to = to;
    return &sick;
}

/* The same for the offsets of rounding. */
static bk_status sick_rounding(const bk_fakequant_bwd_args *a, const bk_work *w)
{
    bk_status st = bk_backend_ref(BK_F32)->k.fakequant_bwd(a, w);
    calls++;
    if (calls >= sick_from && calls < sick_to && a->dv) ((float *)a->dv)[5] = sick_value;
    return st;
}

enum { BWD_PER_STEP = 7 + 6 }; /* linears and sites */

START_TEST(one_bad_gradient_halves_the_rate)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, sick_backend(BWD_PER_STEP * 4 + 1, BWD_PER_STEP * 4 + 2), "static"); /* the second step of the second epoch */
    bk_trainee_train(&e, &opt);
    ck_assert(!e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_msg(strstr(e.report.why, "step 4") && strstr(e.report.why, ".step") && strstr(e.report.why, "index 0"), "%s", e.report.why);
    ck_assert(e.report.loss_final < e.report.loss_init);
    ck_assert(fabs(e.epoch[e.epochs - 1].lr_quant - bk_cosine_lr(opt.lr_quant / 2, 10, 11, 12)) < 1e-12);
    bk_trainee_close(&e);
}
END_TEST

/* Signs would not see it: the sign of NaN is none. */
START_TEST(one_bad_gradient_of_rounding_halves_its_rate)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    const char *weights = _i ? "adaround" : "signround";
    quant.weight = bk_tiny_spec(weights, 4, true, BK_PER_CHANNEL, 0);
    const bk_backend *be = sick_backend(BWD_PER_STEP * 4 + 1, BWD_PER_STEP * 5 + 1);
    sick.k.fakequant_bwd = sick_rounding;
    bk_trainee_open_scaled(&e, be, &quant, 1);
    opt.lr_round = 0.01;
    bk_trainee_train(&e, &opt);
    ck_assert(!e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_msg(strstr(e.report.why, "step 4") && strstr(e.report.why, ".v") && strstr(e.report.why, "index 5"), "%s", e.report.why);
    ck_assert_double_eq_tol(e.epoch[e.epochs - 1].lr_round, _i ? 0.005 : 0.005 / 12, 1e-12);
    bk_trainee_close(&e);
}
END_TEST

/* Every gradient is a number, but not its square in f32: no update that is lost in silence, no mean norm of it (field cases, 9). */
START_TEST(gradients_whose_square_overflows_are_told)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    sick_value = 1e25f;
    bk_trainee_open(&e, sick_backend(BWD_PER_STEP * 4 + 1, BWD_PER_STEP * 4 + 2), "static");
    bk_trainee_train(&e, &opt);
    ck_assert(!e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_msg(strstr(e.report.why, "step 4") && strstr(e.report.why, "overflow: the gradient norm is 1e+25"), "%s", e.report.why);
    for (int i = 0; i < e.epochs; i++) ck_assert_double_lt(e.epoch[i].grad_norm, 1e19);
    bk_trainee_close(&e);
}
END_TEST

/* Large is not too large: losses of 1e30 are trained on. */
START_TEST(huge_targets_are_trained_on)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    bk_trainee_open_scaled(&e, bk_trainee_backend(_i), &quant, 1e15f);
    bk_trainee_train(&e, &opt);
    ck_assert(!e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 0);
    ck_assert_double_gt(e.report.loss_init, 1e29);
    for (int i = 0; i < e.epochs; i++) ck_assert_double_gt(e.epoch[i].grad_norm, 1);
    ck_assert_double_le(e.report.loss_final, e.report.loss_init);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(bad_gradients_without_end_fall_back)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, sick_backend(BWD_PER_STEP * 4 + 1, INT64_MAX), "static");
    bk_trainee_train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 3);
    ck_assert_int_eq(e.report.epoch_kept, 0);
    ck_assert(e.report.loss_final == e.report.loss_init);
    ck_assert_msg(strstr(e.report.why, ".step"), "%s", e.report.why);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(strict_stops_at_the_first_bad_gradient)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    opt.strict = true;
    bk_trainee_open(&e, sick_backend(1, INT64_MAX), "static");
    ck_assert_int_eq(bk_trainee_train_on(&e, NULL, &opt), BK_ENUMERIC);
    ck_assert_msg(strstr(e.err.msg, "step 0") && strstr(e.err.msg, ".step"), "%s", e.err.msg);
    bk_trainee_close(&e);
}
END_TEST

/* The block's parameters can be used on after an error was caught. */
START_TEST(a_caught_error_leaves_nothing_behind)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, sick_backend(1, 2), "static");
    float *start = bk_trainee_state(&e, &n);
    bk_trainee_train(&e, &opt);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_int_eq(e.t.err.code, BK_OK);
    float *after_error = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.halvings, 0);
    ck_assert(e.report.loss_final < e.report.loss_init);
    free(start), free(after_error);
    bk_trainee_close(&e);
}
END_TEST

/* --- memory --- */

static bk_status from_the_second_step(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)total, (void)err;
    if (done == 1) bk_alloc_count_from_here();
    *(long *)user = bk_alloc_count();
    return BK_OK;
}

START_TEST(nothing_is_allocated_after_the_first_step)
{
    bk_trainee e;
    long count = -1;
    bk_train_options opt = bk_trainee_options();
    opt.shuffle = true;
    static const char *const weights[] = {"affine", "affine", "lsq", "lwc", "adaround", "signround"};
    bk_block_quant quant = bk_tiny_quant(_i % 2 ? "dynamic" : "static", 4, 4, false);
    quant.weight = bk_tiny_spec(weights[_i], 4, false, BK_PER_GROUP, 8);
    bk_trainee_open_scaled(&e, bk_backend_cpu(), &quant, 1);
    bk_watch watch = {from_the_second_step, &count};
    ok(bk_block_train(e.t.b, e.x, e.target, _i % 2 ? e.twice : NULL, &opt, &(bk_train_hooks){bk_trainee_keep_epoch, &e, &watch}, &e.report, &e.err), &e.err);
    ck_assert_int_eq(e.epochs, opt.epochs);
    if (bk_alloc_counted()) {
        ck_assert_msg(count == 0, "%ld allocations", count);
    }
    bk_trainee_close(&e);
}
END_TEST

/* A backend whose n-th allocation fails. */
static bk_backend poor;
static int64_t allocations, broke_at;

static bk_status poor_alloc(size_t bytes, void **out)
{
    *out = NULL;
    if (allocations++ == broke_at) return BK_ENOMEM;
    return bk_backend_ref(BK_F32)->alloc(bytes, out);
}

/* Block, initialisation with search, training. */
static bk_status whole_life(const bk_backend *be, const bk_trainee *e, bk_error *err)
{
    bk_config c = bk_tiny_config();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, false);
    bk_train_options opt = bk_trainee_options();
    bk_train_report report;
    bk_block *b = NULL;
    opt.epochs = 1;
    bk_stream *x = bk_tiny_stream(SAMPLES, TOKENS, c.hidden, 9);
    bk_ctx *ctx = bk_ctx_new(be, err);
    bk_status st = bk_block_create(&b, be, &c, &(bk_block_options){.quant = &quant, .r3 = e->r3, .r4 = e->r4, .tokens = TOKENS, .trained = true}, err);
    if (!st) st = bk_block_load(b, &e->t.w, err);
    if (!st) st = bk_block_init(ctx, b, x, &(bk_init_options){.search = true}, err);
    if (!st) st = bk_block_train(b, e->x, e->target, NULL, &opt, &(bk_train_hooks){0}, &report, err);
    bk_block_free(b);
    bk_ctx_free(ctx);
    bk_stream_free(x);
    return st;
}

START_TEST(memory_may_end_at_any_allocation)
{
    bk_trainee e;
    bk_status st = BK_ENOMEM;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    poor = *bk_backend_ref(BK_F32);
    poor.alloc = poor_alloc;
    for (broke_at = 0; st && broke_at < 200; broke_at++) {
        bk_error err = {0};
        allocations = 0;
        st = whole_life(&poor, &e, &err);
        ck_assert_msg(st == BK_OK || (st == BK_ENOMEM && err.code == BK_ENOMEM && strlen(err.msg) > 10), "allocation %d: %s: %s", (int)broke_at,
                      bk_status_name(st), err.msg);
    }
    ck_assert_int_eq(st, BK_OK);
    ck_assert_int_gt(broke_at, 30);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(the_bytes_of_training_are_known_before)
{
    bk_trainee e;
    size_t one, three;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    ok(bk_train_bytes(e.t.b, 1, TOKENS, BK_LOSS_MSE, &one, &e.err), &e.err);
    ok(bk_train_bytes(e.t.b, 3, TOKENS, BK_LOSS_MSE, &three, &e.err), &e.err);
    ck_assert_msg(one > 0 && three > one, "%zu and %zu", one, three);
    bk_trainee_close(&e);
}
END_TEST

/* --- wrong calls, a stop --- */

START_TEST(data_that_do_not_fit_are_refused)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    opt.n_val = 3; /* one more than there are */
    ck_assert_int_eq(bk_trainee_train_on(&e, NULL, &opt), BK_ESHAPE);
    bk_error_clear(&e.err);
    opt = bk_trainee_options();
    opt.n_train = 0;
    ck_assert_int_eq(bk_trainee_train_on(&e, NULL, &opt), BK_EINVAL);
    bk_error_clear(&e.err);
    opt = bk_trainee_options();
    opt.batch = 0;
    ck_assert_int_eq(bk_trainee_train_on(&e, NULL, &opt), BK_EINVAL);
    bk_error_clear(&e.err);
    bk_trainee_train(&e, &(bk_train_options){.epochs = 1, .batch = 50, .n_train = 1, .lr_min_factor = 1}); /* a batch larger than the data is short */
    bk_trainee_close(&e);
}
END_TEST

static bk_status stop_at_five(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)total;
    return done == 5 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(training_can_be_stopped)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    bk_watch watch = {stop_at_five, NULL};
    ck_assert_int_eq(bk_block_train(e.t.b, e.x, e.target, NULL, &opt, &(bk_train_hooks){NULL, NULL, &watch}, &e.report, &e.err), BK_ECANCEL);
    bk_trainee_close(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recon limits");
    TCase *t = tcase_create("numbers");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, steps_stay_positive_under_any_rate, 0, 4);
    tcase_add_loop_test(t, a_broken_block_falls_back, 0, 2);
    tcase_add_test(t, targets_beyond_float_fall_back);
    tcase_add_test(t, one_bad_gradient_halves_the_rate);
    tcase_add_loop_test(t, one_bad_gradient_of_rounding_halves_its_rate, 0, 2);
    tcase_add_test(t, gradients_whose_square_overflows_are_told);
    tcase_add_loop_test(t, huge_targets_are_trained_on, 0, 2);
    tcase_add_test(t, bad_gradients_without_end_fall_back);
    tcase_add_test(t, strict_stops_at_the_first_bad_gradient);
    tcase_add_test(t, a_caught_error_leaves_nothing_behind);
    suite_add_tcase(s, t);
    t = tcase_create("resources");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, nothing_is_allocated_after_the_first_step, 0, 6);
    tcase_add_test(t, memory_may_end_at_any_allocation);
    tcase_add_test(t, the_bytes_of_training_are_known_before);
    tcase_add_test(t, data_that_do_not_fit_are_refused);
    tcase_add_test(t, training_can_be_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}

