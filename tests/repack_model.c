#include "tests/repack_model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/model.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "tests/ok.h"

static float *values(const bk_st_set *s, const bk_st_tensor *t)
{
    bk_error err = {0};
    float *v = malloc((size_t)t->count * sizeof *v + 1);
    ck_assert_ptr_nonnull(v);
    ok(bk_st_read_f32(s, t, 0, t->count, v, &err), &err);
    return v;
}

/* Tensor number i goes into shard i % shards. */
static void write_shard(const bk_st_set *s, const char *to, int shard, int shards, bk_json *map)
{
    bk_error err = {0};
    bk_st_writer *w;
    char file[64];
    snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    char *path = bk_path_join(to, file);
    ok(bk_st_writer_new(path, &w, &err), &err);
    for (int64_t i = shard; i < bk_st_count(s); i += shards) {
        const bk_st_tensor *t = bk_st_at(s, i);
        ok(bk_st_writer_declare(w, t->name, BK_ST_F32, t->ndim, t->dim, &err), &err);
        bk_json_set(map, t->name, bk_json_of_text(file));
    }
    for (int64_t i = shard; i < bk_st_count(s); i += shards) {
        const bk_st_tensor *t = bk_st_at(s, i);
        float *v = values(s, t);
        ok(bk_st_writer_put(w, t->name, v, (size_t)t->count * sizeof *v, &err), &err);
        free(v);
    }
    ok(bk_st_writer_commit(w, &err), &err);
    free(path);
}

void repack_shards(const char *from, const char *to, int shards)
{
    bk_error err = {0};
    bk_st_set *s;
    bk_json *index = bk_json_object(), *map = bk_json_object();
    bk_json_set(index, "weight_map", map);
    ok(bk_st_open_folder(from, &s, &err), &err);
    ok(bk_mkdir_p(to, &err), &err);
    for (int i = 0; i < shards; i++) write_shard(s, to, i, shards, map);
    char *path = bk_path_join(to, "model.safetensors.index.json"), *old = bk_path_join(from, "config.json"), *new = bk_path_join(to, "config.json");
    ok(bk_json_save(index, path, &err), &err);
    ok(bk_copy_file(old, new, &err), &err);
    bk_json_free(index);
    bk_st_close(s);
    free(path);
    free(old);
    free(new);
}

void repack_gguf_keys(make_gguf *m, const bk_config *c)
{
    const struct {
        const char *key;
        int64_t v;
    } sizes[] = {{"embedding_length", c->hidden},      {"feed_forward_length", c->inter},        {"block_count", c->layers},
                 {"attention.head_count", c->heads},   {"attention.head_count_kv", c->kv_heads}, {"attention.key_length", c->head_dim},
                 {"context_length", c->max_positions}, {"vocab_size", c->vocab}};
    char key[128];
    gguf_str(m, "general.architecture", c->arch);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", c->arch, sizes[i].key);
        gguf_u32(m, key, (uint32_t)sizes[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", c->arch);
    gguf_f32(m, key, (float)c->eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", c->arch);
    gguf_f32(m, key, (float)c->rope_theta);
}

typedef struct job {
    make_gguf m;
    const bk_config *c;
    const bk_st_set *s;
} job;

static void add_tensor(job *j, const char *hf, const char *gguf, bool interleave)
{
    const bk_st_tensor *t = bk_st_find(j->s, hf);
    if (!t) return;
    float *v = values(j->s, t), *mixed = malloc((size_t)t->count * sizeof *v);
    ck_assert_ptr_nonnull(mixed);
    const int64_t width = t->ndim == 2 ? t->dim[1] : 1, d = j->c->head_dim;
    /* row half * d/2 + i of a head goes to row 2i + half */
    for (int64_t row = 0; row < t->dim[0]; row++) {
        int64_t half = row % d / (d / 2), i = row % (d / 2), to = interleave ? row - row % d + 2 * i + half : row;
        memcpy(mixed + to * width, v + row * width, (size_t)width * sizeof *v);
    }
    gguf_f32_tensor(&j->m, gguf, t->ndim, t->dim, mixed);
    free(v);
    free(mixed);
}

static void add_layer(job *j, int layer)
{
    static const char *const linears[BK_W_COUNT][2] = {
#define BK_LINEAR(E, name, hf, gguf) {hf, gguf},
        BK_LINEARS(BK_LINEAR)
#undef BK_LINEAR
    };
    static const char *const norms[BK_NORM_COUNT][2] = {
#define BK_NORM(E, name, hf, gguf) {hf, gguf},
        BK_NORMS(BK_NORM)
#undef BK_NORM
    };
    const char *const what[2] = {"weight", "bias"};
    char hf[128], gguf[128];
    for (int id = 0; id < BK_W_COUNT; id++)
        for (int b = 0; b < 2; b++) {
            snprintf(hf, sizeof hf, "model.layers.%d.%s.%s", layer, linears[id][0], what[b]);
            snprintf(gguf, sizeof gguf, "blk.%d.%s.%s", layer, linears[id][1], what[b]);
            add_tensor(j, hf, gguf, (id == BK_W_Q || id == BK_W_K) && strcmp(j->c->arch, "llama") == 0);
        }
    for (int id = 0; id < BK_NORM_COUNT; id++) {
        snprintf(hf, sizeof hf, "model.layers.%d.%s.weight", layer, norms[id][0]);
        snprintf(gguf, sizeof gguf, "blk.%d.%s.weight", layer, norms[id][1]);
        add_tensor(j, hf, gguf, false);
    }
}

void repack_gguf(const char *from, const char *path)
{
    bk_error err = {0};
    bk_model *m;
    ok(bk_model_open(from, &m, &err), &err);
    job j = {.c = bk_model_config(m), .s = bk_model_tensors(m)};
    repack_gguf_keys(&j.m, j.c);
    add_tensor(&j, "model.embed_tokens.weight", "token_embd.weight", false);
    for (int64_t l = 0; l < j.c->layers; l++) add_layer(&j, (int)l);
    add_tensor(&j, "model.norm.weight", "output_norm.weight", false);
    add_tensor(&j, "lm_head.weight", "output.weight", false);
    gguf_save(&j.m, path);
    bk_model_close(m);
}
