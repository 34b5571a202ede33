/* Every op's gradient against central differences on the reference backend in double: random cotangents, every subset of inputs that want a
 * gradient, the op alone and twice in a diamond. Also that the checker itself sees what it must see. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases_ops.h"
#include "tests/suite.h"

#define STEP 1e-5
#define TOL 2e-6

/* silu(y) y: both inputs of the second op come from the same inputs, so every gradient arrives twice. */
static bk_tensor *diamond(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_swiglu(ctx, c->graph(ctx, in, user), c->graph(ctx, in, user));
}

static void check_case(const bk_op_case *c, bk_graph graph)
{
    bk_gradcheck_input in[BK_CASE_INPUTS];
    bk_gradcheck_report report;
    bk_error err = {0};
    int n = bk_case_inputs(c, in);
    bk_status st = bk_gradcheck(bk_backend_ref(BK_F64), graph, (void *)c, in, n, c->seed + 1, STEP, TOL, &report, &err);
    bk_case_free(in, n);
    ck_assert_msg(st == BK_OK, "%s, %s: %s", c->op, c->name, err.msg);
    ck_assert_msg(report.compared > 0, "%s, %s: nothing was compared", c->op, c->name);
}

/* The i-th case that is small enough; returns NULL behind the last. Wide ones are for the backend comparison and have small sisters. */
static const bk_op_case *small_case(int i)
{
    for (int k = 0; k < bk_op_case_count; k++)
        if (!bk_op_cases[k].wide && i-- == 0) return &bk_op_cases[k];
    return NULL;
}

static int small_cases(void)
{
    int n = 0;
    while (small_case(n)) n++;
    return n;
}

START_TEST(gradients_match)
{
    check_case(small_case(_i), small_case(_i)->graph);
}
END_TEST

START_TEST(gradients_add_up_in_a_diamond)
{
    check_case(small_case(_i), diamond);
}
END_TEST

/* Ops that are wrong on purpose: y = a, with a gradient that flips the sign, is half as large, NaN, or missing. */
typedef enum fault { FLIPPED, HALVED, NOT_A_NUMBER, MISSING, FAULTS } fault;

static bk_status faulty_infer(bk_node *n)
{
    bk_op_out_like(n, 0, n->in[0]);
    return BK_OK;
}

static bk_status faulty_forward(bk_node *n)
{
    BK_TRY(bk_k_fill(n->ctx, &(bk_fill_args){.n = bk_numel(n->in[0]), .x = n->out[0]->data}));
    return bk_k_axpy(n->ctx, &(bk_axpy_args){.n = bk_numel(n->in[0]), .alpha = 1, .x = n->in[0]->data, .y = n->out[0]->data});
}

static bk_status faulty_backward(bk_node *n)
{
    static const double factor[FAULTS] = {-1, 0.5, NAN, 0};
    double alpha = factor[*(const fault *)n->attr];
    return bk_k_axpy(n->ctx, &(bk_axpy_args){.n = bk_numel(n->in[0]), .alpha = alpha, .x = bk_dout(n, 0), .y = bk_grad_data(n, 0)});
}

static const bk_op faulty = {.name = "faulty", .n_in_min = 1, .n_in_max = 1, .n_out = 1, .attr_size = sizeof(fault), .diff_in = 1,
                             .infer = faulty_infer, .forward = faulty_forward, .backward = faulty_backward};

static bk_tensor *faulty_graph(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_apply(ctx, &faulty, in, 1, user);
}

START_TEST(checker_refuses_wrong_gradient)
{
    const double x[3] = {1, -2, 3};
    fault f = (fault)_i;
    bk_gradcheck_input in = {.name = "x", .ndim = 1, .dim = {3}, .values = x, .differentiate = true};
    bk_gradcheck_report report;
    bk_error err = {0};
    bk_status st = bk_gradcheck(bk_backend_ref(BK_F64), faulty_graph, &f, &in, 1, 1, STEP, TOL, &report, &err);
    ck_assert_int_eq(st, BK_ENUMERIC);
    ck_assert_msg(strstr(err.msg, "dx[0]") != NULL, "the message names no index: %s", err.msg);
}
END_TEST

static bk_tensor *identity_graph(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)ctx, (void)user;
    return in[0];
}

START_TEST(checker_refuses_nothing_to_compare)
{
    const double x[3] = {1, -2, 3};
    bk_gradcheck_input in = {.name = "x", .ndim = 1, .dim = {3}, .values = x, .differentiate = false};
    bk_gradcheck_report report;
    bk_error err = {0};
    ck_assert_int_eq(bk_gradcheck(bk_backend_ref(BK_F64), identity_graph, NULL, &in, 1, 1, STEP, TOL, &report, &err), BK_EINVAL);
}
END_TEST

START_TEST(checker_refuses_floats)
{
    const double x[1] = {1};
    bk_gradcheck_input in = {.name = "x", .ndim = 1, .dim = {1}, .values = x, .differentiate = true};
    bk_gradcheck_report report;
    bk_error err = {0};
    ck_assert_int_eq(bk_gradcheck(bk_backend_ref(BK_F32), identity_graph, NULL, &in, 1, 1, STEP, TOL, &report, &err), BK_EINVAL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops_grad");
    TCase *t = tcase_create("gradients");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, gradients_match, 0, small_cases());
    tcase_add_loop_test(t, gradients_add_up_in_a_diamond, 0, small_cases());
    tcase_add_loop_test(t, checker_refuses_wrong_gradient, 0, FAULTS);
    tcase_add_test(t, checker_refuses_nothing_to_compare);
    tcase_add_test(t, checker_refuses_floats);
    suite_add_tcase(s, t);
    return run_suite(s);
}
