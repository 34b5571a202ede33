/* Half precision: every f16, the edges of rounding, and counting of what does not fit. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "io/half.h"
#include "tests/suite.h"

static uint16_t narrow(float x)
{
    uint16_t h;
    bk_f16_from_f32(&h, &x, 1);
    return h;
}

static float widen(uint16_t h)
{
    float x;
    bk_f32_from_f16(&x, &h, 1);
    return x;
}

/* The definition: sign, 5 bits of exponent with bias 15, 10 of fraction. */
static double by_definition(uint16_t h)
{
    int e = h >> 10 & 31, f = h & 1023;
    double v = e ? ldexp(1024 + f, e - 25) : ldexp(f, -24);
    return h >> 15 ? -v : v;
}

START_TEST(every_f16_is_widened_by_its_definition)
{
    for (int h = 0; h < 65536; h++) {
        float x = widen((uint16_t)h);
        int f = h & 1023;
        if ((h >> 10 & 31) < 31) ck_assert_double_eq(x, by_definition((uint16_t)h));
        else ck_assert(f ? isnan(x) : isinf(x));
        ck_assert_int_eq(!!signbit(x), h >> 15);
    }
}
END_TEST

START_TEST(every_f16_survives_the_way_there_and_back)
{
    for (int h = 0; h < 65536; h++) {
        bool nan = (h & 0x7fff) > 0x7c00;
        ck_assert_int_eq(narrow(widen((uint16_t)h)), nan ? h | 0x200 : h);
    }
}
END_TEST

/* Between two neighbours: below the middle down, above it up, on it to the even one. */
START_TEST(rounding_is_to_nearest_half_to_even)
{
    for (int h = 0; h < 0x7bff; h++) {
        float low = widen((uint16_t)h), high = widen((uint16_t)(h + 1)), middle = (low + high) / 2; /* exact in f32 */
        ck_assert_int_eq(narrow(middle), h & 1 ? h + 1 : h);
        ck_assert_int_eq(narrow(nextafterf(middle, 0)), h);
        ck_assert_int_eq(narrow(nextafterf(middle, INFINITY)), h + 1);
        ck_assert_int_eq(narrow(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
}
END_TEST

START_TEST(tiny_values_become_signed_zeros)
{
    ck_assert_int_eq(narrow(0x1p-25f), 0);
    ck_assert_int_eq(narrow(-0x1p-149f), 0x8000);
    ck_assert_int_eq(narrow(nextafterf(0x1p-25f, 1)), 1);
}
END_TEST

START_TEST(what_does_not_fit_is_counted)
{
    enum { N = 20000 };
    static float x[N];
    static uint16_t h[N];
    for (int i = 0; i < N; i++) x[i] = 65504.0f;
    bk_half_report r = bk_f16_from_f32(h, x, N);
    ck_assert_int_eq(r.saturated + r.nonfinite, 0);
    ck_assert_int_eq(r.first_saturated, -1);
    ck_assert_int_eq(r.first_nonfinite, -1);
    x[9001] = 65505.0f, x[9002] = -3e38f, x[12345] = -INFINITY, x[12346] = NAN, x[19999] = INFINITY;
    r = bk_f16_from_f32(h, x, N);
    ck_assert_int_eq(r.saturated, 2);
    ck_assert_int_eq(r.first_saturated, 9001);
    ck_assert_int_eq(r.nonfinite, 3);
    ck_assert_int_eq(r.first_nonfinite, 12345);
    ck_assert_int_eq(h[9001], 0x7bff);
    ck_assert_int_eq(h[9002], 0xfbff);
    ck_assert_int_eq(h[12345], 0xfc00);
    ck_assert_int_eq(h[12346] & 0x7e00, 0x7e00);
    r = bk_f16_from_f32(h, x, 0);
    ck_assert_int_eq(r.first_saturated, -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("half");
    TCase *tc = tcase_create("half");
    tcase_add_test(tc, every_f16_is_widened_by_its_definition);
    tcase_add_test(tc, every_f16_survives_the_way_there_and_back);
    tcase_add_test(tc, rounding_is_to_nearest_half_to_even);
    tcase_add_test(tc, tiny_values_become_signed_zeros);
    tcase_add_test(tc, what_does_not_fit_is_counted);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
