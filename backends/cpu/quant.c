/* Fake-quantization with stored steps (fakequant) and with ranges of each row and group (dynquant). The formulas of one element and of
 * one group are in backends/scalar/quant.h. */
#include "backends/cpu/cpu.h"
#include "backends/scalar/quant.h"

BK_CLONES static void level_row(int64_t n, const float *x, float s, float lo, float hi, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] = bk_quant_level(x[i] / s, lo, hi) * s;
}

BK_CLONES static void level_codes(int64_t n, const float *x, float s, float lo, float hi, float zero, int32_t *restrict codes)
{
    for (int64_t i = 0; i < n; i++) codes[i] = bk_quant_code(bk_quant_level(x[i] / s, lo, hi) + zero);
}

/* The same with rounding parameters v. */
BK_CLONES static void rounded_row(int64_t n, const float *x, const float *v, int soft, float s, float lo, float hi, float *restrict y)
{
    float slope;
    if (soft)
        for (int64_t i = 0; i < n; i++) y[i] = bk_clamp(bk_quant_round(1, x[i] / s, v[i], &slope), lo, hi) * s;
    else
        for (int64_t i = 0; i < n; i++) y[i] = bk_clamp(bk_quant_round(0, x[i] / s, v[i], &slope), lo, hi) * s;
}

BK_CLONES static void rounded_codes(int64_t n, const float *x, const float *v, int soft, float s, float lo, float hi, float zero,
                                    int32_t *restrict codes)
{
    float slope; /* once per export: not worth two loops */
    for (int64_t i = 0; i < n; i++) codes[i] = bk_quant_code(bk_clamp(bk_quant_round(soft, x[i] / s, v[i], &slope), lo, hi) + zero);
}

/* Zero point of a stored quantizer: rounded, and kept in the code range */
static float zero_of(const float *z, int64_t p, int qmin, int qmax) { return z ? bk_clamp(bk_rne(z[p]), (float)qmin, (float)qmax) : 0.0f; }

bk_status bk_cpu_fakequant_fwd(const bk_fakequant_fwd_args *a, const bk_work *w)
{
    (void)w;
    if (a->freeze != BK_FREEZE_OFF) return BK_EUNSUP;
    int64_t groups = a->cols / a->group;
    const float *x = a->x, *s = a->s, *v = a->v;
    float *y = a->y;
    int soft = a->rounding == BK_ROUND_SOFT;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = r * a->cols + g * a->group, p = a->per_row ? r * groups + g : g;
            float zero = zero_of(a->z, p, a->qmin, a->qmax), lo = (float)a->qmin - zero, hi = (float)a->qmax - zero;
            if (y && !v) level_row(a->group, x + at, s[p], lo, hi, y + at);
            if (y && v) rounded_row(a->group, x + at, v + at, soft, s[p], lo, hi, y + at);
            if (a->codes && !v) level_codes(a->group, x + at, s[p], lo, hi, zero, a->codes + at);
            if (a->codes && v) rounded_codes(a->group, x + at, v + at, soft, s[p], lo, hi, zero, a->codes + at);
        }
    return BK_OK;
}

typedef struct dparams {
    float step, zero;
} dparams;

/* One group: dx (may be NULL) += dy inside; returns the sums for step and zero point. */
BK_CLONES static dparams fakequant_bwd_group(int64_t n, const float *x, float s, float lo, float hi, const float *dy,
                                             float *restrict dx)
{
    float step[BK_LANES] = {0}, outside[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        float v = x[i] / s;
        float level = bk_rne(v);
        float q = bk_clamp(level, lo, hi);
        float pass = bk_select((level >= lo) & (level <= hi), dy[i], 0.0f);
        step[l] += dy[i] * q - pass * v;
        outside[l] += dy[i] - pass;
        if (dx) dx[i] += pass;
    });
    return (dparams){bk_tree(step), -s * bk_tree(outside)};
}

/* The same with rounding parameters v; dv may be NULL too. */
BK_INLINE dparams rounded_bwd(int64_t n, const float *x, const float *v, const int soft, float s, float lo, float hi, const float *dy,
                              float *restrict dx, float *restrict dv)
{
    float step[BK_LANES] = {0}, outside[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        float slope;
        float u = x[i] / s;
        float level = bk_quant_round(soft, u, v[i], &slope);
        float q = bk_clamp(level, lo, hi);
        float pass = bk_select((level >= lo) & (level <= hi), dy[i], 0.0f);
        step[l] += dy[i] * q - pass * u;
        outside[l] += dy[i] - pass;
        if (dx) dx[i] += pass;
        if (dv) dv[i] += pass * slope * s;
    });
    return (dparams){bk_tree(step), -s * bk_tree(outside)};
}

