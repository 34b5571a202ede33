/* The run folder: who may write into it, what it belongs to, config.yaml and manifest.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/run.h"
#include "experiments/version.h"
#include "io/safetensors.h"
#include "io/sealed.h"
#include "io/sums.h"
#include "quant/plugin.h"

#define SMALL_FILE ((int64_t)1 << 20) /* read through in about a millisecond */

static const char program_key[] = "program_sha256"; /* in the manifest */

void bk_run_path(const bk_run *r, const char *name, char *to, size_t size)
{
    snprintf(to, size, "%s/%s", r->dir, name);
}

static bk_status lock_folder(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH], who[BK_LOCK_WHO];
    bk_lock_owner o;
    bk_run_path(r, "run.lock", path, sizeof path);
    BK_TRY(bk_lock_try(&r->lock, path, &o, err));
    if (r->lock.path) return BK_OK;
    bk_lock_who(&o, path, who, sizeof who);
    return bk_fail(err, BK_EINVAL, "%s: " BK_RUN_IN_USE " (%s)", r->dir, who);
}

bool bk_run_folder_busy(const char *dir, bk_lock_owner *owner)
{
    char path[BK_RUN_PATH];
    snprintf(path, sizeof path, "%s/run.lock", dir);
    return bk_lock_look(path, owner) == BK_LOCK_HELD;
}

bk_status bk_run_compare_config(const char *dir, const bk_run_config *c, bk_error *err)
{
    char path[BK_RUN_PATH], mine[128], theirs[128], *text = NULL;
    size_t len;
    bk_run_config *old = malloc(sizeof *old);
    if (!old) return bk_fail(err, BK_ENOMEM, "no memory");
    snprintf(path, sizeof path, "%s/config.yaml", dir);
    bk_status st = bk_file_slurp(path, 1 << 22, &text, &len, err);
    if (!st) st = bk_run_config_parse(text, len, path, NULL, 0, old, err);
    if (st == BK_EINVAL) st = err->code = BK_EFORMAT; /* brick wrote it: a file that was spoilt, not a config that is wrong */
    const char *key = st ? NULL : bk_run_config_diff(old, c, bk_run_result_keys, theirs, mine, sizeof mine);
    if (key)
        st = bk_fail(err, BK_EINVAL, "%s belongs to another config: %s is %s there and %s here; give another --out",
                     dir, key, theirs, mine);
    free(text);
    free(old);
    return st;
}

static const char *const data_name[] = {"detection", "calibration", "statistics", "training", "evaluation"};
#define DATA_SETS (int)(sizeof data_name / sizeof data_name[0])

/* Quantizers of plugins that the config uses, each with the hash of its file. */
static bk_json *plugins_of(const bk_run_config *c)
{
    const bk_qspec *const place[] = {&c->quant.weight, &c->quant.activation, &c->quant.key, &c->quant.value};
    bk_json *o = bk_json_object();
    for (int i = 0; i < 4; i++) {
        const char *sha = bk_plugin_sha256(place[i]->quantizer);
        if (sha) bk_json_set(o, place[i]->quantizer, bk_json_of_text(sha));
    }
    return o;
}

static bk_json *manifest_of(const bk_run *r)
{
    bk_json *o = bk_json_object();
    const char *flavour = r->lab.be->flavour ? r->lab.be->flavour() : "";
    const bk_ledger *l[DATA_SETS] = {&r->detection.ledger, &r->calibration.ledger, &r->statistics.ledger, &r->training.ledger,
                                     &r->evaluation.ledger};
    bk_json_set(o, "version", bk_json_of_text(BK_VERSION));
    bk_json_set(o, "model", bk_json_of_text(r->cfg.model));
    bk_json_set(o, "model_sha256", bk_json_of_text(r->model_sha));
    bk_json_set(o, "backend", bk_json_of_text(r->lab.be->name));
    bk_json_set(o, "openblas_core", bk_json_of_text(flavour));
    for (int i = 0; i < DATA_SETS; i++) {
        bk_json *d = bk_json_object();
        bk_json_set(d, "sha256", bk_json_of_text(l[i]->sha256));
        bk_json_set(d, "asked", bk_json_of_int(l[i]->asked));
        bk_json_set(d, "kept", bk_json_of_int(l[i]->kept));
        bk_json_set(d, "dropped", bk_json_of_int(l[i]->dropped));
        bk_json_set(d, "shorter", bk_json_of_int(l[i]->shorter));
        bk_json_set(d, "tokens", bk_json_of_int(l[i]->tokens));
        bk_json_set(d, "bos_inside", bk_json_of_int(l[i]->bos_inside));
        bk_json_set(o, data_name[i], d);
    }
    bk_json_set(o, "seed", bk_json_of_int(r->cfg.seed));
    bk_json_set(o, "plugins", plugins_of(&r->cfg));
    return o;
}

