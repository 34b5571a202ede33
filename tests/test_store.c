/* The HDF5 store: what is written comes back, and nothing incomplete is taken as complete. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/store_files.h"
#include "tests/suite.h"

/* ---- what is written comes back ---- */

START_TEST(samples_come_back)
{
    int gzip = _i;
    float x[N * T * C], y[2 * T * C];
    store_fill(x, N * T * C);
    write_sample_file(in_dir("a.h5"), gzip);
    bk_store *s;
    bk_dset *d, *t;
    OK(bk_store_open(&s, in_dir("a.h5"), "brick.targets", &err));
    OK(bk_dset_open(&d, s, "/blocks/000/target", &err));
    OK(bk_dset_read(d, 1, 2, y, &err));
    ck_assert_mem_eq(x + T * C, y, sizeof y);
    OK(bk_dset_open(&t, s, "/tokens/input_ids", &err));
    int32_t ids[T];
    OK(bk_dset_read_raw(t, 3, 1, ids, &err));
    for (int i = 0; i < T; i++) ck_assert_int_eq(ids[i], (3 * T + i) * (3 * T + i));
    FAILS(bk_dset_read(t, 0, 1, y, &err), BK_EFORMAT);
    FAILS(bk_dset_read(d, 3, 2, y, &err), BK_EINVAL);
    FAILS(bk_dset_read(d, -1, 1, y, &err), BK_EINVAL);
    FAILS(bk_dset_read(d, INT64_MAX, 1, y, &err), BK_EINVAL);
    bk_store_close(s);
}
END_TEST

START_TEST(root_attributes_come_back)
{
    write_sample_file(in_dir("a.h5"), 0);
    bk_store *s;
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    const bk_store_meta *m = bk_store_meta_of(s);
    ck_assert_str_eq(m->schema, meta.schema);
    ck_assert_str_eq(m->model, meta.model);
    ck_assert_str_eq(m->model_sha256, meta.model_sha256);
    ck_assert_str_eq(m->config, meta.config);
    ck_assert(m->has_seed);
    ck_assert_int_eq(m->seed, 7);
    ck_assert_int_eq(m->prefix_len, 3);
    char *note;
    OK(bk_store_get_text(s, "/blocks/000", "note", &note, &err));
    ck_assert_str_eq(note, "");
    free(note);
    int64_t v;
    OK(bk_store_get_int(s, "/", "complete", &v, &err));
    ck_assert_int_eq(v, 1);
    FAILS(bk_store_get_int(s, "/", "model", &v, &err), BK_EFORMAT);
    FAILS(bk_store_get_int(s, "/", "nowhere", &v, &err), BK_EFORMAT);
    FAILS(bk_store_get_int(s, "/nowhere", "nowhere", &v, &err), BK_EFORMAT);
    bk_store_close(s);
    FAILS(bk_store_open(&s, in_dir("a.h5"), "brick.prefix", &err), BK_EFORMAT);
    SAYS("brick.targets");
}
END_TEST

