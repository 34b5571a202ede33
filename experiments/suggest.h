/* "did you mean ...": the nearest of a list of words. */
#ifndef BK_SUGGEST_H
#define BK_SUGGEST_H

#include <stddef.h>

/* The word nearest to `typed` by edits (insert, delete, replace, swap of neighbours), case ignored; NULL when none is near. */
const char *bk_suggest(const char *typed, const char *const *words, size_t n);
/* ", did you mean 'word'?" or "" if none is near; `to` holds `size` bytes and is returned. */
char *bk_suggest_text(const char *typed, const char *const *words, size_t n, char *to, size_t size);

#endif
