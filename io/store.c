#include "io/store_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static pthread_mutex_t hdf5_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t hdf5_once = PTHREAD_ONCE_INIT;

static void set_up(void)
{
    H5dont_atexit(); /* files that are open when the program ends are partial: closing them would only touch them again */
    H5open();
    H5PLset_loading_state(0); /* never runs code that a file or the environment names */
}

void bk_hdf5_lock(void)
{
    pthread_mutex_lock(&hdf5_mutex);
    pthread_once(&hdf5_once, set_up);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* per thread in some builds of HDF5 */
}

void bk_hdf5_unlock(void)
{
    pthread_mutex_unlock(&hdf5_mutex);
}

static herr_t most_specific(unsigned n, const H5E_error2_t *e, void *user)
{
    if (n == 0 && e->desc) snprintf(user, 256, ": %s", strstr(e->desc, "Fletcher32") ? "damaged: the values do not match their checksum" : e->desc);
    return 0;
}

bk_status bk_hdf5_fail(const bk_store *s, bk_error *err, const char *fmt, ...)
{
    char what[512], why[256] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (s->ch.error) {
        errno = s->ch.error;
        return bk_fail_errno(err, "%s: %s", s->path, what);
    }
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, most_specific, why);
    return bk_fail(err, s->writing ? BK_EIO : BK_EFORMAT, "%s: %s%s", s->path, what, why);
}

static const struct {
    const char *name;
    int size;
} types[] = {
    [BK_STORE_F16] = {"f16", 2}, [BK_STORE_F32] = {"f32", 4}, [BK_STORE_F64] = {"f64", 8},     [BK_STORE_I32] = {"i32", 4},
    [BK_STORE_I64] = {"i64", 8}, [BK_STORE_U8] = {"u8", 1},   [BK_STORE_OTHER] = {"other", 0},
};

const char *bk_store_type_name(bk_store_type type)
{
    return types[type].name;
}

int64_t bk_store_type_size(bk_store_type type)
{
    return types[type].size;
}

hid_t bk_store_hid(const bk_store *s, bk_store_type type)
{
    switch (type) {
    case BK_STORE_F16: return s->f16;
    case BK_STORE_F32: return H5T_IEEE_F32LE;
    case BK_STORE_F64: return H5T_IEEE_F64LE;
    case BK_STORE_I32: return H5T_STD_I32LE;
    case BK_STORE_I64: return H5T_STD_I64LE;
    case BK_STORE_U8: return H5T_STD_U8LE;
    default: return -1;
    }
}

/* IEEE binary16, little-endian: predefined only since HDF5 1.14.4. */
static hid_t make_f16(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0 || H5Tset_fields(t, 15, 10, 5, 0, 10) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, 15) < 0) return -1;
    return t;
}

/* No time stamps; attributes and links stay in object headers, however many: on damage in the trees that HDF5 1.10.8 makes of more than 8, it
 * crashes. */
static hid_t creation_list(hid_t class)
{
    hid_t p = H5Pcreate(class);
    H5Pset_obj_track_times(p, 0);
    H5Pset_attr_phase_change(p, UINT16_MAX, 0);
    if (class != H5P_DATASET_CREATE) H5Pset_link_phase_change(p, UINT16_MAX, 0);
    return p;
}

hid_t bk_store_dcpl(void)
{
    hid_t p = creation_list(H5P_DATASET_CREATE);
    H5Pset_fill_time(p, H5D_FILL_TIME_NEVER);
    return p;
}

/* One chunk is the whole array, or as much of its outer extents as may be in one. */
void bk_store_guard(hid_t dcpl, int rank, const hsize_t *extent, int64_t bytes)
{
    hsize_t chunk[BK_STORE_RANK];
    if (rank == 0) H5Pset_layout(dcpl, H5D_COMPACT);
    if (rank == 0 || bytes == 0) return;
    for (int k = 0; k < rank; k++) {
        hsize_t parts = (hsize_t)((bytes + BK_STORE_CHUNK_MAX - 1) / BK_STORE_CHUNK_MAX);
        chunk[k] = parts < extent[k] ? extent[k] / parts : 1;
        bytes = bytes / (int64_t)extent[k] * (int64_t)chunk[k];
    }
    H5Pset_chunk(dcpl, rank, chunk);
    H5Pset_fletcher32(dcpl);
}

