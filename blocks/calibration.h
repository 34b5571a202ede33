/* The full-precision model over calibration windows, one block after the other: what transforms are fitted to. Hidden states lie in one stream, so
 * memory does not grow with the number of blocks. */
#ifndef BK_CALIBRATION_H
#define BK_CALIBRATION_H

#include "blocks/pass.h"
#include "blocks/prefix.h"

typedef struct bk_calibration {
    const bk_source *src;
    const bk_prefix *prefix;  /* NULL or n = 0: none */
    bk_block_weights weights; /* of the present block, on the host */
    bk_block *b;              /* loaded with them; all its quantizers are off */
    bk_stream *h;             /* [samples, tokens, hidden] what goes into it */
    bk_ctx *ctx;
} bk_calibration;

/* ids [samples, tokens]; prefix: computed from the same source; quant: as for bk_block_create. Close it after a failure too. No window: BK_EINVAL. */
bk_status bk_calibration_open(bk_calibration *c, const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens,
                              const bk_prefix *prefix, const bk_block_quant *quant, bk_error *err) BK_MUST_USE;
void bk_calibration_close(bk_calibration *c);

/* Calls visit once a block, in order, with the block loaded; the visit takes c->h through it. Messages get the block's number in front. */
typedef bk_status (*bk_calibration_visit)(void *user, bk_calibration *c, int64_t layer, bk_error *err);
bk_status bk_calibration_run(bk_calibration *c, bk_calibration_visit visit, void *user, const bk_watch *watch, bk_error *err) BK_MUST_USE;

/* For a visit: the block over all windows with a tap (NULL: none). advance: its outputs take the place of its inputs. */
bk_status bk_calibration_pass(bk_calibration *c, bk_tap tap, void *user, bool advance, bk_error *err) BK_MUST_USE;

#endif
