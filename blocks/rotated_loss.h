/* Next-token loss of a whole quantized model as a function of its rotations R1 and R2, and the gradient with respect to them: what SpinQuant
 * (Liu et al. 2024, arXiv 2405.16406) descends. The weights of the model are constants.
 *
 * No tape holds more than one block. Forward keeps the inputs of every block in a stream; backward goes from the last block to the first, runs
 * each again on the tape and hands the gradient of its inputs on. Leaves of the tape are the rotated weights W' (straight-through where they are
 * quantized), and the chain rule ends in f64:
 *   readers of the residual stream  W' = W R1:     dR1 += W^T dW'
 *   writers, and their biases       W' = R1^T W:   dR1 += W dW'^T
 *   rows of the embedding           x = e R1:      dR1 += e^T dx
 *   the head, which is not quantized, reads n(h) R1^T: the same logits as with W R1 for all its rows
 *   v of a head, columns of o       R2^T W and W R2 alike. */
#ifndef BK_ROTATED_LOSS_H
#define BK_ROTATED_LOSS_H

#include "autograd/linalg.h"
#include "blocks/block.h"
#include "blocks/pass.h"
#include "blocks/source.h"

typedef struct bk_rotated_loss_options {
    const bk_block_quant *quant;  /* NULL: full precision. Copied. Static ranges are measured on each batch */
    int64_t batch, tokens;        /* sequences of a batch, and their length: at least 2 */
    bool r2;                      /* R2 is an argument too, one for each block */
    const unsigned *skip_sites, *skip_weights; /* [layers] masks (bk_block); NULL: nothing skipped. Must outlive it */
} bk_rotated_loss_options;

typedef struct bk_rotated_loss bk_rotated_loss;

/* src: norms fused, no R1 (bk_rotation_spec.fuse), with `r2` no R2 either, R3 and R4 as they will run; must outlive it, as err. BK_EINVAL. */
bk_status bk_rotated_loss_open(bk_rotated_loss **out, const bk_backend *be, const bk_source *src, const bk_rotated_loss_options *opt,
                               bk_error *err) BK_MUST_USE;
void bk_rotated_loss_close(bk_rotated_loss *l); /* NULL is legal */
bk_linalg *bk_rotated_loss_algebra(bk_rotated_loss *l); /* products on its backend, for who learns with it */

/* ids [batch, tokens]; r1 [hidden, hidden], r2 [layers, head_dim, head_dim] (NULL without opt.r2). *loss: mean of -log p over all tokens but the
 * first of each sequence; dr1, dr2 like r1, r2, overwritten. Watched in 2 layers steps. BK_ENUMERIC when loss or gradient is not finite. */
bk_status bk_rotated_loss_gradient(bk_rotated_loss *l, const int32_t *ids, const double *r1, const double *r2, const bk_watch *watch,
                                   double *loss, double *dr1, double *dr2) BK_MUST_USE;

#endif
