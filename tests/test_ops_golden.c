/* The ops against golden vectors: values, every gradient, integer codes, steps and zero points; on the reference in double and float, and on cpu. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"
#include "tests/h5_golden.h"
#include "tests/run_graph.h"
#include "tests/suite.h"

/* One golden case on its way through an op. */
typedef struct run {
    const bk_backend *be;
    bk_golden *g;
    const char *path;
    bk_gradcheck_input in[BK_GRADCHECK_MAX];
    const char *file_name[BK_GRADCHECK_MAX]; /* dataset of the input; its gradient is called d + this */
    int n_in;
    bk_graph_result result;
    int64_t heads, kv_heads, pos0;
    double eps;
    bk_fakequant_attr fakequant;
    bk_dynquant_attr dynquant;
    int32_t *codes;
    double *step, *zero;
} run;

static void *host(int64_t n, size_t size)
{
    void *p = calloc((size_t)(n ? n : 1), size);
    ck_assert_ptr_nonnull(p);
    return p;
}

static int64_t attr(const run *r, const char *name)
{
    return bk_golden_attr_i64(r->g, name, "%s", r->path);
}

/* Adds a dataset as an input. `flat`: heads and head dimension become one dimension, as the ops want them. */
static bk_gradcheck_input *input(run *r, const char *name, bool differentiate, bool flat)
{
    bk_gradcheck_input *in = &r->in[r->n_in];
    int64_t dim[BK_GOLDEN_DIMS];
    int nd = bk_golden_dims(r->g, dim, "%s/%s", r->path, name);
    *in = (bk_gradcheck_input){.name = name, .differentiate = differentiate, .values = bk_golden_f64(r->g, "%s/%s", r->path, name)};
    if (flat) nd--, dim[nd - 1] *= dim[nd];
    for (int i = 0; i < nd; i++) in->dim[i] = dim[i];
    in->ndim = nd;
    r->file_name[r->n_in++] = name;
    return in;
}

static void ids(run *r, const char *name)
{
    bk_gradcheck_input *in = input(r, name, false, false);
    in->values = NULL;
    in->ids = bk_golden_i32(r->g, "%s/%s", r->path, name);
}

static double tolerance(const run *r, const char *name)
{
    const char *tol = r->be->dtype == BK_F64 ? "tol_f64" : "tol_f32";
    if (name && bk_golden_has_attr(r->g, tol, "%s/%s", r->path, name)) return bk_golden_attr(r->g, tol, "%s/%s", r->path, name);
    return bk_golden_attr(r->g, tol, "%s", r->path);
}

static void same(const run *r, const char *name, const double *got)
{
    int64_t dim[BK_GOLDEN_DIMS];
    int nd = bk_golden_dims(r->g, dim, "%s/%s", r->path, name);
    double error = bk_golden_error(got, bk_golden_f64(r->g, "%s/%s", r->path, name), bk_golden_count(r->g, "%s/%s", r->path, name), dim[nd - 1]);
    ck_assert_msg(error <= tolerance(r, name), "%s/%s on %s: error %.3g above %.3g", r->path, name, r->be->name, error, tolerance(r, name));
}

static void same_number(const run *r, const char *name, double got)
{
    double want = bk_golden_attr(r->g, name, "%s", r->path), error = fabs(got - want) / fabs(want);
    ck_assert_msg(error <= tolerance(r, NULL), "%s %s on %s: error %.3g above %.3g", r->path, name, r->be->name, error, tolerance(r, NULL));
}

/* Runs the graph with the case's cotangent (or the given one) and compares every gradient. */
static void go(run *r, bk_graph graph, const double *dy)
{
    r->result = bk_run_graph(r->be, graph, r, r->in, r->n_in, dy ? dy : bk_golden_f64(r->g, "%s/dy", r->path), 0);
    char name[64];
    for (int i = 0; i < r->n_in; i++) {
        if (!r->in[i].differentiate) continue;
        snprintf(name, sizeof name, "d%s", r->file_name[i]);
        same(r, name, r->result.grad[i]);
    }
}

