/* Training of one block: the loss falls, what is kept is the best, and nothing depends on threads. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/trainee.h"

static bool same_bytes(const float *a, const float *b, int64_t n)
{
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* --- learning --- */

START_TEST(the_loss_falls)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    opt.n_val = 0;
    bk_trainee_open(&e, bk_trainee_backend(_i / 2), _i % 2 ? "dynamic" : "static");
    bk_trainee_train(&e, &opt);
    ck_assert_int_eq(e.epochs, opt.epochs);
    ck_assert(!e.steps_disagree);
    ck_assert(!e.report.fell_back && e.report.halvings == 0);
    ck_assert_msg(e.report.loss_final < 0.9 * e.report.loss_init, "%g, then %g", e.report.loss_init, e.report.loss_final);
    ck_assert_int_eq(e.report.steps, opt.epochs * 3); /* 7 samples in batches of 3: the last one is short */
    for (int i = 0; i < e.epochs; i++) {
        ck_assert_int_eq(e.epoch[i].epoch, i + 1);
        ck_assert_int_eq(e.epoch[i].step, 3 * (i + 1));
        ck_assert(isfinite(e.epoch[i].loss) && e.epoch[i].grad_norm > 0 && e.epoch[i].seconds >= 0);
        double last = bk_cosine_lr(opt.lr_quant, 10, e.epoch[i].step - 1, 12);
        ck_assert(fabs(e.epoch[i].lr_quant - last) < 1e-12 && fabs(e.epoch[i].lr_weight - last) < 1e-12);
    }
    ck_assert(e.epoch[3].loss < e.epoch[0].loss);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(every_loss_falls)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    opt.loss = (bk_loss_kind)_i;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    bk_trainee_train(&e, &opt);
    ck_assert_msg(e.report.loss_final < e.report.loss_init, "loss %d: %g, then %g", _i, e.report.loss_init, e.report.loss_final);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(without_validation_samples_the_training_samples_judge)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    opt.n_val = 0;
    opt.n_train = SAMPLES;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    bk_trainee_train(&e, &opt);
    ck_assert(e.report.loss_final < e.report.loss_init);
    bk_trainee_close(&e);
}
END_TEST

/* True if training changes a tensor of the block. */
static bool moved(bk_trainee *e, const bk_train_options *opt, const bk_tensor *t)
{
    float *before = bk_tiny_read(e->t.be, t);
    bk_trainee_train(e, opt);
    float *after = bk_tiny_read(e->t.be, t);
    bool same = same_bytes(before, after, bk_numel(t));
    free(before), free(after);
    return !same;
}

START_TEST(weights_alone_are_trained_with_steps_and_zero_points)
{
    const char *const names[] = {"w_down", "w_down.step", "w_down.zero", "w_q", "w_q.step", "w_q.zero"};
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open_weights(&e, bk_trainee_backend(_i / 6), false);
    opt.keep_last = true;
    ck_assert_msg(moved(&e, &opt, bk_params_find(e.t.b->params, names[_i % 6])), "%s", names[_i % 6]);
    ck_assert(e.report.loss_final < e.report.loss_init);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(gains_are_trained_on_request)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bool norms = _i & 1, rate = _i & 2;
    bk_trainee_open_weights(&e, bk_backend_cpu(), norms);
    if (!rate) opt.lr_weight = 0;
    ck_assert_int_eq(moved(&e, &opt, e.t.b->norm[BK_NORM_MLP]), norms && rate);
    ck_assert_int_eq(bk_params_find(e.t.b->params, "norm_mlp") == e.t.b->norm[BK_NORM_MLP], norms);
    bk_trainee_close(&e);
}
END_TEST

/* --- nothing to do --- */

