#include "autograd/arena.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64
#define CHUNK_BYTES 65536

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

void bk_arena_measure(bk_arena *a)
{
    a->measuring = true;
    a->used = a->peak = 0;
}

bk_status bk_arena_commit(bk_arena *a)
{
    void *p = NULL;
    if (a->peak > a->size) {
        bk_arena_free(a);
        BK_TRY(a->be->alloc(a->peak, &p));
        a->base = p;
        a->size = a->peak;
    }
    a->used = 0;
    a->measuring = false;
    return BK_OK;
}

void bk_arena_free(bk_arena *a)
{
    if (a->base) a->be->release(a->base, a->size);
    a->base = NULL;
    a->size = a->used = 0;
}

bk_status bk_arena_alloc(bk_arena *a, size_t bytes, void **out)
{
    size_t n = align_up(bytes);
    *out = NULL;
    if (!a->measuring) {
        if (n > a->size - a->used) return BK_ENOMEM;
        *out = a->base + a->used;
    }
    a->used += n;
    if (a->used > a->peak) a->peak = a->used;
    return BK_OK;
}

struct bk_pool_chunk {
    bk_pool_chunk *next;
    size_t size, used;
    _Alignas(16) char data[];
};

static bk_pool_chunk *chunk_new(size_t bytes)
{
    bk_pool_chunk *c = malloc(sizeof *c + bytes);
    if (c) *c = (bk_pool_chunk){.size = bytes};
    return c;
}

void *bk_pool_alloc(bk_pool *p, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!p->first && !(p->first = p->current = chunk_new(CHUNK_BYTES > bytes ? CHUNK_BYTES : bytes))) return NULL;
    while (p->current->size - p->current->used < bytes) {
        if (!p->current->next && !(p->current->next = chunk_new(CHUNK_BYTES > bytes ? CHUNK_BYTES : bytes))) return NULL;
        p->current = p->current->next;
    }
    void *at = p->current->data + p->current->used;
    p->current->used += bytes;
    return memset(at, 0, bytes);
}

void bk_pool_reset(bk_pool *p)
{
    for (bk_pool_chunk *c = p->first; c; c = c->next) c->used = 0;
    p->current = p->first;
}

void bk_pool_free(bk_pool *p)
{
    for (bk_pool_chunk *c = p->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    p->first = p->current = NULL;
}
