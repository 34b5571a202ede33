/* Encoding: added tokens are cut out, the text between them is normalized, cut at normalized added tokens, split into
 * words, and each word becomes characters (or bytes) that are merged. */
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"
#include "io/utf8.h"

typedef struct encoder {
    const bk_tokenizer *t;
    bool special;
    bk_matcher *m;
    bk_word word;
    bk_buffer alphabet; /* a word in GPT-2's alphabet */
    int32_t *ids;
    int64_t n, cap;
} encoder;

static bk_status put_id(encoder *e, int32_t id, bk_error *err)
{
    if (e->n == e->cap) {
        int64_t cap = e->cap ? 2 * e->cap : 256;
        int32_t *ids = realloc(e->ids, (size_t)cap * sizeof *ids);
        if (!ids) return bk_fail(err, BK_ENOMEM, "no memory for %lld token ids", (long long)cap);
        e->ids = ids;
        e->cap = cap;
    }
    e->ids[e->n++] = id;
    return BK_OK;
}

static bk_status flush_word(encoder *e, bk_error *err)
{
    BK_TRY(bk_word_merge(&e->word, &e->t->bpe, err));
    for (int32_t i = 0; i < e->word.n; i++)
        if (e->word.sym[i].id >= 0) BK_TRY(put_id(e, e->word.sym[i].id, err));
    e->word.n = 0;
    return BK_OK;
}

/* No merge reaches across two characters that stand side by side in no token: the word falls apart there. */
static bk_status put_symbol(encoder *e, int32_t id, bk_error *err)
{
    if (e->word.n > 0 && !bk_pairmap_get(&e->t->bpe.inside, e->word.sym[e->word.n - 1].id, id))
        BK_TRY(flush_word(e, err));
    return bk_word_push(&e->word, id, err);
}

static bool have_bytes(const bk_tokenizer *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(unsigned char)s[i]] < 0) return false;
    return true;
}

static bk_status no_token(const char *s, size_t len, size_t offset, bk_error *err)
{
    uint32_t cp;
    if (len > 1 && bk_utf8_char(s, len, &cp))
        return bk_fail(err, BK_EFORMAT,
                       "the character U+%04X at byte %zu of the text has no token, and the tokenizer no unknown token",
                       cp, offset);
    return bk_fail(
        err, BK_EFORMAT,
        "the byte 0x%02X at byte %zu of the text has no token, and the tokenizer no unknown token; remove it",
        (unsigned char)*s, offset);
}

/* One character of a word, or one byte of a byte-level word: its own token, its bytes, or unknown. *unknown: so was the
 * one before. */
static bk_status put_char(encoder *e, const char *s, size_t len, size_t offset, bool *unknown, bk_error *err)
{
    const bk_tokenizer *t = e->t;
    int32_t id = t->byte_level ? t->byte_id[(unsigned char)*s] : bk_tokenizer_plain(t, s, len);
    bool bytes = id < 0 && have_bytes(t, s, len);
    if (id < 0 && !bytes) {
        if (t->unknown < 0) return no_token(s, len, offset, err);
        bool fused = *unknown && t->fuse_unknown;
        *unknown = true;
        BK_TRY(flush_word(e, err));
        return fused ? BK_OK : put_id(e, t->unknown, err);
    }
    *unknown = false;
    if (!bytes) return put_symbol(e, id, err);
    for (size_t i = 0; i < len; i++) BK_TRY(put_symbol(e, t->byte_id[(unsigned char)s[i]], err));
    return BK_OK;
}

static bk_status whole_word(encoder *e, const char *word, size_t len, int32_t *id, bk_error *err)
{
    if (!e->t->byte_level) {
        *id = bk_tokenizer_plain(e->t, word, len);
        return BK_OK;
    }
    e->alphabet.len = 0;
    for (size_t i = 0; i < len; i++) {
        char c[4];
        BK_TRY(bk_buffer_put(&e->alphabet, c, bk_utf8_put(bk_byte_to_char((unsigned char)word[i]), c), err));
    }
    *id = bk_tokenizer_plain(e->t, e->alphabet.data, e->alphabet.len);
    return BK_OK;
}

static bk_status encode_word(void *ctx, const char *word, size_t len, bk_place place, bk_error *err)
{
    encoder *e = ctx;
    if (e->t->ignore_merges) {
        int32_t id;
        BK_TRY(whole_word(e, word, len, &id, err));
        if (id >= 0) return put_id(e, id, err);
    }
    bool unknown = false;
    for (size_t at = 0, n; at < len; at += n) {
        n = e->t->byte_level ? 1 : bk_utf8_char(word + at, len - at, NULL);
        if (n == 0) n = 1; /* a broken byte */
        BK_TRY(put_char(e, word + at, n, place.offset + at, &unknown, err));
    }
    return flush_word(e, err);
}

