#include "blocks/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/weights.h"
#include "io/file.h"

#define CONFIG "config.json"
#define INDEX "model.safetensors.index.json"

struct bk_model {
    char *path, *dir, *name;
    bk_config config;
    int64_t bos, eos;
    bool quantized;
    bk_gguf *gguf; /* or */
    bk_json *json; /* config.json and */
    bk_st_set *set;
};

/* Names of both kinds of file, side by side. */
typedef struct names {
    const char *hf, *gguf;
} names;

#define BK_LINEAR(E, name, hf, gguf) {hf, gguf},
static const names linears[BK_W_COUNT] = {BK_LINEARS(BK_LINEAR)};
#undef BK_LINEAR
#define BK_NORM(E, name, hf, gguf) {hf, gguf},
static const names norms[BK_NORM_COUNT] = {BK_NORMS(BK_NORM)};
#undef BK_NORM
static const names embedding = {"model.embed_tokens.weight", "token_embd.weight"};
static const names final_norm = {"model.norm.weight", "output_norm.weight"};
static const names head = {"lm_head.weight", "output.weight"};

static const char *pick(const bk_model *m, names n)
{
    return m->gguf ? n.gguf : n.hf;
}

static void layer_name(const bk_model *m, int64_t layer, names n, const char *what, char out[128])
{
    snprintf(out, 128, "%s.%lld.%s.%s", m->gguf ? "blk" : "model.layers", (long long)layer, pick(m, n), what);
}

void bk_model_linear_name(const bk_model *m, int64_t layer, bk_linear_id id, const char *what, char out[128])
{
    layer_name(m, layer, linears[id], what, out);
}

static bk_status no_memory(bk_error *err, const char *path)
{
    return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
}

/* A tensor of either kind of file. */
typedef struct tensor {
    const char *name;
    int ndim;
    const int64_t *dim;
    bool readable;
    const char *type;
    int64_t index; /* in its file or set */
} tensor;

static tensor tensor_at(const bk_model *m, int64_t i)
{
    if (m->gguf) {
        const bk_gguf_tensor *t = bk_gguf_tensor_at(m->gguf, i);
        return (tensor){t->name, t->ndim, t->dim, t->readable, t->type, i};
    }
    const bk_st_tensor *t = bk_st_at(m->set, i);
    bool readable = t->dtype == BK_ST_F32 || t->dtype == BK_ST_F16 || t->dtype == BK_ST_BF16 || t->dtype == BK_ST_F64;
    return (tensor){t->name, t->ndim, t->dim, readable, bk_st_dtype_name(t->dtype), i};
}

static int64_t tensor_count(const bk_model *m)
{
    return m->gguf ? bk_gguf_tensor_count(m->gguf) : bk_st_count(m->set);
}

/* .name is NULL if there is none. */
static tensor find(const bk_model *m, const char *name)
{
    int64_t i = -1;
    if (m->gguf) {
        const bk_gguf_tensor *t = bk_gguf_find(m->gguf, name);
        if (t) i = t - bk_gguf_tensor_at(m->gguf, 0);
    } else {
        const bk_st_tensor *t = bk_st_find(m->set, name);
        if (t) i = t - bk_st_at(m->set, 0);
    }
    return i < 0 ? (tensor){0} : tensor_at(m, i);
}

/* ---- what must be there ---- */

typedef struct check {
    const bk_model *m;
    bool *known; /* of each tensor in the files */
    int missing;
    char list[512];
} check;

static void list_add(check *k, const char *name)
{
    size_t n = strlen(k->list);
    if (++k->missing <= 6 && n + strlen(name) + 2 < sizeof k->list)
        snprintf(k->list + n, sizeof k->list - n, "%s%s", n ? ", " : "", name);
}

/* A matrix [rows, cols], or a vector [cols] when rows is 0. */
static bk_status expect(check *k, const char *name, int64_t rows, int64_t cols, bk_error *err)
{
    tensor t = find(k->m, name);
    if (!t.name) {
        list_add(k, name);
        return BK_OK;
    }
    k->known[t.index] = true;
    if (!t.readable)
        return bk_fail(err, BK_EUNSUP, "%s: tensor '%s' is of type %s, which brick cannot read as weights", k->m->path,
                       name, t.type);
    const int64_t want[2] = {rows ? rows : cols, cols};
    const int ndim = rows ? 2 : 1;
    bool fits = t.ndim == ndim;
    for (int i = 0; fits && i < ndim; i++) fits = t.dim[i] == want[i];
    if (fits) return BK_OK;
    char has[128] = "", asked[64];
    for (int i = 0; i < t.ndim; i++) {
        size_t n = strlen(has);
        snprintf(has + n, sizeof has - n, "%s%lld", i ? ", " : "", (long long)t.dim[i]);
    }
    snprintf(asked, sizeof asked, rows ? "%lld, %lld" : "%lld", (long long)want[0], (long long)want[1]);
    return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has shape [%s], its config asks for [%s]", k->m->path, name, has,
                   asked);
}

