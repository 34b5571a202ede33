/* Demands that a call went well: its status, and the error that it was given. Check names the line of the caller. */
#ifndef BK_TESTS_OK_H
#define BK_TESTS_OK_H

#include <check.h>

#include "autograd/error.h"

#define ok(STATUS, ERR)                                                                                                \
    do {                                                                                                               \
        bk_status ok_status = (STATUS);                                                                                \
        const bk_error *ok_error = (ERR);                                                                              \
        ck_assert_msg(ok_status == BK_OK && ok_error->code == BK_OK, "%s: %s",                                         \
                      bk_status_name(ok_status ? ok_status : ok_error->code), ok_error->msg);                          \
    } while (0)

#endif
