/* Two streams of numbers side by side, in constant memory: how far the first is from the second, and where. */
#ifndef BK_INSPECT_COMPARE_H
#define BK_INSPECT_COMPARE_H

#include "experiments/inspect_stats.h"

/* error = value - reference; pairs of which one is not finite are counted and left out. Index 0 is the value's stream,
 * 1 the reference's. */
typedef struct bk_comparison {
    int64_t n, finite, unequal;                  /* pairs; those compared; of these, those with an error */
    int64_t nan[2], inf[2], nan_at[2], inf_at[2]; /* *_at: the first, flat; -1 without one */
    double error2, signal[2], dot;               /* sums of squares of error and of either stream, and of products */
    double max_error, max_pair[2];               /* signed, by magnitude, and the two values there */
    int64_t max_at;                              /* -1 when nothing was compared */
    int64_t row_len;                             /* 0: no rows */
    /* size: mean squared error over the compared pairs of a row or channel; signal: mean square of the reference;
     * value: largest error, which stands at row `at` and place `channel` of it. Without a pair channel is -1. */
    bk_peaks rows, channels; /* those with an error */
    bk_peak *channel;  /* [row_len]; sums until the end; NULL where the axis is too long to keep */
    bk_row_fn *on_row; /* is told every row; may be NULL */
    void *user;
    bk_peak row; /* the row being read, sums */
} bk_comparison;

bk_status bk_comparison_init(bk_comparison *c, int64_t row_len, int top, bk_error *err) BK_MUST_USE;
void bk_comparison_free(bk_comparison *c);
/* The next n values of both in row-major order. */
bk_status bk_comparison_add(bk_comparison *c, const double *value, const double *reference, int64_t n,
                            bk_error *err) BK_MUST_USE;
void bk_comparison_end(bk_comparison *c); /* after the last value: fills channels, makes means of their sums */

/* NaN where nothing was compared; the cosine also where a stream is all zeros. */
double bk_comparison_mse(const bk_comparison *c);
double bk_comparison_cosine(const bk_comparison *c);
/* 10 log10(signal / error) of sums or means of squares, in dB: Inf without an error, NaN without a signal too. */
double bk_snr(double signal2, double error2);

#endif
