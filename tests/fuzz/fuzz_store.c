/* libFuzzer target: any bytes as an HDF5 file, read as far as brick reads one. Only the formats with checksums, which brick writes: in the
 * older ones HDF5 1.10 crashes on damage by itself (docs/hdf5-layout.md). */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* HDF5 itself loses memory when a file turns out to be damaged half way. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

static bk_status see(void *user, const double *v, int64_t first, int64_t n, bk_error *err)
{
    (void)first, (void)err;
    for (int64_t i = 0; i < n; i++) *(double *)user += v[i];
    return BK_OK;
}

static bk_status see_attr(void *user, const char *name, const char *text, bool is_text, bk_error *err)
{
    (void)is_text, (void)err;
    *(double *)user += name[0] + text[0];
    return BK_OK;
}

static void read_all(bk_store *s)
{
    int64_t n;
    double sum = 0;
    const bk_store_object *o = bk_store_objects(s, &n);
    for (int64_t i = 0; i < n && i < 64; i++) {
        (void)!bk_store_attrs(s, o[i].path, see_attr, &sum, NULL);
        bk_dset *d;
        float sample[4096];
        if (!o[i].group && bk_dset_open(&d, s, o[i].path, NULL) == BK_OK && bk_dset_info_of(d)->sample_len <= 4096)
            (void)!bk_dset_read(d, 0, 1, sample, NULL);
        if (o[i].numeric && o[i].elements < 1 << 20) (void)!bk_store_scan(s, o[i].path, see, &sum, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (size > 8 && data[8] < 2) return 0; /* the superblock's version */
    if (fd < 0) fd = memfd_create("fuzz", 0);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) return 0;
    bk_store *s;
    bk_error err = {0};
    if (bk_store_open(&s, path, NULL, &err) != BK_OK) return 0;
    read_all(s);
    bk_store_close(s);
    return 0;
}
