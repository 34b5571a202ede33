/* brick inspect as tables for a terminal. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/inspect_view.h"
#include "experiments/printable.h"

/* ---- the tree ---- */

static void shape_text(const bk_store_object *o, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = 0;
    for (int k = 0; k < o->rank && at < cap; k++) {
        char name[BK_LABEL];
        const char *label = bk_axis_label(o, k, name);
        at += (size_t)snprintf(text + at, cap - at, "%s%s%s%" PRId64, k ? " x " : "", label, label[0] ? " " : "",
                               o->dim[k]);
    }
    if (o->rank == 0) snprintf(text, cap, "single");
}

static void layout_text(const bk_store_object *o, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = 0;
    if (o->chunk[0] == 0) return;
    for (int k = 0; k < o->rank && at < cap; k++)
        at += (size_t)snprintf(text + at, cap - at, "%s%" PRId64, k ? " x " : "chunk ", o->chunk[k]);
    if (o->gzip && at < cap) at += (size_t)snprintf(text + at, cap - at, ", gzip %d", o->gzip);
    if (o->shuffle && at < cap) at += (size_t)snprintf(text + at, cap - at, ", shuffle");
    if (o->checksum && at < cap) snprintf(text + at, cap - at, ", checksum");
}

/* Bytes from a file on a terminal: what it would not show is escaped, long texts are cut. */
static void print_text(FILE *out, const char *text)
{
    enum { SHOWN = 160 };
    char shown[16 * SHOWN];
    size_t n = strlen(text), cut = n;
    if (n > SHOWN)
        for (cut = SHOWN; cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80;) cut--;
    fputs(bk_visible(text, cut, shown, sizeof shown), out);
    if (n > cut) fprintf(out, "... (%zu bytes)", n);
}

static bk_status print_attr(void *user, const char *name, const char *value, bool is_text, bk_error *err)
{
    (void)is_text, (void)err;
    FILE *out = user;
    fputs("    ", out);
    print_text(out, name);
    fputs(" = ", out);
    print_text(out, value);
    fputc('\n', out);
    return BK_OK;
}

static bk_status print_tree(bk_store *s, const char *top, FILE *out, bk_error *err)
{
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    int width[3] = {0};
    char shape[256], layout[256], size[BK_BYTES_TEXT];
    for (int64_t i = 0; i < n; i++) {
        if (!bk_under(o[i].path, top)) continue;
        shape_text(&o[i], shape, sizeof shape);
        int len[3] = {(int)strlen(o[i].path), (int)strlen(o[i].type_text), o[i].group ? 0 : (int)strlen(shape)};
        for (int k = 0; k < 3; k++)
            if (len[k] > width[k]) width[k] = len[k] > 60 ? 60 : len[k];
    }
    for (int64_t i = 0; i < n; i++) {
        if (!bk_under(o[i].path, top)) continue;
        print_text(out, o[i].path);
        if (!o[i].group) {
            shape_text(&o[i], shape, sizeof shape);
            layout_text(&o[i], layout, sizeof layout);
            int pad = width[0] - (int)strlen(o[i].path);
            fprintf(out, "%*s  %-*s  %-*s  %9s", pad > 0 ? pad : 0, "", width[1], o[i].type_text, width[2], shape,
                    bk_bytes_text((double)o[i].stored_bytes, size));
            if (layout[0]) fprintf(out, "  %s", layout);
        }
        fputc('\n', out);
        BK_TRY(bk_store_attrs(s, o[i].path, print_attr, out, err));
    }
    return BK_OK;
}

/* ---- places and tokens ---- */

static void print_place(FILE *out, const bk_store_object *o, int64_t flat)
{
    int64_t index[BK_STORE_ANY_RANK];
    bk_unflatten(o, o->rank, flat, index);
    for (int k = 0; k < o->rank; k++) {
        char name[BK_LABEL];
        const char *label = bk_axis_label(o, k, name);
        fprintf(out, "%s%s%s%" PRId64, k ? ", " : "  at ", label, label[0] ? " " : "", index[k]);
    }
}

static void print_extreme(FILE *out, const bk_store_object *o, const char *name, double value, int64_t at)
{
    fprintf(out, "%-10s %.*g", name, bk_is_float(o) ? 7 : 17, value);
    print_place(out, o, at);
    fputc('\n', out);
}

/* A count of what should not be there, and where the first is. */
static void print_bad(FILE *out, const bk_store_object *o, const char *name, int64_t count, int64_t first)
{
    fprintf(out, "%-10s %" PRId64, name, count);
    if (count) print_place(out, o, first);
    fputs(count > 1 ? " first\n" : "\n", out);
}

