#include "experiments/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/suggest.h"
#include "experiments/terminal.h"

/* One per program: where messages go. */
static struct {
    bk_log_level level;
    bool color;
    FILE *file;
} log_to = {.level = BK_LOG_INFO};

static const char *const level_names[] = {"trace", "debug", "info", "warn", "error"};

bk_status bk_log_init(bk_error *err)
{
    const char *no_color = getenv("NO_COLOR"), *wanted = getenv("BRICK_LOG");
    log_to.color = bk_terminal(2) && !(no_color && *no_color);
    if (!wanted || !*wanted) return BK_OK;
    for (int i = BK_LOG_TRACE; i <= BK_LOG_ERROR; i++) {
        if (strcmp(wanted, level_names[i]) != 0) continue;
        log_to.level = (bk_log_level)i;
        return BK_OK;
    }
    char near[128];
    return bk_fail(err, BK_EINVAL, "BRICK_LOG='%.40s' is not one of trace, debug, info, warn, error%s", wanted,
                   bk_suggest_text(wanted, level_names, 5, near, sizeof near));
}

bool bk_log_enabled(bk_log_level level)
{
    return level >= log_to.level;
}

static void write_stderr(bk_log_level level, const char *text)
{
    static const char *const colors[] = {"\033[2m", "\033[2m", "", "\033[33m", "\033[31m"};
    const char *color = log_to.color ? colors[level] : "", *off = *color ? "\033[0m" : "";
    const char *head = level == BK_LOG_ERROR ? "brick: " : level == BK_LOG_WARN ? "brick: warning: " : "";
    fprintf(stderr, "%s%s%s%s\n", color, head, text, off);
}

void bk_log(bk_log_level level, const char *fmt, ...)
{
    char line[2048], text[4096]; /* names of files and their contents may hold what a terminal would obey */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    bk_visible(line, strlen(line), text, sizeof text);
    if (bk_log_enabled(level)) {
        bk_progress_clear_line();
        write_stderr(level, text);
    }
    if (log_to.file && (level >= BK_LOG_DEBUG || bk_log_enabled(level))) {
        fprintf(log_to.file, "%-5s %s\n", level_names[level], text);
        fflush(log_to.file); /* an error sticks and shows when closing */
    }
}

bk_status bk_log_open(const char *path, bk_error *err)
{
    if (log_to.file) BK_TRY(bk_log_close(err));
    log_to.file = fopen(path, "ae");
    return log_to.file ? BK_OK : bk_fail_errno(err, "%s", path);
}

bk_status bk_log_close(bk_error *err)
{
    FILE *f = log_to.file;
    log_to.file = NULL;
    if (!f) return BK_OK;
    bool failed = ferror(f) != 0;
    if (fclose(f) != 0) return bk_fail_errno(err, "log.txt");
    return failed ? bk_fail(err, BK_ENOSPC, "log.txt: lines were lost: is the disk full?") : BK_OK;
}
