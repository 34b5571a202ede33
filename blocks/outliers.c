#include "blocks/outliers.h"

#include <stdlib.h>
#include <string.h>

#include "blocks/calibration.h"

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float bk_lower_median(const float *v, int64_t n, float *scratch)
{
    memcpy(scratch, v, (size_t)n * sizeof *v);
    qsort(scratch, (size_t)n, sizeof *scratch, by_value);
    return scratch[(n - 1) / 2];
}

static bk_status push(bk_outliers *o, const bk_outlier *x, bk_error *err)
{
    if (o->n == o->room) {
        int64_t room = o->room ? 2 * o->room : 256;
        bk_outlier *at = realloc(o->at, (size_t)room * sizeof *at);
        if (!at) return bk_fail(err, BK_ENOMEM, "no memory for %lld outliers", (long long)room);
        o->at = at;
        o->room = room;
    }
    o->at[o->n++] = *x;
    return BK_OK;
}

bk_status bk_outliers_add(bk_outliers *o, int64_t block, int64_t sequence, const float *maxima, const int32_t *ids, int64_t tokens, double eta,
                          float *scratch, bk_error *err)
{
    double median = (double)bk_lower_median(maxima, tokens, scratch);
    for (int64_t t = 0; t < tokens; t++)
        if ((double)maxima[t] / median > eta)
            BK_TRY(push(o, &(bk_outlier){sequence, block, t, ids[t], maxima[t]}, err));
    return BK_OK;
}

void bk_outliers_free(bk_outliers *o)
{
    free(o->at);
    *o = (bk_outliers){0};
}

