/* Outlier tokens: golden detections and choices of a prefix, and detection on a model that has known outliers. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/outliers.h"
#include "tests/h5_golden.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static const char *const cases[] = {"normal", "tie_sequence", "tie_magnitude", "single_rare", "single_kept", "single_boundary",
                                    "none", "position0_only", "few_ids", "edges"};
enum { CASES = sizeof cases / sizeof cases[0], MAX_TOKENS = 256 };

/* Maxima and outliers of a case, sequence after sequence in an order that is not the visiting order. */
static void detect_case(bk_golden *g, const char *path, bk_outliers *o)
{
    int64_t dim[BK_GOLDEN_DIMS];
    bk_error err = {0};
    ck_assert_int_eq(bk_golden_dims(g, dim, "%s/acts", path), 4);
    int64_t blocks = dim[0], sequences = dim[1], tokens = dim[2], channels = dim[3];
    ck_assert_int_le(tokens, MAX_TOKENS);
    const float *acts = bk_golden_f32(g, "%s/acts", path);
    const double *want_max = bk_golden_f64(g, "%s/token_max", path), *want_median = bk_golden_f64(g, "%s/median", path);
    const int32_t *ids = bk_golden_i32(g, "%s/ids", path);
    *o = (bk_outliers){.sequences = sequences, .blocks = blocks};
    for (int64_t b = blocks - 1; b >= 0; b--)
        for (int64_t s = sequences - 1; s >= 0; s--) {
            int64_t i = b * sequences + s;
            float max[MAX_TOKENS] = {0}, scratch[MAX_TOKENS];
            for (int64_t t = 0; t < tokens; t++) {
                for (int64_t c = 0; c < channels; c++) max[t] = fmaxf(max[t], fabsf(acts[(i * tokens + t) * channels + c]));
                ck_assert((double)max[t] == want_max[i * tokens + t]);
            }
            ck_assert_msg((double)bk_lower_median(max, tokens, scratch) == want_median[i], "%s: median of block %d, sequence %d", path, (int)b, (int)s);
            ok(bk_outliers_add(o, b, s, max, ids + s * tokens, tokens, bk_golden_attr(g, "eta", "%s", path), scratch, &err), &err);
        }
}

static void same_list(const char *path, const char *what, const int32_t *got, int64_t n, const int64_t *want, int64_t want_n)
{
    ck_assert_msg(n == want_n, "%s: %d %s, not %d", path, (int)n, what, (int)want_n);
    for (int64_t i = 0; i < n; i++) ck_assert_msg(got[i] == want[i], "%s: %s[%d] is %d, not %d", path, what, (int)i, (int)got[i], (int)want[i]);
}

static void check_outliers(bk_golden *g, const char *path, const bk_outliers *o)
{
    const int64_t *want = bk_golden_i64(g, "%s/outliers", path), *counts = bk_golden_i64(g, "%s/counts", path);
    const double *max = bk_golden_f64(g, "%s/token_max", path);
    int64_t dim[BK_GOLDEN_DIMS], seen[16] = {0};
    bk_golden_dims(g, dim, "%s/acts", path);
    ck_assert_int_le(o->blocks, 16);
    ck_assert_msg(o->n == bk_golden_attr_i64(g, "n_outliers", "%s", path), "%s: %d outliers", path, (int)o->n);
    for (int64_t i = 0; i < o->n; i++) {
        const bk_outlier *x = &o->at[i];
        ck_assert_msg(x->sequence == want[3 * i] && x->block == want[3 * i + 1] && x->position == want[3 * i + 2],
                      "%s: visit %d is (%d, %d, %d), not (%d, %d, %d)", path, (int)i, (int)x->sequence, (int)x->block, (int)x->position,
                      (int)want[3 * i], (int)want[3 * i + 1], (int)want[3 * i + 2]);
        ck_assert((double)x->magnitude == max[(x->block * dim[1] + x->sequence) * dim[2] + x->position]);
        seen[x->block]++;
    }
    for (int64_t b = 0; b < o->blocks; b++) ck_assert_msg(seen[b] == counts[b], "%s: %d outliers in block %d", path, (int)seen[b], (int)b);
}

