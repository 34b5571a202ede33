/* Dynamic quantizer of activations: a step per token, or per token and head or group, from that token's own range, scaled by trained clipping
 * factors gamma (maximum) and, asymmetric, beta (minimum).  Source: PrefixQuant O1 (arXiv 2410.05265, sec. 4); docs/numerics.md. */
#include <stdio.h>

#include "ops/ops.h"
#include "quant/quantizer.h"
#include "quant/steps.h"

typedef struct dynamic {
    bk_dynquant_attr attr;
    bool clip;
    float clip_ratio; /* where the factors begin */
    bk_tensor *gamma, *beta; /* parameters "<prefix>.gamma", "<prefix>.beta"; NULL = 1 */
} dynamic;

static const bk_option options[] = {
    {"bounded_zero", "asymmetric: zero points stay in the range of codes, as integer hardware may want them; offsets of groups are clipped then",
     BK_OPTION_BOOL, 0, 0, 1},
    {"clip_ratio", "what clipping factors begin at; QuaRot clips activations to 0.9 of their range and the cache to 0.95", BK_OPTION_REAL, 1, 0.1, 1}};

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    dynamic *q = st;
    int64_t group = spec->granularity == BK_PER_TOKEN ? shape->cols : spec->granularity == BK_PER_HEAD ? shape->head_dim
                    : spec->granularity == BK_PER_GROUP ? spec->group : 0;
    if (group < 1)
        return bk_fail(err, BK_EINVAL, "%s: dynamic ranges cannot be per %s here", shape->name, bk_granularity_name[spec->granularity]);
    if (shape->cols % group)
        return bk_fail(err, BK_ESHAPE, "%s: group size %lld does not divide its %lld columns", shape->name, (long long)group,
                       (long long)shape->cols);
    if (!spec->clip && spec->option[1] != 1)
        return bk_fail(err, BK_EINVAL, "%s: clip_ratio is what clipping factors begin at, and there are none: set clip: true", shape->name);
    *q = (dynamic){.attr = {.group = group, .symmetric = spec->symmetric, .bounded = !spec->symmetric && spec->option[0] != 0}, .clip = spec->clip,
                   .clip_ratio = (float)spec->option[1]};
    bk_code_range(spec->bits, spec->symmetric, &q->attr.qmin, &q->attr.qmax);
    if (spec->symmetric && spec->restricted) q->attr.qmin = -q->attr.qmax; /* s = 2 m / (qmax - qmin) is then m / qmax */
    return BK_OK;
}

static bk_status params(void *st, bk_params *p, const char *prefix)
{
    dynamic *q = st;
    char name[128];
    if (!q->clip) return BK_OK;
    snprintf(name, sizeof name, "%s.gamma", prefix);
    q->gamma = bk_params_add(p, name, BK_GROUP_QUANT, true, 1, (int64_t[]){1});
    if (!q->gamma) return BK_ENOMEM;
    if (q->attr.symmetric) return BK_OK;
    snprintf(name, sizeof name, "%s.beta", prefix);
    q->beta = bk_params_add(p, name, BK_GROUP_QUANT, true, 1, (int64_t[]){1});
    return q->beta ? BK_OK : BK_ENOMEM;
}

static int64_t units(const void *st)
{
    return ((const dynamic *)st)->clip ? 1 : 0;
}

static bool needs_range(const void *st)
{
    (void)st;
    return false;
}

/* gamma and beta move together. */
static bk_status factors(bk_ctx *ctx, void *st, const float *factor)
{
    dynamic *q = st;
    float clipped = q->clip_ratio * *factor;
    if (q->gamma) BK_TRY(bk_write(bk_ctx_backend(ctx), q->gamma, 0, &clipped, 1, bk_ctx_error(ctx)));
    return q->beta ? bk_write(bk_ctx_backend(ctx), q->beta, 0, &clipped, 1, bk_ctx_error(ctx)) : BK_OK;
}

static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)lo, (void)hi;
    return factors(ctx, st, &(float){1});
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    dynamic *q = st;
    return bk_dynquant(ctx, x, q->gamma, q->beta, &q->attr);
}

const bk_quantizer bk_quantizer_dynamic = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "dynamic",
    .about = "activations: a range per token (and head or group), trained clipping factors",
    .for_activations = true,
    .state_size = sizeof(dynamic),
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .setup = setup,
    .params = params,
    .units = units,
    .needs_range = needs_range,
    .init = init,
    .factors = factors,
    .apply = apply,
};
_Static_assert(sizeof(dynamic) <= BK_QUANTIZER_STATE_MAX, "state");
