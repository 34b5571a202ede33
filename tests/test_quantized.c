/* Quantized models on disk: what comes back is what was hardened, to the bit; what is damaged is refused. And the parameters of initialised blocks. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "blocks/init.h"
#include "blocks/params_file.h"
#include "blocks/pass.h"
#include "blocks/quantized.h"
#include "io/file.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_model.h"

enum { SAMPLES = 2, TOKENS = 6 };

/* --- one way to quantize a model --- */

typedef struct variant {
    const char *name, *quantizer;
    int w_bits, a_bits;
    bool symmetric, rotated, bias;
    int64_t group, prefix;
    unsigned skip_sites, skip_weights; /* of block 1 */
    bool fitted;                       /* R1, R2 and R3 (with `rotated`), order and signs of down's input; R4 in groups */
    const char *weights;               /* their quantizer; NULL: affine */
    bool norms;                        /* trained gains */
} variant;

static const variant variants[] = {
    {"static", "static", 4, 4, true, true, false, 0, 3, 0, 0, false, NULL, false},
    {"static asymmetric groups", "static", 3, 8, false, false, true, 16, 0, 0, 0, false, NULL, false},
    {"dynamic", "dynamic", 4, 4, false, true, true, 0, 2, 0, 0, false, NULL, false},
    {"weights only", "static", 2, 16, false, false, false, 32, 1, 0, 0, false, NULL, false},
    {"eight bits", "static", 8, 8, true, false, false, 0, 0, 0, 0, false, NULL, false},
    {"activations only", "static", 16, 4, true, false, false, 0, 0, 0, 0, false, NULL, false},
    {"skips", "static", 4, 4, true, true, false, 0, 2, 1u << BK_SITE_DOWN_IN | 1u << BK_SITE_KEY, 1u << BK_W_O | 1u << BK_W_UP, false, NULL, false},
    {"learned steps", "lsq", 4, 4, true, true, false, 0, 2, 0, 0, false, "lsq", true},
    {"learned steps and zero points", "lsq", 3, 4, false, false, true, 16, 0, 0, 0, false, "lsq", true},
    {"learned clipping", "static", 4, 16, true, true, false, 0, 2, 0, 0, false, "lwc", false},
    {"learned clipping of both ends", "static", 2, 16, false, false, false, 16, 0, 0, 0, false, "lwc", false},
    {"learned rounding", "static", 4, 16, true, true, false, 0, 2, 0, 1u << BK_W_O, false, "adaround", false},
    {"learned rounding of groups", "static", 3, 16, false, false, false, 16, 0, 0, 0, false, "adaround", false},
    {"learned offsets", "static", 4, 16, true, true, false, 0, 2, 0, 0, false, "signround", false},
    {"learned offsets and ranges", "static", 2, 16, false, false, false, 16, 0, 0, 0, false, "signround", false},
    {"fitted", "dynamic", 4, 4, false, true, true, 0, 2, 0, 0, true, NULL, false},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], FITTED = VARIANTS - 1, LAYERS = 2 };

static bk_block_quant quant_of(const variant *v)
{
    bk_block_quant q = bk_tiny_quant(v->quantizer, v->w_bits, v->a_bits, v->symmetric);
    q.weight = bk_tiny_spec(v->weights ? v->weights : "affine", v->w_bits, v->symmetric, v->group ? BK_PER_GROUP : BK_PER_CHANNEL, v->group);
    return q;
}

/* What a hardened layer is. */
typedef struct layer {
    float *w[BK_W_COUNT], *b[BK_W_COUNT], *norm[BK_NORM_COUNT], *r3, *out;
    char *name[64]; /* parameters of the sites */
    float *param[64];
    int params;
} layer;

typedef struct env {
    const variant *v;
    const bk_backend *be;
    bk_error err;
    char dir[BK_TINY_PATH], to[BK_TINY_PATH];
    bk_model *m;
    bk_fitted *fitted;
    bk_source *src;
    bk_prefix prefix;
    bk_block_quant quant;
    bk_stream *x;
    layer layer[LAYERS];
} env;

