/* Layout: "GGUF", version, tensor count, key count; keys (name, type, value); tensors (name, dims, type, offset);
 * padding; tensor data. Counts are never believed: each entry takes bytes in the file, so a count above what the rest
 * of the file can hold is refused before anything is allocated for it. */
#include "io/gguf.h"

#include <stdlib.h>

#include "io/bytes.h"
#include "io/file.h"
#include "io/gguf_dequant.h"

#define MAX_NAME 65535
#define BUFFER 65536

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };
static const unsigned char size_of[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct text {
    const char *s; /* NUL-terminated, may hold NUL */
    size_t len;
} text;

typedef struct entry {
    const char *key;
    unsigned type; /* of the elements */
    bool array;
    uint64_t n;
    void *data; /* n numbers as in the file, or n texts */
} entry;

typedef struct pool {
    struct pool *next;
    char bytes[];
} pool;

struct bk_gguf {
    bk_file file;
    pool *pool;
    char *free_bytes; /* in the first pool */
    size_t free_count;
    entry *entries; /* sorted by key */
    uint64_t n_entries;
    bk_gguf_tensor *tensors;        /* in file order */
    const bk_gguf_type **types;     /* of tensors */
    const bk_gguf_tensor **by_name; /* sorted */
    uint64_t n_tensors;
};

/* The file from front to back, through a buffer. */
typedef struct cursor {
    const bk_file *f;
    uint64_t at; /* of the next byte to load */
    size_t used, loaded;
    unsigned char buf[BUFFER];
} cursor;

static uint64_t position(const cursor *c)
{
    return c->at - (c->loaded - c->used);
}

static bk_status get(cursor *c, void *dst, size_t n, bk_error *err)
{
    if (n > c->f->size - position(c))
        return bk_fail(err, BK_EFORMAT, "%s: cut off: its header goes on beyond the end of the file (%llu bytes)",
                       c->f->path, (unsigned long long)c->f->size);
    for (char *to = dst; n > 0;) {
        if (c->used == c->loaded) {
            c->used = c->loaded = 0;
            size_t load = c->f->size - c->at < BUFFER ? (size_t)(c->f->size - c->at) : BUFFER;
            BK_TRY(bk_file_read(c->f, c->at, c->buf, load, err));
            c->at += load, c->loaded = load;
        }
        size_t some = c->loaded - c->used < n ? c->loaded - c->used : n;
        memcpy(to, c->buf + c->used, some);
        to += some, c->used += some, n -= some;
    }
    return BK_OK;
}

static bk_status no_memory(const bk_gguf *g, bk_error *err)
{
    return bk_fail(err, BK_ENOMEM, "%s: out of memory while reading the header", g->file.path);
}

/* Memory that lives as long as the file is open. The caller has checked n against the file's size. */
static char *keep(bk_gguf *g, size_t n)
{
    if (n > g->free_count) {
        size_t size = n > BUFFER ? n : BUFFER;
        pool *p = malloc(sizeof *p + size);
        if (!p) return NULL;
        p->next = g->pool;
        g->pool = p;
        g->free_bytes = p->bytes, g->free_count = size;
    }
    char *s = g->free_bytes;
    g->free_bytes += n, g->free_count -= n;
    return s;
}

static bk_status get_text(bk_gguf *g, cursor *c, text *out, bk_error *err)
{
    uint64_t len;
    BK_TRY(get(c, &len, sizeof len, err));
    if (len > c->f->size - position(c))
        return bk_fail(err, BK_EFORMAT, "%s: a string of %llu bytes in the header goes beyond the end of the file",
                       c->f->path, (unsigned long long)len);
    char *s = keep(g, (size_t)len + 1);
    if (!s) return no_memory(g, err);
    s[len] = 0;
    out->s = s, out->len = (size_t)len;
    return get(c, s, (size_t)len, err);
}

static bk_status get_name(bk_gguf *g, cursor *c, const char **out, bk_error *err)
{
    text t;
    BK_TRY(get_text(g, c, &t, err));
    if (t.len == 0 || t.len > MAX_NAME || memchr(t.s, 0, t.len))
        return bk_fail(err, BK_EFORMAT, "%s: a name in the header is empty, too long or holds NUL", c->f->path);
    *out = t.s;
    return BK_OK;
}

static bk_status get_values(bk_gguf *g, cursor *c, entry *e, bk_error *err)
{
    uint64_t least = e->type == STRING ? 8 : size_of[e->type];
    if (e->n > (c->f->size - position(c)) / least)
        return bk_fail(err, BK_EFORMAT, "%s: key '%s' says it has %llu values, more than the file can hold", c->f->path,
                       e->key, (unsigned long long)e->n);
    e->data = malloc(e->n ? (size_t)e->n * (e->type == STRING ? sizeof(text) : size_of[e->type]) : 1);
    if (!e->data) return no_memory(g, err);
    if (e->type != STRING) return get(c, e->data, (size_t)e->n * size_of[e->type], err);
    for (uint64_t i = 0; i < e->n; i++) BK_TRY(get_text(g, c, (text *)e->data + i, err));
    return BK_OK;
}

static bk_status get_entry(bk_gguf *g, cursor *c, entry *e, bk_error *err)
{
    uint32_t type;
    BK_TRY(get_name(g, c, &e->key, err));
    BK_TRY(get(c, &type, sizeof type, err));
    e->array = type == ARRAY;
    e->n = 1;
    if (e->array) {
        BK_TRY(get(c, &type, sizeof type, err));
        BK_TRY(get(c, &e->n, sizeof e->n, err));
    }
    if (type >= TYPES || type == ARRAY)
        return bk_fail(err, BK_EFORMAT, "%s: key '%s' has a value of type %u, which GGUF does not have", c->f->path,
                       e->key, type);
    e->type = type;
    return get_values(g, c, e, err);
}

/* Room for `count` entries of a table whose entries take at least `least` bytes in the file. */
static bk_status table(bk_gguf *g, const cursor *c, uint64_t count, uint64_t least, size_t size, const char *what,
                       void *out, bk_error *err)
{
    if (count > (c->f->size - position(c)) / least)
        return bk_fail(err, BK_EFORMAT, "%s: says it has %llu %s, more than the file can hold", c->f->path,
                       (unsigned long long)count, what);
    void *p = calloc(count ? (size_t)count : 1, size);
    if (!p) return no_memory(g, err);
    memcpy(out, &p, sizeof p);
    return BK_OK;
}

static int entry_order(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->key, ((const entry *)b)->key);
}

