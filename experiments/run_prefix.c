/* Outlier tokens and prefix of a run: the stage `outliers` keeps the choice by count, the stage `prefix` that of a
 * search, prefix.h5 in the run folder the keys and values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/printable.h"
#include "experiments/run.h"

static bk_status save_choice(const bk_prefix_choice *c, const char *dir, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root = bk_json_object(), *ids = bk_json_array(), *ranked = bk_json_array(), *counts = bk_json_array();
    for (int64_t i = 0; i < c->n; i++) bk_json_push(ids, bk_json_of_int(c->ids[i]));
    for (int64_t i = 0; i < c->ranked.n; i++) {
        bk_json_push(ranked, bk_json_of_int(c->ranked.ids[i]));
        bk_json_push(counts, bk_json_of_int(c->ranked.counts[i]));
    }
    bk_json_set(root, "prefix", ids);
    bk_json_set(root, "o", bk_json_of_int(c->o));
    bk_json_set(root, "o_raw", bk_json_of_int(c->o_raw));
    bk_json_set(root, "dropped_rare", bk_json_of_bool(c->dropped_rare));
    bk_json_set(root, "ranked_ids", ranked);
    bk_json_set(root, "ranked_counts", counts);
    snprintf(path, sizeof path, "%s/outliers.json", dir);
    bk_status st = bk_json_save(root, path, err);
    bk_json_free(root);
    return st;
}

/* The prefix of a file of a stage. */
static bk_status load_prefix(bk_prefix_choice *c, const bk_json *root, const char *path, bk_error *err)
{
    const bk_json *ids = bk_json_get(root, "prefix");
    c->n = (int64_t)bk_json_size(ids);
    if (!ids || c->n > BK_PREFIX_MAX)
        return bk_fail(err, BK_EFORMAT, "%s: no list \"prefix\" of at most %d tokens", path, BK_PREFIX_MAX);
    for (int64_t i = 0; i < c->n; i++) c->ids[i] = (int32_t)bk_json_int(bk_json_at(ids, (size_t)i), -1);
    return BK_OK;
}

/* The ranking as well, which gives a search its candidates; counts are for readers of the file. */
static bk_status load_ranking(bk_ranking *r, const bk_json *ids, bk_error *err)
{
    r->n = (int64_t)bk_json_size(ids);
    r->ids = malloc(((size_t)r->n + 1) * sizeof *r->ids);
    if (!r->ids) return bk_fail(err, BK_ENOMEM, "no memory for %lld outlier tokens", (long long)r->n);
    for (int64_t i = 0; i < r->n; i++) r->ids[i] = (int32_t)bk_json_int(bk_json_at(ids, (size_t)i), -1);
    return BK_OK;
}

static bk_status load_choice(bk_prefix_choice *c, const char *dir, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root;
    snprintf(path, sizeof path, "%s/outliers.json", dir);
    BK_TRY(bk_json_load(path, &root, err));
    *c = (bk_prefix_choice){.o = bk_json_int(bk_json_get(root, "o"), 0)};
    bk_status st = load_prefix(c, root, path, err);
    if (!st) st = load_ranking(&c->ranked, bk_json_get(root, "ranked_ids"), err);
    bk_json_free(root);
    return st;
}

static bk_status detect(bk_run *r, bk_error *err)
{
    bk_watch watch = bk_run_begin_stage(r, "outliers", 2, bk_model_config(r->lab.model)->layers);
    bk_outliers found = {0};
    bk_status st = bk_outliers_detect(r->lab.be, r->plain, r->detection.ids, r->detection.n, r->detection.seqlen, r->cfg.prefix.threshold, &watch, &found, err);
    if (!st) st = bk_prefix_choose(&found, r->cfg.prefix.bos == BK_PREFIX_BOS_LAST ? r->lab.bos : -1, 0.1, &r->choice, err);
    bk_outliers_free(&found);
    if (!st) st = save_choice(&r->choice, r->outliers.work, err);
    if (!st) st = bk_stage_commit(&r->outliers, err);
    if (!st) bk_run_end_stage(r);
    return st;
}

static bk_status find_outliers(bk_run *r, bk_error *err)
{
    bk_status st = bk_run_stage_open(r, BK_STAGE_OUTLIERS, &r->outliers, err);
    if (!st && r->outliers.done) st = load_choice(&r->choice, r->outliers.dir, err);
    if (!st && r->outliers.done) bk_log(BK_LOG_INFO, "[2/5] outliers: taken from %s", r->outliers.dir);
    if (!st && !r->outliers.done) st = detect(r, err);
    bk_stage_close(&r->outliers);
    return st;
}

/* --- search --- */

/* What a search found, and what it tried. */
typedef struct searched {
    const bk_prefix_choice *found; /* by count */
    int32_t *candidates;
    int64_t n_candidates;
    bk_search_result result;
} searched;

