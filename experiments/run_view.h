/* A run folder seen from outside, while another process may be writing it. */
#ifndef BK_RUN_VIEW_H
#define BK_RUN_VIEW_H

#include "experiments/beacon.h"
#include "experiments/run_outcome.h"

typedef enum {
    BK_VIEW_RUNNING,  /* its lock is held */
    BK_VIEW_FINISHED, /* summary.json is there */
    BK_VIEW_STOPPED   /* neither */
} bk_view_state;

typedef struct bk_run_view {
    bk_view_state state;
    bool told;                /* `at` was read */
    bk_beacon_record at;      /* where it is, or was when it stopped */
    int64_t block, epoch;     /* of the last whole line of metrics.jsonl; block -1 = there is none */
    double loss, val_loss;    /* of that line; NaN = none */
    double ppl_fp, ppl_final; /* of summary.json; NaN = none */
    bk_run_outcome outcome;   /* of summary.json */
    char why[256];            /* stopped: the error that log.txt ends with, "" if it does not end with one; finished: why
                                 nothing came of it, "" if something did */
} bk_run_view;

/* True if the folder is one of a run: config.yaml, and a manifest or a lock. */
bool bk_is_run_folder(const char *dir);
/* BK_EIO: no such folder, or not one of a run. Files that are damaged or half written count as absent. */
bk_status bk_run_view_read(const char *dir, bk_run_view *v, bk_error *err) BK_MUST_USE;

#endif
