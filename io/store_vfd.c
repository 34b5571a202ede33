#include "io/store_vfd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

typedef struct {
    H5FD_t pub; /* HDF5's own part, first */
    bk_channel *ch;
    haddr_t eoa, eof; /* end of what HDF5 has given out; end of what was written */
} vfd_file;

/* What the access list carries: HDF5 copies these bytes. */
typedef struct {
    bk_channel *ch;
} vfd_info;

static const haddr_t max_addr = ((haddr_t)1 << 62) - 1;

static H5FD_t *vfd_open(const char *name, unsigned flags, hid_t fapl, haddr_t max)
{
    (void)name, (void)max;
    const vfd_info *info = H5Pget_driver_info(fapl);
    if (!info || info->ch->in_use) return NULL;
    bk_channel *ch = info->ch;
    if ((flags & H5F_ACC_RDWR) && ch->write_fd < 0) return NULL;
    vfd_file *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->ch = ch;
    f->eof = ch->write_fd < 0 ? ch->size : 0; /* a file to be written starts empty */
    ch->in_use = true;
    return &f->pub;
}

static herr_t vfd_close(H5FD_t *file)
{
    vfd_file *f = (vfd_file *)file;
    f->ch->in_use = false;
    free(f);
    return 0;
}

static int vfd_cmp(const H5FD_t *a, const H5FD_t *b)
{
    uintptr_t x = (uintptr_t)((const vfd_file *)a)->ch, y = (uintptr_t)((const vfd_file *)b)->ch;
    return (x > y) - (x < y);
}

static herr_t vfd_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t vfd_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const vfd_file *)file)->eoa;
}

static herr_t vfd_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    ((vfd_file *)file)->eoa = addr;
    return 0;
}

static haddr_t vfd_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const vfd_file *)file)->eof;
}

static herr_t vfd_get_handle(H5FD_t *file, hid_t fapl, void **handle)
{
    (void)fapl;
    *handle = &((vfd_file *)file)->ch->read_fd;
    return 0;
}

static herr_t fail_with(bk_channel *ch, int e)
{
    if (!ch->error) ch->error = e;
    return -1;
}

static uint64_t le(const unsigned char *p, int n)
{
    uint64_t v = 0;
    while (n--) v = v << 8 | p[n];
    return v;
}

static herr_t read_fully(vfd_file *f, haddr_t addr, size_t size, void *buffer)
{
    char *p = buffer;
    for (size_t left = size; left > 0;) {
        ssize_t got = pread(f->ch->read_fd, p, left, (off_t)(addr + size - left));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_with(f->ch, got < 0 ? errno : EIO);
        p += got, left -= (size_t)got;
    }
    return 0;
}

/* The global heap is the one structure without a checksum, and HDF5 1.10 follows its sizes blindly. Its collections are recognised by their
 * signature, since HDF5 does not say what it reads here. Format specification 1.1, III.E. */
enum { HEAP_HEAD = 16, HEAP_LEAST = 4096 };

static bool heap_is_sound(const unsigned char *p, uint64_t size)
{
    for (uint64_t at = HEAP_HEAD; size - at >= HEAP_HEAD;) {
        uint64_t len = le(p + at + 8, 8), need = len;
        if (len > size) return false;
        if (le(p + at, 2) != 0) need = HEAP_HEAD + (len + 7) / 8 * 8; /* object 0 is the free space, head included */
        if (need < HEAP_HEAD || need > size - at) return false;
        at += need;
    }
    return true;
}

/* `p`, n bytes at addr, is sound if it is no heap. HDF5 reads the least size first and then the rest: we look at the whole in one go. */
static bool is_sound(vfd_file *f, haddr_t addr, const unsigned char *p, size_t n)
{
    static const uint64_t most = 1 << 26;
    if (n < HEAP_LEAST || memcmp(p, "GCOL\1", 5) != 0) return true; /* something else */
    uint64_t size = le(p + 8, 8);
    if (size < HEAP_LEAST || size > most || size > f->eof - addr) return false;
    if (size <= n) return heap_is_sound(p, size);
    unsigned char *whole = malloc(size);
    bool sound = whole && read_fully(f, addr, size, whole) == 0 && heap_is_sound(whole, size);
    free(whole);
    return sound;
}

static herr_t vfd_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *buffer)
{
    (void)type, (void)dxpl;
    vfd_file *f = (vfd_file *)file;
    if (addr > f->eof || size > f->eof - addr) return -1; /* damaged: an address beyond the end */
    if (read_fully(f, addr, size, buffer) < 0) return -1;
    return f->ch->write_fd >= 0 || is_sound(f, addr, buffer, size) ? 0 : -1;
}

/* After a failure nothing reaches the file, but HDF5 is told that all is well: its caller looks at ch->error. */
static herr_t vfd_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, const void *buffer)
{
    (void)type, (void)dxpl;
    vfd_file *f = (vfd_file *)file;
    if (addr > max_addr || size > max_addr - addr) return -1;
    haddr_t end = addr + size;
    for (const char *p = buffer; size > 0 && !f->ch->error;) {
        ssize_t put = pwrite(f->ch->write_fd, p, size, (off_t)addr);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail_with(f->ch, errno);
        else p += put, size -= (size_t)put, addr += (haddr_t)put;
    }
    if (end > f->eof) f->eof = end;
    return 0;
}

static herr_t vfd_truncate(H5FD_t *file, hid_t dxpl, hbool_t closing)
{
    (void)dxpl, (void)closing;
    vfd_file *f = (vfd_file *)file;
    if (f->ch->write_fd < 0 || f->eoa == f->eof) return 0;
    if (!f->ch->error && ftruncate(f->ch->write_fd, (off_t)f->eoa) != 0) fail_with(f->ch, errno);
    f->eof = f->eoa;
    return 0;
}

static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 13, 2)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)601,
#endif
    .name = "brick",
    .maxaddr = ((haddr_t)1 << 62) - 1,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(vfd_info),
    .open = vfd_open,
    .close = vfd_close,
    .cmp = vfd_cmp,
    .query = vfd_query,
    .get_eoa = vfd_get_eoa,
    .set_eoa = vfd_set_eoa,
    .get_eof = vfd_get_eof,
    .get_handle = vfd_get_handle,
    .read = vfd_read,
    .write = vfd_write,
    .truncate = vfd_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

hid_t bk_channel_driver(hid_t fapl, bk_channel *ch)
{
    hid_t id = H5FDregister(&driver);
    vfd_info info = {ch};
    if (id >= 0 && H5Pset_driver(fapl, id, &info) >= 0) return id;
    if (id >= 0) H5FDunregister(id);
    return -1;
}
