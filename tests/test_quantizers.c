/* Laws that every registered quantizer keeps (a new one is held to them as it stands), and the edge cases of decisions 2 to 5 and 22. Those of the
 * plugin that BK_PLUGIN names, else of the example, are registered too. */
#include <check.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "quant/plugin.h"
#include "quant/steps.h"
#include "tests/tiny_block.h"

enum { ROWS = 6, COLS = 32, HEAD = 8, N = ROWS * COLS };

static void ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s", bk_status_name(st ? st : err->code), err->msg);
}

/* One way to use one quantizer. */
typedef struct use {
    const bk_quantizer *q;
    bk_qspec spec;
    bool weights;
    char what[96];
} use;

/* All combinations of quantizer, place, bits, symmetry and granularity that a setup accepts. */
static int all_uses(use *out, int room)
{
    static const int bits[] = {2, 3, 4, 8};
    int n = 0;
    for (int i = 0; i < bk_quantizer_count * 2 * 4 * 2 * 2 * BK_GRANULARITY_COUNT; i++) {
        int k = i;
        use u = {.q = bk_quantizers[k % bk_quantizer_count]};
        k /= bk_quantizer_count;
        u.weights = k % 2;
        u.spec = bk_tiny_spec(u.q->name, bits[k / 2 % 4], k / 8 % 2, (bk_granularity)(k / 32 % BK_GRANULARITY_COUNT), 16);
        u.spec.clip = true;
        u.spec.restricted = k / 16 % 2;
        bk_qinst q;
        bk_error err = {0};
        bk_qshape shape = {.rows = u.weights ? ROWS : 0, .cols = COLS, .head_dim = u.weights ? 0 : HEAD, .name = "x"};
        if (bk_qinst_setup(&q, &u.spec, &shape, &err)) continue;
        ck_assert_int_lt(n, room);
        snprintf(u.what, sizeof u.what, "%s %s %d bits %s per %s%s", u.q->name, u.weights ? "weights" : "activations", u.spec.bits,
                 u.spec.symmetric ? "symmetric" : "asymmetric", bk_granularity_name[u.spec.granularity], u.spec.restricted ? " restricted" : "");
        out[n++] = u;
    }
    return n;
}

/* An instance with its parameters, initialised on x [ROWS, COLS], and what it makes of it. */
typedef struct run {
    const bk_backend *be;
    use u;
    bk_error err;
    bk_params *p;
    bk_qinst q;
    bk_ctx *ctx;
    bk_tensor *x, *y;
    bool train;
} run;

static int64_t group_of(const use *u)
{
    switch (u->spec.granularity) {
    case BK_PER_HEAD: return HEAD;
    case BK_PER_GROUP: return u->spec.group;
    default: return COLS;
    }
}

/* Min and max per unit, as the driver measures them. */
static void ranges(const run *r, const float *x, float *lo, float *hi)
{
    int64_t group = group_of(&r->u), per_row = COLS / group;
    for (int64_t i = 0; i < N; i++) {
        int64_t unit = (r->u.weights ? i / COLS * per_row : 0) + i % COLS / group;
        bool first = (r->u.weights || i < COLS) && i % group == 0;
        lo[unit] = first ? x[i] : fminf(lo[unit], x[i]);
        hi[unit] = first ? x[i] : fmaxf(hi[unit], x[i]);
    }
}

static void pass(run *r)
{
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, r->train);
    ok(bk_params_zero_grad(r->ctx, r->p), &r->err);
    r->y = bk_qinst_apply(r->ctx, &r->q, r->x);
    ok(bk_ctx_status(r->ctx), &r->err);
    if (!r->train) return;
    bk_tensor *dy = bk_real_new(r->ctx, 2, r->y->dim, "cotangent");
    ok(bk_ctx_status(r->ctx), &r->err);
    float c[N];
    for (int i = 0; i < N; i++) c[i] = (float)bk_rng_normal(11, BK_RNG_TEST, (uint64_t)i);
    if (!bk_ctx_measuring(r->ctx)) ok(bk_write(r->be, dy, 0, c, N, &r->err), &r->err);
    ok(bk_backward(r->ctx, r->y, dy), &r->err);
}

