/* AWQ: scales in closed form, and a search whose errors are computed again here, candidate by candidate, with a rounding of our own. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/awq.h"
#include "tests/calibrated.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"

enum { SAMPLES = BK_CALIBRATED_SAMPLES, TOKENS = BK_CALIBRATED_TOKENS, ROWS = SAMPLES * TOKENS, LAYERS = 2, LOUD = 9, DEAD = 5 };

static const bk_site_id sites[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};
enum { SITES = sizeof sites / sizeof sites[0] };

static void near(double got, double want, double tolerance, const char *what, int64_t i)
{
    ck_assert_msg(fabs(got - want) <= tolerance * fabs(want), "%s %d is %.9g, not %.9g", what, (int)i, got, want);
}

/* --- scales --- */

static void check_scales(double ratio, const double *mean, const double *want, int n)
{
    float s[8];
    ck_assert_int_le(n, 8);
    bk_awq_scales(mean, n, ratio, s);
    for (int i = 0; i < n; i++) near((double)s[i], want[i], 1e-6, "scale", i);
}

START_TEST(scales_are_powers_of_the_means)
{
    check_scales(0.5, (double[]){1, 4, 0.25}, (double[]){1, 2, 0.5}, 3);
    check_scales(0.5, (double[]){9, 81}, (double[]){3 / sqrt(27), 9 / sqrt(27)}, 2);
}
END_TEST

START_TEST(ratio_0_is_plain_rounding)
{
    check_scales(0, (double[]){1e-9, 1, 1e9}, (double[]){1, 1, 1}, 3);
}
END_TEST

START_TEST(small_powers_are_lifted_to_the_floor)
{
    check_scales(0.95, (double[]){1e-12, 1}, (double[]){1e-2, 1e2}, 2);
}
END_TEST

START_TEST(a_channel_without_values_keeps_its_scale)
{
    check_scales(0.5, (double[]){0, 1, 4, 0}, (double[]){1, 1 / sqrt(2), sqrt(2), 1}, 4);
    check_scales(0.5, (double[]){0, 0}, (double[]){1, 1}, 2);
}
END_TEST

/* --- a model, and what the search found in it --- */

typedef struct findings {
    double error[LAYERS][BK_SITE_COUNT][BK_AWQ_RATIOS];
    int best[LAYERS][BK_SITE_COUNT], calls;
} findings;

static void keep(void *user, int64_t layer, bk_site_id site, const double error[BK_AWQ_RATIOS], int best)
{
    findings *f = user;
    memcpy(f->error[layer][site], error, sizeof f->error[layer][site]);
    f->best[layer][site] = best;
    f->calls++;
}

static bk_config config_of(int64_t kv_heads)
{
    bk_config c = bk_tiny_config();
    c.kv_heads = kv_heads;
    c.qkv_bias = true;
    return c;
}

static void loud(const char *dir)
{
    bk_tiny_model_set(dir, "model.layers.0.input_layernorm.weight", LOUD, 1, 40);
    bk_tiny_model_set(dir, "model.layers.1.post_attention_layernorm.weight", LOUD, 1, 40);
}

typedef struct fitted {
    bk_calibrated m;
    bk_config c;
    bk_fitted *f;
    findings found;
} fitted;

static void fit(fitted *a, const bk_backend *be, int64_t kv_heads, const bk_qspec *weight, const unsigned *skip, const bk_prefix *prefix,
                void (*edit)(const char *dir))
{
    bk_error err = {0};
    memset(a, 0, sizeof *a);
    a->c = config_of(kv_heads);
    bk_calibrated_open(&a->m, &a->c, NULL, edit);
    ok(bk_fitted_create(&a->c, &a->f, &err), &err);
    bk_awq_options opt = {.weight = *weight, .skip_weights = skip, .found = keep, .user = &a->found};
    ok(bk_awq_fit(be, a->m.src, a->m.ids, SAMPLES, TOKENS, &opt, prefix, NULL, a->f, &err), &err);
}

static void close_fitted(fitted *a)
{
    bk_fitted_free(a->f);
    bk_calibrated_close(&a->m);
}

