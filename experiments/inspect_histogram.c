#include "experiments/inspect_histogram.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bk_status bk_histogram_init(bk_histogram *h, double low, double high, int bins, bk_error *err)
{
    double width = high / bins - low / bins; /* high - low may not be finite */
    bool one = bins == 1 || !(low + width > low);
    *h = (bk_histogram){.bins = one ? 1 : bins, .low = low, .high = high, .width = one ? high - low : width};
    h->count = calloc((size_t)h->bins, sizeof *h->count);
    return h->count ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a histogram of %d bins", bins);
}

void bk_histogram_free(bk_histogram *h)
{
    free(h->count);
    h->count = NULL;
}

void bk_histogram_add(bk_histogram *h, const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(v[i]) <= DBL_MAX)) continue;
        double at = h->bins > 1 ? v[i] / h->width - h->low / h->width : 0;
        h->count[at >= h->bins ? h->bins - 1 : at > 0 ? (int)at : 0]++;
    }
}

double bk_histogram_edge(const bk_histogram *h, int bin)
{
    return bin == h->bins ? h->high : h->low + bin * h->width;
}

static void draw_bar(FILE *out, double part, int cells, bool utf8)
{
    static const char *const eighth[] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
    int steps = utf8 ? 8 : 1, n = (int)lround(part * cells * steps);
    if (part > 0 && n == 0) n = 1;
    for (int k = 0; k < n / steps; k++) fputs(utf8 ? "\u2588" : "#", out);
    if (n % steps) fputs(eighth[n % steps], out);
}

void bk_histogram_draw(const bk_histogram *h, FILE *out, int columns, bool log, bool utf8)
{
    int edge_width = 0, count_width = 0;
    int64_t most = 1;
    for (int k = 0; k <= h->bins; k++) {
        int n = snprintf(NULL, 0, "%.4g", bk_histogram_edge(h, k));
        if (n > edge_width) edge_width = n;
        if (k == h->bins) break;
        n = snprintf(NULL, 0, "%" PRId64, h->count[k]);
        if (n > count_width) count_width = n;
        if (h->count[k] > most) most = h->count[k];
    }
    int cells = columns - (2 * edge_width + count_width + 8);
    if (cells < 10) cells = 10;
    fprintf(out, "\nhistogram of the finite values, bars by %s\n", log ? "log(1 + count)" : "count");
    for (int k = 0; k < h->bins; k++) {
        double count = (double)h->count[k], part = log ? log1p(count) / log1p((double)most) : count / (double)most;
        fprintf(out, "%*.4g .. %*.4g  %*" PRId64 "%s", edge_width, bk_histogram_edge(h, k), edge_width,
                bk_histogram_edge(h, k + 1), count_width, h->count[k], h->count[k] ? "  " : "");
        draw_bar(out, part, cells, utf8);
        fputc('\n', out);
    }
}
