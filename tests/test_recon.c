/* Training of one block: the loss falls, what is kept is the best, nothing depends on threads, and numbers that break are caught. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/init.h"
#include "blocks/recon.h"
#include "tests/count_alloc.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

enum { SAMPLES = 9, TOKENS = 6, PREFIX = 2, MAX_EPOCHS = 16 };

static void ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s", bk_status_name(st ? st : err->code), err->msg);
}

/* A trained block in its initialised state and the data it is trained on: its own outputs in full precision, and twice these. */
typedef struct env {
    bk_tiny_block t;
    bk_hadamard_plan *r3, *r4;
    char path[32];
    bk_store *store;
    bk_dset *x, *target, *twice;
    bk_epoch epoch[MAX_EPOCHS];
    int epochs;
    bk_train_report report;
    bk_error err; /* of the training: another one than that of the block */
} env;

static float *full_precision(env *e, const bk_stream *x, int64_t width)
{
    int64_t n = SAMPLES * TOKENS * width;
    bk_stream *y;
    float *out = malloc((size_t)n * sizeof *out);
    ck_assert_ptr_nonnull(out);
    bk_block_quantize(e->t.b, false, false);
    bk_ctx_measure(e->t.ctx);
    ok(bk_stream_create(&y, SAMPLES, TOKENS, width, &e->t.err), &e->t.err);
    ok(bk_block_pass_measure(e->t.ctx, e->t.b, SAMPLES, TOKENS), &e->t.err);
    ok(bk_ctx_commit(e->t.ctx), &e->t.err);
    ok(bk_block_pass(e->t.ctx, e->t.b, x, y, &e->t.err), &e->t.err);
    ok(bk_stream_read(y, 0, SAMPLES, out, &e->t.err), &e->t.err);
    bk_stream_free(y);
    return out;
}

static void put(env *e, const char *path, const float *v, int64_t width)
{
    bk_dset *d;
    ok(bk_dset_create(&d, e->store, path, BK_STORE_F32, 3, (int64_t[]){SAMPLES, TOKENS, width}, BK_OVERFLOW_ERROR, &e->err), &e->err);
    ok(bk_dset_write(d, 0, SAMPLES, v, &e->err), &e->err);
    bk_dset_close(d);
}

