/* How often which values come, counted in a pass of its own and drawn with characters. */
#ifndef BK_INSPECT_HISTOGRAM_H
#define BK_INSPECT_HISTOGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "autograd/error.h"

typedef struct bk_histogram {
    int bins;
    double low, high, width; /* the last bin holds `high` */
    int64_t *count;          /* [bins] */
} bk_histogram;

/* bins >= 1 over low..high, both finite; one bin where there is nothing between them. */
bk_status bk_histogram_init(bk_histogram *h, double low, double high, int bins, bk_error *err) BK_MUST_USE;
void bk_histogram_free(bk_histogram *h);
void bk_histogram_add(bk_histogram *h, const double *v, int64_t n); /* what is not finite is left out */
double bk_histogram_edge(const bk_histogram *h, int bin);           /* lower edge of a bin; of `bins`: high */

/* One line per bin, `columns` wide at most where that leaves room for bars. A bin that is not empty always shows.
 * log: bars by log(1 + count), and the heading says so. utf8: bars in eighths of a character. */
void bk_histogram_draw(const bk_histogram *h, FILE *out, int columns, bool log, bool utf8);

#endif
