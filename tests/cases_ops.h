/* The table of op cases: inputs, attributes and graph of every op, in shapes that reach every branch. Gradient checks, backend comparisons
 * and the registry's completeness test all run over it. */
#ifndef BK_TESTS_CASES_OPS_H
#define BK_TESTS_CASES_OPS_H

#include "autograd/gradcheck.h"
#include "ops/ops.h"

/* What an input holds. Every value is one that float holds exactly, so that all backends start from the same numbers. */
typedef enum bk_fill {
    BK_FILL_NORMAL, /* N(0, scale) */
    BK_FILL_OFFSET, /* N(scale, 1) */
    BK_FILL_TIES,   /* N(0, scale) with two equal maxima and two equal, larger minima in every 16 values */
    BK_FILL_FLAT,   /* the first row constant, the second zero, the third within 1e-6 of scale, then N(0, scale) */
    BK_FILL_STEP,   /* scale * (0.5 .. 1.5), positive */
    BK_FILL_ZERO,   /* zero points of codes 0 .. scale: inside, below and above */
    BK_FILL_IDS,    /* integers 0 .. scale - 1, with repetitions */
    BK_FILL_ROPE,   /* a rotation table [positions, d] for theta = scale */
    BK_FILL_SIGNS   /* the Hadamard matrix of order 12 (Paley I) */
} bk_fill;

typedef struct bk_case_input {
    const char *name;
    int ndim;
    int64_t dim[BK_MAX_DIM];
    bk_fill fill;
    double scale;
    bool differentiate;
} bk_case_input;

#define BK_CASE_INPUTS 5

typedef struct bk_op_case {
    const char *op, *name;
    bool wide; /* too large for gradient checks: whole tiles and their tails, for backends only */
    bk_graph graph; /* user: this case */
    bk_case_input in[BK_CASE_INPUTS];
    int64_t heads, kv_heads, window, pos0;
    double eps;
    bk_loss_kind loss;
    union {
        bk_hadamard_attr hadamard;
        bk_fakequant_attr fakequant;
        bk_dynquant_attr dynquant;
        bk_round_penalty_attr penalty;
        double alpha; /* quotient, scale; logistic: at */
    };
    uint64_t seed;
} bk_op_case;

extern const bk_op_case bk_op_cases[];
extern const int bk_op_case_count;

/* The inputs of a case with their values, for bk_gradcheck and bk_run_graph; returns their number. Freed with bk_case_free. */
int bk_case_inputs(const bk_op_case *c, bk_gradcheck_input in[BK_CASE_INPUTS]);
void bk_case_free(bk_gradcheck_input *in, int n);

#endif