START_TEST(arrays_of_every_type_and_rank_come_back)
{
    bk_store *s;
    double f64[6] = {1, -2.5, NAN, INFINITY, 1e300, 0};
    float f32[6] = {1, -2.5f, NAN, INFINITY, 1e30f, 0}, back[6];
    int64_t i64 = INT64_MIN, i64_back;
    uint16_t f16[2] = {0x3c00, 0xfbff};
    unsigned char u8[6] = {0, 1, 255, 3, 4, 5}, u8_back[6];
    double f64_back[6];
    int64_t d4[4] = {1, 2, 3, 1}, d1[1] = {2}, none[4] = {3, 2, 0, 8};
    OK(bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err));
    OK(bk_store_put(s, "/f64", BK_STORE_F64, 4, d4, f64, &err));
    OK(bk_store_put(s, "/f32", BK_STORE_F32, 4, d4, f32, &err));
    OK(bk_store_put(s, "/deep/er/i64", BK_STORE_I64, 0, NULL, &i64, &err));
    OK(bk_store_put(s, "/deep/u8", BK_STORE_U8, 4, d4, u8, &err));
    OK(bk_store_put(s, "/deep/f16", BK_STORE_F16, 1, d1, f16, &err));
    OK(bk_store_put(s, "/prefix/key", BK_STORE_F32, 4, none, NULL, &err));
    OK(bk_store_set_real(s, "/deep", "loss", 0.1, &err));
    FAILS(bk_store_put(s, "/f64", BK_STORE_F64, 4, d4, f64, &err), BK_EINVAL);
    FAILS(bk_store_put(s, "no/slash", BK_STORE_F64, 4, d4, f64, &err), BK_EINVAL);
    FAILS(bk_store_put(s, "/a//b", BK_STORE_F64, 4, d4, f64, &err), BK_EINVAL);
    FAILS(bk_store_set_int(s, "/deep", "loss", 1, &err), BK_EINVAL);
    bk_error_clear(&err);
    OK(bk_store_commit(s, &err));
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    OK(bk_store_get(s, "/f64", BK_STORE_F64, 4, d4, f64_back, &err));
    ck_assert_mem_eq(f64, f64_back, sizeof f64);
    OK(bk_store_get(s, "/f32", BK_STORE_F32, 4, d4, back, &err));
    ck_assert_mem_eq(f32, back, sizeof f32);
    OK(bk_store_get(s, "/deep/er/i64", BK_STORE_I64, 0, NULL, &i64_back, &err));
    ck_assert(i64_back == INT64_MIN);
    OK(bk_store_get(s, "/deep/u8", BK_STORE_U8, 4, d4, u8_back, &err));
    ck_assert_mem_eq(u8, u8_back, sizeof u8);
    OK(bk_store_get(s, "/deep/f16", BK_STORE_F32, 1, d1, back, &err));
    ck_assert_float_eq(back[0], 1.0f);
    ck_assert_float_eq(back[1], -65504.0f);
    bk_dset_info info;
    OK(bk_store_info(s, "/prefix/key", &info, &err));
    ck_assert_int_eq(info.dim[2], 0);
    OK(bk_store_get(s, "/prefix/key", BK_STORE_F32, 4, none, back, &err));
    double loss;
    OK(bk_store_get_real(s, "/deep", "loss", &loss, &err));
    ck_assert_double_eq(loss, 0.1);
    ck_assert(bk_store_has(s, "/deep/er"));
    ck_assert(!bk_store_has(s, "/deep/e"));
    FAILS(bk_store_get(s, "/f32", BK_STORE_F32, 3, d4, back, &err), BK_EFORMAT);
    SAYS("f32 [1, 2, 3, 1]");
    FAILS(bk_store_get(s, "/f32", BK_STORE_F64, 4, d4, back, &err), BK_EFORMAT);
    FAILS(bk_store_get(s, "/absent", BK_STORE_F32, 4, d4, back, &err), BK_EFORMAT);
    FAILS(bk_store_get(s, "/deep", BK_STORE_F32, 4, d4, back, &err), BK_EFORMAT);
    bk_store_close(s);
}
END_TEST

START_TEST(same_content_gives_the_same_bytes)
{
    int gzip = _i;
    write_sample_file(in_dir("a.h5"), gzip);
    void *junk[64]; /* other garbage in the memory that HDF5 gets */
    for (int i = 0; i < 64; i++) memset(junk[i] = malloc((size_t)64 << (i % 8)), 0xa5, (size_t)64 << (i % 8));
    for (int i = 0; i < 64; i++) free(junk[i]);
    usleep(1100000); /* time stamps have seconds */
    write_sample_file(in_dir("b.h5"), gzip);
    size_t na, nb;
    unsigned char *a = slurp(in_dir("a.h5"), &na), *b = slurp(in_dir("b.h5"), &nb);
    ck_assert_uint_eq(na, nb);
    ck_assert_int_eq(memcmp(a, b, na), 0);
    free(a);
    free(b);
}
END_TEST

