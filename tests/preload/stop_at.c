/* LD_PRELOAD: sends the program a signal at the N-th call of a function, so that tests end it at a moment of their choice.
 * STOP_AT="rename:3" or "fsync:3" (before the call), "clock:3" (of clock_gettime, which every part of a run calls); STOP_SIGNAL: its number
 * (9); STOP_COUNT: a file that a program which ends by itself writes its number of renames, fsyncs and clocks to. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RENAME, FSYNC, CLOCK, KINDS };
static long calls[KINDS];

static void pass(int kind, const char *prefix)
{
    long n = __atomic_add_fetch(&calls[kind], 1, __ATOMIC_RELAXED);
    const char *at = getenv("STOP_AT"), *number = getenv("STOP_SIGNAL");
    if (!at || strncmp(at, prefix, strlen(prefix)) != 0 || atol(at + strlen(prefix)) != n) return;
    kill(getpid(), number ? atoi(number) : SIGKILL);
}

int rename(const char *from, const char *to)
{
    pass(RENAME, "rename:");
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int fsync(int fd)
{
    pass(FSYNC, "fsync:");
    return (int)syscall(SYS_fsync, fd);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    pass(CLOCK, "clock:");
    return (int)syscall(SYS_clock_gettime, id, t);
}

__attribute__((destructor)) static void count(void)
{
    const char *path = getenv("STOP_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld %ld %ld\n", calls[RENAME], calls[FSYNC], calls[CLOCK]);
    fclose(f);
}
