/* Models run block by block: logits and perplexity against a plain computation, streams, stops and errors. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    bk_block_weights w;
    int loads;
} model;

static void open_model(model *m, const bk_config *c, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    *m = (model){0};
    bk_tiny_model_write(c, 5, m->dir);
    ok(bk_model_open(m->dir, &m->m, &err), &err);
    ok(bk_source_open(m->m, spec, &m->src, &err), &err);
    ok(bk_weights_alloc(bk_source_config(m->src), &m->w, &err), &err);
}

static void close_model(model *m)
{
    bk_weights_free(&m->w);
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
}

static bk_status load(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    model *m = user;
    m->loads++;
    BK_TRY(bk_source_block(m->src, layer, &m->w, err));
    return bk_block_load(b, &m->w, err);
}

static bk_block *new_block(const bk_backend *be, const model *m, int64_t tokens)
{
    bk_error err = {0};
    bk_block *b;
    bk_block_options opt = {.r3 = bk_source_r3(m->src), .r4 = bk_source_r4(m->src), .tokens = tokens};
    ok(bk_block_create(&b, be, bk_source_config(m->src), &opt, &err), &err);
    return b;
}

static bk_config variant(int i)
{
    bk_config c = bk_tiny_config();
    if (i == 1) c.tied = true;
    if (i == 2) {
        strcpy(c.arch, "qwen3");
        c.qkv_bias = c.qk_norm = true;
        c.head_dim = 32;
    }
    if (i == 3) c.kv_heads = 1;
    return c;
}
enum { VARIANTS = 4 };

static void make_ids(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)((i * i + 17 * i + i / 7) % 256);
}

static const bk_rotation_spec rotated = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 3};

static void check_perplexity(const bk_backend *be, int which, const bk_rotation_spec *spec, int64_t samples, int64_t tokens, double tol)
{
    bk_error err = {0};
    bk_config c = variant(which);
    model m;
    bk_ppl ppl;
    int32_t *ids = malloc((size_t)(samples * tokens) * sizeof *ids);
    double want = 0;
    open_model(&m, &c, spec);
    make_ids(ids, samples * tokens);
    for (int64_t s = 0; s < samples; s++) {
        double *logits = bk_plain_logits(m.m, ids + s * tokens, tokens, NULL);
        want += bk_plain_nll(logits, ids + s * tokens, tokens, c.vocab) / (double)samples;
        free(logits);
    }
    bk_block *b = new_block(be, &m, tokens);
    ok(bk_perplexity(m.src, b, &(bk_loader){load, &m}, ids, samples, tokens, NULL, &ppl, &err), &err);
    ck_assert_msg(fabs(ppl.nll - want) <= tol * want, "%s: nll %.12g, not %.12g", be->name, ppl.nll, want);
    ck_assert(ppl.ppl == exp(ppl.nll));
    ck_assert_int_eq(ppl.tokens, samples * (tokens - 1));
    ck_assert_int_eq(m.loads, c.layers); /* each block once, for all samples */
    bk_block_free(b);
    free(ids);
    close_model(&m);
}

START_TEST(perplexity_on_ref)
{
    check_perplexity(bk_backend_ref(BK_F64), _i, NULL, 3, 11, 1e-6); /* the streams between blocks are f32 */
}
END_TEST

START_TEST(perplexity_on_cpu)
{
    check_perplexity(bk_backend_cpu(), _i, NULL, 3, 11, 1e-6);
}
END_TEST

START_TEST(perplexity_of_a_rotated_model)
{
    check_perplexity(bk_backend_cpu(), _i, &rotated, 3, 11, 1e-5);
}
END_TEST

START_TEST(perplexity_on_guard)
{
    check_perplexity(bk_backend_guard(BK_F32), 2, &rotated, 2, 5, 1e-5);
}
END_TEST

/* Ragged batches (2048 / 300 = 6 samples, then 2) and chunks of logits (256 positions, then 43). */
START_TEST(perplexity_of_long_windows)
{
    check_perplexity(bk_backend_cpu(), 0, NULL, 8, 300, 1e-6);
}
END_TEST

