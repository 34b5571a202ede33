/* A plugin for activations: static steps of a range that is made wider by an option. */
#include "quant/plugin.h"
#include "quant/steps.h"

typedef struct widened {
    bk_steps steps; /* first: the functions of steps.h take it */
    float by;
} widened;

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    widened *q = st;
    q->by = (float)spec->option[1];
    if (spec->granularity != BK_PER_TENSOR && spec->granularity != BK_PER_HEAD)
        return bk_fail(err, BK_EINVAL, "%s: per tensor or per head, not per %s", shape->name,
                       bk_granularity_name[spec->granularity]);
    int64_t head = shape->head_dim ? shape->head_dim : shape->cols;
    return bk_steps_setup(&q->steps, spec, shape, spec->granularity == BK_PER_HEAD ? head : shape->cols, err);
}

static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    widened *q = st;
    for (int64_t i = 0; i < bk_steps_units(st); i++) {
        float s, z;
        bk_step_of_range(q->steps.bits, q->steps.symmetric, q->steps.restricted, q->by * lo[i], q->by * hi[i], &s, &z);
        BK_TRY(bk_write(bk_ctx_backend(ctx), q->steps.s, i, &s, 1, bk_ctx_error(ctx)));
        BK_TRY(bk_write(bk_ctx_backend(ctx), q->steps.base, i, &s, 1, bk_ctx_error(ctx)));
        if (q->steps.z) BK_TRY(bk_write(bk_ctx_backend(ctx), q->steps.z, i, &z, 1, bk_ctx_error(ctx)));
    }
    return BK_OK;
}

static const bk_option options[] = {
    {.name = "unused", .about = "a switch", .type = BK_OPTION_BOOL, .initial = 1},
    {.name = "by",
     .about = "the range is so many times as wide",
     .type = BK_OPTION_REAL,
     .initial = 1,
     .min = 1,
     .max = 4},
};

static const bk_quantizer widen = {.struct_size = sizeof(bk_quantizer),
                                   .abi = BK_QUANTIZER_ABI,
                                   .name = "widen",
                                   .about = "activations: static steps of a wider range",
                                   .for_activations = true,
                                   .state_size = sizeof(widened),
                                   .options = options,
                                   .n_options = 2,
                                   .setup = setup,
                                   .params = bk_steps_params,
                                   .units = bk_steps_units,
                                   .needs_range = bk_steps_needs_range,
                                   .init = init,
                                   .factors = bk_steps_factors,
                                   .apply = bk_steps_apply};

BK_PLUGIN(&widen);
