/* brick sweep: one config, many points. */
#include "experiments/sweep_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/run_view.h"
#include "experiments/plan.h"
#include "experiments/plugin.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/lock.h"

/* Two sweeps do not share a folder. Commands of --list do not come here: the locks of run folders keep these apart. */
static bk_status lock_folder(const char *dir, bk_lock *lock, bk_error *err)
{
    char path[BK_PATH_SIZE + 16], who[BK_LOCK_WHO];
    bk_lock_owner owner;
    snprintf(path, sizeof path, "%s/sweep.lock", dir);
    BK_TRY(bk_lock_try(lock, path, &owner, err));
    if (lock->path) return BK_OK;
    bk_lock_who(&owner, path, who, sizeof who);
    return bk_fail(err, BK_EINVAL, "%s: another sweep is running in this folder (%s)", dir, who);
}

/* What a run would refuse in its first second. Shapes are read once for points of one model. */
static bk_status check_point(const bk_sweep *s, const bk_run_config *c, char model[BK_PATH_SIZE], bk_config *shapes, bk_error *err)
{
    bool known = true, weights;
    BK_TRY(bk_run_config_check_files(c, err));
    if (strcmp(model, c->model)) BK_TRY(bk_plan_shapes(c->model, shapes, &known, &weights, err));
    if (!known) return BK_OK;
    snprintf(model, BK_PATH_SIZE, "%s", c->model);
    return bk_sweep_check_shapes(s, c, shapes, err);
}

/* A point that is done counts as long as its model and texts are what they were. A model is hashed once for points that
 * follow one another. */
typedef struct hashed {
    char model[BK_PATH_SIZE], sha[65];
} hashed;

static bk_status check_done(const bk_sweep_run *r, int point, const bk_run_config *c, hashed *h, bk_error *err)
{
    char dir[2 * BK_PATH_SIZE];
    if (strcmp(h->model, c->model)) {
        bk_model *m;
        BK_TRY(bk_model_open(c->model, &m, err));
        bk_status st = bk_model_sha256(m, h->sha, err);
        bk_model_close(m);
        BK_TRY(st);
        snprintf(h->model, sizeof h->model, "%s", c->model);
    }
    bk_sweep_point_dir(r, point, dir, sizeof dir);
    return bk_run_check_inputs(dir, c, h->sha, err);
}

/* Files that are missing, and all else that a run would refuse, are errors before anything runs. */
static bk_status check_points(bk_sweep_run *r, int *n_done, bk_error *err)
{
    char model[BK_PATH_SIZE] = "";
    hashed h = {"", ""};
    bk_config shapes;
    bk_run_config *c = malloc(sizeof *c);
    bk_status st = c ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < r->s->n; i++) {
        *n_done += r->done[i];
        st = bk_sweep_config(r->s, i, c, err);
        if (!st && r->done[i]) st = check_done(r, i, c, &h, err);
        else if (!st && check_point(r->s, c, model, &shapes, err)) st = bk_sweep_blame(r->s, i, err);
    }
    free(c);
    return st;
}

static bk_status run_points(bk_sweep_run *r, bk_error *err)
{
    int n_done = 0;
    BK_TRY(bk_sweep_look_at_all(r, err));
    BK_TRY(check_points(r, &n_done, err));
    bk_log(BK_LOG_INFO, "%s: %d points in %s, %d are there, %d at a time", r->s->file, r->s->n, r->dir, n_done,
           r->jobs);
    BK_TRY(bk_sweep_write_question(r->s, r->dir, err));
    BK_TRY(bk_sweep_write(r->s, r->row, r->dir, err));
    return bk_sweep_all(r, err);
}

static bk_status list(bk_sweep_run *r, bk_error *err)
{
    if (r->s->n_rungs)
        return bk_fail(err, BK_EINVAL, "%s: halving compares points while they run: no --list with it", r->s->file);
    BK_TRY(bk_sweep_look_at_all(r, err));
    return bk_sweep_list(r, err);
}

