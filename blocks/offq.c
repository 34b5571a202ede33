/* OffQ's fit: eigenvectors, orders and rotations from the statistics. */
#include "blocks/offq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"
#include "autograd/rng.h"
#include "quant/offset.h"

/* ---- on the backend ---- */

/* f64 matrices [n, n] on a backend for one computation. */
typedef struct desk {
    const bk_backend *be;
    bk_ctx *ctx;
    int64_t n;
    bk_tensor *a, *b, *c, *values; /* the last: [n] */
} desk;

static void clear(desk *d)
{
    bk_tensor_destroy(d->be, d->a);
    bk_tensor_destroy(d->be, d->b);
    bk_tensor_destroy(d->be, d->c);
    bk_tensor_destroy(d->be, d->values);
    bk_ctx_free(d->ctx);
}

static bk_status eigh(desk *d)
{
    return bk_k_eigh(d->ctx, &(bk_eigh_args){.n = d->n, .a = d->a->data, .values = d->values->data, .vectors = d->b->data});
}

/* c = a b */
static bk_status multiply(desk *d)
{
    return bk_k_gemm_f64(d->ctx, &(bk_gemm_args){.m = d->n,
                                                 .n = d->n,
                                                 .k = d->n,
                                                 .a = d->a->data,
                                                 .lda = d->n,
                                                 .b = d->b->data,
                                                 .ldb = d->n,
                                                 .c = d->c->data,
                                                 .ldc = d->n});
}

static bk_status set_up(desk *d, const bk_backend *be, int64_t n, bk_error *err)
{
    *d = (desk){.be = be, .n = n};
    BK_TRY(bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, n}, "matrix", &d->a, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, n}, "eigenvectors", &d->b, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 2, (int64_t[]){n, n}, "product", &d->c, err));
    BK_TRY(bk_tensor_create(be, BK_F64, 1, &n, "eigenvalues", &d->values, err));
    if (!(d->ctx = bk_ctx_new(be, err))) return BK_ENOMEM;
    BK_TRY(eigh(d)); /* measured */
    BK_TRY(multiply(d));
    return bk_ctx_commit(d->ctx);
}

/* Eigenvalues, falling, and eigenvectors (columns) of a [n, n]. */
static bk_status eigenvectors(desk *d, const double *a, double *values, double *vectors, bk_error *err)
{
    BK_TRY(bk_write_f64(d->be, d->a, 0, a, d->n * d->n, err));
    BK_TRY(eigh(d));
    BK_TRY(bk_read_f64(d->be, d->values, 0, values, d->n, err));
    return bk_read_f64(d->be, d->b, 0, vectors, d->n * d->n, err);
}

/* energy[j] = u_j^T c u_j for the columns of u [n, n]; product: room for [n, n]. */
static bk_status energies(desk *d, const double *c, const double *u, double *product, double *energy, bk_error *err)
{
    int64_t n = d->n;
    BK_TRY(bk_write_f64(d->be, d->a, 0, c, n * n, err));
    BK_TRY(bk_write_f64(d->be, d->b, 0, u, n * n, err));
    BK_TRY(multiply(d));
    BK_TRY(bk_read_f64(d->be, d->c, 0, product, n * n, err));
    memset(energy, 0, (size_t)n * sizeof *energy);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) energy[j] += u[i * n + j] * product[i * n + j];
    return BK_OK;
}

/* ---- eigenvectors, order, rotation ---- */

typedef struct fit {
    const bk_offq_stats *s;
    const bk_offq_options *o;
    bk_fitted *f;
    bk_offq_report *report;
    desk desk;
    double *u, *room;       /* [n, n]: eigenvectors in columns; for whatever comes between */
    double *score, *energy; /* [n] */
    int32_t *src;           /* [n] */
    int8_t *signs;          /* [n] */
} fit;

static bk_status open_fit(fit *t, const bk_backend *be, int64_t n, bk_error *err)
{
    t->u = malloc((size_t)(n * n) * sizeof *t->u);
    t->room = malloc((size_t)(n * n) * sizeof *t->room);
    t->score = malloc((size_t)n * sizeof *t->score);
    t->energy = malloc((size_t)n * sizeof *t->energy);
    t->src = malloc((size_t)n * sizeof *t->src);
    t->signs = malloc((size_t)n);
    if (!t->u || !t->room || !t->score || !t->energy || !t->src || !t->signs)
        return bk_fail(err, BK_ENOMEM, "no memory to fit a rotation of order %lld", (long long)n);
    return set_up(&t->desk, be, n, err);
}