static bk_status find_candidates(const bk_run *r, searched *s, bk_error *err)
{
    const bk_samples *d = &r->detection;
    int32_t special[] = {(int32_t)r->lab.bos, (int32_t)bk_tokenizer_eos(r->lab.tok)};
    int64_t room = r->cfg.prefix.search.candidates;
    bk_ranking frequent;
    bk_status st = bk_ids_rank(d->ids, d->n * d->seqlen, &frequent, err);
    s->candidates = malloc((size_t)room * sizeof *s->candidates);
    if (!st && !s->candidates) st = bk_fail(err, BK_ENOMEM, "no memory for the candidates of a prefix");
    const bk_id_list lists[] = {{special, 2}, {s->found->ranked.ids, s->found->ranked.n}, {frequent.ids, frequent.n}};
    if (!st) s->n_candidates = bk_search_candidates(lists, 3, room, s->candidates);
    bk_ranking_free(&frequent);
    return st;
}

static bk_status step_json(const bk_run *r, const bk_search_step *s, bk_json *to, bk_error *err)
{
    char text[BK_PRINTABLE_ROOM];
    bk_json_set(to, "id", bk_json_of_int(s->id));
    BK_TRY(bk_token_printable(r->lab.tok, s->id, text, err));
    bk_json_set(to, "text", bk_json_of_text(text));
    bk_json_set(to, "before", bk_json_of_num(s->before));
    bk_json_set(to, "after", bk_json_of_num(s->after));
    return BK_OK;
}

static bk_status search_json(const bk_run *r, const searched *s, bk_json *root, bk_error *err)
{
    const bk_search_result *f = &s->result;
    bk_json *ids = bk_json_array(), *steps = bk_json_array(), *candidates = bk_json_array();
    bk_json_set(root, "prefix", ids);
    bk_json_set(root, "objective", bk_json_of_text(bk_search_objective_name[r->cfg.prefix.search.objective]));
    bk_json_set(root, "steps", steps);
    bk_json_set(root, "candidates", candidates);
    for (int64_t i = 0; i < s->n_candidates; i++) bk_json_push(candidates, bk_json_of_int(s->candidates[i]));
    for (int64_t i = 0; i < f->n; i++) {
        bk_json *step = bk_json_object();
        bk_json_push(ids, bk_json_of_int(f->step[i].id));
        bk_json_push(steps, step);
        BK_TRY(step_json(r, &f->step[i], step, err));
    }
    bk_json *last = f->stopped && f->last.id >= 0 ? bk_json_object() : bk_json_null();
    bk_json_set(root, "rejected", last);
    return f->stopped && f->last.id >= 0 ? step_json(r, &f->last, last, err) : BK_OK;
}

static bk_status save_search(const bk_run *r, const searched *s, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root = bk_json_object();
    bk_status st = search_json(r, s, root, err);
    snprintf(path, sizeof path, "%s/prefix.json", r->searched.work);
    if (!st) st = bk_json_save(root, path, err);
    bk_json_free(root);
    return st;
}

static bk_status load_search(bk_run *r, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root;
    snprintf(path, sizeof path, "%s/prefix.json", r->searched.dir);
    BK_TRY(bk_json_load(path, &root, err));
    bk_status st = load_prefix(&r->choice, root, path, err);
    bk_json_free(root);
    return st;
}

static bk_status log_step(const bk_run *r, const bk_search_step *s, const char *what, bk_error *err)
{
    char text[BK_PRINTABLE_ROOM];
    BK_TRY(bk_token_printable(r->lab.tok, s->id, text, err));
    bk_log(BK_LOG_INFO, "searched prefix: %s %d \"%s\", %s %.4g -> %.4g", what, s->id, text,
           bk_search_objective_name[r->cfg.prefix.search.objective], s->before, s->after);
    return BK_OK;
}

static bk_status log_search(const bk_run *r, const searched *s, bk_error *err)
{
    const bk_search_result *f = &s->result;
    for (int64_t i = 0; i < f->n; i++) BK_TRY(log_step(r, &f->step[i], "takes", err));
    if (!f->stopped) return BK_OK;
    if (f->last.id >= 0) return log_step(r, &f->last, "tau leaves", err);
    bk_log(BK_LOG_INFO, "searched prefix: none of %lld candidates lowers it further", (long long)s->n_candidates);
    return BK_OK;
}

static bk_status run_search(const bk_run *r, searched *s, const unsigned *skip_sites, const bk_watch *watch,
                            bk_error *err)
{
    const bk_samples *d = &r->detection;
    int64_t samples = r->cfg.prefix.search.samples;
    bk_id_list candidates = {s->candidates, s->n_candidates};
    bk_search_options opt = {.objective = (bk_search_objective)r->cfg.prefix.search.objective,
                             .quant = &r->quant,
                             .skip_sites = skip_sites,
                             .ema = r->cfg.init.range == BK_RANGE_EMA,
                             .max_tokens = r->cfg.prefix.search.max_tokens,
                             .tau = r->cfg.prefix.search.tau};
    return bk_prefix_search(r->lab.be, r->src, &candidates, d->ids, samples < d->n ? samples : d->n, d->seqlen, &opt,
                            watch, &s->result, err);
}

