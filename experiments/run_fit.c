/* Transforms that are fitted to the model: the stage `fit` holds fitted.h5 (blocks/fitted.h) and fit.json, numbers for people. Scales or a
 * basis of R1: the config has one of them. SpinQuant's loss sees the windows alone, all others see them behind the prefix. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "blocks/awq.h"
#include "blocks/smooth.h"
#include "experiments/log.h"
#include "experiments/offq_json.h"
#include "experiments/run.h"
#include "experiments/verbs.h"

typedef struct fitting {
    bk_run *r;
    bk_watch watch;
    bk_fitted *f;
    bk_json *report; /* fit.json */
    bk_json *ratios; /* found by awq so far */
    bk_source *src;   /* what is fitted to, and */
    bk_prefix prefix; /* the prefix as it has it */
} fitting;

static bk_status open_source(fitting *t, const bk_rotation_spec *spec, bk_error *err)
{
    bk_prefix_free(&t->prefix);
    bk_source_close(t->src);
    t->src = NULL;
    BK_TRY(bk_source_open(t->r->lab.model, spec, &t->src, err));
    bk_source_overlap_prefix(t->src, t->r->cfg.prefix.overlap);
    return BK_OK;
}

static bk_status open_with_prefix(fitting *t, const bk_rotation_spec *spec, bk_error *err)
{
    const bk_run *r = t->r;
    BK_TRY(open_source(t, spec, err));
    return bk_prefix_compute(r->lab.be, t->src, r->choice.ids, r->choice.n, &t->prefix, err);
}

/* --- scales --- */

static bk_status fit_smooth(fitting *t, bk_error *err)
{
    const bk_samples *s = &t->r->statistics;
    BK_TRY(open_with_prefix(t, NULL, err));
    return bk_smooth_fit(t->r->lab.be, t->src, s->ids, s->n, s->seqlen, t->r->cfg.scales.alpha, &t->prefix, &t->watch, t->f, err);
}

static void note_ratio(void *user, int64_t layer, bk_site_id site, const double error[BK_AWQ_RATIOS], int best)
{
    fitting *t = user;
    bk_json *o = bk_json_object();
    bk_json_set(o, "block", bk_json_of_int(layer));
    bk_json_set(o, "site", bk_json_of_text(bk_site_name[site]));
    bk_json_set(o, "ratio", bk_json_of_num((double)best / BK_AWQ_RATIOS));
    bk_json_set(o, "error", bk_json_of_num(error[best] / error[0]));
    bk_json_push(t->ratios, o);
}

static bk_status fit_awq(fitting *t, bk_error *err)
{
    const bk_run *r = t->r;
    const bk_samples *s = &r->statistics;
    int64_t layers = bk_model_config(r->lab.model)->layers;
    unsigned *skips;
    BK_TRY(open_with_prefix(t, NULL, err));
    BK_TRY(bk_skip_lists(&r->cfg, layers, &skips, err));
    bk_awq_options opt = {.weight = r->quant.weight, .skip_weights = skips + layers, .found = note_ratio, .user = t};
    t->ratios = bk_json_array();
    bk_status st = bk_awq_fit(r->lab.be, t->src, s->ids, s->n, s->seqlen, &opt, &t->prefix, &t->watch, t->f, err);
    if (!st) bk_json_set(t->report, "awq", t->ratios);
    else bk_json_free(t->ratios);
    free(skips);
    return st;
}

/* --- bases --- */

static void log_offq(const bk_offq_report *p)
{
    bk_log(BK_LOG_INFO, "offq: %lld groups of %lld; %.1f%% of the top tokens' energy in as many directions, %.1f%% in a basis of all tokens",
           (long long)p->groups, (long long)p->group, 100 * p->share[BK_OFFQ_TOP_TOKENS][BK_OFFQ_TOP_TOKENS],
           100 * p->share[BK_OFFQ_ALL_TOKENS][BK_OFFQ_TOP_TOKENS]);
}

/* Offsets belong to the groups that share a zero point, so these are its groups too unless the config says otherwise. */
static bk_offq_options offq_options(const bk_run_config *c)
{
    bk_offq_options opt = c->offq;
    if (!opt.group && c->quant.activation.group > 0) opt.group = c->quant.activation.group;
    if (c->rotation.r4_group > 0) opt.down_group = c->rotation.r4_group;
    if (!c->rotation.r3 || c->quant.key.bits == 16) opt.keys = BK_OFFQ_KEYS_OFF; /* the basis is that of r3, for quantized keys */
    opt.concentration = true;
    opt.seed = (uint64_t)c->seed;
    return opt;
}

