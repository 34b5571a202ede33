#include "experiments/inspect_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CHANNELS = 1 << 20,
    STEPS = 32,                               /* of the histogram in one octave: 1 / 32 apart at most */
    LOW = -160, HIGH = 160,                   /* exponents that it tells apart */
    BUCKETS = (HIGH - LOW) * STEPS + 1        /* bucket 0: zero and what is smaller than all the others */
};

bk_status bk_stats_init(bk_stats *s, int64_t row_len, bk_error *err)
{
    *s = (bk_stats){.row_len = row_len, .min = INFINITY, .max = -INFINITY, .min_at = -1, .max_at = -1, .row = {.channel = -1}};
    if (row_len == 0) return BK_OK;
    s->histogram = calloc(BUCKETS, sizeof *s->histogram);
    if (row_len <= MAX_CHANNELS) s->channel_max = calloc((size_t)row_len, sizeof *s->channel_max);
    if (s->histogram && (s->channel_max || row_len > MAX_CHANNELS)) return BK_OK;
    bk_stats_free(s);
    return bk_fail(err, BK_ENOMEM, "no memory for the statistics of %lld channels", (long long)row_len);
}

void bk_stats_free(bk_stats *s)
{
    free(s->histogram);
    free(s->channel_max);
    s->histogram = NULL;
    s->channel_max = NULL;
}

static void peaks_add(bk_peaks *p, bk_peak new)
{
    double size = fabs(new.value);
    if (p->n == BK_PEAKS && size <= fabs(p->item[BK_PEAKS - 1].value)) return;
    int at = p->n < BK_PEAKS ? p->n++ : BK_PEAKS - 1;
    for (; at > 0 && size > fabs(p->item[at - 1].value); at--) p->item[at] = p->item[at - 1];
    p->item[at] = new;
}

static int bucket_of(double size)
{
    int e;
    double fraction = frexp(size, &e); /* 0.5 .. 1 */
    if (size == 0 || e <= LOW) return 0;
    if (e > HIGH) return BUCKETS - 1;
    return 1 + (e - 1 - LOW) * STEPS + (int)((fraction - 0.5) * 2 * STEPS);
}

static double middle_of(int bucket)
{
    if (bucket == 0) return 0;
    int e = (bucket - 1) / STEPS + LOW, k = (bucket - 1) % STEPS;
    return ldexp(1 + (k + 0.5) / STEPS, e);
}

static void end_row(bk_stats *s)
{
    if (s->row.channel < 0) return; /* nothing finite in it */
    peaks_add(&s->rows, s->row);
    s->histogram[bucket_of(fabs(s->row.value))]++;
    s->n_rows++;
    s->row.channel = -1;
}

static void add_to_row(bk_stats *s, double v, int64_t flat)
{
    int64_t row = flat / s->row_len, channel = flat % s->row_len;
    if (channel == 0) end_row(s);
    if (!isfinite(v)) return;
    double size = fabs(v);
    if (s->row.channel < 0 || size > fabs(s->row.value)) s->row = (bk_peak){v, row, channel};
    if (s->channel_max && size > s->channel_max[channel]) s->channel_max[channel] = size;
}

static void add_value(bk_stats *s, double v, int64_t flat)
{
    if (!isfinite(v)) {
        s->nan += isnan(v);
        s->inf += isinf(v) != 0;
        return;
    }
    s->zeros += v == 0;
    s->saturated += fabs(v) == 65504.0;
    if (v < s->min) s->min = v, s->min_at = flat;
    if (v > s->max) s->max = v, s->max_at = flat;
    peaks_add(&s->values, (bk_peak){v, flat, 0});
}

/* The moments of a block about its own mean, then joined to those of all before. Source: P. Pebay, SAND2008-6212
 * (2008), eq. 2.1, 3.1. */
static void join_moments(bk_stats *s, const double *v, int64_t n)
{
    double sum = 0, m2 = 0, m3 = 0, m4 = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i])) sum += v[i], count++;
    if (count == 0) return;
    double mean = sum / (double)count;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) continue;
        double d = v[i] - mean, d2 = d * d;
        m2 += d2, m3 += d2 * d, m4 += d2 * d2;
    }
    double a = (double)s->finite, b = (double)count, all = a + b, d = mean - s->mean, d2 = d * d;
    s->m4 += m4 + d2 * d2 * a * b * (a * a - a * b + b * b) / (all * all * all) +
             6 * d2 * (a * a * m2 + b * b * s->m2) / (all * all) + 4 * d * (a * m3 - b * s->m3) / all;
    s->m3 += m3 + d2 * d * a * b * (a - b) / (all * all) + 3 * d * (a * m2 - b * s->m2) / all;
    s->m2 += m2 + d2 * a * b / all;
    s->mean += d * b / all;
    s->finite += count;
}

void bk_stats_add(bk_stats *s, const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        add_value(s, v[i], s->n + i);
        if (s->row_len) add_to_row(s, v[i], s->n + i);
    }
    join_moments(s, v, n);
    s->n += n;
}

void bk_stats_end(bk_stats *s)
{
    if (s->row_len) end_row(s);
}

double bk_stats_std(const bk_stats *s)
{
    return s->finite ? sqrt(s->m2 / (double)s->finite) : NAN;
}

double bk_stats_kurtosis(const bk_stats *s)
{
    return s->m2 > 0 ? (double)s->finite * s->m4 / (s->m2 * s->m2) : NAN;
}

double bk_stats_row_median(const bk_stats *s)
{
    int64_t seen = 0;
    for (int i = 0; s->n_rows && i < BUCKETS; i++)
        if ((seen += s->histogram[i]) > (s->n_rows - 1) / 2) return middle_of(i);
    return NAN;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool bk_stats_channels(const bk_stats *s, bk_peaks *top, double *median)
{
    *top = (bk_peaks){0};
    double *sorted = s->channel_max ? malloc((size_t)s->row_len * sizeof *sorted) : NULL;
    if (!sorted) return false;
    for (int64_t k = 0; k < s->row_len; k++) peaks_add(top, (bk_peak){s->channel_max[k], k, k});
    memcpy(sorted, s->channel_max, (size_t)s->row_len * sizeof *sorted);
    qsort(sorted, (size_t)s->row_len, sizeof *sorted, by_value);
    *median = sorted[(s->row_len - 1) / 2];
    free(sorted);
    return true;
}
