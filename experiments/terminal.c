#include "experiments/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool bk_terminal(int fd)
{
    const char *kind = getenv("TERM");
    return isatty(fd) && !(kind && strcmp(kind, "dumb") == 0);
}

int bk_terminal_columns(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}
