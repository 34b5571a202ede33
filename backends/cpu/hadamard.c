/* Block Hadamard transform: butterflies on the rows of pow2, then the base x base part across the rows, one block at a time in scratch
 * that stays in the first caches. */
#include <math.h>

#include "backends/cpu/cpu.h"

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));

/* The stages of distance 1, 2, 4 inside groups of eight: v' = swapped + sign v. */
BK_INLINE void butterfly8(float *x)
{
    const v8 s1 = {1, -1, 1, -1, 1, -1, 1, -1}, s2 = {1, 1, -1, -1, 1, 1, -1, -1}, s4 = {1, 1, 1, 1, -1, -1, -1, -1};
    v8 v = *(v8 *)x;
    v = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6) + s1 * v;
    v = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5) + s2 * v;
    v = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3) + s4 * v;
    *(v8 *)x = v;
}

BK_CLONES static void butterflies(int64_t n, float *x)
{
    int64_t h = 1;
    if (n >= 8) {
        for (int64_t i = 0; i < n; i += 8) butterfly8(x + i);
        h = 8;
    }
    for (; h < n; h *= 2)
        for (int64_t i = 0; i < n; i += 2 * h) {
            float *restrict lo = x + i, *restrict hi = x + i + h;
            for (int64_t j = 0; j < h; j++) {
                float p = lo[j], q = hi[j];
                lo[j] = p + q;
                hi[j] = p - q;
            }
        }
}

/* One row of y[base, pow2] = scale H x, H's row given with its stride; sums stay in registers for 32 columns at a time. */
BK_CLONES static void mix(int64_t base, int64_t pow2, const float *h, int64_t stride, const float *x, float scale, int accumulate,
                          float *y)
{
    int64_t at = 0;
    for (; at + 32 <= pow2; at += 32) {
        v8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, *to = (v8 *)(y + at);
        for (int64_t j = 0; j < base; j++) {
            const v8 *v = (const v8 *)(x + j * pow2 + at);
            float sign = h ? h[j * stride] : 1.0f;
            s0 += sign * v[0];
            s1 += sign * v[1];
            s2 += sign * v[2];
            s3 += sign * v[3];
        }
        to[0] = accumulate ? to[0] + scale * s0 : scale * s0;
        to[1] = accumulate ? to[1] + scale * s1 : scale * s1;
        to[2] = accumulate ? to[2] + scale * s2 : scale * s2;
        to[3] = accumulate ? to[3] + scale * s3 : scale * s3;
    }
    for (; at < pow2; at++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < base; j++) sum += h ? h[j * stride] * x[j * pow2 + at] : x[at];
        y[at] = accumulate ? y[at] + scale * sum : scale * sum;
    }
}

size_t bk_cpu_hadamard_work(const bk_hadamard_args *a)
{
    return (size_t)omp_get_max_threads() * bk_align(sizeof(float) * (size_t)(a->base * a->pow2));
}

bk_status bk_cpu_hadamard(const bk_hadamard_args *a, const bk_work *w)
{
    int64_t size = a->base * a->pow2;
    size_t slice = bk_align(sizeof(float) * (size_t)size);
    char *scratch = bk_cpu_scratch(w, bk_cpu_hadamard_work(a));
    if (!scratch) return BK_ENOMEM;
    float scale = (float)(1.0 / sqrt((double)size));
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->blocks * size))
    for (int64_t b = 0; b < a->rows * a->blocks; b++) {
        float *t = (float *)(void *)(scratch + (size_t)omp_get_thread_num() * slice);
        memcpy(t, (const float *)a->x + b * size, sizeof(float) * (size_t)size);
        for (int64_t i = 0; i < a->base; i++) butterflies(a->pow2, t + i * a->pow2);
        for (int64_t i = 0; i < a->base; i++) {
            const float *h = a->base == 1 ? 0 : a->transpose ? (const float *)a->h + i : (const float *)a->h + i * a->base;
            mix(a->base, a->pow2, h, a->transpose ? a->base : 1, t, scale, a->accumulate, (float *)a->y + b * size + i * a->pow2);
        }
    }
    return BK_OK;
}
