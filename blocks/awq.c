#include "blocks/awq.h"

#include <math.h>
#include <stdlib.h>

#include "blocks/calibration.h"
#include "blocks/channels.h"
#include "blocks/init.h"

#define FLOOR 1e-4

/* In the order in which they are searched. */
static const bk_site_id sites[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};
enum { SITES = sizeof sites / sizeof sites[0] };

void bk_awq_scales(const double *mean, int64_t n, double ratio, float *scale)
{
    double least = INFINITY, most = 0;
    for (int64_t j = 0; j < n; j++) {
        if (!(mean[j] > 0)) continue;
        double s = fmax(pow(mean[j], ratio), FLOOR);
        least = fmin(least, s);
        most = fmax(most, s);
    }
    for (int64_t j = 0; j < n; j++) scale[j] = mean[j] > 0 ? (float)(fmax(pow(mean[j], ratio), FLOOR) / sqrt(most * least)) : 1;
}

typedef struct awq {
    const bk_awq_options *opt;
    bk_calibration *c;
    bk_channels x;
    double *mean[BK_SITE_COUNT]; /* [width]; NULL: not scaled */
    float *scale;                /* [largest width] a candidate */
    float *w;                    /* [largest weight] */
    double error[BK_SITE_COUNT][BK_AWQ_RATIOS];
    bk_tensor *number;           /* f64 result of a kernel */
    bk_fitted *out;
    bk_error *err;
} awq;

/* --- one candidate --- */

static bool searched(const awq *a, bk_linear_id id, bk_site_id site)
{
    return bk_linear_input(id) == site && !(a->c->b->skip_weights >> id & 1);
}

/* The weight of the block becomes W s, and its quantizer gets the values of that. */
static bk_status scale_weight(awq *a, bk_linear_id id)
{
    bk_block *b = a->c->b;
    bk_qinst *q = &b->wq[id];
    int64_t n = bk_numel(b->w[id]), cols = b->w[id]->dim[1];
    for (int64_t row = 0; row < n; row += cols)
        for (int64_t j = 0; j < cols; j++) a->w[row + j] = a->c->weights.w[id][row + j] * a->scale[j];
    BK_TRY(bk_write(b->be, b->w[id], 0, a->w, n, a->err));
    BK_TRY(bk_block_init_weight(a->c->ctx, b, id, a->err));
    return q->q->begin ? q->q->begin(a->c->ctx, q->state.bytes, b->w[id]) : BK_OK;
}

static bk_status unscale_weight(awq *a, bk_linear_id id)
{
    bk_block *b = a->c->b;
    int64_t n = bk_numel(b->w[id]), cols = b->w[id]->dim[1];
    BK_TRY(bk_read(b->be, b->w[id], 0, a->w, n, a->err));
    for (int64_t row = 0; row < n; row += cols)
        for (int64_t j = 0; j < cols; j++) a->w[row + j] /= a->scale[j];
    return bk_write(b->be, b->w[id], 0, a->w, n, a->err);
}

/* Weights of the linears that read a site become Q(W s) / s. */
static bk_status set_candidate(awq *a, bk_site_id site, int k)
{
    bk_block *b = a->c->b;
    bool dry = bk_ctx_measuring(a->c->ctx);
    bk_awq_scales(a->mean[site], bk_site_width(&b->cfg, site), (double)k / BK_AWQ_RATIOS, a->scale);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        if (!searched(a, id, site)) continue;
        if (!dry) BK_TRY(scale_weight(a, id));
        b->wq[id].on = true;
    }
    BK_TRY(bk_block_harden(a->c->ctx, b));
    for (bk_linear_id id = 0; !dry && id < BK_W_COUNT; id++)
        if (searched(a, id, site)) BK_TRY(unscale_weight(a, id));
    return BK_OK;
}

static bk_status restore(awq *a, bk_site_id site)
{
    bk_block *b = a->c->b;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++)
        if (searched(a, id, site)) BK_TRY(bk_write(b->be, b->w[id], 0, a->c->weights.w[id], bk_numel(b->w[id]), a->err));
    return BK_OK;
}

static bk_status add_error(awq *a, const bk_tensor *y, const bk_tensor *want, double *sum)
{
    bk_ctx *ctx = a->c->ctx;
    double error = 0;
    bool dry = bk_ctx_measuring(ctx);
    BK_TRY(bk_ctx_status(ctx));
    if (!dry) BK_TRY(bk_write_f64(a->c->b->be, a->number, 0, &error, 1, a->err));
    BK_TRY(bk_k_sqerr(ctx, &(bk_sqerr_args){.rows = bk_rows(y), .cols = bk_last_dim(y), .group = bk_last_dim(y), .a = y->data, .b = want->data,
                                            .err = a->number->data}));
    if (!dry) BK_TRY(bk_read_f64(a->c->b->be, a->number, 0, &error, 1, a->err));
    *sum += error;
    return BK_OK;
}

/* --- all of a block --- */

static bk_status search_site(awq *a, bk_site_id site, const bk_block_values *v)
{
    bk_ctx *ctx = a->c->ctx;
    for (int k = 0; k < BK_AWQ_RATIOS; k++) {
        size_t mark = bk_step_mark(ctx);
        BK_TRY(set_candidate(a, site, k));
        BK_TRY(add_error(a, bk_block_resume(ctx, a->c->b, v, site), v->y, &a->error[site][k]));
        bk_step_release(ctx, mark);
    }
    return bk_ctx_measuring(ctx) ? BK_OK : restore(a, site);
}

