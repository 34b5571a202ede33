/* Norm fusion and Hadamard rotations, each alone and together: they leave the function of a model as it is, and change what they should. The values that
 * they give: tests/test_rotation_golden.c. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/transforms.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_logits.h"

/* ---- the function of a model ---- */

static const struct {
    const char *what;
    bk_config config;
} shapes[] = {
    {"grouped heads, biases everywhere, tied",
     {.arch = "llama",
      .hidden = 64,
      .inter = 96,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .tied = true}},
    {"one KV head, head_dim 32, q/k norm",
     {.arch = "qwen3", .hidden = 64, .inter = 128, .heads = 4, .kv_heads = 1, .head_dim = 32, .qk_norm = true}},
    {"order 90 without Hadamard matrix",
     {.arch = "qwen2", .hidden = 90, .inter = 90, .heads = 3, .kv_heads = 3, .head_dim = 30, .qkv_bias = true}},
    {"Williamson 172, tied",
     {.arch = "qwen2", .hidden = 48, .inter = 172, .heads = 6, .kv_heads = 3, .head_dim = 8, .qkv_bias = true, .tied = true}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { R1, R2, R2_PER_KV_HEAD, ALL, ALL_PER_KV_HEAD, SPECS = 10 };
static const struct {
    const char *what;
    bk_rotation_spec spec;
} specs[SPECS] = {
    [R1] = {"R1", {.r1 = true, .seed = 3}},
    [R2] = {"R2", {.r2 = true, .seed = 3}},
    [R2_PER_KV_HEAD] = {"R2 per KV head", {.r2 = true, .r2_per_kv_head = true, .seed = 3}},
    [ALL] = {"R1 to R4", {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 4}},
    [ALL_PER_KV_HEAD] =
        {"everything", {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .r2_per_kv_head = true, .seed = 5}},
    {"norms fused, head untied", {.fuse = true}},
    {"R3", {.r3 = true}},
    {"R4", {.r4 = true}},
    {"v bias folded", {.fold_v_bias = true}},
    {"nothing", {.seed = 7}},
};

static bk_config config_of(int shape)
{
    bk_config c = shapes[shape].config;
    c.layers = 3;
    c.vocab = 11;
    c.max_positions = 64;
    c.eps = 1e-5;
    c.rope_theta = 1e4;
    return c;
}

static void check_logits(int i, const bk_backend *be, double tol)
{
    bk_config c = config_of(i / SPECS);
    double off = bk_tiny_off_by(be, &c, &specs[i % SPECS].spec);
    ck_assert_msg(off <= tol, "%s, %s: logits are off by %g", shapes[i / SPECS].what, specs[i % SPECS].what, off);
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

/* ---- what a transform changes ---- */

static void fill(float *x, int64_t count, double mean, double deviation, uint64_t *counter)
{
    for (int64_t i = 0; x && i < count; i++) x[i] = (float)(mean + deviation * bk_rng_normal(9, BK_RNG_TEST, (*counter)++));
}

/* Weights of `c` in arrays allocated for `after`; biases that `c` lacks stay zero. */
static void random_block(const bk_config *c, const bk_config *after, bk_block_weights *w)
{
    uint64_t counter = 0;
    bk_error err = {0};
    ok(bk_weights_alloc(after, w, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        fill(w->w[id], out * in, 0, 1 / sqrt((double)in), &counter);
        if (bk_config_has_bias(c, id)) fill(w->b[id], out, 0.3, 1, &counter);
    }
    for (bk_norm_id id = 0; id < BK_NORM_COUNT; id++) fill(w->norm[id], id < BK_NORM_Q ? c->hidden : c->head_dim, 1, 0.3, &counter);
}

static bk_rotation *rotation_for(const bk_config *c, const bk_rotation_spec *spec)
{
    bk_rotation *r;
    bk_error err = {0};
    float gain[128];
    uint64_t counter = 1000000;
    fill(gain, c->hidden, 1, 0.3, &counter);
    ok(bk_rotation_create(c, spec, gain, &r, &err), &err);
    return r;
}

/* A transform that did nothing would pass the tests above. */
START_TEST(transforms_change_what_they_name)
{
    static const struct {
        bk_rotation_spec spec;
        bool changed[BK_W_COUNT];
    } cases[] = {{{.fuse = true}, {true, true, true, false, true, true, false}},
                 {{.r1 = true}, {true, true, true, true, true, true, true}},
                 {{.r2 = true}, {[BK_W_V] = true, [BK_W_O] = true}},
                 {{.r3 = true}, {false}},
                 {{.r4 = true}, {[BK_W_DOWN] = true}},
                 {{.fold_v_bias = true}, {false}},
                 {{.r1 = false}, {false}}};
    bk_config c = config_of(0);
    bk_rotation *r = rotation_for(&c, &cases[_i].spec);
    bk_block_weights before, after;
    bk_error err = {0};
    random_block(&c, &c, &before);
    random_block(&c, &r->after, &after);
    ok(bk_rotation_block(r, 0, &after, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&c, id, &out, &in);
        bool changed = memcmp(before.w[id], after.w[id], (size_t)(out * in) * sizeof(float)) != 0;
        ck_assert_msg(changed == cases[_i].changed[id], "%s", bk_linear_name[id]);
    }
    bk_weights_free(&before);
    bk_weights_free(&after);
    bk_rotation_free(r);
}
END_TEST

START_TEST(nothing_on_leaves_every_bit)
{
    bk_config c = config_of(0);
    bk_rotation_spec none = {.seed = 7};
    bk_rotation *r = rotation_for(&c, &none);
    bk_block_weights before, after;
    bk_error err = {0};
    float row[64], kept[64];
    uint64_t counter = 0;
    random_block(&c, &c, &before);
    random_block(&c, &r->after, &after);
    fill(row, c.hidden, 0, 1, &counter);
    memcpy(kept, row, sizeof row);
    ok(bk_rotation_block(r, 0, &after, &err), &err);
    ok(bk_rotation_embed(r, 1, row, &err), &err);
    ok(bk_rotation_head(r, 1, row, &err), &err);
    ck_assert_int_eq(before.count, after.count);
    ck_assert_mem_eq(before.memory, after.memory, (size_t)before.count * sizeof(float));
    ck_assert_mem_eq(row, kept, sizeof row);
    ck_assert(r->after.tied == c.tied && r->after.o_bias == c.o_bias);
    bk_weights_free(&before);
    bk_weights_free(&after);
    bk_rotation_free(r);
}
END_TEST

/* ---- what is on, and the signs ---- */

START_TEST(config_after_tells_untied_head_and_new_bias)
{
    bk_config c = config_of(3);
    bk_rotation *r = rotation_for(&c, &specs[ALL_PER_KV_HEAD].spec);
    ck_assert(c.tied && !c.o_bias);
    ck_assert(!r->after.tied && r->after.o_bias);
    ck_assert(r->on[BK_TRANSFORM_UNTIE] && r->on[BK_TRANSFORM_FUSE] && r->on[BK_TRANSFORM_FOLD_V_BIAS]);
    bk_rotation_free(r);
}
END_TEST

START_TEST(online_rotations_alone_untie_and_fuse_nothing)
{
    bk_config c = config_of(3);
    bk_rotation_spec online = {.r3 = true, .r4 = true};
    bk_rotation *r = rotation_for(&c, &online);
    ck_assert(r->after.tied && !r->on[BK_TRANSFORM_FUSE] && !r->on[BK_TRANSFORM_UNTIE]);
    bk_rotation_free(r);
}
END_TEST

START_TEST(fold_does_nothing_without_v_bias)
{
    bk_config c = config_of(1);
    bk_rotation *r = rotation_for(&c, &(bk_rotation_spec){.fold_v_bias = true});
    ck_assert(!r->on[BK_TRANSFORM_FOLD_V_BIAS] && !r->after.o_bias);
    bk_rotation_free(r);
}
END_TEST

START_TEST(signs_depend_on_the_seed_alone)
{
    bk_config c = config_of(0);
    bk_rotation *a = rotation_for(&c, &specs[R1].spec), *again = rotation_for(&c, &specs[R1].spec), *other = rotation_for(&c, &specs[ALL].spec);
    ck_assert_mem_eq(a->r1_signs, again->r1_signs, (size_t)c.hidden);
    ck_assert_mem_ne(a->r1_signs, other->r1_signs, (size_t)c.hidden);
    int minus = 0;
    for (int64_t i = 0; i < c.hidden; i++) {
        ck_assert(abs(a->r1_signs[i]) == 1);
        minus += a->r1_signs[i] < 0;
    }
    ck_assert(minus > 16 && minus < 48);
    bk_rotation_free(a);
    bk_rotation_free(again);
    bk_rotation_free(other);
}
END_TEST

START_TEST(r2_signs_are_shared_or_one_per_kv_head)
{
    bk_config c = config_of(0);
    bk_rotation *shared = rotation_for(&c, &specs[R2].spec), *own = rotation_for(&c, &specs[R2_PER_KV_HEAD].spec);
    ck_assert(shared->r2_layers == 1 && shared->r2_heads == 1);
    ck_assert(own->r2_layers == c.layers && own->r2_heads == c.kv_heads);
    ck_assert_mem_ne(own->r2_signs, own->r2_signs + c.head_dim, (size_t)c.head_dim);
    bk_rotation_free(shared);
    bk_rotation_free(own);
}
END_TEST

START_TEST(list_is_in_order_and_tells_what_it_does)
{
    static const char *const order[] = {"untie", "scales", "fuse", "r1", "r2", "r3", "down_order", "down_signs", "r4", "fold_v_bias"};
    ck_assert_int_eq(BK_TRANSFORM_COUNT, sizeof order / sizeof *order);
    for (int t = 0; t < BK_TRANSFORM_COUNT; t++) {
        ck_assert_str_eq(bk_transforms[t].name, order[t]);
        ck_assert_int_gt(strlen(bk_transforms[t].about), 10);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transforms");
    TCase *tc = tcase_create("transforms");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, logits_stay_in_f64, 0, SHAPES * SPECS);
    tcase_add_loop_test(tc, logits_stay_in_f32, 0, SHAPES * SPECS);
    tcase_add_loop_test(tc, transforms_change_what_they_name, 0, 7);
    tcase_add_test(tc, nothing_on_leaves_every_bit);
    tcase_add_test(tc, config_after_tells_untied_head_and_new_bias);
    tcase_add_test(tc, online_rotations_alone_untie_and_fuse_nothing);
    tcase_add_test(tc, fold_does_nothing_without_v_bias);
    tcase_add_test(tc, signs_depend_on_the_seed_alone);
    tcase_add_test(tc, r2_signs_are_shared_or_one_per_kv_head);
    tcase_add_test(tc, list_is_in_order_and_tells_what_it_does);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
