/* A model that is ready to run block by block, whatever its kind: a raw one through its transforms with a prefix of
 * given ids, or a run's quantized one with the prefix that it carries. */
#ifndef BK_RUNNER_H
#define BK_RUNNER_H

#include "experiments/lab.h"

typedef struct bk_runner {
    const bk_backend *be;
    bk_source *src;
    bk_prefix prefix;        /* of a raw model; n = 0: none */
    bk_quantized *quantized; /* NULL: raw; belongs to the lab */
    bk_block_options block;  /* what blocks are created with, all but `tokens` */
    bk_block_weights weights;
} bk_runner;

/* The two choices that a raw model leaves open; a quantized one refuses both. */
typedef struct bk_runner_choice {
    const char *rotate; /* "none", "all", "r1,.."; NULL: none */
    const char *prefix; /* "none", "1,2,3"; NULL: none, or the run's own */
    int64_t seed;       /* of the rotations */
} bk_runner_choice;

/* The lab must outlive the runner. bk_runner_close is due after a failure too. */
bk_status bk_runner_open(bk_runner *r, const bk_lab *lab, const bk_runner_choice *choice, bk_error *err) BK_MUST_USE;
/* A raw source without a prefix. */
bk_status bk_runner_open_raw(bk_runner *r, const bk_lab *lab, const bk_rotation_spec *rotation, bk_error *err) BK_MUST_USE;
/* Gives a raw one a prefix, before blocks are created. */
bk_status bk_runner_set_prefix(bk_runner *r, const int32_t *ids, int64_t n, bk_error *err) BK_MUST_USE;
void bk_runner_close(bk_runner *r);

/* A block for sequences of `tokens`, and the weights, quantizer parameters and prefix of one layer into it. */
bk_status bk_runner_block(const bk_runner *r, int64_t tokens, bk_block **out, bk_error *err) BK_MUST_USE;
bk_status bk_runner_load(bk_runner *r, int64_t layer, bk_block *b, bk_error *err) BK_MUST_USE;
/* The prefix in force; n = 0: none. */
const bk_prefix *bk_runner_prefix(const bk_runner *r);

/* The backend of that name with this many threads (0 = all); NULL is recorded in err. */
const bk_backend *bk_runner_backend(const char *name, int64_t threads, bk_error *err);
/* "auto" is true, "none" false, anything else BK_EINVAL. */
bk_status bk_runner_bos(const char *text, bool *automatic, bk_error *err) BK_MUST_USE;

#endif
