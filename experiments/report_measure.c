/* What the pictures of activations need: passes over the run's own model, at most once. RUN/report/data.json keeps what
 * brick outliers --json gives, with all that it depends on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/outliers.h"
#include "experiments/printable.h"
#include "experiments/report.h"
#include "experiments/run.h"
#include "experiments/version.h"

#define MOST_TOKENS 512 /* of a sequence */

typedef struct measurement {
    const bk_report_run *run;
    const bk_run_config *cfg;
    bk_rotation_spec rotation;
    bk_fitted *fitted; /* what the run found; NULL: nothing is fitted */
    bool rotated;
    bk_block_quant quant;
    bk_lab lab;
    bk_text text;
    bk_samples samples;
    bk_progress progress;
    bk_outlier_report report;
} measurement;

/* The prefix that the run found or was given; none before it is there. */
static bk_status read_prefix(measurement *m, bk_error *err)
{
    char path[BK_REPORT_PATH];
    bk_prefix prefix = {0};
    snprintf(path, sizeof path, "%s/prefix.h5", m->run->dir);
    if (m->cfg->prefix.mode == BK_PREFIX_NONE || !bk_exists(path)) return BK_OK;
    BK_TRY(bk_prefix_load(&prefix, path, NULL, err));
    bk_status st =
        prefix.n <= BK_PREFIX_MAX ? BK_OK : bk_fail(err, BK_EFORMAT, "%s: more than %d tokens", path, BK_PREFIX_MAX);
    m->report.n_prefix = st ? 0 : prefix.n;
    for (int64_t i = 0; i < m->report.n_prefix; i++) m->report.prefix[i] = prefix.ids[i];
    bk_prefix_free(&prefix);
    return st;
}

/* The hash of the text as the run read it; of one that it had no need of, as it is now. */
static bk_status hash_text(const measurement *m, char hex[65], bk_error *err)
{
    const char *want = bk_run_text_sha256(m->cfg, m->run->manifest, m->report.text);
    snprintf(hex, 65, "%.64s", want);
    return *want || !bk_exists(m->report.text) ? BK_OK : bk_sha256_file(m->report.text, hex, err);
}

/* All that the measurement depends on, as text. */
static bk_status depends_on(const measurement *m, int64_t samples, bk_text_buffer *b, const char **text, bk_error *err)
{
    static const char *const keys[] = {"rotation.", "scales.", "offq.", "spin.", "norm_rotation.", "quant.", "data.", "prefix.", "seed", NULL};
    char *digest = NULL, program[65], text_sha[65];
    BK_TRY(bk_program_sha256(program, err));
    BK_TRY(hash_text(m, text_sha, err));
    BK_TRY(bk_config_digest_keys(m->cfg, keys, &digest, err));
    bk_buffer_add(b, "brick: %s\nprogram: %s\nmodel: %s\ntext: %s\nsamples: %lld\nprefix:", BK_VERSION, program,
                  bk_json_str(bk_json_get(m->run->manifest, "model_sha256"), ""), text_sha, (long long)samples);
    for (int64_t i = 0; i < m->report.n_prefix; i++) bk_buffer_add(b, " %d", m->report.prefix[i]);
    bk_buffer_add(b, "\n%s", digest);
    free(digest);
    return bk_buffer_text(b, text, err);
}

static bk_status check_model(const measurement *m, bk_error *err)
{
    char sha[65];
    const char *want = bk_json_str(bk_json_get(m->run->manifest, "model_sha256"), NULL);
    if (!want) return bk_fail(err, BK_EFORMAT, "the run has no manifest.json that names its model");
    BK_TRY(bk_model_sha256(m->lab.model, sha, err));
    return strcmp(sha, want) == 0 ? BK_OK
                                  : bk_fail(err, BK_EFORMAT, "%s is not the model of the run any more", m->cfg->model);
}

static bk_status check_plugins(const measurement *m, bk_error *err)
{
    const char *other = bk_run_other_plugin(m->cfg, m->run->manifest);
    return !other ? BK_OK
                  : bk_fail(err, BK_EFORMAT, "%s was made with another plugin for the quantizer `%s`", m->run->dir, other);
}

static bk_status check_text(const measurement *m, bk_error *err)
{
    const char *want = bk_run_text_sha256(m->cfg, m->run->manifest, m->report.text);
    return !*want || !strcmp(want, m->text.ledger.sha256)
               ? BK_OK
               : bk_fail(err, BK_EFORMAT, "%s is not the text of the run any more", m->report.text);
}

/* The first of the run's detection samples, or shorter ones. */
static bk_status draw_samples(measurement *m, int64_t samples, bk_error *err)
{
    const bk_run_config *c = m->cfg;
    bool prefixed = c->prefix.mode != BK_PREFIX_NONE;
    int64_t room = bk_model_config(m->lab.model)->max_positions - m->report.n_prefix, seqlen = c->data.detection.seqlen;
    bk_text_policy policy = {c->data.bos == BK_BOS_AUTO, c->data.parse_special, c->data.strip_bos, c->data.join};
    seqlen = seqlen < MOST_TOKENS ? seqlen : MOST_TOKENS;
    samples = samples < c->data.detection.samples ? samples : c->data.detection.samples;
    BK_TRY(bk_lab_text(&m->lab, m->report.text, &policy, prefixed, &m->text, err));
    BK_TRY(check_text(m, err));
    m->report.bos = bk_bos_in_force(&m->lab, &m->text.ledger, &policy, prefixed);
    return bk_samples_draw(&m->text, seqlen < room ? seqlen : room, samples, 0, bk_run_detection_seed(c), &m->samples,
                           err);
}

