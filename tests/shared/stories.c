/* stories260K, a small real model, as an HF folder, in shards and as GGUF: logits, hidden states, ids and perplexity of SHARED/golden/stories.h5.
 * Built and run by stories.sh. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "io/file.h"
#include "io/tokenizer.h"
#include "tests/h5_golden.h"

enum { FORMS = 3, GGUF = 2 };
static const char *const forms[FORMS] = {"data/stories260K", "data/stories260K_sharded", "data/stories260K/stories260K.gguf"};

static void ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s", bk_status_name(st ? st : err->code), err->msg);
}

static const char *shared(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("SHARED"), name);
    return path;
}

typedef struct model {
    bk_model *m;
    bk_source *src;
    bk_block_weights w;
    bk_block *b;
    bk_ctx *ctx;
    bk_error err;
} model;

static void open_model(model *m, int form, const bk_backend *be, const bk_rotation_spec *spec, int64_t tokens)
{
    *m = (model){0};
    ok(bk_model_open(shared(forms[form]), &m->m, &m->err), &m->err);
    ok(bk_source_open(m->m, spec, &m->src, &m->err), &m->err);
    ok(bk_weights_alloc(bk_source_config(m->src), &m->w, &m->err), &m->err);
    bk_block_options opt = {.r3 = bk_source_r3(m->src), .r4 = bk_source_r4(m->src), .tokens = tokens};
    ok(bk_block_create(&m->b, be, bk_source_config(m->src), &opt, &m->err), &m->err);
    ck_assert_ptr_nonnull(m->ctx = bk_ctx_new(be, &m->err));
}

static void close_model(model *m)
{
    bk_ctx_free(m->ctx);
    bk_block_free(m->b);
    bk_weights_free(&m->w);
    bk_source_close(m->src);
    bk_model_close(m->m);
}

static bk_status load(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    model *m = user;
    BK_TRY(bk_source_block(m->src, layer, &m->w, err));
    return bk_block_load(b, &m->w, err);
}

static void near(const char *what, const float *got, const double *want, int64_t n, double tol)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - want[i]) <= tol, "%s[%d] is %.7g, not %.7g", what, (int)i, (double)got[i], want[i]);
}

static void check_sequence(int form, const bk_backend *be, const bk_rotation_spec *spec, int sequence)
{
    char path[32];
    snprintf(path, sizeof path, "sequence%d", sequence);
    bk_golden *g = bk_golden_open(shared("golden/stories.h5"));
    int64_t n = bk_golden_count(g, "%s/ids", path);
    model m;
    bk_stream *h;
    open_model(&m, form, be, spec, n);
    const bk_config *c = bk_source_config(m.src);
    float *x = malloc((size_t)(n * c->hidden) * sizeof *x), *logits = malloc((size_t)(n * c->vocab) * sizeof *logits);
    ck_assert(x && logits);
    ok(bk_stream_create(&h, 1, n, c->hidden, &m.err), &m.err);
    ok(bk_embed_stream(m.src, bk_golden_i32(g, "%s/ids", path), h, &m.err), &m.err);
    ok(bk_block_pass_measure(m.ctx, m.b, 1, n), &m.err);
    ok(bk_ctx_commit(m.ctx), &m.err);
    const double *hidden = bk_golden_f64(g, "%s/hidden", path);
    for (int64_t l = 0; l <= c->layers; l++) {
        ok(bk_stream_read(h, 0, 1, x, &m.err), &m.err);
        if (!spec) near("hidden", x, hidden + l * n * c->hidden, n * c->hidden, 1e-4);
        if (l == c->layers) break;
        ok(load(&m, l, m.b, &m.err), &m.err);
        ok(bk_block_pass(m.ctx, m.b, h, h, &m.err), &m.err);
    }
    ok(bk_logits(m.ctx, m.src, x, n, logits, &m.err), &m.err);
    near("logit", logits, bk_golden_f64(g, "%s/logits", path), n * c->vocab, spec ? 2e-3 : 2e-4);
    free(x), free(logits);
    bk_stream_free(h);
    close_model(&m);
    bk_golden_close(g);
}

START_TEST(logits_and_hidden_states)
{
    check_sequence(_i / 2, bk_backend_cpu(), NULL, _i % 2);
}
END_TEST

START_TEST(logits_on_ref)
{
    check_sequence(GGUF, bk_backend_ref(BK_F64), NULL, _i);
}
END_TEST

START_TEST(logits_when_rotated)
{
    check_sequence(_i, bk_backend_cpu(), &(bk_rotation_spec){.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 2}, 0);
}
END_TEST

START_TEST(ids_of_the_sentences)
{
    bk_golden *g = bk_golden_open(shared("golden/stories.h5"));
    bk_error err = {0};
    bk_model *m;
    bk_tokenizer *t;
    ok(bk_model_open(shared(forms[GGUF]), &m, &err), &err);
    ok(bk_tokenizer_from_gguf(bk_model_gguf(m), &t, &err), &err);
    for (int i = 0; i < 2; i++) {
        int64_t len = bk_golden_count(g, "sequence%d/text", i), n, want = bk_golden_count(g, "sequence%d/ids", i);
        const int32_t *bytes = bk_golden_i32(g, "sequence%d/text", i);
        char text[256];
        ck_assert_int_le(len, 256);
        for (int64_t k = 0; k < len; k++) text[k] = (char)bytes[k];
        const int32_t *ids = bk_golden_i32(g, "sequence%d/ids", i);
        int32_t *got;
        ok(bk_tokenizer_encode(t, text, (size_t)len, false, &got, &n, &err), &err);
        ck_assert_int_eq(n + 1, want); /* BOS comes first there */
        ck_assert_int_eq(ids[0], bk_tokenizer_bos(t));
        for (int64_t k = 0; k < n; k++) ck_assert_msg(got[k] == ids[k + 1], "id %d is %d, not %d", (int)k, got[k], ids[k + 1]);
        free(got);
    }
    bk_tokenizer_free(t);
    bk_model_close(m);
    bk_golden_close(g);
}
END_TEST

