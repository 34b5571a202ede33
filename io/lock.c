#include "io/lock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Text of a link: "pid.start.space.boot@host". */
typedef struct process {
    long pid;
    unsigned long long start, space; /* when it began, in ticks since the host did; in which space of process numbers (containers have their own) */
    unsigned boot;                   /* which start of the host */
    char host[65];
} process;

static size_t read_small(const char *path, char *to, size_t room)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(to, 1, room - 1, f) : 0;
    to[n] = 0;
    if (f) fclose(f);
    return n;
}

/* Ticks at which a process began; 0 if that cannot be known, 1 if it has ended and only waits for its parent. */
static unsigned long long start_of(long pid)
{
    char path[64], text[1024], state = 0;
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_small(path, text, sizeof text);
    const char *name_end = strrchr(text, ')'); /* the name before it may hold anything */
    if (!name_end || sscanf(name_end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state, &start) != 2) return 0;
    return state == 'Z' || state == 'X' ? 1 : start;
}

static void describe_myself(process *me)
{
    char text[64];
    struct stat space;
    *me = (process){.pid = (long)getpid(), .start = start_of((long)getpid())};
    me->space = stat("/proc/self/ns/pid", &space) == 0 ? (unsigned long long)space.st_ino : 0;
    if (read_small("/proc/sys/kernel/random/boot_id", text, sizeof text)) sscanf(text, "%8x", &me->boot);
    if (gethostname(me->host, sizeof me->host - 1) != 0 || !*me->host) strcpy(me->host, "unknown");
    for (char *c = me->host; *c; c++)
        if (*c == '/' || *c <= ' ') *c = '_';
}

static void to_id(const process *p, char id[BK_LOCK_ID])
{
    snprintf(id, BK_LOCK_ID, "%ld.%llu.%llu.%08x@%s", p->pid, p->start, p->space, p->boot, p->host);
}

static bool from_id(const char *id, process *p)
{
    return sscanf(id, "%ld.%llu.%llu.%8x@%64s", &p->pid, &p->start, &p->space, &p->boot, p->host) == 5 && p->pid > 0;
}

static bool is_here(const process *p, const process *me)
{
    return !strcmp(p->host, me->host) && p->boot == me->boot && p->space == me->space;
}

static bool is_dead(const process *p, const process *me)
{
    if (!strcmp(p->host, me->host) && p->boot != me->boot) return true; /* the host was started again */
    if (!is_here(p, me)) return false;
    if (kill((pid_t)p->pid, 0) != 0 && errno == ESRCH) return true;
    unsigned long long start = start_of(p->pid);
    return start && start != p->start; /* another one has its number */
}

/* 1: read, 0: there is none (any more), negative: no lock of ours stands there. */
static int read_link(const char *path, char id[BK_LOCK_ID], process *p)
{
    ssize_t n = readlink(path, id, BK_LOCK_ID - 1);
    if (n < 0) return errno == ENOENT ? 0 : -1;
    id[n] = 0;
    return from_id(id, p) ? 1 : -1;
}

/* Removes the link of a dead owner. Who does so holds PATH.break, or else might remove the link of the owner that came after. */
static void remove_dead(const char *path, const char *dead, const process *me)
{
    char *guard, id[BK_LOCK_ID];
    process other;
    if (asprintf(&guard, "%s.break", path) < 0) return;
    to_id(me, id);
    if (symlink(id, guard) == 0) {
        if (read_link(path, id, &other) == 1 && !strcmp(id, dead)) unlink(path);
        unlink(guard);
    } else if (read_link(guard, id, &other) == 1 && is_dead(&other, me)) {
        unlink(guard);
    }
    free(guard);
}

static bk_status held(bk_lock *l, const char *path, bk_error *err)
{
    l->path = strdup(path);
    if (l->path) return BK_OK;
    unlink(path);
    return bk_fail(err, BK_ENOMEM, "no memory for a lock");
}

static void tell_owner(const process *p, const process *me, bk_lock_owner *owner)
{
    strcpy(owner->host, p->host);
    owner->pid = p->pid;
    owner->here = is_here(p, me);
}

bk_status bk_lock_try(bk_lock *l, const char *path, bk_lock_owner *owner, bk_error *err)
{
    process me, other = {0};
    char id[BK_LOCK_ID];
    describe_myself(&me);
    *l = (bk_lock){.path = NULL};
    *owner = (bk_lock_owner){.pid = 0};
    to_id(&me, l->id);
    for (int i = 0; i < 1000; i++) { /* others come and go meanwhile */
        if (symlink(l->id, path) == 0) return held(l, path, err);
        if (errno != EEXIST) return bk_fail_errno(err, "%s: cannot lock", path);
        int there = read_link(path, id, &other);
        if (there < 0) return bk_fail(err, BK_EFORMAT, "%s: is no lock that brick made; remove it", path);
        if (there == 0) continue;
        if (!strcmp(id, l->id)) return held(l, path, err); /* the link was made, its answer lost on the network */
        if (!is_dead(&other, &me)) break;
        remove_dead(path, id, &me);
        strcpy(owner->dead, id);
    }
    tell_owner(&other, &me, owner);
    return BK_OK;
}

bk_lock_state bk_lock_look(const char *path, bk_lock_owner *owner)
{
    process me, other = {0};
    char id[BK_LOCK_ID];
    describe_myself(&me);
    *owner = (bk_lock_owner){.pid = 0};
    if (read_link(path, id, &other) != 1) return BK_LOCK_NONE;
    tell_owner(&other, &me, owner);
    return is_dead(&other, &me) ? BK_LOCK_DEAD : BK_LOCK_HELD;
}

void bk_lock_release(bk_lock *l)
{
    char id[BK_LOCK_ID];
    process other;
    if (!l->path) return;
    if (read_link(l->path, id, &other) == 1 && !strcmp(id, l->id)) unlink(l->path); /* somebody may have removed ours by hand */
    free(l->path);
    l->path = NULL;
}
