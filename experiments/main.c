/* brick VERB ...: finds the verb, runs it, and looks whether what it printed arrived. */
#include <errno.h>
#include <fcntl.h>
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

static void print_terms(FILE *to, const char *title, const bk_term *terms)
{
    fprintf(to, "\n%s:\n", title);
    for (const bk_term *t = terms; t->name; t++) fprintf(to, "  %-16s %s\n", t->name, t->about);
}

static void help(FILE *to)
{
    fputs("usage: brick VERB [arguments]\n\nblock reconstruction of quantized Llama-style models\n", to);
    for (int i = 0; i < bk_verb_count; i++) {
        const char *heading = bk_verb_heading(bk_verbs[i].name);
        if (heading) fprintf(to, "\n%s:\n", heading);
        fprintf(to, "  %-10s %s\n", bk_verbs[i].name, bk_verbs[i].about);
    }
    fputs("\nbrick VERB --help tells its options, with examples; brick --version the version.\n"
          "Results go to stdout, progress and messages to stderr.\n",
          to);
    print_terms(to, "environment", bk_environment);
    print_terms(to, "exit codes", bk_exit_meanings);
}

static int unknown_verb(const char *typed)
{
    const char *names[64];
    char near[128];
    int n = 0;
    for (; n < bk_verb_count && n < 64; n++) names[n] = bk_verbs[n].name;
    bk_error err = {0};
    bk_status status = bk_fail(&err, BK_EINVAL, "unknown verb '%.60s'%s (brick --help lists them)", typed,
                               bk_suggest_text(typed, names, (size_t)n, near, sizeof near));
    return bk_exit_report(status, &err);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return BK_EXIT_USAGE;
    }
    if (argc == 3 && strcmp(argv[1], "help") == 0 && strcmp(argv[2], "help") != 0)
        return dispatch(3, (char *[]){argv[0], argv[2], "--help", NULL});
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return BK_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("brick " BK_VERSION);
        return BK_EXIT_OK;
    }
    for (int i = 0; i < bk_verb_count; i++)
        if (strcmp(argv[1], bk_verbs[i].name) == 0) return bk_verbs[i].run(argc - 1, argv + 1);
    return unknown_verb(argv[1]);
}

/* Where 0, 1 or 2 is closed, the next file that is opened takes its place and gets what is printed: /dev/null takes it first, for reading,
 * so that printing still fails. */
static void hold_standard_files(void)
{
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

/* A result that did not reach stdout is no success. A reader that left early (head) gets the code that SIGPIPE would have given. */
static int flush_results(int code)
{
    errno = (fcntl(1, F_GETFL) & O_ACCMODE) == O_RDONLY ? EBADF : ENOSPC; /* what an earlier failed write most likely was */
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
    hold_standard_files();
    bk_signals_install();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* who reads a pipe gets whole lines, as they come */
    bk_status status = bk_log_init(&err);
    if (status) return bk_exit_report(status, &err);
    return flush_results(dispatch(argc, argv));
}
