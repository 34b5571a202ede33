#include "tests/e2e_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite.h"

static char *page;

void page_take(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/index.html", dir);
    free(page);
    page = e2e_text(path);
}

const char *page_text(void)
{
    return page;
}

void page_shows(const char *words)
{
    ck_assert_msg(strstr(page, words), "'%s' is not on the page:\n%.3000s", words, strstr(page, "<body>"));
}

void page_hides(const char *words)
{
    ck_assert_msg(!strstr(page, words), "'%s' is on the page", words);
}

int page_count(const char *words)
{
    int n = 0;
    for (const char *at = page; (at = strstr(at, words)); at++) n++;
    return n;
}

static void enter(void)
{
    e2e_enter();
    e2e_copy_tree("../run", "r");
    page = NULL;
}

static void leave(void)
{
    free(page);
    e2e_leave();
}

static void add(Suite *s, const char *name, const TTest *const tests[], int n)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 60);
    tcase_add_unchecked_fixture(t, e2e_begin_run, e2e_end);
    tcase_add_checked_fixture(t, enter, leave);
    for (int i = 0; i < n; i++) tcase_add_test(t, tests[i]);
    suite_add_tcase(s, t);
}

int report_tests(const char *suite, const TTest *const plain[], int plains, const TTest *const drawing[], int drawings)
{
    Suite *s = suite_create(suite);
    bool failed = false;
    if (plains) add(s, "without gnuplot", plain, plains);
    if (system("gnuplot --version >/dev/null 2>&1") == 0) add(s, "report", drawing, drawings);
    else if (e2e_skipped(drawings, "gnuplot is not installed (scripts/setup.sh test)")) failed = true;
    return run_suite(s) || failed;
}
