/* brick run from end to end: the same results every time, and refusals of what does not belong together. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/lock.h"
#include "io/safetensors.h"
#include "io/sealed.h"
#include "tests/e2e.h"
#include "tests/suite.h"

/* --- the same every time --- */

START_TEST(two_runs_are_the_same_run)
{
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_int_eq(rename("cache", "cache-a"), 0);
    e2e_brick(0, "run run.yaml --out b");
    e2e_same_run("a", "b");
    e2e_same_tree("cache-a", "cache");
}
END_TEST

START_TEST(threads_do_not_change_results)
{
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_int_eq(rename("cache", "cache-a"), 0);
    e2e_brick(0, "run run.yaml --set threads=2 --out b");
    e2e_same_run("a", "b");
    e2e_same_tree("cache-a", "cache");
}
END_TEST

START_TEST(stages_of_another_run_are_taken_over)
{
    e2e_brick(0, "run run.yaml --out a");
    char *before = e2e_listing("cache");
    e2e_brick(0, "run run.yaml --out b");
    char *after = e2e_listing("cache");
    ck_assert_str_eq(before, after);
    e2e_same_run("a", "b");
    free(before);
    free(after);
}
END_TEST

START_TEST(runs_at_once_share_their_stages)
{
    pid_t pid[3];
    for (int i = 0; i < 3; i++) pid[i] = e2e_start("run run.yaml --out r%d", i);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(e2e_wait(pid[i]), 0);
    e2e_same_run("r0", "r1");
    e2e_same_run("r0", "r2");
    char *listing = e2e_listing("cache");
    ck_assert_ptr_null(strstr(listing, ".partial"));
    free(listing);
}
END_TEST

/* Room is asked for what the texts give: 10^6 windows of this length would take 256 GB. */
START_TEST(a_text_with_less_than_was_asked_for_is_run)
{
    e2e_brick(0, "run run.yaml --set data.evaluation.windows=1000000 --set data.evaluation.seqlen=900 --out a");
    e2e_said("evaluation");
}
END_TEST

static const char *const ways[] = {"W4A4KV4-static", "W4A4KV4-dynamic", "W2A8KV4-static-asym", "W3A16-g32", "W2A16", "W8A16"};

START_TEST(eval_of_the_result_is_the_summary)
{
    e2e_brick(0, "run run.yaml --set scheme=%s --out a", ways[_i]);
    double final = e2e_number("a/summary.json", "ppl", "final");
    e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), final);
}
END_TEST

/* Gains that were trained are part of the result; left alone they are the ones that fusing made of them. */
START_TEST(gains_of_norms_are_trained_on_request)
{
    const char *const config[] = {"false", "true"};
    for (int norms = 0; norms < 2; norms++) {
        bk_error err = {0};
        bk_st_set *model;
        float gain[128];
        bool ones = true;
        e2e_brick(0, "run run.yaml --set scheme=W3A16-g32 --set train.norms=%s --set train.keep=last --out a%d", config[norms], norms);
        char dir[16];
        snprintf(dir, sizeof dir, "a%d/model", norms);
        ck_assert_int_eq(bk_st_open_folder(dir, &model, &err), BK_OK);
        const bk_st_tensor *t = bk_st_find(model, "model.layers.1.input_layernorm.weight");
        ck_assert(t && t->count <= 128);
        ck_assert_int_eq(bk_st_read_f32(model, t, 0, t->count, gain, &err), BK_OK);
        for (int64_t i = 0; i < t->count; i++) ones = ones && gain[i] == 1;
        ck_assert_int_eq(ones, !norms);
        bk_st_close(model);
        e2e_brick(0, "eval --model a%d --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json", norms);
        snprintf(dir, sizeof dir, "a%d/summary.json", norms);
        ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number(dir, "ppl", "final"));
    }
}
END_TEST

START_TEST(rows_of_weights_alone_speak_of_no_ranges)
{
    e2e_brick(0, "run run.yaml --set scheme=W2A16-g32 --set evaluate=[ablation] --out a");
    const char *const rows[] = {"fp", "fp+prefix", "RTN", "+rotation", "+search", "+prefix", "+training"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) ck_assert_double_gt(e2e_row("a", rows[i]), 1);
    char *summary = e2e_text("a/summary.json");
    ck_assert_ptr_null(strstr(summary, "dynamic"));
    ck_assert_ptr_null(strstr(summary, "static"));
    free(summary);
}
END_TEST

