/* Block reconstruction: a block's weights and quantizer parameters are trained so that, on the quantized stream, it gives what its
 * full-precision twin gives.
 * Source: PrefixQuant (arXiv 2410.05265), sec. 5 and its code; EfficientQAT (arXiv 2407.11062), block phase; docs/numerics.md, Training. */
#ifndef BK_RECON_H
#define BK_RECON_H

#include "blocks/block.h"
#include "blocks/pass.h"
#include "io/store.h"

typedef struct bk_train_options {
    int64_t epochs, batch;
    int64_t n_train, n_val;  /* samples 0 .. n_train-1 train, the next n_val validate; n_val = 0: the training samples validate */
    double lr_quant, lr_weight, lr_min_factor;
    double lr_round;         /* of BK_GROUP_ROUND: constant under AdamW, falling linearly to 0 under signs; 0 = the rule's own, 1e-3 and 1 / steps */
    bk_adamw adamw;
    double clip_grad;        /* largest Euclidean norm of all gradients; 0 = off */
    bool shuffle;            /* order by seed; else fixed */
    bool keep_last;          /* the last epoch instead of the best */
    bool strict;             /* a fallback is an error */
    bk_loss_kind loss;
    uint64_t seed;
} bk_train_options;

/* One line of metrics.jsonl. */
typedef struct bk_epoch {
    int64_t epoch, step;     /* epochs from 1; steps done in this block */
    double loss, val_loss;   /* mean of the epoch's batches, without penalties; after the epoch, with hard rounding */
    double lr_quant, lr_weight, lr_round, grad_norm; /* at its last step (lr_round 0: nothing to round); mean norm over its steps */
    const double *losses, *grad_norms;     /* [n_steps] of this epoch, step by step; lent for the call of the hook */
    int64_t n_steps;
    double seconds;
} bk_epoch;

typedef struct bk_train_report {
    double loss_init, loss_final; /* validation loss before training, and of what was kept; with hard rounding */
    int64_t epoch_kept;           /* 0 = the initialised state */
    int64_t steps, floored;       /* steps that an update pushed below their floor */
    int halvings;                 /* times the numeric guard halved the learning rates */
    bool fell_back;               /* the guard gave up: the caller must restore the initialised block */
    char why[256];                /* what the guard saw last */
    double seconds;
} bk_train_report;

typedef struct bk_train_hooks {
    bk_status (*epoch)(void *user, const bk_epoch *e, bk_error *err); /* may be NULL */
    void *user;
    const bk_watch *watch; /* steps done of all steps */
} bk_train_hooks;

/* input: the block's inputs on the quantized stream; target: what to reproduce, as many samples; target2: NULL, or a second target (the mean
 * of both losses counts).
 * The block was created with `trained`, is initialised, and its quantizers are on. BK_ENUMERIC only when strict.
 * Soft rounding of weights stays soft: what is validated, and so what is kept, is what bk_block_round makes of it, which the
 * caller does in the end. */
bk_status bk_block_train(bk_block *b, bk_dset *input, bk_dset *target, bk_dset *target2, const bk_train_options *opt,
                         const bk_train_hooks *hooks, bk_train_report *report, bk_error *err) BK_MUST_USE;
/* Bytes of step and scratch memory that training with this batch and length takes. */
bk_status bk_train_bytes(bk_block *b, int64_t batch, int64_t tokens, bk_loss_kind loss, size_t *bytes, bk_error *err) BK_MUST_USE;

#endif
