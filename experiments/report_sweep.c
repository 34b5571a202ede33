/* What a page says about a sweep: its points ranked, lines over one axis, a heat map over two. All from results.jsonl: a flat object per point,
 * in which the keys of a config are the axes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report.h"

#define AXES 8
#define TEXT 48
#define MOST_GAP 1e6
#define LINES 7 /* colours that can be told apart */

/* A key that varies, and its values: numbers in order, others as they come. */
typedef struct axis {
    const char *key;
    char (*text)[TEXT];
    double *x; /* of numbers */
    size_t n;
    bool numeric;
} axis;

/* Points that differ in their seed alone. gap = ln(ppl / ppl of fp). */
typedef struct group {
    size_t at[AXES]; /* index of the value on every axis; 0 on that of seeds */
    double gap, deviation, lo, hi, ppl, init; /* means; standard deviation; extremes of the gap; gap before training */
    size_t n;
} group;

typedef struct sweep {
    bk_json *rows;
    axis axis[AXES];
    int n_axes, seed;  /* seed: its axis, -1 if there is none */
    int across, lines; /* axes of the pictures, -1 if there is none */
    group *group;
    size_t n_groups, n_done;
    char why[512];
} sweep;

static void path_of(const char *dir, char path[BK_REPORT_PATH])
{
    snprintf(path, BK_REPORT_PATH, "%s/results.jsonl", dir);
}

bool bk_report_is_sweep(const char *dir)
{
    char path[BK_REPORT_PATH];
    if (strlen(dir) > 4000) return false;
    path_of(dir, path);
    return bk_exists(path);
}

/* --- reading --- */

static void value_text(const bk_json *v, char text[TEXT])
{
    const char *s = bk_json_str(v, NULL);
    double x = bk_json_num(v, NAN);
    char *dumped = s || isfinite(x) ? NULL : bk_json_dump(v, 0);
    if (isfinite(x)) snprintf(text, TEXT, "%.10g", x);
    else if (!s) s = dumped ? dumped : "?";
    if (s) bk_printable(s, strlen(s), text, TEXT);
    free(dumped);
}

static size_t find_value(const axis *a, const char *text)
{
    size_t i = 0;
    while (i < a->n && strcmp(a->text[i], text)) i++;
    return i;
}

/* Insertion: few values, and numbers are mostly in order. */
static void sort_numbers(axis *a)
{
    for (size_t i = 1; a->numeric && i < a->n; i++) {
        double x = a->x[i];
        char text[TEXT];
        memcpy(text, a->text[i], TEXT);
        size_t k = i;
        for (; k > 0 && a->x[k - 1] > x; k--) {
            a->x[k] = a->x[k - 1];
            memcpy(a->text[k], a->text[k - 1], TEXT);
        }
        a->x[k] = x;
        memcpy(a->text[k], text, TEXT);
    }
}

static bk_status read_axis(sweep *s, const char *key, bk_error *err)
{
    size_t rows = bk_json_size(s->rows);
    axis *a = &s->axis[s->n_axes++]; /* freed whatever happens */
    *a = (axis){.key = key, .text = malloc(rows * sizeof *a->text), .x = malloc(rows * sizeof *a->x), .numeric = true};
    if (!a->text || !a->x) return bk_fail(err, BK_ENOMEM, "no memory for the values of %s", key);
    for (size_t i = 0; i < rows; i++) {
        const bk_json *v = bk_json_get(bk_json_at(s->rows, i), key);
        value_text(v, a->text[a->n]);
        a->x[a->n] = bk_json_num(v, NAN);
        if (find_value(a, a->text[a->n]) < a->n) continue;
        a->numeric = a->numeric && isfinite(a->x[a->n]);
        a->n++;
    }
    sort_numbers(a);
    if (!strcmp(key, "seed") && a->n > 1) s->seed = s->n_axes - 1;
    return BK_OK;
}

