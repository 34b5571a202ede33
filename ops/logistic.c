/* y = g(x) / g(at), g = sigmoid;  dx = dy g(x) (1 - g(x)) / g(at) */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    bk_op_out_like(n, 0, n->in[0]);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    return bk_k_logistic_fwd(n->ctx, &(bk_logistic_fwd_args){.n = bk_numel(n->in[0]), .at = *(const double *)n->attr, .x = n->in[0]->data,
                                                           .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    return bk_k_logistic_bwd(n->ctx, &(bk_logistic_bwd_args){.n = bk_numel(n->in[0]), .at = *(const double *)n->attr, .x = n->in[0]->data,
                                                           .dy = bk_dout(n, 0), .dx = bk_grad_data(n, 0)});
}

const bk_op bk_op_logistic = {.name = "logistic", .formula = "y = sigmoid(x) / sigmoid(at)", .n_in_min = 1, .n_in_max = 1, .n_out = 1,
                             .attr_size = sizeof(double), .diff_in = 1, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_logistic(bk_ctx *ctx, bk_tensor *x, double at)
{
    return bk_apply(ctx, &bk_op_logistic, (bk_tensor *[]){x}, 1, &at);
}
