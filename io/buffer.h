/* A growing byte buffer. */
#ifndef BK_BUFFER_H
#define BK_BUFFER_H

#include <stddef.h>

#include "autograd/error.h"

typedef struct bk_buffer {
    char *data; /* NULL while empty; malloc'd, given away or freed by the owner */
    size_t len, cap;
} bk_buffer;

bk_status bk_buffer_put(bk_buffer *b, const char *s, size_t n, bk_error *err) BK_MUST_USE;

#endif
