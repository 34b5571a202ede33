/* Tokenizers: byte-level BPE (GPT-2, Llama-3, Qwen2, SmolLM pre-tokenizers through PCRE2) and SentencePiece-style BPE with byte fallback,
 * from GGUF metadata or from tokenizer.json (with tokenizer_config.json beside it, if there). */
#ifndef BK_TOKENIZER_H
#define BK_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"
#include "io/gguf.h"

typedef struct bk_tokenizer bk_tokenizer;

bk_status bk_tokenizer_from_gguf(const bk_gguf *g, bk_tokenizer **out, bk_error *err) BK_MUST_USE;
bk_status bk_tokenizer_from_folder(const char *dir, bk_tokenizer **out, bk_error *err) BK_MUST_USE; /* DIR/tokenizer.json */
void bk_tokenizer_free(bk_tokenizer *t);

int64_t bk_tokenizer_size(const bk_tokenizer *t);    /* ids 0 .. size-1 */
int64_t bk_tokenizer_bos(const bk_tokenizer *t);     /* -1 if there is none */
int64_t bk_tokenizer_eos(const bk_tokenizer *t);
bool bk_tokenizer_add_bos(const bk_tokenizer *t);    /* the model file's own policy */

/* Bytes to ids, no BOS added. Special-token strings in the text are plain text unless parse_special. Broken UTF-8 is BK_EFORMAT with the byte
 * offset, except that a tokenizer with byte fallback or byte-level BPE encodes the bytes as they are. A regular expression that exhausts PCRE2's limits is
 * BK_EFORMAT with the offset. *ids is malloc'd. Long texts are encoded in linear time. */
bk_status bk_tokenizer_encode(const bk_tokenizer *t, const char *text, size_t len, bool parse_special, int32_t **ids, int64_t *n, bk_error *err) BK_MUST_USE;
/* Ids to bytes (malloc'd, NUL-terminated; may hold NUL or broken UTF-8, *len tells). Ids out of range are BK_EINVAL. skip_special leaves control tokens out. */
bk_status bk_tokenizer_decode(const bk_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, char **text, size_t *len, bk_error *err) BK_MUST_USE;
/* The token as it stands in the table (for tables and JSON), borrowed. */
const char *bk_tokenizer_piece(const bk_tokenizer *t, int64_t id, size_t *len);
/* Writes the tokenizer as tokenizer.json + tokenizer_config.json into a folder, such that bk_tokenizer_from_folder reads back the same
 * (copied when it came from a folder, written from the tables when it came from a GGUF). */
bk_status bk_tokenizer_save(const bk_tokenizer *t, const char *dir, bk_error *err) BK_MUST_USE;

#endif
