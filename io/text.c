#include "io/text.h"

#include <stdlib.h>
#include <string.h>

#include "io/buffer.h"
#include "io/file.h"
#include "io/json.h"

#define MAX_FILE ((size_t)1 << 40)

/* A text being tokenized. */
typedef struct loader {
    const char *path;
    const bk_tokenizer *tok;
    const bk_text_options *opt;
    bk_text *out;
    int64_t ids_cap, docs_cap;
} loader;

/* The array with room for `need` items, or NULL (and the old one stays). */
static void *grown(void *array, int64_t *cap, int64_t need, size_t item, bk_error *err)
{
    if (need <= *cap) return array;
    int64_t n = 2 * need + 64;
    void *p = realloc(array, (size_t)n * item);
    if (p)
        *cap = n;
    else
        bk_fail(err, BK_ENOMEM, "no memory for a text of %lld tokens", (long long)n);
    return p;
}

static bk_status room_for_ids(loader *l, int64_t more, bk_error *err)
{
    int32_t *ids = grown(l->out->ids, &l->ids_cap, l->out->n + more, sizeof *ids, err);
    if (!ids) return BK_ENOMEM;
    l->out->ids = ids;
    return BK_OK;
}

static bk_status start_doc(loader *l, bk_error *err)
{
    bk_text *t = l->out;
    int64_t *starts = grown(t->doc_start, &l->docs_cap, t->n_docs + 2, sizeof *starts, err);
    if (!starts) return BK_ENOMEM;
    t->doc_start = starts;
    t->doc_start[t->n_docs++] = t->n;
    if (!l->opt->bos) return BK_OK;
    BK_TRY(room_for_ids(l, 1, err));
    t->ids[t->n++] = (int32_t)bk_tokenizer_bos(l->tok);
    return BK_OK;
}

static bk_status put_ids(loader *l, const int32_t *ids, int64_t n, bk_error *err)
{
    bk_text *t = l->out;
    BK_TRY(room_for_ids(l, n + 1, err));
    int64_t bos = bk_tokenizer_bos(l->tok);
    for (int64_t i = 0; i < n; i++) {
        bool is_bos = ids[i] == bos;
        t->ledger.bos_inside += is_bos;
        if (!(is_bos && l->opt->strip_bos)) t->ids[t->n++] = ids[i];
    }
    return BK_OK;
}

static bk_status put_text(loader *l, const char *text, size_t len, bk_error *err)
{
    int32_t *ids;
    int64_t n;
    BK_TRY(bk_tokenizer_encode(l->tok, text, len, l->opt->parse_special, &ids, &n, err));
    bk_status s = put_ids(l, ids, n, err);
    free(ids);
    return s;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!memchr(" \t\r\n\v\f", s[i], 6)) return false;
    return true;
}

/* The rows of the WikiText data set are the file's lines with their newline, and "" for blank lines; the papers join them. */
static bk_status join_lines(const char *text, size_t len, const char *join, bk_buffer *out, bk_error *err)
{
    for (size_t at = 0, n; at < len; at += n) {
        const char *end = memchr(text + at, '\n', len - at);
        n = end ? (size_t)(end + 1 - (text + at)) : len - at;
        if (at > 0) BK_TRY(bk_buffer_put(out, join, strlen(join), err));
        if (!is_blank(text + at, n)) BK_TRY(bk_buffer_put(out, text + at, n, err));
    }
    return BK_OK;
}

static bk_status load_txt(loader *l, const char *text, size_t len, bk_error *err)
{
    BK_TRY(start_doc(l, err));
    if (!l->opt->join) return put_text(l, text, len, err);
    bk_buffer joined = {0};
    bk_status s = join_lines(text, len, l->opt->join, &joined, err);
    if (!s) s = put_text(l, joined.data, joined.len, err);
    free(joined.data);
    return s;
}

