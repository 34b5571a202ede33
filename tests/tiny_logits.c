#include "tests/tiny_logits.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/tiny_model.h"

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
    const bk_tiny_way *way;
    bk_block_weights w;
    double *exact; /* the same in f64, at the same places */
    int64_t layer;
    bk_error err;
} run;

static void see(const run *r, bk_tiny_kind kind, const char *name, const double *x, int64_t count, int64_t cols)
{
    if (r->way->see) r->way->see(r->way->user, kind, name, x, count, cols);
}

static void see_tensor(run *r, bk_tiny_kind kind, const char *name, const bk_tensor *t)
{
    int64_t n = bk_numel(t);
    double *x = room(n, sizeof *x);
    ok(bk_read_f64(r->be, t, 0, x, n, &r->err), &r->err);
    see(r, kind, name, x, n, bk_last_dim(t));
    free(x);
}

static void see_site(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    run *r = user;
    char name[64];
    if (bk_ctx_measuring(ctx)) return;
    snprintf(name, sizeof name, "layer%d.%s", (int)r->layer, bk_site_name[site]);
    see_tensor(r, BK_TINY_SITE, name, x);
}

/* Weights, biases and gains of a block or of a view of them, and their names. */
enum { PARTS = 2 * BK_W_COUNT + BK_NORM_COUNT };
#define PART(of, i) ((i) >= 2 * BK_W_COUNT ? (of)->norm[(i) - 2 * BK_W_COUNT] : (i) % 2 ? (of)->b[(i) / 2] : (of)->w[(i) / 2])

static void name_part(int64_t layer, int i, char name[128])
{
    const char *hf = i < 2 * BK_W_COUNT ? bk_linear_hf[i / 2] : bk_norm_hf[i - 2 * BK_W_COUNT];
    snprintf(name, 128, "model.layers.%d.%s.%s", (int)layer, hf, i < 2 * BK_W_COUNT && i % 2 ? "bias" : "weight");
}

static void see_block(run *r, const bk_block *b)
{
    char name[128];
    for (int i = 0; i < PARTS; i++) {
        name_part(r->layer, i, name);
        if (PART(b, i)) see_tensor(r, BK_TINY_WEIGHT, name, PART(b, i));
    }
}

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

/* The values that the model's file has rounded. */
static void put_exact(const run *r, const bk_block *b, const bk_weights_view *v)
{
    char name[128];
    for (int i = 0; r->way->exact && i < PARTS; i++) {
        name_part(r->layer, i, name);
        if (PART(v, i)) memcpy(PART(v, i), r->way->exact(r->way->user, name), (size_t)bk_numel(PART(b, i)) * sizeof(double));
    }
}

static void write_exact(run *r, bk_tensor *t, const void *x)
{
    if (t) ok(bk_write_f64(r->be, t, 0, x, bk_numel(t), &r->err), &r->err);
}

static void load_exact(run *r, bk_block *b)
{
    ok(bk_weights_load(bk_source_model(r->src), r->layer, &r->w, &r->err), &r->err);
    for (int64_t i = 0; i < r->w.count; i++) r->exact[i] = (double)r->w.memory[i];
    bk_weights_view v = exact_view(r);
    put_exact(r, b, &v);
    ok(bk_rotation_block_view(bk_source_rotation(r->src), r->layer, &v, &r->err), &r->err);
    for (int i = 0; i < PARTS; i++) write_exact(r, PART(b, i), PART(&v, i));
    write_exact(r, b->r3_m, v.r3);
}

static void load(run *r, bk_block *b)
{
    if (r->exact) {
        load_exact(r, b);
        return;
    }
    ok(bk_source_block(r->src, r->layer, &r->w, &r->err), &r->err);
    ok(bk_block_load(b, &r->w, &r->err), &r->err);
}

