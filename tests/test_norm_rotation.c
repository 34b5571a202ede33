/* Rotations fitted to the outputs of norms: the rows, DFRot, DartQuant, KurTail. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/norm_rotation.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static void *room(size_t bytes)
{
    void *p = calloc(1, bytes);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* --- rows --- */

enum { SAMPLES = 3, TOKENS = 20, ALL = SAMPLES * TOKENS };

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_error err;
    bk_config c;
    bk_model *m;
    bk_source *src;
    int32_t ids[ALL];
} model;

static const bk_rotation_spec fused = {.fuse = true};

static void open_model(model *m, const bk_rotation_spec *spec)
{
    *m = (model){.c = bk_tiny_config()};
    bk_tiny_model_write(&m->c, 5, m->dir);
    ok(bk_model_open(m->dir, &m->m, &m->err), &m->err);
    ok(bk_source_open(m->m, spec, &m->src, &m->err), &m->err);
    for (int i = 0; i < ALL; i++) m->ids[i] = (i * i + 7 * i) % 256;
}

static void close_model(model *m)
{
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
}

static bk_norm_rows captured(const bk_backend *be, model *m, int64_t per_norm, uint64_t seed)
{
    bk_norm_rows rows;
    ok(bk_norm_rows_capture(be, m->src, m->ids, SAMPLES, TOKENS, NULL, per_norm, seed, NULL, &rows, &m->err), &m->err);
    return rows;
}

/* All rows by hand: x / sqrt(mean(x^2) + eps) of the embeddings for the first norm of the first block. */
START_TEST(all_rows_of_a_norm_in_their_order)
{
    model m;
    open_model(&m, &fused);
    int64_t c = m.c.hidden;
    bk_norm_rows rows = captured(bk_backend_cpu(), &m, _i ? ALL : 10 * ALL, 1);
    float *x = room((size_t)(ALL * c) * sizeof *x);
    ck_assert_int_eq(rows.n, m.c.layers * 2 * ALL);
    ck_assert_int_eq(rows.width, c);
    ok(bk_source_embed(m.src, m.ids, ALL, x, &m.err), &m.err);
    for (int64_t t = 0; t < ALL; t++) {
        double square = 0;
        for (int64_t i = 0; i < c; i++) square += (double)x[t * c + i] * (double)x[t * c + i] / (double)c;
        for (int64_t i = 0; i < c; i++)
            ck_assert(fabs((double)rows.x[t * c + i] - (double)x[t * c + i] / sqrt(square + m.c.eps)) < 1e-5);
    }
    free(x);
    bk_norm_rows_free(&rows);
    close_model(&m);
}
END_TEST

static int64_t find(const bk_norm_rows *all, int64_t from, int64_t end, const float *row)
{
    for (int64_t i = from; i < end; i++)
        if (!memcmp(all->x + i * all->width, row, (size_t)all->width * sizeof *row)) return i;
    return -1;
}

START_TEST(drawn_rows_are_rows_of_their_norm_without_repetition)
{
    enum { PER = 7 };
    model m;
    open_model(&m, &fused);
    const bk_backend *be = bk_backend_cpu();
    bk_norm_rows all = captured(be, &m, ALL, 1), some = captured(be, &m, PER, 1), other = captured(be, &m, PER, 2);
    int64_t norms = 2 * m.c.layers, drawn[2][PER], equal = 0;
    ck_assert_int_eq(some.n, norms * PER);
    for (int64_t k = 0; k < norms; k++)
        for (int64_t i = 0, last = -1; i < PER; i++) {
            int64_t at = find(&all, k * ALL, (k + 1) * ALL, some.x + (k * PER + i) * some.width);
            ck_assert_msg(at >= 0, "norm %d, row %d is not its own", (int)k, (int)i);
            ck_assert_msg(at > last, "norm %d: row %d after row %d", (int)k, (int)at, (int)last);
            last = at;
            if (k < 2) drawn[k][i] = at - k * ALL;
        }
    ck_assert(memcmp(drawn[0], drawn[1], sizeof drawn[0])); /* each norm draws for itself */
    for (int64_t i = 0; i < PER; i++) equal += find(&other, 0, PER, some.x + i * some.width) >= 0;
    ck_assert_int_lt(equal, PER); /* and so does each seed */
    bk_norm_rows_free(&all), bk_norm_rows_free(&some), bk_norm_rows_free(&other);
    close_model(&m);
}
END_TEST