START_TEST(one_window_of_two_tokens)
{
    check_perplexity(bk_backend_cpu(), 0, NULL, 1, 2, 1e-6);
}
END_TEST

START_TEST(windows_without_a_scored_token_are_refused)
{
    bk_error err = {0};
    bk_config c = variant(0);
    model m;
    bk_ppl ppl;
    int32_t ids[4] = {1, 2, 3, 4};
    open_model(&m, &c, NULL);
    bk_block *b = new_block(bk_backend_cpu(), &m, 4);
    ck_assert_int_eq(bk_perplexity(m.src, b, &(bk_loader){load, &m}, ids, 4, 1, NULL, &ppl, &err), BK_EINVAL);
    bk_error_clear(&err);
    ids[2] = 256;
    ck_assert_int_eq(bk_perplexity(m.src, b, &(bk_loader){load, &m}, ids, 1, 4, NULL, &ppl, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "256"));
    bk_block_free(b);
    close_model(&m);
}
END_TEST

START_TEST(logits_are_those_of_the_plain_model)
{
    enum { T = 9 };
    bk_error err = {0};
    bk_config c = variant(_i);
    const bk_backend *be = bk_backend_cpu();
    model m;
    int32_t ids[T];
    bk_stream *h;
    make_ids(ids, T);
    open_model(&m, &c, NULL);
    double *hidden = malloc((size_t)((c.layers + 1) * T * c.hidden) * sizeof *hidden), *want = bk_plain_logits(m.m, ids, T, hidden);
    bk_block *b = new_block(be, &m, T);
    bk_ctx *ctx = bk_ctx_new(be, &err);
    ok(bk_stream_create(&h, 1, T, c.hidden, &err), &err);
    ok(bk_embed_stream(m.src, ids, h, &err), &err);
    ok(bk_block_pass_measure(ctx, b, 1, T), &err);
    ok(bk_ctx_commit(ctx), &err);
    float *x = malloc((size_t)(T * c.hidden) * sizeof *x), *got = malloc((size_t)(T * c.vocab) * sizeof *got);
    for (int64_t l = 0; l <= c.layers; l++) {
        ok(bk_stream_read(h, 0, 1, x, &err), &err);
        for (int64_t i = 0; i < T * c.hidden; i++)
            ck_assert_msg(fabs((double)x[i] - hidden[l * T * c.hidden + i]) < 2e-5, "before block %d: %g, not %g", (int)l, (double)x[i],
                          hidden[l * T * c.hidden + i]);
        if (l == c.layers) break;
        ok(load(&m, l, b, &err), &err);
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
    }
    ok(bk_logits(ctx, m.src, x, T, got, &err), &err);
    for (int64_t i = 0; i < T * c.vocab; i++) ck_assert_msg(fabs((double)got[i] - want[i]) < 1e-4, "logit %d: %g, not %g", (int)i, (double)got[i], want[i]);
    ok(bk_logits(ctx, m.src, x + (T - 1) * c.hidden, 1, x, &err), &err); /* one position, as when text is generated */
    for (int64_t i = 0; i < 50; i++) ck_assert(fabs((double)x[i] - want[(T - 1) * c.vocab + i]) < 1e-4);
    free(x), free(got), free(want), free(hidden);
    bk_stream_free(h);
    bk_ctx_free(ctx);
    bk_block_free(b);
    close_model(&m);
}
END_TEST

/* --- watching --- */

typedef struct watched {
    int64_t calls, total, stop_at;
} watched;

