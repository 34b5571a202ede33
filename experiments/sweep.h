/* Sweeps: one base config and axes. A point is a run of its own, in its own folder, made by a child process of this program. */
#ifndef BK_SWEEP_H
#define BK_SWEEP_H

#include "experiments/schema.h"
#include "io/json.h"

#define BK_SWEEP_AXES 32       /* keys that vary */
#define BK_SWEEP_FIXED 64      /* keys of `set` */
#define BK_SWEEP_POINTS 10000
#define BK_SWEEP_RUNGS 16
#define BK_SWEEP_NAME 128      /* of a point with its NUL */

/* "key=value" with the value as a config would have it: what --set takes. */
typedef struct bk_sweep_value {
    int key; /* in bk_keys */
    char *set;
} bk_sweep_value;

typedef struct bk_sweep_point {
    int n, value[BK_SWEEP_AXES];   /* indices into bk_sweep.value, in the order of the axes */
    char name[BK_SWEEP_NAME];      /* of its folder */
    char *shown[BK_SWEEP_AXES];    /* value of every axis in the point's config; bk_sweep_check fills these */
    char config[65], rivals[65];   /* hashes: of its config, and of what points must share to be compared by halving */
} bk_sweep_point;

typedef struct bk_sweep {
    char file[BK_PATH_SIZE], base[BK_PATH_SIZE];
    bk_sweep_value *value; /* of all points, and of `set` */
    int n_values, room;
    int fixed[BK_SWEEP_FIXED], n_fixed;
    int axis[BK_SWEEP_AXES], n_axes; /* keys, in the order of the file */
    char axis_name[BK_SWEEP_AXES][64]; /* short: the last parts of the key */
    bk_sweep_point *point;
    int n;
    int64_t jobs;
    int64_t rung[BK_SWEEP_RUNGS]; /* blocks after which points are dropped */
    int n_rungs;
    double keep; /* part of them that goes on */
} bk_sweep;

/* Whether a YAML file is a sweep and no config: it has the key `base`. */
bool bk_sweep_is(const char *path);
/* From YAML to points. BK_EINVAL with file:line:column. bk_sweep_free is legal after a failure. */
bk_status bk_sweep_load(const char *path, bk_sweep *out, bk_error *err) BK_MUST_USE;
void bk_sweep_free(bk_sweep *s);

/* The sets of a point as `run` takes them; their number. */
int bk_sweep_sets(const bk_sweep *s, int point, const char *sets[BK_SWEEP_FIXED + BK_SWEEP_AXES]);
/* The config of a point; the error names the point. */
bk_status bk_sweep_config(const bk_sweep *s, int point, bk_run_config *out, bk_error *err) BK_MUST_USE;
/* Adds the name of the point to a message, behind it: the place in a file stays in front. Returns its code. */
bk_status bk_sweep_blame(const bk_sweep *s, int point, bk_error *err);
/* Every point's config is right and no two are the same. */
bk_status bk_sweep_check(bk_sweep *s, bk_error *err) BK_MUST_USE;
/* Hash of the keys that a list chooses (bk_config_digest_keys). */
bk_status bk_sweep_hash(const bk_run_config *c, const char *const *keys, char hex[65], bk_error *err) BK_MUST_USE;
/* DIR for results and run folders where none is given: runs/<name of the file>. */
void bk_sweep_folder(const bk_sweep *s, char *to, size_t size);

/* --- results --- */

typedef enum { BK_POINT_PENDING, BK_POINT_RUNNING, BK_POINT_DONE, BK_POINT_FAILED, BK_POINT_STOPPED } bk_point_state;

#define BK_SWEEP_STAGES 7 /* as summary.json has them */
extern const char *const bk_sweep_stage[BK_SWEEP_STAGES];

/* What is known of a point; NaN = not known. Losses are validation losses of what was kept: means over the blocks, and of the last block. */
typedef struct bk_sweep_row {
    bk_point_state state;
    int code;          /* exit code of a point that failed */
    char message[300]; /* why */
    double fp, fp_prefix, init, final, gap, loss_init, loss_final, loss_last;
    double seconds[BK_SWEEP_STAGES], peak;
} bk_sweep_row;

/* Looks into a run folder. *done: it holds the finished run of this config; with another config in it BK_EINVAL. */
bk_status bk_sweep_look(const char *dir, const bk_run_config *c, bk_sweep_row *row, bool *done, bk_error *err) BK_MUST_USE;
/* Validation loss of a block in metrics.jsonl of a run folder, of the epoch that is kept; NaN if it is not there. */
double bk_sweep_loss(const char *dir, const bk_run_config *c, int64_t block);
/* Blocks that the run in a folder has trained. */
int64_t bk_sweep_trained(const char *dir);
/* A flat object per point, in the order of the file. */
bk_json *bk_sweep_rows_json(const bk_sweep *s, const bk_sweep_row *rows, const char *dir);
/* results.csv and results.jsonl in `dir`. */
bk_status bk_sweep_write(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bk_error *err) BK_MUST_USE;
/* The ranked table, and statistics over seeds where these vary; on stdout. */
bk_status bk_sweep_print(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bool json, bk_error *err) BK_MUST_USE;

/* --- running --- */

typedef struct bk_sweep_run {
    bk_sweep *s;
    char dir[BK_PATH_SIZE], program[BK_PATH_SIZE];
    int jobs;
    bk_sweep_row *row;
} bk_sweep_run;

void bk_sweep_point_dir(const bk_sweep_run *r, int point, char *to, size_t size);
/* All points, or what a signal left of them (BK_ECANCEL). Points that fail are no failure here. */
bk_status bk_sweep_all(bk_sweep_run *r, bk_error *err) BK_MUST_USE;
/* One shell command per point on stdout. */
bk_status bk_sweep_list(const bk_sweep_run *r, bk_error *err) BK_MUST_USE;

/* `brick plan SWEEP`: the exit code. out NULL: the folder that the sweep takes by itself. */
int bk_sweep_plan(const char *file, const char *out, bool json);

#endif
