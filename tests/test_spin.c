/* Rotations learnt by Cayley SGD through a whole model with planted outliers. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/spin.h"
#include "experiments/synth.h"
#include "io/file.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"

enum { SAMPLES = 4, TOKENS = 48, STEPS = 20, DOCUMENTS = 2 };

typedef struct model {
    char dir[64], text[DOCUMENTS * BK_SYNTH_DOCUMENT];
    bk_error err;
    bk_config c;
    bk_model *m;
    bk_source *src;
    int32_t ids[DOCUMENTS * BK_SYNTH_DOCUMENT];
    bk_fitted *fitted;
} model;

static void open_model(model *m, bool r2)
{
    bk_synth *s;
    *m = (model){.dir = "/tmp/bk_spin_XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(m->dir));
    ok(bk_synth_shape("tiny,layers=2", &m->c, &m->err), &m->err);
    ok(bk_synth_create(&m->c, 7, &s, &m->err), &m->err);
    ok(bk_synth_write(s, m->dir, 0, &m->err), &m->err);
    ok(bk_synth_sample(s, 0, DOCUMENTS, m->text, &m->err), &m->err);
    bk_synth_free(s);
    for (int i = 0; i < DOCUMENTS * BK_SYNTH_DOCUMENT; i++) m->ids[i] = (unsigned char)m->text[i];
    ok(bk_model_open(m->dir, &m->m, &m->err), &m->err);
    ok(bk_source_open(m->m, &(bk_rotation_spec){.fuse = true, .r2 = !r2, .r3 = true, .r4 = true, .seed = 1}, &m->src, &m->err), &m->err);
    ok(bk_fitted_create(bk_source_config(m->src), &m->fitted, &m->err), &m->err);
}

static void close_model(model *m)
{
    bk_error err = {0};
    bk_fitted_free(m->fitted);
    bk_source_close(m->src);
    bk_model_close(m->m);
    ok(bk_remove_tree(m->dir, &err), &err);
}

static const bk_spin_options published = {.steps = STEPS, .batch = SAMPLES, .lr = 1.5, .clip_grad = 1, .weight_bits = 16, .seed = 1};

static bk_status fit(model *m, const bk_backend *be, const bk_spin_options *opt, const bk_watch *watch)
{
    bk_block_quant quant = bk_tiny_quant("dynamic", 4, 4, false);
    quant.activation.clip = quant.key.clip = quant.value.clip = false;
    return bk_spin_fit(be, m->src, &quant, m->ids, SAMPLES, TOKENS, opt, watch, m->fitted, &m->err);
}

/* --- what comes out --- */

static void check_falls(bk_spin_options opt)
{
    model m;
    double losses[STEPS], last = 0;
    opt.losses = losses;
    open_model(&m, opt.r2);
    ok(bk_fitted_add(m.fitted, BK_FITTED_R1, &m.err), &m.err); /* begin with the identity, which leaves outliers where they are */
    ok(fit(&m, bk_backend_cpu(), &opt, NULL), &m.err);
    for (int i = STEPS - 5; i < STEPS; i++) last += losses[i] / 5;
    ck_assert_msg(last < losses[0] - 0.02, "%g at first, %g at last", losses[0], last);
    ok(bk_fitted_check(m.fitted, &m.err), &m.err); /* orthogonal */
    close_model(&m);
}

START_TEST(loss_falls)
{
    check_falls(published);
}
END_TEST

START_TEST(loss_falls_with_r2_and_quantized_weights)
{
    bk_spin_options opt = published;
    opt.r2 = true;
    opt.weight_bits = 4;
    check_falls(opt);
}
END_TEST

START_TEST(loss_falls_with_momentum)
{
    bk_spin_options opt = published;
    opt.momentum = 0.9;
    check_falls(opt);
}
END_TEST

