/* Texts and samples of a run, and the gate that compares the transformed model with the one in the file (docs/numerics.md, Rotations). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/run.h"

/* Detection, calibration and training draw from streams of their own, so that one seed serves all. */
enum { DRAW_TRAINING, DRAW_CALIBRATION, DRAW_DETECTION, DRAWS };

static uint64_t draw_seed(const bk_run_config *c, int purpose)
{
    return (uint64_t)c->seed * DRAWS + (uint64_t)purpose;
}

uint64_t bk_run_detection_seed(const bk_run_config *c)
{
    return draw_seed(c, DRAW_DETECTION);
}

/* Says what was drawn; fewer than asked is an error when strict. */
static bk_status report(const bk_run *r, const char *path, const char *what, const bk_samples *s, int64_t asked, bool prefixed, bk_error *err)
{
    const bk_ledger *l = &s->ledger;
    if (l->bos_inside && !r->policy.strip_bos && prefixed)
        bk_log(BK_LOG_WARN, "%s: %lld BOS tokens stand in the text behind a prefix that ends with one; strip_bos: true removes them", path,
               (long long)l->bos_inside);
    bk_log(s->n < asked ? BK_LOG_WARN : BK_LOG_INFO, "%-11s %lld of %lld samples of %lld tokens (text: %lld documents, %lld tokens, bos: %s)", what,
           (long long)s->n, (long long)asked, (long long)s->seqlen, (long long)l->documents, (long long)l->tokens,
           bk_bos_in_force(&r->lab, l, &r->policy, prefixed));
    if (s->n >= asked || !r->cfg.strict) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: %lld of %lld samples (strict)", what, (long long)s->n, (long long)asked);
}

static bk_status draw(bk_run *r, const char *path, const char *what, int64_t seqlen, int64_t n, int64_t skip, int purpose, bool prefixed,
                      bk_samples *out, bk_error *err)
{
    bk_text text = {0};
    BK_TRY(bk_lab_text(&r->lab, path, &r->policy, prefixed, &text, err));
    bk_status st = bk_samples_draw(&text, seqlen, n, skip, draw_seed(&r->cfg, purpose), out, err);
    if (st) bk_error_prefix(err, "%s: %s samples", path, what);
    bk_text_free(&text);
    return st ? st : report(r, path, what, out, n, prefixed, err);
}

/* Training and validation are one draw: the first n_train samples, then the validation ones, so they are disjoint. */
static bk_status draw_training(bk_run *r, bool prefixed, bk_error *err)
{
    const bk_data_config *d = &r->cfg.data.training;
    int64_t want = d->samples + r->cfg.data.validation;
    if (r->cfg.train.epochs == 0) return BK_OK;
    BK_TRY(draw(r, d->text, "training", d->seqlen, want, 0, DRAW_TRAINING, prefixed, &r->training, err));
    r->n_train = r->training.n < d->samples ? r->training.n : d->samples;
    r->n_val = r->training.n - r->n_train;
    if (r->n_val < r->cfg.data.validation)
        bk_log(BK_LOG_WARN, "validation: %lld of %lld samples%s", (long long)r->n_val, (long long)r->cfg.data.validation,
               r->n_val ? "" : "; the training samples validate");
    return BK_OK;
}

/* Without a text of its own, calibration takes the first training windows. */
static bk_status draw_calibration(bk_run *r, bool prefixed, bk_error *err)
{
    const bk_data_config *c = &r->cfg.data.calibration, *t = &r->cfg.data.training;
    if (*c->text) return draw(r, c->text, "calibration", c->seqlen, c->samples, 0, DRAW_CALIBRATION, prefixed, &r->calibration, err);
    return draw(r, t->text, "calibration", t->seqlen, c->samples, 0, DRAW_TRAINING, prefixed, &r->calibration, err);
}

/* Of the same draw as calibration: with windows of one length the first of them are the same. */
static bk_status draw_statistics(bk_run *r, bool prefixed, bk_error *err)
{
    const bk_data_config *s = &r->cfg.data.statistics;
    return draw(r, bk_run_config_text(&r->cfg, s), "statistics", s->seqlen, s->samples, 0, DRAW_CALIBRATION, prefixed, &r->statistics, err);
}

static bk_status load_evaluation(bk_run *r, bool prefixed, bk_error *err)
{
    const bk_data_config *d = &r->cfg.data.evaluation;
    bk_text text = {0};
    BK_TRY(bk_lab_text(&r->lab, d->text, &r->policy, prefixed, &text, err));
    bk_status st = bk_samples_windows(&text, d->seqlen, d->samples, &r->evaluation, err);
    if (st) bk_error_prefix(err, "%s: evaluation windows", d->text);
    bk_text_free(&text);
    return st ? st : report(r, d->text, "evaluation", &r->evaluation, d->samples < 0 ? r->evaluation.n : d->samples, prefixed, err);
}

bk_status bk_run_load_data(bk_run *r, bk_error *err)
{
    const bk_run_config *c = &r->cfg;
    bool prefixed = c->prefix.mode != BK_PREFIX_NONE;
    if (bk_run_config_detects(c))
        BK_TRY(draw(r, bk_run_config_text(c, &c->data.detection), "detection", c->data.detection.seqlen, c->data.detection.samples, 0,
                    DRAW_DETECTION, false, &r->detection, err));
    BK_TRY(draw_training(r, prefixed, err));
    if (bk_run_needs_calibration(c)) BK_TRY(draw_calibration(r, prefixed, err));
    if (bk_run_needs_statistics(c)) BK_TRY(draw_statistics(r, prefixed, err));
    return load_evaluation(r, prefixed, err);
}

/* --- the equivalence gate --- */

