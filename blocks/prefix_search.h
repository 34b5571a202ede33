/* A prefix found by greedy search: tokens are appended one by one, each the candidate behind which the text's activations
 * are easiest to quantize.
 * Sources: CushionCache (arXiv 2406.12016), whose first step is a greedy search for tokens that lower the activations
 * behind them; QFeP (arXiv 2405.14428), which looks at the largest over the median magnitude of tokens. docs/methods.md
 * says what differs. */
#ifndef BK_PREFIX_SEARCH_H
#define BK_PREFIX_SEARCH_H

#include "blocks/outliers.h"

/* What a prefix is judged by, on windows of text behind it in the full-precision model; lower is better, 0 the least.
 *   error: |Q(x) - x|^2 / |x|^2 of a token at a site with a quantizer, mean over tokens, sites and blocks; Q has the
 *          ranges of these windows.
 *   ratio: largest / median over tokens of max |x| at down_raw, mean over windows, largest of all blocks. */
typedef enum bk_search_objective { BK_SEARCH_ERROR, BK_SEARCH_RATIO, BK_SEARCH_OBJECTIVE_COUNT } bk_search_objective;
extern const char *const bk_search_objective_name[BK_SEARCH_OBJECTIVE_COUNT];

typedef struct bk_search_options {
    bk_search_objective objective;
    const bk_block_quant *quant; /* of error: activations, keys and values as they will be quantized */
    const unsigned *skip_sites;  /* of error: [layers] masks of sites that stay in full precision; NULL: none */
    bool ema;                    /* of error: how ranges are measured (bk_init_options) */
    int64_t max_tokens;          /* 1 .. BK_PREFIX_MAX */
    double tau;                  /* a token is appended if the objective falls below (1 - tau) times what it was */
} bk_search_options;

/* The best candidate behind the prefix so far, and what it makes of the objective. */
typedef struct bk_search_step {
    int32_t id; /* -1: no candidate lowers the objective */
    double before, after;
} bk_search_step;

typedef struct bk_search_result {
    int64_t n;
    bk_search_step step[BK_PREFIX_MAX]; /* the tokens of the prefix, in order */
    bool stopped;                       /* by a step that did not improve enough, else by max_tokens */
    bk_search_step last;                /* that step */
} bk_search_result;

typedef struct bk_id_list {
    const int32_t *ids;
    int64_t n;
} bk_id_list;

/* Candidates from lists that take turns, each list in its order: every id once, those below 0 left out, at most `room`.
 * Returns their number. out [room] */
int64_t bk_search_candidates(const bk_id_list *lists, int n_lists, int64_t room, int32_t *out);

/* Searches from the empty prefix. ids [samples, tokens]: the windows. Of equal candidates the first one is taken. A
 * candidate is left as soon as it cannot be the best any more, which changes no result. Memory grows neither with the
 * number of candidates nor with that of blocks.
 * BK_EINVAL: ids outside the vocabulary, no candidates, no windows, windows that do not fit behind max_tokens, nothing
 * quantized for `error`. BK_ENUMERIC: activations that are not finite. The watch counts blocks and may jump ahead. */
bk_status bk_prefix_search(const bk_backend *be, const bk_source *src, const bk_id_list *candidates, const int32_t *ids,
                           int64_t samples, int64_t tokens, const bk_search_options *opt, const bk_watch *watch,
                           bk_search_result *out, bk_error *err) BK_MUST_USE;
/* Steps of the watch: an upper bound. */
int64_t bk_prefix_search_steps(int64_t candidates, int64_t max_tokens, int64_t layers);

#endif
