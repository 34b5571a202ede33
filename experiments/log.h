/* Messages for people, on stderr and in the run's log.txt. Level from BRICK_LOG (default info); the file gets debug and above. */
#ifndef BK_LOG_H
#define BK_LOG_H

#include <stdbool.h>

#include "autograd/error.h"

typedef enum { BK_LOG_TRACE, BK_LOG_DEBUG, BK_LOG_INFO, BK_LOG_WARN, BK_LOG_ERROR } bk_log_level;

/* Reads BRICK_LOG and NO_COLOR; a level that does not exist is BK_EINVAL with a suggestion. */
bk_status bk_log_init(bk_error *err) BK_MUST_USE;
void bk_log(bk_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool bk_log_enabled(bk_log_level level);
/* Appends everything that is logged from now on to a file as well. */
bk_status bk_log_open(const char *path, bk_error *err) BK_MUST_USE;
/* BK_ENOSPC or BK_EIO if a line could not be written. Without an open file: BK_OK. */
bk_status bk_log_close(bk_error *err) BK_MUST_USE;

#endif
