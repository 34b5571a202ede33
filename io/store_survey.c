/* What is in a file, found once at open. Whatever would make reading leave the file, run foreign code or ask for absurd
 * memory ends here. */
#include "io/store_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 32,
    MAX_OBJECTS = 100000,
    DEFLATE_MOST = 1040 /* deflate shrinks at most 1032 times: what promises more is not in the file */
};

void bk_store_drop_objects(bk_store *s)
{
    for (int64_t i = 0; i < s->n_objects; i++) free((char *)s->objects[i].path);
    free(s->objects);
    s->objects = NULL;
    s->n_objects = s->cap_objects = 0;
}

const bk_store_object *bk_store_objects(const bk_store *s, int64_t *n)
{
    *n = s->n_objects;
    return s->objects;
}

const bk_store_object *bk_store_find(const bk_store *s, const char *path)
{
    for (int64_t i = 0; i < s->n_objects; i++)
        if (strcmp(s->objects[i].path, path) == 0) return &s->objects[i];
    return NULL;
}

bool bk_store_has(const bk_store *s, const char *path)
{
    return bk_store_find(s, path) != NULL;
}

/* Bytes of all values; the survey has checked that this does not overflow. */
static int64_t value_bytes(const bk_store_object *o)
{
    return o->elements * (bk_store_type_size(o->type) ? bk_store_type_size(o->type) : 1);
}

/* Values that were never written are not in the file; reading them would make hours out of a few bytes. */
static bk_status check_stored(const bk_store *s, const bk_store_object *o, bk_error *err)
{
    if (o->stored_bytes >= value_bytes(o) / (o->gzip ? DEFLATE_MOST : 1)) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: %s should hold %" PRId64 " values, but only %" PRId64 " bytes of them are in the file: the others were never written",
                   s->path, o->path, o->elements, o->stored_bytes);
}

bk_status bk_store_find_data(const bk_store *s, const char *path, const bk_store_object **out, bk_error *err)
{
    if (s->writing) return bk_fail(err, BK_EINVAL, "%s: open for writing, so %s cannot be read yet", s->path, path);
    const bk_store_object *o = bk_store_find(s, path);
    if (!o) return bk_fail(err, BK_EFORMAT, "%s: has no %s", s->path, path);
    if (o->group) return bk_fail(err, BK_EFORMAT, "%s: %s is a group, not a dataset", s->path, path);
    *out = o;
    return check_stored(s, o, err);
}

/* ---- one dataset ---- */

static void name_type(bk_store *s, hid_t t, bk_store_object *o)
{
    for (int k = 0; k < BK_STORE_OTHER; k++) {
        if (H5Tequal(t, bk_store_hid(s, (bk_store_type)k)) <= 0) continue;
        o->type = (bk_store_type)k;
        o->numeric = true;
        snprintf(o->type_text, sizeof o->type_text, "%s", bk_store_type_name(o->type));
        return;
    }
    static const char *const classes[] = {
        [H5T_TIME] = "time",         [H5T_STRING] = "text", [H5T_BITFIELD] = "bits", [H5T_OPAQUE] = "opaque", [H5T_COMPOUND] = "compound",
        [H5T_REFERENCE] = "reference", [H5T_ENUM] = "enum", [H5T_VLEN] = "ragged",   [H5T_ARRAY] = "array",
    };
    H5T_class_t class = H5Tget_class(t);
    size_t size = H5Tget_size(t);
    o->type = BK_STORE_OTHER;
    if (class == H5T_INTEGER) {
        bool is_signed = H5Tget_sign(t) == H5T_SGN_2;
        snprintf(o->type_text, sizeof o->type_text, "%c%zu%s", is_signed ? 'i' : 'u', 8 * size, H5Tget_order(t) == H5T_ORDER_BE ? " big-endian" : "");
        o->numeric = (size == 1 || size == 2 || size == 4 || size == 8) && H5Tget_precision(t) == 8 * size;
    } else if (class == H5T_FLOAT) {
        snprintf(o->type_text, sizeof o->type_text, "f%zu%s", 8 * size, H5Tget_order(t) == H5T_ORDER_BE ? " big-endian" : "");
        o->numeric = H5Tequal(t, H5T_IEEE_F32BE) > 0 || H5Tequal(t, H5T_IEEE_F64BE) > 0;
    } else {
        bool known = class > H5T_NO_CLASS && class < H5T_NCLASSES && classes[class];
        snprintf(o->type_text, sizeof o->type_text, "%s", known ? classes[class] : "unknown");
    }
}

