/* Zeros, constants, extremes and scales, for every registered quantizer (docs/numerics.md, Rounding and codes). */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "quant/steps.h"
#include "tests/laws.h"
#include "tests/tiny_block.h"

static void zeros(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N];
    law_run r;
    law_random(x, 1);
    for (int i = 0; i < LAW_COLS; i++) x[2 * LAW_COLS + i] = 0;
    for (int all = 0; all < 2; all++) {
        if (all) memset(x, 0, sizeof x);
        law_open(&r, be, u, x, true);
        for (int i = 0; i < bk_params_count(r.p); i++) {
            const bk_tensor *t = bk_params_at(r.p, i, NULL);
            float *s = bk_tiny_read(be, t), *g = t->grad ? bk_tiny_read(be, t->grad) : NULL;
            for (int64_t k = 0; k < bk_numel(t); k++) {
                ck_assert_msg(!g || isfinite(g[k]), "%s on %s: gradient of %s", u->what, be->name, t->name);
                if (all && !u->q->free_steps && strstr(t->name, ".step")) ck_assert_msg(s[k] == 1, "%s on %s: the step of zeros is %g", u->what, be->name, (double)s[k]);
            }
            free(s);
            free(g);
        }
        law_harden(&r);
        law_pass(&r);
        law_values(&r, r.y, y);
        for (int i = 0; i < LAW_N; i++) {
            ck_assert_msg(isfinite(y[i]), "%s on %s: %g", u->what, be->name, y[i]);
            ck_assert_msg(x[i] != 0 || y[i] == 0, "%s on %s: zero became %g", u->what, be->name, y[i]);
        }
        law_close(&r);
    }
}

START_TEST(zeros_stay_zero)
{
    law_for_all(zeros, law_backend(_i));
}
END_TEST

/* The same values at 1, 1e-3, 1e-5, 1e-7 and near the ends of float: the same relative error (case 5). */
static void scale_free(const bk_backend *be, const law_use *u)
{
    static const double scales[] = {1, 1e-3, 1e-5, 1e-7, 1e-20, 1e30};
    double first = 0;
    if (u->q->free_steps) return;
    for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
        float x[LAW_N];
        double y[LAW_N], error = 0, size = 0;
        law_run r;
        law_random(x, scales[k]);
        law_open(&r, be, u, x, false);
        law_values(&r, r.y, y);
        for (int i = 0; i < LAW_N; i++) {
            double d = (y[i] - (double)x[i]) / scales[k], v = (double)x[i] / scales[k];
            error += d * d;
            size += v * v;
        }
        error = sqrt(error / size);
        if (k == 0) first = error;
        ck_assert_msg(fabs(error - first) <= 2e-3 * first, "%s on %s: relative error %g at scale %g, %g at 1", u->what, be->name, error, scales[k], first);
        law_close(&r);
    }
}

START_TEST(the_scale_of_a_row_does_not_matter)
{
    law_for_all(scale_free, law_backend(_i));
}
END_TEST

/* What is left of it for steps of any kind: values are finite. */
static void any_scale(const bk_backend *be, const law_use *u)
{
    static const double scales[] = {1e-20, 1e-7, 1e-3, 1, 1e10, 1e30};
    for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
        float x[LAW_N];
        double y[LAW_N];
        law_run r;
        law_random(x, scales[k]);
        law_open(&r, be, u, x, false);
        law_values(&r, r.y, y);
        for (int i = 0; i < LAW_N; i++)
            ck_assert_msg(isfinite(y[i]), "%s on %s: %g became %g", u->what, be->name, (double)x[i], y[i]);
        law_close(&r);
    }
}

START_TEST(values_of_any_scale_stay_finite)
{
    law_for_all(any_scale, law_backend(_i));
}
END_TEST

/* Rows of very different size side by side: no row loses more than the first. */
static void rows_of_any_scale(const bk_backend *be, const law_use *u)
{
    static const double scales[LAW_ROWS] = {1, 1e-3, 1e-5, 1e-7, 1e-20, 1e10};
    float x[LAW_N];
    double y[LAW_N], first = 0;
    law_run r;
    if (!u->weights || u->q->free_steps) return;
    law_random(x, 1);
    for (int i = 0; i < LAW_N; i++) x[i] = (float)((double)x[i % LAW_COLS] * scales[i / LAW_COLS]);
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    for (int row = 0; row < LAW_ROWS; row++) {
        double error = 0, size = 0;
        for (int i = row * LAW_COLS; i < (row + 1) * LAW_COLS; i++) {
            double d = (y[i] - (double)x[i]) / scales[row], v = (double)x[i] / scales[row];
            error += d * d;
            size += v * v;
        }
        error = sqrt(error / size);
        if (row == 0) first = error;
        ck_assert_msg(fabs(error - first) <= 2e-3 * first, "%s on %s: relative error %g in a row of %g, %g in one of 1", u->what, be->name, error, scales[row], first);
    }
    law_close(&r);
}

START_TEST(small_rows_beside_large_ones_lose_no_more)
{
    law_for_all(rows_of_any_scale, law_backend(_i));
}
END_TEST

