/* Tensors, arenas and contexts: what a graph is built from.
 *
 * A context owns one backend's memory in two arenas: `step` (activations, saved values, their gradients; reset at every step) and
 * `scratch` (workspace of one kernel call). Their sizes are found by dry runs: between bk_ctx_measure and bk_ctx_commit every builder works
 * as usual, but nothing is computed and tensors have no data. After the commit nothing is allocated any more.
 *
 * Builders are sticky: after the first failure all return NULL, NULL inputs are then legal, and the context keeps the first error. */
#ifndef BK_TENSOR_H
#define BK_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/backend.h"

#define BK_MAX_DIM 4

struct bk_node;

typedef struct bk_tensor {
    bk_dtype dtype;
    int ndim;
    int64_t dim[BK_MAX_DIM], stride[BK_MAX_DIM]; /* outermost first, in elements; all ops want contiguous tensors */
    void *data;                                  /* backend memory; NULL during a dry run */
    struct bk_tensor *grad;                      /* same shape; leaves bring theirs, others get one of the step from backward */
    struct bk_node *from;                        /* the node that computed it, NULL for leaves */
    bool requires_grad;
    const char *name; /* for messages; borrowed */
} bk_tensor;

typedef struct bk_ctx bk_ctx;

int64_t bk_numel(const bk_tensor *t);
int64_t bk_last_dim(const bk_tensor *t);
int64_t bk_rows(const bk_tensor *t); /* numel / last dim */
size_t bk_dtype_size(bk_dtype d);
bool bk_same_shape(const bk_tensor *a, const bk_tensor *b);
/* "[2,8,64]" into buf (at least 80 bytes); returns buf. */
const char *bk_shape_str(const bk_tensor *t, char *buf);

/* Fills in the header of a contiguous tensor without data. */
void bk_tensor_init(bk_tensor *t, bk_dtype dtype, int ndim, const int64_t *dim, const char *name);

/* Standalone tensors: constants and parameters that outlive a step. Data zeroed. `real` tensors take the backend's real type. */
bk_status bk_tensor_create(const bk_backend *be, bk_dtype dtype, int ndim, const int64_t *dim, const char *name, bk_tensor **out,
                           bk_error *err) BK_MUST_USE;
void bk_tensor_destroy(const bk_backend *be, bk_tensor *t); /* NULL is legal */

/* The only way for host code to touch tensor data. f32 <-> real type of the backend is converted. n elements from element `at`. */
bk_status bk_write(const bk_backend *be, bk_tensor *t, int64_t at, const float *src, int64_t n, bk_error *err) BK_MUST_USE;
bk_status bk_read(const bk_backend *be, const bk_tensor *t, int64_t at, float *dst, int64_t n, bk_error *err) BK_MUST_USE;
bk_status bk_write_f64(const bk_backend *be, bk_tensor *t, int64_t at, const double *src, int64_t n, bk_error *err) BK_MUST_USE;
bk_status bk_read_f64(const bk_backend *be, const bk_tensor *t, int64_t at, double *dst, int64_t n, bk_error *err) BK_MUST_USE;
bk_status bk_write_i32(const bk_backend *be, bk_tensor *t, int64_t at, const int32_t *src, int64_t n, bk_error *err) BK_MUST_USE;
bk_status bk_read_i32(const bk_backend *be, const bk_tensor *t, int64_t at, int32_t *dst, int64_t n, bk_error *err) BK_MUST_USE;

/* A context records its first error in `err`, which outlives it. NULL when memory is out. */
bk_ctx *bk_ctx_new(const bk_backend *be, bk_error *err);
void bk_ctx_free(bk_ctx *ctx);
const bk_backend *bk_ctx_backend(const bk_ctx *ctx);
bk_error *bk_ctx_error(bk_ctx *ctx);
bk_status bk_ctx_status(const bk_ctx *ctx); /* code of the first error */

void bk_ctx_measure(bk_ctx *ctx);                     /* dry runs from here ... (memory of an earlier commit is kept for the next) */
bk_status bk_ctx_commit(bk_ctx *ctx) BK_MUST_USE;     /* ... to here: room for the largest step and scratch seen */
bool bk_ctx_measuring(const bk_ctx *ctx);
size_t bk_ctx_bytes(const bk_ctx *ctx);               /* step + scratch, as measured so far or as allocated */

/* Starts a step: forgets the tape and every step tensor. */
void bk_step_begin(bk_ctx *ctx);
/* Records what follows for backward, or not (default: not). */
void bk_ctx_record(bk_ctx *ctx, bool on);
/* Memory of intermediate results that nothing outlives: mark, compute, release. Only while not recording. */
size_t bk_step_mark(const bk_ctx *ctx);
void bk_step_release(bk_ctx *ctx, size_t mark);

/* A step tensor, not zeroed. dtype_real: the backend's real type. */
bk_tensor *bk_tensor_new(bk_ctx *ctx, bk_dtype dtype, int ndim, const int64_t *dim, const char *name);
bk_tensor *bk_real_new(bk_ctx *ctx, int ndim, const int64_t *dim, const char *name);

/* Back-propagates from y with cotangent dy (NULL: y has one element and dy = 1). Gradients accumulate in leaves that require them; one
 * that brings no tensor for it is BK_EINVAL. */
bk_status bk_backward(bk_ctx *ctx, bk_tensor *y, const bk_tensor *dy) BK_MUST_USE;

/* Gradient checks only (ref): see bk_freeze. */
void bk_ctx_freeze(bk_ctx *ctx, bk_freeze mode);

/* Seconds and calls per kernel slot since the last reset; off by default. */
typedef struct bk_profile {
    double seconds[BK_SLOT_COUNT];
    int64_t calls[BK_SLOT_COUNT];
} bk_profile;
void bk_ctx_profile(bk_ctx *ctx, bk_profile *into); /* NULL switches it off */

#endif
