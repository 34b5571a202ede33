/* Gradient checks: the analytic gradients of a graph against central differences, in f64 on ref. Public, so that a new op or quantizer is checked in
 * the same way as brick's own. */
#ifndef BK_GRADCHECK_H
#define BK_GRADCHECK_H

#include <stdint.h>

#include "autograd/tensor.h"

#define BK_GRADCHECK_MAX 8

typedef struct bk_gradcheck_input {
    const char *name;
    int ndim;
    int64_t dim[BK_MAX_DIM];
    const double *values;   /* a real input */
    const int32_t *ids;     /* or an integer one */
    bool differentiate;     /* a gradient is expected and checked */
} bk_gradcheck_input;

/* Builds the graph from the inputs (NULL entries of `in` never occur) and returns its result of any shape. Called many times. */
typedef bk_tensor *(*bk_graph)(bk_ctx *ctx, bk_tensor **in, void *user);

typedef struct bk_gradcheck_report {
    int64_t compared;      /* derivatives compared, over all subsets */
    double worst;          /* largest |analytic - numeric| / max(|analytic|, |numeric|, 1e-3 max|numeric of that input|) */
    char where[256];       /* input, index, both values of the worst */
} bk_gradcheck_report;

/* The cotangent is random (never ones), seeded by `seed`; rounding of fake-quantizers is frozen at the base point; every subset of the inputs to
 * differentiate is checked for itself. step: relative difference step (1e-5 is usual), tol: bound on `worst` (1e-6 is usual).
 * BK_ENUMERIC names input and index when a derivative is off, not finite, or missing; nothing compared is BK_EINVAL. */
bk_status bk_gradcheck(const bk_backend *ref_f64, bk_graph graph, void *user, const bk_gradcheck_input *in, int n_in, uint64_t seed, double step,
                       double tol, bk_gradcheck_report *report, bk_error *err) BK_MUST_USE;

#endif
