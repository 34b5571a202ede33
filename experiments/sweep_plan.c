/* brick plan SWEEP: which stages the points share, what of them is there, and what the rest will take. Answers without
 * computing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/plan.h"
#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/runner.h"
#include "experiments/stage_kinds.h"
#include "experiments/sweep_run.h"
#include "experiments/verbs.h"
#include "io/file.h"

#define GIB 1073741824.0
#define MISSING_MAX 16

/* What an estimate does not depend on. */
static const char *const not_estimated[] = {
    "!seed", "!strict", "!threads", "!equivalence_tolerance", "!prefix.threshold", "!prefix.lower_threshold",
    "!prefix.bos", "!prefix.search.tau", "!train.lr", "!train.beta", "!train.eps", "!train.weight_decay", "!train.clip_grad",
    "!train.shuffle", "!train.keep", NULL};

/* Points that take the same stage. */
typedef struct shared {
    bk_stage_kind kind;
    char quick[65];
    int parent;    /* the stage before it, -1 = none */
    int points, open; /* that take it; of these not done yet */
    bool there;
    double seconds, disk;
} shared;

typedef struct planned {
    int stage[BK_STAGE_KINDS]; /* -1 = none */
    int estimate;
    bool done;
} planned;

typedef struct sweep_plan {
    bk_sweep s;
    bk_sweep_run r; /* its folder */
    planned *point;
    shared *stage;
    int n_stages;
    struct estimated {
        char hash[65];
        bool known;
        bk_estimate e;
    } *estimate;
    int n_estimates;
    bk_rates rates;
    char *missing[MISSING_MAX];
    int n_missing;
    bk_run_config cfg;
} sweep_plan;

/* --- estimates --- */

/* Rates are measured once, for the first point. */
static bk_status estimate(sweep_plan *p, struct estimated *to, bk_error *err)
{
    bk_config shapes;
    bool weights;
    bk_plan_set set[BK_PLAN_SETS];
    bk_rotation *rotation = NULL;
    const bk_backend *be = bk_runner_backend(p->cfg.backend, p->cfg.threads, err);
    if (!be) return err->code;
    BK_TRY(bk_plan_shapes(p->cfg.model, &shapes, &to->known, &weights, err));
    if (!to->known) return BK_OK;
    BK_TRY(bk_sweep_check_shapes(&p->s, &p->cfg, &shapes, err));
    BK_TRY(bk_plan_samples(&p->cfg, p->cfg.model, set, err));
    bk_sample_counts samples = bk_plan_counts(&p->cfg, set);
    bk_status st = bk_plan_rotation(&p->cfg, &shapes, &rotation, err);
    if (!st && p->rates.gflops == 0) st = bk_rates_measure(rotation, be, &p->rates, err);
    if (!st) st = bk_estimate_run(&p->cfg, &samples, rotation, be, &p->rates, &to->e, err);
    bk_rotation_free(rotation);
    return st;
}

/* Points that differ in a learning rate have one estimate. */
static bk_status find_estimate(sweep_plan *p, int *out, bk_error *err)
{
    char hash[65];
    BK_TRY(bk_sweep_hash(&p->cfg, not_estimated, hash, err));
    for (*out = 0; *out < p->n_estimates; ++*out)
        if (!strcmp(p->estimate[*out].hash, hash)) return BK_OK;
    struct estimated *e = &p->estimate[p->n_estimates++];
    snprintf(e->hash, sizeof e->hash, "%s", hash);
    return estimate(p, e, err);
}

/* --- stages --- */

static bk_status find_stage(sweep_plan *p, bk_stage_kind kind, int parent, const bk_estimate *e, int *out,
                            bk_error *err)
{
    char quick[65];
    BK_TRY(bk_stage_quick(kind, &p->cfg, quick, err));
    for (*out = 0; *out < p->n_stages; ++*out)
        if (!strcmp(p->stage[*out].quick, quick)) return BK_OK;
    shared *s = &p->stage[p->n_stages++];
    *s = (shared){.kind = kind,
                  .parent = parent,
                  .there = bk_ledger_has(kind, quick),
                  .seconds = e->stage_seconds[kind],
                  .disk = e->stage_disk[kind]};
    snprintf(s->quick, sizeof s->quick, "%s", quick);
    return BK_OK;
}

