/* Stages: what passes between the parts of a run is a folder cache/<stage>-<hash>, complete or absent, named by all that it depends on. It holds
 * depends.txt, which says so in words, and SHA256SUMS of its files: a stage that was damaged is made anew, as if it were absent. */
#ifndef BK_STAGE_H
#define BK_STAGE_H

#include <stdbool.h>

#include "autograd/error.h"
#include "experiments/text_buffer.h" /* what `depends` is printed into */
#include "io/file.h"
#include "io/lock.h"

#define BK_STAGE_PATH 4200
#define BK_STAGE_WORK (BK_STAGE_PATH + BK_LOCK_ID + 16)
#define BK_STAGE_FILE (BK_STAGE_WORK + 32) /* of a file in either */

typedef struct bk_stage {
    char dir[BK_STAGE_PATH];  /* of the complete stage */
    char work[BK_STAGE_WORK]; /* where it is being made: a folder of this process alone */
    char hash[65];
    bool done;                /* was there already */
    bk_lock lock;
    char name[16], quick[65];  /* kind of stage; see stage_kinds.h, "" = not told */
    const char *run;           /* who makes it, for the ledger; may be NULL */
    double began;
} bk_stage;

/* The folder of all stages: BRICK_CACHE, else "cache". */
const char *bk_cache_root(void);
/* Makes it. */
bk_status bk_cache_make(bk_error *err) BK_MUST_USE;
/* Finds the stage and reads it through, or opens an empty work folder for it. `depends` is all that it depends on, as text. One process makes a
 * stage: others, on other hosts too, wait for it and say for whom (BK_ECANCEL when a signal ends the waiting). */
bk_status bk_stage_open(bk_stage *s, const char *name, const char *depends, bk_error *err) BK_MUST_USE;
/* Work folder -> complete stage. */
bk_status bk_stage_commit(bk_stage *s, bk_error *err) BK_MUST_USE;
/* Releases the lock; what was not committed is removed. */
void bk_stage_close(bk_stage *s);

#endif
