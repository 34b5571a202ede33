/* Pictures of a sweep: lines over one axis, a heat map over two. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/report_sweep.h"

#define LINES 7 /* colours that can be told apart */

static bool logarithmic(const bk_report_axis *a)
{
    return a->numeric && a->value[0].x > 0 && a->value[a->n - 1].x / a->value[0].x >= 20;
}

static double place_of(const bk_report_axis *a, size_t i)
{
    return a->numeric ? a->value[i].x : (double)i;
}

static void label_of(const bk_report_axis *a, size_t i, char to[BK_REPORT_TEXT])
{
    double x = a->value[i].x;
    if (!a->numeric)
        memcpy(to, a->value[i].text, BK_REPORT_TEXT);
    else
        snprintf(to, BK_REPORT_TEXT, x == floor(x) && fabs(x) < 1e6 ? "%.0f" : "%.4g", x);
}

static void put_label(bk_picture *p, const bk_report_axis *a, size_t i)
{
    char text[BK_REPORT_TEXT];
    label_of(a, i, text);
    bk_gnuplot_add(&p->script, text);
}

static size_t longest_label(const bk_report_axis *a)
{
    size_t longest = 0;
    for (size_t i = 0; i < a->n; i++) {
        char text[BK_REPORT_TEXT];
        label_of(a, i, text);
        longest = strlen(text) > longest ? strlen(text) : longest;
    }
    return longest;
}

static size_t step_of_tics(const bk_report_axis *a)
{
    return a->n / 16 + 1;
}

/* True if the labels do not fit below the axis side by side. */
static bool turned(const bk_report_axis *a)
{
    return a->n / step_of_tics(a) * longest_label(a) > 60;
}

/* Height of what stands below the axis. */
static double below(const bk_picture *p, const bk_report_axis *a)
{
    return (75 + (turned(a) ? 4.6 * (double)longest_label(a) : 0)) / p->height;
}

static void tics(bk_picture *p, const bk_report_axis *a, char which, bool by_index)
{
    bk_buffer_add(&p->script, "set %ctics (", which);
    for (size_t i = 0; i < a->n; i += step_of_tics(a)) {
        bk_buffer_add(&p->script, i ? ", " : "");
        put_label(p, a, i);
        bk_buffer_add(&p->script, " %.10g", by_index ? (double)i : place_of(a, i));
    }
    bk_buffer_add(&p->script, ") %s\n", which == 'x' && turned(a) ? "rotate by -35" : "norotate");
}

static void x_axis(bk_picture *p, const bk_report_axis *a)
{
    double lo = place_of(a, 0), hi = place_of(a, a->n - 1), pad = 0.06 * (hi - lo), factor = pow(hi / lo, 0.06);
    tics(p, a, 'x', false);
    if (logarithmic(a))
        bk_buffer_add(&p->script, "set logscale x\nset xrange [%.6g:%.6g]\n", lo / factor, hi * factor);
    else
        bk_buffer_add(&p->script, "set xrange [%.6g:%.6g]\n", lo - pad, hi + pad);
    bk_buffer_add(&p->script, "set xlabel ");
    bk_gnuplot_add(&p->script, a->key);
    bk_buffer_add(&p->script, "%s\n", logarithmic(a) ? ".' (log)'" : "");
}

/* Index of line k of those that are shown. */
static size_t shown_line(const bk_report_axis *lines, size_t k)
{
    return !lines || lines->n <= LINES ? k : k * (lines->n - 1) / (LINES - 1);
}

/* The same gap before training at all points, NaN if they differ. */
static double gap_before(const bk_report_sweep *s)
{
    double init = s->group[0].init;
    for (size_t k = 0; k < s->n_groups; k++)
        if (s->group[k].n && !(fabs(s->group[k].init - init) <= 1e-9)) return NAN;
    return init;
}

