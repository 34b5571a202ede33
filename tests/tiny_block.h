/* One small random block in memory, for tests of what works on a single block. */
#ifndef BK_TESTS_TINY_BLOCK_H
#define BK_TESTS_TINY_BLOCK_H

#include "blocks/block.h"
#include "blocks/stream.h"

typedef struct bk_tiny_block {
    const bk_backend *be;
    bk_error err; /* of everything that belongs to the block */
    bk_block_weights w;
    bk_block *b;
    bk_ctx *ctx;
} bk_tiny_block;

/* Weights as those of tests/tiny_model.h, prefix keys and values N(0, 1); opt->quant and the rest as the caller says. Failures end the Check test. */
void bk_tiny_block_open(bk_tiny_block *t, const bk_backend *be, const bk_config *c, const bk_block_options *opt, uint64_t seed);
void bk_tiny_block_close(bk_tiny_block *t);

/* N(0, 1) hidden states, a few channels ten times as large. */
void bk_tiny_fill(float *x, int64_t n, int64_t width, uint64_t seed);
bk_stream *bk_tiny_stream(int64_t samples, int64_t tokens, int64_t width, uint64_t seed);

/* Specs for tests: "static", "dynamic" or "affine" with the granularity that schemes give them (group > 0: per group). */
bk_qspec bk_tiny_spec(const char *quantizer, int bits, bool symmetric, bk_granularity granularity, int64_t group);
/* W4A4KV4 and the like; activation and cache by the same quantizer, with clipping factors where it is dynamic (keys too). */
bk_block_quant bk_tiny_quant(const char *quantizer, int w_bits, int a_bits, bool symmetric);

/* A parameter's values as f32, malloc'd. */
float *bk_tiny_read(const bk_backend *be, const bk_tensor *t);

#endif
