/* Outlier tokens: found by their largest magnitude at down_raw, ranked by how often they are outliers, turned into a prefix.
 * Source: PrefixQuant (arXiv 2410.05265), sec. 5 and its code; docs/numerics.md, Outlier tokens and prefix. */
#ifndef BK_OUTLIERS_H
#define BK_OUTLIERS_H

#include "blocks/pass.h"

#define BK_PREFIX_MAX 64 /* tokens of a chosen prefix */

typedef struct bk_outlier {
    int64_t sequence, block, position;
    int32_t id;
    float magnitude; /* max |x| over the channels of the token */
} bk_outlier;

typedef struct bk_outliers {
    int64_t sequences, blocks;
    bk_outlier *at; /* in any order */
    int64_t n, room;
} bk_outliers;

/* Sorted index (n-1)/2 of the values: the lower middle. scratch [n] holds them sorted afterwards. */
float bk_lower_median(const float *v, int64_t n, float *scratch);

/* Adds the tokens of one sequence in one block with max / median > eta (strictly). maxima, ids [tokens]; scratch [tokens]. */
bk_status bk_outliers_add(bk_outliers *o, int64_t block, int64_t sequence, const float *maxima, const int32_t *ids, int64_t tokens, double eta,
                          float *scratch, bk_error *err) BK_MUST_USE;
void bk_outliers_free(bk_outliers *o);

/* Distinct ids by falling count, equal counts by first occurrence. */
typedef struct bk_ranking {
    int32_t *ids;    /* [n] */
    int64_t *counts; /* [n] */
    int64_t n;
} bk_ranking;
bk_status bk_ids_rank(const int32_t *ids, int64_t n, bk_ranking *out, bk_error *err) BK_MUST_USE;
void bk_ranking_free(bk_ranking *r); /* due after a failure too */

typedef struct bk_prefix_choice {
    int64_t o_raw, o;     /* ceil of the largest mean count per sequence of any block; the same after a lone rare id was dropped */
    bool dropped_rare;
    bk_ranking ranked;    /* of the visits, position 0 left out */
    int32_t ids[BK_PREFIX_MAX];
    int64_t n;            /* the prefix: the first min(o, ranked.n) ids, then bos */
} bk_prefix_choice;

/* bos < 0: no token is put last. rare_fraction: a lone id seen in fewer than this share of the sequences is dropped (0.1 as published).
 * Sorts o->at. */
bk_status bk_prefix_choose(bk_outliers *o, int64_t bos, double rare_fraction, bk_prefix_choice *out, bk_error *err) BK_MUST_USE;
void bk_prefix_choice_free(bk_prefix_choice *c);

/* A tap that keeps max |x| of every token at chosen sites of the block that is running. */
typedef struct bk_maxima {
    int64_t samples, tokens;
    float *at[BK_SITE_COUNT]; /* [samples, tokens]; NULL: not wanted */
    int64_t seen[BK_SITE_COUNT]; /* tokens so far */
    bk_error *err;
} bk_maxima;
/* sites: bit per bk_site_id */
bk_status bk_maxima_create(bk_maxima *m, unsigned sites, int64_t samples, int64_t tokens, bk_error *err) BK_MUST_USE;
void bk_maxima_free(bk_maxima *m);
void bk_maxima_begin_block(bk_maxima *m);
void bk_maxima_tap(bk_ctx *ctx, void *maxima, bk_site_id site, const bk_tensor *x);

/* Detection on full-precision blocks over ids [samples, tokens]: outliers of every block at down_raw. */
bk_status bk_outliers_detect(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t samples, int64_t tokens, double eta,
                             const bk_watch *watch, bk_outliers *out, bk_error *err) BK_MUST_USE;

#endif
