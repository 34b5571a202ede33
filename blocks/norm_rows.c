#include "blocks/norm_rows.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/rng.h"

typedef struct capture {
    const bk_source *src;
    bk_norm_rows *out;
    int64_t tokens, per_norm; /* of all samples; rows of each norm */
    uint64_t seed;
    bk_error *err;
    int64_t *drawn[BK_SITE_COUNT]; /* [per_norm] rising token numbers of the norm that is running */
    int64_t taken[BK_SITE_COUNT], seen[BK_SITE_COUNT], at[BK_SITE_COUNT]; /* rows taken, tokens seen, first row in `out` */
    bk_block_weights weights;
    bk_stream *h;
    bk_block *b;
    bk_ctx *ctx;
} capture;

static const bk_site_id norm_site[] = {BK_SITE_ATTN_IN, BK_SITE_MLP_IN};
enum { NORMS = sizeof norm_site / sizeof norm_site[0] };

/* Selection sampling (Knuth, The Art of Computer Programming, vol. 2, algorithm S). */
static void draw(capture *c, int64_t norm, int64_t *drawn)
{
    int64_t chosen = 0;
    for (int64_t t = 0; chosen < c->per_norm; t++) {
        uint64_t counter = (uint64_t)(norm * c->tokens + t), left = (uint64_t)(c->tokens - t);
        if ((int64_t)bk_rng_below(c->seed, BK_RNG_ROWS, counter, left) < c->per_norm - chosen) drawn[chosen++] = t;
    }
}

static void take(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    capture *c = user;
    if (!c->drawn[site] || bk_ctx_measuring(ctx)) return;
    int64_t width = c->out->width, end = c->seen[site] + bk_rows(x);
    for (int64_t *i = &c->taken[site]; *i < c->per_norm && c->drawn[site][*i] < end; ++*i) {
        float *row = c->out->x + (c->at[site] + *i) * width;
        if (bk_read(bk_ctx_backend(ctx), x, (c->drawn[site][*i] - c->seen[site]) * width, row, width, c->err)) return;
        for (int64_t k = 0; k < width; k++)
            if (!isfinite(row[k])) {
                bk_fail(c->err, BK_ENUMERIC, "NaN or Inf at %s", bk_site_name[site]);
                return;
            }
    }
    c->seen[site] = end;
}

static bk_status capture_block(capture *c, int64_t layer)
{
    for (int i = 0; i < NORMS; i++) {
        bk_site_id site = norm_site[i];
        c->taken[site] = c->seen[site] = 0;
        c->at[site] = (layer * NORMS + i) * c->per_norm;
        draw(c, layer * NORMS + i, c->drawn[site]);
    }
    BK_TRY(bk_source_block(c->src, layer, &c->weights, c->err));
    BK_TRY(bk_block_load(c->b, &c->weights, c->err));
    BK_TRY(bk_block_pass(c->ctx, c->b, c->h, c->h, c->err));
    return c->err->code;
}

static bk_status prepare(capture *c, const bk_backend *be, const int32_t *ids, int64_t samples, int64_t tokens)
{
    const bk_config *cfg = bk_source_config(c->src);
    const bk_rotation *r = bk_source_rotation(c->src);
    bk_block_options opt = {.r3 = bk_source_r3(c->src), .r4 = bk_source_r4(c->src), .tokens = tokens};
    if (!r->on[BK_TRANSFORM_FUSE] || r->on[BK_TRANSFORM_R1])
        return bk_fail(c->err, BK_EINVAL, "a rotation is fitted to a model with fused norms and without R1");
    if (samples < 1 || tokens < 1 || c->per_norm < 1) return bk_fail(c->err, BK_EINVAL, "no token to fit a rotation to");
    for (int i = 0; i < NORMS; i++)
        if (!(c->drawn[norm_site[i]] = malloc((size_t)c->per_norm * sizeof(int64_t)))) return bk_fail(c->err, BK_ENOMEM, "no memory");
    if (!(c->out->x = malloc((size_t)(c->out->n * cfg->hidden) * sizeof *c->out->x)))
        return bk_fail(c->err, BK_ENOMEM, "no memory for %lld rows of activations; take fewer of each norm", (long long)c->out->n);
    BK_TRY(bk_weights_alloc(cfg, &c->weights, c->err));
    BK_TRY(bk_block_create(&c->b, be, cfg, &opt, c->err));
    BK_TRY(bk_stream_create(&c->h, samples, tokens, cfg->hidden, c->err));
    BK_TRY(bk_embed_stream(c->src, ids, c->h, c->err));
    if (!(c->ctx = bk_ctx_new(be, c->err))) return BK_ENOMEM;
    c->b->tap = take;
    c->b->tap_user = c;
    bk_ctx_measure(c->ctx);
    BK_TRY(bk_block_pass_measure(c->ctx, c->b, samples, tokens));
    return bk_ctx_commit(c->ctx);
}

static bk_status run(capture *c, const bk_watch *watch)
{
    int64_t layers = bk_source_config(c->src)->layers;
    for (int64_t l = 0; l < layers; l++) {
        if (watch && watch->step) BK_TRY(watch->step(watch->user, l, layers, c->err));
        if (capture_block(c, l)) return bk_error_prefix(c->err, "outputs of norms, block %lld", (long long)l);
    }
    return watch && watch->step ? watch->step(watch->user, layers, layers, c->err) : BK_OK;
}

bk_status bk_norm_rows_capture(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens,
                               int64_t per_norm, uint64_t seed, const bk_watch *watch, bk_norm_rows *out, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    int64_t all = samples * tokens;
    capture c = {.src = src, .out = out, .tokens = all, .per_norm = per_norm < all ? per_norm : all, .seed = seed, .err = err};
    *out = (bk_norm_rows){.n = cfg->layers * NORMS * c.per_norm, .width = cfg->hidden};
    bk_status st = prepare(&c, be, ids, samples, tokens);
    if (!st) st = run(&c, watch);
    for (int i = 0; i < NORMS; i++) free(c.drawn[norm_site[i]]);
    bk_weights_free(&c.weights);
    bk_block_free(c.b);
    bk_stream_free(c.h);
    bk_ctx_free(c.ctx);
    return st;
}

void bk_norm_rows_free(bk_norm_rows *r)
{
    free(r->x);
    *r = (bk_norm_rows){0};
}
