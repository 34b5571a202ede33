/* Results of a sweep for people: points ranked by what quantization costs, statistics over seeds, and both as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/sweep_run.h"

#define VALUE 40 /* columns of an axis at most: a path is cut */

typedef struct ranked {
    const bk_sweep_row *row;
    int point;
} ranked;

/* Whether its numbers are a result. A point that has failed may have some: of a model in which nothing was trained. */
static bool has_result(const bk_sweep_row *row)
{
    return row->state == BK_POINT_DONE && !isnan(row->gap);
}

/* Those with a result by gap, the rest in the order of the file. */
static int by_gap(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    bool counts_x = has_result(x->row), counts_y = has_result(y->row);
    if (counts_x != counts_y) return counts_x ? -1 : 1;
    if (counts_x && x->row->gap != y->row->gap) return x->row->gap < y->row->gap ? -1 : 1;
    return x->point - y->point;
}

/* One line of the statistics: points that differ in their seed alone. */
typedef struct group {
    int first, n; /* a point of it; those with a result */
    double ppl, ppl_squares, gap, gap_squares;
} group;

static int seed_axis(const bk_sweep *s)
{
    for (int a = 0; a < s->n_axes; a++)
        if (!strcmp(bk_keys[s->axis[a]].path, "seed")) return a;
    return -1;
}

static bool same_but_seed(const bk_sweep *s, int seed, int i, int j)
{
    for (int a = 0; a < s->n_axes; a++)
        if (a != seed && strcmp(s->point[i].shown[a], s->point[j].shown[a])) return false;
    return true;
}

/* Welford's sums: mean, and squares of what differs from it. */
static void add(double x, int n, double *mean, double *squares)
{
    double d = x - *mean;
    *mean += d / n;
    *squares += d * (x - *mean);
}

static double deviation(double squares, int n)
{
    return n > 1 ? sqrt(squares / (n - 1)) : NAN;
}

static int group_by_seed(const bk_sweep *s, const bk_sweep_row *rows, group *g)
{
    int seed = seed_axis(s), n = 0;
    for (int i = 0; seed >= 0 && i < s->n; i++) {
        int k = 0;
        while (k < n && !same_but_seed(s, seed, g[k].first, i)) k++;
        if (k == n) g[n++] = (group){.first = i};
        if (!has_result(&rows[i])) continue;
        g[k].n++;
        add(rows[i].final, g[k].n, &g[k].ppl, &g[k].ppl_squares);
        add(rows[i].gap, g[k].n, &g[k].gap, &g[k].gap_squares);
    }
    return n;
}

static int by_mean_gap(const void *a, const void *b)
{
    const group *x = a, *y = b;
    if ((x->n > 0) != (y->n > 0)) return x->n ? -1 : 1;
    if (x->n && x->gap != y->gap) return x->gap < y->gap ? -1 : 1;
    return x->first - y->first;
}

/* --- text --- */

static int widest(int so_far, const char *text)
{
    int width = bk_text_width(text);
    return width > so_far ? width : so_far;
}

/* What tells points apart: their titles, and axes that these leave open. */
typedef struct columns {
    const bk_sweep *s;
    int without; /* axis that is left out, -1 = none */
    int title, axis[BK_SWEEP_AXES]; /* columns of a terminal */
} columns;

static columns columns_of(const bk_sweep *s, int without)
{
    columns c = {.s = s, .without = without, .title = widest(0, "name")};
    for (int i = 0; i < s->n; i++) c.title = widest(c.title, s->point[i].title);
    for (int a = 0; a < s->n_axes; a++) {
        c.axis[a] = widest(0, s->axis_name[a]);
        for (int i = 0; i < s->n; i++) c.axis[a] = widest(c.axis[a], s->point[i].shown[a]);
        if (c.axis[a] > VALUE) c.axis[a] = VALUE;
    }
    return c;
}

