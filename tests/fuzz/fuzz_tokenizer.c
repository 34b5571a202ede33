/* Fuzz target of the tokenizers, run from the repository's root. The first byte chooses: a tokenizer.json that either
 * loads, and then encodes to ids in range, or leaves a message; or a text that a byte-level and a SentencePiece-style
 * tokenizer take apart (the first one without loss). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const bk_tokenizer *fixed(int which)
{
    static const char *const folders[] = {"tests/data/tok_llama3", "tests/data/tok_llama2"};
    static bk_tokenizer *t[2];
    if (!t[which] && bk_tokenizer_from_folder(folders[which], &t[which], NULL)) abort();
    return t[which];
}

/* Encodes and decodes; a failure must leave a message. */
static void try_text(const bk_tokenizer *t, const char *text, size_t len, bool special, bool lossless)
{
    bk_error err = {0};
    int32_t *ids;
    int64_t n;
    if (bk_tokenizer_encode(t, text, len, special, &ids, &n, &err)) {
        if (!err.msg[0] || lossless) abort();
        return;
    }
    char *back;
    size_t back_len;
    if (bk_tokenizer_decode(t, ids, n, false, &back, &back_len, &err)) abort();
    if (lossless && (back_len != len || memcmp(back, text, len) != 0)) abort();
    free(back);
    free(ids);
}

static void try_json(const char *text, size_t len)
{
    static const char sample[] = "Hello, world 123\n\n  <s>caf\xc3\xa9\xff\0 \xe2\x96\x81";
    bk_error err = {0};
    bk_json *doc;
    bk_tokenizer *t;
    if (bk_json_parse(text, len, "fuzz.json", &doc, &err)) return;
    bk_status s = bk_tokenizer_from_json(doc, doc, &t, &err);
    bk_json_free(doc);
    if (s && !err.msg[0]) abort();
    for (int special = 0; !s && special < 2; special++) try_text(t, sample, sizeof sample - 1, special, false);
    if (!s) bk_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 4) {
    case 0: try_text(fixed(0), text, size - 1, false, true); break;
    case 1: try_text(fixed(1), text, size - 1, true, false); break;
    default: try_json(text, size - 1);
    }
    return 0;
}
