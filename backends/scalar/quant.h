/* The fake-quantization formulas of one element and of one (row, group), in f32; see backends/kernels.h and docs/numerics.md.
 *
 * A value's position on the grid is v; its rounded position n = rne(v) lies in the mask if lo <= n <= hi; its code without the zero point
 * is q = clamp(n, lo, hi), and its reconstruction q s. */
#ifndef BK_SCALAR_QUANT_H
#define BK_SCALAR_QUANT_H

#include "backends/scalar/math.h"

/* q = clamp(rne(v), lo, hi) */
BK_SCALAR float bk_quant_level(float v, float lo, float hi) { return bk_clamp(bk_rne(v), lo, hi); }

/* A code as an integer; that of a broken value is 0: converting a NaN is undefined. */
BK_SCALAR int32_t bk_quant_code(float c) { return (int32_t)(c == c ? c : 0.0f); }

/* s = 2 m / Q puts the largest magnitude on a half step; lowered by ulps until it lies on or above it, whatever the rounding. */
BK_SCALAR float bk_quant_full_step(float m, int bits)
{
    float half = (float)((1 << bits) - 1) / 2, s = m / half;
    while (s > 0.0f && m / s < half) s = bk_from_bits(bk_to_bits(s) - 1);
    return s;
}

/* Step and zero point (0 when symmetric) of the range lo..hi (docs/numerics.md, Rounding and codes). */
BK_SCALAR void bk_quant_step(int bits, int symmetric, int restricted, float lo, float hi, float *s, float *z)
{
    float levels = (float)((1 << bits) - 1);
    *z = 0.0f;
    if (symmetric) {
        float m = bk_max(__builtin_fabsf(lo), __builtin_fabsf(hi));
        *s = restricted ? m / (float)((1 << (bits - 1)) - 1) : bk_quant_full_step(m, bits);
    } else if (lo == hi) {
        *s = __builtin_fabsf(hi); /* a constant is one step away from zero */
        *z = hi < 0.0f ? 1.0f : 0.0f;
    } else {
        lo = bk_min(lo, 0.0f);
        hi = bk_max(hi, 0.0f);
        *s = hi / levels - lo / levels; /* hi - lo could overflow */
        *z = *s > 0.0f ? bk_rne(-lo / *s) : 0.0f;
    }
    if (!(*s > 1e-30f)) *s = 1.0f;
}

/* Soft rounding up, the rectified sigmoid of AdaRound (arXiv 2004.10568): h = clamp(1.2 sigmoid(v) - 0.1, 0, 1), as t = 2h - 1 before the
 * clamp to -1 .. 1; and the derivative of h */
BK_SCALAR float bk_soft_lean(float v, float *slope)
{
    float g, c;
    bk_sigmoid(v, &g, &c);
    float t = 2.4f * g - 1.2f;
    *slope = bk_select(__builtin_fabsf(t) < 1.0f, 1.2f * g * c, 0.0f);
    return t;
}

BK_SCALAR float bk_soft_round(float v, float *slope) { return bk_clamp(0.5f * bk_soft_lean(v, slope) + 0.5f, 0.0f, 1.0f); }

/* |2h - 1|^beta. A clamp to 1 before the power would make gcc branch around it. */
BK_SCALAR float bk_soft_power(float t, float beta)
{
    float p = __builtin_fabsf(t);
    return bk_select(p < 1.0f, bk_power01(p, beta), 1.0f);
}

/* Level of a position u on the grid with the rounding parameter v, and its derivative after v (bk_rounding). A caller that vectorizes gives a
 * constant for `soft`. */
BK_SCALAR float bk_quant_round(int soft, float u, float v, float *slope)
{
    float near = bk_rne(soft ? u : u + v);
    *slope = 1.0f;
    return soft ? near - bk_select(near > u, 1.0f, 0.0f) + bk_soft_round(v, slope) : near;
}

/* Grid of one (row, group) of a dynamic quantizer. v = x / div (times mul if symmetric); y = clamp(rne(v), lo, hi) step; code = q + zero.
 * dmax, dmin: derivative of the step after the largest (magnitude) and smallest value; dgamma, dbeta: after the factors, 0 where they
 * leave no range and count as 1. */
typedef struct bk_quant_grid {
    float div, mul, step, zero, lo, hi;
    float dmax, dmin, dgamma, dbeta;
    int straight; /* a range too small to quantize: gradients pass straight through */
} bk_quant_grid;

BK_SCALAR bk_quant_grid bk_quant_symmetric(float amax, float gamma, int qmin, int qmax)
{
    bk_quant_grid g = {0};
    float levels = (float)(qmax - qmin);
    int some = amax > 0.0f, learns = !(gamma <= 0.0f);
    gamma = learns ? gamma : 1.0f;
    g.div = some ? amax : 1.0f;
    g.mul = levels / (2.0f * gamma);
    g.step = some ? 2.0f * gamma * amax / levels : 1.0f;
    g.lo = (float)qmin;
    g.hi = (float)qmax;
    g.dmax = 2.0f * gamma / levels;
    g.dgamma = learns ? 2.0f * amax / levels : 0.0f;
    return g;
}

BK_SCALAR bk_quant_grid bk_quant_asymmetric(float max, float min, float gamma, float beta, int qmax, int bounded)
{
    bk_quant_grid g = {0};
    float levels = (float)qmax, amax = bk_max(__builtin_fabsf(max), __builtin_fabsf(min)), range = max - min;
    int learns = !((double)gamma * max - (double)beta * min <= 0.0);
    gamma = learns ? gamma : 1.0f;
    beta = learns ? beta : 1.0f;
    g.step = (float)(((double)gamma * max - (double)beta * min) / levels); /* rounded once: gradients of the factors cancel */
    g.straight = range < 1e-5f * amax || range == 0.0f || g.step == 0.0f;
    if (g.straight) g.step = amax > 0.0f ? amax : 1.0f;
    g.zero = -bk_rne((g.straight ? min : beta * min) / g.step);
    if (bounded) g.zero = bk_clamp(g.zero, 0.0f, levels);
    g.div = g.step;
    g.mul = 1.0f;
    g.lo = -g.zero;
    g.hi = levels - g.zero;
    g.dmax = gamma / levels;
    g.dmin = -beta / levels;
    g.dgamma = learns ? max / levels : 0.0f;
    g.dbeta = learns ? -min / levels : 0.0f;
    return g;
}

#endif