static bk_tensor *rmsnorm(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_rmsnorm(ctx, in[0], in[1], ((run *)user)->eps);
}

static void check_rmsnorm(run *r)
{
    input(r, "x", true, false), input(r, "w", true, false);
    r->eps = bk_golden_attr(r->g, "eps", "%s", r->path);
    go(r, rmsnorm, NULL);
    same(r, "y", r->result.y);
}

static bk_tensor *linear(bk_ctx *ctx, bk_tensor **in, void *user)
{
    return bk_linear(ctx, in[0], in[1], ((run *)user)->n_in == 3 ? in[2] : NULL);
}

static void check_linear(run *r)
{
    input(r, "x", true, false), input(r, "w", true, false);
    if (attr(r, "bias")) input(r, "b", true, false);
    go(r, linear, NULL);
    same(r, "y", r->result.y);
}

static bk_tensor *rope(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const run *r = user;
    return bk_rope(ctx, in[0], in[1], r->heads, r->pos0);
}

static void check_rope(run *r)
{
    int64_t dim[BK_GOLDEN_DIMS];
    bk_golden_dims(r->g, dim, "%s/x", r->path);
    r->heads = dim[2], r->pos0 = attr(r, "offset");
    input(r, "x", true, true);
    int64_t rows = r->pos0 + dim[1], half = dim[3] / 2;
    const double *freq = bk_golden_f64(r->g, "%s/inv_freq", r->path);
    double *table = host(rows * dim[3], sizeof *table);
    for (int64_t i = 0; i < rows * half; i++) {
        double angle = (double)(i / half) * freq[i % half];
        table[i / half * dim[3] + i % half] = cos(angle), table[i / half * dim[3] + half + i % half] = sin(angle);
    }
    r->in[r->n_in++] = (bk_gradcheck_input){.name = "table", .ndim = 2, .dim = {rows, dim[3]}, .values = table};
    go(r, rope, NULL);
    same(r, "y", r->result.y);
    free(table);
}

static bk_tensor *attention(bk_ctx *ctx, bk_tensor **in, void *user)
{
    const run *r = user;
    bool prefix = r->n_in == 5;
    return bk_attention(ctx, in[0], in[1], in[2], prefix ? in[3] : NULL, prefix ? in[4] : NULL, r->heads, r->kv_heads, 0);
}

static void check_attention(run *r)
{
    r->heads = attr(r, "heads"), r->kv_heads = attr(r, "kv_heads");
    input(r, "q", true, true), input(r, "k", true, true), input(r, "v", true, true);
    if (attr(r, "prefix_len")) input(r, "prefix_k", false, false), input(r, "prefix_v", false, false);
    go(r, attention, NULL);
    same(r, "y", r->result.y);
}

static bk_tensor *swiglu(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_swiglu(ctx, in[0], in[1]);
}

static void check_swiglu(run *r)
{
    input(r, "gate", true, false), input(r, "up", true, false);
    go(r, swiglu, NULL);
    same(r, "y", r->result.y);
}

/* silu is swiglu with up = 1. */
static void check_silu(run *r)
{
    bk_gradcheck_input *up = &r->in[1];
    int64_t n = bk_golden_count(r->g, "%s/x", r->path);
    *up = *input(r, "x", true, false);
    double *ones = host(n, sizeof *ones);
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    up->values = ones, up->differentiate = false;
    r->n_in = 2;
    go(r, swiglu, NULL);
    same(r, "y", r->result.y);
    free(ones);
}

static bk_tensor *add(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_add(ctx, in[0], in[1]);
}

static void check_add(run *r)
{
    input(r, "a", true, false), input(r, "b", true, false);
    go(r, add, NULL);
    same(r, "y", r->result.y);
}