static void open_data(env *e, bk_stream *x, float scale)
{
    int64_t width = e->t.b->cfg.hidden, n = SAMPLES * TOKENS * width;
    float *target = full_precision(e, x, width), *in = malloc((size_t)n * sizeof *in);
    ck_assert_ptr_nonnull(in);
    ok(bk_stream_read(x, 0, SAMPLES, in, &e->err), &e->err);
    strcpy(e->path, "/tmp/bk_recon_XXXXXX");
    int fd = mkstemp(e->path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ok(bk_store_create(&e->store, e->path, &(bk_store_meta){.schema = "brick.targets"}, 0, &e->err), &e->err);
    put(e, "/x", in, width);
    for (int64_t i = 0; i < n; i++) target[i] *= scale;
    put(e, "/target", target, width);
    for (int64_t i = 0; i < n; i++) target[i] *= 2;
    put(e, "/twice", target, width);
    ok(bk_store_commit(e->store, &e->err), &e->err);
    ok(bk_store_open(&e->store, e->path, "brick.targets", &e->err), &e->err);
    ok(bk_dset_open(&e->x, e->store, "/x", &e->err), &e->err);
    ok(bk_dset_open(&e->target, e->store, "/target", &e->err), &e->err);
    ok(bk_dset_open(&e->twice, e->store, "/twice", &e->err), &e->err);
    free(target);
    free(in);
}

static void open_env_scaled(env *e, const bk_backend *be, const bk_block_quant *quant, float target_scale)
{
    bk_config c = bk_tiny_config();
    *e = (env){0};
    ok(bk_hadamard_create(c.head_dim, &e->r3, &e->err), &e->err);
    ok(bk_hadamard_create(c.inter, &e->r4, &e->err), &e->err);
    bk_tiny_block_open(&e->t, be, &c,
                       &(bk_block_options){.quant = quant, .r3 = e->r3, .r4 = e->r4, .prefix_len = PREFIX, .tokens = TOKENS, .trained = true}, 8);
    bk_stream *x = bk_tiny_stream(SAMPLES, TOKENS, c.hidden, 9);
    open_data(e, x, target_scale);
    ok(bk_block_init(e->t.ctx, e->t.b, x, &(bk_init_options){0}, &e->t.err), &e->t.err);
    bk_stream_free(x);
}

static void open_env(env *e, const bk_backend *be, const char *quantizer)
{
    bk_block_quant quant = bk_tiny_quant(quantizer, 4, 4, true);
    open_env_scaled(e, be, &quant, 1);
}

static void close_env(env *e)
{
    bk_dset_close(e->x);
    bk_dset_close(e->target);
    bk_dset_close(e->twice);
    bk_store_close(e->store);
    unlink(e->path);
    bk_tiny_block_close(&e->t);
    bk_hadamard_free(e->r3);
    bk_hadamard_free(e->r4);
}

static bk_status keep_epoch(void *user, const bk_epoch *epoch, bk_error *err)
{
    env *e = user;
    (void)err;
    if (e->epochs < MAX_EPOCHS) e->epoch[e->epochs++] = *epoch;
    return BK_OK;
}

static bk_train_options options(void)
{
    return (bk_train_options){.epochs = 4, .batch = 3, .n_train = 7, .n_val = 2, .lr_quant = 1e-3, .lr_weight = 1e-3, .lr_min_factor = 10,
                              .adamw = {0.9, 0.999, 1e-8, 0}, .loss = BK_LOSS_MSE, .seed = 2};
}

static bk_status train_on(env *e, bk_dset *target2, const bk_train_options *opt)
{
    e->epochs = 0;
    return bk_block_train(e->t.b, e->x, e->target, target2, opt, &(bk_train_hooks){keep_epoch, e, NULL}, &e->report, &e->err);
}

static void train(env *e, const bk_train_options *opt)
{
    ok(train_on(e, NULL, opt), &e->err);
}

/* All parameters of the block, one after the other. */
static float *state(const env *e, int64_t *n)
{
    const bk_params *p = e->t.b->params;
    bk_error err = {0};
    float *all;
    *n = 0;
    for (int i = 0; i < bk_params_count(p); i++) *n += bk_numel(bk_params_at(p, i, NULL));
    ck_assert_ptr_nonnull(all = malloc((size_t)*n * sizeof *all));
    *n = 0;
    for (int i = 0; i < bk_params_count(p); i++) {
        const bk_tensor *t = bk_params_at(p, i, NULL);
        ok(bk_read(e->t.be, t, 0, all + *n, bk_numel(t), &err), &err);
        *n += bk_numel(t);
    }
    return all;
}

static void set_state(env *e, const float *all)
{
    for (int i = 0; i < bk_params_count(e->t.b->params); i++) {
        bk_tensor *t = bk_params_at(e->t.b->params, i, NULL);
        ok(bk_write(e->t.be, t, 0, all, bk_numel(t), &e->err), &e->err);
        all += bk_numel(t);
    }
}

static bool same_bytes(const float *a, const float *b, int64_t n)
{
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

/* Trains from the same start again; the state after it, malloc'd. */
static float *after(env *e, const float *start, const bk_train_options *opt, int64_t *n)
{
    set_state(e, start);
    train(e, opt);
    return state(e, n);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* --- learning --- */

static const bk_backend *backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F32) : i == 1 ? bk_backend_cpu() : i == 2 ? bk_backend_guard(BK_F32) : bk_backend_ref(BK_F64);
}

START_TEST(the_loss_falls)
{
    env e;
    bk_train_options opt = options();
    opt.n_val = 0;
    open_env(&e, backend(_i / 2), _i % 2 ? "dynamic" : "static");
    train(&e, &opt);
    ck_assert_int_eq(e.epochs, opt.epochs);
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
    close_env(&e);
}
END_TEST

START_TEST(every_loss_falls)
{
    env e;
    bk_train_options opt = options();
    opt.loss = (bk_loss_kind)_i;
    open_env(&e, bk_backend_cpu(), "static");
    train(&e, &opt);
    ck_assert_msg(e.report.loss_final < e.report.loss_init, "loss %d: %g, then %g", _i, e.report.loss_init, e.report.loss_final);
    close_env(&e);
}
END_TEST

START_TEST(without_validation_samples_the_training_samples_judge)
{
    env e;
    bk_train_options opt = options();
    opt.n_val = 0;
    opt.n_train = SAMPLES;
    open_env(&e, bk_backend_cpu(), "static");
    train(&e, &opt);
    ck_assert(e.report.loss_final < e.report.loss_init);
    close_env(&e);
}
END_TEST

/* --- nothing to do --- */

START_TEST(no_epochs_and_no_rate_give_the_initialised_block)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    open_env(&e, backend(_i / 2), _i % 2 ? "dynamic" : "static");
    float *start = state(&e, &n);
    opt.epochs = 0;
    float *a = after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(start, a, n), "no epoch changed the block");
    ck_assert(e.report.epoch_kept == 0 && e.report.steps == 0 && e.report.loss_final == e.report.loss_init && !e.report.fell_back);
    opt.epochs = 2;
    opt.lr_quant = opt.lr_weight = 0;
    for (int last = 0; last < 2; last++) {
        opt.keep_last = last;
        float *b = after(&e, start, &opt, &n);
        ck_assert_msg(same_bytes(start, b, n), "a learning rate of zero changed the block");
        ck_assert_msg(e.report.loss_final == e.report.loss_init, "%.9g, then %.9g", e.report.loss_init, e.report.loss_final);
        free(b);
    }
    free(a);
    free(start);
    close_env(&e);
}
END_TEST

