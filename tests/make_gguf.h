/* GGUF files for tests, good and bad: keys and tensors are appended, then the file is put together. */
#ifndef MAKE_GGUF_H
#define MAKE_GGUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct bytes {
    unsigned char *p;
    size_t n, room;
} bytes;

void bytes_put(bytes *b, const void *p, size_t n);
void bytes_free(bytes *b);

typedef struct make_gguf {
    uint32_t version;        /* 0 = 3 */
    uint64_t alignment;      /* 0 = 32; another one must be added as a key as well */
    uint64_t n_keys, n_tensors;
    bytes keys, infos, data;
} make_gguf; /* begins as {0} */

enum { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64 };

void gguf_key(make_gguf *m, const char *key, uint32_t type, const void *value, size_t size);
void gguf_u32(make_gguf *m, const char *key, uint32_t v);
void gguf_f32(make_gguf *m, const char *key, float v);
void gguf_str(make_gguf *m, const char *key, const char *s);
void gguf_strs(make_gguf *m, const char *key, uint64_t n, const char *const *s);
void gguf_array(make_gguf *m, const char *key, uint32_t type, uint64_t n, const void *values, size_t size);
/* Only the entry in the table, with an offset of the caller's choice. */
void gguf_info(make_gguf *m, const char *name, uint32_t type, int ndim, const int64_t *dim, uint64_t offset);
/* Entry and data, aligned; dim[0] is the outermost. */
void gguf_tensor(make_gguf *m, const char *name, uint32_t type, int ndim, const int64_t *dim, const void *data, size_t size);
void gguf_f32_tensor(make_gguf *m, const char *name, int ndim, const int64_t *dim, const float *data);

/* Frees m; the file's bytes, and how many of them stand before the tensor data. */
bytes gguf_finish(make_gguf *m, size_t *head);
/* gguf_finish into a file; the test fails if that fails. */
void gguf_save(make_gguf *m, const char *path);
void bytes_save(const bytes *b, const char *path);

#endif
