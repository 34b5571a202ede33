/* What memory and disk are left, and whether a run fits in. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "experiments/plan.h"
#include "experiments/printable.h"
#include "experiments/stage_kinds.h"
#include "io/file.h"

#define UNKNOWN 1e300

/* --- memory --- */

/* The number behind `key` in a file of lines "key value"; key NULL: the first number of the file. -1 if there is none
 * ("max"). */
static double read_number(const char *path, const char *key)
{
    char line[512];
    double v = -1;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        size_t n = key ? strlen(key) : 0;
        if (key && strncmp(line, key, n) != 0) continue;
        if (sscanf(line + n, "%lf", &v) != 1) v = -1;
        break;
    }
    if (f) fclose(f);
    return v;
}

static void lower(bk_room *r, double bytes, const char *from)
{
    if (bytes < 0) bytes = 0;
    if (bytes >= r->memory) return;
    r->memory = bytes;
    r->memory_from = from;
}

/* One group: its limit less what is used and cannot be dropped. */
static void cgroup_limit(bk_room *r, const char *dir, const char *limit_name, const char *used_name,
                         const char *cache_key)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    double limit = read_number(path, NULL), used, cache;
    if (limit < 0) return;
    snprintf(path, sizeof path, "%s/%s", dir, used_name);
    used = read_number(path, NULL);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    cache = read_number(path, cache_key);
    lower(r, limit - (used > 0 ? used : 0) + (cache > 0 ? cache : 0), "cgroup limit");
}

/* A group and all above it, up to the mount point. In a container the path may not exist; its own root then still
 * does. */
static void cgroup_chain(bk_room *r, const char *mount, const char *group, const char *limit_name,
                         const char *used_name, const char *cache_key)
{
    char dir[4200];
    size_t top = strlen(mount);
    snprintf(dir, sizeof dir, "%s%s", mount, group);
    for (;;) {
        cgroup_limit(r, dir, limit_name, used_name, cache_key);
        char *slash = strrchr(dir + top, '/');
        if (!slash) break;
        *slash = 0;
    }
}

static void cgroups(bk_room *r)
{
    char line[4096];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (!controllers[1]) cgroup_chain(r, "/sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file ");
        if (strstr(controllers + 1, "memory"))
            cgroup_chain(r, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file ");
    }
    if (f) fclose(f);
}

static void memory_room(bk_room *r)
{
    struct rlimit as;
    r->memory = UNKNOWN;
    r->memory_from = "nothing known";
    double free_kb = read_number("/proc/meminfo", "MemAvailable:");
    if (free_kb >= 0) lower(r, free_kb * 1024, "free memory");
    cgroups(r);
    double pages = read_number("/proc/self/statm", NULL);
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY)
        lower(r, (double)as.rlim_cur - (pages > 0 ? pages * (double)sysconf(_SC_PAGESIZE) : 0), "ulimit -v");
}

/* --- disk --- */

/* Free bytes and file system of the folder, or of the nearest one above it that exists. */
static double disk_free(const char *dir, dev_t *device)
{
    char at[BK_STAGE_PATH];
    struct statvfs v;
    struct stat s;
    snprintf(at, sizeof at, "%s", *dir ? dir : ".");
    while (stat(at, &s) != 0) {
        char *slash = strrchr(at, '/');
        if (slash && slash != at) *slash = 0;
        else snprintf(at, sizeof at, slash ? "/" : ".");
        if (!strcmp(at, "/") || !strcmp(at, ".")) break;
    }
    *device = stat(at, &s) == 0 ? s.st_dev : 0;
    return statvfs(at, &v) == 0 && v.f_blocks ? (double)v.f_bavail * (double)v.f_frsize : UNKNOWN; /* no blocks: no limit, or no files */
}

/* Bytes of the files of a folder, of folders in it too. */
static double bytes_in(const char *dir, int depth)
{
    double sum = 0;
    DIR *d = depth > 0 ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[BK_STAGE_PATH];
        struct stat s;
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path ||
            lstat(path, &s) != 0)
            continue;
        sum += S_ISDIR(s.st_mode) ? bytes_in(path, depth - 1) : S_ISREG(s.st_mode) ? (double)s.st_size : 0;
    }
    if (d) closedir(d);
    return sum;
}

