#include "tests/cases_ops.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "autograd/rng.h"

static bk_tensor *linear(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_linear(ctx, in[0], in[1], c->in[2].name ? in[2] : NULL);
}

static bk_tensor *rmsnorm(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_rmsnorm(ctx, in[0], in[1], ((const bk_op_case *)user)->eps);
}

static bk_tensor *rope(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_rope(ctx, in[0], in[1], c->heads, c->pos0);
}

static bk_tensor *attention(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    bool prefix = c->in[3].name;
    return bk_attention(ctx, in[0], in[1], in[2], prefix ? in[3] : NULL, prefix ? in[4] : NULL, c->heads, c->kv_heads,
                        c->window);
}

static bk_tensor *swiglu(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_swiglu(ctx, in[0], in[1]);
}

static bk_tensor *add(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_add(ctx, in[0], in[1]);
}

static bk_tensor *mul(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_mul(ctx, in[0], in[1]);
}

static bk_tensor *quotient(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_quotient(ctx, ((const bk_op_case *)user)->alpha, in[0], in[1]);
}

static bk_tensor *scale(bk_ctx *ctx, bk_tensor **in, void *user)
{
    double alpha = ((const bk_op_case *)user)->alpha;
    return bk_scale(ctx, in[0], alpha, alpha);
}

static bk_tensor *logistic(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_logistic(ctx, in[0], ((const bk_op_case *)user)->alpha);
}

static bk_tensor *round_penalty(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_round_penalty(ctx, in[0], &((const bk_op_case *)user)->penalty);
}

static bk_tensor *embedding(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_embedding(ctx, in[0], in[1]);
}

static bk_tensor *hadamard(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_hadamard(ctx, in[0], c->in[1].name ? in[1] : NULL, &c->hadamard);
}

static bk_tensor *rotate_heads(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_rotate_heads(ctx, in[0], in[1], ((const bk_op_case *)user)->heads);
}

static bk_tensor *recon_loss(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_recon_loss(ctx, ((const bk_op_case *)user)->loss, in[0], in[1]);
}

static bk_tensor *cross_entropy(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_cross_entropy(ctx, in[0], in[1]);
}

static bk_tensor *fakequant(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_fakequant(ctx, in[0], in[1], c->in[2].name ? in[2] : NULL, &c->fakequant);
}

/* x, s, v, z: the last may be left out. */
static bk_tensor *rounded(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_fakequant_rounded(ctx, in[0], in[1], c->in[3].name ? in[3] : NULL, in[2], &c->fakequant);
}

static bk_tensor *dynquant(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const bk_op_case *c = user;
    return bk_dynquant(ctx, in[0], c->in[1].name ? in[1] : NULL, c->in[2].name ? in[2] : NULL, &c->dynquant);
}

#define IN(label, what, size, grad, nd, ...) {.name = label, .ndim = nd, .dim = {__VA_ARGS__}, .fill = BK_FILL_##what, .scale = size, .differentiate = grad}
#define X(label, ...) IN(label, NORMAL, 1, true, __VA_ARGS__)
#define CONSTANT(label, ...) IN(label, NORMAL, 1, false, __VA_ARGS__)

/* q, k, v of a batch of two, and a prefix of p rows */
#define QKV(t, h, hkv, d) X("q", 3, 2, t, (h) * (d)), X("k", 3, 2, t, (hkv) * (d)), X("v", 3, 2, t, (hkv) * (d))
#define PREFIX(p, hkv, d) CONSTANT("prefix_k", 3, hkv, p, d), CONSTANT("prefix_v", 3, hkv, p, d)
#define LOSS(label, k, size, n, t, c)                                                                                  \
    {"recon_loss", label, .graph = recon_loss, .loss = k,                                                              \
     .in = {IN("pred", NORMAL, size, true, 3, n, t, c), IN("target", NORMAL, size, false, 3, n, t, c)}}

