/* Points of a sweep as child processes: `brick run`, a few at a time, each in its own folder with its messages in
 * POINT.log. A child that outlives a sweep that was killed is told to stop (PR_SET_PDEATHSIG); until it has, the lock
 * of its run folder keeps the next sweep waiting. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/sweep_stages.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "quant/plugin.h"

#define FOLDER (2 * BK_PATH_SIZE)
#define WORDS (2 * BK_SWEEP_SETS + 2 * BK_PLUGINS_MAX + 16)
#define LOG_TAIL 8192
#define TURN_SECONDS 1 /* between looks at folders that others work in */

typedef struct child {
    pid_t pid; /* 0 = none */
    int point;
    double began;
    off_t log_from; /* where what it says begins in POINT.log: before that are earlier attempts */
} child;

typedef struct crew {
    bk_sweep_run *r;
    child *child;       /* [jobs] */
    int running;
    int64_t stop_after; /* blocks; 0 = to the end */
    bool *due;          /* [points] still to run in this round */
    bool *elsewhere;    /* [points] another process works there, and it was said */
    int n_due;
    double *work;       /* [points] about what each takes, in the seconds of some machine */
    double began, finished; /* when; work done since */
    bool forwarded;     /* the signal that came was passed on */
    bk_run_config *cfg; /* of the point that is started or looked at */
} crew;

bk_status bk_sweep_run_begin(bk_sweep_run *r, bk_sweep *s, const char *out, bk_error *err)
{
    if (out && !*out) return bk_fail(err, BK_EINVAL, "--out is empty: name a folder");
    if (out && strlen(out) > BK_PATH_SIZE - BK_SWEEP_NAME - 64) return bk_fail(err, BK_EINVAL, "--out is too long");
    if (out) snprintf(r->dir, sizeof r->dir, "%s", out);
    else bk_sweep_folder(s, r->dir, sizeof r->dir);
    r->s = s;
    r->row = calloc((size_t)s->n, sizeof *r->row);
    r->done = calloc((size_t)s->n, sizeof *r->done);
    return r->row && r->done ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
}

void bk_sweep_run_free(bk_sweep_run *r)
{
    free(r->row);
    free(r->done);
}

void bk_sweep_point_dir(const bk_sweep_run *r, int point, char *to, size_t size)
{
    snprintf(to, size, "%s/%s", r->dir, r->s->point[point].name);
}

/* --- the command of a point --- */

typedef struct command {
    char *word[WORDS];
    char folder[FOLDER], blocks[32], base[BK_PATH_SIZE + 2];
} command;

static void make_command(const bk_sweep_run *r, int point, int64_t stop_after, command *c)
{
    const char *sets[BK_SWEEP_SETS];
    int n = bk_sweep_sets(r->s, point, sets), w = 0;
    bk_sweep_point_dir(r, point, c->folder, sizeof c->folder);
    snprintf(c->base, sizeof c->base, "%s%s", r->s->base[0] == '-' ? "./" : "", r->s->base);
    c->word[w++] = (char *)(uintptr_t)r->program;
    c->word[w++] = (char *)(uintptr_t)"run";
    c->word[w++] = c->base;
    for (int i = 0; i < n; i++) {
        c->word[w++] = (char *)(uintptr_t)"--set";
        c->word[w++] = (char *)(uintptr_t)sets[i];
    }
    for (int i = 0; i < bk_plugin_files.n; i++) { /* no more than are loaded */
        c->word[w++] = (char *)(uintptr_t)"--plugin";
        c->word[w++] = (char *)(uintptr_t)bk_plugin_files.item[i];
    }
    c->word[w++] = (char *)(uintptr_t)"--out";
    c->word[w++] = c->folder;
    c->word[w++] = (char *)(uintptr_t)"--resume";
    if (stop_after) {
        snprintf(c->blocks, sizeof c->blocks, "%lld", (long long)stop_after);
        c->word[w++] = (char *)(uintptr_t)"--stop-after";
        c->word[w++] = c->blocks;
    }
    c->word[w] = NULL;
}

