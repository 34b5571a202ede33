/* What the other end of a file descriptor can show. */
#ifndef BK_TERMINAL_H
#define BK_TERMINAL_H

#include <stdbool.h>

/* True if it obeys control characters, of colours and of redrawing: a terminal, and not one that calls itself dumb. */
bool bk_terminal(int fd);
/* Characters of a line; 80 when the terminal does not tell. */
int bk_terminal_columns(int fd);

#endif
