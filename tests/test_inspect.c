/* brick inspect: what it says is what is in the file, and what it cannot read it says too. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/inspect.h"
#include "experiments/inspect_stats.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/json.h"
#include "io/store.h"

#define N 3
#define T 16
#define C 10

static char dir[64], path[128];
static bk_error err;

#define OK(call) ck_assert_msg((call) == BK_OK, "%s", err.msg)

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

static void setup(void)
{
    strcpy(dir, "/tmp/bk_inspect_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/dump.h5", dir);
    bk_error_clear(&err);
    const bk_store_meta meta = {.schema = "brick.dump", .model = "ti\x1b[31m\xc2\x9b\"ny", .config = "a: 1\nb: 2\n", .prefix_len = 0};
    const int64_t dim[3] = {N, T, C};
    float x[N * T * C], odd[4] = {NAN, INFINITY, 65504, -65504};
    for (int i = 0; i < N * T * C; i++) x[i] = value(i);
    bk_store *s;
    bk_dset *d;
    OK(bk_store_create(&s, path, &meta, 0, &err));
    OK(bk_dset_create(&d, s, "/blocks/000/sites/down_in", BK_STORE_F16, 3, dim, BK_OVERFLOW_WARN, &err));
    OK(bk_dset_write(d, 0, N, x, &err));
    OK(bk_store_put(s, "/odd", BK_STORE_F32, 1, (int64_t[]){4}, odd, &err));
    OK(bk_store_put(s, "/none", BK_STORE_F32, 2, (int64_t[]){0, 3}, NULL, &err));
    OK(bk_store_put(s, "/one", BK_STORE_I64, 0, NULL, &(int64_t){-7}, &err));
    OK(bk_store_commit(s, &err));
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

/* What bk_inspect prints. */
static char *shown(const char *what, bool json)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    OK(bk_inspect(&(bk_inspect_options){.file = path, .path = what, .json = json, .bins = -1}, out, &err));
    fclose(out);
    return text;
}

#define HAS(text, part) ck_assert_msg(strstr(text, part) != NULL, "no '%s' in:\n%s", part, text)

START_TEST(the_tree_names_everything)
{
    char *t = shown(NULL, false);
    HAS(t, "schema = brick.dump");
    HAS(t, "model = ti\\x1b[31m\\u{9b}\"ny\n"); /* nothing that a terminal would obey */
    HAS(t, "config = a: 1\\nb: 2\\n");
    HAS(t, "/blocks/000/sites/down_in  f16  sample 3 x token 16 x channel 10");
    HAS(t, "chunk 1 x 16 x 10");
    free(t);
    t = shown("blocks/000/", false);
    ck_assert_ptr_null(strstr(t, "schema"));
    free(t);
}
END_TEST

/* Bytes of a file that a terminal would obey, or that are no text. */
START_TEST(strings_of_the_file_are_escaped)
{
    const bk_store_meta meta = {.schema = "brick.dump", .model = "tiny\xff\xfe", .config = "{\"a\": \"\\n\"}\x1b[31m\xc2\x9b\xe2\x80\xae"};
    bk_store *s;
    OK(bk_store_create(&s, path, &meta, 0, &err));
    OK(bk_store_commit(s, &err));
    char *t = shown(NULL, false);
    HAS(t, "model = tiny\\xff\\xfe\n");
    HAS(t, "config = {\"a\": \"\\n\"}\\x1b[31m\\u{9b}\\u{202e}\n");
    free(t);
}
END_TEST

START_TEST(outliers_are_found_where_they_are)
{
    char *t = shown("/blocks/000/sites/down_in", false);
    HAS(t, "min        -640  at sample 1, token 5, channel 7");
    HAS(t, "largest tokens");
    HAS(t, "         1         5          -640");
    HAS(t, "zeros      3");
    free(t);
}
END_TEST