static bk_status read_axes(sweep *s, bk_error *err)
{
    const bk_json *first = bk_json_at(s->rows, 0);
    s->seed = s->across = s->lines = -1;
    for (void *it = bk_json_first(first); it; it = bk_json_next(first, it))
        if (bk_key_find(bk_json_key(it)) >= 0 && s->n_axes < AXES) BK_TRY(read_axis(s, bk_json_key(it), err));
    for (int a = 0; a < s->n_axes; a++) { /* the longest across, the next one in lines */
        if (a == s->seed || s->axis[a].n < 2) continue;
        if (s->across < 0 || s->axis[a].n > s->axis[s->across].n) {
            s->lines = s->across;
            s->across = a;
        } else if (s->lines < 0 || s->axis[a].n > s->axis[s->lines].n)
            s->lines = a;
    }
    return BK_OK;
}

static double number(const bk_json *row, const char *key)
{
    return bk_json_num(bk_json_get(row, key), NAN);
}

static bool same_place(const size_t *a, const size_t *b)
{
    return memcmp(a, b, AXES * sizeof *a) == 0;
}

static void add_to_group(group *g, const bk_json *row)
{
    double gap = number(row, "gap"), delta = gap - g->gap;
    if (!(fabs(gap) < MOST_GAP)) return;
    g->n++;
    g->gap += delta / (double)g->n;
    g->deviation += delta * (gap - g->gap); /* Welford: the sum of squares for now */
    g->ppl += (number(row, "ppl_final") - g->ppl) / (double)g->n;
    g->init += (log(number(row, "ppl_init") / number(row, "ppl_fp")) - g->init) / (double)g->n;
    g->lo = g->n == 1 ? gap : fmin(g->lo, gap);
    g->hi = g->n == 1 ? gap : fmax(g->hi, gap);
}

static int by_gap(const void *a, const void *b)
{
    const group *x = a, *y = b;
    if (!x->n || !y->n) return (x->n == 0) - (y->n == 0);
    return (x->gap > y->gap) - (x->gap < y->gap);
}

static bk_status read_groups(sweep *s, bk_error *err)
{
    size_t rows = bk_json_size(s->rows);
    s->group = calloc(rows + 1, sizeof *s->group);
    if (!s->group) return bk_fail(err, BK_ENOMEM, "no memory for %zu points", rows);
    for (size_t i = 0; i < rows; i++) {
        const bk_json *row = bk_json_at(s->rows, i);
        size_t at[AXES] = {0}, k = 0;
        for (int a = 0; a < s->n_axes; a++) {
            char text[TEXT];
            value_text(bk_json_get(row, s->axis[a].key), text);
            at[a] = a == s->seed ? 0 : find_value(&s->axis[a], text);
        }
        while (k < s->n_groups && !same_place(s->group[k].at, at)) k++;
        if (k == s->n_groups) memcpy(s->group[s->n_groups++].at, at, sizeof at);
        add_to_group(&s->group[k], row);
        s->n_done += fabs(number(row, "gap")) < MOST_GAP;
    }
    for (size_t k = 0; k < s->n_groups; k++)
        s->group[k].deviation = s->group[k].n > 1 ? sqrt(s->group[k].deviation / (double)(s->group[k].n - 1)) : NAN;
    qsort(s->group, s->n_groups, sizeof *s->group, by_gap);
    return BK_OK;
}

/* The best group at a place of the two axes; the groups are ranked. NULL: none is done. */
static const group *at_place(const sweep *s, size_t across, size_t lines)
{
    for (size_t k = 0; k < s->n_groups; k++) {
        const group *g = &s->group[k];
        if (g->n && g->at[s->across] == across && (s->lines < 0 || g->at[s->lines] == lines)) return g;
    }
    return NULL;
}

/* --- pictures --- */

static bool logarithmic(const axis *a)
{
    return a->numeric && a->x[0] > 0 && a->x[a->n - 1] / a->x[0] >= 20;
}

static double place_of(const axis *a, size_t i)
{
    return a->numeric ? a->x[i] : (double)i;
}

