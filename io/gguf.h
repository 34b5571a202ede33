/* GGUF v2/v3 files: metadata, tensor table, tensors dequantized to f32. All counts and offsets are checked against the
 * file. */
#ifndef BK_GGUF_H
#define BK_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"

typedef struct bk_gguf bk_gguf;

/* Opens and reads header, metadata and tensor table; tensor data stay on disk. Refused (BK_EFORMAT): cut off or longer
 * than its tensors, other versions or byte order, duplicate names, tensors that overlap or whose rows are no whole
 * number of blocks; BK_EUNSUP: unknown tensor types. */
bk_status bk_gguf_open(const char *path, bk_gguf **out, bk_error *err) BK_MUST_USE;
void bk_gguf_close(bk_gguf *g); /* NULL is legal */
const char *bk_gguf_path(const bk_gguf *g);

/* Metadata. Absent or of another type: the given default, false, or a count of 0. Integers of any width count as int. */
bool bk_gguf_has(const bk_gguf *g, const char *key);
int64_t bk_gguf_int(const bk_gguf *g, const char *key, int64_t otherwise);
double bk_gguf_num(const bk_gguf *g, const char *key, double otherwise);
bool bk_gguf_bool(const bk_gguf *g, const char *key, bool otherwise);
/* Strings may hold NUL; len may be NULL. Borrowed. */
const char *bk_gguf_str(const bk_gguf *g, const char *key, size_t *len);
int64_t bk_gguf_array_len(const bk_gguf *g, const char *key);
const char *bk_gguf_array_str(const bk_gguf *g, const char *key, int64_t i, size_t *len);
double bk_gguf_array_num(const bk_gguf *g, const char *key, int64_t i, double otherwise);
int64_t bk_gguf_array_int(const bk_gguf *g, const char *key, int64_t i, int64_t otherwise);

/* Tensors: dim[0] is the outermost (rows), as in the rest of brick; GGUF's own order is the reverse. */
typedef struct bk_gguf_tensor {
    const char *name;
    const char *type; /* "F32", "Q4_1" ... */
    bool readable;    /* false: a type that brick knows but does not dequantize (IQ..., integers) */
    int ndim;
    int64_t dim[4];
    uint64_t bytes, offset; /* in the file */
} bk_gguf_tensor;

int64_t bk_gguf_tensor_count(const bk_gguf *g);
const bk_gguf_tensor *bk_gguf_tensor_at(const bk_gguf *g, int64_t i);
const bk_gguf_tensor *bk_gguf_find(const bk_gguf *g, const char *name); /* NULL if absent */
/* Rows [row0, row0 + rows) of a tensor seen as [rows, last dim], dequantized to f32 in file order; allocates nothing.
 * BK_EUNSUP if not readable. */
bk_status bk_gguf_read_rows(const bk_gguf *g, const bk_gguf_tensor *t, int64_t row0, int64_t rows, float *dst,
                            bk_error *err) BK_MUST_USE;

#endif
