#include "autograd/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"

#define FLOOR_FACTOR 1e-3

typedef struct param {
    char *name;
    bk_tensor value, grad;
    bk_tensor floor; /* data NULL unless `positive` */
    int group;
    bool positive, bounded;
    double lo, hi;  /* when bounded */
    int64_t offset; /* in reals, into the contiguous arrays */
} param;

enum { VALUE, GRAD, M, V, BEST, ARRAYS };

struct bk_params {
    const bk_backend *be;
    bk_error *err;
    param **at; /* by declaration; headers must not move, so each is its own allocation */
    int count;
    bool trained;
    bk_update_rule rule[BK_MAX_GROUPS];
    int64_t total, group_start[BK_MAX_GROUPS + 1];
    int64_t moments, moment_start[BK_MAX_GROUPS]; /* only AdamW has them */
    void *array[ARRAYS];
    void *floors;
    int64_t floor_total;
    bk_tensor *number; /* f64[1] results of kernels */
};

bk_params *bk_params_new(const bk_backend *be, bk_error *err)
{
    bk_params *p = calloc(1, sizeof *p);
    if (!p) {
        bk_fail(err, BK_ENOMEM, "no memory for parameters");
        return NULL;
    }
    p->be = be;
    p->err = err;
    return p;
}

static size_t real_size(const bk_params *p)
{
    return bk_dtype_size(p->be->dtype);
}

static size_t array_bytes(const bk_params *p, int which)
{
    return (size_t)(which == M || which == V ? p->moments : p->total) * real_size(p);
}

void bk_params_free(bk_params *p)
{
    if (!p) return;
    for (int i = 0; i < p->count; i++) {
        free(p->at[i]->name);
        free(p->at[i]);
    }
    free(p->at);
    for (int i = 0; i < ARRAYS; i++)
        if (p->array[i]) p->be->release(p->array[i], array_bytes(p, i));
    if (p->floors) p->be->release(p->floors, (size_t)p->floor_total * real_size(p));
    bk_tensor_destroy(p->be, p->number);
    free(p);
}

bk_tensor *bk_params_add(bk_params *p, const char *name, int group, bool positive, int ndim, const int64_t *dim)
{
    param **grown = realloc(p->at, ((size_t)p->count + 1) * sizeof *grown);
    param *q = grown ? calloc(1, sizeof *q) : NULL;
    if (grown) p->at = grown;
    if (!q || !(q->name = strdup(name))) {
        free(q);
        bk_fail(p->err, BK_ENOMEM, "%s: no memory for a parameter", name);
        return NULL;
    }
    q->group = group;
    q->positive = positive;
    bk_tensor_init(&q->value, p->be->dtype, ndim, dim, q->name);
    bk_tensor_init(&q->grad, p->be->dtype, ndim, dim, q->name);
    bk_tensor_init(&q->floor, p->be->dtype, ndim, dim, q->name);
    p->at[p->count++] = q;
    return &q->value;
}

void bk_params_set_rule(bk_params *p, int group, bk_update_rule rule)
{
    p->rule[group] = rule;
}

void bk_params_bound(bk_params *p, const bk_tensor *t, double lo, double hi)
{
    for (int i = 0; i < p->count; i++) {
        param *q = p->at[i];
        if (&q->value != t) continue;
        q->bounded = true;
        q->lo = lo;
        q->hi = hi;
    }
}

static void *element(const bk_params *p, void *array, int64_t i)
{
    return array ? (char *)array + (size_t)i * real_size(p) : NULL;
}

/* Offsets: groups one after the other, inside a group by declaration. */
static void lay_out(bk_params *p)
{
    p->total = p->moments = p->floor_total = 0;
    for (int g = 0; g < BK_MAX_GROUPS; g++) {
        p->group_start[g] = p->total;
        p->moment_start[g] = p->moments;
        for (int i = 0; i < p->count; i++)
            if (p->at[i]->group == g) {
                p->at[i]->offset = p->total;
                p->total += bk_numel(&p->at[i]->value);
            }
        if (p->rule[g] == BK_RULE_ADAMW) p->moments += p->total - p->group_start[g];
    }
    p->group_start[BK_MAX_GROUPS] = p->total;
    for (int i = 0; i < p->count; i++)
        if (p->at[i]->positive) p->floor_total += bk_numel(&p->at[i]->value);
}

size_t bk_params_bytes_of(const bk_backend *be, int64_t reals, bool trained)
{
    return (size_t)reals * bk_dtype_size(be->dtype) * (trained ? ARRAYS : 1);
}

