/* A small program against brick.h alone: RMSNorm of two rows, its values and its gradients. */
#include "brick.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "tests/ok.h"
#include "tests/suite.h"

enum { ROWS = 2, COLS = 3 };

static bk_tensor *leaf(const bk_backend *be, int ndim, const int64_t *dim, const char *name, const float *values, bk_error *err)
{
    bk_tensor *t;
    ok(bk_tensor_create(be, BK_F32, ndim, dim, name, &t, err), err);
    ok(bk_write(be, t, 0, values, bk_numel(t), err), err);
    ok(bk_tensor_create(be, BK_F32, ndim, dim, name, &t->grad, err), err);
    t->requires_grad = true;
    return t;
}

static void free_leaf(const bk_backend *be, bk_tensor *t)
{
    bk_tensor_destroy(be, t->grad);
    bk_tensor_destroy(be, t);
}

/* loss = mean (rmsnorm(x, w) - target)^2 */
static bk_tensor *graph(bk_ctx *ctx, bk_tensor *x, bk_tensor *w, bk_tensor *target, bk_tensor **y)
{
    *y = bk_rmsnorm(ctx, x, w, 1e-6);
    return bk_recon_loss(ctx, BK_LOSS_MSE, *y, target);
}

START_TEST(rmsnorm_and_its_gradient_through_the_umbrella_header)
{
    static const float vx[ROWS * COLS] = {1, -2, 3, 0.5f, 0.25f, -1}, vw[COLS] = {1, 2, 0.5f}, vt[ROWS * COLS] = {0};
    const bk_backend *be = bk_backend_cpu();
    bk_error err = {0};
    float y[ROWS * COLS], dw[COLS];
    bk_tensor *x = leaf(be, 3, (int64_t[]){1, ROWS, COLS}, "x", vx, &err), *w = leaf(be, 1, (int64_t[]){COLS}, "w", vw, &err);
    bk_tensor *target = leaf(be, 3, (int64_t[]){1, ROWS, COLS}, "target", vt, &err), *out;
    bk_ctx *ctx = bk_ctx_new(be, &err);
    ck_assert_ptr_nonnull(ctx);
    for (int dry = 1; dry >= 0; dry--) { /* the dry run measures, the commit allocates, the second pass computes */
        bk_step_begin(ctx);
        bk_ctx_record(ctx, true);
        bk_tensor *loss = graph(ctx, x, w, target, &out);
        ok(bk_ctx_status(ctx), &err);
        ok(bk_backward(ctx, loss, NULL), &err);
        if (dry) ok(bk_ctx_commit(ctx), &err);
    }
    ok(bk_read(be, out, 0, y, ROWS * COLS, &err), &err);
    ok(bk_read(be, w->grad, 0, dw, COLS, &err), &err);
    double want_dw[COLS] = {0};
    for (int r = 0; r < ROWS; r++) {
        double square = 0;
        for (int c = 0; c < COLS; c++) square += (double)vx[r * COLS + c] * (double)vx[r * COLS + c];
        for (int c = 0; c < COLS; c++) {
            double normed = (double)vx[r * COLS + c] / sqrt(square / COLS + 1e-6), want = normed * (double)vw[c];
            ck_assert_double_eq_tol((double)y[r * COLS + c], want, 1e-6);
            want_dw[c] += 2 * want * normed / (ROWS * COLS);
        }
    }
    for (int c = 0; c < COLS; c++) ck_assert_double_eq_tol((double)dw[c], want_dw[c], 1e-6);
    bk_ctx_free(ctx);
    free_leaf(be, x);
    free_leaf(be, w);
    free_leaf(be, target);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("umbrella");
    TCase *t = tcase_create("program");
    tcase_add_test(t, rmsnorm_and_its_gradient_through_the_umbrella_header);
    suite_add_tcase(s, t);
    return run_suite(s);
}
