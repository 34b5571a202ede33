/* brick sweep: killed, interrupted, failing, in parallel, from a list, and halved; stages counted against what `brick
 * plan` says. */
#include <check.h>
#include <math.h>
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

#define TWELVE "base: run.yaml\ngrid:\n  train.epochs: [1, 2, 3]\n  train.lr_quant: {log: [1e-4, 1e-1, 4]}\n"
#define FOUR "base: run.yaml\ngrid:\n  train.epochs: [1, 2]\n  train.lr_quant: [1e-3, 1e-2]\n"

static void sweep_file(const char *yaml)
{
    e2e_write("sweep.yaml", yaml);
}

static bool busy(const char *dir)
{
    bk_lock_owner owner;
    return bk_run_folder_busy(dir, &owner);
}

/* --- results --- */

static bk_json *parse(const char *text)
{
    bk_json *o;
    bk_error err = {0};
    ck_assert_msg(!bk_json_parse(text, strlen(text), "json", &o, &err), "%s", err.msg);
    return o;
}

/* Value of a column of a row of results.jsonl as text; malloc'd. */
static char *cell(const char *dir, int row, const char *column)
{
    char path[256], *save, *out;
    snprintf(path, sizeof path, "%s/results.jsonl", dir);
    char *text = e2e_text(path), *line = strtok_r(text, "\n", &save);
    while (row-- > 0) line = strtok_r(NULL, "\n", &save);
    ck_assert_ptr_nonnull(line);
    bk_json *o = parse(line);
    const bk_json *v = bk_json_get(o, column);
    ck_assert_msg(v, "no column %s", column);
    out = bk_json_str(v, NULL) ? strdup(bk_json_str(v, NULL)) : bk_json_dump(v, 0);
    bk_json_free(o);
    free(text);
    return out;
}

static void expect_cell(const char *dir, int row, const char *column, const char *value)
{
    char *text = cell(dir, row, column);
    ck_assert_msg(!strcmp(text, value), "%s of row %d: '%s', want '%s'", column, row, text, value);
    free(text);
}

static int count(const char *path, const char *words)
{
    int n = 0;
    if (!bk_exists(path)) return 0;
    char *text = e2e_text(path);
    for (char *at = text; (at = strstr(at, words)); at++) n++;
    free(text);
    return n;
}

/* Rows without what depends on the clock, the machine and the name of the folder. */
static char *comparable(const char *dir)
{
    char path[256], *save, *out;
    size_t len;
    snprintf(path, sizeof path, "%s/results.jsonl", dir);
    char *text = e2e_text(path);
    FILE *f = open_memstream(&out, &len);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bk_json *o = parse(line);
        for (void *it = bk_json_first(o); it; it = bk_json_next(o, it)) {
            const char *key = bk_json_key(it);
            if (!strncmp(key, "seconds", 7) || !strcmp(key, "peak_rss_bytes") || !strcmp(key, "folder")) continue;
            char *value = bk_json_dump(bk_json_value(it), 0);
            fprintf(f, "%s=%s ", key, value);
            free(value);
        }
        fputc('\n', f);
        bk_json_free(o);
    }
    fclose(f);
    free(text);
    return out;
}

static void expect_same_results(const char *a, const char *b)
{
    char *one = comparable(a), *two = comparable(b);
    ck_assert_str_eq(one, two);
    free(one);
    free(two);
}

/* Starts a sweep whose messages can be waited for. */
static pid_t begin_sweep(const char *words)
{
    e2e_remove("err");
    return e2e_start("sweep sweep.yaml --out a%s", words);
}

static void set_aside(void)
{
    ck_assert_int_eq(rename("a", "full"), 0);
    ck_assert_int_eq(rename("cache", "full-cache"), 0);
}

/* Makes `full` with stages in full-cache: what others are compared with. */
static void reference(void)
{
    e2e_brick(0, "sweep sweep.yaml --out a");
    set_aside();
}

/* --- plan against ledger --- */

static void make_plan(void)
{
    e2e_brick(0, "plan sweep.yaml --json --out a");
    ck_assert_int_eq(rename("out", "plan"), 0);
}

