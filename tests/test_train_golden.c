/* Thirty steps of block reconstruction against golden losses, gradient norms and parameters: step by step, and by bk_block_train. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/recon.h"
#include "tests/golden_block.h"
#include "tests/ok.h"
#include "tests/suite.h"

static const char *const cases[] = {"o2_w4a4kv4_sym", "o1_w4a4kv4_sym"};
enum { CASES = sizeof cases / sizeof cases[0], STEPS = 30 };

typedef struct run {
    bk_golden_block gb;
    bk_golden *g;
    const char *path;
    const bk_backend *be;
    bk_ctx *ctx;
    bk_error err;
    int64_t samples, tokens, width, batch;
    double tol;
} run;

static double attr(const run *r, const char *name)
{
    return bk_golden_attr(r->g, name, "%s", r->path);
}

static void open_run(run *r, const char *path, const bk_backend *be)
{
    *r = (run){.g = bk_golden_open("train.h5"), .path = path, .be = be};
    int64_t dim[BK_GOLDEN_DIMS];
    bk_golden_dims(r->g, dim, "%s/x", path);
    r->samples = dim[0];
    r->tokens = dim[1];
    r->width = dim[2];
    r->batch = bk_golden_attr_i64(r->g, "batch", "%s", path);
    r->tol = attr(r, be->dtype == BK_F64 ? "tol_f64" : "tol_f32");
    bk_golden_block_open(&r->gb, r->g, path, be, r->tokens, true);
    ck_assert_ptr_nonnull(r->ctx = bk_ctx_new(be, &r->err));
}

static void close_run(run *r)
{
    bk_ctx_free(r->ctx);
    bk_golden_block_close(&r->gb);
    bk_golden_close(r->g);
}

static bk_tensor *batch_of(run *r, const char *name, int64_t first, int64_t n)
{
    bk_tensor *t = bk_real_new(r->ctx, 3, (int64_t[]){n, r->tokens, r->width}, name);
    int64_t size = r->tokens * r->width;
    ok(bk_ctx_status(r->ctx), &r->err);
    if (!bk_ctx_measuring(r->ctx)) ok(bk_write_f64(r->be, t, 0, bk_golden_f64(r->g, "%s/%s", r->path, name) + first * size, n * size, &r->err), &r->err);
    return t;
}

static bk_tensor *loss_of(run *r, int64_t first, int64_t n)
{
    bk_step_begin(r->ctx);
    bk_tensor *x = batch_of(r, "x", first, n), *target = batch_of(r, "target", first, n);
    bk_tensor *loss = bk_recon_loss(r->ctx, BK_LOSS_MSE, bk_block_forward(r->ctx, r->gb.b, x), target);
    ok(bk_ctx_status(r->ctx), &r->err);
    return loss;
}

static double value_of(run *r, const bk_tensor *loss)
{
    double v = 0;
    if (!bk_ctx_measuring(r->ctx)) ok(bk_read_f64(r->be, loss, 0, &v, 1, &r->err), &r->err);
    return v;
}

/* The factor of dynamic keys is a constant in these files. */
static void hold_key(run *r)
{
    bk_tensor *gamma = bk_params_find(r->gb.b->params, "key.gamma");
    if (gamma && !bk_ctx_measuring(r->ctx)) ok(bk_write_f64(r->be, gamma->grad, 0, &(double){0}, 1, &r->err), &r->err);
}

/* Loss before the update; norm [groups] of its gradients. */
static double train_step(run *r, int64_t k, const double lr[BK_MAX_GROUPS], double norm[BK_MAX_GROUPS])
{
    bk_adamw opt = {attr(r, "beta1"), attr(r, "beta2"), attr(r, "adam_eps"), 0};
    bk_params *p = r->gb.b->params;
    int64_t floored = 0;
    bk_ctx_record(r->ctx, true);
    ok(bk_params_zero_grad(r->ctx, p), &r->err);
    bk_tensor *loss = loss_of(r, k * r->batch % r->samples, r->batch);
    ok(bk_backward(r->ctx, loss, NULL), &r->err);
    double v = value_of(r, loss);
    hold_key(r);
    ok(bk_params_grad_norm(r->ctx, p, norm), &r->err);
    ok(bk_params_step(r->ctx, p, &opt, lr, k + 1, &floored), &r->err);
    ck_assert_int_eq(floored, 0);
    bk_ctx_record(r->ctx, false);
    return v;
}

static void same_number(const run *r, const char *what, int step, double got, double want, double tol)
{
    ck_assert_msg(fabs(got - want) <= tol * fabs(want), "%s on %s, step %d: %s is %.12g, not %.12g", r->path, r->be->name, step, what, got, want);
}

