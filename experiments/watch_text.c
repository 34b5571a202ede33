#include "experiments/watch_text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "experiments/printable.h"
#include "experiments/progress.h"

#define SILENT_S 60 /* without a record for so long, a running run is said to be silent */

static const char *const state_name[] = {"running", "finished", "stopped"};

/* Appends what fits. */
static void add(char to[BK_WATCH_LINE], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(char to[BK_WATCH_LINE], const char *fmt, ...)
{
    size_t len = strlen(to);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(to + len, BK_WATCH_LINE - len, fmt, ap);
    va_end(ap);
}

static bool trains(const bk_run_view *v)
{
    return v->told && strcmp(v->at.stage, "train") == 0;
}

/* Block of the stage, from 1, while it goes block by block; else 0. The metrics may be ahead of a record by half a
 * second. */
static long long block_of(const bk_run_view *v)
{
    const bk_beacon_record *at = &v->at;
    if (!v->told || at->blocks <= 0 || at->total <= 0 || at->total % at->blocks) return 0;
    int64_t block = trains(v) && v->block > at->block ? v->block : at->block;
    return block < at->blocks ? block + 1 : at->blocks;
}

/* The losses that metrics.jsonl tells are those of the block that is being trained. */
static bool losses_are_current(const bk_run_view *v)
{
    return v->block >= 0 && trains(v) && v->block == block_of(v) - 1;
}

static void add_stage(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    if (!v->told)
        add(to, "begins");
    else if (v->at.of > 0)
        add(to, "[%lld/%lld] %s", (long long)v->at.number, (long long)v->at.of, v->at.stage);
    else
        add(to, "%s", v->at.stage);
}

static void add_part(const bk_run_view *v, const char *before, char to[BK_WATCH_LINE])
{
    if (v->told && v->at.total > 0) add(to, "%s%.0f%%", before, 100 * (double)v->at.done / (double)v->at.total);
}

static void add_block(const bk_run_view *v, const char *before, char to[BK_WATCH_LINE])
{
    if (block_of(v)) add(to, "%s%lld (%lld%s%lld)", before, block_of(v) - 1, block_of(v), *before ? " of " : "/", (long long)v->at.blocks);
}

static void add_left(const bk_run_view *v, const char *before, const char *behind, char to[BK_WATCH_LINE])
{
    char text[32];
    if (v->state == BK_VIEW_RUNNING && v->told && !isnan(v->at.left))
        add(to, "%s%s%s", before, bk_time_text(v->at.left, text, sizeof text), behind);
}

static void add_losses(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    if (losses_are_current(v)) add(to, ", epoch %lld/%lld", (long long)v->epoch, (long long)v->at.epochs);
    if (v->block < 0 || isnan(v->loss)) return;
    add(to, ", loss %.3e", v->loss);
    if (!isnan(v->val_loss)) add(to, ", validation %.3e", v->val_loss);
    if (!losses_are_current(v)) add(to, " (block %lld)", (long long)v->block);
}

static void line_running(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    char text[32];
    add_stage(v, to);
    add_part(v, " ", to);
    add_left(v, ", ", " left", to);
    add_block(v, ", block ", to);
    if (trains(v)) add_losses(v, to);
    double silent = v->told ? difftime(time(NULL), (time_t)v->at.updated) : 0;
    if (silent >= SILENT_S) add(to, ", silent for %s", bk_time_text(silent, text, sizeof text));
}

static void line_finished(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    add(to, "finished");
    if (!isnan(v->ppl_final)) add(to, ": perplexity %.4f", v->ppl_final);
    if (!isnan(v->ppl_final) && !isnan(v->ppl_fp)) add(to, ", full precision %.4f", v->ppl_fp);
    if (*v->why) add(to, "; %s", v->why);
    else if (v->outcome.fell_back) add(to, "; %lld blocks could not be trained", (long long)v->outcome.fell_back);
}

static void line_stopped(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    add(to, v->told ? "stopped at " : "stopped before its first stage");
    if (v->told) add_stage(v, to);
    add_block(v, ", block ", to);
    if (*v->why) add(to, ": %s", v->why);
}

void bk_watch_line(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    static void (*const line[])(const bk_run_view *, char[BK_WATCH_LINE]) = {line_running, line_finished, line_stopped};
    to[0] = 0;
    line[v->state](v, to);
}

void bk_watch_key(const bk_run_view *v, char to[BK_WATCH_LINE])
{
    snprintf(to, BK_WATCH_LINE, "%d %s %lld %lld %lld", (int)v->state, v->told ? v->at.stage : "", block_of(v),
             (long long)v->block, (long long)v->epoch);
}

#define COLUMNS "%-*s  %-8.8s  %-20.20s %5.5s %7.7s %13.13s %9.9s %9.9s %10.10s"

void bk_watch_head(int width, char to[BK_WATCH_LINE])
{
    snprintf(to, BK_WATCH_LINE, COLUMNS, width, "run", "state", "stage", "done", "left", "block", "epoch", "loss",
             "validation");
}

void bk_watch_row(const char *name, int width, const bk_run_view *v, char to[BK_WATCH_LINE])
{
    char stage[BK_WATCH_LINE] = "", part[BK_WATCH_LINE] = "", left[BK_WATCH_LINE] = "", block[BK_WATCH_LINE] = "";
    char epoch[48] = "", loss[32] = "", val[32] = "";
    bool finished = v->state == BK_VIEW_FINISHED;
    if (finished && !isnan(v->ppl_final)) add(stage, "perplexity %.4f", v->ppl_final);
    if (!finished) {
        add_stage(v, stage);
        add_part(v, "", part);
        add_left(v, "", "", left);
        add_block(v, "", block);
    }
    if (!finished && losses_are_current(v)) {
        snprintf(epoch, sizeof epoch, "%lld/%lld", (long long)v->epoch, (long long)v->at.epochs);
        if (!isnan(v->loss)) snprintf(loss, sizeof loss, "%.3e", v->loss);
        if (!isnan(v->val_loss)) snprintf(val, sizeof val, "%.3e", v->val_loss);
    }
    snprintf(to, BK_WATCH_LINE, COLUMNS, width, name, state_name[v->state], stage, part, left, block, epoch, loss, val);
    size_t len = strlen(to);
    while (len && to[len - 1] == ' ') to[--len] = 0;
}

/* Control characters are shown, not meant. */
static void print_path(FILE *to, const char *path)
{
    char shown[4400];
    bk_print_word(to, bk_visible(path, strlen(path), shown, sizeof shown));
}

/* The manifest knows the quantizers, and not where their files are. */
static void print_plugins(FILE *to, const char *dir)
{
    char path[4400];
    bk_json *manifest = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (bk_json_load(path, &manifest, NULL)) return;
    const bk_json *plugins = bk_json_get(manifest, "plugins");
    for (void *it = bk_json_first(plugins); it; it = bk_json_next(plugins, it)) {
        fputs(" --plugin FILE.so (which has the quantizer ", to);
        print_path(to, bk_json_key(it));
        fputc(')', to);
    }
    bk_json_free(manifest);
}

void bk_watch_resume(const char *dir, FILE *to)
{
    char config[4400];
    snprintf(config, sizeof config, "%s/config.yaml", dir);
    fputs("brick run ", to);
    print_path(to, config);
    fputs(" --out ", to);
    print_path(to, dir);
    fputs(" --resume", to);
    print_plugins(to, dir);
}

static bk_json *number_or_null(bool known, int64_t x)
{
    return known ? bk_json_of_int(x) : bk_json_null();
}

bk_json *bk_watch_json(const char *dir, const bk_run_view *v)
{
    const bk_beacon_record *at = &v->at;
    bk_json *o = bk_json_object(), *ppl = bk_json_object();
    bk_json_set(o, "run", bk_json_of_text(dir));
    bk_json_set(o, "state", bk_json_of_text(state_name[v->state]));
    bk_json_set(o, "stage", v->told ? bk_json_of_text(at->stage) : bk_json_null());
    bk_json_set(o, "number", number_or_null(v->told && at->of, at->number));
    bk_json_set(o, "of", number_or_null(v->told && at->of, at->of));
    bk_json_set(o, "done", number_or_null(v->told && at->total, at->done));
    bk_json_set(o, "total", number_or_null(v->told && at->total, at->total));
    bk_json_set(o, "block", number_or_null(block_of(v), block_of(v) - 1));
    bk_json_set(o, "blocks", number_or_null(v->told && at->blocks, at->blocks));
    bk_json_set(o, "trained_block", number_or_null(v->block >= 0, v->block));
    bk_json_set(o, "epoch", number_or_null(v->block >= 0, v->epoch));
    bk_json_set(o, "epochs", number_or_null(v->told, at->epochs));
    bk_json_set(o, "loss", bk_json_of_num(v->loss));
    bk_json_set(o, "val_loss", bk_json_of_num(v->val_loss));
    bk_json_set(o, "seconds", bk_json_of_num(v->told ? at->seconds : NAN));
    bk_json_set(o, "seconds_left", bk_json_of_num(v->told && v->state == BK_VIEW_RUNNING ? at->left : NAN));
    bk_json_set(o, "updated", number_or_null(v->told, at->updated));
    bk_json_set(ppl, "fp", bk_json_of_num(v->ppl_fp));
    bk_json_set(ppl, "final", bk_json_of_num(v->ppl_final));
    bk_json_set(o, "ppl", ppl);
    bk_json_set(o, "why", *v->why ? bk_json_of_text(v->why) : bk_json_null());
    return o;
}
