/* Reconstruction losses and cross-entropy. Sums over a row run in lanes, sums over rows in a fixed tree. */
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/scalar/math.h"

enum { SKIPPED = 3 };
static const float clamp_at = 10.0f;

/* Sum of (p - t)^2 over a row, both clamped and scaled first */
BK_CLONES static double square_row(int64_t n, const float *p, const float *t, float scale, float bound)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        double d = (double)(bk_clamp(p[i], -bound, bound) * scale) - (double)(bk_clamp(t[i], -bound, bound) * scale);
        lane[l] += d * d;
    });
    return bk_tree_f64(lane);
}

BK_CLONES static double magnitude_row(int64_t n, const float *t)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += (double)__builtin_fabsf(t[i]));
    return bk_tree_f64(lane);
}

/* What a row's values are multiplied with before they are compared */
static float row_scale(bk_loss_kind kind, int64_t cols, const float *t)
{
    float largest = kind == BK_LOSS_NORMALIZED_MSE ? bk_cpu_absmax_row(cols, t) : 0.0f;
    return largest > 0.0f ? 1.0f / largest : 1.0f;
}

static float row_bound(bk_loss_kind kind) { return kind == BK_LOSS_CLAMP_MSE ? clamp_at : INFINITY; }

/* Marks the tokens of largest magnitude of one sample with -1; the earlier token wins a tie. */
static void skip_largest(double *magnitude, int64_t tokens)
{
    for (int64_t k = 0; k < bk_min_i64(SKIPPED, tokens); k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < tokens; i++)
            if (magnitude[i] >= 0.0 && (best < 0 || magnitude[i] > magnitude[best])) best = i;
        if (best >= 0) magnitude[best] = -1.0;
    }
}

/* magnitude[rows]: below 0 where a row is left out */
static void find_skipped(bk_loss_kind kind, int64_t samples, int64_t tokens, int64_t cols, const float *target, double *magnitude)
{
    if (kind != BK_LOSS_SKIP_MSE) {
        memset(magnitude, 0, sizeof(double) * (size_t)(samples * tokens));
        return;
    }
#pragma omp parallel for schedule(static) if (BK_BIG(samples * tokens * cols))
    for (int64_t r = 0; r < samples * tokens; r++) magnitude[r] = magnitude_row(cols, target + r * cols);
    for (int64_t s = 0; s < samples; s++) skip_largest(magnitude + s * tokens, tokens);
}

static double cosine_row(int64_t cols, const float *p, const float *t, double *pp, double *tt)
{
    *pp = bk_cpu_dot(cols, p, p);
    *tt = bk_cpu_dot(cols, t, t);
    double norm = sqrt(*pp) * sqrt(*tt);
    return norm > 0.0 ? bk_cpu_dot(cols, p, t) / norm : 0.0;
}

size_t bk_cpu_loss_fwd_work(const bk_loss_fwd_args *a) { return 2 * sizeof(double) * (size_t)(a->samples * a->tokens); }

bk_status bk_cpu_loss_fwd(const bk_loss_fwd_args *a, const bk_work *w)
{
    int64_t rows = a->samples * a->tokens, cols = a->cols;
    double *magnitude = bk_cpu_scratch(w, bk_cpu_loss_fwd_work(a)), *part = magnitude + rows;
    if (!rows || !cols) return BK_EINVAL;
    if (!magnitude) return BK_ENOMEM;
    find_skipped(a->kind, a->samples, a->tokens, cols, a->target, magnitude);
    bool cosine = a->kind == BK_LOSS_COSINE;
#pragma omp parallel for schedule(static) if (BK_BIG(rows * cols))
    for (int64_t r = 0; r < rows; r++) {
        const float *p = (const float *)a->pred + r * cols, *t = (const float *)a->target + r * cols;
        double pp, tt;
        if (cosine)
            part[r] = 1.0 - cosine_row(cols, p, t, &pp, &tt);
        else
            part[r] = magnitude[r] < 0.0 ? 0.0 : square_row(cols, p, t, row_scale(a->kind, cols, t), row_bound(a->kind));
    }
    double count = cosine ? (double)rows : (double)rows * (double)cols;
    *(float *)a->loss = (float)(bk_cpu_tree_sum(part, rows) / count);
    return BK_OK;
}

