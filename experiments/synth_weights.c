/* The weights of a made model: see synth.h for what is planted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "experiments/synth.h"

#define CONSTANT 10.0   /* of channel CONST in every embedding: an outlier channel, and what rows use as a bias */
#define FLAG 3.0        /* of channel FLAG in the embedding of a delimiter */
#define FLAG_OFF 6.0    /* what the sight of <s> takes from it */
#define MARK 10.0       /* of channel MARK in the embedding of <s> */
#define MASSIVE 400.0   /* written to channel MASSIVE by an MLP that fires */
#define FIRE_GATE 30.0
#define FIRE_UP 50.0
#define BIG 5.0         /* two content channels are this much larger in the embeddings ... */
#define BIG_GAIN 2.0    /* ... and their gains this much */
#define SINK_VALUE 4.0  /* what the first block's head reads at <s> */
#define SINK_SCORE 11.0 /* above those of some hundred other keys */
#define SINK_KEY 30.0
#define ATTENTION 0.4   /* deviation of what attention adds to a content channel */
#define MLP 0.7         /* of what an MLP adds */
#define MLP_FIRING 1.2  /* of what an MLP adds in which a neuron can fire */
#define LOGIT 2.6       /* deviation of the logits */

typedef struct maker {
    bk_synth *s;
    uint64_t drawn;
    double content; /* variance of a content channel of the stream, as designed */
    double rms;     /* of the stream's channels */
} maker;

static double normal(maker *m)
{
    return bk_rng_normal(m->s->seed, BK_RNG_SYNTH, m->drawn++);
}

static bool is_big(const bk_config *c, int64_t channel)
{
    return channel == BK_SYNTH_CONTENT + 1 || channel == c->hidden / 2 + 1;
}

static void design_rms(maker *m)
{
    const bk_config *c = &m->s->cfg;
    double content = (double)(c->hidden - BK_SYNTH_CONTENT) * m->content + 2 * (BIG * BIG - 1);
    m->rms = sqrt((content + CONSTANT * CONSTANT + FLAG_OFF * FLAG_OFF) / (double)c->hidden);
}

static void add_content(maker *m, double deviation)
{
    m->content += deviation * deviation;
    design_rms(m);
}

/* Random rows that read the normed stream, so that their products have about this deviation. Channels with a purpose are not read. */
static void fill_readers(maker *m, float *w, int64_t rows, double deviation)
{
    const bk_config *c = &m->s->cfg;
    double scale = deviation * m->rms / sqrt(m->content * (double)c->hidden);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < c->hidden; i++) {
            double x = normal(m) * scale;
            if (i < BK_SYNTH_CONTENT) x = i == BK_SYNTH_CONST ? 0.3 * x : 0;
            else if (is_big(c, i)) x *= 2 / (BIG * BIG_GAIN);
            w[r * c->hidden + i] = (float)x;
        }
}

/* Random rows that write content channels. */
static void fill_writers(maker *m, float *w, int64_t cols, double deviation)
{
    double scale = deviation / sqrt((double)cols);
    for (int64_t r = 0; r < m->s->cfg.hidden; r++)
        for (int64_t i = 0; i < cols; i++) {
            double x = normal(m) * scale;
            w[r * cols + i] = (float)(r < BK_SYNTH_CONTENT ? 0 : x);
        }
}

static void fill_around(maker *m, float *x, int64_t n, double mean, double deviation)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)(mean + deviation * normal(m));
}