/* epochs 0, no learning rate and the initialisation are the same model, to the bit. */
START_TEST(rows_that_nobody_asked_for_are_not_computed)
{
    e2e_brick(0, "run run.yaml --out whole");
    e2e_remove("cache");
    e2e_brick(0, "run run.yaml --set evaluate=[] --out a");
    ck_assert_double_eq(e2e_row("a", "+training"), e2e_row("whole", "+training"));
    ck_assert_double_eq(e2e_row("a", "fp"), e2e_row("whole", "fp"));
    ck_assert_int_ne(system("grep -q -e initialised -e fp+prefix a/summary.json"), 0);
    ck_assert_int_ne(system("ls cache | grep -q row-init"), 0);
}
END_TEST

START_TEST(training_that_changes_nothing_is_the_initialisation)
{
    e2e_brick(0, "run run.yaml --set scheme=%s --set train.epochs=0 --out none", ways[_i]);
    e2e_brick(0, "run run.yaml --set scheme=%s --set train.lr_quant=0 --set train.lr_weight=0 --out still", ways[_i]);
    e2e_brick(0, "run run.yaml --set scheme=%s --set train.lr_quant=0 --set train.lr_weight=0 --set train.keep=last --out last", ways[_i]);
    e2e_same_tree("none/model", "still/model");
    e2e_same_tree("none/model", "last/model");
    double init = e2e_number("none/summary.json", "ppl", "init");
    ck_assert_double_finite(init);
    ck_assert_double_eq(init, e2e_number("none/summary.json", "ppl", "final"));
    ck_assert_double_eq(init, e2e_number("still/summary.json", "ppl", "init"));
    ck_assert_double_eq(init, e2e_number("still/summary.json", "ppl", "final"));
}
END_TEST

/* Each quantizer of weights: what the row of the initialised model has is what is written, and what is read back. */
START_TEST(without_training_every_quantizer_gives_the_initialised_model)
{
    static const char *const weights[] = {"lsq", "lwc", "adaround", "signround"};
    for (int asym = 0; asym < 2; asym++) {
        const char *scheme = asym ? "W3A16-g32" : "W4A4KV4-static";
        e2e_remove("a");
        e2e_brick(0, "run run.yaml --set scheme=%s --set quant.weight.quantizer=%s --set train.epochs=0 --out a", scheme, weights[_i]);
        double init = e2e_number("a/summary.json", "ppl", "init");
        ck_assert_double_finite(init);
        ck_assert_double_eq(init, e2e_number("a/summary.json", "ppl", "final"));
        e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
        ck_assert_double_eq(e2e_number("out", "ppl", NULL), init);
    }
}
END_TEST

/* Learned steps of activations are stored ones: they want ranges, and are measured. */
START_TEST(learned_steps_of_activations_are_measured)
{
    static const char sets[] = "--set quant.activation.quantizer=lsq --set quant.key.quantizer=lsq --set quant.value.quantizer=lsq "
                               "--set init.search=false --set train.epochs=0";
    e2e_brick(0, "run run.yaml %s --out a", sets);
    e2e_brick(0, "run run.yaml --set init.search=false --set train.epochs=0 --out b");
    ck_assert_double_eq(e2e_number("a/summary.json", "ppl", "final"), e2e_number("b/summary.json", "ppl", "final"));
}
END_TEST

