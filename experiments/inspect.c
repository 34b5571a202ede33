#include "experiments/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/inspect_stats.h"
#include "experiments/options.h"
#include "experiments/printable.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "io/json.h"
#include "io/store.h"

/* ---- finding and measuring ---- */

/* "blocks/000" means "/blocks/000" and "/blocks/000/" too. */
static bk_status find(const bk_store *s, const char *file, const char *path, const bk_store_object **out, bk_error *err)
{
    char want[512];
    snprintf(want, sizeof want, "%s%s", path[0] == '/' ? "" : "/", path);
    for (size_t n = strlen(want); n > 1 && want[n - 1] == '/'; n--) want[n - 1] = 0;
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    for (int64_t i = 0; i < n; i++) {
        *out = &o[i];
        if (strcmp(o[i].path, want) == 0) return BK_OK;
    }
    char near[300] = "", shown[600];
    const char **names = malloc((size_t)n * sizeof *names);
    for (int64_t i = 0; names && i < n; i++) names[i] = o[i].path;
    if (names) bk_suggest_text(want, names, (size_t)n, near, sizeof near);
    free(names);
    bk_visible(near, strlen(near), shown, sizeof shown); /* a name from the file */
    return bk_fail(err, BK_EINVAL, "%s: has no %s%s", file, want, shown);
}

static bk_status feed(void *user, const double *v, int64_t first, int64_t n, bk_error *err)
{
    (void)first;
    BK_TRY(bk_check_cancelled(err));
    bk_stats_add(user, v, n);
    return BK_OK;
}

static bool is_float(const bk_store_object *o)
{
    return o->type_text[0] == 'f';
}

static bk_status measure(bk_store *s, const bk_store_object *o, bk_stats *st, bk_error *err)
{
    BK_TRY(bk_stats_init(st, is_float(o) && o->rank >= 2 ? o->dim[o->rank - 1] : 0, err));
    bk_status status = bk_store_scan(s, o->path, feed, st, err);
    if (status == BK_OK) bk_stats_end(st);
    else bk_stats_free(st);
    return status;
}

#define LABEL 64

/* The name of an axis as a terminal can show it, "" if it has none. */
static const char *label_of(const bk_store_object *o, int axis, char text[LABEL])
{
    const char *label = axis < BK_STORE_RANK ? o->label[axis] : "";
    return bk_visible(label, strlen(label), text, LABEL);
}

static const char *axis_name(const bk_store_object *o, int axis, char text[LABEL])
{
    if (!*label_of(o, axis, text)) snprintf(text, LABEL, "axis %d", axis);
    return text;
}

/* Index along each of the first `rank` axes of a flat index over them. */
static void unflatten(const bk_store_object *o, int rank, int64_t flat, int64_t *index)
{
    for (int k = rank - 1; k >= 0; k--) {
        index[k] = flat % o->dim[k];
        flat /= o->dim[k];
    }
}

/* ---- tables ---- */

static const char *size_text(int64_t bytes, char text[24])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int k = 0;
    for (; v >= 1024 && k < 4; k++) v /= 1024;
    snprintf(text, 24, k ? "%.1f %s" : "%.0f %s", v, unit[k]);
    return text;
}

