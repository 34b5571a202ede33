/* Steps fitted to weights, and GPTQ. Rows do not depend on each other: a thread takes some of them, as f64, through all columns. Columns go in
 * blocks; what the errors of a block take off the columns behind it is one matrix product. */
#include <cblas.h>

#include "backends/cpu/cpu.h"
#include "backends/scalar/quant.h"

enum { BLOCK = 128, PANEL_MIN = 8, PANEL_MAX = 192, PANELS = 8, SHRINKS = 80 };

/* --- steps --- */

typedef struct grid {
    float s, z, lo, hi; /* lo, hi: codes without the zero point */
} grid;

static grid grid_of(const bk_fit_steps_args *f, float s, float z)
{
    float lo = f->symmetric ? -(float)(1 << (f->bits - 1)) : 0.0f, hi = lo + (float)((1 << f->bits) - 1);
    return (grid){s, z, lo - z, hi - z};
}

static grid grid_of_range(const bk_fit_steps_args *f, double lo, double hi)
{
    float s, z;
    bk_quant_step(f->bits, f->symmetric, f->restricted, (float)lo, (float)hi, &s, &z);
    return grid_of(f, s, z);
}

BK_INLINE float rounding_error(const grid *g, float w) { return bk_quant_level(w / g->s, g->lo, g->hi) * g->s - w; }

/* Sum of |Q(w) - w|^2.4, in units that keep it within the range of f32. */
BK_CLONES static double clip_error(int64_t n, const double *w, const grid *g, float unit)
{
    double lane[BK_LANES] = {0};
    BK_LANE_LOOP(n, lane[l] += (double)bk_pow_2_4(__builtin_fabsf(rounding_error(g, (float)w[i])) * unit));
    return bk_tree_f64(lane);
}

BK_CLONES static void range_of(int64_t n, const double *w, double *lo, double *hi)
{
    *lo = *hi = w[0];
    for (int64_t i = 1; i < n; i++) {
        *lo = w[i] < *lo ? w[i] : *lo;
        *hi = w[i] > *hi ? w[i] : *hi;
    }
}

static grid fit(const bk_fit_steps_args *f, const double *w)
{
    double lo, hi;
    range_of(f->group, w, &lo, &hi);
    grid best = grid_of_range(f, lo, hi);
    if (!f->clip) return best;
    float unit = 1.0f / best.s;
    double least = clip_error(f->group, w, &best, unit);
    for (int i = 1; i < SHRINKS; i++) {
        double p = 1 - i / 100.0;
        grid g = grid_of_range(f, p * lo, p * hi);
        double error = clip_error(f->group, w, &g, unit);
        if (error < least) least = error, best = g;
    }
    return best;
}

static void keep_grid(const bk_fit_steps_args *f, int64_t at, grid g)
{
    ((float *)f->step)[at] = g.s;
    if (f->zero) ((float *)f->zero)[at] = g.z;
}

/* Per thread, so that its lines of cache are its own */
static size_t row_bytes(int64_t cols) { return bk_align(sizeof(double) * (size_t)cols); }

size_t bk_cpu_fit_steps_work(const bk_fit_steps_args *a) { return (size_t)omp_get_max_threads() * row_bytes(a->cols); }

bk_status bk_cpu_fit_steps(const bk_fit_steps_args *a, const bk_work *w)
{
    char *scratch = bk_cpu_scratch(w, bk_cpu_fit_steps_work(a));
    int64_t groups = a->cols / a->group;
    if (!scratch) return BK_ENOMEM;
#pragma omp parallel for schedule(static) if (BK_BIG(a->rows * a->cols))
    for (int64_t r = 0; r < a->rows; r++) {
        double *row = (double *)(void *)(scratch + (size_t)omp_get_thread_num() * row_bytes(a->cols));
        bk_cpu_widen(a->cols, (const float *)a->w + r * a->cols, row);
        for (int64_t g = 0; g < groups; g++) keep_grid(a, r * groups + g, fit(a, row + g * a->group));
    }
    return BK_OK;
}

/* --- GPTQ --- */

/* Some rows as f64, columns in their order, and the errors of a block of columns. */
typedef struct panel {
    int64_t first, rows;
    double *w, *e;
} panel;

static int64_t column_of(const bk_gptq_args *a, int64_t i) { return a->order ? a->order[i] : i; }

