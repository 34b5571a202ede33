/* All reference kernels over REAL (float or double), and their BACKEND, called NAME. Included once by each of ref_f32.c and ref_f64.c. */
#include <math.h>

#include "backends/ref/ref.h"

/* The head of a kernel; every args struct is named after its slot. */
#define KERNEL(name) static bk_status name##_k(const bk_##name##_args *a, const bk_work *w __attribute__((unused)))

#include "backends/ref/math.inc.h"
#include "backends/ref/norm_rope.inc.h"
#include "backends/ref/attention.inc.h"
#include "backends/ref/loss.inc.h"
#include "backends/ref/quant.inc.h"
#include "backends/ref/optim.inc.h"
#include "backends/ref/linalg.inc.h"
#include "backends/ref/gptq.inc.h"

#define BK_SLOT(name, args) .name = name##_k,
const bk_backend BACKEND = {
    .name = NAME,
    .dtype = sizeof(REAL) == sizeof(float) ? BK_F32 : BK_F64,
    .host_memory = true,
    .alloc = bk_ref_alloc,
    .release = bk_ref_release,
    .upload = bk_ref_copy,
    .download = bk_ref_copy,
    .copy = bk_ref_copy,
    .work = bk_ref_work,
    .k = {BK_SLOTS(BK_SLOT)},
};
#undef BK_SLOT
