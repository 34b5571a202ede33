/* brick report on run folders and sweeps, whole and damaged. Without gnuplot only what needs none is tested, and the
 * program says so. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/drawn.h"
#include "tests/e2e.h"

static bool drawing(void)
{
    return system("gnuplot --version >/dev/null 2>&1") == 0;
}

static char *page; /* of the last report */

static void take_page(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/index.html", dir);
    free(page);
    page = e2e_text(path);
}

static void shows(const char *words)
{
    ck_assert_msg(strstr(page, words), "'%s' is not on the page:\n%.3000s", words, strstr(page, "<body>"));
}

static void hides(const char *words)
{
    ck_assert_msg(!strstr(page, words), "'%s' is on the page", words);
}

static int count(const char *words)
{
    int n = 0;
    for (const char *at = page; (at = strstr(at, words)); at++) n++;
    return n;
}

/* One finished run for all tests, in the folder above. */
static void begin(void)
{
    e2e_begin();
    e2e_enter();
    e2e_brick(0, "run run.yaml --out ../run");
    e2e_leave();
}

static void enter(void)
{
    e2e_enter();
    e2e_copy_tree("../run", "r");
    page = NULL;
}

static void leave(void)
{
    free(page);
    e2e_leave();
}

static void exists(const char *path)
{
    ck_assert_msg(bk_exists(path), "%s is not there", path);
}

static void absent(const char *path)
{
    ck_assert_msg(!bk_exists(path), "%s is there", path);
}

/* --- a run --- */

static const char *const pictures[] = {"maxima", "outliers", "error", "losses", "gradients"};

/* The figure of that name on the page, up to its end. */
static char *figure(const char *name)
{
    char mark[64], *at;
    snprintf(mark, sizeof mark, "<figure id=\"%s\"", name);
    ck_assert_msg((at = strstr(page, mark)), "there is no figure %s", name);
    return strndup(at, (size_t)(strstr(at, "</figure>") - at));
}

/* Files that are pictures: an SVG with curves or bars, which stands on the page, and a PNG of its size. */
static void is_drawn(const char *name)
{
    char path[64], *text = figure(name), size[64];
    unsigned char png[24] = {0};
    int width, height;
    ck_assert_int_eq(sscanf(strstr(text, "viewBox"), "viewBox=\"0 0 %d %d\"", &width, &height), 2);
    ck_assert_msg(strstr(text, "<path") && strstr(text, "stroke='rgb(") && strstr(text, "<text"), "%s is empty", name);
    free(text);
    snprintf(path, sizeof path, "r/report/%s.png", name);
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f && fread(png, 1, sizeof png, f) == sizeof png, "%s", path);
    fclose(f);
    ck_assert(!memcmp(png, "\x89PNG\r\n\x1a\n", 8));
    ck_assert_int_eq(png[18] << 8 | png[19], width);
    ck_assert_int_eq(png[22] << 8 | png[23], height);
    snprintf(path, sizeof path, "r/report/%s.svg", name);
    snprintf(size, sizeof size, "viewBox=\"0 0 %d %d\"", width, height);
    ck_assert_msg((text = e2e_text(path)) && strstr(text, size), "%s", path);
    free(text);
    snprintf(path, sizeof path, "r/report/%s.gp", name);
    exists(path);
}

/* What --json says of picture i of the last report. */
static void is_told(const bk_json *told, size_t i)
{
    char file[64];
    const bk_json *o = bk_json_at(told, i);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "name"), ""), pictures[i]);
    snprintf(file, sizeof file, "%s.svg", pictures[i]);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "svg"), ""), file);
    snprintf(file, sizeof file, "%s.png", pictures[i]);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "png"), ""), file);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(o, "missing")), BK_JSON_NULL);
}

START_TEST(a_finished_run_has_all_its_pictures)
{
    bk_json *o = NULL;
    e2e_brick(0, "report r --json");
    take_page("r/report");
    ck_assert_int_eq(bk_json_load("out", &o, NULL), BK_OK);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "page"), ""), "r/report/index.html");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "pictures")), 5);
    for (size_t i = 0; i < 5; i++) {
        is_drawn(pictures[i]);
        is_told(bk_json_get(o, "pictures"), i);
    }
    bk_json_free(o);
    ck_assert_int_eq(count("<svg"), 5);
    ck_assert_int_eq(system("ls r/report | grep -q partial"), 256);
}
END_TEST

START_TEST(the_table_of_a_run_is_on_its_page)
{
    static const char *const rows[] = {"fp", "fp+prefix", "initialised", "+training"};
    char row[128];
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("<td>scheme</td><td>W4A4KV4-static (prefixquant), seed 2</td>");
    for (int i = 0; i < 4; i++) {
        double ppl = e2e_row("r", rows[i]);
        snprintf(row, sizeof row, "<tr><td>%s</td><td class=\"n\">%.4f</td><td class=\"n\">%.4f</td></tr>", rows[i], ppl,
                 log(ppl / e2e_row("r", "fp")));
        shows(row);
    }
    shows("<summary>config.yaml, every key</summary>");
    shows("<summary>manifest.json</summary>");
}
END_TEST

