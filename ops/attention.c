/* p = softmax(q k^T / sqrt(d)) over the visible keys, o = p v.  With D = rowsum(do o):
 * dv = p^T do;  ds = p (do v^T - D);  dq = ds k / sqrt(d);  dk = ds^T q / sqrt(d).  p is rebuilt from the saved log-sum-exp. */
#include <math.h>

#include "ops/ops.h"

enum { Q, K, V, PREFIX_K, PREFIX_V };

typedef struct attr {
    int64_t heads, kv_heads, window;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *q = n->in[Q], *k = n->in[K], *v = n->in[V], *pk = n->in[PREFIX_K], *pv = n->in[PREFIX_V];
    const attr *a = n->attr;
    char sq[80], sk[80];
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads)
        return bk_op_fail(n, BK_EINVAL, "%lld query heads cannot share %lld key/value heads", (long long)a->heads, (long long)a->kv_heads);
    if (a->window < 0) return bk_op_fail(n, BK_EINVAL, "window %lld, want >= 0", (long long)a->window);
    if (q->ndim != 3 || q->dim[2] % a->heads) return bk_op_fail(n, BK_ESHAPE, "q is %s, want [B,T,%lld*d]", bk_shape_str(q, sq), (long long)a->heads);
    int64_t d = q->dim[2] / a->heads;
    if (!bk_same_shape(k, v) || k->ndim != 3 || k->dim[0] != q->dim[0] || k->dim[1] != q->dim[1] || k->dim[2] != a->kv_heads * d)
        return bk_op_fail(n, BK_ESHAPE, "k is %s, q is %s; want k and v [B,T,%lld]", bk_shape_str(k, sk), bk_shape_str(q, sq),
                          (long long)(a->kv_heads * d));
    if (!pk != !pv) return bk_op_fail(n, BK_EINVAL, "prefix keys and values come together");
    if (pk && (!bk_same_shape(pk, pv) || pk->ndim != 3 || pk->dim[0] != a->kv_heads || pk->dim[2] != d))
        return bk_op_fail(n, BK_ESHAPE, "prefix keys are %s, want [%lld,P,%lld]", bk_shape_str(pk, sk), (long long)a->kv_heads, (long long)d);
    bk_op_out_like(n, 0, q);
    bk_op_save(n, 0, 3, (int64_t[]){q->dim[0], a->heads, q->dim[1]});
    return BK_OK;
}

static bk_attention_fwd_args args(const bk_node *n)
{
    const bk_tensor *q = n->in[Q], *pk = n->in[PREFIX_K];
    const attr *a = n->attr;
    int64_t d = q->dim[2] / a->heads;
    return (bk_attention_fwd_args){.batch = q->dim[0], .tokens = q->dim[1], .heads = a->heads, .kv_heads = a->kv_heads, .dim = d,
                                   .prefix = pk ? pk->dim[1] : 0, .window = a->window, .scale = 1 / sqrt((double)d), .q = q->data,
                                   .k = n->in[K]->data, .v = n->in[V]->data, .prefix_k = bk_data(pk), .prefix_v = bk_data(n->in[PREFIX_V]),
                                   .o = n->out[0]->data, .lse = n->saved[0]->data};
}

static bk_status forward(bk_node *n)
{
    bk_attention_fwd_args a = args(n);
    return bk_k_attention_fwd(n->ctx, &a);
}

static bk_status backward(bk_node *n)
{
    return bk_k_attention_bwd(n->ctx, &(bk_attention_bwd_args){.f = args(n), .d_o = bk_dout(n, 0), .dq = bk_grad_data(n, Q),
                                                               .dk = bk_grad_data(n, K), .dv = bk_grad_data(n, V)});
}

const bk_op bk_op_attention = {.name = "attention", .formula = "o = softmax(q k^T / sqrt(d)) v, causal, prefix keys visible", .n_in_min = 3,
                               .n_in_max = 5, .n_out = 1, .attr_size = sizeof(attr), .diff_in = 7, .infer = infer, .forward = forward,
                               .backward = backward};

bk_tensor *bk_attention(bk_ctx *ctx, bk_tensor *q, bk_tensor *k, bk_tensor *v, bk_tensor *prefix_k, bk_tensor *prefix_v, int64_t heads,
                        int64_t kv_heads, int64_t window)
{
    return bk_apply(ctx, &bk_op_attention, (bk_tensor *[]){q, k, v, prefix_k, prefix_v}, 5, &(attr){heads, kv_heads, window});
}