/* Output of a block on the env's inputs, malloc'd. */
static float *output(env *e, bk_block *b)
{
    int64_t n = SAMPLES * TOKENS * b->cfg.hidden;
    bk_stream *y;
    float *out = malloc((size_t)n * sizeof *out);
    bk_ctx *ctx = bk_ctx_new(e->be, &e->err);
    ck_assert(out && ctx);
    ok(bk_stream_create(&y, SAMPLES, TOKENS, b->cfg.hidden, &e->err), &e->err);
    ok(bk_block_pass_measure(ctx, b, SAMPLES, TOKENS), &e->err);
    ok(bk_ctx_commit(ctx), &e->err);
    ok(bk_block_pass(ctx, b, e->x, y, &e->err), &e->err);
    ok(bk_stream_read(y, 0, SAMPLES, out, &e->err), &e->err);
    bk_stream_free(y);
    bk_ctx_free(ctx);
    return out;
}

static void keep_layer(env *e, bk_block *b, layer *l)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        l->w[i] = bk_tiny_read(e->be, b->w[i]);
        if (b->b[i]) l->b[i] = bk_tiny_read(e->be, b->b[i]);
    }
    for (int i = 0; i < BK_NORM_COUNT; i++)
        if (b->norm[i]) l->norm[i] = bk_tiny_read(e->be, b->norm[i]);
    if (b->r3_m) l->r3 = bk_tiny_read(e->be, b->r3_m);
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        const bk_tensor *t = bk_params_at(b->params, i, &group);
        if (group != BK_GROUP_QUANT || !strncmp(t->name, "w_", 2)) continue;
        l->name[l->params] = strdup(t->name);
        l->param[l->params++] = bk_tiny_read(e->be, t);
    }
    l->out = output(e, b);
}

static bk_block *new_block(env *e, const bk_block_quant *quant, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4)
{
    bk_block *b;
    bk_block_options opt = {.quant = quant, .r3 = r3, .r4 = r4, .prefix_len = e->prefix.n, .tokens = TOKENS,
                            .train_norms = e->v->norms && quant && quant->weight.bits < 16};
    ok(bk_block_create(&b, e->be, bk_source_config(e->src), &opt, &e->err), &e->err);
    return b;
}

/* As if they had been trained: what rounds, clips and scales is no longer where it began. */
static void move_learnables(env *e, bk_block *b)
{
    for (int i = 0; e->v->weights && i < bk_params_count(b->params); i++) {
        int group;
        bk_tensor *t = bk_params_at(b->params, i, &group);
        bool clips = strstr(t->name, ".upper") || strstr(t->name, ".lower"), gain = !strncmp(t->name, "norm_", 5);
        if (group != BK_GROUP_ROUND && !clips && !gain) continue;
        float *x = bk_tiny_read(e->be, t);
        for (int64_t k = 0; k < bk_numel(t); k++) x[k] -= (float)(0.3 * bk_rng_uniform(31, BK_RNG_TEST, (uint64_t)(k + 97 * i)));
        ok(bk_write(e->be, t, 0, x, bk_numel(t), &e->err), &e->err);
        free(x);
    }
}

/* Initialises, writes and hardens every layer; each sees the same inputs. */
static void write_layers(env *e)
{
    bk_block_weights w;
    bk_block *b = new_block(e, &e->quant, bk_source_r3(e->src), bk_source_r4(e->src));
    bk_ctx *ctx = bk_ctx_new(e->be, &e->err);
    ok(bk_weights_alloc(bk_source_config(e->src), &w, &e->err), &e->err);
    for (int l = 0; l < LAYERS; l++) {
        ok(bk_source_block(e->src, l, &w, &e->err), &e->err);
        ok(bk_block_load(b, &w, &e->err), &e->err);
        if (e->prefix.n) ok(bk_block_set_prefix(b, bk_prefix_k(&e->prefix, l), bk_prefix_v(&e->prefix, l), &e->err), &e->err);
        b->skip_sites = l ? e->v->skip_sites : 0;
        b->skip_weights = l ? e->v->skip_weights : 0;
        ok(bk_block_init(ctx, b, e->x, &(bk_init_options){.search = e->v == &variants[1]}, &e->err), &e->err);
        move_learnables(e, b);
        ck_assert(!bk_quantized_has_block(e->to, l, LAYERS));
        ok(bk_quantized_write_block(ctx, b, l, e->to, &e->err), &e->err);
        ck_assert(bk_quantized_has_block(e->to, l, LAYERS));
        float *before = output(e, b);
        bk_ctx_measure(ctx);
        ok(bk_block_harden(ctx, b), &e->err);
        ok(bk_ctx_commit(ctx), &e->err);
        ck_assert_msg(e->v->w_bits == 16 || b->wq[BK_W_Q].on == false, "hardened weights are still quantized");
        bk_block_quantize(b, true, true); /* the dry run switched them off */
        ok(bk_block_harden(ctx, b), &e->err);
        keep_layer(e, b, &e->layer[l]);
        ck_assert_msg(!memcmp(before, e->layer[l].out, (size_t)(SAMPLES * TOKENS * b->cfg.hidden) * sizeof(float)), "%s: hardening changed the output",
                      e->v->name);
        free(before);
    }
    bk_weights_free(&w);
    bk_ctx_free(ctx);
    bk_block_free(b);
}

