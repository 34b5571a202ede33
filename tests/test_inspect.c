/* brick inspect on one file: what it says is what is in the file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "blocks/model.h"
#include "experiments/inspect_histogram.h"
#include "experiments/inspect_stats.h"
#include "experiments/synth.h"
#include "io/file.h"
#include "tests/inspect_run.h"
#include "tests/suite.h"

#define N 3
#define T 16
#define C 10
#define DOWN_IN "/blocks/000/sites/down_in"

/* Ones, but for an outlier channel, an outlier token and a few special values. */
static float value(int64_t i)
{
    int64_t token = i / C % T, channel = i % C;
    float x = i % 2 ? 1.0f : -1.0f;
    if (channel == 4) x *= 8;
    if (i / C == T + 5 && channel == 7) x = -640; /* sample 1, token 5 */
    if (token == 9 && channel == 0) x = 0;
    return x;
}

static const char *write_dump_of(const char *model, const char *sha256)
{
    const bk_store_meta meta = {
        .schema = "brick.dump", .model = model, .model_sha256 = sha256, .config = "a: 1\nb: 2\n"};
    const int64_t dim[3] = {N, T, C};
    const double eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float x[N * T * C], odd[2][3] = {{0, NAN, INFINITY}, {65504, -65504, NAN}};
    int32_t ids[N * T];
    for (int i = 0; i < N * T * C; i++) x[i] = value(i);
    for (int i = 0; i < N * T; i++) ids[i] = i % 5;
    bk_store *s;
    bk_dset *d;
    DONE(bk_store_create(&s, inspect_file("dump.h5"), &meta, 0, &inspect_err));
    DONE(bk_dset_create(&d, s, "/tokens/input_ids", BK_STORE_I32, 2, dim, BK_OVERFLOW_WARN, &inspect_err));
    DONE(bk_dset_write_raw(d, 0, N, ids, &inspect_err));
    DONE(bk_dset_create(&d, s, DOWN_IN, BK_STORE_F16, 3, dim, BK_OVERFLOW_WARN, &inspect_err));
    DONE(bk_dset_write(d, 0, N, x, &inspect_err));
    DONE(bk_store_put(s, "/eight", BK_STORE_F64, 1, (int64_t[]){8}, eight, &inspect_err));
    DONE(bk_store_put(s, "/odd", BK_STORE_F32, 2, (int64_t[]){2, 3}, odd, &inspect_err));
    DONE(bk_store_put(s, "/none", BK_STORE_F32, 2, (int64_t[]){0, 3}, NULL, &inspect_err));
    DONE(bk_store_put(s, "/one", BK_STORE_I64, 0, NULL, &(int64_t){-1234567890123}, &inspect_err));
    DONE(bk_store_commit(s, &inspect_err));
    return inspect_file("dump.h5");
}

static const char *write_dump(void)
{
    return write_dump_of("ti\x1b[31m\xc2\x9b\"ny", NULL);
}

static char *shown(const char *path)
{
    return inspect_shown((bk_inspect_options){.file = write_dump(), .path = path, .bins = -1});
}

static bk_json *json_of(const char *path, int64_t bins)
{
    return inspect_json((bk_inspect_options){.file = write_dump(), .path = path, .bins = bins});
}

static double num(const bk_json *j, const char *key)
{
    return bk_json_num(bk_json_get(j, key), NAN);
}

static int64_t at(const bk_json *j, const char *key, size_t i)
{
    return bk_json_int(bk_json_at(bk_json_get(j, key), i), -1);
}

START_TEST(the_tree_names_everything)
{
    char *t = shown(NULL);
    HAS(t, "schema = brick.dump");
    HAS(t, "model = ti\\x1b[31m\\u{9b}\"ny\n"); /* nothing that a terminal would obey */
    HAS(t, "config = a: 1\\nb: 2\\n");
    HAS(t, "/blocks/000/sites/down_in  f16  sample 3 x token 16 x channel 10");
    HAS(t, "chunk 1 x 16 x 10");
    free(t);
    t = shown("blocks/000/");
    HAS_NOT(t, "schema");
    free(t);
}
END_TEST

/* Bytes of a file that a terminal would obey, or that are no text. */
START_TEST(strings_of_the_file_are_escaped)
{
    const bk_store_meta meta = {
        .schema = "brick.dump", .model = "tiny\xff\xfe", .config = "{\"a\": \"\\n\"}\x1b[31m\xc2\x9b\xe2\x80\xae"};
    bk_store *s;
    DONE(bk_store_create(&s, inspect_file("strings.h5"), &meta, 0, &inspect_err));
    DONE(bk_store_commit(s, &inspect_err));
    char *t = inspect_shown((bk_inspect_options){.file = inspect_file("strings.h5"), .bins = -1});
    HAS(t, "model = tiny\\xff\\xfe\n");
    HAS(t, "config = {\"a\": \"\\n\"}\\x1b[31m\\u{9b}\\u{202e}\n");
    free(t);
}
END_TEST

