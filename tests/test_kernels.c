/* The reference kernels in double against golden vectors and closed forms, without the engine: the first link of the chain
 * by which everything else is checked. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backend.h"
#include "tests/h5_golden.h"
#include "tests/suite.h"

#define K (bk_backend_ref(BK_F64)->k)
static _Alignas(64) double scratch[1024];
static const bk_work work = {scratch, sizeof scratch};

static void ok(bk_status st) { ck_assert_int_eq(st, BK_OK); }

/* n zeros, which live until the end of the case. */
static void *taken[16];
static int taken_count;

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    ck_assert_int_lt(taken_count, 16);
    return taken[taken_count++] = x;
}

static void free_zeros(void)
{
    while (taken_count) free(taken[--taken_count]);
}

/* Compares dataset `name` of a case with `got` under the case's tolerance, or the dataset's own. */
static void same(bk_golden *g, const char *path, const char *name, const double *got)
{
    int64_t dim[BK_GOLDEN_DIMS];
    int n = bk_golden_dims(g, dim, "%s/%s", path, name);
    double error = bk_golden_error(got, bk_golden_f64(g, "%s/%s", path, name), bk_golden_count(g, "%s/%s", path, name), dim[n - 1]);
    double tol = bk_golden_attr(g, "tol_f64", "%s", path);
    ck_assert_msg(error <= tol, "%s/%s: error %.3g above %.3g", path, name, error, tol);
}

static void same_codes(bk_golden *g, const char *path, const int32_t *got)
{
    const int32_t *want = bk_golden_i32(g, "%s/codes", path);
    for (int64_t i = 0; i < bk_golden_count(g, "%s/codes", path); i++)
        ck_assert_msg(got[i] == want[i], "%s: code %d is %d, not %d", path, (int)i, got[i], want[i]);
}

/* Runs `check` on every case of a group. */
static void each_case(const char *file, const char *group, void (*check)(bk_golden *, const char *))
{
    bk_golden *g = bk_golden_open(file);
    char **names = bk_golden_members(g, "%s", group), path[256];
    ck_assert_ptr_nonnull(names[0]);
    for (int i = 0; names[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", group, names[i]);
        check(g, path);
        free_zeros();
    }
    bk_golden_close(g);
}

static void check_rmsnorm(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS];
    bk_golden_dims(g, dim, "%s/x", path);
    int64_t rows = dim[0] * dim[1], cols = dim[2];
    double *y = zeros(rows * cols), *rstd = zeros(rows), *dx = zeros(rows * cols), *dw = zeros(cols);
    const double *x = bk_golden_f64(g, "%s/x", path), *w = bk_golden_f64(g, "%s/w", path), *dy = bk_golden_f64(g, "%s/dy", path);
    ok(K.rmsnorm_fwd(&(bk_rmsnorm_fwd_args){rows, cols, bk_golden_attr(g, "eps", "%s", path), x, w, y, rstd}, &work));
    ok(K.rmsnorm_bwd(&(bk_rmsnorm_bwd_args){rows, cols, x, w, rstd, dy, dx, dw}, &work));
    same(g, path, "y", y), same(g, path, "dx", dx), same(g, path, "dw", dw);
}

static void check_linear(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS], wdim[BK_GOLDEN_DIMS];
    bk_golden_dims(g, dim, "%s/x", path), bk_golden_dims(g, wdim, "%s/w", path);
    int64_t m = dim[0] * dim[1], k = dim[2], n = wdim[0];
    const double *x = bk_golden_f64(g, "%s/x", path), *w = bk_golden_f64(g, "%s/w", path), *dy = bk_golden_f64(g, "%s/dy", path);
    double *y = zeros(m * n), *dx = zeros(m * k), *dw = zeros(n * k), *db = zeros(n);
    ok(K.gemm(&(bk_gemm_args){m, n, k, 0, 1, x, w, y, k, k, n, 0}, &work));
    if (bk_golden_attr_i64(g, "bias", "%s", path)) {
        ok(K.bias_fwd(&(bk_bias_fwd_args){m, n, bk_golden_f64(g, "%s/b", path), y}, &work));
        ok(K.bias_bwd(&(bk_bias_bwd_args){m, n, dy, db}, &work));
        same(g, path, "db", db);
    }
    ok(K.gemm(&(bk_gemm_args){m, k, n, 0, 0, dy, w, dx, n, k, k, 1}, &work));
    ok(K.gemm(&(bk_gemm_args){n, k, m, 1, 0, dy, x, dw, n, k, k, 1}, &work));
    same(g, path, "y", y), same(g, path, "dx", dx), same(g, path, "dw", dw);
}

