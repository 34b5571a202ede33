/* brick report: runs and sweeps on one page, with pictures. */
#include "experiments/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/verbs.h"

typedef struct report_args {
    bk_opt_list paths;
    const char *out;
    int64_t samples;
    bool json;
} report_args;

/* DIR/report of the one that is reported, or what was asked for. */
static bk_status find_folder(const report_args *a, char dir[BK_REPORT_PATH], bk_error *err)
{
    if (!a->paths.n)
        return bk_fail(err, BK_EINVAL, "report: which run folder, or which folder of a sweep? (brick report --help)");
    if (a->out && !*a->out) return bk_fail(err, BK_EINVAL, "--out is empty: name a folder");
    if (!a->out && a->paths.n > 1)
        return bk_fail(err, BK_EINVAL, "report: %d folders on one page need an --out", a->paths.n);
    const char *base = a->out ? a->out : a->paths.item[0];
    if (strlen(base) > 4000) return bk_fail(err, BK_EINVAL, "%.60s...: the path is too long", base);
    snprintf(dir, BK_REPORT_PATH, "%s%s", base, a->out ? "" : "/report");
    return BK_OK;
}

/* All folders before anything is measured or drawn: a mistyped one shows at once. Of a sweep there is no run. */
static bk_status open_runs(const report_args *a, bk_report_run *run, bk_error *err)
{
    for (int i = 0; i < a->paths.n; i++)
        if (!bk_report_is_sweep(a->paths.item[i])) BK_TRY(bk_report_run_open(&run[i], a->paths.item[i], err));
    return BK_OK;
}

/* Several runs become a table. */
static void overview(const report_args *a, const bk_report_run *run, bk_page *page)
{
    int n = 0;
    for (int i = 0; i < a->paths.n && a->paths.n > 1; i++) {
        if (!run[i].dir) continue;
        if (n++ == 0) bk_report_overview_begin(page);
        bk_report_overview_row(&run[i], page);
    }
    if (n) bk_page_table_end(page);
}

static void begin_page(const report_args *a, bk_page *page)
{
    char label[128], title[160];
    bk_report_label(a->paths.item[0], label, sizeof label);
    snprintf(title, sizeof title, a->paths.n == 1 ? "brick report: %s" : "brick report: %s and others", label);
    bk_page_begin(page, title);
}

static bk_status make_page(const report_args *a, bk_report_run *run, bk_page *page, bk_error *err)
{
    BK_TRY(bk_page_claim(page->dir, err));
    for (int i = 0; i < a->paths.n; i++) {
        if (a->paths.n > 1) snprintf(page->prefix, sizeof page->prefix, "r%d_", i + 1);
        BK_TRY(run[i].dir ? bk_report_run_section(&run[i], page, a->samples, err)
                          : bk_report_sweep_section(a->paths.item[i], page, err));
        bk_report_run_close(&run[i]);
    }
    return bk_page_end(page, err);
}

static bk_status print_result(const report_args *a, bk_page *page, bk_error *err)
{
    char path[BK_REPORT_PATH + 16];
    snprintf(path, sizeof path, "%s/index.html", page->dir);
    if (!a->json) return puts(path) < 0 ? bk_fail_errno(err, "standard output") : BK_OK;
    bk_json *o = bk_json_object();
    bk_json_set(o, "page", bk_json_of_text(path));
    bk_json_set(o, "pictures", page->pictures);
    page->pictures = NULL;
    return bk_print_json(o, err);
}

static bk_status report_runs(const report_args *a, bk_report_run *run, bk_page *page, bk_error *err)
{
    BK_TRY(open_runs(a, run, err));
    BK_TRY(bk_gnuplot_check(err));
    begin_page(a, page);
    overview(a, run, page);
    BK_TRY(make_page(a, run, page, err));
    return print_result(a, page, err);
}

static bk_status report(const report_args *a, bk_error *err)
{
    char dir[BK_REPORT_PATH];
    bk_page page = {.dir = dir};
    BK_TRY(find_folder(a, dir, err));
    bk_report_run *run = calloc((size_t)a->paths.n, sizeof *run);
    if (!run) return bk_fail(err, BK_ENOMEM, "no memory for %d runs", a->paths.n);
    bk_status st = report_runs(a, run, &page, err);
    for (int i = 0; i < a->paths.n; i++) bk_report_run_close(&run[i]);
    free(run);
    bk_page_free(&page);
    return st;
}

int bk_verb_report(int argc, char **argv)
{
    report_args a = {.samples = 4};
    const bk_opt opts[] = {
        {"--out", BK_OPT_TEXT, &a.out, "DIR", "report/ in the folder", 0, 0, "where page and pictures go"},
        {"--samples", BK_OPT_INT, &a.samples, "N", "4", 1, 1e6,
         "sequences of the detection text that activations are measured on"},
        BK_OPT_PLUGIN,
        {"--json", BK_OPT_FLAG, &a.json, NULL, NULL, 0, 0,
         "one JSON object on stdout: the page, each picture or why it is missing"},
        {"PATH", BK_OPT_LIST, &a.paths, "PATH", NULL, 0, 0, "run folder, or folder of a sweep"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"report", "one page of HTML with pictures, of runs and of sweeps", opts,
                        "brick report runs/demo\n"
                        "brick report runs/demo runs/seed3 --out comparison\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    bk_error err = {0};
    return bk_exit_report(report(&a, &err), &err);
}
