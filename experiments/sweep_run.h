/* Points of a sweep as runs: what became of them, and running them. */
#ifndef BK_SWEEP_RUN_H
#define BK_SWEEP_RUN_H

#include "experiments/run.h"
#include "experiments/sweep.h"
#include "io/json.h"

/* --- results --- */

typedef enum { BK_POINT_PENDING, BK_POINT_RUNNING, BK_POINT_DONE, BK_POINT_FAILED, BK_POINT_STOPPED } bk_point_state;

/* What is known of a point; NaN = not known. Losses are validation losses of what was kept: means over the blocks, and
 * of the last block. */
typedef struct bk_sweep_row {
    bk_point_state state;
    bool finished;     /* its run is: one that has failed all the same does so whenever it is asked */
    int code;          /* exit code of a point that failed */
    char message[300]; /* why; of one that is pending: why what is there does not count */
    double fp, fp_prefix, init, final, gap, loss_init, loss_final, loss_last;
    double seconds[BK_RUN_STAGES], peak;
} bk_sweep_row;

/* Looks into a run folder; of a finished run of this config it takes the result. With another config in it BK_EINVAL.
 * What is damaged is no result: the row is left as it is, but for a message that says why, and `run` mends it. */
bk_status bk_sweep_look(const char *dir, const bk_run_config *c, bk_sweep_row *row, bk_error *err) BK_MUST_USE;
/* Validation loss of what a block of the run in a folder kept; NaN if it is not trained. */
double bk_sweep_loss(const char *dir, int64_t block);
/* Blocks that the run in a folder has trained. */
int64_t bk_sweep_trained(const char *dir);
/* A flat object per point, in the order of the file. */
bk_json *bk_sweep_rows_json(const bk_sweep *s, const bk_sweep_row *rows, const char *dir);
/* results.csv and results.jsonl in `dir`. */
bk_status bk_sweep_write(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bk_error *err) BK_MUST_USE;
/* sweep.json there: what was asked for, for a report. */
bk_status bk_sweep_write_question(const bk_sweep *s, const char *dir, bk_error *err) BK_MUST_USE;
/* The ranked table, and statistics over seeds where these vary; on stdout. */
bk_status bk_sweep_print(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bool json,
                         bk_error *err) BK_MUST_USE;

/* --- running --- */

typedef struct bk_sweep_run {
    bk_sweep *s;
    char dir[BK_PATH_SIZE], program[BK_PATH_SIZE];
    int jobs;
    bk_sweep_row *row;
    bool *done; /* [points] when it began */
} bk_sweep_run;

/* Room for what is known of the points, and their folder; out NULL: that which the sweep takes by itself.
 * bk_sweep_run_free is legal after a failure; it leaves the sweep alone. */
bk_status bk_sweep_run_begin(bk_sweep_run *r, bk_sweep *s, const char *out, bk_error *err) BK_MUST_USE;
void bk_sweep_run_free(bk_sweep_run *r);
/* What lies in the folders of all points, where another config is an error; and who shares targets then. */
bk_status bk_sweep_look_at_all(bk_sweep_run *r, bk_error *err) BK_MUST_USE;
void bk_sweep_point_dir(const bk_sweep_run *r, int point, char *to, size_t size);
/* All points, or what a signal left of them (BK_ECANCEL). Points that fail are no failure here. */
bk_status bk_sweep_all(bk_sweep_run *r, bk_error *err) BK_MUST_USE;
/* One shell command per point on stdout. */
bk_status bk_sweep_list(const bk_sweep_run *r, bk_error *err) BK_MUST_USE;

#endif
