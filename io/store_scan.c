/* Walking over the values of any numeric dataset. */
#include "io/store_priv.h"

#include <stdlib.h>

#include "io/half.h"

enum { SCAN = 1 << 16 }; /* values at a time */
static const double cache_most = 1 << 26, slots_most = 1 << 17;

struct bk_scan {
    bk_store *s;
    const bk_store_object *o;
    hid_t id, space;
    /* Blocks run over whole trailing axes and part of one axis `split`; those before it are counted through one by one. */
    int split;
    int64_t inner, at; /* values behind one step of `split`; values that were given out */
    hsize_t start[BK_STORE_ANY_RANK];
    double *value;
    float *wide;
    uint16_t *half;
};

/* Reads a block into value; its elements are contiguous in row-major order. */
static bk_status read_block(bk_scan *c, const hsize_t *count, int64_t n, bk_error *err)
{
    bool f16 = c->o->type == BK_STORE_F16;
    /* Memory of the file's rank: with another one HDF5 moves value by value. */
    hid_t row = c->o->rank ? H5Screate_simple(c->o->rank, count, NULL) : H5Screate(H5S_SCALAR);
    herr_t rc = c->o->rank ? H5Sselect_hyperslab(c->space, H5S_SELECT_SET, c->start, NULL, count, NULL) : 0;
    if (rc >= 0)
        rc = H5Dread(c->id, f16 ? c->s->f16 : H5T_NATIVE_DOUBLE, row, c->space, H5P_DEFAULT,
                     f16 ? (void *)c->half : c->value);
    bk_status status = BK_OK;
    if (rc < 0) status = bk_hdf5_fail(c->s, err, "cannot read %s", c->o->path); /* before H5Sclose forgets why */
    H5Sclose(row);
    BK_TRY(status);
    if (f16) {
        bk_f32_from_f16(c->wide, c->half, n);
        for (int64_t i = 0; i < n; i++) c->value[i] = c->wide[i];
    }
    return BK_OK;
}

bk_status bk_scan_next(bk_scan *c, const double **v, int64_t *n, bk_error *err)
{
    const bk_store_object *o = c->o;
    hsize_t count[BK_STORE_ANY_RANK] = {0};
    *v = c->value;
    *n = c->at < o->elements;
    if (*n == 0) return BK_OK;
    for (int k = 0; k < o->rank; k++) count[k] = k < c->split ? 1 : (hsize_t)o->dim[k];
    if (o->rank > 0) {
        int64_t left = o->dim[c->split] - (int64_t)c->start[c->split], step = SCAN / c->inner;
        count[c->split] = (hsize_t)(left < step ? left : step);
        *n = (int64_t)count[c->split] * c->inner;
    }
    bk_hdf5_lock();
    bk_status status = read_block(c, count, *n, err);
    bk_hdf5_unlock();
    BK_TRY(status);
    c->at += *n;
    if (o->rank == 0) return BK_OK;
    c->start[c->split] += count[c->split];
    for (int k = c->split; k > 0 && c->start[k] == (hsize_t)o->dim[k]; k--) c->start[k] = 0, c->start[k - 1]++;
    return BK_OK;
}

/* The cache holds the chunks that lie side by side under a row, so that each is read and unpacked once; the memory has
 * a bound, but a packed chunk must fit. */
static void size_cache(const bk_store_object *o, hid_t dapl)
{
    double size = o->type == BK_STORE_OTHER ? 8 : (double)bk_store_type_size(o->type);
    double slab = size, chunk = size, slots = 1;
    bool row = false;
    for (int k = 0; k < o->rank && o->chunk[0]; k++) {
        double across = row ? (double)((o->dim[k] - 1) / o->chunk[k] + 1) : 1;
        chunk *= (double)o->chunk[k];
        slab *= (double)o->chunk[k] * across;
        slots *= across;
        row = row || o->chunk[k] > 1;
    }
    if (slab > cache_most) slab = cache_most;
    if (slab < chunk && (o->gzip || o->shuffle || o->checksum)) slab = chunk;
    slots = slots * 10 > slots_most ? slots_most : slots * 10;
    H5Pset_chunk_cache(dapl, 521 + (size_t)slots, (size_t)slab, 1.0);
}

static bk_status open_hdf5(bk_scan *c, bk_error *err)
{
    hid_t dapl = H5Pcreate(H5P_DATASET_ACCESS);
    size_cache(c->o, dapl);
    c->id = H5Dopen2(c->s->file, c->o->path, dapl);
    H5Pclose(dapl);
    if (c->id >= 0) c->space = H5Dget_space(c->id);
    return c->space < 0 ? bk_hdf5_fail(c->s, err, "cannot open %s", c->o->path) : BK_OK;
}

bk_status bk_scan_open(bk_scan **out, bk_store *s, const char *path, bk_error *err)
{
    *out = NULL;
    const bk_store_object *o;
    BK_TRY(bk_store_find_data(s, path, &o, err));
    if (!o->numeric) return bk_fail(err, BK_EINVAL, "%s: %s holds %s, not numbers", s->path, path, o->type_text);
    bk_scan *c = malloc(sizeof *c);
    double *value = malloc(SCAN * (sizeof *c->value + sizeof *c->wide + sizeof *c->half));
    if (!c || !value) {
        free(c);
        free(value);
        return bk_fail(err, BK_ENOMEM, "%s: out of memory", s->path);
    }
    float *wide = (float *)(value + SCAN);
    *c = (bk_scan){.s = s,
                   .o = o,
                   .id = -1,
                   .space = -1,
                   .split = o->rank - 1,
                   .inner = 1,
                   .value = value,
                   .wide = wide,
                   .half = (uint16_t *)(wide + SCAN)};
    while (o->elements > 0 && c->split > 0 && c->inner * o->dim[c->split] <= SCAN) c->inner *= o->dim[c->split--];
    bk_hdf5_lock();
    bk_status status = open_hdf5(c, err);
    bk_hdf5_unlock();
    if (status == BK_OK) *out = c;
    else bk_scan_close(c);
    return status;
}

void bk_scan_close(bk_scan *c)
{
    if (!c) return;
    bk_hdf5_lock();
    if (c->space >= 0) H5Sclose(c->space);
    if (c->id >= 0) H5Dclose(c->id);
    bk_hdf5_unlock();
    free(c->value);
    free(c);
}

bk_status bk_store_scan(bk_store *s, const char *path, bk_store_scan_fn *fn, void *user, bk_error *err)
{
    bk_scan *c;
    BK_TRY(bk_scan_open(&c, s, path, err));
    const double *v;
    int64_t n, first = 0;
    bk_status status;
    while ((status = bk_scan_next(c, &v, &n, err)) == BK_OK && n > 0) {
        status = fn(user, v, first, n, err);
        if (status != BK_OK) break;
        first += n;
    }
    bk_scan_close(c);
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
