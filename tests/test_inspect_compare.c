/* brick inspect --against: how far two datasets are apart, and where. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "experiments/inspect_compare.h"
#include "tests/inspect_run.h"
#include "tests/suite.h"

#define N 2
#define T 4
#define C 6

static const bk_store_meta meta = {.schema = "brick.dump", .model = "m"};
static const int64_t dim[3] = {N, T, C};

/* Reference i + 1; off by 0.5 at sample 1, token 2, channel 3 and by -0.25 in channel 5 of sample 0. All are f16. */
static float reference(int i)
{
    return (float)(i + 1);
}

static float value(int i)
{
    float x = reference(i);
    if (i == (1 * T + 2) * C + 3) x += 0.5f;
    if (i < T * C && i % C == 5) x -= 0.25f;
    return x;
}

static void put(bk_store *s, const char *path, bk_store_type type, float (*f)(int))
{
    float x[N * T * C];
    bk_dset *d;
    for (int i = 0; i < N * T * C; i++) x[i] = f(i);
    DONE(bk_dset_create(&d, s, path, type, 3, dim, BK_OVERFLOW_WARN, &inspect_err));
    DONE(bk_dset_write(d, 0, N, x, &inspect_err));
}

/* a.h5: /x the values in f16, /ref the reference; b:c.h5: /x the reference in f32, /odd with NaN and Inf, /narrow. */
static void write_files(void)
{
    bk_store *s;
    DONE(bk_store_create(&s, inspect_file("a.h5"), &meta, 0, &inspect_err));
    put(s, "/x", BK_STORE_F16, value);
    put(s, "/ref", BK_STORE_F16, reference);
    DONE(bk_store_commit(s, &inspect_err));
    DONE(bk_store_create(&s, inspect_file("b:c.h5"), &meta, 0, &inspect_err));
    put(s, "/x", BK_STORE_F32, reference);
    float odd[N * T * C];
    for (int i = 0; i < N * T * C; i++) odd[i] = reference(i);
    odd[7] = NAN, odd[9] = INFINITY;
    DONE(bk_store_put(s, "/odd", BK_STORE_F32, 3, dim, odd, &inspect_err));
    DONE(bk_store_put(s, "/narrow", BK_STORE_F32, 3, (int64_t[]){N, T, C - 1}, odd, &inspect_err));
    DONE(bk_store_commit(s, &inspect_err));
}

/* a.h5 PATH compared with "NAME:PATH2". */
static bk_inspect_options against(const char *path, const char *name, const char *path2)
{
    static char other[256];
    snprintf(other, sizeof other, "%s%s%s", *name ? inspect_file(name) : "", path2 ? ":" : "", path2 ? path2 : "");
    return (bk_inspect_options){.file = inspect_file("a.h5"), .path = path, .against = other, .bins = -1};
}

static double num(const bk_json *j, const char *key)
{
    return bk_json_num(bk_json_get(j, key), NAN);
}

static int64_t at(const bk_json *j, const char *key, size_t i)
{
    return bk_json_int(bk_json_at(bk_json_get(j, key), i), -1);
}

/* The sums of the file above, once more. */
static void expect(const bk_json *c)
{
    double e2 = 0, r2 = 0, v2 = 0, dot = 0;
    for (int i = 0; i < N * T * C; i++) {
        double r = reference(i), v = value(i);
        e2 += (v - r) * (v - r), r2 += r * r, v2 += v * v, dot += v * r;
    }
    ck_assert_double_eq(e2, 0.25 + 4 * 0.0625);
    ck_assert_double_eq_tol(num(c, "mse"), e2 / (N * T * C), 1e-15);
    ck_assert_double_eq_tol(num(c, "snr_db"), 10 * log10(r2 / e2), 1e-12);
    ck_assert_double_eq_tol(num(c, "cosine"), dot / sqrt(r2 * v2), 1e-15);
    ck_assert_double_eq(num(c, "max_error"), 0.5);
    ck_assert(at(c, "max_error_at", 0) == 1 && at(c, "max_error_at", 1) == 2 && at(c, "max_error_at", 2) == 3);
}