START_TEST(outliers_are_found_where_they_are)
{
    char *t = shown(DOWN_IN);
    HAS(t, "min        -640  at sample 1, token 5, channel 7");
    HAS(t, "largest tokens");
    /* Ratio to the median 8, channel, id. */
    HAS(t, "         1         5          -640        80         7         1\n");
    HAS(t, "         7          -640       640         1         5         1\n");  /* the channels' median is 1 */
    HAS(t, "zeros      3");
    free(t);
}
END_TEST

START_TEST(json_holds_the_same)
{
    bk_json *j = json_of(DOWN_IN, -1);
    const bk_json *st = bk_json_get(j, "statistics");
    ck_assert_double_eq(num(st, "min"), -640);
    ck_assert(at(st, "min_at", 0) == 1 && at(st, "min_at", 1) == 5 && at(st, "min_at", 2) == 7);
    ck_assert_double_eq(num(st, "zeros"), 3);
    const bk_json *rows = bk_json_get(st, "rows"), *row = bk_json_at(bk_json_get(rows, "largest"), 0);
    ck_assert_double_eq(num(row, "channel"), 7);
    ck_assert_double_eq(num(row, "id"), 1);
    ck_assert_double_eq(num(row, "over_median"), 80);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(row, "text")), BK_JSON_NULL);
    ck_assert_double_eq(num(rows, "median"), 8); /* exact, as for any f16 */
    const bk_json *channels = bk_json_get(st, "channels"), *second = bk_json_at(bk_json_get(channels, "largest"), 1);
    ck_assert_double_eq(num(channels, "median"), 1);
    ck_assert_double_eq(num(second, "channel"), 4);
    ck_assert_double_eq(num(second, "value"), -8); /* with its sign, where it stands first */
    ck_assert(at(second, "at", 0) == 0 && at(second, "at", 1) == 0);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(st, "histogram")), BK_JSON_NULL);
    bk_json_free(j);
}
END_TEST

START_TEST(moments_have_their_exact_values)
{
    bk_json *j = json_of("/eight", -1);
    const bk_json *st = bk_json_get(j, "statistics");
    ck_assert_double_eq(num(st, "mean"), 4.5);
    ck_assert_double_eq_tol(num(st, "std"), sqrt(5.25), 1e-15);
    ck_assert_double_eq_tol(num(st, "kurtosis"), 48.5625 / (5.25 * 5.25), 1e-15);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(st, "rows")), BK_JSON_NULL); /* of one axis */
    bk_json_free(j);
}
END_TEST

START_TEST(what_is_not_finite_is_counted_and_named)
{
    bk_json *j = json_of("/odd", -1);
    const bk_json *st = bk_json_get(j, "statistics");
    ck_assert_double_eq(num(st, "nan"), 2);
    ck_assert(at(st, "nan_at", 0) == 0 && at(st, "nan_at", 1) == 1);
    ck_assert_double_eq(num(st, "inf"), 1);
    ck_assert(at(st, "inf_at", 0) == 0 && at(st, "inf_at", 1) == 2);
    ck_assert_double_eq(num(st, "saturated"), 2);
    ck_assert_double_eq(num(st, "mean"), 0);
    bk_json_free(j);
    char *t = shown("/odd");
    HAS(t, "NaN        2  at 0, 1 first\n");
    HAS(t, "Inf        1  at 0, 2\n");
    free(t);
}
END_TEST

START_TEST(empty_and_single_datasets_have_statistics)
{
    char *t = shown("/none");
    HAS(t, "values     0");
    free(t);
    t = shown("/one");
    HAS(t, "max        -1234567890123\n"); /* all digits of an integer */
    free(t);
    bk_json *j = json_of("/none", 5);
    const bk_json *st = bk_json_get(j, "statistics");
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(st, "min")), BK_JSON_NULL);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(st, "mean")), BK_JSON_NULL);
    ck_assert_int_eq(bk_json_kind_of(bk_json_get(st, "histogram")), BK_JSON_NULL);
    bk_json_free(j);
}
END_TEST

