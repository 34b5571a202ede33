#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/gguf.h"
#include "tests/make_gguf.h"
#include "tests/suite.h"

static char path[64];
static bk_error err;
static bk_gguf *g;

static void setup(void)
{
    strcpy(path, "/tmp/bk_gguf_XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    bk_error_clear(&err);
    g = NULL;
}

static void teardown(void)
{
    bk_gguf_close(g);
    unlink(path);
}

static void open_made(make_gguf *m)
{
    gguf_save(m, path);
    ck_assert_msg(bk_gguf_open(path, &g, &err) == BK_OK, "%s", err.msg);
}

static void refuse_bytes(const bytes *b, bk_status code, const char *why)
{
    bytes_save(b, path);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_gguf_open(path, &g, &err), code);
    ck_assert_ptr_null(g);
    ck_assert_msg(strstr(err.msg, why) != NULL, "'%s' not in '%s'", why, err.msg);
    ck_assert_msg(strstr(err.msg, path) == err.msg, "%s", err.msg);
}

static void refuse(make_gguf *m, bk_status code, const char *why)
{
    bytes b = gguf_finish(m, NULL);
    refuse_bytes(&b, code, why);
    bytes_free(&b);
}

static void small(make_gguf *m)
{
    const int64_t dim[2] = {2, 3};
    const float values[6] = {1, 2, 3, 4, 5, 6};
    gguf_str(m, "general.architecture", "llama");
    gguf_f32_tensor(m, "a", 2, dim, values);
    gguf_f32_tensor(m, "b", 2, dim, values);
}