START_TEST(a_single_step_is_training)
{
    e2e_brick(0, "run run.yaml --set train.epochs=1 --set train.batch=6 --out a");
    char *metrics = e2e_text("a/metrics.jsonl"), *line = metrics;
    for (int block = 0; block < 2; block++) {
        char want[64];
        snprintf(want, sizeof want, "{\"block\": %d, \"epoch\": 1, \"step\": 1, ", block);
        ck_assert_msg(strstr(line, want) != NULL, "%s", metrics);
        line = strchr(line, '\n') + 1;
    }
    ck_assert_str_eq(line, "");
    free(metrics);
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

/* --- a folder belongs to one run --- */

START_TEST(a_finished_run_is_left_alone)
{
    e2e_brick(0, "run run.yaml --out a");
    char *before = e2e_listing("a");
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("finished");
    e2e_brick(0, "run run.yaml --out a --resume --set threads=2");
    e2e_said("finished");
    char *after = e2e_listing("a");
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}
END_TEST

static void finished_is_refused(const char *file, const char *words)
{
    char *text = e2e_text(file);
    e2e_append(file, " ");
    e2e_brick(2, "run run.yaml --out a");
    e2e_said(words);
    e2e_write(file, text);
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("finished");
    free(text);
}

/* Who changes a quantizer must not be given what the old one made. */
START_TEST(another_build_makes_stages_of_its_own)
{
    e2e_brick(0, "run run.yaml --out a");
    e2e_brick(0, "run run.yaml --out b");
    e2e_said("initialise: taken from cache/init-");
    e2e_stop_at("rename:12", SIGKILL);
    e2e_wait(e2e_start("run run.yaml --out c"));
    e2e_stop_at(NULL, 0);
    e2e_other_build();
    e2e_brick(0, "run run.yaml --out d");
    e2e_silent("taken from");
    e2e_brick(0, "run run.yaml --out c --resume");
    e2e_said("c was begun by another build of brick");
    e2e_same_tree("a/model", "d/model");
}
END_TEST

START_TEST(a_finished_run_is_no_result_of_inputs_that_changed)
{
    static const char *const own[] = {"train", "train", "calib", "eval"};
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
    for (int i = 0; i < 4; i++) {
        char was[64], is[64];
        snprintf(was, sizeof was, "../m/%s.txt", own[i]);
        snprintf(is, sizeof is, "m/%s.txt", own[i]);
        e2e_replace("run.yaml", was, is);
    }
    e2e_brick(0, "run run.yaml --out a");
    e2e_flip("m/model.safetensors", -1);
    e2e_brick(2, "run run.yaml --out a");
    e2e_said("model_sha256");
    e2e_flip("m/model.safetensors", -1);
    finished_is_refused("m/train.txt", "another detection text");
    finished_is_refused("m/calib.txt", "another calibration text");
    finished_is_refused("m/eval.txt", "another evaluation text");
}
END_TEST

/* A run that was ended when its blocks were trained, in the folder a. */
static void unfinished(void)
{
    e2e_brick(0, "run run.yaml --out full");
    e2e_remove("cache");
    e2e_stop_at("rename:21", 9);
    e2e_brick(137, "run run.yaml --out a");
    e2e_stop_at(NULL, 0);
    ck_assert(bk_exists("a/checkpoint.h5") && !bk_exists("a/summary.json"));
}

/* All files of the folder a but the log, which tells of the refusal. */
static char *all_but_log(void)
{
    char *text = e2e_listing("a"), *name = strstr(text, "  log.txt\n");
    if (name) memset(name - 64, '-', 64);
    return text;
}

static void refused(const char *words, const char *arguments)
{
    char *before = all_but_log();
    e2e_brick(2, "run run.yaml --out a %s", arguments);
    e2e_said(words);
    char *after = all_but_log();
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}

START_TEST(an_unfinished_run_is_continued_only_when_asked)
{
    unfinished();
    refused("--resume", "");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_said("resuming");
    e2e_same_run("full", "a");
}
END_TEST

static const struct {
    const char *set, *named;
} others[] = {{"seed=3", "seed is 2 there and 3 here"},
              {"scheme=W4A8KV4-static", "scheme"},
              {"quant.activation.bits=8", "quant.activation.bits"},
              {"train.lr_quant=2e-3", "train.lr_quant"},
              {"train.epochs=3", "train.epochs"},
              {"prefix.mode=none", "prefix.mode"},
              {"prefix.mode=[46]", "prefix.mode"},
              {"data.training.samples=5", "data.training.samples"},
              {"rotation.r4=false", "rotation.r4"},
              {"store.dtype=f32", "store.dtype"},
              {"backend=ref", "backend"}};

START_TEST(resuming_with_another_config_names_the_key)
{
    unfinished();
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char words[128];
        snprintf(words, sizeof words, "--resume --set %s", others[i].set);
        refused(others[i].named, words);
    }
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(resuming_with_another_model_is_refused)
{
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
    unfinished();
    e2e_flip("m/model.safetensors", -1);
    refused("model_sha256", "--resume");
    e2e_flip("m/model.safetensors", -1);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

static const struct {
    const char *key, *file, *name;
} texts[] = {{"detection:   {text: ", "train.txt", "detection"},
             {"training:    {text: ", "train.txt", "training"},
             {"calibration: {text: ", "calib.txt", "calibration"},
             {"evaluation:  {text: ", "eval.txt", "evaluation"}};

START_TEST(resuming_with_another_text_names_it)
{
    char was[64], is[64];
    snprintf(was, sizeof was, "%s../m/%s", texts[_i].key, texts[_i].file);
    snprintf(is, sizeof is, "%smine.txt", texts[_i].key);
    char *text = e2e_text(strstr(was, "../"));
    e2e_write("mine.txt", text);
    e2e_replace("run.yaml", was, is);
    unfinished();
    e2e_append("mine.txt", "more");
    refused(texts[_i].name, "--resume");
    e2e_write("mine.txt", text);
    free(text);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(resuming_with_another_version_is_refused)
{
    bk_json *o;
    bk_error err = {0};
    unfinished();
    ck_assert_int_eq(bk_sealed_load("a/manifest.json", &o, &err), BK_OK);
    bk_json_set(o, "version", bk_json_of_text("9"));
    ck_assert_int_eq(bk_sealed_save(o, "a/manifest.json", &err), BK_OK);
    bk_json_free(o);
    refused("another version", "--resume");
}
END_TEST

START_TEST(a_folder_in_use_is_refused)
{
    bk_lock lock;
    bk_lock_owner owner;
    bk_error err = {0};
    unfinished();
    ck_assert_int_eq(bk_lock_try(&lock, "a/run.lock", &owner, &err), BK_OK);
    ck_assert_ptr_nonnull(lock.path);
    refused("another brick", "--resume");
    bk_lock_release(&lock);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

/* A run into a folder that is in use before it has a config must not write one. */
START_TEST(two_at_once_leave_one_run)
{
    pid_t one = e2e_start("run run.yaml --out a"), two = e2e_start("run run.yaml --out a");
    int first = e2e_wait(one), second = e2e_wait(two);
    ck_assert_msg((first == 0 && second == 2) || (first == 2 && second == 0) || (first == 0 && second == 0), "exit status %d and %d", first, second);
    e2e_brick(0, "run run.yaml --out b");
    e2e_same_run("a", "b");
}
END_TEST

START_TEST(a_folder_of_others_is_no_run_folder)
{
    ck_assert_int_eq(mkdir("theirs", 0777), 0);
    e2e_write("theirs/notes.txt", "mine\n");
    e2e_brick(2, "run run.yaml --out theirs");
    e2e_said("notes.txt");
    ck_assert(!bk_exists("theirs/config.yaml"));
}
END_TEST

START_TEST(a_block_that_was_taken_away_is_trained_again)
{
    unfinished();
    char *listing = e2e_listing("a/model"), *shard = strstr(listing, "model-00001-");
    char path[128];
    ck_assert_ptr_nonnull(shard);
    snprintf(path, sizeof path, "a/model/%.*s", (int)strcspn(shard, "\n"), shard);
    e2e_remove(path);
    free(listing);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_said("training starts over");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(a_damaged_stage_of_outliers_is_made_anew)
{
    e2e_brick(0, "run run.yaml --out full");
    char *listing = e2e_listing("cache"), *stage = strstr(listing, "outliers-");
    char path[256];
    ck_assert_ptr_nonnull(stage);
    snprintf(path, sizeof path, "cache/%.*s", (int)strcspn(stage, "/\n"), stage);
    size_t n = strlen(path);
    snprintf(path + n, sizeof path - n, "/outliers.json");
    free(listing);
    e2e_write(path, "{\"prefix\": [");
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("made anew");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(a_calibration_text_that_is_not_there_is_an_input_error)
{
    e2e_brick(3, "eval --model ../m --text ../m/eval.txt --seqlen 64 --windows 1 --calib nowhere.txt");
    e2e_said("nowhere.txt");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_run");
    TCase *t = tcase_create("run");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, two_runs_are_the_same_run);
    tcase_add_test(t, threads_do_not_change_results);
    tcase_add_test(t, stages_of_another_run_are_taken_over);
    tcase_add_test(t, runs_at_once_share_their_stages);
    tcase_add_test(t, a_text_with_less_than_was_asked_for_is_run);
    tcase_add_loop_test(t, eval_of_the_result_is_the_summary, 0, sizeof ways / sizeof ways[0]);
    tcase_add_test(t, gains_of_norms_are_trained_on_request);
    tcase_add_test(t, rows_of_weights_alone_speak_of_no_ranges);
    tcase_add_test(t, rows_that_nobody_asked_for_are_not_computed);
    tcase_add_loop_test(t, training_that_changes_nothing_is_the_initialisation, 0, sizeof ways / sizeof ways[0]);
    tcase_add_loop_test(t, without_training_every_quantizer_gives_the_initialised_model, 0, 4);
    tcase_add_test(t, learned_steps_of_activations_are_measured);
    tcase_add_test(t, a_single_step_is_training);
    tcase_add_test(t, a_finished_run_is_left_alone);
    tcase_add_test(t, another_build_makes_stages_of_its_own);
    tcase_add_test(t, a_finished_run_is_no_result_of_inputs_that_changed);
    tcase_add_test(t, an_unfinished_run_is_continued_only_when_asked);
    tcase_add_test(t, resuming_with_another_config_names_the_key);
    tcase_add_test(t, resuming_with_another_model_is_refused);
    tcase_add_loop_test(t, resuming_with_another_text_names_it, 0, sizeof texts / sizeof texts[0]);
    tcase_add_test(t, resuming_with_another_version_is_refused);
    tcase_add_test(t, a_folder_in_use_is_refused);
    tcase_add_test(t, two_at_once_leave_one_run);
    tcase_add_test(t, a_folder_of_others_is_no_run_folder);
    tcase_add_test(t, a_block_that_was_taken_away_is_trained_again);
    tcase_add_test(t, a_damaged_stage_of_outliers_is_made_anew);
    tcase_add_test(t, a_calibration_text_that_is_not_there_is_an_input_error);
    suite_add_tcase(s, t);
    return run_suite(s);
}
