#include "blocks/source.h"

#include <stdlib.h>
#include <string.h>

struct bk_source {
    const bk_model *model;
    bk_rotation *rotation;
};

bk_status bk_source_open(const bk_model *m, const bk_rotation_spec *spec, bk_source **out, bk_error *err)
{
    static const bk_rotation_spec none;
    *out = NULL;
    bk_source *s = calloc(1, sizeof *s);
    float *final_norm = malloc((size_t)bk_model_config(m)->hidden * sizeof *final_norm);
    bk_status status = BK_OK;
    if (!s || !final_norm) status = bk_fail(err, BK_ENOMEM, "%s: no memory for its transforms", bk_model_path(m));
    if (!status) status = bk_model_read_final_norm(m, final_norm, err);
    if (!status) status = bk_rotation_create(bk_model_config(m), spec ? spec : &none, final_norm, &s->rotation, err);
    free(final_norm);
    if (status) {
        free(s);
        return status;
    }
    s->model = m;
    *out = s;
    return BK_OK;
}

void bk_source_close(bk_source *s)
{
    if (!s) return;
    bk_rotation_free(s->rotation);
    free(s);
}

const bk_config *bk_source_config(const bk_source *s)
{
    return &s->rotation->after;
}

void bk_source_overlap_prefix(bk_source *s, bool on)
{
    s->rotation->after.overlap_prefix = on;
}

const bk_model *bk_source_model(const bk_source *s)
{
    return s->model;
}

const bk_rotation *bk_source_rotation(const bk_source *s)
{
    return s->rotation;
}

const bk_hadamard_plan *bk_source_r3(const bk_source *s)
{
    return bk_rotation_r3(s->rotation);
}

const bk_hadamard_plan *bk_source_r4(const bk_source *s)
{
    return bk_rotation_r4(s->rotation);
}

bk_status bk_source_block(const bk_source *s, int64_t layer, bk_block_weights *w, bk_error *err)
{
    BK_TRY(bk_weights_load(s->model, layer, w, err));
    return bk_rotation_block(s->rotation, layer, w, err);
}

bk_status bk_source_embed(const bk_source *s, const int32_t *ids, int64_t n, float *out, bk_error *err)
{
    const bk_config *c = bk_source_config(s);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return bk_fail(err, BK_EINVAL,
                           "%s: token %lld has id %d, the vocabulary has %lld: the tokenizer belongs to another model",
                           bk_model_path(s->model), (long long)i, ids[i], (long long)c->vocab);
        BK_TRY(bk_model_read_embed(s->model, ids[i], 1, out + i * c->hidden, err));
    }
    return bk_rotation_embed(s->rotation, n, out, err);
}

bk_status bk_source_head(const bk_source *s, int64_t row0, int64_t rows, float *dst, bk_error *err)
{
    BK_TRY(bk_model_read_head(s->model, row0, rows, dst, err));
    return bk_rotation_head(s->rotation, rows, dst, err);
}

void bk_source_final_norm(const bk_source *s, float *dst)
{
    int64_t hidden = bk_source_config(s)->hidden;
    memcpy(dst, s->rotation->final_norm, (size_t)hidden * sizeof *dst);
    if (s->rotation->on[BK_TRANSFORM_FUSE])
        for (int64_t i = 0; i < hidden; i++) dst[i] = 1;
}
