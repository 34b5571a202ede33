/* Linear algebra in f64. Matrices are cut into square tiles whose size depends on their order alone; BLAS and LAPACK work on tiles, one
 * thread each, so that the number of threads cannot change a bit. */
#include <cblas.h>
#include <limits.h>
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/scalar/linalg.h"

/* LAPACK comes with OpenBLAS, without a header. */
void dsyevd_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work, const int *lwork,
             int *iwork, const int *liwork, int *info, size_t jobz_length, size_t uplo_length);

/* Tiles are small enough to share out the work of a small matrix, and large enough to make products of a large one cheap. */
enum { TILE_MIN = 32, TILE_MAX = 256, TILES = 16, PIECE_ROWS = 512 };

static int64_t tile_of(int64_t n)
{
    int64_t even = bk_tiles(n, TILES * TILE_MIN) * TILE_MIN;
    return bk_max_i64(TILE_MIN, bk_min_i64(TILE_MAX, even));
}

/* --- gram --- */

size_t bk_cpu_gram_work(const bk_gram_args *a) { return sizeof(double) * (size_t)(bk_min_i64(a->rows, PIECE_ROWS) * a->cols); }

/* Adds a piece of rows to the tile of h at (i, j), i <= j; on the diagonal to its upper half. */
static void gram_tile(const bk_gram_args *a, const double *x, int64_t rows, int64_t tile, int64_t i, int64_t j)
{
    int m = (int)bk_min_i64(tile, a->cols - i), n = (int)bk_min_i64(tile, a->cols - j), ld = (int)a->cols;
    double *h = a->h + i * a->cols + j;
    if (i == j) cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, n, (int)rows, a->alpha, x + i, ld, 1, h, ld);
    else cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, (int)rows, a->alpha, x + i, ld, x + j, ld, 1, h, ld);
}

static void mirror_tile(int64_t n, double *h, int64_t tile, int64_t i, int64_t j)
{
    for (int64_t r = i; r < bk_min_i64(n, i + tile); r++)
        for (int64_t c = bk_max_i64(r + 1, j); c < bk_min_i64(n, j + tile); c++) h[c * n + r] = h[r * n + c];
}

bk_status bk_cpu_gram(const bk_gram_args *a, const bk_work *w)
{
    if (!a->rows || !a->cols) return BK_OK;
    double *x = bk_cpu_scratch(w, bk_cpu_gram_work(a));
    if (!x) return BK_ENOMEM;
    int64_t tile = tile_of(a->cols), tiles = bk_tiles(a->cols, tile);
    for (int64_t r = 0; r < a->rows; r += PIECE_ROWS) {
        int64_t rows = bk_min_i64(PIECE_ROWS, a->rows - r);
#pragma omp parallel
        {
#pragma omp for schedule(static)
            for (int64_t k = 0; k < rows; k++) bk_cpu_widen(a->cols, (const float *)a->x + (r + k) * a->cols, x + k * a->cols);
#pragma omp for schedule(dynamic)
            for (int64_t u = 0; u < tiles * tiles; u++)
                if (u / tiles <= u % tiles) gram_tile(a, x, rows, tile, u / tiles * tile, u % tiles * tile);
        }
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < tiles * tiles; u++)
        if (u / tiles <= u % tiles) mirror_tile(a->cols, a->h, tile, u / tiles * tile, u % tiles * tile);
    return BK_OK;
}

/* --- H = R R^T --- */

/* Writes what is to be factored into the tile at (i, j), i <= j. */
static void order_tile(const bk_cholesky_args *a, int64_t tile, int64_t i, int64_t j)
{
    int64_t n = a->n;
    for (int64_t r = i; r < bk_min_i64(n, i + tile); r++)
        for (int64_t c = bk_max_i64(r, j); c < bk_min_i64(n, j + tile); c++) {
            int64_t p = a->order ? a->order[r] : r, q = a->order ? a->order[c] : c;
            a->h[r * n + c] = p == q ? a->diag[p] + a->shift : a->h[bk_max_i64(p, q) * n + bk_min_i64(p, q)];
        }
}

