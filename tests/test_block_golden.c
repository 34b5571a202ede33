/* One block, full precision and quantized, against golden values: what stands at every site, integer codes, output, loss, every gradient. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/steps.h"
#include "tests/golden_block.h"
#include "tests/ok.h"
#include "tests/suite.h"

static const char *const cases[] = {"fp", "fp_bias", "fp_qknorm", "fp_hd32", "fp_noprefix", "fp_r3r4", "o2_w4a4kv4_sym", "o2_w4a4kv4_asym",
                                    "o2_w4a8kv4_sym", "o1_w4a4kv4_sym", "o1_w4a4kv4_asym", "o1_w4a8kv4_sym", "o1_w4a4kv4_plainkey", "w3g32_asym",
                                    "o2_w4a4kv4_bias_qknorm_hd32"};
enum { CASES = sizeof cases / sizeof cases[0] };

/* What one pass leaves behind. */
typedef struct pass {
    bk_golden_block gb;
    bk_ctx *ctx;
    bk_error err;
    bk_tensor *x, *target;
    bk_block_values v;
    bk_tensor *swiglu, *loss;
    bk_tensor *codes[BK_SITE_COUNT], *step[BK_SITE_COUNT], *zero[BK_SITE_COUNT], *w_codes[BK_W_COUNT];
} pass;

static void keep_swiglu(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    pass *p = user;
    if (site != BK_SITE_DOWN_RAW) return;
    p->swiglu = bk_real_new(ctx, x->ndim, x->dim, "swiglu");
    if (!bk_ctx_measuring(ctx)) ok(bk_ctx_backend(ctx)->copy(p->swiglu->data, x->data, (size_t)bk_numel(x) * bk_dtype_size(x->dtype)), &p->err);
}

static const bk_tensor *at_site(const pass *p, int site)
{
    const bk_block_values *v = &p->v;
    const bk_tensor *at[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = v->attn_in, [BK_SITE_O_IN] = v->o_in, [BK_SITE_MLP_IN] = v->mlp_in,
                                          [BK_SITE_DOWN_IN] = v->down_in, [BK_SITE_KEY] = v->k, [BK_SITE_VALUE] = v->v};
    return at[site];
}

static const bk_qspec *spec_of(const pass *p, int site)
{
    const bk_block_quant *q = &p->gb.quant;
    return site == BK_SITE_KEY ? &q->key : site == BK_SITE_VALUE ? &q->value : &q->activation;
}

static void *parameter(const pass *p, int site, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", bk_site_name[site], what);
    return bk_data(bk_params_find(p->gb.b->params, name));
}

/* Codes of a site, by the kernels under the parameters of the block. */
static void site_codes(pass *p, int site)
{
    const bk_qspec *q = spec_of(p, site);
    const bk_tensor *x = at_site(p, site);
    if (q->bits >= 16) return;
    int64_t rows = bk_rows(x), cols = bk_last_dim(x), group = q->granularity == BK_PER_HEAD ? p->gb.b->cfg.head_dim : cols;
    int64_t slices = rows * cols / group;
    int qmin, qmax;
    bk_code_range(q->bits, q->symmetric, &qmin, &qmax);
    p->codes[site] = bk_tensor_new(p->ctx, BK_I32, x->ndim, x->dim, "codes");
    p->step[site] = bk_real_new(p->ctx, 1, &slices, "step");
    p->zero[site] = bk_real_new(p->ctx, 1, &slices, "zero");
    bk_tensor *y = bk_real_new(p->ctx, x->ndim, x->dim, "y");
    ok(bk_ctx_status(p->ctx), &p->err);
    if (!strcmp(q->quantizer, "static"))
        ok(bk_k_fakequant_fwd(p->ctx, &(bk_fakequant_fwd_args){.rows = rows, .cols = cols, .group = group, .qmin = qmin, .qmax = qmax,
                                                               .x = x->data, .s = parameter(p, site, "step"), .z = parameter(p, site, "zero"),
                                                               .y = y->data, .codes = p->codes[site]->data}), &p->err);
    else
        ok(bk_k_dynquant_fwd(p->ctx, &(bk_dynquant_fwd_args){.rows = rows, .cols = cols, .group = group, .symmetric = q->symmetric, .qmin = qmin,
                                                             .qmax = qmax, .x = x->data, .gamma = parameter(p, site, "gamma"),
                                                             .beta = parameter(p, site, "beta"), .y = y->data, .step = p->step[site]->data,
                                                             .zero = p->zero[site]->data, .codes = p->codes[site]->data}), &p->err);
}

