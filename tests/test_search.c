/* The grid search of steps: which factors it visits, and what it keeps. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "quant/search.h"
#include "tests/suite.h"

enum { MAX_UNITS = 4, VISITS = 11 };

typedef double (*objective)(float factor, int64_t unit);

typedef struct visit {
    float factor[VISITS][MAX_UNITS];
    int n;
} visit;

static visit search(objective f, int64_t units, float best[MAX_UNITS])
{
    bk_grid g;
    bk_error err = {0};
    visit v = {.n = 0};
    ck_assert_int_eq(bk_grid_create(&g, units, &err), BK_OK);
    for (int n; (n = bk_grid_candidates(&g)) > 0; bk_grid_next_round(&g))
        for (int c = 0; c < n; c++, v.n++) {
            ck_assert_int_lt(v.n, VISITS);
            bk_grid_factors(&g, c, v.factor[v.n]);
            for (int64_t u = 0; u < units; u++) {
                ck_assert(bk_grid_error(&g, c)[u] == 0); /* callers add */
                bk_grid_error(&g, c)[u] += f(v.factor[v.n][u], u);
            }
        }
    for (int64_t u = 0; u < units; u++) best[u] = g.best[u];
    bk_grid_free(&g);
    return v;
}

static const double low_point[MAX_UNITS] = {1, 0.727, 0.56, 0.2};

static double parabola(float f, int64_t unit)
{
    return ((double)f - low_point[unit]) * ((double)f - low_point[unit]);
}

START_TEST(eleven_points_around_the_best)
{
    float best[MAX_UNITS];
    visit v = search(parabola, MAX_UNITS, best);
    static const double want[MAX_UNITS][VISITS] = {
        {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 1.05, 0.95, 1.025, 0.975},
        {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.75, 0.65, 0.775, 0.725},
        {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.65, 0.55, 0.575, 0.525},
        {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.45, 0.35, 0.375, 0.325},
    };
    ck_assert_int_eq(v.n, VISITS);
    for (int u = 0; u < MAX_UNITS; u++)
        for (int i = 0; i < VISITS; i++)
            ck_assert_msg(fabs((double)v.factor[i][u] - want[u][i]) < 1e-6, "unit %d, visit %d: %g, not %g", u, i, (double)v.factor[i][u], want[u][i]);
    ck_assert(best[0] == 1);
    ck_assert(fabs((double)best[1] - 0.725) < 1e-6);
    ck_assert(fabs((double)best[2] - 0.55) < 1e-6);
    ck_assert(fabs((double)best[3] - 0.325) < 1e-6);
}
END_TEST

static double flat(float f, int64_t unit)
{
    (void)f, (void)unit;
    return 3;
}

START_TEST(ties_keep_the_larger_step)
{
    float best[MAX_UNITS];
    search(flat, 1, best);
    ck_assert_msg(best[0] >= 1, "kept %g", (double)best[0]);
}
END_TEST

static double nothing(float f, int64_t unit)
{
    (void)f, (void)unit;
    return 0;
}

START_TEST(without_error_the_step_stays)
{
    float best[MAX_UNITS];
    search(nothing, 1, best);
    ck_assert_msg(best[0] == 1, "kept %g", (double)best[0]);
}
END_TEST

static double two_valleys(float f, int64_t unit)
{
    (void)unit;
    return fabsf(f - 0.9f) < 1e-4f || fabsf(f - 0.5f) < 1e-4f ? 1 : 2;
}

START_TEST(ties_of_separate_valleys_keep_the_larger_step)
{
    float best[MAX_UNITS];
    search(two_valleys, 1, best);
    ck_assert(fabs((double)best[0] - 0.9) < 1e-6);
}
END_TEST

static double broken(float f, int64_t unit)
{
    (void)f;
    return unit == 0 ? NAN : unit == 1 ? INFINITY : unit == 2 ? -INFINITY : NAN;
}

START_TEST(nothing_finite_leaves_the_step)
{
    float best[MAX_UNITS];
    search(broken, MAX_UNITS, best);
    for (int u = 0; u < MAX_UNITS; u++) ck_assert_msg(best[u] == 1, "unit %d got %g", u, (double)best[u]);
}
END_TEST

static double mostly_broken(float f, int64_t unit)
{
    return f > 0.65f && f < 0.95f ? NAN : parabola(f, unit);
}

START_TEST(points_that_are_not_finite_lose)
{
    float best[MAX_UNITS];
    search(mostly_broken, 2, best);
    ck_assert(best[0] == 1);
    ck_assert(fabs((double)best[1] - 0.625) < 1e-6 || fabs((double)best[1] - 0.65) < 1e-6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("search");
    TCase *t = tcase_create("grid");
    tcase_add_test(t, eleven_points_around_the_best);
    tcase_add_test(t, ties_keep_the_larger_step);
    tcase_add_test(t, without_error_the_step_stays);
    tcase_add_test(t, ties_of_separate_valleys_keep_the_larger_step);
    tcase_add_test(t, nothing_finite_leaves_the_step);
    tcase_add_test(t, points_that_are_not_finite_lose);
    suite_add_tcase(s, t);
    return run_suite(s);
}
