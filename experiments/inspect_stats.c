#include "experiments/inspect_stats.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranking ---- */

bk_status bk_peaks_init(bk_peaks *p, int cap, bk_error *err)
{
    *p = (bk_peaks){.item = calloc((size_t)cap, sizeof *p->item), .cap = cap};
    return p->item ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a list of %d", cap);
}

void bk_peaks_free(bk_peaks *p)
{
    free(p->item);
    *p = (bk_peaks){0};
}

void bk_peaks_add(bk_peaks *p, const bk_peak *peak)
{
    if (p->n == p->cap && !(peak->size > p->item[p->cap - 1].size)) return;
    int at = p->n < p->cap ? p->n++ : p->cap - 1;
    for (; at > 0 && peak->size > p->item[at - 1].size; at--) p->item[at] = p->item[at - 1];
    p->item[at] = *peak;
}

/* ---- rows ---- */

void bk_rows_init(bk_rows *r, int64_t row_len, bk_row_fn *done, void *user)
{
    *r = (bk_rows){.row_len = row_len, .done = done, .user = user, .row = {.size = -1, .channel = -1}};
}

bk_status bk_rows_add(bk_rows *r, const double *v, int64_t n, bk_error *err)
{
    for (int64_t i = 0; i < n;) {
        int64_t channel = r->n % r->row_len, left = r->row_len - channel, len = left < n - i ? left : n - i;
        int64_t best = -1;
        double size = r->row.size;
        for (int64_t k = i; k < i + len; k++) {
            double x = fabs(v[k]);
            if (x > size && x <= DBL_MAX) size = x, best = k;
        }
        if (best >= 0) r->row = (bk_peak){.size = size, .value = v[best], .channel = channel + best - i};
        i += len, r->n += len;
        if (len < left) break;
        r->row.at = r->n / r->row_len - 1;
        BK_TRY(r->done(r->user, &r->row, err));
        r->row = (bk_peak){.size = -1, .channel = -1};
    }
    return BK_OK;
}

/* Sizes are told apart by the first bits of a float: sign 0, exponent and the 10 bits of fraction that an f16 has. */
enum { CUT = 13, SIZES = 1 << (31 - CUT) };

static int64_t class_of(double size)
{
    float f = size > FLT_MAX ? FLT_MAX : (float)size;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u >> CUT;
}

static double size_of(int64_t class)
{
    uint32_t u = (uint32_t)class << CUT;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static bk_status end_row(void *user, const bk_peak *row, bk_error *err)
{
    (void)err;
    bk_stats *s = user;
    if (row->channel < 0) return BK_OK;
    bk_peaks_add(&s->rows, row);
    s->row_sizes[class_of(row->size)]++;
    s->n_rows++;
    return BK_OK;
}

static double median_of_rows(const bk_stats *s)
{
    int64_t seen = 0;
    for (int64_t i = 0; s->n_rows && i < SIZES; i++)
        if ((seen += s->row_sizes[i]) > (s->n_rows - 1) / 2) return size_of(i);
    return NAN;
}

/* ---- all values ---- */

bk_status bk_stats_init(bk_stats *s, int64_t row_len, int top, bk_error *err)
{
    *s = (bk_stats){.row_len = row_len,
                    .min = INFINITY,
                    .max = -INFINITY,
                    .min_at = -1,
                    .max_at = -1,
                    .nan_at = -1,
                    .inf_at = -1,
                    .row_median = NAN,
                    .channel_median = NAN};
    bk_status status = bk_peaks_init(&s->values, top, err);
    if (status == BK_OK) status = bk_peaks_init(&s->rows, top, err);
    if (status == BK_OK) status = bk_peaks_init(&s->channels, top, err);
    if (status == BK_OK && row_len > 0) {
        bool keep = row_len <= BK_CHANNELS_MAX;
        bk_rows_init(&s->each_row, row_len, end_row, s);
        s->row_sizes = calloc(SIZES, sizeof *s->row_sizes);
        if (keep) s->channel = malloc((size_t)row_len * sizeof *s->channel);
        if (!s->row_sizes || (keep && !s->channel))
            status = bk_fail(err, BK_ENOMEM, "no memory for the statistics of %lld channels", (long long)row_len);
        for (int64_t k = 0; s->channel && k < row_len; k++)
            s->channel[k] = (bk_peak){.size = -1, .at = -1, .channel = k};
    }
    if (status != BK_OK) bk_stats_free(s);
    return status;
}

void bk_stats_free(bk_stats *s)
{
    bk_peaks_free(&s->values);
    bk_peaks_free(&s->rows);
    bk_peaks_free(&s->channels);
    free(s->row_sizes);
    free(s->channel);
    s->row_sizes = NULL;
    s->channel = NULL;
}

static void count_nonfinite(bk_stats *s, double v, int64_t flat)
{
    int64_t *first = isnan(v) ? &s->nan_at : &s->inf_at;
    if (*first < 0) *first = flat;
    if (isnan(v)) s->nan++;
    else s->inf++;
}

/* Returns how many are finite. */
static int64_t add_values(bk_stats *s, const double *v, int64_t n)
{
    int64_t zeros = 0, saturated = 0, nonfinite = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(v[i]);
        if (!(size <= DBL_MAX)) {
            count_nonfinite(s, v[i], s->n + i);
            nonfinite++;
            continue;
        }
        zeros += size == 0;
        saturated += size == 65504.0;
        if (v[i] < s->min) s->min = v[i], s->min_at = s->n + i;
        if (v[i] > s->max) s->max = v[i], s->max_at = s->n + i;
        if (s->values.n < s->values.cap || size > s->values.item[s->values.cap - 1].size)
            bk_peaks_add(&s->values, &(bk_peak){.size = size, .value = v[i], .at = s->n + i});
    }
    s->zeros += zeros;
    s->saturated += saturated;
    return n - nonfinite;
}