const bk_op_case bk_op_cases[] = {
    {"linear", "plain", .graph = linear, .in = {X("x", 3, 2, 3, 5), X("w", 2, 4, 5)}},
    {"linear", "bias", .graph = linear, .in = {X("x", 3, 2, 3, 5), X("w", 2, 4, 5), X("b", 1, 4)}},
    {"linear", "one row, one output", .graph = linear, .in = {X("x", 1, 7), X("w", 2, 1, 7), X("b", 1, 1)}},
    {"linear", "tiles and tails", .wide = true, .graph = linear,
     .in = {X("x", 3, 2, 530, 100), X("w", 2, 211, 100), X("b", 1, 211)}},
    {"rmsnorm", "rows", .graph = rmsnorm, .eps = 1e-5, .in = {X("x", 3, 2, 3, 9), X("w", 1, 9)}},
    {"rmsnorm", "heads", .graph = rmsnorm, .eps = 1e-6, .in = {X("x", 2, 3, 12), X("w", 1, 4)}},
    {"rmsnorm", "tiny rows", .graph = rmsnorm, .eps = 1e-5, .in = {IN("x", NORMAL, 1e-3, true, 2, 3, 8), X("w", 1, 8)}},
    {"rmsnorm", "tiles and tails", .wide = true, .graph = rmsnorm, .eps = 1e-5,
     .in = {X("x", 3, 2, 301, 77), X("w", 1, 77)}},
    {"rope", "from 0", .graph = rope, .heads = 2, .in = {X("x", 3, 2, 3, 8), IN("table", ROPE, 1e4, false, 2, 3, 4)}},
    {"rope", "after a prefix", .graph = rope, .heads = 3, .pos0 = 5,
     .in = {X("x", 3, 2, 4, 18), IN("table", ROPE, 1e4, false, 2, 9, 6)}},
    {"rope", "tiles and tails", .wide = true, .graph = rope, .heads = 3, .pos0 = 2,
     .in = {X("x", 3, 2, 129, 66), IN("table", ROPE, 5e5, false, 2, 140, 22)}},
    {"attention", "one token", .graph = attention, .heads = 2, .kv_heads = 1, .in = {QKV(1, 2, 1, 4)}},
    {"attention", "multi-head", .graph = attention, .heads = 2, .kv_heads = 2, .in = {QKV(4, 2, 2, 4)}},
    {"attention", "grouped, prefix", .graph = attention, .heads = 4, .kv_heads = 2,
     .in = {QKV(3, 4, 2, 3), PREFIX(2, 2, 3)}},
    {"attention", "multi-query, prefix, window", .graph = attention, .heads = 3, .kv_heads = 1, .window = 2,
     .in = {QKV(5, 3, 1, 2), PREFIX(1, 1, 2)}},
    {"attention", "window of one, no prefix", .graph = attention, .heads = 1, .kv_heads = 1, .window = 1,
     .in = {QKV(3, 1, 1, 2)}},
    {"attention", "tiles and tails", .wide = true, .graph = attention, .heads = 6, .kv_heads = 2,
     .in = {QKV(149, 6, 2, 24), PREFIX(5, 2, 24)}},
    {"attention", "tiles, tails, window", .wide = true, .graph = attention, .heads = 4, .kv_heads = 4, .window = 70,
     .in = {QKV(139, 4, 4, 16), PREFIX(3, 4, 16)}},
    {"attention", "large scores", .wide = true, .graph = attention, .heads = 2, .kv_heads = 1,
     .in = {IN("q", NORMAL, 8, true, 3, 2, 40, 32), IN("k", NORMAL, 8, true, 3, 2, 40, 16), X("v", 3, 2, 40, 16)}},
    {"swiglu", "plain", .graph = swiglu, .in = {IN("gate", NORMAL, 2, true, 2, 3, 7), X("up", 2, 3, 7)}},
    {"swiglu", "tiles and tails", .wide = true, .graph = swiglu,
     .in = {IN("gate", NORMAL, 20, true, 2, 333, 77), X("up", 2, 333, 77)}},
    {"add", "plain", .graph = add, .in = {X("a", 2, 3, 7), X("b", 2, 3, 7)}},
    {"add", "tiles and tails", .wide = true, .graph = add, .in = {X("a", 2, 333, 77), X("b", 2, 333, 77)}},
    {"mul", "plain", .graph = mul, .in = {X("a", 2, 3, 7), X("b", 2, 3, 7)}},
    {"mul", "tiles and tails", .wide = true, .graph = mul, .in = {X("a", 2, 333, 77), X("b", 2, 333, 77)}},
    {"quotient", "plain", .graph = quotient, .alpha = 15, .in = {X("a", 2, 3, 7), IN("b", STEP, 0.5, true, 2, 3, 7)}},
    {"quotient", "tiles and tails", .wide = true, .graph = quotient, .alpha = 3,
     .in = {X("a", 2, 333, 77), IN("b", STEP, 0.5, true, 2, 333, 77)}},
    {"scale", "plain", .graph = scale, .alpha = -0.3, .in = {X("x", 2, 3, 7)}},
    {"scale", "tiles and tails", .wide = true, .graph = scale, .alpha = 1.7, .in = {X("x", 2, 333, 77)}},
    {"logistic", "plain", .graph = logistic, .alpha = 4, .in = {IN("x", NORMAL, 3, true, 2, 3, 7)}},
    {"logistic", "tiles and tails", .wide = true, .graph = logistic, .alpha = -1, .in = {IN("x", NORMAL, 20, true, 2, 333, 77)}},
    {"embedding", "repeated", .graph = embedding, .in = {X("table", 2, 5, 3), IN("ids", IDS, 5, false, 2, 2, 6)}},
    {"embedding", "tiles and tails", .wide = true, .graph = embedding,
     .in = {X("table", 2, 31, 65), IN("ids", IDS, 31, false, 2, 2, 301)}},
    {"hadamard", "Sylvester", .graph = hadamard, .hadamard = {1, 8, 1, 0}, .in = {X("x", 2, 3, 8)}},
    {"hadamard", "base 12, transposed", .graph = hadamard, .hadamard = {12, 2, 1, 1},
     .in = {X("x", 2, 2, 24), IN("h", SIGNS, 1, false, 2, 12, 12)}},
    {"hadamard", "base 12, blocks, per head", .graph = hadamard, .hadamard = {12, 1, 2, 0},
     .in = {X("x", 2, 1, 48), IN("h", SIGNS, 1, false, 2, 12, 12)}},
    {"hadamard", "tiles and tails", .wide = true, .graph = hadamard, .hadamard = {12, 32, 1, 1},
     .in = {X("x", 2, 37, 384), IN("h", SIGNS, 1, false, 2, 12, 12)}},
    {"hadamard", "blocks of 64", .wide = true, .graph = hadamard, .hadamard = {1, 64, 3, 0}, .in = {X("x", 2, 70, 192)}},
    {"rotate_heads", "one matrix", .graph = rotate_heads, .heads = 1, .in = {X("x", 1, 5), CONSTANT("m", 3, 1, 5, 5)}},
    {"rotate_heads", "grouped", .graph = rotate_heads, .heads = 6, .in = {X("x", 3, 2, 3, 24), CONSTANT("m", 3, 3, 4, 4)}},
    {"rotate_heads", "tiles and tails", .wide = true, .graph = rotate_heads, .heads = 6,
     .in = {X("x", 3, 2, 233, 144), CONSTANT("m", 3, 2, 24, 24)}},
    LOSS("mse", BK_LOSS_MSE, 1, 2, 3, 4),
    LOSS("skip_mse", BK_LOSS_SKIP_MSE, 1, 2, 6, 4),
    LOSS("skip_mse of two tokens", BK_LOSS_SKIP_MSE, 1, 1, 4, 3),
    LOSS("clamp_mse", BK_LOSS_CLAMP_MSE, 8, 2, 3, 5),
    LOSS("normalized_mse", BK_LOSS_NORMALIZED_MSE, 3, 2, 3, 4),
    LOSS("cosine", BK_LOSS_COSINE, 1, 2, 3, 4),
    {"recon_loss", "mse, tiles and tails", .wide = true, .graph = recon_loss, .loss = BK_LOSS_MSE,
     .in = {X("pred", 3, 3, 130, 77), CONSTANT("target", 3, 3, 130, 77)}},
    {"recon_loss", "skip_mse, tiles and tails", .wide = true, .graph = recon_loss, .loss = BK_LOSS_SKIP_MSE,
     .in = {X("pred", 3, 3, 130, 77), CONSTANT("target", 3, 3, 130, 77)}},
    {"recon_loss", "clamp_mse, tiles and tails", .wide = true, .graph = recon_loss, .loss = BK_LOSS_CLAMP_MSE,
     .in = {IN("pred", NORMAL, 8, true, 3, 3, 130, 77), IN("target", NORMAL, 8, false, 3, 3, 130, 77)}},
    {"recon_loss", "normalized_mse, tiles and tails", .wide = true, .graph = recon_loss, .loss = BK_LOSS_NORMALIZED_MSE,
     .in = {X("pred", 3, 3, 130, 77), CONSTANT("target", 3, 3, 130, 77)}},
    {"recon_loss", "cosine, tiles and tails", .wide = true, .graph = recon_loss, .loss = BK_LOSS_COSINE,
     .in = {X("pred", 3, 3, 130, 77), CONSTANT("target", 3, 3, 130, 77)}},
    {"cross_entropy", "plain", .graph = cross_entropy,
     .in = {IN("logits", NORMAL, 3, true, 2, 4, 6), IN("target", IDS, 6, false, 1, 4)}},
    {"cross_entropy", "tiles and tails", .wide = true, .graph = cross_entropy,
     .in = {IN("logits", NORMAL, 20, true, 2, 70, 333), IN("target", IDS, 333, false, 1, 70)}},
    {"fakequant", "weight, symmetric", .graph = fakequant, .fakequant = {6, 1, -2, 1, 0},
     .in = {X("x", 2, 3, 6), IN("s", STEP, 0.5, true, 1, 3)}},
    {"fakequant", "weight groups, asymmetric", .graph = fakequant, .fakequant = {4, 1, 0, 3, 0},
     .in = {X("x", 2, 4, 8), IN("s", STEP, 0.5, true, 2, 4, 2), IN("z", ZERO, 3, true, 2, 4, 2)}},
    {"fakequant", "tensor, symmetric", .graph = fakequant, .fakequant = {8, 0, -8, 7, 0},
     .in = {X("x", 3, 2, 3, 8), IN("s", STEP, 0.25, true, 1, 1)}},
    {"fakequant", "heads, asymmetric", .graph = fakequant, .fakequant = {3, 0, 0, 7, 0},
     .in = {X("x", 3, 2, 3, 9), IN("s", STEP, 0.25, true, 1, 3), IN("z", ZERO, 7, true, 1, 3)}},
    {"fakequant", "weight, tiles and tails", .wide = true, .graph = fakequant, .fakequant = {32, 1, 0, 15, 0},
     .in = {X("x", 2, 101, 96), IN("s", STEP, 0.3, true, 2, 101, 3), IN("z", ZERO, 15, true, 2, 101, 3)}},
    {"fakequant", "odd weight, symmetric", .wide = true, .graph = fakequant, .fakequant = {77, 1, -8, 7, 0},
     .in = {X("x", 2, 65, 77), IN("s", STEP, 0.3, true, 1, 65)}},
    {"fakequant", "tensor, tiles and tails", .wide = true, .graph = fakequant, .fakequant = {77, 0, -8, 7, 0},
     .in = {X("x", 3, 2, 301, 77), IN("s", STEP, 0.3, true, 1, 1)}},
    {"fakequant", "heads, tiles and tails", .wide = true, .graph = fakequant, .fakequant = {20, 0, 0, 15, 0},
     .in = {X("x", 3, 2, 301, 60), IN("s", STEP, 0.3, true, 1, 3), IN("z", ZERO, 15, true, 1, 3)}},
    {"fakequant", "offset, symmetric", .graph = rounded, .fakequant = {6, 1, -2, 1, BK_ROUND_OFFSET},
     .in = {X("x", 2, 3, 6), IN("s", STEP, 0.5, true, 1, 3), IN("v", NORMAL, 0.3, true, 2, 3, 6)}},
    {"fakequant", "offset, groups, asymmetric", .graph = rounded, .fakequant = {4, 1, 0, 3, BK_ROUND_OFFSET},
     .in = {X("x", 2, 4, 8), IN("s", STEP, 0.5, true, 2, 4, 2), IN("v", NORMAL, 0.3, true, 2, 4, 8), IN("z", ZERO, 3, true, 2, 4, 2)}},
    {"fakequant", "soft, symmetric", .graph = rounded, .fakequant = {6, 1, -2, 1, BK_ROUND_SOFT},
     .in = {X("x", 2, 3, 6), IN("s", STEP, 0.5, true, 1, 3), IN("v", NORMAL, 2, true, 2, 3, 6)}},
    {"fakequant", "soft, groups, asymmetric", .graph = rounded, .fakequant = {4, 1, 0, 3, BK_ROUND_SOFT},
     .in = {X("x", 2, 4, 8), IN("s", STEP, 0.5, true, 2, 4, 2), IN("v", NORMAL, 2, true, 2, 4, 8), IN("z", ZERO, 3, true, 2, 4, 2)}},
    {"fakequant", "soft, tensor", .graph = rounded, .fakequant = {8, 0, -8, 7, BK_ROUND_SOFT},
     .in = {X("x", 2, 3, 8), IN("s", STEP, 0.25, true, 1, 1), IN("v", NORMAL, 2, true, 2, 3, 8)}},
    {"fakequant", "offset, tiles and tails", .wide = true, .graph = rounded, .fakequant = {32, 1, 0, 15, BK_ROUND_OFFSET},
     .in = {X("x", 2, 190, 96), IN("s", STEP, 0.3, true, 2, 190, 3), IN("v", NORMAL, 0.3, true, 2, 190, 96), IN("z", ZERO, 15, true, 2, 190, 3)}},
    {"fakequant", "soft, tiles and tails", .wide = true, .graph = rounded, .fakequant = {77, 1, -8, 7, BK_ROUND_SOFT},
     .in = {X("x", 2, 230, 77), IN("s", STEP, 0.3, true, 1, 230), IN("v", NORMAL, 2, true, 2, 230, 77)}},
    {"round_penalty", "plain", .graph = round_penalty, .penalty = {0.3, 2}, .in = {IN("v", NORMAL, 2, true, 2, 3, 7)}},
    {"round_penalty", "steep", .graph = round_penalty, .penalty = {2, 7}, .in = {IN("v", NORMAL, 2, true, 2, 3, 7)}},
    {"round_penalty", "of order one", .graph = round_penalty, .penalty = {1, 1}, .in = {IN("v", NORMAL, 1, true, 1, 9)}},
    {"round_penalty", "tiles and tails", .wide = true, .graph = round_penalty, .penalty = {0.01, 7.3}, .in = {IN("v", NORMAL, 2, true, 2, 333, 77)}},
    {"dynquant", "symmetric, no factor", .graph = dynquant, .dynquant = {8, 1, -8, 7, 0}, .in = {X("x", 3, 2, 2, 8)}},
    {"dynquant", "symmetric, factor, groups", .graph = dynquant, .dynquant = {4, 1, -2, 1, 0},
     .in = {X("x", 2, 4, 8), IN("gamma", STEP, 0.9, true, 1, 1)}},
    {"dynquant", "symmetric, ties", .graph = dynquant, .dynquant = {16, 1, -8, 7, 0},
     .in = {IN("x", TIES, 1, true, 2, 3, 16), IN("gamma", STEP, 0.9, true, 1, 1)}},
    {"dynquant", "asymmetric, factors", .graph = dynquant, .dynquant = {8, 0, 0, 15, 0},
     .in = {X("x", 3, 2, 2, 8), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.8, true, 1, 1)}},
    {"dynquant", "asymmetric, no factors, groups", .graph = dynquant, .dynquant = {4, 0, 0, 7, 0}, .in = {X("x", 2, 4, 8)}},
    {"dynquant", "asymmetric, ties", .graph = dynquant, .dynquant = {16, 0, 0, 15, 0},
     .in = {IN("x", TIES, 1, true, 2, 3, 16), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.8, true, 1, 1)}},
    {"dynquant", "asymmetric, far from zero", .graph = dynquant, .dynquant = {8, 0, 0, 15, 0},
     .in = {IN("x", OFFSET, 100, true, 2, 3, 8)}},
    {"dynquant", "asymmetric, bounded zero points", .graph = dynquant, .dynquant = {8, 0, 0, 15, 1},
     .in = {IN("x", OFFSET, 4, true, 2, 3, 8), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.8, true, 1, 1)}},
    {"dynquant", "asymmetric, flat rows", .graph = dynquant, .dynquant = {8, 0, 0, 15, 0},
     .in = {IN("x", FLAT, 3, true, 2, 4, 8), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.9, true, 1, 1)}},
    {"dynquant", "factors that leave no range", .graph = dynquant, .dynquant = {8, 0, 0, 15, 0},
     .in = {IN("x", OFFSET, 50, true, 2, 3, 8), IN("gamma", STEP, 0.2, true, 1, 1), IN("beta", STEP, 4, true, 1, 1)}},
    {"dynquant", "symmetric, tiles and tails", .wide = true, .graph = dynquant, .dynquant = {77, 1, -8, 7, 0},
     .in = {X("x", 3, 2, 301, 77), IN("gamma", STEP, 0.9, true, 1, 1)}},
    {"dynquant", "symmetric heads, no factor", .wide = true, .graph = dynquant, .dynquant = {20, 1, -8, 7, 0},
     .in = {X("x", 3, 2, 201, 60)}},
    {"dynquant", "asymmetric, tiles and tails", .wide = true, .graph = dynquant, .dynquant = {77, 0, 0, 15, 0},
     .in = {X("x", 3, 2, 301, 77), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.9, true, 1, 1)}},
    {"dynquant", "asymmetric heads, 8 bits", .wide = true, .graph = dynquant, .dynquant = {20, 0, 0, 255, 0},
     .in = {X("x", 3, 2, 101, 60), IN("gamma", STEP, 0.9, true, 1, 1), IN("beta", STEP, 0.9, true, 1, 1)}},
};
const int bk_op_case_count = sizeof bk_op_cases / sizeof bk_op_cases[0];

