/* Sweep files: from YAML to points. Each way of varying keys is a factor, a list of alternatives; points are the
 * product of all factors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/printable.h"
#include "experiments/schema_priv.h"
#include "experiments/suggest.h"
#include "experiments/sweep.h"
#include "io/file.h"

#define MAX_SWEEP_BYTES (1u << 20)
#define FACTORS (BK_SWEEP_AXES + 2)
#define DIGITS "%.4g" /* of values between the ends of log and linear */

/* One choice of a factor: values that are set together. */
typedef struct alternative {
    int n, value[BK_SWEEP_AXES];
    const bk_yaml_node *at, *title; /* title NULL: none */
} alternative;

typedef struct factor {
    alternative *alt;
    int n, room;
} factor;

typedef struct reader {
    const bk_yaml *y;
    bk_sweep *out;
    bk_run_config *scratch; /* values are read into it and printed from it */
    factor factor[FACTORS];
    int n_factors;
    const bk_yaml_node *set_at[BK_KEY_LIMIT], *axis_at[BK_KEY_LIMIT]; /* where a key was first set; made an axis */
    int axis_of[BK_KEY_LIMIT];                                   /* factor that the key belongs to */
    bk_error *err;
} reader;

#define FAIL(r, at, ...) bk_yaml_fail((r)->y, at, (r)->err, __VA_ARGS__)

static const bk_yaml_node *child(const reader *r, const bk_yaml_node *v)
{
    return v->child < 0 ? NULL : &r->y->node[v->child];
}

static const bk_yaml_node *after(const reader *r, const bk_yaml_node *v)
{
    return v->next < 0 ? NULL : &r->y->node[v->next];
}

static int length(const reader *r, const bk_yaml_node *list)
{
    int n = 0;
    for (const bk_yaml_node *e = child(r, list); e; e = after(r, e)) n++;
    return n;
}

static bk_status need_map(const reader *r, const bk_yaml_node *map, const char *what)
{
    if (map->kind != BK_NODE_MAP || !child(r, map))
        return FAIL(r, map, "%s: a map is expected, such as {train.epochs: ...}", what);
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) {
        if (k->kind != BK_NODE_SCALAR) return FAIL(r, k, "a key must be a word");
        for (const bk_yaml_node *j = child(r, map); j != k; j = after(r, after(r, j)))
            if (strcmp(j->text, k->text) == 0)
                return FAIL(r, k, "'%.60s' stands there twice, first in line %d", k->text, j->line);
    }
    return BK_OK;
}

static bk_status need_list(const reader *r, const bk_yaml_node *list, const char *what, const char *example)
{
    if (list->kind == BK_NODE_LIST && child(r, list)) return BK_OK;
    return FAIL(r, list, "%s: a list is expected, such as %s", what, example);
}

static bk_status out_of_memory(const reader *r)
{
    return bk_fail(r->err, BK_ENOMEM, "%.200s: no memory for the sweep", r->y->name);
}

/* --- keys and values --- */

static bk_status find_key(const reader *r, const bk_yaml_node *k, int *key)
{
    char near[192];
    *key = bk_key_find(k->text);
    if (*key >= 0) return BK_OK;
    if (bk_key_is_section(k->text)) {
        const bk_yaml_node *map = after(r, k), *inner = map && map->kind == BK_NODE_MAP ? child(r, map) : NULL;
        return FAIL(r, k, "'%.60s' is a section: keys stand in full here, write %.60s.%.60s: ...", k->text, k->text,
                    inner && inner->kind == BK_NODE_SCALAR ? inner->text : "KEY");
    }
    return FAIL(r, k, "'%.120s' is no key of a config%s", k->text, bk_key_nearest(k->text, near, sizeof near));
}