static bk_tensor *embedding(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_embedding(ctx, in[0], in[1]);
}

static void check_embedding(run *r)
{
    input(r, "table", true, false), ids(r, "ids");
    go(r, embedding, NULL);
    same(r, "y", r->result.y);
}

static bk_tensor *mse(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_recon_loss(ctx, BK_LOSS_MSE, in[0], in[1]);
}

/* The op has a gradient for its prediction only: either input takes that place once. */
static void check_mse(run *r)
{
    const double dy = bk_golden_attr(r->g, "dy", "%s", r->path);
    for (int swap = 0; swap < 2; swap++) {
        r->n_in = 0;
        input(r, swap ? "b" : "a", true, false), input(r, swap ? "a" : "b", false, false);
        bk_graph_result_free(&r->result);
        go(r, mse, &dy);
        same_number(r, "y", r->result.y[0]);
    }
}

static bk_tensor *cross_entropy(bk_ctx *ctx, bk_tensor **in, void *user)
{
    (void)user;
    return bk_cross_entropy(ctx, in[0], in[1]);
}

static void check_cross_entropy(run *r)
{
    bool mean = strcmp(bk_golden_attr_str(r->g, "reduction", "%s", r->path), "mean") == 0;
    int64_t n = bk_golden_count(r->g, "%s/target", r->path);
    double *dy = host(n, sizeof *dy), sum = 0;
    for (int64_t i = 0; mean && i < n; i++) dy[i] = bk_golden_attr(r->g, "dy", "%s", r->path) / (double)n;
    input(r, "logits", true, false), ids(r, "target");
    go(r, cross_entropy, mean ? dy : NULL);
    for (int64_t i = 0; i < n; i++) sum += r->result.y[i];
    if (mean) same_number(r, "y", sum / (double)n);
    else same(r, "y", r->result.y);
    free(dy);
}

/* What the op does not return, from the same kernel: codes of a stored quantizer. */
static bk_tensor *fakequant(bk_ctx *ctx, bk_tensor **in, void *user)
{
    run *r = user;
    const bk_fakequant_attr *a = &r->fakequant;
    bk_tensor *z = r->n_in == 3 ? in[2] : NULL, *y = bk_fakequant(ctx, in[0], in[1], z, a);
    bk_tensor *codes = bk_tensor_new(ctx, BK_I32, in[0]->ndim, in[0]->dim, "codes");
    if (!y || !codes) return NULL;
    bk_fakequant_fwd_args k = {.rows = bk_rows(in[0]), .cols = bk_last_dim(in[0]), .group = a->group, .per_row = a->per_row, .qmin = a->qmin,
                               .qmax = a->qmax, .x = in[0]->data, .s = in[1]->data, .z = bk_data(z), .codes = codes->data};
    if (bk_k_fakequant_fwd(ctx, &k) || bk_ctx_measuring(ctx)) return y;
    ck_assert_int_eq(bk_read_i32(r->be, codes, 0, r->codes, bk_numel(codes), bk_ctx_error(ctx)), BK_OK);
    return y;
}

static void same_codes(const run *r)
{
    const int32_t *want = bk_golden_i32(r->g, "%s/codes", r->path);
    for (int64_t i = 0; i < bk_golden_count(r->g, "%s/codes", r->path); i++)
        ck_assert_msg(r->codes[i] == want[i], "%s on %s: code %d is %d, not %d", r->path, r->be->name, (int)i, r->codes[i], want[i]);
}

