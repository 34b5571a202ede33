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
        bk_qspec_defaults(&u.spec);
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

/* An instance with its parameters, initialised on x [ROWS, COLS], and what it makes of it. Soft rounding is hard unless `train`. What `begin` puts
 * in place of min-max values is not: those are what most laws are about. */
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

static bool is_soft(const run *r)
{
    return r->q.q->harden != NULL;
}

static void begin(run *r)
{
    if (r->q.q->begin && r->u.weights) ok(r->q.q->begin(r->ctx, r->q.state.bytes, r->x), &r->err);
}

static void harden(run *r)
{
    if (is_soft(r)) ok(r->q.q->harden(r->ctx, r->q.state.bytes), &r->err);
}

/* Decisions of soft rounding for the present x. */
static void settle(run *r)
{
    if (is_soft(r)) begin(r);
    if (!r->train) harden(r);
}

static void open_run(run *r, const bk_backend *be, const use *u, const float x[N], bool train)
{
    int64_t dim[2] = {ROWS, COLS};
    *r = (run){.be = be, .u = *u, .train = train};
    bk_qshape shape = {.rows = u->weights ? ROWS : 0, .cols = COLS, .head_dim = u->weights ? 0 : HEAD, .name = "x"};
    ok(bk_qinst_setup(&r->q, &u->spec, &shape, &r->err), &r->err);
    ck_assert_ptr_nonnull(r->p = bk_params_new(be, &r->err));
    bk_params_set_rule(r->p, BK_GROUP_ROUND, r->q.q->rule);
    bk_params_set_rule(r->p, BK_GROUP_CONSTANT, BK_RULE_CONSTANT);
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
    settle(r);
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

/* With stored steps, what has been quantized stays as it is; soft rounding decides anew. */
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
        settle(&r);
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

/* What a quantizer exports, in tensors that bk_tensor_destroy takes. */
static bk_codes export(run *r)
{
    bk_codes out = {.codes = NULL};
    int64_t units = r->q.q->units(r->q.state.bytes);
    ok(bk_tensor_create(r->be, BK_I32, 2, r->x->dim, "codes", &out.codes, &r->err), &r->err);
    ok(bk_tensor_create(r->be, r->be->dtype, 1, &units, "step", &out.step, &r->err), &r->err);
    if (!r->u.spec.symmetric) ok(bk_tensor_create(r->be, r->be->dtype, 1, &units, "zero", &out.zero, &r->err), &r->err);
    bk_ctx_record(r->ctx, false);
    bk_ctx_measure(r->ctx);
    ok(r->q.q->codes(r->ctx, r->q.state.bytes, r->x, &out), &r->err);
    ok(bk_ctx_commit(r->ctx), &r->err);
    ok(r->q.q->codes(r->ctx, r->q.state.bytes, r->x, &out), &r->err);
    return out;
}

/* As a reader of files decodes: zero points are rounded and kept in the range of codes. */
static float decoded(const use *u, int32_t code, float step, float zero)
{
    float top = (float)((1 << u->spec.bits) - 1), z = u->spec.symmetric ? 0 : fminf(fmaxf(rintf(zero), 0), top);
    return ((float)code - z) * step;
}

static void codes_give_apply(const bk_backend *be, const use *u)
{
    float x[N];
    double y[N];
    int32_t c[N];
    int lo, hi;
    run r;
    if (!u->q->codes || !u->weights) return;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    values(&r, r.y, y);
    bk_code_range(u->spec.bits, u->spec.symmetric, &lo, &hi);
    bk_codes out = export(&r);
    ok(bk_read_i32(be, out.codes, 0, c, N, &r.err), &r.err);
    float *s = bk_tiny_read(be, out.step), *z = out.zero ? bk_tiny_read(be, out.zero) : NULL;
    int64_t group = group_of(u);
    ck_assert_int_eq(out.qmin, lo);
    for (int i = 0; i < N; i++) {
        float want = decoded(u, c[i], s[i / group], z ? z[i / group] : 0);
        ck_assert_msg(c[i] >= lo && c[i] <= hi, "%s on %s: code %d", u->what, be->name, c[i]);
        if (be->dtype == BK_F32) ck_assert_msg((double)want == y[i], "%s on %s: code %d gives %.9g, apply %.9g", u->what, be->name, c[i], (double)want, y[i]);
    }
    free(s);
    free(z);
    bk_tensor_destroy(be, out.codes);
    bk_tensor_destroy(be, out.step);
    bk_tensor_destroy(be, out.zero);
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
    settle(&r);
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

/* --- soft rounding, first values from the weight --- */

/* All parameters, one after the other. */
static void state(run *r, float *out, int64_t room)
{
    int64_t at = 0;
    for (int i = 0; i < bk_params_count(r->p); i++) {
        const bk_tensor *t = bk_params_at(r->p, i, NULL);
        int64_t n = bk_numel(t);
        ck_assert_int_le(at + n, room);
        ok(bk_read(r->be, t, 0, out + at, n, &r->err), &r->err);
        at += n;
    }
    for (; at < room; at++) out[at] = 0;
}

enum { STATE = 4 * N };

static void begins_alike(const bk_backend *be, const use *u)
{
    float x[N], first[STATE], second[STATE];
    run r;
    if (!u->q->begin || !u->weights) return;
    random_values(x, 1);
    open_run(&r, be, u, x, true);
    begin(&r);
    state(&r, first, STATE);
    harden(&r); /* whatever was there before */
    begin(&r);
    state(&r, second, STATE);
    ck_assert_msg(!memcmp(first, second, sizeof first), "%s on %s: begin gave two states of one weight", u->what, be->name);
    pass(&r);
    double y[N];
    values(&r, r.y, y);
    for (int i = 0; i < N; i++) ck_assert_msg(isfinite(y[i]), "%s on %s: %g", u->what, be->name, y[i]);
    close_run(&r);
}

START_TEST(begin_depends_on_the_weight_alone)
{
    for_all(begins_alike, backend(_i));
}
END_TEST

/* The weight itself, as long as it is inside the range; hard, what rounding to nearest gives. */
static void begins_with_the_weight(const bk_backend *be, const use *u)
{
    float x[N];
    double soft[N], hard[N], nearest[N];
    run r, plain;
    use affine = *u;
    if (!u->q->harden) return;
    random_values(x, 1);
    open_run(&r, be, u, x, true);
    values(&r, r.y, soft);
    harden(&r);
    pass(&r);
    values(&r, r.y, hard);
    affine.q = bk_quantizer_find("affine");
    strcpy(affine.spec.quantizer, "affine");
    open_run(&plain, be, &affine, x, false);
    values(&plain, plain.y, nearest);
    int moved = 0;
    for (int i = 0; i < N; i++) {
        ck_assert_msg(hard[i] == nearest[i], "%s on %s: %g became %g, rounded to nearest it is %g", u->what, be->name, (double)x[i], hard[i], nearest[i]);
        moved += fabs(soft[i] - (double)x[i]) > 2e-3 * fabs((double)x[i]) + 1e-4;
    }
    ck_assert_msg(moved <= N / 8, "%s on %s: soft rounding moved %d of %d weights", u->what, be->name, moved, N);
    close_run(&plain);
    close_run(&r);
}

START_TEST(soft_rounding_begins_with_the_weight)
{
    for_all(begins_with_the_weight, backend(_i));
}
END_TEST

static double penalty_at(run *r, double progress)
{
    double v;
    bk_ctx_record(r->ctx, false);
    bk_ctx_measure(r->ctx);
    bk_tensor *t = r->q.q->penalty(r->ctx, r->q.state.bytes, progress);
    ok(bk_ctx_commit(r->ctx), &r->err);
    if (!t) return 0;
    t = r->q.q->penalty(r->ctx, r->q.state.bytes, progress);
    ok(bk_ctx_status(r->ctx), &r->err);
    ck_assert_int_eq(bk_numel(t), 1);
    ok(bk_read_f64(r->be, t, 0, &v, 1, &r->err), &r->err);
    return v;
}

static void penalty_ends(const bk_backend *be, const use *u)
{
    float x[N];
    run r;
    if (!u->q->penalty) return;
    random_values(x, 1);
    open_run(&r, be, u, x, true);
    double first = penalty_at(&r, 0), middle = penalty_at(&r, 0.5), last = penalty_at(&r, 1);
    ck_assert_msg(first == 0 && middle > 0 && last > 0, "%s on %s: penalties %g, %g, %g", u->what, be->name, first, middle, last);
    harden(&r);
    ck_assert_msg(penalty_at(&r, 0.5) == 0 && penalty_at(&r, 1) == 0, "%s on %s: what is hard is penalised", u->what, be->name);
    close_run(&r);
}

START_TEST(penalties_end_when_rounding_is_hard)
{
    for_all(penalty_ends, backend(_i));
}
END_TEST

static void hardens_once(const bk_backend *be, const use *u)
{
    float x[N], once[STATE], twice[STATE];
    run r;
    if (!u->q->harden) return;
    random_values(x, 1);
    open_run(&r, be, u, x, false);
    state(&r, once, STATE);
    harden(&r);
    state(&r, twice, STATE);
    ck_assert_msg(!memcmp(once, twice, sizeof once), "%s on %s: hardening twice changed something", u->what, be->name);
    close_run(&r);
}

START_TEST(hard_stays_hard)
{
    for_all(hardens_once, backend(_i));
}
END_TEST

/* --- training --- */

enum { TOKENS = 48, STEPS = 60 };

/* A linear whose weight (or input) is quantized, against the same linear as it was. */
typedef struct lesson {
    run r;
    bk_tensor *in, *w, *target; /* inputs of the linear; its weight; what it gave */
} lesson;

static bk_tensor *lesson_loss(lesson *t)
{
    run *r = &t->r;
    bk_tensor *x = r->u.weights ? t->in : bk_qinst_apply(r->ctx, &r->q, t->in), *w = r->u.weights ? bk_qinst_apply(r->ctx, &r->q, t->w) : t->w;
    return bk_recon_loss(r->ctx, BK_LOSS_MSE, bk_linear(r->ctx, x, w, NULL), t->target);
}

/* Correlated inputs: what one rounding spoils another can mend. */
static void open_lesson(lesson *t, const bk_backend *be, const use *u)
{
    float w[N], in[TOKENS * COLS], out[TOKENS * ROWS];
    random_values(w, 1);
    for (int i = 0; i < TOKENS; i++) {
        double common = bk_rng_normal(21, BK_RNG_TEST, (uint64_t)i);
        for (int c = 0; c < COLS; c++) in[i * COLS + c] = (float)(common + 0.3 * bk_rng_normal(22, BK_RNG_TEST, (uint64_t)(i * COLS + c)));
    }
    for (int i = 0; i < TOKENS * ROWS; i++) {
        out[i] = 0;
        for (int c = 0; c < COLS; c++) out[i] += in[i / ROWS * COLS + c] * w[i % ROWS * COLS + c];
    }
    float x[N];
    memcpy(x, u->weights ? w : in, sizeof x);
    *t = (lesson){.in = NULL};
    open_run(&t->r, be, u, x, true);
    bk_error *err = &t->r.err;
    ok(bk_tensor_create(be, be->dtype, 3, (int64_t[]){1, TOKENS, COLS}, "in", &t->in, err), err);
    ok(bk_tensor_create(be, be->dtype, 2, (int64_t[]){ROWS, COLS}, "w", &t->w, err), err);
    ok(bk_tensor_create(be, be->dtype, 3, (int64_t[]){1, TOKENS, ROWS}, "target", &t->target, err), err);
    ok(bk_write(be, t->in, 0, in, TOKENS * COLS, err), err);
    ok(bk_write(be, t->w, 0, w, N, err), err);
    ok(bk_write(be, t->target, 0, out, TOKENS * ROWS, err), err);
    for (int i = 0; i < N; i++) x[i] = 0.8f; /* ranges that are too narrow: there is something to learn */
    ok(t->r.q.q->factors(t->r.ctx, t->r.q.state.bytes, x), err);
    begin(&t->r);
}

static void close_lesson(lesson *t)
{
    bk_tensor_destroy(t->r.be, t->in);
    bk_tensor_destroy(t->r.be, t->w);
    bk_tensor_destroy(t->r.be, t->target);
    close_run(&t->r);
}

/* Gradients of the loss with its penalty, and one update. */
static void teach(lesson *t, int k, const double rate[2])
{
    run *r = &t->r;
    double progress = (double)k / STEPS, lr[BK_MAX_GROUPS] = {0};
    int64_t floored = 0;
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, true);
    ok(bk_params_zero_grad(r->ctx, r->p), &r->err);
    bk_tensor *loss = lesson_loss(t), *penalty = r->q.q->penalty ? r->q.q->penalty(r->ctx, r->q.state.bytes, progress) : NULL;
    if (penalty) loss = bk_add(r->ctx, loss, bk_scale(r->ctx, penalty, 1.0 / ROWS, 1.0 / ROWS));
    ok(bk_ctx_status(r->ctx), &r->err);
    ok(bk_backward(r->ctx, loss, NULL), &r->err);
    lr[BK_GROUP_QUANT] = rate[0];
    lr[BK_GROUP_ROUND] = r->q.q->rule == BK_RULE_SIGN ? (1 - progress) * rate[1] : 0.1;
    ok(bk_params_step(r->ctx, r->p, &(bk_adamw){0.9, 0.999, 1e-8, 0}, lr, k + 1, &floored), &r->err);
}

/* The loss with hard rounding. */
static double mark(lesson *t)
{
    run *r = &t->r;
    double v;
    ok(bk_params_set_aside(r->p), &r->err);
    harden(r);
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, false);
    bk_tensor *loss = lesson_loss(t);
    ok(bk_ctx_status(r->ctx), &r->err);
    ok(bk_read_f64(r->be, loss, 0, &v, 1, &r->err), &r->err);
    ok(bk_params_take_back(r->p), &r->err);
    return v;
}

