/* Safetensors: one file, or the shards of a folder, read by tensor; and a writer. Format: u64 header length, JSON
 * header, data. */
#ifndef BK_SAFETENSORS_H
#define BK_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"
#include "io/json.h"

#define BK_ST_MAX_DIM 8

/* BK_ST_DTYPE(name as in the file, bytes of one value) */
/* clang-format off */
#define BK_ST_DTYPES(BK_ST_DTYPE)                                                                                          \
    BK_ST_DTYPE(F32, 4) BK_ST_DTYPE(F16, 2) BK_ST_DTYPE(BF16, 2) BK_ST_DTYPE(F64, 8) BK_ST_DTYPE(U8, 1) BK_ST_DTYPE(I8, 1) \
    BK_ST_DTYPE(BOOL, 1) BK_ST_DTYPE(U16, 2) BK_ST_DTYPE(I16, 2) BK_ST_DTYPE(U32, 4) BK_ST_DTYPE(I32, 4)                   \
    BK_ST_DTYPE(U64, 8) BK_ST_DTYPE(I64, 8) BK_ST_DTYPE(F8_E4M3, 1) BK_ST_DTYPE(F8_E5M2, 1)

typedef enum {
#define BK_ST_DTYPE(name, bytes) BK_ST_##name,
    BK_ST_DTYPES(BK_ST_DTYPE)
#undef BK_ST_DTYPE
    BK_ST_DTYPE_COUNT
} bk_st_dtype;
/* clang-format on */

const char *bk_st_dtype_name(bk_st_dtype d);
size_t bk_st_dtype_size(bk_st_dtype d);

typedef struct bk_st_tensor {
    const char *name;
    bk_st_dtype dtype;
    int ndim;
    int64_t dim[BK_ST_MAX_DIM]; /* outermost first */
    int64_t count;              /* values: the product of the dims */
    uint64_t offset;            /* in its file */
    int file;                   /* index for bk_st_file_path */
} bk_st_tensor;

typedef struct bk_st_set bk_st_set;

/* One file. Refused (BK_EFORMAT): a header above 100 MB or beyond the end of the file (before anything is allocated for
 * it), duplicate names, sizes that do not match dtype and shape, tensors that overlap, holes, trailing bytes;
 * BK_EUNSUP: unknown dtypes. */
bk_status bk_st_open(const char *path, bk_st_set **out, bk_error *err) BK_MUST_USE;
/* A folder: where model.safetensors.index.json stands, it alone decides which tensor comes from which file of the
 * folder (other files are not looked at; names with a path are refused); else model.safetensors. Absent shards and
 * tensors are listed. */
bk_status bk_st_open_folder(const char *dir, bk_st_set **out, bk_error *err) BK_MUST_USE;
void bk_st_close(bk_st_set *s); /* NULL is legal */

int64_t bk_st_count(const bk_st_set *s);
const bk_st_tensor *bk_st_at(const bk_st_set *s, int64_t i);          /* sorted by name */
const bk_st_tensor *bk_st_find(const bk_st_set *s, const char *name); /* NULL if absent */
int bk_st_file_count(const bk_st_set *s);
const char *bk_st_file_path(const bk_st_set *s, int file); /* sorted by name */
const bk_json *bk_st_metadata(const bk_st_set *s);         /* __metadata__ of the first file, or NULL */

/* Values [first, first + n) of a tensor of F32, F16, BF16 or F64 as f32; of any tensor as they are. No allocation. */
bk_status bk_st_read_f32(const bk_st_set *s, const bk_st_tensor *t, int64_t first, int64_t n, float *dst,
                         bk_error *err) BK_MUST_USE;
bk_status bk_st_read_raw(const bk_st_set *s, const bk_st_tensor *t, int64_t first, int64_t n, void *dst,
                         bk_error *err) BK_MUST_USE;

/* Writing: metadata and all tensors are declared, then the data follow in the declared order, in pieces of any size;
 * same calls, same bytes. Nothing stands at PATH before commit. commit and abort free the writer. */
typedef struct bk_st_writer bk_st_writer;
bk_status bk_st_writer_new(const char *path, bk_st_writer **out, bk_error *err) BK_MUST_USE;
void bk_st_writer_metadata(bk_st_writer *w, const char *key, const char *value);
bk_status bk_st_writer_declare(bk_st_writer *w, const char *name, bk_st_dtype dtype, int ndim, const int64_t *dim,
                               bk_error *err) BK_MUST_USE;
/* `name` is the tensor whose turn it is: another one, or more bytes than it has, is BK_EINVAL. */
bk_status bk_st_writer_put(bk_st_writer *w, const char *name, const void *data, size_t bytes,
                           bk_error *err) BK_MUST_USE;
bk_status bk_st_writer_commit(bk_st_writer *w, bk_error *err) BK_MUST_USE; /* BK_EINVAL if data are missing */
void bk_st_writer_abort(bk_st_writer *w);                                  /* NULL is legal */

#endif
