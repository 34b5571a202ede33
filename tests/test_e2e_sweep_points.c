/* Points of a sweep that fail, are refused or were damaged: each is told, and the others come to their ends. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/run.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/e2e_sweep.h"
#include "tests/suite.h"

START_TEST(failed_point_is_told_and_the_others_run)
{
    sweep_file("base: run.yaml\ngrid: {data.evaluation.text: [short.txt, ../m/eval.txt]}\n");
    e2e_write("short.txt", "no");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("text=short.txt: failed (exit 2): ");
    e2e_said("1 of 2 points failed");
    sweep_expect_cell("a", 0, "status", "failed");
    sweep_expect_cell("a", 0, "exit_code", "2");
    sweep_expect_cell("a", 1, "status", "done");
    char *why = sweep_cell("a", 0, "message");
    ck_assert_msg(strstr(why, "short.txt"), "%s", why);
    free(why);
    char *text = e2e_text("../m/eval.txt");
    e2e_write("short.txt", text);
    free(text);
    e2e_brick(0, "sweep sweep.yaml --out a"); /* tried again */
    ck_assert_int_eq(sweep_count("err", ": started"), 1);
    sweep_expect_cell("a", 0, "status", "done");
}
END_TEST

START_TEST(a_sweep_and_a_config_taken_for_one_another_are_told)
{
    sweep_file("base: run.yaml\ngrid: {seed: [1, 2]}\n");
    e2e_brick(2, "run sweep.yaml --out a");
    e2e_said("sweep.yaml: this is a sweep: brick sweep sweep.yaml");
    e2e_brick(2, "sweep run.yaml --out a");
    e2e_said("this is the config of one run: brick run run.yaml");
    e2e_brick(2, "sweep sweep.yaml --out a --set seed=3");
    e2e_said("under set:");
}
END_TEST

/* Values whose gradients leave f32. Where nothing is trained, that is no failure. */
START_TEST(point_that_came_to_nothing_stays_failed_and_is_not_ranked)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < s->cfg.layers; l++)
        for (int64_t i = 0; i < s->cfg.hidden * s->cfg.inter; i++) s->block[l].w[BK_W_DOWN][i] *= 1e25f;
    e2e_synth_write(s, "m");
    e2e_config("m", "store: {dtype: f32}\n");
    sweep_file("base: run.yaml\nset: {prefix.mode: none}\ngrid: {train.epochs: [1, 0]}\n");
    e2e_brick(4, "sweep sweep.yaml --out a");
    e2e_said("epochs=1: failed (exit 4): no block could be trained");
    e2e_said("1 of 2 points failed; runs that came to their end without a result stay as they are");
    e2e_brick(4, "sweep sweep.yaml --out a --json");
    e2e_silent(": started");
    sweep_expect_cell("a", 0, "status", "failed");
    sweep_expect_cell("a", 1, "status", "done");
    char *text = e2e_text("out");
    bk_json *o = sweep_parse(text);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ranking")), 1);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(o, "ranking"), 0), ""), "epochs=0");
    bk_json_free(o);
    free(text);
    e2e_append("sweep.yaml", "exclude: [{train.epochs: 0}]\n");
    e2e_remove("a/epochs=1"); /* as it is told to */
    e2e_brick(4, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_count("err", ": started"), 1);
}
END_TEST

START_TEST(what_is_wrong_with_a_point_is_said_before_any_runs)
{
    sweep_file("base: run.yaml\ngrid: {data.evaluation.text: [../m/eval.txt, none.txt]}\n");
    e2e_brick(3, "sweep sweep.yaml --out a");
    e2e_said("none.txt");
    e2e_silent(": started");
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1, x]}\n");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("sweep.yaml:2:26: train.epochs");
    e2e_brick(2, "plan sweep.yaml");
    e2e_said("sweep.yaml:2:26: train.epochs");
}
END_TEST