START_TEST(no_epochs_and_no_rate_give_the_initialised_block)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_trainee_backend(_i / 2), _i % 2 ? "dynamic" : "static");
    float *start = bk_trainee_state(&e, &n);
    opt.epochs = 0;
    float *a = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(start, a, n), "no epoch changed the block");
    ck_assert(e.report.epoch_kept == 0 && e.report.steps == 0 && e.report.loss_final == e.report.loss_init && !e.report.fell_back);
    opt.epochs = 2;
    opt.lr_quant = opt.lr_weight = 0;
    for (int last = 0; last < 2; last++) {
        opt.keep_last = last;
        float *b = bk_trainee_after(&e, start, &opt, &n);
        ck_assert_msg(same_bytes(start, b, n), "a learning rate of zero changed the block");
        ck_assert_msg(e.report.loss_final == e.report.loss_init, "%.9g, then %.9g", e.report.loss_init, e.report.loss_final);
        free(b);
    }
    free(a);
    free(start);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(a_rate_of_zero_holds_its_group)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    float *w = bk_tiny_read(e.t.be, e.t.b->w[BK_W_Q]), *s = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.step"));
    *(_i ? &opt.lr_weight : &opt.lr_quant) = 0;
    bk_trainee_train(&e, &opt);
    float *w2 = bk_tiny_read(e.t.be, e.t.b->w[BK_W_Q]), *s2 = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.step"));
    ck_assert(same_bytes(w, w2, bk_numel(e.t.b->w[BK_W_Q])) == (_i == 1));
    ck_assert(same_bytes(s, s2, bk_numel(bk_params_find(e.t.b->params, "w_q.step"))) == (_i == 0));
    free(w);
    free(s);
    free(w2);
    free(s2);
    bk_trainee_close(&e);
}
END_TEST

/* --- what is kept --- */

START_TEST(the_initialised_block_is_a_candidate)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    opt.lr_weight = 0.5;
    opt.lr_quant = 0;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    float *start = bk_trainee_state(&e, &n), *kept = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.epoch_kept, 0);
    ck_assert(e.report.loss_final == e.report.loss_init);
    ck_assert(same_bytes(start, kept, n));
    opt.keep_last = true;
    float *last = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.epoch_kept, opt.epochs);
    ck_assert(e.report.loss_final > e.report.loss_init);
    ck_assert(e.report.loss_final == e.epoch[e.epochs - 1].val_loss);
    ck_assert(!same_bytes(start, last, n));
    free(start);
    free(kept);
    free(last);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(the_best_epoch_is_kept)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    opt.n_val = 0; /* then the third of four is best */
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    bk_trainee_train(&e, &opt);
    int64_t best = 0;
    double least = e.report.loss_init;
    for (int i = 0; i < e.epochs; i++)
        if (e.epoch[i].val_loss < least) {
            least = e.epoch[i].val_loss;
            best = i + 1;
        }
    ck_assert_msg(best > 0 && best < opt.epochs, "a poor example: epoch %d is best", (int)best);
    ck_assert_int_eq(e.report.epoch_kept, best);
    ck_assert(e.report.loss_final == least);
    opt.epochs = 0; /* measures the block as it is */
    bk_trainee_train(&e, &opt);
    ck_assert_msg(e.report.loss_init == least, "the block has loss %.9g, not that of the best epoch, %.9g", e.report.loss_init, least);
    bk_trainee_close(&e);
}
END_TEST

/* --- the order of samples --- */

START_TEST(shuffling_follows_the_seed)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    float *start = bk_trainee_state(&e, &n), *fixed = bk_trainee_after(&e, start, &opt, &n);
    opt.seed = 3;
    float *fixed3 = bk_trainee_after(&e, start, &opt, &n);
    opt.shuffle = true;
    float *a = bk_trainee_after(&e, start, &opt, &n), *b = bk_trainee_after(&e, start, &opt, &n);
    opt.seed = 4;
    float *c = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(fixed, fixed3, n), "a fixed order depends on the seed");
    ck_assert_msg(same_bytes(a, b, n), "the same seed gave two results");
    ck_assert_msg(!same_bytes(a, c, n) && !same_bytes(a, fixed, n), "the seed does not matter");
    free(start), free(fixed), free(fixed3), free(a), free(b), free(c);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(threads_do_not_matter)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), _i ? "dynamic" : "static");
    float *start = bk_trainee_state(&e, &n), *result[2];
    for (int k = 0; k < 2; k++) {
        e.t.be->set_threads(k + 1);
        result[k] = bk_trainee_after(&e, start, &opt, &n);
    }
    ck_assert(same_bytes(result[0], result[1], n));
    free(start), free(result[0]), free(result[1]);
    bk_trainee_close(&e);
}
END_TEST