static bk_status get_entries(bk_gguf *g, cursor *c, uint64_t count, bk_error *err)
{
    BK_TRY(table(g, c, count, 8 + 4 + 1, sizeof *g->entries, "keys", &g->entries, err));
    for (uint64_t i = 0; i < count; i++) {
        g->n_entries = i + 1; /* for bk_gguf_close, if this one fails */
        BK_TRY(get_entry(g, c, &g->entries[i], err));
    }
    qsort(g->entries, count, sizeof *g->entries, entry_order);
    for (uint64_t i = 1; i < count; i++)
        if (entry_order(&g->entries[i - 1], &g->entries[i]) == 0)
            return bk_fail(err, BK_EFORMAT, "%s: key '%s' stands in the file twice", c->f->path, g->entries[i].key);
    return BK_OK;
}

static bk_status get_tensor(bk_gguf *g, cursor *c, bk_gguf_tensor *t, const bk_gguf_type **type, bk_error *err)
{
    uint32_t ndim, id;
    uint64_t dim[4], n = 1;
    BK_TRY(get_name(g, c, &t->name, err));
    BK_TRY(get(c, &ndim, sizeof ndim, err));
    if (ndim < 1 || ndim > 4)
        return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has %u dimensions, not 1 to 4", c->f->path, t->name, ndim);
    BK_TRY(get(c, dim, ndim * sizeof *dim, err));
    BK_TRY(get(c, &id, sizeof id, err));
    BK_TRY(get(c, &t->offset, sizeof t->offset, err));
    *type = bk_gguf_type_find(id);
    if (!*type)
        return bk_fail(err, BK_EUNSUP, "%s: tensor '%s' is of type %u, which brick does not know", c->f->path, t->name,
                       id);
    t->type = (*type)->name;
    t->readable = (*type)->dequant != NULL;
    t->ndim = (int)ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        if (dim[i] == 0 || !bk_times(&n, dim[i], INT64_MAX / 8))
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' has a dimension of %llu", c->f->path, t->name,
                           (unsigned long long)dim[i]);
        t->dim[ndim - 1 - i] = (int64_t)dim[i];
    }
    if (dim[0] % (uint64_t)(*type)->block != 0)
        return bk_fail(err, BK_EFORMAT,
                       "%s: tensor '%s' is of type %s, but its rows of %llu values are no multiple of %d", c->f->path,
                       t->name, t->type, (unsigned long long)dim[0], (*type)->block);
    t->bytes = n / (uint64_t)(*type)->block * (uint64_t)(*type)->bytes;
    return BK_OK;
}

