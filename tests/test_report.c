/* Strings on their way into pages and scripts, pictures on their way into a page, lines of files that may be damaged. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/report.h"
#include "tests/suite.h"

static bk_text_buffer b;
static bk_error err;

static void begin(void)
{
    b = (bk_text_buffer){0};
    err = (bk_error){0};
}

static void end(void)
{
    bk_buffer_free(&b);
}

static void holds(const char *want)
{
    ck_assert_str_eq(b.text ? b.text : "", want);
}

static const struct {
    const char *in, *html, *script;
} strings[] = {
    {"", "", "''"},
    {"plain text", "plain text", "'plain text'"},
    {"<script>alert(\"1\")</script>", "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;",
     "'<script>alert(\"1\")</script>'"},
    {"a & b's", "a &amp; b&#39;s", "'a & b''s'"},
    {"'; system 'reboot'; '", "&#39;; system &#39;reboot&#39;; &#39;", "'''; system ''reboot''; '''"},
    {"`id` $(id) @x \\", "`id` $(id) @x \\", "'`id` $(id) @x \\'"},
    {"two\nlines\tand\rmore", "two\nlines\tand\xef\xbf\xbdmore", "'two lines and?more'"},
    {"bell\a and nothing\x7f", "bell\xef\xbf\xbd and nothing\xef\xbf\xbd", "'bell? and nothing?'"},
    {"broken \xff\xc3 utf-8", "broken \xef\xbf\xbd\xef\xbf\xbd utf-8", "'broken ?? utf-8'"},
    {"C1 \xc2\x85 whole \xc3\xbc \xf0\x9f\xa7\xb1", "C1 \xef\xbf\xbd whole \xc3\xbc \xf0\x9f\xa7\xb1",
     "'C1 ? whole \xc3\xbc \xf0\x9f\xa7\xb1'"},
};
enum { STRINGS = sizeof strings / sizeof strings[0] };

START_TEST(html_is_escaped)
{
    bk_html_add(&b, strings[_i].in);
    holds(strings[_i].html);
}
END_TEST

START_TEST(strings_of_scripts_are_quoted)
{
    bk_gnuplot_add(&b, strings[_i].in);
    holds(strings[_i].script);
}
END_TEST

START_TEST(numbers_that_are_none_are_left_out)
{
    bk_number_add(&b, 1.5);
    bk_number_add(&b, NAN);
    bk_number_add(&b, INFINITY);
    holds("1.5NaNNaN");
}
END_TEST

/* --- SVG --- */

START_TEST(ids_of_a_picture_get_its_name)
{
    static const char svg[] =
        "<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg><title>plot</title><g id=\"canvas\"><circle id='dot'/>"
        "<use xlink:href='#dot' id='two'/><rect filter=\"url(#box)\"/><text>id='dot' href='#dot' "
        "&lt;b></text></g></svg>\n";
    bk_svg_inline(svg, strlen(svg), "p", &b);
    holds("\n\n<svg><g id=\"p-canvas\"><circle id='p-dot'/><use xlink:href='#p-dot' id='p-two'/><rect "
          "filter=\"url(#p-box)\"/>"
          "<text>id='dot' href='#dot' &lt;b></text></g></svg>\n");
}
END_TEST

START_TEST(a_picture_that_is_cut_off_is_copied_to_its_end)
{
    static const char svg[] = "<svg><g id='a";
    bk_svg_inline(svg, strlen(svg), "p", &b);
    holds("<svg><g id='p-a");
}
END_TEST

START_TEST(a_word_that_ends_with_id_is_none)
{
    static const char svg[] = "<g grid='x' data-id='y'/>";
    bk_svg_inline(svg, strlen(svg), "p", &b);
    holds("<g grid='x' data-id='y'/>");
}
END_TEST

/* --- axes --- */

static const struct {
    double lo, hi;
    const char *range;
} linear[] = {{0, 100, "[0:108]"},     {3, 100, "[0:108]"}, {-10, 0, "[-10.8:0]"},
              {-1, 3, "[-1.32:3.32]"}, {0, 0, "[0:1.08]"},  {NAN, NAN, "[0:1.08]"}};

