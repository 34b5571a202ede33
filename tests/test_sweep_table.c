/* What a sweep tells of its points: results.csv and results.jsonl, the ranked table, statistics over seeds, JSON. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/sweep_run.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "tests/suite.h"

#define POINTS 6
#define FP 10.0

static char dir[64];
static bk_sweep s;
static bk_sweep_row row[POINTS];
static bk_error err;

static void must(bk_status st)
{
    ck_assert_msg(!st, "%s", err.msg);
}

static void begin_with(const char *yaml, int points)
{
    static const char base[] = "model: m\nscheme: W4A4KV4-static\ndata: {training: {text: t}, evaluation: {text: e}}\n";
    strcpy(dir, "/tmp/bk_table_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    must(bk_write_file("base.yaml", base, strlen(base), &err));
    must(bk_write_file("sweep.yaml", yaml, strlen(yaml), &err));
    must(bk_sweep_load("sweep.yaml", &s, &err));
    must(bk_sweep_check(&s, &err));
    ck_assert_int_eq(s.n, points);
}

static void begin(void)
{
    begin_with("base: base.yaml\ngrid: {train.lr_quant: [1e-3, 1e-2], seed: [1, 2, 3]}\n", POINTS);
}

/* Names in columns that are not bytes: an umlaut takes one, a Chinese character two. */
static void begin_named(void)
{
    begin_with("base: base.yaml\n"
               "points:\n"
               "  - {name: größer, train.epochs: 2}\n"
               "  - {name: 步长, train.lr_quant: 1e-3, seed: 1}\n"
               "  - {name: 步长, train.lr_quant: 1e-3, seed: 3}\n"
               "grid: {data.evaluation.text: [e, a12345678901234567890123456789012345678901]}\n",
               POINTS);
}

static void end(void)
{
    bk_sweep_free(&s);
    ck_assert_int_eq(chdir("/tmp"), 0);
    must(bk_remove_tree(dir, &err));
}

/* A point that came to its end with this gap. */
static void put(int point, bk_point_state state, double gap)
{
    bk_sweep_row *r = &row[point];
    *r = (bk_sweep_row){.state = state, .fp = FP, .fp_prefix = 9.5, .init = 20, .final = FP * exp(gap), .gap = gap,
                        .loss_init = 0.5, .loss_final = 0.25, .loss_last = 0.125, .peak = 1048576};
    for (int i = 0; i < BK_RUN_STAGES; i++) r->seconds[i] = i + 0.5;
}

/* One that has no numbers. */
static void put_none(int point, bk_point_state state, const char *message)
{
    put(point, state, NAN);
    bk_sweep_row *r = &row[point];
    r->fp = r->fp_prefix = r->init = r->final = r->loss_init = r->loss_final = r->loss_last = r->peak = NAN;
    for (int i = 0; i < BK_RUN_STAGES; i++) r->seconds[i] = NAN;
    snprintf(r->message, sizeof r->message, "%s", message);
}

/* The third and the fourth have failed, one of them with numbers that are the best of all. */
static void points_of_all_kinds(void)
{
    put(0, BK_POINT_DONE, 0.3);
    put(1, BK_POINT_DONE, 0.1);
    put_none(2, BK_POINT_FAILED, "short.txt: no \"samples\", none");
    row[2].code = BK_EXIT_USAGE;
    put(3, BK_POINT_FAILED, 0.01);
    row[3].code = BK_EXIT_NUMERIC;
    strcpy(row[3].message, "no block could be trained");
    put(4, BK_POINT_DONE, 0.25);
    put_none(5, BK_POINT_PENDING, "");
}

/* What the results say on stdout; malloc'd. */
static char *printed(bool json)
{
    char *text;
    size_t len;
    fflush(stdout);
    int out = dup(1), file = open("printed", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, 1);
    bk_status st = bk_sweep_print(&s, row, "runs/x", json, &err);
    fflush(stdout);
    dup2(out, 1); /* Check reports there when it does not fork */
    close(out);
    close(file);
    must(st);
    must(bk_file_slurp("printed", 1 << 20, &text, &len, &err));
    return text;
}

static bk_json *printed_json(void)
{
    char *text = printed(true);
    bk_json *o;
    must(bk_json_parse(text, strlen(text), "printed", &o, &err));
    free(text);
    return o;
}

static char *file_text(const char *name)
{
    char *text;
    size_t len;
    must(bk_file_slurp(name, 1 << 20, &text, &len, &err));
    return text;
}

/* --- for people --- */

