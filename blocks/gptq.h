/* GPTQ of a block (quant/gptq.h): q, k and v, then o, then gate and up, then down. Each of these groups of linears sees the inputs that the groups
 * before it leave behind, which are rounded by then; the block as it runs decides what they are: online transforms and prefix take part. */
#ifndef BK_BLOCKS_GPTQ_H
#define BK_BLOCKS_GPTQ_H

#include "blocks/block.h"
#include "blocks/stream.h"
#include "quant/gptq.h"

/* Bits, symmetry, kind of step and groups are those of the block's weight quantizer. */
typedef struct bk_block_gptq_options {
    bool act_order, static_groups, mse_clip; /* as in bk_gptq_options; act_order with groups wants static_groups */
    bool act_quant;                          /* quantizers of activations and cache take part, which are initialised then */
    double percdamp;
    double first_weight; /* how often the first token of a sequence counts in the Hessians, 0 or 1: once. It is one of many, and all of
                          * them attend to it. */
} bk_block_gptq_options;

/* x: inputs of the block [N, T, hidden]. The block's weights and prefix are loaded. Afterwards its weights are Q(w), and steps and zero points
 * of their quantizers, which are `affine`, are such that Q(w) stays as it is to the bit; all quantizers are on. Linears that are not quantized, or
 * that the present layer skips, stay as they are (report.done is false). Dry runs and the step of the context are used up; four passes over x, each as
 * far as the site that it is for, one Hessian at a time. BK_EINVAL for other weight quantizers; else as bk_hessian_factor and bk_gptq, with the name
 * of the site or the linear. */
bk_status bk_block_gptq(bk_ctx *ctx, bk_block *b, const bk_stream *x, const bk_block_gptq_options *opt, bk_gptq_report report[BK_W_COUNT],
                        bk_error *err) BK_MUST_USE;

#endif