static void weight_codes(pass *p, int w)
{
    bk_qinst *q = &p->gb.b->wq[w];
    if (!q->q) return;
    p->w_codes[w] = bk_tensor_new(p->ctx, BK_I32, 2, p->gb.b->w[w]->dim, "codes");
    ok(bk_ctx_status(p->ctx), &p->err);
    ok(q->q->codes(p->ctx, q->state.bytes, p->gb.b->w[w], &(bk_codes){.codes = p->w_codes[w]}), &p->err);
}

static void step(pass *p)
{
    bk_block *b = p->gb.b;
    bk_step_begin(p->ctx);
    bk_ctx_record(p->ctx, true);
    ok(bk_params_zero_grad(p->ctx, b->params), &p->err);
    bk_block_forward_values(p->ctx, b, p->x, &p->v);
    p->loss = bk_recon_loss(p->ctx, BK_LOSS_MSE, p->v.y, p->target);
    ok(bk_ctx_status(p->ctx), &p->err);
    ok(bk_backward(p->ctx, p->loss, NULL), &p->err);
    bk_ctx_record(p->ctx, false);
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) site_codes(p, i);
    for (int i = 0; i < BK_W_COUNT; i++) weight_codes(p, i);
}

/* A leaf that the block itself never trains gets a gradient all the same. */
static void want_gradient(pass *p, bk_tensor *t)
{
    if (!t || t->grad) return;
    ok(bk_tensor_create(p->gb.be, p->gb.be->dtype, t->ndim, t->dim, t->name, &t->grad, &p->err), &p->err);
    t->requires_grad = true;
}

static void drop_gradient(pass *p, bk_tensor *t)
{
    if (!t) return;
    bk_tensor_destroy(p->gb.be, t->grad);
    t->grad = NULL;
}

static bk_tensor *input(pass *p, const char *name)
{
    int64_t dim[BK_GOLDEN_DIMS];
    bk_tensor *t;
    int nd = bk_golden_dims(p->gb.g, dim, "%s/%s", p->gb.path, name);
    ok(bk_tensor_create(p->gb.be, p->gb.be->dtype, nd, dim, name, &t, &p->err), &p->err);
    ok(bk_write_f64(p->gb.be, t, 0, bk_golden_f64(p->gb.g, "%s/%s", p->gb.path, name), bk_numel(t), &p->err), &p->err);
    return t;
}

static void open_pass(pass *p, const char *name, const bk_backend *be)
{
    bk_golden *g = bk_golden_open("block.h5");
    *p = (pass){0};
    bk_golden_block_open(&p->gb, g, name, be, bk_golden_attr_i64(g, "T", "%s", name), true);
    p->x = input(p, "x");
    p->target = input(p, "target");
    want_gradient(p, p->x);
    for (int i = 0; i < BK_W_COUNT; i++) want_gradient(p, p->gb.b->b[i]);
    for (int i = 0; i < BK_NORM_COUNT; i++) want_gradient(p, p->gb.b->norm[i]);
    p->gb.b->tap = keep_swiglu;
    p->gb.b->tap_user = p;
    ck_assert_ptr_nonnull(p->ctx = bk_ctx_new(be, &p->err));
    step(p);
    ok(bk_ctx_commit(p->ctx), &p->err);
    step(p);
}

static void close_pass(pass *p)
{
    bk_golden *g = p->gb.g;
    drop_gradient(p, p->x);
    for (int i = 0; i < BK_W_COUNT; i++) drop_gradient(p, p->gb.b->b[i]);
    for (int i = 0; i < BK_NORM_COUNT; i++) drop_gradient(p, p->gb.b->norm[i]);
    bk_tensor_destroy(p->gb.be, p->x);
    bk_tensor_destroy(p->gb.be, p->target);
    bk_ctx_free(p->ctx);
    bk_golden_block_close(&p->gb);
    bk_golden_close(g);
}

/* --- comparisons --- */

static void same_mid(const pass *p, const char *name, const bk_tensor *t)
{
    char path[80];
    snprintf(path, sizeof path, "mid/%s", name);
    bk_golden_same(&p->gb, path, t);
}

static void check_mid(const pass *p)
{
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) same_mid(p, bk_site_name[i], at_site(p, i));
    same_mid(p, "query", p->v.q);
    same_mid(p, "residual", p->v.h);
    if (bk_golden_has(p->gb.g, "%s/mid/swiglu", p->gb.path)) same_mid(p, "swiglu", p->swiglu); /* where R4 makes it another value than down_in */
    ck_assert(p->gb.b->r4 == bk_golden_has(p->gb.g, "%s/mid/swiglu", p->gb.path));
    bk_golden_same(&p->gb, "out", p->v.y);
}

