/* Every head turns by the matrix of its KV head: y_h = x_h M_{h / (H/Hkv)}, in row form;  dx_h = dy_h M^T */
#include "ops/ops.h"

typedef struct attr {
    int64_t heads;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *m = n->in[1];
    int64_t heads = ((const attr *)n->attr)->heads;
    char sx[80], sm[80];
    if (heads < 1 || x->ndim < 1 || bk_last_dim(x) % heads)
        return bk_op_fail(n, BK_ESHAPE, "x is %s, want [...,heads*d] with %lld heads", bk_shape_str(x, sx),
                          (long long)heads);
    int64_t d = bk_last_dim(x) / heads;
    if (m->ndim != 3 || m->dim[0] < 1 || heads % m->dim[0] || m->dim[1] != d || m->dim[2] != d)
        return bk_op_fail(n, BK_ESHAPE,
                          "the matrices are %s, want [kv_heads,%lld,%lld] and %lld heads a multiple of kv_heads",
                          bk_shape_str(m, sm), (long long)d, (long long)d, (long long)heads);
    bk_op_out_like(n, 0, x);
    return BK_OK;
}

static bk_rotate_heads_args args(const bk_node *n)
{
    const bk_tensor *x = n->in[0], *m = n->in[1];
    return (bk_rotate_heads_args){.rows = bk_rows(x), .heads = ((const attr *)n->attr)->heads, .kv_heads = m->dim[0],
                                  .dim = m->dim[1], .m = m->data};
}

static bk_status forward(bk_node *n)
{
    bk_rotate_heads_args a = args(n);
    a.x = n->in[0]->data;
    a.y = n->out[0]->data;
    return bk_k_rotate_heads(n->ctx, &a);
}

static bk_status backward(bk_node *n)
{
    bk_rotate_heads_args a = args(n);
    a.x = bk_dout(n, 0);
    a.y = bk_grad_data(n, 0);
    a.transpose = 1;
    a.accumulate = 1;
    return bk_k_rotate_heads(n->ctx, &a);
}

const bk_op bk_op_rotate_heads = {.name = "rotate_heads",
                                  .formula = "y_h = x_h M of its KV head",
                                  .n_in_min = 2,
                                  .n_in_max = 2,
                                  .n_out = 1,
                                  .attr_size = sizeof(attr),
                                  .diff_in = 1,
                                  .infer = infer,
                                  .forward = forward,
                                  .backward = backward};

bk_tensor *bk_rotate_heads(bk_ctx *ctx, bk_tensor *x, bk_tensor *m, int64_t heads)
{
    return bk_apply(ctx, &bk_op_rotate_heads, (bk_tensor *[]){x, m}, 2, &(attr){heads});
}