static void check_history(run *r, int at)
{
    for (char **name = bk_golden_members(r->g, "%s/history", r->path); *name; name++) {
        const bk_tensor *t = bk_golden_block_tensor(&r->gb, *name);
        int64_t n = bk_numel(t);
        double got[16];
        ck_assert_int_le(n, 16);
        ok(bk_read_f64(r->be, t, 0, got, n, &r->err), &r->err);
        double e = bk_golden_error(got, bk_golden_f64(r->g, "%s/history/%s", r->path, *name) + at * n, n, n);
        ck_assert_msg(e <= r->tol, "%s on %s after %d steps: %s is off by %.3g", r->path, r->be->name, at, *name, e);
    }
}

/* |got - final| / |final - initial|; a parameter that is not trained must not have moved. */
static void check_final(run *r)
{
    double bound = attr(r, r->be->dtype == BK_F64 ? "tol_travel_f64" : "tol_travel_f32");
    for (char **name = bk_golden_members(r->g, "%s/final", r->path); *name; name++) {
        const bk_tensor *t = bk_golden_block_tensor(&r->gb, *name);
        int64_t n = bk_numel(t);
        double *got = malloc((size_t)n * sizeof *got), off = 0, travel = 0;
        const double *want = bk_golden_f64(r->g, "%s/final/%s", r->path, *name), *start = bk_golden_f64(r->g, "%s/param/%s", r->path, *name);
        ck_assert_ptr_nonnull(got);
        ok(bk_read_f64(r->be, t, 0, got, n, &r->err), &r->err);
        for (int64_t i = 0; i < n; i++) {
            off += (got[i] - want[i]) * (got[i] - want[i]);
            travel += (want[i] - start[i]) * (want[i] - start[i]);
        }
        free(got);
        ck_assert_msg(sqrt(off) <= bound * sqrt(travel), "%s on %s: %s ends off by %.3g of its travel", r->path, r->be->name, *name, sqrt(off / travel));
    }
}

static void rates(const run *r, int k, double lr[BK_MAX_GROUPS])
{
    memset(lr, 0, BK_MAX_GROUPS * sizeof *lr);
    lr[BK_GROUP_QUANT] = bk_cosine_lr(attr(r, "lr_quant"), attr(r, "lr_min_factor"), k, STEPS);
    lr[BK_GROUP_WEIGHT] = bk_cosine_lr(attr(r, "lr_weight"), attr(r, "lr_min_factor"), k, STEPS);
}

static void follow(const bk_backend *be, const char *path)
{
    run r;
    double norm[BK_MAX_GROUPS], lr[BK_MAX_GROUPS];
    open_run(&r, path, be);
    ck_assert_int_eq(bk_golden_attr_i64(r.g, "steps", "%s", path), STEPS);
    rates(&r, 0, lr);
    train_step(&r, 0, lr, norm);
    loss_of(&r, 0, r.samples);
    ok(bk_ctx_commit(r.ctx), &r.err);
    ok(bk_params_start(r.gb.b->params), &r.err);
    same_number(&r, "loss_before", 0, value_of(&r, loss_of(&r, 0, r.samples)), attr(&r, "loss_before"), r.tol);
    const double *loss = bk_golden_f64(r.g, "%s/loss", path), *norms = bk_golden_f64(r.g, "%s/grad_norm", path), *rate = bk_golden_f64(r.g, "%s/lr", path);
    for (int k = 0; k < STEPS; k++) {
        rates(&r, k, lr);
        check_history(&r, k);
        same_number(&r, "lr of steps", k, lr[BK_GROUP_QUANT], rate[2 * k], 1e-12);
        same_number(&r, "lr of weights", k, lr[BK_GROUP_WEIGHT], rate[2 * k + 1], 1e-12);
        same_number(&r, "loss", k, train_step(&r, k, lr, norm), loss[k], r.tol);
        same_number(&r, "norm of steps", k, norm[BK_GROUP_QUANT], norms[2 * k], r.tol);
        same_number(&r, "norm of weights", k, norm[BK_GROUP_WEIGHT], norms[2 * k + 1], r.tol);
    }
    check_history(&r, STEPS);
    check_final(&r);
    same_number(&r, "loss_after", STEPS, value_of(&r, loss_of(&r, 0, r.samples)), attr(&r, "loss_after"), r.tol);
    close_run(&r);
}

START_TEST(ref_f64)
{
    follow(bk_backend_ref(BK_F64), cases[_i]);
}
END_TEST

START_TEST(ref_f32)
{
    follow(bk_backend_ref(BK_F32), cases[_i]);
}
END_TEST

