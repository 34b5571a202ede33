/* A pass that ends at a site shows the tap what a whole one does, and nothing behind it. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/pass.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"

enum { SAMPLES = 3, TOKENS = 7, HIDDEN = 16 };

/* What the tap saw of the values at each site. */
typedef struct seen {
    int64_t n[BK_SITE_COUNT];
    double *at[BK_SITE_COUNT];
    bk_error *err;
} seen;

static void look(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    seen *s = user;
    int64_t n = bk_numel(x);
    if (bk_ctx_measuring(ctx)) return;
    s->at[site] = realloc(s->at[site], (size_t)(s->n[site] + n) * sizeof(double));
    ck_assert_ptr_nonnull(s->at[site]);
    ok(bk_read_f64(bk_ctx_backend(ctx), x, 0, s->at[site] + s->n[site], n, s->err), s->err);
    s->n[site] += n;
}

static void clear(seen *s)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) free(s->at[i]);
}

static seen pass_until(bk_tiny_block *t, bk_site_id site, const bk_stream *x)
{
    seen s = {.err = &t->err};
    t->b->tap = look;
    t->b->tap_user = &s;
    t->b->until = site;
    bk_ctx_measure(t->ctx);
    ok(bk_block_pass_measure(t->ctx, t->b, SAMPLES, TOKENS), &t->err);
    ok(bk_ctx_commit(t->ctx), &t->err);
    ok(bk_block_pass(t->ctx, t->b, x, NULL, &t->err), &t->err);
    return s;
}

static const bk_site_id sites[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};

START_TEST(a_pass_ends_where_it_is_told_to)
{
    const bk_config c = {.hidden = HIDDEN, .inter = 24, .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 8, .vocab = 8,
                         .max_positions = 32, .eps = 1e-5, .rope_theta = 1e4};
    const bk_block_quant quant = bk_tiny_quant("dynamic", 4, 4, true);
    bk_tiny_block t;
    bk_site_id end = sites[_i];
    bool ended = false;
    bk_tiny_block_open(&t, bk_backend_cpu(), &c, &(bk_block_options){.quant = &quant, .tokens = TOKENS, .prefix_len = 2}, 3);
    bk_block_quantize(t.b, true, true);
    bk_stream *x = bk_tiny_stream(SAMPLES, TOKENS, HIDDEN, 4);
    seen whole = pass_until(&t, BK_SITE_BLOCK_OUT, x), part = pass_until(&t, end, x);
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        bool due = part.n[i] > 0;
        ck_assert_msg(!due || (part.n[i] == whole.n[i] && !memcmp(part.at[i], whole.at[i], (size_t)part.n[i] * sizeof(double))),
                      "%s differs", bk_site_name[i]);
        ended = ended || (i == (int)end && due);
    }
    ck_assert_msg(ended && part.n[BK_SITE_BLOCK_OUT] == 0, "the pass to %s did not end there", bk_site_name[end]);
    for (size_t k = (size_t)_i + 1; k < sizeof sites / sizeof *sites; k++) ck_assert_int_eq(part.n[sites[k]], 0);
    clear(&whole);
    clear(&part);
    bk_stream_free(x);
    bk_tiny_block_close(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("block_until");
    TCase *tc = tcase_create("until");
    tcase_add_loop_test(tc, a_pass_ends_where_it_is_told_to, 0, sizeof sites / sizeof *sites);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
