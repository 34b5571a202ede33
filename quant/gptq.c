#include "quant/gptq.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/op.h"
#include "quant/rank.h"

#define FIRST_DAMPING 0.01 /* where none was asked for and some is needed */
#define MOST_DAMPING 1.0

bk_status bk_hessian_create(bk_hessian *h, const bk_backend *be, int64_t n, const char *name, bk_error *err)
{
    *h = (bk_hessian){.be = be, .name = name, .n = n};
    h->place = malloc((size_t)n * sizeof *h->place);
    h->dead_at = calloc((size_t)n, sizeof *h->dead_at);
    if (!h->place || !h->dead_at) return bk_fail(err, BK_ENOMEM, "%s: no memory for a Hessian", name);
    BK_TRY(bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, n}, "hessian", &h->h, err));
    return bk_tensor_create(be, BK_F64, 1, &n, "diagonal", &h->diag, err);
}

void bk_hessian_free(bk_hessian *h)
{
    bk_tensor_destroy(h->be, h->h);
    bk_tensor_destroy(h->be, h->diag);
    bk_tensor_destroy(h->be, h->order);
    free(h->place);
    free(h->dead_at);
    *h = (bk_hessian){0};
}

bk_status bk_hessian_add(bk_ctx *ctx, bk_hessian *h, const bk_tensor *x, double alpha)
{
    int64_t rows = bk_rows(x);
    if (bk_last_dim(x) != h->n)
        return bk_fail(bk_ctx_error(ctx), BK_ESHAPE, "%s: inputs of %lld channels for a Hessian of %lld", h->name, (long long)bk_last_dim(x),
                       (long long)h->n);
    if (!bk_ctx_measuring(ctx)) h->tokens += rows;
    return bk_k_gram(ctx, &(bk_gram_args){.rows = rows, .cols = h->n, .alpha = alpha, .x = x->data, .h = h->h->data});
}

/* --- factoring --- */

/* The diagonal of H, which tells all: one value that is not finite in an input makes its H_jj not finite. */
static bk_status look_at_diagonal(bk_ctx *ctx, bk_hessian *h, double *diag)
{
    bk_error *err = bk_ctx_error(ctx);
    for (int64_t j = 0; j < h->n; j++) {
        BK_TRY(bk_read_f64(h->be, h->h, j * h->n + j, &diag[j], 1, err));
        if (!isfinite(diag[j]))
            return bk_fail(err, BK_ENUMERIC, "%s: channel %lld of the calibration inputs has a NaN, an Inf, or values too large to square",
                           h->name, (long long)j);
    }
    return BK_OK;
}

static void set_dead_aside(bk_hessian *h, double *diag)
{
    for (int64_t j = 0; j < h->n; j++) {
        h->dead_at[j] = diag[j] == 0;
        h->dead += h->dead_at[j];
        if (h->dead_at[j]) diag[j] = 1;
    }
}

static bk_status rank_channels(bk_ctx *ctx, bk_hessian *h, const double *diag)
{
    bk_error *err = bk_ctx_error(ctx);
    int32_t *order = malloc((size_t)h->n * sizeof *order);
    if (!order) return bk_fail(err, BK_ENOMEM, "%s: no memory to order channels", h->name);
    bk_status st = bk_rank_falling(diag, h->n, order, err);
    if (!st) st = bk_tensor_create(h->be, BK_I32, 1, &h->n, "order", &h->order, err);
    if (!st) st = bk_write_i32(h->be, h->order, 0, order, h->n, err);
    for (int64_t i = 0; !st && i < h->n; i++) h->place[order[i]] = (int32_t)i;
    free(order);
    return st;
}

static bk_status prepare(bk_ctx *ctx, bk_hessian *h, bool act_order, double *diag, double *mean)
{
    BK_TRY(look_at_diagonal(ctx, h, diag));
    set_dead_aside(h, diag);
    for (int64_t j = 0; j < h->n; j++) {
        h->place[j] = (int32_t)j;
        *mean += diag[j] / (double)h->n;
    }
    BK_TRY(bk_write_f64(h->be, h->diag, 0, diag, h->n, bk_ctx_error(ctx)));
    return act_order ? rank_channels(ctx, h, diag) : BK_OK;
}

