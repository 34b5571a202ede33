/* Reading a quantized model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/quantized.h"
#include "io/safetensors.h"
#include "quant/plugin.h"
#include "quant/steps.h"

struct bk_quantized {
    const bk_model *m; /* NULL while a single shard is read */
    const char *path;  /* for messages */
    const bk_st_set *set;
    bk_block_quant quant;
    int weight_bits;
    bool weight_symmetric;
    unsigned *skip_sites;
    bk_hadamard_plan *r3, *r4;
    bk_prefix prefix;
    char scheme[64];
    bool bos_before_text;
    float *buf;
    uint8_t *codes;
};

static bk_status option_from_json(const bk_json *value, const char *name, const bk_quantizer *kind, bk_qspec *q, bk_error *err)
{
    int i = 0;
    while (i < kind->n_options && strcmp(kind->options[i].name, name)) i++;
    if (i == kind->n_options)
        return bk_fail(err, BK_EFORMAT, "the quantizer `%s` has no option `%.60s`: was the model made with another version of it?",
                       kind->name, name);
    const bk_option *o = &kind->options[i];
    double lo = o->type == BK_OPTION_BOOL ? 0 : o->min, hi = o->type == BK_OPTION_BOOL ? 1 : o->max, x = bk_json_num(value, NAN);
    if (!(x >= lo && x <= hi))
        return bk_fail(err, BK_EFORMAT, "option `%s` of the quantizer `%s` is not between %g and %g", name, kind->name, lo, hi);
    q->option[i] = x;
    return BK_OK;
}

/* Options that are not told have their defaults. */
static bk_status options_from_json(const bk_json *options, bk_qspec *q, bk_error *err)
{
    const bk_quantizer *kind = bk_quantizer_find(q->quantizer);
    if (!kind && q->bits < 16) return bk_fail(err, BK_EFORMAT, "there is no quantizer `%s` (is --plugin FILE.so missing?)", q->quantizer);
    bk_qspec_defaults(q);
    for (void *it = bk_json_first(options); it && kind; it = bk_json_next(options, it))
        BK_TRY(option_from_json(bk_json_value(it), bk_json_key(it), kind, q, err));
    return BK_OK;
}

/* A plugin of the same name with other code would give other numbers. */
static bk_status same_plugin(const bk_json *o, const bk_qspec *q, bk_error *err)
{
    const char *was = bk_json_str(bk_json_get(o, "plugin_sha256"), ""), *is = bk_plugin_sha256(q->quantizer);
    if (!strcmp(was, is ? is : "")) return BK_OK;
    return bk_fail(err, BK_EINVAL, "the model was made with another quantizer `%s`: that of %s%.12s, not of %s%.12s; load that one with --plugin FILE.so",
                   q->quantizer, *was ? "a plugin with SHA-256 " : "brick itself", was, is ? "a plugin with SHA-256 " : "brick itself", is ? is : "");
}

static bk_status spec_from_json(const bk_json *o, const char *path, const char *what, bk_qspec *q, bk_error *err)
{
    const char *name = bk_json_str(bk_json_get(o, "quantizer"), ""),
               *grain = bk_json_str(bk_json_get(o, "granularity"), "");
    int g = 0;
    while (g < BK_GRANULARITY_COUNT && strcmp(grain, bk_granularity_name[g])) g++;
    int64_t bits = bk_json_int(bk_json_get(o, "bits"), 0);
    if (g == BK_GRANULARITY_COUNT || bits < 2 || (bits > 8 && bits != 16) || strlen(name) >= sizeof q->quantizer)
        return bk_fail(err, BK_EFORMAT, "%s/config.json: quantization_config.%s is damaged", path, what);
    *q = (bk_qspec){.bits = (int)bits,
                    .symmetric = bk_json_bool(bk_json_get(o, "symmetric"), true),
                    .restricted = bk_json_bool(bk_json_get(o, "restricted"), false),
                    .clip = bk_json_bool(bk_json_get(o, "clip"), false),
                    .granularity = g,
                    .group = bk_json_int(bk_json_get(o, "group"), 0)};
    memcpy(q->quantizer, name, strlen(name) + 1);
    bool used = strcmp(what, "weight") != 0; /* weights are read hardened: their quantizer need not be there */
    return used && (options_from_json(bk_json_get(o, "options"), q, err) || same_plugin(o, q, err))
               ? bk_error_prefix(err, "%s/config.json: quantization_config.%s", path, what)
               : BK_OK;
}

