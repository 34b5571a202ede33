#include "blocks/norm_rotation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/linalg.h"
#include "autograd/op.h"
#include "autograd/rng.h"
#include "backends/scalar/math.h"

enum { CHUNK = 2048 }; /* rows on the backend at once */

/* What both fits work with: rows come to the backend in chunks, in some order, and are turned there. */
typedef struct fit {
    const bk_backend *be;
    const bk_norm_rows *rows;
    bk_error *err;
    int64_t width, chunk;
    bk_ctx *ctx;
    bk_linalg *algebra;
    int64_t *order;               /* [rows->n] rows by turn */
    float *host;                  /* [chunk, width] */
    bk_tensor *x, *y, *q;         /* [chunk, width]: rows, turned, quantized */
    bk_tensor *r, *cross, *error; /* [width, width] twice; f64 [chunk] */
    double *r1, *sum, *t;         /* [width, width] each: the rotation, a matrix that is added up, room */
} fit;

static void swap(int64_t *a, int64_t *b)
{
    int64_t t = *a;
    *a = *b;
    *b = t;
}

/* y = x r for the rows first .. first + m - 1 of the order */
static bk_status turn_rows(fit *f, int64_t first, int64_t m)
{
    int64_t n = f->width;
    for (int64_t i = 0; i < m; i++) memcpy(f->host + i * n, f->rows->x + f->order[first + i] * n, (size_t)n * sizeof *f->host);
    BK_TRY(bk_write(f->be, f->x, 0, f->host, m * n, f->err));
    return bk_k_gemm(f->ctx, &(bk_gemm_args){.m = m, .n = n, .k = n, .a = f->x->data, .lda = n, .b = f->r->data, .ldb = n,
                                                .c = f->y->data, .ldc = n});
}

/* sum += weight a^T b over m rows */
static bk_status add_cross(fit *f, const bk_tensor *a, const bk_tensor *b, int64_t m, double weight)
{
    int64_t n = f->width;
    BK_TRY(bk_k_gemm(f->ctx, &(bk_gemm_args){.m = n, .n = n, .k = m, .ta = 1, .a = a->data, .lda = n, .b = b->data, .ldb = n,
                                             .c = f->cross->data, .ldc = n}));
    BK_TRY(bk_read_f64(f->be, f->cross, 0, f->t, n * n, f->err));
    for (int64_t i = 0; i < n * n; i++) f->sum[i] += weight * f->t[i];
    return BK_OK;
}

static bk_status set_rotation(fit *f)
{
    return bk_write_f64(f->be, f->r, 0, f->r1, f->width * f->width, f->err);
}

static bk_status open_fit(fit *f, int64_t chunk, uint64_t seed, const bk_fitted *fitted)
{
    int64_t n = f->width = f->rows->width, rows = f->rows->n;
    f->chunk = chunk < rows ? chunk : rows;
    const int64_t some[2] = {f->chunk, n}, square[2] = {n, n};
    if (fitted->hidden != n)
        return bk_fail(f->err, BK_ESHAPE, "rows of %lld channels, rotations of order %lld", (long long)n, (long long)fitted->hidden);
    if (!(f->ctx = bk_ctx_new(f->be, f->err)) || !(f->algebra = bk_linalg_new(f->be, f->err))) return BK_ENOMEM;
    f->order = malloc((size_t)rows * sizeof *f->order);
    f->host = malloc((size_t)(f->chunk * n) * sizeof *f->host);
    f->r1 = malloc((size_t)(n * n) * sizeof *f->r1);
    f->sum = malloc((size_t)(n * n) * sizeof *f->sum);
    f->t = malloc((size_t)(n * n) * sizeof *f->t);
    if (!f->order || !f->host || !f->r1 || !f->sum || !f->t) return bk_fail(f->err, BK_ENOMEM, "no memory to fit a rotation");
    for (int64_t i = 0; i < rows; i++) f->order[i] = i;
    BK_TRY(bk_tensor_create(f->be, f->be->dtype, 2, some, "rows", &f->x, f->err));
    BK_TRY(bk_tensor_create(f->be, f->be->dtype, 2, some, "turned rows", &f->y, f->err));
    BK_TRY(bk_tensor_create(f->be, f->be->dtype, 2, some, "quantized rows", &f->q, f->err));
    BK_TRY(bk_tensor_create(f->be, f->be->dtype, 2, square, "R1", &f->r, f->err));
    BK_TRY(bk_tensor_create(f->be, f->be->dtype, 2, square, "products of rows", &f->cross, f->err));
    BK_TRY(bk_tensor_create(f->be, BK_F64, 1, &f->chunk, "errors of rows", &f->error, f->err));
    return bk_rotation_dense(n, BK_RNG_R1, seed, f->r1, f->err);
}

