#include "experiments/inspect_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/model.h"
#include "experiments/lab.h"
#include "io/file.h"

static const char ids_path[] = "/tokens/input_ids";

/* ---- ids ---- */

static const bk_store_object *find_ids(const bk_store *s, const bk_store_object *o)
{
    int64_t n;
    const bk_store_object *all = bk_store_objects(s, &n);
    for (int64_t i = 0; i < n; i++) {
        const bk_store_object *ids = &all[i];
        if (strcmp(ids->path, ids_path) != 0) continue;
        bool integer = ids->type == BK_STORE_I32 || ids->type == BK_STORE_I64;
        bool fits = o->rank >= 3 && ids->rank == 2 && ids->dim[0] == o->dim[0] && ids->dim[1] == o->dim[1];
        return integer && fits && o->elements > 0 ? ids : NULL;
    }
    return NULL;
}

static bk_status open_ids(bk_row_tokens *t, bk_store *store, const bk_store_object *o, bk_error *err)
{
    const bk_store_object *ids = find_ids(store, o);
    if (!ids) return BK_OK;
    t->len = ids->dim[1];
    t->wide = ids->type == BK_STORE_I64;
    BK_TRY(bk_dset_open(&t->dset, store, ids_path, err));
    t->ids = calloc((size_t)t->len, t->wide ? sizeof(int64_t) : sizeof(int32_t));
    if (!t->ids) return bk_fail(err, BK_ENOMEM, "no memory for the ids of %lld tokens", (long long)t->len);
    t->store = store;
    return BK_OK;
}

bk_status bk_row_token_id(bk_row_tokens *t, int64_t sample, int64_t token, int64_t *id, bk_error *err)
{
    *id = -1;
    if (!t->store) return BK_OK;
    if (sample != t->sample) {
        t->sample = -1;
        BK_TRY(bk_dset_read_raw(t->dset, sample, 1, t->ids, err));
        t->sample = sample;
    }
    *id = t->wide ? ((int64_t *)t->ids)[token] : ((int32_t *)t->ids)[token];
    return BK_OK;
}

/* ---- texts ---- */

static bk_status open_named(const char *model, bk_tokenizer **out, bk_error *err)
{
    BK_TRY(bk_lab_tokenizer(model, out, err));
    if (*out) return BK_OK;
    return bk_fail(err, BK_EIO, "%s: there is no tokenizer: name a GGUF file, or a folder or run with tokenizer.json", model);
}

static bool is_the_model(const char *path, const char *sha256)
{
    bk_model *m = NULL;
    char hex[65] = "";
    bool same = bk_exists(path) && bk_model_open(path, &m, NULL) == BK_OK && bk_model_sha256(m, hex, NULL) == BK_OK &&
                strcmp(hex, sha256) == 0;
    bk_model_close(m);
    return same;
}

/* A file names its model without a folder. */
static void look_for_model(bk_row_tokens *t, const char *file, const bk_store_meta *meta)
{
    const char *name = meta->model, *slash = strrchr(file, '/');
    int dir = slash ? (int)(slash - file) + 1 : 0;
    t->why = "the file names no model";
    if (!name || !*name || strchr(name, '/') || !meta->model_sha256) return;
    t->why = "the model that the file names was not found";
    for (int k = 0; k < 6; k++) {
        char path[4096];
        const char *suffix = k & 1 ? "" : ".gguf";
        if (k < 2) snprintf(path, sizeof path, "%.*s%s%s", dir, file, name, suffix);
        else snprintf(path, sizeof path, "%s%s%s", k < 4 ? "models/" : "", name, suffix);
        if (!is_the_model(path, meta->model_sha256)) continue;
        t->why = "the tokenizer of the model that the file names cannot be read";
        if (open_named(path, &t->tok, NULL) == BK_OK) t->why = NULL;
        return;
    }
}

bk_status bk_row_tokens_open(bk_row_tokens *t, bk_store *store, const bk_store_object *o, const char *file,
                             const char *model, bk_error *err)
{
    *t = (bk_row_tokens){.sample = -1};
    bk_status status = open_ids(t, store, o, err);
    if (status == BK_OK && model) status = open_named(model, &t->tok, err);
    else if (status == BK_OK && t->store) look_for_model(t, file, bk_store_meta_of(store));
    if (status != BK_OK) bk_row_tokens_close(t);
    return status;
}

void bk_row_tokens_close(bk_row_tokens *t)
{
    bk_dset_close(t->dset);
    bk_tokenizer_free(t->tok);
    free(t->ids);
    *t = (bk_row_tokens){.sample = -1};
}

char *bk_row_token_text(const bk_row_tokens *t, int64_t id, size_t *len)
{
    char *text = NULL;
    if (!t->tok || id < 0 || id >= bk_tokenizer_size(t->tok)) return NULL;
    return bk_token_text(t->tok, (int32_t)id, &text, len, NULL) == BK_OK ? text : NULL;
}