START_TEST(statistics_agree_with_two_passes)
{
    enum { LEN = 5000, ROW = 25 };
    static double x[LEN];
    unsigned seed = 1;
    double mean = 0, m2 = 0, m4 = 0;
    for (int i = 0; i < LEN; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = 1000 + ldexp(seed, -32) + (i % 1000 == 77 ? 50 : 0);
        mean += x[i] / LEN;
    }
    for (int i = 0; i < LEN; i++) m2 += pow(x[i] - mean, 2) / LEN, m4 += pow(x[i] - mean, 4) / LEN;
    bk_stats st;
    DONE(bk_stats_init(&st, ROW, 8, &inspect_err));
    for (int i = 0, step = 1; i < LEN; i += step, step = step * 3 % 127) { /* ragged blocks */
        if (step > LEN - i) step = LEN - i;
        DONE(bk_stats_add(&st, x + i, step, &inspect_err));
    }
    DONE(bk_stats_end(&st, &inspect_err));
    ck_assert_int_eq(st.n, LEN);
    ck_assert_double_eq_tol(st.mean, mean, 1e-9);
    ck_assert_double_eq_tol(bk_stats_std(&st), sqrt(m2), 1e-9);
    ck_assert_double_eq_tol(bk_stats_kurtosis(&st), m4 / (m2 * m2), 1e-6);
    ck_assert_int_eq(st.rows.item[4].at % 40, 77 / ROW); /* the five rows with 50 more */
    ck_assert_int_eq(st.rows.item[4].channel, 77 % ROW);
    ck_assert_double_eq_tol(st.row_median, 1000.96, 1); /* to 11 binary digits */
    bk_stats_free(&st);
}
END_TEST

/* ---- tokens ---- */

/* Five tokens, with all that CSV has to quote; the byte-level letters of line end and space are C and G with dots. */
static const char *write_tokenizer(void)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
        "\"vocab\":{\"a\":0,\",\":1,\"\\\"\":2,\"\\u010a\":3,\"\\u0120\":4}}}";
    DONE(bk_mkdir_p(inspect_file("model"), &inspect_err));
    DONE(bk_write_file(inspect_file("model/tokenizer.json"), text, sizeof text - 1, &inspect_err));
    return inspect_file("model");
}

START_TEST(tokens_have_text_where_a_tokenizer_is_named)
{
    const char *model = write_tokenizer();
    bk_json *j = inspect_json((bk_inspect_options){.file = write_dump(), .path = DOWN_IN, .model = model, .bins = -1});
    const bk_json *row = bk_json_at(bk_json_get(bk_json_get(bk_json_get(j, "statistics"), "rows"), "largest"), 0);
    ck_assert_str_eq(bk_json_str(bk_json_get(row, "text"), ""), ","); /* id 1 */
    bk_json_free(j);
    char *t = shown(DOWN_IN);
    HAS(t, "no text of tokens");
    free(t);
}
END_TEST

/* The model lies beside the file and has the hash that the file names, or another one. */
START_TEST(the_model_that_a_file_names_is_found)
{
    bk_config shape;
    bk_synth *synth;
    bk_model *m;
    char sha256[65];
    DONE(bk_synth_shape("tiny", &shape, &inspect_err));
    DONE(bk_synth_create(&shape, 1, &synth, &inspect_err));
    DONE(bk_synth_write(synth, inspect_file("small"), 0, &inspect_err));
    bk_synth_free(synth);
    DONE(bk_model_open(inspect_file("small"), &m, &inspect_err));
    DONE(bk_model_sha256(m, sha256, &inspect_err));
    bk_model_close(m);
    char *t = inspect_shown((bk_inspect_options){.file = write_dump_of("small", sha256), .path = DOWN_IN, .bins = 0});
    HAS(t, "     640         1         5         1  \"\\x01\"\n");
    free(t);
    sha256[0] = sha256[0] == '0' ? '1' : '0';
    t = inspect_shown((bk_inspect_options){.file = write_dump_of("small", sha256), .path = DOWN_IN, .bins = 0});
    HAS(t, "no text of tokens: the model that the file names was not found");
    free(t);
}
END_TEST

START_TEST(csv_of_tokens_is_quoted)
{
    const char *model = write_tokenizer();
    char *t = inspect_shown(
        (bk_inspect_options){.file = write_dump(), .path = DOWN_IN, .model = model, .csv = "tokens", .bins = -1});
    int lines = 0;
    for (char *p = t; *p; p++) lines += *p == '\n';
    ck_assert_int_eq(lines, 1 + N * T);
    HAS(t, "sample,token,id,text,value,over_median,channel\n0,0,0,a,-8,1,4\n0,1,1,\",\",-8,1,4\n0,2,2,\"\"\"\",-8,1,4\n"
           "0,3,3,\\n,-8,1,4\n0,4,4,\" \",-8,1,4\n");
    HAS(t, "\n1,5,1,\",\",-640,80,7\n");
    free(t);
}
END_TEST