/* From the bytes of the text to the number. */
START_TEST(perplexity_of_a_text)
{
    bk_golden *g = bk_golden_open(shared("golden/stories.h5"));
    bk_tokenizer *t;
    model m;
    char *text;
    size_t len;
    int32_t *ids;
    int64_t n, windows = bk_golden_attr_i64(g, "windows", "perplexity"), tokens = bk_golden_attr_i64(g, "window_tokens", "perplexity");
    open_model(&m, GGUF, bk_backend_cpu(), NULL, tokens);
    ok(bk_tokenizer_from_gguf(bk_model_gguf(m.m), &t, &m.err), &m.err);
    ok(bk_file_slurp(shared("data/calib/tinystories_sample.txt"), 1 << 20, &text, &len, &m.err), &m.err);
    ok(bk_tokenizer_encode(t, text, len, false, &ids, &n, &m.err), &m.err);
    ck_assert_int_eq(n, bk_golden_attr_i64(g, "total_tokens", "perplexity"));
    const int32_t *want = bk_golden_i32(g, "perplexity/ids");
    for (int64_t i = 0; i < windows * tokens; i++) ck_assert_msg(ids[i] == want[i], "id %d is %d, not %d", (int)i, ids[i], want[i]);
    bk_ppl ppl;
    ok(bk_perplexity(m.src, m.b, &(bk_loader){load, &m}, ids, windows, tokens, NULL, &ppl, &m.err), &m.err);
    double nll = bk_golden_attr(g, "mean_nll", "perplexity"), value = bk_golden_attr(g, "perplexity", "perplexity");
    ck_assert_msg(fabs(ppl.nll - nll) <= 2e-5 * nll, "nll %.9g, not %.9g", ppl.nll, nll);
    ck_assert_msg(fabs(ppl.ppl - value) <= 4e-5 * value, "perplexity %.9g, not %.9g", ppl.ppl, value);
    ck_assert_int_eq(ppl.tokens, windows * (tokens - 1));
    free(ids), free(text);
    bk_tokenizer_free(t);
    close_model(&m);
    bk_golden_close(g);
}
END_TEST

int main(void)
{
    if (!getenv("SHARED")) {
        fprintf(stderr, "SHARED is not set\n");
        return 2;
    }
    Suite *s = suite_create("stories");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, logits_and_hidden_states, 0, 2 * FORMS);
    tcase_add_loop_test(t, logits_on_ref, 0, 2);
    tcase_add_loop_test(t, logits_when_rotated, 0, FORMS);
    tcase_add_test(t, ids_of_the_sentences);
    tcase_add_test(t, perplexity_of_a_text);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r), run = srunner_ntests_run(r);
    srunner_free(r);
    printf("%d passed, %d failed\n", run - failed, failed);
    return failed ? 1 : 0;
}