START_TEST(golden)
{
    const char *path = cases[_i];
    bk_golden *g = bk_golden_open("outliers.h5");
    bk_error err = {0};
    bk_outliers o;
    bk_prefix_choice c;
    detect_case(g, path, &o);
    ok(bk_prefix_choose(&o, bk_golden_attr_i64(g, "bos", "%s", path), bk_golden_attr(g, "rare_fraction", "%s", path), &c, &err), &err);
    check_outliers(g, path, &o);
    same_list(path, "ranked_ids", c.ranked.ids, c.ranked.n, bk_golden_i64(g, "%s/ranked_ids", path), bk_golden_count(g, "%s/ranked_ids", path));
    const int64_t *counts = bk_golden_i64(g, "%s/ranked_counts", path);
    for (int64_t i = 0; i < c.ranked.n; i++) ck_assert_int_eq(c.ranked.counts[i], counts[i]);
    same_list(path, "prefix", c.ids, c.n, bk_golden_i64(g, "%s/prefix", path), bk_golden_count(g, "%s/prefix", path));
    ck_assert_int_eq(c.o_raw, bk_golden_attr_i64(g, "o_raw", "%s", path));
    ck_assert_int_eq(c.o, bk_golden_attr_i64(g, "o", "%s", path));
    ck_assert_int_eq(c.dropped_rare, bk_golden_attr_i64(g, "dropped_rare", "%s", path));
    ck_assert_int_eq(c.ranked.n, bk_golden_attr_i64(g, "n_ranked", "%s", path));
    bk_prefix_choice_free(&c);
    bk_outliers_free(&o);
    bk_golden_close(g);
}
END_TEST

START_TEST(every_case_is_listed)
{
    bk_golden *g = bk_golden_open("outliers.h5");
    int n = 0;
    for (char **name = bk_golden_members(g, "/"); *name; name++, n++) {
        int i = 0;
        while (i < CASES && strcmp(*name, cases[i])) i++;
        ck_assert_msg(i < CASES, "%s is not tested", *name);
    }
    ck_assert_int_eq(n, CASES);
    bk_golden_close(g);
}
END_TEST

/* --- what golden files do not have --- */

START_TEST(a_model_without_bos_gets_none)
{
    bk_error err = {0};
    bk_outliers o = {.sequences = 2, .blocks = 1};
    bk_prefix_choice c;
    float max[5] = {1, 1, 1, 900, 1}, scratch[5];
    int32_t ids[5] = {9, 8, 7, 6, 5};
    for (int64_t s = 0; s < 2; s++) ok(bk_outliers_add(&o, 0, s, max, ids, 5, 64, scratch, &err), &err);
    ok(bk_prefix_choose(&o, -1, 0.1, &c, &err), &err);
    ck_assert_int_eq(c.n, 1);
    ck_assert_int_eq(c.ids[0], 6);
    bk_prefix_choice_free(&c);
    bk_outliers_free(&o);
}
END_TEST

START_TEST(silent_sequences_have_no_outliers)
{
    bk_error err = {0};
    bk_outliers o = {.sequences = 1, .blocks = 1};
    float max[4] = {0}, scratch[4];
    ok(bk_outliers_add(&o, 0, 0, max, (int32_t[4]){1, 2, 3, 4}, 4, 64, scratch, &err), &err);
    ck_assert_int_eq(o.n, 0);
    bk_outliers_free(&o);
}
END_TEST

START_TEST(one_token_is_its_own_median)
{
    bk_error err = {0};
    bk_outliers o = {.sequences = 1, .blocks = 1};
    float max[1] = {1e30f}, scratch[1];
    ok(bk_outliers_add(&o, 0, 0, max, (int32_t[1]){1}, 1, 64, scratch, &err), &err);
    ck_assert_int_eq(o.n, 0);
    bk_outliers_free(&o);
}
END_TEST

START_TEST(no_sequence_is_an_error)
{
    bk_error err = {0};
    bk_outliers o = {.blocks = 1};
    bk_prefix_choice c;
    ck_assert_int_eq(bk_prefix_choose(&o, 1, 0.1, &c, &err), BK_EINVAL);
    bk_prefix_choice_free(&c);
}
END_TEST

