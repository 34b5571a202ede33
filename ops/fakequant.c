/* c = clamp(level + z, qmin, qmax), y = (c - z) s, level = rne(x / s)  (PrefixQuant, arXiv 2410.05265, eq. 1-2; rounding straight through)
 * with v: level = rne(x / s + v)  (SignRound, arXiv 2309.05516), or floor(x / s) + h(v), h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1)
 * (AdaRound, arXiv 2004.10568)
 * dx = dy inside the clip range;  ds = sum dy (c - z - x/s inside, c - z outside);  dz = sum dy (0 inside, -s outside);
 * dv = dy s inside, times h'(v) where it is soft */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    const bk_tensor *x = n->in[0], *s = n->in[1], *z = n->in[2], *v = n->in[3];
    const bk_fakequant_attr *a = n->attr;
    char sx[80], ss[80];
    int64_t cols = bk_last_dim(x);
    if (a->group < 1 || cols % a->group)
        return bk_op_fail(n, BK_ESHAPE, "group size %lld does not divide the last dimension of %s %s", (long long)a->group, x->name ? x->name : "x",
                          bk_shape_str(x, sx));
    if (a->qmin >= a->qmax) return bk_op_fail(n, BK_EINVAL, "codes %d..%d", a->qmin, a->qmax);
    int64_t want = cols / a->group * (a->per_row ? bk_rows(x) : 1);
    if (bk_numel(s) != want || (z && bk_numel(z) != want))
        return bk_op_fail(n, BK_ESHAPE, "steps are %s, x is %s in groups of %lld; want %lld steps", bk_shape_str(s, ss), bk_shape_str(x, sx),
                          (long long)a->group, (long long)want);
    if (v && !bk_same_shape(v, x)) return bk_op_fail(n, BK_ESHAPE, "v is %s, x is %s", bk_shape_str(v, ss), bk_shape_str(x, sx));
    if (!v && a->rounding == BK_ROUND_SOFT) return bk_op_fail(n, BK_EINVAL, "soft rounding needs v");
    bk_op_out_like(n, 0, x);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *x = n->in[0];
    const bk_fakequant_attr *a = n->attr;
    bk_fakequant_fwd_args k = {.rows = bk_rows(x), .cols = bk_last_dim(x), .group = a->group, .per_row = a->per_row, .qmin = a->qmin,
                               .qmax = a->qmax, .x = x->data, .s = n->in[1]->data, .z = bk_data(n->in[2]), .y = n->out[0]->data,
                               .rounding = a->rounding, .v = bk_data(n->in[3])};
    BK_TRY(bk_op_freeze(n, 2 * bk_numel(x), &k.freeze, &k.frozen));
    return bk_k_fakequant_fwd(n->ctx, &k);
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *x = n->in[0];
    const bk_fakequant_attr *a = n->attr;
    return bk_k_fakequant_bwd(n->ctx, &(bk_fakequant_bwd_args){.rows = bk_rows(x), .cols = bk_last_dim(x), .group = a->group,
                                                               .per_row = a->per_row, .qmin = a->qmin, .qmax = a->qmax, .x = x->data,
                                                               .s = n->in[1]->data, .z = bk_data(n->in[2]), .dy = bk_dout(n, 0),
                                                               .dx = bk_grad_data(n, 0), .ds = bk_grad_data(n, 1), .dz = bk_grad_data(n, 2),
                                                               .rounding = a->rounding, .v = bk_data(n->in[3]), .dv = bk_grad_data(n, 3)});
}

const bk_op bk_op_fakequant = {.name = "fakequant", .formula = "y = (clamp(rne(x/s + v) + z) - z) s", .n_in_min = 2, .n_in_max = 4, .n_out = 1,
                               .attr_size = sizeof(bk_fakequant_attr), .diff_in = 15, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_fakequant_rounded(bk_ctx *ctx, bk_tensor *x, bk_tensor *s, bk_tensor *z, bk_tensor *v, const bk_fakequant_attr *attr)
{
    return bk_apply(ctx, &bk_op_fakequant, (bk_tensor *[]){x, s, z, v}, 4, attr);
}

bk_tensor *bk_fakequant(bk_ctx *ctx, bk_tensor *x, bk_tensor *s, bk_tensor *z, const bk_fakequant_attr *attr)
{
    return bk_fakequant_rounded(ctx, x, s, z, NULL, attr);
}