static const float *scale_of(const fitted *a, bk_site_id site, int64_t layer)
{
    const float *all[BK_SITE_COUNT] = {[BK_SITE_ATTN_IN] = a->f->scale_attn_in, [BK_SITE_O_IN] = a->f->scale_o_in,
                                       [BK_SITE_MLP_IN] = a->f->scale_mlp_in, [BK_SITE_DOWN_IN] = a->f->scale_down_in};
    return all[site] ? all[site] + layer * bk_site_width(&a->c, site) : NULL;
}

/* --- the search by hand --- */

/* A row (or group) with 2^bits codes between its minimum and maximum, zero among them; or symmetric, s = max / (2^(bits-1) - 1). */
static void round_group(const bk_qspec *q, float *w, int64_t n)
{
    float lo = 0, hi = 0;
    for (int64_t i = 0; i < n; i++) lo = fminf(lo, w[i]), hi = fmaxf(hi, w[i]);
    float levels = (float)((1 << q->bits) - 1), half = (float)((1 << (q->bits - 1)) - 1);
    float s = q->symmetric ? fmaxf(hi, -lo) / half : hi / levels - lo / levels, z = q->symmetric ? 0 : rintf(-lo / s);
    float least = q->symmetric ? -half - 1 : 0, most = q->symmetric ? half : levels;
    for (int64_t i = 0; i < n; i++) w[i] = (fminf(fmaxf(rintf(w[i] / s) + z, least), most) - z) * s;
}

/* Q(W s) / s */
static void round_scaled(const bk_qspec *q, float *w, int64_t rows, int64_t cols, const float *s)
{
    int64_t group = q->group ? q->group : cols;
    for (int64_t i = 0; i < rows * cols; i++) w[i] *= s[i % cols];
    for (int64_t i = 0; i < rows * cols; i += group) round_group(q, w + i, group);
    for (int64_t i = 0; i < rows * cols; i++) w[i] /= s[i % cols];
}

static void scales_by_hand(const float *x, int64_t cols, double ratio, float *s)
{
    double least = INFINITY, most = 0, power[128];
    for (int64_t j = 0; j < cols; j++) {
        double sum = 0;
        for (int64_t r = 0; r < ROWS; r++) sum += fabs((double)x[r * cols + j]);
        power[j] = fmax(pow(sum / ROWS, ratio), 1e-4);
        least = fmin(least, power[j]);
        most = fmax(most, power[j]);
    }
    for (int64_t j = 0; j < cols; j++) s[j] = (float)(power[j] / sqrt(least * most));
}

static bool reads(bk_linear_id id, bk_site_id site)
{
    return bk_linear_input(id) == site;
}

/* Error of the block's output for one candidate of one site. */
static double error_by_hand(const fitted *a, const bk_backend *be, const bk_prefix *prefix, int64_t layer, const float *x, const bk_seen *want,
                            const bk_qspec *q, bk_site_id site, const float *s)
{
    bk_error err = {0};
    bk_block_weights w;
    bk_seen got;
    double error = 0;
    ok(bk_weights_alloc(&a->c, &w, &err), &err);
    ok(bk_source_block(a->m.src, layer, &w, &err), &err);
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&a->c, id, &out, &in);
        if (reads(id, site)) round_scaled(q, w.w[id], out, in, s);
    }
    bk_calibrated_block(&a->m, be, prefix, layer, &w, x, &got);
    for (int64_t i = 0; i < ROWS * a->c.hidden; i++) {
        double e = (double)got.at[BK_SITE_BLOCK_OUT][i] - (double)want->at[BK_SITE_BLOCK_OUT][i];
        error += e * e;
    }
    bk_seen_free(&got);
    bk_weights_free(&w);
    return error;
}

static void check_site(const fitted *a, const bk_backend *be, const bk_prefix *prefix, int64_t layer, const float *x, const bk_seen *seen,
                       const bk_qspec *q, bk_site_id site)
{
    int64_t width = bk_site_width(&a->c, site);
    const double *found = a->found.error[layer][site];
    float s[128];
    int best = 0;
    double least = INFINITY;
    ck_assert_int_le(width, 128);
    for (int k = 0; k < BK_AWQ_RATIOS; k++) {
        scales_by_hand(seen->at[site], width, k / 20.0, s);
        double error = error_by_hand(a, be, prefix, layer, x, seen, q, site, s);
        near(found[k], error, 1e-6, bk_site_name[site], k);
        if (error < least) best = k, least = error;
    }
    ck_assert_msg(a->found.best[layer][site] == best, "block %d, %s: ratio %d/20, not %d/20", (int)layer, bk_site_name[site],
                  a->found.best[layer][site], best);
    scales_by_hand(seen->at[site], width, best / 20.0, s);
    for (int64_t j = 0; j < width; j++) near((double)scale_of(a, site, layer)[j], (double)s[j], 1e-5, bk_site_name[site], j);
}

