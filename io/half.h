/* IEEE binary16 to and from float32. Every path (F16C or portable) gives the same bits. */
#ifndef BK_HALF_H
#define BK_HALF_H

#include <stdint.h>

#define BK_F16_MAX 65504.0f

/* What a narrowing met. Positions are indices into src, -1 = none. */
typedef struct bk_half_report {
    int64_t saturated, first_saturated;   /* finite values beyond +-65504, stored as +-65504 */
    int64_t nonfinite, first_nonfinite;   /* NaN and Inf: stored as they are, the caller decides */
} bk_half_report;

/* dst[i] = src[i] to the nearest f16, half to even; beyond +-65504 the largest finite value. NaN stays a quiet NaN of
 * the same sign. */
bk_half_report bk_f16_from_f32(uint16_t *dst, const float *src, int64_t n);
/* Exact. Signalling NaNs become quiet. */
void bk_f32_from_f16(float *dst, const uint16_t *src, int64_t n);

#endif