static bk_status same_member(const char *dir, const bk_json *old, const char *name, const char *now, bk_error *err)
{
    const char *was = bk_json_str(bk_json_get(old, name), "");
    if (!strcmp(was, now)) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s was made with another %s: %.80s there, %.80s here; give another --out", dir, name, was, now);
}

static const char *text_of(const bk_json *manifest, int set)
{
    return bk_json_str(bk_json_get(bk_json_get(manifest, data_name[set]), "sha256"), "");
}

static bk_status same_text(const char *dir, const bk_json *old, int set, const char *now, bk_error *err)
{
    if (!strcmp(text_of(old, set), now)) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s was made with another %s text: its bytes have changed; give another --out", dir,
                   data_name[set]);
}

const char *bk_run_other_plugin(const bk_run_config *c, const bk_json *manifest)
{
    bk_json *now = plugins_of(c);
    const bk_json *was = bk_json_get(manifest, "plugins");
    const char *other = NULL;
    for (void *it = bk_json_first(now); it && !other; it = bk_json_next(now, it))
        if (strcmp(bk_json_str(bk_json_get(was, bk_json_key(it)), ""), bk_json_str(bk_json_value(it), ""))) other = bk_json_key(it);
    for (void *it = bk_json_first(was); it && !other; it = bk_json_next(was, it)) /* brick's own has the name now */
        if (!bk_json_get(now, bk_json_key(it))) other = bk_json_key(it);
    const bk_quantizer *q = other ? bk_quantizer_find(other) : NULL; /* whose name stays */
    bk_json_free(now);
    return q ? q->name : NULL;
}

/* The same quantizers from the same files; the config has their names. */
static bk_status same_plugins(const char *dir, const bk_json *old, const bk_run_config *c, bk_error *err)
{
    const char *name = bk_run_other_plugin(c, old);
    if (!name) return BK_OK;
    const char *was = bk_json_str(bk_json_get(bk_json_get(old, "plugins"), name), "brick's own"), *now = bk_plugin_sha256(name);
    return bk_fail(err, BK_EINVAL, "%s was made with another plugin for the quantizer `%s`: SHA-256 %.12s there, %.12s here; give another --out", dir,
                   name, was, now ? now : "brick's own");
}

/* What a resumed run must find as it was. */
static bk_status compare_manifest(const bk_run *r, const bk_json *old, const bk_json *now, bk_error *err)
{
    static const char *const top[] = {"version", "model_sha256", "openblas_core"};
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++) BK_TRY(same_member(r->dir, old, top[i], bk_json_str(bk_json_get(now, top[i]), ""), err));
    for (int i = 0; i < DATA_SETS; i++) BK_TRY(same_text(r->dir, old, i, text_of(now, i), err));
    return same_plugins(r->dir, old, &r->cfg, err);
}

/* The file that a set is read from. */
static const char *file_of(const bk_run_config *c, int set)
{
    const bk_data_config *const of[DATA_SETS] = {&c->data.detection, &c->data.calibration, &c->data.statistics, &c->data.training,
                                                 &c->data.evaluation};
    return bk_run_config_text(c, of[set]);
}

const char *bk_run_text_sha256(const bk_run_config *c, const bk_json *manifest, const char *path)
{
    for (int i = 0; i < DATA_SETS; i++)
        if (!strcmp(file_of(c, i), path) && *text_of(manifest, i)) return text_of(manifest, i);
    return "";
}

