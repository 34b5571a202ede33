/* Greedy search of a prefix: the objectives against a computation of their own, the greedy path against every candidate
 * alone, and the planted sink of a made model. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/prefix.h"
#include "blocks/prefix_search.h"
#include "experiments/synth.h"
#include "io/file.h"
#include "quant/steps.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

/* --- candidates --- */

START_TEST(candidates_take_turns_and_stand_once)
{
    const int32_t special[] = {256, 257}, found[] = {46, 256, 10}, frequent[] = {46, 97, 98, 10, 99, 100};
    const bk_id_list lists[] = {{special, 2}, {found, 3}, {frequent, 6}};
    const int32_t want[] = {256, 46, 257, 97, 10, 98, 99, 100};
    int32_t got[16];
    ck_assert_int_eq(bk_search_candidates(lists, 3, 16, got), 8);
    ck_assert_mem_eq(got, want, sizeof want);
    ck_assert_int_eq(bk_search_candidates(lists, 3, 3, got), 3);
    ck_assert_mem_eq(got, want, 3 * sizeof want[0]);
}
END_TEST

START_TEST(a_model_without_bos_has_no_such_candidate)
{
    const int32_t special[] = {-1, -1}, found[] = {46};
    const bk_id_list lists[] = {{special, 2}, {found, 1}, {NULL, 0}};
    int32_t got[4];
    ck_assert_int_eq(bk_search_candidates(lists, 3, 4, got), 1);
    ck_assert_int_eq(got[0], 46);
}
END_TEST

/* --- models and windows --- */

enum { SAMPLES = 3, TOKENS = 48 };

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    int32_t ids[SAMPLES * TOKENS];
} model;

static void open_dir(model *m, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    ok(bk_model_open(m->dir, &m->m, &err), &err);
    ok(bk_source_open(m->m, spec, &m->src, &err), &err);
}

/* A made model; `change` may do something to its weights. Windows are its own text. */
static void open_synth(model *m, void (*change)(bk_synth *s))
{
    static char text[SAMPLES * BK_SYNTH_DOCUMENT];
    bk_error err = {0};
    bk_config c;
    bk_synth *s;
    strcpy(m->dir, "/tmp/bk_search_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(m->dir));
    ok(bk_synth_shape("tiny,layers=3", &c, &err), &err);
    ok(bk_synth_create(&c, 1, &s, &err), &err);
    ok(bk_synth_sample(s, 0, SAMPLES, text, &err), &err);
    if (change) change(s);
    ok(bk_synth_write(s, m->dir, 0, &err), &err);
    bk_synth_free(s);
    for (int i = 0; i < SAMPLES * TOKENS; i++) m->ids[i] = (unsigned char)text[i];
    m->ids[TOKENS / 2] = m->ids[TOKENS + 9] = m->ids[2 * TOKENS + 5] = '.'; /* delimiters in every window */
    open_dir(m, &(bk_rotation_spec){.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 2});
}

static void open_tiny(model *m, const bk_rotation_spec *spec)
{
    bk_config c = bk_tiny_config();
    bk_tiny_model_write(&c, 5, m->dir);
    for (int i = 0; i < SAMPLES * TOKENS; i++) m->ids[i] = (7 * i + i / 5) % 250;
    open_dir(m, spec);
}

static void close_model(model *m)
{
    bk_error err = {0};
    bk_source_close(m->src);
    bk_model_close(m->m);
    ok(bk_remove_tree(m->dir, &err), &err);
}

static bk_search_options options(bk_search_objective o, const bk_block_quant *q)
{
    return (bk_search_options){.objective = o, .quant = q, .max_tokens = 1, .tau = 0};
}

static bk_search_result search(const bk_backend *be, const model *m, const int32_t *ids, int64_t n,
                               const bk_search_options *opt)
{
    bk_error err = {0};
    bk_search_result r;
    ok(bk_prefix_search(be, m->src, &(bk_id_list){ids, n}, m->ids, SAMPLES, TOKENS, opt, NULL, &r, &err), &err);
    return r;
}

static const int32_t planted[] = {'a', '.', ' ', BK_SYNTH_EOS, BK_SYNTH_BOS, '\n', 'q'};
enum { PLANTED = sizeof planted / sizeof planted[0] };
#define WRONG(r) (int)(r).n, (r).n ? (r).step[0].id : -1, (r).step[0].before, (r).step[0].after

/* --- what it finds --- */

START_TEST(the_planted_sink_is_found)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options((bk_search_objective)_i, &q);
    model m;
    open_synth(&m, NULL);
    opt.max_tokens = 3;
    opt.tau = 0.5;
    bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    ck_assert_msg(r.n == 1 && r.step[0].id == BK_SYNTH_BOS, "%d tokens, the first is %d (%g -> %g)", WRONG(r));
    close_model(&m);
}
END_TEST

