/* Hadamard matrices, the fields below them and the fast transforms. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/galois.h"
#include "quant/hadamard.h"
#include "tests/h5_golden.h"
#include "tests/suite.h"

static bk_hadamard_plan *plan(int64_t n)
{
    bk_hadamard_plan *p;
    bk_error err = {0};
    ck_assert_msg(bk_hadamard_create(n, &p, &err) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(p->blocks * p->base * p->pow2, n);
    return p;
}

static double noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 20) / (double)(1ll << 43) - 1;
}

/* ---- fields ---- */

START_TEST(fields_reject_what_is_no_power_of_an_odd_prime)
{
    static const int64_t bad[] = {-7, 0, 1, 2, 4, 15, 21, 45, 81, 243, 1001};
    bk_galois f;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert(!bk_galois_init(&f, bad[i]));
}
END_TEST

START_TEST(field_axioms_hold)
{
    static const int64_t order[] = {3, 5, 9, 25, 27, 43, 49, 121, 125, 343};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        bk_galois f;
        ck_assert(bk_galois_init(&f, order[k]));
        uint64_t s = 5;
        for (int t = 0; t < 500; t++) {
            int64_t a = (int64_t)(fabs(noise(&s)) * 1e6) % f.q, b = (int64_t)(fabs(noise(&s)) * 1e6) % f.q;
            int64_t c = (int64_t)(fabs(noise(&s)) * 1e6) % f.q;
            ck_assert_int_eq(bk_galois_mul(&f, a, b), bk_galois_mul(&f, b, a));
            ck_assert_int_eq(bk_galois_mul(&f, a, bk_galois_mul(&f, b, c)), bk_galois_mul(&f, bk_galois_mul(&f, a, b), c));
            ck_assert_int_eq(bk_galois_mul(&f, a, bk_galois_sub(&f, b, c)),
                             bk_galois_sub(&f, bk_galois_mul(&f, a, b), bk_galois_mul(&f, a, c)));
            ck_assert_int_eq(bk_galois_mul(&f, a, 1), a);
            ck_assert(a == 0 || b == 0 || bk_galois_mul(&f, a, b) != 0);
        }
    }
}
END_TEST

START_TEST(half_of_the_nonzero_elements_are_squares)
{
    static const int64_t order[] = {11, 27, 49, 73, 343, 461, 683};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        bk_galois f;
        int8_t chi[1024];
        ck_assert(bk_galois_init(&f, order[k]));
        bk_galois_character(&f, chi);
        int64_t squares = 0;
        for (int64_t e = 0; e < f.q; e++) squares += chi[e] == 1;
        ck_assert_int_eq(squares, (f.q - 1) / 2);
        ck_assert_int_eq(chi[0], 0);
    }
}
END_TEST

START_TEST(moduli_match_golden)
{
    bk_golden *g = bk_golden_open("hadamard.h5");
    int seen = 0;
    for (char **o = bk_golden_members(g, "/base"); *o; o++) {
        if (!bk_golden_has(g, "/base/%s/modulus", *o)) continue;
        bk_galois f;
        ck_assert(bk_galois_init(&f, bk_golden_attr_i64(g, "q", "/base/%s", *o)));
        const int64_t *modulus = bk_golden_i64(g, "/base/%s/modulus", *o);
        for (int64_t i = 0; i <= f.k; i++) ck_assert_int_eq(f.modulus[i], modulus[i]);
        seen++;
    }
    ck_assert_int_eq(seen, 3);
    bk_golden_close(g);
}
END_TEST

/* ---- base matrices ---- */