START_TEST(objects_carry_shapes_chunks_and_names)
{
    write_sample_file(in_dir("a.h5"), 1);
    bk_store *s;
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n), *t = NULL;
    ck_assert_str_eq(o[0].path, "/");
    for (int64_t i = 0; i < n; i++)
        if (strcmp(o[i].path, "/blocks/000/target") == 0) t = &o[i];
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->rank, 3);
    ck_assert_int_eq(t->dim[2], C);
    ck_assert_int_eq(t->chunk[0], 1);
    ck_assert_int_eq(t->chunk[1], T);
    ck_assert_int_eq(t->gzip, 1);
    ck_assert(t->shuffle && t->checksum && t->numeric);
    ck_assert_str_eq(t->type_text, "f16");
    ck_assert_str_eq(t->label[0], "sample");
    ck_assert_str_eq(t->label[1], "token");
    ck_assert_str_eq(t->label[2], "channel");
    double sum = 0, want = 0;
    OK(bk_store_scan(s, t->path, sum_up, &sum, &err));
    for (int i = 0; i < N * T * C; i++) want += store_value(i);
    ck_assert_double_eq(sum, want);
    bk_store_close(s);
}
END_TEST

/* ---- numbers that f16 cannot hold ---- */

static bk_dset *one_dataset(bk_store **s, bk_store_type type, bk_overflow overflow)
{
    bk_dset *d;
    OK(bk_store_create(s, in_dir("a.h5"), &meta, 0, &err));
    OK(bk_dset_create(&d, *s, "/blocks/003/target", type, 3, dim3, overflow, &err));
    return d;
}

START_TEST(nan_and_inf_are_refused_with_their_place)
{
    float x[N * T * C];
    bk_store *s;
    bk_dset *d = one_dataset(&s, _i ? BK_STORE_F32 : BK_STORE_F16, BK_OVERFLOW_WARN);
    store_fill(x, N * T * C);
    x[2 * T * C + 3 * C + 5] = NAN;
    FAILS(bk_dset_write(d, 0, N, x, &err), BK_ENUMERIC);
    SAYS("/blocks/003/target");
    SAYS("NaN at sample 2, token 3, channel 5");
    x[2 * T * C + 3 * C + 5] = -INFINITY;
    FAILS(bk_dset_write(d, 0, N, x, &err), BK_ENUMERIC);
    SAYS("Inf");
    bk_store_close(s);
    ck_assert(!bk_exists(in_dir("a.h5")) && !bk_exists(in_dir("a.h5.partial")));
}
END_TEST

START_TEST(overflow_saturates_and_counts)
{
    float x[N * T * C], y[T * C];
    bk_store *s;
    bk_dset *d = one_dataset(&s, BK_STORE_F16, BK_OVERFLOW_WARN);
    store_fill(x, N * T * C);
    x[0] = 1e5f, x[7] = -65505.0f, x[T * C] = 1e30f;
    OK(bk_dset_write(d, 0, N, x, &err));
    ck_assert_int_eq(bk_dset_info_of(d)->saturated, 3);
    OK(bk_store_commit(s, &err));
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    OK(bk_dset_open(&d, s, "/blocks/003/target", &err));
    ck_assert_int_eq(bk_dset_info_of(d)->saturated, 3);
    OK(bk_dset_read(d, 0, 1, y, &err));
    ck_assert_float_eq(y[0], 65504.0f);
    ck_assert_float_eq(y[7], -65504.0f);
    bk_store_close(s);
}
END_TEST

START_TEST(overflow_turns_the_dataset_into_f32)
{
    float x[N * T * C], y[N * T * C];
    bk_store *s;
    bk_dset *d = one_dataset(&s, BK_STORE_F16, BK_OVERFLOW_F32);
    store_fill(x, N * T * C);
    x[2 * T * C + 1] = 123456.0f;
    x[3 * T * C + 1] = 1.0f + 0x1p-20f; /* f32 keeps it */
    OK(bk_dset_write(d, 0, 2, x, &err));
    OK(bk_dset_write(d, 2, 2, x + 2 * T * C, &err));
    ck_assert_int_eq(bk_dset_info_of(d)->type, BK_STORE_F32);
    OK(bk_store_commit(s, &err));
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    OK(bk_dset_open(&d, s, "/blocks/003/target", &err));
    OK(bk_dset_read(d, 0, N, y, &err));
    ck_assert_mem_eq(x, y, sizeof x);
    bk_store_close(s);
}
END_TEST