/* Steps of every token's own do not care how large others are. */
START_TEST(the_sink_matters_less_to_dynamic_quantizers)
{
    double falls[2];
    model m;
    open_synth(&m, NULL);
    for (int i = 0; i < 2; i++) {
        bk_block_quant q = bk_tiny_quant(i ? "dynamic" : "static", 4, 4, true);
        bk_search_options opt = options(BK_SEARCH_ERROR, &q);
        bk_search_result r = search(bk_backend_cpu(), &m, (int32_t[]){BK_SYNTH_BOS}, 1, &opt);
        falls[i] = r.n ? 1 - r.step[0].after / r.step[0].before : 0;
    }
    ck_assert_msg(falls[0] > 2 * falls[1], "static: by %g, dynamic: by %g", falls[0], falls[1]);
    close_model(&m);
}
END_TEST

/* Static steps suffer from the massive tokens that are gone behind the sink. */
START_TEST(behind_the_sink_static_quantizers_err_less)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_synth(&m, NULL);
    bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    ck_assert_msg(r.n == 1 && r.step[0].after < 0.7 * r.step[0].before, "%d tokens, the first is %d: %g -> %g",
                  WRONG(r));
    close_model(&m);
}
END_TEST

START_TEST(behind_the_sink_no_token_stands_out)
{
    bk_search_options opt = options(BK_SEARCH_RATIO, NULL);
    model m;
    open_synth(&m, NULL);
    bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    ck_assert_msg(r.n == 1 && r.step[0].before > 64 && r.step[0].after < 8, "%d tokens, the first is %d: %g -> %g",
                  WRONG(r));
    close_model(&m);
}
END_TEST

/* --- the greedy path --- */

START_TEST(the_objective_falls_along_the_path)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options((bk_search_objective)_i, &q);
    model m;
    open_synth(&m, NULL);
    opt.max_tokens = 4;
    bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    ck_assert_int_ge(r.n, 2);
    for (int64_t i = 0; i < r.n; i++) {
        ck_assert_double_lt(r.step[i].after, r.step[i].before);
        if (i) ck_assert_double_eq(r.step[i].before, r.step[i - 1].after);
    }
    if (r.stopped) ck_assert_double_eq(r.last.before, r.step[r.n - 1].after);
    close_model(&m);
}
END_TEST

/* Leaving a candidate early must not hide the best one: every candidate alone, judged in full. */
START_TEST(the_best_of_all_candidates_is_taken)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options((bk_search_objective)_i, &q);
    model m;
    int32_t backwards[PLANTED], best = -1;
    double least = INFINITY;
    open_synth(&m, NULL);
    for (int c = 0; c < PLANTED; c++) {
        backwards[c] = planted[PLANTED - 1 - c];
        bk_search_result alone = search(bk_backend_cpu(), &m, &planted[c], 1, &opt);
        if (!alone.n || alone.step[0].after >= least) continue;
        best = planted[c];
        least = alone.step[0].after;
    }
    for (int order = 0; order < 2; order++) {
        bk_search_result r = search(bk_backend_cpu(), &m, order ? backwards : planted, PLANTED, &opt);
        ck_assert_msg(r.n == 1 && r.step[0].id == best && r.step[0].after == least,
                      "%d tokens, the first is %d: %g -> %g", WRONG(r));
    }
    close_model(&m);
}
END_TEST

