/* Transforms that were fitted to a model: the container, its checks, its file. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "blocks/fitted.h"
#include "io/file.h"
#include "io/store.h"
#include "tests/ok.h"
#include "tests/suite.h"

enum { LAYERS = 3, HIDDEN = 24, KV = 2, DIM = 8, INTER = 12 };

static const bk_config config = {.layers = LAYERS, .hidden = HIDDEN, .heads = 4, .kv_heads = KV, .head_dim = DIM, .inter = INTER};

static void refused(bk_status st, bk_status want, const bk_error *err, const char *said)
{
    ck_assert_msg(st == want, "%s: %s", bk_status_name(st), err->msg);
    ck_assert_msg(strstr(err->msg, said) != NULL, "want \"%s\" in: %s", said, err->msg);
}

/* Q Q^T = I by construction: I - 2 v v^T / |v|^2 */
static void reflection(double *q, int64_t n, uint64_t seed)
{
    double v[HIDDEN], square = 0;
    for (int64_t i = 0; i < n; i++) v[i] = bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    for (int64_t i = 0; i < n; i++) square += v[i] * v[i];
    for (int64_t i = 0; i < n * n; i++) q[i] = (i / n == i % n) - 2 * v[i / n] * v[i % n] / square;
}

/* Every part, none of them neutral. */
static bk_fitted *full(void)
{
    bk_fitted *f;
    bk_error err = {0};
    ok(bk_fitted_create(&config, &f, &err), &err);
    for (int p = 0; p < BK_FITTED_COUNT; p++) ok(bk_fitted_add(f, p, &err), &err);
    reflection(f->r1, HIDDEN, 1);
    for (int64_t k = 0; k < LAYERS * KV; k++) {
        reflection(f->r2 + k * DIM * DIM, DIM, (uint64_t)k + 2);
        reflection(f->r3 + k * DIM * DIM, DIM, (uint64_t)k + 20);
    }
    for (int64_t i = 0; i < LAYERS * INTER; i++) {
        f->down_order[i] = (int32_t)((i % INTER * 5 + i / INTER) % INTER);
        f->down_signs[i] = i % 3 ? 1 : -1;
        f->scale_down_in[i] = 0.5f + (float)i;
    }
    for (int64_t i = 0; i < LAYERS * HIDDEN; i++) f->scale_attn_in[i] = 1 / (1 + (float)i), f->scale_mlp_in[i] = 3 + (float)i;
    for (int64_t i = 0; i < LAYERS * KV * DIM; i++) f->scale_o_in[i] = 700 + (float)i;
    return f;
}

/* ---- parts ---- */

START_TEST(what_is_added_is_neutral)
{
    bk_fitted *f;
    bk_error err = {0};
    ok(bk_fitted_create(&config, &f, &err), &err);
    ck_assert(!f->r1 && !f->r2 && !f->r3 && !f->down_order && !f->down_signs && !f->scale_attn_in && !f->scale_mlp_in && !f->scale_o_in &&
              !f->scale_down_in);
    for (int p = 0; p < BK_FITTED_COUNT; p++) {
        ok(bk_fitted_add(f, p, &err), &err);
        ck_assert_int_gt(strlen(bk_fitted_name[p]), 1);
    }
    for (int i = 0; i < HIDDEN * HIDDEN; i++) ck_assert(f->r1[i] == (i / HIDDEN == i % HIDDEN));
    for (int i = 0; i < LAYERS * KV * DIM * DIM; i++) ck_assert(f->r2[i] == (i / DIM % DIM == i % DIM) && f->r3[i] == f->r2[i]);
    for (int i = 0; i < LAYERS * INTER; i++) ck_assert(f->down_order[i] == i % INTER && f->down_signs[i] == 1 && f->scale_down_in[i] == 1);
    for (int i = 0; i < LAYERS * HIDDEN; i++) ck_assert(f->scale_attn_in[i] == 1 && f->scale_mlp_in[i] == 1);
    for (int i = 0; i < LAYERS * KV * DIM; i++) ck_assert(f->scale_o_in[i] == 1);
    ok(bk_fitted_check(f, &err), &err);
    bk_fitted_free(f);
}
END_TEST

