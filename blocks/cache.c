#include "blocks/cache.h"

#include <stdlib.h>

#include "blocks/pass.h"

struct bk_cache {
    const bk_backend *be;
    int64_t layers, heads, dim; /* of keys and values */
    int64_t tokens, keys;       /* room for tokens; for keys, the prefix included */
    bk_tensor *spare;
    bk_past layer[];
};

/* Tokens of the past that the next one sees, of `tokens` that ran. */
static int64_t visible(const bk_config *cfg, int64_t tokens)
{
    int64_t window = cfg->sliding_window;
    return window > 0 && tokens > window - 1 ? window - 1 : tokens;
}

static void set_keys(bk_past *p, const bk_block *b, int64_t keys)
{
    bk_tensor *view[2] = {&p->key, &p->value};
    for (int i = 0; i < 2; i++) {
        bk_tensor_init(view[i], b->be->dtype, 3, (int64_t[]){b->cfg.kv_heads, keys, b->cfg.head_dim},
                       i ? "past values" : "past keys");
        view[i]->data = p->memory[i]->data;
    }
}

static bk_status make_memory(bk_cache *c, bk_tensor **out, bk_error *err)
{
    return bk_tensor_create(c->be, c->be->dtype, 3, (int64_t[]){c->heads, c->keys, c->dim}, "cache", out, err);
}

bk_status bk_cache_create(bk_cache **out, const bk_backend *be, const bk_config *cfg, int64_t prefix_len,
                          int64_t tokens, bk_error *err)
{
    bk_cache *c = calloc(1, sizeof *c + (size_t)cfg->layers * sizeof c->layer[0]);
    *out = c;
    if (!c) return bk_fail(err, BK_ENOMEM, "no memory for a cache of %lld blocks", (long long)cfg->layers);
    *c = (bk_cache){.be = be, .layers = cfg->layers, .heads = cfg->kv_heads, .dim = cfg->head_dim, .tokens = tokens,
                    .keys = prefix_len + tokens};
    bk_status st = make_memory(c, &c->spare, err);
    for (int64_t i = 0; !st && i < 2 * c->layers; i++) {
        c->layer[i / 2].spare = &c->spare;
        c->layer[i / 2].room = c->keys;
        st = make_memory(c, &c->layer[i / 2].memory[i % 2], err);
    }
    if (!st) return BK_OK;
    bk_cache_free(c);
    *out = NULL;
    return st;
}

void bk_cache_free(bk_cache *c)
{
    if (!c) return;
    for (int64_t i = 0; i < 2 * c->layers; i++) bk_tensor_destroy(c->be, c->layer[i / 2].memory[i % 2]);
    bk_tensor_destroy(c->be, c->spare);
    free(c);
}

bk_past *bk_cache_layer(bk_cache *c, int64_t layer)
{
    return &c->layer[layer];
}

bk_status bk_cache_measure(bk_ctx *ctx, bk_block *b, bk_cache *c, int64_t first)
{
    bk_past *kept = b->past, *p = b->past = &c->layer[0];
    bk_status st = bk_block_pass_measure(ctx, b, 1, first);
    p->tokens = c->tokens - 1;
    set_keys(p, b, b->prefix_len + visible(&b->cfg, p->tokens));
    if (!st && p->tokens > 0) st = bk_block_pass_measure(ctx, b, 1, 1);
    p->tokens = 0;
    b->past = kept;
    return st;
}

bk_tensor *bk_past_keys(const bk_block *b)
{
    bk_past *p = b->past;
    return !p || !p->tokens ? b->prefix_k : p->key.dim[1] ? &p->key : NULL;
}

bk_tensor *bk_past_values(const bk_block *b)
{
    bk_past *p = b->past;
    return !p || !p->tokens ? b->prefix_v : p->value.dim[1] ? &p->value : NULL;
}

void bk_past_check(bk_ctx *ctx, const bk_block *b, const bk_tensor *x)
{
    const bk_past *p = b->past;
    if (!p || !x) return;
    int64_t n = b->prefix_len + p->tokens + x->dim[1];
    if (x->dim[0] != 1)
        bk_fail(bk_ctx_error(ctx), BK_EINVAL, "a cache is for one sequence, not for %lld", (long long)x->dim[0]);
    else if (n > p->room)
        bk_fail(bk_ctx_error(ctx), BK_EINVAL, "the cache has room for %lld tokens with the prefix, not for %lld",
                (long long)p->room, (long long)n);
    else if (p->tokens && x->dim[1] != 1 && b->cfg.sliding_window > 0)
        bk_fail(bk_ctx_error(ctx), BK_EINVAL,
                "behind a cache, attention of a sliding window runs one token at a time, not %lld",
                (long long)x->dim[1]);
}

/* Rows of one head, from the rows of `src` that begin at `from`. */
static bk_status copy_rows(const bk_backend *be, bk_tensor *dst, int64_t to, const bk_tensor *src, int64_t from,
                           int64_t rows)
{
    size_t row = (size_t)bk_last_dim(dst) * bk_dtype_size(dst->dtype);
    if (rows < 1) return BK_OK;
    return be->copy((char *)dst->data + (size_t)to * row, (const char *)src->data + (size_t)from * row,
                    (size_t)rows * row);
}

/* Lays out anew, in the spare memory: the prefix and the last tokens of `old` (NULL: nothing), then those of x [1, T,
 * Hkv * d]. */
static bk_status join(bk_past *p, int i, const bk_block *b, const bk_tensor *old, const bk_tensor *x)
{
    bk_tensor *to = *p->spare;
    int64_t prefix = b->prefix_len, heads = b->cfg.kv_heads, t = x->dim[1], had = old ? old->dim[1] : 0;
    int64_t keep = visible(&b->cfg, had - prefix + t), added = t < keep ? t : keep, stay = keep - added,
            n = prefix + keep;
    for (int64_t h = 0; h < heads; h++) {
        BK_TRY(copy_rows(b->be, to, h * n, old, h * had, prefix));
        BK_TRY(copy_rows(b->be, to, h * n + prefix, old, (h + 1) * had - stay, stay));
        for (int64_t k = 0; k < added; k++)
            BK_TRY(copy_rows(b->be, to, (h + 1) * n - added + k, x, (t - added + k) * heads + h, 1));
    }
    *p->spare = p->memory[i];
    p->memory[i] = to;
    return BK_OK;
}

void bk_past_add(bk_ctx *ctx, bk_block *b, const bk_tensor *key, const bk_tensor *value)
{
    bk_past *p = b->past;
    if (bk_ctx_status(ctx) || bk_ctx_measuring(ctx)) return;
    bk_status st = join(p, 0, b, bk_past_keys(b), key);
    if (!st) st = join(p, 1, b, bk_past_values(b), value);
    if (st) bk_fail(bk_ctx_error(ctx), st, "keys and values could not be added to the cache");
    p->tokens += key->dim[1];
    set_keys(p, b, b->prefix_len + visible(&b->cfg, p->tokens));
}
