#include "blocks/block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/cache.h"

static const bk_site_id input_site[BK_W_COUNT] = {
    [BK_W_Q] = BK_SITE_ATTN_IN, [BK_W_K] = BK_SITE_ATTN_IN, [BK_W_V] = BK_SITE_ATTN_IN, [BK_W_O] = BK_SITE_O_IN,
    [BK_W_GATE] = BK_SITE_MLP_IN, [BK_W_UP] = BK_SITE_MLP_IN, [BK_W_DOWN] = BK_SITE_DOWN_IN,
};

bk_site_id bk_linear_input(bk_linear_id id)
{
    return input_site[id];
}

static const enum { HIDDEN, QUERIES, CACHE, INTER } site_width[BK_SITE_COUNT] = {
    [BK_SITE_O_IN] = QUERIES, [BK_SITE_QUERY] = QUERIES, [BK_SITE_KEY] = CACHE, [BK_SITE_VALUE] = CACHE,
    [BK_SITE_DOWN_IN] = INTER, [BK_SITE_DOWN_RAW] = INTER,
};

int64_t bk_site_width(const bk_config *c, bk_site_id site)
{
    const int64_t width[] = {[HIDDEN] = c->hidden,
                             [QUERIES] = c->heads * c->head_dim,
                             [CACHE] = c->kv_heads * c->head_dim,
                             [INTER] = c->inter};
    return width[site_width[site]];
}

bk_qshape bk_site_shape(const bk_config *c, bk_site_id site)
{
    bool heads = site == BK_SITE_KEY || site == BK_SITE_VALUE || site == BK_SITE_O_IN;
    return (bk_qshape){.cols = bk_site_width(c, site), .head_dim = heads ? c->head_dim : 0, .name = bk_site_name[site]};
}

const bk_qspec *bk_site_spec(const bk_block_quant *quant, bk_site_id site)
{
    return site == BK_SITE_KEY ? &quant->key : site == BK_SITE_VALUE ? &quant->value : &quant->activation;
}

bool bk_block_needs_ranges(const bk_block_quant *quant)
{
    return bk_qspec_needs_range(&quant->activation) || bk_qspec_needs_range(&quant->key) || bk_qspec_needs_range(&quant->value);
}

bk_effective_bits bk_block_bits(const bk_config *c, const bk_block_quant *quant)
{
    double bits[3] = {0}, values[3] = {0};
    for (int i = 0; i < BK_W_COUNT; i++) {
        bk_qshape shape = {.name = bk_linear_name[i]};
        bk_linear_shape(c, i, &shape.rows, &shape.cols);
        bits[0] += bk_qspec_bits(&quant->weight, &shape) * (double)(shape.rows * shape.cols);
        values[0] += (double)(shape.rows * shape.cols);
    }
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!bk_site_quantized[i]) continue;
        bk_qshape shape = bk_site_shape(c, i);
        int kind = i == BK_SITE_KEY || i == BK_SITE_VALUE ? 2 : 1;
        const bk_qspec *spec = bk_site_spec(quant, i);
        bits[kind] += bk_qspec_bits(spec, &shape) * (double)shape.cols;
        values[kind] += (double)shape.cols;
    }
    return (bk_effective_bits){bits[0] / values[0], bits[1] / values[1], bits[2] / values[2]};
}

bk_status bk_rope_table(const bk_backend *be, const bk_config *cfg, int64_t positions, bk_tensor **out, bk_error *err)
{
    int64_t half = cfg->head_dim / 2;
    double *f = malloc((size_t)half * 3 * sizeof *f), *row = f + half;
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory for the rotary table");
    bk_config_inv_freq(cfg, f);
    bk_status st = bk_tensor_create(be, be->dtype, 2, (int64_t[]){positions, 2 * half}, "rope", out, err);
    for (int64_t p = 0; !st && p < positions; p++) {
        for (int64_t i = 0; i < half; i++) {
            row[i] = cos((double)p * f[i]);
            row[half + i] = sin((double)p * f[i]);
        }
        st = bk_write_f64(be, *out, p * 2 * half, row, 2 * half, err);
    }
    free(f);
    return st;
}