START_TEST(measures_have_their_exact_values)
{
    write_files();
    bk_json *j = inspect_json(against("/x", "b:c.h5", NULL)); /* f16 against f32 */
    const bk_json *c = bk_json_get(j, "comparison");
    expect(c);
    ck_assert_double_eq(num(c, "compared"), N * T * C);
    ck_assert(!bk_json_bool(bk_json_get(c, "same"), true));
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(j, "statistics")), BK_JSON_NULL);
    bk_json_free(j);
}
END_TEST

START_TEST(worst_tokens_and_channels_come_first)
{
    write_files();
    bk_json *j = inspect_json(against("/x", "b:c.h5", NULL));
    const bk_json *c = bk_json_get(j, "comparison"), *rows = bk_json_get(c, "rows"),
                  *channels = bk_json_get(c, "channels");
    const bk_json *row = bk_json_at(rows, 0), *first = bk_json_at(channels, 0), *second = bk_json_at(channels, 1);
    ck_assert(at(row, "at", 0) == 1 && at(row, "at", 1) == 2);
    ck_assert_double_eq(num(row, "mse"), 0.25 / C);
    ck_assert_double_eq(num(row, "share"), 0.5);
    ck_assert_double_eq(num(row, "channel"), 3);
    ck_assert_double_eq(num(bk_json_at(rows, 1), "mse"), 0.0625 / C);
    ck_assert_uint_eq(bk_json_size(rows), 1 + T); /* those with an error, no others */
    ck_assert_uint_eq(bk_json_size(channels), 2);
    /* Both channels have the same error: the first one stands first. */
    ck_assert_double_eq(num(first, "channel"), 3);
    ck_assert_double_eq(num(first, "mse"), 0.25 / (N * T));
    ck_assert_double_eq(num(second, "channel"), 5);
    ck_assert_double_eq(num(second, "max_error"), -0.25);
    ck_assert(at(second, "at", 0) == 0 && at(second, "at", 1) == 0);
    bk_json_free(j);
}
END_TEST

START_TEST(another_path_of_the_same_file)
{
    write_files();
    bk_json *j = inspect_json(against("/x", "", "ref"));
    expect(bk_json_get(j, "comparison"));
    bk_json_free(j);
    j = inspect_json(against("/ref", "b:c.h5", "/x"));
    const bk_json *c = bk_json_get(j, "comparison");
    ck_assert(bk_json_bool(bk_json_get(c, "same"), false));
    ck_assert_double_eq(num(c, "mse"), 0);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(c, "snr_db")), BK_JSON_NULL); /* infinite */
    bk_json_free(j);
    char *t = inspect_shown(against("/ref", "b:c.h5", "/x"));
    HAS(t, "SNR        no error: the values are the same");
    free(t);
}
END_TEST

START_TEST(what_is_not_finite_is_named_and_left_out)
{
    write_files();
    bk_json *j = inspect_json(against("/x", "b:c.h5", "/odd"));
    const bk_json *c = bk_json_get(j, "comparison"), *side = bk_json_get(c, "reference");
    ck_assert_double_eq(num(c, "compared"), N * T * C - 2);
    ck_assert_double_eq(num(c, "mse"), 0.5 / (N * T * C - 2)); /* neither of the two was off */
    ck_assert_double_eq(num(side, "nan"), 1);
    ck_assert(at(side, "nan_at", 0) == 0 && at(side, "nan_at", 1) == 1 && at(side, "nan_at", 2) == 1);
    ck_assert_double_eq(num(side, "inf"), 1);
    ck_assert_double_eq(num(bk_json_get(c, "value"), "nan"), 0);
    bk_json_free(j);
    char *t = inspect_shown(against("/x", "b:c.h5", "/odd"));
    HAS(t, "NaN      1  at sample 0, token 1, channel 1\n");
    HAS(t, "46 of them finite and compared");
    free(t);
}
END_TEST

START_TEST(csv_has_every_token_and_every_channel)
{
    write_files();
    bk_inspect_options o = against("/x", "b:c.h5", NULL);
    o.csv = "tokens";
    char *t = inspect_shown(o);
    HAS(t, "sample,token,id,text,mse,snr_db,max_error,channel\n");
    HAS(t, "\n1,0,,,0,,0,0\n"); /* no error, no ids */
    HAS(t, "\n1,2,,,0.0416666667,");
    free(t);
    o.csv = "channels";
    t = inspect_shown(o);
    HAS(t, "channel,mse,snr_db,max_error,sample,token\n0,0,,0,0,0\n");
    HAS(t, "\n3,0.03125,");
    free(t);
}
END_TEST