static void finish(env *e)
{
    unsigned sites[LAYERS] = {0, e->v->skip_sites};
    bk_quantized_info info = {.quant = e->quant, .scheme = "W4A4KV4-static", .model = "tiny",
                              .skip_sites = e->v->skip_sites ? sites : NULL};
    ok(bk_quantized_finish(e->src, &e->prefix, &info, e->to, &e->err), &e->err);
}

/* quant: what v would say, or something else. */
static void open_env_with(env *e, const variant *v, const bk_block_quant *quant, const bk_backend *be)
{
    static const int32_t ids[] = {9, 8, 1};
    bk_config c = bk_tiny_config();
    c.layers = LAYERS;
    c.qkv_bias = c.qk_norm = v->bias;
    if (v->bias) strcpy(c.arch, "qwen3");
    *e = (env){.v = v, .be = be, .quant = *quant};
    bk_tiny_model_write(&c, 5, e->dir);
    strcpy(e->to, "/tmp/bk_quantized_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(e->to));
    ok(bk_model_open(e->dir, &e->m, &e->err), &e->err);
    if (v->fitted) e->fitted = bk_tiny_fitted(&c, BK_TINY_ALL_PARTS, 2);
    bk_rotation_spec spec = {.r1 = v->rotated, .r2 = v->rotated, .r3 = v->rotated, .r4 = v->rotated, .seed = 4, .r4_group = v->fitted ? 32 : 0,
                             .fitted = e->fitted, .be = bk_backend_cpu()};
    ok(bk_source_open(e->m, &spec, &e->src, &e->err), &e->err);
    ok(bk_prefix_compute(be, e->src, ids, v->prefix, &e->prefix, &e->err), &e->err);
    e->x = bk_tiny_stream(SAMPLES, TOKENS, c.hidden, 9);
    write_layers(e);
    finish(e);
}

static void open_env(env *e, const variant *v, const bk_backend *be)
{
    bk_block_quant quant = quant_of(v);
    open_env_with(e, v, &quant, be);
}

static void close_env(env *e)
{
    for (int l = 0; l < LAYERS; l++) {
        layer *y = &e->layer[l];
        for (int i = 0; i < BK_W_COUNT; i++) free(y->w[i]), free(y->b[i]);
        for (int i = 0; i < BK_NORM_COUNT; i++) free(y->norm[i]);
        for (int i = 0; i < y->params; i++) free(y->name[i]), free(y->param[i]);
        free(y->r3);
        free(y->out);
    }
    bk_stream_free(e->x);
    bk_prefix_free(&e->prefix);
    bk_source_close(e->src);
    bk_fitted_free(e->fitted);
    bk_model_close(e->m);
    bk_tiny_model_remove(e->dir);
    bk_tiny_model_remove(e->to);
}

/* --- what comes back --- */

static void same(const env *e, const char *what, const bk_tensor *t, const float *want)
{
    ck_assert((t == NULL) == (want == NULL));
    if (!t) return;
    float *got = bk_tiny_read(e->be, t);
    for (int64_t i = 0; i < bk_numel(t); i++)
        ck_assert_msg(got[i] == want[i], "%s: %s[%d] is %.9g, was %.9g", e->v->name, what, (int)i, (double)got[i], (double)want[i]);
    free(got);
}

static void check_layer(env *e, bk_block *b, const layer *l)
{
    for (int i = 0; i < BK_W_COUNT; i++) {
        same(e, bk_linear_name[i], b->w[i], l->w[i]);
        same(e, bk_linear_name[i], b->b[i], l->b[i]);
    }
    for (int i = 0; i < BK_NORM_COUNT; i++) same(e, bk_norm_name[i], b->norm[i], l->norm[i]);
    same(e, "r3", b->r3_m, l->r3);
    for (int i = 0; i < l->params; i++) same(e, l->name[i], bk_params_find(b->params, l->name[i]), l->param[i]);
    float *out = output(e, b);
    ck_assert_msg(!memcmp(out, l->out, (size_t)(SAMPLES * TOKENS * b->cfg.hidden) * sizeof *out), "%s: the block computes something else", e->v->name);
    free(out);
}

static void check_model(env *e)
{
    bk_model *m;
    bk_quantized *q;
    ok(bk_model_open(e->to, &m, &e->err), &e->err);
    ck_assert(bk_model_quantized(m));
    ok(bk_quantized_open(m, &q, &e->err), &e->err);
    ck_assert_str_eq(bk_quantized_scheme(q), "W4A4KV4-static");
    ck_assert((bk_quantized_r3(q) != NULL) == (e->v->rotated && !e->v->fitted) && bk_model_config(m)->r3_per_kv_head == e->v->fitted);
    ck_assert((bk_quantized_r4(q) != NULL) == e->v->rotated && (!e->v->fitted || bk_quantized_r4(q)->blocks == 3));
    const bk_prefix *p = bk_quantized_prefix(q);
    size_t bytes = (size_t)(LAYERS * p->kv_heads * p->n * p->head_dim) * sizeof(float);
    ck_assert_int_eq(p->n, e->v->prefix);
    ck_assert(!p->n || (!memcmp(p->ids, e->prefix.ids, (size_t)p->n * sizeof *p->ids) && !memcmp(p->k, e->prefix.k, bytes) &&
                        !memcmp(p->v, e->prefix.v, bytes)));
    ck_assert_int_eq(bk_quantized_quant(q)->weight.bits, 16);
    bk_block *b = new_block(e, bk_quantized_quant(q), bk_quantized_r3(q), bk_quantized_r4(q));
    for (int l = LAYERS - 1; l >= 0; l--) {
        ok(bk_quantized_load(q, l, b, &e->err), &e->err);
        check_layer(e, b, &e->layer[l]);
    }
    bk_block_free(b);
    bk_quantized_close(q);
    bk_model_close(m);
}

START_TEST(a_model_comes_back_to_the_bit)
{
    env e;
    open_env(&e, &variants[_i], bk_backend_cpu());
    check_model(&e);
    close_env(&e);
}
END_TEST

static const char *const places[] = {"weight", "activation", "key", "value"};
enum { PLACES = 4 };

static bk_qspec *spec_at(bk_block_quant *q, int place)
{
    bk_qspec *const all[PLACES] = {&q->weight, &q->activation, &q->key, &q->value};
    return all[place];
}

/* Does every site and linear of that place take it? */
static bool can_be(const bk_block_quant *quant)
{
    bk_config c = bk_tiny_config();
    bk_error err = {0};
    bk_block *b = NULL;
    bk_status st = bk_block_create(&b, bk_backend_cpu(), &c, &(bk_block_options){.quant = quant, .tokens = TOKENS}, &err);
    ck_assert_msg(!st || st == BK_EINVAL || st == BK_ESHAPE, "%s: %s", bk_status_name(st), err.msg);
    if (!st) bk_block_free(b);
    return !st;
}

static void comes_back(const bk_block_quant *quant, const char *name, bool rotated)
{
    env e;
    const variant v = {.name = name, .w_bits = quant->weight.bits, .rotated = rotated, .bias = !rotated, .prefix = 2, .weights = quant->weight.quantizer};
    open_env_with(&e, &v, quant, bk_backend_cpu());
    check_model(&e);
    close_env(&e);
}

/* With each granularity that it takes there, with and without a zero point; a dynamic W4A8KV8 around it. */
START_TEST(every_quantizer_comes_back_from_every_place_that_it_serves)
{
    const bk_quantizer *q = bk_quantizers[_i];
    for (int place = 0; place < PLACES; place++) {
        int times = 0;
        for (int k = 0; k < 2 * BK_GRANULARITY_COUNT; k++) {
            char name[96];
            bk_block_quant quant = bk_tiny_quant("dynamic", 4, 8, true);
            bk_qspec *at = spec_at(&quant, place);
            *at = bk_tiny_spec(q->name, 3, k % 2, (bk_granularity)(k / 2), k / 2 == BK_PER_GROUP ? 16 : 0);
            at->restricted = k / 2 % 2;
            snprintf(name, sizeof name, "%s %s per %s%s", q->name, places[place], bk_granularity_name[k / 2], k % 2 ? "" : ", asymmetric");
            if (!can_be(&quant)) continue;
            comes_back(&quant, name, k % 2);
            times++;
        }
        bool serves = place ? q->for_activations : q->for_weights;
        ck_assert_msg((times > 0) == serves, "%s came back from %s %d times", q->name, places[place], times);
    }
}
END_TEST

START_TEST(a_model_comes_back_on_other_backends)
{
    env e;
    open_env(&e, &variants[_i / 2], _i % 2 ? bk_backend_guard(BK_F32) : bk_backend_ref(BK_F32));
    check_model(&e);
    close_env(&e);
}
END_TEST

START_TEST(the_rest_of_the_model_comes_back)
{
    env e;
    bk_model *m;
    bk_source *src;
    float a[64], b[64];
    open_env(&e, &variants[_i], bk_backend_cpu());
    ok(bk_model_open(e.to, &m, &e.err), &e.err);
    ok(bk_source_open(m, NULL, &src, &e.err), &e.err);
    for (int32_t id = 0; id < 256; id += 51) {
        ok(bk_source_embed(src, &id, 1, a, &e.err), &e.err);
        ok(bk_source_embed(e.src, &id, 1, b, &e.err), &e.err);
        ck_assert(!memcmp(a, b, sizeof a));
        ok(bk_source_head(src, id, 1, a, &e.err), &e.err);
        ok(bk_source_head(e.src, id, 1, b, &e.err), &e.err);
        ck_assert(!memcmp(a, b, sizeof a));
    }
    bk_source_final_norm(src, a);
    bk_source_final_norm(e.src, b);
    ck_assert(!memcmp(a, b, sizeof a));
    bk_source_close(src);
    bk_model_close(m);
    close_env(&e);
}
END_TEST

START_TEST(one_shard_comes_back_alone)
{
    env e;
    open_env(&e, &variants[_i], bk_backend_cpu());
    bk_block_quant quant = e.quant;
    quant.weight.bits = 16;
    bk_block *b = new_block(&e, &quant, bk_source_r3(e.src), bk_source_r4(e.src));
    for (int l = 0; l < LAYERS; l++) {
        ok(bk_quantized_read_block(b, l, e.to, &e.quant.weight, &e.err), &e.err);
        if (e.prefix.n) ok(bk_block_set_prefix(b, bk_prefix_k(&e.prefix, l), bk_prefix_v(&e.prefix, l), &e.err), &e.err);
        b->skip_sites = l ? e.v->skip_sites : 0;
        bk_block_quantize(b, true, true);
        check_layer(&e, b, &e.layer[l]);
    }
    bk_block_free(b);
    close_env(&e);
}
END_TEST

/* Same model, same bytes. */
START_TEST(writing_twice_gives_the_same_bytes)
{
    env a, b;
    static const char *const files[] = {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    open_env(&a, &variants[0], bk_backend_cpu());
    open_env(&b, &variants[0], bk_backend_cpu());
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *p = bk_path_join(a.to, files[i]), *q = bk_path_join(b.to, files[i]), x[65], y[65];
        ok(bk_sha256_file(p, x, &a.err), &a.err);
        ok(bk_sha256_file(q, y, &a.err), &a.err);
        ck_assert_str_eq(x, y);
        free(p), free(q);
    }
    close_env(&a);
    close_env(&b);
}
END_TEST

/* --- damage --- */

/* Opens the folder and reads all of it; the first failure. */
static bk_status read_all(env *e, bk_error *err)
{
    bk_model *m = NULL;
    bk_quantized *q = NULL;
    bk_block *b = NULL;
    bk_status st = bk_model_open(e->to, &m, err);
    if (!st) st = bk_quantized_open(m, &q, err);
    bk_block_options opt = {.prefix_len = e->prefix.n, .tokens = TOKENS};
    if (!st) {
        opt.quant = bk_quantized_quant(q);
        opt.r3 = bk_quantized_r3(q);
        opt.r4 = bk_quantized_r4(q);
        st = bk_block_create(&b, e->be, bk_model_config(m), &opt, err);
    }
    for (int l = 0; !st && l < LAYERS; l++) st = bk_quantized_load(q, l, b, err);
    bk_block_free(b);
    bk_quantized_close(q);
    bk_model_close(m);
    return st;
}

static void must_refuse(env *e, bk_status want, const char *word)
{
    bk_error err = {0};
    bk_status st = read_all(e, &err);
    ck_assert_msg(st == want && err.code == want, "%s (%s), not %s, for %s", bk_status_name(st), err.msg, bk_status_name(want), word);
    ck_assert_msg(strstr(err.msg, word) != NULL, "'%s' does not speak of %s", err.msg, word);
}

/* Replaces text in config.json. */
static void edit_config(env *e, const char *from, const char *to)
{
    char *path = bk_path_join(e->to, "config.json"), *text, out[16384];
    size_t len;
    ok(bk_file_slurp(path, 16000, &text, &len, &e->err), &e->err);
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "no %s in %s", from, text);
    int n = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ok(bk_write_file(path, out, (size_t)n, &e->err), &e->err);
    free(text);
    free(path);
}

