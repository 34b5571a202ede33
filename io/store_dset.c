/* Datasets by the sample, whole arrays, and walking over values. */
#include "io/store_priv.h"

#include <H5DSpublic.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/half.h"

/* ---- handles ---- */

static void close_ids(bk_dset *d)
{
    if (d->id >= 0) H5Dclose(d->id);
    if (d->space >= 0) H5Sclose(d->space);
    if (d->row >= 0) H5Sclose(d->row);
    d->id = d->space = d->row = -1;
    free(d->half);
    free(d->wide);
    d->half = NULL;
    d->wide = NULL;
}

void bk_dset_close(bk_dset *d)
{
    if (!d) return;
    bk_hdf5_lock();
    close_ids(d); /* the rest is needed until the store ends */
    bk_hdf5_unlock();
}

void bk_store_drop_dsets(bk_store *s)
{
    for (bk_dset *d = s->dsets, *next; d; d = next) {
        next = d->next;
        close_ids(d);
        free(d->written);
        free(d->path);
        free(d);
    }
    s->dsets = NULL;
}

const bk_dset_info *bk_dset_info_of(const bk_dset *d)
{
    return &d->info;
}

static bk_dset *add_dset(bk_store *s, const char *path, bk_error *err)
{
    bk_dset *d = calloc(1, sizeof *d);
    if (d) d->path = strdup(path);
    if (!d || !d->path) {
        free(d);
        bk_fail(err, BK_ENOMEM, "%s: out of memory", s->path);
        return NULL;
    }
    d->store = s;
    d->id = d->space = d->row = -1;
    bk_dset **end = &s->dsets;
    while (*end) end = &(*end)->next;
    *end = d;
    return d;
}

/* Rank, extents and type are known: makes the spaces and the buffers of one sample. */
static bk_status make_room(bk_dset *d, bk_error *err)
{
    bk_store *s = d->store;
    hsize_t one[BK_STORE_ANY_RANK];
    for (int k = 0; k < d->info.rank; k++) one[k] = k ? (hsize_t)d->info.dim[k] : 1;
    d->type = bk_store_hid(s, d->info.type);
    d->space = H5Dget_space(d->id);
    d->row = H5Screate_simple(d->info.rank, one, NULL); /* of the file's rank: with another one HDF5 moves value by value */
    if (d->space < 0 || d->row < 0) return bk_hdf5_fail(s, err, "cannot make the memory layout of %s", d->path);
    if (d->info.type == BK_STORE_F16) d->half = malloc((size_t)d->info.sample_len * sizeof *d->half);
    if (d->overflow == BK_OVERFLOW_F32) d->wide = malloc((size_t)d->info.sample_len * sizeof *d->wide);
    if (s->writing) d->written = calloc((size_t)d->info.dim[0], sizeof *d->written);
    bool half = d->half || d->info.type != BK_STORE_F16, wide = d->wide || d->overflow != BK_OVERFLOW_F32;
    if (!half || !wide || (s->writing && !d->written))
        return bk_fail(err, BK_ENOMEM, "%s: no memory for one sample of %s", s->path, d->path);
    return BK_OK;
}

/* One chunk is one sample, moved in one piece: HDF5's chunk cache would only copy it once more. */
static hid_t by_sample_dapl(void)
{
    hid_t dapl = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(dapl, 1, 0, 1.0);
    return dapl;
}

static bk_status fill_info(const bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim, bk_dset_info *info,
                           bk_error *err)
{
    *info = (bk_dset_info){.type = type, .rank = rank, .sample_len = 1};
    int64_t bytes = bk_store_type_size(type);
    for (int k = 0; k < rank; k++) {
        info->dim[k] = dim[k];
        if (k > 0) info->sample_len *= dim[k];
        if (dim[k] < 0 || __builtin_mul_overflow(bytes, dim[k], &bytes) || bytes > ((int64_t)1 << 60))
            return bk_fail(err, BK_EINVAL, "%s: %s: extent %" PRId64 " of axis %d cannot be stored", s->path, path, dim[k], k);
    }
    return BK_OK;
}

