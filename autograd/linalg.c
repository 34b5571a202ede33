#include "autograd/linalg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"

enum { A, B, C, OPERANDS };
enum { PANEL = 32 }; /* rows made orthogonal by hand; all before them by products */

struct bk_linalg {
    const bk_backend *be;
    bk_error *err;
    bk_ctx *ctx;
    bk_tensor *at[OPERANDS]; /* f64, grown as needed */
    double *room;            /* for one function at a time, grown as needed: a step like the one before allocates nothing */
    size_t room_size;
};

bk_linalg *bk_linalg_new(const bk_backend *be, bk_error *err)
{
    bk_linalg *l = calloc(1, sizeof *l);
    if (!l || !(l->ctx = bk_ctx_new(be, err))) {
        free(l);
        bk_fail(err, BK_ENOMEM, "no memory for products of matrices");
        return NULL;
    }
    l->be = be;
    l->err = err;
    return l;
}

void bk_linalg_free(bk_linalg *l)
{
    if (!l) return;
    for (int i = 0; i < OPERANDS; i++) bk_tensor_destroy(l->be, l->at[i]);
    bk_ctx_free(l->ctx);
    free(l->room);
    free(l);
}

static bk_status take_room(bk_linalg *l, int64_t n, double **out)
{
    size_t size = (size_t)n * sizeof **out;
    if (size > l->room_size) {
        free(l->room);
        l->room = malloc(size);
        l->room_size = l->room ? size : 0;
    }
    *out = l->room;
    return *out ? BK_OK : bk_fail(l->err, BK_ENOMEM, "no memory for %lld numbers beside a matrix", (long long)n);
}

/* --- products --- */

static bk_status room_for(bk_linalg *l, int which, int64_t n)
{
    if (l->at[which] && bk_numel(l->at[which]) >= n) return BK_OK;
    bk_tensor_destroy(l->be, l->at[which]);
    l->at[which] = NULL;
    return bk_tensor_create(l->be, BK_F64, 1, &n, "matrix", &l->at[which], l->err);
}

static bk_status bring(bk_linalg *l, int which, int64_t rows, int64_t cols, const double *x, int64_t ld)
{
    BK_TRY(room_for(l, which, rows * cols));
    if (ld == cols) return bk_write_f64(l->be, l->at[which], 0, x, rows * cols, l->err);
    for (int64_t r = 0; r < rows; r++) BK_TRY(bk_write_f64(l->be, l->at[which], r * cols, x + r * ld, cols, l->err));
    return BK_OK;
}

static bk_status fetch(bk_linalg *l, int64_t rows, int64_t cols, double *x, int64_t ld)
{
    if (ld == cols) return bk_read_f64(l->be, l->at[C], 0, x, rows * cols, l->err);
    for (int64_t r = 0; r < rows; r++) BK_TRY(bk_read_f64(l->be, l->at[C], r * cols, x + r * ld, cols, l->err));
    return BK_OK;
}

bk_status bk_linalg_product(bk_linalg *l, const bk_product *p)
{
    int64_t lda = p->ta ? p->m : p->k, ldb = p->tb ? p->k : p->n;
    BK_TRY(bring(l, A, p->ta ? p->k : p->m, lda, p->a, p->lda));
    BK_TRY(bring(l, B, p->tb ? p->n : p->k, ldb, p->b, p->ldb));
    if (p->add) BK_TRY(bring(l, C, p->m, p->n, p->c, p->ldc));
    BK_TRY(room_for(l, C, p->m * p->n));
    bk_gemm_f64_args args = {.m = p->m, .n = p->n, .k = p->k, .ta = p->ta, .tb = p->tb, .a = l->at[A]->data, .b = l->at[B]->data,
                             .c = l->at[C]->data, .lda = lda, .ldb = ldb, .ldc = p->n, .beta = p->add};
    bk_ctx_measure(l->ctx);
    BK_TRY(bk_k_gemm_f64(l->ctx, &args));
    BK_TRY(bk_ctx_commit(l->ctx));
    BK_TRY(bk_k_gemm_f64(l->ctx, &args));
    return fetch(l, p->m, p->n, p->c, p->ldc);
}

bk_status bk_linalg_square(bk_linalg *l, int64_t n, bool ta, const double *a, bool tb, const double *b, double *c)
{
    return bk_linalg_product(l, &(bk_product){.m = n, .n = n, .k = n, .ta = ta, .tb = tb, .a = a, .b = b, .c = c, .lda = n, .ldb = n, .ldc = n});
}

static double off_identity(int64_t n, const double *e)
{
    double worst = 0;
    for (int64_t i = 0; i < n * n; i++) {
        double d = fabs(e[i] - (i % (n + 1) == 0));
        worst = d <= worst ? worst : d; /* NaN counts */
    }
    return worst;
}

bk_status bk_linalg_defect(bk_linalg *l, int64_t n, const double *a, double *out)
{
    double *e;
    BK_TRY(take_room(l, n * n, &e));
    BK_TRY(bk_linalg_square(l, n, false, a, true, a, e));
    *out = off_identity(n, e);
    return BK_OK;
}