static void check_search(const bk_backend *be, int64_t kv_heads, const bk_qspec *q, bool prefixed)
{
    bk_error err = {0};
    fitted a;
    bk_prefix prefix = {0};
    float *x = NULL;
    if (prefixed) {
        bk_config c = config_of(kv_heads);
        bk_calibrated m;
        bk_calibrated_open(&m, &c, NULL, loud);
        ok(bk_prefix_compute(be, m.src, (int32_t[]){3, 4}, 2, &prefix, &err), &err);
        bk_calibrated_close(&m);
    }
    fit(&a, be, kv_heads, q, NULL, prefixed ? &prefix : NULL, loud);
    ck_assert_int_eq(a.found.calls, LAYERS * (kv_heads == a.c.heads ? SITES : SITES - 1));
    for (int64_t l = 0; l < LAYERS; l++) {
        bk_seen seen;
        bk_calibrated_block(&a.m, be, prefixed ? &prefix : NULL, l, NULL, x, &seen);
        for (int i = 0; i < SITES; i++)
            if (scale_of(&a, sites[i], l)) check_site(&a, be, prefixed ? &prefix : NULL, l, x, &seen, q, sites[i]);
        free(x);
        x = seen.at[BK_SITE_BLOCK_OUT];
        seen.at[BK_SITE_BLOCK_OUT] = NULL;
        bk_seen_free(&seen);
    }
    free(x);
    bk_prefix_free(&prefix);
    close_fitted(&a);
}

START_TEST(the_ratio_with_the_smallest_error_wins)
{
    const bk_qspec q[] = {bk_tiny_spec("affine", 4, false, BK_PER_GROUP, 16), bk_tiny_spec("affine", 3, false, BK_PER_CHANNEL, 0),
                          bk_tiny_spec("affine", 3, true, BK_PER_CHANNEL, 0)};
    bk_qspec spec = q[_i];
    spec.restricted = spec.symmetric;
    check_search(bk_backend_cpu(), 4, &spec, false);
}
END_TEST

START_TEST(the_search_sees_the_prefix)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    check_search(bk_backend_cpu(), 4, &q, true);
}
END_TEST

START_TEST(the_search_on_ref)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 32);
    check_search(bk_backend_ref(BK_F32), 2, &q, false);
}
END_TEST

START_TEST(shared_values_are_not_scaled)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    const int64_t kv_heads[] = {4, 2, 1};
    fitted a;
    fit(&a, bk_backend_cpu(), kv_heads[_i], &q, NULL, NULL, NULL);
    ck_assert_int_eq(a.f->scale_o_in != NULL, kv_heads[_i] == 4);
    ck_assert(a.f->scale_attn_in && a.f->scale_mlp_in && a.f->scale_down_in);
    close_fitted(&a);
}
END_TEST

START_TEST(folded_scales_leave_the_logits_as_they_are)
{
    const int64_t kv_heads[] = {4, 2, 1};
    bk_qspec q = bk_tiny_spec("affine", 2, false, BK_PER_GROUP, 16);
    fitted a;
    fit(&a, bk_backend_cpu(), kv_heads[_i], &q, NULL, NULL, loud);
    bk_calibrated_same_logits(&a.m, bk_backend_cpu(), a.f);
    close_fitted(&a);
}
END_TEST

/* Fitting and folding agree on what is divided: rounding the linears that read a site of the folded model costs what the search found. */
START_TEST(the_folded_model_has_the_error_that_was_found)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    bk_site_id site = sites[_i];
    bk_error err = {0};
    fitted a;
    bk_seen seen;
    bk_source *folded, *own;
    float ones[128];
    for (int j = 0; j < 128; j++) ones[j] = 1;
    fit(&a, bk_backend_cpu(), 4, &q, NULL, NULL, loud);
    ck_assert_int_gt(a.found.best[0][site], 0);
    bk_calibrated_block(&a.m, bk_backend_cpu(), NULL, 0, NULL, NULL, &seen);
    ok(bk_source_open(a.m.m, &(bk_rotation_spec){.fitted = a.f}, &folded, &err), &err);
    own = a.m.src;
    a.m.src = folded;
    near(error_by_hand(&a, bk_backend_cpu(), NULL, 0, NULL, &seen, &q, site, ones), a.found.error[0][site][a.found.best[0][site]], 0.02,
         bk_site_name[site], 0);
    a.m.src = own;
    bk_source_close(folded);
    bk_seen_free(&seen);
    close_fitted(&a);
}
END_TEST

