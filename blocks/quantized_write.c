/* Writing a quantized model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"
#include "blocks/quantized.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "quant/plugin.h"
#include "quant/steps.h"

void bk_quantized_path(char *to, size_t size, const char *dir, int64_t index, int64_t layers)
{
    snprintf(to, size, "%s/model-%05lld-of-%05lld.safetensors", dir, (long long)index + 1, (long long)layers + 1);
}

/* --- writing one layer --- */

typedef struct shard {
    bk_ctx *ctx;
    bk_block *b;
    int64_t layer;
    bk_st_writer *w;
    bk_error *err;
    char name[160];
} shard;

static const char *layer_name(shard *s, const char *inner, const char *suffix)
{
    snprintf(s->name, sizeof s->name, "model.layers.%lld.%s%s", (long long)s->layer, inner, suffix);
    return s->name;
}

bool bk_quantized_has_block(const char *dir, int64_t layer, int64_t layers)
{
    char path[4096];
    bk_quantized_path(path, sizeof path, dir, layer, layers);
    return bk_exists(path);
}

/* The codes of a quantized linear go out as u8; others as they are. Both passes (declare, put) walk the tensors in this
 * order. */
static bool has_codes(const bk_block *b, int w)
{
    return b->wq[w].q && b->wq[w].on && b->wq[w].q->codes;
}

/* What a step of a linear is called: the reader knows these names whatever the quantizer calls its parameters. */
static const char *step_name(shard *s, int w, const char *which)
{
    char inner[64];
    snprintf(inner, sizeof inner, "quant.w_%s.%s", bk_linear_name[w], which);
    return layer_name(s, inner, "");
}

/* [rows, groups] */
static void step_shape(const bk_block *b, int w, int64_t dim[2])
{
    dim[0] = b->w[w]->dim[0];
    dim[1] = b->wq[w].q->units(b->wq[w].state.bytes) / dim[0];
}

static bk_status declare_steps(shard *s, int w)
{
    int64_t dim[2];
    if (!has_codes(s->b, w)) return BK_OK;
    step_shape(s->b, w, dim);
    BK_TRY(bk_st_writer_declare(s->w, step_name(s, w, "step"), BK_ST_F32, 2, dim, s->err));
    return s->b->wq[w].spec.symmetric ? BK_OK : bk_st_writer_declare(s->w, step_name(s, w, "zero"), BK_ST_F32, 2, dim, s->err);
}

/* A parameter of a site's quantizer: the reader makes the same quantizer. Those of weights are read hardened. */
static bool is_of_site(const bk_tensor *t, int group)
{
    return group == BK_GROUP_QUANT && strncmp(t->name, "w_", 2) != 0;
}

static bk_status declare(shard *s)
{
    bk_block *b = s->b;
    for (int i = 0; i < BK_W_COUNT; i++) {
        bool codes = has_codes(b, i);
        const char *name = layer_name(s, bk_linear_hf[i], codes ? ".codes" : ".weight");
        BK_TRY(bk_st_writer_declare(s->w, name, codes ? BK_ST_U8 : BK_ST_F32, 2, b->w[i]->dim, s->err));
        if (b->b[i])
            BK_TRY(bk_st_writer_declare(s->w, layer_name(s, bk_linear_hf[i], ".bias"), BK_ST_F32, 1, b->b[i]->dim,
                                        s->err));
    }
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (b->norm[i])
            BK_TRY(bk_st_writer_declare(s->w, layer_name(s, bk_norm_hf[i], ".weight"), BK_ST_F32, 1, b->norm[i]->dim,
                                        s->err));
    if (b->r3_m) BK_TRY(bk_st_writer_declare(s->w, layer_name(s, "self_attn.r3", ""), BK_ST_F32, 3, b->r3_m->dim, s->err));
    for (int i = 0; i < BK_W_COUNT; i++) BK_TRY(declare_steps(s, i));
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        const bk_tensor *t = bk_params_at(b->params, i, &group);
        char inner[128];
        if (!is_of_site(t, group)) continue;
        snprintf(inner, sizeof inner, "quant.%s", t->name);
        BK_TRY(bk_st_writer_declare(s->w, layer_name(s, inner, ""), BK_ST_F32, t->ndim, t->dim, s->err));
    }
    return BK_OK;
}

