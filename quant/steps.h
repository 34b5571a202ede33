/* Stored steps and zero points: what `affine` (weights) and `static` (activations) have in common. The table of each names these functions. */
#ifndef BK_STEPS_H
#define BK_STEPS_H

#include "ops/ops.h"
#include "quant/quantizer.h"

typedef struct bk_steps {
    bk_fakequant_attr attr;
    int64_t rows, cols; /* rows 0: activations */
    int bits;
    bool symmetric, restricted;
    const char *name;
    bk_tensor *s, *z;    /* parameters "<prefix>.step" and, asymmetric, "<prefix>.zero"; [rows, cols/group] or [cols/group] */
    bk_tensor *base;     /* the steps of init, which factors multiply: parameter "<prefix>.base", not trained, not exported */
} bk_steps;

/* Codes of N bits (decisions 2, 3): symmetric -2^(N-1) .. 2^(N-1)-1, asymmetric 0 .. 2^N-1. */
void bk_code_range(int bits, bool symmetric, int *qmin, int *qmax);
/* Step (and zero point) of a range lo..hi by decisions 2, 3, 4 and 22. z is 0 when symmetric. */
void bk_step_of_range(int bits, bool symmetric, bool restricted, float lo, float hi, float *s, float *z);

bk_status bk_steps_setup(bk_steps *q, const bk_qspec *spec, const bk_qshape *shape, int64_t group, bk_error *err) BK_MUST_USE;
bk_status bk_steps_params(void *st, bk_params *p, const char *prefix) BK_MUST_USE;
int64_t bk_steps_units(const void *st);
bool bk_steps_needs_range(const void *st);
bk_status bk_steps_init(bk_ctx *ctx, void *st, const float *lo, const float *hi) BK_MUST_USE;
bk_status bk_steps_factors(bk_ctx *ctx, void *st, const float *factor) BK_MUST_USE;
bk_tensor *bk_steps_apply(bk_ctx *ctx, void *st, bk_tensor *x);
bk_status bk_steps_codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out) BK_MUST_USE; /* of weights */

#endif
