/* brick plan SWEEP: which stages the points share, what of them is there, and what the rest will take. Answers without
 * computing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/sweep_stages.h"
#include "experiments/verbs.h"
#include "io/file.h"

#define MISSING_MAX 16

typedef struct sweep_plan {
    bk_sweep s;
    bk_sweep_run r; /* its folder */
    bk_sweep_stages t;
    char *missing[MISSING_MAX];
    int n_missing;
} sweep_plan;

static bk_status find_missing(sweep_plan *p, bk_error *err)
{
    const char *key, *path;
    for (int i = 0; bk_run_config_file(p->t.cfg, i, &key, &path); i++) {
        bool known = access(path, R_OK) == 0;
        for (int k = 0; k < p->n_missing && !known; k++) known = !strcmp(p->missing[k], path);
        if (known || p->n_missing == MISSING_MAX) continue;
        p->missing[p->n_missing] = strdup(path);
        if (!p->missing[p->n_missing++]) return bk_fail(err, BK_ENOMEM, "no memory for the plan");
    }
    return BK_OK;
}

static bk_status make_plan(sweep_plan *p, const char *file, const char *out, bk_error *err)
{
    BK_TRY(bk_sweep_load(file, &p->s, err));
    BK_TRY(bk_sweep_check(&p->s, err));
    BK_TRY(bk_sweep_run_begin(&p->r, &p->s, out, err));
    BK_TRY(bk_sweep_stages_begin(&p->t, &p->r, true, err));
    BK_TRY(bk_sweep_look_at_all(&p->r, err)); /* who shares targets depends on what is done */
    for (int i = 0; i < p->s.n; i++) {
        BK_TRY(bk_sweep_stages_add(&p->t, i, p->r.done[i], err));
        BK_TRY(find_missing(p, err));
    }
    return BK_OK;
}

/* --- sums --- */

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
    for (int i = 0; i < p->t.n; i++) {
        const bk_sweep_stage *s = &p->t.stage[i];
        line *l = &to[s->kind];
        l->needed++;
        l->there += s->there;
        l->to_make += bk_sweep_stage_to_make(s);
        if (bk_sweep_stage_to_make(s)) l->seconds += s->seconds;
    }
    for (int i = 0; i < p->s.n; i++)
        for (int k = 0; k < 3; k++) {
            line *l = &to[BK_STAGE_KINDS + k];
            l->needed++;
            l->there += p->t.point[i].done;
            l->to_make += !p->t.point[i].done;
            if (!p->t.point[i].done) l->seconds += bk_sweep_stages_estimate(&p->t, i)->seconds[each[k]];
        }
}

static bool all_known(const sweep_plan *p)
{
    for (int i = 0; i < p->t.n_estimates; i++)
        if (!p->t.estimate[i].known) return false;
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
        const bk_estimate *e = bk_sweep_stages_estimate(&p->t, i);
        if (p->t.point[i].done) continue;
        *memory = fmax(*memory, e->peak);
        *disk += e->model_disk;
        targets = fmax(targets, e->targets_disk);
        temporary = fmax(temporary, e->temporary_disk);
    }
    for (int i = 0; i < p->t.n; i++)
        if (bk_sweep_stage_to_make(&p->t.stage[i])) *disk += p->t.stage[i].disk;
    *disk += targets + temporary;
}

/* --- text --- */

static void print_point(const sweep_plan *p, int i, int depth)
{
    const bk_estimate *e = bk_sweep_stages_estimate(&p->t, i);
    char train[32], evaluate[32];
    printf("%*s%s", 2 * depth, "", p->s.point[i].name);
    if (p->t.point[i].done) puts("  done");
    else if (!p->t.estimate[p->t.point[i].estimate].known) putchar('\n');
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
    for (int i = 0; i < p->t.n; i++) {
        const bk_sweep_stage *s = &p->t.stage[i];
        if (s->parent != parent || !bk_stage_is_row(s->kind)) continue;
        n[s->kind]++;
        make += bk_sweep_stage_to_make(s);
        absent += !s->there;
        if (bk_sweep_stage_to_make(s)) seconds += s->seconds;
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
    for (int i = 0; i < p->t.n; i++) {
        const bk_sweep_stage *s = &p->t.stage[i];
        if (s->parent != parent || bk_stage_is_row(s->kind)) continue;
        printf("%*s%s %.8s  %d point%s  ", 2 * depth, "", bk_stage_name(s->kind), s->quick, s->points,
               s->points == 1 ? "" : "s");
        if (bk_sweep_stage_to_make(s)) printf("to make, %s\n", bk_time_text(s->seconds, took, sizeof took));
        else puts(s->there ? "there" : "not needed any more");
        print_below(p, i, depth + 1);
    }
    for (int i = 0; i < p->s.n; i++)
        if (parent >= 0 && p->t.point[i].stage[BK_STAGE_INIT] == parent) print_point(p, i, depth);
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
    char took[32], room[BK_BYTES_TEXT], files[BK_BYTES_TEXT];
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
        printf("memory      %s a point\ndisk        %s\n", bk_bytes_text(memory, room), bk_bytes_text(disk, files));
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
    const bk_sweep_stage *s = &p->t.stage[index];
    bk_json *o = bk_json_object(), *points = bk_json_array();
    for (int i = 0; i < p->s.n; i++)
        if (p->t.point[i].stage[s->kind] == index) bk_json_push(points, bk_json_of_text(p->s.point[i].name));
    bk_json_set(o, "stage", bk_json_of_text(bk_stage_name(s->kind)));
    bk_json_set(o, "id", bk_json_of_text(s->quick));
    bk_json_set(o, "parent", s->parent < 0 ? bk_json_null() : bk_json_of_text(p->t.stage[s->parent].quick));
    bk_json_set(o, "there", bk_json_of_bool(s->there));
    bk_json_set(o, "to_make", bk_json_of_bool(bk_sweep_stage_to_make(s)));
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
    for (int i = 0; i < p->t.n; i++) bk_json_push(tree, shared_json(p, i));
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
        bk_sweep_stages_free(&p->t);
        free(p);
    }
    return bk_exit_report(st, &err);
}