bk_status bk_store_check_path(const bk_store *s, const char *path, bk_error *err)
{
    size_t n = strlen(path);
    if (path[0] != '/' || n < 2 || n > 255 || path[n - 1] == '/' || strstr(path, "//"))
        return bk_fail(err, BK_EINVAL, "%s: '%s' is no name of a dataset: it must look like /group/name", s->path, path);
    return BK_OK;
}

/* Groups are made one by one, since those that HDF5 makes on the way carry time stamps. */
bk_status bk_store_make_groups(bk_store *s, const char *path, bk_error *err)
{
    BK_TRY(bk_store_check_path(s, path, err));
    hid_t gcpl = creation_list(H5P_GROUP_CREATE);
    bk_status status = BK_OK;
    for (const char *end = strchr(path + 1, '/'); end && status == BK_OK; end = strchr(end + 1, '/')) {
        char group[256];
        snprintf(group, sizeof group, "%.*s", (int)(end - path), path);
        htri_t there = H5Lexists(s->file, group, H5P_DEFAULT);
        if (there > 0) continue;
        hid_t g = there < 0 ? -1 : H5Gcreate2(s->file, group, H5P_DEFAULT, gcpl, H5P_DEFAULT);
        if (g < 0) status = bk_hdf5_fail(s, err, "cannot make the group %s", group);
        else H5Gclose(g);
    }
    H5Pclose(gcpl);
    return status;
}

bk_status bk_store_check_free(bk_store *s, const char *path, bk_error *err)
{
    htri_t there = H5Lexists(s->file, path, H5P_DEFAULT);
    if (there < 0) return bk_hdf5_fail(s, err, "cannot create %s", path);
    return there ? bk_fail(err, BK_EINVAL, "%s: has %s already", s->path, path) : BK_OK;
}

static bk_store *new_store(const char *path)
{
    bk_store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->driver = s->file = s->f16 = -1;
    s->in.fd = s->out.fd = s->ch.read_fd = s->ch.write_fd = -1;
    s->path = strdup(path);
    if (s->path) return s;
    free(s);
    return NULL;
}

/* Everything that HDF5 holds of the file. */
static bk_status close_hdf5(bk_store *s, bk_error *err)
{
    bk_status status = BK_OK;
    bk_store_drop_dsets(s);
    if (s->f16 >= 0) H5Tclose(s->f16);
    if (s->file >= 0 && H5Fclose(s->file) < 0) status = bk_hdf5_fail(s, err, "cannot close");
    if (s->driver >= 0) H5FDunregister(s->driver);
    s->driver = s->file = s->f16 = -1;
    if (status == BK_OK && s->ch.error) status = bk_hdf5_fail(s, err, "cannot write");
    return status;
}

static void free_store(bk_store *s)
{
    if (s->writing && s->ch.read_fd >= 0) close(s->ch.read_fd);
    if (!s->writing) bk_file_close(&s->in);
    bk_store_drop_objects(s);
    bk_store_drop_meta(s);
    free(s->path);
    free(s);
}

void bk_store_close(bk_store *s)
{
    if (!s) return;
    bk_hdf5_lock();
    (void)!close_hdf5(s, NULL); /* nothing that could be lost: either read only or given up */
    bk_hdf5_unlock();
    if (s->writing) bk_writer_abort(&s->out);
    free_store(s);
}

/* The file access list: our driver, and the format of HDF5 1.10, in which every piece of metadata but the global heap has a checksum. */
static hid_t access_list(bk_store *s)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    s->driver = bk_channel_driver(fapl, &s->ch);
    if (s->driver < 0) return -1;
    H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
    if (s->writing) H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110);
    return fapl;
}

