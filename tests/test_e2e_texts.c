/* Texts, samples, BOS and prefixes given to the program: what is odd is read as it is or refused with its place, and what was done is told. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

START_TEST(text_without_a_window_is_refused)
{
    static const char *const texts[] = {"", "x", "\n\n\n", "fifteen letters"};
    e2e_write("short.txt", texts[_i]);
    e2e_brick(2, "run run.yaml --set data.evaluation.text=short.txt --out a");
    e2e_said("brick: short.txt: evaluation windows: not one window of ");
    e2e_brick(2, "eval --model ../m --text short.txt --seqlen 32");
    e2e_said("brick: short.txt: not one window of 32 tokens: the text has ");
    e2e_brick(2, "run run.yaml --set data.training.text=short.txt --out b");
    e2e_said("short.txt");
    e2e_brick(2, "run run.yaml --set data.calibration.text=short.txt --out c");
    e2e_said("short.txt");
    e2e_brick(2, "run run.yaml --set data.detection.text=short.txt --out d");
    e2e_said("short.txt");
}
END_TEST

START_TEST(line_without_a_text_is_told_by_line_and_column)
{
    e2e_write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\" x}\n");
    e2e_brick(3, "eval --model ../m --text bad.jsonl --seqlen 32");
    e2e_said("brick: bad.jsonl:2:14: ");
    e2e_brick(3, "run run.yaml --set data.evaluation.text=bad.jsonl --out a");
    e2e_said("brick: bad.jsonl:2:14: ");
}
END_TEST

START_TEST(stages_without_a_folder_are_refused_before_anything_is_computed)
{
    setenv("BRICK_CACHE", "/proc/none", 1);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said("BRICK_CACHE");
    e2e_said("/proc/none: cannot create the folder");
    e2e_silent("equivalence");
}
END_TEST

static const char *const prefixed[] = {"eval --model ../m --text ../m/eval.txt", "outliers --model ../m --text ../m/eval.txt", "generate --model ../m --prompt a",
                                       "dump --model ../m --text ../m/eval.txt --sites key --out x.h5"};

START_TEST(prefix_outside_the_vocabulary_is_refused_before_any_work)
{
    e2e_brick(2, "%s --prefix 46,258", prefixed[_i]);
    e2e_said("brick: prefix id 258 is outside the vocabulary of 258 tokens");
    e2e_brick(2, "%s run.yaml --set prefix.mode=[46,258]", _i % 2 ? "plan" : "run");
    e2e_said("brick: --set prefix.mode: prefix id 258 is outside");
    e2e_silent("samples of");
}
END_TEST

START_TEST(fewer_samples_than_asked_are_reported)
{
    char *text = e2e_text("../m/train.txt");
    text[4 * 32 + 5] = 0;
    e2e_write("short.txt", text);
    free(text);
    e2e_brick(0, "run run.yaml --set data.training.text=short.txt --out a");
    e2e_said("of 8 samples");
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
    e2e_brick(2, "run run.yaml --set data.training.text=short.txt --strict --out b");
    e2e_said("strict");
}
END_TEST

static const struct {
    const char *tokenizer_config, *bos;
} policies[] = {{"{\"bos_token\": null, \"add_bos_token\": false}", "none"},
                {"{\"bos_token\": null, \"add_bos_token\": true}", "none"},
                {"{\"bos_token\": \"<s>\", \"add_bos_token\": false}", "none"},
                {"{\"bos_token\": \"<s>\", \"add_bos_token\": true}", "added"},
                {"{\"bos_token\": \"<s>\"}", "none"}};

/* Texts of a run, whatever for, and `eval` begin alike, and say how. */
START_TEST(one_policy_of_bos_is_told_and_kept)
{
    static const char *const texts[] = {"training", "calibration", "evaluation"};
    e2e_copy_model();
    e2e_write("m/tokenizer_config.json", policies[_i].tokenizer_config);
    e2e_brick(0, "run run.yaml --set prefix.mode=none --out a");
    char *log = e2e_text("err"), want[32];
    snprintf(want, sizeof want, "bos: %s)", policies[_i].bos);
    for (int k = 0; k < 3; k++) {
        char *line = strstr(log, texts[k]), *end = line ? strchr(line, '\n') : NULL;
        ck_assert_msg(end && end - line > (long)strlen(want) && !strncmp(end - strlen(want), want, strlen(want)), "%s, want %s:\n%s", texts[k], want, log);
    }
    free(log);
    e2e_brick(0, "eval --model m --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1");
    char *out = e2e_text("out");
    snprintf(want, sizeof want, "bos         %s\n", policies[_i].bos);
    ck_assert_msg(strstr(out, want) != NULL, "%s", out);
    free(out);
    e2e_brick(0, "eval --model m --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number("a/summary.json", "ppl", "fp"));
}
END_TEST

START_TEST(a_tokenizer_without_bos_is_legal)
{
    e2e_copy_model();
    e2e_write("m/tokenizer_config.json", "{\"bos_token\": null, \"add_bos_token\": false}");
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

START_TEST(a_tokenizer_larger_than_the_embedding_is_refused)
{
    e2e_copy_model();
    e2e_replace("m/tokenizer.json", "\"added_tokens\": [", "\"added_tokens\": [{\"id\": 258, \"content\": \"<x>\", \"special\": true},");
    e2e_brick(3, "run run.yaml --out a");
    e2e_said("259");
    e2e_said("258");
}
END_TEST

START_TEST(bos_in_the_text_behind_a_prefix_is_told)
{
    char *text = e2e_text("../m/train.txt");
    e2e_write("bos.txt", "<s>");
    e2e_append("bos.txt", text);
    free(text);
    e2e_brick(0, "run run.yaml --set data.training.text=bos.txt --set data.parse_special=true --set prefix.mode=[46,256] --out a");
    e2e_said("bos.txt: 1 BOS tokens stand in the text behind a prefix");
    e2e_said("strip_bos");
    e2e_said("bos: kept)");
    e2e_said("texts begin at position 2");
    e2e_brick(0, "run run.yaml --set data.training.text=bos.txt --set data.parse_special=true --set prefix.mode=[46,256] --set data.strip_bos=true --out b");
    e2e_silent("strip_bos");
    e2e_silent("bos: kept)");
    e2e_brick(0, "run run.yaml --set prefix.mode=[46,256] --out c"); /* without the BOS the text is the other one */
    e2e_same_tree("b/model", "c/model");
}
END_TEST

START_TEST(texts_of_any_bytes_are_read)
{
    char *text = e2e_text("../m/eval.txt");
    e2e_write("odd.txt", "\xef\xbb\xbf" "a\r\nb\xff\xc3\r\xed\xa0\x80");
    e2e_append("odd.txt", text);
    free(text);
    ck_assert_int_eq(system("printf '\\0\\0' >>odd.txt"), 0);
    e2e_brick(0, "eval --model ../m --text odd.txt --seqlen 32 --json");
    ck_assert_double_finite(e2e_number("out", "ppl", NULL));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_texts");
    TCase *t = tcase_create("texts");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, text_without_a_window_is_refused, 0, 4);
    tcase_add_test(t, line_without_a_text_is_told_by_line_and_column);
    tcase_add_test(t, stages_without_a_folder_are_refused_before_anything_is_computed);
    tcase_add_loop_test(t, prefix_outside_the_vocabulary_is_refused_before_any_work, 0, sizeof prefixed / sizeof prefixed[0]);
    tcase_add_test(t, fewer_samples_than_asked_are_reported);
    tcase_add_loop_test(t, one_policy_of_bos_is_told_and_kept, 0, sizeof policies / sizeof policies[0]);
    tcase_add_test(t, a_tokenizer_without_bos_is_legal);
    tcase_add_test(t, a_tokenizer_larger_than_the_embedding_is_refused);
    tcase_add_test(t, bos_in_the_text_behind_a_prefix_is_told);
    tcase_add_test(t, texts_of_any_bytes_are_read);
    suite_add_tcase(s, t);
    return run_suite(s);
}
