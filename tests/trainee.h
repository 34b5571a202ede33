/* A block that is trained in tests, with its data in a file. Failures end the running Check test. */
#ifndef BK_TESTS_TRAINEE_H
#define BK_TESTS_TRAINEE_H

#include "blocks/recon.h"
#include "tests/tiny_block.h"

enum { SAMPLES = 9, TOKENS = 6, PREFIX = 2, MAX_EPOCHS = 16 };

/* A trained block in its initialised state and the data it is trained on: its own outputs in full precision, and twice these. */
typedef struct bk_trainee {
    bk_tiny_block t;
    bk_hadamard_plan *r3, *r4;
    char path[32];
    bk_store *store;
    bk_dset *x, *target, *twice;
    bk_epoch epoch[MAX_EPOCHS];
    int epochs;
    bool steps_disagree; /* the steps of an epoch are not what its means are means of */
    bk_train_report report;
    bk_error err; /* of the training: another one than that of the block */
} bk_trainee;

/* One of the four backends that tests loop over: ref, cpu, guard, ref in f64. */
const bk_backend *bk_trainee_backend(int i);
/* quantizer: of activations, keys and values, 4 bits everywhere. */
void bk_trainee_open(bk_trainee *e, const bk_backend *be, const char *quantizer);
void bk_trainee_open_scaled(bk_trainee *e, const bk_backend *be, const bk_block_quant *quant, float target_scale);
/* Weights alone, 2 bits in groups of 16, asymmetric; norms: their gains are trained too. */
void bk_trainee_open_weights(bk_trainee *e, const bk_backend *be, bool norms);
void bk_trainee_close(bk_trainee *e);

bk_train_options bk_trainee_options(void);
bk_status bk_trainee_keep_epoch(void *trainee, const bk_epoch *epoch, bk_error *err); /* the hook that keeps them */
/* target2 NULL: one target. Keeps the epochs and the report. */
bk_status bk_trainee_train_on(bk_trainee *e, bk_dset *target2, const bk_train_options *opt);
void bk_trainee_train(bk_trainee *e, const bk_train_options *opt);

/* All parameters of the block, one after the other, malloc'd. */
float *bk_trainee_state(const bk_trainee *e, int64_t *n);
void bk_trainee_set_state(bk_trainee *e, const float *all);
/* Trains from the same start again; the state after it, malloc'd. */
float *bk_trainee_after(bk_trainee *e, const float *start, const bk_train_options *opt, int64_t *n);

#endif