static void print_number(double x, int width, int digits)
{
    if (isnan(x)) printf("  %*s", width, "-");
    else printf("  %*.*f", width, digits, x);
}

static void print_loss(double x)
{
    if (isnan(x)) printf("  %10s", "-");
    else printf("  %10.4e", x);
}

/* point -1: the heads. */
static void print_columns(const columns *c, int point)
{
    const bk_sweep *s = c->s;
    const char *gap = "";
    if (s->titled) {
        bk_print_cell(stdout, point < 0 ? "name" : s->point[point].title, c->title);
        gap = "  ";
    }
    for (int a = 0; a < s->n_axes; a++) {
        if (a == c->without || s->in_title[a]) continue;
        fputs(gap, stdout);
        bk_print_cell(stdout, point < 0 ? s->axis_name[a] : s->point[point].shown[a], c->axis[a]);
        gap = "  ";
    }
}

static void print_ranks(const bk_sweep *s, const ranked *r)
{
    columns c = columns_of(s, -1);
    printf("rank  ");
    print_columns(&c, -1);
    printf("  %10s  %10s  %10s  %8s  %10s  %8s\n", "ppl fp", "ppl init", "ppl final", "gap", "loss", "seconds");
    for (int i = 0; i < s->n; i++) {
        const bk_sweep_row *row = r[i].row;
        if (has_result(row)) printf("%4d  ", i + 1);
        else printf("%4s  ", "-");
        print_columns(&c, r[i].point);
        print_number(row->fp, 10, 4);
        print_number(row->init, 10, 4);
        print_number(row->final, 10, 4);
        print_number(row->gap, 8, 4);
        print_loss(row->loss_final);
        print_number(row->seconds[BK_RUN_STAGES - 1], 8, 1);
        if (row->state == BK_POINT_FAILED) printf("  failed (%d): %s", row->code, row->message);
        if (row->state == BK_POINT_STOPPED) printf("  stopped: %s", row->message);
        if (row->state == BK_POINT_PENDING) printf("  not run");
        putchar('\n');
    }
    puts("gap = ln(ppl final / ppl fp); loss = mean over blocks of the validation loss that was kept");
}

static void print_seeds(const bk_sweep *s, const group *g, int n)
{
    columns c = columns_of(s, seed_axis(s));
    if (n == 0 || n == s->n) return; /* no two seeds of anything */
    printf("\nover seeds\n");
    print_columns(&c, -1);
    printf("  %3s  %10s  %8s  %8s  %8s\n", "n", "ppl final", "sd", "gap", "sd");
    for (int i = 0; i < n; i++) {
        print_columns(&c, g[i].first);
        printf("  %3d", g[i].n);
        print_number(g[i].n ? g[i].ppl : NAN, 10, 4);
        print_number(deviation(g[i].ppl_squares, g[i].n), 8, 4);
        print_number(g[i].n ? g[i].gap : NAN, 8, 4);
        print_number(deviation(g[i].gap_squares, g[i].n), 8, 4);
        putchar('\n');
    }
}

bool bk_sweep_at_edge(const char *key, double best, double lo, double hi, char *text, size_t size)
{
    int k = bk_key_find(key);
    bool bounded = k >= 0 && bk_keys[k].min < bk_keys[k].max;
    bool least = best <= lo && !(bounded && best <= bk_keys[k].min), most = best >= hi && !(bounded && best >= bk_keys[k].max);
    if (!(lo < hi) || (!least && !most)) return false;
    snprintf(text, size, "the best value of %.100s, %.10g, is the %s tried", key, best, least ? "smallest" : "largest");
    return true;
}

static void print_edges(const bk_sweep *s, int best)
{
    for (int a = 0; a < s->n_axes; a++) {
        char line[200];
        double lo = INFINITY, hi = -INFINITY;
        bool numeric = a != seed_axis(s);
        for (int i = 0; i < s->n && numeric; i++) {
            double x = bk_sweep_number(s, a, i);
            numeric = isfinite(x);
            lo = fmin(lo, x), hi = fmax(hi, x);
        }
        if (numeric && bk_sweep_at_edge(bk_keys[s->axis[a]].path, bk_sweep_number(s, a, best), lo, hi, line, sizeof line)) puts(line);
    }
}