START_TEST(an_outlier_channel_costs_less_behind_its_scale)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_CHANNEL, 0);
    fitted a;
    fit(&a, bk_backend_cpu(), 2, &q, NULL, NULL, loud);
    const double *attn = a.found.error[0][BK_SITE_ATTN_IN], *mlp = a.found.error[1][BK_SITE_MLP_IN];
    int best_attn = a.found.best[0][BK_SITE_ATTN_IN], best_mlp = a.found.best[1][BK_SITE_MLP_IN];
    ck_assert_msg(attn[best_attn] < attn[0] / 2, "attn_in: squared error %g with scales, %g without", attn[best_attn], attn[0]);
    ck_assert_msg(mlp[best_mlp] < mlp[0] / 2, "mlp_in: squared error %g with scales, %g without", mlp[best_mlp], mlp[0]);
    close_fitted(&a);
}
END_TEST

static void dead(const char *dir)
{
    bk_tiny_model_set(dir, "model.layers.0.input_layernorm.weight", DEAD, 1, 0);
    bk_tiny_model_set(dir, "model.layers.1.mlp.up_proj.weight", DEAD * 64, 64, 0);
}

START_TEST(channels_without_values_keep_their_scale)
{
    bk_qspec q = bk_tiny_spec("affine", 2, false, BK_PER_GROUP, 16);
    fitted a;
    fit(&a, bk_backend_cpu(), 2, &q, NULL, NULL, dead);
    ck_assert_int_gt(a.found.best[0][BK_SITE_ATTN_IN], 0); /* else all scales are 1 */
    ck_assert_int_gt(a.found.best[1][BK_SITE_DOWN_IN], 0);
    ck_assert(a.f->scale_attn_in[DEAD] == 1);
    ck_assert(a.f->scale_down_in[a.c.inter + DEAD] == 1);
    for (int64_t i = 0; i < LAYERS * a.c.inter; i++) ck_assert(isfinite(a.f->scale_down_in[i]) && a.f->scale_down_in[i] > 0);
    close_fitted(&a);
}
END_TEST

START_TEST(linears_in_full_precision_are_not_searched)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    const unsigned skip[LAYERS] = {1u << BK_W_GATE | 1u << BK_W_UP, 1u << BK_W_Q};
    fitted some, all;
    fit(&all, bk_backend_cpu(), 2, &q, NULL, NULL, NULL);
    fit(&some, bk_backend_cpu(), 2, &q, skip, NULL, NULL);
    for (int k = 0; k < BK_AWQ_RATIOS; k++) {
        ck_assert(some.found.error[0][BK_SITE_MLP_IN][k] == 0);
        ck_assert(some.found.error[1][BK_SITE_MLP_IN][k] == all.found.error[1][BK_SITE_MLP_IN][k]);
        ck_assert(some.found.error[1][BK_SITE_ATTN_IN][k] > 0);
        ck_assert(some.found.error[1][BK_SITE_ATTN_IN][k] < all.found.error[1][BK_SITE_ATTN_IN][k]);
    }
    for (int64_t j = 0; j < some.c.hidden; j++) ck_assert(some.f->scale_mlp_in[j] == 1);
    close_fitted(&some);
    close_fitted(&all);
}
END_TEST

static void same_bytes(const fitted *a, const fitted *b)
{
    for (int i = 0; i < SITES; i++)
        if (scale_of(a, sites[i], 0))
            ck_assert_mem_eq(scale_of(a, sites[i], 0), scale_of(b, sites[i], 0),
                             (size_t)(LAYERS * bk_site_width(&a->c, sites[i])) * sizeof(float));
    ck_assert_mem_eq(a->found.error, b->found.error, sizeof a->found.error);
}

