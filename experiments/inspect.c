/* brick inspect: opens, walks over values once or twice, and hands what it found to one of the views. */
#include "experiments/inspect.h"

#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "experiments/inspect_view.h"
#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/progress.h"
#include "experiments/suggest.h"
#include "experiments/terminal.h"
#include "experiments/verbs.h"
#include "io/file.h"

enum { TOP = 8, BINS = 20 };

/* ---- finding ---- */

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

/* "FILE2", "FILE2:PATH2", ":PATH2"; a colon in the name of a file that is there is one. */
static bk_status split_against(const bk_inspect_options *o, char **file, const char **path, bk_error *err)
{
    const char *colon = bk_exists(o->against) ? NULL : strrchr(o->against, ':');
    if (!colon && o->path && *o->against == '/' && !bk_exists(o->against))
        return bk_fail(err, BK_EIO, "%s: no such file; of %s itself it is --against :%s", o->against, o->file,
                       o->against);
    size_t n = colon ? (size_t)(colon - o->against) : strlen(o->against);
    *path = colon && colon[1] ? colon + 1 : o->path ? o->path : "/";
    *file = n ? strndup(o->against, n) : strdup(o->file);
    return *file ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a file name");
}

static bk_status check_numeric(const char *file, const bk_store_object *o, const char *what, bk_error *err)
{
    if (o->numeric) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: %s is %s; %s needs a dataset of numbers", file, o->path,
                   o->group ? "a group" : o->type_text, what);
}

static bool same_shape(const bk_store_object *a, const bk_store_object *b)
{
    bool same = a->rank == b->rank && a->elements == b->elements;
    for (int k = 0; k < a->rank && same; k++) same = a->dim[k] == b->dim[k];
    return same;
}

static bk_status check_same_shape(const bk_view *v, bk_error *err)
{
    const bk_store_object *a = v->top, *b = v->other;
    if (same_shape(a, b)) return BK_OK;
    char shape[2][300];
    bk_dims_text(a, shape[0], sizeof shape[0]);
    bk_dims_text(b, shape[1], sizeof shape[1]);
    return bk_fail(err, BK_ESHAPE, "%s: %s is %s, but %s: %s is %s; only datasets of the same shape can be compared",
                   v->file, a->path, shape[0], v->other_file, b->path, shape[1]);
}

/* ---- walking ---- */

static bool csv_rows(const bk_inspect_options *o)
{
    return o->csv && strcmp(o->csv, "tokens") == 0;
}

typedef bk_status piece_fn(void *user, const double *v, int64_t n, bk_error *err);

typedef struct walk {
    bk_progress progress;
    bool quiet; /* a table is being written to the terminal that the progress would stand on */
    piece_fn *fn;
    void *user;
} walk;

static bk_status walk_piece(void *user, const double *v, int64_t first, int64_t n, bk_error *err)
{
    (void)first;
    walk *w = user;
    BK_TRY(bk_check_cancelled(err));
    if (!w->quiet) bk_progress_step(&w->progress, n);
    return w->fn(w->user, v, n, err);
}

/* All values of what was asked for. */
static bk_status walk_over(const bk_view *v, const char *stage, piece_fn *fn, void *user, bk_error *err)
{
    walk w = {.fn = fn, .user = user, .quiet = csv_rows(v->opt) && bk_terminal(1)};
    bk_progress_begin(&w.progress, stage, 0, 0, v->top->elements);
    bk_status status = bk_store_scan(v->store, v->top->path, walk_piece, &w, err);
    bk_progress_clear_line();
    return status;
}

/* Rows run along the last axis; only those of floats are told apart. */
static int64_t row_len(const bk_store_object *o)
{
    return bk_is_float(o) && o->rank >= 2 ? o->dim[o->rank - 1] : 0;
}

static int list_length(const bk_inspect_options *o)
{
    return o->top > 0 ? (int)o->top : TOP;
}

/* ---- what is done with a dataset ---- */

static bk_status add_to_stats(void *user, const double *v, int64_t n, bk_error *err)
{
    return bk_stats_add(user, v, n, err);
}

static bk_status add_to_histogram(void *user, const double *v, int64_t n, bk_error *err)
{
    (void)err;
    bk_histogram_add(user, v, n);
    return BK_OK;
}

static bk_status add_to_rows(void *user, const double *v, int64_t n, bk_error *err)
{
    return bk_rows_add(user, v, n, err);
}

