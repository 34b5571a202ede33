/* Reads the golden HDF5 files of the tests. Every failure ends the running Check test with a message; arrays and names belong to the
 * open file and are freed with it. Paths may be absolute or relative to the root group; they are printf formats. */
#ifndef BK_TESTS_H5_GOLDEN_H
#define BK_TESTS_H5_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

#define BK_GOLDEN_DIMS 8

typedef struct bk_golden bk_golden;

/* Opens tests/golden/NAME, as seen from the root of the repository; a NAME that begins with / as it is. */
bk_golden *bk_golden_open(const char *name);
void bk_golden_close(bk_golden *g);

/* Is there a group or dataset of this name? */
bool bk_golden_has(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
/* Names of the members of a group, in alphabetical order; the list ends with NULL. */
char **bk_golden_members(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
/* Dimensions of a dataset, outermost first; returns their number. */
int bk_golden_dims(bk_golden *g, int64_t dim[BK_GOLDEN_DIMS], const char *path, ...)
    __attribute__((format(printf, 3, 4)));
/* Elements of a dataset. */
int64_t bk_golden_count(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* The values of a dataset, row-major; HDF5 converts from the type in the file. */
double *bk_golden_f64(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
float *bk_golden_f32(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
int64_t *bk_golden_i64(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
int32_t *bk_golden_i32(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));
int8_t *bk_golden_i8(bk_golden *g, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* Attribute `name` of the group or dataset at `path`. */
bool bk_golden_has_attr(bk_golden *g, const char *name, const char *path, ...) __attribute__((format(printf, 3, 4)));
double bk_golden_attr(bk_golden *g, const char *name, const char *path, ...) __attribute__((format(printf, 3, 4)));
int64_t bk_golden_attr_i64(bk_golden *g, const char *name, const char *path, ...) __attribute__((format(printf, 3, 4)));
const char *bk_golden_attr_str(bk_golden *g, const char *name, const char *path, ...)
    __attribute__((format(printf, 3, 4)));

/* The error that the tolerances of the golden files bound: the worst row's max|got - ref| / max(max|ref| of the row, 0.01 * max|ref| of
 * the tensor), rows being `cols` long; max|got| where the whole reference is zero; infinity where `got` has a NaN. */
double bk_golden_error(const double *got, const double *ref, int64_t count, int64_t cols);
double bk_golden_error_f32(const float *got, const double *ref, int64_t count, int64_t cols);

#endif
