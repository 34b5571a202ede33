/* OffQ: its statistics against a plain computation, its fit, and that the model stays the same. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/offq.h"
#include "quant/offset.h"
#include "tests/h5_golden.h"
#include "tests/plain_llama.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_logits.h"
#include "tests/tiny_model.h"

enum { SEQUENCES = 5, TOKENS = 12 };

static void ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s", bk_status_name(st ? st : err->code), err->msg);
}

static void *room(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

static const struct {
    const char *name, *arch;
    bk_config c;
} shapes[] = {
    {"grouped heads, biases, tied",
     "llama",
     {.hidden = 64,
      .inter = 96,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .tied = true}},
    {"q/k norm, head_dim that is not hidden / heads",
     "qwen3",
     {.hidden = 48, .inter = 72, .layers = 3, .heads = 3, .kv_heads = 1, .head_dim = 32, .qk_norm = true}},
    {"no matrix for the groups",
     "qwen2",
     {.hidden = 90, .inter = 172, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 30, .qkv_bias = true}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bk_config config_of(int i)
{
    bk_config c = shapes[i].c;
    strcpy(c.arch, shapes[i].arch);
    c.vocab = 40;
    c.max_positions = 64;
    c.eps = 1e-5;
    c.rope_theta = 1e4;
    return c;
}

/* A small model, open, and token ids. */
typedef struct model {
    bk_config c;
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    int32_t ids[SEQUENCES * TOKENS];
} model;

static void open_model(model *t, const bk_config *c, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    *t = (model){.c = *c};
    for (int i = 0; i < SEQUENCES * TOKENS; i++) t->ids[i] = (int32_t)((i * i + 3 * i + 1) % c->vocab);
    bk_tiny_model_write(c, 6, t->dir);
    ok(bk_model_open(t->dir, &t->m, &err), &err);
    ok(bk_source_open(t->m, spec, &t->src, &err), &err);
}

static void close_model(model *t)
{
    bk_source_close(t->src);
    bk_model_close(t->m);
    bk_tiny_model_remove(t->dir);
}

static bk_offq_stats measure(const bk_backend *be, const model *t, const bk_prefix *prefix, const bk_offq_options *o)
{
    bk_error err = {0};
    bk_offq_stats s;
    ok(bk_offq_measure(be, t->src, t->ids, SEQUENCES, TOKENS, prefix, o, NULL, &s, &err), &err);
    return s;
}

/* ---- statistics ---- */

/* All values of some sites in f64, gains still in them. */
typedef struct record {
    int64_t layer;
    double *at[8][BK_SITE_COUNT]; /* [SEQUENCES, TOKENS, width] */
    bk_error *err;
} record;

static void record_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    record *r = user;
    if (bk_ctx_measuring(ctx)) return;
    double *to = r->at[r->layer][site] = room(bk_numel(x), sizeof *to);
    ok(bk_read_f64(bk_ctx_backend(ctx), x, 0, to, bk_numel(x), r->err), r->err);
}

static void free_record(record *r)
{
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < BK_SITE_COUNT; i++) free(r->at[l][i]);
}