static void check_rope(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS], pos0 = bk_golden_attr_i64(g, "offset", "%s", path);
    bk_golden_dims(g, dim, "%s/x", path);
    int64_t half = dim[3] / 2, n = dim[0] * dim[1] * dim[2] * dim[3];
    const double *freq = bk_golden_f64(g, "%s/inv_freq", path);
    double *table = zeros((pos0 + dim[1]) * dim[3]), *y = zeros(n), *dx = zeros(n);
    for (int64_t p = 0; p < pos0 + dim[1]; p++)
        for (int64_t i = 0; i < half; i++)
            table[p * dim[3] + i] = cos((double)p * freq[i]), table[p * dim[3] + half + i] = sin((double)p * freq[i]);
    bk_rope_args a = {dim[0], dim[1], dim[2], dim[3], pos0, bk_golden_f64(g, "%s/x", path), table, y, 0, 0};
    ok(K.rope(&a, &work));
    a.x = bk_golden_f64(g, "%s/dy", path), a.y = dx, a.inverse = a.accumulate = 1;
    ok(K.rope(&a, &work));
    same(g, path, "y", y), same(g, path, "dx", dx);
}

static void check_attention(bk_golden *g, const char *path)
{
    int64_t q[BK_GOLDEN_DIMS], k[BK_GOLDEN_DIMS], prefix = bk_golden_attr_i64(g, "prefix_len", "%s", path);
    bk_golden_dims(g, q, "%s/q", path), bk_golden_dims(g, k, "%s/k", path);
    int64_t n = q[0] * q[1] * q[2] * q[3], kn = k[0] * k[1] * k[2] * k[3];
    double *o = zeros(n), *lse = zeros(q[0] * q[1] * q[2]), *dq = zeros(n), *dk = zeros(kn), *dv = zeros(kn);
    bk_attention_fwd_args f = {.batch = q[0], .tokens = q[1], .heads = q[2], .kv_heads = k[2], .dim = q[3], .prefix = prefix};
    f.scale = bk_golden_attr(g, "scale", "%s", path);
    f.q = bk_golden_f64(g, "%s/q", path), f.k = bk_golden_f64(g, "%s/k", path), f.v = bk_golden_f64(g, "%s/v", path);
    if (prefix) f.prefix_k = bk_golden_f64(g, "%s/prefix_k", path), f.prefix_v = bk_golden_f64(g, "%s/prefix_v", path);
    f.o = o, f.lse = lse;
    ok(K.attention_fwd(&f, &work));
    ok(K.attention_bwd(&(bk_attention_bwd_args){f, bk_golden_f64(g, "%s/dy", path), dq, dk, dv}, &work));
    same(g, path, "y", o), same(g, path, "dq", dq), same(g, path, "dk", dk), same(g, path, "dv", dv);
}

static void check_swiglu(bk_golden *g, const char *path)
{
    int64_t n = bk_golden_count(g, "%s/y", path);
    const double *gate = bk_golden_f64(g, "%s/gate", path), *up = bk_golden_f64(g, "%s/up", path), *dy = bk_golden_f64(g, "%s/dy", path);
    double *y = zeros(n), *dgate = zeros(n), *dup = zeros(n);
    ok(K.swiglu_fwd(&(bk_swiglu_fwd_args){n, gate, up, y}, &work));
    ok(K.swiglu_bwd(&(bk_swiglu_bwd_args){n, gate, up, dy, dgate, dup}, &work));
    same(g, path, "y", y), same(g, path, "dgate", dgate), same(g, path, "dup", dup);
}

static void check_embedding(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS], n = bk_golden_count(g, "%s/ids", path);
    bk_golden_dims(g, dim, "%s/table", path);
    const int32_t *ids = bk_golden_i32(g, "%s/ids", path);
    double *y = zeros(n * dim[1]), *dtable = zeros(dim[0] * dim[1]);
    ok(K.embedding_fwd(&(bk_embedding_fwd_args){n, dim[1], dim[0], bk_golden_f64(g, "%s/table", path), ids, y}, &work));
    ok(K.embedding_bwd(&(bk_embedding_bwd_args){n, dim[1], dim[0], ids, bk_golden_f64(g, "%s/dy", path), dtable}, &work));
    same(g, path, "y", y), same(g, path, "dtable", dtable);
}

/* `mean` is a mean of the kernel's rows. */
static void check_xent(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS];
    bk_golden_dims(g, dim, "%s/logits", path);
    const double *logits = bk_golden_f64(g, "%s/logits", path);
    const int32_t *target = bk_golden_i32(g, "%s/target", path);
    double *nll = zeros(dim[0]), *lse = zeros(dim[0]), *dnll = zeros(dim[0]), *dlogits = zeros(dim[0] * dim[1]);
    ok(K.xent_fwd(&(bk_xent_fwd_args){dim[0], dim[1], logits, target, nll, lse}, &work));
    if (strcmp(bk_golden_attr_str(g, "reduction", "%s", path), "mean") == 0) {
        double mean = 0;
        for (int64_t r = 0; r < dim[0]; r++) mean += nll[r] / (double)dim[0], dnll[r] = bk_golden_attr(g, "dy", "%s", path) / (double)dim[0];
        ck_assert_double_eq_tol(mean, bk_golden_attr(g, "y", "%s", path), 1e-9);
    } else {
        same(g, path, "y", nll);
        memcpy(dnll, bk_golden_f64(g, "%s/dy", path), (size_t)dim[0] * sizeof *dnll);
    }
    ok(K.xent_bwd(&(bk_xent_bwd_args){dim[0], dim[1], logits, lse, dnll, target, dlogits}, &work));
    same(g, path, "dlogits", dlogits);
}