static bk_status put_json_ids(loader *l, const bk_json *ids, bk_error *err)
{
    for (size_t i = 0; i < bk_json_size(ids); i++) {
        int64_t id = bk_json_int(bk_json_at(ids, i), -1);
        if (id < 0 || id >= bk_tokenizer_size(l->tok))
            return bk_fail(err, BK_EFORMAT, "ids[%zu] is no token id (0 .. %lld)", i,
                           (long long)bk_tokenizer_size(l->tok) - 1);
        BK_TRY(put_ids(l, &(int32_t){(int32_t)id}, 1, err));
    }
    return BK_OK;
}

static bk_status put_json_doc(loader *l, const bk_json *doc, bk_error *err)
{
    const bk_json *text = bk_json_get(doc, "text"), *ids = bk_json_get(doc, "ids");
    bool is_text = bk_json_kind_of(text) == BK_JSON_STRING, is_ids = bk_json_kind_of(ids) == BK_JSON_ARRAY;
    if (is_text == is_ids)
        return bk_fail(err, BK_EFORMAT, "%s",
                       is_text ? "both \"text\" and \"ids\"" : "no string \"text\" and no list \"ids\"");
    size_t len;
    const char *bytes = bk_json_bytes(text, &len);
    BK_TRY(start_doc(l, err));
    return is_text ? put_text(l, bytes, len, err) : put_json_ids(l, ids, err);
}

static bk_status load_line(loader *l, int64_t line, const char *text, size_t len, bk_error *err)
{
    bk_error e = {0};
    bk_json *doc;
    if (bk_json_parse(text, len, "", &doc, &e)) /* ":1:column: what" */
        return bk_fail(err, e.code, "%s:%lld:%s", l->path, (long long)line,
                       strncmp(e.msg, ":1:", 3) == 0 ? e.msg + 3 : e.msg);
    bk_status s = put_json_doc(l, doc, &e);
    bk_json_free(doc);
    return s ? bk_fail(err, s, "%s:%lld:1: %s", l->path, (long long)line, e.msg) : BK_OK;
}

static bk_status load_jsonl(loader *l, const char *text, size_t len, bk_error *err)
{
    int64_t line = 1;
    if (l->opt->join) return bk_fail(err, BK_EINVAL, "%s: lines are joined in plain text files only", l->path);
    for (size_t at = 0, n; at < len; at += n + 1, line++) {
        const char *end = memchr(text + at, '\n', len - at);
        n = end ? (size_t)(end - (text + at)) : len - at;
        if (!is_blank(text + at, n)) BK_TRY(load_line(l, line, text + at, n, err));
    }
    return BK_OK;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bk_status load_bytes(loader *l, const char *text, size_t len, bk_error *err)
{
    bk_text *t = l->out;
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, text, len);
    bk_sha256_end(h, t->ledger.sha256);
    t->ledger.bytes = (int64_t)len;
    size_t bom = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    if (ends_with(l->path, ".jsonl")) {
        BK_TRY(load_jsonl(l, text + bom, len - bom, err));
    } else if (load_txt(l, text + bom, len - bom, err)) {
        return bk_error_prefix(err, "%s", l->path);
    }
    if (!t->doc_start && !(t->doc_start = malloc(sizeof *t->doc_start)))
        return bk_fail(err, BK_ENOMEM, "no memory for a text");
    t->doc_start[t->n_docs] = t->n;
    t->ledger.documents = t->n_docs;
    t->ledger.tokens = t->n;
    return BK_OK;
}

bk_status bk_text_load(const char *path, const bk_tokenizer *tok, const bk_text_options *opt, bk_text *out,
                       bk_error *err)
{
    char *text;
    size_t len;
    *out = (bk_text){0};
    if (opt->bos && bk_tokenizer_bos(tok) < 0)
        return bk_fail(err, BK_EINVAL, "%s: a BOS is asked for, but the tokenizer has none", path);
    BK_TRY(bk_file_slurp(path, MAX_FILE, &text, &len, err));
    bk_status s = load_bytes(&(loader){.path = path, .tok = tok, .opt = opt, .out = out}, text, len, err);
    free(text);
    if (s) bk_text_free(out);
    return s;
}

void bk_text_free(bk_text *t)
{
    free(t->ids);
    free(t->doc_start);
    *t = (bk_text){0};
}
