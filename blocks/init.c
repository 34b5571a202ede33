#include "blocks/init.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "quant/search.h"

#define EMA_KEEP 0.99f

/* Ranges at one site. */
typedef struct range {
    int64_t n, group;      /* values in lo and hi, channels per value; 0: not measured */
    bk_tensor *lo, *hi;    /* [n] */
    float *average;        /* [n] moving average of max |x| (ema) */
} range;

typedef struct initializer {
    bk_ctx *ctx;
    bk_block *b;
    const bk_stream *x;
    const bk_init_options *opt;
    bk_error *err;
    int64_t batch;
    range range[BK_SITE_COUNT];
    bool first;                      /* nothing measured yet */
    bk_tensor *gram[BK_SITE_COUNT];  /* X^T X of a linear's inputs, [width, width] */
    bk_grid grid[BK_SITE_COUNT];     /* units 0: not searched */
    bk_tensor *numbers;              /* f64 results of kernels */
    float *factor;                   /* host room for ranges and factors */
} initializer;

static bool site_active(const bk_block *b, int site)
{
    return b->site[site].q && !(b->skip_sites >> site & 1);
}

static bool to_init(const initializer *in, int w)
{
    return !in->opt->keep_weights && bk_weight_active(in->b, w);
}

static int64_t units(const bk_qinst *q)
{
    return q->q->units(q->state.bytes);
}

/* --- ranges and Gram matrices --- */

static bk_status average_range(initializer *in, range *r)
{
    float *lo = in->factor, *hi = in->factor + r->n; /* room for both: see `allocate` */
    BK_TRY(bk_read(in->b->be, r->lo, 0, lo, r->n, in->err));
    BK_TRY(bk_read(in->b->be, r->hi, 0, hi, r->n, in->err));
    for (int64_t i = 0; i < r->n; i++) {
        float m = fmaxf(fabsf(lo[i]), fabsf(hi[i]));
        r->average[i] = in->first ? m : EMA_KEEP * r->average[i] + (1 - EMA_KEEP) * m;
    }
    return BK_OK;
}

static void measure_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    initializer *in = user;
    range *r = &in->range[site];
    int64_t rows = bk_rows(x), cols = bk_last_dim(x);
    if (in->gram[site] && bk_k_gemm(ctx, &(bk_gemm_args){.m = cols, .n = cols, .k = rows, .ta = 1, .a = x->data, .lda = cols, .b = x->data,
                                                         .ldb = cols, .c = in->gram[site]->data, .ldc = cols, .beta = 1}))
        return;
    if (!r->n) return;
    if (bk_k_minmax(ctx, &(bk_minmax_args){.rows = rows, .cols = cols, .group = r->group, .accumulate = !in->first && !in->opt->ema,
                                           .x = x->data, .lo = r->lo->data, .hi = r->hi->data}))
        return;
    if (in->opt->ema && !bk_ctx_measuring(ctx) && average_range(in, r)) return; /* the error is in the context */
}

/* Ranges pass over NaN: the block's output tells. */
static bk_status check_finite(initializer *in, const bk_tensor *y)
{
    double first = -1;
    BK_TRY(bk_k_finite(in->ctx, &(bk_finite_args){.n = bk_numel(y), .x = y->data, .first = in->numbers->data}));
    if (!bk_ctx_measuring(in->ctx)) BK_TRY(bk_read_f64(in->b->be, in->numbers, 0, &first, 1, in->err));
    if (first < 0) return BK_OK;
    int64_t at = (int64_t)first, width = bk_last_dim(y);
    return bk_fail(in->err, BK_ENUMERIC, "on the calibration samples the full-precision block gives NaN or Inf at token %lld of a batch, "
                   "channel %lld", (long long)(at / width), (long long)(at % width));
}

static bk_status measure_batch(void *user, bk_ctx *ctx, const bk_batch *batch)
{
    initializer *in = user;
    in->b->tap = measure_tap;
    in->b->tap_user = in;
    bk_tensor *y = bk_block_forward(ctx, in->b, batch->x);
    in->b->tap = NULL;
    in->first = false;
    BK_TRY(bk_ctx_status(in->ctx));
    return check_finite(in, y);
}

