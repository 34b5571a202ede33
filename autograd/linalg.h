/* Dense algebra in f64 for matrices that are learnt orthogonal: products on a backend's f64 kernel, QR and polar factors made
 * of them, Cayley SGD. Matrices lie in host memory, row-major; each product brings its operands to the backend. Room is kept
 * and grows as needed: calls of one size allocate only once. Same bytes for every number of threads. */
#ifndef BK_LINALG_H
#define BK_LINALG_H

#include "autograd/tensor.h"

typedef struct bk_linalg bk_linalg;

/* err outlives it and gets every failure. NULL: BK_ENOMEM in err. */
bk_linalg *bk_linalg_new(const bk_backend *be, bk_error *err);
void bk_linalg_free(bk_linalg *l);

/* c[m,n] = op(a) op(b), added to c where `add`. a is [m,k], with ta [k,m]; b is [k,n], with tb [n,k]; rows lie lda, ldb, ldc apart. */
typedef struct bk_product {
    int64_t m, n, k;
    bool ta, tb, add;
    const double *a, *b;
    double *c;
    int64_t lda, ldb, ldc;
} bk_product;
bk_status bk_linalg_product(bk_linalg *l, const bk_product *p) BK_MUST_USE;
/* The same for square ones of order n without gaps, c = op(a) op(b). */
bk_status bk_linalg_square(bk_linalg *l, int64_t n, bool ta, const double *a, bool tb, const double *b, double *c) BK_MUST_USE;

/* a[n,n] = lower q in place: rows of q orthonormal, lower [n,n] (NULL: not wanted) lower triangular with a positive diagonal: the QR factors of
 * a^T. Gram-Schmidt, everything twice. BK_ENUMERIC names a row that depends on those before it. */
bk_status bk_linalg_qr_rows(bk_linalg *l, int64_t n, double *a, double *lower) BK_MUST_USE;
/* The gradient through it: g = dL/dq becomes dL/da = lower^-T (g + S q), S symmetric with the lower triangle of -g q^T (Walter, Lehmann and
 * Lamour 2012, for square matrices). */
bk_status bk_linalg_qr_rows_backward(bk_linalg *l, int64_t n, const double *q, const double *lower, double *g) BK_MUST_USE;
/* a[n,n] becomes the orthogonal factor of its polar decomposition, U V^T of a = U S V^T: the orthogonal matrix nearest to it. Newton-Schulz
 * iteration with the scaling of Chen and Chow (2014); singular values may lie 1e10 apart. BK_ENUMERIC for singular ones. */
bk_status bk_linalg_polar(bk_linalg *l, int64_t n, double *a) BK_MUST_USE;
/* Largest entry of |a a^T - I|. */
bk_status bk_linalg_defect(bk_linalg *l, int64_t n, const double *a, double *out) BK_MUST_USE;

/* A step of SGD on the orthogonal matrices by an iterated Cayley transform (Li, Li and Todorovic, arXiv 2002.01113), as SpinQuant (2405.16406)
 * runs it. With P = r, its rows normalised, X = P^T and g = dL/dr:
 *   V = momentum V - g^T;  W0 = V P - P^T (P V P) / 2;  W = W0 - W0^T;  a = min(lr, 1 / (|W|_1 + 1e-8));
 *   Y = X + a V, then five times Y = X + a W (X + Y) / 2;  r = Y^T;  V = W X.
 * r drifts from orthogonality by about 1e-5 a step: whoever uses it makes it orthogonal at the end. */
typedef struct bk_cayley {
    int64_t n;
    double momentum;
    double *v; /* [n,n] */
} bk_cayley;
bk_status bk_cayley_create(bk_cayley *c, int64_t n, double momentum, bk_error *err) BK_MUST_USE;
void bk_cayley_free(bk_cayley *c); /* due after a failure too */
/* retract: P is replaced by its Gram-Schmidt basis first, as published with probability 1/101 a step. BK_ENUMERIC if r or g is not finite. */
bk_status bk_cayley_step(bk_linalg *l, bk_cayley *c, double *r, const double *g, double lr, bool retract) BK_MUST_USE;

#endif
