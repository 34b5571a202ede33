#include "blocks/recon.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autograd/rng.h"

#define MAX_HALVINGS 3
#define MAX_TARGETS 2
#define LARGEST_NORM 1e19 /* its square still fits f32: beyond, AdamW's second moment would be Inf and its update 0, in silence */

typedef struct trainer {
    bk_ctx *ctx;
    bk_block *b;
    const bk_train_options *opt;
    const bk_train_hooks *hooks;
    bk_train_report *report;
    bk_error *err;
    bk_prefetch *prefetch;
    int n_targets;
    int64_t samples, tokens, width; /* samples: training ones */
    int64_t *order;                 /* of the training samples in this epoch, then the validation samples */
    double *losses, *grad_norms;    /* [steps per epoch] of this epoch */
    double scale;                   /* of the learning rates: halved by the guard */
    bool guarded;                   /* something was not finite; report->why says what */
} trainer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t steps_per_epoch(const trainer *t)
{
    return (t->samples + t->opt->batch - 1) / t->opt->batch;
}

/* --- one batch --- */

/* Loss of the student on n samples; data NULL during the dry run. */
static bk_tensor *student_loss(trainer *t, int64_t n, const float *const *data)
{
    int64_t dim[3] = {n, t->tokens, t->width}, count = n * t->tokens * t->width;
    bk_tensor *loss = NULL, *x = bk_real_new(t->ctx, 3, dim, "x");
    if (x && data && bk_write(t->b->be, x, 0, data[0], count, t->err)) return NULL;
    bk_tensor *y = bk_block_forward(t->ctx, t->b, x);
    for (int i = 0; i < t->n_targets; i++) {
        bk_tensor *target = bk_real_new(t->ctx, 3, dim, "target");
        if (target && data && bk_write(t->b->be, target, 0, data[1 + i], count, t->err)) return NULL;
        bk_tensor *one = bk_recon_loss(t->ctx, t->opt->loss, y, target);
        loss = loss ? bk_add(t->ctx, loss, one) : one;
    }
    return loss;
}

/* Two targets: the mean of their losses, as a cotangent of 1/2 to their sum. */
static bk_status back_propagate(trainer *t, bk_tensor *loss)
{
    if (t->n_targets == 1) return bk_backward(t->ctx, loss, NULL);
    bk_tensor *half = bk_real_new(t->ctx, 1, (int64_t[]){1}, "cotangent");
    BK_TRY(bk_ctx_status(t->ctx));
    BK_TRY(bk_k_fill(t->ctx, &(bk_fill_args){.n = 1, .value = 0.5, .x = half->data}));
    return bk_backward(t->ctx, loss, half);
}

static bk_status read_loss(trainer *t, const bk_tensor *loss, double *out)
{
    BK_TRY(bk_ctx_status(t->ctx));
    BK_TRY(bk_read_f64(t->b->be, loss, 0, out, 1, t->err));
    *out /= t->n_targets;
    return BK_OK;
}

/* Penalties of the weights' quantizers, which count in sums over channels where the loss is a mean (quantizer.h); NULL: none. */
static bk_tensor *penalties(trainer *t, double progress)
{
    bk_tensor *sum = NULL;
    for (int w = 0; w < BK_W_COUNT; w++) {
        bk_qinst *q = &t->b->wq[w];
        bk_tensor *one = q->q && q->on && q->q->penalty ? q->q->penalty(t->ctx, q->state.bytes, progress) : NULL;
        if (one) sum = sum ? bk_add(t->ctx, sum, one) : one;
    }
    return sum ? bk_scale(t->ctx, sum, 1 / (double)t->width, 1 / (double)t->width) : NULL;
}

/* *loss is without penalties. */
static bk_status gradients(trainer *t, int64_t n, const float *const *data, double progress, bk_tensor **loss)
{
    bk_step_begin(t->ctx);
    BK_TRY(bk_params_zero_grad(t->ctx, t->b->params));
    bk_tensor *all = *loss = student_loss(t, n, data), *penalty = penalties(t, progress);
    for (int i = 0; penalty && i < t->n_targets; i++) all = bk_add(t->ctx, all, penalty); /* their mean has it once */
    BK_TRY(bk_ctx_status(t->ctx));
    return back_propagate(t, all);
}

/* --- the numeric guard: notes what was not finite, and clears the error unless strict --- */

static bk_status guard(trainer *t, int64_t step, const char *fmt, double value)
{
    char what[160];
    snprintf(what, sizeof what, fmt, value);
    if (t->err->code == BK_ENUMERIC) snprintf(t->report->why, sizeof t->report->why, "step %lld: %.200s", (long long)step, t->err->msg);
    else snprintf(t->report->why, sizeof t->report->why, "step %lld: %s", (long long)step, what);
    bk_error_clear(t->err);
    if (t->opt->strict) return bk_fail(t->err, BK_ENUMERIC, "%s (strict)", t->report->why);
    t->guarded = true;
    return BK_OK;
}