static int name_order(const void *a, const void *b)
{
    return strcmp((*(const bk_gguf_tensor *const *)a)->name, (*(const bk_gguf_tensor *const *)b)->name);
}

static int offset_order(const void *a, const void *b)
{
    const bk_gguf_tensor *x = *(const bk_gguf_tensor *const *)a, *y = *(const bk_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Makes offsets absolute; every tensor in the file, none over another, nothing after the last but padding. */
static bk_status place_tensors(bk_gguf *g, uint64_t start, uint64_t alignment, bk_error *err)
{
    const char *path = g->file.path;
    uint64_t size = g->file.size, end = start < size ? start : size; /* a file without tensors need not be padded */
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        bk_gguf_tensor *t = &g->tensors[i];
        g->by_name[i] = t;
        if (t->offset % alignment != 0)
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' is not aligned to %llu bytes", path, t->name,
                           (unsigned long long)alignment);
        if (start > size || t->offset > size - start || t->bytes > size - start - t->offset)
            return bk_fail(err, BK_EFORMAT,
                           "%s: cut off: tensor '%s' goes beyond the end of the file (%llu bytes); download it again",
                           path, t->name, (unsigned long long)size);
        t->offset += start;
    }
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, offset_order);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (g->by_name[i]->offset < end)
            return bk_fail(err, BK_EFORMAT, "%s: tensors '%s' and '%s' overlap", path, g->by_name[i - 1]->name,
                           g->by_name[i]->name);
        end = g->by_name[i]->offset + g->by_name[i]->bytes;
    }
    if (size - end >= alignment)
        return bk_fail(err, BK_EFORMAT,
                       "%s: %llu bytes follow the last tensor: the file is damaged or something was added to it", path,
                       (unsigned long long)(size - end));
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, name_order);
    for (uint64_t i = 1; i < g->n_tensors; i++)
        if (name_order(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return bk_fail(err, BK_EFORMAT, "%s: tensor '%s' stands in the file twice", path, g->by_name[i]->name);
    return BK_OK;
}

static bk_status get_tensors(bk_gguf *g, cursor *c, uint64_t count, bk_error *err)
{
    const uint64_t least = 8 + 4 + 8 + 4 + 8;
    BK_TRY(table(g, c, count, least, sizeof *g->tensors, "tensors", &g->tensors, err));
    BK_TRY(table(g, c, count, least, sizeof *g->types, "tensors", &g->types, err));
    BK_TRY(table(g, c, count, least, sizeof *g->by_name, "tensors", &g->by_name, err));
    for (uint64_t i = 0; i < count; i++) BK_TRY(get_tensor(g, c, &g->tensors[i], &g->types[i], err));
    g->n_tensors = count;
    int64_t alignment = bk_gguf_int(g, "general.alignment", 32);
    if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)) != 0)
        return bk_fail(err, BK_EFORMAT, "%s: general.alignment is %lld, not a power of two", c->f->path,
                       (long long)alignment);
    uint64_t a = (uint64_t)alignment;
    return place_tensors(g, (position(c) + a - 1) / a * a, a, err);
}