/* Weights and static activations; heads of activations lie side by side in a row. */
static void check_stored(run *r)
{
    int64_t x[BK_GOLDEN_DIMS], steps = bk_golden_count(r->g, "%s/s", r->path);
    int nd = bk_golden_dims(r->g, x, "%s/x", r->path);
    bool weight = strncmp(r->path, "weight", 6) == 0, heads = nd == 4;
    int64_t cols = heads ? x[nd - 2] * x[nd - 1] : x[nd - 1];
    r->fakequant = (bk_fakequant_attr){.group = weight ? cols * x[0] / steps : cols / steps, .per_row = weight};
    r->fakequant.qmin = (int)attr(r, "qmin"), r->fakequant.qmax = (int)attr(r, "qmax");
    r->codes = host(bk_golden_count(r->g, "%s/x", r->path), sizeof *r->codes);
    input(r, "x", true, heads), input(r, "s", true, false);
    if (!attr(r, "symmetric")) input(r, "z", true, false);
    go(r, fakequant, NULL);
    same(r, "y", r->result.y);
    same_codes(r);
}

static bk_tensor *dynquant(bk_ctx *ctx, bk_tensor **in, void *user)
{
    run *r = user;
    const bk_dynquant_attr *a = &r->dynquant;
    const bk_tensor *x = in[0];
    bk_tensor *gamma = r->n_in > 1 ? in[1] : NULL, *beta = r->n_in > 2 ? in[2] : NULL;
    bk_tensor *y = bk_dynquant(ctx, in[0], gamma, beta, a), *codes = bk_tensor_new(ctx, BK_I32, x->ndim, x->dim, "codes");
    const int64_t groups = bk_numel(x) / a->group;
    bk_tensor *step = bk_real_new(ctx, 1, &groups, "step"), *zero = bk_real_new(ctx, 1, &groups, "zero");
    if (bk_ctx_status(ctx)) return NULL;
    bk_dynquant_fwd_args k = {.rows = bk_rows(x), .cols = bk_last_dim(x), .group = a->group, .symmetric = a->symmetric, .qmin = a->qmin,
                              .qmax = a->qmax, .x = x->data, .gamma = bk_data(gamma), .beta = bk_data(beta), .codes = codes->data,
                              .step = step->data, .zero = zero->data};
    if (bk_k_dynquant_fwd(ctx, &k) || bk_ctx_measuring(ctx)) return y;
    ck_assert_int_eq(bk_read_i32(r->be, codes, 0, r->codes, bk_numel(codes), bk_ctx_error(ctx)), BK_OK);
    ck_assert_int_eq(bk_read_f64(r->be, step, 0, r->step, bk_numel(step), bk_ctx_error(ctx)), BK_OK);
    ck_assert_int_eq(bk_read_f64(r->be, zero, 0, r->zero, bk_numel(zero), bk_ctx_error(ctx)), BK_OK);
    return y;
}

/* The step of a slice of zeros is free: any positive number. */
static void same_steps(const run *r, int64_t groups)
{
    const double *x = r->in[0].values, *want = bk_golden_f64(r->g, "%s/step", r->path);
    for (int64_t i = 0; i < groups; i++) {
        double top = 0;
        for (int64_t j = 0; j < r->dynquant.group; j++) top = fmax(top, fabs(x[i * r->dynquant.group + j]));
        double bound = top > 0 ? tolerance(r, "step") * want[i] : INFINITY;
        ck_assert_msg(r->step[i] > 0 && fabs(r->step[i] - want[i]) <= bound, "%s on %s: step %d is %.9g, not %.9g", r->path,
                      r->be->name, (int)i, r->step[i], want[i]);
    }
    const double *zero = r->dynquant.symmetric ? r->zero : bk_golden_f64(r->g, "%s/zero", r->path);
    for (int64_t i = 0; i < groups; i++)
        ck_assert_msg(r->zero[i] == zero[i], "%s on %s: zero point %d is %g", r->path, r->be->name, (int)i, r->zero[i]);
}

