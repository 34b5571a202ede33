/* brick inspect as one JSON object; what was not computed is null. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/inspect_view.h"
#include "io/json.h"

static bk_json *ints_json(const int64_t *v, int n)
{
    bk_json *a = bk_json_array();
    for (int k = 0; k < n; k++) bk_json_push(a, bk_json_of_int(v[k]));
    return a;
}

static void set_num(bk_json *j, const char *name, double v)
{
    bk_json_set(j, name, bk_json_of_num(v));
}

static void set_int(bk_json *j, const char *name, int64_t v)
{
    bk_json_set(j, name, bk_json_of_int(v));
}

/* ---- the tree ---- */

static bk_status add_attr(void *user, const char *name, const char *value, bool is_text, bk_error *err)
{
    (void)err;
    bk_json *v = NULL;
    if (is_text || bk_json_parse(value, strlen(value), name, &v, NULL) != BK_OK) v = bk_json_of_text(value);
    bk_json_set(user, name, v);
    return BK_OK;
}

static bk_json *object_json(bk_store *s, const bk_store_object *o, bk_status *status, bk_error *err)
{
    bk_json *j = bk_json_object(), *attrs = bk_json_object();
    bk_json_set(j, "path", bk_json_of_text(o->path));
    bk_json_set(j, "kind", bk_json_of_text(o->group ? "group" : "dataset"));
    if (!o->group) {
        bk_json *labels = bk_json_array();
        for (int k = 0; k < o->rank; k++)
            bk_json_push(labels, k < BK_STORE_RANK && o->label[k][0] ? bk_json_of_text(o->label[k]) : bk_json_null());
        bk_json_set(j, "dtype", bk_json_of_text(o->type_text));
        bk_json_set(j, "shape", ints_json(o->dim, o->rank));
        bk_json_set(j, "dims", labels);
        bk_json_set(j, "chunk", o->chunk[0] ? ints_json(o->chunk, o->rank) : bk_json_null());
        set_int(j, "gzip", o->gzip);
        bk_json_set(j, "shuffle", bk_json_of_bool(o->shuffle));
        set_int(j, "stored_bytes", o->stored_bytes);
    }
    *status = bk_store_attrs(s, o->path, add_attr, attrs, err);
    bk_json_set(j, "attributes", attrs);
    return j;
}

static bk_json *tree_json(bk_view *v, bk_status *status, bk_error *err)
{
    int64_t n;
    const bk_store_object *o = bk_store_objects(v->store, &n);
    bk_json *list = bk_json_array();
    for (int64_t i = 0; i < n && *status == BK_OK; i++)
        if (bk_under(o[i].path, v->top->path)) bk_json_push(list, object_json(v->store, &o[i], status, err));
    return list;
}

/* ---- places ---- */

/* Index along the first `rank` axes; null for -1. */
static bk_json *place_json(const bk_store_object *o, int rank, int64_t flat)
{
    if (flat < 0) return bk_json_null();
    int64_t index[BK_STORE_ANY_RANK];
    bk_unflatten(o, rank, flat, index);
    return ints_json(index, rank);
}

static bk_json *value_place(const bk_view *v, int64_t flat)
{
    return place_json(v->top, v->top->rank, flat);
}

/* Where a row is and which token stands there. */
static void set_row(bk_view *v, bk_json *j, int64_t row, bk_status *status, bk_error *err)
{
    int64_t id = -1;
    size_t len = 0;
    if (*status == BK_OK) *status = bk_view_id(v, row, &id, err);
    char *text = bk_row_token_text(&v->tokens, id, &len);
    bk_json_set(j, "id", id < 0 ? bk_json_null() : bk_json_of_int(id));
    bk_json_set(j, "text", text ? bk_json_of_str(text, len) : bk_json_null());
    free(text);
}

/* The entries of a list, each filled by `fill`. */
typedef void fill_fn(const bk_view *v, bk_json *j, const bk_peak *p);

static bk_json *peaks_json(bk_view *v, const bk_peaks *peaks, fill_fn *fill, bk_status *status, bk_error *err)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < peaks->n; i++) {
        const bk_peak *p = &peaks->item[i];
        bk_json *j = bk_json_object();
        bk_json_set(j, "at", place_json(v->top, v->top->rank - 1, p->at));
        set_int(j, "channel", p->channel);
        fill(v, j, p);
        set_row(v, j, p->at, status, err);
        bk_json_push(a, j);
    }
    return a;
}

/* ---- one dataset ---- */

