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
/* Blocks of this order on the diagonal, n / order of them, each with a first column of ones: M e_0 = (1 .. 1) / sqrt(order), which OffQ (arXiv
 * 2606.07116) builds on. For that the base is (H diag(h_0))^T, h_0 the first row of H. BK_EINVAL if order does not divide n, or if no matrix of
 * that order is known (bk_hadamard_exists). */
bk_status bk_hadamard_create_blocks(int64_t n, int64_t order, bk_hadamard_plan **out, bk_error *err) BK_MUST_USE;
bool bk_hadamard_exists(int64_t order);
void bk_hadamard_free(bk_hadamard_plan *p);

/* The size of groups that n channels are cut into: the largest power of two up to 128 that divides n; if that is below 32, the largest divisor
 * of n in 64 .. 192 for which there is a matrix; else n itself. n >= 1. */
int64_t bk_group_size(int64_t n);

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
