/* Fitted transforms applied: the model stays the same, in f32 and in f64, and each part does what its comment says. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/source.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_logits.h"

/* ---- the function of a model; at the sizes of real ones: tests/test_offq_function.c ---- */

static const struct {
    const char *name, *arch;
    bk_config c;
} shapes[] = {
    {"grouped heads, biases everywhere, tied",
     "llama",
     {.hidden = 32,
      .inter = 96,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 8,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .tied = true}},
    {"head_dim that is not hidden / heads",
     "qwen3",
     {.hidden = 48, .inter = 64, .layers = 2, .heads = 3, .kv_heads = 1, .head_dim = 32, .qk_norm = true}},
    {"q, k, v bias, as many KV heads as heads",
     "qwen2",
     {.hidden = 40, .inter = 80, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 20, .qkv_bias = true}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bk_config config_of(int i)
{
    bk_config c = shapes[i].c;
    strcpy(c.arch, shapes[i].arch);
    c.vocab = 19;
    c.max_positions = 64;
    c.eps = 1e-5;
    c.rope_theta = 1e4;
    return c;
}

#define PART BK_TINY_PART
static const struct {
    const char *name;
    unsigned parts;
    bk_rotation_spec spec;
} choices[] = {
    {"scale attn_in", PART(SCALE_ATTN_IN), {.r1 = false}},
    {"scale mlp_in", PART(SCALE_MLP_IN), {.r1 = false}},
    {"scale o_in", PART(SCALE_O_IN), {.r1 = false}},
    {"scale down_in", PART(SCALE_DOWN_IN), {.r1 = false}},
    {"scales before a Hadamard",
     PART(SCALE_ATTN_IN) | PART(SCALE_MLP_IN) | PART(SCALE_O_IN) | PART(SCALE_DOWN_IN),
     {.r1 = true, .r2 = true, .r4 = true}},
    {"r1", PART(R1), {.r1 = true}},
    {"r2", PART(R2), {.r2 = true}},
    {"r3", PART(R3), {.r3 = true}},
    {"fitted r3, Hadamard r2", PART(R3), {.r2 = true, .r3 = true, .r2_per_kv_head = true}},
    {"down order", PART(DOWN_ORDER), {.r1 = false}},
    {"down order and signs under R4", PART(DOWN_ORDER) | PART(DOWN_SIGNS), {.r4 = true}},
    {"R4 in groups", 0, {.r4 = true, .r4_group = 16}},
    {"R4 in groups of a Paley order, signs", PART(DOWN_SIGNS), {.r4 = true, .r4_group = -1}},
    {"v bias folded behind o scales", PART(SCALE_O_IN) | PART(R2), {.r2 = true, .fold_v_bias = true}},
    {"everything",
     BK_TINY_ALL_PARTS,
     {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .r4_group = 16}},
};
enum { CHOICES = sizeof choices / sizeof *choices };

/* 12 and 20 come from Paley's matrices */
static int64_t paley_group(int64_t inter) { return inter % 12 == 0 ? 12 : inter % 20 == 0 ? 20 : 4; }

static void check_logits(int i, const bk_backend *be, double tol)
{
    bk_config c = config_of(i / CHOICES);
    bk_rotation_spec spec = choices[i % CHOICES].spec;
    bk_fitted *f = bk_tiny_fitted(&c, choices[i % CHOICES].parts, 3);
    spec.fitted = f;
    spec.be = bk_backend_cpu();
    spec.seed = 4;
    if (spec.r4_group < 0) spec.r4_group = paley_group(c.inter);
    double off = bk_tiny_off_by(be, &c, &spec);
    ck_assert_msg(off <= tol, "%s, %s: logits are off by %g", shapes[i / CHOICES].name, choices[i % CHOICES].name, off);
    bk_fitted_free(f);
}

START_TEST(logits_stay_in_f64)
{
    check_logits(_i, bk_backend_ref(BK_F64), 1e-12);
}
END_TEST

START_TEST(logits_stay_in_f32)
{
    check_logits(_i, bk_backend_cpu(), 3e-5);
}
END_TEST

/* ---- each part does what it says ---- */

typedef struct turned {
    bk_config c;
    bk_fitted *f;
    bk_rotation *r;
    bk_block_weights before, after;
} turned;

static bk_rotation *rotation_for(const bk_config *c, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    float gain[64];
    bk_rotation *r;
    for (int i = 0; i < 64; i++) gain[i] = 1 + 0.01f * (float)i;
    ok(bk_rotation_create(c, spec, gain, &r, &err), &err);
    return r;
}

static void fill(bk_block_weights *w)
{
    for (int64_t i = 0; i < w->count; i++) w->memory[i] = (float)((i * 7919) % 1009) / 512 - 0.98f;
}

/* Block 1 of shape 0, before and after. */
static turned turn(unsigned parts, bk_rotation_spec spec)
{
    turned t = {.c = config_of(0)};
    bk_error err = {0};
    t.f = bk_tiny_fitted(&t.c, parts, 11);
    spec.fitted = t.f;
    spec.be = bk_backend_cpu();
    t.r = rotation_for(&t.c, &spec);
    ok(bk_weights_alloc(&t.r->after, &t.before, &err), &err);
    ok(bk_weights_alloc(&t.r->after, &t.after, &err), &err);
    fill(&t.before);
    fill(&t.after);
    ok(bk_rotation_block(t.r, 1, &t.after, &err), &err);
    return t;
}

static void release(turned *t)
{
    bk_weights_free(&t->before);
    bk_weights_free(&t->after);
    bk_rotation_free(t->r);
    bk_fitted_free(t->f);
}

/* Consistent errors, such as the inverse order in all three linears, leave the function of the model alone. */
START_TEST(new_channels_of_down_are_those_that_the_order_names)
{
    turned t = turn(BK_TINY_PART(DOWN_ORDER), (bk_rotation_spec){.r1 = false});
    int64_t n = t.c.inter, c = t.c.hidden;
    const int32_t *order = t.f->down_order + n; /* of layer 1 */
    const bk_block_weights *a = &t.after, *b = &t.before;
    for (int64_t k = 0; k < n; k++) {
        ck_assert_mem_eq(a->w[BK_W_GATE] + k * c, b->w[BK_W_GATE] + order[k] * c, (size_t)c * sizeof(float));
        ck_assert_mem_eq(a->w[BK_W_UP] + k * c, b->w[BK_W_UP] + order[k] * c, (size_t)c * sizeof(float));
        ck_assert(a->b[BK_W_GATE][k] == b->b[BK_W_GATE][order[k]] && a->b[BK_W_UP][k] == b->b[BK_W_UP][order[k]]);
        for (int64_t r = 0; r < c; r++) ck_assert(a->w[BK_W_DOWN][r * n + k] == b->w[BK_W_DOWN][r * n + order[k]]);
    }
    release(&t);
}
END_TEST

/* Signs are of the new order, and gate, which is not linear, has none. */
START_TEST(signs_go_to_the_rows_of_up_alone)
{
    turned t = turn(BK_TINY_PART(DOWN_ORDER) | BK_TINY_PART(DOWN_SIGNS), (bk_rotation_spec){.r4 = true});
    int64_t n = t.c.inter, c = t.c.hidden;
    const int32_t *order = t.f->down_order + n;
    const int8_t *sign = t.f->down_signs + n;
    for (int64_t k = 0; k < n; k++) {
        ck_assert_mem_eq(t.after.w[BK_W_GATE] + k * c, t.before.w[BK_W_GATE] + order[k] * c, (size_t)c * sizeof(float));
        ck_assert(t.after.b[BK_W_UP][k] == t.before.b[BK_W_UP][order[k]] * sign[k]);
        for (int64_t i = 0; i < c; i++) ck_assert(t.after.w[BK_W_UP][k * c + i] == t.before.w[BK_W_UP][order[k] * c + i] * sign[k]);
    }
    release(&t);
}
END_TEST

static void near(double got, double want, const char *what)
{
    ck_assert_msg(fabs(got - want) <= 1e-6 * fabs(want), "%s: %g, want %g", what, got, want);
}

START_TEST(inputs_are_divided_by_their_scales)
{
    const unsigned all = BK_TINY_PART(SCALE_ATTN_IN) | BK_TINY_PART(SCALE_MLP_IN) | BK_TINY_PART(SCALE_O_IN) | BK_TINY_PART(SCALE_DOWN_IN);
    turned t = turn(all, (bk_rotation_spec){.r1 = false});
    const bk_config *c = &t.c;
    const bk_block_weights *a = &t.after, *b = &t.before;
    int64_t d = c->head_dim, per = c->heads / c->kv_heads;
    for (int64_t i = 0; i < c->hidden; i++) {
        double attn = (double)t.f->scale_attn_in[c->hidden + i], mlp = (double)t.f->scale_mlp_in[c->hidden + i];
        near((double)a->norm[BK_NORM_ATTN][i], (double)b->norm[BK_NORM_ATTN][i] / attn, "gain of attention");
        near((double)a->norm[BK_NORM_MLP][i], (double)b->norm[BK_NORM_MLP][i] / mlp, "gain of the MLP");
        near((double)a->w[BK_W_Q][3 * c->hidden + i], (double)b->w[BK_W_Q][3 * c->hidden + i] * attn, "q");
        near((double)a->w[BK_W_GATE][3 * c->hidden + i], (double)b->w[BK_W_GATE][3 * c->hidden + i] * mlp, "gate");
    }
    for (int64_t k = 0; k < c->kv_heads * d; k++)
        near((double)a->b[BK_W_V][k], (double)b->b[BK_W_V][k] / (double)t.f->scale_o_in[c->kv_heads * d + k], "bias of v");
    for (int64_t i = 0; i < c->heads * d; i++) {
        double scale = (double)t.f->scale_o_in[c->kv_heads * d + i / d / per * d + i % d];
        near((double)a->w[BK_W_O][i], (double)b->w[BK_W_O][i] * scale, "o");
    }
    for (int64_t k = 0; k < c->inter; k++) {
        double scale = (double)t.f->scale_down_in[c->inter + k];
        near((double)a->b[BK_W_UP][k], (double)b->b[BK_W_UP][k] / scale, "bias of up");
        near((double)a->w[BK_W_DOWN][c->inter + k], (double)b->w[BK_W_DOWN][c->inter + k] * scale, "down");
    }
    release(&t);
}
END_TEST

/* Rows of a matrix Q with x Q = the fast transform of x. */
static void dense_hadamard(double *q, int64_t n, const int8_t *signs)
{
    bk_error err = {0};
    bk_hadamard_plan *h;
    ok(bk_hadamard_create(n, &h, &err), &err);
    for (int64_t i = 0; i < n * n; i++) q[i] = i / n == i % n;
    ok(bk_hadamard_apply_f64(h, signs, q, n, n, 1, &err), &err);
    bk_hadamard_free(h);
}

/* Tells x Q from x Q^T, and one head from another: the Hadamards of a run, written out, must do what the fast transforms do. */
START_TEST(written_out_hadamards_do_what_fast_ones_do)
{
    bk_config c = config_of(0); /* two KV heads, biases */
    c.hidden = 48;              /* whose matrix is not symmetric */
    bk_error err = {0};
    bk_rotation_spec spec = {.r1 = true, .r2 = true, .r2_per_kv_head = true, .seed = 5};
    bk_rotation *fast = rotation_for(&c, &spec);
    bk_fitted *f = bk_tiny_fitted(&c, BK_TINY_PART(R1) | BK_TINY_PART(R2), 1);
    int64_t d = c.head_dim;
    dense_hadamard(f->r1, c.hidden, fast->r1_signs);
    for (int64_t k = 0; k < c.layers * c.kv_heads; k++) dense_hadamard(f->r2 + k * d * d, d, fast->r2_signs + k * d);
    spec.fitted = f;
    spec.be = bk_backend_cpu();
    bk_rotation *dense = rotation_for(&c, &spec);
    bk_block_weights a, b;
    ok(bk_weights_alloc(&c, &a, &err), &err);
    ok(bk_weights_alloc(&c, &b, &err), &err);
    fill(&a);
    fill(&b);
    ok(bk_rotation_block(fast, 1, &a, &err), &err);
    ok(bk_rotation_block(dense, 1, &b, &err), &err);
    for (int64_t i = 0; i < a.count; i++)
        ck_assert_msg(fabs((double)a.memory[i] - (double)b.memory[i]) < 2e-6, "weight %lld: %g and %g", (long long)i, (double)a.memory[i],
                      (double)b.memory[i]);
    float x[2][3 * 48];
    for (int i = 0; i < 3 * 48; i++) x[0][i] = x[1][i] = (float)(i % 11) - 4;
    ok(bk_rotation_embed(fast, 3, x[0], &err), &err);
    ok(bk_rotation_embed(dense, 3, x[1], &err), &err);
    for (int i = 0; i < 3 * 48; i++) ck_assert_double_eq_tol((double)x[0][i], (double)x[1][i], 2e-6);
    bk_weights_free(&a);
    bk_weights_free(&b);
    bk_rotation_free(fast);
    bk_rotation_free(dense);
    bk_fitted_free(f);
}
END_TEST

START_TEST(fitted_r3_comes_along_in_f32)
{
    turned t = turn(BK_TINY_PART(R3), (bk_rotation_spec){.r3 = true});
    int64_t n = t.c.kv_heads * t.c.head_dim * t.c.head_dim;
    ck_assert(t.r->after.r3_per_kv_head && !t.c.r3_per_kv_head && !bk_rotation_r3(t.r));
    for (int64_t i = 0; i < n; i++) ck_assert(t.after.r3[i] == (float)t.f->r3[n + i]);
    release(&t);
}
END_TEST

START_TEST(fitted_rotations_that_are_off_are_not_used)
{
    turned t = turn(BK_TINY_PART(R1) | BK_TINY_PART(R2) | BK_TINY_PART(R3), (bk_rotation_spec){.r1 = false});
    ck_assert(!t.r->after.r3_per_kv_head && !t.after.r3);
    ck_assert_mem_eq(t.before.memory, t.after.memory, (size_t)t.before.count * sizeof(float));
    release(&t);
}
END_TEST

/* The product of a vector does not depend on the vectors around it: a token's embedding is the same in every batch. */
START_TEST(a_row_turns_alone_as_among_others)
{
    enum { ROWS = 131 };
    turned t = turn(BK_TINY_PART(R1), (bk_rotation_spec){.r1 = true});
    bk_error err = {0};
    float all[ROWS * 32], one[32];
    for (int i = 0; i < ROWS * 32; i++) all[i] = (float)((i * 31) % 97) / 13 - 3;
    for (int k = 0; k < ROWS; k += 13) {
        float again[ROWS * 32];
        memcpy(again, all, sizeof all);
        memcpy(one, all + k * 32, sizeof one);
        ok(bk_rotation_embed(t.r, ROWS, again, &err), &err);
        ok(bk_rotation_embed(t.r, 1, one, &err), &err);
        ck_assert_mem_eq(one, again + k * 32, sizeof one);
    }
    release(&t);
}
END_TEST

/* ---- what cannot be ---- */

START_TEST(what_cannot_be_done_is_refused)
{
    bk_config c = config_of(0), other = c;
    other.inter += 2;
    bk_fitted *f = bk_tiny_fitted(&c, BK_TINY_PART(R1) | BK_TINY_PART(R2) | BK_TINY_PART(DOWN_SIGNS), 1),
              *r1 = bk_tiny_fitted(&c, BK_TINY_PART(R1), 1), *alien = bk_tiny_fitted(&other, 0, 1);
    bk_backend bare = *bk_backend_cpu();
    bare.k.gemm_f64 = NULL;
    const struct {
        bk_rotation_spec spec;
        bk_status st;
        const char *said;
    } bad[] = {
        {{.fitted = f}, BK_EINVAL, "R4"},
        {{.fitted = f, .r4 = true, .r1 = true}, BK_EINVAL, "backend"},
        {{.fitted = f, .r4 = true, .r2 = true}, BK_EINVAL, "backend"},
        {{.fitted = r1, .r1 = true, .be = &bare}, BK_EUNSUP, "gemm_f64"},
        {{.fitted = alien}, BK_ESHAPE, "inter"},
        {{.r4 = true, .r4_group = 36}, BK_EINVAL, "groups of 36"},
        {{.r4 = true, .r4_group = 6}, BK_EINVAL, "order 6"},
        {{.r4 = true, .r4_group = -8}, BK_EINVAL, "-8"},
    };
    float gain[64] = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bk_error err = {0};
        bk_rotation *r;
        ck_assert_int_eq(bk_rotation_create(&c, &bad[i].spec, gain, &r, &err), bad[i].st);
        ck_assert_msg(strstr(err.msg, bad[i].said) != NULL, "%s", err.msg);
        ck_assert_ptr_null(r);
    }
    bk_fitted_free(f);
    bk_fitted_free(r1);
    bk_fitted_free(alien);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fitted transforms");
    TCase *tc = tcase_create("function");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, logits_stay_in_f64, 0, SHAPES * CHOICES);
    tcase_add_loop_test(tc, logits_stay_in_f32, 0, SHAPES * CHOICES);
    suite_add_tcase(suite, tc);
    tc = tcase_create("parts");
    tcase_add_test(tc, new_channels_of_down_are_those_that_the_order_names);
    tcase_add_test(tc, signs_go_to_the_rows_of_up_alone);
    tcase_add_test(tc, inputs_are_divided_by_their_scales);
    tcase_add_test(tc, written_out_hadamards_do_what_fast_ones_do);
    tcase_add_test(tc, fitted_r3_comes_along_in_f32);
    tcase_add_test(tc, fitted_rotations_that_are_off_are_not_used);
    tcase_add_test(tc, a_row_turns_alone_as_among_others);
    tcase_add_test(tc, what_cannot_be_done_is_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