/* Executions that this plan says are needed still. */
static int planned(const char *stage)
{
    int n = -1;
    char *text = e2e_text("plan");
    bk_json *o = parse(text);
    const bk_json *stages = bk_json_get(o, "stages");
    for (size_t i = 0; i < bk_json_size(stages); i++) {
        const bk_json *s = bk_json_at(stages, i);
        if (!strcmp(bk_json_str(bk_json_get(s, "stage"), ""), stage))
            n = (int)bk_json_int(bk_json_get(s, "to_make"), -1);
    }
    bk_json_free(o);
    free(text);
    ck_assert_int_ge(n, 0);
    return n;
}

static int made(const char *stage)
{
    char words[64];
    snprintf(words, sizeof words, "\"stage\": \"%s\"", stage);
    return count("cache/ledger.jsonl", words);
}

/* Made since the cache was empty, of all kinds. */
static int made_in_all(void)
{
    int n = 0;
    for (int k = 0; k < BK_STAGE_KINDS; k++) n += made(bk_stage_name((bk_stage_kind)k));
    return n;
}

/* Of every kind of stage: what the plan says, what is right, and what is made. */
static void expect_stages(const int right[BK_STAGE_KINDS], int points)
{
    make_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        const char *stage = bk_stage_name((bk_stage_kind)k);
        ck_assert_msg(planned(stage) == right[k], "%s: planned %d, want %d", stage, planned(stage), right[k]);
    }
    ck_assert_int_eq(planned("train"), points);
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 2");
    make_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        const char *stage = bk_stage_name((bk_stage_kind)k);
        ck_assert_msg(made(stage) == right[k], "%s: made %d, want %d", stage, made(stage), right[k]);
        ck_assert_int_eq(planned(stage), 0);
    }
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"done\""), points);
    ck_assert_int_eq(planned("train"), 0);
}

/* Keys that stand before different stages. */
START_TEST(stages_are_made_as_often_as_the_plan_says)
{
    static const int right[BK_STAGE_KINDS] = {
        [BK_STAGE_OUTLIERS] = 1, [BK_STAGE_INIT] = 4, [BK_STAGE_TARGETS] = 2, [BK_STAGE_ROW_FP] = 2,
        [BK_STAGE_ROW_PREFIX] = 1, [BK_STAGE_ROW_RTN] = 2, [BK_STAGE_ROW_ROTATION] = 2, [BK_STAGE_ROW_SEARCH] = 2,
        [BK_STAGE_ROW_NO_PREFIX] = 2, [BK_STAGE_ROW_INIT] = 4};
    sweep_file("base: run.yaml\nset: {evaluate: [ablation]}\ngrid:\n  prefix.mode: [auto, none]\n  init.search: [true, "
               "false]\n  train.lr_quant: [1e-3, 1e-2]\n");
    expect_stages(right, 8);
}
END_TEST

/* Windows are drawn by the seed, those of the detection too. */
START_TEST(every_seed_has_stages_of_its_own)
{
    static const int right[BK_STAGE_KINDS] = {[BK_STAGE_OUTLIERS] = 3, [BK_STAGE_INIT] = 3, [BK_STAGE_ROW_FP] = 1,
                                              [BK_STAGE_ROW_PREFIX] = 3, [BK_STAGE_ROW_INIT] = 3};
    sweep_file("base: run.yaml\ngrid: {seed: [1, 2, 3]}\n");
    expect_stages(right, 3);
}
END_TEST

/* Only if there are two that need them, and not if the sweep says what is kept. */
START_TEST(points_share_targets_by_themselves)
{
    sweep_file(FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "--set store.keep=shared"), 4);
    sweep_file("base: run.yaml\ngrid: {seed: [1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "store.keep"), 0);
    make_plan();
    ck_assert_int_eq(planned("targets"), 0);
    sweep_file("base: run.yaml\nset: {store.keep: rolling}\ngrid: {train.epochs: [0, 1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "store.keep=shared"), 0);
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1, 2]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "store.keep=shared"), 2);
    e2e_brick(0, "run run.yaml --set train.epochs=1 --out a/epochs=1"); /* with targets of its own */
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "store.keep=shared"), 0);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(made("targets"), 0);
}
END_TEST

