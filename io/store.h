/* HDF5 files of brick's layout (docs/hdf5-layout.md): activations and targets by the sample, prefixes, checkpoints.
 *
 * All that is written has a checksum, so a byte that changed on the disk is BK_EFORMAT when it is read, with the dataset's name.
 * Writing goes to PATH.partial with complete = 0; bk_store_commit checks, syncs and renames. Reading refuses what is incomplete, damaged, of
 * another schema, or reaches outside of the file (external links and storage, virtual datasets, filter plugins).
 * HDF5 is not thread-safe as distributed: every call here takes one lock of the process, so handles may be used from several threads. */
#ifndef BK_STORE_H
#define BK_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_STORE_VERSION 1
#define BK_STORE_RANK 4      /* of what brick writes */
#define BK_STORE_ANY_RANK 32 /* of foreign files */

typedef struct bk_store bk_store; /* an open file */
typedef struct bk_dset bk_dset;   /* an open dataset; belongs to its store and ends with it */

typedef enum { BK_STORE_F16, BK_STORE_F32, BK_STORE_F64, BK_STORE_I32, BK_STORE_I64, BK_STORE_U8, BK_STORE_OTHER } bk_store_type;
const char *bk_store_type_name(bk_store_type type); /* "f16" ... */
int64_t bk_store_type_size(bk_store_type type);     /* bytes; 0 for BK_STORE_OTHER */

/* What happens to a finite value beyond +-65504 in an f16 dataset. NaN and Inf are BK_ENUMERIC always, in f32 datasets too. */
typedef enum {
    BK_OVERFLOW_WARN,  /* stored as +-65504 and counted (bk_dset_info.saturated, attribute `saturated`); the caller warns */
    BK_OVERFLOW_F32,   /* the dataset becomes f32; what was written before is kept with the precision that it had */
    BK_OVERFLOW_ERROR  /* BK_ENUMERIC, naming the place */
} bk_overflow;

/* Attributes of the root group. Texts are UTF-8 below 64 KiB; NULL = not written, or absent in the file. */
typedef struct bk_store_meta {
    const char *schema; /* "brick.targets", "brick.dump", "brick.prefix", "brick.checkpoint"; never NULL when writing */
    const char *model, *model_sha256;
    const char *config; /* only the keys that the stage depends on */
    bool has_seed;
    int64_t seed, prefix_len;
} bk_store_meta;

/* gzip: 0 = none, 1..9 = shuffle and gzip on the datasets of bk_dset_create. PATH that exists and is no regular file: BK_EINVAL. */
bk_status bk_store_create(bk_store **out, const char *path, const bk_store_meta *meta, int gzip, bk_error *err) BK_MUST_USE;
/* For reading. schema NULL accepts any HDF5 file. Absent or unreadable: BK_EIO; all else that is wrong with it: BK_EFORMAT. */
bk_status bk_store_open(bk_store **out, const char *path, const char *schema, bk_error *err) BK_MUST_USE;
/* Ends the writing: every sample of every dataset must have been written (BK_EINVAL). Frees s; on failure nothing of the file is left and
 * what PATH was before is untouched. Full disk or file-size limit: BK_ENOSPC. */
bk_status bk_store_commit(bk_store *s, bk_error *err) BK_MUST_USE;
void bk_store_close(bk_store *s); /* NULL is legal; gives up a file that is not committed and removes it */
const bk_store_meta *bk_store_meta_of(const bk_store *s); /* of a file open for reading */

/* ---- datasets by the sample: dimension 0 is the sample, one chunk each ---- */

typedef struct bk_dset_info {
    bk_store_type type;
    int rank;
    int64_t dim[BK_STORE_ANY_RANK];
    int64_t sample_len; /* elements of one sample */
    int64_t saturated;  /* values stored as +-65504 */
} bk_dset_info;

/* A new dataset of rank 1..4 with extents >= 1; groups on the way are made. Dimensions are named and scaled `sample`, `token`, `channel`
 * (rank 4: `sample`, `token`, `head`, `channel`). overflow matters for BK_STORE_F16 only. */
bk_status bk_dset_create(bk_dset **out, bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim,
                         bk_overflow overflow, bk_error *err) BK_MUST_USE;
bk_status bk_dset_open(bk_dset **out, bk_store *s, const char *path, bk_error *err) BK_MUST_USE; /* absent: BK_EFORMAT */
void bk_dset_close(bk_dset *d); /* before its store ends; NULL is legal */
const bk_dset_info *bk_dset_info_of(const bk_dset *d);

/* Samples [first, first + n) from and to host memory, n * sample_len elements. Nothing of ours is allocated.
 * The float form serves f16 and f32 datasets; the raw form every type as stored (f16 as uint16_t, which is not checked). */
