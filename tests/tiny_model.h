/* Small random models on disk, for tests of whatever reads a model. */
#ifndef BK_TESTS_TINY_MODEL_H
#define BK_TESTS_TINY_MODEL_H

#include <stdint.h>

#include "blocks/config.h"

#define BK_TINY_PATH 64

/* A llama config: 2 layers, hidden 64, 4 heads on 2 KV heads of 16, inter 96, vocabulary 256, positions 512. Change it as you like, then write. */
bk_config bk_tiny_config(void);

/* Writes config.json and model.safetensors (f32) into a new folder below /tmp, whose path it leaves in `dir`. Weights depend on the seed alone: linears
 * N(0, 1/in), biases N(0.1, 0.3), gains N(1, 0.2), embedding and head N(0, 1). A failure ends the running Check test. */
void bk_tiny_model_write(const bk_config *c, uint64_t seed, char dir[BK_TINY_PATH]);
/* Values first .. first + n - 1 of a tensor become `value`. */
void bk_tiny_model_set(const char *dir, const char *tensor, int64_t first, int64_t n, float value);
/* The first n values of a tensor become `values`. */
void bk_tiny_model_put(const char *dir, const char *tensor, const float *values, int64_t n);
void bk_tiny_model_remove(const char *dir);

#endif