bk_status bk_sweep_list(const bk_sweep_run *r, bk_error *err)
{
    char here[BK_PATH_SIZE];
    const char *cache = getenv("BRICK_CACHE");
    command *c = malloc(sizeof *c);
    if (!c) return bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    bk_status st = getcwd(here, sizeof here) ? BK_OK : bk_fail_errno(err, "the working directory");
    if (!st && (strchr(here, '\n') || strchr(r->dir, '\n')))
        st = bk_fail(err, BK_EINVAL, "--list: a folder with a line break in its name");
    for (int i = 0; !st && i < r->s->n; i++) {
        make_command(r, i, 0, c);
        fputs("cd ", stdout);
        bk_print_word(stdout, here);
        fputs(" && ", stdout);
        if (cache && *cache) {
            fputs("BRICK_CACHE=", stdout);
            bk_print_word(stdout, cache);
            putchar(' ');
        }
        for (int w = 0; c->word[w]; w++) {
            if (w) putchar(' ');
            bk_print_word(stdout, c->word[w]);
        }
        putchar('\n');
    }
    free(c);
    return st;
}

/* --- children --- */

/* Points share the processors, unless somebody said how many threads there shall be. */
static void share_processors(const crew *w)
{
    const char *given = getenv("OMP_NUM_THREADS");
    if ((given && *given) || w->cfg->threads || w->r->jobs == 1) return;
    char text[32];
    cpu_set_t ours;
    int cores = sched_getaffinity(0, sizeof ours, &ours) == 0 ? CPU_COUNT(&ours) / w->r->jobs : 1;
    snprintf(text, sizeof text, "%d", cores > 1 ? cores : 1);
    setenv("OMP_NUM_THREADS", text, 1);
}

