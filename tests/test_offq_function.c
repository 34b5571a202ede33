/* A model behind all that OffQ fits to it is the same model. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/offset.h"
#include "tests/h5_golden.h"
#include "tests/offq_model.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/suite.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_logits.h"

/* A model, read through all that OffQ fits to it on the backend `fits`. */
typedef struct turned {
    offq_model t;
    bk_offq_report report;
    bk_fitted *f;
    bk_source *src;
    double *want; /* logits of the model itself */
} turned;

static void open_turned(turned *x, const bk_backend *fits, const bk_config *c, bk_offq_options o)
{
    bk_error err = {0};
    offq_model_open(&x->t, c, NULL);
    o.seed = 9;
    bk_offq_stats s = offq_measure(bk_backend_cpu(), &x->t, NULL, &o);
    x->f = offq_fit(fits, c, &s, &o, &x->report);
    bk_offq_stats_free(&s);
    bk_rotation_spec spec = {.r1 = true,
                             .r2 = true,
                             .r2_per_kv_head = true,
                             .r3 = true,
                             .r4 = true,
                             .r4_group = x->report.down_group,
                             .seed = 9,
                             .fitted = x->f,
                             .be = bk_backend_cpu()};
    ok(bk_source_open(x->t.m, &spec, &x->src, &err), &err);
    x->want = bk_plain_logits(x->t.m, x->t.ids, OFFQ_TOKENS, NULL);
}

static void close_turned(turned *x)
{
    free(x->want);
    bk_source_close(x->src);
    bk_fitted_free(x->f);
    offq_model_close(&x->t);
}

static double off_by(const turned *x, const bk_backend *be)
{
    double *got = bk_tiny_logits(be, x->src, x->t.ids, OFFQ_TOKENS, NULL), off = bk_tiny_distance(got, x->want, OFFQ_TOKENS * x->t.c.vocab);
    free(got);
    return off;
}

static const bk_offq_options ways[] = {{.keys = BK_OFFQ_KEYS_ON},
                                       {.keys = BK_OFFQ_KEYS_OFF},
                                       {.zigzag = true, .spread = BK_OFFQ_GAUSSIAN, .keys = BK_OFFQ_KEYS_ON},
                                       {.basis = BK_OFFQ_ALL_TOKENS, .score = BK_OFFQ_VARIANCE},
                                       {.tail = 1e-6}};
enum { WAYS = sizeof ways / sizeof *ways };

static void check_logits(int i, const bk_backend *be, double tol)
{
    bk_config c = offq_config(i / WAYS);
    turned x;
    open_turned(&x, bk_backend_cpu(), &c, ways[i % WAYS]);
    double off = off_by(&x, be);
    ck_assert_msg(off <= tol, "%s, way %d: logits are off by %g", offq_shape(i / WAYS), i % WAYS, off);
    close_turned(&x);
}

START_TEST(logits_stay_in_f64)
{
    check_logits(_i, bk_backend_ref(BK_F64), 1e-11);
}
END_TEST

START_TEST(logits_stay_in_f32)
{
    check_logits(_i, bk_backend_cpu(), 3e-5);
}
END_TEST

/* Beyond this order eigenvectors take seconds: any orthogonal matrix stands for them, and a product that only the report shows is 0. */
enum { EIGENVECTORS = 1024 };

static bk_status some_eigh(const bk_eigh_args *a, const bk_work *w)
{
    if (a->n <= EIGENVECTORS) return bk_backend_cpu()->k.eigh(a, w);
    bk_tiny_orthogonal(a->vectors, a->n, 5);
    for (int64_t i = 0; i < a->n; i++) a->values[i] = (double)(a->n - i);
    return BK_OK;
}

static bk_status some_product(const bk_gemm_args *a, const bk_work *w)
{
    if (a->n <= EIGENVECTORS) return bk_backend_cpu()->k.gemm_f64(a, w);
    memset(a->c, 0, (size_t)(a->m * a->n) * sizeof(double));
    return BK_OK;
}

static const int64_t sizes[] = {576, 896, 960, 1536, 2048, 4096};
#ifdef __SANITIZE_THREAD__ /* which multiplies the 1.2 GB that the largest takes */
enum { REAL_SIZES = sizeof sizes / sizeof *sizes - 1 };
#else
enum { REAL_SIZES = sizeof sizes / sizeof *sizes };
#endif

/* One layer, grouped heads, biases everywhere, tied; keys have a basis, the input of down two groups. Demanded are 1e-3 and 1e-9; what rounding
 * leaves is far below the tolerances of small models. */
START_TEST(all_of_it_leaves_the_logits_alone_at_the_sizes_of_real_models)
{
    static bk_backend fits;
    bk_config c = offq_config(0);
    turned x;
    fits = *bk_backend_cpu();
    fits.k.eigh = some_eigh;
    fits.k.gemm_f64 = some_product;
    c.hidden = sizes[_i];
    c.inter = 64;
    c.layers = 1;
    ck_assert(c.kv_heads < c.heads && c.head_dim * c.heads != c.hidden && c.qkv_bias && c.o_bias && c.mlp_bias && c.tied);
    open_turned(&x, &fits, &c, (bk_offq_options){.keys = BK_OFFQ_KEYS_ON, .down_group = 32});
    ck_assert(x.f->r1 && x.f->r3 && x.f->down_order && x.f->down_signs && x.report.groups == c.hidden / x.report.group && x.report.groups > 1);
    double single = off_by(&x, bk_backend_cpu()), exact = off_by(&x, bk_backend_ref(BK_F64));
    ck_assert_msg(single <= 3e-5, "hidden size %lld: logits are off by %g in f32", (long long)c.hidden, single);
    ck_assert_msg(exact <= 1e-11, "hidden size %lld: logits are off by %g in f64", (long long)c.hidden, exact);
    close_turned(&x);
}
END_TEST

