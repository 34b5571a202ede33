/* brick plan: what a run will be, before it is one. */
#ifndef BK_PLAN_H
#define BK_PLAN_H

#include "experiments/estimate.h"

/* Shapes of the model that a config names, without its weights: a GGUF's header, the config.json of a folder (or of the
 * model/ in a run folder), or a config.json itself. *known is false when there is nothing at that path; *weights tells
 * whether tensors are there too. BK_EFORMAT: a model that brick cannot use, as when it is opened. */
bk_status bk_plan_shapes(const char *model, bk_config *out, bool *known, bool *weights, bk_error *err) BK_MUST_USE;

/* The samples that a stage takes from a text. */
typedef enum { BK_PLAN_DETECTION, BK_PLAN_TRAINING, BK_PLAN_CALIBRATION, BK_PLAN_STATISTICS, BK_PLAN_EVALUATION, BK_PLAN_SETS } bk_plan_set_id;
typedef struct bk_plan_set {
    const char *name, *path;
    int64_t asked, seqlen; /* training: with the validation samples behind; evaluation: -1 = all */
    int64_t given;         /* by the text, at most `asked` */
    enum { BK_AS_ASKED, BK_BY_SIZE, BK_COUNTED } source; /* there is no text; guessed by the text's size; as `run` draws them */
    bool used;             /* by a run of this config */
} bk_plan_set;

/* model: where the tokenizer lies; NULL: no text is read, sizes of files tell. BK_EINVAL, BK_EFORMAT: what `run` refuses too: a text without a single sample (with
 * fewer than asked, if strict), or one that cannot be encoded; a tokenizer that cannot be read. */
bk_status bk_plan_samples(const bk_run_config *c, const char *model, bk_plan_set set[BK_PLAN_SETS], bk_error *err) BK_MUST_USE;
bk_sample_counts bk_plan_counts(const bk_run_config *c, const bk_plan_set set[BK_PLAN_SETS]);

/* The transforms of a config for a model of these shapes. */
bk_status bk_plan_rotation(const bk_run_config *c, const bk_config *shapes, bk_rotation **out,
                           bk_error *err) BK_MUST_USE;
/* Every linear and site that its quantizer does not fit, in one message. BK_EINVAL. */
bk_status bk_plan_quantizers(const bk_run_config *c, const bk_config *shapes, bk_error *err) BK_MUST_USE;
/* All that a run of this config refuses in its first second, once the shapes of the model are known. */
bk_status bk_plan_check_shapes(const bk_run_config *c, const bk_config *shapes, bk_error *err) BK_MUST_USE;

/* What this process may still take. */
typedef struct bk_room {
    double memory;
    const char *memory_from; /* which limit is the smallest: "free memory", "cgroup limit", "ulimit -v" */
    double run_disk, cache_disk, temporary_disk; /* free where the run folder, the stages and TMPDIR are (or will be) */
    bool cache_with_run, temporary_with_run;     /* on the same file system as the run folder */
} bk_room;
void bk_room_measure(const char *run_dir, bk_room *out);
/* BK_ENOMEM or BK_ENOSPC with the numbers, and what to change, when an estimate goes beyond the room. What lies in
 * run_dir already is not counted again. */
bk_status bk_room_check(const bk_room *room, const bk_estimate *e, const char *run_dir, bk_error *err) BK_MUST_USE;

/* Takes the disk of stages that are there already out of an estimate. */
bk_status bk_plan_found(const bk_run_config *c, bk_estimate *e, bk_error *err) BK_MUST_USE;

/* For `run`: estimate and room, once model and texts are open; the folder of stages is made. */
bk_status bk_plan_check(const bk_run_config *c, const bk_sample_counts *samples, const bk_rotation *rotation,
                        const bk_backend *be, const char *run_dir, bk_error *err) BK_MUST_USE;

#endif
