/* Picture of the outlier tokens: how many, where, which.
 * Source: PrefixQuant (arXiv 2410.05265), figure 4. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report.h"

#define BINS      16 /* of sequences by their number of outlier tokens */
#define POSITIONS 9  /* bins of positions */

static const bk_json *tokens_of(const bk_report_run *r, int stage, const char *side)
{
    return bk_json_get(bk_json_get(bk_report_stage(r, stage), side), "tokens");
}

/* Outlier tokens of every sequence; malloc'd, NULL: no memory. */
static int64_t *per_sequence(const bk_report_run *r, int stage, const char *side)
{
    const bk_json *tokens = tokens_of(r, stage, side);
    int64_t samples = bk_report_whole(r, "samples"), *n = calloc((size_t)samples + 1, sizeof *n);
    for (size_t t = 0; n && t < bk_json_size(tokens); t++) {
        int64_t i = bk_json_int(bk_json_get(bk_json_at(tokens, t), "sequence"), -1);
        if (i >= 0 && i < samples) n[i]++;
    }
    return n;
}

/* Sequences by their number of tokens: how[s][k] have k, or k * width .. (k + 1) * width - 1, so that the fullest has a
 * place. */
static bool count_sequences(const bk_report_run *r, const char *side, int64_t *width,
                            int64_t how[BK_REPORT_STAGES][BINS])
{
    int64_t *n[BK_REPORT_STAGES] = {NULL}, samples = bk_report_whole(r, "samples"), most = 0;
    bool room = true;
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        room = (n[s] = per_sequence(r, s, side)) && room;
        for (int64_t i = 0; n[s] && i < samples; i++) most = n[s][i] > most ? n[s][i] : most;
    }
    *width = most / BINS + 1;
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        for (int64_t i = 0; n[s] && i < samples; i++) how[s][n[s][i] / *width]++;
        free(n[s]);
    }
    return room;
}

static void tics_of_counts(bk_picture *p, int64_t width, int last)
{
    bk_buffer_add(&p->script, "set xtics (");
    for (int k = 0; k <= last; k++) {
        bk_buffer_add(&p->script, k ? ", " : "");
        if (width == 1)
            bk_buffer_add(&p->script, "'%d' %d", k, k);
        else
            bk_buffer_add(&p->script, "'%lld-%lld' %d", (long long)(k * width), (long long)((k + 1) * width - 1), k);
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
    int64_t width, how[BK_REPORT_STAGES][BINS] = {{0}};
    int last = 1, n = 0;
    p->script.failed |= !count_sequences(r, side, &width, how);
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        n += bk_report_stage(r, s) != NULL;
        for (int k = 0; k < BINS; k++) last = how[s][k] && k > last ? k : last;
    }
    bk_buffer_add(&p->script,
                  "set title '%s: number'\n"
                  "set ylabel 'sequences'\n"
                  "set xlabel 'outlier tokens of a sequence'\n"
                  "set boxwidth %g\n"
                  "set key default\nset key noenhanced right top\n",
                  title, 0.8 / n);
    tics_of_counts(p, width, last);
    axis_of_counts(p, 'y', bk_report_whole(r, "samples") * 7 / 5 + 1); /* room for the key */
    bk_buffer_add(&p->script, "plot ");
    for (int s = 0, at = 0; s < BK_REPORT_STAGES; s++) {
        if (!bk_report_stage(r, s)) continue;
        bk_buffer_add(&p->script, "%s'-' using ($1 + %g):2 with boxes fs solid ls %d title '%s'", at ? ", " : "",
                      0.8 / n * (at - (n - 1) / 2.0), s + 1, bk_report_stage_name[s]);
        at++;
    }
    bk_buffer_add(&p->script, "\n");
    for (int s = 0; s < BK_REPORT_STAGES; s++) {
        for (int k = 0; bk_report_stage(r, s) && k <= last; k++)
            bk_buffer_add(&p->script, "%d %lld\n", k, (long long)how[s][k]);
        if (bk_report_stage(r, s)) bk_buffer_add(&p->script, "e\n");
    }
}