START_TEST(overflow_can_be_an_error)
{
    float x[N * T * C];
    bk_store *s;
    bk_dset *d = one_dataset(&s, BK_STORE_F16, BK_OVERFLOW_ERROR);
    store_fill(x, N * T * C);
    x[C] = 70000.0f;
    FAILS(bk_dset_write(d, 0, 1, x, &err), BK_ENUMERIC);
    SAYS("sample 0, token 1, channel 0");
    bk_store_close(s);
}
END_TEST

/* ---- complete or absent ---- */

START_TEST(a_missing_sample_is_no_file)
{
    float x[N * T * C];
    bk_store *s;
    bk_dset *d = one_dataset(&s, BK_STORE_F16, BK_OVERFLOW_WARN);
    store_fill(x, N * T * C);
    OK(bk_dset_write(d, 0, 2, x, &err));
    OK(bk_dset_write(d, 3, 1, x, &err));
    FAILS(bk_store_commit(s, &err), BK_EINVAL);
    SAYS("sample 2");
    ck_assert(!bk_exists(in_dir("a.h5")) && !bk_exists(in_dir("a.h5.partial")));
}
END_TEST

START_TEST(a_killed_writer_leaves_the_old_file)
{
    write_sample_file(in_dir("a.h5"), 0);
    write_sample_file(in_dir("copy.h5"), 0);
    pid_t pid = fork();
    if (pid == 0) {
        float x[N * T * C];
        bk_store *s;
        bk_dset *d = one_dataset(&s, BK_STORE_F16, BK_OVERFLOW_WARN);
        store_fill(x, N * T * C);
        for (int k = 0;; k++) {
            char name[32];
            snprintf(name, sizeof name, "/blocks/%03d/x", k);
            if (k == 300) raise(SIGKILL);
            if (bk_dset_create(&d, s, name, BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, NULL) || bk_dset_write(d, 0, N, x, NULL)) _exit(1);
        }
    }
    int how;
    waitpid(pid, &how, 0);
    ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    ck_assert(bk_exists(in_dir("a.h5.partial")));
    FAILS(read_all(in_dir("a.h5.partial"), &err), BK_EFORMAT);
    size_t na, nb;
    unsigned char *a = slurp(in_dir("a.h5"), &na), *b = slurp(in_dir("copy.h5"), &nb);
    ck_assert(na == nb && memcmp(a, b, na) == 0);
    bk_error_clear(&err);
    write_sample_file(in_dir("a.h5"), 0); /* the next writer takes over */
    ck_assert(!bk_exists(in_dir("a.h5.partial")));
    free(a);
    free(b);
}
END_TEST

/* With a size limit, as of a full disk, every write fails from some point on: old file kept, partial gone, BK_ENOSPC, process alive. */
START_TEST(a_full_disk_loses_nothing)
{
    write_sample_file(in_dir("a.h5"), 0);
    size_t na, nb;
    unsigned char *a = slurp(in_dir("a.h5"), &na);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {0, RLIM_INFINITY};
    limit.rlim_cur = (rlim_t[]){0, 100, 5000, 200000, 1 << 20}[_i];
    setrlimit(RLIMIT_FSIZE, &limit);
    bk_store *s = NULL;
    static float x[256 * 1024];
    store_fill(x, 256 * 1024);
    const int64_t big[3] = {8, 256, 1024};
    bk_status status = bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err);
    for (int k = 0; k < 3 && status == BK_OK; k++) {
        char name[32];
        bk_dset *d;
        snprintf(name, sizeof name, "/blocks/%03d/x", k);
        status = bk_dset_create(&d, s, name, BK_STORE_F16, 3, big, BK_OVERFLOW_WARN, &err);
        for (int i = 0; i < 8 && status == BK_OK; i++) status = bk_dset_write(d, i, 1, x, &err);
    }
    if (status == BK_OK) status = bk_store_commit(s, &err);
    else bk_store_close(s);
    ck_assert_msg(status == BK_ENOSPC, "%s: %s", bk_status_name(status), err.msg);
    SAYS("a.h5");
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert(!bk_exists(in_dir("a.h5.partial")));
    unsigned char *b = slurp(in_dir("a.h5"), &nb);
    ck_assert(na == nb && memcmp(a, b, na) == 0);
    bk_error_clear(&err);
    write_sample_file(in_dir("a.h5"), 0); /* the library is still usable */
    free(a);
    free(b);
}
END_TEST