static void check_mse(bk_golden *g, const char *path)
{
    int64_t dim[BK_GOLDEN_DIMS], n = bk_golden_count(g, "%s/a", path);
    int nd = bk_golden_dims(g, dim, "%s/a", path);
    const double *p = bk_golden_f64(g, "%s/a", path), *t = bk_golden_f64(g, "%s/b", path);
    const double want = bk_golden_attr(g, "y", "%s", path);
    double loss, dloss = bk_golden_attr(g, "dy", "%s", path), *dp = zeros(n);
    ok(K.loss_fwd(&(bk_loss_fwd_args){BK_LOSS_MSE, 1, n / dim[nd - 1], dim[nd - 1], p, t, &loss}, &work));
    ok(K.loss_bwd(&(bk_loss_bwd_args){BK_LOSS_MSE, 1, n / dim[nd - 1], dim[nd - 1], p, t, &dloss, dp}, &work));
    ck_assert_double_eq_tol(loss, want, 1e-10 * fabs(want));
    same(g, path, "da", dp);
}

START_TEST(golden_rmsnorm) { each_case("ops.h5", "rmsnorm", check_rmsnorm); }
END_TEST
START_TEST(golden_linear) { each_case("ops.h5", "linear", check_linear); }
END_TEST
START_TEST(golden_rope) { each_case("ops.h5", "rope", check_rope); }
END_TEST
START_TEST(golden_attention) { each_case("ops.h5", "attention", check_attention); }
END_TEST
START_TEST(golden_swiglu) { each_case("ops.h5", "swiglu", check_swiglu); }
END_TEST
START_TEST(golden_embedding) { each_case("ops.h5", "embedding", check_embedding); }
END_TEST
START_TEST(golden_cross_entropy) { each_case("ops.h5", "cross_entropy", check_xent); }
END_TEST
START_TEST(golden_mse) { each_case("ops.h5", "mse", check_mse); }
END_TEST

/* Weights and static activations; what the groups of x are follows from the shape of s. */
static void check_stored(bk_golden *g, const char *path)
{
    int64_t x[BK_GOLDEN_DIMS], s[BK_GOLDEN_DIMS], n = bk_golden_count(g, "%s/x", path), heads = bk_golden_count(g, "%s/s", path);
    int nd = bk_golden_dims(g, x, "%s/x", path), symmetric = (int)bk_golden_attr_i64(g, "symmetric", "%s", path);
    int weight = strncmp(path, "weight", 6) == 0;
    bk_golden_dims(g, s, "%s/s", path);
    int64_t cols = weight ? x[nd - 1] : heads > 1 ? x[nd - 1] * x[nd - 2] : x[nd - 1], params = weight ? s[0] * s[1] : heads;
    bk_fakequant_fwd_args f = {.rows = n / cols, .cols = cols, .group = weight ? cols / s[1] : cols / heads, .per_row = weight};
    f.qmin = (int)bk_golden_attr_i64(g, "qmin", "%s", path), f.qmax = (int)bk_golden_attr_i64(g, "qmax", "%s", path);
    double *y = zeros(n), *dx = zeros(n), *ds = zeros(params), *dz = zeros(params);
    int32_t *codes = (int32_t *)zeros(n);
    f.x = bk_golden_f64(g, "%s/x", path), f.s = bk_golden_f64(g, "%s/s", path), f.z = symmetric ? NULL : bk_golden_f64(g, "%s/z", path);
    f.y = y, f.codes = codes;
    ok(K.fakequant_fwd(&f, &work));
    ok(K.fakequant_bwd(&(bk_fakequant_bwd_args){.rows = f.rows, .cols = f.cols, .group = f.group, .per_row = f.per_row, .qmin = f.qmin,
                                                .qmax = f.qmax, .x = f.x, .s = f.s, .z = f.z, .dy = bk_golden_f64(g, "%s/dy", path),
                                                .dx = dx, .ds = ds, .dz = symmetric ? NULL : dz},
                       &work));
    same_codes(g, path, codes);
    same(g, path, "y", y), same(g, path, "dx", dx), same(g, path, "ds", ds);
    if (!symmetric) same(g, path, "dz", dz);
}