static bk_status search_batch(void *user, bk_ctx *ctx, const bk_batch *batch)
{
    awq *a = user;
    bk_block_values v;
    bk_block_forward_values(ctx, a->c->b, batch->x, &v);
    BK_TRY(bk_ctx_status(ctx));
    for (int i = 0; i < SITES; i++)
        if (a->mean[sites[i]]) BK_TRY(search_site(a, sites[i], &v));
    if (bk_ctx_measuring(ctx)) return BK_OK;
    BK_TRY(bk_read(a->c->b->be, v.y, 0, batch->host, bk_numel(v.y), a->err));
    return bk_stream_write(a->c->h, batch->first, batch->n, batch->host, a->err);
}

/* An error that is NaN never wins over plain rounding (ratio 0). */
static int best_of(const double error[BK_AWQ_RATIOS])
{
    int best = 0;
    for (int k = 1; k < BK_AWQ_RATIOS; k++)
        if (error[k] < error[best]) best = k;
    return best;
}

static void take_means(awq *a)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!a->mean[i]) continue;
        for (int64_t j = 0; j < bk_site_width(&a->c->b->cfg, i); j++) a->mean[i][j] = a->x.sum[i][j] / (double)a->x.tokens[i];
        for (int k = 0; k < BK_AWQ_RATIOS; k++) a->error[i][k] = 0;
    }
}

static bk_status fit_block(void *user, bk_calibration *c, int64_t layer, bk_error *err)
{
    awq *a = user;
    int64_t batch = bk_pass_batch(bk_stream_samples(c->h), bk_stream_tokens(c->h));
    c->b->skip_weights = a->opt->skip_weights ? a->opt->skip_weights[layer] : 0;
    bk_channels_clear(&a->x);
    BK_TRY(bk_calibration_pass(c, bk_channels_tap, &a->x, false, err));
    take_means(a);
    bk_ctx_measure(c->ctx);
    BK_TRY(bk_for_batches(c->ctx, c->h, batch, search_batch, a, err));
    BK_TRY(bk_ctx_commit(c->ctx));
    BK_TRY(bk_for_batches(c->ctx, c->h, batch, search_batch, a, err));
    for (int i = 0; i < SITES; i++) {
        bk_site_id site = sites[i];
        if (!a->mean[site]) continue;
        int best = best_of(a->error[site]);
        bk_awq_scales(a->mean[site], bk_site_width(&c->b->cfg, site), (double)best / BK_AWQ_RATIOS, bk_scale_at(a->out, site, layer));
        if (a->opt->found) a->opt->found(a->opt->user, layer, site, a->error[site], best);
    }
    return BK_OK;
}

/* --- all of a model --- */

static bk_status allocate(awq *a)
{
    const bk_config *cfg = &a->c->b->cfg;
    int64_t widest = 0, largest = 0, one = 1;
    unsigned wanted = 0;
    for (int i = 0; i < SITES; i++) {
        bk_site_id site = sites[i];
        int64_t width = bk_site_width(cfg, site);
        if (site == BK_SITE_O_IN && cfg->kv_heads != cfg->heads) continue; /* a value channel is read by several channels of o */
        BK_TRY(bk_scale_add(a->out, site, a->err));
        if (!(a->mean[site] = malloc((size_t)width * sizeof(double)))) return bk_fail(a->err, BK_ENOMEM, "no memory for the means of channels");
        wanted |= 1u << site;
        widest = width > widest ? width : widest;
    }
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) largest = bk_numel(a->c->b->w[id]) > largest ? bk_numel(a->c->b->w[id]) : largest;
    a->scale = malloc((size_t)widest * sizeof *a->scale);
    a->w = malloc((size_t)largest * sizeof *a->w);
    if (!a->scale || !a->w) return bk_fail(a->err, BK_ENOMEM, "no memory for a scaled weight");
    BK_TRY(bk_tensor_create(a->c->b->be, BK_F64, 1, &one, "error", &a->number, a->err));
    return bk_channels_create(&a->x, cfg, wanted, a->err);
}

bk_status bk_awq_fit(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, const bk_awq_options *opt,
                     const bk_prefix *prefix, const bk_watch *watch, bk_fitted *out, bk_error *err)
{
    bk_calibration c;
    awq a = {.opt = opt, .c = &c, .out = out, .err = err};
    bk_block_quant quant = {.weight = opt->weight, .activation.bits = 16, .key.bits = 16, .value.bits = 16};
    if (opt->weight.bits >= 16) return bk_fail(err, BK_EINVAL, "AWQ looks for scales of quantized weights, and these have %d bits", opt->weight.bits);
    BK_TRY(bk_channels_check_source(src, err));
    BK_TRY(bk_fitted_fits(out, bk_source_config(src), err));
    bk_status st = bk_calibration_open(&c, be, src, ids, samples, tokens, prefix, &quant, err);
    if (!st) st = allocate(&a);
    if (!st) st = bk_calibration_run(&c, fit_block, &a, watch, err);
    for (int i = 0; i < SITES; i++) free(a.mean[sites[i]]);
    free(a.scale);
    free(a.w);
    bk_tensor_destroy(be, a.number);
    bk_channels_free(&a.x);
    bk_calibration_close(&c);
    return st;
}
