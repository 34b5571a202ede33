#include "io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

#include "io/bytes.h"
#include "io/file.h"
#include "io/half.h"

#define MAX_HEADER 100000000u
#define BUFFER 65536
#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"
#define METADATA "__metadata__"

#define BK_ST_DTYPE(name, bytes) #name,
static const char *const dtype_names[] = {BK_ST_DTYPES(BK_ST_DTYPE)};
#undef BK_ST_DTYPE
#define BK_ST_DTYPE(name, bytes) bytes,
static const unsigned char dtype_sizes[] = {BK_ST_DTYPES(BK_ST_DTYPE)};
#undef BK_ST_DTYPE

typedef struct shard {
    bk_file file;
    bk_json *header;       /* owns the tensors' names */
    bk_st_tensor *tensors; /* by offset */
    size_t n;
} shard;

struct bk_st_set {
    shard *shards;
    int n_shards;
    bk_st_tensor *tensors; /* by name */
    size_t n;
};

const char *bk_st_dtype_name(bk_st_dtype d)
{
    return dtype_names[d];
}

size_t bk_st_dtype_size(bk_st_dtype d)
{
    return dtype_sizes[d];
}

static int name_order(const void *a, const void *b)
{
    return strcmp(((const bk_st_tensor *)a)->name, ((const bk_st_tensor *)b)->name);
}

static int offset_order(const void *a, const void *b)
{
    const bk_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count); /* tensors without values first */
}

static bk_status no_memory(bk_error *err, const char *path)
{
    return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
}

/* Offset of entry i of data_offsets, -1 if it is none. */
static int64_t offset_of(const bk_json *entry, size_t i)
{
    const bk_json *pair = bk_json_get(entry, "data_offsets");
    return bk_json_size(pair) == 2 ? bk_json_int(bk_json_at(pair, i), -1) : -1;
}

/* One entry of the header; `start` is where the data begin. */
static bk_status parse_entry(const shard *s, const char *name, const bk_json *entry, uint64_t start, bk_st_tensor *t,
                             bk_error *err)
{
    const char *path = s->file.path, *dtype = bk_json_str(bk_json_get(entry, "dtype"), NULL);
    const bk_json *shape = bk_json_get(entry, "shape");
    t->name = name;
    if (!dtype || bk_json_kind_of(shape) != BK_JSON_ARRAY)
        return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has no dtype or no shape", path, name);
    while (t->dtype < BK_ST_DTYPE_COUNT && strcmp(dtype, dtype_names[t->dtype]) != 0) t->dtype++;
    if (t->dtype == BK_ST_DTYPE_COUNT)
        return bk_fail(err, BK_EUNSUP, "%s: tensor '%s' has dtype '%s', which brick does not read", path, name, dtype);
    if (bk_json_size(shape) > BK_ST_MAX_DIM)
        return bk_fail(err, BK_EUNSUP, "%s: tensor '%s' has %zu dimensions, at most %d are read", path, name,
                       bk_json_size(shape), BK_ST_MAX_DIM);
    uint64_t count = 1;
    t->ndim = (int)bk_json_size(shape);
    for (int i = 0; i < t->ndim; i++) {
        t->dim[i] = bk_json_int(bk_json_at(shape, (size_t)i), -1);
        if (t->dim[i] < 0 || !bk_times(&count, (uint64_t)t->dim[i], INT64_MAX / 8))
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has an impossible shape", path, name);
    }
    t->count = (int64_t)count;
    int64_t begin = offset_of(entry, 0), end = offset_of(entry, 1);
    if (begin < 0 || end < begin || (uint64_t)end > s->file.size - start)
        return bk_fail(
            err, BK_EFORMAT,
            "%s: tensor '%s' has data_offsets [%lld, %lld], the file has %llu bytes of data; download it again", path,
            name, (long long)begin, (long long)end, (unsigned long long)(s->file.size - start));
    if ((uint64_t)(end - begin) != count * dtype_sizes[t->dtype])
        return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has %lld bytes, its shape and dtype %s make %llu", path, name,
                       (long long)(end - begin), dtype, (unsigned long long)(count * dtype_sizes[t->dtype]));
    t->offset = start + (uint64_t)begin;
    return BK_OK;
}

