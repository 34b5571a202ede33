/* Vectors that lie somewhere in an array of weights (its rows, its columns, parts of them), and the linear maps that transforms of a model are
 * made of (blocks/transforms.h). Arrays are f32 or f64; arithmetic is in f64, and every call rounds an entry once. What becomes of a vector
 * does not depend on the others. */
#ifndef BK_VECTORS_H
#define BK_VECTORS_H

#include "autograd/tensor.h"
#include "quant/hadamard.h"

typedef struct bk_vectors {
    bk_dtype type; /* BK_F32 or BK_F64 */
    void *x;
    int64_t count, n, vector_stride, element_stride; /* entry i of vector v: x[v vector_stride + i element_stride] */
} bk_vectors;

double bk_vectors_get(const bk_vectors *v, int64_t vector, int64_t i);
void bk_vectors_set(const bk_vectors *v, int64_t vector, int64_t i, double value);

/* x_i := x_i factor[i] */
void bk_vectors_scale(const bk_vectors *v, const double *factor);
/* x_i := x_order[i]. BK_ENOMEM. */
bk_status bk_vectors_permute(const bk_vectors *v, const int32_t *order, bk_error *err) BK_MUST_USE;
/* x := x Q with Q = diag(signs) M^T (bk_hadamard_apply); signs may be NULL. BK_ENOMEM. */
bk_status bk_vectors_hadamard(const bk_vectors *v, const bk_hadamard_plan *plan, const int8_t *signs, bk_error *err) BK_MUST_USE;

/* A dense matrix on a backend, and room for the vectors on their way. BK_EUNSUP if the backend lacks the slot gemm_f64. */
typedef struct bk_dense bk_dense;
bk_status bk_dense_create(const bk_backend *be, int64_t n, bk_dense **out, bk_error *err) BK_MUST_USE;
void bk_dense_free(bk_dense *d); /* NULL is legal */
/* q [n, n] is copied. */
bk_status bk_dense_set(bk_dense *d, const double *q, bk_error *err) BK_MUST_USE;
/* x := x Q */
bk_status bk_vectors_dense(const bk_vectors *v, const bk_dense *d, bk_error *err) BK_MUST_USE;

#endif
