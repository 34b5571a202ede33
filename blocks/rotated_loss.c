#include "blocks/rotated_loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/init.h"

enum { HEAD_TOKENS = 256 }; /* positions per chunk of logits */
enum { MAX_PARTS = BK_W_COUNT + 3 };

/* A weight or bias that rotations turn, as [rows, cols]: to = rows' (base) cols', with the rotation that each side takes. */
typedef enum { FIXED, STREAM, HEADS } side;
typedef struct part {
    const float *base;    /* before R1 (and R2), of the block that is loaded */
    bk_tensor *to, *grad; /* in the block; the leaf's gradient */
    int64_t rows, cols;
    side row, col; /* STREAM: R1; HEADS: R2 for each head_dim of them */
} part;

struct bk_rotated_loss {
    const bk_backend *be;
    const bk_source *src;
    bk_rotated_loss_options opt;
    bk_block_quant quant;
    bk_error *err;
    int64_t width, head_dim, layers;
    bk_ctx *ctx;
    bk_linalg *algebra;
    bk_block *b;
    bool ranges;          /* some site wants ranges from data */
    int64_t loaded;       /* layer in b; -1: none */
    bk_block_weights w;
    part part[MAX_PARTS];
    int parts;
    double *x, *y, *dx;   /* one part on its way, [largest] */
    bk_head head;
    bk_tensor *turn, *dturn; /* R1 as the head sees it */
    bk_stream *h, *dh;    /* [batch, tokens, width] */
    bk_stream *kept;      /* inputs of all blocks, one after the other: [layers * batch, ...] */
    float *host, *dhost;  /* some samples of them */
    int64_t micro;        /* samples on the tape at once */
    const double *r1, *r2; /* arguments of the present call */
    double *dr1, *dr2;
};

bk_linalg *bk_rotated_loss_algebra(bk_rotated_loss *l)
{
    return l->algebra;
}

/* --- rotations of a part, and their gradients --- */

static const double *r2_of(const bk_rotated_loss *l)
{
    return l->r2 + l->loaded * l->head_dim * l->head_dim;
}

/* out = R^T x for each `order` rows of x, or x R for each `order` columns. */
static bk_status turn_rows(bk_rotated_loss *l, const part *p, int64_t order, const double *r, const double *x, double *out)
{
    for (int64_t i = 0; i < p->rows; i += order)
        BK_TRY(bk_linalg_product(l->algebra, &(bk_product){.m = order, .n = p->cols, .k = order, .ta = true, .a = r, .b = x + i * p->cols,
                                                           .c = out + i * p->cols, .lda = order, .ldb = p->cols, .ldc = p->cols}));
    return BK_OK;
}

static bk_status turn_cols(bk_rotated_loss *l, const part *p, int64_t order, const double *r, const double *x, double *out)
{
    for (int64_t i = 0; i < p->cols; i += order)
        BK_TRY(bk_linalg_product(l->algebra, &(bk_product){.m = p->rows, .n = order, .k = order, .a = x + i, .b = r, .c = out + i,
                                                           .lda = p->cols, .ldb = order, .ldc = p->cols}));
    return BK_OK;
}

/* l->x = l->x turned on the sides that are `which`; l->y is room. */
static bk_status turn(bk_rotated_loss *l, const part *p, side which)
{
    int64_t order = which == STREAM ? l->width : l->head_dim;
    const double *r = which == STREAM ? l->r1 : r2_of(l);
    if (p->row != which && p->col != which) return BK_OK;
    BK_TRY(p->row == which ? turn_rows(l, p, order, r, l->x, l->y) : turn_cols(l, p, order, r, l->x, l->y));
    double *swap = l->x;
    l->x = l->y;
    l->y = swap;
    return BK_OK;
}