/* A second pass: the ratios need the median. */
static bk_status print_csv_rows(bk_view *v, FILE *out, bk_error *err)
{
    bk_view_csv csv = {v, out};
    bk_rows rows;
    bk_rows_init(&rows, v->stats->row_len, bk_view_csv_row, &csv);
    bk_view_csv_row_head(&csv);
    return walk_over(v, "writing rows", add_to_rows, &rows, err);
}

static bk_status show_with_histogram(bk_view *v, FILE *out, bk_error *err)
{
    const bk_inspect_options *o = v->opt;
    const bk_stats *st = v->stats;
    int64_t bins = o->bins >= 0 ? o->bins : o->json ? 0 : BINS;
    bk_histogram h = {0};
    bk_status status = BK_OK;
    if (bins > 0 && st->finite > 0 && bk_is_float(v->top)) {
        BK_TRY(bk_histogram_init(&h, st->min, st->max, (int)bins, err));
        status = walk_over(v, "counting for the histogram", add_to_histogram, &h, err);
        v->histogram = &h;
    }
    if (status == BK_OK) status = o->json ? bk_view_json(v, out, err) : bk_view_text(v, out, err);
    v->histogram = NULL;
    bk_histogram_free(&h);
    return status;
}

static bk_status show_csv(bk_view *v, FILE *out, bk_error *err)
{
    bk_view_csv csv = {v, out};
    if (csv_rows(v->opt) && v->comparison) return BK_OK; /* comparing printed them on the way */
    if (csv_rows(v->opt)) return print_csv_rows(v, out, err);
    bk_view_csv_channels(&csv);
    return BK_OK;
}

static bk_status measure(bk_view *v, FILE *out, bk_error *err)
{
    bk_stats st;
    BK_TRY(bk_stats_init(&st, row_len(v->top), list_length(v->opt), err));
    v->stats = &st;
    bk_status status = walk_over(v, "reading", add_to_stats, &st, err);
    if (status == BK_OK) status = bk_stats_end(&st, err);
    if (status == BK_OK) status = v->opt->csv ? show_csv(v, out, err) : show_with_histogram(v, out, err);
    v->stats = NULL;
    bk_stats_free(&st);
    return status;
}

/* ---- comparing ---- */

typedef struct pair {
    bk_comparison c;
    bk_scan *reference;
} pair;

/* The pieces of both are the same, as their shapes are. */
static bk_status add_to_comparison(void *user, const double *v, int64_t n, bk_error *err)
{
    pair *p = user;
    const double *reference;
    int64_t m;
    BK_TRY(bk_scan_next(p->reference, &reference, &m, err));
    return bk_comparison_add(&p->c, v, reference, n, err);
}

static bk_status read_pairs(const bk_view *v, bk_store *other, pair *p, bk_error *err)
{
    BK_TRY(bk_scan_open(&p->reference, other, v->other->path, err));
    bk_status status = walk_over(v, "comparing", add_to_comparison, p, err);
    bk_scan_close(p->reference);
    bk_comparison_end(&p->c);
    return status;
}

static bk_status show_pairs(bk_view *v, bk_store *other, pair *p, FILE *out, bk_error *err)
{
    bk_view_csv csv = {v, out};
    if (csv_rows(v->opt)) {
        p->c.on_row = bk_view_csv_row;
        p->c.user = &csv;
        bk_view_csv_row_head(&csv);
    }
    BK_TRY(read_pairs(v, other, p, err));
    if (v->opt->csv) return show_csv(v, out, err);
    return v->opt->json ? bk_view_json(v, out, err) : bk_view_text(v, out, err);
}

static bk_status compare_datasets(bk_view *v, bk_store *other, FILE *out, bk_error *err)
{
    BK_TRY(check_numeric(v->file, v->top, "--against", err));
    BK_TRY(check_numeric(v->other_file, v->other, "--against", err));
    BK_TRY(check_same_shape(v, err));
    pair p;
    BK_TRY(bk_comparison_init(&p.c, row_len(v->top), list_length(v->opt), err));
    v->comparison = &p.c;
    bk_status status = show_pairs(v, other, &p, out, err);
    v->comparison = NULL;
    bk_comparison_free(&p.c);
    return status;
}