/* Turns what was measured at a site into lo, hi per unit of its quantizer. */
static bk_status init_site(initializer *in, int site)
{
    bk_qinst *q = &in->b->site[site];
    range *r = &in->range[site];
    int64_t n = units(q), per = n ? r->n / n : 0;
    if (!r->n) return q->q->init(in->ctx, q->state.bytes, NULL, NULL);
    float *lo = in->factor, *hi = in->factor + r->n;
    if (in->opt->ema)
        for (int64_t i = 0; i < r->n; i++) {
            lo[i] = -r->average[i];
            hi[i] = r->average[i];
        }
    else {
        BK_TRY(bk_read(in->b->be, r->lo, 0, lo, r->n, in->err));
        BK_TRY(bk_read(in->b->be, r->hi, 0, hi, r->n, in->err));
    }
    for (int64_t u = 0; u < n; u++) {
        float l = lo[u * per], h = hi[u * per];
        for (int64_t i = 1; i < per; i++) {
            l = fminf(l, lo[u * per + i]);
            h = fmaxf(h, hi[u * per + i]);
        }
        lo[u] = l;
        hi[u] = h;
        in->b->silent[site] += l == 0 && h == 0;
    }
    return q->q->init(in->ctx, q->state.bytes, lo, hi);
}

bk_status bk_block_init_weight(bk_ctx *ctx, bk_block *b, bk_linear_id w, bk_error *err)
{
    bk_qinst *q = &b->wq[w];
    int64_t n = units(q), rows = b->w[w]->dim[0], cols = b->w[w]->dim[1];
    bk_tensor *lo = NULL, *hi = NULL;
    float *host = malloc((size_t)n * 2 * sizeof *host);
    bk_status st = host ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the ranges of %s", bk_linear_name[w]);
    if (!st) st = bk_tensor_create(b->be, b->be->dtype, 1, &n, "lo", &lo, err);
    if (!st) st = bk_tensor_create(b->be, b->be->dtype, 1, &n, "hi", &hi, err);
    if (!st) st = bk_k_minmax(ctx, &(bk_minmax_args){.rows = rows, .cols = cols, .group = rows * cols / n, .per_row = 1, .x = b->w[w]->data,
                                                     .lo = lo->data, .hi = hi->data});
    if (!st) st = bk_read(b->be, lo, 0, host, n, err);
    if (!st) st = bk_read(b->be, hi, 0, host + n, n, err);
    if (!st) st = q->q->init(ctx, q->state.bytes, host, host + n);
    bk_tensor_destroy(b->be, lo);
    bk_tensor_destroy(b->be, hi);
    free(host);
    return st;
}

bk_status bk_block_init_weights(bk_ctx *ctx, bk_block *b, bk_error *err)
{
    for (int w = 0; w < BK_W_COUNT; w++)
        if (bk_weight_active(b, w)) BK_TRY(bk_block_init_weight(ctx, b, w, err));
    return BK_OK;
}

/* --- search of weights: e^T G e per row and group, e = Q(w) - w --- */

static bk_status weight_error(initializer *in, int w, double *error)
{
    bk_block *b = in->b;
    const bk_tensor *gram = in->gram[bk_linear_input(w)];
    int64_t n = units(&b->wq[w]), rows = b->w[w]->dim[0], cols = b->w[w]->dim[1], group = rows * cols / n;
    bk_step_begin(in->ctx);
    bk_tensor *e = bk_qinst_apply(in->ctx, &b->wq[w], b->w[w]), *eg = e ? bk_real_new(in->ctx, 2, e->dim, "error") : NULL;
    BK_TRY(bk_ctx_status(in->ctx));
    BK_TRY(bk_k_axpy(in->ctx, &(bk_axpy_args){.n = rows * cols, .alpha = -1, .x = b->w[w]->data, .y = e->data}));
    for (int64_t g = 0; g < cols; g += group) {
        size_t size = bk_dtype_size(b->be->dtype);
        bk_gemm_args a = {.m = rows, .n = group, .k = group, .lda = cols, .ldb = cols, .ldc = cols};
        if (!bk_ctx_measuring(in->ctx)) {
            a.a = (char *)e->data + (size_t)g * size;
            a.b = (char *)gram->data + (size_t)(g * cols + g) * size;
            a.c = (char *)eg->data + (size_t)g * size;
        }
        BK_TRY(bk_k_gemm(in->ctx, &a));
    }
    BK_TRY(bk_k_rowdot(in->ctx, &(bk_rowdot_args){.rows = n, .cols = group, .a = e->data, .b = eg->data, .out = in->numbers->data}));
    return bk_ctx_measuring(in->ctx) ? BK_OK : bk_read_f64(b->be, in->numbers, 0, error, n, in->err);
}

