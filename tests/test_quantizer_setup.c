/* Steps of ranges, what specs are accepted, options, the registry. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "autograd/rng.h"
#include "quant/plugin.h"
#include "quant/steps.h"
#include "tests/laws.h"
#include "tests/tiny_block.h"

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
    law_use u = {.q = bk_quantizer_find("static"), .spec = bk_tiny_spec("static", 4, true, BK_PER_TENSOR, 0)};
    float x[LAW_N] = {1}, bad[] = {NAN, INFINITY, -INFINITY};
    law_run r;
    law_open(&r, bk_backend_ref(BK_F32), &u, x, false);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(r.q.q->init(r.ctx, r.q.state.bytes, &(float){0}, &bad[i]), BK_ENUMERIC);
        ck_assert_ptr_nonnull(strstr(r.err.msg, "x"));
        bk_error_clear(&r.err);
    }
    law_close(&r);
}
END_TEST

/* --- setup --- */

static bk_status setup(const char *name, int bits, bk_granularity g, int64_t group, bool weights, char *msg)
{
    bk_qinst q;
    bk_error err = {0};
    bk_qspec spec = bk_tiny_spec(name, bits, true, g, group);
    bk_qshape shape = {.rows = weights ? LAW_ROWS : 0, .cols = LAW_COLS, .head_dim = weights ? 0 : LAW_HEAD, .name = "down_in"};
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
        bool divides = group > 0 && LAW_COLS % group == 0;
        ck_assert_msg((setup("affine", 4, BK_PER_GROUP, group, true, msg) == BK_OK) == divides, "group %d", (int)group);
        ck_assert_msg((setup("static", 4, BK_PER_GROUP, group, false, msg) == BK_OK) == divides, "group %d", (int)group);
        ck_assert_msg((setup("dynamic", 4, BK_PER_GROUP, group, false, msg) == BK_OK) == divides, "group %d", (int)group);
        if (!divides) ck_assert_msg(strstr(msg, "down_in") != NULL, "%s", msg);
    }
    ck_assert_int_eq(setup("nothing", 16, BK_PER_TENSOR, 0, false, msg), BK_OK); /* off */
}
END_TEST

START_TEST(units_fit_the_shape)
{
    static const struct {
        int64_t rows, cols, units;
        bool range, fits;
    } all[] = {{6, 32, 6, true, true},    {6, 32, 12, true, true},   {6, 32, 192, true, true},  {6, 32, 6, false, true},   {6, 32, 0, true, false},
               {6, 32, 0, false, false},  {6, 32, 1, true, false},   {6, 32, 4, true, false},   {6, 32, 18, true, false},  {6, 32, 9, true, false},
               {6, 32, 384, true, false}, {6, 32, -6, true, false},  {0, 32, 1, true, true},    {0, 32, 32, true, true},   {0, 32, 1, false, true},
               {0, 32, 0, false, true},   {0, 32, 0, true, false},   {0, 32, 3, true, false},   {0, 32, 3, false, false},  {0, 32, 64, true, false},
               {0, 32, -1, false, false}, {0, 32, INT64_MAX, true, false}, {1, 32, INT64_MIN, true, false}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        bk_error err = {0};
        bk_status st = bk_units_check(all[i].units, &(bk_qshape){.rows = all[i].rows, .cols = all[i].cols, .name = "q"}, all[i].range, &err);
        ck_assert_msg(st == (all[i].fits ? BK_OK : BK_EFORMAT) && err.code == st, "%d: %s", (int)i, err.msg);
    }
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
        law_ok(bk_quantizer_check(q, &err), &err);
        ck_assert(!q->harden || q->begin);   /* decisions begin somewhere */
        ck_assert(!q->penalty || q->harden); /* a penalty ends with them */
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
        law_ok(bk_quantizer_try(bk_quantizers[i], bk_backend_ref(BK_F32), doing, sizeof doing, &err), &err);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantizer setup");
    TCase *t = tcase_create("steps");
    tcase_add_test(t, steps_of_ranges);
    tcase_add_test(t, a_stored_step_puts_the_extreme_on_or_above_the_half);
    tcase_add_test(t, ranges_that_are_not_finite_are_refused);
    suite_add_tcase(s, t);
    t = tcase_create("setup");
    tcase_add_test(t, automatic_groups_are_heads_or_powers_of_two);
    tcase_add_test(t, effective_bits_count_steps_and_zeros);
    tcase_add_test(t, bad_specs_are_refused_with_a_reason);
    tcase_add_test(t, units_fit_the_shape);
    tcase_add_test(t, options_have_defaults);
    tcase_add_test(t, who_needs_ranges_is_known_without_a_shape);
    tcase_add_test(t, the_registry_is_sound);
    tcase_add_test(t, every_quantizer_passes_the_trial_of_plugins);
    suite_add_tcase(s, t);
    return law_main(s, NULL);
}
