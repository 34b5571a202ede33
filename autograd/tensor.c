#include "autograd/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t bk_dtype_size(bk_dtype d)
{
    static const size_t size[BK_DTYPE_COUNT] = {[BK_F32] = 4, [BK_F64] = 8, [BK_I32] = 4, [BK_U8] = 1};
    return size[d];
}

int64_t bk_numel(const bk_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

int64_t bk_last_dim(const bk_tensor *t)
{
    return t->ndim ? t->dim[t->ndim - 1] : 1;
}

int64_t bk_rows(const bk_tensor *t)
{
    int64_t last = bk_last_dim(t);
    return last ? bk_numel(t) / last : 0;
}

bool bk_same_shape(const bk_tensor *a, const bk_tensor *b)
{
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

const char *bk_shape_str(const bk_tensor *t, char *buf)
{
    int n = sprintf(buf, "[");
    for (int i = 0; i < t->ndim; i++) n += sprintf(buf + n, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    sprintf(buf + n, "]");
    return buf;
}

void bk_tensor_init(bk_tensor *t, bk_dtype dtype, int ndim, const int64_t *dim, const char *name)
{
    *t = (bk_tensor){.dtype = dtype, .ndim = ndim, .name = name};
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->dim[i] = dim[i];
        t->stride[i] = n;
        n *= dim[i];
    }
}

bk_status bk_tensor_create(const bk_backend *be, bk_dtype dtype, int ndim, const int64_t *dim, const char *name, bk_tensor **out,
                           bk_error *err)
{
    bk_tensor *t = calloc(1, sizeof *t);
    if (!t) return bk_fail(err, BK_ENOMEM, "%s: no memory for a tensor header", name);
    bk_tensor_init(t, dtype, ndim, dim, name);
    size_t bytes = (size_t)bk_numel(t) * bk_dtype_size(dtype);
    bk_status st = bytes ? be->alloc(bytes, &t->data) : BK_OK;
    if (st) {
        free(t);
        return bk_fail(err, st, "%s: no memory for %zu bytes on backend %s", name, bytes, be->name);
    }
    *out = t;
    return BK_OK;
}

void bk_tensor_destroy(const bk_backend *be, bk_tensor *t)
{
    if (!t) return;
    if (t->data) be->release(t->data, (size_t)bk_numel(t) * bk_dtype_size(t->dtype));
    free(t);
}

static bk_status check_range(const bk_tensor *t, int64_t at, int64_t n, bk_error *err)
{
    if (at >= 0 && n >= 0 && at + n <= bk_numel(t)) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: elements %lld..%lld of a tensor of %lld", t->name ? t->name : "tensor", (long long)at,
                   (long long)(at + n), (long long)bk_numel(t));
}

static void *element(const bk_tensor *t, int64_t at)
{
    return (char *)t->data + (size_t)at * bk_dtype_size(t->dtype);
}

/* Conversions go through a fixed buffer on the stack: no allocation, whatever the size. */
#define CHUNK 1024

static bk_status transfer_failed(const bk_tensor *t, bk_status st, bk_error *err)
{
    return bk_fail(err, st, "%s: copy to or from the backend failed", t->name ? t->name : "tensor");
}

/* Moves n host values of type HOST into or out of a tensor whose elements have type DEVICE. */
#define WRITE_AS(HOST, DEVICE)                                                            \
    for (int64_t i = 0; i < n; i += CHUNK) {                                              \
        DEVICE buf[CHUNK];                                                                \
        int64_t m = n - i < CHUNK ? n - i : CHUNK;                                        \
        for (int64_t j = 0; j < m; j++) buf[j] = (DEVICE)((const HOST *)src)[i + j];      \
        bk_status st = be->upload(element(t, at + i), buf, (size_t)m * sizeof(DEVICE));   \
        if (st) return transfer_failed(t, st, err);                                       \
    }
#define READ_AS(HOST, DEVICE)                                                             \
    for (int64_t i = 0; i < n; i += CHUNK) {                                              \
        DEVICE buf[CHUNK];                                                                \
        int64_t m = n - i < CHUNK ? n - i : CHUNK;                                        \
        bk_status st = be->download(buf, element(t, at + i), (size_t)m * sizeof(DEVICE)); \
        if (st) return transfer_failed(t, st, err);                                       \
        for (int64_t j = 0; j < m; j++) ((HOST *)dst)[i + j] = (HOST)buf[j];              \
    }

static bk_status write_bytes(const bk_backend *be, bk_tensor *t, int64_t at, const void *src, int64_t n, bk_error *err)
{
    bk_status st = n ? be->upload(element(t, at), src, (size_t)n * bk_dtype_size(t->dtype)) : BK_OK;
    return st ? transfer_failed(t, st, err) : BK_OK;
}

static bk_status read_bytes(const bk_backend *be, const bk_tensor *t, int64_t at, void *dst, int64_t n, bk_error *err)
{
    bk_status st = n ? be->download(dst, element(t, at), (size_t)n * bk_dtype_size(t->dtype)) : BK_OK;
    return st ? transfer_failed(t, st, err) : BK_OK;
}

bk_status bk_write(const bk_backend *be, bk_tensor *t, int64_t at, const float *src, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    if (t->dtype == BK_F32) return write_bytes(be, t, at, src, n, err);
    WRITE_AS(float, double)
    return BK_OK;
}

bk_status bk_read(const bk_backend *be, const bk_tensor *t, int64_t at, float *dst, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    if (t->dtype == BK_F32) return read_bytes(be, t, at, dst, n, err);
    READ_AS(float, double)
    return BK_OK;
}

bk_status bk_write_f64(const bk_backend *be, bk_tensor *t, int64_t at, const double *src, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    if (t->dtype == BK_F64) return write_bytes(be, t, at, src, n, err);
    WRITE_AS(double, float)
    return BK_OK;
}

bk_status bk_read_f64(const bk_backend *be, const bk_tensor *t, int64_t at, double *dst, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    if (t->dtype == BK_F64) return read_bytes(be, t, at, dst, n, err);
    READ_AS(double, float)
    return BK_OK;
}

bk_status bk_write_i32(const bk_backend *be, bk_tensor *t, int64_t at, const int32_t *src, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    return write_bytes(be, t, at, src, n, err);
}

bk_status bk_read_i32(const bk_backend *be, const bk_tensor *t, int64_t at, int32_t *dst, int64_t n, bk_error *err)
{
    BK_TRY(check_range(t, at, n, err));
    return read_bytes(be, t, at, dst, n, err);
}
