/* The guard backend's memory: readable by copies and kernels, and by nobody else. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>

#include "autograd/backend.h"
#include "tests/suite.h"

static double *memory(size_t n)
{
    void *p;
    ck_assert_int_eq(bk_backend_guard(BK_F64)->alloc(n * sizeof(double), &p), BK_OK);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    return p;
}

static void fill(double *x, int64_t n, double value)
{
    ck_assert_int_eq(bk_backend_guard(BK_F64)->k.fill(&(bk_fill_args){.n = n, .value = value, .x = x}, &(bk_work){0}), BK_OK);
}

START_TEST(copies_and_kernels_reach_it)
{
    const bk_backend *be = bk_backend_guard(BK_F64);
    double *x = memory(3), *y = memory(3), host[3] = {1, 1, 1};
    ck_assert_int_eq(be->download(host, x, sizeof host), BK_OK);
    ck_assert_double_eq(host[2], 0);
    host[1] = 5;
    ck_assert_int_eq(be->upload(x, host, sizeof host), BK_OK);
    ck_assert_int_eq(be->k.scale(&(bk_scale_args){.n = 3, .alpha = 2, .x = x}, &(bk_work){0}), BK_OK);
    ck_assert_int_eq(be->copy(y, x, sizeof host), BK_OK);
    ck_assert_int_eq(be->download(host, y, sizeof host), BK_OK);
    ck_assert_double_eq(host[1], 10);
    be->release(x, sizeof host);
    be->release(y, sizeof host);
}
END_TEST

static volatile double sink;

START_TEST(fresh_memory_cannot_be_read)
{
    sink = memory(1)[0];
}
END_TEST

START_TEST(memory_closes_after_a_kernel)
{
    double *x = memory(4);
    fill(x, 4, 1);
    sink = x[0];
}
END_TEST

START_TEST(memory_cannot_be_written)
{
    double *x = memory(4);
    fill(x, 4, 1);
    *(volatile double *)x = 2;
}
END_TEST

START_TEST(kernels_cannot_run_past_the_end)
{
    fill(memory(8), 9, 1);
}
END_TEST

START_TEST(released_memory_cannot_be_used_by_kernels)
{
    double *x = memory(8);
    bk_backend_guard(BK_F64)->release(x, 8 * sizeof *x);
    fill(x, 8, 1);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    void *p = &p;
    ck_assert_int_eq(bk_backend_guard(BK_F64)->alloc(SIZE_MAX, &p), BK_ENOMEM);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(bk_backend_ref(BK_F64)->alloc(SIZE_MAX, &p), BK_ENOMEM);
    ck_assert_ptr_null(p);
}
END_TEST

/* The address sanitizer reports the forbidden access itself and exits. With that of threads the tests run in one process, which a crash ends. */
#if defined(__SANITIZE_THREAD__)
#define ADD_CRASH(t, test) (void)(test)
#elif defined(__SANITIZE_ADDRESS__)
#define ADD_CRASH(t, test) tcase_add_exit_test(t, test, 1)
#else
#define ADD_CRASH(t, test) tcase_add_test_raise_signal(t, test, SIGSEGV)
#endif

int main(void)
{
    Suite *s = suite_create("guard");
    TCase *t = tcase_create("memory");
    tcase_add_test(t, copies_and_kernels_reach_it);
    tcase_add_test(t, impossible_sizes_are_refused);
    ADD_CRASH(t, fresh_memory_cannot_be_read);
    ADD_CRASH(t, memory_closes_after_a_kernel);
    ADD_CRASH(t, memory_cannot_be_written);
    ADD_CRASH(t, kernels_cannot_run_past_the_end);
    ADD_CRASH(t, released_memory_cannot_be_used_by_kernels);
    suite_add_tcase(s, t);
    return run_suite(s);
}
