/* Statistics of OffQ against a plain computation. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offq_model.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/suite.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_logits.h"

/* All values of some sites in f64, gains still in them. */
typedef struct record {
    int64_t layer;
    double *at[8][BK_SITE_COUNT]; /* [OFFQ_SEQUENCES, OFFQ_TOKENS, width] */
    bk_error *err;
} record;

static void record_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    record *r = user;
    if (bk_ctx_measuring(ctx)) return;
    double *to = r->at[r->layer][site] = offq_zeros(bk_numel(x), sizeof *to);
    ok(bk_read_f64(bk_ctx_backend(ctx), x, 0, to, bk_numel(x), r->err), r->err);
}

static void free_record(record *r)
{
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < BK_SITE_COUNT; i++) free(r->at[l][i]);
}

/* Runs the model as it is, in one batch, and takes the gains out of what the norms gave. */
static record run_plainly(const offq_model *t, const bk_prefix *prefix)
{
    bk_error err = {0};
    record r = {.err = &err};
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_block *b;
    bk_stream *h;
    bk_block_weights w;
    bk_ctx *ctx = bk_ctx_new(be, &err);
    int64_t c = t->c.hidden;
    ck_assert_int_ge(bk_pass_batch(OFFQ_SEQUENCES, OFFQ_TOKENS), OFFQ_SEQUENCES);
    ok(bk_block_create(&b, be, &t->c, &(bk_block_options){.prefix_len = prefix ? prefix->n : 0, .tokens = OFFQ_TOKENS}, &err), &err);
    ok(bk_weights_alloc(&t->c, &w, &err), &err);
    ok(bk_stream_create(&h, OFFQ_SEQUENCES, OFFQ_TOKENS, c, &err), &err);
    ok(bk_embed_stream(t->src, t->ids, h, &err), &err);
    b->tap = record_tap;
    b->tap_user = &r;
    ok(bk_block_pass_measure(ctx, b, OFFQ_SEQUENCES, OFFQ_TOKENS), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (r.layer = 0; r.layer < t->c.layers; r.layer++) {
        ok(bk_weights_load(t->m, r.layer, &w, &err), &err);
        ok(bk_block_load(b, &w, &err), &err);
        if (prefix) ok(bk_block_set_prefix(b, bk_prefix_k(prefix, r.layer), bk_prefix_v(prefix, r.layer), &err), &err);
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
        for (int64_t i = 0; i < OFFQ_SEQUENCES * OFFQ_TOKENS * c; i++) {
            r.at[r.layer][BK_SITE_ATTN_IN][i] /= (double)w.norm[BK_NORM_ATTN][i % c];
            r.at[r.layer][BK_SITE_MLP_IN][i] /= (double)w.norm[BK_NORM_MLP][i % c];
        }
    }
    bk_weights_free(&w);
    bk_stream_free(h);
    bk_block_free(b);
    bk_ctx_free(ctx);
    r.err = NULL;
    return r;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

/* The row of n values with the largest |x| among `rows` that lie `stride` apart. */
static const double *top_row(const double *x, int64_t rows, int64_t stride, int64_t n)
{
    const double *top = x;
    for (int64_t r = 1; r < rows; r++)
        if (largest(x + r * stride, n) > largest(top, n)) top = x + r * stride;
    return top;
}

/* By definition, from a record. */
static bk_offq_stats plain_stats(const offq_model *t, const record *r, bk_offq_scope scope)
{
    const bk_config *c = &t->c;
    int64_t n = c->hidden, d = c->head_dim, width = c->kv_heads * d, rows = 2 * c->layers * OFFQ_SEQUENCES;
    bk_offq_stats s = {.top = offq_zeros(n * n, sizeof(double)), .all = offq_zeros(n * n, sizeof(double)), .key = offq_zeros(c->layers * width * d, sizeof(double)),
                       .spikiness = offq_zeros(c->layers * c->kv_heads, sizeof(double)), .down = offq_zeros(c->layers * c->inter, sizeof(float))};
    for (int64_t q = 0; q < OFFQ_SEQUENCES; q++) {
        const double *best = NULL;
        for (int64_t l = 0; l < c->layers; l++) {
            for (int site = 0; site < 2; site++) {
                const double *x = r->at[l][site ? BK_SITE_MLP_IN : BK_SITE_ATTN_IN] + q * OFFQ_TOKENS * n, *top = top_row(x, OFFQ_TOKENS, n, n);
                for (int64_t k = 0; k < OFFQ_TOKENS; k++) offq_add_outer(s.all, x + k * n, n, 1.0 / (double)(rows * OFFQ_TOKENS));
                if (scope == BK_OFFQ_TOKEN_PER_SITE) offq_add_outer(s.top, top, n, 1.0 / (double)rows);
                if (!best || largest(top, n) > largest(best, n)) best = top;
            }
            for (int64_t h = 0; h < c->kv_heads; h++) {
                const double *k = top_row(r->at[l][BK_SITE_KEY] + q * OFFQ_TOKENS * width + h * d, OFFQ_TOKENS, width, d);
                double square = 0;
                offq_add_outer(s.key + (l * c->kv_heads + h) * d * d, k, d, 1.0 / OFFQ_SEQUENCES);
                for (int64_t i = 0; i < d; i++) square += k[i] * k[i];
                s.spikiness[l * c->kv_heads + h] += largest(k, d) * sqrt((double)d / square) / OFFQ_SEQUENCES;
            }
        }
        if (scope == BK_OFFQ_TOKEN_PER_SEQUENCE) offq_add_outer(s.top, best, n, 1.0 / OFFQ_SEQUENCES);
    }
    for (int64_t l = 0; l < c->layers; l++)
        for (int64_t i = 0; i < OFFQ_SEQUENCES * OFFQ_TOKENS * c->inter; i++)
            s.down[l * c->inter + i % c->inter] = fmaxf(s.down[l * c->inter + i % c->inter], (float)fabs(r->at[l][BK_SITE_DOWN_RAW][i]));
    return s;
}

static void check_stats(const bk_backend *be, int shape, bk_offq_scope scope, bool behind_prefix, double tol)
{
    static const int32_t prefix_ids[2] = {7, 1};
    bk_config c = offq_config(shape);
    bk_error err = {0};
    offq_model t;
    bk_prefix p = {0};
    offq_model_open(&t, &c, NULL);
    if (behind_prefix) ok(bk_prefix_compute(bk_backend_ref(BK_F64), t.src, prefix_ids, 2, &p, &err), &err);
    record r = run_plainly(&t, behind_prefix ? &p : NULL);
    bk_offq_stats want = plain_stats(&t, &r, scope),
                  got = offq_measure(be, &t, behind_prefix ? &p : NULL,
                                &(bk_offq_options){.scope = scope, .concentration = true});
    int64_t n = c.hidden, heads = c.layers * c.kv_heads;
    ck_assert(got.layers == c.layers && got.hidden == n && got.inter == c.inter && got.sequences == OFFQ_SEQUENCES);
    offq_same(got.top, want.top, n * n, tol, "top tokens");
    offq_same(got.all, want.all, n * n, tol, "all tokens");
    offq_same(got.key, want.key, heads * c.head_dim * c.head_dim, tol, "keys");
    offq_same(got.spikiness, want.spikiness, heads, tol, "spikiness");
    for (int64_t i = 0; i < c.layers * c.inter; i++) ck_assert(fabsf(got.down[i] - want.down[i]) <= (float)tol * (want.down[i] + 1));
    bk_offq_stats_free(&got);
    bk_offq_stats_free(&want);
    free_record(&r);
    bk_prefix_free(&p);
    offq_model_close(&t);
}

START_TEST(statistics_are_those_of_the_definition)
{
    check_stats(bk_backend_ref(BK_F64), _i, BK_OFFQ_TOKEN_PER_SITE, false, 1e-6); /* hidden states between blocks are f32 */
}
END_TEST

START_TEST(statistics_of_one_token_per_sequence)
{
    check_stats(bk_backend_ref(BK_F64), _i, BK_OFFQ_TOKEN_PER_SEQUENCE, false, 1e-6);
}
END_TEST

START_TEST(statistics_behind_a_prefix)
{
    check_stats(bk_backend_ref(BK_F64), 0, BK_OFFQ_TOKEN_PER_SITE, true, 1e-6);
}
END_TEST

START_TEST(statistics_on_other_backends)
{
    check_stats(_i ? bk_backend_guard(BK_F32) : bk_backend_cpu(), 1, BK_OFFQ_TOKEN_PER_SITE, false, 2e-5);
}
END_TEST

START_TEST(covariance_of_all_tokens_only_where_it_is_used)
{
    const bk_offq_options o[] = {{.zigzag = true},
                                 {.tail = 1e-6},
                                 {.score = BK_OFFQ_VARIANCE},
                                 {.basis = BK_OFFQ_ALL_TOKENS},
                                 {.concentration = true}};
    bk_config c = offq_config(1);
    offq_model t;
    offq_model_open(&t, &c, NULL);
    for (int i = 0; i < 5; i++) {
        bk_offq_stats s = offq_measure(bk_backend_cpu(), &t, NULL, &o[i]);
        ck_assert((s.all != NULL) == (i > 0));
        bk_offq_stats_free(&s);
    }
    offq_model_close(&t);
}
END_TEST

/* Sequences that do not fit one batch give the same picks. */
START_TEST(many_sequences_are_many_batches)
{
    enum { N = 40, T = 64 };
    bk_config c = offq_config(0);
    bk_error err = {0};
    offq_model t;
    bk_offq_stats s, first;
    static int32_t ids[N * T];
    ck_assert_int_lt(bk_pass_batch(N, T), N);
    offq_model_open(&t, &c, NULL);
    for (int i = 0; i < N * T; i++) ids[i] = (int32_t)(i % T * 3 % 40); /* all sequences are the same */
    ok(bk_offq_measure(bk_backend_cpu(), t.src, ids, N, T, NULL, &(bk_offq_options){.seed = 1}, NULL, &s, &err), &err);
    ok(bk_offq_measure(bk_backend_cpu(), t.src, ids, 1, T, NULL, &(bk_offq_options){.seed = 1}, NULL, &first, &err), &err);
    offq_same(s.top, first.top, c.hidden * c.hidden, 1e-6, "top tokens");
    offq_same(s.key, first.key, c.layers * c.kv_heads * c.head_dim * c.head_dim, 1e-6, "keys");
    bk_offq_stats_free(&s);
    bk_offq_stats_free(&first);
    offq_model_close(&t);
}
END_TEST

START_TEST(a_value_that_is_not_finite_is_named)
{
    bk_config c = offq_config(0);
    bk_error err = {0};
    bk_offq_stats s;
    offq_model t;
    bk_fitted *f = bk_tiny_fitted(&c, 0, 1);
    ok(bk_fitted_add(f, BK_FITTED_SCALE_DOWN_IN, &err), &err);
    f->scale_down_in[c.inter + 5] = 1e-44f; /* of block 1: rows of up beyond f32 */
    offq_model_open(&t, &c, &(bk_rotation_spec){.fitted = f});
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, OFFQ_SEQUENCES, OFFQ_TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, NULL, &s, &err),
                     BK_ENUMERIC);
    ck_assert_msg(strstr(err.msg, "block 1: OffQ: site down_raw, sequence 0, token 0, channel 5") != NULL, "%s", err.msg);
    ck_assert_ptr_null(s.top);
    offq_model_close(&t);
    bk_fitted_free(f);
}
END_TEST