/* Columns of indices, right-aligned under the axes' names. */
static void print_axes(FILE *out, const bk_store_object *o, int rank)
{
    char name[BK_LABEL];
    for (int k = 0; k < rank; k++) fprintf(out, "  %8s", bk_axis_name(o, k, name));
}

static void print_index(FILE *out, const bk_store_object *o, int rank, int64_t flat)
{
    int64_t index[BK_STORE_ANY_RANK];
    bk_unflatten(o, rank, flat, index);
    for (int k = 0; k < rank; k++) fprintf(out, "  %8" PRId64, index[k]);
}

static void print_token_head(const bk_view *v, FILE *out)
{
    if (v->tokens.store) fputs("        id", out);
    if (v->tokens.store && v->tokens.tok) fputs("  text", out);
    fputc('\n', out);
}

/* Ends a line of a table. */
static bk_status print_token(bk_view *v, int64_t row, FILE *out, bk_error *err)
{
    int64_t id;
    BK_TRY(bk_view_id(v, row, &id, err));
    if (v->tokens.store) fprintf(out, "  %8" PRId64, id);
    size_t len = 0;
    char *text = bk_row_token_text(&v->tokens, id, &len), shown[BK_PRINTABLE_ROOM];
    if (text) fprintf(out, "  \"%s\"", bk_printable(text, len, shown, sizeof shown));
    free(text);
    fputc('\n', out);
    return BK_OK;
}

static void print_why_no_text(const bk_view *v, FILE *out)
{
    if (v->tokens.store && v->tokens.why)
        fprintf(out, "\nno text of tokens: %s (--model M names one)\n", v->tokens.why);
}

static const char *row_name(const bk_store_object *o, char name[BK_LABEL])
{
    if (!*bk_axis_label(o, o->rank - 2, name)) snprintf(name, BK_LABEL, "row");
    return name;
}

/* ---- one dataset ---- */

static bk_status print_values(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    fputs("\nlargest values\n", out);
    print_axes(out, o, o->rank);
    fputs("         value", out);
    print_token_head(v, out);
    for (int i = 0; i < v->stats->values.n; i++) {
        const bk_peak *p = &v->stats->values.item[i];
        print_index(out, o, o->rank, p->at);
        fprintf(out, "  %12.6g", p->value);
        BK_TRY(print_token(v, v->stats->row_len ? p->at / v->stats->row_len : 0, out, err));
    }
    return BK_OK;
}

static bk_status print_rows(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    const bk_stats *st = v->stats;
    char name[BK_LABEL];
    fprintf(out, "\nlargest %ss, by their largest value; the lower median of all %" PRId64 " is %.6g\n",
            row_name(o, name), st->n_rows, st->row_median);
    print_axes(out, o, o->rank - 1);
    fprintf(out, "         value  / median  %8s", bk_axis_name(o, o->rank - 1, name));
    print_token_head(v, out);
    for (int i = 0; i < st->rows.n; i++) {
        const bk_peak *p = &st->rows.item[i];
        print_index(out, o, o->rank - 1, p->at);
        fprintf(out, "  %12.6g  %8.4g  %8" PRId64, p->value, p->size / st->row_median, p->channel);
        BK_TRY(print_token(v, p->at, out, err));
    }
    return BK_OK;
}

static bk_status print_channels(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    const bk_stats *st = v->stats;
    char name[BK_LABEL];
    bk_axis_name(o, o->rank - 1, name);
    if (!st->channel) {
        fprintf(out, "\n%s is too long for a list of its entries\n", name);
        return BK_OK;
    }
    fprintf(out, "\nlargest entries of %s, by their largest value; the lower median of all is %.6g\n", name,
            st->channel_median);
    fprintf(out, "  %8s         value  / median", name);
    print_axes(out, o, o->rank - 1);
    print_token_head(v, out);
    for (int i = 0; i < st->channels.n; i++) {
        const bk_peak *p = &st->channels.item[i];
        fprintf(out, "  %8" PRId64 "  %12.6g  %8.4g", p->channel, p->value, p->size / st->channel_median);
        print_index(out, o, o->rank - 1, p->at);
        BK_TRY(print_token(v, p->at, out, err));
    }
    return BK_OK;
}

