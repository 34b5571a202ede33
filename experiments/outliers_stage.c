/* Measures token-wise outliers, and the error that they make, at one stage. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/outliers.h"
#include "experiments/verbs.h"

static const struct {
    bk_site_id site;
    bool upper;
} kinds[BK_OUTLIER_KINDS] = {[BK_UPPER_DOWN_RAW] = {BK_SITE_DOWN_RAW, true},
                             [BK_UPPER_BLOCK_OUT] = {BK_SITE_BLOCK_OUT, true},
                             [BK_LOWER_QUERY] = {BK_SITE_QUERY, false},
                             [BK_LOWER_KEY] = {BK_SITE_KEY, false}};

const char *const bk_level_name[BK_LEVELS] = {"top1", "top2", "top3", "median", "min1"};

typedef struct measuring {
    bk_outlier_stage *s;
    bk_runner *r;
    const bk_samples *samples;
    const bk_outlier_limits *limits;
    bk_maxima maxima;
    float *scratch; /* [tokens] */
    bk_block *block;
    bk_stream *h;
    bk_ctx *ctx;
} measuring;

static double ratio(double a, double b)
{
    return a == b ? 1 : a / b; /* 0 / 0 is no outlier */
}

/* Levels of one sequence at one site, from its sorted maxima. */
static void sequence_levels(const float *sorted, int64_t n, double median, double level[BK_LEVELS])
{
    for (int64_t k = 0; k < 3; k++) level[k] = (double)sorted[n - 1 - k > 0 ? n - 1 - k : 0];
    level[3] = median;
    level[4] = (double)sorted[0];
}

static void count_outliers(bk_outlier_stage *s, bk_outlier_kind kind, int64_t first, const float *maxima, double median,
                           const bk_outlier_limits *limits)
{
    for (int64_t t = 0; t < s->tokens; t++) {
        double m = (double)maxima[t];
        bool is = kinds[kind].upper ? ratio(m, median) > limits->upper : ratio(median, m) > limits->lower;
        s->blocks[kind][first + t] += is;
    }
}

static bk_status look_at_site(measuring *m, int64_t layer, bk_site_id site, bk_error *err)
{
    bk_outlier_stage *s = m->s;
    double sum_top = 0, sum_low = 0, *mean = s->level + (layer * BK_SITE_COUNT + site) * BK_LEVELS;
    for (int64_t i = 0; i < s->samples; i++) {
        const float *maxima = m->maxima.at[site] + i * s->tokens;
        double level[BK_LEVELS], median = (double)bk_lower_median(maxima, s->tokens, m->scratch);
        sequence_levels(m->scratch, s->tokens, median, level);
        sum_top += ratio(level[0], median);
        sum_low += ratio(median, level[4]);
        for (int k = 0; k < BK_LEVELS; k++) mean[k] += level[k] / (double)s->samples;
        for (int k = 0; k < BK_OUTLIER_KINDS; k++)
            if (kinds[k].site == site) count_outliers(s, k, i * s->tokens, maxima, median, m->limits);
        if (site == BK_SITE_DOWN_RAW)
            BK_TRY(bk_outliers_add(&s->upper, layer, i, maxima, m->samples->ids + i * s->tokens, s->tokens,
                                   m->limits->upper, m->scratch, err));
    }
    s->top[layer * BK_SITE_COUNT + site] = sum_top / (double)s->samples;
    s->low[layer * BK_SITE_COUNT + site] = sum_low / (double)s->samples;
    return BK_OK;
}

static bk_status allocate(measuring *m, bk_error *err)
{
    bk_outlier_stage *s = m->s;
    size_t cells = (size_t)s->layers * BK_SITE_COUNT, tokens = (size_t)(s->samples * s->tokens);
    bool room = (s->top = calloc(cells, sizeof *s->top)) && (s->low = calloc(cells, sizeof *s->low)) &&
                (s->level = calloc(cells * BK_LEVELS, sizeof *s->level)) &&
                (s->token_error = calloc(tokens, sizeof *s->token_error)) &&
                (m->scratch = malloc((size_t)s->tokens * sizeof *m->scratch));
    for (int k = 0; k < BK_OUTLIER_KINDS; k++) room = (s->blocks[k] = calloc(tokens, sizeof **s->blocks)) && room;
    return room ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the ratios of %zu tokens", tokens);
}

/* A block in full precision, memory for its passes, and the embeddings. */
static bk_status prepare(measuring *m, bk_error *err)
{
    int64_t n = m->samples->n, t = m->samples->seqlen;
    BK_TRY(bk_runner_block(m->r, t, &m->block, err));
    BK_TRY(bk_stream_create(&m->h, n, t, m->block->cfg.hidden, err));
    BK_TRY(bk_embed_stream(m->r->src, m->samples->ids, m->h, err));
    return (m->ctx = bk_ctx_new(m->r->be, err)) ? BK_OK : BK_ENOMEM;
}

