/* Outlier tokens and prefix of a run: the stage `outliers` keeps the choice, prefix.h5 in the run folder the keys and values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/params_file.h"
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

static bk_status load_choice(bk_prefix_choice *c, const char *dir, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root;
    snprintf(path, sizeof path, "%s/outliers.json", dir);
    BK_TRY(bk_json_load(path, &root, err));
    const bk_json *ids = bk_json_get(root, "prefix");
    *c = (bk_prefix_choice){.o = bk_json_int(bk_json_get(root, "o"), 0), .n = (int64_t)bk_json_size(ids)};
    bk_status st = ids && c->n <= BK_PREFIX_MAX
                       ? BK_OK
                       : bk_fail(err, BK_EFORMAT, "%s: no list \"prefix\" of at most %d tokens", path, BK_PREFIX_MAX);
    for (int64_t i = 0; !st && i < c->n; i++) c->ids[i] = (int32_t)bk_json_int(bk_json_at(ids, (size_t)i), -1);
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

static bk_status choose(bk_run *r, bk_error *err)
{
    if (r->cfg.prefix.mode == BK_PREFIX_NONE) return BK_OK;
    if (r->cfg.prefix.mode == BK_PREFIX_GIVEN) {
        r->choice.n = r->cfg.prefix.n_ids;
        memcpy(r->choice.ids, r->cfg.prefix.ids, (size_t)r->choice.n * sizeof r->choice.ids[0]);
        return BK_OK;
    }
    bk_status st = bk_run_stage_open(r, BK_STAGE_OUTLIERS, &r->outliers, err);
    if (!st && r->outliers.done) st = load_choice(&r->choice, r->outliers.dir, err);
    if (!st && r->outliers.done) bk_log(BK_LOG_INFO, "[2/5] outliers: taken from %s", r->outliers.dir);
    if (!st && !r->outliers.done) st = detect(r, err);
    bk_stage_close(&r->outliers);
    return st;
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
    snprintf(to, size, "r1=%d r2=%d r3=%d r4=%d fold_v_bias=%d seed=%lld", r->cfg.rotation.r1, r->cfg.rotation.r2, r->cfg.rotation.r3,
             r->cfg.rotation.r4, r->cfg.rotation.fold_v_bias, (long long)r->cfg.seed);
}

bk_status bk_run_find_prefix(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH], rotation[128];
    BK_TRY(choose(r, err));
    BK_TRY(bk_run_config_check_model(&r->cfg, bk_model_config(r->lab.model), r->choice.n, err)); /* now, not after the training */
    rotation_text(r, rotation, sizeof rotation);
    bk_run_path(r, "prefix.h5", path, sizeof path);
    BK_TRY(bk_prefix_compute(r->lab.be, r->src, r->choice.ids, r->choice.n, &r->prefix, err));
    if (r->prefix.n) BK_TRY(bk_prefix_save(&r->prefix, path, bk_model_name(r->lab.model), r->model_sha, rotation, err));
    return log_prefix(r, err);
}

/* --- initialisation: a stage of one file per block --- */

void bk_run_init_path(const bk_run *r, int64_t layer, char *to, size_t size)
{
    snprintf(to, size, "%s/%03lld.h5", r->init.done ? r->init.dir : r->init.work, (long long)layer);
}

static bk_status save_block(void *user, bk_ctx *ctx, bk_block *b, int64_t layer, bk_error *err)
{
    char path[BK_STAGE_FILE];
    (void)ctx;
    bk_run_init_path(user, layer, path, sizeof path);
    return bk_params_save(b, layer, path, err);
}

static bk_status initialise(bk_run *r, bk_error *err)
{
    bk_watch watch = bk_run_begin_stage(r, "initialise", 3, bk_model_config(r->lab.model)->layers);
    bk_row row = {.src = r->src, .prefix = &r->prefix, .quant = &r->quant, .skips = &r->cfg, .calibration = &r->calibration,
                  .init = {.search = r->cfg.init.search, .ema = r->cfg.init.range == BK_RANGE_EMA}};
    BK_TRY(bk_row_run(r->lab.be, &row, NULL, save_block, r, &watch, NULL, err));
    BK_TRY(bk_stage_commit(&r->init, err));
    bk_run_end_stage(r);
    return BK_OK;
}

bk_status bk_run_init(bk_run *r, bk_error *err)
{
    bk_status st = bk_run_stage_open(r, BK_STAGE_INIT, &r->init, err);
    if (!st && r->init.done) bk_log(BK_LOG_INFO, "[3/5] initialise: taken from %s", r->init.dir);
    if (!st && !r->init.done) st = initialise(r, err);
    bk_stage_close(&r->init);
    return st;
}