/* ---- creating ---- */

static hid_t create_chunked(bk_dset *d, hid_t type)
{
    const bk_dset_info *info = &d->info;
    hsize_t dim[BK_STORE_RANK], chunk[BK_STORE_RANK];
    for (int k = 0; k < info->rank; k++) dim[k] = (hsize_t)info->dim[k], chunk[k] = k ? dim[k] : 1;
    hid_t space = H5Screate_simple(info->rank, dim, NULL), dcpl = bk_store_dcpl(), dapl = by_sample_dapl();
    H5Pset_chunk(dcpl, info->rank, chunk);
    if (d->store->gzip > 0) {
        H5Pset_shuffle(dcpl);
        H5Pset_deflate(dcpl, (unsigned)d->store->gzip);
    }
    H5Pset_fletcher32(dcpl); /* last: over the bytes that lie in the file */
    hid_t id = H5Dcreate_anon(d->store->file, type, space, dcpl, dapl);
    H5Pclose(dapl);
    H5Pclose(dcpl);
    H5Sclose(space);
    return id;
}

static bk_status create_dset(bk_dset **out, bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim,
                             bk_overflow overflow, bk_error *err)
{
    if (!s->writing) return bk_fail(err, BK_EINVAL, "%s: open for reading", s->path);
    if (rank < 1 || rank > BK_STORE_RANK || bk_store_type_size(type) == 0)
        return bk_fail(err, BK_EINVAL, "%s: %s: rank %d, type %s cannot be stored by the sample", s->path, path, rank,
                       bk_store_type_name(type));
    bk_dset_info info;
    BK_TRY(fill_info(s, path, type, rank, dim, &info, err));
    if (info.dim[0] < 1 || info.sample_len < 1) return bk_fail(err, BK_EINVAL, "%s: %s: an extent is 0", s->path, path);
    if (info.sample_len * bk_store_type_size(type) > BK_STORE_CHUNK_MAX)
        return bk_fail(err, BK_EINVAL, "%s: %s: one sample has more than 1 GiB", s->path, path);
    BK_TRY(bk_store_make_groups(s, path, err));
    BK_TRY(bk_store_check_free(s, path, err));
    bk_dset *d = add_dset(s, path, err);
    if (!d) return BK_ENOMEM;
    d->info = info;
    d->overflow = type == BK_STORE_F16 ? overflow : BK_OVERFLOW_ERROR;
    d->id = create_chunked(d, bk_store_hid(s, type));
    if (d->id < 0 || H5Olink(d->id, s->file, path, H5P_DEFAULT, H5P_DEFAULT) < 0) return bk_hdf5_fail(s, err, "cannot create %s", path);
    BK_TRY(make_room(d, err));
    *out = d;
    return BK_OK;
}

bk_status bk_dset_create(bk_dset **out, bk_store *s, const char *path, bk_store_type type, int rank, const int64_t *dim,
                         bk_overflow overflow, bk_error *err)
{
    *out = NULL;
    bk_hdf5_lock();
    bk_status status = create_dset(out, s, path, type, rank, dim, overflow, err);
    bk_hdf5_unlock();
    return status;
}

static bk_status open_dset(bk_dset **out, bk_store *s, const char *path, bk_error *err)
{
    const bk_store_object *o;
    BK_TRY(bk_store_find_data(s, path, &o, err));
    if (o->type == BK_STORE_OTHER || o->rank < 1 || o->elements < 1)
        return bk_fail(err, BK_EFORMAT, "%s: %s (%s, rank %d) has no samples that brick can read", s->path, path, o->type_text, o->rank);
    bk_dset *d = add_dset(s, path, err);
    if (!d) return BK_ENOMEM;
    BK_TRY(fill_info(s, path, o->type, o->rank, o->dim, &d->info, err));
    d->overflow = BK_OVERFLOW_ERROR;
    hid_t dapl = by_sample_dapl();
    d->id = H5Dopen2(s->file, path, dapl);
    H5Pclose(dapl);
    if (d->id < 0) return bk_hdf5_fail(s, err, "cannot open %s", path);
    BK_TRY(make_room(d, err));
    if (H5Aexists(d->id, "saturated") > 0) {
        hid_t a = H5Aopen(d->id, "saturated", H5P_DEFAULT);
        if (a < 0 || H5Aget_storage_size(a) > sizeof d->info.saturated || H5Aread(a, H5T_NATIVE_INT64, &d->info.saturated) < 0)
            d->info.saturated = 0;
        if (a >= 0) H5Aclose(a);
    }
    *out = d;
    return BK_OK;
}