static void open_run(run *r, const bk_backend *be, const use *u, const float x[N], bool train)
{
    int64_t dim[2] = {ROWS, COLS};
    *r = (run){.be = be, .u = *u, .train = train};
    bk_qshape shape = {.rows = u->weights ? ROWS : 0, .cols = COLS, .head_dim = u->weights ? 0 : HEAD, .name = "x"};
    ok(bk_qinst_setup(&r->q, &u->spec, &shape, &r->err), &r->err);
    ck_assert_ptr_nonnull(r->p = bk_params_new(be, &r->err));
    ok(r->q.q->params(r->q.state.bytes, r->p, "x"), &r->err);
    ok(bk_params_commit(r->p, true), &r->err);
    ck_assert_ptr_nonnull(r->ctx = bk_ctx_new(be, &r->err));
    ok(bk_tensor_create(be, be->dtype, 2, dim, "x", &r->x, &r->err), &r->err);
    ok(bk_write(be, r->x, 0, x, N, &r->err), &r->err);
    if (train) {
        ok(bk_tensor_create(be, be->dtype, 2, dim, "x", &r->x->grad, &r->err), &r->err);
        r->x->requires_grad = true;
    }
    float lo[N], hi[N];
    ranges(r, x, lo, hi);
    bool range = r->q.q->needs_range(r->q.state.bytes);
    ok(r->q.q->init(r->ctx, r->q.state.bytes, range ? lo : NULL, range ? hi : NULL), &r->err);
    pass(r);
    ok(bk_ctx_commit(r->ctx), &r->err);
    pass(r);
}

static void close_run(run *r)
{
    bk_tensor_destroy(r->be, r->x->grad);
    bk_tensor_destroy(r->be, r->x);
    bk_ctx_free(r->ctx);
    bk_params_free(r->p);
}

static void values(run *r, const bk_tensor *t, double *out)
{
    ok(bk_read_f64(r->be, t, 0, out, bk_numel(t), &r->err), &r->err);
}

static void random_values(float x[N], double scale)
{
    for (int i = 0; i < N; i++) x[i] = (float)(scale * bk_rng_normal(3, BK_RNG_TEST, (uint64_t)i));
}

typedef void (*law)(const bk_backend *be, const use *u);

static void for_all(law check, const bk_backend *be)
{
    static use u[512];
    int n = all_uses(u, 512), seen = 0;
    for (int i = 0; i < n; i++) check(be, &u[i]);
    for (int k = 0; k < bk_quantizer_count; k++)
        for (int i = 0; i < n; i++)
            if (u[i].q == bk_quantizers[k]) {
                seen++;
                break;
            }
    ck_assert_msg(seen == bk_quantizer_count, "only %d of %d quantizers could be set up", seen, bk_quantizer_count);
}

static const bk_backend *backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}
enum { BACKENDS = 4 };

/* --- laws --- */

static void few_values(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N];
    run r;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    int64_t group = group_of(u);
    for (int64_t g = 0; g < N; g += group) {
        int distinct = 0;
        for (int64_t i = g; i < g + group; i++) {
            int64_t j = g;
            while (j < i && y[j] != y[i]) j++;
            distinct += j == i;
        }
        ck_assert_msg(distinct <= 1 << u->spec.bits, "%s on %s: %d values in a group", u->what, be->name, distinct);
    }
    close_run(&r);
}

START_TEST(a_group_holds_no_more_values_than_codes)
{
    for_all(few_values, backend(_i));
}
END_TEST

static void error_bound(const bk_backend *be, const use *u)
{
    float x[N], lo[N], hi[N];
    double y[N];
    run r;
    if (u->spec.granularity == BK_PER_TOKEN || u->spec.restricted) return; /* their ranges differ; the others suffice */
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    ranges(&r, x, lo, hi);
    int64_t group = group_of(u), per_row = COLS / group;
    for (int64_t i = 0; i < N; i++) {
        int64_t unit = (u->weights ? i / COLS * per_row : 0) + i % COLS / group;
        double m = fmax(fabs((double)lo[unit]), fabs((double)hi[unit]));
        double step = (u->spec.symmetric ? 2 * m : (double)hi[unit] - (double)lo[unit]) / ((1 << u->spec.bits) - 1);
        ck_assert_msg(fabs(y[i] - (double)x[i]) <= (u->spec.symmetric ? 0.5001 : 1.0001) * step, "%s on %s: %g became %g, a step is %g", u->what, be->name,
                      (double)x[i], y[i], step);
    }
    close_run(&r);
}