/* Runs the model as it is, in one batch, and takes the gains out of what the norms gave. */
static record run_plainly(const model *t, const bk_prefix *prefix)
{
    bk_error err = {0};
    record r = {.err = &err};
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_block *b;
    bk_stream *h;
    bk_block_weights w;
    bk_ctx *ctx = bk_ctx_new(be, &err);
    int64_t c = t->c.hidden;
    ck_assert_int_ge(bk_pass_batch(SEQUENCES, TOKENS), SEQUENCES);
    ok(bk_block_create(&b, be, &t->c, &(bk_block_options){.prefix_len = prefix ? prefix->n : 0, .tokens = TOKENS}, &err), &err);
    ok(bk_weights_alloc(&t->c, &w, &err), &err);
    ok(bk_stream_create(&h, SEQUENCES, TOKENS, c, &err), &err);
    ok(bk_embed_stream(t->src, t->ids, h, &err), &err);
    b->tap = record_tap;
    b->tap_user = &r;
    ok(bk_block_pass_measure(ctx, b, SEQUENCES, TOKENS), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (r.layer = 0; r.layer < t->c.layers; r.layer++) {
        ok(bk_weights_load(t->m, r.layer, &w, &err), &err);
        ok(bk_block_load(b, &w, &err), &err);
        if (prefix) ok(bk_block_set_prefix(b, bk_prefix_k(prefix, r.layer), bk_prefix_v(prefix, r.layer), &err), &err);
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
        for (int64_t i = 0; i < SEQUENCES * TOKENS * c; i++) {
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

static void add_outer(double *c, const double *x, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) c[i * n + j] += factor * x[i] * x[j];
}

/* By definition, from a record. */
static bk_offq_stats plain_stats(const model *t, const record *r, bk_offq_scope scope)
{
    const bk_config *c = &t->c;
    int64_t n = c->hidden, d = c->head_dim, width = c->kv_heads * d, rows = 2 * c->layers * SEQUENCES;
    bk_offq_stats s = {.top = room(n * n, sizeof(double)), .all = room(n * n, sizeof(double)), .key = room(c->layers * width * d, sizeof(double)),
                       .spikiness = room(c->layers * c->kv_heads, sizeof(double)), .down = room(c->layers * c->inter, sizeof(float))};
    for (int64_t q = 0; q < SEQUENCES; q++) {
        const double *best = NULL;
        for (int64_t l = 0; l < c->layers; l++) {
            for (int site = 0; site < 2; site++) {
                const double *x = r->at[l][site ? BK_SITE_MLP_IN : BK_SITE_ATTN_IN] + q * TOKENS * n, *top = top_row(x, TOKENS, n, n);
                for (int64_t k = 0; k < TOKENS; k++) add_outer(s.all, x + k * n, n, 1.0 / (double)(rows * TOKENS));
                if (scope == BK_OFFQ_TOKEN_PER_SITE) add_outer(s.top, top, n, 1.0 / (double)rows);
                if (!best || largest(top, n) > largest(best, n)) best = top;
            }
            for (int64_t h = 0; h < c->kv_heads; h++) {
                const double *k = top_row(r->at[l][BK_SITE_KEY] + q * TOKENS * width + h * d, TOKENS, width, d);
                double square = 0;
                add_outer(s.key + (l * c->kv_heads + h) * d * d, k, d, 1.0 / SEQUENCES);
                for (int64_t i = 0; i < d; i++) square += k[i] * k[i];
                s.spikiness[l * c->kv_heads + h] += largest(k, d) * sqrt((double)d / square) / SEQUENCES;
            }
        }
        if (scope == BK_OFFQ_TOKEN_PER_SEQUENCE) add_outer(s.top, best, n, 1.0 / SEQUENCES);
    }
    for (int64_t l = 0; l < c->layers; l++)
        for (int64_t i = 0; i < SEQUENCES * TOKENS * c->inter; i++)
            s.down[l * c->inter + i % c->inter] = fmaxf(s.down[l * c->inter + i % c->inter], (float)fabs(r->at[l][BK_SITE_DOWN_RAW][i]));
    return s;
}

static void same(const double *got, const double *want, int64_t n, double tol, const char *what)
{
    double off = bk_tiny_distance(got, want, n);
    ck_assert_msg(off <= tol, "%s: off by %g of the largest", what, off);
}

static void check_stats(const bk_backend *be, int shape, bk_offq_scope scope, bool behind_prefix, double tol)
{
    static const int32_t prefix_ids[2] = {7, 1};
    bk_config c = config_of(shape);
    bk_error err = {0};
    model t;
    bk_prefix p = {0};
    open_model(&t, &c, NULL);
    if (behind_prefix) ok(bk_prefix_compute(bk_backend_ref(BK_F64), t.src, prefix_ids, 2, &p, &err), &err);
    record r = run_plainly(&t, behind_prefix ? &p : NULL);
    bk_offq_stats want = plain_stats(&t, &r, scope),
                  got = measure(be, &t, behind_prefix ? &p : NULL,
                                &(bk_offq_options){.scope = scope, .concentration = true});
    int64_t n = c.hidden, heads = c.layers * c.kv_heads;
    ck_assert(got.layers == c.layers && got.hidden == n && got.inter == c.inter && got.sequences == SEQUENCES);
    same(got.top, want.top, n * n, tol, "top tokens");
    same(got.all, want.all, n * n, tol, "all tokens");
    same(got.key, want.key, heads * c.head_dim * c.head_dim, tol, "keys");
    same(got.spikiness, want.spikiness, heads, tol, "spikiness");
    for (int64_t i = 0; i < c.layers * c.inter; i++) ck_assert(fabsf(got.down[i] - want.down[i]) <= (float)tol * (want.down[i] + 1));
    bk_offq_stats_free(&got);
    bk_offq_stats_free(&want);
    free_record(&r);
    bk_prefix_free(&p);
    close_model(&t);
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
    bk_config c = config_of(1);
    model t;
    open_model(&t, &c, NULL);
    for (int i = 0; i < 5; i++) {
        bk_offq_stats s = measure(bk_backend_cpu(), &t, NULL, &o[i]);
        ck_assert((s.all != NULL) == (i > 0));
        bk_offq_stats_free(&s);
    }
    close_model(&t);
}
END_TEST

/* Sequences that do not fit one batch give the same picks. */
START_TEST(many_sequences_are_many_batches)
{
    enum { N = 40, T = 64 };
    bk_config c = config_of(0);
    bk_error err = {0};
    model t;
    bk_offq_stats s, first;
    static int32_t ids[N * T];
    ck_assert_int_lt(bk_pass_batch(N, T), N);
    open_model(&t, &c, NULL);
    for (int i = 0; i < N * T; i++) ids[i] = (int32_t)(i % T * 3 % 40); /* all sequences are the same */
    ok(bk_offq_measure(bk_backend_cpu(), t.src, ids, N, T, NULL, &(bk_offq_options){.seed = 1}, NULL, &s, &err), &err);
    ok(bk_offq_measure(bk_backend_cpu(), t.src, ids, 1, T, NULL, &(bk_offq_options){.seed = 1}, NULL, &first, &err), &err);
    same(s.top, first.top, c.hidden * c.hidden, 1e-6, "top tokens");
    same(s.key, first.key, c.layers * c.kv_heads * c.head_dim * c.head_dim, 1e-6, "keys");
    bk_offq_stats_free(&s);
    bk_offq_stats_free(&first);
    close_model(&t);
}
END_TEST

START_TEST(a_value_that_is_not_finite_is_named)
{
    bk_config c = config_of(0);
    bk_error err = {0};
    bk_offq_stats s;
    model t;
    bk_fitted *f = bk_tiny_fitted(&c, 0, 1);
    ok(bk_fitted_add(f, BK_FITTED_SCALE_DOWN_IN, &err), &err);
    f->scale_down_in[c.inter + 5] = 1e-44f; /* of block 1: rows of up beyond f32 */
    open_model(&t, &c, &(bk_rotation_spec){.fitted = f});
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, SEQUENCES, TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, NULL, &s, &err),
                     BK_ENUMERIC);
    ck_assert_msg(strstr(err.msg, "block 1: OffQ: site down_raw, sequence 0, token 0, channel 5") != NULL, "%s", err.msg);
    ck_assert_ptr_null(s.top);
    close_model(&t);
    bk_fitted_free(f);
}
END_TEST

START_TEST(a_rotated_model_is_refused)
{
    static const struct {
        bk_rotation_spec spec;
        const char *name;
    } bad[] = {{{.r1 = true}, "r1"}, {{.r3 = true}, "r3"}};
    bk_config c = config_of(0);
    bk_error err = {0};
    bk_offq_stats s;
    model t;
    open_model(&t, &c, &bad[_i].spec);
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, SEQUENCES, TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, NULL, &s, &err),
                     BK_EINVAL);
    ck_assert_msg(strstr(err.msg, bad[_i].name) != NULL, "%s", err.msg);
    close_model(&t);
}
END_TEST