/* The second report measures nothing and writes the same bytes. */
START_TEST(a_report_is_the_same_every_time)
{
    e2e_brick(0, "report r");
    e2e_said("original: done");
    char *before = e2e_listing("r/report");
    e2e_brick(0, "report r");
    e2e_silent("original: done");
    char *after = e2e_listing("r/report");
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}
END_TEST

/* ids are unique on a page with several runs; data in the middle of the page is each run's own. */
START_TEST(several_runs_share_a_page)
{
    e2e_copy_tree("r", "s");
    e2e_brick(2, "report r s");
    e2e_said("--out");
    e2e_brick(0, "report r s --out both");
    take_page("both");
    ck_assert_int_eq(count("<svg"), 10);
    shows("<td>r</td><td>W4A4KV4-static</td><td>prefixquant</td><td>the scheme&#39;s</td><td class=\"n\">2</td>"); /* the table of all runs */
    shows("<td>s</td><td>W4A4KV4-static</td><td>prefixquant</td><td>the scheme&#39;s</td><td class=\"n\">2</td>");
    exists("both/r1_maxima.png");
    exists("both/r2_maxima.png");
    ck_assert_int_eq(
        system("grep -o \" id=['\\\"][^'\\\"]*\" both/index.html | tr '\\\"' \"'\" | sort | uniq -d | grep -q ."), 256);
}
END_TEST

/* Two runs of one scheme are told apart by what is not the scheme's. */
START_TEST(quantizers_that_are_not_the_scheme_s_are_named)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set quant.weight.quantizer=lwc --set quant.weight.lwc.start=3.5 --out h");
    e2e_brick(0, "report r h --out both");
    take_page("both");
    shows("<td>h</td><td>W4A4KV4-static</td><td>prefixquant</td><td>weight.quantizer=lwc, weight.lwc.start=3.5</td>");
    shows("<td>quantizers</td><td>weight.quantizer=lwc, weight.lwc.start=3.5</td>");
    shows("<td>quantizers</td><td>the scheme&#39;s</td>");
    e2e_silent("missing on the page");
    /* without its plugin a config cannot be read */
    e2e_replace("h/config.yaml", "quantizer: lwc", "quantizer: far");
    e2e_replace("h/manifest.json", "\"plugins\": {", "\"plugins\": {\"far\": \"1234\"");
    e2e_brick(0, "report r h --out both");
    e2e_said("h: pictures of activations are missing on the page: ");
    take_page("both");
    shows("<td>h</td><td>W4A4KV4-static</td><td>?</td><td>far of a plugin</td><td class=\"n\">2</td>");
}
END_TEST

/* How often a file was opened since the watch was set; opening and closing take turns, or the kernel would make one of
 * several. */
static int opened(int watch)
{
    char events[8192] __attribute__((aligned(8)));
    ssize_t len = read(watch, events, sizeof events);
    int n = 0;
    for (char *at = events; at < events + len;) {
        const struct inotify_event *e = (const struct inotify_event *)at;
        n += (e->mask & IN_OPEN) != 0;
        at += sizeof *e + e->len;
    }
    return n;
}

/* rows.json is read for its hash alone. */
START_TEST(every_run_is_read_once)
{
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    ck_assert_int_ge(watch, 0);
    e2e_copy_tree("r", "s");
    ck_assert_int_ge(inotify_add_watch(watch, "s/rows.json", IN_OPEN | IN_CLOSE), 0);
    e2e_brick(0, "report r s --out both");
    ck_assert_int_eq(opened(watch), 1);
    close(watch);
}
END_TEST

START_TEST(a_page_needs_nothing_from_elsewhere)
{
    e2e_brick(0, "report r");
    take_page("r/report");
    hides("<script");
    hides("src=");
    hides("@import");
    ck_assert_int_eq(count("http://") + count("https://"), 2 * count("<svg")); /* the names of SVG's namespaces */
    shows("default-src 'none'");
}
END_TEST

/* --- what is missing becomes a sentence --- */

START_TEST(an_unfinished_run_is_shown_as_it_is)
{
    e2e_remove("r/summary.json");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("The run is not finished");
    shows("since the first epoch");
    ck_assert_int_eq(count("<svg"), 5);
}
END_TEST

