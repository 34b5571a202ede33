#include "io/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "io/utf8.h"

struct bk_regex {
    pcre2_code *code;
    char *source;
};

struct bk_matcher {
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

/* Classes that the two libraries understand differently, as Oniguruma has them (PCRE2's \s has U+180E, its \w neither
 * marks nor all that is alphabetic, its \h is a blank). */
static const struct {
    char letter;
    const char *body;
} classes[] = {
    {'s', "\\t-\\r\\x{85}\\p{Z}"},
    {'w', "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-"
          "\\x{1F189}"},
    {'h', "0-9a-fA-F"},
};

static const char *class_body(char letter)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (classes[i].letter == letter) return classes[i].body;
    return NULL;
}

static size_t put(char *out, size_t at, const char *s)
{
    size_t n = strlen(s);
    memcpy(out + at, s, n);
    return at + n;
}

/* Translates an escape at s into out; returns the bytes read, *at moves. */
static size_t escape(const char *s, size_t len, bool in_class, char *out, size_t *at)
{
    if (len < 2) {
        out[(*at)++] = *s;
        return 1;
    }
    char c = s[1];
    const char *body = class_body(c), *inverse = c >= 'A' && c <= 'Z' ? class_body((char)(c - 'A' + 'a')) : NULL;
    if (body || (inverse && !in_class)) {
        if (!in_class) *at = put(out, *at, body ? "[" : "[^");
        *at = put(out, *at, body ? body : inverse);
        if (!in_class) out[(*at)++] = ']';
        return 2;
    }
    size_t n = 2;
    if (len > 2 && strchr("pPx", c) && s[2] == '{')
        while (n < len && s[n - 1] != '}') n++;
    memcpy(out + *at, s, n);
    *at += n;
    return n;
}

/* Oniguruma (in Ruby's syntax, as Hugging Face uses it) to PCRE2. out has room for 96 bytes per byte of s. */
static bk_status translate(const char *s, size_t len, char *out, size_t *out_len, bk_error *err)
{
    size_t at = 0;
    bool in_class = false, class_start = false;
    for (size_t i = 0; i < len;) {
        bool first = class_start;
        class_start = false;
        if (s[i] == '\\') {
            i += escape(s + i, len - i, in_class, out, &at);
            continue;
        }
        if (in_class) {
            bool posix = s[i] == '[' && i + 1 < len && s[i + 1] == ':';
            if ((s[i] == '[' && !posix) || (s[i] == '&' && i + 1 < len && s[i + 1] == '&'))
                return bk_fail(
                    err, BK_EUNSUP,
                    "the expression '%s' nests or intersects character classes (at byte %zu), which PCRE2 cannot", s,
                    i);
            if (posix) {
                const char *end = strstr(s + i, ":]");
                size_t n = end ? (size_t)(end + 2 - (s + i)) : len - i;
                memcpy(out + at, s + i, n);
                at += n;
                i += n;
                continue;
            }
            if (s[i] == '^' && first) class_start = true;
            if (s[i] == ']' && !first) in_class = false;
        } else if (s[i] == '[') {
            in_class = class_start = true;
        } else if (s[i] == '}' && i + 1 < len && s[i + 1] == '+') {
            return bk_fail(
                err, BK_EUNSUP,
                "the expression '%s' has a quantifier {n,m}+ (at byte %zu), which libraries read differently", s, i);
        }
        out[at++] = s[i++];
    }
    *out_len = at;
    return BK_OK;
}

static bk_status compile(bk_regex *r, const char *pattern, size_t len, uint32_t options, bk_error *err)
{
    int code;
    PCRE2_SIZE where;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (!cc) return bk_fail(err, BK_ENOMEM, "no memory to compile the expression '%s'", r->source);
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &where, cc);
    pcre2_compile_context_free(cc);
    if (r->code) return BK_OK;
    char why[160] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return bk_fail(err, BK_EFORMAT, "the regular expression '%s' cannot be used: %s", r->source, why);
}