static void load_panel(const bk_gptq_args *a, const panel *p)
{
    int64_t cols = a->f.cols;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < cols; i++) p->w[r * cols + i] = (double)((const float *)a->w)[(p->first + r) * cols + column_of(a, i)];
}

static void store_panel(const bk_gptq_args *a, const panel *p)
{
    int64_t cols = a->f.cols;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < cols; i++) ((float *)a->w)[(p->first + r) * cols + column_of(a, i)] = (float)p->w[r * cols + i];
}

/* A group whose steps are fitted in a block must not go on behind it, where errors are still to be taken off: blocks hold whole groups, or
 * groups whole blocks. */
static int64_t block_end(const bk_gptq_args *a, int64_t i)
{
    int64_t group = a->f.group, end = i + BLOCK;
    if (a->refit && group < BLOCK) end = i + BLOCK / group * group;
    if (a->refit && group > BLOCK) end = bk_min_i64(end, (i / group + 1) * group);
    return bk_min_i64(end, a->f.cols);
}

BK_CLONES static void take_off(int64_t n, double e, const double *u, double *restrict w)
{
    for (int64_t i = 0; i < n; i++) w[i] -= e * u[i];
}

/* Grid of the i-th column in row r */
static grid grid_at(const bk_gptq_args *a, int64_t r, int64_t i, const double *w)
{
    int64_t group = a->f.group, at = r * (a->f.cols / group) + (a->refit ? i : column_of(a, i)) / group;
    if (a->refit && i % group == 0) keep_grid(&a->f, at, fit(&a->f, w + i));
    float zero = a->f.zero ? ((const float *)a->f.zero)[at] : 0.0f;
    return grid_of(&a->f, ((const float *)a->f.step)[at], zero);
}

/* Columns i .. end-1 of one row w; e gets their errors. */
static void round_row(const bk_gptq_args *a, int64_t r, int64_t i, int64_t end, double *w, double *e)
{
    int64_t cols = a->f.cols;
    for (int64_t k = i; k < end; k++) {
        grid g = grid_at(a, r, k, w);
        float level = bk_quant_level((float)w[k] / g.s, g.lo, g.hi);
        double q = (double)(level * g.s), error = (w[k] - q) / (a->u ? a->u[k * cols + k] : 1);
        a->loss[r] += error * error / 2;
        w[k] = q;
        e[k - i] = error;
        if (a->codes) a->codes[r * cols + column_of(a, k)] = bk_quant_code(level + g.z);
        if (a->u) take_off(end - k - 1, error, a->u + k * cols + k + 1, w + k + 1);
    }
}

static void round_panel(const bk_gptq_args *a, const panel *p)
{
    int64_t cols = a->f.cols;
    for (int64_t r = 0; r < p->rows; r++) a->loss[p->first + r] = 0;
    for (int64_t i = 0, end; i < cols; i = end) {
        end = block_end(a, i);
        for (int64_t r = 0; r < p->rows; r++) round_row(a, p->first + r, i, end, p->w + r * cols, p->e + r * BLOCK);
        if (a->u && end < cols)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)p->rows, (int)(cols - end), (int)(end - i), -1, p->e, BLOCK,
                        a->u + i * cols + end, (int)cols, 1, p->w + end, (int)cols);
    }
}

static int64_t panel_rows(int64_t rows) { return bk_max_i64(PANEL_MIN, bk_min_i64(PANEL_MAX, bk_tiles(rows, PANELS))); }
static size_t panel_bytes(const bk_gptq_args *a) { return bk_align(sizeof(double) * (size_t)(panel_rows(a->f.rows) * (a->f.cols + BLOCK))); }

size_t bk_cpu_gptq_work(const bk_gptq_args *a) { return (size_t)omp_get_max_threads() * panel_bytes(a); }

bk_status bk_cpu_gptq(const bk_gptq_args *a, const bk_work *w)
{
    char *scratch = bk_cpu_scratch(w, bk_cpu_gptq_work(a));
    int64_t rows = panel_rows(a->f.rows);
    if (!scratch) return BK_ENOMEM;
#pragma omp parallel for schedule(dynamic)
    for (int64_t first = 0; first < a->f.rows; first += rows) {
        double *own = (double *)(void *)(scratch + (size_t)omp_get_thread_num() * panel_bytes(a));
        panel p = {first, bk_min_i64(rows, a->f.rows - first), own, own + rows * a->f.cols};
        load_panel(a, &p);
        round_panel(a, &p);
        store_panel(a, &p);
    }
    return BK_OK;
}
