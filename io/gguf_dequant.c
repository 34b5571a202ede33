/* Block formats of ggml. Each type packs a run of a row into one block: one or two f16 scales, then integer codes; the
 * K types hold 256 values whose 6 or 8-bit scales of 16 or 32 values refer to the block's own. The arithmetic is f32 in
 * this order, so that the values are the ones every other reader of these files computes. */
#include "io/gguf_dequant.h"

#include <stddef.h>

#include "io/bytes.h"
#include "io/half.h"

#define K 256

static float half_at(const unsigned char *s)
{
    const uint16_t h = bk_load16(s);
    float v;
    bk_f32_from_f16(&v, &h, 1);
    return v;
}

static void from_f32(const unsigned char *s, float *y, int64_t n)
{
    memcpy(y, s, (size_t)n * sizeof *y);
}

static void from_f16(const unsigned char *s, float *y, int64_t n)
{
    uint16_t h[256];
    for (int64_t some; n > 0; s += 2 * some, y += some, n -= some) {
        some = n < 256 ? n : 256;
        memcpy(h, s, (size_t)some * sizeof *h); /* aligned */
        bk_f32_from_f16(y, h, some);
    }
}

static void from_bf16(const unsigned char *s, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = bk_bf16_to_f32(bk_load16(s + 2 * i));
}

static void from_q8_0(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 34, y += 32) {
        float d = half_at(s);
        for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)s[2 + i] * d;
    }
}

/* Byte i of a 4 or 5-bit block holds value i (low half) and value i + 16; the fifth bits stand apart, bit i for value i. */
static inline void unpack32(const unsigned char *codes, uint32_t fifth, int zero, float d, float m, float *y)
{
    for (int i = 0; i < 16; i++) {
        int low = (codes[i] & 15) | (int)(fifth >> i & 1) << 4;
        int high = codes[i] >> 4 | (int)(fifth >> (i + 16) & 1) << 4;
        y[i] = (float)(low - zero) * d + m;
        y[i + 16] = (float)(high - zero) * d + m;
    }
}

static void from_q4_0(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 18, y += 32) unpack32(s + 2, 0, 8, half_at(s), 0, y);
}

static void from_q4_1(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 20, y += 32) unpack32(s + 4, 0, 0, half_at(s), half_at(s + 2), y);
}

static void from_q5_0(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 22, y += 32) unpack32(s + 6, bk_load32(s + 2), 16, half_at(s), 0, y);
}

static void from_q5_1(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 24, y += 32) unpack32(s + 8, bk_load32(s + 4), 0, half_at(s), half_at(s + 2), y);
}

/* Scale and minimum of run i (of 8): 6 bits each in 12 bytes, the upper two bits of the last four tucked into the first
 * eight bytes. */
static void scale_min(const unsigned char *p, int i, int *scale, int *min)
{
    if (i < 4) {
        *scale = p[i] & 63, *min = p[i + 4] & 63;
    } else {
        *scale = (p[i + 4] & 15) | p[i - 4] >> 6 << 4;
        *min = p[i + 4] >> 4 | p[i] >> 6 << 4;
    }
}

/* Q4_K and Q5_K: 8 runs of 32, value j of run i in half i % 2 of byte 32 (i / 2) + j; its fifth bit is bit i of byte j
 * of `fifth`. */
static void unpack_k(const unsigned char *s, const unsigned char *fifth, const unsigned char *codes, float *y)
{
    float d = half_at(s), dmin = half_at(s + 2);
    for (int i = 0; i < 8; i++) {
        int scale, min;
        scale_min(s + 4, i, &scale, &min);
        float step = d * (float)scale, low = dmin * (float)min;
        for (int j = 0; j < 32; j++) {
            int code = codes[i / 2 * 32 + j] >> i % 2 * 4 & 15;
            if (fifth) code |= (fifth[j] >> i & 1) << 4;
            y[i * 32 + j] = step * (float)code - low;
        }
    }
}

static void from_q4_k(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 144, y += K) unpack_k(s, NULL, s + 16, y);
}

static void from_q5_k(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 176, y += K) unpack_k(s, s + 16, s + 48, y);
}

/* Two halves of 128 values, each 4 runs of 32: low 4 bits in 64 bytes, high 2 bits in 32 bytes, an 8-bit scale for each
 * 16 values. */
static void from_q6_k(const unsigned char *s, float *y, int64_t n)
{
    for (; n > 0; n--, s += 210, y += K) {
        float d = half_at(s + 208);
        for (int i = 0; i < K; i++) {
            int half = i / 128, run = i % 128 / 32, j = i % 32;
            int low = s[half * 64 + run % 2 * 32 + j] >> run / 2 * 4 & 15, high = s[128 + half * 32 + j] >> run * 2 & 3;
            y[i] = d * (float)(int8_t)s[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* clang-format off */
static const bk_gguf_type types[] = {
    {0, "F32", 1, 4, from_f32},      {1, "F16", 1, 2, from_f16},      {30, "BF16", 1, 2, from_bf16},   {2, "Q4_0", 32, 18, from_q4_0},
    {3, "Q4_1", 32, 20, from_q4_1},  {6, "Q5_0", 32, 22, from_q5_0},  {7, "Q5_1", 32, 24, from_q5_1},  {8, "Q8_0", 32, 34, from_q8_0},
    {12, "Q4_K", K, 144, from_q4_k}, {13, "Q5_K", K, 176, from_q5_k}, {14, "Q6_K", K, 210, from_q6_k}, {10, "Q2_K", K, 84, NULL},
    {11, "Q3_K", K, 110, NULL},      {15, "Q8_K", K, 292, NULL},      {16, "IQ2_XXS", K, 66, NULL},    {17, "IQ2_XS", K, 74, NULL},
    {18, "IQ3_XXS", K, 98, NULL},    {19, "IQ1_S", K, 50, NULL},      {20, "IQ4_NL", 32, 18, NULL},    {21, "IQ3_S", K, 110, NULL},
    {22, "IQ2_S", K, 82, NULL},      {23, "IQ4_XS", K, 136, NULL},    {29, "IQ1_M", K, 56, NULL},      {24, "I8", 1, 1, NULL},
    {25, "I16", 1, 2, NULL},         {26, "I32", 1, 4, NULL},         {27, "I64", 1, 8, NULL},         {28, "F64", 1, 8, NULL},
    {34, "TQ1_0", K, 54, NULL},      {35, "TQ2_0", K, 66, NULL},      {39, "MXFP4", 32, 17, NULL},
};
/* clang-format on */

const bk_gguf_type *bk_gguf_type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}