static bk_status build(bk_regex *r, const char *source, size_t len, bool literal, bk_error *err)
{
    if (literal) return compile(r, source, len, PCRE2_UTF | PCRE2_LITERAL, err);
    if (memchr(source, 0, len)) return bk_fail(err, BK_EUNSUP, "the expression '%s' holds a NUL", source);
    char *pattern = malloc(96 * len + 1);
    if (!pattern) return bk_fail(err, BK_ENOMEM, "no memory to compile the expression '%s'", source);
    size_t n = 0;
    bk_status s = translate(source, len, pattern, &n, err);
    if (!s) s = compile(r, pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, err);
    free(pattern);
    return s;
}

bk_status bk_regex_new(const char *source, size_t len, bool literal, bk_regex **out, bk_error *err)
{
    *out = NULL;
    if (len > 65536) return bk_fail(err, BK_EFORMAT, "a regular expression of %zu bytes is too long", len);
    bk_regex *r = calloc(1, sizeof *r);
    if (!r || !(r->source = malloc(len + 1))) {
        free(r);
        return bk_fail(err, BK_ENOMEM, "no memory for a regular expression");
    }
    memcpy(r->source, source, len);
    r->source[len] = 0;
    bk_status s = build(r, r->source, len, literal, err);
    if (s)
        bk_regex_free(r);
    else
        *out = r;
    return s;
}

void bk_regex_free(bk_regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    free(r->source);
    free(r);
}

const char *bk_regex_source(const bk_regex *r)
{
    return r->source;
}

bk_status bk_matcher_new(bk_matcher **out, bk_error *err)
{
    bk_matcher *m = calloc(1, sizeof *m);
    if (m) m->data = pcre2_match_data_create(1, NULL);
    if (m) m->limits = pcre2_match_context_create(NULL);
    if (!m || !m->data || !m->limits) {
        bk_matcher_free(m);
        return bk_fail(err, BK_ENOMEM, "no memory to match regular expressions");
    }
    pcre2_set_match_limit(m->limits, 10000000);
    pcre2_set_heap_limit(m->limits, 262144); /* KiB */
    *out = m;
    return BK_OK;
}

void bk_matcher_free(bk_matcher *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->limits);
    free(m);
}

/* The parts of a run of valid UTF-8 that begins at `base` of the text. */
static bk_status parts_of_run(const bk_regex *r, bk_matcher *m, const char *run, size_t len, size_t base, size_t offset,
                              bk_part_fn part, void *ctx, bk_error *err)
{
    size_t done = 0, from = 0;
    while (from <= len) {
        int rc = pcre2_match(r->code, (PCRE2_SPTR)run, len, from, PCRE2_NO_UTF_CHECK, m->data, m->limits);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY) return bk_fail(err, BK_ENOMEM, "no memory to match '%s'", r->source);
        if (rc < 0) {
            char why[160] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return bk_fail(err, BK_EFORMAT, "the regular expression '%s' fails on the text at byte %zu: %s", r->source,
                           offset + base + from, why);
        }
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(m->data);
        const size_t hit[2] = {found[0], found[1]}; /* `part` may match with the same data */
        if (hit[0] < done || hit[1] < hit[0])       /* \K inside a look-around */
            return bk_fail(err, BK_EUNSUP, "the regular expression '%s' matches backwards", r->source);
        if (hit[0] > done) BK_TRY(part(ctx, base + done, base + hit[0], false, err));
        BK_TRY(part(ctx, base + hit[0], base + hit[1], true, err));
        done = from = hit[1];
        if (hit[1] == hit[0]) {
            if (from == len) break;
            from += bk_utf8_char(run + from, len - from, NULL);
        }
    }
    return done < len ? part(ctx, base + done, base + len, false, err) : BK_OK;
}

bk_status bk_regex_parts(const bk_regex *r, bk_matcher *m, const char *text, size_t len, size_t offset, bk_part_fn part,
                         void *ctx, bk_error *err)
{
    for (size_t at = 0, n; at < len; at += n) {
        bool valid;
        n = bk_utf8_run(text + at, len - at, &valid);
        BK_TRY(valid ? parts_of_run(r, m, text + at, n, at, offset, part, ctx, err)
                     : part(ctx, at, at + n, false, err));
    }
    return BK_OK;
}