static bk_status fit_offq(fitting *t, bk_error *err)
{
    const bk_run *r = t->r;
    const bk_samples *s = &r->statistics;
    bk_offq_options opt = offq_options(&r->cfg);
    bk_offq_stats stats = {0};
    bk_offq_report report = {0};
    BK_TRY(open_with_prefix(t, NULL, err));
    bk_status st = bk_offq_measure(r->lab.be, t->src, s->ids, s->n, s->seqlen, &t->prefix, &opt, &t->watch, &stats, err);
    if (!st) st = bk_offq_fit(r->lab.be, bk_source_config(t->src), &stats, &opt, t->f, &report, err);
    if (!st) bk_json_set(t->report, "offq", bk_offq_json(&report));
    if (!st) log_offq(&report);
    bk_offq_stats_free(&stats);
    return st;
}

/* All but what is learnt is as in the run. */
static bk_status open_for_spin(fitting *t, bool r2, bk_error *err)
{
    const bk_run *r = t->r;
    bk_rotation_spec spec = bk_run_rotation(&r->cfg, bk_model_config(r->lab.model), t->f, r->lab.be);
    spec.r1 = false;
    spec.fuse = true;
    spec.r2 = spec.r2 && !r2;
    return open_source(t, &spec, err);
}

static bk_status fit_spin(fitting *t, bk_error *err)
{
    const bk_run *r = t->r;
    const bk_samples *s = &r->statistics;
    bk_spin_options opt = r->cfg.spin;
    int64_t layers = bk_model_config(r->lab.model)->layers;
    unsigned *skips;
    BK_TRY(open_for_spin(t, opt.r2, err));
    BK_TRY(bk_skip_lists(&r->cfg, layers, &skips, err));
    opt.weight_bits = bk_run_spin_weight_bits(&r->cfg);
    opt.skip_sites = skips;
    opt.skip_weights = skips + layers;
    opt.seed = (uint64_t)r->cfg.seed;
    opt.losses = malloc((size_t)opt.steps * sizeof *opt.losses);
    bk_status st = opt.losses ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the losses of %lld steps", (long long)opt.steps);
    int64_t parts = r->cfg.spin_seqlen ? s->seqlen / r->cfg.spin_seqlen : 1; /* whole ones: bk_run_config_check */
    if (!st) st = bk_spin_fit(r->lab.be, t->src, &r->quant, s->ids, s->n * parts, s->seqlen / parts, &opt, &t->watch, t->f, err);
    if (!st) bk_json_set(t->report, "losses", bk_json_of_nums(opt.losses, opt.steps));
    if (!st)
        bk_log(BK_LOG_INFO, "spinquant: loss of a batch %.4f before the first step, %.4f before the last", opt.losses[0], opt.losses[opt.steps - 1]);
    free(opt.losses);
    free(skips);
    return st;
}

static bk_status fit_dfrot(fitting *t, const bk_norm_rows *rows, bk_error *err)
{
    bk_dfrot_options opt = t->r->cfg.norm_rotation.dfrot;
    int64_t massive = 0;
    opt.bits = t->r->quant.activation.bits;
    opt.seed = (uint64_t)t->r->cfg.seed;
    opt.massive = &massive;
    opt.errors = malloc((size_t)(opt.rounds + 1) * sizeof *opt.errors);
    bk_status st = opt.errors ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the errors of %lld rounds", (long long)opt.rounds);
    if (!st) st = bk_dfrot_fit(t->r->lab.be, rows, &opt, &t->watch, t->f, err);
    if (!st) bk_json_set(t->report, "errors", bk_json_of_nums(opt.errors, opt.rounds + 1));
    if (!st)
        bk_log(BK_LOG_INFO, "dfrot: weighted error %.4g -> %.4g; %lld of %lld tokens are massive", opt.errors[0], opt.errors[opt.rounds],
               (long long)massive, (long long)rows->n);
    free(opt.errors);
    return st;
}

static bk_status fit_spread(fitting *t, const bk_norm_rows *rows, bk_error *err)
{
    bk_spread_options opt = t->r->cfg.norm_rotation.spread;
    opt.loss = t->r->cfg.rotation.basis == BK_BASIS_KURTAIL ? BK_SPREAD_KURTOSIS : BK_SPREAD_WHIP;
    opt.seed = (uint64_t)t->r->cfg.seed;
    opt.losses = malloc((size_t)opt.epochs * sizeof *opt.losses);
    bk_status st = opt.losses ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the losses of %lld epochs", (long long)opt.epochs);
    if (!st) st = bk_spread_fit(t->r->lab.be, rows, &opt, &t->watch, t->f, err);
    if (!st) bk_json_set(t->report, "losses", bk_json_of_nums(opt.losses, opt.epochs));
    if (!st) bk_log(BK_LOG_INFO, "%s: loss %.6g -> %.6g", bk_spread_name[opt.loss], opt.losses[0], opt.losses[opt.epochs - 1]);
    free(opt.losses);
    return st;
}

