/* Laws of what is learned: soft rounding from its beginning to its hard end, and a loss that training lowers. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "autograd/rng.h"
#include "quant/steps.h"
#include "tests/laws.h"

/* All parameters, one after the other. */
static void state(law_run *r, float *out, int64_t room)
{
    int64_t at = 0;
    for (int i = 0; i < bk_params_count(r->p); i++) {
        const bk_tensor *t = bk_params_at(r->p, i, NULL);
        int64_t n = bk_numel(t);
        ck_assert_int_le(at + n, room);
        law_ok(bk_read(r->be, t, 0, out + at, n, &r->err), &r->err);
        at += n;
    }
    for (; at < room; at++) out[at] = 0;
}

enum { STATE = 4 * LAW_N };

static void begins_alike(const bk_backend *be, const law_use *u)
{
    float x[LAW_N], first[STATE], second[STATE];
    law_run r;
    if (!u->q->begin || !u->weights) return;
    law_random(x, 1);
    law_open(&r, be, u, x, true);
    law_begin(&r);
    state(&r, first, STATE);
    law_harden(&r); /* whatever was there before */
    law_begin(&r);
    state(&r, second, STATE);
    ck_assert_msg(!memcmp(first, second, sizeof first), "%s on %s: begin gave two states of one weight", u->what, be->name);
    law_pass(&r);
    double y[LAW_N];
    law_values(&r, r.y, y);
    for (int i = 0; i < LAW_N; i++) ck_assert_msg(isfinite(y[i]), "%s on %s: %g", u->what, be->name, y[i]);
    law_close(&r);
}

START_TEST(begin_depends_on_the_weight_alone)
{
    law_for_all(begins_alike, law_backend(_i));
}
END_TEST

/* The weight itself, as long as it is inside the range; hard, what rounding to nearest gives. */
static void begins_with_the_weight(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    double soft[LAW_N], hard[LAW_N], nearest[LAW_N];
    law_run r, plain;
    law_use affine = *u;
    if (!u->q->harden || u->q->free_steps) return;
    law_random(x, 1);
    law_open(&r, be, u, x, true);
    law_values(&r, r.y, soft);
    law_harden(&r);
    law_pass(&r);
    law_values(&r, r.y, hard);
    affine.q = bk_quantizer_find("affine");
    strcpy(affine.spec.quantizer, "affine");
    law_open(&plain, be, &affine, x, false);
    law_values(&plain, plain.y, nearest);
    int moved = 0;
    for (int i = 0; i < LAW_N; i++) {
        ck_assert_msg(hard[i] == nearest[i], "%s on %s: %g became %g, rounded to nearest it is %g", u->what, be->name, (double)x[i], hard[i], nearest[i]);
        moved += fabs(soft[i] - (double)x[i]) > 2e-3 * fabs((double)x[i]) + 1e-4;
    }
    ck_assert_msg(moved <= LAW_N / 8, "%s on %s: soft rounding moved %d of %d weights", u->what, be->name, moved, LAW_N);
    law_close(&plain);
    law_close(&r);
}

START_TEST(soft_rounding_begins_with_the_weight)
{
    law_for_all(begins_with_the_weight, law_backend(_i));
}
END_TEST

static double penalty_at(law_run *r, double progress)
{
    double v;
    bk_ctx_record(r->ctx, false);
    bk_ctx_measure(r->ctx);
    bk_tensor *t = r->q.q->penalty(r->ctx, r->q.state.bytes, progress);
    law_ok(bk_ctx_commit(r->ctx), &r->err);
    if (!t) return 0;
    t = r->q.q->penalty(r->ctx, r->q.state.bytes, progress);
    law_ok(bk_ctx_status(r->ctx), &r->err);
    ck_assert_int_eq(bk_numel(t), 1);
    law_ok(bk_read_f64(r->be, t, 0, &v, 1, &r->err), &r->err);
    return v;
}

