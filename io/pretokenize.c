#include "io/pretokenize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "io/utf8.h"

const char *const bk_split_names[BK_SPLIT_BEHAVIOURS] = {"Removed", "Isolated", "Contiguous", "MergedWithPrevious",
                                                         "MergedWithNext"};

bk_status bk_steps_add(bk_steps *s, bk_step_kind kind, bk_step **out, bk_error *err)
{
    if (s->n == 64) return bk_fail(err, BK_EUNSUP, "a tokenizer with more than 64 steps");
    bk_step *v = realloc(s->v, (s->n + 1) * sizeof *v);
    if (!v) return bk_fail(err, BK_ENOMEM, "no memory for a tokenizer's steps");
    s->v = v;
    *out = &v[s->n++];
    **out = (bk_step){.kind = kind};
    return BK_OK;
}

static bk_status set_text(bk_step *step, const char *text, bk_error *err)
{
    step->len = strlen(text);
    step->text = strdup(text);
    return step->text ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a tokenizer's steps");
}

bk_status bk_steps_prepend(bk_steps *s, const char *text, bool unless_there, bool first_only, bk_error *err)
{
    bk_step *step;
    BK_TRY(bk_steps_add(s, BK_STEP_PREPEND, &step, err));
    step->unless_there = unless_there;
    step->first_only = first_only;
    return set_text(step, text, err);
}

bk_status bk_steps_replace(bk_steps *s, const char *pattern, bool literal, const char *text, bk_error *err)
{
    bk_step *step;
    BK_TRY(bk_steps_add(s, BK_STEP_REPLACE, &step, err));
    step->literal = literal;
    BK_TRY(set_text(step, text, err));
    return bk_regex_new(pattern, strlen(pattern), literal, &step->regex, err);
}

bk_status bk_steps_split(bk_steps *s, const char *pattern, bool literal, bk_split_behaviour behaviour, bool invert,
                         bk_error *err)
{
    bk_step *step;
    BK_TRY(bk_steps_add(s, BK_STEP_SPLIT, &step, err));
    step->literal = literal;
    step->behaviour = behaviour;
    step->invert = invert;
    return bk_regex_new(pattern, strlen(pattern), literal, &step->regex, err);
}

void bk_steps_free(bk_steps *s)
{
    for (size_t i = 0; i < s->n; i++) {
        bk_regex_free(s->v[i].regex);
        free(s->v[i].text);
    }
    free(s->v);
    *s = (bk_steps){0};
}

/* Unicode normalization of the valid runs; broken bytes stay. */
static bk_status normalize_unicode(bk_step_kind kind, const char *text, size_t len, bk_buffer *out, bk_error *err)
{
    int options = UTF8PROC_STABLE
                  | (kind == BK_STEP_NFC || kind == BK_STEP_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE)
                  | (kind == BK_STEP_NFKC || kind == BK_STEP_NFKD ? UTF8PROC_COMPAT : 0);
    for (size_t at = 0, n; at < len; at += n) {
        bool valid;
        n = bk_utf8_run(text + at, len - at, &valid);
        if (!valid) {
            BK_TRY(bk_buffer_put(out, text + at, n, err));
            continue;
        }
        utf8proc_uint8_t *norm = NULL;
        utf8proc_ssize_t norm_len =
            utf8proc_map((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)n, &norm, options);
        if (norm_len < 0)
            return bk_fail(err, norm_len == UTF8PROC_ERROR_NOMEM ? BK_ENOMEM : BK_EFORMAT,
                           "Unicode normalization of %zu bytes: %s", n, utf8proc_errmsg(norm_len));
        bk_status s = bk_buffer_put(out, (const char *)norm, (size_t)norm_len, err);
        free(norm);
        BK_TRY(s);
    }
    return BK_OK;
}

typedef struct replacing {
    const bk_step *step;
    const char *text;
    bk_buffer *out;
} replacing;