/* group 0: of order inter */
static bk_status make_r4(bk_quantized *q, int64_t group, bk_error *err)
{
    int64_t n = bk_model_config(q->m)->inter;
    if (!group) return bk_hadamard_create(n, &q->r4, err);
    if (group < 1 || n % group || !bk_hadamard_exists(group))
        return bk_fail(err, BK_EFORMAT, "%s/config.json: online_r4_group is %lld, which cannot be for %lld channels", q->path, (long long)group,
                       (long long)n);
    return bk_hadamard_create_blocks(n, group, &q->r4, err);
}

static bk_status read_config(bk_quantized *q, bk_error *err)
{
    const char *path = q->path;
    const bk_config *c = bk_model_config(q->m);
    const bk_json *j = bk_json_get(bk_model_json(q->m), "quantization_config");
    int64_t version = bk_json_int(bk_json_get(j, "version"), 0);
    if (version != BK_QUANTIZED_VERSION)
        return bk_fail(err, BK_EUNSUP, "%s: a quantized model of version %lld, this brick reads %d", path,
                       (long long)version, BK_QUANTIZED_VERSION);
    BK_TRY(spec_from_json(bk_json_get(j, "weight"), path, "weight", &q->quant.weight, err));
    BK_TRY(spec_from_json(bk_json_get(j, "activation"), path, "activation", &q->quant.activation, err));
    BK_TRY(spec_from_json(bk_json_get(j, "key"), path, "key", &q->quant.key, err));
    BK_TRY(spec_from_json(bk_json_get(j, "value"), path, "value", &q->quant.value, err));
    q->bos_before_text = bk_json_bool(bk_json_get(j, "bos_before_text"), false);
    q->weight_bits = q->quant.weight.bits;
    q->weight_symmetric = q->quant.weight.symmetric;
    q->quant.weight.bits = 16; /* read hardened */
    snprintf(q->scheme, sizeof q->scheme, "%.63s", bk_json_str(bk_json_get(j, "scheme"), ""));
    if (bk_json_bool(bk_json_get(j, "online_r3"), false)) BK_TRY(bk_hadamard_create(c->head_dim, &q->r3, err));
    if (bk_json_bool(bk_json_get(j, "online_r4"), false)) BK_TRY(make_r4(q, bk_json_int(bk_json_get(j, "online_r4_group"), 0), err));
    if (c->r3_per_kv_head && q->r3) return bk_fail(err, BK_EFORMAT, "%s/config.json: online_r3 and r3_per_kv_head exclude each other", path);
    if (!c->r3_per_kv_head && bk_st_find(q->set, "model.layers.0.self_attn.r3"))
        return bk_fail(err, BK_EFORMAT, "%s: there are tensors self_attn.r3, but no r3_per_kv_head in config.json", path);
    const bk_json *skip = bk_json_get(j, "skip_sites");
    if (bk_json_size(skip) == 0) return BK_OK;
    if ((int64_t)bk_json_size(skip) != c->layers)
        return bk_fail(err, BK_EFORMAT, "%s/config.json: skip_sites has %zu entries, the model %lld blocks", path,
                       bk_json_size(skip), (long long)c->layers);
    if (!(q->skip_sites = calloc((size_t)c->layers, sizeof *q->skip_sites)))
        return bk_fail(err, BK_ENOMEM, "no memory");
    for (int64_t l = 0; l < c->layers; l++) q->skip_sites[l] = (unsigned)bk_json_int(bk_json_at(skip, (size_t)l), 0);
    return BK_OK;
}

