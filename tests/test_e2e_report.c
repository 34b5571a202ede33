/* brick report on a run folder: its pictures and tables, strings of others, folders that it refuses. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e_report.h"

/* --- a run --- */

static const char *const pictures[] = {"maxima", "outliers", "error", "losses", "gradients"};

/* The figure of that name on the page, up to its end. */
static char *figure(const char *name)
{
    char mark[64];
    const char *at;
    snprintf(mark, sizeof mark, "<figure id=\"%s\"", name);
    ck_assert_msg((at = strstr(page_text(), mark)), "there is no figure %s", name);
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
    e2e_exists(path);
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
    page_take("r/report");
    ck_assert_int_eq(bk_json_load("out", &o, NULL), BK_OK);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "page"), ""), "r/report/index.html");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "pictures")), 5);
    for (size_t i = 0; i < 5; i++) {
        is_drawn(pictures[i]);
        is_told(bk_json_get(o, "pictures"), i);
    }
    bk_json_free(o);
    ck_assert_int_eq(page_count("<svg"), 5);
    ck_assert_int_eq(system("ls r/report | grep -q partial"), 256);
}
END_TEST

START_TEST(the_table_of_a_run_is_on_its_page)
{
    static const char *const rows[] = {"fp", "fp+prefix", "initialised", "+training"};
    char row[128];
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("<td>scheme</td><td>W4A4KV4-static (prefixquant), seed 2</td>");
    for (int i = 0; i < 4; i++) {
        double ppl = e2e_row("r", rows[i]);
        snprintf(row, sizeof row, "<tr><td>%s</td><td class=\"n\">%.4f</td><td class=\"n\">%.4f</td></tr>", rows[i], ppl,
                 log(ppl / e2e_row("r", "fp")));
        page_shows(row);
    }
    page_shows("<summary>config.yaml, every key</summary>");
    page_shows("<summary>manifest.json</summary>");
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
    page_take("both");
    ck_assert_int_eq(page_count("<svg"), 10);
    page_shows("<td>r</td><td>W4A4KV4-static</td><td>prefixquant</td><td>the scheme&#39;s</td><td class=\"n\">2</td>"); /* the table of all runs */
    page_shows("<td>s</td><td>W4A4KV4-static</td><td>prefixquant</td><td>the scheme&#39;s</td><td class=\"n\">2</td>");
    e2e_exists("both/r1_maxima.png");
    e2e_exists("both/r2_maxima.png");
    ck_assert_int_eq(
        system("grep -o \" id=['\\\"][^'\\\"]*\" both/index.html | tr '\\\"' \"'\" | sort | uniq -d | grep -q ."), 256);
}
END_TEST

/* Two runs of one scheme are told apart by what is not the scheme's. */
START_TEST(quantizers_that_are_not_the_scheme_s_are_named)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set quant.weight.quantizer=lwc --set quant.weight.lwc.start=3.5 --out h");
    e2e_brick(0, "report r h --out both");
    page_take("both");
    page_shows("<td>h</td><td>W4A4KV4-static</td><td>prefixquant</td><td>weight.quantizer=lwc, weight.lwc.start=3.5</td>");
    page_shows("<td>quantizers</td><td>weight.quantizer=lwc, weight.lwc.start=3.5</td>");
    page_shows("<td>quantizers</td><td>the scheme&#39;s</td>");
    e2e_silent("missing on the page");
    /* without its plugin a config cannot be read */
    e2e_replace("h/config.yaml", "quantizer: lwc", "quantizer: far");
    e2e_replace("h/manifest.json", "\"plugins\": {", "\"plugins\": {\"far\": \"1234\"");
    e2e_brick(0, "report r h --out both");
    e2e_said("h: pictures of activations are missing on the page: ");
    page_take("both");
    page_shows("<td>h</td><td>W4A4KV4-static</td><td>?</td><td>far of a plugin</td><td class=\"n\">2</td>");
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
    page_take("r/report");
    page_hides("<script");
    page_hides("src=");
    page_hides("@import");
    ck_assert_int_eq(page_count("http://") + page_count("https://"), 2 * page_count("<svg")); /* the names of SVG's namespaces */
    page_shows("default-src 'none'");
}
END_TEST

/* --- strings of others --- */

START_TEST(hostile_strings_stay_strings)
{
    ck_assert_int_eq(symlink("../m", "m<i>'x`touch${IFS}pwned`"), 0);
    e2e_config("\"m<i>'x`touch${IFS}pwned`\"", NULL);
    e2e_brick(0, "run run.yaml --out r<u>'&q");
    e2e_brick(0, "report r<u>'&q");
    e2e_replace("r<u>'&q/summary.json", "\"row\": \"fp\"", "\"row\": \"<script>alert(1)</script>\"");
    e2e_replace("r<u>'&q/report/data.json", "\"text\": \"", "\"text\": \"" HOSTILE);
    e2e_brick(0, "report r<u>'&q");
    page_take("r<u>'&q/report");
    page_hides("<script>");
    page_hides("<i>");
    page_hides("<b>");
    page_hides("<u>");
    page_shows("&lt;script&gt;alert(1)&lt;/script&gt;");
    e2e_absent("pwned");
    e2e_absent("r<u>'&q/report/pwned");
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
    page_take("r/report");
    page_hides("<b>");
    e2e_absent("r/report/pwned");
    e2e_absent("pwned");
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
    e2e_absent("empty/report");
    e2e_absent("both");
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
    e2e_absent("r/report");
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
        e2e_absent("site/index.html");
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
    e2e_exists("both/maxima.gp");
    page_take("both");
    page_shows("This report is not finished");
    e2e_brick(0, "report r --out both");
    page_take("both");
    ck_assert_int_eq(page_count("<svg"), 5);
    page_hides("This report is not finished");
    e2e_absent("r/report/index.html"); /* there is only what was measured */
    e2e_brick(0, "report r");
}
END_TEST

int main(void)
{
    const TTest *const drawing[] = {
        a_finished_run_has_all_its_pictures,
        the_table_of_a_run_is_on_its_page,
        a_report_is_the_same_every_time,
        several_runs_share_a_page,
        quantizers_that_are_not_the_scheme_s_are_named,
        every_run_is_read_once,
        a_page_needs_nothing_from_elsewhere,
        hostile_strings_stay_strings,
        hostile_tokens_stay_tokens,
        a_page_of_somebody_else_is_not_overwritten,
        files_of_somebody_else_stay,
        a_run_s_own_folder_is_no_place_for_its_page,
        an_interrupted_report_is_made_again};
    const TTest *const plain[] = {a_folder_that_is_no_run_is_refused, without_gnuplot_it_says_how_to_install_it};
    return report_tests("e2e_report", plain, 2, drawing, sizeof drawing / sizeof drawing[0]);
}
