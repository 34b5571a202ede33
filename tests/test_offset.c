/* Outliers turned into offsets, against golden vectors: the order of channels, rotations with a constant first row, the quantizer of groups. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backend.h"
#include "autograd/rng.h"
#include "quant/offset.h"
#include "tests/h5_golden.h"
#include "tests/suite.h"

static bk_golden *g;

static void open_file(void) { g = bk_golden_open("offq.h5"); }
static void close_file(void) { bk_golden_close(g); }

static void ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && (!err || err->code == BK_OK), "%s: %s", bk_status_name(st), err ? err->msg : "");
}

static void *room(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Largest difference. */
static void near(const double *got, const double *want, int64_t n, double tol, const char *what, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs(got[i] - want[i]) <= tol, "%s %s[%lld]: %.12g, want %.12g", what, name, (long long)i, got[i], want[i]);
}

/* ---- the order of channels ---- */

static void check_order(const char *name, const char *kind, bool zigzag)
{
    bk_error err = {0};
    int64_t n = bk_golden_count(g, "permutation/%s/scores", name), groups = bk_golden_attr_i64(g, "groups", "permutation/%s", name);
    const double *score = bk_golden_f64(g, "permutation/%s/scores", name), *ordered = bk_golden_f64(g, "permutation/%s/scores_%s", name, kind);
    const int64_t *want = bk_golden_i64(g, "permutation/%s/src_%s", name, kind);
    int32_t *src = room(n, sizeof *src);
    ok(bk_offset_order(score, n, groups, zigzag, src, &err), &err);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(src[i] == want[i], "%s, %s: channel %lld comes from %d, want %lld", name, kind, (long long)i, src[i], (long long)want[i]);
        ck_assert(score[src[i]] == ordered[i]);
    }
    free(src);
}

START_TEST(golden_orders)
{
    char **names = bk_golden_members(g, "permutation");
    int n = 0;
    for (; names[n]; n++) {
        check_order(names[n], "sorted", false);
        check_order(names[n], "zigzag", true);
    }
    ck_assert_int_ge(n, 3);
}
END_TEST

/* x' = x P */
START_TEST(golden_permutation_matrix)
{
    int64_t n = bk_golden_count(g, "permutation/paper/scores");
    bk_error err = {0};
    const double *score = bk_golden_f64(g, "permutation/paper/scores"), *p = bk_golden_f64(g, "permutation/paper/P_sorted");
    int32_t src[16];
    ck_assert_int_le(n, 16);
    ok(bk_offset_order(score, n, bk_golden_attr_i64(g, "groups", "permutation/paper"), false, src, &err), &err);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) ck_assert(p[i * n + j] == (i == src[j]));
}
END_TEST

START_TEST(the_example_of_the_paper)
{
    const double score[6] = {1, 2, 3, 4, 50, 60};
    const int sorted[6] = {5, 0, 1, 4, 2, 3}, zigzag[6] = {5, 0, 2, 4, 1, 3};
    bk_error err = {0};
    int32_t src[6];
    ok(bk_offset_order(score, 6, 2, false, src, &err), &err);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(src[i], sorted[i]);
    ok(bk_offset_order(score, 6, 2, true, src, &err), &err);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(src[i], zigzag[i]);
}
END_TEST

START_TEST(one_group_and_groups_of_one)
{
    const double score[4] = {2, 9, 4, 4};
    const int one[4] = {1, 0, 3, 2}, four[4] = {1, 2, 3, 0};
    bk_error err = {0};
    int32_t src[4];
    ok(bk_offset_order(score, 4, 1, true, src, &err), &err);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(src[i], one[i]);
    ok(bk_offset_order(score, 4, 4, false, src, &err), &err);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(src[i], four[i]);
}
END_TEST

START_TEST(a_score_that_is_no_number_is_refused)
{
    const double score[4] = {1, 2, NAN, 3};
    bk_error err = {0};
    int32_t src[4];
    ck_assert_int_eq(bk_offset_order(score, 4, 2, false, src, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "channel 2"));
}
END_TEST

/* ---- rotations with a constant first row ---- */

