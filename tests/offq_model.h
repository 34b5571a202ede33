/* Small models, statistics and fits for tests of OffQ. Failures end the Check test. */
#ifndef BK_TESTS_OFFQ_MODEL_H
#define BK_TESTS_OFFQ_MODEL_H

#include "blocks/offq.h"
#include "blocks/source.h"
#include "tests/tiny_model.h"

/* Shapes 0 .. OFFQ_SHAPES - 1: grouped heads with biases and tied; q/k norm; one without a matrix for its groups. */
enum { OFFQ_SEQUENCES = 5, OFFQ_TOKENS = 12, OFFQ_SHAPES = 3 };
const char *offq_shape(int i);
bk_config offq_config(int i);

/* A model of that config, open, and token ids. spec: the transforms it is read through, or NULL. */
typedef struct offq_model {
    bk_config c;
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    int32_t ids[OFFQ_SEQUENCES * OFFQ_TOKENS];
} offq_model;
void offq_model_open(offq_model *t, const bk_config *c, const bk_rotation_spec *spec);
void offq_model_close(offq_model *t);

/* Statistics of the ids, and what is fitted to them, which has passed bk_fitted_check. */
bk_offq_stats offq_measure(const bk_backend *be, const offq_model *t, const bk_prefix *prefix, const bk_offq_options *o);
bk_fitted *offq_fit(const bk_backend *be, const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *report);

void *offq_zeros(int64_t n, size_t size);
/* c [n, n] += factor x^T x. */
void offq_add_outer(double *c, const double *x, int64_t n, double factor);
/* Demands that n values differ by no more than tol of the largest. */
void offq_same(const double *got, const double *want, int64_t n, double tol, const char *what);

#endif
