#include "tests/h5_golden.h"

#include <check.h>
#include <hdf5.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct owned {
    struct owned *next;
    max_align_t data[];
} owned;

struct bk_golden {
    hid_t file;
    char name[512];
    owned *owned;
};

#define PATH_MAX_LEN 512
/* Formats the path that follows `last` in a variadic function. */
#define FORMAT_PATH(buf, last)                                \
    char buf[PATH_MAX_LEN];                                   \
    do {                                                      \
        va_list ap;                                           \
        va_start(ap, last);                                   \
        int len = vsnprintf(buf, sizeof buf, last, ap);       \
        va_end(ap);                                           \
        ck_assert(len >= 0 && len < PATH_MAX_LEN);            \
    } while (0)

static void *keep(bk_golden *g, size_t bytes)
{
    owned *o = malloc(sizeof *o + (bytes ? bytes : 1));
    ck_assert_ptr_nonnull(o);
    o->next = g->owned;
    g->owned = o;
    return o->data;
}

bk_golden *bk_golden_open(const char *name)
{
    bk_golden *g = calloc(1, sizeof *g);
    ck_assert_ptr_nonnull(g);
    snprintf(g->name, sizeof g->name, "%s%s", name[0] == '/' ? "" : "tests/golden/", name);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    g->file = H5Fopen(g->name, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (g->file < 0) ck_abort_msg("%s does not open: run the tests from the root of the repository", g->name);
    return g;
}

void bk_golden_close(bk_golden *g)
{
    if (!g) return;
    H5Fclose(g->file);
    for (owned *o = g->owned; o;) {
        owned *next = o->next;
        free(o);
        o = next;
    }
    free(g);
}

bool bk_golden_has(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    hid_t o = H5Oopen(g->file, p, H5P_DEFAULT);
    if (o >= 0) H5Oclose(o);
    return o >= 0;
}

static hid_t open_object(bk_golden *g, const char *path)
{
    hid_t o = H5Oopen(g->file, path, H5P_DEFAULT);
    if (o < 0) ck_abort_msg("%s: no object %s", g->name, path);
    return o;
}

char **bk_golden_members(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    hid_t o = open_object(g, p);
    H5G_info_t info;
    if (H5Gget_info(o, &info) < 0) ck_abort_msg("%s: %s is no group", g->name, p);
    char **names = keep(g, (size_t)(info.nlinks + 1) * sizeof *names);
    for (hsize_t i = 0; i < info.nlinks; i++) {
        ssize_t len = H5Lget_name_by_idx(o, ".", H5_INDEX_NAME, H5_ITER_INC, i, NULL, 0, H5P_DEFAULT);
        ck_assert(len >= 0);
        names[i] = keep(g, (size_t)len + 1);
        len = H5Lget_name_by_idx(o, ".", H5_INDEX_NAME, H5_ITER_INC, i, names[i], (size_t)len + 1, H5P_DEFAULT);
        ck_assert(len >= 0);
    }
    names[info.nlinks] = NULL;
    H5Oclose(o);
    return names;
}

static int dims(bk_golden *g, const char *path, int64_t dim[BK_GOLDEN_DIMS])
{
    hid_t o = open_object(g, path), space = H5Dget_space(o);
    if (space < 0) ck_abort_msg("%s: %s is no dataset", g->name, path);
    int n = H5Sget_simple_extent_ndims(space);
    ck_assert(n >= 0 && n <= BK_GOLDEN_DIMS);
    hsize_t h[BK_GOLDEN_DIMS];
    ck_assert_int_ge(H5Sget_simple_extent_dims(space, h, NULL), 0);
    for (int i = 0; i < n; i++) dim[i] = (int64_t)h[i];
    H5Sclose(space);
    H5Oclose(o);
    return n;
}

int bk_golden_dims(bk_golden *g, int64_t dim[BK_GOLDEN_DIMS], const char *path, ...)
{
    FORMAT_PATH(p, path);
    return dims(g, p, dim);
}

static int64_t count(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS], total = 1;
    int n = dims(g, path, dim);
    for (int i = 0; i < n; i++) total *= dim[i];
    return total;
}

