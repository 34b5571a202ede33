/* y = (1 - t) a + t b
 * da = (1 - t) dy;  db = t dy
 *
 * With a = x, b = quantized x and t rising from 0 to 1 a graph goes over from full precision to quantized little by little.
 * A worked example: docs/adding-an-op.md. tests/test_example_op.c compiles and tests it. */
#include "autograd/op.h"

typedef struct attr {
    double t;
} attr;

static bk_status infer(bk_node *n)
{
    const bk_tensor *a = n->in[0], *b = n->in[1];
    char sa[80], sb[80];
    if (!bk_same_shape(a, b)) return bk_op_fail(n, BK_ESHAPE, "a is %s, b is %s; want the same shape", bk_shape_str(a, sa), bk_shape_str(b, sb));
    double t = ((const attr *)n->attr)->t;
    if (!(t >= 0 && t <= 1)) return bk_op_fail(n, BK_EINVAL, "t is %g, want 0 .. 1", t);
    bk_op_out_like(n, 0, a);
    return BK_OK;
}

/* y += alpha x */
static bk_status add_to(bk_node *n, double alpha, const void *x, void *y)
{
    return bk_k_axpy(n->ctx, &(bk_axpy_args){.n = bk_numel(n->out[0]), .alpha = alpha, .x = x, .y = y});
}

static bk_status forward(bk_node *n)
{
    double t = ((const attr *)n->attr)->t;
    void *y = n->out[0]->data;
    BK_TRY(bk_k_fill(n->ctx, &(bk_fill_args){.n = bk_numel(n->out[0]), .value = 0, .x = y}));
    BK_TRY(add_to(n, 1 - t, n->in[0]->data, y));
    return add_to(n, t, n->in[1]->data, y);
}

static bk_status backward(bk_node *n)
{
    double t = ((const attr *)n->attr)->t;
    if (bk_wants(n, 0)) BK_TRY(add_to(n, 1 - t, bk_dout(n, 0), bk_grad_data(n, 0)));
    return bk_wants(n, 1) ? add_to(n, t, bk_dout(n, 0), bk_grad_data(n, 1)) : BK_OK;
}

const bk_op bk_op_blend = {.name = "blend", .formula = "y = (1 - t) a + t b", .n_in_min = 2, .n_in_max = 2, .n_out = 1,
                           .attr_size = sizeof(attr), .diff_in = 3, .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_blend(bk_ctx *ctx, bk_tensor *a, bk_tensor *b, double t);

bk_tensor *bk_blend(bk_ctx *ctx, bk_tensor *a, bk_tensor *b, double t)
{
    return bk_apply(ctx, &bk_op_blend, (bk_tensor *[]){a, b}, 2, &(attr){t});
}
