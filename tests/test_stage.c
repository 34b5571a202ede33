/* Stages: made once, found again, made anew when they are damaged. */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/stage_kinds.h"
#include "tests/suite.h"

static char root[64];
static bk_error err;
static bk_stage s;

static void setup(void)
{
    strcpy(root, "/tmp/bk_stage_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    setenv("BRICK_CACHE", root, 1);
    bk_error_clear(&err);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(root, NULL), BK_OK);
}

static void begin(void)
{
    ck_assert_msg(bk_stage_open(&s, "init", "all that it depends on\n", &err) == BK_OK, "%s", err.msg);
}

/* Makes the stage if it is not there; true if it had to. */
static bool make(void)
{
    char path[BK_STAGE_FILE];
    begin();
    bool made = !s.done;
    if (made) {
        snprintf(path, sizeof path, "%s/000.h5", s.work);
        ck_assert_int_eq(bk_write_file(path, "values", 6, &err), BK_OK);
        ck_assert_msg(bk_stage_commit(&s, &err) == BK_OK, "%s", err.msg);
    }
    bk_stage_close(&s);
    return made;
}

static const char *in_stage(const char *name)
{
    static char path[BK_STAGE_FILE];
    snprintf(path, sizeof path, "%s/%s", s.dir, name);
    return path;
}

static void check_values(void)
{
    char *text;
    size_t len;
    ck_assert_int_eq(bk_file_slurp(in_stage("000.h5"), 100, &text, &len, &err), BK_OK);
    ck_assert_str_eq(text, "values");
    free(text);
}

/* Stages, locks and work in the cache; the ledger is none of these. */
static int entries(void)
{
    DIR *d = opendir(root);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.' && strcmp(e->d_name, "ledger.jsonl") != 0;
    closedir(d);
    return n;
}

START_TEST(a_stage_is_made_once)
{
    ck_assert(make());
    ck_assert(!make());
    check_values();
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(one_that_was_given_up_leaves_nothing)
{
    begin();
    ck_assert(!s.done);
    bk_stage_close(&s);
    ck_assert_int_eq(entries(), 0);
    ck_assert(make());
}
END_TEST

static void spoil(int how)
{
    static const char *const name[] = {"000.h5", "depends.txt", "SHA256SUMS"};
    const char *path = in_stage(name[how % 3]);
    if (how < 3) ck_assert_int_eq(remove(path), 0);
    else {
        FILE *f = fopen(path, "r+");
        int c = fgetc(f);
        rewind(f);
        fputc(c ^ 4, f);
        ck_assert_int_eq(fclose(f), 0);
    }
}

START_TEST(a_damaged_stage_is_made_anew)
{
    ck_assert(make());
    spoil(_i);
    ck_assert(make());
    check_values();
    ck_assert(!make());
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_stage_of_something_else_is_made_anew)
{
    char other[BK_STAGE_PATH];
    ck_assert(make());
    strcpy(other, s.dir);
    ck_assert_int_eq(bk_stage_open(&s, "init", "another thing\n", &err), BK_OK);
    ck_assert(!s.done);
    bk_stage_close(&s);
    ck_assert_int_eq(rename(other, s.dir), 0); /* under a name that is not its own */
    ck_assert_int_eq(bk_stage_open(&s, "init", "another thing\n", &err), BK_OK);
    ck_assert(!s.done);
    bk_stage_close(&s);
}
END_TEST

/* --- the ledger --- */

/* What a writer that was killed leaves, and what two at once leave on a network file system. */
static const struct {
    const char *bytes;
    size_t n;
} broken[] = {{"{\"stage\": \"init\", \"ha", 22}, {"\0\0\0\0{\"stage\"", 12}, {"abc\n\n\n", 6}, {"", 0}};

START_TEST(broken_lines_hide_no_other_line)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ledger.jsonl", root);
    ck_assert_int_eq(bk_write_file(path, broken[_i].bytes, broken[_i].n, &err), BK_OK);
    ck_assert(!bk_ledger_has(BK_STAGE_INIT, "abc"));
    begin();
    strcpy(s.quick, "abc");
    ck_assert_int_eq(bk_stage_commit(&s, &err), BK_OK);
    bk_stage_close(&s);
    ck_assert(bk_ledger_has(BK_STAGE_INIT, "abc"));
    ck_assert(!bk_ledger_has(BK_STAGE_OUTLIERS, "abc"));
    ck_assert(!bk_ledger_has(BK_STAGE_INIT, "abd"));
}
END_TEST

