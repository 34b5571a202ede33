#include "blocks/spin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/optim.h"
#include "autograd/rng.h"

enum { RETRACT_ONE_IN = 101 };

typedef struct spin {
    const bk_spin_options *opt;
    const int32_t *ids;
    int64_t samples, tokens, width, head_dim, layers, turns; /* turns: blocks with an R2 of their own */
    bk_error *err;
    bk_rotated_loss *loss;
    bk_linalg *algebra; /* of loss */
    double *r1, *dr1;   /* [width, width] */
    double *r2, *dr2;   /* [turns, head_dim, head_dim] */
    bk_cayley of_r1, *of_r2;
    int32_t *batch;     /* [batch, tokens] */
    const bk_watch *watch;
    int64_t step;
} spin;

/* --- steps --- */

/* done of the blocks of this step, there and back. */
static bk_status ask(void *user, int64_t done, int64_t total, bk_error *err)
{
    spin *s = user;
    return bk_watch_step(s->watch, s->step * total + done, s->opt->steps * total, err);
}

static double square_norm(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

static void scale(double *x, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void clip(spin *s)
{
    int64_t n1 = s->width * s->width, n2 = s->turns * s->head_dim * s->head_dim;
    double norm = sqrt(square_norm(s->dr1, n1) + square_norm(s->dr2, n2));
    if (s->opt->clip_grad <= 0 || norm <= s->opt->clip_grad) return;
    scale(s->dr1, n1, s->opt->clip_grad / norm);
    scale(s->dr2, n2, s->opt->clip_grad / norm);
}

/* Each rotation draws for itself. */
static bool retract(const spin *s, int64_t which)
{
    uint64_t counter = (uint64_t)(s->step * (s->turns + 1) + which);
    return bk_rng_below(s->opt->seed, BK_RNG_RETRACT, counter, RETRACT_ONE_IN) == 0;
}

static bk_status update(spin *s)
{
    double lr = bk_cosine_lr(s->opt->lr, INFINITY, s->step, s->opt->steps);
    int64_t nn = s->head_dim * s->head_dim;
    clip(s);
    BK_TRY(bk_cayley_step(s->algebra, &s->of_r1, s->r1, s->dr1, lr, retract(s, 0)));
    for (int64_t i = 0; i < s->turns; i++)
        BK_TRY(bk_cayley_step(s->algebra, &s->of_r2[i], s->r2 + i * nn, s->dr2 + i * nn, lr, retract(s, i + 1)));
    return BK_OK;
}

static bk_status step(spin *s)
{
    double loss;
    for (int64_t i = 0; i < s->opt->batch; i++) {
        int64_t sample = (s->step * s->opt->batch + i) % s->samples;
        memcpy(s->batch + i * s->tokens, s->ids + sample * s->tokens, (size_t)s->tokens * sizeof *s->ids);
    }
    BK_TRY(bk_rotated_loss_gradient(s->loss, s->batch, s->r1, s->r2, &(bk_watch){ask, s}, &loss, s->dr1, s->dr2));
    if (s->opt->losses) s->opt->losses[s->step] = loss;
    return update(s);
}

static bk_status run(spin *s)
{
    int64_t nn = s->head_dim * s->head_dim;
    for (s->step = 0; s->step < s->opt->steps; s->step++)
        if (step(s)) return bk_error_prefix(s->err, "rotations, step %lld", (long long)s->step + 1);
    BK_TRY(ask(s, 0, 2 * s->layers, s->err));
    BK_TRY(bk_linalg_polar(s->algebra, s->width, s->r1));
    for (int64_t i = 0; i < s->turns; i++) BK_TRY(bk_linalg_polar(s->algebra, s->head_dim, s->r2 + i * nn));
    return BK_OK;
}

/* --- made ready, and handed over --- */

static bk_status prepare_r2(spin *s)
{
    int64_t nn = s->head_dim * s->head_dim;
    s->of_r2 = calloc((size_t)s->turns + 1, sizeof *s->of_r2);
    s->r2 = malloc((size_t)(s->turns * nn + 1) * sizeof *s->r2);
    s->dr2 = malloc((size_t)(s->turns * nn + 1) * sizeof *s->dr2);
    if (!s->of_r2 || !s->r2 || !s->dr2) return bk_fail(s->err, BK_ENOMEM, "no memory for the rotations of values");
    for (int64_t i = 0; i < s->turns; i++) {
        BK_TRY(bk_rotation_dense(s->head_dim, BK_RNG_R2, s->opt->seed, s->r2 + i * nn, s->err));
        BK_TRY(bk_cayley_create(&s->of_r2[i], s->head_dim, s->opt->momentum, s->err));
    }
    return BK_OK;
}

static bk_status prepare(spin *s, const bk_backend *be, const bk_source *src, const bk_block_quant *quant, const bk_fitted *fitted)
{
    bk_block_quant q = quant ? *quant : (bk_block_quant){0};
    bk_rotated_loss_options opt = {.quant = quant ? &q : NULL, .batch = s->opt->batch, .tokens = s->tokens, .r2 = s->opt->r2,
                                   .skip_sites = s->opt->skip_sites, .skip_weights = s->opt->skip_weights};
    if (s->opt->steps < 1 || s->samples < 1) return bk_fail(s->err, BK_EINVAL, "learning a rotation takes a step and a sample");
    q.weight.bits = s->opt->weight_bits;
    BK_TRY(bk_rotated_loss_open(&s->loss, be, src, &opt, s->err));
    s->algebra = bk_rotated_loss_algebra(s->loss);
    s->r1 = malloc((size_t)(s->width * s->width) * sizeof *s->r1);
    s->dr1 = malloc((size_t)(s->width * s->width) * sizeof *s->dr1);
    s->batch = malloc((size_t)(s->opt->batch * s->tokens) * sizeof *s->batch);
    if (!s->r1 || !s->dr1 || !s->batch) return bk_fail(s->err, BK_ENOMEM, "no memory for a rotation");
    if (fitted->r1) memcpy(s->r1, fitted->r1, (size_t)(s->width * s->width) * sizeof *s->r1);
    else BK_TRY(bk_rotation_dense(s->width, BK_RNG_R1, s->opt->seed, s->r1, s->err));
    BK_TRY(bk_cayley_create(&s->of_r1, s->width, s->opt->momentum, s->err));
    return prepare_r2(s);
}

static bk_status hand_over(const spin *s, bk_fitted *f)
{
    int64_t nn = s->head_dim * s->head_dim;
    BK_TRY(bk_fitted_add(f, BK_FITTED_R1, s->err));
    memcpy(f->r1, s->r1, (size_t)(s->width * s->width) * sizeof *s->r1);
    if (!s->turns) return BK_OK;
    BK_TRY(bk_fitted_add(f, BK_FITTED_R2, s->err));
    for (int64_t i = 0; i < s->turns * f->kv_heads; i++) memcpy(f->r2 + i * nn, s->r2 + i / f->kv_heads * nn, (size_t)nn * sizeof *s->r2);
    return BK_OK;
}

bk_status bk_spin_fit(const bk_backend *be, const bk_source *src, const bk_block_quant *quant, const int32_t *ids, int64_t samples,
                      int64_t tokens, const bk_spin_options *opt, const bk_watch *watch, bk_fitted *fitted, bk_error *err)
{
    const bk_config *c = bk_source_config(src);
    spin s = {.opt = opt, .ids = ids, .samples = samples, .tokens = tokens, .width = c->hidden, .head_dim = c->head_dim,
              .layers = c->layers, .turns = opt->r2 ? c->layers : 0, .err = err, .watch = watch};
    bk_status st = bk_fitted_fits(fitted, c, err);
    if (!st) st = prepare(&s, be, src, quant, fitted);
    if (!st) st = run(&s);
    if (!st) st = hand_over(&s, fitted);
    bk_cayley_free(&s.of_r1);
    for (int64_t i = 0; s.of_r2 && i < s.turns; i++) bk_cayley_free(&s.of_r2[i]);
    bk_rotated_loss_close(s.loss);
    free(s.of_r2), free(s.r1), free(s.dr1), free(s.r2), free(s.dr2), free(s.batch);
    return st;
}
