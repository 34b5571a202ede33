/* Tokenizers from Hugging Face's tokenizer.json and tokenizer_config.json: the model and its tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/tokenizer_impl.h"

static bool is_byte_token(const char *s)
{
    return strlen(s) == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>';
}

static bk_status token_id(const bk_json *v, const char *what, int64_t *id, bk_error *err)
{
    *id = bk_json_int(v, -1);
    if (*id < 0 || *id >= 1 << 24) return bk_fail(err, BK_EFORMAT, "%s has no id in 0 .. %d", what, (1 << 24) - 1);
    return BK_OK;
}

static bk_status added_content(const bk_json *added, size_t i, const char **text, size_t *len, int64_t *id,
                               bk_error *err)
{
    const bk_json *a = bk_json_at(added, i);
    char what[64];
    snprintf(what, sizeof what, "added_tokens[%zu]", i);
    *text = bk_json_bytes(bk_json_get(a, "content"), len);
    if (!*text) return bk_fail(err, BK_EFORMAT, "%s has no content", what);
    return token_id(bk_json_get(a, "id"), what, id, err);
}

/* How many ids and bytes of text the vocabulary and the added tokens need together. */
static bk_status measure(const bk_json *vocab, const bk_json *added, int64_t *n, size_t *bytes, bk_error *err)
{
    int64_t id;
    *n = 0;
    *bytes = 0;
    for (void *it = bk_json_first(vocab); it; it = bk_json_next(vocab, it)) {
        BK_TRY(token_id(bk_json_value(it), bk_json_key(it), &id, err));
        *bytes += strlen(bk_json_key(it));
        if (id >= *n) *n = id + 1;
    }
    for (size_t i = 0; i < bk_json_size(added); i++) {
        const char *text;
        size_t len;
        BK_TRY(added_content(added, i, &text, &len, &id, err));
        *bytes += len;
        if (id >= *n) *n = id + 1;
    }
    return BK_OK;
}

static bk_status load_vocab(bk_tokenizer *t, const bk_json *vocab, bool byte_fallback, bk_error *err)
{
    for (void *it = bk_json_first(vocab); it; it = bk_json_next(vocab, it)) {
        const char *text = bk_json_key(it);
        bk_token_kind kind = byte_fallback && is_byte_token(text) ? BK_TOKEN_BYTE : BK_TOKEN_NORMAL;
        BK_TRY(bk_tokenizer_set(t, bk_json_int(bk_json_value(it), -1), text, strlen(text), kind, err));
    }
    return BK_OK;
}

static bk_status keep(void *ctx, const char *text, size_t len, bk_place place, bk_error *err)
{
    (void)place;
    return bk_buffer_put(ctx, text, len, err);
}

/* The token's text as the normalizer would leave it in a text. */
static bk_status add_normalized(bk_tokenizer *t, const char *text, size_t len, bk_added a, bk_error *err)
{
    bk_buffer out = {0};
    bk_matcher *m;
    BK_TRY(bk_matcher_new(&m, err));
    bk_status s = bk_steps_run(&t->normalizer, m, text, len, (bk_place){0, true}, keep, &out, err);
    if (!s && out.len) s = bk_tokenizer_add_added(&t->added_normalized, out.data, out.len, a, err);
    free(out.data);
    bk_matcher_free(m);
    return s;
}

