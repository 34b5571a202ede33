#include "blocks/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "io/store.h"

#define SCHEMA "brick.prefix"

static int64_t layer_size(const bk_prefix *p)
{
    return p->kv_heads * p->n * p->head_dim;
}

static bk_status prefix_alloc(bk_prefix *p, bk_error *err)
{
    size_t count = (size_t)(p->layers * layer_size(p));
    p->ids = malloc((size_t)(p->n ? p->n : 1) * sizeof *p->ids);
    p->k = count ? malloc(count * sizeof *p->k) : NULL;
    p->v = count ? malloc(count * sizeof *p->v) : NULL;
    if (!p->ids || (count && (!p->k || !p->v))) return bk_fail(err, BK_ENOMEM, "no memory for a prefix of %lld tokens", (long long)p->n);
    return BK_OK;
}

void bk_prefix_free(bk_prefix *p)
{
    free(p->ids);
    free(p->k);
    free(p->v);
    *p = (bk_prefix){0};
}

const float *bk_prefix_k(const bk_prefix *p, int64_t layer)
{
    return p->k ? p->k + layer * layer_size(p) : NULL;
}

const float *bk_prefix_v(const bk_prefix *p, int64_t layer)
{
    return p->v ? p->v + layer * layer_size(p) : NULL;
}

/* Keeps keys and values of the block that is running; they come as [1, n, kv_heads * head_dim]. */
static void capture_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    bk_prefix_walk *w = user;
    float *to = site == BK_SITE_KEY ? w->k : site == BK_SITE_VALUE ? w->v : NULL;
    if (!to || bk_ctx_measuring(ctx)) return;
    if (bk_read(bk_ctx_backend(ctx), x, 0, w->row, bk_numel(x), bk_ctx_error(ctx))) return;
    int64_t heads = w->b->cfg.kv_heads, d = w->b->cfg.head_dim;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < w->n; t++)
            memcpy(to + (h * w->n + t) * d, w->row + (t * heads + h) * d, (size_t)d * sizeof *to);
}

bk_status bk_prefix_walk_open(bk_prefix_walk *w, const bk_backend *be, const bk_source *src, int64_t n, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    bk_block_options opt = {.r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .tokens = n};
    *w = (bk_prefix_walk){.src = src, .n = n};
    if (!(w->row = malloc((size_t)(n * cfg->kv_heads * cfg->head_dim) * sizeof *w->row)))
        return bk_fail(err, BK_ENOMEM, "no memory for a prefix of %lld tokens", (long long)n);
    BK_TRY(bk_block_create(&w->b, be, cfg, &opt, err));
    w->b->tap = capture_tap;
    w->b->tap_user = w;
    BK_TRY(bk_stream_create(&w->h, 1, n, cfg->hidden, err));
    if (!(w->ctx = bk_ctx_new(be, err))) return BK_ENOMEM;
    bk_ctx_measure(w->ctx);
    BK_TRY(bk_block_pass_measure(w->ctx, w->b, 1, n));
    return bk_ctx_commit(w->ctx);
}

bk_status bk_prefix_walk_begin(bk_prefix_walk *w, const int32_t *ids, bk_error *err)
{
    return bk_embed_stream(w->src, ids, w->h, err);
}

bk_status bk_prefix_walk_block(bk_prefix_walk *w, const bk_block_weights *weights, float *k, float *v, bk_error *err)
{
    w->k = k;
    w->v = v;
    BK_TRY(bk_block_load(w->b, weights, err));
    return bk_block_pass(w->ctx, w->b, w->h, w->h, err);
}

void bk_prefix_walk_close(bk_prefix_walk *w)
{
    free(w->row);
    bk_block_free(w->b);
    bk_ctx_free(w->ctx);
    bk_stream_free(w->h);
    *w = (bk_prefix_walk){0};
}

bk_status bk_prefix_check(const int32_t *ids, int64_t n, int64_t vocab, bk_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return bk_fail(err, BK_EINVAL, "prefix id %d is outside the vocabulary of %lld tokens", ids[i], (long long)vocab);
    return BK_OK;
}

