/* brick inspect FILE [PATH] [--json]: what is in a dump, target or checkpoint file, or in any HDF5 file. */
#ifndef BK_INSPECT_H
#define BK_INSPECT_H

#include <stdbool.h>
#include <stdio.h>

#include "autograd/error.h"

/* Prints the tree of a file from `path` on (NULL or "/": all of it); for a dataset of numbers its statistics too.
 * Tables, or one JSON object. BK_EIO, BK_EFORMAT: the file; BK_EINVAL: no such path in it. */
bk_status bk_inspect(const char *file, const char *path, bool json, FILE *out, bk_error *err) BK_MUST_USE;

#endif