/* A sweep that gets another value needs no stage anew and runs the new points alone. */
START_TEST(sweep_with_one_more_value_shares_stages_and_points)
{
    sweep_file(FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_replace("sweep.yaml", "[1, 2]", "[1, 2, 3]");
    make_plan();
    for (int k = 0; k < BK_STAGE_KINDS; k++) ck_assert_int_eq(planned(bk_stage_name((bk_stage_kind)k)), 0);
    ck_assert_int_eq(planned("train"), 2);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(count("err", ": started"), 2);
    ck_assert_int_eq(made_in_all(), 6); /* outliers, init, targets, three rows */
}
END_TEST

START_TEST(plan_touches_nothing)
{
    sweep_file(FOUR);
    char *before = e2e_listing(".");
    e2e_brick(0, "plan sweep.yaml");
    e2e_remove("out");
    e2e_remove("err");
    char *after = e2e_listing(".");
    ck_assert_str_eq(before, after);
    ck_assert(!bk_exists("a") && !bk_exists("cache") && !bk_exists("runs"));
    free(before);
    free(after);
}
END_TEST

/* The lines of the plan's tree that begin so. */
static int lines_of_tree(const char *start)
{
    char words[64], *text = e2e_text("out"), *tree = strstr(text, "\ntree\n");
    ck_assert_ptr_nonnull(tree);
    e2e_write("tree", tree);
    free(text);
    snprintf(words, sizeof words, "\n%s", start);
    return count("tree", words);
}

START_TEST(plan_prints_what_hangs_on_what)
{
    static const char *const start[] = {"  rows fp  1 to make, ",    "  outliers ",   "    rows fp-prefix  1 to make, ", "    init ",
                                        "      rows init  1 to make, ", "    targets ", "      epochs=1,lr_quant=0.001  train ",
                                        "      epochs=2,lr_quant=0.01  train "};
    sweep_file(FOUR);
    e2e_brick(0, "plan sweep.yaml --out a");
    ck_assert_int_eq(count("out", "sweep.yaml: 4 points of run.yaml in a\n"), 1);
    for (size_t i = 0; i < sizeof start / sizeof start[0]; i++) ck_assert_msg(lines_of_tree(start[i]) == 1, "%s", start[i]);
    ck_assert_int_eq(count("out", "  4 points  to make, "), 3); /* outliers, init, targets */
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_brick(0, "plan sweep.yaml --out a");
    ck_assert_int_eq(count("out", "  4 points  there\n"), 3);
    ck_assert_int_eq(lines_of_tree("      epochs=2,lr_quant=0.01  done\n"), 1);
}
END_TEST

static const bk_json *stage_in(const bk_json *tree, const char *stage)
{
    for (size_t i = 0; i < bk_json_size(tree); i++)
        if (!strcmp(bk_json_str(bk_json_get(bk_json_at(tree, i), "stage"), ""), stage)) return bk_json_at(tree, i);
    ck_abort_msg("no %s", stage);
}

START_TEST(plan_gives_the_tree_as_json)
{
    sweep_file(FOUR);
    make_plan();
    char *text = e2e_text("plan");
    bk_json *o = parse(text);
    const bk_json *tree = bk_json_get(o, "tree"), *outliers = stage_in(tree, "outliers"), *init = stage_in(tree, "init");
    ck_assert_uint_eq(bk_json_size(tree), 6);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(outliers, "parent")), BK_JSON_NULL);
    ck_assert_str_eq(bk_json_str(bk_json_get(init, "parent"), "?"), bk_json_str(bk_json_get(outliers, "id"), "??"));
    ck_assert_uint_eq(bk_json_size(bk_json_get(init, "points")), 4);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(init, "points"), 3), "?"), "epochs=2,lr_quant=0.01");
    ck_assert(bk_json_bool(bk_json_get(init, "to_make"), false));
    ck_assert(!bk_json_bool(bk_json_get(init, "there"), true));
    bk_json_free(o);
    free(text);
}
END_TEST

/* --- ends from outside --- */

static void wait_until(const char *path, const char *words, int n)
{
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < 6000 && count(path, words) < n; i++) nanosleep(&pause, NULL);
    ck_assert_msg(count(path, words) >= n, "%d x '%s' did not come up in %s", n, words, path);
}

START_TEST(killed_sweep_goes_on_to_the_results_of_one_that_was_not)
{
    sweep_file(TWELVE);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(made_in_all(), 6);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started"); /* what is done is not done again */
    set_aside();
    pid_t pid = begin_sweep("");
    wait_until("err", ": started", 6);
    kill(pid, SIGKILL);
    ck_assert_int_eq(e2e_wait(pid), 128 + SIGKILL);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_le(count("err", ": started"), 8);
    expect_same_results("full", "a");
    e2e_same_tree("full-cache", "cache");
    e2e_same_run("full/epochs=2,lr_quant=0.01", "a/epochs=2,lr_quant=0.01");
}
END_TEST

