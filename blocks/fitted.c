#include "blocks/fitted.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "io/store.h"

#define SCHEMA "brick.fitted"
#define TOLERANCE 1e-9

/* ---- the parts as data ---- */

typedef enum { LAYERS, HIDDEN, KV_HEADS, HEAD_DIM, INTER, SIZES } size_id;
static const char *const size_name[SIZES] = {"layers", "hidden", "kv_heads", "head_dim", "inter"};

typedef enum { MATRIX, ORDER, SIGN, SCALE } kind;
static const struct {
    size_t bytes;
    bk_store_type stored;
} kinds[] = {[MATRIX] = {sizeof(double), BK_STORE_F64},
             [ORDER] = {sizeof(int32_t), BK_STORE_I32},
             [SIGN] = {sizeof(int8_t), BK_STORE_I32},
             [SCALE] = {sizeof(float), BK_STORE_F32}};

/* Axes of a part: `axes` of them tell the piece, the next is its length. A piece is a vector, or a square matrix. */
static const struct {
    size_t at; /* in bk_fitted */
    kind kind;
    int axes;
    size_id axis[3];
} parts[BK_FITTED_COUNT] = {
    [BK_FITTED_R1] = {offsetof(bk_fitted, r1), MATRIX, 0, {HIDDEN}},
    [BK_FITTED_R2] = {offsetof(bk_fitted, r2), MATRIX, 2, {LAYERS, KV_HEADS, HEAD_DIM}},
    [BK_FITTED_R3] = {offsetof(bk_fitted, r3), MATRIX, 2, {LAYERS, KV_HEADS, HEAD_DIM}},
    [BK_FITTED_DOWN_ORDER] = {offsetof(bk_fitted, down_order), ORDER, 1, {LAYERS, INTER}},
    [BK_FITTED_DOWN_SIGNS] = {offsetof(bk_fitted, down_signs), SIGN, 1, {LAYERS, INTER}},
    [BK_FITTED_SCALE_ATTN_IN] = {offsetof(bk_fitted, scale_attn_in), SCALE, 1, {LAYERS, HIDDEN}},
    [BK_FITTED_SCALE_MLP_IN] = {offsetof(bk_fitted, scale_mlp_in), SCALE, 1, {LAYERS, HIDDEN}},
    [BK_FITTED_SCALE_O_IN] = {offsetof(bk_fitted, scale_o_in), SCALE, 2, {LAYERS, KV_HEADS, HEAD_DIM}},
    [BK_FITTED_SCALE_DOWN_IN] = {offsetof(bk_fitted, scale_down_in), SCALE, 1, {LAYERS, INTER}},
};

const char *const bk_fitted_name[BK_FITTED_COUNT] = {
    [BK_FITTED_R1] = "r1", [BK_FITTED_R2] = "r2", [BK_FITTED_R3] = "r3",
    [BK_FITTED_DOWN_ORDER] = "down_order", [BK_FITTED_DOWN_SIGNS] = "down_signs",
    [BK_FITTED_SCALE_ATTN_IN] = "scale_attn_in", [BK_FITTED_SCALE_MLP_IN] = "scale_mlp_in",
    [BK_FITTED_SCALE_O_IN] = "scale_o_in", [BK_FITTED_SCALE_DOWN_IN] = "scale_down_in",
};

static void *memory(const bk_fitted *f, bk_fitted_part p)
{
    void *at;
    memcpy(&at, (const char *)f + parts[p].at, sizeof at);
    return at;
}

static void sizes_of(const bk_fitted *f, int64_t size[SIZES])
{
    const int64_t all[SIZES] = {f->layers, f->hidden, f->kv_heads, f->head_dim, f->inter};
    memcpy(size, all, sizeof all);
}

typedef struct shape {
    int64_t count, n, elements;
    int rank;
    int64_t dim[BK_STORE_RANK];
} shape;