static void penalty_ends(const bk_backend *be, const law_use *u)
{
    float x[LAW_N];
    law_run r;
    if (!u->q->penalty) return;
    law_random(x, 1);
    law_open(&r, be, u, x, true);
    double first = penalty_at(&r, 0), middle = penalty_at(&r, 0.5), last = penalty_at(&r, 1);
    ck_assert_msg(first == 0 && middle > 0 && last > 0, "%s on %s: penalties %g, %g, %g", u->what, be->name, first, middle, last);
    law_harden(&r);
    ck_assert_msg(penalty_at(&r, 0.5) == 0 && penalty_at(&r, 1) == 0, "%s on %s: what is hard is penalised", u->what, be->name);
    law_close(&r);
}

START_TEST(penalties_end_when_rounding_is_hard)
{
    law_for_all(penalty_ends, law_backend(_i));
}
END_TEST

static void hardens_once(const bk_backend *be, const law_use *u)
{
    float x[LAW_N], once[STATE], twice[STATE];
    law_run r;
    if (!u->q->harden) return;
    law_random(x, 1);
    law_open(&r, be, u, x, false);
    state(&r, once, STATE);
    law_harden(&r);
    state(&r, twice, STATE);
    ck_assert_msg(!memcmp(once, twice, sizeof once), "%s on %s: hardening twice changed something", u->what, be->name);
    law_close(&r);
}

START_TEST(hard_stays_hard)
{
    law_for_all(hardens_once, law_backend(_i));
}
END_TEST

/* --- training --- */

enum { TOKENS = 48, STEPS = 60 };

/* A linear whose weight (or input) is quantized, against the same linear as it was. */
typedef struct lesson {
    law_run r;
    bk_tensor *in, *w, *target; /* inputs of the linear; its weight; what it gave */
} lesson;

static bk_tensor *lesson_loss(lesson *t)
{
    law_run *r = &t->r;
    bk_tensor *x = r->u.weights ? t->in : bk_qinst_apply(r->ctx, &r->q, t->in), *w = r->u.weights ? bk_qinst_apply(r->ctx, &r->q, t->w) : t->w;
    return bk_recon_loss(r->ctx, BK_LOSS_MSE, bk_linear(r->ctx, x, w, NULL), t->target);
}

/* Correlated inputs: what one rounding spoils another can mend. */
static void open_lesson(lesson *t, const bk_backend *be, const law_use *u)
{
    float w[LAW_N], in[TOKENS * LAW_COLS], out[TOKENS * LAW_ROWS];
    law_random(w, 1);
    for (int i = 0; i < TOKENS; i++) {
        double common = bk_rng_normal(21, BK_RNG_TEST, (uint64_t)i);
        for (int c = 0; c < LAW_COLS; c++) in[i * LAW_COLS + c] = (float)(common + 0.3 * bk_rng_normal(22, BK_RNG_TEST, (uint64_t)(i * LAW_COLS + c)));
    }
    for (int i = 0; i < TOKENS * LAW_ROWS; i++) {
        out[i] = 0;
        for (int c = 0; c < LAW_COLS; c++) out[i] += in[i / LAW_ROWS * LAW_COLS + c] * w[i % LAW_ROWS * LAW_COLS + c];
    }
    float x[LAW_N];
    memcpy(x, u->weights ? w : in, sizeof x);
    *t = (lesson){.in = NULL};
    law_open(&t->r, be, u, x, true);
    bk_error *err = &t->r.err;
    law_ok(bk_tensor_create(be, be->dtype, 3, (int64_t[]){1, TOKENS, LAW_COLS}, "in", &t->in, err), err);
    law_ok(bk_tensor_create(be, be->dtype, 2, (int64_t[]){LAW_ROWS, LAW_COLS}, "w", &t->w, err), err);
    law_ok(bk_tensor_create(be, be->dtype, 3, (int64_t[]){1, TOKENS, LAW_ROWS}, "target", &t->target, err), err);
    law_ok(bk_write(be, t->in, 0, in, TOKENS * LAW_COLS, err), err);
    law_ok(bk_write(be, t->w, 0, w, LAW_N, err), err);
    law_ok(bk_write(be, t->target, 0, out, TOKENS * LAW_ROWS, err), err);
    /* Ranges that are too narrow: there is something to learn. Steps that jump need ones from which the next is better for certain. */
    for (int i = 0; i < LAW_N; i++) x[i] = u->q->free_steps ? 0.3f : 0.8f;
    law_ok(t->r.q.q->factors(t->r.ctx, t->r.q.state.bytes, x), err);
    law_begin(&t->r);
}

