#include "blocks/pass.h"

#include <math.h>
#include <stdlib.h>

#define HEAD_TOKENS 256 /* positions per chunk of logits */

bk_status bk_watch_step(const bk_watch *w, int64_t done, int64_t total, bk_error *err)
{
    return w && w->step ? w->step(w->user, done, total, err) : BK_OK;
}

bk_status bk_embed_stream(const bk_source *src, const int32_t *ids, bk_stream *out, bk_error *err)
{
    int64_t t = bk_stream_tokens(out), c = bk_stream_width(out);
    float *row = malloc((size_t)(t * c) * sizeof *row);
    if (!row) return bk_fail(err, BK_ENOMEM, "no memory for the embeddings of one sample");
    bk_status st = BK_OK;
    for (int64_t i = 0; !st && i < bk_stream_samples(out); i++) {
        st = bk_source_embed(src, ids + i * t, t, row, err);
        if (!st) st = bk_stream_write(out, i, 1, row, err);
    }
    free(row);
    return st;
}

int64_t bk_pass_batch(int64_t samples, int64_t tokens)
{
    int64_t batch = BK_PASS_TOKENS / tokens;
    batch = batch < 1 ? 1 : batch;
    return batch < samples ? batch : samples;
}

bk_status bk_block_pass_measure(bk_ctx *ctx, bk_block *b, int64_t samples, int64_t tokens)
{
    bk_step_begin(ctx);
    bk_tensor *x = bk_real_new(ctx, 3, (int64_t[]){bk_pass_batch(samples, tokens), tokens, b->cfg.hidden}, "x");
    bk_block_forward(ctx, b, x);
    return bk_ctx_status(ctx);
}

static bk_status take_batch(bk_ctx *ctx, const bk_stream *s, bk_batch *batch, bk_batch_fn fn, void *user, bk_error *err)
{
    int64_t dim[3] = {batch->n, bk_stream_tokens(s), bk_stream_width(s)};
    bk_step_begin(ctx);
    batch->x = bk_real_new(ctx, 3, dim, "x");
    BK_TRY(bk_ctx_status(ctx));
    if (!bk_ctx_measuring(ctx)) {
        BK_TRY(bk_stream_read(s, batch->first, batch->n, batch->host, err));
        BK_TRY(bk_write(bk_ctx_backend(ctx), batch->x, 0, batch->host, bk_numel(batch->x), err));
    }
    return fn(user, ctx, batch);
}

bk_status bk_for_batches(bk_ctx *ctx, const bk_stream *s, int64_t batch, bk_batch_fn fn, void *user, bk_error *err)
{
    int64_t samples = bk_stream_samples(s);
    bk_batch now = {.host = malloc((size_t)(batch * bk_stream_tokens(s) * bk_stream_width(s)) * sizeof(float))};
    if (!now.host) return bk_fail(err, BK_ENOMEM, "no memory for a batch of hidden states");
    bk_status st = BK_OK;
    for (; !st && now.first < samples; now.first += batch) {
        now.n = samples - now.first < batch ? samples - now.first : batch;
        st = take_batch(ctx, s, &now, fn, user, err);
        if (bk_ctx_measuring(ctx)) break;
    }
    free(now.host);
    return st;
}

typedef struct block_pass {
    bk_block *b;
    bk_stream *out;
    bk_error *err;
} block_pass;

static bk_status pass_batch(void *user, bk_ctx *ctx, const bk_batch *in)
{
    const block_pass *p = user;
    bk_tensor *y = bk_block_forward(ctx, p->b, in->x);
    BK_TRY(bk_ctx_status(ctx));
    if (!p->out) return BK_OK;
    BK_TRY(bk_read(p->b->be, y, 0, in->host, bk_numel(y), p->err));
    return bk_stream_write(p->out, in->first, in->n, in->host, p->err);
}

bk_status bk_block_pass(bk_ctx *ctx, bk_block *b, const bk_stream *in, bk_stream *out, bk_error *err)
{
    int64_t batch = bk_pass_batch(bk_stream_samples(in), bk_stream_tokens(in));
    return bk_for_batches(ctx, in, batch, pass_batch, &(block_pass){b, out, err}, err);
}

