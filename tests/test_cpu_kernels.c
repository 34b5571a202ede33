/* The cpu backend against the reference in f32, kernel by kernel, on shapes with ragged tiles and tails; and with one thread against
 * three, where not a bit may differ. Scratch is exactly as large as the backend asks for. */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backend.h"
#include "autograd/rng.h"
#include "backends/scalar/math.h"
#include "tests/suite.h"

enum { MAX_OUT = 8 };

/* What a case left: arrays of f32, f64 or i32 ('f', 'd', 'i'), compared in the order in which they were made. */
typedef struct outputs {
    void *p[MAX_OUT];
    int64_t n[MAX_OUT];
    size_t size[MAX_OUT];
    char type[MAX_OUT];
    int count;
} outputs;

/* Arrays of a test, which `give_back` frees behind it. */
static void *taken[256];
static int n_taken;

static void *memory(int64_t n, size_t size)
{
    void *p = aligned_alloc(64, ((size_t)n * size + 127) / 64 * 64);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_lt(n_taken, (int)(sizeof taken / sizeof *taken));
    return taken[n_taken++] = p;
}

static void give_back(void)
{
    while (n_taken > 0) free(taken[--n_taken]);
}

static float *numbers(int64_t n, uint64_t seed, double scale)
{
    float *x = memory(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i));
    return x;
}