static void double_the_sink(bk_synth *s)
{
    memcpy(s->embed + 'z' * s->cfg.hidden, s->embed + BK_SYNTH_BOS * s->cfg.hidden,
           (size_t)s->cfg.hidden * sizeof *s->embed);
}

START_TEST(of_equal_candidates_the_first_is_taken)
{
    static const int32_t both[2][2] = {{'z', BK_SYNTH_BOS}, {BK_SYNTH_BOS, 'z'}};
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options((bk_search_objective)_i, &q);
    model m;
    open_synth(&m, double_the_sink);
    for (int i = 0; i < SAMPLES * TOKENS; i++) m.ids[i] = m.ids[i] == 'z' ? 'y' : m.ids[i];
    for (int i = 0; i < 2; i++) {
        bk_search_result r = search(bk_backend_cpu(), &m, both[i], 2, &opt);
        ck_assert_msg(r.n == 1 && r.step[0].id == both[i][0], "%d tokens, the first is %d: %g -> %g", WRONG(r));
    }
    close_model(&m);
}
END_TEST

START_TEST(tau_stops)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_synth(&m, NULL);
    opt.max_tokens = 2;
    bk_search_result all = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    double falls = 1 - all.step[0].after / all.step[0].before;
    for (int above = 0; above < 2; above++) {
        opt.tau = falls + (above ? 1e-6 : -1e-6);
        bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
        ck_assert_int_eq(r.n, above ? 0 : 1);
        ck_assert(r.stopped);
        if (above)
            ck_assert(r.last.id == BK_SYNTH_BOS && r.last.after == all.step[0].after &&
                      r.last.before == all.step[0].before);
    }
    close_model(&m);
}
END_TEST

START_TEST(max_tokens_stops)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_synth(&m, NULL);
    bk_search_result r = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    ck_assert(r.n == 1 && !r.stopped);
    close_model(&m);
}
END_TEST

/* --- the objectives by hand --- */

/* Values at the sites of the blocks, read by a tap of our own. */
typedef struct watcher {
    bk_site_id site;
    float *v; /* [samples, tokens, width] */
    int64_t at;
} watcher;

static void watch(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    watcher *w = user;
    bk_error err = {0};
    if (site != w->site || bk_ctx_measuring(ctx)) return;
    ok(bk_read(bk_ctx_backend(ctx), x, 0, w->v + w->at, bk_numel(x), &err), &err);
    w->at += bk_numel(x);
}

static void values(const bk_backend *be, const model *m, int32_t prefix, int64_t layer, watcher *w)
{
    bk_error err = {0};
    const bk_config *c = bk_source_config(m->src);
    bk_prefix p;
    bk_block_weights weights;
    bk_block *b;
    bk_stream *h;
    bk_ctx *ctx = bk_ctx_new(be, &err);
    ok(bk_prefix_compute(be, m->src, &prefix, prefix >= 0, &p, &err), &err);
    bk_block_options opt = {
        .r3 = bk_source_r3(m->src), .r4 = bk_source_r4(m->src), .prefix_len = p.n, .tokens = TOKENS};
    ok(bk_weights_alloc(c, &weights, &err), &err);
    ok(bk_block_create(&b, be, c, &opt, &err), &err);
    ok(bk_stream_create(&h, SAMPLES, TOKENS, c->hidden, &err), &err);
    ok(bk_embed_stream(m->src, m->ids, h, &err), &err);
    ok(bk_block_pass_measure(ctx, b, SAMPLES, TOKENS), &err);
    ok(bk_ctx_commit(ctx), &err);
    for (int64_t l = 0; l <= layer; l++) {
        ok(bk_source_block(m->src, l, &weights, &err), &err);
        ok(bk_block_load(b, &weights, &err), &err);
        ok(bk_block_set_prefix(b, bk_prefix_k(&p, l), bk_prefix_v(&p, l), &err), &err);
        b->tap = l == layer ? watch : NULL;
        b->tap_user = w;
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
    }
    bk_ctx_free(ctx);
    bk_block_free(b);
    bk_stream_free(h);
    bk_weights_free(&weights);
    bk_prefix_free(&p);
}

