/* Command-line options as tables: parsing, help and suggestions come from the same lines. */
#ifndef BK_OPTIONS_H
#define BK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "autograd/error.h"

typedef enum {
    BK_OPT_FLAG, /* bool *: set to true; no value */
    BK_OPT_INT,  /* int64_t *: in min..max */
    BK_OPT_REAL, /* double *: finite, in min..max */
    BK_OPT_TEXT, /* const char **: points into argv */
    BK_OPT_LIST  /* bk_opt_list *: may be given several times */
} bk_opt_type;

#define BK_OPT_LIST_MAX 256
typedef struct bk_opt_list {
    const char *item[BK_OPT_LIST_MAX];
    int n;
} bk_opt_list;

typedef struct bk_opt {
    const char *name; /* "--seqlen"; a positional argument has no dashes: "CONFIG" */
    bk_opt_type type;
    void *to;            /* holds the default before parsing */
    const char *metavar; /* "N"; NULL for flags */
    const char *initial; /* the default as the help prints it; NULL = none; "" = required */
    double min, max;     /* of INT and REAL; both 0 = any number */
    const char *about;
} bk_opt;

typedef struct bk_cli {
    const char *verb, *about; /* "eval", one line */
    const bk_opt *opts;       /* ends with a name of NULL. Positionals in order; the last one may be a LIST */
    const char *examples;     /* lines of the help, or NULL */
} bk_cli;

/* Parses argv[1..]. --opt value and --opt=value; `--` ends options; -h and --help print the help to stdout and set *help (nothing is
 * checked then). BK_EINVAL: unknown option (with suggestion), a missing or bad value, an option given twice, a required one
 * left out. */
bk_status bk_cli_parse(const bk_cli *cli, int argc, char **argv, bool *help, bk_error *err) BK_MUST_USE;
void bk_cli_help(const bk_cli *cli, FILE *to);

/* The tables live inside the verbs. A verb that is called as bk_verb_NAME(BK_CLI_ASK, (char **)ask), which no command line
 * can do, shows its table to `see` and does nothing else: completion and manual come from there. */
#define BK_CLI_ASK (-1)
typedef struct bk_cli_ask {
    void (*see)(void *user, const bk_cli *cli);
    void *user;
} bk_cli_ask;

bool bk_opt_is_positional(const bk_opt *o);
bool bk_opt_is_required(const bk_opt *o);
/* "usage: brick VERB ..." without the first word, on one line. */
void bk_cli_usage(const bk_cli *cli, FILE *to);

/* What nearly every verb does first: parse, and load the plugins; on help or error *code is the exit code and the result is false. */
bool bk_cli_begin(const bk_cli *cli, int argc, char **argv, int *code);

#endif
