#include "tests/tiny_fitted.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "quant/hadamard.h"
#include "tests/ok.h"

static void *room(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

static void draw_signs(int8_t *sign, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) sign[i] = bk_rng_below(seed, BK_RNG_TEST, (uint64_t)i, 2) ? 1 : -1;
}

static void draw_order(int32_t *order, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)bk_rng_below(seed, BK_RNG_TEST, (uint64_t)i, (uint64_t)i + 1);
        int32_t t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

void bk_tiny_orthogonal(double *q, int64_t n, uint64_t seed)
{
    bk_error err = {0};
    bk_hadamard_plan *h;
    int8_t *sign = room(n, sizeof *sign);
    int32_t *order = room(n, sizeof *order);
    double *row = room(n, sizeof *row);
    ok(bk_hadamard_create(n, &h, &err), &err);
    memset(q, 0, (size_t)(n * n) * sizeof *q);
    for (int64_t i = 0; i < n; i++) q[i * n + i] = 1;
    draw_signs(sign, n, 2 * seed);
    draw_order(order, n, seed);
    ok(bk_hadamard_apply_f64(h, sign, q, n, n, 1, &err), &err);
    for (int64_t i = 0; i < n; i++) {
        memcpy(row, q + i * n, (size_t)n * sizeof *row);
        for (int64_t j = 0; j < n; j++) q[i * n + j] = row[order[j]];
    }
    draw_signs(sign, n, 2 * seed + 1);
    ok(bk_hadamard_apply_f64(h, sign, q, n, n, 1, &err), &err);
    bk_hadamard_free(h);
    free(sign), free(order), free(row);
}

static void draw_scales(float *scale, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; scale && i < n; i++) scale[i] = (float)exp2(6 * bk_rng_uniform(seed, BK_RNG_TEST, (uint64_t)i) - 3);
}

bk_fitted *bk_tiny_fitted(const bk_config *c, unsigned parts, uint64_t seed)
{
    bk_fitted *f;
    bk_error err = {0};
    int64_t d = c->head_dim;
    ok(bk_fitted_create(c, &f, &err), &err);
    for (int p = 0; p < BK_FITTED_COUNT; p++)
        if (parts >> p & 1) ok(bk_fitted_add(f, p, &err), &err);
    if (f->r1) bk_tiny_orthogonal(f->r1, c->hidden, seed);
    for (int64_t k = 0; k < c->layers * c->kv_heads; k++) {
        if (f->r2) bk_tiny_orthogonal(f->r2 + k * d * d, d, seed + 100 + (uint64_t)k);
        if (f->r3) bk_tiny_orthogonal(f->r3 + k * d * d, d, seed + 200 + (uint64_t)k);
    }
    for (int64_t l = 0; l < c->layers; l++) {
        if (f->down_order) draw_order(f->down_order + l * c->inter, c->inter, seed + 300 + (uint64_t)l);
        if (f->down_signs) draw_signs(f->down_signs + l * c->inter, c->inter, seed + 400 + (uint64_t)l);
    }
    draw_scales(f->scale_attn_in, c->layers * c->hidden, seed + 500);
    draw_scales(f->scale_mlp_in, c->layers * c->hidden, seed + 501);
    draw_scales(f->scale_o_in, c->layers * c->kv_heads * d, seed + 502);
    draw_scales(f->scale_down_in, c->layers * c->inter, seed + 503);
    ok(bk_fitted_check(f, &err), &err);
    return f;
}
