/* Learnable weight clipping: the range of each channel or group is scaled by trained factors before it gives the step (and zero point).
 *   a = sigmoid(u) / sigmoid(c) of the upper end, b = sigmoid(l) / sigmoid(c) of the lower one; steps by quant/ranges.h
 * Source: OmniQuant (arXiv 2308.13137), sec. 3.2; docs/methods.md says what is done differently. */
#include <math.h>

#include "quant/ranges.h"

typedef struct lwc {
    bk_ranges r;
    double start; /* c: what u and l begin with where the search does not lower the range */
} lwc;

static const bk_option options[] = {
    {"start", "logit of the clipping factors at first; the trained range ends at 1 / sigmoid(start) of the weights'", BK_OPTION_REAL, 4, -4, 12}};

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    lwc *q = st;
    *q = (lwc){.start = spec->option[0]};
    return bk_steps_setup_place(&q->r.steps, spec, shape, err);
}

static bk_status params(void *st, bk_params *p, const char *prefix)
{
    return bk_ranges_params(&((lwc *)st)->r, p, prefix, BK_GROUP_QUANT, false, "upper", "lower");
}

/* u with sigmoid(u) = f sigmoid(start); f = 1 gives start itself, to the bit. */
static float logit_of(const lwc *q, float f)
{
    double part = fmin((double)f / (1 + exp(-q->start)), 0.9999);
    return f == 1 ? (float)q->start : (float)log(part / (1 - part));
}

static bk_status factors(bk_ctx *ctx, void *st, const float *factor)
{
    lwc *q = st;
    for (int64_t i = 0; i < bk_steps_units(&q->r.steps); i++) {
        float u = logit_of(q, factor[i]);
        BK_TRY(bk_ranges_put(ctx, &q->r, i, &u, 1));
    }
    return BK_OK;
}

static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    lwc *q = st;
    const float u = (float)q->start;
    BK_TRY(bk_ranges_init(ctx, &q->r, lo, hi));
    for (int64_t i = 0; i < bk_steps_units(&q->r.steps); i++) BK_TRY(bk_ranges_put(ctx, &q->r, i, &u, 1));
    return BK_OK;
}

static bk_tensor *step(bk_ctx *ctx, const lwc *q, bk_tensor **zero)
{
    bk_tensor *a = bk_logistic(ctx, q->r.upper, q->start), *b = q->r.lower ? bk_logistic(ctx, q->r.lower, q->start) : NULL;
    return bk_ranges_step(ctx, &q->r, a, b, zero);
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const lwc *q = st;
    bk_tensor *z, *s = step(ctx, q, &z);
    return bk_fakequant(ctx, x, s, z, &q->r.steps.attr);
}

static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const lwc *q = st;
    bk_tensor *z, *s = step(ctx, q, &z);
    BK_TRY(bk_ctx_status(ctx));
    return bk_steps_export(ctx, &q->r.steps, x, s, z, NULL, out);
}

const bk_quantizer bk_quantizer_lwc = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "lwc",
    .about = "weights: trained clipping of the range per channel or group (OmniQuant)",
    .for_weights = true,
    .state_size = sizeof(lwc),
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .setup = setup,
    .params = params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = init,
    .factors = factors,
    .apply = apply,
    .codes = codes,
};
_Static_assert(sizeof(lwc) <= BK_QUANTIZER_STATE_MAX, "state");
_Static_assert(offsetof(lwc, r) == 0 && offsetof(bk_ranges, steps) == 0, "bk_steps_units reads the state as bk_steps");
