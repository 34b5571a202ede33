/* The reference backend: naive loops, sums in double, every slot. The kernels are written once (the .inc.h files) and compiled
 * for float (ref_f32.c) and double (ref_f64.c). It shares no formula with the fast backends, so that they can be checked against it. */
#ifndef BK_REF_H
#define BK_REF_H

#include "autograd/backend.h"

extern const bk_backend bk_ref_f32, bk_ref_f64;

/* Members of both, see bk_backend. Attention, eigh, fit_steps and gptq need scratch. */
bk_status bk_ref_alloc(size_t bytes, void **out);
void bk_ref_release(void *p, size_t bytes);
bk_status bk_ref_copy(void *dst, const void *src, size_t bytes);
size_t bk_ref_work(bk_slot slot, const void *args);

#endif