static void label_of(const axis *a, size_t i, char to[TEXT])
{
    if (!a->numeric) memcpy(to, a->text[i], TEXT);
    else snprintf(to, TEXT, a->x[i] == floor(a->x[i]) && fabs(a->x[i]) < 1e6 ? "%.0f" : "%.4g", a->x[i]);
}

static void put_label(bk_picture *p, const axis *a, size_t i)
{
    char text[TEXT];
    label_of(a, i, text);
    bk_gnuplot_add(&p->script, text);
}

static size_t longest_label(const axis *a)
{
    size_t longest = 0;
    for (size_t i = 0; i < a->n; i++) {
        char text[TEXT];
        label_of(a, i, text);
        longest = strlen(text) > longest ? strlen(text) : longest;
    }
    return longest;
}

static size_t step_of_tics(const axis *a)
{
    return a->n / 16 + 1;
}

/* True if the labels do not fit below the axis side by side. */
static bool turned(const axis *a)
{
    return a->n / step_of_tics(a) * longest_label(a) > 60;
}

/* Height of what stands below the axis. */
static double below(const bk_picture *p, const axis *a)
{
    return (75 + (turned(a) ? 4.6 * (double)longest_label(a) : 0)) / p->height;
}

static void tics(bk_picture *p, const axis *a, char which, bool by_index)
{
    bk_buffer_add(&p->script, "set %ctics (", which);
    for (size_t i = 0; i < a->n; i += step_of_tics(a)) {
        bk_buffer_add(&p->script, i ? ", " : "");
        put_label(p, a, i);
        bk_buffer_add(&p->script, " %.10g", by_index ? (double)i : place_of(a, i));
    }
    bk_buffer_add(&p->script, ") %s\n", which == 'x' && turned(a) ? "rotate by -35" : "norotate");
}

static void x_axis(bk_picture *p, const axis *a)
{
    double lo = place_of(a, 0), hi = place_of(a, a->n - 1), pad = 0.06 * (hi - lo), factor = pow(hi / lo, 0.06);
    tics(p, a, 'x', false);
    if (logarithmic(a)) bk_buffer_add(&p->script, "set logscale x\nset xrange [%.6g:%.6g]\n", lo / factor, hi * factor);
    else bk_buffer_add(&p->script, "set xrange [%.6g:%.6g]\n", lo - pad, hi + pad);
    bk_buffer_add(&p->script, "set xlabel ");
    bk_gnuplot_add(&p->script, a->key);
    bk_buffer_add(&p->script, "%s\n", logarithmic(a) ? ".' (log)'" : "");
}

/* Index of line k of those that are shown. */
static size_t shown_line(const axis *lines, size_t k)
{
    return !lines || lines->n <= LINES ? k : k * (lines->n - 1) / (LINES - 1);
}

/* The same gap before training at all points, NaN if they differ. */
static double gap_before(const sweep *s)
{
    double init = s->group[0].init;
    for (size_t k = 0; k < s->n_groups; k++)
        if (s->group[k].n && !(fabs(s->group[k].init - init) <= 1e-9)) return NAN;
    return init;
}

static void put_line(const sweep *s, bk_picture *p, size_t k, size_t line, double *lo, double *hi)
{
    const axis *a = &s->axis[s->across];
    bk_buffer_add(&p->script, "$line%zu << EOD\n", k);
    for (size_t i = 0; i < a->n; i++) {
        const group *g = at_place(s, i, line);
        bk_buffer_add(&p->script, "%.10g ", place_of(a, i));
        bk_number_add(&p->script, g ? g->gap : NAN);
        bk_buffer_add(&p->script, " ");
        bk_number_add(&p->script, g ? g->lo : NAN);
        bk_buffer_add(&p->script, " ");
        bk_number_add(&p->script, g ? g->hi : NAN);
        bk_buffer_add(&p->script, "\n");
        *lo = g ? fmin(*lo, g->lo) : *lo;
        *hi = g ? fmax(*hi, g->hi) : *hi;
    }
    bk_buffer_add(&p->script, "EOD\n");
}

