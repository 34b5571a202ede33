/* What nearly every verb opens: a model seen through its transforms, its tokenizer, a backend; and the rows of an
 * evaluation. */
#ifndef BK_LAB_H
#define BK_LAB_H

#include "blocks/gptq.h"
#include "blocks/init.h"
#include "blocks/outliers.h"
#include "blocks/pass.h"
#include "blocks/prefix.h"
#include "blocks/quantized.h"
#include "experiments/progress.h"
#include "experiments/schema.h"
#include "io/text.h"
#include "io/tokenizer.h"

typedef struct bk_lab {
    const bk_backend *be;
    bk_model *model;
    bk_tokenizer *tok;
    bk_quantized *quantized; /* NULL unless the model is a run's quantized one */
    int64_t bos;             /* the id that a prefix ends with: the model file's BOS, else EOS, else -1 */
} bk_lab;

bk_status bk_lab_open(bk_lab *lab, const char *model, const bk_backend *be, bk_error *err) BK_MUST_USE;
void bk_lab_close(bk_lab *lab);
/* The tokenizer alone, of a GGUF, a folder, or the model/ in a run folder. *out stays NULL where there is none: no such file, a file of
 * shapes (.json), a folder without tokenizer.json. */
bk_status bk_lab_tokenizer(const char *model, bk_tokenizer **out, bk_error *err) BK_MUST_USE;
/* What a config asks for, for a model of these shapes; fitted: NULL where nothing is fitted, or is yet to be (be may be NULL then). */
bk_rotation_spec bk_run_rotation(const bk_run_config *c, const bk_config *shapes, const bk_fitted *fitted, const bk_backend *be);
/* "none", "all" or a list of "r1,r2,r3,r4". */
bk_status bk_rotation_parse(const char *text, bk_rotation_spec *out, bk_error *err) BK_MUST_USE;
/* "none", "auto" or "1,2,3". *automatic is set for "auto"; ids has room for BK_PREFIX_MAX. */
bk_status bk_prefix_parse(const char *text, bool *automatic, int32_t *ids, int64_t *n, bk_error *err) BK_MUST_USE;

/* How texts become ids. `prefixed`: a prefix is active, so no BOS is put in front. */
typedef struct bk_text_policy {
    bool bos_auto, parse_special, strip_bos;
    const char *join; /* NULL or "" = bytes as they are */
} bk_text_policy;
bk_status bk_lab_text(const bk_lab *lab, const char *path, const bk_text_policy *policy, bool prefixed, bk_text *out, bk_error *err) BK_MUST_USE;
/* "none", "added" (one BOS in front of the text), "kept" (BOS ids stand in the text), "prefix": the policy in force,
 * for JSON. */
const char *bk_bos_in_force(const bk_lab *lab, const bk_ledger *text, const bk_text_policy *policy, bool prefixed);

/* A progress bar as a bk_watch; stops when a signal came. */
bk_watch bk_watch_progress(bk_progress *p);

/* One row of a table: a way to quantize, on a source with or without prefix. */
typedef struct bk_row {
    const bk_source *src;
    const bk_prefix *prefix;      /* NULL or n = 0: none */
    const bk_block_quant *quant;  /* NULL: full precision */
    bk_init_options init;
    const bk_run_config *skips;   /* quant.skip; NULL = nothing skipped */
    const bk_samples *calibration; /* NULL only if nothing has to be measured */
    const bk_block_gptq_options *gptq; /* NULL: weights by min-max and search; else by GPTQ on `statistics` */
    const bk_samples *statistics;
} bk_row;

/* Called after a block was initialised, before it runs. gptq: [BK_W_COUNT], NULL if the row is without. */
typedef bk_status (*bk_row_hook)(void *user, bk_block *b, int64_t layer, const bk_gptq_report *gptq, bk_error *err);

/* Initialises block after block on the stream of the blocks before it and takes the evaluation windows
 * through; eval NULL: only the hook is wanted. */
bk_status bk_row_run(const bk_backend *be, const bk_row *row, const bk_samples *eval, bk_row_hook hook, void *user, const bk_watch *watch,
                     bk_ppl *out, bk_error *err) BK_MUST_USE;
/* Logs a warning for every site where initialising the block of this layer met ranges of zeros (b->silent). */
void bk_warn_silent(const bk_block *b, int64_t layer);
/* Masks of quant.skip for one block. */
void bk_skip_masks(const bk_run_config *c, int64_t layer, unsigned *sites, unsigned *weights);
/* Those of all blocks: of the sites, [layers], then of the weights, [layers]; malloc'd. */
bk_status bk_skip_lists(const bk_run_config *c, int64_t layers, unsigned **out, bk_error *err) BK_MUST_USE;
/* True if initialising this row has to look at activations. */
bool bk_row_needs_calibration(const bk_block_quant *q, const bk_init_options *init);

/* Perplexity of an open quantized model. */
bk_status bk_lab_quantized_ppl(const bk_lab *lab, const bk_samples *eval, const bk_watch *watch, bk_ppl *out, bk_error *err) BK_MUST_USE;

#endif
