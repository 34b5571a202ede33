#include "tests/make_gguf.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"

void bytes_put(bytes *b, const void *p, size_t n)
{
    if (n == 0) return;
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n) + 64;
        b->p = realloc(b->p, b->room);
        ck_assert_ptr_nonnull(b->p);
    }
    if (p)
        memcpy(b->p + b->n, p, n);
    else
        memset(b->p + b->n, 0, n);
    b->n += n;
}

void bytes_free(bytes *b)
{
    free(b->p);
    *b = (bytes){0};
}

void bytes_save(const bytes *b, const char *path)
{
    bk_error err = {0};
    ck_assert_msg(bk_write_file(path, b->p, b->n, &err) == BK_OK, "%s", err.msg);
}

static void put_u32(bytes *b, uint32_t v)
{
    bytes_put(b, &v, sizeof v);
}

static void put_u64(bytes *b, uint64_t v)
{
    bytes_put(b, &v, sizeof v);
}

static void put_str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    bytes_put(b, s, strlen(s));
}

static void begin_key(make_gguf *m, const char *key, uint32_t type)
{
    m->n_keys++;
    put_str(&m->keys, key);
    put_u32(&m->keys, type);
}

void gguf_key(make_gguf *m, const char *key, uint32_t type, const void *value, size_t size)
{
    begin_key(m, key, type);
    bytes_put(&m->keys, value, size);
}

void gguf_u32(make_gguf *m, const char *key, uint32_t v)
{
    gguf_key(m, key, GGUF_U32, &v, sizeof v);
}

void gguf_f32(make_gguf *m, const char *key, float v)
{
    gguf_key(m, key, GGUF_F32, &v, sizeof v);
}

void gguf_str(make_gguf *m, const char *key, const char *s)
{
    begin_key(m, key, GGUF_STRING);
    put_str(&m->keys, s);
}

void gguf_strs(make_gguf *m, const char *key, uint64_t n, const char *const *s)
{
    begin_key(m, key, GGUF_ARRAY);
    put_u32(&m->keys, GGUF_STRING);
    put_u64(&m->keys, n);
    for (uint64_t i = 0; i < n; i++) put_str(&m->keys, s[i]);
}

void gguf_array(make_gguf *m, const char *key, uint32_t type, uint64_t n, const void *values, size_t size)
{
    begin_key(m, key, GGUF_ARRAY);
    put_u32(&m->keys, type);
    put_u64(&m->keys, n);
    bytes_put(&m->keys, values, size);
}

void gguf_info(make_gguf *m, const char *name, uint32_t type, int ndim, const int64_t *dim, uint64_t offset)
{
    m->n_tensors++;
    put_str(&m->infos, name);
    put_u32(&m->infos, (uint32_t)ndim);
    for (int i = ndim - 1; i >= 0; i--) put_u64(&m->infos, (uint64_t)dim[i]);
    put_u32(&m->infos, type);
    put_u64(&m->infos, offset);
}

static size_t padding(size_t n, uint64_t alignment)
{
    size_t a = alignment ? (size_t)alignment : 32;
    return (a - n % a) % a;
}

void gguf_tensor(make_gguf *m, const char *name, uint32_t type, int ndim, const int64_t *dim, const void *data, size_t size)
{
    bytes_put(&m->data, NULL, padding(m->data.n, m->alignment));
    gguf_info(m, name, type, ndim, dim, m->data.n);
    bytes_put(&m->data, data, size);
}

void gguf_f32_tensor(make_gguf *m, const char *name, int ndim, const int64_t *dim, const float *data)
{
    size_t n = sizeof *data;
    for (int i = 0; i < ndim; i++) n *= (size_t)dim[i];
    gguf_tensor(m, name, 0, ndim, dim, data, n);
}

bytes gguf_finish(make_gguf *m, size_t *head)
{
    bytes out = {0};
    bytes_put(&out, "GGUF", 4);
    put_u32(&out, m->version ? m->version : 3);
    put_u64(&out, m->n_tensors);
    put_u64(&out, m->n_keys);
    bytes_put(&out, m->keys.p, m->keys.n);
    bytes_put(&out, m->infos.p, m->infos.n);
    bytes_put(&out, NULL, padding(out.n, m->alignment));
    if (head) *head = out.n;
    bytes_put(&out, m->data.p, m->data.n);
    bytes_free(&m->keys);
    bytes_free(&m->infos);
    bytes_free(&m->data);
    *m = (make_gguf){0};
    return out;
}

void gguf_save(make_gguf *m, const char *path)
{
    bytes b = gguf_finish(m, NULL);
    bytes_save(&b, path);
    bytes_free(&b);
}