static bk_status make_transform(bk_block *b, const bk_hadamard_plan *plan, bk_hadamard_attr *attr, bk_tensor **h,
                                bk_error *err)
{
    *attr = (bk_hadamard_attr){.base = plan->base, .pow2 = plan->pow2, .blocks = plan->blocks};
    if (!plan->h) return BK_OK;
    BK_TRY(bk_tensor_create(b->be, b->be->dtype, 2, (int64_t[]){plan->base, plan->base}, "hadamard", h, err));
    return bk_write(b->be, *h, 0, plan->h, plan->base * plan->base, err);
}

static bk_status make_transforms(bk_block *b, const bk_block_options *opt, bk_error *err)
{
    int64_t d = b->cfg.head_dim;
    b->r3 = opt->r3 != NULL;
    b->r4 = opt->r4 != NULL;
    if (b->r3 && b->cfg.r3_per_kv_head)
        return bk_fail(err, BK_EINVAL, "queries and keys cannot turn by a Hadamard matrix and by those of their heads");
    if (b->r3) BK_TRY(make_transform(b, opt->r3, &b->r3_attr, &b->r3_h, err));
    if (b->r4) BK_TRY(make_transform(b, opt->r4, &b->r4_attr, &b->r4_h, err));
    if (!b->cfg.r3_per_kv_head) return BK_OK;
    return bk_tensor_create(b->be, b->be->dtype, 3, (int64_t[]){b->cfg.kv_heads, d, d}, "r3", &b->r3_m, err);
}

static bk_status make_weights(bk_block *b, const bk_block_quant *quant, bk_error *err)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        char name[32];
        int64_t dim[2];
        bk_linear_shape(&b->cfg, i, &dim[0], &dim[1]);
        snprintf(name, sizeof name, "w_%s", bk_linear_name[i]);
        if (!(b->w[i] = bk_params_add(b->params, name, BK_GROUP_WEIGHT, false, 2, dim))) return err->code;
        if (bk_config_has_bias(&b->cfg, i))
            BK_TRY(bk_tensor_create(b->be, b->be->dtype, 1, dim, "bias", &b->b[i], err));
        if (!quant) continue;
        bk_qshape shape = {.rows = dim[0], .cols = dim[1], .name = bk_linear_name[i]};
        BK_TRY(bk_qinst_setup(&b->wq[i], &quant->weight, &shape, err));
        if (!b->wq[i].q) continue;
        bk_params_set_rule(b->params, BK_GROUP_ROUND, b->wq[i].q->rule);
        BK_TRY(b->wq[i].q->params(b->wq[i].state.bytes, b->params, name));
    }
    return BK_OK;
}

static bk_status make_sites(bk_block *b, const bk_block_quant *quant, bk_error *err)
{
    for (int i = 0; quant && i < BK_SITE_COUNT; i++) {
        if (!bk_site_quantized[i]) continue;
        bk_qshape shape = bk_site_shape(&b->cfg, i);
        const bk_qspec *spec = bk_site_spec(quant, i);
        BK_TRY(bk_qinst_setup(&b->site[i], spec, &shape, err));
        if (b->site[i].q) BK_TRY(b->site[i].q->params(b->site[i].state.bytes, b->params, bk_site_name[i]));
    }
    return BK_OK;
}

static bool of_heads(int norm)
{
    return norm == BK_NORM_Q || norm == BK_NORM_K;
}

static bk_status make_trained_norms(bk_block *b, bk_error *err)
{
    for (int i = 0; b->train_norms && i < BK_NORM_COUNT; i++)
        if (!of_heads(i) && !(b->norm[i] = bk_params_add(b->params, bk_norm_name[i], BK_GROUP_WEIGHT, false, 1, &b->cfg.hidden)))
            return err->code;
    return BK_OK;
}

static bk_status make_constant_norms(bk_block *b, bk_error *err)
{
    for (int i = 0; i < BK_NORM_COUNT; i++) {
        if (b->norm[i] || (of_heads(i) && !b->cfg.qk_norm)) continue;
        BK_TRY(bk_tensor_create(b->be, b->be->dtype, 1, (int64_t[]){of_heads(i) ? b->cfg.head_dim : b->cfg.hidden},
                                bk_norm_name[i], &b->norm[i], err));
    }
    return BK_OK;
}

