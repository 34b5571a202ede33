/* What a finished run came to: a run in which nothing could be trained or rounded has failed, though all of its files
 * are written. One answer for the run itself, for the sweep that it is a point of, and for who looks at it. */
#ifndef BK_RUN_OUTCOME_H
#define BK_RUN_OUTCOME_H

#include "io/json.h"

typedef struct bk_run_outcome {
    int64_t blocks, fell_back;    /* of the model; of these, that could not be trained and stay as initialised */
    int64_t linears, not_rounded; /* that GPTQ was to round; of these, that it could not */
} bk_run_outcome;

/* As summary.json tells it; 0 where that says nothing. */
bk_run_outcome bk_run_outcome_of(const bk_json *summary);
/* BK_ENUMERIC if GPTQ rounded no linear, or no block could be trained: `run` ends with exit 4 whenever it is asked. */
bk_status bk_run_outcome_check(const bk_run_outcome *o, bk_error *err) BK_MUST_USE;

#endif
