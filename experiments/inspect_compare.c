#include "experiments/inspect_compare.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const bk_peak no_pair = {.at = -1, .channel = -1};

bk_status bk_comparison_init(bk_comparison *c, int64_t row_len, int top, bk_error *err)
{
    *c = (bk_comparison){.nan_at = {-1, -1}, .inf_at = {-1, -1}, .max_at = -1, .row_len = row_len, .row = no_pair};
    bk_status status = bk_peaks_init(&c->rows, top, err);
    if (status == BK_OK) status = bk_peaks_init(&c->channels, top, err);
    if (status == BK_OK && row_len > 0 && row_len <= BK_CHANNELS_MAX) {
        c->channel = malloc((size_t)row_len * sizeof *c->channel);
        if (!c->channel)
            status = bk_fail(err, BK_ENOMEM, "no memory for the comparison of %lld channels", (long long)row_len);
        for (int64_t k = 0; c->channel && k < row_len; k++) c->channel[k] = no_pair;
    }
    if (status != BK_OK) bk_comparison_free(c);
    return status;
}

void bk_comparison_free(bk_comparison *c)
{
    bk_peaks_free(&c->rows);
    bk_peaks_free(&c->channels);
    free(c->channel);
    c->channel = NULL;
}

static bool is_finite(double v)
{
    return fabs(v) <= DBL_MAX;
}

static void count_nonfinite(bk_comparison *c, int side, double v, int64_t flat)
{
    if (is_finite(v)) return;
    int64_t *count = isnan(v) ? &c->nan[side] : &c->inf[side], *first = isnan(v) ? &c->nan_at[side] : &c->inf_at[side];
    if (++*count == 1) *first = flat;
}

static void add_to(bk_peak *sums, double error, double reference, int64_t row, int64_t channel)
{
    sums->size += error * error;
    sums->signal += reference * reference;
    if (++sums->n == 1 || fabs(error) > fabs(sums->value)) sums->value = error, sums->at = row, sums->channel = channel;
}

static bk_peak mean_of(const bk_peak *sums)
{
    bk_peak mean = *sums;
    if (mean.n > 0) mean.size /= (double)mean.n, mean.signal /= (double)mean.n;
    return mean;
}

static bk_status end_row(bk_comparison *c, int64_t row, bk_error *err)
{
    bk_peak mean = mean_of(&c->row);
    mean.at = row;
    if (mean.size > 0) bk_peaks_add(&c->rows, &mean);
    c->row = no_pair;
    return c->on_row ? c->on_row(c->user, &mean, err) : BK_OK;
}

/* Sums over a part of one row, joined to those before it: many small sums lose less than a long one. */
static bk_status add_piece(bk_comparison *c, const double *value, const double *reference, int64_t n, bk_error *err)
{
    int64_t row = c->row_len ? c->n / c->row_len : 0, first = c->row_len ? c->n % c->row_len : 0;
    double error2 = 0, signal[2] = {0}, dot = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = value[i], r = reference[i], e = v - r;
        if (!is_finite(v) || !is_finite(r)) {
            count_nonfinite(c, 0, v, c->n + i);
            count_nonfinite(c, 1, r, c->n + i);
            continue;
        }
        c->finite++;
        c->unequal += e != 0;
        error2 += e * e, signal[0] += v * v, signal[1] += r * r, dot += v * r;
        if (c->max_at < 0 || fabs(e) > fabs(c->max_error)) {
            c->max_error = e, c->max_at = c->n + i;
            c->max_pair[0] = v, c->max_pair[1] = r;
        }
        if (c->row_len) add_to(&c->row, e, r, row, first + i);
        if (c->channel) add_to(&c->channel[first + i], e, r, row, first + i);
    }
    c->error2 += error2, c->signal[0] += signal[0], c->signal[1] += signal[1], c->dot += dot;
    c->n += n;
    return c->row_len && first + n == c->row_len ? end_row(c, row, err) : BK_OK;
}

bk_status bk_comparison_add(bk_comparison *c, const double *value, const double *reference, int64_t n, bk_error *err)
{
    enum { PIECE = 4096 };
    for (int64_t i = 0, len; i < n; i += len) {
        len = c->row_len ? c->row_len - c->n % c->row_len : PIECE;
        if (len > n - i) len = n - i;
        BK_TRY(add_piece(c, value + i, reference + i, len, err));
    }
    return BK_OK;
}

void bk_comparison_end(bk_comparison *c)
{
    for (int64_t k = 0; c->channel && k < c->row_len; k++) {
        c->channel[k] = mean_of(&c->channel[k]);
        if (c->channel[k].size > 0) bk_peaks_add(&c->channels, &c->channel[k]);
    }
}

double bk_comparison_mse(const bk_comparison *c)
{
    return c->finite ? c->error2 / (double)c->finite : NAN;
}

double bk_comparison_cosine(const bk_comparison *c)
{
    double length = sqrt(c->signal[0]) * sqrt(c->signal[1]);
    return length > 0 ? c->dot / length : NAN;
}

double bk_snr(double signal2, double error2)
{
    return error2 > 0 || signal2 > 0 ? 10 * log10(signal2 / error2) : NAN;
}