static void check_partial(const char *name)
{
    bk_error err = {0};
    bk_hadamard_plan *plan;
    int64_t size = bk_golden_attr_i64(g, "size", "partial_hadamard/%s", name),
            n = size * bk_golden_attr_i64(g, "groups", "partial_hadamard/%s", name);
    const int32_t *sign = bk_golden_i32(g, "partial_hadamard/%s/signs", name);
    int8_t *signs = room(n, 1);
    for (int64_t i = 0; i < n; i++) signs[i] = (int8_t)sign[i];
    ok(bk_hadamard_create_blocks(n, size, &plan, &err), &err);
    static const char *const from[] = {"x", "unit"}, *const to[] = {"y", "unit_y"};
    for (int k = 0; k < 2; k++) {
        int64_t count = bk_golden_count(g, "partial_hadamard/%s/%s", name, from[k]);
        double *x = bk_golden_f64(g, "partial_hadamard/%s/%s", name, from[k]);
        ok(bk_hadamard_apply_f64(plan, signs, x, count / n, n, 1, &err), &err);
        near(x, bk_golden_f64(g, "partial_hadamard/%s/%s", name, to[k]), count, 1e-12, name, to[k]);
    }
    double *dense = room(n * n, sizeof *dense);
    for (int64_t i = 0; i < n; i++) dense[i * n + i] = 1;
    ok(bk_hadamard_apply_f64(plan, signs, dense, n, n, 1, &err), &err);
    near(dense, bk_golden_f64(g, "partial_hadamard/%s/H1", name), n * n, 1e-14, name, "H1");
    free(dense), free(signs);
    bk_hadamard_free(plan);
}

START_TEST(golden_partial_hadamards)
{
    char **names = bk_golden_members(g, "partial_hadamard");
    int n = 0;
    for (; names[n]; n++) check_partial(names[n]);
    ck_assert_int_ge(n, 3);
}
END_TEST

/* The largest entry of |Q Q^T - I|. */
static double bend(const double *q, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = -(i == j);
            for (int64_t k = 0; k < n; k++) sum += q[i * n + k] * q[j * n + k];
            worst = fmax(worst, fabs(sum));
        }
    return worst;
}

static const int64_t partial[][2] = {{8, 8}, {128, 128}, {576, 64}, {1536, 128}, {24, 12}, {72, 36}, {172, 172}, {56, 28}};

START_TEST(the_first_channel_of_a_group_becomes_a_constant)
{
    int64_t n = partial[_i][0], size = partial[_i][1];
    bk_error err = {0};
    bk_hadamard_plan *plan;
    double *x = room(n, sizeof *x);
    int8_t *signs = room(n, 1);
    bk_offset_signs(signs, n, size, false, 3, 4);
    ok(bk_hadamard_create_blocks(n, size, &plan, &err), &err);
    x[n - size] = 1;
    ok(bk_hadamard_apply_f64(plan, signs, x, 1, n, 1, &err), &err);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(x[i] == (i < n - size ? 0 : 1 / sqrt((double)size)), "order %lld of %lld: channel %lld is %.17g",
                      (long long)size, (long long)n, (long long)i, x[i]);
    free(x), free(signs);
    bk_hadamard_free(plan);
}
END_TEST

START_TEST(groups_have_signs_of_their_own_unless_they_shall_be_alike)
{
    int8_t a[256], again[256], other[256];
    bk_offset_signs(a, 256, 64, false, 5, 1);
    bk_offset_signs(again, 256, 64, false, 5, 1);
    bk_offset_signs(other, 256, 64, false, 6, 1);
    ck_assert_mem_eq(a, again, 256);
    ck_assert_mem_ne(a, other, 256);
    ck_assert_mem_ne(a, a + 64, 64);
    int minus = 0;
    for (int i = 0; i < 256; i++) {
        ck_assert(a[i] == 1 || (a[i] == -1 && i % 64));
        minus += a[i] < 0;
    }
    ck_assert(minus > 90 && minus < 165);
    bk_offset_signs(again, 256, 64, true, 5, 1);
    for (int i = 0; i < 256; i++) ck_assert_int_eq(again[i], a[i % 64]);
}
END_TEST

START_TEST(gaussian_rotations_begin_with_a_constant)
{
    enum { N = 90 };
    static double h[N * N], other[N * N];
    bk_offset_gaussian(h, N, 7, 2);
    bk_offset_gaussian(other, N, 8, 2);
    for (int i = 0; i < N; i++) ck_assert(h[i] == 1 / sqrt((double)N) && other[i] == h[i]);
    ck_assert_double_lt(bend(h, N), 1e-12);
    ck_assert(fabs(h[N] - other[N]) > 1e-6);
}
END_TEST

