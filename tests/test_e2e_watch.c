/* brick watch beside a run, as two processes: it follows to the end, sees a death, and leaves when it is told to. And
 * what every verb promises to a pipe. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "experiments/progress.h"
#include "io/file.h"
#include "io/lock.h"
#include "tests/e2e.h"
#include "tests/suite.h"

static char *out;

static void wait_for(const char *path)
{
    for (int i = 0; i < 6000 && !bk_exists(path); i++) nanosleep(&(struct timespec){0, 5000000}, NULL);
    ck_assert_msg(bk_exists(path), "%s did not appear", path);
}

static void has(const char *words)
{
    ck_assert_msg(strstr(out, words), "'%s' is not in:\n%s", words, out);
}

/* A run that goes on for minutes. */
static pid_t long_run(const char *dir)
{
    char path[128];
    pid_t pid = e2e_start("run run.yaml --set train.epochs=100000 --out %s", dir);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    wait_for(path);
    return pid;
}

static void end(pid_t pid, int with)
{
    kill(pid, with);
    e2e_wait(pid);
}

START_TEST(follows_a_run_to_its_end)
{
    pid_t run = e2e_start("run run.yaml --set train.epochs=300 --out a");
    wait_for("a/log.txt");
    e2e_brick(0, "watch a --interval 0.1");
    out = e2e_text("out");
    has("a: [4/5] train");
    has("epoch ");
    has("a: finished: perplexity ");
    for (const char *c = out; *c; c++)
        ck_assert_msg(*c == '\n' || *c >= ' ', "a control character %d in:\n%s", *c, out);
    ck_assert_int_eq(e2e_wait(run), 0);
    free(out);
}
END_TEST

START_TEST(killed_run_is_seen_and_the_advice_goes_on_with_it)
{
    e2e_stop_at("rename:14", SIGKILL);
    ck_assert_int_eq(e2e_wait(e2e_start("run run.yaml --out a")), 128 + SIGKILL);
    e2e_stop_at(NULL, 0);
    e2e_append("a/metrics.jsonl", "{\"block\": 1, \"ep");
    e2e_brick(3, "watch a");
    e2e_said("without a result");
    out = e2e_text("out");
    has("a: stopped at [");
    char *advice = strstr(out, "brick run a/config.yaml --out a --resume\n");
    ck_assert_ptr_nonnull(advice);
    e2e_brick(0, "%.*s", (int)strlen("run a/config.yaml --out a --resume"), advice + strlen("brick "));
    e2e_brick(0, "watch a");
    free(out);
}
END_TEST

START_TEST(death_is_seen_while_watching)
{
    pid_t run = long_run("a"), watch = e2e_start("watch a --interval 0.1");
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    end(run, SIGKILL);
    ck_assert_int_eq(e2e_wait(watch), 3);
}
END_TEST

START_TEST(interrupted_run_says_why_it_stopped)
{
    end(long_run("a"), SIGINT);
    e2e_brick(0, "watch a --once");
    out = e2e_text("out");
    has("interrupted");
    free(out);
}
END_TEST

START_TEST(interrupt_ends_the_watch_at_once)
{
    pid_t run = long_run("a"), watch = e2e_start("watch a --interval 60");
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    double start = bk_seconds();
    kill(watch, SIGINT);
    ck_assert_int_eq(e2e_wait(watch), 130);
    ck_assert_double_lt(bk_seconds() - start, 1);
    end(run, SIGKILL);
}
END_TEST

START_TEST(reader_that_left_ends_the_watch)
{
    int ends[2];
    pid_t run = long_run("a");
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    e2e_stdout(ends[1]);
    e2e_brick(128 + SIGPIPE, "watch a --interval 0.1");
    close(ends[1]);
    end(run, SIGKILL);
}
END_TEST

START_TEST(one_look_is_one_object)
{
    pid_t run = long_run("a");
    e2e_brick(0, "watch a --once --json");
    end(run, SIGKILL);
    bk_json *o;
    bk_error err = {0};
    ck_assert_int_eq(bk_json_load("out", &o, &err), BK_OK);
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "state"), ""), "running");
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "blocks"), 0), 2);
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "epochs"), 0), 100000);
    bk_json_free(o);
}
END_TEST

START_TEST(terminal_is_redrawn_in_place)
{
    static const char again[] = "\033[1A\ra: "; /* one line up, and over it */
    char text[65536] = "";
    int other, terminal = e2e_terminal(&other);
    if (terminal < 0) return;
    pid_t run = long_run("a");
    e2e_stdout(other);
    setenv("TERM", "xterm", 1);
    pid_t watch = e2e_start("watch a --interval 0.1");
    for (size_t len = 0; !strstr(text, again) && len + 1 < sizeof text;) { /* blocks until there is something */
        ssize_t n = read(terminal, text + len, sizeof text - 1 - len);
        ck_assert_int_gt(n, 0);
        len += (size_t)n;
    }
    kill(watch, SIGINT);
    ck_assert_int_eq(e2e_wait(watch), 130);
    end(run, SIGKILL);
    out = text;
    has("a: [4/5] train");
    has("\033[K\n");   /* the rest of the line is emptied */
    has(again);
    close(other);
    close(terminal);
}
END_TEST

