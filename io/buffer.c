#include "io/buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bk_status bk_buffer_put(bk_buffer *b, const char *s, size_t n, bk_error *err)
{
    if (n > SIZE_MAX / 2 - b->len) return bk_fail(err, BK_ENOMEM, "a text of more than %zu bytes", SIZE_MAX / 2);
    if (b->len + n > b->cap) {
        size_t cap = 2 * (b->len + n);
        char *data = realloc(b->data, cap);
        if (!data) return bk_fail(err, BK_ENOMEM, "no memory for a text of %zu bytes", cap);
        b->data = data;
        b->cap = cap;
    }
    if (n) memcpy(b->data + b->len, s, n);
    b->len += n;
    return BK_OK;
}
