/* The stages of a run, what each depends on, and the ledger of those that were made. `run` and `plan` read the same
 * table. */
#ifndef BK_STAGE_KINDS_H
#define BK_STAGE_KINDS_H

#include "experiments/schema.h"
#include "experiments/stage.h"

/* A stage comes after the one that it reads. */
typedef enum { BK_STAGE_OUTLIERS, BK_STAGE_INIT, BK_STAGE_KINDS } bk_stage_kind;

const char *bk_stage_name(bk_stage_kind kind);
/* Keys whose values are part of the stage's hash; the samples and the prefix that it reads are in it themselves. */
const char *const *bk_stage_keys(bk_stage_kind kind);
/* The stage whose result it reads, if the run has that one; BK_STAGE_KINDS: none. */
bk_stage_kind bk_stage_before(bk_stage_kind kind);
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