static double magnitude(const float *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs((double)x[i]));
    return m;
}

/* Mean relative error of the tokens under one symmetric step for all. */
static double relative_error(const float *x, int64_t tokens, int64_t width, int bits)
{
    int qmin, qmax;
    float s, z, most = (float)magnitude(x, tokens * width);
    double sum = 0;
    bk_code_range(bits, true, &qmin, &qmax);
    bk_step_of_range(bits, true, false, -most, most, &s, &z);
    for (int64_t t = 0; t < tokens; t++) {
        double noise = 0, signal = 0;
        for (int64_t i = 0; i < width; i++) {
            double v = (double)x[t * width + i],
                   q = fmin(fmax(nearbyint((double)(x[t * width + i] / s)), qmin), qmax) * (double)s;
            noise += (q - v) * (q - v);
            signal += v * v;
        }
        sum += noise / signal;
    }
    return sum / (double)tokens;
}

static double error_by_hand(const bk_backend *be, const model *m, int32_t prefix)
{
    static const bk_site_id sites[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};
    const bk_config *c = bk_source_config(m->src);
    double sum = 0;
    for (int64_t l = 0; l < c->layers; l++)
        for (int i = 0; i < 4; i++) {
            int64_t width = bk_site_width(c, sites[i]);
            watcher w = {.site = sites[i], .v = malloc((size_t)(SAMPLES * TOKENS * width) * sizeof(float))};
            ck_assert_ptr_nonnull(w.v);
            values(be, m, prefix, l, &w);
            sum += relative_error(w.v, SAMPLES * TOKENS, width, 4);
            free(w.v);
        }
    return sum / (4.0 * (double)c->layers);
}

static double ratio_by_hand(const bk_backend *be, const model *m, int32_t prefix)
{
    const bk_config *c = bk_source_config(m->src);
    double most = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        int64_t width = c->inter;
        double mean = 0;
        watcher w = {.site = BK_SITE_DOWN_RAW, .v = malloc((size_t)(SAMPLES * TOKENS * width) * sizeof(float))};
        ck_assert_ptr_nonnull(w.v);
        values(be, m, prefix, l, &w);
        for (int64_t s = 0; s < SAMPLES; s++) {
            float max[TOKENS], scratch[TOKENS];
            for (int64_t t = 0; t < TOKENS; t++) max[t] = (float)magnitude(w.v + (s * TOKENS + t) * width, width);
            mean += magnitude(max, TOKENS) / (double)bk_lower_median(max, TOKENS, scratch) / SAMPLES;
        }
        most = fmax(most, mean);
        free(w.v);
    }
    return most;
}

/* Activations static per tensor; keys and values as they are. */
static bk_block_quant activations_only(void)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    q.activation = bk_tiny_spec("static", 4, true, BK_PER_TENSOR, 0);
    q.key.bits = q.value.bits = 16;
    return q;
}

START_TEST(objectives_are_what_they_say)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_block_quant q = activations_only();
    bk_search_options opt = options(_i / 2 ? BK_SEARCH_RATIO : BK_SEARCH_ERROR, &q);
    model m;
    int found = 0;
    open_tiny(&m, _i % 2 ? &(bk_rotation_spec){.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 2} : NULL);
    for (int32_t id = 0; id < 4; id++) {
        bk_search_result r = search(be, &m, &id, 1, &opt);
        bk_search_step s = r.n ? r.step[0] : r.last;
        double before = _i / 2 ? ratio_by_hand(be, &m, -1) : error_by_hand(be, &m, -1);
        ck_assert_double_eq_tol(s.before, before, 1e-5 * before);
        if (!r.n) continue;
        double after = _i / 2 ? ratio_by_hand(be, &m, id) : error_by_hand(be, &m, id);
        ck_assert_double_eq_tol(s.after, after, 1e-5 * after);
        found++;
    }
    ck_assert_int_ge(found, 1); /* some token lowers it, else nothing was compared behind a prefix */
    close_model(&m);
}
END_TEST