static bk_status add_stage(measurement *m, const char *name, const bk_rotation_spec *rotation, bool prefixed,
                           bk_error *err)
{
    int of = 1 + m->rotated + (m->report.n_prefix > 0);
    return bk_outlier_report_add(&m->report, &m->lab, name, rotation, prefixed, &m->quant, &m->progress, of, err);
}

static bk_status read_rotation(measurement *m, bk_error *err)
{
    char path[BK_REPORT_PATH];
    const bk_config *shapes = bk_model_config(m->lab.model);
    snprintf(path, sizeof path, "%s/fitted.h5", m->run->dir);
    if (bk_run_fits(m->cfg)) BK_TRY(bk_fitted_load(path, shapes, &m->fitted, err));
    m->rotation = bk_run_rotation(m->cfg, shapes, m->fitted, m->lab.be);
    return BK_OK;
}

static bk_status measure(measurement *m, int64_t samples, bk_error *err)
{
    const bk_rotation_spec plain = {0};
    const bk_backend *be = bk_runner_backend(m->cfg->backend, m->cfg->threads, err);
    if (!be) return err->code;
    BK_TRY(bk_lab_open(&m->lab, m->cfg->model, be, err));
    BK_TRY(check_model(m, err));
    BK_TRY(check_plugins(m, err));
    BK_TRY(read_rotation(m, err));
    BK_TRY(draw_samples(m, samples, err));
    m->report.samples = &m->samples;
    m->report.tok = m->lab.tok;
    m->report.model = bk_model_name(m->lab.model);
    BK_TRY(add_stage(m, "original", &plain, false, err));
    if (m->rotated) BK_TRY(add_stage(m, "rotated", &m->rotation, false, err));
    return m->report.n_prefix ? add_stage(m, "with prefix", &m->rotation, true, err) : BK_OK;
}

static void set_up(measurement *m)
{
    const bk_run_config *c = m->cfg;
    m->rotated = bk_run_fits(c) || c->rotation.r1 || c->rotation.r2 || c->rotation.r3 || c->rotation.r4;
    m->quant = (bk_block_quant){c->quant.weight, c->quant.activation, c->quant.key, c->quant.value};
    m->report = (bk_outlier_report){.text = bk_run_config_text(c, &c->data.detection),
                                    .rotate = m->rotated ? "as in config.yaml" : "none",
                                    .scheme = c->scheme,
                                    .limits = {c->prefix.threshold, c->prefix.lower_threshold},
                                    .overlap_prefix = c->prefix.overlap,
                                    .block = -1};
}

/* Kept where a folder can be written; where not, the next report measures again. */
static bk_status keep(const bk_report_run *r, bk_error *err)
{
    char path[BK_REPORT_PATH];
    bk_error bad = {0};
    snprintf(path, sizeof path, "%s/report", r->dir);
    bk_status st = bk_mkdir_p(path, &bad);
    snprintf(path, sizeof path, "%s/report/data.json", r->dir);
    if (!st) st = bk_json_save(r->data, path, &bad);
    if (st == BK_ENOMEM || st == BK_ENOSPC) return *err = bad, st;
    if (st) bk_log(BK_LOG_WARN, "%s; the next report measures again", bad.msg);
    return BK_OK;
}

static bk_status measure_and_keep(measurement *m, bk_report_run *r, int64_t samples, const char *depends, bk_error *err)
{
    BK_TRY(measure(m, samples, err));
    BK_TRY(bk_outlier_json(&m->report, &r->data, err));
    bk_json_set(r->data, "depends", bk_json_of_text(depends));
    return keep(r, err);
}

static bool kept_before(bk_report_run *r, const char *depends)
{
    char path[BK_REPORT_PATH];
    snprintf(path, sizeof path, "%s/report/data.json", r->dir);
    if (bk_exists(path) && bk_json_load(path, &r->data, NULL) == BK_OK &&
        !strcmp(bk_json_str(bk_json_get(r->data, "depends"), ""), depends))
        return true;
    bk_json_free(r->data);
    r->data = NULL;
    return false;
}

static bk_status find_or_measure(measurement *m, bk_report_run *r, int64_t samples, bk_error *err)
{
    bk_text_buffer b = {0};
    const char *depends;
    set_up(m);
    bk_status st = read_prefix(m, err);
    if (!st) st = depends_on(m, samples, &b, &depends, err);
    if (!st && !kept_before(r, depends)) st = measure_and_keep(m, r, samples, depends, err);
    bk_buffer_free(&b);
    return st;
}

bk_status bk_report_measure(bk_report_run *r, int64_t samples, bk_error *err)
{
    measurement m = {.run = r, .cfg = r->cfg};
    bk_error bad = {0};
    if (!r->cfg) {
        snprintf(r->why_data, sizeof r->why_data, "Not measured, since config.yaml cannot be read.");
        bk_log(BK_LOG_WARN, "%s: pictures of activations are missing on the page: %s", r->dir, r->why_config);
        return BK_OK;
    }
    bk_status st = find_or_measure(&m, r, samples, &bad);
    bk_outlier_report_free(&m.report);
    bk_samples_free(&m.samples);
    bk_text_free(&m.text);
    bk_fitted_free(m.fitted);
    bk_lab_close(&m.lab);
    if (st == BK_ECANCEL || st == BK_ENOMEM || st == BK_ENOSPC) return *err = bad, st;
    if (st) {
        char why[400];
        snprintf(r->why_data, sizeof r->why_data, "Not measured: %s.",
                 bk_printable(bad.msg, strlen(bad.msg), why, sizeof why));
        bk_log(BK_LOG_WARN, "%s: not measured: %s", r->dir, bad.msg);
    }
    return BK_OK;
}
