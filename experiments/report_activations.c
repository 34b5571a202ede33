/* Pictures of activations: levels of token maxima per block, outlier tokens, and the quantization error of tokens.
 * Source: PrefixQuant (arXiv 2410.05265), figures 1 to 4. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report.h"

#define STAGES 3
#define BINS 16     /* of sequences by their number of outlier tokens */
#define POSITIONS 9 /* bins of positions */

static const char *const stage_name[STAGES] = {"original", "rotated", "with prefix"};

/* A stage of the measurement, NULL if it was not measured. */
static const bk_json *stage_of(const bk_report_run *r, int k)
{
    const bk_json *stages = bk_json_get(r->data, "stages");
    for (size_t i = 0; i < bk_json_size(stages); i++)
        if (!strcmp(bk_json_str(bk_json_get(bk_json_at(stages, i), "stage"), ""), stage_name[k])) return bk_json_at(stages, i);
    return NULL;
}

static int64_t whole(const bk_report_run *r, const char *key)
{
    int64_t n = bk_json_int(bk_json_get(r->data, key), 0);
    return n > 0 && n < (int64_t)1 << 40 ? n : 0;
}

/* False, with the reason, if nothing was measured. */
static bool measured(const bk_report_run *r, bk_picture *p)
{
    if (!r->data) bk_picture_missing(p, "%s", *r->why_data ? r->why_data : "Not measured.");
    else if (!stage_of(r, 0)) bk_picture_missing(p, "report/data.json does not hold what it should; remove it to measure again.");
    return !*p->missing;
}

/* Why one of the columns is not there, for captions. */
static void say_absent(const bk_report_run *r, bk_picture *p)
{
    if (!stage_of(r, 1)) bk_buffer_add(&p->caption, " The run does not rotate.");
    if (!stage_of(r, 2))
        bk_buffer_add(&p->caption, r->cfg && r->cfg->prefix.mode == BK_PREFIX_NONE ? " The run has no prefix." : " The run has chosen no prefix yet.");
}

static void say_samples(const bk_report_run *r, bk_picture *p)
{
    bk_buffer_add(&p->caption, " Measured on %lld sequences of %lld tokens of ", (long long)whole(r, "samples"), (long long)whole(r, "seqlen"));
    bk_html_add(&p->caption, bk_json_str(bk_json_get(r->data, "text"), "?"));
    bk_buffer_add(&p->caption, ".");
}

/* --- figure 3: levels --- */

static const struct {
    const char *site, *label;
} rows[] = {{"down_raw", "down_proj inputs"}, {"block_out", "block outputs"}, {"query", "queries"}, {"key", "keys"}, {"value", "values"}};
enum { ROWS = sizeof rows / sizeof rows[0], LEVELS = 5 };
static const struct {
    const char *key, *label;
    int style;
} levels[LEVELS] = {{"top1", "top-1", 2}, {"top2", "top-2", 4}, {"top3", "top-3", 5}, {"median", "median", 7}, {"min1", "min-1", 1}};

static double level(const bk_json *stage, size_t block, int row, int k)
{
    const bk_json *sites = bk_json_get(bk_json_at(bk_json_get(stage, "blocks"), block), "sites");
    double x = bk_json_num(bk_json_get(bk_json_get(sites, rows[row].site), levels[k].key), NAN);
    return bk_on_log_axis(x);
}

static size_t blocks_of(const bk_report_run *r)
{
    return bk_json_size(bk_json_get(stage_of(r, 0), "blocks"));
}

static void put_levels(const bk_report_run *r, bk_picture *p, int stage)
{
    bk_buffer_add(&p->script, "$stage%d << EOD\n", stage);
    for (size_t b = 0; b < blocks_of(r); b++) {
        bk_buffer_add(&p->script, "%zu", b);
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < LEVELS; k++) {
                bk_buffer_add(&p->script, " ");
                bk_number_add(&p->script, level(stage_of(r, stage), b, row, k));
            }
        bk_buffer_add(&p->script, "\n");
    }
    bk_buffer_add(&p->script, "EOD\n");
}

