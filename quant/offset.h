/* Outliers turned into offsets, which a zero point absorbs (OffQ, arXiv 2606.07116): a direction in which a few tokens are huge becomes the first
 * channel of a group, and a rotation of the group whose first row is ones spreads it evenly over the group. Row form: x' = x Q. */
#ifndef BK_OFFSET_H
#define BK_OFFSET_H

#include "quant/hadamard.h"

/* The token with the largest |x|, of tokens [width] that lie `stride` apart; the first of equal ones. Values are finite. largest: that |x|. */
int64_t bk_top_token(const float *x, int64_t tokens, int64_t stride, int64_t width, float *largest);

/* The order of n channels in groups of the same size: x'[new] = x[src[new]]. The `groups` channels of largest score come first in a group each,
 * by falling score (of equal scores, the lower channel first). The others follow by rising score: group after group, or with `zigzag` one to
 * each group in turn. src [n]; groups divides n. BK_EINVAL for a score that is NaN, BK_ENOMEM. */
bk_status bk_offset_order(const double *score, int64_t n, int64_t groups, bool zigzag, int32_t *src, bk_error *err) BK_MUST_USE;

/* H [n, n]: orthogonal, its first row (1 .. 1) / sqrt(n), the others random (Gaussian, one made orthogonal after the other). */
void bk_offset_gaussian(double *h, int64_t n, uint64_t seed, uint64_t stream);

/* In place of Q: the columns of u [n, n] in the order src, then a rotation of every group of `group` columns whose first row is constant.
 * h1: NULL, or a plan of bk_hadamard_create_blocks(n, group), with random signs [n] that are 1 where a group begins; without it the rotations are
 * those of bk_offset_gaussian, one for each group or, `alike`, the first for all, by the seed. */
typedef struct bk_offset_rotation {
    int64_t n, group;
    const bk_hadamard_plan *h1;
    const int8_t *signs;
    bool alike;
    uint64_t seed, stream;
} bk_offset_rotation;
bk_status bk_offset_compose(const bk_offset_rotation *r, const double *u, const int32_t *src, double *q, bk_error *err) BK_MUST_USE;

/* Random signs for n channels, 1 where a group of `group` begins; alike: the same in every group. */
void bk_offset_signs(int8_t *signs, int64_t n, int64_t group, bool alike, uint64_t seed, uint64_t stream);

#endif