#define CHUNK 4096

static bk_status put_real(shard *s, const char *name, const bk_tensor *t)
{
    float buf[CHUNK];
    int64_t n = bk_numel(t);
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        BK_TRY(bk_read(s->b->be, t, i, buf, m, s->err));
        BK_TRY(bk_st_writer_put(s->w, name, buf, (size_t)m * sizeof *buf, s->err));
    }
    return BK_OK;
}

/* A weight as it is written, and as the block has it. */
typedef struct written {
    bk_codes of;
    bk_tensor *value;
    int64_t group; /* columns that share a step */
    int bits;
} written;

/* The reader decodes (code - zero) step with a whole zero in the code range. A quantizer that means something else must not reach a file. */
static bk_status check_unit(const shard *s, const written *o, int w, int64_t first, const int32_t *code, const float *value, int64_t n)
{
    float step, zero = 0;
    int64_t unit = first / o->group;
    BK_TRY(bk_read(s->b->be, o->of.step, unit, &step, 1, s->err));
    if (o->of.zero) BK_TRY(bk_read(s->b->be, o->of.zero, unit, &zero, 1, s->err));
    zero = bk_whole_zero(zero, o->bits);
    for (int64_t j = 0; j < n; j++) {
        float decoded = ((float)code[j] - zero) * step;
        if (decoded != value[j])
            return bk_fail(s->err, BK_EINVAL, "block %lld: quantizer `%s` cannot be written: weight %lld of %s is %g, its code %d with step %g and zero "
                           "point %g reads back as %g (zero points are whole and in the code range)", (long long)s->layer, s->b->wq[w].q->name,
                           (long long)(first + j), bk_linear_name[w], (double)value[j], code[j], (double)step, (double)zero, (double)decoded);
    }
    return BK_OK;
}

static bk_status put_unit(shard *s, const char *name, const written *o, int w, int64_t first, int64_t n)
{
    int32_t code[CHUNK];
    float value[CHUNK];
    uint8_t out[CHUNK];
    BK_TRY(bk_read_i32(s->b->be, o->of.codes, first, code, n, s->err));
    BK_TRY(bk_read(s->b->be, o->value, first, value, n, s->err));
    if (s->b->be->dtype == BK_F32) BK_TRY(check_unit(s, o, w, first, code, value, n));
    for (int64_t j = 0; j < n; j++) out[j] = (uint8_t)(code[j] - o->of.qmin);
    return bk_st_writer_put(s->w, name, out, (size_t)n, s->err);
}

static bk_status put_codes(shard *s, const char *name, int w)
{
    bk_qinst *q = &s->b->wq[w];
    const bk_tensor *x = s->b->w[w];
    int64_t dim[2], n = bk_numel(x);
    step_shape(s->b, w, dim);
    bk_step_begin(s->ctx);
    written o = {.of = {.codes = bk_tensor_new(s->ctx, BK_I32, 2, x->dim, "codes"), .step = bk_real_new(s->ctx, 2, dim, "step")},
                 .group = n / (dim[0] * dim[1]), .bits = q->spec.bits};
    if (!q->spec.symmetric) o.of.zero = bk_real_new(s->ctx, 2, dim, "zero");
    o.value = bk_qinst_apply(s->ctx, q, s->b->w[w]);
    BK_TRY(bk_ctx_status(s->ctx));
    BK_TRY(q->q->codes(s->ctx, q->state.bytes, x, &o.of));
    if (bk_ctx_measuring(s->ctx)) return BK_OK;
    for (int64_t u = 0; u < n; u += o.group)
        for (int64_t i = 0; i < o.group; i += CHUNK) BK_TRY(put_unit(s, name, &o, w, u + i, o.group - i < CHUNK ? o.group - i : CHUNK));
    return BK_OK;
}

