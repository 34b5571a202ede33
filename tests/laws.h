/* The laws of quantizers: every way to use one, set up on a few numbers, for the test_quantizer*.c. Failures end the Check test. */
#ifndef BK_TESTS_LAWS_H
#define BK_TESTS_LAWS_H

#include <check.h>

#include "quant/quantizer.h"

enum { LAW_ROWS = 6, LAW_COLS = 32, LAW_HEAD = 8, LAW_N = LAW_ROWS * LAW_COLS, LAW_BACKENDS = 4 };

/* One way to use one quantizer. */
typedef struct law_use {
    const bk_quantizer *q;
    bk_qspec spec;
    bool weights;
    char what[96];
} law_use;

/* An instance with its parameters, initialised on x [LAW_ROWS, LAW_COLS], and what it makes of it. Soft rounding is hard unless `train`.
 * What `begin` puts in place of min-max values is not: those are what most laws are about. */
typedef struct law_run {
    const bk_backend *be;
    law_use u;
    bk_error err;
    bk_params *p;
    bk_qinst q;
    bk_ctx *ctx;
    bk_tensor *x, *y;
    bool train;
} law_run;

void law_open(law_run *r, const bk_backend *be, const law_use *u, const float x[LAW_N], bool train);
void law_close(law_run *r);
/* y from the present x and state; in training, gradients for a random cotangent too. */
void law_pass(law_run *r);
/* The steps of soft rounding, nothing for other quantizers; settle = begin and harden for the present x (in training, begin alone). */
void law_begin(law_run *r);
void law_harden(law_run *r);
void law_settle(law_run *r);

/* Min and max per unit of x, as the driver measures them. */
void law_ranges(const law_run *r, const float *x, float *lo, float *hi);
int64_t law_group_of(const law_use *u);
void law_values(law_run *r, const bk_tensor *t, double *out);
void law_random(float x[LAW_N], double scale);
void law_ok(bk_status st, const bk_error *err);

/* Holds every use of every quantizer to a law, on one of LAW_BACKENDS backends: f64, f32, CPU, guard. */
typedef void (*law)(const bk_backend *be, const law_use *u);
void law_for_all(law check, const bk_backend *be);
const bk_backend *law_backend(int i);

/* What the quantizer of a weight exports for the present x, in tensors that law_free_codes frees. */
bk_codes law_export(law_run *r);
void law_free_codes(const law_run *r, bk_codes *c);
/* Whether anything of it can be trained: a quantizer of constants has no gradients and learns nothing. */
bool law_learns(const law_run *r);

/* The main() of a test program, with the quantizers of the plugin that BK_PLUGIN names, else of the example and of tests/plugins/pow2.c and widen.c.
 * `of_ranges`: the tests that are not asked of a quantizer with free_steps, which it names for that of BK_PLUGIN; NULL: none. Takes the suite. */
int law_main(Suite *s, const char *of_ranges);

#endif
