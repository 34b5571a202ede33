/* brick dump when it is ended, when others read at the same time, and where nothing may be written: the file is whole or not there, an old one stays
 * until the new one is whole. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "experiments/progress.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

#define DUMP "dump --model ../m --text ../m/eval.txt --sites down_in,key --seqlen 32 --windows 8 --threads 1 --out "
#define RANDOM_KILLS 12

static void same_file(const char *a, const char *b)
{
    char line[256];
    snprintf(line, sizeof line, "cmp %s %s", a, b);
    ck_assert_msg(system(line) == 0, "%s", line);
}

static void made_again(void)
{
    e2e_brick(0, DUMP "x.h5");
    same_file("x.h5", "full.h5");
    ck_assert(!bk_exists("x.h5.partial"));
}

/* A dump that was killed has left all of it or nothing, and nothing in the way of the next one. */
static void whole_or_absent(void)
{
    if (bk_exists("x.h5")) same_file("x.h5", "full.h5");
    made_again();
}

/* At the steps of its blocks, at its fsyncs (of the file and of the folder) and at its rename. */
static const char *const moments[] = {"clock:1", "clock:2", "clock:3", "clock:4", "fsync:1", "rename:1", "fsync:2"};

START_TEST(a_dump_that_is_killed_is_made_again)
{
    e2e_brick(0, DUMP "full.h5");
    e2e_stop_at(moments[_i], SIGKILL);
    e2e_brick(128 + SIGKILL, DUMP "x.h5");
    e2e_stop_at(NULL, 0);
    ck_assert(bk_exists("x.h5") == !strcmp(moments[_i], "fsync:2"));
    whole_or_absent();
}
END_TEST

START_TEST(a_dump_that_is_killed_in_the_middle_is_no_dump)
{
    e2e_stop_at("clock:3", SIGKILL);
    e2e_brick(128 + SIGKILL, DUMP "x.h5");
    e2e_stop_at(NULL, 0);
    e2e_brick(3, "inspect x.h5");
    e2e_brick(3, "inspect x.h5.partial");
    e2e_said("x.h5.partial");
}
END_TEST

START_TEST(a_dump_killed_at_random_is_made_again)
{
    double start = bk_seconds();
    e2e_brick(0, DUMP "full.h5");
    double seconds = bk_seconds() - start;
    for (uint64_t i = 0; i < RANDOM_KILLS; i++) {
        double wait = seconds * bk_rng_uniform(8, BK_RNG_TEST, i);
        struct timespec t = {(time_t)wait, (long)(1e9 * (wait - (double)(time_t)wait))};
        e2e_remove("x.h5");
        pid_t pid = e2e_start(DUMP "x.h5");
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        e2e_wait(pid);
        whole_or_absent();
    }
}
END_TEST

START_TEST(an_old_dump_stays_until_the_new_one_is_whole)
{
    e2e_brick(0, DUMP "old.h5 --dtype f32");
    e2e_brick(0, DUMP "x.h5 --dtype f32");
    e2e_brick(0, DUMP "full.h5");
    e2e_stop_at(moments[_i], SIGKILL);
    e2e_brick(128 + SIGKILL, DUMP "x.h5");
    e2e_stop_at(NULL, 0);
    same_file("x.h5", strcmp(moments[_i], "fsync:2") ? "old.h5" : "full.h5");
    e2e_brick(0, "inspect x.h5");
}
END_TEST