START_TEST(adding_again_keeps_what_is_there)
{
    bk_fitted *f = full();
    bk_error err = {0};
    double *r1 = f->r1, first = f->r1[0];
    ok(bk_fitted_add(f, BK_FITTED_R1, &err), &err);
    ck_assert(f->r1 == r1 && f->r1[0] == first);
    bk_fitted_free(f);
}
END_TEST

START_TEST(orthogonal_matrices_pass_with_their_rounding)
{
    bk_fitted *f = full();
    bk_error err = {0};
    for (int64_t i = 0; i < HIDDEN * HIDDEN; i++) f->r1[i] *= 1 + 1e-12 * (double)(i % 3 - 1);
    ok(bk_fitted_check(f, &err), &err);
    bk_fitted_free(f);
}
END_TEST

static void bend_r1(bk_fitted *f) { f->r1[5 * HIDDEN + 3] += 1e-7; }
static void scale_r1(bk_fitted *f) { for (int64_t j = 0; j < HIDDEN; j++) f->r1[7 * HIDDEN + j] *= 1 + 1e-8; }
static void blank_r1(bk_fitted *f) { f->r1[2] = NAN; }
static void copy_row_of_r2(bk_fitted *f) { memcpy(f->r2 + (3 * DIM + 6) * DIM, f->r2 + (3 * DIM + 1) * DIM, DIM * sizeof(double)); }
static void bend_r3(bk_fitted *f) { f->r3[((4 * DIM) + 2) * DIM + 2] += 1e-6; }
static void repeat_channel(bk_fitted *f) { f->down_order[INTER + 4] = f->down_order[INTER + 1]; }
static void leave_channels(bk_fitted *f) { f->down_order[2 * INTER] = INTER; }
static void negative_channel(bk_fitted *f) { f->down_order[9] = -1; }
static void no_sign(bk_fitted *f) { f->down_signs[INTER + 2] = 0; }
static void zero_scale(bk_fitted *f) { f->scale_attn_in[2 * HIDDEN + 3] = 0; }
static void negative_scale(bk_fitted *f) { f->scale_mlp_in[1] = -1; }
static void infinite_scale(bk_fitted *f) { f->scale_o_in[2 * KV * DIM + DIM + 5] = INFINITY; }
static void nan_scale(bk_fitted *f) { f->scale_down_in[11] = NAN; }

static const struct {
    void (*spoil)(bk_fitted *f);
    const char *said;
} spoiled[] = {
    {bend_r1, "r1, row"}, {scale_r1, "r1, row 7"}, {blank_r1, "r1, row"}, {copy_row_of_r2, "r2, layer 1, head 1, row"},
    {bend_r3, "r3, layer 2, head 0, row"}, {repeat_channel, "down_order, layer 1, index 4"}, {leave_channels, "down_order, layer 2, index 0"},
    {negative_channel, "down_order, layer 0, index 9"}, {no_sign, "down_signs, layer 1, index 2"},
    {zero_scale, "scale_attn_in, layer 2, index 3"}, {negative_scale, "scale_mlp_in, layer 0, index 1"},
    {infinite_scale, "scale_o_in, layer 2, head 1, index 5"}, {nan_scale, "scale_down_in, layer 0, index 11"},
};

START_TEST(what_is_no_transform_is_refused_by_name)
{
    bk_fitted *f = full();
    bk_error err = {0};
    ok(bk_fitted_check(f, &err), &err);
    spoiled[_i].spoil(f);
    refused(bk_fitted_check(f, &err), BK_ENUMERIC, &err, spoiled[_i].said);
    bk_fitted_free(f);
}
END_TEST

/* ---- the file ---- */

static char dir[64], path[96];

static void make_dir(void)
{
    strcpy(dir, "/tmp/bk_fitted_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/fitted.h5", dir);
}

static void remove_dir(void)
{
    bk_error err = {0};
    ok(bk_remove_tree(dir, &err), &err);
}

static void same(const bk_fitted *a, const bk_fitted *b)
{
#define SAME(part, count) ck_assert(!a->part == !b->part && (!a->part || !memcmp(a->part, b->part, (size_t)(count) * sizeof *a->part)))
    SAME(r1, HIDDEN * HIDDEN);
    SAME(r2, LAYERS * KV * DIM * DIM);
    SAME(r3, LAYERS * KV * DIM * DIM);
    SAME(down_order, LAYERS * INTER);
    SAME(down_signs, LAYERS * INTER);
    SAME(scale_attn_in, LAYERS * HIDDEN);
    SAME(scale_mlp_in, LAYERS * HIDDEN);
    SAME(scale_o_in, LAYERS * KV * DIM);
    SAME(scale_down_in, LAYERS * INTER);
#undef SAME
}