static bool line_has_points(const sweep *s, size_t line)
{
    for (size_t i = 0; i < s->axis[s->across].n; i++)
        if (at_place(s, i, line)) return true;
    return false;
}

static void plot_lines(const sweep *s, bk_picture *p, size_t n, double before)
{
    const axis *lines = s->lines < 0 ? NULL : &s->axis[s->lines];
    static const char *const style[2][2] = {{"points", "linespoints"}, {"yerrorbars", "yerrorlines"}};
    bool any = false;
    bk_buffer_add(&p->script, "plot ");
    for (size_t k = 0; k < n; k++) {
        size_t line = shown_line(lines, k);
        if (!line_has_points(s, line)) continue;
        bk_buffer_add(&p->script, "%s$line%zu using 1:2%s with %s ls %zu pt %zu ps 0.9 title ", any ? ", " : "", k, s->seed < 0 ? "" : ":3:4",
                      style[s->seed >= 0][s->axis[s->across].numeric], k + 1, k % 2 ? k + 4 : k + 6);
        if (lines) put_label(p, lines, line);
        else bk_buffer_add(&p->script, "'final'");
        any = true;
    }
    if (isfinite(before)) bk_buffer_add(&p->script, ", %.6g with lines dt 2 lw 1.4 lc rgb '#777777' title 'before training'", before);
    bk_buffer_add(&p->script, "\n");
}

/* What the pictures do not show one by one. */
static void say_rest(const sweep *s, bk_picture *p)
{
    for (int a = 0; a < s->n_axes; a++) {
        if (a == s->across || a == s->lines || a == s->seed || s->axis[a].n < 2) continue;
        bk_buffer_add(&p->caption, " The best over ");
        bk_html_add(&p->caption, s->axis[a].key);
        bk_buffer_add(&p->caption, ".");
    }
    if (s->seed >= 0) bk_buffer_add(&p->caption, " Means over seeds.");
    if (s->n_done < bk_json_size(s->rows))
        bk_buffer_add(&p->caption, " %zu of %zu points have a result.", s->n_done, bk_json_size(s->rows));
}

static bool drawable(const sweep *s, bk_picture *p)
{
    if (s->n_done == 0) bk_picture_missing(p, "No point of the sweep has a result yet.");
    else if (s->across < 0) bk_picture_missing(p, "No axis of the sweep has two values%s.", s->seed >= 0 ? " (but the seeds)" : "");
    return !*p->missing;
}

static void draw_lines(const sweep *s, bk_picture *p)
{
    const axis *lines = s->lines < 0 ? NULL : &s->axis[s->lines];
    size_t n = !lines ? 1 : lines->n < LINES ? lines->n : LINES;
    double lo = 0, hi = 0, before;
    if (!drawable(s, p)) return;
    before = gap_before(s);
    bk_picture_begin(p, 960, 480);
    for (size_t k = 0; k < n; k++) put_line(s, p, k, shown_line(lines, k), &lo, &hi);
    bk_picture_panel(p, 0.085, 0.78, below(p, &s->axis[s->across]), 0.95);
    bk_picture_linear(p, 'y', lo, isfinite(before) ? fmax(hi, before) : hi);
    x_axis(p, &s->axis[s->across]);
    bk_buffer_add(&p->script, "set ylabel 'ln(ppl / ppl of fp)'\nset xzeroaxis lt 1 lc rgb '#999999'\nset key at graph 1.03, graph 1 left top Left reverse\n");
    if (lines) {
        bk_buffer_add(&p->script, "set key title ");
        bk_gnuplot_add(&p->script, lines->key);
        bk_buffer_add(&p->script, " noenhanced\n");
    }
    plot_lines(s, p, n, before);
    bk_buffer_add(&p->caption, "How much worse than full precision the quantized model is, as logarithm of the ratio of perplexities (zero: as good).%s%s",
                  s->seed >= 0 ? " Bars reach from the best seed to the worst." : "", lines && lines->n > LINES ? " Some of the lines, evenly spread." : "");
    say_rest(s, p);
}

/* --- heat map --- */

