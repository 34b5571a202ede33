/* Causal grouped-query attention. A tile is a few tokens with all query heads of one kv head, stacked to a matrix of about 128 rows; its
 * scores against every visible key form a strip in scratch. Keys after the tile's last token and before its window are never touched, so
 * masked work is limited to the tile's own triangle. */
#include <cblas.h>
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/scalar/math.h"

enum { STACK = 128 };

typedef bk_attention_fwd_args attn;

/* Rows (g, i) of a tile: token t0 + i, query head kv_head * group + g. Columns: the prefix, then keys lo .. t0 + n - 1. */
typedef struct tile {
    int64_t b, kv, t0, n, lo;
    int64_t rows, real, cols; /* real = keys that are not prefix */
} tile;

static int64_t group_of(const attn *a) { return a->heads / a->kv_heads; }
static int64_t tile_tokens(const attn *a) { return bk_min_i64(a->tokens, bk_max_i64(8, STACK / group_of(a))); }
static int64_t tiles_of(const attn *a) { return bk_tiles(a->tokens, tile_tokens(a)); }
static int64_t stack_of(const attn *a) { return tile_tokens(a) * group_of(a); }

/* Columns of the widest strip, padded so that rows start on cache lines */
static int64_t strip_width(const attn *a)
{
    int64_t span = a->window > 0 ? bk_min_i64(a->tokens, a->window + tile_tokens(a)) : a->tokens;
    return (a->prefix + span + 15) / 16 * 16;
}

static tile tile_at(const attn *a, int64_t b, int64_t kv, int64_t index)
{
    tile t = {.b = b, .kv = kv, .t0 = index * tile_tokens(a)};
    t.n = bk_min_i64(tile_tokens(a), a->tokens - t.t0);
    t.lo = a->window > 0 ? bk_max_i64(0, t.t0 - a->window + 1) : 0;
    t.rows = t.n * group_of(a);
    t.real = t.t0 + t.n - t.lo;
    t.cols = a->prefix + t.real;
    return t;
}

/* First row of tile t in a [B,T,H,d] array, for query head g of the group; token rows are heads * dim apart. */
static int64_t query_at(const attn *a, const tile *t, int64_t g, int64_t i)
{
    return ((t->b * a->tokens + t->t0 + i) * a->heads + t->kv * group_of(a) + g) * a->dim;
}

static void gather(const attn *a, const tile *t, const float *x, float *stack)
{
    for (int64_t g = 0; g < group_of(a); g++)
        for (int64_t i = 0; i < t->n; i++)
            memcpy(stack + (g * t->n + i) * a->dim, x + query_at(a, t, g, i), sizeof(float) * (size_t)a->dim);
}

static const float *keys_of(const attn *a, const tile *t, const float *k)
{
    return k + ((t->b * a->tokens + t->lo) * a->kv_heads + t->kv) * a->dim;
}

/* strip[rows, cols] = alpha stack[rows, d] K^T, with K the prefix and the visible rows of k */
static void against_keys(const attn *a, const tile *t, float alpha, const float *stack, const float *prefix, const float *k, float *strip)
{
    int d = (int)a->dim, ld = (int)strip_width(a), rows = (int)t->rows, p = (int)a->prefix;
    if (p)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, p, d, alpha, stack, d, prefix + t->kv * p * d, d, 0.0f, strip, ld);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, (int)t->real, d, alpha, stack, d, keys_of(a, t, k),
                (int)a->kv_heads * d, 0.0f, strip + p, ld);
}

/* stack[rows, d] = strip[rows, cols] K */
static void times_keys(const attn *a, const tile *t, const float *strip, const float *prefix, const float *k, float *stack)
{
    int d = (int)a->dim, ld = (int)strip_width(a), rows = (int)t->rows, p = (int)a->prefix;
    if (p)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d, p, 1.0f, strip, ld, prefix + t->kv * p * d, d, 0.0f, stack, d);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d, (int)t->real, 1.0f, strip + p, ld, keys_of(a, t, k),
                (int)a->kv_heads * d, p ? 1.0f : 0.0f, stack, d);
}

