#include "tests/tiny_block.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "tests/ok.h"

static void *room(int64_t n)
{
    void *p = malloc((size_t)(n > 0 ? n : 1) * sizeof(float));
    ck_assert_ptr_nonnull(p);
    return p;
}

static void normal(float *x, int64_t n, double mean, double deviation, uint64_t seed, uint64_t *drawn)
{
    for (int64_t i = 0; x && i < n; i++) x[i] = (float)(mean + deviation * bk_rng_normal(seed, BK_RNG_TEST, (*drawn)++));
}

static void fill_weights(const bk_config *c, bk_block_weights *w, uint64_t seed)
{
    uint64_t drawn = 0;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        normal(w->w[id], out * in, 0, 1 / sqrt((double)in), seed, &drawn);
        normal(w->b[id], out, 0.1, 0.3, seed, &drawn);
    }
    for (bk_norm_id id = 0; id < BK_NORM_COUNT; id++) normal(w->norm[id], id < BK_NORM_Q ? c->hidden : c->head_dim, 1, 0.2, seed, &drawn);
    normal(w->r3, c->kv_heads * c->head_dim * c->head_dim, 0, 1 / sqrt((double)c->head_dim), seed, &drawn);
}

void bk_tiny_block_open(bk_tiny_block *t, const bk_backend *be, const bk_config *c, const bk_block_options *opt, uint64_t seed)
{
    uint64_t drawn = 1 << 20;
    *t = (bk_tiny_block){.be = be};
    ok(bk_weights_alloc(c, &t->w, &t->err), &t->err);
    fill_weights(c, &t->w, seed);
    ok(bk_block_create(&t->b, be, c, opt, &t->err), &t->err);
    ok(bk_block_load(t->b, &t->w, &t->err), &t->err);
    int64_t n = c->kv_heads * opt->prefix_len * c->head_dim;
    float *k = room(n), *v = room(n);
    normal(k, n, 0, 1, seed, &drawn);
    normal(v, n, 0, 1, seed, &drawn);
    ok(bk_block_set_prefix(t->b, k, v, &t->err), &t->err);
    free(k);
    free(v);
    ck_assert_ptr_nonnull(t->ctx = bk_ctx_new(be, &t->err));
}

void bk_tiny_block_close(bk_tiny_block *t)
{
    bk_ctx_free(t->ctx);
    bk_block_free(t->b);
    bk_weights_free(&t->w);
}

void bk_tiny_fill(float *x, int64_t n, int64_t width, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)((i % width % 29 == 7 ? 10 : 1) * bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i));
}

bk_stream *bk_tiny_stream(int64_t samples, int64_t tokens, int64_t width, uint64_t seed)
{
    bk_error err = {0};
    bk_stream *s;
    int64_t n = samples * tokens * width;
    float *x = room(n);
    bk_tiny_fill(x, n, width, seed);
    ok(bk_stream_create(&s, samples, tokens, width, &err), &err);
    ok(bk_stream_write(s, 0, samples, x, &err), &err);
    free(x);
    return s;
}

bk_qspec bk_tiny_spec(const char *quantizer, int bits, bool symmetric, bk_granularity granularity, int64_t group)
{
    bk_qspec q = {.bits = bits, .symmetric = symmetric, .clip = !strcmp(quantizer, "dynamic"), .granularity = granularity, .group = group};
    ck_assert_uint_lt(strlen(quantizer), sizeof q.quantizer);
    strcpy(q.quantizer, quantizer);
    bk_qspec_defaults(&q);
    return q;
}

bk_block_quant bk_tiny_quant(const char *quantizer, int w_bits, int a_bits, bool symmetric)
{
    bool dynamic = !strcmp(quantizer, "dynamic");
    return (bk_block_quant){.weight = bk_tiny_spec("affine", w_bits, symmetric, BK_PER_CHANNEL, 0),
                            .activation = bk_tiny_spec(quantizer, a_bits, symmetric, dynamic ? BK_PER_TOKEN : BK_PER_TENSOR, 0),
                            .key = bk_tiny_spec(quantizer, a_bits, symmetric, BK_PER_HEAD, 0),
                            .value = bk_tiny_spec(quantizer, a_bits, symmetric, BK_PER_HEAD, 0)};
}

float *bk_tiny_read(const bk_backend *be, const bk_tensor *t)
{
    bk_error err = {0};
    float *x = room(bk_numel(t));
    ok(bk_read(be, t, 0, x, bk_numel(t), &err), &err);
    return x;
}
