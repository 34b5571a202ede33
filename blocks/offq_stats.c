/* OffQ's statistics: one pass over the model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"
#include "blocks/calibration.h"
#include "blocks/offq.h"
#include "quant/offset.h"

/* The top token of each sequence. */
typedef struct picks {
    float *row;     /* [sequences, hidden] */
    float *largest; /* [sequences]: its |x|, negative as long as there is none */
} picks;

typedef struct pass {
    const bk_offq_options *o;
    bk_offq_stats *s;
    bk_calibration *c;
    int64_t layer, tokens;
    int64_t seen[BK_SITE_COUNT]; /* sequences of the present layer */
    picks pick[2];               /* of attention and of the MLP; the first alone where a sequence has one token in all */
    float *x;                    /* [batch, tokens, width]: values of a site */
    bk_tensor *rows, *top, *all; /* [sequences, hidden], real; sums [hidden, hidden] in f64 */
} pass;

/* ---- one site of one batch ---- */

static bk_status check_finite(const pass *p, bk_site_id site, int64_t rows, int64_t width, bk_error *err)
{
    for (int64_t i = 0; i < rows * width; i++)
        if (!isfinite(p->x[i]))
            return bk_fail(err, BK_ENUMERIC,
                           "OffQ: site %s, sequence %lld, token %lld, channel %lld: the value is %g", bk_site_name[site],
                           (long long)(p->seen[site] + i / width / p->tokens), (long long)(i / width % p->tokens),
                           (long long)(i % width), (double)p->x[i]);
    return BK_OK;
}

static void pick_tokens(pass *p, bk_site_id site, int64_t sequences)
{
    int64_t width = p->s->hidden;
    picks *k = &p->pick[p->o->scope == BK_OFFQ_TOKEN_PER_SITE && site == BK_SITE_MLP_IN];
    for (int64_t i = 0; i < sequences; i++) {
        float largest, *x = p->x + i * p->tokens * width;
        int64_t top = bk_top_token(x, p->tokens, width, width, &largest), sequence = p->seen[site] + i;
        if (largest <= k->largest[sequence]) continue;
        k->largest[sequence] = largest;
        memcpy(k->row + sequence * width, x + top * width, (size_t)width * sizeof *x);
    }
}

/* Adds k^T k of one head's top key, and how spiky it is. */
static void add_key(pass *p, int64_t h, const float *x)
{
    int64_t heads = p->s->kv_heads, d = p->s->head_dim;
    float largest;
    const float *k = x + bk_top_token(x, p->tokens, heads * d, d, &largest) * heads * d;
    double *sum = p->s->key + (p->layer * heads + h) * d * d, square = 0;
    for (int64_t r = 0; r < d; r++) {
        square += (double)k[r] * (double)k[r];
        for (int64_t c = 0; c < d; c++) sum[r * d + c] += (double)k[r] * (double)k[c];
    }
    if (square > 0) p->s->spikiness[p->layer * heads + h] += (double)largest * sqrt((double)d / square);
}

static void add_keys(pass *p, int64_t sequences)
{
    int64_t heads = p->s->kv_heads, d = p->s->head_dim;
    for (int64_t i = 0; i < sequences; i++)
        for (int64_t h = 0; h < heads; h++) add_key(p, h, p->x + i * p->tokens * heads * d + h * d);
}

static void add_down(pass *p, int64_t rows)
{
    int64_t n = p->s->inter;
    float *most = p->s->down + p->layer * n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) most[i] = fmaxf(most[i], fabsf(p->x[r * n + i]));
}

/* sum += x^T x */
static bk_status add_covariance(bk_ctx *ctx, bk_tensor *sum, const bk_tensor *x)
{
    return bk_k_gram(
        ctx, &(bk_gram_args){.rows = bk_rows(x), .cols = bk_last_dim(x), .alpha = 1, .x = x->data, .h = sum->data});
}

/* Inputs of attention and MLP, as far as they count. */
static bool is_stream(const pass *p, bk_site_id site)
{
    return (site == BK_SITE_ATTN_IN && p->o->sites != BK_OFFQ_MLP) || (site == BK_SITE_MLP_IN && p->o->sites != BK_OFFQ_ATTENTION);
}