/* The dot product of two rows of signs is order - 2 * (entries that differ): rows are packed into bits to count those. */
static void check_hadamard(const bk_hadamard_plan *p)
{
    enum { WORDS = BK_HADAMARD_MAX_BASE / 64 };
    uint64_t(*row)[WORDS] = calloc((size_t)p->base, sizeof *row);
    ck_assert_ptr_nonnull(row);
    int64_t not_signs = 0, not_orthogonal = 0;
    for (int64_t i = 0; i < p->base; i++) {
        for (int64_t k = 0; k < p->base; k++) {
            float h = p->h[i * p->base + k];
            not_signs += h != 1 && h != -1;
            row[i][k / 64] |= (uint64_t)(h < 0) << k % 64;
        }
        for (int64_t j = 0; j < i; j++) {
            int64_t differ = 0;
            for (int w = 0; w < WORDS; w++) differ += __builtin_popcountll(row[i][w] ^ row[j][w]);
            not_orthogonal += 2 * differ != p->base;
        }
    }
    free(row);
    ck_assert_msg(not_signs == 0, "%s: %lld entries are not +-1", p->note, (long long)not_signs);
    ck_assert_msg(not_orthogonal == 0, "%s: %lld pairs of rows are not orthogonal", p->note, (long long)not_orthogonal);
}

static const struct {
    int64_t base;
    bk_hadamard_kind kind;
} bases[] = {{12, BK_HADAMARD_PALEY1},  {20, BK_HADAMARD_PALEY1},      {28, BK_HADAMARD_PALEY1},  {36, BK_HADAMARD_PALEY2},
             {44, BK_HADAMARD_PALEY1},  {60, BK_HADAMARD_PALEY1},      {68, BK_HADAMARD_PALEY1},  {76, BK_HADAMARD_PALEY2},
             {100, BK_HADAMARD_PALEY2}, {108, BK_HADAMARD_PALEY1},     {140, BK_HADAMARD_PALEY1}, {148, BK_HADAMARD_PALEY2},
             {344, BK_HADAMARD_PALEY1}, {172, BK_HADAMARD_WILLIAMSON},
             {684, BK_HADAMARD_PALEY1}, {924, BK_HADAMARD_PALEY2}};

START_TEST(base_matrices_are_hadamard)
{
    bk_hadamard_plan *p = plan(bases[_i].base);
    ck_assert_int_eq(p->base, bases[_i].base);
    ck_assert_int_eq(p->kind, bases[_i].kind);
    check_hadamard(p);
    bk_hadamard_free(p);
}
END_TEST

START_TEST(base_matrices_match_golden)
{
    bk_golden *g = bk_golden_open("hadamard.h5");
    static const char *const kind[] = {"sylvester", "paley1", "paley2", "williamson"};
    for (char **o = bk_golden_members(g, "/base"); *o; o++) {
        bk_hadamard_plan *p = plan(bk_golden_attr_i64(g, "order", "/base/%s", *o));
        ck_assert_str_eq(kind[p->kind], bk_golden_attr_str(g, "construction", "/base/%s", *o));
        const int8_t *h = bk_golden_i8(g, "/base/%s/H", *o);
        int64_t wrong = 0;
        for (int64_t i = 0; i < p->base * p->base; i++) wrong += p->h[i] != (float)h[i];
        ck_assert_int_eq(wrong, 0);
        bk_hadamard_free(p);
    }
    bk_golden_close(g);
}
END_TEST

/* ---- which construction ---- */

START_TEST(sizes_of_real_models_get_the_expected_base)
{
    static const int64_t want[][3] = { /* order, base, blocks */
        {1, 1, 1},        {2, 1, 1},         {64, 1, 1},        {4096, 1, 1},      {96, 12, 1},       {112, 28, 1},
        {192, 12, 1},     {288, 36, 1},      {304, 76, 1},      {352, 44, 1},      {576, 36, 1},      {896, 28, 1},
        {960, 60, 1},     {1376, 344, 1},    {1536, 12, 1},     {2560, 20, 1},     {4864, 76, 1},     {8960, 140, 1},
        {9728, 76, 1},    {11008, 344, 1},   {13824, 108, 1},   {14336, 28, 1},    {17408, 68, 1},    {18944, 148, 1},
        {25600, 100, 1},  {10944, 684, 1},   {29568, 924, 1},   {172, 172, 1},     {344, 344, 1},     {13696, 1, 107},
        {90, 1, 45},      {428, 1, 107},     {7, 1, 7},         {45, 1, 45},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        bk_hadamard_plan *p = plan(want[i][0]);
        ck_assert_msg(p->base == want[i][1] && p->blocks == want[i][2], "%s", p->note);
        bk_hadamard_free(p);
    }
}
END_TEST

START_TEST(every_small_order_has_a_plan)
{
    for (int64_t n = 1; n <= 400; n++) bk_hadamard_free(plan(n));
}
END_TEST