static void close_fit(fit *t)
{
    if (t->desk.be) clear(&t->desk);
    free(t->u), free(t->room), free(t->score), free(t->energy), free(t->src), free(t->signs);
}

static bool is_gaussian(const bk_offq_options *o, int64_t group)
{
    return o->spread == BK_OFFQ_GAUSSIAN || !bk_hadamard_exists(group);
}

/* q = U P H, from t->u and t->score. */
static bk_status compose(fit *t, int64_t group, bool random_signs, uint64_t seed, double *q, bk_error *err)
{
    int64_t n = t->desk.n;
    bk_hadamard_plan *h1 = NULL;
    BK_TRY(bk_offset_order(t->score, n, n / group, t->o->zigzag, t->src, err));
    if (!is_gaussian(t->o, group)) BK_TRY(bk_hadamard_create_blocks(n, group, &h1, err));
    bk_offset_signs(t->signs, n, group, t->o->alike, seed, BK_RNG_OFFQ);
    bk_offset_rotation r = {
        .n = n, .group = group, .h1 = h1, .signs = random_signs ? t->signs : NULL, .alike = t->o->alike, .seed = seed, .stream = BK_RNG_OFFQ};
    bk_status st = bk_offset_compose(&r, t->u, t->src, q, err);
    bk_hadamard_free(h1);
    return st;
}

/* ---- Q1 ---- */

/* What the first `groups` directions hold of the energy of c. */
static bk_status share_of(fit *t, const double *c, double *out, bk_error *err)
{
    double first = 0, whole = 0;
    BK_TRY(energies(&t->desk, c, t->u, t->room, t->energy, err));
    for (int64_t i = 0; i < t->desk.n; i++) {
        whole += t->energy[i];
        if (i < t->report->groups) first += t->energy[i];
    }
    *out = whole > 0 ? first / whole : 0;
    return BK_OK;
}

/* Eigenvectors and eigenvalues of one of the bases, and the shares that go with it. */
static bk_status take_basis(fit *t, bk_offq_rows basis, bk_error *err)
{
    const bk_offq_stats *s = t->s;
    int64_t square = s->hidden * s->hidden;
    memcpy(t->room, basis == BK_OFFQ_ALL_TOKENS ? s->all : s->top, (size_t)square * sizeof *t->room);
    for (int64_t i = 0; basis == BK_OFFQ_TOP_TOKENS && t->o->tail > 0 && i < square; i++)
        t->room[i] += t->o->tail * s->all[i];
    BK_TRY(eigenvectors(&t->desk, t->room, t->score, t->u, err));
    BK_TRY(share_of(t, s->top, &t->report->share[basis][BK_OFFQ_TOP_TOKENS], err));
    return s->all ? share_of(t, s->all, &t->report->share[basis][BK_OFFQ_ALL_TOKENS], err) : BK_OK;
}

static bk_status fit_r1(fit *t, bk_error *err)
{
    const bk_offq_stats *s = t->s;
    bk_offq_rows other = t->o->basis == BK_OFFQ_TOP_TOKENS ? BK_OFFQ_ALL_TOKENS : BK_OFFQ_TOP_TOKENS;
    if (t->o->concentration) BK_TRY(take_basis(t, other, err));
    BK_TRY(take_basis(t, t->o->basis, err));
    if (t->o->score == BK_OFFQ_VARIANCE) BK_TRY(energies(&t->desk, s->all, t->u, t->room, t->score, err));
    BK_TRY(bk_fitted_add(t->f, BK_FITTED_R1, err));
    return compose(t, t->report->group, true, t->o->seed, t->f->r1, err);
}

/* ---- U3 P3 H3 ---- */

