/* brick sweep that is killed, interrupted, or meets others at work: it goes on to the same results. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "experiments/run.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/e2e_sweep.h"
#include "tests/suite.h"

static bool busy(const char *dir)
{
    bk_lock_owner owner;
    return bk_run_folder_busy(dir, &owner);
}

/* --- ends from outside --- */

START_TEST(killed_sweep_goes_on_to_the_results_of_one_that_was_not)
{
    sweep_file(SWEEP_TWELVE);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(sweep_made_in_all(), 6);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started"); /* what is done is not done again */
    sweep_set_aside();
    pid_t pid = sweep_begin("");
    sweep_wait_until("err", ": started", 6);
    kill(pid, SIGKILL);
    ck_assert_int_eq(e2e_wait(pid), 128 + SIGKILL);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_le(sweep_count("err", ": started"), 8);
    sweep_expect_same("full", "a");
    e2e_same_tree("full-cache", "cache");
    e2e_same_run("full/epochs=2,lr_quant=0.01", "a/epochs=2,lr_quant=0.01");
}
END_TEST

/* Each time after two more starts, wherever the points are then. */
START_TEST(sweep_that_is_killed_over_and_over_comes_to_its_end)
{
    sweep_file(SWEEP_TWELVE);
    sweep_reference();
    int status = 128 + SIGKILL, i = 0;
    for (; status == 128 + SIGKILL; i++) {
        ck_assert_int_lt(i, 40);
        pid_t pid = sweep_begin(" --jobs 2");
        sweep_wait_until("err", " at a time", 1);
        for (int k = 0; k < 100 && sweep_count("err", ": started") < 4; k++) nanosleep(&(struct timespec){0, 10000000}, NULL);
        kill(pid, SIGKILL);
        status = e2e_wait(pid);
    }
    ck_assert_int_eq(status, 0);
    ck_assert_int_ge(i, 2); /* the last one came to its end */
    sweep_expect_same("full", "a");
    e2e_same_tree("full-cache", "cache");
}
END_TEST

/* As the kernel does when memory is out. */
START_TEST(killed_point_has_failed_and_is_tried_again)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [2]}\n");
    e2e_stop_at("rename:12", SIGKILL);
    e2e_brick(5, "sweep sweep.yaml --out a");
    e2e_stop_at(NULL, 0);
    e2e_said("epochs=2: failed (exit 5): ended by signal 9 (Killed), as when memory is out");
    sweep_expect_cell("a", 0, "status", "failed");
    sweep_expect_cell("a", 0, "exit_code", "5");
    e2e_brick(0, "sweep sweep.yaml --out a");
    sweep_expect_cell("a", 0, "status", "done");
    sweep_expect_cell("a", 0, "message", "null");
}
END_TEST

START_TEST(interrupted_sweep_stops_its_points_and_says_130)
{
    sweep_file(SWEEP_FOUR);
    sweep_reference();
    e2e_replace("sweep.yaml", "[1, 2]", "[1, 2, 1000000]");
    pid_t pid = sweep_begin(" --jobs 2");
    sweep_wait_until("a/epochs=1000000,lr_quant=0.01/metrics.jsonl", "epoch", 1);
    kill(pid, SIGINT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    ck_assert(!busy("a/epochs=1000000,lr_quant=0.01"));
    ck_assert_int_eq(sweep_count("a/epochs=1000000,lr_quant=0.01.log", "interrupted"), 1);
    sweep_expect_cell("a", 5, "status", "pending");
    sweep_file(SWEEP_FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    sweep_expect_same("full", "a");
}
END_TEST

START_TEST(points_of_a_killed_sweep_stop)
{
    const struct timespec pause = {0, 5000000};
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1000000]}\n");
    pid_t pid = sweep_begin("");
    sweep_wait_until("a/epochs=1000000/metrics.jsonl", "epoch", 1);
    kill(pid, SIGKILL);
    e2e_wait(pid);
    for (int i = 0; i < 4000 && busy("a/epochs=1000000"); i++) nanosleep(&pause, NULL);
    ck_assert(!busy("a/epochs=1000000"));
}
END_TEST

/* --- moments that are hard to meet: processes that stop when they look at the clock first --- */

/* As /proc has it: R, S, T for stopped, Z for ended; 0 = there is no such process. */
static char state_of(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    if (f) fclose(f);
    return state;
}

static void wait_for(pid_t pid, char state)
{
    const struct timespec pause = {0, 2000000};
    for (int i = 0; i < 10000 && state_of(pid) != state; i++) nanosleep(&pause, NULL);
    ck_assert_int_eq(state_of(pid), state);
}

