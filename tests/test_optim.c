/* Parameters: layout, floors, the best copy, norms, clipping, what is not finite. AdamW itself: test_adamw_golden.c. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/optim.h"
#include "tests/ok.h"
#include "tests/suite.h"

static const bk_backend *backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}
enum { BACKENDS = 4 };

/* Declared out of order: group 1, 0, 3, 0. */
typedef struct set {
    const bk_backend *be;
    bk_error err, late; /* of the parameters, of the context */
    bk_params *p;
    bk_ctx *ctx;
    bk_tensor *w, *s, *c, *z;
} set;

static void open_set(set *t, const bk_backend *be, bool trained)
{
    *t = (set){.be = be};
    ck_assert_ptr_nonnull(t->p = bk_params_new(be, &t->err));
    t->w = bk_params_add(t->p, "w", 1, false, 2, (int64_t[]){3, 200});
    char name[8] = "s.step";
    t->s = bk_params_add(t->p, name, 0, true, 1, (int64_t[]){3});
    strcpy(name, "gone"); /* names are copied */
    t->c = bk_params_add(t->p, "c", 3, false, 1, (int64_t[]){2});
    t->z = bk_params_add(t->p, "z", 0, false, 1, (int64_t[]){700});
    ok(bk_params_commit(t->p, trained), &t->err);
    ck_assert_ptr_nonnull(t->ctx = bk_ctx_new(be, &t->late));
    if (!trained) return;
    double norm[BK_MAX_GROUPS];
    int64_t floored = 0;
    ok(bk_params_grad_norm(t->ctx, t->p, norm), &t->late);
    ok(bk_params_check_grad(t->ctx, t->p), &t->late);
    ok(bk_params_step(t->ctx, t->p, &(bk_adamw){0}, (double[]){1, 1, 1, 1}, 1, &floored), &t->late);
    ok(bk_ctx_commit(t->ctx), &t->late);
}

static void close_set(set *t)
{
    bk_ctx_free(t->ctx);
    bk_params_free(t->p);
}

static void fill(set *t, bk_tensor *x, double v)
{
    for (int64_t i = 0; i < bk_numel(x); i++) ok(bk_write_f64(t->be, x, i, &v, 1, &t->err), &t->err);
}

static double at(set *t, const bk_tensor *x, int64_t i)
{
    double v;
    ok(bk_read_f64(t->be, x, i, &v, 1, &t->err), &t->err);
    return v;
}

static void step(set *t, double lr0, double lr1, int64_t n, int64_t *floored)
{
    ok(bk_params_step(t->ctx, t->p, &(bk_adamw){0.9, 0.999, 1e-8, 0}, (double[BK_MAX_GROUPS]){lr0, lr1, 0, 0}, n, floored), &t->late);
}

START_TEST(parameters_are_found_and_begin_as_zeros)
{
    set t;
    int group;
    open_set(&t, backend(_i), true);
    ck_assert_int_eq(bk_params_count(t.p), 4);
    ck_assert_ptr_eq(bk_params_find(t.p, "s.step"), t.s);
    ck_assert_ptr_null(bk_params_find(t.p, "gone"));
    ck_assert_ptr_eq(bk_params_at(t.p, 2, &group), t.c);
    ck_assert_int_eq(group, 3);
    ck_assert_ptr_eq(bk_params_at(t.p, 0, NULL), t.w);
    for (int i = 0; i < 4; i++) {
        const bk_tensor *x = bk_params_at(t.p, i, NULL);
        ck_assert(x->requires_grad && x->grad && bk_same_shape(x, x->grad));
        ck_assert(at(&t, x, 0) == 0 && at(&t, x->grad, bk_numel(x) - 1) == 0);
    }
    ck_assert_uint_eq(bk_params_bytes(t.p), (600 + 3 + 2 + 700) * bk_dtype_size(t.be->dtype) * 5);
    close_set(&t);
    open_set(&t, backend(_i), false);
    ck_assert(!t.w->requires_grad && !t.w->grad);
    close_set(&t);
}
END_TEST

START_TEST(writing_one_leaves_the_others)
{
    set t;
    open_set(&t, backend(_i), true);
    fill(&t, t.s, 1), fill(&t, t.w, 2), fill(&t, t.c, 3), fill(&t, t.z, 4);
    ck_assert(at(&t, t.s, 0) == 1 && at(&t, t.s, 2) == 1 && at(&t, t.w, 0) == 2 && at(&t, t.w, 599) == 2);
    ck_assert(at(&t, t.c, 0) == 3 && at(&t, t.c, 1) == 3 && at(&t, t.z, 0) == 4 && at(&t, t.z, 699) == 4);
    close_set(&t);
}
END_TEST

