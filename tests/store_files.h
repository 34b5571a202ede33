/* What the tests of the store share: a folder of their own, a file of a known content, reading all of one. */
#ifndef BK_STORE_FILES_H
#define BK_STORE_FILES_H

#include <check.h>
#include <string.h>

#include "io/file.h"
#include "io/store.h"

#define N 4
#define T 8
#define C 12

extern bk_error err;
extern const bk_store_meta meta;
extern const int64_t dim3[3], dim2[2];

#define OK(call) ck_assert_msg((call) == BK_OK, "%s", err.msg)
#define FAILS(call, code)                                                               \
    do {                                                                                \
        bk_error_clear(&err);                                                           \
        bk_status got_ = (call);                                                        \
        ck_assert_msg(got_ == (code), "%s: %s", bk_status_name(got_), err.msg);         \
        ck_assert_msg(strlen(err.msg) > 10, "no message for %s", bk_status_name(got_)); \
    } while (0)
#define SAYS(text) ck_assert_msg(strstr(err.msg, text) != NULL, "%s", err.msg)

TCase *store_case(Suite *suite, const char *name); /* with a folder for each test */
const char *in_dir(const char *name);              /* good for the next few calls */
float store_value(int64_t i);
void store_fill(float *x, int64_t n);
void write_sample_file(const char *path, int gzip); /* /tokens/input_ids and /blocks/000/target */
bk_status sum_up(void *user, const double *v, int64_t first, int64_t n, bk_error *e);
bk_status read_all(const char *path, bk_error *e); /* everything that can be read; the first failure */
unsigned char *slurp(const char *path, size_t *n);

#endif
