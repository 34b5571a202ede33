/* GPTQ (arXiv 2210.17323) of the linears that share one input: weights are rounded one input channel after the other, and what the rounding of a
 * channel does to the output is made good in the channels that are still to come, by the Hessian H = sum x x^T of the inputs.
 *
 * Order of use: bk_hessian_create, bk_hessian_add for all inputs, bk_hessian_factor, bk_gptq for each linear, bk_hessian_free. */
#ifndef BK_GPTQ_H
#define BK_GPTQ_H

#include "autograd/tensor.h"

typedef struct bk_gptq_options {
    int bits;
    bool symmetric, restricted; /* steps as in bk_step_of_range */
    int64_t group;              /* columns that share a step; 0: the whole row */
    bool act_order;             /* channels by falling H_jj, equal ones by index, instead of by index */
    bool static_groups;         /* steps of all groups are fitted before the rounding begins, to unordered weights. Otherwise those of a group
                                 * are fitted when it is reached; with act_order a group is then made of channels that follow in that order. */
    bool mse_clip;              /* steps by the search of fit_steps */
    double percdamp;            /* times the mean of the diagonal is added to it */
} bk_gptq_options;

typedef struct bk_hessian {
    const bk_backend *be;
    const char *name;  /* for messages; borrowed */
    int64_t n, tokens; /* inputs seen */
    bk_tensor *h;      /* f64 [n, n]; after factor: above and on the diagonal U with (P H' P^T)^-1 = U^T U, below it still H */
    bk_tensor *diag;   /* f64 [n]; of H, with 1 for dead channels */
    bk_tensor *order;  /* i32 [n]; P: which channel comes i-th; NULL: i */
    int32_t *place;    /* host [n]: when channel j comes */
    bool *dead_at;     /* host [n] */
    int64_t dead;      /* channels whose inputs are all 0 */
    double damping;    /* fraction of the mean of the diagonal that was added, at last */
    int tries;
    bool failed;       /* no damping made H positive definite, or all channels are dead: bk_gptq rounds to nearest */
} bk_hessian;

/* loss: half the trace of E H' E^T, E = W - Q(W), H' with damping and 1 for dead channels; after a fallback half the sum of E^2. */
typedef struct bk_gptq_report {
    bool done; /* by bk_gptq; false: left as it was */
    double loss, damping;
    int64_t dead;
    int tries;
    bool fell_back;
} bk_gptq_report;

/* Where results go, beside the weight. */
typedef struct bk_gptq_out {
    bk_tensor *step, *zero; /* real [rows, groups]; zero is NULL when symmetric */
    bk_tensor *codes;       /* i32 [rows, cols], may be NULL */
    bk_tensor *group_of;    /* i32 [cols], may be NULL: which group of steps a column has */
} bk_gptq_out;

/* H of n channels, 0. Free it after a failure, too. */
bk_status bk_hessian_create(bk_hessian *h, const bk_backend *be, int64_t n, const char *name, bk_error *err) BK_MUST_USE;
void bk_hessian_free(bk_hessian *h);
/* H += alpha x^T x, x real [tokens, n]. A factor for all of H changes nothing but the scale of the loss. Dry runs measure the kernel. */
bk_status bk_hessian_add(bk_ctx *ctx, bk_hessian *h, const bk_tensor *x, double alpha) BK_MUST_USE;
/* Sets dead channels aside, finds the order and factors H. Damping that is not enough is multiplied by 10, up to 1; where that is not enough
 * either, `failed` is set. BK_EINVAL without inputs, BK_ENUMERIC if they were not finite. The context's step and
 * dry runs are used up, by bk_gptq too. */
bk_status bk_hessian_factor(bk_ctx *ctx, bk_hessian *h, const bk_gptq_options *opt) BK_MUST_USE;
/* w real [rows, n] becomes Q(w); the same from its codes, to the bit: (code - zero) step. Weights of dead channels become 0. The steps are such
 * that the quantizer `affine` maps Q(w) to itself. BK_ESHAPE for groups that do not divide n, BK_ENUMERIC for weights that are not finite. */
bk_status bk_gptq(bk_ctx *ctx, const bk_hessian *h, const bk_gptq_options *opt, const char *name, bk_tensor *w, const bk_gptq_out *out,
                  bk_gptq_report *report) BK_MUST_USE;

#endif