static bk_status commit_pass(measuring *m, bk_block *b)
{
    bk_ctx_measure(m->ctx);
    BK_TRY(bk_block_pass_measure(m->ctx, b, m->samples->n, m->samples->seqlen));
    return bk_ctx_commit(m->ctx);
}

static bk_status measure_blocks(measuring *m, const bk_watch *watch, bk_error *err)
{
    m->block->tap = bk_maxima_tap;
    m->block->tap_user = &m->maxima;
    BK_TRY(commit_pass(m, m->block));
    for (int64_t l = 0; l < m->s->layers; l++) {
        if (watch) BK_TRY(watch->step(watch->user, l, m->s->layers, err));
        BK_TRY(bk_runner_load(m->r, l, m->block, err));
        bk_maxima_begin_block(&m->maxima);
        if (bk_block_pass(m->ctx, m->block, m->h, m->h, err) || err->code)
            return bk_error_prefix(err, "block %lld", (long long)l);
        for (int i = 0; i < BK_SITE_COUNT; i++) BK_TRY(look_at_site(m, l, i, err));
    }
    return watch ? watch->step(watch->user, m->s->layers, m->s->layers, err) : BK_OK;
}

static void release(measuring *m)
{
    bk_maxima_free(&m->maxima);
    free(m->scratch);
    bk_block_free(m->block);
    bk_stream_free(m->h);
    bk_ctx_free(m->ctx);
}

bk_status bk_outlier_stage_measure(bk_outlier_stage *s, const char *name, bk_runner *r, const bk_samples *samples,
                                   const bk_outlier_limits *limits, const bk_watch *watch, bk_error *err)
{
    measuring m = {.s = s, .r = r, .samples = samples, .limits = limits};
    int64_t layers = bk_source_config(r->src)->layers;
    *s = (bk_outlier_stage){.name = name,
                            .layers = layers,
                            .samples = samples->n,
                            .tokens = samples->seqlen,
                            .upper = {.sequences = samples->n, .blocks = layers}};
    bk_status st = allocate(&m, err);
    if (!st) st = bk_maxima_create(&m.maxima, (1u << BK_SITE_COUNT) - 1, s->samples, s->tokens, err);
    if (!st) st = prepare(&m, err);
    if (!st) st = measure_blocks(&m, watch, err);
    release(&m);
    return st;
}

/* --- the error of a block --- */

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Adds one sequence: per-token squared errors and the share of the worst ones. token_error, scratch [tokens] */
static void add_sequence(bk_block_error *e, double *power, const float *want, const float *got, int64_t tokens,
                         int64_t width, double *token_error, double *scratch)
{
    double sum = 0, worst = 0;
    for (int64_t t = 0; t < tokens; t++) {
        scratch[t] = 0;
        for (int64_t c = 0; c < width; c++) {
            double y = (double)want[t * width + c], d = (double)got[t * width + c] - y;
            scratch[t] += d * d;
            *power += y * y;
        }
        token_error[t] = scratch[t] / (double)width;
        sum += scratch[t];
    }
    e->mse += sum;
    qsort(scratch, (size_t)tokens, sizeof *scratch, falling);
    for (int64_t k = 0; k < BK_ERROR_TOP; k++) {
        worst += k < tokens ? scratch[k] : 0;
        e->share[k] += sum > 0 ? worst / sum : 0;
    }
}

static bk_status compare(bk_outlier_stage *s, const bk_stream *want, const bk_stream *got, bk_error *err)
{
    bk_block_error *e = &s->error;
    int64_t n = bk_stream_samples(want), t = bk_stream_tokens(want), c = bk_stream_width(want);
    float *host = malloc(2 * (size_t)(t * c) * sizeof *host);
    double *scratch = malloc((size_t)t * sizeof *scratch), power = 0;
    bk_status st = host && scratch ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory to compare outputs");
    *e = (bk_block_error){0};
    for (int64_t i = 0; !st && i < n; i++) {
        st = bk_stream_read(want, i, 1, host, err);
        if (!st) st = bk_stream_read(got, i, 1, host + t * c, err);
        if (!st) add_sequence(e, &power, host, host + t * c, t, c, s->token_error + i * t, scratch);
    }
    free(host);
    free(scratch);
    e->relative = ratio(e->mse, power);
    e->mse /= (double)(n * t * c);
    for (int k = 0; k < BK_ERROR_TOP; k++) e->share[k] /= (double)n;
    return st;
}