/* u_k with src[first of a group] = k becomes constant on that group and zero elsewhere, whatever the rotation. */
static void check_compose(const bk_hadamard_plan *plan, int64_t n, int64_t size)
{
    bk_error err = {0};
    double *u = room(n * n, sizeof *u), *q = room(n * n, sizeof *q), *row = room(n, sizeof *row);
    int32_t *src = room(n, sizeof *src);
    int8_t *signs = room(n, 1);
    bk_offset_gaussian(u, n, 3, 3); /* any orthogonal matrix */
    for (int64_t i = 0; i < n; i++) src[i] = (int32_t)((7 * i + 2) % n);
    bk_offset_signs(signs, n, size, false, 1, 1);
    ok(bk_offset_compose(&(bk_offset_rotation){n, size, plan, signs, false, 5, 6}, u, src, q, &err), &err);
    ck_assert_double_lt(bend(q, n), 1e-12);
    for (int64_t group = 0; group < n / size; group++) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) row[j] += u[i * n + src[group * size]] * q[i * n + j];
        for (int64_t j = 0; j < n; j++) ck_assert_double_eq_tol(row[j], j / size == group ? 1 / sqrt((double)size) : 0, 1e-12);
    }
    free(u), free(q), free(row), free(src), free(signs);
}

START_TEST(directions_become_constants_of_their_groups)
{
    bk_error err = {0};
    bk_hadamard_plan *plan;
    ok(bk_hadamard_create_blocks(36, 12, &plan, &err), &err);
    check_compose(plan, 36, 12);
    check_compose(NULL, 36, 12);
    check_compose(NULL, 15, 5);
    bk_hadamard_free(plan);
}
END_TEST

START_TEST(gaussian_groups_differ_unless_they_shall_be_alike)
{
    enum { N = 8, S = 4 };
    double u[N * N] = {0}, q[N * N];
    const int32_t src[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    bk_error err = {0};
    for (int i = 0; i < N; i++) u[i * N + i] = 1;
    ok(bk_offset_compose(&(bk_offset_rotation){.n = N, .group = S, .seed = 5, .stream = 6}, u, src, q, &err), &err);
    for (int j = 0; j < S; j++) ck_assert(fabs(q[N + j] - q[(S + 1) * N + S + j]) > 1e-9);
    ok(bk_offset_compose(&(bk_offset_rotation){.n = N, .group = S, .alike = true, .seed = 5, .stream = 6}, u, src, q, &err), &err);
    for (int j = 0; j < S; j++) ck_assert(q[N + j] == q[(S + 1) * N + S + j]);
}
END_TEST

/* ---- the most extreme token ---- */

START_TEST(golden_top_tokens)
{
    const int64_t *want = bk_golden_i64(g, "top1_pca/selected");
    const double *most = bk_golden_f64(g, "top1_pca/token_max");
    float *x = bk_golden_f32(g, "top1_pca/x"), largest;
    for (int s = 0; s < 12; s++) {
        ck_assert_int_eq(bk_top_token(x + s * 20 * 32, 20, 32, 32, &largest), want[s]);
        ck_assert_double_eq_tol((double)largest, most[s * 20 + want[s]], 1e-6);
    }
}
END_TEST

START_TEST(top_tokens_may_lie_apart)
{
    const float x[12] = {1, -2, 9, 9, 3, 1, 9, 9, -3, 0, 9, 9};
    float largest;
    ck_assert_int_eq(bk_top_token(x, 3, 4, 2, &largest), 1); /* 3 and -3: the first */
    ck_assert(largest == 3);
    ck_assert_int_eq(bk_top_token((const float[]){0, 0}, 2, 1, 1, &largest), 0);
    ck_assert(largest == 0);
}
END_TEST

/* Covariance and its eigenvectors by the slots that OffQ uses. */
static void check_pca(const char *group, const double *rows, int64_t n_rows, const char *covariance, const char *values, const char *first)
{
    enum { N = 32 };
    const bk_backend *be = bk_backend_ref(BK_F64);
    double c[N * N] = {0}, value[N], vector[N * N], scratch[N * N];
    bk_work work = {scratch, sizeof scratch};
    ok(be->k.gram(&(bk_gram_args){n_rows, N, 1 / (double)n_rows, rows, c}, &work), NULL);
    ok(be->k.eigh(&(bk_eigh_args){N, c, value, vector}, &work), NULL);
    if (covariance) near(c, bk_golden_f64(g, "%s/%s", group, covariance), N * N, 1e-10, group, covariance);
    near(value, bk_golden_f64(g, "%s/%s", group, values), N, 1e-10, group, values);
    for (int i = 0; i < N; i++) ck_assert_double_eq_tol(vector[i * N], bk_golden_f64(g, "%s/%s", group, first)[i], 1e-9);
    if (!covariance) return;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) ck_assert_double_eq_tol(vector[i * N + k], bk_golden_f64(g, "%s/eigenvectors", group)[i * 4 + k], 1e-9);
}