START_TEST(a_file_gives_back_the_bits)
{
    bk_fitted *f = full(), *back;
    bk_error err = {0};
    ok(bk_fitted_save(f, path, &err), &err);
    ok(bk_fitted_load(path, &config, &back, &err), &err);
    same(f, back);
    bk_fitted_free(f);
    bk_fitted_free(back);
}
END_TEST

/* A file has the parts that are there and no others: each alone, and (last) none. */
START_TEST(parts_that_are_not_there_stay_away)
{
    bk_fitted *f, *back;
    bk_error err = {0};
    ok(bk_fitted_create(&config, &f, &err), &err);
    if (_i < BK_FITTED_COUNT) ok(bk_fitted_add(f, _i, &err), &err);
    ok(bk_fitted_save(f, path, &err), &err);
    ok(bk_fitted_load(path, &config, &back, &err), &err);
    same(f, back);
    bk_fitted_free(f);
    bk_fitted_free(back);
}
END_TEST

START_TEST(a_file_of_another_model_is_refused)
{
    bk_fitted *f = full(), *back;
    bk_error err = {0};
    bk_config other = config;
    const struct {
        int64_t *size;
        const char *name;
    } sizes[] = {{&other.layers, "layers"},
                 {&other.hidden, "hidden"},
                 {&other.kv_heads, "kv_heads"},
                 {&other.head_dim, "head_dim"},
                 {&other.inter, "inter"}};
    ++*sizes[_i].size;
    ok(bk_fitted_save(f, path, &err), &err);
    refused(bk_fitted_load(path, &other, &back, &err), BK_ESHAPE, &err, sizes[_i].name);
    ck_assert_ptr_nonnull(strstr(err.msg, path));
    ck_assert_ptr_null(back);
    bk_fitted_free(f);
}
END_TEST

/* Values that no checksum can find fault with. */
START_TEST(a_file_of_nonsense_is_refused)
{
    bk_fitted *f = full(), *back;
    bk_error err = {0};
    spoiled[_i].spoil(f);
    ok(bk_fitted_save(f, path, &err), &err);
    refused(bk_fitted_load(path, &config, &back, &err), BK_ENUMERIC, &err, spoiled[_i].said);
    ck_assert_ptr_null(back);
    bk_fitted_free(f);
}
END_TEST

static unsigned char *slurp(size_t *n)
{
    FILE *in = fopen(path, "rb");
    ck_assert(in && fseek(in, 0, SEEK_END) == 0);
    *n = (size_t)ftell(in);
    rewind(in);
    unsigned char *p = malloc(*n);
    ck_assert(p && fread(p, 1, *n, in) == *n && fclose(in) == 0);
    return p;
}

static void spill(const unsigned char *p, size_t n)
{
    FILE *out = fopen(path, "wb");
    ck_assert(out && fwrite(p, 1, n, out) == n && fclose(out) == 0);
}

START_TEST(a_flipped_byte_names_its_part)
{
    bk_fitted *f = full(), *back;
    bk_error err = {0};
    size_t n;
    const struct {
        const void *value;
        size_t size;
        const char *name;
    } parts[] = {{f->r1, 64, "/fitted/r1"},
                 {f->r2, 64, "/fitted/r2"},
                 {f->down_order, 32, "/fitted/down_order"},
                 {f->scale_o_in, 32, "/fitted/scale_o_in"}};
    ok(bk_fitted_save(f, path, &err), &err);
    unsigned char *bytes = slurp(&n), *at = memmem(bytes, n, parts[_i].value, parts[_i].size);
    ck_assert_ptr_nonnull(at);
    at[9] ^= 4;
    spill(bytes, n);
    refused(bk_fitted_load(path, &config, &back, &err), BK_EFORMAT, &err, parts[_i].name);
    ck_assert_ptr_null(back);
    free(bytes);
    bk_fitted_free(f);
}
END_TEST

