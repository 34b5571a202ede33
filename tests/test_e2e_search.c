/* prefix.mode: search from end to end: what is chosen and told, its stage, what is refused. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/stage_kinds.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

/* Counting finds a delimiter and <s> on this model, a search <s> alone: behind it no delimiter is an outlier. */
static void search_config(const char *model, const char *more)
{
    char text[512];
    snprintf(text, sizeof text,
             "prefix: {mode: search, search: {candidates: 6, max_tokens: 2, samples: 1, tau: 0.5%s}}\n", more);
    e2e_config(model, text);
}

/* How often a stage was made since the cache was empty. */
static int made(bk_stage_kind kind)
{
    char words[64];
    int n = 0;
    snprintf(words, sizeof words, "\"stage\": \"%s\"", bk_stage_name(kind));
    char *text = e2e_text("cache/ledger.jsonl");
    for (char *at = text; (at = strstr(at, words)); at++) n++;
    free(text);
    return n;
}

static bk_json *load(const char *pattern)
{
    bk_json *o;
    bk_error err = {0};
    char words[128];
    snprintf(words, sizeof words, "cp %s found.json", pattern);
    ck_assert_int_eq(system(words), 0);
    ck_assert_msg(bk_json_load("found.json", &o, &err) == BK_OK, "%s", err.msg);
    return o;
}

START_TEST(a_run_finds_the_planted_sink)
{
    search_config("../m", _i ? ", objective: ratio" : "");
    e2e_brick(0, "run run.yaml --out a");
    e2e_said(_i ? "searched prefix: takes 256 \"<s>\", ratio " : "searched prefix: takes 256 \"<s>\", error ");
    e2e_said(_i ? "searched prefix: tau leaves " : "searched prefix: none of 6 candidates lowers it further");
    e2e_said("prefix: 1 tokens: 256 \"<s>\"; texts begin at position 1");
    bk_json *o = load("cache/prefix-*/prefix.json");
    const bk_json *step = bk_json_at(bk_json_get(o, "steps"), 0), *left = bk_json_get(o, "rejected");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "prefix")), 1);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "candidates")), 6);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "objective"), ""), _i ? "ratio" : "error");
    ck_assert_int_eq(bk_json_int(bk_json_get(step, "id"), -1), 256);
    ck_assert_str_eq(bk_json_str(bk_json_get(step, "text"), ""), "<s>");
    double after = bk_json_num(bk_json_get(step, "after"), 0);
    ck_assert_double_lt(after, 0.5 * bk_json_num(bk_json_get(step, "before"), 0));
    if (_i) ck_assert_double_eq(bk_json_num(bk_json_get(left, "before"), 0), after);
    if (_i) ck_assert_double_lt(bk_json_num(bk_json_get(left, "after"), 1e9), after);
    bk_json_free(o);
}
END_TEST

START_TEST(two_searches_are_the_same_search)
{
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_int_eq(rename("cache", "cache-a"), 0);
    e2e_brick(0, "run run.yaml --set threads=2 --out b");
    e2e_same_run("a", "b");
    e2e_same_tree("cache-a", "cache");
}
END_TEST

/* What is changed, and how often detection and search were made then. */
static const struct {
    const char *set;
    int detections, searches;
} changes[] = {
    {"train.lr_quant=1e-2", 1, 1},        {"quant.weight.bits=3", 1, 1},   {"prefix.mode=auto", 1, 1},
    {"prefix.search.tau=0.4", 1, 2},      {"scheme=W4A8KV8-static", 1, 2}, {"prefix.search.objective=ratio", 1, 2},
    {"prefix.search.candidates=3", 1, 2}, {"prefix.overlap=true", 1, 2},   {"quant.skip=[{\"block\":0}]", 1, 2},
    {"rotation.r4=false", 1, 2},          {"prefix.threshold=32", 2, 2},
};

START_TEST(a_search_is_made_for_what_it_depends_on)
{
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out a");
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set %s --out b", changes[_i].set);
    ck_assert_int_eq(made(BK_STAGE_OUTLIERS), changes[_i].detections);
    ck_assert_int_eq(made(BK_STAGE_PREFIX), changes[_i].searches);
}
END_TEST

START_TEST(a_search_that_is_there_is_taken)
{
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --out a");
    e2e_brick(0, "run run.yaml --out b");
    e2e_said("[2/5] prefix search: taken from ");
    e2e_silent("searched prefix:");
    e2e_same_run("a", "b");
    /* The detection was damaged: it is made anew, and the search behind it found again. */
    ck_assert_int_eq(system("f=$(ls cache/outliers-*/outliers.json); echo x >>$f"), 0);
    e2e_brick(0, "run run.yaml --out c");
    e2e_said("made anew");
    e2e_same_run("a", "c");
    ck_assert_int_eq(made(BK_STAGE_PREFIX), 1);
}
END_TEST

