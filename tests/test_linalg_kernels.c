/* The f64 slots of linear algebra, on ref and on cpu, against closed forms and what defines their results; odd orders, small and large. */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backend.h"
#include "autograd/rng.h"
#include "tests/suite.h"

static const int64_t orders[] = {1, 2, 3, 31, 33, 64, 97, 260, 545};
enum { ORDERS = sizeof orders / sizeof *orders, TILED = ORDERS - 1 };

enum { BACKENDS = 3 };
static const bk_backend *backend_of(int i) { return i == 0 ? bk_backend_cpu() : bk_backend_ref(i == 1 ? BK_F32 : BK_F64); }

/* Loop index of a test over backends and orders; ref is slow, so it leaves the largest out. */
enum { CASES = BACKENDS * ORDERS };
static const bk_backend *be;
static int64_t n;
static bool skip;

static void pick(int i)
{
    be = backend_of(i / ORDERS);
    n = orders[i % ORDERS];
    skip = i / ORDERS > 0 && n > 100;
}

static void *taken[64];
static int n_taken;

static double *zeros(int64_t count)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    ck_assert_int_lt(n_taken, 64);
    return taken[n_taken++] = x;
}

static void give_back(void)
{
    while (n_taken) free(taken[--n_taken]);
}

static double *normals(int64_t count, uint64_t seed)
{
    double *x = zeros(count);
    for (int64_t i = 0; i < count; i++) x[i] = bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    return x;
}

static double *copy_of(const double *x, int64_t count) { return memcpy(zeros(count), x, sizeof *x * (size_t)count); }

/* c[m,n] = a[m,k] b, b[k,n] or with tb b[n,k]^T: plain loops, no kernel of brick. */
static double *times(const double *a, const double *b, int64_t order, bool ta, bool tb)
{
    double *c = zeros(order * order);
    for (int64_t i = 0; i < order; i++)
        for (int64_t k = 0; k < order; k++)
            for (int64_t j = 0; j < order; j++)
                c[i * order + j] += a[ta ? k * order + i : i * order + k] * b[tb ? j * order + k : k * order + j];
    return c;
}

static double largest(const double *x, int64_t count)
{
    double m = 0;
    for (int64_t i = 0; i < count; i++) m = isfinite(x[i]) ? fmax(m, fabs(x[i])) : INFINITY;
    return m;
}

static double difference(const double *x, const double *y, int64_t count)
{
    double m = 0;
    for (int64_t i = 0; i < count; i++) m = isfinite(x[i]) ? fmax(m, fabs(x[i] - y[i])) : INFINITY;
    return m;
}

static double *identity(int64_t order)
{
    double *x = zeros(order * order);
    for (int64_t i = 0; i < order; i++) x[i * order + i] = 1;
    return x;
}

#define RUN(slot, ...)                                                                       \
    __extension__({                                                                          \
        bk_##slot##_args run_args = __VA_ARGS__;                                             \
        size_t run_bytes = be->work ? be->work(BK_SLOT_##slot, &run_args) : 0;               \
        bk_work run_work = {aligned_alloc(64, (run_bytes + 127) / 64 * 64), run_bytes};      \
        bk_status run_status = be->k.slot(&run_args, &run_work);                             \
        free(run_work.base);                                                                 \
        run_status;                                                                          \
    })
#define OK(...) ck_assert_int_eq(__VA_ARGS__, BK_OK)

/* A well-conditioned upper triangle; below it zeros. */
static double *upper(uint64_t seed)
{
    double *r = normals(n * n, seed);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) r[i * n + j] = i == j ? 1 + fabs(r[i * n + j]) : 0;
    for (int64_t i = 0; i < n * n; i++) r[i] *= i % (n + 1) ? 1 / sqrt((double)n) : 1;
    return r;
}

static double *upper_part(const double *m)
{
    double *r = zeros(n * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++) r[i * n + j] = m[i * n + j];
    return r;
}

static void lower_part_is_kept(const double *before, const double *after)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) ck_assert_msg(before[i * n + j] == after[i * n + j], "(%d, %d) has changed", (int)i, (int)j);
}

static double *diagonal(const double *m)
{
    double *d = zeros(n);
    for (int64_t i = 0; i < n; i++) d[i] = m[i * (n + 1)];
    return d;
}

