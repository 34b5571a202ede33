/* A Llama written down as plainly as it goes, in f64 and without any of brick's ops: what the real one is compared with. */
#ifndef BK_TESTS_PLAIN_LLAMA_H
#define BK_TESTS_PLAIN_LLAMA_H

#include "blocks/model.h"

/* Logits [tokens, vocab] of one sequence, malloc'd; no prefix, no quantizer, no rotation. hidden: NULL, or room for [layers + 1, tokens, hidden] of the
 * residual stream. Failures end the running Check test. */
double *bk_plain_logits(const bk_model *m, const int32_t *ids, int64_t tokens, double *hidden);
/* Mean of -log p of ids[1 .. tokens-1]. */
double bk_plain_nll(const double *logits, const int32_t *ids, int64_t tokens, int64_t vocab);

#endif
