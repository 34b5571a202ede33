/* y = alpha a / b, element by element;  da = alpha dy / b;  db = -alpha dy a / b^2 */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    char sa[80], sb[80];
    if (!bk_same_shape(n->in[0], n->in[1]))
        return bk_op_fail(n, BK_ESHAPE, "a is %s, b is %s", bk_shape_str(n->in[0], sa), bk_shape_str(n->in[1], sb));
    bk_op_out_like(n, 0, n->in[0]);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    return bk_k_quotient_fwd(n->ctx, &(bk_quotient_fwd_args){.n = bk_numel(n->in[0]), .alpha = *(const double *)n->attr, .a = n->in[0]->data,
                                                             .b = n->in[1]->data, .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    return bk_k_quotient_bwd(n->ctx, &(bk_quotient_bwd_args){.n = bk_numel(n->in[0]), .alpha = *(const double *)n->attr, .a = n->in[0]->data,
                                                             .b = n->in[1]->data, .dy = bk_dout(n, 0), .da = bk_grad_data(n, 0),
                                                             .db = bk_grad_data(n, 1)});
}

const bk_op bk_op_quotient = {.name = "quotient", .formula = "y = alpha a / b", .n_in_min = 2, .n_in_max = 2, .n_out = 1,
                              .attr_size = sizeof(double), .diff_in = 3, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_quotient(bk_ctx *ctx, double alpha, bk_tensor *a, bk_tensor *b)
{
    return bk_apply(ctx, &bk_op_quotient, (bk_tensor *[]){a, b}, 2, &alpha);
}
