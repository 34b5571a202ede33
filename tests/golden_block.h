/* Blocks as the golden files describe them (tests/golden/README.md): block.h5 and train.h5. */
#ifndef BK_TESTS_GOLDEN_BLOCK_H
#define BK_TESTS_GOLDEN_BLOCK_H

#include "blocks/block.h"
#include "tests/h5_golden.h"

typedef struct bk_golden_block {
    bk_golden *g;
    const char *path; /* of the case */
    const bk_backend *be;
    bk_block_quant quant;
    bk_hadamard_plan *r3, *r4;
    bk_block *b; /* its parameters, biases, norms and prefix as in the file */
} bk_golden_block;

/* tokens: longest sequence. Failures end the running Check test. */
void bk_golden_block_open(bk_golden_block *gb, bk_golden *g, const char *path, const bk_backend *be, int64_t tokens, bool trained);
void bk_golden_block_close(bk_golden_block *gb);

/* The tensor of the block that the file calls NAME: "w_q", "b_q", "norm_attn", "s_w_q", "z_key", "gamma_o_in" ...; fails the test if there is none. */
bk_tensor *bk_golden_block_tensor(const bk_golden_block *gb, const char *name);

/* Compares a tensor with dataset PATH/NAME under the tolerance that goes with the backend. */
void bk_golden_same(const bk_golden_block *gb, const char *name, const bk_tensor *t);

#endif
