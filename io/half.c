#include "io/half.h"

#include <string.h>

/* Plain integer and float arithmetic without branches, which compilers turn into SIMD for any CPU: no dispatch, so no
 * second path that could give other bits. Assumes the default rounding mode. */

enum { BLOCK = 4096 }; /* counts fit 32 bits, which keeps the loop in SIMD */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static const uint32_t inf32 = 0x7f800000u, max16 = 0x477fe000u /* 65504 */, min16 = 0x38800000u /* 2^-14, the least normal f16 */;

static inline uint16_t narrow(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t kept = a > max16 ? max16 : a;
    /* Adding half an ulp (less one when even) carries into the exponent by itself; subnormals get their rounding from a
     * float addition whose ulp is 2^-24. */
    uint32_t normal = (kept - (112u << 23) + 0xfffu + (kept >> 13 & 1u)) >> 13;
    uint32_t small = bits_of(float_of(kept) + 0.5f) - bits_of(0.5f);
    uint32_t finite = kept < min16 ? small : normal;
    uint32_t special = 0x7c00u | (a > inf32 ? 0x200u | (a >> 13 & 0x3ffu) : 0u);
    return (uint16_t)(sign | (a >= inf32 ? special : finite));
}

static inline float widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t normal = a + (112u << 23);
    uint32_t small = bits_of(float_of(a + (113u << 23)) - float_of(113u << 23));
    uint32_t special = a + (224u << 23);
    if (a > (0x7c00u << 13)) special |= 0x400000u;
    return float_of(sign | (a >= (0x7c00u << 13) ? special : a < (0x0400u << 13) ? small : normal));
}

static int64_t first_above(const float *src, int64_t n, uint32_t low, uint32_t high)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = bits_of(src[i]) & 0x7fffffffu;
        if (a > low && a < high) return i;
    }
    return -1;
}

bk_half_report bk_f16_from_f32(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    bk_half_report r = {.first_saturated = -1, .first_nonfinite = -1};
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = n - at < BLOCK ? n - at : BLOCK;
        uint32_t beyond = 0, nonfinite = 0;
        for (int64_t i = at; i < at + len; i++) {
            uint32_t a = bits_of(src[i]) & 0x7fffffffu;
            beyond += a > max16;
            nonfinite += a >= inf32;
            dst[i] = narrow(src[i]);
        }
        r.saturated += beyond - nonfinite;
        r.nonfinite += nonfinite;
    }
    if (r.saturated) r.first_saturated = first_above(src, n, max16, inf32);
    if (r.nonfinite) r.first_nonfinite = first_above(src, n, inf32 - 1, UINT32_MAX);
    return r;
}

void bk_f32_from_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = widen(src[i]);
}
