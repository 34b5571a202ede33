/* What the tests of brick inspect share: a folder of their own, what is printed, and the verb as a process. */
#ifndef BK_INSPECT_RUN_H
#define BK_INSPECT_RUN_H

#include <check.h>
#include <string.h>

#include "experiments/inspect.h"
#include "io/json.h"
#include "io/store.h"

extern bk_error inspect_err;

#define DONE(call) ck_assert_msg((call) == BK_OK, "%s", inspect_err.msg)
#define HAS(text, part) ck_assert_msg(strstr(text, part) != NULL, "no '%s' in:\n%s", part, text)
#define HAS_NOT(text, part) ck_assert_msg(strstr(text, part) == NULL, "'%s' in:\n%s", part, text)

TCase *inspect_case(Suite *suite, const char *name); /* with a folder for each test */
const char *inspect_file(const char *name);          /* a path in it, good for the next few calls */

/* What bk_inspect prints, malloc'd; it must succeed. */
char *inspect_shown(bk_inspect_options o);
/* The same as JSON. */
bk_json *inspect_json(bk_inspect_options o);

/* brick inspect FILE ... as a process: its exit code, -1 for a signal; what it wrote to stderr is in *said. */
int inspect_verb(const char *const *args, char said[2048]);
#define VERB(said, ...) inspect_verb((const char *const[]){__VA_ARGS__, NULL}, said)

#endif
