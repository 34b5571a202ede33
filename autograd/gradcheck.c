#include "autograd/gradcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"

typedef struct checker {
    const bk_backend *be;
    bk_graph graph;
    void *user;
    const bk_gradcheck_input *spec;
    int n_in;
    bk_tensor *in[BK_GRADCHECK_MAX], *grad[BK_GRADCHECK_MAX];
    double *numeric[BK_GRADCHECK_MAX];
    double *cotangent, *result;
    int64_t n_out;
    bk_ctx *ctx;
    bk_error *err;
} checker;

static bk_status make_inputs(checker *c)
{
    for (int i = 0; i < c->n_in; i++) {
        const bk_gradcheck_input *s = &c->spec[i];
        BK_TRY(bk_tensor_create(c->be, s->ids ? BK_I32 : c->be->dtype, s->ndim, s->dim, s->name, &c->in[i], c->err));
        int64_t n = bk_numel(c->in[i]);
        if (s->ids) BK_TRY(bk_write_i32(c->be, c->in[i], 0, s->ids, n, c->err));
        else BK_TRY(bk_write_f64(c->be, c->in[i], 0, s->values, n, c->err));
        if (!s->differentiate) continue;
        BK_TRY(bk_tensor_create(c->be, c->be->dtype, s->ndim, s->dim, s->name, &c->grad[i], c->err));
        if (!(c->numeric[i] = malloc((size_t)n * sizeof(double)))) return bk_fail(c->err, BK_ENOMEM, "gradcheck: no memory");
    }
    return BK_OK;
}

static bk_status build(checker *c, bk_tensor **y)
{
    bk_step_begin(c->ctx);
    *y = c->graph(c->ctx, c->in, c->user);
    BK_TRY(bk_ctx_status(c->ctx));
    return *y ? BK_OK : bk_fail(c->err, BK_EINVAL, "gradcheck: the graph returned nothing");
}

/* Dry run with every gradient wanted, then memory and the random cotangent. */
static bk_status prepare(checker *c, uint64_t seed)
{
    bk_tensor *y;
    bk_ctx_record(c->ctx, true);
    for (int i = 0; i < c->n_in; i++) c->in[i]->requires_grad = c->grad[i] != NULL;
    for (int i = 0; i < c->n_in; i++) c->in[i]->grad = c->grad[i];
    BK_TRY(build(c, &y));
    bk_tensor *dy = bk_real_new(c->ctx, y->ndim, y->dim, "cotangent");
    BK_TRY(bk_ctx_status(c->ctx));
    if (!y->requires_grad) return bk_fail(c->err, BK_EINVAL, "gradcheck: no input reaches the result");
    BK_TRY(bk_backward(c->ctx, y, dy));
    c->n_out = bk_numel(y);
    c->cotangent = malloc((size_t)c->n_out * sizeof(double));
    c->result = malloc((size_t)c->n_out * sizeof(double));
    if (!c->cotangent || !c->result) return bk_fail(c->err, BK_ENOMEM, "gradcheck: no memory");
    for (int64_t i = 0; i < c->n_out; i++) c->cotangent[i] = bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    return bk_ctx_commit(c->ctx);
}

/* sum(y * cotangent) of the frozen graph */
static bk_status value(checker *c, double *out)
{
    bk_tensor *y;
    BK_TRY(build(c, &y));
    BK_TRY(bk_read_f64(c->be, y, 0, c->result, c->n_out, c->err));
    double sum = 0;
    for (int64_t i = 0; i < c->n_out; i++) sum += c->result[i] * c->cotangent[i];
    *out = sum;
    return BK_OK;
}

static bk_status differences(checker *c, double step)
{
    bk_tensor *y;
    bk_ctx_record(c->ctx, false);
    bk_ctx_freeze(c->ctx, BK_FREEZE_RECORD);
    BK_TRY(build(c, &y));
    bk_ctx_freeze(c->ctx, BK_FREEZE_REPLAY);
    for (int i = 0; i < c->n_in; i++) {
        if (!c->grad[i]) continue;
        int64_t n = bk_numel(c->in[i]);
        for (int64_t j = 0; j < n; j++) {
            double x = c->spec[i].values[j], h = step * fmax(fabs(x), 1e-2), up, down;
            BK_TRY(bk_write_f64(c->be, c->in[i], j, &(double){x + h}, 1, c->err));
            BK_TRY(value(c, &up));
            BK_TRY(bk_write_f64(c->be, c->in[i], j, &(double){x - h}, 1, c->err));
            BK_TRY(value(c, &down));
            BK_TRY(bk_write_f64(c->be, c->in[i], j, &x, 1, c->err));
            c->numeric[i][j] = (up - down) / ((x + h) - (x - h));
        }
    }
    bk_ctx_freeze(c->ctx, BK_FREEZE_OFF);
    return BK_OK;
}