/* Reads a value and keeps it as "key=value"; its index in *out. */
static bk_status add_value(reader *r, int key, const bk_yaml_node *v, int *out)
{
    bk_sweep *s = r->out;
    char *text = NULL;
    size_t len;
    BK_TRY(bk_key_set(r->scratch, &bk_keys[key], r->y, v, r->err));
    if (s->n_values == s->room) {
        int room = s->room ? 2 * s->room : 64;
        bk_sweep_value *more = realloc(s->value, (size_t)room * sizeof *more);
        if (!more) return out_of_memory(r);
        s->value = more;
        s->room = room;
    }
    FILE *f = open_memstream(&text, &len);
    if (!f) return out_of_memory(r);
    fprintf(f, "%s=", bk_keys[key].path);
    bk_key_print(f, r->scratch, &bk_keys[key]);
    if (fclose(f) != 0) return free(text), out_of_memory(r);
    s->value[s->n_values] = (bk_sweep_value){key, text};
    *out = s->n_values++;
    return BK_OK;
}

/* The key belongs to one factor alone and is not fixed. */
static bk_status claim(reader *r, int key, const bk_yaml_node *at)
{
    if (r->set_at[key]) return FAIL(r, at, "'%s' is fixed by set, in line %d", bk_keys[key].path, r->set_at[key]->line);
    if (r->axis_at[key] && r->axis_of[key] == r->n_factors) return BK_OK;
    if (r->axis_at[key])
        return FAIL(r, at, "'%s' varies already, in line %d", bk_keys[key].path, r->axis_at[key]->line);
    if (r->out->n_axes == BK_SWEEP_AXES) return FAIL(r, at, "more than %d keys that vary", BK_SWEEP_AXES);
    r->axis_at[key] = at;
    r->axis_of[key] = r->n_factors;
    r->out->axis[r->out->n_axes++] = key;
    return BK_OK;
}

static bool same_alternative(const bk_sweep *s, const alternative *a, const alternative *b)
{
    int found = 0;
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < b->n; j++) found += strcmp(s->value[a->value[i]].set, s->value[b->value[j]].set) == 0;
    return a->n == b->n && found == a->n;
}

static alternative without_seed(const bk_sweep *s, const alternative *a)
{
    alternative b = {.at = a->at};
    for (int i = 0; i < a->n; i++)
        if (strcmp(bk_keys[s->value[a->value[i]].key].path, "seed") != 0) b.value[b.n++] = a->value[i];
    return b;
}

static bool same_but_seed(const bk_sweep *s, const alternative *a, const alternative *b)
{
    alternative x = without_seed(s, a), y = without_seed(s, b);
    return same_alternative(s, &x, &y);
}

static bk_status add_alternative(reader *r, const alternative *a)
{
    factor *f = &r->factor[r->n_factors];
    for (int i = 0; i < f->n; i++)
        if (same_alternative(r->out, &f->alt[i], a))
            return FAIL(r, a->at, "the same %s stands there twice", a->n == 1 ? "value" : "point");
    if (f->n == BK_SWEEP_POINTS) return FAIL(r, a->at, "more than %d points", BK_SWEEP_POINTS);
    if (f->n == f->room) {
        int room = f->room ? 2 * f->room : 16;
        alternative *more = realloc(f->alt, (size_t)room * sizeof *more);
        if (!more) return out_of_memory(r);
        f->alt = more;
        f->room = room;
    }
    f->alt[f->n++] = *a;
    return BK_OK;
}

/* --- {log: [lo, hi, n]} and {linear: [lo, hi, n]} --- */

typedef struct range {
    bool log, whole;
    double lo, hi;
    int64_t n;
} range;

/* Between the ends of log, whole numbers are rounded as others are to four digits; those of linear would be even no more. */
static bk_status need_whole(const reader *r, const char *key, const range *g, const bk_yaml_node *lo, const bk_yaml_node *spec)
{
    const bk_yaml_node *hi = after(r, lo);
    if (g->lo != floor(g->lo)) return FAIL(r, lo, "%s: %s is no whole number", key, lo->text);
    if (g->hi != floor(g->hi)) return FAIL(r, hi, "%s: %s is no whole number", key, hi->text);
    if (g->log || fmod(g->hi - g->lo, (double)(g->n - 1)) == 0) return BK_OK;
    return FAIL(r, spec, "%s: %lld values evenly from %.17g to %.17g are no whole numbers: list them", key, (long long)g->n, g->lo, g->hi);
}

