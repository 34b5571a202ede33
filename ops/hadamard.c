/* y = M x, M orthogonal (a block diagonal of (H_base (x) Sylvester) / sqrt(order));  dx = M^T dy */
#include "ops/ops.h"

static int64_t order(const bk_hadamard_attr *a)
{
    return a->blocks * a->base * a->pow2;
}

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *h = n->in[1];
    const bk_hadamard_attr *a = n->attr;
    char sx[80];
    if (a->base < 1 || a->pow2 < 1 || a->blocks < 1 || (a->pow2 & (a->pow2 - 1)))
        return bk_op_fail(n, BK_EINVAL, "base %lld, power %lld, blocks %lld", (long long)a->base, (long long)a->pow2, (long long)a->blocks);
    if (x->ndim < 1 || bk_last_dim(x) % order(a))
        return bk_op_fail(n, BK_ESHAPE, "x is %s, the order %lld must divide the last dimension", bk_shape_str(x, sx), (long long)order(a));
    if (a->base > 1 && (!h || h->ndim != 2 || h->dim[0] != a->base || h->dim[1] != a->base))
        return bk_op_fail(n, BK_ESHAPE, "the base matrix must be [%lld,%lld]", (long long)a->base, (long long)a->base);
    bk_op_out_like(n, 0, x);
    return BK_OK;
}

static bk_status run(bk_node *n, const void *x, void *y, int transpose, int accumulate)
{
    const bk_hadamard_attr *a = n->attr;
    return bk_k_hadamard(n->ctx, &(bk_hadamard_args){.rows = bk_numel(n->in[0]) / order(a), .base = a->base, .pow2 = a->pow2,
                                                     .blocks = a->blocks, .x = x, .h = bk_data(n->in[1]), .y = y, .transpose = transpose,
                                                     .accumulate = accumulate});
}

static bk_status forward(bk_node *n)
{
    return run(n, n->in[0]->data, n->out[0]->data, ((const bk_hadamard_attr *)n->attr)->transpose, 0);
}

static bk_status backward(bk_node *n)
{
    return run(n, bk_dout(n, 0), bk_grad_data(n, 0), !((const bk_hadamard_attr *)n->attr)->transpose, 1);
}

const bk_op bk_op_hadamard = {.name = "hadamard", .formula = "y = M x, M orthogonal", .n_in_min = 1, .n_in_max = 2, .n_out = 1,
                              .attr_size = sizeof(bk_hadamard_attr), .diff_in = 1, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_hadamard(bk_ctx *ctx, bk_tensor *x, bk_tensor *h, const bk_hadamard_attr *attr)
{
    return bk_apply(ctx, &bk_op_hadamard, (bk_tensor *[]){x, h}, 2, attr);
}