START_TEST(points_are_ranked_by_gap_and_failed_ones_are_not)
{
    points_of_all_kinds();
    char *text = printed(false);
    static const char want[] =
        "rank  lr_quant  seed      ppl fp    ppl init   ppl final       gap        loss   seconds\n"
        "   1  0.001     2        10.0000     20.0000     11.0517    0.1000  2.5000e-01       9.5\n"
        "   2  0.01      2        10.0000     20.0000     12.8403    0.2500  2.5000e-01       9.5\n"
        "   3  0.001     1        10.0000     20.0000     13.4986    0.3000  2.5000e-01       9.5\n"
        "   -  0.001     3              -           -           -         -           -         -"
        "  failed (2): short.txt: no \"samples\", none\n"
        "   -  0.01      1        10.0000     20.0000     10.1005    0.0100  2.5000e-01       9.5"
        "  failed (4): no block could be trained\n"
        "   -  0.01      3              -           -           -         -           -         -  not run\n"
        "gap = ln(ppl final / ppl fp); loss = mean over blocks of the validation loss that was kept\n"
        "\n"
        "over seeds\n"
        "lr_quant    n   ppl final        sd       gap        sd\n"
        "0.001       2     12.2751    1.7302    0.2000    0.1414\n"
        "0.01        1     12.8403         -    0.2500         -\n"
        "the best value of train.lr_quant, 0.001, is the smallest tried\n";
    ck_assert_msg(!strcmp(text, want), "%.1500s", text);
    free(text);
}
END_TEST

START_TEST(the_best_at_the_end_of_an_axis_says_so)
{
    static const struct {
        const char *key;
        double best, lo, hi;
        const char *says;
    } ends[] = {{"train.lr_quant", 0.01, 1e-4, 0.01, "the best value of train.lr_quant, 0.01, is the largest tried"},
                {"train.lr_quant", 1e-4, 1e-4, 0.01, "the best value of train.lr_quant, 0.0001, is the smallest tried"},
                {"train.lr_quant", 1e-3, 1e-4, 0.01, NULL},
                {"train.lr_quant", 1e-3, 1e-3, 1e-3, NULL},
                {"train.epochs", 0, 0, 4, NULL}, /* there is nothing below */
                {"quant.weight.odd_one.shift", 2, 1, 2, "the best value of quant.weight.odd_one.shift, 2, is the largest tried"}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char text[200] = "";
        ck_assert_int_eq(bk_sweep_at_edge(ends[i].key, ends[i].best, ends[i].lo, ends[i].hi, text, sizeof text), ends[i].says != NULL);
        ck_assert_str_eq(text, ends[i].says ? ends[i].says : "");
    }
}
END_TEST

START_TEST(one_that_halving_dropped_says_so)
{
    for (int i = 0; i < POINTS; i++) put(i, BK_POINT_DONE, 0.1 * (i + 1));
    put_none(1, BK_POINT_STOPPED, "rank 2 of 2");
    char *text = printed(false);
    ck_assert_ptr_nonnull(strstr(text, "   -  0.001     2 "));
    ck_assert_ptr_nonnull(strstr(text, "  stopped: rank 2 of 2\n"));
    free(text);
}
END_TEST

START_TEST(names_stand_for_the_axes_of_points)
{
    for (int i = 0; i < POINTS; i++) put(i, BK_POINT_DONE, 0.1 * (i + 1));
    char *text = printed(false);
    static const char want[] =
        "rank  name    seed  text                                          ppl fp    ppl init   ppl final       gap        loss   seconds\n"
        "   1  größer  2     e                                            10.0000     20.0000     11.0517    0.1000  2.5000e-01       9.5\n"
        "   2  größer  2     a123456789012345678901234567890123456789     10.0000     20.0000     12.2140    0.2000  2.5000e-01       9.5\n"
        "   3  步长    1     e ";
    ck_assert_msg(!strncmp(text, want, strlen(want)), "%.1500s", text);
    ck_assert_ptr_nonnull(strstr(text, "\nname    text                                        n   ppl final        sd       gap        sd\n"));
    free(text);
}
END_TEST

START_TEST(files_have_a_column_of_names)
{
    for (int i = 0; i < POINTS; i++) put(i, BK_POINT_DONE, 0.1);
    must(bk_sweep_write(&s, row, ".", &err));
    char *text = file_text("results.csv");
    ck_assert_int_eq(strncmp(text, "point,name,train.epochs,", 24), 0);
    ck_assert_ptr_nonnull(strstr(text, "\n\"epochs=2,text=e\",größer,2,"));
    free(text);
}
END_TEST

/* --- for programs --- */

static void expect_names(const bk_json *list, const char *names)
{
    char got[512] = "";
    for (size_t i = 0; i < bk_json_size(list); i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s\n", bk_json_str(bk_json_at(list, i), "?"));
    ck_assert_str_eq(got, names);
}

START_TEST(json_ranks_what_is_done_and_counts_the_rest)
{
    points_of_all_kinds();
    bk_json *o = printed_json();
    expect_names(bk_json_get(o, "ranking"), "lr_quant=0.001,seed=2\nlr_quant=0.01,seed=2\nlr_quant=0.001,seed=1\n");
    expect_names(bk_json_get(o, "axes"), "train.lr_quant\nseed\n");
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "done"), -1), 3);
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "failed"), -1), 2);
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "stopped"), -1), 0);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "points")), POINTS);
    bk_json_free(o);
}
END_TEST