START_TEST(keys_of_every_type)
{
    make_gguf m = {0};
    gguf_key(&m, "u8", GGUF_U8, "\xff", 1);
    gguf_key(&m, "i8", GGUF_I8, "\xff", 1);
    gguf_key(&m, "u16", GGUF_U16, "\xff\xff", 2);
    gguf_key(&m, "i16", GGUF_I16, "\xfe\xff", 2);
    gguf_u32(&m, "u32", 4000000000u);
    gguf_key(&m, "i32", GGUF_I32, "\xff\xff\xff\xff", 4);
    gguf_key(&m, "u64", GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    gguf_key(&m, "i64", GGUF_I64, "\xfd\xff\xff\xff\xff\xff\xff\xff", 8);
    gguf_f32(&m, "f32", 0.25f);
    const double half = 0.5;
    gguf_key(&m, "f64", GGUF_F64, &half, 8);
    gguf_key(&m, "bool", GGUF_BOOL, "\1", 1);
    gguf_str(&m, "s", "text");
    open_made(&m);
    ck_assert_int_eq(bk_gguf_int(g, "u8", 0), 255);
    ck_assert_int_eq(bk_gguf_int(g, "i8", 0), -1);
    ck_assert_int_eq(bk_gguf_int(g, "u16", 0), 65535);
    ck_assert_int_eq(bk_gguf_int(g, "i16", 0), -2);
    ck_assert_int_eq(bk_gguf_int(g, "u32", 0), 4000000000);
    ck_assert_int_eq(bk_gguf_int(g, "i32", 0), -1);
    ck_assert_int_eq(bk_gguf_int(g, "u64", 7), 7); /* above 63 bits: no int */
    ck_assert_int_eq(bk_gguf_int(g, "i64", 0), -3);
    ck_assert_int_eq(bk_gguf_int(g, "f32", 7), 7);
    ck_assert_double_eq(bk_gguf_num(g, "f32", 0), 0.25);
    ck_assert_double_eq(bk_gguf_num(g, "f64", 0), 0.5);
    ck_assert_double_eq(bk_gguf_num(g, "u64", 0), 18446744073709551615.0);
    ck_assert_double_eq(bk_gguf_num(g, "i8", 0), -1);
    ck_assert_double_eq(bk_gguf_num(g, "bool", 9), 9);
    ck_assert(bk_gguf_bool(g, "bool", false));
    ck_assert(bk_gguf_bool(g, "u8", true));
    size_t len;
    ck_assert_str_eq(bk_gguf_str(g, "s", &len), "text");
    ck_assert_uint_eq(len, 4);
    ck_assert_ptr_null(bk_gguf_str(g, "u8", &len));
    ck_assert_ptr_null(bk_gguf_str(g, "absent", NULL));
    ck_assert(bk_gguf_has(g, "s"));
    ck_assert(!bk_gguf_has(g, "absent"));
}
END_TEST

START_TEST(arrays_of_texts_and_numbers)
{
    make_gguf m = {.version = 2};
    const char *const words[] = {"one", "", "three"};
    const float scores[] = {-1, 0.5f};
    const int32_t kinds[] = {3, -1};
    gguf_strs(&m, "words", 3, words);
    gguf_array(&m, "scores", GGUF_F32, 2, scores, sizeof scores);
    gguf_array(&m, "kinds", GGUF_I32, 2, kinds, sizeof kinds);
    gguf_array(&m, "none", GGUF_I32, 0, NULL, 0);
    open_made(&m);
    size_t len;
    ck_assert_int_eq(bk_gguf_array_len(g, "words"), 3);
    ck_assert_str_eq(bk_gguf_array_str(g, "words", 2, &len), "three");
    ck_assert_uint_eq(len, 5);
    ck_assert_str_eq(bk_gguf_array_str(g, "words", 1, NULL), "");
    ck_assert_ptr_null(bk_gguf_array_str(g, "words", 3, NULL));
    ck_assert_ptr_null(bk_gguf_array_str(g, "words", -1, NULL));
    ck_assert_ptr_null(bk_gguf_array_str(g, "scores", 0, NULL));
    ck_assert_double_eq(bk_gguf_array_num(g, "scores", 1, 9), 0.5);
    ck_assert_double_eq(bk_gguf_array_num(g, "scores", 2, 9), 9);
    ck_assert_double_eq(bk_gguf_array_num(g, "words", 0, 9), 9);
    ck_assert_int_eq(bk_gguf_array_int(g, "kinds", 1, 9), -1);
    ck_assert_int_eq(bk_gguf_array_len(g, "none"), 0);
    ck_assert(bk_gguf_has(g, "none"));
    ck_assert_int_eq(bk_gguf_int(g, "kinds", 9), 9); /* an array is no number */
}
END_TEST

START_TEST(a_long_header_passes_the_buffer)
{
    make_gguf m = {0};
    enum { N = 20000 };
    char *text = malloc(N * 12);
    const char **words = malloc(N * sizeof *words);
    for (int i = 0; i < N; i++) {
        words[i] = text + i * 12;
        snprintf(text + i * 12, 12, "word%d", i);
    }
    gguf_strs(&m, "words", N, words);
    small(&m);
    open_made(&m);
    ck_assert_str_eq(bk_gguf_array_str(g, "words", N - 1, NULL), "word19999");
    ck_assert_int_eq(bk_gguf_tensor_count(g), 2);
    free(text);
    free(words);
}
END_TEST

START_TEST(rows_come_in_file_order_with_outermost_dim_first)
{
    make_gguf m = {0};
    small(&m);
    open_made(&m);
    const bk_gguf_tensor *t = bk_gguf_find(g, "b");
    ck_assert_ptr_nonnull(t);
    ck_assert_ptr_null(bk_gguf_find(g, "c"));
    ck_assert_ptr_eq(t, bk_gguf_tensor_at(g, 1));
    ck_assert_int_eq(t->dim[0], 2);
    ck_assert_int_eq(t->dim[1], 3);
    ck_assert_uint_eq(t->bytes, 24);
    float row[6];
    ck_assert_int_eq(bk_gguf_read_rows(g, t, 1, 1, row, &err), BK_OK);
    ck_assert_float_eq(row[0], 4);
    ck_assert_float_eq(row[2], 6);
    ck_assert_int_eq(bk_gguf_read_rows(g, t, 1, 2, row, &err), BK_EINVAL);
    ck_assert_int_eq(bk_gguf_read_rows(g, t, -1, 1, row, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_gguf_read_rows(g, t, 2, 0, row, NULL), BK_OK);
}
END_TEST

START_TEST(tensors_larger_than_the_buffer)
{
    enum { ROWS = 300, COLS = 97 };
    const int64_t dim[2] = {ROWS, COLS};
    float *v = malloc(sizeof(float) * ROWS * COLS), *back = malloc(sizeof(float) * ROWS * COLS);
    for (int i = 0; i < ROWS * COLS; i++) v[i] = (float)i;
    make_gguf m = {0};
    gguf_f32_tensor(&m, "t", 2, dim, v);
    open_made(&m);
    ck_assert_int_eq(bk_gguf_read_rows(g, bk_gguf_find(g, "t"), 3, ROWS - 3, back, &err), BK_OK);
    ck_assert_int_eq(memcmp(back, v + 3 * COLS, sizeof(float) * (ROWS - 3) * COLS), 0);
    free(v);
    free(back);
}
END_TEST

/* Pseudo-random bytes, scales made finite; sums and values come from the Python package gguf. */
static const struct {
    const char *name;
    uint32_t type;
    int bytes, halves[2], block;
    double sum, at[6];
} packed[] = {
    {"F16", 1, 2, {0, -1}, 1, 264.5780094265938,
     {-0.0528564453125, -8.243322372436523e-05, -0.0009064674377441406, 0.888671875, 0.00022983551025390625, -1.9384765625}},
    {"BF16", 30, 2, {0, -1}, 1, 62.81479475785844,
     {-0.09619140625, -2.237793284010081e-16, 1.3444106938820255e-17, -0.150390625, 0.0003223419189453125, 6.318282135669795e-37}},
    {"Q4_0", 2, 18, {0, -1}, 32, -119.27695482969284,
     {0.00347137451171875, -0.0026035308837890625, -0.007987022399902344, -1.08203125, -0.0003231167793273926, -0.0}},
    {"Q4_1", 3, 20, {0, 2}, 32, 2744.696092247963,
     {-6.523952960968018, -4.659695148468018, -0.0154571533203125, -2.5334625244140625, -5.846044540405273, 0.06431388854980469}},
    {"Q5_0", 6, 22, {0, -1}, 32, -2126.243312239647,
     {2.52685546875, 3.08837890625, 0.0, 0.0016871094703674316, -0.45263671875, 1.42529296875}},
    {"Q5_1", 7, 24, {0, 2}, 32, 22261.224493324757,
     {0.12541121244430542, 0.03992384672164917, 5.68548583984375, 0.08288764953613281, 0.5367550253868103, 5.362523078918457}},
    {"Q8_0", 8, 34, {0, -1}, 32, 22414.06631708145,
     {0.00015807151794433594, 0.009247183799743652, 26.2254638671875, 0.042903900146484375, -22.0771484375, -0.0005207061767578125}},
    {"Q4_K", 12, 144, {0, 2}, 256, -1430.4281845092773,
     {17.20635986328125, 9.51593017578125, 4.79241943359375, 3.3887939453125, -1.3231964111328125, -2.2059478759765625}},
    {"Q5_K", 13, 176, {0, 2}, 256, -223011.35420417786,
     {-1.2648887634277344, -1.39324951171875, -0.11726188659667969, -1.0748672485351562, -43.9078369140625, -12.0147705078125}},
    {"Q6_K", 14, 210, {208, -1}, 256, -637.0722097158432,
     {-2.1484375, -44.9560546875, -24.169921875, 7.8955078125, -0.01885932683944702, 0.0026636123657226562}},
};

START_TEST(dequantization_matches_the_reference)
{
    enum { N = 512 };
    static const int index[6] = {0, 17, 100, 255, 300, 511};
    unsigned char raw[N * 2];
    uint64_t state = packed[_i].type + 1;
    int blocks = N / packed[_i].block;
    for (int i = 0; i < blocks * packed[_i].bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        raw[i] = (unsigned char)(state >> 56);
    }
    for (int b = 0; b < blocks; b++)
        for (int h = 0; h < 2; h++)
            if (packed[_i].halves[h] >= 0) raw[b * packed[_i].bytes + packed[_i].halves[h] + 1] &= 0xbf;
    const int64_t dim[2] = {2, N / 2};
    make_gguf m = {0};
    gguf_tensor(&m, "t", packed[_i].type, 2, dim, raw, (size_t)(blocks * packed[_i].bytes));
    open_made(&m);
    const bk_gguf_tensor *t = bk_gguf_find(g, "t");
    ck_assert_str_eq(t->type, packed[_i].name);
    ck_assert(t->readable);
    float v[N];
    ck_assert_int_eq(bk_gguf_read_rows(g, t, 0, 1, v, &err), BK_OK);
    ck_assert_int_eq(bk_gguf_read_rows(g, t, 1, 1, v + N / 2, &err), BK_OK);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += (double)v[i] * (i % 61 + 1);
    ck_assert_double_eq(sum, packed[_i].sum);
    for (int i = 0; i < 6; i++) ck_assert_double_eq((double)v[index[i]], packed[_i].at[i]);
}
END_TEST

START_TEST(half_floats_keep_subnormals_and_infinities)
{
    const uint16_t raw[5] = {0x0001, 0x83ff, 0x7c00, 0xfc00, 0x8000};
    const float want[5] = {0x1p-24f, -1023 * 0x1p-24f, 1.0f / 0.0f, -1.0f / 0.0f, -0.0f};
    const int64_t dim[1] = {5};
    make_gguf m = {0};
    gguf_tensor(&m, "t", 1, 1, dim, raw, sizeof raw);
    open_made(&m);
    float v[5];
    ck_assert_int_eq(bk_gguf_read_rows(g, bk_gguf_find(g, "t"), 0, 1, v, &err), BK_OK);
    ck_assert_mem_eq(v, want, sizeof want);
}
END_TEST

START_TEST(known_but_unreadable_types_are_refused_at_reading)
{
    const int64_t dim[1] = {256};
    make_gguf m = {0};
    gguf_tensor(&m, "t", 23, 1, dim, NULL, 136);
    open_made(&m);
    float v[256];
    ck_assert(!bk_gguf_find(g, "t")->readable);
    ck_assert_int_eq(bk_gguf_read_rows(g, bk_gguf_find(g, "t"), 0, 1, v, &err), BK_EUNSUP);
    ck_assert_ptr_nonnull(strstr(err.msg, "'t' is of type IQ4_XS"));
}
END_TEST

START_TEST(other_files_are_refused)
{
    bytes b = {0};
    refuse_bytes(&b, BK_EFORMAT, "no GGUF");
    bytes_put(&b, "GGU", 3);
    refuse_bytes(&b, BK_EFORMAT, "no GGUF");
    b.n = 0;
    bytes_put(&b, "{\"model_type\": 1}", 17);
    refuse_bytes(&b, BK_EFORMAT, "no GGUF");
    b.n = 0;
    bytes_put(&b, "GGUF\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    refuse_bytes(&b, BK_EUNSUP, "big-endian");
    bytes_free(&b);
    make_gguf m = {.version = 1};
    refuse(&m, BK_EUNSUP, "version 1");
    ck_assert_int_eq(bk_gguf_open("/no/such/file", &g, NULL), BK_EIO);
}
END_TEST

START_TEST(every_cut_is_noticed)
{
    make_gguf m = {0};
    small(&m);
    bytes b = gguf_finish(&m, NULL);
    for (size_t n = 4; n < b.n; n++) {
        bytes cut = {b.p, n, 0};
        refuse_bytes(&cut, BK_EFORMAT, n < 24 ? "cut off" : "");
    }
    bytes_free(&b);
}
END_TEST

START_TEST(bytes_after_the_last_tensor_are_noticed)
{
    make_gguf m = {0};
    small(&m);
    bytes b = gguf_finish(&m, NULL);
    bytes_put(&b, NULL, 8); /* padding to the alignment, as writers leave it */
    bytes_save(&b, path);
    ck_assert_int_eq(bk_gguf_open(path, &g, &err), BK_OK);
    bk_gguf_close(g);
    bytes_put(&b, NULL, 32);
    refuse_bytes(&b, BK_EFORMAT, "follow the last tensor");
    bytes_free(&b);
}
END_TEST

START_TEST(counts_are_not_believed)
{
    for (int at = 8; at <= 16; at += 8) {
        make_gguf m = {0};
        small(&m);
        bytes b = gguf_finish(&m, NULL);
        memset(b.p + at, 0xff, 8);
        refuse_bytes(&b, BK_EFORMAT, at == 8 ? "tensors, more than" : "keys, more than");
        bytes_free(&b);
    }
    make_gguf m = {0};
    gguf_array(&m, "big", GGUF_F64, UINT64_MAX / 8 + 2, NULL, 16);
    refuse(&m, BK_EFORMAT, "'big' says");
    gguf_array(&m, "big", GGUF_STRING, 1000, NULL, 16);
    refuse(&m, BK_EFORMAT, "'big' says");
    gguf_key(&m, "s", GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
    refuse(&m, BK_EFORMAT, "string of 9223372036854775807 bytes");
}
END_TEST

START_TEST(bad_keys_are_refused)
{
    make_gguf m = {0};
    gguf_u32(&m, "twice", 1);
    gguf_u32(&m, "once", 1);
    gguf_u32(&m, "twice", 2);
    refuse(&m, BK_EFORMAT, "'twice' stands in the file twice");
    gguf_key(&m, "k", 13, NULL, 64);
    refuse(&m, BK_EFORMAT, "type 13");
    gguf_array(&m, "k", GGUF_ARRAY, 1, NULL, 64);
    refuse(&m, BK_EFORMAT, "'k' has a value of type 9");
    gguf_u32(&m, "", 1);
    refuse(&m, BK_EFORMAT, "name in the header is empty");
    gguf_u32(&m, "general.alignment", 48);
    refuse(&m, BK_EFORMAT, "alignment is 48");
    gguf_u32(&m, "general.alignment", 0);
    refuse(&m, BK_EFORMAT, "alignment is 0");
}
END_TEST

START_TEST(bad_tensors_are_refused)
{
    const int64_t one[5] = {4, 1, 1, 1, 1}, zero[2] = {0, 4}, huge[3] = {INT64_MAX, 4, 4}, many[3] = {1ll << 31, 1ll << 31, 4}, odd[1] = {33};
    const float v[4] = {0};
    make_gguf m = {0};
    gguf_info(&m, "t", 0, 5, one, 0);
    refuse(&m, BK_EFORMAT, "5 dimensions");
    gguf_info(&m, "t", 0, 0, one, 0);
    refuse(&m, BK_EFORMAT, "0 dimensions");
    gguf_info(&m, "t", 0, 2, zero, 0);
    refuse(&m, BK_EFORMAT, "'t' has a dimension of 0");
    gguf_info(&m, "t", 0, 3, huge, 0);
    refuse(&m, BK_EFORMAT, "'t' has a dimension of 9223372036854775807");
    gguf_info(&m, "t", 0, 3, many, 0); /* only the product is too large */
    refuse(&m, BK_EFORMAT, "'t' has a dimension of");
    gguf_info(&m, "t", 99, 1, one, 0);
    refuse(&m, BK_EUNSUP, "'t' is of type 99");
    gguf_info(&m, "t", 2, 1, odd, 0);
    refuse(&m, BK_EFORMAT, "33 values are no multiple of 32");
    gguf_info(&m, "t", 0, 1, one, 4);
    refuse(&m, BK_EFORMAT, "'t' is not aligned");
    gguf_info(&m, "t", 0, 1, one, UINT64_MAX - 31);
    refuse(&m, BK_EFORMAT, "'t' goes beyond");
    gguf_f32_tensor(&m, "t", 1, one, v);
    gguf_f32_tensor(&m, "t", 1, one, v);
    refuse(&m, BK_EFORMAT, "'t' stands in the file twice");
    gguf_f32_tensor(&m, "t", 1, one, v);
    gguf_info(&m, "u", 0, 1, one, 0);
    refuse(&m, BK_EFORMAT, "overlap");
}
END_TEST

START_TEST(alignment_of_the_file_is_used)
{
    const int64_t dim[1] = {2};
    const float v[2] = {7, 8};
    make_gguf m = {.alignment = 256};
    gguf_u32(&m, "general.alignment", 256);
    gguf_f32_tensor(&m, "t", 1, dim, v);
    gguf_f32_tensor(&m, "u", 1, dim, v);
    open_made(&m);
    ck_assert_uint_eq(bk_gguf_find(g, "u")->offset % 256, 0);
    float back[2];
    ck_assert_int_eq(bk_gguf_read_rows(g, bk_gguf_find(g, "u"), 0, 1, back, &err), BK_OK);
    ck_assert_float_eq(back[1], 8);
}
END_TEST

START_TEST(a_file_without_tensors_opens)
{
    make_gguf m = {0};
    gguf_str(&m, "s", "only keys");
    open_made(&m);
    ck_assert_int_eq(bk_gguf_tensor_count(g), 0);
    ck_assert_ptr_null(bk_gguf_find(g, "t"));
    ck_assert_str_eq(bk_gguf_path(g), path);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *c = tcase_create("gguf");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, keys_of_every_type);
    tcase_add_test(c, arrays_of_texts_and_numbers);
    tcase_add_test(c, a_long_header_passes_the_buffer);
    tcase_add_test(c, rows_come_in_file_order_with_outermost_dim_first);
    tcase_add_test(c, tensors_larger_than_the_buffer);
    tcase_add_loop_test(c, dequantization_matches_the_reference, 0, sizeof packed / sizeof *packed);
    tcase_add_test(c, half_floats_keep_subnormals_and_infinities);
    tcase_add_test(c, known_but_unreadable_types_are_refused_at_reading);
    tcase_add_test(c, other_files_are_refused);
    tcase_add_test(c, every_cut_is_noticed);
    tcase_add_test(c, bytes_after_the_last_tensor_are_noticed);
    tcase_add_test(c, counts_are_not_believed);
    tcase_add_test(c, bad_keys_are_refused);
    tcase_add_test(c, bad_tensors_are_refused);
    tcase_add_test(c, alignment_of_the_file_is_used);
    tcase_add_test(c, a_file_without_tensors_opens);
    suite_add_tcase(s, c);
    return run_suite(s);
}
