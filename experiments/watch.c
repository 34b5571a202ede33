/* brick watch: follows a run, or every run of a folder, from another terminal. It reads what they write and writes
 * nothing. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "experiments/options.h"
#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/report.h"
#include "experiments/terminal.h"
#include "experiments/verbs.h"
#include "experiments/watch_text.h"
#include "io/file.h"
#include "io/lock.h"

#define SLICE_S 0.05 /* of a pause: how late a signal is seen */
/* Runs of a folder that nobody leads have ended when none goes on for so long: another may just be beginning. */
#define STILL_S 10.0
#define SWEEP_LOCK "sweep.lock" /* held by a sweep while it goes on */

/* One run that is watched. */
typedef struct item {
    char *name, *dir; /* malloc'd; name: as it is shown */
    bk_run_view view;
    char key[BK_WATCH_LINE]; /* of what was printed last */
} item;

typedef struct watch {
    const char *dir;
    bool folder; /* of runs; else a run */
    bool once, json, redraw;
    item *run;
    int n;
    int lines;    /* that stand on the terminal and are redrawn */
    double moved; /* when a run was seen going on */
    int count[3]; /* of runs, by state */
    bool sweep;   /* the folder is one of a sweep */
    bool led;     /* a sweep was seen going on in it */
} watch;

static void free_items(item *run, int n)
{
    for (int i = 0; i < n; i++) {
        free(run[i].name);
        free(run[i].dir);
    }
    free(run);
}

static bk_status set_item(item *to, const char *name, char *dir, bk_error *err)
{
    char shown[256];
    to->dir = dir;
    to->name = strdup(bk_visible(name, strlen(name), shown, sizeof shown));
    return to->dir && to->name ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
}

/* --- the runs of a folder --- */

/* Takes over what is known of a run already, so that a finished one is not read again. It most likely stands where
 * `from`, behind the one found last, points. */
static int take_over(item *to, const watch *w, int from)
{
    for (int k = 0; k < w->n; k++) {
        const item *old = &w->run[(from + k) % w->n];
        if (strcmp(old->dir, to->dir) != 0) continue;
        to->view = old->view;
        memcpy(to->key, old->key, sizeof to->key);
        return (int)(old - w->run) + 1;
    }
    return from;
}

static bk_status find_runs(watch *w, bk_error *err)
{
    struct dirent **entry;
    int n = scandir(w->dir, &entry, NULL, versionsort), kept = 0, known = 0;
    if (n < 0) return bk_fail_errno(err, "%s", w->dir);
    item *run = calloc((size_t)n + 1, sizeof *run);
    bk_status st = run ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    for (int i = 0; i < n; i++) {
        char *dir = !st && entry[i]->d_name[0] != '.' ? bk_path_join(w->dir, entry[i]->d_name) : NULL;
        if (dir && bk_is_run_folder(dir)) {
            st = set_item(&run[kept], entry[i]->d_name, dir, err);
            if (!st) known = take_over(&run[kept], w, known);
            kept++;
        } else {
            free(dir);
        }
        free(entry[i]);
    }
    free(entry);
    free_items(w->run, w->n);
    w->run = run;
    w->n = kept;
    return st;
}

static bk_status look(watch *w, bk_error *err)
{
    if (w->folder) BK_TRY(find_runs(w, err));
    memset(w->count, 0, sizeof w->count);
    for (int i = 0; i < w->n; i++) {
        item *it = &w->run[i];
        bool known = w->folder && *it->key && it->view.state == BK_VIEW_FINISHED;
        if (!known) BK_TRY(bk_run_view_read(it->dir, &it->view, err));
        w->count[it->view.state]++;
    }
    if (w->count[BK_VIEW_RUNNING]) w->moved = bk_seconds();
    return BK_OK;
}

/* --- showing --- */

static int name_width(const watch *w)
{
    size_t widest = 3;
    for (int i = 0; i < w->n; i++)
        if (strlen(w->run[i].name) > widest) widest = strlen(w->run[i].name);
    return (int)(widest < 60 ? widest : 60);
}