static bk_status stop(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)total;
    return done == 1 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(the_pass_can_be_stopped)
{
    bk_config c = config_of(0);
    bk_error err = {0};
    bk_offq_stats s;
    model t;
    open_model(&t, &c, NULL);
    ck_assert_int_eq(bk_offq_measure(bk_backend_cpu(), t.src, t.ids, SEQUENCES, TOKENS, NULL,
                                     &(bk_offq_options){.seed = 1}, &(bk_watch){stop, NULL}, &s, &err),
                     BK_ECANCEL);
    ck_assert_ptr_null(s.down);
    close_model(&t);
}
END_TEST

/* ---- the fit ---- */

/* Statistics of a stream with `spikes` directions e_(3 k + 1) of falling energy, keys and maxima of down that rise with the channel. */
static bk_offq_stats made_up(const bk_config *c, int64_t spikes)
{
    int64_t n = c->hidden, d = c->head_dim, heads = c->layers * c->kv_heads;
    bk_offq_stats s = {.layers = c->layers, .hidden = n, .kv_heads = c->kv_heads, .head_dim = d, .inter = c->inter, .sequences = 4};
    s.top = room(n * n, sizeof(double)), s.all = room(n * n, sizeof(double)), s.key = room(heads * d * d, sizeof(double));
    s.spikiness = room(heads, sizeof(double)), s.down = room(c->layers * c->inter, sizeof(float));
    for (int64_t i = 0; i < n; i++) s.top[i * n + i] = 1 + 0.001 * (double)i, s.all[i * n + i] = 1;
    for (int64_t k = 0; k < spikes; k++) s.top[(3 * k + 1) * (n + 1)] = 1000.0 / (double)(k + 1), s.all[(3 * k + 1) * (n + 1)] = 3;
    for (int64_t h = 0; h < heads; h++) {
        s.spikiness[h] = 2.8;
        for (int64_t i = 0; i < d; i++) s.key[h * d * d + i * (d + 1)] = i == h % d ? 100 : 1 + 0.01 * (double)i;
    }
    for (int64_t i = 0; i < c->layers * c->inter; i++) s.down[i] = (float)(i % c->inter);
    return s;
}

static bk_fitted *fit_on(const bk_backend *be, const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *report)
{
    bk_error err = {0};
    bk_fitted *f;
    ok(bk_fitted_create(c, &f, &err), &err);
    ok(bk_offq_fit(be, c, s, o, f, report, &err), &err);
    ok(bk_fitted_check(f, &err), &err);
    return f;
}

static bk_fitted *fit(const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *report)
{
    return fit_on(bk_backend_cpu(), c, s, o, report);
}