bk_status bk_model_pass(bk_ctx *ctx, bk_block *b, const bk_loader *loader, bk_stream *h, const bk_watch *watch,
                        bk_error *err)
{
    for (int64_t l = 0; l < b->cfg.layers; l++) {
        BK_TRY(bk_watch_step(watch, l, b->cfg.layers, err));
        BK_TRY(loader->load(loader->user, l, b, err));
        if (bk_block_pass(ctx, b, h, h, err)) return bk_error_prefix(err, "block %lld", (long long)l);
    }
    return bk_watch_step(watch, b->cfg.layers, b->cfg.layers, err);
}

void bk_head_close(bk_head *h)
{
    bk_tensor_destroy(h->be, h->norm);
    bk_tensor_destroy(h->be, h->w);
    *h = (bk_head){0};
}

bk_status bk_head_open(bk_head *h, const bk_backend *be, const bk_source *src, bk_error *err)
{
    *h = (bk_head){.be = be, .cfg = bk_source_config(src)};
    int64_t c = h->cfg->hidden, v = h->cfg->vocab, rows = 1024;
    BK_TRY(bk_tensor_create(be, be->dtype, 1, (int64_t[]){c}, "final norm", &h->norm, err));
    BK_TRY(bk_tensor_create(be, be->dtype, 2, (int64_t[]){v, c}, "head", &h->w, err));
    float *buf = malloc((size_t)(rows * c) * sizeof *buf);
    if (!buf) return bk_fail(err, BK_ENOMEM, "no memory to read the head");
    bk_source_final_norm(src, buf);
    bk_status st = bk_write(be, h->norm, 0, buf, c, err);
    for (int64_t r = 0; !st && r < v; r += rows) {
        int64_t n = v - r < rows ? v - r : rows;
        st = bk_source_head(src, r, n, buf, err);
        if (!st) st = bk_write(be, h->w, r * c, buf, n * c, err);
    }
    free(buf);
    return st;
}

static bk_tensor *head_logits(bk_ctx *ctx, const bk_head *h, bk_tensor *x)
{
    return bk_linear(ctx, bk_rmsnorm(ctx, x, h->norm, h->cfg->eps), h->w, NULL);
}

/* nll of positions t .. t+n-1 of one sample, whose hidden states are host[T, C] */
static bk_status score(bk_ctx *ctx, const bk_head *h, const float *host, const int32_t *ids, int64_t n, double *sum,
                       bk_error *err)
{
    bk_step_begin(ctx);
    bk_tensor *x = bk_real_new(ctx, 2, (int64_t[]){n, h->cfg->hidden}, "h");
    bk_tensor *target = bk_tensor_new(ctx, BK_I32, 1, &n, "targets");
    if (!bk_ctx_status(ctx) && !bk_ctx_measuring(ctx)) {
        BK_TRY(bk_write(h->be, x, 0, host, n * h->cfg->hidden, err));
        BK_TRY(bk_write_i32(h->be, target, 0, ids, n, err));
    }
    bk_tensor *nll = bk_cross_entropy(ctx, head_logits(ctx, h, x), target);
    BK_TRY(bk_ctx_status(ctx));
    for (int64_t i = 0; !bk_ctx_measuring(ctx) && i < n; i++) {
        double v;
        BK_TRY(bk_read_f64(h->be, nll, i, &v, 1, err));
        *sum += v;
    }
    return BK_OK;
}

/* Sums are taken sample by sample, so that the order of additions is fixed. */
static bk_status score_samples(bk_ctx *ctx, const bk_head *h, const bk_stream *s, const int32_t *ids, double *nll,
                               float *host, bk_error *err)
{
    int64_t t = bk_stream_tokens(s), c = bk_stream_width(s), scored = t - 1;
    bk_ctx_record(ctx, false);
    bk_ctx_measure(ctx);
    BK_TRY(score(ctx, h, host, ids, scored < HEAD_TOKENS ? scored : HEAD_TOKENS, NULL, err));
    BK_TRY(bk_ctx_commit(ctx));
    for (int64_t i = 0; i < bk_stream_samples(s); i++) {
        BK_TRY(bk_stream_read(s, i, 1, host, err));
        double sum = 0;
        for (int64_t p = 0; p < scored; p += HEAD_TOKENS) {
            int64_t n = scored - p < HEAD_TOKENS ? scored - p : HEAD_TOKENS;
            BK_TRY(score(ctx, h, host + p * c, ids + i * t + p + 1, n, &sum, err));
        }
        *nll += sum;
    }
    return BK_OK;
}

