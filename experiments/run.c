/* brick run: the whole experiment. */
#include "experiments/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/estimate.h"
#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/plan.h"
#include "experiments/plugin.h"
#include "experiments/sweep.h"
#include "experiments/run_outcome.h"
#include "experiments/runner.h"
#include "experiments/scheme.h"
#include "experiments/verbs.h"
#include "io/sums.h"

enum { T_LOAD, T_EQUIVALENCE, T_OUTLIERS, T_FIT, T_INIT, T_TARGETS, T_TRAIN, T_ROWS, T_EVALUATE, T_TOTAL };

bk_watch bk_run_begin_stage(bk_run *r, const char *name, int number, int64_t total)
{
    bk_progress_begin(&r->progress, name, number, 5, total);
    bk_progress_publish(&r->progress, &r->beacon);
    return bk_watch_progress(&r->progress);
}

void bk_run_end_stage(bk_run *r)
{
    bk_progress_end(&r->progress);
}

bk_status bk_run_block(bk_run *r, bool quantized, bool hardened, bool trained, int64_t tokens, bk_block **out, bk_error *err)
{
    bk_block_quant quant = r->quant;
    if (hardened) quant.weight.bits = 16;
    bk_block_options opt = {.quant = quantized ? &quant : NULL, .r3 = bk_source_r3(r->src), .r4 = bk_source_r4(r->src),
                            .prefix_len = r->prefix.n, .tokens = tokens, .trained = trained,
                            .train_norms = trained && r->cfg.train.norms};
    return bk_block_create(out, r->lab.be, bk_source_config(r->src), &opt, err);
}

bk_status bk_run_load_fp(bk_run *r, int64_t layer, bk_block_weights *w, bk_block *b, bk_error *err)
{
    BK_TRY(bk_source_block(r->src, layer, w, err));
    BK_TRY(bk_block_load(b, w, err));
    return r->prefix.n ? bk_block_set_prefix(b, bk_prefix_k(&r->prefix, layer), bk_prefix_v(&r->prefix, layer), err) : BK_OK;
}

/* Embedding and head are read in part by most stages: a NaN in them is found here, not after the training. */
static bk_status check_tables(const bk_model *m, bk_error *err)
{
    const bk_config *c = bk_model_config(m);
    int64_t rows = 512;
    float *buf = malloc((size_t)(rows * c->hidden) * sizeof *buf);
    bk_status st = buf ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    for (int64_t r = 0; !st && r < c->vocab; r += rows) {
        int64_t n = c->vocab - r < rows ? c->vocab - r : rows;
        st = bk_model_read_embed(m, r, n, buf, err);
        if (!st && !c->tied) st = bk_model_read_head(m, r, n, buf, err);
    }
    free(buf);
    return st;
}

static bk_status open_model(bk_run *r, bk_error *err)
{
    const bk_run_config *c = &r->cfg;
    const bk_backend *be = bk_runner_backend(c->backend, c->threads, err);
    if (!be) return err->code;
    BK_TRY(bk_lab_open(&r->lab, c->model, be, err));
    if (r->lab.quantized) return bk_fail(err, BK_EINVAL, "%s is quantized already; a run starts from a full-precision model", c->model);
    bk_rotation_spec spec = bk_run_rotation(c, bk_model_config(r->lab.model), NULL, be);
    BK_TRY(bk_source_open(r->lab.model, NULL, &r->plain, err));
    BK_TRY(bk_source_open(r->lab.model, &spec, &r->src, err));
    bk_source_overlap_prefix(r->src, c->prefix.overlap);
    BK_TRY(check_tables(r->lab.model, err));
    BK_TRY(bk_model_sha256(r->lab.model, r->model_sha, err));
    r->quant = (bk_block_quant){c->quant.weight, c->quant.activation, c->quant.key, c->quant.value};
    r->policy = (bk_text_policy){c->data.bos == BK_BOS_AUTO, c->data.parse_special, c->data.strip_bos, c->data.join};
    r->block = calloc((size_t)bk_model_config(r->lab.model)->layers, sizeof *r->block);
    return r->block ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
}

static bk_status export_rest(bk_run *r, bk_error *err)
{
    char dir[BK_RUN_PATH];
    unsigned *sites;
    BK_TRY(bk_skip_lists(&r->cfg, bk_source_config(r->src)->layers, &sites, err));
    bk_quantized_info info = {.quant = r->quant, .skip_sites = sites,
                              .bos_before_text = r->cfg.prefix.mode == BK_PREFIX_NONE && r->policy.bos_auto,
                              .scheme = r->cfg.scheme, .model = bk_model_name(r->lab.model)};
    bk_run_path(r, "model", dir, sizeof dir);
    bk_status st = bk_tokenizer_save(r->lab.tok, dir, err);
    if (!st) st = bk_quantized_finish(r->src, &r->prefix, &info, dir, err);
    if (!st) st = bk_sums_write(dir, err);
    free(sites);
    return st;
}

