#include "blocks/weights.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16 }; /* floats: 64 bytes, a cache line */

bool bk_config_has_bias(const bk_config *c, bk_linear_id id)
{
    if (id == BK_W_O) return c->o_bias;
    return id < BK_W_O ? c->qkv_bias : c->mlp_bias;
}

/* Takes `count` floats behind those `used` so far; NULL while only counting. */
static float *take(float *memory, int64_t *used, int64_t count)
{
    float *at = memory ? memory + *used : NULL;
    *used += (count + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static void lay_out(const bk_config *c, bk_block_weights *w)
{
    int64_t used = 0;
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(c, id, &out, &in);
        w->w[id] = take(w->memory, &used, out * in);
        if (bk_config_has_bias(c, id)) w->b[id] = take(w->memory, &used, out);
    }
    w->norm[BK_NORM_ATTN] = take(w->memory, &used, c->hidden);
    w->norm[BK_NORM_MLP] = take(w->memory, &used, c->hidden);
    if (c->qk_norm) {
        w->norm[BK_NORM_Q] = take(w->memory, &used, c->head_dim);
        w->norm[BK_NORM_K] = take(w->memory, &used, c->head_dim);
    }
    if (c->r3_per_kv_head) w->r3 = take(w->memory, &used, c->kv_heads * c->head_dim * c->head_dim);
    w->count = used;
}

bk_status bk_weights_alloc(const bk_config *c, bk_block_weights *w, bk_error *err)
{
    memset(w, 0, sizeof *w);
    lay_out(c, w);
    size_t bytes = (size_t)w->count * sizeof(float);
    w->memory = aligned_alloc(ALIGN * sizeof(float), bytes);
    if (!w->memory) return bk_fail(err, BK_ENOMEM, "no memory for the weights of a block: %zu bytes", bytes);
    memset(w->memory, 0, bytes);
    lay_out(c, w);
    return BK_OK;
}

void bk_weights_free(bk_block_weights *w)
{
    free(w->memory);
    memset(w, 0, sizeof *w);
}

bk_weights_view bk_weights_view_of(const bk_block_weights *w)
{
    bk_weights_view v = {.type = BK_F32, .r3 = w->r3};
    for (int i = 0; i < BK_W_COUNT; i++) v.w[i] = w->w[i], v.b[i] = w->b[i];
    for (int i = 0; i < BK_NORM_COUNT; i++) v.norm[i] = w->norm[i];
    return v;
}

static bk_status load_bias(const bk_model *m, int64_t layer, bk_linear_id id, const bk_block_weights *w, bk_error *err)
{
    bool in_model = bk_model_has_bias(m, id);
    if (in_model && !w->b[id])
        return bk_fail(err, BK_ESHAPE, "%s: block %lld: %s has a bias that its config does not announce",
                       bk_model_path(m), (long long)layer, bk_linear_name[id]);
    if (in_model) return bk_model_read_bias(m, layer, id, w->b[id], err);
    if (w->b[id]) {
        int64_t out, in;
        bk_linear_shape(bk_model_config(m), id, &out, &in);
        memset(w->b[id], 0, (size_t)out * sizeof(float));
    }
    return BK_OK;
}

bk_status bk_weights_load(const bk_model *m, int64_t layer, bk_block_weights *w, bk_error *err)
{
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        BK_TRY(bk_model_read_linear(m, layer, id, w->w[id], err));
        BK_TRY(load_bias(m, layer, id, w, err));
    }
    for (bk_norm_id id = 0; id < BK_NORM_COUNT; id++)
        if (w->norm[id]) BK_TRY(bk_model_read_norm(m, layer, id, w->norm[id], err));
    return BK_OK;
}
