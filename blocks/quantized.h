/* A quantized model on disk, a Hugging Face folder of its own kind (quant_method "brick"): integer codes (u8), steps and zero points (f32), norms,
 * embeddings and head (f32), prefix keys and values (f32), and in config.json which quantizers stand where and which transforms run online.
 *
 * Tensors of layer N: model.layers.N.<linear>.codes (code - qmin) or .weight (f32, not quantized), .bias, <norm>.weight,
 * model.layers.N.self_attn.r3 (f32 [kv_heads, head_dim, head_dim], where config.json says r3_per_kv_head), and
 * model.layers.N.quant.<parameter> ("w_q.step", "key.step", "value.gamma" ...). One shard per layer, one for the rest. Reading gives back the hardened weights to the bit. */
#ifndef BK_QUANTIZED_H
#define BK_QUANTIZED_H

#include "blocks/block.h"
#include "blocks/prefix.h"

#define BK_QUANTIZED_VERSION 1 /* of the format */

/* What config.json tells beside the shapes and the rotations that run online, which are those of the source: online_r3 and online_r4 are Hadamards,
 * the latter in groups of online_r4_group if that is there; r3_per_kv_head means matrices in the shards. */
typedef struct bk_quantized_info {
    bk_block_quant quant;
    bool bos_before_text;                /* the run's texts may get a BOS in front: no prefix was asked for */
    unsigned *skip_sites;                /* [layers] masks; NULL = nothing skipped. Weights tell by themselves */
    const char *scheme, *model;          /* for people; may be NULL */
} bk_quantized_info;

/* Writes the shard of one layer into DIR: the block as trained, before bk_block_harden. Soft rounding becomes hard (bk_block_round). */
bk_status bk_quantized_write_block(bk_ctx *ctx, bk_block *b, int64_t layer, const char *dir, bk_error *err) BK_MUST_USE;
/* Its path; index = number of layers: the shard of the rest. */
void bk_quantized_path(char *to, size_t size, const char *dir, int64_t index, int64_t layers);
/* True if that shard is there, complete (its name exists only then). */
bool bk_quantized_has_block(const char *dir, int64_t layer, int64_t layers);
/* Brings such a shard back into a block whose weights are not quantized (weight.bits 16) and whose sites are: hardened
 * weights, quantizer parameters. weight: how they were quantized. */
bk_status bk_quantized_read_block(bk_block *b, int64_t layer, const char *dir, const bk_qspec *weight, bk_error *err) BK_MUST_USE;
/* Writes the last shard, index and config.json, when all layers are there. The tokenizer is the caller's
 * (bk_tokenizer_save). */
bk_status bk_quantized_finish(const bk_source *src, const bk_prefix *prefix, const bk_quantized_info *info, const char *dir,
                              bk_error *err) BK_MUST_USE;

/* An open one. */
typedef struct bk_quantized bk_quantized;
bk_status bk_quantized_open(const bk_model *m, bk_quantized **out, bk_error *err) BK_MUST_USE;
void bk_quantized_close(bk_quantized *q);
const bk_prefix *bk_quantized_prefix(const bk_quantized *q);
const bk_block_quant *bk_quantized_quant(const bk_quantized *q); /* of the activations; weights 16 bits: they are read hardened */
const char *bk_quantized_scheme(const bk_quantized *q);
bool bk_quantized_bos_before_text(const bk_quantized *q);
const bk_hadamard_plan *bk_quantized_r3(const bk_quantized *q);
const bk_hadamard_plan *bk_quantized_r4(const bk_quantized *q);
/* A bk_loader.load: brings layer into a block that was created with these quantizers and transforms, prefix
 * included. */
bk_status bk_quantized_load(void *q, int64_t layer, bk_block *b, bk_error *err) BK_MUST_USE;

#endif
