#include "tests/count_alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long count;

void bk_alloc_count_from_here(void)
{
    atomic_store(&count, 0);
}

long bk_alloc_count(void)
{
    return atomic_load(&count);
}

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)

bool bk_alloc_counted(void)
{
    return false;
}

#else

bool bk_alloc_counted(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return !preload || !strstr(preload, "vgpreload"); /* valgrind's allocator */
}

/* The allocator of glibc under its other names; its free takes what they give. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t align, size_t n);
int posix_memalign(void **out, size_t align, size_t n);

/* First and last address of this program's code, made by the linker. */
extern const char __executable_start, etext;

static void note(const void *caller)
{
    const char *at = caller;
    if (at >= &__executable_start && at < &etext) atomic_fetch_add(&count, 1);
}

void *malloc(size_t n)
{
    note(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    note(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    note(__builtin_return_address(0));
    void *p = __libc_memalign(align, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    note(__builtin_return_address(0));
    return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}

#endif