/* Each time after two more starts, wherever the points are then. */
START_TEST(sweep_that_is_killed_over_and_over_comes_to_its_end)
{
    sweep_file(TWELVE);
    reference();
    int status = 128 + SIGKILL, i = 0;
    for (; status == 128 + SIGKILL; i++) {
        ck_assert_int_lt(i, 40);
        pid_t pid = begin_sweep(" --jobs 2");
        wait_until("err", " at a time", 1);
        for (int k = 0; k < 100 && count("err", ": started") < 4; k++) nanosleep(&(struct timespec){0, 10000000}, NULL);
        kill(pid, SIGKILL);
        status = e2e_wait(pid);
    }
    ck_assert_int_eq(status, 0);
    ck_assert_int_ge(i, 2); /* the last one came to its end */
    expect_same_results("full", "a");
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
    expect_cell("a", 0, "status", "failed");
    expect_cell("a", 0, "exit_code", "5");
    e2e_brick(0, "sweep sweep.yaml --out a");
    expect_cell("a", 0, "status", "done");
    expect_cell("a", 0, "message", "null");
}
END_TEST

START_TEST(interrupted_sweep_stops_its_points_and_says_130)
{
    sweep_file(FOUR);
    reference();
    e2e_replace("sweep.yaml", "[1, 2]", "[1, 2, 1000000]");
    pid_t pid = begin_sweep(" --jobs 2");
    wait_until("a/epochs=1000000,lr_quant=0.01/metrics.jsonl", "epoch", 1);
    kill(pid, SIGINT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    ck_assert(!busy("a/epochs=1000000,lr_quant=0.01"));
    ck_assert_int_eq(count("a/epochs=1000000,lr_quant=0.01.log", "interrupted"), 1);
    expect_cell("a", 5, "status", "pending");
    sweep_file(FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    expect_same_results("full", "a");
}
END_TEST

START_TEST(points_of_a_killed_sweep_stop)
{
    const struct timespec pause = {0, 5000000};
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1000000]}\n");
    pid_t pid = begin_sweep("");
    wait_until("a/epochs=1000000/metrics.jsonl", "epoch", 1);
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
    pid_t pid = begin_sweep("");
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
    ck_assert_int_eq(count("err", ": started"), 2);
    e2e_silent("failed");
    expect_cell("a", 0, "status", "done");
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
    expect_cell("a", 0, "exit_code", ends[_i].code);
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
    expect_cell("a", 0, "status", "failed");
}
END_TEST

/* Somebody else runs a point: the sweep waits and collects. */
START_TEST(point_that_another_process_runs_is_waited_for)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [400, 1]}\n");
    pid_t other = e2e_start("run run.yaml --set train.epochs=400 --out a/epochs=400");
    wait_until("a/epochs=400/metrics.jsonl", "epoch", 1);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("another brick is running there");
    ck_assert_int_eq(e2e_wait(other), 0);
    e2e_silent("epochs=400: started");
    expect_cell("a", 0, "status", "done");
}
END_TEST

START_TEST(two_sweeps_do_not_share_a_folder)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1000000]}\n");
    pid_t pid = begin_sweep("");
    wait_until("err", ": started", 1);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("another sweep is running");
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    kill(pid, SIGTERM);
    ck_assert_int_eq(e2e_wait(pid), 130);
}
END_TEST

/* --- ways to run --- */

