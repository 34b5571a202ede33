#include "blocks/channels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bk_status bk_channels_create(bk_channels *s, const bk_config *c, unsigned sites, bk_error *err)
{
    int64_t most = 1;
    bool room = true;
    *s = (bk_channels){.cfg = c};
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!(sites >> i & 1)) continue;
        int64_t width = bk_site_width(c, i);
        s->max[i] = calloc((size_t)width, sizeof *s->max[i]);
        s->sum[i] = calloc((size_t)width, sizeof *s->sum[i]);
        room = room && s->max[i] && s->sum[i];
        most = width > most ? width : most;
    }
    s->row = malloc((size_t)most * sizeof *s->row);
    return room && s->row ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the statistics of channels");
}

void bk_channels_free(bk_channels *s)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        free(s->max[i]);
        free(s->sum[i]);
    }
    free(s->row);
    *s = (bk_channels){0};
}

void bk_channels_clear(bk_channels *s)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        size_t width = (size_t)bk_site_width(s->cfg, i);
        s->tokens[i] = 0;
        if (!s->max[i]) continue;
        memset(s->max[i], 0, width * sizeof *s->max[i]);
        memset(s->sum[i], 0, width * sizeof *s->sum[i]);
    }
}

static bk_status add_row(bk_channels *s, bk_site_id site, int64_t cols, bk_error *err)
{
    for (int64_t c = 0; c < cols; c++) {
        float a = fabsf(s->row[c]);
        if (!isfinite(a))
            return bk_fail(err, BK_ENUMERIC, "%s: NaN or Inf in channel %lld of calibration token %lld", bk_site_name[site], (long long)c,
                           (long long)s->tokens[site]);
        if (a > s->max[site][c]) s->max[site][c] = a;
        s->sum[site][c] += (double)a;
    }
    s->tokens[site]++;
    return BK_OK;
}

void bk_channels_tap(bk_ctx *ctx, void *channels, bk_site_id site, const bk_tensor *x)
{
    bk_channels *s = channels;
    bk_error *err = bk_ctx_error(ctx);
    if (!s->max[site] || bk_ctx_measuring(ctx)) return;
    int64_t cols = bk_last_dim(x);
    for (int64_t r = 0; r < bk_rows(x); r++)
        if (bk_read(bk_ctx_backend(ctx), x, r * cols, s->row, cols, err) || add_row(s, site, cols, err)) return;
}

bk_status bk_channels_check_source(const bk_source *src, bk_error *err)
{
    static const bk_transform_id others[] = {BK_TRANSFORM_SCALES, BK_TRANSFORM_FUSE, BK_TRANSFORM_R1, BK_TRANSFORM_R2,
                                             BK_TRANSFORM_DOWN_ORDER, BK_TRANSFORM_R4};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (bk_source_rotation(src)->on[others[i]])
            return bk_fail(err, BK_EINVAL, "scales are fitted to the channels that the model itself has, and %s is on: fit them without",
                           bk_transforms[others[i]].name);
    return BK_OK;
}

bk_status bk_scale_add(bk_fitted *f, bk_site_id site, bk_error *err)
{
    static const bk_fitted_part part[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = BK_FITTED_SCALE_ATTN_IN, [BK_SITE_MLP_IN] = BK_FITTED_SCALE_MLP_IN,
                                                       [BK_SITE_O_IN] = BK_FITTED_SCALE_O_IN, [BK_SITE_DOWN_IN] = BK_FITTED_SCALE_DOWN_IN};
    return bk_fitted_add(f, part[site], err);
}

float *bk_scale_at(const bk_fitted *f, bk_site_id site, int64_t layer)
{
    const struct {
        float *all;
        int64_t width;
    } scale[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = {f->scale_attn_in, f->hidden}, [BK_SITE_MLP_IN] = {f->scale_mlp_in, f->hidden},
                              [BK_SITE_O_IN] = {f->scale_o_in, f->kv_heads * f->head_dim}, [BK_SITE_DOWN_IN] = {f->scale_down_in, f->inter}};
    return scale[site].all + layer * scale[site].width;
}
