#include "experiments/sweep_stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/plan.h"
#include "experiments/runner.h"

/* What an estimate does not depend on. */
static const char *const not_estimated[] = {
    "!seed", "!strict", "!threads", "!equivalence_tolerance", "!prefix.threshold", "!prefix.lower_threshold",
    "!prefix.bos", "!prefix.search.tau", "!train.lr", "!train.beta", "!train.eps", "!train.weight_decay", "!train.clip_grad",
    "!train.shuffle", "!train.keep", NULL};

/* Of some machine. */
static const bk_rates some_rates = {.gflops = 100, .load_seconds = 0.05};

bk_status bk_sweep_stages_begin(bk_sweep_stages *t, bk_sweep_run *r, bool measured, bk_error *err)
{
    size_t n = (size_t)r->s->n;
    *t = (bk_sweep_stages){.r = r, .measured = measured, .rates = measured ? (bk_rates){0} : some_rates};
    t->point = calloc(n, sizeof *t->point);
    t->stage = calloc(n * BK_STAGE_KINDS, sizeof *t->stage);
    t->estimate = calloc(n, sizeof *t->estimate);
    t->cfg = malloc(sizeof *t->cfg);
    return t->point && t->stage && t->estimate && t->cfg ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the stages of %zu points", n);
}

void bk_sweep_stages_free(bk_sweep_stages *t)
{
    free(t->point);
    free(t->stage);
    free(t->estimate);
    free(t->cfg);
}

/* Rates are measured once, for the first point. */
static bk_status estimate(bk_sweep_stages *t, bk_sweep_estimate *to, bk_error *err)
{
    bk_config shapes;
    bool weights;
    bk_plan_set set[BK_PLAN_SETS];
    bk_rotation *rotation = NULL;
    const bk_backend *be = bk_runner_backend(t->cfg->backend, t->cfg->threads, err);
    if (!be) return err->code;
    BK_TRY(bk_plan_shapes(t->cfg->model, &shapes, &to->known, &weights, err));
    if (!to->known) return BK_OK;
    BK_TRY(bk_sweep_check_shapes(t->r->s, t->cfg, &shapes, err));
    BK_TRY(bk_plan_samples(t->cfg, t->measured ? t->cfg->model : NULL, set, err));
    bk_sample_counts samples = bk_plan_counts(t->cfg, set);
    bk_status st = bk_plan_rotation(t->cfg, &shapes, &rotation, err);
    if (!st && t->rates.gflops == 0) st = bk_rates_measure(rotation, be, &t->rates, err);
    if (!st) st = bk_estimate_run(t->cfg, &samples, rotation, be, &t->rates, &to->e, err);
    bk_rotation_free(rotation);
    return st;
}

/* Points that differ in a learning rate have one estimate. */
static bk_status find_estimate(bk_sweep_stages *t, int *out, bk_error *err)
{
    char hash[65];
    BK_TRY(bk_sweep_hash(t->cfg, not_estimated, hash, err));
    for (*out = 0; *out < t->n_estimates; ++*out)
        if (!strcmp(t->estimate[*out].hash, hash)) return BK_OK;
    bk_sweep_estimate *e = &t->estimate[t->n_estimates++];
    snprintf(e->hash, sizeof e->hash, "%s", hash);
    return estimate(t, e, err);
}

static bk_status find_stage(bk_sweep_stages *t, bk_stage_kind kind, int parent, const bk_estimate *e, int *out,
                            bk_error *err)
{
    char quick[65];
    BK_TRY(bk_stage_quick(kind, t->cfg, quick, err));
    for (*out = 0; *out < t->n; ++*out)
        if (!strcmp(t->stage[*out].quick, quick)) return BK_OK;
    bk_sweep_stage *s = &t->stage[t->n++];
    *s = (bk_sweep_stage){.kind = kind,
                          .parent = parent,
                          .there = bk_ledger_has(kind, quick),
                          .seconds = e->stage_seconds[kind],
                          .disk = e->stage_disk[kind]};
    snprintf(s->quick, sizeof s->quick, "%s", quick);
    return BK_OK;
}

bk_status bk_sweep_stages_add(bk_sweep_stages *t, int point, bool done, bk_error *err)
{
    struct bk_sweep_taken *p = &t->point[point];
    p->done = done;
    BK_TRY(bk_sweep_config(t->r->s, point, t->cfg, err));
    if (find_estimate(t, &p->estimate, err)) return bk_sweep_blame(t->r->s, point, err);
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        p->stage[k] = -1;
        if (!bk_stage_used((bk_stage_kind)k, t->cfg)) continue;
        bk_stage_kind before = bk_stage_before((bk_stage_kind)k, t->cfg);
        int parent = before < BK_STAGE_KINDS ? p->stage[before] : -1;
        BK_TRY(find_stage(t, (bk_stage_kind)k, parent, &t->estimate[p->estimate].e, &p->stage[k], err));
        bk_sweep_stage *s = &t->stage[p->stage[k]];
        s->points++;
        if (!done && s->open++ == 0) s->first = point;
    }
    return BK_OK;
}

bool bk_sweep_stage_to_make(const bk_sweep_stage *s)
{
    return !s->there && s->open > 0;
}

const bk_estimate *bk_sweep_stages_estimate(const bk_sweep_stages *t, int point)
{
    return &t->estimate[t->point[point].estimate].e;
}

double bk_sweep_stages_seconds(const bk_sweep_stages *t, int point)
{
    const struct bk_sweep_taken *p = &t->point[point];
    const double *own = bk_sweep_stages_estimate(t, point)->seconds;
    if (p->done) return 0;
    double sum = own[BK_PART_EQUIVALENCE] + own[BK_PART_TRAIN] + own[BK_PART_EVALUATE];
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        const bk_sweep_stage *s = p->stage[k] < 0 ? NULL : &t->stage[p->stage[k]];
        if (s && bk_sweep_stage_to_make(s) && s->first == point) sum += s->seconds;
    }
    return sum;
}
