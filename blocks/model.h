/* An open model: its config and its tensors, read one at a time as f32. GGUF file, Hugging Face folder (one safetensors file or shards
 * with an index), or the model/ folder of a run. Nothing is kept in memory but names and offsets. */
#ifndef BK_MODEL_H
#define BK_MODEL_H

#include "autograd/error.h"
#include "blocks/config.h"
#include "blocks/names.h"

typedef struct bk_model bk_model;

/* Checks that every tensor that the config asks for is there with its shape (the message lists what is missing), that the embedding has
 * config.vocab rows, and whether files are longer than they should be. */
bk_status bk_model_open(const char *path, bk_model **out, bk_error *err) BK_MUST_USE;
void bk_model_close(bk_model *m);
const bk_config *bk_model_config(const bk_model *m);
const char *bk_model_path(const bk_model *m);
const char *bk_model_name(const bk_model *m);        /* file or folder name without .gguf: "SmolLM2-135M-Instruct.Q4_1" */
const bk_gguf *bk_model_gguf(const bk_model *m);     /* NULL for a folder */
bool bk_model_bos_eos(const bk_model *m, int64_t *bos, int64_t *eos); /* from config.json; -1 when absent */

/* Reading, row-major as f32: linears [out, in] in the half-rotation layout (GGUF rows of q and k are put back), biases [out], norms.
 * NaN or Inf in a tensor is BK_ENUMERIC naming tensor and index. */
bk_status bk_model_read_linear(const bk_model *m, int64_t layer, bk_linear_id id, float *dst, bk_error *err) BK_MUST_USE;
bool bk_model_has_bias(const bk_model *m, bk_linear_id id); /* every layer has it or none */
bk_status bk_model_read_bias(const bk_model *m, int64_t layer, bk_linear_id id, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_norm(const bk_model *m, int64_t layer, bk_norm_id id, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_final_norm(const bk_model *m, float *dst, bk_error *err) BK_MUST_USE;
/* Rows of the embedding and of the head (the embedding again when tied): [rows, hidden]. */
bk_status bk_model_read_embed(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_model_read_head(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err) BK_MUST_USE;
/* Out and in of a linear. */
void bk_linear_shape(const bk_config *c, bk_linear_id id, int64_t *out, int64_t *in);
/* SHA-256 over the model's files (weights and config), hex. */
bk_status bk_model_sha256(const bk_model *m, char hex[65], bk_error *err) BK_MUST_USE;

#endif
