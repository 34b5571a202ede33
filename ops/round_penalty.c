/* loss = lambda sum (1 - |t|^beta), t = 2 h(v) - 1, h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1): it pulls soft rounding to 0 or 1
 * dv = -dloss lambda beta |t|^(beta - 1) sign(t) 2 h'(v)
 * Source: AdaRound (arXiv 2004.10568); BRECQ (arXiv 2102.05426). */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    const bk_round_penalty_attr *a = n->attr;
    if (!(a->beta >= 1)) return bk_op_fail(n, BK_EINVAL, "beta is %g, want at least 1", a->beta);
    bk_op_out(n, 0, 1, (int64_t[]){1});
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_round_penalty_attr *a = n->attr;
    return bk_k_round_penalty_fwd(n->ctx, &(bk_round_penalty_fwd_args){.n = bk_numel(n->in[0]), .lambda = a->lambda, .beta = a->beta,
                                                                       .v = n->in[0]->data, .loss = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    const bk_round_penalty_attr *a = n->attr;
    return bk_k_round_penalty_bwd(n->ctx, &(bk_round_penalty_bwd_args){.n = bk_numel(n->in[0]), .lambda = a->lambda, .beta = a->beta,
                                                                       .v = n->in[0]->data, .dloss = bk_dout(n, 0), .dv = bk_grad_data(n, 0)});
}

const bk_op bk_op_round_penalty = {.name = "round_penalty", .formula = "loss = lambda sum (1 - |2 h(v) - 1|^beta)", .n_in_min = 1,
                                   .n_in_max = 1, .n_out = 1, .attr_size = sizeof(bk_round_penalty_attr), .diff_in = 1, .infer = infer,
                                   .forward = forward, .backward = backward};

bk_tensor *bk_round_penalty(bk_ctx *ctx, bk_tensor *v, const bk_round_penalty_attr *attr)
{
    return bk_apply(ctx, &bk_op_round_penalty, (bk_tensor *[]){v}, 1, attr);
}
