/* Counts the allocations that the code of this program asks for: brick is linked into it, libraries like HDF5 and OpenBLAS are not. */
#ifndef BK_TESTS_COUNT_ALLOC_H
#define BK_TESTS_COUNT_ALLOC_H

#include <stdbool.h>

/* False under a sanitizer and valgrind, which have allocators of their own: nothing is counted then. */
bool bk_alloc_counted(void);
void bk_alloc_count_from_here(void);
long bk_alloc_count(void); /* calls of malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap since then, by all threads */

#endif
