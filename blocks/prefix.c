#include "blocks/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
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
typedef struct capture {
    bk_prefix *p;
    int64_t layer;
    float *row; /* [n, kv_heads * head_dim] */
    bk_error *err;
} capture;

static void capture_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    capture *c = user;
    bk_prefix *p = c->p;
    if ((site != BK_SITE_KEY && site != BK_SITE_VALUE) || bk_ctx_measuring(ctx)) return;
    if (bk_read(bk_ctx_backend(ctx), x, 0, c->row, bk_numel(x), c->err)) return;
    float *to = (site == BK_SITE_KEY ? p->k : p->v) + c->layer * layer_size(p);
    for (int64_t h = 0; h < p->kv_heads; h++)
        for (int64_t t = 0; t < p->n; t++)
            memcpy(to + (h * p->n + t) * p->head_dim, c->row + (t * p->kv_heads + h) * p->head_dim, (size_t)p->head_dim * sizeof *to);
}

typedef struct loading {
    const bk_source *src;
    bk_block_weights weights;
    capture *capture;
} loading;

static bk_status load_block(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    loading *l = user;
    l->capture->layer = layer;
    BK_TRY(bk_source_block(l->src, layer, &l->weights, err));
    return bk_block_load(b, &l->weights, err);
}

static bk_status compute(const bk_backend *be, loading *l, const int32_t *ids, bk_block **b, bk_ctx **ctx, bk_stream **h, bk_error *err)
{
    bk_prefix *p = l->capture->p;
    const bk_config *cfg = bk_source_config(l->src);
    bk_block_options opt = {.r3 = bk_source_r3(l->src), .r4 = bk_source_r4(l->src), .tokens = p->n};
    BK_TRY(prefix_alloc(p, err));
    memcpy(p->ids, ids, (size_t)p->n * sizeof *ids);
    if (!(l->capture->row = malloc((size_t)layer_size(p) * sizeof(float)))) return bk_fail(err, BK_ENOMEM, "no memory");
    BK_TRY(bk_weights_alloc(cfg, &l->weights, err));
    BK_TRY(bk_block_create(b, be, cfg, &opt, err));
    (*b)->tap = capture_tap;
    (*b)->tap_user = l->capture;
    if (!(*ctx = bk_ctx_new(be, err))) return BK_ENOMEM;
    BK_TRY(bk_stream_create(h, 1, p->n, cfg->hidden, err));
    BK_TRY(bk_embed_stream(l->src, p->ids, *h, err));
    bk_ctx_measure(*ctx);
    BK_TRY(bk_block_pass_measure(*ctx, *b, 1, p->n));
    BK_TRY(bk_ctx_commit(*ctx));
    return bk_model_pass(*ctx, *b, &(bk_loader){load_block, l}, *h, NULL, err);
}

bk_status bk_prefix_check(const int32_t *ids, int64_t n, int64_t vocab, bk_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return bk_fail(err, BK_EINVAL, "prefix id %d is outside the vocabulary of %lld tokens", ids[i], (long long)vocab);
    return BK_OK;
}

bk_status bk_prefix_compute(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t n, bk_prefix *out, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    *out = (bk_prefix){.n = n, .layers = cfg->layers, .kv_heads = cfg->kv_heads, .head_dim = cfg->head_dim};
    BK_TRY(bk_prefix_check(ids, n, cfg->vocab, err));
    if (n == 0) return prefix_alloc(out, err);
    capture c = {.p = out, .err = err};
    loading l = {.src = src, .capture = &c};
    bk_block *b = NULL;
    bk_ctx *ctx = NULL;
    bk_stream *h = NULL;
    bk_status st = compute(be, &l, ids, &b, &ctx, &h, err);
    free(c.row);
    bk_weights_free(&l.weights);
    bk_block_free(b);
    bk_ctx_free(ctx);
    bk_stream_free(h);
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
