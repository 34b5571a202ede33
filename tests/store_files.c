#include "tests/store_files.h"

#include <stdio.h>
#include <stdlib.h>

bk_error err;
const bk_store_meta meta = {
    .schema = "brick.targets", .model = "tiny", .model_sha256 = "00ff", .config = "seed: 7\nname: \xc3\xbc\n", .has_seed = true, .seed = 7, .prefix_len = 3};
const int64_t dim3[3] = {N, T, C}, dim2[2] = {N, T};

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/bk_store_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    bk_error_clear(&err);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

float store_value(int64_t i)
{
    return (float)((i * 37) % 4001 - 2000) / 16.0f; /* exact in f16 */
}

void store_fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = store_value(i);
}

/* A whole file of targets and tokens. */
void write_sample_file(const char *path, int gzip)
{
    static float x[N * T * C];
    int32_t ids[N * T];
    store_fill(x, N * T * C);
    for (int i = 0; i < N * T; i++) ids[i] = i * i;
    bk_store *s;
    bk_dset *d, *t;
    OK(bk_store_create(&s, path, &meta, gzip, &err));
    OK(bk_dset_create(&t, s, "/tokens/input_ids", BK_STORE_I32, 2, dim2, BK_OVERFLOW_WARN, &err));
    OK(bk_dset_create(&d, s, "/blocks/000/target", BK_STORE_F16, 3, dim3, BK_OVERFLOW_WARN, &err));
    OK(bk_dset_write_raw(t, 0, N, ids, &err));
    for (int i = N - 1; i >= 0; i--) OK(bk_dset_write(d, i, 1, x + i * T * C, &err));
    OK(bk_store_set_text(s, "/blocks/000", "note", "", &err));
    OK(bk_store_commit(s, &err));
}

bk_status sum_up(void *user, const double *v, int64_t first, int64_t n, bk_error *e)
{
    (void)first, (void)e;
    for (int64_t i = 0; i < n; i++) *(double *)user += v[i];
    return BK_OK;
}

static bk_status ignore_attr(void *user, const char *name, const char *text, bool is_text, bk_error *e)
{
    (void)name, (void)text, (void)is_text, (void)e;
    ++*(int *)user;
    return BK_OK;
}

/* Everything that can be read of a file; the first failure, if any. */
bk_status read_all(const char *path, bk_error *e)
{
    bk_store *s;
    BK_TRY(bk_store_open(&s, path, NULL, e));
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    bk_status status = BK_OK;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        int count = 0;
        bk_status st = bk_store_attrs(s, o[i].path, ignore_attr, &count, e);
        if (st == BK_OK && o[i].numeric) st = bk_store_scan(s, o[i].path, sum_up, &sum, e);
        if (status == BK_OK) status = st;
    }
    bk_store_close(s);
    return status;
}

unsigned char *slurp(const char *path, size_t *n)
{
    char *text;
    OK(bk_file_slurp(path, 1 << 26, &text, n, &err));
    return (unsigned char *)text;
}

TCase *store_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}