/* Dynamic and offset quantizers. The step of a slice of zeros is free. */
static void check_dynamic(bk_golden *g, const char *path)
{
    int64_t x[BK_GOLDEN_DIMS], step_dim[BK_GOLDEN_DIMS], n = bk_golden_count(g, "%s/x", path), groups = bk_golden_count(g, "%s/step", path);
    int nd = bk_golden_dims(g, x, "%s/x", path), offset = strncmp(path, "offset", 6) == 0;
    bk_golden_dims(g, step_dim, "%s/step", path);
    bk_dynquant_fwd_args f = {.rows = n / x[nd - 1], .cols = x[nd - 1], .group = n / groups};
    f.symmetric = (int)bk_golden_attr_i64(g, "symmetric", "%s", path);
    f.qmin = (int)bk_golden_attr_i64(g, "qmin", "%s", path), f.qmax = (int)bk_golden_attr_i64(g, "qmax", "%s", path);
    double *y = zeros(n), *dx = zeros(n), dgamma = 0, dbeta = 0, *step = zeros(groups), *zero = zeros(groups);
    int32_t *codes = (int32_t *)zeros(n);
    const double *in = bk_golden_f64(g, "%s/x", path), *want = bk_golden_f64(g, "%s/step", path);
    f.x = in, f.y = y, f.step = step, f.zero = zero, f.codes = codes;
    f.gamma = offset ? NULL : bk_golden_f64(g, "%s/gamma", path);
    f.beta = offset || f.symmetric ? NULL : bk_golden_f64(g, "%s/beta", path);
    ok(K.dynquant_fwd(&f, &work));
    ok(K.dynquant_bwd(&(bk_dynquant_bwd_args){f.rows, f.cols, f.group, f.symmetric, f.qmin, f.qmax, 0, f.x, f.gamma, f.beta,
                                              bk_golden_f64(g, "%s/dy", path), dx, offset ? NULL : &dgamma, f.beta ? &dbeta : NULL},
                      &work));
    same_codes(g, path, codes);
    same(g, path, "y", y), same(g, path, "dx", dx);
    for (int64_t i = 0; i < groups; i++) {
        double top = 0;
        for (int64_t j = 0; j < f.group; j++) top = fmax(top, fabs(in[i * f.group + j]));
        if (top > 0) ck_assert_double_eq_tol(step[i], want[i], 1e-10 * want[i]);
        if (!f.symmetric) ck_assert_double_eq(zero[i], bk_golden_f64(g, "%s/zero", path)[i]);
    }
    if (!offset) same(g, path, "dgamma", &dgamma);
    if (f.beta) same(g, path, "dbeta", &dbeta);
}

START_TEST(golden_weight_quantizers) { each_case("fakequant.h5", "weight", check_stored); }
END_TEST
START_TEST(golden_static_quantizers) { each_case("fakequant.h5", "static", check_stored); }
END_TEST
START_TEST(golden_dynamic_quantizers) { each_case("fakequant.h5", "dynamic", check_dynamic); }
END_TEST
START_TEST(golden_offset_quantizers) { each_case("fakequant.h5", "offset", check_dynamic); }
END_TEST

/* --- closed forms: what has no golden vectors --- */

static void near(const double *got, const double *want, int n)
{
    for (int i = 0; i < n; i++) ck_assert_msg(fabs(got[i] - want[i]) <= 1e-12, "element %d is %.15g, not %.15g", i, got[i], want[i]);
}
#define NEAR(got, ...) near(got, (double[]){__VA_ARGS__}, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)))

/* [1 2 3; 4 5 6] [1 0; 0 1; 1 1] = [4 5; 10 11], each factor also transposed, in rows longer than the matrix. */
START_TEST(gemm_in_all_orders)
{
    const double a[2][4] = {{1, 2, 3, 99}, {4, 5, 6, 99}}, at[3][3] = {{1, 4, 99}, {2, 5, 99}, {3, 6, 99}};
    const double b[3][3] = {{1, 0, 99}, {0, 1, 99}, {1, 1, 99}}, bt[2][4] = {{1, 0, 1, 99}, {0, 1, 1, 99}};
    for (int i = 0; i < 8; i++) {
        double c[2][3] = {{100, 100, -1}, {100, 100, -1}};
        const int ta = i & 1, tb = i >> 1 & 1, beta = i >> 2;
        bk_gemm_args g = {.m = 2, .n = 2, .k = 3, .ta = ta, .tb = tb, .c = c, .ldc = 3, .beta = beta};
        g.a = ta ? (const void *)at : a, g.lda = ta ? 3 : 4;
        g.b = tb ? (const void *)bt : b, g.ldb = tb ? 4 : 3;
        ok(K.gemm(&g, &work));
        const double old = beta ? 100 : 0;
        NEAR(c[0], old + 4, old + 5, -1, old + 10, old + 11, -1);
    }
}
END_TEST

/* All scores 0: a token's output is the mean of the values it sees. One prefix row, window of 2. */
START_TEST(attention_window_and_prefix)
{
    const double q[4] = {0}, k[4] = {0}, v[4] = {1, 10, 100, 1000}, pk[1] = {0}, pv[1] = {7};
    double o[4], lse[4];
    bk_attention_fwd_args a = {.batch = 1, .tokens = 4, .heads = 1, .kv_heads = 1, .dim = 1, .prefix = 1, .window = 2,
                               .scale = 1, .q = q, .k = k, .v = v, .prefix_k = pk, .prefix_v = pv, .o = o, .lse = lse};
    ok(K.attention_fwd(&a, &work));
    NEAR(o, 8. / 2, 18. / 3, 117. / 3, 1107. / 3);
    NEAR(lse, log(2), log(3), log(3), log(3));
    a.window = 0;
    ok(K.attention_fwd(&a, &work));
    NEAR(o, 8. / 2, 18. / 3, 118. / 4, 1118. / 5);
}
END_TEST

