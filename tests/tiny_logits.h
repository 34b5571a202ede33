/* Logits of a model read through its transforms, for tests that compare them with those of the model itself (tests/plain_llama.h). */
#ifndef BK_TESTS_TINY_LOGITS_H
#define BK_TESTS_TINY_LOGITS_H

#include "blocks/source.h"

/* What is on the way to the logits: weights as transformed, under Hugging Face's names (embedding and head with all their rows); what stands at
 * the sites of the blocks, "layer0.attn_in" ...; the residual stream [layers + 1, tokens, hidden], "hidden". */
typedef enum { BK_TINY_WEIGHT, BK_TINY_SITE, BK_TINY_STREAM } bk_tiny_kind;

typedef struct bk_tiny_way {
    void *user;
    /* NULL, or the values of a tensor of the model that its file has rounded to f32; asked for in f64 alone, and not for the gain of the last norm */
    const double *(*exact)(void *user, const char *tensor);
    void (*see)(void *user, bk_tiny_kind kind, const char *name, const double *x, int64_t count, int64_t cols); /* NULL, or is shown all of it */
} bk_tiny_way;

/* [tokens, vocab], malloc'd, of one sequence. On a backend of f32: as a run computes them. On ref in f64: nothing is rounded to f32 on the way,
 * neither weights nor hidden states. way may be NULL. Failures end the running Check test. */
double *bk_tiny_logits(const bk_backend *be, const bk_source *src, const int32_t *ids, int64_t tokens, const bk_tiny_way *way);
/* Reads a random model of that config through spec: the distance of its logits from those of the plain Llama. */
double bk_tiny_off_by(const bk_backend *be, const bk_config *c, const bk_rotation_spec *spec);
/* max|a - b| / max|b|; infinity where there is a NaN */
double bk_tiny_distance(const double *a, const double *b, int64_t n);

#endif
