#include "blocks/params_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "io/store.h"

#define SCHEMA "brick.init"

/* Those of the model, until they are trained: whether the block trains them makes no other file. */
static bool is_gain(const bk_block *b, const bk_tensor *t)
{
    int i = 0;
    while (i < BK_NORM_COUNT && b->norm[i] != t) i++;
    return i < BK_NORM_COUNT;
}

static bk_status each(const bk_block *b, int64_t layer, bool weights, bk_store *s, bool write, bk_error *err)
{
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        char path[192];
        bk_tensor *t = bk_params_at(b->params, i, &group);
        int64_t n = bk_numel(t);
        if ((group == BK_GROUP_WEIGHT && !weights) || is_gain(b, t)) continue;
        snprintf(path, sizeof path, "/blocks/%03lld/%s", (long long)layer, t->name);
        float *buf = malloc((size_t)n * sizeof *buf);
        bk_status st = buf ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for %s", t->name);
        if (!st && write) st = bk_read(b->be, t, 0, buf, n, err);
        if (!st) st = write ? bk_store_put(s, path, BK_STORE_F32, t->ndim, t->dim, buf, err)
                            : bk_store_get(s, path, BK_STORE_F32, t->ndim, t->dim, buf, err);
        if (!st && !write) st = bk_write(b->be, t, 0, buf, n, err);
        free(buf);
        BK_TRY(st);
    }
    return BK_OK;
}

bk_status bk_params_save(const bk_block *b, int64_t layer, bool weights, const char *path, bk_error *err)
{
    bk_store *s = NULL;
    BK_TRY(bk_store_create(&s, path, &(bk_store_meta){.schema = SCHEMA}, 0, err));
    bk_status st = each(b, layer, weights, s, true, err);
    if (!st) return bk_store_commit(s, err);
    bk_store_close(s);
    return st;
}

bk_status bk_params_load(bk_block *b, int64_t layer, bool weights, const char *path, bk_error *err)
{
    bk_store *s = NULL;
    BK_TRY(bk_store_open(&s, path, SCHEMA, err));
    bk_status st = each(b, layer, weights, s, false, err);
    bk_store_close(s);
    return st;
}
