/* Tokenizers: byte-level BPE (GPT-2, Llama-3, Qwen2, SmolLM pre-tokenizers through PCRE2) and SentencePiece-style BPE
 * with byte fallback, from GGUF metadata or from tokenizer.json (with tokenizer_config.json beside it, if there). */
#ifndef BK_TOKENIZER_H
#define BK_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"
#include "io/gguf.h"

typedef struct bk_tokenizer bk_tokenizer;

/* tokenizer.ggml.model gpt2 (with tokenizer.ggml.pre gpt-2, default, smollm, llama-bpe or qwen2) or llama; others are
 * BK_EUNSUP by name. BK_EFORMAT: tables that do not fit each other, tokens that are empty, given twice, no UTF-8 or
 * with NUL (the message names them). */
bk_status bk_tokenizer_from_gguf(const bk_gguf *g, bk_tokenizer **out, bk_error *err) BK_MUST_USE;
/* DIR/tokenizer.json, and tokenizer_config.json if it is there. Model, normalizers and pre-tokenizers that are not
 * supported are BK_EUNSUP by name. */
bk_status bk_tokenizer_from_folder(const char *dir, bk_tokenizer **out, bk_error *err) BK_MUST_USE;
void bk_tokenizer_free(bk_tokenizer *t);

int64_t bk_tokenizer_size(const bk_tokenizer *t); /* ids 0 .. size-1 */
int64_t bk_tokenizer_bos(const bk_tokenizer *t);  /* -1 if there is none */
int64_t bk_tokenizer_eos(const bk_tokenizer *t);
bool bk_tokenizer_add_bos(const bk_tokenizer *t); /* the model file's own policy */

/* Bytes to ids, no BOS added. Special-token strings in the text are plain text unless parse_special; user-defined
 * tokens are always found. BK_EFORMAT with the byte offset: broken UTF-8 (but a tokenizer with byte fallback or
 * byte-level BPE encodes the bytes as they are), a character or byte without a token where there is no unknown token, a
 * regular expression that exhausts PCRE2's limits. *ids is malloc'd, NULL if there are none. O(n log n). */
bk_status bk_tokenizer_encode(const bk_tokenizer *t, const char *text, size_t len, bool parse_special, int32_t **ids,
                              int64_t *n, bk_error *err) BK_MUST_USE;
/* Ids to bytes (malloc'd, NUL-terminated; may hold NUL or broken UTF-8, *len tells). Ids out of range are BK_EINVAL.
 * skip_special leaves control tokens out. */
bk_status bk_tokenizer_decode(const bk_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, char **text,
                              size_t *len, bk_error *err) BK_MUST_USE;
/* The token as it stands in the table (for tables and JSON), borrowed; "" for an id without a token. */
const char *bk_tokenizer_piece(const bk_tokenizer *t, int64_t id, size_t *len);
/* Writes the tokenizer as tokenizer.json + tokenizer_config.json into a folder, such that bk_tokenizer_from_folder
 * reads back the same (copied when it came from a folder, written from the tables when it came from a GGUF). */
bk_status bk_tokenizer_save(const bk_tokenizer *t, const char *dir, bk_error *err) BK_MUST_USE;

#endif