static void check_dynamic(run *r)
{
    int64_t n = bk_golden_count(r->g, "%s/x", r->path), groups = bk_golden_count(r->g, "%s/step", r->path);
    bool offset = strncmp(r->path, "offset", 6) == 0;
    r->dynquant = (bk_dynquant_attr){.group = n / groups, .symmetric = (int)attr(r, "symmetric")};
    r->dynquant.qmin = (int)attr(r, "qmin"), r->dynquant.qmax = (int)attr(r, "qmax");
    r->codes = host(n, sizeof *r->codes), r->step = host(groups, sizeof(double)), r->zero = host(groups, sizeof(double));
    input(r, "x", true, false);
    if (!offset) input(r, "gamma", true, false);
    if (!offset && !r->dynquant.symmetric) input(r, "beta", true, false);
    go(r, dynquant, NULL);
    same(r, "y", r->result.y);
    same_codes(r);
    same_steps(r, groups);
}

typedef struct suite {
    const char *file, *group;
    void (*check)(run *r);
} suite;

static const suite suites[] = {
    {"ops.h5", "rmsnorm", check_rmsnorm}, {"ops.h5", "linear", check_linear}, {"ops.h5", "rope", check_rope},
    {"ops.h5", "attention", check_attention}, {"ops.h5", "silu", check_silu}, {"ops.h5", "swiglu", check_swiglu},
    {"ops.h5", "add", check_add}, {"ops.h5", "embedding", check_embedding}, {"ops.h5", "mse", check_mse},
    {"ops.h5", "cross_entropy", check_cross_entropy}, {"fakequant.h5", "weight", check_stored}, {"fakequant.h5", "static", check_stored},
    {"fakequant.h5", "dynamic", check_dynamic}, {"fakequant.h5", "offset", check_dynamic},
};
enum { SUITES = sizeof suites / sizeof suites[0] };

static void run_group(const bk_backend *be, const suite *s)
{
    bk_golden *g = bk_golden_open(s->file);
    char **names = bk_golden_members(g, "%s", s->group), path[256];
    int n = 0;
    for (; names[n]; n++) {
        snprintf(path, sizeof path, "%s/%s", s->group, names[n]);
        run r = {.be = be, .g = g, .path = path};
        s->check(&r);
        bk_graph_result_free(&r.result);
        free(r.codes), free(r.step), free(r.zero);
    }
    bk_golden_close(g);
    ck_assert_msg(n > 0, "%s has no case of %s", s->file, s->group);
}

START_TEST(ref_f64_gives_golden)
{
    run_group(bk_backend_ref(BK_F64), &suites[_i]);
}
END_TEST

START_TEST(ref_f32_gives_golden)
{
    run_group(bk_backend_ref(BK_F32), &suites[_i]);
}
END_TEST

START_TEST(cpu_gives_golden)
{
    run_group(bk_backend_cpu(), &suites[_i]);
}
END_TEST

/* The table above covers the files: as many groups, and as many cases as they are known to have. */
START_TEST(no_golden_case_is_left_out)
{
    bk_golden *ops = bk_golden_open("ops.h5"), *quant = bk_golden_open("fakequant.h5");
    char **a = bk_golden_members(ops, "/"), **b = bk_golden_members(quant, "/");
    int groups = 0, cases = 0;
    while (a[groups]) groups++;
    for (int i = 0; b[i]; i++) groups++;
    for (int i = 0; i < SUITES; i++) {
        char **names = bk_golden_members(strcmp(suites[i].file, "ops.h5") ? quant : ops, "%s", suites[i].group);
        for (int k = 0; names[k]; k++) cases++;
    }
    ck_assert_int_eq(groups, SUITES);
    ck_assert_int_eq(cases, 46 + 183);
    bk_golden_close(ops);
    bk_golden_close(quant);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops_golden");
    TCase *t = tcase_create("golden");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, ref_f64_gives_golden, 0, SUITES);
    tcase_add_loop_test(t, ref_f32_gives_golden, 0, SUITES);
    tcase_add_loop_test(t, cpu_gives_golden, 0, SUITES);
    tcase_add_test(t, no_golden_case_is_left_out);
    suite_add_tcase(s, t);
    return run_suite(s);
}