START_TEST(csv_of_channels_has_every_channel)
{
    char *t = inspect_shown((bk_inspect_options){.file = write_dump(), .path = DOWN_IN, .csv = "channels", .bins = -1});
    HAS(t, "channel,value,over_median,sample,token\n0,-1,1,0,0\n");
    HAS(t, "\n4,-8,8,0,0\n");
    HAS(t, "\n7,-640,640,1,5\n");
    free(t);
    t = inspect_shown((bk_inspect_options){.file = write_dump(), .path = "/odd", .csv = "channels", .bins = -1});
    /* Nothing is finite in the last. */
    ck_assert_str_eq(t, "channel,value,over_median,axis 0\n0,65504,1,1\n1,-65504,1,1\n2,,,\n");
    free(t);
}
END_TEST

/* ---- histogram ---- */

static char *drawn(const double *v, int n, int bins, bool log, bool utf8)
{
    bk_histogram h;
    double low = v[0], high = v[0];
    for (int i = 0; i < n; i++) low = fmin(low, v[i]), high = fmax(high, v[i]);
    DONE(bk_histogram_init(&h, low, high, bins, &inspect_err));
    bk_histogram_add(&h, v, n);
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    bk_histogram_draw(&h, out, 40, log, utf8);
    fclose(out);
    bk_histogram_free(&h);
    return text;
}

START_TEST(the_histogram_is_drawn_to_scale)
{
    const double v[] = {-1, -1, -1, -1, -0.5, 0.5, 0.5, 1, NAN, INFINITY};
    char *t = drawn(v, 8, 4, false, false);
    ck_assert_str_eq(t, "\nhistogram of the finite values, bars by count\n"
                        "  -1 .. -0.5  4  #######################\n"
                        "-0.5 ..    0  1  ######\n"
                        "   0 ..  0.5  0\n"
                        " 0.5 ..    1  3  #################\n");
    free(t);
    t = drawn(v, 8, 2, true, true);
    HAS(t, "bars by log(1 + count)");
    HAS(t, "\n-1 ..  0  5  \u2588\u2588");
    free(t);
    bk_histogram h;
    DONE(bk_histogram_init(&h, -1, 1, 4, &inspect_err));
    bk_histogram_add(&h, v, 10);
    ck_assert_int_eq(h.count[0] + h.count[1] + h.count[2] + h.count[3], 8);
    bk_histogram_free(&h);
}
END_TEST

START_TEST(histograms_of_extreme_ranges_hold_every_value)
{
    const double ranges[][2] = {{3, 3}, {-1.7e308, 1.7e308}, {0, 5e-324}, {-0.0, 0.0}, {1e300, 1.0000000000000002e300}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        bk_histogram h;
        int64_t sum = 0;
        DONE(bk_histogram_init(&h, ranges[i][0], ranges[i][1], 7, &inspect_err));
        bk_histogram_add(&h, ranges[i], 2);
        for (int k = 0; k < h.bins; k++) sum += h.count[k];
        ck_assert_int_eq(sum, 2);
        ck_assert_int_ge(h.count[h.bins - 1], 1);
        bk_histogram_free(&h);
    }
}
END_TEST

START_TEST(the_histogram_stands_in_json_when_asked_for)
{
    bk_json *j = json_of("/eight", 2);
    const bk_json *h = bk_json_get(bk_json_get(j, "statistics"), "histogram");
    ck_assert(at(h, "counts", 0) == 4 && at(h, "counts", 1) == 4);
    ck_assert_double_eq(bk_json_num(bk_json_at(bk_json_get(h, "edges"), 1), 0), 4.5);
    bk_json_free(j);
    char *t = shown("/eight");
    HAS(t, "histogram of the finite values");
    free(t);
    t = inspect_shown((bk_inspect_options){.file = inspect_file("dump.h5"), .path = "/eight", .bins = 0});
    HAS_NOT(t, "histogram");
    free(t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inspect");
    TCase *tc = inspect_case(suite, "one file");
    tcase_add_test(tc, the_tree_names_everything);
    tcase_add_test(tc, strings_of_the_file_are_escaped);
    tcase_add_test(tc, outliers_are_found_where_they_are);
    tcase_add_test(tc, json_holds_the_same);
    tcase_add_test(tc, moments_have_their_exact_values);
    tcase_add_test(tc, what_is_not_finite_is_counted_and_named);
    tcase_add_test(tc, empty_and_single_datasets_have_statistics);
    tcase_add_test(tc, statistics_agree_with_two_passes);
    tcase_add_test(tc, tokens_have_text_where_a_tokenizer_is_named);
    tcase_add_test(tc, the_model_that_a_file_names_is_found);
    tcase_add_test(tc, csv_of_tokens_is_quoted);
    tcase_add_test(tc, csv_of_channels_has_every_channel);
    tcase_add_test(tc, the_histogram_is_drawn_to_scale);
    tcase_add_test(tc, histograms_of_extreme_ranges_hold_every_value);
    tcase_add_test(tc, the_histogram_stands_in_json_when_asked_for);
    return run_suite(suite);
}
