/* Static quantizer of activations: one trained step (and zero point) per tensor, per head or per group of channels, the same for every token.
 * Source: PrefixQuant O2 (arXiv 2410.05265, sec. 4). */
#include "quant/steps.h"

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    int64_t group = spec->granularity == BK_PER_TENSOR ? shape->cols : spec->granularity == BK_PER_HEAD ? shape->head_dim
                    : spec->granularity == BK_PER_GROUP ? spec->group : 0;
    if (group < 1)
        return bk_fail(err, BK_EINVAL, "%s: static steps cannot be per %s here", shape->name, bk_granularity_name[spec->granularity]);
    return bk_steps_setup(st, spec, shape, group, err);
}

const bk_quantizer bk_quantizer_static = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "static",
    .about = "activations: trained steps (and zero points) per tensor, head or group, the same for every token",
    .for_activations = true,
    .state_size = sizeof(bk_steps),
    .setup = setup,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = bk_steps_init,
    .factors = bk_steps_factors,
    .apply = bk_steps_apply,
};
