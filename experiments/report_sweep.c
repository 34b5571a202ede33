/* What a page says about a sweep: its points ranked, lines over one axis, a heat map over two. All from results.jsonl: a
 * flat object per point, in which the keys of a config are the axes, options of quantizers that are not loaded here too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report_sweep.h"

#define MOST_GAP 1e6

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

static void value_text(const bk_json *v, char text[BK_REPORT_TEXT])
{
    const char *s = bk_json_kind_of(v) == BK_JSON_NULL ? "-" : bk_json_str(v, NULL); /* an option of another quantizer */
    double x = bk_json_num(v, NAN);
    char *dumped = s || isfinite(x) ? NULL : bk_json_dump(v, 0);
    if (isfinite(x))
        snprintf(text, BK_REPORT_TEXT, "%.10g", x);
    else if (!s)
        s = dumped ? dumped : "?";
    if (s) bk_printable(s, strlen(s), text, BK_REPORT_TEXT);
    free(dumped);
}

static bool same_value(const bk_json *a, const bk_json *b)
{
    const char *s = bk_json_str(a, NULL), *t = bk_json_str(b, NULL);
    if (s || t) return s && t && !strcmp(s, t);
    double x = bk_json_num(a, NAN), y = bk_json_num(b, NAN);
    if (!isnan(x) || !isnan(y)) return x == y;
    return bk_json_kind_of(a) == bk_json_kind_of(b) && bk_json_bool(a, false) == bk_json_bool(b, false);
}

static size_t find_value(const bk_report_axis *a, const bk_json *v)
{
    size_t i = 0;
    while (i < a->n && !same_value(a->value[i].json, v)) i++;
    return i;
}

/* Insertion: few values, and numbers are mostly in order. */
static void sort_numbers(bk_report_axis *a)
{
    for (size_t i = 1; a->numeric && i < a->n; i++) {
        bk_report_value v = a->value[i];
        size_t k = i;
        for (; k > 0 && a->value[k - 1].x > v.x; k--) a->value[k] = a->value[k - 1];
        a->value[k] = v;
    }
}

static bk_status read_axis(bk_report_sweep *s, const char *key, bk_error *err)
{
    size_t rows = bk_json_size(s->rows);
    bk_report_axis *a = &s->axis[s->n_axes++]; /* freed whatever happens */
    *a = (bk_report_axis){.key = key, .value = malloc(rows * sizeof *a->value), .numeric = true};
    if (!a->value) return bk_fail(err, BK_ENOMEM, "no memory for the values of %s", key);
    for (size_t i = 0; i < rows; i++) {
        const bk_json *v = bk_json_get(bk_json_at(s->rows, i), key);
        if (find_value(a, v) < a->n) continue;
        bk_report_value *new = &a->value[a->n++];
        *new = (bk_report_value){.json = v, .x = bk_json_num(v, NAN)};
        value_text(v, new->text);
        a->numeric = a->numeric && isfinite(new->x);
    }
    sort_numbers(a);
    if (!strcmp(key, "seed") && a->n > 1) s->seed = s->n_axes - 1;
    return BK_OK;
}

/* Columns of results have no dot in their names; keys without one are none of a plugin's. */
static bool names_axis(const bk_report_sweep *s, const char *key)
{
    for (int a = 0; a < s->n_axes; a++)
        if (!strcmp(s->axis[a].key, key)) return false;
    return strchr(key, '.') || bk_key_find(key) >= 0;
}

/* A row can have an axis that those before it lack, where files of several sweeps were joined. */
static bk_status read_axes_of(bk_report_sweep *s, const bk_json *row, bk_error *err)
{
    for (void *it = bk_json_first(row); it; it = bk_json_next(row, it)) {
        if (!names_axis(s, bk_json_key(it))) continue;
        if (s->n_axes < BK_REPORT_AXES)
            BK_TRY(read_axis(s, bk_json_key(it), err));
        else if (!*s->why)
            snprintf(s->why, sizeof s->why, "results.jsonl has more than %d axes; points that differ in others are averaged.",
                     BK_REPORT_AXES);
    }
    return BK_OK;
}

