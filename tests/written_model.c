#include "tests/written_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/init.h"
#include "blocks/pass.h"
#include "tests/ok.h"
#include "tests/tiny_block.h"
#include "tests/tiny_fitted.h"

static bk_block_quant quant_of(const written_way *v)
{
    bk_block_quant q = bk_tiny_quant(v->quantizer, v->w_bits, v->a_bits, v->symmetric);
    q.weight = bk_tiny_spec(v->weights ? v->weights : "affine", v->w_bits, v->symmetric, v->group ? BK_PER_GROUP : BK_PER_CHANNEL, v->group);
    return q;
}

static size_t output_size(const bk_block *b)
{
    return (size_t)(WRITTEN_SAMPLES * WRITTEN_TOKENS * b->cfg.hidden) * sizeof(float);
}

/* Output of a block on the model's inputs, malloc'd. */
static float *output(written_model *e, bk_block *b)
{
    bk_stream *y;
    float *out = malloc(output_size(b));
    bk_ctx *ctx = bk_ctx_new(e->be, &e->err);
    ck_assert(out && ctx);
    ok(bk_stream_create(&y, WRITTEN_SAMPLES, WRITTEN_TOKENS, b->cfg.hidden, &e->err), &e->err);
    ok(bk_block_pass_measure(ctx, b, WRITTEN_SAMPLES, WRITTEN_TOKENS), &e->err);
    ok(bk_ctx_commit(ctx), &e->err);
    ok(bk_block_pass(ctx, b, e->x, y, &e->err), &e->err);
    ok(bk_stream_read(y, 0, WRITTEN_SAMPLES, out, &e->err), &e->err);
    bk_stream_free(y);
    bk_ctx_free(ctx);
    return out;
}

static void keep_layer(written_model *e, bk_block *b, written_layer *l)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        l->w[i] = bk_tiny_read(e->be, b->w[i]);
        if (b->b[i]) l->b[i] = bk_tiny_read(e->be, b->b[i]);
    }
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (b->norm[i]) l->norm[i] = bk_tiny_read(e->be, b->norm[i]);
    if (b->r3_m) l->r3 = bk_tiny_read(e->be, b->r3_m);
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        const bk_tensor *t = bk_params_at(b->params, i, &group);
        if (group != BK_GROUP_QUANT || !strncmp(t->name, "w_", 2)) continue;
        l->name[l->params] = strdup(t->name);
        l->param[l->params++] = bk_tiny_read(e->be, t);
    }
    l->out = output(e, b);
}

static bk_block *new_block(written_model *e, const bk_block_quant *quant, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4, bool trained)
{
    bk_block *b;
    bk_block_options opt = {.quant = quant, .r3 = r3, .r4 = r4, .prefix_len = e->prefix.n, .tokens = WRITTEN_TOKENS, .trained = trained,
                            .train_norms = e->v->norms && quant->weight.bits < 16};
    ok(bk_block_create(&b, e->be, bk_source_config(e->src), &opt, &e->err), &e->err);
    return b;
}

bk_block *written_block(written_model *e, const bk_block_quant *quant, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4)
{
    return new_block(e, quant, r3, r4, false);
}

/* One update by random gradients, as if they had been trained: what rounds, clips and scales is no longer where it began. */
static void move_learnables(written_model *e, bk_ctx *ctx, bk_block *b)
{
    static const double lr[BK_MAX_GROUPS] = {[BK_GROUP_QUANT] = 1e-2, [BK_GROUP_WEIGHT] = 1e-3, [BK_GROUP_ROUND] = 0.3};
    int64_t floored = 0;
    ok(bk_params_start(b->params), &e->err);
    for (int i = 0; i < bk_params_count(b->params); i++) {
        bk_tensor *g = bk_params_at(b->params, i, NULL)->grad;
        if (!g) continue; /* a constant */
        float *x = bk_tiny_read(e->be, g);
        bk_tiny_fill(x, bk_numel(g), 1, (uint64_t)(31 + i));
        ok(bk_write(e->be, g, 0, x, bk_numel(g), &e->err), &e->err);
        free(x);
    }
    ok(bk_params_step(ctx, b->params, &(bk_adamw){0.9, 0.999, 1e-8, 0}, lr, 1, &floored), &e->err);
}

