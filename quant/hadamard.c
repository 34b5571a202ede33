#include "quant/hadamard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/galois.h"

/* ---- base matrices ---- */

/* Paley's core: the border, then J[a, b] = chi(a - b). The column under the corner has the sign that makes it skew (kind 1) or
 * symmetric (kind 2). */
static int core(const bk_galois *f, const int8_t *chi, bk_hadamard_kind kind, int64_t i, int64_t j)
{
    if (i == 0) return j == 0 ? 0 : 1;
    if (j == 0) return kind == BK_HADAMARD_PALEY1 ? -1 : 1;
    return chi[bk_galois_sub(f, i - 1, j - 1)];
}

static bool paley(bk_hadamard_kind kind, int64_t q, int64_t order, float *h)
{
    bk_galois f;
    int8_t *chi = malloc((size_t)q);
    if (!chi || !bk_galois_init(&f, q)) {
        free(chi);
        return false;
    }
    bk_galois_character(&f, chi);
    for (int64_t i = 0; i <= q; i++) {
        for (int64_t j = 0; j <= q; j++) {
            int c = core(&f, chi, kind, i, j), one = i == j;
            if (kind == BK_HADAMARD_PALEY1) {
                h[i * order + j] = (float)(c + one);
                continue;
            }
            float *h2 = h + 2 * i * order + 2 * j; /* c (x) [1 1; 1 -1] + one (x) [1 -1; -1 -1] */
            h2[0] = (float)(c + one);
            h2[1] = h2[order] = (float)(c - one);
            h2[order + 1] = (float)(-c - one);
        }
    }
    free(chi);
    return true;
}

/* Williamson's array of order 172 from four circulants whose first rows are constant on the cosets of the sixth roots of unity modulo 43. */
static void williamson172(float *h)
{
    enum { M = 43, N = 172, ROOT = 3 };
    static const int sign[4][7] = {{1, 1, 1, 1, -1, -1, -1}, {-1, 1, 1, -1, -1, 1, -1}, {-1, 1, -1, 1, 1, 1, -1}, {-1, -1, 1, 1, -1, 1, 1}};
    static const int part[4][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}}; /* which circulant */
    static const int turn[4][4] = {{1, 1, 1, 1}, {-1, 1, -1, 1}, {-1, 1, 1, -1}, {-1, -1, 1, 1}};
    int index[M] = {0};
    for (int e = 0, power = 1; e < M - 1; e++, power = power * ROOT % M) index[power] = e;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            int a = i / M, b = j / M, x = (j % M - i % M + M) % M;
            h[i * N + j] = (float)(turn[a][b] * (x == 0 ? 1 : sign[part[a][b]][index[x] % 7]));
        }
    }
}

/* ---- the search for a construction ---- */

typedef struct recipe {
    bk_hadamard_kind kind;
    int64_t base, q;
} recipe;

/* How to reach order n as base 2^j; false when no rule does. */
static bool find_recipe(int64_t n, recipe *r)
{
    int64_t odd = n;
    while (odd % 2 == 0) odd /= 2;
    *r = (recipe){BK_HADAMARD_SYLVESTER, 1, 0};
    if (odd == 1) return true;
    for (int64_t b = 4 * odd; n % b == 0 && b <= BK_HADAMARD_MAX_BASE; b *= 2) {
        bk_galois f;
        r->base = b;
        r->q = b - 1;
        r->kind = BK_HADAMARD_PALEY1;
        if (r->q % 4 == 3 && bk_galois_init(&f, r->q)) return true;
        r->q = b / 2 - 1;
        r->kind = BK_HADAMARD_PALEY2;
        if (r->q % 4 == 1 && bk_galois_init(&f, r->q)) return true;
    }
    *r = (recipe){BK_HADAMARD_WILLIAMSON, 172, 0};
    return n == 172;
}

bool bk_hadamard_exists(int64_t order)
{
    recipe r;
    return order >= 1 && order <= BK_HADAMARD_MAX_ORDER && find_recipe(order, &r);
}

int64_t bk_group_size(int64_t n)
{
    enum { MOST = 128, LEAST = 32, FROM = 64, TO = 192 };
    int64_t power = 1;
    while (power < MOST && n % (2 * power) == 0) power *= 2;
    if (power >= LEAST) return power;
    for (int64_t d = TO; d >= FROM; d--)
        if (n % d == 0 && bk_hadamard_exists(d)) return d;
    return n;
}

