/* The merges that a SentencePiece BPE model implies: it joins any two neighbours whose text together is a token, best
 * score first. */
#include <stdlib.h>

#include "io/tokenizer_impl.h"
#include "io/utf8.h"

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *x, const void *y)
{
    const scored *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static bk_status cut_token(bk_tokenizer *t, int32_t id, int32_t rank, bk_error *err)
{
    const bk_piece *p = &t->piece[id];
    for (size_t at = bk_utf8_char(p->text, p->len, NULL); at < p->len;
         at += bk_utf8_char(p->text + at, p->len - at, NULL)) {
        int32_t left = bk_tokenizer_plain(t, p->text, at), right = bk_tokenizer_plain(t, p->text + at, p->len - at);
        if (left >= 0 && right >= 0) BK_TRY(bk_tokenizer_add_merge(t, left, right, rank, id, err));
    }
    return BK_OK;
}

static bk_status add_merges(bk_tokenizer *t, scored *list, bk_error *err)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n; i++)
        if (t->piece[i].kind == BK_TOKEN_NORMAL || t->piece[i].kind == BK_TOKEN_USER)
            list[n++] = (scored){t->score[i], (int32_t)i};
    qsort(list, (size_t)n, sizeof *list, by_score);
    int32_t rank = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && list[i].score != list[i - 1].score) rank++;
        BK_TRY(cut_token(t, list[i].id, rank, err));
    }
    return BK_OK;
}

bk_status bk_tokenizer_merges_from_scores(bk_tokenizer *t, bk_error *err)
{
    scored *list = malloc((size_t)t->n * sizeof *list);
    if (!list) return bk_fail(err, BK_ENOMEM, "no memory for %lld scores", (long long)t->n);
    bk_status s = add_merges(t, list, err);
    free(list);
    return s;
}