static void sum_line(const watch *w, char to[BK_WATCH_LINE])
{
    snprintf(to, BK_WATCH_LINE, "%d run%s: %d running, %d finished, %d stopped", w->n, w->n == 1 ? "" : "s",
             w->count[BK_VIEW_RUNNING], w->count[BK_VIEW_FINISHED], w->count[BK_VIEW_STOPPED]);
}

/* On a terminal: a line that is redrawn, cut where it would wrap. */
static void put_line(watch *w, const char *text)
{
    if (!w->redraw) {
        puts(text);
        return;
    }
    int room = bk_terminal_columns(1) - 1;
    if (room < (int)strlen(text))
        while (room > 0 && (text[room] & 0xc0) == 0x80) room--; /* not inside a character */
    printf("%.*s\033[K\n", room, text);
    w->lines++;
}

static int terminal_rows(void)
{
    struct winsize size;
    return ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_row ? size.ws_row : 24;
}

static void show_table(watch *w)
{
    char text[BK_WATCH_LINE];
    int width = name_width(w), rows = w->redraw ? terminal_rows() - 4 : w->n, hidden = w->n > rows ? w->n - rows : 0;
    bk_watch_head(width, text);
    put_line(w, text);
    for (int i = 0, left_out = 0; i < w->n; i++) {
        item *it = &w->run[i];
        bk_watch_key(&it->view, it->key);
        if (left_out < hidden && (it->view.state == BK_VIEW_FINISHED || w->n - i <= hidden - left_out)) {
            left_out++;
            continue;
        }
        bk_watch_row(it->name, width, &it->view, text);
        put_line(w, text);
    }
    sum_line(w, text);
    if (hidden) snprintf(text + strlen(text), sizeof text - strlen(text), " (%d not shown)", hidden);
    put_line(w, text);
}

static void show_line(watch *w, item *it)
{
    char line[BK_WATCH_LINE], key[BK_WATCH_LINE], named[BK_WATCH_LINE + 300];
    bk_watch_key(&it->view, key);
    if (!w->redraw && strcmp(key, it->key) == 0) return;
    memcpy(it->key, key, sizeof it->key);
    bk_watch_line(&it->view, line);
    snprintf(named, sizeof named, "%s: %s", it->name, line);
    put_line(w, named);
}

/* One object for a run; for a folder one with all of them. */
static bk_status show_json(watch *w, bk_error *err)
{
    bool news = false;
    for (int i = 0; i < w->n; i++) {
        char key[BK_WATCH_LINE];
        bk_watch_key(&w->run[i].view, key);
        news = news || strcmp(key, w->run[i].key) != 0;
        memcpy(w->run[i].key, key, sizeof key);
    }
    if (!news && !w->once) return BK_OK;
    if (!w->folder) return bk_print_json(bk_watch_json(w->run[0].dir, &w->run[0].view), err);
    bk_json *o = bk_json_object(), *runs = bk_json_array();
    static const char *const name[] = {"running", "finished", "stopped"};
    bk_json_set(o, "folder", bk_json_of_text(w->dir));
    for (int s = 0; s < 3; s++) bk_json_set(o, name[s], bk_json_of_int(w->count[s]));
    for (int i = 0; i < w->n; i++) bk_json_push(runs, bk_watch_json(w->run[i].dir, &w->run[i].view));
    bk_json_set(o, "runs", runs);
    return bk_print_json(o, err);
}

static bk_status show(watch *w, bk_error *err)
{
    if (w->json) return show_json(w, err);
    if (w->lines) printf("\033[%dA\r", w->lines);
    w->lines = 0;
    if (w->folder && (w->redraw || w->once))
        show_table(w);
    else
        for (int i = 0; i < w->n; i++) show_line(w, &w->run[i]);
    if (w->redraw) fputs("\033[J", stdout); /* what a longer table left below */
    return BK_OK;
}

/* --- following --- */

static bool sweep_goes_on(const char *dir)
{
    bk_lock_owner owner;
    char *lock = bk_path_join(dir, SWEEP_LOCK);
    bool held = lock && bk_lock_look(lock, &owner) == BK_LOCK_HELD;
    free(lock);
    return held;
}

