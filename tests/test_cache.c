/* A sequence that goes on behind the keys and values of its beginning computes what it computes at once. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/cache.h"
#include "blocks/init.h"
#include "blocks/pass.h"
#include "experiments/runner.h"
#include "experiments/synth.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/json.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

#define TOKENS 13
#define FIRST 5 /* tokens that begin the sequence together */

/* --- one block --- */

static const struct {
    const char *name;
    int64_t window, prefix;
    const char *quantizer; /* of activations, keys and values; NULL: full precision */
    bool cpu, overlap;     /* overlap: text starts at position 0 behind the prefix */
    bool r3;               /* per KV head */
} cases[] = {{"plain", 0, 0, NULL, false, false, false},
             {"prefix", 0, 3, NULL, false, false, false},
             {"window", 4, 0, NULL, false, false, false},
             {"window as long as the beginning", FIRST, 2, NULL, false, false, false},
             {"window of one token", 1, 0, NULL, false, false, false},
             {"window of one token behind a prefix", 1, 2, NULL, false, false, false},
             {"static", 0, 2, "static", false, false, false},
             {"dynamic", 4, 2, "dynamic", false, false, false},
             {"overlapping positions", 4, 3, NULL, false, true, false},
             {"cpu", 0, 3, NULL, true, false, false},
             {"cpu, window", 4, 3, NULL, true, false, false},
             {"keys that turn by the matrices of their heads", 4, 3, NULL, true, false, true}};

typedef struct env {
    bk_tiny_block t;
    bk_block_quant quant;
    bk_cache *cache;
} env;

static void open_env(env *e, int i)
{
    const bk_backend *be = cases[i].cpu ? bk_backend_cpu() : bk_backend_ref(BK_F64);
    bk_config c = bk_tiny_config();
    c.sliding_window = cases[i].window;
    c.overlap_prefix = cases[i].overlap;
    c.r3_per_kv_head = cases[i].r3;
    if (cases[i].quantizer) e->quant = bk_tiny_quant(cases[i].quantizer, 4, 4, true);
    bk_block_options opt = {.quant = cases[i].quantizer ? &e->quant : NULL, .prefix_len = cases[i].prefix, .tokens = TOKENS};
    bk_tiny_block_open(&e->t, be, &c, &opt, 3);
    bk_error *err = &e->t.err;
    ok(bk_cache_create(&e->cache, be, &c, cases[i].prefix, TOKENS, err), err);
    if (!cases[i].quantizer) return;
    bk_stream *x = bk_tiny_stream(2, TOKENS, c.hidden, 8);
    bk_ctx *ctx = bk_ctx_new(be, err);
    ok(bk_block_init(ctx, e->t.b, x, &(bk_init_options){.search = false}, err), err);
    bk_ctx_free(ctx);
    bk_stream_free(x);
}

static void close_env(env *e)
{
    bk_cache_free(e->cache);
    bk_tiny_block_close(&e->t);
}

/* Takes n tokens through the block, in place. */
static bk_status run(env *e, float *x, int64_t samples, int64_t n)
{
    bk_stream *h;
    bk_error *err = &e->t.err;
    ok(bk_stream_create(&h, samples, n, e->t.b->cfg.hidden, err), err);
    ok(bk_stream_write(h, 0, samples, x, err), err);
    bk_status st = bk_block_pass(e->t.ctx, e->t.b, h, h, err);
    if (!st) ok(bk_stream_read(h, 0, samples, x, err), err);
    bk_stream_free(h);
    return st;
}

START_TEST(one_by_one_is_all_at_once)
{
    env e = {0};
    open_env(&e, _i);
    bk_error *err = &e.t.err;
    int64_t c = e.t.b->cfg.hidden;
    float want[TOKENS * 64], got[TOKENS * 64];
    ck_assert_int_eq(c, 64);
    bk_tiny_fill(want, TOKENS * c, c, 4);
    memcpy(got, want, sizeof got);
    bk_ctx_measure(e.t.ctx);
    ok(bk_block_pass_measure(e.t.ctx, e.t.b, 1, TOKENS), err);
    ok(bk_cache_measure(e.t.ctx, e.t.b, e.cache, FIRST), err);
    ok(bk_ctx_commit(e.t.ctx), err);
    ok(run(&e, want, 1, TOKENS), err);
    e.t.b->past = bk_cache_layer(e.cache, 1);
    ok(run(&e, got, 1, FIRST), err);
    for (int64_t t = FIRST; t < TOKENS; t++) ok(run(&e, got + t * c, 1, 1), err);
    for (int64_t i = 0; i < TOKENS * c; i++)
        ck_assert_msg(fabs((double)got[i] - (double)want[i]) <= (cases[_i].cpu ? 1e-4 : 1e-6), "%s: token %lld, channel %lld: %g, want %g",
                      cases[_i].name, (long long)(i / c), (long long)(i % c), (double)got[i], (double)want[i]);
    close_env(&e);
}
END_TEST

/* What a cache cannot stand for: case, samples, tokens behind the beginning. */
static const struct {
    int at;
    int64_t first, samples, tokens;
    const char *says;
} refused[] = {{0, FIRST, 2, 1, "one sequence"}, {2, FIRST, 1, 2, "one token at a time"}, {0, TOKENS, 1, 1, "room for 13 tokens"}};

START_TEST(what_does_not_fit_is_refused)
{
    env e = {0};
    open_env(&e, refused[_i].at);
    float x[TOKENS * 64];
    bk_tiny_fill(x, TOKENS * 64, 64, 4);
    bk_ctx_measure(e.t.ctx);
    ok(bk_block_pass_measure(e.t.ctx, e.t.b, 1, TOKENS), &e.t.err);
    ok(bk_ctx_commit(e.t.ctx), &e.t.err);
    e.t.b->past = bk_cache_layer(e.cache, 0);
    ok(run(&e, x, 1, refused[_i].first), &e.t.err);
    ck_assert_int_eq(run(&e, x, refused[_i].samples, refused[_i].tokens), BK_EINVAL);
    ck_assert_msg(strstr(e.t.err.msg, refused[_i].says), "%s", e.t.err.msg);
    close_env(&e);
}
END_TEST

