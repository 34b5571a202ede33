/* Sums over rows, and the kernels that are little else: bias, extremes, squared errors, dot products of rows. */
#include "backends/cpu/cpu.h"
#include "backends/scalar/math.h"

double bk_cpu_tree_sum(double *part, int64_t n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (int64_t i = 0; i < n / 2; i++) part[i] += part[i + (n + 1) / 2];
    return n ? part[0] : 0.0;
}

BK_CLONES static void add_into(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void bk_cpu_add_to(int64_t n, const float *x, float *y) { add_into(n, x, y); }

void bk_cpu_tree_rows(float *part, int64_t rows, int64_t cols, float *out)
{
    enum { STRIP = 256 };
#pragma omp parallel for schedule(static) if (BK_BIG(rows * cols))
    for (int64_t strip = 0; strip < bk_tiles(cols, STRIP); strip++) {
        int64_t at = strip * STRIP, n = bk_min_i64(STRIP, cols - at);
        for (int64_t left = rows; left > 1; left = (left + 1) / 2)
            for (int64_t r = 0; r < left / 2; r++) add_into(n, part + (r + (left + 1) / 2) * cols + at, part + r * cols + at);
        if (rows) add_into(n, part + at, out + at);
    }
}

bk_status bk_cpu_bias_fwd(const bk_bias_fwd_args *a, const bk_work *w)
{
    (void)w;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++) add_into(a->cols, a->b, (float *)a->y + r * a->cols);
    return BK_OK;
}

size_t bk_cpu_bias_bwd_work(const bk_bias_bwd_args *a) { return sizeof(float) * (size_t)(bk_tiles(a->rows, BK_TILE_ROWS) * a->cols); }

bk_status bk_cpu_bias_bwd(const bk_bias_bwd_args *a, const bk_work *w)
{
    if (!a->db || !a->rows || !a->cols) return BK_OK;
    float *part = bk_cpu_scratch(w, bk_cpu_bias_bwd_work(a));
    if (!part) return BK_ENOMEM;
    int64_t tiles = bk_tiles(a->rows, BK_TILE_ROWS);
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t t = 0; t < tiles; t++) {
        float *sum = part + t * a->cols;
        memset(sum, 0, sizeof(float) * (size_t)a->cols);
        for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++)
            add_into(a->cols, (const float *)a->dy + r * a->cols, sum);
    }
    bk_cpu_tree_rows(part, tiles, a->cols, a->db);
    return BK_OK;
}

BK_CLONES static void to_f64(int64_t n, const float *x, double *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
}

void bk_cpu_widen(int64_t n, const float *x, double *y) { to_f64(n, x, y); }

/* Widens [*lo, *hi] by a group. */
BK_CLONES static void widen(int64_t n, const float *x, float *lo, float *hi)
{
    float min[BK_LANES], max[BK_LANES];
    for (int l = 0; l < BK_LANES; l++) min[l] = *lo, max[l] = *hi;
    BK_LANE_LOOP(n, (min[l] = bk_min(x[i], min[l]), max[l] = bk_max(x[i], max[l])));
    for (int l = 0; l < BK_LANES; l++) *lo = bk_min(*lo, min[l]), *hi = bk_max(*hi, max[l]);
}

size_t bk_cpu_minmax_work(const bk_minmax_args *a)
{
    return a->per_row ? 0 : 2 * sizeof(float) * (size_t)(bk_tiles(a->rows, BK_TILE_ROWS) * (a->cols / a->group));
}

bk_status bk_cpu_minmax(const bk_minmax_args *a, const bk_work *w)
{
    const float *x = a->x;
    float *lo = a->lo, *hi = a->hi;
    int64_t groups = a->cols / a->group, tiles = bk_tiles(a->rows, BK_TILE_ROWS);
    float *part = a->per_row ? 0 : bk_cpu_scratch(w, bk_cpu_minmax_work(a));
    if (!a->rows) return BK_OK;
    if (!a->per_row && !part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++)
            for (int64_t g = 0; g < groups; g++) {
                const float *v = x + r * a->cols + g * a->group;
                int64_t p = r * groups + g;
                float *to_lo = a->per_row ? lo + p : part + 2 * (t * groups + g), *to_hi = a->per_row ? hi + p : to_lo + 1;
                bool keep = a->per_row ? a->accumulate : r > t * BK_TILE_ROWS;
                if (!keep) *to_lo = *to_hi = v[0];
                widen(a->group, v, to_lo, to_hi);
            }
    for (int64_t t = 0; t < tiles && !a->per_row; t++)
        for (int64_t g = 0; g < groups; g++) {
            const float *v = part + 2 * (t * groups + g);
            bool keep = t > 0 || a->accumulate;
            lo[g] = keep ? bk_min(lo[g], v[0]) : v[0];
            hi[g] = keep ? bk_max(hi[g], v[1]) : v[1];
        }
    return BK_OK;
}

BK_CLONES static float absmax_row(int64_t n, const float *x)
{
    float lane[BK_LANES] = {0}, m = 0.0f;
    BK_LANE_LOOP(n, lane[l] = bk_max(__builtin_fabsf(x[i]), lane[l]));
    for (int l = 0; l < BK_LANES; l++) m = bk_max(m, lane[l]);
    return m;
}

float bk_cpu_absmax_row(int64_t n, const float *x) { return absmax_row(n, x); }

bk_status bk_cpu_absmax(const bk_absmax_args *a, const bk_work *w)
{
    (void)w;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++) ((float *)a->out)[r] = absmax_row(a->cols, (const float *)a->x + r * a->cols);
    return BK_OK;
}

BK_CLONES static double sqerr_row(int64_t n, const float *x, const float *y)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, (lane[l] += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i])));
    return bk_tree_f64(lane);
}

size_t bk_cpu_sqerr_work(const bk_sqerr_args *a)
{
    return sizeof(double) * (size_t)(bk_tiles(a->rows, BK_TILE_ROWS) * (a->cols / a->group));
}

bk_status bk_cpu_sqerr(const bk_sqerr_args *a, const bk_work *w)
{
    int64_t groups = a->cols / a->group, tiles = bk_tiles(a->rows, BK_TILE_ROWS);
    if (!a->rows || !groups) return BK_OK;
    double *part = bk_cpu_scratch(w, bk_cpu_sqerr_work(a));
    if (!part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t g = 0; g < groups; g++) {
            double sum = 0.0;
            for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++) {
                int64_t at = r * a->cols + g * a->group;
                sum += sqerr_row(a->group, (const float *)a->a + at, (const float *)a->b + at);
            }
            part[g * tiles + t] = sum;
        }
    for (int64_t g = 0; g < groups; g++) a->err[g] += bk_cpu_tree_sum(part + g * tiles, tiles);
    return BK_OK;
}

BK_CLONES static double dot_row(int64_t n, const float *x, const float *y)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += (double)x[i] * (double)y[i]);
    return bk_tree_f64(lane);
}

double bk_cpu_dot(int64_t n, const float *x, const float *y) { return dot_row(n, x, y); }

BK_CLONES static double dot_f64(int64_t n, const double *x, const double *y)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += x[i] * y[i]);
    return bk_tree_f64(lane);
}

double bk_cpu_dot_f64(int64_t n, const double *x, const double *y) { return dot_f64(n, x, y); }

bk_status bk_cpu_rowdot(const bk_rowdot_args *a, const bk_work *w)
{
    (void)w;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++)
        a->out[r] = dot_row(a->cols, (const float *)a->a + r * a->cols, (const float *)a->b + r * a->cols);
    return BK_OK;
}
