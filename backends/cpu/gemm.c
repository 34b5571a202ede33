/* Matrix products: single-threaded OpenBLAS calls on tiles whose sizes depend on the shape alone, so that the number of threads
 * cannot change a bit. Inside a parallel region OpenBLAS stays on the calling thread. */
#include <cblas.h>

#include "backends/cpu/cpu.h"

/* Measured: 192 rows amortize the packing of B as well as 2000 do. A transposed A (weight gradients: k = tokens) is packed from memory
 * that is far apart, which is cheaper in short pieces of k. */
enum { TILE_M = 192, TILE_N = 576, MIN_N = 128, ENOUGH = 8, PIECE_K = 512 };

/* m n k up to which a product is not worth waking threads; OpenBLAS alone uses one thread there, too (its limit is 2^18). */
enum { SERIAL = 1 << 17 };

typedef struct tiling {
    int64_t m, n, k, rows, cols;
} tiling;

static tiling tiles_for(const bk_gemm_args *a)
{
    tiling t = {.m = TILE_M, .n = bk_max_i64(1, bk_min_i64(TILE_N, a->n)), .k = a->ta ? PIECE_K : bk_max_i64(1, a->k)};
    t.rows = bk_tiles(a->m, t.m);
    while (t.rows * bk_tiles(a->n, t.n) < ENOUGH && t.n >= 2 * MIN_N) t.n = (t.n / 2 + 15) / 16 * 16;
    t.cols = bk_tiles(a->n, t.n);
    return t;
}

typedef void (*tile_fn)(const bk_gemm_args *a, const tiling *t, int64_t i, int64_t j);

/* The tile of C at (i, j): pieces of k one after the other */
#define PRODUCT(name, real, cblas)                                                                                     \
    static void name(const bk_gemm_args *a, const tiling *t, int64_t i, int64_t j)                                     \
    {                                                                                                                  \
        CBLAS_TRANSPOSE ta = a->ta ? CblasTrans : CblasNoTrans, tb = a->tb ? CblasTrans : CblasNoTrans;                \
        int64_t m = bk_min_i64(t->m, a->m - i), n = bk_min_i64(t->n, a->n - j);                                        \
        for (int64_t l = 0; l < bk_max_i64(1, a->k); l += t->k) {                                                      \
            const real *pa = (const real *)a->a + (a->ta ? l * a->lda + i : i * a->lda + l);                           \
            const real *pb = (const real *)a->b + (a->tb ? j * a->ldb + l : l * a->ldb + j);                           \
            cblas(CblasRowMajor, ta, tb, (int)m, (int)n, (int)bk_min_i64(t->k, a->k - l), 1, pa, (int)a->lda, pb,      \
                  (int)a->ldb, l || a->beta, (real *)a->c + i * a->ldc + j, (int)a->ldc);                              \
        }                                                                                                              \
    }
PRODUCT(product_f32, float, cblas_sgemm)
PRODUCT(product_f64, double, cblas_dgemm)

static bk_status in_tiles(const bk_gemm_args *a, tile_fn product)
{
    tiling t = tiles_for(a);
#pragma omp parallel for schedule(dynamic) if (a->m * a->n * a->k > SERIAL)
    for (int64_t u = 0; u < t.rows * t.cols; u++) product(a, &t, u / t.cols * t.m, u % t.cols * t.n);
    return BK_OK;
}

bk_status bk_cpu_gemm(const bk_gemm_args *a, const bk_work *w)
{
    (void)w;
    return in_tiles(a, product_f32);
}

bk_status bk_cpu_gemm_f64(const bk_gemm_args *a, const bk_work *w)
{
    (void)w;
    return in_tiles(a, product_f64);
}

/* A tile of rows of one head at a time */
bk_status bk_cpu_rotate_heads(const bk_rotate_heads_args *a, const bk_work *w)
{
    (void)w;
    int64_t d = a->dim, width = a->heads * d, per = a->heads / a->kv_heads;
#pragma omp parallel for schedule(dynamic) if (a->rows * width * d > SERIAL)
    for (int64_t u = 0; u < bk_tiles(a->rows, TILE_M) * a->heads; u++) {
        int64_t row = u / a->heads * TILE_M, h = u % a->heads, at = row * width + h * d;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, a->transpose ? CblasTrans : CblasNoTrans, (int)bk_min_i64(TILE_M, a->rows - row), (int)d, (int)d,
                    1.0f, (const float *)a->x + at, (int)width, (const float *)a->m + h / per * d * d, (int)d, a->accumulate ? 1.0f : 0.0f,
                    (float *)a->y + at, (int)width);
    }
    return BK_OK;
}
