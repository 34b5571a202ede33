/* brick sweep: stages counted against what `brick plan` says; in parallel, from a list, over seeds, halved. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/run.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/e2e_sweep.h"
#include "tests/suite.h"

/* --- plan against ledger --- */

/* Of every kind of stage: what the plan says, what is right, and what is made. */
static void expect_stages(const int right[BK_STAGE_KINDS], int points)
{
    sweep_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        const char *stage = bk_stage_name((bk_stage_kind)k);
        ck_assert_msg(sweep_planned(stage) == right[k], "%s: planned %d, want %d", stage, sweep_planned(stage), right[k]);
    }
    ck_assert_int_eq(sweep_planned("train"), points);
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 2");
    sweep_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        const char *stage = bk_stage_name((bk_stage_kind)k);
        ck_assert_msg(sweep_made(stage) == right[k], "%s: made %d, want %d", stage, sweep_made(stage), right[k]);
        ck_assert_int_eq(sweep_planned(stage), 0);
    }
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"done\""), points);
    ck_assert_int_eq(sweep_planned("train"), 0);
}

/* Keys that stand before different stages. */
START_TEST(stages_are_made_as_often_as_the_plan_says)
{
    static const int right[BK_STAGE_KINDS] = {
        [BK_STAGE_OUTLIERS] = 1, [BK_STAGE_INIT] = 4, [BK_STAGE_TARGETS] = 2, [BK_STAGE_ROW_FP] = 2,
        [BK_STAGE_ROW_PREFIX] = 1, [BK_STAGE_ROW_RTN] = 2, [BK_STAGE_ROW_ROTATION] = 2, [BK_STAGE_ROW_SEARCH] = 2,
        [BK_STAGE_ROW_NO_PREFIX] = 2, [BK_STAGE_ROW_INIT] = 4};
    sweep_file("base: run.yaml\nset: {evaluate: [ablation]}\ngrid:\n  prefix.mode: [auto, none]\n  init.search: [true, "
               "false]\n  train.lr_quant: [1e-3, 1e-2]\n");
    expect_stages(right, 8);
}
END_TEST

/* Windows are drawn by the seed, those of the detection too. */
START_TEST(every_seed_has_stages_of_its_own)
{
    static const int right[BK_STAGE_KINDS] = {[BK_STAGE_OUTLIERS] = 3, [BK_STAGE_INIT] = 3, [BK_STAGE_ROW_FP] = 1,
                                              [BK_STAGE_ROW_PREFIX] = 3, [BK_STAGE_ROW_INIT] = 3};
    sweep_file("base: run.yaml\ngrid: {seed: [1, 2, 3]}\n");
    expect_stages(right, 3);
}
END_TEST

/* Only if there are two that need them, and not if the sweep says what is kept. */
START_TEST(points_share_targets_by_themselves)
{
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "--set store.keep=shared"), 4);
    sweep_file("base: run.yaml\ngrid: {seed: [1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "store.keep"), 0);
    sweep_plan();
    ck_assert_int_eq(sweep_planned("targets"), 0);
    sweep_file("base: run.yaml\nset: {store.keep: rolling}\ngrid: {train.epochs: [0, 1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "store.keep=shared"), 0);
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "store.keep=shared"), 2);
    e2e_brick(0, "run run.yaml --set train.epochs=1 --out a/epochs=1"); /* with targets of its own */
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "store.keep=shared"), 0);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_made("targets"), 0);
}
END_TEST

/* A sweep that gets another value needs no stage anew and runs the new points alone. */
START_TEST(sweep_with_one_more_value_shares_stages_and_points)
{
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_replace("sweep.yaml", "[1, 2]", "[1, 2, 3]");
    sweep_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) ck_assert_int_eq(sweep_planned(bk_stage_name((bk_stage_kind)k)), 0);
    ck_assert_int_eq(sweep_planned("train"), 2);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("err", ": started"), 2);
    ck_assert_int_eq(sweep_made_in_all(), 6); /* outliers, init, targets, three rows */
}
END_TEST

START_TEST(plan_touches_nothing)
{
    sweep_file(SWEEP_FOUR);
    char *before = e2e_listing(".");
    e2e_brick(0, "plan sweep.yaml");
    e2e_remove("out");
    e2e_remove("err");
    char *after = e2e_listing(".");
    ck_assert_str_eq(before, after);
    ck_assert(!bk_exists("a") && !bk_exists("cache") && !bk_exists("runs"));
    free(before);
    free(after);
}
END_TEST