START_TEST(rows_never_touch_device_memory)
{
    model m;
    open_model(&m, &(bk_rotation_spec){.fuse = true, .r2 = true, .r3 = true, .r4 = true});
    bk_norm_rows a = captured(bk_backend_ref(BK_F32), &m, 5, 1), b = captured(bk_backend_guard(BK_F32), &m, 5, 1);
    ck_assert(!memcmp(a.x, b.x, (size_t)(a.n * a.width) * sizeof *a.x));
    bk_norm_rows_free(&a), bk_norm_rows_free(&b);
    close_model(&m);
}
END_TEST

static bk_status stop_at_one(void *user, int64_t done, int64_t total, bk_error *err)
{
    (void)user;
    ck_assert_int_ge(total, 2);
    return done == 1 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(rows_of_a_rotated_model_or_none_are_refused)
{
    static const bk_rotation_spec spec[] = {{.fuse = true}, {0}, {.r1 = true}, {.fuse = true}};
    static const bk_status want[] = {BK_EINVAL, BK_EINVAL, BK_EINVAL, BK_ECANCEL};
    model m;
    bk_norm_rows rows;
    open_model(&m, &spec[_i]);
    bk_watch watch = {stop_at_one, NULL};
    ck_assert_int_eq(bk_norm_rows_capture(bk_backend_cpu(), m.src, m.ids, SAMPLES, TOKENS, NULL, _i ? 4 : 0, 1, &watch, &rows, &m.err), want[_i]);
    bk_norm_rows_free(&rows);
    close_model(&m);
}
END_TEST

/* --- fits --- */

enum { WIDTH = 32, ROWS = 600, MASSIVE = 12 };

/* Normal rows; the first MASSIVE have one giant part along `loud`, all of length sqrt(WIDTH). Rows of normal numbers are what a rotation cannot
 * improve; so each row has some correlated channels too. */
static bk_norm_rows made_rows(const double *loud)
{
    bk_norm_rows r = {.n = ROWS, .width = WIDTH, .x = room(sizeof(float) * ROWS * WIDTH)};
    for (int64_t t = 0; t < ROWS; t++) {
        double x[WIDTH], square = 0, common = bk_rng_normal(3, BK_RNG_TEST, (uint64_t)t);
        for (int64_t i = 0; i < WIDTH; i++) {
            x[i] = bk_rng_normal(1, BK_RNG_TEST, (uint64_t)(t * WIDTH + i)) * (i % 8 ? 0.3 : 2) + common * (t < MASSIVE ? 0 : loud[i]);
            if (t < MASSIVE) x[i] += 200 * loud[i];
            square += x[i] * x[i] / WIDTH;
        }
        for (int64_t i = 0; i < WIDTH; i++) r.x[t * WIDTH + i] = (float)(x[i] / sqrt(square));
    }
    return r;
}

/* The direction that the Hadamard of seed 1 sends to one channel: the start of a fit does not spread it. */
static void unspread(double *loud)
{
    bk_error err = {0};
    double *r = room(sizeof *r * WIDTH * WIDTH);
    ok(bk_rotation_dense(WIDTH, BK_RNG_R1, 1, r, &err), &err);
    for (int i = 0; i < WIDTH; i++) loud[i] = r[i * WIDTH + 5];
    free(r);
}

static void one_channel(double *loud)
{
    for (int i = 0; i < WIDTH; i++) loud[i] = i == 9;
}

/* Largest magnitude of a turned row by its root mean square, mean over rows first .. end - 1. */
static double peak(const bk_norm_rows *rows, const double *r1, int64_t first, int64_t end)
{
    double sum = 0;
    for (int64_t t = first; t < end; t++) {
        double most = 0, square = 0;
        for (int64_t j = 0; j < WIDTH; j++) {
            double y = 0;
            for (int64_t i = 0; i < WIDTH; i++) y += (double)rows->x[t * WIDTH + i] * r1[i * WIDTH + j];
            most = fmax(most, fabs(y));
            square += y * y / WIDTH;
        }
        sum += most / sqrt(square) / (double)(end - first);
    }
    return sum;
}

static bk_fitted *fitted_for(int64_t width)
{
    bk_error err = {0};
    bk_config c = bk_tiny_config();
    bk_fitted *f;
    c.hidden = width;
    ok(bk_fitted_create(&c, &f, &err), &err);
    return f;
}

static const bk_dfrot_options dfrot = {.rounds = 100, .bits = 4, .massive_weight = 100, .seed = 1};

START_TEST(dfrot_lowers_the_error_and_stays_orthogonal)
{
    bk_error err = {0};
    double loud[WIDTH], errors[101];
    int64_t massive;
    bk_dfrot_options opt = dfrot;
    opt.errors = errors;
    opt.massive = &massive;
    one_channel(loud);
    bk_norm_rows rows = made_rows(loud);
    bk_fitted *f = fitted_for(WIDTH);
    ok(bk_dfrot_fit(bk_backend_cpu(), &rows, &opt, NULL, f, &err), &err);
    ok(bk_fitted_check(f, &err), &err);
    ck_assert_int_ge(massive, MASSIVE);
    ck_assert_int_lt(massive, ROWS / 2);
    ck_assert_msg(errors[100] < 0.9 * errors[0], "%g, from %g", errors[100], errors[0]);
    bk_fitted_free(f);
    bk_norm_rows_free(&rows);
}
END_TEST

/* A heavy weight buys massive tokens a smaller error, at the cost of the others. */
START_TEST(dfrot_favours_massive_tokens_by_their_weight)
{
    double loud[WIDTH], of_massive[2], of_all[2];
    one_channel(loud);
    bk_norm_rows rows = made_rows(loud), few = {.n = ROWS, .width = WIDTH, .x = rows.x};
    for (int k = 0; k < 2; k++) {
        bk_error err = {0};
        bk_dfrot_options opt = dfrot;
        bk_fitted *f = fitted_for(WIDTH);
        opt.massive_weight = k ? 300 : 1e-3;
        ok(bk_dfrot_fit(bk_backend_cpu(), &few, &opt, NULL, f, &err), &err);
        of_massive[k] = of_all[k] = 0;
        for (int64_t t = 0; t < ROWS; t++) { /* quantized by hand: step max / 7 */
            double y[WIDTH], most = 0, error = 0;
            for (int64_t j = 0; j < WIDTH; j++) {
                y[j] = 0;
                for (int64_t i = 0; i < WIDTH; i++) y[j] += (double)rows.x[t * WIDTH + i] * f->r1[i * WIDTH + j];
                most = fmax(most, fabs(y[j]));
            }
            for (int64_t j = 0; j < WIDTH; j++) error += pow(y[j] - rint(y[j] / (most / 7)) * most / 7, 2);
            *(t < MASSIVE ? &of_massive[k] : &of_all[k]) += error;
        }
        bk_fitted_free(f);
    }
    ck_assert_msg(of_massive[1] < 0.8 * of_massive[0], "massive: %g heavy, %g light", of_massive[1], of_massive[0]);
    ck_assert_msg(of_all[1] > of_all[0], "others: %g heavy, %g light", of_all[1], of_all[0]);
    bk_norm_rows_free(&rows);
}
END_TEST

START_TEST(dfrot_without_a_round_is_the_start)
{
    bk_error err = {0};
    double loud[WIDTH], start[WIDTH * WIDTH];
    bk_dfrot_options opt = dfrot;
    opt.rounds = 0;
    one_channel(loud);
    bk_norm_rows rows = made_rows(loud);
    bk_fitted *f = fitted_for(WIDTH);
    ok(bk_dfrot_fit(bk_backend_cpu(), &rows, &opt, NULL, f, &err), &err);
    ok(bk_rotation_dense(WIDTH, BK_RNG_R1, 1, start, &err), &err);
    for (int i = 0; i < WIDTH * WIDTH; i++) ck_assert(fabs(f->r1[i] - start[i]) < 1e-13);
    bk_fitted_free(f);
    bk_norm_rows_free(&rows);
}
END_TEST

/* whip, kurtosis: rates at which the made rows settle */
static const bk_spread_options spreads[BK_SPREAD_COUNT] = {
    {.loss = BK_SPREAD_WHIP, .epochs = 20, .batch = 64, .lr = 0.02, .momentum = 0.9, .seed = 1},
    {.loss = BK_SPREAD_KURTOSIS, .epochs = 20, .batch = 64, .lr = 0.02, .momentum = 0.9, .seed = 1},
};

START_TEST(losses_fall_and_a_planted_direction_is_spread)
{
    bk_error err = {0};
    double loud[WIDTH], losses[20], start[WIDTH * WIDTH];
    bk_spread_options opt = spreads[_i];
    opt.losses = losses;
    unspread(loud);
    bk_norm_rows rows = made_rows(loud);
    bk_fitted *f = fitted_for(WIDTH);
    ok(bk_rotation_dense(WIDTH, BK_RNG_R1, 1, start, &err), &err);
    ok(bk_spread_fit(bk_backend_cpu(), &rows, &opt, NULL, f, &err), &err);
    ok(bk_fitted_check(f, &err), &err);
    double before = peak(&rows, start, 0, MASSIVE), after = peak(&rows, f->r1, 0, MASSIVE);
    ck_assert_msg(losses[19] < 0.97 * losses[0], "%s: %g, from %g", bk_spread_name[_i], losses[19], losses[0]);
    ck_assert_msg(after < 0.7 * before, "%s: peak of massive rows %g, from %g", bk_spread_name[_i], after, before);
    bk_fitted_free(f);
    bk_norm_rows_free(&rows);
}
END_TEST

/* The losses, by their definition. */
static double loss_by_hand(bk_spread_loss kind, const bk_norm_rows *rows, const double *r1)
{
    double sum = 0;
    for (int64_t t = 0; t < rows->n; t++) {
        double whip = 0, m2 = 0, m4 = 0;
        for (int64_t j = 0; j < WIDTH; j++) {
            double y = 0;
            for (int64_t i = 0; i < WIDTH; i++) y += (double)rows->x[t * WIDTH + i] * r1[i * WIDTH + j];
            whip += exp(-fabs(y));
            m2 += y * y / WIDTH;
            m4 += y * y * y * y / WIDTH;
        }
        sum += (kind == BK_SPREAD_WHIP ? whip : fabs(m4 / (m2 * m2) - 1.8)) / (double)rows->n;
    }
    return sum;
}

START_TEST(one_step_goes_down_the_gradient)
{
    bk_error err = {0};
    double loud[WIDTH], first, start[WIDTH * WIDTH];
    const double rate = 1e-3;
    unspread(loud);
    bk_norm_rows rows = made_rows(loud);
    bk_fitted *f = fitted_for(WIDTH);
    bk_spread_options opt = {.loss = _i, .epochs = 1, .batch = ROWS, .lr = rate, .seed = 1, .losses = &first};
    ok(bk_rotation_dense(WIDTH, BK_RNG_R1, 1, start, &err), &err);
    ok(bk_spread_fit(bk_backend_cpu(), &rows, &opt, NULL, f, &err), &err);
    double before = loss_by_hand(_i, &rows, start), after = loss_by_hand(_i, &rows, f->r1), moved = 0;
    ck_assert_msg(fabs(first - before) < 1e-5 * before, "%g, by hand %g", first, before);
    for (int i = 0; i < WIDTH * WIDTH; i++) moved += (f->r1[i] - start[i]) * (f->r1[i] - start[i]);
    /* At Z = R, dL/dZ = B R with B strictly upper triangular. To first order Z moves by lr B R, R by lr (B - B^T) R, and the loss falls by
     * lr |B|^2. */
    double fall = moved / (2 * rate);
    ck_assert_msg(fabs((before - after) - fall) < 0.02 * fall, "falls by %g, not %g", before - after, fall);
    bk_fitted_free(f);
    bk_norm_rows_free(&rows);
}
END_TEST

/* --- rules of both --- */

static void fit_any(int which, const bk_backend *be, const bk_norm_rows *rows, bk_fitted *f)
{
    bk_error err = {0};
    bk_dfrot_options d = dfrot;
    bk_spread_options s = spreads[which ? which - 1 : 0];
    d.rounds = 3;
    s.epochs = 2;
    ok(which ? bk_spread_fit(be, rows, &s, NULL, f, &err) : bk_dfrot_fit(be, rows, &d, NULL, f, &err), &err);
}
enum { FITS = 1 + BK_SPREAD_COUNT };

START_TEST(threads_do_not_change_a_bit)
{
    double loud[WIDTH];
    bk_fitted *f[2];
    unspread(loud);
    bk_norm_rows rows = made_rows(loud);
    for (int k = 0; k < 2; k++) {
        bk_backend_cpu()->set_threads(k + 1);
        fit_any(_i, bk_backend_cpu(), &rows, f[k] = fitted_for(WIDTH));
    }
    ck_assert(!memcmp(f[0]->r1, f[1]->r1, sizeof(double) * WIDTH * WIDTH));
    bk_fitted_free(f[0]), bk_fitted_free(f[1]);
    bk_norm_rows_free(&rows);
}
END_TEST

START_TEST(fits_never_touch_device_memory)
{
    double loud[WIDTH];
    bk_fitted *f[2] = {fitted_for(WIDTH), fitted_for(WIDTH)};
    unspread(loud);
    bk_norm_rows rows = made_rows(loud);
    fit_any(_i, bk_backend_ref(BK_F32), &rows, f[0]);
    fit_any(_i, bk_backend_guard(BK_F32), &rows, f[1]);
    ck_assert(!memcmp(f[0]->r1, f[1]->r1, sizeof(double) * WIDTH * WIDTH));
    bk_fitted_free(f[0]), bk_fitted_free(f[1]);
    bk_norm_rows_free(&rows);
}
END_TEST

START_TEST(fits_refuse_what_they_cannot_do)
{
    double loud[WIDTH];
    one_channel(loud);
    bk_norm_rows rows = made_rows(loud), few = rows;
    bk_fitted *f = fitted_for(WIDTH), *other = fitted_for(64);
    bk_error err = {0};
    bk_dfrot_options d = dfrot;
    bk_spread_options s = spreads[0];
    few.n = WIDTH - 1;
    ck_assert_int_eq(bk_dfrot_fit(bk_backend_cpu(), &few, &d, NULL, f, &err), BK_EINVAL);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_spread_fit(bk_backend_cpu(), &few, &s, NULL, f, &err), BK_EINVAL); /* less than a batch */
    bk_error_clear(&err);
    ck_assert_int_eq(bk_dfrot_fit(bk_backend_cpu(), &rows, &d, NULL, other, &err), BK_ESHAPE);
    bk_error_clear(&err);
    d.bits = 16;
    ck_assert_int_eq(bk_dfrot_fit(bk_backend_cpu(), &rows, &d, NULL, f, &err), BK_EINVAL);
    bk_error_clear(&err);
    s.lr = 1e300;
    ck_assert_int_eq(bk_spread_fit(bk_backend_cpu(), &rows, &s, NULL, f, &err), BK_ENUMERIC);
    ck_assert_msg(strstr(err.msg, "rotation, epoch 1"), "%s", err.msg);
    bk_fitted_free(f), bk_fitted_free(other);
    bk_norm_rows_free(&rows);
}
END_TEST

