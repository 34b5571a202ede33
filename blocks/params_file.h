/* The quantizer parameters of a block in an HDF5 file: what the initialisation leaves for the training. */
#ifndef BK_PARAMS_FILE_H
#define BK_PARAMS_FILE_H

#include "blocks/block.h"

/* Writes every parameter but those of BK_GROUP_WEIGHT, which a source has, as /blocks/NNN/<name>, f32; with `weights`, for an initialisation that
 * changes them, those too, but not the gains of norms, which no initialisation changes. */
bk_status bk_params_save(const bk_block *b, int64_t layer, bool weights, const char *path, bk_error *err) BK_MUST_USE;
/* Reads them back; a parameter that is absent or of another shape is BK_EFORMAT. */
bk_status bk_params_load(bk_block *b, int64_t layer, bool weights, const char *path, bk_error *err) BK_MUST_USE;

#endif