static bk_status load_added(bk_tokenizer *t, const bk_json *added, bk_error *err)
{
    for (size_t i = 0; i < bk_json_size(added); i++) {
        const bk_json *j = bk_json_at(added, i);
        const char *text;
        size_t len;
        int64_t id;
        BK_TRY(added_content(added, i, &text, &len, &id, err));
        if (bk_json_bool(bk_json_get(j, "single_word"), false))
            return bk_fail(err, BK_EUNSUP, "added token '%s': single_word is not supported", text);
        bool special = bk_json_bool(bk_json_get(j, "special"), false);
        bk_token_kind kind = special ? BK_TOKEN_CONTROL : BK_TOKEN_USER;
        int32_t there = bk_strmap_get(&t->by_text, text, len);
        if (there >= 0 && there != id)
            return bk_fail(err, BK_EFORMAT, "added token '%s' has the id %lld, but %d in the vocabulary", text,
                           (long long)id, there);
        if (there >= 0)
            t->piece[id].kind = (uint8_t)kind;
        else
            BK_TRY(bk_tokenizer_set(t, id, text, len, kind, err));
        bk_added a = {.id = (int32_t)id,
                      .special = special,
                      .lstrip = bk_json_bool(bk_json_get(j, "lstrip"), false),
                      .rstrip = bk_json_bool(bk_json_get(j, "rstrip"), false)};
        BK_TRY(bk_json_bool(bk_json_get(j, "normalized"), !special)
                   ? add_normalized(t, text, len, a, err)
                   : bk_tokenizer_add_added(&t->added, text, len, a, err));
    }
    return BK_OK;
}

/* The two sides of a merge: ["a", "b"] or "a b". */
static bk_status merge_sides(const bk_json *merge, const char *side[2], size_t len[2], size_t i, bk_error *err)
{
    const char *text = bk_json_bytes(merge, &len[0]), *gap = text ? memchr(text, ' ', len[0]) : NULL;
    if (gap) {
        side[0] = text;
        side[1] = gap + 1;
        len[1] = len[0] - (size_t)(gap + 1 - text);
        len[0] = (size_t)(gap - text);
    } else {
        for (size_t k = 0; k < 2; k++) side[k] = bk_json_bytes(bk_json_at(merge, k), &len[k]);
    }
    if (!side[0] || !side[1] || (gap ? memchr(side[1], ' ', len[1]) != NULL : bk_json_size(merge) != 2))
        return bk_fail(err, BK_EFORMAT, "model.merges[%zu] is no pair of tokens", i);
    return BK_OK;
}

static bk_status load_merge(bk_tokenizer *t, const bk_json *merge, size_t i, bk_buffer *joined, bk_error *err)
{
    const char *side[2] = {0};
    size_t len[2];
    int32_t id[2], result;
    BK_TRY(merge_sides(merge, side, len, i, err));
    joined->len = 0;
    for (int k = 0; k < 2; k++) {
        id[k] = bk_strmap_get(&t->by_text, side[k], len[k]);
        if (id[k] < 0)
            return bk_fail(err, BK_EFORMAT, "model.merges[%zu]: '%.*s' is no token", i,
                           (int)(len[k] < 200 ? len[k] : 200), side[k]);
        BK_TRY(bk_buffer_put(joined, side[k], len[k], err));
    }
    result = bk_strmap_get(&t->by_text, joined->data, joined->len);
    if (result < 0)
        return bk_fail(err, BK_EFORMAT, "model.merges[%zu]: its result '%.*s' is no token", i,
                       (int)(joined->len < 200 ? joined->len : 200), joined->data);
    return bk_tokenizer_add_merge(t, id[0], id[1], (int32_t)i, result, err);
}

static bk_status load_merges(bk_tokenizer *t, const bk_json *merges, bk_error *err)
{
    bk_buffer joined = {0};
    bk_status s =
        bk_json_kind_of(merges) == BK_JSON_ARRAY ? BK_OK : bk_fail(err, BK_EFORMAT, "model.merges is no list");
    for (size_t i = 0; !s && i < bk_json_size(merges); i++) s = load_merge(t, bk_json_at(merges, i), i, &joined, err);
    free(joined.data);
    return s;
}

/* Scores that bk_tokenizer_save wrote: equal ones tie, which ranks cannot express. */
static bk_status load_scores(bk_tokenizer *t, const bk_json *scores, bk_error *err)
{
    if (bk_json_size(scores) != (size_t)t->n)
        return bk_fail(err, BK_EFORMAT, "brick_scores has %zu entries for %lld tokens", bk_json_size(scores),
                       (long long)t->n);
    t->score = malloc((size_t)t->n * sizeof *t->score);
    if (!t->score) return bk_fail(err, BK_ENOMEM, "no memory for %lld scores", (long long)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        const bk_json *v = bk_json_at(scores, (size_t)i);
        t->score[i] = (float)bk_json_num(v, 0);
        if (bk_json_kind_of(v) != BK_JSON_REAL && bk_json_kind_of(v) != BK_JSON_INT)
            return bk_fail(err, BK_EFORMAT, "brick_scores[%lld] is no number", (long long)i);
    }
    return bk_tokenizer_merges_from_scores(t, err);
}

