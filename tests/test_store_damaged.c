/* The HDF5 store against damaged files and files of others: no file can do harm. */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/store_files.h"
#include "tests/suite.h"

/* HDF5 itself loses memory when a file turns out to be damaged half way. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* ---- damaged files ---- */

static void write_bytes(const char *path, const unsigned char *p, size_t n)
{
    FILE *f = fopen(path, "wb"); /* without fsync: there are many */
    ck_assert(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

START_TEST(files_cut_off_at_any_length_are_refused)
{
    write_sample_file(in_dir("a.h5"), 0);
    size_t n;
    unsigned char *a = slurp(in_dir("a.h5"), &n);
    for (size_t len = 0; len < n; len += len < 200 ? 1 : 97) {
        write_bytes(in_dir("b.h5"), a, len);
        FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
        SAYS("b.h5");
    }
    write_bytes(in_dir("b.h5"), a, n - 1);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    free(a);
}
END_TEST

/* What a file says, as one number: paths, values, attributes; the first failure, if any. */
typedef struct {
    bk_sha256 *sum;
} digest;

static bk_status digest_values(void *user, const double *v, int64_t first, int64_t n, bk_error *e)
{
    (void)first, (void)e;
    bk_sha256_put(((digest *)user)->sum, v, (size_t)n * sizeof *v);
    return BK_OK;
}

static bk_status digest_attr(void *user, const char *name, const char *text, bool is_text, bk_error *e)
{
    (void)is_text, (void)e;
    bk_sha256_put(((digest *)user)->sum, name, strlen(name) + 1);
    bk_sha256_put(((digest *)user)->sum, text, strlen(text) + 1);
    return BK_OK;
}

static bk_status digest_file(const char *path, char hex[65], bk_error *e)
{
    bk_store *s;
    BK_TRY(bk_store_open(&s, path, "brick.targets", e));
    digest d = {bk_sha256_new()};
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    bk_status st = BK_OK;
    for (int64_t i = 0; st == BK_OK && i < n; i++) {
        bk_sha256_put(d.sum, o[i].path, strlen(o[i].path) + 1);
        st = bk_store_attrs(s, o[i].path, digest_attr, &d, e);
        if (st == BK_OK && o[i].numeric) st = bk_store_scan(s, o[i].path, digest_values, &d, e);
    }
    bk_sha256_end(d.sum, hex);
    bk_store_close(s);
    return st;
}

/* Many bytes of a file in turn: none crashes, and what reads well reads as it was. */
START_TEST(a_flipped_byte_is_refused_or_changes_nothing)
{
    char want[65], got[65];
    write_sample_file(in_dir("a.h5"), _i & 1);
    OK(digest_file(in_dir("a.h5"), want, &err));
    size_t n;
    unsigned char *a = slurp(in_dir("a.h5"), &n);
    int refused = 0;
    for (size_t at = (size_t)_i; at < n; at += 13) {
        unsigned char old = a[at];
        a[at] ^= (unsigned char)(_i < 2 ? 1 << (at % 8) : 0xff);
        write_bytes(in_dir("b.h5"), a, n);
        bk_error_clear(&err);
        if (digest_file(in_dir("b.h5"), got, &err) != BK_OK) refused++;
        else ck_assert_msg(!strcmp(want, got), "another byte %zu of %zu reads as something else", at, n);
        a[at] = old;
    }
    ck_assert_int_gt(refused, 100);
    free(a);
}
END_TEST

/* Every dataset, those of one sample and of a single value too: a flip in the values is found and the dataset named. */
START_TEST(a_flipped_value_names_its_dataset)
{
    static const char *const name[] = {"/many", "/alone", "/array", "/value", "/blocks/000/target"};
    const char *path = name[_i];
    float x[2 * T * C], mark = 12345.678f;
    bk_store *s;
    bk_dset *d;
    for (int i = 0; i < 2 * T * C; i++) x[i] = mark;
    OK(bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err));
    if (_i == 2) OK(bk_store_put(s, path, BK_STORE_F32, 3, (int64_t[]){2, T, C}, x, &err));
    else if (_i == 3) OK(bk_store_put(s, path, BK_STORE_F32, 0, NULL, x, &err));
    else {
        OK(bk_dset_create(&d, s, path, BK_STORE_F32, 3, (int64_t[]){_i == 1 ? 1 : 2, T, C}, BK_OVERFLOW_WARN, &err));
        OK(bk_dset_write(d, 0, _i == 1 ? 1 : 2, x, &err));
    }
    OK(bk_store_commit(s, &err));
    size_t n;
    unsigned char *a = slurp(in_dir("a.h5"), &n), *at = memmem(a, n, &mark, sizeof mark);
    ck_assert_ptr_nonnull(at);
    OK(bk_store_verify(in_dir("a.h5"), "brick.targets", &err));
    at[1] ^= 4;
    write_bytes(in_dir("a.h5"), a, n);
    FAILS(bk_store_verify(in_dir("a.h5"), "brick.targets", &err), BK_EFORMAT);
    SAYS("a.h5");
    SAYS(path);
    if (_i != 3) SAYS("do not match their checksum");
    free(a);
}
END_TEST

START_TEST(files_are_written_in_the_format_with_checksums)
{
    bk_store *s;
    OK(bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err));
    for (int i = 0; i < 40; i++) { /* more than fit without trees by default */
        char name[32];
        snprintf(name, sizeof name, "/many/%02d", i);
        OK(bk_store_put(s, name, BK_STORE_I32, 1, (int64_t[]){1}, &i, &err));
        OK(bk_store_set_int(s, "/", name + 6, i, &err));
    }
    OK(bk_store_commit(s, &err));
    size_t n;
    unsigned char *a = slurp(in_dir("a.h5"), &n);
    ck_assert_int_ge(a[8], 2); /* superblock */
    ck_assert_ptr_null(memmem(a, n, "FRHP", 4)); /* heaps and trees of many attributes or links */
    ck_assert_ptr_null(memmem(a, n, "BTLF", 4));
    ck_assert_ptr_nonnull(memmem(a, n, "OHDR\2", 5));
    ck_assert_ptr_null(memmem(a, n, "TREE", 4));
    ck_assert_ptr_null(memmem(a, n, "SNOD", 4));
    free(a);
}
END_TEST