static bk_status compare(checker *c, int i, unsigned subset, double tol, bk_gradcheck_report *r)
{
    int64_t n = bk_numel(c->in[i]);
    double largest = 0;
    for (int64_t j = 0; j < n; j++) largest = fmax(largest, fabs(c->numeric[i][j]));
    for (int64_t j = 0; j < n; j++) {
        double a, b = c->numeric[i][j];
        BK_TRY(bk_read_f64(c->be, c->grad[i], j, &a, 1, c->err));
        double scale = fmax(fmax(fabs(a), fabs(b)), fmax(1e-3 * largest, 1e-12));
        double e = fabs(a - b) / scale;
        r->compared++;
        if (!(e <= r->worst)) {
            r->worst = e;
            snprintf(r->where, sizeof r->where, "d%.40s[%lld]: analytic %.9g, numeric %.9g (subset %x)", c->spec[i].name, (long long)j, a, b, subset);
        }
        if (!(e <= tol)) return bk_fail(c->err, BK_ENUMERIC, "gradcheck: %s", r->where);
    }
    return BK_OK;
}

static bk_status check_subset(checker *c, unsigned subset, double tol, bk_gradcheck_report *r)
{
    bk_tensor *y;
    bk_ctx_record(c->ctx, true);
    for (int i = 0; i < c->n_in; i++) {
        bool on = c->grad[i] && (subset >> i & 1);
        c->in[i]->requires_grad = on;
        c->in[i]->grad = on ? c->grad[i] : NULL;
        for (int64_t j = 0; on && j < bk_numel(c->in[i]); j++) BK_TRY(bk_write_f64(c->be, c->grad[i], j, &(double){0}, 1, c->err));
    }
    BK_TRY(build(c, &y));
    bk_tensor *dy = bk_real_new(c->ctx, y->ndim, y->dim, "cotangent");
    BK_TRY(bk_ctx_status(c->ctx));
    BK_TRY(bk_write_f64(c->be, dy, 0, c->cotangent, c->n_out, c->err));
    BK_TRY(bk_backward(c->ctx, y, dy));
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->requires_grad) BK_TRY(compare(c, i, subset, tol, r));
    return BK_OK;
}

static bk_status run(checker *c, uint64_t seed, double step, double tol, bk_gradcheck_report *r)
{
    unsigned all = 0;
    BK_TRY(make_inputs(c));
    for (int i = 0; i < c->n_in; i++) all |= c->grad[i] ? 1u << i : 0;
    if (!all) return bk_fail(c->err, BK_EINVAL, "gradcheck: no input to differentiate");
    BK_TRY(prepare(c, seed));
    BK_TRY(differences(c, step));
    for (unsigned subset = all; subset; subset = (subset - 1) & all) BK_TRY(check_subset(c, subset, tol, r));
    return BK_OK;
}

bk_status bk_gradcheck(const bk_backend *ref_f64, bk_graph graph, void *user, const bk_gradcheck_input *in, int n_in, uint64_t seed, double step,
                       double tol, bk_gradcheck_report *report, bk_error *err)
{
    *report = (bk_gradcheck_report){0};
    if (n_in < 1 || n_in > BK_GRADCHECK_MAX) return bk_fail(err, BK_EINVAL, "gradcheck: %d inputs, at most %d", n_in, BK_GRADCHECK_MAX);
    if (ref_f64->dtype != BK_F64) return bk_fail(err, BK_EINVAL, "gradcheck: backend %s does not compute in f64", ref_f64->name);
    checker c = {.be = ref_f64, .graph = graph, .user = user, .spec = in, .n_in = n_in, .err = err};
    c.ctx = bk_ctx_new(ref_f64, err);
    bk_status st = c.ctx ? run(&c, seed, step, tol, report) : BK_ENOMEM;
    for (int i = 0; i < n_in; i++) {
        bk_tensor_destroy(ref_f64, c.in[i]);
        bk_tensor_destroy(ref_f64, c.grad[i]);
        free(c.numeric[i]);
    }
    free(c.cotangent);
    free(c.result);
    bk_ctx_free(c.ctx);
    return st;
}
