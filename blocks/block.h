/* One transformer block on a backend: weights, quantizers at its sites, rotations that run online, prefix keys and values; and its graph.
 *
 *   h = x + o(O_IN(attention(q, KEY(k), VALUE(v))))      q, k, v from ATTN_IN(rmsnorm(x)); q, k: norm, RoPE at P.., R3
 *   y = h + down(DOWN_IN(R4(swiglu(gate, up))))          gate, up from MLP_IN(rmsnorm(h))
 *
 * One bk_block serves all layers of a model in turn: bk_block_load brings in the next one's weights. */
#ifndef BK_BLOCK_H
#define BK_BLOCK_H

#include "blocks/config.h"
#include "blocks/names.h"
#include "blocks/weights.h"
#include "ops/ops.h"
#include "quant/hadamard.h"
#include "quant/quantizer.h"

/* The site that a linear reads, and the number of values per token at a site. */
bk_site_id bk_linear_input(bk_linear_id id);
int64_t bk_site_width(const bk_config *c, bk_site_id site);
/* What a quantizer sees at a site. */
bk_qshape bk_site_shape(const bk_config *c, bk_site_id site);

/* How a block is quantized; bits 16 anywhere = not. */
typedef struct bk_block_quant {
    bk_qspec weight, activation, key, value;
} bk_block_quant;

const bk_qspec *bk_site_spec(const bk_block_quant *quant, bk_site_id site);
/* Whether activations, keys or values want their ranges measured beforehand. */
bool bk_block_needs_ranges(const bk_block_quant *quant);

/* What a value takes on average over the linears, the sites that feed them, and keys and values of a block (bk_qspec_bits). */
typedef struct bk_effective_bits {
    double weight, activation, cache;
} bk_effective_bits;
bk_effective_bits bk_block_bits(const bk_config *c, const bk_block_quant *quant);

/* Sees the value at a site before its quantizer (and at the observed sites). An error goes to the context. */
typedef void (*bk_tap)(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x);

/* Values of one forward pass, so that a search can start again in the middle (bk_block_resume). All before their
 * quantizers. */
typedef struct bk_block_values {
    bk_tensor *x, *attn_in, *q, *k, *v, *o_in, *h, *mlp_in, *down_in, *y;
} bk_block_values;

typedef struct bk_block {
    const bk_backend *be;
    bk_config cfg;
    bk_params *params;               /* weights (BK_GROUP_WEIGHT), quantizer parameters (the other groups) */
    bk_tensor *w[BK_W_COUNT];        /* [out, in], in params: "w_q" ... */
    bk_tensor *b[BK_W_COUNT];        /* [out]; constant; NULL where the model has none */
    bk_tensor *norm[BK_NORM_COUNT];  /* gains; norm_q, norm_k NULL where the model has none */
    bool train_norms;                /* norm_attn and norm_mlp are in params; else constant, as the other two always are */
    bk_qinst wq[BK_W_COUNT];
    bk_qinst site[BK_SITE_COUNT];    /* q NULL at observed sites */
    bk_tensor *rope;                 /* [positions, d]: cos, sin */
    bool r3, r4;
    bk_hadamard_attr r3_attr, r4_attr;
    bk_tensor *r3_h, *r4_h;          /* base matrices, NULL if of order 1 */
    bk_tensor *r3_m;                 /* [Hkv, d, d]: R3 of the present layer, row form; constant; NULL unless cfg.r3_per_kv_head */
    int64_t prefix_len;
    bk_tensor *prefix_k, *prefix_v;  /* [Hkv, P, d], constant; NULL if P = 0 */
    struct bk_past *past;            /* NULL: every sequence begins behind the prefix (blocks/cache.h) */
    unsigned skip_sites, skip_weights; /* bits: what stays in full precision in the present layer (quant.skip) */
    int64_t silent[BK_SITE_COUNT];   /* measured ranges of a site (steps) that bk_block_init found to hold nothing but zeros */
    bk_tap tap;
    void *tap_user;
    bk_site_id until;                /* the site where a pass ends with the value there, for who only taps it: inputs of linears;
                                        BK_SITE_BLOCK_OUT: none */
} bk_block;

typedef struct bk_block_options {
    const bk_block_quant *quant;           /* NULL: full precision */
    const bk_hadamard_plan *r3, *r4;       /* online Hadamards; NULL: none. cfg.r3_per_kv_head is another R3 and excludes this one */
    int64_t prefix_len;
    int64_t tokens;                        /* longest sequence it will see, prefix not counted */
    bool trained;                          /* with gradients, moments and a best copy */
    bool train_norms;                      /* gains of norm_attn and norm_mlp among the parameters, in BK_GROUP_WEIGHT */
} bk_block_options;

/* BK_EINVAL / BK_ESHAPE for quantizers that do not fit the shapes, when prefix and tokens go beyond the model's
 * positions, and for two kinds of R3. */
bk_status bk_block_create(bk_block **out, const bk_backend *be, const bk_config *cfg, const bk_block_options *opt, bk_error *err) BK_MUST_USE;
void bk_block_free(bk_block *b);
/* Bytes that bk_block_create will allocate for these options, without what is small: norms, biases, quantizer
 * parameters. */
size_t bk_block_bytes(const bk_backend *be, const bk_config *cfg, const bk_block_options *opt);

bk_status bk_block_load(bk_block *b, const bk_block_weights *w, bk_error *err) BK_MUST_USE;
/* k, v: [Hkv, P, d] */
bk_status bk_block_set_prefix(bk_block *b, const float *k, const float *v, bk_error *err) BK_MUST_USE;
/* Does the present layer quantize this weight? */
bool bk_weight_active(const bk_block *b, bk_linear_id id);
/* Switches all quantizers on or off; those that the present layer skips stay off. */
void bk_block_quantize(bk_block *b, bool weights, bool sites);

/* x [B, T, hidden] -> [B, T, hidden]; token t stands at position prefix_len + t, or at t where cfg.overlap_prefix; behind
 * the tokens of `past` if there is one. */
bk_tensor *bk_block_forward(bk_ctx *ctx, bk_block *b, bk_tensor *x);
/* The same, keeping the values on the way. */
bk_tensor *bk_block_forward_values(bk_ctx *ctx, bk_block *b, bk_tensor *x, bk_block_values *values);
/* Runs on from one of the quantized sites with values of an earlier pass (which stay as they are). */
bk_tensor *bk_block_resume(bk_ctx *ctx, bk_block *b, const bk_block_values *values, bk_site_id from);

/* Makes soft rounding of the weights' quantizers that are on hard: their parameters change, and the weights they give. Nothing in a dry run. */
bk_status bk_block_round(bk_ctx *ctx, bk_block *b) BK_MUST_USE;
/* Replaces the weights by their quantized values, rounded hard, and switches their quantizers off: what the model computes stays the same to
 * the bit, but for soft rounding. */
bk_status bk_block_harden(bk_ctx *ctx, bk_block *b) BK_MUST_USE;

/* cos and sin of all positions 0 .. positions-1 as [positions, d] (f64 angles), for bk_rope. */
bk_status bk_rope_table(const bk_backend *be, const bk_config *cfg, int64_t positions, bk_tensor **out, bk_error *err) BK_MUST_USE;

#endif
