#include "experiments/bench_gptq.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/op.h"
#include "autograd/rng.h"
#include "experiments/log.h"
#include "experiments/progress.h"
#include "experiments/verbs.h"
#include "quant/gptq.h"

#define TOKENS 512

/* The defaults of a config. */
static const bk_gptq_options options = {.bits = 4, .symmetric = true, .restricted = true, .mse_clip = true, .percdamp = 0.01};

typedef struct rig {
    bk_ctx *ctx;
    bk_hessian h;
    bk_tensor *x, *w, *wide, *out, *step, *bad; /* wide: w in f64 */
} rig;

static bk_status fill_random(const bk_backend *be, bk_tensor *t, uint64_t seed, bk_error *err)
{
    int64_t n = bk_last_dim(t);
    double *row = malloc((size_t)n * sizeof *row);
    bk_status st = row ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a row");
    for (int64_t r = 0; !st && r < bk_rows(t); r++) {
        for (int64_t i = 0; i < n; i++) row[i] = sqrt(12) * (bk_rng_uniform(seed, BK_RNG_TEST, (uint64_t)(r * n + i)) - 0.5);
        st = bk_write_f64(be, t, r * n, row, n, err);
    }
    free(row);
    return st;
}

static bk_status prepare(const bk_backend *be, const bk_gptq_bench *b, rig *r, bk_error *err)
{
    int64_t x[2] = {TOKENS, b->cols}, w[2] = {b->rows, b->cols}, step[2] = {b->rows, 1}, one = 1;
    if (!(r->ctx = bk_ctx_new(be, err))) return BK_ENOMEM;
    BK_TRY(bk_hessian_create(&r->h, be, b->cols, "the bench", err));
    BK_TRY(bk_tensor_create(be, be->dtype, 2, x, "x", &r->x, err));
    BK_TRY(bk_tensor_create(be, be->dtype, 2, w, "w", &r->w, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 2, w, "w in f64", &r->wide, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 2, w, "product", &r->out, err));
    BK_TRY(bk_tensor_create(be, be->dtype, 2, step, "step", &r->step, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 1, &one, "bad pivot", &r->bad, err));
    BK_TRY(fill_random(be, r->x, 1, err));
    BK_TRY(fill_random(be, r->w, 2, err));
    BK_TRY(fill_random(be, r->wide, 2, err));
    BK_TRY(bk_hessian_add(r->ctx, &r->h, r->x, 1.0 / TOKENS));
    BK_TRY(bk_ctx_commit(r->ctx));
    return bk_hessian_add(r->ctx, &r->h, r->x, 1.0 / TOKENS);
}

static bk_status time_product(const bk_gptq_bench *b, rig *r, double *seconds)
{
    bk_gemm_f64_args a = {.m = b->rows, .n = b->cols, .k = b->cols, .a = r->wide->data, .b = r->h.h->data, .c = r->out->data,
                          .lda = b->cols, .ldb = b->cols, .ldc = b->cols};
    double start = bk_seconds();
    BK_TRY(bk_k_gemm_f64(r->ctx, &a));
    *seconds = bk_seconds() - start;
    return BK_OK;
}

static bk_status time_gptq(rig *r, double *seconds)
{
    bk_gptq_out out = {.step = r->step};
    bk_gptq_report report;
    double start = bk_seconds();
    BK_TRY(bk_hessian_factor(r->ctx, &r->h, &options));
    BK_TRY(bk_gptq(r->ctx, &r->h, &options, "the bench", r->w, &out, &report));
    *seconds = bk_seconds() - start;
    return BK_OK;
}

/* Below the diagonal H is still there, and its diagonal is near 1. */
static bk_status time_cholesky(const bk_gptq_bench *b, rig *r, double *seconds)
{
    bk_cholesky_args a = {.n = b->cols, .shift = r->h.damping, .diag = r->h.diag->data, .h = r->h.h->data, .bad = r->bad->data};
    double start = bk_seconds();
    BK_TRY(bk_k_cholesky(r->ctx, &a));
    *seconds = bk_seconds() - start;
    return BK_OK;
}

bk_status bk_bench_gptq(const bk_backend *be, bk_gptq_bench *b, bk_error *err)
{
    rig r = {.h = {.be = be}};
    bk_log(BK_LOG_INFO, "GPTQ of a linear of %lld x %lld", (long long)b->rows, (long long)b->cols);
    bk_status st = prepare(be, b, &r, err);
    if (!st) st = time_product(b, &r, &b->product);
    if (!st) st = bk_check_cancelled(err);
    if (!st) st = time_gptq(&r, &b->gptq);
    if (!st) st = bk_check_cancelled(err);
    if (!st) st = time_cholesky(b, &r, &b->cholesky);
    bk_tensor *all[] = {r.x, r.w, r.wide, r.out, r.step, r.bad};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bk_tensor_destroy(be, all[i]);
    bk_hessian_free(&r.h);
    bk_ctx_free(r.ctx);
    return st;
}
