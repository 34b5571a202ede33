#include "quant/rank.h"

#include <stdlib.h>

typedef struct ranked {
    double score;
    int32_t index;
} ranked;

static int falling(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

bk_status bk_rank_falling(const double *score, int64_t n, int32_t *order, bk_error *err)
{
    ranked *r = malloc((size_t)n * sizeof *r);
    if (!r) return bk_fail(err, BK_ENOMEM, "no memory to order %lld channels", (long long)n);
    for (int64_t i = 0; i < n; i++) r[i] = (ranked){score[i], (int32_t)i};
    qsort(r, (size_t)n, sizeof *r, falling);
    for (int64_t i = 0; i < n; i++) order[i] = r[i].index;
    free(r);
    return BK_OK;
}
