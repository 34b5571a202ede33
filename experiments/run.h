/* One experiment: from a config to a trained model, its perplexities and the files of a run folder. */
#ifndef BK_RUN_H
#define BK_RUN_H

#include "blocks/recon.h"
#include "experiments/beacon.h"
#include "experiments/lab.h"
#include "experiments/schema.h"
#include "experiments/stage_kinds.h"
#include "io/lock.h"
#include "io/store.h"

#define BK_RUN_PATH 4200
#define BK_RUN_STAGES 10
#define BK_ROWS_MAX 8
#define BK_RUN_IN_USE "another brick is running in this folder" /* by these words a sweep knows why its point was refused */
extern const char *const bk_run_stage_name[BK_RUN_STAGES]; /* keys of "seconds" in summary.json */

/* One line of the table of perplexities; ppl NaN = not computed. */
typedef struct bk_table_row {
    char name[48];
    double ppl;
} bk_table_row;

/* What became of a block. */
typedef struct bk_block_result {
    double loss_init, loss_final, seconds;
    int64_t epoch_kept, halvings, floored, fell_back;
    int64_t metrics_bytes;                /* of metrics.jsonl up to the end of this block */
    char shard_sha[65], metrics_sha[65];  /* of its file in model/, and of those bytes */
} bk_block_result;

/* What became of the linears that GPTQ was to round. */
typedef struct bk_gptq_summary {
    int64_t linears, fell_back, damped, dead; /* damped: with more than gptq.percdamp; dead: input channels */
} bk_gptq_summary;

typedef struct bk_run {
    bk_run_config cfg;
    char dir[BK_RUN_PATH];
    bk_lock lock;
    bk_lab lab;
    bk_source *plain, *src; /* as in the file; through the transforms of the config */
    bk_block_quant quant;
    bk_text_policy policy;
    char model_sha[65], manifest_sha[65];
    bk_prefix prefix;
    bk_fitted *fitted; /* NULL: nothing is fitted */
    bk_samples detection, calibration, statistics, training, evaluation; /* training: with the validation samples behind */
    int64_t n_train, n_val;
    bk_stage outliers, searched, fit, init, target;
    bk_prefix_choice choice;
    bk_table_row row[BK_ROWS_MAX];
    int n_rows;
    bk_block_result *block; /* [layers] */
    int64_t next;           /* blocks before it are trained */
    int64_t targets;        /* blocks whose targets this process has written or read through: no need to look again */
    bk_gptq_summary gptq;
    double ppl_fp, ppl_fp_prefix, ppl_init, ppl_final;
    double seconds[BK_RUN_STAGES];
    bool complete;      /* summary.json is there */
    int64_t stop_after; /* blocks to train in all, then to end without evaluation; 0 = all */
    bool stopped;       /* which it did */
    bool came_to_nothing; /* bk_run_outcome_check failed: exit 4, with everything written */
    bk_progress progress;
    bk_beacon beacon;
} bk_run;

/* The whole of it. */
bk_status bk_run_all(bk_run *r, bool resume, bk_error *err) BK_MUST_USE;
void bk_run_close(bk_run *r);

/* Parts, in the order in which they run (run_*.c). */
bk_status bk_run_open_folder(bk_run *r, bool resume, bool *finished, bk_error *err) BK_MUST_USE;
/* The results of a finished run are those of the bytes that it read: of a model or text that has changed since, they
 * say nothing (BK_EINVAL). */
bk_status bk_run_check_inputs(const char *dir, const bk_run_config *c, const char *model_sha, bk_error *err) BK_MUST_USE;
/* Of these, the quantizers' plugins alone: by name, a quantizer of this brick is none of a plugin. */
bk_status bk_run_check_plugins(const char *dir, const bk_run_config *c, bk_error *err) BK_MUST_USE;
/* BK_EFORMAT: the finished run in a folder is not what was written. Takes milliseconds: of large files only the structure
 * is looked at. A model/ that was removed as a whole is not missed: the numbers stay what they are. */
bk_status bk_run_check_quickly(const char *dir, bk_error *err) BK_MUST_USE;
/* What a manifest says: the SHA-256 of a text as the run read it, "" if it did not; the first quantizer that came from
 * another plugin's file than it comes from here, NULL if there is none. */
const char *bk_run_text_sha256(const bk_run_config *c, const bk_json *manifest, const char *path);
const char *bk_run_other_plugin(const bk_run_config *c, const bk_json *manifest);
/* Whether another process runs there, and which. */
bool bk_run_folder_busy(const char *dir, bk_lock_owner *owner);
/* The config.yaml of a run folder is this config: else BK_EINVAL, naming the key that differs. BK_EFORMAT, BK_EIO: it
 * cannot be read. */
