/* SignRound: each weight gets a trained offset v before it is rounded, each channel or group trained factors alpha, beta of the ends of its
 * range; all move by the signs of their gradients.
 *   code = clamp(rne(w / s + v) + z), -1/2 <= v <= 1/2; s and z by quant/ranges.h with a = alpha, b = beta, 0 < alpha, beta <= 1
 * Source: SignRound (AutoRound; arXiv 2309.05516); docs/methods.md says what is done differently. */
#include <stdio.h>

#include "quant/ranges.h"

typedef struct signround {
    bk_ranges r;
    bk_tensor *v; /* parameter "<prefix>.v", [rows, cols] */
} signround;

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    signround *q = st;
    *q = (signround){.v = NULL};
    return bk_steps_setup_place(&q->r.steps, spec, shape, err);
}

static bk_status params(void *st, bk_params *p, const char *prefix)
{
    signround *q = st;
    char name[128];
    snprintf(name, sizeof name, "%s.v", prefix);
    BK_TRY(bk_ranges_params(&q->r, p, prefix, BK_GROUP_ROUND, true, "alpha", "beta"));
    q->v = bk_params_add(p, name, BK_GROUP_ROUND, false, 2, (int64_t[]){q->r.steps.rows, q->r.steps.cols});
    if (!q->v) return BK_ENOMEM;
    bk_params_bound(p, q->v, -0.5, 0.5);
    bk_params_bound(p, q->r.upper, 0, 1);
    if (q->r.lower) bk_params_bound(p, q->r.lower, 0, 1);
    return BK_OK;
}

/* The search tries alpha = beta. */
static bk_status factors(bk_ctx *ctx, void *st, const float *factor)
{
    signround *q = st;
    return bk_ranges_put(ctx, &q->r, 0, factor, bk_steps_units(&q->r.steps));
}

static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    signround *q = st;
    const float one = 1, none[256] = {0};
    int64_t n = bk_numel(q->v);
    BK_TRY(bk_ranges_init(ctx, &q->r, lo, hi));
    for (int64_t i = 0; i < bk_steps_units(&q->r.steps); i++) BK_TRY(bk_ranges_put(ctx, &q->r, i, &one, 1));
    for (int64_t i = 0; i < n; i += 256) BK_TRY(bk_write(bk_ctx_backend(ctx), q->v, i, none, n - i < 256 ? n - i : 256, bk_ctx_error(ctx)));
    return BK_OK;
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const signround *q = st;
    bk_tensor *z, *s = bk_ranges_step(ctx, &q->r, q->r.upper, q->r.lower, &z);
    return bk_fakequant_rounded(ctx, x, s, z, q->v, &q->r.steps.attr);
}

static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const signround *q = st;
    bk_tensor *z, *s = bk_ranges_step(ctx, &q->r, q->r.upper, q->r.lower, &z);
    BK_TRY(bk_ctx_status(ctx));
    return bk_steps_export(ctx, &q->r.steps, x, s, z, q->v, out);
}

const bk_quantizer bk_quantizer_signround = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "signround",
    .about = "weights: trained offsets before rounding and clipping factors, moved by signs of gradients (AutoRound)",
    .for_weights = true,
    .state_size = sizeof(signround),
    .rule = BK_RULE_SIGN,
    .setup = setup,
    .params = params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = init,
    .factors = factors,
    .apply = apply,
    .codes = codes,
};
_Static_assert(sizeof(signround) <= BK_QUANTIZER_STATE_MAX, "state");
_Static_assert(offsetof(signround, r) == 0 && offsetof(bk_ranges, steps) == 0, "bk_steps_units reads the state as bk_steps");
