/* Backends against the reference in double, over the table of op cases: values and all gradients. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases_ops.h"
#include "tests/h5_golden.h"
#include "tests/run_graph.h"
#include "tests/suite.h"

/* Of OpenMP, whose header belongs to backends/cpu alone. */
void omp_set_num_threads(int threads);

static bk_graph_result run(const bk_backend *be, const bk_op_case *c)
{
    bk_gradcheck_input in[BK_CASE_INPUTS];
    int n = bk_case_inputs(c, in);
    bk_graph_result r = bk_run_graph(be, c->graph, (void *)c, in, n, NULL, c->seed + 2);
    bk_case_free(in, n);
    return r;
}

static int64_t numel(const bk_case_input *in)
{
    int64_t n = 1;
    for (int d = 0; d < in->ndim; d++) n *= in->dim[d];
    return n;
}

static int64_t last_dim(const bk_case_input *in)
{
    return in->dim[in->ndim - 1];
}

/* The columns of the result are those of the first input, or of the weight; losses have one number, or one per row. */
static int64_t out_cols(const bk_op_case *c, int64_t n_out)
{
    int64_t cols = strcmp(c->op, "linear") == 0 ? c->in[1].dim[0] : last_dim(&c->in[0]);
    return n_out % cols ? n_out : cols;
}

static void compare(const bk_op_case *c, const bk_backend *be, const char *what, const double *got, const double *want, int64_t n,
                    int64_t cols, double tol)
{
    double error = bk_golden_error(got, want, n, cols);
    ck_assert_msg(error <= tol, "%s, %s on %s: %s is off by %.3g, more than %.3g", c->op, c->name, be->name, what, error, tol);
}

static void close_to_reference(const bk_backend *be, const bk_op_case *c, double tol)
{
    bk_graph_result want = run(bk_backend_ref(BK_F64), c), got = run(be, c);
    ck_assert_int_eq(got.n_out, want.n_out);
    compare(c, be, "the result", got.y, want.y, want.n_out, out_cols(c, want.n_out), tol);
    for (int i = 0; i < BK_CASE_INPUTS; i++)
        if (want.grad[i]) compare(c, be, c->in[i].name, got.grad[i], want.grad[i], numel(&c->in[i]), last_dim(&c->in[i]), tol);
    bk_graph_result_free(&want);
    bk_graph_result_free(&got);
}

static void same_bytes(const bk_op_case *c, const bk_graph_result *a, const bk_graph_result *b)
{
    ck_assert_int_eq(a->n_out, b->n_out);
    ck_assert_msg(!memcmp(a->y, b->y, (size_t)a->n_out * sizeof(double)), "%s, %s: the result differs", c->op, c->name);
    for (int i = 0; i < BK_CASE_INPUTS; i++) {
        ck_assert_int_eq(!a->grad[i], !b->grad[i]);
        if (a->grad[i])
            ck_assert_msg(!memcmp(a->grad[i], b->grad[i], (size_t)numel(&c->in[i]) * sizeof(double)), "%s, %s: the gradient of %s differs", c->op,
                          c->name, c->in[i].name);
    }
}

/* Plain float arithmetic stays far below these; a wrong code or a lost row does not. */
static double tolerance(const bk_op_case *c)
{
    return strcmp(c->op, "attention") == 0 ? 2e-4 : 5e-5;
}

START_TEST(ref_f32_follows_f64)
{
    close_to_reference(bk_backend_ref(BK_F32), &bk_op_cases[_i], tolerance(&bk_op_cases[_i]));
}
END_TEST

START_TEST(cpu_follows_f64)
{
    close_to_reference(bk_backend_cpu(), &bk_op_cases[_i], tolerance(&bk_op_cases[_i]));
}
END_TEST

/* Also that neither the engine nor an op touches tensor data but through kernels and copies. */
START_TEST(guard_gives_the_bytes_of_ref)
{
    const bk_op_case *c = &bk_op_cases[_i];
    for (bk_dtype real = BK_F32; real <= BK_F64; real++) {
        bk_graph_result ref = run(bk_backend_ref(real), c), guard = run(bk_backend_guard(real), c);
        same_bytes(c, &ref, &guard);
        bk_graph_result_free(&ref);
        bk_graph_result_free(&guard);
    }
}
END_TEST

START_TEST(cpu_gives_the_same_bytes_for_any_number_of_threads)
{
    const bk_op_case *c = &bk_op_cases[_i];
    omp_set_num_threads(1);
    bk_graph_result one = run(bk_backend_cpu(), c);
    for (int threads = 2; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        bk_graph_result more = run(bk_backend_cpu(), c);
        same_bytes(c, &one, &more);
        bk_graph_result_free(&more);
    }
    bk_graph_result_free(&one);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops_backend");
    TCase *t = tcase_create("backends");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, ref_f32_follows_f64, 0, bk_op_case_count);
    tcase_add_loop_test(t, cpu_follows_f64, 0, bk_op_case_count);
    tcase_add_loop_test(t, guard_gives_the_bytes_of_ref, 0, bk_op_case_count);
    tcase_add_loop_test(t, cpu_gives_the_same_bytes_for_any_number_of_threads, 0, bk_op_case_count);
    suite_add_tcase(s, t);
    return run_suite(s);
}