static bk_status find(const bk_quantized *q, const char *name, int64_t count, bk_st_dtype dtype, const bk_st_tensor **t,
                      bk_error *err)
{
    *t = bk_st_find(q->set, name);
    if (!*t) return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' is missing", q->path, name);
    if ((*t)->count == count && (*t)->dtype == dtype) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has %lld values of type %s, want %lld of %s", q->path, name,
                   (long long)(*t)->count, bk_st_dtype_name((*t)->dtype), (long long)count, bk_st_dtype_name(dtype));
}

/* Values [first, first + n) of a tensor, none of them NaN or Inf. */
static bk_status read_finite(const bk_quantized *q, const bk_st_tensor *t, int64_t first, int64_t n, float *dst,
                             bk_error *err)
{
    BK_TRY(bk_st_read_f32(q->set, t, first, n, dst, err));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(dst[i]))
            return bk_fail(err, BK_ENUMERIC, "%s: tensor '%s' is %g at index %lld", q->path, t->name, (double)dst[i],
                           (long long)(first + i));
    return BK_OK;
}

static bk_status read_prefix(bk_quantized *q, bk_error *err)
{
    const bk_config *c = bk_model_config(q->m);
    const bk_json *ids = bk_json_get(bk_json_get(bk_model_json(q->m), "quantization_config"), "prefix_ids");
    bk_prefix *p = &q->prefix;
    *p = (bk_prefix){.n = (int64_t)bk_json_size(ids), .layers = c->layers, .kv_heads = c->kv_heads, .head_dim = c->head_dim};
    /* the sizes of a config keep the other three below 2^40: their product with n stays within 63 bits */
    if (p->n > c->max_positions || p->n > 1 << 20)
        return bk_fail(err, BK_EFORMAT, "%s/config.json: %lld prefix ids", q->path, (long long)p->n);
    int64_t count = p->layers * p->kv_heads * p->n * p->head_dim;
    p->ids = malloc((size_t)(p->n + 1) * sizeof *p->ids);
    p->k = malloc((size_t)(count + 1) * sizeof *p->k);
    p->v = malloc((size_t)(count + 1) * sizeof *p->v);
    if (!p->ids || !p->k || !p->v) return bk_fail(err, BK_ENOMEM, "no memory for the prefix");
    for (int64_t i = 0; i < p->n; i++) {
        int64_t id = bk_json_int(bk_json_at(ids, (size_t)i), -1);
        if (id < 0 || id >= c->vocab)
            return bk_fail(err, BK_EFORMAT, "%s/config.json: prefix id %lld is outside the vocabulary of %lld tokens",
                           q->path, (long long)id, (long long)c->vocab);
        p->ids[i] = (int32_t)id;
    }
    const bk_st_tensor *t;
    if (!p->n && bk_st_find(q->set, "prefix.key"))
        return bk_fail(err, BK_EFORMAT, "%s: there are keys of a prefix, but no prefix_ids", q->path);
    if (!p->n) return BK_OK;
    BK_TRY(find(q, "prefix.key", count, BK_ST_F32, &t, err));
    BK_TRY(read_finite(q, t, 0, count, p->k, err));
    BK_TRY(find(q, "prefix.value", count, BK_ST_F32, &t, err));
    return read_finite(q, t, 0, count, p->v, err);
}

/* Buffers for the largest linear, or R3. */
static bk_status make_room(bk_quantized *q, const bk_config *c, bk_error *err)
{
    int64_t largest = c->kv_heads * c->head_dim * c->head_dim;
    for (int i = 0; i < BK_W_COUNT; i++) {
        int64_t rows, cols;
        bk_linear_shape(c, i, &rows, &cols);
        largest = rows * cols > largest ? rows * cols : largest;
    }
    q->buf = malloc((size_t)largest * sizeof *q->buf);
    q->codes = malloc((size_t)largest);
    return q->buf && q->codes ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for one linear");
}