static bk_status find_missing(sweep_plan *p, bk_error *err)
{
    const char *key, *path;
    for (int i = 0; bk_run_config_file(&p->cfg, i, &key, &path); i++) {
        bool known = access(path, R_OK) == 0;
        for (int k = 0; k < p->n_missing && !known; k++) known = !strcmp(p->missing[k], path);
        if (known || p->n_missing == MISSING_MAX) continue;
        p->missing[p->n_missing] = strdup(path);
        if (!p->missing[p->n_missing++]) return bk_fail(err, BK_ENOMEM, "no memory for the plan");
    }
    return BK_OK;
}

static bk_status plan_point(sweep_plan *p, int i, bk_error *err)
{
    planned *t = &p->point[i];
    t->done = p->r.done[i];
    BK_TRY(bk_sweep_config(&p->s, i, &p->cfg, err));
    if (find_estimate(p, &t->estimate, err)) return bk_sweep_blame(&p->s, i, err);
    BK_TRY(find_missing(p, err));
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        t->stage[k] = -1;
        if (!bk_stage_used((bk_stage_kind)k, &p->cfg)) continue;
        bk_stage_kind before = bk_stage_before((bk_stage_kind)k, &p->cfg);
        int parent = before < BK_STAGE_KINDS ? t->stage[before] : -1;
        BK_TRY(find_stage(p, (bk_stage_kind)k, parent, &p->estimate[t->estimate].e, &t->stage[k], err));
        p->stage[t->stage[k]].points++;
        p->stage[t->stage[k]].open += !t->done;
    }
    return BK_OK;
}

static bk_status make_plan(sweep_plan *p, const char *file, const char *out, bk_error *err)
{
    BK_TRY(bk_sweep_load(file, &p->s, err));
    BK_TRY(bk_sweep_check(&p->s, err));
    size_t n = (size_t)p->s.n;
    BK_TRY(bk_sweep_run_begin(&p->r, &p->s, out, err));
    p->point = calloc(n, sizeof *p->point);
    p->stage = calloc(n * BK_STAGE_KINDS, sizeof *p->stage);
    p->estimate = calloc(n, sizeof *p->estimate);
    if (!p->point || !p->stage || !p->estimate) return bk_fail(err, BK_ENOMEM, "no memory for the plan");
    BK_TRY(bk_sweep_look_at_all(&p->r, err)); /* who shares targets depends on what is done */
    for (int i = 0; i < p->s.n; i++) BK_TRY(plan_point(p, i, err));
    return BK_OK;
}

/* --- sums --- */

static bool to_make(const shared *s)
{
    return !s->there && s->open > 0;
}

typedef struct line {
    const char *name;
    int needed, there, to_make;
    double seconds;
} line;

enum { LINES = BK_STAGE_KINDS + 3 };

static void count_stages(const sweep_plan *p, line to[LINES])
{
    static const bk_part each[3] = {BK_PART_EQUIVALENCE, BK_PART_TRAIN, BK_PART_EVALUATE};
    for (int k = 0; k < LINES; k++)
        to[k] = (line){.name = k < BK_STAGE_KINDS ? bk_stage_name((bk_stage_kind)k)
                                                  : bk_part_name[each[k - BK_STAGE_KINDS]]};
    for (int i = 0; i < p->n_stages; i++) {
        const shared *s = &p->stage[i];
        line *l = &to[s->kind];
        l->needed++;
        l->there += s->there;
        l->to_make += to_make(s);
        if (to_make(s)) l->seconds += s->seconds;
    }
    for (int i = 0; i < p->s.n; i++)
        for (int k = 0; k < 3; k++) {
            line *l = &to[BK_STAGE_KINDS + k];
            l->needed++;
            l->there += p->point[i].done;
            l->to_make += !p->point[i].done;
            if (!p->point[i].done) l->seconds += p->estimate[p->point[i].estimate].e.seconds[each[k]];
        }
}

static bool all_known(const sweep_plan *p)
{
    for (int i = 0; i < p->n_estimates; i++)
        if (!p->estimate[i].known) return false;
    return true;
}

static double total_seconds(const line all[LINES])
{
    double sum = 0;
    for (int k = 0; k < LINES; k++) sum += all[k].seconds;
    return sum;
}

/* Models of all run folders, targets of the one that runs, stages, temporary files. */
static void sum_room(const sweep_plan *p, double *memory, double *disk)
{
    double targets = 0, temporary = 0;
    *memory = *disk = 0;
    for (int i = 0; i < p->s.n; i++) {
        const bk_estimate *e = &p->estimate[p->point[i].estimate].e;
        if (p->point[i].done) continue;
        *memory = fmax(*memory, e->peak);
        *disk += e->model_disk;
        targets = fmax(targets, e->targets_disk);
        temporary = fmax(temporary, e->temporary_disk);
    }
    for (int i = 0; i < p->n_stages; i++)
        if (to_make(&p->stage[i])) *disk += p->stage[i].disk;
    *disk += targets + temporary;
}

