/* y = value x;  dx = gradient dy, which is the derivative where the two factors are the same */
#include "ops/ops.h"

typedef struct attr {
    double value, gradient;
} attr;

static bk_status infer(bk_node *n)
{
    bk_op_out_like(n, 0, n->in[0]);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *x = n->in[0];
    BK_TRY(bk_k_fill(n->ctx, &(bk_fill_args){.n = bk_numel(x), .x = n->out[0]->data}));
    return bk_k_axpy(n->ctx, &(bk_axpy_args){.n = bk_numel(x), .alpha = ((const attr *)n->attr)->value, .x = x->data, .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    return bk_k_axpy(n->ctx, &(bk_axpy_args){.n = bk_numel(n->in[0]), .alpha = ((const attr *)n->attr)->gradient, .x = bk_dout(n, 0),
                                             .y = bk_grad_data(n, 0)});
}

const bk_op bk_op_scale = {.name = "scale", .formula = "y = value x, dx = gradient dy", .n_in_min = 1, .n_in_max = 1, .n_out = 1,
                           .attr_size = sizeof(attr), .diff_in = 1, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_scale(bk_ctx *ctx, bk_tensor *x, double value, double gradient)
{
    return bk_apply(ctx, &bk_op_scale, (bk_tensor *[]){x}, 1, &(attr){value, gradient});
}
