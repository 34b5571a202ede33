/* Learned step sizes: trained steps whose gradient is scaled by g = 1 / sqrt(n Qp), n = number of values that share a step (of one token),
 * Qp = the largest code; for weights a first step of 2 mean|w| / sqrt(Qp).
 * Sources: LSQ (arXiv 1902.08153), sec. 2; LSQ+ (arXiv 2004.09576) for zero points. docs/methods.md says what is done differently. */
#include <math.h>

#include "quant/steps.h"

typedef struct lsq {
    bk_steps steps;
    double scale; /* g */
    bool mean;
} lsq;

static const bk_option options[] = {
    {"mean", "symmetric weights: the first step is 2 mean|w| / sqrt(Qp), as published, instead of the one that range and search give",
     BK_OPTION_BOOL, 1, 0, 1}};

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    lsq *q = st;
    *q = (lsq){.mean = spec->option[0] != 0};
    BK_TRY(bk_steps_setup_place(&q->steps, spec, shape, err));
    q->scale = 1 / sqrt((double)q->steps.attr.group * q->steps.attr.qmax);
    return BK_OK;
}

/* Mean magnitude of unit u of w. */
static bk_status mean_of(bk_ctx *ctx, const bk_tensor *w, int64_t u, int64_t group, double *mean)
{
    float buf[256];
    double sum = 0;
    for (int64_t i = 0; i < group; i += 256) {
        int64_t n = group - i < 256 ? group - i : 256;
        BK_TRY(bk_read(bk_ctx_backend(ctx), w, u * group + i, buf, n, bk_ctx_error(ctx)));
        for (int64_t j = 0; j < n; j++) sum += fabs((double)buf[j]);
    }
    *mean = sum / (double)group;
    return BK_OK;
}

static bk_status begin(bk_ctx *ctx, void *st, const bk_tensor *w)
{
    lsq *q = st;
    int64_t units = q->mean && q->steps.symmetric ? bk_steps_units(q) : 0;
    for (int64_t u = 0; u < units; u++) {
        double mean;
        BK_TRY(mean_of(ctx, w, u, q->steps.attr.group, &mean));
        float s = (float)(2 * mean / sqrt(q->steps.attr.qmax));
        if (!(s > 1e-30f)) s = 1;
        BK_TRY(bk_write(bk_ctx_backend(ctx), q->steps.s, u, &s, 1, bk_ctx_error(ctx)));
    }
    return BK_OK;
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const lsq *q = st;
    bk_tensor *s = bk_scale(ctx, q->steps.s, 1, q->scale), *z = q->steps.z ? bk_scale(ctx, q->steps.z, 1, q->scale) : NULL;
    return bk_fakequant(ctx, x, s, z, &q->steps.attr);
}

const bk_quantizer bk_quantizer_lsq = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "lsq",
    .about = "weights and activations: trained steps with scaled gradients (LSQ, LSQ+)",
    .for_weights = true,
    .for_activations = true,
    .state_size = sizeof(lsq),
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .setup = setup,
    .params = bk_steps_params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = bk_steps_init,
    .factors = bk_steps_factors,
    .begin = begin,
    .apply = apply,
    .codes = bk_steps_codes,
};
_Static_assert(sizeof(lsq) <= BK_QUANTIZER_STATE_MAX, "state");
_Static_assert(offsetof(lsq, steps) == 0, "the functions of quant/steps.h read the state as bk_steps");
