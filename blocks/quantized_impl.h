/* What the writer and the reader of a quantized model share. */
#ifndef BK_QUANTIZED_IMPL_H
#define BK_QUANTIZED_IMPL_H

#include "blocks/quantized.h"

#define BK_QUANTIZED_VERSION 1

#endif