/* Of a row over all stages, which share their axis. False if there is no number. */
static bool range_of_row(const bk_report_run *r, int row, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int s = 0; s < STAGES; s++)
        for (size_t b = 0; stage_of(r, s) && b < blocks_of(r); b++)
            for (int k = 0; k < LEVELS; k++) {
                double x = level(stage_of(r, s), b, row, k);
                *lo = fmin(*lo, x);
                *hi = fmax(*hi, x);
            }
    return *lo <= *hi;
}

static void plot_levels(bk_picture *p, int row, int stage)
{
    bk_buffer_add(&p->script, "plot ");
    for (int k = 0; k < LEVELS; k++)
        bk_buffer_add(&p->script, "%s$stage%d using 1:%d with linespoints ls %d notitle", k ? ", " : "", stage, 2 + row * LEVELS + k, levels[k].style);
    bk_buffer_add(&p->script, "\n");
}

static void panel_of_levels(const bk_report_run *r, bk_picture *p, int row, int stage)
{
    double lo, hi, left = 0.11 + 0.298 * stage, top = 0.945 - 0.182 * row;
    if (!range_of_row(r, row, &lo, &hi)) return;
    bk_picture_panel(p, left, left + 0.278, top - 0.153, top);
    bk_picture_log(p, 'y', lo, hi);
    bk_buffer_add(&p->script, row == 0 ? "set title '%s' offset 0,-0.6\n" : "unset title\n", stage_name[stage]);
    if (stage == 0) bk_buffer_add(&p->script, "set ylabel \"%s\\nmax |x| (log)\" offset 0.5,0\n", rows[row].label);
    else bk_buffer_add(&p->script, "unset ylabel\nset format y ''\n");
    bk_buffer_add(&p->script, row == ROWS - 1 ? "set xlabel 'block' offset 0,0.4\n" : "unset xlabel\n");
    plot_levels(p, row, stage);
}

/* One key above all panels: a last panel of its own, whose lines lie outside it. */
static void key_of_levels(bk_picture *p)
{
    bk_picture_panel(p, 0.11, 0.985, 0.972, 0.998);
    bk_buffer_add(&p->script, "unset border\nunset tics\nunset xlabel\nunset ylabel\nunset logscale\nset yrange [0:1]\nset key center horizontal width 2\nplot ");
    for (int k = 0; k < LEVELS; k++)
        bk_buffer_add(&p->script, "%s2 with linespoints ls %d title '%s'", k ? ", " : "", levels[k].style, levels[k].label);
    bk_buffer_add(&p->script, "\n");
}

void bk_report_maxima(const bk_report_run *r, bk_picture *p)
{
    double lo, hi;
    if (!measured(r, p)) return;
    if (!range_of_row(r, 0, &lo, &hi)) {
        bk_picture_missing(p, "report/data.json holds no levels of token maxima; remove it to measure again.");
        return;
    }
    bk_picture_begin(p, 960, 1240);
    for (int s = 0; s < STAGES; s++)
        if (stage_of(r, s)) put_levels(r, p, s);
    bk_buffer_add(&p->script, "set xrange [-0.5:%zu.5]\nset xtics 0,%zu\nset multiplot\nunset key\n", blocks_of(r) - 1, blocks_of(r) / 7 + 1);
    for (int row = 0; row < ROWS; row++)
        for (int s = 0; s < STAGES; s++)
            if (stage_of(r, s)) panel_of_levels(r, p, row, s);
    key_of_levels(p);
    bk_buffer_add(&p->script, "unset multiplot\n");
    bk_buffer_add(&p->caption, "Largest magnitudes of tokens: of the largest |x| over the channels of each token, the three largest, the median and the "
                               "smallest over the tokens of a sequence, mean over sequences. Logarithmic axes, the same along a row. Queries and keys "
                               "after RoPE and R3, down_proj inputs before R4.");
    say_absent(r, p);
    say_samples(r, p);
}

/* --- figure 4: outlier tokens --- */

static const bk_json *tokens_of(const bk_report_run *r, int stage, const char *side)
{
    return bk_json_get(bk_json_get(stage_of(r, stage), side), "tokens");
}

/* Number of tokens in each sequence: how[k] sequences have k, or k .. k + width - 1. */
static void count_sequences(const bk_report_run *r, int stage, const char *side, int64_t width, int64_t how[BINS])
{
    const bk_json *tokens = tokens_of(r, stage, side);
    int64_t samples = whole(r, "samples");
    memset(how, 0, BINS * sizeof *how);
    for (int64_t i = 0, n; i < samples; i++) {
        n = 0;
        for (size_t t = 0; t < bk_json_size(tokens); t++) n += bk_json_int(bk_json_get(bk_json_at(tokens, t), "sequence"), -1) == i;
        n /= width;
        how[n < BINS ? n : BINS - 1]++;
    }
}

