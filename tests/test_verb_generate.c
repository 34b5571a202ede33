/* brick generate through its handler. */
#include <check.h>

#include "experiments/verbs.h"
#include "tests/letters.h"
#include "tests/ok.h"
#include "tests/suite.h"

START_TEST(generate_follows_the_largest_logit)
{
    ck_assert_int_eq(
        letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "say abc", "--tokens", "5", "--json", NULL), 0);
    bk_json *o = letters_json();
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "text"), ""), "defgh");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ids")), 5);
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 0), -1), 'd');
    bk_json_free(o);
}
END_TEST

START_TEST(generate_prints_text_alone)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "k", "--tokens", "3", NULL), 0);
    ck_assert_str_eq(letters.printed, "lmn\n");
}
END_TEST

START_TEST(generate_stops_at_the_end_of_the_text)
{
    ck_assert_int_eq(
        letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "x", "--tokens", "20", "--json", NULL), 0);
    bk_json *o = letters_json();
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "text"), ""), "yz");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ids")), 3);
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 2), -1), LETTERS_EOS);
    bk_json_free(o);
}
END_TEST

START_TEST(generate_rotated_and_behind_a_prefix_says_the_same)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "k", "--tokens", "3", "--rotate",
                          "all", "--prefix", "46,10", NULL),
                     0);
    ck_assert_str_eq(letters.printed, "lmn\n");
}
END_TEST

START_TEST(generate_text_that_is_no_utf8_is_still_json)
{
    ck_assert_int_eq(
        letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "\x7f", "--tokens", "2", "--json", NULL), 0);
    bk_json *o = letters_json();
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 0), -1), 0x80);
    bk_json_free(o);
}
END_TEST

START_TEST(generate_refuses_an_empty_prompt)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "", NULL), BK_EXIT_USAGE);
}
END_TEST

START_TEST(generate_refuses_more_tokens_than_positions)
{
    ck_assert_int_eq(letters_call(bk_verb_generate, "generate", "--model", letters.folder, "--prompt", "abc", "--tokens", "127", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verb_generate");
    TCase *t = tcase_create("generate");
    tcase_add_checked_fixture(t, letters_begin, letters_end);
    tcase_set_timeout(t, 60); /* shared machines */
    tcase_add_test(t, generate_follows_the_largest_logit);
    tcase_add_test(t, generate_prints_text_alone);
    tcase_add_test(t, generate_stops_at_the_end_of_the_text);
    tcase_add_test(t, generate_rotated_and_behind_a_prefix_says_the_same);
    tcase_add_test(t, generate_text_that_is_no_utf8_is_still_json);
    tcase_add_test(t, generate_refuses_an_empty_prompt);
    tcase_add_test(t, generate_refuses_more_tokens_than_positions);
    suite_add_tcase(s, t);
    return run_suite(s);
}