typedef bk_status (*part_fn)(bk_run *r, bk_error *err);

static bk_status timed(bk_run *r, int stage, part_fn fn, bk_error *err)
{
    double start = bk_seconds();
    bk_status st = fn(r, err);
    r->seconds[stage] += bk_seconds() - start;
    return st;
}

/* A run that came to nothing ends with exit 4, also when it is asked again. */
static bk_status say_finished(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_json *summary;
    bk_run_path(r, "summary.json", path, sizeof path);
    BK_TRY(bk_json_load(path, &summary, err));
    bk_run_outcome outcome = bk_run_outcome_of(summary);
    bk_json_free(summary);
    bk_log(BK_LOG_INFO, "%s is finished already; another --out makes a new run", r->dir);
    r->complete = true;
    return bk_run_outcome_check(&outcome, err) ? bk_error_prefix(err, "%s", r->dir) : BK_OK;
}

static bk_status check_room(bk_run *r, bk_error *err)
{
    bk_sample_counts n = {.detection = r->detection.n, .calibration = r->calibration.n, .statistics = r->statistics.n, .training = r->n_train,
                          .validation = r->n_val, .evaluation = r->evaluation.n};
    return bk_plan_check(&r->cfg, &n, bk_source_rotation(r->src), r->lab.be, r->dir, err);
}

bk_status bk_run_all(bk_run *r, bool resume, bk_error *err)
{
    bool finished, fits = bk_run_fits(&r->cfg);
    double start = bk_seconds();
    BK_TRY(timed(r, T_LOAD, open_model, err));
    BK_TRY(bk_plan_check_shapes(&r->cfg, bk_model_config(r->lab.model), err));
    BK_TRY(bk_run_open_folder(r, resume, &finished, err));
    if (finished) return say_finished(r, err);
    bk_beacon_open(&r->beacon, r->dir, bk_source_config(r->src)->layers, r->cfg.train.epochs, start);
    BK_TRY(timed(r, T_LOAD, bk_run_load_data, err));
    BK_TRY(check_room(r, err));
    BK_TRY(bk_run_manifest(r, err));
    if (!fits) BK_TRY(timed(r, T_EQUIVALENCE, bk_run_equivalence, err)); /* as soon as the transforms are known */
    BK_TRY(timed(r, T_OUTLIERS, bk_run_choose_prefix, err));
    BK_TRY(timed(r, T_FIT, bk_run_fit, err));
    if (fits) BK_TRY(timed(r, T_EQUIVALENCE, bk_run_equivalence, err));
    BK_TRY(timed(r, T_OUTLIERS, bk_run_make_prefix, err));
    BK_TRY(timed(r, T_INIT, bk_run_init, err));
    BK_TRY(timed(r, T_TRAIN, bk_run_resume, err));
    BK_TRY(timed(r, T_TARGETS, bk_run_targets, err));
    bk_status trained = timed(r, T_TRAIN, bk_run_train, err);
    if (r->stopped || (trained && !r->came_to_nothing)) return trained;
    bk_error failure = *err;
    if (trained) bk_error_clear(err);
    BK_TRY(timed(r, T_TRAIN, export_rest, err));
    BK_TRY(timed(r, T_ROWS, bk_run_rows, err));
    BK_TRY(timed(r, T_EVALUATE, bk_run_evaluate, err));
    r->seconds[T_TOTAL] = bk_seconds() - start;
    BK_TRY(bk_run_write_summary(r, err));
    r->complete = true;
    if (trained) *err = failure;
    return trained;
}

void bk_run_close(bk_run *r)
{
    bk_samples_free(&r->detection);
    bk_samples_free(&r->calibration);
    bk_samples_free(&r->statistics);
    bk_samples_free(&r->training);
    bk_samples_free(&r->evaluation);
    bk_prefix_choice_free(&r->choice);
    bk_prefix_free(&r->prefix);
    bk_fitted_free(r->fitted);
    bk_source_close(r->plain);
    bk_source_close(r->src);
    bk_lab_close(&r->lab);
    bk_beacon_close(&r->beacon);
    free(r->block);
    bk_lock_release(&r->lock);
}

