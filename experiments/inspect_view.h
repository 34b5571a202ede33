/* What brick inspect has found, and the forms in which it is shown. */
#ifndef BK_INSPECT_VIEW_H
#define BK_INSPECT_VIEW_H

#include <stdio.h>

#include "experiments/inspect.h"
#include "experiments/inspect_compare.h"
#include "experiments/inspect_histogram.h"
#include "experiments/inspect_tokens.h"
#include "io/store.h"

/* One dataset of two trees that are compared. */
typedef struct bk_pair {
    const bk_store_object *value, *reference; /* reference NULL: the other file has none */
    bool compared;                            /* false: absent, of another shape, or no numbers */
    bk_comparison sums;                       /* without rows and channels */
} bk_pair;

/* What says that two files do not hold the same rows. */
#define BK_NOTES 4
typedef struct bk_notes {
    bool ids;               /* both files have /tokens/input_ids, and they were compared: */
    int64_t places, differ; /* differ = -1: they are not of the same shape */
    struct bk_note {
        const char *name;
        char *value[2]; /* as JSON; malloc'd */
    } attribute[BK_NOTES]; /* those that differ */
    int n;
} bk_notes;

typedef struct bk_view {
    const bk_inspect_options *opt;
    const char *file;
    bk_store *store;
    const bk_store_object *top; /* what was asked for */
    bk_row_tokens tokens;       /* of its rows */
    const bk_stats *stats;      /* NULL: not measured */
    const bk_histogram *histogram;
    const bk_comparison *comparison; /* NULL: not compared */
    const char *other_file;
    const bk_store_object *other;
    const bk_pair *pairs; /* NULL: no trees were compared */
    int64_t n_pairs;
    bk_notes notes;
} bk_view;

/* The notes as lines, each with `lead` in front. */
void bk_view_notes(const bk_view *v, const char *lead, FILE *out);

bk_status bk_view_text(bk_view *v, FILE *out, bk_error *err) BK_MUST_USE;
bk_status bk_view_json(bk_view *v, FILE *out, bk_error *err) BK_MUST_USE;

/* CSV as in RFC 4180, one line a record: heading, rows as they come, or channels when all is read. */
typedef struct bk_view_csv {
    bk_view *view;
    FILE *out;
} bk_view_csv;
void bk_view_csv_row_head(const bk_view_csv *c);
bk_status bk_view_csv_row(void *csv, const bk_peak *row, bk_error *err); /* a bk_row_fn */
void bk_view_csv_channels(const bk_view_csv *c);

/* ---- places in a dataset ---- */

#define BK_LABEL 64
bool bk_is_float(const bk_store_object *o);
/* The name of an axis as a terminal can show it, "" if it has none; and with "axis 0" for that. */
const char *bk_axis_label(const bk_store_object *o, int axis, char text[BK_LABEL]);
const char *bk_axis_name(const bk_store_object *o, int axis, char text[BK_LABEL]);
/* Index along each of the first `rank` axes of a flat index over them. */
void bk_unflatten(const bk_store_object *o, int rank, int64_t flat, int64_t index[BK_STORE_ANY_RANK]);
void bk_dims_text(const bk_store_object *o, char *text, size_t cap); /* "[3, 16, 10]" */
/* Whether `path` is `top` or lies in it. */
bool bk_under(const char *path, const char *top);
/* Token id of a row; -1 without one. */
bk_status bk_view_id(bk_view *v, int64_t row, int64_t *id, bk_error *err) BK_MUST_USE;

#endif
