/* Which build of brick this is. */
#ifndef BK_PROGRAM_H
#define BK_PROGRAM_H

#include "autograd/error.h"
#include "autograd/version.h"

#define BK_PROGRAM_FILE "/proc/self/exe"

/* SHA-256 of the bytes of the program that runs: two builds that compute differently have the same version. */
bk_status bk_program_sha256(char hex[65], bk_error *err) BK_MUST_USE;

#endif