/* The block at `layer`, quantized, over the same inputs. */
static bk_status quantized_output(measuring *m, int64_t layer, const bk_block_quant *quant, bk_block **q, bk_stream *out,
                                  bk_error *err)
{
    bk_block_options opt = m->r->block;
    opt.quant = quant;
    opt.tokens = m->samples->seqlen;
    BK_TRY(bk_block_create(q, m->r->be, &m->block->cfg, &opt, err));
    BK_TRY(bk_runner_load(m->r, layer, *q, err));
    BK_TRY(bk_block_init(m->ctx, *q, m->h, &(bk_init_options){.search = false}, err));
    BK_TRY(commit_pass(m, *q));
    return bk_block_pass(m->ctx, *q, m->h, out, err);
}

static bk_status block_error(measuring *m, int64_t layer, const bk_block_quant *quant, bk_block **q, bk_stream *out[2],
                             bk_error *err)
{
    BK_TRY(prepare(m, err));
    BK_TRY(commit_pass(m, m->block));
    for (int i = 0; i < 2; i++)
        BK_TRY(bk_stream_create(&out[i], m->samples->n, m->samples->seqlen, m->block->cfg.hidden, err));
    for (int64_t l = 0; l < layer; l++) {
        BK_TRY(bk_check_cancelled(err));
        BK_TRY(bk_runner_load(m->r, l, m->block, err));
        BK_TRY(bk_block_pass(m->ctx, m->block, m->h, m->h, err));
    }
    BK_TRY(bk_runner_load(m->r, layer, m->block, err));
    BK_TRY(bk_block_pass(m->ctx, m->block, m->h, out[0], err));
    BK_TRY(quantized_output(m, layer, quant, q, out[1], err));
    return compare(m->s, out[0], out[1], err);
}

bk_status bk_outlier_stage_error(bk_outlier_stage *s, bk_runner *r, const bk_samples *samples, int64_t layer,
                                 const bk_block_quant *quant, bk_error *err)
{
    measuring m = {.s = s, .r = r, .samples = samples};
    bk_block *q = NULL;
    bk_stream *out[2] = {NULL, NULL};
    bk_status st = block_error(&m, layer, quant, &q, out, err);
    bk_block_free(q);
    bk_stream_free(out[0]);
    bk_stream_free(out[1]);
    release(&m);
    return st ? bk_error_prefix(err, "error of block %lld", (long long)layer) : BK_OK;
}

/* --- tokens --- */

void bk_outlier_stage_free(bk_outlier_stage *s)
{
    free(s->top);
    free(s->low);
    free(s->level);
    free(s->token_error);
    for (int k = 0; k < BK_OUTLIER_KINDS; k++) free(s->blocks[k]);
    bk_outliers_free(&s->upper);
    *s = (bk_outlier_stage){0};
}

bool bk_outlier_token(const bk_outlier_stage *s, int64_t token, unsigned mask)
{
    for (int k = 0; k < BK_OUTLIER_KINDS; k++)
        if ((mask >> k & 1) && s->blocks[k][token]) return true;
    return false;
}

int64_t bk_outlier_count(const bk_outlier_stage *s, unsigned mask)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->samples * s->tokens; i++) n += bk_outlier_token(s, i, mask);
    return n;
}

int64_t bk_outlier_shared(const bk_outlier_stage *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->samples * s->tokens; i++)
        n += bk_outlier_token(s, i, BK_UPPER_KINDS) && bk_outlier_token(s, i, BK_LOWER_KINDS);
    return n;
}

static int by_id(const void *a, const void *b)
{
    const bk_outlier_content *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_count(const void *a, const void *b)
{
    const bk_outlier_content *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : by_id(a, b);
}

bk_status bk_outlier_contents(const bk_outlier_stage *s, const bk_samples *samples, unsigned mask, bk_outlier_content **out,
                              int64_t *n, bk_error *err)
{
    int64_t total = bk_outlier_count(s, mask), found = 0;
    bk_outlier_content *c = malloc((size_t)(total + 1) * sizeof *c);
    if (!c) return bk_fail(err, BK_ENOMEM, "no memory to list %lld outlier tokens", (long long)total);
    for (int64_t i = 0; i < s->samples * s->tokens; i++)
        if (bk_outlier_token(s, i, mask)) c[found++] = (bk_outlier_content){samples->ids[i], 1, i % s->tokens == 0};
    qsort(c, (size_t)found, sizeof *c, by_id);
    *n = 0;
    for (int64_t i = 0; i < found; i++) {
        if (*n && c[*n - 1].id == c[i].id) {
            c[*n - 1].count++;
            c[*n - 1].at_start += c[i].at_start;
        } else
            c[(*n)++] = c[i];
    }
    qsort(c, (size_t)*n, sizeof *c, by_count);
    *out = c;
    return BK_OK;
}
