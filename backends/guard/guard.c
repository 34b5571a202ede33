/* The guard backend: reference kernels on memory that cannot be touched outside kernels and copies. Host code that reads or writes
 * tensor data directly, which would work on every CPU backend and crash on an accelerator, crashes here.
 *
 * Every allocation is a mapping of its own that ends in a page which is never accessible: a kernel that runs past the end of its
 * arrays crashes too. All mappings are opened together for the time of a call. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/ref/ref.h"

typedef struct region {
    char *base, *data;
    size_t pages; /* bytes that are opened and closed; one forbidden page follows */
} region;

/* What is mapped. State of the process, like the page table that it mirrors: kernels are called with pointers and no handle,
 * so nothing else could hold it. The lock lets two threads compute; memory closes when the last of them leaves. */
static struct {
    pthread_mutex_t lock;
    region *all;
    size_t count, room;
    int inside;
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bk_status protect_all(int prot)
{
    for (size_t i = 0; i < guard.count; i++)
        if (mprotect(guard.all[i].base, guard.all[i].pages, prot)) return BK_EDEVICE;
    return BK_OK;
}

static bk_status enter(void)
{
    pthread_mutex_lock(&guard.lock);
    bk_status st = guard.inside ? BK_OK : protect_all(PROT_READ | PROT_WRITE);
    if (!st) guard.inside++;
    pthread_mutex_unlock(&guard.lock);
    return st;
}

/* Returns the first of `st` and a failure to close. */
static bk_status leave(bk_status st)
{
    pthread_mutex_lock(&guard.lock);
    bk_status closed = --guard.inside ? BK_OK : protect_all(PROT_NONE);
    pthread_mutex_unlock(&guard.lock);
    return st ? st : closed;
}

static bk_status add_region(region r)
{
    if (guard.count == guard.room) {
        size_t room = guard.room ? 2 * guard.room : 64;
        region *all = realloc(guard.all, room * sizeof *all);
        if (!all) return BK_ENOMEM;
        guard.all = all;
        guard.room = room;
    }
    guard.all[guard.count++] = r;
    return BK_OK;
}

/* The data end where the forbidden page begins, up to the alignment of 64 bytes. */
static bk_status guard_alloc(size_t bytes, void **out)
{
    *out = NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX / 2) return BK_ENOMEM;
    size_t whole = bytes ? (bytes + 63) / 64 * 64 : 64, pages = (whole + page - 1) / page * page;
    char *base = mmap(NULL, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return BK_ENOMEM;
    region r = {base, base + pages - whole, pages};
    pthread_mutex_lock(&guard.lock);
    bk_status st = guard.inside && mprotect(base, pages, PROT_READ | PROT_WRITE) ? BK_EDEVICE : add_region(r);
    pthread_mutex_unlock(&guard.lock);
    if (st) munmap(base, pages + page);
    else *out = r.data;
    return st;
}

static void guard_release(void *p, size_t bytes)
{
    (void)bytes;
    pthread_mutex_lock(&guard.lock);
    for (size_t i = 0; i < guard.count; i++)
        if (guard.all[i].data == p) {
            munmap(guard.all[i].base, guard.all[i].pages + (size_t)sysconf(_SC_PAGESIZE));
            guard.all[i] = guard.all[--guard.count];
            break;
        }
    if (!guard.count) {
        free(guard.all);
        guard.all = NULL;
        guard.room = 0;
    }
    pthread_mutex_unlock(&guard.lock);
}

static bk_status guard_copy(void *dst, const void *src, size_t bytes)
{
    BK_TRY(enter());
    return leave(bk_ref_copy(dst, src, bytes));
}

#define BK_SLOT(name, args)                                              \
    static bk_status name##_f32(const args *a, const bk_work *w) {       \
        BK_TRY(enter());                                                 \
        return leave(bk_ref_f32.k.name(a, w));                           \
    }                                                                    \
    static bk_status name##_f64(const args *a, const bk_work *w) {       \
        BK_TRY(enter());                                                 \
        return leave(bk_ref_f64.k.name(a, w));                           \
    }
BK_SLOTS(BK_SLOT)
#undef BK_SLOT

#define GUARD(label, real)                                                                                               \
    .name = label, .dtype = real, .host_memory = false, .alloc = guard_alloc, .release = guard_release, .upload = guard_copy, \
    .download = guard_copy, .copy = guard_copy, .work = bk_ref_work

#define BK_SLOT(name, args) .k.name = name##_f32,
static const bk_backend guard_f32 = {GUARD("guard_f32", BK_F32), BK_SLOTS(BK_SLOT)};
#undef BK_SLOT
#define BK_SLOT(name, args) .k.name = name##_f64,
static const bk_backend guard_f64 = {GUARD("guard_f64", BK_F64), BK_SLOTS(BK_SLOT)};
#undef BK_SLOT

const bk_backend *bk_backend_guard(bk_dtype real)
{
    return real == BK_F32 ? &guard_f32 : real == BK_F64 ? &guard_f64 : NULL;
}