BK_CLONES static dparams soft_bwd_group(int64_t n, const float *x, const float *v, float s, float lo, float hi, const float *dy,
                                        float *restrict dx, float *restrict dv)
{
    return dv ? rounded_bwd(n, x, v, 1, s, lo, hi, dy, dx, dv) : rounded_bwd(n, x, v, 1, s, lo, hi, dy, dx, 0);
}

BK_CLONES static dparams offset_bwd_group(int64_t n, const float *x, const float *v, float s, float lo, float hi, const float *dy,
                                          float *restrict dx, float *restrict dv)
{
    return dv ? rounded_bwd(n, x, v, 0, s, lo, hi, dy, dx, dv) : rounded_bwd(n, x, v, 0, s, lo, hi, dy, dx, 0);
}

/* One group at `at` with step s and zero point z. */
static dparams stored_bwd(const bk_fakequant_bwd_args *a, int64_t at, float s, float z)
{
    const float *x = (const float *)a->x + at, *dy = (const float *)a->dy + at;
    float lo = (float)a->qmin - z, hi = (float)a->qmax - z, *dx = a->dx ? (float *)a->dx + at : 0;
    if (!a->v) return fakequant_bwd_group(a->group, x, s, lo, hi, dy, dx);
    const float *v = (const float *)a->v + at;
    float *dv = a->dv ? (float *)a->dv + at : 0;
    return a->rounding == BK_ROUND_SOFT ? soft_bwd_group(a->group, x, v, s, lo, hi, dy, dx, dv)
                                        : offset_bwd_group(a->group, x, v, s, lo, hi, dy, dx, dv);
}

size_t bk_cpu_fakequant_bwd_work(const bk_fakequant_bwd_args *a)
{
    if (a->per_row || a->group == 0) return 0;
    return 2 * sizeof(double) * (size_t)(bk_tiles(a->rows, BK_TILE_ROWS) * (a->cols / a->group));
}

bk_status bk_cpu_fakequant_bwd(const bk_fakequant_bwd_args *a, const bk_work *w)
{
    if (!a->rows || !a->cols) return BK_OK;
    int64_t groups = a->cols / a->group, tiles = bk_tiles(a->rows, BK_TILE_ROWS);
    const float *s = a->s;
    float *ds = a->ds, *dz = a->dz;
    double *part = a->per_row ? 0 : bk_cpu_scratch(w, bk_cpu_fakequant_bwd_work(a));
    if (!a->per_row && !part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t g = 0; g < groups; g++) {
            double step = 0.0, zero = 0.0;
            for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++) {
                int64_t at = r * a->cols + g * a->group, p = a->per_row ? r * groups + g : g;
                dparams d = stored_bwd(a, at, s[p], zero_of(a->z, p, a->qmin, a->qmax));
                if (a->per_row && ds) ds[p] += d.step;
                if (a->per_row && dz) dz[p] += d.zero;
                step += d.step;
                zero += d.zero;
            }
            if (part) part[g * tiles + t] = step, part[(groups + g) * tiles + t] = zero;
        }
    for (int64_t g = 0; part && g < groups; g++) {
        if (ds) ds[g] += (float)bk_cpu_tree_sum(part + g * tiles, tiles);
        if (dz) dz[g] += (float)bk_cpu_tree_sum(part + (groups + g) * tiles, tiles);
    }
    return BK_OK;
}

/* --- what pulls soft rounding to 0 or 1 --- */

size_t bk_cpu_round_penalty_fwd_work(const bk_round_penalty_fwd_args *a) { return sizeof(double) * (size_t)bk_tiles(a->n, BK_CHUNK); }

BK_CLONES static double penalty_chunk(int64_t n, const float *v, float beta)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        float slope;
        lane[l] += (double)(1.0f - bk_soft_power(bk_soft_lean(v[i], &slope), beta));
    });
    return bk_tree_f64(lane);
}

