/* Completion for shells and the manual page, made from the tables that parse: verbs.def, the options of every verb, the
 * keys of a config. */
#ifndef BK_COMPLETION_H
#define BK_COMPLETION_H

#include <stdio.h>

#include "experiments/options.h"
#include "experiments/schema.h"

typedef enum {
    BK_COMPLETE_NOTHING, /* numbers and free text */
    BK_COMPLETE_WORDS,   /* one of `words` */
    BK_COMPLETE_COMMAS,  /* some of `words`, with commas between */
    BK_COMPLETE_FILES,   /* files with one of the endings in `words`, and folders; no endings: any file */
    BK_COMPLETE_FOLDERS,
    BK_COMPLETE_SETTING /* key=value of a config */
} bk_complete_kind;

typedef struct bk_complete {
    bk_complete_kind kind;
    char words[1000]; /* with blanks between */
} bk_complete;

/* What may stand where an option wants its value, or for a positional: told by its metavar (a positional without one:
 * by its name). */
void bk_complete_option(const bk_opt *o, bk_complete *out);
/* What may be the value of a key. */
void bk_complete_key(const bk_key *k, bk_complete *out);

/* Shows the table of a verb. */
void bk_verb_table(const char *verb, void (*see)(void *user, const bk_cli *cli), void *user);

void bk_completion_bash(FILE *to);
void bk_completion_zsh(FILE *to);
/* brick.1, in roff. */
void bk_manual(FILE *to);

#endif