typedef struct edit {
    const char *from, *to;
    bk_status st;
    const char *word;
} edit;

static void must_refuse_edits(const variant *v, const edit *bad, size_t n)
{
    env e;
    open_env(&e, v, bk_backend_cpu());
    char *path = bk_path_join(e.to, "config.json"), *text;
    size_t len;
    ok(bk_file_slurp(path, 16000, &text, &len, &e.err), &e.err);
    for (size_t i = 0; i < n; i++) {
        edit_config(&e, bad[i].from, bad[i].to);
        must_refuse(&e, bad[i].st, bad[i].word);
        ok(bk_write_file(path, text, len, &e.err), &e.err);
    }
    ok(read_all(&e, &e.err), &e.err);
    free(text), free(path);
    close_env(&e);
}

START_TEST(damaged_configs_are_refused)
{
    static const edit bad[] = {
        {"\"version\": 1", "\"version\": 2", BK_EUNSUP, "version 2"},
        {"\"granularity\": \"channel\"", "\"granularity\": \"row\"", BK_EFORMAT, "weight"},
        {"\"bits\": 4", "\"bits\": 1", BK_EFORMAT, "weight"},
        {"\"bits\": 4", "\"bits\": 99", BK_EFORMAT, "weight"},
        {"\"bits\": 4", "\"bits\": 12", BK_EFORMAT, "weight"},
        {"\"quantizer\": \"static\"", "\"quantizer\": \"statistical_and_too_long\"", BK_EFORMAT, "activation"},
        {"\"prefix_ids\": [", "\"prefix_ids\": [7,", BK_EFORMAT, "prefix.key"},
        {"\"prefix_ids\": [", "\"prefix_ids\": [], \"x\": [", BK_EFORMAT, "prefix"},
        {"\"skip_sites\": [", "\"skip_sites\": [0, 0, 0,", BK_EFORMAT, "skip_sites"},
    };
    must_refuse_edits(&variants[6], bad, sizeof bad / sizeof bad[0]);
}
END_TEST

