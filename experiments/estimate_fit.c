/* What the stage `fit` and GPTQ will take. Arithmetic is counted, in f64 where it is f64; factors are those of the algorithms. */
#include <math.h>

#include "blocks/awq.h"
#include "blocks/norm_rotation.h"
#include "experiments/estimate_priv.h"

#define EIGH_FLOPS 25.0    /* times n^3: dsyevd, half of whose work runs at the speed of memory */
#define CAYLEY_FLOPS 20.0  /* ten products */
#define POLAR_FLOPS 80.0   /* Newton-Schulz: twenty times two products */
#define QR_FLOPS 12.0      /* Gram-Schmidt twice, and its gradient */
#define FACTOR_FLOPS 1.0   /* Cholesky, inverse */
#define CLIP_NS 150.0      /* GPTQ, per weight: a step by trying */
#define ROUND_NS 15.0      /* GPTQ, per weight: rounding */
#define OFFQ_SQUARES 12.0  /* f64 matrices of the order of hidden: two sums, a fit's own, its desk, eigh's room */
#define SPIN_SQUARES 10.0  /* R1, its gradient, Cayley's own and room */
#define ROWS_SQUARES 12.0
#define ROWS_CHUNK 2048.0  /* rows on the backend at a time (blocks/norm_rotation.c) */

static double cube(double n)
{
    return n * n * n;
}

static double hidden(const bk_estimator *e)
{
    return (double)e->cfg->hidden;
}

static double tokens(const bk_estimator *e)
{
    return (double)e->n.statistics * (double)e->c->data.statistics.seqlen;
}

/* Rows of the norms. */
static double norm_rows(const bk_estimator *e)
{
    double asked = (double)e->c->norm_rotation.rows, there = tokens(e);
    return 2 * (double)e->cfg->layers * (asked < there ? asked : there);
}

/* One block over the statistics. */
static double statistics_pass(const bk_estimator *e, const bk_rates *r)
{
    return bk_estimate_forward(e, r, (double)e->n.statistics, e->c->data.statistics.seqlen);
}

static double largest_linear(const bk_estimator *e)
{
    double most = 0;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        int64_t out, in;
        bk_linear_shape(e->cfg, w, &out, &in);
        most = fmax(most, (double)out * (double)in);
    }
    return most;
}

int64_t bk_estimate_spin_tokens(const bk_run_config *c)
{
    return c->spin_seqlen ? c->spin_seqlen : c->data.statistics.seqlen;
}

/* --- memory --- */

/* A pass over the statistics, block by block. */
static bk_status pass_memory(const bk_estimator *e, bool search, double *out)
{
    double block, pass;
    int64_t n = e->n.statistics, t = e->c->data.statistics.seqlen;
    BK_TRY(bk_estimate_pass(e, search, search, n, t, &block, &pass));
    *out = bk_estimate_weights(e) + block + pass + bk_estimate_stream_memory(e, n, t);
    return BK_OK;
}

/* Inputs of all blocks in one stream, those of one and their gradients in others; weights and gradients of a linear in f64, the largest at a time. */
static bk_status spin_memory(const bk_estimator *e, double *out)
{
    double block, step;
    int64_t batch = e->c->spin.batch, t = bk_estimate_spin_tokens(e->c);
    BK_TRY(bk_estimate_step(e, bk_pass_batch(batch, t), t, &block, &step));
    *out = bk_estimate_weights(e) + block + step + 2 * bk_estimate_stream_memory(e, batch, t) +
           bk_estimate_stream_memory(e, e->cfg->layers * batch, t) + 3 * 8 * largest_linear(e) + 2 * bk_estimate_head(e) +
           8 * SPIN_SQUARES * hidden(e) * hidden(e);
    return BK_OK;
}

static bk_status basis_memory(const bk_estimator *e, double *out)
{
    double square = 8 * hidden(e) * hidden(e);
    if (e->c->rotation.basis == BK_BASIS_HADAMARD) return BK_OK;
    if (e->c->rotation.basis == BK_BASIS_SPINQUANT) return spin_memory(e, out);
    BK_TRY(pass_memory(e, false, out));
    if (e->c->rotation.basis == BK_BASIS_OFFQ) *out += OFFQ_SQUARES * square + 8 * (double)e->n.statistics * hidden(e);
    else *out += ROWS_SQUARES * square + 4 * (norm_rows(e) + 4 * ROWS_CHUNK) * hidden(e);
    return BK_OK;
}

bk_status bk_estimate_fit_memory(const bk_estimator *e, double *out)
{
    double scales = 0, basis = 0;
    if (e->c->scales.from != BK_SCALES_NONE) BK_TRY(pass_memory(e, e->c->scales.from == BK_SCALES_AWQ, &scales));
    BK_TRY(basis_memory(e, &basis));
    *out = fmax(scales, basis);
    return BK_OK;
}

bk_status bk_estimate_gptq_memory(const bk_estimator *e, double *out)
{
    double block, pass, widest = 0;
    *out = 0;
    if (e->c->init.from != BK_INIT_GPTQ) return BK_OK;
    BK_TRY(bk_estimate_pass(e, true, false, e->n.statistics, e->c->data.statistics.seqlen, &block, &pass));
    for (int s = 0; s < BK_SITE_COUNT; s++) widest = fmax(widest, (double)bk_site_width(e->cfg, (bk_site_id)s));
    *out = pass + 8 * widest * widest;
    return BK_OK;
}

/* --- disk --- */

