#include "blocks/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SUPPORTED "brick reads llama, mistral, qwen2 and qwen3"

/* What the architectures differ in. */
typedef struct arch {
    const char *name, *class_name;
    /* of a config that does not say it: the defaults of Hugging Face */
    int64_t positions, window;
    bool qkv_bias;     /* always there, no key for it */
    bool bias_keys;    /* attention_bias and mlp_bias count */
    bool qk_norm;
} arch;

static const arch archs[] = {
    {"llama", "LlamaForCausalLM", 2048, 0, false, true, false},
    {"mistral", "MistralForCausalLM", 131072, 4096, false, true, false},
    {"qwen2", "Qwen2ForCausalLM", 32768, 4096, true, false, false},
    {"qwen3", "Qwen3ForCausalLM", 32768, 4096, false, true, true},
};

static const arch *find_arch(const char *name)
{
    for (size_t i = 0; name && i < sizeof archs / sizeof *archs; i++)
        if (strcmp(name, archs[i].name) == 0) return &archs[i];
    return NULL;
}

static bk_status check_size(const char *path, const char *key, int64_t v, int64_t max, bk_error *err)
{
    if (v >= 1 && v <= max) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: %s is %lld, must be 1 to %lld", path, key, (long long)v, (long long)max);
}

static bk_status check_positive(const char *path, const char *key, double v, bk_error *err)
{
    if (v > 0 && isfinite(v)) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: %s is %g, must be above 0", path, key, v);
}