static void put_cells(const sweep *s, bk_picture *p, double lo, double hi)
{
    bk_buffer_add(&p->script, "$cells << EOD\n");
    for (size_t j = 0; j < s->axis[s->lines].n; j++)
        for (size_t i = 0; i < s->axis[s->across].n; i++) {
            const group *g = at_place(s, i, j);
            if (!g) continue;
            double part = hi > lo ? (g->gap - lo) / (hi - lo) : 0;
            bk_buffer_add(&p->script, g->ppl < 1000 ? "%zu %zu %.6g %.2f %d\n" : "%zu %zu %.6g %.3g %d\n", i, j, g->gap, g->ppl, part < 0.55 ? 0xffffff : 0);
        }
    bk_buffer_add(&p->script, "EOD\n");
}

/* Points that are there but have no result: a word in place of a colour. */
static bool put_gaps(const sweep *s, bk_picture *p)
{
    bool any = false;
    for (size_t k = 0; k < s->n_groups; k++) {
        const group *g = &s->group[k];
        if (g->n || at_place(s, g->at[s->across], g->at[s->lines])) continue;
        bk_buffer_add(&p->script, any ? "" : "$gaps << EOD\n");
        bk_buffer_add(&p->script, "%zu %zu -\n", g->at[s->across], g->at[s->lines]);
        any = true;
    }
    bk_buffer_add(&p->script, any ? "EOD\n" : "");
    return any;
}

static void range_of_groups(const sweep *s, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (size_t j = 0; j < s->axis[s->lines].n; j++)
        for (size_t i = 0; i < s->axis[s->across].n; i++) {
            const group *g = at_place(s, i, j);
            *lo = g ? fmin(*lo, g->gap) : *lo;
            *hi = g ? fmax(*hi, g->gap) : *hi;
        }
}

static void draw_map(const sweep *s, bk_picture *p)
{
    double lo, hi;
    if (!drawable(s, p)) return;
    if (s->lines < 0) {
        bk_picture_missing(p, "A heat map needs two axes.");
        return;
    }
    const axis *x = &s->axis[s->across], *y = &s->axis[s->lines];
    range_of_groups(s, &lo, &hi);
    bk_picture_begin(p, 960, 200 + 60 * (int)(y->n < 12 ? y->n : 12));
    put_cells(s, p, lo, hi);
    bool gaps = put_gaps(s, p);
    tics(p, x, 'x', true);
    tics(p, y, 'y', true);
    double left = 0.08 + 0.0085 * (double)longest_label(y), bottom = below(p, x);
    bk_picture_panel(p, left < 0.45 ? left : 0.45, 0.83, bottom, 0.95);
    bk_buffer_add(&p->script, "set colorbox user origin 0.855,%.4f size 0.025,%.4f\n", bottom, 0.95 - bottom);
    bk_buffer_add(&p->script, "set xlabel ");
    bk_gnuplot_add(&p->script, x->key);
    bk_buffer_add(&p->script, "\nset ylabel ");
    bk_gnuplot_add(&p->script, y->key);
    bk_buffer_add(&p->script, "\nset xrange [-0.5:%zu.5]\nset yrange [-0.5:%zu.5]\nunset key\nunset grid\nset cbrange [%.6g:%.6g]\n"
                              "set cblabel 'ln(ppl / ppl of fp)' offset 1.5,0\n"
                              "set palette defined (0 '#440154', 1 '#3b528b', 2 '#21918c', 3 '#5ec962', 4 '#fde725')\n"
                              "plot $cells using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder lc palette",
                  x->n - 1, y->n - 1, lo, hi > lo ? hi : lo + 1e-3);
    if (x->n <= 16) bk_buffer_add(&p->script, ", $cells using 1:2:(stringcolumn(4)):5 with labels tc rgb variable");
    bk_buffer_add(&p->script, "%s\n", gaps ? ", $gaps using 1:2:(stringcolumn(3)) with labels" : "");
    bk_buffer_add(&p->caption, "Colour: as above; numbers: perplexities.%s", gaps ? " A dash: no result." : "");
    say_rest(s, p);
}