static bk_status check_model(const bk_json *model, bk_error *err)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = bk_json_str(bk_json_get(model, "type"), "BPE");
    if (bk_json_kind_of(model) != BK_JSON_OBJECT || bk_json_kind_of(bk_json_get(model, "vocab")) == BK_JSON_NULL)
        return bk_fail(err, BK_EFORMAT, "no model with a vocabulary");
    if (strcmp(type, "BPE") != 0)
        return bk_fail(err, BK_EUNSUP, "a tokenizer model of type '%s' is not supported; BPE is", type);
    if (bk_json_kind_of(bk_json_get(model, "vocab")) != BK_JSON_OBJECT)
        return bk_fail(err, BK_EFORMAT, "model.vocab is no object");
    if (bk_json_num(bk_json_get(model, "dropout"), 0) != 0)
        return bk_fail(err, BK_EUNSUP, "model.dropout is not supported");
    for (size_t i = 0; i < 2; i++)
        if (bk_json_str(bk_json_get(model, empty[i]), "")[0])
            return bk_fail(err, BK_EUNSUP, "model.%s is not supported", empty[i]);
    return BK_OK;
}

static bk_status load_model(bk_tokenizer *t, const bk_json *model, const bk_json *added, const bk_json *scores,
                            bk_error *err)
{
    const bk_json *vocab = bk_json_get(model, "vocab"), *unknown = bk_json_get(model, "unk_token");
    int64_t n;
    size_t bytes, len;
    BK_TRY(measure(vocab, added, &n, &bytes, err));
    BK_TRY(bk_tokenizer_alloc(t, n, bytes, err));
    BK_TRY(load_vocab(t, vocab, bk_json_bool(bk_json_get(model, "byte_fallback"), false), err));
    BK_TRY(load_added(t, added, err));
    BK_TRY(scores ? load_scores(t, scores, err) : load_merges(t, bk_json_get(model, "merges"), err));
    t->ignore_merges = bk_json_bool(bk_json_get(model, "ignore_merges"), false);
    t->fuse_unknown = bk_json_bool(bk_json_get(model, "fuse_unk"), false);
    const char *text = bk_json_bytes(unknown, &len);
    if (text) t->unknown = bk_strmap_get(&t->by_text, text, len);
    return text && t->unknown < 0 ? bk_fail(err, BK_EFORMAT, "model.unk_token '%s' is no token", text) : BK_OK;
}

/* The id of the token named in the config; -1 for null or absent. Newer files give an object with the content. */
static bk_status named_token(const bk_tokenizer *t, const bk_json *config, const char *key, int32_t *id, bk_error *err)
{
    const bk_json *v = bk_json_get(config, key);
    size_t len;
    const char *text = bk_json_bytes(bk_json_kind_of(v) == BK_JSON_OBJECT ? bk_json_get(v, "content") : v, &len);
    *id = -1;
    if (bk_json_kind_of(v) == BK_JSON_NULL) return BK_OK;
    if (text) *id = bk_strmap_get(&t->by_text, text, len);
    return *id < 0 ? bk_fail(err, BK_EFORMAT, "tokenizer_config.json: %s ('%s') is no token", key, text ? text : "?")
                   : BK_OK;
}