static void check_loss(const pass *p)
{
    double got, want = bk_golden_attr(p->gb.g, "loss", "%s", p->gb.path);
    double tol = bk_golden_attr(p->gb.g, p->gb.be->dtype == BK_F64 ? "tol_f64" : "tol_f32", "%s", p->gb.path);
    bk_error err = {0};
    ok(bk_read_f64(p->gb.be, p->loss, 0, &got, 1, &err), &err);
    ck_assert_msg(fabs(got - want) <= tol * want, "%s on %s: loss %.15g, not %.15g", p->gb.path, p->gb.be->name, got, want);
}

static int check_gradients(const pass *p)
{
    int n = 0;
    char path[64];
    for (char **name = bk_golden_members(p->gb.g, "%s/grad", p->gb.path); *name; name++, n++) {
        const bk_tensor *t = strcmp(*name, "x") ? bk_golden_block_tensor(&p->gb, *name) : p->x;
        ck_assert_msg(t->grad != NULL, "%s: %s has no gradient", p->gb.path, *name);
        snprintf(path, sizeof path, "grad/%s", *name);
        bk_golden_same(&p->gb, path, t->grad);
    }
    return n;
}

static void same_codes(const pass *p, const char *name, const bk_tensor *t)
{
    bk_error err = {0};
    int64_t n = bk_golden_count(p->gb.g, "%s/codes/%s", p->gb.path, name);
    const int32_t *want = bk_golden_i32(p->gb.g, "%s/codes/%s", p->gb.path, name);
    ck_assert_msg(t != NULL && bk_numel(t) == n, "%s: no codes of %s", p->gb.path, name);
    int32_t *got = malloc((size_t)n * sizeof *got);
    ck_assert_ptr_nonnull(got);
    ok(bk_read_i32(p->gb.be, t, 0, got, n, &err), &err);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "%s on %s: code %d of %s is %d, not %d", p->gb.path, p->gb.be->name, (int)i, name, got[i], want[i]);
    free(got);
}

static void check_codes(const pass *p)
{
    char name[64];
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!p->codes[i]) continue;
        same_codes(p, bk_site_name[i], p->codes[i]);
        if (strcmp(spec_of(p, i)->quantizer, "dynamic")) continue;
        snprintf(name, sizeof name, "step_%s", bk_site_name[i]);
        same_mid(p, name, p->step[i]);
        snprintf(name, sizeof name, "zero_%s", bk_site_name[i]);
        if (!spec_of(p, i)->symmetric) same_mid(p, name, p->zero[i]);
    }
    for (int i = 0; i < BK_W_COUNT; i++) {
        if (!p->w_codes[i]) continue;
        snprintf(name, sizeof name, "w_%s", bk_linear_name[i]);
        same_codes(p, name, p->w_codes[i]);
    }
}

static void check_case(const bk_backend *be, const char *name)
{
    pass p;
    open_pass(&p, name, be);
    check_mid(&p);
    check_loss(&p);
    check_codes(&p);
    ck_assert_int_ge(check_gradients(&p), 10);
    close_pass(&p);
}

START_TEST(ref_f64)
{
    check_case(bk_backend_ref(BK_F64), cases[_i]);
}
END_TEST

START_TEST(ref_f32)
{
    check_case(bk_backend_ref(BK_F32), cases[_i]);
}
END_TEST

START_TEST(cpu_f32)
{
    check_case(bk_backend_cpu(), cases[_i]);
}
END_TEST

START_TEST(guard_f32)
{
    check_case(bk_backend_guard(BK_F32), cases[_i]);
}
END_TEST

START_TEST(every_case_is_listed)
{
    bk_golden *g = bk_golden_open("block.h5");
    int n = 0;
    for (char **name = bk_golden_members(g, "/"); *name; name++, n++) {
        int i = 0;
        while (i < CASES && strcmp(*name, cases[i])) i++;
        ck_assert_msg(i < CASES, "%s is not tested", *name);
    }
    ck_assert_int_eq(n, CASES);
    bk_golden_close(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block golden");
    TCase *t = tcase_create("cases");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_case_is_listed);
    tcase_add_loop_test(t, ref_f64, 0, CASES);
    tcase_add_loop_test(t, ref_f32, 0, CASES);
    tcase_add_loop_test(t, cpu_f32, 0, CASES);
    tcase_add_loop_test(t, guard_f32, 0, CASES);
    suite_add_tcase(s, t);
    return run_suite(s);
}