static void describe(bk_hadamard_plan *p, int64_t q, const char *why)
{
    char base[64], blocks[112] = "";
    static const char *const kind[] = {"Sylvester", "Paley I", "Paley II", "Williamson"};
    if (q) snprintf(base, sizeof base, ", base %s over GF(%lld)", kind[p->kind], (long long)q);
    else snprintf(base, sizeof base, ", %s", kind[p->kind]);
    if (p->blocks > 1) snprintf(blocks, sizeof blocks, "block-diagonal, %s: %lld blocks of ", why, (long long)p->blocks);
    snprintf(p->note, sizeof p->note, "%lld: %s%lld x %lld%s", (long long)p->n, blocks, (long long)p->base, (long long)p->pow2, base);
}

/* H becomes (H diag(h_0))^T, h_0 its first row: the first column is ones. */
static void ones_first(int64_t n, float *h)
{
    for (int64_t j = 0; j < n; j++)
        if (h[j] < 0)
            for (int64_t i = 0; i < n; i++) h[i * n + j] = -h[i * n + j];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = i + 1; j < n; j++) {
            float above = h[i * n + j];
            h[i * n + j] = h[j * n + i];
            h[j * n + i] = above;
        }
    }
}

static bk_status build_plan(int64_t n, int64_t blocks, const recipe *r, bool ones, const char *why, bk_hadamard_plan **out, bk_error *err)
{
    bk_hadamard_plan *p = calloc(1, sizeof *p);
    float *h = r->base > 1 ? malloc((size_t)(r->base * r->base) * sizeof *h) : NULL;
    bool built = p && (h || r->base == 1);
    if (built && r->kind == BK_HADAMARD_WILLIAMSON) williamson172(h);
    else if (built && r->base > 1) built = paley(r->kind, r->q, r->base, h);
    if (!built) {
        free(p);
        free(h);
        return bk_fail(err, BK_ENOMEM, "no memory for the Hadamard matrix of order %lld", (long long)r->base);
    }
    if (ones && h) ones_first(r->base, h);
    p->n = n;
    p->blocks = blocks;
    p->base = r->base;
    p->pow2 = n / blocks / r->base;
    p->kind = r->kind;
    p->scale = 1 / sqrt((double)(n / blocks));
    p->h = h;
    describe(p, r->q, why);
    *out = p;
    return BK_OK;
}

static bk_status check_order(int64_t n, bk_error *err)
{
    if (n >= 1 && n <= BK_HADAMARD_MAX_ORDER) return BK_OK;
    return bk_fail(err, BK_EINVAL, "a Hadamard transform of order %lld: the order must lie in 1 .. %lld", (long long)n,
                   (long long)BK_HADAMARD_MAX_ORDER);
}

bk_status bk_hadamard_create(int64_t n, bk_hadamard_plan **out, bk_error *err)
{
    *out = NULL;
    BK_TRY(check_order(n, err));
    recipe r = {0};
    int64_t blocks = 1;
    while (n % blocks || !find_recipe(n / blocks, &r)) blocks++; /* ends at blocks = n, order 1 */
    return build_plan(n, blocks, &r, false, "no Hadamard matrix of this order is known here", out, err);
}

bk_status bk_hadamard_create_blocks(int64_t n, int64_t order, bk_hadamard_plan **out, bk_error *err)
{
    recipe r;
    *out = NULL;
    BK_TRY(check_order(n, err));
    BK_TRY(check_order(order, err));
    if (n % order) return bk_fail(err, BK_EINVAL, "%lld channels cannot be cut into groups of %lld", (long long)n, (long long)order);
    if (!find_recipe(order, &r))
        return bk_fail(err, BK_EINVAL, "no Hadamard matrix of order %lld is known here; choose another size of groups", (long long)order);
    return build_plan(n, n / order, &r, true, "as asked for", out, err);
}

void bk_hadamard_free(bk_hadamard_plan *p)
{
    if (!p) return;
    free((float *)p->h);
    free(p);
}

/* ---- application ---- */

enum { LANES = 8 }; /* vectors that are transformed side by side, so that the inner loops run along registers */

/* Butterflies on one run of pow2 entries. */
static void butterflies(int64_t pow2, double (*x)[LANES])
{
    for (int64_t half = 1; half < pow2; half *= 2) {
        for (int64_t i = 0; i < pow2; i += 2 * half) {
            for (int64_t j = i; j < i + half; j++) {
                for (int l = 0; l < LANES; l++) {
                    double a = x[j][l], b = x[j + half][l];
                    x[j][l] = a + b;
                    x[j + half][l] = a - b;
                }
            }
        }
    }
}