static bk_status watch_step(void *user, int64_t done, int64_t total, bk_error *err)
{
    watched *w = user;
    ck_assert_int_eq(done, w->calls);
    w->calls++;
    w->total = total;
    return done == w->stop_at ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(passes_are_watched_and_stopped)
{
    bk_config c = variant(0);
    model m;
    bk_ppl ppl;
    int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    open_model(&m, &c, NULL);
    bk_block *b = new_block(bk_backend_cpu(), &m, 3);
    for (int64_t stop = -1; stop < 2; stop++) {
        bk_error err = {0};
        watched w = {.stop_at = stop};
        bk_status st = bk_perplexity(m.src, b, &(bk_loader){load, &m}, ids, 2, 3, &(bk_watch){watch_step, &w}, &ppl, &err);
        ck_assert_int_eq(st, stop < 0 ? BK_OK : BK_ECANCEL);
        ck_assert_int_eq(w.total, c.layers);
        ck_assert_int_eq(w.calls, stop < 0 ? c.layers + 1 : stop + 1);
    }
    bk_block_free(b);
    close_model(&m);
}
END_TEST

START_TEST(a_block_that_breaks_is_named)
{
    bk_config c = variant(0);
    model m;
    bk_ppl ppl;
    bk_error err = {0};
    int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    open_model(&m, &c, NULL);
    bk_block *b = new_block(bk_backend_cpu(), &m, 2); /* shorter than the windows */
    ck_assert_int_ne(bk_perplexity(m.src, b, &(bk_loader){load, &m}, ids, 2, 3, NULL, &ppl, &err), BK_OK);
    ck_assert_int_ne(err.code, BK_OK);
    bk_block_free(b);
    close_model(&m);
}
END_TEST

/* --- streams --- */

static void check_stream(int64_t samples, int64_t tokens, int64_t width)
{
    bk_error err = {0};
    bk_stream *s;
    float a[64], b[64];
    int64_t size = tokens * width;
    ck_assert_int_le(2 * size, 64);
    ok(bk_stream_create(&s, samples, tokens, width, &err), &err);
    ck_assert(bk_stream_samples(s) == samples && bk_stream_tokens(s) == tokens && bk_stream_width(s) == width);
    for (int i = 0; i < 64; i++) a[i] = (float)i;
    ok(bk_stream_write(s, samples - 2, 2, a, &err), &err);
    ok(bk_stream_read(s, samples - 1, 1, b, &err), &err);
    ck_assert(!memcmp(b, a + size, (size_t)size * sizeof *a));
    ck_assert_int_eq(bk_stream_read(s, samples - 1, 2, b, &err), BK_EINVAL);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_stream_write(s, -1, 1, a, &err), BK_EINVAL);
    bk_stream_free(s);
}

START_TEST(streams_in_memory_and_in_files)
{
    check_stream(4, 2, 8);
    check_stream((int64_t)BK_STREAM_MEMORY / 64 + 2, 2, 8);
}
END_TEST

START_TEST(a_stream_without_room_says_where)
{
    bk_error err = {0};
    bk_stream *s;
    setenv("TMPDIR", "/nowhere", 1);
    ck_assert_int_ne(bk_stream_create(&s, (int64_t)BK_STREAM_MEMORY / 64 + 2, 2, 8, &err), BK_OK);
    ck_assert_ptr_null(s);
    ck_assert_ptr_nonnull(strstr(err.msg, "TMPDIR"));
    bk_error_clear(&err);
    ok(bk_stream_create(&s, 4, 2, 8, &err), &err); /* small ones need no file */
    bk_stream_free(s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pass");
    TCase *t = tcase_create("models");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, perplexity_on_ref, 0, VARIANTS);
    tcase_add_loop_test(t, perplexity_on_cpu, 0, VARIANTS);
    tcase_add_loop_test(t, perplexity_of_a_rotated_model, 0, VARIANTS);
    tcase_add_test(t, perplexity_on_guard);
    tcase_add_test(t, perplexity_of_long_windows);
    tcase_add_test(t, one_window_of_two_tokens);
    tcase_add_test(t, windows_without_a_scored_token_are_refused);
    tcase_add_loop_test(t, logits_are_those_of_the_plain_model, 0, VARIANTS);
    tcase_add_test(t, passes_are_watched_and_stopped);
    tcase_add_test(t, a_block_that_breaks_is_named);
    suite_add_tcase(s, t);
    t = tcase_create("streams");
    tcase_add_test(t, streams_in_memory_and_in_files);
    tcase_add_test(t, a_stream_without_room_says_where);
    suite_add_tcase(s, t);
    return run_suite(s);
}