void bk_room_measure(const char *run_dir, bk_room *r)
{
    const char *tmp = getenv("TMPDIR");
    dev_t run, cache, temporary;
    memory_room(r);
    r->run_disk = disk_free(run_dir, &run);
    r->cache_disk = disk_free(bk_cache_root(), &cache);
    r->temporary_disk = disk_free(tmp && *tmp ? tmp : "/tmp", &temporary);
    r->cache_with_run = cache == run;
    r->temporary_with_run = temporary == run;
}

/* --- does it fit --- */

static const char *const advice[BK_PART_COUNT] = {
    [BK_PART_EQUIVALENCE] = "a smaller model", [BK_PART_OUTLIERS] = "a shorter data.detection.seqlen",
    [BK_PART_FIT] = "a shorter data.statistics.seqlen", [BK_PART_INIT] = "a shorter seqlen of calibration or statistics",
    [BK_PART_TARGETS] = "a shorter data.training.seqlen",
    [BK_PART_TRAIN] = "a smaller train.batch or data.training.seqlen",
    [BK_PART_ROWS] = "a shorter data.evaluation.seqlen", [BK_PART_EVALUATE] = "a shorter data.evaluation.seqlen"};

static bk_status check_memory(const bk_room *room, const bk_estimate *e, bk_error *err)
{
    int worst = 0;
    char need[BK_BYTES_TEXT], have[BK_BYTES_TEXT];
    for (int i = 1; i < BK_PART_COUNT; i++)
        if (e->memory[i] > e->memory[worst]) worst = i;
    if (e->memory[worst] <= room->memory) return BK_OK;
    return bk_fail(err, BK_ENOMEM, "the stage %s needs about %s of memory, %s are left (%s): %s takes less", bk_part_name[worst],
                   bk_bytes_text(e->memory[worst], need), bk_bytes_text(room->memory, have), room->memory_from, advice[worst]);
}

static bk_status short_of_disk(const char *what, double need, double have, const char *change, bk_error *err)
{
    char needs[BK_BYTES_TEXT], free[BK_BYTES_TEXT];
    return bk_fail(err, BK_ENOSPC, "%s need about %s of disk, %s are free: %s", what, bk_bytes_text(need, needs),
                   bk_bytes_text(have, free), change);
}

bk_status bk_room_check(const bk_room *room, const bk_estimate *e, const char *run_dir, bk_error *err)
{
    double run = e->targets_disk + e->model_disk - bytes_in(run_dir, 3);
    BK_TRY(check_memory(room, e, err));
    if (!room->cache_with_run && e->cache_disk > room->cache_disk)
        return short_of_disk("the stages", e->cache_disk, room->cache_disk, "set BRICK_CACHE to a folder with more",
                             err);
    if (!room->temporary_with_run && e->temporary_disk > room->temporary_disk)
        return short_of_disk("hidden states", e->temporary_disk, room->temporary_disk,
                             "set TMPDIR to a folder with more, or take fewer samples", err);
    if (room->cache_with_run) run += e->cache_disk;
    if (room->temporary_with_run) run += e->temporary_disk;
    if (run <= room->run_disk) return BK_OK;
    return short_of_disk(
        "targets and model", run, room->run_disk,
        "fewer data.training.samples, a shorter data.training.seqlen, store.keep: rolling, or --out on a larger disk",
        err);
}

bk_status bk_plan_found(const bk_run_config *c, bk_estimate *e, bk_error *err)
{
    char quick[65];
    for (int k = 0; k < BK_STAGE_KINDS; k++) {
        if (e->stage_disk[k] <= 0) continue;
        BK_TRY(bk_stage_quick((bk_stage_kind)k, c, quick, err));
        if (!bk_ledger_has((bk_stage_kind)k, quick)) continue;
        e->cache_disk -= e->stage_disk[k];
        e->stage_disk[k] = 0;
    }
    return BK_OK;
}

bk_status bk_plan_check(const bk_run_config *c, const bk_sample_counts *samples, const bk_rotation *rotation,
                        const bk_backend *be, const char *run_dir, bk_error *err)
{
    bk_estimate e;
    bk_room room;
    BK_TRY(bk_estimate_run(c, samples, rotation, be, NULL, &e, err));
    BK_TRY(bk_plan_found(c, &e, err));
    bk_room_measure(run_dir, &room);
    BK_TRY(bk_room_check(&room, &e, run_dir, err));
    return bk_cache_make(err);
}