START_TEST(a_run_without_prefix_says_so)
{
    e2e_brick(0, "report r");
    take_page("r/report");
    ck_assert_int_ge(count("with prefix</text>"), 3); /* in the pictures of activations */
    hides("The run has no prefix.");
    e2e_brick(0, "run run.yaml --set prefix.mode=none --out n");
    e2e_brick(0, "report n");
    take_page("n/report");
    shows("The run has no prefix.");
    hides("with prefix</text>");
    ck_assert_int_eq(count("<svg"), 5);
}
END_TEST

START_TEST(a_run_without_training_says_so)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out n");
    e2e_brick(0, "report n --json");
    take_page("n/report");
    shows("The run does not train");
    ck_assert_int_eq(count("<svg"), 3);
    absent("n/report/losses.svg");
    char *json = e2e_text("out");
    ck_assert_msg(strstr(json, "\"svg\": null, \"png\": null, \"missing\": \"The run does not train"), "%s", json);
    free(json);
}
END_TEST

/* A picture of before does not stay beside a page that has none. */
START_TEST(files_of_a_picture_that_is_gone_go_too)
{
    e2e_brick(0, "report r");
    exists("r/report/losses.svg");
    e2e_remove("r/metrics.jsonl");
    e2e_brick(0, "report r");
    absent("r/report/losses.svg");
    absent("r/report/losses.png");
}
END_TEST

START_TEST(without_its_model_the_rest_of_a_run_is_shown)
{
    e2e_replace("r/config.yaml", "../m", "../gone");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("Not measured: ../gone");
    ck_assert_int_eq(count("<svg"), 2);
}
END_TEST

START_TEST(another_model_is_not_measured_as_the_run_s)
{
    e2e_copy_tree("../m", "m2");
    e2e_flip("m2/model.safetensors", -1);
    e2e_replace("r/config.yaml", "../m", "m2");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("m2 is not the model of the run any more");
}
END_TEST

START_TEST(what_was_measured_serves_when_the_model_is_gone)
{
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --out own");
    e2e_brick(0, "report own");
    e2e_remove("m");
    e2e_brick(0, "report own");
    take_page("own/report");
    ck_assert_int_eq(count("<svg"), 5);
}
END_TEST

#define OWN_TEXT "--set data.detection.text=t.txt --set train.epochs=0 "

/* The text in which the run looked for outlier tokens is not that text any more. */
START_TEST(another_text_is_not_measured_as_the_run_s)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--out own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    take_page("own/report");
    shows("t.txt is not the text of the run any more");
    ck_assert_int_eq(count("<svg"), 0);
}
END_TEST

/* A run with no need to look for them has read the text as another set. */
START_TEST(a_text_that_was_read_for_training_is_known)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml --set data.detection.text=t.txt --set data.training.text=t.txt --set prefix.mode=none --out own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    take_page("own/report");
    shows("t.txt is not the text of the run any more");
}
END_TEST

START_TEST(what_was_measured_serves_when_the_text_has_changed)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--out own");
    e2e_brick(0, "report own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    e2e_silent("original: done");
    take_page("own/report");
    ck_assert_int_eq(count("<svg"), 3);
}
END_TEST

/* A text that the run never read has no hash in its manifest: what was measured is of the bytes of then. */
START_TEST(a_changed_text_that_the_run_did_not_read_is_measured_again)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--set prefix.mode=none --out own");
    e2e_brick(0, "report own");
    e2e_said("original: done");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    e2e_said("original: done");
}
END_TEST

/* Two builds of a version may compute differently. */
START_TEST(another_build_measures_again)
{
    e2e_brick(0, "report r");
    e2e_other_build();
    e2e_brick(0, "report r");
    e2e_said("original: done");
}
END_TEST

/* --- what was fitted --- */

#define FITTED "--set train.epochs=0 --set prefix.mode=none --set data.statistics.samples=2 --set data.statistics.seqlen=32"

START_TEST(a_run_that_fits_nothing_speaks_of_no_fit)
{
    e2e_brick(0, "report r");
    take_page("r/report");
    hides("Fitted transforms");
}
END_TEST

/* The numbers of the stage that the run took them from. */
START_TEST(concentration_of_offq_is_on_the_page)
{
    char share[64];
    e2e_brick(0, "run run.yaml --set method=offq --set scheme=W4A4KV4-dynamic-asym-gauto " FITTED " --out f");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("Fitted: the basis of R1 by OffQ.");
    char *text = e2e_text("f/fit.json");
    bk_json *fit = NULL;
    ck_assert_int_eq(bk_json_parse(text, strlen(text), "f/fit.json", &fit, NULL), BK_OK);
    double top = bk_json_num(bk_json_get(bk_json_get(bk_json_get(fit, "offq"), "top_basis"), "top"), -1);
    snprintf(share, sizeof share, "<td>the top tokens</td><td class=\"n\">%.2f %%</td>", 100 * top);
    shows(share);
    bk_json_free(fit);
    free(text);
}
END_TEST