bk_status bk_dset_write(bk_dset *d, int64_t first, int64_t n, const float *src, bk_error *err) BK_MUST_USE;
bk_status bk_dset_read(bk_dset *d, int64_t first, int64_t n, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_dset_write_raw(bk_dset *d, int64_t first, int64_t n, const void *src, bk_error *err) BK_MUST_USE;
bk_status bk_dset_read_raw(bk_dset *d, int64_t first, int64_t n, void *dst, bk_error *err) BK_MUST_USE;

/* ---- reading ahead: a thread fills one buffer while the caller computes with the other ---- */

#define BK_PREFETCH_MAX 4
typedef struct bk_prefetch bk_prefetch;

/* Over 1..BK_PREFETCH_MAX datasets of as many samples; room for two batches of `batch` samples is made here and nowhere else. */
bk_status bk_prefetch_new(bk_prefetch **out, bk_dset *const *dset, int n_dset, int64_t batch, bk_error *err) BK_MUST_USE;
/* Starts to read the given samples (any order, n <= batch; the list is copied). One at a time: begin, wait, begin, wait ... */
bk_status bk_prefetch_begin(bk_prefetch *p, const int64_t *samples, int64_t n, bk_error *err) BK_MUST_USE;
/* data[k] = the batch of dataset k, [n, sample_len]; valid until the next wait. Errors of the reading arrive here. */
bk_status bk_prefetch_wait(bk_prefetch *p, const float **data, bk_error *err) BK_MUST_USE;
void bk_prefetch_free(bk_prefetch *p); /* waits for a read under way; before the datasets close; NULL is legal */

/* ---- whole arrays and attributes: prefixes, checkpoints ---- */

/* One array of rank 0..4, extents >= 0, no scales. NaN and Inf are stored (a checkpoint keeps what there is). */
bk_status bk_store_put(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, const void *data,
                       bk_error *err) BK_MUST_USE;
/* Another type or shape than asked for is BK_EFORMAT; BK_STORE_F32 reads f16 too. */
bk_status bk_store_get(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, void *data,
                       bk_error *err) BK_MUST_USE;
bk_status bk_store_info(bk_store *s, const char *path, bk_dset_info *info, bk_error *err) BK_MUST_USE; /* absent: BK_EFORMAT */
bool bk_store_has(const bk_store *s, const char *path); /* group or dataset; of a file open for reading */

/* Attributes of a group or dataset, "/" for the root. Setting twice is BK_EINVAL, getting one that is absent or of another kind BK_EFORMAT. */
bk_status bk_store_set_text(bk_store *s, const char *path, const char *name, const char *value, bk_error *err) BK_MUST_USE;
bk_status bk_store_set_int(bk_store *s, const char *path, const char *name, int64_t value, bk_error *err) BK_MUST_USE;
bk_status bk_store_set_real(bk_store *s, const char *path, const char *name, double value, bk_error *err) BK_MUST_USE;
bk_status bk_store_get_text(bk_store *s, const char *path, const char *name, char **value, bk_error *err) BK_MUST_USE; /* malloc'd */
bk_status bk_store_get_int(bk_store *s, const char *path, const char *name, int64_t *value, bk_error *err) BK_MUST_USE;
bk_status bk_store_get_real(bk_store *s, const char *path, const char *name, double *value, bk_error *err) BK_MUST_USE;

/* ---- what is in a file, for any file that bk_store_open took ---- */

typedef struct bk_store_object {
    const char *path; /* "/blocks/000/target" */
    bool group;
    /* datasets: */
    bk_store_type type;
    char type_text[48]; /* also for types that brick does not know: "i16", "text", "compound" */
    bool numeric;       /* bk_store_scan works */
    int rank;
    int64_t dim[BK_STORE_ANY_RANK], chunk[BK_STORE_ANY_RANK]; /* chunk[0] = 0: in one piece */
    char label[BK_STORE_RANK][24];                            /* names of the first dimensions, "" = none */
    int gzip;                                                 /* level, 0 = none */
    bool shuffle, checksum;
    int64_t elements, stored_bytes;
} bk_store_object;

/* All groups and datasets, the root first, sorted by path. Lives as long as s. */
const bk_store_object *bk_store_objects(const bk_store *s, int64_t *n);

/* Attributes with their values as text (numbers in shortest form, arrays in brackets); those that only carry dimension scales are left out.
 * fn must not call the store. */
typedef bk_status bk_store_attr_fn(void *user, const char *name, const char *value, bool is_text, bk_error *err);
bk_status bk_store_attrs(bk_store *s, const char *path, bk_store_attr_fn *fn, void *user, bk_error *err) BK_MUST_USE;

/* The values of a numeric dataset in row-major order, some at a time, in memory that does not depend on its size (a
 * chunk that is compressed or has a checksum is held as a whole). Two scans may run side by side; datasets of the same shape come in the
 * same pieces. */
typedef struct bk_scan bk_scan;
bk_status bk_scan_open(bk_scan **out, bk_store *s, const char *path, bk_error *err) BK_MUST_USE; /* no numbers: BK_EINVAL */
bk_status bk_scan_next(bk_scan *c, const double **v, int64_t *n, bk_error *err) BK_MUST_USE; /* *n = 0 behind the last */
void bk_scan_close(bk_scan *c); /* before its store; NULL is legal */

/* The same with a function for the pieces; `first` is the flat index of v[0]. */
typedef bk_status bk_store_scan_fn(void *user, const double *v, int64_t first, int64_t n, bk_error *err);
bk_status bk_store_scan(bk_store *s, const char *path, bk_store_scan_fn *fn, void *user, bk_error *err) BK_MUST_USE;
/* Reads a whole file, so that every checksum in it is looked at: BK_EFORMAT, naming the dataset, if one is wrong. */
bk_status bk_store_verify(const char *path, const char *schema, bk_error *err) BK_MUST_USE;

#endif
