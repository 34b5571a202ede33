/* Attributes: the root's, which make a file one of brick's, and those that callers set and get. */
#include "io/store_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text as HDF5's variable-length UTF-8, which h5py gives back as str. */
static hid_t text_type(void)
{
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t >= 0) {
        H5Tset_size(t, H5T_VARIABLE);
        H5Tset_cset(t, H5T_CSET_UTF8);
    }
    return t;
}

static bk_status write_scalar(bk_store *s, const char *path, const char *name, hid_t file_type, hid_t mem_type, const void *value,
                              bk_error *err)
{
    if (!s->writing) return bk_fail(err, BK_EINVAL, "%s: open for reading", s->path);
    htri_t there = H5Aexists_by_name(s->file, path, name, H5P_DEFAULT);
    if (there < 0) return bk_hdf5_fail(s, err, "no object %s for the attribute %s", path, name);
    if (there > 0) return bk_fail(err, BK_EINVAL, "%s: %s has an attribute %s already", s->path, path, name);
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate_by_name(s->file, path, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bk_status status = BK_OK;
    if (a < 0 || H5Awrite(a, mem_type, value) < 0) status = bk_hdf5_fail(s, err, "cannot write the attribute %s of %s", name, path);
    if (a >= 0) H5Aclose(a);
    H5Sclose(space);
    return status;
}

/* Texts lie in the global heap, the one place in which HDF5 keeps no checksum: the root has one of all of them, whatever their order. */
static const char texts_name[] = "texts";

static bk_status add_to_texts(int64_t *sum, const char *path, const char *name, const char *value, bk_error *err)
{
    char hex[65];
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, path, strlen(path) + 1);
    bk_sha256_put(h, name, strlen(name) + 1);
    bk_sha256_put(h, value, strlen(value) + 1);
    bk_sha256_end(h, hex);
    hex[16] = 0;
    *sum ^= (int64_t)strtoull(hex, NULL, 16);
    return BK_OK;
}

static bk_status write_text(bk_store *s, const char *path, const char *name, const char *value, bk_error *err)
{
    if (strlen(value) > BK_STORE_TEXT_MAX)
        return bk_fail(err, BK_EINVAL, "%s: attribute %s of %s has %zu bytes, 65535 is the most", s->path, name, path, strlen(value));
    hid_t t = text_type();
    bk_status status = write_scalar(s, path, name, t, t, &value, err);
    H5Tclose(t);
    return status ? status : add_to_texts(&s->texts, path, name, value, err);
}

static bk_status write_int(bk_store *s, const char *path, const char *name, int64_t value, bk_error *err)
{
    return write_scalar(s, path, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, err);
}

static bk_status absent(const bk_store *s, const char *path, const char *name, bk_error *err)
{
    return bk_fail(err, BK_EFORMAT, "%s: %s has no attribute %s", s->path, path, name);
}

bool bk_store_attr_is_small(hid_t attr)
{
    hsize_t bytes = H5Aget_storage_size(attr); /* 0: unknown or empty */
    return bytes > 0 && bytes <= BK_STORE_TEXT_MAX;
}

/* A scalar attribute of the class asked for, or -1 with the error recorded. */
static hid_t open_scalar(const bk_store *s, const char *path, const char *name, H5T_class_t want, bk_error *err)
{
    if (H5Aexists_by_name(s->file, path, name, H5P_DEFAULT) <= 0) {
        absent(s, path, name, err);
        return -1;
    }
    hid_t a = H5Aopen_by_name(s->file, path, name, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0) {
        bk_hdf5_fail(s, err, "cannot open the attribute %s of %s", name, path);
        return -1;
    }
    hid_t t = H5Aget_type(a), space = H5Aget_space(a);
    bool fits = t >= 0 && space >= 0 && H5Tget_class(t) == want && H5Sget_simple_extent_npoints(space) == 1 &&
                bk_store_attr_is_small(a) && (want == H5T_STRING || H5Tget_size(t) <= 8);
    if (t >= 0) H5Tclose(t);
    if (space >= 0) H5Sclose(space);
    if (fits) return a;
    H5Aclose(a);
    bk_fail(err, BK_EFORMAT, "%s: attribute %s of %s is not the single %s that it should be", s->path, name, path,
            want == H5T_STRING ? "text" : "number");
    return -1;
}