static bk_status read_header(bk_gguf *g, cursor *c, bk_error *err)
{
    const char *path = c->f->path;
    char magic[4] = "";
    uint32_t version;
    uint64_t tensors, keys;
    if (c->f->size >= 4) BK_TRY(get(c, magic, 4, err));
    if (memcmp(magic, "GGUF", 4) != 0)
        return bk_fail(err, BK_EFORMAT, "%s: is no GGUF file (a model is a GGUF file or a Hugging Face folder)", path);
    BK_TRY(get(c, &version, sizeof version, err));
    if (version != 0 && (version & 0xffff) == 0)
        return bk_fail(err, BK_EUNSUP, "%s: is a big-endian GGUF file, which brick does not read", path);
    if (version != 2 && version != 3)
        return bk_fail(err, BK_EUNSUP, "%s: is GGUF version %u; brick reads versions 2 and 3", path, version);
    BK_TRY(get(c, &tensors, sizeof tensors, err));
    BK_TRY(get(c, &keys, sizeof keys, err));
    BK_TRY(get_entries(g, c, keys, err));
    return get_tensors(g, c, tensors, err);
}

bk_status bk_gguf_open(const char *path, bk_gguf **out, bk_error *err)
{
    *out = NULL;
    bk_gguf *g = calloc(1, sizeof *g);
    cursor *c = calloc(1, sizeof *c);
    bk_status status = g && c ? bk_file_open(&g->file, path, err) : bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
    if (status == BK_OK) {
        c->f = &g->file;
        status = read_header(g, c, err);
    }
    free(c);
    if (status == BK_OK)
        *out = g;
    else
        bk_gguf_close(g);
    return status;
}

