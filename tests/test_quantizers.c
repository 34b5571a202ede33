/* Laws that every registered quantizer keeps (a new one is held to them as it stands). */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/steps.h"
#include "tests/laws.h"
#include "tests/tiny_block.h"

static void few_values(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N];
    law_run r;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    int64_t group = law_group_of(u);
    for (int64_t g = 0; g < LAW_N; g += group) {
        int distinct = 0;
        for (int64_t i = g; i < g + group; i++) {
            int64_t j = g;
            while (j < i && y[j] != y[i]) j++;
            distinct += j == i;
        }
        ck_assert_msg(distinct <= 1 << u->spec.bits, "%s on %s: %d values in a group", u->what, be->name, distinct);
    }
    law_close(&r);
}

START_TEST(a_group_holds_no_more_values_than_codes)
{
    law_for_all(few_values, law_backend(_i));
}
END_TEST

/* Half a step of the range, where steps are those of ranges. */
static void bound_by_range(law_run *r, const float x[LAW_N], const double y[LAW_N])
{
    const law_use *u = &r->u;
    float lo[LAW_N], hi[LAW_N];
    if (u->q->free_steps || u->spec.granularity == BK_PER_TOKEN || u->spec.restricted) return; /* their ranges differ; the others suffice */
    law_ranges(r, x, lo, hi);
    int64_t group = law_group_of(u), per_row = LAW_COLS / group;
    for (int64_t i = 0; i < LAW_N; i++) {
        int64_t unit = (u->weights ? i / LAW_COLS * per_row : 0) + i % LAW_COLS / group;
        double m = fmax(fabs((double)lo[unit]), fabs((double)hi[unit]));
        double step = (u->spec.symmetric ? 2 * m : (double)hi[unit] - (double)lo[unit]) / ((1 << u->spec.bits) - 1);
        ck_assert_msg(fabs(y[i] - (double)x[i]) <= (u->spec.symmetric ? 0.5001 : 1.0001) * step, "%s on %s: %g became %g, a step of its range is %g", u->what,
                      r->be->name, (double)x[i], y[i], step);
    }
}

/* Half of the step that a weight is exported with, between the least and the largest value of its group; beyond these, to them. */
static void bound_by_own_step(law_run *r, const float x[LAW_N], const double y[LAW_N])
{
    const law_use *u = &r->u;
    double step[LAW_N];
    if (!u->weights) return;
    bk_codes out = law_export(r);
    law_values(r, out.step, step);
    int64_t group = law_group_of(u);
    for (int64_t g = 0; g < LAW_N; g += group) {
        double low = y[g], high = y[g], s = step[g / group];
        for (int64_t i = g; i < g + group; i++) low = fmin(low, y[i]), high = fmax(high, y[i]);
        for (int64_t i = g; i < g + group; i++) {
            double covered = fmin(fmax((double)x[i], low), high);
            ck_assert_msg(fabs(y[i] - covered) <= 0.5001 * s, "%s on %s: %g became %g, its step is %g, the group's values end at %g and %g", u->what,
                          r->be->name, (double)x[i], y[i], s, low, high);
        }
    }
    law_free_codes(r, &out);
}

static void error_bound(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N];
    law_run r;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    bound_by_range(&r, x, y);
    bound_by_own_step(&r, x, y);
    law_close(&r);
}

START_TEST(values_move_by_half_a_step_at_most)
{
    law_for_all(error_bound, law_backend(_i));
}
END_TEST

static void eight_bits(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N], error = 0, size = 0, limit = u->q->free_steps ? 0.2 : 0.012; /* what a power of two clips at most */
    law_run r;
    if (u->spec.bits != 8) return;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    for (int i = 0; i < LAW_N; i++) {
        error += (y[i] - (double)x[i]) * (y[i] - (double)x[i]);
        size += (double)x[i] * (double)x[i];
    }
    ck_assert_msg(sqrt(error / size) < limit, "%s on %s: relative error %g", u->what, be->name, sqrt(error / size));
    law_close(&r);
}

START_TEST(eight_bits_are_nearly_the_identity)
{
    law_for_all(eight_bits, law_backend(_i));
}
END_TEST

/* With stored steps, what has been quantized stays as it is; soft rounding decides anew. */
static void idempotent(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N], again[LAW_N];
    law_run r;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    if (r.q.q->needs_range(r.q.state.bytes)) {
        law_values(&r, r.y, y);
        law_ok(bk_write_f64(be, r.x, 0, y, LAW_N, &r.err), &r.err);
        law_settle(&r);
        law_pass(&r);
        law_values(&r, r.y, again);
        for (int i = 0; i < LAW_N; i++) ck_assert_msg(y[i] == again[i], "%s on %s: %.9g became %.9g", u->what, be->name, y[i], again[i]);
    }
    law_close(&r);
}

START_TEST(quantizing_twice_changes_nothing)
{
    law_for_all(idempotent, law_backend(_i));
}
END_TEST

