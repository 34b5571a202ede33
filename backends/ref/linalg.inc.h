/* Linear algebra in double, by definition. */
#include "backends/scalar/linalg.h"

KERNEL(gemm_f64)
{
    const double *A = a->a, *B = a->b;
    double *C = a->c;
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            double sum = a->beta ? C[i * a->ldc + j] : 0;
            for (int64_t l = 0; l < a->k; l++)
                sum += A[a->ta ? l * a->lda + i : i * a->lda + l] * B[a->tb ? j * a->ldb + l : l * a->ldb + j];
            C[i * a->ldc + j] = sum;
        }
    return BK_OK;
}

KERNEL(gram)
{
    const REAL *x = a->x;
    for (int64_t i = 0; i < a->cols; i++)
        for (int64_t j = 0; j < a->cols; j++) {
            double sum = 0;
            for (int64_t r = 0; r < a->rows; r++) sum += (double)x[r * a->cols + i] * x[r * a->cols + j];
            a->h[i * a->cols + j] += a->alpha * sum;
        }
    return BK_OK;
}

/* Entry (i, j), i <= j, of the matrix that is factored, from what lies below the diagonal of h. */
static double ordered_entry(const bk_cholesky_args *a, int64_t i, int64_t j)
{
    int64_t p = a->order ? a->order[i] : i, q = a->order ? a->order[j] : j;
    return p == q ? a->diag[p] + a->shift : p > q ? a->h[p * a->n + q] : a->h[q * a->n + p];
}

KERNEL(cholesky)
{
    const int64_t n = a->n;
    double *h = a->h;
    *a->bad = -1;
    for (int64_t j = n - 1; j >= 0; j--)
        for (int64_t i = j; i >= 0; i--) {
            double sum = ordered_entry(a, i, j);
            for (int64_t k = j + 1; k < n; k++) sum -= h[i * n + k] * h[j * n + k];
            if (i == j && !(sum > 0 && isfinite(sum))) {
                *a->bad = (double)j;
                return BK_OK;
            }
            h[i * n + j] = i == j ? sqrt(sum) : sum / h[j * n + j];
        }
    return BK_OK;
}

/* Column j of the inverse is x of R x = e_j, from below. It needs nothing of the columns on its right, which are done. */
KERNEL(trtri)
{
    const int64_t n = a->n;
    double *u = a->u;
    for (int64_t j = n - 1; j >= 0; j--) {
        u[j * n + j] = 1 / u[j * n + j];
        for (int64_t i = j - 1; i >= 0; i--) {
            double sum = u[i * n + j] * u[j * n + j];
            for (int64_t k = i + 1; k < j; k++) sum += u[i * n + k] * u[k * n + j];
            u[i * n + j] = -sum / u[i * n + i];
        }
    }
    return BK_OK;
}

/* Turns rows and columns p and q of the symmetric m so that m[p,q] becomes 0, and columns p and q of v with them. */
static void jacobi_turn(int64_t n, double *m, double *v, int64_t p, int64_t q)
{
    double theta = (m[q * n + q] - m[p * n + p]) / (2 * m[p * n + q]);
    double t = (theta < 0 ? -1 : 1) / (fabs(theta) + hypot(theta, 1)), c = 1 / hypot(t, 1), s = t * c;
    for (int64_t k = 0; k < n; k++) {
        double x = m[k * n + p], y = m[k * n + q], vx = v[k * n + p], vy = v[k * n + q];
        m[k * n + p] = c * x - s * y, m[k * n + q] = s * x + c * y;
        v[k * n + p] = c * vx - s * vy, v[k * n + q] = s * vx + c * vy;
    }
    for (int64_t k = 0; k < n; k++) {
        double x = m[p * n + k], y = m[q * n + k];
        m[p * n + k] = c * x - s * y, m[q * n + k] = s * x + c * y;
    }
    m[p * n + q] = m[q * n + p] = 0;
}

/* Sweeps over all pairs until none is left that rounding would not have made; how many were turned in the last. */
static int64_t jacobi(int64_t n, double *m, double *v)
{
    enum { SWEEPS = 64 };
    double squares = 0;
    int64_t turned = 1;
    for (int64_t i = 0; i < n * n; i++) squares += m[i] * m[i];
    for (int sweep = 0; turned && sweep < SWEEPS; sweep++) {
        turned = 0;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++)
                if (fabs(m[p * n + q]) > 1e-16 / (double)n * sqrt(squares)) jacobi_turn(n, m, v, p, q), turned++;
    }
    return turned;
}

static void swap_columns(int64_t n, double *v, int64_t p, int64_t q)
{
    for (int64_t k = 0; k < n; k++) {
        double t = v[k * n + p];
        v[k * n + p] = v[k * n + q];
        v[k * n + q] = t;
    }
}

/* Largest first, each with its sign. */
static void sort_eigenpairs(int64_t n, double *values, double *v)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t top = i;
        for (int64_t k = i + 1; k < n; k++)
            if (values[k] > values[top]) top = k;
        double t = values[i];
        values[i] = values[top];
        values[top] = t;
        if (top != i) swap_columns(n, v, i, top);
        double sign = bk_canonical_sign(n, n, v + i);
        for (int64_t k = 0; k < n; k++) v[k * n + i] *= sign;
    }
}

KERNEL(eigh)
{
    const int64_t n = a->n;
    double *m = w->base;
    for (int64_t i = 0; i < n * n; i++) {
        if (!isfinite(a->a[i])) return BK_ENUMERIC;
        m[i] = a->a[i];
        a->vectors[i] = i / n == i % n;
    }
    if (jacobi(n, m, a->vectors)) return BK_ENUMERIC;
    for (int64_t i = 0; i < n; i++) a->values[i] = m[i * n + i];
    sort_eigenpairs(n, a->values, a->vectors);
    return BK_OK;
}