START_TEST(cholesky_gives_the_triangle_back)
{
    pick(_i);
    if (skip) return;
    double *r = upper(1), *h = times(r, r, n, false, true), *before = copy_of(h, n * n), bad = 7;
    OK(RUN(cholesky, {n, 0, diagonal(h), NULL, h, &bad}));
    ck_assert(bad == -1);
    ck_assert_double_lt(difference(upper_part(h), r, n * n), 1e-12 * largest(r, n * n));
    lower_part_is_kept(before, h);
}
END_TEST

/* The order and the shift, and a second factorization from what the first has left */
START_TEST(cholesky_permutes_and_shifts)
{
    pick(_i);
    if (skip) return;
    double *r = upper(2), *h = times(r, r, n, false, true), *whole = copy_of(h, n * n), *diag = diagonal(h), bad;
    int32_t *order = (int32_t *)(void *)zeros(n);
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)((i * 2 + 1) % n); /* all orders but 2 and 64 and 260 are odd */
    for (int64_t i = 0; i < n && n % 2 == 0; i++) order[i] = (int32_t)(n - 1 - i);
    for (double shift = 0.25; shift < 10; shift *= 10) {
        double *want = zeros(n * n);
        for (int64_t i = 0; i < n * n; i++) want[i] = whole[order[i / n] * n + order[i % n]] + (i / n == i % n ? shift : 0);
        OK(RUN(cholesky, {n, shift, diag, order, h, &bad}));
        double *root = upper_part(h);
        ck_assert_double_lt(difference(times(root, root, n, false, true), want, n * n), 1e-13 * largest(want, n * n) * (double)(n + 8));
        ck_assert(bad == -1);
    }
}
END_TEST

START_TEST(cholesky_names_the_first_bad_pivot)
{
    pick(_i);
    if (skip) return;
    double *h = identity(n), *diag = diagonal(h), bad = -1;
    diag[n / 2] = -1;
    OK(RUN(cholesky, {n, 0, diag, NULL, h, &bad}));
    ck_assert_double_eq(bad, (double)(n / 2));
    diag[n / 2] = NAN;
    OK(RUN(cholesky, {n, 0, diag, NULL, h, &bad}));
    ck_assert_double_eq(bad, (double)(n / 2));
    OK(RUN(cholesky, {n, 0, identity(n), NULL, h, &bad})); /* only the first n of it are read: 1, 0, 0 ... */
    ck_assert_double_eq(bad, n > 1 ? (double)(n - 1) : -1);
}
END_TEST

/* Condition 1e12: R R^T is H to rounding all the same. */
START_TEST(cholesky_of_a_nearly_singular_matrix)
{
    pick(_i);
    if (skip) return;
    double *h = zeros(n * n), bad;
    for (int64_t i = 0; i < n * n; i++) h[i] = 1 + (i / n == i % n ? 1e-12 * (double)n : 0);
    double *want = copy_of(h, n * n);
    OK(RUN(cholesky, {n, 0, diagonal(h), NULL, h, &bad}));
    ck_assert(bad == -1);
    double *r = upper_part(h);
    ck_assert_double_lt(difference(times(r, r, n, false, true), want, n * n), 1e-15 * (double)(n + 8));
}
END_TEST

START_TEST(trtri_inverts_the_upper_triangle)
{
    pick(_i);
    if (skip) return;
    double *r = upper(3), *u = copy_of(r, n * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) u[i * n + j] = NAN; /* neither read nor changed */
    OK(RUN(trtri, {n, u}));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) ck_assert(isnan(u[i * n + j]));
    ck_assert_double_lt(difference(times(upper_part(u), r, n, false, false), identity(n), n * n), 1e-11);
}
END_TEST

/* H^-1 = U^T U */
START_TEST(inverse_of_a_gram_matrix)
{
    pick(_i);
    if (skip) return;
    double *r = upper(4), *h = times(r, r, n, false, true), *whole = copy_of(h, n * n), bad;
    OK(RUN(cholesky, {n, 0, diagonal(h), NULL, h, &bad}));
    OK(RUN(trtri, {n, h}));
    double *u = upper_part(h), *inverse = times(u, u, n, true, false);
    ck_assert_double_lt(difference(times(inverse, whole, n, false, false), identity(n), n * n), 1e-10);
}
END_TEST

