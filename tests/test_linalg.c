/* Dense algebra of rotations: products, QR, polar factors, Cayley SGD. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/linalg.h"
#include "autograd/rng.h"
#include "tests/count_alloc.h"
#include "tests/ok.h"
#include "tests/suite.h"

static double *room(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static double *normal(int64_t n, uint64_t seed)
{
    double *x = room(n);
    for (int64_t i = 0; i < n; i++) x[i] = bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    return x;
}

static double *same(const double *x, int64_t n)
{
    double *y = room(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

/* c += op(a) op(b), by definition; rows are lda, ldb, ldc apart. */
static void naive(const bk_product *p, double *c)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++)
            for (int64_t k = 0; k < p->k; k++)
                c[i * p->ldc + j] += p->a[p->ta ? k * p->lda + i : i * p->lda + k] * p->b[p->tb ? j * p->ldb + k : k * p->ldb + j];
}

static void naive_square(int64_t n, bool ta, const double *a, bool tb, const double *b, double *c)
{
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    naive(&(bk_product){.m = n, .n = n, .k = n, .ta = ta, .tb = tb, .a = a, .b = b, .lda = n, .ldb = n, .ldc = n}, c);
}

static double worst(const double *a, const double *b, int64_t n)
{
    double w = 0;
    for (int64_t i = 0; i < n; i++) w = fabs(a[i] - b[i]) <= w ? w : fabs(a[i] - b[i]);
    return w;
}

static double defect(int64_t n, const double *q)
{
    double *e = room(n * n), w = 0;
    naive_square(n, false, q, true, q, e);
    for (int64_t i = 0; i < n * n; i++) w = fmax(w, fabs(e[i] - (i % (n + 1) == 0)));
    free(e);
    return w;
}

typedef struct algebra {
    bk_error err;
    bk_linalg *l;
} algebra;

static void open(algebra *a, const bk_backend *be)
{
    *a = (algebra){0};
    ck_assert_ptr_nonnull(a->l = bk_linalg_new(be, &a->err));
}

static double *orthogonal(int64_t n, uint64_t seed)
{
    algebra a;
    double *q = normal(n * n, seed);
    open(&a, bk_backend_ref(BK_F64));
    ok(bk_linalg_qr_rows(a.l, n, q, NULL), &a.err);
    bk_linalg_free(a.l);
    return q;
}

/* --- products --- */

START_TEST(products_of_every_kind)
{
    enum { M = 3, N = 5, K = 4, LD = 9, SIZE = LD * LD };
    algebra l;
    bool ta = _i & 1, tb = _i & 2, add = _i & 4;
    double *a = normal(SIZE, 1), *b = normal(SIZE, 2), *got = normal(SIZE, 3), *want = same(got, SIZE);
    open(&l, bk_backend_cpu());
    bk_product p = {.m = M, .n = N, .k = K, .ta = ta, .tb = tb, .add = add, .a = a, .b = b, .c = got, .lda = LD, .ldb = LD - 1, .ldc = LD - 2};
    ok(bk_linalg_product(l.l, &p), &l.err);
    for (int64_t i = 0; !add && i < M * N; i++) want[i / N * p.ldc + i % N] = 0;
    naive(&p, want);
    ck_assert(worst(got, want, SIZE) < 1e-14); /* between the rows, too: nothing else is touched */
    bk_linalg_free(l.l);
    free(a), free(b), free(got), free(want);
}
END_TEST

START_TEST(algebra_never_touches_device_memory)
{
    enum { N = 6 };
    algebra l;
    double *a = normal(N * N, 1), *b = normal(N * N, 2), c[N * N], want[N * N];
    open(&l, bk_backend_guard(BK_F32));
    ok(bk_linalg_square(l.l, N, false, a, true, b, c), &l.err);
    naive_square(N, false, a, true, b, want);
    ck_assert(worst(c, want, N * N) < 1e-13);
    bk_linalg_free(l.l);
    free(a), free(b);
}
END_TEST

/* --- QR --- */

static const int64_t orders[] = {1, 2, 7, 32, 70}; /* panels have 32 rows */
enum { ORDERS = sizeof orders / sizeof orders[0] };