/* dr += x dx^T over each `order` rows, or x^T dx over each `order` columns: for out = R^T x, or x R, with dx the gradient of out. */
static bk_status add_gradient(bk_rotated_loss *l, const part *p, side which, double *dr)
{
    int64_t order = which == STREAM ? l->width : l->head_dim;
    bk_product q = {.m = order, .n = order, .add = true, .c = dr, .lda = p->cols, .ldb = p->cols, .ldc = order};
    bool rows = p->row == which;
    if (!rows && p->col != which) return BK_OK;
    q.k = rows ? p->cols : p->rows;
    q.tb = rows;
    q.ta = !rows;
    for (int64_t i = 0; i < (rows ? p->rows : p->cols); i += order) {
        q.a = l->x + (rows ? i * p->cols : i);
        q.b = l->dx + (rows ? i * p->cols : i);
        BK_TRY(bk_linalg_product(l->algebra, &q));
    }
    return BK_OK;
}

static void widen(bk_rotated_loss *l, const part *p)
{
    for (int64_t i = 0; i < p->rows * p->cols; i++) l->x[i] = (double)p->base[i];
}

static bk_status rotate_part(bk_rotated_loss *l, const part *p)
{
    widen(l, p);
    if (l->r2) BK_TRY(turn(l, p, HEADS));
    BK_TRY(turn(l, p, STREAM));
    return bk_write_f64(l->be, p->to, 0, l->x, p->rows * p->cols, l->err);
}

/* Each rotation sees what the other has turned. */
static bk_status collect_part(bk_rotated_loss *l, const part *p)
{
    BK_TRY(bk_read_f64(l->be, p->grad, 0, l->dx, p->rows * p->cols, l->err));
    widen(l, p);
    if (l->r2 && (p->row == HEADS || p->col == HEADS)) {
        BK_TRY(turn(l, p, STREAM));
        BK_TRY(add_gradient(l, p, HEADS, l->dr2 + l->loaded * l->head_dim * l->head_dim));
        widen(l, p);
        BK_TRY(turn(l, p, HEADS));
    }
    return add_gradient(l, p, STREAM, l->dr1);
}

/* --- one block --- */

/* l->h holds the inputs of the block: static ranges are measured on them. */
static bk_status load(bk_rotated_loss *l, int64_t layer)
{
    if (l->loaded == layer) return BK_OK;
    l->loaded = layer;
    BK_TRY(bk_source_block(l->src, layer, &l->w, l->err));
    BK_TRY(bk_block_load(l->b, &l->w, l->err));
    for (int i = 0; i < l->parts; i++) BK_TRY(rotate_part(l, &l->part[i]));
    l->b->skip_sites = l->opt.skip_sites ? l->opt.skip_sites[layer] : 0;
    l->b->skip_weights = l->opt.skip_weights ? l->opt.skip_weights[layer] : 0;
    if (l->ranges) return bk_block_init(l->ctx, l->b, l->h, &(bk_init_options){0}, l->err);
    BK_TRY(bk_block_init_weights(l->ctx, l->b, l->err));
    bk_block_quantize(l->b, true, true);
    return BK_OK;
}

/* A leaf [dims] with a gradient; values from src, unless this is a dry run. */
static bk_tensor *leaf(bk_rotated_loss *l, int ndim, const int64_t *dim, const float *src)
{
    bk_tensor *x = bk_real_new(l->ctx, ndim, dim, "hidden states"), *dx = bk_real_new(l->ctx, ndim, dim, "their gradient");
    if (!x || !dx || bk_k_fill(l->ctx, &(bk_fill_args){.n = bk_numel(dx), .x = dx->data})) return NULL;
    if (!bk_ctx_measuring(l->ctx) && bk_write(l->be, x, 0, src, bk_numel(x), l->err)) return NULL;
    x->requires_grad = true;
    x->grad = dx;
    return x;
}

/* Back through the block for n samples: inputs in l->host, gradient of the outputs in l->dhost, which that of the inputs replaces. */
static bk_status back_samples(bk_rotated_loss *l, int64_t n)
{
    int64_t dim[3] = {n, l->opt.tokens, l->width};
    bk_step_begin(l->ctx);
    bk_tensor *x = leaf(l, 3, dim, l->host), *dy = bk_real_new(l->ctx, 3, dim, "gradient"), *y = bk_block_forward(l->ctx, l->b, x);
    BK_TRY(bk_ctx_status(l->ctx));
    bool dry = bk_ctx_measuring(l->ctx);
    if (!dry) BK_TRY(bk_write(l->be, dy, 0, l->dhost, bk_numel(dy), l->err));
    BK_TRY(bk_backward(l->ctx, y, dy));
    return dry ? BK_OK : bk_read(l->be, x->grad, 0, l->dhost, bk_numel(x), l->err);
}

