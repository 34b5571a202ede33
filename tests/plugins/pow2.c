/* Weights whose step is a power of two, 2^round(log2 s), of a trained s: steps that are not proportional to the range. Its gradient passes the
 * rounding straight through. */
#include <math.h>

#include "quant/plugin.h"
#include "quant/steps.h"

typedef struct pow2 {
    bk_steps steps; /* first: the functions of steps.h take it; .s is trained */
    bk_tensor *power;
} pow2;

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    if (!spec->symmetric) return bk_fail(err, BK_EINVAL, "%s: powers of two need symmetric: true", shape->name);
    return bk_steps_setup_place(st, spec, shape, err);
}

static bk_status params(void *st, bk_params *p, const char *prefix)
{
    pow2 *q = st;
    BK_TRY(bk_steps_params(st, p, prefix));
    q->power = bk_steps_param(&q->steps, p, prefix, "power", BK_GROUP_CONSTANT, true);
    return q->power ? BK_OK : BK_ENOMEM;
}

/* The powers, written anew from s in each pass; s / power lies within 0.7 .. 1.42 and rounds to 1. */
static bk_tensor *step(bk_ctx *ctx, const pow2 *q)
{
    static const bk_fakequant_attr one = {.group = 1, .per_row = 1, .qmin = 0, .qmax = 2};
    const bk_backend *be = bk_ctx_backend(ctx);
    for (int64_t i = 0; i < bk_steps_units(q) && !bk_ctx_measuring(ctx); i++) {
        float s;
        if (bk_read(be, q->steps.s, i, &s, 1, bk_ctx_error(ctx))) return NULL;
        s = (float)exp2(rint(log2((double)s)));
        if (bk_write(be, q->power, i, &s, 1, bk_ctx_error(ctx))) return NULL;
    }
    return bk_fakequant(ctx, q->steps.s, q->power, NULL, &one);
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const pow2 *q = st;
    return bk_fakequant(ctx, x, step(ctx, q), NULL, &q->steps.attr);
}

static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const pow2 *q = st;
    const bk_tensor *s = step(ctx, q);
    BK_TRY(bk_ctx_status(ctx));
    return bk_steps_export(ctx, &q->steps, x, s, NULL, NULL, out);
}

static const bk_quantizer pow_of_2 = {.struct_size = sizeof(bk_quantizer),
                                      .abi = BK_QUANTIZER_ABI,
                                      .name = "pow2",
                                      .about = "weights: trained steps that are powers of two",
                                      .for_weights = true,
                                      .state_size = sizeof(pow2),
                                      .setup = setup,
                                      .params = params,
                                      .units = bk_steps_units,
                                      .needs_range = bk_steps_needs_range,
                                      .init = bk_steps_init,
                                      .factors = bk_steps_factors,
                                      .apply = apply,
                                      .codes = codes,
                                      .free_steps = true};

BK_PLUGIN(&pow_of_2);
