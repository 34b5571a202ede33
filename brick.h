/* All of the library: libbrick.a, libbrick.so. docs/architecture.md says what lies where; tests/test_umbrella.c is a small program. */
#ifndef BRICK_H
#define BRICK_H

#include "backends/kernels.h"

#include "autograd/error.h"
#include "autograd/version.h"
#include "autograd/backend.h"
#include "autograd/tensor.h"
#include "autograd/op.h"
#include "autograd/optim.h"
#include "autograd/rng.h"
#include "autograd/gradcheck.h"

#include "ops/ops.h"

#include "io/file.h"
#include "io/gguf.h"
#include "io/half.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/store.h"
#include "io/text.h"
#include "io/tokenizer.h"

#include "quant/gptq.h"
#include "quant/hadamard.h"
#include "quant/plugin.h"
#include "quant/quantizer.h"
#include "quant/search.h"
#include "quant/steps.h"

#include "blocks/config.h"
#include "blocks/names.h"
#include "blocks/model.h"
#include "blocks/weights.h"
#include "blocks/fitted.h"
#include "blocks/vectors.h"
#include "blocks/transforms.h"
#include "blocks/source.h"
#include "blocks/stream.h"
#include "blocks/block.h"
#include "blocks/pass.h"
#include "blocks/cache.h"
#include "blocks/outliers.h"
#include "blocks/prefix.h"
#include "blocks/prefix_search.h"
#include "blocks/gptq.h"
#include "blocks/init.h"
#include "blocks/recon.h"
#include "blocks/params_file.h"
#include "blocks/quantized.h"

#endif
