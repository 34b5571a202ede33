/* Running a model block by block over streams of hidden states, and what is read off the end: logits and perplexity. */
#ifndef BK_PASS_H
#define BK_PASS_H

#include "blocks/block.h"
#include "blocks/source.h"
#include "blocks/stream.h"

/* Called between blocks and batches: done of total; BK_ECANCEL stops the pass. NULL = nobody asks. */
typedef struct bk_watch {
    bk_status (*step)(void *user, int64_t done, int64_t total, bk_error *err);
    void *user;
} bk_watch;
bk_status bk_watch_step(const bk_watch *w, int64_t done, int64_t total, bk_error *err) BK_MUST_USE; /* w may be NULL */

/* What a model is to a pass: brings block `layer` into `b`, ready to run (weights, quantizer parameters, prefix). */
typedef struct bk_loader {
    bk_status (*load)(void *user, int64_t layer, bk_block *b, bk_error *err);
    void *user;
} bk_loader;

/* Embeddings of ids [samples, tokens] into a stream of that shape. */
bk_status bk_embed_stream(const bk_source *src, const int32_t *ids, bk_stream *out, bk_error *err) BK_MUST_USE;

/* Samples go in batches of about BK_PASS_TOKENS tokens. */
#define BK_PASS_TOKENS 2048
int64_t bk_pass_batch(int64_t samples, int64_t tokens);

/* Samples first .. first + n - 1 of a stream, ready on the backend at the begin of a step. */
typedef struct bk_batch {
    int64_t first, n;
    bk_tensor *x; /* [n, tokens, width] */
    float *host;  /* room for as many values, for whoever takes the batch */
} bk_batch;
typedef bk_status (*bk_batch_fn)(void *user, bk_ctx *ctx, const bk_batch *batch);
/* Takes a stream through fn, `batch` samples a time; in a dry run the first ones only, which are the most there will be. */
bk_status bk_for_batches(bk_ctx *ctx, const bk_stream *s, int64_t batch, bk_batch_fn fn, void *user, bk_error *err) BK_MUST_USE;

/* Runs a block over a stream; out may be `in`, or NULL when only the block's tap is wanted. */
bk_status bk_block_pass(bk_ctx *ctx, bk_block *b, const bk_stream *in, bk_stream *out, bk_error *err) BK_MUST_USE;
/* The dry run for bk_block_pass, between bk_ctx_measure and bk_ctx_commit. The tap is called too, since it may make
 * tensors: it asks bk_ctx_measuring before it looks at values. */
bk_status bk_block_pass_measure(bk_ctx *ctx, bk_block *b, int64_t samples, int64_t tokens) BK_MUST_USE;

/* All blocks over a stream, in place: layer by layer over all samples. */
bk_status bk_model_pass(bk_ctx *ctx, bk_block *b, const bk_loader *loader, bk_stream *h, const bk_watch *watch, bk_error *err) BK_MUST_USE;

typedef struct bk_ppl {
    double ppl, nll; /* nll: mean per scored token; ppl = exp(nll) */
    int64_t tokens;  /* scored */
} bk_ppl;

/* Perplexity of ids [samples, tokens] under the hidden states of the last block; the first token of a sample is not scored. */
bk_status bk_score(bk_ctx *ctx, const bk_source *src, const bk_stream *h, const int32_t *ids, bk_ppl *out, bk_error *err) BK_MUST_USE;

/* The end of a model on a backend, for who asks for logits more than once: gain of the last norm and the head. */
typedef struct bk_head {
    const bk_backend *be;
    const bk_config *cfg; /* of the source, which must outlive it */
    bk_tensor *norm, *w;
} bk_head;
bk_status bk_head_open(bk_head *h, const bk_backend *be, const bk_source *src, bk_error *err) BK_MUST_USE;
void bk_head_close(bk_head *h); /* due after a failure too */
/* Logits of hidden states x [n, hidden] -> out [n, vocab]. */
bk_status bk_head_logits(bk_ctx *ctx, const bk_head *h, const float *x, int64_t n, float *out, bk_error *err) BK_MUST_USE;
/* The same, once. */
bk_status bk_logits(bk_ctx *ctx, const bk_source *src, const float *h, int64_t n, float *out, bk_error *err) BK_MUST_USE;

/* Perplexity of a model on windows of ids: embed, all blocks, head. */
bk_status bk_perplexity(const bk_source *src, bk_block *b, const bk_loader *loader, const int32_t *ids, int64_t samples, int64_t tokens,
                        const bk_watch *watch, bk_ppl *out, bk_error *err) BK_MUST_USE;

#endif