START_TEST(jobs_and_exclude_of_the_file_are_heeded)
{
    sweep_file(FOUR "jobs: 2\nexclude: [{train.epochs: 2, train.lr_quant: 1e-3}, {train.epochs: 1, train.lr_quant: 1e-2}]\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("2 points in a, 0 are there, 2 at a time");
    expect_cell("a", 0, "point", "epochs=1,lr_quant=0.001");
    expect_cell("a", 1, "point", "epochs=2,lr_quant=0.01");
    ck_assert(!bk_exists("a/epochs=2,lr_quant=0.001"));
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 1");
    e2e_said("2 points in a, 2 are there, 1 at a time");
}
END_TEST

START_TEST(parallel_points_give_the_same_results)
{
    sweep_file(FOUR);
    reference();
    e2e_brick(0, "sweep sweep.yaml --out a --jobs 3");
    expect_same_results("full", "a");
    e2e_same_tree("full-cache", "cache");
    ck_assert_int_eq(made_in_all(), 6);
}
END_TEST

START_TEST(listed_commands_give_the_same_results)
{
    sweep_file("base: run.yaml\nset: {data.training.text: \"it's $HOME.txt\"}\ngrid:\n  prefix.mode: [[1], none]\n  "
               "train.lr_quant: [1e-3, 1e-2]\n");
    char *text = e2e_text("../m/train.txt");
    e2e_write("it's $HOME.txt", text);
    free(text);
    reference();
    e2e_brick(0, "sweep sweep.yaml --out a --list");
    ck_assert_int_eq(count("out", "\n"), 4);
    ck_assert_int_eq(system("cp out list; cd / && sh -e $OLDPWD/list >/dev/null 2>&1"), 0);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    expect_same_results("full", "a");
}
END_TEST

START_TEST(failed_point_is_told_and_the_others_run)
{
    sweep_file("base: run.yaml\ngrid: {data.evaluation.text: [short.txt, ../m/eval.txt]}\n");
    e2e_write("short.txt", "no");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("text=short.txt: failed (exit 2): ");
    e2e_said("1 of 2 points failed");
    expect_cell("a", 0, "status", "failed");
    expect_cell("a", 0, "exit_code", "2");
    expect_cell("a", 1, "status", "done");
    char *why = cell("a", 0, "message");
    ck_assert_msg(strstr(why, "short.txt"), "%s", why);
    free(why);
    char *text = e2e_text("../m/eval.txt");
    e2e_write("short.txt", text);
    free(text);
    e2e_brick(0, "sweep sweep.yaml --out a"); /* tried again */
    ck_assert_int_eq(count("err", ": started"), 1);
    expect_cell("a", 0, "status", "done");
}
END_TEST

/* Values whose gradients leave f32. Where nothing is trained, that is no failure. */
START_TEST(point_that_came_to_nothing_stays_failed_and_is_not_ranked)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < s->cfg.layers; l++)
        for (int64_t i = 0; i < s->cfg.hidden * s->cfg.inter; i++) s->block[l].w[BK_W_DOWN][i] *= 1e25f;
    e2e_synth_write(s, "m");
    e2e_config("m", "store: {dtype: f32}\n");
    sweep_file("base: run.yaml\nset: {prefix.mode: none}\ngrid: {train.epochs: [1, 0]}\n");
    e2e_brick(4, "sweep sweep.yaml --out a");
    e2e_said("epochs=1: failed (exit 4): no block could be trained");
    e2e_said("1 of 2 points failed; runs that came to their end without a result stay as they are");
    e2e_brick(4, "sweep sweep.yaml --out a --json");
    e2e_silent(": started");
    expect_cell("a", 0, "status", "failed");
    expect_cell("a", 1, "status", "done");
    char *text = e2e_text("out");
    bk_json *o = parse(text);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ranking")), 1);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(o, "ranking"), 0), ""), "epochs=0");
    bk_json_free(o);
    free(text);
    e2e_append("sweep.yaml", "exclude: [{train.epochs: 0}]\n");
    e2e_remove("a/epochs=1"); /* as it is told to */
    e2e_brick(4, "sweep sweep.yaml --out a");
    ck_assert_int_eq(count("err", ": started"), 1);
}
END_TEST

START_TEST(what_is_wrong_with_a_point_is_said_before_any_runs)
{
    sweep_file("base: run.yaml\ngrid: {data.evaluation.text: [../m/eval.txt, none.txt]}\n");
    e2e_brick(3, "sweep sweep.yaml --out a");
    e2e_said("none.txt");
    e2e_silent(": started");
    sweep_file("base: run.yaml\ngrid: {train.epochs: [1, x]}\n");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("sweep.yaml:2:26: train.epochs");
    e2e_brick(2, "plan sweep.yaml");
    e2e_said("sweep.yaml:2:26: train.epochs");
}
END_TEST

/* Values that a config may have, but not with this model. */
static const struct {
    const char *axis, *said;
} misfits[] = {{"prefix.mode: [none, [99999]]", "99999"},
               {"data.evaluation.seqlen: [32, 5000]", "data.evaluation.seqlen"},
               {"quant.skip: [[], [{block: 77}]]", "77"},
               {"rotation.r4_group: [0, 7]", "7"},
               {"scheme: [W4A4KV4-static, W4A16-g7]", "quantizers do not fit"}};