START_TEST(folder_of_runs_is_a_table)
{
    e2e_brick(0, "run run.yaml --out r/a10");
    end(long_run("r/a9"), SIGKILL);
    ck_assert_int_eq(mkdir("r/empty", 0777), 0);
    e2e_brick(0, "watch r --once");
    out = e2e_text("out");
    has("1 finished, 1 stopped");
    ck_assert_ptr_null(strstr(out, "empty"));
    ck_assert(strstr(out, "\na9 ") < strstr(out, "\na10 "));
    free(out);
    e2e_brick(0, "watch r --once --json");
    ck_assert(e2e_number("out", "finished", NULL) == 1 && e2e_number("out", "stopped", NULL) == 1);
}
END_TEST

/* As long as the sweep itself goes on, a moment without a run is not the end. */
static void follows_the_sweep(int status)
{
    bk_error err = {0};
    bk_lock lock = {0};
    bk_lock_owner owner;
    time_t begin = time(NULL);
    ck_assert_int_eq(bk_lock_try(&lock, "r/sweep.lock", &owner, &err), BK_OK);
    pid_t watch = e2e_start("watch r --interval 0.1");
    nanosleep(&(struct timespec){0, 700000000}, NULL);
    ck_assert_int_eq(waitpid(watch, NULL, WNOHANG), 0);
    bk_lock_release(&lock);
    ck_assert_int_eq(e2e_wait(watch), status);
    ck_assert_msg(time(NULL) - begin < 8, "the end of the sweep was not noticed");
}

START_TEST(folder_of_a_sweep_is_followed_until_the_sweep_ends)
{
    e2e_brick(0, "run run.yaml --out r/a");
    follows_the_sweep(0);
    out = e2e_text("out");
    has("a: finished: perplexity");
    free(out);
}
END_TEST

START_TEST(sweep_is_followed_before_its_first_run)
{
    ck_assert_int_eq(mkdir("r", 0777), 0);
    follows_the_sweep(0);
}
END_TEST

START_TEST(stopped_runs_of_a_sweep_go_on_with_the_sweep)
{
    end(long_run("r/a"), SIGKILL);
    follows_the_sweep(3);
    out = e2e_text("out");
    has("the same `brick sweep` goes on");
    ck_assert_ptr_null(strstr(out, "go on with:"));
    free(out);
}
END_TEST

START_TEST(watching_does_not_keep_a_run_from_starting)
{
    end(long_run("a"), SIGKILL);
    for (int i = 0; i < 8; i++) {
        pid_t watch = e2e_start("watch a --once");
        e2e_wait(e2e_start("run run.yaml --out a --set seed=5"));
        e2e_silent("another brick");
        e2e_wait(watch);
    }
}
END_TEST

/* The run is as if nobody had wanted to know. */
START_TEST(progress_that_cannot_be_written_changes_nothing)
{
    e2e_brick(0, "run run.yaml --out full");
    end(long_run("a"), SIGKILL);
    e2e_remove("a");
    e2e_stop_at("rename:12", SIGKILL);
    e2e_wait(e2e_start("run run.yaml --out a"));
    e2e_stop_at(NULL, 0);
    e2e_remove("a/progress.json");
    ck_assert_int_eq(symlink("/dev/full", "a/progress.json"), 0);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(folder_that_is_no_run_is_refused)
{
    e2e_brick(3, "watch nowhere");
    e2e_brick(3, "watch ../m");
    e2e_said("neither");
    e2e_brick(2, "watch");
}
END_TEST

START_TEST(a_pipe_gets_no_control_characters)
{
    e2e_brick(0, "run run.yaml --out a");
    const char *const files[] = {"out", "err", "a/log.txt"};
    for (int i = 0; i < 3; i++) {
        char *text = e2e_text(files[i]);
        for (const char *c = text; *c; c++)
            ck_assert_msg(*c == '\n' || *c >= ' ' || *c < 0, "%s has the control character %d:\n%s", files[i], *c,
                          text);
        free(text);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_watch");
    TCase *t = tcase_create("watch");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, follows_a_run_to_its_end);
    tcase_add_test(t, killed_run_is_seen_and_the_advice_goes_on_with_it);
    tcase_add_test(t, death_is_seen_while_watching);
    tcase_add_test(t, interrupted_run_says_why_it_stopped);
    tcase_add_test(t, interrupt_ends_the_watch_at_once);
    tcase_add_test(t, reader_that_left_ends_the_watch);
    tcase_add_test(t, one_look_is_one_object);
    tcase_add_test(t, terminal_is_redrawn_in_place);
    tcase_add_test(t, folder_of_runs_is_a_table);
    tcase_add_test(t, folder_of_a_sweep_is_followed_until_the_sweep_ends);
    tcase_add_test(t, sweep_is_followed_before_its_first_run);
    tcase_add_test(t, stopped_runs_of_a_sweep_go_on_with_the_sweep);
    tcase_add_test(t, watching_does_not_keep_a_run_from_starting);
    tcase_add_test(t, progress_that_cannot_be_written_changes_nothing);
    tcase_add_test(t, folder_that_is_no_run_is_refused);
    tcase_add_test(t, a_pipe_gets_no_control_characters);
    suite_add_tcase(s, t);
    return run_suite(s);
}
