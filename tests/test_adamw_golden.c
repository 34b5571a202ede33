/* AdamW with two parameter groups and the cosine learning rate against golden steps, through the parameters' own interface. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "autograd/op.h"
#include "autograd/optim.h"
#include "tests/h5_golden.h"
#include "tests/ok.h"
#include "tests/suite.h"

enum { GROUPS = 2, PER_GROUP = 2 };

static double tolerance(bk_golden *g, const bk_backend *be, const char *path)
{
    return bk_golden_attr(g, be->dtype == BK_F64 ? "tol_f64" : "tol_f32", "%s", path);
}

/* Compares `got` with row `at` of the dataset: its state after that many steps. */
static void same(bk_golden *g, const bk_backend *be, const char *path, const char *name, int64_t at, const bk_tensor *t)
{
    int64_t n = bk_numel(t);
    double got[64];
    bk_error err = {0};
    ck_assert_int_le(n, 64);
    ok(bk_read_f64(be, t, 0, got, n, &err), &err);
    double error = bk_golden_error(got, bk_golden_f64(g, "%s/%s", path, name) + at * n, n, bk_last_dim(t));
    ck_assert_msg(error <= tolerance(g, be, path), "%s/%s on %s after %d steps: error %.3g", path, name, be->name, (int)at, error);
}

static const char *label(char buf[32], int group, int i, const char *suffix)
{
    snprintf(buf, 32, "group%d/p%d%s", group, i, suffix);
    return buf;
}

static bk_tensor *declare(bk_golden *g, bk_params *p, const char *path, int group, int i)
{
    char name[32];
    int64_t dim[BK_GOLDEN_DIMS];
    int nd = bk_golden_dims(g, dim, "%s/%s", path, label(name, group, i, ""));
    return bk_params_add(p, name, group, false, nd - 1, dim + 1);
}

