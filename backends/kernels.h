/* The kernel slots: one args struct per slot and the list of them (BK_SLOTS). Pure interface: no engine, no backend.
 *
 * Rules for every kernel
 *  - Pointers named in `const void *` / `void *` are arrays of the backend's real type (bk_backend.dtype: f32, or f64 on ref), contiguous,
 *    row-major, in backend memory; `double *` are arrays of f64 whatever that type; `const int32_t *` are ids. Outputs never overlap inputs
 *    unless the slot says so.
 *  - Forward kernels overwrite their outputs. Backward kernels ACCUMULATE (+=) into d*; a d* that is NULL is not wanted.
 *  - No allocation: scratch comes from `w` (bk_backend.work tells how much a call needs). No global state.
 *  - Same bytes whatever the number of threads: reductions in fixed order (per row: 32 strided lanes, then a halving tree;
 *    over rows: fixed tiles of rows, then the same tree). No atomics.
 *  - Rounding is half to even; the clip mask is inclusive (docs/numerics.md, Rounding and codes).
 */
#ifndef BK_KERNELS_H
#define BK_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/status.h"

typedef enum bk_dtype { BK_F32, BK_F64, BK_I32, BK_U8, BK_DTYPE_COUNT } bk_dtype;

/* Scratch memory of one kernel call, 64-byte aligned. */
typedef struct bk_work {
    void *base;
    size_t size;
} bk_work;

/* C[m,n] = op(A) op(B) + beta C.  op(A) is A [m,k] or, with ta, A^T of A [k,m]; op(B) is B [k,n] or, with tb, B^T of B [n,k]. beta 0 or 1. */
typedef struct bk_gemm_args {
    int64_t m, n, k;
    int ta, tb;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int beta;
} bk_gemm_args;

/* y[rows,cols] += b[cols] */
typedef struct bk_bias_fwd_args {
    int64_t rows, cols;
    const void *b;
    void *y;
} bk_bias_fwd_args;
/* db[cols] += column sums of dy[rows,cols] */
typedef struct bk_bias_bwd_args {
    int64_t rows, cols;
    const void *dy;
    void *db;
} bk_bias_bwd_args;

/* y = x * rstd * w over rows of `cols`; rstd[rows] = 1/sqrt(mean(x^2) + eps) */
typedef struct bk_rmsnorm_fwd_args {
    int64_t rows, cols;
    double eps;
    const void *x, *w;
    void *y, *rstd;
} bk_rmsnorm_fwd_args;
typedef struct bk_rmsnorm_bwd_args {
    int64_t rows, cols;
    const void *x, *w, *rstd, *dy;
    void *dx, *dw;
} bk_rmsnorm_bwd_args;

/* Half-rotation RoPE: x[batch,tokens,heads,dim]; token t takes row pos0 + t of table[positions, dim] = (cos[dim/2], sin[dim/2]).
 * y_i = x_i cos_i - x_{i+dim/2} sin_i;  y_{i+dim/2} = x_{i+dim/2} cos_i + x_i sin_i. `inverse` turns back; `accumulate` adds to y. */
typedef struct bk_rope_args {
    int64_t batch, tokens, heads, dim, pos0;
    const void *x, *table;
    void *y;
    int inverse, accumulate;
} bk_rope_args;

/* Causal grouped-query attention. q[B,T,H,d], k,v[B,T,Hkv,d], prefix_k,prefix_v[Hkv,P,d] (NULL if P = 0), o[B,T,H,d], lse[B,H,T].
 * Query head h reads kv head h / (H/Hkv). Token t sees all P prefix keys and real keys max(0, t-window+1) .. t (window 0: 0 .. t).
 * scores = scale q.k;  lse = log-sum-exp of the visible scores.  The T x T matrix is never kept: backward rebuilds it in tiles. */
