/* Pictures of the training: loss before, during and after, and the gradient norm of every step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/report.h"

#define MOST_BLOCKS 100000
#define MOST_CHANGE 1e12 /* percent */
#define MOST_MARKS  4000 /* along the axis of steps; more are drawn as bands */

/* The epochs that count: where the numeric guard began a block again, the lines of the attempt before are passed
 * over. */
typedef struct history {
    const bk_json **line;
    size_t n;
    int64_t blocks, epochs;
} history;

static int64_t field(const bk_json *line, const char *key)
{
    int64_t v = bk_json_int(bk_json_get(line, key), -1);
    return v < (int64_t)1 << 40 ? v : -1;
}

/* Backwards: a line counts if no later one of its block has its epoch or an earlier one. False: no memory. */
static bool read_history(const bk_report_run *r, history *h)
{
    size_t all = bk_json_size(r->metrics);
    int64_t block = -1, earliest = INT64_MAX;
    *h = (history){.line = malloc((all + 1) * sizeof *h->line)};
    if (!h->line) return false;
    size_t first = all;
    for (size_t i = all; i-- > 0;) {
        const bk_json *line = bk_json_at(r->metrics, i);
        int64_t b = field(line, "block"), e = field(line, "epoch");
        if (b < 0 || b >= MOST_BLOCKS || e < 1 || (b == block && e >= earliest)) continue;
        h->line[--first] = line;
        h->blocks = b + 1 > h->blocks ? b + 1 : h->blocks;
        h->epochs = e > h->epochs ? e : h->epochs;
        block = b;
        earliest = e;
    }
    h->n = all - first;
    memmove(h->line, h->line + first, h->n * sizeof *h->line);
    return true;
}

static bool trained(const bk_report_run *r, const history *h, bk_picture *p)
{
    if (h->n) return true;
    if (*r->why_metrics)
        bk_picture_missing(p, "%s", r->why_metrics);
    else if (r->cfg && r->cfg->train.epochs == 0)
        bk_picture_missing(p, "The run does not train (train.epochs: 0).");
    else if (r->summary || bk_json_size(r->metrics))
        bk_picture_missing(p, "metrics.jsonl holds no epoch of the training.");
    else
        bk_picture_missing(p, "No epoch of the training is finished yet.");
    return false;
}

static double of_block(const bk_report_run *r, int64_t block, const char *key)
{
    return bk_json_num(bk_json_get(bk_json_at(bk_json_get(r->summary, "blocks"), (size_t)block), key), NAN);
}

/* --- losses --- */

static void range_of_losses(const bk_report_run *r, const history *h, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (size_t i = 0; i < h->n; i++) {
        int64_t b = field(h->line[i], "block");
        const double v[] = {bk_json_num(bk_json_get(h->line[i], "val_loss"), NAN), of_block(r, b, "loss_init"),
                            of_block(r, b, "loss_final")};
        for (int k = 0; k < 3; k++) {
            *lo = fmin(*lo, bk_on_log_axis(v[k]));
            *hi = fmax(*hi, bk_on_log_axis(v[k]));
        }
    }
}

static void put_pair(bk_picture *p, double x, double y)
{
    bk_buffer_add(&p->script, "%.6g ", x);
    bk_number_add(&p->script, y);
    bk_buffer_add(&p->script, "\n");
}

static void put_losses(const bk_report_run *r, const history *h, bk_picture *p)
{
    bk_buffer_add(&p->script, "$during << EOD\n");
    for (size_t i = 0; i < h->n; i++)
        put_pair(p, (double)field(h->line[i], "block"),
                 bk_on_log_axis(bk_json_num(bk_json_get(h->line[i], "val_loss"), NAN)));
    bk_buffer_add(&p->script, "EOD\n");
    for (int k = 0; k < 2 && r->summary; k++) {
        bk_buffer_add(&p->script, k ? "$after << EOD\n" : "$before << EOD\n");
        for (int64_t b = 0; b < h->blocks; b++)
            put_pair(p, (double)b, bk_on_log_axis(of_block(r, b, k ? "loss_final" : "loss_init")));
        bk_buffer_add(&p->script, "EOD\n");
    }
}

/* Curves of all blocks: the change in percent of the loss before training, or of the first epoch's while that is not
 * known. */
static void put_curves(const bk_report_run *r, const history *h, bk_picture *p, double *lo, double *hi)
{
    double base = NAN;
    int64_t block = -1;
    *lo = *hi = 0;
    bk_buffer_add(&p->script, "$curves << EOD\n");
    for (size_t i = 0; i < h->n; i++) {
        int64_t b = field(h->line[i], "block");
        double loss = bk_json_num(bk_json_get(h->line[i], "val_loss"), NAN);
        if (b != block) {
            bk_buffer_add(&p->script, block >= 0 ? "\n" : "");
            base = r->summary ? bk_on_log_axis(of_block(r, b, "loss_init")) : bk_on_log_axis(loss);
            if (r->summary) bk_buffer_add(&p->script, "0 0 %lld\n", (long long)b);
        }
        double change = 100 * (loss / base - 1);
        if (!(fabs(change) < MOST_CHANGE)) change = NAN;
        block = b;
        bk_buffer_add(&p->script, "%lld ", (long long)field(h->line[i], "epoch"));
        bk_number_add(&p->script, change);
        bk_buffer_add(&p->script, " %lld\n", (long long)b);
        *lo = fmin(*lo, change);
        *hi = fmax(*hi, change);
    }
    bk_buffer_add(&p->script, "EOD\n");
}