START_TEST(a_rate_of_zero_holds_its_group)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    float *w = bk_tiny_read(e.t.be, e.t.b->w[BK_W_Q]), *s = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.step"));
    *(_i ? &opt.lr_weight : &opt.lr_quant) = 0;
    train(&e, &opt);
    float *w2 = bk_tiny_read(e.t.be, e.t.b->w[BK_W_Q]), *s2 = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "w_q.step"));
    ck_assert(same_bytes(w, w2, bk_numel(e.t.b->w[BK_W_Q])) == (_i == 1));
    ck_assert(same_bytes(s, s2, bk_numel(bk_params_find(e.t.b->params, "w_q.step"))) == (_i == 0));
    free(w);
    free(s);
    free(w2);
    free(s2);
    close_env(&e);
}
END_TEST

/* --- what is kept --- */

START_TEST(the_initialised_block_is_a_candidate)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    opt.lr_weight = 0.5;
    opt.lr_quant = 0;
    open_env(&e, bk_backend_cpu(), "static");
    float *start = state(&e, &n), *kept = after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.epoch_kept, 0);
    ck_assert(e.report.loss_final == e.report.loss_init);
    ck_assert(same_bytes(start, kept, n));
    opt.keep_last = true;
    float *last = after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.epoch_kept, opt.epochs);
    ck_assert(e.report.loss_final > e.report.loss_init);
    ck_assert(e.report.loss_final == e.epoch[e.epochs - 1].val_loss);
    ck_assert(!same_bytes(start, last, n));
    free(start);
    free(kept);
    free(last);
    close_env(&e);
}
END_TEST

START_TEST(the_best_epoch_is_kept)
{
    env e;
    bk_train_options opt = options();
    opt.n_val = 0; /* then the third of four is best */
    open_env(&e, bk_backend_cpu(), "static");
    train(&e, &opt);
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
    train(&e, &opt);
    ck_assert_msg(e.report.loss_init == least, "the block has loss %.9g, not that of the best epoch, %.9g", e.report.loss_init, least);
    close_env(&e);
}
END_TEST

/* --- the order of samples --- */

START_TEST(shuffling_follows_the_seed)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    float *start = state(&e, &n), *fixed = after(&e, start, &opt, &n);
    opt.seed = 3;
    float *fixed3 = after(&e, start, &opt, &n);
    opt.shuffle = true;
    float *a = after(&e, start, &opt, &n), *b = after(&e, start, &opt, &n);
    opt.seed = 4;
    float *c = after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(fixed, fixed3, n), "a fixed order depends on the seed");
    ck_assert_msg(same_bytes(a, b, n), "the same seed gave two results");
    ck_assert_msg(!same_bytes(a, c, n) && !same_bytes(a, fixed, n), "the seed does not matter");
    free(start), free(fixed), free(fixed3), free(a), free(b), free(c);
    close_env(&e);
}
END_TEST

