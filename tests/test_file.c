#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/suite.h"

static char dir[64];
static bk_error err;

static void setup(void)
{
    strcpy(dir, "/tmp/bk_file_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    bk_error_clear(&err);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

static const char *at(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_text(const char *path, const char *text)
{
    ck_assert_msg(bk_write_file(path, text, strlen(text), &err) == BK_OK, "%s", err.msg);
}

static void check_text(const char *path, const char *want)
{
    char *text;
    size_t len;
    ck_assert_msg(bk_file_slurp(path, 1000, &text, &len, &err) == BK_OK, "%s", err.msg);
    ck_assert_str_eq(text, want);
    ck_assert_uint_eq(len, strlen(want));
    free(text);
}

START_TEST(open_refuses_absent_folder_and_fifo)
{
    bk_file f;
    ck_assert_int_eq(bk_file_open(&f, at("absent"), &err), BK_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, "absent: cannot open: No such file"));
    bk_file_close(&f);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_file_open(&f, dir, &err), BK_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, "a folder"));
    bk_error_clear(&err);
    ck_assert_int_eq(mkfifo(at("fifo"), 0600), 0);
    ck_assert_int_eq(bk_file_open(&f, at("fifo"), &err), BK_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, "a pipe"));
}
END_TEST

START_TEST(read_is_bounded_by_the_size)
{
    write_text(at("f"), "0123456789");
    bk_file f;
    char buf[16] = {0};
    ck_assert_int_eq(bk_file_open(&f, at("f"), &err), BK_OK);
    ck_assert_uint_eq(f.size, 10);
    ck_assert_int_eq(bk_file_read(&f, 3, buf, 7, &err), BK_OK);
    ck_assert_str_eq(buf, "3456789");
    ck_assert_int_eq(bk_file_read(&f, 10, buf, 0, &err), BK_OK);
    ck_assert_int_eq(bk_file_read(&f, 4, buf, 7, &err), BK_EFORMAT);
    ck_assert_int_eq(bk_file_read(&f, UINT64_MAX, buf, 2, NULL), BK_EFORMAT);
    ck_assert_int_eq(truncate(f.path, 5), 0);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_file_read(&f, 3, buf, 7, &err), BK_EFORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "cut off while"));
    bk_file_close(&f);
}
END_TEST

START_TEST(slurp_terminates_and_keeps_the_limit)
{
    write_text(at("f"), "hello");
    write_text(at("empty"), "");
    check_text(at("f"), "hello");
    check_text(at("empty"), "");
    char *text;
    size_t len;
    ck_assert_int_eq(bk_file_slurp(at("f"), 4, &text, &len, &err), BK_EFORMAT);
    ck_assert_ptr_null(text);
}
END_TEST

START_TEST(writer_shows_nothing_before_commit)
{
    write_text(at("f"), "old");
    bk_writer w;
    ck_assert_int_eq(bk_writer_open(&w, at("f"), &err), BK_OK);
    ck_assert_int_eq(bk_writer_put(&w, "newer", 5, &err), BK_OK);
    ck_assert_uint_eq(w.written, 5);
    check_text(at("f"), "old");
    check_text(at("f.partial"), "newer");
    ck_assert_int_eq(bk_writer_commit(&w, &err), BK_OK);
    check_text(at("f"), "newer");
    ck_assert(!bk_exists(at("f.partial")));
}
END_TEST

START_TEST(too_many_open_files_are_a_lack_of_resources)
{
    bk_error_clear(&err);
    errno = EMFILE;
    ck_assert_int_eq(bk_fail_errno(&err, "f: cannot open"), BK_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.msg, "ulimit -n"));
    bk_error_clear(&err);
}
END_TEST

START_TEST(a_file_has_one_writer_at_a_time)
{
    bk_writer first, second;
    for (int keep = 0; keep < 2; keep++) {
        ck_assert_int_eq(bk_writer_open(&first, at("f"), &err), BK_OK);
        ck_assert_int_eq(bk_writer_open(&second, at("f"), &err), BK_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "another process is writing this file"));
        bk_error_clear(&err);
        ck_assert_int_eq(bk_writer_put(&first, "first", 5, &err), BK_OK);
        if (keep) ck_assert_int_eq(bk_writer_commit(&first, &err), BK_OK);
        else bk_writer_abort(&first);
        ck_assert_int_eq(bk_writer_open(&second, at("f"), &err), BK_OK);
        ck_assert_int_eq(bk_writer_put(&second, "2", 1, &err), BK_OK);
        ck_assert_int_eq(bk_writer_commit(&second, &err), BK_OK);
    }
}
END_TEST

START_TEST(abort_keeps_the_old_file)
{
    write_text(at("f"), "old");
    bk_writer w;
    ck_assert_int_eq(bk_writer_open(&w, at("f"), &err), BK_OK);
    ck_assert_int_eq(bk_writer_put(&w, "x", 1, &err), BK_OK);
    bk_writer_abort(&w);
    check_text(at("f"), "old");
    ck_assert(!bk_exists(at("f.partial")));
    bk_writer_abort(&w); /* twice is harmless */
}
END_TEST

START_TEST(writer_refuses_what_is_no_file)
{
    bk_writer w;
    ck_assert_int_eq(bk_writer_open(&w, dir, &err), BK_EINVAL);
    ck_assert_int_eq(bk_writer_open(&w, "/dev/null", NULL), BK_EINVAL);
    ck_assert_int_eq(bk_writer_open(&w, at("no/such/folder"), NULL), BK_EIO);
    ck_assert_int_eq(mkdir(at("g.partial"), 0700), 0);
    ck_assert_int_eq(bk_writer_open(&w, at("g"), NULL), BK_EIO);
    ck_assert(bk_is_dir(at("g.partial")));
}
END_TEST