/* dk[keys lo .., d] += strip^T stack for the keys that are not prefix; rows of dk are ld apart */
static void into_keys(const attn *a, const tile *t, const float *strip, const float *stack, float *dk, int64_t ld)
{
    int d = (int)a->dim;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)t->real, d, (int)t->rows, 1.0f, strip + a->prefix,
                (int)strip_width(a), stack, d, 1.0f, dk + t->lo * ld, (int)ld);
}

/* Columns that row i of a tile sees: all below `end` but prefix .. begin - 1 */
typedef struct visible {
    int64_t prefix, begin, end, cols;
} visible;

static visible visible_of(const attn *a, const tile *t, int64_t i)
{
    int64_t token = t->t0 + i, first = a->window > 0 ? bk_max_i64(0, token - a->window + 1) : 0;
    return (visible){a->prefix, a->prefix + first - t->lo, a->prefix + token - t->lo + 1, t->cols};
}

/* x = exp(x - its maximum) where visible, 0 elsewhere; *sum is the sum, the maximum is returned */
BK_CLONES static float exp_row(const visible *v, float *x, float *sum)
{
    float top[BK_LANES], lane[BK_LANES] = {0};
    for (int64_t i = v->prefix; i < v->begin; i++) x[i] = -INFINITY;
    for (int l = 0; l < BK_LANES; l++) top[l] = x[v->end - 1];
    BK_LANE_LOOP(v->end, top[l] = bk_max(x[i], top[l]));
    float m = top[0];
    for (int l = 1; l < BK_LANES; l++) m = bk_max(m, top[l]);
    BK_LANE_LOOP(v->end, {
        float e = bk_exp(x[i] - m);
        x[i] = e;
        lane[l] += e;
    });
    for (int64_t i = v->end; i < v->cols; i++) x[i] = 0.0f;
    *sum = bk_tree(lane);
    return m;
}

BK_CLONES static void scale_row(int64_t n, const float *x, float alpha, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] = alpha * x[i];
}

static size_t threads(void) { return (size_t)omp_get_max_threads(); }
static size_t slice(const attn *a, int64_t stacks, int64_t strips)
{
    return bk_align(sizeof(float) * (size_t)(stack_of(a) * (stacks * a->dim + strips * strip_width(a))));
}
static float *slice_at(void *scratch, size_t bytes) { return (float *)(void *)((char *)scratch + (size_t)omp_get_thread_num() * bytes); }

size_t bk_cpu_attention_fwd_work(const bk_attention_fwd_args *a) { return a->tokens ? threads() * slice(a, 2, 1) : 0; }

static void forward_tile(const attn *a, const tile *t, float *scratch)
{
    float *q = scratch, *o = q + stack_of(a) * a->dim, *strip = o + stack_of(a) * a->dim;
    gather(a, t, a->q, q);
    against_keys(a, t, (float)a->scale, q, a->prefix_k, a->k, strip);
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t g = r / t->n, i = r % t->n;
        visible v = visible_of(a, t, i);
        float sum, m = exp_row(&v, strip + r * strip_width(a), &sum);
        ((float *)a->lse)[(t->b * a->heads + t->kv * group_of(a) + g) * a->tokens + t->t0 + i] = m + (float)log((double)sum);
        q[r] = 1.0f / sum; /* the queries are no longer needed */
    }
    times_keys(a, t, strip, a->prefix_v, a->v, o);
    for (int64_t r = 0; r < t->rows; r++) scale_row(a->dim, o + r * a->dim, q[r], (float *)a->o + query_at(a, t, r / t->n, r % t->n));
}

bk_status bk_cpu_attention_fwd(const bk_attention_fwd_args *a, const bk_work *w)
{
    if (!a->tokens || !a->batch) return BK_OK;
    void *scratch = bk_cpu_scratch(w, bk_cpu_attention_fwd_work(a));
    if (!scratch) return BK_ENOMEM;
    size_t bytes = slice(a, 2, 1);
    int64_t tiles = tiles_of(a);
#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < a->batch * a->kv_heads * tiles; u++) {
        tile t = tile_at(a, u / tiles / a->kv_heads, u / tiles % a->kv_heads, tiles - 1 - u % tiles);
        forward_tile(a, &t, slice_at(scratch, bytes));
    }
    return BK_OK;
}