static void write_layers(written_model *e)
{
    bk_block_weights w;
    bk_block *b = new_block(e, &e->quant, bk_source_r3(e->src), bk_source_r4(e->src), true);
    bk_ctx *ctx = bk_ctx_new(e->be, &e->err);
    ok(bk_weights_alloc(bk_source_config(e->src), &w, &e->err), &e->err);
    for (int l = 0; l < WRITTEN_LAYERS; l++) {
        ok(bk_source_block(e->src, l, &w, &e->err), &e->err);
        ok(bk_block_load(b, &w, &e->err), &e->err);
        if (e->prefix.n) ok(bk_block_set_prefix(b, bk_prefix_k(&e->prefix, l), bk_prefix_v(&e->prefix, l), &e->err), &e->err);
        b->skip_sites = l ? e->v->skip_sites : 0;
        b->skip_weights = l ? e->v->skip_weights : 0;
        ok(bk_block_init(ctx, b, e->x, &(bk_init_options){.search = e->v->search}, &e->err), &e->err);
        move_learnables(e, ctx, b);
        ck_assert(!bk_quantized_has_block(e->to, l, WRITTEN_LAYERS));
        ok(bk_quantized_write_block(ctx, b, l, e->to, &e->err), &e->err);
        ck_assert(bk_quantized_has_block(e->to, l, WRITTEN_LAYERS));
        float *before = output(e, b);
        bk_ctx_measure(ctx);
        ok(bk_block_harden(ctx, b), &e->err);
        ok(bk_ctx_commit(ctx), &e->err);
        ck_assert_msg(e->quant.weight.bits == 16 || b->wq[BK_W_Q].on == false, "hardened weights are still quantized");
        bk_block_quantize(b, true, true); /* the dry run switched them off */
        ok(bk_block_harden(ctx, b), &e->err);
        keep_layer(e, b, &e->layer[l]);
        ck_assert_msg(!memcmp(before, e->layer[l].out, output_size(b)), "%s: hardening changed the output", e->v->name);
        free(before);
    }
    bk_weights_free(&w);
    bk_ctx_free(ctx);
    bk_block_free(b);
}

static void finish(written_model *e)
{
    unsigned sites[WRITTEN_LAYERS] = {0, e->v->skip_sites};
    bk_quantized_info info = {.quant = e->quant, .scheme = "W4A4KV4-static", .model = "tiny",
                              .skip_sites = e->v->skip_sites ? sites : NULL};
    ok(bk_quantized_finish(e->src, &e->prefix, &info, e->to, &e->err), &e->err);
}

