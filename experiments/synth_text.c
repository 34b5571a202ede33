/* Texts sampled from a made model, a batch of documents at a time, with a forward pass of its own: plain loops whose order is fixed, so
 * that a seed gives the same text everywhere, and a second opinion on what the engine computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "experiments/synth.h"
#include "experiments/verbs.h"

#define BATCH 16
#define ONE_IN 160 /* tokens is a delimiter */
#define POSITIONS (BK_SYNTH_DOCUMENT + 1)

typedef struct sampler {
    const bk_synth *s;
    int64_t docs;
    float *memory;
    float *x, *y, *q, *att, *gate, *up, *logits; /* a row per document */
    float *k, *v;                                /* [layers][documents][POSITIONS][kv_heads * head_dim] */
    float *score;                                /* [POSITIONS] */
    double *freq;                                /* [head_dim / 2] */
    float *wt;                                   /* transposed: all linears of all blocks, then the head */
} sampler;

/* y [docs, out] = x [docs, in] W^T, W given as its transpose [in, out]. */
static void product(const sampler *p, const float *wt, const float *x, float *y, int64_t in, int64_t out)
{
    memset(y, 0, (size_t)(p->docs * out) * sizeof *y);
    for (int64_t i = 0; i < in; i++)
        for (int64_t b = 0; b < p->docs; b++) {
            float a = x[b * in + i], *restrict to = y + b * out;
            const float *restrict w = wt + i * out;
            for (int64_t o = 0; o < out; o++) to[o] += a * w[o];
        }
}

static void linear(const sampler *p, const float *wt, const float *bias, const float *x, float *y, int64_t in, int64_t out)
{
    product(p, wt, x, y, in, out);
    for (int64_t b = 0; bias && b < p->docs; b++)
        for (int64_t o = 0; o < out; o++) y[b * out + o] += bias[o];
}

static void norm(const float *x, const float *gain, float *y, int64_t rows, int64_t n, double eps)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)x[r * n + i] * (double)x[r * n + i];
        float f = (float)(1 / sqrt(sum / (double)n + eps));
        for (int64_t i = 0; i < n; i++) y[r * n + i] = x[r * n + i] * f * gain[i];
    }
}

/* Norm and RoPE of the heads of one token. */
static void turn(const sampler *p, float *x, const float *gain, int64_t heads, int64_t position)
{
    int64_t half = p->s->cfg.head_dim / 2;
    if (gain) norm(x, gain, x, heads, 2 * half, p->s->cfg.eps);
    for (int64_t i = 0; i < half; i++) {
        float c = (float)cos((double)position * p->freq[i]), s = (float)sin((double)position * p->freq[i]);
        for (int64_t h = 0; h < heads; h++) {
            float *a = x + h * 2 * half + i, *b = a + half, was = *a;
            *a = was * c - *b * s;
            *b = *b * c + was * s;
        }
    }
}

/* One query head over the keys in sight: those of the window, and <s>. */
static void attend(sampler *p, const float *q, const float *k, const float *v, int64_t stride, int64_t position, float *out)
{
    int64_t d = p->s->cfg.head_dim, window = p->s->cfg.sliding_window, first = window && position >= window ? position - window + 1 : 1;
    float top = -INFINITY, sum = 0;
    for (int64_t t = 0; t <= position; t = t ? t + 1 : first) {
        float dot = 0;
        for (int64_t i = 0; i < d; i++) dot += q[i] * k[t * stride + i];
        p->score[t] = dot / sqrtf((float)d);
        top = fmaxf(top, p->score[t]);
    }
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t t = 0; t <= position; t = t ? t + 1 : first) {
        float e = expf(p->score[t] - top);
        sum += e;
        for (int64_t i = 0; i < d; i++) out[i] += e * v[t * stride + i];
    }
    for (int64_t i = 0; i < d; i++) out[i] /= sum;
}

static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