START_TEST(cpu_f32)
{
    follow(bk_backend_cpu(), cases[_i]);
}
END_TEST

/* --- the same steps as one epoch of bk_block_train over 60 samples --- */

static void write_dset(run *r, bk_store *s, const char *name)
{
    bk_dset *d;
    char path[32];
    int64_t dim[3] = {STEPS * r->batch, r->tokens, r->width};
    const float *v = bk_golden_f32(r->g, "%s/%s", r->path, name);
    snprintf(path, sizeof path, "/%s", name);
    ok(bk_dset_create(&d, s, path, BK_STORE_F32, 3, dim, BK_OVERFLOW_ERROR, &r->err), &r->err);
    for (int64_t i = 0; i < dim[0]; i++) ok(bk_dset_write(d, i, 1, v + i % r->samples * r->tokens * r->width, &r->err), &r->err);
    bk_dset_close(d);
}

static bk_status keep_epoch(void *user, const bk_epoch *e, bk_error *err)
{
    (void)err;
    *(bk_epoch *)user = *e;
    return BK_OK;
}

static double mean(const double *v, int stride)
{
    double sum = 0;
    for (int i = 0; i < STEPS; i++) sum += v[i * stride];
    return sum / STEPS;
}

static void train_whole(const bk_backend *be)
{
    run r;
    char path[] = "/tmp/bk_train_golden_XXXXXX";
    bk_store *s;
    bk_dset *x, *target;
    bk_epoch e;
    bk_train_report report;
    open_run(&r, "o2_w4a4kv4_sym", be);
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ok(bk_store_create(&s, path, &(bk_store_meta){.schema = "brick.targets"}, 0, &r.err), &r.err);
    write_dset(&r, s, "x");
    write_dset(&r, s, "target");
    ok(bk_store_commit(s, &r.err), &r.err);
    ok(bk_store_open(&s, path, "brick.targets", &r.err), &r.err);
    ok(bk_dset_open(&x, s, "/x", &r.err), &r.err);
    ok(bk_dset_open(&target, s, "/target", &r.err), &r.err);
    bk_train_options opt = {.epochs = 1, .batch = r.batch, .n_train = STEPS * r.batch, .lr_quant = attr(&r, "lr_quant"),
                            .lr_weight = attr(&r, "lr_weight"), .lr_min_factor = attr(&r, "lr_min_factor"), .loss = BK_LOSS_MSE, .keep_last = true,
                            .adamw = {attr(&r, "beta1"), attr(&r, "beta2"), attr(&r, "adam_eps"), 0}};
    ok(bk_block_train(r.gb.b, x, target, NULL, &opt, &(bk_train_hooks){keep_epoch, &e, NULL}, &report, &r.err), &r.err);
    check_final(&r);
    ck_assert_int_eq(report.steps, STEPS);
    ck_assert_int_eq(report.epoch_kept, 1);
    same_number(&r, "mean loss", STEPS, e.loss, mean(bk_golden_f64(r.g, "%s/loss", r.path), 1), r.tol);
    double norm = 0, last[BK_MAX_GROUPS];
    const double *norms = bk_golden_f64(r.g, "%s/grad_norm", r.path);
    for (int k = 0; k < STEPS; k++) norm += hypot(norms[2 * k], norms[2 * k + 1]) / STEPS;
    rates(&r, STEPS - 1, last);
    same_number(&r, "mean gradient norm", STEPS, e.grad_norm, norm, r.tol);
    same_number(&r, "last rate of steps", STEPS, e.lr_quant, last[BK_GROUP_QUANT], 1e-12);
    same_number(&r, "last rate of weights", STEPS, e.lr_weight, last[BK_GROUP_WEIGHT], 1e-12);
    ck_assert(report.loss_final < report.loss_init && report.loss_final == e.val_loss);
    bk_dset_close(x);
    bk_dset_close(target);
    bk_store_close(s);
    unlink(path);
    close_run(&r);
}

START_TEST(block_train_on_ref_f64)
{
    train_whole(bk_backend_ref(BK_F64));
}
END_TEST

START_TEST(block_train_on_cpu)
{
    train_whole(bk_backend_cpu());
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train golden");
    TCase *t = tcase_create("steps");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, ref_f64, 0, CASES);
    tcase_add_loop_test(t, ref_f32, 0, CASES);
    tcase_add_loop_test(t, cpu_f32, 0, CASES);
    tcase_add_test(t, block_train_on_ref_f64);
    tcase_add_test(t, block_train_on_cpu);
    suite_add_tcase(s, t);
    return run_suite(s);
}