typedef struct bk_attention_fwd_args {
    int64_t batch, tokens, heads, kv_heads, dim, prefix, window;
    double scale;
    const void *q, *k, *v, *prefix_k, *prefix_v;
    void *o, *lse;
} bk_attention_fwd_args;
typedef struct bk_attention_bwd_args {
    bk_attention_fwd_args f; /* o and lse as the forward left them */
    const void *d_o;         /* gradient of o */
    void *dq, *dk, *dv;
} bk_attention_bwd_args;
/* err[Hkv] (f64) += sum over batch, group's query heads, tokens, keys of (softmax(scale q k) - softmax(scale q k2))^2: the key search's objective */
typedef struct bk_score_err_args {
    bk_attention_fwd_args f; /* v, prefix_v, o, lse unused */
    const void *k2;
    double *err;
} bk_score_err_args;

/* y = silu(gate) * up, silu(x) = x / (1 + exp(-x)); finite for every finite input */
typedef struct bk_swiglu_fwd_args {
    int64_t n;
    const void *gate, *up;
    void *y;
} bk_swiglu_fwd_args;
typedef struct bk_swiglu_bwd_args {
    int64_t n;
    const void *gate, *up, *dy;
    void *dgate, *dup;
} bk_swiglu_bwd_args;

/* y = a + b */
typedef struct bk_add_args {
    int64_t n;
    const void *a, *b;
    void *y;
} bk_add_args;
/* y += alpha x */
typedef struct bk_axpy_args {
    int64_t n;
    double alpha;
    const void *x;
    void *y;
} bk_axpy_args;

/* y = a b, added to y if `accumulate` */
typedef struct bk_mul_args {
    int64_t n;
    const void *a, *b;
    void *y;
    int accumulate;
} bk_mul_args;
/* y = alpha a / b */
typedef struct bk_quotient_fwd_args {
    int64_t n;
    double alpha;
    const void *a, *b;
    void *y;
} bk_quotient_fwd_args;
typedef struct bk_quotient_bwd_args {
    int64_t n;
    double alpha;
    const void *a, *b, *dy;
    void *da, *db;
} bk_quotient_bwd_args;
/* y = sigmoid(x) / sigmoid(at): exactly 1 where x = at */
typedef struct bk_logistic_fwd_args {
    int64_t n;
    double at;
    const void *x;
    void *y;
} bk_logistic_fwd_args;
typedef struct bk_logistic_bwd_args {
    int64_t n;
    double at;
    const void *x, *dy;
    void *dx;
} bk_logistic_bwd_args;

/* y[n,cols] = table[ids]; backward adds up repeated ids in the order of n */
typedef struct bk_embedding_fwd_args {
    int64_t n, cols, vocab;
    const void *table;
    const int32_t *ids;
    void *y;
} bk_embedding_fwd_args;
typedef struct bk_embedding_bwd_args {
    int64_t n, cols, vocab;
    const int32_t *ids;
    const void *dy;
    void *dtable;
} bk_embedding_bwd_args;

/* y = M x (or M^T x) for rows of length n = blocks * base * pow2, M = blockdiag of (H_base (x) Sylvester_pow2) / sqrt(base * pow2):
 * view a block as [base, pow2], butterflies on each row of pow2, then H_base across the rows, then the scale. h: base x base, +-1, real
 * type, NULL if base = 1. */
typedef struct bk_hadamard_args {
    int64_t rows, base, pow2, blocks;
    const void *x, *h;
    void *y;
    int transpose, accumulate;
} bk_hadamard_args;

/* y_h = x_h M (or x_h M^T) for every head h of x[rows, heads * dim], in row form, with M = m[h / (heads / kv_heads)] of m[kv_heads, dim, dim]. */
typedef struct bk_rotate_heads_args {
    int64_t rows, heads, kv_heads, dim;
    const void *x, *m;
    void *y;
    int transpose, accumulate;
} bk_rotate_heads_args;

/* Published reconstruction losses over pred, target [samples * tokens, cols] -> loss[1].
 * mse: mean of all (p - t)^2.  skip_mse: mse with the 3 tokens per sample of largest mean|target| zeroed, still divided by all elements.
 * clamp_mse: both clamped to +-10.  normalized_mse: both divided by the token's max|target| (1 if that is 0).  cosine: 1 - mean cosine per token. */
