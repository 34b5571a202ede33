/* brick inspect FILE [PATH]: what is in a dump, target or checkpoint file, or in any HDF5 file; one dataset measured;
 * two compared. */
#ifndef BK_INSPECT_H
#define BK_INSPECT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "autograd/error.h"

typedef struct bk_inspect_options {
    const char *file, *path; /* path NULL or "/": all of it */
    const char *against;     /* "FILE2", "FILE2:PATH2" or ":PATH2"; NULL: nothing to compare with */
    const char *model;       /* for the text of tokens; NULL: the one that the file names */
    const char *csv;         /* "tokens" or "channels"; NULL: no CSV */
    bool json;
    int64_t top;  /* length of lists; 0: 8 */
    int64_t bins; /* of the histogram; -1: 20 as text and none in JSON; 0: none */
    bool log;     /* bars of the histogram by log(1 + count) */
    int columns;  /* of the terminal; 0: 80 */
    bool utf8;    /* of the terminal */
} bk_inspect_options;

/* Tables, one JSON object or one CSV table. BK_EIO, BK_EFORMAT: a file; BK_EINVAL: no such path in it, or options that
 * do not go together; BK_ESHAPE: datasets of different shapes. */
bk_status bk_inspect(const bk_inspect_options *o, FILE *out, bk_error *err) BK_MUST_USE;

#endif
