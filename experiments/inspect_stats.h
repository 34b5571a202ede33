/* Statistics of a stream of numbers in constant memory: moments, what is not finite, and where the outliers are. */
#ifndef BK_INSPECT_STATS_H
#define BK_INSPECT_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_CHANNELS_MAX (1 << 20) /* of a longer axis no entries are kept */

/* One of the most remarkable values, rows or channels. */
typedef struct bk_peak {
    double size;         /* what they are ranked by: a magnitude, or a mean squared error */
    double value;        /* signed: the value; of a row or channel its largest one by magnitude */
    double signal;       /* comparisons: mean square of the reference there, over n pairs */
    int64_t at, channel; /* flat index of a value; row and place in it of a row's or channel's largest value */
    int64_t n;
} bk_peak;

typedef struct bk_peaks {
    bk_peak *item; /* by falling size; of equal ones the first seen */
    int n, cap;
} bk_peaks;

bk_status bk_peaks_init(bk_peaks *p, int cap, bk_error *err) BK_MUST_USE;
void bk_peaks_free(bk_peaks *p);
void bk_peaks_add(bk_peaks *p, const bk_peak *peak);

/* Rows run along the last axis: in a dump a row is one token and the last axis are its channels. `row` has channel -1
 * when nothing in it is finite. */
typedef bk_status bk_row_fn(void *user, const bk_peak *row, bk_error *err);

/* Finds the largest value of every row of a stream. */
typedef struct bk_rows {
    int64_t row_len;
    bk_row_fn *done;
    void *user;
    int64_t n; /* values so far */
    bk_peak row;
} bk_rows;

void bk_rows_init(bk_rows *r, int64_t row_len, bk_row_fn *done, void *user);
bk_status bk_rows_add(bk_rows *r, const double *v, int64_t n, bk_error *err) BK_MUST_USE;

typedef struct bk_stats {
    int64_t n, finite, zeros, nan, inf, saturated; /* saturated: exactly +-65504 */
    double min, max, mean, m2, m3, m4;             /* of the finite ones; m2.. are sums of powers of (x - mean) */
    int64_t min_at, max_at, nan_at, inf_at;        /* the first, flat; -1 without one */
    int64_t row_len;                               /* 0: no rows */
    bk_peaks values, rows, channels;
    double row_median, channel_median; /* lower medians of the largest magnitudes; NaN without */
    bk_peak *channel;                  /* [row_len]; NULL where the axis is too long to keep */
    bk_rows each_row;
    int64_t *row_sizes, n_rows; /* how often which size of a row came */
} bk_stats;

/* top: how many values, rows and channels are listed. */
bk_status bk_stats_init(bk_stats *s, int64_t row_len, int top, bk_error *err) BK_MUST_USE;
void bk_stats_free(bk_stats *s);
/* The next n values of the stream in row-major order. */
bk_status bk_stats_add(bk_stats *s, const double *v, int64_t n, bk_error *err) BK_MUST_USE;
/* After the last value: fills channels and the medians. That of the rows is exact for f16, and for others the true one
 * with the digits behind the first 11 binary ones cut off. */
bk_status bk_stats_end(bk_stats *s, bk_error *err) BK_MUST_USE;

double bk_stats_std(const bk_stats *s);      /* of the population; NaN without values */
double bk_stats_kurtosis(const bk_stats *s); /* 3 for a normal distribution; NaN where there is no spread */

#endif