/* --- tables --- */

static void ranked(const sweep *s, bk_page *page)
{
    const char *heads[AXES + 7] = {"#rank"};
    int n = 1;
    for (int a = 0; a < s->n_axes; a++)
        if (a != s->seed) heads[n++] = s->axis[a].key;
    heads[n++] = "#perplexity";
    heads[n++] = "#ln(ppl / ppl of fp)";
    if (s->seed >= 0) {
        heads[n++] = "#standard deviation";
        heads[n++] = "#seeds";
    }
    bk_page_table(page, heads);
    for (size_t k = 0; k < s->n_groups && s->group[k].n; k++) {
        const group *g = &s->group[k];
        bk_page_row(page);
        bk_page_number(page, "%.0f", (double)k + 1);
        for (int a = 0; a < s->n_axes; a++)
            if (a != s->seed) bk_page_cell(page, s->axis[a].text[g->at[a]]);
        bk_page_number(page, "%.4f", g->ppl);
        bk_page_number(page, "%.4f", g->gap);
        if (s->seed >= 0) {
            bk_page_number(page, "%.4f", g->deviation);
            bk_page_number(page, "%.0f", (double)g->n);
        }
    }
    bk_page_table_end(page);
}

static void without_result(const sweep *s, bk_page *page)
{
    if (s->n_done == bk_json_size(s->rows)) return;
    bk_page_heading(page, 3, "Points without a result");
    bk_page_table(page, (const char *const[]){"point", "status", "", NULL});
    for (size_t i = 0; i < bk_json_size(s->rows); i++) {
        const bk_json *row = bk_json_at(s->rows, i);
        if (fabs(number(row, "gap")) < MOST_GAP) continue;
        bk_page_row(page);
        bk_page_cell(page, bk_json_str(bk_json_get(row, "point"), "?"));
        bk_page_cell(page, bk_json_str(bk_json_get(row, "status"), "?"));
        bk_page_cell(page, bk_json_str(bk_json_get(row, "message"), ""));
    }
    bk_page_table_end(page);
}

static bk_status put_picture(const sweep *s, bk_page *page, const char *name, const char *title, void (*draw)(const sweep *, bk_picture *), bk_error *err)
{
    bk_picture p = {.title = title};
    snprintf(p.name, sizeof p.name, "%s%s", page->prefix, name);
    draw(s, &p);
    bk_status st = bk_page_picture(page, &p, err);
    bk_picture_free(&p);
    return st;
}

static bk_status show(sweep *s, const char *dir, bk_page *page, bk_error *err)
{
    char path[BK_REPORT_PATH], label[128], line[400];
    path_of(dir, path);
    BK_TRY(bk_report_lines(path, &s->rows, s->why, sizeof s->why, err));
    BK_TRY(read_axes(s, err));
    BK_TRY(read_groups(s, err));
    bk_report_label(dir, label, sizeof label);
    snprintf(line, sizeof line, "Sweep %s", label);
    bk_page_heading(page, 2, line);
    snprintf(line, sizeof line, "%zu points, %zu of them with a result.", bk_json_size(s->rows), s->n_done);
    bk_page_sentence(page, line);
    if (*s->why) bk_page_sentence(page, s->why);
    BK_TRY(put_picture(s, page, "lines", "Results over one axis", draw_lines, err));
    BK_TRY(put_picture(s, page, "map", "Results over two axes", draw_map, err));
    if (s->n_done) {
        bk_page_heading(page, 3, "Points by rank");
        ranked(s, page);
    }
    without_result(s, page);
    return BK_OK;
}

bk_status bk_report_sweep_section(const char *dir, bk_page *page, bk_error *err)
{
    sweep s = {.rows = NULL};
    bk_status st = show(&s, dir, page, err);
    for (int a = 0; a < s.n_axes; a++) {
        free(s.axis[a].text);
        free(s.axis[a].x);
    }
    free(s.group);
    bk_json_free(s.rows);
    return st;
}
