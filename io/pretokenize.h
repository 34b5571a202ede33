/* The steps between a text and the words that a tokenizer's model sees: normalizers rewrite, pre-tokenizers rewrite or
 * split. Named and defined as in Hugging Face's tokenizer.json. */
#ifndef BK_PRETOKENIZE_H
#define BK_PRETOKENIZE_H

#include "io/buffer.h"
#include "io/regex.h"

typedef enum bk_step_kind {
    BK_STEP_NFC,
    BK_STEP_NFD,
    BK_STEP_NFKC,
    BK_STEP_NFKD,
    BK_STEP_PREPEND,
    BK_STEP_REPLACE,
    BK_STEP_SPLIT
} bk_step_kind;

/* What becomes of the matches of a split. */
typedef enum bk_split_behaviour {
    BK_SPLIT_REMOVED,
    BK_SPLIT_ISOLATED,
    BK_SPLIT_CONTIGUOUS,
    BK_SPLIT_MERGED_WITH_PREVIOUS,
    BK_SPLIT_MERGED_WITH_NEXT,
    BK_SPLIT_BEHAVIOURS
} bk_split_behaviour;

extern const char *const bk_split_names[BK_SPLIT_BEHAVIOURS]; /* "Removed" ... */

typedef struct bk_step {
    bk_step_kind kind;
    bk_regex *regex; /* REPLACE, SPLIT */
    bool literal;    /* it is a string */
    char *text;      /* PREPEND, REPLACE */
    size_t len;
    bool unless_there, first_only; /* PREPEND: not before a word that begins so; only at the start of the whole text */
    bk_split_behaviour behaviour;  /* SPLIT */
    bool invert;
} bk_step;

typedef struct bk_steps {
    bk_step *v;
    size_t n;
} bk_steps;

/* Appends a step and hands it out, zeroed but for its kind. */
bk_status bk_steps_add(bk_steps *s, bk_step_kind kind, bk_step **out, bk_error *err) BK_MUST_USE;
bk_status bk_steps_prepend(bk_steps *s, const char *text, bool unless_there, bool first_only,
                           bk_error *err) BK_MUST_USE;
bk_status bk_steps_replace(bk_steps *s, const char *pattern, bool literal, const char *text, bk_error *err) BK_MUST_USE;
bk_status bk_steps_split(bk_steps *s, const char *pattern, bool literal, bk_split_behaviour behaviour, bool invert,
                         bk_error *err) BK_MUST_USE;
void bk_steps_free(bk_steps *s);

/* Where a text stands: its first byte's offset in the user's text (messages name it), and whether that is the very
 * start. */
typedef struct bk_place {
    size_t offset;
    bool first;
} bk_place;

typedef bk_status (*bk_word_fn)(void *ctx, const char *word, size_t len, bk_place place, bk_error *err);

/* Runs the steps over a text and calls `word` for each part that is left, in order, never for an empty one. */
bk_status bk_steps_run(const bk_steps *s, bk_matcher *m, const char *text, size_t len, bk_place place, bk_word_fn word,
                       void *ctx, bk_error *err) BK_MUST_USE;

#endif