static bk_status read_axes(bk_report_sweep *s, bk_error *err)
{
    s->seed = s->across = s->lines = -1;
    for (size_t i = 0; i < bk_json_size(s->rows); i++) BK_TRY(read_axes_of(s, bk_json_at(s->rows, i), err));
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

/* A point that has failed may have numbers too, of a model in which nothing was trained. */
static bool has_result(const bk_json *row)
{
    return !strcmp(bk_json_str(bk_json_get(row, "status"), ""), "done") && fabs(number(row, "gap")) < MOST_GAP;
}

static bool same_place(const size_t *a, const size_t *b)
{
    return memcmp(a, b, BK_REPORT_AXES * sizeof *a) == 0;
}

static void add_to_group(bk_report_group *g, const bk_json *row)
{
    double gap = number(row, "gap"), delta = gap - g->gap;
    if (!has_result(row)) return;
    g->n++;
    g->gap += delta / (double)g->n;
    g->squares += delta * (gap - g->gap); /* Welford */
    g->ppl += (number(row, "ppl_final") - g->ppl) / (double)g->n;
    g->init += (log(number(row, "ppl_init") / number(row, "ppl_fp")) - g->init) / (double)g->n;
    g->lo = g->n == 1 ? gap : fmin(g->lo, gap);
    g->hi = g->n == 1 ? gap : fmax(g->hi, gap);
}

static int by_gap(const void *a, const void *b)
{
    const bk_report_group *x = a, *y = b;
    if (!x->n || !y->n) return (x->n == 0) - (y->n == 0);
    return (x->gap > y->gap) - (x->gap < y->gap);
}

static bk_status read_groups(bk_report_sweep *s, bk_error *err)
{
    size_t rows = bk_json_size(s->rows);
    s->group = calloc(rows + 1, sizeof *s->group);
    if (!s->group) return bk_fail(err, BK_ENOMEM, "no memory for %zu points", rows);
    for (size_t i = 0; i < rows; i++) {
        const bk_json *row = bk_json_at(s->rows, i);
        size_t at[BK_REPORT_AXES] = {0}, k = 0;
        for (int a = 0; a < s->n_axes; a++)
            at[a] = a == s->seed ? 0 : find_value(&s->axis[a], bk_json_get(row, s->axis[a].key));
        while (k < s->n_groups && !same_place(s->group[k].at, at)) k++;
        if (k == s->n_groups) {
            memcpy(s->group[k].at, at, sizeof at);
            s->group[k].name = bk_json_str(bk_json_get(row, "name"), NULL);
            s->named = s->named || s->group[k].name;
            s->n_groups++;
        }
        add_to_group(&s->group[k], row);
        s->n_done += has_result(row);
    }
    qsort(s->group, s->n_groups, sizeof *s->group, by_gap);
    return BK_OK;
}

/* The groups are ranked. */
const bk_report_group *bk_report_at(const bk_report_sweep *s, size_t across, size_t lines)
{
    for (size_t k = 0; k < s->n_groups; k++) {
        const bk_report_group *g = &s->group[k];
        if (g->n && g->at[s->across] == across && (s->lines < 0 || g->at[s->lines] == lines)) return g;
    }
    return NULL;
}

/* --- tables --- */

static void ranked(const bk_report_sweep *s, bk_page *page)
{
    const char *heads[BK_REPORT_AXES + 8] = {"#rank"};
    int n = 1;
    if (s->named) heads[n++] = "name";
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
        const bk_report_group *g = &s->group[k];
        bk_page_row(page);
        bk_page_number(page, "%.0f", (double)k + 1);
        if (s->named) bk_page_cell(page, g->name ? g->name : "-");
        for (int a = 0; a < s->n_axes; a++)
            if (a != s->seed) bk_page_cell(page, s->axis[a].value[g->at[a]].text);
        bk_page_number(page, "%.4f", g->ppl);
        bk_page_number(page, "%.4f", g->gap);
        if (s->seed >= 0) {
            bk_page_number(page, "%.4f", g->n > 1 ? sqrt(g->squares / (double)(g->n - 1)) : NAN);
            bk_page_number(page, "%.0f", (double)g->n);
        }
    }
    bk_page_table_end(page);
}