void bk_gguf_close(bk_gguf *g)
{
    if (!g) return;
    for (uint64_t i = 0; i < g->n_entries; i++) free(g->entries[i].data);
    for (pool *p = g->pool, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(g->entries);
    free(g->tensors);
    free(g->types);
    free(g->by_name);
    bk_file_close(&g->file);
    free(g);
}

const char *bk_gguf_path(const bk_gguf *g)
{
    return g->file.path;
}

static const entry *find(const bk_gguf *g, const char *key, bool array)
{
    const entry wanted = {.key = key};
    const entry *e = bsearch(&wanted, g->entries, g->n_entries, sizeof *e, entry_order);
    return e && e->array == array ? e : NULL;
}

bool bk_gguf_has(const bk_gguf *g, const char *key)
{
    return find(g, key, false) || find(g, key, true);
}

static int64_t int_at(const entry *e, int64_t i, int64_t otherwise)
{
    if (!e || i < 0 || (uint64_t)i >= e->n) return otherwise;
    const unsigned char *p = e->type == STRING ? NULL : (const unsigned char *)e->data + (size_t)i * size_of[e->type];
    switch (e->type) {
    case U8: return *p;
    case I8: return (int8_t)*p;
    case U16: return bk_load16(p);
    case I16: return (int16_t)bk_load16(p);
    case U32: return bk_load32(p);
    case I32: return (int32_t)bk_load32(p);
    case U64: return bk_load64(p) <= INT64_MAX ? (int64_t)bk_load64(p) : otherwise;
    case I64: return (int64_t)bk_load64(p);
    default: return otherwise;
    }
}

static double num_at(const entry *e, int64_t i, double otherwise)
{
    if (!e || i < 0 || (uint64_t)i >= e->n || e->type == STRING || e->type == BOOL) return otherwise;
    const unsigned char *p = (const unsigned char *)e->data + (size_t)i * size_of[e->type];
    double d;
    switch (e->type) {
    case F32: return bk_f32_of_bits(bk_load32(p));
    case F64: memcpy(&d, p, sizeof d); return d;
    case U64: return (double)bk_load64(p);
    default: return (double)int_at(e, i, 0);
    }
}

static const char *str_at(const entry *e, int64_t i, size_t *len)
{
    bool there = e && e->type == STRING && i >= 0 && (uint64_t)i < e->n;
    const text *t = there ? (const text *)e->data + i : NULL;
    if (len) *len = t ? t->len : 0;
    return t ? t->s : NULL;
}

int64_t bk_gguf_int(const bk_gguf *g, const char *key, int64_t otherwise)
{
    return int_at(find(g, key, false), 0, otherwise);
}

double bk_gguf_num(const bk_gguf *g, const char *key, double otherwise)
{
    return num_at(find(g, key, false), 0, otherwise);
}

bool bk_gguf_bool(const bk_gguf *g, const char *key, bool otherwise)
{
    const entry *e = find(g, key, false);
    return e && e->type == BOOL ? *(const unsigned char *)e->data != 0 : otherwise;
}

const char *bk_gguf_str(const bk_gguf *g, const char *key, size_t *len)
{
    return str_at(find(g, key, false), 0, len);
}

int64_t bk_gguf_array_len(const bk_gguf *g, const char *key)
{
    const entry *e = find(g, key, true);
    return e ? (int64_t)e->n : 0;
}

const char *bk_gguf_array_str(const bk_gguf *g, const char *key, int64_t i, size_t *len)
{
    return str_at(find(g, key, true), i, len);
}

double bk_gguf_array_num(const bk_gguf *g, const char *key, int64_t i, double otherwise)
{
    return num_at(find(g, key, true), i, otherwise);
}

int64_t bk_gguf_array_int(const bk_gguf *g, const char *key, int64_t i, int64_t otherwise)
{
    return int_at(find(g, key, true), i, otherwise);
}

int64_t bk_gguf_tensor_count(const bk_gguf *g)
{
    return (int64_t)g->n_tensors;
}

const bk_gguf_tensor *bk_gguf_tensor_at(const bk_gguf *g, int64_t i)
{
    return &g->tensors[i];
}

const bk_gguf_tensor *bk_gguf_find(const bk_gguf *g, const char *name)
{
    const bk_gguf_tensor wanted = {.name = name}, *key = &wanted;
    const bk_gguf_tensor **t = bsearch(&key, g->by_name, g->n_tensors, sizeof *g->by_name, name_order);
    return t ? *t : NULL;
}

bk_status bk_gguf_read_rows(const bk_gguf *g, const bk_gguf_tensor *t, int64_t row0, int64_t rows, float *dst,
                            bk_error *err)
{
    const bk_gguf_type *type = g->types[t - g->tensors];
    int64_t all = 1, last = t->dim[t->ndim - 1];
    for (int i = 0; i < t->ndim - 1; i++) all *= t->dim[i];
    if (!type->dequant)
        return bk_fail(err, BK_EUNSUP,
                       "%s: tensor '%s' is of type %s; brick reads F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, "
                       "Q5_K and Q6_K",
                       g->file.path, t->name, t->type);
    if (row0 < 0 || rows < 0 || row0 > all || rows > all - row0)
        return bk_fail(err, BK_EINVAL, "%s: tensor '%s' has %lld rows, [%lld, %lld + %lld) asked for", g->file.path,
                       t->name, (long long)all, (long long)row0, (long long)row0, (long long)rows);
    unsigned char buf[BUFFER];
    int64_t blocks = rows * (last / type->block), room = BUFFER / type->bytes;
    uint64_t at = t->offset + (uint64_t)(row0 * (last / type->block)) * (uint64_t)type->bytes;
    for (int64_t n; blocks > 0; blocks -= n) {
        n = blocks < room ? blocks : room;
        size_t bytes = (size_t)n * (size_t)type->bytes;
        BK_TRY(bk_file_read(&g->file, at, buf, bytes, err));
        type->dequant(buf, dst, n);
        dst += n * type->block, at += bytes;
    }
    return BK_OK;
}