START_TEST(what_a_run_would_refuse_at_once_is_refused_of_a_point)
{
    char yaml[256];
    snprintf(yaml, sizeof yaml, "base: run.yaml\nset: {train.epochs: 0}\ngrid: {%s}\n", misfits[_i].axis);
    sweep_file(yaml);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said(misfits[_i].said);
    e2e_said("of sweep.yaml)");
    e2e_silent(": started");
    e2e_brick(2, "plan sweep.yaml");
    e2e_said(misfits[_i].said);
    e2e_said("of sweep.yaml)");
}
END_TEST

START_TEST(folder_of_another_config_is_refused_before_any_runs)
{
    sweep_file(FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_replace("run.yaml", "seed: 2", "seed: 3");
    e2e_replace("sweep.yaml", "[1, 2]", "[3, 2]");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("a/epochs=2,lr_quant=0.001 belongs to another config: seed is 2 there and 3 here");
    e2e_silent(": started");
}
END_TEST

/* The others come to their ends; what is wrong is said by the one that it is wrong with. */
START_TEST(folder_with_an_unreadable_config_is_a_failure_of_its_point)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_write("a/epochs=0/config.yaml", "model: [\n");
    e2e_replace("sweep.yaml", "[0, 1]", "[0, 1, 2]");
    e2e_brick(0, "plan sweep.yaml --out a");
    e2e_brick(3, "sweep sweep.yaml --out a --jobs 2");
    e2e_said("epochs=0: failed (exit 3): a/epochs=0/config.yaml:");
    e2e_said("1 of 3 points failed");
    expect_cell("a", 0, "status", "failed");
    expect_cell("a", 1, "status", "done");
    expect_cell("a", 2, "status", "done");
    e2e_remove("a/epochs=0/config.yaml");
    e2e_brick(3, "sweep sweep.yaml --out a");
    e2e_said("epochs=0: failed (exit 3): a/epochs=0/config.yaml:");
}
END_TEST

static void another_number(void)
{
    e2e_replace("a/epochs=1/summary.json", "\"final\": ", "\"final\": 1");
}

static void no_sums(void)
{
    e2e_remove("a/epochs=1/SHA256SUMS");
}

static void changed_metrics(void)
{
    e2e_flip("a/epochs=1/metrics.jsonl", 40);
}

static void shard_cut_off(void)
{
    struct stat info;
    ck_assert_int_eq(stat("a/epochs=1/model/model-00001-of-00003.safetensors", &info), 0);
    ck_assert_int_eq(truncate("a/epochs=1/model/model-00001-of-00003.safetensors", info.st_size - 1), 0);
}

static void shard_gone(void)
{
    e2e_remove("a/epochs=1/model/model-00002-of-00003.safetensors");
}

static const struct {
    void (*spoil)(void);
    const char *said;
} spoilt[] = {{another_number, "summary.json: was changed or damaged"},
              {no_sums, "SHA256SUMS: is missing"},
              {changed_metrics, "metrics.jsonl: was changed or damaged"},
              {shard_cut_off, "model-00001-of-00003.safetensors"},
              {shard_gone, "model-00002-of-00003.safetensors: is missing"}};

START_TEST(finished_point_that_was_damaged_is_told_and_made_again)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_copy_tree("a", "full");
    spoilt[_i].spoil();
    make_plan();
    ck_assert_int_eq(planned("train"), 1);
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said(spoilt[_i].said);
    e2e_said("epochs=1: started");
    e2e_silent("epochs=0: started");
    expect_same_results("full", "a");
    e2e_same_run("full/epochs=1", "a/epochs=1");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
}
END_TEST

/* To save disk, once the numbers are known. */
START_TEST(model_that_was_removed_is_not_missed)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [0, 1]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_remove("a/epochs=1/model");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    expect_cell("a", 1, "status", "done");
}
END_TEST

static const char *const damage[][3] = {{"seed: 2", "seed: 3", "belongs to another config: seed is 3 there and 2 here"},
                                        {"model: ", "model: [", "ended without a result: a/epochs=200/config.yaml:"}};

