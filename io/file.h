/* Files: reading by position, writing that is complete or absent, hashes, paths. */
#ifndef BK_FILE_H
#define BK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"

/* A file open for reading; its size is fixed at open, reads beyond it are BK_EFORMAT ("cut off"). */
typedef struct bk_file {
    int fd;
    uint64_t size;
    char *path; /* as given, for messages */
} bk_file;

bk_status bk_file_open(bk_file *f, const char *path, bk_error *err) BK_MUST_USE; /* absent, a directory, unreadable: BK_EIO */
void bk_file_close(bk_file *f);
bk_status bk_file_read(const bk_file *f, uint64_t offset, void *dst, size_t n, bk_error *err) BK_MUST_USE;
/* The whole file, malloc'd, NUL-terminated; longer than `limit` is BK_EFORMAT. */
bk_status bk_file_slurp(const char *path, size_t limit, char **text, size_t *len, bk_error *err) BK_MUST_USE;

/* A file written as PATH.partial and renamed to PATH by commit, after fsync of file and folder; abort (or a failed commit) removes it. One process
 * (and one writer in it) at a time: BK_EINVAL for the others. */
typedef struct bk_writer {
    int fd;
    char *path, *partial;
    uint64_t written;
} bk_writer;

bk_status bk_writer_open(bk_writer *w, const char *path, bk_error *err) BK_MUST_USE; /* a folder, device or pipe at PATH: BK_EINVAL */
bk_status bk_writer_put(bk_writer *w, const void *data, size_t n, bk_error *err) BK_MUST_USE;
bk_status bk_writer_commit(bk_writer *w, bk_error *err) BK_MUST_USE;
void bk_writer_abort(bk_writer *w);

bk_status bk_write_file(const char *path, const void *data, size_t n, bk_error *err) BK_MUST_USE; /* open, put, commit */
bk_status bk_copy_file(const char *from, const char *to, bk_error *err) BK_MUST_USE;
bk_status bk_mkdir_p(const char *path, bk_error *err) BK_MUST_USE;
bk_status bk_remove_tree(const char *path, bk_error *err) BK_MUST_USE; /* absent is fine; never follows links */
/* Renames and fsyncs the folder that holds the new name. */
bk_status bk_rename(const char *from, const char *to, bk_error *err) BK_MUST_USE;
bk_status bk_sync(const char *path, bk_error *err) BK_MUST_USE; /* fsync of a file that others wrote */
/* The first entry of a folder that is none of `ours` (which ends with NULL), cut to what fits; "" if there is none. */
bk_status bk_dir_other(const char *dir, const char *const *ours, char *found, size_t size, bk_error *err) BK_MUST_USE;
bool bk_is_dir(const char *path);
bool bk_exists(const char *path);
/* "dir/name" malloc'd, NULL when memory is out. */
char *bk_path_join(const char *dir, const char *name) BK_MUST_USE;

/* SHA-256 (libcrypto), streaming; hex is 64 digits and a NUL. */
typedef struct bk_sha256 bk_sha256;
bk_sha256 *bk_sha256_new(void); /* NULL when memory is out */
void bk_sha256_put(bk_sha256 *h, const void *data, size_t n);
void bk_sha256_end(bk_sha256 *h, char hex[65]); /* frees h */
bk_status bk_sha256_put_file(bk_sha256 *h, const char *path, bk_error *err) BK_MUST_USE; /* the bytes of a file */
bk_status bk_sha256_bytes(const void *data, size_t n, char hex[65], bk_error *err) BK_MUST_USE;
bk_status bk_sha256_file(const char *path, char hex[65], bk_error *err) BK_MUST_USE;

#endif