/* Token 1 of the first query head has probabilities (1/4, 3/4) with k and (1/3, 2/3) with k2; all else agrees. */
START_TEST(score_error_of_two_keys)
{
    const double q[4] = {1, 0, 1, 0}, k[2] = {0, log(3)}, k2[2] = {0, log(2)};
    double err[1] = {10};
    bk_attention_fwd_args f = {.batch = 1, .tokens = 2, .heads = 2, .kv_heads = 1, .dim = 1, .scale = 1, .q = q, .k = k};
    ok(K.score_err(&(bk_score_err_args){f, k2, err}, &work));
    NEAR(err, 10 + 2. / 144);
}
END_TEST

static double loss_of(bk_loss_kind kind, int64_t samples, int64_t tokens, int64_t cols, const double *p, const double *t)
{
    double loss;
    ok(K.loss_fwd(&(bk_loss_fwd_args){kind, samples, tokens, cols, p, t, &loss}, &work));
    return loss;
}

/* Tokens 1, 3 and 4 of the first sample and 0, 1 and 2 of the second have the largest targets. Of three tokens nothing is left. */
START_TEST(skip_mse_drops_the_three_largest_targets)
{
    const double p[10] = {2, 50, 4, 60, 70, 80, 90, 99, 4, 5}, t[10] = {1, -5, 2, 4, 3, 7, -8, 9, 1, 1};
    ck_assert_double_eq_tol(loss_of(BK_LOSS_SKIP_MSE, 2, 5, 1, p, t), (1 + 4 + 9 + 16) / 10., 1e-12);
    ck_assert_double_eq(loss_of(BK_LOSS_SKIP_MSE, 1, 3, 1, p, t), 0);
}
END_TEST

START_TEST(clamp_mse_stops_at_ten)
{
    const double p[3] = {12, -20, 1}, t[3] = {9, -30, 3};
    ck_assert_double_eq_tol(loss_of(BK_LOSS_CLAMP_MSE, 1, 1, 3, p, t), (1 + 0 + 4) / 3., 1e-12);
}
END_TEST

/* Both ends of the clamp pass the gradient, as clip masks do. */
START_TEST(clamp_mse_passes_at_ten)
{
    const double p[4] = {10, -10, 11, -11}, t[4] = {9, -9, 9, -9}, dloss = 2;
    double dp[4] = {0};
    ok(K.loss_bwd(&(bk_loss_bwd_args){BK_LOSS_CLAMP_MSE, 1, 1, 4, p, t, &dloss, dp}, &work));
    NEAR(dp, 1, -1, 0, 0);
}
END_TEST

START_TEST(normalized_mse_divides_by_the_largest_target)
{
    const double p[4] = {4, 0, 3, 4}, t[4] = {2, -4, 0, 0};
    ck_assert_double_eq_tol(loss_of(BK_LOSS_NORMALIZED_MSE, 1, 2, 2, p, t), (0.25 + 1 + 9 + 16) / 4, 1e-12);
}
END_TEST

START_TEST(cosine_of_right_angles_and_parallels)
{
    const double p[6] = {1, 0, 3, 4, 0, 0}, t[6] = {0, 2, 6, 8, 1, 1};
    ck_assert_double_eq_tol(loss_of(BK_LOSS_COSINE, 1, 3, 2, p, t), 1 - 1 / 3., 1e-12);
}
END_TEST

/* e_1 of [base 2, power 2] becomes the outer product of h's first column and Sylvester's second. */
START_TEST(hadamard_is_a_kronecker_product)
{
    const double h[4] = {1, 1, -1, 1}, x[8] = {0, 1, 0, 0, 0, 0, 1, 0};
    double y[8];
    bk_hadamard_args a = {.rows = 1, .base = 2, .pow2 = 2, .blocks = 2, .x = x, .h = h, .y = y};
    ok(K.hadamard(&a, &work));
    NEAR(y, .5, -.5, -.5, .5, .5, .5, .5, .5);
    a.transpose = a.accumulate = 1;
    ok(K.hadamard(&a, &work));
    NEAR(y, 1, -1, 0, 0, 0, 0, 1, 1);
}
END_TEST

