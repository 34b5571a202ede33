/* How watched runs are shown: as a line, a row of a table, or JSON. */
#ifndef BK_WATCH_TEXT_H
#define BK_WATCH_TEXT_H

#include <stdio.h>

#include "experiments/run_view.h"
#include "io/json.h"

#define BK_WATCH_LINE 512

/* "[4/5] train 43%, 5m20s left, block 13/30, epoch 3/20, loss 1.2e-04": what matters most comes first, since terminals
 * cut. */
void bk_watch_line(const bk_run_view *v, char to[BK_WATCH_LINE]);
/* What makes a line worth printing where lines cannot be redrawn: state, stage, block and epoch. */
void bk_watch_key(const bk_run_view *v, char to[BK_WATCH_LINE]);
/* The head of a table with names of `width` characters, and a row of it. */
void bk_watch_head(int width, char to[BK_WATCH_LINE]);
void bk_watch_row(const char *name, int width, const bk_run_view *v, char to[BK_WATCH_LINE]);
/* The command that goes on with a stopped run. */
void bk_watch_resume(const char *dir, FILE *to);
bk_json *bk_watch_json(const char *dir, const bk_run_view *v);

#endif