START_TEST(threads_do_not_matter)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), _i ? "dynamic" : "static");
    float *start = state(&e, &n), *result[2];
    for (int k = 0; k < 2; k++) {
        e.t.be->set_threads(k + 1);
        result[k] = after(&e, start, &opt, &n);
    }
    ck_assert(same_bytes(result[0], result[1], n));
    free(start), free(result[0]), free(result[1]);
    close_env(&e);
}
END_TEST

/* --- two targets, clipping --- */

START_TEST(the_same_target_twice_is_one_target)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    open_env(&e, backend(_i), "static");
    float *start = state(&e, &n), *one = after(&e, start, &opt, &n);
    double loss = e.report.loss_final;
    set_state(&e, start);
    ok(train_on(&e, e.target, &opt), &e.err);
    float *two = state(&e, &n);
    ck_assert_msg(same_bytes(one, two, n), "two equal targets gave another block");
    ck_assert(e.report.loss_final == loss);
    free(start), free(one), free(two);
    close_env(&e);
}
END_TEST

START_TEST(two_targets_weigh_the_same)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    opt.epochs = 0;
    train(&e, &opt);
    double one = e.report.loss_init;
    ok(bk_block_train(e.t.b, e.x, e.twice, NULL, &opt, &(bk_train_hooks){0}, &e.report, &e.err), &e.err);
    double other = e.report.loss_init;
    ok(train_on(&e, e.twice, &opt), &e.err);
    ck_assert_msg(fabs(e.report.loss_init - (one + other) / 2) < 1e-6 * other, "%g and %g make %g", one, other, e.report.loss_init);
    opt.epochs = 4;
    ok(train_on(&e, e.twice, &opt), &e.err);
    ck_assert(e.report.loss_final < e.report.loss_init);
    close_env(&e);
}
END_TEST

START_TEST(clipping_bounds_the_gradient)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    opt.keep_last = true;
    open_env(&e, bk_backend_cpu(), "static");
    float *start = state(&e, &n), *free_run = after(&e, start, &opt, &n);
    double norm = e.epoch[0].grad_norm;
    opt.clip_grad = 1e6;
    float *loose = after(&e, start, &opt, &n);
    opt.clip_grad = 1e-12; /* far below the eps of AdamW: next to nothing moves */
    float *tight = after(&e, start, &opt, &n);
    ck_assert_msg(same_bytes(free_run, loose, n), "a bound that never binds changed the block");
    ck_assert_msg(distance(start, tight, n) < 1e-2 * distance(start, free_run, n), "moved by %g, without clipping by %g", distance(start, tight, n),
                  distance(start, free_run, n));
    ck_assert_msg(e.epoch[0].grad_norm > 0.1 * norm, "the norm is reported as it was before clipping");
    free(start), free(free_run), free(loose), free(tight);
    close_env(&e);
}
END_TEST

/* --- numbers that break --- */

/* A rate of 1 for steps of 1e-2 (field cases, 7). */
START_TEST(steps_stay_positive_under_any_rate)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    opt.lr_quant = 1;
    opt.keep_last = true;
    open_env(&e, backend(_i), "static");
    float *start = state(&e, &n), *end = after(&e, start, &opt, &n);
    ck_assert_int_gt(e.report.floored, 0);
    ck_assert(isfinite(e.report.loss_final));
    int64_t at = 0;
    for (int i = 0; i < bk_params_count(e.t.b->params); i++) {
        const bk_tensor *t = bk_params_at(e.t.b->params, i, NULL);
        for (int64_t k = 0; k < bk_numel(t); k++, at++)
            if (strstr(t->name, ".step"))
                ck_assert_msg(end[at] >= 0.999e-3f * start[at] && end[at] > 0, "%s became %g", t->name, (double)end[at]);
    }
    opt.keep_last = false;
    set_state(&e, start);
    train(&e, &opt);
    ck_assert(e.report.loss_final <= e.report.loss_init);
    free(start), free(end);
    close_env(&e);
}
END_TEST

static void spoil_weight(env *e, float value)
{
    ok(bk_write(e->t.be, e->t.b->w[BK_W_DOWN], 7, &value, 1, &e->err), &e->err);
}