/* Rows of the embedding (of these ids) or of the head, as the model has them. */
static void plain_rows(run *r, bool head, const int32_t *ids, int64_t n, double *out)
{
    const bk_model *m = bk_source_model(r->src);
    int64_t c = r->c->hidden;
    float *x = room(n * c, sizeof *x);
    const double *exact = r->way->exact ? r->way->exact(r->way->user, head ? "lm_head.weight" : "model.embed_tokens.weight") : NULL;
    if (head) ok(bk_model_read_head(m, 0, n, x, &r->err), &r->err);
    for (int64_t i = 0; !head && i < n; i++) ok(bk_model_read_embed(m, ids[i], 1, x + i * c, &r->err), &r->err);
    for (int64_t i = 0; i < n * c; i++) out[i] = exact ? exact[(head ? i / c : ids[i / c]) * c + i % c] : (double)x[i];
    free(x);
}

/* The same, transformed. */
static double *rows(run *r, bool head, const int32_t *ids, int64_t n)
{
    int64_t c = r->c->hidden;
    double *out = room(n * c, sizeof *out);
    const bk_rotation *turn = bk_source_rotation(r->src);
    bk_vectors v = {BK_F64, out, n, c, c, 1};
    if (r->exact) {
        plain_rows(r, head, ids, n, out);
        ok(head ? bk_rotation_head_rows(turn, &v, &r->err) : bk_rotation_embed_rows(turn, &v, &r->err), &r->err);
        return out;
    }
    float *x = room(n * c, sizeof *x);
    ok(head ? bk_source_head(r->src, 0, n, x, &r->err) : bk_source_embed(r->src, ids, n, x, &r->err), &r->err);
    for (int64_t i = 0; i < n * c; i++) out[i] = (double)x[i];
    free(x);
    return out;
}

/* Embedding, head and the gain between. */
static void see_ends(run *r)
{
    int64_t c = r->c->hidden, vocab = r->c->vocab;
    int32_t *ids = room(vocab, sizeof *ids);
    for (int64_t i = 0; i < vocab; i++) ids[i] = (int32_t)i;
    double *embed = rows(r, false, ids, vocab), *head = rows(r, true, NULL, vocab), *wide = room(c, sizeof *wide);
    float *gain = room(c, sizeof *gain);
    bk_source_final_norm(r->src, gain);
    for (int64_t i = 0; i < c; i++) wide[i] = (double)gain[i];
    see(r, BK_TINY_WEIGHT, "model.embed_tokens.weight", embed, vocab * c, c);
    see(r, BK_TINY_WEIGHT, "lm_head.weight", head, vocab * c, c);
    see(r, BK_TINY_WEIGHT, "model.norm.weight", wide, c, c);
    free(ids), free(embed), free(head), free(wide), free(gain);
}

static void forward(bk_ctx *ctx, bk_block *b, const double *x, double *y, int64_t tokens, run *r)
{
    bk_step_begin(ctx);
    bk_tensor *in = bk_real_new(ctx, 3, (int64_t[]){1, tokens, r->c->hidden}, "x");
    if (in && !bk_ctx_measuring(ctx)) ok(bk_write_f64(r->be, in, 0, x, tokens * r->c->hidden, &r->err), &r->err);
    bk_tensor *out = bk_block_forward(ctx, b, in);
    ok(bk_ctx_status(ctx), &r->err);
    if (!bk_ctx_measuring(ctx)) ok(bk_read_f64(r->be, out, 0, y, tokens * r->c->hidden, &r->err), &r->err);
}

/* hidden [layers + 1, tokens, hidden], from its first part on. */
static void all_blocks(bk_ctx *ctx, run *r, double *hidden, int64_t tokens)
{
    bk_block *b;
    bk_block_options opt = {.r3 = bk_source_r3(r->src), .r4 = bk_source_r4(r->src), .tokens = tokens};
    int64_t step = tokens * r->c->hidden;
    ok(bk_block_create(&b, r->be, r->c, &opt, &r->err), &r->err);
    if (r->way->see) b->tap = see_site, b->tap_user = r;
    forward(ctx, b, NULL, NULL, tokens, r);
    ok(bk_ctx_commit(ctx), &r->err);
    for (r->layer = 0; r->layer < r->c->layers; r->layer++, hidden += step) {
        load(r, b);
        if (r->way->see) see_block(r, b);
        forward(ctx, b, hidden, hidden + step, tokens, r);
    }
    bk_block_free(b);
}

