/* Fitted transforms without a fit, for tests of whatever applies them. */
#ifndef BK_TESTS_TINY_FITTED_H
#define BK_TESTS_TINY_FITTED_H

#include "blocks/fitted.h"

#define BK_TINY_PART(P) (1u << BK_FITTED_##P)
#define BK_TINY_ALL_PARTS ((1u << BK_FITTED_COUNT) - 1)

/* A dense matrix q [n, n], orthogonal and not symmetric: a permutation between two random-sign Hadamards. */
void bk_tiny_orthogonal(double *q, int64_t n, uint64_t seed);
/* The parts of the mask: such matrices, random orders and signs, scales 2^-3 .. 2^3. Failures end the Check test. */
bk_fitted *bk_tiny_fitted(const bk_config *c, unsigned parts, uint64_t seed);

#endif