START_TEST(ratios_of_awq_are_a_row_for_each_block)
{
    e2e_brick(0, "run run.yaml --set method=awq --set scheme=W4A16-g32 " FITTED " --out f");
    e2e_write("f/fit.json", "{\"awq\": [{\"block\": 1, \"site\": \"mlp_in\", \"ratio\": 0.35, \"error\": 0.5},"
                            " {\"block\": 0, \"site\": \"attn_in\", \"ratio\": 0.2, \"error\": 0.75}]}\n");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("<td class=\"n\">0</td><td class=\"n\">0.20</td><td class=\"n\">0.750</td><td class=\"n\">\xe2\x80\x93</td>");
    shows("<td class=\"n\">0.35</td><td class=\"n\">0.500</td>");
}
END_TEST

START_TEST(losses_of_a_learned_rotation_are_on_the_page)
{
    e2e_brick(0, "run run.yaml --set method=kurtail --set norm_rotation.epochs=2 --set norm_rotation.batch=16 " FITTED " --out f");
    e2e_write("f/fit.json", "{\"losses\": [3, 1.5, 2]}\n");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("<td>loss, 3 epochs</td><td class=\"n\">3</td><td class=\"n\">1.5</td><td class=\"n\">2</td>");
}
END_TEST

START_TEST(a_fit_without_its_numbers_is_a_sentence)
{
    e2e_brick(0, "run run.yaml --set method=smoothquant " FITTED " --out f");
    e2e_remove("f/fit.json");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("there is no fit.json");
}
END_TEST

START_TEST(a_damaged_fit_gives_no_numbers)
{
    e2e_brick(0, "run run.yaml --set method=smoothquant " FITTED " --out f");
    e2e_write("f/fit.json", "{\"awq\": [{\"block\": 9e15}, 7], \"offq\": 3, \"losses\": [null, \"x\"], \"errors\": {}}");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("fit.json does not hold what it should: offq.");
    shows("fit.json does not hold what it should: errors.");
    hides("directions");
    shows("<td>loss, 2 epochs</td><td class=\"n\">\xe2\x80\x93</td><td class=\"n\">\xe2\x80\x93</td><td class=\"n\">\xe2\x80\x93</td>");
    shows("<th class=\"n\">attn_in</th>"); /* AWQ's table, */
    hides("<tr><td class=\"n\">0</td>");     /* with no row */
    e2e_write("f/fit.json", "{\"awq\": ");
    e2e_brick(0, "report f");
    take_page("f/report");
    shows("f/fit.json: ");
}
END_TEST

/* --- damage --- */

START_TEST(damaged_metrics_are_shown_up_to_the_damage)
{
    e2e_append("r/metrics.jsonl", "{\"block\": 1, \"epo");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("metrics.jsonl cannot be read from line 5 on");
    ck_assert_int_eq(count("<svg"), 5);
}
END_TEST

START_TEST(metrics_that_are_no_metrics_are_a_sentence)
{
    e2e_write("r/metrics.jsonl",
              "{\"block\": -3, \"epoch\": 1e300}\n{\"block\": 9e15, \"epoch\": 1, \"val_loss\": 1}\n{}\n");
    e2e_brick(0, "report r");
    take_page("r/report");
    ck_assert_int_eq(count("<svg"), 3);
    ck_assert_int_eq(count("metrics.jsonl holds no epoch of the training."), 2); /* losses and gradients */
}
END_TEST

/* A finished run has trained: its epochs are lost, not to come. */
START_TEST(lost_metrics_of_a_finished_run_are_a_sentence)
{
    e2e_remove("r/metrics.jsonl");
    e2e_brick(0, "report r");
    take_page("r/report");
    ck_assert_int_eq(count("metrics.jsonl holds no epoch of the training."), 2);
    e2e_remove("r/summary.json");
    e2e_brick(0, "report r");
    take_page("r/report");
    ck_assert_int_eq(count("No epoch of the training is finished yet."), 2);
}
END_TEST