double bk_estimate_fitted_bytes(const bk_estimator *e)
{
    const bk_run_config *c = e->c;
    const bk_config *m = e->cfg;
    double layers = (double)m->layers, heads = layers * (double)(m->kv_heads * m->head_dim * m->head_dim), bytes = 0;
    if (c->rotation.basis != BK_BASIS_HADAMARD) bytes += 8 * hidden(e) * hidden(e);
    if (c->rotation.basis == BK_BASIS_OFFQ) bytes += 8 * heads + 5 * layers * (double)m->inter; /* with r3, which only the keys decide */
    if (c->rotation.basis == BK_BASIS_SPINQUANT && c->spin.r2) bytes += 8 * heads;
    if (c->scales.from != BK_SCALES_NONE) bytes += 4 * layers * 2 * hidden(e);
    if (c->scales.from == BK_SCALES_AWQ) bytes += 4 * layers * (double)(m->inter + m->kv_heads * m->head_dim);
    return bytes;
}

/* --- time --- */

/* Passes of AWQ over a block: from each of its sites on, for each ratio, and a pass before. */
static double awq_passes(const bk_estimator *e)
{
    double attention = 0, mlp = 0;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        int64_t out, in;
        bk_linear_shape(e->cfg, w, &out, &in);
        *(w < BK_W_GATE ? &attention : &mlp) += (double)out * (double)in;
    }
    double all = attention + mlp, o = e->cfg->kv_heads == e->cfg->heads ? mlp + attention / 4 : 0;
    return 2 + BK_AWQ_RATIOS * (all + o + mlp + mlp / 3) / all;
}

/* A step of a batch: forward, and forward once more with backward, all with quantizers, which cost as much again; each linear is turned twice, and
 * its gradient added, with operands that are brought to the backend each time. */
static double spin_step(const bk_estimator *e, const bk_rates *r)
{
    double batch = (double)e->c->spin.batch, layers = (double)e->cfg->layers;
    int64_t t = bk_estimate_spin_tokens(e->c);
    double turns = 4 * 2 * (double)bk_config_block_weights(e->cfg) * hidden(e);
    double head = 6 * batch * (double)t * (double)e->cfg->vocab * hidden(e);
    return layers * (3 * r->load_seconds + bk_estimate_f64(r, turns) + 8 * bk_estimate_forward(e, r, batch, t)) + bk_estimate_f64(r, head / 2) +
           bk_estimate_f64(r, CAYLEY_FLOPS * cube(hidden(e)));
}

static double basis_seconds(const bk_estimator *e, const bk_rates *r)
{
    const bk_run_config *c = e->c;
    double n = hidden(e), rows = norm_rows(e), layers = (double)e->cfg->layers, square = rows * n * n;
    double pass = layers * (r->load_seconds + statistics_pass(e, r));
    switch (c->rotation.basis) {
    case BK_BASIS_OFFQ: return pass + bk_estimate_f64(r, layers * 2 * tokens(e) * n * n + 2 * EIGH_FLOPS * cube(n));
    case BK_BASIS_SPINQUANT: return (double)c->spin.steps * spin_step(e, r) + bk_estimate_f64(r, POLAR_FLOPS * cube(n));
    case BK_BASIS_DFROT: return pass + (double)c->norm_rotation.dfrot.rounds * bk_estimate_f64(r, 2 * square + POLAR_FLOPS * cube(n));
    case BK_BASIS_DARTQUANT:
    case BK_BASIS_KURTAIL:
        return pass + (double)c->norm_rotation.spread.epochs *
                          bk_estimate_f64(r, 2 * square + rows / (double)c->norm_rotation.spread.batch * QR_FLOPS * cube(n));
    default: return 0;
    }
}

double bk_estimate_fit_seconds(const bk_estimator *e, const bk_rates *r)
{
    double passes = e->c->scales.from == BK_SCALES_AWQ ? awq_passes(e) : e->c->scales.from == BK_SCALES_SMOOTHQUANT ? 1 : 0;
    double scales = passes > 0 ? (double)e->cfg->layers * (r->load_seconds + passes * statistics_pass(e, r)) : 0;
    return scales + basis_seconds(e, r);
}

/* Passes of GPTQ over a block: up to each input of linears, and a whole one with what it found. */
static double gptq_passes(const bk_estimator *e)
{
    double before = 0, sum = 0; /* weights */
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        int64_t out, in;
        if (w && bk_linear_input(w) != bk_linear_input(w - 1)) sum += before;
        bk_linear_shape(e->cfg, w, &out, &in);
        before += (double)out * (double)in;
    }
    return 1 + sum / before;
}

double bk_estimate_gptq_seconds(const bk_estimator *e, const bk_rates *r)
{
    double flops = 0, per_weight = (ROUND_NS + (e->c->gptq.mse_clip ? CLIP_NS : 0)) * 1e-9;
    if (e->c->init.from != BK_INIT_GPTQ) return 0;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        int64_t out, in;
        bk_linear_shape(e->cfg, w, &out, &in);
        bool first = w == 0 || bk_linear_input(w) != bk_linear_input(w - 1); /* of those that share a Hessian */
        double n = (double)in;
        flops += (double)out * n * n + (first ? tokens(e) * n * n + FACTOR_FLOPS * cube(n) : 0);
    }
    return gptq_passes(e) * statistics_pass(e, r) + bk_estimate_f64(r, flops) + per_weight * (double)bk_config_block_weights(e->cfg);
}
