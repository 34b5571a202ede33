/* Tests of the program itself, as a child process. BRICK names it; without, it is looked for where the Makefile puts it. */
#ifndef BK_TESTS_E2E_H
#define BK_TESTS_E2E_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "experiments/synth.h"
#include "io/json.h"

/* Unchecked fixture: a folder with `m`, a made model of the shape tiny with texts of 8 documents; and its removal. */
void e2e_begin(void);
void e2e_end(void);
/* e2e_begin with one finished run of the made model for all tests, ../run. */
void e2e_begin_run(void);
/* Checked fixture: makes a fresh folder beside m the working directory (so the model is ../m), with stages in its `cache`. */
void e2e_enter(void);
void e2e_leave(void);

/* run.yaml: a run of well under a second on the model in `model`. `more` = lines of YAML at its end, or NULL. */
void e2e_config(const char *model, const char *more);

/* Starts `brick <words>`, split at blanks; output goes to the files `out` and `err`. */
pid_t e2e_start(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Exit status, or 128 + signal. A child that lives longer than a minute is ended and fails the test. */
int e2e_wait(pid_t pid);
/* Both, and demands the exit status. */
void e2e_brick(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Demands that the last program said this on stderr; e2e_silent: that it did not. */
void e2e_said(const char *words);
void e2e_silent(const char *words);
/* Of programs started from now on: what the preloaded tests/preload/stop_at.c shall do; NULL = nothing. e2e_limit: bytes of a file, 0 = any;
 * e2e_memory: bytes of address space, 0 = any, false where a sanitizer needs all there is. */
void e2e_stop_at(const char *at, int signal);
void e2e_limit(long bytes);
bool e2e_memory(long bytes);
void e2e_stdout(int fd); /* instead of the file; -1 = the file again */
void e2e_stderr(int fd);
/* A pseudo-terminal, which hands on what it gets as it is: the end to read from, in *other the one for programs. -1 where there are none,
 * which is said: the test is left out. */
int e2e_terminal(int *other);
void e2e_closed(bool closed); /* 0, 1 and 2, all three */
/* From here on another build of the same version: its bytes differ, what it computes does not. */
void e2e_other_build(void);
/* Calls of rename, fsync and clock_gettime by `brick <words>`, which must end well. */
void e2e_count(long calls[3], const char *words);

/* Says that so many tests were left out, and why, on a line that scripts/test.sh shows and counts. True where nothing may be
 * left out that can be installed: with CI in the environment. */
bool e2e_skipped(int tests, const char *why);

/* Demands that a file or folder is there, or is not. */
void e2e_exists(const char *path);
void e2e_absent(const char *path);

/* Whole files and folders; texts are malloc'd. */
char *e2e_text(const char *path);
void e2e_write(const char *path, const char *text);
void e2e_append(const char *path, const char *text);
void e2e_replace(const char *path, const char *from, const char *to); /* once; it must be there */
void e2e_flip(const char *path, long offset);                         /* one bit; negative: from the end */
void e2e_copy_tree(const char *from, const char *to);
void e2e_copy_model(void); /* of the made model to `m`, for changes, with a run.yaml for it */
void e2e_remove(const char *path);
/* Every file of a folder with its hash, sorted; locks, the ledger, progress.json and its own file `listing` left out. */
char *e2e_listing(const char *dir);
/* Demands equal folders. */
void e2e_same_tree(const char *a, const char *b);
/* Demands that two finished runs came to the same results: model, prefix, summary and metrics without times, no other files. */
void e2e_same_run(const char *a, const char *b);
double e2e_number(const char *json, const char *key, const char *inner); /* of a file: key, or key.inner; NaN if absent */
double e2e_row(const char *dir, const char *name);                       /* perplexity of a row of summary.json */

/* A made model whose weights a test may change before e2e_synth_write frees it into `dir`, without texts. */
bk_synth *e2e_synth(const char *shape);
void e2e_synth_write(bk_synth *s, const char *dir);

#endif