void written_open(written_model *e, const written_way *v, const bk_block_quant *quant, const bk_backend *be)
{
    static const int32_t ids[] = {9, 8, 1};
    bk_config c = bk_tiny_config();
    c.layers = WRITTEN_LAYERS;
    c.qkv_bias = c.qk_norm = v->bias;
    if (v->bias) strcpy(c.arch, "qwen3");
    *e = (written_model){.v = v, .be = be, .quant = quant ? *quant : quant_of(v)};
    bk_tiny_model_write(&c, 5, e->dir);
    strcpy(e->to, "/tmp/bk_quantized_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(e->to));
    ok(bk_model_open(e->dir, &e->m, &e->err), &e->err);
    if (v->fitted) e->fitted = bk_tiny_fitted(&c, BK_TINY_ALL_PARTS, 2);
    bk_rotation_spec spec = {.r1 = v->rotated, .r2 = v->rotated, .r3 = v->rotated, .r4 = v->rotated, .seed = 4, .r4_group = v->fitted ? 32 : 0,
                             .fitted = e->fitted, .be = bk_backend_cpu()};
    ok(bk_source_open(e->m, &spec, &e->src, &e->err), &e->err);
    ok(bk_prefix_compute(be, e->src, ids, v->prefix, &e->prefix, &e->err), &e->err);
    e->x = bk_tiny_stream(WRITTEN_SAMPLES, WRITTEN_TOKENS, c.hidden, 9);
    write_layers(e);
    finish(e);
}

void written_close(written_model *e)
{
    for (int l = 0; l < WRITTEN_LAYERS; l++) {
        written_layer *y = &e->layer[l];
        for (int i = 0; i < BK_W_COUNT; i++) free(y->w[i]), free(y->b[i]);
        for (int i = 0; i < BK_NORM_COUNT; i++) free(y->norm[i]);
        for (int i = 0; i < y->params; i++) free(y->name[i]), free(y->param[i]);
        free(y->r3);
        free(y->out);
    }
    bk_stream_free(e->x);
    bk_prefix_free(&e->prefix);
    bk_source_close(e->src);
    bk_fitted_free(e->fitted);
    bk_model_close(e->m);
    bk_tiny_model_remove(e->dir);
    bk_tiny_model_remove(e->to);
}

/* --- what comes back --- */

static void same(const written_model *e, const char *what, const bk_tensor *t, const float *want)
{
    ck_assert((t == NULL) == (want == NULL));
    if (!t) return;
    float *got = bk_tiny_read(e->be, t);
    for (int64_t i = 0; i < bk_numel(t); i++)
        ck_assert_msg(got[i] == want[i], "%s: %s[%d] is %.9g, was %.9g", e->v->name, what, (int)i, (double)got[i], (double)want[i]);
    free(got);
}

void written_check_layer(written_model *e, bk_block *b, const written_layer *l)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        same(e, bk_linear_name[i], b->w[i], l->w[i]);
        same(e, bk_linear_name[i], b->b[i], l->b[i]);
    }
    for (int i = 0; i < BK_NORM_COUNT; i++) same(e, bk_norm_name[i], b->norm[i], l->norm[i]);
    same(e, "r3", b->r3_m, l->r3);
    for (int i = 0; i < l->params; i++) same(e, l->name[i], bk_params_find(b->params, l->name[i]), l->param[i]);
    float *out = output(e, b);
    ck_assert_msg(!memcmp(out, l->out, output_size(b)), "%s: the block computes something else", e->v->name);
    free(out);
}

void written_check(written_model *e)
{
    bk_model *m;
    bk_quantized *q;
    ok(bk_model_open(e->to, &m, &e->err), &e->err);
    ck_assert(bk_model_quantized(m));
    ok(bk_quantized_open(m, &q, &e->err), &e->err);
    ck_assert_str_eq(bk_quantized_scheme(q), "W4A4KV4-static");
    ck_assert((bk_quantized_r3(q) != NULL) == (e->v->rotated && !e->v->fitted) && bk_model_config(m)->r3_per_kv_head == e->v->fitted);
    ck_assert((bk_quantized_r4(q) != NULL) == e->v->rotated && (!e->v->fitted || bk_quantized_r4(q)->blocks == 3));
    const bk_prefix *p = bk_quantized_prefix(q);
    size_t bytes = (size_t)(WRITTEN_LAYERS * p->kv_heads * p->n * p->head_dim) * sizeof(float);
    ck_assert_int_eq(p->n, e->v->prefix);
    ck_assert(!p->n || (!memcmp(p->ids, e->prefix.ids, (size_t)p->n * sizeof *p->ids) && !memcmp(p->k, e->prefix.k, bytes) &&
                        !memcmp(p->v, e->prefix.v, bytes)));
    ck_assert_int_eq(bk_quantized_quant(q)->weight.bits, 16);
    bk_block *b = written_block(e, bk_quantized_quant(q), bk_quantized_r3(q), bk_quantized_r4(q));
    for (int l = WRITTEN_LAYERS - 1; l >= 0; l--) {
        ok(bk_quantized_load(q, l, b, &e->err), &e->err);
        written_check_layer(e, b, &e->layer[l]);
    }
    bk_block_free(b);
    bk_quantized_close(q);
    bk_model_close(m);
}
