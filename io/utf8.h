/* UTF-8, as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef BK_UTF8_H
#define BK_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s[0 .. n), 0 if it is broken or n is 0. cp (may be NULL) gets the code point. */
size_t bk_utf8_char(const char *s, size_t n, uint32_t *cp);
/* Bytes of the longest run at s that is wholly valid (*valid) or wholly broken; 0 only if n is 0. */
size_t bk_utf8_run(const char *s, size_t n, bool *valid);
/* Columns of a terminal that a character takes: 0, 1 or 2. */
int bk_utf8_columns(uint32_t cp);
/* Writes a code point (which must be valid) and returns its bytes. */
size_t bk_utf8_put(uint32_t cp, char out[4]);

#endif