bk_status bk_run_check_plugins(const char *dir, const bk_run_config *c, bk_error *err)
{
    bk_json *old = NULL;
    char manifest[BK_RUN_PATH];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", dir);
    BK_TRY(bk_sealed_load(manifest, &old, err));
    bk_status st = same_plugins(dir, old, c, err);
    bk_json_free(old);
    return st;
}

bk_status bk_run_check_inputs(const char *dir, const bk_run_config *c, const char *model_sha, bk_error *err)
{
    bk_json *old = NULL;
    char manifest[BK_RUN_PATH], hex[65];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", dir);
    BK_TRY(bk_sealed_load(manifest, &old, err));
    bk_status st = same_member(dir, old, "model_sha256", model_sha, err);
    if (!st) st = same_plugins(dir, old, c, err);
    for (int i = 0; !st && i < DATA_SETS; i++) {
        if (!*text_of(old, i)) continue; /* was not needed */
        st = bk_sha256_file(file_of(c, i), hex, err);
        if (!st) st = same_text(dir, old, i, hex, err);
    }
    bk_json_free(old);
    return st;
}

static bk_status write_config(const bk_run *r, const char *path, bk_error *err)
{
    char *text = bk_run_config_write(&r->cfg);
    if (!text) return bk_fail(err, BK_ENOMEM, "no memory");
    bk_status st = bk_write_file(path, text, strlen(text), err);
    free(text);
    return st;
}

/* A folder with files of others is no place for a run. */
static bk_status check_foreign(const bk_run *r, bk_error *err)
{
    static const char *const ours[] = {"config.yaml", "config.yaml.partial", "manifest.json.partial", "run.lock", "run.lock.break",
                                       "log.txt", BK_BEACON_FILE, "report", NULL};
    char other[61];
    BK_TRY(bk_dir_other(r->dir, ours, other, sizeof other, err));
    if (!*other) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s has no manifest.json, so it is no run folder, and is not empty (%s is there): give another --out, or remove it if it was a run", r->dir, other);
}

/* The files of a finished run are read through. One that is no more what it was makes the run unfinished, if it is to be resumed. */
static bk_status check_finished(const bk_run *r, const char *summary, bool resume, bool *finished, bk_error *err)
{
    char model[BK_RUN_PATH];
    bk_error why = {0};
    bk_run_path(r, "model", model, sizeof model);
    if (!bk_sums_check(r->dir, &why) && !bk_sums_check(model, &why)) return BK_OK;
    if (why.code != BK_EFORMAT) return bk_fail(err, why.code, "%s", why.msg);
    if (!resume) return bk_fail(err, BK_EFORMAT, "%s; --resume makes again what was lost", why.msg);
    bk_log(BK_LOG_WARN, "%s; what was lost is made again", why.msg);
    *finished = false;
    return unlink(summary) == 0 ? BK_OK : bk_fail_errno(err, "%s", summary);
}

bk_status bk_run_check_quickly(const char *dir, bk_error *err)
{
    char model[BK_RUN_PATH];
    bk_st_set *shards;
    snprintf(model, sizeof model, "%s/model", dir);
    BK_TRY(bk_sums_check_small(dir, SMALL_FILE, err));
    if (!bk_exists(model)) return BK_OK;
    BK_TRY(bk_sums_check_small(model, SMALL_FILE, err));
    bk_status st = bk_st_open_folder(model, &shards, err); /* their headers tell how long they are */
    if (!st) bk_st_close(shards);
    return st == BK_EUNSUP ? err->code = BK_EFORMAT : st; /* not what brick wrote */
}