/* The same pairs in one go and in ragged pieces. */
START_TEST(pieces_do_not_matter)
{
    enum { LEN = 3000, ROW = 25 };
    static double a[LEN], b[LEN];
    for (int i = 0; i < LEN; i++) a[i] = sin(i), b[i] = sin(i) + 1e-3 * cos(7 * i);
    bk_comparison one, many;
    DONE(bk_comparison_init(&one, ROW, 5, &inspect_err));
    DONE(bk_comparison_init(&many, ROW, 5, &inspect_err));
    DONE(bk_comparison_add(&one, a, b, LEN, &inspect_err));
    for (int i = 0, step = 1; i < LEN; i += step, step = step * 3 % 127) {
        if (step > LEN - i) step = LEN - i;
        DONE(bk_comparison_add(&many, a + i, b + i, step, &inspect_err));
    }
    bk_comparison_end(&one);
    bk_comparison_end(&many);
    ck_assert_double_eq_tol(bk_comparison_mse(&many), bk_comparison_mse(&one), 1e-20);
    ck_assert_int_eq(many.max_at, one.max_at);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(many.rows.item[i].at, one.rows.item[i].at);
        ck_assert_int_eq(many.channels.item[i].channel, one.channels.item[i].channel);
        ck_assert_double_eq_tol(many.rows.item[i].size, one.rows.item[i].size, 1e-20);
    }
    bk_comparison_free(&one);
    bk_comparison_free(&many);
}
END_TEST

START_TEST(trees_are_compared_by_name)
{
    write_files();
    bk_json *j = inspect_json(against(NULL, "b:c.h5", NULL));
    const bk_json *list = bk_json_get(j, "comparisons"), *ref = bk_json_at(list, 0), *x = bk_json_at(list, 1);
    ck_assert_uint_eq(bk_json_size(list), 2); /* and not the scales, which are the same */
    ck_assert_str_eq(bk_json_str(bk_json_get(ref, "path"), ""), "/ref");
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(ref, "reference")), BK_JSON_NULL);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(ref, "mse")), BK_JSON_NULL);
    ck_assert_str_eq(bk_json_str(bk_json_get(x, "reference"), ""), "/x");
    ck_assert_double_eq(num(x, "mse"), 0.5 / (N * T * C));
    ck_assert_double_eq(num(x, "max_error"), 0.5);
    bk_json_free(j);
    char *t = inspect_shown((bk_inspect_options){.file = inspect_file("b:c.h5"), .against = inspect_file("a.h5"), .bins = -1});
    HAS(t, "/narrow  is not in the reference\n");
    HAS(t, "\n/x           0.010417     48.81  0.999993436          -0.5\n");
    free(t);
    t = inspect_shown(against("/", "a.h5", NULL));
    HAS(t, "      0      same  1.000000000             0\n");
    free(t);
}
END_TEST

/* A dump of the reference with ids of its own. */
static void write_dump(const char *name, const int32_t *ids, const char *config, int64_t seed)
{
    const bk_store_meta m = {.schema = "brick.dump", .model = "m", .config = config, .has_seed = true, .seed = seed};
    bk_store *s;
    DONE(bk_store_create(&s, inspect_file(name), &m, 0, &inspect_err));
    put(s, "/x", BK_STORE_F16, reference);
    DONE(bk_store_put(s, "/tokens/input_ids", BK_STORE_I32, 2, (int64_t[]){N, T}, ids, &inspect_err));
    DONE(bk_store_commit(s, &inspect_err));
}

