/* Files that say what they were: SHA256SUMS of a folder, and JSON with its own checksum. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/sealed.h"
#include "io/sums.h"
#include "tests/suite.h"

static char dir[64];
static bk_error err;

static const char *at(const char *name)
{
    static char path[4][128];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const char *text, size_t n)
{
    FILE *f = fopen(at(name), "w"); /* without fsync: there are many */
    ck_assert(f && fwrite(text, 1, n, f) == n && fclose(f) == 0);
}

static char *get(const char *name, size_t *n)
{
    char *text;
    ck_assert_int_eq(bk_file_slurp(at(name), 1 << 20, &text, n, &err), BK_OK);
    return text;
}

static void setup(void)
{
    strcpy(dir, "/tmp/bk_sums_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    bk_error_clear(&err);
    put("b.bin", "second\0bytes", 12);
    put("a.txt", "first", 5);
    put("empty", "", 0);
    put("c.partial", "not yet", 7);
    ck_assert_int_eq(mkdir(at("below"), 0777), 0);
    put("below/d", "deeper", 6);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

static void write_sums(void)
{
    ck_assert_msg(bk_sums_write(dir, &err) == BK_OK, "%s", err.msg);
}

static void refused(const char *words)
{
    bk_error_clear(&err);
    ck_assert_int_eq(bk_sums_check(dir, &err), BK_EFORMAT);
    ck_assert_msg(strstr(err.msg, words), "'%s' is not in: %s", words, err.msg);
}

START_TEST(a_folder_as_it_was_is_fine)
{
    char line[256];
    ck_assert(!bk_sums_there(dir));
    write_sums();
    ck_assert(bk_sums_there(dir));
    ck_assert_int_eq(bk_sums_check(dir, &err), BK_OK);
    snprintf(line, sizeof line, "cd '%s' && sha256sum --strict --quiet -c SHA256SUMS", dir);
    ck_assert_int_eq(system(line), 0);
    size_t n;
    char *text = get(BK_SUMS_NAME, &n);
    ck_assert_int_eq(n, 3 * 66 + strlen("a.txt") + strlen("b.bin") + strlen("empty") + 3);
    ck_assert_ptr_nonnull(strstr(text, "  a.txt\n"));
    free(text);
}
END_TEST

START_TEST(names_can_be_left_out)
{
    const char *const but[] = {"b.bin", "empty", NULL};
    char *text;
    ck_assert_int_eq(bk_sums_of(dir, but, &text, &err), BK_OK);
    ck_assert_str_eq(text, "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e  a.txt\n");
    free(text);
}
END_TEST

START_TEST(any_changed_byte_is_named)
{
    write_sums();
    size_t n;
    char *text = get("b.bin", &n);
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 1;
        put("b.bin", text, n);
        refused("b.bin");
        text[i] ^= 1;
    }
    put("b.bin", text, n - 1);
    refused("b.bin");
    free(text);
    ck_assert_int_eq(remove(at("b.bin")), 0);
    refused("b.bin: is missing");
}
END_TEST

START_TEST(large_files_may_be_passed_over_but_not_missing)
{
    write_sums();
    put("b.bin", "changed bytes", 13);
    ck_assert_int_eq(bk_sums_check_small(dir, 12, &err), BK_OK);
    ck_assert_int_eq(bk_sums_check_small(dir, 13, &err), BK_EFORMAT);
    ck_assert_int_eq(remove(at("b.bin")), 0);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_sums_check_small(dir, 12, &err), BK_EFORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "b.bin: is missing"));
}
END_TEST

START_TEST(a_damaged_list_is_refused)
{
    write_sums();
    size_t n;
    char *text = get(BK_SUMS_NAME, &n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            put(BK_SUMS_NAME, text, n);
            refused(dir);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    put(BK_SUMS_NAME, text, n - 1);
    refused("is damaged");
    put(BK_SUMS_NAME, "", 0);
    refused("is damaged");
    ck_assert_int_eq(remove(at(BK_SUMS_NAME)), 0);
    refused("SHA256SUMS: is missing");
    free(text);
}
END_TEST

START_TEST(a_list_does_not_lead_out_of_its_folder)
{
    char line[256];
    snprintf(line, sizeof line, "%064d  ../a\n", 0);
    put(BK_SUMS_NAME, line, strlen(line));
    refused("is damaged");
}
END_TEST

/* --- sealed JSON --- */

static void save(const char *name)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "ppl", bk_json_of_num(12.5));
    bk_json_set(o, "name", bk_json_of_str("\xc3\xbc \"", 4));
    ck_assert_int_eq(bk_sealed_save(o, at(name), &err), BK_OK);
    bk_json_free(o);
}

static bk_status load(const char *name)
{
    bk_json *o;
    bk_error_clear(&err);
    bk_status st = bk_sealed_load(at(name), &o, &err);
    if (!st) ck_assert_double_eq(bk_json_num(bk_json_get(o, "ppl"), 0), 12.5);
    bk_json_free(o);
    return st;
}

START_TEST(sealed_comes_back)
{
    save("x.json");
    ck_assert_msg(load("x.json") == BK_OK, "%s", err.msg);
    bk_json *o;
    ck_assert_int_eq(bk_sealed_load(at("x.json"), &o, &err), BK_OK);
    bk_json_set(o, "ppl", bk_json_of_num(12.5));
    ck_assert_int_eq(bk_sealed_save(o, at("y.json"), &err), BK_OK); /* what was loaded can be saved again */
    bk_json_free(o);
    ck_assert_msg(load("y.json") == BK_OK, "%s", err.msg);
    ck_assert_int_eq(load("absent.json"), BK_EIO);
}
END_TEST

START_TEST(any_change_of_a_sealed_file_is_refused)
{
    save("x.json");
    size_t n;
    char *text = get("x.json", &n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            put("x.json", text, n);
            ck_assert_int_eq(load("x.json"), BK_EFORMAT);
            ck_assert_ptr_nonnull(strstr(err.msg, "x.json"));
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    for (size_t len = 0; len < n; len++) {
        put("x.json", text, len);
        ck_assert_int_eq(load("x.json"), BK_EFORMAT);
    }
    put("x.json", text, n + 1); /* the NUL behind it */
    ck_assert_int_eq(load("x.json"), BK_EFORMAT);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sums");
    TCase *t = tcase_create("sums");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_folder_as_it_was_is_fine);
    tcase_add_test(t, names_can_be_left_out);
    tcase_add_test(t, any_changed_byte_is_named);
    tcase_add_test(t, large_files_may_be_passed_over_but_not_missing);
    tcase_add_test(t, a_damaged_list_is_refused);
    tcase_add_test(t, a_list_does_not_lead_out_of_its_folder);
    tcase_add_test(t, sealed_comes_back);
    tcase_add_test(t, any_change_of_a_sealed_file_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
