#include "experiments/progress.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "experiments/beacon.h"
#include "experiments/log.h"
#include "experiments/terminal.h"

#define REDRAW_S 0.1 /* on a terminal */
#define LINE_S 15.0  /* elsewhere */

/* Characters of the line that stands on the terminal without a line end, 0 = none. One terminal, one line. */
static int line_width;

double bk_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void bk_progress_clear_line(void)
{
    if (line_width) fprintf(stderr, "\r%*s\r", line_width, "");
    line_width = 0;
}

char *bk_time_text(double s, char *to, size_t size)
{
    long n = s > 0 ? (long)(s < 1e9 ? s + 0.5 : 1e9) : 0; /* files may say anything */
    if (n >= 3600)
        snprintf(to, size, "%ldh%02ldm", n / 3600, n / 60 % 60);
    else if (n >= 60)
        snprintf(to, size, "%ldm%02lds", n / 60, n % 60);
    else
        snprintf(to, size, "%lds", n);
    return to;
}

/* Seconds that the stage will still take, NaN before a step was made. */
static double seconds_left(const bk_progress *p, double t)
{
    int64_t made = p->done - p->before;
    return made > 0 ? (t - p->began) * (double)(p->total - p->done) / (double)made : NAN;
}

static void head_text(const bk_progress *p, char *to, size_t size)
{
    if (p->of > 0)
        snprintf(to, size, "[%d/%d] %s", p->number, p->of, p->stage);
    else
        snprintf(to, size, "%s", p->stage);
}

static void draw(bk_progress *p, double t)
{
    bool terminal = bk_terminal(2);
    if (t - p->drawn < (terminal ? REDRAW_S : LINE_S)) return;
    p->drawn = t;
    char head[128], left[32] = "?", line[200];
    double seconds = seconds_left(p, t);
    head_text(p, head, sizeof head);
    if (!isnan(seconds)) bk_time_text(seconds, left, sizeof left);
    double part = p->total > 0 ? (double)p->done / (double)p->total : 0;
    int n = snprintf(line, sizeof line, "%s %3.0f%% %lld/%lld, %s left", head, 100 * part, (long long)p->done,
                     (long long)p->total, left);
    if (!terminal) {
        bk_log(BK_LOG_INFO, "%s", line);
        return;
    }
    int room = bk_terminal_columns(2) - 1; /* a line that wraps could not be redrawn */
    if (n > room) n = room;
    fprintf(stderr, "\r%.*s%*s", n, line, line_width > n ? line_width - n : 0, "");
    line_width = n > line_width ? n : line_width;
}

static void publish(const bk_progress *p, double t, bool always)
{
    bk_beacon_record r = {
        .number = p->number, .of = p->of, .done = p->done, .total = p->total, .left = seconds_left(p, t)};
    snprintf(r.stage, sizeof r.stage, "%s", p->stage);
    bk_beacon_show(p->beacon, &r, t, always);
}

void bk_progress_begin(bk_progress *p, const char *stage, int number, int of, int64_t total)
{
    double t = bk_seconds();
    *p = (bk_progress){.stage = stage, .number = number, .of = of, .total = total, .began = t, .drawn = t};
}

void bk_progress_publish(bk_progress *p, bk_beacon *beacon)
{
    p->beacon = beacon;
    publish(p, p->began, true);
}

void bk_progress_resume(bk_progress *p, int64_t done)
{
    p->done = p->before = done;
}

void bk_progress_step(bk_progress *p, int64_t by)
{
    p->done += by;
    double t = bk_seconds();
    if (bk_log_enabled(BK_LOG_INFO)) draw(p, t);
    if (p->beacon) publish(p, t, false);
}

void bk_progress_end(bk_progress *p)
{
    char head[128], took[32];
    bk_progress_clear_line();
    head_text(p, head, sizeof head);
    bk_time_text(bk_seconds() - p->began, took, sizeof took);
    bk_log(BK_LOG_INFO, "%s: done in %s", head, took);
}
