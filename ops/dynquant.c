/* A step (and zero point) per row and group from its own range: symmetric s = 2 gamma max|x| / Q; asymmetric s = (gamma max - beta min) / Q,
 * z = -rne(beta min / s); then as fakequant.  Gradients also run through max and min, shared evenly among ties; z is a constant.
 * Source: PrefixQuant O1 (arXiv 2410.05265, sec. 4); degenerate ranges: bk_dynquant_fwd_args. */
#include "ops/ops.h"

enum { X, GAMMA, BETA };

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[X];
    const bk_dynquant_attr *a = n->attr;
    char sx[80];
    if (a->group < 1 || bk_last_dim(x) % a->group)
        return bk_op_fail(n, BK_ESHAPE, "group size %lld does not divide the last dimension of %s %s", (long long)a->group, x->name ? x->name : "x",
                          bk_shape_str(x, sx));
    if (a->qmin >= a->qmax || (!a->symmetric && a->qmin != 0)) return bk_op_fail(n, BK_EINVAL, "codes %d..%d", a->qmin, a->qmax);
    for (int i = GAMMA; i <= BETA; i++)
        if (n->in[i] && bk_numel(n->in[i]) != 1) return bk_op_fail(n, BK_ESHAPE, "a clipping factor is %s, want [1]", bk_shape_str(n->in[i], sx));
    bk_op_out_like(n, 0, x);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *x = n->in[X];
    const bk_dynquant_attr *a = n->attr;
    bk_dynquant_fwd_args k = {.rows = bk_rows(x), .cols = bk_last_dim(x), .group = a->group, .symmetric = a->symmetric, .qmin = a->qmin,
                              .qmax = a->qmax, .bounded = a->bounded, .x = x->data, .gamma = bk_data(n->in[GAMMA]), .beta = bk_data(n->in[BETA]),
                              .y = n->out[0]->data};
    BK_TRY(bk_op_freeze(n, 2 * bk_numel(x) + bk_numel(x) / a->group, &k.freeze, &k.frozen));
    return bk_k_dynquant_fwd(n->ctx, &k);
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *x = n->in[X];
    const bk_dynquant_attr *a = n->attr;
    return bk_k_dynquant_bwd(n->ctx, &(bk_dynquant_bwd_args){.rows = bk_rows(x), .cols = bk_last_dim(x), .group = a->group,
                                                             .symmetric = a->symmetric, .qmin = a->qmin, .qmax = a->qmax,
                                                             .bounded = a->bounded, .x = x->data, .gamma = bk_data(n->in[GAMMA]), .beta = bk_data(n->in[BETA]),
                                                             .dy = bk_dout(n, 0), .dx = bk_grad_data(n, X), .dgamma = bk_grad_data(n, GAMMA),
                                                             .dbeta = bk_grad_data(n, BETA)});
}

const bk_op bk_op_dynquant = {.name = "dynquant", .formula = "fakequant with s, z from each row's own range", .n_in_min = 1, .n_in_max = 3,
                              .n_out = 1, .attr_size = sizeof(bk_dynquant_attr), .diff_in = 7, .infer = infer, .forward = forward,
                              .backward = backward};

bk_tensor *bk_dynquant(bk_ctx *ctx, bk_tensor *x, bk_tensor *gamma, bk_tensor *beta, const bk_dynquant_attr *attr)
{
    return bk_apply(ctx, &bk_op_dynquant, (bk_tensor *[]){x, gamma, beta}, 3, attr);
}