/* The tensors cover the data from front to back, each byte once. */
static bk_status check_cover(const shard *s, uint64_t start, bk_error *err)
{
    uint64_t end = start;
    for (size_t i = 0; i < s->n; i++) {
        const bk_st_tensor *t = &s->tensors[i];
        if (t->offset != end)
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' %s at byte %llu of the data", s->file.path, t->name,
                           t->offset < end ? "overlaps another one" : "leaves a hole",
                           (unsigned long long)(end - start));
        end += (uint64_t)t->count * dtype_sizes[t->dtype];
    }
    if (end != s->file.size)
        return bk_fail(err, BK_EFORMAT,
                       "%s: %llu bytes follow the last tensor: the file is damaged or something was added to it",
                       s->file.path, (unsigned long long)(s->file.size - end));
    return BK_OK;
}

static bk_status check_metadata(const shard *s, const bk_json *map, bk_error *err)
{
    bool ok = bk_json_kind_of(map) == BK_JSON_OBJECT;
    for (void *it = ok ? bk_json_first(map) : NULL; it; it = bk_json_next(map, it))
        ok = ok && bk_json_kind_of(bk_json_value(it)) == BK_JSON_STRING;
    return ok ? BK_OK : bk_fail(err, BK_EFORMAT, "%s: " METADATA " is no map of strings", s->file.path);
}

static bk_status parse_entries(shard *s, int file, uint64_t start, bk_error *err)
{
    if (bk_json_kind_of(s->header) != BK_JSON_OBJECT)
        return bk_fail(err, BK_EFORMAT, "%s: its header is no JSON object", s->file.path);
    s->tensors = calloc(bk_json_size(s->header) + 1, sizeof *s->tensors);
    if (!s->tensors) return no_memory(err, s->file.path);
    for (void *it = bk_json_first(s->header); it; it = bk_json_next(s->header, it)) {
        if (strcmp(bk_json_key(it), METADATA) == 0) {
            BK_TRY(check_metadata(s, bk_json_value(it), err));
            continue;
        }
        bk_st_tensor *t = &s->tensors[s->n++];
        t->file = file;
        BK_TRY(parse_entry(s, bk_json_key(it), bk_json_value(it), start, t, err));
    }
    qsort(s->tensors, s->n, sizeof *s->tensors, offset_order);
    return check_cover(s, start, err);
}

static bk_status open_shard(shard *s, int file, const char *path, bk_error *err)
{
    unsigned char len[8];
    BK_TRY(bk_file_open(&s->file, path, err));
    BK_TRY(bk_file_read(&s->file, 0, len, sizeof len, err));
    uint64_t n = bk_load64(len);
    if (n > s->file.size - 8 || n > MAX_HEADER)
        return bk_fail(err, BK_EFORMAT,
                       "%s: is no safetensors file or is cut off: header of %llu bytes in a file of %llu", path,
                       (unsigned long long)n, (unsigned long long)s->file.size);
    char *text = malloc((size_t)n + 1);
    if (!text) return no_memory(err, path);
    bk_status status = bk_file_read(&s->file, 8, text, (size_t)n, err);
    if (status == BK_OK) status = bk_json_parse(text, (size_t)n, path, &s->header, err);
    free(text);
    return status ? status : parse_entries(s, file, 8 + n, err);
}

static bk_status new_set(int shards, const char *path, bk_st_set **out, bk_error *err)
{
    bk_st_set *s = *out = calloc(1, sizeof *s);
    if (s) s->shards = calloc((size_t)shards, sizeof *s->shards);
    if (!s || !s->shards) return no_memory(err, path);
    s->n_shards = shards;
    return BK_OK;
}

static bk_status fill_single(bk_st_set *s, const char *path, bk_error *err)
{
    BK_TRY(open_shard(&s->shards[0], 0, path, err));
    s->n = s->shards[0].n;
    s->tensors = malloc((s->n + 1) * sizeof *s->tensors);
    if (!s->tensors) return no_memory(err, path);
    memcpy(s->tensors, s->shards[0].tensors, s->n * sizeof *s->tensors);
    qsort(s->tensors, s->n, sizeof *s->tensors, name_order);
    return BK_OK;
}

/* Hands the set to the caller, or frees it after a failure. */
static bk_status finish(bk_st_set **out, bk_status status)
{
    if (status) {
        bk_st_close(*out);
        *out = NULL;
        return status;
    }
    for (int i = 0; i < (*out)->n_shards; i++) {
        free((*out)->shards[i].tensors);
        (*out)->shards[i].tensors = NULL;
    }
    return BK_OK;
}

bk_status bk_st_open(const char *path, bk_st_set **out, bk_error *err)
{
    bk_status status = new_set(1, path, out, err);
    return finish(out, status ? status : fill_single(*out, path, err));
}