/* What stands under `base` of the other file where v->top has it under `top`; NULL if nothing does. */
static const bk_store_object *counterpart(const bk_store_object *o, const char *top, bk_store *other, const char *base)
{
    char want[1024];
    int64_t n;
    const bk_store_object *all = bk_store_objects(other, &n);
    snprintf(want, sizeof want, "%s%s", strcmp(base, "/") ? base : "", o->path + (strcmp(top, "/") ? strlen(top) : 0));
    for (int64_t i = 0; i < n; i++)
        if (strcmp(all[i].path, want) == 0) return &all[i];
    return NULL;
}

static bk_status compare_one(const bk_view *tree, bk_store *other, bk_pair *to, bk_error *err)
{
    to->compared =
        to->reference && to->reference->numeric && to->value->numeric && same_shape(to->value, to->reference);
    if (!to->compared) return BK_OK;
    bk_view v = *tree;
    v.top = to->value;
    v.other = to->reference;
    pair p;
    BK_TRY(bk_comparison_init(&p.c, 0, 1, err));
    bk_status status = read_pairs(&v, other, &p, err);
    bk_comparison_free(&p.c);
    to->sums = p.c;
    return status;
}

/* Every dataset of one tree with that of the same name in the other; integers only where they differ. */
static bk_status compare_trees(bk_view *v, bk_store *other, FILE *out, bk_error *err)
{
    int64_t n, kept = 0;
    const bk_store_object *o = bk_store_objects(v->store, &n);
    if (!v->other->group)
        return bk_fail(err, BK_EINVAL, "%s: %s is a group, but %s: %s is none", v->file, v->top->path, v->other_file,
                       v->other->path);
    bk_pair *pairs = calloc((size_t)n, sizeof *pairs);
    if (!pairs) return bk_fail(err, BK_ENOMEM, "no memory for the comparison of %lld datasets", (long long)n);
    bk_status status = BK_OK;
    for (int64_t i = 0; i < n && status == BK_OK; i++) {
        if (o[i].group || !bk_under(o[i].path, v->top->path)) continue;
        bk_pair *p = &pairs[kept];
        *p = (bk_pair){.value = &o[i], .reference = counterpart(&o[i], v->top->path, other, v->other->path)};
        status = compare_one(v, other, p, err);
        kept += bk_is_float(&o[i]) || !p->compared || p->sums.max_error != 0;
    }
    v->pairs = pairs;
    v->n_pairs = kept;
    if (status == BK_OK) status = v->opt->json ? bk_view_json(v, out, err) : bk_view_text(v, out, err);
    v->pairs = NULL;
    free(pairs);
    return status;
}

/* ---- whether two files hold the same rows ---- */

static const bk_store_object *find_ids(const bk_store *s)
{
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(o[i].path, "/tokens/input_ids") && o[i].numeric && !bk_is_float(&o[i])) return &o[i];
    return NULL;
}

static bk_status note_ids(bk_view *v, bk_store *other, bk_error *err)
{
    bk_pair p = {.value = find_ids(v->store), .reference = find_ids(other)};
    if (!p.value || !p.reference) return BK_OK;
    BK_TRY(compare_one(v, other, &p, err));
    v->notes.ids = true;
    v->notes.places = p.value->elements;
    v->notes.differ = p.compared ? p.sums.unequal : -1;
    return BK_OK;
}

static void note_attribute(bk_notes *notes, const char *name, char *value, char *reference)
{
    if (!value || !reference || !strcmp(value, reference)) {
        free(value);
        free(reference);
        return;
    }
    notes->attribute[notes->n++] = (struct bk_note){name, {value, reference}};
}

static bk_json *config_of(const bk_store_meta *m)
{
    bk_json *o = NULL;
    if (!m->config || bk_json_parse(m->config, strlen(m->config), "config", &o, NULL)) return NULL;
    return o;
}

static char *seed_of(const bk_store_meta *m)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)m->seed);
    return strdup(m->has_seed ? text : "null");
}

/* How the model was changed before it ran: of dumps. A seed counts where both have one; a rotation of one alone shows itself. */
static void note_attributes(bk_view *v, const bk_store *other)
{
    static const char *const key[] = {"rotate", "prefix"};
    const bk_store_meta *a = bk_store_meta_of(v->store), *b = bk_store_meta_of(other);
    if (!a->schema || !b->schema || strcmp(a->schema, "brick.dump") || strcmp(b->schema, "brick.dump")) return;
    bk_json *x = config_of(a), *y = config_of(b);
    for (int i = 0; i < 2 && x && y; i++)
        if (bk_json_get(x, key[i]) && bk_json_get(y, key[i]))
            note_attribute(&v->notes, key[i], bk_json_dump(bk_json_get(x, key[i]), 0), bk_json_dump(bk_json_get(y, key[i]), 0));
    if (a->has_seed && b->has_seed) note_attribute(&v->notes, "seed", seed_of(a), seed_of(b));
    bk_json_free(x);
    bk_json_free(y);
}

