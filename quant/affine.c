/* Uniform quantizer of weights: a step (and zero point) per output channel or per group of inputs, trained together with the weights.
 * q = clamp(rne(w / s) + z, qmin, qmax), w' = (q - z) s.
 * Sources: PrefixQuant (arXiv 2410.05265) eq. 1-2; EfficientQAT (arXiv 2407.11062), block phase. */
#include "quant/steps.h"

const bk_quantizer bk_quantizer_affine = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "affine",
    .about = "weights: trained steps (and zero points) per channel or group",
    .for_weights = true,
    .state_size = sizeof(bk_steps),
    .setup = bk_steps_setup_place,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = bk_steps_init,
    .factors = bk_steps_factors,
    .apply = bk_steps_apply,
    .codes = bk_steps_codes,
};
_Static_assert(sizeof(bk_steps) <= BK_QUANTIZER_STATE_MAX, "state");