static int string_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends "name, " to a list for a message, which ends in "..." when it is full. */
static void list_add(char *list, size_t size, const char *name)
{
    size_t n = strlen(list), room = size - n;
    if (n >= 3 && strcmp(list + n - 3, "...") == 0) return;
    if (strlen(name) + 6 < room)
        snprintf(list + n, room, "%s%s", n ? ", " : "", name);
    else if (room > 5)
        snprintf(list + n, room, ", ...");
}

/* File names of the index, sorted, each once; `files` has room for all its entries. */
static bk_status index_files(const bk_json *map, const char *index, const char **files, int *n, bk_error *err)
{
    int all = 0;
    for (void *it = bk_json_first(map); it; it = bk_json_next(map, it)) {
        const char *name = bk_json_str(bk_json_value(it), NULL);
        if (!name || !*name || strchr(name, '/') || strchr(name, '\\') || name[0] == '.')
            return bk_fail(err, BK_EFORMAT,
                           "%s: tensor '%s' is said to be in '%s', which is no file name in this folder", index,
                           bk_json_key(it), name ? name : "");
        files[all++] = name;
    }
    qsort(files, (size_t)all, sizeof *files, string_order);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (i == 0 || strcmp(files[i], files[*n - 1]) != 0) files[(*n)++] = files[i];
    return BK_OK;
}

static bk_status open_shards(bk_st_set *s, const char *dir, const char *index, const char **files, bk_error *err)
{
    char absent[512] = "";
    for (int i = 0; i < s->n_shards; i++) {
        char *path = bk_path_join(dir, files[i]);
        if (!path) return no_memory(err, dir);
        bk_status status = BK_OK;
        if (!bk_exists(path))
            list_add(absent, sizeof absent, files[i]);
        else if (!*absent)
            status = open_shard(&s->shards[i], i, path, err);
        free(path);
        BK_TRY(status);
    }
    if (*absent)
        return bk_fail(err, BK_EIO, "%s: the index names files that are not there: %s; download them", index, absent);
    return BK_OK;
}

static const bk_st_tensor *find_in(const shard *s, const char *name)
{
    const bk_st_tensor wanted = {.name = name};
    return bsearch(&wanted, s->tensors, s->n, sizeof wanted, name_order);
}

static bk_status merge(bk_st_set *s, const bk_json *map, const char *index, const char **files, bk_error *err)
{
    char absent[512] = "";
    s->tensors = malloc((bk_json_size(map) + 1) * sizeof *s->tensors);
    if (!s->tensors) return no_memory(err, index);
    for (int i = 0; i < s->n_shards; i++) qsort(s->shards[i].tensors, s->shards[i].n, sizeof *s->tensors, name_order);
    for (void *it = bk_json_first(map); it; it = bk_json_next(map, it)) {
        const char *file = bk_json_str(bk_json_value(it), "");
        const char **at = bsearch(&file, files, (size_t)s->n_shards, sizeof *files, string_order);
        const bk_st_tensor *t = find_in(&s->shards[at - files], bk_json_key(it));
        char text[256];
        snprintf(text, sizeof text, "%s (%s)", bk_json_key(it), file);
        if (t)
            s->tensors[s->n++] = *t;
        else
            list_add(absent, sizeof absent, text);
    }
    if (*absent)
        return bk_fail(err, BK_EFORMAT, "%s: the index names tensors that are not in their files: %s", index, absent);
    qsort(s->tensors, s->n, sizeof *s->tensors, name_order);
    return BK_OK;
}

static bk_status open_index(const char *dir, const char *index, const bk_json *root, bk_st_set **out, bk_error *err)
{
    const bk_json *map = bk_json_get(root, "weight_map");
    if (bk_json_kind_of(map) != BK_JSON_OBJECT || bk_json_size(map) == 0)
        return bk_fail(err, BK_EFORMAT, "%s: has no weight_map", index);
    int n = 0;
    const char **files = malloc(bk_json_size(map) * sizeof *files);
    if (!files) return no_memory(err, index);
    bk_status status = index_files(map, index, files, &n, err);
    if (status == BK_OK) status = new_set(n, index, out, err);
    if (status == BK_OK) status = open_shards(*out, dir, index, files, err);
    if (status == BK_OK) status = merge(*out, map, index, files, err);
    free(files);
    return status;
}

bk_status bk_st_open_folder(const char *dir, bk_st_set **out, bk_error *err)
{
    *out = NULL;
    char *index = bk_path_join(dir, INDEX), *single = bk_path_join(dir, SINGLE);
    bk_json *root = NULL;
    bk_status status;
    if (!index || !single) {
        status = no_memory(err, dir);
    } else if (bk_exists(index)) {
        status = bk_json_load(index, &root, err);
        status = finish(out, status ? status : open_index(dir, index, root, out, err));
    } else if (bk_exists(single)) {
        status = bk_st_open(single, out, err);
    } else {
        status = bk_fail(err, BK_EIO, "%s: has neither " SINGLE " nor " INDEX, dir);
    }
    bk_json_free(root);
    free(index);
    free(single);
    return status;
}

