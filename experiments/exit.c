/* How the program ends: exit codes and signals. */
#include <signal.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/verbs.h"

int bk_exit_code(bk_status status)
{
    static const int codes[BK_STATUS_COUNT] = {
        [BK_OK] = BK_EXIT_OK,           [BK_EINVAL] = BK_EXIT_USAGE,    [BK_ESHAPE] = BK_EXIT_USAGE, [BK_ENOMEM] = BK_EXIT_SPACE,
        [BK_EUNSUP] = BK_EXIT_USAGE,    [BK_EIO] = BK_EXIT_INPUT,       [BK_EFORMAT] = BK_EXIT_INPUT, [BK_ENUMERIC] = BK_EXIT_NUMERIC,
        [BK_EDEVICE] = BK_EXIT_SPACE,   [BK_ENOSPC] = BK_EXIT_SPACE,    [BK_ECANCEL] = BK_EXIT_SIGNAL,
    };
    return codes[status];
}

int bk_exit_report(bk_status status, const bk_error *err)
{
    if (status) bk_log(BK_LOG_ERROR, "%s", err && err->msg[0] ? err->msg : bk_status_name(status));
    return bk_exit_code(status);
}

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    (void)number;
    if (signalled) _exit(BK_EXIT_SIGNAL);
    signalled = 1;
}

bool bk_cancelled(void)
{
    return signalled != 0;
}

bk_status bk_check_cancelled(bk_error *err)
{
    return signalled ? bk_fail(err, BK_ECANCEL, "interrupted") : BK_OK;
}

/* A write to a closed pipe or beyond the file-size limit must come back as EPIPE or EFBIG, not end the program. Of
 * children the end must be told, also when who started us ignored that of his. */
void bk_signals_install(void)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    static const int stopping[] = {SIGINT, SIGTERM, SIGHUP}, ignored[] = {SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        struct sigaction was;
        bool nohup = sigaction(stopping[i], NULL, &was) == 0 && was.sa_handler == SIG_IGN; /* nohup, background jobs */
        if (!nohup) sigaction(stopping[i], &stop, NULL);
    }
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) sigaction(ignored[i], &ignore, NULL);
    signal(SIGCHLD, SIG_DFL);
}