static bk_status zero_gradients(bk_rotated_loss *l)
{
    for (int i = 0; i < l->parts; i++)
        BK_TRY(bk_k_fill(l->ctx, &(bk_fill_args){.n = bk_numel(l->part[i].grad), .x = l->part[i].grad->data}));
    return BK_OK;
}

/* Samples first .. of one stream become samples at .. of another. */
static bk_status copy(bk_rotated_loss *l, const bk_stream *from, int64_t first, bk_stream *to, int64_t at)
{
    for (int64_t i = 0, n; i < l->opt.batch; i += n) {
        n = l->opt.batch - i < l->micro ? l->opt.batch - i : l->micro;
        BK_TRY(bk_stream_read(from, first + i, n, l->host, l->err));
        BK_TRY(bk_stream_write(to, at + i, n, l->host, l->err));
    }
    return BK_OK;
}

static bk_status back_block(bk_rotated_loss *l, int64_t layer)
{
    BK_TRY(copy(l, l->kept, layer * l->opt.batch, l->h, 0));
    BK_TRY(load(l, layer));
    BK_TRY(zero_gradients(l));
    bk_ctx_record(l->ctx, true);
    for (int64_t i = 0, n; i < l->opt.batch; i += n) {
        n = l->opt.batch - i < l->micro ? l->opt.batch - i : l->micro;
        BK_TRY(bk_stream_read(l->h, i, n, l->host, l->err));
        BK_TRY(bk_stream_read(l->dh, i, n, l->dhost, l->err));
        BK_TRY(back_samples(l, n));
        BK_TRY(bk_stream_write(l->dh, i, n, l->dhost, l->err));
    }
    bk_ctx_record(l->ctx, false);
    for (int i = 0; i < l->parts; i++) BK_TRY(collect_part(l, &l->part[i]));
    return BK_OK;
}

/* --- both ends --- */

/* The rows e of one sample go into l->x in f64. */
static bk_status embed_sample(bk_rotated_loss *l, const int32_t *ids)
{
    int64_t n = l->opt.tokens * l->width;
    BK_TRY(bk_source_embed(l->src, ids, l->opt.tokens, l->host, l->err));
    for (int64_t i = 0; i < n; i++) l->x[i] = (double)l->host[i];
    return BK_OK;
}

static bk_status embed(bk_rotated_loss *l, const int32_t *ids)
{
    part rows = {.rows = l->opt.tokens, .cols = l->width, .col = STREAM};
    for (int64_t s = 0; s < l->opt.batch; s++) {
        BK_TRY(embed_sample(l, ids + s * l->opt.tokens));
        BK_TRY(turn(l, &rows, STREAM));
        for (int64_t i = 0; i < rows.rows * rows.cols; i++) l->host[i] = (float)l->x[i];
        BK_TRY(bk_stream_write(l->h, s, 1, l->host, l->err));
    }
    return BK_OK;
}

static bk_status back_embed(bk_rotated_loss *l, const int32_t *ids)
{
    part rows = {.rows = l->opt.tokens, .cols = l->width, .col = STREAM};
    for (int64_t s = 0; s < l->opt.batch; s++) {
        BK_TRY(embed_sample(l, ids + s * l->opt.tokens));
        BK_TRY(bk_stream_read(l->dh, s, 1, l->dhost, l->err));
        for (int64_t i = 0; i < rows.rows * rows.cols; i++) l->dx[i] = (double)l->dhost[i];
        BK_TRY(add_gradient(l, &rows, STREAM, l->dr1));
    }
    return BK_OK;
}

static bk_status add_losses(bk_rotated_loss *l, const bk_tensor *nll, double *sum)
{
    double value[HEAD_TOKENS];
    BK_TRY(bk_read_f64(l->be, nll, 0, value, bk_numel(nll), l->err));
    for (int64_t i = 0; i < bk_numel(nll); i++) *sum += value[i];
    return BK_OK;
}

