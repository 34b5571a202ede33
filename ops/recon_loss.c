/* Reconstruction losses of PrefixQuant's code (recon_loss): mse = mean (p - t)^2, dp = 2 (p - t) / n; the variants as bk_loss_kind says. */
#include "ops/ops.h"

typedef struct attr {
    bk_loss_kind kind;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *p = n->in[0], *t = n->in[1];
    char sp[80], st[80];
    if (!bk_same_shape(p, t) || p->ndim != 3)
        return bk_op_fail(n, BK_ESHAPE, "prediction is %s, target is %s; want both [N,T,C]", bk_shape_str(p, sp), bk_shape_str(t, st));
    if ((unsigned)((const attr *)n->attr)->kind >= BK_LOSS_COUNT) return bk_op_fail(n, BK_EINVAL, "there is no such loss");
    bk_op_out(n, 0, 1, (int64_t[]){1});
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *p = n->in[0];
    return bk_k_loss_fwd(n->ctx, &(bk_loss_fwd_args){.kind = ((const attr *)n->attr)->kind, .samples = p->dim[0], .tokens = p->dim[1],
                                                     .cols = p->dim[2], .pred = p->data, .target = n->in[1]->data, .loss = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *p = n->in[0];
    return bk_k_loss_bwd(n->ctx, &(bk_loss_bwd_args){.kind = ((const attr *)n->attr)->kind, .samples = p->dim[0], .tokens = p->dim[1],
                                                     .cols = p->dim[2], .pred = p->data, .target = n->in[1]->data, .dloss = bk_dout(n, 0),
                                                     .dpred = bk_grad_data(n, 0)});
}

const bk_op bk_op_recon_loss = {.name = "recon_loss", .formula = "mean (pred - target)^2 and its variants", .n_in_min = 2, .n_in_max = 2,
                                .n_out = 1, .attr_size = sizeof(attr), .diff_in = 1, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_recon_loss(bk_ctx *ctx, bk_loss_kind kind, bk_tensor *pred, bk_tensor *target)
{
    return bk_apply(ctx, &bk_op_recon_loss, (bk_tensor *[]){pred, target}, 2, &(attr){kind});
}
