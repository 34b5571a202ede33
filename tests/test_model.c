#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/model.h"
#include "io/file.h"
#include "tests/make_gguf.h"
#include "tests/repack_model.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static char dir[BK_TINY_PATH], other[64];
static bk_error err;
static bk_config config;
static bk_model *m;

static void setup(void)
{
    strcpy(other, "/tmp/bk_model_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(other));
    bk_error_clear(&err);
    config = bk_tiny_config();
    dir[0] = 0;
    m = NULL;
}

static void teardown(void)
{
    bk_model_close(m);
    ck_assert_int_eq(bk_remove_tree(other, NULL), BK_OK);
    if (*dir) bk_tiny_model_remove(dir);
}

static const char *in(const char *folder, const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void open_at(const char *path)
{
    bk_model_close(m);
    ck_assert_msg(bk_model_open(path, &m, &err) == BK_OK, "%s", err.msg);
}

static void refuse_at(const char *path, bk_status code, const char *why)
{
    bk_error_clear(&err);
    bk_model *refused;
    ck_assert_msg(bk_model_open(path, &refused, &err) == code, "%d: %s", err.code, err.msg);
    ck_assert_ptr_null(refused);
    ck_assert_msg(strstr(err.msg, why) != NULL, "'%s' not in '%s'", why, err.msg);
}

/* All weights of the model, in one order; the test frees them. */
static float *everything(const bk_model *model, size_t *n)
{
    const bk_config *c = bk_model_config(model);
    const int64_t table = c->vocab * c->hidden;
    *n = (size_t)(c->layers * (bk_config_block_weights(c) + 4 * (c->inter + c->hidden + c->heads * c->head_dim)) + 2 * table + c->hidden);
    float *v = calloc(*n, sizeof *v), *p = v;
    ck_assert_ptr_nonnull(v);
    bk_status bad = BK_OK;
    for (int64_t l = 0; l < c->layers; l++) {
        for (int id = 0; id < BK_W_COUNT; id++) {
            int64_t rows, cols;
            bk_linear_shape(c, (bk_linear_id)id, &rows, &cols);
            bad |= bk_model_read_linear(model, l, (bk_linear_id)id, p, &err);
            p += rows * cols;
            if (bk_model_has_bias(model, (bk_linear_id)id)) bad |= bk_model_read_bias(model, l, (bk_linear_id)id, p, &err);
            p += rows;
        }
        for (int id = 0; id < (c->qk_norm ? BK_NORM_COUNT : BK_NORM_Q); id++) {
            bad |= bk_model_read_norm(model, l, (bk_norm_id)id, p, &err);
            p += id < BK_NORM_Q ? c->hidden : c->head_dim;
        }
    }
    bad |= bk_model_read_final_norm(model, p, &err);
    bad |= bk_model_read_embed(model, 0, c->vocab, p + c->hidden, &err);
    bad |= bk_model_read_head(model, 0, c->vocab, p + c->hidden + table, &err);
    ck_assert_msg(bad == BK_OK, "%s", err.msg);
    return v;
}

static void check_same_weights(const char *one, const char *two)
{
    size_t n, k;
    open_at(one);
    float *a = everything(m, &n);
    open_at(two);
    float *b = everything(m, &k);
    ck_assert_uint_eq(n, k);
    ck_assert_mem_eq(a, b, n * sizeof *a);
    free(a);
    free(b);
}

/* Every architecture, with and without biases, norms of heads, tied heads and a head dimension of its own. */
static bk_config variant(int i)
{
    bk_config c = bk_tiny_config();
    if (i == 1) c.qkv_bias = c.o_bias = c.mlp_bias = c.tied = true;
    if (i == 2) strcpy(c.arch, "qwen2"), c.qkv_bias = true;
    if (i == 3) strcpy(c.arch, "qwen3"), c.qk_norm = true, c.head_dim = 32;
    if (i == 4) c.kv_heads = 1, c.head_dim = 8, c.tied = true;
    return c;
}

START_TEST(tensors_are_read_by_their_names)
{
    bk_tiny_model_write(&config, 3, dir);
    open_at(dir);
    const bk_st_set *s = bk_model_tensors(m);
    float want[64 * 96], got[64 * 96];
    ck_assert_int_eq(bk_st_read_f32(s, bk_st_find(s, "model.layers.1.mlp.down_proj.weight"), 0, 64 * 96, want, &err), BK_OK);
    ck_assert_int_eq(bk_model_read_linear(m, 1, BK_W_DOWN, got, &err), BK_OK);
    ck_assert_mem_eq(got, want, sizeof want);
    ck_assert_int_eq(bk_st_read_f32(s, bk_st_find(s, "lm_head.weight"), 64 * 7, 64, want, &err), BK_OK);
    ck_assert_int_eq(bk_model_read_head(m, 7, 1, got, &err), BK_OK);
    ck_assert_mem_eq(got, want, 64 * sizeof *want);
    char name[128];
    bk_model_linear_name(m, 1, BK_W_DOWN, "codes", name);
    ck_assert_str_eq(name, "model.layers.1.mlp.down_proj.codes");
}
END_TEST

START_TEST(a_gguf_file_has_the_weights_of_its_folder)
{
    config = variant(_i);
    bk_tiny_model_write(&config, 5, dir);
    repack_gguf(dir, in(other, "m.gguf"));
    check_same_weights(dir, in(other, "m.gguf"));
}
END_TEST

START_TEST(q_and_k_rows_of_llama_ggufs_are_put_back)
{
    bk_tiny_model_write(&config, 5, dir);
    repack_gguf(dir, in(other, "m.gguf"));
    open_at(in(other, "m.gguf"));
    const bk_gguf *g = bk_model_gguf(m);
    float file[64], row[64 * 64];
    ck_assert_int_eq(bk_model_read_linear(m, 0, BK_W_Q, row, &err), BK_OK);
    ck_assert_int_eq(bk_gguf_read_rows(g, bk_gguf_find(g, "blk.0.attn_q.weight"), 16 + 3, 1, file, &err), BK_OK);
    ck_assert_mem_eq(file, row + (16 + 9) * 64, sizeof file); /* head 1, file row 3 = 2 * 1 + 1: row 8 + 1 */
}
END_TEST

START_TEST(shards_have_the_weights_of_one_file)
{
    bk_tiny_model_write(&config, 7, dir);
    repack_shards(dir, in(other, "shards"), 3);
    check_same_weights(dir, in(other, "shards"));
}
END_TEST

START_TEST(a_run_folder_opens_its_model)
{
    bk_tiny_model_write(&config, 7, dir);
    repack_shards(dir, in(other, "model"), 2);
    open_at(other);
    ck_assert_str_eq(bk_model_dir(m), in(other, "model"));
    ck_assert_str_eq(bk_model_path(m), other);
}
END_TEST

START_TEST(names_and_token_ids)
{
    config.tied = true;
    bk_tiny_model_write(&config, 7, dir);
    repack_gguf(dir, in(other, "Some-Model.Q4_1.gguf"));
    open_at(in(other, "Some-Model.Q4_1.gguf"));
    int64_t bos, eos;
    ck_assert_str_eq(bk_model_name(m), "Some-Model.Q4_1");
    ck_assert(!bk_model_bos_eos(m, &bos, &eos));
    ck_assert_ptr_null(bk_model_json(m));
    ck_assert_ptr_null(bk_model_tensors(m));
    open_at(in(dir, ""));
    ck_assert_str_eq(bk_model_name(m), strrchr(dir, '/') + 1);
    ck_assert_ptr_null(bk_model_gguf(m));
    bk_json *json = bk_config_to_json(&config), *list = bk_json_array();
    bk_json_push(list, bk_json_of_int(9));
    bk_json_push(list, bk_json_of_int(10));
    bk_json_set(json, "eos_token_id", list);
    ck_assert_int_eq(bk_json_save(json, in(dir, "config.json"), &err), BK_OK);
    bk_json_free(json);
    open_at(dir);
    ck_assert(bk_model_bos_eos(m, &bos, &eos));
    ck_assert_int_eq(bos, -1);
    ck_assert_int_eq(eos, 9);
}
END_TEST

static void change_config(const bk_config *c)
{
    bk_json *json = bk_config_to_json(c);
    ck_assert_int_eq(bk_json_save(json, in(dir, "config.json"), &err), BK_OK);
    bk_json_free(json);
}

START_TEST(shapes_that_disagree_with_the_config_name_both)
{
    bk_tiny_model_write(&config, 1, dir);
    config.inter = 100;
    change_config(&config);
    refuse_at(dir, BK_EFORMAT, "'model.layers.0.mlp.gate_proj.weight' has shape [96, 64], its config asks for [100, 64]");
    config = bk_tiny_config();
    config.vocab = 255;
    change_config(&config);
    refuse_at(dir, BK_EFORMAT, "'model.embed_tokens.weight' has shape [256, 64], its config asks for [255, 64]");
}
END_TEST

START_TEST(missing_tensors_are_listed)
{
    bk_tiny_model_write(&config, 1, dir);
    config.qkv_bias = config.o_bias = true;
    change_config(&config);
    refuse_at(dir, BK_EFORMAT, "8 tensors are missing: model.layers.0.self_attn.q_proj.bias, model.layers.0.self_attn.k_proj.bias");
}
END_TEST

START_TEST(tensors_without_a_place_are_refused)
{
    config.qkv_bias = config.o_bias = true;
    bk_tiny_model_write(&config, 1, dir);
    config.qkv_bias = config.o_bias = false;
    change_config(&config);
    refuse_at(dir, BK_EFORMAT, "_proj.bias' has no place in a llama model");
    config.qkv_bias = config.o_bias = true, config.layers = 1;
    change_config(&config);
    refuse_at(dir, BK_EFORMAT, "'model.layers.1.");
}
END_TEST

START_TEST(an_untied_head_beside_a_tied_config_is_left_alone)
{
    bk_tiny_model_write(&config, 1, dir);
    config.tied = true;
    change_config(&config);
    open_at(dir);
    float a[64], b[64];
    ck_assert_int_eq(bk_model_read_head(m, 3, 1, a, &err), BK_OK);
    ck_assert_int_eq(bk_model_read_embed(m, 3, 1, b, &err), BK_OK);
    ck_assert_mem_eq(a, b, sizeof a);
}
END_TEST

START_TEST(rows_and_layers_out_of_range_are_errors)
{
    float *v = malloc(sizeof *v * 256 * 64);
    bk_tiny_model_write(&config, 1, dir);
    open_at(dir);
    ck_assert_int_eq(bk_model_read_embed(m, 250, 7, v, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_model_read_embed(m, -1, 1, v, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_model_read_linear(m, 2, BK_W_Q, v, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "model.layers.2.self_attn.q_proj.weight"));
    ck_assert_int_eq(bk_model_read_bias(m, 0, BK_W_Q, v, NULL), BK_EINVAL);
    free(v);
}
END_TEST

START_TEST(values_that_are_not_finite_name_tensor_and_index)
{
    bk_tiny_model_write(&config, 1, dir);
    open_at(dir);
    const bk_st_tensor *t = bk_st_find(bk_model_tensors(m), "model.layers.1.mlp.up_proj.weight");
    FILE *f = fopen(in(dir, "model.safetensors"), "r+b");
    ck_assert_ptr_nonnull(f);
    fseek(f, (long)t->offset + 4 * 70, SEEK_SET);
    fwrite("\0\0\xc0\x7f", 1, 4, f);
    fclose(f);
    float *v = malloc(sizeof *v * 96 * 64);
    ck_assert_int_eq(bk_model_read_linear(m, 1, BK_W_UP, v, &err), BK_ENUMERIC);
    ck_assert_ptr_nonnull(strstr(err.msg, "'model.layers.1.mlp.up_proj.weight' is nan at index 70"));
    free(v);
}
END_TEST

START_TEST(unreadable_types_are_refused_when_opening)
{
    make_gguf g = {0};
    repack_gguf_keys(&g, &config);
    const int64_t dim[2] = {256, 256};
    gguf_tensor(&g, "token_embd.weight", 23, 2, dim, NULL, 256 * 136);
    gguf_save(&g, in(other, "m.gguf"));
    refuse_at(in(other, "m.gguf"), BK_EUNSUP, "'token_embd.weight' is of type IQ4_XS");
}
END_TEST

START_TEST(what_is_no_model_is_refused)
{
    refuse_at(in(other, "absent"), BK_EIO, "absent: cannot open");
    refuse_at(other, BK_EIO, "neither config.json nor model/config.json");
    bk_tiny_model_write(&config, 1, dir);
    refuse_at(in(dir, "model.safetensors"), BK_EINVAL, "give the folder");
    refuse_at(in(dir, "config.json"), BK_EFORMAT, "no GGUF file");
    ck_assert_int_eq(unlink(in(dir, "model.safetensors")), 0);
    refuse_at(dir, BK_EIO, "neither model.safetensors nor");
}
END_TEST

/* The weights of `dir` into model.safetensors of `other`, the linears under the name of codes if asked, and one tensor more. */
static void copy_weights(bool codes, const char *extra)
{
    const int64_t one = 1;
    bk_st_set *s;
    bk_st_writer *w;
    bk_status bad = bk_st_open_folder(dir, &s, &err);
    if (!bad) bad = bk_st_writer_new(in(other, "model.safetensors"), &w, &err);
    ck_assert_msg(bad == BK_OK, "%s", err.msg);
    for (int data = 0; data < 2; data++) {
        for (int64_t i = 0; i < bk_st_count(s); i++) {
            const bk_st_tensor *t = bk_st_at(s, i);
            char as_codes[128];
            snprintf(as_codes, sizeof as_codes, "%.*s.codes", (int)(strlen(t->name) - strlen(".weight")), t->name);
            const char *name = codes && strstr(t->name, "_proj") ? as_codes : t->name;
            float *v = malloc(sizeof *v * (size_t)t->count);
            bad |= bk_st_read_f32(s, t, 0, t->count, v, &err);
            bad |= data ? bk_st_writer_put(w, name, v, sizeof *v * (size_t)t->count, &err)
                        : bk_st_writer_declare(w, name, BK_ST_F32, t->ndim, t->dim, &err);
            free(v);
        }
        bad |= data ? bk_st_writer_put(w, extra, "\0\0\0", 4, &err) : bk_st_writer_declare(w, extra, BK_ST_F32, 1, &one, &err);
    }
    bad |= bk_st_writer_commit(w, &err);
    ck_assert_msg(bad == BK_OK, "%s", err.msg);
    bk_st_close(s);
}

START_TEST(linears_of_a_quantized_model_are_not_looked_for)
{
    bk_json *json = bk_config_to_json(&config), *q = bk_json_object();
    bk_json_set(q, "quant_method", bk_json_of_text("brick"));
    bk_json_set(json, "quantization_config", q);
    ck_assert_int_eq(bk_json_save(json, in(other, "config.json"), &err), BK_OK);
    bk_json_free(json);
    bk_tiny_model_write(&config, 1, dir);
    copy_weights(true, "prefix.key");
    open_at(other);
    ck_assert(bk_model_quantized(m));
    float v[64 * 64];
    ck_assert_int_eq(bk_model_read_linear(m, 0, BK_W_Q, v, NULL), BK_EUNSUP);
    ck_assert_int_eq(bk_model_read_norm(m, 0, BK_NORM_ATTN, v, &err), BK_OK);
}
END_TEST

START_TEST(frequency_tables_of_old_files_are_passed_over)
{
    bk_tiny_model_write(&config, 1, dir);
    ck_assert_int_eq(bk_copy_file(in(dir, "config.json"), in(other, "config.json"), &err), BK_OK);
    copy_weights(false, "model.layers.0.self_attn.rotary_emb.inv_freq");
    open_at(other);
    copy_weights(false, "model.layers.0.self_attn.rotary_emb.inv_freq_of_another_kind");
    refuse_at(other, BK_EFORMAT, "inv_freq_of_another_kind' has no place");
}
END_TEST

START_TEST(the_hash_covers_config_tokenizer_and_weights)
{
    char one[65], two[65], three[65];
    bk_tiny_model_write(&config, 1, dir);
    open_at(dir);
    ck_assert_int_eq(bk_model_sha256(m, one, &err), BK_OK);
    config.eps = 2e-5;
    change_config(&config);
    open_at(dir);
    ck_assert_int_eq(bk_model_sha256(m, two, &err), BK_OK);
    ck_assert_str_ne(one, two);
    ck_assert_int_eq(bk_write_file(in(dir, "tokenizer.json"), "{}", 2, &err), BK_OK);
    ck_assert_int_eq(bk_model_sha256(m, one, &err), BK_OK);
    ck_assert_str_ne(one, two);
    repack_gguf(dir, in(other, "m.gguf"));
    open_at(in(other, "m.gguf"));
    ck_assert_int_eq(bk_model_sha256(m, one, &err), BK_OK);
    ck_assert_int_eq(bk_sha256_file(in(other, "m.gguf"), three, &err), BK_OK);
    ck_assert_str_eq(one, three);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model");
    TCase *c = tcase_create("model");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, tensors_are_read_by_their_names);
    tcase_add_loop_test(c, a_gguf_file_has_the_weights_of_its_folder, 0, 5);
    tcase_add_test(c, q_and_k_rows_of_llama_ggufs_are_put_back);
    tcase_add_test(c, shards_have_the_weights_of_one_file);
    tcase_add_test(c, a_run_folder_opens_its_model);
    tcase_add_test(c, names_and_token_ids);
    tcase_add_test(c, shapes_that_disagree_with_the_config_name_both);
    tcase_add_test(c, missing_tensors_are_listed);
    tcase_add_test(c, tensors_without_a_place_are_refused);
    tcase_add_test(c, an_untied_head_beside_a_tied_config_is_left_alone);
    tcase_add_test(c, rows_and_layers_out_of_range_are_errors);
    tcase_add_test(c, values_that_are_not_finite_name_tensor_and_index);
    tcase_add_test(c, unreadable_types_are_refused_when_opening);
    tcase_add_test(c, what_is_no_model_is_refused);
    tcase_add_test(c, linears_of_a_quantized_model_are_not_looked_for);
    tcase_add_test(c, frequency_tables_of_old_files_are_passed_over);
    tcase_add_test(c, the_hash_covers_config_tokenizer_and_weights);
    suite_add_tcase(s, c);
    return run_suite(s);
}
