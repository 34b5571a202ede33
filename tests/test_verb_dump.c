/* brick dump through its handler. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/resource.h>

#include "blocks/names.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/store.h"
#include "tests/letters.h"
#include "tests/ok.h"
#include "tests/suite.h"

#define DUMP(...) \
    letters_call(bk_verb_dump, "dump", "--model", letters.folder, "--text", letters.text, "--out", letters.out, __VA_ARGS__, NULL)

/* One dataset of the dump as f32. */
static float *read_dataset(const char *dataset, int64_t *width, bk_store_type *type)
{
    bk_store *s;
    bk_dset *d;
    ok(bk_store_open(&s, letters.out, "brick.dump", &letters.err), &letters.err);
    ok(bk_dset_open(&d, s, dataset, &letters.err), &letters.err);
    const bk_dset_info *info = bk_dset_info_of(d);
    ck_assert_int_eq(info->rank, 3);
    *width = info->dim[2];
    *type = info->type;
    float *x = malloc((size_t)(info->dim[0] * info->sample_len) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    ok(bk_dset_read(d, 0, info->dim[0], x, &letters.err), &letters.err);
    bk_dset_close(d);
    bk_store_close(s);
    return x;
}

START_TEST(dump_stores_what_passed_the_site)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "attn_in", "--blocks", "0", "--seqlen", "32", "--windows", "3", "--dtype", "f32"), 0);
    float *x = read_dataset("/blocks/000/sites/attn_in", &width, &type);
    ck_assert_int_eq(width, 64);
    ck_assert_int_eq(type, BK_STORE_F32);
    const char *line = "the quick brown fox. jumps over\n";
    for (int t = 0; t < 3 * 32; t++) {
        double square = 0;
        for (int c = 0; c < 64; c++) square += pow((double)letters_embedding(line[t % 32], c, 64), 2);
        for (int c = 0; c < 64; c++)
            ck_assert_double_eq_tol((double)x[t * 64 + c],
                                    (double)letters_embedding(line[t % 32], c, 64) / sqrt(square / 64 + 1e-5), 1e-4);
    }
    free(x);
}
END_TEST

START_TEST(dump_has_the_chosen_blocks_and_sites_and_no_others)
{
    bk_store *s;
    ck_assert_int_eq(DUMP("--sites", "down_raw,key", "--blocks", "1", "--seqlen", "32", "--windows", "2"), 0);
    ok(bk_store_open(&s, letters.out, "brick.dump", &letters.err), &letters.err);
    ck_assert(bk_store_has(s, "/blocks/001/sites/key") && bk_store_has(s, "/blocks/001/sites/down_raw"));
    ck_assert(!bk_store_has(s, "/blocks/000") && !bk_store_has(s, "/blocks/001/sites/value"));
    int32_t ids[2 * 32];
    ok(bk_store_get(s, "/tokens/input_ids", BK_STORE_I32, 2, (int64_t[]){2, 32}, ids, &letters.err), &letters.err);
    ck_assert_int_eq(ids[0], 't');
    bk_store_close(s);
}
END_TEST

/* The '.' makes one value of 1e5 in a sample. */
START_TEST(dump_saturates_and_goes_on)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--blocks", "0", "--seqlen", "32", "--windows", "2", "--json"), 0);
    bk_json *o = letters_json();
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "saturated"), -1), 2);
    bk_json_free(o);
    float *x = read_dataset("/blocks/000/sites/down_raw", &width, &type);
    ck_assert_int_eq(type, BK_STORE_F16);
    ck_assert_float_eq(x[19 * width], 65504);
    free(x);
}
END_TEST

START_TEST(dump_widens_when_asked)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--blocks", "0", "--seqlen", "32", "--windows", "2", "--overflow", "f32"),
                     0);
    float *x = read_dataset("/blocks/000/sites/down_raw", &width, &type);
    ck_assert_int_eq(type, BK_STORE_F32);
    ck_assert_float_gt(x[19 * width], 65504);
    free(x);
}
END_TEST