START_TEST(qr_gives_orthonormal_rows_and_a_triangle)
{
    algebra l;
    int64_t n = orders[_i], nn = n * n;
    double *a = normal(nn, 4), *q = same(a, nn), *lower = normal(nn, 5), *back = room(nn);
    open(&l, bk_backend_cpu());
    ok(bk_linalg_qr_rows(l.l, n, q, lower), &l.err);
    ck_assert(defect(n, q) < 1e-13);
    for (int64_t i = 0; i < n; i++) {
        ck_assert(lower[i * n + i] > 0);
        for (int64_t j = i + 1; j < n; j++) ck_assert(lower[i * n + j] == 0);
    }
    naive_square(n, false, lower, false, q, back);
    ck_assert(worst(back, a, nn) < 1e-12);
    bk_linalg_free(l.l);
    free(a), free(q), free(lower), free(back);
}
END_TEST

START_TEST(qr_of_dependent_rows_names_one)
{
    enum { N = 40 };
    algebra l;
    double *a = normal(N * N, 6);
    memset(a + 35 * N, 0, N * sizeof *a);
    open(&l, bk_backend_cpu());
    ck_assert_int_eq(bk_linalg_qr_rows(l.l, N, a, NULL), BK_ENUMERIC);
    ck_assert_ptr_nonnull(strstr(l.err.msg, "row 35"));
    bk_linalg_free(l.l);
    free(a);
}
END_TEST

/* sum of c q over the orthonormal rows q of a: its gradient by differences. */
static double through_qr(bk_linalg *l, int64_t n, const double *a, const double *c, double *q, double *lower)
{
    double sum = 0;
    memcpy(q, a, (size_t)(n * n) * sizeof *q);
    ck_assert_int_eq(bk_linalg_qr_rows(l, n, q, lower), BK_OK);
    for (int64_t i = 0; i < n * n; i++) sum += c[i] * q[i];
    return sum;
}

START_TEST(gradient_of_qr_agrees_with_differences)
{
    algebra l;
    int64_t n = orders[_i], nn = n * n;
    double *a = normal(nn, 7), *c = normal(nn, 8), *e = normal(nn, 9), *q = room(nn), *lower = room(nn), *g = same(c, nn), h = 1e-5;
    for (int64_t i = 0; i < n; i++) a[i * n + i] += 3 * sqrt((double)n);
    open(&l, bk_backend_cpu());
    through_qr(l.l, n, a, c, q, lower);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) lower[i * n + j] = NAN; /* what lies above the diagonal is not read */
    ok(bk_linalg_qr_rows_backward(l.l, n, q, lower, g), &l.err);
    double analytic = 0, value[2], size = 0;
    for (int64_t i = 0; i < nn; i++) analytic += g[i] * e[i], size += g[i] * g[i];
    for (int k = 0; k < 2; k++) {
        double *moved = same(a, nn);
        for (int64_t i = 0; i < nn; i++) moved[i] += (k ? -h : h) * e[i];
        value[k] = through_qr(l.l, n, moved, c, q, lower);
        free(moved);
    }
    double numeric = (value[0] - value[1]) / (2 * h);
    ck_assert_msg(n > 1 ? fabs(numeric - analytic) < 1e-6 * sqrt(size) : analytic == 0, "%g by differences, %g", numeric, analytic);
    bk_linalg_free(l.l);
    free(a), free(c), free(e), free(q), free(lower), free(g);
}
END_TEST

/* --- polar factors --- */

/* a = q s with s = v diag(d) v^T: q is its polar factor. */
static void check_polar(int64_t n, double smallest, double tol)
{
    algebra l;
    int64_t nn = n * n;
    double *q = orthogonal(n, 9), *v = orthogonal(n, 10), *d = room(nn), *s = room(nn), *a = room(nn);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) d[i * n + j] = v[i * n + j] * (n > 1 ? pow(smallest, (double)j / (double)(n - 1)) : 1);
    naive_square(n, false, d, true, v, s);
    naive_square(n, false, q, false, s, a);
    open(&l, bk_backend_cpu());
    ok(bk_linalg_polar(l.l, n, a), &l.err);
    ck_assert(defect(n, a) < 1e-12);
    ck_assert_msg(worst(a, q, nn) < tol, "order %d, singular values down to %g: off by %g", (int)n, smallest, worst(a, q, nn));
    bk_linalg_free(l.l);
    free(q), free(v), free(d), free(s), free(a);
}