bk_status bk_dset_open(bk_dset **out, bk_store *s, const char *path, bk_error *err)
{
    *out = NULL;
    bk_hdf5_lock();
    bk_status status = open_dset(out, s, path, err);
    bk_hdf5_unlock();
    return status;
}

/* ---- samples ---- */

static bk_status move_sample(bk_dset *d, int64_t i, void *buf, bool write, bk_error *err)
{
    bk_store *s = d->store;
    hsize_t start[BK_STORE_ANY_RANK] = {0}, count[BK_STORE_ANY_RANK];
    start[0] = (hsize_t)i;
    for (int k = 0; k < d->info.rank; k++) count[k] = k ? (hsize_t)d->info.dim[k] : 1;
    herr_t rc = H5Sselect_hyperslab(d->space, H5S_SELECT_SET, start, NULL, count, NULL);
    if (rc >= 0 && write) rc = H5Dwrite(d->id, d->type, d->row, d->space, H5P_DEFAULT, buf);
    else if (rc >= 0) rc = H5Dread(d->id, d->type, d->row, d->space, H5P_DEFAULT, buf);
    if (rc < 0 || (write && s->ch.error))
        return bk_hdf5_fail(s, err, "cannot %s sample %" PRId64 " of %s", write ? "write" : "read", i, d->path);
    if (write) d->written[i] = true;
    return BK_OK;
}

static bk_status check_samples(const bk_dset *d, int64_t first, int64_t n, bool write, bk_error *err)
{
    if (d->id < 0 || d->store->writing != write)
        return bk_fail(err, BK_EINVAL, "%s: %s is not open for %s", d->store->path, d->path, write ? "writing" : "reading");
    if (first < 0 || n < 0 || first > d->info.dim[0] - n)
        return bk_fail(err, BK_EINVAL, "%s: %s has %" PRId64 " samples, not %" PRId64 " from %" PRId64, d->store->path, d->path,
                       d->info.dim[0], n, first);
    return BK_OK;
}

/* "sample 3, token 17, channel 5" is where a user looks. */
static bk_status fail_at(const bk_dset *d, int64_t sample, int64_t at, float value, const char *what, bk_error *err)
{
    char where[128];
    const bk_dset_info *info = &d->info;
    int64_t last = info->dim[info->rank - 1];
    if (info->rank < 3) snprintf(where, sizeof where, "sample %" PRId64 ", position %" PRId64, sample, at);
    else snprintf(where, sizeof where, "sample %" PRId64 ", token %" PRId64 ", channel %" PRId64, sample, at / last, at % last);
    const char *kind = isnan(value) ? "NaN" : isinf(value) ? "Inf" : "a value";
    return bk_fail(err, BK_ENUMERIC, "%s: %s: %s at %s%s", d->store->path, d->path, kind, where, what);
}