/* So that a signal between fork and exec ends the child instead of being noted in memory that is about to go. */
static void forget_handlers(const sigset_t *mask)
{
    static const int stopping[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        struct sigaction was;
        if (sigaction(stopping[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) signal(stopping[i], SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
}

/* In the child. Its own process group: a Ctrl-C reaches the sweep alone, which passes it on once. */
static _Noreturn void become(const crew *w, const command *c, int log, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    forget_handlers(&none);
    int null = open("/dev/null", O_RDWR);
    share_processors(w);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(BK_EXIT_SIGNAL);
    if (null >= 0 && dup2(null, 0) >= 0 && dup2(null, 1) >= 0 && dup2(log, 2) >= 0) {
        if (null > 2) close(null);
        execv("/proc/self/exe", c->word);
    }
    dprintf(log, "brick: the run cannot be started: %s\n", strerror(errno));
    _exit(BK_EXIT_SPACE);
}

static void log_path(const bk_sweep_run *r, int point, char *to, size_t size)
{
    snprintf(to, size, "%s/%s.log", r->dir, r->s->point[point].name);
}

static bk_status start(crew *w, int slot, int point, bk_error *err)
{
    char path[FOLDER];
    BK_TRY(bk_sweep_config(w->r->s, point, w->cfg, err));
    log_path(w->r, point, path, sizeof path);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0) return bk_fail_errno(err, "%s", path);
    off_t log_from = lseek(log, 0, SEEK_END);
    command *c = malloc(sizeof *c);
    pid_t parent = getpid(), pid = -1;
    sigset_t all, was;
    sigfillset(&all);
    if (c) {
        make_command(w->r, point, w->stop_after, c);
        fflush(NULL);
        sigprocmask(SIG_BLOCK, &all, &was);
        pid = fork();
        if (pid == 0) become(w, c, log, parent);
        sigprocmask(SIG_SETMASK, &was, NULL);
    }
    bk_status st = pid < 0 ? bk_fail_errno(err, "starting a point") : BK_OK;
    free(c);
    close(log);
    if (st) return st;
    w->child[slot] = (child){pid, point, bk_seconds(), log_from};
    w->running++;
    w->r->row[point].state = BK_POINT_RUNNING;
    bk_log(BK_LOG_INFO, "[%d/%d] %s: started", point + 1, w->r->s->n, w->r->s->point[point].name);
    return BK_OK;
}

/* The last thing that the child complained about; "" if it said nothing. */
static void last_message(const bk_sweep_run *r, const child *k, char *to, size_t size)
{
    char path[FOLDER], tail[LOG_TAIL + 1];
    struct stat info;
    *to = 0;
    log_path(r, k->point, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t from = fstat(fd, &info) == 0 && info.st_size - LOG_TAIL > k->log_from ? info.st_size - LOG_TAIL : k->log_from;
    ssize_t n = pread(fd, tail, LOG_TAIL, from);
    close(fd);
    tail[n > 0 ? n : 0] = 0;
    for (char *save, *line = strtok_r(tail, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (!strncmp(line, "brick: ", 7) && strncmp(line, "brick: warning: ", 16)) {
            bk_error clean = {0}; /* makes it valid UTF-8 */
            bk_status ignored = bk_fail(&clean, BK_EINVAL, "%s", line + 7);
            (void)ignored;
            snprintf(to, size, "%.*s", (int)size - 1, clean.msg);
        }
}

/* About what the points take that are still to do, for the time that is left: only the ratios count. */
static bk_status estimate_work(crew *w, bk_error *err)
{
    bk_sweep_stages t;
    bk_status st = bk_sweep_stages_begin(&t, w->r, false, err);
    for (int i = 0; !st && i < w->r->s->n; i++) st = bk_sweep_stages_add(&t, i, !w->due[i], err);
    for (int i = 0; !st && i < w->r->s->n; i++) w->work[i] = bk_sweep_stages_seconds(&t, i);
    bk_sweep_stages_free(&t);
    return st;
}

/* Work of the points that are due or running. */
static double open_work(const crew *w)
{
    double sum = 0;
    for (int i = 0; i < w->r->s->n; i++)
        if (w->due[i] || w->r->row[i].state == BK_POINT_RUNNING) sum += w->work[i];
    return sum;
}

static void fail_point(crew *w, int point, int code, const char *why)
{
    bk_sweep_row *row = &w->r->row[point];
    row->state = BK_POINT_FAILED;
    row->code = code;
    snprintf(row->message, sizeof row->message, "%.*s", (int)sizeof row->message - 1, why);
}

static void say_state(const crew *w, int point, const char *behind)
{
    const bk_sweep_row *row = &w->r->row[point];
    char what[400];
    if (row->state == BK_POINT_FAILED) snprintf(what, sizeof what, "failed (exit %d): %s", row->code, row->message);
    else if (isnan(row->final)) snprintf(what, sizeof what, "to block %lld", (long long)w->stop_after);
    else snprintf(what, sizeof what, "ppl %.4f, gap %.4f", row->final, row->gap);
    bk_log(row->state == BK_POINT_FAILED ? BK_LOG_WARN : BK_LOG_INFO, "[%d/%d] %s: %s%s", point + 1, w->r->s->n,
           w->r->s->point[point].name, what, behind);
}

static void say_ended(const crew *w, const child *k)
{
    char took[32], left[32] = "", behind[128];
    double open = open_work(w);
    bk_time_text(bk_seconds() - k->began, took, sizeof took);
    if (open > 0) bk_time_text((bk_seconds() - w->began) / w->finished * open, left, sizeof left);
    snprintf(behind, sizeof behind, " in %s%s%s%s", took, *left ? "; about " : "", left, *left ? " left" : "");
    say_state(w, k->point, behind);
}

/* What the folder says now; the point is pending still if that is no result. What became wrong with it since the sweep
 * began is a failure of this point, not of the others. */
static void look(crew *w, int point)
{
    char dir[FOLDER];
    bk_error why = {0};
    bk_sweep_row *row = &w->r->row[point];
    row->state = BK_POINT_PENDING;
    row->message[0] = 0;
    bk_status st = bk_sweep_config(w->r->s, point, w->cfg, &why);
    bk_sweep_point_dir(w->r, point, dir, sizeof dir);
    if (!st) st = bk_sweep_look(dir, w->cfg, row, &why);
    if (st) fail_point(w, point, bk_exit_code(st), why.msg);
}

/* A run that found another one in its folder. That one may have left since. */
static bool was_refused(const char *said)
{
    return strstr(said, BK_RUN_IN_USE) != NULL;
}

static bool in_use(const bk_sweep_run *r, int point, bk_lock_owner *owner)
{
    char dir[FOLDER];
    bk_sweep_point_dir(r, point, dir, sizeof dir);
    return bk_run_folder_busy(dir, owner);
}

/* The exit code of a child, or what it would have been had it noticed what a signal means: SIGKILL comes from a kernel that is out of memory.
 * After a crash it is that of a shell. */
static int code_of(int status)
{
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    int number = WTERMSIG(status);
    if (number == SIGKILL) return BK_EXIT_SPACE;
    return number == SIGINT || number == SIGTERM || number == SIGHUP ? BK_EXIT_SIGNAL : 128 + number;
}

static void take_failure(crew *w, int point, int status, const char *said)
{
    char why[300];
    const bk_sweep_row *row = &w->r->row[point];
    int code = code_of(status);
    if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "ended by signal %d (%s)%s", WTERMSIG(status), strsignal(WTERMSIG(status)),
                 code == BK_EXIT_SPACE ? ", as when memory is out" : "");
    else if (code == 0) { /* its folder was changed by somebody else */
        snprintf(why, sizeof why, "ended without a result%s%.250s", *row->message ? ": " : "", row->message);
        code = BK_EXIT_INPUT;
    } else if (*said) snprintf(why, sizeof why, "%.299s", said);
    else snprintf(why, sizeof why, "exit status %d", code);
    fail_point(w, point, code, why);
}

static bk_status reap(crew *w, child *k, int status, bk_error *err)
{
    bool on_its_way = w->stop_after && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool cut_short =
        w->forwarded && (WIFEXITED(status) ? WEXITSTATUS(status) == BK_EXIT_SIGNAL : WTERMSIG(status) == SIGTERM);
    child was = *k;
    char said[sizeof ((bk_error *)0)->msg];
    bk_lock_owner other;
    bk_sweep_row *row = &w->r->row[was.point];
    k->pid = 0;
    w->running--;
    look(w, was.point);
    bool nothing = row->state == BK_POINT_PENDING && !on_its_way && !cut_short;
    last_message(w->r, &was, said, sizeof said);
    if (nothing && (was_refused(said) || in_use(w->r, was.point, &other))) { /* somebody was faster */
        w->due[was.point] = true;
        w->n_due++;
        return BK_OK;
    }
    if (nothing) take_failure(w, was.point, status, said);
    w->finished += w->work[was.point];
    if (!cut_short) say_ended(w, &was);
    return bk_sweep_write(w->r->s, w->r->row, w->r->dir, err);
}

static bk_status reap_all(crew *w, bk_error *err)
{
    for (int i = 0; i < w->r->jobs; i++) {
        int status;
        if (w->child[i].pid && waitpid(w->child[i].pid, &status, WNOHANG) == w->child[i].pid)
            BK_TRY(reap(w, &w->child[i], status, err));
    }
    return BK_OK;
}

/* --- a round: every point that is due, to the end or to a number of blocks --- */

static void say_in_use(crew *w, int point, const bk_lock_owner *o)
{
    const char *name = w->r->s->point[point].name;
    char path[FOLDER + 16], who[BK_LOCK_WHO];
    if (w->elsewhere[point]) return;
    w->elsewhere[point] = true;
    snprintf(path, sizeof path, "%s/%s/run.lock", w->r->dir, name);
    bk_lock_who(o, path, who, sizeof who);
    bk_log(BK_LOG_INFO, "%s: another brick is running there (%s); waiting", name, who);
}

static int next_point(crew *w)
{
    bk_lock_owner owner;
    for (int i = 0; i < w->r->s->n; i++) {
        if (!w->due[i]) continue;
        if (!in_use(w->r, i, &owner)) return i;
        say_in_use(w, i, &owner);
    }
    return -1;
}

static bk_status fill_slots(crew *w, bk_error *err)
{
    for (int i = 0; i < w->r->jobs; i++) {
        for (int point; !w->child[i].pid && (point = next_point(w)) >= 0;) {
            w->due[point] = false;
            w->n_due--;
            look(w, point);
            if (w->r->row[point].state == BK_POINT_PENDING) {
                BK_TRY(start(w, i, point, err));
                continue;
            }
            say_state(w, point, ""); /* by another process, meanwhile */
            BK_TRY(bk_sweep_write(w->r->s, w->r->row, w->r->dir, err));
        }
    }
    return BK_OK;
}

static void pass_signal_on(crew *w)
{
    if (!w->forwarded && w->running)
        bk_log(BK_LOG_INFO, "%s: waiting for %d points to stop", bk_cancelled() ? "interrupted" : "the sweep cannot go on",
               w->running);
    for (int i = 0; i < w->r->jobs && !w->forwarded; i++)
        if (w->child[i].pid) kill(w->child[i].pid, SIGTERM);
    w->forwarded = true;
}

/* Until a child ends, a signal comes, or a second is over. */
static void wait_a_turn(void)
{
    sigset_t ended;
    const struct timespec turn = {TURN_SECONDS, 0};
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigtimedwait(&ended, NULL, &turn);
}

static bk_status work(crew *w, bk_error *err)
{
    bk_status st = BK_OK;
    while (!st && (w->running || (w->n_due && !bk_cancelled()))) {
        if (bk_cancelled()) pass_signal_on(w);
        else st = fill_slots(w, err);
        if (!st && (w->running || w->n_due)) wait_a_turn();
        if (!st) st = reap_all(w, err);
    }
    if (st) pass_signal_on(w); /* nothing goes on without us */
    for (int i = 0; i < w->r->jobs; i++)
        if (w->child[i].pid) waitpid(w->child[i].pid, NULL, 0);
    return st ? st : bk_check_cancelled(err);
}

static bool is_due(const bk_sweep_run *r, int point, int64_t stop_after)
{
    char dir[FOLDER];
    if (r->row[point].state != BK_POINT_PENDING) return false;
    bk_sweep_point_dir(r, point, dir, sizeof dir);
    return !stop_after || bk_sweep_trained(dir) < stop_after;
}

static bk_status run_round(bk_sweep_run *r, int64_t stop_after, bk_error *err)
{
    sigset_t ended, was;
    size_t n = (size_t)r->s->n;
    crew w = {.r = r,
              .stop_after = stop_after,
              .began = bk_seconds(),
              .child = calloc((size_t)r->jobs, sizeof *w.child),
              .due = calloc(n, sizeof *w.due),
              .elsewhere = calloc(n, sizeof *w.elsewhere),
              .work = calloc(n, sizeof *w.work),
              .cfg = malloc(sizeof *w.cfg)};
    bk_status st =
        w.child && w.due && w.elsewhere && w.work && w.cfg ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < r->s->n; i++) w.n_due += w.due[i] = is_due(r, i, stop_after);
    if (!st) st = estimate_work(&w, err);
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, &was);
    if (!st) st = work(&w, err);
    sigprocmask(SIG_SETMASK, &was, NULL);
    free(w.child);
    free(w.due);
    free(w.elsewhere);
    free(w.work);
    free(w.cfg);
    return st;
}

/* --- halving --- */

typedef struct rival {
    double loss;
    int point;
} rival;

static int by_loss(const void *a, const void *b)
{
    const rival *x = a, *y = b;
    return x->loss < y->loss ? -1 : x->loss > y->loss ? 1 : x->point - y->point;
}

/* Of the points that are like this one, the better part goes on. */
static void drop_among(bk_sweep_run *r, rival *all, int n, int64_t blocks)
{
    int keep = (int)ceil(r->s->keep * n - 1e-9);
    qsort(all, (size_t)n, sizeof *all, by_loss);
    for (int i = keep; i < n; i++) {
        bk_sweep_row *row = &r->row[all[i].point];
        if (row->state != BK_POINT_PENDING) continue; /* finished before halving was asked for */
        row->state = BK_POINT_STOPPED;
        snprintf(row->message, sizeof row->message, "rank %d of %d after block %lld: validation loss %.4e", i + 1, n,
                 (long long)blocks, all[i].loss);
        bk_log(BK_LOG_INFO, "%s: stopped, %s", r->s->point[all[i].point].name, row->message);
    }
}

static bk_status drop_hopeless(bk_sweep_run *r, int64_t blocks, bk_error *err)
{
    int n = r->s->n;
    rival *all = malloc((size_t)n * sizeof *all);
    double *loss = malloc((size_t)n * sizeof *loss);
    bk_run_config *c = malloc(sizeof *c);
    bk_status st = all && loss && c ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < n; i++) {
        char dir[FOLDER];
        bk_sweep_point_dir(r, i, dir, sizeof dir);
        loss[i] = NAN;
        if (r->row[i].state != BK_POINT_PENDING && r->row[i].state != BK_POINT_DONE) continue;
        st = bk_sweep_config(r->s, i, c, err);
        if (!st && c->train.epochs) loss[i] = bk_sweep_loss(dir, blocks - 1); /* without training it is 0 and says nothing */
    }
    for (int i = 0; !st && i < n; i++) {
        int m = 0;
        for (int j = i; j < n; j++) {
            if (isnan(loss[j]) || strcmp(r->s->point[i].rivals, r->s->point[j].rivals)) continue;
            all[m++] = (rival){loss[j], j};
            if (j > i) loss[j] = NAN;
        }
        if (!isnan(loss[i])) drop_among(r, all, m, blocks);
    }
    free(all);
    free(loss);
    free(c);
    return st ? st : bk_sweep_write(r->s, r->row, r->dir, err);
}

bk_status bk_sweep_all(bk_sweep_run *r, bk_error *err)
{
    for (int i = 0; i < r->s->n_rungs; i++) {
        BK_TRY(run_round(r, r->s->rung[i], err));
        BK_TRY(drop_hopeless(r, r->s->rung[i], err));
    }
    return run_round(r, 0, err);
}