START_TEST(sites_that_are_skipped_do_not_count)
{
    bk_block_quant q = activations_only();
    unsigned some[2] = {1u << BK_SITE_DOWN_IN, 0}, all[2] = {~0u, ~0u};
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_tiny(&m, NULL);
    opt.tau = 1; /* so that `last` has the objective without prefix */
    double whole = search(bk_backend_cpu(), &m, planted, 1, &opt).last.before;
    opt.skip_sites = some;
    double part = search(bk_backend_cpu(), &m, planted, 1, &opt).last.before;
    opt.skip_sites = all;
    bk_search_result none = search(bk_backend_cpu(), &m, planted, 1, &opt);
    ck_assert_double_ne(whole, part);
    ck_assert(none.n == 0 && none.last.before == 0 && none.last.id == -1);
    close_model(&m);
}
END_TEST

/* --- where it runs --- */

START_TEST(threads_and_backends_agree)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options((bk_search_objective)_i, &q);
    model m;
    open_synth(&m, NULL);
    opt.max_tokens = 2;
    bk_search_result r[3];
    for (int threads = 1; threads <= 2; threads++) {
        bk_backend_cpu()->set_threads(threads);
        r[threads] = search(bk_backend_cpu(), &m, planted, PLANTED, &opt);
    }
    bk_backend_cpu()->set_threads(1);
    ck_assert_int_eq(r[1].n, r[2].n);
    ck_assert(!memcmp(r[1].step, r[2].step, (size_t)r[1].n * sizeof *r[1].step));
    r[0] =
        search(bk_backend_guard(BK_F32), &m, planted, PLANTED, &opt); /* crashes if host code touches device memory */
    ck_assert_int_eq(r[0].step[0].id, r[1].step[0].id);
    ck_assert_double_eq_tol(r[0].step[0].after, r[1].step[0].after, 1e-3 * r[1].step[0].after);
    close_model(&m);
}
END_TEST

typedef struct counter {
    int64_t calls, done, total, stop_at;
} counter;

static bk_status count(void *user, int64_t done, int64_t total, bk_error *err)
{
    counter *c = user;
    ck_assert_int_ge(done, c->done);
    ck_assert_int_le(done, total);
    c->done = done;
    c->total = total;
    return c->calls++ == c->stop_at ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(progress_ends_at_its_total)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    bk_error err = {0};
    bk_search_result r;
    counter c = {.stop_at = -1};
    model m;
    open_synth(&m, NULL);
    opt.tau = 1;
    opt.max_tokens = 3;
    ok(bk_prefix_search(bk_backend_cpu(), m.src, &(bk_id_list){planted, PLANTED}, m.ids, SAMPLES, TOKENS, &opt,
                        &(bk_watch){count, &c}, &r, &err),
       &err);
    ck_assert_int_eq(c.total, bk_prefix_search_steps(PLANTED, 3, 3));
    ck_assert_int_eq(c.done, c.total);
    ck_assert_int_gt(c.calls, PLANTED);
    close_model(&m);
}
END_TEST

START_TEST(a_search_can_be_stopped)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_synth(&m, NULL);
    for (int at = 0; at < 8; at += 7) { /* before anything, and among the candidates */
        bk_error err = {0};
        bk_search_result r;
        counter c = {.stop_at = at};
        ck_assert_int_eq(bk_prefix_search(bk_backend_cpu(), m.src, &(bk_id_list){planted, PLANTED}, m.ids, SAMPLES,
                                          TOKENS, &opt, &(bk_watch){count, &c}, &r, &err),
                         BK_ECANCEL);
        ck_assert_int_eq(c.calls, at + 1);
    }
    close_model(&m);
}
END_TEST

/* --- what cannot be searched --- */

static void refused(const model *m, const int32_t *ids, int64_t n, int64_t tokens, const bk_search_options *opt,
                    bk_status want, const char *words)
{
    bk_error err = {0};
    bk_search_result r;
    bk_status st =
        bk_prefix_search(bk_backend_cpu(), m->src, &(bk_id_list){ids, n}, m->ids, 1, tokens, opt, NULL, &r, &err);
    ck_assert_msg(st == want && strstr(err.msg, words), "%s: '%s', not '%s'", bk_status_name(st), err.msg, words);
}