START_TEST(a_broken_block_falls_back)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, backend(_i), "static");
    spoil_weight(&e, NAN);
    train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_msg(strstr(e.report.why, "step 0") && strstr(e.report.why, "loss"), "%s", e.report.why);
    opt.strict = true;
    ck_assert_int_eq(train_on(&e, NULL, &opt), BK_ENUMERIC);
    ck_assert_msg(strstr(e.err.msg, "strict") != NULL, "%s", e.err.msg);
    close_env(&e);
}
END_TEST

START_TEST(targets_beyond_float_fall_back)
{
    env e;
    bk_train_options opt = options();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, true);
    open_env_scaled(&e, bk_backend_cpu(), &quant, 1e25f);
    train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_msg(strstr(e.report.why, "inf") != NULL, "%s", e.report.why);
    close_env(&e);
}
END_TEST

/* A backend whose fake-quantizer puts NaN into the gradient of one step at chosen calls. */
static bk_backend sick;
static int64_t calls, sick_from, sick_to;

static bk_status sick_bwd(const bk_fakequant_bwd_args *a, const bk_work *w)
{
    bk_status st = bk_backend_ref(BK_F32)->k.fakequant_bwd(a, w);
    calls++;
    if (calls >= sick_from && calls < sick_to && a->ds) ((float *)a->ds)[0] = NAN;
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

enum { BWD_PER_STEP = 7 + 6 }; /* linears and sites */

START_TEST(one_bad_gradient_halves_the_rate)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, sick_backend(BWD_PER_STEP * 4 + 1, BWD_PER_STEP * 4 + 2), "static"); /* the second step of the second epoch */
    train(&e, &opt);
    ck_assert(!e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_msg(strstr(e.report.why, "step 4") && strstr(e.report.why, ".step") && strstr(e.report.why, "index 0"), "%s", e.report.why);
    ck_assert(e.report.loss_final < e.report.loss_init);
    ck_assert(fabs(e.epoch[e.epochs - 1].lr_quant - bk_cosine_lr(opt.lr_quant / 2, 10, 11, 12)) < 1e-12);
    close_env(&e);
}
END_TEST

START_TEST(bad_gradients_without_end_fall_back)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, sick_backend(BWD_PER_STEP * 4 + 1, INT64_MAX), "static");
    train(&e, &opt);
    ck_assert(e.report.fell_back);
    ck_assert_int_eq(e.report.halvings, 3);
    ck_assert_int_eq(e.report.epoch_kept, 0);
    ck_assert(e.report.loss_final == e.report.loss_init);
    ck_assert_msg(strstr(e.report.why, ".step"), "%s", e.report.why);
    close_env(&e);
}
END_TEST

START_TEST(strict_stops_at_the_first_bad_gradient)
{
    env e;
    bk_train_options opt = options();
    opt.strict = true;
    open_env(&e, sick_backend(1, INT64_MAX), "static");
    ck_assert_int_eq(train_on(&e, NULL, &opt), BK_ENUMERIC);
    ck_assert_msg(strstr(e.err.msg, "step 0") && strstr(e.err.msg, ".step"), "%s", e.err.msg);
    close_env(&e);
}
END_TEST