/* x = exp(x - lse) where visible, 0 elsewhere */
BK_CLONES static void probability_row(const visible *v, float lse, float *x)
{
    for (int64_t i = v->prefix; i < v->begin; i++) x[i] = -INFINITY;
    for (int64_t i = 0; i < v->end; i++) x[i] = bk_exp(x[i] - lse);
    for (int64_t i = v->end; i < v->cols; i++) x[i] = 0.0f;
}

/* dp = scale p (dp - along) */
BK_CLONES static void dscore_row(int64_t n, const float *p, float along, float scale, float *restrict dp)
{
    for (int64_t i = 0; i < n; i++) dp[i] = scale * (p[i] * (dp[i] - along));
}

/* Where the gradients of one (batch, kv head)'s keys and values go: token 0, rows ld apart; NULL if not wanted */
typedef struct sink {
    float *dk, *dv;
    int64_t ld;
} sink;

static void backward_tile(const bk_attention_bwd_args *a, const tile *t, const sink *to, float *scratch)
{
    const attn *f = &a->f;
    int64_t d = f->dim, width = strip_width(f), size = stack_of(f) * d;
    float *q = scratch, *dout = q + size, *dq = dout + size, *p = dq + size, *ds = p + stack_of(f) * width;
    gather(f, t, f->q, q);
    gather(f, t, a->d_o, dout);
    against_keys(f, t, (float)f->scale, q, f->prefix_k, f->k, p);
    against_keys(f, t, 1.0f, dout, f->prefix_v, f->v, ds);
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t g = r / t->n, i = r % t->n;
        visible v = visible_of(f, t, i);
        probability_row(&v, ((const float *)f->lse)[(t->b * f->heads + t->kv * group_of(f) + g) * f->tokens + t->t0 + i], p + r * width);
        float along = (float)bk_cpu_dot(d, dout + r * d, (const float *)f->o + query_at(f, t, g, i));
        dscore_row(t->cols, p + r * width, along, (float)f->scale, ds + r * width);
    }
    if (to->dv) into_keys(f, t, p, dout, to->dv, to->ld);
    if (to->dk) into_keys(f, t, ds, q, to->dk, to->ld);
    if (!a->dq) return;
    times_keys(f, t, ds, f->prefix_k, f->k, dq);
    for (int64_t r = 0; r < t->rows; r++) bk_cpu_add_to(d, dq + r * d, (float *)a->dq + query_at(f, t, r / t->n, r % t->n));
}

/* One thread walks tiles of a (batch, kv head) in order, since all of them add to the same dk and dv. Where that leaves too few
 * units for the threads, every share-th tile makes a unit, with a dk and dv of its own that are added up at the end. */
enum { ENOUGH = 16 };

static int64_t shares_of(const attn *f) { return bk_max_i64(1, bk_min_i64(tiles_of(f), bk_tiles(ENOUGH, f->batch * f->kv_heads))); }
static int64_t own_size(const attn *f) { return shares_of(f) > 1 ? f->tokens * f->dim : 0; }

size_t bk_cpu_attention_bwd_work(const bk_attention_bwd_args *a)
{
    const attn *f = &a->f;
    if (!f->tokens || !f->batch) return 0;
    return threads() * slice(f, 3, 2) + 2 * sizeof(float) * (size_t)(f->batch * f->kv_heads * shares_of(f) * own_size(f));
}

/* dk[b, :, kv] += own[share][tokens, d], one share after the other */
static void add_shares(const attn *f, int64_t unit, const float *own, int64_t apart, float *dk)
{
    int64_t first = (unit / f->kv_heads * f->tokens * f->kv_heads + unit % f->kv_heads) * f->dim, ld = f->kv_heads * f->dim;
    for (int64_t share = 0; share < shares_of(f); share++)
        for (int64_t i = 0; i < f->tokens; i++) bk_cpu_add_to(f->dim, own + share * apart + i * f->dim, dk + first + i * ld);
}

