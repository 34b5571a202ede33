/* Static quantizer of activations: one trained step (and zero point) per tensor, per head or per group of channels, the same for every token.
 * Source: PrefixQuant O2 (arXiv 2410.05265, sec. 4). */
#include "quant/steps.h"

const bk_quantizer bk_quantizer_static = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "static",
    .about = "activations: trained steps (and zero points) per tensor, head or group, the same for every token",
    .for_activations = true,
    .state_size = sizeof(bk_steps),
    .setup = bk_steps_setup_place,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = bk_steps_init,
    .factors = bk_steps_factors,
    .apply = bk_steps_apply,
};