START_TEST(values_move_by_half_a_step_at_most)
{
    for_all(error_bound, backend(_i));
}
END_TEST

static void eight_bits(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N], error = 0, size = 0;
    run r;
    if (u->spec.bits != 8) return;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    for (int i = 0; i < N; i++) {
        error += (y[i] - (double)x[i]) * (y[i] - (double)x[i]);
        size += (double)x[i] * (double)x[i];
    }
    ck_assert_msg(sqrt(error / size) < 0.012, "%s on %s: relative error %g", u->what, be->name, sqrt(error / size));
    close_run(&r);
}

START_TEST(eight_bits_are_nearly_the_identity)
{
    for_all(eight_bits, backend(_i));
}
END_TEST

/* With stored steps, what has been quantized stays as it is. */
static void idempotent(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N], again[N];
    run r;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    if (r.q.q->needs_range(r.q.state.bytes)) {
        values(&r, r.y, y);
        ok(bk_write_f64(be, r.x, 0, y, N, &r.err), &r.err);
        pass(&r);
        values(&r, r.y, again);
        for (int i = 0; i < N; i++) ck_assert_msg(y[i] == again[i], "%s on %s: %.9g became %.9g", u->what, be->name, y[i], again[i]);
    }
    close_run(&r);
}

START_TEST(quantizing_twice_changes_nothing)
{
    for_all(idempotent, backend(_i));
}
END_TEST

static void codes_give_apply(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N];
    int32_t c[N];
    int lo, hi;
    run r;
    bk_codes out = {.codes = NULL};
    if (!u->q->codes || !u->weights) return;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    bk_code_range(u->spec.bits, u->spec.symmetric, &lo, &hi);
    ok(bk_tensor_create(be, BK_I32, 2, r.x->dim, "codes", &out.codes, &r.err), &r.err);
    ok(u->q->codes(r.ctx, r.q.state.bytes, r.x, &out), &r.err);
    ok(bk_read_i32(be, out.codes, 0, c, N, &r.err), &r.err);
    float *s = bk_tiny_read(be, bk_params_find(r.p, "x.step")), *z = u->spec.symmetric ? NULL : bk_tiny_read(be, bk_params_find(r.p, "x.zero"));
    int64_t group = group_of(u);
    ck_assert_int_eq(out.qmin, lo);
    for (int i = 0; i < N; i++) {
        float want = ((float)c[i] - (z ? z[i / group] : 0)) * s[i / group];
        ck_assert_msg(c[i] >= lo && c[i] <= hi, "%s on %s: code %d", u->what, be->name, c[i]);
        if (be->dtype == BK_F32) ck_assert_msg((double)want == y[i], "%s on %s: code %d gives %.9g, apply %.9g", u->what, be->name, c[i], (double)want, y[i]);
    }
    free(s);
    free(z);
    bk_tensor_destroy(be, out.codes);
    close_run(&r);
}

START_TEST(codes_lie_in_range_and_give_back_the_values)
{
    for_all(codes_give_apply, backend(_i));
}
END_TEST