/* A search whose detection lies in the cache ranks the same candidates as one that made it. */
START_TEST(candidates_do_not_depend_on_who_made_the_detection)
{
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_int_eq(system("mv cache/prefix-* kept"), 0);
    e2e_brick(0, "run run.yaml --out b");
    e2e_said("outliers: taken from ");
    ck_assert_int_eq(system("cmp kept/prefix.json cache/prefix-*/prefix.json"), 0);
}
END_TEST

START_TEST(a_killed_run_ends_as_one_that_was_not)
{
    char at[32];
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --out full");
    for (int n = 4; n <= 9; n++) { /* among them the stage of the search */
        snprintf(at, sizeof at, "rename:%d", n);
        e2e_remove("a");
        e2e_remove("cache");
        e2e_stop_at(at, SIGKILL);
        ck_assert_int_eq(e2e_wait(e2e_start("run run.yaml --out a")), 128 + SIGKILL);
        e2e_stop_at(NULL, 0);
        e2e_brick(0, "run run.yaml --out a --resume");
        e2e_same_run("full", "a");
    }
}
END_TEST

START_TEST(a_model_without_bos_is_searched)
{
    e2e_copy_model();
    e2e_write("m/tokenizer_config.json", "{\"bos_token\": null, \"eos_token\": null, \"add_bos_token\": false}");
    e2e_replace("m/config.json", "\"bos_token_id\": 256", "\"bos_token_id\": null");
    e2e_replace("m/config.json", "\"eos_token_id\": 257", "\"eos_token_id\": null");
    search_config("m", "");
    e2e_brick(0, "run run.yaml --set prefix.search.tau=0 --out a");
    bk_json *o = load("cache/prefix-*/prefix.json");
    const bk_json *candidates = bk_json_get(o, "candidates");
    ck_assert_uint_eq(bk_json_size(candidates), 6);
    for (size_t i = 0; i < 6; i++) ck_assert_int_lt(bk_json_int(bk_json_at(candidates, i), 256), 256);
    bk_json_free(o);
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

START_TEST(a_prefix_that_is_not_worth_it_is_left_out)
{
    search_config("../m", "");
    e2e_brick(0, "run run.yaml --set prefix.search.tau=1 --out a");
    e2e_said("searched prefix: tau leaves 256 \"<s>\"");
    e2e_said("prefix: 0 tokens (none)");
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

static const struct {
    const char *set, *words;
} bad[] = {
    {"scheme=W4A16", "brick: run.yaml: prefix.search.objective: error needs quantized activations, keys or values"},
    {"prefix.search.objective=max", "brick: --set prefix.search.objective: 'max' is not one of error|ratio"},
    {"prefix.search.samples=3", "brick: --set prefix.search.samples: 3 of the 2 windows of data.detection"},
    {"prefix.search.max_tokens=65", "brick: --set prefix.search.max_tokens: 65 is not in the range 1 to 64"},
    {"prefix.search.candidates=0", "brick: --set prefix.search.candidates: 0 is not in the range 1 to 1024"},
    {"prefix.search.tau=-0.1", "brick: --set prefix.search.tau: -0.1 is not in the range 0 to 1"},
    {"prefix.mode=serach", "brick: --set prefix.mode: 'serach' is not one of auto|none|search, did you mean 'search'?"},
    {"data.detection.seqlen=1023",
     "data.detection.seqlen: 1023 tokens behind a prefix of 2 go beyond the model's 1024 positions"},
};

START_TEST(what_cannot_be_searched_is_refused_with_its_place)
{
    search_config("../m", "");
    for (int i = 0; i < 2; i++) {
        e2e_brick(2, "%s run.yaml --set %s", i ? "plan" : "run", bad[_i].set);
        e2e_said(bad[_i].words);
        e2e_silent("samples of");
    }
}
END_TEST

START_TEST(a_config_error_is_told_by_line_and_column)
{
    e2e_config("../m", "prefix:\n  mode: search\n  search: {tau: 2}\n");
    e2e_brick(2, "run run.yaml --out a");
    e2e_said("run.yaml:13:17: prefix.search.tau: 2 is not in the range 0 to 1");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_search");
    TCase *t = tcase_create("search");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, a_run_finds_the_planted_sink, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_test(t, two_searches_are_the_same_search);
    tcase_add_loop_test(t, a_search_is_made_for_what_it_depends_on, 0, sizeof changes / sizeof changes[0]);
    tcase_add_test(t, a_search_that_is_there_is_taken);
    tcase_add_test(t, candidates_do_not_depend_on_who_made_the_detection);
    tcase_add_test(t, a_killed_run_ends_as_one_that_was_not);
    tcase_add_test(t, a_model_without_bos_is_searched);
    tcase_add_test(t, a_prefix_that_is_not_worth_it_is_left_out);
    tcase_add_loop_test(t, what_cannot_be_searched_is_refused_with_its_place, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, a_config_error_is_told_by_line_and_column);
    suite_add_tcase(s, t);
    return run_suite(s);
}
