/* What the writer and the reader of a quantized model share. */
#ifndef BK_QUANTIZED_IMPL_H
#define BK_QUANTIZED_IMPL_H

#include "blocks/quantized.h"

#define BK_QUANTIZED_VERSION 1

/* The file of one layer; index = layers: the one with the rest. */
void bk_quantized_path(char *to, size_t size, const char *dir, int64_t index, int64_t layers);

#endif