/* Rotations that are fitted to rows sampled from the norms. */
static bk_status fit_to_rows(fitting *t, bk_error *err)
{
    const bk_run *r = t->r;
    const bk_samples *s = &r->statistics;
    bk_norm_rows rows = {0};
    BK_TRY(open_with_prefix(t, &(bk_rotation_spec){.fuse = true}, err));
    bk_status st = bk_norm_rows_capture(r->lab.be, t->src, s->ids, s->n, s->seqlen, &t->prefix, r->cfg.norm_rotation.rows, (uint64_t)r->cfg.seed,
                                        &t->watch, &rows, err);
    if (!st) st = r->cfg.rotation.basis == BK_BASIS_DFROT ? fit_dfrot(t, &rows, err) : fit_spread(t, &rows, err);
    bk_norm_rows_free(&rows);
    return st;
}

typedef bk_status (*fit_fn)(fitting *t, bk_error *err);

static const fit_fn scales[] = {[BK_SCALES_NONE] = NULL, [BK_SCALES_SMOOTHQUANT] = fit_smooth, [BK_SCALES_AWQ] = fit_awq};
static const fit_fn bases[BK_BASIS_COUNT] = {[BK_BASIS_HADAMARD] = NULL,      [BK_BASIS_OFFQ] = fit_offq,         [BK_BASIS_SPINQUANT] = fit_spin,
                                             [BK_BASIS_DFROT] = fit_to_rows, [BK_BASIS_DARTQUANT] = fit_to_rows, [BK_BASIS_KURTAIL] = fit_to_rows};

/* --- the stage --- */

static bk_status fit(fitting *t, bk_error *err)
{
    const bk_run *r = t->r;
    char path[BK_STAGE_FILE];
    fit_fn scale = scales[r->cfg.scales.from], basis = bases[r->cfg.rotation.basis];
    BK_TRY(bk_fitted_create(bk_model_config(r->lab.model), &t->f, err));
    if (scale) BK_TRY(scale(t, err));
    if (basis) BK_TRY(basis(t, err));
    BK_TRY(bk_fitted_check(t->f, err));
    snprintf(path, sizeof path, "%s/fitted.h5", r->fit.work);
    BK_TRY(bk_fitted_save(t->f, path, err));
    snprintf(path, sizeof path, "%s/fit.json", r->fit.work);
    return bk_json_save(t->report, path, err);
}

/* Parts of a fit count steps of their own. */
static bk_status step(void *user, int64_t done, int64_t total, bk_error *err)
{
    bk_run *r = user;
    if (total != r->progress.total || done < r->progress.done) bk_run_begin_stage(r, "fit", 2, total);
    if (done > r->progress.done) bk_progress_step(&r->progress, done - r->progress.done);
    return bk_check_cancelled(err);
}

static bk_status make(bk_run *r, bk_error *err)
{
    fitting t = {.r = r, .report = bk_json_object(), .watch = {step, r}};
    bk_run_begin_stage(r, "fit", 2, 1);
    bk_status st = fit(&t, err);
    bk_source_close(t.src);
    bk_prefix_free(&t.prefix);
    bk_fitted_free(t.f);
    bk_json_free(t.report);
    if (st == BK_ECANCEL) bk_log(BK_LOG_INFO, "the fit keeps nothing on the way: it starts over when the run goes on");
    if (!st) st = bk_stage_commit(&r->fit, err);
    if (!st) bk_run_end_stage(r);
    return st;
}

/* The run reads its model through them from now on, and keeps a copy: they are a part of the result. */
static bk_status use(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH + 32], report[BK_STAGE_FILE];
    const bk_config *shapes = bk_model_config(r->lab.model);
    snprintf(path, sizeof path, "%s/fitted.h5", r->fit.dir);
    snprintf(report, sizeof report, "%s/fit.json", r->fit.dir);
    BK_TRY(bk_fitted_load(path, shapes, &r->fitted, err));
    bk_rotation_spec spec = bk_run_rotation(&r->cfg, shapes, r->fitted, r->lab.be);
    bk_source_close(r->src);
    r->src = NULL;
    BK_TRY(bk_source_open(r->lab.model, &spec, &r->src, err));
    bk_source_overlap_prefix(r->src, r->cfg.prefix.overlap);
    bk_run_path(r, "fitted.h5", path, sizeof path);
    BK_TRY(bk_fitted_save(r->fitted, path, err));
    bk_run_path(r, "fit.json", path, sizeof path);
    return bk_copy_file(report, path, err);
}

bk_status bk_run_fit(bk_run *r, bk_error *err)
{
    if (!bk_run_fits(&r->cfg)) return BK_OK;
    bk_status st = bk_run_stage_open(r, BK_STAGE_FIT, &r->fit, err);
    if (!st && r->fit.done) bk_log(BK_LOG_INFO, "[2/5] fit: taken from %s", r->fit.dir);
    if (!st && !r->fit.done) st = make(r, err);
    if (!st) st = use(r, err);
    bk_stage_close(&r->fit);
    return st;
}
