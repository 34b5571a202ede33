/* What the points of a sweep take: the stages that they share, and the estimates of the rest. */
#ifndef BK_SWEEP_STAGES_H
#define BK_SWEEP_STAGES_H

#include "experiments/estimate.h"
#include "experiments/sweep_run.h"

/* A stage, and the points that take it. */
typedef struct bk_sweep_stage {
    bk_stage_kind kind;
    char quick[65];
    int parent;       /* the stage before it, -1 = none */
    int points, open; /* that take it; of these not done yet, */
    int first;        /* and the first of these */
    bool there;
    double seconds, disk;
} bk_sweep_stage;

typedef struct bk_sweep_estimate {
    char hash[65]; /* of what it depends on */
    bool known;    /* the model, or at least its shapes, are there */
    bk_estimate e;
} bk_sweep_estimate;

typedef struct bk_sweep_stages {
    bk_sweep_run *r;
    bool measured; /* with rates of this machine and samples counted in the texts; else for ratios alone, in a moment */
    bk_rates rates;
    struct bk_sweep_taken {
        int stage[BK_STAGE_KINDS]; /* -1 = none */
        int estimate;
        bool done;
    } *point;
    bk_sweep_stage *stage;
    int n;
    bk_sweep_estimate *estimate;
    int n_estimates;
    bk_run_config *cfg;
} bk_sweep_stages;

/* Room for all points of a run of a sweep. bk_sweep_stages_free is legal after a failure. */
bk_status bk_sweep_stages_begin(bk_sweep_stages *t, bk_sweep_run *r, bool measured, bk_error *err) BK_MUST_USE;
/* Point by point, in order; done: nothing of it has to be made. Its config is in t->cfg afterwards. */
bk_status bk_sweep_stages_add(bk_sweep_stages *t, int point, bool done, bk_error *err) BK_MUST_USE;
void bk_sweep_stages_free(bk_sweep_stages *t);

bool bk_sweep_stage_to_make(const bk_sweep_stage *s);
const bk_estimate *bk_sweep_stages_estimate(const bk_sweep_stages *t, int point);
/* Seconds of a point that is not done, with those stages that it is the first to need; 0 if nothing is known. */
double bk_sweep_stages_seconds(const bk_sweep_stages *t, int point);

#endif
