#include "quant/offset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "quant/rank.h"

static float largest_magnitude(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
    }
    return most;
}

int64_t bk_top_token(const float *x, int64_t tokens, int64_t stride, int64_t width, float *largest)
{
    int64_t top = 0;
    *largest = -1;
    for (int64_t t = 0; t < tokens; t++) {
        float size = largest_magnitude(x + t * stride, width);
        if (size <= *largest) continue;
        *largest = size;
        top = t;
    }
    return top;
}

/* ---- the order of channels ---- */

bk_status bk_offset_order(const double *score, int64_t n, int64_t groups, bool zigzag, int32_t *src, bk_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(score[i]))
            return bk_fail(err, BK_EINVAL, "channel %lld cannot be put in order: its score is not a number", (long long)i);
    int32_t *falling = malloc((size_t)n * sizeof *falling);
    if (!falling) return bk_fail(err, BK_ENOMEM, "no memory to order %lld channels", (long long)n);
    bk_status st = bk_rank_falling(score, n, falling, err);
    int64_t size = n / groups, rest = size - 1;
    for (int64_t g = 0; !st && g < groups; g++) {
        src[g * size] = falling[g];
        for (int64_t i = 0; i < rest; i++) src[g * size + 1 + i] = falling[n - 1 - (zigzag ? i * groups + g : g * rest + i)];
    }
    free(falling);
    return st;
}

/* ---- rotations that make the first channel of a group an offset ---- */

/* v -= (v . row) row for the rows before it; twice, since one pass leaves what rounding does to it. */
static void make_orthogonal(double *h, int64_t row, int64_t n)
{
    double *v = h + row * n;
    for (int64_t k = 0; k < 2 * row; k++) {
        const double *u = h + k % row * n;
        double dot = 0;
        for (int64_t i = 0; i < n; i++) dot += u[i] * v[i];
        for (int64_t i = 0; i < n; i++) v[i] -= dot * u[i];
    }
}

static void make_unit(double *v, int64_t n)
{
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += v[i] * v[i];
    for (int64_t i = 0; i < n; i++) v[i] /= sqrt(square);
}

void bk_offset_gaussian(double *h, int64_t n, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) h[i] = 1 / sqrt((double)n);
    for (int64_t i = n; i < n * n; i++) h[i] = bk_rng_normal(seed, stream, (uint64_t)i);
    for (int64_t row = 1; row < n; row++) {
        make_orthogonal(h, row, n);
        make_unit(h + row * n, n);
    }
}

void bk_offset_signs(int8_t *signs, int64_t n, int64_t group, bool alike, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t k = (uint64_t)(alike ? i % group : i);
        signs[i] = i % group && bk_rng_u64(seed, stream, k / 64) >> (k % 64) & 1 ? -1 : 1;
    }
}

/* Columns first .. first + size - 1 of every row of q turn by h [size, size]; row: room for size values. */
static void turn_columns(double *q, int64_t n, int64_t first, int64_t size, const double *h, double *row)
{
    for (int64_t r = 0; r < n; r++) {
        double *x = q + r * n + first;
        memcpy(row, x, (size_t)size * sizeof *row);
        memset(x, 0, (size_t)size * sizeof *x);
        for (int64_t i = 0; i < size; i++)
            for (int64_t j = 0; j < size; j++) x[j] += row[i] * h[i * size + j];
    }
}

static bk_status turn_by_gaussians(const bk_offset_rotation *r, double *q, bk_error *err)
{
    int64_t size = r->group;
    double *h = malloc((size_t)((size + 1) * size) * sizeof *h);
    if (!h) return bk_fail(err, BK_ENOMEM, "no memory for a rotation of %lld channels", (long long)size);
    for (int64_t g = 0; g < r->n / size; g++) {
        bk_offset_gaussian(h, size, bk_rng_u64(r->seed, r->stream, r->alike ? 0 : (uint64_t)g), r->stream);
        turn_columns(q, r->n, g * size, size, h, h + size * size);
    }
    free(h);
    return BK_OK;
}

bk_status bk_offset_compose(const bk_offset_rotation *r, const double *u, const int32_t *src, double *q, bk_error *err)
{
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < r->n; j++) q[i * r->n + j] = u[i * r->n + src[j]];
    return r->h1 ? bk_hadamard_apply_f64(r->h1, r->signs, q, r->n, r->n, 1, err) : turn_by_gaussians(r, q, err);
}
