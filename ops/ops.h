/* The differentiable ops. All tensors are contiguous; [..., C] means any leading dimensions. Builders are sticky (autograd/tensor.h).
 * Errors go to the context: BK_ESHAPE for shapes, BK_EINVAL for attributes, BK_ENOMEM. Formulas stand at the head of each ops/NAME.c. */
#ifndef BK_OPS_H
#define BK_OPS_H

#include "autograd/op.h"

/* y = x w^T + b.  x [..., in], w [out, in], b [out] or NULL -> y [..., out].  Gradients: x, w, b. */
bk_tensor *bk_linear(bk_ctx *ctx, bk_tensor *x, bk_tensor *w, bk_tensor *b);

/* y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps) over the last w.dim values (so w [d] on x [..., H d] normalises every head).
 * Gradients: x, w.  Saves rstd. */
bk_tensor *bk_rmsnorm(bk_ctx *ctx, bk_tensor *x, bk_tensor *w, double eps);

/* Half-rotation RoPE of x [B, T, heads d]; token t stands at position pos0 + t.  table [positions, d] = (cos, sin) of bk_rope_table.
 * Gradient: x. */
bk_tensor *bk_rope(bk_ctx *ctx, bk_tensor *x, bk_tensor *table, int64_t heads, int64_t pos0);

/* Causal grouped-query attention (bk_attention_fwd_args).  q [B, T, H d], k, v [B, T, Hkv d], prefix_k, prefix_v [Hkv, P, d] or NULL -> [B, T, H d];
 * scale 1/sqrt(d).  window 0 = none.  Gradients: q, k, v.  Saves the log-sum-exp per row. */
bk_tensor *bk_attention(bk_ctx *ctx, bk_tensor *q, bk_tensor *k, bk_tensor *v, bk_tensor *prefix_k, bk_tensor *prefix_v, int64_t heads,
                        int64_t kv_heads, int64_t window);

/* y = silu(gate) * up.  Gradients: both. */
bk_tensor *bk_swiglu(bk_ctx *ctx, bk_tensor *gate, bk_tensor *up);

/* y = a + b, same shapes.  Gradients: both. */
bk_tensor *bk_add(bk_ctx *ctx, bk_tensor *a, bk_tensor *b);

/* y = a b, element by element, same shapes.  Gradients: both. */
bk_tensor *bk_mul(bk_ctx *ctx, bk_tensor *a, bk_tensor *b);

/* y = alpha a / b, element by element, same shapes; b must not hold zeros.  Gradients: both. */
bk_tensor *bk_quotient(bk_ctx *ctx, double alpha, bk_tensor *a, bk_tensor *b);

/* y = value x; what comes back is gradient dy.  (1, g): x itself, whose gradient is scaled by g, as LSQ (arXiv 1902.08153, sec. 2.2) does with
 * its steps.  Gradient: x. */
bk_tensor *bk_scale(bk_ctx *ctx, bk_tensor *x, double value, double gradient);

/* y = sigmoid(x) / sigmoid(at), exactly 1 where x = at.  Gradient: x. */
bk_tensor *bk_logistic(bk_ctx *ctx, bk_tensor *x, double at);

/* y = table[ids].  table [V, C], ids i32 [...] -> [..., C].  Gradient: table. */
bk_tensor *bk_embedding(bk_ctx *ctx, bk_tensor *table, bk_tensor *ids);

/* y = M x on consecutive stretches of blocks * base * pow2 values (bk_hadamard_args); h [base, base] or NULL if base = 1.  Gradient: x. */
typedef struct bk_hadamard_attr {
    int64_t base, pow2, blocks;
    int transpose;
} bk_hadamard_attr;
bk_tensor *bk_hadamard(bk_ctx *ctx, bk_tensor *x, bk_tensor *h, const bk_hadamard_attr *attr);

/* Every head turns by the matrix of its KV head, in row form: y_h = x_h m[h / (H/Hkv)].  x [..., H d], m [Hkv, d, d] -> [..., H d].
 * Gradient: x. */
bk_tensor *bk_rotate_heads(bk_ctx *ctx, bk_tensor *x, bk_tensor *m, int64_t heads);

/* The published reconstruction losses (bk_loss_kind) of pred, target [N, T, C] -> [1].  Gradient: pred. */
bk_tensor *bk_recon_loss(bk_ctx *ctx, bk_loss_kind kind, bk_tensor *pred, bk_tensor *target);

/* nll = -log softmax(logits)[target] per row.  logits [N, V], target i32 [N] -> [N].  Gradient: logits.  Saves the log-sum-exp. */
bk_tensor *bk_cross_entropy(bk_ctx *ctx, bk_tensor *logits, bk_tensor *target);

/* Uniform fake-quantization with stored steps: PrefixQuant eq. 1-2 (bk_fakequant_fwd_args).
 * x [..., C] in groups of `group` along the last dimension.  per_row: x is a weight [out, in], s, z [out, in/group];
 * else s, z [C/group], shared by all rows.  z NULL = symmetric.  v, of x's shape, or NULL moves each value's rounding as attr->rounding says:
 * an offset before it (SignRound) or a soft decision between down and up (AdaRound).
 * Gradients: x, s, z, v (straight-through, EfficientQAT/LSQ; that of a soft decision is exact).  Saves nothing. */
typedef struct bk_fakequant_attr {
    int64_t group;
    int per_row, qmin, qmax;
    bk_rounding rounding; /* of v */
} bk_fakequant_attr;
bk_tensor *bk_fakequant(bk_ctx *ctx, bk_tensor *x, bk_tensor *s, bk_tensor *z, const bk_fakequant_attr *attr);
bk_tensor *bk_fakequant_rounded(bk_ctx *ctx, bk_tensor *x, bk_tensor *s, bk_tensor *z, bk_tensor *v, const bk_fakequant_attr *attr);

/* Fake-quantization with a range per row and group, scaled by gamma [1] (maximum) and beta [1] (minimum), NULL = 1 (bk_dynquant_fwd_args;
 * docs/numerics.md).  x [..., C].  Gradients: x (through max and min), gamma, beta.  Saves nothing. */
typedef struct bk_dynquant_attr {
    int64_t group;
    int symmetric, qmin, qmax;
    int bounded; /* asymmetric: zero points stay in the range of codes */
} bk_dynquant_attr;
bk_tensor *bk_dynquant(bk_ctx *ctx, bk_tensor *x, bk_tensor *gamma, bk_tensor *beta, const bk_dynquant_attr *attr);

/* What pulls the soft decisions v of a fakequant to down or up: lambda sum (1 - |2 h(v) - 1|^beta) (bk_rounding).  v any shape -> [1].
 * beta >= 1.  Gradient: v. */
typedef struct bk_round_penalty_attr {
    double lambda, beta;
} bk_round_penalty_attr;
bk_tensor *bk_round_penalty(bk_ctx *ctx, bk_tensor *v, const bk_round_penalty_attr *attr);

/* The registry. */
#define BK_OP(name) extern const bk_op bk_op_##name;
#include "ops/ops.def"
#undef BK_OP
extern const bk_op *const bk_ops[];
extern const int bk_op_count;

#endif