static void without_result(const bk_report_sweep *s, bk_page *page)
{
    if (s->n_done == bk_json_size(s->rows)) return;
    bk_page_heading(page, 3, "Points without a result");
    bk_page_table(page, (const char *const[]){"point", "status", "", NULL});
    for (size_t i = 0; i < bk_json_size(s->rows); i++) {
        const bk_json *row = bk_json_at(s->rows, i);
        if (has_result(row)) continue;
        bk_page_row(page);
        bk_page_cell(page, bk_json_str(bk_json_get(row, "point"), "?"));
        bk_page_cell(page, bk_json_str(bk_json_get(row, "status"), "?"));
        bk_page_cell(page, bk_json_str(bk_json_get(row, "message"), ""));
    }
    bk_page_table_end(page);
}

static bk_status put_picture(const bk_report_sweep *s, bk_page *page, const char *name, const char *title,
                             void (*draw)(const bk_report_sweep *, bk_picture *), bk_error *err)
{
    bk_picture p = {.title = title};
    snprintf(p.name, sizeof p.name, "%s%s", page->prefix, name);
    draw(s, &p);
    bk_status st = bk_page_picture(page, &p, err);
    bk_picture_free(&p);
    return st;
}

/* --- what was swept --- */

/* Whether a key, or one of a section ("quant."), is an axis: no value of it is that of all points. */
static bool varies(const bk_report_sweep *s, const char *prefix)
{
    for (int a = 0; a < s->n_axes; a++)
        if (!strncmp(s->axis[a].key, prefix, strlen(prefix))) return true;
    return false;
}

static void fact(bk_page *page, const char *name, const char *text)
{
    bk_page_row(page);
    bk_page_cell(page, name);
    bk_page_cell(page, text);
}

/* The files that were asked for, as `brick sweep` left them. */
static void question(const char *dir, bk_page *page)
{
    char path[BK_REPORT_PATH];
    bk_json *o = NULL;
    bk_text_buffer sets = {0};
    snprintf(path, sizeof path, "%s/sweep.json", dir);
    if (!bk_exists(path) || bk_json_load(path, &o, NULL)) return;
    const bk_json *set = bk_json_get(o, "set");
    for (size_t i = 0; i < bk_json_size(set); i++)
        bk_buffer_add(&sets, "%s%s", i ? ", " : "", bk_json_str(bk_json_at(set, i), "?"));
    fact(page, "sweep", bk_json_str(bk_json_get(o, "sweep"), "?"));
    fact(page, "base config", bk_json_str(bk_json_get(o, "base"), "?"));
    if (sets.text) fact(page, "set", sets.text);
    bk_buffer_free(&sets);
    bk_json_free(o);
}

static void axis_facts(const bk_report_sweep *s, bk_page *page)
{
    for (int a = 0; a < s->n_axes; a++) {
        bk_text_buffer values = {0};
        for (size_t i = 0; i < s->axis[a].n; i++) bk_buffer_add(&values, "%s%s", i ? ", " : "", s->axis[a].value[i].text);
        fact(page, s->axis[a].key, values.text ? values.text : "");
        bk_buffer_free(&values);
    }
}

