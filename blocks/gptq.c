#include "blocks/gptq.h"

#include <stdio.h>
#include <string.h>

#include "blocks/pass.h"

/* The inputs of some linears in the making */
typedef struct collector {
    bk_block *b;
    bk_site_id site;
    int64_t tokens; /* of a sequence */
    double alpha, first_weight;
    bk_hessian h;
} collector;

/* The first token of every sequence once more, so that it counts first_weight times */
static bk_status add_first(bk_ctx *ctx, const collector *c, const bk_tensor *x)
{
    int64_t stride = c->tokens * c->h.n * (int64_t)bk_dtype_size(x->dtype);
    for (int64_t s = 0; s < bk_numel(x) / (c->tokens * c->h.n); s++) {
        const void *first = bk_ctx_measuring(ctx) ? NULL : (const char *)x->data + s * stride;
        BK_TRY(bk_k_gram(ctx, &(bk_gram_args){.rows = 1, .cols = c->h.n, .alpha = c->alpha * (c->first_weight - 1), .x = first, .h = c->h.h->data}));
    }
    return BK_OK;
}

/* A tap sees values before their quantizer, linears behind it. */
static void collect(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    collector *c = user;
    if (site != c->site) return;
    x = bk_qinst_apply(ctx, &c->b->site[site], (bk_tensor *)x);
    if (!x || bk_hessian_add(ctx, &c->h, x, c->alpha)) return; /* the error is in the context */
    if (c->first_weight > 1 && add_first(ctx, c, x)) return;
}

/* H = 2/N sum x x^T over N sequences, as published: the scale of the loss */
static bk_status collect_inputs(bk_ctx *ctx, collector *c, const bk_stream *x, bk_error *err)
{
    bk_block *b = c->b;
    c->alpha = 2 / (double)bk_stream_samples(x);
    c->tokens = bk_stream_tokens(x);
    b->tap = collect;
    b->tap_user = c;
    b->until = c->site; /* linears behind it are not quantized yet */
    bk_ctx_measure(ctx);
    bk_status st = bk_block_pass_measure(ctx, b, bk_stream_samples(x), bk_stream_tokens(x));
    if (!st) st = bk_ctx_commit(ctx);
    if (!st) st = bk_block_pass(ctx, b, x, NULL, err);
    b->tap = NULL;
    b->until = BK_SITE_BLOCK_OUT;
    return st;
}

static bk_gptq_options options_of(const bk_qspec *spec, const bk_block_gptq_options *opt)
{
    return (bk_gptq_options){.bits = spec->bits, .symmetric = spec->symmetric, .restricted = spec->restricted,
                             .group = spec->granularity == BK_PER_GROUP ? spec->group : 0, .act_order = opt->act_order,
                             .static_groups = opt->static_groups, .mse_clip = opt->mse_clip, .percdamp = opt->percdamp};
}

static bk_tensor *parameter(const bk_block *b, int w, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "w_%s.%s", bk_linear_name[w], what);
    return bk_params_find(b->params, name);
}

static bk_status quantize(bk_ctx *ctx, bk_block *b, int w, const bk_hessian *h, const bk_gptq_options *opt, bk_gptq_report *report)
{
    bk_gptq_out out = {.step = parameter(b, w, "step"), .zero = parameter(b, w, "zero")};
    bk_tensor *base = parameter(b, w, "base");
    BK_TRY(bk_gptq(ctx, h, opt, bk_linear_name[w], b->w[w], &out, report));
    if (b->be->copy(base->data, out.step->data, (size_t)bk_numel(base) * bk_dtype_size(base->dtype)))
        return bk_fail(bk_ctx_error(ctx), BK_EDEVICE, "copying the steps of %s failed", bk_linear_name[w]);
    return BK_OK;
}

static bk_status quantize_group(bk_ctx *ctx, collector *c, const bk_block_gptq_options *opt, bk_gptq_report *report)
{
    bk_block *b = c->b;
    bool factored = false;
    for (int w = 0; w < BK_W_COUNT; w++) {
        if (bk_linear_input(w) != c->site || !bk_weight_active(b, w)) continue;
        bk_gptq_options o = options_of(&b->wq[w].spec, opt);
        if (!factored) BK_TRY(bk_hessian_factor(ctx, &c->h, &o));
        factored = true;
        BK_TRY(quantize(ctx, b, w, &c->h, &o, &report[w]));
    }
    return BK_OK;
}

static bk_status run_group(bk_ctx *ctx, bk_block *b, const bk_stream *x, bk_site_id site, const bk_block_gptq_options *opt,
                           bk_gptq_report *report, bk_error *err)
{
    collector c = {.b = b, .site = site, .first_weight = opt->first_weight};
    bk_status st = bk_hessian_create(&c.h, b->be, bk_site_width(&b->cfg, site), bk_site_name[site], err);
    if (!st) st = collect_inputs(ctx, &c, x, err);
    if (!st) st = quantize_group(ctx, &c, opt, report);
    bk_hessian_free(&c.h);
    return st;
}

static bool any_active(const bk_block *b, bk_site_id site)
{
    for (int w = 0; w < BK_W_COUNT; w++)
        if (bk_linear_input(w) == site && bk_weight_active(b, w)) return true;
    return false;
}

static bk_status check(const bk_block *b, const bk_block_gptq_options *opt, bk_error *err)
{
    for (int w = 0; w < BK_W_COUNT; w++) {
        if (!bk_weight_active(b, w)) continue;
        if (strcmp(b->wq[w].q->name, "affine"))
            return bk_fail(err, BK_EINVAL, "GPTQ rounds to the steps of `affine`; the weight quantizer of %s is `%s`", bk_linear_name[w],
                           b->wq[w].q->name);
        if (opt->act_order && !opt->static_groups && b->wq[w].spec.granularity == BK_PER_GROUP)
            return bk_fail(err, BK_EINVAL, "GPTQ of %s: act_order with groups wants static_groups, or the columns of a group would not lie "
                           "side by side", bk_linear_name[w]);
    }
    return BK_OK;
}

bk_status bk_block_gptq(bk_ctx *ctx, bk_block *b, const bk_stream *x, const bk_block_gptq_options *opt, bk_gptq_report report[BK_W_COUNT],
                        bk_error *err)
{
    static const bk_site_id order[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};
    memset(report, 0, BK_W_COUNT * sizeof *report);
    BK_TRY(check(b, opt, err));
    bk_ctx_record(ctx, false);
    bk_block_quantize(b, false, opt->act_quant);
    bk_status st = BK_OK;
    for (size_t i = 0; !st && i < sizeof order / sizeof *order; i++)
        if (any_active(b, order[i])) st = run_group(ctx, b, x, order[i], opt, report, err);
    bk_block_quantize(b, true, true);
    return st;
}