START_TEST(note_tells_the_construction)
{
    bk_hadamard_plan *p = plan(576), *q = plan(90);
    ck_assert_str_eq(p->note, "576: 36 x 16, base Paley II over GF(17)");
    ck_assert_ptr_nonnull(strstr(q->note, "block-diagonal"));
    ck_assert_ptr_nonnull(strstr(q->note, "45 blocks"));
    bk_hadamard_free(p);
    bk_hadamard_free(q);
}
END_TEST

START_TEST(order_out_of_range_is_refused)
{
    static const int64_t bad[] = {0, -4, BK_HADAMARD_MAX_ORDER + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_hadamard_plan *p;
        bk_error err = {0};
        ck_assert_int_eq(bk_hadamard_create(bad[i], &p, &err), BK_EINVAL);
        ck_assert_ptr_null(p);
        ck_assert_ptr_nonnull(strstr(err.msg, "order"));
    }
}
END_TEST

/* ---- transforms ---- */

/* M as a matrix, from its definition: entry (block, r, a), (block, c, b) = H[r, c] (-1)^popcount(a & b) scale. */
static double entry(const bk_hadamard_plan *p, int64_t row, int64_t col)
{
    int64_t size = p->base * p->pow2;
    if (row / size != col / size) return 0;
    row %= size;
    col %= size;
    int sign = __builtin_popcountll((unsigned long long)(row % p->pow2 & col % p->pow2)) % 2 ? -1 : 1;
    double h = p->base == 1 ? 1 : (double)p->h[row / p->pow2 * p->base + col / p->pow2];
    return h * sign * p->scale;
}

START_TEST(fast_transform_equals_the_matrix)
{
    static const int64_t order[] = {1, 2, 16, 12, 24, 56, 90, 172, 288, 428};
    int64_t n = order[_i];
    bk_hadamard_plan *p = plan(n);
    double x[428], y[428], z[428];
    int8_t s[428];
    uint64_t state = 11;
    for (int64_t i = 0; i < n; i++) {
        x[i] = y[i] = z[i] = noise(&state);
        s[i] = noise(&state) < 0 ? -1 : 1;
    }
    ck_assert_int_eq(bk_hadamard_apply_f64(p, s, y, 1, n, 1, NULL), BK_OK);
    ck_assert_int_eq(bk_hadamard_invert_f64(p, s, z, 1, n, 1, NULL), BK_OK);
    for (int64_t i = 0; i < n; i++) {
        double forward = 0, backward = 0;
        for (int64_t j = 0; j < n; j++) {
            forward += entry(p, i, j) * s[j] * x[j];
            backward += s[i] * entry(p, j, i) * x[j];
        }
        ck_assert_double_eq_tol(y[i], forward, 1e-13);
        ck_assert_double_eq_tol(z[i], backward, 1e-13);
    }
    bk_hadamard_free(p);
}
END_TEST

