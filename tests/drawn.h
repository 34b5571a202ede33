/* What is drawn in the pictures of a report. */
#ifndef BK_TESTS_DRAWN_H
#define BK_TESTS_DRAWN_H

/* From here on `gnuplot` is a program in the working directory that writes empty pictures: scripts are what counts. */
void drawn_by_nobody(void);

#endif