/* What can be drawn of them is, the rest left out. */
START_TEST(numbers_of_any_size_are_drawn)
{
    e2e_write("r/metrics.jsonl",
              "{\"block\": 0, \"epoch\": 1, \"step\": 1000000000, \"val_loss\": 1e308, \"grad_norms\": [null, 1e-290, "
              "\"x\"]}\n"
              "{\"block\": 1, \"epoch\": 1, \"step\": 0, \"val_loss\": -1, \"grad_norms\": {\"a\": 1}}\n");
    e2e_brick(0, "report r");
    take_page("r/report");
    ck_assert_int_eq(count("<svg"), 5);
    drawn *d = drawn_read("r/report/losses.gp");
    const drawn_curve *during = drawn_titled(&d->plot[0], "each epoch"), *before = drawn_titled(&d->plot[0], "before");
    ck_assert_uint_eq(during->rows->n, 2);
    ck_assert(isnan(drawn_at(during, 0, 1)) && isnan(drawn_at(during, 1, 1)));
    ck_assert(drawn_at(before, 0, 1) > 0 && drawn_at(before, 1, 1) > 0);
    drawn_free(d);
    d = drawn_read("r/report/gradients.gp");
    const drawn_curve *norms = &d->plot[0].curve[0];
    ck_assert_uint_eq(norms->rows->n, 1);
    ck_assert_double_eq_tol(drawn_at(norms, 0, 0), 1, 1e-3);
    ck_assert_double_eq(drawn_at(norms, 0, 1), 1e-290);
    drawn_free(d);
}
END_TEST

START_TEST(a_damaged_summary_is_a_sentence)
{
    e2e_write("r/summary.json", "{\"model\": ");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("r/summary.json");
    hides("<h3>Perplexities</h3>\n<div");
}
END_TEST

/* Numbers that are no longer the run's own are not passed off as them. */
START_TEST(a_file_that_was_changed_is_named)
{
    e2e_brick(0, "report r");
    take_page("r/report");
    hides("SHA256SUMS");
    e2e_replace("r/summary.json", "\"ppl\": 1", "\"ppl\": 2");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("SHA256SUMS");
    shows("summary.json");
}
END_TEST

START_TEST(a_damaged_config_is_shown_as_it_stands)
{
    e2e_write("r/config.yaml", "model: [<b>\n");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("r/config.yaml:");
    shows("model: [&lt;b&gt;");
    shows("Not measured, since config.yaml cannot be read.");
    e2e_said("r: pictures of activations are missing on the page: ");
}
END_TEST

START_TEST(damaged_measurements_are_measured_again)
{
    e2e_brick(0, "report r");
    char *before = e2e_text("r/report/index.html");
    e2e_write("r/report/data.json", "{\"depends\": 1");
    e2e_brick(0, "report r");
    e2e_said("original: done");
    take_page("r/report");
    ck_assert_str_eq(page, before);
    free(before);
}
END_TEST

START_TEST(measurements_without_content_are_a_sentence)
{
    e2e_brick(0, "report r");
    e2e_replace("r/report/data.json", "\"stages\"", "\"gone\"");
    e2e_brick(0, "report r");
    take_page("r/report");
    shows("remove it to measure again");
    ck_assert_int_eq(count("<svg"), 2);
}
END_TEST

/* --- strings of others --- */

#define HOSTILE "'<b>`touch${IFS}pwned`\\\";@x{/Bold"

START_TEST(hostile_strings_stay_strings)
{
    ck_assert_int_eq(symlink("../m", "m<i>'x`touch${IFS}pwned`"), 0);
    e2e_config("\"m<i>'x`touch${IFS}pwned`\"", NULL);
    e2e_brick(0, "run run.yaml --out r<u>'&q");
    e2e_brick(0, "report r<u>'&q");
    e2e_replace("r<u>'&q/summary.json", "\"row\": \"fp\"", "\"row\": \"<script>alert(1)</script>\"");
    e2e_replace("r<u>'&q/report/data.json", "\"text\": \"", "\"text\": \"" HOSTILE);
    e2e_brick(0, "report r<u>'&q");
    take_page("r<u>'&q/report");
    hides("<script>");
    hides("<i>");
    hides("<b>");
    hides("<u>");
    shows("&lt;script&gt;alert(1)&lt;/script&gt;");
    absent("pwned");
    absent("r<u>'&q/report/pwned");
}
END_TEST

START_TEST(hostile_tokens_stay_tokens)
{
    e2e_brick(0, "report r");
    char *data = e2e_text("r/report/data.json"), *at = strstr(strstr(data, "\"upper\": {"), "\"text\": \""), *made;
    ck_assert_msg(at, "the made model has no outlier token");
    at += strlen("\"text\": \"");
    ck_assert_int_ge(asprintf(&made, "%.*s%s%s", (int)(at - data), data, HOSTILE, at), 0);
    e2e_write("r/report/data.json", made);
    e2e_brick(0, "report r");
    e2e_silent("original: done");
    take_page("r/report");
    hides("<b>");
    absent("r/report/pwned");
    absent("pwned");
    free(made);
    free(data);
}
END_TEST

/* --- refusals --- */

START_TEST(a_folder_that_is_no_run_is_refused)
{
    ck_assert_int_eq(mkdir("empty", 0777), 0);
    e2e_brick(3, "report empty");
    e2e_said("neither a run folder");
    e2e_brick(3, "report nowhere");
    e2e_brick(2, "report");
    e2e_brick(3, "report r empty --out both");
    absent("empty/report");
    absent("both");
}
END_TEST