START_TEST(zeroed_regions_never_crash)
{
    write_sample_file(in_dir("a.h5"), 0);
    size_t n;
    unsigned char *a = slurp(in_dir("a.h5"), &n), *b = malloc(n);
    for (size_t at = 0; at < n; at += 128) {
        memcpy(b, a, n);
        memset(b + at, 0, n - at < 512 ? n - at : 512);
        write_bytes(in_dir("b.h5"), b, n);
        bk_error_clear(&err);
        (void)!read_all(in_dir("b.h5"), &err);
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(other_files_are_refused)
{
    write_bytes(in_dir("b.h5"), (const unsigned char *)"", 0);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    write_bytes(in_dir("b.h5"), (const unsigned char *)"GGUF and more", 13);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("no HDF5 file");
}
END_TEST

/* ---- files of others, made with HDF5 itself ---- */

static hid_t foreign_file(const char *name)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return H5Fcreate(in_dir(name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
}

START_TEST(links_to_other_files_are_not_followed)
{
    write_sample_file(in_dir("a.h5"), 0);
    hid_t f = foreign_file("b.h5");
    H5Lcreate_external(in_dir("a.h5"), "/tokens/input_ids", f, "x", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("link to another file");
}
END_TEST

START_TEST(external_storage_is_not_followed)
{
    hid_t f = foreign_file("b.h5"), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t n = 4;
    H5Pset_external(dcpl, "/etc/passwd", 0, 16);
    hid_t space = H5Screate_simple(1, &n, NULL), d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert(d >= 0);
    H5Dclose(d), H5Sclose(space), H5Pclose(dcpl), H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("another file");
}
END_TEST

START_TEST(virtual_datasets_are_not_followed)
{
    write_sample_file(in_dir("a.h5"), 0);
    hid_t f = foreign_file("b.h5"), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t n[2] = {N, T};
    hid_t space = H5Screate_simple(2, n, NULL);
    H5Pset_virtual(dcpl, space, in_dir("a.h5"), "/tokens/input_ids", space);
    hid_t d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert(d >= 0);
    H5Dclose(d), H5Sclose(space), H5Pclose(dcpl), H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("virtual");
}
END_TEST

START_TEST(unknown_filters_are_refused)
{
    hid_t f = foreign_file("b.h5"), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t n = 64;
    H5Pset_chunk(dcpl, 1, &n);
    H5Pset_nbit(dcpl);
    hid_t space = H5Screate_simple(1, &n, NULL), d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert(d >= 0);
    H5Dclose(d), H5Sclose(space), H5Pclose(dcpl), H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("filter");
}
END_TEST

START_TEST(absurd_dimensions_are_refused)
{
    static const hsize_t dims[][2] = {{1, (hsize_t)1 << 50}, {(hsize_t)1 << 40, (hsize_t)1 << 40}, {1 << 20, 1 << 20}};
    hid_t f = foreign_file("b.h5"), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[2] = {1, 16};
    H5Pset_chunk(dcpl, 2, chunk);
    hid_t space = H5Screate_simple(2, dims[_i], NULL), d = H5Dcreate2(f, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert(d >= 0);
    H5Dclose(d), H5Sclose(space), H5Pclose(dcpl), H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
}
END_TEST

START_TEST(groups_in_a_circle_end)
{
    hid_t f = foreign_file("b.h5"), g = H5Gcreate2(f, "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_hard(f, "/", g, "up", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(g), H5Fclose(f);
    FAILS(read_all(in_dir("b.h5"), &err), BK_EFORMAT);
    SAYS("circle");
}
END_TEST

START_TEST(foreign_numbers_of_any_kind_are_read)
{
    hid_t f = foreign_file("b.h5");
    hsize_t n[3] = {3, 500, 200};
    hid_t space = H5Screate_simple(3, n, NULL);
    static short v[3 * 500 * 200];
    double want = 0, sum = 0;
    for (int i = 0; i < 300000; i++) want += v[i] = (short)(i % 777 - 300);
    hid_t types[] = {H5T_STD_I16BE, H5T_IEEE_F32BE, H5T_IEEE_F64LE, H5T_STD_I64LE};
    for (int k = 0; k < 4; k++) {
        char name[8] = {(char)('a' + k), 0};
        hid_t d = H5Dcreate2(f, name, types[k], space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Dwrite(d, H5T_NATIVE_SHORT, H5S_ALL, H5S_ALL, H5P_DEFAULT, v);
        H5Dclose(d);
    }
    H5Sclose(space), H5Fclose(f);
    bk_store *s;
    OK(bk_store_open(&s, in_dir("b.h5"), NULL, &err));
    for (int k = 0; k < 4; k++, sum = 0) {
        char name[8] = {'/', (char)('a' + k), 0};
        OK(bk_store_scan(s, name, sum_up, &sum, &err));
        ck_assert_double_eq(sum, want);
    }
    bk_store_close(s);
    FAILS(bk_store_open(&s, in_dir("b.h5"), "brick.targets", &err), BK_EFORMAT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store, damaged files");
    TCase *tc = store_case(suite, "damaged");
    tcase_add_test(tc, files_cut_off_at_any_length_are_refused);
    tcase_add_loop_test(tc, a_flipped_byte_is_refused_or_changes_nothing, 0, 4);
    tcase_add_loop_test(tc, a_flipped_value_names_its_dataset, 0, 5);
    tcase_add_test(tc, files_are_written_in_the_format_with_checksums);
    tcase_add_test(tc, zeroed_regions_never_crash);
    tcase_add_test(tc, other_files_are_refused);
    tc = store_case(suite, "foreign");
    tcase_add_test(tc, links_to_other_files_are_not_followed);
    tcase_add_test(tc, external_storage_is_not_followed);
    tcase_add_test(tc, virtual_datasets_are_not_followed);
    tcase_add_test(tc, unknown_filters_are_refused);
    tcase_add_loop_test(tc, absurd_dimensions_are_refused, 0, 3);
    tcase_add_test(tc, groups_in_a_circle_end);
    tcase_add_test(tc, foreign_numbers_of_any_kind_are_read);
    return run_suite(suite);
}
