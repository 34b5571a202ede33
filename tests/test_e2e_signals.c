/* What ends a run from outside: signals, readers that leave, disks that are full. Each time the run says so by its exit status and goes on
 * afterwards to the results of a run that was left alone. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

static void full_run(void)
{
    e2e_brick(0, "run run.yaml --out full");
    e2e_remove("cache");
}

static void resumes(const char *dir)
{
    e2e_brick(0, "run run.yaml --out %s --resume", dir);
    e2e_same_run("full", dir);
}

/* --- signals --- */

static const int stopping[] = {SIGINT, SIGTERM, SIGHUP};

START_TEST(interrupted_run_says_so_and_resumes)
{
    long idle[3], calls[3];
    e2e_count(idle, "list schemes"); /* some OpenMP libraries read the clock too, before the program and after it */
    e2e_count(calls, "run run.yaml --out full");
    for (int i = 1; i <= 16; i += 3) {
        char at[32];
        snprintf(at, sizeof at, "clock:%ld", idle[2] + (calls[2] - 2 * idle[2]) * i / 20);
        e2e_remove("a");
        e2e_remove("cache");
        e2e_stop_at(at, stopping[_i]);
        e2e_brick(130, "run run.yaml --out a");
        e2e_stop_at(NULL, 0);
        e2e_said("interrupted");
        resumes("a");
    }
}
END_TEST

static void wait_for(const char *path)
{
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < 6000 && !bk_exists(path); i++) nanosleep(&pause, NULL);
    ck_assert_msg(bk_exists(path), "%s did not appear", path);
}

/* Two signals that arrive together: the handler of the second ends the program before it could say anything. */
START_TEST(second_signal_ends_at_once)
{
    pid_t pid = e2e_start("run run.yaml --set train.epochs=100000 --out a");
    wait_for("a/targets/000.h5");
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    kill(pid, SIGINT);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    e2e_silent("interrupted");
}
END_TEST

START_TEST(interrupted_training_ends_within_a_step)
{
    pid_t pid = e2e_start("run run.yaml --set train.epochs=100000 --out a");
    wait_for("a/targets/000.h5");
    kill(pid, SIGINT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    e2e_said("interrupted");
}
END_TEST

START_TEST(hangup_is_ignored_under_nohup)
{
    signal(SIGHUP, SIG_IGN);
    full_run();
    e2e_stop_at("clock:30", SIGHUP);
    e2e_brick(0, "run run.yaml --out a");
    e2e_stop_at(NULL, 0);
    signal(SIGHUP, SIG_DFL);
    e2e_same_run("full", "a");
}
END_TEST

/* inspect reads in a child of its own. */
START_TEST(children_of_who_ignores_them_are_waited_for)
{
    full_run();
    signal(SIGCHLD, SIG_IGN);
    pid_t pid = e2e_start("inspect full/prefix.h5");
    signal(SIGCHLD, SIG_DFL);
    ck_assert_int_eq(e2e_wait(pid), 0);
    e2e_brick(0, "inspect full/prefix.h5");
}
END_TEST

/* 2 GiB, of which the disk holds nothing. */
static void write_large(const char *path)
{
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), dcpl = H5Pcreate(H5P_DATASET_CREATE),
          space = H5Screate_simple(2, (const hsize_t[]){1 << 19, 1 << 10}, NULL);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER);
    hid_t d = H5Dcreate2(f, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert_int_ge(d, 0);
    H5Dclose(d), H5Sclose(space), H5Pclose(dcpl), H5Fclose(f);
}

START_TEST(a_signal_to_inspect_alone_reaches_its_child)
{
    write_large("large.h5");
    pid_t pid = e2e_start("inspect large.h5 /x");
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    kill(pid, SIGTERM);
    ck_assert_int_eq(e2e_wait(pid), 130);
    e2e_said("interrupted");
}
END_TEST

/* --- readers that leave --- */

START_TEST(reader_that_left_is_no_success_but_the_run_is_whole)
{
    int ends[2];
    full_run();
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    e2e_stdout(ends[1]);
    e2e_brick(128 + SIGPIPE, "run run.yaml --out a");
    e2e_same_run("full", "a");
    close(ends[1]);
}
END_TEST

START_TEST(full_stdout_is_no_success_but_the_run_is_whole)
{
    full_run();
    int fd = open("/dev/full", O_WRONLY);
    e2e_stdout(fd);
    e2e_brick(5, "run run.yaml --out a");
    e2e_said("standard output");
    e2e_same_run("full", "a");
    close(fd);
}
END_TEST