static void shape_text(const bk_store_object *o, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = 0;
    for (int k = 0; k < o->rank && at < cap; k++) {
        char name[LABEL];
        const char *label = label_of(o, k, name);
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

static bool under(const char *path, const char *top)
{
    size_t n = strlen(top);
    return strcmp(top, "/") == 0 || (strncmp(path, top, n) == 0 && (path[n] == 0 || path[n] == '/'));
}

static bk_status print_tree(bk_store *s, const char *top, FILE *out, bk_error *err)
{
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    int width[3] = {0};
    char shape[256], layout[256], size[24];
    for (int64_t i = 0; i < n; i++) {
        if (!under(o[i].path, top)) continue;
        shape_text(&o[i], shape, sizeof shape);
        int len[3] = {(int)strlen(o[i].path), (int)strlen(o[i].type_text), o[i].group ? 0 : (int)strlen(shape)};
        for (int k = 0; k < 3; k++)
            if (len[k] > width[k]) width[k] = len[k] > 60 ? 60 : len[k];
    }
    for (int64_t i = 0; i < n; i++) {
        if (!under(o[i].path, top)) continue;
        print_text(out, o[i].path);
        if (!o[i].group) {
            shape_text(&o[i], shape, sizeof shape);
            layout_text(&o[i], layout, sizeof layout);
            int pad = width[0] - (int)strlen(o[i].path);
            fprintf(out, "%*s  %-*s  %-*s  %9s", pad > 0 ? pad : 0, "", width[1], o[i].type_text, width[2], shape,
                    size_text(o[i].stored_bytes, size));
            if (layout[0]) fprintf(out, "  %s", layout);
        }
        fputc('\n', out);
        BK_TRY(bk_store_attrs(s, o[i].path, print_attr, out, err));
    }
    return BK_OK;
}

static void print_place(FILE *out, const bk_store_object *o, int64_t flat)
{
    int64_t index[BK_STORE_ANY_RANK];
    unflatten(o, o->rank, flat, index);
    for (int k = 0; k < o->rank; k++) {
        char name[LABEL];
        const char *label = label_of(o, k, name);
        fprintf(out, "%s%s%s%" PRId64, k ? ", " : "  at ", label, label[0] ? " " : "", index[k]);
    }
}

static void print_extreme(FILE *out, const bk_store_object *o, const char *name, double value, int64_t at)
{
    fprintf(out, "%-10s %.7g", name, value);
    print_place(out, o, at);
    fputc('\n', out);
}

/* Columns of indices, right-aligned under the axes' names. */
static void print_axes(FILE *out, const bk_store_object *o, int rank)
{
    char name[LABEL];
    for (int k = 0; k < rank; k++) fprintf(out, "  %8s", axis_name(o, k, name));
}

static void print_index(FILE *out, const bk_store_object *o, int rank, int64_t flat)
{
    int64_t index[BK_STORE_ANY_RANK];
    unflatten(o, rank, flat, index);
    for (int k = 0; k < rank; k++) fprintf(out, "  %8" PRId64, index[k]);
}

static void print_peaks(FILE *out, const bk_store_object *o, const bk_stats *st)
{
    char names[2][LABEL];
    fputs("\nlargest values\n", out);
    print_axes(out, o, o->rank);
    fputs("         value\n", out);
    for (int i = 0; i < st->values.n; i++) {
        print_index(out, o, o->rank, st->values.item[i].at);
        fprintf(out, "  %12.6g\n", st->values.item[i].value);
    }
    if (!st->row_len) return;
    const char *last = axis_name(o, o->rank - 1, names[0]), *row = label_of(o, o->rank - 2, names[1]);
    double median = bk_stats_row_median(st);
    fprintf(out, "\nlargest %ss, by their largest value; the median of all is %.3g\n", row[0] ? row : "row", median);
    print_axes(out, o, o->rank - 1);
    fprintf(out, "         value  / median  %8s\n", last);
    for (int i = 0; i < st->rows.n; i++) {
        const bk_peak *p = &st->rows.item[i];
        print_index(out, o, o->rank - 1, p->at);
        fprintf(out, "  %12.6g  %8.4g  %8" PRId64 "\n", p->value, fabs(p->value) / median, p->channel);
    }
    bk_peaks top;
    if (!bk_stats_channels(st, &top, &median)) return;
    fprintf(out, "\nlargest entries of %s, by their largest magnitude; the median of all is %.6g\n", last, median);
    fprintf(out, "  %8s     magnitude  / median\n", last);
    for (int i = 0; i < top.n; i++) {
        const bk_peak *p = &top.item[i];
        fprintf(out, "  %8" PRId64 "  %12.6g  %8.4g\n", p->channel, p->value, p->value / median);
    }
}

static void print_stats(FILE *out, const bk_store_object *o, const bk_stats *st)
{
    double share = st->n ? 100.0 * (double)st->zeros / (double)st->n : 0;
    fprintf(out, "\n%-10s %" PRId64 "\n", "values", st->n);
    if (st->finite) {
        print_extreme(out, o, "min", st->min, st->min_at);
        print_extreme(out, o, "max", st->max, st->max_at);
        fprintf(out, "%-10s %.7g\n%-10s %.7g\n", "mean", st->mean, "std", bk_stats_std(st));
    }
    if (is_float(o) && st->m2 > 0)
        fprintf(out, "%-10s %.4g  (3 for a normal distribution)\n", "kurtosis", bk_stats_kurtosis(st));
    fprintf(out, "%-10s %" PRId64 "  (%.3g %%)\n", "zeros", st->zeros, share);
    if (is_float(o))
        fprintf(out, "%-10s %" PRId64 "\n%-10s %" PRId64 "\n%-10s %" PRId64 "\n", "NaN", st->nan, "Inf", st->inf,
                "+-65504", st->saturated);
    if (is_float(o) && st->finite) print_peaks(out, o, st);
}

static bk_status print_all(bk_store *s, const bk_store_object *top, FILE *out, bk_error *err)
{
    BK_TRY(print_tree(s, top->path, out, err));
    if (!top->numeric) return BK_OK;
    bk_stats st;
    BK_TRY(measure(s, top, &st, err));
    print_stats(out, top, &st);
    bk_stats_free(&st);
    return BK_OK;
}

/* ---- JSON ---- */

static bk_json *text_json(const char *text)
{
    return bk_json_of_str(text, strlen(text));
}

static bk_status add_attr(void *user, const char *name, const char *value, bool is_text, bk_error *err)
{
    (void)err;
    bk_json *v = NULL;
    if (is_text || bk_json_parse(value, strlen(value), name, &v, NULL) != BK_OK) v = text_json(value);
    bk_json_set(user, name, v);
    return BK_OK;
}

static bk_json *ints_json(const int64_t *v, int n)
{
    bk_json *a = bk_json_array();
    for (int k = 0; k < n; k++) bk_json_push(a, bk_json_of_int(v[k]));
    return a;
}

static bk_json *object_json(bk_store *s, const bk_store_object *o, bk_status *status, bk_error *err)
{
    bk_json *j = bk_json_object(), *attrs = bk_json_object();
    bk_json_set(j, "path", text_json(o->path));
    bk_json_set(j, "kind", text_json(o->group ? "group" : "dataset"));
    if (!o->group) {
        bk_json *labels = bk_json_array();
        for (int k = 0; k < o->rank; k++)
            bk_json_push(labels, k < BK_STORE_RANK && o->label[k][0] ? text_json(o->label[k]) : bk_json_null());
        bk_json_set(j, "dtype", text_json(o->type_text));
        bk_json_set(j, "shape", ints_json(o->dim, o->rank));
        bk_json_set(j, "dims", labels);
        bk_json_set(j, "chunk", o->chunk[0] ? ints_json(o->chunk, o->rank) : bk_json_null());
        bk_json_set(j, "gzip", bk_json_of_int(o->gzip));
        bk_json_set(j, "shuffle", bk_json_of_bool(o->shuffle));
        bk_json_set(j, "stored_bytes", bk_json_of_int(o->stored_bytes));
    }
    *status = bk_store_attrs(s, o->path, add_attr, attrs, err);
    bk_json_set(j, "attributes", attrs);
    return j;
}

static bk_json *place_json(const bk_store_object *o, int rank, int64_t flat)
{
    int64_t index[BK_STORE_ANY_RANK];
    unflatten(o, rank, flat, index);
    return ints_json(index, rank);
}

static void set_extreme(bk_json *j, const bk_store_object *o, const char *name, const char *name_at, double value,
                        int64_t at)
{
    bk_json_set(j, name, bk_json_of_num(value));
    bk_json_set(j, name_at, at < 0 ? bk_json_null() : place_json(o, o->rank, at));
}

static bk_json *values_json(const bk_store_object *o, const bk_stats *st)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < st->values.n; i++) {
        bk_json *j = bk_json_object();
        bk_json_set(j, "at", place_json(o, o->rank, st->values.item[i].at));
        bk_json_set(j, "value", bk_json_of_num(st->values.item[i].value));
        bk_json_push(a, j);
    }
    return a;
}