/* P4, signs and R4 in groups. */
START_TEST(golden_mlp)
{
    bk_golden *g = bk_golden_open("offq.h5");
    bk_error err = {0};
    const int64_t n = 12, inter = 24, rows = 10;
    bk_config c = {.hidden = n, .inter = inter, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .mlp_bias = true};
    bk_fitted *f = bk_tiny_fitted(&c, BK_TINY_PART(DOWN_ORDER) | BK_TINY_PART(DOWN_SIGNS), 1);
    const double *scores = bk_golden_f64(g, "mlp/scores");
    const int64_t *src = bk_golden_i64(g, "mlp/src");
    int64_t dims[BK_GOLDEN_DIMS];
    bk_golden_dims(g, dims, "mlp/signs");
    ok(bk_offset_order(scores, inter, dims[0], false, f->down_order, &err), &err);
    for (int64_t i = 0; i < inter; i++) {
        ck_assert_int_eq(f->down_order[i], src[i]);
        f->down_signs[i] = (int8_t)bk_golden_i32(g, "mlp/signs")[i];
    }
    float gain[12] = {0};
    bk_rotation *r;
    ok(bk_rotation_create(&c, &(bk_rotation_spec){.r4 = true, .r4_group = dims[1], .fitted = f}, gain, &r, &err), &err);
    double small[64] = {0};
    bk_weights_view w = {.type = BK_F64};
    for (int i = 0; i < BK_W_COUNT; i++) w.w[i] = small;
    w.w[BK_W_GATE] = bk_golden_f64(g, "mlp/gate"), w.b[BK_W_GATE] = bk_golden_f64(g, "mlp/gate_bias");
    w.w[BK_W_UP] = bk_golden_f64(g, "mlp/up"), w.b[BK_W_UP] = bk_golden_f64(g, "mlp/up_bias");
    w.w[BK_W_DOWN] = bk_golden_f64(g, "mlp/down");
    ok(bk_rotation_block_view(r, 0, &w, &err), &err);
    offq_same(w.w[BK_W_GATE], bk_golden_f64(g, "mlp/fused/gate"), inter * n, 0, "gate");
    offq_same(w.b[BK_W_GATE], bk_golden_f64(g, "mlp/fused/gate_bias"), inter, 0, "bias of gate");
    offq_same(w.w[BK_W_UP], bk_golden_f64(g, "mlp/fused/up"), inter * n, 0, "up");
    offq_same(w.b[BK_W_UP], bk_golden_f64(g, "mlp/fused/up_bias"), inter, 0, "bias of up");
    offq_same(w.w[BK_W_DOWN], bk_golden_f64(g, "mlp/fused/down"), inter * n, 1e-14, "down");

    const double *x = bk_golden_f64(g, "mlp/x"), *gate = w.w[BK_W_GATE], *up = w.w[BK_W_UP], *down = w.w[BK_W_DOWN];
    double z[240], out[120] = {0};
    for (int64_t k = 0; k < rows * inter; k++) {
        double a = ((double *)w.b[BK_W_GATE])[k % inter], b = ((double *)w.b[BK_W_UP])[k % inter];
        for (int64_t i = 0; i < n; i++) {
            a += gate[k % inter * n + i] * x[k / inter * n + i];
            b += up[k % inter * n + i] * x[k / inter * n + i];
        }
        z[k] = a / (1 + exp(-a)) * b;
    }
    offq_same(z, bk_golden_f64(g, "mlp/z_permuted"), rows * inter, 1e-12, "z, permuted");
    ok(bk_hadamard_apply_f64(bk_rotation_r4(r), NULL, z, rows, inter, 1, &err), &err);
    offq_same(z, bk_golden_f64(g, "mlp/z_rotated"), rows * inter, 1e-12, "z, rotated");
    for (int64_t k = 0; k < rows * n; k++)
        for (int64_t i = 0; i < inter; i++) out[k] += z[k / n * inter + i] * down[k % n * inter + i];
    offq_same(out, bk_golden_f64(g, "mlp/out"), rows * n, 1e-12, "output");
    bk_rotation_free(r);
    bk_fitted_free(f);
    bk_golden_close(g);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offq_function");
    TCase *tc = tcase_create("function");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, logits_stay_in_f64, 0, OFFQ_SHAPES * WAYS);
    tcase_add_loop_test(tc, logits_stay_in_f32, 0, OFFQ_SHAPES * WAYS);
    tcase_add_loop_test(tc, all_of_it_leaves_the_logits_alone_at_the_sizes_of_real_models, 0, REAL_SIZES);
    tcase_add_test(tc, golden_mlp);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
