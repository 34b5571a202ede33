/* Elementary functions of the f32 kernels, without libm: the same bits on every machine and in every vector width, and simple enough for
 * a compiler to vectorize. BK_SCALAR may be defined by a backend that compiles them for a device. */
#ifndef BK_SCALAR_MATH_H
#define BK_SCALAR_MATH_H

#include <stdint.h>

#ifndef BK_SCALAR
#define BK_SCALAR static inline __attribute__((always_inline, unused))
#endif

/* Rounds half to even. Adding and taking away 2^23 leaves no fraction bits; what is larger has none anyway. NaN stays NaN. */
BK_SCALAR float bk_rne(float v) {
    float magic = __builtin_copysignf(8388608.0f, v);
    float r = (v + magic) - magic;
    return __builtin_fabsf(v) < 8388608.0f ? r : v;
}

/* NaN stays NaN, so that a broken value is not hidden by a clamp. */
BK_SCALAR float bk_clamp(float v, float lo, float hi) {
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

BK_SCALAR float bk_max(float a, float b) { return a > b ? a : b; }
BK_SCALAR float bk_min(float a, float b) { return a < b ? a : b; }

/* 2^n for -126 <= n <= 127 */
BK_SCALAR float bk_pow2(int32_t n) {
    union {
        int32_t i;
        float f;
    } u = {(n + 127) * 8388608};
    return u.f;
}

/* e^x to less than 2 ulp (of the subnormal spacing where the result is subnormal); never infinite: from ln(FLT_MAX) on it stays there, and
 * below -104 it is 0. x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial of degree 7 for e^r. */
BK_SCALAR float bk_exp(float x) {
    x = bk_clamp(x, -104.5f, 88.722831f);
    float n = bk_rne(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = (p * r * r + r) + 1.0f;
    /* 2^n in two halves: n reaches 128 above, and -151 in the subnormals below. A NaN must not reach the conversion. */
    int32_t k = (int32_t)(n == n ? n : 0.0f), half = k >> 1;
    return p * bk_pow2(half) * bk_pow2(k - half);
}

/* 1 / (1 + e^-x) and its complement, both without cancellation or overflow for any finite x */
BK_SCALAR void bk_sigmoid(float x, float *sigma, float *complement) {
    float e = bk_exp(-__builtin_fabsf(x)), d = 1.0f / (1.0f + e);
    *sigma = (x < 0.0f ? e : 1.0f) * d;
    *complement = (x < 0.0f ? 1.0f : e) * d;
}

#endif