static void has_gradients(const bk_backend *be, const use *u)
{
    float x[N], factor[N];
    double g[N];
    run r;
    random_values(x, 1);
    open_run(&r, be, u, x, true);
    for (int64_t i = 0; i < r.q.q->units(r.q.state.bytes); i++) factor[i] = 0.7f; /* something must be clipped: zero points move nowhere else */
    ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    pass(&r);
    bool any = false;
    for (int i = 0; i < bk_params_count(r.p); i++) {
        int group;
        bk_tensor *t = bk_params_at(r.p, i, &group);
        if (group == BK_GROUP_CONSTANT) continue;
        any = true;
        values(&r, t->grad, g);
        double sum = 0;
        for (int64_t k = 0; k < bk_numel(t); k++) {
            ck_assert_msg(isfinite(g[k]), "%s on %s: the gradient of %s is not finite", u->what, be->name, t->name);
            sum += fabs(g[k]);
        }
        ck_assert_msg(sum > 0, "%s on %s: %s gets no gradient", u->what, be->name, t->name);
    }
    ck_assert_msg(any, "%s: nothing to learn", u->what);
    values(&r, r.x->grad, g);
    for (int i = 0; i < N; i++) ck_assert_msg(isfinite(g[i]), "%s on %s: gradient of x", u->what, be->name);
    ck_assert_msg(g[0] != 0 || g[1] != 0 || g[2] != 0, "%s on %s: x gets no gradient", u->what, be->name);
    close_run(&r);
}

START_TEST(every_learnable_gets_a_gradient)
{
    for_all(has_gradients, backend(_i));
}
END_TEST

static void factor_one(const bk_backend *be, const use *u)
{
    float x[N], factor[N];
    run r;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    int64_t n = r.q.q->units(r.q.state.bytes);
    float *before[8] = {0};
    int count = bk_params_count(r.p);
    ck_assert_int_le(count, 8);
    for (int i = 0; i < count; i++) before[i] = bk_tiny_read(be, bk_params_at(r.p, i, NULL));
    for (int64_t i = 0; i < n; i++) factor[i] = 0.5f;
    ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    for (int64_t i = 0; i < n; i++) factor[i] = 1;
    ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    for (int i = 0; i < count; i++) {
        const bk_tensor *t = bk_params_at(r.p, i, NULL);
        float *after = bk_tiny_read(be, t);
        ck_assert_msg(!memcmp(before[i], after, (size_t)bk_numel(t) * sizeof(float)), "%s on %s: factor 1 changed %s", u->what, be->name, t->name);
        free(after);
        free(before[i]);
    }
    close_run(&r);
}

START_TEST(factors_multiply_what_init_gave)
{
    for_all(factor_one, backend(_i));
}
END_TEST

/* A row of zeros among others, and nothing but zeros (cases of the field: 3). */
static void zeros(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N];
    run r;
    random_values(x, 1);
    for (int i = 0; i < COLS; i++) x[2 * COLS + i] = 0;
    for (int all = 0; all < 2; all++) {
        if (all) memset(x, 0, sizeof x);
        open_run(&r, be, u, x, true);
        values(&r, r.y, y);
        for (int i = 0; i < N; i++) {
            ck_assert_msg(isfinite(y[i]), "%s on %s: %g", u->what, be->name, y[i]);
            ck_assert_msg(x[i] != 0 || y[i] == 0, "%s on %s: zero became %g", u->what, be->name, y[i]);
        }
        for (int i = 0; i < bk_params_count(r.p); i++) {
            const bk_tensor *t = bk_params_at(r.p, i, NULL);
            float *s = bk_tiny_read(be, t), *g = bk_tiny_read(be, t->grad);
            for (int64_t k = 0; k < bk_numel(t); k++) {
                ck_assert_msg(isfinite(g[k]), "%s on %s: gradient of %s", u->what, be->name, t->name);
                if (all && strstr(t->name, ".step")) ck_assert_msg(s[k] == 1, "%s on %s: the step of zeros is %g", u->what, be->name, (double)s[k]);
            }
            free(s);
            free(g);
        }
        close_run(&r);
    }
}

START_TEST(zeros_stay_zero)
{
    for_all(zeros, backend(_i));
}
END_TEST

/* The same values at 1, 1e-3, 1e-5, 1e-7 and near the ends of float: the same relative error (case 5). */
static void scale_free(const bk_backend *be, const use *u)
{
    static const double scales[] = {1, 1e-3, 1e-5, 1e-7, 1e-20, 1e30};
    double first = 0;
    for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
        float x[N];
        double y[N], error = 0, size = 0;
        run r;
        random_values(x, scales[k]);
        open_run(&r, be, u, x, false);
        values(&r, r.y, y);
        for (int i = 0; i < N; i++) {
            double d = (y[i] - (double)x[i]) / scales[k], v = (double)x[i] / scales[k];
            error += d * d;
            size += v * v;
        }
        error = sqrt(error / size);
        if (k == 0) first = error;
        ck_assert_msg(fabs(error - first) <= 2e-3 * first, "%s on %s: relative error %g at scale %g, %g at 1", u->what, be->name, error, scales[k], first);
        close_run(&r);
    }
}