/* The special token that a post-processor puts first, -1 if there is none. */
static bk_status first_special(const bk_tokenizer *t, const bk_json *post, int32_t *id, bk_error *err)
{
    if (bk_json_kind_of(post) == BK_JSON_NULL) return BK_OK;
    const char *type = bk_json_str(bk_json_get(post, "type"), "?");
    const bk_json *all = bk_json_get(post, "processors"), *single = bk_json_get(post, "single");
    if (strcmp(type, "Sequence") == 0) {
        for (size_t i = 0; i < bk_json_size(all); i++) {
            if (strcmp(bk_json_str(bk_json_get(bk_json_at(all, i), "type"), "?"), "Sequence") == 0)
                return bk_fail(err, BK_EUNSUP, "a post_processor of nested sequences is not supported");
            BK_TRY(first_special(t, bk_json_at(all, i), id, err));
        }
        return BK_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) return BK_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return bk_fail(err, BK_EUNSUP, "post_processor '%s' is not supported", type);
    const bk_json *first = bk_json_get(bk_json_at(single, 0), "SpecialToken");
    if (!first) return BK_OK;
    if (bk_json_get(bk_json_at(single, 1), "SpecialToken"))
        return bk_fail(err, BK_EUNSUP, "post_processor: two special tokens before the text are not supported");
    size_t len;
    const char *text = bk_json_bytes(bk_json_get(first, "id"), &len);
    *id = text ? bk_strmap_get(&t->by_text, text, len) : -1;
    return *id < 0 ? bk_fail(err, BK_EFORMAT, "post_processor: '%s' is no token", text ? text : "?") : BK_OK;
}

/* What the template puts first is the BOS, else the config's bos_token; add_bos_token overrides the template. */
static bk_status load_specials(bk_tokenizer *t, const bk_json *tokenizer, const bk_json *config, bk_error *err)
{
    int32_t first = -1;
    BK_TRY(first_special(t, bk_json_get(tokenizer, "post_processor"), &first, err));
    BK_TRY(named_token(t, config, "bos_token", &t->bos, err));
    BK_TRY(named_token(t, config, "eos_token", &t->eos, err));
    if (first >= 0) t->bos = first;
    t->add_bos = t->bos >= 0 && bk_json_bool(bk_json_get(config, "add_bos_token"), first >= 0);
    return BK_OK;
}

static bk_status load(bk_tokenizer *t, const bk_json *tokenizer, const bk_json *config, bk_error *err)
{
    const bk_json *model = bk_json_get(tokenizer, "model");
    BK_TRY(check_model(model, err));
    BK_TRY(bk_tokenizer_load_steps(t, tokenizer, err));
    BK_TRY(load_model(t, model, bk_json_get(tokenizer, "added_tokens"), bk_json_get(config, "brick_scores"), err));
    BK_TRY(load_specials(t, tokenizer, config, err));
    return bk_tokenizer_finish(t, err);
}

bk_status bk_tokenizer_from_json(const bk_json *tokenizer, const bk_json *config, bk_tokenizer **out, bk_error *err)
{
    *out = NULL;
    bk_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return bk_fail(err, BK_ENOMEM, "no memory for a tokenizer");
    bk_status s = load(t, tokenizer, config, err);
    if (s)
        bk_tokenizer_free(t);
    else
        *out = t;
    return s;
}

static bk_status from_files(const char *dir, const char *path, const char *config_path, bk_tokenizer **out,
                            bk_error *err)
{
    bk_json *tokenizer, *config = NULL;
    BK_TRY(bk_json_load(path, &tokenizer, err));
    bk_status s = bk_exists(config_path) ? bk_json_load(config_path, &config, err) : BK_OK;
    if (!s) {
        s = bk_tokenizer_from_json(tokenizer, config, out, err);
        if (s) bk_error_prefix(err, "%s", path);
    }
    bool has_config = config != NULL;
    bk_json_free(tokenizer);
    bk_json_free(config);
    if (s) return s;
    (*out)->has_config = has_config;
    (*out)->folder = strdup(dir);
    if ((*out)->folder) return BK_OK;
    bk_tokenizer_free(*out);
    *out = NULL;
    return bk_fail(err, BK_ENOMEM, "no memory for a tokenizer");
}

bk_status bk_tokenizer_from_folder(const char *dir, bk_tokenizer **out, bk_error *err)
{
    *out = NULL;
    char *path = bk_path_join(dir, "tokenizer.json"), *config = bk_path_join(dir, "tokenizer_config.json");
    bk_status s =
        path && config ? from_files(dir, path, config, out, err) : bk_fail(err, BK_ENOMEM, "no memory for a path");
    free(path);
    free(config);
    return s;
}