/* --- text --- */

static void print_point(const sweep_plan *p, int i, int depth)
{
    const bk_estimate *e = &p->estimate[p->point[i].estimate].e;
    char train[32], evaluate[32];
    printf("%*s%s", 2 * depth, "", p->s.point[i].name);
    if (p->point[i].done) puts("  done");
    else if (!p->estimate[p->point[i].estimate].known) putchar('\n');
    else
        printf("  train %s, evaluate %s\n", bk_time_text(e->seconds[BK_PART_TRAIN], train, sizeof train),
               bk_time_text(e->seconds[BK_PART_EVALUATE], evaluate, sizeof evaluate));
}

/* Without the "row-" that they have in common. */
static const char *row_name(bk_stage_kind kind)
{
    return bk_stage_name(kind) + strlen("row-");
}

/* All rows that come after a stage, in one line: "rows fp, rtn x3  4 to make, 2s". */
static void print_rows(const sweep_plan *p, int parent, int depth)
{
    int n[BK_STAGE_KINDS] = {0}, make = 0, absent = 0, printed = 0;
    double seconds = 0;
    char took[32];
    for (int i = 0; i < p->n_stages; i++) {
        const shared *s = &p->stage[i];
        if (s->parent != parent || !bk_stage_is_row(s->kind)) continue;
        n[s->kind]++;
        make += to_make(s);
        absent += !s->there;
        if (to_make(s)) seconds += s->seconds;
    }
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        if (n[k] == 0) continue;
        if (printed++) printf(", %s", row_name((bk_stage_kind)k));
        else printf("%*srows %s", 2 * depth, "", row_name((bk_stage_kind)k));
        if (n[k] > 1) printf(" x%d", n[k]);
    }
    if (make) printf("  %d to make, %s\n", make, bk_time_text(seconds, took, sizeof took));
    else if (printed) puts(absent ? "  not needed any more" : "  there");
}

/* Every run initialises: its point hangs below that stage. */
static void print_below(const sweep_plan *p, int parent, int depth)
{
    char took[32];
    print_rows(p, parent, depth);
    for (int i = 0; i < p->n_stages; i++) {
        const shared *s = &p->stage[i];
        if (s->parent != parent || bk_stage_is_row(s->kind)) continue;
        printf("%*s%s %.8s  %d point%s  ", 2 * depth, "", bk_stage_name(s->kind), s->quick, s->points,
               s->points == 1 ? "" : "s");
        if (to_make(s)) printf("to make, %s\n", bk_time_text(s->seconds, took, sizeof took));
        else puts(s->there ? "there" : "not needed any more");
        print_below(p, i, depth + 1);
    }
    for (int i = 0; i < p->s.n; i++)
        if (parent >= 0 && p->point[i].stage[BK_STAGE_INIT] == parent) print_point(p, i, depth);
}

/* Indented lines are parts of the one above them. */
static void print_line(const line *l, const char *name, int indent, bool known)
{
    char took[32];
    printf("%*s%-*s %5d %7d %8d %9s\n", indent, "", 13 - indent, name, l->needed, l->there, l->to_make,
           known ? bk_time_text(l->seconds, took, sizeof took) : "?");
}

/* Stages in the order in which a run takes them; rows together. */
static void print_lines(const line all[LINES], bool known)
{
    line rows = {.name = "rows"};
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        if (!bk_stage_is_row((bk_stage_kind)k)) continue;
        rows.needed += all[k].needed;
        rows.there += all[k].there;
        rows.to_make += all[k].to_make;
        rows.seconds += all[k].seconds;
    }
    for (int k = 0; k < BK_STAGE_ROW_FP; k++)
        if (all[k].needed) print_line(&all[k], all[k].name, 2, known);
    print_line(&rows, rows.name, 2, known);
    for (int k = BK_STAGE_ROW_FP; k < BK_STAGE_KINDS; k++)
        if (all[k].needed) print_line(&all[k], row_name((bk_stage_kind)k), 4, known);
    for (int k = BK_STAGE_KINDS; k < LINES; k++) print_line(&all[k], all[k].name, 2, known);
}