static bk_status make_prefix(bk_block *b, bk_error *err)
{
    int64_t dim[3] = {b->cfg.kv_heads, b->prefix_len, b->cfg.head_dim};
    if (!b->prefix_len) return BK_OK;
    BK_TRY(bk_tensor_create(b->be, b->be->dtype, 3, dim, "prefix_k", &b->prefix_k, err));
    return bk_tensor_create(b->be, b->be->dtype, 3, dim, "prefix_v", &b->prefix_v, err);
}

static bk_status build(bk_block *b, const bk_block_options *opt, bk_error *err)
{
    int64_t positions = opt->prefix_len + opt->tokens;
    if (positions > b->cfg.max_positions)
        return bk_fail(err, BK_EINVAL, "%lld tokens and a prefix of %lld go beyond the model's %lld positions",
                       (long long)opt->tokens, (long long)opt->prefix_len, (long long)b->cfg.max_positions);
    if (!(b->params = bk_params_new(b->be, err))) return BK_ENOMEM;
    bk_params_set_rule(b->params, BK_GROUP_CONSTANT, BK_RULE_CONSTANT);
    BK_TRY(make_weights(b, opt->quant, err));
    BK_TRY(make_trained_norms(b, err));
    BK_TRY(make_sites(b, opt->quant, err));
    BK_TRY(bk_params_commit(b->params, opt->trained));
    BK_TRY(make_constant_norms(b, err));
    BK_TRY(make_prefix(b, err));
    BK_TRY(make_transforms(b, opt, err));
    return bk_rope_table(b->be, &b->cfg, positions, &b->rope, err);
}

bk_status bk_block_create(bk_block **out, const bk_backend *be, const bk_config *cfg, const bk_block_options *opt,
                          bk_error *err)
{
    bk_block *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return bk_fail(err, BK_ENOMEM, "no memory for a block");
    b->be = be;
    b->until = BK_SITE_BLOCK_OUT;
    b->cfg = *cfg;
    b->prefix_len = opt->prefix_len;
    b->train_norms = opt->train_norms;
    bk_status st = build(b, opt, err);
    if (st) bk_block_free(b);
    else *out = b;
    return st;
}

void bk_block_free(bk_block *b)
{
    if (!b) return;
    for (int i = 0; i < BK_W_COUNT; i++) bk_tensor_destroy(b->be, b->b[i]);
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (of_heads(i) || !b->train_norms) bk_tensor_destroy(b->be, b->norm[i]);
    bk_tensor_destroy(b->be, b->rope);
    bk_tensor_destroy(b->be, b->r3_h);
    bk_tensor_destroy(b->be, b->r4_h);
    bk_tensor_destroy(b->be, b->r3_m);
    bk_tensor_destroy(b->be, b->prefix_k);
    bk_tensor_destroy(b->be, b->prefix_v);
    bk_params_free(b->params);
    free(b);
}

size_t bk_block_bytes(const bk_backend *be, const bk_config *cfg, const bk_block_options *opt)
{
    int64_t table =
        (opt->prefix_len + opt->tokens) * cfg->head_dim + 2 * cfg->kv_heads * opt->prefix_len * cfg->head_dim;
    return bk_params_bytes_of(be, bk_config_block_weights(cfg), opt->trained) +
           (size_t)table * bk_dtype_size(be->dtype);
}

bk_status bk_block_load(bk_block *b, const bk_block_weights *w, bk_error *err)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        BK_TRY(bk_write(b->be, b->w[i], 0, w->w[i], bk_numel(b->w[i]), err));
        if (b->b[i]) BK_TRY(bk_write(b->be, b->b[i], 0, w->b[i], bk_numel(b->b[i]), err));
    }
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (b->norm[i]) BK_TRY(bk_write(b->be, b->norm[i], 0, w->norm[i], bk_numel(b->norm[i]), err));
    return b->r3_m ? bk_write(b->be, b->r3_m, 0, w->r3, bk_numel(b->r3_m), err) : BK_OK;
}

