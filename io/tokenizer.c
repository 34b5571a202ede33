#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"
#include "io/utf8.h"

/* GPT-2's alphabet: the bytes that print stand for themselves, the others follow in order from U+0100 on. */
static bool prints(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

uint32_t bk_byte_to_char(unsigned char byte)
{
    if (prints(byte)) return byte;
    uint32_t cp = 0x100;
    for (unsigned b = 0; b < byte; b++) cp += !prints(b);
    return cp;
}

int bk_char_to_byte(uint32_t cp)
{
    if (cp < 0x100) return prints(cp) ? (int)cp : -1;
    uint32_t left = cp - 0x100;
    for (unsigned b = 0; b < 256; b++)
        if (!prints(b) && left-- == 0) return (int)b;
    return -1;
}

bk_status bk_tokenizer_alloc(bk_tokenizer *t, int64_t n, size_t bytes, bk_error *err)
{
    if (n < 1 || n > 1 << 24)
        return bk_fail(err, BK_EFORMAT, "a tokenizer with %lld tokens (1 to %d are possible)", (long long)n, 1 << 24);
    t->n = n;
    t->unknown = t->bos = t->eos = -1;
    t->piece = calloc((size_t)n, sizeof *t->piece);
    t->bytes = malloc(bytes + (size_t)n);
    if (!t->piece || !t->bytes) return bk_fail(err, BK_ENOMEM, "no memory for %lld tokens", (long long)n);
    t->bytes_used = 0;
    return bk_strmap_init(&t->by_text, (size_t)n, err);
}

static bk_status check_text(int64_t id, const char *text, size_t len, bk_error *err)
{
    bool valid = false;
    if (len == 0) return bk_fail(err, BK_EFORMAT, "token %lld is empty", (long long)id);
    if (len > UINT32_MAX / 2) return bk_fail(err, BK_EFORMAT, "token %lld has %zu bytes", (long long)id, len);
    if (memchr(text, 0, len)) return bk_fail(err, BK_EFORMAT, "token %lld holds a NUL byte", (long long)id);
    if (bk_utf8_run(text, len, &valid) != len || !valid)
        return bk_fail(err, BK_EFORMAT, "token %lld ('%.*s') is not valid UTF-8", (long long)id,
                       (int)(len < 100 ? len : 100), text);
    return BK_OK;
}

bk_status bk_tokenizer_set(bk_tokenizer *t, int64_t id, const char *text, size_t len, bk_token_kind kind, bk_error *err)
{
    BK_TRY(check_text(id, text, len, err));
    bk_piece *p = &t->piece[id];
    if (p->kind != BK_TOKEN_HOLE)
        return bk_fail(err, BK_EFORMAT, "id %lld is given to two tokens, '%s' and '%.*s'", (long long)id, p->text,
                       (int)len, text);
    char *to = t->bytes + t->bytes_used;
    memcpy(to, text, len);
    to[len] = 0;
    t->bytes_used += len + 1;
    *p = (bk_piece){to, (uint32_t)len, (uint8_t)kind};
    int32_t there = bk_strmap_put(&t->by_text, to, p->len, (int32_t)id);
    if (there != id) return bk_fail(err, BK_EFORMAT, "tokens %d and %lld are both '%s'", there, (long long)id, to);
    return BK_OK;
}

int32_t bk_tokenizer_plain(const bk_tokenizer *t, const char *text, size_t len)
{
    int32_t id = bk_strmap_get(&t->by_text, text, len);
    return id >= 0 && (t->piece[id].kind == BK_TOKEN_NORMAL || t->piece[id].kind == BK_TOKEN_USER) ? id : -1;
}

bk_status bk_tokenizer_add_merge(bk_tokenizer *t, int32_t left, int32_t right, int32_t rank, int32_t id, bk_error *err)
{
    const bk_pair *old;
    BK_TRY(bk_pairmap_put(&t->bpe.merges, (bk_pair){left, right, rank, id}, &old, err));
    if (old)
        return bk_fail(err, BK_EFORMAT, "merge %d ('%s' + '%s') repeats merge %d", rank, t->piece[left].text,
                       t->piece[right].text, old->rank);
    return BK_OK;
}

bk_status bk_tokenizer_add_added(bk_added_list *l, const char *text, size_t len, bk_added a, bk_error *err)
{
    if ((l->n & (l->n - 1)) == 0) { /* full: room grows by powers of two */
        bk_added *v = realloc(l->v, (l->n ? 2 * l->n : 1) * sizeof *v);
        if (!v) return bk_fail(err, BK_ENOMEM, "no memory for %zu added tokens", l->n + 1);
        l->v = v;
    }
    a.text = malloc(len + 1);
    if (!a.text) return bk_fail(err, BK_ENOMEM, "no memory for %zu added tokens", l->n + 1);
    memcpy(a.text, text, len);
    a.text[len] = 0;
    a.len = len;
    l->v[l->n++] = a;
    return BK_OK;
}

static int by_bytes(const void *x, const void *y)
{
    const bk_added *a = x, *b = y;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static bk_status sort_added(bk_added_list *l, bk_error *err)
{
    if (l->n) qsort(l->v, l->n, sizeof *l->v, by_bytes);
    for (size_t i = 1; i < l->n; i++)
        if (by_bytes(&l->v[i - 1], &l->v[i]) == 0)
            return bk_fail(err, BK_EFORMAT, "added tokens %d and %d are both '%s'", l->v[i - 1].id, l->v[i].id,
                           l->v[i].text);
    return BK_OK;
}

/* The value of a byte token "<0x0A>", -1 if it is none. */
static int byte_value(const bk_piece *p)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *hi, *lo;
    if (p->len != 6 || memcmp(p->text, "<0x", 3) != 0 || p->text[5] != '>') return -1;
    hi = strchr(digits, p->text[3]);
    lo = strchr(digits, p->text[4]);
    return hi && lo ? (int)((hi - digits) * 16 + (lo - digits)) : -1;
}

static bk_status find_bytes(bk_tokenizer *t, bk_error *err)
{
    for (int b = 0; b < 256; b++) {
        char text[4];
        size_t len = bk_utf8_put(bk_byte_to_char((unsigned char)b), text);
        t->byte_id[b] = t->byte_level ? bk_tokenizer_plain(t, text, len) : -1;
    }
    for (int64_t i = 0; i < t->n && !t->byte_level; i++) {
        if (t->piece[i].kind != BK_TOKEN_BYTE) continue;
        int b = byte_value(&t->piece[i]);
        if (b < 0)
            return bk_fail(err, BK_EFORMAT, "token %lld is called a byte but reads '%s', not like '<0x0A>'",
                           (long long)i, t->piece[i].text);
        t->byte_id[b] = (int32_t)i;
    }
    return BK_OK;
}

/* Which single-character tokens stand side by side inside some merged token. */
static bk_status find_inside(bk_tokenizer *t, bk_error *err)
{
    const bk_pairmap *m = &t->bpe.merges;
    for (size_t i = 0; m->slot && i <= m->mask; i++) {
        if (m->slot[i].left < 0) continue;
        const bk_piece *p = &t->piece[m->slot[i].id];
        int32_t last = -1;
        for (size_t at = 0, n; at < p->len; at += n) {
            const bk_pair *old;
            n = bk_utf8_char(p->text + at, p->len - at, NULL);
            int32_t id = bk_tokenizer_plain(t, p->text + at, n);
            if (last >= 0 && id >= 0) BK_TRY(bk_pairmap_put(&t->bpe.inside, (bk_pair){last, id, 0, 0}, &old, err));
            last = id;
        }
    }
    return BK_OK;
}

bk_status bk_tokenizer_finish(bk_tokenizer *t, bk_error *err)
{
    BK_TRY(find_bytes(t, err));
    BK_TRY(find_inside(t, err));
    BK_TRY(sort_added(&t->added, err));
    return sort_added(&t->added_normalized, err);
}

static void free_added(bk_added_list *l)
{
    for (size_t i = 0; i < l->n; i++) free(l->v[i].text);
    free(l->v);
}

void bk_tokenizer_free(bk_tokenizer *t)
{
    if (!t) return;
    free(t->piece);
    free(t->bytes);
    bk_strmap_free(&t->by_text);
    bk_bpe_free(&t->bpe);
    free_added(&t->added);
    free_added(&t->added_normalized);
    bk_steps_free(&t->normalizer);
    bk_steps_free(&t->pretokenizer);
    free(t->space);
    free(t->score);
    free(t->chat_template);
    free(t->folder);
    free(t);
}

int64_t bk_tokenizer_size(const bk_tokenizer *t)
{
    return t->n;
}

int64_t bk_tokenizer_bos(const bk_tokenizer *t)
{
    return t->bos;
}

int64_t bk_tokenizer_eos(const bk_tokenizer *t)
{
    return t->eos;
}

bool bk_tokenizer_add_bos(const bk_tokenizer *t)
{
    return t->add_bos;
}

const char *bk_tokenizer_piece(const bk_tokenizer *t, int64_t id, size_t *len)
{
    bool there = id >= 0 && id < t->n && t->piece[id].kind != BK_TOKEN_HOLE;
    if (len) *len = there ? t->piece[id].len : 0;
    return there ? t->piece[id].text : "";
}

/* A word's token in GPT-2's alphabet, back to bytes; text of another alphabet stays as it is, as Hugging Face has it. */
static bk_status put_byte_level(const bk_piece *p, bk_buffer *out, bk_error *err)
{
    size_t before = out->len;
    for (size_t at = 0; at < p->len;) {
        uint32_t cp;
        at += bk_utf8_char(p->text + at, p->len - at, &cp);
        int b = bk_char_to_byte(cp);
        if (b < 0) {
            out->len = before;
            return bk_buffer_put(out, p->text, p->len, err);
        }
        char c = (char)b;
        BK_TRY(bk_buffer_put(out, &c, 1, err));
    }
    return BK_OK;
}

static bk_status put_spaced(const bk_piece *p, const char *space, bk_buffer *out, bk_error *err)
{
    const char *at = p->text;
    size_t n = space ? strlen(space) : 0;
    for (const char *hit; space && (hit = strstr(at, space)); at = hit + n) {
        BK_TRY(bk_buffer_put(out, at, (size_t)(hit - at), err));
        BK_TRY(bk_buffer_put(out, " ", 1, err));
    }
    return bk_buffer_put(out, at, (size_t)(p->text + p->len - at), err);
}

static bk_status put_piece(const bk_tokenizer *t, const bk_piece *p, bool skip_special, bk_buffer *out, bk_error *err)
{
    switch ((bk_token_kind)p->kind) {
    case BK_TOKEN_HOLE: return BK_OK;
    case BK_TOKEN_UNKNOWN:
    case BK_TOKEN_CONTROL: return skip_special ? BK_OK : bk_buffer_put(out, p->text, p->len, err);
    case BK_TOKEN_USER: return bk_buffer_put(out, p->text, p->len, err);
    case BK_TOKEN_BYTE: return bk_buffer_put(out, &(char){(char)byte_value(p)}, 1, err);
    default: return t->byte_level ? put_byte_level(p, out, err) : put_spaced(p, t->space, out, err);
    }
}

static bk_status decode(const bk_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, bk_buffer *out,
                        bk_error *err)
{
    bool first = true;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n)
            return bk_fail(err, BK_EINVAL, "id %d (number %lld of %lld) is outside the tokenizer's 0 .. %lld", ids[i],
                           (long long)i, (long long)n, (long long)t->n - 1);
        BK_TRY(put_piece(t, &t->piece[ids[i]], skip_special, out, err));
        bool strip = first && t->strip_space && t->piece[ids[i]].kind == BK_TOKEN_NORMAL && out->data[0] == ' ';
        first &= out->len == 0;
        if (strip) memmove(out->data, out->data + 1, --out->len);
    }
    return bk_buffer_put(out, "", 1, err);
}

bk_status bk_tokenizer_decode(const bk_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, char **text,
                              size_t *len, bk_error *err)
{
    bk_buffer out = {0};
    bk_status s = decode(t, ids, n, skip_special, &out, err);
    if (s) {
        free(out.data);
        return s;
    }
    *text = out.data;
    *len = out.len - 1;
    return BK_OK;
}