static bk_status read_extent(bk_store *s, hid_t d, size_t type_size, bk_store_object *o, bk_error *err)
{
    hsize_t dim[BK_STORE_ANY_RANK] = {0};
    hid_t space = H5Dget_space(d);
    H5S_class_t class = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    o->rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    if (o->rank > 0) o->rank = o->rank > BK_STORE_ANY_RANK ? -1 : H5Sget_simple_extent_dims(space, dim, NULL);
    bk_status status = o->rank < 0 || class == H5S_NO_CLASS ? bk_hdf5_fail(s, err, "%s: its shape cannot be read", o->path) : BK_OK;
    if (space >= 0) H5Sclose(space);
    BK_TRY(status);
    o->elements = class == H5S_NULL ? 0 : 1;
    int64_t bytes;
    for (int k = 0; k < o->rank; k++) {
        if (dim[k] > INT64_MAX || __builtin_mul_overflow(o->elements, (int64_t)dim[k], &o->elements))
            return bk_fail(err, BK_EFORMAT, "%s: %s has absurd dimensions (%" PRIu64 " along axis %d)", s->path, o->path, (uint64_t)dim[k], k);
        o->dim[k] = (int64_t)dim[k];
    }
    if (type_size > INT32_MAX || __builtin_mul_overflow(o->elements, (int64_t)type_size, &bytes) || bytes > ((int64_t)1 << 60))
        return bk_fail(err, BK_EFORMAT, "%s: %s has absurd dimensions (%" PRId64 " values)", s->path, o->path, o->elements);
    return BK_OK;
}

static bk_status read_filters(bk_store *s, hid_t dcpl, bk_store_object *o, bk_error *err)
{
    int n = H5Pget_nfilters(dcpl);
    if (n < 0) return bk_hdf5_fail(s, err, "%s: its filters cannot be read", o->path);
    for (int k = 0; k < n; k++) {
        unsigned flags = 0, config = 0, value[8] = {0};
        size_t n_value = sizeof value / sizeof *value;
        char name[64] = "";
        H5Z_filter_t filter = H5Pget_filter2(dcpl, (unsigned)k, &flags, &n_value, value, sizeof name, name, &config);
        if (filter == H5Z_FILTER_DEFLATE) o->gzip = n_value > 0 && value[0] > 0 && value[0] <= 9 ? (int)value[0] : 1;
        else if (filter == H5Z_FILTER_SHUFFLE) o->shuffle = true;
        else if (filter == H5Z_FILTER_FLETCHER32) o->checksum = true;
        else
            return bk_fail(err, BK_EFORMAT, "%s: %s uses the filter %d (%s); only gzip, shuffle and fletcher32 are read: rewrite it with h5repack",
                           s->path, o->path, (int)filter, name[0] ? name : "unknown");
    }
    return BK_OK;
}