static shape shape_of(const bk_fitted *f, bk_fitted_part p)
{
    int64_t size[SIZES];
    shape s = {.count = 1};
    sizes_of(f, size);
    for (int i = 0; i < parts[p].axes; i++) s.count *= s.dim[s.rank++] = size[parts[p].axis[i]];
    s.n = s.dim[s.rank++] = size[parts[p].axis[parts[p].axes]];
    if (parts[p].kind == MATRIX) s.dim[s.rank++] = s.n;
    s.elements = s.count * s.n * (parts[p].kind == MATRIX ? s.n : 1);
    return s;
}

/* ---- memory ---- */

bk_status bk_fitted_create(const bk_config *c, bk_fitted **out, bk_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return bk_fail(err, BK_ENOMEM, "no memory for fitted transforms");
    **out = (bk_fitted){.layers = c->layers, .hidden = c->hidden, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .inter = c->inter};
    return BK_OK;
}

static void make_neutral(void *to, kind k, const shape *s)
{
    for (int64_t i = 0; k == MATRIX && i < s->count * s->n; i++) ((double *)to)[i * s->n + i % s->n] = 1;
    for (int64_t i = 0; k == ORDER && i < s->elements; i++) ((int32_t *)to)[i] = (int32_t)(i % s->n);
    for (int64_t i = 0; k == SIGN && i < s->elements; i++) ((int8_t *)to)[i] = 1;
    for (int64_t i = 0; k == SCALE && i < s->elements; i++) ((float *)to)[i] = 1;
}

bk_status bk_fitted_add(bk_fitted *f, bk_fitted_part p, bk_error *err)
{
    if (memory(f, p)) return BK_OK;
    shape s = shape_of(f, p);
    void *to = calloc((size_t)s.elements, kinds[parts[p].kind].bytes);
    if (!to)
        return bk_fail(err, BK_ENOMEM, "no memory for %s: %lld values of %zu bytes", bk_fitted_name[p],
                       (long long)s.elements, kinds[parts[p].kind].bytes);
    make_neutral(to, parts[p].kind, &s);
    memcpy((char *)f + parts[p].at, &to, sizeof to);
    return BK_OK;
}

void bk_fitted_free(bk_fitted *f)
{
    for (int p = 0; f && p < BK_FITTED_COUNT; p++) free(memory(f, p));
    free(f);
}

/* ---- checks ---- */

bk_status bk_fitted_fits(const bk_fitted *f, const bk_config *c, bk_error *err)
{
    int64_t size[SIZES];
    const int64_t want[SIZES] = {c->layers, c->hidden, c->kv_heads, c->head_dim, c->inter};
    sizes_of(f, size);
    for (int i = 0; i < SIZES; i++)
        if (size[i] != want[i])
            return bk_fail(err, BK_ESHAPE, "transforms that were fitted to a model with %s = %lld, this one has %lld",
                           size_name[i], (long long)size[i], (long long)want[i]);
    return BK_OK;
}

/* "r2, layer 3, head 1, index 5": entry i of a piece */
static bk_status bad(const bk_fitted *f, bk_fitted_part p, int64_t piece, int64_t i, bk_error *err, const char *what,
                     double value)
{
    char place[64] = "";
    if (parts[p].axes == 1) snprintf(place, sizeof place, ", layer %lld", (long long)piece);
    if (parts[p].axes == 2)
        snprintf(place, sizeof place, ", layer %lld, head %lld", (long long)(piece / f->kv_heads),
                 (long long)(piece % f->kv_heads));
    return bk_fail(err, BK_ENUMERIC, "fitted %s%s, %s %lld: %s %g", bk_fitted_name[p], place,
                   parts[p].kind == MATRIX ? "row" : "index", (long long)i, what, value);
}

enum { VECTORS = 16 };

/* u = Q^T v for v of random signs, all VECTORS of them at once. */
static void transposed_times_signs(const double *q, int64_t n, double (*u)[VECTORS])
{
    memset(u, 0, (size_t)n * sizeof *u);
    for (int64_t i = 0; i < n; i++) {
        double v[VECTORS];
        uint64_t bits = bk_rng_u64(0, BK_RNG_CHECK, (uint64_t)i);
        for (int l = 0; l < VECTORS; l++) v[l] = bits >> l & 1 ? -1 : 1;
        for (int64_t j = 0; j < n; j++)
            for (int l = 0; l < VECTORS; l++) u[j][l] += q[i * n + j] * v[l];
    }
}