START_TEST(a_linear_axis_has_zero_on_it)
{
    bk_picture p = {.name = "p"};
    bk_picture_linear(&p, 'y', linear[_i].lo, linear[_i].hi);
    ck_assert_msg(strstr(p.script.text, linear[_i].range), "want %s in %s", linear[_i].range, p.script.text);
    bk_picture_free(&p);
}
END_TEST

static const struct {
    double lo, hi;
    const char *range;
} decades[] = {{2, 30, "[1e0:1e2]"}, {1, 1, "[1e0:1e1]"}, {0.02, 0.3, "[1e-2:1e0]"}};

START_TEST(a_logarithmic_axis_has_whole_decades)
{
    bk_picture p = {.name = "p"};
    bk_picture_log(&p, 'y', decades[_i].lo, decades[_i].hi);
    ck_assert_msg(strstr(p.script.text, decades[_i].range), "want %s in %s", decades[_i].range, p.script.text);
    bk_picture_free(&p);
}
END_TEST

/* --- lines --- */

static const struct {
    const char *text;
    size_t objects;
    const char *why;
} files[] = {
    {"", 0, ""},
    {"{\"a\": 1}\n{\"a\": 2}\n", 2, ""},
    {"{\"a\": 1}\n{\"a\": 2}", 2, ""},
    {"{\"a\": 1}\n{\"a\": ", 1, "from line 2 on"},
    {"{\"a\": 1}\n\n{\"a\": 2}\n", 1, "from line 2 on"},
    {"[1]\n{\"a\": 2}\n", 0, "from line 1 on"},
    {"\x89HDF\r\n", 0, "from line 1 on"},
};

START_TEST(lines_count_up_to_the_first_damaged_one)
{
    char path[] = "/tmp/bk_report_XXXXXX", why[512];
    bk_json *lines = NULL;
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, files[_i].text, strlen(files[_i].text)), (ssize_t)strlen(files[_i].text));
    close(fd);
    ck_assert_int_eq(bk_report_lines(path, &lines, why, sizeof why, &err), BK_OK);
    unlink(path);
    ck_assert_uint_eq(bk_json_size(lines), files[_i].objects);
    if (*files[_i].why)
        ck_assert_msg(strstr(why, files[_i].why), "%s", why);
    else
        ck_assert_str_eq(why, "");
    bk_json_free(lines);
}
END_TEST

START_TEST(a_file_that_is_not_there_has_no_lines)
{
    char why[512];
    bk_json *lines = NULL;
    ck_assert_int_eq(bk_report_lines("/nonexistent/x.jsonl", &lines, why, sizeof why, &err), BK_OK);
    ck_assert_uint_eq(bk_json_size(lines), 0);
    ck_assert_str_eq(why, "");
    bk_json_free(lines);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("report");
    TCase *t = tcase_create("text");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_loop_test(t, html_is_escaped, 0, STRINGS);
    tcase_add_loop_test(t, strings_of_scripts_are_quoted, 0, STRINGS);
    tcase_add_test(t, numbers_that_are_none_are_left_out);
    suite_add_tcase(s, t);
    t = tcase_create("pictures");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, ids_of_a_picture_get_its_name);
    tcase_add_test(t, a_picture_that_is_cut_off_is_copied_to_its_end);
    tcase_add_test(t, a_word_that_ends_with_id_is_none);
    tcase_add_loop_test(t, a_linear_axis_has_zero_on_it, 0, sizeof linear / sizeof linear[0]);
    tcase_add_loop_test(t, a_logarithmic_axis_has_whole_decades, 0, sizeof decades / sizeof decades[0]);
    suite_add_tcase(s, t);
    t = tcase_create("lines");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_loop_test(t, lines_count_up_to_the_first_damaged_one, 0, sizeof files / sizeof files[0]);
    tcase_add_test(t, a_file_that_is_not_there_has_no_lines);
    suite_add_tcase(s, t);
    return run_suite(s);
}