START_TEST(folder_that_is_spoilt_under_way_is_a_failure_of_its_point)
{
    sweep_file("base: run.yaml\ngrid: {train.epochs: [200, 1]}\n");
    pid_t pid = begin_sweep("");
    wait_until("a/epochs=200/metrics.jsonl", "epoch", 1);
    e2e_replace("a/epochs=200/config.yaml", damage[_i][0], damage[_i][1]);
    ck_assert_int_ne(e2e_wait(pid), 0);
    e2e_said("epochs=200: failed");
    e2e_said(damage[_i][2]);
    e2e_silent("interrupted");
    expect_cell("a", 0, "status", "failed");
    expect_cell("a", 1, "status", "done");
}
END_TEST

/* The table would mix results of two texts. */
START_TEST(points_of_a_text_that_has_changed_are_refused)
{
    sweep_file(FOUR);
    e2e_brick(0, "sweep sweep.yaml --out a");
    char *text = e2e_text("../m/train.txt");
    e2e_write("train.txt", text);
    free(text);
    e2e_replace("run.yaml", "training:    {text: ../m/train.txt", "training:    {text: train.txt");
    e2e_remove("a");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_flip("train.txt", 0);
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("was made with another training text: its bytes have changed");
    ck_assert_int_eq(made("outliers"), 1);
}
END_TEST

START_TEST(folder_of_a_run_is_no_place_for_a_sweep)
{
    sweep_file(FOUR);
    e2e_brick(0, "run run.yaml --out a");
    e2e_brick(2, "sweep sweep.yaml --out a");
    e2e_said("a is the folder of a run");
    ck_assert(!bk_exists("a/results.csv"));
}
END_TEST

/* After the last block there is nothing to drop: two blocks here. */
START_TEST(halving_behind_the_last_block_is_refused)
{
    sweep_file(FOUR "halving: {blocks: [1, 2]}\n");
    for (int i = 0; i < 2; i++) {
        e2e_brick(2, "%s sweep.yaml --out a", i ? "plan" : "sweep");
        e2e_said("halving.blocks: 2, but the model has 2 blocks");
        e2e_silent(": started");
    }
}
END_TEST

START_TEST(folder_that_is_no_name_is_refused)
{
    char line[4000] = "sweep.yaml --out ";
    memset(line + strlen(line), 'x', 3950);
    sweep_file(FOUR);
    for (int i = 0; i < 2; i++) {
        const char *verb = i ? "plan" : "sweep";
        e2e_brick(2, "%s sweep.yaml --out=", verb);
        e2e_said("--out is empty");
        e2e_brick(2, "%s %s", verb, line);
        e2e_said("--out is too long");
    }
}
END_TEST

/* --- seeds, halving --- */

START_TEST(seeds_have_mean_and_deviation)
{
    sweep_file("base: run.yaml\ngrid: {train.lr_quant: [1e-3, 1e-2], seed: [1, 2, 3]}\n");
    e2e_brick(0, "sweep sweep.yaml --out a --json");
    char *text = e2e_text("out");
    bk_json *o = parse(text);
    const bk_json *seeds = bk_json_get(o, "seeds");
    ck_assert_uint_eq(bk_json_size(seeds), 2);
    for (size_t i = 0; i < 2; i++) {
        const bk_json *g = bk_json_at(seeds, i);
        int first = !strcmp(bk_json_str(bk_json_get(g, "train.lr_quant"), ""), "0.001") ? 0 : 3;
        double sum = 0, squares = 0, x[3];
        for (int k = 0; k < 3; k++) {
            char *v = cell("a", first + k, "ppl_final");
            x[k] = strtod(v, NULL);
            sum += x[k];
            free(v);
        }
        for (int k = 0; k < 3; k++) squares += (x[k] - sum / 3) * (x[k] - sum / 3);
        ck_assert_int_eq(bk_json_int(bk_json_get(g, "n"), 0), 3);
        ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_mean"), 0), sum / 3, 1e-9 * sum);
        ck_assert_double_eq_tol(bk_json_num(bk_json_get(g, "ppl_final_sd"), 0), sqrt(squares / 2), 1e-9 * sum);
    }
    bk_json_free(o);
    free(text);
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(count("out", "over seeds"), 1);
}
END_TEST

