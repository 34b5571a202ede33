/* Norm fusion, R1, R2, R3, R4 and the folded v bias against golden models (rotation.h5), stage by stage: weights, what stands at the sites of the
 * blocks, the residual stream, logits. Each stage is a model on disk, read through the transforms that lead to it, as a run reads it. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h5_golden.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/suite.h"
#include "tests/tiny_logits.h"
#include "tests/tiny_model.h"

enum { ALL_ROTATIONS = 4 };
static const struct {
    const char *name;
    bk_rotation_spec spec;
} stages[] = {
    {"base", {.r1 = false}},
    {"norm_fused", {.fuse = true}},
    {"r1", {.r1 = true}},
    {"r1r2", {.r1 = true, .r2 = true, .r2_per_kv_head = true}},
    [ALL_ROTATIONS] = {"r1r2r3r4", {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .r2_per_kv_head = true}},
    {"v_bias_folded", {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .r2_per_kv_head = true}},
};
/* The second model, "wide", has no v bias to fold. */
enum { STAGES = sizeof stages / sizeof *stages, CASES = 2 * STAGES - 1 };

/* A stage of a golden model, open. */
typedef struct golden {
    bk_golden *g;
    const char *model, *stage;
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    bool exact;   /* f64 */
    bool weights; /* are compared */
    int sequence;
    int64_t compared; /* datasets */
} golden;

static bk_config read_config(const golden *t)
{
    bk_config c = {.arch = "llama", .max_positions = 64};
#define SIZE(field, name) c.field = bk_golden_attr_i64(t->g, name, "%s", t->model)
    SIZE(hidden, "hidden"), SIZE(inter, "inter"), SIZE(layers, "n_layers"), SIZE(heads, "n_heads"), SIZE(kv_heads, "n_kv_heads");
    SIZE(head_dim, "head_dim"), SIZE(vocab, "vocab"), SIZE(tied, "tie_word_embeddings");
#undef SIZE
    c.eps = bk_golden_attr(t->g, "rms_norm_eps", "%s", t->model);
    c.rope_theta = bk_golden_attr(t->g, "rope_theta", "%s", t->model);
    c.qkv_bias = c.o_bias = strcmp(bk_golden_attr_str(t->g, "biased_linears", "%s", t->model), "q k v o") == 0;
    return c;
}

static void write_model(golden *t)
{
    bk_config c = read_config(t);
    bk_tiny_model_write(&c, 1, t->dir);
    for (char **name = bk_golden_members(t->g, "%s/base/weights", t->model); *name; name++)
        bk_tiny_model_put(t->dir, *name, bk_golden_f32(t->g, "%s/base/weights/%s", t->model, *name),
                          bk_golden_count(t->g, "%s/base/weights/%s", t->model, *name));
}

static void take_signs(const golden *t, const char *name, int8_t *signs, int64_t count)
{
    ck_assert_int_eq(bk_golden_count(t->g, "%s/rotation/%s", t->model, name), count);
    memcpy(signs, bk_golden_i8(t->g, "%s/rotation/%s", t->model, name), (size_t)count);
}

static golden open_golden(int i)
{
    golden t = {.g = bk_golden_open("rotation.h5"), .model = i < STAGES ? "tied_bias" : "wide", .stage = stages[i % STAGES].name};
    bk_error err = {0};
    write_model(&t);
    ok(bk_model_open(t.dir, &t.m, &err), &err);
    ok(bk_source_open(t.m, &stages[i % STAGES].spec, &t.src, &err), &err);
    const bk_rotation *r = bk_source_rotation(t.src);
    const bk_config *c = &r->before;
    if (r->r1_signs) take_signs(&t, "R1_signs", r->r1_signs, c->hidden);
    if (r->r2_signs) take_signs(&t, "R2_signs", r->r2_signs, c->layers * c->kv_heads * c->head_dim);
    return t;
}

