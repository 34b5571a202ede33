/* Progress on stderr: stage n of m, percentage, time left. Redrawn in place on a terminal, a plain line now and then elsewhere. */
#ifndef BK_PROGRESS_H
#define BK_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

struct bk_beacon;

double bk_seconds(void); /* monotonic clock */
/* Seconds as "8s", "3m05s" or "2h07m". */
char *bk_time_text(double seconds, char *to, size_t size);

typedef struct bk_progress {
    const char *stage; /* stays the caller's */
    int number, of;    /* stage n of m; of = 0: a stage alone */
    int64_t done, total;
    int64_t before;           /* steps of `done` that an earlier process did */
    double began, drawn;      /* seconds */
    struct bk_beacon *beacon; /* told as well; NULL = none */
} bk_progress;

void bk_progress_begin(bk_progress *p, const char *stage, int number, int of, int64_t total);
/* From here on others are told too (experiments/beacon.h). */
void bk_progress_publish(bk_progress *p, struct bk_beacon *beacon);
/* So many steps were done before this process began: they say nothing about its speed. */
void bk_progress_resume(bk_progress *p, int64_t done);
void bk_progress_step(bk_progress *p, int64_t by);
void bk_progress_end(bk_progress *p); /* logs one line with the time that it took */

/* Takes the line that is being redrawn off the terminal before something else is printed there. */
void bk_progress_clear_line(void);

#endif