/* The lines of the plan's tree that begin so. */
static int lines_of_tree(const char *start)
{
    char words[64], *text = e2e_text("out"), *tree = strstr(text, "\ntree\n");
    ck_assert_ptr_nonnull(tree);
    e2e_write("tree", tree);
    free(text);
    snprintf(words, sizeof words, "\n%s", start);
    return sweep_count("tree", words);
}

START_TEST(plan_prints_what_hangs_on_what)
{
    static const char *const start[] = {"  rows fp  1 to make, ",    "  outliers ",   "    rows fp-prefix  1 to make, ", "    init ",
                                        "      rows init  1 to make, ", "    targets ", "      epochs=1,lr_quant=0.001  train ",
                                        "      epochs=2,lr_quant=0.01  train "};
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "plan sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("out", "sweep.yaml: 4 points of run.yaml in a\n"), 1);
    for (size_t i = 0; i < sizeof start / sizeof start[0]; i++) ck_assert_msg(lines_of_tree(start[i]) == 1, "%s", start[i]);
    ck_assert_int_eq(sweep_count("out", "  4 points  to make, "), 3); /* outliers, init, targets */
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_brick(0, "plan sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("out", "  4 points  there\n"), 3);
    ck_assert_int_eq(lines_of_tree("      epochs=2,lr_quant=0.01  done\n"), 1);
}
END_TEST

static const bk_json *stage_in(const bk_json *tree, const char *stage)
{
    for (size_t i = 0; i < bk_json_size(tree); i++)
        if (!strcmp(bk_json_str(bk_json_get(bk_json_at(tree, i), "stage"), ""), stage)) return bk_json_at(tree, i);
    ck_abort_msg("no %s", stage);
}

START_TEST(plan_gives_the_tree_as_json)
{
    sweep_file(SWEEP_FOUR);
    sweep_plan();
    char *text = e2e_text("plan");
    bk_json *o = sweep_parse(text);
    const bk_json *tree = bk_json_get(o, "tree"), *outliers = stage_in(tree, "outliers"), *init = stage_in(tree, "init");
    ck_assert_uint_eq(bk_json_size(tree), 6);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(outliers, "parent")), BK_JSON_NULL);
    ck_assert_str_eq(bk_json_str(bk_json_get(init, "parent"), "?"), bk_json_str(bk_json_get(outliers, "id"), "??"));
    ck_assert_uint_eq(bk_json_size(bk_json_get(init, "points")), 4);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(init, "points"), 3), "?"), "epochs=2,lr_quant=0.01");
    ck_assert(bk_json_bool(bk_json_get(init, "to_make"), false));
    ck_assert(!bk_json_bool(bk_json_get(init, "there"), true));
    bk_json_free(o);
    free(text);
}
END_TEST

/* --- ways to run --- */

START_TEST(jobs_and_exclude_of_the_file_are_heeded)
{
    sweep_file(SWEEP_FOUR "jobs: 2\nexclude: [{train.epochs: 2, train.lr_quant: 1e-3}, {train.epochs: 1, train.lr_quant: 1e-2}]\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("2 points in a, 0 are there, 2 at a time");
    sweep_expect_cell("a", 0, "point", "epochs=1,lr_quant=0.001");
    sweep_expect_cell("a", 1, "point", "epochs=2,lr_quant=0.01");
    ck_assert(!bk_exists("a/epochs=2,lr_quant=0.001"));
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 1");
    e2e_said("2 points in a, 2 are there, 1 at a time");
}
END_TEST

START_TEST(parallel_points_give_the_same_results)
{
    sweep_file(SWEEP_FOUR);
    sweep_reference();
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 3");
    sweep_expect_same("full", "a");
    e2e_same_tree("full-cache", "cache");
    ck_assert_int_eq(sweep_made_in_all(), 6);
}
END_TEST

START_TEST(listed_commands_give_the_same_results)
{
    sweep_file("base: run.yaml\nset: {data.training.text: \"it's $HOME.txt\"}\ngrid:\n  prefix.mode: [[1], none]\n  "
               "train.lr_quant: [1e-3, 1e-2]\n");
    char *text = e2e_text("../m/train.txt");
    e2e_write("it's $HOME.txt", text);
    free(text);
    sweep_reference();
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(sweep_count("out", "\n"), 4);
    ck_assert_int_eq(system("cp out list; cd / && sh -e $OLDPWD/list >/dev/null 2>&1"), 0);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    sweep_expect_same("full", "a");
}
END_TEST

/* --- seeds, halving --- */

START_TEST(seeds_have_mean_and_deviation)
{
    sweep_file("base: run.yaml\ngrid: {train.lr_quant: [1e-3, 1e-2], seed: [1, 2, 3]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --json");
    char *text = e2e_text("out");
    bk_json *o = sweep_parse(text);
    const bk_json *seeds = bk_json_get(o, "seeds");
    ck_assert_uint_eq(bk_json_size(seeds), 2);
    for (size_t i = 0; i < 2; i++) {
        const bk_json *g = bk_json_at(seeds, i);
        int first = !strcmp(bk_json_str(bk_json_get(g, "train.lr_quant"), ""), "0.001") ? 0 : 3;
        double sum = 0, squares = 0, x[3];
        for (int k = 0; k < 3; k++) {
            char *v = sweep_cell("a", first + k, "ppl_final");
            x[k] = strtod(v, NULL);
            sum += x[k];
            free(v);
        }
        for (int k = 0; k < 3; k++) squares += (x[k] - sum / 3) * (x[k] - sum / 3);
        ck_assert_int_eq(bk_json_int(bk_json_get(g, "n"), 0), 3);
        ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_mean"), 0), sum / 3, 1e-9 * sum);
        ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_sd"), 0), sqrt(squares / 2), 1e-9 * sum);
    }
    bk_json_free(o);
    free(text);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("out", "over seeds"), 1);
}
END_TEST