bk_status bk_quantized_open(const bk_model *m, bk_quantized **out, bk_error *err)
{
    *out = NULL;
    bk_quantized *q = calloc(1, sizeof *q);
    if (!q) return bk_fail(err, BK_ENOMEM, "no memory");
    q->m = m;
    q->path = bk_model_path(m);
    q->set = bk_model_tensors(m);
    bk_status st = make_room(q, bk_model_config(m), err);
    if (!st) st = read_config(q, err);
    if (!st) st = read_prefix(q, err);
    if (st) bk_quantized_close(q);
    else *out = q;
    return st;
}

void bk_quantized_close(bk_quantized *q)
{
    if (!q) return;
    bk_hadamard_free(q->r3);
    bk_hadamard_free(q->r4);
    bk_prefix_free(&q->prefix);
    free(q->skip_sites);
    free(q->buf);
    free(q->codes);
    free(q);
}

const bk_prefix *bk_quantized_prefix(const bk_quantized *q)
{
    return &q->prefix;
}

const bk_block_quant *bk_quantized_quant(const bk_quantized *q)
{
    return &q->quant;
}

const char *bk_quantized_scheme(const bk_quantized *q)
{
    return q->scheme;
}

bool bk_quantized_bos_before_text(const bk_quantized *q)
{
    return q->bos_before_text;
}

const bk_hadamard_plan *bk_quantized_r3(const bk_quantized *q)
{
    return q->r3;
}

const bk_hadamard_plan *bk_quantized_r4(const bk_quantized *q)
{
    return q->r4;
}

/* Steps (and zero points) of a linear: [rows, groups], zeros behind the steps. */
static bk_status read_steps(bk_quantized *q, int64_t layer, int w, int64_t rows, int64_t cols, int64_t *groups,
                            float **out, bk_error *err)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%lld.quant.w_%s.step", (long long)layer, bk_linear_name[w]);
    const bk_st_tensor *step = bk_st_find(q->set, name), *zero = NULL;
    if (!step || step->count < rows || cols % (step->count / rows) || step->count % rows)
        return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' is missing or of a wrong size", q->path, name);
    int64_t n = step->count;
    *groups = n / rows;
    if (!(*out = calloc((size_t)n * 2, sizeof **out)))
        return bk_fail(err, BK_ENOMEM, "no memory for %lld steps", (long long)n);
    BK_TRY(read_finite(q, step, 0, n, *out, err));
    for (int64_t i = 0; i < n; i++)
        if (!((*out)[i] > 0))
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has the step %g at index %lld", q->path, name,
                           (double)(*out)[i], (long long)i);
    if (q->weight_symmetric) return BK_OK;
    snprintf(name, sizeof name, "model.layers.%lld.quant.w_%s.zero", (long long)layer, bk_linear_name[w]);
    BK_TRY(find(q, name, n, BK_ST_F32, &zero, err));
    return read_finite(q, zero, 0, n, *out + n, err);
}

/* w = (code - zero) step, in f32 as the fake-quantizer computes it. */
static bk_status decode(bk_quantized *q, const bk_st_tensor *t, int64_t rows, int64_t cols, int64_t groups,
                        const float *step, bk_error *err)
{
    int qmin = q->weight_symmetric ? -(1 << (q->weight_bits - 1)) : 0;
    int64_t group = cols / groups, n = rows * groups;
    float top = (float)((1 << q->weight_bits) - 1);
    for (int64_t p = 0; p < n; p++) {
        float zero = bk_whole_zero(step[n + p], q->weight_bits);
        for (int64_t i = p * group; i < (p + 1) * group; i++) {
            if ((float)q->codes[i] > top)
                return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has the code %d at index %lld, beyond %d bits",
                               q->path, t->name, q->codes[i], (long long)i, q->weight_bits);
            q->buf[i] = ((float)(q->codes[i] + qmin) - zero) * step[p];
        }
    }
    return BK_OK;
}

static bk_status read_codes(bk_quantized *q, int64_t layer, int w, const bk_st_tensor *t, int64_t rows, int64_t cols,
                            bk_error *err)
{
    int64_t groups = 1;
    float *step = NULL;
    BK_TRY(bk_st_read_raw(q->set, t, 0, rows * cols, q->codes, err));
    bk_status st = read_steps(q, layer, w, rows, cols, &groups, &step, err);
    if (!st) st = decode(q, t, rows, cols, groups, step, err);
    free(step);
    return st;
}