static void draw_losses(const bk_report_run *r, const history *h, bk_picture *p, double lo, double hi)
{
    double fall, rise;
    bk_picture_begin(p, 960, 680);
    put_losses(r, h, p);
    put_curves(r, h, p, &fall, &rise);
    bk_buffer_add(&p->script,
                  "set multiplot\n"
                  "set xlabel 'block' offset 0,0.4\n"
                  "set ylabel 'validation loss (log)'\n"
                  "set xrange [-0.5:%lld.5]\n"
                  "set xtics 0,%lld\n"
                  "set key at graph 1.03, graph 1 left top Left reverse\n",
                  (long long)h->blocks - 1, (long long)(h->blocks / 16 + 1));
    bk_picture_panel(p, 0.1, 0.82, 0.59, 0.97);
    bk_picture_log(p, 'y', lo, hi);
    bk_buffer_add(&p->script, "plot ");
    if (r->summary)
        bk_buffer_add(&p->script, "$before using 1:2 with points pt 6 ps 0.8 lw 1.6 lc rgb '#D55E00' title 'before', ");
    bk_buffer_add(&p->script, "$during using 1:2 with points pt 7 ps 0.3 lc rgb '#777777' title 'each epoch'%s\n",
                  r->summary ? ", $after using 1:2 with points pt 7 ps 0.6 lc rgb '#0072B2' title 'after (kept)'" : "");
    bk_picture_panel(p, 0.1, 0.82, 0.1, 0.48);
    bk_picture_linear(p, 'y', fall, rise);
    bk_buffer_add(&p->script,
                  "unset key\n"
                  "set xzeroaxis lt 1 lc rgb '#999999'\n"
                  "set xlabel 'epoch' offset 0,0.4\n"
                  "set ylabel 'change of the loss [%%]'\n"
                  "set xrange [%d:%lld]\n"
                  "set xtics %lld\n",
                  r->summary ? 0 : 1, (long long)(h->epochs > 1 || r->summary ? h->epochs : 2),
                  (long long)(h->epochs / 12 + 1));
    bk_buffer_add(&p->script,
                  "set palette defined (0 '#440154', 1 '#3b528b', 2 '#21918c', 3 '#5ec962', 4 '#e3c51a')\n"
                  "set cbrange [0:%lld]\n"
                  "set cblabel 'block' offset 1.2,0\n"
                  "set colorbox user origin 0.85,0.1 size 0.02,0.38\n"
                  "set format cb '%%.0f'\n"
                  "set cbtics 0,%lld\n"
                  "plot $curves using 1:2:3 with linespoints lw 1.2 pt 7 ps 0.25 lc palette notitle\n"
                  "unset multiplot\n",
                  (long long)(h->blocks > 1 ? h->blocks - 1 : 1), (long long)(h->blocks / 8 + 1));
}

void bk_report_losses(const bk_report_run *r, bk_picture *p)
{
    history h;
    double lo, hi;
    if (!read_history(r, &h)) {
        p->script.failed = true;
        return;
    }
    range_of_losses(r, &h, &lo, &hi);
    if (trained(r, &h, p) && !(lo <= hi)) bk_picture_missing(p, "metrics.jsonl holds no loss above zero.");
    if (!*p->missing) {
        draw_losses(r, &h, p, lo, hi);
        bk_buffer_add(&p->caption,
                      "Validation loss of each block before training, after each epoch, and of what was kept "
                      "(logarithmic axis); below, its "
                      "change since %s. ",
                      r->summary ? "before the training" : "the first epoch");
        bk_html_add(&p->caption,
                    r->summary
                        ? ""
                        : "The losses before and after stand in summary.json, which comes with the end of the run. ");
        bk_html_add(&p->caption, r->why_metrics);
    }
    free(h.line);
}

/* --- gradient norms --- */

typedef struct bin {
    double lo, hi, sum;
    int64_t n;
} bin;

/* Steps of the lines first .. end - 1, which are one block's, in at most `bins` bins; lines of older runs have a mean per
 * epoch only. */