/* Tokens of one bar, so that the fullest sequence has its own. */
static int64_t width_of_bins(const bk_report_run *r, const char *side)
{
    int64_t most = 0, samples = whole(r, "samples");
    for (int s = 0; s < STAGES; s++) {
        const bk_json *tokens = tokens_of(r, s, side);
        for (int64_t i = 0; i < samples; i++) {
            int64_t n = 0;
            for (size_t t = 0; t < bk_json_size(tokens); t++) n += bk_json_int(bk_json_get(bk_json_at(tokens, t), "sequence"), -1) == i;
            most = n > most ? n : most;
        }
    }
    return most / BINS + 1;
}

static void tics_of_counts(bk_picture *p, int64_t width, int last)
{
    bk_buffer_add(&p->script, "set xtics (");
    for (int k = 0; k <= last; k++) {
        bk_buffer_add(&p->script, k ? ", " : "");
        if (width == 1) bk_buffer_add(&p->script, "'%d' %d", k, k);
        else bk_buffer_add(&p->script, "'%lld-%lld' %d", (long long)(k * width), (long long)((k + 1) * width - 1), k);
    }
    bk_buffer_add(&p->script, ") %s\nset xrange [-0.6:%d.6]\n", width == 1 ? "norotate" : "rotate by -40", last);
}

/* Whole numbers from zero. */
static void axis_of_counts(bk_picture *p, char axis, int64_t most)
{
    bk_picture_linear(p, axis, 0, (double)most);
    bk_buffer_add(&p->script, "set %ctics norotate 0,%lld\n", axis, (long long)(most / 6 + 1));
}

static void panel_of_counts(const bk_report_run *r, bk_picture *p, const char *side, const char *title)
{
    int64_t width = width_of_bins(r, side), how[STAGES][BINS] = {{0}};
    int last = 1, n = 0;
    for (int s = 0; s < STAGES; s++) {
        if (!stage_of(r, s)) continue;
        count_sequences(r, s, side, width, how[s]);
        for (int k = 0; k < BINS; k++) last = how[s][k] && k > last ? k : last;
        n++;
    }
    bk_buffer_add(&p->script, "set title '%s: number'\nset ylabel 'sequences'\nset xlabel 'outlier tokens of a sequence'\nset boxwidth %g\n"
                              "set key default\nset key noenhanced right top\n",
                  title, 0.8 / n);
    tics_of_counts(p, width, last);
    axis_of_counts(p, 'y', whole(r, "samples") * 7 / 5 + 1); /* room for the key */
    bk_buffer_add(&p->script, "plot ");
    for (int s = 0, at = 0; s < STAGES; s++) {
        if (!stage_of(r, s)) continue;
        bk_buffer_add(&p->script, "%s'-' using ($1 + %g):2 with boxes fs solid ls %d title '%s'", at ? ", " : "", 0.8 / n * (at - (n - 1) / 2.0), s + 1,
                      stage_name[s]);
        at++;
    }
    bk_buffer_add(&p->script, "\n");
    for (int s = 0; s < STAGES; s++) {
        for (int k = 0; stage_of(r, s) && k <= last; k++) bk_buffer_add(&p->script, "%d %lld\n", k, (long long)how[s][k]);
        if (stage_of(r, s)) bk_buffer_add(&p->script, "e\n");
    }
}

