/* What an op is, and how one is applied. The engine knows this interface and no op. */
#ifndef BK_OP_H
#define BK_OP_H

#include "autograd/tensor.h"

#define BK_MAX_IN 8
#define BK_MAX_OUT 2
#define BK_MAX_SAVED 3

/* One application of an op: arguments of infer, forward and backward; on the tape it is the node. */
typedef struct bk_node {
    bk_ctx *ctx;
    const struct bk_op *op;
    int n_in, n_out;
    bk_tensor *in[BK_MAX_IN]; /* optional inputs may be NULL */
    bk_tensor *out[BK_MAX_OUT];
    bk_tensor *saved[BK_MAX_SAVED];
    const void *attr;
    struct bk_node *prev;
} bk_node;

typedef struct bk_op {
    const char *name;
    const char *formula; /* one line, for docs/ops.md */
    int n_in_min, n_in_max, n_out;
    size_t attr_size;
    unsigned diff_in; /* bit i: input i can get a gradient */
    unsigned ids_in;  /* bit i: input i is i32; all others have the real type of the backend */
    /* Checks shapes (bk_op_fail) and makes outputs and saved tensors. */
    bk_status (*infer)(bk_node *n);
    bk_status (*forward)(bk_node *n);
    /* Accumulates into bk_grad(n->in[i]) where bk_wants(n, i). NULL: no gradient. */
    bk_status (*backward)(bk_node *n);
} bk_op;

/* Applies `op`; returns output 0, or NULL with the error in the context. attr is copied. */
bk_tensor *bk_apply(bk_ctx *ctx, const bk_op *op, bk_tensor *const *in, int n_in, const void *attr);

/* For ops. */
bk_tensor *bk_op_out(bk_node *n, int i, int ndim, const int64_t *dim);
bk_tensor *bk_op_out_like(bk_node *n, int i, const bk_tensor *t);
bk_tensor *bk_op_save(bk_node *n, int i, int ndim, const int64_t *dim);
bk_status bk_op_fail(bk_node *n, bk_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool bk_wants(const bk_node *n, int i);
void *bk_grad_data(const bk_node *n, int i); /* of input i; NULL if it wants none (or during a dry run) */
void *bk_dout(const bk_node *n, int i);      /* gradient of output i */
/* For ops that round: the freeze mode in force and the buffer of `reals` values that goes with it. */
bk_status bk_op_freeze(bk_node *n, int64_t reals, bk_freeze *mode, void **buffer) BK_MUST_USE;
static inline void *bk_data(const bk_tensor *t) { return t ? t->data : 0; }

/* Kernel calls: bk_k_NAME(ctx, &args). Null slot: BK_EUNSUP. Dry run: only scratch is measured. */
#define BK_SLOT(name, args_type) bk_status bk_k_##name(bk_ctx *ctx, const args_type *args) BK_MUST_USE;
BK_SLOTS(BK_SLOT)
#undef BK_SLOT
const char *bk_slot_name(bk_slot slot);

#endif