START_TEST(polar_factor_is_the_nearest_rotation)
{
    check_polar(orders[_i], 0.3, 1e-13);
    check_polar(orders[_i], 1e-6, 1e-9);
    check_polar(orders[_i], 1e-9, 1e-6);
}
END_TEST

START_TEST(singular_matrices_have_no_polar_factor)
{
    enum { N = 5 };
    algebra l;
    double *a = normal(N * N, 11);
    memset(a, 0, N * sizeof *a);
    open(&l, bk_backend_cpu());
    ck_assert_int_eq(bk_linalg_polar(l.l, N, a), BK_ENUMERIC);
    bk_error_clear(&l.err);
    a[7] = NAN;
    ck_assert_int_eq(bk_linalg_polar(l.l, N, a), BK_ENUMERIC);
    bk_linalg_free(l.l);
    free(a);
}
END_TEST

START_TEST(defect_is_the_largest_entry)
{
    enum { N = 4 };
    algebra l;
    double *q = orthogonal(N, 12), got;
    open(&l, bk_backend_cpu());
    ok(bk_linalg_defect(l.l, N, q, &got), &l.err);
    ck_assert(got < 1e-14);
    for (int i = 0; i < N; i++) q[2 * N + i] *= 1.1;
    ok(bk_linalg_defect(l.l, N, q, &got), &l.err);
    ck_assert(fabs(got - 0.21) < 1e-12);
    bk_linalg_free(l.l);
    free(q);
}
END_TEST

/* --- Cayley SGD --- */

/* The published step, written out with whole matrices. */
static void published_step(int64_t n, double *r, double *v, const double *g, double lr, double momentum)
{
    int64_t nn = n * n;
    double *x = room(nn), *w0 = room(nn), *a = room(nn), *b = room(nn), *w = room(nn), *y = room(nn), most = 0;
    for (int64_t i = 0; i < nn; i++) x[i % n * n + i / n] = r[i];
    for (int64_t i = 0; i < nn; i++) v[i] = momentum * v[i] - g[i % n * n + i / n];
    naive_square(n, false, v, false, r, a);  /* V P */
    naive_square(n, false, r, false, a, b);  /* P V P */
    naive_square(n, true, r, false, b, w0);  /* P^T P V P */
    for (int64_t i = 0; i < nn; i++) w0[i] = a[i] - w0[i] / 2;
    for (int64_t i = 0; i < nn; i++) w[i] = w0[i] - w0[i % n * n + i / n];
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += fabs(w[i * n + j]);
        most = fmax(most, sum);
    }
    double alpha = fmin(lr, 1 / (most + 1e-8));
    for (int64_t i = 0; i < nn; i++) y[i] = x[i] + alpha * v[i];
    for (int k = 0; k < 5; k++) {
        for (int64_t i = 0; i < nn; i++) a[i] = (x[i] + y[i]) / 2;
        naive_square(n, false, w, false, a, b);
        for (int64_t i = 0; i < nn; i++) y[i] = x[i] + alpha * b[i];
    }
    for (int64_t i = 0; i < nn; i++) r[i] = y[i % n * n + i / n];
    naive_square(n, false, w, false, x, v);
    free(x), free(w0), free(a), free(b), free(w), free(y);
}

START_TEST(cayley_steps_are_the_published_ones)
{
    enum { N = 5 };
    algebra l;
    bk_cayley c;
    double *got = orthogonal(N, 13), *want = same(got, N * N), *v = room(N * N), lr = _i ? 1e-3 : 1.5, momentum = _i ? 0.9 : 0;
    open(&l, bk_backend_cpu());
    ok(bk_cayley_create(&c, N, momentum, &l.err), &l.err);
    for (uint64_t k = 0; k < 3; k++) {
        double *g = normal(N * N, 20 + k);
        ok(bk_cayley_step(l.l, &c, got, g, lr, false), &l.err);
        published_step(N, want, v, g, lr, momentum);
        free(g);
        for (int i = 0; k < 2 && i < N; i++) { /* the published step begins by making rows of length 1 */
            double length = 0;
            for (int j = 0; j < N; j++) length += want[i * N + j] * want[i * N + j];
            for (int j = 0; j < N; j++) want[i * N + j] /= sqrt(length);
        }
    }
    ck_assert(worst(got, want, N * N) < 1e-13);
    ck_assert(defect(N, got) < 0.01);
    bk_cayley_free(&c);
    bk_linalg_free(l.l);
    free(got), free(want), free(v);
}
END_TEST