START_TEST(fitting_never_touches_device_memory)
{
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    fitted a, b;
    fit(&a, bk_backend_guard(BK_F32), 2, &q, NULL, NULL, loud);
    fit(&b, bk_backend_ref(BK_F32), 2, &q, NULL, NULL, loud);
    same_bytes(&a, &b);
    close_fitted(&a);
    close_fitted(&b);
}
END_TEST

START_TEST(threads_do_not_change_a_byte)
{
    const bk_backend *be = bk_backend_cpu();
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    fitted a, b;
    be->set_threads(1);
    fit(&a, be, 4, &q, NULL, NULL, loud);
    be->set_threads(3);
    fit(&b, be, 4, &q, NULL, NULL, loud);
    same_bytes(&a, &b);
    be->set_threads(0);
    close_fitted(&a);
    close_fitted(&b);
}
END_TEST

/* Errors add up over batches of 2048 tokens, and means are taken over all of them. */
START_TEST(batches_add_up)
{
    enum { WINDOWS = 3, LONG = 500 };
    bk_error err = {0};
    bk_config c = config_of(2);
    bk_qspec q = bk_tiny_spec("affine", 3, false, BK_PER_GROUP, 16);
    int32_t *ids = malloc(2 * WINDOWS * LONG * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (int i = 0; i < WINDOWS * LONG; i++) ids[i] = ids[WINDOWS * LONG + i] = i * 37 % 251;
    findings once = {0}, twice = {0};
    bk_calibrated m;
    bk_fitted *f;
    bk_calibrated_open(&m, &c, NULL, NULL);
    ok(bk_fitted_create(&c, &f, &err), &err);
    bk_awq_options opt = {.weight = q, .found = keep, .user = &once};
    ok(bk_awq_fit(bk_backend_cpu(), m.src, ids, WINDOWS, LONG, &opt, NULL, NULL, f, &err), &err);
    opt.user = &twice;
    ok(bk_awq_fit(bk_backend_cpu(), m.src, ids, 2 * WINDOWS, LONG, &opt, NULL, NULL, f, &err), &err);
    for (int k = 0; k < BK_AWQ_RATIOS; k++)
        near(twice.error[1][BK_SITE_DOWN_IN][k], 2 * once.error[1][BK_SITE_DOWN_IN][k], 1e-3, "error", k);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
    free(ids);
}
END_TEST

/* --- what is refused --- */

static bk_status refused(const bk_rotation_spec *spec, const bk_qspec *q, int64_t samples, int64_t tokens, bk_error *err)
{
    bk_config c = config_of(2);
    bk_calibrated m;
    bk_fitted *f;
    bk_calibrated_open(&m, &c, spec, NULL);
    ok(bk_fitted_create(&c, &f, err), err);
    bk_status st = bk_awq_fit(bk_backend_cpu(), m.src, m.ids, samples, tokens, &(bk_awq_options){.weight = *q}, NULL, NULL, f, err);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
    return st;
}

START_TEST(one_token_is_enough)
{
    bk_error err = {0};
    bk_qspec q = bk_tiny_spec("affine", 2, false, BK_PER_CHANNEL, 0);
    ok(refused(NULL, &q, 1, 1, &err), &err);
}
END_TEST

START_TEST(rotated_channels_are_refused)
{
    const bk_rotation_spec spec[] = {{.fuse = true}, {.r2 = true}, {.r4 = true}};
    const char *const name[] = {"fuse", "r2", "r4"};
    bk_error err = {0};
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_CHANNEL, 0);
    ck_assert_int_eq(refused(&spec[_i], &q, 1, 5, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, name[_i]));
}
END_TEST

START_TEST(weights_that_are_not_quantized_are_refused)
{
    bk_error err = {0};
    bk_qspec q = bk_tiny_spec("affine", 16, false, BK_PER_CHANNEL, 0);
    ck_assert_int_eq(refused(NULL, &q, 1, 5, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "16 bits"));
}
END_TEST

START_TEST(groups_that_do_not_fit_are_refused)
{
    bk_error err = {0};
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_GROUP, 64);
    ck_assert_int_eq(refused(NULL, &q, 1, 5, &err), BK_ESHAPE);
    ck_assert_ptr_nonnull(strstr(err.msg, "down"));
}
END_TEST