static bk_status read_linear(bk_quantized *q, int64_t layer, int w, bk_block *b, bk_error *err)
{
    char name[160];
    int64_t rows = b->w[w]->dim[0], cols = b->w[w]->dim[1];
    snprintf(name, sizeof name, "model.layers.%lld.%s.codes", (long long)layer, bk_linear_hf[w]);
    const bk_st_tensor *t = bk_st_find(q->set, name);
    if (t) {
        BK_TRY(find(q, name, rows * cols, BK_ST_U8, &t, err));
        BK_TRY(read_codes(q, layer, w, t, rows, cols, err));
    } else {
        snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, bk_linear_hf[w]);
        BK_TRY(find(q, name, rows * cols, BK_ST_F32, &t, err));
        BK_TRY(read_finite(q, t, 0, rows * cols, q->buf, err));
    }
    BK_TRY(bk_write(b->be, b->w[w], 0, q->buf, rows * cols, err));
    if (!b->b[w]) return BK_OK;
    snprintf(name, sizeof name, "model.layers.%lld.%s.bias", (long long)layer, bk_linear_hf[w]);
    BK_TRY(find(q, name, rows, BK_ST_F32, &t, err));
    BK_TRY(read_finite(q, t, 0, rows, q->buf, err));
    return bk_write(b->be, b->b[w], 0, q->buf, rows, err);
}

static bk_status read_small(bk_quantized *q, const char *name, bk_block *b, bk_tensor *to, bk_error *err)
{
    const bk_st_tensor *t;
    int64_t n = bk_numel(to);
    BK_TRY(find(q, name, n, BK_ST_F32, &t, err));
    BK_TRY(read_finite(q, t, 0, n, q->buf, err));
    return bk_write(b->be, to, 0, q->buf, n, err);
}

static bk_status read_block(bk_quantized *q, int64_t layer, bk_block *b, bk_error *err)
{
    char name[160];
    for (int i = 0; i < BK_W_COUNT; i++) BK_TRY(read_linear(q, layer, i, b, err));
    for (int i = 0; i < BK_NORM_COUNT; i++) {
        if (!b->norm[i]) continue;
        snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, bk_norm_hf[i]);
        BK_TRY(read_small(q, name, b, b->norm[i], err));
    }
    snprintf(name, sizeof name, "model.layers.%lld.self_attn.r3", (long long)layer);
    if (b->r3_m) BK_TRY(read_small(q, name, b, b->r3_m, err));
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        bk_tensor *t = bk_params_at(b->params, i, &group);
        if (group != BK_GROUP_QUANT) continue;
        snprintf(name, sizeof name, "model.layers.%lld.quant.%s", (long long)layer, t->name);
        BK_TRY(read_small(q, name, b, t, err));
    }
    return BK_OK;
}

bk_status bk_quantized_load(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    bk_quantized *q = user;
    b->skip_sites = q->skip_sites ? q->skip_sites[layer] : 0;
    bk_block_quantize(b, true, true);
    BK_TRY(read_block(q, layer, b, err));
    return q->prefix.n ? bk_block_set_prefix(b, bk_prefix_k(&q->prefix, layer), bk_prefix_v(&q->prefix, layer), err)
                       : BK_OK;
}

bk_status bk_quantized_read_block(bk_block *b, int64_t layer, const char *dir, const bk_qspec *weight, bk_error *err)
{
    char path[4096];
    bk_st_set *set;
    bk_quantized_path(path, sizeof path, dir, layer, b->cfg.layers);
    BK_TRY(bk_st_open(path, &set, err));
    bk_quantized q = {.path = path, .set = set, .weight_bits = weight->bits, .weight_symmetric = weight->symmetric};
    bk_status st = make_room(&q, &b->cfg, err);
    if (!st) st = read_block(&q, layer, b, err);
    free(q.buf);
    free(q.codes);
    bk_st_close(set);
    return st;
}
