/* Data of a shared object, read from its file: nothing of it is loaded or run. */
#ifndef BK_ELF_H
#define BK_ELF_H

#include <stddef.h>

#include "autograd/error.h"

/* The first `size` bytes of the exported variable `name` in a shared object for this kind of machine, as they stand
 * in the file: pointers in them mean nothing. text, len: the whole file; path is for messages. *found: bytes of the
 * variable, 0 if there is none of that name or it has no bytes in the file; `to` is filled if it has at least `size`.
 * BK_EFORMAT: no shared object, or a damaged one. */
bk_status bk_elf_variable(const char *path, const char *text, size_t len, const char *name, void *to, size_t size,
                          size_t *found, bk_error *err) BK_MUST_USE;

#endif