static void fill_row(const bk_view *v, bk_json *j, const bk_peak *p)
{
    set_num(j, "value", p->value);
    set_num(j, "over_median", p->size / v->stats->row_median);
}

static void fill_channel(const bk_view *v, bk_json *j, const bk_peak *p)
{
    set_num(j, "value", p->value);
    set_num(j, "over_median", p->size / v->stats->channel_median);
}

static bk_json *largest_json(bk_view *v, const bk_peaks *peaks, double median, fill_fn *fill, bk_status *status,
                             bk_error *err)
{
    bk_json *j = bk_json_object();
    set_num(j, "median", median);
    bk_json_set(j, "largest", peaks_json(v, peaks, fill, status, err));
    return j;
}

static bk_json *values_json(const bk_view *v)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < v->stats->values.n; i++) {
        bk_json *j = bk_json_object();
        bk_json_set(j, "at", value_place(v, v->stats->values.item[i].at));
        set_num(j, "value", v->stats->values.item[i].value);
        bk_json_push(a, j);
    }
    return a;
}

static bk_json *histogram_json(const bk_histogram *h)
{
    if (!h) return bk_json_null();
    bk_json *j = bk_json_object(), *edges = bk_json_array();
    for (int k = 0; k <= h->bins; k++) bk_json_push(edges, bk_json_of_num(bk_histogram_edge(h, k)));
    bk_json_set(j, "edges", edges);
    bk_json_set(j, "counts", ints_json(h->count, h->bins));
    return j;
}

static bk_json *stats_json(bk_view *v, bk_status *status, bk_error *err)
{
    const bk_stats *st = v->stats;
    if (!st) return bk_json_null();
    bk_json *j = bk_json_object();
    bool is_float = bk_is_float(v->top);
    set_int(j, "values", st->n);
    set_num(j, "min", st->min);
    bk_json_set(j, "min_at", value_place(v, st->min_at));
    set_num(j, "max", st->max);
    bk_json_set(j, "max_at", value_place(v, st->max_at));
    set_num(j, "mean", st->finite ? st->mean : NAN);
    set_num(j, "std", bk_stats_std(st));
    set_num(j, "kurtosis", is_float ? bk_stats_kurtosis(st) : NAN);
    set_int(j, "zeros", st->zeros);
    set_int(j, "nan", st->nan);
    bk_json_set(j, "nan_at", value_place(v, st->nan_at));
    set_int(j, "inf", st->inf);
    bk_json_set(j, "inf_at", value_place(v, st->inf_at));
    set_int(j, "saturated", st->saturated);
    bk_json_set(j, "largest", values_json(v));
    bk_json_set(j, "rows",
                st->row_len ? largest_json(v, &st->rows, st->row_median, fill_row, status, err) : bk_json_null());
    bk_json_set(j, "channels",
                st->channel ? largest_json(v, &st->channels, st->channel_median, fill_channel, status, err)
                            : bk_json_null());
    bk_json_set(j, "histogram", histogram_json(v->histogram));
    return j;
}

/* ---- two datasets ---- */

static void fill_misfit(const bk_view *v, bk_json *j, const bk_peak *p)
{
    set_num(j, "mse", p->size);
    set_num(j, "share", p->size * (double)p->n / v->comparison->error2);
    set_num(j, "snr_db", bk_snr(p->signal, p->size));
    set_num(j, "max_error", p->value);
}

static bk_json *side_json(const bk_view *v, int side)
{
    const bk_comparison *c = v->comparison;
    const bk_store_object *o = side ? v->other : v->top;
    bk_json *j = bk_json_object();
    bk_json_set(j, "file", bk_json_of_text(side ? v->other_file : v->file));
    bk_json_set(j, "path", bk_json_of_text(o->path));
    bk_json_set(j, "dtype", bk_json_of_text(o->type_text));
    set_int(j, "nan", c->nan[side]);
    bk_json_set(j, "nan_at", value_place(v, c->nan_at[side]));
    set_int(j, "inf", c->inf[side]);
    bk_json_set(j, "inf_at", value_place(v, c->inf_at[side]));
    return j;
}

