/* brick inspect on files of others, damaged, unfinished and huge ones: a message and exit code 3, or a right answer. */
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/inspect_run.h"
#include "tests/suite.h"

static char said[2048];

static const char *write_good(void)
{
    const bk_store_meta meta = {.schema = "brick.dump", .model = "m"};
    const int64_t dim[3] = {2, 4, 8};
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = (float)i;
    bk_store *s;
    bk_dset *d;
    DONE(bk_store_create(&s, inspect_file("good.h5"), &meta, 0, &inspect_err));
    DONE(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, dim, BK_OVERFLOW_WARN, &inspect_err));
    DONE(bk_dset_write(d, 0, 2, x, &inspect_err));
    DONE(bk_store_commit(s, &inspect_err));
    return inspect_file("good.h5");
}

/* ---- files made with HDF5 itself ---- */

static hid_t foreign(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return H5Fcreate(inspect_file("foreign.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
}

/* A dataset /x; dcpl is closed. */
static hid_t add(hid_t file, hid_t type, int rank, const hsize_t *dim, hid_t dcpl)
{
    hid_t space = H5Screate_simple(rank, dim, NULL),
          d = H5Dcreate2(file, "x", type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert_int_ge(d, 0);
    H5Sclose(space), H5Pclose(dcpl);
    return d;
}

static int inspect_foreign(void)
{
    return VERB(said, inspect_file("foreign.h5"), "/x");
}

START_TEST(codes_of_plain_mistakes)
{
    const char *good = write_good();
    ck_assert_int_eq(VERB(said, good), 0);
    ck_assert_int_eq(VERB(said, good, "/x"), 0);
    ck_assert_int_eq(VERB(said, good, "/x", "--json"), 0);
    ck_assert_int_eq(VERB(said, good, "/absent"), 2);
    ck_assert_int_eq(VERB(said, good, "--jason"), 2);
    ck_assert_int_eq(VERB(said, good, "/x", "--csv", "values"), 2);
    ck_assert_int_eq(VERB(said, good, "/x", "--csv", "tokens", "--json"), 2);
    ck_assert_int_eq(VERB(said, good, "/sample", "--csv", "tokens"), 2);
    ck_assert_int_eq(VERB(said, good, "/x", "--model", "/nowhere"), 3);
    ck_assert_int_eq(VERB(said, "/nowhere.h5"), 3);
    ck_assert_int_eq(VERB(said, "/dev/null"), 3);
}
END_TEST

START_TEST(damaged_files_are_refused)
{
    char *text;
    size_t n;
    DONE(bk_file_slurp(write_good(), 1 << 20, &text, &n, &inspect_err));
    const char *bad = inspect_file("bad.h5");
    DONE(bk_write_file(bad, text, n / 2, &inspect_err));
    ck_assert_int_eq(VERB(said, bad, "/x"), 3);
    HAS(said, "cut off");
    DONE(bk_write_file(bad, "no HDF5", 7, &inspect_err));
    ck_assert_int_eq(VERB(said, bad), 3);
    HAS(said, "no HDF5 file");
    text[60] = (char)~text[60]; /* in the first object header */
    DONE(bk_write_file(bad, text, n, &inspect_err));
    ck_assert_int_eq(VERB(said, bad, "/x"), 3);
    HAS(said, "bad.h5");
    free(text);
}
END_TEST

START_TEST(files_still_being_written_are_refused)
{
    const bk_store_meta meta = {.schema = "brick.dump", .model = "m"};
    bk_store *s;
    DONE(bk_store_create(&s, inspect_file("half.h5"), &meta, 0, &inspect_err));
    ck_assert_int_eq(VERB(said, inspect_file("half.h5.partial")), 3);
    ck_assert_int_gt(strlen(said), 20);
    bk_store_close(s);
    hid_t f = foreign();
    H5Dclose(add(f, H5T_IEEE_F32LE, 1, (hsize_t[]){4}, H5Pcreate(H5P_DATASET_CREATE)));
    H5Fflush(f, H5F_SCOPE_GLOBAL);
    ck_assert_int_eq(inspect_foreign(), 3);
    HAS(said, "another program has it open for writing");
    H5Fclose(f);
}
END_TEST

/* complete = 0 in a file that is whole otherwise. */
START_TEST(incomplete_files_are_refused)
{
    hid_t f = foreign(), one = H5Screate(H5S_SCALAR), text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 10);
    const char *const name[] = {"schema_version", "complete"};
    for (int64_t k = 0; k < 2; k++) {
        int64_t v = 1 - k;
        hid_t a = H5Acreate2(f, name[k], H5T_STD_I64LE, one, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(a, H5T_NATIVE_INT64, &v);
        H5Aclose(a);
    }
    hid_t a = H5Acreate2(f, "schema", text, one, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, text, "brick.dump");
    H5Aclose(a), H5Tclose(text), H5Sclose(one), H5Fclose(f);
    ck_assert_int_eq(inspect_foreign(), 3);
    HAS(said, "is incomplete");
}
END_TEST

START_TEST(other_files_are_not_followed)
{
    hid_t f = foreign();
    H5Lcreate_external(write_good(), "/x", f, "x", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    ck_assert_int_eq(inspect_foreign(), 3);
    HAS(said, "link to another file");
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(dcpl, "/etc/passwd", 0, 16);
    f = foreign();
    H5Dclose(add(f, H5T_STD_I32LE, 1, (hsize_t[]){4}, dcpl));
    H5Fclose(f);
    ck_assert_int_eq(inspect_foreign(), 3);
    HAS(said, "lie in another file");
}
END_TEST

START_TEST(soft_links_in_a_circle_do_no_harm)
{
    hid_t f = foreign();
    H5Lcreate_soft("/b", f, "a", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/a", f, "b", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/", f, "up", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    ck_assert_int_eq(VERB(said, inspect_file("foreign.h5")), 0);
    ck_assert_int_eq(VERB(said, inspect_file("foreign.h5"), "/a"), 2);
}
END_TEST

START_TEST(unknown_filters_are_refused)
{
    hid_t f = foreign(), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t n = 64;
    H5Pset_chunk(dcpl, 1, &n);
    H5Pset_nbit(dcpl);
    H5Dclose(add(f, H5T_STD_I32LE, 1, &n, dcpl));
    H5Fclose(f);
    ck_assert_int_eq(inspect_foreign(), 3);
    HAS(said, "only gzip, shuffle and fletcher32 are read");
}
END_TEST

/* 100 GiB of a fill value, none of which is in the file: nothing to measure, and not in hours. */
START_TEST(values_that_were_never_written_are_not_made_up)
{
    const float fill = 1;
    const hsize_t chunk[2] = {1, 1024}, dim[2] = {(hsize_t)25 << 20, 1024},
                  absurd[2] = {(hsize_t)1 << 40, (hsize_t)1 << 40};
    for (int k = 0; k < 2; k++) {
        hid_t f = foreign(), dcpl = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_chunk(dcpl, 2, chunk);
        H5Pset_fill_value(dcpl, H5T_NATIVE_FLOAT, &fill);
        H5Dclose(add(f, H5T_IEEE_F32LE, 2, k ? absurd : dim, dcpl));
        H5Fclose(f);
        ck_assert_int_eq(inspect_foreign(), 3);
        HAS(said, k ? "absurd dimensions" : "never written");
        if (k == 0) ck_assert_int_eq(VERB(said, inspect_file("foreign.h5")), 0); /* the tree can be seen */
    }
}
END_TEST

/* Chunks lie across the rows; each is packed. */
START_TEST(packed_chunks_across_rows_are_read_right)
{
    enum { ROWS = 700, COLUMNS = 300 };
    static float x[ROWS][COLUMNS];
    const hsize_t dim[2] = {ROWS, COLUMNS}, chunk[2] = {64, 32};
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLUMNS; k++) x[i][k] = (float)(i - k);
    hid_t f = foreign(), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(dcpl, 2, chunk);
    H5Pset_shuffle(dcpl);
    H5Pset_deflate(dcpl, 1);
    hid_t d = add(f, H5T_IEEE_F32BE, 2, dim, dcpl);
    H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x);
    H5Dclose(d), H5Fclose(f);
    bk_json *j = inspect_json((bk_inspect_options){.file = inspect_file("foreign.h5"), .path = "x", .bins = -1});
    const bk_json *st = bk_json_get(j, "statistics"), *rows = bk_json_get(st, "rows"),
                  *channels = bk_json_get(st, "channels");
    ck_assert_double_eq_tol(bk_json_num(bk_json_get(st, "mean"), 0), (ROWS - COLUMNS) / 2.0, 1e-9);
    ck_assert_int_eq(bk_json_int(bk_json_get(st, "zeros"), 0), COLUMNS);
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(st, "max_at"), 0), 0), ROWS - 1);
    ck_assert_double_eq(bk_json_num(bk_json_get(rows, "median"), 0), 349); /* of max(i, 299 - i) */
    ck_assert_double_eq(bk_json_num(bk_json_get(channels, "median"), 0), 549); /* of 699 - k: 150 th of 300 */
    bk_json_free(j);
}
END_TEST

