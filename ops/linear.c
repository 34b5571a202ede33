/* y = x w^T + b
 * dx = dy w;  dw = dy^T x;  db = column sums of dy */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1], *b = n->in[2];
    char sx[80], sw[80];
    if (w->ndim != 2) return bk_op_fail(n, BK_ESHAPE, "weight %s is %s, want [out,in]", w->name, bk_shape_str(w, sw));
    if (x->ndim < 1 || bk_last_dim(x) != w->dim[1])
        return bk_op_fail(n, BK_ESHAPE, "x is %s, weight %s is %s and wants %lld inputs; transposed?", bk_shape_str(x, sx), w->name,
                          bk_shape_str(w, sw), (long long)w->dim[1]);
    if (b && (b->ndim != 1 || b->dim[0] != w->dim[0]))
        return bk_op_fail(n, BK_ESHAPE, "bias is %s, weight has %lld outputs", bk_shape_str(b, sx), (long long)w->dim[0]);
    int64_t dim[BK_MAX_DIM];
    for (int i = 0; i < x->ndim; i++) dim[i] = x->dim[i];
    dim[x->ndim - 1] = w->dim[0];
    bk_op_out(n, 0, x->ndim, dim);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1], *y = n->out[0];
    int64_t rows = bk_rows(x), in = w->dim[1], out = w->dim[0];
    BK_TRY(bk_k_gemm(n->ctx, &(bk_gemm_args){.m = rows, .n = out, .k = in, .tb = 1, .a = x->data, .lda = in, .b = w->data, .ldb = in,
                                             .c = y->data, .ldc = out}));
    if (!n->in[2]) return BK_OK;
    return bk_k_bias_fwd(n->ctx, &(bk_bias_fwd_args){.rows = rows, .cols = out, .b = n->in[2]->data, .y = y->data});
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *x = n->in[0], *w = n->in[1];
    int64_t rows = bk_rows(x), in = w->dim[1], out = w->dim[0];
    const void *dy = bk_dout(n, 0);
    if (bk_wants(n, 0))
        BK_TRY(bk_k_gemm(n->ctx, &(bk_gemm_args){.m = rows, .n = in, .k = out, .a = dy, .lda = out, .b = w->data, .ldb = in,
                                                 .c = bk_grad_data(n, 0), .ldc = in, .beta = 1}));
    if (bk_wants(n, 1))
        BK_TRY(bk_k_gemm(n->ctx, &(bk_gemm_args){.m = out, .n = in, .k = rows, .ta = 1, .a = dy, .lda = out, .b = x->data, .ldb = in,
                                                 .c = bk_grad_data(n, 1), .ldc = in, .beta = 1}));
    if (bk_wants(n, 2))
        BK_TRY(bk_k_bias_bwd(n->ctx, &(bk_bias_bwd_args){.rows = rows, .cols = out, .dy = dy, .db = bk_grad_data(n, 2)}));
    return BK_OK;
}

const bk_op bk_op_linear = {.name = "linear", .formula = "y = x w^T + b", .n_in_min = 2, .n_in_max = 3, .n_out = 1, .diff_in = 7,
                            .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_linear(bk_ctx *ctx, bk_tensor *x, bk_tensor *w, bk_tensor *b)
{
    return bk_apply(ctx, &bk_op_linear, (bk_tensor *[]){x, w, b}, 3, NULL);
}