/* One tile on the diagonal, from its last row to its first. Returns the row of the first bad pivot, -1 if there is none. */
static int64_t factor_tile(int64_t n, double *h, int64_t ld)
{
    for (int64_t j = n - 1; j >= 0; j--) {
        double *row = h + j * ld, pivot = row[j] - bk_cpu_dot_f64(n - j - 1, row + j + 1, row + j + 1);
        if (!(pivot > 0 && isfinite(pivot))) return j;
        row[j] = sqrt(pivot);
        for (int64_t i = 0; i < j; i++) {
            double *at = h + i * ld + j;
            *at = (*at - bk_cpu_dot_f64(n - j - 1, at + 1, row + j + 1)) / row[j];
        }
    }
    return -1;
}

/* What rows from i take from the columns behind the tile at (i, j), all of them at once. */
static void update_tile(double *h, int64_t n, int64_t tile, int64_t i, int64_t j)
{
    int64_t width = bk_min_i64(tile, n - j), behind = j + width;
    const double *ri = h + i * n + behind, *rj = h + j * n + behind;
    int k = (int)(n - behind), ld = (int)n;
    if (k == 0) return;
    if (i == j) cblas_dsyrk(CblasRowMajor, CblasUpper, CblasNoTrans, (int)width, k, -1, ri, ld, 1, h + i * n + j, ld);
    else cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tile, (int)width, k, -1, ri, ld, rj, ld, 1, h + i * n + j, ld);
}

bk_status bk_cpu_cholesky(const bk_cholesky_args *a, const bk_work *w)
{
    (void)w;
    double *h = a->h;
    int64_t n = a->n, tile = tile_of(n), tiles = bk_tiles(n, tile);
#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < tiles * tiles; u++)
        if (u / tiles <= u % tiles) order_tile(a, tile, u / tiles * tile, u % tiles * tile);
    *a->bad = -1;
    for (int64_t j = (tiles - 1) * tile; j >= 0; j -= tile) {
        int64_t width = bk_min_i64(tile, n - j);
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = j; i >= 0; i -= tile) update_tile(h, n, tile, i, j);
        int64_t bad = factor_tile(width, h + j * n + j, n);
        if (bad >= 0) {
            *a->bad = (double)(j + bad);
            return BK_OK;
        }
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < j; i += tile)
            cblas_dtrsm(CblasRowMajor, CblasRight, CblasUpper, CblasTrans, CblasNonUnit, (int)tile, (int)width, 1, h + j * n + j, (int)n,
                        h + i * n + j, (int)n);
    }
    return BK_OK;
}

/* --- R^-1 --- */

BK_CLONES static void add_scaled(int64_t n, double alpha, const double *x, double *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] += alpha * x[i];
}

/* One tile on the diagonal: row i of the inverse is -1/R_ii times what row i of R makes of the rows below. */
static void invert_tile(int64_t n, double *u, int64_t ld)
{
    double row[TILE_MAX];
    for (int64_t i = n - 1; i >= 0; i--) {
        double *r = u + i * ld;
        for (int64_t j = i; j < n; j++) row[j] = 0;
        for (int64_t k = i + 1; k < n; k++) add_scaled(n - k, r[k], u + k * ld + k, row + k);
        for (int64_t j = i + 1; j < n; j++) r[j] = -row[j] / r[i];
        r[i] = 1 / r[i];
    }
}

size_t bk_cpu_trtri_work(const bk_trtri_args *a) { return sizeof(double) * (size_t)(tile_of(a->n) * a->n); }

/* Rows i of R right of the diagonal, times -U_ii, into t[tile, n]: the tile at column j */
static void prepare_tile(const double *u, int64_t n, int64_t tile, int64_t i, int64_t j, double *t)
{
    int64_t width = bk_min_i64(tile, n - j);
    for (int64_t r = 0; r < tile; r++) memcpy(t + r * n + j, u + (i + r) * n + j, sizeof(double) * (size_t)width);
    cblas_dtrmm(CblasRowMajor, CblasLeft, CblasUpper, CblasNoTrans, CblasNonUnit, (int)tile, (int)width, -1, u + i * n + i, (int)n, t + j,
                (int)n);
}