START_TEST(outlier_directions_become_offsets_of_their_groups)
{
    bk_config c = config_of(1); /* 48 channels: with groups of 16 there are three */
    bk_offq_stats s = made_up(&c, 3);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.group = 16, .seed = 3, .spread = _i ? BK_OFFQ_GAUSSIAN : BK_OFFQ_HADAMARD}, &report);
    ck_assert(report.group == 16 && report.groups == 3 && report.gaussian == (_i == 1));
    for (int64_t k = 0; k < 3; k++)
        for (int64_t j = 0; j < 48; j++)
            ck_assert_double_eq_tol(f->r1[(3 * k + 1) * 48 + j], j / 16 == k ? 0.25 : 0, 1e-12);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(the_order_of_down_is_the_index_rule)
{
    bk_config c = config_of(1); /* 72 channels, groups of 72 / 8 */
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.down_group = 8, .seed = 3, .zigzag = _i == 1}, &report);
    ck_assert_int_eq(report.down_group, 8);
    double score[72];
    int32_t want[72];
    bk_error err = {0};
    for (int i = 0; i < 72; i++) score[i] = i;
    ok(bk_offset_order(score, 72, 9, _i == 1, want, &err), &err);
    for (int64_t l = 0; l < c.layers; l++) {
        ck_assert_mem_eq(f->down_order + l * 72, want, sizeof want);
        for (int i = 0; i < 72; i += 8) ck_assert_int_eq(f->down_signs[l * 72 + i], 1);
    }
    ck_assert_mem_ne(f->down_signs, f->down_signs + 72, 72);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(keys_are_fitted_where_they_are_spiky_or_biased)
{
    bk_config c = config_of(1), biased = config_of(1);
    biased.qkv_bias = true;
    bk_offq_stats s = made_up(&c, 1);
    const struct {
        const bk_config *c;
        double spikiness;
        bk_offq_options o;
        bool keys;
    } cases[] = {
        {&c, 2.8, {.seed = 1}, false},
        {&c, BK_OFFQ_SPIKINESS + 0.1, {.seed = 1}, true},
        {&c, BK_OFFQ_SPIKINESS - 0.1, {.seed = 1}, false},
        {&c, BK_OFFQ_SPIKINESS - 0.1, {.spikiness = BK_OFFQ_SPIKINESS - 0.2}, true},
        {&biased, 2.8, {.seed = 1}, true},
        {&biased, 9, {.keys = BK_OFFQ_KEYS_OFF}, false},
        {&c, 2.8, {.keys = BK_OFFQ_KEYS_ON}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bk_offq_report report;
        for (int h = 0; h < 2; h++) s.spikiness[h] = cases[i].spikiness; /* two of three: the median */
        s.spikiness[2] = 99;
        bk_fitted *f = fit(cases[i].c, &s, &cases[i].o, &report);
        ck_assert_msg((f->r3 != NULL) == cases[i].keys && report.keys == cases[i].keys, "case %d", (int)i);
        ck_assert(report.spikiness == cases[i].spikiness);
        bk_fitted_free(f);
    }
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(spikiness_is_the_lower_middle_of_the_heads)
{
    bk_config c = config_of(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    for (int h = 0; h < 4; h++) s.spikiness[h] = (double)(9 - 2 * h);
    bk_fitted_free(fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_OFF}, &report));
    ck_assert(report.spikiness == 5);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(the_direction_of_a_key_becomes_an_offset_of_its_head)
{
    bk_config c = config_of(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_ON}, &report);
    for (int64_t h = 0; h < c.layers * c.kv_heads; h++)
        for (int64_t j = 0; j < 16; j++) ck_assert_double_eq_tol(f->r3[h * 256 + h * 16 + j], 0.25, 1e-12);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Shares by hand: made_up has diagonal covariances. */
START_TEST(concentration_is_the_share_of_the_first_directions)
{
    bk_config c = config_of(1);
    bk_offq_stats s = made_up(&c, 3);
    bk_offq_report report;
    double top = 0, all = 0, first = 0;
    for (int64_t i = 0; i < 48; i++) top += s.top[i * 49], all += s.all[i * 49];
    for (int64_t k = 0; k < 3; k++) first += s.top[(3 * k + 1) * 49];
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.group = 16, .concentration = true}, &report);
    for (int basis = 0; basis < 2; basis++) { /* both find the three directions */
        ck_assert_double_eq_tol(report.share[basis][BK_OFFQ_TOP_TOKENS], first / top, 1e-12);
        ck_assert_double_eq_tol(report.share[basis][BK_OFFQ_ALL_TOKENS], 9 / all, 1e-12);
    }
    bk_fitted_free(f);
    free(s.all);
    s.all = NULL;
    f = fit(&c, &s, &(bk_offq_options){.group = 16}, &report);
    ck_assert_double_eq_tol(report.share[0][0], first / top, 1e-12);
    ck_assert(isnan(report.share[0][1]) && isnan(report.share[1][0]) && isnan(report.share[1][1]));
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Two sets of orthogonal directions: unit vectors, but two of them turned in their plane, 4 and 5 or 6 and 7. */
static void directions(double d[8][8], int turned)
{
    memset(d, 0, 64 * sizeof **d);
    for (int i = 0; i < 8; i++) d[i][i] = 1;
    d[turned][turned] = 0.6, d[turned][turned + 1] = 0.8;
    d[turned + 1][turned] = 0.8, d[turned + 1][turned + 1] = -0.6;
}

/* Made-up covariances, diagonal in directions of their own, and by hand which direction (of the top tokens, or `of_all`) comes where. Variances of
 * all tokens in the directions of the top tokens are 10, 1, 80, 2, 34.96, 59.04, 21, 14. */
static const double top_alone[8] = {0, 70, 0, 60, 0, 0, 0, 0}, top_energy[8] = {5, 70, 3, 60, 1, 2, 4, 6}, all_energy[8] = {10, 1, 80, 2, 90, 4, 5, 30};
static const struct {
    const char *name;
    const double *top;
    bk_offq_options o;
    bool of_all;
    int order[8];
} by_hand[] = {
    {"eigenvalue", top_energy, {.seed = 1}, false, {1, 4, 5, 2, 3, 6, 0, 7}},
    {"zigzag", top_energy, {.zigzag = true}, false, {1, 4, 2, 0, 3, 5, 6, 7}},
    {"variance", top_energy, {.score = BK_OFFQ_VARIANCE}, false, {2, 1, 3, 0, 5, 7, 6, 4}},
    {"basis of all tokens", top_energy, {.basis = BK_OFFQ_ALL_TOKENS}, true, {4, 1, 3, 5, 2, 6, 0, 7}},
    {"basis of all tokens, variance", top_energy, {.basis = BK_OFFQ_ALL_TOKENS, .score = BK_OFFQ_VARIANCE}, true, {4, 1, 3, 5, 2, 6, 0, 7}},
    {"a small tail, which orders what has no energy", top_alone, {.tail = 1e-6}, true, {1, 5, 6, 0, 3, 7, 2, 4}},
    {"a tail as large as the rest", top_alone, {.tail = 1}, true, {4, 5, 6, 0, 2, 7, 3, 1}},
};

/* The direction that comes k-th is turned into row k of a matrix with a Hadamard matrix of order 4 for each of the two groups, but for its sign. */
START_TEST(basis_and_order_are_those_found_by_hand)
{
    bk_config c = {.hidden = 8, .inter = 8, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2};
    double top[8][8], all[8][8];
    bk_offq_stats s = made_up(&c, 0);
    bk_offq_options o = by_hand[_i].o;
    bk_offq_report report;
    directions(top, 6);
    directions(all, 4);
    memset(s.top, 0, 64 * sizeof *s.top);
    memset(s.all, 0, 64 * sizeof *s.all);
    for (int i = 0; i < 8; i++) {
        add_outer(s.top, top[i], 8, by_hand[_i].top[i]);
        add_outer(s.all, all[i], 8, all_energy[i]);
    }
    o.group = 4;
    bk_fitted *f = fit(&c, &s, &o, &report);
    for (int k = 0; k < 8; k++) {
        const double *u = (by_hand[_i].of_all ? all : top)[by_hand[_i].order[k]];
        double along = 0;
        for (int i = 0; i < 8; i++)
            for (int j = k / 4 * 4; j < k / 4 * 4 + 4; j++) along += u[i] * f->r1[i * 8 + j] * (__builtin_popcount(k & j & 3) % 2 ? -0.5 : 0.5);
        bool there = fabs((k % 4 ? fabs(along) : along) - 1) < 1e-7; /* the first of a group keeps its sign */
        ck_assert_msg(there, "%s: direction %d is not the one in place %d (%g)", by_hand[_i].name, by_hand[_i].order[k], k, along);
    }
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

/* Every choice makes another rotation, and the seed does. */
static const bk_offq_options other_choices[] = {{.group = 16},
                                                {.group = 16, .seed = 2},
                                                {.group = 16, .tail = 0.5},
                                                {.group = 16, .basis = BK_OFFQ_ALL_TOKENS},
                                                {.group = 16, .score = BK_OFFQ_VARIANCE},
                                                {.group = 16, .zigzag = true},
                                                {.group = 16, .spread = BK_OFFQ_GAUSSIAN},
                                                {.group = 8},
                                                {.group = 16, .scope = BK_OFFQ_TOKEN_PER_SEQUENCE}};
enum { OTHERS = sizeof other_choices / sizeof *other_choices };

static bk_fitted *fit_model(const model *t, bk_offq_options o, bk_offq_report *report)
{
    bk_offq_stats s = measure(bk_backend_cpu(), t, NULL, &o);
    bk_fitted *f = fit(&t->c, &s, &o, report);
    bk_offq_stats_free(&s);
    return f;
}

START_TEST(choices_and_seeds_make_a_difference)
{
    bk_config c = config_of(0);
    model t;
    bk_fitted *f[OTHERS];
    bk_offq_report report;
    size_t bytes = (size_t)(c.hidden * c.hidden) * sizeof(double);
    open_model(&t, &c, NULL);
    for (int i = 0; i < OTHERS; i++) {
        f[i] = fit_model(&t, other_choices[i], &report);
        for (int k = 0; k < i; k++) ck_assert_msg(memcmp(f[k]->r1, f[i]->r1, bytes) != 0, "choices %d and %d give the same", k, i);
    }
    bk_fitted *again = fit_model(&t, other_choices[0], &report);
    ck_assert_mem_eq(again->r1, f[0]->r1, bytes);
    ck_assert_mem_eq(again->down_signs, f[0]->down_signs, (size_t)(c.layers * c.inter));
    ck_assert_mem_ne(f[1]->down_signs, f[0]->down_signs, (size_t)(c.layers * c.inter));
    bk_fitted_free(again);
    for (int i = 0; i < OTHERS; i++) bk_fitted_free(f[i]);
    close_model(&t);
}
END_TEST

START_TEST(sizes_without_a_matrix_have_a_way_out)
{
    bk_config c = config_of(2); /* 90 channels: one group, Gaussian; heads of 30 too */
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_fitted *f = fit(&c, &s, &(bk_offq_options){.keys = BK_OFFQ_KEYS_ON}, &report);
    ck_assert(report.group == 90 && report.groups == 1 && report.gaussian && report.down_group == 172);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
    c.inter = 90; /* and R4 has no groups whose first channel becomes an offset */
    s = made_up(&c, 1);
    f = fit(&c, &s, &(bk_offq_options){.seed = 1}, &report);
    ck_assert(report.down_group == 0 && !f->down_order && !f->down_signs);
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(options_that_need_more_than_was_measured_are_refused)
{
    const bk_offq_options more[] = {{.tail = 1e-6}, {.basis = BK_OFFQ_ALL_TOKENS}, {.score = BK_OFFQ_VARIANCE}, {.concentration = true}};
    bk_config c = config_of(0);
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    bk_error err = {0};
    bk_fitted *f;
    free(s.all);
    s.all = NULL;
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &c, &s, &more[_i], f, &report, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "all tokens"));
    bk_fitted_free(f);
    bk_offq_stats_free(&s);
}
END_TEST

START_TEST(groups_that_cannot_be_are_refused)
{
    static const struct {
        bk_offq_options o;
        const char *said;
    } bad[] = {{{.group = 36}, "hidden"}, {{.group = -4}, "hidden"}, {{.down_group = 50}, "down"}, {{.down_group = 6}, "order 6"}};
    bk_config c = config_of(0), other = c;
    bk_offq_stats s = made_up(&c, 1);
    bk_offq_report report;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_error err = {0};
        bk_fitted *f;
        ok(bk_fitted_create(&c, &f, &err), &err);
        ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &c, &s, &bad[i].o, f, &report, &err), BK_EINVAL);
        ck_assert_msg(strstr(err.msg, bad[i].said) != NULL, "%s", err.msg);
        bk_error_clear(&err);
        other.hidden = 32;
        ck_assert_int_eq(bk_offq_fit(bk_backend_cpu(), &other, &s, &(bk_offq_options){.seed = 1}, f, &report, &err), BK_ESHAPE);
        bk_fitted_free(f);
    }
    bk_offq_stats_free(&s);
}
END_TEST

