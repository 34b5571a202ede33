/* SmoothQuant: scales in closed form, the maxima they are made from, and what they do to an outlier channel. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/smooth.h"
#include "tests/calibrated.h"
#include "tests/ok.h"
#include "tests/suite.h"

enum { ROWS = BK_CALIBRATED_SAMPLES * BK_CALIBRATED_TOKENS, LOUD = 9, DEAD = 5 };

static void same(float got, double want, const char *what, int64_t i)
{
    ck_assert_msg(fabs((double)got - want) <= 2e-7 * want, "%s %d is %.9g, not %.9g", what, (int)i, (double)got, want);
}

/* --- one linear --- */

static void check_scales(double alpha, const float *x, const float *w, const double *want, int n)
{
    float s[8];
    ck_assert_int_le(n, 8);
    bk_smooth_scales(x, w, n, alpha, s);
    for (int i = 0; i < n; i++) same(s[i], want[i], "scale", i);
}

START_TEST(half_of_the_range_goes_to_the_weights)
{
    check_scales(0.5, (float[]){2, 8, 9}, (float[]){0.5f, 2, 1}, (double[]){2, 2, 3}, 3);
}
END_TEST

START_TEST(alpha_0_makes_all_columns_alike)
{
    check_scales(0, (float[]){7, 1000}, (float[]){0.25f, 4}, (double[]){4, 0.25}, 2);
}
END_TEST

START_TEST(alpha_1_makes_all_channels_alike)
{
    check_scales(1, (float[]){7, 1000}, (float[]){0.25f, 4}, (double[]){7, 1000}, 2);
}
END_TEST

START_TEST(a_channel_without_values_keeps_its_scale)
{
    check_scales(0.8, (float[]){0, 0}, (float[]){3, 0}, (double[]){1, 1}, 2);
}
END_TEST

START_TEST(a_column_without_weights_is_divided_by_the_floor)
{
    check_scales(0.5, (float[]){4, 4}, (float[]){0, 1e-9f}, (double[]){2 / sqrt(1e-5), 2 / sqrt(1e-5)}, 2);
}
END_TEST

START_TEST(no_scale_falls_below_the_floor)
{
    check_scales(1, (float[]){1e-7f, 1e-3f}, (float[]){1, 1}, (double[]){1e-5, 1e-3}, 2);
}
END_TEST

START_TEST(the_largest_floats_give_finite_scales)
{
    for (int k = 0; k <= 4; k++) {
        float s;
        bk_smooth_scales(&(float){3e38f}, &(float){0}, 1, k / 4.0, &s);
        ck_assert_msg(isfinite(s) && s > 0, "alpha %g gives %g", k / 4.0, (double)s);
    }
}
END_TEST

/* --- a model --- */

static bk_config config_of(void)
{
    bk_config c = bk_tiny_config();
    c.qkv_bias = true;
    return c;
}

static void loud_and_dead(const char *dir)
{
    bk_tiny_model_set(dir, "model.layers.0.input_layernorm.weight", LOUD, 1, 60);
    bk_tiny_model_set(dir, "model.layers.1.post_attention_layernorm.weight", LOUD, 1, 60);
    bk_tiny_model_set(dir, "model.layers.0.input_layernorm.weight", DEAD, 1, 0);
    bk_tiny_model_set(dir, "model.layers.1.post_attention_layernorm.weight", DEAD, 1, 0);
}

static void fit(const bk_calibrated *m, const bk_backend *be, int64_t samples, int64_t tokens, double alpha, const bk_prefix *prefix, bk_fitted **f)
{
    bk_error err = {0};
    ok(bk_fitted_create(bk_source_config(m->src), f, &err), &err);
    ok(bk_smooth_fit(be, m->src, m->ids, samples, tokens, alpha, prefix, NULL, *f, &err), &err);
}

/* Largest |x| of channel j of x [rows, cols]. */
static double largest(const float *x, int64_t rows, int64_t cols, int64_t j)
{
    double most = 0;
    for (int64_t r = 0; r < rows; r++) most = fmax(most, fabs((double)x[r * cols + j]));
    return most;
}