START_TEST(the_scale_of_a_row_does_not_matter)
{
    for_all(scale_free, backend(_i));
}
END_TEST

/* Rows of very different size side by side: no row loses more than the first. */
static void rows_of_any_scale(const bk_backend *be, const use *u)
{
    static const double scales[ROWS] = {1, 1e-3, 1e-5, 1e-7, 1e-20, 1e10};
    float x[N];
    double y[N], first = 0;
    run r;
    if (!u->weights) return;
    random_values(x, 1);
    for (int i = 0; i < N; i++) x[i] = (float)((double)x[i % COLS] * scales[i / COLS]);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    for (int row = 0; row < ROWS; row++) {
        double error = 0, size = 0;
        for (int i = row * COLS; i < (row + 1) * COLS; i++) {
            double d = (y[i] - (double)x[i]) / scales[row], v = (double)x[i] / scales[row];
            error += d * d;
            size += v * v;
        }
        error = sqrt(error / size);
        if (row == 0) first = error;
        ck_assert_msg(fabs(error - first) <= 2e-3 * first, "%s on %s: relative error %g in a row of %g, %g in one of 1", u->what, be->name, error, scales[row], first);
    }
    close_run(&r);
}

START_TEST(small_rows_beside_large_ones_lose_no_more)
{
    for_all(rows_of_any_scale, backend(_i));
}
END_TEST

/* How far a constant v may move: half a step of a symmetric range, next to nothing where the zero point adapts. */
static void check_constant(const bk_backend *be, const use *u, double v, double y)
{
    double tol = u->spec.symmetric ? 0.51 * 2 / ((1 << u->spec.bits) - 1) : 1e-6;
    ck_assert_msg(fabs(y - v) <= tol * fabs(v), "%s on %s: %g became %g", u->what, be->name, v, y);
}

/* Constant rows, groups and tensors (case 4): at most half a step of the value's own magnitude; asymmetric ones to the bit nearly. */
static void constants(const bk_backend *be, const use *u)
{
    static const float value[] = {9, -9, 65504, -1e-7f, 3e-28f};
    for (size_t k = 0; k < sizeof value / sizeof value[0]; k++) {
        float x[N];
        double y[N];
        run r;
        for (int i = 0; i < N; i++) x[i] = value[k];
        open_run(&r, be, u, x, false);
        values(&r, r.y, y);
        for (int i = 0; i < N; i++) check_constant(be, u, (double)value[k], y[i]);
        close_run(&r);
    }
}

START_TEST(constants_are_reproduced)
{
    for_all(constants, backend(_i));
}
END_TEST

/* Groups of two values that are all 9 or all -9, in one matrix. */
static void constant_pairs(const bk_backend *be, const use *any)
{
    use u = *any;
    if (u.spec.granularity != BK_PER_GROUP) return;
    u.spec.group = 2;
    float x[N];
    double y[N];
    run r;
    for (int i = 0; i < N; i++) x[i] = i / 2 % 2 ? 9 : -9;
    open_run(&r, be, &u, x, false);
    values(&r, r.y, y);
    for (int i = 0; i < N; i++) check_constant(be, &u, (double)x[i], y[i]);
    close_run(&r);
}

START_TEST(constant_groups_of_two_are_reproduced)
{
    for_all(constant_pairs, backend(_i));
}
END_TEST

/* Tokens of one value each between ordinary ones, with a range of their own. */
static void constant_tokens(const bk_backend *be, const use *u)
{
    static const float token[ROWS] = {9, 0, -9, 65504, 0, -1e-7f};
    float x[N];
    double y[N];
    run r;
    if (strcmp(u->q->name, "dynamic")) return;
    random_values(x, 1);
    for (int i = 0; i < N; i++)
        if (token[i / COLS] != 0) x[i] = token[i / COLS];
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    for (int i = 0; i < N; i++)
        if (token[i / COLS] != 0) check_constant(be, u, (double)x[i], y[i]);
    close_run(&r);
}

