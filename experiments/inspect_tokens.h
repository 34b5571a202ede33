/* The tokens behind the rows of a dataset: ids from /tokens/input_ids of the file, texts from a model's tokenizer. */
#ifndef BK_INSPECT_TOKENS_H
#define BK_INSPECT_TOKENS_H

#include "experiments/printable.h"
#include "io/store.h"

typedef struct bk_row_tokens {
    bk_store *store; /* NULL: the rows have no ids */
    int64_t len;
    bool wide; /* ids are i64 */
    bk_dset *dset;
    int64_t sample; /* that `ids` holds; -1: none */
    void *ids;      /* [len] i32 or i64 */
    bk_tokenizer *tok; /* NULL: no texts */
    const char *why;   /* there are ids but no texts: why, static; else NULL */
} bk_row_tokens;

/* Ids belong to datasets [samples, tokens, ...] with ids of [samples, tokens]. model: a GGUF, a folder with a tokenizer
 * or a run folder (BK_EIO, BK_EFORMAT if it has none); NULL: the model that the file names, looked for beside the file, in
 * models/ and here, and taken if its SHA-256 is the one in the file. Frees nothing of `store`. */
bk_status bk_row_tokens_open(bk_row_tokens *t, bk_store *store, const bk_store_object *o, const char *file,
                             const char *model, bk_error *err) BK_MUST_USE;
void bk_row_tokens_close(bk_row_tokens *t); /* before the store */
/* *id = -1 where there is none. */
bk_status bk_row_token_id(bk_row_tokens *t, int64_t sample, int64_t token, int64_t *id, bk_error *err) BK_MUST_USE;
/* The bytes of a token, malloc'd; NULL when there is no text of it. */
char *bk_row_token_text(const bk_row_tokens *t, int64_t id, size_t *len);

#endif
