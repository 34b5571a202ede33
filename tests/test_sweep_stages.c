/* What the points of a sweep are said to take: stages that they share count once, work of every kind counts. */
#include <check.h>
#include <string.h>

#include "experiments/sweep_stages.h"
#include "tests/e2e.h"
#include "tests/ok.h"
#include "tests/suite.h"

/* The made model has no room for 2048 tokens. */
#define STATISTICS "data.statistics.samples: 2, data.statistics.seqlen: 64"

static bk_sweep s;
static bk_sweep_run r;
static bk_sweep_stages t;
static bk_error err;

/* The stages of a sweep over run.yaml; `done`: points of which nothing has to be made, by their letter, the first is 'a'. */
static void find(const char *yaml, const char *done)
{
    e2e_write("s.yaml", yaml);
    ok(bk_sweep_load("s.yaml", &s, &err), &err);
    ok(bk_sweep_check(&s, &err), &err);
    ok(bk_sweep_run_begin(&r, &s, "out", &err), &err);
    ok(bk_sweep_stages_begin(&t, &r, false, &err), &err);
    for (int i = 0; i < s.n; i++) ok(bk_sweep_stages_add(&t, i, strchr(done, 'a' + i) != NULL, &err), &err);
}

static void leave(void)
{
    bk_sweep_stages_free(&t);
    bk_sweep_run_free(&r);
    bk_sweep_free(&s);
    e2e_leave();
}

static double seconds(int point)
{
    return bk_sweep_stages_seconds(&t, point);
}

START_TEST(work_of_every_kind_counts)
{
    find("base: run.yaml\nset: {prefix.mode: none, " STATISTICS "}\npoints:\n"
         "  - {method: rtn, scheme: W4A4KV4-static, train.epochs: 0}\n" /* with the rows that all share */
         "  - {method: rtn, scheme: W4A4KV4-dynamic, train.epochs: 0}\n"
         "  - {method: smoothquant, scheme: W4A4KV4-dynamic, train.epochs: 0}\n"
         "  - {method: gptq, scheme: W4A4KV4-dynamic, train.epochs: 0}\n"
         "  - {method: offq, scheme: W4A4KV4-dynamic-asym-gauto, train.epochs: 0}\n"
         "  - {method: rtn, scheme: W4A4KV4-dynamic, train.epochs: 0, init.search: true}\n"
         "  - {method: rtn, scheme: W4A4KV4-dynamic, train.epochs: 2}\n" /* these share the second's initialisation */
         "  - {method: rtn, scheme: W4A4KV4-dynamic, train.epochs: 4}\n",
         "");
    for (int i = 2; i < 6; i++) ck_assert_msg(seconds(i) > seconds(1), "%s takes no longer than rtn: %g s", s.point[i].name, seconds(i));
    ck_assert_msg(seconds(4) > seconds(3), "offq, which fits and then takes GPTQ, takes no longer than GPTQ");
    ck_assert_msg(seconds(7) > seconds(6), "4 epochs take no longer than 2");
}
END_TEST

/* Two points that differ behind a stage. */
#define SHARED "base: run.yaml\nset: {method: quarot, scheme: W4A4KV4-dynamic, init.from: gptq, " STATISTICS "}\n" \
               "grid: {train.lr_quant: [1e-5, 1e-4]}\n"

START_TEST(a_shared_stage_counts_for_the_first_point_that_needs_it)
{
    find(SHARED, "");
    double init = bk_sweep_stages_estimate(&t, 0)->stage_seconds[BK_STAGE_INIT];
    ck_assert(init > 0 && seconds(0) >= seconds(1) + init);
}
END_TEST

START_TEST(a_point_that_is_done_takes_nothing)
{
    find(SHARED, "a");
    ck_assert(seconds(0) == 0);
    ck_assert(seconds(1) > bk_sweep_stages_estimate(&t, 1)->stage_seconds[BK_STAGE_INIT]); /* nobody made it: it is not in the cache */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep_stages");
    TCase *tc = tcase_create("stages");
    tcase_set_timeout(tc, 60);
    tcase_add_unchecked_fixture(tc, e2e_begin, e2e_end);
    tcase_add_checked_fixture(tc, e2e_enter, leave);
    tcase_add_test(tc, work_of_every_kind_counts);
    tcase_add_test(tc, a_shared_stage_counts_for_the_first_point_that_needs_it);
    tcase_add_test(tc, a_point_that_is_done_takes_nothing);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
