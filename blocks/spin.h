/* Rotations learnt for a quantized model: R1, and R2 of each block, descend the model's next-token loss by Cayley SGD.
 * Source: SpinQuant (Liu et al. 2024, arXiv 2405.16406) and its code. */
#ifndef BK_SPIN_H
#define BK_SPIN_H

#include "blocks/fitted.h"
#include "blocks/rotated_loss.h"

typedef struct bk_spin_options {
    int64_t steps, batch;         /* published: 100, 8 */
    double lr, momentum;          /* 1.5, cosine to 0; 0 */
    double clip_grad;             /* largest Euclidean norm of all gradients together, 1 as published; 0: off */
    int weight_bits;              /* 16: weights as they are, where a better quantizer of weights follows (GPTQ); else the scheme's */
    bool r2;                      /* R2 of each block too, one for all its heads; else R2 of src stays */
    uint64_t seed;                /* of the start, the random-sign Hadamards of a run (bk_rotation_dense), and of retractions */
    const unsigned *skip_sites, *skip_weights; /* as in bk_rotated_loss_options */
    double *losses;               /* [steps] of each batch before its step; NULL: not wanted */
} bk_spin_options;

/* src: as for bk_rotated_loss_open. quant: the run's. ids [samples, tokens]: step k takes samples k batch .. and begins again at their end.
 * fitted gets r1 (and r2), orthogonal to rounding; an r1 that it has already is the start in place of the Hadamard. Same bytes for every number of
 * threads. Watched block by block. BK_ENUMERIC names the step whose loss or gradient is not finite. */
bk_status bk_spin_fit(const bk_backend *be, const bk_source *src, const bk_block_quant *quant, const int32_t *ids, int64_t samples,
                      int64_t tokens, const bk_spin_options *opt, const bk_watch *watch, bk_fitted *fitted, bk_error *err) BK_MUST_USE;

#endif