void bk_st_close(bk_st_set *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_shards; i++) {
        bk_json_free(s->shards[i].header);
        free(s->shards[i].tensors);
        bk_file_close(&s->shards[i].file);
    }
    free(s->shards);
    free(s->tensors);
    free(s);
}

int64_t bk_st_count(const bk_st_set *s)
{
    return (int64_t)s->n;
}

const bk_st_tensor *bk_st_at(const bk_st_set *s, int64_t i)
{
    return &s->tensors[i];
}

const bk_st_tensor *bk_st_find(const bk_st_set *s, const char *name)
{
    const bk_st_tensor wanted = {.name = name};
    return bsearch(&wanted, s->tensors, s->n, sizeof wanted, name_order);
}

int bk_st_file_count(const bk_st_set *s)
{
    return s->n_shards;
}

const char *bk_st_file_path(const bk_st_set *s, int file)
{
    return s->shards[file].file.path;
}

const bk_json *bk_st_metadata(const bk_st_set *s)
{
    return bk_json_get(s->shards[0].header, METADATA);
}

bk_status bk_st_read_raw(const bk_st_set *s, const bk_st_tensor *t, int64_t first, int64_t n, void *dst, bk_error *err)
{
    const bk_file *f = &s->shards[t->file].file;
    if (first < 0 || n < 0 || first > t->count || n > t->count - first)
        return bk_fail(err, BK_EINVAL, "%s: tensor '%s' has %lld values, [%lld, %lld + %lld) asked for", f->path,
                       t->name, (long long)t->count, (long long)first, (long long)first, (long long)n);
    size_t size = dtype_sizes[t->dtype];
    return bk_file_read(f, t->offset + (uint64_t)first * size, dst, (size_t)n * size, err);
}

typedef union buffer {
    uint16_t half[BUFFER / 2];
    double wide[BUFFER / 8];
} buffer;

static void to_f32(bk_st_dtype dtype, const buffer *src, float *dst, int64_t n)
{
    if (dtype == BK_ST_F16)
        bk_f32_from_f16(dst, src->half, n);
    else if (dtype == BK_ST_BF16)
        for (int64_t i = 0; i < n; i++) dst[i] = bk_bf16_to_f32(src->half[i]);
    else
        for (int64_t i = 0; i < n; i++) dst[i] = (float)src->wide[i];
}

bk_status bk_st_read_f32(const bk_st_set *s, const bk_st_tensor *t, int64_t first, int64_t n, float *dst, bk_error *err)
{
    if (t->dtype == BK_ST_F32) return bk_st_read_raw(s, t, first, n, dst, err);
    if (t->dtype != BK_ST_F16 && t->dtype != BK_ST_BF16 && t->dtype != BK_ST_F64)
        return bk_fail(err, BK_EUNSUP, "%s: tensor '%s' is of dtype %s; weights are read from F32, F16, BF16 and F64",
                       bk_st_file_path(s, t->file), t->name, dtype_names[t->dtype]);
    buffer buf;
    const int64_t room = BUFFER / (int64_t)dtype_sizes[t->dtype];
    do { /* once even for nothing: the range is checked */
        int64_t some = n < room ? n : room;
        BK_TRY(bk_st_read_raw(s, t, first, some, &buf, err));
        to_f32(t->dtype, &buf, dst, some);
        first += some, dst += some, n -= some;
    } while (n > 0);
    return BK_OK;
}

typedef struct declared {
    char *name;
    uint64_t bytes;
} declared;

struct bk_st_writer {
    char *path;
    bk_json *header, *metadata; /* header becomes NULL when it is written */
    declared *list;
    size_t n, turn;
    uint64_t end, put; /* bytes declared; bytes put of the tensor in turn */
    bk_writer out;
};

bk_status bk_st_writer_new(const char *path, bk_st_writer **out, bk_error *err)
{
    bk_st_writer *w = *out = calloc(1, sizeof *w);
    if (!w) return no_memory(err, path);
    w->out.fd = -1;
    w->path = strdup(path);
    w->header = bk_json_object();
    if (w->path && w->header) return BK_OK;
    bk_st_writer_abort(w);
    *out = NULL;
    return no_memory(err, path);
}