static void put_line(const bk_report_sweep *s, bk_picture *p, size_t k, size_t line, double *lo, double *hi)
{
    const bk_report_axis *a = &s->axis[s->across];
    bk_buffer_add(&p->script, "$line%zu << EOD\n", k);
    for (size_t i = 0; i < a->n; i++) {
        const bk_report_group *g = bk_report_at(s, i, line);
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

static bool line_has_points(const bk_report_sweep *s, size_t line)
{
    for (size_t i = 0; i < s->axis[s->across].n; i++)
        if (bk_report_at(s, i, line)) return true;
    return false;
}

static void plot_lines(const bk_report_sweep *s, bk_picture *p, size_t n, double before)
{
    const bk_report_axis *lines = s->lines < 0 ? NULL : &s->axis[s->lines];
    static const char *const style[2][2] = {{"points", "linespoints"}, {"yerrorbars", "yerrorlines"}};
    bool any = false;
    bk_buffer_add(&p->script, "plot ");
    for (size_t k = 0; k < n; k++) {
        size_t line = shown_line(lines, k);
        if (!line_has_points(s, line)) continue;
        bk_buffer_add(&p->script, "%s$line%zu using 1:2%s with %s ls %zu pt %zu ps 0.9 title ", any ? ", " : "", k,
                      s->seed < 0 ? "" : ":3:4", style[s->seed >= 0][s->axis[s->across].numeric], k + 1,
                      k % 2 ? k + 4 : k + 6);
        if (lines)
            put_label(p, lines, line);
        else
            bk_buffer_add(&p->script, "'final'");
        any = true;
    }
    if (isfinite(before))
        bk_buffer_add(&p->script, ", %.6g with lines dt 2 lw 1.4 lc rgb '#777777' title 'before training'", before);
    bk_buffer_add(&p->script, "\n");
}

/* What the pictures do not show one by one. */
static void say_rest(const bk_report_sweep *s, bk_picture *p)
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

static bool drawable(const bk_report_sweep *s, bk_picture *p)
{
    if (s->n_done == 0)
        bk_picture_missing(p, "No point of the sweep has a result yet.");
    else if (s->across < 0)
        bk_picture_missing(p, "No axis of the sweep has two values%s.", s->seed >= 0 ? " (but the seeds)" : "");
    return !*p->missing;
}

void bk_report_lines_over_axis(const bk_report_sweep *s, bk_picture *p)
{
    const bk_report_axis *lines = s->lines < 0 ? NULL : &s->axis[s->lines];
    size_t n = !lines ? 1 : lines->n < LINES ? lines->n : LINES;
    double lo = 0, hi = 0, before;
    if (!drawable(s, p)) return;
    before = gap_before(s);
    bk_picture_begin(p, 960, 480);
    for (size_t k = 0; k < n; k++) put_line(s, p, k, shown_line(lines, k), &lo, &hi);
    bk_picture_panel(p, 0.1, 0.78, below(p, &s->axis[s->across]), 0.95);
    bk_picture_linear(p, 'y', lo, isfinite(before) ? fmax(hi, before) : hi);
    x_axis(p, &s->axis[s->across]);
    bk_buffer_add(&p->script, "set ylabel 'ln(ppl / ppl of fp)'\n"
                              "set xzeroaxis lt 1 lc rgb '#999999'\n"
                              "set key at graph 1.03, graph 1 left top Left reverse\n");
    if (lines) {
        bk_buffer_add(&p->script, "set key title ");
        bk_gnuplot_add(&p->script, lines->key);
        bk_buffer_add(&p->script, " noenhanced\n");
    }
    plot_lines(s, p, n, before);
    bk_buffer_add(&p->caption,
                  "How much worse than full precision the quantized model is, as logarithm of the ratio of "
                  "perplexities (zero: as good).%s%s",
                  s->seed >= 0 ? " Bars reach from the best seed to the worst." : "",
                  lines && lines->n > LINES ? " Some of the lines, evenly spread." : "");
    say_rest(s, p);
}

/* --- heat map --- */

static void put_cells(const bk_report_sweep *s, bk_picture *p, double lo, double hi)
{
    bk_buffer_add(&p->script, "$cells << EOD\n");
    for (size_t j = 0; j < s->axis[s->lines].n; j++)
        for (size_t i = 0; i < s->axis[s->across].n; i++) {
            const bk_report_group *g = bk_report_at(s, i, j);
            if (!g) continue;
            double part = hi > lo ? (g->gap - lo) / (hi - lo) : 0;
            bk_buffer_add(&p->script, g->ppl < 1000 ? "%zu %zu %.6g %.2f %d\n" : "%zu %zu %.6g %.3g %d\n", i, j, g->gap,
                          g->ppl, part < 0.55 ? 0xffffff : 0);
        }
    bk_buffer_add(&p->script, "EOD\n");
}

/* Points that are there but have no result: a word in place of a colour. */
static bool put_gaps(const bk_report_sweep *s, bk_picture *p)
{
    bool any = false;
    for (size_t k = 0; k < s->n_groups; k++) {
        const bk_report_group *g = &s->group[k];
        if (g->n || bk_report_at(s, g->at[s->across], g->at[s->lines])) continue;
        bk_buffer_add(&p->script, any ? "" : "$gaps << EOD\n");
        bk_buffer_add(&p->script, "%zu %zu -\n", g->at[s->across], g->at[s->lines]);
        any = true;
    }
    bk_buffer_add(&p->script, any ? "EOD\n" : "");
    return any;
}

static void range_of_groups(const bk_report_sweep *s, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (size_t j = 0; j < s->axis[s->lines].n; j++)
        for (size_t i = 0; i < s->axis[s->across].n; i++) {
            const bk_report_group *g = bk_report_at(s, i, j);
            *lo = g ? fmin(*lo, g->gap) : *lo;
            *hi = g ? fmax(*hi, g->gap) : *hi;
        }
}

void bk_report_map_over_axes(const bk_report_sweep *s, bk_picture *p)
{
    double lo, hi;
    if (!drawable(s, p)) return;
    if (s->lines < 0) {
        bk_picture_missing(p, "A heat map needs two axes.");
        return;
    }
    const bk_report_axis *x = &s->axis[s->across], *y = &s->axis[s->lines];
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
    bk_buffer_add(
        &p->script,
        "\n"
        "set xrange [-0.5:%zu.5]\n"
        "set yrange [-0.5:%zu.5]\n"
        "unset key\n"
        "unset grid\n"
        "set cbrange [%.6g:%.6g]\n"
        "set cblabel 'ln(ppl / ppl of fp)' offset 1.5,0\n"
        "set palette defined (0 '#440154', 1 '#3b528b', 2 '#21918c', 3 '#5ec962', 4 '#fde725')\n"
        "plot $cells using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder lc palette",
        x->n - 1, y->n - 1, lo, hi > lo ? hi : lo + 1e-3);
    if (x->n <= 16) bk_buffer_add(&p->script, ", $cells using 1:2:(stringcolumn(4)):5 with labels tc rgb variable");
    bk_buffer_add(&p->script, "%s\n", gaps ? ", $gaps using 1:2:(stringcolumn(3)) with labels" : "");
    bk_buffer_add(&p->caption, "Colour: as above; numbers: perplexities.%s", gaps ? " A dash: no result." : "");
    say_rest(s, p);
}