static void check_site(const bk_config *c, const bk_seen *seen, const bk_block_weights *w, bk_site_id site, const bk_linear_id *readers, int n,
                       double alpha, const float *scale)
{
    for (int64_t j = 0; j < c->hidden; j++) {
        double x = largest(seen->at[site], ROWS, c->hidden, j), most = 0;
        for (int i = 0; i < n; i++) {
            int64_t out, in;
            bk_linear_shape(c, readers[i], &out, &in);
            most = fmax(most, largest(w->w[readers[i]], out, in, j));
        }
        same(scale[j], x > 0 ? pow(x, alpha) / pow(most, 1 - alpha) : 1, bk_site_name[site], j);
    }
}

static void check_fit(const bk_backend *be, bool prefixed, double alpha)
{
    static const bk_linear_id qkv[] = {BK_W_Q, BK_W_K, BK_W_V}, gate_up[] = {BK_W_GATE, BK_W_UP};
    bk_error err = {0};
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_prefix prefix = {0};
    bk_block_weights w;
    float *x = NULL;
    bk_calibrated_open(&m, &c, NULL, loud_and_dead);
    if (prefixed) ok(bk_prefix_compute(be, m.src, (int32_t[]){3, 4}, 2, &prefix, &err), &err);
    fit(&m, be, BK_CALIBRATED_SAMPLES, BK_CALIBRATED_TOKENS, alpha, prefixed ? &prefix : NULL, &f);
    ok(bk_weights_alloc(&c, &w, &err), &err);
    for (int64_t l = 0; l < c.layers; l++) {
        bk_seen seen;
        bk_calibrated_block(&m, be, prefixed ? &prefix : NULL, l, NULL, x, &seen);
        ok(bk_source_block(m.src, l, &w, &err), &err);
        check_site(&c, &seen, &w, BK_SITE_ATTN_IN, qkv, 3, alpha, f->scale_attn_in + l * c.hidden);
        check_site(&c, &seen, &w, BK_SITE_MLP_IN, gate_up, 2, alpha, f->scale_mlp_in + l * c.hidden);
        free(x);
        x = seen.at[BK_SITE_BLOCK_OUT];
        seen.at[BK_SITE_BLOCK_OUT] = NULL;
        bk_seen_free(&seen);
    }
    ck_assert(f->scale_attn_in[DEAD] == 1 && f->scale_mlp_in[c.hidden + DEAD] == 1);
    ck_assert_ptr_null(f->scale_o_in);
    ck_assert_ptr_null(f->scale_down_in);
    free(x);
    bk_weights_free(&w);
    bk_fitted_free(f);
    bk_prefix_free(&prefix);
    bk_calibrated_close(&m);
}

START_TEST(maxima_are_those_of_all_windows_and_readers)
{
    check_fit(bk_backend_ref(BK_F32), false, BK_SMOOTH_ALPHA);
    check_fit(bk_backend_cpu(), false, 0.3);
}
END_TEST

START_TEST(maxima_see_the_prefix)
{
    check_fit(bk_backend_cpu(), true, BK_SMOOTH_ALPHA);
}
END_TEST

START_TEST(fitting_never_touches_device_memory)
{
    check_fit(bk_backend_guard(BK_F32), true, BK_SMOOTH_ALPHA);
}
END_TEST