static bk_status check_finite(trainer *t, int64_t step, double loss, const double norm[BK_MAX_GROUPS], double *total)
{
    double sum = 0;
    if (!isfinite(loss)) return guard(t, step, "the loss is %g", loss);
    for (int g = 0; g < BK_MAX_GROUPS; g++) sum += norm[g] * norm[g];
    *total = sqrt(sum);
    if (*total < LARGEST_NORM) return BK_OK;
    bk_status st = bk_params_check_grad(t->ctx, t->b->params); /* names the tensor */
    return st && st != BK_ENUMERIC ? st : guard(t, step, "overflow: the gradient norm is %g", *total);
}

/* --- steps and epochs --- */

/* What moves BK_GROUP_ROUND: the rule of the weights' quantizer, NULL where it has nothing there. */
static const bk_quantizer *rounder(const bk_block *b)
{
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        bk_params_at(b->params, i, &group);
        if (group == BK_GROUP_ROUND) return b->wq[0].q;
    }
    return NULL;
}

static double round_rate(const trainer *t, int64_t step, int64_t all)
{
    const bk_quantizer *q = rounder(t->b);
    double given = t->opt->lr_round;
    if (!q) return 0;
    if (q->rule == BK_RULE_SIGN) return (given > 0 ? given : 1 / (double)all) * (1 - (double)step / (double)all);
    return given > 0 ? given : 1e-3;
}

static void rates(const trainer *t, int64_t step, int64_t all, double lr[BK_MAX_GROUPS])
{
    memset(lr, 0, BK_MAX_GROUPS * sizeof *lr);
    lr[BK_GROUP_ROUND] = t->scale * round_rate(t, step, all);
    lr[BK_GROUP_QUANT] = bk_cosine_lr(t->scale * t->opt->lr_quant, t->opt->lr_min_factor, step, all);
    lr[BK_GROUP_WEIGHT] = bk_cosine_lr(t->scale * t->opt->lr_weight, t->opt->lr_min_factor, step, all);
}

/* One step: `step` of all, to be entered into the epoch as its step n_steps. */
static bk_status update(trainer *t, int64_t step, int64_t all, double loss, bk_epoch *e)
{
    double norm[BK_MAX_GROUPS], total = 0, lr[BK_MAX_GROUPS];
    BK_TRY(bk_params_grad_norm(t->ctx, t->b->params, norm));
    BK_TRY(check_finite(t, step, loss, norm, &total));
    if (t->guarded) return BK_OK;
    if (t->opt->clip_grad > 0 && total > t->opt->clip_grad) BK_TRY(bk_params_scale_grad(t->ctx, t->b->params, t->opt->clip_grad / total));
    rates(t, step, all, lr);
    BK_TRY(bk_params_step(t->ctx, t->b->params, &t->opt->adamw, lr, step + 1, &t->report->floored));
    e->loss += loss;
    e->grad_norm += total;
    t->losses[e->n_steps] = loss;
    t->grad_norms[e->n_steps++] = total;
    e->lr_quant = lr[BK_GROUP_QUANT];
    e->lr_weight = lr[BK_GROUP_WEIGHT];
    e->lr_round = lr[BK_GROUP_ROUND];
    return BK_OK;
}

static bk_status read_batch(trainer *t, const int64_t *samples, int64_t at, int64_t end, int64_t *n, const float **data)
{
    *n = end - at < t->opt->batch ? end - at : t->opt->batch;
    BK_TRY(bk_prefetch_wait(t->prefetch, data, t->err));
    int64_t next = at + *n, left = end - next;
    if (left <= 0) return BK_OK;
    return bk_prefetch_begin(t->prefetch, samples + next, left < t->opt->batch ? left : t->opt->batch, t->err);
}

static bk_status begin_batches(trainer *t, const int64_t *samples, int64_t count)
{
    return bk_prefetch_begin(t->prefetch, samples, count < t->opt->batch ? count : t->opt->batch, t->err);
}

