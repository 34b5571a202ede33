/* Picture of the levels of token maxima per block: original, rotated, with prefix.
 * Source: PrefixQuant (arXiv 2410.05265), figure 3. */
#include <math.h>

#include "experiments/report.h"

static const struct {
    const char *site, *label;
} rows[] = {{"down_raw", "down_proj inputs"},
            {"block_out", "block outputs"},
            {"query", "queries"},
            {"key", "keys"},
            {"value", "values"}};
enum { ROWS = sizeof rows / sizeof rows[0], LEVELS = 5 };
static const struct {
    const char *key, *label;
    int style;
} levels[LEVELS] = {
    {"top1", "top-1", 2}, {"top2", "top-2", 4}, {"top3", "top-3", 5}, {"median", "median", 7}, {"min1", "min-1", 1}};

static double level(const bk_json *stage, size_t block, int row, int k)
{
    const bk_json *sites = bk_json_get(bk_json_at(bk_json_get(stage, "blocks"), block), "sites");
    double x = bk_json_num(bk_json_get(bk_json_get(sites, rows[row].site), levels[k].key), NAN);
    return bk_on_log_axis(x);
}

static size_t blocks_of(const bk_report_run *r)
{
    return bk_json_size(bk_json_get(bk_report_stage(r, 0), "blocks"));
}

static void put_levels(const bk_report_run *r, bk_picture *p, int stage)
{
    bk_buffer_add(&p->script, "$stage%d << EOD\n", stage);
    for (size_t b = 0; b < blocks_of(r); b++) {
        bk_buffer_add(&p->script, "%zu", b);
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < LEVELS; k++) {
                bk_buffer_add(&p->script, " ");
                bk_number_add(&p->script, level(bk_report_stage(r, stage), b, row, k));
            }
        bk_buffer_add(&p->script, "\n");
    }
    bk_buffer_add(&p->script, "EOD\n");
}

/* Of a row over all stages, which share their axis. False if there is no number. */
static bool range_of_row(const bk_report_run *r, int row, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int s = 0; s < BK_REPORT_STAGES; s++)
        for (size_t b = 0; bk_report_stage(r, s) && b < blocks_of(r); b++)
            for (int k = 0; k < LEVELS; k++) {
                double x = level(bk_report_stage(r, s), b, row, k);
                *lo = fmin(*lo, x);
                *hi = fmax(*hi, x);
            }
    return *lo <= *hi;
}

static void plot_levels(bk_picture *p, int row, int stage)
{
    bk_buffer_add(&p->script, "plot ");
    for (int k = 0; k < LEVELS; k++)
        bk_buffer_add(&p->script, "%s$stage%d using 1:%d with linespoints ls %d notitle", k ? ", " : "", stage,
                      2 + row * LEVELS + k, levels[k].style);
    bk_buffer_add(&p->script, "\n");
}

static void panel_of_levels(const bk_report_run *r, bk_picture *p, int row, int stage)
{
    double lo, hi, left = 0.11 + 0.298 * stage, top = 0.945 - 0.182 * row;
    if (!range_of_row(r, row, &lo, &hi)) return;
    bk_picture_panel(p, left, left + 0.278, top - 0.153, top);
    bk_picture_log(p, 'y', lo, hi);
    bk_buffer_add(&p->script, row == 0 ? "set title '%s' offset 0,-0.6\n" : "unset title\n",
                  bk_report_stage_name[stage]);
    if (stage == 0)
        bk_buffer_add(&p->script, "set ylabel \"%s\\nmax |x| (log)\" offset 0.5,0\n", rows[row].label);
    else
        bk_buffer_add(&p->script, "unset ylabel\nset format y ''\n");
    bk_buffer_add(&p->script, row == ROWS - 1 ? "set xlabel 'block' offset 0,0.4\n" : "unset xlabel\n");
    plot_levels(p, row, stage);
}

/* One key above all panels: a last panel of its own, whose lines lie outside it. */
static void key_of_levels(bk_picture *p)
{
    bk_picture_panel(p, 0.11, 0.985, 0.972, 0.998);
    bk_buffer_add(&p->script, "unset border\n"
                              "unset tics\n"
                              "unset xlabel\n"
                              "unset ylabel\n"
                              "unset logscale\n"
                              "set yrange [0:1]\n"
                              "set key center horizontal width 2\n"
                              "plot ");
    for (int k = 0; k < LEVELS; k++)
        bk_buffer_add(&p->script, "%s2 with linespoints ls %d title '%s'", k ? ", " : "", levels[k].style,
                      levels[k].label);
    bk_buffer_add(&p->script, "\n");
}

void bk_report_maxima(const bk_report_run *r, bk_picture *p)
{
    double lo, hi;
    if (!bk_report_measured(r, p)) return;
    if (!range_of_row(r, 0, &lo, &hi)) {
        bk_picture_missing(p, "report/data.json holds no levels of token maxima; remove it to measure again.");
        return;
    }
    bk_picture_begin(p, 960, 1240);
    for (int s = 0; s < BK_REPORT_STAGES; s++)
        if (bk_report_stage(r, s)) put_levels(r, p, s);
    bk_buffer_add(&p->script,
                  "set xrange [-0.5:%zu.5]\n"
                  "set xtics 0,%zu\n"
                  "set multiplot\n"
                  "unset key\n",
                  blocks_of(r) - 1, blocks_of(r) / 7 + 1);
    for (int row = 0; row < ROWS; row++)
        for (int s = 0; s < BK_REPORT_STAGES; s++)
            if (bk_report_stage(r, s)) panel_of_levels(r, p, row, s);
    key_of_levels(p);
    bk_buffer_add(&p->script, "unset multiplot\n");
    bk_buffer_add(&p->caption, "Largest magnitudes of tokens: of the largest |x| over the channels of each token, the "
                               "three largest, the median and the "
                               "smallest over the tokens of a sequence, mean over sequences. Logarithmic axes, the "
                               "same along a row. Queries and keys "
                               "after RoPE and R3, down_proj inputs before R4.");
    bk_report_say_absent(r, p);
    bk_report_say_samples(r, p);
}
