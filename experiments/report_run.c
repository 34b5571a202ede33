/* Reads a run folder for a report: what is there is shown, what is missing or damaged becomes a sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report.h"
#include "io/sums.h"

#define TEXT_LIMIT ((size_t)1 << 30)

static void in_run(const bk_report_run *r, const char *name, char path[BK_REPORT_PATH])
{
    snprintf(path, BK_REPORT_PATH, "%s/%s", r->dir, name);
}

/* A message may hold what stands in a file. */
static void sentence(char *to, size_t size, const bk_error *e)
{
    bk_printable(e->msg, strlen(e->msg), to, size);
}

void bk_report_label(const char *dir, char *to, size_t size)
{
    size_t end = strlen(dir), begin;
    while (end > 1 && dir[end - 1] == '/') end--;
    for (begin = end; begin > 0 && dir[begin - 1] != '/'; begin--) {
    }
    bk_printable(dir + begin, end - begin, to, size);
}

static bk_status read_config(bk_report_run *r, bk_error *err)
{
    char path[BK_REPORT_PATH];
    size_t len;
    bk_error bad = {0};
    in_run(r, "config.yaml", path);
    if (!bk_is_dir(r->dir)) return bk_fail(err, BK_EIO, "%s: is no folder", r->dir);
    if (!bk_exists(path))
        return bk_fail(err, BK_EIO,
                       "%s: is neither a run folder (no config.yaml) nor that of a sweep (no results.jsonl)", r->dir);
    BK_TRY(bk_file_slurp(path, (size_t)1 << 22, &r->config, &len, err));
    if (!(r->cfg = calloc(1, sizeof *r->cfg))) return bk_fail(err, BK_ENOMEM, "no memory");
    if (bk_run_config_parse(r->config, len, path, NULL, 0, r->cfg, &bad) == BK_OK) return BK_OK;
    sentence(r->why_config, sizeof r->why_config, &bad);
    free(r->cfg);
    r->cfg = NULL;
    return BK_OK;
}

static void read_json(const bk_report_run *r, const char *name, const char *absent, bk_json **out, char *why,
                      size_t size)
{
    char path[BK_REPORT_PATH];
    bk_error bad = {0};
    in_run(r, name, path);
    if (!bk_exists(path))
        snprintf(why, size, "%s", absent);
    else if (bk_json_load(path, out, &bad))
        sentence(why, size, &bad);
    else if (bk_json_kind_of(*out) != BK_JSON_OBJECT) {
        snprintf(why, size, "%s is no JSON object.", name);
        bk_json_free(*out);
        *out = NULL;
    }
}

bk_status bk_report_lines(const char *path, bk_json **array, char *why, size_t size, bk_error *err)
{
    char *text = NULL;
    size_t len = 0;
    bk_error bad = {0};
    *why = 0;
    if (!(*array = bk_json_array())) return bk_fail(err, BK_ENOMEM, "no memory for %s", path);
    if (!bk_exists(path)) return BK_OK;
    if (bk_file_slurp(path, TEXT_LIMIT, &text, &len, &bad)) {
        sentence(why, size, &bad);
        return BK_OK;
    }
    long line = 1;
    for (size_t at = 0; at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at), *slash = strrchr(path, '/');
        size_t n = end ? (size_t)(end - text) - at : len - at;
        bk_json *o = NULL;
        if (bk_json_parse(text + at, n, path, &o, NULL) || bk_json_kind_of(o) != BK_JSON_OBJECT) {
            bk_json_free(o);
            snprintf(why, size, "%.60s cannot be read from line %ld on; what follows is left out.",
                     slash ? slash + 1 : path, line);
            break;
        }
        bk_json_push(*array, o);
        at += n + 1;
    }
    free(text);
    return BK_OK;
}

bk_status bk_report_run_open(bk_report_run *r, const char *dir, bk_error *err)
{
    char path[BK_REPORT_PATH];
    size_t len;
    *r = (bk_report_run){.dir = dir};
    if (strlen(dir) > 4000) return bk_fail(err, BK_EINVAL, "%.60s...: the path is too long", dir);
    bk_report_label(dir, r->label, sizeof r->label);
    BK_TRY(read_config(r, err));
    read_json(r, "summary.json", "The run is not finished: there is no summary.json yet.", &r->summary, r->why_summary,
              sizeof r->why_summary);
    read_json(r, "fit.json", "What it found is not known: there is no fit.json.", &r->fit, r->why_fit, sizeof r->why_fit);
    char ignored[512];
    read_json(r, "manifest.json", "", &r->manifest, ignored, sizeof ignored);
    in_run(r, "manifest.json", path);
    if (bk_exists(path)) BK_TRY(bk_file_slurp(path, TEXT_LIMIT, &r->manifest_text, &len, err));
    bk_error bad = {0};
    if (bk_sums_there(dir) && bk_sums_check(dir, &bad)) sentence(r->why_sums, sizeof r->why_sums, &bad);
    in_run(r, "metrics.jsonl", path);
    return bk_report_lines(path, &r->metrics, r->why_metrics, sizeof r->why_metrics, err);
}

void bk_report_run_close(bk_report_run *r)
{
    free(r->cfg);
    free(r->config);
    free(r->manifest_text);
    bk_json_free(r->summary);
    bk_json_free(r->manifest);
    bk_json_free(r->fit);
    bk_json_free(r->metrics);
    bk_json_free(r->data);
    *r = (bk_report_run){0};
}