/* Largest entry of |Q (Q^T v) - v|, and its row; NaN counts as infinity. */
static double worst_row(const double *q, int64_t n, double (*u)[VECTORS], int64_t *row)
{
    double worst = 0;
    transposed_times_signs(q, n, u);
    for (int64_t i = 0; i < n; i++) {
        double w[VECTORS] = {0};
        uint64_t bits = bk_rng_u64(0, BK_RNG_CHECK, (uint64_t)i);
        for (int64_t j = 0; j < n; j++)
            for (int l = 0; l < VECTORS; l++) w[l] += q[i * n + j] * u[j][l];
        for (int l = 0; l < VECTORS; l++) {
            double off = fabs(w[l] - (bits >> l & 1 ? -1 : 1));
            if (off <= worst) continue;
            worst = isnan(off) ? INFINITY : off;
            *row = i;
        }
    }
    return worst;
}

static bk_status check_matrices(const bk_fitted *f, bk_fitted_part p, const shape *s, bk_error *err)
{
    double(*u)[VECTORS] = malloc((size_t)s->n * sizeof *u);
    if (!u) return bk_fail(err, BK_ENOMEM, "no memory to check %s", bk_fitted_name[p]);
    bk_status st = BK_OK;
    for (int64_t k = 0; !st && k < s->count; k++) {
        int64_t row = 0;
        double off = worst_row((const double *)memory(f, p) + k * s->n * s->n, s->n, u, &row);
        if (off > TOLERANCE) st = bad(f, p, k, row, err, "the matrix is not orthogonal, off by", off);
    }
    free(u);
    return st;
}

static bk_status check_orders(const bk_fitted *f, bk_fitted_part p, const shape *s, bk_error *err)
{
    const int32_t *order = memory(f, p);
    int64_t *seen = calloc((size_t)s->n, sizeof *seen); /* the last piece that had a channel, counted from 1 */
    if (!seen) return bk_fail(err, BK_ENOMEM, "no memory to check %s", bk_fitted_name[p]);
    bk_status st = BK_OK;
    for (int64_t i = 0; !st && i < s->elements; i++) {
        int64_t piece = i / s->n;
        bool in = order[i] >= 0 && order[i] < s->n;
        if (!in || seen[order[i]] == piece + 1)
            st = bad(f, p, piece, i % s->n, err, in ? "twice channel" : "no channel", order[i]);
        else seen[order[i]] = piece + 1;
    }
    free(seen);
    return st;
}

static bk_status check_signs(const bk_fitted *f, bk_fitted_part p, const shape *s, bk_error *err)
{
    const int8_t *sign = memory(f, p);
    for (int64_t i = 0; i < s->elements; i++)
        if (sign[i] != 1 && sign[i] != -1) return bad(f, p, i / s->n, i % s->n, err, "the sign is", sign[i]);
    return BK_OK;
}

static bk_status check_scales(const bk_fitted *f, bk_fitted_part p, const shape *s, bk_error *err)
{
    const float *scale = memory(f, p);
    for (int64_t i = 0; i < s->elements; i++)
        if (!(scale[i] > 0) || isinf(scale[i])) return bad(f, p, i / s->n, i % s->n, err, "the scale is", (double)scale[i]);
    return BK_OK;
}

bk_status bk_fitted_check(const bk_fitted *f, bk_error *err)
{
    static bk_status (*const check[])(const bk_fitted *, bk_fitted_part, const shape *, bk_error *) = {
        [MATRIX] = check_matrices, [ORDER] = check_orders, [SIGN] = check_signs, [SCALE] = check_scales};
    for (int p = 0; p < BK_FITTED_COUNT; p++) {
        shape s = shape_of(f, p);
        if (memory(f, p)) BK_TRY(check[parts[p].kind](f, p, &s, err));
    }
    return BK_OK;
}

/* ---- the file ---- */

static const char *path_of(bk_fitted_part p, char path[64])
{
    snprintf(path, 64, "/fitted/%s", bk_fitted_name[p]);
    return path;
}

