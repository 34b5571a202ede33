/* A quantizer tried on a few numbers, before anything depends on it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quant/plugin.h"
#include "quant/steps.h"

enum { ROWS = 4, COLS = 64, HEAD = 32, GROUP = 16, N = ROWS * COLS };
#define ROOM 4096 /* for a state that is larger than it says */
#define CANARY 0x5a

typedef struct trial {
    const bk_quantizer *q;
    const bk_backend *be;
    bk_qspec spec;
    bk_qshape shape;
    union {
        unsigned char bytes[ROOM];
        max_align_t align;
    } state;
    bk_params *p;
    bk_ctx *ctx;
    bk_tensor *x;
    float value[N], minus[N], one[N]; /* what is quantized; ranges, and a factor */
    char *doing;
    size_t size;
    bk_error *err;
} trial;

static void say(const trial *t, const char *function)
{
    snprintf(t->doing, t->size, "quantizer `%s`, %s, %d bits %s%s per %s: %s", t->q->name,
             t->shape.rows ? "weights" : "activations", t->spec.bits, t->spec.symmetric ? "symmetric" : "asymmetric",
             t->spec.restricted ? " restricted" : "", bk_granularity_name[t->spec.granularity], function);
}

static bk_status wrong(const trial *t, const char *what)
{
    return bk_fail(t->err, BK_EFORMAT, "%s %s", t->doing, what);
}

/* What a function returned; one that fails need not have said why. */
static bk_status went(const trial *t, bk_status st)
{
    for (size_t i = t->q->state_size; i < ROOM; i++)
        if (t->state.bytes[i] != CANARY) return wrong(t, "wrote beyond the state_size that the quantizer declares");
    if (!st && !t->err->code) return BK_OK;
    bk_error why = *t->err;
    bk_error_clear(t->err);
    return bk_fail(t->err, BK_EFORMAT, "%s failed: %s", t->doing, why.code ? why.msg : bk_status_name(st));
}

static bk_status check_values(trial *t, const bk_tensor *y)
{
    float v[N];
    if (bk_ctx_measuring(t->ctx)) return BK_OK;
    BK_TRY(bk_read(t->be, y, 0, v, N, t->err));
    for (int i = 0; i < N; i++)
        if (!isfinite(v[i])) return wrong(t, "gave a value that is not finite");
    return BK_OK;
}

static bk_status apply(trial *t, bk_tensor **y)
{
    say(t, "apply");
    *y = t->q->apply(t->ctx, t->state.bytes, t->x);
    BK_TRY(went(t, *y ? bk_ctx_status(t->ctx) : BK_EINVAL));
    if (!bk_same_shape(*y, t->x)) return wrong(t, "gave a tensor of another shape");
    return check_values(t, *y);
}

static bk_status backward(trial *t, bk_tensor *y)
{
    bk_tensor *dy = bk_real_new(t->ctx, y->ndim, y->dim, "cotangent");
    say(t, "backward of what apply recorded");
    BK_TRY(went(t, bk_ctx_status(t->ctx)));
    if (!bk_ctx_measuring(t->ctx)) BK_TRY(bk_write(t->be, dy, 0, t->one, N, t->err));
    return went(t, bk_backward(t->ctx, y, dy));
}

static bk_status penalty(trial *t)
{
    if (!t->q->penalty) return BK_OK;
    say(t, "penalty");
    bk_tensor *p = t->q->penalty(t->ctx, t->state.bytes, 0.5);
    BK_TRY(went(t, bk_ctx_status(t->ctx)));
    return p ? went(t, bk_backward(t->ctx, p, NULL)) : BK_OK;
}

/* As in a step of training. */
static bk_status train(trial *t)
{
    bk_tensor *y;
    bk_step_begin(t->ctx);
    bk_ctx_record(t->ctx, true);
    BK_TRY(bk_params_zero_grad(t->ctx, t->p));
    BK_TRY(apply(t, &y));
    BK_TRY(backward(t, y));
    return penalty(t);
}

/* Codes in their range that a reader decodes to what apply gave, y. */
static bk_status check_codes(trial *t, const bk_codes *out, int64_t units, const bk_tensor *y)
{
    int32_t c[N];
    float step[N], zero[N] = {0}, value[N];
    if (bk_ctx_measuring(t->ctx)) return BK_OK;
    BK_TRY(bk_read_i32(t->be, out->codes, 0, c, N, t->err));
    BK_TRY(bk_read(t->be, out->step, 0, step, units, t->err));
    if (out->zero) BK_TRY(bk_read(t->be, out->zero, 0, zero, units, t->err));
    BK_TRY(bk_read(t->be, y, 0, value, N, t->err));
    for (int i = 0; i < N; i++) {
        int64_t unit = i / (N / units);
        if (c[i] < out->qmin || c[i] - out->qmin >= 1 << t->spec.bits)
            return wrong(t, "gave a code outside of qmin .. qmin + 2^bits - 1");
        float whole = out->zero ? bk_whole_zero(zero[unit], t->spec.bits) : 0;
        if (t->be->dtype == BK_F32 && ((float)c[i] - whole) * step[unit] != value[i])
            return wrong(t, "gave codes, steps and zero points that do not read back as what apply gave: (code - zero) step, zero whole and a code");
    }
    return BK_OK;
}

