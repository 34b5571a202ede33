/* R1 fitted to the outputs of the norms (blocks/norm_rows.h), without running the model again. Both begin with the random-sign Hadamard of the
 * seed, and give the same bytes for every number of threads. */
#ifndef BK_NORM_ROTATION_H
#define BK_NORM_ROTATION_H

#include "blocks/fitted.h"
#include "blocks/norm_rows.h"

/* Smallest error of dynamic symmetric quantization per token, by turns: codes for the rotation, the rotation for the codes (weighted orthogonal
 * Procrustes problem). Tokens that quantize better without a rotation, which are those with massive activations, weigh more.
 * Source: DFRot (Xiang and Zhang 2024, arXiv 2412.00648). */
typedef struct bk_dfrot_options {
    int64_t rounds;        /* published: 100 */
    int bits;              /* of the codes: 4 */
    double massive_weight; /* of their squared errors: 100 */
    uint64_t seed;
    double *errors;        /* [rounds + 1] weighted squared errors, the first before any round; NULL: not wanted */
    int64_t *massive;      /* how many tokens are massive; NULL: not wanted */
} bk_dfrot_options;
/* fitted gets r1. Watched in `rounds` steps. BK_EINVAL with fewer rows than channels. */
bk_status bk_dfrot_fit(const bk_backend *be, const bk_norm_rows *rows, const bk_dfrot_options *opt, const bk_watch *watch, bk_fitted *fitted,
                       bk_error *err) BK_MUST_USE;

/* Losses over the channels y of a rotated token, mean over tokens: what spreads magnitudes evenly makes them small.
 * whip: sum exp(-|y|), DartQuant (arXiv 2511.04063).  kurtosis: |m4 / m2^2 - 1.8|, moments about 0, 1.8 that of a uniform distribution,
 * KurTail (arXiv 2503.01483). */
typedef enum bk_spread_loss { BK_SPREAD_WHIP, BK_SPREAD_KURTOSIS, BK_SPREAD_COUNT } bk_spread_loss;
extern const char *const bk_spread_name[BK_SPREAD_COUNT]; /* whip kurtosis */

/* SGD on Z, whose orthonormal rows (bk_linalg_qr_rows) are R1: DartQuant's QR-Orth. */
typedef struct bk_spread_options {
    bk_spread_loss loss;
    int64_t epochs, batch; /* over all rows, in an order by the seed; rows of a batch, a ragged last one is left out */
    double lr, momentum;   /* DartQuant: 1e-3, 0.9 */
    uint64_t seed;
    double *losses;        /* [epochs] mean of the epoch's batches; NULL: not wanted */
} bk_spread_options;
/* fitted gets r1. Watched in `epochs` steps. BK_EINVAL with fewer rows than a batch; BK_ENUMERIC names the epoch. */
bk_status bk_spread_fit(const bk_backend *be, const bk_norm_rows *rows, const bk_spread_options *opt, const bk_watch *watch, bk_fitted *fitted,
                        bk_error *err) BK_MUST_USE;

#endif