static double *doubles(int64_t n, uint64_t seed)
{
    double *x = memory(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
    return x;
}

static void *keep(outputs *o, void *p, int64_t n, size_t size, char type)
{
    ck_assert_int_lt(o->count, MAX_OUT);
    o->p[o->count] = p, o->n[o->count] = n, o->size[o->count] = size, o->type[o->count++] = type;
    return p;
}

/* Outputs start with numbers in them, so that a kernel that should add shows whether it does. */
static float *real_out(outputs *o, int64_t n) { return keep(o, numbers(n, 900 + (uint64_t)o->count, 1.0), n, sizeof(float), 'f'); }

static double *double_out(outputs *o, int64_t n)
{
    double *x = memory(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = 0.25 * (double)i;
    return keep(o, x, n, sizeof(double), 'd');
}

static int32_t *code_out(outputs *o, int64_t n) { return keep(o, memory(n, sizeof(int32_t)), n, sizeof(int32_t), 'i'); }

static bk_work scratch_for(const bk_backend *be, bk_slot slot, const void *args)
{
    size_t bytes = be->work ? be->work(slot, args) : 0;
    return (bk_work){bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : 0, bytes};
}

#define RUN(be, slot, args)                                       \
    do {                                                          \
        bk_work run_work = scratch_for(be, BK_SLOT_##slot, args); \
        ck_assert_int_eq((be)->k.slot(args, &run_work), BK_OK);   \
        free(run_work.base);                                      \
    } while (0)

typedef const bk_backend *backend;

static void product(backend be, outputs *o, int64_t m, int64_t n, int64_t k, int ta, int tb, int beta)
{
    float *x = numbers(m * k, 1, 1), *y = numbers(k * n, 2, 1);
    bk_gemm_args a = {m, n, k, ta, tb, x, y, real_out(o, m * n), ta ? m : k, tb ? k : n, n, beta};
    RUN(be, gemm, &a);
}
static void gemm_forward(backend be, outputs *o) { product(be, o, 601, 70, 53, 0, 1, 0); }
static void gemm_one_row(backend be, outputs *o) { product(be, o, 1, 900, 64, 0, 1, 0); }
static void gemm_dx(backend be, outputs *o) { product(be, o, 530, 65, 33, 0, 0, 1); }
static void gemm_dw(backend be, outputs *o) { product(be, o, 193, 40, 1100, 1, 0, 1); }
static void gemm_many_columns(backend be, outputs *o) { product(be, o, 3, 1300, 20, 0, 0, 1); }
static void gemm_both(backend be, outputs *o) { product(be, o, 20, 40, 30, 1, 1, 0); }

static void bias(backend be, outputs *o)
{
    bk_bias_fwd_args f = {500, 37, numbers(37, 1, 1), real_out(o, 500 * 37)};
    bk_bias_bwd_args b = {500, 37, numbers(500 * 37, 2, 1), real_out(o, 37)};
    RUN(be, bias_fwd, &f);
    RUN(be, bias_bwd, &b);
}

static void rmsnorm(backend be, outputs *o)
{
    enum { R = 303, C = 77 };
    float *x = numbers(R * C, 1, 3), *w = numbers(C, 2, 1), *dy = numbers(R * C, 3, 1), *rstd = real_out(o, R);
    bk_rmsnorm_fwd_args f = {R, C, 1e-5, x, w, real_out(o, R * C), rstd};
    RUN(be, rmsnorm_fwd, &f);
    bk_rmsnorm_bwd_args b = {R, C, x, w, rstd, dy, real_out(o, R * C), real_out(o, C)};
    RUN(be, rmsnorm_bwd, &b);
}

static void rope(backend be, outputs *o)
{
    enum { T = 175, N = 2 * T * 3 * 16 };
    bk_rope_args a = {2, T, 3, 16, 4, numbers(N, 1, 1), numbers((T + 4) * 16, 2, 1), real_out(o, N), 0, 0};
    RUN(be, rope, &a);
    a.inverse = a.accumulate = 1, a.y = real_out(o, N);
    RUN(be, rope, &a);
}

typedef struct attention_shape {
    int64_t batch, tokens, heads, kv_heads, dim, prefix, window;
} attention_shape;

static bk_attention_fwd_args attention_of(attention_shape s, outputs *o)
{
    int64_t qn = s.batch * s.tokens * s.heads * s.dim, kn = s.batch * s.tokens * s.kv_heads * s.dim, pn = s.kv_heads * s.prefix * s.dim;
    bk_attention_fwd_args f = {s.batch, s.tokens, s.heads, s.kv_heads, s.dim, s.prefix, s.window, .scale = 1 / sqrt((double)s.dim)};
    f.q = numbers(qn, 1, 1), f.k = numbers(kn, 2, 1), f.v = numbers(kn, 3, 1);
    if (pn) f.prefix_k = numbers(pn, 4, 1), f.prefix_v = numbers(pn, 5, 1);
    f.o = real_out(o, qn), f.lse = real_out(o, s.batch * s.heads * s.tokens);
    return f;
}

static void attention(backend be, outputs *o, attention_shape s)
{
    bk_attention_fwd_args f = attention_of(s, o);
    RUN(be, attention_fwd, &f);
    int64_t qn = s.batch * s.tokens * s.heads * s.dim, kn = s.batch * s.tokens * s.kv_heads * s.dim;
    float *dq = real_out(o, qn), *dk = real_out(o, kn), *dv = real_out(o, kn);
    bk_attention_bwd_args b = {f, numbers(qn, 6, 1), dq, dk, dv};
    RUN(be, attention_bwd, &b);
    b.dq = 0, b.dv = 0, b.dk = real_out(o, kn);
    RUN(be, attention_bwd, &b);
}
static void attention_grouped(backend be, outputs *o) { attention(be, o, (attention_shape){2, 75, 6, 2, 16, 3, 0}); }
static void attention_plain(backend be, outputs *o) { attention(be, o, (attention_shape){1, 150, 2, 2, 8, 0, 0}); }
static void attention_window(backend be, outputs *o) { attention(be, o, (attention_shape){1, 130, 4, 1, 24, 2, 20}); }
static void attention_many_heads(backend be, outputs *o) { attention(be, o, (attention_shape){3, 70, 12, 6, 8, 1, 0}); }
static void attention_wide(backend be, outputs *o) { attention(be, o, (attention_shape){1, 9, 2, 1, 256, 1, 0}); }
static void attention_one_token(backend be, outputs *o) { attention(be, o, (attention_shape){3, 1, 2, 1, 8, 0, 0}); }

static void score_err(backend be, outputs *o)
{
    attention_shape s = {2, 70, 6, 2, 16, 2, 30};
    outputs unused = {.count = 0};
    bk_score_err_args a = {attention_of(s, &unused), numbers(s.batch * s.tokens * s.kv_heads * s.dim, 7, 1), double_out(o, s.kv_heads)};
    RUN(be, score_err, &a);
}

static void swiglu(backend be, outputs *o)
{
    enum { N = 40003, HARD = 8 };
    float *gate = numbers(N, 1, 5), *up = numbers(N, 2, 1), *dy = numbers(N, 3, 1);
    const float hard[HARD] = {0, 80.0f, -80.0f, 88.8f, -88.8f, -104.0f, 1e-40f, 1.0f};
    memcpy(gate, hard, sizeof hard);
    bk_swiglu_fwd_args f = {N, gate, up, real_out(o, N)};
    RUN(be, swiglu_fwd, &f);
    bk_swiglu_bwd_args b = {N, gate, up, dy, real_out(o, N), 0};
    b.dup = real_out(o, N);
    RUN(be, swiglu_bwd, &b);
    b.dup = 0, b.dgate = real_out(o, N);
    RUN(be, swiglu_bwd, &b);
    b.dgate = 0, b.dup = real_out(o, N);
    RUN(be, swiglu_bwd, &b);
}

static void flat(backend be, outputs *o)
{
    enum { N = 50001 };
    float *x = numbers(N, 1, 1), *y = numbers(N, 2, 1);
    bk_add_args add = {N, x, y, real_out(o, N)};
    bk_axpy_args axpy = {N, -0.3, x, real_out(o, N)};
    bk_fill_args fill = {N, 0.7, real_out(o, N)};
    bk_scale_args scale = {N, 1.7, real_out(o, N)};
    bk_floor_args floors = {N, real_out(o, N), y, 0};
    floors.count = double_out(o, 1);
    bk_sumsq_args sumsq = {N, x, double_out(o, 1)};
    RUN(be, add, &add);
    RUN(be, axpy, &axpy);
    RUN(be, fill, &fill);
    RUN(be, scale, &scale);
    RUN(be, floor, &floors);
    RUN(be, sumsq, &sumsq);
}

static void first_bad(backend be, outputs *o)
{
    enum { N = 40000 };
    float *x = numbers(N, 1, 1);
    bk_finite_args a = {N, x, double_out(o, 1)};
    RUN(be, finite, &a);
    x[39999] = INFINITY, a.first = double_out(o, 1);
    RUN(be, finite, &a);
    x[20011] = NAN, a.first = double_out(o, 1);
    RUN(be, finite, &a);
}

static void factors(backend be, outputs *o)
{
    enum { N = 50001 };
    float *a = numbers(N, 1, 1), *b = numbers(N, 2, 1), *dy = numbers(N, 3, 1);
    bk_mul_args mul = {N, a, b, real_out(o, N), 0};
    RUN(be, mul, &mul);
    mul.accumulate = 1, mul.y = real_out(o, N);
    RUN(be, mul, &mul);
    for (int i = 0; i < N; i++) b[i] = 0.5f + fabsf(b[i]);
    bk_quotient_fwd_args f = {N, 15, a, b, real_out(o, N)};
    bk_quotient_bwd_args g = {N, 15, a, b, dy, real_out(o, N), 0};
    RUN(be, quotient_fwd, &f);
    RUN(be, quotient_bwd, &g);
    g.da = 0, g.db = real_out(o, N);
    RUN(be, quotient_bwd, &g);
    for (int i = 0; i < N; i++) a[i] *= 20;
    bk_logistic_fwd_args p = {N, 4, a, real_out(o, N)};
    bk_logistic_bwd_args q = {N, 4, a, dy, real_out(o, N)};
    RUN(be, logistic_fwd, &p);
    RUN(be, logistic_bwd, &q);
}

static void bounded_steps(backend be, outputs *o)
{
    enum { N = 50001 };
    float *g = numbers(N, 1, 1);
    g[7] = 0.0f;
    bk_signsgd_args s = {N, 0.1, real_out(o, N), g};
    bk_clamp_args c = {N, -0.5, 0.7, s.p};
    RUN(be, signsgd, &s);
    c.p = real_out(o, N);
    RUN(be, clamp, &c);
}

static void adamw(backend be, outputs *o)
{
    enum { N = 20001 };
    float *p = real_out(o, N), *m = real_out(o, N), *v = real_out(o, N);
    for (int i = 0; i < N; i++) v[i] = fabsf(v[i]);
    bk_adamw_args a = {N, 3, 1e-2, 0.9, 0.999, 1e-8, 0.1, p, m, v, numbers(N, 4, 1)};
    RUN(be, adamw, &a);
}

static void embedding(backend be, outputs *o)
{
    enum { C = 2500 };
    static const int32_t ids[7] = {3, 0, 3, 10, 5, 3, 0};
    bk_embedding_fwd_args f = {7, C, 11, numbers(11 * C, 1, 1), ids, real_out(o, 7 * C)};
    bk_embedding_bwd_args b = {7, C, 11, ids, numbers(7 * C, 2, 1), real_out(o, 11 * C)};
    RUN(be, embedding_fwd, &f);
    RUN(be, embedding_bwd, &b);
}

static void transform(backend be, outputs *o, int64_t rows, int64_t base, int64_t pow2, int64_t blocks)
{
    int64_t n = rows * base * pow2 * blocks;
    float *h = numbers(base * base, 2, 1);
    for (int64_t i = 0; i < base * base; i++) h[i] = h[i] < 0 ? -1.0f : 1.0f;
    bk_hadamard_args a = {rows, base, pow2, blocks, numbers(n, 1, 1), base > 1 ? h : 0, real_out(o, n), 0, 0};
    RUN(be, hadamard, &a);
    a.transpose = a.accumulate = 1, a.y = real_out(o, n);
    RUN(be, hadamard, &a);
}
static void hadamard_heads(backend be, outputs *o) { transform(be, o, 90, 1, 64, 3); }
static void hadamard_base(backend be, outputs *o) { transform(be, o, 11, 12, 128, 1); }
static void hadamard_small(backend be, outputs *o)
{
    transform(be, o, 6, 20, 4, 2);
    transform(be, o, 6, 12, 1, 1);
    transform(be, o, 4, 1, 2, 1);
}

static void rotate_heads(backend be, outputs *o)
{
    enum { ROWS = 401, H = 6, KV = 2, D = 40, N = ROWS * H * D };
    bk_rotate_heads_args a = {ROWS, H, KV, D, numbers(N, 1, 1), numbers(KV * D * D, 2, 1), real_out(o, N), 0, 0};
    RUN(be, rotate_heads, &a);
    a.transpose = a.accumulate = 1, a.y = real_out(o, N);
    RUN(be, rotate_heads, &a);
}

static void losses(backend be, outputs *o, bk_loss_kind kind)
{
    enum { S = 2, T = 41, C = 250, N = S * T * C };
    static const float dloss = 1.5f;
    float *p = numbers(N, 1, 7), *t = numbers(N, 2, 7);
    memset(t + 4 * C, 0, C * sizeof *t);
    memcpy(t + 9 * C, t + 8 * C, C * sizeof *t);
    p[3] = 10.0f;
    bk_loss_fwd_args f = {kind, S, T, C, p, t, real_out(o, 1)};
    bk_loss_bwd_args b = {kind, S, T, C, p, t, &dloss, real_out(o, N)};
    RUN(be, loss_fwd, &f);
    RUN(be, loss_bwd, &b);
}
static void loss_mse(backend be, outputs *o) { losses(be, o, BK_LOSS_MSE); }
static void loss_skip(backend be, outputs *o) { losses(be, o, BK_LOSS_SKIP_MSE); }
static void loss_clamp(backend be, outputs *o) { losses(be, o, BK_LOSS_CLAMP_MSE); }
static void loss_normalized(backend be, outputs *o) { losses(be, o, BK_LOSS_NORMALIZED_MSE); }
static void loss_cosine(backend be, outputs *o) { losses(be, o, BK_LOSS_COSINE); }

static void xent(backend be, outputs *o)
{
    enum { R = 17, C = 1003 };
    int32_t target[R];
    for (int i = 0; i < R; i++) target[i] = i * 60;
    float *x = numbers(R * C, 1, 4), *dnll = numbers(R, 2, 1), *lse = real_out(o, R);
    bk_xent_fwd_args f = {R, C, x, target, real_out(o, R), lse};
    RUN(be, xent_fwd, &f);
    bk_xent_bwd_args b = {R, C, x, lse, dnll, target, real_out(o, R * C)};
    RUN(be, xent_bwd, &b);
}

static float *steps(int64_t n, uint64_t seed)
{
    float *s = numbers(n, seed, 0.05);
    for (int64_t i = 0; i < n; i++) s[i] = 0.2f + fabsf(s[i]);
    return s;
}

enum { NO_V = -1 };

/* rounding NO_V: without v */
static void stored_as(backend be, outputs *o, int64_t group, int per_row, int zero, int qmin, int qmax, int rounding)
{
    enum { R = 193, C = 96 };
    int64_t params = (per_row ? R : 1) * (C / group);
    float *x = numbers(R * C, 1, 1.2), *s = steps(params, 2), *z = zero ? numbers(params, 3, 6) : 0, *dy = numbers(R * C, 4, 1);
    for (int64_t g = 0; g < C / group; g++) /* a half, the last code, and what rounds just out of it */
        for (int i = 0; i < 3; i++) x[g * group + i] = s[g] * ((float)qmax - 0.5f + 0.5f * (float)i);
    const float *v = rounding == NO_V ? 0 : numbers(R * C, 5, rounding == BK_ROUND_SOFT ? 2.0 : 0.3);
    bk_rounding how = rounding == BK_ROUND_SOFT ? BK_ROUND_SOFT : BK_ROUND_OFFSET;
    bk_fakequant_fwd_args f = {R, C, group, per_row, qmin, qmax, x, s, z, real_out(o, R * C), 0, BK_FREEZE_OFF, 0, how, v};
    f.codes = code_out(o, R * C);
    RUN(be, fakequant_fwd, &f);
    bk_fakequant_bwd_args b = {R, C, group, per_row, qmin, qmax, x, s, z, dy, real_out(o, R * C), 0, 0, how, v, 0};
    b.ds = real_out(o, params);
    if (zero) b.dz = real_out(o, params);
    if (v) b.dv = real_out(o, R * C);
    RUN(be, fakequant_bwd, &b);
    b.dx = 0, b.dz = 0, b.dv = 0, b.ds = real_out(o, params);
    RUN(be, fakequant_bwd, &b);
    if (!v) return;
    b.ds = 0, b.dv = real_out(o, R * C);
    RUN(be, fakequant_bwd, &b);
}
static void stored(backend be, outputs *o, int64_t group, int per_row, int zero, int qmin, int qmax)
{
    stored_as(be, o, group, per_row, zero, qmin, qmax, NO_V);
}
static void fakequant_offset(backend be, outputs *o) { stored_as(be, o, 32, 1, 1, 0, 15, BK_ROUND_OFFSET); }
static void fakequant_soft(backend be, outputs *o) { stored_as(be, o, 32, 1, 1, 0, 15, BK_ROUND_SOFT); }
static void fakequant_soft_tensor(backend be, outputs *o) { stored_as(be, o, 96, 0, 0, -8, 7, BK_ROUND_SOFT); }

static void round_penalty(backend be, outputs *o)
{
    enum { N = 40001 };
    static const float dloss = -1.5f;
    float *v = numbers(N, 1, 2);
    for (double beta = 1; beta < 21; beta += 9.7) {
        bk_round_penalty_fwd_args f = {N, 0.01 / N, beta, v, real_out(o, 1)};
        bk_round_penalty_bwd_args b = {N, 0.3, beta, v, &dloss, real_out(o, N)};
        RUN(be, round_penalty_fwd, &f);
        RUN(be, round_penalty_bwd, &b);
    }
}
static void fakequant_weights(backend be, outputs *o) { stored(be, o, 96, 1, 0, -8, 7); }
static void fakequant_groups(backend be, outputs *o) { stored(be, o, 32, 1, 1, 0, 15); }
static void fakequant_tensor(backend be, outputs *o) { stored(be, o, 96, 0, 0, -8, 7); }
static void fakequant_heads(backend be, outputs *o) { stored(be, o, 24, 0, 1, 0, 15); }

static void measured(backend be, outputs *o, int64_t group, int symmetric, int bounded, float gamma, float beta)
{
    enum { R = 193, C = 96 };
    int64_t params = R * C / group;
    int qmin = symmetric ? -8 : 0, qmax = symmetric ? 7 : 15;
    float *x = numbers(R * C, 1, 1.2), *dy = numbers(R * C, 2, 1);
    for (int i = 0; i < C; i++) {
        x[i] = 0.0f;                                    /* zeros */
        x[C + i] = 2.5f;                                /* a constant */
        x[2 * C + i] = 100.0f + 1e-4f * (float)(i % 7); /* a range too small to quantize */
    }
    for (int i = 0; i < 4; i++) x[3 * C + 5 * i] = i < 2 ? 7.0f : -7.0f; /* ties */
    const float *lower = symmetric ? 0 : &beta;
    bk_dynquant_fwd_args f = {R, C, group, symmetric, qmin, qmax, bounded, x, &gamma, lower, real_out(o, R * C), 0, 0, 0, BK_FREEZE_OFF, 0};
    f.step = real_out(o, params), f.zero = real_out(o, params), f.codes = code_out(o, R * C);
    RUN(be, dynquant_fwd, &f);
    bk_dynquant_bwd_args b = {R, C, group, symmetric, qmin, qmax, bounded, x, &gamma, lower, dy, real_out(o, R * C), 0, 0};
    b.dgamma = real_out(o, 1);
    if (!symmetric) b.dbeta = real_out(o, 1);
    RUN(be, dynquant_bwd, &b);
    b.dx = 0, b.dbeta = 0, b.dgamma = real_out(o, 1);
    RUN(be, dynquant_bwd, &b);
}
static void dynquant_symmetric(backend be, outputs *o) { measured(be, o, 96, 1, 0, 1.0f, 1.0f); }
static void dynquant_symmetric_heads(backend be, outputs *o) { measured(be, o, 24, 1, 0, 0.83f, 1.0f); }
static void dynquant_asymmetric(backend be, outputs *o) { measured(be, o, 96, 0, 0, 0.9f, 0.8f); }
static void dynquant_asymmetric_heads(backend be, outputs *o) { measured(be, o, 48, 0, 0, 1.0f, 1.0f); }
static void dynquant_bounded(backend be, outputs *o) { measured(be, o, 48, 0, 1, 0.9f, 0.8f); }
static void dynquant_no_range(backend be, outputs *o) { measured(be, o, 96, 0, 0, -0.5f, -0.5f); }
static void dynquant_no_factor(backend be, outputs *o) { measured(be, o, 96, 1, 0, -0.5f, 1.0f); }

static void ranges(backend be, outputs *o)
{
    enum { R = 190, C = 90 };
    float *x = numbers(R * C, 1, 1);
    bk_minmax_args a = {R, C, 30, 0, 0, x, 0, 0};
    a.lo = real_out(o, 3), a.hi = real_out(o, 3);
    RUN(be, minmax, &a);
    a.accumulate = 1, a.lo = real_out(o, 3), a.hi = real_out(o, 3);
    RUN(be, minmax, &a);
    a.per_row = 1, a.lo = real_out(o, R * 3), a.hi = real_out(o, R * 3);
    RUN(be, minmax, &a);
    bk_absmax_args m = {R, C, x, real_out(o, R)};
    RUN(be, absmax, &m);
}

static void errors(backend be, outputs *o)
{
    enum { R = 190, C = 90 };
    float *x = numbers(R * C, 1, 1), *y = numbers(R * C, 2, 1);
    bk_sqerr_args s = {R, C, 30, x, y, double_out(o, 3)};
    bk_rowdot_args d = {R, C, x, y, double_out(o, R)};
    RUN(be, sqerr, &s);
    RUN(be, rowdot, &d);
}

static void gemm_f64(backend be, outputs *o)
{
    enum { M = 401, N = 90, K = 75 };
    double *x = doubles(M * K, 1), *y = doubles(K * N, 2);
    bk_gemm_f64_args a = {M, N, K, 0, 1, x, y, double_out(o, M * N), K, K, N, 1};
    RUN(be, gemm_f64, &a);
}

static void gram(backend be, outputs *o)
{
    enum { R = 530, C = 77 };
    double *h = double_out(o, C * C);
    for (int i = 0; i < C * C; i++) h[i] = 0.5 * (i / C + i % C);
    bk_gram_args a = {R, C, 0.3, numbers(R * C, 1, 1), h};
    RUN(be, gram, &a);
}

/* X^T X of more rows than columns, and what `cholesky` and `trtri` make of it */
static void inverse_root(backend be, outputs *o)
{
    enum { N = 133 };
    double *h = double_out(o, N * N), *diag = doubles(N, 1), *bad = double_out(o, 1);
    int32_t order[N];
    memset(h, 0, sizeof *h * N * N);
    bk_gram_args g = {2 * N, N, 1, numbers(2 * N * N, 2, 1), h};
    RUN(be, gram, &g);
    for (int i = 0; i < N; i++) diag[i] = h[i * N + i], order[i] = (i * 10 + 4) % N;
    bk_cholesky_args a = {N, 0.5, diag, order, h, bad};
    RUN(be, cholesky, &a);
    memcpy(double_out(o, N * N), h, sizeof *h * N * N);
    bk_trtri_args t = {N, h};
    RUN(be, trtri, &t);
}

static void eigh(backend be, outputs *o)
{
    enum { N = 70 };
    double *m = doubles(N * N, 1);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) m[i * N + k] = m[k * N + i];
    bk_eigh_args a = {N, m, double_out(o, N), double_out(o, N * N)};
    RUN(be, eigh, &a);
}

static bk_fit_steps_args fit_of(backend be, outputs *o, int64_t rows, int64_t cols, int64_t group, int symmetric, int clip, const float *x)
{
    int64_t steps = rows * cols / group;
    bk_fit_steps_args f = {rows, cols, group, 3, symmetric, clip, clip, x, real_out(o, steps), 0};
    if (!symmetric) f.zero = real_out(o, steps);
    RUN(be, fit_steps, &f);
    return f;
}

/* A triangle like those of real Hessians: diagonal 1, the rest smaller the further away; and any order */
static void rounded(backend be, outputs *o, int64_t group, int symmetric, int refit, int clip)
{
    enum { R = 50, C = 300 };
    double *u = doubles(C * C, 2);
    int32_t order[C];
    for (int i = 0; i < C * C; i++) u[i] = i % C < i / C ? NAN : i % C == i / C ? 1 : 0.2 * u[i] / (1 + i % C - i / C);
    for (int i = 0; i < C; i++) order[i] = (i * 7 + 3) % C;
    float *w = real_out(o, R * C);
    bk_gptq_args a = {fit_of(be, o, R, C, group, symmetric, clip, w), refit, clip ? order : 0, u, w, code_out(o, R * C), double_out(o, R)};
    RUN(be, gptq, &a);
    a.u = 0;
    RUN(be, gptq, &a);
}
static void gptq_rows(backend be, outputs *o) { rounded(be, o, 300, 1, 0, 0); }
static void gptq_small_groups(backend be, outputs *o) { rounded(be, o, 60, 0, 1, 0); }
static void gptq_large_groups(backend be, outputs *o) { rounded(be, o, 150, 1, 1, 1); }
static void gptq_static_groups(backend be, outputs *o) { rounded(be, o, 100, 0, 0, 1); }

typedef struct kernel_case {
    const char *name;
    void (*run)(backend, outputs *);
} kernel_case;

#define CASE(f) {#f, f}
static const kernel_case cases[] = {
    CASE(gemm_forward), CASE(gemm_one_row), CASE(gemm_dx), CASE(gemm_dw), CASE(gemm_many_columns), CASE(gemm_both),
    CASE(bias), CASE(rmsnorm), CASE(rope), CASE(attention_grouped), CASE(attention_plain), CASE(attention_window),
    CASE(attention_many_heads), CASE(attention_wide), CASE(attention_one_token), CASE(score_err), CASE(swiglu),
    CASE(flat), CASE(factors), CASE(first_bad), CASE(adamw), CASE(bounded_steps), CASE(embedding),
    CASE(hadamard_heads), CASE(rotate_heads), CASE(hadamard_base), CASE(hadamard_small), CASE(loss_mse),
    CASE(loss_skip), CASE(loss_clamp), CASE(loss_normalized), CASE(loss_cosine),
    CASE(xent), CASE(fakequant_weights), CASE(fakequant_groups), CASE(fakequant_tensor), CASE(fakequant_heads),
    CASE(fakequant_offset), CASE(fakequant_soft), CASE(fakequant_soft_tensor), CASE(round_penalty),
    CASE(dynquant_symmetric), CASE(dynquant_symmetric_heads), CASE(dynquant_asymmetric),
    CASE(dynquant_asymmetric_heads), CASE(dynquant_bounded), CASE(dynquant_no_range), CASE(dynquant_no_factor), CASE(ranges), CASE(errors),
    CASE(gemm_f64), CASE(gram), CASE(inverse_root), CASE(eigh),
    CASE(gptq_rows), CASE(gptq_small_groups), CASE(gptq_large_groups), CASE(gptq_static_groups),
};
enum { CASES = sizeof cases / sizeof *cases };

static double element(const outputs *o, int k, int64_t i)
{
    return o->type[k] == 'f' ? ((float *)o->p[k])[i] : o->type[k] == 'd' ? ((double *)o->p[k])[i] : ((int32_t *)o->p[k])[i];
}

START_TEST(agrees_with_reference)
{
    outputs want = {.count = 0}, got = {.count = 0};
    cases[_i].run(bk_backend_ref(BK_F32), &want);
    cases[_i].run(bk_backend_cpu(), &got);
    for (int k = 0; k < want.count; k++) {
        double top = 1.0;
        for (int64_t i = 0; i < want.n[k]; i++) top = fmax(top, fabs(element(&want, k, i)));
        for (int64_t i = 0; i < want.n[k]; i++) {
            double w = element(&want, k, i), g = element(&got, k, i), tol = want.type[k] == 'i' ? 0.0 : 2e-6 * top + 1e-5 * fabs(w);
            ck_assert_msg(fabs(w - g) <= tol, "%s: output %d [%d] is %.9g, not %.9g", cases[_i].name, k, (int)i, g, w);
        }
    }
}
END_TEST

START_TEST(ignores_the_number_of_threads)
{
    outputs one = {.count = 0}, three = {.count = 0};
    omp_set_num_threads(1);
    cases[_i].run(bk_backend_cpu(), &one);
    omp_set_num_threads(3);
    cases[_i].run(bk_backend_cpu(), &three);
    for (int k = 0; k < one.count; k++)
        ck_assert_msg(!memcmp(one.p[k], three.p[k], (size_t)one.n[k] * one.size[k]), "%s: output %d depends on the threads",
                      cases[_i].name, k);
}
END_TEST

START_TEST(every_slot_is_there)
{
    const bk_kernels *k = &bk_backend_cpu()->k;
#define BK_SLOT(name, args) ck_assert_msg(k->name != 0, "slot " #name " is missing");
    BK_SLOTS(BK_SLOT)
#undef BK_SLOT
}
END_TEST

START_TEST(swiglu_is_finite_at_the_ends)
{
    enum { N = 4 };
    const float gate[N] = {1e30f, -1e30f, 3e38f, -3e38f}, up[N] = {0.5f, 0.5f, 0.5f, 0.5f}, dy[N] = {1, 1, 1, 1};
    const float want[N] = {5e29f, 0, 1.5e38f, 0};
    float y[N], dgate[N] = {0}, dup[N] = {0};
    bk_swiglu_fwd_args f = {N, gate, up, y};
    bk_swiglu_bwd_args b = {N, gate, up, dy, dgate, dup};
    ck_assert_int_eq(bk_backend_cpu()->k.swiglu_fwd(&f, 0), BK_OK);
    ck_assert_int_eq(bk_backend_cpu()->k.swiglu_bwd(&b, 0), BK_OK);
    for (int i = 0; i < N; i++) {
        ck_assert(y[i] == want[i]);
        ck_assert(dup[i] == 2.0f * want[i]);
        ck_assert(dgate[i] == (gate[i] > 0 ? 0.5f : 0.0f));
    }
}
END_TEST

/* Distance to the next float above |y| */
static double spacing(double y) { return (double)nextafterf((float)y, INFINITY) - (double)(float)y; }

START_TEST(exp_is_exact_to_two_ulp)
{
    for (int64_t i = 0; i <= 200000; i++) {
        float x = (float)(-110.0 + 198.7 * (double)i / 200000.0);
        double want = exp((double)x), got = (double)bk_exp(x);
        ck_assert_msg(fabs(got - want) <= 2.0 * spacing(want), "exp(%.9g) is %.9g, not %.9g", (double)x, got, want);
    }
    ck_assert(bk_exp(0.0f) == 1.0f);
    ck_assert(isfinite(bk_exp(INFINITY)));
    ck_assert(bk_exp(-INFINITY) == 0.0f);
    ck_assert(isnan(bk_exp(NAN)));
}
END_TEST

START_TEST(ln_is_exact_to_two_ulp)
{
    for (int64_t i = 0; i <= 200000; i++) {
        float x = (float)exp(-87.0 + 175.0 * (double)i / 200000.0), near = 1.0f + ((float)i - 100000.0f) * 1e-7f;
        double want = log((double)x), got = (double)bk_ln(x), at_one = log((double)near);
        ck_assert_msg(fabs(got - want) <= 2.0 * spacing(fabs(want)), "ln(%.9g) is %.9g, not %.9g", (double)x, got, want);
        ck_assert_msg(fabs((double)bk_ln(near) - at_one) <= 2.0 * spacing(fabs(at_one)), "ln(%.9g) is %.9g", (double)near, (double)bk_ln(near));
    }
    ck_assert(bk_ln(1.0f) == 0.0f);
    ck_assert(bk_power01(1.0f, 20.0f) == 1.0f);
    ck_assert(bk_power01(0.0f, 1.0f) < 1e-30f);
}
END_TEST

START_TEST(rounding_is_half_to_even_everywhere)
{
    const float hard[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 4194303.5f, 4194304.5f, 8388607.5f, 8388609.0f, 3e38f, -3e38f, 0.49999997f};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) ck_assert(bk_rne(hard[i]) == rintf(hard[i]));
    ck_assert(isnan(bk_rne(NAN)));
}
END_TEST

START_TEST(bad_ids_are_errors)
{
    const bk_backend *be = bk_backend_cpu();
    float x[8] = {0}, y[8] = {0};
    int32_t id = 2;
    bk_embedding_fwd_args e = {1, 4, 2, x, &id, y};
    bk_xent_fwd_args c = {1, 2, x, &id, y, y + 1};
    ck_assert_int_eq(be->k.embedding_fwd(&e, 0), BK_EINVAL);
    ck_assert_int_eq(be->k.xent_fwd(&c, 0), BK_EINVAL);
}
END_TEST

START_TEST(too_little_scratch_is_an_error)
{
    float x[64] = {0}, w[8] = {0}, rstd[8] = {0}, dw[8] = {0};
    bk_rmsnorm_bwd_args a = {8, 8, x, w, rstd, x, 0, dw};
    bk_work none = {0, 0};
    ck_assert_int_eq(bk_backend_cpu()->k.rmsnorm_bwd(&a, &none), BK_ENOMEM);
}
END_TEST

START_TEST(nan_passes_through_quantizers)
{
    const float x[4] = {1, NAN, -3, 2}, s = 0.5f;
    float stored_y[4], measured_y[4];
    int32_t codes[4];
    bk_fakequant_fwd_args f = {1, 4, 4, 0, -8, 7, x, &s, 0, stored_y, codes, BK_FREEZE_OFF, 0, BK_ROUND_OFFSET, 0};
    bk_dynquant_fwd_args d = {1, 4, 4, 1, -8, 7, 0, x, 0, 0, measured_y, 0, 0, codes, BK_FREEZE_OFF, 0};
    ck_assert_int_eq(bk_backend_cpu()->k.fakequant_fwd(&f, 0), BK_OK);
    ck_assert_int_eq(bk_backend_cpu()->k.dynquant_fwd(&d, 0), BK_OK);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(isnan(stored_y[i]) != 0, i == 1);
        ck_assert_int_eq(isnan(measured_y[i]) != 0, i == 1);
    }
    ck_assert_int_eq(codes[1], 0);
}
END_TEST