static bk_status fit_r3(fit *t, bk_error *err)
{
    const bk_offq_stats *s = t->s;
    int64_t d = s->head_dim;
    BK_TRY(bk_fitted_add(t->f, BK_FITTED_R3, err));
    for (int64_t k = 0; k < s->layers * s->kv_heads; k++) {
        BK_TRY(eigenvectors(&t->desk, s->key + k * d * d, t->score, t->u, err));
        BK_TRY(compose(t, d, false, bk_rng_u64(t->o->seed, BK_RNG_OFFQ_KEYS, (uint64_t)k), t->f->r3 + k * d * d, err));
    }
    return BK_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower middle over layers and heads. */
static bk_status median_spikiness(const bk_offq_stats *s, double *out, bk_error *err)
{
    int64_t n = s->layers * s->kv_heads;
    double *sorted = malloc((size_t)n * sizeof *sorted);
    if (!sorted) return bk_fail(err, BK_ENOMEM, "no memory for %lld heads", (long long)n);
    memcpy(sorted, s->spikiness, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    *out = sorted[(n - 1) / 2];
    free(sorted);
    return BK_OK;
}

static bool wants_keys(const bk_config *c, const bk_offq_options *o, double spikiness)
{
    if (o->keys != BK_OFFQ_KEYS_AUTO) return o->keys == BK_OFFQ_KEYS_ON;
    return c->qkv_bias || spikiness > (o->spikiness > 0 ? o->spikiness : BK_OFFQ_SPIKINESS);
}

/* ---- P4 and signs ---- */

static bk_status fit_down(const bk_offq_stats *s, const bk_offq_options *o, int64_t group, bk_fitted *f, bk_error *err)
{
    int64_t n = s->inter;
    BK_TRY(bk_fitted_add(f, BK_FITTED_DOWN_ORDER, err));
    BK_TRY(bk_fitted_add(f, BK_FITTED_DOWN_SIGNS, err));
    double *score = malloc((size_t)n * sizeof *score);
    bk_status st = score ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for %lld channels", (long long)n);
    for (int64_t l = 0; !st && l < s->layers; l++) {
        for (int64_t i = 0; i < n; i++) score[i] = (double)s->down[l * n + i];
        st = bk_offset_order(score, n, n / group, o->zigzag, f->down_order + l * n, err);
        bk_offset_signs(f->down_signs + l * n, n, group, o->alike, bk_rng_u64(o->seed, BK_RNG_OFFQ_DOWN, (uint64_t)l),
                        BK_RNG_OFFQ_DOWN);
    }
    free(score);
    return st;
}

/* ---- all of it ---- */

static bk_status size_of_groups(int64_t n, int64_t asked, const char *what, int64_t *group, bk_error *err)
{
    *group = asked ? asked : bk_group_size(n);
    if (*group >= 1 && n % *group == 0) return BK_OK;
    return bk_fail(err, BK_EINVAL, "OffQ: %s: %lld channels cannot be cut into groups of %lld", what, (long long)n,
                   (long long)*group);
}

static bk_status choose_groups(const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *r, bk_error *err)
{
    BK_TRY(size_of_groups(s->hidden, o->group, "hidden", &r->group, err));
    BK_TRY(size_of_groups(s->inter, o->down_group, "the input of down", &r->down_group, err));
    r->groups = s->hidden / r->group;
    r->gaussian = is_gaussian(o, r->group);
    if (bk_hadamard_exists(r->down_group)) return BK_OK;
    if (o->down_group)
        return bk_fail(err, BK_EINVAL, "OffQ: the input of down: no Hadamard matrix of order %lld is known",
                       (long long)o->down_group);
    r->down_group = 0;
    return BK_OK;
}

/* With a desk and room for matrices of order n. */
static bk_status at_order(int64_t n, bk_status (*what)(fit *, bk_error *), fit t, const bk_backend *be, bk_error *err)
{
    bk_status st = open_fit(&t, be, n, err);
    if (!st) st = what(&t, err);
    close_fit(&t);
    return st;
}

bk_status bk_offq_fit(const bk_backend *be, const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o,
                      bk_fitted *f, bk_offq_report *report, bk_error *err)
{
    *report = (bk_offq_report){.share = {{NAN, NAN}, {NAN, NAN}}};
    fit t = {.s = s, .o = o, .f = f, .report = report};
    BK_TRY(bk_fitted_fits(f, c, err));
    if (bk_offq_wants_all(o) && !s->all)
        return bk_fail(err, BK_EINVAL, "OffQ: these options need the covariance of all tokens, and the statistics have none: measure "
                                       "them with the same options");
    BK_TRY(choose_groups(s, o, report, err));
    BK_TRY(median_spikiness(s, &report->spikiness, err));
    report->keys = wants_keys(c, o, report->spikiness);
    BK_TRY(at_order(s->hidden, fit_r1, t, be, err));
    if (report->keys) BK_TRY(at_order(s->head_dim, fit_r3, t, be, err));
    return report->down_group ? fit_down(s, o, report->down_group, f, err) : BK_OK;
}
