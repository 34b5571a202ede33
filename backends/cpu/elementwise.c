/* Kernels over flat arrays: chunks of fixed length in parallel, each a vectorized loop. */
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/scalar/math.h"

/* Calls `call` for every chunk, with its first element `at` and its length `len`. */
#define CHUNK_LOOP(size, call)                                                                   \
    do {                                                                                       \
        const int64_t n = (size);                                                              \
        _Pragma("omp parallel for schedule(static) if (BK_BIG(n))")                            \
        for (int64_t chunk = 0; chunk < bk_tiles(n, BK_CHUNK); chunk++) {                      \
            int64_t at = chunk * BK_CHUNK, len = bk_min_i64(BK_CHUNK, n - at);                 \
            call;                                                                              \
        }                                                                                      \
    } while (0)

BK_CLONES static void add_chunk(int64_t n, const float *a, const float *b, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

bk_status bk_cpu_add(const bk_add_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, add_chunk(len, (const float *)a->a + at, (const float *)a->b + at, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void axpy_chunk(int64_t n, float alpha, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] += alpha * x[i];
}

bk_status bk_cpu_axpy(const bk_axpy_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, axpy_chunk(len, (float)a->alpha, (const float *)a->x + at, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void fill_chunk(int64_t n, float value, float *x)
{
    for (int64_t i = 0; i < n; i++) x[i] = value;
}

bk_status bk_cpu_fill(const bk_fill_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, fill_chunk(len, (float)a->value, (float *)a->x + at));
    return BK_OK;
}

BK_CLONES static void scale_chunk(int64_t n, float alpha, float *x)
{
    for (int64_t i = 0; i < n; i++) x[i] *= alpha;
}

bk_status bk_cpu_scale(const bk_scale_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, scale_chunk(len, (float)a->alpha, (float *)a->x + at));
    return BK_OK;
}

BK_CLONES static void swiglu_fwd_chunk(int64_t n, const float *gate, const float *up, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(gate[i], &s, &c);
        y[i] = gate[i] * s * up[i];
    }
}

bk_status bk_cpu_swiglu_fwd(const bk_swiglu_fwd_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, swiglu_fwd_chunk(len, (const float *)a->gate + at, (const float *)a->up + at, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void dgate_chunk(int64_t n, const float *gate, const float *up, const float *dy, float *restrict dgate)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(gate[i], &s, &c);
        dgate[i] += dy[i] * up[i] * (s * (1.0f + gate[i] * c));
    }
}

BK_CLONES static void dup_chunk(int64_t n, const float *gate, const float *dy, float *restrict dup)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(gate[i], &s, &c);
        dup[i] += dy[i] * (gate[i] * s);
    }
}

BK_CLONES static void swiglu_bwd_chunk(int64_t n, const float *gate, const float *up, const float *dy, float *restrict dgate,
                                       float *restrict dup)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(gate[i], &s, &c);
        dgate[i] += dy[i] * up[i] * (s * (1.0f + gate[i] * c));
        dup[i] += dy[i] * (gate[i] * s);
    }
}

bk_status bk_cpu_swiglu_bwd(const bk_swiglu_bwd_args *a, const bk_work *w)
{
    (void)w;
    const float *gate = a->gate, *up = a->up, *dy = a->dy;
    float *dgate = a->dgate, *dup = a->dup;
    if (dgate && dup)
        CHUNK_LOOP(a->n, swiglu_bwd_chunk(len, gate + at, up + at, dy + at, dgate + at, dup + at));
    else if (dgate)
        CHUNK_LOOP(a->n, dgate_chunk(len, gate + at, up + at, dy + at, dgate + at));
    else if (dup)
        CHUNK_LOOP(a->n, dup_chunk(len, gate + at, dy + at, dup + at));
    return BK_OK;
}

BK_CLONES static void mul_chunk(int64_t n, const float *a, const float *b, int accumulate, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = (accumulate ? y[i] : 0.0f) + a[i] * b[i];
}