START_TEST(memory_is_aligned_and_zero)
{
    const bk_backend *be = bk_backend_cpu();
    const size_t sizes[] = {0, 1, 100, (4u << 20) + 3};
    for (int i = 0; i < 4; i++) {
        void *p;
        ck_assert_int_eq(be->alloc(sizes[i], &p), BK_OK);
        ck_assert_int_eq((int)((uintptr_t)p % 64), 0);
        unsigned char any = 0;
        for (size_t j = 0; j < sizes[i]; j++) any |= ((unsigned char *)p)[j];
        ck_assert_int_eq(any, 0);
        be->release(p, sizes[i]);
    }
    void *p;
    ck_assert_int_eq(be->alloc(SIZE_MAX, &p), BK_ENOMEM);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cpu kernels");
    TCase *t = tcase_create("kernels"), *u = tcase_create("parts");
    tcase_set_timeout(t, 60);
    tcase_set_timeout(u, 60);
    tcase_add_checked_fixture(t, NULL, give_back);
    tcase_add_checked_fixture(u, NULL, give_back);
    tcase_add_loop_test(t, agrees_with_reference, 0, CASES);
    tcase_add_loop_test(t, ignores_the_number_of_threads, 0, CASES);
    tcase_add_test(u, every_slot_is_there);
    tcase_add_test(u, swiglu_is_finite_at_the_ends);
    tcase_add_test(u, exp_is_exact_to_two_ulp);
    tcase_add_test(u, ln_is_exact_to_two_ulp);
    tcase_add_test(u, rounding_is_half_to_even_everywhere);
    tcase_add_test(u, bad_ids_are_errors);
    tcase_add_test(u, too_little_scratch_is_an_error);
    tcase_add_test(u, nan_passes_through_quantizers);
    tcase_add_test(u, memory_is_aligned_and_zero);
    suite_add_tcase(s, t);
    suite_add_tcase(s, u);
    return run_suite(s);
}