typedef enum bk_loss_kind { BK_LOSS_MSE, BK_LOSS_SKIP_MSE, BK_LOSS_CLAMP_MSE, BK_LOSS_NORMALIZED_MSE, BK_LOSS_COSINE, BK_LOSS_COUNT } bk_loss_kind;
typedef struct bk_loss_fwd_args {
    bk_loss_kind kind;
    int64_t samples, tokens, cols;
    const void *pred, *target;
    void *loss;
} bk_loss_fwd_args;
typedef struct bk_loss_bwd_args {
    bk_loss_kind kind;
    int64_t samples, tokens, cols;
    const void *pred, *target, *dloss; /* dloss[1] */
    void *dpred;
} bk_loss_bwd_args;

/* nll[rows] = -log softmax(logits[rows,cols])[target]; lse[rows] saved. A target outside 0..cols-1 is BK_EINVAL. */
typedef struct bk_xent_fwd_args {
    int64_t rows, cols;
    const void *logits;
    const int32_t *target;
    void *nll, *lse;
} bk_xent_fwd_args;
typedef struct bk_xent_bwd_args {
    int64_t rows, cols;
    const void *logits, *lse, *dnll;
    const int32_t *target;
    void *dlogits;
} bk_xent_bwd_args;

/* Gradient checks difference the function with its rounding frozen: RECORD stores residual and clip mask, REPLAY uses them (ref only). */
typedef enum bk_freeze { BK_FREEZE_OFF, BK_FREEZE_RECORD, BK_FREEZE_REPLAY } bk_freeze;

/* How x / s becomes a level: rne(x / s), or with v[rows,cols] as that says. h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1). */
typedef enum bk_rounding {
    BK_ROUND_OFFSET, /* rne(x / s + v) */
    BK_ROUND_SOFT    /* floor(x / s) + h(v), whole where h is 0 or 1 */
} bk_rounding;

/* Fake-quantization with stored steps (weights, static activations): x[rows,cols] in groups of `group` along a row;
 * parameter index = row * (cols/group) + g when per_row (weights), g otherwise (activations: per tensor group = cols, per head group = head dim).
 * u = level + zr; c = clamp(u, qmin, qmax); y = (c - zr) s; zr = clamp(rne(z), qmin, qmax), 0 if z is NULL.
 * codes (may be NULL) gets c, its whole part where that is soft. y may be NULL when only codes are wanted. */
typedef struct bk_fakequant_fwd_args {
    int64_t rows, cols, group;
    int per_row, qmin, qmax;
    const void *x, *s, *z;
    void *y;
    int32_t *codes;
    bk_freeze freeze;
    void *frozen; /* [2 * rows * cols] reals: residual, and code or NaN: ref only */
    bk_rounding rounding;
    const void *v; /* NULL: none */
} bk_fakequant_fwd_args;
/* dx += dy in the mask; ds += sum dy (c - zr - x/s in the mask, c - zr outside); dz += sum dy (0 in the mask, -s outside);
 * dv += dy s (times h'(v) if soft) in the mask. */
typedef struct bk_fakequant_bwd_args {
    int64_t rows, cols, group;
    int per_row, qmin, qmax;
    const void *x, *s, *z, *dy;
    void *dx, *ds, *dz;
    bk_rounding rounding;
    const void *v;
    void *dv;
} bk_fakequant_bwd_args;

/* loss[1] = lambda sum (1 - |2 h(v) - 1|^beta): 0 where every h(v) is 0 or 1 */
typedef struct bk_round_penalty_fwd_args {
    int64_t n;
    double lambda, beta;
    const void *v;
    void *loss;
} bk_round_penalty_fwd_args;
typedef struct bk_round_penalty_bwd_args {
    int64_t n;
    double lambda, beta;
    const void *v, *dloss; /* dloss[1] */
    void *dv;
} bk_round_penalty_bwd_args;