/* H_base, or its transpose, across the runs of one block, at one position in the run. */
static void across(const bk_hadamard_plan *p, bool transpose, double (*x)[LANES], double (*column)[LANES])
{
    int64_t row = transpose ? 1 : p->base, step = transpose ? p->base : 1;
    for (int64_t c = 0; c < p->base; c++) memcpy(column[c], x[c * p->pow2], sizeof column[c]);
    for (int64_t r = 0; r < p->base; r++) {
        double sum[LANES] = {0};
        for (int64_t c = 0; c < p->base; c++) {
            double h = (double)p->h[r * row + c * step];
            for (int l = 0; l < LANES; l++) sum[l] += h * column[c][l];
        }
        memcpy(x[r * p->pow2], sum, sizeof sum);
    }
}

/* M or its transpose on a panel [n][LANES]; `column` has room for base entries. */
static void transform_panel(const bk_hadamard_plan *p, bool transpose, double (*x)[LANES], double (*column)[LANES])
{
    for (int64_t b = 0; b < p->blocks; b++) {
        double(*block)[LANES] = x + b * p->base * p->pow2;
        for (int64_t r = 0; r < p->base; r++) butterflies(p->pow2, block + r * p->pow2);
        if (p->base == 1) continue;
        for (int64_t j = 0; j < p->pow2; j++) across(p, transpose, block + j, column);
    }
    for (int64_t i = 0; i < p->n; i++)
        for (int l = 0; l < LANES; l++) x[i][l] *= p->scale;
}

static double sign_of(const int8_t *s, int64_t i)
{
    return s ? (double)s[i] : 1.0;
}

/* Panels of LANES vectors are gathered into f64, transformed and put back; the signs come first on the way there, last on the way back. */
#define DEFINE_TRANSFORM(TYPE)                                                                                              \
    static bk_status transform_##TYPE(const bk_hadamard_plan *p, bool back, const int8_t *s, TYPE *x, int64_t count,        \
                                      int64_t vector_stride, int64_t element_stride, bk_error *err) {                       \
        double(*panel)[LANES] = calloc((size_t)(p->n + p->base), sizeof *panel);                                            \
        if (!panel) return bk_fail(err, BK_ENOMEM, "no memory for a Hadamard transform of order %lld", (long long)p->n);    \
        for (int64_t v = 0; v < count; v += LANES) {                                                                        \
            int64_t lanes = count - v < LANES ? count - v : LANES;                                                          \
            TYPE *from = x + v * vector_stride;                                                                             \
            for (int64_t i = 0; i < p->n; i++) {                                                                            \
                double sign = back ? 1.0 : sign_of(s, i);                                                                   \
                for (int64_t l = 0; l < lanes; l++)                                                                         \
                    panel[i][l] = sign * (double)from[l * vector_stride + i * element_stride];                              \
            }                                                                                                               \
            transform_panel(p, back, panel, panel + p->n);                                                                  \
            for (int64_t i = 0; i < p->n; i++) {                                                                            \
                double sign = back ? sign_of(s, i) : 1.0;                                                                   \
                for (int64_t l = 0; l < lanes; l++)                                                                         \
                    from[l * vector_stride + i * element_stride] = (TYPE)(sign * panel[i][l]);                              \
            }                                                                                                               \
        }                                                                                                                   \
        free(panel);                                                                                                        \
        return BK_OK;                                                                                                       \
    }

DEFINE_TRANSFORM(float)
DEFINE_TRANSFORM(double)

bk_status bk_hadamard_apply(const bk_hadamard_plan *p, const int8_t *s, float *x, int64_t count, int64_t vector_stride,
                            int64_t element_stride, bk_error *err)
{
    return transform_float(p, false, s, x, count, vector_stride, element_stride, err);
}

bk_status bk_hadamard_apply_f64(const bk_hadamard_plan *p, const int8_t *s, double *x, int64_t count, int64_t vector_stride,
                                int64_t element_stride, bk_error *err)
{
    return transform_double(p, false, s, x, count, vector_stride, element_stride, err);
}

bk_status bk_hadamard_invert_f64(const bk_hadamard_plan *p, const int8_t *s, double *x, int64_t count, int64_t vector_stride,
                                 int64_t element_stride, bk_error *err)
{
    return transform_double(p, true, s, x, count, vector_stride, element_stride, err);
}