/* Two query heads on each of two matrices: x_h M in row form, then back by M^T on top of what is there. */
START_TEST(heads_turn_by_the_matrix_of_their_kv_head)
{
    const double x[8] = {1, 0, 0, 1, 1, 0, 0, 1}, m[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    double y[8];
    bk_rotate_heads_args a = {.rows = 1, .heads = 4, .kv_heads = 2, .dim = 2, .x = x, .m = m, .y = y};
    ok(K.rotate_heads(&a, &work));
    NEAR(y, 1, 2, 3, 4, 5, 6, 7, 8);
    a.transpose = a.accumulate = 1;
    ok(K.rotate_heads(&a, &work));
    NEAR(y, 2, 5, 5, 8, 10, 13, 13, 16);
}
END_TEST

/* Half to even, and the mask includes both ends: rounded to -2 and 1 passes, beyond is clipped. */
START_TEST(rounding_and_mask_of_stored_steps)
{
    const double x[8] = {0.25, 0.75, 1.25, -0.25, -0.75, -1.25, 0.5, 5}, s[1] = {0.5}, dy[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    double y[8], dx[8] = {0};
    int32_t codes[8];
    bk_fakequant_fwd_args f = {.rows = 1, .cols = 8, .group = 8, .qmin = -2, .qmax = 1, .x = x, .s = s, .y = y, .codes = codes};
    bk_fakequant_bwd_args b = {.rows = 1, .cols = 8, .group = 8, .qmin = -2, .qmax = 1, .x = x, .s = s, .dy = dy, .dx = dx};
    ok(K.fakequant_fwd(&f, &work));
    ok(K.fakequant_bwd(&b, &work));
    const int32_t want[8] = {0, 1, 1, 0, -2, -2, 1, 1};
    ck_assert_mem_eq(codes, want, sizeof want);
    NEAR(y, 0, .5, .5, 0, -1, -1, .5, .5);
    NEAR(dx, 1, 0, 0, 1, 1, 1, 1, 0);
}
END_TEST

/* h is 1, 0 and a half at v = 10, -10 and 0; the last element is clipped: 1.5 steps are more than one. */
START_TEST(soft_rounding_decides_between_down_and_up)
{
    const double x[6] = {-0.3, -0.3, -0.3, 0.8, 0.3, 0.8}, v[6] = {10, -10, 0, -10, 0, 0}, s[1] = {0.5}, dy[6] = {1, 1, 1, 1, 2, 1};
    double y[6], dx[6] = {0}, dv[6] = {0}, ds = 0;
    int32_t codes[6];
    bk_fakequant_fwd_args f = {.rows = 1, .cols = 6, .group = 6, .qmin = -2, .qmax = 1, .x = x, .s = s, .y = y, .codes = codes};
    bk_fakequant_bwd_args b = {.rows = 1, .cols = 6, .group = 6, .qmin = -2, .qmax = 1, .x = x, .s = s, .dy = dy, .dx = dx, .ds = &ds};
    f.rounding = b.rounding = BK_ROUND_SOFT, f.v = b.v = v, b.dv = dv;
    ok(K.fakequant_fwd(&f, &work));
    ok(K.fakequant_bwd(&b, &work));
    NEAR(y, 0, -0.5, -0.25, 0.5, 0.25, 0.5);
    NEAR(dx, 1, 1, 1, 1, 2, 0);
    NEAR(dv, 0, 0, 0.15, 0, 0.3, 0);
    NEAR(&ds, 0.6 - 0.4 + 0.1 - 0.6 - 0.2 + 1);
    ck_assert(codes[0] == 0 && codes[1] == -1 && codes[3] == 1);
}
END_TEST

START_TEST(an_offset_moves_what_is_rounded)
{
    const double x[4] = {0.2, 0.2, -0.6, 0.7}, v[4] = {0.2, 0.05, -0.4, 0.2}, s[1] = {0.5}, dy[4] = {1, 2, 3, 4};
    double y[4], dv[4] = {0};
    bk_fakequant_fwd_args f = {.rows = 1, .cols = 4, .group = 4, .qmin = -2, .qmax = 1, .x = x, .s = s, .y = y, .v = v};
    bk_fakequant_bwd_args b = {.rows = 1, .cols = 4, .group = 4, .qmin = -2, .qmax = 1, .x = x, .s = s, .dy = dy, .v = v, .dv = dv};
    ok(K.fakequant_fwd(&f, &work));
    ok(K.fakequant_bwd(&b, &work));
    NEAR(y, 0.5, 0, -1, 0.5);
    NEAR(dv, 0.5, 1, 1.5, 0);
}
END_TEST

/* sigmoid(ln 3) = 3/4: h = 0.8, |2h - 1| = 0.6 */
START_TEST(the_penalty_of_decisions_is_zero_at_the_ends)
{
    const double v[4] = {0, 10, -10, log(3)}, dloss = 3;
    double loss, dv[4] = {0};
    ok(K.round_penalty_fwd(&(bk_round_penalty_fwd_args){.n = 4, .lambda = 2, .beta = 2, .v = v, .loss = &loss}, &work));
    ok(K.round_penalty_bwd(&(bk_round_penalty_bwd_args){.n = 4, .lambda = 2, .beta = 2, .v = v, .dloss = &dloss, .dv = dv}, &work));
    NEAR(&loss, 2 * 1.64);
    NEAR(dv, 0, 0, 0, -3 * 2 * 0.54);
    ok(K.round_penalty_fwd(&(bk_round_penalty_fwd_args){.n = 2, .lambda = 2, .beta = 7, .v = v + 1, .loss = &loss}, &work));
    ck_assert(loss == 0);
}
END_TEST

START_TEST(products_quotients_signs_and_bounds)
{
    const double a[3] = {3, -2, 0}, b[3] = {2, 4, -1}, dy[3] = {1, 2, 3}, at[1] = {4};
    double y[3] = {1, 1, 1}, da[3] = {0}, db[3] = {0};
    ok(K.mul(&(bk_mul_args){3, a, b, y, 1}, &work));
    NEAR(y, 7, -7, 1);
    ok(K.mul(&(bk_mul_args){3, a, b, y, 0}, &work));
    NEAR(y, 6, -8, 0);
    ok(K.quotient_fwd(&(bk_quotient_fwd_args){3, 2, a, b, y}, &work));
    NEAR(y, 3, -1, 0);
    ok(K.quotient_bwd(&(bk_quotient_bwd_args){3, 2, a, b, dy, da, db}, &work));
    NEAR(da, 1, 1, -6);
    NEAR(db, -1.5, 0.5, 0);
    ok(K.logistic_fwd(&(bk_logistic_fwd_args){1, 4, at, y}, &work));
    ck_assert(y[0] == 1);
    ok(K.logistic_bwd(&(bk_logistic_bwd_args){1, 0, (double[]){0}, dy, da}, &work));
    NEAR(da, 1.5, 1, -6);
    ok(K.signsgd(&(bk_signsgd_args){3, 0.5, y, a}, &work));
    NEAR(y, 0.5, -0.5, 0);
    ok(K.clamp(&(bk_clamp_args){3, -0.25, 0.25, y}, &work));
    NEAR(y, 0.25, -0.25, 0);
}
END_TEST

/* +m and -m lie on the half: qmax and qmin (docs/numerics.md, Rounding and codes). */
START_TEST(extremes_of_a_symmetric_range)
{
    const double m = 0.7, x[4] = {m, -m, 0, m / 3};
    double y[4], step;
    int32_t codes[4];
    bk_dynquant_fwd_args f = {.rows = 1, .cols = 4, .group = 4, .symmetric = 1, .qmin = -8, .qmax = 7};
    f.x = x, f.y = y, f.step = &step, f.codes = codes;
    ok(K.dynquant_fwd(&f, &work));
    ck_assert_int_eq(codes[0], 7);
    ck_assert_int_eq(codes[1], -8);
    ck_assert_int_eq(codes[3], 2);
    ck_assert_double_eq_tol(step, 2 * m / 15, 1e-15);
    NEAR(y, 7 * step, -8 * step, 0, 2 * step);
}
END_TEST

/* Zero, constant and nearly constant groups, and denormals: finite, and as large as they were. */
START_TEST(flat_groups_reproduce_themselves)
{
    const double x[8] = {0, 0, -3, -3, 2, 2.000001, 0, 4e-324};
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        const double dy[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        double y[8], step[4], dx[8] = {0};
        bk_dynquant_fwd_args f = {.rows = 2, .cols = 4, .group = 2, .symmetric = symmetric};
        f.qmin = symmetric ? -128 : 0, f.qmax = f.qmin + 255, f.x = x, f.y = y, f.step = step;
        ok(K.dynquant_fwd(&f, &work));
        ok(K.dynquant_bwd(&(bk_dynquant_bwd_args){2, 4, 2, f.symmetric, f.qmin, f.qmax, 0, x, NULL, NULL, dy, dx, NULL, NULL}, &work));
        for (int i = 0; i < 8; i++) ck_assert_msg(fabs(y[i] - x[i]) <= 0.02, "element %d is %g", i, y[i]);
        for (int i = 0; i < 8; i++) ck_assert_msg(isfinite(dx[i]), "gradient %d is %g", i, dx[i]);
        NEAR(step, 1);
        if (!symmetric) NEAR(y, 0, 0, -3, -3, 2.000001, 2.000001);
        if (!symmetric) NEAR(dx, 1, 2, 3, 4, 5, 6);
    }
}
END_TEST

/* Exactly none, too: gamma 0, or gamma max = beta min. */
START_TEST(factors_that_leave_no_range_count_as_one)
{
    const double x[2] = {2, 4}, gamma[2] = {0.5, 0}, beta = 1;
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        double with[2], without[2];
        bk_dynquant_fwd_args f = {.rows = 1, .cols = 2, .group = 2, .symmetric = symmetric, .qmin = symmetric ? -8 : 0};
        f.qmax = f.qmin + 15, f.x = x, f.gamma = &gamma[symmetric], f.beta = symmetric ? NULL : &beta, f.y = with;
        ok(K.dynquant_fwd(&f, &work));
        f.gamma = f.beta = NULL, f.y = without;
        ok(K.dynquant_fwd(&f, &work));
        near(with, without, 2);
    }
}
END_TEST

START_TEST(min_and_max_per_row_and_shared)
{
    const double x[8] = {1, 2, 3, -4, 5, 6, -7, 8};
    double lo[4], hi[4];
    bk_minmax_args a = {.rows = 2, .cols = 4, .group = 2, .per_row = 1, .x = x, .lo = lo, .hi = hi};
    ok(K.minmax(&a, &work));
    NEAR(lo, 1, -4, 5, -7), NEAR(hi, 2, 3, 6, 8);
    a.per_row = 0;
    ok(K.minmax(&a, &work));
    NEAR(lo, 1, -7), NEAR(hi, 6, 8);
    lo[0] = -50, hi[1] = 50, a.accumulate = 1;
    ok(K.minmax(&a, &work));
    NEAR(lo, -50, -7), NEAR(hi, 6, 50);
}
END_TEST

START_TEST(sums_and_norms)
{
    const double x[4] = {3, -4, 1, 2}, y[4] = {1, 1, 0, 5};
    double out[2], err[2] = {1, 1}, sum;
    ok(K.absmax(&(bk_absmax_args){2, 2, x, out}, &work));
    NEAR(out, 4, 2);
    ok(K.rowdot(&(bk_rowdot_args){2, 2, x, y, out}, &work));
    NEAR(out, -1, 10);
    ok(K.sqerr(&(bk_sqerr_args){2, 2, 1, x, y, err}, &work));
    NEAR(err, 1 + 4 + 1, 1 + 25 + 9);
    ok(K.sumsq(&(bk_sumsq_args){4, x, &sum}, &work));
    NEAR(&sum, 30);
}
END_TEST

START_TEST(elementwise_and_checks)
{
    double x[4] = {3, -4, 1, 2}, y[4] = {0, 0, 0, 1}, count = 5, first;
    const double lo[4] = {0, -1, 1, 7};
    ok(K.floor(&(bk_floor_args){4, x, lo, &count}, &work));
    NEAR(x, 3, -1, 1, 7), NEAR(&count, 7);
    ok(K.axpy(&(bk_axpy_args){4, -2, x, y}, &work));
    NEAR(y, -6, 2, -2, -13);
    ok(K.scale(&(bk_scale_args){4, 0.5, y}, &work));
    NEAR(y, -3, 1, -1, -6.5);
    ok(K.finite(&(bk_finite_args){4, y, &first}, &work));
    NEAR(&first, -1);
    y[3] = -INFINITY;
    ok(K.finite(&(bk_finite_args){4, y, &first}, &work));
    NEAR(&first, 3);
    y[2] = NAN;
    ok(K.finite(&(bk_finite_args){4, y, &first}, &work));
    NEAR(&first, 2);
    ok(K.fill(&(bk_fill_args){3, 8, y}, &work));
    NEAR(y, 8, 8, 8);
}
END_TEST

START_TEST(swiglu_is_finite_for_every_finite_input)
{
    const double gate[4] = {-1e308, 1e308, -800, 800}, up[4] = {1e-300, 1e-300, 1, 1}, dy[4] = {1, 1, 1, 1};
    double y[4], dgate[4] = {0}, dup[4] = {0};
    ok(K.swiglu_fwd(&(bk_swiglu_fwd_args){4, gate, up, y}, &work));
    ok(K.swiglu_bwd(&(bk_swiglu_bwd_args){4, gate, up, dy, dgate, dup}, &work));
    for (int i = 0; i < 4; i++) ck_assert_msg(isfinite(y[i]) && isfinite(dgate[i]) && isfinite(dup[i]), "element %d", i);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels");
    TCase *golden = tcase_create("golden");
    tcase_add_test(golden, golden_rmsnorm);
    tcase_add_test(golden, golden_linear);
    tcase_add_test(golden, golden_rope);
    tcase_add_test(golden, golden_attention);
    tcase_add_test(golden, golden_swiglu);
    tcase_add_test(golden, golden_embedding);
    tcase_add_test(golden, golden_cross_entropy);
    tcase_add_test(golden, golden_mse);
    tcase_add_test(golden, golden_weight_quantizers);
    tcase_add_test(golden, golden_static_quantizers);
    tcase_add_test(golden, golden_dynamic_quantizers);
    tcase_add_test(golden, golden_offset_quantizers);
    suite_add_tcase(s, golden);
    TCase *closed = tcase_create("closed forms");
    tcase_add_test(closed, gemm_in_all_orders);
    tcase_add_test(closed, attention_window_and_prefix);
    tcase_add_test(closed, score_error_of_two_keys);
    tcase_add_test(closed, skip_mse_drops_the_three_largest_targets);
    tcase_add_test(closed, clamp_mse_stops_at_ten);
    tcase_add_test(closed, clamp_mse_passes_at_ten);
    tcase_add_test(closed, normalized_mse_divides_by_the_largest_target);
    tcase_add_test(closed, cosine_of_right_angles_and_parallels);
    tcase_add_test(closed, hadamard_is_a_kronecker_product);
    tcase_add_test(closed, heads_turn_by_the_matrix_of_their_kv_head);
    tcase_add_test(closed, rounding_and_mask_of_stored_steps);
    tcase_add_test(closed, soft_rounding_decides_between_down_and_up);
    tcase_add_test(closed, an_offset_moves_what_is_rounded);
    tcase_add_test(closed, the_penalty_of_decisions_is_zero_at_the_ends);
    tcase_add_test(closed, products_quotients_signs_and_bounds);
    tcase_add_test(closed, extremes_of_a_symmetric_range);
    tcase_add_test(closed, flat_groups_reproduce_themselves);
    tcase_add_test(closed, factors_that_leave_no_range_count_as_one);
    tcase_add_test(closed, min_and_max_per_row_and_shared);
    tcase_add_test(closed, sums_and_norms);
    tcase_add_test(closed, elementwise_and_checks);
    tcase_add_test(closed, swiglu_is_finite_for_every_finite_input);
    suite_add_tcase(s, closed);
    return run_suite(s);
}