START_TEST(a_rotated_model_is_refused)
{
    static const struct {
        bk_rotation_spec spec;
        const char *name;
    } bad[] = {{{.r1 = true}, "r1"}, {{.r3 = true}, "r3"}};
    bk_config c = offq_config(0);
    bk_error err = {0};
    bk_offq_stats s;
    offq_model t;
    offq_model_open(&t, &c, &bad[_i].spec);
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, OFFQ_SEQUENCES, OFFQ_TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, NULL, &s, &err),
                     BK_EINVAL);
    ck_assert_msg(strstr(err.msg, bad[_i].name) != NULL, "%s", err.msg);
    offq_model_close(&t);
}
END_TEST

static bk_status stop(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)total;
    return done == 1 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(the_pass_can_be_stopped)
{
    bk_config c = offq_config(0);
    bk_error err = {0};
    bk_offq_stats s;
    offq_model t;
    offq_model_open(&t, &c, NULL);
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, OFFQ_SEQUENCES, OFFQ_TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, &(bk_watch){stop, NULL}, &s, &err),
                     BK_ECANCEL);
    ck_assert_ptr_null(s.down);
    offq_model_close(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offq_stats");
    TCase *tc = tcase_create("statistics");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, statistics_are_those_of_the_definition, 0, OFFQ_SHAPES);
    tcase_add_loop_test(tc, statistics_of_one_token_per_sequence, 0, OFFQ_SHAPES);
    tcase_add_test(tc, statistics_behind_a_prefix);
    tcase_add_loop_test(tc, statistics_on_other_backends, 0, 2);
    tcase_add_test(tc, covariance_of_all_tokens_only_where_it_is_used);
    tcase_add_test(tc, many_sequences_are_many_batches);
    tcase_add_test(tc, a_value_that_is_not_finite_is_named);
    tcase_add_loop_test(tc, a_rotated_model_is_refused, 0, 2);
    tcase_add_test(tc, the_pass_can_be_stopped);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