/* Fake-quantization with ranges of each (row, group): docs/numerics.md. gamma[1], beta[1] (NULL = 1).
 * symmetric: m = max|x|, Q = qmax - qmin, s = 2 gamma m / Q, codes from (x / m) * (Q / (2 gamma)), y = c s; zero row: y = 0.
 * asymmetric (qmin = 0): s = (gamma max - beta min) / qmax, z = -rne(beta min / s), without bounds or, `bounded`, kept in 0 .. qmax, c = clamp(rne(x/s) + z, 0, qmax), y = (c - z) s;
 * max - min < 1e-5 max|x| (or = 0): s = max|x| (1 if 0), z = -rne(min/s), which reconstructs the group to 1e-5, dx += dy;
 * gamma max - beta min <= 0, or a symmetric gamma <= 0: the factors count as 1.
 * step, zero [rows * cols/group] (may be NULL) get s and z. */
typedef struct bk_dynquant_fwd_args {
    int64_t rows, cols, group;
    int symmetric, qmin, qmax, bounded;
    const void *x, *gamma, *beta;
    void *y, *step, *zero;
    int32_t *codes;
    bk_freeze freeze;
    void *frozen; /* [2 * rows * cols + rows * cols/group] reals: residual, code or NaN, zero: ref only */
} bk_dynquant_fwd_args;
/* With G = sum over the group of dy (c - z - x/s in the mask, c - z outside):
 * symmetric: dx += dy [mask] + G (2 gamma/Q) sign(x)/ties at the maxima of |x|; dgamma += sum G 2 m / Q.
 * asymmetric: dx += dy [mask] + G gamma/Q /ties at the maxima - G beta/Q /ties at the minima; dgamma += sum G max/Q; dbeta -= sum G min/Q. */
typedef struct bk_dynquant_bwd_args {
    int64_t rows, cols, group;
    int symmetric, qmin, qmax, bounded;
    const void *x, *gamma, *beta, *dy;
    void *dx, *dgamma, *dbeta;
} bk_dynquant_bwd_args;

/* Steps (and zero points) of a weight, one for each row and `group` columns, fitted to its min and max (bk_quant_step). With `clip` to
 * p min .. p max for the p = 1 - i/100, i = 0 .. 79, whose sum of |Q(w) - w|^2.4 over the group is smallest; ties: the smaller i. */
typedef struct bk_fit_steps_args {
    int64_t rows, cols, group;
    int bits, symmetric, restricted, clip;
    const void *w;
    void *step, *zero; /* [rows, cols/group]; zero is NULL when symmetric */
} bk_fit_steps_args;
/* Rounds w[rows,cols] in place column by column, f.w unused: each error e = (w - q) / U_ii is taken off the columns that follow,
 * w_j -= e U_ij (GPTQ, arXiv 2210.17323). The i-th column is order[i] (NULL: i); u[cols,cols] has U above and on the diagonal, in that
 * order (NULL: 1, which is rounding to nearest). q is what fakequant makes of w with the same step, in the real type; the rest is in f64.
 * refit: the group of the i-th column is i / f.group, fitted when its first column is met, to weights with all that was taken off by then.
 * Otherwise steps are given, and the group of column j is j / f.group.
 * codes[rows,cols] (may be NULL) get the codes, loss[rows] the sums of (w - q)^2 / (2 U_ii^2). */
typedef struct bk_gptq_args {
    bk_fit_steps_args f;
    int refit;
    const int32_t *order;
    const double *u;
    void *w;
    int32_t *codes;
    double *loss;
} bk_gptq_args;

/* lo, hi = min and max per parameter index (as in fakequant); `accumulate` keeps the smaller / larger of old and new. */
typedef struct bk_minmax_args {
    int64_t rows, cols, group;
    int per_row, accumulate;
    const void *x;
    void *lo, *hi;
} bk_minmax_args;
/* out[rows] = max over the row of |x| */
typedef struct bk_absmax_args {
    int64_t rows, cols;
    const void *x;
    void *out;
} bk_absmax_args;
/* err[cols/group] (f64, host or backend memory as the backend's) += sum over rows and group of (a - b)^2 */
typedef struct bk_sqerr_args {
    int64_t rows, cols, group;
    const void *a, *b;
    double *err;
} bk_sqerr_args;
/* out[rows] (f64) = sum over the row of a b */
typedef struct bk_rowdot_args {
    int64_t rows, cols;
    const void *a, *b;
    double *out;
} bk_rowdot_args;