/* The point that a sweep runs, once it has stopped; 0 if the sweep ends instead. */
static pid_t stopped_point(pid_t sweep)
{
    const struct timespec pause = {0, 2000000};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)sweep, (int)sweep);
    for (int i = 0; i < 10000 && state_of(sweep) != 'Z'; i++) {
        int child = 0;
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%d", &child) != 1) child = 0;
        if (f) fclose(f);
        if (child && state_of(child) == 'T') return child;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* A sweep whose points stop before they look at their folders. */
static pid_t begin_stopping_sweep(void)
{
    e2e_stop_at("clock:1", SIGSTOP);
    pid_t pid = sweep_begin("");
    e2e_stop_at(NULL, 0);
    wait_for(pid, 'T');
    kill(pid, SIGCONT);
    return pid;
}

/* Another brick has the folder when the point wants it, and has left it when the sweep looks why its point ended. */
START_TEST(point_that_was_refused_its_folder_is_tried_again)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1]}\n");
    pid_t pid = begin_stopping_sweep(), point = stopped_point(pid);
    ck_assert_int_gt(point, 0);
    kill(pid, SIGSTOP);
    wait_for(pid, 'T');
    ck_assert_int_eq(system("mkdir a/epochs=1 && ln -s 99.1.1.00000001@elsewhere a/epochs=1/run.lock"), 0);
    kill(point, SIGCONT);
    wait_for(point, 'Z');
    ck_assert_int_eq(unlink("a/epochs=1/run.lock"), 0);
    kill(pid, SIGCONT);
    point = stopped_point(pid);
    if (point) kill(point, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 0);
    ck_assert_int_eq(sweep_count("err", ": started"), 2);
    e2e_silent("failed");
    sweep_expect_cell("a", 0, "status", "done");
}
END_TEST

/* A crash is none of the documented ends; a signal from outside is one. */
static const struct {
    int signal;
    const char *code;
} ends[] = {{SIGABRT, "134"}, {SIGKILL, "5"}};

START_TEST(point_that_a_signal_ended_has_the_exit_code_for_that)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1]}\n");
    pid_t pid = begin_stopping_sweep(), point = stopped_point(pid);
    ck_assert_int_gt(point, 0);
    kill(point, ends[_i].signal);
    kill(point, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), atoi(ends[_i].code));
    sweep_expect_cell("a", 0, "exit_code", ends[_i].code);
}
END_TEST

/* The second signal ends a run at once, without a word. */
START_TEST(reason_of_an_earlier_attempt_is_not_that_of_this_one)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1]}\n");
    ck_assert_int_eq(mkdir("a", 0777), 0);
    e2e_write("a/epochs=1.log", "brick: an old reason\n");
    pid_t pid = begin_stopping_sweep(), point = stopped_point(pid);
    ck_assert_int_gt(point, 0);
    kill(point, SIGTERM);
    kill(point, SIGINT);
    kill(point, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    e2e_said("epochs=1: failed (exit 130): exit status 130");
    sweep_expect_cell("a", 0, "status", "failed");
}
END_TEST

/* Somebody else runs a point: the sweep waits and collects. */
START_TEST(point_that_another_process_runs_is_waited_for)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [400, 1]}\n");
    pid_t other = e2e_start("run run.yaml --set train.epochs=400 --out a/epochs=400");
    sweep_wait_until("a/epochs=400/metrics.jsonl", "epoch", 1);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("another brick is running there");
    ck_assert_int_eq(e2e_wait(other), 0);
    e2e_silent("epochs=400: started");
    sweep_expect_cell("a", 0, "status", "done");
}
END_TEST

START_TEST(two_sweeps_do_not_share_a_folder)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1000000]}\n");
    pid_t pid = sweep_begin("");
    sweep_wait_until("err", ": started", 1);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("another sweep is running");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    kill(pid, SIGTERM);
    ck_assert_int_eq(e2e_wait(pid), 130);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_sweep_ends");
    TCase *t = tcase_create("sweep");
    tcase_set_timeout(t, 240);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, killed_sweep_goes_on_to_the_results_of_one_that_was_not);
    tcase_add_test(t, sweep_that_is_killed_over_and_over_comes_to_its_end);
    tcase_add_test(t, killed_point_has_failed_and_is_tried_again);
    tcase_add_test(t, interrupted_sweep_stops_its_points_and_says_130);
    tcase_add_test(t, points_of_a_killed_sweep_stop);
    tcase_add_test(t, point_that_was_refused_its_folder_is_tried_again);
    tcase_add_loop_test(t, point_that_a_signal_ended_has_the_exit_code_for_that, 0, sizeof ends / sizeof ends[0]);
    tcase_add_test(t, reason_of_an_earlier_attempt_is_not_that_of_this_one);
    tcase_add_test(t, point_that_another_process_runs_is_waited_for);
    tcase_add_test(t, two_sweeps_do_not_share_a_folder);
    suite_add_tcase(s, t);
    return run_suite(s);
}