START_TEST(seeds_have_mean_and_deviation_of_both_numbers)
{
    points_of_all_kinds();
    put(2, BK_POINT_DONE, 0.8);
    bk_json *o = printed_json();
    const bk_json *seeds = bk_json_get(o, "seeds"), *g = bk_json_at(seeds, 1);
    const double gap[] = {0.3, 0.1, 0.8};
    double mean = 0, ppl = 0, squares = 0, ppl_squares = 0;
    for (int i = 0; i < 3; i++) mean += gap[i] / 3, ppl += FP * exp(gap[i]) / 3;
    for (int i = 0; i < 3; i++) squares += pow(gap[i] - mean, 2), ppl_squares += pow(FP * exp(gap[i]) - ppl, 2);
    ck_assert_uint_eq(bk_json_size(seeds), 2);
    ck_assert_str_eq(bk_json_str(bk_json_get(g, "train.lr_quant"), "?"), "0.001"); /* behind 0.01: its gap is 0.25 */
    ck_assert_int_eq(bk_json_int(bk_json_get(g, "n"), 0), 3);
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "gap_mean"), 0), mean, 1e-12);
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "gap_sd"), 0), sqrt(squares / 2), 1e-12);
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_mean"), 0), ppl, 1e-11);
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_sd"), 0), sqrt(ppl_squares / 2), 1e-11);
    bk_json_free(o);
}
END_TEST

/* --- files --- */

START_TEST(csv_has_a_column_for_everything)
{
    points_of_all_kinds();
    must(bk_sweep_write(&s, row, ".", &err));
    char *text = file_text("results.csv"), *line[POINTS + 1], *save, *at = text;
    for (int i = 0; i <= POINTS; i++, at = NULL) ck_assert_ptr_nonnull(line[i] = strtok_r(at, "\n", &save));
    ck_assert_ptr_null(strtok_r(NULL, "\n", &save));
    ck_assert_str_eq(line[0], "point,train.lr_quant,seed,status,ppl_fp,ppl_fp_prefix,ppl_init,ppl_final,gap,loss_init,loss_final,"
                              "loss_last,seconds_load,seconds_equivalence,seconds_outliers,seconds_fit,seconds_init,"
                              "seconds_targets,seconds_train,seconds_rows,seconds_evaluate,seconds_total,peak_rss_bytes,"
                              "folder,exit_code,message");
    ck_assert_int_eq(strncmp(line[1], "\"lr_quant=0.001,seed=1\",0.001,1,done,10.0,9.5,20.0,13.498588075760", 66), 0);
    ck_assert_ptr_nonnull(strstr(line[1], ",0.3,0.5,0.25,0.125,0.5,1.5,2.5,3.5,4.5,5.5,6.5,7.5,8.5,9.5,1048576,"
                                          "\"./lr_quant=0.001,seed=1\",0,"));
    ck_assert_str_eq(line[3], "\"lr_quant=0.001,seed=3\",0.001,3,failed,,,,,,,,,,,,,,,,,,,,\"./lr_quant=0.001,seed=3\",2,"
                              "\"short.txt: no \"\"samples\"\", none\"");
    ck_assert_str_eq(line[6], "\"lr_quant=0.01,seed=3\",0.01,3,pending,,,,,,,,,,,,,,,,,,,,\"./lr_quant=0.01,seed=3\",,");
    free(text);
}
END_TEST

START_TEST(lines_of_json_say_the_same)
{
    points_of_all_kinds();
    must(bk_sweep_write(&s, row, ".", &err));
    char *text = file_text("results.jsonl"), *save, *line = strtok_r(text, "\n", &save);
    bk_json *o;
    must(bk_json_parse(line, strlen(line), "line", &o, &err));
    ck_assert_double_eq(bk_json_num(bk_json_get(o, "gap"), 0), 0.3);
    ck_assert_double_eq(bk_json_num(bk_json_get(o, "train.lr_quant"), 0), 0.001);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "status"), "?"), "done");
    bk_json_free(o);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep_table");
    TCase *t = tcase_create("table");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, points_are_ranked_by_gap_and_failed_ones_are_not);
    tcase_add_test(t, the_best_at_the_end_of_an_axis_says_so);
    tcase_add_test(t, one_that_halving_dropped_says_so);
    tcase_add_test(t, json_ranks_what_is_done_and_counts_the_rest);
    tcase_add_test(t, seeds_have_mean_and_deviation_of_both_numbers);
    tcase_add_test(t, csv_has_a_column_for_everything);
    tcase_add_test(t, lines_of_json_say_the_same);
    suite_add_tcase(suite, t);
    t = tcase_create("names");
    tcase_add_checked_fixture(t, begin_named, end);
    tcase_add_test(t, names_stand_for_the_axes_of_points);
    tcase_add_test(t, files_have_a_column_of_names);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
