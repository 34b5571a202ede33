/* A run that is killed, whenever it is, goes on with --resume to the results of a run that was not. BK_E2E=all tries every moment that the
 * preloaded library can choose (minutes), otherwise every rename and a sample of the others. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autograd/rng.h"
#include "experiments/progress.h"
#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

#define RANDOM_KILLS 20

static bool all(void)
{
    const char *which = getenv("BK_E2E");
    return which && !strcmp(which, "all");
}

/* The run that all others are compared with, its calls, and how long it took. */
static long calls[3];
static double seconds;

static void reference(void)
{
    double start = bk_seconds();
    e2e_count(calls, "run run.yaml --out full");
    seconds = bk_seconds() - start;
    ck_assert_int_eq(rename("cache", "full-cache"), 0);
}

static void resume_and_compare(void)
{
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
    e2e_same_tree("full-cache", "cache");
}

/* Last line of the log of the killed run: which stage it was in. */
static void stage_of(char *to, size_t size)
{
    *to = 0;
    if (!bk_exists("a/log.txt")) return;
    char *text = e2e_text("a/log.txt");
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) snprintf(to, size, "%s", line);
    free(text);
}

/* Kills a fresh run at that call and resumes it; `stage` is where it was. */
static void kill_at(const char *what, long n, char *stage, size_t size)
{
    char at[64];
    snprintf(at, sizeof at, "%s:%ld", what, n);
    e2e_remove("a");
    e2e_remove("cache");
    e2e_stop_at(at, SIGKILL);
    int status = e2e_wait(e2e_start("run run.yaml --out a"));
    e2e_stop_at(NULL, 0);
    ck_assert_msg(status == 128 + SIGKILL, "not killed at %s: exit status %d", at, status);
    stage_of(stage, size);
    resume_and_compare();
}

START_TEST(killed_at_a_rename)
{
    char stage[256];
    reference();
    ck_assert_int_gt(calls[0], 20);
    for (long n = 1; n <= calls[0]; n++) kill_at("rename", n, stage, sizeof stage);
}
END_TEST

/* Two targets, all of them kept and packed, another order in each epoch, another search for each block, no prefix. */
START_TEST(killed_at_a_rename_with_other_settings)
{
    char stage[256];
    e2e_config("../m", "store: {keep: all, compression: gzip}\ninit: {refresh: true}\nprefix: {mode: none}\n");
    e2e_replace("run.yaml", "epochs: 2,", "epochs: 2, target: both, shuffle: true,");
    reference();
    for (long n = 8; n <= calls[0]; n += all() ? 1 : 3) kill_at("rename", n, stage, sizeof stage);
    e2e_same_tree("full/targets", "a/targets");
}
END_TEST

/* Targets in full precision as a stage, and all rows. */
START_TEST(killed_at_a_rename_with_more_stages)
{
    char stage[256];
    e2e_config("../m", "store: {keep: shared}\nevaluate: [ablation]\n");
    reference();
    for (long n = 6; n <= calls[0]; n += all() ? 1 : 2) kill_at("rename", n, stage, sizeof stage);
}
END_TEST

/* What the rounding learns is in no file but the stage `init` and, hard, the shards; gains of norms are in the shards alone. */
START_TEST(killed_at_a_rename_with_learned_rounding)
{
    static const char *const weights[] = {"adaround", "signround"};
    char stage[256], quant[64];
    snprintf(quant, sizeof quant, "quant: {weight: {quantizer: %s}}\n", weights[_i]);
    e2e_config("../m", quant);
    e2e_replace("run.yaml", "epochs: 2,", "epochs: 2, norms: true, lr_round: 0.1,");
    reference();
    for (long n = 8; n <= calls[0]; n += all() ? 1 : 4) kill_at("rename", n, stage, sizeof stage);
}
END_TEST

START_TEST(killed_at_an_fsync)
{
    char stage[256];
    reference();
    for (long n = 1; n <= calls[1]; n += all() ? 1 : 7) kill_at("fsync", n, stage, sizeof stage);
}
END_TEST

/* Clocks are read in every stage: by its progress, if by nothing else. */
START_TEST(killed_inside_every_stage)
{
    static const char *const last[] = {"evaluation ", "rotated model", "done in", "prefix:", "block 0 (1 of 2)", "block 1 (2 of 2)", "[5/5] fp:", "[5/5] fp+prefix"};
    bool seen[sizeof last / sizeof last[0]] = {false};
    char stage[256];
    reference();
    ck_assert_int_gt(calls[2], 40);
    long few = calls[2] / 32;
    for (long n = 1; n < calls[2] - 4; n += all() ? 1 : few) {
        kill_at("clock", n, stage, sizeof stage);
        for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) seen[i] |= strstr(stage, last[i]) != NULL;
    }
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) ck_assert_msg(seen[i], "no run was killed after '%s'", last[i]);
}
END_TEST

START_TEST(killed_at_random)
{
    reference();
    for (uint64_t i = 0; i < RANDOM_KILLS; i++) {
        double wait = seconds * bk_rng_uniform(7, BK_RNG_TEST, i);
        struct timespec t = {(time_t)wait, (long)(1e9 * (wait - (double)(time_t)wait))};
        e2e_remove("a");
        e2e_remove("cache");
        pid_t pid = e2e_start("run run.yaml --out a");
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        e2e_wait(pid);
        resume_and_compare();
    }
}
END_TEST

/* Killed again at every start, one step further each time. */
START_TEST(killed_over_and_over)
{
    reference();
    int status = 137;
    for (long n = 6; status == 137; n++) {
        char at[64];
        ck_assert_int_lt(n, 200);
        snprintf(at, sizeof at, "rename:%ld", n < 16 ? n : 16);
        e2e_stop_at(at, SIGKILL);
        status = e2e_wait(e2e_start("run run.yaml --out a --resume"));
    }
    e2e_stop_at(NULL, 0);
    ck_assert_int_eq(status, 0);
    e2e_same_run("full", "a");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_kill");
    TCase *t = tcase_create("kill");
    tcase_set_timeout(t, all() ? 1200 : 240);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, killed_at_a_rename);
    tcase_add_test(t, killed_at_a_rename_with_other_settings);
    tcase_add_test(t, killed_at_a_rename_with_more_stages);
    tcase_add_loop_test(t, killed_at_a_rename_with_learned_rounding, 0, 2);
    tcase_add_test(t, killed_at_an_fsync);
    tcase_add_test(t, killed_inside_every_stage);
    tcase_add_test(t, killed_at_random);
    tcase_add_test(t, killed_over_and_over);
    suite_add_tcase(s, t);
    return run_suite(s);
}