START_TEST(gram_adds_and_is_symmetric)
{
    pick(_i);
    if (skip) return;
    int64_t rows = n == 33 ? 1100 : 7;
    double *x = normals(rows * n, 5), *h = zeros(n * n), *want = zeros(n * n);
    float *narrow = (float *)(void *)zeros(rows * n);
    for (int64_t i = 0; i < rows * n; i++) x[i] = narrow[i] = (float)x[i];
    for (int64_t i = 0; i < n * n; i++) want[i] = h[i] = (double)(i / n + i % n);
    for (int64_t i = 0; i < n * n; i++)
        for (int64_t r = 0; r < rows; r++) want[i] += 0.5 * x[r * n + i / n] * x[r * n + i % n];
    OK(RUN(gram, {rows, n, 0.5, be->dtype == BK_F32 ? (void *)narrow : (void *)x, h}));
    ck_assert_double_lt(difference(h, want, n * n), 1e-12 * largest(want, n * n));
    for (int64_t i = 0; i < n * n; i++) ck_assert(h[i] == h[i % n * n + i / n]);
}
END_TEST

START_TEST(gemm_f64_in_all_orders)
{
    pick(_i);
    if (skip) return;
    double *a = normals(n * n, 6), *b = normals(n * n, 7);
    for (int k = 0; k < 8; k++) {
        bool ta = k & 1, tb = k >> 1 & 1, beta = k >> 2 & 1;
        double *want = times(a, b, n, ta, tb), *c = zeros(n * n);
        for (int64_t i = 0; i < n * n; i++) c[i] = (double)i, want[i] += beta ? (double)i : 0;
        OK(RUN(gemm_f64, {n, n, n, ta, tb, a, b, c, n, n, n, beta}));
        ck_assert_double_lt(difference(c, want, n * n), 1e-12 * largest(want, n * n));
    }
}
END_TEST

/* A V = V D, V^T V = 1, values descending, signs as promised. */
static void is_decomposed(const double *m, const double *values, const double *v, double tolerance)
{
    double *scaled = copy_of(v, n * n);
    for (int64_t i = 0; i < n * n; i++) scaled[i] *= values[i % n];
    ck_assert_double_lt(difference(times(m, v, n, false, false), scaled, n * n), tolerance * (largest(m, n * n) + 1e-300));
    ck_assert_double_lt(difference(times(v, v, n, true, false), identity(n), n * n), tolerance);
    for (int64_t i = 1; i < n; i++) ck_assert(values[i - 1] >= values[i]);
    for (int64_t c = 0; c < n; c++) {
        int64_t top = 0;
        for (int64_t i = 1; i < n; i++)
            if (fabs(v[i * n + c]) > fabs(v[top * n + c]) * (1 + 1e-9)) top = i;
        ck_assert_msg(v[top * n + c] > 0, "column %d points the other way", (int)c);
    }
}

START_TEST(eigh_of_random_matrices)
{
    pick(_i);
    if (skip) return;
    double *x = normals(n * n, 8), *m = zeros(n * n), *values = zeros(n), *v = zeros(n * n);
    for (int64_t i = 0; i < n * n; i++) m[i] = x[i] + x[i % n * n + i / n];
    OK(RUN(eigh, {n, m, values, v}));
    is_decomposed(m, values, v, 1e-13 * (double)(n + 8));
}
END_TEST

/* -1, 2, -1 along the diagonal has the values 2 - 2 cos(k pi / (n + 1)). */
START_TEST(eigh_of_the_second_difference)
{
    pick(_i);
    if (skip) return;
    double *m = zeros(n * n), *values = zeros(n), *v = zeros(n * n), pi = acos(-1);
    for (int64_t i = 0; i < n * n; i++) m[i] = i / n == i % n ? 2 : llabs(i / n - i % n) == 1 ? -1 : 0;
    OK(RUN(eigh, {n, m, values, v}));
    is_decomposed(m, values, v, 1e-13 * (double)(n + 8));
    for (int64_t k = 0; k < n; k++)
        ck_assert_double_eq_tol(values[k], 2 - 2 * cos((double)(n - k) * pi / (double)(n + 1)), 1e-13 * (double)(n + 8));
}
END_TEST

/* Rank one: all but one value are 0, and the vectors of 0 are orthonormal all the same. */
START_TEST(eigh_of_rank_one)
{
    pick(_i);
    if (skip) return;
    double *m = zeros(n * n), *values = zeros(n), *v = zeros(n * n);
    for (int64_t i = 0; i < n * n; i++) m[i] = (double)((1 + i / n) * (1 + i % n));
    OK(RUN(eigh, {n, m, values, v}));
    is_decomposed(m, values, v, 1e-13 * (double)(n + 8));
    ck_assert_double_lt(n > 1 ? fabs(values[1]) : 0, 1e-12 * values[0]);
}
END_TEST

