/* A model folder (of tests/tiny_model.h) in other forms with the same values. A failure ends the running Check test. */
#ifndef REPACK_MODEL_H
#define REPACK_MODEL_H

#include "blocks/config.h"
#include "tests/make_gguf.h"

/* config.json, `shards` files and an index, in the new folder `to`; model.safetensors of `from` is read. */
void repack_shards(const char *from, const char *to, int shards);
/* A GGUF file of F32 tensors; q and k rows interleaved when the architecture is llama. */
void repack_gguf(const char *from, const char *path);
/* The keys alone, to which a test adds its own. */
void repack_gguf_keys(make_gguf *m, const bk_config *c);

#endif