static void exact_logits(run *r, const double *x, int64_t tokens, double *logits)
{
    int64_t c = r->c->hidden, vocab = r->c->vocab;
    double *head = rows(r, true, NULL, vocab);
    float *gain = room(c, sizeof *gain);
    bk_source_final_norm(r->src, gain);
    for (int64_t t = 0; t < tokens; t++, x += c) {
        double square = 0;
        for (int64_t i = 0; i < c; i++) square += x[i] * x[i];
        double rms = sqrt(square / (double)c + r->c->eps);
        for (int64_t v = 0; v < vocab; v++)
            for (int64_t i = 0; i < c; i++) logits[t * vocab + v] += x[i] / rms * (double)gain[i] * head[v * c + i];
    }
    free(head), free(gain);
}

static void run_logits(bk_ctx *ctx, run *r, const double *x, int64_t tokens, double *logits)
{
    int64_t n = tokens * r->c->hidden, n_out = tokens * r->c->vocab;
    float *h = room(n, sizeof *h), *out = room(n_out, sizeof *out);
    for (int64_t i = 0; i < n; i++) h[i] = (float)x[i];
    ok(bk_logits(ctx, r->src, h, tokens, out, &r->err), &r->err);
    for (int64_t i = 0; i < n_out; i++) logits[i] = (double)out[i];
    free(h), free(out);
}

double *bk_tiny_logits(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t tokens, const bk_tiny_way *way)
{
    run r = {.be = be, .src = src, .c = bk_source_config(src), .way = way ? way : &(bk_tiny_way){0}};
    int64_t step = tokens * r.c->hidden, count = (r.c->layers + 1) * step;
    ok(bk_weights_alloc(r.c, &r.w, &r.err), &r.err);
    if (be->dtype == BK_F64) r.exact = room(r.w.count, sizeof *r.exact);
    double *embed = rows(&r, false, ids, tokens), *hidden = room(count, sizeof *hidden), *logits = room(tokens * r.c->vocab, sizeof *logits);
    memcpy(hidden, embed, (size_t)step * sizeof *hidden);
    bk_ctx *ctx = bk_ctx_new(be, &r.err);
    ck_assert_ptr_nonnull(ctx);
    all_blocks(ctx, &r, hidden, tokens);
    if (r.exact) exact_logits(&r, hidden + count - step, tokens, logits);
    else run_logits(ctx, &r, hidden + count - step, tokens, logits);
    if (r.way->see) see_ends(&r);
    see(&r, BK_TINY_STREAM, "hidden", hidden, count, r.c->hidden);
    bk_ctx_free(ctx);
    bk_weights_free(&r.w);
    free(r.exact), free(embed), free(hidden);
    return logits;
}

double bk_tiny_off_by(const bk_backend *be, const bk_config *c, const bk_rotation_spec *spec)
{
    enum { TOKENS = 6 };
    char dir[BK_TINY_PATH];
    bk_error err = {0};
    bk_model *m;
    bk_source *src;
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)((i * i + 5 * i + 3) % c->vocab);
    bk_tiny_model_write(c, 7, dir);
    ok(bk_model_open(dir, &m, &err), &err);
    ok(bk_source_open(m, spec, &src, &err), &err);
    double *want = bk_plain_logits(m, ids, TOKENS, NULL), *got = bk_tiny_logits(be, src, ids, TOKENS, NULL);
    double off = bk_tiny_distance(got, want, TOKENS * c->vocab);
    free(want), free(got);
    bk_source_close(src);
    bk_model_close(m);
    bk_tiny_model_remove(dir);
    return off;
}
