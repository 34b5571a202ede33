/* OffQ (arXiv 2606.07116): a rotation of the residual stream in which the directions of the most extreme tokens become offsets of groups of
 * channels, which the zero points of a group quantizer absorb. Two steps: statistics, in one pass over the model, and the fit.
 *
 *   Q1 = U1 P1 H1   U1: eigenvectors of the covariance of one token per sequence, the one of largest |x|, at the inputs of attention and MLP (the
 *                   norms' outputs before their gains) of all layers; P1: the order of bk_offset_order; H1: a rotation of every group whose first
 *                   row is constant. In place of R1.
 *   U3 P3 H3        the same for the keys (after RoPE) of each KV head, one group a head, in place of R3: only where keys are spiky, else R3
 *                   stays a Hadamard.
 *   P4 and signs    order and signs of down's input, by its largest magnitudes, before an R4 in groups (bk_rotation_spec.r4_group).
 *
 * R2 is a random-sign Hadamard for each KV head (bk_rotation_spec.r2_per_kv_head). A zero of every option is what the paper does. */
#ifndef BK_OFFQ_H
#define BK_OFFQ_H

#include "blocks/fitted.h"
#include "blocks/pass.h"
#include "blocks/prefix.h"

typedef enum { BK_OFFQ_TOKEN_PER_SITE, BK_OFFQ_TOKEN_PER_SEQUENCE } bk_offq_scope; /* one token of a sequence in each layer and site, or in all */
typedef enum { BK_OFFQ_BOTH_SITES, BK_OFFQ_ATTENTION, BK_OFFQ_MLP } bk_offq_sites;  /* whose inputs count */
typedef enum { BK_OFFQ_TOP_TOKENS, BK_OFFQ_ALL_TOKENS } bk_offq_rows;              /* whose covariance gives the basis */
typedef enum { BK_OFFQ_EIGENVALUE, BK_OFFQ_VARIANCE } bk_offq_score;               /* P1: by eigenvalues, or by variance over all tokens */
typedef enum { BK_OFFQ_HADAMARD, BK_OFFQ_GAUSSIAN } bk_offq_spread;                /* H1, H3 (Gaussian also where no matrix is known) */
typedef enum { BK_OFFQ_KEYS_AUTO, BK_OFFQ_KEYS_ON, BK_OFFQ_KEYS_OFF } bk_offq_keys; /* U3. auto: with a k bias, or beyond the threshold */

#define BK_OFFQ_SPIKINESS 4.0 /* max|k| sqrt(d) / |k|; Gaussian keys of 128 channels have about 2.8 */

typedef struct bk_offq_options {
    bk_offq_scope scope;
    bk_offq_sites sites;
    bk_offq_rows basis;
    double tail;               /* the basis is of C_top + tail C_all: 1e-6 gives the directions behind the outliers a meaning */
    bk_offq_score score;
    bool zigzag;               /* deal the other channels to the groups in turn */
    bk_offq_spread spread;
    bool alike;                /* one rotation (or its signs) for all groups, instead of one each */
    bk_offq_keys keys;
    double spikiness;          /* threshold of `auto`; 0: BK_OFFQ_SPIKINESS */
    int64_t group, down_group; /* 0: bk_group_size of hidden, of inter */
    bool concentration;        /* measure the covariance of all tokens, for bk_offq_report.share; tail, score and basis may ask for it too */
    uint64_t seed;
} bk_offq_options;

/* Means over what they are taken from, in f64. */
typedef struct bk_offq_stats {
    int64_t layers, hidden, kv_heads, head_dim, inter, sequences;
    double *top, *all; /* [hidden, hidden]: x^T x of the top tokens, and of all tokens (NULL unless options ask) */
    double *key;       /* [layers, kv_heads, head_dim, head_dim]: k^T k of the token with the largest |k| of each sequence and head */
    double *spikiness; /* [layers, kv_heads]: of those keys */
    float *down;       /* [layers, inter]: largest |z| over all tokens */
} bk_offq_stats;

/* Statistics over ids [sequences, tokens], behind the prefix (of this source) if it is not NULL. The source is not rotated yet (BK_EINVAL); scales
 * are legal. A value that is not finite is BK_ENUMERIC naming block, site, sequence, token and channel. */
bk_status bk_offq_measure(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t sequences, int64_t tokens,
                          const bk_prefix *prefix, const bk_offq_options *o, const bk_watch *watch, bk_offq_stats *out,
                          bk_error *err) BK_MUST_USE;
void bk_offq_stats_free(bk_offq_stats *s);

/* For a report. */
typedef struct bk_offq_report {
    int64_t group, groups;
    int64_t down_group; /* for bk_rotation_spec.r4_group; 0: no groups of down's input have a Hadamard matrix, and its parts were left out */
    bool gaussian;      /* H1 is: asked for, or no Hadamard matrix of this order is known */
    bool keys;          /* r3 was fitted */
    double spikiness;   /* median over layers and heads */
    /* The part of the energy that lies in the first `groups` directions of a basis, [basis][rows] by bk_offq_rows; NAN where not measured. */
    double share[2][2];
} bk_offq_report;

/* Do these options need the covariance of all tokens? */
bool bk_offq_wants_all(const bk_offq_options *o);

/* Adds r1, down_order, down_signs and, where keys ask for it, r3 to f, which fits c. be computes (slots gemm_f64, eigh). BK_EINVAL: a size of
 * groups that does not divide, statistics that were measured for options that need less. */
bk_status bk_offq_fit(const bk_backend *be, const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_fitted *f,
                      bk_offq_report *report, bk_error *err) BK_MUST_USE;

#endif
