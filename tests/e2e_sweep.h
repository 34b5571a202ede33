/* What tests of `brick sweep` share. The sweep is sweep.yaml in the working directory; its folder is mostly `a`. */
#ifndef BK_TESTS_E2E_SWEEP_H
#define BK_TESTS_E2E_SWEEP_H

#include <sys/types.h>

#include "io/json.h"

#define SWEEP_TWELVE "base: run.yaml\ngrid:\n  train.epochs: [1, 2, 3]\n  train.lr_quant: {log: [1e-4, 1e-1, 4]}\n"
#define SWEEP_FOUR "base: run.yaml\ngrid:\n  train.epochs: [1, 2]\n  train.lr_quant: [1e-3, 1e-2]\n"

void sweep_file(const char *yaml);
/* Starts a sweep into `a` whose messages can be waited for. */
pid_t sweep_begin(const char *words);
/* Until a file has n times these words. */
void sweep_wait_until(const char *path, const char *words, int n);

/* Results. */
bk_json *sweep_parse(const char *text);
char *sweep_cell(const char *dir, int row, const char *column); /* of results.jsonl, as text; malloc'd */
void sweep_expect_cell(const char *dir, int row, const char *column, const char *value);
int sweep_count(const char *path, const char *words); /* how often they stand in a file; 0 if there is none */
void sweep_expect_same(const char *a, const char *b); /* but for what depends on clock, machine and name of the folder */
/* `a` becomes `full` and the stages full-cache; the latter runs the sweep before. */
void sweep_set_aside(void);
void sweep_reference(void);

/* Plan and ledger. */
void sweep_plan(void);
int sweep_planned(const char *stage); /* executions that this plan says are needed still */
int sweep_made(const char *stage);    /* since the cache was empty */
int sweep_made_in_all(void);

#endif
