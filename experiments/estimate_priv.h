/* What the parts of an estimate share (estimate.c, estimate_fit.c). */
#ifndef BK_ESTIMATE_PRIV_H
#define BK_ESTIMATE_PRIV_H

#include "experiments/estimate.h"

typedef struct bk_estimator {
    const bk_run_config *c;
    const bk_rotation *rotation;
    const bk_config *cfg; /* after the transforms */
    bk_backend dry;       /* its memory is never there */
    bk_block_quant quant;
    bk_sample_counts n;
    int64_t prefix;
    bk_error *err;
} bk_estimator;

/* Bytes. Streams: in all, and what of it is not in a file. */
double bk_estimate_weights(const bk_estimator *e);
double bk_estimate_stream(const bk_estimator *e, int64_t samples, int64_t tokens);
double bk_estimate_stream_memory(const bk_estimator *e, int64_t samples, int64_t tokens);
double bk_estimate_head(const bk_estimator *e);
/* A block, and the memory of one pass through it. `search`: every candidate of a search runs on from the first site. */
bk_status bk_estimate_pass(const bk_estimator *e, bool quantized, bool search, int64_t samples, int64_t tokens, double *block,
                           double *pass) BK_MUST_USE;
/* A block that trains, and the memory of a step of so many samples. */
bk_status bk_estimate_step(const bk_estimator *e, int64_t samples, int64_t tokens, double *block, double *step) BK_MUST_USE;

/* Seconds: to read the weights of a block through the transforms; of a block over samples; of f64 arithmetic. */
double bk_estimate_load(const bk_estimator *e, const bk_rates *r);
double bk_estimate_forward(const bk_estimator *e, const bk_rates *r, double samples, int64_t tokens);
double bk_estimate_f64(const bk_rates *r, double flops);

/* --- transforms that are fitted, and GPTQ (estimate_fit.c); 0 where the run has none --- */

/* Of all but the base that every stage has. */
bk_status bk_estimate_fit_memory(const bk_estimator *e, double *out) BK_MUST_USE;
double bk_estimate_fit_seconds(const bk_estimator *e, const bk_rates *r);
int64_t bk_estimate_spin_tokens(const bk_run_config *c); /* of a window that SpinQuant learns on */
double bk_estimate_fitted_bytes(const bk_estimator *e); /* of fitted.h5 */
/* Beside a block, its weights and the streams: the pass over the statistics and the largest Hessian. */
bk_status bk_estimate_gptq_memory(const bk_estimator *e, double *out) BK_MUST_USE;
double bk_estimate_gptq_seconds(const bk_estimator *e, const bk_rates *r); /* of a block */

#endif