START_TEST(damaged_rotations_are_refused)
{
    static const edit bad[] = {
        {"\"r3_per_kv_head\": true", "\"r3_per_kv_head\": false", BK_EFORMAT, "r3"},
        {"\"online_r3\": false", "\"online_r3\": true", BK_EFORMAT, "online_r3"},
        {"\"online_r4_group\": 32", "\"online_r4_group\": 36", BK_EFORMAT, "online_r4_group"},
        {"\"online_r4_group\": 32", "\"online_r4_group\": 6", BK_EFORMAT, "online_r4_group"},
        {"\"online_r4_group\": 32", "\"online_r4_group\": -32", BK_EFORMAT, "online_r4_group"},
    };
    must_refuse_edits(&variants[FITTED], bad, sizeof bad / sizeof bad[0]);
}
END_TEST

START_TEST(a_plain_model_cannot_have_rotated_keys)
{
    env e;
    bk_error err = {0};
    bk_model *m;
    open_env(&e, &variants[4], bk_backend_cpu());
    char *path = bk_path_join(e.dir, "config.json"), *text, out[16384];
    size_t len;
    ok(bk_file_slurp(path, 16000, &text, &len, &e.err), &e.err);
    int n = snprintf(out, sizeof out, "{\"r3_per_kv_head\": true,%s", strchr(text, '{') + 1);
    ok(bk_write_file(path, out, (size_t)n, &e.err), &e.err);
    ck_assert_int_eq(bk_model_open(e.dir, &m, &err), BK_EUNSUP);
    ck_assert_ptr_nonnull(strstr(err.msg, "r3_per_kv_head"));
    free(text), free(path);
    close_env(&e);
}
END_TEST