/* The next of the linears, in the order in which `transpose` laid them down. */
static const float *take(const float **wt, const bk_config *c, bk_linear_id id)
{
    const float *at = *wt;
    int64_t out, in;
    bk_linear_shape(c, id, &out, &in);
    *wt += out * in;
    return at;
}

static void attention(sampler *p, int64_t layer, int64_t position, const float **wt)
{
    const bk_config *c = &p->s->cfg;
    const bk_block_weights *w = &p->s->block[layer];
    int64_t d = c->head_dim, nq = c->heads * d, nkv = c->kv_heads * d;
    float *k = p->gate, *v = p->up; /* free until the MLP, and long enough: see `allocate` */
    norm(p->x, w->norm[BK_NORM_ATTN], p->y, p->docs, c->hidden, c->eps);
    linear(p, take(wt, c, BK_W_Q), w->b[BK_W_Q], p->y, p->q, c->hidden, nq);
    linear(p, take(wt, c, BK_W_K), w->b[BK_W_K], p->y, k, c->hidden, nkv);
    linear(p, take(wt, c, BK_W_V), w->b[BK_W_V], p->y, v, c->hidden, nkv);
    for (int64_t b = 0; b < p->docs; b++) {
        float *cache_k = p->k + (layer * p->docs + b) * POSITIONS * nkv, *cache_v = p->v + (layer * p->docs + b) * POSITIONS * nkv;
        turn(p, p->q + b * nq, w->norm[BK_NORM_Q], c->heads, position);
        turn(p, k + b * nkv, w->norm[BK_NORM_K], c->kv_heads, position);
        memcpy(cache_k + position * nkv, k + b * nkv, (size_t)nkv * sizeof *k);
        memcpy(cache_v + position * nkv, v + b * nkv, (size_t)nkv * sizeof *v);
        for (int64_t h = 0; h < c->heads; h++) {
            int64_t kv = h / (c->heads / c->kv_heads) * d;
            attend(p, p->q + b * nq + h * d, cache_k + kv, cache_v + kv, nkv, position, p->att + b * nq + h * d);
        }
    }
    linear(p, take(wt, c, BK_W_O), w->b[BK_W_O], p->att, p->y, nq, c->hidden);
    add(p->x, p->y, p->docs * c->hidden);
}

static void mlp(sampler *p, int64_t layer, const float **wt)
{
    const bk_config *c = &p->s->cfg;
    const bk_block_weights *w = &p->s->block[layer];
    norm(p->x, w->norm[BK_NORM_MLP], p->y, p->docs, c->hidden, c->eps);
    linear(p, take(wt, c, BK_W_GATE), w->b[BK_W_GATE], p->y, p->gate, c->hidden, c->inter);
    linear(p, take(wt, c, BK_W_UP), w->b[BK_W_UP], p->y, p->up, c->hidden, c->inter);
    for (int64_t i = 0; i < p->docs * c->inter; i++) p->gate[i] = p->gate[i] / (1 + expf(-p->gate[i])) * p->up[i];
    linear(p, take(wt, c, BK_W_DOWN), w->b[BK_W_DOWN], p->gate, p->y, c->inter, c->hidden);
    add(p->x, p->y, p->docs * c->hidden);
}

/* One token of every document through the model. */
static void step(sampler *p, const int32_t *ids, int64_t position)
{
    const bk_config *c = &p->s->cfg;
    const float *wt = p->wt;
    for (int64_t b = 0; b < p->docs; b++) memcpy(p->x + b * c->hidden, p->s->embed + ids[b] * c->hidden, (size_t)c->hidden * sizeof *p->x);
    for (int64_t l = 0; l < c->layers; l++) {
        attention(p, l, position, &wt);
        mlp(p, l, &wt);
    }
    norm(p->x, p->s->final_norm, p->y, p->docs, c->hidden, c->eps);
    product(p, wt, p->y, p->logits, c->hidden, c->vocab);
}

