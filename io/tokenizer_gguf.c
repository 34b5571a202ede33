/* Tokenizers from the metadata of a GGUF file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"
#include "io/utf8.h"

#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLAMA3_WORDS                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2_WORDS                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Values of tokenizer.ggml.pre: the expressions split one after the other. */
typedef struct pre {
    const char *name;
    const char *split[4];
    bool ignore_merges, add_bos, nfc;
} pre;

static const pre pres[] = {
    {.name = "gpt-2", .split = {GPT2_WORDS "|\\s+"}},
    {.name = "default", .split = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.name = "smollm", .split = {"\\p{N}", GPT2_WORDS "|\\s+"}},
    {.name = "llama-bpe", .split = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .split = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .split = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "qwen2", .split = {QWEN2_WORDS}, .nfc = true},
};

static bk_status load_tokens(const bk_gguf *g, bk_tokenizer *t, bk_error *err)
{
    const char *key = "tokenizer.ggml.tokens", *kinds = "tokenizer.ggml.token_type";
    int64_t n = bk_gguf_array_len(g, key), n_kinds = bk_gguf_array_len(g, kinds);
    size_t bytes = 0;
    if (n_kinds && n_kinds != n)
        return bk_fail(err, BK_EFORMAT, "%lld tokens but %lld entries in %s", (long long)n, (long long)n_kinds, kinds);
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        if (!bk_gguf_array_str(g, key, i, &len)) return bk_fail(err, BK_EFORMAT, "%s is no list of strings", key);
        bytes += len;
    }
    BK_TRY(bk_tokenizer_alloc(t, n, bytes, err));
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *text = bk_gguf_array_str(g, key, i, &len);
        int64_t kind = n_kinds ? bk_gguf_array_int(g, kinds, i, -1) : BK_TOKEN_NORMAL;
        if (kind < BK_TOKEN_NORMAL || kind > BK_TOKEN_BYTE)
            return bk_fail(err, BK_EFORMAT, "token %lld has type %lld (1 to 6 are defined)", (long long)i,
                           (long long)kind);
        BK_TRY(bk_tokenizer_set(t, i, text, len, (bk_token_kind)kind, err));
        bool special = kind == BK_TOKEN_CONTROL || kind == BK_TOKEN_UNKNOWN;
        if (special || kind == BK_TOKEN_USER)
            BK_TRY(bk_tokenizer_add_added(&t->added, text, len, (bk_added){.id = (int32_t)i, .special = special}, err));
    }
    return BK_OK;
}

static bk_status special_id(const bk_gguf *g, const bk_tokenizer *t, const char *key, int32_t *id, bk_error *err)
{
    int64_t v = bk_gguf_int(g, key, -1);
    if (v < -1 || v >= t->n)
        return bk_fail(err, BK_EFORMAT, "%s is %lld, but there are %lld tokens", key, (long long)v, (long long)t->n);
    *id = (int32_t)v;
    return BK_OK;
}

static bk_status load_specials(const bk_gguf *g, bk_tokenizer *t, bool add_bos, bk_error *err)
{
    BK_TRY(special_id(g, t, "tokenizer.ggml.bos_token_id", &t->bos, err));
    BK_TRY(special_id(g, t, "tokenizer.ggml.eos_token_id", &t->eos, err));
    t->add_bos = t->bos >= 0 && bk_gguf_bool(g, "tokenizer.ggml.add_bos_token", add_bos);
    size_t len;
    const char *chat = bk_gguf_str(g, "tokenizer.chat_template", &len);
    if (!chat) return BK_OK;
    t->chat_template = strdup(chat);
    return t->chat_template ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the chat template");
}

static bk_status load_merge(bk_tokenizer *t, int32_t rank, const char *merge, size_t len, bk_error *err)
{
    const char *gap = len > 1 ? memchr(merge + 1, ' ', len - 1) : NULL; /* a token may begin with a space */
    if (!gap)
        return bk_fail(err, BK_EFORMAT, "merge %d ('%.*s') is no pair of tokens", rank, (int)(len < 200 ? len : 200),
                       merge);
    size_t n = (size_t)(gap - merge);
    char *joined = malloc(len);
    if (!joined) return bk_fail(err, BK_ENOMEM, "no memory for merge %d", rank);
    memcpy(joined, merge, n);
    memcpy(joined + n, gap + 1, len - n - 1);
    int32_t left = bk_tokenizer_plain(t, merge, n), right = bk_tokenizer_plain(t, gap + 1, len - n - 1);
    int32_t id = bk_tokenizer_plain(t, joined, len - 1);
    free(joined);
    if (left < 0 || right < 0 || id < 0)
        return bk_fail(err, BK_EFORMAT, "merge %d ('%.*s'): %s is no token", rank, (int)(len < 200 ? len : 200), merge,
                       left < 0    ? "its left side"
                       : right < 0 ? "its right side"
                                   : "its result");
    return bk_tokenizer_add_merge(t, left, right, rank, id, err);
}