static bool ended(watch *w)
{
    bool led = w->folder && sweep_goes_on(w->dir);
    w->led = w->led || led;
    if (w->count[BK_VIEW_RUNNING] || led) return false;
    return !w->folder || w->led || bk_seconds() - w->moved > STILL_S;
}

/* False when a signal came, or when nobody reads any more. */
static bool pause_for(double seconds)
{
    for (double end = bk_seconds() + seconds; !bk_cancelled() && !ferror(stdout);) {
        double rest = end - bk_seconds();
        if (rest <= 0) return true;
        nanosleep(&(struct timespec){0, (long)(1e9 * (rest < SLICE_S ? rest : SLICE_S))}, NULL);
    }
    return false;
}

static bk_status follow(watch *w, double interval, bk_error *err)
{
    w->moved = bk_seconds();
    do {
        BK_TRY(look(w, err));
        BK_TRY(show(w, err));
        fflush(stdout);
    } while (!w->once && !ended(w) && pause_for(interval));
    return w->once ? BK_OK : bk_check_cancelled(err);
}

/* What to do about runs that stopped; BK_EIO if one did, for who waited for its end. */
static bk_status advise(const watch *w, bk_error *err)
{
    if (!w->count[BK_VIEW_STOPPED] || (w->folder && w->once)) return BK_OK;
    if (w->sweep && !w->json) puts("the same `brick sweep` goes on with what has no result");
    for (int i = 0; i < w->n && !w->json && !w->sweep; i++) {
        if (w->run[i].view.state != BK_VIEW_STOPPED) continue;
        fputs(w->folder ? "go on with: " : "it goes on with: ", stdout);
        bk_watch_resume(w->run[i].dir, stdout);
        putchar('\n');
    }
    if (w->once) return BK_OK;
    return w->folder ? bk_fail(err, BK_EIO, "%s: %d of %d runs have no result", w->dir, w->count[BK_VIEW_STOPPED], w->n)
                     : bk_fail(err, BK_EIO, "%s: the run has ended without a result", w->dir);
}

static bk_status open_watch(watch *w, bk_error *err)
{
    if (strlen(w->dir) > 4000) return bk_fail(err, BK_EINVAL, "the name of the folder is too long");
    w->folder = bk_is_dir(w->dir) && !bk_is_run_folder(w->dir);
    w->sweep = w->folder && (bk_report_is_sweep(w->dir) || sweep_goes_on(w->dir));
    if (w->folder) {
        BK_TRY(find_runs(w, err));
        return w->n || w->sweep
                   ? BK_OK
                   : bk_fail(err, BK_EIO, "%s: neither the folder of a run nor one with runs in it", w->dir);
    }
    if (!(w->run = calloc(1, sizeof *w->run))) return bk_fail(err, BK_ENOMEM, "no memory");
    w->n = 1;
    return set_item(w->run, w->dir, strdup(w->dir), err);
}

int bk_verb_watch(int argc, char **argv)
{
    watch w = {0};
    double interval = 1;
    const bk_opt opts[] = {
        {.name = "RUN",
         .type = BK_OPT_TEXT,
         .to = &w.dir,
         .initial = "",
         .about = "folder of a run, or one with runs in it, as a sweep makes"},
        {.name = "--once", .type = BK_OPT_FLAG, .to = &w.once, .about = "look once and end, whatever is going on"},
        {.name = "--interval",
         .type = BK_OPT_REAL,
         .to = &interval,
         .metavar = "S",
         .initial = "1",
         .min = 0.1,
         .max = 3600,
         .about = "seconds between looks"},
        {.name = "--json",
         .type = BK_OPT_FLAG,
         .to = &w.json,
         .about = "one JSON object on stdout, without --once one for every change"},
        {0}};
    const bk_cli cli = {"watch",
                        "progress of a run, or of every run in a folder, from another terminal; ends when they end",
                        opts, "brick watch runs/demo\nbrick watch runs --once\nbrick watch runs/demo --once --json\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    w.redraw = !w.json && !w.once && bk_terminal(1);
    bk_error err = {0};
    bk_status st = open_watch(&w, &err);
    if (!st) st = follow(&w, interval, &err);
    if (!st) st = advise(&w, &err);
    free_items(w.run, w.n);
    return bk_exit_report(st, &err);
}
