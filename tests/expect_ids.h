/* What a tokenizer must make of a text. */
#ifndef EXPECT_IDS_H
#define EXPECT_IDS_H

#include "io/tokenizer.h"

void expect_n(const bk_tokenizer *t, const char *text, size_t len, bool special, const int32_t *want, int64_t n);
/* Encoding is BK_EFORMAT with a message that has `says` in it. */
void encode_fails(const bk_tokenizer *t, const char *text, size_t len, const char *says);
/* Decoding the ids gives the text. */
void round_trip(const bk_tokenizer *t, const char *text, size_t len);

#define expect(t, text, special, ...)                                                                              \
    do {                                                                                                           \
        const int32_t want_ids[] = {-1, __VA_ARGS__};                                                              \
        expect_n(t, text, strlen(text), special, want_ids + 1, (int64_t)(sizeof want_ids / sizeof *want_ids) - 1); \
    } while (0)

#endif