static bk_status train_epoch(trainer *t, int64_t first_step, int64_t all, bk_epoch *e)
{
    bk_ctx_record(t->ctx, true);
    BK_TRY(begin_batches(t, t->order, t->samples));
    int64_t step = first_step;
    for (int64_t i = 0, n; i < t->samples; i += n, step++) {
        const float *data[1 + MAX_TARGETS];
        bk_tensor *loss;
        double value;
        BK_TRY(read_batch(t, t->order, i, t->samples, &n, data));
        if (t->guarded) continue; /* the read ahead must end before anything else begins */
        BK_TRY(gradients(t, n, data, (double)step / (double)all, &loss));
        BK_TRY(read_loss(t, loss, &value));
        BK_TRY(update(t, step, all, value, e));
        BK_TRY(bk_watch_step(t->hooks->watch, step + 1, all, t->err));
    }
    e->step = step;
    e->loss /= (double)(step - first_step);
    e->grad_norm /= (double)(step - first_step);
    return BK_OK;
}

static bk_status validate_as_it_is(trainer *t, double *out)
{
    const int64_t *samples = t->opt->n_val ? t->order + t->samples : t->order;
    int64_t count = t->opt->n_val ? t->opt->n_val : t->samples;
    double sum = 0;
    bk_ctx_record(t->ctx, false);
    BK_TRY(begin_batches(t, samples, count));
    for (int64_t i = 0, n; i < count; i += n) {
        const float *data[1 + MAX_TARGETS];
        double value;
        BK_TRY(read_batch(t, samples, i, count, &n, data));
        bk_step_begin(t->ctx);
        bk_tensor *loss = student_loss(t, n, data);
        BK_TRY(read_loss(t, loss, &value));
        sum += value * (double)n;
    }
    *out = sum / (double)count;
    return BK_OK;
}

static bool rounds_softly(const bk_block *b)
{
    for (int w = 0; w < BK_W_COUNT; w++)
        if (b->wq[w].q && b->wq[w].on && b->wq[w].q->harden) return true;
    return false;
}

/* Soft rounding is judged by what it becomes, and goes on as it was. */
static bk_status validate(trainer *t, double *out)
{
    if (!rounds_softly(t->b)) return validate_as_it_is(t, out);
    BK_TRY(bk_params_set_aside(t->b->params));
    BK_TRY(bk_block_round(t->ctx, t->b));
    BK_TRY(validate_as_it_is(t, out));
    return bk_params_take_back(t->b->params);
}

/* Fisher-Yates with counter-based numbers: the order depends on seed and epoch alone. */
static void order_epoch(trainer *t, int64_t epoch)
{
    for (int64_t i = 0; i < t->samples; i++) t->order[i] = i;
    for (int64_t i = t->samples - 1; t->opt->shuffle && i > 0; i--) {
        int64_t j = (int64_t)bk_rng_below(t->opt->seed, BK_RNG_SHUFFLE, (uint64_t)(epoch * t->samples + i), (uint64_t)i + 1);
        int64_t swap = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = swap;
    }
}

/* All epochs at the present scale of the learning rates; stops early when the guard has seen something. */
static bk_status attempt(trainer *t, double *best)
{
    int64_t per = steps_per_epoch(t), all = t->opt->epochs * per;
    for (int64_t epoch = 0; epoch < t->opt->epochs; epoch++) {
        bk_epoch e = {.epoch = epoch + 1, .losses = t->losses, .grad_norms = t->grad_norms};
        double start = now();
        order_epoch(t, epoch);
        BK_TRY(train_epoch(t, epoch * per, all, &e));
        if (t->guarded) return BK_OK;
        BK_TRY(validate(t, &e.val_loss));
        if (!isfinite(e.val_loss)) return guard(t, e.step, "the validation loss is %g", e.val_loss);
        if (e.val_loss < *best || t->opt->keep_last) {
            *best = t->report->loss_final = e.val_loss;
            t->report->epoch_kept = e.epoch;
            BK_TRY(bk_params_keep_best(t->b->params));
        }
        t->report->steps = e.step;
        e.seconds = now() - start;
        if (t->hooks->epoch) BK_TRY(t->hooks->epoch(t->hooks->user, &e, t->err));
    }
    return BK_OK;
}

static bk_status train(trainer *t)
{
    double best;
    order_epoch(t, 0);
    BK_TRY(bk_params_start(t->b->params));
    BK_TRY(validate(t, &t->report->loss_init));
    best = t->report->loss_final = t->report->loss_init;
    if (!isfinite(best)) BK_TRY(guard(t, 0, "the loss of the initialised block is %g", best));
    for (t->scale = 1; !t->guarded; t->scale /= 2) {
        BK_TRY(attempt(t, &best));
        if (!t->guarded) break;
        BK_TRY(bk_params_restore_best(t->b->params));
        BK_TRY(bk_params_reset_moments(t->b->params));
        if (t->report->halvings == MAX_HALVINGS) break;
        t->report->halvings++;
        t->guarded = false;
    }
    if (t->guarded) {
        t->report->fell_back = true;
        t->report->loss_final = t->report->loss_init;
        t->report->epoch_kept = 0;
        return BK_OK;
    }
    return bk_params_restore_best(t->b->params);
}

