/* Text that a terminal can show. */
#include <check.h>
#include <stdio.h>

#include "experiments/printable.h"
#include "tests/suite.h"

START_TEST(printable_escapes_what_a_terminal_would_obey)
{
    static const struct {
        const char *in;
        size_t n;
        const char *want;
    } c[] = {{"a b", 3, "a b"},
             {"\n\t", 2, "\\n\\t"},
             {"\x1b[31m", 5, "\\x1b[31m"},
             {"a\0b", 3, "a\\x00b"},
             {"\xff\xc3", 2, "\\xff\\xc3"},
             {"\xc3\xa9", 2, "\xc3\xa9"},
             {"\xe2\x80\xae", 3, "\\u{202e}"},
             {"\"\\", 2, "\\\"\\\\"},
             {"\xc2\x85", 2, "\\u{85}"},
             {"", 0, ""}};
    char to[64];
    ck_assert_str_eq(bk_printable(c[_i].in, c[_i].n, to, sizeof to), c[_i].want);
}
END_TEST

START_TEST(printable_cuts_long_text)
{
    char to[8];
    ck_assert_str_eq(bk_printable("abcdefg", 7, to, sizeof to), "abcdefg");
    ck_assert_str_eq(bk_printable("abcdefgh", 8, to, sizeof to), "abcd...");
}
END_TEST

START_TEST(visible_text_keeps_its_quotes)
{
    char to[32];
    ck_assert_str_eq(bk_visible("{\"a\": \"\\\"}\n\x1b", 12, to, sizeof to), "{\"a\": \"\\\"}\\n\\x1b");
}
END_TEST

static const char *words(void (*print)(FILE *, const char *), const char *text)
{
    static char to[128];
    FILE *f = fmemopen(to, sizeof to, "w");
    print(f, text);
    fclose(f);
    return to;
}

START_TEST(shells_read_words_back)
{
    ck_assert_str_eq(words(bk_print_word, "/a-b/c.yaml,d=1"), "/a-b/c.yaml,d=1");
    ck_assert_str_eq(words(bk_print_word, ""), "''");
    ck_assert_str_eq(words(bk_print_word, "it's $x"), "'it'\\''s $x'");
}
END_TEST

START_TEST(fields_of_csv_are_quoted_where_they_must_be)
{
    ck_assert_str_eq(words(bk_print_field, "a b"), "a b");
    ck_assert_str_eq(words(bk_print_field, " a"), "\" a\"");
    ck_assert_str_eq(words(bk_print_field, "a,\"b\""), "\"a,\"\"b\"\"\"");
    ck_assert_str_eq(words(bk_print_field, "a\nb"), "\"a\nb\"");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("printable");
    TCase *t = tcase_create("printable");
    tcase_add_loop_test(t, printable_escapes_what_a_terminal_would_obey, 0, 10);
    tcase_add_test(t, printable_cuts_long_text);
    tcase_add_test(t, visible_text_keeps_its_quotes);
    tcase_add_test(t, shells_read_words_back);
    tcase_add_test(t, fields_of_csv_are_quoted_where_they_must_be);
    suite_add_tcase(s, t);
    return run_suite(s);
}
