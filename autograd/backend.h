/* A backend: memory and kernels. A null slot is BK_EUNSUP with the slot's name, never a silent fallback to another backend. */
#ifndef BK_BACKEND_H
#define BK_BACKEND_H

#include <stdbool.h>

#include "autograd/error.h"
#include "backends/kernels.h"

typedef struct bk_backend {
    const char *name;
    bk_dtype dtype;   /* the real type of all its kernels: BK_F32, or BK_F64 on ref */
    bool host_memory; /* false: host code must not touch tensor data, not even to read */
    /* 64-byte aligned, zeroed memory of the backend. */
    bk_status (*alloc)(size_t bytes, void **out);
    void (*release)(void *p, size_t bytes);
    /* Copies of bytes; they return when the data are there. */
    bk_status (*upload)(void *dst, const void *host_src, size_t bytes);
    bk_status (*download)(void *host_dst, const void *src, size_t bytes);
    bk_status (*copy)(void *dst, const void *src, size_t bytes);
    /* Scratch bytes that this call needs; pointers in args may be NULL. NULL function = none ever. */
    size_t (*work)(bk_slot slot, const void *args);
    /* Threads that kernels use, 0 = all; NULL function: always one. Results do not depend on it. */
    void (*set_threads)(int n);
    int (*threads)(void);
    /* Takes what kernels need beside scratch for the threads in force, so that none of them can run out of it; again after set_threads.
     * BK_ENOMEM; NULL function: nothing. */
    bk_status (*start)(void);
    /* What results depend on beside their inputs ("OpenBLAS Haswell"); NULL function: nothing. */
    const char *(*flavour)(void);
    bk_kernels k;
} bk_backend;

/* Constructors, one per backend. Only experiments/ and tests/ name a backend. */
const bk_backend *bk_backend_ref(bk_dtype real);   /* BK_F32 or BK_F64; naive loops, f64 accumulation, every slot */
const bk_backend *bk_backend_guard(bk_dtype real); /* ref whose memory is unreadable outside kernels and copies */
const bk_backend *bk_backend_cpu(void);            /* f32: OpenBLAS, OpenMP */

#endif