static bk_status print_stats(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    const bk_stats *st = v->stats;
    double share = st->n ? 100.0 * (double)st->zeros / (double)st->n : 0;
    fprintf(out, "\n%-10s %" PRId64 "\n", "values", st->n);
    if (st->finite) {
        print_extreme(out, o, "min", st->min, st->min_at);
        print_extreme(out, o, "max", st->max, st->max_at);
        fprintf(out, "%-10s %.7g\n%-10s %.7g\n", "mean", st->mean, "std", bk_stats_std(st));
    }
    if (bk_is_float(o) && st->m2 > 0)
        fprintf(out, "%-10s %.4g  (3 for a normal distribution)\n", "kurtosis", bk_stats_kurtosis(st));
    fprintf(out, "%-10s %" PRId64 "  (%.3g %%)\n", "zeros", st->zeros, share);
    if (!bk_is_float(o)) return BK_OK;
    print_bad(out, o, "NaN", st->nan, st->nan_at);
    print_bad(out, o, "Inf", st->inf, st->inf_at);
    fprintf(out, "%-10s %" PRId64 "\n", "+-65504", st->saturated);
    if (!st->finite) return BK_OK;
    if (v->histogram)
        bk_histogram_draw(v->histogram, out, v->opt->columns ? v->opt->columns : 80, v->opt->log, v->opt->utf8);
    BK_TRY(print_values(v, out, err));
    if (st->row_len) BK_TRY(print_rows(v, out, err));
    if (st->row_len) BK_TRY(print_channels(v, out, err));
    print_why_no_text(v, out);
    return BK_OK;
}

/* ---- two datasets ---- */

static void print_share(FILE *out, double part)
{
    if (isfinite(part)) fprintf(out, "  %6.2f%%", 100 * part);
    else fputs("        -", out);
}

/* MSE, share of all error, SNR, largest error of a row or channel. */
static void print_misfit(const bk_view *v, const bk_peak *p, FILE *out)
{
    double snr = bk_snr(p->signal, p->size);
    fprintf(out, "  %12.5g", p->size);
    print_share(out, p->size * (double)p->n / v->comparison->error2);
    fprintf(out, isfinite(snr) ? "  %8.2f" : "         -", snr);
    fprintf(out, "  %12.5g", p->value);
}

static const char misfit_head[] = "           MSE    share    SNR dB     max error";

static bk_status print_worst_rows(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    char name[BK_LABEL];
    fprintf(out, "\nworst %ss, by mean squared error\n", row_name(o, name));
    print_axes(out, o, o->rank - 1);
    fprintf(out, "%s  %8s", misfit_head, bk_axis_name(o, o->rank - 1, name));
    print_token_head(v, out);
    for (int i = 0; i < v->comparison->rows.n; i++) {
        const bk_peak *p = &v->comparison->rows.item[i];
        print_index(out, o, o->rank - 1, p->at);
        print_misfit(v, p, out);
        fprintf(out, "  %8" PRId64, p->channel);
        BK_TRY(print_token(v, p->at, out, err));
    }
    return BK_OK;
}

static bk_status print_worst_channels(bk_view *v, FILE *out, bk_error *err)
{
    const bk_store_object *o = v->top;
    const bk_comparison *c = v->comparison;
    char name[BK_LABEL];
    bk_axis_name(o, o->rank - 1, name);
    if (!c->channel) {
        fprintf(out, "\n%s is too long for a list of its entries\n", name);
        return BK_OK;
    }
    fprintf(out, "\nworst entries of %s, by mean squared error\n  %8s%s", name, name, misfit_head);
    print_axes(out, o, o->rank - 1);
    print_token_head(v, out);
    for (int i = 0; i < c->channels.n; i++) {
        const bk_peak *p = &c->channels.item[i];
        fprintf(out, "  %8" PRId64, p->channel);
        print_misfit(v, p, out);
        print_index(out, o, o->rank - 1, p->at);
        BK_TRY(print_token(v, p->at, out, err));
    }
    return BK_OK;
}

void bk_view_notes(const bk_view *v, const char *lead, FILE *out)
{
    const bk_notes *n = &v->notes;
    if (n->differ > 0)
        fprintf(out, "%stoken ids differ at %" PRId64 " of %" PRId64 " places: rows are not of the same tokens\n", lead, n->differ,
                n->places);
    if (n->differ < 0) fprintf(out, "%stoken ids have other shapes in the two files: rows are not of the same tokens\n", lead);
    for (int i = 0; i < n->n; i++) {
        fprintf(out, "%s%s differs: ", lead, n->attribute[i].name);
        print_text(out, n->attribute[i].value[0]);
        fputs(" against ", out);
        print_text(out, n->attribute[i].value[1]);
        fputc('\n', out);
    }
}

static void print_side(const bk_view *v, int side, FILE *out)
{
    const bk_comparison *c = v->comparison;
    const bk_store_object *o = side ? v->other : v->top;
    char shape[256];
    shape_text(o, shape, sizeof shape);
    fputs(side ? "reference  " : "compared   ", out);
    print_text(out, side ? v->other_file : v->file);
    fputs("  ", out);
    print_text(out, o->path);
    fprintf(out, "  %s  %s\n", o->type_text, shape);
    if (c->nan[side]) print_bad(out, v->top, "  NaN", c->nan[side], c->nan_at[side]);
    if (c->inf[side]) print_bad(out, v->top, "  Inf", c->inf[side], c->inf_at[side]);
}