/* Entry of the Paley I matrix of order 12: I + S, S skew with the Legendre symbols of 11. */
static double paley12(int64_t i, int64_t j)
{
    static const int square[11] = {0, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1};
    if (i == j) return 1;
    if (i == 0 || j == 0) return i == 0 ? 1 : -1;
    return square[(i - j + 11) % 11];
}

static double value(const bk_case_input *in, int64_t i, uint64_t seed, uint64_t stream)
{
    const int64_t last = in->dim[in->ndim - 1], row = i / last, col = i % last;
    const double normal = bk_rng_normal(seed, stream, (uint64_t)i), uniform = bk_rng_uniform(seed, stream, (uint64_t)i);
    switch (in->fill) {
    case BK_FILL_NORMAL: return in->scale * normal;
    case BK_FILL_OFFSET: return in->scale + normal;
    case BK_FILL_TIES:
        if (col % 16 == 3 || col % 16 == 7) return 4 * in->scale;
        if (col % 16 == 5 || col % 16 == 11) return -4.5 * in->scale;
        return in->scale * normal;
    case BK_FILL_FLAT: return row == 0 ? in->scale : row == 1 ? 0 : row == 2 ? in->scale * (1 + 1e-6 * uniform) : in->scale * normal;
    case BK_FILL_STEP: return in->scale * (0.5 + uniform);
    case BK_FILL_ZERO: return in->scale * (1.6 * uniform - 0.3);
    case BK_FILL_ROPE: {
        double angle = (double)row * pow(in->scale, -2.0 * (double)(col % (last / 2)) / (double)last);
        return col < last / 2 ? cos(angle) : sin(angle);
    }
    case BK_FILL_SIGNS: return paley12(row, col);
    case BK_FILL_IDS: break;
    }
    return NAN;
}