static char draw(const float *logits, uint64_t seed, uint64_t counter)
{
    static const char letters[] = BK_SYNTH_LETTERS;
    double kind = bk_rng_uniform(seed, BK_RNG_SYNTH, 2 * counter) * ONE_IN, top = -INFINITY, sum = 0;
    if (kind < 1) return kind < 2.0 / 3 ? '.' : '\n';
    for (const char *l = letters; *l; l++) top = fmax(top, logits[(int)*l]);
    for (const char *l = letters; *l; l++) sum += exp(logits[(int)*l] - top);
    double left = bk_rng_uniform(seed, BK_RNG_SYNTH, 2 * counter + 1) * sum;
    for (const char *l = letters; *l; l++)
        if ((left -= exp(logits[(int)*l] - top)) < 0) return *l;
    return letters[0];
}

static void transpose(float **to, const float *w, int64_t out, int64_t in)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) (*to)[i * out + o] = w[o * in + i];
    *to += out * in;
}

static bk_status allocate(sampler *p, bk_error *err)
{
    const bk_config *c = &p->s->cfg;
    int64_t nq = c->heads * c->head_dim, nkv = c->kv_heads * c->head_dim, wide = c->inter > nkv ? c->inter : nkv;
    int64_t cache = c->layers * p->docs * POSITIONS * nkv;
    int64_t weights = c->layers * bk_config_block_weights(c) + c->vocab * c->hidden;
    const struct {
        float **at;
        int64_t n;
    } part[] = {{&p->x, p->docs * c->hidden}, {&p->y, p->docs * c->hidden},      {&p->q, p->docs * nq}, {&p->att, p->docs * nq},
                {&p->gate, p->docs * wide},   {&p->up, p->docs * wide},          {&p->k, cache},        {&p->v, cache},
                {&p->score, POSITIONS},       {&p->logits, p->docs * c->vocab}, {&p->wt, weights}};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) sum += part[i].n;
    p->memory = calloc((size_t)sum, sizeof *p->memory);
    p->freq = calloc((size_t)c->head_dim / 2, sizeof *p->freq);
    if (!p->memory || !p->freq) return bk_fail(err, BK_ENOMEM, "no memory to sample a text");
    float *at = p->memory;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].at = at;
        at += part[i].n;
    }
    return BK_OK;
}

static void prepare(sampler *p)
{
    const bk_config *c = &p->s->cfg;
    float *to = p->wt;
    bk_config_inv_freq(c, p->freq);
    for (int64_t l = 0; l < c->layers; l++)
        for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
            int64_t out, in;
            bk_linear_shape(c, id, &out, &in);
            transpose(&to, p->s->block[l].w[id], out, in);
        }
    transpose(&to, c->tied ? p->s->embed : p->s->head, c->vocab, c->hidden);
}

static void sample_batch(sampler *p, int64_t first, char *text)
{
    const uint64_t base = (uint64_t)1 << 60; /* beyond the numbers that made the weights */
    int32_t ids[BATCH];
    for (int64_t b = 0; b < p->docs; b++) ids[b] = BK_SYNTH_BOS;
    for (int64_t t = 0; t < BK_SYNTH_DOCUMENT; t++) {
        step(p, ids, t);
        for (int64_t b = 0; b < p->docs; b++) {
            uint64_t counter = base + (uint64_t)((first + b) * BK_SYNTH_DOCUMENT + t);
            char letter = draw(p->logits + b * p->s->cfg.vocab, p->s->seed, counter);
            text[b * BK_SYNTH_DOCUMENT + t] = letter;
            ids[b] = letter;
        }
    }
}

bk_status bk_synth_sample(const bk_synth *s, int64_t first, int64_t documents, char *text, bk_error *err)
{
    sampler p = {.s = s, .docs = documents < BATCH ? documents : BATCH};
    bk_status st = allocate(&p, err);
    if (!st) prepare(&p);
    for (int64_t done = 0; !st && done < documents; done += p.docs) {
        if (documents - done < p.docs) p.docs = documents - done;
        sample_batch(&p, first + done, text + done * BK_SYNTH_DOCUMENT);
        st = bk_check_cancelled(err);
    }
    free(p.memory);
    free(p.freq);
    return st;
}