static void point_facts(const bk_report_sweep *s, const bk_report_run *r, bk_page *page)
{
    const bk_run_config *c = r->cfg;
    bk_text_buffer changes = {0};
    char seed[32];
    snprintf(seed, sizeof seed, "%.0f", c ? (double)c->seed : bk_json_num(bk_json_get(r->summary, "seed"), NAN));
    if (!varies(s, "model")) fact(page, "model", c ? c->model : bk_json_str(bk_json_get(r->summary, "model"), "?"));
    if (!varies(s, "scheme")) fact(page, "scheme", c ? c->scheme : bk_json_str(bk_json_get(r->summary, "scheme"), "?"));
    if (c && !varies(s, "method")) fact(page, "method", c->method);
    bk_report_changes(r, &changes);
    if (changes.text && !varies(s, "quant.") && !varies(s, "method") && !varies(s, "scheme")) fact(page, "quantizers", changes.text);
    if (!varies(s, "seed")) fact(page, "seed", seed);
    if (!varies(s, "data.evaluation.")) fact(page, "evaluation", bk_json_str(bk_json_get(r->summary, "protocol"), "?"));
    bk_buffer_free(&changes);
}

/* Of the first point that is finished, where its folder is: what all points have in common. */
static void common_facts(const bk_report_sweep *s, const char *dir, bk_page *page)
{
    for (size_t i = 0; i < bk_json_size(s->rows); i++) {
        char path[BK_REPORT_PATH];
        bk_report_run r;
        const char *point = bk_json_str(bk_json_get(bk_json_at(s->rows, i), "point"), "");
        if (!has_result(bk_json_at(s->rows, i)) || !*point || *point == '.' || strchr(point, '/')) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, point) > 4000) continue;
        if (!bk_is_dir(path)) continue;
        bool open = bk_report_run_open(&r, path, NULL) == BK_OK;
        if (open) point_facts(s, &r, page);
        bk_report_run_close(&r);
        if (open) return;
    }
}

static void full_precision_fact(const bk_report_sweep *s, bk_page *page)
{
    double lo = INFINITY, hi = -INFINITY;
    char text[80];
    for (size_t i = 0; i < bk_json_size(s->rows); i++) {
        double fp = number(bk_json_at(s->rows, i), "ppl_fp");
        if (isfinite(fp)) lo = fmin(lo, fp), hi = fmax(hi, fp);
    }
    if (!(lo <= hi)) return;
    snprintf(text, sizeof text, lo < hi ? "%.4f to %.4f" : "%.4f", lo, hi);
    fact(page, "perplexity in full precision", text);
}

static void what_was_swept(const bk_report_sweep *s, const char *dir, bk_page *page)
{
    bk_page_table(page, (const char *const[]){"", "", NULL});
    question(dir, page);
    axis_facts(s, page);
    common_facts(s, dir, page);
    full_precision_fact(s, page);
    bk_page_table_end(page);
}

/* The best lies where nothing further was tried. */
static void edges(const bk_report_sweep *s, bk_page *page)
{
    for (int a = 0; a < s->n_axes; a++) {
        const bk_report_axis *x = &s->axis[a];
        char line[200], sentence[220];
        if (a == s->seed || !x->numeric) continue;
        if (!bk_sweep_at_edge(x->key, x->value[s->group[0].at[a]].x, x->value[0].x, x->value[x->n - 1].x, line, sizeof line)) continue;
        snprintf(sentence, sizeof sentence, "T%s.", line + 1);
        bk_page_sentence(page, sentence);
    }
}

static bk_status show(bk_report_sweep *s, const char *dir, bk_page *page, bk_error *err)
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
    if (bk_json_size(s->rows)) what_was_swept(s, dir, page);
    BK_TRY(put_picture(s, page, "lines", "Results over one axis", bk_report_lines_over_axis, err));
    BK_TRY(put_picture(s, page, "map", "Results over two axes", bk_report_map_over_axes, err));
    if (s->n_done) {
        bk_page_heading(page, 3, "Points by rank");
        ranked(s, page);
        edges(s, page);
    }
    without_result(s, page);
    return BK_OK;
}

bk_status bk_report_sweep_section(const char *dir, bk_page *page, bk_error *err)
{
    bk_report_sweep s = {.rows = NULL};
    bk_status st = show(&s, dir, page, err);
    for (int a = 0; a < s.n_axes; a++) free(s.axis[a].value);
    free(s.group);
    bk_json_free(s.rows);
    return st;
}
