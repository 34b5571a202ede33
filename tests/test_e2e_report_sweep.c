/* brick report on the folder of a sweep. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/e2e_report.h"

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
    page_take("s/report");
    ck_assert_int_eq(page_count("<svg"), 2);
    e2e_exists("s/report/lines.png");
    e2e_exists("s/report/map.svg");
    page_shows("12 points, 11 of them with a result.");
    page_shows("The best value of train.epochs, 1, is the smallest tried.");
    page_shows("The best value of train.lr_quant, 1e-05, is the smallest tried.");
    page_shows("<td>perplexity in full precision</td><td>10.0000</td>");
    page_shows("Points without a result");
    page_shows("&lt;i&gt;why&lt;/i&gt;");
    page_hides("<b>");
    page_shows("A dash: no result.");
}
END_TEST

START_TEST(what_brick_sweep_writes_is_shown)
{
    e2e_write("s.yaml", "base: run.yaml\nset: {train.batch: 1}\ngrid:\n  train.epochs: [0, 1]\n  seed: [1, 2]\n");
    e2e_brick(0, "sweep s.yaml --out s");
    e2e_brick(0, "report s");
    page_take("s/report");
    page_shows("4 points, 4 of them with a result.");
    page_shows("<th>train.epochs</th>");
    page_shows("standard deviation");
    page_shows("<td>sweep</td><td>s.yaml</td>");
    page_shows("<td>base config</td><td>run.yaml</td>");
    page_shows("<td>set</td><td>train.batch=1</td>");
    page_shows("<td>train.epochs</td><td>0, 1</td>");
    page_shows("<td>model</td><td>../m</td>");
    page_shows("<td>scheme</td><td>W4A4KV4-static</td>");
    page_shows("<td>seed</td><td>1, 2</td>"); /* an axis, not that of a point */
    page_hides("<td>seed</td><td>1</td>");
    page_shows("<td>evaluation</td><td>4 windows of 32 tokens of ../m/eval.txt</td>");
    page_shows("<td>perplexity in full precision</td>");
    ck_assert_int_eq(page_count("<svg"), 1);
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
    page_take("s/report");
    page_shows("standard deviation");
    page_shows("<td>W4A8KV4</td><td class=\"n\">2.0000</td><td class=\"n\">2.0000</td><td class=\"n\">0.5000</td><td "
          "class=\"n\">3</td>");
    page_shows("A heat map needs two axes.");
}
END_TEST

START_TEST(names_of_points_are_on_the_page)
{
    char rows[4000] = "";
    ck_assert_int_eq(mkdir("s", 0777), 0);
    put_row(rows, sizeof rows, "\"name\": \"the <i>first</i>\", \"train.epochs\": 1", "done", 0.5);
    put_row(rows, sizeof rows, "\"train.epochs\": 2", "done", 0.75);
    e2e_write("s/results.jsonl", rows);
    e2e_brick(0, "report s");
    page_take("s/report");
    page_shows("<th>name</th><th>train.epochs</th>");
    page_shows("<td>the &lt;i&gt;first&lt;/i&gt;</td><td>1</td><td class=\"n\">");
    page_shows("<td>-</td><td>2</td><td class=\"n\">");
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
    page_take("s/report");
    page_shows("<th>quant.weight.odd_one.shift</th><th>quant.weight.odd_one.more</th>");
    page_shows("<td>0.25</td><td>-</td><td class=\"n\">0.6000</td><td class=\"n\">0.6000</td>");
    page_shows("<td>0.5</td><td>3</td><td class=\"n\">1.5000</td>"); /* an axis that other rows lack */
    page_hides("standard deviation");
    ck_assert_int_eq(page_count("<svg"), 2);
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
    page_take("s/report");
    page_shows("2 points, 1 of them with a result.");
    page_shows("0.1250");
    page_hides("0.2500");
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
    page_take("s/report");
    page_shows("<td class=\"n\">1.0000</td><td class=\"n\">0.0000</td><td class=\"n\">2</td>");
    page_shows("<td class=\"n\">2.0000</td><td class=\"n\">0.0000</td><td class=\"n\">2</td>");
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
    page_take("s/report");
    page_shows("data.training.seqlen");
    page_shows("<td>2</td><td class=\"n\">2.0000</td><td class=\"n\">2.0000</td>");
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
    page_take("s/report");
    page_shows("No point of the sweep has a result yet.");
    page_shows("results.jsonl cannot be read from line 2 on");
    e2e_write("s/results.jsonl", "");
    e2e_brick(0, "report s");
    ck_assert_int_eq(page_count("<svg"), 0);
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
    page_take("s/report");
    ck_assert_int_eq(page_count("<svg"), 2);
    page_hides("<b>");
    e2e_absent("pwned");
    e2e_absent("s/report/pwned");
}
END_TEST

int main(void)
{
    const TTest *const drawing[] = {
        a_sweep_over_two_axes_has_lines_and_a_map,
        what_brick_sweep_writes_is_shown,
        seeds_are_averaged,
        names_of_points_are_on_the_page,
        options_of_a_plugin_that_is_not_loaded_are_axes,
        a_point_that_failed_with_numbers_is_not_ranked,
        points_that_differ_late_are_not_averaged,
        a_sweep_of_many_axes_keeps_its_points_apart,
        a_sweep_without_results_says_so,
        hostile_axes_stay_axes};
    return report_tests("e2e_report_sweep", NULL, 0, drawing, sizeof drawing / sizeof drawing[0]);
}