START_TEST(a_prefix_id_outside_of_the_vocabulary_is_refused)
{
    env e;
    open_env(&e, &variants[0], bk_backend_cpu());
    char *path = bk_path_join(e.to, "config.json"), *text;
    size_t len;
    ok(bk_file_slurp(path, 16000, &text, &len, &e.err), &e.err);
    char *list = strchr(strstr(text, "\"prefix_ids\""), '['), *nine = strchr(list, '9');
    ck_assert(nine && nine < strchr(list, ']'));
    char out[16384];
    int n = snprintf(out, sizeof out, "%.*s256%s", (int)(nine - text), text, nine + 1);
    ok(bk_write_file(path, out, (size_t)n, &e.err), &e.err);
    free(text), free(path);
    must_refuse(&e, BK_EFORMAT, "256");
    close_env(&e);
}
END_TEST

/* Exchanges one value of a tensor, where it lies in its file, with `value`. */
static void exchange(env *e, const char *name, int64_t index, void *value, size_t size)
{
    char old[8];
    bk_st_set *s;
    ok(bk_st_open_folder(e->to, &s, &e->err), &e->err);
    const bk_st_tensor *t = bk_st_find(s, name);
    ck_assert_msg(t != NULL, "no tensor %s", name);
    int fd = open(bk_st_file_path(s, t->file), O_RDWR);
    off_t at = (off_t)(t->offset + (uint64_t)index * size);
    ck_assert_int_eq(pread(fd, old, size, at), (ssize_t)size);
    ck_assert_int_eq(pwrite(fd, value, size, at), (ssize_t)size);
    memcpy(value, old, size);
    close(fd);
    bk_st_close(s);
}