START_TEST(golden_pca_of_top_tokens)
{
    const double *x = bk_golden_f64(g, "top1_pca/x");
    const int64_t *selected = bk_golden_i64(g, "top1_pca/selected");
    double rows[12 * 32];
    for (int s = 0; s < 12; s++) memcpy(rows + s * 32, x + (s * 20 + selected[s]) * 32, 32 * sizeof *x);
    check_pca("top1_pca", rows, 12, "covariance", "eigenvalues", "first_eigenvector");
    check_pca("top1_pca", x, 240, NULL, "all_token_eigenvalues", "all_token_first_eigenvector");
}
END_TEST

/* ---- the quantizer of groups with an offset ---- */

enum { ROOM = 8192 };

typedef struct quantized {
    double y[ROOM], scale[ROOM], zero[ROOM];
    int32_t codes[ROOM];
} quantized;

/* One group a row; f32 where the backend is. A clip about the middle of the range is a factor for each end. */
static void quantize(const bk_backend *be, const double *x, int64_t rows, int64_t cols, int bits, double clip, quantized *q)
{
    bool wide = be->dtype == BK_F64;
    for (int64_t r = 0; r < rows; r++) {
        double lo = x[r * cols], hi = lo, d[2], f64[3][ROOM];
        float f[2], f32[3][ROOM];
        int64_t at = r * cols;
        for (int64_t i = 0; i < cols; i++) {
            lo = fmin(lo, x[at + i]), hi = fmax(hi, x[at + i]);
            f32[0][i] = (float)(f64[0][i] = x[at + i]);
        }
        f[0] = (float)(d[0] = ((hi + lo) / 2 + clip * (hi - lo) / 2) / hi);
        f[1] = (float)(d[1] = ((hi + lo) / 2 - clip * (hi - lo) / 2) / lo);
        bk_dynquant_fwd_args a = {.rows = 1, .cols = cols, .group = cols, .qmax = (1 << bits) - 1, .codes = q->codes + at};
        a.x = wide ? (void *)f64[0] : f32[0], a.y = wide ? (void *)f64[1] : f32[1], a.step = wide ? (void *)f64[2] : f32[2];
        a.zero = wide ? (void *)(f64[2] + 1) : f32[2] + 1;
        if (clip < 1) a.gamma = wide ? (void *)d : f, a.beta = wide ? (void *)(d + 1) : f + 1;
        char scratch[1 << 16];
        ok(be->k.dynquant_fwd(&a, &(bk_work){scratch, sizeof scratch}), NULL);
        for (int64_t i = 0; i < cols; i++) q->y[at + i] = wide ? f64[1][i] : (double)f32[1][i];
        q->scale[r] = wide ? f64[2][0] : (double)f32[2][0];
        q->zero[r] = wide ? f64[2][1] : (double)f32[2][1];
    }
}