static bk_status codes(trial *t, int64_t units, const bk_tensor *y)
{
    if (!t->q->codes || !t->shape.rows) return BK_OK;
    say(t, "codes");
    bk_codes out = {.codes = bk_tensor_new(t->ctx, BK_I32, 2, t->x->dim, "codes"),
                    .step = bk_real_new(t->ctx, 1, &units, "step"),
                    .zero = t->spec.symmetric ? NULL : bk_real_new(t->ctx, 1, &units, "zero")};
    BK_TRY(bk_ctx_status(t->ctx));
    BK_TRY(went(t, t->q->codes(t->ctx, t->state.bytes, t->x, &out)));
    return check_codes(t, &out, units, y);
}

/* As when a block is done. */
static bk_status finish(trial *t, int64_t units)
{
    bk_tensor *y;
    bk_step_begin(t->ctx);
    bk_ctx_record(t->ctx, false);
    say(t, "harden");
    if (t->q->harden && t->shape.rows) BK_TRY(went(t, t->q->harden(t->ctx, t->state.bytes)));
    BK_TRY(apply(t, &y));
    return codes(t, units, y);
}

static bk_status run(trial *t, int64_t units)
{
    bk_step_begin(t->ctx);
    say(t, "begin");
    if (t->q->begin && t->shape.rows) BK_TRY(went(t, t->q->begin(t->ctx, t->state.bytes, t->x)));
    BK_TRY(train(t));
    return finish(t, units);
}

static bk_status live(trial *t)
{
    const int64_t dim[2] = {ROWS, COLS};
    say(t, "needs_range");
    bool range = t->q->needs_range(t->state.bytes);
    say(t, "units");
    int64_t units = t->q->units(t->state.bytes);
    if (bk_units_check(units, &t->shape, range, t->err)) return bk_error_prefix(t->err, "%s", t->doing);
    say(t, "params");
    BK_TRY(went(t, t->q->params(t->state.bytes, t->p, "x")));
    BK_TRY(bk_params_commit(t->p, true));
    BK_TRY(bk_tensor_create(t->be, t->be->dtype, 2, dim, "x", &t->x, t->err));
    BK_TRY(bk_tensor_create(t->be, t->be->dtype, 2, dim, "x", &t->x->grad, t->err));
    BK_TRY(bk_write(t->be, t->x, 0, t->value, N, t->err));
    t->x->requires_grad = true;
    say(t, "init");
    BK_TRY(went(t, t->q->init(t->ctx, t->state.bytes, range ? t->minus : NULL, range ? t->one : NULL)));
    say(t, "factors");
    BK_TRY(went(t, t->q->factors(t->ctx, t->state.bytes, t->one)));
    BK_TRY(run(t, units)); /* a dry run, and the real one */
    BK_TRY(bk_ctx_commit(t->ctx));
    return run(t, units);
}

/* What setup does not accept is none of the quantizer's ways. */
static bk_status try_way(trial *t)
{
    bk_error refusal = {0};
    memset(t->state.bytes, CANARY, sizeof t->state.bytes);
    memset(t->state.bytes, 0, t->q->state_size);
    say(t, "setup");
    bool accepted = t->q->setup(t->state.bytes, &t->spec, &t->shape, &refusal) == BK_OK;
    BK_TRY(went(t, BK_OK));
    if (!accepted) return BK_OK;
    t->p = bk_params_new(t->be, t->err);
    t->ctx = bk_ctx_new(t->be, t->err);
    t->x = NULL;
    bk_status st = t->p && t->ctx ? live(t) : BK_ENOMEM;
    if (t->x) bk_tensor_destroy(t->be, t->x->grad);
    bk_tensor_destroy(t->be, t->x);
    bk_ctx_free(t->ctx);
    bk_params_free(t->p);
    return st;
}

static bk_status try_place(trial *t, bool weights)
{
    static const int bits[] = {2, 3, 4, 8};
    t->shape = (bk_qshape){.rows = weights ? ROWS : 0, .cols = COLS, .head_dim = weights ? 0 : HEAD, .name = "x"};
    for (int i = 0; i < 4 * 2 * 2 * BK_GRANULARITY_COUNT; i++) {
        t->spec = (bk_qspec){.bits = bits[i % 4],
                             .symmetric = i / 4 % 2,
                             .restricted = i / 8 % 2,
                             .clip = true,
                             .granularity = (bk_granularity)(i / 16)};
        t->spec.group = t->spec.granularity == BK_PER_GROUP ? GROUP : 0;
        snprintf(t->spec.quantizer, sizeof t->spec.quantizer, "%s", t->q->name);
        for (int k = 0; k < t->q->n_options; k++) t->spec.option[k] = t->q->options[k].initial;
        BK_TRY(try_way(t));
    }
    return BK_OK;
}

bk_status bk_quantizer_try(const bk_quantizer *q, const bk_backend *be, char *doing, size_t size, bk_error *err)
{
    trial t = {.q = q, .be = be, .doing = doing, .size = size, .err = err};
    for (int i = 0; i < N; i++) {
        t.minus[i] = -1;
        t.one[i] = 1;
        t.value[i] = (float)(i * 37 % N) * 2 / N - 1; /* spread over -1 .. 1 */
    }
    if (q->for_weights) BK_TRY(try_place(&t, true));
    return q->for_activations ? try_place(&t, false) : BK_OK;
}
