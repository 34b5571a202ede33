/* Tests of `brick report`: the page of the last report, and a suite of such tests. */
#ifndef BK_TESTS_E2E_REPORT_H
#define BK_TESTS_E2E_REPORT_H

#include <check.h>

#include "tests/e2e.h"

/* A string that closes quotes of shell, gnuplot, JSON and HTML, for where others' strings go. */
#define HOSTILE "'<b>`touch${IFS}pwned`\\\";@x{/Bold"

/* Reads dir/index.html, which the functions below look at until the next page is read. */
void page_take(const char *dir);
const char *page_text(void);
void page_shows(const char *words); /* demands them */
void page_hides(const char *words); /* demands that they are not there */
int page_count(const char *words);

/* Runs a suite, in whose folders lie `r`, a copy of one finished run, and ../m, its model; gives main its exit status.
 * The tests of `drawing` are left out, and counted, where there is no gnuplot. */
int report_tests(const char *suite, const TTest *const plain[], int plains, const TTest *const drawing[], int drawings);

#endif
