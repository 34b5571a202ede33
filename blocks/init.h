/* Initialisation of a block's quantizers: ranges measured on calibration samples, then the grid search, every quantizer in isolation
 * (the rest of the block in full precision). Objectives: weights - the layer's output, through the Gram matrix of its inputs; static and dynamic
 * activations and dynamic values - the block's output, replayed from the site; static values - their own error; static keys - attention scores. */
#ifndef BK_INIT_H
#define BK_INIT_H

#include "blocks/block.h"
#include "blocks/stream.h"

typedef struct bk_init_options {
    bool search;
    bool keep_weights; /* what the weights and their steps are stays as it is */
    bool ema; /* ranges as 0.99 moving average of per-channel maxima, as published, instead of the true maximum */
} bk_init_options;

/* x: inputs of the block [N, T, hidden]. The block's weights and prefix are loaded; afterwards all its quantizers are on and initialised. A
 * static quantizer that saw nothing but zeros gets the step 1; b->silent counts these for the caller to tell. */
bk_status bk_block_init(bk_ctx *ctx, bk_block *b, const bk_stream *x, const bk_init_options *opt, bk_error *err) BK_MUST_USE;
/* Only the weights' quantizers, from their least and largest values; scratch as in a dry run of it. */
bk_status bk_block_init_weights(bk_ctx *ctx, bk_block *b, bk_error *err) BK_MUST_USE;

/* Min-max values of the quantizer of one weight, from the weight that the block has now. */
bk_status bk_block_init_weight(bk_ctx *ctx, bk_block *b, bk_linear_id w, bk_error *err) BK_MUST_USE;

#endif