bk_status bk_run_compare_config(const char *dir, const bk_run_config *c, bk_error *err) BK_MUST_USE;
bk_status bk_run_manifest(bk_run *r, bk_error *err) BK_MUST_USE; /* written, or compared with what is there */
bk_status bk_run_load_data(bk_run *r, bk_error *err) BK_MUST_USE;
bk_status bk_run_equivalence(bk_run *r, bk_error *err) BK_MUST_USE;
bk_status bk_run_choose_prefix(bk_run *r, bk_error *err) BK_MUST_USE;
/* The stage `fit`: transforms that are fitted to the model, behind the prefix; r->src then has them. */
bk_status bk_run_fit(bk_run *r, bk_error *err) BK_MUST_USE;
bk_status bk_run_make_prefix(bk_run *r, bk_error *err) BK_MUST_USE; /* its keys and values */
bk_status bk_run_init(bk_run *r, bk_error *err) BK_MUST_USE;
/* How far an unfinished run got whose files are as they were written: r->next. Says what was lost. */
bk_status bk_run_resume(bk_run *r, bk_error *err) BK_MUST_USE;
/* The stage `targets`, if this run shares it and trains. */
bk_status bk_run_targets(bk_run *r, bk_error *err) BK_MUST_USE;
bk_status bk_run_train(bk_run *r, bk_error *err) BK_MUST_USE;
/* Every row but the last, each a stage: these do not depend on the training. */
bk_status bk_run_rows(bk_run *r, bk_error *err) BK_MUST_USE;
bk_status bk_run_evaluate(bk_run *r, bk_error *err) BK_MUST_USE;
/* Block next - 1 is trained and its shard written. */
bk_status bk_run_checkpoint(bk_run *r, int64_t next, bk_error *err) BK_MUST_USE;
/* Writes summary.json with this text and, before it, SHA256SUMS: with the summary the run is finished. */
bk_status bk_run_finish(const bk_run *r, const char *summary, bk_error *err) BK_MUST_USE;
bk_status bk_run_write_summary(bk_run *r, bk_error *err) BK_MUST_USE;
/* The table of rows of summary.json, or summary.json itself, on stdout. */
bk_status bk_run_print_result(const bk_run *r, bool json, bk_error *err) BK_MUST_USE;

/* For the parts. */
void bk_run_path(const bk_run *r, const char *name, char *to, size_t size);
bk_watch bk_run_begin_stage(bk_run *r, const char *name, int number, int64_t total);
void bk_run_end_stage(bk_run *r);
/* A block for the run's shapes: quantized or not, trained or not, for sequences of `tokens`. */
bk_status bk_run_block(bk_run *r, bool quantized, bool hardened, bool trained, int64_t tokens, bk_block **out, bk_error *err) BK_MUST_USE;
/* Full-precision weights and the prefix of a layer. */
bk_status bk_run_load_fp(bk_run *r, int64_t layer, bk_block_weights *w, bk_block *b, bk_error *err) BK_MUST_USE;
uint64_t bk_run_detection_seed(const bk_run_config *c); /* of the windows in which outlier tokens are looked for */
/* Finds a stage of this run, or opens a work folder for it. */
bk_status bk_run_stage_open(const bk_run *r, bk_stage_kind kind, bk_stage *s, bk_error *err) BK_MUST_USE;
/* Blocks that this process trains end before it. */
int64_t bk_run_last_block(const bk_run *r);
/* targets/NNN.h5 of a block, found or made; those of the block before are made too if they are gone: from block 0 on,
 * through the blocks as they were trained. */
bk_status bk_run_make_targets(bk_run *r, int64_t layer, bk_error *err) BK_MUST_USE;
/* What a block learns from. */
typedef struct bk_run_data {
    bk_store *run, *shared;
    bk_dset *input, *target, *target_q; /* target_q: NULL unless train.target wants it */
} bk_run_data;
bk_status bk_run_open_data(const bk_run *r, int64_t layer, bk_run_data *d, bk_error *err) BK_MUST_USE;
void bk_run_close_data(bk_run_data *d); /* also after a failure */
/* GPTQ of the run's weights; NULL: they are initialised otherwise. */
const bk_block_gptq_options *bk_run_gptq(const bk_run *r);
/* Full-precision weights, then what the stage `init` found out about a layer; its quantizers are on. */
bk_status bk_run_load_init(bk_run *r, int64_t layer, bk_block_weights *w, bk_block *b, bk_error *err) BK_MUST_USE;
/* Adds what to do about a file that a run made itself. */
bk_status bk_run_own_file(bk_status st, bk_error *err);

#endif