bk_status bk_cpu_mul(const bk_mul_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, mul_chunk(len, (const float *)a->a + at, (const float *)a->b + at, a->accumulate, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void quotient_chunk(int64_t n, float alpha, const float *a, const float *b, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = alpha * a[i] / b[i];
}

bk_status bk_cpu_quotient_fwd(const bk_quotient_fwd_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, quotient_chunk(len, (float)a->alpha, (const float *)a->a + at, (const float *)a->b + at, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void quotient_bwd_chunk(int64_t n, float alpha, const float *a, const float *b, const float *dy, float *da, float *db)
{
    for (int64_t i = 0; i < n; i++) {
        float g = alpha * dy[i] / b[i];
        if (da) da[i] += g;
        if (db) db[i] -= g * a[i] / b[i];
    }
}

bk_status bk_cpu_quotient_bwd(const bk_quotient_bwd_args *a, const bk_work *w)
{
    (void)w;
    float *da = a->da, *db = a->db;
    CHUNK_LOOP(a->n, quotient_bwd_chunk(len, (float)a->alpha, (const float *)a->a + at, (const float *)a->b + at, (const float *)a->dy + at,
                                        da ? da + at : 0, db ? db + at : 0));
    return BK_OK;
}

BK_CLONES static void logistic_chunk(int64_t n, float unit, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(x[i], &s, &c);
        y[i] = s / unit;
    }
}

static float sigmoid_at(double at)
{
    float s, c;
    bk_sigmoid((float)at, &s, &c);
    return s;
}

bk_status bk_cpu_logistic_fwd(const bk_logistic_fwd_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, logistic_chunk(len, sigmoid_at(a->at), (const float *)a->x + at, (float *)a->y + at));
    return BK_OK;
}

BK_CLONES static void logistic_bwd_chunk(int64_t n, float unit, const float *x, const float *dy, float *dx)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;
        bk_sigmoid(x[i], &s, &c);
        dx[i] += dy[i] * (s * c) / unit;
    }
}

bk_status bk_cpu_logistic_bwd(const bk_logistic_bwd_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, logistic_bwd_chunk(len, sigmoid_at(a->at), (const float *)a->x + at, (const float *)a->dy + at, (float *)a->dx + at));
    return BK_OK;
}

BK_CLONES static void signsgd_chunk(int64_t n, float lr, float *restrict p, const float *restrict g)
{
    for (int64_t i = 0; i < n; i++) p[i] -= lr * (float)((g[i] > 0.0f) - (g[i] < 0.0f));
}

bk_status bk_cpu_signsgd(const bk_signsgd_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, signsgd_chunk(len, (float)a->lr, (float *)a->p + at, (const float *)a->g + at));
    return BK_OK;
}

BK_CLONES static void clamp_chunk(int64_t n, float lo, float hi, float *p)
{
    for (int64_t i = 0; i < n; i++) p[i] = bk_clamp(p[i], lo, hi);
}

bk_status bk_cpu_clamp(const bk_clamp_args *a, const bk_work *w)
{
    (void)w;
    CHUNK_LOOP(a->n, clamp_chunk(len, (float)a->lo, (float)a->hi, (float *)a->p + at));
    return BK_OK;
}

typedef struct adam_factors {
    float decay, b1, c1, b2, c2, step, inv_bias2, eps;
} adam_factors;

BK_CLONES static void adamw_chunk(int64_t n, const adam_factors *fp, float *restrict p, float *restrict m, float *restrict v,
                                  const float *restrict g)
{
    const adam_factors f = *fp;
    for (int64_t i = 0; i < n; i++) {
        m[i] = f.b1 * m[i] + f.c1 * g[i];
        v[i] = f.b2 * v[i] + f.c2 * (g[i] * g[i]);
        p[i] = p[i] * f.decay - f.step * (m[i] / (sqrtf(v[i] * f.inv_bias2) + f.eps));
    }
}

