#include "io/strmap.h"

#include <stdlib.h>
#include <string.h>

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = mix(h ^ w);
    }
    uint64_t tail = 0;
    memcpy(&tail, s, n);
    return (uint32_t)mix(h ^ tail);
}

/* A power of two at least twice the number of keys. */
static size_t slots_for(size_t keys)
{
    size_t n = 16;
    while (n < 2 * keys) n *= 2;
    return n;
}

bk_status bk_strmap_init(bk_strmap *m, size_t keys, bk_error *err)
{
    size_t n = slots_for(keys);
    m->slot = calloc(n, sizeof *m->slot);
    m->mask = n - 1;
    return m->slot ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a table of %zu strings", keys);
}

void bk_strmap_free(bk_strmap *m)
{
    free(m->slot);
    *m = (bk_strmap){0};
}

static bk_strslot *find_string(const bk_strmap *m, const char *key, size_t len, uint32_t hash)
{
    size_t i = hash & m->mask;
    for (; m->slot[i].key; i = (i + 1) & m->mask) {
        bk_strslot *s = &m->slot[i];
        if (s->hash == hash && s->len == len && memcmp(s->key, key, len) == 0) break;
    }
    return &m->slot[i];
}

int32_t bk_strmap_put(bk_strmap *m, const char *key, uint32_t len, int32_t value)
{
    uint32_t hash = hash_bytes(key, len);
    bk_strslot *s = find_string(m, key, len, hash);
    if (!s->key) *s = (bk_strslot){key, len, hash, value};
    return s->value;
}

int32_t bk_strmap_get(const bk_strmap *m, const char *key, size_t len)
{
    const bk_strslot *s = find_string(m, key, len, hash_bytes(key, len));
    return s->key ? s->value : -1;
}

static bk_pair *find_pair(const bk_pairmap *m, int32_t left, int32_t right)
{
    size_t i = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & m->mask;
    while (m->slot[i].left >= 0 && (m->slot[i].left != left || m->slot[i].right != right)) i = (i + 1) & m->mask;
    return &m->slot[i];
}

static bk_status grow_pairs(bk_pairmap *m, bk_error *err)
{
    size_t n = slots_for(2 * m->used + 8);
    bk_pairmap bigger = {malloc(n * sizeof *bigger.slot), n - 1, m->used};
    if (!bigger.slot) return bk_fail(err, BK_ENOMEM, "no memory for a table of %zu pairs", n);
    for (size_t i = 0; i < n; i++) bigger.slot[i].left = -1;
    for (size_t i = 0; m->slot && i <= m->mask; i++)
        if (m->slot[i].left >= 0) *find_pair(&bigger, m->slot[i].left, m->slot[i].right) = m->slot[i];
    free(m->slot);
    *m = bigger;
    return BK_OK;
}

bk_status bk_pairmap_put(bk_pairmap *m, bk_pair p, const bk_pair **old, bk_error *err)
{
    if (!m->slot || 2 * m->used > m->mask) BK_TRY(grow_pairs(m, err));
    bk_pair *s = find_pair(m, p.left, p.right);
    *old = s->left >= 0 ? s : NULL;
    if (*old) return BK_OK;
    *s = p;
    m->used++;
    return BK_OK;
}

const bk_pair *bk_pairmap_get(const bk_pairmap *m, int32_t left, int32_t right)
{
    if (!m->slot) return NULL;
    const bk_pair *s = find_pair(m, left, right);
    return s->left >= 0 ? s : NULL;
}

void bk_pairmap_free(bk_pairmap *m)
{
    free(m->slot);
    *m = (bk_pairmap){0};
}