START_TEST(damaged_values_are_refused)
{
    static const struct {
        const char *name;
        int64_t index;
        float value;
        bk_status st;
    } bad[] = {{"model.layers.1.mlp.down_proj.codes", 5, 16, BK_EFORMAT}, {"model.layers.1.quant.w_q.step", 5, NAN, BK_ENUMERIC},
               {"model.layers.1.quant.w_q.step", 5, 0, BK_EFORMAT},       {"model.layers.0.quant.w_q.step", 5, -1, BK_EFORMAT},
               {"model.layers.1.quant.attn_in.step", 0, NAN, BK_ENUMERIC}, {"model.layers.1.input_layernorm.weight", 5, INFINITY, BK_ENUMERIC},
               {"prefix.key", 5, NAN, BK_ENUMERIC},                       {"prefix.value", 7, INFINITY, BK_ENUMERIC}};
    env e;
    open_env(&e, &variants[0], bk_backend_cpu());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float value = bad[i].value;
        uint8_t code = (uint8_t)16;
        bool codes = strstr(bad[i].name, ".codes") != NULL;
        exchange(&e, bad[i].name, bad[i].index, codes ? (void *)&code : &value, codes ? 1 : sizeof value);
        must_refuse(&e, bad[i].st, bad[i].name);
        exchange(&e, bad[i].name, bad[i].index, codes ? (void *)&code : &value, codes ? 1 : sizeof value);
    }
    ok(read_all(&e, &e.err), &e.err);
    close_env(&e);
}
END_TEST

START_TEST(a_damaged_r3_is_refused)
{
    env e;
    float value = NAN;
    open_env(&e, &variants[FITTED], bk_backend_cpu());
    exchange(&e, "model.layers.1.self_attn.r3", 5, &value, sizeof value);
    must_refuse(&e, BK_ENUMERIC, "model.layers.1.self_attn.r3");
    close_env(&e);
}
END_TEST

START_TEST(missing_and_short_files_are_refused)
{
    static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    for (int i = 0; i < 3; i++)
        for (int cut = 0; cut < 2; cut++) {
            env e;
            bk_error err = {0};
            open_env(&e, &variants[0], bk_backend_cpu());
            char *path = bk_path_join(e.to, files[i]);
            ck_assert_int_eq(cut ? truncate(path, 300) : unlink(path), 0);
            bk_status st = read_all(&e, &err);
            ck_assert_msg(st != BK_OK && err.code == st && strstr(err.msg, e.to), "%s %s: %s: %s", files[i], cut ? "cut" : "gone", bk_status_name(st), err.msg);
            free(path);
            close_env(&e);
        }
}
END_TEST