static void print_text(const sweep_plan *p)
{
    line all[LINES];
    char took[32];
    double memory, disk;
    bool known = all_known(p);
    count_stages(p, all);
    sum_room(p, &memory, &disk);
    printf("sweep       %s: %d points of %s in %s\n", p->s.file, p->s.n, p->s.base, p->r.dir);
    for (int a = 0; a < p->s.n_axes; a++) printf("%-11s %s\n", a ? "" : "axes", bk_keys[p->s.axis[a]].path);
    for (int i = 0; i < p->s.n_rungs; i++)
        printf("%-11s after %lld blocks the better %.0f%% go on (not in the numbers below)\n", i ? "" : "halving",
               (long long)p->s.rung[i], 100 * p->s.keep);
    printf("stages      needed   there  to make      time\n");
    print_lines(all, known);
    if (known) {
        printf("memory      %.2f GiB a point\ndisk        %.2f GiB\n", memory / GIB, disk / GIB);
        printf("time        %s, one point at a time (to a factor of 2)\n",
               bk_time_text(total_seconds(all), took, sizeof took));
    }
    for (int i = 0; i < p->n_missing; i++) printf("missing     %s\n", p->missing[i]);
    puts("tree");
    print_below(p, -1, 1);
}

/* --- JSON --- */

static bk_json *line_json(const line *l, bool known)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "stage", bk_json_of_text(l->name));
    bk_json_set(o, "needed", bk_json_of_int(l->needed));
    bk_json_set(o, "there", bk_json_of_int(l->there));
    bk_json_set(o, "to_make", bk_json_of_int(l->to_make));
    bk_json_set(o, "seconds", known ? bk_json_of_num(l->seconds) : bk_json_null());
    return o;
}

static bk_json *shared_json(const sweep_plan *p, int index)
{
    const shared *s = &p->stage[index];
    bk_json *o = bk_json_object(), *points = bk_json_array();
    for (int i = 0; i < p->s.n; i++)
        if (p->point[i].stage[s->kind] == index) bk_json_push(points, bk_json_of_text(p->s.point[i].name));
    bk_json_set(o, "stage", bk_json_of_text(bk_stage_name(s->kind)));
    bk_json_set(o, "id", bk_json_of_text(s->quick));
    bk_json_set(o, "parent", s->parent < 0 ? bk_json_null() : bk_json_of_text(p->stage[s->parent].quick));
    bk_json_set(o, "there", bk_json_of_bool(s->there));
    bk_json_set(o, "to_make", bk_json_of_bool(to_make(s)));
    bk_json_set(o, "points", points);
    return o;
}

static bk_status print_json(const sweep_plan *p, bk_error *err)
{
    line all[LINES];
    double memory, disk;
    bool known = all_known(p);
    bk_json *o = bk_json_object(), *stages = bk_json_array(), *tree = bk_json_array(), *points = bk_json_array(),
            *missing = bk_json_array();
    count_stages(p, all);
    sum_room(p, &memory, &disk);
    for (int k = 0; k < LINES; k++) bk_json_push(stages, line_json(&all[k], known));
    for (int i = 0; i < p->n_stages; i++) bk_json_push(tree, shared_json(p, i));
    for (int i = 0; i < p->s.n; i++) bk_json_push(points, bk_json_of_text(p->s.point[i].name));
    for (int i = 0; i < p->n_missing; i++) bk_json_push(missing, bk_json_of_text(p->missing[i]));
    bk_json_set(o, "sweep", bk_json_of_text(p->s.file));
    bk_json_set(o, "base", bk_json_of_text(p->s.base));
    bk_json_set(o, "folder", bk_json_of_text(p->r.dir));
    bk_json_set(o, "points", points);
    bk_json_set(o, "stages", stages);
    bk_json_set(o, "tree", tree);
    bk_json_set(o, "missing", missing);
    bk_json_set(o, "memory_bytes", known ? bk_json_of_num(memory) : bk_json_null());
    bk_json_set(o, "disk_bytes", known ? bk_json_of_num(disk) : bk_json_null());
    bk_json_set(o, "seconds", known ? bk_json_of_num(total_seconds(all)) : bk_json_null());
    return bk_print_json(o, err);
}

int bk_sweep_plan(const char *file, const char *out, bool json)
{
    bk_error err = {0};
    sweep_plan *p = calloc(1, sizeof *p);
    bk_status st = p ? make_plan(p, file, out, &err) : bk_fail(&err, BK_ENOMEM, "no memory for the plan");
    if (!st && json) st = print_json(p, &err);
    else if (!st) print_text(p);
    if (p) {
        for (int i = 0; i < p->n_missing; i++) free(p->missing[i]);
        bk_sweep_run_free(&p->r);
        bk_sweep_free(&p->s);
        free(p->point);
        free(p->stage);
        free(p->estimate);
        free(p);
    }
    return bk_exit_report(st, &err);
}
