/* What verbs print: text that a terminal can show and a person can read, and JSON. */
#ifndef BK_PRINTABLE_H
#define BK_PRINTABLE_H

#include <stddef.h>
#include <stdio.h>

#include "io/json.h"
#include "io/tokenizer.h"

#define BK_PRINTABLE_ROOM 128

/* `n` bytes with control characters, directional marks, broken UTF-8, quotes and backslashes escaped (\n \t \" \\ \xNN
 * \u{NNNN}); what does not fit into `size` bytes (at least 4) is cut and ends with "...". Returns `to`. */
char *bk_printable(const char *s, size_t n, char *to, size_t size);
/* The same for text that stands without quotes: quotes and backslashes stay as they are. */
char *bk_visible(const char *s, size_t n, char *to, size_t size);

/* The bytes that a token stands for in the middle of a text (a space at its start stays), malloc'd; special tokens as they
 * are written. */
bk_status bk_token_text(const bk_tokenizer *t, int32_t id, char **text, size_t *len, bk_error *err) BK_MUST_USE;
/* The same, printable. */
bk_status bk_token_printable(const bk_tokenizer *t, int32_t id, char to[BK_PRINTABLE_ROOM], bk_error *err) BK_MUST_USE;

/* Bytes as a person reads them: "17 B", "4.2 MiB". Returns `to`. */
#define BK_BYTES_TEXT 32
char *bk_bytes_text(double bytes, char to[BK_BYTES_TEXT]);

/* Columns of a terminal that a text of one line takes; bytes that are no UTF-8 count as one each. */
int bk_text_width(const char *s);
/* A text in exactly `width` columns: filled with blanks, or cut. */
void bk_print_cell(FILE *to, const char *s, int width);

/* A word as a POSIX shell reads it back: in single quotes unless every character is plain. */
void bk_print_word(FILE *to, const char *word);
/* A field of a CSV table (RFC 4180): in quotes, which are doubled inside, where it must be. */
void bk_print_field(FILE *to, const char *text);

/* An object on stdout, on one line; frees it. BK_ENOMEM: it, or its text, could not be made. */
bk_status bk_print_json(bk_json *o, bk_error *err) BK_MUST_USE;

#endif