/* Only metadata is written before the commit: it fails in H5Fclose. */
START_TEST(a_disk_full_at_close_is_reported)
{
    signal(SIGXFSZ, SIG_IGN);
    bk_store *s;
    OK(bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err));
    for (int k = 0; k < 50; k++) {
        char name[32];
        snprintf(name, sizeof name, "/group/%d/x", k);
        OK(bk_store_put(s, name, BK_STORE_I64, 0, NULL, &(int64_t){k}, &err));
    }
    struct rlimit limit = {100, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    FAILS(bk_store_commit(s, &err), BK_ENOSPC);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert(!bk_exists(in_dir("a.h5")) && !bk_exists(in_dir("a.h5.partial")));
}
END_TEST

START_TEST(places_that_cannot_be_written)
{
    bk_store *s;
    FAILS(bk_store_create(&s, "/dev/full", &meta, 0, &err), BK_EINVAL);
    ck_assert_ptr_null(s);
    FAILS(bk_store_create(&s, in_dir(""), &meta, 0, &err), BK_EINVAL);
    FAILS(bk_store_create(&s, in_dir("no/such/a.h5"), &meta, 0, &err), BK_EIO);
    FAILS(bk_store_open(&s, in_dir("absent.h5"), NULL, &err), BK_EIO);
    FAILS(bk_store_open(&s, in_dir(""), NULL, &err), BK_EIO);
    ck_assert_ptr_null(s);
    char *huge = malloc(70001);
    memset(huge, 'x', 70000);
    huge[70000] = 0;
    bk_store_meta m = meta;
    m.config = huge;
    FAILS(bk_store_create(&s, in_dir("a.h5"), &m, 0, &err), BK_EINVAL);
    SAYS("config");
    free(huge);
}
END_TEST

START_TEST(impossible_datasets_are_refused)
{
    bk_store *s;
    bk_dset *d;
    OK(bk_store_create(&s, in_dir("a.h5"), &meta, 0, &err));
    const int64_t zero[3] = {0, T, C}, negative[3] = {N, -1, C}, huge[3] = {INT64_MAX / 2, 1 << 20, 1 << 20}, fat[3] = {1, 1 << 20, 1 << 12};
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, zero, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, negative, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, huge, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, fat, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 5, dim3, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "x", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    bk_error_clear(&err);
    OK(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, &err));
    FAILS(bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, &err), BK_EINVAL);
    FAILS(bk_dset_create(&d, s, "/x/y", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, &err), BK_EIO);
    bk_store_close(s);
}
END_TEST

/* ---- reading ahead ---- */

static bk_store *open_target(bk_dset **d)
{
    bk_store *s;
    OK(bk_store_open(&s, in_dir("a.h5"), NULL, &err));
    OK(bk_dset_open(d, s, "/blocks/000/target", &err));
    return s;
}

START_TEST(reading_ahead_keeps_the_order_asked_for)
{
    write_sample_file(in_dir("a.h5"), 0);
    bk_dset *d;
    bk_store *s = open_target(&d);
    bk_prefetch *p;
    const float *got[2], *before;
    OK(bk_prefetch_new(&p, (bk_dset *[]){d, d}, 2, 3, &err));
    FAILS(bk_prefetch_wait(p, got, &err), BK_EINVAL);
    FAILS(bk_prefetch_begin(p, (int64_t[]){0, 1, 2, 3}, 4, &err), BK_EINVAL);
    bk_error_clear(&err);
    OK(bk_prefetch_begin(p, (int64_t[]){3, 0, 2}, 3, &err));
    FAILS(bk_prefetch_begin(p, (int64_t[]){1}, 1, &err), BK_EINVAL);
    bk_error_clear(&err);
    OK(bk_prefetch_wait(p, got, &err));
    ck_assert_float_eq(got[0][0], store_value(3 * T * C));
    ck_assert_float_eq(got[1][T * C], store_value(0));
    ck_assert_float_eq(got[0][2 * T * C + 5], store_value(2 * T * C + 5));
    before = got[0];
    for (int i = 0; i < 200; i++) {
        OK(bk_prefetch_begin(p, (int64_t[]){i % N}, 1, &err));
        if (i == 0) ck_assert_float_eq(before[0], store_value(3 * T * C)); /* still valid: the other buffer is filled */
        OK(bk_prefetch_wait(p, got, &err));
        ck_assert_float_eq(got[1][1], store_value(i % N * T * C + 1));
    }
    OK(bk_prefetch_begin(p, (int64_t[]){1}, 1, &err));
    bk_prefetch_free(p); /* with a read under way */
    bk_store_close(s);
}
END_TEST

