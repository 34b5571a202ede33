#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/model.h"
#include "blocks/outliers.h"
#include "blocks/pass.h"
#include "blocks/prefix.h"
#include "experiments/backends.h"
#include "experiments/synth.h"
#include "io/file.h"
#include "io/text.h"
#include "io/tokenizer.h"
#include "tests/suite.h"

static bk_error err;
static char dir[64];

static void ok(bk_status st)
{
    if (st) ck_abort_msg("%s: %s", bk_status_name(st), err.msg);
}

static void make_dir(void)
{
    memset(&err, 0, sizeof err);
    strcpy(dir, "/tmp/bk_synth_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void remove_dir(void)
{
    ok(bk_remove_tree(dir, &err));
}

static bk_synth *made(const char *shape, uint64_t seed)
{
    bk_config c;
    bk_synth *s;
    ok(bk_synth_shape(shape, &c, &err));
    ok(bk_synth_create(&c, seed, &s, &err));
    return s;
}

static const char *file(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* --- shapes --- */

static const char *const good[] = {
    "llama", "qwen2", "qwen3", "tied", "tiny,layers=1", "tiny,layers=12", "head_dim=64", "qwen3,kv_heads=4", "tiny,window=64",
    "tiny,heads=6,kv_heads=3,hidden=48", "layers=3,inter=384", "vocab=320", "tiny,heads=1,kv_heads=1",
};

START_TEST(shape_makes_a_model_that_opens)
{
    bk_config c;
    bk_synth *s = made(good[_i], 3);
    ok(bk_synth_write(s, dir, 0, &err));
    c = s->cfg;
    bk_synth_free(s);
    bk_model *m;
    ok(bk_model_open(dir, &m, &err));
    const bk_config *is = bk_model_config(m);
    ck_assert_int_eq(is->hidden, c.hidden);
    ck_assert_int_eq(is->layers, c.layers);
    ck_assert_int_eq(is->head_dim, c.head_dim);
    ck_assert_int_eq(is->sliding_window, c.sliding_window);
    ck_assert_int_eq(is->tied, c.tied);
    ck_assert_int_eq(is->qkv_bias, c.qkv_bias);
    ck_assert_int_eq(is->qk_norm, c.qk_norm);
    bk_model_close(m);
}
END_TEST

static const struct {
    const char *shape, *says;
} bad[] = {
    {"lama", "did you mean 'llama'"}, {"layer=3", "did you mean 'layers'"}, {"layers=0", "from 1 to"},      {"layers=3x", "whole number"},
    {"kv_heads=3", "no multiple"},    {"head_dim=9", "even"},               {"layers=3,tiny", "key=value"}, {"vocab=100", "from 258"},
};

START_TEST(bad_shape_says_what_is_wrong)
{
    bk_config c;
    ck_assert_int_eq(bk_synth_shape(bad[_i].shape, &c, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, bad[_i].says) != NULL, "%s: %s", bad[_i].shape, err.msg);
}
END_TEST

/* --- bytes --- */

static void hash_all(uint64_t seed, char hex[65])
{
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
                                        "train.txt",   "calib.txt",      "eval.txt"};
    bk_synth *s = made("tiny", seed);
    bk_sha256 *h = bk_sha256_new();
    ok(bk_synth_write(s, dir, 1, &err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ok(bk_sha256_put_file(h, file(names[i]), &err));
    bk_sha256_end(h, hex);
    bk_synth_free(s);
}

START_TEST(seed_decides_every_byte)
{
    char a[65], b[65], other[65];
    hash_all(5, a);
    hash_all(5, b);
    hash_all(6, other);
    ck_assert_str_eq(a, b);
    ck_assert_str_ne(a, other);
}
END_TEST

START_TEST(tokens_are_bytes)
{
    bk_synth *s = made("tiny", 1);
    bk_tokenizer *t;
    char all[256], *back;
    int32_t *ids;
    int64_t n;
    size_t len;
    ok(bk_synth_write(s, dir, 0, &err));
    ok(bk_tokenizer_from_folder(dir, &t, &err));
    ck_assert_int_eq(bk_tokenizer_size(t), BK_SYNTH_VOCAB);
    ck_assert_int_eq(bk_tokenizer_bos(t), BK_SYNTH_BOS);
    ck_assert_int_eq(bk_tokenizer_eos(t), BK_SYNTH_EOS);
    ck_assert(bk_tokenizer_add_bos(t));
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    ok(bk_tokenizer_encode(t, all, sizeof all, false, &ids, &n, &err));
    ck_assert_int_eq(n, 256);
    for (int i = 0; i < 256; i++) ck_assert_int_eq(ids[i], i);
    ok(bk_tokenizer_decode(t, ids, n, false, &back, &len, &err));
    ck_assert_uint_eq(len, sizeof all);
    ck_assert_mem_eq(back, all, sizeof all);
    free(ids);
    free(back);
    bk_tokenizer_free(t);
    bk_synth_free(s);
}
END_TEST

/* --- what the model does --- */

typedef struct engine {
    bk_synth *s;
    bk_model *m;
    bk_source *src;
    const bk_backend *be;
    bk_text text;
    bk_samples windows;
} engine;

static engine opened(const char *shape, int64_t seqlen, int64_t windows)
{
    engine e = {.s = made(shape, 4), .be = bk_backend_named("cpu")};
    e.be->set_threads(1); /* the matrices are too small to share */
    bk_tokenizer *t;
    bk_text_options opt = {0};
    ok(bk_synth_write(e.s, dir, (windows * seqlen + BK_SYNTH_DOCUMENT - 1) / BK_SYNTH_DOCUMENT, &err));
    ok(bk_model_open(dir, &e.m, &err));
    ok(bk_source_open(e.m, NULL, &e.src, &err));
    ok(bk_tokenizer_from_folder(dir, &t, &err));
    ok(bk_text_load(file("train.txt"), t, &opt, &e.text, &err));
    ok(bk_samples_windows(&e.text, seqlen, windows, &e.windows, &err));
    bk_tokenizer_free(t);
    return e;
}

static void closed(engine *e)
{
    bk_samples_free(&e->windows);
    bk_text_free(&e->text);
    bk_source_close(e->src);
    bk_model_close(e->m);
    bk_synth_free(e->s);
}

static bk_status load(void *user, int64_t layer, bk_block *b, bk_error *e)
{
    const bk_synth *s = user;
    return bk_block_load(b, &s->block[layer], e);
}

/* Perplexity of windows that begin with <s>, the text after it. */
static double perplexity(engine *e)
{
    int64_t t = e->windows.seqlen, n = e->windows.n;
    bk_block *b;
    bk_ppl p;
    int32_t *ids = malloc((size_t)(n * t) * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (int64_t i = 0; i < n; i++) {
        ids[i * t] = BK_SYNTH_BOS;
        memcpy(ids + i * t + 1, e->windows.ids + i * t, (size_t)(t - 1) * sizeof *ids);
    }
    ok(bk_block_create(&b, e->be, &e->s->cfg, &(bk_block_options){.tokens = t}, &err));
    ok(bk_perplexity(e->src, b, &(bk_loader){load, e->s}, ids, n, t, NULL, &p, &err));
    bk_block_free(b);
    free(ids);
    return p.ppl;
}

/* A text that the model did not sample, of the same letters, is a surprise; its own is not. This ties the sampler's pass to the engine's. */
START_TEST(text_is_what_the_model_predicts)
{
    engine e = opened("llama,layers=3", BK_SYNTH_DOCUMENT / 4, 4);
    double own = perplexity(&e);
    for (int64_t i = 0; i < e.windows.n * e.windows.seqlen; i++) e.windows.ids[i] = BK_SYNTH_LETTERS[e.windows.ids[i] * 7 % 64];
    double strange = perplexity(&e);
    ck_assert_msg(own < 20 && strange > 3 * own, "perplexity %g of its own text, %g of another", own, strange);
    closed(&e);
}
END_TEST

static const char *const planted[] = {"tiny",           "tiny,layers=6", "qwen2,layers=3",
                                      "qwen3,layers=3", "tied,layers=2", "layers=1,head_dim=64"};

START_TEST(delimiters_are_the_outliers_and_bos_comes_last)
{
    engine e = opened(planted[_i], BK_SYNTH_DOCUMENT, 4);
    bk_outliers found;
    bk_prefix_choice c;
    ok(bk_outliers_detect(e.be, e.src, e.windows.ids, e.windows.n, e.windows.seqlen, 64, NULL, &found, &err));
    for (int64_t i = 0; i < found.n; i++) ck_assert(found.at[i].id == '.' || found.at[i].id == '\n');
    ok(bk_prefix_choose(&found, BK_SYNTH_BOS, 0.1, &c, &err));
    ck_assert_int_eq(c.n, 3);
    ck_assert_int_eq(c.ids[0], '.');
    ck_assert_int_eq(c.ids[1], '\n');
    ck_assert_int_eq(c.ids[2], BK_SYNTH_BOS);
    bk_prefix_choice_free(&c);
    bk_outliers_free(&found);
    closed(&e);
}
END_TEST

START_TEST(outliers_vanish_behind_bos)
{
    engine e = opened(planted[_i], BK_SYNTH_DOCUMENT, 2);
    bk_outliers found;
    for (int64_t i = 0; i < e.windows.n; i++) e.windows.ids[i * e.windows.seqlen] = BK_SYNTH_BOS;
    ok(bk_outliers_detect(e.be, e.src, e.windows.ids, e.windows.n, e.windows.seqlen, 64, NULL, &found, &err));
    ck_assert_int_ge(found.n, e.windows.n);
    for (int64_t i = 0; i < found.n; i++) ck_assert_msg(found.at[i].position == 0, "an outlier at %d", (int)found.at[i].position);
    bk_outliers_free(&found);
    closed(&e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("synth");
    TCase *t = tcase_create("synth");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, make_dir, remove_dir);
    tcase_add_loop_test(t, shape_makes_a_model_that_opens, 0, (int)(sizeof good / sizeof *good));
    tcase_add_loop_test(t, bad_shape_says_what_is_wrong, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(t, seed_decides_every_byte);
    tcase_add_test(t, tokens_are_bytes);
    tcase_add_test(t, text_is_what_the_model_predicts);
    tcase_add_loop_test(t, delimiters_are_the_outliers_and_bos_comes_last, 0, (int)(sizeof planted / sizeof *planted));
    tcase_add_loop_test(t, outliers_vanish_behind_bos, 0, (int)(sizeof planted / sizeof *planted));
    suite_add_tcase(s, t);
    return run_suite(s);
}
