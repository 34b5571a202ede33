#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "tests/suite.h"

static bk_json *parse(const char *text)
{
    bk_error err = {0};
    bk_json *v;
    ck_assert_msg(bk_json_parse(text, strlen(text), "text", &v, &err) == BK_OK, "%s", err.msg);
    return v;
}

static void check_dump(bk_json *v, int indent, const char *want)
{
    char *s = bk_json_dump(v, indent);
    ck_assert_ptr_nonnull(s);
    ck_assert_str_eq(s, want);
    free(s);
    bk_json_free(v);
}

START_TEST(getters_return_values_or_the_default)
{
    bk_json *v = parse("{\"i\": 7, \"r\": 2.5, \"whole\": 3.0, \"s\": \"x\", \"b\": true, \"n\": null, \"a\": [1, 2]}");
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "i"), -1), 7);
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "whole"), -1), 3);
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "r"), -1), -1);
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "s"), -1), -1);
    ck_assert_double_eq(bk_json_num(bk_json_get(v, "i"), -1), 7);
    ck_assert_double_eq(bk_json_num(bk_json_get(v, "r"), -1), 2.5);
    ck_assert_double_eq(bk_json_num(bk_json_get(v, "b"), -1), -1);
    ck_assert_str_eq(bk_json_str(bk_json_get(v, "s"), "?"), "x");
    ck_assert_str_eq(bk_json_str(bk_json_get(v, "i"), "?"), "?");
    ck_assert(bk_json_bool(bk_json_get(v, "b"), false));
    ck_assert(bk_json_bool(bk_json_get(v, "absent"), true));
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(v, "a"), 1), -1), 2);
    ck_assert_ptr_null(bk_json_at(bk_json_get(v, "a"), 2));
    ck_assert_ptr_null(bk_json_get(bk_json_get(v, "a"), "x"));
    ck_assert_uint_eq(bk_json_size(v), 7);
    ck_assert_uint_eq(bk_json_size(bk_json_get(v, "a")), 2);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(v, "n")), BK_JSON_NULL);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(v, "whole")), BK_JSON_REAL);
    ck_assert_int_eq(bk_json_kind_of(NULL), BK_JSON_NULL);
    bk_json_free(v);
}
END_TEST

START_TEST(objects_are_walked_in_file_order)
{
    bk_json *v = parse("{\"z\": 0, \"a\": 1, \"m\": 2}");
    char keys[4] = "";
    for (void *it = bk_json_first(v); it; it = bk_json_next(v, it)) strcat(keys, bk_json_key(it));
    ck_assert_str_eq(keys, "zam");
    bk_json_free(v);
}
END_TEST

START_TEST(broken_texts_are_refused_with_line_and_column)
{
    const char *const bad[] = {"",   "{",     "{\"a\": 1} x", "{\"a\": 1, \"a\": 2}", "{\"a\\u0000\": 1}", "\"\xff\"", "[1e999]",
                               "[01]", "[NaN]", "\xef\xbb\xbf{}", "[1,]",               "'a'"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_error err = {0};
        bk_json *v;
        ck_assert_int_eq(bk_json_parse(bad[i], strlen(bad[i]), "some.json", &v, &err), BK_EFORMAT);
        ck_assert_ptr_null(v);
        ck_assert_msg(strncmp(err.msg, "some.json:1:", 12) == 0, "%s", err.msg);
    }
    bk_error err = {0};
    bk_json *v;
    ck_assert_int_eq(bk_json_parse("{\n\n \"a\" 1}", 10, "x", &v, &err), BK_EFORMAT);
    ck_assert_msg(strncmp(err.msg, "x:3:", 4) == 0, "%s", err.msg);
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
    char text[20001];
    memset(text, '[', 20000);
    text[20000] = 0;
    bk_json *v;
    ck_assert_int_eq(bk_json_parse(text, 20000, "deep", &v, NULL), BK_EFORMAT);
}
END_TEST

START_TEST(integers_beyond_64_bits_are_read_as_reals)
{
    bk_json *v = parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 12}");
    ck_assert_double_eq(bk_json_num(bk_json_get(v, "model_max_length"), 0), 1e30);
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "model_max_length"), -1), -1);
    ck_assert_int_eq(bk_json_int(bk_json_get(v, "n"), -1), 12);
    bk_json_free(v);
}
END_TEST

START_TEST(strings_with_nul_never_read_as_shorter_ones)
{
    bk_json *v = parse("[\"a\\u0000b\"]");
    size_t len;
    ck_assert_str_eq(bk_json_str(bk_json_at(v, 0), "?"), "?");
    ck_assert_int_eq(memcmp(bk_json_bytes(bk_json_at(v, 0), &len), "a\0b", 3), 0);
    ck_assert_uint_eq(len, 3);
    bk_json_free(v);
}
END_TEST

