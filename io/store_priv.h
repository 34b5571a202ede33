/* Shared by io/store*.c: the open file, the lock, and HDF5's errors as ours. */
#ifndef BK_STORE_PRIV_H
#define BK_STORE_PRIV_H

#include <hdf5.h>

#include "io/file.h"
#include "io/store.h"
#include "io/store_vfd.h"

#define BK_STORE_TEXT_MAX 65535              /* bytes of an attribute */
#define BK_STORE_CHUNK_MAX ((int64_t)1 << 30) /* bytes of a chunk */

struct bk_dset {
    bk_store *store;
    bk_dset *next;
    char *path;
    bk_dset_info info;
    hid_t id, type, space, row; /* row: memory of one sample. id < 0: closed */
    bk_overflow overflow;
    uint16_t *half; /* one sample; f16 only */
    float *wide;    /* one sample; only where the dataset may become f32 */
    bool *written;  /* per sample; only while writing */
};

struct bk_store {
    char *path; /* as given, for messages */
    bool writing, ours; /* ours: written by brick */
    bk_file in;
    bk_writer out;
    bk_channel ch;
    hid_t driver, file, f16;
    int gzip;
    int64_t texts; /* checksum of all texts written */
    bk_store_meta meta; /* its texts are ours */
    bk_dset *dsets;     /* in the order of creation */
    bk_store_object *objects;
    int64_t n_objects, cap_objects;
};

/* The lock of the process around every HDF5 call. It is a static object because what it guards, the library's own state, is one too. */
void bk_hdf5_lock(void);
void bk_hdf5_unlock(void);

/* Records the failure of the HDF5 call that came just before: "FILE: what: HDF5's most specific complaint". A failed write or read of the
 * system counts first and gives its errno; else the status is BK_EFORMAT when reading and BK_EIO when writing. */
bk_status bk_hdf5_fail(const bk_store *s, bk_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

bk_status bk_store_check_path(const bk_store *s, const char *path, bk_error *err) BK_MUST_USE; /* "/a/b": absolute, no empty parts */
bk_status bk_store_make_groups(bk_store *s, const char *path, bk_error *err) BK_MUST_USE;      /* those above the last name */
bk_status bk_store_check_free(bk_store *s, const char *path, bk_error *err) BK_MUST_USE;       /* nothing has that name yet */
hid_t bk_store_dcpl(void);                                 /* dataset creation: no time stamps, no fill values */
/* Gives an array's values a checksum: chunks have one each, and a single value lies in the object header, which has its own. */
void bk_store_guard(hid_t dcpl, int rank, const hsize_t *extent, int64_t bytes);
hid_t bk_store_hid(const bk_store *s, bk_store_type type); /* HDF5's type, borrowed */

bk_status bk_store_survey(bk_store *s, bk_error *err) BK_MUST_USE; /* fills objects; refuses what brick will not read */
const bk_store_object *bk_store_find(const bk_store *s, const char *path);
/* The object as a dataset whose values are all in the file, else BK_EFORMAT. */
bk_status bk_store_find_data(const bk_store *s, const char *path, const bk_store_object **out, bk_error *err) BK_MUST_USE;
void bk_store_drop_objects(bk_store *s);

/* Whether all of an attribute is small enough to be read at once; the sizes in a damaged one are not to be believed. */
bool bk_store_attr_is_small(hid_t attr);
bk_status bk_store_read_meta(bk_store *s, const char *schema, bk_error *err) BK_MUST_USE;
bk_status bk_store_write_meta(bk_store *s, const bk_store_meta *meta, bk_error *err) BK_MUST_USE;
bk_status bk_store_complete(bk_store *s, bk_error *err) BK_MUST_USE; /* complete = 1, and the checksum of the texts */
bk_status bk_store_check_texts(bk_store *s, bk_error *err) BK_MUST_USE;
void bk_store_drop_meta(bk_store *s);

bk_status bk_store_finish_dsets(bk_store *s, bk_error *err) BK_MUST_USE; /* all written? scales and counts */
void bk_store_drop_dsets(bk_store *s);

#endif
