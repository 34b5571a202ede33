/* What a run will take, from its config and the shapes of its model alone: memory by dry runs of the real graphs, disk
 * by the layout of the files, time by the arithmetic of each stage over rates measured in a moment. Nothing of the
 * model's size is allocated. Meant to be right to a factor of 2. */
#ifndef BK_ESTIMATE_H
#define BK_ESTIMATE_H

#include "autograd/backend.h"
#include "blocks/transforms.h"
#include "experiments/stage_kinds.h"

/* Stages as summary.json names them. */
typedef enum {
    BK_PART_EQUIVALENCE,
    BK_PART_OUTLIERS,
    BK_PART_FIT,
    BK_PART_INIT,
    BK_PART_TARGETS,
    BK_PART_TRAIN,
    BK_PART_ROWS,
    BK_PART_EVALUATE,
    BK_PART_COUNT
} bk_part;
extern const char *const bk_part_name[BK_PART_COUNT];

/* What a machine does, from short measurements. */
typedef struct bk_rates {
    double gflops;       /* matrix products of the backend */
    double load_seconds; /* to read and rotate the weights of one block */
} bk_rates;
bk_status bk_rates_measure(const bk_rotation *rotation, const bk_backend *be, bk_rates *out, bk_error *err) BK_MUST_USE;
/* Best rate of `times` products n x n x n, in GFLOP/s. */
bk_status bk_sgemm_gflops(const bk_backend *be, int64_t n, int times, double *out, bk_error *err) BK_MUST_USE;

/* Samples of a run: what its texts give, or what the config asks for where that is not known. */
typedef struct bk_sample_counts {
    int64_t detection, calibration, statistics, training, validation, evaluation;
} bk_sample_counts;

/* Bytes and seconds are doubles: a config may ask for more than 64 bits hold. */
typedef struct bk_estimate {
    double memory[BK_PART_COUNT];  /* of the whole process at the peak of a stage; 0 = the stage does not run */
    double seconds[BK_PART_COUNT]; /* 0 without rates */
    double peak, total_seconds;    /* largest memory; sum of seconds */
    double targets_disk, model_disk, temporary_disk; /* targets/ and model/ of the run; hidden states in TMPDIR */
    double stage_seconds[BK_STAGE_KINDS], stage_disk[BK_STAGE_KINDS]; /* 0: no such stage, or next to nothing */
    double cache_disk; /* sum of stage_disk */
} bk_estimate;

/* rotation: made for the model (bk_rotation_create). rates may be NULL.
 * BK_EINVAL, BK_ESHAPE: quantizers that do not fit, sequences longer than the model's positions. */
bk_status bk_estimate_run(const bk_run_config *c, const bk_sample_counts *samples, const bk_rotation *rotation, const bk_backend *be,
                          const bk_rates *rates, bk_estimate *out, bk_error *err) BK_MUST_USE;
/* The prefix that the estimate counts with: the ids given, or a guess for one that has to be found. */
int64_t bk_estimate_prefix(const bk_run_config *c);
/* Useful work of a block's forward pass over one sequence: 2 per weight and token, and attention 4 x heads x head_dim
 * per visible key. Training is 3 times that. */
double bk_forward_flops(const bk_config *c, int64_t tokens, int64_t prefix);

#endif