/* Text behind a BOS against the same text behind a prefix: all rows are shifted by one. */
START_TEST(rows_of_other_tokens_are_named)
{
    const int32_t shifted[N * T] = {1, 5, 6, 7, 8, 9, 9, 9}, ids[N * T] = {5, 6, 7, 8, 9, 9, 9, 9};
    write_dump("a.h5", shifted, "{\"rotate\": \"none\", \"prefix\": []}", 2);
    write_dump("b.h5", ids, "{\"rotate\": \"all\", \"prefix\": [1]}", 3);
    static const char *const path[] = {NULL, "/x"};
    for (int i = 0; i < 2; i++) {
        char *t = inspect_shown(against(path[i], "b.h5", NULL));
        HAS(t, "note       token ids differ at 5 of 8 places: rows are not of the same tokens\n");
        HAS(t, "note       rotate differs: \"none\" against \"all\"\n");
        HAS(t, "note       prefix differs: [] against [1]\n");
        HAS(t, "note       seed differs: 2 against 3\n");
        free(t);
        bk_json *j = inspect_json(against(path[i], "b.h5", NULL));
        const bk_json *ids_of = bk_json_get(j, "token_ids"), *attributes = bk_json_get(j, "attributes_that_differ");
        ck_assert(num(ids_of, "places") == N * T && num(ids_of, "differ") == 5);
        ck_assert(!bk_json_bool(bk_json_get(ids_of, "same"), true));
        ck_assert_uint_eq(bk_json_size(attributes), 3);
        ck_assert_double_eq(num(bk_json_at(attributes, 2), "reference"), 3);
        bk_json_free(j);
    }
    char *t = inspect_shown(against(NULL, "b.h5", NULL));
    HAS(t, "/tokens/input_ids  differs at 5 of 8 places\n");
    free(t);
}
END_TEST

START_TEST(rows_of_the_same_tokens_need_no_note)
{
    const int32_t ids[N * T] = {5, 6, 7, 8, 9, 9, 9, 9};
    write_dump("a.h5", ids, "{\"rotate\": \"all\", \"prefix\": [1]}", 3);
    write_dump("b.h5", ids, "{\"rotate\": \"all\", \"prefix\": [1]}", 3);
    char *t = inspect_shown(against(NULL, "b.h5", NULL));
    HAS_NOT(t, "note");
    HAS_NOT(t, "input_ids");
    free(t);
    bk_json *j = inspect_json(against("/x", "b.h5", NULL));
    ck_assert(bk_json_bool(bk_json_get(bk_json_get(j, "token_ids"), "same"), false));
    ck_assert_uint_eq(bk_json_size(bk_json_get(j, "attributes_that_differ")), 0);
    bk_json_free(j);
}
END_TEST

START_TEST(what_cannot_be_compared_says_so)
{
    char said[2048], narrow[256];
    write_files();
    const char *a = inspect_file("a.h5"), *absent = inspect_file("nowhere.h5");
    snprintf(narrow, sizeof narrow, "%s:/narrow", inspect_file("b:c.h5"));
    ck_assert_int_eq(VERB(said, a, "/x", "--against", narrow), 2);
    HAS(said, "[2, 4, 6]");
    HAS(said, "[2, 4, 5]");
    ck_assert_int_eq(VERB(said, a, "/x", "--against", ":/"), 2);
    HAS(said, "is a group");
    ck_assert_int_eq(VERB(said, a, "--against", ":/x"), 2);
    HAS(said, "is a group");
    ck_assert_int_eq(VERB(said, a, "/x", "--against", absent), 3);
    HAS(said, "nowhere.h5");
    ck_assert_int_eq(VERB(said, a, "/x", "--against", "/ref"), 3); /* the colon was forgotten */
    HAS(said, "--against :/ref");
    ck_assert_int_eq(VERB(said, a, "/x", "--against", ":/y"), 2);
    HAS(said, "has no /y");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inspect, two datasets");
    TCase *tc = inspect_case(suite, "comparison");
    tcase_add_test(tc, measures_have_their_exact_values);
    tcase_add_test(tc, worst_tokens_and_channels_come_first);
    tcase_add_test(tc, another_path_of_the_same_file);
    tcase_add_test(tc, what_is_not_finite_is_named_and_left_out);
    tcase_add_test(tc, csv_has_every_token_and_every_channel);
    tcase_add_test(tc, pieces_do_not_matter);
    tcase_add_test(tc, trees_are_compared_by_name);
    tcase_add_test(tc, rows_of_other_tokens_are_named);
    tcase_add_test(tc, rows_of_the_same_tokens_need_no_note);
    tcase_add_test(tc, what_cannot_be_compared_says_so);
    return run_suite(suite);
}