/* n positions from hidden states h, which predict ids; their gradient goes to dh. */
static bk_status head_chunk(bk_rotated_loss *l, const float *h, const int32_t *ids, int64_t n, double *sum, float *dh)
{
    bk_step_begin(l->ctx);
    bk_tensor *x = leaf(l, 2, (int64_t[]){n, l->width}, h), *weight = bk_real_new(l->ctx, 1, &n, "weight of a token");
    bk_tensor *target = bk_tensor_new(l->ctx, BK_I32, 1, &n, "targets");
    BK_TRY(bk_ctx_status(l->ctx));
    bool dry = bk_ctx_measuring(l->ctx);
    if (!dry) BK_TRY(bk_write_i32(l->be, target, 0, ids, n, l->err));
    bk_tensor *unturned = bk_linear(l->ctx, bk_rmsnorm(l->ctx, x, l->head.norm, l->b->cfg.eps), l->turn, NULL);
    bk_tensor *nll = bk_cross_entropy(l->ctx, bk_linear(l->ctx, unturned, l->head.w, NULL), target);
    BK_TRY(bk_ctx_status(l->ctx));
    double scored = (double)(l->opt.batch * (l->opt.tokens - 1));
    BK_TRY(bk_k_fill(l->ctx, &(bk_fill_args){.n = n, .value = 1 / scored, .x = weight->data}));
    BK_TRY(bk_backward(l->ctx, nll, weight));
    if (dry) return BK_OK;
    BK_TRY(add_losses(l, nll, sum));
    return bk_read(l->be, x->grad, 0, dh, n * l->width, l->err);
}

/* Loss of all samples; their gradients go into l->dh. The last token of a sample predicts nothing. */
static bk_status end(bk_rotated_loss *l, const int32_t *ids, double *loss)
{
    int64_t t = l->opt.tokens, scored = t - 1;
    double sum = 0;
    BK_TRY(bk_write_f64(l->be, l->turn, 0, l->r1, l->width * l->width, l->err));
    BK_TRY(bk_k_fill(l->ctx, &(bk_fill_args){.n = bk_numel(l->dturn), .x = l->dturn->data}));
    bk_ctx_record(l->ctx, true);
    for (int64_t s = 0; s < l->opt.batch; s++) {
        BK_TRY(bk_stream_read(l->h, s, 1, l->host, l->err));
        memset(l->dhost + scored * l->width, 0, (size_t)l->width * sizeof *l->dhost);
        for (int64_t p = 0, n; p < scored; p += n) {
            n = scored - p < HEAD_TOKENS ? scored - p : HEAD_TOKENS;
            BK_TRY(head_chunk(l, l->host + p * l->width, ids + s * t + p + 1, n, &sum, l->dhost + p * l->width));
        }
        BK_TRY(bk_stream_write(l->dh, s, 1, l->dhost, l->err));
    }
    bk_ctx_record(l->ctx, false);
    *loss = sum / (double)(l->opt.batch * scored);
    if (!isfinite(*loss)) return bk_fail(l->err, BK_ENUMERIC, "the loss is %g", *loss);
    return bk_read_f64(l->be, l->dturn, 0, l->dr1, l->width * l->width, l->err);
}

/* --- all of it --- */

static bk_status forward(bk_rotated_loss *l, const bk_watch *watch)
{
    for (int64_t layer = 0; layer < l->layers; layer++) {
        BK_TRY(bk_watch_step(watch, layer, 2 * l->layers, l->err));
        BK_TRY(copy(l, l->h, 0, l->kept, layer * l->opt.batch));
        if (load(l, layer) || bk_block_pass(l->ctx, l->b, l->h, l->h, l->err)) return bk_error_prefix(l->err, "block %lld", (long long)layer);
    }
    return BK_OK;
}

static bk_status backward(bk_rotated_loss *l, const bk_watch *watch)
{
    for (int64_t layer = l->layers - 1; layer >= 0; layer--) {
        BK_TRY(bk_watch_step(watch, 2 * l->layers - 1 - layer, 2 * l->layers, l->err));
        if (back_block(l, layer)) return bk_error_prefix(l->err, "block %lld", (long long)layer);
    }
    return BK_OK;
}

static bk_status check_finite(bk_rotated_loss *l, const double *g, int64_t n, const char *of)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(g[i])) return bk_fail(l->err, BK_ENUMERIC, "the gradient of %s is not finite at index %lld", of, (long long)i);
    return BK_OK;
}