/* What stands in the f16 dataset so far moves into a new f32 one, which takes its name. */
static bk_status become_f32(bk_dset *d, bk_error *err)
{
    bk_store *s = d->store;
    bk_dset old = *d;
    d->info.type = BK_STORE_F32;
    d->type = bk_store_hid(s, BK_STORE_F32);
    d->id = create_chunked(d, d->type);
    bk_status status = d->id < 0 ? bk_hdf5_fail(s, err, "cannot create %s again as f32", d->path) : BK_OK;
    for (int64_t i = 0; i < d->info.dim[0] && status == BK_OK; i++) {
        if (!d->written[i]) continue;
        status = move_sample(&old, i, d->half, false, err);
        if (status != BK_OK) break;
        bk_f32_from_f16(d->wide, d->half, d->info.sample_len);
        status = move_sample(d, i, d->wide, true, err);
    }
    H5Dclose(old.id);
    BK_TRY(status);
    if (H5Ldelete(s->file, d->path, H5P_DEFAULT) < 0 || H5Olink(d->id, s->file, d->path, H5P_DEFAULT, H5P_DEFAULT) < 0)
        return bk_hdf5_fail(s, err, "cannot replace %s by an f32 dataset", d->path);
    return BK_OK;
}

static bk_status write_f32(bk_dset *d, int64_t i, const float *src, bk_error *err)
{
    for (int64_t k = 0; k < d->info.sample_len; k++)
        if (!isfinite(src[k])) return fail_at(d, i, k, src[k], "", err);
    return move_sample(d, i, (void *)src, true, err);
}

static bk_status write_f16(bk_dset *d, int64_t i, const float *src, bk_error *err)
{
    bk_half_report r = bk_f16_from_f32(d->half, src, d->info.sample_len);
    if (r.nonfinite) return fail_at(d, i, r.first_nonfinite, src[r.first_nonfinite], "", err);
    if (r.saturated && d->overflow == BK_OVERFLOW_ERROR)
        return fail_at(d, i, r.first_saturated, src[r.first_saturated],
                       " is beyond 65504, the largest f16: store f32 or allow saturation", err);
    if (r.saturated && d->overflow == BK_OVERFLOW_F32) {
        BK_TRY(become_f32(d, err));
        return move_sample(d, i, (void *)src, true, err);
    }
    d->info.saturated += r.saturated;
    return move_sample(d, i, d->half, true, err);
}

static bk_status write_samples(bk_dset *d, int64_t first, int64_t n, const float *src, bk_error *err)
{
    BK_TRY(check_samples(d, first, n, true, err));
    if (d->info.type != BK_STORE_F16 && d->info.type != BK_STORE_F32)
        return bk_fail(err, BK_EINVAL, "%s: %s holds %s, not floats", d->store->path, d->path, bk_store_type_name(d->info.type));
    for (int64_t i = 0; i < n; i++, src += d->info.sample_len)
        BK_TRY(d->info.type == BK_STORE_F16 ? write_f16(d, first + i, src, err) : write_f32(d, first + i, src, err));
    return BK_OK;
}

static bk_status read_samples(bk_dset *d, int64_t first, int64_t n, float *dst, bk_error *err)
{
    BK_TRY(check_samples(d, first, n, false, err));
    if (d->info.type != BK_STORE_F16 && d->info.type != BK_STORE_F32)
        return bk_fail(err, BK_EFORMAT, "%s: %s holds %s, not floats", d->store->path, d->path, bk_store_type_name(d->info.type));
    for (int64_t i = 0; i < n; i++, dst += d->info.sample_len) {
        BK_TRY(move_sample(d, first + i, d->half ? (void *)d->half : dst, false, err));
        if (d->half) bk_f32_from_f16(dst, d->half, d->info.sample_len);
    }
    return BK_OK;
}

static bk_status move_raw(bk_dset *d, int64_t first, int64_t n, char *buf, bool write, bk_error *err)
{
    BK_TRY(check_samples(d, first, n, write, err));
    size_t step = (size_t)(d->info.sample_len * bk_store_type_size(d->info.type));
    for (int64_t i = 0; i < n; i++, buf += step) BK_TRY(move_sample(d, first + i, buf, write, err));
    return BK_OK;
}

bk_status bk_dset_write(bk_dset *d, int64_t first, int64_t n, const float *src, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = write_samples(d, first, n, src, err);
    bk_hdf5_unlock();
    return status;
}

bk_status bk_dset_read(bk_dset *d, int64_t first, int64_t n, float *dst, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = read_samples(d, first, n, dst, err);
    bk_hdf5_unlock();
    return status;
}