START_TEST(run_stopped_after_a_block_goes_on_to_the_same_bytes)
{
    e2e_brick(0, "run run.yaml --out full");
    e2e_brick(0, "run run.yaml --out a --stop-after 1");
    e2e_said("--resume goes on");
    ck_assert(!bk_exists("a/summary.json"));
    ck_assert_int_eq(count("a/metrics.jsonl", "\"block\": 1"), 0);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(halving_lets_the_better_half_go_on)
{
    sweep_file(
        "base: run.yaml\nzip: {train.lr_quant: [1e-7, 1e-3, 1e-2, 3e-3], train.lr_weight: [1e-7, 1e-3, 1e-4, 3e-4]}\n");
    reference();
    e2e_append("sweep.yaml", "halving: {blocks: [1], keep: 0.5}\n");
    e2e_brick(0, "sweep sweep.yaml --out a");
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"done\""), 2);
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"stopped\""), 2);
    expect_cell("a", 2, "status", "stopped"); /* rates that its loss jumps at */
    for (int i = 0; i < 4; i++) {
        char *status = cell("a", i, "status"), *here = cell("a", i, "ppl_final"), *there = cell("full", i, "ppl_final");
        ck_assert_str_eq(here, !strcmp(status, "done") ? there : "null");
        free(status);
        free(here);
        free(there);
    }
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_silent(": started");
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"stopped\""), 2);
    e2e_brick(2, "sweep sweep.yaml --out a --list");
    e2e_said("halving");
}
END_TEST

/* It is compared with the others and takes one of their places, but is not dropped: the worst of four here. */
START_TEST(halving_keeps_what_is_done)
{
    sweep_file(
        "base: run.yaml\nzip: {train.lr_quant: [1e-7, 1e-3, 1e-2, 3e-3], train.lr_weight: [1e-7, 1e-3, 1e-4, 3e-4]}\n"
        "halving: {blocks: [1], keep: 0.25}\n");
    e2e_brick(0, "run run.yaml --set train.lr_quant=1e-2 --set train.lr_weight=1e-4 --out a/lr_quant=0.01,lr_weight=0.0001");
    e2e_brick(0, "sweep sweep.yaml --out a");
    e2e_said("4 points in a, 1 are there");
    e2e_silent("lr_quant=0.01,lr_weight=0.0001: st"); /* arted, opped */
    expect_cell("a", 2, "status", "done");
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"done\""), 2);
    ck_assert_int_eq(count("a/results.jsonl", "\"status\": \"stopped\""), 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_sweep");
    TCase *t = tcase_create("sweep");
    tcase_set_timeout(t, 240);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, stages_are_made_as_often_as_the_plan_says);
    tcase_add_test(t, every_seed_has_stages_of_its_own);
    tcase_add_test(t, points_share_targets_by_themselves);
    tcase_add_test(t, sweep_with_one_more_value_shares_stages_and_points);
    tcase_add_test(t, plan_touches_nothing);
    tcase_add_test(t, plan_prints_what_hangs_on_what);
    tcase_add_test(t, plan_gives_the_tree_as_json);
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
    tcase_add_test(t, jobs_and_exclude_of_the_file_are_heeded);
    tcase_add_test(t, parallel_points_give_the_same_results);
    tcase_add_test(t, listed_commands_give_the_same_results);
    tcase_add_test(t, failed_point_is_told_and_the_others_run);
    tcase_add_test(t, point_that_came_to_nothing_stays_failed_and_is_not_ranked);
    tcase_add_test(t, what_is_wrong_with_a_point_is_said_before_any_runs);
    tcase_add_loop_test(t, what_a_run_would_refuse_at_once_is_refused_of_a_point, 0, sizeof misfits / sizeof misfits[0]);
    tcase_add_test(t, folder_of_another_config_is_refused_before_any_runs);
    tcase_add_test(t, folder_with_an_unreadable_config_is_a_failure_of_its_point);
    tcase_add_loop_test(t, folder_that_is_spoilt_under_way_is_a_failure_of_its_point, 0, 2);
    tcase_add_loop_test(t, finished_point_that_was_damaged_is_told_and_made_again, 0, sizeof spoilt / sizeof spoilt[0]);
    tcase_add_test(t, model_that_was_removed_is_not_missed);
    tcase_add_test(t, points_of_a_text_that_has_changed_are_refused);
    tcase_add_test(t, folder_of_a_run_is_no_place_for_a_sweep);
    tcase_add_test(t, halving_behind_the_last_block_is_refused);
    tcase_add_test(t, folder_that_is_no_name_is_refused);
    tcase_add_test(t, seeds_have_mean_and_deviation);
    tcase_add_test(t, run_stopped_after_a_block_goes_on_to_the_same_bytes);
    tcase_add_test(t, halving_lets_the_better_half_go_on);
    tcase_add_test(t, halving_keeps_what_is_done);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