START_TEST(transforms_match_golden)
{
    bk_golden *g = bk_golden_open("hadamard.h5");
    for (char **o = bk_golden_members(g, "/transform"); *o; o++) {
        bk_hadamard_plan *p = plan(bk_golden_attr_i64(g, "n", "/transform/%s", *o));
        ck_assert_int_eq(p->base, bk_golden_attr_i64(g, "base", "/transform/%s", *o));
        ck_assert_int_eq(p->pow2, bk_golden_attr_i64(g, "pow2", "/transform/%s", *o));
        int64_t n = p->n;
        const int32_t *signs = bk_golden_i32(g, "/transform/%s/signs", *o);
        int8_t s[2048];
        for (int64_t i = 0; i < n; i++) s[i] = (int8_t)signs[i];
        double *y = bk_golden_f64(g, "/transform/%s/x", *o), *t = bk_golden_f64(g, "/transform/%s/x", *o);
        double *ys = bk_golden_f64(g, "/transform/%s/x", *o);
        float *f = bk_golden_f32(g, "/transform/%s/x", *o);
        ck_assert_int_eq(bk_hadamard_apply_f64(p, NULL, y, 3, n, 1, NULL), BK_OK);
        ck_assert_int_eq(bk_hadamard_invert_f64(p, NULL, t, 3, n, 1, NULL), BK_OK);
        ck_assert_int_eq(bk_hadamard_apply_f64(p, s, ys, 3, n, 1, NULL), BK_OK);
        ck_assert_int_eq(bk_hadamard_apply(p, s, f, 3, n, 1, NULL), BK_OK);
        ck_assert_double_lt(bk_golden_error(y, bk_golden_f64(g, "/transform/%s/y", *o), 3 * n, n), 1e-10);
        ck_assert_double_lt(bk_golden_error(t, bk_golden_f64(g, "/transform/%s/y_transposed", *o), 3 * n, n), 1e-10);
        ck_assert_double_lt(bk_golden_error(ys, bk_golden_f64(g, "/transform/%s/y_signed", *o), 3 * n, n), 1e-10);
        ck_assert_double_lt(bk_golden_error_f32(f, bk_golden_f64(g, "/transform/%s/y_signed", *o), 3 * n, n), 5e-7);
        if (bk_golden_has(g, "/transform/%s/M", *o)) {
            const double *m = bk_golden_f64(g, "/transform/%s/M", *o);
            double worst = 0;
            for (int64_t i = 0; i < n * n; i++) worst = fmax(worst, fabs(entry(p, i / n, i % n) - m[i]));
            ck_assert_double_lt(worst, 1e-14);
        }
        bk_hadamard_free(p);
    }
    bk_golden_close(g);
}
END_TEST

/* Columns of a matrix, more of them than one panel takes, transformed in place give what single vectors give; the rest stays untouched. */
START_TEST(strided_vectors_match_single_vectors)
{
    enum { N = 24, COUNT = 19, WIDTH = 21 };
    bk_hadamard_plan *p = plan(N);
    float w[N * WIDTH], before[N * WIDTH];
    uint64_t state = 3;
    for (int i = 0; i < N * WIDTH; i++) w[i] = before[i] = (float)noise(&state);
    ck_assert_int_eq(bk_hadamard_apply(p, NULL, w, COUNT, 1, WIDTH, NULL), BK_OK);
    for (int c = 0; c < WIDTH; c++) {
        float one[N];
        for (int i = 0; i < N; i++) one[i] = before[i * WIDTH + c];
        if (c < COUNT) ck_assert_int_eq(bk_hadamard_apply(p, NULL, one, 1, N, 1, NULL), BK_OK);
        for (int i = 0; i < N; i++) ck_assert(w[i * WIDTH + c] == one[i]);
    }
    bk_hadamard_free(p);
}
END_TEST

START_TEST(invert_undoes_apply)
{
    static const int64_t order[] = {13696, 10944, 1536, 576, 90};
    int64_t n = order[_i];
    bk_hadamard_plan *p = plan(n);
    double *x = malloc((size_t)n * sizeof *x), norm = 0;
    int8_t *s = malloc((size_t)n);
    ck_assert(x && s);
    uint64_t state = 17;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (double)(i % 7 - 3);
        s[i] = noise(&state) < 0 ? -1 : 1;
        norm += x[i] * x[i];
    }
    ck_assert_int_eq(bk_hadamard_apply_f64(p, s, x, 1, n, 1, NULL), BK_OK);
    for (int64_t i = 0; i < n; i++) norm -= x[i] * x[i];
    ck_assert_double_eq_tol(norm / (double)n, 0, 1e-12);
    ck_assert_int_eq(bk_hadamard_invert_f64(p, s, x, 1, n, 1, NULL), BK_OK);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs(x[i] - (double)(i % 7 - 3)));
    ck_assert_double_lt(worst, 1e-12);
    free(x);
    free(s);
    bk_hadamard_free(p);
}
END_TEST

/* ---- blocks of a chosen order ---- */

static const int64_t cut[][2] = {{16, 16}, {96, 16}, {1536, 128}, {24, 12}, {60, 20}, {172, 172}, {344, 172}};

