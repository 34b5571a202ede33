/* nll = lse - logit[target], lse = log sum exp(logits);  dlogits = dnll (softmax - onehot) */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    const bk_tensor *l = n->in[0], *t = n->in[1];
    char sl[80], st[80];
    if (l->ndim != 2 || t->ndim != 1 || t->dim[0] != l->dim[0])
        return bk_op_fail(n, BK_ESHAPE, "logits are %s, targets %s; want [N,V] and [N]", bk_shape_str(l, sl), bk_shape_str(t, st));
    bk_op_out(n, 0, 1, (int64_t[]){l->dim[0]});
    bk_op_save(n, 0, 1, (int64_t[]){l->dim[0]});
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *l = n->in[0];
    return bk_k_xent_fwd(n->ctx, &(bk_xent_fwd_args){.rows = l->dim[0], .cols = l->dim[1], .logits = l->data, .target = n->in[1]->data,
                                                     .nll = n->out[0]->data, .lse = n->saved[0]->data});
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *l = n->in[0];
    return bk_k_xent_bwd(n->ctx, &(bk_xent_bwd_args){.rows = l->dim[0], .cols = l->dim[1], .logits = l->data, .lse = n->saved[0]->data,
                                                     .dnll = bk_dout(n, 0), .target = n->in[1]->data, .dlogits = bk_grad_data(n, 0)});
}

const bk_op bk_op_cross_entropy = {.name = "cross_entropy", .formula = "nll = log sum exp(logits) - logits[target]", .n_in_min = 2,
                                   .n_in_max = 2, .n_out = 1, .diff_in = 1, .ids_in = 2, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_cross_entropy(bk_ctx *ctx, bk_tensor *logits, bk_tensor *target)
{
    return bk_apply(ctx, &bk_op_cross_entropy, (bk_tensor *[]){logits, target}, 2, NULL);
}
