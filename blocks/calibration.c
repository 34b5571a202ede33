#include "blocks/calibration.h"

bk_status bk_calibration_open(bk_calibration *c, const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens,
                              const bk_prefix *prefix, const bk_block_quant *quant, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    bk_block_options opt = {.quant = quant, .r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .prefix_len = prefix ? prefix->n : 0, .tokens = tokens};
    *c = (bk_calibration){.src = src, .prefix = prefix};
    if (samples < 1 || tokens < 1)
        return bk_fail(err, BK_EINVAL, "%lld calibration windows of %lld tokens: there is nothing to fit to", (long long)samples, (long long)tokens);
    BK_TRY(bk_weights_alloc(cfg, &c->weights, err));
    BK_TRY(bk_block_create(&c->b, be, cfg, &opt, err));
    bk_block_quantize(c->b, false, false);
    BK_TRY(bk_stream_create(&c->h, samples, tokens, cfg->hidden, err));
    BK_TRY(bk_embed_stream(src, ids, c->h, err));
    return (c->ctx = bk_ctx_new(be, err)) ? BK_OK : BK_ENOMEM;
}

void bk_calibration_close(bk_calibration *c)
{
    bk_ctx_free(c->ctx);
    bk_stream_free(c->h);
    bk_block_free(c->b);
    bk_weights_free(&c->weights);
    *c = (bk_calibration){0};
}

static bk_status visit_block(bk_calibration *c, int64_t layer, bk_calibration_visit visit, void *user, bk_error *err)
{
    BK_TRY(bk_source_block(c->src, layer, &c->weights, err));
    BK_TRY(bk_block_load(c->b, &c->weights, err));
    if (c->prefix) BK_TRY(bk_block_set_prefix(c->b, bk_prefix_k(c->prefix, layer), bk_prefix_v(c->prefix, layer), err));
    return visit(user, c, layer, err);
}

bk_status bk_calibration_run(bk_calibration *c, bk_calibration_visit visit, void *user, const bk_watch *watch, bk_error *err)
{
    int64_t layers = c->b->cfg.layers;
    for (int64_t l = 0; l < layers; l++) {
        BK_TRY(bk_watch_step(watch, l, layers, err));
        if (visit_block(c, l, visit, user, err)) return bk_error_prefix(err, "block %lld", (long long)l);
    }
    return bk_watch_step(watch, layers, layers, err);
}

static bk_status pass(bk_calibration *c, bool advance, bk_error *err)
{
    bk_ctx_measure(c->ctx);
    BK_TRY(bk_block_pass_measure(c->ctx, c->b, bk_stream_samples(c->h), bk_stream_tokens(c->h)));
    BK_TRY(bk_ctx_commit(c->ctx));
    return bk_block_pass(c->ctx, c->b, c->h, advance ? c->h : NULL, err);
}

bk_status bk_calibration_pass(bk_calibration *c, bk_tap tap, void *user, bool advance, bk_error *err)
{
    c->b->tap = tap;
    c->b->tap_user = user;
    bk_status st = pass(c, advance, err);
    c->b->tap = NULL;
    return st;
}
