/* brick VERB ...: finds the verb, runs it, and looks whether what it printed arrived. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "experiments/version.h"

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} verbs[] = {
#define BK_VERB(name, about) {#name, about, bk_verb_##name},
#include "experiments/verbs.def"
#undef BK_VERB
};
#define N_VERBS (sizeof verbs / sizeof verbs[0])

/* OpenBLAS maps work memory for every thread before main, and versions below 0.3.30 try for ever where the system refuses it. What
 * stands in the program's .preinit_array runs before its libraries start: it sets a clock of processor time, which main stops. */
#define START_SECONDS 3 /* a start takes a hundredth of this */

static void start_hangs(int number)
{
    static const char text[] = "brick: no memory for the start of OpenBLAS (128 MiB of address space for each thread): raise the limit "
                               "(ulimit -v) or use fewer threads (OMP_NUM_THREADS=1)\n";
    ssize_t told = write(2, text, sizeof text - 1);
    (void)number, (void)told;
    _exit(BK_EXIT_SPACE);
}

static void set_clock(time_t seconds, void (*handler)(int))
{
    const struct sigaction at_end = {.sa_handler = handler};
    const struct itimerval clock = {.it_value.tv_sec = seconds};
    sigaction(SIGPROF, &at_end, NULL);
    setitimer(ITIMER_PROF, &clock, NULL);
}

static void watch_start(int argc, char **argv, char **env)
{
    (void)argc, (void)argv, (void)env;
    set_clock(START_SECONDS, start_hangs);
}
static void (*const before_libraries)(int, char **, char **) __attribute__((section(".preinit_array"), used)) = watch_start;

static void help(FILE *to)
{
    fputs("usage: brick VERB [arguments]\n\nblock reconstruction of quantized Llama-style models\n\n", to);
    for (size_t i = 0; i < N_VERBS; i++) fprintf(to, "  %-10s %s\n", verbs[i].name, verbs[i].about);
    fputs("\nbrick VERB --help tells its options; brick --version the version.\n"
          "Results go to stdout, progress and messages to stderr.\n"
          "Environment: BRICK_LOG, BRICK_CACHE, OMP_NUM_THREADS, NO_COLOR.\n"
          "Exit codes: 0 done, 2 usage or config, 3 input file, 4 numerics, 5 out of memory or disk, 130 interrupted.\n", to);
}

static int unknown_verb(const char *typed)
{
    const char *names[N_VERBS];
    char near[128];
    for (size_t i = 0; i < N_VERBS; i++) names[i] = verbs[i].name;
    bk_error err = {0};
    bk_status status = bk_fail(&err, BK_EINVAL, "unknown verb '%.60s'%s (brick --help lists them)", typed,
                               bk_suggest_text(typed, names, N_VERBS, near, sizeof near));
    return bk_exit_report(status, &err);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return BK_EXIT_USAGE;
    }
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return BK_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("brick " BK_VERSION);
        return BK_EXIT_OK;
    }
    for (size_t i = 0; i < N_VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
    return unknown_verb(argv[1]);
}

/* A result that did not reach stdout is no success. A reader that left early (head) gets the code that SIGPIPE would have given. */
static int flush_results(int code)
{
    errno = ENOSPC; /* what an earlier failed write most likely was */
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    struct pollfd out = {.fd = 1, .events = POLLOUT};
    bool closed = errno == EPIPE || (poll(&out, 1, 0) == 1 && out.revents & POLLERR);
    if (closed) return code ? code : 128 + SIGPIPE;
    bk_error err = {0};
    bk_status status = bk_fail_errno(&err, "standard output");
    bk_exit_report(status, &err);
    return code ? code : BK_EXIT_SPACE;
}

int main(int argc, char **argv)
{
    bk_error err = {0};
    set_clock(0, SIG_DFL);
    bk_signals_install();
    bk_status status = bk_log_init(&err);
    if (status) return bk_exit_report(status, &err);
    return flush_results(dispatch(argc, argv));
}