bk_status bk_block_set_prefix(bk_block *b, const float *k, const float *v, bk_error *err)
{
    if (!b->prefix_len) return BK_OK;
    BK_TRY(bk_write(b->be, b->prefix_k, 0, k, bk_numel(b->prefix_k), err));
    return bk_write(b->be, b->prefix_v, 0, v, bk_numel(b->prefix_v), err);
}

bool bk_weight_active(const bk_block *b, bk_linear_id id)
{
    return b->wq[id].q && !(b->skip_weights >> id & 1);
}

void bk_block_quantize(bk_block *b, bool weights, bool sites)
{
    for (int i = 0; i < BK_W_COUNT; i++) b->wq[i].on = weights && !(b->skip_weights >> i & 1);
    for (int i = 0; i < BK_SITE_COUNT; i++) b->site[i].on = sites && !(b->skip_sites >> i & 1);
}

/* --- the graph --- */

static void observe(bk_ctx *ctx, bk_block *b, bk_site_id site, const bk_tensor *x)
{
    if (b->tap && x) b->tap(ctx, b->tap_user, site, x);
}

static bk_tensor *at_site(bk_ctx *ctx, bk_block *b, bk_site_id site, bk_tensor *x)
{
    observe(ctx, b, site, x);
    return bk_qinst_apply(ctx, &b->site[site], x);
}

static bk_tensor *linear(bk_ctx *ctx, bk_block *b, bk_linear_id id, bk_tensor *x)
{
    return bk_linear(ctx, x, bk_qinst_apply(ctx, &b->wq[id], b->w[id]), b->b[id]);
}

/* Per-head norm (where the model has it), RoPE and R3 of queries or keys. */
static bk_tensor *turn(bk_ctx *ctx, bk_block *b, bk_tensor *x, bk_norm_id norm, int64_t heads)
{
    if (b->norm[norm]) x = bk_rmsnorm(ctx, x, b->norm[norm], b->cfg.eps);
    int64_t before = (b->cfg.overlap_prefix ? 0 : b->prefix_len) + (b->past ? b->past->tokens : 0);
    x = bk_rope(ctx, x, b->rope, heads, before);
    if (b->r3_m) return bk_rotate_heads(ctx, x, b->r3_m, heads);
    return b->r3 ? bk_hadamard(ctx, x, b->r3_h, &b->r3_attr) : x;
}

/* Each part computes up to the next site and hands over: a pass can begin at any of them. */
static bk_tensor *from_down_in(bk_ctx *ctx, bk_block *b, bk_block_values *v)
{
    bk_tensor *x = at_site(ctx, b, BK_SITE_DOWN_IN, v->down_in);
    if (b->until == BK_SITE_DOWN_IN) return x;
    v->y = bk_add(ctx, v->h, linear(ctx, b, BK_W_DOWN, x));
    observe(ctx, b, BK_SITE_BLOCK_OUT, v->y);
    return v->y;
}

static bk_tensor *from_mlp_in(bk_ctx *ctx, bk_block *b, bk_block_values *v)
{
    bk_tensor *x = at_site(ctx, b, BK_SITE_MLP_IN, v->mlp_in);
    if (b->until == BK_SITE_MLP_IN) return x;
    bk_tensor *z = bk_swiglu(ctx, linear(ctx, b, BK_W_GATE, x), linear(ctx, b, BK_W_UP, x));
    observe(ctx, b, BK_SITE_DOWN_RAW, z);
    v->down_in = b->r4 ? bk_hadamard(ctx, z, b->r4_h, &b->r4_attr) : z;
    return from_down_in(ctx, b, v);
}

static bk_tensor *from_o_in(bk_ctx *ctx, bk_block *b, bk_block_values *v)
{
    bk_tensor *x = at_site(ctx, b, BK_SITE_O_IN, v->o_in);
    if (b->until == BK_SITE_O_IN) return x;
    v->h = bk_add(ctx, v->x, linear(ctx, b, BK_W_O, x));
    v->mlp_in = bk_rmsnorm(ctx, v->h, b->norm[BK_NORM_MLP], b->cfg.eps);
    return from_mlp_in(ctx, b, v);
}