bk_status bk_run_open_folder(bk_run *r, bool resume, bool *finished, bk_error *err)
{
    char config[BK_RUN_PATH], manifest[BK_RUN_PATH], log[BK_RUN_PATH], summary[BK_RUN_PATH];
    bk_run_path(r, "config.yaml", config, sizeof config);
    bk_run_path(r, "manifest.json", manifest, sizeof manifest);
    bk_run_path(r, "log.txt", log, sizeof log);
    bk_run_path(r, "summary.json", summary, sizeof summary);
    if (bk_exists(r->dir) && !bk_is_dir(r->dir)) return bk_fail(err, BK_EINVAL, "%s is no folder", r->dir);
    BK_TRY(bk_mkdir_p(r->dir, err));
    if (!bk_exists(manifest)) BK_TRY(check_foreign(r, err));
    BK_TRY(lock_folder(r, err)); /* what is looked at from here on stays as it is */
    bool known = bk_exists(manifest); /* before it nothing is computed: a run that was refused leaves the folder free */
    if (known) BK_TRY(bk_run_compare_config(r->dir, &r->cfg, err));
    *finished = known && bk_exists(summary);
    if (known && !*finished && !resume)
        return bk_fail(err, BK_EINVAL, "%s holds an unfinished run of this config: --resume continues it", r->dir);
    if (*finished) BK_TRY(check_finished(r, summary, resume, finished, err));
    if (*finished) return bk_run_check_inputs(r->dir, &r->cfg, r->model_sha, err);
    if (!known) BK_TRY(write_config(r, config, err));
    return bk_log_open(log, err);
}

/* The hash of what the manifest says goes into the checkpoint, which so vouches for a manifest that was damaged. */
static bk_status hash_manifest(bk_run *r, const bk_json *now, bk_error *err)
{
    char *text = bk_json_dump(now, 0);
    if (!text) return bk_fail(err, BK_ENOMEM, "no memory for the manifest");
    bk_status st = bk_sha256_bytes(text, strlen(text), r->manifest_sha, err);
    free(text);
    return st;
}

static void warn_of_other_build(const bk_run *r, const bk_json *old, const char *program)
{
    if (strcmp(bk_json_str(bk_json_get(old, program_key), program), program))
        bk_log(BK_LOG_WARN, "%s was begun by another build of brick %s; its bytes may differ from those of one build", r->dir,
               BK_VERSION);
}

bk_status bk_run_manifest(bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH], program[65];
    BK_TRY(bk_program_sha256(program, err));
    bk_json *old = NULL, *now = manifest_of(r);
    bk_error why = {0};
    bk_run_path(r, "manifest.json", path, sizeof path);
    bk_status st = hash_manifest(r, now, err);
    bool there = bk_exists(path);
    if (!st && there && bk_sealed_load(path, &old, &why)) {
        if (why.code != BK_EFORMAT) st = bk_fail(err, why.code, "%s", why.msg);
        else bk_log(BK_LOG_WARN, "%s; it is written again", why.msg);
    }
    if (!st && old) st = compare_manifest(r, old, now, err);
    if (!st && old) warn_of_other_build(r, old, program);
    if (!st && !old) {
        bk_json_set(now, program_key, bk_json_of_text(program));
        st = bk_sealed_save(now, path, err);
    }
    bk_json_free(old);
    bk_json_free(now);
    return st;
}

bk_status bk_run_finish(const bk_run *r, const char *summary, bk_error *err)
{
    static const char *const but[] = {"log.txt", BK_BEACON_FILE, "summary.json", NULL};
    char sums[BK_RUN_PATH], path[BK_RUN_PATH], hex[65], *others = NULL, *lines = NULL, *text = NULL;
    bk_run_path(r, BK_SUMS_NAME, sums, sizeof sums);
    bk_run_path(r, "summary.json", path, sizeof path);
    int len = asprintf(&text, "%s\n", summary);
    if (len < 0) return bk_fail(err, BK_ENOMEM, "no memory for summary.json");
    bk_status st = bk_sha256_bytes(text, (size_t)len, hex, err);
    if (!st) st = bk_sums_of(r->dir, but, &others, err);
    if (!st && asprintf(&lines, "%s%s  summary.json\n", others, hex) < 0) st = bk_fail(err, BK_ENOMEM, "no memory for the hashes of %s", r->dir);
    if (!st) st = bk_write_file(sums, lines, strlen(lines), err);
    if (!st) st = bk_write_file(path, text, (size_t)len, err);
    free(others);
    free(lines);
    free(text);
    return st;
}
