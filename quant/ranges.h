/* Steps of weights made of a range and trained factors of its two ends: what `lwc` and `signround` have in common.
 * With Q = 2^N - 1, the range lo .. hi of a unit and the factors a, b of its ends:
 *   symmetric   s = a s0, s0 the step of the whole range (docs/numerics.md, Rounding and codes)
 *   asymmetric  s = (a hi - b lo) / Q,  z = -b lo / s, which the fake-quantizer rounds
 * The range is that of the weight at initialisation; a unit of zeros has the step a. */
#ifndef BK_RANGES_H
#define BK_RANGES_H

#include "quant/steps.h"

typedef struct bk_ranges {
    bk_steps steps;          /* shapes and codes; its tensors are not used */
    bk_tensor *high, *low;   /* parameters "<prefix>.high", "<prefix>.low", not trained: s0, or hi / Q and -lo / Q; low NULL when symmetric */
    bk_tensor *upper, *lower; /* what is trained: of the upper end (of both when symmetric) and of the lower one (NULL then) */
} bk_ranges;

/* upper, lower: names of what is trained, in learning-rate group `group`. */
bk_status bk_ranges_params(bk_ranges *q, bk_params *p, const char *prefix, int group, bool positive, const char *upper,
                           const char *lower) BK_MUST_USE;
/* high and low; BK_ENUMERIC for ranges that are not finite. */
bk_status bk_ranges_init(bk_ctx *ctx, bk_ranges *q, const float *lo, const float *hi) BK_MUST_USE;
/* upper = lower = v[i] for units at, at + 1, ... */
bk_status bk_ranges_put(bk_ctx *ctx, bk_ranges *q, int64_t at, const float *v, int64_t n) BK_MUST_USE;
/* Records the step, and in *zero the zero point (NULL when symmetric), for factors a and b of the shape of upper. */
bk_tensor *bk_ranges_step(bk_ctx *ctx, const bk_ranges *q, bk_tensor *a, bk_tensor *b, bk_tensor **zero);

#endif
