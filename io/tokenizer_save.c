/* A tokenizer as Hugging Face's tokenizer.json and tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/tokenizer_impl.h"

static bk_json *str(const char *s)
{
    return bk_json_of_text(s);
}

static bk_json *typed(const char *type)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "type", str(type));
    return o;
}

static bool is_special(const bk_piece *p)
{
    return p->kind == BK_TOKEN_CONTROL || p->kind == BK_TOKEN_UNKNOWN;
}

static bk_json *added_tokens(const bk_tokenizer *t)
{
    bk_json *list = bk_json_array();
    for (int64_t i = 0; i < t->n; i++) {
        const bk_piece *p = &t->piece[i];
        if (!is_special(p) && p->kind != BK_TOKEN_USER) continue;
        bk_json *a = bk_json_object();
        bk_json_set(a, "id", bk_json_of_int(i));
        bk_json_set(a, "content", bk_json_of_str(p->text, p->len));
        bk_json_set(a, "single_word", bk_json_of_bool(false));
        bk_json_set(a, "lstrip", bk_json_of_bool(false));
        bk_json_set(a, "rstrip", bk_json_of_bool(false));
        bk_json_set(a, "normalized", bk_json_of_bool(false));
        bk_json_set(a, "special", bk_json_of_bool(is_special(p)));
        bk_json_push(list, a);
    }
    return list;
}

static bk_json *pattern_of(const bk_step *step)
{
    bk_json *p = bk_json_object();
    bk_json_set(p, step->literal ? "String" : "Regex", str(bk_regex_source(step->regex)));
    return p;
}

/* The steps that tokenizers of a GGUF have. */
static bk_json *step_of(const bk_step *step)
{
    bk_json *o;
    switch (step->kind) {
    case BK_STEP_PREPEND:
        o = typed("Prepend");
        bk_json_set(o, "prepend", bk_json_of_str(step->text, step->len));
        return o;
    case BK_STEP_REPLACE:
        o = typed("Replace");
        bk_json_set(o, "pattern", pattern_of(step));
        bk_json_set(o, "content", bk_json_of_str(step->text, step->len));
        return o;
    case BK_STEP_SPLIT:
        o = typed("Split");
        bk_json_set(o, "pattern", pattern_of(step));
        bk_json_set(o, "behavior", str(bk_split_names[step->behaviour]));
        bk_json_set(o, "invert", bk_json_of_bool(step->invert));
        return o;
    default: return typed("NFC");
    }
}

static bk_json *byte_level(void)
{
    bk_json *o = typed("ByteLevel");
    bk_json_set(o, "add_prefix_space", bk_json_of_bool(false));
    bk_json_set(o, "trim_offsets", bk_json_of_bool(true));
    bk_json_set(o, "use_regex", bk_json_of_bool(false));
    return o;
}

static bk_json *sequence(const char *key, bk_json *list)
{
    bk_json *o = typed("Sequence");
    bk_json_set(o, key, list);
    return o;
}

static bk_json *normalizer(const bk_tokenizer *t)
{
    if (t->normalizer.n == 0) return bk_json_null();
    bk_json *list = bk_json_array();
    for (size_t i = 0; i < t->normalizer.n; i++) bk_json_push(list, step_of(&t->normalizer.v[i]));
    return sequence("normalizers", list);
}

static bk_json *pretokenizer(const bk_tokenizer *t)
{
    if (!t->byte_level) return bk_json_null();
    bk_json *list = bk_json_array();
    for (size_t i = 0; i < t->pretokenizer.n; i++) bk_json_push(list, step_of(&t->pretokenizer.v[i]));
    bk_json_push(list, byte_level());
    return sequence("pretokenizers", list);
}

static bk_json *template_part(const char *kind, const char *id)
{
    bk_json *part = bk_json_object(), *o = bk_json_object();
    bk_json_set(part, "id", str(id));
    bk_json_set(part, "type_id", bk_json_of_int(0));
    bk_json_set(o, kind, part);
    return o;
}

static bk_json *template_of(const char *bos, int copies)
{
    static const char *const sequences[] = {"A", "B"};
    bk_json *list = bk_json_array();
    for (int i = 0; i < copies; i++) {
        bk_json_push(list, template_part("SpecialToken", bos));
        bk_json_push(list, template_part("Sequence", sequences[i]));
    }
    return list;
}

static bk_json *post_processor(const bk_tokenizer *t)
{
    if (!t->add_bos) return t->byte_level ? byte_level() : bk_json_null();
    const char *bos = t->piece[t->bos].text;
    bk_json *o = typed("TemplateProcessing"), *specials = bk_json_object(), *s = bk_json_object(),
            *ids = bk_json_array(), *tokens = bk_json_array();
    bk_json_push(ids, bk_json_of_int(t->bos));
    bk_json_push(tokens, str(bos));
    bk_json_set(s, "id", str(bos));
    bk_json_set(s, "ids", ids);
    bk_json_set(s, "tokens", tokens);
    bk_json_set(specials, bos, s);
    bk_json_set(o, "single", template_of(bos, 1));
    bk_json_set(o, "pair", template_of(bos, 2));
    bk_json_set(o, "special_tokens", specials);
    return o;
}

static bk_json *decoder(const bk_tokenizer *t)
{
    if (t->byte_level) return byte_level();
    bk_json *list = bk_json_array(), *space = typed("Replace"), *pattern = bk_json_object(), *strip = typed("Strip");
    bk_json_set(pattern, "String", str(t->space));
    bk_json_set(space, "pattern", pattern);
    bk_json_set(space, "content", str(" "));
    bk_json_push(list, space);
    bk_json_push(list, typed("ByteFallback"));
    bk_json_push(list, typed("Fuse"));
    bk_json_set(strip, "content", str(" "));
    bk_json_set(strip, "start", bk_json_of_int(t->strip_space));
    bk_json_set(strip, "stop", bk_json_of_int(0));
    bk_json_push(list, strip);
    return sequence("decoders", list);
}

