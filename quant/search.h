/* The grid search of steps, unit by unit: factors of the initial step 1.0 .. 0.4 by 0.1, then 0.05 and 0.025 on both sides of the best so far.
 * The caller evaluates; the grid says which factors, and keeps the best. Non-finite errors count as infinity; ties keep the larger factor. */
#ifndef BK_SEARCH_H
#define BK_SEARCH_H

#include <stdint.h>

#include "autograd/error.h"

#define BK_GRID_ROUNDS 3
#define BK_GRID_CANDIDATES 7 /* at most, per round */

typedef struct bk_grid {
    int64_t units;
    int round;
    float *best;        /* [units] factor of the smallest error so far; 1 at first */
    double *best_error; /* [units] */
    double *error;      /* [candidates, units], zeroed at the start of a round: the caller adds to it */
} bk_grid;

bk_status bk_grid_create(bk_grid *g, int64_t units, bk_error *err) BK_MUST_USE;
void bk_grid_free(bk_grid *g);
int bk_grid_candidates(const bk_grid *g); /* of this round; 0 when all rounds are done */
void bk_grid_factors(const bk_grid *g, int candidate, float *factor);
double *bk_grid_error(bk_grid *g, int candidate); /* [units] */
void bk_grid_next_round(bk_grid *g);

#endif