START_TEST(floors_hold_steps_up)
{
    set t;
    int64_t floored = 0;
    open_set(&t, backend(_i), true);
    fill(&t, t.s, 0.01), fill(&t, t.z, 0.01);
    ok(bk_params_start(t.p), &t.err);
    fill(&t, t.s->grad, 1), fill(&t, t.z->grad, 1);
    ok(bk_write_f64(t.be, t.s->grad, 1, &(double){-1}, 1, &t.err), &t.err);
    step(&t, 1, 0, 1, &floored);
    ck_assert_int_eq(floored, 2);
    ck_assert(fabs(at(&t, t.s, 0) - 1e-5) < 1e-10 && fabs(at(&t, t.s, 1) - 1.01) < 1e-6);
    ck_assert(fabs(at(&t, t.z, 3) + 0.99) < 1e-6); /* zero points may go where they like */
    step(&t, 1, 0, 2, &floored);
    ck_assert_int_eq(floored, 4); /* counted on */
    close_set(&t);
}
END_TEST

START_TEST(a_rate_of_zero_keeps_the_bits)
{
    set t;
    int64_t floored = 0;
    open_set(&t, backend(_i), true);
    fill(&t, t.s, 0.3), fill(&t, t.w, 0.1);
    ok(bk_params_start(t.p), &t.err);
    fill(&t, t.w->grad, 1), fill(&t, t.s->grad, 1);
    double w = at(&t, t.w, 7), s = at(&t, t.s, 1);
    step(&t, 0, 0.01, 1, &floored);
    ck_assert(at(&t, t.s, 1) == s && at(&t, t.w, 7) != w);
    w = at(&t, t.w, 7);
    step(&t, 0.01, 0, 2, &floored);
    ck_assert(at(&t, t.s, 1) != s && at(&t, t.w, 7) == w && at(&t, t.c, 0) == 0);
    close_set(&t);
}
END_TEST

START_TEST(weight_decay_shrinks_before_the_step)
{
    set t;
    int64_t floored = 0;
    open_set(&t, backend(_i), true);
    fill(&t, t.w, 2);
    ok(bk_params_start(t.p), &t.err);
    ok(bk_params_step(t.ctx, t.p, &(bk_adamw){0.9, 0.999, 1e-8, 0.5}, (double[BK_MAX_GROUPS]){0, 0.1, 0, 0}, 1, &floored), &t.late);
    ck_assert(fabs(at(&t, t.w, 0) - 2 * (1 - 0.05)) < 1e-6); /* no gradient */
    close_set(&t);
}
END_TEST

START_TEST(the_best_copy_comes_back)
{
    set t;
    open_set(&t, backend(_i), true);
    fill(&t, t.w, 1), fill(&t, t.s, 2);
    ok(bk_params_start(t.p), &t.err); /* the first best */
    fill(&t, t.w, 5), fill(&t, t.s, 6);
    ok(bk_params_restore_best(t.p), &t.err);
    ck_assert(at(&t, t.w, 599) == 1 && at(&t, t.s, 0) == 2);
    fill(&t, t.w, 7);
    ok(bk_params_keep_best(t.p), &t.err);
    fill(&t, t.w, 8);
    ok(bk_params_restore_best(t.p), &t.err);
    ck_assert(at(&t, t.w, 0) == 7 && at(&t, t.s, 2) == 2);
    close_set(&t);
}
END_TEST

START_TEST(norms_are_per_group_and_scale)
{
    set t;
    double norm[BK_MAX_GROUPS];
    open_set(&t, backend(_i), true);
    fill(&t, t.w->grad, 2), fill(&t, t.s->grad, 3), fill(&t, t.z->grad, 1);
    ok(bk_params_grad_norm(t.ctx, t.p, norm), &t.late);
    ck_assert(fabs(norm[1] - 2 * sqrt(600)) < 1e-4 && fabs(norm[0] - sqrt(27 + 700)) < 1e-4 && norm[2] == 0 && norm[3] == 0);
    ok(bk_params_scale_grad(t.ctx, t.p, 0.5), &t.late);
    ck_assert(at(&t, t.w->grad, 599) == 1 && at(&t, t.s->grad, 0) == 1.5);
    ok(bk_params_zero_grad(t.ctx, t.p), &t.late);
    ck_assert(at(&t, t.w->grad, 0) == 0 && at(&t, t.z->grad, 699) == 0);
    close_set(&t);
}
END_TEST