static bk_status note_differences(bk_view *v, bk_store *other, bk_error *err)
{
    if (!strcmp(v->file, v->other_file)) return BK_OK;
    if (v->top->group || v->tokens.store) BK_TRY(note_ids(v, other, err));
    note_attributes(v, other);
    if (v->opt->csv && (v->notes.differ || v->notes.n)) bk_view_notes(v, "brick inspect: ", stderr);
    return BK_OK;
}

static void free_notes(bk_notes *notes)
{
    for (int i = 0; i < notes->n; i++) {
        free(notes->attribute[i].value[0]);
        free(notes->attribute[i].value[1]);
    }
    *notes = (bk_notes){0};
}

static bk_status compare_with(bk_view *v, bk_store *other, const char *path, FILE *out, bk_error *err)
{
    BK_TRY(find(other, v->other_file, path, &v->other, err));
    bk_status st = note_differences(v, other, err);
    if (!st) st = v->top->group ? compare_trees(v, other, out, err) : compare_datasets(v, other, out, err);
    free_notes(&v->notes);
    return st;
}

static bk_status compare(bk_view *v, FILE *out, bk_error *err)
{
    char *file = NULL;
    const char *path = NULL;
    bk_store *other = NULL;
    BK_TRY(split_against(v->opt, &file, &path, err));
    v->other_file = file;
    bk_status status = bk_store_open(&other, file, NULL, err);
    if (status == BK_OK) status = compare_with(v, other, path, out, err);
    bk_store_close(other);
    free(file);
    return status;
}

/* ---- the whole ---- */

static bk_status check_options(const bk_inspect_options *o, bk_error *err)
{
    if (o->csv && strcmp(o->csv, "tokens") != 0 && strcmp(o->csv, "channels") != 0)
        return bk_fail(err, BK_EINVAL, "--csv: unknown value '%.40s': want tokens or channels", o->csv);
    if (o->csv && o->json) return bk_fail(err, BK_EINVAL, "--csv and --json do not go together");
    return BK_OK;
}

static bk_status check_csv(const bk_view *v, bk_error *err)
{
    const bk_store_object *o = v->top;
    BK_TRY(check_numeric(v->file, o, "--csv", err));
    int64_t len = row_len(o);
    if (len == 0)
        return bk_fail(err, BK_EINVAL, "%s: %s has no rows; --csv needs a float dataset of at least two axes", v->file,
                       o->path);
    if (csv_rows(v->opt) || len <= BK_CHANNELS_MAX) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: the last axis of %s has %lld entries; --csv channels lists %d at most", v->file,
                   o->path, (long long)len, BK_CHANNELS_MAX);
}

static bk_status show(bk_view *v, FILE *out, bk_error *err)
{
    const bk_inspect_options *o = v->opt;
    BK_TRY(find(v->store, o->file, o->path ? o->path : "/", &v->top, err));
    if (o->csv) BK_TRY(check_csv(v, err));
    if (!v->top->numeric && !o->against) return o->json ? bk_view_json(v, out, err) : bk_view_text(v, out, err);
    BK_TRY(bk_row_tokens_open(&v->tokens, v->store, v->top, o->file, o->model, err));
    bk_status status = o->against ? compare(v, out, err) : measure(v, out, err);
    bk_row_tokens_close(&v->tokens);
    return status;
}

bk_status bk_inspect(const bk_inspect_options *o, FILE *out, bk_error *err)
{
    BK_TRY(check_options(o, err));
    bk_view v = {.opt = o, .file = o->file};
    BK_TRY(bk_store_open(&v.store, o->file, NULL, err));
    bk_status status = show(&v, out, err);
    bk_store_close(v.store);
    return status;
}

/* ---- the verb ---- */

/* Waits for the child. A signal that it has not followed after a turn, since it came to the parent alone, is passed
 * on. */