int64_t bk_golden_count(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return count(g, p);
}

static void *read_values(bk_golden *g, const char *path, hid_t type)
{
    void *v = keep(g, (size_t)count(g, path) * H5Tget_size(type));
    hid_t o = open_object(g, path);
    if (H5Dread(o, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) < 0) ck_abort_msg("%s: cannot read %s", g->name, path);
    H5Oclose(o);
    return v;
}

double *bk_golden_f64(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return read_values(g, p, H5T_NATIVE_DOUBLE);
}

float *bk_golden_f32(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return read_values(g, p, H5T_NATIVE_FLOAT);
}

int64_t *bk_golden_i64(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return read_values(g, p, H5T_NATIVE_INT64);
}

int32_t *bk_golden_i32(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return read_values(g, p, H5T_NATIVE_INT32);
}

int8_t *bk_golden_i8(bk_golden *g, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return read_values(g, p, H5T_NATIVE_INT8);
}

static hid_t open_attr(bk_golden *g, const char *name, const char *path)
{
    hid_t a = H5Aopen_by_name(g->file, path, name, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0) ck_abort_msg("%s: %s has no attribute %s", g->name, path, name);
    return a;
}

static void read_attr(bk_golden *g, const char *name, const char *path, hid_t type, void *dst)
{
    hid_t a = open_attr(g, name, path);
    if (H5Aread(a, type, dst) < 0) ck_abort_msg("%s: cannot read attribute %s of %s", g->name, name, path);
    H5Aclose(a);
}

bool bk_golden_has_attr(bk_golden *g, const char *name, const char *path, ...)
{
    FORMAT_PATH(p, path);
    return H5Aexists_by_name(g->file, p, name, H5P_DEFAULT) > 0;
}

double bk_golden_attr(bk_golden *g, const char *name, const char *path, ...)
{
    FORMAT_PATH(p, path);
    double v;
    read_attr(g, name, p, H5T_NATIVE_DOUBLE, &v);
    return v;
}

int64_t bk_golden_attr_i64(bk_golden *g, const char *name, const char *path, ...)
{
    FORMAT_PATH(p, path);
    int64_t v;
    read_attr(g, name, p, H5T_NATIVE_INT64, &v);
    return v;
}

const char *bk_golden_attr_str(bk_golden *g, const char *name, const char *path, ...)
{
    FORMAT_PATH(p, path);
    hid_t a = open_attr(g, name, p), type = H5Aget_type(a);
    ck_assert(H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0);
    size_t size = H5Tget_size(type);
    char *s = keep(g, size + 1);
    ck_assert_int_ge(H5Aread(a, type, s), 0);
    s[size] = 0;
    H5Tclose(type);
    H5Aclose(a);
    return s;
}

double bk_golden_error(const double *got, const double *ref, int64_t n, int64_t cols)
{
    double whole = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) whole = fmax(whole, fabs(ref[i]));
    for (int64_t r = 0; r < n; r += cols) {
        double size = 0.01 * whole, diff = 0;
        for (int64_t i = r; i < r + cols; i++) {
            if (isnan(got[i])) return INFINITY;
            size = fmax(size, fabs(ref[i]));
            diff = fmax(diff, fabs(got[i] - ref[i]));
        }
        worst = fmax(worst, whole > 0 ? diff / size : diff);
    }
    return worst;
}

double bk_golden_error_f32(const float *got, const double *ref, int64_t n, int64_t cols)
{
    double *wide = malloc((size_t)(n > 0 ? n : 1) * sizeof *wide);
    ck_assert_ptr_nonnull(wide);
    for (int64_t i = 0; i < n; i++) wide[i] = (double)got[i];
    double e = bk_golden_error(wide, ref, n, cols);
    free(wide);
    return e;
}