static void check_group(const bk_backend *be, const char *name)
{
    static quantized q;
    int64_t rows = bk_golden_count(g, "group_quant/%s/scale", name), n = bk_golden_count(g, "group_quant/%s/x", name);
    const double *x = bk_golden_f64(g, "group_quant/%s/x", name), *y = bk_golden_f64(g, "group_quant/%s/x_dequant", name);
    const double *scale = bk_golden_f64(g, "group_quant/%s/scale", name), *zero = bk_golden_f64(g, "group_quant/%s/zero", name);
    const double *offset = bk_golden_f64(g, "group_quant/%s/offset", name);
    const int32_t *codes = bk_golden_i32(g, "group_quant/%s/codes", name);
    double square = 0, most = 0, tol = be->dtype == BK_F64 ? 1e-12 : 1e-6;
    ck_assert_int_le(n, ROOM);
    quantize(be, x, rows, n / rows, (int)bk_golden_attr_i64(g, "bits", "group_quant/%s", name),
             bk_golden_attr(g, "clip", "group_quant/%s", name), &q);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = i / (n / rows);
        ck_assert_msg(q.codes[i] == codes[i], "%s on %s: code %lld is %d, want %d", name, be->name, (long long)i, q.codes[i], codes[i]);
        ck_assert_msg(fabs(q.y[i] - y[i]) <= tol * fabs(offset[r]) + tol, "%s on %s: value %lld is %g, want %g", name,
                      be->name, (long long)i, q.y[i], y[i]);
        square += (q.y[i] - x[i]) * (q.y[i] - x[i]);
        most = fmax(most, fabs(q.y[i] - x[i]));
    }
    for (int64_t r = 0; r < rows; r++) {
        ck_assert(q.zero[r] == zero[r]);
        ck_assert_double_eq_tol(q.scale[r], scale[r], tol * scale[r]);
        ck_assert_double_eq_tol(-q.scale[r] * q.zero[r], offset[r], 2 * tol * fabs(offset[r]) + 1e-300);
    }
    if (be->dtype != BK_F64) return;
    ck_assert_double_eq_tol(sqrt(square / (double)n), bk_golden_attr(g, "rmse", "group_quant/%s", name), 1e-10);
    ck_assert_double_eq_tol(most, bk_golden_attr(g, "max_error", "group_quant/%s", name), 1e-10);
}

/* N(10, 1), 128 of them span about 5.1: 15 steps, each with an error of step / sqrt(12). A zero point kept in 0 .. 15 leaves codes for 0 .. 5.1 alone. */
START_TEST(a_bounded_zero_point_clips_an_offset)
{
    enum { ROWS = 64, S = 128, N = ROWS * S };
    static float x[N], y[2][N], zero[2][ROWS];
    double square[2] = {0};
    for (int i = 0; i < N; i++) x[i] = 10 + (float)bk_rng_normal(1, BK_RNG_TEST, (uint64_t)i);
    for (int bounded = 0; bounded < 2; bounded++) {
        bk_dynquant_fwd_args a = {.rows = ROWS, .cols = S, .group = S, .qmax = 15, .bounded = bounded, .x = x, .y = y[bounded], .zero = zero[bounded]};
        ok(bk_backend_cpu()->k.dynquant_fwd(&a, NULL), NULL);
        for (int i = 0; i < N; i++) square[bounded] += pow((double)y[bounded][i] - (double)x[i], 2);
    }
    ck_assert_double_eq_tol(sqrt(square[0] / N), 5.1 / 15 / sqrt(12), 0.005);
    ck_assert_double_eq_tol(sqrt(square[1] / N), 10 - 5.1, 0.3);
    for (int r = 0; r < ROWS; r++) ck_assert(zero[0][r] < -10 && zero[1][r] == 0);
}
END_TEST

START_TEST(golden_groups_with_an_offset)
{
    const bk_backend *const be[] = {bk_backend_ref(BK_F64), bk_backend_ref(BK_F32), bk_backend_cpu()};
    char **names = bk_golden_members(g, "group_quant");
    int n = 0;
    for (; names[n]; n++) check_group(be[_i], names[n]);
    ck_assert_int_ge(n, 9);
}
END_TEST

/* ---- all of it, of full rank ---- */