bk_status bk_dset_write_raw(bk_dset *d, int64_t first, int64_t n, const void *src, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = move_raw(d, first, n, (char *)src, true, err);
    bk_hdf5_unlock();
    return status;
}

bk_status bk_dset_read_raw(bk_dset *d, int64_t first, int64_t n, void *dst, bk_error *err)
{
    bk_hdf5_lock();
    bk_status status = move_raw(d, first, n, dst, false, err);
    bk_hdf5_unlock();
    return status;
}

/* ---- finishing ---- */

/* The scale `name` of n entries: /token, or /token_N where /token has another length. Made when first needed; negative on failure. */
static hid_t scale_of(bk_store *s, const char *name, int64_t n)
{
    char path[64];
    snprintf(path, sizeof path, "/%s", name);
    for (int round = 0; round < 2; round++, snprintf(path, sizeof path, "/%s_%" PRId64, name, n)) {
        if (H5Lexists(s->file, path, H5P_DEFAULT) <= 0) break;
        hid_t there = H5Dopen2(s->file, path, H5P_DEFAULT), space = there < 0 ? -1 : H5Dget_space(there);
        int64_t len = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
        if (space >= 0) H5Sclose(space);
        if (len == n) return there;
        if (there >= 0) H5Dclose(there);
    }
    int32_t *index = malloc((size_t)n * sizeof *index);
    if (!index) return -1;
    for (int64_t i = 0; i < n; i++) index[i] = (int32_t)i;
    hsize_t dim = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &dim, NULL), dcpl = bk_store_dcpl();
    bk_store_guard(dcpl, 1, &dim, n * (int64_t)sizeof *index);
    hid_t d = H5Dcreate2(s->file, path, H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    if (d >= 0 && (H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, index) < 0 || H5DSset_scale(d, name) < 0)) {
        H5Dclose(d);
        d = -1;
    }
    H5Pclose(dcpl);
    H5Sclose(space);
    free(index);
    return d;
}

static bk_status attach_scales(bk_dset *d, hid_t id, bk_error *err)
{
    static const char *const three[] = {"sample", "token", "channel"}, *const four[] = {"sample", "token", "head", "channel"};
    const char *const *name = d->info.rank == 4 ? four : three;
    for (int k = 0; k < d->info.rank; k++) {
        hid_t scale = scale_of(d->store, name[k], d->info.dim[k]);
        bool ok = scale >= 0 && H5DSattach_scale(id, scale, (unsigned)k) >= 0 && H5DSset_label(id, (unsigned)k, name[k]) >= 0;
        if (scale >= 0) H5Dclose(scale);
        if (!ok) return bk_hdf5_fail(d->store, err, "cannot give %s the scale %s", d->path, name[k]);
    }
    return BK_OK;
}

static bk_status finish_dset(bk_dset *d, bk_error *err)
{
    bk_store *s = d->store;
    for (int64_t i = 0; i < d->info.dim[0]; i++)
        if (!d->written[i]) return bk_fail(err, BK_EINVAL, "%s: sample %" PRId64 " of %s was never written", s->path, i, d->path);
    close_ids(d);
    hid_t id = H5Dopen2(s->file, d->path, H5P_DEFAULT);
    if (id < 0) return bk_hdf5_fail(s, err, "cannot finish %s", d->path);
    bk_status status = attach_scales(d, id, err);
    if (status == BK_OK && d->info.saturated) {
        hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(id, "saturated", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
        if (a < 0 || H5Awrite(a, H5T_NATIVE_INT64, &d->info.saturated) < 0) status = bk_hdf5_fail(s, err, "cannot finish %s", d->path);
        if (a >= 0) H5Aclose(a);
        H5Sclose(space);
    }
    H5Dclose(id);
    return status;
}

bk_status bk_store_finish_dsets(bk_store *s, bk_error *err)
{
    for (bk_dset *d = s->dsets; d; d = d->next) BK_TRY(finish_dset(d, err));
    return BK_OK;
}