static bk_status replace_part(void *ctx, size_t start, size_t end, bool match, bk_error *err)
{
    replacing *r = ctx;
    return match ? bk_buffer_put(r->out, r->step->text, r->step->len, err)
                 : bk_buffer_put(r->out, r->text + start, end - start, err);
}

static bool begins_with(const char *text, size_t len, const bk_step *step)
{
    return len >= step->len && memcmp(text, step->text, step->len) == 0;
}

static bk_status rewrite(const bk_step *step, bk_matcher *m, const char *text, size_t len, bk_place place,
                         bk_buffer *out, bk_error *err)
{
    switch (step->kind) {
    case BK_STEP_PREPEND:
        if (!(step->unless_there && begins_with(text, len, step)) && (place.first || !step->first_only))
            BK_TRY(bk_buffer_put(out, step->text, step->len, err));
        return bk_buffer_put(out, text, len, err);
    case BK_STEP_REPLACE:
        return bk_regex_parts(step->regex, m, text, len, place.offset, replace_part, &(replacing){step, text, out},
                              err);
    default: return normalize_unicode(step->kind, text, len, out, err);
    }
}

/* One text on its way through the steps from `next` on. */
typedef struct run {
    const bk_steps *steps;
    size_t next;
    bk_matcher *m;
    bk_word_fn word;
    void *ctx;
} run;

static bk_status go_on(const run *r, const char *text, size_t len, bk_place place, bk_error *err);

/* A split under way: the part that waits for its neighbour. */
typedef struct splitting {
    const run *rest;
    const bk_step *step;
    const char *text;
    bk_place place;
    size_t start, end;
    bool any, match;
} splitting;

static bk_status flush(const splitting *s, bk_error *err)
{
    return go_on(s->rest, s->text + s->start, s->end - s->start,
                 (bk_place){s->place.offset + s->start, s->place.first && s->start == 0}, err);
}

static bool joins(const splitting *s, bool match)
{
    switch (s->step->behaviour) {
    case BK_SPLIT_CONTIGUOUS: return s->match == match;
    case BK_SPLIT_MERGED_WITH_PREVIOUS: return match && !s->match;
    case BK_SPLIT_MERGED_WITH_NEXT: return s->match && !match;
    default: return false;
    }
}

static bk_status split_part(void *ctx, size_t start, size_t end, bool match, bk_error *err)
{
    splitting *s = ctx;
    match ^= s->step->invert;
    bool join = s->any && joins(s, match);
    if (!join) {
        BK_TRY(flush(s, err));
        s->start = start;
    }
    s->end = end;
    s->match = match;
    s->any = true;
    if (match && s->step->behaviour == BK_SPLIT_REMOVED) s->start = end;
    return BK_OK;
}

static bk_status split(const run *r, const bk_step *step, const char *text, size_t len, bk_place place, bk_error *err)
{
    run rest = *r;
    rest.next++;
    splitting s = {.rest = &rest, .step = step, .text = text, .place = place};
    BK_TRY(bk_regex_parts(step->regex, r->m, text, len, place.offset, split_part, &s, err));
    return flush(&s, err);
}

/* Depth of recursion: the number of steps. */
static bk_status go_on(const run *r, const char *text, size_t len, bk_place place, bk_error *err)
{
    if (len == 0) return BK_OK;
    if (r->next == r->steps->n) return r->word(r->ctx, text, len, place, err);
    const bk_step *step = &r->steps->v[r->next];
    if (step->kind == BK_STEP_SPLIT) return split(r, step, text, len, place, err);
    bk_buffer out = {0};
    run rest = *r;
    rest.next++;
    bk_status s = rewrite(step, r->m, text, len, place, &out, err);
    if (!s) s = go_on(&rest, out.data, out.len, place, err);
    free(out.data);
    return s;
}

bk_status bk_steps_run(const bk_steps *s, bk_matcher *m, const char *text, size_t len, bk_place place, bk_word_fn word,
                       void *ctx, bk_error *err)
{
    return go_on(&(run){s, 0, m, word, ctx}, text, len, place, err);
}
