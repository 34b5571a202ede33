/* The stages of a run, what each depends on, and the ledger of those that were made. `run` and `plan` read the same
 * table. */
#ifndef BK_STAGE_KINDS_H
#define BK_STAGE_KINDS_H

#include "experiments/schema.h"
#include "experiments/stage.h"

/* A stage comes after the one that it reads. Rows of the evaluation are the last ones. */
typedef enum {
    BK_STAGE_OUTLIERS,
    BK_STAGE_PREFIX, /* searched: prefix.mode: search */
    BK_STAGE_FIT,    /* transforms that are fitted to the model */
    BK_STAGE_INIT,
    BK_STAGE_TARGETS, /* of full precision, for training: store.keep: shared */
    BK_STAGE_ROW_FP,
    BK_STAGE_ROW_PREFIX,
    BK_STAGE_ROW_RTN,
    BK_STAGE_ROW_ROTATION,
    BK_STAGE_ROW_SEARCH,
    BK_STAGE_ROW_NO_PREFIX,
    BK_STAGE_ROW_INIT,
    BK_STAGE_KINDS
} bk_stage_kind;

/* Sets of samples that a stage reads. */
enum { BK_STAGE_DETECTION = 1, BK_STAGE_CALIBRATION = 2, BK_STAGE_TRAINING = 4, BK_STAGE_EVALUATION = 8, BK_STAGE_STATISTICS = 16 };

const char *bk_stage_name(bk_stage_kind kind);
/* Keys whose values are part of the stage's hash; the samples and the prefix that it reads are in it themselves. */
const char *const *bk_stage_keys(bk_stage_kind kind);
unsigned bk_stage_samples(bk_stage_kind kind);
/* Whether it depends on the prefix. */
bool bk_stage_prefixed(bk_stage_kind kind);
bool bk_stage_is_row(bk_stage_kind kind);
/* The stage whose result it reads in a run of this config; BK_STAGE_KINDS: none. */
bk_stage_kind bk_stage_before(bk_stage_kind kind, const bk_run_config *c);
/* Whether a run of this config takes such a stage. */
bool bk_stage_used(bk_stage_kind kind, const bk_run_config *c);

/* A hash that needs neither model nor texts to be read: of the keys above, of those that choose the samples, of sizes
 * and times of the files, of version and kernels, and of the stages before it. Equal: the same stage, on this machine.
 * The other way round it may err: two of them can come to one stage, as when two detections find the same prefix. */
bk_status bk_stage_quick(bk_stage_kind kind, const bk_run_config *c, char hex[65], bk_error *err) BK_MUST_USE;

/* CACHE/ledger.jsonl: a line for every stage that was made. {"stage", "hash", "quick", "run", "seconds"} */
bk_status bk_ledger_add(const bk_stage *s, bk_error *err) BK_MUST_USE;
/* Whether the ledger has a stage with this quick hash whose folder is still there. */
bool bk_ledger_has(bk_stage_kind kind, const char *quick);

#endif
