#include "tests/golden_block.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ok.h"

static int64_t number(const bk_golden_block *gb, const char *attr)
{
    return bk_golden_attr_i64(gb->g, attr, "%s", gb->path);
}

static bk_config read_config(const bk_golden_block *gb)
{
    bk_config c = {.arch = "llama", .layers = 1, .vocab = 1, .max_positions = 4096};
    c.hidden = number(gb, "hidden");
    c.heads = number(gb, "heads");
    c.kv_heads = number(gb, "kv_heads");
    c.head_dim = number(gb, "head_dim");
    c.inter = number(gb, "inter");
    c.eps = bk_golden_attr(gb->g, "eps", "%s", gb->path);
    c.rope_theta = bk_golden_attr(gb->g, "theta", "%s", gb->path);
    c.qk_norm = number(gb, "qk_norm") != 0;
    c.qkv_bias = number(gb, "qkv_bias") != 0;
    return c;
}

static bk_qspec read_spec(const bk_golden_block *gb, const char *what, const char *factor)
{
    char name[32];
    bk_qspec q = {0};
    snprintf(name, sizeof name, "%s_bits", what);
    q.bits = (int)number(gb, name);
    if (q.bits >= 16) return q;
    snprintf(name, sizeof name, "%s_symmetric", what);
    q.symmetric = number(gb, name) != 0;
    snprintf(name, sizeof name, "%s_mode", what);
    snprintf(q.quantizer, sizeof q.quantizer, "%.15s", bk_golden_attr_str(gb->g, name, "%s", gb->path));
    bk_qspec_defaults(&q);
    q.clip = factor && bk_golden_has(gb->g, "%s/param/%s", gb->path, factor);
    return q;
}

static void read_quant(bk_golden_block *gb)
{
    bk_block_quant *q = &gb->quant;
    q->weight = read_spec(gb, "weight", NULL);
    strcpy(q->weight.quantizer, "affine");
    q->weight.group = q->weight.bits < 16 ? number(gb, "weight_group") : 0;
    q->weight.granularity = q->weight.group > 0 ? BK_PER_GROUP : BK_PER_CHANNEL;
    q->activation = read_spec(gb, "act", "gamma_attn_in");
    q->activation.granularity = !strcmp(q->activation.quantizer, "dynamic") ? BK_PER_TOKEN : BK_PER_TENSOR;
    q->key = read_spec(gb, "kv", "gamma_key");
    q->value = read_spec(gb, "kv", "gamma_value");
    q->key.granularity = q->value.granularity = BK_PER_HEAD;
}

/* Steps and zero points are parameters "<place>.step" and so on. */
static const struct {
    const char *prefix, *suffix;
} kinds[] = {{"s_", ".step"}, {"z_", ".zero"}, {"gamma_", ".gamma"}, {"beta_", ".beta"}};

bk_tensor *bk_golden_block_tensor(const bk_golden_block *gb, const char *name)
{
    const bk_block *b = gb->b;
    bk_tensor *t = bk_params_find(b->params, name);
    char full[64];
    for (int i = 0; !t && i < BK_NORM_COUNT; i++)
        if (!strcmp(name, bk_norm_name[i])) t = b->norm[i];
    for (int i = 0; !t && i < BK_W_COUNT; i++) {
        snprintf(full, sizeof full, "b_%s", bk_linear_name[i]);
        if (!strcmp(name, full)) t = b->b[i];
    }
    for (size_t i = 0; !t && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strncmp(name, kinds[i].prefix, strlen(kinds[i].prefix))) continue;
        snprintf(full, sizeof full, "%s%s", name + strlen(kinds[i].prefix), kinds[i].suffix);
        t = bk_params_find(b->params, full);
    }
    ck_assert_msg(t != NULL, "%s: the block has no %s", gb->path, name);
    return t;
}

static void write_all(bk_golden_block *gb)
{
    bk_error err = {0};
    for (char **name = bk_golden_members(gb->g, "%s/param", gb->path); *name; name++) {
        bk_tensor *t = bk_golden_block_tensor(gb, *name);
        ck_assert_int_eq(bk_numel(t), bk_golden_count(gb->g, "%s/param/%s", gb->path, *name));
        ok(bk_write_f64(gb->be, t, 0, bk_golden_f64(gb->g, "%s/param/%s", gb->path, *name), bk_numel(t), &err), &err);
    }
    if (gb->b->prefix_len)
        ok(bk_block_set_prefix(gb->b, bk_golden_f32(gb->g, "%s/prefix_k", gb->path), bk_golden_f32(gb->g, "%s/prefix_v", gb->path), &err), &err);
}

void bk_golden_block_open(bk_golden_block *gb, bk_golden *g, const char *path, const bk_backend *be, int64_t tokens, bool trained)
{
    bk_error err = {0};
    *gb = (bk_golden_block){.g = g, .path = path, .be = be};
    bk_config c = read_config(gb);
    read_quant(gb);
    if (number(gb, "r3")) ok(bk_hadamard_create(c.head_dim, &gb->r3, &err), &err);
    if (number(gb, "r4")) ok(bk_hadamard_create(c.inter, &gb->r4, &err), &err);
    bk_block_options opt = {.quant = &gb->quant, .r3 = gb->r3, .r4 = gb->r4, .prefix_len = number(gb, "P"), .tokens = tokens, .trained = trained};
    ok(bk_block_create(&gb->b, be, &c, &opt, &err), &err);
    write_all(gb);
    bk_block_quantize(gb->b, true, true);
}

void bk_golden_block_close(bk_golden_block *gb)
{
    bk_block_free(gb->b);
    bk_hadamard_free(gb->r3);
    bk_hadamard_free(gb->r4);
}

void bk_golden_same(const bk_golden_block *gb, const char *name, const bk_tensor *t)
{
    bk_error err = {0};
    int64_t dim[BK_GOLDEN_DIMS], n = bk_numel(t);
    int nd = bk_golden_dims(gb->g, dim, "%s/%s", gb->path, name);
    const char *tol = gb->be->dtype == BK_F64 ? "tol_f64" : "tol_f32";
    double bound = bk_golden_has_attr(gb->g, tol, "%s/%s", gb->path, name) ? bk_golden_attr(gb->g, tol, "%s/%s", gb->path, name)
                                                                            : bk_golden_attr(gb->g, tol, "%s", gb->path);
    double *got = malloc((size_t)n * sizeof *got);
    ck_assert_ptr_nonnull(got);
    ck_assert_int_eq(n, bk_golden_count(gb->g, "%s/%s", gb->path, name));
    ok(bk_read_f64(gb->be, t, 0, got, n, &err), &err);
    double e = bk_golden_error(got, bk_golden_f64(gb->g, "%s/%s", gb->path, name), n, dim[nd - 1]);
    free(got);
    ck_assert_msg(e <= bound, "%s/%s on %s: error %.3g, at most %.3g", gb->path, name, gb->be->name, e, bound);
}