static int end_of(pid_t child, const sigset_t *ended)
{
    const struct timespec turn = {1, 0};
    int how = SIGKILL, turns = 0;
    while (waitpid(child, &how, WNOHANG) == 0) {
        if (bk_cancelled() && turns++ == 1) kill(child, SIGTERM);
        sigtimedwait(ended, NULL, &turn);
    }
    return how;
}

/* How the child was ended, as an error of reading: HDF5 crashed, the system had no memory left, or somebody ended it. */
static bk_status what_ended(const bk_inspect_options *o, int number, bk_error *err)
{
    static const int crash[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof crash / sizeof crash[0]; i++)
        if (number == crash[i])
            return bk_fail(err, BK_EFORMAT, "%s%s%s: is damaged so badly that the HDF5 library failed on it (signal %d)",
                           o->file, o->against ? " or " : "", o->against ? o->against : "", number);
    return bk_fail(err, number == SIGKILL ? BK_ENOMEM : BK_ECANCEL, "%s: reading it was ended by signal %d (%s)%s",
                   o->file, number, strsignal(number), number == SIGKILL ? ": is the memory full?" : "");
}

static int code_of_end(const bk_inspect_options *o, int number)
{
    bk_error err = {0};
    bk_status status = what_ended(o, number, &err);
    return bk_exit_report(status, &err);
}

/* Runs the rest of the program in a child. HDF5 crashes on some damaged files, and a crash is no answer. True in the
 * child; in the parent the child's exit code is in *code. */
static bool in_child(const bk_inspect_options *o, int *code)
{
    sigset_t ended, was;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, &was);
    pid_t parent = getpid(), child = fork();
    if (child > 0) {
        int how = end_of(child, &ended);
        *code = WIFEXITED(how) ? WEXITSTATUS(how) : code_of_end(o, WTERMSIG(how));
    }
    sigprocmask(SIG_SETMASK, &was, NULL);
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (child == 0 && getppid() != parent) _exit(BK_EXIT_SIGNAL);
    return child <= 0; /* without a child it has to be done here */
}

static bool terminal_is_utf8(void)
{
    locale_t l = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = l && strcmp(nl_langinfo_l(CODESET, l), "UTF-8") == 0;
    if (l) freelocale(l);
    return utf8;
}

int bk_verb_inspect(int argc, char **argv)
{
    bk_inspect_options o = {.top = TOP, .bins = -1};
    const bk_opt opts[] = {
        {"FILE", BK_OPT_TEXT, &o.file, NULL, "", 0, 0, "an HDF5 file"},
        {"PATH", BK_OPT_TEXT, &o.path, NULL, NULL, 0, 0,
         "a group or dataset in it; a dataset is measured, value by value"},
        {"--against", BK_OPT_TEXT, &o.against, "Y.h5", NULL, 0, 0,
         "compare with the same path in this file, the reference; Y.h5:PATH2, :PATH2 = another path"},
        {"--top", BK_OPT_INT, &o.top, "N", "8", 1, 1000, "length of the lists of outliers"},
        {"--bins", BK_OPT_INT, &o.bins, "N", "20; none in JSON", 0, 10000,
         "bins of the histogram; 0 = none, which saves a pass"},
        {"--log", BK_OPT_FLAG, &o.log, NULL, NULL, 0, 0, "bars of the histogram by the logarithm of the count"},
        {"--model", BK_OPT_TEXT, &o.model, "M", "the one that FILE names", 0, 0,
         "whose tokenizer gives the text of tokens"},
        {"--json", BK_OPT_FLAG, &o.json, NULL, NULL, 0, 0, "one JSON object"},
        {"--csv", BK_OPT_TEXT, &o.csv, "tokens|channels", NULL, 0, 0, "one CSV table: every token, or every channel"},
        {0},
    };
    const bk_cli cli = {"inspect", "prints what is in an HDF5 file, measures a dataset, compares two", opts,
                        "brick inspect dump.h5\nbrick inspect dump.h5 /blocks/000/sites/down_in\n"
                        "brick inspect quantized.h5 /blocks/000/target --against full.h5\n"
                        "brick inspect dump.h5 /blocks/000/sites/key --csv channels\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    o.columns = bk_terminal_columns(1);
    o.utf8 = terminal_is_utf8();
    fflush(stdout);
    if (!in_child(&o, &code)) return code;
    bk_error err = {0};
    return bk_exit_report(bk_inspect(&o, stdout, &err), &err);
}
