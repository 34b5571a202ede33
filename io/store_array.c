/* Whole arrays, and walking over the values of any numeric dataset. */
#include "io/store_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/half.h"

static bk_status put(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, const void *data, bk_error *err)
{
    if (!s->writing) return bk_fail(err, BK_EINVAL, "%s: open for reading", s->path);
    if (rank < 0 || rank > BK_STORE_RANK || bk_store_type_size(type) == 0)
        return bk_fail(err, BK_EINVAL, "%s: %s: rank %d, type %s cannot be stored", s->path, path, rank, bk_store_type_name(type));
    hsize_t extent[BK_STORE_RANK] = {0};
    int64_t bytes = bk_store_type_size(type);
    for (int k = 0; k < rank; k++) {
        if (dim[k] < 0 || __builtin_mul_overflow(bytes, dim[k], &bytes))
            return bk_fail(err, BK_EINVAL, "%s: %s: extent %" PRId64 " of axis %d cannot be stored", s->path, path, dim[k], k);
        extent[k] = (hsize_t)dim[k];
    }
    BK_TRY(bk_store_make_groups(s, path, err));
    BK_TRY(bk_store_check_free(s, path, err));
    hid_t t = bk_store_hid(s, type), dcpl = bk_store_dcpl();
    hid_t space = rank ? H5Screate_simple(rank, extent, NULL) : H5Screate(H5S_SCALAR);
    bk_store_guard(dcpl, rank, extent, bytes);
    hid_t id = H5Dcreate2(s->file, path, t, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    bk_status status = BK_OK;
    if (id < 0 || (bytes > 0 && H5Dwrite(id, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) || s->ch.error)
        status = bk_hdf5_fail(s, err, "cannot write %s", path);
    if (id >= 0) H5Dclose(id);
    H5Sclose(space);
    H5Pclose(dcpl);
    return status;
}

bk_status bk_store_put(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, const void *data, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = put(s, path, type, rank, dim, data, err);
    bk_hdf5_unlock();
    return status;
}

/* "f32 [3, 4]" */
static const char *shape_text(char *text, size_t cap, const char *type, int rank, const int64_t *dim)
{
    size_t at = (size_t)snprintf(text, cap, "%s [", type);
    for (int k = 0; k < rank && at < cap; k++) at += (size_t)snprintf(text + at, cap - at, "%s%" PRId64, k ? ", " : "", dim[k]);
    if (at < cap) snprintf(text + at, cap - at, "]");
    return text;
}

static bk_status get(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, void *data, bk_error *err)
{
    const bk_store_object *o;
    BK_TRY(bk_store_find_data(s, path, &o, err));
    bool widen = type == BK_STORE_F32 && o->type == BK_STORE_F16, same = o->rank == rank && (o->type == type || widen);
    for (int k = 0; k < rank && same; k++) same = o->dim[k] == dim[k];
    if (!same || type == BK_STORE_OTHER) {
        char is[256], should[256];
        return bk_fail(err, BK_EFORMAT, "%s: %s is %s, expected %s", s->path, path, shape_text(is, sizeof is, o->type_text, o->rank, o->dim),
                       shape_text(should, sizeof should, bk_store_type_name(type), rank, dim));
    }
    if (o->elements == 0) return BK_OK;
    uint16_t *half = widen ? malloc((size_t)o->elements * sizeof *half) : NULL;
    if (widen && !half) return bk_fail(err, BK_ENOMEM, "%s: no memory for %s", s->path, path);
    hid_t id = H5Dopen2(s->file, path, H5P_DEFAULT);
    bk_status status = BK_OK;
    if (id < 0 || H5Dread(id, bk_store_hid(s, o->type), H5S_ALL, H5S_ALL, H5P_DEFAULT, widen ? half : data) < 0)
        status = bk_hdf5_fail(s, err, "cannot read %s", path);
    else if (widen) bk_f32_from_f16(data, half, o->elements);
    if (id >= 0) H5Dclose(id);
    free(half);
    return status;
}

bk_status bk_store_get(bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, void *data, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = get(s, path, type, rank, dim, data, err);
    bk_hdf5_unlock();
    return status;
}

bk_status bk_store_info(bk_store *s, const char *path, bk_dset_info *info, bk_error *err)
{
    const bk_store_object *o;
    BK_TRY(bk_store_find_data(s, path, &o, err));
    *info = (bk_dset_info){.type = o->type, .rank = o->rank, .sample_len = 1};
    for (int k = 0; k < o->rank; k++) {
        info->dim[k] = o->dim[k];
        if (k > 0) info->sample_len *= o->dim[k];
    }
    return BK_OK;
}

/* ---- walking ---- */

enum { SCAN = 1 << 16 }; /* values at a time */

typedef struct {
    bk_store *s;
    const bk_store_object *o;
    hid_t id, space;
    double *value;
    float *wide;
    uint16_t *half;
} scan;

/* Reads a block into value; its elements are contiguous in row-major order. */
static bk_status read_block(scan *c, const hsize_t *start, const hsize_t *count, int64_t n, bk_error *err)
{
    bool f16 = c->o->type == BK_STORE_F16;
    /* Memory of the file's rank: with another one HDF5 moves value by value. */
    hid_t row = c->o->rank ? H5Screate_simple(c->o->rank, count, NULL) : H5Screate(H5S_SCALAR);
    herr_t rc = c->o->rank ? H5Sselect_hyperslab(c->space, H5S_SELECT_SET, start, NULL, count, NULL) : 0;
    if (rc >= 0) rc = H5Dread(c->id, f16 ? c->s->f16 : H5T_NATIVE_DOUBLE, row, c->space, H5P_DEFAULT, f16 ? (void *)c->half : c->value);
    bk_status status = rc < 0 ? bk_hdf5_fail(c->s, err, "cannot read %s", c->o->path) : BK_OK; /* before HDF5 forgets why */
    H5Sclose(row);
    BK_TRY(status);
    if (f16) {
        bk_f32_from_f16(c->wide, c->half, n);
        for (int64_t i = 0; i < n; i++) c->value[i] = c->wide[i];
    }
    return BK_OK;
}

/* Blocks run over whole trailing axes and part of one axis `split`; the axes before it are counted through one by one. */
static bk_status scan_blocks(scan *c, bk_store_scan_fn *fn, void *user, bk_error *err)
{
    const bk_store_object *o = c->o;
    hsize_t start[BK_STORE_ANY_RANK] = {0}, count[BK_STORE_ANY_RANK] = {0};
    int split = o->rank - 1;
    int64_t inner = 1;
    while (split > 0 && inner * o->dim[split] <= SCAN) inner *= o->dim[split--];
    for (int k = 0; k < o->rank; k++) count[k] = k < split ? 1 : (hsize_t)o->dim[k];
    int64_t step = SCAN / inner;
    for (int64_t at = 0; at < o->elements;) {
        int64_t n = 1;
        if (o->rank > 0) {
            int64_t left = o->dim[split] - (int64_t)start[split];
            count[split] = (hsize_t)(left < step ? left : step);
            n = (int64_t)count[split] * inner;
        }
        bk_hdf5_lock();
        bk_status status = read_block(c, start, count, n, err);
        bk_hdf5_unlock();
        BK_TRY(status);
        BK_TRY(fn(user, c->value, at, n, err));
        at += n;
        if (o->rank == 0) break;
        start[split] += count[split];
        for (int k = split; k > 0 && start[k] == (hsize_t)o->dim[k]; k--) start[k] = 0, start[k - 1]++;
    }
    return BK_OK;
}

static bk_status scan_open(scan *c, bk_error *err)
{
    hid_t dapl = H5Pcreate(H5P_DATASET_ACCESS);
    size_t cache = 1 << 20;
    int64_t chunk = c->o->type == BK_STORE_OTHER ? 8 : bk_store_type_size(c->o->type);
    for (int k = 0; k < c->o->rank; k++) chunk *= c->o->chunk[k];
    if (chunk > (int64_t)cache) cache = (size_t)chunk; /* a chunk is read once, whatever the blocks */
    H5Pset_chunk_cache(dapl, 521, cache, 1.0);
    c->id = H5Dopen2(c->s->file, c->o->path, dapl);
    H5Pclose(dapl);
    if (c->id >= 0) c->space = H5Dget_space(c->id);
    return c->space < 0 ? bk_hdf5_fail(c->s, err, "cannot open %s", c->o->path) : BK_OK;
}

bk_status bk_store_scan(bk_store *s, const char *path, bk_store_scan_fn *fn, void *user, bk_error *err)
{
    scan c = {.s = s, .id = -1, .space = -1};
    BK_TRY(bk_store_find_data(s, path, &c.o, err));
    if (!c.o->numeric) return bk_fail(err, BK_EINVAL, "%s: %s holds %s, not numbers", s->path, path, c.o->type_text);
    c.value = malloc(SCAN * (sizeof *c.value + sizeof *c.wide + sizeof *c.half));
    if (!c.value) return bk_fail(err, BK_ENOMEM, "%s: out of memory", s->path);
    c.wide = (float *)(c.value + SCAN);
    c.half = (uint16_t *)(c.wide + SCAN);
    bk_hdf5_lock();
    bk_status status = scan_open(&c, err);
    bk_hdf5_unlock();
    if (status == BK_OK) status = scan_blocks(&c, fn, user, err);
    bk_hdf5_lock();
    if (c.space >= 0) H5Sclose(c.space);
    if (c.id >= 0) H5Dclose(c.id);
    bk_hdf5_unlock();
    free(c.value);
    return status;
}

static bk_status only_read(void *user, const double *v, int64_t first, int64_t n, bk_error *err)
{
    (void)user, (void)v, (void)first, (void)n, (void)err;
    return BK_OK;
}

bk_status bk_store_verify(const char *path, const char *schema, bk_error *err)
{
    bk_store *s;
    BK_TRY(bk_store_open(&s, path, schema, err));
    bk_status status = BK_OK;
    for (int64_t i = 0; i < s->n_objects && status == BK_OK; i++)
        if (s->objects[i].numeric) status = bk_store_scan(s, s->objects[i].path, only_read, NULL, err);
    bk_store_close(s);
    return status;
}
