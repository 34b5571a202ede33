#include "experiments/plugin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/schema.h"
#include "experiments/verbs.h"
#include "quant/plugin.h"

#define TRY_SECONDS 10 /* a trial takes a hundredth of this */

bk_opt_list bk_plugin_files;

/* What the child leaves behind, in memory that both see. */
typedef struct note {
    bk_error err;
    char doing[200];
    bool ended;
} note;

static bk_status try_all(const char *path, note *n)
{
    int first = bk_quantizer_count;
    snprintf(n->doing, sizeof n->doing, "loading it");
    BK_TRY(bk_plugin_load(path, &n->err));
    for (int i = first; i < bk_quantizer_count; i++)
        if (bk_quantizer_try(bk_quantizers[i], bk_backend_ref(BK_F32), n->doing, sizeof n->doing, &n->err))
            return bk_error_prefix(&n->err, "%s", path);
    return BK_OK;
}

/* Signals end it, and what the plugin prints does not mix with results. */
static _Noreturn void child(const char *path, note *n, pid_t parent)
{
    static const int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM};
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) signal(stopping[i], SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_WRONLY);
    if (getppid() != parent || null < 0 || dup2(null, STDOUT_FILENO) < 0) _exit(1);
    alarm(TRY_SECONDS);
    bk_status st = try_all(path, n);
    if (st && !n->err.code) st = bk_fail(&n->err, st, "%s: %s", path, bk_status_name(st));
    n->ended = true;
    _exit(0);
}

static bk_status say_death(const char *path, const note *n, int how, bk_error *err)
{
    if (!WIFSIGNALED(how))
        return bk_fail(err, BK_EFORMAT, "%s: ended the program (exit status %d) when it was tried (%s)", path,
                       WEXITSTATUS(how), n->doing);
    if (WTERMSIG(how) == SIGALRM)
        return bk_fail(err, BK_EFORMAT, "%s: did not come back within %d s when it was tried (%s)", path, TRY_SECONDS,
                       n->doing);
    return bk_fail(err, BK_EFORMAT, "%s: crashed when it was tried, signal %d, %s (%s)", path, WTERMSIG(how),
                   strsignal(WTERMSIG(how)), n->doing);
}

/* A crash of the plugin is that of a child. */
static bk_status try_plugin(const char *path, note *n, bk_error *err)
{
    int how = 0;
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return bk_fail_errno(err, "%s: no process to try it in", path);
    if (pid == 0) child(path, n, parent);
    if (waitpid(pid, &how, 0) != pid) return bk_fail_errno(err, "%s: trying it", path);
    BK_TRY(bk_check_cancelled(err));
    if (!n->ended) return say_death(path, n, how, err);
    return n->err.code ? bk_fail(err, n->err.code, "%s", n->err.msg) : BK_OK;
}

static bk_status load(const char *path, bk_error *err)
{
    note *n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (n == MAP_FAILED) return bk_fail_errno(err, "%s: trying it", path);
    bk_status st = try_plugin(path, n, err);
    munmap(n, sizeof *n);
    if (!st) st = bk_plugin_load(path, err);
    if (!st && bk_keys_complete(err)) st = bk_error_prefix(err, "%s", path);
    return st;
}

bk_status bk_plugins_load(bk_error *err)
{
    for (int i = 0; i < bk_plugin_files.n; i++) BK_TRY(load(bk_plugin_files.item[i], err));
    return BK_OK;
}
