/* Quantized models on disk: what comes back is what was hardened, to the bit; what is damaged is refused. And the parameters of initialised blocks. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/params_file.h"
#include "blocks/quantized.h"
#include "io/file.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/written_model.h"

static const written_way variants[] = {
    {"static", "static", 4, 4, true, true, false, 0, 3, 0, 0, false, NULL, false, false},
    {"static asymmetric groups", "static", 3, 8, false, false, true, 16, 0, 0, 0, false, NULL, false, true},
    {"dynamic", "dynamic", 4, 4, false, true, true, 0, 2, 0, 0, false, NULL, false, false},
    {"weights only", "static", 2, 16, false, false, false, 32, 1, 0, 0, false, NULL, false, false},
    {"eight bits", "static", 8, 8, true, false, false, 0, 0, 0, 0, false, NULL, false, false},
    {"activations only", "static", 16, 4, true, false, false, 0, 0, 0, 0, false, NULL, false, false},
    {"skips", "static", 4, 4, true, true, false, 0, 2, 1u << BK_SITE_DOWN_IN | 1u << BK_SITE_KEY, 1u << BK_W_O | 1u << BK_W_UP, false, NULL, false, false},
    {"learned steps", "lsq", 4, 4, true, true, false, 0, 2, 0, 0, false, "lsq", true, false},
    {"learned steps and zero points", "lsq", 3, 4, false, false, true, 16, 0, 0, 0, false, "lsq", true, false},
    {"learned clipping", "static", 4, 16, true, true, false, 0, 2, 0, 0, false, "lwc", false, false},
    {"learned clipping of both ends", "static", 2, 16, false, false, false, 16, 0, 0, 0, false, "lwc", false, false},
    {"learned rounding", "static", 4, 16, true, true, false, 0, 2, 0, 1u << BK_W_O, false, "adaround", false, false},
    {"learned rounding of groups", "static", 3, 16, false, false, false, 16, 0, 0, 0, false, "adaround", false, false},
    {"learned offsets", "static", 4, 16, true, true, false, 0, 2, 0, 0, false, "signround", false, false},
    {"learned offsets and ranges", "static", 2, 16, false, false, false, 16, 0, 0, 0, false, "signround", false, false},
    {"fitted", "dynamic", 4, 4, false, true, true, 0, 2, 0, 0, true, NULL, false, false},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], FITTED = VARIANTS - 1 };

/* --- what comes back --- */

START_TEST(a_model_comes_back_to_the_bit)
{
    written_model e;
    written_open(&e, &variants[_i], NULL, bk_backend_cpu());
    written_check(&e);
    written_close(&e);
}
END_TEST

START_TEST(a_model_comes_back_on_other_backends)
{
    written_model e;
    written_open(&e, &variants[_i / 2], NULL, _i % 2 ? bk_backend_guard(BK_F32) : bk_backend_ref(BK_F32));
    written_check(&e);
    written_close(&e);
}
END_TEST

START_TEST(the_rest_of_the_model_comes_back)
{
    written_model e;
    bk_model *m;
    bk_source *src;
    float a[64], b[64];
    written_open(&e, &variants[_i], NULL, bk_backend_cpu());
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
    written_close(&e);
}
END_TEST

START_TEST(one_shard_comes_back_alone)
{
    written_model e;
    written_open(&e, &variants[_i], NULL, bk_backend_cpu());
    bk_block_quant quant = e.quant;
    quant.weight.bits = 16;
    bk_block *b = written_block(&e, &quant, bk_source_r3(e.src), bk_source_r4(e.src));
    for (int l = 0; l < WRITTEN_LAYERS; l++) {
        ok(bk_quantized_read_block(b, l, e.to, &e.quant.weight, &e.err), &e.err);
        if (e.prefix.n) ok(bk_block_set_prefix(b, bk_prefix_k(&e.prefix, l), bk_prefix_v(&e.prefix, l), &e.err), &e.err);
        b->skip_sites = l ? e.v->skip_sites : 0;
        bk_block_quantize(b, true, true);
        written_check_layer(&e, b, &e.layer[l]);
    }
    bk_block_free(b);
    written_close(&e);
}
END_TEST