/* As a reader of files decodes: zero points are rounded and kept in the range of codes. */
static float decoded(const law_use *u, int32_t code, float step, float zero)
{
    float top = (float)((1 << u->spec.bits) - 1), z = u->spec.symmetric ? 0 : fminf(fmaxf(rintf(zero), 0), top);
    return ((float)code - z) * step;
}

static void codes_give_apply(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double y[LAW_N];
    int32_t c[LAW_N];
    int lo, hi;
    law_run r;
    if (!u->q->codes || !u->weights) return;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    law_values(&r, r.y, y);
    bk_code_range(u->spec.bits, u->spec.symmetric, &lo, &hi);
    bk_codes out = law_export(&r);
    law_ok(bk_read_i32(be, out.codes, 0, c, LAW_N, &r.err), &r.err);
    float *s = bk_tiny_read(be, out.step), *z = out.zero ? bk_tiny_read(be, out.zero) : NULL;
    int64_t group = law_group_of(u);
    ck_assert_int_eq(out.qmin, lo);
    for (int i = 0; i < LAW_N; i++) {
        float want = decoded(u, c[i], s[i / group], z ? z[i / group] : 0);
        ck_assert_msg(c[i] >= lo && c[i] <= hi, "%s on %s: code %d", u->what, be->name, c[i]);
        if (be->dtype == BK_F32) ck_assert_msg((double)want == y[i], "%s on %s: code %d gives %.9g, apply %.9g", u->what, be->name, c[i], (double)want, y[i]);
    }
    free(s);
    free(z);
    law_free_codes(&r, &out);
    law_close(&r);
}

START_TEST(codes_lie_in_range_and_give_back_the_values)
{
    law_for_all(codes_give_apply, law_backend(_i));
}
END_TEST

static void has_gradients(const bk_backend *be, const law_use *u)
{
    float x[LAW_N], factor[LAW_N];
    double g[LAW_N];
    law_run r;
    law_random(x, 1);
    law_open(&r, be, u, x, true);
    for (int64_t i = 0; i < r.q.q->units(r.q.state.bytes); i++) factor[i] = 0.7f; /* something must be clipped: zero points move nowhere else */
    law_ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    law_settle(&r);
    law_pass(&r);
    for (int i = 0; i < bk_params_count(r.p); i++) {
        int group;
        bk_tensor *t = bk_params_at(r.p, i, &group);
        if (group == BK_GROUP_CONSTANT) continue;
        law_values(&r, t->grad, g);
        double sum = 0;
        for (int64_t k = 0; k < bk_numel(t); k++) {
            ck_assert_msg(isfinite(g[k]), "%s on %s: the gradient of %s is not finite", u->what, be->name, t->name);
            sum += fabs(g[k]);
        }
        ck_assert_msg(sum > 0, "%s on %s: %s gets no gradient", u->what, be->name, t->name);
    }
    law_values(&r, r.x->grad, g);
    for (int i = 0; i < LAW_N; i++) ck_assert_msg(isfinite(g[i]), "%s on %s: gradient of x", u->what, be->name);
    ck_assert_msg(g[0] != 0 || g[1] != 0 || g[2] != 0, "%s on %s: x gets no gradient", u->what, be->name);
    law_close(&r);
}

START_TEST(every_learnable_gets_a_gradient)
{
    law_for_all(has_gradients, law_backend(_i));
}
END_TEST

static void factor_one(const bk_backend *be, const law_use *u)
{
    float x[LAW_N], factor[LAW_N];
    law_run r;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    int64_t n = r.q.q->units(r.q.state.bytes);
    float *before[8] = {0};
    int count = bk_params_count(r.p);
    ck_assert_int_le(count, 8);
    for (int i = 0; i < count; i++) before[i] = bk_tiny_read(be, bk_params_at(r.p, i, NULL));
    for (int64_t i = 0; i < n; i++) factor[i] = 0.5f;
    law_ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    for (int64_t i = 0; i < n; i++) factor[i] = 1;
    law_ok(r.q.q->factors(r.ctx, r.q.state.bytes, factor), &r.err);
    for (int i = 0; i < count; i++) {
        const bk_tensor *t = bk_params_at(r.p, i, NULL);
        float *after = bk_tiny_read(be, t);
        ck_assert_msg(!memcmp(before[i], after, (size_t)bk_numel(t) * sizeof(float)), "%s on %s: factor 1 changed %s", u->what, be->name, t->name);
        free(after);
        free(before[i]);
    }
    law_close(&r);
}

START_TEST(factors_multiply_what_init_gave)
{
    law_for_all(factor_one, law_backend(_i));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantizers");
    TCase *t = tcase_create("laws");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_group_holds_no_more_values_than_codes, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, values_move_by_half_a_step_at_most, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, eight_bits_are_nearly_the_identity, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, quantizing_twice_changes_nothing, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, codes_lie_in_range_and_give_back_the_values, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, every_learnable_gets_a_gradient, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, factors_multiply_what_init_gave, 0, LAW_BACKENDS);
    suite_add_tcase(s, t);
    return law_main(s, NULL);
}