/* AdamW step t = 1, 2, ... (decoupled weight decay): p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * p -= lr/(1-b1^t) m / (sqrt(v/(1-b2^t)) + eps) */
typedef struct bk_adamw_args {
    int64_t n, t;
    double lr, beta1, beta2, eps, wd;
    void *p, *m, *v;
    const void *g;
} bk_adamw_args;
/* p -= lr sign(g), sign(0) = 0 */
typedef struct bk_signsgd_args {
    int64_t n;
    double lr;
    void *p;
    const void *g;
} bk_signsgd_args;
/* p = min(max(p, lo), hi) elementwise */
typedef struct bk_clamp_args {
    int64_t n;
    double lo, hi;
    void *p;
} bk_clamp_args;
/* p = max(p, lo) elementwise; *count (f64[1]) += number of elements raised */
typedef struct bk_floor_args {
    int64_t n;
    void *p;
    const void *lo;
    double *count;
} bk_floor_args;
/* *sum (f64[1]) = sum of squares */
typedef struct bk_sumsq_args {
    int64_t n;
    const void *x;
    double *sum;
} bk_sumsq_args;
/* *first (f64[1]) = index of the first NaN or Inf, -1 if there is none */
typedef struct bk_finite_args {
    int64_t n;
    const void *x;
    double *first;
} bk_finite_args;
typedef struct bk_fill_args {
    int64_t n;
    double value;
    void *x;
} bk_fill_args;
typedef struct bk_scale_args {
    int64_t n;
    double alpha;
    void *x;
} bk_scale_args;

/* --- linear algebra in f64, whatever the real type --- */

/* As gemm, with a, b and c of f64. */
typedef bk_gemm_args bk_gemm_f64_args;
/* h[cols,cols] += alpha X^T X, X = x[rows,cols]; h is symmetric before and after, to the bit. */
typedef struct bk_gram_args {
    int64_t rows, cols;
    double alpha;
    const void *x;
    double *h;
} bk_gram_args;
/* H' = R R^T with R upper triangular, for H'_ij = H[order_i, order_j] off the diagonal and diag[order_i] + shift on it (order NULL: i; a
 * permutation). h[n,n] holds a symmetric H: only its part below the diagonal is read, and kept; R replaces the diagonal and what is above.
 * So a factorization that failed can be tried again with a larger shift. *bad (f64[1]) = the i whose pivot is not positive and finite (R is
 * then of no use), -1 if there is none. Pivots are met from the last row to the first. */
typedef struct bk_cholesky_args {
    int64_t n;
    double shift;
    const double *diag;
    const int32_t *order;
    double *h, *bad;
} bk_cholesky_args;
/* u[n,n]: R becomes R^-1. Both are upper triangular; what lies below the diagonal is neither read nor changed. After `cholesky`:
 * H'^-1 = U^T U with U = R^-1. */
typedef struct bk_trtri_args {
    int64_t n;
    double *u;
} bk_trtri_args;
/* A V = V diag(values) of a symmetric a[n,n]: values[n] descending, unit eigenvectors as columns of vectors[n,n], each with the sign that
 * makes its entry of largest magnitude positive (bk_canonical_sign). BK_ENUMERIC if an entry is not finite or it does not converge. */
typedef struct bk_eigh_args {
    int64_t n;
    const double *a;
    double *values, *vectors;
} bk_eigh_args;

