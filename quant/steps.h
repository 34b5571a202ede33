/* Stored steps and zero points: what quantizers that keep them have in common. Their tables name these functions, or functions that call them. */
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

/* Codes of N bits: symmetric -2^(N-1) .. 2^(N-1)-1, asymmetric 0 .. 2^N-1. */
void bk_code_range(int bits, bool symmetric, int *qmin, int *qmax);
/* A zero point as readers of a file take it: whole, and kept in the codes 0 .. 2^N-1. */
float bk_whole_zero(float zero, int bits);
/* Step (and zero point) of a range lo..hi (docs/numerics.md, Rounding and codes). z is 0 when symmetric. */
void bk_step_of_range(int bits, bool symmetric, bool restricted, float lo, float hi, float *s, float *z);

bk_status bk_steps_setup(bk_steps *q, const bk_qspec *spec, const bk_qshape *shape, int64_t group, bk_error *err) BK_MUST_USE;
/* The same with the group that the granularity gives: weights per channel or group, activations per tensor, head or group; BK_EINVAL else. */
bk_status bk_steps_setup_place(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err) BK_MUST_USE;
bk_status bk_steps_params(void *st, bk_params *p, const char *prefix) BK_MUST_USE;
/* The same in another group than BK_GROUP_QUANT. */
bk_status bk_steps_declare(bk_steps *q, bk_params *p, const char *prefix, int group) BK_MUST_USE;
/* A parameter "<prefix>.<name>", one value per unit. NULL: error in the parameters' err. */
bk_tensor *bk_steps_param(const bk_steps *q, bk_params *p, const char *prefix, const char *name, int group, bool positive);
/* BK_ENUMERIC naming the unit when its range is not finite. */
bk_status bk_steps_check_range(const bk_steps *q, int64_t unit, float lo, float hi, bk_error *err) BK_MUST_USE;
int64_t bk_steps_units(const void *st);
bool bk_steps_needs_range(const void *st);
bk_status bk_steps_init(bk_ctx *ctx, void *st, const float *lo, const float *hi) BK_MUST_USE;
bk_status bk_steps_factors(bk_ctx *ctx, void *st, const float *factor) BK_MUST_USE;
bk_tensor *bk_steps_apply(bk_ctx *ctx, void *st, bk_tensor *x);
bk_status bk_steps_codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out) BK_MUST_USE; /* of weights */
/* The same with steps, zero points (NULL when symmetric) and rounding parameters (NULL: none) from elsewhere. */
bk_status bk_steps_export(bk_ctx *ctx, const bk_steps *q, const bk_tensor *x, const bk_tensor *s, const bk_tensor *z, const bk_tensor *v,
                          bk_codes *out) BK_MUST_USE;

#endif