START_TEST(more_outliers_than_a_prefix_holds_are_refused)
{
    bk_error err = {0};
    bk_outliers o = {.sequences = 1, .blocks = 1};
    bk_prefix_choice c;
    enum { T = 200 };
    float max[T], scratch[T];
    int32_t ids[T];
    for (int i = 0; i < T; i++) {
        max[i] = i < 120 ? 1 : 1000;
        ids[i] = i;
    }
    ok(bk_outliers_add(&o, 0, 0, max, ids, T, 64, scratch, &err), &err);
    ck_assert_int_eq(bk_prefix_choose(&o, 1, 0.1, &c, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "prefix.threshold"));
    bk_prefix_choice_free(&c);
    bk_outliers_free(&o);
}
END_TEST

/* A quadratic ranking of them would not end within the test's time. */
START_TEST(many_different_outliers_are_ranked)
{
    enum { DIFFERENT = 300000 };
    bk_error err = {0};
    bk_outliers o = {.sequences = DIFFERENT, .blocks = 3, .n = 2 * DIFFERENT};
    bk_prefix_choice c;
    ck_assert_ptr_nonnull(o.at = calloc((size_t)o.n, sizeof *o.at));
    for (int i = 0; i < o.n; i++) o.at[i] = (bk_outlier){i / 2, i & 1, 1 + (i & 1), (DIFFERENT - i / 2) % DIFFERENT, 1};
    o.at[1].id = 5; /* so that 5 has three and 0 one */
    ok(bk_prefix_choose(&o, 1, 0.1, &c, &err), &err);
    ck_assert_int_eq(c.ranked.n, DIFFERENT);
    ck_assert_int_eq(c.ranked.ids[0], 5);
    ck_assert_int_eq(c.ranked.counts[0], 3);
    ck_assert_int_eq(c.ranked.ids[1], DIFFERENT - 1); /* of equal counts the first visited */
    ck_assert_int_eq(c.ranked.ids[DIFFERENT - 1], 0);
    bk_prefix_choice_free(&c);
    bk_outliers_free(&o);
}
END_TEST

/* --- detection on a model --- */

enum { SAMPLES = 3, TOKENS = 40, LOUD = 77 };

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    int32_t ids[SAMPLES * TOKENS];
} model;

static void open_model(model *m, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    bk_config c = bk_tiny_config();
    bk_tiny_model_write(&c, 5, m->dir);
    ok(bk_model_open(m->dir, &m->m, &err), &err);
    ok(bk_source_open(m->m, spec, &m->src, &err), &err);
    for (int i = 0; i < SAMPLES * TOKENS; i++) m->ids[i] = i % 70;
}

static void close_model(model *m)
{
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
}

/* The same by hand: every block over all samples, maxima of down_raw read by a tap of our own. */
typedef struct watcher {
    float max[SAMPLES * TOKENS];
    int64_t seen;
} watcher;

static void watch(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    watcher *w = user;
    bk_error err = {0};
    if (site != BK_SITE_DOWN_RAW || bk_ctx_measuring(ctx)) return;
    int64_t cols = bk_last_dim(x), rows = bk_rows(x);
    float *v = malloc((size_t)(rows * cols) * sizeof *v);
    ck_assert_ptr_nonnull(v);
    ok(bk_read(bk_ctx_backend(ctx), x, 0, v, rows * cols, &err), &err);
    for (int64_t r = 0; r < rows; r++) {
        float m = 0;
        for (int64_t c = 0; c < cols; c++) m = fmaxf(m, fabsf(v[r * cols + c]));
        w->max[w->seen++] = m;
    }
    free(v);
}