/* --- QR of rows --- */

static double dot(int64_t n, const double *x, const double *y)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void subtract(int64_t n, double factor, const double *x, double *y)
{
    for (int64_t i = 0; i < n; i++) y[i] -= factor * x[i];
}

/* Takes the part along the first `first` rows out of the `rows` rows behind them. t: room for rows x (first + n). */
static bk_status project_out(bk_linalg *l, int64_t n, double *a, int64_t first, int64_t rows, double *t, double *lower)
{
    double *along = t, *part = t + rows * first, *panel = a + first * n;
    BK_TRY(bk_linalg_product(l, &(bk_product){.m = rows, .n = first, .k = n, .tb = true, .a = panel, .b = a, .c = along, .lda = n, .ldb = n,
                                              .ldc = first}));
    BK_TRY(bk_linalg_product(l, &(bk_product){.m = rows, .n = n, .k = first, .a = along, .b = a, .c = part, .lda = first, .ldb = n, .ldc = n}));
    subtract(rows * n, 1, part, panel);
    for (int64_t r = 0; lower && r < rows; r++) subtract(first, -1, along + r * first, lower + (first + r) * n);
    return BK_OK;
}

static bk_status orthonormal_panel(bk_linalg *l, int64_t n, double *a, int64_t first, int64_t rows, double *lower)
{
    for (int64_t r = first; r < first + rows; r++) {
        double *row = a + r * n;
        for (int twice = 0; twice < 2; twice++)
            for (int64_t k = first; k < r; k++) {
                double c = dot(n, row, a + k * n);
                subtract(n, c, a + k * n, row);
                if (lower) lower[r * n + k] += c;
            }
        double norm = sqrt(dot(n, row, row));
        if (!(norm > 1e-150 && isfinite(norm)))
            return bk_fail(l->err, BK_ENUMERIC, "row %lld of a matrix that should be orthogonal depends on those before it, or is not finite",
                           (long long)r);
        for (int64_t i = 0; i < n; i++) row[i] /= norm;
        if (lower) lower[r * n + r] = norm;
    }
    return BK_OK;
}

bk_status bk_linalg_qr_rows(bk_linalg *l, int64_t n, double *a, double *lower)
{
    double *t;
    BK_TRY(take_room(l, 2 * PANEL * n, &t));
    if (lower) memset(lower, 0, (size_t)(n * n) * sizeof *lower);
    for (int64_t first = 0; first < n; first += PANEL) {
        int64_t rows = n - first < PANEL ? n - first : PANEL;
        for (int twice = 0; first && twice < 2; twice++) BK_TRY(project_out(l, n, a, first, rows, t, lower));
        BK_TRY(orthonormal_panel(l, n, a, first, rows, lower));
    }
    return BK_OK;
}

/* b = lower^-T b. Rows from the last panel to the first: what lies behind a panel by one product, the panel itself by substitution.
 * t: room for PANEL x n. */
static bk_status solve_lower_t(bk_linalg *l, int64_t n, const double *lower, double *b, double *t)
{
    for (int64_t first = (n - 1) / PANEL * PANEL; first >= 0; first -= PANEL) {
        int64_t end = first + PANEL < n ? first + PANEL : n;
        if (end < n) {
            BK_TRY(bk_linalg_product(l, &(bk_product){.m = end - first, .n = n, .k = n - end, .ta = true, .a = lower + end * n + first,
                                                      .b = b + end * n, .c = t, .lda = n, .ldb = n, .ldc = n}));
            subtract((end - first) * n, 1, t, b + first * n);
        }
        for (int64_t r = end - 1; r >= first; r--) {
            for (int64_t k = r + 1; k < end; k++) subtract(n, lower[k * n + r], b + k * n, b + r * n);
            for (int64_t i = 0; i < n; i++) b[r * n + i] /= lower[r * n + r];
        }
    }
    return BK_OK;
}

bk_status bk_linalg_qr_rows_backward(bk_linalg *l, int64_t n, const double *q, const double *lower, double *g)
{
    double *s, *t;
    BK_TRY(take_room(l, n * n + (n > PANEL ? n : PANEL) * n, &s));
    t = s + n * n;
    BK_TRY(bk_linalg_square(l, n, false, g, true, q, s));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) s[j * n + i] = s[i * n + j];
    BK_TRY(bk_linalg_square(l, n, false, s, false, q, t));
    subtract(n * n, 1, t, g);
    return solve_lower_t(l, n, lower, g, t);
}

/* --- polar factor --- */

#define SMALLEST 1e-11 /* singular value that the scaling expects, of a matrix of norm 1 */
enum { MOST_STEPS = 100 };

/* a = s a (3 I - s^2 e) / 2 with e = a^T a; t is room. */
static bk_status newton_schulz(bk_linalg *l, int64_t n, double *a, double s, double *e, double *t)
{
    for (int64_t i = 0; i < n * n; i++) e[i] = s * (3 * (i % (n + 1) == 0) - s * s * e[i]) / 2;
    BK_TRY(bk_linalg_square(l, n, false, a, false, e, t));
    memcpy(a, t, (size_t)(n * n) * sizeof *a);
    return BK_OK;
}

