/* Adaptive rounding: for each weight it is learned whether it is rounded down or up; steps and zero points stay.
 *   code = clamp(floor(w / s) + h(v) + z), h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1)
 *   penalty = lambda sum (1 - |2 h(v) - 1|^beta), none for the first `warmup` of the training, then with beta falling from beta_start to beta_end
 * v begins where h is the fraction of w / s: the weight as it was. Hardened: v >= 0 is up, which begins as rounding to nearest.
 * Sources: AdaRound (arXiv 2004.10568); BRECQ (arXiv 2102.05426), whose settings these are. docs/methods.md says what is done differently. */
#include <math.h>
#include <stdio.h>

#include "quant/steps.h"

#define HARD 10.0f /* h(10) = 1, h(-10) = 0 */
#define CHUNK 256

typedef struct adaround {
    bk_steps steps;
    double lambda, beta_start, beta_end, warmup;
    bool nearest; /* while steps are searched, before v means anything */
    bk_tensor *v; /* parameter "<prefix>.v", [rows, cols] */
} adaround;

static const bk_option options[] = {
    {"lambda", "weight of the penalty, against the squared error summed over the channels of a token", BK_OPTION_REAL, 0.01, 0, 1e6},
    {"beta_start", "exponent of the penalty at first", BK_OPTION_REAL, 20, 1, 100},
    {"beta_end", "exponent of the penalty at the end", BK_OPTION_REAL, 2, 1, 100},
    {"warmup", "part of the training without penalty", BK_OPTION_REAL, 0.2, 0, 1},
};

static bk_status setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    adaround *q = st;
    const double *o = spec->option;
    *q = (adaround){.lambda = o[0], .beta_start = o[1], .beta_end = o[2], .warmup = o[3]};
    BK_TRY(bk_steps_setup_place(&q->steps, spec, shape, err));
    q->steps.attr.rounding = BK_ROUND_SOFT;
    return BK_OK;
}

static bk_status params(void *st, bk_params *p, const char *prefix)
{
    adaround *q = st;
    char name[128];
    snprintf(name, sizeof name, "%s.v", prefix);
    BK_TRY(bk_steps_declare(&q->steps, p, prefix, BK_GROUP_CONSTANT));
    q->v = bk_params_add(p, name, BK_GROUP_ROUND, false, 2, (int64_t[]){q->steps.rows, q->steps.cols});
    return q->v ? BK_OK : BK_ENOMEM;
}

static bk_status init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    adaround *q = st;
    q->nearest = true;
    return bk_steps_init(ctx, st, lo, hi);
}

/* h(v) = the fraction of u = w / s; a tie goes where rounding to nearest takes it. */
static double decision(double u)
{
    double down = floor(u), f = rint(u) > down ? fmax(u - down, 0.5) : fmin(u - down, 0.4999);
    return -log(1.2 / (f + 0.1) - 1);
}

/* Quotients as the kernels of the backend have them. */
static bk_status begin_unit(bk_ctx *ctx, const adaround *q, const bk_tensor *w, int64_t u, int64_t group)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    double s, buf[CHUNK];
    BK_TRY(bk_read_f64(be, q->steps.s, u, &s, 1, err));
    for (int64_t i = 0; i < group; i += CHUNK) {
        int64_t n = group - i < CHUNK ? group - i : CHUNK;
        BK_TRY(bk_read_f64(be, w, u * group + i, buf, n, err));
        for (int64_t j = 0; j < n; j++) buf[j] = decision(be->dtype == BK_F32 ? (double)((float)buf[j] / (float)s) : buf[j] / s);
        BK_TRY(bk_write_f64(be, q->v, u * group + i, buf, n, err));
    }
    return BK_OK;
}

static bk_status begin(bk_ctx *ctx, void *st, const bk_tensor *w)
{
    adaround *q = st;
    q->nearest = false;
    for (int64_t u = 0; u < bk_steps_units(q); u++) BK_TRY(begin_unit(ctx, q, w, u, q->steps.attr.group));
    return BK_OK;
}

static bk_tensor *apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    const adaround *q = st;
    bk_fakequant_attr nearest = q->steps.attr;
    nearest.rounding = BK_ROUND_OFFSET;
    if (q->nearest) return bk_fakequant(ctx, x, q->steps.s, q->steps.z, &nearest);
    return bk_fakequant_rounded(ctx, x, q->steps.s, q->steps.z, q->v, &q->steps.attr);
}

/* The exponent falls linearly after the warm-up. */
static bk_tensor *penalty(bk_ctx *ctx, void *st, double progress)
{
    const adaround *q = st;
    if (progress < q->warmup) return NULL;
    double left = q->warmup < 1 ? (1 - progress) / (1 - q->warmup) : 0;
    return bk_round_penalty(ctx, q->v, &(bk_round_penalty_attr){q->lambda, q->beta_end + (q->beta_start - q->beta_end) * left});
}

static bk_status harden(bk_ctx *ctx, void *st)
{
    const adaround *q = st;
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    int64_t all = bk_numel(q->v);
    for (int64_t i = 0; i < all; i += CHUNK) {
        float buf[CHUNK];
        int64_t n = all - i < CHUNK ? all - i : CHUNK;
        BK_TRY(bk_read(be, q->v, i, buf, n, err));
        for (int64_t j = 0; j < n; j++) buf[j] = buf[j] >= 0 ? HARD : -HARD;
        BK_TRY(bk_write(be, q->v, i, buf, n, err));
    }
    return BK_OK;
}

static bk_status codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const adaround *q = st;
    return bk_steps_export(ctx, &q->steps, x, q->steps.s, q->steps.z, q->v, out);
}

const bk_quantizer bk_quantizer_adaround = {
    .struct_size = sizeof(bk_quantizer),
    .abi = BK_QUANTIZER_ABI,
    .name = "adaround",
    .about = "weights: rounding down or up is learned, steps stay (AdaRound, BRECQ)",
    .for_weights = true,
    .state_size = sizeof(adaround),
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .setup = setup,
    .params = params,
    .units = bk_steps_units,
    .needs_range = bk_steps_needs_range,
    .init = init,
    .factors = bk_steps_factors,
    .begin = begin,
    .apply = apply,
    .penalty = penalty,
    .harden = harden,
    .codes = codes,
};
_Static_assert(sizeof(adaround) <= BK_QUANTIZER_STATE_MAX, "state");
_Static_assert(offsetof(adaround, steps) == 0, "the functions of quant/steps.h read the state as bk_steps");