static bk_status search_weight(initializer *in, int w)
{
    bk_qinst *q = &in->b->wq[w];
    bk_grid g;
    BK_TRY(bk_grid_create(&g, units(q), in->err));
    bk_status st = BK_OK;
    q->on = true;
    for (int n; !st && (n = bk_grid_candidates(&g)) > 0; bk_grid_next_round(&g))
        for (int c = 0; !st && c < n; c++) {
            bk_grid_factors(&g, c, in->factor);
            st = q->q->factors(in->ctx, q->state.bytes, in->factor);
            if (!st) st = weight_error(in, w, bk_grid_error(&g, c));
        }
    q->on = false;
    if (!st) st = q->q->factors(in->ctx, q->state.bytes, g.best);
    bk_grid_free(&g);
    return st;
}

/* --- search of sites --- */

/* Adds kernel results, one for each unit of the grid; several results for one unit add up. */
static bk_status add_numbers(initializer *in, int64_t n, bk_grid *g, int candidate)
{
    double *error = bk_grid_error(g, candidate);
    for (int64_t i = 0; !bk_ctx_measuring(in->ctx) && i < n; i++) {
        double v;
        BK_TRY(bk_read_f64(in->b->be, in->numbers, i, &v, 1, in->err));
        error[g->units == n ? i : 0] += v;
    }
    return BK_OK;
}

static bk_status clear_numbers(initializer *in, int64_t n)
{
    for (int64_t i = 0; !bk_ctx_measuring(in->ctx) && i < n; i++)
        BK_TRY(bk_write_f64(in->b->be, in->numbers, i, &(double){0}, 1, in->err));
    return BK_OK;
}

static bk_status squared_error(initializer *in, const bk_tensor *a, const bk_tensor *b, int64_t n, bk_grid *g, int candidate)
{
    BK_TRY(bk_ctx_status(in->ctx));
    BK_TRY(clear_numbers(in, n));
    BK_TRY(bk_k_sqerr(in->ctx, &(bk_sqerr_args){.rows = bk_rows(a), .cols = bk_last_dim(a), .group = bk_last_dim(a) / n, .a = a->data,
                                                .b = b->data, .err = in->numbers->data}));
    return add_numbers(in, n, g, candidate);
}

static bk_status score_error(initializer *in, const bk_block_values *v, const bk_tensor *k2, bk_grid *g, int candidate)
{
    const bk_config *c = &in->b->cfg;
    BK_TRY(bk_ctx_status(in->ctx));
    BK_TRY(clear_numbers(in, c->kv_heads));
    bk_attention_fwd_args f = {.batch = v->q->dim[0], .tokens = v->q->dim[1], .heads = c->heads, .kv_heads = c->kv_heads, .dim = c->head_dim,
                               .prefix = in->b->prefix_len, .window = c->sliding_window, .scale = 1 / sqrt((double)c->head_dim),
                               .q = v->q->data, .k = v->k->data, .prefix_k = bk_data(in->b->prefix_k)};
    BK_TRY(bk_k_score_err(in->ctx, &(bk_score_err_args){.f = f, .k2 = k2->data, .err = in->numbers->data}));
    return add_numbers(in, c->kv_heads, g, candidate);
}

/* Static caches have objectives of their own; everything else is judged by the block's output. */
static bool is_static(const bk_qinst *q)
{
    return q->q->needs_range(q->state.bytes);
}