static bk_status create_hdf5(bk_store *s, const bk_store_meta *meta, bk_error *err)
{
    hid_t fapl = access_list(s), fcpl = creation_list(H5P_FILE_CREATE);
    s->file = H5Fcreate(s->path, H5F_ACC_TRUNC, fcpl, fapl);
    bk_status status = s->file < 0 ? bk_hdf5_fail(s, err, "cannot create") : BK_OK;
    H5Pclose(fcpl);
    H5Pclose(fapl);
    BK_TRY(status);
    if ((s->f16 = make_f16()) < 0) return bk_hdf5_fail(s, err, "cannot make the type f16");
    return bk_store_write_meta(s, meta, err);
}

bk_status bk_store_create(bk_store **out, const char *path, const bk_store_meta *meta, int gzip, bk_error *err)
{
    *out = NULL;
    bk_store *s = new_store(path);
    if (!s) return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
    s->writing = true;
    s->gzip = gzip;
    bk_status status = bk_writer_open(&s->out, path, err);
    if (status == BK_OK) {
        s->ch.write_fd = s->out.fd;
        s->ch.read_fd = open(s->out.partial, O_RDONLY | O_CLOEXEC);
        if (s->ch.read_fd < 0) status = bk_fail_errno(err, "%s: cannot open", s->out.partial);
    }
    if (status == BK_OK) {
        bk_hdf5_lock();
        status = create_hdf5(s, meta, err);
        bk_hdf5_unlock();
    }
    if (status == BK_OK) *out = s;
    else bk_store_close(s);
    return status;
}

static bk_status open_hdf5(bk_store *s, const char *schema, bk_error *err)
{
    static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char head[8] = {0};
    if (s->in.size >= sizeof head) BK_TRY(bk_file_read(&s->in, 0, head, sizeof head, err));
    if (memcmp(head, magic, sizeof magic) != 0) return bk_fail(err, BK_EFORMAT, "%s: no HDF5 file", s->path);
    hid_t fapl = access_list(s);
    s->file = H5Fopen(s->path, H5F_ACC_RDONLY, fapl);
    bk_status status = s->file < 0 ? bk_hdf5_fail(s, err, "cut off, damaged or still being written") : BK_OK;
    H5Pclose(fapl);
    BK_TRY(status);
    if ((s->f16 = make_f16()) < 0) return bk_hdf5_fail(s, err, "cannot make the type f16");
    BK_TRY(bk_store_read_meta(s, schema, err));
    BK_TRY(bk_store_survey(s, err));
    return bk_store_check_texts(s, err);
}

/* HDF5 locks a file that it writes; where there are no locks, nothing is known. */
static bk_status check_no_writer(const bk_store *s, bk_error *err)
{
    if (flock(s->in.fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: still being written: another program has it open for writing", s->path);
}

bk_status bk_store_open(bk_store **out, const char *path, const char *schema, bk_error *err)
{
    *out = NULL;
    bk_store *s = new_store(path);
    if (!s) return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
    bk_status status = bk_file_open(&s->in, path, err);
    if (status == BK_OK) status = check_no_writer(s, err);
    if (status == BK_OK) {
        s->ch.read_fd = s->in.fd;
        s->ch.size = s->in.size;
        bk_hdf5_lock();
        status = open_hdf5(s, schema, err);
        bk_hdf5_unlock();
    }
    if (status == BK_OK) *out = s;
    else bk_store_close(s);
    return status;
}

static bk_status finish_hdf5(bk_store *s, bk_error *err)
{
    if (s->ch.error) return bk_hdf5_fail(s, err, "cannot write");
    BK_TRY(bk_store_finish_dsets(s, err));
    BK_TRY(bk_store_complete(s, err));
    return close_hdf5(s, err);
}

bk_status bk_store_commit(bk_store *s, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = finish_hdf5(s, err);
    bk_hdf5_unlock();
    if (status != BK_OK) {
        bk_store_close(s);
        return status;
    }
    status = bk_writer_commit(&s->out, err);
    free_store(s);
    return status;
}

const bk_store_meta *bk_store_meta_of(const bk_store *s)
{
    return &s->meta;
}
