/* SmoothQuant: scales that move the outliers of activations into the weights. Only where a norm writes what linears read, so that they fold
 * into its gain: attn_in and mlp_in.
 * Source: SmoothQuant (Xiao et al. 2023, arXiv 2211.10438), eq. 4, and its code. */
#ifndef BK_SMOOTH_H
#define BK_SMOOTH_H

#include "blocks/fitted.h"
#include "blocks/pass.h"
#include "blocks/prefix.h"

/* Published for models of the Llama family: 0.8 (Mistral) to 0.85, 0.5 for OPT. Their outliers are so large that half of them is still too much. */
#define BK_SMOOTH_ALPHA 0.8

/* scale[j] = max|x_j|^alpha / max|w_j|^(1 - alpha), where x / scale and w scale take the place of x and w. Neither the divisor nor the
 * scale falls below 1e-5. A channel that is always 0 keeps the scale 1. x_max, w_max, scale: [n], finite. */
void bk_smooth_scales(const float *x_max, const float *w_max, int64_t n, double alpha, float *scale);

/* Fits scale_attn_in and scale_mlp_in of `out` (made for the same model; what it has there is replaced) on ids [samples, tokens]: maxima of |x|
 * over all tokens, of |w| over all linears that read x. src: norms as they are, no rotations; prefix (NULL: none): computed from
 * src. The keys and values that a folded model uses as prefix are its own and must be computed again.
 * BK_ESHAPE: out was made for other shapes. BK_EINVAL: no window, alpha outside 0..1, a source with fused norms, rotations or
 * scales. BK_ENUMERIC: block, site and channel of a NaN or Inf. */
bk_status bk_smooth_fit(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, double alpha,
                        const bk_prefix *prefix, const bk_watch *watch, bk_fitted *out, bk_error *err) BK_MUST_USE;

#endif