static void put_block(const history *h, size_t first, size_t end, int64_t bins, bk_picture *p, bin *bin_of)
{
    int64_t steps = field(h->line[end - 1], "step"), block = field(h->line[first], "block"),
            n = steps < bins ? steps : bins;
    if (steps < 1) return;
    for (int64_t k = 0; k < n; k++) bin_of[k] = (bin){INFINITY, -INFINITY, 0, 0};
    for (size_t i = first; i < end; i++) {
        const bk_json *norms = bk_json_get(h->line[i], "grad_norms");
        int64_t count = (int64_t)bk_json_size(norms), last = field(h->line[i], "step");
        for (int64_t k = 0; k < (count ? count : 1); k++) {
            double x = bk_on_log_axis(
                bk_json_num(count ? bk_json_at(norms, (size_t)k) : bk_json_get(h->line[i], "grad_norm"), NAN));
            int64_t step = last - count + k - (count == 0);
            if (isnan(x) || step < 0 || step >= steps) continue;
            bin *b = &bin_of[step * n / steps]; /* whole numbers: bins of the same size */
            b->lo = fmin(b->lo, x);
            b->hi = fmax(b->hi, x);
            b->sum += x;
            b->n++;
        }
    }
    for (int64_t k = 0; k < n; k++)
        if (bin_of[k].n)
            bk_buffer_add(&p->script, "%.6g %.6g %.6g %.6g\n", (double)block + ((double)k + 0.5) / (double)n,
                          bin_of[k].sum / (double)bin_of[k].n, bin_of[k].lo, bin_of[k].hi);
    bk_buffer_add(&p->script, "\n");
}

static bool per_step(const history *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (bk_json_size(bk_json_get(h->line[i], "grad_norms"))) return true;
    return false;
}

static bool range_of_norms(const history *h, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (size_t i = 0; i < h->n; i++) {
        const bk_json *norms = bk_json_get(h->line[i], "grad_norms"), *mean = bk_json_get(h->line[i], "grad_norm");
        for (size_t k = 0; k < bk_json_size(norms) + 1; k++) {
            double x = bk_on_log_axis(bk_json_num(k ? bk_json_at(norms, k - 1) : mean, NAN));
            *lo = fmin(*lo, x);
            *hi = fmax(*hi, x);
        }
    }
    return *lo <= *hi;
}

/* True if steps had to share a mark. */
static bool put_norms(const history *h, bk_picture *p)
{
    int64_t bins = MOST_MARKS / (h->blocks ? h->blocks : 1);
    bool shared = false;
    bins = bins < 20 ? 20 : bins;
    bin *bin_of = malloc((size_t)bins * sizeof *bin_of);
    p->script.failed |= !bin_of;
    bk_buffer_add(&p->script, "$norms << EOD\n");
    for (size_t i = 0, end; bin_of && i < h->n; i = end) {
        for (end = i; end < h->n && field(h->line[end], "block") == field(h->line[i], "block"); end++) {
        }
        put_block(h, i, end, bins, p, bin_of);
        shared |= field(h->line[end - 1], "step") > bins;
    }
    bk_buffer_add(&p->script, "EOD\n");
    free(bin_of);
    return shared;
}

static void draw_norms(const history *h, bk_picture *p, double lo, double hi)
{
    bool steps = per_step(h);
    bk_picture_begin(p, 960, 360);
    bool shared = put_norms(h, p);
    bk_picture_panel(p, 0.1, 0.98, 0.19, 0.95);
    bk_picture_log(p, 'y', lo, hi);
    bk_buffer_add(&p->script,
                  "set xrange [0:%lld]\n"
                  "set xtics %lld\n"
                  "set xlabel 'block; its steps run from left to right' offset 0,0.4\n"
                  "set ylabel 'gradient norm (log)'\n"
                  "set grid xtics\nunset key\nplot ",
                  (long long)h->blocks, (long long)(h->blocks / 32 + 1));
    if (shared)
        bk_buffer_add(&p->script,
                      "$norms using 1:3:4 with filledcurves fs solid 0.3 noborder lc rgb '#56B4E9' notitle, ");
    bk_buffer_add(&p->script, "$norms using 1:2 with %s ls 1 lw 1.1 notitle\n", steps ? "lines" : "linespoints");
    bk_buffer_add(
        &p->caption, "%s %s",
        steps ? "Euclidean norm of all gradients at every step of the training, block after block (logarithmic axis)."
              : "Euclidean norm of all gradients, mean over the steps of an epoch, block after block (logarithmic "
                "axis). The run was made "
                "before brick kept the norm of every step.",
        shared ? "Neighbouring steps share a mark: the line is their mean, the band reaches from the smallest to the "
                 "largest. "
               : "");
}

void bk_report_gradients(const bk_report_run *r, bk_picture *p)
{
    history h;
    double lo = NAN, hi = NAN;
    if (!read_history(r, &h)) {
        p->script.failed = true;
        return;
    }
    if (trained(r, &h, p) && !range_of_norms(&h, &lo, &hi))
        bk_picture_missing(p, "metrics.jsonl holds no gradient norm above zero.");
    if (!*p->missing) {
        draw_norms(&h, p, lo, hi);
        bk_html_add(&p->caption, r->why_metrics);
    }
    free(h.line);
}