/* Same model, same bytes. */
START_TEST(writing_twice_gives_the_same_bytes)
{
    written_model a, b;
    static const char *const files[] = {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    written_open(&a, &variants[0], NULL, bk_backend_cpu());
    written_open(&b, &variants[0], NULL, bk_backend_cpu());
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *p = bk_path_join(a.to, files[i]), *q = bk_path_join(b.to, files[i]), x[65], y[65];
        ok(bk_sha256_file(p, x, &a.err), &a.err);
        ok(bk_sha256_file(q, y, &a.err), &a.err);
        ck_assert_str_eq(x, y);
        free(p), free(q);
    }
    written_close(&a);
    written_close(&b);
}
END_TEST

/* --- damage --- */

/* Opens the folder and reads all of it; the first failure. */
static bk_status read_all(written_model *e, bk_error *err)
{
    bk_model *m = NULL;
    bk_quantized *q = NULL;
    bk_block *b = NULL;
    bk_status st = bk_model_open(e->to, &m, err);
    if (!st) st = bk_quantized_open(m, &q, err);
    bk_block_options opt = {.prefix_len = e->prefix.n, .tokens = WRITTEN_TOKENS};
    if (!st) {
        opt.quant = bk_quantized_quant(q);
        opt.r3 = bk_quantized_r3(q);
        opt.r4 = bk_quantized_r4(q);
        st = bk_block_create(&b, e->be, bk_model_config(m), &opt, err);
    }
    for (int l = 0; !st && l < WRITTEN_LAYERS; l++) st = bk_quantized_load(q, l, b, err);
    bk_block_free(b);
    bk_quantized_close(q);
    bk_model_close(m);
    return st;
}

static void must_refuse(written_model *e, bk_status want, const char *word)
{
    bk_error err = {0};
    bk_status st = read_all(e, &err);
    ck_assert_msg(st == want && err.code == want, "%s (%s), not %s, for %s", bk_status_name(st), err.msg, bk_status_name(want), word);
    ck_assert_msg(strstr(err.msg, word) != NULL, "'%s' does not speak of %s", err.msg, word);
}

/* Replaces text in config.json. */
static void edit_config(written_model *e, const char *from, const char *to)
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

static void must_refuse_edits(const written_way *v, const edit *bad, size_t n)
{
    written_model e;
    written_open(&e, v, NULL, bk_backend_cpu());
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
    written_close(&e);
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
    written_model e;
    bk_error err = {0};
    bk_model *m;
    written_open(&e, &variants[4], NULL, bk_backend_cpu());
    char *path = bk_path_join(e.dir, "config.json"), *text, out[16384];
    size_t len;
    ok(bk_file_slurp(path, 16000, &text, &len, &e.err), &e.err);
    int n = snprintf(out, sizeof out, "{\"r3_per_kv_head\": true,%s", strchr(text, '{') + 1);
    ok(bk_write_file(path, out, (size_t)n, &e.err), &e.err);
    ck_assert_int_eq(bk_model_open(e.dir, &m, &err), BK_EUNSUP);
    ck_assert_ptr_nonnull(strstr(err.msg, "r3_per_kv_head"));
    free(text), free(path);
    written_close(&e);
}
END_TEST

START_TEST(a_prefix_id_outside_of_the_vocabulary_is_refused)
{
    written_model e;
    written_open(&e, &variants[0], NULL, bk_backend_cpu());
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
    written_close(&e);
}
END_TEST

