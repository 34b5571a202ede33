/* A model on disk, read through its transforms. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/source.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static const bk_rotation_spec everything = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fold_v_bias = true, .seed = 5};

typedef struct opened {
    char dir[BK_TINY_PATH];
    bk_model *model;
    bk_source *plain, *turned; /* nothing on; everything on */
    bk_block_weights a, b;     /* allocated for plain and turned */
} opened;

/* qwen2, tied: biases of q, k and v, none of o. */
static opened open_both(void)
{
    opened o;
    bk_error err = {0};
    bk_config c = bk_tiny_config();
    strcpy(c.arch, "qwen2");
    c.qkv_bias = c.tied = true;
    bk_tiny_model_write(&c, 1, o.dir);
    ok(bk_model_open(o.dir, &o.model, &err), &err);
    ok(bk_source_open(o.model, NULL, &o.plain, &err), &err);
    ok(bk_source_open(o.model, &everything, &o.turned, &err), &err);
    ok(bk_weights_alloc(bk_source_config(o.plain), &o.a, &err), &err);
    ok(bk_weights_alloc(bk_source_config(o.turned), &o.b, &err), &err);
    return o;
}

static void close_both(opened *o)
{
    bk_weights_free(&o->a);
    bk_weights_free(&o->b);
    bk_source_close(o->plain);
    bk_source_close(o->turned);
    bk_model_close(o->model);
    bk_tiny_model_remove(o->dir);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

START_TEST(without_transforms_every_bit_is_the_models)
{
    opened o = open_both();
    bk_error err = {0};
    int64_t hidden = bk_source_config(o.plain)->hidden;
    float row[64], want[64], *w = malloc((size_t)o.a.count * sizeof *w);
    ck_assert_ptr_nonnull(w);
    ok(bk_source_block(o.plain, 1, &o.a, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(bk_model_config(o.model), id, &out, &in);
        ok(bk_model_read_linear(o.model, 1, id, w, &err), &err);
        ck_assert_mem_eq(o.a.w[id], w, (size_t)(out * in) * sizeof *w);
        ck_assert_int_eq(o.a.b[id] != NULL, bk_model_has_bias(o.model, id));
    }
    ok(bk_source_embed(o.plain, (int32_t[]){17}, 1, row, &err), &err);
    ok(bk_model_read_embed(o.model, 17, 1, want, &err), &err);
    ck_assert_mem_eq(row, want, sizeof row);
    ok(bk_source_head(o.plain, 17, 1, row, &err), &err);
    ck_assert_mem_eq(row, want, sizeof row); /* tied */
    bk_source_final_norm(o.plain, row);
    ok(bk_model_read_final_norm(o.model, want, &err), &err);
    ck_assert_mem_eq(row, want, (size_t)hidden * sizeof *row);
    ck_assert(bk_source_config(o.plain)->tied);
    ck_assert(!bk_source_r3(o.plain) && !bk_source_r4(o.plain));
    free(w);
    close_both(&o);
}
END_TEST

START_TEST(blocks_are_the_models_blocks_rotated)
{
    opened o = open_both();
    bk_error err = {0};
    for (int64_t layer = 0; layer < 2; layer++) {
        bk_block_weights again;
        ok(bk_weights_alloc(bk_source_config(o.turned), &again, &err), &err);
        ok(bk_weights_load(o.model, layer, &again, &err), &err);
        ok(bk_rotation_block(bk_source_rotation(o.turned), layer, &again, &err), &err);
        ok(bk_source_block(o.turned, layer, &o.b, &err), &err);
        ck_assert_mem_eq(o.b.memory, again.memory, (size_t)again.count * sizeof(float));
        bk_weights_free(&again);
    }
    close_both(&o);
}
END_TEST

/* The bias that folding makes must not keep what an earlier block left in it. */
START_TEST(blocks_read_twice_are_the_same)
{
    opened o = open_both();
    bk_error err = {0};
    ok(bk_source_block(o.turned, 0, &o.b, &err), &err);
    float *first = malloc((size_t)o.b.count * sizeof *first);
    ck_assert_ptr_nonnull(first);
    memcpy(first, o.b.memory, (size_t)o.b.count * sizeof *first);
    ok(bk_source_block(o.turned, 1, &o.b, &err), &err);
    ck_assert_mem_ne(o.b.memory, first, (size_t)o.b.count * sizeof *first);
    ok(bk_source_block(o.turned, 0, &o.b, &err), &err);
    ck_assert_mem_eq(o.b.memory, first, (size_t)o.b.count * sizeof *first);
    free(first);
    close_both(&o);
}
END_TEST

START_TEST(embeddings_come_in_the_order_of_the_ids)
{
    opened o = open_both();
    bk_error err = {0};
    float rows[4 * 64], row[64];
    const int32_t ids[] = {255, 0, 3, 255};
    ok(bk_source_embed(o.turned, ids, 4, rows, &err), &err);
    for (int i = 0; i < 4; i++) {
        ok(bk_model_read_embed(o.model, ids[i], 1, row, &err), &err);
        ok(bk_rotation_embed(bk_source_rotation(o.turned), 1, row, &err), &err);
        ck_assert_double_lt(distance(rows + i * 64, row, 64), 1e-7);
    }
    close_both(&o);
}
END_TEST

START_TEST(ids_outside_the_vocabulary_are_refused)
{
    opened o = open_both();
    float rows[2 * 64];
    for (int i = 0; i < 2; i++) {
        bk_error err = {0};
        const int32_t ids[] = {1, i ? 256 : -1};
        ck_assert_int_eq(bk_source_embed(o.turned, ids, 2, rows, &err), BK_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, i ? "256" : "-1"));
    }
    close_both(&o);
}
END_TEST

/* norm(x) o gain against the plain head equals norm(x R1) against the rotated one, whatever rows are asked for. */
START_TEST(head_takes_the_final_gain)
{
    opened o = open_both();
    bk_error err = {0};
    float plain[3 * 64], turned[3 * 64], gain[64], ones[64];
    double x[64], y[64], size = 0;
    ok(bk_source_head(o.plain, 200, 3, plain, &err), &err);
    ok(bk_source_head(o.turned, 200, 3, turned, &err), &err);
    bk_source_final_norm(o.plain, gain);
    bk_source_final_norm(o.turned, ones);
    for (int i = 0; i < 64; i++) {
        ck_assert(ones[i] == 1);
        x[i] = y[i] = (double)(i * i % 13) - 5;
        size += x[i] * x[i];
    }
    const bk_rotation *r = bk_source_rotation(o.turned);
    ok(bk_hadamard_apply_f64(r->hidden, r->r1_signs, y, 1, 64, 1, &err), &err);
    for (int row = 0; row < 3; row++) {
        double before = 0, after = 0;
        for (int i = 0; i < 64; i++) {
            before += x[i] / sqrt(size / 64) * (double)gain[i] * (double)plain[row * 64 + i];
            after += y[i] / sqrt(size / 64) * (double)turned[row * 64 + i];
        }
        ck_assert_double_eq_tol(before, after, 2e-6);
    }
    close_both(&o);
}
END_TEST

START_TEST(config_and_online_plans_tell_what_runs)
{
    opened o = open_both();
    const bk_config *c = bk_source_config(o.turned);
    ck_assert(!c->tied && c->o_bias && c->qkv_bias && !c->mlp_bias);
    ck_assert_ptr_nonnull(o.b.b[BK_W_O]);
    ck_assert_int_eq(bk_source_r3(o.turned)->n, 16);
    ck_assert_int_eq(bk_source_r4(o.turned)->n, 96);
    ck_assert_ptr_eq(bk_source_model(o.turned), o.model);
    close_both(&o);
}
END_TEST

/* One array for both: a bias of the model without a place in the weights is an error, not silence. */
START_TEST(bias_without_a_place_is_refused)
{
    opened o = open_both();
    bk_error err = {0};
    bk_config bare = *bk_source_config(o.plain);
    bk_block_weights w;
    bare.qkv_bias = false;
    ok(bk_weights_alloc(&bare, &w, &err), &err);
    ck_assert_int_eq(bk_source_block(o.plain, 0, &w, &err), BK_ESHAPE);
    ck_assert_ptr_nonnull(strstr(err.msg, "bias"));
    bk_weights_free(&w);
    close_both(&o);
}
END_TEST

START_TEST(blocks_outside_the_model_are_refused)
{
    opened o = open_both();
    for (int64_t layer = -1; layer <= 2; layer += 3) {
        bk_error err = {0};
        ck_assert_int_ne(bk_source_block(o.turned, layer, &o.b, &err), BK_OK);
        ck_assert_int_gt(strlen(err.msg), 10);
    }
    close_both(&o);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source");
    TCase *tc = tcase_create("source");
    tcase_add_test(tc, without_transforms_every_bit_is_the_models);
    tcase_add_test(tc, blocks_are_the_models_blocks_rotated);
    tcase_add_test(tc, blocks_read_twice_are_the_same);
    tcase_add_test(tc, embeddings_come_in_the_order_of_the_ids);
    tcase_add_test(tc, ids_outside_the_vocabulary_are_refused);
    tcase_add_test(tc, head_takes_the_final_gain);
    tcase_add_test(tc, config_and_online_plans_tell_what_runs);
    tcase_add_test(tc, bias_without_a_place_is_refused);
    tcase_add_test(tc, blocks_outside_the_model_are_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