/* --- two targets, clipping --- */

START_TEST(the_same_target_twice_is_one_target)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_trainee_backend(_i), "static");
    float *start = bk_trainee_state(&e, &n), *one = bk_trainee_after(&e, start, &opt, &n);
    double loss = e.report.loss_final;
    bk_trainee_set_state(&e, start);
    ok(bk_trainee_train_on(&e, e.target, &opt), &e.err);
    float *two = bk_trainee_state(&e, &n);
    ck_assert_msg(same_bytes(one, two, n), "two equal targets gave another block");
    ck_assert(e.report.loss_final == loss);
    free(start), free(one), free(two);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(two_targets_weigh_the_same)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    opt.epochs = 0;
    bk_trainee_train(&e, &opt);
    double one = e.report.loss_init;
    ok(bk_block_train(e.t.b, e.x, e.twice, NULL, &opt, &(bk_train_hooks){0}, &e.report, &e.err), &e.err);
    double other = e.report.loss_init;
    ok(bk_trainee_train_on(&e, e.twice, &opt), &e.err);
    ck_assert_msg(fabs(e.report.loss_init - (one + other) / 2) < 1e-6 * other, "%g and %g make %g", one, other, e.report.loss_init);
    opt.epochs = 4;
    ok(bk_trainee_train_on(&e, e.twice, &opt), &e.err);
    ck_assert(e.report.loss_final < e.report.loss_init);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(clipping_bounds_the_gradient)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = bk_trainee_options();
    opt.keep_last = true;
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    float *start = bk_trainee_state(&e, &n), *free_run = bk_trainee_after(&e, start, &opt, &n);
    double norm = e.epoch[0].grad_norm;
    opt.clip_grad = 1e6;
    float *loose = bk_trainee_after(&e, start, &opt, &n);
    opt.clip_grad = 1e-12; /* far below the eps of AdamW: next to nothing moves */
    float *tight = bk_trainee_after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(free_run, loose, n), "a bound that never binds changed the block");
    ck_assert_msg(distance(start, tight, n) < 1e-2 * distance(start, free_run, n), "moved by %g, without clipping by %g", distance(start, tight, n),
                  distance(start, free_run, n));
    ck_assert_msg(e.epoch[0].grad_norm > 0.1 * norm, "the norm is reported as it was before clipping");
    free(start), free(free_run), free(loose), free(tight);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(skipped_places_stay_in_full_precision)
{
    bk_trainee e;
    bk_train_options opt = bk_trainee_options();
    bk_trainee_open(&e, bk_backend_cpu(), "static");
    e.t.b->skip_sites = 1u << BK_SITE_DOWN_IN;
    e.t.b->skip_weights = 1u << BK_W_O;
    bk_block_quantize(e.t.b, true, true);
    float *before = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "down_in.step"));
    bk_trainee_train(&e, &opt);
    float *later = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "down_in.step"));
    ck_assert(before[0] == later[0]);
    ck_assert(e.report.loss_final < e.report.loss_init);
    free(before), free(later);
    bk_trainee_close(&e);
}
END_TEST

/* --- quantizers of weights --- */

static const char *const learners[] = {"lsq", "lwc", "adaround", "signround"};
enum { LEARNERS = sizeof learners / sizeof learners[0] };

static bk_block_quant quant_with(const char *weights, int bits)
{
    bk_block_quant q = bk_tiny_quant("static", bits, 8, true);
    q.weight = bk_tiny_spec(weights, bits, false, BK_PER_GROUP, 8);
    return q;
}

static void open_learner(bk_trainee *e, const bk_backend *be, const char *weights)
{
    bk_block_quant quant = quant_with(weights, 3);
    bk_trainee_open_scaled(e, be, &quant, 1);
}

/* Weights stand still, as the papers have it; eight epochs of three steps. */
static bk_train_options learner_options(void)
{
    bk_train_options opt = bk_trainee_options();
    opt.epochs = 8;
    opt.lr_quant = 2e-3;
    opt.lr_weight = 0;
    return opt;
}