START_TEST(golden_composite)
{
    enum { N = 16, ROWS = 48, S = 4 };
    bk_error err = {0};
    const double *x = bk_golden_f64(g, "composite/x"), *u1 = bk_golden_f64(g, "composite/U1"), *q1 = bk_golden_f64(g, "composite/Q1");
    const float *x32 = bk_golden_f32(g, "composite/x");
    const int64_t *selected = bk_golden_i64(g, "composite/selected"), *want = bk_golden_i64(g, "composite/src");
    const int32_t *sign = bk_golden_i32(g, "composite/signs");
    double rows[ROWS * N], c[N * N] = {0}, value[N], u[N * N], scratch[N * N], q[N * N], turned[ROWS * N] = {0};
    int32_t src[N];
    int8_t signs[N];
    float largest;
    int64_t tokens = bk_golden_count(g, "composite/x") / ROWS / N;
    for (int s = 0; s < ROWS; s++) {
        ck_assert_int_eq(bk_top_token(x32 + s * tokens * N, tokens, N, N, &largest), selected[s]);
        memcpy(rows + s * N, x + (s * tokens + selected[s]) * N, N * sizeof *x);
    }
    near(rows, bk_golden_f64(g, "composite/rows"), ROWS * N, 0, "composite", "rows");
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_work work = {scratch, sizeof scratch};
    ok(be->k.gram(&(bk_gram_args){ROWS, N, 1 / (double)ROWS, rows, c}, &work), NULL);
    near(c, bk_golden_f64(g, "composite/covariance"), N * N, 1e-10, "composite", "covariance");
    ok(be->k.eigh(&(bk_eigh_args){N, c, value, u}, &work), NULL);
    near(value, bk_golden_f64(g, "composite/eigenvalues"), N, 1e-10, "composite", "eigenvalues");
    near(u, u1, N * N, 1e-9, "composite", "U1");
    ok(bk_offset_order(value, N, N / S, bk_golden_attr_i64(g, "zigzag", "composite") != 0, src, &err), &err);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(src[i], want[i]);
        signs[i] = (int8_t)sign[i];
    }
    bk_hadamard_plan *plan;
    ok(bk_hadamard_create_blocks(N, S, &plan, &err), &err);
    ok(bk_offset_compose(&(bk_offset_rotation){N, S, plan, signs, false, 0, 0}, u1, src, q, &err), &err);
    near(q, q1, N * N, 1e-12, "composite", "Q1");
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) turned[r * N + j] += rows[r * N + i] * q[i * N + j];
    near(turned, bk_golden_f64(g, "composite/rows_Q1"), ROWS * N, 1e-10, "composite", "rows_Q1");
    bk_hadamard_free(plan);
}
END_TEST

START_TEST(golden_composite_quantized)
{
    const double *y = bk_golden_f64(g, "composite/quant/x_dequant"), *zero = bk_golden_f64(g, "composite/quant/zero");
    const int32_t *codes = bk_golden_i32(g, "composite/quant/codes");
    int64_t groups = bk_golden_count(g, "composite/quant/scale"), n = bk_golden_count(g, "composite/quant/codes");
    static quantized q;
    ck_assert_int_le(n, ROOM);
    quantize(bk_backend_ref(BK_F64), bk_golden_f64(g, "composite/rows_Q1"), groups, n / groups, 4, 1, &q);
    for (int64_t i = 0; i < n; i++) ck_assert(q.codes[i] == codes[i] && fabs(q.y[i] - y[i]) < 1e-10);
    for (int64_t r = 0; r < groups; r++) ck_assert(q.zero[r] == zero[r]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offset");
    TCase *tc = tcase_create("offset");
    tcase_add_checked_fixture(tc, open_file, close_file);
    tcase_add_test(tc, golden_orders);
    tcase_add_test(tc, golden_permutation_matrix);
    tcase_add_test(tc, the_example_of_the_paper);
    tcase_add_test(tc, one_group_and_groups_of_one);
    tcase_add_test(tc, a_score_that_is_no_number_is_refused);
    tcase_add_test(tc, golden_partial_hadamards);
    tcase_add_loop_test(tc, the_first_channel_of_a_group_becomes_a_constant, 0, sizeof partial / sizeof *partial);
    tcase_add_test(tc, groups_have_signs_of_their_own_unless_they_shall_be_alike);
    tcase_add_test(tc, gaussian_rotations_begin_with_a_constant);
    tcase_add_test(tc, directions_become_constants_of_their_groups);
    tcase_add_test(tc, gaussian_groups_differ_unless_they_shall_be_alike);
    tcase_add_test(tc, golden_top_tokens);
    tcase_add_test(tc, top_tokens_may_lie_apart);
    tcase_add_test(tc, golden_pca_of_top_tokens);
    tcase_add_test(tc, a_bounded_zero_point_clips_an_offset);
    tcase_add_loop_test(tc, golden_groups_with_an_offset, 0, 3);
    tcase_add_test(tc, golden_composite);
    tcase_add_test(tc, golden_composite_quantized);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