START_TEST(constant_tokens_are_reproduced)
{
    for_all(constant_tokens, backend(_i));
}
END_TEST

/* Decision 22: +m takes the code qmax and -m the code qmin, whatever m; decision 2: a restricted step reproduces both. */
static void extremes(const bk_backend *be, const use *u)
{
    if (!u->spec.symmetric || be->dtype != BK_F32) return;
    int lo, hi;
    bk_code_range(u->spec.bits, true, &lo, &hi);
    if (u->spec.restricted) lo = -hi;
    for (int k = 0; k < 40; k++) {
        float x[N], m = (float)fabs(bk_rng_normal(17, BK_RNG_TEST, (uint64_t)k)) + 1e-3f;
        double y[N], want = 2 * (double)m / (u->spec.restricted ? 2 * hi : (1 << u->spec.bits) - 1);
        run r;
        for (int i = 0; i < N; i++) x[i] = i % 2 ? m : -m;
        open_run(&r, be, u, x, false);
        values(&r, r.y, y);
        for (int i = 0; i < N; i++) {
            double code = y[i] / want;
            ck_assert_msg(fabs(code - (i % 2 ? hi : lo)) < 1e-4, "%s on %s: %.9g has code %g", u->what, be->name, (double)x[i], code);
        }
        close_run(&r);
    }
}

START_TEST(extremes_take_the_outer_codes)
{
    for_all(extremes, backend(_i));
}
END_TEST

/* --- steps of ranges --- */

START_TEST(steps_of_ranges)
{
    float s, z;
    bk_step_of_range(4, true, false, -3, 2, &s, &z);
    ck_assert(z == 0);
    ck_assert(fabs((double)s - 6.0 / 15) < 1e-7);
    bk_step_of_range(4, true, true, -3, 2, &s, &z);
    ck_assert(fabs((double)s - 3.0 / 7) < 1e-7);
    bk_step_of_range(4, false, false, -1, 2, &s, &z);
    ck_assert(fabs((double)s - 0.2) < 1e-7);
    ck_assert(z == 5);
    bk_step_of_range(4, false, false, 1, 4, &s, &z); /* widened to contain 0 */
    ck_assert(fabs((double)s - 4.0 / 15) < 1e-7);
    ck_assert(z == 0);
    bk_step_of_range(4, false, false, -4, -1, &s, &z);
    ck_assert(z == 15);
    bk_step_of_range(4, false, false, 9, 9, &s, &z);
    ck_assert(s == 9 && z == 0);
    bk_step_of_range(4, false, false, -9, -9, &s, &z);
    ck_assert(s == 9 && z == 1);
    bk_step_of_range(4, true, false, 0, 0, &s, &z);
    ck_assert(s == 1 && z == 0);
    bk_step_of_range(4, false, false, 0, 0, &s, &z);
    ck_assert(s == 1 && z == 0);
    bk_step_of_range(8, false, false, -3e38f, 3e38f, &s, &z); /* hi - lo overflows */
    ck_assert(isfinite(s) && s > 0);
    bk_step_of_range(8, true, false, -3e38f, 1, &s, &z);
    ck_assert_msg(isfinite(s) && s > 0, "the step of a huge range is %g", (double)s);
}
END_TEST

START_TEST(a_stored_step_puts_the_extreme_on_or_above_the_half)
{
    for (int bits = 2; bits <= 8; bits++)
        for (int k = 0; k < 3000; k++) {
            float m = (float)fabs(bk_rng_normal(1, BK_RNG_TEST, (uint64_t)k)) * powf(10, (float)(k % 40 - 20)), s, z;
            bk_step_of_range(bits, true, false, -m, m, &s, &z);
            float q = (float)((1 << bits) - 1) / 2;
            ck_assert_msg(m / s >= q && m / s < q * 1.00001f, "%d bits, m = %.9g: m / s = %.9g", bits, (double)m, (double)(m / s));
        }
}
END_TEST

