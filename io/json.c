#include "io/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "io/file.h"

#define MAX_FILE ((size_t)256 << 20)

bk_status bk_json_parse(const char *text, size_t len, const char *what, bk_json **out, bk_error *err)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_error_t e;
    *out = json_loadb(text, len, flags, &e);
    if (!*out && json_error_code(&e) == json_error_numeric_overflow)
        *out = json_loadb(text, len, flags | JSON_DECODE_INT_AS_REAL, &e);
    if (*out) return BK_OK;
    if (json_error_code(&e) == json_error_out_of_memory) return bk_fail(err, BK_ENOMEM, "%s: out of memory", what);
    return bk_fail(err, BK_EFORMAT, "%s:%d:%d: %s", what, e.line < 1 ? 1 : e.line, e.column < 1 ? 1 : e.column, e.text);
}

bk_status bk_json_load(const char *path, bk_json **out, bk_error *err)
{
    char *text;
    size_t len;
    *out = NULL;
    BK_TRY(bk_file_slurp(path, MAX_FILE, &text, &len, err));
    bk_status status = bk_json_parse(text, len, path, out, err);
    free(text);
    return status;
}

/* A container that lost a member is marked by the reference count that jansson gives to its constants, which are never
 * freed. */
static const size_t LOST = (size_t)-1;

static void unmark(json_t *v)
{
    size_t i;
    json_t *member;
    if (json_is_array(v)) json_array_foreach(v, i, member) unmark(member);
    for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) unmark(json_object_iter_value(it));
    if ((json_is_array(v) || json_is_object(v)) && v->refcount == LOST) v->refcount = 1;
}

void bk_json_free(bk_json *root)
{
    unmark(root);
    json_decref(root);
}

const bk_json *bk_json_get(const bk_json *obj, const char *key)
{
    return json_object_get(obj, key);
}

const bk_json *bk_json_at(const bk_json *array, size_t i)
{
    return json_array_get(array, i);
}

size_t bk_json_size(const bk_json *v)
{
    return json_is_object(v) ? json_object_size(v) : json_array_size(v);
}

void *bk_json_first(const bk_json *obj)
{
    return json_object_iter((json_t *)obj);
}

void *bk_json_next(const bk_json *obj, void *it)
{
    return json_object_iter_next((json_t *)obj, it);
}

const char *bk_json_key(void *it)
{
    return json_object_iter_key(it);
}

const bk_json *bk_json_value(void *it)
{
    return json_object_iter_value(it);
}

bk_json_kind bk_json_kind_of(const bk_json *v)
{
    if (!v) return BK_JSON_NULL;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return BK_JSON_OBJECT;
    case JSON_ARRAY: return BK_JSON_ARRAY;
    case JSON_STRING: return BK_JSON_STRING;
    case JSON_INTEGER: return BK_JSON_INT;
    case JSON_REAL: return BK_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return BK_JSON_BOOL;
    default: return BK_JSON_NULL;
    }
}

bool bk_json_bool(const bk_json *v, bool otherwise)
{
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

int64_t bk_json_int(const bk_json *v, int64_t otherwise)
{
    if (json_is_integer(v)) return json_integer_value(v);
    if (!json_is_real(v)) return otherwise;
    double r = json_real_value(v);
    return r == floor(r) && fabs(r) < 0x1p63 ? (int64_t)r : otherwise;
}

double bk_json_num(const bk_json *v, double otherwise)
{
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

const char *bk_json_bytes(const bk_json *v, size_t *len)
{
    *len = json_string_length(v);
    return json_string_value(v);
}

const char *bk_json_str(const bk_json *v, const char *otherwise)
{
    size_t len;
    const char *s = bk_json_bytes(v, &len);
    return s && strlen(s) == len ? s : otherwise;
}

bk_json *bk_json_object(void)
{
    return json_object();
}

bk_json *bk_json_array(void)
{
    return json_array();
}

bk_json *bk_json_of_str(const char *s, size_t len)
{
    if (len > SIZE_MAX / 3 - 1) return NULL;
    char *clean = malloc(3 * len + 1); /* a bad byte becomes the three of U+FFFD */
    if (!clean) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t got = utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(len - i), &cp);
        memcpy(clean + n, got > 0 ? s + i : "\xef\xbf\xbd", got > 0 ? (size_t)got : 3);
        n += got > 0 ? (size_t)got : 3;
        i += got > 0 ? (size_t)got : 1;
    }
    json_t *v = json_stringn(clean, n);
    free(clean);
    return v;
}