START_TEST(a_file_that_is_cut_off_is_refused)
{
    bk_fitted *f = full(), *back;
    bk_error err = {0};
    size_t n;
    ok(bk_fitted_save(f, path, &err), &err);
    unsigned char *bytes = slurp(&n);
    for (size_t length = 0; length < n; length += 501) {
        spill(bytes, length);
        bk_error_clear(&err);
        refused(bk_fitted_load(path, &config, &back, &err), BK_EFORMAT, &err, "fitted.h5");
    }
    free(bytes);
    bk_fitted_free(f);
}
END_TEST

/* A file of the right schema: sizes as they should be but for `without`, and one dataset of another shape or type. */
static void write_by_hand(const char *without, const char *name, bk_store_type type, int64_t rows, int64_t cols)
{
    static const struct {
        const char *name;
        int64_t value;
    } size[] = {{"layers", LAYERS}, {"hidden", HIDDEN}, {"kv_heads", KV}, {"head_dim", DIM}, {"inter", INTER}};
    bk_store *s;
    bk_error err = {0};
    double zeros[HIDDEN * HIDDEN] = {0};
    ok(bk_store_create(&s, path, &(bk_store_meta){.schema = "brick.fitted"}, 0, &err), &err);
    for (int i = 0; i < 5; i++)
        if (strcmp(size[i].name, without) != 0) ok(bk_store_set_int(s, "/", size[i].name, size[i].value, &err), &err);
    if (name) ok(bk_store_put(s, name, type, 2, (int64_t[]){rows, cols}, zeros, &err), &err);
    ok(bk_store_commit(s, &err), &err);
}

START_TEST(contradictory_files_are_refused)
{
    static const struct {
        const char *without, *name;
        bk_store_type type;
        int64_t rows, cols;
        const char *said;
    } bad[] = {{"", "/fitted/r1", BK_STORE_F32, HIDDEN, HIDDEN, "/fitted/r1"},
               {"", "/fitted/r1", BK_STORE_F64, HIDDEN, HIDDEN - 1, "/fitted/r1"},
               {"", "/fitted/r2", BK_STORE_F64, LAYERS, DIM, "/fitted/r2"},
               {"", "/fitted/down_order", BK_STORE_I64, LAYERS, INTER, "down_order"},
               {"inter", NULL, BK_STORE_F64, 0, 0, "inter"}};
    bk_fitted *back;
    bk_error err = {0};
    write_by_hand(bad[_i].without, bad[_i].name, bad[_i].type, bad[_i].rows, bad[_i].cols);
    refused(bk_fitted_load(path, &config, &back, &err), BK_EFORMAT, &err, bad[_i].said);
    ck_assert_ptr_null(back);
}
END_TEST

START_TEST(files_of_another_kind_are_refused)
{
    bk_fitted *back;
    bk_error err = {0};
    ck_assert_int_eq(bk_fitted_load("tests/golden/adamw.h5", &config, &back, &err), BK_EFORMAT);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_fitted_load("/nowhere/fitted.h5", &config, &back, &err), BK_EIO);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fitted");
    TCase *tc = tcase_create("parts");
    int n_spoiled = sizeof spoiled / sizeof *spoiled;
    tcase_add_test(tc, what_is_added_is_neutral);
    tcase_add_test(tc, adding_again_keeps_what_is_there);
    tcase_add_test(tc, orthogonal_matrices_pass_with_their_rounding);
    tcase_add_loop_test(tc, what_is_no_transform_is_refused_by_name, 0, n_spoiled);
    suite_add_tcase(suite, tc);
    tc = tcase_create("file");
    tcase_add_checked_fixture(tc, make_dir, remove_dir);
    tcase_add_test(tc, a_file_gives_back_the_bits);
    tcase_add_loop_test(tc, parts_that_are_not_there_stay_away, 0, BK_FITTED_COUNT + 1);
    tcase_add_loop_test(tc, a_file_of_another_model_is_refused, 0, 5);
    tcase_add_loop_test(tc, a_file_of_nonsense_is_refused, 0, n_spoiled);
    tcase_add_loop_test(tc, a_flipped_byte_names_its_part, 0, 4);
    tcase_add_test(tc, a_file_that_is_cut_off_is_refused);
    tcase_add_loop_test(tc, contradictory_files_are_refused, 0, 5);
    tcase_add_test(tc, files_of_another_kind_are_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
