/* Plugins that are wrong in one way: TABLE overrides members of the quantizer, EXPORT is what the object exports. The
 * rest is the example. */
#define BK_IN_TREE /* the example does not export itself */
#include "examples/quantizer_odd.c"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bk_status bk_function_of_another_version(void);

static inline bk_status crash(void)
{
    *(volatile int *)(uintptr_t)8 = 0;
    return BK_OK;
}

static inline bk_status crash_setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    (void)st, (void)spec, (void)shape, (void)err;
    return crash();
}

static inline bk_status crash_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)ctx, (void)st, (void)lo, (void)hi;
    return crash();
}

static inline bk_status hang_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)ctx, (void)st, (void)lo, (void)hi;
    for (;;) pause();
}

static inline bk_status leave_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)ctx, (void)st, (void)lo, (void)hi;
    exit(7);
}

static inline bk_status failing_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)st, (void)lo, (void)hi;
    return bk_fail(bk_ctx_error(ctx), BK_ENUMERIC, "no steps today");
}

static inline bk_status silent_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    (void)ctx, (void)st, (void)lo, (void)hi;
    return BK_EINVAL;
}

static inline bk_tensor *no_apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    (void)ctx, (void)st, (void)x;
    return NULL;
}

static inline bk_tensor *narrow_apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    (void)st;
    return bk_real_new(ctx, 1, x->dim, "narrow");
}

static inline bk_tensor *nan_apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const bk_steps *q = st;
    float nan = NAN;
    if (bk_write(bk_ctx_backend(ctx), q->s, 0, &nan, 1, bk_ctx_error(ctx))) return NULL;
    return bk_steps_apply(ctx, st, x);
}

#ifndef UNITS
#define UNITS 0
#endif
static inline int64_t fixed_units(const void *st)
{
    (void)st;
    return UNITS;
}

/* Right for the shapes of the trial and of a config's checks, wrong for larger ones. */
static inline int64_t small_units(const void *st)
{
    const bk_steps *q = st;
    return q->rows > 64 || q->cols > 64 ? 5 : bk_steps_units(st);
}

static inline bk_status wrong_codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    BK_TRY(bk_steps_codes(ctx, st, x, out));
    out->qmin = 100;
    return BK_OK;
}

/* Codes that stand for other values: one step too far. */
static inline bk_status shifted_codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    BK_TRY(bk_steps_codes(ctx, st, x, out));
    if (!out->step || bk_ctx_measuring(ctx)) return BK_OK;
    float s;
    BK_TRY(bk_read(be, out->step, 0, &s, 1, bk_ctx_error(ctx)));
    s *= 1.5f;
    return bk_write(be, out->step, 0, &s, 1, bk_ctx_error(ctx));
}

#define REAL(...) {.about = "a number", .type = BK_OPTION_REAL, .max = 1, __VA_ARGS__}
static const bk_option outside[] = {REAL(.name = "alpha", .initial = 2)},
                       twice[] = {REAL(.name = "alpha"), REAL(.name = "alpha")},
                       no_number[] = {REAL(.name = "alpha", .min = NAN)},
                       half[] = {REAL(.name = "alpha", .initial = 0.5, .type = BK_OPTION_INT)},
                       dotted[] = {REAL(.name = "al.pha")}, silent[] = {{.name = "alpha"}};

static const bk_quantizer broken = {.struct_size = sizeof(bk_quantizer),
                                    .abi = BK_QUANTIZER_ABI,
                                    .name = "broken",
                                    .about = "is wrong in one way",
                                    .for_weights = true,
                                    .state_size = sizeof(bk_steps),
                                    .options = options,
                                    .n_options = 1,
                                    .setup = setup,
                                    .params = bk_steps_params,
                                    .units = bk_steps_units,
                                    .needs_range = bk_steps_needs_range,
                                    .init = init,
                                    .factors = bk_steps_factors,
                                    .apply = bk_steps_apply,
                                    .codes = codes,
                                    TABLE};
static const bk_quantizer *const list[] = {&broken, NULL};
/* So that every one of these plugins uses all that there is. */
const void *const unused[] = {outside, twice, no_number, half, dotted, silent, list};

#ifdef MISSING /* a function that this brick has not */
bk_status (*const old_function)(void) = bk_function_of_another_version;
#endif
#ifdef CONSTRUCTOR
__attribute__((constructor)) static void start(void)
{
    crash();
}
#endif
#if defined GARBAGE
const int bk_plugin_exports = 3;
#elif !defined NOTHING
const bk_plugin bk_plugin_exports = {EXPORT};
#endif