START_TEST(scales_of_another_shape_are_refused)
{
    bk_error err = {0};
    bk_config c = config_of(2), other = c;
    bk_calibrated m;
    bk_fitted *f;
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_CHANNEL, 0);
    bk_awq_options opt = {.weight = q};
    other.inter++;
    bk_calibrated_open(&m, &c, NULL, NULL);
    ok(bk_fitted_create(&other, &f, &err), &err);
    ck_assert_int_eq(bk_awq_fit(bk_backend_cpu(), m.src, m.ids, 1, 5, &opt, NULL, NULL, f, &err), BK_ESHAPE);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

START_TEST(no_window_is_an_error)
{
    bk_error err = {0};
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_CHANNEL, 0);
    ck_assert_int_eq(refused(NULL, &q, 0, 5, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "calibration"));
}
END_TEST

START_TEST(nan_is_named)
{
    bk_error err = {0};
    bk_config c = config_of(4);
    bk_calibrated m;
    bk_fitted *f;
    bk_prefix prefix;
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_CHANNEL, 0);
    bk_calibrated_open(&m, &c, NULL, NULL);
    bk_calibrated_bad_prefix(&m, bk_backend_cpu(), 1, 2, 3, &prefix);
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_awq_fit(bk_backend_cpu(), m.src, m.ids, 2, 5, &(bk_awq_options){.weight = q}, &prefix, NULL, f, &err), BK_ENUMERIC);
    ck_assert_msg(!strcmp(err.msg, "block 1: o_in: NaN or Inf in channel 35 of calibration token 0"), "%s", err.msg);
    bk_fitted_free(f);
    bk_prefix_free(&prefix);
    bk_calibrated_close(&m);
}
END_TEST

static bk_status stop_in_the_middle(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user, (void)total;
    return done ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(fitting_can_be_stopped)
{
    bk_error err = {0};
    bk_config c = config_of(2);
    bk_calibrated m;
    bk_fitted *f;
    bk_qspec q = bk_tiny_spec("affine", 4, false, BK_PER_CHANNEL, 0);
    bk_awq_options opt = {.weight = q};
    bk_calibrated_open(&m, &c, NULL, NULL);
    ok(bk_fitted_create(&c, &f, &err), &err);
    ck_assert_int_eq(bk_awq_fit(bk_backend_cpu(), m.src, m.ids, 2, 5, &opt, NULL, &(bk_watch){stop_in_the_middle, NULL}, f, &err), BK_ECANCEL);
    bk_fitted_free(f);
    bk_calibrated_close(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("awq");
    TCase *t = tcase_create("scales");
    tcase_add_test(t, scales_are_powers_of_the_means);
    tcase_add_test(t, ratio_0_is_plain_rounding);
    tcase_add_test(t, small_powers_are_lifted_to_the_floor);
    tcase_add_test(t, a_channel_without_values_keeps_its_scale);
    suite_add_tcase(s, t);
    t = tcase_create("search");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, the_ratio_with_the_smallest_error_wins, 0, 3);
    tcase_add_test(t, the_search_sees_the_prefix);
    tcase_add_test(t, the_search_on_ref);
    tcase_add_loop_test(t, shared_values_are_not_scaled, 0, 3);
    tcase_add_loop_test(t, folded_scales_leave_the_logits_as_they_are, 0, 3);
    tcase_add_loop_test(t, the_folded_model_has_the_error_that_was_found, 0, SITES);
    tcase_add_test(t, an_outlier_channel_costs_less_behind_its_scale);
    tcase_add_test(t, channels_without_values_keep_their_scale);
    tcase_add_test(t, linears_in_full_precision_are_not_searched);
    tcase_add_test(t, fitting_never_touches_device_memory);
    tcase_add_test(t, threads_do_not_change_a_byte);
    tcase_add_test(t, batches_add_up);
    tcase_add_test(t, one_token_is_enough);
    suite_add_tcase(s, t);
    t = tcase_create("refused");
    tcase_add_loop_test(t, rotated_channels_are_refused, 0, 3);
    tcase_add_test(t, weights_that_are_not_quantized_are_refused);
    tcase_add_test(t, groups_that_do_not_fit_are_refused);
    tcase_add_test(t, scales_of_another_shape_are_refused);
    tcase_add_test(t, no_window_is_an_error);
    tcase_add_test(t, nan_is_named);
    tcase_add_test(t, fitting_can_be_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
