#include "tests/calibrated.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "tests/ok.h"

enum { SAMPLES = BK_CALIBRATED_SAMPLES, TOKENS = BK_CALIBRATED_TOKENS };

static float *room(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

void bk_calibrated_open(bk_calibrated *m, const bk_config *c, const bk_rotation_spec *spec, void (*edit)(const char *dir))
{
    bk_error err = {0};
    bk_tiny_model_write(c, 5, m->dir);
    if (edit) edit(m->dir);
    ok(bk_model_open(m->dir, &m->m, &err), &err);
    ok(bk_source_open(m->m, spec, &m->src, &err), &err);
    for (int i = 0; i < SAMPLES * TOKENS; i++) m->ids[i] = i * 37 % 251;
}

void bk_calibrated_close(bk_calibrated *m)
{
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
}

static void look(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    bk_seen *s = user;
    bk_error err = {0};
    if (bk_ctx_measuring(ctx)) return;
    ck_assert_ptr_null(s->at[site]); /* all windows are one batch */
    s->at[site] = room(bk_numel(x));
    ok(bk_read(bk_ctx_backend(ctx), x, 0, s->at[site], bk_numel(x), &err), &err);
}

/* Embeddings, if x is NULL. */
static bk_stream *inputs(const bk_source *src, const int32_t *ids, const float *x)
{
    bk_error err = {0};
    bk_stream *h;
    ok(bk_stream_create(&h, SAMPLES, TOKENS, bk_source_config(src)->hidden, &err), &err);
    if (x) ok(bk_stream_write(h, 0, SAMPLES, x, &err), &err);
    else ok(bk_embed_stream(src, ids, h, &err), &err);
    return h;
}

static bk_block *new_block(const bk_source *src, const bk_backend *be, const bk_prefix *prefix)
{
    bk_error err = {0};
    bk_block *b;
    bk_block_options opt = {.r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .prefix_len = prefix ? prefix->n : 0, .tokens = TOKENS};
    ok(bk_block_create(&b, be, bk_source_config(src), &opt, &err), &err);
    return b;
}

static bk_ctx *new_ctx(const bk_backend *be, bk_block *b, bk_error *err)
{
    bk_ctx *ctx = bk_ctx_new(be, err);
    ck_assert_ptr_nonnull(ctx);
    ok(bk_block_pass_measure(ctx, b, SAMPLES, TOKENS), err);
    ok(bk_ctx_commit(ctx), err);
    return ctx;
}

void bk_calibrated_block(const bk_calibrated *m, const bk_backend *be, const bk_prefix *prefix, int64_t layer, const bk_block_weights *w,
                         const float *x, bk_seen *seen)
{
    bk_error err = {0};
    bk_block_weights own;
    bk_stream *h = inputs(m->src, m->ids, x);
    bk_block *b = new_block(m->src, be, prefix);
    *seen = (bk_seen){0};
    ok(bk_weights_alloc(bk_source_config(m->src), &own, &err), &err);
    if (!w) ok(bk_source_block(m->src, layer, &own, &err), &err);
    ok(bk_block_load(b, w ? w : &own, &err), &err);
    if (prefix) ok(bk_block_set_prefix(b, bk_prefix_k(prefix, layer), bk_prefix_v(prefix, layer), &err), &err);
    b->tap = look;
    b->tap_user = seen;
    bk_ctx *ctx = new_ctx(be, b, &err);
    ok(bk_block_pass(ctx, b, h, NULL, &err), &err);
    bk_ctx_free(ctx);
    bk_block_free(b);
    bk_stream_free(h);
    bk_weights_free(&own);
}

void bk_seen_free(bk_seen *s)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) free(s->at[i]);
}

typedef struct loading {
    const bk_source *src;
    bk_block_weights w;
} loading;

static bk_status load(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    loading *l = user;
    BK_TRY(bk_source_block(l->src, layer, &l->w, err));
    return bk_block_load(b, &l->w, err);
}

/* [tokens of all windows, vocab] */
static float *logits_of(const bk_calibrated *m, const bk_source *src, const bk_backend *be)
{
    bk_error err = {0};
    const bk_config *c = bk_source_config(src);
    loading l = {.src = src};
    bk_stream *h = inputs(src, m->ids, NULL);
    bk_block *b = new_block(src, be, NULL);
    bk_ctx *ctx = new_ctx(be, b, &err);
    float *x = room(SAMPLES * TOKENS * c->hidden), *logits = room(SAMPLES * TOKENS * c->vocab);
    ok(bk_weights_alloc(c, &l.w, &err), &err);
    ok(bk_model_pass(ctx, b, &(bk_loader){load, &l}, h, NULL, &err), &err);
    ok(bk_stream_read(h, 0, SAMPLES, x, &err), &err);
    ok(bk_logits(ctx, src, x, SAMPLES * TOKENS, logits, &err), &err);
    bk_weights_free(&l.w);
    bk_ctx_free(ctx);
    bk_block_free(b);
    bk_stream_free(h);
    free(x);
    return logits;
}

void bk_calibrated_same_logits(const bk_calibrated *m, const bk_backend *be, const bk_fitted *f)
{
    const bk_rotation_spec folded[] = {{.fitted = f}, {.fitted = f, .r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 3}};
    bk_error err = {0};
    float *want = logits_of(m, m->src, be);
    ok(bk_fitted_check(f, &err), &err);
    for (int i = 0; i < 2; i++) {
        bk_source *src;
        ok(bk_source_open(m->m, &folded[i], &src, &err), &err);
        float *got = logits_of(m, src, be);
        for (int64_t j = 0; j < SAMPLES * TOKENS * bk_source_config(src)->vocab; j++)
            ck_assert_msg(fabsf(got[j] - want[j]) < 1e-3f, "logit %d is %g, not %g", (int)j, (double)got[j], (double)want[j]);
        free(got);
        bk_source_close(src);
    }
    free(want);
}

void bk_calibrated_bad_prefix(const bk_calibrated *m, const bk_backend *be, int64_t layer, int64_t head, int64_t channel, bk_prefix *out)
{
    bk_error err = {0};
    ok(bk_prefix_compute(be, m->src, (int32_t[]){3, 4}, 2, out, &err), &err);
    out->v[((layer * out->kv_heads + head) * out->n + 1) * out->head_dim + channel] = NAN;
}
