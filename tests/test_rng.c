/* Random numbers that depend on (seed, stream, counter) alone. */
#include <check.h>
#include <math.h>

#include "autograd/rng.h"
#include "tests/suite.h"

/* Changing the generator would change every rotation, sample and model that a seed stands for. */
START_TEST(the_numbers_stay_what_they_are)
{
    ck_assert(bk_rng_u64(0, 1, 0) == 0x44e5b98100c67fb0u);
    ck_assert(bk_rng_u64(2, BK_RNG_SHUFFLE, 12345) == 0x6f8fdde79d179feu);
}
END_TEST

START_TEST(each_argument_matters)
{
    uint64_t x = bk_rng_u64(7, 3, 5);
    ck_assert(x == bk_rng_u64(7, 3, 5));
    ck_assert(x != bk_rng_u64(8, 3, 5) && x != bk_rng_u64(7, 4, 5) && x != bk_rng_u64(7, 3, 6));
    /* neither the order nor the sum of seed, stream and counter decides */
    ck_assert(x != bk_rng_u64(3, 7, 5) && x != bk_rng_u64(7, 5, 3) && x != bk_rng_u64(6, 4, 5));
}
END_TEST

enum { N = 200000 };

START_TEST(uniform_numbers_are_uniform)
{
    double mean = 0, square = 0, follow = 0, before = 0.5;
    for (uint64_t i = 0; i < N; i++) {
        double u = bk_rng_uniform(1, BK_RNG_TEST, i);
        ck_assert(u >= 0 && u < 1);
        mean += u / N;
        square += u * u / N;
        follow += (u - 0.5) * (before - 0.5) / N;
        before = u;
    }
    ck_assert(fabs(mean - 0.5) < 0.003 && fabs(square - 1.0 / 3) < 0.003 && fabs(follow) < 0.001);
}
END_TEST

START_TEST(normal_numbers_are_normal)
{
    double moment[5] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double x = bk_rng_normal(1, BK_RNG_TEST, i);
        ck_assert(isfinite(x));
        for (int k = 1; k < 5; k++) moment[k] += pow(x, k) / N;
    }
    ck_assert(fabs(moment[1]) < 0.01 && fabs(moment[2] - 1) < 0.02 && fabs(moment[3]) < 0.05 && fabs(moment[4] - 3) < 0.1);
}
END_TEST

START_TEST(numbers_below_a_bound_fill_it)
{
    int64_t seen[7] = {0};
    for (uint64_t i = 0; i < 70000; i++) {
        uint64_t x = bk_rng_below(1, BK_RNG_TEST, i, 7);
        ck_assert(x < 7);
        seen[x]++;
    }
    for (int i = 0; i < 7; i++) ck_assert_msg(seen[i] > 9500 && seen[i] < 10500, "%d: %d", i, (int)seen[i]);
    ck_assert(bk_rng_below(1, 2, 3, 1) == 0);
    ck_assert(bk_rng_below(1, 2, 3, UINT64_MAX) < UINT64_MAX);
}
END_TEST

START_TEST(bits_are_balanced_over_counters)
{
    for (int bit = 0; bit < 64; bit++) {
        int ones = 0;
        for (uint64_t i = 0; i < 4096; i++) ones += bk_rng_u64(3, BK_RNG_R1, i) >> bit & 1;
        ck_assert_msg(ones > 1850 && ones < 2250, "bit %d: %d of 4096", bit, ones);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rng");
    TCase *t = tcase_create("numbers");
    tcase_add_test(t, the_numbers_stay_what_they_are);
    tcase_add_test(t, each_argument_matters);
    tcase_add_test(t, uniform_numbers_are_uniform);
    tcase_add_test(t, normal_numbers_are_normal);
    tcase_add_test(t, numbers_below_a_bound_fill_it);
    tcase_add_test(t, bits_are_balanced_over_counters);
    suite_add_tcase(s, t);
    return run_suite(s);
}