/* ---- the model stays the same ---- */

/* A model, read through all that OffQ fits to it on the backend `fits`. */
typedef struct turned {
    model t;
    bk_offq_report report;
    bk_fitted *f;
    bk_source *src;
    double *want; /* logits of the model itself */
} turned;

static void open_turned(turned *x, const bk_backend *fits, const bk_config *c, bk_offq_options o)
{
    bk_error err = {0};
    open_model(&x->t, c, NULL);
    o.seed = 9;
    bk_offq_stats s = measure(bk_backend_cpu(), &x->t, NULL, &o);
    x->f = fit_on(fits, c, &s, &o, &x->report);
    bk_offq_stats_free(&s);
    bk_rotation_spec spec = {.r1 = true,
                             .r2 = true,
                             .r2_per_kv_head = true,
                             .r3 = true,
                             .r4 = true,
                             .r4_group = x->report.down_group,
                             .seed = 9,
                             .fitted = x->f,
                             .be = bk_backend_cpu()};
    ok(bk_source_open(x->t.m, &spec, &x->src, &err), &err);
    x->want = bk_plain_logits(x->t.m, x->t.ids, TOKENS, NULL);
}

static void close_turned(turned *x)
{
    free(x->want);
    bk_source_close(x->src);
    bk_fitted_free(x->f);
    close_model(&x->t);
}

