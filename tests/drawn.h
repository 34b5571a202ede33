/* What is drawn in the pictures of a report: the plots of a gnuplot script, with the numbers that each curve takes from
 * its data. */
#ifndef BK_TESTS_DRAWN_H
#define BK_TESTS_DRAWN_H

#include <stddef.h>

#define DRAWN_PLOTS   24
#define DRAWN_CURVES  12
#define DRAWN_COLUMNS 32

/* From here on `gnuplot` is a program in the working directory that writes empty pictures: scripts are what counts. */
void drawn_by_nobody(void);

typedef struct drawn_rows {
    char name[32];
    double (*x)[DRAWN_COLUMNS]; /* NaN: no number stands there */
    size_t n;
} drawn_rows;

/* One of the things that a `plot` has between commas. */
typedef struct drawn_curve {
    char source[32], use[8][48]; /* "$name", "-", or an expression; the entries of `using` */
    char title[128];             /* "": none */
    int style;                   /* of `ls`, 0: none */
    const drawn_rows *rows;      /* NULL: drawn without data */
} drawn_curve;

/* A panel, with what is set when its `plot` comes. */
typedef struct drawn_plot {
    char title[128], xlabel[128], ylabel[128], xtics[1024], ytics[1024];
    drawn_curve curve[DRAWN_CURVES];
    int n;
} drawn_plot;

typedef struct drawn {
    drawn_plot plot[DRAWN_PLOTS];
    int n;
    drawn_rows *rows[96];
    size_t n_rows;
} drawn;

drawn *drawn_read(const char *path);
void drawn_free(drawn *d);
/* What gnuplot takes from a row for entry k of `using`, which must be a column. */
double drawn_at(const drawn_curve *c, size_t row, int k);
/* The curve of that title, which must be there. */
const drawn_curve *drawn_titled(const drawn_plot *p, const char *title);

#endif