static void close_golden(golden *t)
{
    bk_source_close(t->src);
    bk_model_close(t->m);
    bk_tiny_model_remove(t->dir);
    bk_golden_close(t->g);
}

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static double largest_difference(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = isnan(a[i] - b[i]) ? INFINITY : fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

/* ---- stage by stage ---- */

/* The limits of the file's README: of f64, and of f32. */
static const double f64 = 1e-10, logits_f32 = 1e-4;
static const struct {
    double f32;
    bool relative;
} limits[] = {[BK_TINY_WEIGHT] = {1e-6, true}, [BK_TINY_SITE] = {2e-5, false}, [BK_TINY_STREAM] = {2e-5, false}};

static void path_in_file(const golden *t, bk_tiny_kind kind, const char *name, char path[256])
{
    static const char *const letter[] = {".query", ".key", ".value"}; /* which the file calls q, k and v */
    int n = snprintf(path, 256, "%s/%s/", t->model, t->stage);
    if (kind == BK_TINY_WEIGHT) snprintf(path + n, 256 - (size_t)n, "weights/%s", name);
    if (kind == BK_TINY_SITE) snprintf(path + n, 256 - (size_t)n, "taps%d/%s", t->sequence, name);
    if (kind == BK_TINY_STREAM) snprintf(path + n, 256 - (size_t)n, "%s%d", name, t->sequence);
    for (int i = 0; kind == BK_TINY_SITE && i < 3; i++) {
        char *site = strstr(path, letter[i]);
        if (site) site[2] = 0;
    }
}

static void compare(void *user, bk_tiny_kind kind, const char *name, const double *x, int64_t count, int64_t cols)
{
    golden *t = user;
    char path[256];
    path_in_file(t, kind, name, path);
    if (!bk_golden_has(t->g, "%s", path) || (kind == BK_TINY_WEIGHT && !t->weights)) return;
    ck_assert_int_eq(bk_golden_count(t->g, "%s", path), count);
    const double *want = bk_golden_f64(t->g, "%s", path);
    double off = limits[kind].relative ? bk_golden_error(x, want, count, cols) : largest_difference(x, want, count);
    ck_assert_msg(off <= (t->exact ? f64 : limits[kind].f32), "%s is off by %g", path, off);
    t->compared++;
}

/* brick keeps the gain of the last norm in f32: the head makes up for what that rounds off, so that the model stays the one of the file. */
static const double *head_behind_rounded_gain(const golden *t)
{
    int64_t hidden = bk_source_config(t->src)->hidden, count = bk_source_config(t->src)->vocab * hidden;
    const char *tensor = bk_model_config(t->m)->tied ? "model.embed_tokens.weight" : "lm_head.weight";
    const double *gain = bk_golden_f64(t->g, "%s/base/weights/model.norm.weight", t->model);
    double *head = bk_golden_f64(t->g, "%s/base/weights/%s", t->model, tensor);
    for (int64_t i = 0; i < count; i++) head[i] *= gain[i % hidden] / (double)(float)gain[i % hidden];
    return head;
}

static const double *exact(void *user, const char *tensor)
{
    const golden *t = user;
    return strcmp(tensor, "lm_head.weight") ? bk_golden_f64(t->g, "%s/base/weights/%s", t->model, tensor) : head_behind_rounded_gain(t);
}

static int64_t members(const golden *t, const char *group)
{
    int64_t n = 0;
    if (!bk_golden_has(t->g, "%s/%s/%s", t->model, t->stage, group)) return 0;
    for (char **name = bk_golden_members(t->g, "%s/%s/%s", t->model, t->stage, group); *name; name++) n++;
    return n;
}

/* Every dataset of a stage is compared, with one exception: in f64 the weights of `base` are what was put in. */
static void compare_sequence(golden *t, const bk_backend *be)
{
    int32_t *ids = bk_golden_i32(t->g, "%s/tokens%d", t->model, t->sequence);
    int64_t tokens = bk_golden_count(t->g, "%s/tokens%d", t->model, t->sequence), n = tokens * bk_source_config(t->src)->vocab;
    const double *want = bk_golden_f64(t->g, "%s/%s/logits%d", t->model, t->stage, t->sequence);
    char taps[16];
    snprintf(taps, sizeof taps, "taps%d", t->sequence);
    t->compared = 0;
    double *got = bk_tiny_logits(be, t->src, ids, tokens, &(bk_tiny_way){t, exact, compare}), off = largest_difference(got, want, n);
    ck_assert_msg(off <= (t->exact ? f64 : logits_f32), "%s/%s: logits%d are off by %g", t->model, t->stage, t->sequence, off);
    ck_assert_int_eq(t->compared, (t->weights ? members(t, "weights") : 0) + members(t, taps) + 1);
    free(got);
}

static void compare_stage(int i, const bk_backend *be)
{
    golden t = open_golden(i);
    t.exact = be->dtype == BK_F64;
    t.weights = !t.exact || i % STAGES > 0;
    for (; t.sequence < 2; t.sequence++) compare_sequence(&t, be);
    close_golden(&t);
}

START_TEST(stages_are_the_golden_ones_in_f64)
{
    compare_stage(_i, bk_backend_ref(BK_F64));
}
END_TEST

START_TEST(stages_are_the_golden_ones_in_f32)
{
    compare_stage(_i, bk_backend_cpu());
}
END_TEST

/* ---- what lies beside the stages ---- */

static void compare_rotation(const golden *t, const char *name, const bk_hadamard_plan *plan, const int8_t *signs, int64_t which)
{
    int64_t n = plan->n;
    double *r = zeros(n * n);
    bk_error err = {0};
    const int8_t *want = bk_golden_i8(t->g, "%s/rotation/%s_signs", t->model, name) + which * n;
    for (int64_t i = 0; i < n; i++) {
        ck_assert_int_eq(want[i], signs ? signs[i] : 1);
        r[i * (n + 1)] = 1;
    }
    ok(bk_hadamard_apply_f64(plan, signs, r, n, n, 1, &err), &err);
    double off = largest_difference(r, bk_golden_f64(t->g, "%s/rotation/%s", t->model, name) + which * n * n, n * n);
    ck_assert_msg(off <= f64, "%s/rotation/%s, %lld: off by %g", t->model, name, (long long)which, off);
    free(r);
}

START_TEST(rotations_are_the_golden_matrices)
{
    golden t = open_golden(_i * STAGES + ALL_ROTATIONS);
    const bk_rotation *r = bk_source_rotation(t.src);
    const bk_config *c = &r->before;
    compare_rotation(&t, "R1", r->hidden, r->r1_signs, 0);
    for (int64_t i = 0; i < c->layers * c->kv_heads; i++) compare_rotation(&t, "R2", r->head, r->r2_signs + i * c->head_dim, i);
    compare_rotation(&t, "R3", bk_rotation_r3(r), NULL, 0);
    compare_rotation(&t, "R4", bk_rotation_r4(r), NULL, 0);
    close_golden(&t);
}
END_TEST

/* The limits are those of f32, since the model on disk has the weights of the file rounded to it. Tests of whole models and of their transforms lean
 * on the plain Llama. */
START_TEST(plain_llama_is_the_golden_model)
{
    golden t = open_golden(_i * STAGES);
    for (int s = 0; s < 2; s++) {
        int64_t tokens = bk_golden_count(t.g, "%s/tokens%d", t.model, s), n = bk_golden_count(t.g, "%s/base/hidden%d", t.model, s);
        double *hidden = zeros(n), *logits = bk_plain_logits(t.m, bk_golden_i32(t.g, "%s/tokens%d", t.model, s), tokens, hidden);
        const double *want = bk_golden_f64(t.g, "%s/base/logits%d", t.model, s);
        ck_assert_double_le(largest_difference(hidden, bk_golden_f64(t.g, "%s/base/hidden%d", t.model, s), n), limits[BK_TINY_STREAM].f32);
        ck_assert_double_le(largest_difference(logits, want, bk_golden_count(t.g, "%s/base/logits%d", t.model, s)), logits_f32);
        free(hidden), free(logits);
    }
    close_golden(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rotation_golden");
    TCase *tc = tcase_create("stages");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, stages_are_the_golden_ones_in_f64, 0, CASES);
    tcase_add_loop_test(tc, stages_are_the_golden_ones_in_f32, 0, CASES);
    tcase_add_loop_test(tc, rotations_are_the_golden_matrices, 0, 2);
    tcase_add_loop_test(tc, plain_llama_is_the_golden_model, 0, 2);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