static bk_tensor *from_cache(bk_ctx *ctx, bk_block *b, bk_block_values *v)
{
    bk_tensor *k = at_site(ctx, b, BK_SITE_KEY, v->k), *value = at_site(ctx, b, BK_SITE_VALUE, v->v);
    v->o_in = bk_attention(ctx, v->q, k, value, bk_past_keys(b), bk_past_values(b), b->cfg.heads, b->cfg.kv_heads,
                           b->cfg.sliding_window);
    if (b->past) bk_past_add(ctx, b, k, value);
    return from_o_in(ctx, b, v);
}

static bk_tensor *from_attn_in(bk_ctx *ctx, bk_block *b, bk_block_values *v)
{
    bk_tensor *x = at_site(ctx, b, BK_SITE_ATTN_IN, v->attn_in);
    if (b->until == BK_SITE_ATTN_IN) return x;
    v->q = turn(ctx, b, linear(ctx, b, BK_W_Q, x), BK_NORM_Q, b->cfg.heads);
    observe(ctx, b, BK_SITE_QUERY, v->q);
    v->k = turn(ctx, b, linear(ctx, b, BK_W_K, x), BK_NORM_K, b->cfg.kv_heads);
    v->v = linear(ctx, b, BK_W_V, x);
    return from_cache(ctx, b, v);
}

bk_tensor *bk_block_forward_values(bk_ctx *ctx, bk_block *b, bk_tensor *x, bk_block_values *v)
{
    bk_past_check(ctx, b, x);
    *v = (bk_block_values){.x = x, .attn_in = bk_rmsnorm(ctx, x, b->norm[BK_NORM_ATTN], b->cfg.eps)};
    return from_attn_in(ctx, b, v);
}

bk_tensor *bk_block_forward(bk_ctx *ctx, bk_block *b, bk_tensor *x)
{
    bk_block_values v;
    return bk_block_forward_values(ctx, b, x, &v);
}

static bk_tensor *(*const pass_from[BK_SITE_COUNT])(bk_ctx *ctx, bk_block *b, bk_block_values *v) = {
    [BK_SITE_ATTN_IN] = from_attn_in, [BK_SITE_KEY] = from_cache,      [BK_SITE_VALUE] = from_cache,
    [BK_SITE_O_IN] = from_o_in,       [BK_SITE_MLP_IN] = from_mlp_in, [BK_SITE_DOWN_IN] = from_down_in,
};

bk_tensor *bk_block_resume(bk_ctx *ctx, bk_block *b, const bk_block_values *values, bk_site_id from)
{
    bk_block_values v = *values;
    if (pass_from[from]) return pass_from[from](ctx, b, &v);
    bk_fail(bk_ctx_error(ctx), BK_EINVAL, "a pass cannot begin at site %s", bk_site_name[from]);
    return NULL;
}

bk_status bk_block_round(bk_ctx *ctx, bk_block *b)
{
    for (int i = 0; i < BK_W_COUNT && !bk_ctx_measuring(ctx); i++) {
        bk_qinst *q = &b->wq[i];
        if (q->q && q->on && q->q->harden) BK_TRY(q->q->harden(ctx, q->state.bytes));
    }
    return BK_OK;
}

bk_status bk_block_harden(bk_ctx *ctx, bk_block *b)
{
    BK_TRY(bk_block_round(ctx, b));
    for (int i = 0; i < BK_W_COUNT; i++) {
        bk_qinst *q = &b->wq[i];
        if (!q->q || !q->on) continue;
        size_t mark = bk_step_mark(ctx);
        bk_tensor *w = bk_qinst_apply(ctx, q, b->w[i]);
        BK_TRY(bk_ctx_status(ctx));
        if (!bk_ctx_measuring(ctx) &&
            b->be->copy(b->w[i]->data, w->data, (size_t)bk_numel(w) * bk_dtype_size(w->dtype)))
            return bk_fail(bk_ctx_error(ctx), BK_EDEVICE, "copying %s failed", bk_linear_name[i]);
        bk_step_release(ctx, mark);
        q->on = false;
    }
    return BK_OK;
}