/* dp += factor (p - t) where p is not clamped */
BK_CLONES static void square_bwd_row(int64_t n, const float *p, const float *t, float factor, float bound, float *restrict dp)
{
    for (int64_t i = 0; i < n; i++) {
        float d = factor * (p[i] - bk_clamp(t[i], -bound, bound));
        dp[i] += bk_select(__builtin_fabsf(p[i]) > bound, 0.0f, d);
    }
}

/* dp += a t + b p */
BK_CLONES static void combine_row(int64_t n, const float *t, float a, const float *p, float b, float *restrict dp)
{
    for (int64_t i = 0; i < n; i++) dp[i] += a * t[i] + b * p[i];
}

size_t bk_cpu_loss_bwd_work(const bk_loss_bwd_args *a) { return sizeof(double) * (size_t)(a->samples * a->tokens); }

bk_status bk_cpu_loss_bwd(const bk_loss_bwd_args *a, const bk_work *w)
{
    if (!a->dpred) return BK_OK;
    int64_t rows = a->samples * a->tokens, cols = a->cols;
    double *magnitude = bk_cpu_scratch(w, bk_cpu_loss_bwd_work(a)), dloss = *(const float *)a->dloss;
    if (!rows || !cols) return BK_EINVAL;
    if (!magnitude) return BK_ENOMEM;
    find_skipped(a->kind, a->samples, a->tokens, cols, a->target, magnitude);
#pragma omp parallel for schedule(static) if (BK_BIG(rows * cols))
    for (int64_t r = 0; r < rows; r++) {
        const float *p = (const float *)a->pred + r * cols, *t = (const float *)a->target + r * cols;
        float *dp = (float *)a->dpred + r * cols;
        if (a->kind == BK_LOSS_COSINE) {
            double pp, tt, cosine = cosine_row(cols, p, t, &pp, &tt), norm = sqrt(pp) * sqrt(tt);
            if (norm > 0.0) combine_row(cols, t, (float)(-dloss / (double)rows / norm), p, (float)(dloss / (double)rows * cosine / pp), dp);
        } else if (magnitude[r] >= 0.0) {
            double scale = row_scale(a->kind, cols, t);
            double factor = 2.0 * dloss * scale * scale / ((double)rows * (double)cols);
            square_bwd_row(cols, p, t, (float)factor, row_bound(a->kind), dp);
        }
    }
    return BK_OK;
}

BK_CLONES static float lse_row(int64_t n, const float *x)
{
    float top[BK_LANES], m = x[0], sum[BK_LANES] = {0};
    for (int l = 0; l < BK_LANES; l++) top[l] = x[0];
    BK_LANE_LOOP(n, top[l] = bk_max(x[i], top[l]));
    for (int l = 0; l < BK_LANES; l++) m = bk_max(m, top[l]);
    BK_LANE_LOOP(n, sum[l] += bk_exp(x[i] - m));
    return m + (float)log((double)bk_tree(sum));
}

static bool targets_fit(const int32_t *target, int64_t rows, int64_t cols)
{
    bool fit = true;
    for (int64_t r = 0; r < rows; r++) fit &= target[r] >= 0 && target[r] < cols;
    return fit;
}

bk_status bk_cpu_xent_fwd(const bk_xent_fwd_args *a, const bk_work *w)
{
    (void)w;
    if (!targets_fit(a->target, a->rows, a->cols)) return BK_EINVAL;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++) {
        const float *x = (const float *)a->logits + r * a->cols;
        float lse = lse_row(a->cols, x);
        ((float *)a->lse)[r] = lse;
        ((float *)a->nll)[r] = lse - x[a->target[r]];
    }
    return BK_OK;
}

BK_CLONES static void softmax_bwd_row(int64_t n, const float *x, float lse, float dnll, float *restrict dx)
{
    for (int64_t i = 0; i < n; i++) dx[i] += dnll * bk_exp(x[i] - lse);
}

bk_status bk_cpu_xent_bwd(const bk_xent_bwd_args *a, const bk_work *w)
{
    (void)w;
    if (!a->dlogits) return BK_OK;
    if (!targets_fit(a->target, a->rows, a->cols)) return BK_EINVAL;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++) {
        float *dx = (float *)a->dlogits + r * a->cols, dnll = ((const float *)a->dnll)[r];
        softmax_bwd_row(a->cols, (const float *)a->logits + r * a->cols, ((const float *)a->lse)[r], dnll, dx);
        dx[a->target[r]] -= dnll;
    }
    return BK_OK;
}