static double off_by(const turned *x, const bk_backend *be)
{
    double *got = bk_tiny_logits(be, x->src, x->t.ids, TOKENS), off = bk_tiny_distance(got, x->want, TOKENS * x->t.c.vocab);
    free(got);
    return off;
}

static const bk_offq_options ways[] = {{.keys = BK_OFFQ_KEYS_ON},
                                       {.keys = BK_OFFQ_KEYS_OFF},
                                       {.zigzag = true, .spread = BK_OFFQ_GAUSSIAN, .keys = BK_OFFQ_KEYS_ON},
                                       {.basis = BK_OFFQ_ALL_TOKENS, .score = BK_OFFQ_VARIANCE},
                                       {.tail = 1e-6}};
enum { WAYS = sizeof ways / sizeof *ways };

static void check_logits(int i, const bk_backend *be, double tol)
{
    bk_config c = config_of(i / WAYS);
    turned x;
    open_turned(&x, bk_backend_cpu(), &c, ways[i % WAYS]);
    double off = off_by(&x, be);
    ck_assert_msg(off <= tol, "%s, way %d: logits are off by %g", shapes[i / WAYS].name, i % WAYS, off);
    close_turned(&x);
}

START_TEST(logits_stay_in_f64)
{
    check_logits(_i, bk_backend_ref(BK_F64), 1e-11);
}
END_TEST

