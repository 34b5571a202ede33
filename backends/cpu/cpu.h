/* What the f32 kernels of the cpu backend share. Row functions are cloned for the vector units of the machine at load time (BK_CLONES);
 * parallel loops live in the kernels around them, because OpenMP regions and clones do not mix. Sums follow the rules of
 * backends/kernels.h: 32 strided lanes and a halving tree per row, fixed tiles of rows and a halving tree over rows. */
#ifndef BK_CPU_H
#define BK_CPU_H

#include <omp.h>
#include <stdbool.h>
#include <string.h>

#include "backends/kernels.h"

#if defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define BK_CLONES /* resolvers run before the sanitizer is ready */
#elif defined(__clang__)
#define BK_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BK_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif

#define BK_INLINE static inline __attribute__((always_inline, unused))

enum { BK_LANES = 32, BK_TILE_ROWS = 64, BK_CHUNK = 16384 };

/* Less than this is done before other threads are awake. */
#define BK_BIG(elements) ((elements) > BK_CHUNK)

BK_INLINE int64_t bk_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
BK_INLINE int64_t bk_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
BK_INLINE int64_t bk_tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }
BK_INLINE size_t bk_align(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

BK_INLINE float bk_tree(float *lane)
{
    for (int h = BK_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++) lane[i] += lane[i + h];
    return lane[0];
}

BK_INLINE double bk_tree_f64(double *lane)
{
    for (int h = BK_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++) lane[i] += lane[i + h];
    return lane[0];
}

/* Runs `body` (which uses the indices i and l) for i = 0 .. n-1 with lane l = i mod 32, so that full groups of lanes vectorize. */
#define BK_LANE_LOOP(n, body)                                                          \
    do {                                                                               \
        int64_t bk_full = (n) / BK_LANES * BK_LANES;                                   \
        for (int64_t bk_base = 0; bk_base < bk_full; bk_base += BK_LANES)              \
            for (int l = 0; l < BK_LANES; l++) {                                       \
                int64_t i = bk_base + l;                                               \
                body;                                                                  \
            }                                                                          \
        for (int l = 0; l < (int)((n) - bk_full); l++) {                               \
            int64_t i = bk_full + l;                                                   \
            body;                                                                      \
        }                                                                              \
    } while (0)

/* out[cols] += halving tree over the rows of part[rows, cols]; destroys part. */
void bk_cpu_tree_rows(float *part, int64_t rows, int64_t cols, float *out);
/* Halving tree over n numbers; destroys them. 0 for n = 0. */
double bk_cpu_tree_sum(double *part, int64_t n);

/* Rows of n: dot product, largest magnitude, y += x */
double bk_cpu_dot(int64_t n, const float *x, const float *y);
double bk_cpu_dot_f64(int64_t n, const double *x, const double *y);
void bk_cpu_widen(int64_t n, const float *x, double *y);
float bk_cpu_absmax_row(int64_t n, const float *x);
void bk_cpu_add_to(int64_t n, const float *x, float *y);

/* Scratch of a kernel call that needs `bytes`; NULL if it was given less. */
static inline void *bk_cpu_scratch(const bk_work *w, size_t bytes) { return w && w->base && w->size >= bytes ? w->base : 0; }

/* Kernels; the ones that need scratch come with the function that tells how much. */
#define BK_SLOT(name, args) bk_status bk_cpu_##name(const args *a, const bk_work *w);
BK_SLOTS(BK_SLOT)
#undef BK_SLOT

size_t bk_cpu_bias_bwd_work(const bk_bias_bwd_args *a);
size_t bk_cpu_rmsnorm_bwd_work(const bk_rmsnorm_bwd_args *a);
size_t bk_cpu_attention_fwd_work(const bk_attention_fwd_args *a);
size_t bk_cpu_attention_bwd_work(const bk_attention_bwd_args *a);
size_t bk_cpu_score_err_work(const bk_score_err_args *a);
size_t bk_cpu_hadamard_work(const bk_hadamard_args *a);
size_t bk_cpu_loss_fwd_work(const bk_loss_fwd_args *a);
size_t bk_cpu_loss_bwd_work(const bk_loss_bwd_args *a);
size_t bk_cpu_fakequant_bwd_work(const bk_fakequant_bwd_args *a);
size_t bk_cpu_dynquant_bwd_work(const bk_dynquant_bwd_args *a);
size_t bk_cpu_round_penalty_fwd_work(const bk_round_penalty_fwd_args *a);
size_t bk_cpu_minmax_work(const bk_minmax_args *a);
size_t bk_cpu_sqerr_work(const bk_sqerr_args *a);
size_t bk_cpu_floor_work(const bk_floor_args *a);
size_t bk_cpu_sumsq_work(const bk_sumsq_args *a);
size_t bk_cpu_finite_work(const bk_finite_args *a);
size_t bk_cpu_fit_steps_work(const bk_fit_steps_args *a);
size_t bk_cpu_gptq_work(const bk_gptq_args *a);
size_t bk_cpu_gram_work(const bk_gram_args *a);
size_t bk_cpu_trtri_work(const bk_trtri_args *a);
size_t bk_cpu_eigh_work(const bk_eigh_args *a);

#endif
