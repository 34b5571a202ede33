/* RMSNorm, RoPE and embedding. */
#include <math.h>

#include "backends/cpu/cpu.h"

/* y = x rstd w; returns rstd */
BK_CLONES static float rmsnorm_row(int64_t n, double eps, const float *x, const float *w, float *restrict y)
{
    float lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += x[i] * x[i]);
    float rstd = (float)(1.0 / sqrt((double)bk_tree(lane) / (double)n + eps));
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i];
    return rstd;
}

bk_status bk_cpu_rmsnorm_fwd(const bk_rmsnorm_fwd_args *a, const bk_work *w)
{
    (void)w;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++)
        ((float *)a->rstd)[r] = rmsnorm_row(a->cols, a->eps, (const float *)a->x + r * a->cols, a->w, (float *)a->y + r * a->cols);
    return BK_OK;
}

/* dx += rstd (w dy - x rstd^2 mean(dy w x)) */
BK_CLONES static void rmsnorm_dx_row(int64_t n, const float *x, const float *w, float rstd, const float *dy, float *restrict dx)
{
    float lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += dy[i] * w[i] * x[i]);
    float along = bk_tree(lane) / (float)n * rstd * rstd;
    for (int64_t i = 0; i < n; i++) dx[i] += rstd * (w[i] * dy[i] - x[i] * along);
}

BK_CLONES static void rmsnorm_dw_row(int64_t n, const float *x, float rstd, const float *dy, float *restrict dw)
{
    for (int64_t i = 0; i < n; i++) dw[i] += dy[i] * (x[i] * rstd);
}

size_t bk_cpu_rmsnorm_bwd_work(const bk_rmsnorm_bwd_args *a) { return sizeof(float) * (size_t)(bk_tiles(a->rows, BK_TILE_ROWS) * a->cols); }

bk_status bk_cpu_rmsnorm_bwd(const bk_rmsnorm_bwd_args *a, const bk_work *w)
{
    int64_t tiles = bk_tiles(a->rows, BK_TILE_ROWS), cols = a->cols;
    if (!a->rows || !cols) return BK_OK;
    float *part = a->dw ? bk_cpu_scratch(w, bk_cpu_rmsnorm_bwd_work(a)) : 0;
    if (a->dw && !part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * cols))
    for (int64_t t = 0; t < tiles; t++) {
        if (part) memset(part + t * cols, 0, sizeof(float) * (size_t)cols);
        for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++) {
            const float *x = (const float *)a->x + r * cols, *dy = (const float *)a->dy + r * cols;
            float rstd = ((const float *)a->rstd)[r];
            if (a->dx) rmsnorm_dx_row(cols, x, a->w, rstd, dy, (float *)a->dx + r * cols);
            if (part) rmsnorm_dw_row(cols, x, rstd, dy, part + t * cols);
        }
    }
    if (part) bk_cpu_tree_rows(part, tiles, cols, a->dw);
    return BK_OK;
}

/* One token; sign -1 turns back; keep = 1 adds to y, 0 overwrites (then y is never read: it may be uninitialized). */
BK_CLONES static void rope_token(int64_t heads, int64_t half, const float *x, const float *cosine, float sign, int keep,
                                 float *restrict y)
{
    const float *sine = cosine + half;
    for (int64_t h = 0; h < heads; h++) {
        const float *p = x + h * 2 * half;
        float *q = y + h * 2 * half;
        if (keep)
            for (int64_t i = 0; i < half; i++) {
                q[i] += p[i] * cosine[i] - p[i + half] * (sign * sine[i]);
                q[i + half] += p[i + half] * cosine[i] + p[i] * (sign * sine[i]);
            }
        else
            for (int64_t i = 0; i < half; i++) {
                q[i] = p[i] * cosine[i] - p[i + half] * (sign * sine[i]);
                q[i + half] = p[i + half] * cosine[i] + p[i] * (sign * sine[i]);
            }
    }
}

bk_status bk_cpu_rope(const bk_rope_args *a, const bk_work *w)
{
    (void)w;
    int64_t width = a->heads * a->dim;
#pragma omp parallel for schedule(static) if (BK_BIG(a->batch * a->tokens * width))
    for (int64_t r = 0; r < a->batch * a->tokens; r++)
        rope_token(a->heads, a->dim / 2, (const float *)a->x + r * width, (const float *)a->table + (a->pos0 + r % a->tokens) * a->dim,
                   a->inverse ? -1.0f : 1.0f, a->accumulate, (float *)a->y + r * width);
    return BK_OK;
}

static bool ids_fit(const int32_t *ids, int64_t n, int64_t vocab)
{
    bool fit = true;
    for (int64_t i = 0; i < n; i++) fit &= ids[i] >= 0 && ids[i] < vocab;
    return fit;
}

bk_status bk_cpu_embedding_fwd(const bk_embedding_fwd_args *a, const bk_work *w)
{
    (void)w;
    if (!ids_fit(a->ids, a->n, a->vocab)) return BK_EINVAL;
#pragma omp parallel for schedule(static) if (BK_BIG(a->n * a->cols))
    for (int64_t i = 0; i < a->n; i++)
        memcpy((float *)a->y + i * a->cols, (const float *)a->table + a->ids[i] * a->cols, sizeof(float) * (size_t)a->cols);
    return BK_OK;
}

/* Strips of columns in parallel, so that each element of the table is added to in the order of n. */
bk_status bk_cpu_embedding_bwd(const bk_embedding_bwd_args *a, const bk_work *w)
{
    (void)w;
    enum { STRIP = 64 };
    if (!a->dtable) return BK_OK;
    if (!ids_fit(a->ids, a->n, a->vocab)) return BK_EINVAL;
#pragma omp parallel for schedule(static) if (BK_BIG(a->n * a->cols))
    for (int64_t strip = 0; strip < bk_tiles(a->cols, STRIP); strip++)
        for (int64_t i = 0; i < a->n; i++)
            for (int64_t c = strip * STRIP; c < bk_min_i64(a->cols, (strip + 1) * STRIP); c++)
                ((float *)a->dtable)[a->ids[i] * a->cols + c] += ((const float *)a->dy)[i * a->cols + c];
    return BK_OK;
}
