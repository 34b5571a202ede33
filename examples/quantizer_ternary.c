/* Ternary quantizer of weights: w' = s c with c in -1, 0, 1 and one trained step s per output channel or per group of inputs.
 * The idea is that of ternary weight networks (Li, Zhang, Liu, arXiv 1605.04711); here s starts at the largest magnitude, the grid search
 * lowers it, and block reconstruction trains it together with the weights.
 *
 * A worked example: docs/adding-a-quantizer.md. tests/test_example_quantizer.c compiles and tests it. */
#include "quant/steps.h"

/* Three codes are what `bits: 2`, `symmetric: true` and `step: restricted` leave of four: s = max / (2^1 - 1). */
static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    bk_steps *q = st;
    if (spec->bits != 2 || !spec->symmetric || !spec->restricted)
        return bk_fail(err, BK_EINVAL, "%s: ternary weights need bits: 2, symmetric: true and step: restricted", shape->name);
    if (spec->granularity != BK_PER_CHANNEL && spec->granularity != BK_PER_GROUP)
        return bk_fail(err, BK_EINVAL, "%s: ternary weights are per channel or per group, not per %s", shape->name,
                       bk_granularity_name[spec->granularity]);
    BK_TRY(bk_steps_setup(q, spec, shape, spec->granularity == BK_PER_GROUP ? spec->group : shape->cols, err));
    q->attr.qmin = -1;
    q->attr.qmax = 1;
    return BK_OK;
}

/* Files store code - qmin, and whoever reads them knows only the bits: qmin is that of all 2-bit codes. */
static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    int qmax;
    BK_TRY(bk_steps_codes(ctx, st, x, out));
    bk_code_range(2, true, &out->qmin, &qmax);
    return BK_OK;
}

const bk_quantizer bk_quantizer_ternary = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "ternary",
    .about = "weights: -s, 0 or s with a trained s per channel or group",
    .for_weights = true,
    .state_size = sizeof(bk_steps),
    .setup = setup,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = bk_steps_init,
    .factors = bk_steps_factors,
    .apply = bk_steps_apply,
    .codes = codes,
};
