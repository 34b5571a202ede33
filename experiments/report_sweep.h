/* A sweep's results as a report shows them: points without their seeds, ranked, and the axes that are drawn. */
#ifndef BK_REPORT_SWEEP_H
#define BK_REPORT_SWEEP_H

#include "experiments/report.h"
#include "experiments/sweep.h"

#define BK_REPORT_AXES BK_SWEEP_AXES /* as many as a sweep has: points that differ must not look the same */
#define BK_REPORT_TEXT 48 /* of a value with its NUL */

/* A value of an axis. */
typedef struct bk_report_value {
    const bk_json *json;
    char text[BK_REPORT_TEXT]; /* printable, and cut where it is long */
    double x;                  /* of a number, else NaN */
} bk_report_value;

/* A key that varies, and its values: numbers in order, others as they come. */
typedef struct bk_report_axis {
    const char *key;
    bk_report_value *value;
    size_t n;
    bool numeric;
} bk_report_axis;

/* Points that differ in their seed alone. gap = ln(ppl / ppl of fp). */
typedef struct bk_report_group {
    size_t at[BK_REPORT_AXES];                /* index of the value on every axis; 0 on that of seeds */
    double gap, squares, lo, hi; /* mean, sum of squared deviations from it, extremes */
    double ppl, init;            /* means; init: gap before training */
    size_t n;
    const char *name; /* that the sweep's file gives its points; NULL: none */
} bk_report_group;

typedef struct bk_report_sweep {
    bk_json *rows;
    bk_report_axis axis[BK_REPORT_AXES];
    int n_axes, seed;  /* seed: its axis, -1 if there is none */
    int across, lines; /* axes of the pictures, -1 if there is none */
    bk_report_group *group;
    size_t n_groups, n_done;
    bool named; /* points have names */
    char why[512];
} bk_report_sweep;

/* The best point at a place of the two axes that are drawn; NULL: none has a result. */
const bk_report_group *bk_report_at(const bk_report_sweep *s, size_t across, size_t lines);
/* Pictures (report_sweep_draw.c): a script afterwards, or a reason why it is missing. */
void bk_report_lines_over_axis(const bk_report_sweep *s, bk_picture *p);
void bk_report_map_over_axes(const bk_report_sweep *s, bk_picture *p);

#endif