static bk_status try_candidate(initializer *in, int site, const bk_block_values *v, bk_grid *g, int candidate)
{
    bk_qinst *q = &in->b->site[site];
    if (site == BK_SITE_VALUE && is_static(q)) return squared_error(in, bk_qinst_apply(in->ctx, q, v->v), v->v, g->units, g, candidate);
    if (site == BK_SITE_KEY && is_static(q)) return score_error(in, v, bk_qinst_apply(in->ctx, q, v->k), g, candidate);
    return squared_error(in, bk_block_resume(in->ctx, in->b, v, site), v->y, 1, g, candidate);
}

/* A grid has one unit per unit of the quantizer where the objective tells them apart, else one for all. */
static int64_t grid_units(const bk_block *b, int site)
{
    const bk_qinst *q = &b->site[site];
    int64_t n = units(q);
    if (n < 2) return n;
    if (site == BK_SITE_VALUE && is_static(q)) return n;
    return site == BK_SITE_KEY && is_static(q) && n == b->cfg.kv_heads ? n : 1;
}

static bk_status set_factors(initializer *in, int site, const float *of_grid, int64_t grid_n)
{
    bk_qinst *q = &in->b->site[site];
    int64_t n = units(q);
    float f = of_grid[0];
    if (grid_n == n) return q->q->factors(in->ctx, q->state.bytes, of_grid);
    for (int64_t i = 0; i < n; i++) in->factor[i] = f;
    return q->q->factors(in->ctx, q->state.bytes, in->factor);
}

static bk_status search_site(initializer *in, int site, const bk_block_values *v, bk_grid *g)
{
    bk_qinst *q = &in->b->site[site];
    q->on = true;
    for (int c = 0; c < bk_grid_candidates(g); c++) {
        size_t mark = bk_step_mark(in->ctx);
        bk_grid_factors(g, c, in->factor);
        if (!bk_ctx_measuring(in->ctx)) BK_TRY(set_factors(in, site, in->factor, g->units));
        BK_TRY(try_candidate(in, site, v, g, c));
        bk_step_release(in->ctx, mark);
    }
    q->on = false;
    return BK_OK;
}

static bk_status search_batch(void *user, bk_ctx *ctx, const bk_batch *batch)
{
    initializer *in = user;
    bk_block_values v;
    bk_block_forward_values(ctx, in->b, batch->x, &v);
    BK_TRY(bk_ctx_status(in->ctx));
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (in->grid[i].units) BK_TRY(search_site(in, i, &v, &in->grid[i]));
    return BK_OK;
}

static bk_status search_sites(initializer *in)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        /* A dynamic key has no factor by default, and a quantizer without units has nothing to search. */
        int64_t n = site_active(in->b, i) ? grid_units(in->b, i) : 0;
        if (n) BK_TRY(bk_grid_create(&in->grid[i], n, in->err));
    }
    bk_ctx_measure(in->ctx);
    BK_TRY(bk_for_batches(in->ctx, in->x, in->batch, search_batch, in, in->err));
    BK_TRY(bk_ctx_commit(in->ctx));
    for (int round = 0; round < BK_GRID_ROUNDS; round++) {
        BK_TRY(bk_for_batches(in->ctx, in->x, in->batch, search_batch, in, in->err));
        for (int i = 0; i < BK_SITE_COUNT; i++)
            if (in->grid[i].units) bk_grid_next_round(&in->grid[i]);
    }
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (in->grid[i].units) BK_TRY(set_factors(in, i, in->grid[i].best, in->grid[i].units));
    return BK_OK;
}

static bk_status search_weights(initializer *in)
{
    bk_ctx_measure(in->ctx);
    for (int w = 0; w < BK_W_COUNT; w++)
        if (to_init(in, w)) {
            in->b->wq[w].on = true;
            BK_TRY(weight_error(in, w, NULL));
            in->b->wq[w].on = false;
        }
    BK_TRY(bk_ctx_commit(in->ctx));
    for (int w = 0; w < BK_W_COUNT; w++)
        if (to_init(in, w) && search_weight(in, w)) return bk_error_prefix(in->err, "search of %s", bk_linear_name[w]);
    return BK_OK;
}

/* Values that a weight decides, now that its step is known. */
static bk_status begin_weights(initializer *in)
{
    for (int w = 0; w < BK_W_COUNT; w++) {
        bk_qinst *q = &in->b->wq[w];
        if (to_init(in, w) && q->q->begin) BK_TRY(q->q->begin(in->ctx, q->state.bytes, in->b->w[w]));
    }
    return BK_OK;
}