static bk_status read_number(const bk_store *s, const char *path, const char *name, H5T_class_t want, hid_t mem_type, void *value,
                             bk_error *err)
{
    hid_t a = open_scalar(s, path, name, want, err);
    if (a < 0) return BK_EFORMAT;
    bk_status status = BK_OK;
    if (H5Aread(a, mem_type, value) < 0) status = bk_hdf5_fail(s, err, "cannot read the attribute %s of %s", name, path);
    H5Aclose(a);
    return status;
}

/* Text of variable or fixed length, malloc'd; NULL on failure. */
static char *text_of(hid_t attr, hid_t type)
{
    if (H5Tis_variable_str(type) > 0) {
        char *raw = NULL, *text = NULL;
        hid_t mem = H5Tcopy(type);
        if (H5Aread(attr, mem, &raw) >= 0) text = strdup(raw ? raw : "");
        if (raw) H5free_memory(raw);
        H5Tclose(mem);
        return text;
    }
    size_t size = H5Tget_size(type);
    char *text = calloc(1, size + 1);
    if (text && H5Aread(attr, type, text) < 0) {
        free(text);
        return NULL;
    }
    return text;
}

static bk_status read_text(const bk_store *s, const char *path, const char *name, char **value, bk_error *err)
{
    *value = NULL;
    hid_t a = open_scalar(s, path, name, H5T_STRING, err);
    if (a < 0) return BK_EFORMAT;
    hid_t t = H5Aget_type(a);
    *value = text_of(a, t);
    bk_status status = *value ? BK_OK : bk_hdf5_fail(s, err, "cannot read the attribute %s of %s", name, path);
    H5Tclose(t);
    H5Aclose(a);
    return status;
}

/* ---- the root's ---- */

bk_status bk_store_write_meta(bk_store *s, const bk_store_meta *m, bk_error *err)
{
    BK_TRY(write_text(s, "/", "schema", m->schema, err));
    BK_TRY(write_int(s, "/", "schema_version", BK_STORE_VERSION, err));
    if (m->model) BK_TRY(write_text(s, "/", "model", m->model, err));
    if (m->model_sha256) BK_TRY(write_text(s, "/", "model_sha256", m->model_sha256, err));
    if (m->config) BK_TRY(write_text(s, "/", "config", m->config, err));
    if (m->has_seed) BK_TRY(write_int(s, "/", "seed", m->seed, err));
    BK_TRY(write_int(s, "/", "prefix_len", m->prefix_len, err));
    return write_int(s, "/", "complete", 0, err);
}

bk_status bk_store_complete(bk_store *s, bk_error *err)
{
    const int64_t one = 1;
    BK_TRY(write_int(s, "/", texts_name, s->texts, err));
    hid_t a = H5Aopen_by_name(s->file, "/", "complete", H5P_DEFAULT, H5P_DEFAULT);
    bk_status status = BK_OK;
    if (a < 0 || H5Awrite(a, H5T_NATIVE_INT64, &one) < 0) status = bk_hdf5_fail(s, err, "cannot mark as complete");
    if (a >= 0) H5Aclose(a);
    return status;
}

static bool root_has(const bk_store *s, const char *name)
{
    return H5Aexists_by_name(s->file, "/", name, H5P_DEFAULT) > 0;
}

static bk_status root_text(const bk_store *s, const char *name, const char **value, bk_error *err)
{
    char *text = NULL;
    if (root_has(s, name)) BK_TRY(read_text(s, "/", name, &text, err));
    *value = text;
    return BK_OK;
}

