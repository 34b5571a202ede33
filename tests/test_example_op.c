/* The op of docs/adding-an-op.md. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/gradcheck.h"
#include "autograd/rng.h"
#include "examples/op_blend.c"
#include "tests/suite.h"

enum { N = 6 };

static bk_tensor *blend(bk_ctx *ctx, bk_tensor **in, void *t)
{
    return bk_blend(ctx, in[0], in[1], *(double *)t);
}

START_TEST(gradients_match_differences)
{
    double a[N], b[N], t = 0.3;
    for (int i = 0; i < N; i++) {
        a[i] = bk_rng_normal(1, BK_RNG_TEST, (uint64_t)i);
        b[i] = bk_rng_normal(2, BK_RNG_TEST, (uint64_t)i);
    }
    const bk_gradcheck_input in[] = {{"a", 2, {2, 3}, a, NULL, true}, {"b", 2, {2, 3}, b, NULL, true}};
    bk_gradcheck_report report;
    bk_error err = {0};
    bk_status st = bk_gradcheck(bk_backend_ref(BK_F64), blend, &t, in, 2, 3, 1e-5, 1e-6, &report, &err);
    ck_assert_msg(st == BK_OK, "%s", err.msg);
    ck_assert_int_eq(report.compared, 4 * N); /* a alone, b alone, both */
}
END_TEST

/* A context with two constants of these shapes, after a dry run and a commit of y = blend(a, b, t). */
static bk_status run(int64_t na, int64_t nb, double t, float *y, bk_error *err)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    const float va[2] = {1, -2}, vb[2] = {5, 6};
    bk_tensor *a = NULL, *b = NULL;
    bk_ctx *ctx = bk_ctx_new(be, err);
    ck_assert_ptr_nonnull(ctx);
    ck_assert_int_eq(bk_tensor_create(be, BK_F32, 1, &na, "a", &a, err), BK_OK);
    ck_assert_int_eq(bk_tensor_create(be, BK_F32, 1, &nb, "b", &b, err), BK_OK);
    ck_assert_int_eq(bk_write(be, a, 0, va, na, err), BK_OK);
    ck_assert_int_eq(bk_write(be, b, 0, vb, nb, err), BK_OK);
    bk_blend(ctx, a, b, t);
    bk_status st = bk_ctx_status(ctx);
    if (!st) st = bk_ctx_commit(ctx);
    if (!st) {
        bk_step_begin(ctx);
        st = bk_read(be, bk_blend(ctx, a, b, t), 0, y, na, err);
    }
    bk_tensor_destroy(be, a);
    bk_tensor_destroy(be, b);
    bk_ctx_free(ctx);
    return st;
}

START_TEST(values_lie_between)
{
    float y[2];
    bk_error err = {0};
    ck_assert_msg(run(2, 2, 0.25, y, &err) == BK_OK, "%s", err.msg);
    ck_assert(y[0] == 2 && y[1] == 0);
    ck_assert_msg(run(2, 2, 0, y, &err) == BK_OK, "%s", err.msg);
    ck_assert(y[0] == 1 && y[1] == -2);
    ck_assert_msg(run(2, 2, 1, y, &err) == BK_OK, "%s", err.msg);
    ck_assert(y[0] == 5 && y[1] == 6);
}
END_TEST

START_TEST(other_shapes_and_weights_are_refused_with_a_reason)
{
    float y[2];
    bk_error err = {0};
    ck_assert_int_eq(run(2, 1, 0.5, y, &err), BK_ESHAPE);
    ck_assert_msg(strstr(err.msg, "blend") && strstr(err.msg, "[2]") && strstr(err.msg, "[1]"), "%s", err.msg);
    bk_error_clear(&err);
    ck_assert_int_eq(run(2, 2, 1.5, y, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, "1.5") != NULL, "%s", err.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("example op");
    TCase *t = tcase_create("blend");
    tcase_add_test(t, gradients_match_differences);
    tcase_add_test(t, values_lie_between);
    tcase_add_test(t, other_shapes_and_weights_are_refused_with_a_reason);
    suite_add_tcase(s, t);
    return run_suite(s);
}