START_TEST(ranges_that_are_not_finite_are_refused)
{
    use u = {.q = bk_quantizer_find("static"), .spec = bk_tiny_spec("static", 4, true, BK_PER_TENSOR, 0)};
    float x[N] = {1}, bad[] = {NAN, INFINITY, -INFINITY};
    run r;
    open_run(&r, bk_backend_ref(BK_F32), &u, x, false);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(r.q.q->init(r.ctx, r.q.state.bytes, &(float){0}, &bad[i]), BK_ENUMERIC);
        ck_assert_ptr_nonnull(strstr(r.err.msg, "x"));
        bk_error_clear(&r.err);
    }
    close_run(&r);
}
END_TEST

/* --- setup --- */

static bk_status setup(const char *name, int bits, bk_granularity g, int64_t group, bool weights, char *msg)
{
    bk_qinst q;
    bk_error err = {0};
    bk_qspec spec = bk_tiny_spec(name, bits, true, g, group);
    bk_qshape shape = {.rows = weights ? ROWS : 0, .cols = COLS, .head_dim = weights ? 0 : HEAD, .name = "down_in"};
    bk_status st = bk_qinst_setup(&q, &spec, &shape, &err);
    strcpy(msg, err.msg);
    return st;
}

START_TEST(automatic_groups_are_heads_or_powers_of_two)
{
    bk_qspec spec = {.granularity = BK_PER_GROUP, .group = BK_GROUP_AUTO};
    const struct {
        int64_t cols, head_dim, group;
    } all[] = {{576, 0, 64}, {1536, 0, 128}, {576, 64, 64}, {4096, 0, 128}, {288, 0, 32}, {12, 0, 12}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        ck_assert_int_eq(bk_qspec_group(&spec, &(bk_qshape){.cols = all[i].cols, .head_dim = all[i].head_dim}), all[i].group);
    spec.group = 20;
    ck_assert_int_eq(bk_qspec_group(&spec, &(bk_qshape){.cols = 60}), 20);
}
END_TEST

START_TEST(effective_bits_count_steps_and_zeros)
{
    bk_qspec spec = {.quantizer = "dynamic", .bits = 4, .granularity = BK_PER_GROUP, .group = 64};
    bk_qshape shape = {.cols = 576, .head_dim = 64};
    ck_assert_double_eq(bk_qspec_bits(&spec, &shape), 4.5);
    spec.symmetric = true;
    ck_assert_double_eq(bk_qspec_bits(&spec, &shape), 4.25);
    spec.granularity = BK_PER_HEAD;
    ck_assert_double_eq(bk_qspec_bits(&spec, &shape), 4.25);
    strcpy(spec.quantizer, "static");
    ck_assert_double_eq(bk_qspec_bits(&spec, &shape), 4);
    spec.granularity = BK_PER_TENSOR;
    ck_assert_double_eq(bk_qspec_bits(&spec, &shape), 4);
    ck_assert_double_eq(bk_qspec_bits(&(bk_qspec){.bits = 16}, &shape), 16);
}
END_TEST

START_TEST(bad_specs_are_refused_with_a_reason)
{
    char msg[1024];
    ck_assert_int_eq(setup("statik", 4, BK_PER_TENSOR, 0, false, msg), BK_EINVAL);
    ck_assert_msg(strstr(msg, "statik") && strstr(msg, "static") && strstr(msg, "affine"), "%s", msg);
    ck_assert_int_eq(setup("static", 1, BK_PER_TENSOR, 0, false, msg), BK_EINVAL);
    ck_assert_msg(strstr(msg, "down_in") != NULL, "%s", msg);
    ck_assert_int_eq(setup("static", 9, BK_PER_TENSOR, 0, false, msg), BK_EINVAL);
    ck_assert_int_eq(setup("static", 4, BK_PER_TENSOR, 0, true, msg), BK_EINVAL);
    ck_assert_int_eq(setup("affine", 4, BK_PER_CHANNEL, 0, false, msg), BK_EINVAL);
    ck_assert_int_eq(setup("affine", 4, BK_PER_TOKEN, 0, true, msg), BK_EINVAL);
    ck_assert_int_eq(setup("static", 4, BK_PER_TOKEN, 0, false, msg), BK_EINVAL);
    for (int64_t group = -2; group <= 64; group++) {
        if (group == BK_GROUP_AUTO) continue;
        bool divides = group > 0 && COLS % group == 0;
        ck_assert_msg((setup("affine", 4, BK_PER_GROUP, group, true, msg) == BK_OK) == divides, "group %d", (int)group);
        ck_assert_msg((setup("static", 4, BK_PER_GROUP, group, false, msg) == BK_OK) == divides, "group %d", (int)group);
        ck_assert_msg((setup("dynamic", 4, BK_PER_GROUP, group, false, msg) == BK_OK) == divides, "group %d", (int)group);
        if (!divides) ck_assert_msg(strstr(msg, "down_in") != NULL, "%s", msg);
    }
    ck_assert_int_eq(setup("nothing", 16, BK_PER_TENSOR, 0, false, msg), BK_OK); /* off */
}
END_TEST

START_TEST(the_registry_is_sound)
{
    for (int i = 0; i < bk_quantizer_count; i++) {
        const bk_quantizer *q = bk_quantizers[i];
        ck_assert_ptr_eq(bk_quantizer_find(q->name), q);
        bk_error err = {0};
        ok(bk_quantizer_check(q, &err), &err);
        ck_assert(q->codes || !q->for_weights);
    }
    ck_assert_ptr_null(bk_quantizer_find("none"));
}
END_TEST

static bk_status load_plugin(bk_error *err)
{
    char self[2048] = "", example[4096];
    const char *given = getenv("BK_PLUGIN");
    if (given && *given) return bk_plugin_load(given, err);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return bk_fail_errno(err, "/proc/self/exe");
    snprintf(example, sizeof example, "%s/plugin_odd.so", dirname(self));
    return bk_plugin_load(example, err);
}

int main(void)
{
    bk_error err = {0};
    if (load_plugin(&err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    Suite *s = suite_create("quantizers");
    TCase *t = tcase_create("laws");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_group_holds_no_more_values_than_codes, 0, BACKENDS);
    tcase_add_loop_test(t, values_move_by_half_a_step_at_most, 0, BACKENDS);
    tcase_add_loop_test(t, eight_bits_are_nearly_the_identity, 0, BACKENDS);
    tcase_add_loop_test(t, quantizing_twice_changes_nothing, 0, BACKENDS);
    tcase_add_loop_test(t, codes_lie_in_range_and_give_back_the_values, 0, BACKENDS);
    tcase_add_loop_test(t, every_learnable_gets_a_gradient, 0, BACKENDS);
    tcase_add_loop_test(t, factors_multiply_what_init_gave, 0, BACKENDS);
    suite_add_tcase(s, t);
    t = tcase_create("edges");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, zeros_stay_zero, 0, BACKENDS);
    tcase_add_loop_test(t, the_scale_of_a_row_does_not_matter, 0, BACKENDS);
    tcase_add_loop_test(t, small_rows_beside_large_ones_lose_no_more, 0, BACKENDS);
    tcase_add_loop_test(t, constants_are_reproduced, 0, BACKENDS);
    tcase_add_loop_test(t, constant_groups_of_two_are_reproduced, 0, BACKENDS);
    tcase_add_loop_test(t, constant_tokens_are_reproduced, 0, BACKENDS);
    tcase_add_loop_test(t, extremes_take_the_outer_codes, 0, BACKENDS);
    tcase_add_test(t, steps_of_ranges);
    tcase_add_test(t, a_stored_step_puts_the_extreme_on_or_above_the_half);
    tcase_add_test(t, ranges_that_are_not_finite_are_refused);
    suite_add_tcase(s, t);
    t = tcase_create("setup");
    tcase_add_test(t, automatic_groups_are_heads_or_powers_of_two);
    tcase_add_test(t, effective_bits_count_steps_and_zeros);
    tcase_add_test(t, bad_specs_are_refused_with_a_reason);
    tcase_add_test(t, the_registry_is_sound);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