bk_status bk_store_read_meta(bk_store *s, const char *schema, bk_error *err)
{
    bk_store_meta *m = &s->meta;
    BK_TRY(root_text(s, "schema", &m->schema, err));
    s->ours = m->schema && strncmp(m->schema, "brick.", 6) == 0;
    if (schema && (!s->ours || strcmp(m->schema, schema) != 0))
        return bk_fail(err, BK_EFORMAT, "%s: is no %s file (schema: %s)", s->path, schema, m->schema ? m->schema : "none");
    if (!s->ours) return BK_OK;
    int64_t version = 0, complete = 0;
    BK_TRY(read_number(s, "/", "schema_version", H5T_INTEGER, H5T_NATIVE_INT64, &version, err));
    if (version != BK_STORE_VERSION)
        return bk_fail(err, BK_EFORMAT, "%s: has schema version %" PRId64 ", this brick reads version %d", s->path, version,
                       BK_STORE_VERSION);
    BK_TRY(read_number(s, "/", "complete", H5T_INTEGER, H5T_NATIVE_INT64, &complete, err));
    if (complete != 1) return bk_fail(err, BK_EFORMAT, "%s: is incomplete: it is still being written, or its writer was stopped", s->path);
    BK_TRY(root_text(s, "model", &m->model, err));
    BK_TRY(root_text(s, "model_sha256", &m->model_sha256, err));
    BK_TRY(root_text(s, "config", &m->config, err));
    m->has_seed = root_has(s, "seed");
    if (m->has_seed) BK_TRY(read_number(s, "/", "seed", H5T_INTEGER, H5T_NATIVE_INT64, &m->seed, err));
    return read_number(s, "/", "prefix_len", H5T_INTEGER, H5T_NATIVE_INT64, &m->prefix_len, err);
}

void bk_store_drop_meta(bk_store *s)
{
    if (s->writing) return; /* texts belong to the caller of create and are not kept */
    free((char *)s->meta.schema);
    free((char *)s->meta.model);
    free((char *)s->meta.model_sha256);
    free((char *)s->meta.config);
}

/* ---- callers' ---- */

#define LOCKED(call)                \
    do {                            \
        bk_hdf5_lock();             \
        bk_status status_ = (call); \
        bk_hdf5_unlock();           \
        return status_;             \
    } while (0)

bk_status bk_store_set_text(bk_store *s, const char *path, const char *name, const char *value, bk_error *err)
{
    LOCKED(write_text(s, path, name, value, err));
}

bk_status bk_store_set_int(bk_store *s, const char *path, const char *name, int64_t value, bk_error *err)
{
    LOCKED(write_int(s, path, name, value, err));
}

bk_status bk_store_set_real(bk_store *s, const char *path, const char *name, double value, bk_error *err)
{
    LOCKED(write_scalar(s, path, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value, err));
}

bk_status bk_store_get_text(bk_store *s, const char *path, const char *name, char **value, bk_error *err)
{
    LOCKED(read_text(s, path, name, value, err));
}

bk_status bk_store_get_int(bk_store *s, const char *path, const char *name, int64_t *value, bk_error *err)
{
    LOCKED(read_number(s, path, name, H5T_INTEGER, H5T_NATIVE_INT64, value, err));
}

bk_status bk_store_get_real(bk_store *s, const char *path, const char *name, double *value, bk_error *err)
{
    LOCKED(read_number(s, path, name, H5T_FLOAT, H5T_NATIVE_DOUBLE, value, err));
}

/* ---- showing ---- */

typedef struct {
    bk_store *s;
    const char *path;
    bk_store_attr_fn *fn;
    void *user;
    bk_error *err;
    bk_status status;
} attr_walk;