static void close_fit(fit *f)
{
    bk_tensor *t[] = {f->x, f->y, f->q, f->r, f->cross, f->error};
    for (int i = 0; i < 6; i++) bk_tensor_destroy(f->be, t[i]);
    free(f->order), free(f->host), free(f->r1), free(f->sum), free(f->t);
    bk_linalg_free(f->algebra);
    bk_ctx_free(f->ctx);
}

static bk_status hand_over(fit *f, bk_fitted *fitted)
{
    BK_TRY(bk_linalg_polar(f->algebra, f->width, f->r1));
    BK_TRY(bk_fitted_add(fitted, BK_FITTED_R1, f->err));
    memcpy(fitted->r1, f->r1, (size_t)(f->width * f->width) * sizeof *f->r1);
    return BK_OK;
}

/* --- DFRot --- */

/* Squared errors of m turned rows into error[m] (NULL: not wanted); with weight > 0 sum += weight y^T q. */
static bk_status quantize_rows(fit *f, int64_t m, int bits, double weight, double *error)
{
    int64_t n = f->width;
    int most = (1 << (bits - 1)) - 1;
    BK_TRY(bk_k_dynquant_fwd(f->ctx, &(bk_dynquant_fwd_args){.rows = m, .cols = n, .group = n, .symmetric = 1, .qmin = -most, .qmax = most,
                                                             .x = f->y->data, .y = f->q->data}));
    if (weight > 0) BK_TRY(add_cross(f, f->y, f->q, m, weight));
    BK_TRY(bk_k_axpy(f->ctx, &(bk_axpy_args){.n = m * n, .alpha = -1, .x = f->y->data, .y = f->q->data}));
    BK_TRY(bk_k_rowdot(f->ctx, &(bk_rowdot_args){.rows = m, .cols = n, .a = f->q->data, .b = f->q->data, .out = f->error->data}));
    return error ? bk_read_f64(f->be, f->error, 0, error, m, f->err) : BK_OK;
}

static bk_status measure_dfrot(fit *f, int bits)
{
    bk_ctx_measure(f->ctx);
    BK_TRY(turn_rows(f, 0, f->chunk));
    BK_TRY(quantize_rows(f, f->chunk, bits, 1, NULL));
    return bk_ctx_commit(f->ctx);
}

/* Rows first .. end - 1 of the order: error[i] of the i-th. */
static bk_status quantize_range(fit *f, int64_t first, int64_t end, int bits, double weight, double *error)
{
    BK_TRY(set_rotation(f));
    for (int64_t i = first, m; i < end; i += m) {
        m = end - i < f->chunk ? end - i : f->chunk;
        BK_TRY(turn_rows(f, i, m));
        BK_TRY(quantize_rows(f, m, bits, weight, error + i));
    }
    return BK_OK;
}

/* Rows that the start makes worse go to the end of the order: *ordinary is where they begin. */
static bk_status find_massive(fit *f, int bits, double *error, int64_t *ordinary)
{
    int64_t n = f->width, rows = f->rows->n;
    double *plain = malloc((size_t)rows * sizeof *plain), *start = f->r1;
    if (!plain) return bk_fail(f->err, BK_ENOMEM, "no memory for the errors of %lld rows", (long long)rows);
    f->r1 = f->sum; /* the identity for once */
    for (int64_t i = 0; i < n * n; i++) f->r1[i] = i % (n + 1) == 0;
    bk_status st = quantize_range(f, 0, rows, bits, 0, plain);
    f->r1 = start;
    if (!st) st = quantize_range(f, 0, rows, bits, 0, error);
    *ordinary = 0;
    for (int64_t i = 0; !st && i < rows; i++)
        if (plain[i] >= error[i]) swap(&f->order[i], &f->order[(*ordinary)++]);
    free(plain);
    return st;
}

/* One pass over all rows: weighted error, and in f->sum what the next rotation is made of. */
static bk_status round_of(fit *f, const bk_dfrot_options *opt, int64_t ordinary, double *error, double *total)
{
    memset(f->sum, 0, (size_t)(f->width * f->width) * sizeof *f->sum);
    BK_TRY(quantize_range(f, 0, ordinary, opt->bits, 1, error));
    BK_TRY(quantize_range(f, ordinary, f->rows->n, opt->bits, opt->massive_weight, error));
    *total = 0;
    for (int64_t i = 0; i < f->rows->n; i++) *total += (i < ordinary ? 1 : opt->massive_weight) * error[i];
    return isfinite(*total) ? BK_OK : bk_fail(f->err, BK_ENUMERIC, "the error is %g", *total);
}