/* Procrustes: |A R - B|^2 with B = A R* is smallest at R*, where it is 0. Its gradient is 2 A^T (A R - B). */
typedef struct procrustes {
    int64_t rows, n;
    double *a, *target, *b, *e;
} procrustes;

static void pose(procrustes *p, int64_t rows, int64_t n)
{
    algebra l;
    *p = (procrustes){rows, n, normal(rows * n, 30), orthogonal(n, 31), room(rows * n), room(rows * n)};
    double *start = orthogonal(n, 32), *turn = normal(n * n, 33);
    for (int64_t i = 0; i < n * n; i++) turn[i] = (i % (n + 1) == 0) + 0.3 * turn[i] / sqrt((double)n);
    naive_square(n, false, start, false, turn, p->target); /* not too far from the start, and reached without a reflection */
    open(&l, bk_backend_ref(BK_F64));
    ok(bk_linalg_polar(l.l, n, p->target), &l.err);
    bk_linalg_free(l.l);
    naive(&(bk_product){.m = rows, .n = n, .k = n, .a = p->a, .b = p->target, .lda = n, .ldb = n, .ldc = n}, p->b);
    free(start), free(turn);
}

static double procrustes_at(procrustes *p, const double *r, double *g)
{
    double sum = 0;
    for (int64_t i = 0; i < p->rows * p->n; i++) p->e[i] = -p->b[i];
    naive(&(bk_product){.m = p->rows, .n = p->n, .k = p->n, .a = p->a, .b = r, .lda = p->n, .ldb = p->n, .ldc = p->n}, p->e);
    for (int64_t i = 0; i < p->rows * p->n; i++) sum += p->e[i] * p->e[i];
    memset(g, 0, (size_t)(p->n * p->n) * sizeof *g);
    naive(&(bk_product){.m = p->n, .n = p->n, .k = p->rows, .ta = true, .a = p->a, .b = p->e, .lda = p->n, .ldb = p->n, .ldc = p->n}, g);
    return sum;
}

static void free_procrustes(procrustes *p)
{
    free(p->a), free(p->target), free(p->b), free(p->e);
}

START_TEST(cayley_steps_stay_orthogonal_and_find_the_optimum)
{
    enum { N = 24, ROWS = 60, STEPS = 100 };
    algebra l;
    bk_cayley c;
    procrustes p;
    pose(&p, ROWS, N);
    double *r = orthogonal(N, 32), *g = room(N * N), before = procrustes_at(&p, r, g), momentum = _i ? 0.5 : 0;
    open(&l, bk_backend_cpu());
    ok(bk_cayley_create(&c, N, momentum, &l.err), &l.err);
    for (int k = 0; k < STEPS; k++) {
        procrustes_at(&p, r, g);
        ok(bk_cayley_step(l.l, &c, r, g, _i ? 0.004 : 0.008, false), &l.err);
        ck_assert_msg(defect(N, r) < 1e-3, "step %d: %g", k, defect(N, r));
    }
    double after = procrustes_at(&p, r, g);
    ck_assert_msg(after < 1e-4 * before, "%g, and %g before", after, before);
    ok(bk_linalg_polar(l.l, N, r), &l.err);
    ck_assert_msg(worst(r, p.target, N * N) < 5e-3, "off by %g", worst(r, p.target, N * N));
    bk_cayley_free(&c);
    bk_linalg_free(l.l);
    free_procrustes(&p);
    free(r), free(g);
}
END_TEST

START_TEST(retraction_makes_the_start_of_a_step_orthogonal)
{
    enum { N = 12 };
    algebra l;
    bk_cayley c;
    double *r = orthogonal(N, 40), *g = room(N * N);
    for (int i = 0; i < N; i++) r[N + i] += 0.1 * r[i]; /* rows 0 and 1 lean on each other */
    double *leaning = same(r, N * N);
    open(&l, bk_backend_cpu());
    ok(bk_cayley_create(&c, N, 0, &l.err), &l.err);
    ok(bk_cayley_step(l.l, &c, leaning, g, 1, false), &l.err); /* without a gradient nothing else happens */
    ck_assert(defect(N, leaning) > 0.05);
    ok(bk_cayley_step(l.l, &c, r, g, 1, true), &l.err);
    ck_assert(defect(N, r) < 1e-13);
    bk_cayley_free(&c);
    bk_linalg_free(l.l);
    free(r), free(g), free(leaning);
}
END_TEST