static bool carries_scales(const char *name)
{
    static const char *const names[] = {"CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* The fewest digits that read back as the same double, of 15 or 17. */
static int real_as_text(double v, char *text, size_t cap)
{
    int n = snprintf(text, cap, "%.15g", v);
    return strtod(text, NULL) == v ? n : snprintf(text, cap, "%.17g", v);
}

/* Up to 16 numbers as text: "3", "[1, 2.5]"; more are counted. */
static void numbers_as_text(hid_t a, hid_t type, int64_t n, char *text, size_t cap)
{
    enum { SHOWN = 16 };
    bool whole = H5Tget_class(type) == H5T_INTEGER;
    if (n > SHOWN || n < 0) {
        snprintf(text, cap, "(%" PRId64 " numbers)", n);
        return;
    }
    union {
        int64_t i[SHOWN];
        double f[SHOWN];
    } v = {{0}};
    if (n > 0 && H5Aread(a, whole ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, &v) < 0) {
        snprintf(text, cap, "(cannot be read)");
        return;
    }
    size_t at = 0;
    if (n != 1) at += (size_t)snprintf(text, cap, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) at += (size_t)snprintf(text + at, cap - at, ", ");
        at += (size_t)(whole ? snprintf(text + at, cap - at, "%" PRId64, v.i[i]) : real_as_text(v.f[i], text + at, cap - at));
    }
    if (n != 1) snprintf(text + at, cap - at, "]");
}

static herr_t show_attr(hid_t obj, const char *name, const H5A_info_t *info, void *user)
{
    (void)info;
    attr_walk *w = user;
    if (carries_scales(name)) return 0;
    hid_t a = H5Aopen(obj, name, H5P_DEFAULT);
    if (a < 0) {
        w->status = bk_hdf5_fail(w->s, w->err, "cannot open the attribute %s of %s", name, w->path);
        return -1;
    }
    hid_t t = H5Aget_type(a), space = H5Aget_space(a);
    int64_t n = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
    H5T_class_t class = t < 0 ? H5T_NO_CLASS : H5Tget_class(t);
    char small[512] = "(of a kind that is not shown)", *text = NULL;
    if (!bk_store_attr_is_small(a)) snprintf(small, sizeof small, "(not shown: %llu bytes)", (unsigned long long)H5Aget_storage_size(a));
    else if (class == H5T_STRING && n == 1) text = text_of(a, t);
    else if ((class == H5T_INTEGER || class == H5T_FLOAT) && H5Tget_size(t) <= 8) numbers_as_text(a, t, n, small, sizeof small);
    w->status = w->fn(w->user, name, text ? text : small, text != NULL, w->err);
    free(text);
    if (space >= 0) H5Sclose(space);
    if (t >= 0) H5Tclose(t);
    H5Aclose(a);
    return w->status == BK_OK ? 0 : -1;
}

static bk_status walk_attrs(attr_walk *w)
{
    hsize_t at = 0;
    herr_t rc = H5Aiterate_by_name(w->s->file, w->path, H5_INDEX_NAME, H5_ITER_INC, &at, show_attr, w, H5P_DEFAULT);
    if (rc < 0 && w->status == BK_OK) return bk_hdf5_fail(w->s, w->err, "cannot read the attributes of %s", w->path);
    return w->status;
}

typedef struct {
    const char *path;
    int64_t sum;
} text_walk;

static bk_status see_text(void *user, const char *name, const char *value, bool is_text, bk_error *err)
{
    text_walk *t = user;
    return is_text ? add_to_texts(&t->sum, t->path, name, value, err) : BK_OK;
}

bk_status bk_store_check_texts(bk_store *s, bk_error *err)
{
    text_walk t = {"", 0};
    int64_t want;
    if (!s->ours || !root_has(s, texts_name)) return BK_OK;
    BK_TRY(read_number(s, "/", texts_name, H5T_INTEGER, H5T_NATIVE_INT64, &want, err));
    for (int64_t i = 0; i < s->n_objects; i++) {
        t.path = s->objects[i].path;
        attr_walk w = {s, t.path, see_text, &t, err, BK_OK};
        BK_TRY(walk_attrs(&w));
    }
    return t.sum == want ? BK_OK : bk_fail(err, BK_EFORMAT, "%s: is damaged: a text attribute does not match its checksum", s->path);
}

bk_status bk_store_attrs(bk_store *s, const char *path, bk_store_attr_fn *fn, void *user, bk_error *err)
{
    attr_walk w = {s, path, fn, user, err, BK_OK};
    LOCKED(walk_attrs(&w));
}