START_TEST(errors_of_reading_ahead_arrive_at_wait)
{
    write_sample_file(in_dir("a.h5"), 0);
    bk_dset *d;
    bk_store *s = open_target(&d);
    bk_prefetch *p;
    const float *got[1];
    OK(bk_prefetch_new(&p, &d, 1, 2, &err));
    OK(bk_prefetch_begin(p, (int64_t[]){0, 99}, 2, &err));
    FAILS(bk_prefetch_wait(p, got, &err), BK_EINVAL);
    bk_error_clear(&err);
    OK(bk_prefetch_begin(p, (int64_t[]){1}, 1, &err));
    OK(bk_prefetch_wait(p, got, &err));
    ck_assert_float_eq(got[0][0], store_value(T * C));
    bk_prefetch_free(p);
    bk_store_close(s);
}
END_TEST

typedef struct {
    char folder[128];
    int id;
} writer;

static void *write_files(void *arg)
{
    const writer *w = arg;
    float x[T * C];
    store_fill(x, T * C);
    for (int i = 0; i < 5; i++) {
        bk_store *s;
        bk_dset *d;
        char path[160];
        snprintf(path, sizeof path, "%s/t%d%d", w->folder, w->id, i);
        if (bk_store_create(&s, path, &meta, 0, NULL) || bk_dset_create(&d, s, "/x", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, NULL)) return "create";
        for (int k = 0; k < N; k++)
            if (bk_dset_write(d, k, 1, x, NULL)) return "write";
        if (bk_store_commit(s, NULL)) return "commit";
    }
    return NULL;
}

START_TEST(threads_may_use_files_of_their_own)
{
    pthread_t thread[3];
    writer w[3];
    for (int i = 0; i < 3; i++) {
        w[i].id = i;
        snprintf(w[i].folder, sizeof w[i].folder, "%s", in_dir(""));
        pthread_create(&thread[i], NULL, write_files, &w[i]);
    }
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        ck_assert_msg(!failed, "%s", (char *)failed);
    }
    size_t na, nb;
    unsigned char *a = slurp(in_dir("t00"), &na), *b = slurp(in_dir("t24"), &nb);
    ck_assert(na == nb && memcmp(a, b, na) == 0);
    free(a);
    free(b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *tc = store_case(suite, "round trip");
    tcase_add_loop_test(tc, samples_come_back, 0, 2);
    tcase_add_test(tc, root_attributes_come_back);
    tcase_add_test(tc, arrays_of_every_type_and_rank_come_back);
    tcase_add_loop_test(tc, same_content_gives_the_same_bytes, 0, 2);
    tcase_add_test(tc, objects_carry_shapes_chunks_and_names);
    tc = store_case(suite, "f16");
    tcase_add_loop_test(tc, nan_and_inf_are_refused_with_their_place, 0, 2);
    tcase_add_test(tc, overflow_saturates_and_counts);
    tcase_add_test(tc, overflow_turns_the_dataset_into_f32);
    tcase_add_test(tc, overflow_can_be_an_error);
    tc = store_case(suite, "complete or absent");
    tcase_add_test(tc, a_missing_sample_is_no_file);
    tcase_add_test(tc, a_killed_writer_leaves_the_old_file);
    tcase_add_loop_test(tc, a_full_disk_loses_nothing, 0, 5);
    tcase_add_test(tc, a_disk_full_at_close_is_reported);
    tcase_add_test(tc, places_that_cannot_be_written);
    tcase_add_test(tc, impossible_datasets_are_refused);
    tc = store_case(suite, "reading ahead");
    tcase_add_test(tc, reading_ahead_keeps_the_order_asked_for);
    tcase_add_test(tc, errors_of_reading_ahead_arrive_at_wait);
    tcase_add_test(tc, threads_may_use_files_of_their_own);
    return run_suite(suite);
}
