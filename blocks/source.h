/* A model seen through its transforms: the same reads as blocks/model.h, of weights that are fused and rotated on their way, one block
 * at a time. With nothing switched on it passes the model's bits through. Not for use by several threads at once. */
#ifndef BK_SOURCE_H
#define BK_SOURCE_H

#include "blocks/model.h"
#include "blocks/transforms.h"
#include "blocks/weights.h"

typedef struct bk_source bk_source;

/* `m`, and what spec lends, must outlive the source; spec NULL = no transform. */
bk_status bk_source_open(const bk_model *m, const bk_rotation_spec *spec, bk_source **out, bk_error *err) BK_MUST_USE;
void bk_source_close(bk_source *s);

/* Where text behind a prefix stands, for every block made from this source (bk_config.overlap_prefix). */
void bk_source_overlap_prefix(bk_source *s, bool on);

/* The config of what is read here: its head is untied and o has a bias where transforms made that. */
const bk_config *bk_source_config(const bk_source *s);
const bk_model *bk_source_model(const bk_source *s);
const bk_rotation *bk_source_rotation(const bk_source *s); /* which transforms are on, plans and signs */
/* bk_rotation_r3, bk_rotation_r4 */
const bk_hadamard_plan *bk_source_r3(const bk_source *s);
const bk_hadamard_plan *bk_source_r4(const bk_source *s);

/* Weights of a block into `w`, which bk_weights_alloc made for bk_source_config. */
bk_status bk_source_block(const bk_source *s, int64_t layer, bk_block_weights *w, bk_error *err) BK_MUST_USE;
/* Embeddings of n tokens, out [n, hidden]. An id outside the vocabulary is BK_EINVAL. */
bk_status bk_source_embed(const bk_source *s, const int32_t *ids, int64_t n, float *out, bk_error *err) BK_MUST_USE;
/* Rows row0 .. row0 + rows - 1 of the head, dst [rows, hidden]. */
bk_status bk_source_head(const bk_source *s, int64_t row0, int64_t rows, float *dst, bk_error *err) BK_MUST_USE;
/* The gain of the norm before the head, dst [hidden]: ones when it is fused into the head. */
void bk_source_final_norm(const bk_source *s, float *dst);

#endif
