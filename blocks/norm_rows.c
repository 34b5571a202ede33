#include "blocks/norm_rows.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/rng.h"
#include "blocks/calibration.h"

static const bk_site_id norm_site[] = {BK_SITE_ATTN_IN, BK_SITE_MLP_IN};
enum { NORMS = sizeof norm_site / sizeof norm_site[0] };

/* The rows of one norm of the block that is running. */
typedef struct norm {
    float *to;       /* [per_norm, width] where they go */
    int64_t *drawn;  /* [per_norm] rising token numbers */
    int64_t taken;   /* rows that are there */
    int64_t seen;    /* tokens that went by */
} norm;

typedef struct capture {
    bk_norm_rows *out;
    int64_t tokens, per_norm; /* of all samples; rows of each norm */
    uint64_t seed;
    norm norm[BK_SITE_COUNT];
    bk_error *err;
} capture;

/* Selection sampling (Knuth, The Art of Computer Programming, vol. 2, algorithm S). */
static void draw(const capture *c, int64_t number, int64_t *drawn)
{
    int64_t chosen = 0;
    for (int64_t t = 0; chosen < c->per_norm; t++) {
        uint64_t counter = (uint64_t)(number * c->tokens + t), left = (uint64_t)(c->tokens - t);
        if ((int64_t)bk_rng_below(c->seed, BK_RNG_ROWS, counter, left) < c->per_norm - chosen) drawn[chosen++] = t;
    }
}

static bk_status check_row(const capture *c, bk_site_id site, const float *row)
{
    for (int64_t k = 0; k < c->out->width; k++)
        if (!isfinite(row[k])) return bk_fail(c->err, BK_ENUMERIC, "NaN or Inf at %s, channel %lld", bk_site_name[site], (long long)k);
    return BK_OK;
}

static void take(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    capture *c = user;
    norm *n = &c->norm[site];
    if (!n->drawn || bk_ctx_measuring(ctx)) return;
    int64_t width = c->out->width, end = n->seen + bk_rows(x);
    for (; n->taken < c->per_norm && n->drawn[n->taken] < end; n->taken++) {
        float *row = n->to + n->taken * width;
        if (bk_read(bk_ctx_backend(ctx), x, (n->drawn[n->taken] - n->seen) * width, row, width, c->err) || check_row(c, site, row)) return;
    }
    n->seen = end;
}

static bk_status visit(void *user, bk_calibration *calibration, int64_t layer, bk_error *err)
{
    capture *c = user;
    for (int i = 0; i < NORMS; i++) {
        norm *n = &c->norm[norm_site[i]];
        int64_t number = layer * NORMS + i;
        n->to = c->out->x + number * c->per_norm * c->out->width;
        n->taken = n->seen = 0;
        draw(c, number, n->drawn);
    }
    BK_TRY(bk_calibration_pass(calibration, take, c, true, err));
    return err->code;
}

static bk_status make_room(capture *c)
{
    for (int i = 0; i < NORMS; i++)
        if (!(c->norm[norm_site[i]].drawn = malloc((size_t)c->per_norm * sizeof(int64_t)))) return bk_fail(c->err, BK_ENOMEM, "no memory to draw %lld tokens; take fewer of each norm",
                           (long long)c->per_norm);
    if (!(c->out->x = malloc((size_t)(c->out->n * c->out->width) * sizeof *c->out->x)))
        return bk_fail(c->err, BK_ENOMEM, "no memory for %lld rows of activations; take fewer of each norm", (long long)c->out->n);
    return BK_OK;
}

static bk_status check(const bk_source *src, int64_t per_norm, bk_error *err)
{
    const bk_rotation *r = bk_source_rotation(src);
    if (!r->on[BK_TRANSFORM_FUSE] || r->on[BK_TRANSFORM_R1])
        return bk_fail(err, BK_EINVAL, "a rotation is fitted to a model with fused norms and without R1");
    return per_norm < 1 ? bk_fail(err, BK_EINVAL, "no token to fit a rotation to") : BK_OK;
}

bk_status bk_norm_rows_capture(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens,
                               const bk_prefix *prefix, int64_t per_norm, uint64_t seed, const bk_watch *watch, bk_norm_rows *out,
                               bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    int64_t all = samples * tokens;
    capture c = {.out = out, .tokens = all, .per_norm = per_norm < all ? per_norm : all, .seed = seed, .err = err};
    bk_calibration calibration = {0};
    *out = (bk_norm_rows){.n = cfg->layers * NORMS * c.per_norm, .width = cfg->hidden};
    bk_status st = check(src, c.per_norm, err);
    if (!st) st = make_room(&c);
    if (!st) st = bk_calibration_open(&calibration, be, src, ids, samples, tokens, prefix, NULL, err);
    if (!st) st = bk_calibration_run(&calibration, visit, &c, watch, err);
    bk_calibration_close(&calibration);
    for (int i = 0; i < NORMS; i++) free(c.norm[norm_site[i]].drawn);
    return st;
}

void bk_norm_rows_free(bk_norm_rows *r)
{
    free(r->x);
    *r = (bk_norm_rows){0};
}
