/* Stages that runs share: rows of the evaluation and targets in full precision. Results do not depend on who made them,
 * and each is made for all that it depends on and for nothing else. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/stage_kinds.h"
#include "io/file.h"
#include "io/store.h"
#include "tests/e2e.h"
#include "tests/suite.h"

static bk_error err;

/* How often each stage was made since the cache was empty. */
static int made(bk_stage_kind kind)
{
    char words[64];
    int n = 0;
    if (!bk_exists("cache/ledger.jsonl")) return 0;
    snprintf(words, sizeof words, "\"stage\": \"%s\"", bk_stage_name(kind));
    char *text = e2e_text("cache/ledger.jsonl");
    for (char *at = text; (at = strstr(at, words)); at++) n++;
    free(text);
    return n;
}

static void run(const char *sets, const char *out)
{
    e2e_brick(0, "run run.yaml %s --out %s", sets, out);
}

/* --- targets --- */

static const char *const settings[] = {
    "--set train.target=both --set train.shuffle=true", "--set store.compression=gzip --set init.refresh=true",
    "--set store.dtype=f32 --set prefix.mode=none", "--set prefix.overlap=true"};

START_TEST(shared_targets_train_the_same_model)
{
    char words[256];
    run(settings[_i], "full");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 0);
    for (int i = 0; i < 2; i++) { /* made, and found */
        snprintf(words, sizeof words, "%s --set store.keep=shared", settings[_i]);
        run(words, i ? "b" : "a");
        e2e_same_run("full", i ? "b" : "a");
    }
    e2e_said("targets: taken from ");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 1);
}
END_TEST

static float *values(const char *path, const char *name, int64_t *n)
{
    bk_store *s;
    bk_dset *d;
    ck_assert_msg(!bk_store_open(&s, path, "brick.targets", &err), "%s", err.msg);
    ck_assert_msg(!bk_dset_open(&d, s, name, &err), "%s", err.msg);
    const bk_dset_info *i = bk_dset_info_of(d);
    *n = i->dim[0] * i->sample_len;
    float *v = malloc((size_t)*n * sizeof *v);
    ck_assert_ptr_nonnull(v);
    ck_assert_int_eq(bk_dset_read(d, 0, i->dim[0], v, &err), BK_OK);
    bk_store_close(s);
    return v;
}

START_TEST(shared_targets_are_those_of_a_run_that_keeps_all)
{
    run("--set store.keep=all", "full");
    run("--set store.keep=shared", "a");
    for (int l = 0; l < 2; l++) {
        char name[64];
        int64_t n, m;
        snprintf(name, sizeof name, "full/targets/%03d.h5", l);
        char *shared = NULL;
        ck_assert_int_eq(system("cd cache/targets-* && cp *.h5 ../.."), 0);
        ck_assert_int_ge(asprintf(&shared, "%03d.h5", l), 0);
        char target[64];
        snprintf(target, sizeof target, "/blocks/%03d/target", l);
        float *want = values(name, target, &n), *got = values(shared, target, &m);
        ck_assert_int_eq(n, m);
        ck_assert_mem_eq(got, want, (size_t)n * sizeof *got);
        free(want);
        free(got);
        free(shared);
    }
}
END_TEST

/* Learning rates and schemes do not change them; samples and the prefix do. */
START_TEST(shared_targets_are_made_for_what_they_depend_on)
{
    run("--set store.keep=shared", "a");
    run("--set store.keep=shared --set train.lr_quant=1e-2 --set scheme=W8A8KV8-dynamic", "b");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 1);
    run("--set store.keep=shared --set data.training.samples=4", "c");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 2);
    run("--set store.keep=shared --set prefix.mode=[1]", "d");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 3);
    run("--set store.keep=shared --set train.epochs=0", "e");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 3);
}
END_TEST

static const char *const kept[] = {"rolling", "all", "shared"};

/* What lies in targets/ then may lack what the run needs, or have more. */
START_TEST(run_goes_on_with_another_way_to_keep_targets)
{
    const char *before = kept[_i / 2], *after = kept[(_i / 2 + _i % 2 + 1) % 3];
    run("--set store.keep=rolling", "full");
    e2e_stop_at("rename:18", SIGKILL); /* targets of some block are there */
    ck_assert_int_eq(e2e_wait(e2e_start("run run.yaml --set store.keep=%s --out a", before)), 128 + SIGKILL);
    e2e_stop_at(NULL, 0);
    e2e_brick(0, "run run.yaml --set store.keep=%s --out a --resume", after);
    if (!strcmp(after, "all")) e2e_remove("a/targets");
    e2e_same_tree("full/model", "a/model");
}
END_TEST