static const char *const talkers[] = {"eval --model ../m --text ../m/eval.txt --seqlen 32 --windows 1 --json", "generate --model ../m --prompt a --tokens 2",
                                      "outliers --model ../m --text ../m/eval.txt --seqlen 32 --samples 2", "plan run.yaml", "list methods",
                                      "dump --model ../m --text ../m/eval.txt --sites key --seqlen 32 --windows 1 --out x.h5", "run -h"};

START_TEST(full_stdout_is_no_success_of_any_verb)
{
    int fd = open("/dev/full", O_WRONLY);
    e2e_stdout(fd);
    e2e_brick(5, "%s", talkers[_i]);
    e2e_said("standard output");
    close(fd);
}
END_TEST

START_TEST(nothing_is_printed_into_files_that_took_the_place_of_closed_ones)
{
    full_run();
    e2e_closed(true);
    e2e_brick(5, "run run.yaml --out a");
    e2e_closed(false);
    e2e_same_run("full", "a");
    char *log = e2e_text("a/log.txt"), *progress = e2e_text("a/progress.json");
    ck_assert_msg(!strstr(log, "ln(ppl"), "the table is in log.txt:\n%s", log);
    ck_assert_msg(!strstr(progress, "done in"), "messages are in progress.json:\n%s", progress);
    free(log);
    free(progress);
    e2e_brick(0, "run run.yaml --out a");
}
END_TEST

/* --- disks --- */

static const long sizes[] = {2000, 6000, 12000, 25000, 50000, 120000};

#if defined(__SANITIZE_THREAD__)
#define LIMITS 0 /* the sanitizer writes a larger file itself when it starts */
#else
#define LIMITS (int)(sizeof sizes / sizeof sizes[0])
#endif

START_TEST(limit_of_file_size_is_a_full_disk)
{
    full_run();
    e2e_limit(sizes[_i]);
    e2e_brick(5, "run run.yaml --out a");
    e2e_limit(0);
    resumes("a");
}
END_TEST

START_TEST(full_disk_loses_nothing)
{
    static const char *const room[] = {"size=40k", "size=100k", "size=200k"};
    full_run();
    ck_assert_int_eq(mkdir("disk", 0777), 0);
    for (size_t i = 0; i < sizeof room / sizeof room[0]; i++) {
        if (mount("tmpfs", "disk", "tmpfs", 0, room[i]) != 0) {
            (void)e2e_skipped(1, "full_disk_loses_nothing: cannot mount a tmpfs");
            return;
        }
        int status = e2e_wait(e2e_start("run run.yaml --out disk/a"));
        int wider = mount("tmpfs", "disk", "tmpfs", MS_REMOUNT, "size=16m");
        int resumed = e2e_wait(e2e_start("run run.yaml --out disk/a --resume"));
        if (!wider && !resumed) e2e_copy_tree("disk/a", "a");
        ck_assert_int_eq(umount("disk"), 0);
        ck_assert_msg(status == 5, "%s: exit status %d", room[i], status);
        ck_assert_msg(!wider && !resumed, "%s: not resumed: exit status %d", room[i], resumed);
        e2e_same_run("full", "a");
        e2e_remove("a");
        e2e_remove("cache");
    }
}
END_TEST

START_TEST(folder_that_cannot_be_made_is_an_error)
{
    e2e_brick(3, "run run.yaml --out /proc/brick/a");
    e2e_said("/proc/brick");
    e2e_write("file", "");
    e2e_brick(2, "run run.yaml --out file");
    e2e_said("file");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_signals");
    TCase *t = tcase_create("signals");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, interrupted_run_says_so_and_resumes, 0, sizeof stopping / sizeof stopping[0]);
    tcase_add_test(t, second_signal_ends_at_once);
    tcase_add_test(t, interrupted_training_ends_within_a_step);
    tcase_add_test(t, hangup_is_ignored_under_nohup);
    tcase_add_test(t, children_of_who_ignores_them_are_waited_for);
    tcase_add_test(t, a_signal_to_inspect_alone_reaches_its_child);
    tcase_add_test(t, reader_that_left_is_no_success_but_the_run_is_whole);
    tcase_add_test(t, full_stdout_is_no_success_but_the_run_is_whole);
    tcase_add_loop_test(t, full_stdout_is_no_success_of_any_verb, 0, sizeof talkers / sizeof talkers[0]);
    tcase_add_test(t, nothing_is_printed_into_files_that_took_the_place_of_closed_ones);
    tcase_add_loop_test(t, limit_of_file_size_is_a_full_disk, 0, LIMITS);
    tcase_add_test(t, full_disk_loses_nothing);
    tcase_add_test(t, folder_that_cannot_be_made_is_an_error);
    suite_add_tcase(s, t);
    return run_suite(s);
}
