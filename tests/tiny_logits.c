#include "tests/tiny_logits.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/block.h"
#include "tests/ok.h"

static void *room(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

double bk_tiny_distance(const double *a, const double *b, int64_t n)
{
    double worst = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        worst = isnan(a[i] - b[i]) ? INFINITY : fmax(worst, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return worst / size;
}

typedef struct run {
    const bk_backend *be;
    const bk_source *src;
    const bk_config *c;
    bk_block_weights w;
    double *exact; /* the same in f64, at the same places */
    bk_error err;
} run;

static void *place(const run *r, const float *in_w)
{
    return in_w ? r->exact + (in_w - r->w.memory) : NULL;
}

static bk_weights_view exact_view(const run *r)
{
    bk_weights_view v = {.type = BK_F64, .r3 = place(r, r->w.r3)};
    for (int i = 0; i < BK_W_COUNT; i++) v.w[i] = place(r, r->w.w[i]), v.b[i] = place(r, r->w.b[i]);
    for (int i = 0; i < BK_NORM_COUNT; i++) v.norm[i] = place(r, r->w.norm[i]);
    return v;
}

static void write_exact(run *r, bk_tensor *t, const void *x)
{
    if (t) ok(bk_write_f64(r->be, t, 0, x, bk_numel(t), &r->err), &r->err);
}

static void load_exact(run *r, int64_t layer, bk_block *b)
{
    ok(bk_weights_load(bk_source_model(r->src), layer, &r->w, &r->err), &r->err);
    for (int64_t i = 0; i < r->w.count; i++) r->exact[i] = (double)r->w.memory[i];
    bk_weights_view v = exact_view(r);
    ok(bk_rotation_block_view(bk_source_rotation(r->src), layer, &v, &r->err), &r->err);
    for (int i = 0; i < BK_W_COUNT; i++) {
        write_exact(r, b->w[i], v.w[i]);
        write_exact(r, b->b[i], v.b[i]);
    }
    for (int i = 0; i < BK_NORM_COUNT; i++) write_exact(r, b->norm[i], v.norm[i]);
    write_exact(r, b->r3_m, v.r3);
}

static void load(run *r, int64_t layer, bk_block *b)
{
    if (r->exact) {
        load_exact(r, layer, b);
        return;
    }
    ok(bk_source_block(r->src, layer, &r->w, &r->err), &r->err);
    ok(bk_block_load(b, &r->w, &r->err), &r->err);
}

/* Rows of the embedding (of these ids) or of the head, transformed. */
static double *rows(run *r, bool head, const int32_t *ids, int64_t n)
{
    int64_t c = r->c->hidden;
    double *out = room(n * c, sizeof *out);
    float *x = room(n * c, sizeof *x);
    const bk_model *m = bk_source_model(r->src);
    const bk_rotation *turn = bk_source_rotation(r->src);
    bk_vectors v = {BK_F64, out, n, c, c, 1};
    if (!r->exact) {
        ok(head ? bk_source_head(r->src, 0, n, x, &r->err) : bk_source_embed(r->src, ids, n, x, &r->err), &r->err);
    } else {
        if (head) ok(bk_model_read_head(m, 0, n, x, &r->err), &r->err);
        for (int64_t i = 0; !head && i < n; i++) ok(bk_model_read_embed(m, ids[i], 1, x + i * c, &r->err), &r->err);
    }
    for (int64_t i = 0; i < n * c; i++) out[i] = (double)x[i];
    if (r->exact) ok(head ? bk_rotation_head_rows(turn, &v, &r->err) : bk_rotation_embed_rows(turn, &v, &r->err), &r->err);
    free(x);
    return out;
}

static void forward(bk_ctx *ctx, bk_block *b, double *x, int64_t tokens, run *r)
{
    bk_step_begin(ctx);
    bk_tensor *in = bk_real_new(ctx, 3, (int64_t[]){1, tokens, r->c->hidden}, "x");
    if (in && !bk_ctx_measuring(ctx)) ok(bk_write_f64(r->be, in, 0, x, tokens * r->c->hidden, &r->err), &r->err);
    bk_tensor *out = bk_block_forward(ctx, b, in);
    ok(bk_ctx_status(ctx), &r->err);
    if (!bk_ctx_measuring(ctx)) ok(bk_read_f64(r->be, out, 0, x, tokens * r->c->hidden, &r->err), &r->err);
}

static void all_blocks(run *r, double *x, int64_t tokens)
{
    bk_block *b;
    bk_block_options opt = {.r3 = bk_source_r3(r->src), .r4 = bk_source_r4(r->src), .tokens = tokens};
    ok(bk_block_create(&b, r->be, r->c, &opt, &r->err), &r->err);
    bk_ctx *ctx = bk_ctx_new(r->be, &r->err);
    ck_assert_ptr_nonnull(ctx);
    forward(ctx, b, x, tokens, r);
    ok(bk_ctx_commit(ctx), &r->err);
    for (int64_t l = 0; l < r->c->layers; l++) {
        load(r, l, b);
        forward(ctx, b, x, tokens, r);
    }
    bk_ctx_free(ctx);
    bk_block_free(b);
}

double *bk_tiny_logits(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t tokens)
{
    run r = {.be = be, .src = src, .c = bk_source_config(src)};
    int64_t c = r.c->hidden, vocab = r.c->vocab;
    ok(bk_weights_alloc(r.c, &r.w, &r.err), &r.err);
    if (be->dtype == BK_F64) r.exact = room(r.w.count, sizeof *r.exact);
    double *x = rows(&r, false, ids, tokens), *head = rows(&r, true, NULL, vocab), *logits = room(tokens * vocab, sizeof *logits);
    float *gain = room(c, sizeof *gain);
    bk_source_final_norm(src, gain);
    all_blocks(&r, x, tokens);
    for (int64_t t = 0; t < tokens; t++) {
        double square = 0, *h = x + t * c;
        for (int64_t i = 0; i < c; i++) square += h[i] * h[i];
        for (int64_t i = 0; i < c; i++) h[i] *= (double)gain[i] / sqrt(square / (double)c + r.c->eps);
        for (int64_t v = 0; v < vocab; v++)
            for (int64_t i = 0; i < c; i++) logits[t * vocab + v] += h[i] * head[v * c + i];
    }
    bk_weights_free(&r.w);
    free(r.exact), free(x), free(head), free(gain);
    return logits;
}