static bk_status read_range(const reader *r, int key, const bk_yaml_node *spec, range *out)
{
    const bk_key *k = &bk_keys[key];
    const bk_yaml_node *kind = child(r, spec), *list = kind ? after(r, kind) : NULL;
    bool log = kind && kind->kind == BK_NODE_SCALAR && strcmp(kind->text, "log") == 0;
    if (!kind || after(r, list) || kind->kind != BK_NODE_SCALAR || (!log && strcmp(kind->text, "linear") != 0))
        return FAIL(r, spec,
                    "%s: values are a list, {log: [lowest, highest, number]} or {linear: [lowest, highest, number]}",
                    k->path);
    bool whole = k->type == BK_KEY_INT || k->type == BK_KEY_OPTION_INT;
    if (!whole && k->type != BK_KEY_REAL)
        return FAIL(r, spec, "%s: %s is for numbers; list the values", k->path, kind->text);
    if (list->kind != BK_NODE_LIST || length(r, list) != 3)
        return FAIL(r, list, "%s: three numbers are expected: lowest, highest, how many", k->path);
    const bk_yaml_node *lo = child(r, list), *hi = after(r, lo), *n = after(r, hi);
    const bk_key end = {.path = k->path, .type = BK_KEY_REAL, .min = k->min, .max = k->max};
    const bk_key count = {.path = k->path, .type = BK_KEY_INT, .min = 2, .max = 1000};
    *out = (range){.log = log, .whole = whole};
    BK_TRY(bk_field_set(&out->lo, &end, r->y, lo, r->err));
    BK_TRY(bk_field_set(&out->hi, &end, r->y, hi, r->err));
    BK_TRY(bk_field_set(&out->n, &count, r->y, n, r->err));
    if (out->lo >= out->hi) return FAIL(r, lo, "%s: the lowest value comes first", k->path);
    if (whole) BK_TRY(need_whole(r, k->path, out, lo, spec));
    return log && out->lo <= 0 ? FAIL(r, lo, "%s: log needs a lowest value above 0", k->path) : BK_OK;
}

static void range_text(const range *g, int64_t i, char *to, size_t size)
{
    double part = (double)i / (double)(g->n - 1);
    double between = g->log ? g->lo * pow(g->hi / g->lo, part) : g->lo + (g->hi - g->lo) * part;
    bool end = i == 0 || i == g->n - 1;
    double x = i == 0 ? g->lo : end ? g->hi : between;
    snprintf(to, size, g->whole ? "%.0f" : end ? "%.17g" : DIGITS, x);
}

static bk_status add_range(reader *r, int key, const bk_yaml_node *spec)
{
    range g;
    char text[40];
    BK_TRY(read_range(r, key, spec, &g));
    for (int64_t i = 0; i < g.n; i++) {
        bk_yaml_node made = *spec;
        alternative a = {.n = 1, .at = spec};
        range_text(&g, i, text, sizeof text);
        made.kind = BK_NODE_SCALAR;
        made.text = text;
        BK_TRY(add_value(r, key, &made, &a.value[0]));
        BK_TRY(add_alternative(r, &a));
    }
    return BK_OK;
}

/* --- factors --- */

static bk_status add_axis(reader *r, const bk_yaml_node *k, const bk_yaml_node *v)
{
    int key;
    BK_TRY(find_key(r, k, &key));
    BK_TRY(claim(r, key, k));
    if (v->kind == BK_NODE_MAP) {
        BK_TRY(add_range(r, key, v));
    } else {
        BK_TRY(need_list(r, v, k->text, "[0, 5, 10]"));
        for (const bk_yaml_node *e = child(r, v); e; e = after(r, e)) {
            alternative a = {.n = 1, .at = e};
            BK_TRY(add_value(r, key, e, &a.value[0]));
            BK_TRY(add_alternative(r, &a));
        }
    }
    r->n_factors++;
    return BK_OK;
}