static bk_status put_steps(shard *s, int w)
{
    bk_qinst *q = &s->b->wq[w];
    int64_t dim[2];
    if (!has_codes(s->b, w)) return BK_OK;
    step_shape(s->b, w, dim);
    bk_step_begin(s->ctx);
    bk_codes of = {.step = bk_real_new(s->ctx, 2, dim, "step"), .zero = q->spec.symmetric ? NULL : bk_real_new(s->ctx, 2, dim, "zero")};
    BK_TRY(bk_ctx_status(s->ctx));
    BK_TRY(q->q->codes(s->ctx, q->state.bytes, s->b->w[w], &of));
    if (bk_ctx_measuring(s->ctx)) return BK_OK;
    BK_TRY(put_real(s, step_name(s, w, "step"), of.step));
    return of.zero ? put_real(s, step_name(s, w, "zero"), of.zero) : BK_OK;
}

static bk_status put(shard *s)
{
    bk_block *b = s->b;
    for (int i = 0; i < BK_W_COUNT; i++) {
        if (has_codes(b, i)) BK_TRY(put_codes(s, layer_name(s, bk_linear_hf[i], ".codes"), i));
        else BK_TRY(put_real(s, layer_name(s, bk_linear_hf[i], ".weight"), b->w[i]));
        if (b->b[i]) BK_TRY(put_real(s, layer_name(s, bk_linear_hf[i], ".bias"), b->b[i]));
    }
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (b->norm[i]) BK_TRY(put_real(s, layer_name(s, bk_norm_hf[i], ".weight"), b->norm[i]));
    if (b->r3_m) BK_TRY(put_real(s, layer_name(s, "self_attn.r3", ""), b->r3_m));
    for (int i = 0; i < BK_W_COUNT; i++) BK_TRY(put_steps(s, i));
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        const bk_tensor *t = bk_params_at(b->params, i, &group);
        char inner[128];
        if (!is_of_site(t, group)) continue;
        snprintf(inner, sizeof inner, "quant.%s", t->name);
        BK_TRY(put_real(s, layer_name(s, inner, ""), t));
    }
    return BK_OK;
}

static bk_status measure_codes(shard *s)
{
    bk_ctx_measure(s->ctx);
    for (int i = 0; i < BK_W_COUNT; i++)
        if (has_codes(s->b, i)) {
            BK_TRY(put_codes(s, "", i));
            BK_TRY(put_steps(s, i));
        }
    return bk_ctx_commit(s->ctx);
}

bk_status bk_quantized_write_block(bk_ctx *ctx, bk_block *b, int64_t layer, const char *dir, bk_error *err)
{
    char path[4096];
    shard s = {.ctx = ctx, .b = b, .layer = layer, .err = err};
    bk_quantized_path(path, sizeof path, dir, layer, b->cfg.layers);
    BK_TRY(measure_codes(&s));
    BK_TRY(bk_block_round(ctx, b));
    BK_TRY(bk_st_writer_new(path, &s.w, err));
    bk_status st = declare(&s);
    if (!st) st = put(&s);
    if (!st) return bk_st_writer_commit(s.w, err);
    bk_st_writer_abort(s.w);
    return st;
}

/* --- the rest of the folder --- */

/* By name: their order is the quantizer's own affair. */
static bk_json *options_to_json(const bk_qspec *q)
{
    const bk_quantizer *kind = bk_quantizer_find(q->quantizer);
    bk_json *o = bk_json_object();
    for (int i = 0; kind && i < kind->n_options; i++) bk_json_set(o, kind->options[i].name, bk_json_of_num(q->option[i]));
    return o;
}