/* Mean loss before the last three of eight steps on all tokens, and before the first in *first. */
static double after_steps_from_the_hadamard(uint64_t seed, double lr, double *first)
{
    enum { TURNS = 8, WINDOW = 64, WINDOWS = DOCUMENTS * BK_SYNTH_DOCUMENT / WINDOW };
    model m;
    double losses[TURNS];
    bk_spin_options opt = published;
    bk_block_quant quant = bk_tiny_quant("dynamic", 4, 2, false);
    quant.activation.clip = false;
    quant.key.bits = quant.value.bits = 16;
    opt.steps = TURNS, opt.batch = WINDOWS, opt.lr = lr, opt.seed = seed, opt.losses = losses;
    open_model(&m, false);
    ck_assert_ptr_null(m.fitted->r1); /* no start of its own */
    ok(bk_spin_fit(bk_backend_cpu(), m.src, &quant, m.ids, WINDOWS, WINDOW, &opt, NULL, m.fitted, &m.err), &m.err);
    close_model(&m);
    *first = losses[0];
    return (losses[TURNS - 3] + losses[TURNS - 2] + losses[TURNS - 1]) / 3;
}

/* From where a run begins. With codes of 2 bits: at 4 the Hadamards of a model as small as this are as good as what is learnt, within what rounding
 * makes of any two rotations. Steps the other way show that it is the gradient which lowers the loss. */
START_TEST(steps_from_the_random_hadamard_lower_the_loss)
{
    double first, same, down = after_steps_from_the_hadamard((uint64_t)_i, 1.5, &first), up = after_steps_from_the_hadamard((uint64_t)_i, -1.5, &same);
    ck_assert(first == same);
    ck_assert_msg(down < first - 0.03, "%g at first, then %g", first, down);
    ck_assert_msg(up > first + 0.1, "%g at first, then %g uphill", first, up);
}
END_TEST

/* Loss with the fitted rotations as arguments. */
static double learnt_loss(model *m, const bk_block_quant *quant)
{
    int64_t n1 = m->c.hidden * m->c.hidden, nn = m->c.head_dim * m->c.head_dim, n2 = m->c.layers * nn;
    double *r2 = malloc((size_t)n2 * sizeof *r2), *dr1 = malloc((size_t)n1 * sizeof *dr1), *dr2 = malloc((size_t)n2 * sizeof *dr2), loss;
    bk_rotated_loss *l;
    bk_rotated_loss_options opt = {.quant = quant, .batch = SAMPLES, .tokens = TOKENS, .r2 = true};
    ck_assert(r2 && dr1 && dr2);
    for (int64_t i = 0; i < m->c.layers; i++) memcpy(r2 + i * nn, m->fitted->r2 + i * m->c.kv_heads * nn, (size_t)nn * sizeof *r2);
    ok(bk_rotated_loss_open(&l, bk_backend_cpu(), m->src, &opt, &m->err), &m->err);
    ok(bk_rotated_loss_gradient(l, m->ids, m->fitted->r1, r2, NULL, &loss, dr1, dr2), &m->err);
    bk_rotated_loss_close(l);
    free(r2), free(dr1), free(dr2);
    return loss;
}

typedef struct student {
    const bk_source *src;
    bk_ctx *ctx;
    bk_block_weights w;
} student;

static bk_status load_student(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    student *s = user;
    BK_TRY(bk_source_block(s->src, layer, &s->w, err));
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (b->site[i].q) BK_TRY(b->site[i].q->init(s->ctx, b->site[i].state.bytes, NULL, NULL));
    bk_block_quantize(b, true, true);
    return bk_block_load(b, &s->w, err);
}