static void close_lesson(lesson *t)
{
    bk_tensor_destroy(t->r.be, t->in);
    bk_tensor_destroy(t->r.be, t->w);
    bk_tensor_destroy(t->r.be, t->target);
    law_close(&t->r);
}

/* Gradients of the loss with its penalty, and one update. */
static void teach(lesson *t, int k, const double rate[2])
{
    law_run *r = &t->r;
    double progress = (double)k / STEPS, lr[BK_MAX_GROUPS] = {0};
    int64_t floored = 0;
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, true);
    law_ok(bk_params_zero_grad(r->ctx, r->p), &r->err);
    bk_tensor *loss = lesson_loss(t), *penalty = r->q.q->penalty ? r->q.q->penalty(r->ctx, r->q.state.bytes, progress) : NULL;
    if (penalty) loss = bk_add(r->ctx, loss, bk_scale(r->ctx, penalty, 1.0 / LAW_ROWS, 1.0 / LAW_ROWS));
    law_ok(bk_ctx_status(r->ctx), &r->err);
    law_ok(bk_backward(r->ctx, loss, NULL), &r->err);
    lr[BK_GROUP_QUANT] = rate[0];
    lr[BK_GROUP_ROUND] = r->q.q->rule == BK_RULE_SIGN ? (1 - progress) * rate[1] : 0.1;
    law_ok(bk_params_step(r->ctx, r->p, &(bk_adamw){0.9, 0.999, 1e-8, 0}, lr, k + 1, &floored), &r->err);
}

/* The loss with hard rounding. */
static double mark(lesson *t)
{
    law_run *r = &t->r;
    double v;
    law_ok(bk_params_set_aside(r->p), &r->err);
    law_harden(r);
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, false);
    bk_tensor *loss = lesson_loss(t);
    law_ok(bk_ctx_status(r->ctx), &r->err);
    law_ok(bk_read_f64(r->be, loss, 0, &v, 1, &r->err), &r->err);
    law_ok(bk_params_take_back(r->p), &r->err);
    return v;
}

/* Losses before, and the least while it was trained. False: there is nothing to train. */
static bool course(const bk_backend *be, const law_use *u, const double rate[2], double *first, double *best)
{
    lesson t;
    open_lesson(&t, be, u);
    if (!law_learns(&t.r)) return close_lesson(&t), false;
    bk_ctx_measure(t.r.ctx);
    teach(&t, STEPS - 1, rate);
    law_ok(bk_ctx_commit(t.r.ctx), &t.r.err);
    law_ok(bk_params_start(t.r.p), &t.r.err);
    *first = *best = mark(&t);
    for (int k = 0; k < STEPS; k++) {
        teach(&t, k, rate);
        *best = fmin(*best, mark(&t));
    }
    close_lesson(&t);
    return true;
}

/* Rates of what AdamW and what signs move. Steps are small where there are many codes, logits are not; signs move a range by so many codes that
 * they do harm to 8 bits in this few steps. */
static void learns(const bk_backend *be, const law_use *u)
{
    double first, a, b;
    if (!course(be, u, (double[]){0.1 / (1 << u->spec.bits), 1.0 / STEPS}, &first, &a)) return;
    course(be, u, (double[]){0.1, 0.02 / STEPS}, &first, &b);
    ck_assert_msg(fmin(a, b) < 0.99 * first, "%s on %s: the loss was %g and is %g at best", u->what, be->name, first, fmin(a, b));
}

START_TEST(training_lowers_the_loss)
{
    law_for_all(learns, law_backend(_i));
}
END_TEST

/* A row of zeros among others, and nothing but zeros (cases of the field: 3). */

int main(void)
{
    Suite *s = suite_create("quantizer training");
    TCase *t = tcase_create("soft rounding and training");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, begin_depends_on_the_weight_alone, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, soft_rounding_begins_with_the_weight, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, penalties_end_when_rounding_is_hard, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, hard_stays_hard, 0, LAW_BACKENDS);
    tcase_add_loop_test(t, training_lowers_the_loss, 1, LAW_BACKENDS - 1);
    suite_add_tcase(s, t);
    return law_main(s, "soft_rounding_begins_with_the_weight");
}