/* Position 0 alone, then equal bins. */
static void panel_of_positions(const bk_report_run *r, bk_picture *p, const char *side, const char *title)
{
    int64_t tokens = bk_report_whole(r, "seqlen"), n[POSITIONS] = {0}, most = 0,
            width = (tokens - 1 + POSITIONS - 2) / (POSITIONS - 1);
    const bk_json *list = tokens_of(r, 0, side);
    width = width > 0 ? width : 1;
    for (size_t t = 0; t < bk_json_size(list); t++) {
        int64_t at = bk_json_int(bk_json_get(bk_json_at(list, t), "position"), -1),
                k = at == 0 ? 0 : 1 + (at - 1) / width;
        if (at < 0 || k >= POSITIONS) continue;
        most = ++n[k] > most ? n[k] : most;
    }
    bk_buffer_add(&p->script,
                  "set title '%s: position (original)'\n"
                  "set ylabel 'tokens'\n"
                  "set xlabel 'position in the sequence'\n"
                  "set boxwidth 0.8\n"
                  "unset key\n"
                  "set xrange [-0.6:%d.6]\nset xtics (",
                  title, POSITIONS - 1);
    for (int64_t k = 0; k < POSITIONS; k++) {
        int64_t end = k * width < tokens ? k * width : tokens - 1;
        if (k == 0)
            bk_buffer_add(&p->script, "'0' 0");
        else
            bk_buffer_add(&p->script, ", '%lld-%lld' %lld", (long long)(1 + (k - 1) * width), (long long)end,
                          (long long)k);
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
    bk_buffer_add(&p->script,
                  "set title '%s: content (original)'\n"
                  "set xlabel 'tokens'\n"
                  "unset ylabel\n"
                  "set yrange [%zu.6:-0.6]\n"
                  "set key at screen 0.985,%.4f right top horizontal\n"
                  "set ytics (",
                  title, n ? n - 1 : 0, key_at);
    for (size_t i = 0; i < n; i++) {
        bk_buffer_add(&p->script, i ? ", " : "");
        put_token(p, c[i].text);
        bk_buffer_add(&p->script, " %zu", i);
    }
    bk_buffer_add(&p->script,
                  ")\n"
                  "plot '-' using 3:1:2:3:($1-0.35):($1+0.35) with boxxyerror fs solid ls 1 title 'at position 0', "
                  "'-' using 3:1:2:3:($1-0.35):($1+0.35) with boxxyerror fs solid ls 4 title 'elsewhere'\n");
    for (size_t i = 0; i < n; i++) put_bar(p, i, 0, c[i].at_start);
    bk_buffer_add(&p->script, "e\n");
    for (size_t i = 0; i < n; i++) put_bar(p, i, c[i].at_start, c[i].n);
    bk_buffer_add(&p->script, "e\nset ytics auto\n");
    free(c);
}

/* The three panels of a side, or its sentence. */
static void row_of_outliers(const bk_report_run *r, bk_picture *p, const char *side, const char *title, double bottom,
                            double top)
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
    if (!bk_report_measured(r, p)) return;
    int n = any_outlier(r, side[0]) + any_outlier(r, side[1]);
    double threshold[2] = {bk_json_num(bk_json_get(r->data, "threshold"), NAN),
                           bk_json_num(bk_json_get(r->data, "lower_threshold"), NAN)};
    if (n == 0) {
        bk_picture_missing(p,
                           "No token of the measured sequences is an outlier: none is larger than %g medians at "
                           "down_proj inputs or block outputs, none "
                           "smaller than the median / %g at queries or keys.",
                           threshold[0], threshold[1]);
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
    bk_buffer_add(&p->caption,
                  "Outlier tokens. Upper: larger than %g medians at down_proj inputs or block outputs in any block; "
                  "lower: smaller than the "
                  "median / %g at queries or keys.",
                  threshold[0], threshold[1]);
    for (int i = 0; i < 2; i++)
        if (!any_outlier(r, side[i]))
            bk_buffer_add(&p->caption, " There is no %s outlier in the original model.", side[i]);
    bk_report_say_absent(r, p);
    bk_report_say_samples(r, p);
}
