/* Sweeps: one base config and axes. A point is a run of its own, in its own folder, made by a child process of this
 * program. */
#ifndef BK_SWEEP_H
#define BK_SWEEP_H

#include "experiments/schema.h"

#define BK_SWEEP_AXES 32       /* keys that vary */
#define BK_SWEEP_FIXED 64      /* keys of `set` */
#define BK_SWEEP_POINTS 10000
#define BK_SWEEP_RUNGS 16
#define BK_SWEEP_SETS (BK_SWEEP_FIXED + BK_SWEEP_AXES + 1)
#define BK_SWEEP_NAME 128      /* of a point with its NUL */
#define BK_SWEEP_TITLE 64      /* what the file calls a point */

/* "key=value" with the value as a config would have it: what --set takes. */
typedef struct bk_sweep_value {
    int key; /* in bk_keys */
    char *set;
} bk_sweep_value;

typedef struct bk_sweep_point {
    int n, value[BK_SWEEP_AXES];   /* indices into bk_sweep.value, in the order of the axes */
    char name[BK_SWEEP_NAME];      /* of its folder */
    char title[BK_SWEEP_TITLE];    /* "": none */
    char *shown[BK_SWEEP_AXES];    /* value of every axis in the point's config; bk_sweep_check fills these */
    bool shares_targets;           /* with others: it runs with store.keep=shared (bk_sweep_share) */
    char config[65], rivals[65];   /* hashes: of its config, and of what points must share to be compared by halving */
} bk_sweep_point;

typedef struct bk_sweep {
    char file[BK_PATH_SIZE], base[BK_PATH_SIZE];
    bk_sweep_value *value; /* of all points, and of `set` */
    int n_values, room;
    int fixed[BK_SWEEP_FIXED], n_fixed;
    int axis[BK_SWEEP_AXES], n_axes; /* keys, in the order of the file */
    char axis_name[BK_SWEEP_AXES][64]; /* short: the last parts of the key */
    bool titled;                       /* points have titles, which say all that these axes do: */
    bool in_title[BK_SWEEP_AXES];
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
int bk_sweep_sets(const bk_sweep *s, int point, const char *sets[BK_SWEEP_SETS]);
/* The config of a point; the error names the point. */
bk_status bk_sweep_config(const bk_sweep *s, int point, bk_run_config *out, bk_error *err) BK_MUST_USE;
/* Adds the name of the point to a message, behind it: the place in a file stays in front. Returns its code. */
bk_status bk_sweep_blame(const bk_sweep *s, int point, bk_error *err);
/* Every point's config is right and no two are the same. */
bk_status bk_sweep_check(bk_sweep *s, bk_error *err) BK_MUST_USE;
/* All that the run of a point would refuse in its first second, and halving where the model has no blocks left to train. */
bk_status bk_sweep_check_shapes(const bk_sweep *s, const bk_run_config *c, const bk_config *shapes, bk_error *err) BK_MUST_USE;
/* Points that train on the same targets in full precision have them as a stage, if two of these are not done yet, or if
 * the stage is there; unless the sweep itself says what store.keep is. done: [points]. */
bk_status bk_sweep_share(bk_sweep *s, const bool *done, bk_error *err) BK_MUST_USE;
/* Hash of the keys that a list chooses (bk_config_digest_keys). */
bk_status bk_sweep_hash(const bk_run_config *c, const char *const *keys, char hex[65], bk_error *err) BK_MUST_USE;
/* DIR for results and run folders where none is given: runs/<name of the file>. */
void bk_sweep_folder(const bk_sweep *s, char *to, size_t size);

/* The value of an axis at a point; NaN if it is no number. */
double bk_sweep_number(const bk_sweep *s, int axis, int point);
/* A sentence if the best of the values of an axis, lo .. hi, is the smallest or the largest one, and the key could go beyond it. */
bool bk_sweep_at_edge(const char *key, double best, double lo, double hi, char *text, size_t size);

/* `brick plan SWEEP`: the exit code. out NULL: the folder that the sweep takes by itself. */
int bk_sweep_plan(const char *file, const char *out, bool json);

#endif
