/* generate, dump and outliers on the quantized model of a run. */
#include <check.h>

#include "experiments/verbs.h"
#include "io/store.h"
#include "tests/letters.h"
#include "tests/ok.h"
#include "tests/suite.h"

/* What the model does does not hang on its linears, so 8 bits leave it as it was. */
START_TEST(quantized_model_generates)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters_path("run"), "--prompt", "k", "--tokens", "3", NULL),
                     0);
    ck_assert_str_eq(letters.printed, "lmn\n");
}
END_TEST

START_TEST(quantized_model_is_dumped_behind_its_own_prefix)
{
    bk_store *s;
    ck_assert_int_eq(letters_call(bk_verb_dump, "dump", "--model", letters_path("run"), "--text", letters.text, "--out", letters.out, "--sites",
                                  "key", "--seqlen", "32", "--windows", "2", NULL),
                     0);
    ok(bk_store_open(&s, letters.out, "brick.dump", &letters.err), &letters.err);
    ck_assert_int_eq(bk_store_meta_of(s)->prefix_len, 2);
    bk_store_close(s);
}
END_TEST

START_TEST(quantized_model_refuses_another_prefix)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters_path("run"), "--prompt", "k", "--prefix", "1", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

START_TEST(quantized_model_has_no_outliers_to_look_for)
{
    ck_assert_int_eq(letters_call(bk_verb_outliers, "outliers", "--model", letters_path("run"), "--text", letters.text, NULL), BK_EXIT_USAGE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verb_run_model");
    TCase *t = tcase_create("run_model");
    tcase_add_checked_fixture(t, letters_begin_run, letters_end);
    tcase_set_timeout(t, 60); /* shared machines */
    tcase_add_test(t, quantized_model_generates);
    tcase_add_test(t, quantized_model_is_dumped_behind_its_own_prefix);
    tcase_add_test(t, quantized_model_refuses_another_prefix);
    tcase_add_test(t, quantized_model_has_no_outliers_to_look_for);
    suite_add_tcase(s, t);
    return run_suite(s);
}
