#include "blocks/vectors.h"

#include <stdlib.h>

#include "autograd/op.h"

/* Vectors that are worked on side by side. A panel is always full (with zeros), so that a product has one shape and does the same to a
 * vector wherever it stands. */
enum { LANES = 64 };

double bk_vectors_get(const bk_vectors *v, int64_t vector, int64_t i)
{
    int64_t at = vector * v->vector_stride + i * v->element_stride;
    return v->type == BK_F64 ? ((const double *)v->x)[at] : (double)((const float *)v->x)[at];
}

void bk_vectors_set(const bk_vectors *v, int64_t vector, int64_t i, double value)
{
    int64_t at = vector * v->vector_stride + i * v->element_stride;
    if (v->type == BK_F64) ((double *)v->x)[at] = value;
    else ((float *)v->x)[at] = (float)value;
}

static int64_t lanes_at(const bk_vectors *v, int64_t first)
{
    return v->count - first < LANES ? v->count - first : LANES;
}

static void load(const bk_vectors *v, int64_t first, double (*panel)[LANES])
{
    int64_t lanes = lanes_at(v, first);
    for (int64_t i = 0; i < v->n; i++)
        for (int64_t l = 0; l < LANES; l++) panel[i][l] = l < lanes ? bk_vectors_get(v, first + l, i) : 0;
}

/* order NULL: as they are */
static void store(const bk_vectors *v, int64_t first, double (*panel)[LANES], const int32_t *order)
{
    for (int64_t i = 0; i < v->n; i++)
        for (int64_t l = 0; l < lanes_at(v, first); l++) bk_vectors_set(v, first + l, i, panel[order ? order[i] : i][l]);
}

static bk_status make_panel(int64_t n, double (**panel)[LANES], bk_error *err)
{
    *panel = malloc((size_t)n * sizeof **panel);
    return *panel ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for vectors of %lld entries", (long long)n);
}

void bk_vectors_scale(const bk_vectors *v, const double *factor)
{
    for (int64_t first = 0; first < v->count; first += LANES)
        for (int64_t i = 0; i < v->n; i++)
            for (int64_t l = first; l < first + lanes_at(v, first); l++)
                bk_vectors_set(v, l, i, bk_vectors_get(v, l, i) * factor[i]);
}

bk_status bk_vectors_permute(const bk_vectors *v, const int32_t *order, bk_error *err)
{
    double(*panel)[LANES];
    BK_TRY(make_panel(v->n, &panel, err));
    for (int64_t first = 0; first < v->count; first += LANES) {
        load(v, first, panel);
        store(v, first, panel, order);
    }
    free(panel);
    return BK_OK;
}

bk_status bk_vectors_hadamard(const bk_vectors *v, const bk_hadamard_plan *plan, const int8_t *signs, bk_error *err)
{
    return v->type == BK_F64 ? bk_hadamard_apply_f64(plan, signs, v->x, v->count, v->vector_stride, v->element_stride, err)
                             : bk_hadamard_apply(plan, signs, v->x, v->count, v->vector_stride, v->element_stride, err);
}

/* ---- dense matrices ---- */

struct bk_dense {
    const bk_backend *be;
    int64_t n;
    bk_tensor *q, *in, *out; /* f64: [n, n], panels [n, LANES] */
};

bk_status bk_dense_create(const bk_backend *be, int64_t n, bk_dense **out, bk_error *err)
{
    *out = NULL;
    if (!be->k.gemm_f64)
        return bk_fail(err, BK_EUNSUP, "backend %s has no kernel `gemm_f64`, which dense rotations need", be->name);
    bk_dense *d = calloc(1, sizeof *d);
    if (!d) return bk_fail(err, BK_ENOMEM, "no memory for a rotation of order %lld", (long long)n);
    *d = (bk_dense){.be = be, .n = n};
    bk_status st = bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, n}, "rotation", &d->q, err);
    if (!st) st = bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, LANES}, "vectors", &d->in, err);
    if (!st) st = bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, LANES}, "rotated vectors", &d->out, err);
    if (st) bk_dense_free(d);
    else *out = d;
    return st;
}

void bk_dense_free(bk_dense *d)
{
    if (!d) return;
    bk_tensor_destroy(d->be, d->q);
    bk_tensor_destroy(d->be, d->in);
    bk_tensor_destroy(d->be, d->out);
    free(d);
}

bk_status bk_dense_set(bk_dense *d, const double *q, bk_error *err)
{
    return bk_write_f64(d->be, d->q, 0, q, d->n * d->n, err);
}

/* Vectors are the columns of a panel: out = Q^T in. */
static bk_status multiply(bk_ctx *ctx, const bk_dense *d)
{
    return bk_k_gemm_f64(ctx, &(bk_gemm_args){.m = d->n,
                                              .n = LANES,
                                              .k = d->n,
                                              .ta = 1,
                                              .a = d->q->data,
                                              .lda = d->n,
                                              .b = d->in->data,
                                              .ldb = LANES,
                                              .c = d->out->data,
                                              .ldc = LANES});
}

static bk_status through_panels(bk_ctx *ctx, const bk_vectors *v, const bk_dense *d, double (*panel)[LANES], bk_error *err)
{
    BK_TRY(multiply(ctx, d)); /* measured */
    BK_TRY(bk_ctx_commit(ctx));
    for (int64_t first = 0; first < v->count; first += LANES) {
        load(v, first, panel);
        BK_TRY(bk_write_f64(d->be, d->in, 0, panel[0], d->n * LANES, err));
        BK_TRY(multiply(ctx, d));
        BK_TRY(bk_read_f64(d->be, d->out, 0, panel[0], d->n * LANES, err));
        store(v, first, panel, NULL);
    }
    return BK_OK;
}

bk_status bk_vectors_dense(const bk_vectors *v, const bk_dense *d, bk_error *err)
{
    double(*panel)[LANES];
    BK_TRY(make_panel(d->n, &panel, err));
    bk_ctx *ctx = bk_ctx_new(d->be, err); /* measuring */
    bk_status st = ctx ? through_panels(ctx, v, d, panel, err) : BK_ENOMEM;
    bk_ctx_free(ctx);
    free(panel);
    return st;
}
