/* AWQ: scales that protect the weights which large activations meet, found by trying.
 * Source: AWQ (Lin et al. 2024, arXiv 2306.00978), sec. 3.2, and the scale search of its code. */
#ifndef BK_AWQ_H
#define BK_AWQ_H

#include "blocks/fitted.h"
#include "blocks/pass.h"
#include "blocks/prefix.h"

#define BK_AWQ_RATIOS 20 /* 0, 1/20 ... 19/20 */

/* m = mean|x_j|: scale[j] = max(m^ratio, 1e-4) / sqrt(largest of these * smallest of these). A channel that is always 0 keeps the scale 1 and
 * does not count among them. mean, scale: [n], finite. */
void bk_awq_scales(const double *mean, int64_t n, double ratio, float *scale);

typedef struct bk_awq_options {
    bk_qspec weight;              /* how weights are quantized; the search takes min-max values */
    const unsigned *skip_weights; /* [layers] bits of the linears that stay in full precision; NULL: none */
    /* NULL, or told what was found at a site: squared errors of the block's output for all ratios, and the chosen one. */
    void (*found)(void *user, int64_t layer, bk_site_id site, const double error[BK_AWQ_RATIOS], int best);
    void *user;
} bk_awq_options;

/* Fits scale_attn_in, scale_mlp_in, scale_down_in and, where every query head has values of its own (kv_heads = heads), scale_o_in of `out`
 * (made for the same model; what it has there is replaced) on ids [samples, tokens]. At each site the ratio wins whose scales give the smallest
 * squared error of the block's output when the linears that read the site have the weights Q(W s) / s and all else is in full precision; of
 * equal ones the smallest ratio. Ratio 0 is plain rounding. Scales of one site do not change what the others see, so each is searched by itself.
 * src: norms as they are, no rotations; prefix (NULL: none): computed from src. The keys and values that a folded model uses as
 * prefix are its own and must be computed again.
 * BK_ESHAPE: out was made for other shapes. BK_EINVAL: no window, a source with fused norms, rotations or scales, weights that
 * are not quantized. BK_ENUMERIC: block, site and channel of a NaN or Inf. */
bk_status bk_awq_fit(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, const bk_awq_options *opt,
                     const bk_prefix *prefix, const bk_watch *watch, bk_fitted *out, bk_error *err) BK_MUST_USE;

#endif