/* One try; *bad is -1 if it went well. */
static bk_status factor(bk_ctx *ctx, bk_hessian *h, double shift, double *bad)
{
    int64_t one = 1;
    bk_step_begin(ctx);
    bk_tensor *first = bk_tensor_new(ctx, BK_F64, 1, &one, "bad pivot");
    BK_TRY(bk_ctx_status(ctx));
    BK_TRY(bk_k_cholesky(ctx, &(bk_cholesky_args){.n = h->n, .shift = shift, .diag = h->diag->data, .order = bk_data(h->order), .h = h->h->data,
                                                  .bad = first->data}));
    return bk_ctx_measuring(ctx) ? BK_OK : bk_read_f64(h->be, first, 0, bad, 1, bk_ctx_error(ctx));
}

static bk_status invert(bk_ctx *ctx, bk_hessian *h)
{
    return bk_k_trtri(ctx, &(bk_trtri_args){.n = h->n, .u = h->h->data});
}

static bk_status factor_with_damping(bk_ctx *ctx, bk_hessian *h, double percdamp, double mean)
{
    double bad = -1;
    bk_ctx_measure(ctx);
    BK_TRY(factor(ctx, h, 0, &bad));
    BK_TRY(invert(ctx, h));
    BK_TRY(bk_ctx_commit(ctx));
    for (h->damping = percdamp;; h->damping = fmin(MOST_DAMPING, h->damping > 0 ? 10 * h->damping : FIRST_DAMPING)) {
        h->tries++;
        BK_TRY(factor(ctx, h, h->damping * mean, &bad));
        if (bad < 0) return invert(ctx, h);
        if (h->damping >= MOST_DAMPING) break;
    }
    h->failed = true;
    return BK_OK;
}

bk_status bk_hessian_factor(bk_ctx *ctx, bk_hessian *h, const bk_gptq_options *opt)
{
    bk_error *err = bk_ctx_error(ctx);
    double mean = 0;
    if (h->tokens < 1) return bk_fail(err, BK_EINVAL, "%s: no calibration inputs were seen; GPTQ would be rounding to nearest", h->name);
    double *diag = malloc((size_t)h->n * sizeof *diag);
    bk_status st = diag ? prepare(ctx, h, opt->act_order, diag, &mean) : bk_fail(err, BK_ENOMEM, "%s: no memory for a diagonal", h->name);
    free(diag);
    h->failed = h->dead == h->n; /* nothing to go by */
    return st || h->failed ? st : factor_with_damping(ctx, h, opt->percdamp, mean);
}

/* --- rounding --- */

typedef struct rounding {
    bk_ctx *ctx;
    const bk_hessian *h;
    const bk_gptq_options *opt;
    const char *name;
    bk_tensor *w;
    const bk_gptq_out *out;
    int64_t rows, group;
    bool refit; /* steps of a group are fitted when it is reached */
} rounding;

static bk_fit_steps_args fit_args(const rounding *g)
{
    return (bk_fit_steps_args){.rows = g->rows, .cols = g->h->n, .group = g->group, .bits = g->opt->bits, .symmetric = g->opt->symmetric,
                               .restricted = g->opt->restricted, .clip = g->opt->mse_clip, .w = g->w->data, .step = g->out->step->data,
                               .zero = bk_data(g->out->zero)};
}

static bk_status fit_steps(const rounding *g)
{
    bk_fit_steps_args a = fit_args(g);
    return bk_k_fit_steps(g->ctx, &a);
}

static bk_status clear_dead(const rounding *g)
{
    for (int64_t j = 0; g->h->dead && g->h->dead < g->h->n && j < g->h->n; j++)
        for (int64_t r = 0; g->h->dead_at[j] && r < g->rows; r++)
            BK_TRY(bk_write_f64(g->h->be, g->w, r * g->h->n + j, &(double){0}, 1, bk_ctx_error(g->ctx)));
    return BK_OK;
}

