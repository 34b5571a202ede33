#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/safetensors.h"
#include "tests/make_gguf.h"
#include "tests/suite.h"

static char dir[64];
static bk_error err;
static bk_st_set *set;

static void setup(void)
{
    strcpy(dir, "/tmp/bk_st_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    bk_error_clear(&err);
    set = NULL;
}

static void teardown(void)
{
    bk_st_close(set);
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

static const char *at(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static bytes raw(const char *header, size_t data)
{
    bytes b = {0};
    uint64_t n = strlen(header);
    bytes_put(&b, &n, sizeof n);
    bytes_put(&b, header, n);
    for (size_t i = 0; i < data; i++) bytes_put(&b, &(unsigned char){(unsigned char)i}, 1);
    return b;
}

static void save_raw(const char *name, const char *header, size_t data)
{
    bytes b = raw(header, data);
    bytes_save(&b, at(name));
    bytes_free(&b);
}

static void refused(bk_status got, bk_status code, const char *why)
{
    ck_assert_int_eq(got, code);
    ck_assert_ptr_null(set);
    ck_assert_msg(strstr(err.msg, why) != NULL, "'%s' not in '%s'", why, err.msg);
    bk_error_clear(&err);
}

static void refuse_bytes(const bytes *b, const char *why)
{
    bytes_save(b, at("f"));
    refused(bk_st_open(at("f"), &set, &err), BK_EFORMAT, why);
}

static void refuse(const char *header, size_t data, const char *why)
{
    bytes b = raw(header, data);
    refuse_bytes(&b, why);
    bytes_free(&b);
}

static void text(const char *name, const char *content)
{
    ck_assert_msg(bk_write_file(at(name), content, strlen(content), &err) == BK_OK, "%s", err.msg);
}

#define A4 "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}"
#define B4 "\"b\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[16,20]}"

START_TEST(tensors_are_found_and_read)
{
    save_raw("f", "{\"__metadata__\":{\"format\":\"pt\"}," B4 "," A4 "}  ", 20);
    ck_assert_msg(bk_st_open(at("f"), &set, &err) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(bk_st_count(set), 2);
    ck_assert_str_eq(bk_st_at(set, 0)->name, "a");
    const bk_st_tensor *b = bk_st_find(set, "b");
    ck_assert_int_eq(b->dtype, BK_ST_U8);
    ck_assert_int_eq(b->ndim, 2);
    ck_assert_int_eq(b->count, 4);
    unsigned char codes[2];
    ck_assert_int_eq(bk_st_read_raw(set, b, 2, 2, codes, &err), BK_OK);
    ck_assert_int_eq(codes[0], 18);
    float f[4];
    ck_assert_int_eq(bk_st_read_f32(set, bk_st_find(set, "a"), 1, 3, f, &err), BK_OK);
    ck_assert_int_eq(memcmp(f, "\4\5\6\7", 4), 0);
    ck_assert_int_eq(bk_st_read_f32(set, bk_st_find(set, "a"), 1, 4, f, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_read_raw(set, b, -1, 1, codes, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_read_f32(set, b, 0, 4, f, &err), BK_EUNSUP);
    ck_assert_ptr_nonnull(strstr(err.msg, "'b' is of dtype U8"));
    ck_assert_ptr_null(bk_st_find(set, "c"));
    ck_assert_str_eq(bk_json_str(bk_json_get(bk_st_metadata(set), "format"), ""), "pt");
}
END_TEST

START_TEST(floats_of_every_width_become_f32)
{
    const double d[2] = {0.1, -2};
    bytes b = raw("{\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"BF16\",\"shape\":[2],"
                  "\"data_offsets\":[4,8]},\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[8,24]}}", 0);
    bytes_put(&b, "\x00\x3c\x01\x80\x80\x3f\x00\xc0", 8);
    bytes_put(&b, d, sizeof d);
    bytes_save(&b, at("f"));
    bytes_free(&b);
    ck_assert_msg(bk_st_open(at("f"), &set, &err) == BK_OK, "%s", err.msg);
    const char *const names[3] = {"h", "b", "d"};
    const float want[3][2] = {{1, -0x1p-24f}, {1, -2}, {0.1f, -2}};
    for (int i = 0; i < 3; i++) {
        float v[2];
        ck_assert_int_eq(bk_st_read_f32(set, bk_st_find(set, names[i]), 0, 2, v, &err), BK_OK);
        ck_assert_mem_eq(v, want[i], sizeof v);
    }
}
END_TEST

START_TEST(reading_in_pieces_is_reading_at_once)
{
    enum { N = 40001 };
    uint16_t *h = malloc(N * sizeof *h);
    for (int i = 0; i < N; i++) h[i] = (uint16_t)(0x3c00 + i % 1024);
    bytes b = raw("{\"h\":{\"dtype\":\"F16\",\"shape\":[40001],\"data_offsets\":[0,80002]}}", 0);
    bytes_put(&b, h, N * sizeof *h);
    bytes_save(&b, at("f"));
    ck_assert_int_eq(bk_st_open(at("f"), &set, &err), BK_OK);
    float *v = malloc(N * sizeof *v);
    ck_assert_int_eq(bk_st_read_f32(set, bk_st_find(set, "h"), 0, N, v, &err), BK_OK);
    for (int i = 0; i < N; i++) ck_assert_float_eq(v[i], 1 + (float)(i % 1024) / 1024);
    free(v);
    free(h);
    bytes_free(&b);
}
END_TEST

START_TEST(every_cut_is_noticed)
{
    bytes b = raw("{" A4 "," B4 "}", 20);
    for (size_t n = 0; n < b.n; n++) {
        bytes cut = {b.p, n, 0};
        refuse_bytes(&cut, "");
    }
    bytes_put(&b, "x", 1);
    refuse_bytes(&b, "1 bytes follow the last tensor");
    bytes_free(&b);
}
END_TEST

START_TEST(header_lengths_are_not_believed)
{
    const uint64_t lengths[] = {UINT64_MAX, (uint64_t)1 << 63, 100000001, 1 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        bytes b = raw("{" A4 "}", 16);
        memcpy(b.p, &lengths[i], 8);
        refuse_bytes(&b, "header of");
        bytes_free(&b);
    }
}
END_TEST

START_TEST(a_header_of_100000_bytes_is_read)
{
    for (int n = 99994; n <= 100000; n++) {
        char *header = malloc(100001);
        memset(header, ' ', (size_t)n);
        memcpy(header, "{" A4 "}", strlen("{" A4 "}"));
        header[n] = 0;
        save_raw("f", header, 16);
        ck_assert_msg(bk_st_open(at("f"), &set, &err) == BK_OK, "%s", err.msg);
        bk_st_close(set);
        set = NULL;
        free(header);
    }
}
END_TEST

START_TEST(bad_headers_are_refused)
{
    refuse("", 0, "f:1:");
    refuse("[]", 0, "no JSON object");
    refuse("{" A4 "," A4 "}", 32, "duplicate");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,12]}}", 12, "12 bytes, its shape and dtype F32 make 16");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, "data_offsets [16, 0]");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", 16, "data_offsets [-16, 0]");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", 16, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,9223372036854775807]}}", 16, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", 16, "impossible shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "impossible shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,16]}}", 16, "impossible shape");
    refuse("{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "no dtype");
    refuse("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16, "no shape");
    refuse("{\"a\":7}", 0, "'a' has no dtype");
    refuse("{\"__metadata__\":{\"x\":1}," A4 "}", 16, "map of strings");
    refuse("{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[12,20]}}", 20, "'b' overlaps");
    refuse("{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[18,20]}}", 20, "'b' leaves a hole");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}", 4, "'a' leaves a hole");
    save_raw("f", "{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2);
    refused(bk_st_open(at("f"), &set, &err), BK_EUNSUP, "dtype 'F4'");
}
END_TEST

START_TEST(metadata_alone_is_a_file_without_tensors)
{
    save_raw("f", "{\"__metadata__\":{}}", 0);
    ck_assert_int_eq(bk_st_open(at("f"), &set, &err), BK_OK);
    ck_assert_int_eq(bk_st_count(set), 0);
    ck_assert_ptr_null(bk_st_find(set, "a"));
    bk_st_close(set);
    set = NULL;
    refuse("{\"__metadata__\":{}}", 1, "follow the last tensor");
}
END_TEST

START_TEST(scalars_and_empty_tensors)
{
    save_raw("f", "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]},\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
    ck_assert_msg(bk_st_open(at("f"), &set, &err) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(bk_st_find(set, "s")->count, 1);
    ck_assert_int_eq(bk_st_find(set, "s")->ndim, 0);
    ck_assert_int_eq(bk_st_find(set, "e")->count, 0);
}
END_TEST

#define INDEX "model.safetensors.index.json"

START_TEST(the_index_decides)
{
    save_raw("one", "{" A4 "," B4 "}", 20);
    save_raw("two", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2);
    text("stale", "no safetensors file");
    save_raw("model.safetensors", "{" A4 "}", 16);
    text(INDEX, "{\"metadata\":{},\"weight_map\":{\"b\":\"one\",\"a\":\"two\"}}");
    ck_assert_msg(bk_st_open_folder(dir, &set, &err) == BK_OK, "%s", err.msg);
    ck_assert_int_eq(bk_st_count(set), 2); /* c is in no map */
    ck_assert_int_eq(bk_st_file_count(set), 2);
    ck_assert_int_eq(bk_st_find(set, "a")->dtype, BK_ST_U8);
    unsigned char v[4];
    ck_assert_int_eq(bk_st_read_raw(set, bk_st_find(set, "b"), 0, 4, v, &err), BK_OK);
    ck_assert_int_eq(v[0], 16);
    ck_assert_str_eq(bk_st_file_path(set, 0), at("one"));
}
END_TEST

START_TEST(absent_shards_and_tensors_are_listed)
{
    save_raw("one", "{" A4 "}", 16);
    text(INDEX, "{\"weight_map\":{\"a\":\"one\",\"x\":\"two\",\"y\":\"three\",\"z\":\"two\"}}");
    refused(bk_st_open_folder(dir, &set, &err), BK_EIO, "not there: three, two; download");
    text(INDEX, "{\"weight_map\":{\"a\":\"one\",\"x\":\"one\",\"y\":\"one\"}}");
    refused(bk_st_open_folder(dir, &set, &err), BK_EFORMAT, "x (one), y (one)");
}
END_TEST

START_TEST(paths_in_the_index_are_refused)
{
    const char *const bad[] = {"../x", "/etc/passwd", "..", "", "a/b", "a\\\\b", ".hidden"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"weight_map\":{\"a\":\"%s\"}}", bad[i]);
        text(INDEX, json);
        refused(bk_st_open_folder(dir, &set, &err), BK_EFORMAT, "no file name in this folder");
    }
    text(INDEX, "{\"weight_map\":{\"a\":7}}");
    refused(bk_st_open_folder(dir, &set, &err), BK_EFORMAT, "no file name");
    text(INDEX, "{\"weight_map\":{}}");
    refused(bk_st_open_folder(dir, &set, &err), BK_EFORMAT, "no weight_map");
}
END_TEST

START_TEST(a_folder_without_weights_is_refused)
{
    refused(bk_st_open_folder(dir, &set, &err), BK_EIO, "neither model.safetensors nor");
    save_raw("model.safetensors", "{" A4 "}", 16);
    ck_assert_int_eq(bk_st_open_folder(dir, &set, &err), BK_OK);
}
END_TEST

static bk_st_writer *new_writer(void)
{
    bk_st_writer *w;
    ck_assert_int_eq(bk_st_writer_new(at("w"), &w, &err), BK_OK);
    return w;
}

static void declare(bk_st_writer *w, const char *name, bk_st_dtype dtype, int64_t n)
{
    ck_assert_msg(bk_st_writer_declare(w, name, dtype, 1, &n, &err) == BK_OK, "%s", err.msg);
}

static void write_once(void)
{
    bk_st_writer *w = new_writer();
    bk_st_writer_metadata(w, "format", "brick");
    declare(w, "z", BK_ST_F32, 2);
    declare(w, "empty", BK_ST_I32, 0);
    declare(w, "a", BK_ST_U8, 3);
    const float z[2] = {1.5f, -2};
    ck_assert_int_eq(bk_st_writer_put(w, "z", z, 4, &err), BK_OK);
    ck_assert_int_eq(bk_st_writer_put(w, "z", z + 1, 4, &err), BK_OK);
    ck_assert_int_eq(bk_st_writer_put(w, "a", "abc", 3, &err), BK_OK);
    ck_assert_msg(bk_st_writer_commit(w, &err) == BK_OK, "%s", err.msg);
}

START_TEST(what_is_written_reads_back)
{
    write_once();
    ck_assert_msg(bk_st_open(at("w"), &set, &err) == BK_OK, "%s", err.msg);
    float z[2];
    char a[3];
    ck_assert_int_eq(bk_st_read_f32(set, bk_st_find(set, "z"), 0, 2, z, &err), BK_OK);
    ck_assert_float_eq(z[1], -2);
    ck_assert_int_eq(bk_st_read_raw(set, bk_st_find(set, "a"), 0, 3, a, &err), BK_OK);
    ck_assert_mem_eq(a, "abc", 3);
    ck_assert_int_eq(bk_st_find(set, "empty")->dim[0], 0);
    ck_assert_str_eq(bk_json_str(bk_json_get(bk_st_metadata(set), "format"), ""), "brick");
    ck_assert_uint_eq(bk_st_find(set, "z")->offset % 8, 0);
}
END_TEST

START_TEST(same_calls_make_the_same_bytes)
{
    char one[65], two[65];
    write_once();
    ck_assert_int_eq(bk_sha256_file(at("w"), one, &err), BK_OK);
    write_once();
    ck_assert_int_eq(bk_sha256_file(at("w"), two, &err), BK_OK);
    ck_assert_str_eq(one, two);
}
END_TEST

START_TEST(wrong_order_and_wrong_sizes_are_refused)
{
    bk_st_writer *w = new_writer();
    const int64_t n = 2, huge[2] = {INT64_MAX, 3};
    declare(w, "a", BK_ST_U8, 2);
    ck_assert_int_eq(bk_st_writer_declare(w, "a", BK_ST_U8, 1, &n, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_writer_declare(w, "__metadata__", BK_ST_U8, 1, &n, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_writer_declare(w, "huge", BK_ST_U8, 2, huge, NULL), BK_EINVAL);
    bk_st_writer_abort(w);
    w = new_writer();
    declare(w, "a", BK_ST_U8, 2);
    declare(w, "b", BK_ST_U8, 2);
    ck_assert_int_eq(bk_st_writer_put(w, "b", "xy", 2, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_writer_put(w, "a", "xyz", 3, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_writer_declare(w, "c", BK_ST_U8, 1, &n, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_st_writer_put(w, "a", "xy", 2, &err), BK_OK);
    ck_assert_int_eq(bk_st_writer_put(w, "b", "x", 1, &err), BK_OK);
    ck_assert_int_eq(bk_st_writer_commit(w, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "'b' is not complete"));
    ck_assert(!bk_exists(at("w")));
    ck_assert(!bk_exists(at("w.partial")));
}
END_TEST

START_TEST(a_file_without_tensors_can_be_written)
{
    ck_assert_int_eq(bk_st_writer_commit(new_writer(), &err), BK_OK);
    ck_assert_int_eq(bk_st_open(at("w"), &set, &err), BK_OK);
    ck_assert_int_eq(bk_st_count(set), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *c = tcase_create("safetensors");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, tensors_are_found_and_read);
    tcase_add_test(c, floats_of_every_width_become_f32);
    tcase_add_test(c, reading_in_pieces_is_reading_at_once);
    tcase_add_test(c, every_cut_is_noticed);
    tcase_add_test(c, header_lengths_are_not_believed);
    tcase_add_test(c, a_header_of_100000_bytes_is_read);
    tcase_add_test(c, bad_headers_are_refused);
    tcase_add_test(c, metadata_alone_is_a_file_without_tensors);
    tcase_add_test(c, scalars_and_empty_tensors);
    tcase_add_test(c, the_index_decides);
    tcase_add_test(c, absent_shards_and_tensors_are_listed);
    tcase_add_test(c, paths_in_the_index_are_refused);
    tcase_add_test(c, a_folder_without_weights_is_refused);
    tcase_add_test(c, what_is_written_reads_back);
    tcase_add_test(c, same_calls_make_the_same_bytes);
    tcase_add_test(c, wrong_order_and_wrong_sizes_are_refused);
    tcase_add_test(c, a_file_without_tensors_can_be_written);
    suite_add_tcase(s, c);
    return run_suite(s);
}