START_TEST(without_gnuplot_it_says_how_to_install_it)
{
    char *was = strdup(getenv("PATH"));
    setenv("PATH", "/nonexistent", 1);
    e2e_brick(2, "report r");
    setenv("PATH", was, 1);
    free(was);
    e2e_said("apt-get install gnuplot-nox");
    absent("r/report");
}
END_TEST

START_TEST(a_page_of_somebody_else_is_not_overwritten)
{
    ck_assert_int_eq(mkdir("site", 0777), 0);
    e2e_write("site/index.html", "<html>mine</html>");
    e2e_brick(2, "report r --out site");
    e2e_said("was not made by brick report");
    char *text = e2e_text("site/index.html");
    ck_assert_str_eq(text, "<html>mine</html>");
    free(text);
}
END_TEST

/* Names that a report would write, and those that it would remove as pictures that are gone. */
START_TEST(files_of_somebody_else_stay)
{
    static const char *const mine[] = {"site/maxima.svg", "site/losses.png", "site/notes.txt"};
    ck_assert_int_eq(mkdir("site", 0777), 0);
    e2e_remove("r/metrics.jsonl"); /* no picture of losses */
    for (int i = 0; i < 3; i++) {
        e2e_write(mine[i], "mine");
        e2e_brick(2, "report r --out site");
        e2e_said(mine[i] + strlen("site/"));
        e2e_said("give another --out");
        absent("site/index.html");
        char *text = e2e_text(mine[i]);
        ck_assert_str_eq(text, "mine");
        free(text);
        e2e_remove(mine[i]);
    }
    e2e_brick(0, "report r --out site"); /* empty */
}
END_TEST

START_TEST(a_run_s_own_folder_is_no_place_for_its_page)
{
    char *before = e2e_listing("r");
    e2e_brick(2, "report r --out r");
    char *after = e2e_listing("r");
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}
END_TEST

/* What it has written is known as its own although there is no whole page yet. */
START_TEST(an_interrupted_report_is_made_again)
{
    e2e_stop_at("rename:5", SIGKILL);
    e2e_brick(128 + SIGKILL, "report r --out both");
    e2e_stop_at(NULL, 0);
    exists("both/maxima.gp");
    take_page("both");
    shows("This report is not finished");
    e2e_brick(0, "report r --out both");
    take_page("both");
    ck_assert_int_eq(count("<svg"), 5);
    hides("This report is not finished");
    absent("r/report/index.html"); /* there is only what was measured */
    e2e_brick(0, "report r");
}
END_TEST

/* --- sweeps --- */

static void put_row(char *to, size_t size, const char *axes, const char *status, double gap)
{
    char line[900], number[32] = "null";
    if (!strcmp(status, "done")) snprintf(number, sizeof number, "%g", gap);
    snprintf(line, sizeof line,
             "{\"point\": \"p<b>\", %s, \"status\": \"%s\", \"ppl_fp\": 10, \"ppl_init\": 20, \"ppl_final\": %s, "
             "\"gap\": %s, \"folder\": \"x\", "
             "\"message\": \"<i>why</i>\"}\n",
             axes, status, number, number);
    strncat(to, line, size - strlen(to) - 1);
}

START_TEST(a_sweep_over_two_axes_has_lines_and_a_map)
{
    char rows[8000] = "", axes[100];
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int e = 1; e < 4; e++)
        for (int k = 0; k < 4; k++) {
            snprintf(axes, sizeof axes, "\"train.epochs\": %d, \"train.lr_quant\": %g", e, 1e-5 * (1 << k));
            put_row(rows, sizeof rows, axes, e == 3 && k == 3 ? "failed" : "done", 0.1 * e + 0.01 * k);
        }
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    ck_assert_int_eq(count("<svg"), 2);
    exists("s/report/lines.png");
    exists("s/report/map.svg");
    shows("12 points, 11 of them with a result.");
    shows("The best value of train.epochs, 1, is the smallest tried.");
    shows("The best value of train.lr_quant, 1e-05, is the smallest tried.");
    shows("<td>perplexity in full precision</td><td>10.0000</td>");
    shows("Points without a result");
    shows("&lt;i&gt;why&lt;/i&gt;");
    hides("<b>");
    shows("A dash: no result.");
}
END_TEST