int bk_case_inputs(const bk_op_case *c, bk_gradcheck_input in[BK_CASE_INPUTS])
{
    int n = 0;
    for (; n < BK_CASE_INPUTS && c->in[n].name; n++) {
        const bk_case_input *s = &c->in[n];
        in[n] = (bk_gradcheck_input){.name = s->name, .ndim = s->ndim, .differentiate = s->differentiate};
        int64_t count = 1;
        for (int d = 0; d < s->ndim; d++) count *= in[n].dim[d] = s->dim[d];
        uint64_t stream = 100 + (uint64_t)n;
        if (s->fill == BK_FILL_IDS) {
            int32_t *ids = malloc((size_t)count * sizeof *ids);
            ck_assert_ptr_nonnull(ids);
            for (int64_t i = 0; i < count; i++)
                ids[i] = (int32_t)bk_rng_below(c->seed, stream, (uint64_t)i, (uint64_t)s->scale);
            in[n].ids = ids;
        } else {
            double *x = malloc((size_t)count * sizeof *x);
            ck_assert_ptr_nonnull(x);
            for (int64_t i = 0; i < count; i++) x[i] = (float)value(s, i, c->seed, stream);
            in[n].values = x;
        }
    }
    return n;
}

void bk_case_free(bk_gradcheck_input *in, int n)
{
    for (int i = 0; i < n; i++) {
        free((void *)in[i].values);
        free((void *)in[i].ids);
    }
}
