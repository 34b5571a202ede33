#include "io/lock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BREAK ".break" /* behind the name of a lock: of the one that guards the removal of a dead owner's link */

/* Text of a link: "pid.start.space.boot.machine@host"; once it was "pid.start.space.boot@host". */
typedef struct process {
    long pid;
    unsigned long long start, space; /* when it began, in ticks since the host did; in which space of process numbers (containers have their own) */
    unsigned boot, machine;          /* which start of the host; which of those that have its name, 0 = not known */
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

/* /etc/machine-id is nobody's business outside of the machine: a hash tells machines apart as well. */
static unsigned machine_hash(void)
{
    char text[64];
    unsigned h = 2166136261u; /* FNV-1a */
    size_t digits = 0;
    read_small("/etc/machine-id", text, sizeof text);
    for (; strchr("0123456789abcdef", text[digits]) && text[digits]; digits++) h = (h ^ (unsigned char)text[digits]) * 16777619u;
    return digits == 32 ? h : 0; /* else it is empty, or "uninitialized" */
}

static void describe_myself(process *me)
{
    char text[64];
    struct stat space;
    *me = (process){.pid = (long)getpid(), .start = start_of((long)getpid())};
    me->space = stat("/proc/self/ns/pid", &space) == 0 ? (unsigned long long)space.st_ino : 0;
    if (read_small("/proc/sys/kernel/random/boot_id", text, sizeof text)) sscanf(text, "%8x", &me->boot);
    me->machine = machine_hash();
    if (gethostname(me->host, sizeof me->host - 1) != 0 || !*me->host) strcpy(me->host, "unknown");
    for (char *c = me->host; *c; c++)
        if (*c == '/' || *c <= ' ') *c = '_';
}

static void to_id(const process *p, char id[BK_LOCK_ID])
{
    snprintf(id, BK_LOCK_ID, "%ld.%llu.%llu.%08x.%08x@%s", p->pid, p->start, p->space, p->boot, p->machine, p->host);
}

static bool from_id(const char *id, process *p)
{
    if (sscanf(id, "%ld.%llu.%llu.%8x.%8x@%64s", &p->pid, &p->start, &p->space, &p->boot, &p->machine, p->host) == 6) return p->pid > 0;
    p->machine = 0;
    return sscanf(id, "%ld.%llu.%llu.%8x@%64s", &p->pid, &p->start, &p->space, &p->boot, p->host) == 5 && p->pid > 0;
}

static bool same_machine(const process *a, const process *b)
{
    return !strcmp(a->host, b->host) && (a->machine == b->machine || !a->machine || !b->machine);
}

static bool is_here(const process *p, const process *me)
{
    return same_machine(p, me) && p->boot == me->boot && p->space == me->space;
}

static bool is_dead(const process *p, const process *me)
{
    if (same_machine(p, me) && p->boot != me->boot) return true; /* the host was started again */
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

/* What stands at a path: something that is no lock of ours, nothing, a lock whose owner goes on, one whose owner has ended. */
enum { FOREIGN = -1, ABSENT, ALIVE, ENDED };

static int look(const char *path, const process *me, char id[BK_LOCK_ID], process *p)
{
    int there = read_link(path, id, p);
    return there < 0 ? FOREIGN : there == 0 ? ABSENT : is_dead(p, me) ? ENDED : ALIVE;
}

static bk_status no_lock(const char *path, bk_error *err)
{
    return bk_fail(err, BK_EFORMAT, "%s: is no lock that brick made; remove it", path);
}

/* Removes the link of a dead owner. Who does so holds PATH.break, or else might remove the link of the owner that came after. *busy: another
 * process does, and is told. */
static bk_status remove_guarded(const char *path, const char *guard, const char *dead, const process *me, bool *busy, process *other,
                                bk_error *err)
{
    char id[BK_LOCK_ID];
    process now;
    to_id(me, id);
    if (symlink(id, guard) == 0) {
        if (read_link(path, id, &now) == 1 && !strcmp(id, dead)) unlink(path);
        unlink(guard);
        return BK_OK;
    }
    if (errno != EEXIST) return bk_fail_errno(err, "%s: cannot lock", guard);
    int there = look(guard, me, id, &now);
    if (there == FOREIGN) return no_lock(guard, err);
    if (there == ENDED) unlink(guard);
    *busy = there == ALIVE;
    if (*busy) *other = now;
    return BK_OK;
}

static bk_status remove_dead(const char *path, const char *dead, const process *me, bool *busy, process *other, bk_error *err)
{
    char *guard;
    if (asprintf(&guard, "%s" BREAK, path) < 0) return bk_fail(err, BK_ENOMEM, "no memory for a lock");
    bk_status st = remove_guarded(path, guard, dead, me, busy, other, err);
    free(guard);
    return st;
}

static bk_status held(bk_lock *l, const char *path, bk_error *err)
{
    l->path = strdup(path);
    if (l->path) return BK_OK;
    unlink(path);
    return bk_fail(err, BK_ENOMEM, "no memory for a lock");
}

static void tell_owner(const process *p, const process *me, bool taking_over, bk_lock_owner *owner)
{
    strcpy(owner->host, p->host);
    owner->pid = p->pid;
    owner->here = is_here(p, me);
    owner->taking_over = taking_over;
}

bk_status bk_lock_try(bk_lock *l, const char *path, bk_lock_owner *owner, bk_error *err)
{
    process me, other = {0};
    char id[BK_LOCK_ID];
    bool busy = false; /* other is taking over */
    describe_myself(&me);
    *l = (bk_lock){.path = NULL};
    *owner = (bk_lock_owner){.pid = 0};
    to_id(&me, l->id);
    for (int i = 0; i < 1000; i++) { /* others come and go meanwhile */
        if (symlink(l->id, path) == 0) return held(l, path, err);
        if (errno != EEXIST) return bk_fail_errno(err, "%s: cannot lock", path);
        int there = look(path, &me, id, &other);
        if (there == FOREIGN) return no_lock(path, err);
        if (there == ABSENT) continue;
        if (!strcmp(id, l->id)) return held(l, path, err); /* the link was made, its answer lost on the network */
        busy = false;
        if (there == ALIVE) break;
        strcpy(owner->dead, id);
        BK_TRY(remove_dead(path, id, &me, &busy, &other, err));
        if (busy && !is_here(&other, &me)) break; /* one that is here has done in no time */
    }
    tell_owner(&other, &me, busy, owner);
    return BK_OK;
}

/* Whether the link of a dead owner cannot be removed, since another process is at it, which is told. */
static bool being_broken(const char *path, const process *me, process *other)
{
    char *guard, id[BK_LOCK_ID];
    process now;
    if (asprintf(&guard, "%s" BREAK, path) < 0) return false;
    bool busy = look(guard, me, id, &now) == ALIVE;
    free(guard);
    if (busy) *other = now;
    return busy;
}

bk_lock_state bk_lock_look(const char *path, bk_lock_owner *owner)
{
    process me, other = {0};
    char id[BK_LOCK_ID];
    describe_myself(&me);
    *owner = (bk_lock_owner){.pid = 0};
    int there = look(path, &me, id, &other);
    if (there < ALIVE) return BK_LOCK_NONE;
    bool busy = there == ENDED && being_broken(path, &me, &other);
    tell_owner(&other, &me, busy, owner);
    return there == ENDED && !busy ? BK_LOCK_DEAD : BK_LOCK_HELD;
}

void bk_lock_who(const bk_lock_owner *owner, const char *path, char *to, size_t size)
{
    const char *what = owner->taking_over ? ", which is taking the lock over from one that has ended" : "";
    if (owner->here) snprintf(to, size, "process %ld%s", owner->pid, what);
    else
        snprintf(to, size, "process %ld on host %s%s; if it is gone, remove %s%s", owner->pid, owner->host, what, path,
                 owner->taking_over ? BREAK : "");
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
