/* Speed of GPTQ (quant/gptq.h) against the two products that it cannot do without: the Cholesky factor of the Hessian and the weight times it. */
#ifndef BK_BENCH_GPTQ_H
#define BK_BENCH_GPTQ_H

#include "autograd/backend.h"

typedef struct bk_gptq_bench {
    int64_t rows, cols;
    double gptq, cholesky, product; /* seconds; GPTQ: from the Hessian to the rounded weight, with everything */
} bk_gptq_bench;

/* Measures a random linear of rows x cols, 4 bits, one step a row, once. */
bk_status bk_bench_gptq(const bk_backend *be, bk_gptq_bench *b, bk_error *err) BK_MUST_USE;

#endif
