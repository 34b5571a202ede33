#include "tests/tiny_model.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/model.h"
#include "blocks/names.h"
#include "blocks/weights.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "tests/ok.h"

bk_config bk_tiny_config(void)
{
    return (bk_config){.arch = "llama", .hidden = 64, .inter = 96, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .vocab = 256,
                       .max_positions = 512, .eps = 1e-5, .rope_theta = 1e4};
}

/* Walks over the tensors of the model: declares them in a first pass, writes them in a second. */
typedef struct pass {
    bk_st_writer *writer;
    bool write;
    uint64_t seed, drawn;
} pass;

static void tensor(pass *p, const char *name, int64_t rows, int64_t cols, double mean, double deviation)
{
    bk_error err = {0};
    int64_t dim[2] = {rows, cols}, count = rows * (cols ? cols : 1);
    if (!p->write) {
        ok(bk_st_writer_declare(p->writer, name, BK_ST_F32, cols ? 2 : 1, dim, &err), &err);
        return;
    }
    float *x = malloc((size_t)count * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (int64_t i = 0; i < count; i++) x[i] = (float)(mean + deviation * bk_rng_normal(p->seed, BK_RNG_TEST, p->drawn++));
    ok(bk_st_writer_put(p->writer, name, x, (size_t)count * sizeof *x, &err), &err);
    free(x);
}

static void layer_tensors(pass *p, const bk_config *c, int layer)
{
    char name[128];
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, bk_linear_hf[id]);
        tensor(p, name, out, in, 0, 1 / sqrt((double)in));
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, bk_linear_hf[id]);
        if (bk_config_has_bias(c, id)) tensor(p, name, out, 0, 0.1, 0.3);
    }
    for (bk_norm_id id = 0; id < (c->qk_norm ? BK_NORM_COUNT : BK_NORM_Q); id++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, bk_norm_hf[id]);
        tensor(p, name, id < BK_NORM_Q ? c->hidden : c->head_dim, 0, 1, 0.2);
    }
}

static void all_tensors(pass *p, const bk_config *c)
{
    tensor(p, "model.embed_tokens.weight", c->vocab, c->hidden, 0, 1);
    for (int64_t l = 0; l < c->layers; l++) layer_tensors(p, c, (int)l);
    tensor(p, "model.norm.weight", c->hidden, 0, 1, 0.2);
    if (!c->tied) tensor(p, "lm_head.weight", c->vocab, c->hidden, 0, 1);
}

void bk_tiny_model_write(const bk_config *c, uint64_t seed, char dir[BK_TINY_PATH])
{
    bk_error err = {0};
    char path[BK_TINY_PATH + 32];
    strcpy(dir, "/tmp/bk_tiny_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));

    bk_json *config = bk_config_to_json(c);
    snprintf(path, sizeof path, "%s/config.json", dir);
    ok(bk_json_save(config, path, &err), &err);
    bk_json_free(config);

    pass p = {.seed = seed};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ok(bk_st_writer_new(path, &p.writer, &err), &err);
    all_tensors(&p, c);
    p.write = true;
    all_tensors(&p, c);
    ok(bk_st_writer_commit(p.writer, &err), &err);
}

/* The file that holds a tensor, at value `first`. */
static FILE *open_at(const char *dir, const char *tensor, int64_t first, int64_t n)
{
    bk_error err = {0};
    bk_st_set *s;
    ok(bk_st_open_folder(dir, &s, &err), &err);
    const bk_st_tensor *t = bk_st_find(s, tensor);
    ck_assert_msg(t && first + n <= t->count, "%s has no values %d..%d", tensor, (int)first, (int)(first + n - 1));
    FILE *f = fopen(bk_st_file_path(s, t->file), "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, (long)t->offset + (long)first * (long)sizeof(float), SEEK_SET), 0);
    bk_st_close(s);
    return f;
}

void bk_tiny_model_set(const char *dir, const char *tensor, int64_t first, int64_t n, float value)
{
    FILE *f = open_at(dir, tensor, first, n);
    for (int64_t i = 0; i < n; i++) ck_assert_int_eq(fwrite(&value, sizeof value, 1, f), 1);
    ck_assert_int_eq(fclose(f), 0);
}

void bk_tiny_model_put(const char *dir, const char *tensor, const float *values, int64_t n)
{
    FILE *f = open_at(dir, tensor, 0, n);
    ck_assert_int_eq(fwrite(values, sizeof *values, (size_t)n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

void bk_tiny_model_remove(const char *dir)
{
    bk_error err = {0};
    ok(bk_remove_tree(dir, &err), &err);
}