/* Signs are 32-bit integers in the file. */
static bk_status put_part(const bk_fitted *f, bk_fitted_part p, bk_store *s, bk_error *err)
{
    char path[64];
    shape is = shape_of(f, p);
    const void *from = memory(f, p);
    if (!from) return BK_OK;
    if (parts[p].kind != SIGN)
        return bk_store_put(s, path_of(p, path), kinds[parts[p].kind].stored, is.rank, is.dim, from, err);
    int32_t *wide = malloc((size_t)is.elements * sizeof *wide);
    if (!wide) return bk_fail(err, BK_ENOMEM, "no memory to write %s", bk_fitted_name[p]);
    for (int64_t i = 0; i < is.elements; i++) wide[i] = ((const int8_t *)from)[i];
    bk_status st = bk_store_put(s, path_of(p, path), BK_STORE_I32, is.rank, is.dim, wide, err);
    free(wide);
    return st;
}

static bk_status get_part(bk_fitted *f, bk_fitted_part p, bk_store *s, bk_error *err)
{
    char path[64];
    if (!bk_store_has(s, path_of(p, path))) return BK_OK;
    BK_TRY(bk_fitted_add(f, p, err));
    shape is = shape_of(f, p);
    if (parts[p].kind != SIGN)
        return bk_store_get(s, path, kinds[parts[p].kind].stored, is.rank, is.dim, memory(f, p), err);
    int32_t *wide = malloc((size_t)is.elements * sizeof *wide);
    if (!wide) return bk_fail(err, BK_ENOMEM, "no memory to read %s", bk_fitted_name[p]);
    bk_status st = bk_store_get(s, path, BK_STORE_I32, is.rank, is.dim, wide, err);
    int8_t *sign = memory(f, p);
    for (int64_t i = 0; !st && i < is.elements; i++) sign[i] = (int8_t)(wide[i] == 1 || wide[i] == -1 ? wide[i] : 0);
    free(wide);
    return st;
}

bk_status bk_fitted_save(const bk_fitted *f, const char *path, bk_error *err)
{
    bk_store *s = NULL;
    int64_t size[SIZES];
    sizes_of(f, size);
    BK_TRY(bk_store_create(&s, path, &(bk_store_meta){.schema = SCHEMA}, 0, err));
    bk_status st = BK_OK;
    for (int i = 0; !st && i < SIZES; i++) st = bk_store_set_int(s, "/", size_name[i], size[i], err);
    for (int p = 0; !st && p < BK_FITTED_COUNT; p++) st = put_part(f, p, s, err);
    if (!st) return bk_store_commit(s, err);
    bk_store_close(s);
    return st;
}

static bk_status read_sizes(bk_fitted *f, bk_store *s, bk_error *err)
{
    int64_t *const size[SIZES] = {&f->layers, &f->hidden, &f->kv_heads, &f->head_dim, &f->inter};
    for (int i = 0; i < SIZES; i++) BK_TRY(bk_store_get_int(s, "/", size_name[i], size[i], err));
    return BK_OK;
}

/* Errors of the store name the file by themselves. */
static bk_status read_all(bk_fitted *f, const bk_config *c, bk_store *s, const char *path, bk_error *err)
{
    BK_TRY(read_sizes(f, s, err));
    if (bk_fitted_fits(f, c, err)) return bk_error_prefix(err, "%s", path);
    for (int p = 0; p < BK_FITTED_COUNT; p++) BK_TRY(get_part(f, p, s, err));
    return bk_fitted_check(f, err) ? bk_error_prefix(err, "%s", path) : BK_OK;
}

bk_status bk_fitted_load(const char *path, const bk_config *c, bk_fitted **out, bk_error *err)
{
    bk_store *s = NULL;
    *out = NULL;
    BK_TRY(bk_store_open(&s, path, SCHEMA, err));
    bk_fitted *f = NULL;
    bk_status st = bk_fitted_create(c, &f, err);
    if (!st) st = read_all(f, c, s, path, err);
    bk_store_close(s);
    if (st) bk_fitted_free(f);
    else *out = f;
    return st;
}