START_TEST(what_is_not_finite_is_named)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        set t;
        double norm[BK_MAX_GROUPS];
        open_set(&t, backend(_i), true);
        ok(bk_params_check_grad(t.ctx, t.p), &t.late);
        ok(bk_write_f64(t.be, t.z->grad, 321, &bad[i], 1, &t.err), &t.err);
        ok(bk_params_grad_norm(t.ctx, t.p, norm), &t.late);
        ck_assert(!isfinite(norm[0]) && norm[1] == 0);
        ck_assert_int_eq(bk_params_check_grad(t.ctx, t.p), BK_ENUMERIC);
        ck_assert_msg(strstr(t.late.msg, "z") && strstr(t.late.msg, "321"), "%s", t.late.msg);
        ck_assert_int_eq(t.err.code, BK_OK);
        close_set(&t);
    }
}
END_TEST

START_TEST(moments_can_be_forgotten)
{
    set t;
    int64_t floored = 0;
    double first[2];
    open_set(&t, backend(_i), true);
    for (int i = 0; i < 2; i++) {
        fill(&t, t.w, 1);
        if (i == 0) ok(bk_params_start(t.p), &t.err);
        else ok(bk_params_reset_moments(t.p), &t.err);
        fill(&t, t.w->grad, 0.5);
        step(&t, 0, 0.1, 1, &floored);
        first[i] = at(&t, t.w, 17);
        fill(&t, t.w->grad, -3);
        step(&t, 0, 0.1, 2, &floored);
    }
    ck_assert(first[0] == first[1]);
    close_set(&t);
}
END_TEST

/* Groups 0 (AdamW), 1 (signs), 3 (constant), in an order of declaration that is none of theirs. */
typedef struct mixed {
    const bk_backend *be;
    bk_error err;
    bk_params *p;
    bk_ctx *ctx;
    bk_tensor *c, *v, *w;
} mixed;

static void open_mixed(mixed *t, const bk_backend *be)
{
    *t = (mixed){.be = be};
    double norm[BK_MAX_GROUPS];
    int64_t floored = 0;
    ck_assert_ptr_nonnull(t->p = bk_params_new(be, &t->err));
    bk_params_set_rule(t->p, 1, BK_RULE_SIGN);
    bk_params_set_rule(t->p, 3, BK_RULE_CONSTANT);
    t->c = bk_params_add(t->p, "c", 3, false, 1, (int64_t[]){5});
    t->v = bk_params_add(t->p, "v", 1, false, 1, (int64_t[]){20011});
    t->w = bk_params_add(t->p, "w", 0, false, 1, (int64_t[]){7});
    bk_params_bound(t->p, t->v, -0.25, 0.5);
    ok(bk_params_commit(t->p, true), &t->err);
    ck_assert_ptr_nonnull(t->ctx = bk_ctx_new(be, &t->err));
    ok(bk_params_grad_norm(t->ctx, t->p, norm), &t->err);
    ok(bk_params_check_grad(t->ctx, t->p), &t->err);
    ok(bk_params_step(t->ctx, t->p, &(bk_adamw){0}, (double[]){1, 1, 1, 1}, 1, &floored), &t->err);
    ok(bk_ctx_commit(t->ctx), &t->err);
}

static void close_mixed(mixed *t)
{
    bk_ctx_free(t->ctx);
    bk_params_free(t->p);
}

static void put(mixed *t, bk_tensor *x, int64_t i, double v)
{
    ok(bk_write_f64(t->be, x, i, &v, 1, &t->err), &t->err);
}

static double get(mixed *t, const bk_tensor *x, int64_t i)
{
    double v;
    ok(bk_read_f64(t->be, x, i, &v, 1, &t->err), &t->err);
    return v;
}

static void move(mixed *t, double lr, int64_t step)
{
    int64_t floored = 0;
    ok(bk_params_step(t->ctx, t->p, &(bk_adamw){0.9, 0.999, 1e-8, 0}, (double[BK_MAX_GROUPS]){lr, lr, lr, lr}, step, &floored), &t->err);
}

START_TEST(groups_move_by_their_rules)
{
    mixed t;
    open_mixed(&t, backend(_i));
    put(&t, t.c, 4, 3);
    put(&t, t.w->grad, 6, 5);
    put(&t, t.v->grad, 0, 1e-20);
    put(&t, t.v->grad, 20010, -7);
    ok(bk_params_start(t.p), &t.err);
    move(&t, 0.125, 1);
    ck_assert_msg(get(&t, t.v, 0) == -0.125 && get(&t, t.v, 20010) == 0.125 && get(&t, t.v, 1) == 0, "%g, %g, %g", get(&t, t.v, 0),
                  get(&t, t.v, 20010), get(&t, t.v, 1));
    ck_assert(get(&t, t.c, 4) == 3);
    ck_assert_double_eq_tol(get(&t, t.w, 6), -0.125, 1e-6); /* the first step of AdamW is the rate */
    ck_assert(get(&t, t.w, 5) == 0);
    put(&t, t.w->grad, 6, -5);
    move(&t, 0.125, 2);
    ck_assert_double_eq_tol(get(&t, t.w, 6), -0.125 + 0.125 * 0.05 / 0.19 / 5, 1e-6); /* its moment remembers the first */
    close_mixed(&t);
}
END_TEST

