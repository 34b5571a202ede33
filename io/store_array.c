/* Whole arrays. */
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