static void follow(const bk_backend *be, const char *path)
{
    bk_error err = {0};
    bk_golden *g = bk_golden_open("adamw.h5");
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_params *p = bk_params_new(be, &err);
    bk_tensor *t[GROUPS][PER_GROUP];
    char name[32];
    for (int k = 0; k < GROUPS * PER_GROUP; k++) t[k / PER_GROUP][k % PER_GROUP] = declare(g, p, path, k / PER_GROUP, k % PER_GROUP);
    ok(bk_params_commit(p, true), &err);
    for (int k = 0; k < GROUPS * PER_GROUP; k++) {
        bk_tensor *q = t[k / PER_GROUP][k % PER_GROUP];
        ok(bk_write_f64(be, q, 0, bk_golden_f64(g, "%s/%s", path, label(name, k / PER_GROUP, k % PER_GROUP, "")), bk_numel(q), &err), &err);
    }
    ok(bk_params_start(p), &err);
    bk_adamw opt = {bk_golden_attr(g, "beta1", "%s", path), bk_golden_attr(g, "beta2", "%s", path), bk_golden_attr(g, "eps", "%s", path),
                    bk_golden_attr(g, "weight_decay", "%s", path)};
    int64_t steps = bk_golden_attr_i64(g, "steps", "%s", path), floored = 0;
    double factor = bk_golden_attr(g, "lr_min_factor", "%s", path), lr[BK_MAX_GROUPS] = {0};
    ok(bk_params_step(ctx, p, &opt, (double[BK_MAX_GROUPS]){1, 1}, 1, &floored), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (int64_t step = 0; step < steps; step++) {
        lr[0] = bk_cosine_lr(bk_golden_attr(g, "lr0", "%s", path), factor, step, steps);
        lr[1] = bk_cosine_lr(bk_golden_attr(g, "lr1", "%s", path), factor, step, steps);
        for (int i = 0; i < GROUPS; i++) {
            double want = bk_golden_f64(g, "%s/lr", path)[step * GROUPS + i];
            ck_assert_msg(fabs(lr[i] - want) <= 1e-12 * want, "learning rate %d of step %d is %.15g, not %.15g", i, (int)step, lr[i], want);
        }
        for (int k = 0; k < GROUPS * PER_GROUP; k++) {
            bk_tensor *q = t[k / PER_GROUP][k % PER_GROUP];
            const double *grad = bk_golden_f64(g, "%s/%s", path, label(name, k / PER_GROUP, k % PER_GROUP, "_grad"));
            ok(bk_write_f64(be, q->grad, 0, grad + step * bk_numel(q), bk_numel(q), &err), &err);
        }
        ok(bk_params_step(ctx, p, &opt, lr, step + 1, &floored), &err);
        for (int k = 0; k < GROUPS * PER_GROUP; k++)
            same(g, be, path, label(name, k / PER_GROUP, k % PER_GROUP, ""), step + 1, t[k / PER_GROUP][k % PER_GROUP]);
    }
    ck_assert_int_eq(floored, 0);
    bk_params_free(p);
    bk_ctx_free(ctx);
    bk_golden_close(g);
}

/* The kernel alone, for the moments, which the parameters keep to themselves. */
static void follow_moments(const bk_backend *be, const char *path, int group, int i)
{
    bk_error err = {0};
    bk_golden *g = bk_golden_open("adamw.h5");
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *x[4]; /* p, m, v, gradient */
    char name[32];
    int64_t dim[BK_GOLDEN_DIMS];
    int nd = bk_golden_dims(g, dim, "%s/%s", path, label(name, group, i, ""));
    for (int k = 0; k < 4; k++) ok(bk_tensor_create(be, be->dtype, nd - 1, dim + 1, "x", &x[k], &err), &err);
    const double *start = bk_golden_f64(g, "%s/%s", path, name), *grad = bk_golden_f64(g, "%s/%s", path, label(name, group, i, "_grad"));
    int64_t n = bk_numel(x[0]), steps = bk_golden_attr_i64(g, "steps", "%s", path);
    ok(bk_write_f64(be, x[0], 0, start, n, &err), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (int64_t step = 0; step < steps; step++) {
        ok(bk_write_f64(be, x[3], 0, grad + step * n, n, &err), &err);
        ok(bk_k_adamw(ctx, &(bk_adamw_args){.n = n, .t = step + 1, .lr = bk_golden_f64(g, "%s/lr", path)[step * GROUPS + group],
                                            .beta1 = bk_golden_attr(g, "beta1", "%s", path), .beta2 = bk_golden_attr(g, "beta2", "%s", path),
                                            .eps = bk_golden_attr(g, "eps", "%s", path), .wd = bk_golden_attr(g, "weight_decay", "%s", path),
                                            .p = x[0]->data, .m = x[1]->data, .v = x[2]->data, .g = x[3]->data}),
           &err);
    }
    same(g, be, path, label(name, group, i, "_m"), 0, x[1]);
    same(g, be, path, label(name, group, i, "_v"), 0, x[2]);
    for (int k = 0; k < 4; k++) bk_tensor_destroy(be, x[k]);
    bk_ctx_free(ctx);
    bk_golden_close(g);
}

static const char *const cases[] = {"wd0", "wd0.01"};

static const bk_backend *backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F64);
}

enum { CASES = 2, BACKENDS = 4 };

START_TEST(parameters_follow_golden)
{
    follow(backend(_i / CASES), cases[_i % CASES]);
}
END_TEST

START_TEST(moments_follow_golden)
{
    for (int k = 0; k < GROUPS * PER_GROUP; k++) follow_moments(backend(_i / CASES), cases[_i % CASES], k / PER_GROUP, k % PER_GROUP);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("adamw_golden");
    TCase *t = tcase_create("golden");
    tcase_add_loop_test(t, parameters_follow_golden, 0, CASES * BACKENDS);
    tcase_add_loop_test(t, moments_follow_golden, 0, CASES * BACKENDS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
