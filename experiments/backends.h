/* The backends that a config can name (backends.def). */
#ifndef BK_BACKENDS_H
#define BK_BACKENDS_H

#include "autograd/backend.h"

typedef struct bk_backend_entry {
    const char *name, *about;
    const bk_backend *(*get)(void);
} bk_backend_entry;

extern const bk_backend_entry bk_backends[];
extern const int bk_backend_count;
const bk_backend *bk_backend_named(const char *name); /* NULL if there is none */

#endif
