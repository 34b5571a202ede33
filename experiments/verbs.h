/* The program's verbs, its exit codes and its signals. */
#ifndef BK_VERBS_H
#define BK_VERBS_H

#include <stdbool.h>

#include "autograd/error.h"

/* int bk_verb_NAME(int argc, char **argv): argv[0] is the verb; returns the exit code. */
#define BK_VERB(name, about) int bk_verb_##name(int argc, char **argv);
#include "experiments/verbs.def"

typedef struct bk_verb {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} bk_verb;

extern const bk_verb bk_verbs[]; /* of verbs.def */
extern const int bk_verb_count;
/* The heading of the group that begins with this verb; NULL if none does. */
const char *bk_verb_heading(const char *name);

/* What the help and the manual say of the environment and of the exit codes. */
typedef struct bk_term {
    const char *name, *about;
} bk_term;
extern const bk_term bk_environment[], bk_exit_meanings[]; /* end with a name of NULL */

typedef enum {
    BK_EXIT_OK = 0,
    BK_EXIT_USAGE = 2,
    BK_EXIT_INPUT = 3,
    BK_EXIT_NUMERIC = 4,
    BK_EXIT_SPACE = 5,
    BK_EXIT_SIGNAL = 130
} bk_exit;

int bk_exit_code(bk_status status);
/* Prints "brick: message" to stderr (and the log) unless status is BK_OK; returns the exit code. */
int bk_exit_report(bk_status status, const bk_error *err);

/* True once SIGINT, SIGTERM or SIGHUP came; a second one ends the program at once. */
bool bk_cancelled(void);
/* BK_ECANCEL with a message if it did. */
bk_status bk_check_cancelled(bk_error *err) BK_MUST_USE;
void bk_signals_install(void);

#endif
