/* Statistics of a stream of numbers in constant memory: moments, what is not finite, and where the outliers are. */
#ifndef BK_INSPECT_STATS_H
#define BK_INSPECT_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_PEAKS 8

/* One of the largest magnitudes: of all values (at = flat index), of a row (at = row, channel = where in it) or of a
 * channel (at = channel). */
typedef struct bk_peak {
    double value;
    int64_t at, channel;
} bk_peak;

typedef struct bk_peaks {
    bk_peak item[BK_PEAKS]; /* by falling magnitude; of equal ones the first seen */
    int n;
} bk_peaks;

/* Rows run along the last axis: in a dump a row is one token and the last axis are its channels. */
typedef struct bk_stats {
    int64_t row_len; /* 0: no rows */
    int64_t n, finite, zeros, nan, inf, saturated; /* saturated: exactly +-65504 */
    double min, max, mean, m2, m3, m4;             /* of the finite ones; m2.. are sums of powers of (x - mean) */
    int64_t min_at, max_at;                        /* flat; -1 without finite values */
    bk_peaks values, rows;                         /* rows: value is the signed extreme of the row */
    double *channel_max;                           /* [row_len] largest magnitudes; NULL where the axis is too long to keep */
    /* private: the row being read, and how often which row maximum came */
    bk_peak row;
    int64_t *histogram, n_rows;
} bk_stats;

bk_status bk_stats_init(bk_stats *s, int64_t row_len, bk_error *err) BK_MUST_USE;
void bk_stats_free(bk_stats *s);
/* The next n values of the stream in row-major order. */
void bk_stats_add(bk_stats *s, const double *v, int64_t n);
void bk_stats_end(bk_stats *s); /* after the last value */

double bk_stats_std(const bk_stats *s);      /* of the population; NaN without values */
double bk_stats_kurtosis(const bk_stats *s); /* 3 for a normal distribution; NaN where there is no spread */
double bk_stats_row_median(const bk_stats *s); /* of the rows' largest magnitudes, to 2 %; NaN without rows */
/* The largest channels and the median of all channels; false where they were not kept. */
bool bk_stats_channels(const bk_stats *s, bk_peaks *top, double *median);

#endif
