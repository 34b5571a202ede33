/* The inside of a tokenizer, shared by its readers (GGUF, JSON), its writer and the encoder. */
#ifndef BK_TOKENIZER_IMPL_H
#define BK_TOKENIZER_IMPL_H

#include "io/bpe.h"
#include "io/json.h"
#include "io/pretokenize.h"
#include "io/tokenizer.h"

#define BK_SPACE_MARK "\xe2\x96\x81" /* U+2581 */

/* GGUF's numbers. */
typedef enum bk_token_kind {
    BK_TOKEN_HOLE, /* an id without a token */
    BK_TOKEN_NORMAL,
    BK_TOKEN_UNKNOWN,
    BK_TOKEN_CONTROL,
    BK_TOKEN_USER, /* found in every text before the model sees it */
    BK_TOKEN_UNUSED,
    BK_TOKEN_BYTE
} bk_token_kind;

typedef struct bk_piece {
    const char *text; /* in bk_tokenizer.bytes, NUL-terminated */
    uint32_t len;
    uint8_t kind; /* bk_token_kind */
} bk_piece;

/* A token that is cut out of a text before the model sees it. */
typedef struct bk_added {
    char *text; /* as it stands in the text: normalized for the list of normalized ones */
    size_t len;
    int32_t id;
    bool special;        /* only with parse_special */
    bool lstrip, rstrip; /* takes white space before or after it along */
} bk_added;

typedef struct bk_added_list {
    bk_added *v; /* sorted by text, bytewise */
    size_t n;
} bk_added_list;

struct bk_tokenizer {
    bk_piece *piece; /* [n] */
    int64_t n;
    char *bytes;
    size_t bytes_used;
    bk_strmap by_text; /* all but holes */
    bk_bpe bpe;
    bool byte_level;    /* words are bytes in GPT-2's alphabet, not characters */
    bool ignore_merges; /* a word that is a token needs no merges */
    bool fuse_unknown;
    int32_t byte_id[256]; /* the token of a byte: GPT-2's alphabet, or byte fallback; -1 if there is none */
    int32_t unknown, bos, eos;
    bool add_bos;
    bk_added_list added, added_normalized;
    bk_steps normalizer, pretokenizer;
    char *space;      /* what stands for a space inside tokens (U+2581), NULL if a space does */
    bool strip_space; /* decoding drops the space that encoding puts in front */
    float *score;     /* [n] of a SentencePiece model, else NULL */
    char *chat_template;
    char *folder;    /* where it came from, NULL for GGUF */
    bool has_config; /* with a tokenizer_config.json */
};

/* GPT-2's printable alphabet: the code point that stands for a byte, and back (-1 if the code point is not in it). */
uint32_t bk_byte_to_char(unsigned char byte);
int bk_char_to_byte(uint32_t cp);

/* Makes the table of n tokens, all holes, with room for `bytes` bytes of text (without terminators). */
bk_status bk_tokenizer_alloc(bk_tokenizer *t, int64_t n, size_t bytes, bk_error *err) BK_MUST_USE;
/* Fills id. BK_EFORMAT for text that is empty, no UTF-8 or holds NUL, and for a text or an id given twice. */
bk_status bk_tokenizer_set(bk_tokenizer *t, int64_t id, const char *text, size_t len, bk_token_kind kind,
                           bk_error *err) BK_MUST_USE;
/* The id of a text that the model may produce (normal or user-defined), -1 if there is none. */
int32_t bk_tokenizer_plain(const bk_tokenizer *t, const char *text, size_t len);
bk_status bk_tokenizer_add_merge(bk_tokenizer *t, int32_t left, int32_t right, int32_t rank, int32_t id,
                                 bk_error *err) BK_MUST_USE;
bk_status bk_tokenizer_add_added(bk_added_list *l, const char *text, size_t len, bk_added a, bk_error *err) BK_MUST_USE;
/* After tokens, merges and added tokens are in: byte tables and the lists that encoding needs. */
bk_status bk_tokenizer_finish(bk_tokenizer *t, bk_error *err) BK_MUST_USE;

/* tokenizer.json and tokenizer_config.json (or NULL); the documents may be freed afterwards. */
bk_status bk_tokenizer_from_json(const bk_json *tokenizer, const bk_json *config, bk_tokenizer **out,
                                 bk_error *err) BK_MUST_USE;

/* Normalizer and pre-tokenizer of a tokenizer.json; what is not supported is BK_EUNSUP by name. */
bk_status bk_tokenizer_load_steps(bk_tokenizer *t, const bk_json *tokenizer, bk_error *err) BK_MUST_USE;

/* Merges of a SentencePiece model: every way to cut a token into two tokens, ranked by the token's score (equal scores,
 * equal rank). */
bk_status bk_tokenizer_merges_from_scores(bk_tokenizer *t, bk_error *err) BK_MUST_USE;

#endif
