/* Token-wise outliers of a model at several stages: what brick outliers measures, and how it is shown.
 * Source: PrefixQuant (arXiv 2410.05265), sec. 4 and figures 1, 2. */
#ifndef BK_OUTLIERS_VERB_H
#define BK_OUTLIERS_VERB_H

#include "blocks/offq.h"
#include "experiments/runner.h"

/* What a token can be: magnitude / median above the upper threshold at down_raw or block_out, median / magnitude above the
 * lower one at query or key. */
typedef enum { BK_UPPER_DOWN_RAW, BK_UPPER_BLOCK_OUT, BK_LOWER_QUERY, BK_LOWER_KEY, BK_OUTLIER_KINDS } bk_outlier_kind;
#define BK_UPPER_KINDS (1u << BK_UPPER_DOWN_RAW | 1u << BK_UPPER_BLOCK_OUT)
#define BK_LOWER_KINDS (1u << BK_LOWER_QUERY | 1u << BK_LOWER_KEY)

#define BK_ERROR_TOP 3
typedef struct bk_block_error {
    double mse;      /* squared error of the output of the quantized block, mean over tokens and channels */
    double relative; /* the same over the mean square of the block's output */
    double
        share[BK_ERROR_TOP]; /* of a sequence's squared error, carried by its worst 1, 2, 3 tokens; mean over sequences */
} bk_block_error;

/* Of the magnitudes of the tokens of a sequence: the largest three, the median, the smallest (figure 3). */
#define BK_LEVELS 5
extern const char *const bk_level_name[BK_LEVELS]; /* "top1" .. "min1" */

typedef struct bk_outlier_stage {
    const char *name;
    int64_t layers, samples, tokens;
    double *top, *low; /* [layers, BK_SITE_COUNT]: largest / median, median / smallest; mean over sequences */
    double *level;     /* [layers, BK_SITE_COUNT, BK_LEVELS]; mean over sequences */
    int32_t *blocks[BK_OUTLIER_KINDS]; /* [samples, tokens]: number of blocks in which the token is one of that kind */
    bk_outliers upper;                 /* those at down_raw, for the choice of a prefix */
    bk_block_error error;
    double *token_error; /* [samples, tokens]: squared error of the quantized block's output, mean over channels */
} bk_outlier_stage;

typedef struct bk_outlier_limits {
    double upper, lower;
} bk_outlier_limits;

/* Runs ids through all blocks in full precision and measures. */
bk_status bk_outlier_stage_measure(bk_outlier_stage *s, const char *name, bk_runner *r, const bk_samples *samples,
                                   const bk_outlier_limits *limits, const bk_watch *watch, bk_error *err) BK_MUST_USE;
/* Error of one block that is quantized and initialised on the inputs that it gets in full precision, which are these
 * samples'. */
bk_status bk_outlier_stage_error(bk_outlier_stage *s, bk_runner *r, const bk_samples *samples, int64_t layer,
                                 const bk_block_quant *quant, bk_error *err) BK_MUST_USE;
void bk_outlier_stage_free(bk_outlier_stage *s);
/* True if the token is, in any block, of one of these kinds (a mask). */
bool bk_outlier_token(const bk_outlier_stage *s, int64_t token, unsigned kinds);
int64_t bk_outlier_count(const bk_outlier_stage *s, unsigned kinds);
int64_t bk_outlier_shared(const bk_outlier_stage *s); /* tokens that are upper and lower */

/* Distinct ids of the tokens of some kinds, by falling count, then id. */
typedef struct bk_outlier_content {
    int32_t id;
    int64_t count, at_start; /* at_start: at position 0 of a sequence */
} bk_outlier_content;
bk_status bk_outlier_contents(const bk_outlier_stage *s, const bk_samples *samples, unsigned kinds,
                              bk_outlier_content **out, int64_t *n, bk_error *err) BK_MUST_USE;

/* What OffQ would find: concentration and group sizes, and how spiky keys are. */
typedef struct bk_outlier_offq {
    const char *name; /* original, with prefix */
    bk_offq_report report;
    int64_t layers, heads; /* key/value heads */
    double *spikiness;     /* [layers, heads]: max|k| sqrt(d) / |k| of the top key of a sequence, mean over sequences */
} bk_outlier_offq;

#define BK_OUTLIER_STAGES 3
typedef struct bk_outlier_report {
    const bk_tokenizer *tok;
    const char *model, *text, *rotate, *scheme, *bos;
    bk_outlier_limits limits;
    const bk_samples *samples;
    bk_outlier_stage stage[BK_OUTLIER_STAGES]; /* original, rotated, with prefix: those that were asked for */
    int n_stages;
    bk_outlier_offq offq[2];
    int n_offq; /* 0: not asked for */
    int64_t block; /* whose error was measured */
    int32_t prefix[BK_PREFIX_MAX];
    int64_t n_prefix;
    bool overlap_prefix; /* text starts at position 0 again (bk_config.overlap_prefix) */
    double seconds;
} bk_outlier_report;

/* Measures one more stage of a raw model: without prefix, or with that of the report. A block below 0 becomes the one whose
 * largest token at down_raw stands out most. `of`: stages that there will be, for the progress. */
bk_status bk_outlier_report_add(bk_outlier_report *r, const bk_lab *lab, const char *name, const bk_rotation_spec *rotation,
                                bool prefixed, const bk_block_quant *quant, bk_progress *progress, int of,
                                bk_error *err) BK_MUST_USE;
/* Measures OffQ's numbers of a raw model on the same samples, with or without the prefix of the report. group: channels of a group, 0 as
 * quant.activation.group auto. */
bk_status bk_outlier_report_add_offq(bk_outlier_report *r, const bk_lab *lab, const char *name, bool prefixed, int64_t group, int64_t seed,
                                     bk_progress *progress, int of, bk_error *err) BK_MUST_USE;
int64_t bk_outlier_spikiest(const bk_outlier_offq *m); /* index in spikiness of the largest one */
bk_json *bk_outlier_offq_json(const bk_outlier_report *r);
void bk_outlier_print_offq(const bk_outlier_report *r); /* nothing if it was not measured */
void bk_outlier_report_free(bk_outlier_report *r); /* its stages, and OffQ's numbers */
bk_status bk_outlier_json(const bk_outlier_report *r, bk_json **out, bk_error *err) BK_MUST_USE;

bk_status bk_outlier_print_text(const bk_outlier_report *r, bk_error *err) BK_MUST_USE;
bk_status bk_outlier_print_json(const bk_outlier_report *r, bk_error *err) BK_MUST_USE;

#endif
