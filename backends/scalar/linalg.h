/* Conventions of linear algebra that every backend keeps. */
#ifndef BK_SCALAR_LINALG_H
#define BK_SCALAR_LINALG_H

#include "backends/scalar/math.h"

/* The sign, 1 or -1, by which an eigenvector v[0], v[stride], ... is multiplied: it makes the entry of largest magnitude positive. Magnitudes
 * within 1e-9 of the largest count as equal, or rounding would decide; of equal ones the first counts. */
BK_SCALAR double bk_canonical_sign(int64_t n, int64_t stride, const double *v)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = __builtin_fmax(top, __builtin_fabs(v[i * stride]));
    for (int64_t i = 0; i < n; i++)
        if (__builtin_fabs(v[i * stride]) >= top * (1 - 1e-9)) return v[i * stride] < 0 ? -1 : 1;
    return 1;
}

#endif