static bk_status expect_layer(check *k, int64_t layer, bk_error *err)
{
    const bk_config *c = &k->m->config;
    char name[128];
    for (int id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, (bk_linear_id)id, &out, &in);
        layer_name(k->m, layer, linears[id], "weight", name);
        if (!k->m->quantized) BK_TRY(expect(k, name, out, in, err));
        layer_name(k->m, layer, linears[id], "bias", name);
        if (bk_model_has_bias(k->m, (bk_linear_id)id)) BK_TRY(expect(k, name, 0, out, err));
    }
    for (int id = 0; id < BK_NORM_COUNT; id++) {
        bool of_head = id == BK_NORM_Q || id == BK_NORM_K;
        layer_name(k->m, layer, norms[id], "weight", name);
        if (!of_head || c->qk_norm) BK_TRY(expect(k, name, 0, of_head ? c->head_dim : c->hidden, err));
    }
    return BK_OK;
}

/* Tensors that change nothing: the head of a tied model, tables that old files carry, the scaling that
 * bk_config_from_gguf has read. */
static bool harmless(const bk_model *m, const char *name)
{
    const char *tail = strstr(name, ".rotary_emb.inv_freq");
    return strcmp(name, pick(m, head)) == 0 ||
           (m->gguf ? strcmp(name, "rope_freqs.weight") == 0 : tail && tail[20] == 0);
}

static bk_status expect_all(check *k, bk_error *err)
{
    const bk_model *m = k->m;
    const bk_config *c = &m->config;
    if (c->r3_per_kv_head && !m->quantized)
        return bk_fail(err, BK_EUNSUP, "%s: r3_per_kv_head: only a model that brick quantized can have keys that are rotated", m->path);
    BK_TRY(expect(k, pick(m, embedding), c->vocab, c->hidden, err));
    BK_TRY(expect(k, pick(m, final_norm), 0, c->hidden, err));
    if (!c->tied) BK_TRY(expect(k, pick(m, head), c->vocab, c->hidden, err));
    for (int64_t i = 0; i < c->layers; i++) BK_TRY(expect_layer(k, i, err));
    if (k->missing)
        return bk_fail(err, BK_EFORMAT, "%s: %d tensors are missing: %s%s", m->path, k->missing, k->list,
                       k->missing > 6 ? ", ..." : "");
    for (int64_t i = 0; i < tensor_count(m) && !m->quantized; i++) {
        const char *name = tensor_at(m, i).name;
        if (!k->known[i] && !harmless(m, name))
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has no place in a %s model with this config (%lld layers)",
                           m->path, name, c->arch, (long long)c->layers);
    }
    return BK_OK;
}

static bk_status check_tensors(const bk_model *m, bk_error *err)
{
    check *k = calloc(1, sizeof *k);
    bool *known = calloc((size_t)tensor_count(m) + 1, sizeof *known);
    bk_status status = BK_OK;
    if (k && known) {
        k->m = m, k->known = known;
        status = expect_all(k, err);
    } else {
        status = no_memory(err, m->path);
    }
    free(known);
    free(k);
    return status;
}

/* ---- opening ---- */

static bk_status open_gguf(bk_model *m, bk_error *err)
{
    BK_TRY(bk_gguf_open(m->path, &m->gguf, err));
    BK_TRY(bk_config_from_gguf(m->gguf, &m->config, err));
    m->bos = bk_gguf_int(m->gguf, "tokenizer.ggml.bos_token_id", -1);
    m->eos = bk_gguf_int(m->gguf, "tokenizer.ggml.eos_token_id", -1);
    return BK_OK;
}

static int64_t token_id(const bk_json *v)
{
    return bk_json_int(bk_json_kind_of(v) == BK_JSON_ARRAY ? bk_json_at(v, 0) : v, -1);
}

static bk_status open_folder(bk_model *m, const char *config, bk_error *err)
{
    BK_TRY(bk_json_load(config, &m->json, err));
    BK_TRY(bk_config_from_json(m->json, config, &m->config, err));
    m->bos = token_id(bk_json_get(m->json, "bos_token_id"));
    m->eos = token_id(bk_json_get(m->json, "eos_token_id"));
    /* by brick: bk_config_from_json refuses the others */
    m->quantized = bk_json_kind_of(bk_json_get(m->json, "quantization_config")) == BK_JSON_OBJECT;
    return bk_st_open_folder(m->dir, &m->set, err);
}

