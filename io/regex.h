/* Regular expressions of tokenizers: written for Oniguruma, matched by PCRE2, over texts that may hold broken UTF-8. */
#ifndef BK_REGEX_H
#define BK_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "autograd/error.h"

typedef struct bk_regex bk_regex;
typedef struct bk_matcher bk_matcher; /* what one thread needs to match; the expressions themselves are shared */

/* `source` is an expression or, if literal, a string. BK_EFORMAT with the position if it is none, BK_EUNSUP if
 * Oniguruma reads it in another way. */
bk_status bk_regex_new(const char *source, size_t len, bool literal, bk_regex **out, bk_error *err) BK_MUST_USE;
void bk_regex_free(bk_regex *r);
const char *bk_regex_source(const bk_regex *r);

bk_status bk_matcher_new(bk_matcher **out, bk_error *err) BK_MUST_USE;
void bk_matcher_free(bk_matcher *m);

/* Called with consecutive parts [start, end) that cover the text, matches (which may be empty) and what lies between
 * them. */
typedef bk_status (*bk_part_fn)(void *ctx, size_t start, size_t end, bool match, bk_error *err);

/* Bytes that are no UTF-8 are never part of a match and bound the text for look-around. `offset` is where the text
 * stands in the user's, for messages: a match that needs more than PCRE2's limits (10^7 steps, 256 MiB) is BK_EFORMAT
 * there. */
bk_status bk_regex_parts(const bk_regex *r, bk_matcher *m, const char *text, size_t len, size_t offset, bk_part_fn part,
                         void *ctx, bk_error *err) BK_MUST_USE;

#endif
