/* What a running brick tells other processes: progress.json in its run folder. One JSON object, padded with blanks to a
 * fixed size and overwritten in place by one pwrite, at most twice a second: nothing is allocated, renamed or waited
 * for. It is advice, not a result: that it could not be written never harms the run. */
#ifndef BK_BEACON_H
#define BK_BEACON_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/error.h"

#define BK_BEACON_FILE  "progress.json"
#define BK_BEACON_SIZE  512
#define BK_BEACON_STAGE 64

/* Where a run is. Numbers that do not apply are 0. */
typedef struct bk_beacon_record {
    char stage[BK_BEACON_STAGE]; /* stage `number` of `of` */
    int64_t number, of;
    int64_t done, total;   /* steps of the stage */
    int64_t block, blocks; /* finished blocks of the stage; of the model */
    int64_t epochs;        /* of the training of a block */
    double seconds;        /* since this process began */
    double left;           /* seconds, of the stage; NaN = unknown */
    int64_t updated;       /* Unix time of the record */
} bk_beacon_record;

typedef struct bk_beacon {
    bool open; /* all zero: there is none */
    int fd;
    int64_t blocks, epochs;
    uint64_t count;         /* records written */
    double opened, written; /* bk_seconds */
} bk_beacon;

/* Begins a fresh progress.json in the folder; now = bk_seconds() at the start of the program. */
void bk_beacon_open(bk_beacon *b, const char *dir, int64_t blocks, int64_t epochs, double now);
/* Writes the record; the parts that the beacon knows (blocks, epochs, seconds, updated) are filled in. now =
 * bk_seconds(). Too soon after the last one it does nothing, unless `always`. */
void bk_beacon_show(bk_beacon *b, const bk_beacon_record *r, double now, bool always);
void bk_beacon_close(bk_beacon *b);

/* Reads the record of a folder: false if there is none, or none that is whole. */
bool bk_beacon_read(const char *dir, bk_beacon_record *out);

#endif