#define GATE_TOKENS 16

typedef struct gate_load {
    const bk_source *src;
    bk_block_weights w;
} gate_load;

static bk_status gate_block(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    gate_load *g = user;
    BK_TRY(bk_source_block(g->src, layer, &g->w, err));
    return bk_block_load(b, &g->w, err);
}

static bk_status logits_of(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t n, float *out, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    bk_block *b = NULL;
    bk_stream *h = NULL;
    gate_load g = {.src = src};
    bk_ctx *ctx = bk_ctx_new(be, err);
    float *hidden = malloc((size_t)(n * cfg->hidden) * sizeof *hidden);
    bk_block_options opt = {.r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .tokens = n};
    bk_status st = ctx && hidden ? bk_weights_alloc(cfg, &g.w, err) : bk_fail(err, BK_ENOMEM, "no memory");
    if (!st) st = bk_block_create(&b, be, cfg, &opt, err);
    if (!st) st = bk_stream_create(&h, 1, n, cfg->hidden, err);
    if (!st) st = bk_embed_stream(src, ids, h, err);
    if (!st) bk_ctx_measure(ctx);
    if (!st) st = bk_block_pass_measure(ctx, b, 1, n);
    if (!st) st = bk_ctx_commit(ctx);
    if (!st) st = bk_model_pass(ctx, b, &(bk_loader){gate_block, &g}, h, NULL, err);
    if (!st) st = bk_stream_read(h, 0, 1, hidden, err);
    if (!st) st = bk_logits(ctx, src, hidden, n, out, err);
    bk_weights_free(&g.w);
    bk_block_free(b);
    bk_stream_free(h);
    bk_ctx_free(ctx);
    free(hidden);
    return st;
}

/* Largest difference over the range of the original logits; NaN if there is one. */
static double relative_difference(const float *a, const float *b, int64_t n)
{
    double lo = INFINITY, hi = -INFINITY, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        lo = fmin(lo, (double)a[i]);
        hi = fmax(hi, (double)a[i]);
        double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(d)) return NAN;
        worst = fmax(worst, d);
    }
    return worst / (hi > lo ? hi - lo : 1);
}

static bk_status compare(bk_run *r, const bk_rotation_spec *spec, const float *want, float *got, const int32_t *ids, int64_t n, double *diff,
                         bk_error *err)
{
    bk_source *src = NULL;
    BK_TRY(bk_source_open(r->lab.model, spec, &src, err));
    bk_status st = logits_of(r->lab.be, src, ids, n, got, err);
    if (!st) *diff = relative_difference(want, got, n * bk_source_config(src)->vocab);
    bk_source_close(src);
    return st;
}

/* Finds the transform that alone makes the difference, for the message. */
static bk_status blame(bk_run *r, const bk_rotation_spec *all, const float *want, float *got, const int32_t *ids, int64_t n, double diff, bk_error *err)
{
    double tolerance = r->cfg.equivalence_tolerance;
    const struct {
        const char *name;
        bk_rotation_spec spec;
    } single[] = {{"r1 (with fused norms)", {.r1 = all->r1}}, {"r2", {.r2 = all->r2}}, {"r3", {.r3 = all->r3}},
                  {"r4", {.r4 = all->r4, .r4_group = all->r4_group}}, {"fold_v_bias", {.fold_v_bias = all->fold_v_bias}},
                  {"what was fitted (rotation.basis, scales.from)", {.r1 = all->r1, .r2 = all->r2, .r3 = all->r3, .r4 = all->r4,
                                                                     .r4_group = all->r4_group, .fitted = all->fitted, .be = all->be}}};
    const char *guilty = "all transforms together";
    size_t n_single = sizeof single / sizeof single[0] - !all->fitted;
    for (size_t i = 0; i < n_single; i++) {
        bk_rotation_spec spec = single[i].spec;
        double d = 0;
        spec.seed = all->seed;
        BK_TRY(compare(r, &spec, want, got, ids, n, &d, err));
        if (!(d <= tolerance)) {
            guilty = single[i].name;
            break;
        }
    }
    return bk_fail(err, BK_ENUMERIC, "%s changed the full-precision logits by %.3g of their range, more than equivalence_tolerance %.3g", guilty, diff,
                   tolerance);
}

bk_status bk_run_equivalence(bk_run *r, bk_error *err)
{
    const bk_run_config *c = &r->cfg;
    bk_rotation_spec spec = bk_run_rotation(c, bk_model_config(r->lab.model), r->fitted, r->lab.be);
    if (!(spec.r1 || spec.r2 || spec.r3 || spec.r4 || spec.fold_v_bias || spec.fitted)) return BK_OK;
    int64_t n = r->evaluation.seqlen < GATE_TOKENS ? r->evaluation.seqlen : GATE_TOKENS, count = n * bk_model_config(r->lab.model)->vocab;
    float *want = malloc((size_t)count * 2 * sizeof *want);
    double diff = 0;
    bk_run_begin_stage(r, "equivalence", r->fitted ? 2 : 1, 2);
    bk_status st = want ? logits_of(r->lab.be, r->plain, r->evaluation.ids, n, want, err) : bk_fail(err, BK_ENOMEM, "no memory for logits");
    if (!st) bk_progress_step(&r->progress, 1);
    if (!st) st = compare(r, &spec, want, want + count, r->evaluation.ids, n, &diff, err);
    if (!st && !(diff <= c->equivalence_tolerance)) st = blame(r, &spec, want, want + count, r->evaluation.ids, n, diff, err);
    if (!st) bk_run_end_stage(r);
    if (!st) bk_log(BK_LOG_INFO, "rotated model: logits differ by %.2g of their range from the original", diff);
    free(want);
    return st;
}
