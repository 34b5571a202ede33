/* JSON documents: reading with checked getters, building, writing. A thin layer over jansson so that only io/ knows it. */
#ifndef BK_JSON_H
#define BK_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"

typedef struct json_t bk_json; /* owned by the document it came from; only roots are freed */

/* Reads a whole file or text; duplicate keys, NUL in keys, invalid UTF-8 and text after the value are errors (BK_EFORMAT, with line and
 * column). When an integer beyond 64 bits stands in the text (Hugging Face writes 1e30 that way), all its integers become reals. */
bk_status bk_json_load(const char *path, bk_json **out, bk_error *err) BK_MUST_USE;
bk_status bk_json_parse(const char *text, size_t len, const char *what, bk_json **out, bk_error *err) BK_MUST_USE;
void bk_json_free(bk_json *root); /* NULL is legal */

/* Members and elements, borrowed; NULL if absent or of another kind. */
const bk_json *bk_json_get(const bk_json *obj, const char *key);
const bk_json *bk_json_at(const bk_json *array, size_t i);
size_t bk_json_size(const bk_json *array_or_object);
/* Walks an object in file order: for (it = bk_json_first(o); it; it = bk_json_next(o, it)). */
void *bk_json_first(const bk_json *obj);
void *bk_json_next(const bk_json *obj, void *it);
const char *bk_json_key(void *it);
const bk_json *bk_json_value(void *it);

typedef enum { BK_JSON_NULL, BK_JSON_BOOL, BK_JSON_INT, BK_JSON_REAL, BK_JSON_STRING, BK_JSON_ARRAY, BK_JSON_OBJECT } bk_json_kind;
bk_json_kind bk_json_kind_of(const bk_json *v); /* NULL pointer counts as BK_JSON_NULL */
bool bk_json_bool(const bk_json *v, bool otherwise);
int64_t bk_json_int(const bk_json *v, int64_t otherwise); /* reals without fraction count */
double bk_json_num(const bk_json *v, double otherwise);
const char *bk_json_str(const bk_json *v, const char *otherwise); /* strings that hold NUL count as another kind */
const char *bk_json_bytes(const bk_json *v, size_t *len);         /* any string, with its length; NULL if it is none */

/* Building. Values given to set/push are owned by the container afterwards; a NULL value (out of memory) or a key
 * that is no UTF-8 is absorbed and shows later: dumping the document gives NULL. */
bk_json *bk_json_object(void);
bk_json *bk_json_array(void);
bk_json *bk_json_of_str(const char *s, size_t len); /* bytes that are no valid UTF-8 become U+FFFD, NUL is kept as \u0000 */
bk_json *bk_json_of_text(const char *s); /* the same of a string; NULL gives null */
bk_json *bk_json_of_int(int64_t v);
bk_json *bk_json_of_num(double v); /* NaN and Inf become null */
bk_json *bk_json_of_nums(const double *v, int64_t n); /* an array of n */
bk_json *bk_json_of_bool(bool v);
bk_json *bk_json_null(void);
void bk_json_set(bk_json *obj, const char *key, bk_json *value);
void bk_json_push(bk_json *array, bk_json *value);

/* Text of a value (malloc'd, for free()), members in the order they were set, reals with the fewest digits that read back as the same
 * double. indent 0 = one line. NULL when memory is, or was while building, out. */
char *bk_json_dump(const bk_json *v, int indent);
/* Writes it atomically (io/file.h), with a newline at the end. */
bk_status bk_json_save(const bk_json *v, const char *path, bk_error *err) BK_MUST_USE;

#endif
