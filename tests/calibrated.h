/* A small model with windows to calibrate it on, for tests of what is fitted to data. */
#ifndef BK_TESTS_CALIBRATED_H
#define BK_TESTS_CALIBRATED_H

#include "blocks/prefix.h"
#include "tests/tiny_model.h"

enum { BK_CALIBRATED_SAMPLES = 3, BK_CALIBRATED_TOKENS = 20 };

typedef struct bk_calibrated {
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    int32_t ids[BK_CALIBRATED_SAMPLES * BK_CALIBRATED_TOKENS];
} bk_calibrated;

/* edit: NULL, or changes the model before it is opened (bk_tiny_model_set). Failures end the running Check test. */
void bk_calibrated_open(bk_calibrated *m, const bk_config *c, const bk_rotation_spec *spec, void (*edit)(const char *dir));
void bk_calibrated_close(bk_calibrated *m);

/* What a block sees and gives on all windows in full precision, computed in one batch: values of a site [tokens, width], malloc'd. */
typedef struct bk_seen {
    float *at[BK_SITE_COUNT];
} bk_seen;
/* The block of `layer` with the weights w (NULL: its own) on inputs x [tokens of all windows, hidden] (NULL: embeddings). */
void bk_calibrated_block(const bk_calibrated *m, const bk_backend *be, const bk_prefix *prefix, int64_t layer, const bk_block_weights *w,
                         const float *x, bk_seen *seen);
void bk_seen_free(bk_seen *s);

/* Folded into the model, alone and in front of all rotations, `f` leaves its full-precision logits as they are. */
void bk_calibrated_same_logits(const bk_calibrated *m, const bk_backend *be, const bk_fitted *f);

/* A prefix of two tokens, in one value of which there is NaN. */
void bk_calibrated_bad_prefix(const bk_calibrated *m, const bk_backend *be, int64_t layer, int64_t head, int64_t channel, bk_prefix *out);

#endif