bk_status bk_cpu_round_penalty_fwd(const bk_round_penalty_fwd_args *a, const bk_work *w)
{
    int64_t chunks = bk_tiles(a->n, BK_CHUNK);
    double *part = bk_cpu_scratch(w, bk_cpu_round_penalty_fwd_work(a));
    if (!part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->n))
    for (int64_t c = 0; c < chunks; c++)
        part[c] = penalty_chunk(bk_min_i64(BK_CHUNK, a->n - c * BK_CHUNK), (const float *)a->v + c * BK_CHUNK, (float)a->beta);
    *(float *)a->loss = (float)(a->lambda * bk_cpu_tree_sum(part, chunks));
    return BK_OK;
}

BK_CLONES static void penalty_bwd_chunk(int64_t n, const float *v, float beta, float g, float *restrict dv)
{
    for (int64_t i = 0; i < n; i++) {
        float slope, t = bk_soft_lean(v[i], &slope);
        dv[i] -= g * beta * __builtin_copysignf(bk_soft_power(t, beta - 1.0f), t) * 2.0f * slope;
    }
}

bk_status bk_cpu_round_penalty_bwd(const bk_round_penalty_bwd_args *a, const bk_work *w)
{
    (void)w;
    float g = (float)(a->lambda * *(const float *)a->dloss);
#pragma omp parallel for schedule(static) if (BK_BIG(a->n))
    for (int64_t c = 0; c < bk_tiles(a->n, BK_CHUNK); c++)
        penalty_bwd_chunk(bk_min_i64(BK_CHUNK, a->n - c * BK_CHUNK), (const float *)a->v + c * BK_CHUNK, (float)a->beta, g,
                          (float *)a->dv + c * BK_CHUNK);
    return BK_OK;
}

/* --- ranges of each row and group --- */

typedef struct extremes {
    float max, min, amax;
} extremes;

BK_CLONES static extremes extremes_of(int64_t n, const float *x)
{
    float max[BK_LANES], min[BK_LANES];
    for (int l = 0; l < BK_LANES; l++) max[l] = min[l] = x[0];
    BK_LANE_LOOP(n, (max[l] = bk_max(x[i], max[l]), min[l] = bk_min(x[i], min[l])));
    extremes e = {max[0], min[0], 0.0f};
    for (int l = 1; l < BK_LANES; l++) e.max = bk_max(e.max, max[l]), e.min = bk_min(e.min, min[l]);
    e.amax = bk_max(__builtin_fabsf(e.max), __builtin_fabsf(e.min));
    return e;
}

static bk_quant_grid grid_of(extremes e, int symmetric, const float *gamma, const float *beta, int qmin, int qmax, int bounded)
{
    float upper = gamma ? *gamma : 1.0f, lower = beta ? *beta : 1.0f;
    return symmetric ? bk_quant_symmetric(e.amax, upper, qmin, qmax) : bk_quant_asymmetric(e.max, e.min, upper, lower, qmax, bounded);
}

BK_CLONES static void grid_row(int64_t n, const float *x, const bk_quant_grid *grid, float *restrict y)
{
    const bk_quant_grid q = *grid;
    for (int64_t i = 0; i < n; i++) y[i] = bk_quant_level(x[i] / q.div * q.mul, q.lo, q.hi) * q.step;
}

BK_CLONES static void grid_codes(int64_t n, const float *x, const bk_quant_grid *grid, int32_t *restrict codes)
{
    const bk_quant_grid q = *grid;
    for (int64_t i = 0; i < n; i++) codes[i] = bk_quant_code(bk_quant_level(x[i] / q.div * q.mul, q.lo, q.hi) + q.zero);
}

bk_status bk_cpu_dynquant_fwd(const bk_dynquant_fwd_args *a, const bk_work *w)
{
    (void)w;
    if (a->freeze != BK_FREEZE_OFF) return BK_EUNSUP;
    if (!a->rows || !a->cols) return BK_OK;
    int64_t groups = a->cols / a->group;
    float *y = a->y, *step = a->step, *zero = a->zero;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = r * a->cols + g * a->group, p = r * groups + g;
            const float *x = (const float *)a->x + at;
            bk_quant_grid grid = grid_of(extremes_of(a->group, x), a->symmetric, a->gamma, a->beta, a->qmin, a->qmax, a->bounded);
            if (y) grid_row(a->group, x, &grid, y + at);
            if (a->codes) grid_codes(a->group, x, &grid, a->codes + at);
            if (step) step[p] = grid.step;
            if (zero) zero[p] = grid.zero;
        }
    return BK_OK;
}