static bk_status print_comparison(bk_view *v, FILE *out, bk_error *err)
{
    const bk_comparison *c = v->comparison;
    double snr = bk_snr(c->signal[1], c->error2);
    print_side(v, 0, out);
    print_side(v, 1, out);
    bk_view_notes(v, "note       ", out);
    fprintf(out, "\n%-10s %" PRId64, "pairs", c->n);
    fprintf(out, c->finite < c->n ? ", %" PRId64 " of them finite and compared\n" : "\n", c->finite);
    if (!c->finite) return BK_OK;
    if (!bk_is_float(v->top)) fprintf(out, "%-10s %" PRId64 " of them\n", "differ", c->unequal);
    fprintf(out, "%-10s %.6g\n", "MSE", bk_comparison_mse(c));
    if (c->error2 == 0) fprintf(out, "%-10s no error%s\n", "SNR", c->max_error == 0 ? ": the values are the same" : "");
    else fprintf(out, "%-10s %.2f dB\n", "SNR", snr);
    fprintf(out, isnan(bk_comparison_cosine(c)) ? "%-10s none: all zeros\n" : "%-10s %.9g\n", "cosine",
            bk_comparison_cosine(c));
    fprintf(out, "%-10s %.6g: %.7g against %.7g", "max error", c->max_error, c->max_pair[0], c->max_pair[1]);
    print_place(out, v->top, c->max_at);
    fputc('\n', out);
    if (!c->row_len || c->error2 == 0) return BK_OK;
    BK_TRY(print_worst_rows(v, out, err));
    BK_TRY(print_worst_channels(v, out, err));
    print_why_no_text(v, out);
    return BK_OK;
}

/* ---- two trees ---- */

static void print_pair(const bk_pair *p, int width, FILE *out)
{
    const bk_comparison *c = &p->sums;
    print_text(out, p->value->path);
    fprintf(out, "%*s", width > (int)strlen(p->value->path) ? width - (int)strlen(p->value->path) : 0, "");
    if (!p->reference) fputs("  is not in the reference\n", out);
    else if (!p->compared) {
        char shape[2][256];
        bk_dims_text(p->value, shape[0], sizeof shape[0]);
        bk_dims_text(p->reference, shape[1], sizeof shape[1]);
        fprintf(out, "  cannot be compared: %s %s against %s %s\n", p->value->type_text, shape[0],
                p->reference->type_text, shape[1]);
    } else if (!bk_is_float(p->value)) {
        fprintf(out, "  differs at %" PRId64 " of %" PRId64 " places\n", c->unequal, c->n);
    } else {
        double snr = bk_snr(c->signal[1], c->error2);
        fprintf(out, "  %12.5g", bk_comparison_mse(c));
        if (isfinite(snr)) fprintf(out, "  %8.2f", snr);
        else fprintf(out, "  %8s", c->finite && c->max_error == 0 ? "same" : "-");
        fprintf(out, "  %11.9f  %12.5g", bk_comparison_cosine(c), c->max_error);
        fprintf(out, c->finite < c->n ? "  %" PRId64 " pairs with NaN or Inf left out\n" : "\n", c->n - c->finite);
    }
}

static void print_pairs(const bk_view *v, FILE *out)
{
    int width = 7;
    for (int side = 0; side < 2; side++) {
        fputs(side ? "reference  " : "compared   ", out);
        print_text(out, side ? v->other_file : v->file);
        fputs("  ", out);
        print_text(out, side ? v->other->path : v->top->path);
        fputc('\n', out);
    }
    bk_view_notes(v, "note       ", out);
    for (int64_t i = 0; i < v->n_pairs; i++)
        if ((int)strlen(v->pairs[i].value->path) > width) width = (int)strlen(v->pairs[i].value->path);
    if (width > 60) width = 60;
    fprintf(out, "\n%-*s           MSE    SNR dB       cosine     max error\n", width, "dataset");
    for (int64_t i = 0; i < v->n_pairs; i++) print_pair(&v->pairs[i], width, out);
}

bk_status bk_view_text(bk_view *v, FILE *out, bk_error *err)
{
    if (v->pairs) {
        print_pairs(v, out);
        return BK_OK;
    }
    if (v->comparison) return print_comparison(v, out, err);
    BK_TRY(print_tree(v->store, v->top->path, out, err));
    return v->stats ? print_stats(v, out, err) : BK_OK;
}