START_TEST(what_brick_sweep_writes_is_shown)
{
    e2e_write("s.yaml", "base: run.yaml\nset: {train.batch: 1}\ngrid:\n  train.epochs: [0, 1]\n  seed: [1, 2]\n");
    e2e_brick(0, "sweep s.yaml --out s");
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("4 points, 4 of them with a result.");
    shows("<th>train.epochs</th>");
    shows("standard deviation");
    shows("<td>sweep</td><td>s.yaml</td>");
    shows("<td>base config</td><td>run.yaml</td>");
    shows("<td>set</td><td>train.batch=1</td>");
    shows("<td>train.epochs</td><td>0, 1</td>");
    shows("<td>model</td><td>../m</td>");
    shows("<td>scheme</td><td>W4A4KV4-static</td>");
    shows("<td>seed</td><td>1, 2</td>"); /* an axis, not that of a point */
    hides("<td>seed</td><td>1</td>");
    shows("<td>evaluation</td><td>4 windows of 32 tokens of ../m/eval.txt</td>");
    shows("<td>perplexity in full precision</td>");
    ck_assert_int_eq(count("<svg"), 1);
    e2e_brick(0, "sweep s.yaml --out s"); /* the report does not disturb it */
}
END_TEST

START_TEST(seeds_are_averaged)
{
    char rows[4000] = "", axes[100];
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int k = 0; k < 2; k++)
        for (int seed = 1; seed < 4; seed++) {
            snprintf(axes, sizeof axes, "\"scheme\": \"W4A%dKV4\", \"seed\": %d", 4 + 4 * k, seed);
            put_row(rows, sizeof rows, axes, "done", k + 0.5 * seed);
        }
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("standard deviation");
    shows("<td>W4A8KV4</td><td class=\"n\">2.0000</td><td class=\"n\">2.0000</td><td class=\"n\">0.5000</td><td "
          "class=\"n\">3</td>");
    shows("A heat map needs two axes.");
}
END_TEST

/* The program that reports need not have loaded the plugin whose options were swept. */
START_TEST(options_of_a_plugin_that_is_not_loaded_are_axes)
{
    char rows[4000] = "", axes[100];
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int k = 0; k < 3; k++) {
        snprintf(axes, sizeof axes, "\"quant.weight.odd_one.shift\": %g", 0.25 * k);
        put_row(rows, sizeof rows, axes, "done", 0.5 + 0.1 * k);
    }
    put_row(rows, sizeof rows, "\"quant.weight.odd_one.shift\": 0.5, \"quant.weight.odd_one.more\": 3", "done", 1.5);
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("<th>quant.weight.odd_one.shift</th><th>quant.weight.odd_one.more</th>");
    shows("<td>0.25</td><td>-</td><td class=\"n\">0.6000</td><td class=\"n\">0.6000</td>");
    shows("<td>0.5</td><td>3</td><td class=\"n\">1.5000</td>"); /* an axis that other rows lack */
    hides("standard deviation");
    ck_assert_int_eq(count("<svg"), 2);
}
END_TEST

/* Numbers of a model in which nothing was trained. */
START_TEST(a_point_that_failed_with_numbers_is_not_ranked)
{
    char rows[2000] = "";
    ck_assert_int_eq(mkdir("s", 0777), 0);
    put_row(rows, sizeof rows, "\"train.epochs\": 1", "done", 0.25);
    put_row(rows, sizeof rows, "\"train.epochs\": 2", "done", 0.125);
    memcpy(strstr(rows, "\"done\""), "\"fail\"", 6);
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("2 points, 1 of them with a result.");
    shows("0.1250");
    hides("0.2500");
}
END_TEST

/* Values that differ behind what a table shows of them. */
START_TEST(points_that_differ_late_are_not_averaged)
{
    char rows[4000] = "", axes[200];
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int k = 0; k < 4; k++) {
        snprintf(axes, sizeof axes,
                 "\"model\": \"/a/folder/of/a/name/that/does/not/fit/into/the/table/m%d\", \"seed\": %lld",
                 k / 2, 9007199254740990LL + k % 2);
        put_row(rows, sizeof rows, axes, "done", k / 2 + 1);
    }
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("<td class=\"n\">1.0000</td><td class=\"n\">0.0000</td><td class=\"n\">2</td>");
    shows("<td class=\"n\">2.0000</td><td class=\"n\">0.0000</td><td class=\"n\">2</td>");
}
END_TEST

START_TEST(a_sweep_of_many_axes_keeps_its_points_apart)
{
    char rows[8000] = "", axes[400];
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int k = 0; k < 2; k++) {
        snprintf(axes, sizeof axes,
                 "\"scheme\": \"a\", \"train.epochs\": 1, \"train.lr_quant\": 1, \"train.lr_weight\": 1, "
                 "\"train.loss\": \"mse\", \"train.batch\": 1, \"data.validation\": 1, "
                 "\"data.training.samples\": 1, \"data.training.seqlen\": %d",
                 k + 1);
        put_row(rows, sizeof rows, axes, "done", k + 1);
    }
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("data.training.seqlen");
    shows("<td>2</td><td class=\"n\">2.0000</td><td class=\"n\">2.0000</td>");
}
END_TEST