START_TEST(damaged_shared_targets_are_made_anew)
{
    run("--set store.keep=shared", "full");
    ck_assert_int_eq(system("f=$(ls cache/targets-*/001.h5); printf x | dd of=$f bs=1 seek=9000 conv=notrunc status=none"),
                     0);
    run("--set store.keep=shared", "a");
    e2e_said("made anew");
    e2e_same_run("full", "a");
    ck_assert_int_eq(made(BK_STAGE_TARGETS), 2);
}
END_TEST

START_TEST(shared_targets_that_are_lost_under_way_stop_the_run)
{
    int status;
    run("--set store.keep=shared", "full");
    e2e_stop_at("rename:5", SIGSTOP); /* a file of the run folder, with its stages found */
    pid_t pid = e2e_start("run run.yaml --set store.keep=shared --out a");
    e2e_stop_at(NULL, 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(system("cp -R $(ls -d cache/targets-*) kept; for f in cache/targets-*/*.h5; do head -c 9000 $f "
                            ">cut && cp cut $f; done"), 0);
    kill(pid, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 3);
    e2e_said("--resume makes it again");
    e2e_brick(0, "run run.yaml --set store.keep=shared --out a --resume");
    e2e_said("made anew");
    e2e_same_run("full", "a");
    ck_assert_int_eq(system("cp -R $(ls -d cache/targets-*) again && diff -r kept again"), 0);
}
END_TEST

START_TEST(runs_at_once_make_every_stage_once)
{
    pid_t pid[3];
    e2e_append("run.yaml", "evaluate: [ablation]\nstore: {keep: shared}\n"
                           "prefix: {mode: search, search: {candidates: 2, max_tokens: 1}}\n");
    for (int i = 0; i < 3; i++) pid[i] = e2e_start("run run.yaml --out r%d", i);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(e2e_wait(pid[i]), 0);
    for (int k = 0; k < BK_STAGE_KINDS; k++) /* a search goes with no fit */
        ck_assert_msg(made((bk_stage_kind)k) == (k != BK_STAGE_FIT), "%s: %d", bk_stage_name((bk_stage_kind)k), made((bk_stage_kind)k));
    e2e_same_run("r0", "r1");
    e2e_same_run("r0", "r2");
}
END_TEST

/* --- rows --- */

/* What is changed, and the rows and stages that are made again for it, the others being found. */
static const struct {
    const char *set;
    unsigned again;
} changes[] = {
#define BIT(k) (1u << BK_STAGE_##k)
    {"train.lr_quant=1e-2", 0},
    {"prefix.mode=[1]", BIT(INIT) | BIT(ROW_PREFIX) | BIT(ROW_INIT)},
    {"prefix.overlap=true", BIT(INIT) | BIT(ROW_PREFIX) | BIT(ROW_INIT)},
    {"rotation.r4=false", ~(BIT(OUTLIERS) | BIT(ROW_FP) | BIT(ROW_RTN))},
    {"seed=3", ~(BIT(ROW_FP) | BIT(ROW_RTN))},
    {"scheme=W4A8KV8-static", ~(BIT(OUTLIERS) | BIT(ROW_FP) | BIT(ROW_PREFIX))},
    {"init.search=false", BIT(INIT) | BIT(ROW_NO_PREFIX) | BIT(ROW_INIT)},
    {"data.calibration.samples=3", BIT(INIT) | BIT(ROW_SEARCH) | BIT(ROW_NO_PREFIX) | BIT(ROW_INIT)},
    {"data.evaluation.windows=3", ~(BIT(OUTLIERS) | BIT(INIT))},
    {"backend=ref", ~0u},
};

/* A second run with this change, behind the run a. */
static void makes_again(const char *set, unsigned again)
{
    int before[BK_STAGE_KINDS];
    for (int k = 0; k < BK_STAGE_KINDS; k++) before[k] = made((bk_stage_kind)k);
    e2e_brick(0, "run run.yaml --set %s --out b", set);
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        int want = before[k] ? before[k] + (int)(again >> k & 1) : 0;
        ck_assert_msg(made((bk_stage_kind)k) == want, "%s: made %d times, want %d", bk_stage_name((bk_stage_kind)k),
                      made((bk_stage_kind)k), want);
    }
}