START_TEST(a_model_with_a_block_missing_is_not_finished)
{
    env e;
    bk_error err = {0};
    open_env(&e, &variants[0], bk_backend_cpu());
    char *path = bk_path_join(e.to, "model-00002-of-00003.safetensors");
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    bk_quantized_info info = {.quant = e.quant};
    ck_assert_int_eq(bk_quantized_finish(e.src, &e.prefix, &info, e.to, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "block 1"));
    close_env(&e);
}
END_TEST

START_TEST(a_plain_model_is_not_a_quantized_one)
{
    env e;
    bk_error err = {0};
    bk_quantized *q;
    open_env(&e, &variants[0], bk_backend_cpu());
    ck_assert(!bk_model_quantized(e.m));
    ck_assert_int_eq(bk_quantized_open(e.m, &q, &err), BK_EUNSUP);
    ck_assert_ptr_null(q);
    close_env(&e);
}
END_TEST

/* --- parameters of an initialised block --- */

START_TEST(parameters_come_back_to_the_bit)
{
    env e;
    open_env(&e, &variants[_i], bk_backend_cpu());
    bk_block *a = new_block(&e, &e.quant, NULL, NULL), *b = new_block(&e, &e.quant, NULL, NULL);
    for (int i = 0; i < bk_params_count(a->params); i++) {
        bk_tensor *t = bk_params_at(a->params, i, NULL);
        float *x = malloc((size_t)bk_numel(t) * sizeof *x);
        bk_tiny_fill(x, bk_numel(t), 3, (uint64_t)i);
        ok(bk_write(e.be, t, 0, x, bk_numel(t), &e.err), &e.err);
        free(x);
    }
    char *path = bk_path_join(e.to, "003.h5");
    bool weights = _i == 1;
    ok(bk_params_save(a, 3, weights, path, &e.err), &e.err);
    ok(bk_params_load(b, 3, weights, path, &e.err), &e.err);
    for (int i = 0; i < bk_params_count(a->params); i++) {
        int group;
        float *x = bk_tiny_read(e.be, bk_params_at(a->params, i, &group)), *y = bk_tiny_read(e.be, bk_params_at(b->params, i, NULL));
        bool equal = !memcmp(x, y, (size_t)bk_numel(bk_params_at(a->params, i, NULL)) * sizeof *x);
        ck_assert_msg(equal == (weights || group != BK_GROUP_WEIGHT), "%s", bk_params_at(a->params, i, NULL)->name);
        free(x), free(y);
    }
    bk_error err = {0};
    ck_assert_int_eq(bk_params_load(b, 4, false, path, &err), BK_EFORMAT); /* another layer */
    bk_error_clear(&err);
    bk_block_quant other = bk_tiny_quant("static", 4, 4, true);
    other.weight = bk_tiny_spec("affine", 4, true, BK_PER_GROUP, 8);
    bk_block *c = new_block(&e, &other, NULL, NULL);
    ck_assert_int_eq(bk_params_load(c, 3, false, path, &err), BK_EFORMAT); /* other shapes */
    free(path);
    bk_block_free(a);
    bk_block_free(b);
    bk_block_free(c);
    close_env(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantized");
    TCase *t = tcase_create("round trip");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_model_comes_back_to_the_bit, 0, VARIANTS);
    tcase_add_loop_test(t, every_quantizer_comes_back_from_every_place_that_it_serves, 0, bk_quantizer_count);
    tcase_add_loop_test(t, a_model_comes_back_on_other_backends, 0, 2 * VARIANTS);
    tcase_add_loop_test(t, the_rest_of_the_model_comes_back, 0, 2);
    tcase_add_loop_test(t, one_shard_comes_back_alone, 0, VARIANTS);
    tcase_add_test(t, writing_twice_gives_the_same_bytes);
    suite_add_tcase(s, t);
    t = tcase_create("damage");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, damaged_configs_are_refused);
    tcase_add_test(t, damaged_rotations_are_refused);
    tcase_add_test(t, a_damaged_r3_is_refused);
    tcase_add_test(t, a_plain_model_cannot_have_rotated_keys);
    tcase_add_test(t, a_prefix_id_outside_of_the_vocabulary_is_refused);
    tcase_add_test(t, damaged_values_are_refused);
    tcase_add_test(t, missing_and_short_files_are_refused);
    tcase_add_test(t, a_model_with_a_block_missing_is_not_finished);
    tcase_add_test(t, a_plain_model_is_not_a_quantized_one);
    suite_add_tcase(s, t);
    t = tcase_create("parameters");
    tcase_add_loop_test(t, parameters_come_back_to_the_bit, 0, VARIANTS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