START_TEST(every_quantizer_of_weights_learns)
{
    bk_trainee e;
    bk_train_options opt = learner_options();
    opt.n_val = 0;
    bool adaround = !strcmp(learners[_i / 2], "adaround");
    if (adaround) opt.lr_round = 0.1; /* 24 steps of 1e-3 decide nothing */
    open_learner(&e, bk_trainee_backend(_i % 2), learners[_i / 2]);
    bk_trainee_train(&e, &opt);
    ck_assert(!e.report.fell_back && e.report.halvings == 0);
    ck_assert_msg(e.report.loss_final < 0.99 * e.report.loss_init, "%s: %g, then %g", learners[_i / 2], e.report.loss_init, e.report.loss_final);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(threads_do_not_matter_to_them)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = learner_options();
    open_learner(&e, bk_backend_cpu(), learners[_i]);
    float *start = bk_trainee_state(&e, &n), *result[2];
    for (int k = 0; k < 2; k++) {
        e.t.be->set_threads(k + 1);
        result[k] = bk_trainee_after(&e, start, &opt, &n);
    }
    ck_assert_msg(!same_bytes(start, result[0], n), "nothing moved");
    ck_assert(same_bytes(result[0], result[1], n));
    free(start), free(result[0]), free(result[1]);
    bk_trainee_close(&e);
}
END_TEST

static double loss_now(bk_trainee *e)
{
    bk_train_options opt = learner_options();
    opt.epochs = 0;
    bk_trainee_train(e, &opt);
    return e->report.loss_init;
}