START_TEST(a_sweep_without_results_says_so)
{
    char rows[1000] = "";
    ck_assert_int_eq(mkdir("s", 0777), 0);
    put_row(rows, sizeof rows, "\"seed\": 1", "pending", 0);
    e2e_write("s/results.jsonl", rows);
    e2e_append("s/results.jsonl", "{\"point\": ");
    e2e_brick(0, "report s");
    take_page("s/report");
    shows("No point of the sweep has a result yet.");
    shows("results.jsonl cannot be read from line 2 on");
    e2e_write("s/results.jsonl", "");
    e2e_brick(0, "report s");
    ck_assert_int_eq(count("<svg"), 0);
}
END_TEST

START_TEST(hostile_axes_stay_axes)
{
    char rows[2000] = "";
    ck_assert_int_eq(mkdir("s", 0777), 0);
    put_row(rows, sizeof rows, "\"scheme\": \"" HOSTILE "\", \"quant.skip\": [{\"block\": 0}]", "done", 0.1);
    put_row(rows, sizeof rows, "\"scheme\": \"a\\nb\", \"quant.skip\": null", "done", 0.2);
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    take_page("s/report");
    ck_assert_int_eq(count("<svg"), 2);
    hides("<b>");
    absent("pwned");
    absent("s/report/pwned");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_report");
    TCase *t = tcase_create("without gnuplot");
    tcase_add_unchecked_fixture(t, begin, e2e_end);
    tcase_add_checked_fixture(t, enter, leave);
    tcase_add_test(t, a_folder_that_is_no_run_is_refused);
    tcase_add_test(t, without_gnuplot_it_says_how_to_install_it);
    suite_add_tcase(s, t);
    const TTest *const draw[] = {
        a_finished_run_has_all_its_pictures,
        the_table_of_a_run_is_on_its_page,
        a_report_is_the_same_every_time,
        several_runs_share_a_page,
        quantizers_that_are_not_the_scheme_s_are_named,
        every_run_is_read_once,
        a_page_needs_nothing_from_elsewhere,
        an_unfinished_run_is_shown_as_it_is,
        a_run_without_prefix_says_so,
        a_run_without_training_says_so,
        files_of_a_picture_that_is_gone_go_too,
        without_its_model_the_rest_of_a_run_is_shown,
        another_model_is_not_measured_as_the_run_s,
        what_was_measured_serves_when_the_model_is_gone,
        another_text_is_not_measured_as_the_run_s,
        a_text_that_was_read_for_training_is_known,
        what_was_measured_serves_when_the_text_has_changed,
        a_changed_text_that_the_run_did_not_read_is_measured_again,
        another_build_measures_again,
        damaged_metrics_are_shown_up_to_the_damage,
        metrics_that_are_no_metrics_are_a_sentence,
        lost_metrics_of_a_finished_run_are_a_sentence,
        numbers_of_any_size_are_drawn,
        a_damaged_summary_is_a_sentence,
        a_file_that_was_changed_is_named,
        a_damaged_config_is_shown_as_it_stands,
        damaged_measurements_are_measured_again,
        measurements_without_content_are_a_sentence,
        a_run_that_fits_nothing_speaks_of_no_fit,
        concentration_of_offq_is_on_the_page,
        ratios_of_awq_are_a_row_for_each_block,
        losses_of_a_learned_rotation_are_on_the_page,
        a_fit_without_its_numbers_is_a_sentence,
        a_damaged_fit_gives_no_numbers,
        hostile_strings_stay_strings,
        hostile_tokens_stay_tokens,
        a_page_of_somebody_else_is_not_overwritten,
        files_of_somebody_else_stay,
        a_run_s_own_folder_is_no_place_for_its_page,
        an_interrupted_report_is_made_again,
        a_sweep_over_two_axes_has_lines_and_a_map,
        what_brick_sweep_writes_is_shown,
        seeds_are_averaged,
        points_that_differ_late_are_not_averaged,
        options_of_a_plugin_that_is_not_loaded_are_axes,
        a_point_that_failed_with_numbers_is_not_ranked,
        a_sweep_of_many_axes_keeps_its_points_apart,
        a_sweep_without_results_says_so,
        hostile_axes_stay_axes};
    enum { DRAW = sizeof draw / sizeof draw[0] };
    int failed = 0;
    if (drawing()) {
        t = tcase_create("report");
        tcase_set_timeout(t, 60);
        tcase_add_unchecked_fixture(t, begin, e2e_end);
        tcase_add_checked_fixture(t, enter, leave);
        for (int i = 0; i < DRAW; i++) tcase_add_test(t, draw[i]);
        suite_add_tcase(s, t);
    } else if (e2e_skipped(DRAW, "gnuplot is not installed (scripts/setup.sh test)"))
        failed = DRAW;
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed += srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
