#include "experiments/run_view.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/printable.h"
#include "io/file.h"
#include "io/json.h"
#include "io/lock.h"

#define PATH_ROOM 4400
#define TAIL      4096 /* bytes at the end of metrics.jsonl and log.txt that are looked at first */
#define MOST      ((size_t)1 << 28)

static const char *in_dir(const char *dir, const char *name, char to[PATH_ROOM])
{
    snprintf(to, PATH_ROOM, "%s/%s", dir, name);
    return to;
}

static bool has(const char *dir, const char *name)
{
    char path[PATH_ROOM];
    return bk_exists(in_dir(dir, name, path));
}

static bk_lock_state lock_of(const char *dir)
{
    char path[PATH_ROOM];
    bk_lock_owner owner;
    return bk_lock_look(in_dir(dir, "run.lock", path), &owner);
}

bool bk_is_run_folder(const char *dir)
{
    return has(dir, "config.yaml") && (has(dir, "manifest.json") || lock_of(dir) != BK_LOCK_NONE);
}

/* At most the last `most` bytes of a file, from the start of a line, malloc'd; NULL if there is none. *all: it is the
 * whole file. */
static char *tail(const char *dir, const char *name, size_t most, bool *all)
{
    char path[PATH_ROOM];
    *all = true;
    int fd = open(in_dir(dir, name, path), O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait at a FIFO */
    if (fd < 0) return NULL;
    off_t size = lseek(fd, 0, SEEK_END), from = size > (off_t)most ? size - (off_t)most : 0;
    char *text = malloc(most + 1);
    ssize_t n = text ? pread(fd, text, most, from) : 0;
    close(fd);
    if (!text) return NULL;
    text[n > 0 ? n : 0] = 0;
    *all = from == 0;
    char *line = from ? strchr(text, '\n') : NULL;
    if (line) memmove(text, line + 1, strlen(line));
    return text;
}

/* Takes the last line that has its end off the text and returns it, NULL if there is none; what stands behind it is a
 * line that is being written, or that was when its writer was killed. */
static char *pop_line(char *text)
{
    char *end = strrchr(text, '\n');
    if (!end) return NULL;
    *end = 0;
    char *before = strrchr(text, '\n');
    return before ? before + 1 : text;
}

/* A line has every step of an epoch, so it may be longer than what is looked at first. */
static bk_json *last_metrics(const char *dir)
{
    bk_json *o = NULL;
    bool all = false;
    for (size_t most = TAIL; !o && !all && most <= MOST; most *= 16) {
        char *text = tail(dir, "metrics.jsonl", most, &all), *line;
        while (!o && text && (line = pop_line(text)))
            if (bk_json_parse(line, strlen(line), "metrics.jsonl", &o, NULL)) o = NULL;
        free(text);
    }
    return o;
}

static void read_metrics(const char *dir, bk_run_view *v)
{
    bk_json *o = last_metrics(dir);
    v->block = bk_json_int(bk_json_get(o, "block"), -1);
    v->epoch = bk_json_int(bk_json_get(o, "epoch"), 0);
    v->loss = bk_json_num(bk_json_get(o, "loss"), NAN);
    v->val_loss = bk_json_num(bk_json_get(o, "val_loss"), NAN);
    bk_json_free(o);
}

/* An error ends a log, but for the line that says how to go on. */
static void read_why(const char *dir, bk_run_view *v)
{
    bool all;
    char *text = tail(dir, "log.txt", TAIL, &all), *line;
    for (int i = 0; i < 2 && text && !*v->why && (line = pop_line(text)); i++)
        if (strncmp(line, "error ", 6) == 0) bk_visible(line + 6, strlen(line + 6), v->why, sizeof v->why);
    free(text);
}

static bool read_summary(const char *dir, bk_run_view *v)
{
    char path[PATH_ROOM];
    bk_json *o;
    if (bk_json_load(in_dir(dir, "summary.json", path), &o, NULL)) return false;
    bk_error why = {0};
    const bk_json *ppl = bk_json_get(o, "ppl");
    v->ppl_fp = bk_json_num(bk_json_get(ppl, "fp"), NAN);
    v->ppl_final = bk_json_num(bk_json_get(ppl, "final"), NAN);
    v->outcome = bk_run_outcome_of(o);
    if (bk_run_outcome_check(&v->outcome, &why)) snprintf(v->why, sizeof v->why, "%.200s", why.msg);
    bk_json_free(o);
    return true;
}

bk_status bk_run_view_read(const char *dir, bk_run_view *v, bk_error *err)
{
    *v = (bk_run_view){.block = -1, .loss = NAN, .val_loss = NAN, .ppl_fp = NAN, .ppl_final = NAN};
    if (strlen(dir) > 4096) return bk_fail(err, BK_EINVAL, "the name of the folder is too long");
    if (bk_exists(dir) && !bk_is_dir(dir)) return bk_fail(err, BK_EIO, "%s is no folder; name the one of the run", dir);
    if (!bk_is_dir(dir)) return bk_fail(err, BK_EIO, "%s: there is no such folder; a run makes it when it begins", dir);
    if (!bk_is_run_folder(dir))
        return bk_fail(err, BK_EIO, "%s is not the folder of a run: config.yaml or manifest.json is missing", dir);
    v->told = bk_beacon_read(dir, &v->at);
    read_metrics(dir, v);
    bool held = lock_of(dir) == BK_LOCK_HELD; /* looked at before summary.json, which a run writes before it lets go */
    if (read_summary(dir, v))
        v->state = BK_VIEW_FINISHED;
    else
        v->state = held ? BK_VIEW_RUNNING : BK_VIEW_STOPPED;
    if (v->state == BK_VIEW_STOPPED) read_why(dir, v);
    return BK_OK;
}
