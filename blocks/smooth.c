#include "blocks/smooth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/calibration.h"
#include "blocks/channels.h"

#define FLOOR 1e-5

static const bk_site_id sites[] = {BK_SITE_ATTN_IN, BK_SITE_MLP_IN};
enum { SITES = sizeof sites / sizeof sites[0] };

void bk_smooth_scales(const float *x_max, const float *w_max, int64_t n, double alpha, float *scale)
{
    for (int64_t j = 0; j < n; j++) {
        double s = pow((double)x_max[j], alpha) / pow(fmax((double)w_max[j], FLOOR), 1 - alpha);
        scale[j] = x_max[j] > 0 ? (float)fmax(s, FLOOR) : 1;
    }
}

typedef struct smoother {
    double alpha;
    bk_channels x;
    float *w_max; /* [hidden] */
    bk_fitted *out;
} smoother;

/* Largest |w| of every input channel over the linears that read a site. */
static void weight_maxima(const bk_config *c, const bk_block_weights *w, bk_site_id site, float *max)
{
    memset(max, 0, (size_t)bk_site_width(c, site) * sizeof *max);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        if (bk_linear_input(id) != site) continue;
        for (int64_t o = 0; o < out; o++)
            for (int64_t j = 0; j < in; j++) max[j] = fmaxf(max[j], fabsf(w->w[id][o * in + j]));
    }
}

static bk_status smooth_block(void *user, bk_calibration *c, int64_t layer, bk_error *err)
{
    smoother *s = user;
    bk_channels_clear(&s->x);
    BK_TRY(bk_calibration_pass(c, bk_channels_tap, &s->x, true, err));
    for (int i = 0; i < SITES; i++) {
        weight_maxima(&c->b->cfg, &c->weights, sites[i], s->w_max);
        bk_smooth_scales(s->x.max[sites[i]], s->w_max, c->b->cfg.hidden, s->alpha, bk_scale_at(s->out, sites[i], layer));
    }
    return BK_OK;
}

static bk_status fit(smoother *s, bk_calibration *c, const bk_watch *watch, bk_error *err)
{
    const bk_config *cfg = &c->b->cfg;
    BK_TRY(bk_channels_create(&s->x, cfg, 1u << BK_SITE_ATTN_IN | 1u << BK_SITE_MLP_IN, err));
    if (!(s->w_max = malloc((size_t)cfg->hidden * sizeof *s->w_max))) return bk_fail(err, BK_ENOMEM, "no memory for the maxima of weights");
    for (int i = 0; i < SITES; i++) BK_TRY(bk_scale_add(s->out, sites[i], err));
    return bk_calibration_run(c, smooth_block, s, watch, err);
}

bk_status bk_smooth_fit(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, double alpha,
                        const bk_prefix *prefix, const bk_watch *watch, bk_fitted *out, bk_error *err)
{
    smoother s = {.alpha = alpha, .out = out};
    bk_calibration c;
    if (!(alpha >= 0 && alpha <= 1)) return bk_fail(err, BK_EINVAL, "SmoothQuant's alpha is %g: it lies between 0 and 1", alpha);
    BK_TRY(bk_channels_check_source(src, err));
    BK_TRY(bk_fitted_fits(out, bk_source_config(src), err));
    bk_status st = bk_calibration_open(&c, be, src, ids, samples, tokens, prefix, NULL, err);
    if (!st) st = fit(&s, &c, watch, err);
    bk_calibration_close(&c);
    bk_channels_free(&s.x);
    free(s.w_max);
    return st;
}