static void tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    pass *p = user;
    bool stream = is_stream(p, site);
    bk_error *err = bk_ctx_error(ctx);
    if (!stream && site != BK_SITE_KEY && site != BK_SITE_DOWN_RAW) return;
    if (stream && p->all && add_covariance(ctx, p->all, x)) return;
    if (bk_ctx_measuring(ctx) || bk_read(bk_ctx_backend(ctx), x, 0, p->x, bk_numel(x), err)) return;
    if (check_finite(p, site, bk_rows(x), bk_last_dim(x), err)) return;
    if (stream) pick_tokens(p, site, x->dim[0]);
    if (site == BK_SITE_KEY) add_keys(p, x->dim[0]);
    if (site == BK_SITE_DOWN_RAW) add_down(p, bk_rows(x));
    p->seen[site] += x->dim[0];
}

/* ---- the pass ---- */

/* Adds the tokens that were picked, and forgets them. */
static bk_status use_picks(pass *p, picks *k, bk_error *err)
{
    bk_ctx *ctx = p->c->ctx;
    BK_TRY(bk_write(bk_ctx_backend(ctx), p->rows, 0, k->row, bk_numel(p->rows), err));
    bk_ctx_measure(ctx);
    BK_TRY(add_covariance(ctx, p->top, p->rows));
    BK_TRY(bk_ctx_commit(ctx));
    BK_TRY(add_covariance(ctx, p->top, p->rows));
    for (int64_t i = 0; i < p->s->sequences; i++) k->largest[i] = -1;
    return BK_OK;
}

/* The gains of the norms go into the linears, so that what these read is the norms' output itself. */
static bk_status measure_block(void *user, bk_calibration *c, int64_t layer, bk_error *err)
{
    pass *p = user;
    bk_weights_view view = bk_weights_view_of(&c->weights);
    memset(p->seen, 0, sizeof p->seen);
    p->layer = layer;
    BK_TRY(bk_transforms[BK_TRANSFORM_FUSE].block(bk_source_rotation(c->src), layer, &view, err));
    BK_TRY(bk_block_load(c->b, &c->weights, err));
    BK_TRY(bk_calibration_pass(c, tap, p, true, err));
    if (p->o->scope == BK_OFFQ_TOKEN_PER_SEQUENCE) return BK_OK;
    if (is_stream(p, BK_SITE_ATTN_IN)) BK_TRY(use_picks(p, &p->pick[0], err));
    if (is_stream(p, BK_SITE_MLP_IN)) BK_TRY(use_picks(p, &p->pick[1], err));
    return BK_OK;
}

static bk_status measure_blocks(pass *p, const bk_watch *watch, bk_error *err)
{
    BK_TRY(bk_calibration_run(p->c, measure_block, p, watch, err));
    return p->o->scope == BK_OFFQ_TOKEN_PER_SEQUENCE ? use_picks(p, &p->pick[0], err) : BK_OK;
}

/* ---- before and after ---- */

bool bk_offq_wants_all(const bk_offq_options *o)
{
    return o->concentration || o->basis == BK_OFFQ_ALL_TOKENS || o->tail > 0 || o->score == BK_OFFQ_VARIANCE;
}

static bk_status make_stats(bk_offq_stats *s, bool all, bk_error *err)
{
    int64_t square = s->hidden * s->hidden, heads = s->layers * s->kv_heads;
    s->top = calloc((size_t)square, sizeof *s->top);
    s->all = all ? calloc((size_t)square, sizeof *s->all) : NULL;
    s->key = calloc((size_t)(heads * s->head_dim * s->head_dim), sizeof *s->key);
    s->spikiness = calloc((size_t)heads, sizeof *s->spikiness);
    s->down = calloc((size_t)(s->layers * s->inter), sizeof *s->down);
    bool fits = s->top && (s->all || !all) && s->key && s->spikiness && s->down;
    return fits ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the statistics of OffQ");
}

static bk_status make_picks(pass *p, bk_error *err)
{
    const bk_offq_stats *s = p->s;
    for (int i = 0; i < 2; i++) {
        p->pick[i].row = calloc((size_t)(s->sequences * s->hidden), sizeof(float));
        p->pick[i].largest = malloc((size_t)s->sequences * sizeof(float));
        if (!p->pick[i].row || !p->pick[i].largest)
            return bk_fail(err, BK_ENOMEM, "no memory for one token of each sequence");
        for (int64_t k = 0; k < s->sequences; k++) p->pick[i].largest[k] = -1;
    }
    int64_t width = s->kv_heads * s->head_dim;
    width = width > s->hidden ? width : s->hidden;
    width = width > s->inter ? width : s->inter;
    p->x = malloc((size_t)(bk_pass_batch(s->sequences, p->tokens) * p->tokens * width) * sizeof *p->x);
    return p->x ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the values of a site");
}