static bk_status read_layout(bk_store *s, hid_t d, hid_t dcpl, size_t type_size, bk_store_object *o, bk_error *err)
{
    if (H5Pget_external_count(dcpl) != 0)
        return bk_fail(err, BK_EFORMAT, "%s: the values of %s lie in another file, which is not followed", s->path, o->path);
    H5D_layout_t layout = H5Pget_layout(dcpl);
    if (layout == H5D_VIRTUAL)
        return bk_fail(err, BK_EFORMAT, "%s: %s is a virtual dataset, whose other files are not followed", s->path, o->path);
    o->stored_bytes = (int64_t)H5Dget_storage_size(d);
    if (layout == H5D_CONTIGUOUS && o->stored_bytes > 0) {
        haddr_t at = H5Dget_offset(d);
        bool written = at != HADDR_UNDEF;
        if (written && (at > s->in.size || (uint64_t)o->stored_bytes > s->in.size - at))
            return bk_fail(err, BK_EFORMAT, "%s: %s reaches beyond the end of the file", s->path, o->path);
        if (!written) o->stored_bytes = 0;
    }
    if (layout != H5D_CHUNKED) return BK_OK;
    hsize_t chunk[BK_STORE_ANY_RANK] = {0};
    if (H5Pget_chunk(dcpl, BK_STORE_ANY_RANK, chunk) != o->rank) return bk_hdf5_fail(s, err, "%s: its chunks cannot be read", o->path);
    int64_t bytes = (int64_t)type_size;
    for (int k = 0; k < o->rank; k++) {
        if (chunk[k] == 0 || chunk[k] > (hsize_t)BK_STORE_CHUNK_MAX || bytes > BK_STORE_CHUNK_MAX / (int64_t)chunk[k])
            return bk_fail(err, BK_EFORMAT, "%s: %s has chunks above 1 GiB", s->path, o->path);
        bytes *= (int64_t)chunk[k];
        o->chunk[k] = (int64_t)chunk[k];
    }
    if (o->stored_bytes < 0 || (uint64_t)o->stored_bytes > s->in.size)
        return bk_fail(err, BK_EFORMAT, "%s: %s claims %" PRId64 " bytes, more than the file has", s->path, o->path, o->stored_bytes);
    return BK_OK;
}

/* Names of dimensions are there to help: what cannot be read has none. Not by H5DSget_label, which frees garbage when the heap is damaged. */
static void read_labels(hid_t d, bk_store_object *o)
{
    if (H5Aexists(d, "DIMENSION_LABELS") <= 0) return;
    hid_t a = H5Aopen(d, "DIMENSION_LABELS", H5P_DEFAULT);
    if (a < 0) return;
    hid_t t = H5Aget_type(a), space = H5Aget_space(a);
    char *label[BK_STORE_ANY_RANK] = {0};
    bool fits = t >= 0 && space >= 0 && bk_store_attr_is_small(a) && H5Tis_variable_str(t) > 0;
    if (fits && H5Sget_simple_extent_npoints(space) == o->rank && H5Aread(a, t, label) >= 0)
        for (int k = 0; k < o->rank; k++) {
            if (k < BK_STORE_RANK && label[k]) snprintf(o->label[k], sizeof o->label[k], "%s", label[k]);
            if (label[k]) H5free_memory(label[k]);
        }
    if (space >= 0) H5Sclose(space);
    if (t >= 0) H5Tclose(t);
    H5Aclose(a);
}

static bk_status survey_dataset(bk_store *s, hid_t d, bk_store_object *o, bk_error *err)
{
    hid_t t = H5Dget_type(d);
    if (t < 0) return bk_hdf5_fail(s, err, "%s: its type cannot be read", o->path);
    size_t type_size = H5Tget_size(t);
    name_type(s, t, o);
    H5Tclose(t);
    BK_TRY(read_extent(s, d, type_size, o, err));
    hid_t dcpl = H5Dget_create_plist(d);
    if (dcpl < 0) return bk_hdf5_fail(s, err, "%s: its layout cannot be read", o->path);
    bk_status status = read_filters(s, dcpl, o, err);
    if (status == BK_OK) status = read_layout(s, d, dcpl, type_size, o, err);
    H5Pclose(dcpl);
    BK_TRY(status);
    read_labels(d, o);
    return BK_OK;
}

/* ---- the tree ---- */

typedef struct {
    bk_store *s;
    const char *parent; /* path, "" for the root */
    int depth;
    bk_error *err;
    bk_status status;
} walk;