/* --- several processes --- */

static pid_t child(bool (*fn)(void), int delay)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        usleep((useconds_t)delay);
        _exit(fn());
    }
    return pid;
}

static int status_of(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool make_slowly(void)
{
    begin();
    bool made = !s.done;
    if (made) {
        usleep(200000);
        ck_assert_int_eq(bk_stage_commit(&s, &err), BK_OK);
    }
    bk_stage_close(&s);
    return made;
}

START_TEST(many_processes_make_it_once)
{
    enum { MANY = 6 };
    pid_t pid[MANY];
    int made = 0;
    if (_i) { /* with a damaged one in the way */
        ck_assert(make());
        spoil(3);
    }
    for (int i = 0; i < MANY; i++) pid[i] = child(make_slowly, 1000 * i);
    for (int i = 0; i < MANY; i++) made += status_of(pid[i]);
    ck_assert_int_eq(made, 1);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

static bool die_at_work(void)
{
    begin();
    kill(getpid(), SIGKILL);
    return false;
}

START_TEST(who_died_at_it_is_succeeded_and_cleaned_up)
{
    ck_assert_int_eq(status_of(child(die_at_work, 0)), 128 + SIGKILL);
    ck_assert_int_eq(entries(), 2);
    ck_assert(make());
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(who_dies_while_others_wait_is_succeeded)
{
    pid_t first = child(make_slowly, 0), second = child(make_slowly, 50000);
    usleep(100000);
    kill(first, SIGKILL);
    ck_assert_int_eq(status_of(second), 1); /* first is not even reaped */
    status_of(first);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_lock_of_another_host_is_waited_for)
{
    char path[BK_STAGE_FILE];
    begin();
    snprintf(path, sizeof path, "%s.lock", s.dir);
    bk_stage_close(&s);
    ck_assert_int_eq(symlink("77.1.1.00000001@elsewhere", path), 0);
    pid_t pid = child(make_slowly, 0);
    usleep(400000);
    ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
    ck_assert_int_eq(unlink(path), 0); /* as it is told to */
    ck_assert_int_eq(status_of(pid), 1);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_complete_stage_needs_no_lock)
{
    char path[BK_STAGE_FILE];
    ck_assert(make());
    snprintf(path, sizeof path, "%s.lock", s.dir);
    ck_assert_int_eq(symlink("77.1.1.00000001@elsewhere", path), 0); /* its maker died when it had finished */
    ck_assert(!make());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage");
    TCase *t = tcase_create("stage");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_stage_is_made_once);
    tcase_add_test(t, one_that_was_given_up_leaves_nothing);
    tcase_add_loop_test(t, a_damaged_stage_is_made_anew, 0, 6);
    tcase_add_test(t, a_stage_of_something_else_is_made_anew);
    tcase_add_loop_test(t, broken_lines_hide_no_other_line, 0, sizeof broken / sizeof broken[0]);
    tcase_add_loop_test(t, many_processes_make_it_once, 0, 2);
    tcase_add_test(t, who_died_at_it_is_succeeded_and_cleaned_up);
    tcase_add_test(t, who_dies_while_others_wait_is_succeeded);
    tcase_add_test(t, a_lock_of_another_host_is_waited_for);
    tcase_add_test(t, a_complete_stage_needs_no_lock);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