START_TEST(logits_stay_in_f32)
{
    check_logits(_i, bk_backend_cpu(), 3e-5);
}
END_TEST

/* Beyond this order eigenvectors take seconds: any orthogonal matrix stands for them, and a product that only the report shows is 0. */
enum { EIGENVECTORS = 1024 };

static bk_status some_eigh(const bk_eigh_args *a, const bk_work *w)
{
    if (a->n <= EIGENVECTORS) return bk_backend_cpu()->k.eigh(a, w);
    bk_tiny_orthogonal(a->vectors, a->n, 5);
    for (int64_t i = 0; i < a->n; i++) a->values[i] = (double)(a->n - i);
    return BK_OK;
}

static bk_status some_product(const bk_gemm_args *a, const bk_work *w)
{
    if (a->n <= EIGENVECTORS) return bk_backend_cpu()->k.gemm_f64(a, w);
    memset(a->c, 0, (size_t)(a->m * a->n) * sizeof(double));
    return BK_OK;
}

static const int64_t sizes[] = {576, 896, 960, 1536, 2048, 4096};
#ifdef __SANITIZE_THREAD__ /* which multiplies the 1.2 GB that the largest takes */
enum { REAL_SIZES = sizeof sizes / sizeof *sizes - 1 };
#else
enum { REAL_SIZES = sizeof sizes / sizeof *sizes };
#endif

/* One layer, grouped heads, biases everywhere, tied; keys have a basis, the input of down two groups. Demanded are 1e-3 and 1e-9; what rounding
 * leaves is far below the tolerances of small models. */
START_TEST(all_of_it_leaves_the_logits_alone_at_the_sizes_of_real_models)
{
    static bk_backend fits;
    bk_config c = config_of(0);
    turned x;
    fits = *bk_backend_cpu();
    fits.k.eigh = some_eigh;
    fits.k.gemm_f64 = some_product;
    c.hidden = sizes[_i];
    c.inter = 64;
    c.layers = 1;
    ck_assert(c.kv_heads < c.heads && c.head_dim * c.heads != c.hidden && c.qkv_bias && c.o_bias && c.mlp_bias && c.tied);
    open_turned(&x, &fits, &c, (bk_offq_options){.keys = BK_OFFQ_KEYS_ON, .down_group = 32});
    ck_assert(x.f->r1 && x.f->r3 && x.f->down_order && x.f->down_signs && x.report.groups == c.hidden / x.report.group && x.report.groups > 1);
    double single = off_by(&x, bk_backend_cpu()), exact = off_by(&x, bk_backend_ref(BK_F64));
    ck_assert_msg(single <= 3e-5, "hidden size %lld: logits are off by %g in f32", (long long)c.hidden, single);
    ck_assert_msg(exact <= 1e-11, "hidden size %lld: logits are off by %g in f64", (long long)c.hidden, exact);
    close_turned(&x);
}
END_TEST

/* ---- P4, signs and R4 in groups against golden vectors ---- */