/* Iterates until a^T a is I to rounding, or for long enough; *worst: what is left. e, t: room. */
static bk_status iterate(bk_linalg *l, int64_t n, double *a, double *e, double *t, double *worst)
{
    double least = SMALLEST;
    for (int i = 0; i < MOST_STEPS; i++) {
        BK_TRY(bk_linalg_square(l, n, true, a, false, a, e));
        *worst = off_identity(n, e);
        if (*worst <= 1e-14 * (double)n) break;
        /* Singular values of least .. 1 stay below 1. Larger factors would send the largest to the smallest, and with it most of its digits. */
        double s = sqrt(fmin(2.5, 3 / (1 + least + least * least)));
        BK_TRY(newton_schulz(l, n, a, s, e, t));
        least = fmin(s * least * (3 - s * s * least * least), s * (3 - s * s)) / 2;
    }
    return BK_OK;
}

bk_status bk_linalg_polar(bk_linalg *l, int64_t n, double *a)
{
    double norm = sqrt(dot(n * n, a, a)), worst = 0, *e;
    if (!(norm > 0 && isfinite(norm))) return bk_fail(l->err, BK_ENUMERIC, "a matrix of zeros, or not finite, has no nearest rotation");
    BK_TRY(take_room(l, 2 * n * n, &e));
    for (int64_t i = 0; i < n * n; i++) a[i] /= norm;
    BK_TRY(iterate(l, n, a, e, e + n * n, &worst));
    return worst < 1e-9 ? BK_OK : bk_fail(l->err, BK_ENUMERIC, "a singular matrix has no nearest rotation: %g from orthogonal", worst);
}

/* --- Cayley SGD --- */

bk_status bk_cayley_create(bk_cayley *c, int64_t n, double momentum, bk_error *err)
{
    *c = (bk_cayley){.n = n, .momentum = momentum, .v = calloc((size_t)(n * n), sizeof(double))};
    return c->v ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory to learn a rotation of order %lld", (long long)n);
}

void bk_cayley_free(bk_cayley *c)
{
    free(c->v);
    *c = (bk_cayley){0};
}

static void transpose(int64_t n, const double *a, double *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[j * n + i] = a[i * n + j];
}

/* w = w - w^T; returns the largest sum of magnitudes of a column. */
static double skew(int64_t n, double *w)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double d = w[i * n + j] - w[j * n + i];
            w[i * n + j] = d;
            w[j * n + i] = -d;
        }
    for (int64_t i = 0; i < n; i++) { /* rows and columns have the same magnitudes */
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += fabs(w[i * n + j]);
        most = sum <= most ? most : sum;
    }
    return most;
}

/* w = the skew direction of the step, from v and the rotation p; y, t: room. */
static bk_status direction(bk_linalg *l, int64_t n, const double *v, const double *p, double *w, double *y, double *t, double *norm)
{
    BK_TRY(bk_linalg_square(l, n, false, v, false, p, y));
    BK_TRY(bk_linalg_square(l, n, false, p, false, y, t));
    BK_TRY(bk_linalg_square(l, n, true, p, false, t, w));
    for (int64_t i = 0; i < n * n; i++) w[i] = y[i] - w[i] / 2;
    *norm = skew(n, w);
    return isfinite(*norm) ? BK_OK : bk_fail(l->err, BK_ENUMERIC, "the gradient of a rotation, or the rotation, is not finite");
}

bk_status bk_cayley_step(bk_linalg *l, bk_cayley *c, double *r, const double *g, double lr, bool retract)
{
    int64_t n = c->n, nn = n * n;
    double norm, *w;
    for (int64_t i = 0; i < n; i++) {
        double *row = r + i * n, length = sqrt(dot(n, row, row));
        for (int64_t j = 0; j < n; j++) row[j] /= length;
    }
    if (retract) BK_TRY(bk_linalg_qr_rows(l, n, r, NULL));
    BK_TRY(take_room(l, 4 * nn, &w));
    double *x = w + nn, *y = x + nn, *t = y + nn;
    transpose(n, g, t);
    for (int64_t i = 0; i < nn; i++) c->v[i] = c->momentum * c->v[i] - t[i];
    BK_TRY(direction(l, n, c->v, r, w, y, t, &norm));
    double a = fmin(lr, 1 / (norm + 1e-8));
    transpose(n, r, x);
    for (int64_t i = 0; i < nn; i++) y[i] = x[i] + a * c->v[i];
    for (int k = 0; k < 5; k++) {
        for (int64_t i = 0; i < nn; i++) y[i] = (x[i] + y[i]) / 2;
        BK_TRY(bk_linalg_square(l, n, false, w, false, y, t));
        for (int64_t i = 0; i < nn; i++) y[i] = x[i] + a * t[i];
    }
    transpose(n, y, r);
    return bk_linalg_square(l, n, false, w, false, x, c->v);
}