static bk_json *spec_to_json(const bk_qspec *q)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "quantizer", bk_json_of_text(q->quantizer));
    bk_json_set(o, "bits", bk_json_of_int(q->bits));
    bk_json_set(o, "symmetric", bk_json_of_bool(q->symmetric));
    bk_json_set(o, "restricted", bk_json_of_bool(q->restricted));
    bk_json_set(o, "clip", bk_json_of_bool(q->clip));
    bk_json_set(o, "granularity",
                bk_json_of_text(bk_granularity_name[q->granularity]));
    bk_json_set(o, "group", bk_json_of_int(q->group));
    bk_json_set(o, "options", options_to_json(q));
    if (bk_plugin_sha256(q->quantizer)) bk_json_set(o, "plugin_sha256", bk_json_of_text(bk_plugin_sha256(q->quantizer)));
    return o;
}

static bk_status write_config(const bk_source *src, const bk_prefix *prefix, const bk_quantized_info *info,
                              const char *dir, bk_error *err)
{
    const bk_config *cfg = bk_source_config(src);
    int64_t r4_group = bk_source_rotation(src)->r4_group;
    char path[4096];
    bk_json *root = bk_config_to_json(cfg), *q = bk_json_object(), *ids = bk_json_array(), *skip = bk_json_array();
    bk_json_set(q, "quant_method", bk_json_of_text("brick"));
    bk_json_set(q, "version", bk_json_of_int(BK_QUANTIZED_VERSION));
    bk_json_set(q, "base_model", bk_json_of_text(info->model));
    bk_json_set(q, "scheme", bk_json_of_text(info->scheme));
    bk_json_set(q, "weight", spec_to_json(&info->quant.weight));
    bk_json_set(q, "activation", spec_to_json(&info->quant.activation));
    bk_json_set(q, "key", spec_to_json(&info->quant.key));
    bk_json_set(q, "value", spec_to_json(&info->quant.value));
    bk_json_set(q, "bos_before_text", bk_json_of_bool(info->bos_before_text));
    bk_json_set(q, "online_r3", bk_json_of_bool(bk_source_r3(src) != NULL));
    bk_json_set(q, "online_r4", bk_json_of_bool(bk_source_r4(src) != NULL));
    if (r4_group) bk_json_set(q, "online_r4_group", bk_json_of_int(r4_group));
    for (int64_t i = 0; i < prefix->n; i++) bk_json_push(ids, bk_json_of_int(prefix->ids[i]));
    bk_json_set(q, "prefix_ids", ids);
    for (int64_t l = 0; info->skip_sites && l < cfg->layers; l++)
        bk_json_push(skip, bk_json_of_int(info->skip_sites[l]));
    bk_json_set(q, "skip_sites", skip);
    bk_json_set(root, "quantization_config", q);
    snprintf(path, sizeof path, "%s/config.json", dir);
    bk_status st = bk_json_save(root, path, err);
    bk_json_free(root);
    return st;
}

/* Embedding, head, last norm and prefix: rows go through a buffer. */
static bk_status put_rows(const bk_source *src, bk_st_writer *w, const char *name, bool head, float *buf, int64_t rows,
                          bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    int32_t ids[CHUNK];
    for (int64_t r = 0; r < c->vocab; r += rows) {
        int64_t n = c->vocab - r < rows ? c->vocab - r : rows;
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(r + i);
        BK_TRY(head ? bk_source_head(src, r, n, buf, err) : bk_source_embed(src, ids, n, buf, err));
        BK_TRY(bk_st_writer_put(w, name, buf, (size_t)(n * c->hidden) * sizeof *buf, err));
    }
    return BK_OK;
}