START_TEST(bounds_hold_and_let_go)
{
    mixed t;
    open_mixed(&t, backend(_i));
    put(&t, t.v->grad, 0, 1);
    put(&t, t.v->grad, 20010, -1);
    ok(bk_params_start(t.p), &t.err);
    for (int k = 1; k <= 3; k++) move(&t, 0.1875, k);
    ck_assert(get(&t, t.v, 0) == -0.25 && get(&t, t.v, 20010) == 0.5);
    put(&t, t.v->grad, 0, -1);
    put(&t, t.v->grad, 20010, 1);
    move(&t, 0.125, 4);
    ck_assert_msg(get(&t, t.v, 0) == -0.125 && get(&t, t.v, 20010) == 0.375, "what was beyond a bound comes back late: %g, %g", get(&t, t.v, 0),
                  get(&t, t.v, 20010));
    close_mixed(&t);
}
END_TEST

/* Values, gradients and best copy of all, moments of the seven. */
START_TEST(constants_have_no_gradient_and_signs_no_moments)
{
    mixed t;
    open_mixed(&t, backend(_i));
    ck_assert(!t.c->requires_grad && !t.c->grad && t.v->requires_grad && t.v->grad && t.w->requires_grad);
    ck_assert_uint_eq(bk_params_bytes(t.p), (3 * (5 + 20011 + 7) + 2 * 7) * bk_dtype_size(t.be->dtype));
    close_mixed(&t);
}
END_TEST

START_TEST(values_set_aside_come_back)
{
    mixed t;
    open_mixed(&t, backend(_i));
    put(&t, t.v, 9, 0.25), put(&t, t.c, 1, 2), put(&t, t.w, 3, -1);
    ok(bk_params_start(t.p), &t.err);
    ok(bk_params_set_aside(t.p), &t.err);
    put(&t, t.v, 9, 0.5), put(&t, t.c, 1, 7), put(&t, t.w, 3, 8);
    ok(bk_params_take_back(t.p), &t.err);
    ck_assert(get(&t, t.v, 9) == 0.25 && get(&t, t.c, 1) == 2 && get(&t, t.w, 3) == -1);
    close_mixed(&t);
}
END_TEST

START_TEST(the_rate_is_a_cosine)
{
    ck_assert(bk_cosine_lr(1, 10, 0, 30) == 1);
    ck_assert(fabs(bk_cosine_lr(1, 10, 15, 30) - 0.55) < 1e-12);
    ck_assert(bk_cosine_lr(1, 10, 29, 30) > 0.1);
    ck_assert(fabs(bk_cosine_lr(1, 10, 30, 30) - 0.1) < 1e-12);
    ck_assert(bk_cosine_lr(0, 10, 3, 30) == 0);
    ck_assert(bk_cosine_lr(2, 1, 17, 30) == 2);
    for (int k = 1; k < 30; k++) ck_assert(bk_cosine_lr(1, 10, k, 30) < bk_cosine_lr(1, 10, k - 1, 30));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("optim");
    TCase *t = tcase_create("parameters");
    tcase_add_loop_test(t, parameters_are_found_and_begin_as_zeros, 0, BACKENDS);
    tcase_add_loop_test(t, writing_one_leaves_the_others, 0, BACKENDS);
    tcase_add_loop_test(t, floors_hold_steps_up, 0, BACKENDS);
    tcase_add_loop_test(t, a_rate_of_zero_keeps_the_bits, 0, BACKENDS);
    tcase_add_loop_test(t, weight_decay_shrinks_before_the_step, 0, BACKENDS);
    tcase_add_loop_test(t, the_best_copy_comes_back, 0, BACKENDS);
    tcase_add_loop_test(t, norms_are_per_group_and_scale, 0, BACKENDS);
    tcase_add_loop_test(t, what_is_not_finite_is_named, 0, BACKENDS);
    tcase_add_loop_test(t, moments_can_be_forgotten, 0, BACKENDS);
    tcase_add_loop_test(t, groups_move_by_their_rules, 0, BACKENDS);
    tcase_add_loop_test(t, bounds_hold_and_let_go, 0, BACKENDS);
    tcase_add_loop_test(t, constants_have_no_gradient_and_signs_no_moments, 0, BACKENDS);
    tcase_add_loop_test(t, values_set_aside_come_back, 0, BACKENDS);
    tcase_add_test(t, the_rate_is_a_cosine);
    suite_add_tcase(s, t);
    return run_suite(s);
}
