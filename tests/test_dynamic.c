/* The options of the quantizer `dynamic`. What it computes: test_kernels and test_offset; the laws: test_quantizer*. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "tests/laws.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"

enum { BOUNDED_ZERO, CLIP_RATIO }; /* in the order of its table */

static law_use token(bool symmetric, int option, double value)
{
    law_use u = {.q = bk_quantizer_find("dynamic"), .spec = bk_tiny_spec("dynamic", 4, symmetric, BK_PER_TOKEN, 0)};
    u.spec.restricted = symmetric; /* the extreme is a code */
    u.spec.option[option] = value;
    return u;
}

/* Values between 5 and 6 lie far from 0: of a range that must contain it they get the last three codes. */
START_TEST(a_bounded_zero_point_loses_an_offset)
{
    float x[LAW_N];
    double error[2] = {0};
    for (int i = 0; i < LAW_N; i++) x[i] = 5 + (float)(i % LAW_COLS) / LAW_COLS;
    for (int bounded = 0; bounded < 2; bounded++) {
        law_use u = token(false, BOUNDED_ZERO, bounded);
        double y[LAW_N];
        law_run r;
        law_open(&r, law_backend(_i), &u, x, false);
        law_values(&r, r.y, y);
        law_close(&r);
        for (int i = 0; i < LAW_N; i++) error[bounded] = fmax(error[bounded], fabs(y[i] - (double)x[i]));
    }
    ck_assert_msg(error[0] < 0.04 && error[1] > 1, "%g free, %g bounded", error[0], error[1]);
}
END_TEST

static double largest(law_run *r)
{
    double y[LAW_N], m = 0;
    law_values(r, r->y, y);
    for (int i = 0; i < LAW_N; i++) m = fmax(m, fabs(y[i]));
    return m;
}

/* As QuaRot clips; a factor of the grid search is one of this beginning. */
START_TEST(ranges_are_clipped_by_the_ratio)
{
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        float x[LAW_N];
        law_use u = token(symmetric, CLIP_RATIO, 0.875);
        law_run r;
        law_random(x, 0.1);
        for (int i = 0; i < LAW_N; i += LAW_COLS) {
            x[i] = 1;
            x[i + 1] = -1;
        }
        law_open(&r, law_backend(_i), &u, x, false);
        double begin = largest(&r);
        law_ok(r.q.q->factors(r.ctx, r.q.state.bytes, &(float){0.5f}), &r.err);
        law_pass(&r);
        double half = largest(&r), step = symmetric ? 1e-6 : 0.06; /* zero points are whole: half a step of 2 * 0.875 / 15 */
        ck_assert_msg(fabs(begin - 0.875) <= step, "%g at the beginning", begin);
        ck_assert_msg(fabs(half - 0.4375) <= step / 2, "%g with a factor of 0.5", half);
        law_close(&r);
    }
}
END_TEST

START_TEST(a_ratio_without_factors_is_refused)
{
    law_use u = token(true, CLIP_RATIO, 0.9);
    bk_qshape shape = {.cols = LAW_COLS, .name = "down_in"};
    bk_qinst q;
    bk_error err = {0};
    u.spec.clip = false;
    ck_assert_int_eq(bk_qinst_setup(&q, &u.spec, &shape, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, "down_in") && strstr(err.msg, "clip: true"), "%s", err.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dynamic");
    TCase *t = tcase_create("options");
    tcase_add_loop_test(t, a_bounded_zero_point_loses_an_offset, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, ranges_are_clipped_by_the_ratio, 0, LAW_BACKENDS);
    tcase_add_test(t, a_ratio_without_factors_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