static bk_status compute(bk_prefix *p, bk_prefix_walk *w, bk_block_weights *weights, bk_error *err)
{
    BK_TRY(bk_weights_alloc(bk_source_config(w->src), weights, err));
    BK_TRY(bk_prefix_walk_begin(w, p->ids, err));
    for (int64_t l = 0; l < p->layers; l++) {
        int64_t at = l * layer_size(p);
        BK_TRY(bk_source_block(w->src, l, weights, err));
        if (bk_prefix_walk_block(w, weights, p->k + at, p->v + at, err))
            return bk_error_prefix(err, "block %lld", (long long)l);
    }
    return BK_OK;
}

bk_status bk_prefix_compute(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t n, bk_prefix *out, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    *out = (bk_prefix){.n = n, .layers = cfg->layers, .kv_heads = cfg->kv_heads, .head_dim = cfg->head_dim};
    BK_TRY(bk_prefix_check(ids, n, cfg->vocab, err));
    BK_TRY(prefix_alloc(out, err));
    if (n == 0) return BK_OK;
    bk_prefix_walk w;
    bk_block_weights weights = {0};
    memcpy(out->ids, ids, (size_t)n * sizeof *ids);
    bk_status st = bk_prefix_walk_open(&w, be, src, n, err);
    if (!st) st = compute(out, &w, &weights, err);
    bk_weights_free(&weights);
    bk_prefix_walk_close(&w);
    if (st) bk_prefix_free(out);
    return st;
}

bk_status bk_prefix_save(const bk_prefix *p, const char *path, const char *model, const char *model_sha256, const char *rotation, bk_error *err)
{
    bk_store *s = NULL;
    bk_store_meta meta = {.schema = SCHEMA, .model = model, .model_sha256 = model_sha256, .config = rotation, .prefix_len = p->n};
    int64_t dim[4] = {p->layers, p->kv_heads, p->n, p->head_dim};
    bk_status st = bk_store_create(&s, path, &meta, 0, err);
    if (!st) st = bk_store_put(s, "/prefix/ids", BK_STORE_I32, 1, &p->n, p->ids, err);
    if (!st) st = bk_store_put(s, "/prefix/key", BK_STORE_F32, 4, dim, p->k, err);
    if (!st) st = bk_store_put(s, "/prefix/value", BK_STORE_F32, 4, dim, p->v, err);
    if (!st) return bk_store_commit(s, err);
    bk_store_close(s);
    return st;
}

static bk_status read_prefix(bk_prefix *p, bk_store *s, const char *path, const char *rotation, bk_error *err)
{
    bk_dset_info key;
    const bk_store_meta *meta = bk_store_meta_of(s);
    if (rotation && (!meta->config || strcmp(meta->config, rotation)))
        return bk_fail(err, BK_EINVAL, "%s belongs to another rotation (%s) than this run (%s)", path,
                       meta->config ? meta->config : "unknown", rotation);
    BK_TRY(bk_store_info(s, "/prefix/key", &key, err));
    if (key.rank != 4)
        return bk_fail(err, BK_EFORMAT, "%s: /prefix/key has %d dimensions, want [layers, kv_heads, tokens, head_dim]", path, key.rank);
    *p = (bk_prefix){.layers = key.dim[0], .kv_heads = key.dim[1], .n = key.dim[2], .head_dim = key.dim[3]};
    BK_TRY(prefix_alloc(p, err));
    BK_TRY(bk_store_get(s, "/prefix/ids", BK_STORE_I32, 1, &p->n, p->ids, err));
    BK_TRY(bk_store_get(s, "/prefix/key", BK_STORE_F32, 4, key.dim, p->k, err));
    return bk_store_get(s, "/prefix/value", BK_STORE_F32, 4, key.dim, p->v, err);
}

bk_status bk_prefix_load(bk_prefix *p, const char *path, const char *rotation, bk_error *err)
{
    bk_store *s = NULL;
    *p = (bk_prefix){0};
    bk_status st = bk_store_open(&s, path, SCHEMA, err);
    if (!st) st = read_prefix(p, s, path, rotation, err);
    bk_store_close(s);
    if (st) bk_prefix_free(p);
    return st;
}
