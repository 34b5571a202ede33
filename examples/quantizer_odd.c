/* Quantizer of weights with an odd number of codes, as many below zero as above: w' = s c with c in -k .. k and one
 * trained step s per output channel or per group of inputs; 2 k + 1 is its option `codes`. With three codes these are
 * the ternary weights of Li, Zhang and Liu (arXiv 1605.04711). Here s starts where the largest magnitude takes the
 * outermost code, the grid search lowers it, and block reconstruction trains it together with the weights.
 *
 * A worked example: docs/adding-a-quantizer.md. The file is a plugin as it stands, and a quantizer of the tree when
 * it lies in quant/. */
#include <math.h>

#include "quant/plugin.h"
#include "quant/steps.h"

static const bk_option options[] = {
    {.name = "codes",
     .about = "number of codes: odd, below 2^bits, and too many for a bit less",
     .type = BK_OPTION_INT,
     .initial = 3,
     .min = 3,
     .max = 255},
};

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    bk_steps *q = st;
    int codes = (int)spec->option[0], all = 1 << spec->bits;
    if (!spec->symmetric || !spec->restricted)
        return bk_fail(err, BK_EINVAL,
                       "%s: as many codes below zero as above need symmetric: true and step: restricted", shape->name);
    if (codes % 2 == 0 || codes >= all || codes <= all / 2)
        return bk_fail(err, BK_EINVAL, "%s: %d codes of %d bits: want an odd number above %d and below %d", shape->name,
                       codes, spec->bits, all / 2, all);
    if (spec->granularity != BK_PER_CHANNEL && spec->granularity != BK_PER_GROUP)
        return bk_fail(err, BK_EINVAL, "%s: these weights are per channel or per group, not per %s", shape->name,
                       bk_granularity_name[spec->granularity]);
    BK_TRY(bk_steps_setup(q, spec, shape, spec->granularity == BK_PER_GROUP ? spec->group : shape->cols, err));
    q->attr.qmax = codes / 2;
    q->attr.qmin = -q->attr.qmax;
    return BK_OK;
}

/* s = max / k, which restricted steps of two bits are for k = 1; a range of zeros has the step 1. */
static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    const bk_steps *q = st;
    const bk_backend *be = bk_ctx_backend(ctx);
    for (int64_t i = 0; i < bk_steps_units(st); i++) {
        float k = (float)q->attr.qmax, s, z;
        if (!isfinite(lo[i]) || !isfinite(hi[i]))
            return bk_fail(bk_ctx_error(ctx), BK_ENUMERIC, "%s: range %lld is not finite", q->name, (long long)i);
        bk_step_of_range(2, true, true, lo[i] / k, hi[i] / k, &s, &z);
        BK_TRY(bk_write(be, q->s, i, &s, 1, bk_ctx_error(ctx)));
        BK_TRY(bk_write(be, q->base, i, &s, 1, bk_ctx_error(ctx)));
    }
    return BK_OK;
}

/* Files store code - qmin, and whoever reads them knows only the bits: qmin is that of all codes of these bits. */
static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    int qmax;
    BK_TRY(bk_steps_codes(ctx, st, x, out));
    bk_code_range(((const bk_steps *)st)->bits, true, &out->qmin, &qmax);
    return BK_OK;
}

const bk_quantizer bk_quantizer_odd = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "odd",
    .about = "weights: an odd number of codes around zero, a trained step per channel or group",
    .for_weights = true,
    .state_size = sizeof(bk_steps),
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .setup = setup,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = init,
    .factors = bk_steps_factors,
    .apply = bk_steps_apply,
    .codes = codes,
};

BK_PLUGIN(&bk_quantizer_odd);