/* Loss of the model that a source turns by them. */
static double applied_loss(model *m, const bk_block_quant *quant)
{
    const bk_backend *be = bk_backend_cpu();
    student s = {0};
    bk_source *src;
    bk_block *b;
    bk_ppl ppl;
    const bk_rotation_spec spec = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .fitted = m->fitted, .be = be};
    ok(bk_source_open(m->m, &spec, &src, &m->err), &m->err);
    bk_block_options opt = {.quant = quant, .r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .tokens = TOKENS};
    s.src = src;
    ck_assert_ptr_nonnull(s.ctx = bk_ctx_new(be, &m->err));
    ok(bk_weights_alloc(bk_source_config(src), &s.w, &m->err), &m->err);
    ok(bk_block_create(&b, be, bk_source_config(src), &opt, &m->err), &m->err);
    ok(bk_perplexity(src, b, &(bk_loader){load_student, &s}, m->ids, SAMPLES, TOKENS, NULL, &ppl, &m->err), &m->err);
    bk_block_free(b);
    bk_weights_free(&s.w);
    bk_ctx_free(s.ctx);
    bk_source_close(src);
    return ppl.nll;
}

START_TEST(fitted_rotations_give_the_model_that_was_learnt)
{
    model m;
    bk_spin_options opt = published;
    bk_block_quant quant = bk_tiny_quant("dynamic", 16, 4, false);
    opt.r2 = true;
    opt.steps = 5;
    open_model(&m, true);
    ok(fit(&m, bk_backend_cpu(), &opt, NULL), &m.err);
    double learnt = learnt_loss(&m, &quant), applied = applied_loss(&m, &quant);
    ck_assert_msg(fabs(applied - learnt) < 2e-3 * learnt, "%.9g where it was learnt, %.9g where it is applied", learnt, applied);
    close_model(&m);
}
END_TEST

START_TEST(threads_do_not_change_a_bit)
{
    bk_spin_options opt = published;
    double *r1[2];
    opt.steps = 3;
    for (int i = 0; i < 2; i++) {
        model m;
        bk_backend_cpu()->set_threads(i + 1);
        open_model(&m, false);
        ok(fit(&m, bk_backend_cpu(), &opt, NULL), &m.err);
        r1[i] = m.fitted->r1;
        m.fitted->r1 = NULL;
        close_model(&m);
    }
    bk_config c;
    bk_error err = {0};
    ok(bk_synth_shape("tiny,layers=2", &c, &err), &err);
    ck_assert(!memcmp(r1[0], r1[1], (size_t)(c.hidden * c.hidden) * sizeof **r1));
    free(r1[0]), free(r1[1]);
}
END_TEST

/* --- where it begins and ends --- */

START_TEST(a_rate_of_zero_gives_the_start)
{
    model m;
    bk_spin_options opt = published;
    opt.steps = 1;
    opt.lr = 0;
    open_model(&m, false);
    ok(fit(&m, bk_backend_cpu(), &opt, NULL), &m.err);
    double *start = malloc((size_t)(m.c.hidden * m.c.hidden) * sizeof *start);
    ck_assert_ptr_nonnull(start);
    ok(bk_rotation_dense(m.c.hidden, BK_RNG_R1, opt.seed, start, &m.err), &m.err);
    for (int64_t i = 0; i < m.c.hidden * m.c.hidden; i++) ck_assert(fabs(start[i] - m.fitted->r1[i]) < 1e-13);
    free(start);
    close_model(&m);
}
END_TEST

START_TEST(a_rotation_that_is_there_is_the_start)
{
    model m;
    bk_spin_options opt = published;
    opt.steps = 1;
    opt.lr = 0;
    open_model(&m, false);
    ok(bk_fitted_add(m.fitted, BK_FITTED_R1, &m.err), &m.err);
    for (int64_t i = 0; i < m.c.hidden; i++) m.fitted->r1[i * m.c.hidden + i] = i % 2 ? 1 : -1;
    ok(fit(&m, bk_backend_cpu(), &opt, NULL), &m.err);
    for (int64_t i = 0; i < m.c.hidden * m.c.hidden; i++)
        ck_assert(fabs(m.fitted->r1[i] - (i % (m.c.hidden + 1) ? 0 : i / m.c.hidden % 2 ? 1 : -1)) < 1e-13);
    close_model(&m);
}
END_TEST

