/* y = g s(g) u, s = sigmoid
 * dg = dy u s (1 + g (1 - s));  du = dy g s */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    char sa[80], sb[80];
    if (!bk_same_shape(n->in[0], n->in[1]))
        return bk_op_fail(n, BK_ESHAPE, "gate is %s, up is %s", bk_shape_str(n->in[0], sa), bk_shape_str(n->in[1], sb));
    bk_op_out_like(n, 0, n->in[0]);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    return bk_k_swiglu_fwd(n->ctx, &(bk_swiglu_fwd_args){.n = bk_numel(n->in[0]), .gate = n->in[0]->data, .up = n->in[1]->data,
                                                         .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    return bk_k_swiglu_bwd(n->ctx, &(bk_swiglu_bwd_args){.n = bk_numel(n->in[0]), .gate = n->in[0]->data, .up = n->in[1]->data,
                                                         .dy = bk_dout(n, 0), .dgate = bk_grad_data(n, 0), .dup = bk_grad_data(n, 1)});
}

const bk_op bk_op_swiglu = {.name = "swiglu", .formula = "y = gate sigmoid(gate) up", .n_in_min = 2, .n_in_max = 2, .n_out = 1, .diff_in = 3,
                            .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_swiglu(bk_ctx *ctx, bk_tensor *gate, bk_tensor *up)
{
    return bk_apply(ctx, &bk_op_swiglu, (bk_tensor *[]){gate, up}, 2, NULL);
}