/* Exchanges one value of a tensor, where it lies in its file, with `value`. */
static void exchange(written_model *e, const char *name, int64_t index, void *value, size_t size)
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
    written_model e;
    written_open(&e, &variants[0], NULL, bk_backend_cpu());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float value = bad[i].value;
        uint8_t code = (uint8_t)16;
        bool codes = strstr(bad[i].name, ".codes") != NULL;
        exchange(&e, bad[i].name, bad[i].index, codes ? (void *)&code : &value, codes ? 1 : sizeof value);
        must_refuse(&e, bad[i].st, bad[i].name);
        exchange(&e, bad[i].name, bad[i].index, codes ? (void *)&code : &value, codes ? 1 : sizeof value);
    }
    ok(read_all(&e, &e.err), &e.err);
    written_close(&e);
}
END_TEST

START_TEST(a_damaged_r3_is_refused)
{
    written_model e;
    float value = NAN;
    written_open(&e, &variants[FITTED], NULL, bk_backend_cpu());
    exchange(&e, "model.layers.1.self_attn.r3", 5, &value, sizeof value);
    must_refuse(&e, BK_ENUMERIC, "model.layers.1.self_attn.r3");
    written_close(&e);
}
END_TEST

START_TEST(missing_and_short_files_are_refused)
{
    static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    for (int i = 0; i < 3; i++)
        for (int cut = 0; cut < 2; cut++) {
            written_model e;
            bk_error err = {0};
            written_open(&e, &variants[0], NULL, bk_backend_cpu());
            char *path = bk_path_join(e.to, files[i]);
            ck_assert_int_eq(cut ? truncate(path, 300) : unlink(path), 0);
            bk_status st = read_all(&e, &err);
            ck_assert_msg(st != BK_OK && err.code == st && strstr(err.msg, e.to), "%s %s: %s: %s", files[i], cut ? "cut" : "gone", bk_status_name(st), err.msg);
            free(path);
            written_close(&e);
        }
}
END_TEST

START_TEST(a_model_with_a_block_missing_is_not_finished)
{
    written_model e;
    bk_error err = {0};
    written_open(&e, &variants[0], NULL, bk_backend_cpu());
    char *path = bk_path_join(e.to, "model-00002-of-00003.safetensors");
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    bk_quantized_info info = {.quant = e.quant};
    ck_assert_int_eq(bk_quantized_finish(e.src, &e.prefix, &info, e.to, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "block 1"));
    written_close(&e);
}
END_TEST

START_TEST(a_plain_model_is_not_a_quantized_one)
{
    written_model e;
    bk_error err = {0};
    bk_quantized *q;
    written_open(&e, &variants[0], NULL, bk_backend_cpu());
    ck_assert(!bk_model_quantized(e.m));
    ck_assert_int_eq(bk_quantized_open(e.m, &q, &err), BK_EUNSUP);
    ck_assert_ptr_null(q);
    written_close(&e);
}
END_TEST

/* --- parameters of an initialised block --- */

START_TEST(parameters_come_back_to_the_bit)
{
    written_model e;
    written_open(&e, &variants[_i], NULL, bk_backend_cpu());
    bk_block *a = written_block(&e, &e.quant, NULL, NULL), *b = written_block(&e, &e.quant, NULL, NULL);
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
        bool gain = !strncmp(bk_params_at(a->params, i, NULL)->name, "norm_", 5), kept = !gain && (weights || group != BK_GROUP_WEIGHT);
        ck_assert_msg(equal == kept, "%s", bk_params_at(a->params, i, NULL)->name);
        free(x), free(y);
    }
    bk_error err = {0};
    ck_assert_int_eq(bk_params_load(b, 4, false, path, &err), BK_EFORMAT); /* another layer */
    bk_error_clear(&err);
    bk_block_quant other = bk_tiny_quant("static", 4, 4, true);
    other.weight = bk_tiny_spec("affine", 4, true, BK_PER_GROUP, 8);
    bk_block *c = written_block(&e, &other, NULL, NULL);
    ck_assert_int_eq(bk_params_load(c, 3, false, path, &err), BK_EFORMAT); /* other shapes */
    free(path);
    bk_block_free(a);
    bk_block_free(b);
    bk_block_free(c);
    written_close(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantized");
    TCase *t = tcase_create("round trip");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_model_comes_back_to_the_bit, 0, VARIANTS);
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
