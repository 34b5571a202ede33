/* A sticky error: the first failure wins and keeps its message; later ones are ignored. */
#ifndef BK_ERROR_H
#define BK_ERROR_H

#include "backends/status.h"

typedef struct bk_error {
    bk_status code;
    char msg[1024]; /* one line, valid UTF-8: what failed (file, block, tensor, index) and what to do */
} bk_error;

/* Records the first failure and returns `code`, so that callers write `return bk_fail(err, ...)`.
 * err may be NULL. Bytes that are not valid UTF-8 and control characters are replaced by '?'. */
bk_status bk_fail(bk_error *err, bk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Like bk_fail, with strerror(errno) appended; ENOSPC, EDQUOT and EFBIG become BK_ENOSPC, ENOMEM BK_ENOMEM. */
bk_status bk_fail_errno(bk_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of a recorded message, for callers that know the block or the file. */
bk_status bk_error_prefix(bk_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void bk_error_clear(bk_error *err);
const char *bk_status_name(bk_status code); /* "BK_EINVAL" ... */

/* Returns the first failure to the caller. */
#define BK_TRY(expr)                          \
    do {                                      \
        bk_status bk_try_status = (expr);     \
        if (bk_try_status) return bk_try_status; \
    } while (0)

#endif