static bk_status set_up(bk_sweep_run *r, bk_sweep *s, const char *file, const char *out, int64_t jobs, bk_error *err)
{
    BK_TRY(bk_sweep_load(file, s, err));
    BK_TRY(bk_sweep_check(s, err));
    BK_TRY(bk_sweep_run_begin(r, s, out, err));
    ssize_t n = readlink("/proc/self/exe", r->program, sizeof r->program - 1);
    if (n < 0) return bk_fail_errno(err, "/proc/self/exe");
    r->jobs = (int)(jobs ? jobs : r->s->jobs);
    if (r->jobs > r->s->n) r->jobs = r->s->n;
    return BK_OK;
}

/* Runs that are finished are not run again. */
static void say_failures(int failed, int finished, int points)
{
    char again[80] = "";
    if (!failed) return;
    if (finished == 0) snprintf(again, sizeof again, "; the same command tries them again");
    else if (finished < failed) snprintf(again, sizeof again, "; the same command tries %d of them again", failed - finished);
    bk_log(BK_LOG_ERROR, "%d of %d points failed%s%s", failed, points, again,
           finished ? "; runs that came to their end without a result stay as they are" : "");
}

/* Exit code of the first point, in the order of the file, that failed. */
static int code_of_failures(const bk_sweep_run *r)
{
    int first = BK_EXIT_OK, n = 0, finished = 0;
    for (int i = 0; i < r->s->n; i++) {
        if (r->row[i].state != BK_POINT_FAILED) continue;
        if (n++ == 0) first = r->row[i].code;
        finished += r->row[i].finished;
    }
    say_failures(n, finished, r->s->n);
    return first;
}

static bk_status sweep(bk_sweep_run *r, bool json, int *code, bk_error *err)
{
    bk_lock lock = {.path = NULL};
    if (bk_is_run_folder(r->dir))
        return bk_fail(err, BK_EINVAL, "%s is the folder of a run; give the sweep one of its own with --out", r->dir);
    BK_TRY(bk_mkdir_p(r->dir, err));
    bk_status st = lock_folder(r->dir, &lock, err);
    if (!st) st = run_points(r, err);
    if (!st) st = bk_sweep_print(r->s, r->row, r->dir, json, err);
    if (!st) *code = code_of_failures(r);
    bk_lock_release(&lock);
    return st;
}

int bk_verb_sweep(int argc, char **argv)
{
    const char *file = NULL, *out = NULL;
    int64_t jobs = 0;
    bool only_list = false, json = false;
    const bk_opt opts[] = {{"--jobs", BK_OPT_INT, &jobs, "N", "the file's jobs, else 1", 1, 1024,
                            "points at a time; they share the processors"},
                           BK_OPT_PLUGIN,
                           {"--out", BK_OPT_TEXT, &out, "DIR", "runs/<name of the file>", 0, 0,
                            "folder of the run folders and of results.csv, results.jsonl"},
                           {"--list", BK_OPT_FLAG, &only_list, NULL, NULL, 0, 0,
                            "print a shell command for each point and end; the sweep then collects"},
                           {"--json", BK_OPT_FLAG, &json, NULL, NULL, 0, 0, "one JSON object instead of the table"},
                           {"SWEEP", BK_OPT_TEXT, &file, "SWEEP", "", 0, 0,
                            "YAML file: base and grid, zip or points (docs/sweeps.md)"},
                           {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"sweep", "many runs: one config and keys that vary; goes on where it was stopped", opts,
                        "brick plan configs/sweeps/demo-lr.yaml\n"
                        "brick sweep configs/sweeps/demo-lr.yaml\n"
                        "brick sweep configs/sweeps/demo-lr.yaml --list | xargs -d '\\n' -n 1 -P 2 sh -c\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    bk_error err = {0};
    bk_sweep s = {0};
    bk_sweep_run *r = calloc(1, sizeof *r);
    if (!r) return bk_exit_report(bk_fail(&err, BK_ENOMEM, "no memory"), &err);
    bk_status st = set_up(r, &s, file, out, jobs, &err);
    if (!st) st = only_list ? list(r, &err) : sweep(r, json, &code, &err);
    if (st) code = bk_exit_report(st, &err);
    if (st == BK_ECANCEL) bk_log(BK_LOG_INFO, "the same command goes on in %s", r->dir);
    bk_sweep_free(&s);
    bk_sweep_run_free(r);
    free(r);
    return code;
}