/* Values that a config may have, but not with this model. */
static const struct {
    const char *axis, *said;
} misfits[] = {{"prefix.mode: [none, [99999]]", "99999"},
               {"data.evaluation.seqlen: [32, 5000]", "data.evaluation.seqlen"},
               {"quant.skip: [[], [{block: 77}]]", "77"},
               {"rotation.r4_group: [0, 7]", "7"},
               {"scheme: [W4A4KV4-static, W4A16-g7]", "quantizers do not fit"}};

START_TEST(what_a_run_would_refuse_at_once_is_refused_of_a_point)
{
    char yaml[256];
    snprintf(yaml, sizeof yaml, "base: run.yaml\nset: {train.epochs: 0}\ngrid: {%s}\n", misfits[_i].axis);
    sweep_file(yaml);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said(misfits[_i].said);
    e2e_said("of sweep.yaml)");
    e2e_silent(": started");
    e2e_brick(2, "plan sweep.yaml");
    e2e_said(misfits[_i].said);
    e2e_said("of sweep.yaml)");
}
END_TEST

START_TEST(folder_of_another_config_is_refused_before_any_runs)
{
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_replace("run.yaml", "seed: 2", "seed: 3");
    e2e_replace("sweep.yaml", "[1, 2]", "[3, 2]");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("a/epochs=2,lr_quant=0.001 belongs to another config: seed is 2 there and 3 here");
    e2e_silent(": started");
}
END_TEST

/* The others come to their ends; what is wrong is said by the one that it is wrong with. */
START_TEST(folder_with_an_unreadable_config_is_a_failure_of_its_point)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_write("a/epochs=0/config.yaml", "model: [\n");
    e2e_replace("sweep.yaml", "[0, 1]", "[0, 1, 2]");
    e2e_brick(0, "plan sweep.yaml --out a");
    e2e_brick(3, "sweep sweep.yaml --out a --jobs 2");
    e2e_said("epochs=0: failed (exit 3): a/epochs=0/config.yaml:");
    e2e_said("1 of 3 points failed");
    sweep_expect_cell("a", 0, "status", "failed");
    sweep_expect_cell("a", 1, "status", "done");
    sweep_expect_cell("a", 2, "status", "done");
    e2e_remove("a/epochs=0/config.yaml");
    e2e_brick(3, "sweep sweep.yaml --out a");
    e2e_said("epochs=0: failed (exit 3): a/epochs=0/config.yaml:");
}
END_TEST

static void another_number(void)
{
    e2e_replace("a/epochs=1/summary.json", "\"final\": ", "\"final\": 1");
}

static void no_sums(void)
{
    e2e_remove("a/epochs=1/SHA256SUMS");
}

static void changed_metrics(void)
{
    e2e_flip("a/epochs=1/metrics.jsonl", 40);
}

static void shard_cut_off(void)
{
    struct stat info;
    ck_assert_int_eq(stat("a/epochs=1/model/model-00001-of-00003.safetensors", &info), 0);
    ck_assert_int_eq(truncate("a/epochs=1/model/model-00001-of-00003.safetensors", info.st_size - 1), 0);
}

static void shard_gone(void)
{
    e2e_remove("a/epochs=1/model/model-00002-of-00003.safetensors");
}

static const struct {
    void (*spoil)(void);
    const char *said;
} spoilt[] = {{another_number, "summary.json: was changed or damaged"},
              {no_sums, "SHA256SUMS: is missing"},
              {changed_metrics, "metrics.jsonl: was changed or damaged"},
              {shard_cut_off, "model-00001-of-00003.safetensors"},
              {shard_gone, "model-00002-of-00003.safetensors: is missing"}};

START_TEST(finished_point_that_was_damaged_is_told_and_made_again)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_copy_tree("a", "full");
    spoilt[_i].spoil();
    sweep_plan();
    ck_assert_int_eq(sweep_planned("train"), 1);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said(spoilt[_i].said);
    e2e_said("epochs=1: started");
    e2e_silent("epochs=0: started");
    sweep_expect_same("full", "a");
    e2e_same_run("full/epochs=1", "a/epochs=1");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
}
END_TEST

/* To save disk, once the numbers are known. */
START_TEST(model_that_was_removed_is_not_missed)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_remove("a/epochs=1/model");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    sweep_expect_cell("a", 1, "status", "done");
}
END_TEST