void bk_st_writer_metadata(bk_st_writer *w, const char *key, const char *value)
{
    if (!w->metadata) {
        w->metadata = bk_json_object();
        bk_json_set(w->header, METADATA, w->metadata);
    }
    bk_json_set(w->metadata, key, bk_json_of_text(value));
}

bk_status bk_st_writer_declare(bk_st_writer *w, const char *name, bk_st_dtype dtype, int ndim, const int64_t *dim,
                               bk_error *err)
{
    if (!w->header)
        return bk_fail(err, BK_EINVAL, "%s: tensor '%s' is declared after data were written", w->path, name);
    if (bk_json_get(w->header, name) || strcmp(name, METADATA) == 0)
        return bk_fail(err, BK_EINVAL, "%s: tensor '%s' is declared twice", w->path, name);
    bk_json *entry = bk_json_object(), *shape = bk_json_array(), *offsets = bk_json_array();
    uint64_t bytes = dtype_sizes[dtype];
    bool fits = ndim <= BK_ST_MAX_DIM;
    for (int i = 0; fits && i < ndim; i++) {
        fits = dim[i] >= 0 && bk_times(&bytes, (uint64_t)dim[i], INT64_MAX - w->end);
        bk_json_push(shape, bk_json_of_int(dim[i]));
    }
    bk_json_push(offsets, bk_json_of_int((int64_t)w->end));
    bk_json_push(offsets, bk_json_of_int((int64_t)(w->end + bytes)));
    bk_json_set(entry, "dtype", bk_json_of_text(dtype_names[dtype]));
    bk_json_set(entry, "shape", shape);
    bk_json_set(entry, "data_offsets", offsets);
    bk_json_set(w->header, name, entry);
    if (!fits) return bk_fail(err, BK_EINVAL, "%s: tensor '%s' has an impossible shape", w->path, name);
    declared *list = realloc(w->list, (w->n + 1) * sizeof *list);
    if (!list) return no_memory(err, w->path);
    w->list = list;
    list[w->n] = (declared){strdup(name), bytes};
    if (!list[w->n].name) return no_memory(err, w->path);
    w->n++, w->end += bytes;
    return BK_OK;
}

/* The header is padded so that the data begin at a multiple of 8. */
static bk_status put_header(bk_st_writer *w, bk_error *err)
{
    char *text = bk_json_dump(w->header, 0);
    bk_json_free(w->header);
    w->header = NULL;
    if (!text) return no_memory(err, w->path);
    uint64_t n = strlen(text), padded = (n + 7) / 8 * 8;
    bk_status status = n > MAX_HEADER ? bk_fail(err, BK_EINVAL, "%s: too many tensors for one file", w->path) : BK_OK;
    if (status == BK_OK) status = bk_writer_open(&w->out, w->path, err);
    if (status == BK_OK) status = bk_writer_put(&w->out, &padded, sizeof padded, err);
    if (status == BK_OK) status = bk_writer_put(&w->out, text, n, err);
    if (status == BK_OK) status = bk_writer_put(&w->out, "        ", padded - n, err);
    free(text);
    return status;
}

/* Passes over tensors that are complete. */
static void advance(bk_st_writer *w)
{
    while (w->turn < w->n && w->put == w->list[w->turn].bytes) w->turn++, w->put = 0;
}

bk_status bk_st_writer_put(bk_st_writer *w, const char *name, const void *data, size_t bytes, bk_error *err)
{
    if (bytes == 0) return BK_OK;
    if (w->header) BK_TRY(put_header(w, err));
    advance(w);
    if (w->turn == w->n || strcmp(name, w->list[w->turn].name) != 0 || bytes > w->list[w->turn].bytes - w->put)
        return bk_fail(err, BK_EINVAL, "%s: %zu bytes of tensor '%s' were given out of turn or are too many", w->path,
                       bytes, name);
    BK_TRY(bk_writer_put(&w->out, data, bytes, err));
    w->put += bytes;
    return BK_OK;
}

bk_status bk_st_writer_commit(bk_st_writer *w, bk_error *err)
{
    bk_status status = w->header ? put_header(w, err) : BK_OK;
    advance(w);
    if (status == BK_OK && w->turn < w->n)
        status = bk_fail(err, BK_EINVAL, "%s: tensor '%s' is not complete", w->path, w->list[w->turn].name);
    if (status == BK_OK) status = bk_writer_commit(&w->out, err);
    bk_st_writer_abort(w);
    return status;
}

void bk_st_writer_abort(bk_st_writer *w)
{
    if (!w) return;
    bk_writer_abort(&w->out);
    bk_json_free(w->header);
    for (size_t i = 0; i < w->n; i++) free(w->list[i].name);
    free(w->list);
    free(w->path);
    free(w);
}
