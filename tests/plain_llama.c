#include "tests/plain_llama.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/weights.h"
#include "tests/ok.h"

static double *room(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static void linear(const float *w, const float *b, int64_t out, int64_t in, const double *x, double *y)
{
    for (int64_t o = 0; o < out; o++) {
        y[o] = b ? (double)b[o] : 0;
        for (int64_t i = 0; i < in; i++) y[o] += (double)w[o * in + i] * x[i];
    }
}

static void rmsnorm(const float *gain, double eps, int64_t n, const double *x, double *y)
{
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / sqrt(square / (double)n + eps) * (double)gain[i];
}

static void rope(const bk_config *c, int64_t position, double *x)
{
    int64_t d = c->head_dim;
    for (int64_t i = 0; i < d / 2; i++) {
        double angle = (double)position * pow(c->rope_theta, -2.0 * (double)i / (double)d), a = x[i], b = x[i + d / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + d / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* One row of attention: token t of one head over the keys 0 .. t of its kv head. */
static void attend(const bk_config *c, const double *q, const double *k, const double *v, int64_t t, int64_t stride, double *out)
{
    int64_t d = c->head_dim;
    double *p = room(t + 1), most = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= t; j++) {
        for (int64_t i = 0; i < d; i++) p[j] += q[i] * k[j * stride + i] / sqrt((double)d);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j <= t; j++)
        for (int64_t i = 0; i < d; i++) out[i] += p[j] / sum * v[j * stride + i];
    free(p);
}

static void attention(const bk_config *c, const bk_block_weights *w, int64_t tokens, double *x)
{
    int64_t n = c->hidden, d = c->head_dim, qd = c->heads * d, kd = c->kv_heads * d, per = c->heads / c->kv_heads;
    double *a = room(n), *q = room(tokens * qd), *k = room(tokens * kd), *v = room(tokens * kd), *o = room(tokens * qd);
    for (int64_t t = 0; t < tokens; t++) {
        rmsnorm(w->norm[BK_NORM_ATTN], c->eps, n, x + t * n, a);
        linear(w->w[BK_W_Q], w->b[BK_W_Q], qd, n, a, q + t * qd);
        linear(w->w[BK_W_K], w->b[BK_W_K], kd, n, a, k + t * kd);
        linear(w->w[BK_W_V], w->b[BK_W_V], kd, n, a, v + t * kd);
        for (int64_t h = 0; h < c->heads + c->kv_heads; h++) {
            double *head = h < c->heads ? q + t * qd + h * d : k + t * kd + (h - c->heads) * d;
            if (c->qk_norm) rmsnorm(w->norm[h < c->heads ? BK_NORM_Q : BK_NORM_K], c->eps, d, head, head);
            rope(c, t, head);
        }
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t h = 0; h < c->heads; h++) attend(c, q + t * qd + h * d, k + h / per * d, v + h / per * d, t, kd, o + t * qd + h * d);
        linear(w->w[BK_W_O], w->b[BK_W_O], n, qd, o + t * qd, a);
        for (int64_t i = 0; i < n; i++) x[t * n + i] += a[i];
    }
    free(a), free(q), free(k), free(v), free(o);
}

static void mlp(const bk_config *c, const bk_block_weights *w, int64_t tokens, double *x)
{
    int64_t n = c->hidden, m = c->inter;
    double *a = room(n), *gate = room(m), *up = room(m);
    for (int64_t t = 0; t < tokens; t++) {
        rmsnorm(w->norm[BK_NORM_MLP], c->eps, n, x + t * n, a);
        linear(w->w[BK_W_GATE], w->b[BK_W_GATE], m, n, a, gate);
        linear(w->w[BK_W_UP], w->b[BK_W_UP], m, n, a, up);
        for (int64_t i = 0; i < m; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
        linear(w->w[BK_W_DOWN], w->b[BK_W_DOWN], n, m, up, a);
        for (int64_t i = 0; i < n; i++) x[t * n + i] += a[i];
    }
    free(a), free(gate), free(up);
}

double *bk_plain_logits(const bk_model *m, const int32_t *ids, int64_t tokens, double *hidden)
{
    const bk_config *c = bk_model_config(m);
    bk_error err = {0};
    bk_block_weights w;
    int64_t n = c->hidden, at = 0;
    double *x = room(tokens * n), *logits = room(tokens * c->vocab), *last = room(n);
    float *head = malloc((size_t)(c->vocab * n) * sizeof *head), *gain = malloc((size_t)n * sizeof *gain);
    ck_assert(head && gain && c->rope_kind == BK_ROPE_PLAIN && c->sliding_window == 0);
    ok(bk_weights_alloc(c, &w, &err), &err);
    for (int64_t t = 0; t < tokens; t++) {
        ok(bk_model_read_embed(m, ids[t], 1, gain, &err), &err);
        for (int64_t i = 0; i < n; i++) x[t * n + i] = (double)gain[i];
    }
    for (int64_t l = 0; l <= c->layers; l++, at += tokens * n) {
        if (hidden) memcpy(hidden + at, x, (size_t)(tokens * n) * sizeof *x);
        if (l == c->layers) break;
        ok(bk_weights_load(m, l, &w, &err), &err);
        attention(c, &w, tokens, x);
        mlp(c, &w, tokens, x);
    }
    ok(bk_model_read_final_norm(m, gain, &err), &err);
    ok(bk_model_read_head(m, 0, c->vocab, head, &err), &err);
    for (int64_t t = 0; t < tokens; t++) {
        rmsnorm(gain, c->eps, n, x + t * n, last);
        linear(head, NULL, c->vocab, n, last, logits + t * c->vocab);
    }
    bk_weights_free(&w);
    free(x), free(last), free(head), free(gain);
    return logits;
}

double bk_plain_nll(const double *logits, const int32_t *ids, int64_t tokens, int64_t vocab)
{
    double sum = 0;
    for (int64_t t = 0; t + 1 < tokens; t++) {
        const double *row = logits + t * vocab;
        double most = -INFINITY, z = 0;
        for (int64_t i = 0; i < vocab; i++) most = fmax(most, row[i]);
        for (int64_t i = 0; i < vocab; i++) z += exp(row[i] - most);
        sum += most + log(z) - row[ids[t + 1]];
    }
    return sum / (double)(tokens - 1);
}
