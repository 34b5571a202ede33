/* Progress on stderr: stage n of m, percentage, time left. Redrawn in place on a terminal, a plain line now and then elsewhere. */
#ifndef BK_PROGRESS_H
#define BK_PROGRESS_H

#include <stdint.h>

typedef struct bk_progress {
    const char *stage; /* stays the caller's */
    int number, of;    /* stage n of m; of = 0: a stage alone */
    int64_t done, total;
    double began, drawn; /* seconds */
    int drawn_width;     /* of the line on the terminal */
} bk_progress;

void bk_progress_begin(bk_progress *p, const char *stage, int number, int of, int64_t total);
void bk_progress_step(bk_progress *p, int64_t by);
void bk_progress_end(bk_progress *p); /* one line with the seconds that it took, at level info */

#endif