bk_json *bk_json_of_text(const char *s)
{
    return s ? bk_json_of_str(s, strlen(s)) : bk_json_null();
}

bk_json *bk_json_of_int(int64_t v)
{
    return json_integer(v);
}

bk_json *bk_json_of_num(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

bk_json *bk_json_of_nums(const double *v, int64_t n)
{
    bk_json *a = bk_json_array();
    for (int64_t i = 0; i < n; i++) bk_json_push(a, bk_json_of_num(v[i]));
    return a;
}

bk_json *bk_json_of_bool(bool v)
{
    return json_boolean(v);
}

bk_json *bk_json_null(void)
{
    return json_null();
}

void bk_json_set(bk_json *obj, const char *key, bk_json *value)
{
    if (json_object_set_new(obj, key, value) != 0 && obj) obj->refcount = LOST;
}

void bk_json_push(bk_json *array, bk_json *value)
{
    if (json_array_append_new(array, value) != 0 && array) array->refcount = LOST;
}

static void put_break(FILE *f, int indent, int depth)
{
    if (indent > 0) fprintf(f, "\n%*s", indent * depth, "");
}

static void put_real(FILE *f, double v)
{
    char s[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) break;
    }
    fputs(s, f);
    if (!strpbrk(s, ".e")) fputs(".0", f); /* a real stays a real */
}

static bool put_scalar(FILE *f, const json_t *v)
{
    if (json_is_real(v)) {
        put_real(f, json_real_value(v));
        return true;
    }
    return json_dumpf(v, f, JSON_ENCODE_ANY) == 0;
}

static bool put(FILE *f, const json_t *v, int indent, int depth)
{
    bool ok = v && (v->refcount != LOST || !(json_is_object(v) || json_is_array(v)));
    if (!ok || bk_json_size(v) == 0) return ok && put_scalar(f, v);
    const char *comma = indent > 0 ? "," : ", ", *sep = "";
    if (json_is_array(v)) {
        putc('[', f);
        for (size_t i = 0; ok && i < json_array_size(v); i++, sep = comma) {
            fputs(sep, f);
            put_break(f, indent, depth + 1);
            ok = put(f, json_array_get(v, i), indent, depth + 1);
        }
    } else {
        putc('{', f);
        for (void *it = bk_json_first(v); ok && it; it = bk_json_next(v, it), sep = comma) {
            fputs(sep, f);
            put_break(f, indent, depth + 1);
            json_t *key = json_string(bk_json_key(it));
            ok = key && put_scalar(f, key);
            json_decref(key);
            fputs(": ", f);
            ok = ok && put(f, bk_json_value(it), indent, depth + 1);
        }
    }
    put_break(f, indent, depth);
    putc(json_is_array(v) ? ']' : '}', f);
    return ok;
}

char *bk_json_dump(const bk_json *v, int indent)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return NULL;
    bool ok = put(f, v, indent, 0);
    ok = !ferror(f) && ok;
    if (fclose(f) == 0 && ok) return text;
    free(text);
    return NULL;
}

bk_status bk_json_save(const bk_json *v, const char *path, bk_error *err)
{
    char *text = bk_json_dump(v, 2);
    if (!text) return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
    size_t n = strlen(text);
    text[n] = '\n'; /* in place of the NUL */
    bk_status status = bk_write_file(path, text, n + 1, err);
    free(text);
    return status;
}