static bk_json *rows_json(const bk_store_object *o, const bk_stats *st)
{
    if (!st->row_len) return bk_json_null();
    bk_json *j = bk_json_object(), *a = bk_json_array();
    for (int i = 0; i < st->rows.n; i++) {
        const bk_peak *p = &st->rows.item[i];
        bk_json *row = bk_json_object();
        bk_json_set(row, "at", place_json(o, o->rank - 1, p->at));
        bk_json_set(row, "channel", bk_json_of_int(p->channel));
        bk_json_set(row, "value", bk_json_of_num(p->value));
        bk_json_push(a, row);
    }
    bk_json_set(j, "median", bk_json_of_num(bk_stats_row_median(st)));
    bk_json_set(j, "largest", a);
    return j;
}

static bk_json *channels_json(const bk_stats *st)
{
    bk_peaks top;
    double median;
    if (!bk_stats_channels(st, &top, &median)) return bk_json_null();
    bk_json *j = bk_json_object(), *a = bk_json_array();
    for (int i = 0; i < top.n; i++) {
        bk_json *channel = bk_json_object();
        bk_json_set(channel, "channel", bk_json_of_int(top.item[i].channel));
        bk_json_set(channel, "value", bk_json_of_num(top.item[i].value));
        bk_json_push(a, channel);
    }
    bk_json_set(j, "median", bk_json_of_num(median));
    bk_json_set(j, "largest", a);
    return j;
}