static bk_json *comparison_json(bk_view *v, bk_status *status, bk_error *err)
{
    const bk_comparison *c = v->comparison;
    if (!c) return bk_json_null();
    bk_json *j = bk_json_object();
    bool any = c->finite > 0;
    bk_json_set(j, "value", side_json(v, 0));
    bk_json_set(j, "reference", side_json(v, 1));
    set_int(j, "pairs", c->n);
    set_int(j, "compared", c->finite);
    set_int(j, "differ", c->unequal);
    bk_json_set(j, "same", bk_json_of_bool(c->finite == c->n && c->max_error == 0));
    set_num(j, "mse", bk_comparison_mse(c));
    set_num(j, "snr_db", bk_snr(c->signal[1], c->error2));
    set_num(j, "cosine", bk_comparison_cosine(c));
    set_num(j, "max_error", any ? c->max_error : NAN);
    bk_json_set(j, "max_error_at", value_place(v, c->max_at));
    bk_json_set(j, "rows", c->row_len ? peaks_json(v, &c->rows, fill_misfit, status, err) : bk_json_null());
    bk_json_set(j, "channels", c->channel ? peaks_json(v, &c->channels, fill_misfit, status, err) : bk_json_null());
    return j;
}

/* ---- two trees ---- */

static bk_json *pair_json(const bk_pair *p)
{
    const bk_comparison *c = &p->sums;
    bool any = p->compared && c->finite > 0;
    bk_json *j = bk_json_object();
    bk_json_set(j, "path", bk_json_of_text(p->value->path));
    bk_json_set(j, "reference", p->reference ? bk_json_of_text(p->reference->path) : bk_json_null());
    bool is_float = bk_is_float(p->value); /* a distance between ids says nothing */
    bk_json_set(j, "pairs", p->compared ? bk_json_of_int(c->n) : bk_json_null());
    bk_json_set(j, "compared", p->compared ? bk_json_of_int(c->finite) : bk_json_null());
    bk_json_set(j, "differ", p->compared ? bk_json_of_int(c->unequal) : bk_json_null());
    any = any && is_float;
    set_num(j, "mse", any ? bk_comparison_mse(c) : NAN);
    set_num(j, "snr_db", any ? bk_snr(c->signal[1], c->error2) : NAN);
    set_num(j, "cosine", any ? bk_comparison_cosine(c) : NAN);
    set_num(j, "max_error", any ? c->max_error : NAN);
    return j;
}

/* Whether the two files hold the same rows. */
static bk_json *token_ids_json(const bk_notes *n)
{
    if (!n->ids) return bk_json_null();
    bk_json *j = bk_json_object();
    set_int(j, "places", n->places);
    bk_json_set(j, "differ", n->differ < 0 ? bk_json_null() : bk_json_of_int(n->differ)); /* other shapes */
    bk_json_set(j, "same", bk_json_of_bool(n->differ == 0));
    return j;
}

static bk_json *attributes_json(const bk_view *v)
{
    if (!v->pairs && !v->comparison) return bk_json_null();
    bk_json *a = bk_json_array();
    for (int i = 0; i < v->notes.n; i++) {
        static const char *const side[] = {"value", "reference"};
        bk_json *j = bk_json_object();
        bk_json_set(j, "name", bk_json_of_text(v->notes.attribute[i].name));
        for (int k = 0; k < 2; k++) {
            const char *text = v->notes.attribute[i].value[k];
            bk_json *value = NULL;
            if (bk_json_parse(text, strlen(text), "attribute", &value, NULL)) value = bk_json_of_text(text);
            bk_json_set(j, side[k], value);
        }
        bk_json_push(a, j);
    }
    return a;
}

static bk_json *pairs_json(const bk_view *v)
{
    if (!v->pairs) return bk_json_null();
    bk_json *a = bk_json_array();
    for (int64_t i = 0; i < v->n_pairs; i++) bk_json_push(a, pair_json(&v->pairs[i]));
    return a;
}

bk_status bk_view_json(bk_view *v, FILE *out, bk_error *err)
{
    bk_status status = BK_OK;
    bk_json *root = bk_json_object();
    bk_json_set(root, "file", bk_json_of_text(v->file));
    bk_json_set(root, "objects", tree_json(v, &status, err));
    bk_json_set(root, "statistics", stats_json(v, &status, err));
    bk_json_set(root, "comparison", comparison_json(v, &status, err));
    bk_json_set(root, "comparisons", pairs_json(v));
    bk_json_set(root, "token_ids", token_ids_json(&v->notes));
    bk_json_set(root, "attributes_that_differ", attributes_json(v));
    char *text = status == BK_OK ? bk_json_dump(root, 2) : NULL;
    if (text) fprintf(out, "%s\n", text);
    else if (status == BK_OK) status = bk_fail(err, BK_ENOMEM, "%s: no memory for the JSON text", v->file);
    free(text);
    bk_json_free(root);
    return status;
}
