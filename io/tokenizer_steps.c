/* Normalizers and pre-tokenizers of a tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"

#define BYTE_LEVEL_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static const char *type_of(const bk_json *j)
{
    return bk_json_str(bk_json_get(j, "type"), "?");
}

/* {"String": s} or {"Regex": s}. */
static bk_status pattern_of(const bk_json *j, const char **pattern, bool *literal, bk_error *err)
{
    const bk_json *p = bk_json_get(j, "pattern");
    *pattern = bk_json_str(bk_json_get(p, "String"), NULL);
    *literal = *pattern != NULL;
    if (!*pattern) *pattern = bk_json_str(bk_json_get(p, "Regex"), NULL);
    return *pattern ? BK_OK : bk_fail(err, BK_EFORMAT, "%s has no pattern (String or Regex)", type_of(j));
}

/* What stands for a space inside tokens. */
static bk_status set_space(bk_tokenizer *t, const char *mark, bk_error *err)
{
    free(t->space);
    t->space = mark[0] ? strdup(mark) : NULL;
    return mark[0] && !t->space ? bk_fail(err, BK_ENOMEM, "no memory for a tokenizer") : BK_OK;
}

static bk_status load_replace(bk_tokenizer *t, const bk_json *j, bk_error *err)
{
    const char *pattern, *content = bk_json_str(bk_json_get(j, "content"), NULL);
    bool literal;
    BK_TRY(pattern_of(j, &pattern, &literal, err));
    if (!content) return bk_fail(err, BK_EFORMAT, "Replace has no content");
    if (strcmp(pattern, " ") == 0) BK_TRY(set_space(t, content, err));
    return bk_steps_replace(&t->normalizer, pattern, literal, content, err);
}

static bk_status load_normalizer(bk_tokenizer *t, const bk_json *j, int depth, bk_error *err)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* in the order of bk_step_kind */
    if (bk_json_kind_of(j) == BK_JSON_NULL) return BK_OK;
    const char *type = type_of(j);
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        const bk_json *all = bk_json_get(j, "normalizers");
        for (size_t i = 0; i < bk_json_size(all); i++) BK_TRY(load_normalizer(t, bk_json_at(all, i), depth + 1, err));
        return BK_OK;
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i]) == 0)
            return bk_steps_add(&t->normalizer, (bk_step_kind)(BK_STEP_NFC + i), &(bk_step *){0}, err);
    if (strcmp(type, "Prepend") == 0) {
        t->strip_space = true;
        return bk_steps_prepend(&t->normalizer, bk_json_str(bk_json_get(j, "prepend"), ""), false, false, err);
    }
    if (strcmp(type, "Replace") == 0) return load_replace(t, j, err);
    return bk_fail(err, BK_EUNSUP, "normalizer '%s' is not supported", type);
}

static bk_status load_split(bk_tokenizer *t, const bk_json *j, bk_error *err)
{
    const char *pattern, *behaviour = bk_json_str(bk_json_get(j, "behavior"), "?");
    bool literal;
    BK_TRY(pattern_of(j, &pattern, &literal, err));
    for (int b = 0; b < BK_SPLIT_BEHAVIOURS; b++)
        if (strcmp(behaviour, bk_split_names[b]) == 0)
            return bk_steps_split(&t->pretokenizer, pattern, literal, (bk_split_behaviour)b,
                                  bk_json_bool(bk_json_get(j, "invert"), false), err);
    return bk_fail(err, BK_EUNSUP, "Split with the behavior '%s' is not supported", behaviour);
}

static bk_status load_byte_level(bk_tokenizer *t, const bk_json *j, bk_error *err)
{
    t->byte_level = true;
    if (bk_json_bool(bk_json_get(j, "add_prefix_space"), true))
        BK_TRY(bk_steps_prepend(&t->pretokenizer, " ", true, false, err));
    if (!bk_json_bool(bk_json_get(j, "use_regex"), true)) return BK_OK;
    return bk_steps_split(&t->pretokenizer, BYTE_LEVEL_WORDS, false, BK_SPLIT_ISOLATED, false, err);
}

static bk_status load_metaspace(bk_tokenizer *t, const bk_json *j, bk_error *err)
{
    const char *mark = bk_json_str(bk_json_get(j, "replacement"), BK_SPACE_MARK);
    bool prefix = bk_json_bool(bk_json_get(j, "add_prefix_space"), true);
    const char *scheme = bk_json_str(bk_json_get(j, "prepend_scheme"), prefix ? "always" : "never");
    bool never = strcmp(scheme, "never") == 0, first = strcmp(scheme, "first") == 0;
    if (!never && !first && strcmp(scheme, "always") != 0)
        return bk_fail(err, BK_EUNSUP, "Metaspace with the prepend_scheme '%s' is not supported", scheme);
    BK_TRY(set_space(t, mark, err));
    BK_TRY(bk_steps_replace(&t->pretokenizer, " ", true, mark, err));
    if (!never) BK_TRY(bk_steps_prepend(&t->pretokenizer, mark, true, first, err));
    t->strip_space |= !never;
    if (!bk_json_bool(bk_json_get(j, "split"), true)) return BK_OK;
    return bk_steps_split(&t->pretokenizer, mark, true, BK_SPLIT_MERGED_WITH_NEXT, false, err);
}

static bk_status load_pretokenizer(bk_tokenizer *t, const bk_json *j, int depth, bk_error *err)
{
    if (bk_json_kind_of(j) == BK_JSON_NULL) return BK_OK;
    const char *type = type_of(j);
    if (t->byte_level) return bk_fail(err, BK_EUNSUP, "pre_tokenizer '%s' after ByteLevel is not supported", type);
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        const bk_json *all = bk_json_get(j, "pretokenizers");
        for (size_t i = 0; i < bk_json_size(all); i++) BK_TRY(load_pretokenizer(t, bk_json_at(all, i), depth + 1, err));
        return BK_OK;
    }
    if (strcmp(type, "Split") == 0) return load_split(t, j, err);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, j, err);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(t, j, err);
    if (strcmp(type, "Digits") != 0) return bk_fail(err, BK_EUNSUP, "pre_tokenizer '%s' is not supported", type);
    bool each = bk_json_bool(bk_json_get(j, "individual_digits"), false);
    return bk_steps_split(&t->pretokenizer, "\\p{N}", false, each ? BK_SPLIT_ISOLATED : BK_SPLIT_CONTIGUOUS, false,
                          err);
}

bk_status bk_tokenizer_load_steps(bk_tokenizer *t, const bk_json *tokenizer, bk_error *err)
{
    BK_TRY(load_normalizer(t, bk_json_get(tokenizer, "normalizer"), 0, err));
    return load_pretokenizer(t, bk_json_get(tokenizer, "pre_tokenizer"), 0, err);
}
