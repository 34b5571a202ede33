#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (1u << 16)

static bk_status no_memory(bk_error *err, const char *path)
{
    return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
}

bk_status bk_file_open(bk_file *f, const char *path, bk_error *err)
{
    *f = (bk_file){.fd = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for the other end of a FIFO */
    if (fd < 0) return bk_fail_errno(err, "%s: cannot open", path);
    struct stat st;
    bk_status status = BK_OK;
    if (fstat(fd, &st) != 0)
        status = bk_fail_errno(err, "%s: cannot read", path);
    else if (!S_ISREG(st.st_mode))
        status =
            bk_fail(err, BK_EIO, "%s: is %s, not a file", path, S_ISDIR(st.st_mode) ? "a folder" : "a pipe or device");
    else if (!(f->path = strdup(path)))
        status = no_memory(err, path);
    if (status) {
        close(fd);
        return status;
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    return BK_OK;
}

void bk_file_close(bk_file *f)
{
    if (f->path) close(f->fd);
    free(f->path);
    *f = (bk_file){.fd = -1};
}

bk_status bk_file_read(const bk_file *f, uint64_t offset, void *dst, size_t n, bk_error *err)
{
    if (offset > f->size || n > f->size - offset)
        return bk_fail(err, BK_EFORMAT, "%s: cut off: %zu bytes wanted at %llu of %llu", f->path, n,
                       (unsigned long long)offset, (unsigned long long)f->size);
    for (char *p = dst; n > 0;) {
        ssize_t got = pread(f->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return bk_fail_errno(err, "%s: cannot read at %llu", f->path, (unsigned long long)offset);
        if (got == 0) return bk_fail(err, BK_EFORMAT, "%s: was cut off while it was read", f->path);
        p += got, offset += (uint64_t)got, n -= (size_t)got;
    }
    return BK_OK;
}

bk_status bk_file_slurp(const char *path, size_t limit, char **text, size_t *len, bk_error *err)
{
    *text = NULL, *len = 0;
    bk_file f;
    BK_TRY(bk_file_open(&f, path, err));
    bk_status status = BK_OK;
    char *buf = NULL;
    if (f.size > limit)
        status =
            bk_fail(err, BK_EFORMAT, "%s: %llu bytes, at most %zu are read", path, (unsigned long long)f.size, limit);
    else if (f.size >= SIZE_MAX || !(buf = malloc((size_t)f.size + 1)))
        status = no_memory(err, path);
    else
        status = bk_file_read(&f, 0, buf, (size_t)f.size, err);
    if (status == BK_OK) {
        buf[f.size] = 0;
        *text = buf, *len = (size_t)f.size;
    } else {
        free(buf);
    }
    bk_file_close(&f);
    return status;
}

/* fsync of the folder that holds `path`, without which a rename may not survive a power cut. */
static bk_status sync_folder_of(const char *path, bk_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir) return no_memory(err, path);
    bk_status status = BK_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: a file system without fsync for folders */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) status = bk_fail_errno(err, "%s: cannot sync the folder", dir);
    if (fd >= 0) close(fd);
    free(dir);
    return status;
}

/* *fd: the file at PATH, held against other writers, who would write into it or rename it half written: as long as it is open, and no longer if its
 * owner dies. File systems without locks are taken as they are. */
static bk_status open_alone(const char *path, int *fd, bk_error *err)
{
    struct stat held, there;
    for (int try = 0; try < 100; try++) {
        *fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (*fd < 0) return bk_fail_errno(err, "%s: cannot create", path);
        bool busy = flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (busy) {
            close(*fd);
            return bk_fail(err, BK_EINVAL, "%s: another process is writing this file", path);
        }
        /* What was locked may have got its final name meanwhile. */
        bool same = fstat(*fd, &held) == 0 && stat(path, &there) == 0 && held.st_ino == there.st_ino && held.st_dev == there.st_dev;
        if (same && ftruncate(*fd, 0) == 0) return BK_OK;
        bk_status status = same ? bk_fail_errno(err, "%s: cannot empty", path) : BK_OK;
        close(*fd);
        BK_TRY(status);
    }
    return bk_fail(err, BK_EIO, "%s: is renamed by others again and again", path);
}

bk_status bk_writer_open(bk_writer *w, const char *path, bk_error *err)
{
    *w = (bk_writer){.fd = -1};
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return bk_fail(err, BK_EINVAL, "%s: exists and is no regular file", path);
    w->path = strdup(path);
    if (!w->path || asprintf(&w->partial, "%s.partial", path) < 0) {
        w->partial = NULL;
        bk_writer_abort(w);
        return no_memory(err, path);
    }
    bk_status status = open_alone(w->partial, &w->fd, err);
    if (!status) return BK_OK;
    w->fd = -1;
    free(w->partial);
    w->partial = NULL; /* what stands there is not ours to remove */
    bk_writer_abort(w);
    return status;
}

bk_status bk_writer_put(bk_writer *w, const void *data, size_t n, bk_error *err)
{
    for (const char *p = data; n > 0;) {
        ssize_t put = write(w->fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return bk_fail_errno(err, "%s: cannot write at %llu", w->partial, (unsigned long long)w->written);
        p += put, n -= (size_t)put, w->written += (uint64_t)put;
    }
    return BK_OK;
}

/* Closing comes last: it frees the name for other writers. */
bk_status bk_writer_commit(bk_writer *w, bk_error *err)
{
    bk_status status = BK_OK;
    if (fsync(w->fd) != 0 && errno != EINVAL) status = bk_fail_errno(err, "%s: cannot sync", w->partial);
    if (status == BK_OK && rename(w->partial, w->path) != 0) status = bk_fail_errno(err, "%s: cannot rename to %s", w->partial, w->path);
    if (status == BK_OK) {
        free(w->partial);
        w->partial = NULL;
        int fd = w->fd;
        w->fd = -1;
        if (close(fd) != 0) status = bk_fail_errno(err, "%s: cannot close", w->path);
    }
    if (status == BK_OK) status = sync_folder_of(w->path, err);
    bk_writer_abort(w);
    return status;
}

void bk_writer_abort(bk_writer *w)
{
    if (w->partial) unlink(w->partial);
    if (w->fd >= 0 && w->path) close(w->fd);
    free(w->partial);
    free(w->path);
    *w = (bk_writer){.fd = -1};
}

bk_status bk_write_file(const char *path, const void *data, size_t n, bk_error *err)
{
    bk_writer w;
    BK_TRY(bk_writer_open(&w, path, err));
    bk_status status = bk_writer_put(&w, data, n, err);
    if (status == BK_OK) return bk_writer_commit(&w, err);
    bk_writer_abort(&w);
    return status;
}

bk_status bk_copy_file(const char *from, const char *to, bk_error *err)
{
    bk_file f;
    bk_writer w;
    BK_TRY(bk_file_open(&f, from, err));
    bk_status status = bk_writer_open(&w, to, err);
    char buf[CHUNK];
    for (uint64_t at = 0; status == BK_OK && at < f.size;) {
        size_t n = f.size - at < sizeof buf ? (size_t)(f.size - at) : sizeof buf;
        status = bk_file_read(&f, at, buf, n, err);
        if (status == BK_OK) status = bk_writer_put(&w, buf, n, err);
        at += n;
    }
    bk_file_close(&f);
    if (status == BK_OK) return bk_writer_commit(&w, err);
    bk_writer_abort(&w);
    return status;
}

bk_status bk_mkdir_p(const char *path, bk_error *err)
{
    char *p = strdup(path);
    if (!p) return no_memory(err, path);
    bk_status status = BK_OK;
    for (char *s = p; status == BK_OK && *s;) {
        s += strspn(s, "/");
        s += strcspn(s, "/");
        char end = *s;
        *s = 0;
        int why = *p && mkdir(p, 0777) != 0 ? errno : 0;
        if (why && !bk_is_dir(p)) { /* which sets errno too */
            errno = why;
            status = bk_fail_errno(err, "%s: cannot create the folder", p);
        }
        *s = end;
    }
    free(p);
    return status;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

bk_status bk_remove_tree(const char *path, bk_error *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return BK_OK;
    return bk_fail_errno(err, "%s: cannot remove", path);
}

bk_status bk_rename(const char *from, const char *to, bk_error *err)
{
    if (rename(from, to) != 0) return bk_fail_errno(err, "%s: cannot rename to %s", from, to);
    return sync_folder_of(to, err);
}

bk_status bk_sync(const char *path, bk_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bk_status status = fd >= 0 && fsync(fd) == 0 ? BK_OK : bk_fail_errno(err, "%s: cannot sync", path);
    if (fd >= 0) close(fd);
    return status;
}

static bool is_one_of(const char *name, const char *const *list)
{
    if (!strcmp(name, ".") || !strcmp(name, "..")) return true;
    while (*list && strcmp(name, *list)) list++;
    return *list != NULL;
}

bk_status bk_dir_other(const char *dir, const char *const *ours, char *found, size_t size, bk_error *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d) return bk_fail_errno(err, "%s", dir);
    do e = readdir(d);
    while (e && is_one_of(e->d_name, ours));
    snprintf(found, size, "%s", e ? e->d_name : "");
    closedir(d);
    return BK_OK;
}

bool bk_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool bk_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

char *bk_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    char *path;
    return asprintf(&path, "%s%s%s", dir, n == 0 || dir[n - 1] == '/' ? "" : "/", name) < 0 ? NULL : path;
}

struct bk_sha256 {
    EVP_MD_CTX *md;
};

bk_sha256 *bk_sha256_new(void)
{
    bk_sha256 *h = malloc(sizeof *h);
    if (!h) return NULL;
    h->md = EVP_MD_CTX_new();
    if (h->md && EVP_DigestInit_ex(h->md, EVP_sha256(), NULL) == 1) return h;
    EVP_MD_CTX_free(h->md);
    free(h);
    return NULL;
}

void bk_sha256_put(bk_sha256 *h, const void *data, size_t n)
{
    EVP_DigestUpdate(h->md, data, n);
}

void bk_sha256_end(bk_sha256 *h, char hex[65])
{
    unsigned char sum[EVP_MAX_MD_SIZE] = {0};
    EVP_DigestFinal_ex(h->md, sum, NULL);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    EVP_MD_CTX_free(h->md);
    free(h);
}

bk_status bk_sha256_put_file(bk_sha256 *h, const char *path, bk_error *err)
{
    bk_file f;
    BK_TRY(bk_file_open(&f, path, err));
    bk_status status = BK_OK;
    char buf[CHUNK];
    for (uint64_t at = 0; status == BK_OK && at < f.size;) {
        size_t n = f.size - at < sizeof buf ? (size_t)(f.size - at) : sizeof buf;
        status = bk_file_read(&f, at, buf, n, err);
        if (status == BK_OK) bk_sha256_put(h, buf, n);
        at += n;
    }
    bk_file_close(&f);
    return status;
}

bk_status bk_sha256_bytes(const void *data, size_t n, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, data, n);
    bk_sha256_end(h, hex);
    return BK_OK;
}

bk_status bk_sha256_file(const char *path, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return no_memory(err, path);
    bk_status status = bk_sha256_put_file(h, path, err);
    bk_sha256_end(h, hex);
    if (status) hex[0] = 0;
    return status;
}