START_TEST(file_size_limit_is_enospc_and_keeps_the_old_file)
{
    write_text(at("f"), "old");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 4096;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    static const char big[8192];
    bk_status status = bk_write_file(at("f"), big, sizeof big, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(status, BK_ENOSPC);
    check_text(at("f"), "old");
    ck_assert(!bk_exists(at("f.partial")));
}
END_TEST

START_TEST(copy_is_the_same_bytes)
{
    size_t n = 200001;
    unsigned char *a = malloc(n);
    for (size_t i = 0; i < n; i++) a[i] = (unsigned char)(i * 31 >> 3);
    ck_assert_int_eq(bk_write_file(at("a"), a, n, &err), BK_OK);
    ck_assert_int_eq(bk_copy_file(at("a"), at("b"), &err), BK_OK);
    char *b;
    size_t len;
    ck_assert_int_eq(bk_file_slurp(at("b"), n, &b, &len, &err), BK_OK);
    ck_assert_uint_eq(len, n);
    ck_assert_int_eq(memcmp(a, b, n), 0);
    ck_assert_int_eq(bk_copy_file(at("absent"), at("c"), &err), BK_EIO);
    ck_assert(!bk_exists(at("c")));
    free(a);
    free(b);
}
END_TEST

START_TEST(folders_are_made_and_removed_without_following_links)
{
    ck_assert_int_eq(bk_mkdir_p(at("a//b/c/"), &err), BK_OK);
    ck_assert(bk_is_dir(at("a/b/c")));
    ck_assert_int_eq(bk_mkdir_p(at("a/b/c"), &err), BK_OK);
    write_text(at("a/b/f"), "x");
    ck_assert_int_eq(bk_mkdir_p(at("a/b/f/g"), &err), BK_EIO);
    ck_assert_int_eq(bk_mkdir_p(at("keep"), NULL), BK_OK);
    write_text(at("keep/me"), "x");
    ck_assert_int_eq(symlink(at("keep"), at("a/link")), 0);
    ck_assert_int_eq(bk_remove_tree(at("a"), NULL), BK_OK);
    ck_assert(!bk_exists(at("a")));
    ck_assert(bk_exists(at("keep/me")));
    ck_assert_int_eq(bk_remove_tree(at("a"), NULL), BK_OK);
}
END_TEST

START_TEST(rename_moves_and_reports)
{
    write_text(at("a"), "x");
    ck_assert_int_eq(bk_rename(at("a"), at("b"), &err), BK_OK);
    check_text(at("b"), "x");
    ck_assert_int_eq(bk_rename(at("a"), at("b"), &err), BK_EIO);
}
END_TEST

START_TEST(an_entry_that_is_none_of_ours_is_found)
{
    static const char *const ours[] = {"a", "b", NULL};
    char found[8];
    ck_assert_int_eq(bk_dir_other(dir, ours, found, sizeof found, &err), BK_OK);
    ck_assert_str_eq(found, "");
    write_text(at("a"), "");
    write_text(at("b"), "");
    ck_assert_int_eq(bk_dir_other(dir, ours, found, sizeof found, &err), BK_OK);
    ck_assert_str_eq(found, "");
    write_text(at(".abcdefghi"), "");
    ck_assert_int_eq(bk_dir_other(dir, ours, found, sizeof found, &err), BK_OK);
    ck_assert_str_eq(found, ".abcdef");
    ck_assert_int_eq(bk_dir_other(at("a"), ours, found, sizeof found, &err), BK_EIO);
}
END_TEST

START_TEST(join_puts_one_slash)
{
    const char *const table[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *p = bk_path_join(table[i][0], table[i][1]);
        ck_assert_str_eq(p, table[i][2]);
        free(p);
    }
}
END_TEST

START_TEST(sha256_of_known_texts)
{
    char hex[65];
    bk_sha256 *h = bk_sha256_new();
    bk_sha256_put(h, "a", 1);
    bk_sha256_put(h, "bc", 2);
    bk_sha256_end(h, hex);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    write_text(at("f"), "");
    ck_assert_int_eq(bk_sha256_file(at("f"), hex, &err), BK_OK);
    ck_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    ck_assert_int_eq(bk_sha256_file(at("absent"), hex, &err), BK_EIO);
    ck_assert_str_eq(hex, "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("file");
    TCase *c = tcase_create("file");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, open_refuses_absent_folder_and_fifo);
    tcase_add_test(c, read_is_bounded_by_the_size);
    tcase_add_test(c, slurp_terminates_and_keeps_the_limit);
    tcase_add_test(c, writer_shows_nothing_before_commit);
    tcase_add_test(c, too_many_open_files_are_a_lack_of_resources);
    tcase_add_test(c, a_file_has_one_writer_at_a_time);
    tcase_add_test(c, abort_keeps_the_old_file);
    tcase_add_test(c, writer_refuses_what_is_no_file);
    tcase_add_test(c, file_size_limit_is_enospc_and_keeps_the_old_file);
    tcase_add_test(c, copy_is_the_same_bytes);
    tcase_add_test(c, folders_are_made_and_removed_without_following_links);
    tcase_add_test(c, rename_moves_and_reports);
    tcase_add_test(c, join_puts_one_slash);
    tcase_add_test(c, an_entry_that_is_none_of_ours_is_found);
    tcase_add_test(c, sha256_of_known_texts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