static bk_status load_byte_level(const bk_gguf *g, bk_tokenizer *t, bk_error *err)
{
    const char *key = "tokenizer.ggml.merges", *name = bk_gguf_str(g, "tokenizer.ggml.pre", NULL);
    const pre *p = NULL;
    if (!name)
        return bk_fail(err, BK_EUNSUP,
                       "no tokenizer.ggml.pre: which way to split words is unknown; convert the model again");
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strcmp(pres[i].name, name) == 0) p = &pres[i];
    if (!p)
        return bk_fail(
            err, BK_EUNSUP,
            "the pre-tokenizer '%s' (tokenizer.ggml.pre) is not known; gpt-2, default, smollm, llama-bpe and qwen2 are",
            name);
    if (p->nfc) BK_TRY(bk_steps_add(&t->normalizer, BK_STEP_NFC, &(bk_step *){0}, err));
    for (int i = 0; i < 4 && p->split[i]; i++)
        BK_TRY(bk_steps_split(&t->pretokenizer, p->split[i], false, BK_SPLIT_ISOLATED, false, err));
    t->byte_level = true;
    t->ignore_merges = p->ignore_merges;
    for (int64_t i = 0; i < bk_gguf_array_len(g, key); i++) {
        size_t len;
        const char *merge = bk_gguf_array_str(g, key, i, &len);
        if (!merge) return bk_fail(err, BK_EFORMAT, "%s is no list of strings", key);
        BK_TRY(load_merge(t, (int32_t)i, merge, len, err));
    }
    return load_specials(g, t, p->add_bos, err);
}

static bk_status load_scores(const bk_gguf *g, bk_tokenizer *t, bk_error *err)
{
    const char *key = "tokenizer.ggml.scores";
    int64_t n = bk_gguf_array_len(g, key);
    if (n != t->n)
        return bk_fail(err, BK_EFORMAT, "%lld tokens but %lld entries in %s", (long long)t->n, (long long)n, key);
    t->score = malloc((size_t)n * sizeof *t->score);
    if (!t->score) return bk_fail(err, BK_ENOMEM, "no memory for %lld scores", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        t->score[i] = (float)bk_gguf_array_num(g, key, i, NAN);
        if (!isfinite(t->score[i]))
            return bk_fail(err, BK_EFORMAT, "the score of token %lld is no finite number", (long long)i);
    }
    return BK_OK;
}

static bk_status load_sentencepiece(const bk_gguf *g, bk_tokenizer *t, bk_error *err)
{
    if (bk_gguf_array_len(g, "tokenizer.ggml.precompiled_charsmap") > 0)
        return bk_fail(err, BK_EUNSUP,
                       "a SentencePiece normalizer (tokenizer.ggml.precompiled_charsmap) is not supported");
    if (bk_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", false))
        return bk_fail(err, BK_EUNSUP, "tokenizer.ggml.remove_extra_whitespaces is not supported");
    t->strip_space = bk_gguf_bool(g, "tokenizer.ggml.add_space_prefix", true);
    if (t->strip_space) BK_TRY(bk_steps_prepend(&t->normalizer, BK_SPACE_MARK, false, false, err));
    BK_TRY(bk_steps_replace(&t->normalizer, " ", true, BK_SPACE_MARK, err));
    t->space = strdup(BK_SPACE_MARK);
    if (!t->space) return bk_fail(err, BK_ENOMEM, "no memory for a tokenizer");
    t->fuse_unknown = true;
    BK_TRY(special_id(g, t, "tokenizer.ggml.unknown_token_id", &t->unknown, err));
    BK_TRY(load_scores(g, t, err));
    BK_TRY(bk_tokenizer_merges_from_scores(t, err));
    return load_specials(g, t, true, err);
}

static bk_status load(const bk_gguf *g, bk_tokenizer *t, bk_error *err)
{
    const char *model = bk_gguf_str(g, "tokenizer.ggml.model", NULL);
    if (!model) return bk_fail(err, BK_EFORMAT, "no tokenizer (key tokenizer.ggml.model)");
    bool byte_level = strcmp(model, "gpt2") == 0;
    if (!byte_level && strcmp(model, "llama") != 0)
        return bk_fail(
            err, BK_EUNSUP,
            "a tokenizer of kind '%s' is not supported; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are",
            model);
    BK_TRY(load_tokens(g, t, err));
    BK_TRY(byte_level ? load_byte_level(g, t, err) : load_sentencepiece(g, t, err));
    return bk_tokenizer_finish(t, err);
}

bk_status bk_tokenizer_from_gguf(const bk_gguf *g, bk_tokenizer **out, bk_error *err)
{
    *out = NULL;
    bk_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return bk_fail(err, BK_ENOMEM, "no memory for a tokenizer");
    bk_status s = load(g, t, err);
    if (s) {
        bk_tokenizer_free(t);
        bk_error_prefix(err, "%s: tokenizer", bk_gguf_path(g));
        return s;
    }
    *out = t;
    return BK_OK;
}