static void add_channels(bk_stats *s, const double *v, int64_t n)
{
    int64_t row = s->n / s->row_len, k = s->n % s->row_len;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(v[i]);
        if (size > s->channel[k].size && size <= DBL_MAX)
            s->channel[k] = (bk_peak){.size = size, .value = v[i], .at = row, .channel = k};
        if (++k == s->row_len) k = 0, row++;
    }
}

/* The moments of a block of which `count` values are finite about its own mean, then joined to those of all before.
 * Source: P. Pebay, SAND2008-6212 (2008), eq. 2.1, 3.1. */
static void join_moments(bk_stats *s, const double *v, int64_t n, int64_t count)
{
    double sum = 0, m2 = 0, m3 = 0, m4 = 0;
    if (count == 0) return;
    for (int64_t i = 0; i < n; i++)
        if (fabs(v[i]) <= DBL_MAX) sum += v[i];
    double mean = sum / (double)count;
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(v[i]) <= DBL_MAX)) continue;
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

bk_status bk_stats_add(bk_stats *s, const double *v, int64_t n, bk_error *err)
{
    join_moments(s, v, n, add_values(s, v, n));
    if (s->channel) add_channels(s, v, n);
    s->n += n;
    return s->row_len ? bk_rows_add(&s->each_row, v, n, err) : BK_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Puts v in order. */
static double lower_median(double *v, int64_t n)
{
    if (n == 0) return NAN;
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[(n - 1) / 2];
}

bk_status bk_stats_end(bk_stats *s, bk_error *err)
{
    s->row_median = s->row_sizes ? median_of_rows(s) : NAN;
    if (!s->channel) return BK_OK;
    double *size = malloc((size_t)s->row_len * sizeof *size);
    if (!size) return bk_fail(err, BK_ENOMEM, "no memory for the median of %lld channels", (long long)s->row_len);
    int64_t n = 0;
    for (int64_t k = 0; k < s->row_len; k++) {
        if (s->channel[k].at < 0) continue; /* nothing finite in it */
        bk_peaks_add(&s->channels, &s->channel[k]);
        size[n++] = s->channel[k].size;
    }
    s->channel_median = lower_median(size, n);
    free(size);
    return BK_OK;
}

double bk_stats_std(const bk_stats *s)
{
    return s->finite ? sqrt(s->m2 / (double)s->finite) : NAN;
}

double bk_stats_kurtosis(const bk_stats *s)
{
    return s->m2 > 0 ? (double)s->finite * s->m4 / (s->m2 * s->m2) : NAN;
}