START_TEST(dump_keeps_order_and_shortest_reals)
{
    bk_json *v = bk_json_object(), *a = bk_json_array();
    bk_json_set(v, "z", bk_json_of_num(0.1));
    bk_json_set(v, "a", a);
    bk_json_push(a, bk_json_of_int(INT64_MIN));
    bk_json_push(a, bk_json_of_num(1.0));
    bk_json_push(a, bk_json_of_num(NAN));
    bk_json_push(a, bk_json_of_bool(false));
    bk_json_push(a, bk_json_null());
    bk_json_push(a, bk_json_object());
    check_dump(v, 0, "{\"z\": 0.1, \"a\": [-9223372036854775808, 1.0, null, false, null, {}]}");
}
END_TEST

START_TEST(dump_indents)
{
    check_dump(parse("{\"a\": [1, {\"b\": []}]}"), 2, "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ]\n}");
}
END_TEST

START_TEST(doubles_survive_a_round_trip)
{
    const double values[] = {1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345680.0, 6.02e23};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        bk_json *v = bk_json_of_num(values[i]);
        char *s = bk_json_dump(v, 0);
        bk_json *back = parse(s);
        double got = bk_json_num(back, NAN);
        ck_assert_msg(memcmp(&got, &values[i], 8) == 0, "%s", s);
        free(s);
        bk_json_free(v);
        bk_json_free(back);
    }
}
END_TEST

START_TEST(bytes_become_valid_strings)
{
    bk_json *v = bk_json_of_str("a\xff\0\xe2\x82z\xc3\xa9", 8);
    check_dump(v, 0, "\"a\xef\xbf\xbd\\u0000\xef\xbf\xbd\xef\xbf\xbdz\xc3\xa9\"");
}
END_TEST

START_TEST(texts_end_at_their_nul_and_none_is_null)
{
    check_dump(bk_json_of_text("a\xff\"b"), 0, "\"a\xef\xbf\xbd\\\"b\"");
    check_dump(bk_json_of_text(""), 0, "\"\"");
    check_dump(bk_json_of_text(NULL), 0, "null");
}
END_TEST

START_TEST(lost_members_show_when_dumping)
{
    bk_json *inner = bk_json_object(), *outer = bk_json_object();
    bk_json_set(outer, "inner", inner);
    bk_json_set(inner, "lost", NULL);
    ck_assert_ptr_null(bk_json_dump(outer, 0));
    bk_json_free(outer);
    ck_assert_ptr_null(bk_json_dump(NULL, 0));
    bk_json_set(NULL, "x", bk_json_of_int(1));
}
END_TEST

START_TEST(save_and_load)
{
    char path[] = "/tmp/bk_json_XXXXXX";
    close(mkstemp(path));
    bk_error err = {0};
    bk_json *v = parse("{\"a\": 1}"), *back;
    ck_assert_msg(bk_json_save(v, path, &err) == BK_OK, "%s", err.msg);
    char *text;
    size_t len;
    ck_assert_int_eq(bk_file_slurp(path, 100, &text, &len, &err), BK_OK);
    ck_assert_str_eq(text, "{\n  \"a\": 1\n}\n");
    ck_assert_int_eq(bk_json_load(path, &back, &err), BK_OK);
    ck_assert_int_eq(bk_json_int(bk_json_get(back, "a"), -1), 1);
    unlink(path);
    bk_json_free(back);
    ck_assert_int_eq(bk_json_load(path, &back, &err), BK_EIO);
    bk_json_free(v);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *c = tcase_create("json");
    tcase_add_test(c, getters_return_values_or_the_default);
    tcase_add_test(c, objects_are_walked_in_file_order);
    tcase_add_test(c, broken_texts_are_refused_with_line_and_column);
    tcase_add_test(c, deep_nesting_is_refused);
    tcase_add_test(c, integers_beyond_64_bits_are_read_as_reals);
    tcase_add_test(c, strings_with_nul_never_read_as_shorter_ones);
    tcase_add_test(c, dump_keeps_order_and_shortest_reals);
    tcase_add_test(c, dump_indents);
    tcase_add_test(c, doubles_survive_a_round_trip);
    tcase_add_test(c, bytes_become_valid_strings);
    tcase_add_test(c, texts_end_at_their_nul_and_none_is_null);
    tcase_add_test(c, lost_members_show_when_dumping);
    tcase_add_test(c, save_and_load);
    suite_add_tcase(s, c);
    return run_suite(s);
}