/* dir/name, if it is there; *out is NULL if not. */
static bk_status member(const char *dir, const char *name, char **out, bk_error *err)
{
    *out = bk_path_join(dir, name);
    if (!*out) return no_memory(err, dir);
    if (bk_exists(*out)) return BK_OK;
    free(*out);
    *out = NULL;
    return BK_OK;
}

/* The folder itself or, of a run, its model/. */
static bk_status find_folder(bk_model *m, char **config, bk_error *err)
{
    BK_TRY(member(m->path, CONFIG, config, err));
    if (*config) {
        m->dir = strdup(m->path);
    } else {
        BK_TRY(member(m->path, "model", &m->dir, err));
        if (m->dir) BK_TRY(member(m->dir, CONFIG, config, err));
        if (!*config)
            return bk_fail(err, BK_EIO,
                           "%s: is no model: neither " CONFIG " nor model/" CONFIG " (of a finished run) is there",
                           m->path);
    }
    return m->dir ? BK_OK : no_memory(err, m->path);
}

/* Last part of the path without slashes at its end and without .gguf. */
static char *name_of(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    if (end - start > 5 && strncmp(path + end - 5, ".gguf", 5) == 0) end -= 5;
    return strndup(path + start, end - start);
}

static bk_status open_any(bk_model *m, const char *path, bk_error *err)
{
    m->bos = m->eos = -1;
    m->path = strdup(path);
    m->name = name_of(path);
    if (!m->path || !m->name) return no_memory(err, path);
    if (!bk_is_dir(path)) {
        size_t n = strlen(path);
        if (n > 12 && strcmp(path + n - 12, ".safetensors") == 0)
            return bk_fail(err, BK_EINVAL, "%s: give the folder that holds it and its " CONFIG, path);
        return open_gguf(m, err);
    }
    char *config = NULL;
    bk_status status = find_folder(m, &config, err);
    if (status == BK_OK) status = open_folder(m, config, err);
    free(config);
    return status;
}

bk_status bk_model_open(const char *path, bk_model **out, bk_error *err)
{
    *out = NULL;
    bk_model *m = calloc(1, sizeof *m);
    if (!m) return no_memory(err, path);
    bk_status status = open_any(m, path, err);
    if (status == BK_OK) status = check_tensors(m, err);
    if (status == BK_OK)
        *out = m;
    else
        bk_model_close(m);
    return status;
}

void bk_model_close(bk_model *m)
{
    if (!m) return;
    bk_gguf_close(m->gguf);
    bk_st_close(m->set);
    bk_json_free(m->json);
    free(m->path);
    free(m->dir);
    free(m->name);
    free(m);
}

const bk_config *bk_model_config(const bk_model *m)
{
    return &m->config;
}

const char *bk_model_path(const bk_model *m)
{
    return m->path;
}

const char *bk_model_dir(const bk_model *m)
{
    return m->dir;
}

const char *bk_model_name(const bk_model *m)
{
    return m->name;
}

const bk_gguf *bk_model_gguf(const bk_model *m)
{
    return m->gguf;
}

const bk_json *bk_model_json(const bk_model *m)
{
    return m->json;
}

const bk_st_set *bk_model_tensors(const bk_model *m)
{
    return m->set;
}

bool bk_model_quantized(const bk_model *m)
{
    return m->quantized;
}

bool bk_model_bos_eos(const bk_model *m, int64_t *bos, int64_t *eos)
{
    *bos = m->bos, *eos = m->eos;
    return m->bos >= 0 || m->eos >= 0;
}

bool bk_model_has_bias(const bk_model *m, bk_linear_id id)
{
    return bk_config_has_bias(&m->config, id);
}

/* ---- reading ---- */

/* A tensor that is no matrix is one row. */
static bk_status read_rows(const bk_model *m, const char *name, int64_t row0, int64_t rows, int64_t cols, float *dst,
                           bk_error *err)
{
    const bk_gguf_tensor *g = m->gguf ? bk_gguf_find(m->gguf, name) : NULL;
    const bk_st_tensor *s = m->set ? bk_st_find(m->set, name) : NULL;
    if (g) return bk_gguf_read_rows(m->gguf, g, row0, rows, dst, err);
    if (s) return bk_st_read_f32(m->set, s, row0 * cols, rows * cols, dst, err);
    if (m->quantized) return bk_fail(err, BK_EUNSUP, "%s: is a quantized model, without tensor '%s'", m->path, name);
    return bk_fail(err, BK_EINVAL, "%s: there is no tensor '%s'", m->path, name);
}

