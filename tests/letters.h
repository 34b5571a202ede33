/* A model that was made for tests of verbs, what it does is known beforehand; and calling them in this process.
 *
 * Tokens are the 256 bytes and </s>. Attention does nothing; the letter after x is x + 1, after z comes </s>. A '.' has a
 * large last channel that only gate and up read: it is an upper outlier at down_raw and block_out, and, since the norm
 * makes its other channels small, a lower one at query and key. */
#ifndef BK_TESTS_LETTERS_H
#define BK_TESTS_LETTERS_H

#include <check.h>

#include "autograd/error.h"
#include "io/json.h"
#include "tests/tiny_model.h"

enum { LETTERS_EOS = 256 };
#define LETTERS_FLAG 300.0f /* last channel of a '.' */

extern struct letters {
    char folder[BK_TINY_PATH];    /* of the model and of all else */
    char text[BK_TINY_PATH + 64]; /* lines of 32 bytes with one '.' each, so that every window of 32 has one */
    char out[BK_TINY_PATH + 64];  /* for a dump */
    char printed[1 << 20];        /* by the last verb */
    bk_error err;
} letters;

/* Checked fixtures; letters_begin_run: with the model's run of 8 bits in `run`. */
void letters_begin(void);
void letters_begin_run(void);
void letters_end(void);

/* Embedding of a token. */
float letters_embedding(int64_t id, int64_t channel, int64_t hidden);
/* A path in the folder, until the next call. */
const char *letters_path(const char *name);
/* Exit code of a verb with arguments up to NULL. */
int letters_call(int (*verb)(int, char **), const char *name, ...);
bk_json *letters_json(void); /* what was printed */

#endif
