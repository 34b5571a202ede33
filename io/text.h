/* Texts and samples: windows of token ids, with a ledger that says what was asked, kept and dropped. */
#ifndef BK_TEXT_H
#define BK_TEXT_H

#include "io/tokenizer.h"

typedef struct bk_text_options {
    bool bos;           /* one BOS at the start of the whole text (of each document for .jsonl): the caller decides,
                           by the tokenizer's add_bos and whether a prefix is active */
    bool parse_special; /* special-token strings become special tokens */
    bool strip_bos;     /* BOS ids inside the text are removed */
    const char *join;   /* NULL: bytes as they are; else the rows of a .txt are joined with this string (the papers'
                           WikiText protocol: "\n\n"), rows as in the published data set: lines with their newline,
                           blank lines as "" */
} bk_text_options;

typedef struct bk_ledger {
    int64_t asked, kept, dropped, shorter; /* samples; shorter = documents below the sample length */
    int64_t bytes, documents, tokens;      /* of the text */
    int64_t bos_inside;                    /* BOS ids found in the text (kept unless strip_bos) */
    char sha256[65];                       /* of the text file */
} bk_ledger;

/* N windows of T ids, row-major [n, seqlen]. */
typedef struct bk_samples {
    int32_t *ids;
    int64_t n, seqlen;
    bk_ledger ledger;
} bk_samples;

/* A tokenized text: .txt is one document, .jsonl one per line with a string field "text" or an array field "ids" (line
 * number in errors). A UTF-8 BOM at the start is dropped; CRLF and NUL are kept as they are. */
typedef struct bk_text {
    int32_t *ids;
    int64_t n;
    int64_t *doc_start; /* [n_docs + 1] offsets into ids */
    int64_t n_docs;
    bk_ledger ledger;
} bk_text;

/* BK_EINVAL: bos without a BOS in the tokenizer, join with .jsonl. BK_EFORMAT: what cannot be read or encoded (line,
 * byte). An empty text is no error. */
bk_status bk_text_load(const char *path, const bk_tokenizer *tok, const bk_text_options *opt, bk_text *out,
                       bk_error *err) BK_MUST_USE;
void bk_text_free(bk_text *t);

/* Perplexity windows: all documents in one row, non-overlapping windows from the start, tail dropped; windows < 0 =
 * all. BK_EINVAL if there is not one. */
bk_status bk_samples_windows(const bk_text *t, int64_t seqlen, int64_t windows, bk_samples *out, bk_error *err) BK_MUST_USE;

/* Training samples: non-overlapping windows inside documents at seeded offsets, in seeded order; `skip`
 * leaves the first `skip` samples of that order out, so that validation (skip = number of training samples) is disjoint
 * from training. Fewer than asked is no error here (the ledger tells), none is BK_EINVAL. Same (text, seqlen, seed)
 * gives the same order whatever n and skip. */
bk_status bk_samples_draw(const bk_text *t, int64_t seqlen, int64_t n, int64_t skip, uint64_t seed, bk_samples *out,
                          bk_error *err) BK_MUST_USE;
void bk_samples_free(bk_samples *s);
/* SHA-256 of the ids, hex: what depends on samples depends on no more of text, tokenizer and policies. BK_ENOMEM. */
bk_status bk_samples_sha256(const bk_samples *s, char hex[65], bk_error *err) BK_MUST_USE;

#endif
