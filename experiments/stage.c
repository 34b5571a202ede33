#include "experiments/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "experiments/log.h"
#include "experiments/progress.h"
#include "experiments/stage_kinds.h"
#include "experiments/verbs.h"
#include "io/sums.h"

#define DEPENDS_MAX ((size_t)1 << 24)

const char *bk_cache_root(void)
{
    const char *root = getenv("BRICK_CACHE");
    return root && *root ? root : "cache";
}

bk_status bk_cache_make(bk_error *err)
{
    return bk_mkdir_p(bk_cache_root(), err) ? bk_error_prefix(err, "the folder of stages (BRICK_CACHE moves it)") : BK_OK;
}

static bk_status hash_of(const char *name, const char *depends, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, name, strlen(name) + 1);
    bk_sha256_put(h, depends, strlen(depends));
    bk_sha256_end(h, hex);
    return BK_OK;
}

/* A stage that is there counts if it is the one that is asked for and its files are as they were written. */
static bk_status check(const bk_stage *s, const char *depends, bk_error *err)
{
    char path[BK_STAGE_FILE], *text;
    size_t len;
    BK_TRY(bk_sums_check(s->dir, err));
    snprintf(path, sizeof path, "%s/depends.txt", s->dir);
    BK_TRY(bk_file_slurp(path, DEPENDS_MAX, &text, &len, err));
    bool same = !strcmp(text, depends);
    free(text);
    return same ? BK_OK : bk_fail(err, BK_EFORMAT, "%s: is the stage of something else", path);
}

static void work_of(const bk_stage *s, const char *owner, char *to, size_t size)
{
    snprintf(to, size, "%s.%s.partial", s->dir, owner);
}

static void say_whom(const bk_stage *s, const bk_lock_owner *o)
{
    char path[BK_STAGE_PATH + 8], who[BK_LOCK_WHO];
    snprintf(path, sizeof path, "%s.lock", s->dir);
    bk_lock_who(o, path, who, sizeof who);
    bk_log(BK_LOG_INFO, "%s: waiting for the one that makes it (%s)", s->dir, who);
}

/* One attempt at the lock. Work of an owner that died is removed with it. */
static bk_status try_lock(bk_stage *s, bk_lock_owner *owner, bk_error *err)
{
    char path[BK_STAGE_PATH + 8], left[BK_STAGE_WORK];
    snprintf(path, sizeof path, "%s.lock", s->dir);
    bk_status st = bk_lock_try(&s->lock, path, owner, err);
    if (!*owner->dead) return st;
    work_of(s, owner->dead, left, sizeof left);
    bk_status cleaned = bk_remove_tree(left, st ? NULL : err);
    return st ? st : cleaned;
}

/* Tells one folder of that name from the next; 0: there is none. */
static ino_t folder_at(const char *dir)
{
    struct stat s;
    return stat(dir, &s) == 0 && S_ISDIR(s.st_mode) ? s.st_ino : 0;
}

/* Until the stage is there, or it is ours to make. What was found at last is looked at under the lock: another may have
 * made it meanwhile. Who waits reads a damaged one once. */
static bk_status find_or_lock(bk_stage *s, const char *depends, bk_error *err)
{
    const struct timespec pause = {0, 100000000};
    bk_error why = {0};
    long waiting_for = 0;
    ino_t damaged = 0;
    for (;;) {
        ino_t there = folder_at(s->dir);
        if (there && (there != damaged || s->lock.path)) {
            bk_error_clear(&why);
            s->done = check(s, depends, &why) == BK_OK;
            damaged = there;
            if (!s->done && s->lock.path) bk_log(BK_LOG_WARN, "%s; the stage is made anew", why.msg);
        }
        if (s->done || s->lock.path) return BK_OK;
        bk_lock_owner owner;
        BK_TRY(try_lock(s, &owner, err));
        if (s->lock.path) continue;
        if (owner.pid != waiting_for) say_whom(s, &owner);
        waiting_for = owner.pid;
        BK_TRY(bk_check_cancelled(err));
        nanosleep(&pause, NULL);
    }
}

bk_status bk_stage_open(bk_stage *s, const char *name, const char *depends, bk_error *err)
{
    const char *root = bk_cache_root();
    *s = (bk_stage){.done = false};
    snprintf(s->name, sizeof s->name, "%s", name);
    BK_TRY(hash_of(name, depends, s->hash, err));
    if (strlen(root) + strlen(name) + BK_LOCK_ID + 32 > 4096) return bk_fail(err, BK_EINVAL, "BRICK_CACHE is too long");
    snprintf(s->dir, sizeof s->dir, "%s/%s-%.16s", root, name, s->hash);
    BK_TRY(bk_cache_make(err));
    BK_TRY(find_or_lock(s, depends, err));
    if (s->done) return BK_OK;
    s->began = bk_seconds();
    char path[BK_STAGE_FILE];
    work_of(s, s->lock.id, s->work, sizeof s->work);
    BK_TRY(bk_remove_tree(s->work, err));
    BK_TRY(bk_mkdir_p(s->work, err));
    snprintf(path, sizeof path, "%s/depends.txt", s->work);
    return bk_write_file(path, depends, strlen(depends), err);
}

bk_status bk_stage_commit(bk_stage *s, bk_error *err)
{
    char old[BK_STAGE_FILE];
    BK_TRY(bk_sums_write(s->work, err));
    if (bk_is_dir(s->dir)) { /* the damaged one: out of the way, not gone before the new one has its name */
        snprintf(old, sizeof old, "%s/old", s->work);
        BK_TRY(bk_rename(s->dir, old, err));
    }
    BK_TRY(bk_rename(s->work, s->dir, err));
    s->done = true;
    snprintf(old, sizeof old, "%s/old", s->dir);
    BK_TRY(bk_remove_tree(old, err));
    bk_error why = {0};
    if (bk_ledger_add(s, &why)) bk_log(BK_LOG_WARN, "%s; the stage is there, only its line in the ledger is not", why.msg);
    return BK_OK;
}

void bk_stage_close(bk_stage *s)
{
    if (!s->lock.path) return;
    if (!s->done) (void)!bk_remove_tree(s->work, NULL);
    bk_lock_release(&s->lock);
}