static bk_status check_finite(const bk_model *m, const char *name, int64_t first, int64_t n, const float *v,
                              bk_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return bk_fail(err, BK_ENUMERIC, "%s: tensor '%s' is %g at index %lld", m->path, name, v[i],
                           (long long)(first + i));
    return BK_OK;
}

static bk_status read_checked(const bk_model *m, const char *name, int64_t row0, int64_t rows, int64_t cols, float *dst,
                              bk_error *err)
{
    BK_TRY(read_rows(m, name, row0, rows, cols, dst, err));
    return check_finite(m, name, row0 * cols, rows * cols, dst, err);
}

/* GGUF files of llama order the rows of each q and k head as pairs (0, d/2), (1, d/2 + 1) ... */
static bool interleaved(const bk_model *m, bk_linear_id id)
{
    return m->gguf && strcmp(m->config.arch, "llama") == 0 && (id == BK_W_Q || id == BK_W_K);
}

/* Where row i of a head of d rows stands in such a file. */
static int64_t interleaved_row(int64_t i, int64_t d)
{
    int64_t j = i % d;
    return i - j + 2 * (j % (d / 2)) + j / (d / 2);
}

bk_status bk_model_read_linear(const bk_model *m, int64_t layer, bk_linear_id id, float *dst, bk_error *err)
{
    char name[128];
    int64_t out, in;
    layer_name(m, layer, linears[id], "weight", name);
    bk_linear_shape(&m->config, id, &out, &in);
    if (!interleaved(m, id)) return read_checked(m, name, 0, out, in, dst, err);
    for (int64_t i = 0; i < out; i++)
        BK_TRY(read_rows(m, name, interleaved_row(i, m->config.head_dim), 1, in, dst + i * in, err));
    return check_finite(m, name, 0, out * in, dst, err);
}

bk_status bk_model_read_bias(const bk_model *m, int64_t layer, bk_linear_id id, float *dst, bk_error *err)
{
    char name[128];
    int64_t out, in;
    const int64_t d = m->config.head_dim;
    float head_values[BK_MAX_HEAD_DIM];
    layer_name(m, layer, linears[id], "bias", name);
    bk_linear_shape(&m->config, id, &out, &in);
    BK_TRY(read_checked(m, name, 0, 1, out, dst, err));
    for (int64_t at = 0; interleaved(m, id) && at < out; at += d) {
        memcpy(head_values, dst + at, (size_t)d * sizeof *dst);
        for (int64_t j = 0; j < d; j++) dst[at + j] = head_values[interleaved_row(j, d)];
    }
    return BK_OK;
}

bk_status bk_model_read_norm(const bk_model *m, int64_t layer, bk_norm_id id, float *dst, bk_error *err)
{
    char name[128];
    layer_name(m, layer, norms[id], "weight", name);
    return read_checked(m, name, 0, 1, id == BK_NORM_Q || id == BK_NORM_K ? m->config.head_dim : m->config.hidden, dst,
                        err);
}

bk_status bk_model_read_final_norm(const bk_model *m, float *dst, bk_error *err)
{
    return read_checked(m, pick(m, final_norm), 0, 1, m->config.hidden, dst, err);
}

bk_status bk_model_read_embed(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err)
{
    return read_checked(m, pick(m, embedding), row0, rows, m->config.hidden, dst, err);
}

bk_status bk_model_read_head(const bk_model *m, int64_t row0, int64_t rows, float *dst, bk_error *err)
{
    return read_checked(m, pick(m, m->config.tied ? embedding : head), row0, rows, m->config.hidden, dst, err);
}

static bk_status hash_folder(const bk_model *m, bk_sha256 *h, bk_error *err)
{
    static const char *const small[] = {CONFIG, "tokenizer.json", "tokenizer_config.json", INDEX};
    bk_status status = BK_OK;
    for (size_t i = 0; status == BK_OK && i < sizeof small / sizeof small[0]; i++) {
        char *path = NULL;
        status = member(m->dir, small[i], &path, err);
        if (status == BK_OK && path) status = bk_sha256_put_file(h, path, err);
        free(path);
    }
    for (int i = 0; status == BK_OK && i < bk_st_file_count(m->set); i++)
        status = bk_sha256_put_file(h, bk_st_file_path(m->set, i), err);
    return status;
}

bk_status bk_model_sha256(const bk_model *m, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return no_memory(err, m->path);
    bk_status status = m->gguf ? bk_sha256_put_file(h, m->path, err) : hash_folder(m, h, err);
    bk_sha256_end(h, hex);
    if (status) hex[0] = 0;
    return status;
}
