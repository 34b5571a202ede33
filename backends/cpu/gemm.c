/* Matrix products: single-threaded OpenBLAS calls on tiles whose sizes depend on the shape alone, so that the number of threads
 * cannot change a bit. Inside a parallel region OpenBLAS stays on the calling thread. */
#include <cblas.h>

#include "backends/cpu/cpu.h"

/* Tiles large enough to amortize that each call packs both operands anew, and enough of them for the threads. */
static void tile_sizes(const bk_gemm_args *a, int64_t *tm, int64_t *tn) {
    *tm = a->ta ? 96 : 512;
    *tn = a->n;
    if (a->m <= *tm) { /* few rows: one token, or a short text */
        *tm = a->m;
        *tn = bk_max_i64(192, (a->n / 8 + 63) / 64 * 64);
    }
    *tm = bk_max_i64(*tm, 1);
    *tn = bk_max_i64(bk_min_i64(*tn, a->n), 1);
}

bk_status bk_cpu_gemm(const bk_gemm_args *a, const bk_work *w) {
    (void)w;
    int64_t tm, tn;
    tile_sizes(a, &tm, &tn);
    int64_t rows = bk_tiles(a->m, tm), cols = bk_tiles(a->n, tn);
    const float *pa = a->a, *pb = a->b;
    float *pc = a->c;
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = 0; t < rows * cols; t++) {
        int64_t i = t / cols * tm, j = t % cols * tn;
        int64_t m = bk_min_i64(tm, a->m - i), n = bk_min_i64(tn, a->n - j);
        cblas_sgemm(CblasRowMajor, a->ta ? CblasTrans : CblasNoTrans, a->tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)a->k, 1.0f,
                    pa + (a->ta ? i : i * a->lda), (int)a->lda, pb + (a->tb ? j * a->ldb : j), (int)a->ldb, (float)a->beta,
                    pc + i * a->ldc + j, (int)a->ldc);
    }
    return BK_OK;
}