bk_status bk_cpu_attention_bwd(const bk_attention_bwd_args *a, const bk_work *w)
{
    const attn *f = &a->f;
    if (!f->tokens || !f->batch) return BK_OK;
    char *scratch = bk_cpu_scratch(w, bk_cpu_attention_bwd_work(a));
    if (!scratch) return BK_ENOMEM;
    size_t bytes = slice(f, 3, 2);
    int64_t shares = shares_of(f), units = f->batch * f->kv_heads, size = own_size(f);
    float *own = (float *)(void *)(scratch + threads() * bytes); /* [units][shares][dk and dv][tokens, d] */
#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < units * shares; u++) {
        int64_t b = u / shares / f->kv_heads, kv = u / shares % f->kv_heads;
        int64_t first = (b * f->tokens * f->kv_heads + kv) * f->dim;
        sink to = {a->dk ? (float *)a->dk + first : 0, a->dv ? (float *)a->dv + first : 0, f->kv_heads * f->dim};
        if (shares > 1) {
            float *mine = own + 2 * u * size;
            memset(mine, 0, 2 * sizeof(float) * (size_t)size);
            to = (sink){a->dk ? mine : 0, a->dv ? mine + size : 0, f->dim};
        }
        for (int64_t i = u % shares; i < tiles_of(f); i += shares) {
            tile t = tile_at(f, b, kv, i);
            backward_tile(a, &t, &to, slice_at(scratch, bytes));
        }
    }
    if (shares == 1) return BK_OK;
#pragma omp parallel for schedule(static)
    for (int64_t u = 0; u < units; u++) {
        if (a->dk) add_shares(f, u, own + 2 * u * shares * size, 2 * size, a->dk);
        if (a->dv) add_shares(f, u, own + 2 * u * shares * size + size, 2 * size, a->dv);
    }
    return BK_OK;
}

static size_t score_parts(const attn *a) { return bk_align(sizeof(double) * (size_t)(a->kv_heads * a->batch * tiles_of(a))); }

size_t bk_cpu_score_err_work(const bk_score_err_args *a) { return a->f.tokens ? score_parts(&a->f) + threads() * slice(&a->f, 1, 2) : 0; }

/* sum of (x alpha - y beta)^2 */
BK_CLONES static double difference_row(int64_t n, const float *x, float alpha, const float *y, float beta)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        double e = (double)(x[i] * alpha) - (double)(y[i] * beta);
        lane[l] += e * e;
    });
    return bk_tree_f64(lane);
}

static double score_tile(const bk_score_err_args *a, const tile *t, float *scratch)
{
    const attn *f = &a->f;
    int64_t width = strip_width(f);
    float *q = scratch, *p = q + stack_of(f) * f->dim, *p2 = p + stack_of(f) * width;
    double err = 0.0;
    gather(f, t, f->q, q);
    against_keys(f, t, (float)f->scale, q, f->prefix_k, f->k, p);
    against_keys(f, t, (float)f->scale, q, f->prefix_k, a->k2, p2);
    for (int64_t r = 0; r < t->rows; r++) {
        visible v = visible_of(f, t, r % t->n);
        float sum, sum2;
        (void)exp_row(&v, p + r * width, &sum);
        (void)exp_row(&v, p2 + r * width, &sum2);
        err += difference_row(v.end, p + r * width, 1.0f / sum, p2 + r * width, 1.0f / sum2);
    }
    return err;
}

bk_status bk_cpu_score_err(const bk_score_err_args *a, const bk_work *w)
{
    const attn *f = &a->f;
    if (!f->tokens || !f->batch) return BK_OK;
    double *part = bk_cpu_scratch(w, bk_cpu_score_err_work(a));
    if (!part) return BK_ENOMEM;
    char *scratch = (char *)part + score_parts(f);
    size_t bytes = slice(f, 1, 2);
    int64_t tiles = tiles_of(f), each = f->batch * tiles;
#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < f->kv_heads * each; u++) {
        tile t = tile_at(f, u % each / tiles, u / each, u % tiles);
        part[u] = score_tile(a, &t, slice_at(scratch, bytes));
    }
    for (int64_t kv = 0; kv < f->kv_heads; kv++) a->err[kv] += bk_cpu_tree_sum(part + kv * each, each);
    return BK_OK;
}
