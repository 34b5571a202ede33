#include "io/sums.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"

enum { DIGITS = 64, LIST_MAX = 1 << 22 };

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static bool is_listed(const char *path, const char *name, const char *const *but)
{
    struct stat st;
    if (!strcmp(name, BK_SUMS_NAME) || ends_with(name, ".partial")) return false;
    for (; but && *but; but++)
        if (!strcmp(name, *but)) return false;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bk_status add_line(FILE *to, const char *dir, const char *name, const char *const *but, bk_error *err)
{
    char hex[DIGITS + 1], *path = bk_path_join(dir, name);
    if (!path) return bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    bk_status st = BK_OK;
    if (is_listed(path, name, but)) {
        st = bk_sha256_file(path, hex, err);
        if (!st) fprintf(to, "%s  %s\n", hex, name);
    }
    free(path);
    return st;
}

bk_status bk_sums_of(const char *dir, const char *const *but, char **text, bk_error *err)
{
    struct dirent **entry = NULL;
    size_t len;
    *text = NULL;
    int n = scandir(dir, &entry, NULL, by_name);
    if (n < 0) return bk_fail_errno(err, "%s: cannot list", dir);
    FILE *to = open_memstream(text, &len);
    bk_status st = to ? BK_OK : bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    for (int i = 0; i < n; i++) {
        if (!st) st = add_line(to, dir, entry[i]->d_name, but, err);
        free(entry[i]);
    }
    free(entry);
    bool bad = to && ferror(to); /* which fclose need not tell */
    if (to && (fclose(to) != 0 || bad) && !st) st = bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    if (!st) return BK_OK;
    free(*text);
    *text = NULL;
    return st;
}

bk_status bk_sums_write(const char *dir, bk_error *err)
{
    char *text, *path = bk_path_join(dir, BK_SUMS_NAME);
    if (!path) return bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    bk_status st = bk_sums_of(dir, NULL, &text, err);
    if (!st) st = bk_write_file(path, text, strlen(text), err);
    if (!st) free(text);
    free(path);
    return st;
}

bool bk_sums_there(const char *dir)
{
    char *path = bk_path_join(dir, BK_SUMS_NAME);
    bool there = path && bk_exists(path);
    free(path);
    return there;
}

/* Reads a file, if it is not too long for that. */
static bk_status check_file(const char *path, const char *digits, int64_t most, bk_error *err)
{
    char hex[DIGITS + 1];
    struct stat st;
    if (!bk_exists(path)) return bk_fail(err, BK_EFORMAT, "%s: is missing, though " BK_SUMS_NAME " lists it", path);
    if (stat(path, &st) == 0 && st.st_size > most) return BK_OK;
    BK_TRY(bk_sha256_file(path, hex, err));
    if (!strncmp(hex, digits, DIGITS)) return BK_OK;
    return bk_fail(err, BK_EFORMAT, "%s: was changed or damaged: its SHA-256 is not that of " BK_SUMS_NAME, path);
}

static bk_status check_line(const char *dir, char *line, int64_t most, bk_error *err)
{
    char *name = line + DIGITS + 2;
    if (strspn(line, "0123456789abcdef") != DIGITS || strncmp(line + DIGITS, "  ", 2) || !*name || strchr(name, '/'))
        return bk_fail(err, BK_EFORMAT, "%s/" BK_SUMS_NAME ": is damaged: '%.80s'", dir, line);
    char *path = bk_path_join(dir, name);
    if (!path) return bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    bk_status st = check_file(path, line, most, err);
    free(path);
    return st;
}

static bk_status check_lines(const char *dir, char *text, size_t len, int64_t most, bk_error *err)
{
    if (!len || text[len - 1] != '\n' || strlen(text) != len) return bk_fail(err, BK_EFORMAT, "%s/" BK_SUMS_NAME ": is damaged", dir);
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = 0;
        BK_TRY(check_line(dir, line, most, err));
    }
    return BK_OK;
}

bk_status bk_sums_check_small(const char *dir, int64_t most, bk_error *err)
{
    char *text = NULL, *path = bk_path_join(dir, BK_SUMS_NAME);
    size_t len;
    if (!path) return bk_fail(err, BK_ENOMEM, "%s: out of memory", dir);
    bk_status st = bk_exists(path) ? bk_file_slurp(path, LIST_MAX, &text, &len, err) : bk_fail(err, BK_EFORMAT, "%s: is missing", path);
    if (!st) st = check_lines(dir, text, len, most, err);
    free(text);
    free(path);
    return st;
}

bk_status bk_sums_check(const char *dir, bk_error *err)
{
    return bk_sums_check_small(dir, INT64_MAX, err);
}
