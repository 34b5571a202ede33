/* SHA256SUMS of a folder: a line "<64 digits>  <name>" for each of its files, as `sha256sum -c SHA256SUMS` reads it. */
#ifndef BK_SUMS_H
#define BK_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_SUMS_NAME "SHA256SUMS"

/* The lines of all files in DIR (not in folders below it), sorted by name, malloc'd. Left out: SHA256SUMS, what is being written (X.partial), and
 * the names in `but`, a list that ends with NULL. */
bk_status bk_sums_of(const char *dir, const char *const *but, char **text, bk_error *err) BK_MUST_USE;
/* Writes them into DIR/SHA256SUMS. */
bk_status bk_sums_write(const char *dir, bk_error *err) BK_MUST_USE;
bool bk_sums_there(const char *dir);
/* Reads every file that is listed: one that is missing or has other bytes is BK_EFORMAT and named, as is a SHA256SUMS that is damaged or missing. */
bk_status bk_sums_check(const char *dir, bk_error *err) BK_MUST_USE;
/* The same in little time: files of more than `most` bytes only have to be there. */
bk_status bk_sums_check_small(const char *dir, int64_t most, bk_error *err) BK_MUST_USE;

#endif
