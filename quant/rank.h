/* Channels in the order of a score. */
#ifndef BK_RANK_H
#define BK_RANK_H

#include <stdint.h>

#include "autograd/error.h"

/* The indices 0 .. n-1 by falling score, of equal scores the lower index first. order [n]. Scores are no NaN. BK_ENOMEM. */
bk_status bk_rank_falling(const double *score, int64_t n, int32_t *order, bk_error *err) BK_MUST_USE;

#endif