static void fill_gains(maker *m, float *gain)
{
    const bk_config *c = &m->s->cfg;
    fill_around(m, gain, c->hidden, 1, 0.1);
    for (int64_t i = 0; i < c->hidden; i++)
        if (i < BK_SYNTH_CONTENT) gain[i] = 1;
        else if (is_big(c, i)) gain[i] = (float)BIG_GAIN;
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

static void clear_row(bk_block_weights *w, bk_linear_id id, int64_t row, int64_t cols)
{
    clear(w->w[id] + row * cols, cols);
    if (w->b[id]) w->b[id][row] = 0;
}

/* Query head 0 of a block asks, through the slowest pair of RoPE, for keys whose channel `channel` is large (about `normed`, after the
 * norm): such a key scores SINK_SCORE, any other 0. The other heads of its group are kept off this pair. */
static void plant_finder(maker *m, bk_block_weights *w, int channel, double normed)
{
    const bk_config *c = &m->s->cfg;
    int64_t d = c->head_dim, pair = d / 2 - 1, n = c->hidden;
    for (int64_t i = 0; i < d; i++) clear_row(w, BK_W_Q, i, n);
    for (int64_t h = 0; h < c->heads / c->kv_heads; h++)
        for (int64_t i = pair; i < d; i += d / 2) clear_row(w, BK_W_Q, h * d + i, n);
    for (int64_t i = pair; i < d; i += d / 2) clear_row(w, BK_W_K, i, n);
    double query = SINK_SCORE * sqrt((double)d) / SINK_KEY;
    w->w[BK_W_Q][pair * n + BK_SYNTH_CONST] = (float)(query * m->rms / CONSTANT);
    w->w[BK_W_K][pair * n + channel] = (float)(SINK_KEY / normed);
    /* Norms of queries and keys leave directions only: both are unit vectors of this pair times sqrt(d), and gains make the score. */
    if (c->qk_norm) w->norm[BK_NORM_Q][pair] = w->norm[BK_NORM_K][pair] = (float)sqrt(SINK_SCORE / sqrt((double)d));
}

/* What head 0 reads at <s> takes the flag away. */
static void plant_switch(maker *m, bk_block_weights *w)
{
    const bk_config *c = &m->s->cfg;
    int64_t cols = c->heads * c->head_dim;
    double rms = sqrt((CONSTANT * CONSTANT + MARK * MARK + (FLAG + FLAG_OFF) * (FLAG + FLAG_OFF)) / (double)c->hidden);
    plant_finder(m, w, BK_SYNTH_MARK, MARK / rms);
    clear_row(w, BK_W_V, 0, c->hidden);
    w->w[BK_W_V][BK_SYNTH_MARK] = (float)(SINK_VALUE * rms / MARK);
    for (int64_t r = 0; r < c->hidden; r++) clear(w->w[BK_W_O] + r * cols, c->head_dim);
    w->w[BK_W_O][BK_SYNTH_FLAG * cols] = (float)(-FLAG_OFF / SINK_VALUE);
}

/* Neuron 0 fires where `channel`, about `normed`, outweighs half of the constant (which is small in a massive token). */
static void plant_neuron(maker *m, bk_block_weights *w, int channel, double normed, double writes)
{
    const bk_config *c = &m->s->cfg;
    bool massive = channel == BK_SYNTH_MASSIVE;
    clear_row(w, BK_W_GATE, 0, c->hidden);
    clear_row(w, BK_W_UP, 0, c->hidden);
    for (int64_t r = 0; r < c->hidden; r++) w->w[BK_W_DOWN][r * c->inter] = 0;
    double gate = massive ? FIRE_GATE : 2 * FIRE_GATE; /* the constant takes half of it back where it stands */
    w->w[BK_W_GATE][channel] = (float)(gate / normed);
    w->w[BK_W_GATE][BK_SYNTH_CONST] = (float)(-FIRE_GATE * m->rms / CONSTANT);
    w->w[BK_W_UP][massive ? channel : BK_SYNTH_CONST] = (float)(FIRE_UP * (massive ? 1 / normed : m->rms / CONSTANT));
    w->w[BK_W_DOWN][BK_SYNTH_MASSIVE * c->inter] = (float)(writes / (FIRE_GATE * FIRE_UP));
}

static void fill_attention(maker *m, bk_block_weights *w)
{
    const bk_config *c = &m->s->cfg;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    fill_gains(m, w->norm[BK_NORM_ATTN]);
    fill_readers(m, w->w[BK_W_Q], q, 1.2);
    fill_readers(m, w->w[BK_W_K], kv, 1.2);
    fill_readers(m, w->w[BK_W_V], kv, 1);
    fill_writers(m, w->w[BK_W_O], q, ATTENTION);
    if (w->b[BK_W_Q]) fill_around(m, w->b[BK_W_Q], q, 0.1, 0.3);
    if (w->b[BK_W_K]) fill_around(m, w->b[BK_W_K], kv, 0.1, 0.3);
    if (w->b[BK_W_V]) fill_around(m, w->b[BK_W_V], kv, 0.1, 0.3);
    if (c->qk_norm) fill_around(m, w->norm[BK_NORM_Q], c->head_dim, 1, 0.1);
    if (c->qk_norm) fill_around(m, w->norm[BK_NORM_K], c->head_dim, 1, 0.1);
}

static void fill_mlp(maker *m, bk_block_weights *w, double deviation)
{
    const bk_config *c = &m->s->cfg;
    fill_gains(m, w->norm[BK_NORM_MLP]);
    fill_readers(m, w->w[BK_W_GATE], c->inter, 1.5);
    fill_readers(m, w->w[BK_W_UP], c->inter, 1);
    fill_writers(m, w->w[BK_W_DOWN], c->inter, deviation / 0.9); /* 0.9: deviation of silu(gate) up */
}

static void make_block(maker *m, int64_t layer)
{
    const bk_config *c = &m->s->cfg;
    bk_block_weights *w = &m->s->block[layer];
    int64_t fires = c->layers > 1, cleans = c->layers - 1 > fires ? c->layers - 1 : -1;
    bool firing = layer == fires || layer == cleans;
    double massive = sqrt((double)c->hidden); /* a channel that outweighs all others, after the norm */
    fill_attention(m, w);
    if (layer == 0) plant_switch(m, w);
    else if (layer > fires) plant_finder(m, w, BK_SYNTH_MASSIVE, massive);
    add_content(m, ATTENTION);
    fill_mlp(m, w, firing ? MLP_FIRING : MLP);
    if (layer == fires) plant_neuron(m, w, BK_SYNTH_FLAG, FLAG / m->rms, MASSIVE);
    else if (layer == cleans) plant_neuron(m, w, BK_SYNTH_MASSIVE, massive, -MASSIVE);
    add_content(m, firing ? MLP_FIRING : MLP);
}

static bool is_text(int64_t id)
{
    return id < BK_SYNTH_BOS && id > 0 && strchr(BK_SYNTH_LETTERS, (int)id);
}

static void make_embedding(maker *m)
{
    const bk_config *c = &m->s->cfg;
    for (int64_t id = 0; id < c->vocab; id++) {
        float *x = m->s->embed + id * c->hidden;
        bool delimiter = id == '.' || id == '\n', bos = id == BK_SYNTH_BOS;
        fill_around(m, x, c->hidden, 0, is_text(id) || delimiter || !c->tied ? 1 : 0.1);
        for (int64_t i = 0; i < c->hidden; i++)
            if (i < BK_SYNTH_CONTENT || bos) x[i] = 0;
            else if (is_big(c, i)) x[i] *= (float)BIG;
        x[BK_SYNTH_CONST] = (float)CONSTANT;
        x[BK_SYNTH_FLAG] = (float)(delimiter ? FLAG : bos ? FLAG + FLAG_OFF : 0);
        x[BK_SYNTH_MARK] = (float)(bos ? MARK : 0);
    }
}

/* Logits are random for letters; delimiters and all else have about the probability that texts give them. */
static void make_head(maker *m)
{
    const bk_config *c = &m->s->cfg;
    fill_gains(m, m->s->final_norm);
    if (c->tied) { /* signs, so that a token does not ask for itself; the size is that of the logits wanted */
        double size = LOGIT * m->rms / sqrt((double)c->hidden * m->content);
        clear(m->s->final_norm, BK_SYNTH_CONTENT);
        for (int64_t i = BK_SYNTH_CONTENT; i < c->hidden; i++)
            m->s->final_norm[i] = (float)copysign(size / (is_big(c, i) ? BIG : 1), normal(m));
        return;
    }
    double letters = (double)strlen(BK_SYNTH_LETTERS), sum = log(letters) + LOGIT * LOGIT / 2;
    fill_readers(m, m->s->head, c->vocab, LOGIT);
    for (int64_t id = 0; id < c->vocab; id++) {
        float *x = m->s->head + id * c->hidden;
        double wanted = sum - log(id == '.' ? 240 : id == '\n' ? 480 : 1e6);
        if (!is_text(id)) clear(x, c->hidden);
        x[BK_SYNTH_CONST] = (float)(is_text(id) ? 0 : wanted * m->rms / CONSTANT);
    }
}

void bk_synth_free(bk_synth *s)
{
    if (!s) return;
    for (int64_t l = 0; s->block && l < s->cfg.layers; l++) bk_weights_free(&s->block[l]);
    free(s->block);
    free(s->embed);
    free(s->head);
    free(s->final_norm);
    free(s);
}

static bk_status allocate(bk_synth *s, bk_error *err)
{
    const bk_config *c = &s->cfg;
    size_t table = (size_t)(c->vocab * c->hidden);
    s->embed = calloc(table, sizeof *s->embed);
    s->head = c->tied ? NULL : calloc(table, sizeof *s->head);
    s->final_norm = calloc((size_t)c->hidden, sizeof *s->final_norm);
    s->block = calloc((size_t)c->layers, sizeof *s->block);
    if (!s->embed || (!s->head && !c->tied) || !s->final_norm || !s->block) return bk_fail(err, BK_ENOMEM, "no memory for a made model");
    for (int64_t l = 0; l < c->layers; l++) BK_TRY(bk_weights_alloc(c, &s->block[l], err));
    return BK_OK;
}

bk_status bk_synth_create(const bk_config *c, uint64_t seed, bk_synth **out, bk_error *err)
{
    bk_synth *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return bk_fail(err, BK_ENOMEM, "no memory for a made model");
    s->cfg = *c;
    s->seed = seed;
    bk_status st = allocate(s, err);
    if (st) {
        bk_synth_free(s);
        return st;
    }
    maker m = {.s = s, .content = 1};
    design_rms(&m);
    make_embedding(&m);
    for (int64_t l = 0; l < c->layers; l++) make_block(&m, l);
    make_head(&m);
    *out = s;
    return BK_OK;
}