/* Losses before, and the least while it was trained. */
static void course(const bk_backend *be, const use *u, const double rate[2], double *first, double *best)
{
    lesson t;
    open_lesson(&t, be, u);
    bk_ctx_measure(t.r.ctx);
    teach(&t, STEPS - 1, rate);
    ok(bk_ctx_commit(t.r.ctx), &t.r.err);
    ok(bk_params_start(t.r.p), &t.r.err);
    *first = *best = mark(&t);
    for (int k = 0; k < STEPS; k++) {
        teach(&t, k, rate);
        *best = fmin(*best, mark(&t));
    }
    close_lesson(&t);
}

/* Rates of what AdamW and what signs move. Steps are small where there are many codes, logits are not; signs move a range by so many codes that
 * they do harm to 8 bits in this few steps. */
static void learns(const bk_backend *be, const use *u)
{
    double first, a, b;
    course(be, u, (double[]){0.1 / (1 << u->spec.bits), 1.0 / STEPS}, &first, &a);
    course(be, u, (double[]){0.1, 0.02 / STEPS}, &first, &b);
    ck_assert_msg(fmin(a, b) < 0.99 * first, "%s on %s: the loss was %g and is %g at best", u->what, be->name, first, fmin(a, b));
}

START_TEST(training_lowers_the_loss)
{
    for_all(learns, backend(_i));
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
        for (int i = 0; i < bk_params_count(r.p); i++) {
            const bk_tensor *t = bk_params_at(r.p, i, NULL);
            float *s = bk_tiny_read(be, t), *g = t->grad ? bk_tiny_read(be, t->grad) : NULL;
            for (int64_t k = 0; k < bk_numel(t); k++) {
                ck_assert_msg(!g || isfinite(g[k]), "%s on %s: gradient of %s", u->what, be->name, t->name);
                if (all && strstr(t->name, ".step")) ck_assert_msg(s[k] == 1, "%s on %s: the step of zeros is %g", u->what, be->name, (double)s[k]);
            }
            free(s);
            free(g);
        }
        harden(&r);
        pass(&r);
        values(&r, r.y, y);
        for (int i = 0; i < N; i++) {
            ck_assert_msg(isfinite(y[i]), "%s on %s: %g", u->what, be->name, y[i]);
            ck_assert_msg(x[i] != 0 || y[i] == 0, "%s on %s: zero became %g", u->what, be->name, y[i]);
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

START_TEST(options_have_defaults)
{
    bk_qspec spec = bk_tiny_spec("adaround", 4, true, BK_PER_CHANNEL, 0);
    for (int i = 0; i < BK_OPTIONS_MAX; i++) spec.option[i] = 7;
    bk_qspec_defaults(&spec);
    ck_assert(spec.option[0] == 0.01 && spec.option[1] == 20 && spec.option[2] == 2 && spec.option[3] == 0.2 && spec.option[4] == 0);
    strcpy(spec.quantizer, "affine");
    bk_qspec_defaults(&spec);
    for (int i = 0; i < BK_OPTIONS_MAX; i++) ck_assert(spec.option[i] == 0);
}
END_TEST

START_TEST(who_needs_ranges_is_known_without_a_shape)
{
    bk_qspec a = bk_tiny_spec("static", 4, true, BK_PER_TENSOR, 0), b = bk_tiny_spec("dynamic", 4, true, BK_PER_TOKEN, 0),
             c = bk_tiny_spec("lsq", 4, false, BK_PER_GROUP, 48), d = bk_tiny_spec("static", 16, true, BK_PER_TENSOR, 0),
             e = bk_tiny_spec("lsq", 4, true, BK_PER_HEAD, 0);
    ck_assert(bk_qspec_needs_range(&a) && bk_qspec_needs_range(&c) && bk_qspec_needs_range(&e));
    ck_assert(!bk_qspec_needs_range(&b) && !bk_qspec_needs_range(&d));
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
        ck_assert(!q->harden || q->begin);   /* decisions begin somewhere */
        ck_assert(!q->penalty || q->harden); /* a penalty ends with them */
        ck_assert_int_le(q->n_options, BK_OPTIONS_MAX);
        for (int k = 0; k < q->n_options; k++) {
            const bk_option *o = &q->options[k];
            ck_assert_msg(o->initial >= o->min && o->initial <= o->max && *o->about, "%s.%s", q->name, o->name);
            for (int j = 0; j < k; j++) ck_assert_str_ne(o->name, q->options[j].name);
        }
    }
    ck_assert_ptr_null(bk_quantizer_find("none"));
}
END_TEST

/* What is asked of a plugin before it is used. */
START_TEST(every_quantizer_passes_the_trial_of_plugins)
{
    for (int i = 0; i < bk_quantizer_count; i++) {
        char doing[200];
        bk_error err = {0};
        ok(bk_quantizer_try(bk_quantizers[i], bk_backend_ref(BK_F32), doing, sizeof doing, &err), &err);
    }
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
    t = tcase_create("soft rounding and training");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, begin_depends_on_the_weight_alone, 0, BACKENDS);
    tcase_add_loop_test(t, soft_rounding_begins_with_the_weight, 0, BACKENDS);
    tcase_add_loop_test(t, penalties_end_when_rounding_is_hard, 0, BACKENDS);
    tcase_add_loop_test(t, hard_stays_hard, 0, BACKENDS);
    tcase_add_loop_test(t, training_lowers_the_loss, 1, BACKENDS - 1);
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
    tcase_add_test(t, options_have_defaults);
    tcase_add_test(t, who_needs_ranges_is_known_without_a_shape);
    tcase_add_test(t, the_registry_is_sound);
    tcase_add_test(t, every_quantizer_passes_the_trial_of_plugins);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