size_t bk_params_bytes(const bk_params *p)
{
    size_t sum = 0;
    for (int i = 0; i < (p->trained ? ARRAYS : 1); i++) sum += array_bytes(p, i);
    return sum;
}

bk_status bk_params_commit(bk_params *p, bool trained)
{
    BK_TRY(p->err->code);
    lay_out(p);
    p->trained = trained;
    for (int i = 0; i < (trained ? ARRAYS : 1); i++) {
        size_t bytes = array_bytes(p, i);
        if (bytes && p->be->alloc(bytes, &p->array[i])) return bk_fail(p->err, BK_ENOMEM, "no memory for %zu bytes of parameters", bytes);
    }
    if (trained && p->floor_total && p->be->alloc((size_t)p->floor_total * real_size(p), &p->floors))
        return bk_fail(p->err, BK_ENOMEM, "no memory for the floors of the steps");
    BK_TRY(bk_tensor_create(p->be, BK_F64, 1, (int64_t[]){1}, "number", &p->number, p->err));
    int64_t floor_at = 0;
    for (int i = 0; i < p->count; i++) {
        param *q = p->at[i];
        q->value.data = element(p, p->array[VALUE], q->offset);
        q->grad.data = element(p, p->array[GRAD], q->offset);
        q->value.requires_grad = trained && p->rule[q->group] != BK_RULE_CONSTANT;
        q->value.grad = q->value.requires_grad ? &q->grad : NULL;
        if (!q->positive) continue;
        q->floor.data = element(p, p->floors, floor_at);
        floor_at += bk_numel(&q->value);
    }
    return BK_OK;
}

int bk_params_count(const bk_params *p)
{
    return p->count;
}

bk_tensor *bk_params_at(const bk_params *p, int i, int *group)
{
    if (group) *group = p->at[i]->group;
    return &p->at[i]->value;
}

bk_tensor *bk_params_find(const bk_params *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (!strcmp(p->at[i]->name, name)) return &p->at[i]->value;
    return NULL;
}

static bk_status copy_array(bk_params *p, int to, int from)
{
    bk_status st = p->total ? p->be->copy(p->array[to], p->array[from], (size_t)p->total * real_size(p)) : BK_OK;
    return st ? bk_fail(p->err, st, "copying parameters failed") : BK_OK;
}

/* floor = 1e-3 |initial value|, in pieces through host memory: once per block. */
static bk_status take_floors(bk_params *p)
{
    for (int i = 0; i < p->count; i++) {
        param *q = p->at[i];
        int64_t n = bk_numel(&q->value);
        for (int64_t j = 0; q->positive && j < n; j += 512) {
            double buf[512];
            int64_t m = n - j < 512 ? n - j : 512;
            BK_TRY(bk_read_f64(p->be, &q->value, j, buf, m, p->err));
            for (int64_t k = 0; k < m; k++) buf[k] = FLOOR_FACTOR * fabs(buf[k]);
            BK_TRY(bk_write_f64(p->be, &q->floor, j, buf, m, p->err));
        }
    }
    return BK_OK;
}

static bk_status zero_moments(bk_params *p, int which)
{
    const double zero[512] = {0};
    bk_tensor t;
    bk_tensor_init(&t, p->be->dtype, 1, &p->moments, "moments");
    t.data = p->array[which];
    for (int64_t j = 0; j < p->moments; j += 512)
        BK_TRY(bk_write_f64(p->be, &t, j, zero, p->moments - j < 512 ? p->moments - j : 512, p->err));
    return BK_OK;
}

bk_status bk_params_reset_moments(bk_params *p)
{
    BK_TRY(zero_moments(p, M));
    return zero_moments(p, V);
}

bk_status bk_params_start(bk_params *p)
{
    if (!p->trained) return bk_fail(p->err, BK_EINVAL, "parameters without gradients cannot be trained");
    BK_TRY(bk_params_reset_moments(p));
    BK_TRY(take_floors(p));
    return bk_params_keep_best(p);
}

bk_status bk_params_zero_grad(bk_ctx *ctx, bk_params *p)
{
    return bk_k_fill(ctx, &(bk_fill_args){.n = p->total, .x = p->array[GRAD]});
}