bk_status bk_cpu_adamw(const bk_adamw_args *a, const bk_work *w)
{
    (void)w;
    double bias1 = 1.0 - pow(a->beta1, (double)a->t), bias2 = 1.0 - pow(a->beta2, (double)a->t);
    adam_factors f = {(float)(1.0 - a->lr * a->wd), (float)a->beta1, (float)(1.0 - a->beta1), (float)a->beta2, (float)(1.0 - a->beta2),
                      (float)(a->lr / bias1), (float)(1.0 / bias2), (float)a->eps};
    CHUNK_LOOP(a->n, adamw_chunk(len, &f, (float *)a->p + at, (float *)a->m + at, (float *)a->v + at, (const float *)a->g + at));
    return BK_OK;
}

size_t bk_cpu_floor_work(const bk_floor_args *a) { return sizeof(double) * (size_t)bk_tiles(a->n, BK_CHUNK); }

BK_CLONES static double floor_chunk(int64_t n, float *restrict p, const float *restrict lo)
{
    int32_t raised = 0;
    for (int64_t i = 0; i < n; i++) {
        raised += p[i] < lo[i];
        p[i] = p[i] < lo[i] ? lo[i] : p[i];
    }
    return raised;
}

bk_status bk_cpu_floor(const bk_floor_args *a, const bk_work *w)
{
    double *part = bk_cpu_scratch(w, bk_cpu_floor_work(a));
    if (!a->n) return BK_OK;
    if (!part) return BK_ENOMEM;
    CHUNK_LOOP(a->n, part[chunk] = floor_chunk(len, (float *)a->p + at, (const float *)a->lo + at));
    *a->count += bk_cpu_tree_sum(part, bk_tiles(a->n, BK_CHUNK));
    return BK_OK;
}

size_t bk_cpu_sumsq_work(const bk_sumsq_args *a) { return sizeof(double) * (size_t)bk_tiles(a->n, BK_CHUNK); }

BK_CLONES static double sumsq_chunk(int64_t n, const float *x)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += (double)x[i] * (double)x[i]);
    return bk_tree_f64(lane);
}

bk_status bk_cpu_sumsq(const bk_sumsq_args *a, const bk_work *w)
{
    *a->sum = 0.0;
    double *part = bk_cpu_scratch(w, bk_cpu_sumsq_work(a));
    if (!a->n) return BK_OK;
    if (!part) return BK_ENOMEM;
    CHUNK_LOOP(a->n, part[chunk] = sumsq_chunk(len, (const float *)a->x + at));
    *a->sum = bk_cpu_tree_sum(part, bk_tiles(a->n, BK_CHUNK));
    return BK_OK;
}

size_t bk_cpu_finite_work(const bk_finite_args *a) { return sizeof(double) * (size_t)bk_tiles(a->n, BK_CHUNK); }

/* x - x is 0 for finite numbers and NaN otherwise: a vectorizable test; only a chunk that fails it is searched. */
BK_CLONES static double first_bad(int64_t n, const float *x)
{
    int32_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= !(x[i] - x[i] == 0.0f);
    if (!bad) return -1.0;
    int64_t i = 0;
    while (isfinite(x[i])) i++;
    return (double)i;
}

bk_status bk_cpu_finite(const bk_finite_args *a, const bk_work *w)
{
    *a->first = -1.0;
    double *part = bk_cpu_scratch(w, bk_cpu_finite_work(a));
    if (!a->n) return BK_OK;
    if (!part) return BK_ENOMEM;
    CHUNK_LOOP(a->n, part[chunk] = first_bad(len, (const float *)a->x + at));
    for (int64_t t = 0; t < bk_tiles(a->n, BK_CHUNK) && *a->first < 0.0; t++)
        if (part[t] >= 0.0) *a->first = (double)(t * BK_CHUNK) + part[t];
    return BK_OK;
}