/* Position 0 alone, then equal bins. */
static void panel_of_positions(const bk_report_run *r, bk_picture *p, const char *side, const char *title)
{
    int64_t tokens = whole(r, "seqlen"), n[POSITIONS] = {0}, most = 0, width = (tokens - 1 + POSITIONS - 2) / (POSITIONS - 1);
    const bk_json *list = tokens_of(r, 0, side);
    width = width > 0 ? width : 1;
    for (size_t t = 0; t < bk_json_size(list); t++) {
        int64_t at = bk_json_int(bk_json_get(bk_json_at(list, t), "position"), -1), k = at == 0 ? 0 : 1 + (at - 1) / width;
        if (at < 0 || k >= POSITIONS) continue;
        most = ++n[k] > most ? n[k] : most;
    }
    bk_buffer_add(&p->script, "set title '%s: position (original)'\nset ylabel 'tokens'\nset xlabel 'position in the sequence'\nset boxwidth 0.8\nunset key\n"
                              "set xrange [-0.6:%d.6]\nset xtics (",
                  title, POSITIONS - 1);
    for (int64_t k = 0; k < POSITIONS; k++) {
        int64_t end = k * width < tokens ? k * width : tokens - 1;
        if (k == 0) bk_buffer_add(&p->script, "'0' 0");
        else bk_buffer_add(&p->script, ", '%lld-%lld' %lld", (long long)(1 + (k - 1) * width), (long long)end, (long long)k);
    }
    bk_buffer_add(&p->script, ") rotate by -40\n");
    axis_of_counts(p, 'y', most);
    bk_buffer_add(&p->script, "plot '-' using 1:2 with boxes fs solid ls 1 notitle\n");
    for (int k = 0; k < POSITIONS; k++) bk_buffer_add(&p->script, "%d %lld\n", k, (long long)n[k]);
    bk_buffer_add(&p->script, "e\nset xtics norotate\n");
}

typedef struct content {
    const char *text; /* JSON's, may hold anything but NUL */
    int64_t id, n, at_start;
} content;