static bk_status add_object(walk *w, const char *name, bool group, bk_store_object **out)
{
    bk_store *s = w->s;
    if (s->n_objects == MAX_OBJECTS) return bk_fail(w->err, BK_EFORMAT, "%s: has more than %d objects", s->path, MAX_OBJECTS);
    if (s->n_objects == s->cap_objects) {
        int64_t cap = s->cap_objects ? 2 * s->cap_objects : 64;
        bk_store_object *grown = realloc(s->objects, (size_t)cap * sizeof *grown);
        if (!grown) return bk_fail(w->err, BK_ENOMEM, "%s: out of memory", s->path);
        s->objects = grown;
        s->cap_objects = cap;
    }
    char *path = NULL;
    if (asprintf(&path, "%s/%s", w->parent, name) < 0) return bk_fail(w->err, BK_ENOMEM, "%s: out of memory", s->path);
    *out = &s->objects[s->n_objects++];
    **out = (bk_store_object){.path = path, .group = group, .type = BK_STORE_OTHER};
    return BK_OK;
}

static bk_status walk_group(bk_store *s, hid_t group, const char *path, int depth, bk_error *err);

static bk_status visit(walk *w, hid_t obj, const char *name)
{
    H5I_type_t kind = H5Iget_type(obj);
    if (kind != H5I_GROUP && kind != H5I_DATASET) return BK_OK; /* a named type: nothing to see */
    bk_store_object *o;
    BK_TRY(add_object(w, name, kind == H5I_GROUP, &o));
    if (kind == H5I_DATASET) return survey_dataset(w->s, obj, o, w->err);
    return walk_group(w->s, obj, o->path, w->depth + 1, w->err);
}

static herr_t visit_link(hid_t group, const char *name, const H5L_info_t *info, void *user)
{
    walk *w = user;
    bk_store *s = w->s;
    if (info->type == H5L_TYPE_SOFT) return 0; /* another name of something in this file */
    if (info->type != H5L_TYPE_HARD) {
        w->status = bk_fail(w->err, BK_EFORMAT, "%s: %s/%s is a link to another file, which is not followed", s->path, w->parent, name);
        return -1;
    }
    hid_t obj = H5Oopen(group, name, H5P_DEFAULT);
    if (obj < 0) {
        w->status = bk_hdf5_fail(s, w->err, "%s/%s cannot be opened", w->parent, name);
        return -1;
    }
    w->status = visit(w, obj, name);
    H5Oclose(obj);
    return w->status == BK_OK ? 0 : -1;
}

/* By hand and not by H5Lvisit, which puts no bound on depth. */
static bk_status walk_group(bk_store *s, hid_t group, const char *path, int depth, bk_error *err)
{
    if (depth > MAX_DEPTH) return bk_fail(err, BK_EFORMAT, "%s: groups lie more than %d deep, or in a circle", s->path, MAX_DEPTH);
    walk w = {s, strcmp(path, "/") == 0 ? "" : path, depth, err, BK_OK};
    hsize_t at = 0;
    herr_t rc = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, visit_link, &w);
    if (rc < 0 && w.status == BK_OK) return bk_hdf5_fail(s, err, "the group %s cannot be read", path);
    return w.status;
}

bk_status bk_store_survey(bk_store *s, bk_error *err)
{
    bk_store_object *root;
    walk top = {s, "", 0, err, BK_OK};
    BK_TRY(add_object(&top, "", true, &root));
    hid_t group = H5Gopen2(s->file, "/", H5P_DEFAULT);
    if (group < 0) return bk_hdf5_fail(s, err, "the root group cannot be opened");
    bk_status status = walk_group(s, group, "/", 0, err);
    H5Gclose(group);
    BK_TRY(status);
    /* A finished file of ours has every value; one that has not was cut and patched, or promises sizes that it does not have. */
    for (int64_t i = 0; s->ours && i < s->n_objects; i++)
        if (!s->objects[i].group) BK_TRY(check_stored(s, &s->objects[i], err));
    return BK_OK;
}
