#include "experiments/text_buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void bk_buffer_add(bk_text_buffer *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && b->len + (size_t)n + 1 > b->room) {
        size_t room = 2 * (b->len + (size_t)n + 1);
        char *text = realloc(b->text, room);
        if (text) {
            b->text = text;
            b->room = room;
        } else {
            b->failed = true;
        }
    }
    if (n < 0 || b->failed) b->failed = true;
    else b->len += (size_t)vsnprintf(b->text + b->len, b->room - b->len, fmt, again);
    va_end(again);
}

bk_status bk_buffer_text(const bk_text_buffer *b, const char **text, bk_error *err)
{
    *text = b->text ? b->text : "";
    return b->failed ? bk_fail(err, BK_ENOMEM, "no memory") : BK_OK;
}

void bk_buffer_free(bk_text_buffer *b)
{
    free(b->text);
    *b = (bk_text_buffer){0};
}