START_TEST(json_holds_the_same)
{
    char *t = shown("/blocks/000/sites/down_in", true);
    bk_json *j;
    OK(bk_json_parse(t, strlen(t), "inspect", &j, &err));
    const bk_json *st = bk_json_get(j, "statistics"), *at = bk_json_get(st, "min_at");
    ck_assert_double_eq(bk_json_num(bk_json_get(st, "min"), 0), -640);
    ck_assert_int_eq(bk_json_int(bk_json_at(at, 0), -1), 1);
    ck_assert_int_eq(bk_json_int(bk_json_at(at, 1), -1), 5);
    ck_assert_int_eq(bk_json_int(bk_json_at(at, 2), -1), 7);
    ck_assert_int_eq(bk_json_int(bk_json_get(st, "zeros"), -1), 3);
    const bk_json *row = bk_json_at(bk_json_get(bk_json_get(st, "rows"), "largest"), 0);
    ck_assert_int_eq(bk_json_int(bk_json_get(row, "channel"), -1), 7);
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(bk_json_get(st, "rows"), "median"), 0), 8, 0.16);
    const bk_json *channels = bk_json_get(st, "channels");
    ck_assert_double_eq(bk_json_num(bk_json_get(channels, "median"), 0), 1);
    ck_assert_int_eq(bk_json_int(bk_json_get(bk_json_at(bk_json_get(channels, "largest"), 1), "channel"), -1), 4);
    bk_json_free(j);
    free(t);
}
END_TEST

START_TEST(what_is_not_finite_is_counted)
{
    char *t = shown("/odd", true);
    bk_json *j;
    OK(bk_json_parse(t, strlen(t), "inspect", &j, &err));
    const bk_json *st = bk_json_get(j, "statistics");
    ck_assert_int_eq(bk_json_int(bk_json_get(st, "nan"), -1), 1);
    ck_assert_int_eq(bk_json_int(bk_json_get(st, "inf"), -1), 1);
    ck_assert_int_eq(bk_json_int(bk_json_get(st, "saturated"), -1), 2);
    ck_assert_double_eq(bk_json_num(bk_json_get(st, "mean"), -1), 0);
    ck_assert_double_eq(bk_json_num(bk_json_get(st, "std"), -1), 65504);
    bk_json_free(j);
    free(t);
}
END_TEST

START_TEST(empty_and_single_datasets_have_statistics)
{
    char *t = shown("/none", false);
    HAS(t, "values     0");
    free(t);
    t = shown("/one", false);
    HAS(t, "max        -7\n");
    free(t);
    t = shown("/none", true);
    HAS(t, "\"min\": null");
    HAS(t, "\"mean\": null");
    free(t);
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
    OK(bk_stats_init(&st, ROW, 8, &err));
    for (int at = 0, step = 1; at < LEN; at += step, step = step * 3 % 127) { /* ragged blocks */
        if (step > LEN - at) step = LEN - at;
        OK(bk_stats_add(&st, x + at, step, &err));
    }
    OK(bk_stats_end(&st, &err));
    ck_assert_int_eq(st.n, LEN);
    ck_assert_double_eq_tol(st.mean, mean, 1e-9);
    ck_assert_double_eq_tol(bk_stats_std(&st), sqrt(m2), 1e-9);
    ck_assert_double_eq_tol(bk_stats_kurtosis(&st), m4 / (m2 * m2), 1e-6);
    ck_assert_int_eq(st.rows.item[4].at % 40, 77 / ROW); /* the five rows with 50 more */
    ck_assert_int_eq(st.rows.item[4].channel, 77 % ROW);
    bk_stats_free(&st);
}
END_TEST

/* The verb in a process of its own, as it prints and forks. */
static int run_verb(const char *file, const char *what)
{
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {"inspect", (char *)file, (char *)what, NULL};
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        int code = bk_verb_inspect(what ? 3 : 2, argv);
        fflush(stdout);
        _exit(code);
    }
    int how;
    waitpid(pid, &how, 0);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

START_TEST(exit_codes)
{
    ck_assert_int_eq(run_verb(path, NULL), 0);
    ck_assert_int_eq(run_verb(path, "/odd"), 0);
    ck_assert_int_eq(run_verb(path, "--json"), 0);
    ck_assert_int_eq(run_verb(path, "/absent"), 2);
    ck_assert_int_eq(run_verb(path, "--jason"), 2);
    ck_assert_int_eq(run_verb("/nowhere.h5", NULL), 3);
    ck_assert_int_eq(run_verb("/dev/null", NULL), 3);
    OK(bk_write_file(path, "no HDF5", 7, &err));
    ck_assert_int_eq(run_verb(path, NULL), 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inspect");
    TCase *tc = tcase_create("inspect");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_tree_names_everything);
    tcase_add_test(tc, strings_of_the_file_are_escaped);
    tcase_add_test(tc, outliers_are_found_where_they_are);
    tcase_add_test(tc, json_holds_the_same);
    tcase_add_test(tc, what_is_not_finite_is_counted);
    tcase_add_test(tc, empty_and_single_datasets_have_statistics);
    tcase_add_test(tc, statistics_agree_with_two_passes);
    tcase_add_test(tc, exit_codes);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
