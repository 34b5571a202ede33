/* y_i = x_i r w_i, r = 1/sqrt(mean(x^2) + eps)
 * With g = dy w:  dx = r (g - x r^2 mean(g x));  dw = sum over rows of dy x r */
#include "ops/ops.h"

typedef struct attr {
    double eps;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1];
    char sx[80], sw[80];
    if (w->ndim != 1 || w->dim[0] < 1 || x->ndim < 1 || bk_last_dim(x) % w->dim[0])
        return bk_op_fail(n, BK_ESHAPE, "gain %s is %s, x is %s; the last dimension must be a multiple of the gain's", w->name,
                          bk_shape_str(w, sw), bk_shape_str(x, sx));
    double eps = ((const attr *)n->attr)->eps;
    if (!(eps >= 0)) return bk_op_fail(n, BK_EINVAL, "eps is %g, want >= 0", eps);
    bk_op_out_like(n, 0, x);
    bk_op_save(n, 0, 1, (int64_t[]){bk_numel(x) / w->dim[0]});
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1];
    int64_t cols = w->dim[0];
    return bk_k_rmsnorm_fwd(n->ctx, &(bk_rmsnorm_fwd_args){.rows = bk_numel(x) / cols, .cols = cols, .eps = ((const attr *)n->attr)->eps,
                                                           .x = x->data, .w = w->data, .y = n->out[0]->data, .rstd = n->saved[0]->data});
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1];
    int64_t cols = w->dim[0];
    return bk_k_rmsnorm_bwd(n->ctx, &(bk_rmsnorm_bwd_args){.rows = bk_numel(x) / cols, .cols = cols, .x = x->data, .w = w->data,
                                                           .rstd = n->saved[0]->data, .dy = bk_dout(n, 0), .dx = bk_grad_data(n, 0),
                                                           .dw = bk_grad_data(n, 1)});
}

const bk_op bk_op_rmsnorm = {.name = "rmsnorm", .formula = "y = x w / sqrt(mean(x^2) + eps)", .n_in_min = 2, .n_in_max = 2, .n_out = 1,
                             .attr_size = sizeof(attr), .diff_in = 3, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_rmsnorm(bk_ctx *ctx, bk_tensor *x, bk_tensor *w, double eps)
{
    return bk_apply(ctx, &bk_op_rmsnorm, (bk_tensor *[]){x, w}, 2, &(attr){eps});
}