START_TEST(a_dump_that_is_being_written_is_not_read)
{
    int how;
    e2e_stop_at("clock:3", SIGSTOP);
    pid_t pid = e2e_start(DUMP "x.h5");
    e2e_stop_at(NULL, 0);
    ck_assert_int_eq(waitpid(pid, &how, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(how));
    e2e_brick(3, "inspect x.h5");
    e2e_brick(3, "inspect x.h5.partial");
    e2e_said("x.h5.partial");
    kill(pid, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 0);
    e2e_brick(0, DUMP "full.h5");
    same_file("x.h5", "full.h5");
}
END_TEST

static const char *const damages[] = {"truncate -s -1 x.h5", "truncate -s 40000 x.h5", "truncate -s 0 x.h5", "printf x | dd of=x.h5 bs=1 seek=60000 conv=notrunc 2>dd",
                                      "printf x | dd of=x.h5 bs=1 seek=40 conv=notrunc 2>dd"};

START_TEST(a_damaged_dump_is_refused_and_can_be_made_again)
{
    e2e_brick(0, DUMP "full.h5");
    e2e_brick(0, DUMP "x.h5");
    ck_assert_int_eq(system(damages[_i]), 0);
    e2e_brick(3, "inspect x.h5 /blocks/000/sites/down_in");
    e2e_said("x.h5");
    ck_assert_int_eq(unlink("x.h5"), 0); /* what cannot be read is not written over: it may be somebody's */
    made_again();
}
END_TEST

/* Root may write into folders of any mode, so for it the folder is on a file system that nobody may write to. */
static bool lock_folder(const char *dir)
{
    ck_assert_int_eq(mkdir(dir, geteuid() == 0 ? 0777 : 0555), 0);
    if (geteuid() != 0 || mount("tmpfs", dir, "tmpfs", MS_RDONLY, "size=40k") == 0) return true;
    (void)e2e_skipped(1, "a_folder_that_is_read_only_is_named: cannot mount a tmpfs");
    return false;
}

START_TEST(a_folder_that_is_read_only_is_named)
{
    static const char *const commands[] = {DUMP "locked/x.h5", "run run.yaml --out locked/a", "synth --out locked/m --shape tiny"};
    const char *why = geteuid() == 0 ? "Read-only file system" : "Permission denied";
    int status[3];
    char *said[3];
    if (!lock_folder("locked")) return;
    for (int i = 0; i < 3; i++) {
        status[i] = e2e_wait(e2e_start("%s", commands[i]));
        said[i] = e2e_text("err");
    }
    if (geteuid() == 0) ck_assert_int_eq(umount("locked"), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(status[i] == 3 && strstr(said[i], "locked/") && strstr(said[i], why), "%s: exit status %d:\n%s", commands[i], status[i], said[i]);
        free(said[i]);
    }
}
END_TEST

/* The folder cannot be made because the disk has no room for it: a full disk, not a wrong place. */
START_TEST(a_disk_without_room_for_a_folder_is_full)
{
    ck_assert_int_eq(mkdir("disk", 0777), 0);
    if (mount("tmpfs", "disk", "tmpfs", 0, "nr_inodes=1") != 0) {
        (void)e2e_skipped(1, "a_disk_without_room_for_a_folder_is_full: cannot mount a tmpfs");
        return;
    }
    int status = e2e_wait(e2e_start("run run.yaml --out disk/a"));
    ck_assert_int_eq(umount("disk"), 0);
    ck_assert_int_eq(status, 5);
    e2e_said("disk/a");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_dump");
    TCase *t = tcase_create("dump");
    int n = sizeof moments / sizeof moments[0];
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, a_dump_that_is_killed_is_made_again, 0, n);
    tcase_add_test(t, a_dump_that_is_killed_in_the_middle_is_no_dump);
    tcase_add_test(t, a_dump_killed_at_random_is_made_again);
    tcase_add_loop_test(t, an_old_dump_stays_until_the_new_one_is_whole, 0, n);
    tcase_add_test(t, a_dump_that_is_being_written_is_not_read);
    tcase_add_loop_test(t, a_damaged_dump_is_refused_and_can_be_made_again, 0, sizeof damages / sizeof damages[0]);
    tcase_add_test(t, a_folder_that_is_read_only_is_named);
    tcase_add_test(t, a_disk_without_room_for_a_folder_is_full);
    suite_add_tcase(s, t);
    return run_suite(s);
}