/* A method or scheme that is named later than the file replaces what the file says about its keys. */
static void say_replaced(const bk_run_config *c)
{
    const bk_method *m = bk_method_find(c->method);
    if (*c->replaced) bk_log(BK_LOG_INFO, "method and scheme replace what %s says about: %s", c->source, c->replaced);
    bool method_later = c->place[bk_key_find("method")].source > c->place[bk_key_find("scheme")].source;
    if (m && method_later && strcmp(c->scheme, m->scheme))
        bk_log(BK_LOG_INFO, "scheme %s stays; that of method %s alone would be %s", c->scheme, c->method, m->scheme);
}

/* runs/<model>-<scheme> */
static void default_folder(bk_run *r)
{
    const char *m = r->cfg.model, *end = m + strlen(m);
    while (end > m && end[-1] == '/') end--;
    const char *base = end;
    while (base > m && base[-1] != '/') base--;
    int n = (int)(end - base);
    if (n > 5 && !strncmp(end - 5, ".gguf", 5)) n -= 5;
    snprintf(r->dir, sizeof r->dir, "runs/%.*s-%s", n > 200 ? 200 : n, base, r->cfg.scheme);
}

static bk_status load_config(const char *config, const bk_opt_list *sets, bk_run_config *out, bk_error *err)
{
    if (!config) return bk_fail(err, BK_EINVAL, "run: which CONFIG? (brick run --help)");
    if (bk_sweep_is(config)) return bk_fail(err, BK_EINVAL, "%s: this is a sweep: brick sweep %s", config, config);
    return bk_run_config_load(config, sets->item, sets->n, out, err);
}

int bk_verb_run(int argc, char **argv)
{
    const char *config = NULL, *out = NULL;
    int64_t stop_after = 0;
    bool resume = false, strict = false, help_config = false, json = false;
    bk_opt_list sets = {.n = 0};
    const bk_opt opts[] = {
        {"--set", BK_OPT_LIST, &sets, "key=value", NULL, 0, 0, "overrides a key of the config"},
        BK_OPT_PLUGIN,
        {"--out", BK_OPT_TEXT, &out, "DIR", "runs/<model>-<scheme>", 0, 0, "run folder"},
        {"--resume", BK_OPT_FLAG, &resume, NULL, NULL, 0, 0, "continue an unfinished run"},
        {"--stop-after", BK_OPT_INT, &stop_after, "BLOCKS", NULL, 1, 1e6, "train so many blocks and end; --resume goes on"},
        {"--strict", BK_OPT_FLAG, &strict, NULL, NULL, 0, 0, "every fallback is an error"},
        {"--help-config", BK_OPT_FLAG, &help_config, NULL, NULL, 0, 0, "print every key of a config and end"},
        {"--json", BK_OPT_FLAG, &json, NULL, NULL, 0, 0, "print summary.json instead of the table"},
        {"CONFIG", BK_OPT_TEXT, &config, "CONFIG", NULL, 0, 0, "YAML file (brick run --help-config)"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"run", "the whole experiment: load, find outlier tokens, rotate, prefix, initialise, train, evaluate", opts,
                        "brick run configs/demo.yaml --out runs/demo\n"
                        "brick run configs/smollm2/w4a4kv4-static.yaml --set seed=3 --set train.epochs=5 --out runs/seed3\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    if (help_config) {
        bk_run_config_help(stdout);
        return BK_EXIT_OK;
    }
    bk_error err = {0};
    bk_run *r = calloc(1, sizeof *r);
    if (!r) return bk_exit_report(bk_fail(&err, BK_ENOMEM, "no memory"), &err);
    bk_status st = load_config(config, &sets, &r->cfg, &err);
    if (!st) say_replaced(&r->cfg);
    if (strict) r->cfg.strict = true;
    r->stop_after = stop_after;
    if (!st) st = bk_run_config_check_files(&r->cfg, &err);
    if (!st && out && !*out) st = bk_fail(&err, BK_EINVAL, "--out is empty: name a folder");
    if (!st && out && strlen(out) > 4000) st = bk_fail(&err, BK_EINVAL, "--out is too long");
    if (!st && out) snprintf(r->dir, sizeof r->dir, "%s", out);
    if (!st && !out) default_folder(r);
    if (!st) st = bk_run_all(r, resume, &err);
    bk_error closing = {0};
    bk_status end = r->complete ? bk_run_print_result(r, json, &closing) : BK_OK;
    code = bk_exit_report(st, &err);
    if (st == BK_ECANCEL || r->stopped) bk_log(BK_LOG_INFO, "the same command with --resume goes on in %s", r->dir);
    if (!end) end = bk_log_close(&closing);
    if (end && !st) code = bk_exit_report(end, &closing);
    bk_run_close(r);
    free(r);
    return code;
}