#define BK_SLOTS(BK_SLOT)                                 \
    BK_SLOT(gemm, bk_gemm_args)                           \
    BK_SLOT(bias_fwd, bk_bias_fwd_args)                   \
    BK_SLOT(bias_bwd, bk_bias_bwd_args)                   \
    BK_SLOT(rmsnorm_fwd, bk_rmsnorm_fwd_args)             \
    BK_SLOT(rmsnorm_bwd, bk_rmsnorm_bwd_args)             \
    BK_SLOT(rope, bk_rope_args)                           \
    BK_SLOT(attention_fwd, bk_attention_fwd_args)         \
    BK_SLOT(attention_bwd, bk_attention_bwd_args)         \
    BK_SLOT(score_err, bk_score_err_args)                 \
    BK_SLOT(swiglu_fwd, bk_swiglu_fwd_args)               \
    BK_SLOT(swiglu_bwd, bk_swiglu_bwd_args)               \
    BK_SLOT(add, bk_add_args)                             \
    BK_SLOT(axpy, bk_axpy_args)                           \
    BK_SLOT(mul, bk_mul_args)                             \
    BK_SLOT(quotient_fwd, bk_quotient_fwd_args)           \
    BK_SLOT(quotient_bwd, bk_quotient_bwd_args)           \
    BK_SLOT(logistic_fwd, bk_logistic_fwd_args)           \
    BK_SLOT(logistic_bwd, bk_logistic_bwd_args)           \
    BK_SLOT(embedding_fwd, bk_embedding_fwd_args)         \
    BK_SLOT(embedding_bwd, bk_embedding_bwd_args)         \
    BK_SLOT(hadamard, bk_hadamard_args)                   \
    BK_SLOT(rotate_heads, bk_rotate_heads_args)           \
    BK_SLOT(loss_fwd, bk_loss_fwd_args)                   \
    BK_SLOT(loss_bwd, bk_loss_bwd_args)                   \
    BK_SLOT(xent_fwd, bk_xent_fwd_args)                   \
    BK_SLOT(xent_bwd, bk_xent_bwd_args)                   \
    BK_SLOT(fakequant_fwd, bk_fakequant_fwd_args)         \
    BK_SLOT(fakequant_bwd, bk_fakequant_bwd_args)         \
    BK_SLOT(dynquant_fwd, bk_dynquant_fwd_args)           \
    BK_SLOT(dynquant_bwd, bk_dynquant_bwd_args)           \
    BK_SLOT(fit_steps, bk_fit_steps_args)                 \
    BK_SLOT(gptq, bk_gptq_args)                           \
    BK_SLOT(round_penalty_fwd, bk_round_penalty_fwd_args) \
    BK_SLOT(round_penalty_bwd, bk_round_penalty_bwd_args) \
    BK_SLOT(minmax, bk_minmax_args)                       \
    BK_SLOT(absmax, bk_absmax_args)                       \
    BK_SLOT(sqerr, bk_sqerr_args)                         \
    BK_SLOT(rowdot, bk_rowdot_args)                       \
    BK_SLOT(adamw, bk_adamw_args)                         \
    BK_SLOT(signsgd, bk_signsgd_args)                     \
    BK_SLOT(clamp, bk_clamp_args)                         \
    BK_SLOT(floor, bk_floor_args)                         \
    BK_SLOT(sumsq, bk_sumsq_args)                         \
    BK_SLOT(finite, bk_finite_args)                       \
    BK_SLOT(fill, bk_fill_args)                           \
    BK_SLOT(scale, bk_scale_args)                         \
    BK_SLOT(gemm_f64, bk_gemm_f64_args)                   \
    BK_SLOT(gram, bk_gram_args)                           \
    BK_SLOT(cholesky, bk_cholesky_args)                   \
    BK_SLOT(trtri, bk_trtri_args)                         \
    BK_SLOT(eigh, bk_eigh_args)

typedef enum bk_slot {
#define BK_SLOT(name, args) BK_SLOT_##name,
    BK_SLOTS(BK_SLOT)
#undef BK_SLOT
    BK_SLOT_COUNT
} bk_slot;

typedef struct bk_kernels {
#define BK_SLOT(name, args) bk_status (*name)(const args *a, const bk_work *w);
    BK_SLOTS(BK_SLOT)
#undef BK_SLOT
} bk_kernels;

#endif