START_TEST(steps_after_the_first_allocate_nothing)
{
    enum { N = 40 };
    algebra l;
    bk_cayley c;
    double *r = orthogonal(N, 45), *g = normal(N * N, 46), *z = normal(N * N, 47), *lower = room(N * N);
    open(&l, bk_backend_cpu());
    ok(bk_cayley_create(&c, N, 0.9, &l.err), &l.err);
    bk_status st = BK_OK;
    for (int k = 0; k < 2 && !st; k++) {
        if (k == 1) bk_alloc_count_from_here();
        st = bk_cayley_step(l.l, &c, r, g, 0.1, true);
        if (!st) st = bk_linalg_qr_rows(l.l, N, z, lower);
        if (!st) st = bk_linalg_qr_rows_backward(l.l, N, z, lower, g);
        if (!st) st = bk_linalg_polar(l.l, N, r);
    }
    long calls = bk_alloc_count(); /* before Check's own */
    ok(st, &l.err);
    if (bk_alloc_counted()) ck_assert_msg(calls == 0, "%ld allocations", calls);
    bk_cayley_free(&c);
    bk_linalg_free(l.l);
    free(r), free(g), free(z), free(lower);
}
END_TEST

START_TEST(gradients_that_are_not_finite_are_refused)
{
    enum { N = 3 };
    algebra l;
    bk_cayley c;
    double *r = orthogonal(N, 41), *g = normal(N * N, 42);
    g[5] = _i ? INFINITY : NAN;
    open(&l, bk_backend_cpu());
    ok(bk_cayley_create(&c, N, 0, &l.err), &l.err);
    ck_assert_int_eq(bk_cayley_step(l.l, &c, r, g, 1, false), BK_ENUMERIC);
    bk_cayley_free(&c);
    bk_linalg_free(l.l);
    free(r), free(g);
}
END_TEST

START_TEST(threads_do_not_change_a_bit)
{
    enum { N = 150 };
    double *r[2];
    for (int k = 0; k < 2; k++) {
        algebra l;
        bk_cayley c;
        double *g = normal(N * N, 43);
        r[k] = orthogonal(N, 44);
        bk_backend_cpu()->set_threads(k + 1);
        open(&l, bk_backend_cpu());
        ok(bk_cayley_create(&c, N, 0, &l.err), &l.err);
        ok(bk_cayley_step(l.l, &c, r[k], g, 1, true), &l.err);
        ok(bk_linalg_polar(l.l, N, r[k]), &l.err);
        bk_cayley_free(&c);
        bk_linalg_free(l.l);
        free(g);
    }
    ck_assert(!memcmp(r[0], r[1], N * N * sizeof **r));
    free(r[0]), free(r[1]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("linalg");
    TCase *t = tcase_create("algebra");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, products_of_every_kind, 0, 8);
    tcase_add_test(t, algebra_never_touches_device_memory);
    tcase_add_loop_test(t, qr_gives_orthonormal_rows_and_a_triangle, 0, ORDERS);
    tcase_add_test(t, qr_of_dependent_rows_names_one);
    tcase_add_loop_test(t, gradient_of_qr_agrees_with_differences, 0, ORDERS);
    tcase_add_loop_test(t, polar_factor_is_the_nearest_rotation, 0, ORDERS);
    tcase_add_test(t, singular_matrices_have_no_polar_factor);
    tcase_add_test(t, defect_is_the_largest_entry);
    suite_add_tcase(s, t);
    t = tcase_create("cayley");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, cayley_steps_are_the_published_ones, 0, 2);
    tcase_add_loop_test(t, cayley_steps_stay_orthogonal_and_find_the_optimum, 0, 2);
    tcase_add_test(t, retraction_makes_the_start_of_a_step_orthogonal);
    tcase_add_test(t, steps_after_the_first_allocate_nothing);
    tcase_add_loop_test(t, gradients_that_are_not_finite_are_refused, 0, 2);
    tcase_add_test(t, threads_do_not_change_a_bit);
    suite_add_tcase(s, t);
    return run_suite(s);
}