static bk_status write_rest(const bk_source *src, const bk_prefix *p, bk_st_writer *w, float *buf, int64_t rows,
                            bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    int64_t table[2] = {c->vocab, c->hidden}, kv[4] = {p->layers, p->kv_heads, p->n, p->head_dim};
    size_t kv_bytes = (size_t)(p->layers * p->kv_heads * p->n * p->head_dim) * sizeof(float);
    BK_TRY(bk_st_writer_declare(w, "model.embed_tokens.weight", BK_ST_F32, 2, table, err));
    BK_TRY(bk_st_writer_declare(w, "model.norm.weight", BK_ST_F32, 1, &c->hidden, err));
    if (!c->tied) BK_TRY(bk_st_writer_declare(w, "lm_head.weight", BK_ST_F32, 2, table, err));
    if (p->n) BK_TRY(bk_st_writer_declare(w, "prefix.key", BK_ST_F32, 4, kv, err));
    if (p->n) BK_TRY(bk_st_writer_declare(w, "prefix.value", BK_ST_F32, 4, kv, err));
    BK_TRY(put_rows(src, w, "model.embed_tokens.weight", false, buf, rows, err));
    bk_source_final_norm(src, buf);
    BK_TRY(bk_st_writer_put(w, "model.norm.weight", buf, (size_t)c->hidden * sizeof *buf, err));
    if (!c->tied) BK_TRY(put_rows(src, w, "lm_head.weight", true, buf, rows, err));
    if (p->n) BK_TRY(bk_st_writer_put(w, "prefix.key", p->k, kv_bytes, err));
    return p->n ? bk_st_writer_put(w, "prefix.value", p->v, kv_bytes, err) : BK_OK;
}

static bk_status write_last_shard(const bk_source *src, const bk_prefix *prefix, const char *dir, bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    int64_t rows = 256;
    char path[4096];
    bk_st_writer *w;
    float *buf = malloc((size_t)(rows * c->hidden) * sizeof *buf);
    if (!buf) return bk_fail(err, BK_ENOMEM, "no memory to write embeddings");
    bk_quantized_path(path, sizeof path, dir, c->layers, c->layers);
    bk_status st = bk_st_writer_new(path, &w, err);
    if (!st) {
        st = write_rest(src, prefix, w, buf, rows, err);
        if (!st) st = bk_st_writer_commit(w, err);
        else bk_st_writer_abort(w);
    }
    free(buf);
    return st;
}

static bk_status index_shard(bk_json *map, const char *dir, int64_t i, int64_t layers, int64_t *total, bk_error *err)
{
    char path[4096];
    bk_st_set *s;
    bk_quantized_path(path, sizeof path, dir, i, layers);
    BK_TRY(bk_st_open(path, &s, err));
    const char *file = strrchr(path, '/') + 1;
    for (int64_t k = 0; k < bk_st_count(s); k++) {
        const bk_st_tensor *t = bk_st_at(s, k);
        *total += t->count * (int64_t)bk_st_dtype_size(t->dtype);
        bk_json_set(map, t->name, bk_json_of_text(file));
    }
    bk_st_close(s);
    return BK_OK;
}

static bk_status write_index(const char *dir, int64_t layers, bk_error *err)
{
    char path[4096];
    int64_t total = 0;
    bk_json *root = bk_json_object(), *map = bk_json_object(), *meta = bk_json_object();
    bk_status st = BK_OK;
    for (int64_t i = 0; !st && i <= layers; i++) st = index_shard(map, dir, i, layers, &total, err);
    bk_json_set(meta, "total_size", bk_json_of_int(total));
    bk_json_set(root, "metadata", meta);
    bk_json_set(root, "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (!st) st = bk_json_save(root, path, err);
    bk_json_free(root);
    return st;
}

bk_status bk_quantized_finish(const bk_source *src, const bk_prefix *prefix, const bk_quantized_info *info,
                              const char *dir, bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    for (int64_t l = 0; l < c->layers; l++)
        if (!bk_quantized_has_block(dir, l, c->layers))
            return bk_fail(err, BK_EINVAL, "%s: block %lld is missing", dir, (long long)l);
    BK_TRY(write_last_shard(src, prefix, dir, err));
    BK_TRY(write_index(dir, c->layers, err));
    return write_config(src, prefix, info, dir, err); /* last: without it the folder is no model */
}