/* Limits that keep all products of sizes within 63 bits, and relations between sizes; fills head_dim when it is 0. */
static bk_status check_config(bk_config *c, const char *path, bk_error *err)
{
    const struct {
        const char *key;
        int64_t v, max;
    } sizes[] = {{"hidden size", c->hidden, 1 << 20},
                 {"intermediate size", c->inter, 1 << 24},
                 {"number of layers", c->layers, 1 << 14},
                 {"number of heads", c->heads, 1 << 14},
                 {"number of KV heads", c->kv_heads, 1 << 14},
                 {"vocabulary size", c->vocab, 1 << 26},
                 {"number of positions", c->max_positions, INT32_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        BK_TRY(check_size(path, sizes[i].key, sizes[i].v, sizes[i].max, err));
    if (c->heads % c->kv_heads != 0)
        return bk_fail(err, BK_EFORMAT, "%s: %lld heads are no multiple of %lld KV heads", path, (long long)c->heads,
                       (long long)c->kv_heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return bk_fail(err, BK_EFORMAT,
                           "%s: %lld heads do not divide the hidden size %lld, and no head dimension is given", path,
                           (long long)c->heads, (long long)c->hidden);
        c->head_dim = c->hidden / c->heads;
    }
    if (c->head_dim < 2 || c->head_dim > BK_MAX_HEAD_DIM || c->head_dim % 2 != 0)
        return bk_fail(err, BK_EFORMAT, "%s: a head dimension of %lld; it must be even, 2 to %d", path,
                       (long long)c->head_dim, BK_MAX_HEAD_DIM);
    BK_TRY(check_positive(path, "the norms' eps", c->eps, err));
    BK_TRY(check_positive(path, "rope theta", c->rope_theta, err));
    if (c->sliding_window < 0)
        return bk_fail(err, BK_EFORMAT, "%s: sliding_window is %lld, must be above 0", path,
                       (long long)c->sliding_window);
    if (c->rope_kind != BK_ROPE_PLAIN) BK_TRY(check_positive(path, "the rope scaling's factor", c->rope_factor, err));
    if (c->rope_kind != BK_ROPE_LLAMA3) return BK_OK;
    BK_TRY(check_size(path, "original_max_position_embeddings", c->rope_original_positions, INT32_MAX, err));
    BK_TRY(check_positive(path, "low_freq_factor", c->rope_low_freq, err));
    if (!(c->rope_high_freq > c->rope_low_freq) || !isfinite(c->rope_high_freq))
        return bk_fail(err, BK_EFORMAT, "%s: high_freq_factor is %g, must be above low_freq_factor %g", path,
                       c->rope_high_freq, c->rope_low_freq);
    return BK_OK;
}

/* ---- config.json ---- */

typedef struct source {
    const bk_json *obj;
    const char *path;
} source;

static const bk_json *member(source s, const char *key)
{
    const bk_json *v = bk_json_get(s.obj, key);
    return bk_json_kind_of(v) == BK_JSON_NULL ? NULL : v;
}

static bk_status wrong_type(source s, const char *key, const char *wanted, bk_error *err)
{
    return bk_fail(err, BK_EFORMAT, "%s: %s must be %s", s.path, key, wanted);
}

/* Each leaves *out alone when the key is absent or null. */
static bk_status get_int(source s, const char *key, int64_t *out, bk_error *err)
{
    const bk_json *v = member(s, key);
    if (!v) return BK_OK;
    int64_t n = bk_json_int(v, INT64_MIN);
    if (n == INT64_MIN) return wrong_type(s, key, "a whole number", err);
    *out = n;
    return check_size(s.path, key, n, INT64_MAX, err);
}

static bk_status get_num(source s, const char *key, double *out, bk_error *err)
{
    const bk_json *v = member(s, key);
    if (!v) return BK_OK;
    *out = bk_json_num(v, NAN);
    return isnan(*out) ? wrong_type(s, key, "a number", err) : BK_OK;
}

static bk_status get_bool(source s, const char *key, bool *out, bk_error *err)
{
    const bk_json *v = member(s, key);
    if (!v) return BK_OK;
    *out = bk_json_bool(v, false);
    return bk_json_kind_of(v) == BK_JSON_BOOL ? BK_OK : wrong_type(s, key, "true or false", err);
}

static bk_status get_str(source s, const char *key, const char **out, bk_error *err)
{
    const bk_json *v = member(s, key);
    if (!v) return BK_OK;
    *out = bk_json_str(v, NULL);
    return *out ? BK_OK : wrong_type(s, key, "a string", err);
}

static bk_status need_int(source s, const char *key, int64_t *out, bk_error *err)
{
    if (!member(s, key)) return bk_fail(err, BK_EFORMAT, "%s: %s is missing", s.path, key);
    return get_int(s, key, out, err);
}

static bk_status get_arch(source s, const arch **out, bk_error *err)
{
    const char *type = NULL;
    BK_TRY(get_str(s, "model_type", &type, err));
    if (!type)
        return bk_fail(err, BK_EFORMAT, "%s: has no model_type, so it is no config.json of a Hugging Face model",
                       s.path);
    *out = find_arch(type);
    if (!*out) return bk_fail(err, BK_EUNSUP, "%s: model_type '%s' is not supported; " SUPPORTED, s.path, type);
    static const char *const other[] = {"num_experts", "num_local_experts", "attn_logit_softcapping",
                                        "final_logit_softcapping"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (bk_json_num(member(s, other[i]), 0) != 0)
            return bk_fail(err, BK_EUNSUP, "%s: %s is set, which brick does not compute", s.path, other[i]);
    const char *act = "silu", *method = NULL;
    BK_TRY(get_str(s, "hidden_act", &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return bk_fail(err, BK_EUNSUP, "%s: hidden_act '%s' is not supported; brick computes silu", s.path, act);
    BK_TRY(get_str((source){member(s, "quantization_config"), s.path}, "quant_method", &method, err));
    if (member(s, "quantization_config") && (!method || strcmp(method, "brick") != 0))
        return bk_fail(err, BK_EUNSUP, "%s: the weights are quantized by '%s'; brick starts from float weights", s.path,
                       method ? method : "?");
    return BK_OK;
}

/* A value that may stand in two places; it must be the same where it stands in both. */
static bk_status get_theta(source top, source rope, double *out, bk_error *err)
{
    double inner = NAN;
    BK_TRY(get_num(top, "rope_theta", out, err));
    BK_TRY(get_num(rope, "rope_theta", &inner, err));
    if (member(top, "rope_theta") && member(rope, "rope_theta") && inner != *out)
        return bk_fail(err, BK_EFORMAT, "%s: rope_theta is %g in one place and %g in another", top.path, *out, inner);
    if (member(rope, "rope_theta")) *out = inner;
    return BK_OK;
}

static bk_status get_partial(source s, bk_error *err)
{
    double part = 1;
    BK_TRY(get_num(s, "partial_rotary_factor", &part, err));
    if (part == 1) return BK_OK;
    return bk_fail(err, BK_EUNSUP, "%s: partial_rotary_factor %g is not supported; brick turns whole heads", s.path,
                   part);
}

static bk_status get_rope(source s, bk_config *c, bk_error *err)
{
    source old = {member(s, "rope_scaling"), s.path}, rope = {member(s, "rope_parameters"), s.path};
    if (old.obj && rope.obj)
        return bk_fail(err, BK_EFORMAT, "%s: has both rope_scaling and rope_parameters; keep one", s.path);
    const char *key = rope.obj ? "rope_parameters" : "rope_scaling", *type = NULL, *legacy = NULL;
    if (old.obj) rope = old;
    if (rope.obj && bk_json_kind_of(rope.obj) != BK_JSON_OBJECT) return wrong_type(s, key, "an object or null", err);
    BK_TRY(get_theta(s, rope, &c->rope_theta, err));
    BK_TRY(get_partial(s, err));
    BK_TRY(get_partial(rope, err));
    BK_TRY(get_str(rope, "rope_type", &type, err));
    BK_TRY(get_str(rope, "type", &legacy, err));
    if (type && legacy && strcmp(type, legacy) != 0)
        return bk_fail(err, BK_EFORMAT, "%s: %s has rope_type '%s' and type '%s'", s.path, key, type, legacy);
    if (!type) type = legacy;
    for (void *it = bk_json_first(rope.obj); it && !type; it = bk_json_next(rope.obj, it))
        if (strcmp(bk_json_key(it), "rope_theta") != 0 && strcmp(bk_json_key(it), "partial_rotary_factor") != 0)
            return bk_fail(err, BK_EFORMAT, "%s: %s has '%s' but no rope_type", s.path, key, bk_json_key(it));
    if (!type || strcmp(type, "default") == 0) return BK_OK;
    bool linear = strcmp(type, "linear") == 0;
    if (!linear && strcmp(type, "llama3") != 0)
        return bk_fail(err, BK_EUNSUP,
                       "%s: rope scaling '%s' is not supported; brick computes default, linear and llama3", s.path,
                       type);
    c->rope_kind = linear ? BK_ROPE_LINEAR : BK_ROPE_LLAMA3;
    BK_TRY(get_num(rope, "factor", &c->rope_factor, err));
    if (linear) return BK_OK;
    BK_TRY(get_num(rope, "low_freq_factor", &c->rope_low_freq, err));
    BK_TRY(get_num(rope, "high_freq_factor", &c->rope_high_freq, err));
    return need_int(rope, "original_max_position_embeddings", &c->rope_original_positions, err);
}

/* How many of the layers look through a window only: as layer_types says, else as Qwen2's max_window_layers does (the
 * layers from there on). */
static bk_status count_sliding(source s, int64_t layers, int64_t *sliding, bk_error *err)
{
    const bk_json *types = member(s, "layer_types");
    if (!types) {
        int64_t first = bk_json_int(member(s, "max_window_layers"), -1);
        if (first < 0)
            return bk_fail(err, BK_EFORMAT,
                           "%s: use_sliding_window needs layer_types or max_window_layers, a whole number from 0",
                           s.path);
        *sliding = first < layers ? layers - first : 0;
        return BK_OK;
    }
    *sliding = 0;
    if ((int64_t)bk_json_size(types) != layers)
        return bk_fail(err, BK_EFORMAT, "%s: layer_types has %zu entries for %lld layers", s.path, bk_json_size(types),
                       (long long)layers);
    for (int64_t i = 0; i < layers; i++) {
        const char *type = bk_json_str(bk_json_at(types, (size_t)i), "");
        bool slides = strcmp(type, "sliding_attention") == 0;
        if (!slides && strcmp(type, "full_attention") != 0)
            return bk_fail(
                err, BK_EUNSUP,
                "%s: layer_types[%lld] '%s' is not supported; brick computes full_attention and sliding_attention",
                s.path, (long long)i, type);
        *sliding += slides;
    }
    return BK_OK;
}

static bk_status get_window(source s, const arch *a, bk_config *c, bk_error *err)
{
    bool use = strcmp(a->name, "mistral") == 0;
    int64_t sliding = c->layers;
    BK_TRY(get_bool(s, "use_sliding_window", &use, err));
    if (member(s, "layer_types") || (use && member(s, "use_sliding_window")))
        BK_TRY(count_sliding(s, c->layers, &sliding, err));
    if (member(s, "layer_types")) use = sliding > 0;
    if (!use || sliding == 0) return BK_OK;
    if (sliding < c->layers)
        return bk_fail(
            err, BK_EUNSUP,
            "%s: %lld of %lld layers have a sliding window; brick computes models whose layers are all alike", s.path,
            (long long)sliding, (long long)c->layers);
    if (!bk_json_get(s.obj, "sliding_window")) c->sliding_window = a->window; /* null, unlike no key, is no window */
    return get_int(s, "sliding_window", &c->sliding_window, err);
}

static bk_status get_biases(source s, const arch *a, bk_config *c, bk_error *err)
{
    c->qkv_bias = a->qkv_bias;
    c->qk_norm = a->qk_norm;
    if (a->bias_keys) {
        BK_TRY(get_bool(s, "attention_bias", &c->qkv_bias, err));
        BK_TRY(get_bool(s, "mlp_bias", &c->mlp_bias, err));
        c->o_bias = c->qkv_bias;
    }
    return get_bool(s, "attention_out_bias", &c->o_bias, err);
}

bk_status bk_config_from_json(const bk_json *root, const char *path, bk_config *out, bk_error *err)
{
    source s = {root, path};
    const arch *a = NULL;
    if (bk_json_kind_of(root) != BK_JSON_OBJECT) return bk_fail(err, BK_EFORMAT, "%s: is no JSON object", path);
    BK_TRY(get_arch(s, &a, err));
    bk_config c = {.max_positions = a->positions, .eps = 1e-6, .rope_theta = 10000};
    strcpy(c.arch, a->name);
    BK_TRY(need_int(s, "hidden_size", &c.hidden, err));
    BK_TRY(need_int(s, "intermediate_size", &c.inter, err));
    BK_TRY(need_int(s, "num_hidden_layers", &c.layers, err));
    BK_TRY(need_int(s, "num_attention_heads", &c.heads, err));
    BK_TRY(need_int(s, "vocab_size", &c.vocab, err));
    c.kv_heads = c.heads;
    BK_TRY(get_int(s, "num_key_value_heads", &c.kv_heads, err));
    BK_TRY(get_int(s, "head_dim", &c.head_dim, err));
    BK_TRY(get_int(s, "max_position_embeddings", &c.max_positions, err));
    BK_TRY(get_num(s, "rms_norm_eps", &c.eps, err));
    BK_TRY(get_bool(s, "tie_word_embeddings", &c.tied, err));
    BK_TRY(get_rope(s, &c, err));
    BK_TRY(get_window(s, a, &c, err));
    BK_TRY(get_biases(s, a, &c, err));
    BK_TRY(get_bool(s, "r3_per_kv_head", &c.r3_per_kv_head, err));
    BK_TRY(get_bool(s, "overlap_prefix", &c.overlap_prefix, err));
    BK_TRY(check_config(&c, path, err));
    *out = c;
    return BK_OK;
}

static bk_json *str(const char *s)
{
    return bk_json_of_text(s);
}

static bk_json *rope_to_json(const bk_config *c)
{
    if (c->rope_kind == BK_ROPE_PLAIN) return bk_json_null();
    bk_json *rope = bk_json_object();
    bk_json_set(rope, "rope_type", str(c->rope_kind == BK_ROPE_LINEAR ? "linear" : "llama3"));
    bk_json_set(rope, "factor", bk_json_of_num(c->rope_factor));
    if (c->rope_kind == BK_ROPE_LINEAR) return rope;
    bk_json_set(rope, "low_freq_factor", bk_json_of_num(c->rope_low_freq));
    bk_json_set(rope, "high_freq_factor", bk_json_of_num(c->rope_high_freq));
    bk_json_set(rope, "original_max_position_embeddings", bk_json_of_int(c->rope_original_positions));
    return rope;
}

bk_json *bk_config_to_json(const bk_config *c)
{
    const arch *a = find_arch(c->arch);
    bk_json *root = bk_json_object(), *classes = bk_json_array();
    if (!a) a = &archs[0];
    /* llama has no window in Hugging Face; mistral is the same with one */
    if (c->sliding_window && strcmp(a->name, "llama") == 0) a = &archs[1];
    bk_json_push(classes, str(a->class_name));
    bk_json_set(root, "architectures", classes);
    bk_json_set(root, "model_type", str(a->name));
    bk_json_set(root, "hidden_size", bk_json_of_int(c->hidden));
    bk_json_set(root, "intermediate_size", bk_json_of_int(c->inter));
    bk_json_set(root, "num_hidden_layers", bk_json_of_int(c->layers));
    bk_json_set(root, "num_attention_heads", bk_json_of_int(c->heads));
    bk_json_set(root, "num_key_value_heads", bk_json_of_int(c->kv_heads));
    bk_json_set(root, "head_dim", bk_json_of_int(c->head_dim));
    bk_json_set(root, "vocab_size", bk_json_of_int(c->vocab));
    bk_json_set(root, "max_position_embeddings", bk_json_of_int(c->max_positions));
    bk_json_set(root, "rms_norm_eps", bk_json_of_num(c->eps));
    bk_json_set(root, "rope_theta", bk_json_of_num(c->rope_theta));
    bk_json_set(root, "rope_scaling", rope_to_json(c));
    bk_json_set(root, "hidden_act", str("silu"));
    bk_json_set(root, "tie_word_embeddings", bk_json_of_bool(c->tied));
    bk_json_set(root, "sliding_window", c->sliding_window ? bk_json_of_int(c->sliding_window) : bk_json_null());
    if (c->sliding_window && strncmp(a->name, "qwen", 4) == 0) {
        bk_json_set(root, "use_sliding_window", bk_json_of_bool(true));
        bk_json *types = bk_json_array();
        for (int64_t i = 0; i < c->layers; i++) bk_json_push(types, str("sliding_attention"));
        bk_json_set(root, "layer_types", types);
    }
    if (a->bias_keys) {
        bk_json_set(root, "attention_bias", bk_json_of_bool(c->qkv_bias));
        bk_json_set(root, "mlp_bias", bk_json_of_bool(c->mlp_bias));
    }
    if (c->o_bias != (a->bias_keys && c->qkv_bias)) bk_json_set(root, "attention_out_bias", bk_json_of_bool(c->o_bias));
    if (c->r3_per_kv_head) bk_json_set(root, "r3_per_kv_head", bk_json_of_bool(true));
    if (c->overlap_prefix) bk_json_set(root, "overlap_prefix", bk_json_of_bool(true));
    return root;
}

/* ---- GGUF ---- */

typedef struct keys {
    const bk_gguf *g;
    const char *arch;
} keys;

static const char *full_key(keys k, const char *key, char buf[128])
{
    snprintf(buf, 128, "%s.%s", k.arch, key);
    return buf;
}

/* Leaves *out alone when the key is absent. */
static bk_status gguf_size(keys k, const char *key, int64_t *out, bk_error *err)
{
    char name[128];
    if (!bk_gguf_has(k.g, full_key(k, key, name))) return BK_OK;
    *out = bk_gguf_int(k.g, name, INT64_MIN);
    if (*out == INT64_MIN)
        return bk_fail(err, BK_EUNSUP,
                       "%s: %s is no single whole number; brick reads models whose layers are all alike",
                       bk_gguf_path(k.g), name);
    return check_size(bk_gguf_path(k.g), name, *out, INT32_MAX, err);
}

static bk_status gguf_need(keys k, const char *key, int64_t *out, bk_error *err)
{
    char name[128];
    if (!bk_gguf_has(k.g, full_key(k, key, name)))
        return bk_fail(err, BK_EFORMAT, "%s: key %s is missing", bk_gguf_path(k.g), name);
    return gguf_size(k, key, out, err);
}

static double gguf_num(keys k, const char *key, double otherwise)
{
    char name[128];
    return bk_gguf_num(k.g, full_key(k, key, name), otherwise);
}

static bk_status gguf_refuse_others(keys k, bk_error *err)
{
    static const char *const other[] = {"expert_count",
                                        "logit_scale",
                                        "embedding_scale",
                                        "residual_scale",
                                        "attention.clamp_kqv",
                                        "attention.scale",
                                        "attn_logit_softcapping",
                                        "final_logit_softcapping",
                                        "attention.max_alibi_bias"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (gguf_num(k, other[i], 0) != 0)
            return bk_fail(err, BK_EUNSUP, "%s: key %s.%s is set, which brick does not compute", bk_gguf_path(k.g),
                           k.arch, other[i]);
    return BK_OK;
}

static bk_status gguf_heads(keys k, bk_config *c, bk_error *err)
{
    BK_TRY(gguf_need(k, "attention.head_count", &c->heads, err));
    c->kv_heads = c->heads;
    BK_TRY(gguf_size(k, "attention.head_count_kv", &c->kv_heads, err));
    BK_TRY(gguf_size(k, "attention.key_length", &c->head_dim, err));
    int64_t head_dim = c->head_dim ? c->head_dim : c->hidden / c->heads, value_dim = head_dim, rotary = head_dim;
    BK_TRY(gguf_size(k, "attention.value_length", &value_dim, err));
    BK_TRY(gguf_size(k, "rope.dimension_count", &rotary, err));
    if (value_dim != head_dim)
        return bk_fail(err, BK_EUNSUP, "%s: keys of %lld and values of %lld dimensions are not supported",
                       bk_gguf_path(k.g), (long long)head_dim, (long long)value_dim);
    if (rotary != head_dim)
        return bk_fail(err, BK_EUNSUP, "%s: rope turns %lld of %lld dimensions of a head; brick turns whole heads",
                       bk_gguf_path(k.g), (long long)rotary, (long long)head_dim);
    return BK_OK;
}

static double frequency(const bk_config *c, int64_t i)
{
    return pow(c->rope_theta, -2.0 * (double)i / (double)c->head_dim);
}

/* What llama3 scaling divides frequency f by. */
static double llama3_divisor(const bk_config *c, double f)
{
    double turns = (double)c->rope_original_positions * f / (2 * M_PI); /* within the original context */
    if (turns < c->rope_low_freq) return c->rope_factor;
    if (turns > c->rope_high_freq) return 1;
    double blend = (turns - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return 1 / ((1 - blend) / c->rope_factor + blend);
}

/* rope_freqs.weight holds the divisors only. All published models use the same low, high and original length, so these
 * are tried, with the largest divisor as factor. */
static bk_status gguf_divisors(const bk_gguf *g, bk_config *c, bk_error *err)
{
    const bk_gguf_tensor *t = bk_gguf_find(g, "rope_freqs.weight");
    float divisor[BK_MAX_HEAD_DIM / 2];
    if (!t) return BK_OK;
    if (t->ndim != 1 || t->dim[0] != c->head_dim / 2)
        return bk_fail(err, BK_EFORMAT, "%s: tensor 'rope_freqs.weight' has %lld values, not %lld", bk_gguf_path(g),
                       (long long)t->dim[0], (long long)(c->head_dim / 2));
    BK_TRY(bk_gguf_read_rows(g, t, 0, 1, divisor, err));
    bk_config with = *c;
    with.rope_kind = BK_ROPE_LLAMA3;
    with.rope_low_freq = 1, with.rope_high_freq = 4, with.rope_original_positions = 8192;
    for (int64_t i = 0; i < c->head_dim / 2; i++) with.rope_factor = fmax(with.rope_factor, divisor[i]);
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double want = llama3_divisor(&with, frequency(c, i));
        if (!(fabs(divisor[i] - want) <= 1e-4 * want))
            return bk_fail(err, BK_EUNSUP,
                           "%s: tensor 'rope_freqs.weight' is no llama3 scaling with frequency factors 1 and 4 and "
                           "8192 original positions "
                           "(value %lld is %g, not %g); use the Hugging Face folder of this model",
                           bk_gguf_path(g), (long long)i, divisor[i], want);
    }
    if (c->rope_kind != BK_ROPE_PLAIN)
        return bk_fail(err, BK_EUNSUP, "%s: has both rope_freqs.weight and a linear rope scaling", bk_gguf_path(g));
    if (with.rope_factor != 1) *c = with;
    return BK_OK;
}

static bk_status gguf_rope(keys k, bk_config *c, bk_error *err)
{
    char name[128];
    const char *type = bk_gguf_str(k.g, full_key(k, "rope.scaling.type", name), NULL);
    c->rope_theta = gguf_num(k, "rope.freq_base", 10000);
    double factor = gguf_num(k, "rope.scaling.factor", gguf_num(k, "rope.scale_linear", 0));
    bool none = type && strcmp(type, "none") == 0;
    if (type && !none && strcmp(type, "linear") != 0)
        return bk_fail(err, BK_EUNSUP, "%s: rope scaling '%s' is not supported; brick computes none, linear and llama3",
                       bk_gguf_path(k.g), type);
    if (!none && (type || (factor != 0 && factor != 1))) c->rope_kind = BK_ROPE_LINEAR, c->rope_factor = factor;
    return BK_OK;
}

bk_status bk_config_from_gguf(const bk_gguf *g, bk_config *out, bk_error *err)
{
    const char *path = bk_gguf_path(g);
    keys k = {g, bk_gguf_str(g, "general.architecture", NULL)};
    if (!k.arch) return bk_fail(err, BK_EFORMAT, "%s: key general.architecture is missing", path);
    const arch *a = find_arch(k.arch);
    if (!a || strcmp(a->name, "mistral") == 0) /* GGUF calls it llama */
        return bk_fail(err, BK_EUNSUP, "%s: architecture '%s' is not supported; " SUPPORTED, path, k.arch);
    bk_config c = {0};
    strcpy(c.arch, a->name);
    BK_TRY(gguf_refuse_others(k, err));
    BK_TRY(gguf_need(k, "embedding_length", &c.hidden, err));
    BK_TRY(gguf_need(k, "feed_forward_length", &c.inter, err));
    BK_TRY(gguf_need(k, "block_count", &c.layers, err));
    BK_TRY(gguf_need(k, "context_length", &c.max_positions, err));
    BK_TRY(gguf_heads(k, &c, err));
    int64_t tokens = bk_gguf_array_len(g, "tokenizer.ggml.tokens");
    c.vocab = tokens;
    BK_TRY(gguf_size(k, "vocab_size", &c.vocab, err));
    if (tokens > c.vocab)
        return bk_fail(err, BK_EFORMAT, "%s: the tokenizer has %lld tokens, the vocabulary %lld", path,
                       (long long)tokens, (long long)c.vocab);
    c.eps = gguf_num(k, "attention.layer_norm_rms_epsilon", 0);
    char window[128];
    if (bk_gguf_int(g, full_key(k, "attention.sliding_window", window), -1) != 0)
        BK_TRY(gguf_size(k, "attention.sliding_window", &c.sliding_window, err));
    BK_TRY(gguf_rope(k, &c, err));
    c.qkv_bias = a->qkv_bias || bk_gguf_find(g, "blk.0.attn_q.bias") != NULL;
    c.o_bias = bk_gguf_find(g, "blk.0.attn_output.bias") != NULL;
    c.mlp_bias = a->bias_keys && bk_gguf_find(g, "blk.0.ffn_down.bias") != NULL;
    c.qk_norm = a->qk_norm;
    c.tied = bk_gguf_find(g, "output.weight") == NULL;
    BK_TRY(check_config(&c, path, err));
    BK_TRY(gguf_divisors(g, &c, err));
    *out = c;
    return BK_OK;
}

/* ---- what follows from it ---- */

void bk_config_inv_freq(const bk_config *c, double *out)
{
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double f = frequency(c, i);
        if (c->rope_kind == BK_ROPE_LINEAR) f /= c->rope_factor;
        if (c->rope_kind == BK_ROPE_LLAMA3) f /= llama3_divisor(c, f);
        out[i] = f;
    }
}

void bk_linear_shape(const bk_config *c, bk_linear_id id, int64_t *out, int64_t *in)
{
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const int64_t shapes[BK_W_COUNT][2] = {
        [BK_W_Q] = {q, c->hidden},           [BK_W_K] = {kv, c->hidden},          [BK_W_V] = {kv, c->hidden},
        [BK_W_O] = {c->hidden, q},           [BK_W_GATE] = {c->inter, c->hidden}, [BK_W_UP] = {c->inter, c->hidden},
        [BK_W_DOWN] = {c->hidden, c->inter},
    };
    *out = shapes[id][0], *in = shapes[id][1];
}

int64_t bk_config_block_weights(const bk_config *c)
{
    int64_t sum = 0;
    for (int id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, (bk_linear_id)id, &out, &in);
        sum += out * in;
    }
    return sum;
}