/* r = r u with the rotation u for which y u is nearest to q: the polar factor of y^T q. */
static bk_status improve(fit *f)
{
    int64_t n = f->width;
    BK_TRY(bk_linalg_polar(f->algebra, n, f->sum));
    BK_TRY(bk_linalg_square(f->algebra, n, false, f->r1, false, f->sum, f->t));
    memcpy(f->r1, f->t, (size_t)(n * n) * sizeof *f->r1);
    return BK_OK;
}

static bk_status dfrot(fit *f, const bk_dfrot_options *opt, const bk_watch *watch, double *error)
{
    int64_t ordinary = 0;
    double total = 0;
    BK_TRY(measure_dfrot(f, opt->bits));
    BK_TRY(find_massive(f, opt->bits, error, &ordinary));
    if (opt->massive) *opt->massive = f->rows->n - ordinary;
    for (int64_t k = 0; k <= opt->rounds; k++) {
        BK_TRY(bk_watch_step(watch, k, opt->rounds, f->err));
        bk_status st = round_of(f, opt, ordinary, error, &total);
        if (opt->errors) opt->errors[k] = total;
        if (!st && k < opt->rounds) st = improve(f);
        if (st) return bk_error_prefix(f->err, "rotation, round %lld", (long long)k + 1);
    }
    return BK_OK;
}

bk_status bk_dfrot_fit(const bk_backend *be, const bk_norm_rows *rows, const bk_dfrot_options *opt, const bk_watch *watch, bk_fitted *fitted,
                       bk_error *err)
{
    fit f = {.be = be, .rows = rows, .err = err};
    if (rows->n < rows->width)
        return bk_fail(err, BK_EINVAL, "%lld rows do not tell a rotation of %lld channels: take more of each norm", (long long)rows->n,
                       (long long)rows->width);
    if (opt->bits < 2 || opt->bits > 8 || opt->rounds < 0 || !(opt->massive_weight > 0))
        return bk_fail(err, BK_EINVAL, "DFRot with %d bits, %lld rounds and a weight of %g: want 2 to 8 bits, 0 rounds or more and a weight above 0",
                       opt->bits, (long long)opt->rounds, opt->massive_weight);
    double *error = malloc((size_t)rows->n * sizeof *error);
    bk_status st = error ? open_fit(&f, CHUNK, opt->seed, fitted) : bk_fail(err, BK_ENOMEM, "no memory for the errors of rows");
    if (!st) st = dfrot(&f, opt, watch, error);
    if (!st) st = hand_over(&f, fitted);
    close_fit(&f);
    free(error);
    return st;
}

/* --- DartQuant, KurTail --- */

/* Each takes the channels y of one token, leaves the loss's gradient there, and returns the loss. */
static double whip(int64_t n, float *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float e = bk_exp(-fabsf(y[i]));
        sum += (double)e;
        y[i] = y[i] > 0 ? -e : y[i] < 0 ? e : 0;
    }
    return sum;
}

/* k = m4 / m2^2; dk/dy = 4 (y^3 / m2^2 - y m4 / m2^3) / n */
static double kurtosis(int64_t n, float *y)
{
    double m2 = 0, m4 = 0;
    for (int64_t i = 0; i < n; i++) {
        double s = (double)y[i] * (double)y[i];
        m2 += s / (double)n;
        m4 += s * s / (double)n;
    }
    double k = m2 > 0 ? m4 / (m2 * m2) : 1.8, sign = k > 1.8 ? 1 : k < 1.8 ? -1 : 0;
    for (int64_t i = 0; i < n; i++) {
        double v = (double)y[i];
        y[i] = sign ? (float)(sign * 4 * (v * v * v - v * m4 / m2) / (m2 * m2 * (double)n)) : 0;
    }
    return fabs(k - 1.8);
}

const char *const bk_spread_name[BK_SPREAD_COUNT] = {[BK_SPREAD_WHIP] = "whip", [BK_SPREAD_KURTOSIS] = "kurtosis"};
static double (*const spread[BK_SPREAD_COUNT])(int64_t n, float *y) = {[BK_SPREAD_WHIP] = whip, [BK_SPREAD_KURTOSIS] = kurtosis};

/* Z and what its QR gave; f->r1 is q. */
typedef struct orth {
    double *z, *lower, *v; /* [width, width] each; v: momentum */
} orth;

static bk_status open_orth(const fit *f, orth *o)
{
    size_t n = (size_t)(f->width * f->width);
    o->z = malloc(n * sizeof *o->z);
    o->lower = malloc(n * sizeof *o->lower);
    o->v = calloc(n, sizeof *o->v);
    if (!o->z || !o->lower || !o->v) return bk_fail(f->err, BK_ENOMEM, "no memory to learn a rotation");
    memcpy(o->z, f->r1, n * sizeof *o->z);
    return BK_OK;
}

