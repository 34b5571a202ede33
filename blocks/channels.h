/* What per-channel scales of a block are made from, and where they lie. */
#ifndef BK_CHANNELS_H
#define BK_CHANNELS_H

#include "blocks/block.h"
#include "blocks/fitted.h"
#include "blocks/source.h"

/* Statistics of |x| per channel of a site, over all tokens: filled by a tap. */
typedef struct bk_channels {
    const bk_config *cfg;
    float *max[BK_SITE_COUNT];  /* [width]; NULL: not wanted */
    double *sum[BK_SITE_COUNT]; /* [width] */
    int64_t tokens[BK_SITE_COUNT];
    float *row; /* [largest width] */
} bk_channels;

/* sites: bit per bk_site_id. c must outlive the statistics. Free them after a failure too. */
bk_status bk_channels_create(bk_channels *s, const bk_config *c, unsigned sites, bk_error *err) BK_MUST_USE;
void bk_channels_free(bk_channels *s);
void bk_channels_clear(bk_channels *s); /* for the next block */
/* NaN or Inf is BK_ENUMERIC with site, channel and token, in the context. */
void bk_channels_tap(bk_ctx *ctx, void *channels, bk_site_id site, const bk_tensor *x);

/* Scales belong to the model's own channels and fold into its norms: BK_EINVAL for a source whose transforms mix, move or scale
 * them, or fuse the norms. */
bk_status bk_channels_check_source(const bk_source *src, bk_error *err) BK_MUST_USE;

/* The scales of a site that linears read: adds them to f (ones; nothing if they are there), and those of one block. */
bk_status bk_scale_add(bk_fitted *f, bk_site_id site, bk_error *err) BK_MUST_USE;
float *bk_scale_at(const bk_fitted *f, bk_site_id site, int64_t layer);

#endif
