/* Bump allocators. `bk_arena` hands out backend memory whose size a dry run has found; `bk_pool` hands out host memory for headers in chunks
 * that are kept from step to step. */
#ifndef BK_ARENA_H
#define BK_ARENA_H

#include "autograd/backend.h"

typedef struct bk_arena {
    const bk_backend *be;
    char *base;
    size_t size, used, peak;
    bool measuring; /* counts only */
} bk_arena;

void bk_arena_measure(bk_arena *a);                 /* counts from zero; memory that it has stays */
bk_status bk_arena_commit(bk_arena *a) BK_MUST_USE; /* makes room for the peak, where there is less; BK_ENOMEM */
void bk_arena_free(bk_arena *a);
/* 64-byte aligned; while measuring *out is NULL. BK_ENOMEM past the end. */
bk_status bk_arena_alloc(bk_arena *a, size_t bytes, void **out) BK_MUST_USE;

typedef struct bk_pool_chunk bk_pool_chunk;
typedef struct bk_pool {
    bk_pool_chunk *first, *current;
} bk_pool;

void *bk_pool_alloc(bk_pool *p, size_t bytes); /* zeroed; NULL when memory is out */
void bk_pool_reset(bk_pool *p);                /* everything handed out is forgotten, the chunks stay */
void bk_pool_free(bk_pool *p);

#endif