static void close_orth(orth *o)
{
    free(o->z), free(o->lower), free(o->v);
}

static bk_status factor(fit *f, const orth *o)
{
    memcpy(f->r1, o->z, (size_t)(f->width * f->width) * sizeof *f->r1);
    BK_TRY(bk_linalg_qr_rows(f->algebra, f->width, f->r1, o->lower));
    return set_rotation(f);
}

/* Loss of m rows, mean over them; f->sum: its gradient with respect to the rotation. */
static bk_status spread_gradient(fit *f, bk_spread_loss kind, int64_t first, int64_t m, double *loss)
{
    int64_t n = f->width;
    *loss = 0;
    memset(f->sum, 0, (size_t)(n * n) * sizeof *f->sum);
    BK_TRY(turn_rows(f, first, m));
    BK_TRY(bk_read(f->be, f->y, 0, f->host, m * n, f->err));
    for (int64_t i = 0; i < m; i++) *loss += spread[kind](n, f->host + i * n) / (double)m;
    BK_TRY(bk_write(f->be, f->y, 0, f->host, m * n, f->err));
    return add_cross(f, f->x, f->y, m, 1 / (double)m);
}

static bk_status spread_step(fit *f, orth *o, const bk_spread_options *opt, int64_t first, double *loss)
{
    int64_t nn = f->width * f->width;
    BK_TRY(spread_gradient(f, opt->loss, first, opt->batch, loss));
    if (!isfinite(*loss)) return bk_fail(f->err, BK_ENUMERIC, "the %s loss is %g", bk_spread_name[opt->loss], *loss);
    BK_TRY(bk_linalg_qr_rows_backward(f->algebra, f->width, f->r1, o->lower, f->sum));
    for (int64_t i = 0; i < nn; i++) {
        o->v[i] = opt->momentum * o->v[i] + f->sum[i];
        o->z[i] -= opt->lr * o->v[i];
    }
    return factor(f, o);
}

/* Fisher-Yates with counter-based numbers */
static void shuffle(fit *f, uint64_t seed, int64_t epoch)
{
    int64_t n = f->rows->n;
    for (int64_t i = n - 1; i > 0; i--)
        swap(&f->order[i], &f->order[bk_rng_below(seed, BK_RNG_SHUFFLE, (uint64_t)(epoch * n + i), (uint64_t)i + 1)]);
}

static bk_status spread_epoch(fit *f, orth *o, const bk_spread_options *opt, int64_t epoch)
{
    int64_t batches = f->rows->n / opt->batch;
    double mean = 0;
    shuffle(f, opt->seed, epoch);
    for (int64_t k = 0; k < batches; k++) {
        double loss;
        BK_TRY(spread_step(f, o, opt, k * opt->batch, &loss));
        mean += loss / (double)batches;
    }
    if (opt->losses) opt->losses[epoch] = mean;
    return BK_OK;
}

static bk_status spread_epochs(fit *f, orth *o, const bk_spread_options *opt, const bk_watch *watch)
{
    double loss;
    BK_TRY(open_orth(f, o));
    BK_TRY(factor(f, o));
    bk_ctx_measure(f->ctx);
    BK_TRY(spread_gradient(f, opt->loss, 0, opt->batch, &loss));
    BK_TRY(bk_ctx_commit(f->ctx));
    for (int64_t e = 0; e < opt->epochs; e++) {
        BK_TRY(bk_watch_step(watch, e, opt->epochs, f->err));
        if (spread_epoch(f, o, opt, e)) return bk_error_prefix(f->err, "rotation, epoch %lld", (long long)e + 1);
    }
    return bk_watch_step(watch, opt->epochs, opt->epochs, f->err);
}

bk_status bk_spread_fit(const bk_backend *be, const bk_norm_rows *rows, const bk_spread_options *opt, const bk_watch *watch, bk_fitted *fitted,
                        bk_error *err)
{
    fit f = {.be = be, .rows = rows, .err = err};
    orth o = {0};
    if (opt->batch < 1 || rows->n < opt->batch || opt->epochs < 0)
        return bk_fail(err, BK_EINVAL, "%lld rows do not make batches of %lld for %lld epochs: take more rows or smaller batches", (long long)rows->n,
                       (long long)opt->batch, (long long)opt->epochs);
    bk_status st = open_fit(&f, opt->batch, opt->seed, fitted);
    if (!st) st = spread_epochs(&f, &o, opt, watch);
    if (!st) st = hand_over(&f, fitted);
    close_orth(&o);
    close_fit(&f);
    return st;
}