bk_status bk_rotated_loss_gradient(bk_rotated_loss *l, const int32_t *ids, const double *r1, const double *r2, const bk_watch *watch,
                                   double *loss, double *dr1, double *dr2)
{
    int64_t turns = l->opt.r2 ? l->layers * l->head_dim * l->head_dim : 0;
    l->r1 = r1, l->r2 = l->opt.r2 ? r2 : NULL;
    l->dr1 = dr1, l->dr2 = dr2;
    l->loaded = -1; /* rotated by another R1 */
    if (turns) memset(dr2, 0, (size_t)turns * sizeof *dr2);
    BK_TRY(embed(l, ids));
    BK_TRY(forward(l, watch));
    BK_TRY(end(l, ids, loss));
    BK_TRY(backward(l, watch));
    BK_TRY(back_embed(l, ids));
    BK_TRY(check_finite(l, dr1, l->width * l->width, "R1"));
    return check_finite(l, dr2, turns, "R2");
}

/* --- made ready --- */

static bk_status add_part(bk_rotated_loss *l, const float *base, bk_tensor *to, int64_t rows, int64_t cols, side row, side col)
{
    part *p = &l->part[l->parts++];
    *p = (part){.base = base, .to = to, .rows = rows, .cols = cols, .row = row, .col = col};
    BK_TRY(bk_tensor_create(l->be, l->be->dtype, to->ndim, to->dim, to->name, &p->grad, l->err));
    to->requires_grad = true;
    to->grad = p->grad;
    return BK_OK;
}

static bk_status add_linear(bk_rotated_loss *l, bk_linear_id id)
{
    bk_site_id in = bk_linear_input(id);
    bool reads = in == BK_SITE_ATTN_IN || in == BK_SITE_MLP_IN;
    side values = l->opt.r2 ? HEADS : FIXED, row = !reads ? STREAM : id == BK_W_V ? values : FIXED;
    int64_t rows = l->b->w[id]->dim[0], cols = l->b->w[id]->dim[1];
    BK_TRY(add_part(l, l->w.w[id], l->b->w[id], rows, cols, row, reads ? STREAM : id == BK_W_O ? values : FIXED));
    return l->b->b[id] && row != FIXED ? add_part(l, l->w.b[id], l->b->b[id], rows, 1, row, FIXED) : BK_OK;
}

static bk_status check(const bk_rotated_loss *l)
{
    const bk_rotation *r = bk_source_rotation(l->src);
    if (!r->on[BK_TRANSFORM_FUSE] || r->on[BK_TRANSFORM_R1])
        return bk_fail(l->err, BK_EINVAL, "a rotation is learnt on a model with fused norms and without R1");
    if (l->opt.r2 && r->on[BK_TRANSFORM_R2]) return bk_fail(l->err, BK_EINVAL, "R2 is learnt on a model without R2");
    if (l->opt.batch < 1 || l->opt.tokens < 2) return bk_fail(l->err, BK_EINVAL, "a batch is at least one sequence of two tokens");
    return BK_OK;
}

/* Dynamic sites are ready when their factors are 1; the others want ranges for every block. */
static bk_status prepare_sites(bk_rotated_loss *l)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        bk_qinst *q = &l->b->site[i];
        if (!q->q) continue;
        if (q->q->needs_range(q->state.bytes)) l->ranges = true;
        else BK_TRY(q->q->init(l->ctx, q->state.bytes, NULL, NULL));
    }
    return BK_OK;
}

static bk_status make_block(bk_rotated_loss *l)
{
    const bk_config *c = bk_source_config(l->src);
    bk_block_options opt = {.quant = l->opt.quant, .r3 = bk_source_r3(l->src), .r4 = bk_source_r4(l->src), .tokens = l->opt.tokens};
    BK_TRY(bk_block_create(&l->b, l->be, c, &opt, l->err));
    BK_TRY(bk_weights_alloc(c, &l->w, l->err));
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) BK_TRY(add_linear(l, id));
    return prepare_sites(l);
}