/* --- JSON --- */

static bk_json *seeds_json(const bk_sweep *s, const group *g, int n)
{
    bk_json *all = bk_json_array();
    int seed = seed_axis(s);
    for (int i = 0; i < n; i++) {
        bk_json *o = bk_json_object();
        for (int a = 0; a < s->n_axes; a++)
            if (a != seed) bk_json_set(o, bk_keys[s->axis[a]].path, bk_json_of_text(s->point[g[i].first].shown[a]));
        bk_json_set(o, "n", bk_json_of_int(g[i].n));
        bk_json_set(o, "ppl_final_mean", bk_json_of_num(g[i].n ? g[i].ppl : NAN));
        bk_json_set(o, "ppl_final_sd", bk_json_of_num(deviation(g[i].ppl_squares, g[i].n)));
        bk_json_set(o, "gap_mean", bk_json_of_num(g[i].n ? g[i].gap : NAN));
        bk_json_set(o, "gap_sd", bk_json_of_num(deviation(g[i].gap_squares, g[i].n)));
        bk_json_push(all, o);
    }
    return all;
}

static bk_status print_json(const bk_sweep *s, const bk_sweep_row *rows, const ranked *r, const group *g, int groups,
                            const char *dir, bk_error *err)
{
    bk_json *o = bk_json_object(), *axes = bk_json_array(), *ranking = bk_json_array();
    int count[BK_POINT_STOPPED + 1] = {0};
    for (int i = 0; i < s->n; i++) count[rows[i].state]++;
    for (int a = 0; a < s->n_axes; a++) bk_json_push(axes, bk_json_of_text(bk_keys[s->axis[a]].path));
    for (int i = 0; i < s->n && has_result(r[i].row); i++)
        bk_json_push(ranking, bk_json_of_text(s->point[r[i].point].name));
    bk_json_set(o, "sweep", bk_json_of_text(s->file));
    bk_json_set(o, "base", bk_json_of_text(s->base));
    bk_json_set(o, "folder", bk_json_of_text(dir));
    bk_json_set(o, "axes", axes);
    bk_json_set(o, "done", bk_json_of_int(count[BK_POINT_DONE]));
    bk_json_set(o, "failed", bk_json_of_int(count[BK_POINT_FAILED]));
    bk_json_set(o, "stopped", bk_json_of_int(count[BK_POINT_STOPPED]));
    bk_json_set(o, "points", bk_sweep_rows_json(s, rows, dir));
    bk_json_set(o, "ranking", ranking);
    bk_json_set(o, "seeds", seed_axis(s) < 0 ? bk_json_null() : seeds_json(s, g, groups));
    return bk_print_json(o, err);
}

bk_status bk_sweep_print(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bool json, bk_error *err)
{
    bk_status st = BK_OK;
    ranked *r = malloc((size_t)s->n * sizeof *r);
    group *g = malloc((size_t)s->n * sizeof *g);
    if (!r || !g) st = bk_fail(err, BK_ENOMEM, "no memory for the results");
    if (!st) {
        for (int i = 0; i < s->n; i++) r[i] = (ranked){&rows[i], i};
        qsort(r, (size_t)s->n, sizeof *r, by_gap);
        int n = group_by_seed(s, rows, g);
        qsort(g, (size_t)n, sizeof *g, by_mean_gap);
        if (json) {
            st = print_json(s, rows, r, g, n, dir, err);
        } else {
            print_ranks(s, r);
            print_seeds(s, g, n);
            if (n > 0 && g[0].n) print_edges(s, g[0].first);
            else if (n == 0 && has_result(r[0].row)) print_edges(s, r[0].point);
        }
    }
    free(r);
    free(g);
    return st;
}