static void expected(const bk_backend *be, const model *m, double eta, bk_outliers *o)
{
    bk_error err = {0};
    const bk_config *c = bk_source_config(m->src);
    watcher w;
    bk_block_options opt = {.r3 = bk_source_r3(m->src), .r4 = bk_source_r4(m->src), .tokens = TOKENS};
    bk_block_weights weights;
    bk_block *b;
    bk_stream *h;
    float scratch[TOKENS];
    ok(bk_weights_alloc(c, &weights, &err), &err);
    ok(bk_block_create(&b, be, c, &opt, &err), &err);
    ok(bk_stream_create(&h, SAMPLES, TOKENS, c->hidden, &err), &err);
    ok(bk_embed_stream(m->src, m->ids, h, &err), &err);
    bk_ctx *ctx = bk_ctx_new(be, &err);
    ok(bk_block_pass_measure(ctx, b, SAMPLES, TOKENS), &err);
    ok(bk_ctx_commit(ctx), &err);
    b->tap = watch;
    b->tap_user = &w;
    *o = (bk_outliers){.sequences = SAMPLES, .blocks = c->layers};
    for (int64_t l = 0; l < c->layers; l++) {
        w.seen = 0;
        ok(bk_source_block(m->src, l, &weights, &err), &err);
        ok(bk_block_load(b, &weights, &err), &err);
        ok(bk_block_pass(ctx, b, h, h, &err), &err);
        ck_assert_int_eq(w.seen, SAMPLES * TOKENS);
        for (int64_t s = 0; s < SAMPLES; s++)
            ok(bk_outliers_add(o, l, s, w.max + s * TOKENS, m->ids + s * TOKENS, TOKENS, eta, scratch, &err), &err);
    }
    bk_ctx_free(ctx);
    bk_block_free(b);
    bk_stream_free(h);
    bk_weights_free(&weights);
}

static void check_detection(const bk_backend *be, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    model m;
    bk_outliers got, want;
    double eta = 1.5; /* a random model has no massive activations */
    open_model(&m, spec);
    ok(bk_outliers_detect(be, m.src, m.ids, SAMPLES, TOKENS, eta, NULL, &got, &err), &err);
    expected(be, &m, eta, &want);
    ck_assert_int_ge(want.n, 3);
    ck_assert_int_eq(got.n, want.n);
    for (int64_t i = 0; i < got.n; i++) {
        ck_assert_int_eq(got.at[i].block, want.at[i].block);
        ck_assert_int_eq(got.at[i].sequence, want.at[i].sequence);
        ck_assert_int_eq(got.at[i].position, want.at[i].position);
        ck_assert_int_eq(got.at[i].id, want.at[i].id);
        ck_assert(got.at[i].magnitude == want.at[i].magnitude);
    }
    bk_outliers_free(&got);
    bk_outliers_free(&want);
    close_model(&m);
}

START_TEST(detection_reads_the_input_of_down)
{
    check_detection(bk_backend_ref(BK_F32), NULL);
    check_detection(bk_backend_cpu(), NULL);
}
END_TEST

START_TEST(detection_looks_before_r4)
{
    check_detection(bk_backend_cpu(), &(bk_rotation_spec){.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 2});
}
END_TEST

START_TEST(detection_never_touches_device_memory)
{
    check_detection(bk_backend_guard(BK_F32), NULL);
}
END_TEST

static bk_status stop_at_once(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)done, (void)total;
    return bk_fail(err, BK_ECANCEL, "stopped");
}

START_TEST(detection_can_be_stopped)
{
    bk_error err = {0};
    model m;
    bk_outliers o;
    open_model(&m, NULL);
    ck_assert_int_eq(bk_outliers_detect(bk_backend_cpu(), m.src, m.ids, SAMPLES, TOKENS, 64, &(bk_watch){stop_at_once, NULL}, &o, &err), BK_ECANCEL);
    bk_outliers_free(&o);
    close_model(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("outliers");
    TCase *t = tcase_create("golden");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_case_is_listed);
    tcase_add_loop_test(t, golden, 0, CASES);
    suite_add_tcase(s, t);
    t = tcase_create("edges");
    tcase_add_test(t, a_model_without_bos_gets_none);
    tcase_add_test(t, silent_sequences_have_no_outliers);
    tcase_add_test(t, one_token_is_its_own_median);
    tcase_add_test(t, no_sequence_is_an_error);
    tcase_add_test(t, more_outliers_than_a_prefix_holds_are_refused);
    tcase_add_test(t, many_different_outliers_are_ranked);
    suite_add_tcase(s, t);
    t = tcase_create("detection");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, detection_reads_the_input_of_down);
    tcase_add_test(t, detection_looks_before_r4);
    tcase_add_test(t, detection_never_touches_device_memory);
    tcase_add_test(t, detection_can_be_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
