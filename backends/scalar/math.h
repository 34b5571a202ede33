/* Elementary functions of the f32 kernels, without libm: the same bits on every machine and in every vector width, and simple enough for
 * a compiler to vectorize. BK_SCALAR may be defined by a backend that compiles them for a device. */
#ifndef BK_SCALAR_MATH_H
#define BK_SCALAR_MATH_H

#include <stdint.h>

#ifndef BK_SCALAR
#define BK_SCALAR static inline __attribute__((always_inline, unused))
#endif

/* Rounds half to even. Adding and taking away 2^23 leaves no fraction bits; what is larger has none anyway. NaN stays NaN. */
BK_SCALAR float bk_rne(float v)
{
    float magic = __builtin_fabsf(v) < 8388608.0f ? __builtin_copysignf(8388608.0f, v) : 0.0f;
    return (v + magic) - magic;
}

/* NaN stays NaN, so that a broken value is not hidden by a clamp. (Two questions about v, not one about the answer to the other: so
 * gcc turns both into vector selects.) */
BK_SCALAR float bk_clamp(float v, float lo, float hi)
{
    float r = v > hi ? hi : v;
    return v < lo ? lo : r;
}

BK_SCALAR float bk_max(float a, float b) { return a > b ? a : b; }
BK_SCALAR float bk_min(float a, float b) { return a < b ? a : b; }

BK_SCALAR float bk_from_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {bits};
    return v.f;
}

BK_SCALAR uint32_t bk_to_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    return v.u;
}

/* a where `yes` is 1, b where it is 0, by masks: a branch here would keep gcc from vectorizing */
BK_SCALAR float bk_select(int yes, float a, float b)
{
    uint32_t mask = -(uint32_t)yes;
    return bk_from_bits((bk_to_bits(a) & mask) | (bk_to_bits(b) & ~mask));
}

/* e^x to less than 2 ulp (of the subnormal spacing where the result is subnormal); never infinite: from ln(FLT_MAX) on it is FLT_MAX, and
 * below -104.5 it is 0. x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial of degree 7 for e^r. Adding 1.5 2^23 rounds, and leaves n in
 * the low bits; 2^n is built in two halves, since n reaches 128 above and -151 in the subnormals. */
BK_SCALAR float bk_exp(float x)
{
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = (p * r * r + r) + 1.0f;
    int32_t k = (int32_t)(bk_to_bits(shifted) - 0x4b400000u), half = k >> 1;
    float y = p * bk_from_bits((uint32_t)(half + 127) << 23) * bk_from_bits((uint32_t)(k - half + 127) << 23);
    y = bk_select(x < -104.5f, 0.0f, y);
    return bk_select(x > 88.722831f, 3.40282347e38f, y);
}

/* x^2.4 of x >= 0 up to 1e7, to 1e-6 of it: a a^(1/5) with a = x^2, and a^(1/5) = a z^4. Newton's steps z (1.2 - 0.2 a z^5) lead to
 * z = a^(-1/5), from a first guess that divides the exponent by -5. */
BK_SCALAR float bk_pow_2_4(float x)
{
    float a = x * x, z = bk_from_bits((uint32_t)(int32_t)(1.2779e9f - 0.2f * (float)(int32_t)bk_to_bits(a)));
    for (int i = 0; i < 3; i++) {
        float z2 = z * z;
        z *= 1.2f - 0.2f * a * z2 * z2 * z;
    }
    return a * (a * (z * z) * (z * z));
}

/* ln x of a positive, normal x to about 1 ulp: x = 2^n m with m between sqrt(1/2) and sqrt(2), and a polynomial of degree 9 for ln m
 * (the one of Cephes' logf) */
BK_SCALAR float bk_ln(float x)
{
    uint32_t bits = bk_to_bits(x), n = (bits - 0x3f3504f3u) >> 23; /* 0x3f3504f3: sqrt(1/2) */
    float m = bk_from_bits(bits - (n << 23)) - 1.0f, k = (float)((int32_t)(n << 23) >> 23), z = m * m;
    float p = 7.0376836e-2f;
    p = p * m - 1.1514610e-1f;
    p = p * m + 1.1676998e-1f;
    p = p * m - 1.2420141e-1f;
    p = p * m + 1.4249323e-1f;
    p = p * m - 1.6668057e-1f;
    p = p * m + 2.0000714e-1f;
    p = p * m - 2.4999994e-1f;
    p = p * m + 3.3333331e-1f;
    return (m + (m * z * p - k * 2.12194440e-4f - 0.5f * z)) + k * 0.693359375f;
}

/* t^b for t from 0 to 1 and b >= 0; the smallest normal numbers stand for 0 */
BK_SCALAR float bk_power01(float t, float b) { return bk_exp(b * bk_ln(t + 1e-37f)); }

/* 1 / (1 + e^-x) and its complement, both without cancellation or overflow for any finite x */
BK_SCALAR void bk_sigmoid(float x, float *sigma, float *complement)
{
    float e = bk_exp(-__builtin_fabsf(x)), large = 1.0f / (1.0f + e), small = e * large;
    *sigma = bk_select(x < 0.0f, small, large);
    *complement = bk_select(x < 0.0f, large, small);
}

#endif
