/* Stages: what passes between the parts of a run is a folder cache/<stage>-<hash>, complete or absent, named by all that it depends on. */
#ifndef BK_STAGE_H
#define BK_STAGE_H

#include <stdbool.h>

#include "autograd/error.h"
#include "io/file.h"

#define BK_STAGE_PATH 4200

typedef struct bk_stage {
    char dir[BK_STAGE_PATH];  /* of the complete stage */
    char work[BK_STAGE_PATH]; /* where it is being made */
    char hash[65];
    bool done;                /* was there already */
    int lock;
} bk_stage;

/* The folder of all stages: BRICK_CACHE, else "cache". */
const char *bk_cache_root(void);
/* Makes it. */
bk_status bk_cache_make(bk_error *err) BK_MUST_USE;
/* Finds the stage, or opens an empty work folder for it. `depends` is all that it depends on, as text; another process that makes the same stage
 * is waited for. */
bk_status bk_stage_open(bk_stage *s, const char *name, const char *depends, bk_error *err) BK_MUST_USE;
/* Work folder -> complete stage. */
bk_status bk_stage_commit(bk_stage *s, bk_error *err) BK_MUST_USE;
/* Releases the lock; what was not committed is removed. */
void bk_stage_close(bk_stage *s);

/* Text that grows; for building `depends`. */
typedef struct bk_text_buffer {
    char *text;
    size_t len, room;
    bool failed; /* out of memory: checked once by bk_stage_open's caller through bk_buffer_text */
} bk_text_buffer;
void bk_buffer_add(bk_text_buffer *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bk_status bk_buffer_text(const bk_text_buffer *b, const char **text, bk_error *err) BK_MUST_USE;
void bk_buffer_free(bk_text_buffer *b);

#endif