static const char *const damage[][3] = {{"seed: 2", "seed: 3", "belongs to another config: seed is 3 there and 2 here"},
                                        {"model: ", "model: [", "ended without a result: a/epochs=200/config.yaml:"}};

START_TEST(folder_that_is_spoilt_under_way_is_a_failure_of_its_point)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [200, 1]}\n");
    pid_t pid = sweep_begin("");
    sweep_wait_until("a/epochs=200/metrics.jsonl", "epoch", 1);
    e2e_replace("a/epochs=200/config.yaml", damage[_i][0], damage[_i][1]);
    ck_assert_int_ne(e2e_wait(pid), 0);
    e2e_said("epochs=200: failed");
    e2e_said(damage[_i][2]);
    e2e_silent("interrupted");
    sweep_expect_cell("a", 0, "status", "failed");
    sweep_expect_cell("a", 1, "status", "done");
}
END_TEST

/* The table would mix results of two texts. */
START_TEST(points_of_a_text_that_has_changed_are_refused)
{
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    char *text = e2e_text("../m/train.txt");
    e2e_write("train.txt", text);
    free(text);
    e2e_replace("run.yaml", "training:    {text: ../m/train.txt", "training:    {text: train.txt");
    e2e_remove("a");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_flip("train.txt", 0);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("was made with another training text: its bytes have changed");
    ck_assert_int_eq(sweep_made("outliers"), 1);
}
END_TEST

START_TEST(folder_of_a_run_is_no_place_for_a_sweep)
{
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "run run.yaml --out a");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("a is the folder of a run");
    ck_assert(!bk_exists("a/results.csv"));
}
END_TEST

/* After the last block there is nothing to drop: two blocks here. */
START_TEST(halving_behind_the_last_block_is_refused)
{
    sweep_file(SWEEP_FOUR "halving: {blocks: [1, 2]}\n");
    for (int i = 0; i < 2; i++) {
        e2e_brick(2, "%s sweep.yaml --out a", i ? "plan" : "sweep");
        e2e_said("halving.blocks: 2, but the model has 2 blocks");
        e2e_silent(": started");
    }
}
END_TEST

START_TEST(folder_that_is_no_name_is_refused)
{
    char line[4000] = "sweep.yaml --out ";
    memset(line + strlen(line), 'x', 3950);
    sweep_file(SWEEP_FOUR);
    for (int i = 0; i < 2; i++) {
        const char *verb = i ? "plan" : "sweep";
        e2e_brick(2, "%s sweep.yaml --out=", verb);
        e2e_said("--out is empty");
        e2e_brick(2, "%s %s", verb, line);
        e2e_said("--out is too long");
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_sweep_points");
    TCase *t = tcase_create("sweep");
    tcase_set_timeout(t, 240);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, failed_point_is_told_and_the_others_run);
    tcase_add_test(t, a_sweep_and_a_config_taken_for_one_another_are_told);
    tcase_add_test(t, point_that_came_to_nothing_stays_failed_and_is_not_ranked);
    tcase_add_test(t, what_is_wrong_with_a_point_is_said_before_any_runs);
    tcase_add_loop_test(t, what_a_run_would_refuse_at_once_is_refused_of_a_point, 0, sizeof misfits / sizeof misfits[0]);
    tcase_add_test(t, folder_of_another_config_is_refused_before_any_runs);
    tcase_add_test(t, folder_with_an_unreadable_config_is_a_failure_of_its_point);
    tcase_add_loop_test(t, finished_point_that_was_damaged_is_told_and_made_again, 0, sizeof spoilt / sizeof spoilt[0]);
    tcase_add_test(t, model_that_was_removed_is_not_missed);
    tcase_add_loop_test(t, folder_that_is_spoilt_under_way_is_a_failure_of_its_point, 0, 2);
    tcase_add_test(t, points_of_a_text_that_has_changed_are_refused);
    tcase_add_test(t, folder_of_a_run_is_no_place_for_a_sweep);
    tcase_add_test(t, halving_behind_the_last_block_is_refused);
    tcase_add_test(t, folder_that_is_no_name_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