/* The longest added token at the start of a text. The list is sorted, so that the candidates are a range that narrows
 * byte by byte. */
static const bk_added *added_at(const bk_added_list *l, const char *text, size_t len, bool special)
{
    const bk_added *best = NULL;
    size_t lo = 0, hi = l->n;
    for (size_t d = 0; lo < hi; d++) {
        if (l->v[lo].len == d) {
            if (special || !l->v[lo].special) best = &l->v[lo];
            lo++;
        }
        if (d == len) break;
        unsigned char c = (unsigned char)text[d];
        size_t a = lo, b = hi;
        while (a < b) { /* first with a byte >= c */
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)l->v[mid].text[d] < c)
                a = mid + 1;
            else
                b = mid;
        }
        lo = a;
        b = hi;
        while (a < b) { /* first with a byte > c */
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)l->v[mid].text[d] <= c)
                a = mid + 1;
            else
                b = mid;
        }
        hi = a;
    }
    return best;
}

/* Unicode's White_Space. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a)
           || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static size_t skip_spaces(const char *text, size_t at, size_t len)
{
    uint32_t cp;
    for (size_t n; (n = bk_utf8_char(text + at, len - at, &cp)) && is_space(cp);) at += n;
    return at;
}

static size_t back_over_spaces(const char *text, size_t at, size_t start)
{
    while (at > start) {
        size_t from = at - 1;
        uint32_t cp;
        while (from > start && ((unsigned char)text[from] & 0xc0) == 0x80) from--;
        if (bk_utf8_char(text + from, at - from, &cp) != at - from || !is_space(cp)) break;
        at = from;
    }
    return at;
}

/* Cuts a text at the added tokens of a list; what lies between goes to `rest`. */
static bk_status cut(encoder *e, const bk_added_list *l, const char *text, size_t len, bk_place place, bk_word_fn rest,
                     bk_error *err)
{
    size_t start = 0;
    for (size_t at = 0; at < len && l->n;) {
        const bk_added *a = added_at(l, text + at, len - at, e->special);
        if (!a) {
            at++;
            continue;
        }
        size_t end = a->lstrip ? back_over_spaces(text, at, start) : at;
        if (end > start)
            BK_TRY(
                rest(e, text + start, end - start, (bk_place){place.offset + start, place.first && start == 0}, err));
        BK_TRY(put_id(e, a->id, err));
        start = at = a->rstrip ? skip_spaces(text, at + a->len, len) : at + a->len;
    }
    return start < len
               ? rest(e, text + start, len - start, (bk_place){place.offset + start, place.first && start == 0}, err)
               : BK_OK;
}

static bk_status encode_words(void *ctx, const char *text, size_t len, bk_place place, bk_error *err)
{
    encoder *e = ctx;
    return bk_steps_run(&e->t->pretokenizer, e->m, text, len, place, encode_word, e, err);
}

static bk_status encode_normalized(void *ctx, const char *text, size_t len, bk_place place, bk_error *err)
{
    encoder *e = ctx;
    return cut(e, &e->t->added_normalized, text, len, place, encode_words, err);
}

static bk_status encode_text(void *ctx, const char *text, size_t len, bk_place place, bk_error *err)
{
    encoder *e = ctx;
    return bk_steps_run(&e->t->normalizer, e->m, text, len, place, encode_normalized, e, err);
}

/* Broken bytes are fine where every byte above 0x7f has a token. */
static bk_status check_utf8(const bk_tokenizer *t, const char *text, size_t len, bk_error *err)
{
    bool valid = true;
    size_t at = 0;
    for (int b = 0x80; b < 0x100; b++) valid &= t->byte_id[b] >= 0;
    if (valid || t->byte_level || len == 0) return BK_OK;
    at = bk_utf8_run(text, len, &valid);
    if (!valid) at = 0;
    return at == len ? BK_OK
                     : bk_fail(err, BK_EFORMAT, "the text is no valid UTF-8 at byte %zu (0x%02X)", at,
                               (unsigned char)text[at]);
}

bk_status bk_tokenizer_encode(const bk_tokenizer *t, const char *text, size_t len, bool parse_special, int32_t **ids,
                              int64_t *n, bk_error *err)
{
    encoder e = {.t = t, .special = parse_special};
    *ids = NULL;
    *n = 0;
    BK_TRY(check_utf8(t, text, len, err));
    BK_TRY(bk_matcher_new(&e.m, err));
    bk_status s = cut(&e, &t->added, text, len, (bk_place){0, true}, encode_text, err);
    bk_matcher_free(e.m);
    bk_word_free(&e.word);
    free(e.alphabet.data);
    if (s) {
        free(e.ids);
        return s;
    }
    *ids = e.ids;
    *n = e.n;
    return BK_OK;
}