START_TEST(what_cannot_be_searched_is_refused)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true), weights = q;
    model m;
    weights.activation.bits = weights.key.bits = weights.value.bits = 16;
    bk_search_options opt = options(BK_SEARCH_ERROR, &q), none = options(BK_SEARCH_ERROR, &weights),
                      null = options(BK_SEARCH_ERROR, NULL), zero = opt, many = opt;
    zero.max_tokens = 0;
    many.max_tokens = BK_PREFIX_MAX + 1;
    open_synth(&m, NULL);
    int64_t positions = bk_source_config(m.src)->max_positions;
    refused(&m, (int32_t[]){97, 258}, 2, TOKENS, &opt, BK_EINVAL, "prefix id 258 is outside the vocabulary of 258");
    refused(&m, (int32_t[]){-1}, 1, TOKENS, &opt, BK_EINVAL, "prefix id -1");
    refused(&m, planted, 0, TOKENS, &opt, BK_EINVAL, "no candidates");
    refused(&m, planted, 1, 0, &opt, BK_EINVAL, "no windows");
    refused(&m, planted, 1, TOKENS, &none, BK_EINVAL, "no error to search by");
    refused(&m, planted, 1, TOKENS, &null, BK_EINVAL, "no error to search by");
    refused(&m, planted, 1, TOKENS, &zero, BK_EINVAL, "a prefix of 0 tokens: want 1 to 64");
    refused(&m, planted, 1, TOKENS, &many, BK_EINVAL, "a prefix of 65 tokens");
    refused(&m, planted, 1, positions, &opt, BK_EINVAL, "beyond the model's");
    close_model(&m);
}
END_TEST

static void overflow(bk_synth *s)
{
    for (int64_t i = 0; i < s->cfg.hidden; i++) s->block[1].w[BK_W_UP][i] = 3e38f;
}

START_TEST(activations_that_are_not_finite_are_told)
{
    bk_block_quant q = bk_tiny_quant("static", 4, 4, true);
    bk_search_options opt = options(BK_SEARCH_ERROR, &q);
    model m;
    open_synth(&m, overflow);
    refused(&m, planted, 1, TOKENS, &opt, BK_ENUMERIC, "block 1: ");
    close_model(&m);
}
END_TEST

int main(void)
{
    bk_backend_cpu()->set_threads(1); /* the matrices are too small to share */
    Suite *s = suite_create("prefix_search");
    TCase *t = tcase_create("candidates");
    tcase_add_test(t, candidates_take_turns_and_stand_once);
    tcase_add_test(t, a_model_without_bos_has_no_such_candidate);
    suite_add_tcase(s, t);
    t = tcase_create("search");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, the_planted_sink_is_found, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_test(t, the_sink_matters_less_to_dynamic_quantizers);
    tcase_add_test(t, behind_the_sink_static_quantizers_err_less);
    tcase_add_test(t, behind_the_sink_no_token_stands_out);
    tcase_add_loop_test(t, the_objective_falls_along_the_path, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_loop_test(t, the_best_of_all_candidates_is_taken, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_loop_test(t, of_equal_candidates_the_first_is_taken, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_test(t, tau_stops);
    tcase_add_test(t, max_tokens_stops);
    tcase_add_loop_test(t, objectives_are_what_they_say, 0, 2 * BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_test(t, sites_that_are_skipped_do_not_count);
    tcase_add_loop_test(t, threads_and_backends_agree, 0, BK_SEARCH_OBJECTIVE_COUNT);
    tcase_add_test(t, progress_ends_at_its_total);
    tcase_add_test(t, a_search_can_be_stopped);
    tcase_add_test(t, what_cannot_be_searched_is_refused);
    tcase_add_test(t, activations_that_are_not_finite_are_told);
    suite_add_tcase(s, t);
    return run_suite(s);
}