START_TEST(run_stopped_after_a_block_goes_on_to_the_same_bytes)
{
    e2e_brick(0, "run run.yaml --out full");
    e2e_brick(0, "run run.yaml --out a --stop-after 1");
    e2e_said("--resume goes on");
    ck_assert(!bk_exists("a/summary.json"));
    ck_assert_int_eq(sweep_count("a/metrics.jsonl", "\"block\": 1"), 0);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(halving_lets_the_better_half_go_on)
{
    sweep_file(
        "base: run.yaml\nzip: {train.lr_quant: [1e-7, 1e-3, 1e-2, 3e-3], train.lr_weight: [1e-7, 1e-3, 1e-4, 3e-4]}\n");
    sweep_reference();
    e2e_append("sweep.yaml", "halving: {blocks: [1], keep: 0.5}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"done\""), 2);
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"stopped\""), 2);
    sweep_expect_cell("a", 2, "status", "stopped"); /* rates that its loss jumps at */
    for (int i = 0; i < 4; i++) {
        char *status = sweep_cell("a", i, "status"), *here = sweep_cell("a", i, "ppl_final"), *there = sweep_cell("full", i, "ppl_final");
        ck_assert_str_eq(here, !strcmp(status, "done") ? there : "null");
        free(status);
        free(here);
        free(there);
    }
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"stopped\""), 2);
    e2e_brick(2, "sweep sweep.yaml --out a --list");
    e2e_said("halving");
}
END_TEST

/* It is compared with the others and takes one of their places, but is not dropped: the worst of four here. */
START_TEST(halving_keeps_what_is_done)
{
    sweep_file(
        "base: run.yaml\nzip: {train.lr_quant: [1e-7, 1e-3, 1e-2, 3e-3], train.lr_weight: [1e-7, 1e-3, 1e-4, 3e-4]}\n"
        "halving: {blocks: [1], keep: 0.25}\n");
    e2e_brick(0, "run run.yaml --set train.lr_quant=1e-2 --set train.lr_weight=1e-4 --out a/lr_quant=0.01,lr_weight=0.0001");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("4 points in a, 1 are there");
    e2e_silent("lr_quant=0.01,lr_weight=0.0001: st"); /* arted, opped */
    sweep_expect_cell("a", 2, "status", "done");
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"done\""), 2);
    ck_assert_int_eq(sweep_count("a/results.jsonl", "\"status\": \"stopped\""), 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_sweep");
    TCase *t = tcase_create("sweep");
    tcase_set_timeout(t, 240);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, stages_are_made_as_often_as_the_plan_says);
    tcase_add_test(t, every_seed_has_stages_of_its_own);
    tcase_add_test(t, points_share_targets_by_themselves);
    tcase_add_test(t, sweep_with_one_more_value_shares_stages_and_points);
    tcase_add_test(t, plan_touches_nothing);
    tcase_add_test(t, plan_prints_what_hangs_on_what);
    tcase_add_test(t, plan_gives_the_tree_as_json);
    tcase_add_test(t, jobs_and_exclude_of_the_file_are_heeded);
    tcase_add_test(t, parallel_points_give_the_same_results);
    tcase_add_test(t, listed_commands_give_the_same_results);
    tcase_add_test(t, seeds_have_mean_and_deviation);
    tcase_add_test(t, run_stopped_after_a_block_goes_on_to_the_same_bytes);
    tcase_add_test(t, halving_lets_the_better_half_go_on);
    tcase_add_test(t, halving_keeps_what_is_done);
    suite_add_tcase(s, t);
    return run_suite(s);
}