START_TEST(golden_mlp)
{
    bk_golden *g = bk_golden_open("offq.h5");
    bk_error err = {0};
    const int64_t n = 12, inter = 24, rows = 10;
    bk_config c = {.hidden = n, .inter = inter, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .mlp_bias = true};
    bk_fitted *f = bk_tiny_fitted(&c, BK_TINY_PART(DOWN_ORDER) | BK_TINY_PART(DOWN_SIGNS), 1);
    const double *scores = bk_golden_f64(g, "mlp/scores");
    const int64_t *src = bk_golden_i64(g, "mlp/src");
    int64_t dims[BK_GOLDEN_DIMS];
    bk_golden_dims(g, dims, "mlp/signs");
    ok(bk_offset_order(scores, inter, dims[0], false, f->down_order, &err), &err);
    for (int64_t i = 0; i < inter; i++) {
        ck_assert_int_eq(f->down_order[i], src[i]);
        f->down_signs[i] = (int8_t)bk_golden_i32(g, "mlp/signs")[i];
    }
    float gain[12] = {0};
    bk_rotation *r;
    ok(bk_rotation_create(&c, &(bk_rotation_spec){.r4 = true, .r4_group = dims[1], .fitted = f}, gain, &r, &err), &err);
    double small[64] = {0};
    bk_weights_view w = {.type = BK_F64};
    for (int i = 0; i < BK_W_COUNT; i++) w.w[i] = small;
    w.w[BK_W_GATE] = bk_golden_f64(g, "mlp/gate"), w.b[BK_W_GATE] = bk_golden_f64(g, "mlp/gate_bias");
    w.w[BK_W_UP] = bk_golden_f64(g, "mlp/up"), w.b[BK_W_UP] = bk_golden_f64(g, "mlp/up_bias");
    w.w[BK_W_DOWN] = bk_golden_f64(g, "mlp/down");
    ok(bk_rotation_block_view(r, 0, &w, &err), &err);
    same(w.w[BK_W_GATE], bk_golden_f64(g, "mlp/fused/gate"), inter * n, 0, "gate");
    same(w.b[BK_W_GATE], bk_golden_f64(g, "mlp/fused/gate_bias"), inter, 0, "bias of gate");
    same(w.w[BK_W_UP], bk_golden_f64(g, "mlp/fused/up"), inter * n, 0, "up");
    same(w.b[BK_W_UP], bk_golden_f64(g, "mlp/fused/up_bias"), inter, 0, "bias of up");
    same(w.w[BK_W_DOWN], bk_golden_f64(g, "mlp/fused/down"), inter * n, 1e-14, "down");

    const double *x = bk_golden_f64(g, "mlp/x"), *gate = w.w[BK_W_GATE], *up = w.w[BK_W_UP], *down = w.w[BK_W_DOWN];
    double z[240], out[120] = {0};
    for (int64_t k = 0; k < rows * inter; k++) {
        double a = ((double *)w.b[BK_W_GATE])[k % inter], b = ((double *)w.b[BK_W_UP])[k % inter];
        for (int64_t i = 0; i < n; i++) {
            a += gate[k % inter * n + i] * x[k / inter * n + i];
            b += up[k % inter * n + i] * x[k / inter * n + i];
        }
        z[k] = a / (1 + exp(-a)) * b;
    }
    same(z, bk_golden_f64(g, "mlp/z_permuted"), rows * inter, 1e-12, "z, permuted");
    ok(bk_hadamard_apply_f64(bk_rotation_r4(r), NULL, z, rows, inter, 1, &err), &err);
    same(z, bk_golden_f64(g, "mlp/z_rotated"), rows * inter, 1e-12, "z, rotated");
    for (int64_t k = 0; k < rows * n; k++)
        for (int64_t i = 0; i < inter; i++) out[k] += z[k / n * inter + i] * down[k % n * inter + i];
    same(out, bk_golden_f64(g, "mlp/out"), rows * n, 1e-12, "output");
    bk_rotation_free(r);
    bk_fitted_free(f);
    bk_golden_close(g);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offq");
    TCase *tc = tcase_create("statistics");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, statistics_are_those_of_the_definition, 0, SHAPES);
    tcase_add_loop_test(tc, statistics_of_one_token_per_sequence, 0, SHAPES);
    tcase_add_test(tc, statistics_behind_a_prefix);
    tcase_add_loop_test(tc, statistics_on_other_backends, 0, 2);
    tcase_add_test(tc, covariance_of_all_tokens_only_where_it_is_used);
    tcase_add_test(tc, many_sequences_are_many_batches);
    tcase_add_test(tc, a_value_that_is_not_finite_is_named);
    tcase_add_loop_test(tc, a_rotated_model_is_refused, 0, 2);
    tcase_add_test(tc, the_pass_can_be_stopped);
    suite_add_tcase(suite, tc);
    tc = tcase_create("fit");
    tcase_add_loop_test(tc, outlier_directions_become_offsets_of_their_groups, 0, 2);
    tcase_add_loop_test(tc, the_order_of_down_is_the_index_rule, 0, 2);
    tcase_add_test(tc, keys_are_fitted_where_they_are_spiky_or_biased);
    tcase_add_test(tc, spikiness_is_the_lower_middle_of_the_heads);
    tcase_add_test(tc, the_direction_of_a_key_becomes_an_offset_of_its_head);
    tcase_add_test(tc, concentration_is_the_share_of_the_first_directions);
    tcase_add_loop_test(tc, basis_and_order_are_those_found_by_hand, 0, sizeof by_hand / sizeof *by_hand);
    tcase_add_test(tc, choices_and_seeds_make_a_difference);
    tcase_add_test(tc, sizes_without_a_matrix_have_a_way_out);
    tcase_add_loop_test(tc, options_that_need_more_than_was_measured_are_refused, 0, 4);
    tcase_add_test(tc, groups_that_cannot_be_are_refused);
    tcase_add_test(tc, golden_mlp);
    suite_add_tcase(suite, tc);
    tc = tcase_create("function");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, logits_stay_in_f64, 0, SHAPES * WAYS);
    tcase_add_loop_test(tc, logits_stay_in_f32, 0, SHAPES * WAYS);
    tcase_add_loop_test(tc, all_of_it_leaves_the_logits_alone_at_the_sizes_of_real_models, 0, REAL_SIZES);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
