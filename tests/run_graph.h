/* Runs a graph forward and backward on any backend: dry run, commit, one step. */
#ifndef BK_TESTS_RUN_GRAPH_H
#define BK_TESTS_RUN_GRAPH_H

#include "autograd/gradcheck.h"

typedef struct bk_graph_result {
    int64_t n_out;
    double *y;
    double *grad[BK_GRADCHECK_MAX]; /* NULL where no gradient was asked for */
} bk_graph_result;

/* Value of the graph and the gradients of sum(y * cotangent); cotangent NULL: random numbers of `seed` that float holds exactly.
 * Any failure ends the running Check test. */
bk_graph_result bk_run_graph(const bk_backend *be, bk_graph graph, void *user, const bk_gradcheck_input *in, int n_in, const double *cotangent,
                             uint64_t seed);
void bk_graph_result_free(bk_graph_result *r);

#endif
