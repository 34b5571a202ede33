/* A lock between processes, on one host or on several that share a file system: a symbolic link whose text names its owner. Making a link is
 * atomic on network file systems too, needs no service for locks, and the text is there as soon as the link is.
 * An owner that ended without releasing it (kill, crash, restart of the host) is noticed by processes of the same host, which take over. Hosts are
 * told apart by their names and by /etc/machine-id: two that have both in common would take over each other's locks. */
#ifndef BK_LOCK_H
#define BK_LOCK_H

#include <stdbool.h>
#include <stddef.h>

#include "autograd/error.h"

#define BK_LOCK_ID 160
#define BK_LOCK_WHO 4800 /* room for what bk_lock_who says of a path of 4096 bytes */

typedef struct bk_lock {
    char *path;          /* NULL: not held */
    char id[BK_LOCK_ID]; /* this process: host, process number and the time it was started; fit for a file name */
} bk_lock;

/* Who holds a lock that could not be had. */
typedef struct bk_lock_owner {
    char host[65];
    long pid;
    bool here;             /* on this host: noticed when it ends */
    bool taking_over;      /* it does not hold the lock but PATH.break, which guards the removal of a dead owner's link */
    char dead[BK_LOCK_ID]; /* id of the last owner that was found dead, also if its link is not removed yet; "" if there was none. Also set when
                              the lock was had */
} bk_lock_owner;

/* Takes the lock, or leaves l->path NULL and tells the owner; never waits. A process that holds it gets it again, and releases it once.
 * What stands at PATH and is no lock: BK_EFORMAT. */
bk_status bk_lock_try(bk_lock *l, const char *path, bk_lock_owner *owner, bk_error *err) BK_MUST_USE;
/* Looks without touching it, and tells the owner. One on another host is taken for alive; what is no lock counts as
 * none. */
typedef enum { BK_LOCK_NONE, BK_LOCK_HELD, BK_LOCK_DEAD } bk_lock_state;
bk_lock_state bk_lock_look(const char *path, bk_lock_owner *owner);
/* "process 7", or "process 7 on host x; if it is gone, remove PATH": for messages about an owner that was told. */
void bk_lock_who(const bk_lock_owner *owner, const char *path, char *to, size_t size);
void bk_lock_release(bk_lock *l); /* one that is not held is legal */

#endif