static int by_count(const void *a, const void *b)
{
    const content *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static size_t collect_content(const bk_json *tokens, content *c)
{
    size_t n = 0;
    for (size_t t = 0; t < bk_json_size(tokens); t++) {
        const bk_json *token = bk_json_at(tokens, t);
        int64_t id = bk_json_int(bk_json_get(token, "id"), -1);
        bool start = bk_json_int(bk_json_get(token, "position"), -1) == 0;
        size_t k = 0;
        while (k < n && c[k].id != id) k++;
        if (k == n) c[n++] = (content){bk_json_str(bk_json_get(token, "text"), "?"), id, 0, 0};
        c[k].n++;
        c[k].at_start += start;
    }
    qsort(c, n, sizeof *c, by_count);
    return n;
}

static void put_token(bk_picture *p, const char *text)
{
    char shown[24], quoted[32];
    bk_printable(text, strlen(text), shown, sizeof shown);
    snprintf(quoted, sizeof quoted, "\"%s\"", shown);
    bk_gnuplot_add(&p->script, quoted);
}

/* A bar without length would still have an edge. */
static void put_bar(bk_picture *p, size_t at, int64_t from, int64_t to)
{
    if (from < to) bk_buffer_add(&p->script, "%zu %lld %lld\n", at, (long long)from, (long long)to);
}

/* Bars from left to right, the most frequent on top; the part that stands at position 0 in another colour. */
static void panel_of_content(const bk_report_run *r, bk_picture *p, const char *side, const char *title, double key_at)
{
    const bk_json *tokens = tokens_of(r, 0, side);
    content *c = calloc(bk_json_size(tokens) + 1, sizeof *c);
    if (!c) {
        p->script.failed = true;
        return;
    }
    size_t all = collect_content(tokens, c), n = all < 10 ? all : 10;
    axis_of_counts(p, 'x', n ? c[0].n : 1);
    bk_buffer_add(&p->script, "set title '%s: content (original)'\nset xlabel 'tokens'\nunset ylabel\nset yrange [%zu.6:-0.6]\n"
                              "set key at screen 0.985,%.4f right top horizontal\nset ytics (",
                  title, n ? n - 1 : 0, key_at);
    for (size_t i = 0; i < n; i++) {
        bk_buffer_add(&p->script, i ? ", " : "");
        put_token(p, c[i].text);
        bk_buffer_add(&p->script, " %zu", i);
    }
    bk_buffer_add(&p->script, ")\nplot '-' using 3:1:2:3:($1-0.35):($1+0.35) with boxxyerror fs solid ls 1 title 'at position 0', "
                              "'-' using 3:1:2:3:($1-0.35):($1+0.35) with boxxyerror fs solid ls 4 title 'elsewhere'\n");
    for (size_t i = 0; i < n; i++) put_bar(p, i, 0, c[i].at_start);
    bk_buffer_add(&p->script, "e\n");
    for (size_t i = 0; i < n; i++) put_bar(p, i, c[i].at_start, c[i].n);
    bk_buffer_add(&p->script, "e\nset ytics auto\n");
    free(c);
}

/* The three panels of a side, or its sentence. */
static void row_of_outliers(const bk_report_run *r, bk_picture *p, const char *side, const char *title, double bottom, double top)
{
    bk_picture_panel(p, 0.065, 0.29, bottom, top);
    panel_of_counts(r, p, side, title);
    bk_picture_panel(p, 0.37, 0.63, bottom, top);
    panel_of_positions(r, p, side, title);
    bk_picture_panel(p, 0.76, 0.98, bottom, top);
    panel_of_content(r, p, side, title, bottom - 0.33 * (top - bottom));
}

static bool any_outlier(const bk_report_run *r, const char *side)
{
    return bk_json_size(tokens_of(r, 0, side)) > 0;
}

void bk_report_outliers(const bk_report_run *r, bk_picture *p)
{
    static const char *const side[] = {"upper", "lower"}, *const title[] = {"Upper outliers", "Lower outliers"};
    if (!measured(r, p)) return;
    int n = any_outlier(r, side[0]) + any_outlier(r, side[1]);
    double threshold[2] = {bk_json_num(bk_json_get(r->data, "threshold"), NAN), bk_json_num(bk_json_get(r->data, "lower_threshold"), NAN)};
    if (n == 0) {
        bk_picture_missing(p, "No token of the measured sequences is an outlier: none is larger than %g medians at down_proj inputs or block outputs, none "
                              "smaller than the median / %g at queries or keys.", threshold[0], threshold[1]);
        return;
    }
    bk_picture_begin(p, 960, 390 * n);
    bk_buffer_add(&p->script, "set multiplot\n");
    for (int i = 0, row = 0; i < 2; i++) {
        double low = 1 - (row + 1) / (double)n, high = 1 - row / (double)n;
        if (!any_outlier(r, side[i])) continue;
        row_of_outliers(r, p, side[i], title[i], low + 0.32 / n, high - 0.12 / n);
        row++;
    }
    bk_buffer_add(&p->script, "unset multiplot\n");
    bk_buffer_add(&p->caption, "Outlier tokens. Upper: larger than %g medians at down_proj inputs or block outputs in any block; lower: smaller than the "
                               "median / %g at queries or keys.",
                  threshold[0], threshold[1]);
    for (int i = 0; i < 2; i++)
        if (!any_outlier(r, side[i])) bk_buffer_add(&p->caption, " There is no %s outlier in the original model.", side[i]);
    say_absent(r, p);
    say_samples(r, p);
}

/* --- figures 1 and 2: the error of tokens --- */

static const bk_json *errors_of(const bk_report_run *r, int stage)
{
    return bk_json_get(stage_of(r, stage), "error");
}

static bool range_of_errors(const bk_report_run *r, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int s = 0; s < STAGES; s++) {
        const bk_json *tokens = bk_json_get(errors_of(r, s), "tokens");
        for (size_t t = 0; t < bk_json_size(tokens); t++) {
            double x = bk_on_log_axis(bk_json_num(bk_json_at(tokens, t), NAN));
            *lo = fmin(*lo, x);
            *hi = fmax(*hi, x);
        }
    }
    return *lo <= *hi;
}

static void plot_errors(const bk_report_run *r, bk_picture *p, int stage)
{
    const bk_json *tokens = bk_json_get(errors_of(r, stage), "tokens");
    bk_buffer_add(&p->script, "plot '-' using 1:2 with lines ls %d lw 0.8 notitle\n", stage + 1);
    for (size_t t = 0; t < bk_json_size(tokens); t++) {
        bk_buffer_add(&p->script, "%zu ", t);
        bk_number_add(&p->script, bk_on_log_axis(bk_json_num(bk_json_at(tokens, t), NAN)));
        bk_buffer_add(&p->script, "\n");
    }
    bk_buffer_add(&p->script, "e\n");
}