/* The loss that chose the epoch is that of the model that is written, though rounding is still soft in between. */
START_TEST(soft_rounding_is_judged_when_hard)
{
    bk_trainee e;
    bk_train_options opt = learner_options();
    opt.lr_round = 0.1;
    opt.keep_last = _i;
    open_learner(&e, bk_backend_cpu(), "adaround");
    bk_trainee_train(&e, &opt);
    double kept = e.report.loss_final;
    float *soft = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.v"));
    int64_t n = bk_numel(e.t.b->w[BK_W_Q]), undecided = 0;
    for (int64_t i = 0; i < n; i++) undecided += fabsf(soft[i]) < 2;
    ck_assert_msg(undecided > n / 4, "%d of %d decisions can still move", (int)undecided, (int)n);
    ck_assert(loss_now(&e) == kept);
    ok(bk_block_round(e.t.ctx, e.t.b), &e.t.err);
    float *hard = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.v"));
    for (int64_t i = 0; i < n; i++) ck_assert_msg(fabsf(hard[i]) == 10 && (hard[i] > 0) == (soft[i] >= 0), "%g became %g", (double)soft[i], (double)hard[i]);
    ck_assert(loss_now(&e) == kept);
    free(soft), free(hard);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(a_penalty_decides_and_is_not_reported)
{
    int64_t open[2] = {0};
    double loss[2];
    for (int k = 0; k < 2; k++) {
        bk_trainee e;
        bk_block_quant quant = quant_with("adaround", 3);
        bk_train_options opt = learner_options();
        opt.lr_round = 0.2;
        opt.keep_last = true;
        quant.weight.option[0] = k ? 1e3 : 0;
        bk_trainee_open_scaled(&e, bk_backend_cpu(), &quant, 1);
        bk_trainee_train(&e, &opt);
        loss[k] = e.epoch[4].loss;
        float *v = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_up.v"));
        for (int64_t i = 0; i < bk_numel(e.t.b->w[BK_W_UP]); i++) open[k] += fabsf(v[i]) < 2.39f;
        free(v);
        bk_trainee_close(&e);
    }
    ck_assert_msg(2 * open[1] < open[0], "%d decisions are open, %d without penalty", (int)open[1], (int)open[0]);
    ck_assert_msg(loss[1] < 10 * loss[0], "a loss of %g, %g without penalty", loss[1], loss[0]);
}
END_TEST

START_TEST(two_targets_have_the_penalty_once)
{
    bk_trainee e;
    int64_t n;
    bk_train_options opt = learner_options();
    open_learner(&e, bk_backend_cpu(), "adaround");
    float *start = bk_trainee_state(&e, &n), *one = bk_trainee_after(&e, start, &opt, &n);
    bk_trainee_set_state(&e, start);
    ok(bk_trainee_train_on(&e, e.target, &opt), &e.err);
    float *two = bk_trainee_state(&e, &n);
    ck_assert_msg(same_bytes(one, two, n), "two equal targets gave another block");
    free(start), free(one), free(two);
    bk_trainee_close(&e);
}
END_TEST

/* Rates of rounding in the last of eight epochs: given, or the rule's own. */
START_TEST(rounding_has_a_rate_of_its_own)
{
    const struct {
        const char *weights;
        double given, want;
    } cases[] = {{"signround", 0, 1.0 / 24 / 24}, {"signround", 0.5, 0.5 / 24}, {"adaround", 0, 1e-3}, {"adaround", 0.25, 0.25}, {"lwc", 0.25, 0}};
    bk_trainee e;
    bk_train_options opt = learner_options();
    opt.lr_round = cases[_i].given;
    open_learner(&e, bk_backend_cpu(), cases[_i].weights);
    bk_trainee_train(&e, &opt);
    ck_assert_double_eq_tol(e.epoch[7].lr_round, cases[_i].want, 1e-15);
    bk_trainee_close(&e);
}
END_TEST

START_TEST(offsets_and_factors_stay_in_their_bounds)
{
    bk_trainee e;
    bk_train_options opt = learner_options();
    opt.lr_round = 0.4;
    opt.keep_last = true;
    open_learner(&e, bk_backend_cpu(), "signround");
    bk_trainee_train(&e, &opt);
    float *v = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.v")), *a = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.alpha"));
    int64_t n = bk_numel(e.t.b->w[BK_W_Q]), ends = 0;
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(fabsf(v[i]) <= 0.5f && a[i / 8] > 0 && a[i / 8] <= 1, "v = %g, alpha = %g", (double)v[i], (double)a[i / 8]);
        ends += fabsf(v[i]) == 0.5f;
    }
    ck_assert_msg(ends > 0, "a poor example: no bound was reached");
    free(v), free(a);
    bk_trainee_close(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recon");
    TCase *t = tcase_create("training");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, the_loss_falls, 0, 8);
    tcase_add_loop_test(t, every_loss_falls, 0, BK_LOSS_COUNT);
    tcase_add_test(t, without_validation_samples_the_training_samples_judge);
    tcase_add_loop_test(t, weights_alone_are_trained_with_steps_and_zero_points, 0, 24);
    tcase_add_loop_test(t, gains_are_trained_on_request, 0, 4);
    tcase_add_loop_test(t, no_epochs_and_no_rate_give_the_initialised_block, 0, 6);
    tcase_add_loop_test(t, a_rate_of_zero_holds_its_group, 0, 2);
    tcase_add_test(t, the_initialised_block_is_a_candidate);
    tcase_add_test(t, the_best_epoch_is_kept);
    tcase_add_test(t, shuffling_follows_the_seed);
    tcase_add_loop_test(t, threads_do_not_matter, 0, 2);
    tcase_add_loop_test(t, the_same_target_twice_is_one_target, 0, 2);
    tcase_add_test(t, two_targets_weigh_the_same);
    tcase_add_test(t, clipping_bounds_the_gradient);
    tcase_add_test(t, skipped_places_stay_in_full_precision);
    suite_add_tcase(s, t);
    t = tcase_create("quantizers of weights");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_quantizer_of_weights_learns, 0, 2 * LEARNERS);
    tcase_add_loop_test(t, threads_do_not_matter_to_them, 0, LEARNERS);
    tcase_add_loop_test(t, soft_rounding_is_judged_when_hard, 0, 2);
    tcase_add_test(t, a_penalty_decides_and_is_not_reported);
    tcase_add_test(t, two_targets_have_the_penalty_once);
    tcase_add_loop_test(t, rounding_has_a_rate_of_its_own, 0, 5);
    tcase_add_test(t, offsets_and_factors_stay_in_their_bounds);
    suite_add_tcase(s, t);
    return run_suite(s);
}