static bk_status write_groups(const rounding *g)
{
    for (int64_t j = 0; g->out->group_of && j < g->h->n; j++) {
        int32_t at = (int32_t)((g->refit ? g->h->place[j] : j) / g->group);
        BK_TRY(bk_write_i32(g->h->be, g->out->group_of, j, &at, 1, bk_ctx_error(g->ctx)));
    }
    return BK_OK;
}

static bk_status round_columns(const rounding *g, double *loss)
{
    bk_step_begin(g->ctx);
    bk_tensor *of_row = bk_tensor_new(g->ctx, BK_F64, 1, &g->rows, "loss");
    BK_TRY(bk_ctx_status(g->ctx));
    BK_TRY(bk_k_gptq(g->ctx, &(bk_gptq_args){.f = fit_args(g), .refit = g->refit, .order = bk_data(g->h->order),
                                             .u = g->h->failed ? NULL : g->h->h->data, .w = g->w->data, .codes = bk_data(g->out->codes),
                                             .loss = of_row->data}));
    for (int64_t r = 0; !bk_ctx_measuring(g->ctx) && r < g->rows; r++) {
        double l;
        BK_TRY(bk_read_f64(g->h->be, of_row, r, &l, 1, bk_ctx_error(g->ctx)));
        if (!isfinite(l)) return bk_fail(bk_ctx_error(g->ctx), BK_ENUMERIC, "%s: row %lld has weights that are not finite", g->name, (long long)r);
        *loss += l;
    }
    return BK_OK;
}

/* Steps of whole rows are fitted before dead channels become 0, those of groups after it, as published. */
static bk_status run(const rounding *g, double *loss)
{
    bool whole_rows = g->group == g->h->n;
    bk_ctx_measure(g->ctx);
    BK_TRY(fit_steps(g));
    BK_TRY(round_columns(g, loss));
    BK_TRY(bk_ctx_commit(g->ctx));
    if (whole_rows) BK_TRY(fit_steps(g));
    BK_TRY(clear_dead(g));
    if (!whole_rows && !g->refit) BK_TRY(fit_steps(g));
    BK_TRY(write_groups(g));
    return round_columns(g, loss);
}

static bk_status check_shapes(const rounding *g)
{
    bk_error *err = bk_ctx_error(g->ctx);
    const bk_gptq_out *o = g->out;
    char want[80], got[80];
    if (bk_last_dim(g->w) != g->h->n)
        return bk_fail(err, BK_ESHAPE, "%s is %s, its Hessian has %lld channels", g->name, bk_shape_str(g->w, got), (long long)g->h->n);
    if (g->group < 1 || g->h->n % g->group)
        return bk_fail(err, BK_ESHAPE, "%s: group size %lld does not divide its %lld columns", g->name, (long long)g->group, (long long)g->h->n);
    bk_tensor steps;
    bk_tensor_init(&steps, g->h->be->dtype, 2, (int64_t[]){g->rows, g->h->n / g->group}, "steps");
    if (!bk_same_shape(o->step, &steps) || !o->zero != g->opt->symmetric || (o->zero && !bk_same_shape(o->zero, &steps)))
        return bk_fail(err, BK_ESHAPE, "%s: want steps%s of %s, got %s", g->name, g->opt->symmetric ? " alone" : " and zero points",
                       bk_shape_str(&steps, want), bk_shape_str(o->step, got));
    return BK_OK;
}

bk_status bk_gptq(bk_ctx *ctx, const bk_hessian *h, const bk_gptq_options *opt, const char *name, bk_tensor *w, const bk_gptq_out *out,
                  bk_gptq_report *report)
{
    rounding g = {.ctx = ctx, .h = h, .opt = opt, .name = name, .w = w, .out = out, .rows = bk_rows(w), .group = opt->group ? opt->group : h->n};
    g.refit = g.group < h->n && !opt->static_groups;
    *report = (bk_gptq_report){.damping = h->damping, .dead = h->dead, .tries = h->tries, .fell_back = h->failed};
    BK_TRY(check_shapes(&g));
    BK_TRY(run(&g, &report->loss));
    report->done = true;
    return BK_OK;
}