START_TEST(rows_are_made_for_what_they_depend_on)
{
    e2e_append("run.yaml", "evaluate: [ablation]\n");
    run("", "a");
    makes_again(changes[_i].set, changes[_i].again);
}
END_TEST

/* The same for what is fitted, and for GPTQ behind it. */
static const struct {
    const char *set;
    unsigned again;
} fits[] = {
#define BEHIND_FIT (BIT(INIT) | BIT(ROW_PREFIX) | BIT(ROW_ROTATION) | BIT(ROW_SEARCH) | BIT(ROW_INIT))
    {"train.lr_quant=1e-2", 0},
    {"gptq.percdamp=0.1", BIT(INIT) | BIT(ROW_INIT)},
    {"gptq.first_weight=4", BIT(INIT) | BIT(ROW_INIT)},
    {"init.from=minmax", BIT(INIT) | BIT(ROW_INIT)},
    {"data.calibration.samples=1", BIT(INIT) | BIT(ROW_SEARCH) | BIT(ROW_INIT)},
    {"offq.zigzag=true", BIT(FIT) | BEHIND_FIT},
    {"data.statistics.text=../m/eval.txt", BIT(FIT) | BEHIND_FIT},
    {"data.statistics.samples=2", BIT(FIT) | BEHIND_FIT},
    {"data.statistics.seqlen=16", BIT(FIT) | BEHIND_FIT},
    {"prefix.mode=[1]", BIT(FIT) | BEHIND_FIT},
    {"prefix.overlap=true", BIT(FIT) | BEHIND_FIT},
    {"rotation.r2_per_head=false", BIT(FIT) | BEHIND_FIT},
    {"rotation.basis=dfrot", BIT(FIT) | BEHIND_FIT},
    {"seed=3", ~(BIT(ROW_FP) | BIT(ROW_RTN))},
    {"data.evaluation.windows=3", ~(BIT(OUTLIERS) | BIT(FIT) | BIT(INIT))},
};

START_TEST(a_fit_is_made_for_what_it_depends_on)
{
    e2e_config("../m", "method: offq\nprefix: {mode: auto}\ndata.statistics: {samples: 3, seqlen: 32}\nevaluate: [ablation]\n");
    e2e_replace("run.yaml", "scheme: W4A4KV4-static\n", "");
    e2e_replace("run.yaml", "epochs: 2", "epochs: 0");
    run("", "a");
    ck_assert_int_eq(made(BK_STAGE_FIT), 1);
    makes_again(fits[_i].set, fits[_i].again);
}
END_TEST

START_TEST(rows_that_were_found_are_those_that_were_made)
{
    e2e_append("run.yaml", "evaluate: [ablation]\n");
    run("", "a");
    run("--set train.lr_quant=1e-2", "b");
    char *a = e2e_text("a/rows.json"), *b = e2e_text("b/rows.json");
    *strstr(a, "+training") = *strstr(b, "+training") = 0;
    ck_assert_str_eq(a, b);
    free(a);
    free(b);
    ck_assert_double_ne(e2e_row("a", "+training"), e2e_row("b", "+training"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_stages");
    TCase *t = tcase_create("stages");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, shared_targets_train_the_same_model, 0, sizeof settings / sizeof settings[0]);
    tcase_add_test(t, shared_targets_are_those_of_a_run_that_keeps_all);
    tcase_add_test(t, shared_targets_are_made_for_what_they_depend_on);
    tcase_add_loop_test(t, run_goes_on_with_another_way_to_keep_targets, 0, 6);
    tcase_add_test(t, damaged_shared_targets_are_made_anew);
    tcase_add_test(t, shared_targets_that_are_lost_under_way_stop_the_run);
    tcase_add_test(t, runs_at_once_make_every_stage_once);
    tcase_add_loop_test(t, rows_are_made_for_what_they_depend_on, 0, sizeof changes / sizeof changes[0]);
    tcase_add_loop_test(t, a_fit_is_made_for_what_it_depends_on, 0, sizeof fits / sizeof fits[0]);
    tcase_add_test(t, rows_that_were_found_are_those_that_were_made);
    suite_add_tcase(s, t);
    return run_suite(s);
}