/* U_ij = sum over k = i+1 .. j of T_k U_kj */
static void inverse_tile(double *u, int64_t n, int64_t tile, int64_t i, int64_t j, const double *t)
{
    int64_t width = bk_min_i64(tile, n - j), from = i + tile;
    double *out = u + i * n + j;
    for (int64_t r = 0; r < tile; r++) memcpy(out + r * n, t + r * n + j, sizeof(double) * (size_t)width);
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit, (int)tile, (int)width, 1, u + j * n + j, (int)n, out,
                (int)n);
    if (j > from)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)tile, (int)width, (int)(j - from), 1, t + from, (int)n,
                    u + from * n + j, (int)n, 1, out, (int)n);
}

bk_status bk_cpu_trtri(const bk_trtri_args *a, const bk_work *w)
{
    int64_t n = a->n, tile = tile_of(n), last = (bk_tiles(n, tile) - 1) * tile;
    double *u = a->u, *t = bk_cpu_scratch(w, bk_cpu_trtri_work(a));
    if (n && !t) return BK_ENOMEM;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i += tile) invert_tile(bk_min_i64(tile, n - i), u + i * n + i, n);
    for (int64_t i = last - tile; i >= 0; i -= tile) {
#pragma omp parallel
        {
#pragma omp for schedule(dynamic)
            for (int64_t j = i + tile; j < n; j += tile) prepare_tile(u, n, tile, i, j, t);
#pragma omp for schedule(dynamic)
            for (int64_t j = last; j > i; j -= tile) inverse_tile(u, n, tile, i, j, t);
        }
    }
    return BK_OK;
}

/* --- eigenvectors --- */

static int64_t real_work(int64_t n) { return 1 + 6 * n + 2 * n * n; }
static int64_t int_work(int64_t n) { return 3 + 5 * n; }

size_t bk_cpu_eigh_work(const bk_eigh_args *a)
{
    return sizeof(double) * (size_t)real_work(a->n) + sizeof(int) * (size_t)int_work(a->n);
}

static void swap(double *p, double *q)
{
    double t = *p;
    *p = *q;
    *q = t;
}

/* LAPACK leaves eigenvectors as rows, smallest value first. */
static void columns_descending(int64_t n, double *values, double *v)
{
    for (int64_t i = 0; i < n / 2; i++) {
        swap(values + i, values + n - 1 - i);
        for (int64_t k = 0; k < n; k++) swap(v + i * n + k, v + (n - 1 - i) * n + k);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = i + 1; k < n; k++) swap(v + i * n + k, v + k * n + i);
    for (int64_t i = 0; i < n; i++) {
        double sign = bk_canonical_sign(n, n, v + i);
        for (int64_t k = 0; k < n; k++) v[k * n + i] *= sign;
    }
}

bk_status bk_cpu_eigh(const bk_eigh_args *a, const bk_work *w)
{
    if (!a->n) return BK_OK;
    if (real_work(a->n) > INT_MAX) return BK_EUNSUP;
    double *work = bk_cpu_scratch(w, bk_cpu_eigh_work(a));
    if (!work) return BK_ENOMEM;
    for (int64_t i = 0; i < a->n * a->n; i++) {
        if (!isfinite(a->a[i])) return BK_ENUMERIC;
        a->vectors[i] = a->a[i];
    }
    int n = (int)a->n, lwork = (int)real_work(a->n), liwork = (int)int_work(a->n), info = 0, threads = omp_get_max_threads();
    omp_set_num_threads(1); /* OpenBLAS, called outside of a parallel region, would take them all */
    dsyevd_("V", "U", &n, a->vectors, &n, a->values, work, &lwork, (int *)(void *)(work + lwork), &liwork, &info, 1, 1);
    omp_set_num_threads(threads);
    if (info) return BK_ENUMERIC;
    columns_descending(a->n, a->values, a->vectors);
    return BK_OK;
}