/* How far a constant v may move: half a step of a symmetric range, next to nothing where the zero point adapts. */
static void check_constant(const bk_backend *be, const law_use *u, double v, double y)
{
    double tol = u->spec.symmetric ? 0.51 * 2 / ((1 << u->spec.bits) - 1) : 1e-6;
    ck_assert_msg(fabs(y - v) <= tol * fabs(v), "%s on %s: %g became %g", u->what, be->name, v, y);
}

/* Constant rows, groups and tensors (case 4): at most half a step of the value's own magnitude; asymmetric ones to the bit nearly. */
static void constants(const bk_backend *be, const law_use *u)
{
    static const float value[] = {9, -9, 65504, -1e-7f, 3e-28f};
    if (u->q->free_steps) return;
    for (size_t k = 0; k < sizeof value / sizeof value[0]; k++) {
        float x[LAW_N];
        double y[LAW_N];
        law_run r;
        for (int i = 0; i < LAW_N; i++) x[i] = value[k];
        law_open(&r, be, u, x, false);
        law_values(&r, r.y, y);
        for (int i = 0; i < LAW_N; i++) check_constant(be, u, (double)value[k], y[i]);
        law_close(&r);
    }
}

START_TEST(constants_are_reproduced)
{
    law_for_all(constants, law_backend(_i));
}
END_TEST

/* Groups of two values that are all 9 or all -9, in one matrix. */
static void constant_pairs(const bk_backend *be, const law_use *any)
{
    law_use u = *any;
    if (u.spec.granularity != BK_PER_GROUP || u.q->free_steps) return;
    u.spec.group = 2;
    float x[LAW_N];
    double y[LAW_N];
    law_run r;
    for (int i = 0; i < LAW_N; i++) x[i] = i / 2 % 2 ? 9 : -9;
    law_open(&r, be, &u, x, false);
    law_values(&r, r.y, y);
    for (int i = 0; i < LAW_N; i++) check_constant(be, &u, (double)x[i], y[i]);
    law_close(&r);
}

START_TEST(constant_groups_of_two_are_reproduced)
{
    law_for_all(constant_pairs, law_backend(_i));
}
END_TEST

/* Tokens of one value each between ordinary ones, with a range of their own. */
static void constant_tokens(const bk_backend *be, const law_use *u)
{
    static const float token[LAW_ROWS] = {9, 0, -9, 65504, 0, -1e-7f};
    float x[LAW_N];
    double y[LAW_N];
    law_run r;
    if (strcmp(u->q->name, "dynamic")) return;
    law_random(x, 1);
    for (int i = 0; i < LAW_N; i++)
        if (token[i / LAW_COLS] != 0) x[i] = token[i / LAW_COLS];
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    for (int i = 0; i < LAW_N; i++)
        if (token[i / LAW_COLS] != 0) check_constant(be, u, (double)x[i], y[i]);
    law_close(&r);
}

START_TEST(constant_tokens_are_reproduced)
{
    law_for_all(constant_tokens, law_backend(_i));
}
END_TEST

/* +m takes the code qmax and -m the code qmin, whatever m; a restricted step reproduces both. */
static void extremes(const bk_backend *be, const law_use *u)
{
    if (!u->spec.symmetric || be->dtype != BK_F32 || u->q->free_steps) return;
    int lo, hi;
    bk_code_range(u->spec.bits, true, &lo, &hi);
    if (u->spec.restricted) lo = -hi;
    for (int k = 0; k < 40; k++) {
        float x[LAW_N], m = (float)fabs(bk_rng_normal(17, BK_RNG_TEST, (uint64_t)k)) + 1e-3f;
        double y[LAW_N], want = 2 * (double)m / (u->spec.restricted ? 2 * hi : (1 << u->spec.bits) - 1);
        law_run r;
        for (int i = 0; i < LAW_N; i++) x[i] = i % 2 ? m : -m;
        law_open(&r, be, u, x, false);
        law_values(&r, r.y, y);
        for (int i = 0; i < LAW_N; i++) {
            double code = y[i] / want;
            ck_assert_msg(fabs(code - (i % 2 ? hi : lo)) < 1e-4, "%s on %s: %.9g has code %g", u->what, be->name, (double)x[i], code);
        }
        law_close(&r);
    }
}

START_TEST(extremes_take_the_outer_codes)
{
    law_for_all(extremes, law_backend(_i));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantizer edges");
    TCase *t = tcase_create("edges");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, zeros_stay_zero, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, the_scale_of_a_row_does_not_matter, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, values_of_any_scale_stay_finite, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, small_rows_beside_large_ones_lose_no_more, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, constants_are_reproduced, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, constant_groups_of_two_are_reproduced, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, constant_tokens_are_reproduced, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, extremes_take_the_outer_codes, 0, LAW_BACKENDS);
    suite_add_tcase(s, t);
    return law_main(s, "the_scale_of_a_row_does_not_matter small_rows_beside_large_ones_lose_no_more constants_are_reproduced "
                       "constant_groups_of_two_are_reproduced extremes_take_the_outer_codes");
}