static void panels_of_errors(const bk_report_run *r, bk_picture *p, double lo, double hi)
{
    int64_t samples = whole(r, "samples"), seqlen = whole(r, "seqlen"), all = samples * seqlen;
    bk_buffer_add(&p->script, "set xrange [%.6g:%.6g]\nset xlabel 'token, sequence behind sequence' offset 0,0.4\nset xtics 0,%lld,%lld\n",
                  -0.02 * (double)all, 1.01 * (double)all, (long long)(all / 4 + 1 - (all % 4 == 0)), (long long)(all - all / 8));
    for (int64_t i = 1; i < samples && samples <= 32; i++)
        bk_buffer_add(&p->script, "set arrow from %lld, graph 0 to %lld, graph 1 nohead back lc rgb '#bbbbbb' dt 2\n", (long long)(i * seqlen),
                      (long long)(i * seqlen));
    for (int s = 0; s < STAGES; s++) {
        if (!stage_of(r, s)) continue;
        bk_picture_panel(p, 0.11 + 0.298 * s, 0.11 + 0.298 * s + 0.278, 0.53, 0.925);
        bk_picture_log(p, 'y', lo, hi);
        bk_buffer_add(&p->script, "set title '%s'\n", stage_name[s]);
        bk_buffer_add(&p->script, s == 0 ? "set ylabel \"squared error (log)\\nmean over channels\" offset 0.5,0\n" : "unset ylabel\nset format y ''\n");
        plot_errors(r, p, s);
    }
    bk_buffer_add(&p->script, "unset arrow\n");
}

static void panel_of_shares(const bk_report_run *r, bk_picture *p)
{
    static const int top = 3;
    int n = 0, at = 0;
    for (int s = 0; s < STAGES; s++) n += stage_of(r, s) != NULL;
    bk_picture_panel(p, 0.11, 0.6, 0.105, 0.4);
    bk_picture_linear(p, 'y', 0, 100 / 1.08);
    bk_buffer_add(&p->script, "unset title\nset ylabel 'share of the error [%%]'\nset xlabel 'worst tokens of a sequence' offset 0,0.4\nset xrange [0.4:3.6]\n"
                              "set xtics (1, 2, 3)\nset boxwidth %g\nset key at graph 1.04, graph 1 left top Left reverse\nplot ", 0.8 / n);
    for (int s = 0; s < STAGES; s++) {
        if (!stage_of(r, s)) continue;
        bk_buffer_add(&p->script, "%s'-' using ($1 + %g):2 with boxes fs solid ls %d title '%s (mean squared error %.3g)'", at ? ", " : "",
                      0.8 / n * (at - (n - 1) / 2.0), s + 1, stage_name[s], bk_json_num(bk_json_get(errors_of(r, s), "mse"), NAN));
        at++;
    }
    bk_buffer_add(&p->script, "\n");
    for (int s = 0; s < STAGES; s++) {
        for (int k = 0; stage_of(r, s) && k < top; k++) {
            bk_buffer_add(&p->script, "%d ", k + 1);
            bk_number_add(&p->script, 100 * bk_json_num(bk_json_at(bk_json_get(errors_of(r, s), "share_of_worst"), (size_t)k), NAN));
            bk_buffer_add(&p->script, "\n");
        }
        if (stage_of(r, s)) bk_buffer_add(&p->script, "e\n");
    }
}

void bk_report_error(const bk_report_run *r, bk_picture *p)
{
    double lo, hi;
    if (!measured(r, p)) return;
    if (!range_of_errors(r, &lo, &hi)) {
        bk_picture_missing(p, "The quantized block gives what the block in full precision gives, to the bit: there is no error to show.");
        return;
    }
    bk_picture_begin(p, 960, 620);
    bk_buffer_add(&p->script, "set multiplot\n");
    panels_of_errors(r, p, lo, hi);
    panel_of_shares(r, p);
    bk_buffer_add(&p->script, "unset multiplot\n");
    bk_buffer_add(&p->caption, "Quantization error of the output of block %lld, token by token, on a logarithmic axis that the columns share; and how much of a "
                               "sequence's squared error its worst one, two and three tokens carry. The block is the one whose largest token stands out "
                               "most; it is quantized ",
                  (long long)bk_json_int(bk_json_get(r->data, "error_block"), -1));
    bk_html_add(&p->caption, bk_json_str(bk_json_get(r->data, "scheme"), "?"));
    bk_buffer_add(&p->caption, " with minima and maxima of these inputs: no search, no training.");
    say_absent(r, p);
    say_samples(r, p);
}