static bk_status make_room(bk_rotated_loss *l)
{
    int64_t t = l->opt.tokens, c = l->width, most = t * c, samples = l->opt.batch;
    for (int i = 0; i < l->parts; i++) most = l->part[i].rows * l->part[i].cols > most ? l->part[i].rows * l->part[i].cols : most;
    l->micro = bk_pass_batch(samples, t);
    l->x = malloc((size_t)most * sizeof *l->x);
    l->y = malloc((size_t)most * sizeof *l->y);
    l->dx = malloc((size_t)most * sizeof *l->dx);
    l->host = malloc((size_t)(l->micro * t * c) * sizeof *l->host);
    l->dhost = malloc((size_t)(l->micro * t * c) * sizeof *l->dhost);
    if (!l->x || !l->y || !l->dx || !l->host || !l->dhost) return bk_fail(l->err, BK_ENOMEM, "no memory for the weights of a block in f64");
    BK_TRY(bk_stream_create(&l->h, samples, t, c, l->err));
    BK_TRY(bk_stream_create(&l->dh, samples, t, c, l->err));
    return bk_stream_create(&l->kept, l->layers * samples, t, c, l->err);
}

static bk_status make_head(bk_rotated_loss *l)
{
    int64_t dim[2] = {l->width, l->width};
    BK_TRY(bk_head_open(&l->head, l->be, l->src, l->err));
    BK_TRY(bk_tensor_create(l->be, l->be->dtype, 2, dim, "R1", &l->turn, l->err));
    BK_TRY(bk_tensor_create(l->be, l->be->dtype, 2, dim, "gradient of R1", &l->dturn, l->err));
    l->turn->requires_grad = true;
    l->turn->grad = l->dturn;
    return BK_OK;
}

static bk_status measure(bk_rotated_loss *l)
{
    int64_t chunk = l->opt.tokens - 1 < HEAD_TOKENS ? l->opt.tokens - 1 : HEAD_TOKENS;
    bk_ctx_measure(l->ctx);
    BK_TRY(bk_block_init_weights(l->ctx, l->b, l->err));
    bk_block_quantize(l->b, true, true);
    BK_TRY(bk_block_pass_measure(l->ctx, l->b, l->opt.batch, l->opt.tokens));
    bk_ctx_record(l->ctx, true);
    BK_TRY(back_samples(l, l->micro));
    BK_TRY(head_chunk(l, NULL, NULL, chunk, NULL, NULL));
    bk_ctx_record(l->ctx, false);
    BK_TRY(zero_gradients(l));
    return bk_ctx_commit(l->ctx);
}

bk_status bk_rotated_loss_open(bk_rotated_loss **out, const bk_backend *be, const bk_source *src, const bk_rotated_loss_options *opt,
                               bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    bk_rotated_loss *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return bk_fail(err, BK_ENOMEM, "no memory for the loss of a model");
    *l = (bk_rotated_loss){.be = be, .src = src, .opt = *opt, .err = err, .width = c->hidden, .head_dim = c->head_dim, .layers = c->layers};
    if (opt->quant) {
        l->quant = *opt->quant;
        l->opt.quant = &l->quant;
    }
    bk_status st = check(l);
    if (!st && (!(l->ctx = bk_ctx_new(be, err)) || !(l->algebra = bk_linalg_new(be, err)))) st = BK_ENOMEM;
    if (!st) st = make_block(l);
    if (!st) st = make_room(l);
    if (!st) st = make_head(l);
    if (!st) st = measure(l);
    if (st) bk_rotated_loss_close(l);
    else *out = l;
    return st;
}

void bk_rotated_loss_close(bk_rotated_loss *l)
{
    if (!l) return;
    for (int i = 0; i < l->parts; i++) bk_tensor_destroy(l->be, l->part[i].grad);
    if (l->head.be) bk_head_close(&l->head);
    bk_tensor_destroy(l->be, l->turn);
    bk_tensor_destroy(l->be, l->dturn);
    bk_block_free(l->b);
    bk_weights_free(&l->w);
    bk_stream_free(l->h);
    bk_stream_free(l->dh);
    bk_stream_free(l->kept);
    free(l->x), free(l->y), free(l->dx), free(l->host), free(l->dhost);
    bk_linalg_free(l->algebra);
    bk_ctx_free(l->ctx);
    free(l);
}