/* Row by row the transform of unit vectors, as a run without fitted rotations applies it. */
START_TEST(the_start_is_the_rotation_of_the_seed)
{
    model m;
    bk_source *plain, *rotated;
    open_model(&m, false);
    int64_t n = m.c.hidden;
    double *r = malloc((size_t)(n * n) * sizeof *r);
    float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    ck_assert(r && x && y);
    ok(bk_rotation_dense(n, BK_RNG_R1, 11, r, &m.err), &m.err);
    ok(bk_source_open(m.m, NULL, &plain, &m.err), &m.err);
    ok(bk_source_open(m.m, &(bk_rotation_spec){.r1 = true, .seed = 11}, &rotated, &m.err), &m.err);
    ok(bk_source_embed(plain, m.ids, 1, x, &m.err), &m.err);
    ok(bk_source_embed(rotated, m.ids, 1, y, &m.err), &m.err);
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)x[i] * r[i * n + j];
        ck_assert_msg(fabs(sum - (double)y[j]) < 1e-5, "channel %d: %g, not %g", (int)j, sum, (double)y[j]);
    }
    bk_source_close(plain);
    bk_source_close(rotated);
    free(r), free(x), free(y);
    close_model(&m);
}
END_TEST

START_TEST(what_is_not_finite_is_told_with_its_step)
{
    model m;
    bk_spin_options opt = published;
    opt.momentum = INFINITY;
    open_model(&m, false);
    ck_assert_int_eq(fit(&m, bk_backend_cpu(), &opt, NULL), BK_ENUMERIC);
    ck_assert_msg(strstr(m.err.msg, "rotations, step 1:"), "%s", m.err.msg);
    close_model(&m);
}
END_TEST

START_TEST(nothing_to_learn_from_is_refused)
{
    model m;
    bk_spin_options opt = published;
    opt.steps = 0;
    open_model(&m, false);
    ck_assert_int_eq(fit(&m, bk_backend_cpu(), &opt, NULL), BK_EINVAL);
    close_model(&m);
}
END_TEST

typedef struct watched {
    int64_t calls, stop_at;
} watched;

static bk_status watch_step(void *user, int64_t done, int64_t total, bk_error *err)
{
    watched *w = user;
    ck_assert_int_eq(done, w->calls++);
    ck_assert_int_eq(total, 2 * 2 * 2);
    return done == w->stop_at ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(learning_is_watched_and_stopped)
{
    for (int64_t stop = -1; stop < 8; stop += 6) { /* never, in the second step */
        model m;
        watched w = {.stop_at = stop};
        bk_spin_options opt = published;
        opt.steps = 2;
        open_model(&m, false);
        ck_assert_int_eq(fit(&m, bk_backend_cpu(), &opt, &(bk_watch){watch_step, &w}), stop < 0 ? BK_OK : BK_ECANCEL);
        ck_assert_int_eq(w.calls, stop < 0 ? 9 : stop + 1); /* at the end, too */
        close_model(&m);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("spin");
    TCase *t = tcase_create("learning");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, loss_falls);
    tcase_add_test(t, loss_falls_with_r2_and_quantized_weights);
    tcase_add_test(t, loss_falls_with_momentum);
    tcase_add_loop_test(t, steps_from_the_random_hadamard_lower_the_loss, 1, 3);
    tcase_add_test(t, fitted_rotations_give_the_model_that_was_learnt);
    tcase_add_test(t, threads_do_not_change_a_bit);
    suite_add_tcase(s, t);
    t = tcase_create("rules");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_rate_of_zero_gives_the_start);
    tcase_add_test(t, a_rotation_that_is_there_is_the_start);
    tcase_add_test(t, the_start_is_the_rotation_of_the_seed);
    tcase_add_test(t, what_is_not_finite_is_told_with_its_step);
    tcase_add_test(t, nothing_to_learn_from_is_refused);
    tcase_add_test(t, learning_is_watched_and_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