/* dx (may be NULL) += dy inside; returns G, the derivative after the group's step */
BK_CLONES static float grid_bwd(int64_t n, const float *x, const bk_quant_grid *grid, const float *dy, float *restrict dx)
{
    const bk_quant_grid q = *grid;
    float sum[BK_LANES] = {0};
    BK_LANE_LOOP(n, {
        float v = x[i] / q.div * q.mul;
        float level = bk_rne(v);
        float pass = bk_select((level >= q.lo) & (level <= q.hi), dy[i], 0.0f);
        sum[l] += dy[i] * bk_clamp(level, q.lo, q.hi) - pass * v;
        if (dx) dx[i] += pass;
    });
    return bk_tree(sum);
}

/* dx += share at the places where x == value, split evenly among them */
BK_CLONES static void share_ties(int64_t n, const float *x, float value, float share, float *restrict dx)
{
    int32_t ties = 0;
    for (int64_t i = 0; i < n; i++) ties += x[i] == value;
    share /= (float)(ties ? ties : 1);
    for (int64_t i = 0; i < n; i++) dx[i] += x[i] == value ? share : 0.0f;
}

/* dx += share sign(x) at the places where |x| == value, split evenly among them */
BK_CLONES static void share_abs_ties(int64_t n, const float *x, float value, float share, float *restrict dx)
{
    int32_t ties = 0;
    for (int64_t i = 0; i < n; i++) ties += __builtin_fabsf(x[i]) == value;
    share /= (float)(ties ? ties : 1);
    for (int64_t i = 0; i < n; i++) dx[i] += __builtin_fabsf(x[i]) == value ? __builtin_copysignf(share, x[i] * share) : 0.0f;
}

/* One group; returns what it adds to dgamma and dbeta. */
static dparams dynquant_bwd_group(const bk_dynquant_bwd_args *a, int64_t at)
{
    const float *x = (const float *)a->x + at, *dy = (const float *)a->dy + at;
    float *dx = a->dx ? (float *)a->dx + at : 0;
    extremes e = extremes_of(a->group, x);
    bk_quant_grid grid = grid_of(e, a->symmetric, a->gamma, a->beta, a->qmin, a->qmax, a->bounded);
    if (grid.straight) {
        if (dx) bk_cpu_add_to(a->group, dy, dx);
        return (dparams){0.0f, 0.0f};
    }
    float sum = grid_bwd(a->group, x, &grid, dy, dx);
    if (dx && a->symmetric && e.amax > 0.0f) share_abs_ties(a->group, x, e.amax, sum * grid.dmax, dx);
    if (dx && !a->symmetric) share_ties(a->group, x, e.max, sum * grid.dmax, dx);
    if (dx && !a->symmetric) share_ties(a->group, x, e.min, sum * grid.dmin, dx);
    return (dparams){sum * grid.dgamma, sum * grid.dbeta};
}

size_t bk_cpu_dynquant_bwd_work(const bk_dynquant_bwd_args *a) { return 2 * sizeof(double) * (size_t)bk_tiles(a->rows, BK_TILE_ROWS); }

bk_status bk_cpu_dynquant_bwd(const bk_dynquant_bwd_args *a, const bk_work *w)
{
    if (!a->rows || !a->cols) return BK_OK;
    int64_t groups = a->cols / a->group, tiles = bk_tiles(a->rows, BK_TILE_ROWS);
    double *part = bk_cpu_scratch(w, bk_cpu_dynquant_bwd_work(a));
    if (!part) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t t = 0; t < tiles; t++) {
        double upper = 0.0, lower = 0.0;
        for (int64_t r = t * BK_TILE_ROWS; r < bk_min_i64(a->rows, (t + 1) * BK_TILE_ROWS); r++)
            for (int64_t g = 0; g < groups; g++) {
                dparams d = dynquant_bwd_group(a, r * a->cols + g * a->group);
                upper += d.step;
                lower += d.zero;
            }
        part[t] = upper;
        part[tiles + t] = lower;
    }
    if (a->dgamma) *(float *)a->dgamma += (float)bk_cpu_tree_sum(part, tiles);
    if (a->dbeta) *(float *)a->dbeta += (float)bk_cpu_tree_sum(part + tiles, tiles);
    return BK_OK;
}
