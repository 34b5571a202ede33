#include "quant/ranges.h"

#include <math.h>

bk_status bk_ranges_params(bk_ranges *q, bk_params *p, const char *prefix, int group, bool positive, const char *upper, const char *lower)
{
    const bk_steps *s = &q->steps;
    q->high = bk_steps_param(s, p, prefix, "high", BK_GROUP_CONSTANT, false);
    q->upper = bk_steps_param(s, p, prefix, upper, group, positive);
    if (!q->high || !q->upper) return BK_ENOMEM;
    if (s->symmetric) return BK_OK;
    q->low = bk_steps_param(s, p, prefix, "low", BK_GROUP_CONSTANT, false);
    q->lower = bk_steps_param(s, p, prefix, lower, group, positive);
    return q->low && q->lower ? BK_OK : BK_ENOMEM;
}

/* The two ends in steps of the whole range. */
static void ends(const bk_steps *q, float lo, float hi, float *high, float *low)
{
    float z, levels = (float)(q->attr.qmax - q->attr.qmin);
    *low = 0;
    bk_step_of_range(q->bits, q->symmetric, q->restricted, lo, hi, high, &z);
    if (q->symmetric) return;
    *high = fmaxf(hi, 0) / levels;
    *low = fmaxf(-lo, 0) / levels;
    if (!(*high + *low > 1e-30f)) *high = 1, *low = 0;
}

bk_status bk_ranges_init(bk_ctx *ctx, bk_ranges *q, const float *lo, const float *hi)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    int64_t n = bk_steps_units(&q->steps);
    for (int64_t i = 0; i < n; i++) {
        float high, low;
        BK_TRY(bk_steps_check_range(&q->steps, i, lo[i], hi[i], err));
        ends(&q->steps, lo[i], hi[i], &high, &low);
        BK_TRY(bk_write(be, q->high, i, &high, 1, err));
        if (q->low) BK_TRY(bk_write(be, q->low, i, &low, 1, err));
    }
    return BK_OK;
}

bk_status bk_ranges_put(bk_ctx *ctx, bk_ranges *q, int64_t at, const float *v, int64_t n)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    BK_TRY(bk_write(be, q->upper, at, v, n, bk_ctx_error(ctx)));
    return q->lower ? bk_write(be, q->lower, at, v, n, bk_ctx_error(ctx)) : BK_OK;
}

bk_tensor *bk_ranges_step(bk_ctx *ctx, const bk_ranges *q, bk_tensor *a, bk_tensor *b, bk_tensor **zero)
{
    bk_tensor *above = bk_mul(ctx, a, q->high);
    *zero = NULL;
    if (q->steps.symmetric) return above;
    bk_tensor *below = bk_mul(ctx, b, q->low), *s = bk_add(ctx, above, below);
    *zero = bk_quotient(ctx, q->steps.attr.qmax, below, s);
    return s;
}