/* The block's parameters can be used on after an error was caught. */
START_TEST(a_caught_error_leaves_nothing_behind)
{
    env e;
    int64_t n;
    bk_train_options opt = options();
    open_env(&e, sick_backend(1, 2), "static");
    float *start = state(&e, &n);
    train(&e, &opt);
    ck_assert_int_eq(e.report.halvings, 1);
    ck_assert_int_eq(e.t.err.code, BK_OK);
    float *after_error = after(&e, start, &opt, &n);
    ck_assert_int_eq(e.report.halvings, 0);
    ck_assert(e.report.loss_final < e.report.loss_init);
    free(start), free(after_error);
    close_env(&e);
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
    env e;
    long count = -1;
    bk_train_options opt = options();
    opt.shuffle = true;
    open_env(&e, bk_backend_cpu(), _i ? "dynamic" : "static");
    bk_watch watch = {from_the_second_step, &count};
    ok(bk_block_train(e.t.b, e.x, e.target, _i ? e.twice : NULL, &opt, &(bk_train_hooks){keep_epoch, &e, &watch}, &e.report, &e.err), &e.err);
    ck_assert_int_eq(e.epochs, opt.epochs);
    if (bk_alloc_counted()) {
        ck_assert_msg(count == 0, "%ld allocations", count);
    }
    close_env(&e);
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
static bk_status whole_life(const bk_backend *be, const env *e, bk_error *err)
{
    bk_config c = bk_tiny_config();
    bk_block_quant quant = bk_tiny_quant("static", 4, 4, false);
    bk_train_options opt = options();
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
    env e;
    bk_status st = BK_ENOMEM;
    open_env(&e, bk_backend_cpu(), "static");
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
    close_env(&e);
}
END_TEST

START_TEST(the_bytes_of_training_are_known_before)
{
    env e;
    size_t one, three;
    open_env(&e, bk_backend_cpu(), "static");
    ok(bk_train_bytes(e.t.b, 1, TOKENS, BK_LOSS_MSE, &one, &e.err), &e.err);
    ok(bk_train_bytes(e.t.b, 3, TOKENS, BK_LOSS_MSE, &three, &e.err), &e.err);
    ck_assert_msg(one > 0 && three > one, "%zu and %zu", one, three);
    close_env(&e);
}
END_TEST

/* --- wrong calls, a stop --- */

START_TEST(data_that_do_not_fit_are_refused)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    opt.n_val = 3; /* one more than there are */
    ck_assert_int_eq(train_on(&e, NULL, &opt), BK_ESHAPE);
    bk_error_clear(&e.err);
    opt = options();
    opt.n_train = 0;
    ck_assert_int_eq(train_on(&e, NULL, &opt), BK_EINVAL);
    bk_error_clear(&e.err);
    opt = options();
    opt.batch = 0;
    ck_assert_int_eq(train_on(&e, NULL, &opt), BK_EINVAL);
    bk_error_clear(&e.err);
    train(&e, &(bk_train_options){.epochs = 1, .batch = 50, .n_train = 1, .lr_min_factor = 1}); /* a batch larger than the data is short */
    close_env(&e);
}
END_TEST

static bk_status stop_at_five(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)total;
    return done == 5 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(training_can_be_stopped)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    bk_watch watch = {stop_at_five, NULL};
    ck_assert_int_eq(bk_block_train(e.t.b, e.x, e.target, NULL, &opt, &(bk_train_hooks){NULL, NULL, &watch}, &e.report, &e.err), BK_ECANCEL);
    close_env(&e);
}
END_TEST

START_TEST(skipped_places_stay_in_full_precision)
{
    env e;
    bk_train_options opt = options();
    open_env(&e, bk_backend_cpu(), "static");
    e.t.b->skip_sites = 1u << BK_SITE_DOWN_IN;
    e.t.b->skip_weights = 1u << BK_W_O;
    bk_block_quantize(e.t.b, true, true);
    float *before = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "down_in.step"));
    train(&e, &opt);
    float *later = bk_tiny_read(e.t.be, bk_params_find(e.t.b->params, "down_in.step"));
    ck_assert(before[0] == later[0]);
    ck_assert(e.report.loss_final < e.report.loss_init);
    free(before), free(later);
    close_env(&e);
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
    t = tcase_create("numbers");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, steps_stay_positive_under_any_rate, 0, 2);
    tcase_add_loop_test(t, a_broken_block_falls_back, 0, 2);
    tcase_add_test(t, targets_beyond_float_fall_back);
    tcase_add_test(t, one_bad_gradient_halves_the_rate);
    tcase_add_test(t, bad_gradients_without_end_fall_back);
    tcase_add_test(t, strict_stops_at_the_first_bad_gradient);
    tcase_add_test(t, a_caught_error_leaves_nothing_behind);
    suite_add_tcase(s, t);
    t = tcase_create("resources");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, nothing_is_allocated_after_the_first_step, 0, 2);
    tcase_add_test(t, memory_may_end_at_any_allocation);
    tcase_add_test(t, the_bytes_of_training_are_known_before);
    tcase_add_test(t, data_that_do_not_fit_are_refused);
    tcase_add_test(t, training_can_be_stopped);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
