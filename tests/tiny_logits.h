/* Logits of a model read through its transforms, for tests that compare them with those of the model itself (tests/plain_llama.h). */
#ifndef BK_TESTS_TINY_LOGITS_H
#define BK_TESTS_TINY_LOGITS_H

#include "blocks/source.h"

/* [tokens, vocab], malloc'd, of one sequence. On a backend of f32: as a run computes them. On ref in f64: nothing is rounded to f32 on the way,
 * neither weights nor hidden states. Failures end the running Check test. */
double *bk_tiny_logits(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t tokens);
/* max|a - b| / max|b|; infinity where there is a NaN */
double bk_tiny_distance(const double *a, const double *b, int64_t n);

#endif