static bk_status search(bk_run *r, searched *s, bk_error *err)
{
    unsigned *skip_sites;
    int64_t layers = bk_model_config(r->lab.model)->layers;
    BK_TRY(find_candidates(r, s, err));
    BK_TRY(bk_skip_lists(&r->cfg, layers, &skip_sites, err));
    int64_t steps = bk_prefix_search_steps(s->n_candidates, r->cfg.prefix.search.max_tokens, layers);
    bk_watch watch = bk_run_begin_stage(r, "prefix search", 2, steps);
    bk_status st = run_search(r, s, skip_sites, &watch, err);
    free(skip_sites);
    if (!st) st = save_search(r, s, err);
    if (!st) st = bk_stage_commit(&r->searched, err);
    BK_TRY(st);
    bk_run_end_stage(r);
    r->choice.n = s->result.n;
    for (int64_t i = 0; i < s->result.n; i++) r->choice.ids[i] = s->result.step[i].id;
    return log_search(r, s, err);
}

static bk_status find_searched(bk_run *r, bk_error *err)
{
    searched s = {.found = &r->choice};
    bk_status st = bk_run_stage_open(r, BK_STAGE_PREFIX, &r->searched, err);
    if (!st && r->searched.done) st = load_search(r, err);
    if (!st && r->searched.done) bk_log(BK_LOG_INFO, "[2/5] prefix search: taken from %s", r->searched.dir);
    if (!st && !r->searched.done) st = search(r, &s, err);
    free(s.candidates);
    bk_stage_close(&r->searched);
    return st;
}

static bk_status choose(bk_run *r, bk_error *err)
{
    const bk_run_config *c = &r->cfg;
    if (bk_run_config_detects(c)) BK_TRY(find_outliers(r, err));
    if (c->prefix.mode == BK_PREFIX_SEARCH) return find_searched(r, err);
    if (c->prefix.mode != BK_PREFIX_GIVEN) return BK_OK;
    r->choice.n = c->prefix.n_ids;
    memcpy(r->choice.ids, c->prefix.ids, (size_t)r->choice.n * sizeof r->choice.ids[0]);
    return BK_OK;
}

static bk_status log_prefix(const bk_run *r, bk_error *err)
{
    char line[512] = "", token[BK_PRINTABLE_ROOM];
    for (int64_t i = 0; i < r->prefix.n; i++) {
        size_t at = strlen(line);
        BK_TRY(bk_token_printable(r->lab.tok, r->prefix.ids[i], token, err));
        snprintf(line + at, sizeof line - at, " %d \"%s\"", r->prefix.ids[i], token);
    }
    if (!r->prefix.n) bk_log(BK_LOG_INFO, "prefix: 0 tokens (none)");
    else
        bk_log(BK_LOG_INFO, "prefix: %lld tokens:%s; texts begin at position %lld", (long long)r->prefix.n, line,
               (long long)(r->cfg.prefix.overlap ? 0 : r->prefix.n));
    return BK_OK;
}

/* The rotation that the stored keys belong to. */
static void rotation_text(const bk_run *r, char *to, size_t size)
{
    int n = snprintf(to, size, "r1=%d r2=%d r3=%d r4=%d r2_per_head=%d r4_group=%lld fold_v_bias=%d seed=%lld", r->cfg.rotation.r1,
                     r->cfg.rotation.r2, r->cfg.rotation.r3, r->cfg.rotation.r4, r->cfg.rotation.r2_per_head, (long long)r->cfg.rotation.r4_group,
                     r->cfg.rotation.fold_v_bias, (long long)r->cfg.seed);
    if (r->fitted) snprintf(to + n, size - (size_t)n, " fit=%s", r->fit.hash);
}

bk_status bk_run_choose_prefix(bk_run *r, bk_error *err)
{
    BK_TRY(choose(r, err));
    return bk_run_config_check_model(&r->cfg, bk_model_config(r->lab.model), r->choice.n, err); /* now, not after the training */
}

bk_status bk_run_make_prefix(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH], rotation[256];
    rotation_text(r, rotation, sizeof rotation);
    bk_run_path(r, "prefix.h5", path, sizeof path);
    BK_TRY(bk_prefix_compute(r->lab.be, r->src, r->choice.ids, r->choice.n, &r->prefix, err));
    if (r->prefix.n) BK_TRY(bk_prefix_save(&r->prefix, path, bk_model_name(r->lab.model), r->model_sha, rotation, err));
    return log_prefix(r, err);
}
