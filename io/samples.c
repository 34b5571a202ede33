#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "io/file.h"
#include "io/text.h"

/* The n windows that begin at start[i]. */
static bk_status gather(const bk_text *t, int64_t seqlen, const int64_t *start, int64_t n, int64_t asked,
                        bk_samples *out, bk_error *err)
{
    out->ids = malloc((size_t)(n * seqlen) * sizeof *out->ids);
    if (!out->ids)
        return bk_fail(err, BK_ENOMEM, "no memory for %lld samples of %lld tokens", (long long)n, (long long)seqlen);
    for (int64_t i = 0; i < n; i++) memcpy(out->ids + i * seqlen, t->ids + start[i], (size_t)seqlen * sizeof *out->ids);
    out->n = n;
    out->seqlen = seqlen;
    out->ledger = t->ledger;
    out->ledger.asked = asked;
    out->ledger.kept = n;
    out->ledger.dropped = asked - n;
    return BK_OK;
}

bk_status bk_samples_windows(const bk_text *t, int64_t seqlen, int64_t windows, bk_samples *out, bk_error *err)
{
    *out = (bk_samples){0};
    if (seqlen < 1 || windows == 0)
        return bk_fail(err, BK_EINVAL, "%lld windows of %lld tokens", (long long)windows, (long long)seqlen);
    int64_t all = t->n / seqlen, asked = windows < 0 ? all : windows, n = asked < all ? asked : all;
    if (n == 0)
        return bk_fail(err, BK_EINVAL,
                       "not one window of %lld tokens: the text has %lld; give a longer text or a smaller seqlen",
                       (long long)seqlen, (long long)t->n);
    int64_t *start = malloc((size_t)n * sizeof *start);
    if (!start) return bk_fail(err, BK_ENOMEM, "no memory for %lld windows", (long long)n);
    for (int64_t i = 0; i < n; i++) start[i] = i * seqlen;
    bk_status s = gather(t, seqlen, start, n, asked, out, err);
    free(start);
    return s;
}

static int64_t doc_len(const bk_text *t, int64_t d)
{
    return t->doc_start[d + 1] - t->doc_start[d];
}

/* Where the windows of all documents begin: side by side from an offset that the seed draws. start has room for them. */
static int64_t lay_out(const bk_text *t, int64_t seqlen, uint64_t seed, int64_t *start)
{
    int64_t n = 0;
    for (int64_t d = 0; d < t->n_docs; d++) {
        int64_t k = doc_len(t, d) / seqlen, slack = doc_len(t, d) - k * seqlen;
        int64_t at =
            t->doc_start[d] + (int64_t)bk_rng_below(seed, BK_RNG_SAMPLES, 2 * (uint64_t)d, (uint64_t)slack + 1);
        for (int64_t i = 0; i < k; i++) start[n++] = at + i * seqlen;
    }
    return n;
}

static void shuffle(int64_t *v, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i + 1 < n; i++) {
        int64_t j = i + (int64_t)bk_rng_below(seed, BK_RNG_SAMPLES, 2 * (uint64_t)i + 1, (uint64_t)(n - i)), x = v[i];
        v[i] = v[j];
        v[j] = x;
    }
}

bk_status bk_samples_draw(const bk_text *t, int64_t seqlen, int64_t n, int64_t skip, uint64_t seed, bk_samples *out,
                          bk_error *err)
{
    *out = (bk_samples){0};
    if (seqlen < 1 || n < 1 || skip < 0)
        return bk_fail(err, BK_EINVAL, "%lld samples of %lld tokens after %lld others", (long long)n, (long long)seqlen,
                       (long long)skip);
    int64_t shorter = 0;
    for (int64_t d = 0; d < t->n_docs; d++) shorter += doc_len(t, d) < seqlen;
    int64_t *start = malloc((size_t)(t->n / seqlen + 1) * sizeof *start);
    if (!start) return bk_fail(err, BK_ENOMEM, "no memory for %lld samples", (long long)(t->n / seqlen));
    int64_t all = lay_out(t, seqlen, seed, start), left = all > skip ? all - skip : 0, kept = n < left ? n : left;
    shuffle(start, all, seed);
    bk_status s =
        kept > 0 ? gather(t, seqlen, start + skip, kept, n, out, err)
                 : bk_fail(
                     err, BK_EINVAL,
                     "no sample of %lld tokens is left: the text has %lld tokens in %lld documents (%lld shorter than "
                     "a sample), which make "
                     "%lld samples, and %lld are in use already; give a longer text, fewer samples or a smaller seqlen",
                     (long long)seqlen, (long long)t->n, (long long)t->n_docs, (long long)shorter, (long long)all,
                     (long long)skip);
    free(start);
    out->ledger.shorter = s ? 0 : shorter;
    return s;
}

void bk_samples_free(bk_samples *s)
{
    free(s->ids);
    *s = (bk_samples){0};
}

bk_status bk_samples_sha256(const bk_samples *s, char hex[65], bk_error *err)
{
    bk_sha256 *h = bk_sha256_new();
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a hash");
    bk_sha256_put(h, s->ids, (size_t)(s->n * s->seqlen) * sizeof *s->ids);
    bk_sha256_end(h, hex);
    return BK_OK;
}
