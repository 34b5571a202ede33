/* An open model: its config and its tensors, read one at a time as f32. GGUF file, Hugging Face folder (one safetensors
 * file or shards with an index), or the model/ folder of a run. Nothing is kept in memory but names and offsets. */
#ifndef BK_MODEL_H
#define BK_MODEL_H

#include "autograd/error.h"
#include "blocks/config.h"
#include "blocks/names.h"
#include "io/safetensors.h"

typedef struct bk_model bk_model;

/* PATH: a .gguf file; a folder with config.json and safetensors; or a run folder, whose model/ is opened. Checks that
 * every tensor that the config asks for is there with its shape and a type that can be read (the message lists what is
 * missing), that there is no tensor that the config does not know (it would be left out of the computation), and that
 * the embedding has config.vocab rows. */
bk_status bk_model_open(const char *path, bk_model **out, bk_error *err) BK_MUST_USE;
void bk_model_close(bk_model *m);
const bk_config *bk_model_config(const bk_model *m);
const char *bk_model_path(const bk_model *m);
const char *bk_model_dir(const bk_model *m);  /* the folder with config.json (the model/ of a run); NULL for a GGUF */
const char *bk_model_name(const bk_model *m); /* file or folder name without .gguf: "SmolLM2-135M-Instruct.Q4_1" */
const bk_gguf *bk_model_gguf(const bk_model *m);      /* NULL for a folder */
const bk_json *bk_model_json(const bk_model *m);      /* root of config.json; NULL for a GGUF */
const bk_st_set *bk_model_tensors(const bk_model *m); /* the safetensors of a folder; NULL for a GGUF */
/* config.json says quantization_config.quant_method "brick": the linears are stored as codes, which blocks/ reads
 * through bk_model_tensors, and are not checked here; bk_model_read_linear gives BK_EUNSUP. */
bool bk_model_quantized(const bk_model *m);
/* From config.json (the first of a list) or GGUF metadata; -1 when absent; false when both are. */
bool bk_model_bos_eos(const bk_model *m, int64_t *bos, int64_t *eos);

/* The name of a tensor of the open model, for messages: "model.layers.3.self_attn.q_proj.weight",
 * "blk.3.attn_q.weight". */
void bk_model_linear_name(const bk_model *m, int64_t layer, bk_linear_id id, const char *what, char out[128]);

/* Reading, row-major as f32: linears [out, in] in the half-rotation layout (GGUF rows of q and k are put back), biases
 * [out], norms. NaN or Inf in a tensor is BK_ENUMERIC naming tensor and index. */
bk_status bk_model_read_linear(const bk_model *m, int64_t layer, bk_linear_id id, float *dst,
                               bk_error *err) BK_MUST_USE;
bool bk_model_has_bias(const bk_model *m, bk_linear_id id); /* every layer has it or none */
bk_status bk_model_read_bias(const bk_model *m, int64_t layer, bk_linear_id id, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_norm(const bk_model *m, int64_t layer, bk_norm_id id, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_final_norm(const bk_model *m, float *dst, bk_error *err) BK_MUST_USE;
/* Rows of the embedding and of the head (the embedding again when tied): [rows, hidden]. */
bk_status bk_model_read_embed(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_head(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err) BK_MUST_USE;
/* SHA-256, hex, of the GGUF file; of a folder: of config.json, tokenizer.json, tokenizer_config.json, the index (those
 * that are there) and the safetensors files by name, one after the other. */
bk_status bk_model_sha256(const bk_model *m, char hex[65], bk_error *err) BK_MUST_USE;

#endif