START_TEST(fits_are_watched_and_stopped)
{
    double loud[WIDTH];
    one_channel(loud);
    bk_norm_rows rows = made_rows(loud);
    bk_fitted *f = fitted_for(WIDTH);
    bk_error err = {0};
    bk_watch watch = {stop_at_one, NULL};
    ck_assert_int_eq(bk_dfrot_fit(bk_backend_cpu(), &rows, &dfrot, &watch, f, &err), BK_ECANCEL);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_spread_fit(bk_backend_cpu(), &rows, &spreads[0], &watch, f, &err), BK_ECANCEL);
    bk_fitted_free(f);
    bk_norm_rows_free(&rows);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("norm_rotation");
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, all_rows_of_a_norm_in_their_order, 0, 2);
    tcase_add_test(t, drawn_rows_are_rows_of_their_norm_without_repetition);
    tcase_add_test(t, rows_never_touch_device_memory);
    tcase_add_loop_test(t, rows_of_a_rotated_model_or_none_are_refused, 0, 4);
    suite_add_tcase(s, t);
    t = tcase_create("fits");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, dfrot_lowers_the_error_and_stays_orthogonal);
    tcase_add_test(t, dfrot_favours_massive_tokens_by_their_weight);
    tcase_add_test(t, dfrot_without_a_round_is_the_start);
    tcase_add_loop_test(t, losses_fall_and_a_planted_direction_is_spread, 0, BK_SPREAD_COUNT);
    tcase_add_loop_test(t, one_step_goes_down_the_gradient, 0, BK_SPREAD_COUNT);
    suite_add_tcase(s, t);
    t = tcase_create("rules");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, threads_do_not_change_a_bit, 0, FITS);
    tcase_add_loop_test(t, fits_never_touch_device_memory, 0, FITS);
    tcase_add_test(t, fits_refuse_what_they_cannot_do);
    tcase_add_test(t, fits_are_watched_and_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
