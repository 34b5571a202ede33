/* The end of main of a test program. */
#ifndef BK_TESTS_SUITE_H
#define BK_TESTS_SUITE_H

#include <check.h>

/* Runs a suite, frees it, and gives main its exit status. */
int run_suite(Suite *s);

#endif
