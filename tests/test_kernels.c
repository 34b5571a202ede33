/* The reference kernels in double against golden vectors and closed forms, without the engine: the first link of the chain
 * by which everything else is checked. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backend.h"
#include "tests/h5_golden.h"

#define K (bk_backend_ref(BK_F64)->k)
static _Alignas(64) double scratch[1024];
static const bk_work work = {scratch, sizeof scratch};

static void ok(bk_status st) { ck_assert_int_eq(st, BK_OK); }

/* n zeros, freed with the process of the test */
static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
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
    const double *p = bk_golden_f64(g, "%s/a", path), *t = bk_golden_f64(g, "%s/b", path), want = bk_golden_attr(g, "y", "%s", path);
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
    ok(K.fakequant_bwd(&(bk_fakequant_bwd_args){f.rows, f.cols, f.group, f.per_row, f.qmin, f.qmax, f.x, f.s, f.z,
                                                bk_golden_f64(g, "%s/dy", path), dx, ds, symmetric ? NULL : dz},
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
    ok(K.dynquant_bwd(&(bk_dynquant_bwd_args){f.rows, f.cols, f.group, f.symmetric, f.qmin, f.qmax, f.x, f.gamma, f.beta,
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
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