START_TEST(one_token_is_enough)
{
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_calibrated_open(&m, &c, NULL, NULL);
    fit(&m, bk_backend_cpu(), 1, 1, BK_SMOOTH_ALPHA, NULL, &f);
    for (int64_t i = 0; i < c.layers * c.hidden; i++) {
        ck_assert(f->scale_attn_in[i] > 0 && isfinite(f->scale_attn_in[i]));
        ck_assert(f->scale_mlp_in[i] > 0 && isfinite(f->scale_mlp_in[i]));
    }
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

START_TEST(a_second_fit_replaces_the_first)
{
    bk_error err = {0};
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f, *fresh;
    bk_calibrated_open(&m, &c, NULL, NULL);
    fit(&m, bk_backend_cpu(), 1, 7, 0.5, NULL, &f);
    fit(&m, bk_backend_cpu(), 2, 9, 0.8, NULL, &fresh);
    ok(bk_smooth_fit(bk_backend_cpu(), m.src, m.ids, 2, 9, 0.8, NULL, NULL, f, &err), &err);
    ck_assert_mem_eq(f->scale_attn_in, fresh->scale_attn_in, (size_t)(c.layers * c.hidden) * sizeof(float));
    ck_assert_mem_eq(f->scale_mlp_in, fresh->scale_mlp_in, (size_t)(c.layers * c.hidden) * sizeof(float));
    bk_fitted_free(f);
    bk_fitted_free(fresh);
    bk_calibrated_close(&m);
}
END_TEST

START_TEST(folded_scales_leave_the_logits_as_they_are)
{
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    c.tied = _i == 1;
    if (_i == 2) {
        strcpy(c.arch, "qwen3");
        c.qk_norm = true;
        c.qkv_bias = false;
    }
    bk_calibrated_open(&m, &c, NULL, loud_and_dead);
    fit(&m, bk_backend_cpu(), BK_CALIBRATED_SAMPLES, BK_CALIBRATED_TOKENS, BK_SMOOTH_ALPHA, NULL, &f);
    bk_calibrated_same_logits(&m, bk_backend_cpu(), f);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

/* --- an outlier channel --- */

/* Rounds a row to 8 bits, symmetric, by its largest magnitude. */
static void round_row(const float *x, int64_t n, float *y)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    for (int64_t i = 0; i < n; i++) y[i] = most > 0 ? (float)(rint((double)x[i] * 127 / most) * most / 127) : 0;
}

/* Squared error of x W^T when tokens of x / s and rows of W s have 8 bits. */
static double w8a8_error(const float *x, int64_t rows, const float *w, int64_t out, int64_t in, const float *s)
{
    float *a = malloc((size_t)(2 * in) * sizeof *a), *b = malloc((size_t)(out * in) * sizeof *b);
    ck_assert(a && b);
    for (int64_t o = 0; o < out; o++) {
        for (int64_t j = 0; j < in; j++) a[j] = w[o * in + j] * s[j];
        round_row(a, in, b + o * in);
    }
    double error = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < in; j++) a[j] = x[r * in + j] / s[j];
        round_row(a, in, a + in);
        for (int64_t o = 0; o < out; o++) {
            double e = 0;
            for (int64_t j = 0; j < in; j++) e += (double)a[in + j] * (double)b[o * in + j] - (double)x[r * in + j] * (double)w[o * in + j];
            error += e * e;
        }
    }
    free(a);
    free(b);
    return error;
}

START_TEST(an_outlier_channel_costs_less_behind_its_scale)
{
    bk_error err = {0};
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_block_weights w;
    bk_seen seen;
    float ones[64];
    bk_calibrated_open(&m, &c, NULL, loud_and_dead);
    fit(&m, bk_backend_cpu(), BK_CALIBRATED_SAMPLES, BK_CALIBRATED_TOKENS, BK_SMOOTH_ALPHA, NULL, &f);
    bk_calibrated_block(&m, bk_backend_cpu(), NULL, 0, NULL, NULL, &seen);
    ok(bk_weights_alloc(&c, &w, &err), &err);
    ok(bk_source_block(m.src, 0, &w, &err), &err);
    ck_assert_int_eq(c.hidden, 64);
    for (int i = 0; i < 64; i++) ones[i] = 1;
    double plain = w8a8_error(seen.at[BK_SITE_ATTN_IN], ROWS, w.w[BK_W_Q], c.heads * c.head_dim, c.hidden, ones);
    double smooth = w8a8_error(seen.at[BK_SITE_ATTN_IN], ROWS, w.w[BK_W_Q], c.heads * c.head_dim, c.hidden, f->scale_attn_in);
    ck_assert_msg(smooth < plain / 4, "squared error %g with scales, %g without", smooth, plain);
    bk_weights_free(&w);
    bk_seen_free(&seen);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

/* --- what is refused --- */

static bk_status refused(const bk_rotation_spec *spec, double alpha, int64_t samples, bk_error *err)
{
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_calibrated_open(&m, &c, spec, NULL);
    ok(bk_fitted_create(bk_source_config(m.src), &f, err), err);
    bk_status st = bk_smooth_fit(bk_backend_cpu(), m.src, m.ids, samples, 5, alpha, NULL, NULL, f, err);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
    return st;
}

START_TEST(alpha_lies_between_0_and_1)
{
    const double bad[] = {-0.01, 1.01, NAN};
    bk_error err = {0};
    ck_assert_int_eq(refused(NULL, bad[_i], 1, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "alpha"));
}
END_TEST

START_TEST(rotated_channels_are_refused)
{
    const bk_rotation_spec spec[] = {{.fuse = true}, {.r2 = true}, {.r4 = true}};
    const char *const name[] = {"fuse", "r2", "r4"};
    bk_error err = {0};
    ck_assert_int_eq(refused(&spec[_i], 0.8, 1, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, name[_i]));
}
END_TEST

START_TEST(channels_that_are_scaled_or_moved_are_refused)
{
    static const bk_fitted_part part[] = {BK_FITTED_SCALE_MLP_IN, BK_FITTED_DOWN_ORDER};
    const char *const name[] = {"scales", "down_order"};
    bk_error err = {0};
    bk_config c = config_of();
    bk_fitted *f;
    ok(bk_fitted_create(&c, &f, &err), &err);
    ok(bk_fitted_add(f, part[_i], &err), &err);
    ck_assert_int_eq(refused(&(bk_rotation_spec){.fitted = f}, 0.8, 1, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, name[_i]));
    bk_fitted_free(f);
}
END_TEST

START_TEST(scales_of_another_shape_are_refused)
{
    bk_error err = {0};
    bk_config c = config_of(), other = c;
    bk_calibrated m;
    bk_fitted *f;
    other.layers++;
    bk_calibrated_open(&m, &c, NULL, NULL);
    ok(bk_fitted_create(&other, &f, &err), &err);
    ck_assert_int_eq(bk_smooth_fit(bk_backend_cpu(), m.src, m.ids, 1, 5, 0.8, NULL, NULL, f, &err), BK_ESHAPE);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

START_TEST(no_window_is_an_error)
{
    bk_error err = {0};
    ck_assert_int_eq(refused(NULL, 0.8, 0, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "calibration"));
}
END_TEST

START_TEST(nan_is_named)
{
    bk_error err = {0};
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_prefix prefix;
    bk_calibrated_open(&m, &c, NULL, NULL);
    bk_calibrated_bad_prefix(&m, bk_backend_cpu(), 1, 0, 3, &prefix);
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_smooth_fit(bk_backend_cpu(), m.src, m.ids, 2, 5, 0.8, &prefix, NULL, f, &err), BK_ENUMERIC);
    ck_assert_msg(!strcmp(err.msg, "block 1: mlp_in: NaN or Inf in channel 0 of calibration token 0"), "%s", err.msg);
    bk_fitted_free(f);
    bk_prefix_free(&prefix);
    bk_calibrated_close(&m);
}
END_TEST

static bk_status stop_at_once(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)done, (void)total;
    return bk_fail(err, BK_ECANCEL, "stopped");
}

