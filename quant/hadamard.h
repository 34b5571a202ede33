/* Orthogonal transforms of order n made of Hadamard matrices, applied fast and never stored.
 *
 *   M = (blockdiag of `blocks` copies of H_base (x) Sylvester_pow2) / sqrt(base pow2),   n = blocks base pow2
 *
 * so a vector is viewed as [blocks][base][pow2]: butterflies in natural order along pow2, H_base across, one scaling. H_base is of Paley's
 * first or second kind (R. E. A. C. Paley, On orthogonal matrices, 1933), or Williamson's for 172, or 1. With n = m 2^v, m odd, base is
 * the smallest m 2^e, e >= 2, that Paley reaches, the first kind before the second. Where nothing is reached, `blocks` > 1: the
 * largest divisor of n for which there is a matrix, on the diagonal. M is orthogonal always, symmetric only for some bases. */
#ifndef BK_HADAMARD_H
#define BK_HADAMARD_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_HADAMARD_MAX_ORDER ((int64_t)1 << 24)
#define BK_HADAMARD_MAX_BASE 2048 /* of a base matrix, which is multiplied densely */

typedef enum { BK_HADAMARD_SYLVESTER, BK_HADAMARD_PALEY1, BK_HADAMARD_PALEY2, BK_HADAMARD_WILLIAMSON } bk_hadamard_kind;

typedef struct bk_hadamard_plan {
    int64_t n, blocks, base, pow2;
    bk_hadamard_kind kind; /* of the base; SYLVESTER: base is 1 */
    double scale;          /* 1 / sqrt(base pow2) */
    const float *h;        /* [base, base], entries +-1, rows are outputs; owned by the plan; NULL if base is 1 */
    char note[256];        /* how it is made, for logs; says when it is only block-diagonal */
} bk_hadamard_plan;

/* Fails with BK_EINVAL outside 1 .. BK_HADAMARD_MAX_ORDER, BK_ENOMEM. */
bk_status bk_hadamard_create(int64_t n, bk_hadamard_plan **out, bk_error *err) BK_MUST_USE;
void bk_hadamard_free(bk_hadamard_plan *p);

/* In place on `count` vectors: element i of vector v is x[v * vector_stride + i * element_stride]. Arithmetic in f64.
 * apply: y = M (s o x), that is x Q in row form with Q = diag(s) M^T.   invert: x = s o (M^T y), its exact inverse.
 * s: n signs +-1, or NULL for all +1. */
bk_status bk_hadamard_apply(const bk_hadamard_plan *p, const int8_t *s, float *x, int64_t count, int64_t vector_stride,
                            int64_t element_stride, bk_error *err) BK_MUST_USE;
bk_status bk_hadamard_apply_f64(const bk_hadamard_plan *p, const int8_t *s, double *x, int64_t count, int64_t vector_stride,
                                int64_t element_stride, bk_error *err) BK_MUST_USE;
bk_status bk_hadamard_invert_f64(const bk_hadamard_plan *p, const int8_t *s, double *x, int64_t count, int64_t vector_stride,
                                 int64_t element_stride, bk_error *err) BK_MUST_USE;

#endif