bk_status bk_score(bk_ctx *ctx, const bk_source *src, const bk_stream *s, const int32_t *ids, bk_ppl *out,
                   bk_error *err)
{
    bk_head h;
    double nll = 0;
    if (bk_stream_samples(s) < 1 || bk_stream_tokens(s) < 2)
        return bk_fail(err, BK_EINVAL, "perplexity needs at least one window of two tokens");
    float *host = malloc((size_t)(bk_stream_tokens(s) * bk_stream_width(s)) * sizeof *host);
    if (!host) return bk_fail(err, BK_ENOMEM, "no memory for one sample");
    bk_status st = bk_head_open(&h, bk_ctx_backend(ctx), src, err);
    if (!st) st = score_samples(ctx, &h, s, ids, &nll, host, err);
    bk_head_close(&h);
    free(host);
    BK_TRY(st);
    out->tokens = bk_stream_samples(s) * (bk_stream_tokens(s) - 1);
    out->nll = nll / (double)out->tokens;
    out->ppl = exp(out->nll);
    return isfinite(out->ppl) ? BK_OK : bk_fail(err, BK_ENUMERIC, "the perplexity is not finite: the mean loss of a token is %g", out->nll);
}

static bk_status logits(bk_ctx *ctx, const bk_head *h, const float *host, int64_t n, float *out, bk_error *err)
{
    int64_t c = h->cfg->hidden, v = h->cfg->vocab;
    bk_step_begin(ctx);
    bk_tensor *x = bk_real_new(ctx, 2, (int64_t[]){n, c}, "h");
    if (!bk_ctx_status(ctx) && !bk_ctx_measuring(ctx)) BK_TRY(bk_write(h->be, x, 0, host, n * c, err));
    bk_tensor *y = head_logits(ctx, h, x);
    BK_TRY(bk_ctx_status(ctx));
    return bk_ctx_measuring(ctx) ? BK_OK : bk_read(h->be, y, 0, out, n * v, err);
}

bk_status bk_head_logits(bk_ctx *ctx, const bk_head *h, const float *x, int64_t n, float *out, bk_error *err)
{
    bk_ctx_record(ctx, false);
    bk_ctx_measure(ctx);
    BK_TRY(logits(ctx, h, x, n, out, err));
    BK_TRY(bk_ctx_commit(ctx));
    return logits(ctx, h, x, n, out, err);
}

bk_status bk_logits(bk_ctx *ctx, const bk_source *src, const float *x, int64_t n, float *out, bk_error *err)
{
    bk_head h;
    bk_status st = bk_head_open(&h, bk_ctx_backend(ctx), src, err);
    if (!st) st = bk_head_logits(ctx, &h, x, n, out, err);
    bk_head_close(&h);
    return st;
}

static bk_status perplexity(bk_ctx *ctx, const bk_source *src, bk_block *b, const bk_loader *loader, const int32_t *ids,
                            bk_stream *h, const bk_watch *watch, bk_ppl *out, bk_error *err)
{
    BK_TRY(bk_embed_stream(src, ids, h, err));
    bk_ctx_measure(ctx);
    BK_TRY(bk_block_pass_measure(ctx, b, bk_stream_samples(h), bk_stream_tokens(h)));
    BK_TRY(bk_ctx_commit(ctx));
    BK_TRY(bk_model_pass(ctx, b, loader, h, watch, err));
    return bk_score(ctx, src, h, ids, out, err);
}

bk_status bk_perplexity(const bk_source *src, bk_block *b, const bk_loader *loader, const int32_t *ids, int64_t samples,
                        int64_t tokens, const bk_watch *watch, bk_ppl *out, bk_error *err)
{
    bk_stream *h = NULL;
    bk_ctx *ctx = bk_ctx_new(b->be, err);
    bk_status st = ctx ? bk_stream_create(&h, samples, tokens, b->cfg.hidden, err) : BK_ENOMEM;
    if (!st) st = perplexity(ctx, src, b, loader, ids, h, watch, out, err);
    bk_stream_free(h);
    bk_ctx_free(ctx);
    return st;
}