/* --- all of it --- */

static bk_status allocate_site(initializer *in, int site, int64_t *room)
{
    bk_block *b = in->b;
    int64_t width = bk_site_width(&b->cfg, site);
    if (!site_active(b, site)) return BK_OK;
    range *r = &in->range[site];
    if (is_static(&b->site[site])) {
        r->n = in->opt->ema ? width : units(&b->site[site]);
        r->group = width / r->n;
        BK_TRY(bk_tensor_create(b->be, b->be->dtype, 1, &r->n, "lo", &r->lo, in->err));
        BK_TRY(bk_tensor_create(b->be, b->be->dtype, 1, &r->n, "hi", &r->hi, in->err));
        if (in->opt->ema && !(r->average = calloc((size_t)r->n, sizeof *r->average))) return bk_fail(in->err, BK_ENOMEM, "no memory for ranges");
    }
    int64_t need = 2 * r->n > units(&b->site[site]) ? 2 * r->n : units(&b->site[site]);
    *room = need > *room ? need : *room;
    return BK_OK;
}

static bk_status allocate(initializer *in)
{
    bk_block *b = in->b;
    int64_t room = 2 * b->cfg.kv_heads;
    for (int i = 0; i < BK_SITE_COUNT; i++) BK_TRY(allocate_site(in, i, &room));
    for (int w = 0; w < BK_W_COUNT; w++) {
        if (!to_init(in, w)) continue;
        int site = bk_linear_input(w);
        int64_t width = bk_site_width(&b->cfg, site), n = units(&b->wq[w]);
        room = n > room ? n : room;
        if (!in->opt->search || in->gram[site]) continue;
        BK_TRY(bk_tensor_create(b->be, b->be->dtype, 2, (int64_t[]){width, width}, "gram", &in->gram[site], in->err));
    }
    BK_TRY(bk_tensor_create(b->be, BK_F64, 1, &room, "numbers", &in->numbers, in->err));
    in->factor = malloc((size_t)room * sizeof *in->factor);
    return in->factor ? BK_OK : bk_fail(in->err, BK_ENOMEM, "no memory to initialise a block");
}

static bk_status run(initializer *in)
{
    bk_block *b = in->b;
    BK_TRY(allocate(in));
    memset(b->silent, 0, sizeof b->silent);
    bk_ctx_record(in->ctx, false);
    bk_block_quantize(b, false, false);
    /* The published average takes one sequence at a time. */
    int64_t batch = in->opt->ema ? 1 : in->batch;
    bk_ctx_measure(in->ctx);
    BK_TRY(bk_for_batches(in->ctx, in->x, batch, measure_batch, in, in->err));
    BK_TRY(bk_ctx_commit(in->ctx));
    in->first = true;
    BK_TRY(bk_for_batches(in->ctx, in->x, batch, measure_batch, in, in->err));
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (site_active(b, i)) BK_TRY(init_site(in, i));
    if (!in->opt->keep_weights) BK_TRY(bk_block_init_weights(in->ctx, b, in->err));
    if (in->opt->search) BK_TRY(search_weights(in));
    if (in->opt->search) BK_TRY(search_sites(in));
    BK_TRY(begin_weights(in));
    bk_block_quantize(b, true, true);
    return BK_OK;
}

bk_status bk_block_init(bk_ctx *ctx, bk_block *b, const bk_stream *x, const bk_init_options *opt, bk_error *err)
{
    initializer in = {.ctx = ctx, .b = b, .x = x, .opt = opt, .err = err, .first = true};
    in.batch = bk_pass_batch(bk_stream_samples(x), bk_stream_tokens(x));
    bk_status st = run(&in);
    b->tap = NULL;
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        bk_tensor_destroy(b->be, in.range[i].lo);
        bk_tensor_destroy(b->be, in.range[i].hi);
        bk_tensor_destroy(b->be, in.gram[i]);
        free(in.range[i].average);
        if (in.grid[i].units) bk_grid_free(&in.grid[i]);
    }
    bk_tensor_destroy(b->be, in.numbers);
    free(in.factor);
    return st;
}
