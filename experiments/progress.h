/* Progress on stderr: stage n of m, percentage, time left. Redrawn in place on a terminal, a plain line now and then elsewhere. */
#ifndef BK_PROGRESS_H
#define BK_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

double bk_seconds(void); /* monotonic clock */
void bk_time_text(double s, char *to, size_t size); /* "44s", "3m05s", "1h02m" */

typedef struct bk_progress {
    const char *stage; /* stays the caller's */
    int number, of;    /* stage n of m; of = 0: a stage alone */
    int64_t done, total;
    double began, drawn; /* seconds */
} bk_progress;

void bk_progress_begin(bk_progress *p, const char *stage, int number, int of, int64_t total);
void bk_progress_step(bk_progress *p, int64_t by);
void bk_progress_end(bk_progress *p); /* logs one line with the time that it took */

/* Takes the line that is being redrawn off the terminal before something else is printed there. */
void bk_progress_clear_line(void);

#endif