START_TEST(fitting_can_be_stopped)
{
    bk_error err = {0};
    bk_config c = config_of();
    bk_calibrated m;
    bk_fitted *f;
    bk_calibrated_open(&m, &c, NULL, NULL);
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_smooth_fit(bk_backend_cpu(), m.src, m.ids, 2, 5, 0.8, NULL, &(bk_watch){stop_at_once, NULL}, f, &err), BK_ECANCEL);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("smooth");
    TCase *t = tcase_create("one linear");
    tcase_add_test(t, half_of_the_range_goes_to_the_weights);
    tcase_add_test(t, alpha_0_makes_all_columns_alike);
    tcase_add_test(t, alpha_1_makes_all_channels_alike);
    tcase_add_test(t, a_channel_without_values_keeps_its_scale);
    tcase_add_test(t, a_column_without_weights_is_divided_by_the_floor);
    tcase_add_test(t, no_scale_falls_below_the_floor);
    tcase_add_test(t, the_largest_floats_give_finite_scales);
    suite_add_tcase(s, t);
    t = tcase_create("a model");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, maxima_are_those_of_all_windows_and_readers);
    tcase_add_test(t, maxima_see_the_prefix);
    tcase_add_test(t, fitting_never_touches_device_memory);
    tcase_add_test(t, one_token_is_enough);
    tcase_add_test(t, a_second_fit_replaces_the_first);
    tcase_add_loop_test(t, folded_scales_leave_the_logits_as_they_are, 0, 3);
    tcase_add_test(t, an_outlier_channel_costs_less_behind_its_scale);
    suite_add_tcase(s, t);
    t = tcase_create("refused");
    tcase_add_loop_test(t, alpha_lies_between_0_and_1, 0, 3);
    tcase_add_loop_test(t, rotated_channels_are_refused, 0, 3);
    tcase_add_loop_test(t, channels_that_are_scaled_or_moved_are_refused, 0, 2);
    tcase_add_test(t, scales_of_another_shape_are_refused);
    tcase_add_test(t, no_window_is_an_error);
    tcase_add_test(t, nan_is_named);
    tcase_add_test(t, fitting_can_be_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