static int by_rank(const void *x, const void *y)
{
    const bk_pair *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->left != b->left ? (a->left > b->left) - (a->left < b->left)
                              : (a->right > b->right) - (a->right < b->right);
}

static bk_json *merges(const bk_tokenizer *t)
{
    const bk_pairmap *m = &t->bpe.merges;
    bk_json *list = bk_json_array();
    bk_pair *pairs = malloc((m->used + 1) * sizeof *pairs);
    size_t n = 0;
    for (size_t i = 0; pairs && m->slot && i <= m->mask; i++)
        if (m->slot[i].left >= 0) pairs[n++] = m->slot[i];
    if (n) qsort(pairs, n, sizeof *pairs, by_rank);
    for (size_t i = 0; i < n; i++) {
        bk_json *pair = bk_json_array();
        bk_json_push(pair, str(t->piece[pairs[i].left].text));
        bk_json_push(pair, str(t->piece[pairs[i].right].text));
        bk_json_push(list, pair);
    }
    if (!pairs) bk_json_push(list, NULL); /* shows when the document is written */
    free(pairs);
    return list;
}

static bk_json *model(const bk_tokenizer *t)
{
    bk_json *o = typed("BPE"), *vocab = bk_json_object();
    for (int64_t i = 0; i < t->n; i++) bk_json_set(vocab, t->piece[i].text, bk_json_of_int(i));
    bk_json_set(o, "dropout", bk_json_null());
    bk_json_set(o, "unk_token", t->unknown >= 0 ? str(t->piece[t->unknown].text) : bk_json_null());
    bk_json_set(o, "continuing_subword_prefix", bk_json_null());
    bk_json_set(o, "end_of_word_suffix", bk_json_null());
    bk_json_set(o, "fuse_unk", bk_json_of_bool(t->fuse_unknown));
    bk_json_set(o, "byte_fallback", bk_json_of_bool(!t->byte_level));
    bk_json_set(o, "ignore_merges", bk_json_of_bool(t->ignore_merges));
    bk_json_set(o, "vocab", vocab);
    bk_json_set(o, "merges", merges(t));
    return o;
}

static bk_json *document(const bk_tokenizer *t)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "version", str("1.0"));
    bk_json_set(o, "truncation", bk_json_null());
    bk_json_set(o, "padding", bk_json_null());
    bk_json_set(o, "added_tokens", added_tokens(t));
    bk_json_set(o, "normalizer", normalizer(t));
    bk_json_set(o, "pre_tokenizer", pretokenizer(t));
    bk_json_set(o, "post_processor", post_processor(t));
    bk_json_set(o, "decoder", decoder(t));
    bk_json_set(o, "model", model(t));
    return o;
}

static bk_json *token_or_null(const bk_tokenizer *t, int32_t id)
{
    return id >= 0 ? str(t->piece[id].text) : bk_json_null();
}

static bk_json *config(const bk_tokenizer *t)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "tokenizer_class", str("PreTrainedTokenizerFast"));
    bk_json_set(o, "add_bos_token", bk_json_of_bool(t->add_bos));
    bk_json_set(o, "bos_token", token_or_null(t, t->bos));
    bk_json_set(o, "eos_token", token_or_null(t, t->eos));
    bk_json_set(o, "unk_token", token_or_null(t, t->unknown));
    bk_json_set(o, "clean_up_tokenization_spaces", bk_json_of_bool(false));
    if (t->chat_template) bk_json_set(o, "chat_template", str(t->chat_template));
    if (!t->score) return o;
    bk_json *scores = bk_json_array();
    for (int64_t i = 0; i < t->n; i++) bk_json_push(scores, bk_json_of_num((double)t->score[i]));
    bk_json_set(o, "brick_scores", scores);
    return o;
}

static bk_status save_json(bk_json *doc, const char *path, bk_error *err)
{
    bk_status s = bk_json_save(doc, path, err);
    bk_json_free(doc);
    return s;
}

/* `name` in the folder that the tokenizer came from, to the folder `dir`; a config may be absent. */
static bk_status copy(const bk_tokenizer *t, const char *name, const char *path, bk_error *err)
{
    char *from = bk_path_join(t->folder, name);
    if (!from) return bk_fail(err, BK_ENOMEM, "no memory for a path");
    bk_status s = bk_exists(from) ? bk_copy_file(from, path, err)
                                  : bk_fail(err, BK_EIO, "%s is gone since the tokenizer was read", from);
    free(from);
    return s;
}

static bk_status save(const bk_tokenizer *t, const char *path, const char *config_path, bk_error *err)
{
    if (!t->folder) {
        BK_TRY(save_json(document(t), path, err));
        return save_json(config(t), config_path, err);
    }
    BK_TRY(copy(t, "tokenizer.json", path, err));
    return t->has_config ? copy(t, "tokenizer_config.json", config_path, err) : BK_OK;
}

bk_status bk_tokenizer_save(const bk_tokenizer *t, const char *dir, bk_error *err)
{
    char *path = bk_path_join(dir, "tokenizer.json"), *config_path = bk_path_join(dir, "tokenizer_config.json");
    bk_status s =
        path && config_path ? save(t, path, config_path, err) : bk_fail(err, BK_ENOMEM, "no memory for a path");
    free(path);
    free(config_path);
    return s;
}
