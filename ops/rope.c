/* Pairs (i, i + d/2) of every head turn by the angle of their position: y = R x.  R is orthogonal: dx = R^T dy. */
#include "ops/ops.h"

typedef struct attr {
    int64_t heads, pos0;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *table = n->in[1];
    const attr *a = n->attr;
    char sx[80], st[80];
    if (x->ndim != 3 || a->heads < 1 || x->dim[2] % a->heads || (x->dim[2] / a->heads) % 2)
        return bk_op_fail(n, BK_ESHAPE, "x is %s, want [B,T,heads*d] with %lld heads and even d", bk_shape_str(x, sx), (long long)a->heads);
    if (table->ndim != 2 || table->dim[1] != x->dim[2] / a->heads)
        return bk_op_fail(n, BK_ESHAPE, "the table is %s, want [positions,%lld]", bk_shape_str(table, st), (long long)(x->dim[2] / a->heads));
    if (a->pos0 < 0 || a->pos0 + x->dim[1] > table->dim[0])
        return bk_op_fail(n, BK_EINVAL, "positions %lld..%lld, the table has %lld; shorten the sequence or the prefix", (long long)a->pos0,
                          (long long)(a->pos0 + x->dim[1] - 1), (long long)table->dim[0]);
    bk_op_out_like(n, 0, x);
    return BK_OK;
}

static bk_rope_args args(const bk_node *n)
{
    const bk_tensor *x = n->in[0];
    const attr *a = n->attr;
    return (bk_rope_args){.batch = x->dim[0], .tokens = x->dim[1], .heads = a->heads, .dim = x->dim[2] / a->heads, .pos0 = a->pos0,
                          .table = n->in[1]->data};
}

static bk_status forward(bk_node *n)
{
    bk_rope_args a = args(n);
    a.x = n->in[0]->data;
    a.y = n->out[0]->data;
    return bk_k_rope(n->ctx, &a);
}

static bk_status backward(bk_node *n)
{
    bk_rope_args a = args(n);
    a.x = bk_dout(n, 0);
    a.y = bk_grad_data(n, 0);
    a.inverse = a.accumulate = 1;
    return bk_k_rope(n->ctx, &a);
}

const bk_op bk_op_rope = {.name = "rope", .formula = "y = R(position) x, half rotation", .n_in_min = 2, .n_in_max = 2, .n_out = 1,
                          .attr_size = sizeof(attr), .diff_in = 1, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_rope(bk_ctx *ctx, bk_tensor *x, bk_tensor *table, int64_t heads, int64_t pos0)
{
    return bk_apply(ctx, &bk_op_rope, (bk_tensor *[]){x, table}, 2, &(attr){heads, pos0});
}
