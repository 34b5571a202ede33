/* brick plan: what a run will be, before it is one. */
#ifndef BK_PLAN_H
#define BK_PLAN_H

#include "experiments/estimate.h"

/* Shapes of the model that a config names, without its weights: a GGUF's header, the config.json of a folder (or of the model/ in a run folder), or a config.json
 * itself. *known is false when there is nothing at that path; *weights tells whether tensors are there too. */
bk_status bk_plan_shapes(const char *model, bk_config *out, bool *known, bool *weights, bk_error *err) BK_MUST_USE;
/* Windows of the evaluation: the config's number, or from the size of its text for `all` (*guessed when that is not there). */
int64_t bk_plan_windows(const bk_run_config *c, bool *guessed);
/* Every linear and site that its quantizer does not fit, in one message. BK_EINVAL. */
bk_status bk_plan_quantizers(const bk_run_config *c, const bk_config *shapes, bk_error *err) BK_MUST_USE;

/* What this process may still take. */
typedef struct bk_room {
    double memory;
    const char *memory_from;    /* which limit is the smallest: "free memory", "cgroup limit", "ulimit -v" */
    double run_disk, cache_disk, temporary_disk; /* free where the run folder, the stages and TMPDIR are (or will be) */
    bool cache_with_run, temporary_with_run;     /* on the same file system as the run folder */
} bk_room;
void bk_room_measure(const char *run_dir, bk_room *out);
/* BK_ENOMEM or BK_ENOSPC with the numbers, and what to change, when an estimate goes beyond the room. What lies in run_dir already is not counted again. */
bk_status bk_room_check(const bk_room *room, const bk_estimate *e, const char *run_dir, bk_error *err) BK_MUST_USE;

/* For `run`: all of it, once the model is open. */
bk_status bk_plan_check(const bk_run_config *c, const bk_rotation *rotation, const bk_backend *be, const char *run_dir, bk_error *err) BK_MUST_USE;

#endif
