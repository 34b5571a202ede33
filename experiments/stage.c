#include "experiments/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

const char *bk_cache_root(void)
{
    const char *root = getenv("BRICK_CACHE");
    return root && *root ? root : "cache";
}

bk_status bk_cache_make(bk_error *err)
{
    return bk_mkdir_p(bk_cache_root(), err) ? bk_error_prefix(err, "the folder of stages (BRICK_CACHE moves it)") : BK_OK;
}

static bk_status hash_of(const char *name, const char *depends, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, name, strlen(name) + 1);
    bk_sha256_put(h, depends, strlen(depends));
    bk_sha256_end(h, hex);
    return BK_OK;
}

/* Who waited for a lock whose file the holder then removed has locked nothing: true if `fd` is still the file at `path`. */
static bool is_at(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

static bk_status take_lock(bk_stage *s, bk_error *err)
{
    char path[BK_STAGE_PATH + 8];
    snprintf(path, sizeof path, "%s.lock", s->dir);
    for (;;) {
        s->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
        if (s->lock < 0) return bk_fail_errno(err, "%s", path);
        while (flock(s->lock, LOCK_EX) != 0)
            if (errno != EINTR) return bk_fail_errno(err, "locking %s", path);
        if (is_at(s->lock, path)) return BK_OK;
        close(s->lock);
    }
}

bk_status bk_stage_open(bk_stage *s, const char *name, const char *depends, bk_error *err)
{
    const char *root = bk_cache_root();
    *s = (bk_stage){.lock = -1};
    BK_TRY(hash_of(name, depends, s->hash, err));
    if (strlen(root) + strlen(name) + 32 > 4096) return bk_fail(err, BK_EINVAL, "BRICK_CACHE is too long");
    snprintf(s->dir, sizeof s->dir, "%s/%s-%.16s", root, name, s->hash);
    snprintf(s->work, sizeof s->work, "%s/%s-%.16s.partial", root, name, s->hash);
    s->done = bk_is_dir(s->dir);
    if (s->done) return BK_OK;
    BK_TRY(bk_cache_make(err));
    BK_TRY(take_lock(s, err));
    s->done = bk_is_dir(s->dir); /* another process may have made it meanwhile */
    if (s->done) return BK_OK;
    BK_TRY(bk_remove_tree(s->work, err));
    BK_TRY(bk_mkdir_p(s->work, err));
    char path[BK_STAGE_PATH + 16];
    snprintf(path, sizeof path, "%s/depends.txt", s->work);
    return bk_write_file(path, depends, strlen(depends), err);
}

bk_status bk_stage_commit(bk_stage *s, bk_error *err)
{
    BK_TRY(bk_rename(s->work, s->dir, err));
    s->done = true;
    return BK_OK;
}

void bk_stage_close(bk_stage *s)
{
    if (s->lock < 0) return;
    char path[BK_STAGE_PATH + 8];
    snprintf(path, sizeof path, "%s.lock", s->dir);
    if (!s->done) (void)!bk_remove_tree(s->work, NULL);
    unlink(path);
    close(s->lock);
    s->lock = -1;
}

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