static bk_status step_group(bk_ctx *ctx, bk_params *p, const bk_adamw *opt, int g, double lr, int64_t t)
{
    int64_t at = p->group_start[g], n = p->group_start[g + 1] - at, moment = p->moment_start[g];
    if (!n || lr == 0 || p->rule[g] == BK_RULE_CONSTANT) return BK_OK;
    if (p->rule[g] == BK_RULE_SIGN)
        return bk_k_signsgd(ctx, &(bk_signsgd_args){.n = n, .lr = lr, .p = element(p, p->array[VALUE], at), .g = element(p, p->array[GRAD], at)});
    return bk_k_adamw(ctx, &(bk_adamw_args){.n = n, .t = t, .lr = lr, .beta1 = opt->beta1, .beta2 = opt->beta2, .eps = opt->eps,
                                            .wd = opt->weight_decay, .p = element(p, p->array[VALUE], at),
                                            .m = element(p, p->array[M], moment), .v = element(p, p->array[V], moment),
                                            .g = element(p, p->array[GRAD], at)});
}

bk_status bk_params_step(bk_ctx *ctx, bk_params *p, const bk_adamw *opt, const double lr[BK_MAX_GROUPS], int64_t t, int64_t *floored)
{
    for (int g = 0; g < BK_MAX_GROUPS; g++) BK_TRY(step_group(ctx, p, opt, g, lr[g], t));
    BK_TRY(bk_write_f64(p->be, p->number, 0, &(double){0}, 1, bk_ctx_error(ctx)));
    for (int i = 0; i < p->count; i++) {
        param *q = p->at[i];
        if (lr[q->group] == 0) continue;
        if (q->bounded) BK_TRY(bk_k_clamp(ctx, &(bk_clamp_args){.n = bk_numel(&q->value), .lo = q->lo, .hi = q->hi, .p = q->value.data}));
        if (!q->positive) continue;
        BK_TRY(bk_k_floor(ctx, &(bk_floor_args){.n = bk_numel(&q->value), .p = q->value.data, .lo = q->floor.data, .count = p->number->data}));
    }
    if (bk_ctx_measuring(ctx)) return BK_OK;
    double count;
    BK_TRY(bk_read_f64(p->be, p->number, 0, &count, 1, bk_ctx_error(ctx)));
    *floored += (int64_t)count;
    return BK_OK;
}

bk_status bk_params_grad_norm(bk_ctx *ctx, bk_params *p, double norm[BK_MAX_GROUPS])
{
    for (int g = 0; g < BK_MAX_GROUPS; g++) {
        int64_t at = p->group_start[g], n = p->group_start[g + 1] - at;
        double sum = 0;
        if (n) BK_TRY(bk_k_sumsq(ctx, &(bk_sumsq_args){.n = n, .x = element(p, p->array[GRAD], at), .sum = p->number->data}));
        if (n && !bk_ctx_measuring(ctx)) BK_TRY(bk_read_f64(p->be, p->number, 0, &sum, 1, bk_ctx_error(ctx)));
        norm[g] = sqrt(sum);
    }
    return BK_OK;
}

bk_status bk_params_scale_grad(bk_ctx *ctx, bk_params *p, double factor)
{
    return bk_k_scale(ctx, &(bk_scale_args){.n = p->total, .alpha = factor, .x = p->array[GRAD]});
}

bk_status bk_params_check_grad(bk_ctx *ctx, bk_params *p)
{
    for (int i = 0; i < p->count; i++) {
        param *q = p->at[i];
        double first = -1;
        BK_TRY(bk_k_finite(ctx, &(bk_finite_args){.n = bk_numel(&q->grad), .x = q->grad.data, .first = p->number->data}));
        if (!bk_ctx_measuring(ctx)) BK_TRY(bk_read_f64(p->be, p->number, 0, &first, 1, bk_ctx_error(ctx)));
        if (first >= 0) return bk_fail(bk_ctx_error(ctx), BK_ENUMERIC, "the gradient of %s is not finite at index %lld", q->name, (long long)first);
    }
    return BK_OK;
}

bk_status bk_params_keep_best(bk_params *p)
{
    return copy_array(p, BEST, VALUE);
}

bk_status bk_params_restore_best(bk_params *p)
{
    return copy_array(p, VALUE, BEST);
}

bk_status bk_params_set_aside(bk_params *p)
{
    return copy_array(p, GRAD, VALUE);
}

bk_status bk_params_take_back(bk_params *p)
{
    return copy_array(p, VALUE, GRAD);
}

double bk_cosine_lr(double lr, double min_factor, int64_t k, int64_t steps)
{
    double lr_min = lr / min_factor;
    return lr_min + (lr - lr_min) * (1 + cos(3.14159265358979323846 * (double)k / (double)steps)) / 2;
}
