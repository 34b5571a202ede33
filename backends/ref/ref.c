#include "backends/ref/ref.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

bk_status bk_ref_alloc(size_t bytes, void **out)
{
    *out = NULL;
    if (bytes > SIZE_MAX - ALIGN) return BK_ENOMEM;
    size_t whole = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    void *p = aligned_alloc(ALIGN, whole);
    if (!p) return BK_ENOMEM;
    memset(p, 0, whole);
    *out = p;
    return BK_OK;
}

void bk_ref_release(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}

bk_status bk_ref_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes) memcpy(dst, src, bytes);
    return BK_OK;
}

/* Attention adds up one row of each of its outputs in double before it is rounded; eigh turns a copy of its matrix; weights are
 * rounded a row at a time. */
size_t bk_ref_work(bk_slot slot, const void *args)
{
    const bk_attention_fwd_args *f = args;
    if (slot == BK_SLOT_attention_fwd) return sizeof(double) * (size_t)f->dim;
    const bk_attention_bwd_args *b = args;
    if (slot == BK_SLOT_attention_bwd) return sizeof(double) * 2 * (size_t)b->f.dim;
    const bk_fit_steps_args *s = args;
    if (slot == BK_SLOT_fit_steps) return sizeof(double) * (size_t)s->cols;
    const bk_gptq_args *q = args;
    if (slot == BK_SLOT_gptq) return sizeof(double) * (size_t)q->f.cols;
    const bk_eigh_args *e = args;
    if (slot == BK_SLOT_eigh) return sizeof(double) * (size_t)(e->n * e->n);
    return 0;
}

const bk_backend *bk_backend_ref(bk_dtype real)
{
    return real == BK_F32 ? &bk_ref_f32 : real == BK_F64 ? &bk_ref_f64 : NULL;
}