#ifndef __has_feature
#define __has_feature(x) 0
#endif

/* 300 MiB, of which the disk holds nothing, in what the process has and 24 MiB. */
START_TEST(memory_does_not_grow_with_the_file)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return; /* a sanitizer needs address space for itself */
#endif
    const hsize_t dim[3] = {300, 512, 512};
    hid_t f = foreign(), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER);
    H5Dclose(add(f, H5T_IEEE_F32LE, 3, dim, dcpl));
    H5Fclose(f);
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    ck_assert(statm && fscanf(statm, "%ld", &pages) == 1);
    fclose(statm);
    struct stat st;
    ck_assert(stat(inspect_file("foreign.h5"), &st) == 0 && st.st_size >= 300 << 20);
    pid_t pid = fork();
    if (pid == 0) {
        rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (24 << 20);
        setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
        _exit(inspect_foreign() == 0 ? 0 : 1);
    }
    int how;
    waitpid(pid, &how, 0);
    ck_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inspect, files");
    TCase *tc = inspect_case(suite, "files");
    tcase_add_test(tc, codes_of_plain_mistakes);
    tcase_add_test(tc, damaged_files_are_refused);
    tcase_add_test(tc, files_still_being_written_are_refused);
    tcase_add_test(tc, incomplete_files_are_refused);
    tcase_add_test(tc, other_files_are_not_followed);
    tcase_add_test(tc, soft_links_in_a_circle_do_no_harm);
    tcase_add_test(tc, unknown_filters_are_refused);
    tcase_add_test(tc, values_that_were_never_written_are_not_made_up);
    tcase_add_test(tc, packed_chunks_across_rows_are_read_right);
    tcase_add_test(tc, memory_does_not_grow_with_the_file);
    return run_suite(suite);
}