static bk_status take_grid(reader *r, const bk_yaml_node *map)
{
    BK_TRY(need_map(r, map, "grid"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) BK_TRY(add_axis(r, k, after(r, k)));
    return BK_OK;
}

/* Lists of equal length, walked together. */
static bk_status take_zip(reader *r, const bk_yaml_node *map)
{
    const bk_yaml_node *at[BK_SWEEP_AXES];
    int key[BK_SWEEP_AXES], n = 0, count = 0;
    BK_TRY(need_map(r, map, "zip"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k)), n++) {
        const bk_yaml_node *list = after(r, k);
        if (n == BK_SWEEP_AXES) return FAIL(r, k, "more than %d keys that vary", BK_SWEEP_AXES);
        BK_TRY(find_key(r, k, &key[n]));
        BK_TRY(claim(r, key[n], k));
        BK_TRY(need_list(r, list, k->text, "[0, 5, 10]"));
        int m = length(r, list);
        if (n && m != count)
            return FAIL(r, list, "zip: %s has %d values, %s has %d", k->text, m, child(r, map)->text, count);
        count = m;
        at[n] = child(r, list);
    }
    for (int i = 0; i < count; i++) {
        alternative a = {.n = n, .at = at[0]};
        for (int j = 0; j < n; j++) {
            BK_TRY(add_value(r, key[j], at[j], &a.value[j]));
            at[j] = after(r, at[j]);
        }
        BK_TRY(add_alternative(r, &a));
    }
    r->n_factors++;
    return BK_OK;
}

static bk_status take_title(reader *r, const bk_yaml_node *v, alternative *a)
{
    char shown[8 * BK_SWEEP_TITLE];
    if (v->kind != BK_NODE_SCALAR || !*v->text) return FAIL(r, v, "name: a word or two are expected");
    if (strlen(v->text) >= BK_SWEEP_TITLE) return FAIL(r, v, "name: more than %d bytes", BK_SWEEP_TITLE - 1);
    if (strcmp(bk_visible(v->text, strlen(v->text), shown, sizeof shown), v->text) != 0)
        return FAIL(r, v, "name: characters that cannot be seen: %s", shown);
    a->title = v;
    return BK_OK;
}