START_TEST(dump_stops_when_asked)
{
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--seqlen", "32", "--windows", "2", "--overflow", "error"),
                     BK_EXIT_NUMERIC);
    ck_assert(!bk_exists(letters.out));
}
END_TEST

/* HDF5 forgets a chunk that is alone in its dataset, if it may. */
START_TEST(dump_of_one_sample_is_read_back)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "block_out", "--seqlen", "32", "--windows", "1"), 0);
    float *x = read_dataset("/blocks/001/sites/block_out", &width, &type);
    ck_assert_float_eq_tol(x[19 * width + 63], LETTERS_FLAG, LETTERS_FLAG / 4);
    free(x);
}
END_TEST

START_TEST(dump_names_the_site_that_was_meant)
{
    ck_assert_int_eq(DUMP("--sites", "donw_in"), BK_EXIT_USAGE);
    ck_assert(!bk_exists(letters.out));
}
END_TEST

START_TEST(dump_refuses_bad_blocks)
{
    static const char *const bad[] = {"2", "1-0", "0,", "-1", "0-", "", "0-99999999999999999999", "x"};
    ck_assert_int_eq(DUMP("--sites", "key", "--blocks", bad[_i]), BK_EXIT_USAGE);
}
END_TEST

START_TEST(dump_refuses_a_device_as_output)
{
    strcpy(letters.out, "/dev/full");
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(dump_does_not_replace_a_file_that_is_no_dump)
{
    FILE *f = fopen(letters.out, "w");
    ck_assert_ptr_nonnull(f);
    fputs("not yours", f);
    fclose(f);
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
    char kept[16] = "";
    f = fopen(letters.out, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(kept, sizeof kept, f));
    fclose(f);
    ck_assert_str_eq(kept, "not yours");
}
END_TEST

START_TEST(dump_does_not_replace_another_file_of_a_run)
{
    bk_store *s;
    bk_store_meta meta = {.schema = "brick.checkpoint", .model = "m"};
    ck_assert_int_eq(bk_store_create(&s, letters.out, &meta, 0, &letters.err), BK_OK);
    ck_assert_int_eq(bk_store_commit(s, &letters.err), BK_OK);
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
    ck_assert_int_eq(bk_store_open(&s, letters.out, "brick.checkpoint", &letters.err), BK_OK);
    bk_store_close(s);
}
END_TEST

START_TEST(dump_replaces_a_dump)
{
    for (int i = 0; i < 2; i++) ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), 0);
}
END_TEST

START_TEST(dump_that_does_not_fit_leaves_nothing)
{
    struct rlimit before;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){16384, before.rlim_max}), 0);
    int code = DUMP("--sites", "down_in", "--seqlen", "32", "--windows", "8");
    setrlimit(RLIMIT_FSIZE, &before);
    ck_assert_int_eq(code, BK_EXIT_SPACE);
    ck_assert(!bk_exists(letters.out));
    strcat(letters.out, ".partial");
    ck_assert(!bk_exists(letters.out));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verb_dump");
    TCase *t = tcase_create("dump");
    tcase_add_checked_fixture(t, letters_begin, letters_end);
    tcase_set_timeout(t, 60); /* shared machines */
    tcase_add_test(t, dump_stores_what_passed_the_site);
    tcase_add_test(t, dump_has_the_chosen_blocks_and_sites_and_no_others);
    tcase_add_test(t, dump_saturates_and_goes_on);
    tcase_add_test(t, dump_widens_when_asked);
    tcase_add_test(t, dump_stops_when_asked);
    tcase_add_test(t, dump_of_one_sample_is_read_back);
    tcase_add_test(t, dump_names_the_site_that_was_meant);
    tcase_add_loop_test(t, dump_refuses_bad_blocks, 0, 8);
    tcase_add_test(t, dump_refuses_a_device_as_output);
    tcase_add_test(t, dump_does_not_replace_a_file_that_is_no_dump);
    tcase_add_test(t, dump_does_not_replace_another_file_of_a_run);
    tcase_add_test(t, dump_replaces_a_dump);
    tcase_add_test(t, dump_that_does_not_fit_leaves_nothing);
    suite_add_tcase(s, t);
    return run_suite(s);
}