START_TEST(blocks_are_orthogonal_and_begin_with_ones)
{
    int64_t n = cut[_i][0], order = cut[_i][1];
    bk_error err = {0};
    bk_hadamard_plan *p;
    ck_assert_msg(bk_hadamard_create_blocks(n, order, &p, &err) == BK_OK, "%s", err.msg);
    ck_assert(p->n == n && p->blocks == n / order && p->base * p->pow2 == order && p->scale == 1 / sqrt((double)order));
    double *m = calloc((size_t)(n * n), sizeof *m); /* rows are M e_i */
    for (int64_t i = 0; i < n; i++) m[i * n + i] = 1;
    ck_assert_msg(bk_hadamard_apply_f64(p, NULL, m, n, n, 1, &err) == BK_OK, "%s", err.msg);
    for (int64_t i = 0; i < order; i++) {
        ck_assert(m[i] == 1 / sqrt((double)order));
        for (int64_t j = 0; j <= i; j++) {
            double dot = 0;
            for (int64_t k = 0; k < order; k++) dot += m[i * n + k] * m[j * n + k];
            ck_assert_double_eq_tol(dot, i == j, 1e-12);
        }
        for (int64_t k = order; k < n; k++) ck_assert(m[i * n + k] == 0);
    }
    free(m);
    bk_hadamard_free(p);
}
END_TEST

START_TEST(blocks_that_cannot_be_are_refused)
{
    static const int64_t bad[][2] = {{96, 36}, {96, 0}, {96, -16}, {96, 6}, {90, 90}, {0, 1}, {16, 32}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_error err = {0};
        bk_hadamard_plan *p;
        ck_assert_int_eq(bk_hadamard_create_blocks(bad[i][0], bad[i][1], &p, &err), BK_EINVAL);
        ck_assert_ptr_null(p);
        ck_assert_int_gt(strlen(err.msg), 10);
    }
}
END_TEST

START_TEST(orders_that_exist)
{
    static const int64_t yes[] = {1, 2, 4, 12, 20, 28, 36, 128, 172, 344, 1536}, no[] = {0, -4, 3, 6, 90, 2 * 172 + 1, BK_HADAMARD_MAX_ORDER * 2};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) ck_assert_msg(bk_hadamard_exists(yes[i]), "%lld", (long long)yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) ck_assert_msg(!bk_hadamard_exists(no[i]), "%lld", (long long)no[i]);
}
END_TEST

START_TEST(sizes_of_groups)
{
    static const int64_t size[][2] = {{4096, 128}, {1536, 128}, {896, 128}, {576, 64}, {960, 64}, {2560, 128}, {288, 32}, {1376, 32}, {64, 64},
                                      {32, 32},    {172, 172},  {144, 144}, {48, 48},  {100, 100}, {240, 120}, {90, 90},   {13, 13}, {1, 1}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        ck_assert_msg(bk_group_size(size[i][0]) == size[i][1], "%lld: %lld, want %lld", (long long)size[i][0], (long long)bk_group_size(size[i][0]),
                      (long long)size[i][1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hadamard");
    TCase *tc = tcase_create("hadamard");
    tcase_add_test(tc, fields_reject_what_is_no_power_of_an_odd_prime);
    tcase_add_test(tc, field_axioms_hold);
    tcase_add_test(tc, half_of_the_nonzero_elements_are_squares);
    tcase_add_test(tc, moduli_match_golden);
    tcase_add_loop_test(tc, base_matrices_are_hadamard, 0, sizeof bases / sizeof *bases);
    tcase_add_test(tc, base_matrices_match_golden);
    tcase_add_test(tc, sizes_of_real_models_get_the_expected_base);
    tcase_add_test(tc, every_small_order_has_a_plan);
    tcase_add_test(tc, note_tells_the_construction);
    tcase_add_test(tc, order_out_of_range_is_refused);
    tcase_add_loop_test(tc, fast_transform_equals_the_matrix, 0, 10);
    tcase_add_test(tc, transforms_match_golden);
    tcase_add_test(tc, strided_vectors_match_single_vectors);
    tcase_add_loop_test(tc, invert_undoes_apply, 0, 5);
    tcase_add_loop_test(tc, blocks_are_orthogonal_and_begin_with_ones, 0, sizeof cut / sizeof *cut);
    tcase_add_test(tc, blocks_that_cannot_be_are_refused);
    tcase_add_test(tc, orders_that_exist);
    tcase_add_test(tc, sizes_of_groups);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