static bk_status read_point(reader *r, const bk_yaml_node *map, alternative *a)
{
    BK_TRY(need_map(r, map, "points"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) {
        int key;
        if (strcmp(k->text, "name") == 0) {
            BK_TRY(take_title(r, after(r, k), a));
            continue;
        }
        BK_TRY(find_key(r, k, &key));
        BK_TRY(claim(r, key, k));
        if (a->n == BK_SWEEP_AXES) return FAIL(r, k, "more than %d keys that vary", BK_SWEEP_AXES);
        BK_TRY(add_value(r, key, after(r, k), &a->value[a->n++]));
    }
    return a->n ? BK_OK : FAIL(r, map, "points: a name alone sets nothing");
}

/* All points have a title or none, and two of the same one differ in their seed alone. */
static bk_status check_titles(reader *r)
{
    const factor *f = &r->factor[r->n_factors];
    for (int i = 0; i < f->n; i++) {
        const alternative *a = &f->alt[i];
        if (!a->title != !f->alt[0].title) return FAIL(r, a->at, "points: a name for each or for none");
        for (int k = 0; k < i && a->title; k++)
            if (strcmp(f->alt[k].title->text, a->title->text) == 0 && !same_but_seed(r->out, a, &f->alt[k]))
                return FAIL(r, a->title, "'%s' is the name of the point in line %d too, which differs in more than its seed", a->title->text,
                            f->alt[k].at->line);
    }
    return BK_OK;
}

static bk_status take_points(reader *r, const bk_yaml_node *list)
{
    BK_TRY(need_list(r, list, "points", "[{train.epochs: 5, seed: 1}, {train.epochs: 10}]"));
    for (const bk_yaml_node *e = child(r, list); e; e = after(r, e)) {
        alternative a = {.at = e};
        BK_TRY(read_point(r, e, &a));
        BK_TRY(add_alternative(r, &a));
    }
    BK_TRY(check_titles(r));
    r->n_factors++;
    return BK_OK;
}

static bk_status take_set(reader *r, const bk_yaml_node *map)
{
    bk_sweep *s = r->out;
    BK_TRY(need_map(r, map, "set"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) {
        int key;
        BK_TRY(find_key(r, k, &key));
        if (r->axis_at[key])
            return FAIL(r, k, "'%s' varies, see line %d: it cannot be fixed", k->text, r->axis_at[key]->line);
        if (s->n_fixed == BK_SWEEP_FIXED) return FAIL(r, k, "set: more than %d keys", BK_SWEEP_FIXED);
        BK_TRY(add_value(r, key, after(r, k), &s->fixed[s->n_fixed]));
        s->n_fixed++;
        r->set_at[key] = k;
    }
    return BK_OK;
}

/* --- the product --- */

static int axis_index(const bk_sweep *s, int key)
{
    for (int i = 0; i < s->n_axes; i++)
        if (s->axis[i] == key) return i;
    return -1;
}

/* The last parts of the key, as many as it takes to tell it from the other axes. */
static void name_axis(bk_sweep *s, int axis)
{
    const char *path = bk_keys[s->axis[axis]].path, *from = path + strlen(path);
    bool alone = false;
    while (!alone && from > path) {
        for (from--; from > path && from[-1] != '.'; from--) continue;
        alone = true;
        for (int i = 0; i < s->n_axes; i++) {
            const char *other = bk_keys[s->axis[i]].path;
            size_t n = strlen(from), m = strlen(other);
            if (i != axis && m >= n && strcmp(other + m - n, from) == 0 && (m == n || other[m - n - 1] == '.'))
                alone = false;
        }
    }
    snprintf(s->axis_name[axis], sizeof s->axis_name[0], "%s", from);
}

/* A value in a name: as it is, a list of plain words with + between them, else with what a shell would read replaced,
 * which loses something. */
static bool put_value(const char *value, char *to, size_t size)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=,+-";
    size_t n = strlen(value), at = 0;
    bool list = n > 2 && value[0] == '[' && value[n - 1] == ']', whole = true;
    for (size_t i = list; i < n - list; i++) {
        char c = value[i];
        if (list && c == ',' && value[i + 1] == ' ') c = '+', i++;
        else if (!strchr(plain, c) || (list && strchr(",+", c))) c = '_', whole = false;
        if (at + 1 < size) to[at++] = c;
        else whole = false;
    }
    to[at] = 0;
    return whole;
}

/* "epochs=5,lr_quant=0.0001"; with a hash at the end where that is too long or loses something. */
static bk_status name_point(const reader *r, bk_sweep_point *p)
{
    const bk_sweep *s = r->out;
    char full[BK_SWEEP_NAME], hex[65];
    size_t at = 0;
    bool whole = true;
    bk_sha256 *h = bk_sha256_new();
    if (!h) return out_of_memory(r);
    for (int i = 0; i < p->n; i++) {
        const bk_sweep_value *v = &s->value[p->value[i]];
        char value[BK_SWEEP_NAME];
        whole = put_value(v->set + strlen(bk_keys[v->key].path) + 1, value, sizeof value) && whole;
        bk_sha256_put(h, v->set, strlen(v->set) + 1);
        int n =
            snprintf(full + at, sizeof full - at, "%s%s=%s", i ? "," : "", s->axis_name[axis_index(s, v->key)], value);
        whole = whole && at + (size_t)n < sizeof full;
        at = at + (size_t)n < sizeof full ? at + (size_t)n : sizeof full - 1;
    }
    bk_sha256_end(h, hex);
    if (whole) snprintf(p->name, sizeof p->name, "%s", full);
    else snprintf(p->name, sizeof p->name, "%.*s-%.8s", BK_SWEEP_NAME - 10, full, hex);
    return BK_OK;
}

/* Values of a point in the order of the axes, whichever factor they come from. */
static void sort_values(const bk_sweep *s, bk_sweep_point *p)
{
    for (int i = 1; i < p->n; i++)
        for (int j = i;
             j > 0 && axis_index(s, s->value[p->value[j]].key) < axis_index(s, s->value[p->value[j - 1]].key); j--) {
            int t = p->value[j];
            p->value[j] = p->value[j - 1];
            p->value[j - 1] = t;
        }
}

static bk_status make_points(reader *r, const bk_yaml_node *root)
{
    bk_sweep *s = r->out;
    int64_t total = 1;
    for (int f = 0; f < r->n_factors; f++) {
        total *= r->factor[f].n;
        if (total > BK_SWEEP_POINTS) return FAIL(r, root, "more than %d points", BK_SWEEP_POINTS);
    }
    s->point = calloc((size_t)total, sizeof *s->point);
    if (!s->point) return out_of_memory(r);
    for (int i = 0; i < s->n_axes; i++) {
        const factor *f = &r->factor[r->axis_of[s->axis[i]]];
        name_axis(s, i);
        s->in_title[i] = f->alt[0].title && strcmp(bk_keys[s->axis[i]].path, "seed") != 0;
        s->titled = s->titled || f->alt[0].title;
    }
    for (; s->n < total; s->n++) {
        bk_sweep_point *p = &s->point[s->n];
        int64_t rest = s->n, block = total;
        for (int f = 0; f < r->n_factors; f++) { /* the last one is the fastest */
            block /= r->factor[f].n;
            const alternative *a = &r->factor[f].alt[rest / block];
            rest %= block;
            for (int i = 0; i < a->n; i++) p->value[p->n++] = a->value[i];
            if (a->title) snprintf(p->title, sizeof p->title, "%s", a->title->text);
        }
        sort_values(s, p);
        BK_TRY(name_point(r, p));
    }
    return BK_OK;
}

/* --- exclude --- */

static bool has_value(const bk_sweep *s, const bk_sweep_point *p, const char *set)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(s->value[p->value[i]].set, set) == 0) return true;
    return false;
}