/* --- memory --- */

static bk_status measure(trainer *t, int64_t batch)
{
    bk_tensor *loss;
    double norm[BK_MAX_GROUPS], lr[BK_MAX_GROUPS] = {1, 1, 1, 0};
    int64_t floored = 0;
    bk_ctx_measure(t->ctx);
    bk_ctx_record(t->ctx, true);
    BK_TRY(gradients(t, batch, NULL, 1, &loss)); /* at the end there are penalties if ever */
    BK_TRY(bk_params_grad_norm(t->ctx, t->b->params, norm));
    BK_TRY(bk_params_check_grad(t->ctx, t->b->params));
    BK_TRY(bk_params_scale_grad(t->ctx, t->b->params, 1));
    return bk_params_step(t->ctx, t->b->params, &t->opt->adamw, lr, 1, &floored);
}

bk_status bk_train_bytes(bk_block *b, int64_t batch, int64_t tokens, bk_loss_kind loss, size_t *bytes, bk_error *err)
{
    bk_train_options opt = {.batch = batch, .loss = loss};
    trainer t = {.b = b, .opt = &opt, .err = err, .n_targets = 1, .tokens = tokens, .width = b->cfg.hidden};
    if (!(t.ctx = bk_ctx_new(b->be, err))) return BK_ENOMEM;
    bk_status st = measure(&t, batch);
    *bytes = bk_ctx_bytes(t.ctx);
    bk_ctx_free(t.ctx);
    return st;
}

static bk_status check_data(const trainer *t, bk_dset *const *dset, int n)
{
    int64_t want = t->opt->n_train + t->opt->n_val;
    for (int i = 0; i < n; i++) {
        const bk_dset_info *d = bk_dset_info_of(dset[i]);
        if (d->rank != 3 || d->dim[0] < want || d->dim[1] != bk_dset_info_of(dset[0])->dim[1] || d->dim[2] != t->b->cfg.hidden)
            return bk_fail(t->err, BK_ESHAPE, "training data %d is [%lld,%lld,%lld], want at least %lld samples of width %lld", i,
                           (long long)d->dim[0], (long long)d->dim[1], (long long)d->dim[2], (long long)want, (long long)t->b->cfg.hidden);
    }
    if (t->opt->n_train < 1 || t->opt->batch < 1) return bk_fail(t->err, BK_EINVAL, "no training samples");
    return BK_OK;
}

static bk_status prepare(trainer *t, bk_dset *const *dset, int n)
{
    BK_TRY(check_data(t, dset, n));
    t->samples = t->opt->n_train;
    t->tokens = bk_dset_info_of(dset[0])->dim[1];
    t->width = t->b->cfg.hidden;
    t->order = malloc((size_t)(t->samples + t->opt->n_val) * sizeof *t->order);
    t->losses = malloc((size_t)steps_per_epoch(t) * sizeof *t->losses);
    t->grad_norms = malloc((size_t)steps_per_epoch(t) * sizeof *t->grad_norms);
    if (!t->order || !t->losses || !t->grad_norms) return bk_fail(t->err, BK_ENOMEM, "no memory for the steps of an epoch");
    for (int64_t i = 0; i < t->opt->n_val; i++) t->order[t->samples + i] = t->samples + i;
    int64_t most = t->samples > t->opt->n_val ? t->samples : t->opt->n_val, batch = t->opt->batch < most ? t->opt->batch : most;
    BK_TRY(bk_prefetch_new(&t->prefetch, dset, n, batch, t->err));
    BK_TRY(measure(t, batch));
    return bk_ctx_commit(t->ctx);
}

bk_status bk_block_train(bk_block *b, bk_dset *input, bk_dset *target, bk_dset *target2, const bk_train_options *opt,
                         const bk_train_hooks *hooks, bk_train_report *report, bk_error *err)
{
    bk_dset *dset[1 + MAX_TARGETS] = {input, target, target2};
    *report = (bk_train_report){0};
    trainer t = {.b = b, .opt = opt, .hooks = hooks, .report = report, .err = err, .n_targets = target2 ? 2 : 1, .scale = 1};
    double start = now();
    t.ctx = bk_ctx_new(b->be, err);
    bk_status st = t.ctx ? prepare(&t, dset, 1 + t.n_targets) : BK_ENOMEM;
    if (!st) st = train(&t);
    report->seconds = now() - start;
    bk_prefetch_free(t.prefetch);
    bk_ctx_free(t.ctx);
    free(t.order);
    free(t.losses);
    free(t.grad_norms);
    return st;
}
