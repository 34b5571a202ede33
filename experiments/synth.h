/* Small models made from a seed, with what PrefixQuant needs to be shown: attention sinks, outlier tokens that vanish when a sink stands in
 * front of them, outlier channels; and texts sampled from the models themselves, so that whatever disturbs a model raises its perplexity.
 *
 * The vocabulary is the 256 bytes, <s> and </s>. Channels 0 .. 3 of the residual stream have a purpose: a constant, a flag of the
 * delimiters '.' and '\n', a mark of <s>, and the place where massive activations go. The MLP of the second block (the only one, if
 * there is but one) fires at a token with the flag and writes the massive activation. A head of the first block that finds <s> takes
 * the flag away from every token but <s>, so behind a <s> only <s> fires. Later blocks have a head that rests on tokens with a massive
 * activation, and the MLP of the last one fires at them again to take most of it back. Everything else is random. */
#ifndef BK_SYNTH_H
#define BK_SYNTH_H

#include "blocks/config.h"
#include "blocks/weights.h"

#define BK_SYNTH_BOS 256
#define BK_SYNTH_EOS 257
#define BK_SYNTH_VOCAB 258
#define BK_SYNTH_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ," /* of the texts, with the delimiters */
#define BK_SYNTH_DOCUMENT 512 /* tokens; every document was sampled behind a <s> */

enum { BK_SYNTH_CONST, BK_SYNTH_FLAG, BK_SYNTH_MARK, BK_SYNTH_MASSIVE, BK_SYNTH_CONTENT /* the first of the other channels */ };

typedef struct bk_synth {
    bk_config cfg;
    uint64_t seed;
    float *embed, *head;     /* [vocab, hidden]; head NULL when tied */
    float *final_norm;       /* [hidden] */
    bk_block_weights *block; /* [layers] */
} bk_synth;

/* "NAME", "key=value,..." or "NAME,key=value,...": a named shape (llama, qwen2, qwen3, tied, tiny) and changes to it. BK_EINVAL: an unknown
 * name or key (with suggestion), a value out of range, sizes that do not fit. */
bk_status bk_synth_shape(const char *text, bk_config *out, bk_error *err) BK_MUST_USE;
bk_status bk_synth_create(const bk_config *c, uint64_t seed, bk_synth **out, bk_error *err) BK_MUST_USE;
void bk_synth_free(bk_synth *s); /* NULL is legal */

/* Samples `documents` documents of BK_SYNTH_DOCUMENT bytes from the model: documents first, first + 1, ... of the seed. In front of each
 * the model saw one <s>. One token in 160 is a delimiter, '.' twice as often as '\n'; the letters come as the model says. */
bk_status bk_synth_sample(const bk_synth *s, int64_t first, int64_t documents, char *text, bk_error *err) BK_MUST_USE;

/* The Hugging Face folder with tokenizer; train.txt of so many documents, calib.txt and eval.txt of a quarter each (other documents);
 * no text when it is 0. Same arguments, same bytes. */
bk_status bk_synth_write(const bk_synth *s, const char *dir, int64_t documents, bk_error *err) BK_MUST_USE;

#endif