/* The published code visits sequences, then blocks, then tokens by falling magnitude. */
static int by_visit(const void *a, const void *b)
{
    const bk_outlier *x = a, *y = b;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    if (x->magnitude != y->magnitude) return x->magnitude > y->magnitude ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

static bk_status largest_mean_count(const bk_outliers *o, int64_t *out, bk_error *err)
{
    int64_t *count = calloc((size_t)(o->blocks ? o->blocks : 1), sizeof *count), most = 0;
    if (!count) return bk_fail(err, BK_ENOMEM, "no memory to count outliers");
    for (int64_t i = 0; i < o->n; i++) count[o->at[i].block]++;
    for (int64_t b = 0; b < o->blocks; b++) most = count[b] > most ? count[b] : most;
    free(count);
    *out = (most + o->sequences - 1) / o->sequences;
    return BK_OK;
}

/* An id, how often it occurs, and where first. */
typedef struct ranked {
    int32_t id;
    int64_t first, count;
} ranked;

static int by_id(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static int by_count(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

bk_status bk_ids_rank(const int32_t *ids, int64_t n, bk_ranking *out, bk_error *err)
{
    size_t room = (size_t)n + 1;
    ranked *r = malloc(room * sizeof *r);
    *out = (bk_ranking){.ids = malloc(room * sizeof *out->ids), .counts = malloc(room * sizeof *out->counts)};
    bool fits = r && out->ids && out->counts;
    for (int64_t i = 0; fits && i < n; i++) r[i] = (ranked){ids[i], i, 1};
    if (fits && n) qsort(r, (size_t)n, sizeof *r, by_id);
    for (int64_t i = 0; fits && i < n; i++) {
        if (out->n && r[out->n - 1].id == r[i].id) r[out->n - 1].count++;
        else r[out->n++] = r[i];
    }
    if (out->n) qsort(r, (size_t)out->n, sizeof *r, by_count);
    for (int64_t i = 0; i < out->n; i++) out->ids[i] = r[i].id, out->counts[i] = r[i].count;
    free(r);
    return fits ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory to rank %lld tokens", (long long)n);
}

void bk_ranking_free(bk_ranking *r)
{
    free(r->ids);
    free(r->counts);
    *r = (bk_ranking){0};
}

/* Ids of sorted outliers, position 0 left out. */
static bk_status rank_outliers(const bk_outliers *o, bk_ranking *out, bk_error *err)
{
    int64_t visits = 0;
    int32_t *ids = malloc(((size_t)o->n + 1) * sizeof *ids);
    if (!ids) return bk_fail(err, BK_ENOMEM, "no memory to rank outliers");
    for (int64_t i = 0; i < o->n; i++)
        if (o->at[i].position != 0) ids[visits++] = o->at[i].id;
    bk_status st = bk_ids_rank(ids, visits, out, err);
    free(ids);
    return st;
}

bk_status bk_prefix_choose(bk_outliers *o, int64_t bos, double rare_fraction, bk_prefix_choice *c, bk_error *err)
{
    *c = (bk_prefix_choice){0};
    if (o->sequences < 1) return bk_fail(err, BK_EINVAL, "no sequence was looked at for outliers");
    if (o->n) qsort(o->at, (size_t)o->n, sizeof *o->at, by_visit);
    BK_TRY(largest_mean_count(o, &c->o_raw, err));
    BK_TRY(rank_outliers(o, &c->ranked, err));
    c->o = c->o_raw;
    int64_t usable = c->ranked.n;
    if (c->ranked.n == 1 && (double)c->ranked.counts[0] < rare_fraction * (double)o->sequences) {
        c->dropped_rare = true;
        c->o--;
        usable = 0;
    }
    int64_t n = c->o < usable ? c->o : usable;
    if (n > BK_PREFIX_MAX - 1) return bk_fail(err, BK_EINVAL, "%lld outlier tokens per sequence; raise prefix.threshold", (long long)n);
    for (int64_t i = 0; i < n; i++) c->ids[c->n++] = c->ranked.ids[i];
    if (bos >= 0) c->ids[c->n++] = (int32_t)bos;
    return BK_OK;
}

void bk_prefix_choice_free(bk_prefix_choice *c)
{
    bk_ranking_free(&c->ranked);
    *c = (bk_prefix_choice){0};
}

/* --- maxima of tokens --- */

bk_status bk_maxima_create(bk_maxima *m, unsigned sites, int64_t samples, int64_t tokens, bk_error *err)
{
    *m = (bk_maxima){.samples = samples, .tokens = tokens, .err = err};
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if ((sites >> i & 1) && !(m->at[i] = malloc((size_t)(samples * tokens) * sizeof(float))))
            return bk_fail(err, BK_ENOMEM, "no memory for the maxima of %lld tokens", (long long)(samples * tokens));
    return BK_OK;
}

void bk_maxima_free(bk_maxima *m)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) free(m->at[i]);
    *m = (bk_maxima){0};
}

void bk_maxima_begin_block(bk_maxima *m)
{
    memset(m->seen, 0, sizeof m->seen);
}

void bk_maxima_tap(bk_ctx *ctx, void *maxima, bk_site_id site, const bk_tensor *x)
{
    bk_maxima *m = maxima;
    if (!m->at[site]) return;
    int64_t rows = bk_rows(x);
    bk_tensor *out = bk_real_new(ctx, 1, &rows, "maxima");
    if (!out) return;
    if (bk_k_absmax(ctx, &(bk_absmax_args){.rows = rows, .cols = bk_last_dim(x), .x = x->data, .out = out->data})) return;
    if (bk_ctx_measuring(ctx)) return;
    if (m->seen[site] + rows > m->samples * m->tokens) {
        bk_fail(m->err, BK_EINVAL, "more tokens at %s than announced", bk_site_name[site]);
        return;
    }
    if (bk_read(bk_ctx_backend(ctx), out, 0, m->at[site] + m->seen[site], rows, m->err)) return;
    m->seen[site] += rows;
}

/* --- detection --- */

typedef struct detection {
    const int32_t *ids;
    double eta;
    bk_maxima maxima;
    float *scratch;
    bk_outliers *out;
} detection;

static bk_status find_outliers(detection *d, bk_calibration *c, int64_t layer, bk_error *err)
{
    int64_t t = d->maxima.tokens;
    bk_maxima_begin_block(&d->maxima);
    BK_TRY(bk_calibration_pass(c, bk_maxima_tap, &d->maxima, true, err));
    BK_TRY(err->code);
    for (int64_t i = 0; i < d->maxima.samples; i++)
        BK_TRY(bk_outliers_add(d->out, layer, i, d->maxima.at[BK_SITE_DOWN_RAW] + i * t, d->ids + i * t, t, d->eta, d->scratch, err));
    return BK_OK;
}

static bk_status detect_block(void *user, bk_calibration *c, int64_t layer, bk_error *err)
{
    return find_outliers(user, c, layer, err) ? bk_error_prefix(err, "detection") : BK_OK;
}

bk_status bk_outliers_detect(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, double eta,
                             const bk_watch *watch, bk_outliers *out, bk_error *err)
{
    *out = (bk_outliers){.sequences = samples, .blocks = bk_source_config(src)->layers};
    detection d = {.ids = ids, .eta = eta, .out = out};
    bk_calibration c = {0};
    bk_status st = bk_maxima_create(&d.maxima, 1u << BK_SITE_DOWN_RAW, samples, tokens, err);
    if (!st && !(d.scratch = malloc((size_t)tokens * sizeof *d.scratch))) st = bk_fail(err, BK_ENOMEM, "no memory to detect outliers");
    if (!st) st = bk_calibration_open(&c, be, src, ids, samples, tokens, NULL, NULL, err);
    if (!st) st = bk_calibration_run(&c, detect_block, &d, watch, err);
    bk_calibration_close(&c);
    bk_maxima_free(&d.maxima);
    free(d.scratch);
    return st;
}