/* --- brick generate --- */

#define GENERATED 12

static const char prompt[] = "The blocks are";
static char dir[64], printed[1 << 16];

static void make_model(const char *shape)
{
    bk_error err = {0};
    bk_config c;
    bk_synth *s;
    strcpy(dir, "/tmp/bk_cache_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ok(bk_synth_shape(shape, &c, &err), &err);
    ok(bk_synth_create(&c, 7, &s, &err), &err);
    ok(bk_synth_write(s, dir, 0, &err), &err);
    bk_synth_free(s);
}

/* The ids that the verb prints. */
static bk_json *generated(const char *prefix)
{
    char count[8], *argv[] = {"generate", "--model", dir, "--prompt", (char *)prompt, "--tokens", count, "--prefix", (char *)prefix,
                              "--threads", "1", "--json", NULL};
    char file[] = "/tmp/bk_cache_out_XXXXXX";
    bk_error err = {0};
    bk_json *o;
    snprintf(count, sizeof count, "%d", GENERATED);
    int to = mkstemp(file), kept = dup(1);
    ck_assert_int_ge(to, 0);
    unlink(file);
    dup2(to, 1);
    int code = bk_verb_generate(12, argv);
    fflush(stdout);
    dup2(kept, 1);
    ssize_t n = pread(to, printed, sizeof printed - 1, 0);
    close(to);
    ck_assert_int_eq(code, 0);
    ck_assert_int_gt(n, 0);
    ok(bk_json_parse(printed, (size_t)n, "output", &o, &err), &err);
    return o;
}

/* The next id by running the whole sequence. */
static int32_t next_id(bk_runner *r, const bk_lab *lab, const int32_t *ids, int64_t n)
{
    bk_error err = {0};
    const bk_config *c = bk_source_config(r->src);
    bk_block *b;
    bk_stream *h;
    bk_ctx *ctx = bk_ctx_new(lab->be, &err);
    float *x = malloc((size_t)(n * c->hidden + c->vocab) * sizeof *x), *logits = x + n * c->hidden;
    ck_assert(ctx && x);
    ok(bk_runner_block(r, n, &b, &err), &err);
    ok(bk_stream_create(&h, 1, n, c->hidden, &err), &err);
    ok(bk_embed_stream(r->src, ids, h, &err), &err);
    bk_ctx_measure(ctx);
    ok(bk_block_pass_measure(ctx, b, 1, n), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (int64_t l = 0; l < c->layers; l++) {
        ok(bk_runner_load(r, l, b, &err), &err);
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
    }
    ok(bk_stream_read(h, 0, 1, x, &err), &err);
    ok(bk_logits(ctx, r->src, x + (n - 1) * c->hidden, 1, logits, &err), &err);
    int32_t best = 0;
    for (int32_t i = 0; i < bk_tokenizer_size(lab->tok); i++)
        if (logits[i] > logits[best]) best = i;
    bk_stream_free(h);
    bk_block_free(b);
    bk_ctx_free(ctx);
    free(x);
    return best;
}

static const struct {
    const char *shape, *prefix;
} models[] = {{"tiny", "none"}, {"tiny", "5,0"}, {"tiny,window=6", "5"}, {"qwen3,layers=2", "none"}};

START_TEST(generate_is_the_whole_sequence_every_time)
{
    bk_error err = {0};
    bk_lab lab;
    bk_runner r;
    int32_t *begin, ids[256];
    int64_t n;
    make_model(models[_i].shape);
    bk_json *o = generated(models[_i].prefix);
    const bk_json *list = bk_json_get(o, "ids");
    ok(bk_lab_open(&lab, dir, bk_backend_cpu(), &err), &err);
    ok(bk_runner_open(&r, &lab, &(bk_runner_choice){.prefix = models[_i].prefix, .seed = 2}, &err), &err);
    ok(bk_tokenizer_encode(lab.tok, prompt, strlen(prompt), false, &begin, &n, &err), &err);
    bool bos = !strcmp(models[_i].prefix, "none") && bk_tokenizer_add_bos(lab.tok);
    if (bos) ids[0] = (int32_t)bk_tokenizer_bos(lab.tok);
    memcpy(ids + bos, begin, (size_t)n * sizeof *ids);
    n += bos;
    ck_assert_uint_gt(bk_json_size(list), 0);
    for (size_t i = 0; i < bk_json_size(list); i++, n++) {
        ids[n] = next_id(&r, &lab, ids, n);
        ck_assert_msg(bk_json_int(bk_json_at(list, i), -1) == ids[n], "token %zu of %s", i, models[_i].shape);
    }
    free(begin);
    bk_json_free(o);
    bk_runner_close(&r);
    bk_lab_close(&lab);
    ok(bk_remove_tree(dir, &err), &err);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache");
    TCase *b = tcase_create("block"), *g = tcase_create("generate");
    tcase_add_loop_test(b, one_by_one_is_all_at_once, 0, sizeof cases / sizeof cases[0]);
    tcase_add_loop_test(b, what_does_not_fit_is_refused, 0, sizeof refused / sizeof refused[0]);
    tcase_add_loop_test(g, generate_is_the_whole_sequence_every_time, 0, sizeof models / sizeof models[0]);
    suite_add_tcase(s, b);
    suite_add_tcase(s, g);
    return run_suite(s);
}