START_TEST(eigh_of_nothing)
{
    pick(_i);
    if (skip) return;
    double *values = normals(n, 9), *v = normals(n * n, 10);
    OK(RUN(eigh, {n, zeros(n * n), values, v}));
    ck_assert_double_eq(largest(values, n), 0);
    ck_assert_double_eq(difference(times(v, v, n, true, false), identity(n), n * n), 0);
}
END_TEST

/* Equal magnitudes, one of them with the noise of rounding: the first is positive. */
START_TEST(eigh_breaks_ties_of_signs_by_index)
{
    be = backend_of(_i);
    n = 2;
    const double m[4] = {0, 1, 1, 0};
    double values[2], v[4], root = sqrt(0.5);
    OK(RUN(eigh, {n, m, values, v}));
    const double want[4] = {root, root, root, -root};
    ck_assert_double_lt(difference(v, want, 4), 1e-15);
    ck_assert(fabs(values[0] - 1) < 1e-15 && fabs(values[1] + 1) < 1e-15);
}
END_TEST

START_TEST(eigh_refuses_what_is_not_finite)
{
    be = backend_of(_i);
    n = 3;
    double *m = identity(n), *values = zeros(n), *v = zeros(n * n);
    m[7] = NAN;
    ck_assert_int_eq(RUN(eigh, {n, m, values, v}), BK_ENUMERIC);
    m[7] = -INFINITY;
    ck_assert_int_eq(RUN(eigh, {n, m, values, v}), BK_ENUMERIC);
}
END_TEST

/* Large enough for several tiles, and for LAPACK to share its work out if it could */
START_TEST(threads_do_not_change_a_bit)
{
    be = bk_backend_cpu();
    n = orders[TILED];
    double *of[2], bad;
    int before = omp_get_max_threads();
    float *x = (float *)(void *)zeros(n * n);
    for (int64_t i = 0; i < n * n; i++) x[i] = (float)bk_rng_normal(11, BK_RNG_TEST, (uint64_t)i);
    for (int t = 0; t < 2; t++) {
        omp_set_num_threads(t + 1);
        double *all = of[t] = zeros(4 * n * n + n), *h = all, *values = all + 3 * n * n;
        OK(RUN(gram, {n, n, 1, x, h}));
        OK(RUN(eigh, {n, h, values, values + n}));
        memcpy(all + n * n, h, sizeof *h * (size_t)(n * n));
        OK(RUN(cholesky, {n, 1, diagonal(h), NULL, all + n * n, &bad}));
        memcpy(all + 2 * n * n, all + n * n, sizeof *h * (size_t)(n * n));
        OK(RUN(trtri, {n, all + 2 * n * n}));
    }
    ck_assert_int_eq(omp_get_max_threads(), 2);
    omp_set_num_threads(before);
    ck_assert_mem_eq(of[0], of[1], sizeof(double) * (size_t)(4 * n * n + n));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("linear algebra");
    TCase *t = tcase_create("definitions"), *u = tcase_create("rules");
    tcase_set_timeout(t, 60);
    tcase_set_timeout(u, 60);
    tcase_add_checked_fixture(t, NULL, give_back);
    tcase_add_checked_fixture(u, NULL, give_back);
    tcase_add_loop_test(t, cholesky_gives_the_triangle_back, 0, CASES);
    tcase_add_loop_test(t, cholesky_permutes_and_shifts, 0, CASES);
    tcase_add_loop_test(t, cholesky_names_the_first_bad_pivot, 0, CASES);
    tcase_add_loop_test(t, cholesky_of_a_nearly_singular_matrix, 0, CASES);
    tcase_add_loop_test(t, trtri_inverts_the_upper_triangle, 0, CASES);
    tcase_add_loop_test(t, inverse_of_a_gram_matrix, 0, CASES);
    tcase_add_loop_test(t, gram_adds_and_is_symmetric, 0, CASES);
    tcase_add_loop_test(t, gemm_f64_in_all_orders, 0, CASES);
    tcase_add_loop_test(t, eigh_of_random_matrices, 0, CASES);
    tcase_add_loop_test(t, eigh_of_the_second_difference, 0, CASES);
    tcase_add_loop_test(t, eigh_of_rank_one, 0, CASES);
    tcase_add_loop_test(t, eigh_of_nothing, 0, CASES);
    tcase_add_loop_test(u, eigh_breaks_ties_of_signs_by_index, 0, BACKENDS);
    tcase_add_loop_test(u, eigh_refuses_what_is_not_finite, 0, BACKENDS);
    tcase_add_test(u, threads_do_not_change_a_bit);
    suite_add_tcase(s, t);
    suite_add_tcase(s, u);
    return run_suite(s);
}
