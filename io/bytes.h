/* Little-endian numbers in files, products that cannot overflow. */
#ifndef BK_BYTES_H
#define BK_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "brick reads its files on little-endian machines only"
#endif

static inline uint16_t bk_load16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t bk_load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t bk_load64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float bk_f32_of_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline float bk_bf16_to_f32(uint16_t h)
{
    return bk_f32_of_bits((uint32_t)h << 16);
}

/* *n *= by; false (and *n unchanged) when the product is above `limit`. */
static inline bool bk_times(uint64_t *n, uint64_t by, uint64_t limit)
{
    uint64_t product;
    if (__builtin_mul_overflow(*n, by, &product) || product > limit) return false;
    *n = product;
    return true;
}

#endif
