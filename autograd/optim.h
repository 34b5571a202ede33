/* Parameters and how they move. Values, gradients, moments and the best copy of all parameters lie contiguous, group after group: one fill, one
 * norm and one update per group. */
#ifndef BK_OPTIM_H
#define BK_OPTIM_H

#include "autograd/tensor.h"

#define BK_MAX_GROUPS 4

typedef struct bk_params bk_params;

/* How a group moves: AdamW; p -= lr sign(g) (signSGD; SignRound, arXiv 2309.05516), which needs no moments; or not at all, which needs no
 * gradients either. */
typedef enum { BK_RULE_ADAMW, BK_RULE_SIGN, BK_RULE_CONSTANT } bk_update_rule;

/* err outlives the parameters: calls without a context record their failures there. NULL: BK_ENOMEM in err. */
bk_params *bk_params_new(const bk_backend *be, bk_error *err);
void bk_params_free(bk_params *p);                             /* and all its tensors */

/* Declares a parameter of learning-rate group 0 .. BK_MAX_GROUPS-1; it has memory after the commit. `positive`: an update that pushes an
 * element below 1e-3 of its initial value (bk_params_start) is projected back and counted. name is copied. NULL: error in err. */
bk_tensor *bk_params_add(bk_params *p, const char *name, int group, bool positive, int ndim, const int64_t *dim);
/* The rule of a group, AdamW unless said otherwise. Before the commit. */
void bk_params_set_rule(bk_params *p, int group, bk_update_rule rule);
/* Updates keep every element of a declared parameter within lo .. hi: it is projected back. */
void bk_params_bound(bk_params *p, const bk_tensor *t, double lo, double hi);
/* Allocates values and, when trained, gradients, moments and the best copy; then all tensors but constants require gradients. Zeroed. */
bk_status bk_params_commit(bk_params *p, bool trained) BK_MUST_USE;
int bk_params_count(const bk_params *p);
bk_tensor *bk_params_at(const bk_params *p, int i, int *group); /* group may be NULL; in order of declaration */
bk_tensor *bk_params_find(const bk_params *p, const char *name);
size_t bk_params_bytes(const bk_params *p);                     /* all copies together, when committed */
/* Bytes that a commit of n reals that AdamW moves would take. */
size_t bk_params_bytes_of(const bk_backend *be, int64_t reals, bool trained);

/* Before training: moments zeroed, floors of positive parameters taken from their present values, the present state becomes the best.
 * BK_EINVAL when they were not committed as trained. */
bk_status bk_params_start(bk_params *p) BK_MUST_USE;
bk_status bk_params_reset_moments(bk_params *p) BK_MUST_USE;
bk_status bk_params_zero_grad(bk_ctx *ctx, bk_params *p) BK_MUST_USE;

typedef struct bk_adamw {
    double beta1, beta2, eps, weight_decay;
} bk_adamw;

/* Step t = 1, 2, ... with one learning rate per group (0 leaves the group as it is to the bit); opt is for the groups of AdamW.
 * *floored counts projected elements. */
bk_status bk_params_step(bk_ctx *ctx, bk_params *p, const bk_adamw *opt, const double lr[BK_MAX_GROUPS], int64_t t, int64_t *floored) BK_MUST_USE;
/* Euclidean norms of the gradients per group; of all = sqrt of the sum of squares. */
bk_status bk_params_grad_norm(bk_ctx *ctx, bk_params *p, double norm[BK_MAX_GROUPS]) BK_MUST_USE;
bk_status bk_params_scale_grad(bk_ctx *ctx, bk_params *p, double factor) BK_MUST_USE; /* gradient clipping */
/* BK_ENUMERIC naming the first tensor and index with a NaN or Inf gradient. */
bk_status bk_params_check_grad(bk_ctx *ctx, bk_params *p) BK_MUST_USE;
bk_status bk_params_keep_best(bk_params *p) BK_MUST_USE;    /* present values -> best */
bk_status bk_params_restore_best(bk_params *p) BK_MUST_USE; /* best -> present values */
/* Present values into the memory of the gradients, which are lost, and back: for trying what must not last. Trained parameters only. */
bk_status bk_params_set_aside(bk_params *p) BK_MUST_USE;
bk_status bk_params_take_back(bk_params *p) BK_MUST_USE;

/* lr of step k = 0 .. steps-1: lr_min + (lr - lr_min)(1 + cos(pi k / steps))/2, lr_min = lr / min_factor. */
double bk_cosine_lr(double lr, double min_factor, int64_t k, int64_t steps);

#endif
