/* y = a b, element by element;  da = dy b;  db = dy a */
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
    return bk_k_mul(n->ctx, &(bk_mul_args){.n = bk_numel(n->in[0]), .a = n->in[0]->data, .b = n->in[1]->data, .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    for (int i = 0; i < 2; i++)
        if (bk_wants(n, i))
            BK_TRY(bk_k_mul(n->ctx, &(bk_mul_args){.n = bk_numel(n->in[i]), .a = bk_dout(n, 0), .b = n->in[1 - i]->data,
                                                   .y = bk_grad_data(n, i), .accumulate = 1}));
    return BK_OK;
}

const bk_op bk_op_mul = {.name = "mul", .formula = "y = a b", .n_in_min = 2, .n_in_max = 2, .n_out = 1, .diff_in = 3, .infer = infer,
                         .forward = forward, .backward = backward};

bk_tensor *bk_mul(bk_ctx *ctx, bk_tensor *a, bk_tensor *b)
{
    return bk_apply(ctx, &bk_op_mul, (bk_tensor *[]){a, b}, 2, NULL);
}
