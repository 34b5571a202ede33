#include "tests/run_graph.h"

#include <check.h>
#include <stdlib.h>

#include "autograd/rng.h"

static void ok(const bk_backend *be, bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s: %s", be->name, bk_status_name(st ? st : err->code), err->msg);
}

static double *host(int64_t n)
{
    double *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static bk_tensor *input(const bk_backend *be, const bk_gradcheck_input *s, bk_error *err)
{
    bk_tensor *t;
    ok(be, bk_tensor_create(be, s->ids ? BK_I32 : be->dtype, s->ndim, s->dim, s->name, &t, err), err);
    if (s->ids) ok(be, bk_write_i32(be, t, 0, s->ids, bk_numel(t), err), err);
    else ok(be, bk_write_f64(be, t, 0, s->values, bk_numel(t), err), err);
    if (!s->differentiate) return t;
    ok(be, bk_tensor_create(be, be->dtype, s->ndim, s->dim, s->name, &t->grad, err), err);
    t->requires_grad = true;
    return t;
}

static double *read_all(const bk_backend *be, const bk_tensor *t, bk_error *err)
{
    double *x = host(bk_numel(t));
    ok(be, bk_read_f64(be, t, 0, x, bk_numel(t), err), err);
    return x;
}

/* One step; during the dry run nothing is written. */
static bk_tensor *step(bk_ctx *ctx, bk_graph graph, void *user, bk_tensor **in, const double *cotangent, uint64_t seed)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    bk_step_begin(ctx);
    bk_tensor *y = graph(ctx, in, user);
    ok(be, bk_ctx_status(ctx), err);
    if (!y->requires_grad) return y;
    bk_tensor *dy = bk_real_new(ctx, y->ndim, y->dim, "cotangent");
    ok(be, bk_ctx_status(ctx), err);
    int64_t n = bk_numel(y);
    double *values = host(n);
    for (int64_t i = 0; i < n; i++) values[i] = cotangent ? cotangent[i] : (float)bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    if (!bk_ctx_measuring(ctx)) ok(be, bk_write_f64(be, dy, 0, values, n, err), err);
    free(values);
    ok(be, bk_backward(ctx, y, dy), err);
    return y;
}

bk_graph_result bk_run_graph(const bk_backend *be, bk_graph graph, void *user, const bk_gradcheck_input *in, int n_in, const double *cotangent,
                             uint64_t seed)
{
    bk_error err = {0};
    bk_tensor *t[BK_GRADCHECK_MAX] = {0};
    bk_graph_result r = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    ck_assert_ptr_nonnull(ctx);
    for (int i = 0; i < n_in; i++) t[i] = input(be, &in[i], &err);
    bk_ctx_record(ctx, true);
    step(ctx, graph, user, t, cotangent, seed);
    ok(be, bk_ctx_commit(ctx), &err);
    bk_tensor *y = step(ctx, graph, user, t, cotangent, seed);
    r.n_out = bk_numel(y);
    r.y = read_all(be, y, &err);
    for (int i = 0; i < n_in; i++) {
        if (t[i]->grad) r.grad[i] = read_all(be, t[i]->grad, &err);
        bk_tensor_destroy(be, t[i]->grad);
        bk_tensor_destroy(be, t[i]);
    }
    bk_ctx_free(ctx);
    return r;
}

void bk_graph_result_free(bk_graph_result *r)
{
    free(r->y);
    for (int i = 0; i < BK_GRADCHECK_MAX; i++) free(r->grad[i]);
    *r = (bk_graph_result){0};
}