static bk_status read_pattern(reader *r, const bk_yaml_node *map, alternative *out)
{
    bk_sweep *s = r->out;
    BK_TRY(need_map(r, map, "exclude"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) {
        int key;
        bool met = false;
        BK_TRY(find_key(r, k, &key));
        if (!r->axis_at[key]) return FAIL(r, k, "exclude: '%s' does not vary", k->text);
        if (out->n == BK_SWEEP_AXES) return FAIL(r, k, "more than %d keys that vary", BK_SWEEP_AXES);
        BK_TRY(add_value(r, key, after(r, k), &out->value[out->n]));
        const char *set = s->value[out->value[out->n++]].set;
        for (int i = 0; i < s->n && !met; i++) met = has_value(s, &s->point[i], set);
        if (!met) return FAIL(r, after(r, k), "exclude: no point has %s", set);
    }
    return BK_OK;
}

static bk_status take_exclude(reader *r, const bk_yaml_node *list)
{
    bk_sweep *s = r->out;
    bool *out = calloc((size_t)s->n, sizeof *out);
    if (!out) return out_of_memory(r);
    bk_status st = need_list(r, list, "exclude", "[{train.epochs: 20, seed: 1}]");
    for (const bk_yaml_node *e = child(r, list); !st && e; e = after(r, e)) {
        alternative a = {.at = e};
        st = read_pattern(r, e, &a);
        for (int i = 0; !st && i < s->n; i++) {
            int met = 0;
            for (int j = 0; j < a.n; j++) met += has_value(s, &s->point[i], s->value[a.value[j]].set);
            out[i] = out[i] || met == a.n;
        }
    }
    int kept = 0;
    for (int i = 0; !st && i < s->n; i++)
        if (!out[i]) s->point[kept++] = s->point[i];
    free(out);
    BK_TRY(st);
    s->n = kept;
    return kept ? BK_OK : FAIL(r, list, "exclude leaves no point");
}

/* --- the rest of the file --- */

static bk_status take_halving(reader *r, const bk_yaml_node *map)
{
    static const char *const known[] = {"blocks", "keep"};
    const bk_key block = {.path = "halving.blocks", .type = BK_KEY_INT, .min = 1, .max = 1e6};
    const bk_key keep = {.path = "halving.keep", .type = BK_KEY_REAL, .min = 0.01, .max = 0.99};
    bk_sweep *s = r->out;
    char near[128];
    s->keep = 0.5;
    BK_TRY(need_map(r, map, "halving"));
    for (const bk_yaml_node *k = child(r, map); k; k = after(r, after(r, k))) {
        const bk_yaml_node *v = after(r, k);
        if (strcmp(k->text, "keep") == 0) {
            BK_TRY(bk_field_set(&s->keep, &keep, r->y, v, r->err));
            continue;
        }
        if (strcmp(k->text, "blocks") != 0)
            return FAIL(r, k, "halving: unknown key '%.60s'%s", k->text,
                        bk_suggest_text(k->text, known, 2, near, sizeof near));
        BK_TRY(need_list(r, v, "halving.blocks", "[2, 6]"));
        for (const bk_yaml_node *e = child(r, v); e; e = after(r, e)) {
            if (s->n_rungs == BK_SWEEP_RUNGS) return FAIL(r, e, "halving: more than %d steps", BK_SWEEP_RUNGS);
            BK_TRY(bk_field_set(&s->rung[s->n_rungs], &block, r->y, e, r->err));
            if (s->n_rungs && s->rung[s->n_rungs] <= s->rung[s->n_rungs - 1])
                return FAIL(r, e, "halving: blocks must rise");
            s->n_rungs++;
        }
    }
    return s->n_rungs ? BK_OK : FAIL(r, map, "halving: after which blocks? Such as {blocks: [2, 6], keep: 0.5}");
}

static bk_status take_base(reader *r, const bk_yaml_node *v)
{
    const bk_key base = {.path = "base", .type = BK_KEY_PATH};
    BK_TRY(bk_field_set(r->out->base, &base, r->y, v, r->err));
    if (!*r->out->base || strchr(r->out->base, '\n')) return FAIL(r, v, "base: name a config");
    if (access(r->out->base, R_OK) == 0) return BK_OK;
    return bk_fail_errno(r->err, "%.200s:%d:%d: base: '%.400s' (paths count from the folder that brick is started in)",
                         r->y->name, v->line, v->column, r->out->base);
}

static bk_status take_jobs(reader *r, const bk_yaml_node *v)
{
    const bk_key jobs = {.path = "jobs", .type = BK_KEY_INT, .min = 1, .max = 1024};
    return bk_field_set(&r->out->jobs, &jobs, r->y, v, r->err);
}

static const struct {
    const char *name;
    bk_status (*take)(reader *r, const bk_yaml_node *v);
} sections[] = {{"base", take_base},     {"set", take_set},   {"grid", take_grid},       {"zip", take_zip},
                {"points", take_points}, {"jobs", take_jobs}, {"halving", take_halving}, {"exclude", take_exclude}};
enum { N_SECTIONS = sizeof sections / sizeof sections[0], EXCLUDE = N_SECTIONS - 1 };

/* What stands beside the sections: a typing error, or a key of a config. */
static bk_status unknown_section(const reader *r, const bk_yaml_node *root, const bk_yaml_node *k, const char *const *names)
{
    char near[128];
    bool sweep = false;
    for (const bk_yaml_node *j = child(r, root); j; j = after(r, after(r, j))) sweep = sweep || strcmp(j->text, "base") == 0;
    if (bk_key_find(k->text) < 0 && !bk_key_is_section(k->text))
        return FAIL(r, k, "unknown key '%.60s' of a sweep%s", k->text, bk_suggest_text(k->text, names, N_SECTIONS, near, sizeof near));
    if (sweep) return FAIL(r, k, "'%.60s' is a key of a config: in a sweep it stands under set: or grid:", k->text);
    return FAIL(r, k, "this is the config of one run: brick run %.400s", r->y->name);
}

static bk_status read_sections(reader *r, const bk_yaml_node *root)
{
    const bk_yaml_node *exclude = NULL;
    const char *names[N_SECTIONS];
    for (int i = 0; i < N_SECTIONS; i++) names[i] = sections[i].name;
    BK_TRY(need_map(r, root, "a sweep"));
    for (const bk_yaml_node *k = child(r, root); k; k = after(r, after(r, k))) {
        int i = 0;
        while (i < N_SECTIONS && strcmp(names[i], k->text) != 0) i++;
        if (i == N_SECTIONS) return unknown_section(r, root, k, names);
        if (i == EXCLUDE) exclude = after(r, k); /* once there are points */
        else BK_TRY(sections[i].take(r, after(r, k)));
    }
    if (!*r->out->base) return FAIL(r, root, "base is missing: the config that the points vary");
    if (r->n_factors == 0) return FAIL(r, root, "nothing varies: give grid, zip or points");
    BK_TRY(make_points(r, root));
    return exclude ? take_exclude(r, exclude) : BK_OK;
}

static bk_status read_yaml(const char *path, bk_yaml *y, bk_error *err)
{
    char *text;
    size_t len;
    bk_error why = {0};
    bk_status st = bk_file_slurp(path, MAX_SWEEP_BYTES, &text, &len, &why);
    if (st) return bk_fail(err, st == BK_EFORMAT ? BK_EINVAL : st, "%s", why.msg);
    st = bk_yaml_read(text, len, path, true, y, err);
    free(text);
    return st;
}

bool bk_sweep_is(const char *path)
{
    bk_yaml y = {0};
    bk_error err = {0};
    bool found = false;
    if (!read_yaml(path, &y, &err) && y.node[0].kind == BK_NODE_MAP)
        for (int k = y.node[0].child; k >= 0 && !found; k = y.node[y.node[k].next].next)
            found = y.node[k].kind == BK_NODE_SCALAR && strcmp(y.node[k].text, "base") == 0;
    bk_yaml_free(&y);
    return found;
}

bk_status bk_sweep_load(const char *path, bk_sweep *out, bk_error *err)
{
    bk_yaml y = {0};
    *out = (bk_sweep){.jobs = 1};
    snprintf(out->file, sizeof out->file, "%s", path);
    reader *r = calloc(1, sizeof *r);
    if (!r) return bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    *r = (reader){.y = &y, .out = out, .err = err, .scratch = calloc(1, sizeof *r->scratch)};
    bk_status st = r->scratch ? read_yaml(path, &y, err) : out_of_memory(r);
    if (!st) st = read_sections(r, &y.node[0]);
    for (int i = 0; i < FACTORS; i++) free(r->factor[i].alt);
    free(r->scratch);
    free(r);
    bk_yaml_free(&y);
    return st;
}

void bk_sweep_free(bk_sweep *s)
{
    for (int i = 0; i < s->n_values; i++) free(s->value[i].set);
    for (int i = 0; i < s->n; i++)
        for (int a = 0; a < s->n_axes; a++) free(s->point[i].shown[a]);
    free(s->value);
    free(s->point);
    *s = (bk_sweep){0};
}