static bk_json *stats_json(const bk_store_object *o, const bk_stats *st)
{
    bk_json *j = bk_json_object();
    bk_json_set(j, "values", bk_json_of_int(st->n));
    set_extreme(j, o, "min", "min_at", st->min, st->min_at);
    set_extreme(j, o, "max", "max_at", st->max, st->max_at);
    bk_json_set(j, "mean", st->finite ? bk_json_of_num(st->mean) : bk_json_null());
    bk_json_set(j, "std", bk_json_of_num(bk_stats_std(st)));
    bk_json_set(j, "kurtosis", is_float(o) ? bk_json_of_num(bk_stats_kurtosis(st)) : bk_json_null());
    bk_json_set(j, "zeros", bk_json_of_int(st->zeros));
    bk_json_set(j, "nan", bk_json_of_int(st->nan));
    bk_json_set(j, "inf", bk_json_of_int(st->inf));
    bk_json_set(j, "saturated", bk_json_of_int(st->saturated));
    bk_json_set(j, "largest", values_json(o, st));
    bk_json_set(j, "rows", rows_json(o, st));
    bk_json_set(j, "channels", channels_json(st));
    return j;
}

static bk_status print_json(bk_store *s, const char *file, const bk_store_object *top, FILE *out, bk_error *err)
{
    bk_json *root = bk_json_object(), *list = bk_json_array();
    bk_json_set(root, "file", text_json(file));
    bk_json_set(root, "objects", list);
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    bk_status status = BK_OK;
    for (int64_t i = 0; i < n && status == BK_OK; i++)
        if (under(o[i].path, top->path)) bk_json_push(list, object_json(s, &o[i], &status, err));
    bk_json *stats = bk_json_null();
    if (status == BK_OK && top->numeric) {
        bk_stats st;
        status = measure(s, top, &st, err);
        if (status == BK_OK) {
            stats = stats_json(top, &st);
            bk_stats_free(&st);
        }
    }
    bk_json_set(root, "statistics", stats);
    char *text = status == BK_OK ? bk_json_dump(root, 2) : NULL;
    if (text) fprintf(out, "%s\n", text);
    else if (status == BK_OK) status = bk_fail(err, BK_ENOMEM, "%s: no memory for the JSON text", file);
    free(text);
    bk_json_free(root);
    return status;
}

bk_status bk_inspect(const char *file, const char *path, bool json, FILE *out, bk_error *err)
{
    bk_store *s;
    BK_TRY(bk_store_open(&s, file, NULL, err));
    const bk_store_object *top;
    bk_status status = find(s, file, path ? path : "/", &top, err);
    if (status == BK_OK) status = json ? print_json(s, file, top, out, err) : print_all(s, top, out, err);
    bk_store_close(s);
    return status;
}

/* ---- the verb ---- */

/* Runs the rest of the program in a child. HDF5 crashes on some damaged files, and a crash is no answer. True in the
 * child; in the parent the child's exit code is in *code. */
static bool in_child(const char *file, int *code)
{
    pid_t parent = getpid(), child = fork();
    if (child <= 0) { /* without a child it has to be done here */
        if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (child == 0 && getppid() != parent) _exit(BK_EXIT_SIGNAL);
        return true;
    }
    int how;
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) {}
    bk_error err = {0};
    if (WIFEXITED(how)) *code = WEXITSTATUS(how);
    else {
        bk_status status =
            bk_fail(&err, BK_EFORMAT, "%s: is damaged so badly that the HDF5 library failed on it (signal %d)", file,
                    WTERMSIG(how));
        *code = bk_exit_report(status, &err);
    }
    return false;
}

int bk_verb_inspect(int argc, char **argv)
{
    const char *file = NULL, *path = NULL;
    bool json = false;
    const bk_opt opts[] = {
        {.name = "FILE", .type = BK_OPT_TEXT, .to = &file, .initial = "", .about = "an HDF5 file"},
        {.name = "PATH", .type = BK_OPT_TEXT, .to = &path, .about = "a group or dataset in it; a dataset is measured, value by value"},
        {.name = "--json", .type = BK_OPT_FLAG, .to = &json, .about = "one JSON object"},
        {0},
    };
    const bk_cli cli = {"inspect", "prints what is in an HDF5 file", opts,
                        "brick inspect dump.h5\nbrick inspect dump.h5 /blocks/000/sites/down_in\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    fflush(stdout);
    if (!in_child(file, &code)) return code;
    bk_error err = {0};
    return bk_exit_report(bk_inspect(file, path, json, stdout, &err), &err);
}
