/* Text that grows by printing: pages, scripts, what a stage depends on. Running out of memory sticks and is asked for once, at
 * the end. io/buffer.h is the other kind: bytes as they are, each call checked, given away in the end. */
#ifndef BK_TEXT_BUFFER_H
#define BK_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "autograd/error.h"

typedef struct bk_text_buffer {
    char *text; /* NULL while nothing was added */
    size_t len, room;
    bool failed; /* out of memory */
} bk_text_buffer;

void bk_buffer_add(bk_text_buffer *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The text, "" if nothing was added; BK_ENOMEM if something could not be. Lives as long as the buffer. */
bk_status bk_buffer_text(const bk_text_buffer *b, const char **text, bk_error *err) BK_MUST_USE;
void bk_buffer_free(bk_text_buffer *b);

#endif