static bk_status make_sums(pass *p, const bk_backend *be, bk_error *err)
{
    const bk_offq_stats *s = p->s;
    BK_TRY(bk_tensor_create(be, be->dtype, 2, (int64_t[]){s->sequences, s->hidden}, "top tokens", &p->rows, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 2, (int64_t[]){s->hidden, s->hidden}, "covariance", &p->top, err));
    return s->all ? bk_tensor_create(be, BK_F64, 2, (int64_t[]){s->hidden, s->hidden}, "covariance", &p->all, err) : BK_OK;
}

static bk_status check_source(const bk_source *src, bk_error *err)
{
    static const bk_transform_id turns[] = {BK_TRANSFORM_R1, BK_TRANSFORM_R3, BK_TRANSFORM_DOWN_ORDER,
                                            BK_TRANSFORM_DOWN_SIGNS};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
        if (bk_source_rotation(src)->on[turns[i]])
            return bk_fail(err, BK_EINVAL,
                           "OffQ is fitted to a model as it is, but this one goes through the transform %s",
                           bk_transforms[turns[i]].name);
    return BK_OK;
}

static void scale(double *x, int64_t n, double factor)
{
    for (int64_t i = 0; x && i < n; i++) x[i] *= factor;
}

/* Sums become means. */
static bk_status finish(pass *p, const bk_backend *be, bk_error *err)
{
    bk_offq_stats *s = p->s;
    int64_t square = s->hidden * s->hidden, heads = s->layers * s->kv_heads;
    double sequences = (double)s->sequences, sites = (p->o->sites == BK_OFFQ_BOTH_SITES ? 2 : 1) * (double)s->layers;
    BK_TRY(bk_read_f64(be, p->top, 0, s->top, square, err));
    if (p->all) BK_TRY(bk_read_f64(be, p->all, 0, s->all, square, err));
    scale(s->top, square, 1 / (sequences * (p->o->scope == BK_OFFQ_TOKEN_PER_SITE ? sites : 1)));
    scale(s->all, square, 1 / (sequences * sites * (double)p->tokens));
    scale(s->key, heads * s->head_dim * s->head_dim, 1 / sequences);
    scale(s->spikiness, heads, 1 / sequences);
    return BK_OK;
}

static bk_status measure(pass *p, const bk_backend *be, const bk_watch *watch, bk_error *err)
{
    BK_TRY(make_stats(p->s, bk_offq_wants_all(p->o), err));
    BK_TRY(make_picks(p, err));
    BK_TRY(make_sums(p, be, err));
    BK_TRY(measure_blocks(p, watch, err));
    return finish(p, be, err);
}

bk_status bk_offq_measure(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t sequences,
                          int64_t tokens, const bk_prefix *prefix, const bk_offq_options *o, const bk_watch *watch,
                          bk_offq_stats *out, bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    *out = (bk_offq_stats){.layers = c->layers, .hidden = c->hidden, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .inter = c->inter,
                           .sequences = sequences};
    bk_calibration calibration = {0};
    pass p = {.o = o, .s = out, .c = &calibration, .tokens = tokens};
    bk_status st = check_source(src, err);
    if (!st) st = bk_calibration_open(&calibration, be, src, ids, sequences, tokens, prefix, NULL, err);
    if (!st) st = measure(&p, be, watch, err);
    for (int i = 0; i < 2; i++) free(p.pick[i].row), free(p.pick[i].largest);
    free(p.x);
    bk_tensor_destroy(be, p.rows);
    bk_tensor_destroy(be, p.top);
    bk_tensor_destroy(be, p.all);
    bk_calibration_close(&calibration);
    if (st) bk_offq_stats_free(out);
    return st;
}

void bk_offq_stats_free(bk_offq_stats *s)
{
    free(s->top);
    free(s->all);
    free(s->key);
    free(s->spikiness);
    free(s->down);
    *s = (bk_offq_stats){0};
}
