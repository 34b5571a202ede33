/* GPTQ of one linear: golden vectors, brute force, and inputs that are no good. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"
#include "autograd/rng.h"
#include "ops/ops.h"
#include "quant/gptq.h"
#include "quant/steps.h"
#include "tests/h5_golden.h"
#include "tests/ok.h"
#include "tests/suite.h"

enum { BACKENDS = 4, MOST = 64 }; /* MOST: rows or columns of a problem */

static const bk_backend *backend_of(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}

/* A weight, its inputs, and what GPTQ made of them. */
typedef struct problem {
    const bk_backend *be;
    bk_error err;
    bk_ctx *ctx;
    bk_hessian h;
    bk_gptq_options opt;
    bk_gptq_report report;
    int64_t rows, cols, groups;
    bk_tensor *w;
    bk_gptq_out out;
    double before[MOST * MOST], after[MOST * MOST], step[MOST * MOST], zero[MOST * MOST], hessian[MOST * MOST];
    int32_t codes[MOST * MOST], group_of[MOST];
} problem;

static bk_tensor *tensor(problem *p, bk_dtype dtype, int64_t rows, int64_t cols)
{
    bk_tensor *t;
    ok(bk_tensor_create(p->be, dtype, 2, (int64_t[]){rows, cols}, "t", &t, &p->err), &p->err);
    return t;
}

static problem *open_problem(const bk_backend *be, bk_gptq_options opt, int64_t rows, int64_t cols, const double *w)
{
    problem *p = calloc(1, sizeof *p);
    ck_assert_ptr_nonnull(p);
    ck_assert(rows <= MOST && cols <= MOST);
    p->be = be, p->opt = opt, p->rows = rows, p->cols = cols, p->groups = opt.group ? cols / opt.group : 1;
    ck_assert_ptr_nonnull(p->ctx = bk_ctx_new(be, &p->err));
    ok(bk_hessian_create(&p->h, be, cols, "attn_in", &p->err), &p->err);
    p->w = tensor(p, be->dtype, rows, cols);
    p->out = (bk_gptq_out){.step = tensor(p, be->dtype, rows, p->groups), .codes = tensor(p, BK_I32, rows, cols)};
    p->out.group_of = tensor(p, BK_I32, 1, cols);
    if (!opt.symmetric) p->out.zero = tensor(p, be->dtype, rows, p->groups);
    ok(bk_write_f64(be, p->w, 0, w, rows * cols, &p->err), &p->err);
    ok(bk_read_f64(be, p->w, 0, p->before, rows * cols, &p->err), &p->err); /* as the backend holds them */
    return p;
}

static void close_problem(problem *p)
{
    bk_tensor *all[] = {p->w, p->out.step, p->out.zero, p->out.codes, p->out.group_of};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bk_tensor_destroy(p->be, all[i]);
    bk_hessian_free(&p->h);
    bk_ctx_free(p->ctx);
    free(p);
}

/* H += alpha x^T x */
static bk_status add_inputs(problem *p, const double *x, int64_t tokens, double alpha)
{
    bk_tensor *t = tensor(p, p->be->dtype, tokens, p->cols);
    ok(bk_write_f64(p->be, t, 0, x, tokens * p->cols, &p->err), &p->err);
    bk_ctx_measure(p->ctx);
    bk_status st = bk_hessian_add(p->ctx, &p->h, t, alpha);
    if (!st) st = bk_ctx_commit(p->ctx);
    if (!st) st = bk_hessian_add(p->ctx, &p->h, t, alpha);
    bk_tensor_destroy(p->be, t);
    return st;
}

static bk_status solve(problem *p)
{
    ok(bk_read_f64(p->be, p->h.h, 0, p->hessian, p->cols * p->cols, &p->err), &p->err);
    BK_TRY(bk_hessian_factor(p->ctx, &p->h, &p->opt));
    BK_TRY(bk_gptq(p->ctx, &p->h, &p->opt, "q", p->w, &p->out, &p->report));
    ok(bk_read_f64(p->be, p->w, 0, p->after, p->rows * p->cols, &p->err), &p->err);
    ok(bk_read_f64(p->be, p->out.step, 0, p->step, p->rows * p->groups, &p->err), &p->err);
    if (p->out.zero) ok(bk_read_f64(p->be, p->out.zero, 0, p->zero, p->rows * p->groups, &p->err), &p->err);
    ok(bk_read_i32(p->be, p->out.codes, 0, p->codes, p->rows * p->cols, &p->err), &p->err);
    return bk_read_i32(p->be, p->out.group_of, 0, p->group_of, p->cols, &p->err);
}

/* The trace of E H E^T, E = before - after, dead columns of `before` being 0; with the damping of the report or without. */
static double output_error(const problem *p, bool damped)
{
    double e[MOST], sum = 0, mean = 0;
    for (int64_t j = 0; j < p->cols; j++) {
        double d = p->hessian[j * p->cols + j];
        mean += (d == 0 ? 1 : d) / (double)p->cols;
    }
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t j = 0; j < p->cols; j++)
            e[j] = (p->hessian[j * p->cols + j] == 0 ? 0 : p->before[r * p->cols + j]) - p->after[r * p->cols + j];
        for (int64_t i = 0; i < p->cols; i++)
            for (int64_t j = 0; j < p->cols; j++) sum += e[i] * p->hessian[i * p->cols + j] * e[j];
        for (int64_t j = 0; damped && j < p->cols; j++) sum += e[j] * e[j] * p->report.damping * mean;
    }
    return sum;
}

static void near(double got, double want, double tolerance, const char *what)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%s: %.12g, not %.12g", what, got, want);
}

/* Values stand for codes, with the step of their column's group; and the loss is what it is said to be. */
static void check_consistent(const problem *p)
{
    int64_t n = p->cols;
    double eps = p->be->dtype == BK_F64 ? 1e-13 : 1e-6, loss = output_error(p, true) / 2;
    for (int64_t i = 0; i < p->rows * n; i++) {
        int64_t at = i / n * p->groups + p->group_of[i % n];
        double value = (p->codes[i] - p->zero[at]) * p->step[at];
        ck_assert_msg(fabs(p->after[i] - value) <= eps * fabs(value), "weight %d is %g, its code %d stands for %g", (int)i, p->after[i], p->codes[i],
                      value);
    }
    ck_assert(isfinite(p->report.loss));
    near(p->report.loss, loss, (p->be->dtype == BK_F64 ? 1e-9 : 1e-5) * loss + 1e-9, "loss");
}

/* --- golden vectors --- */

static const char *const golden[] = {
    "main/max_row", "main/max_row_act", "main/clip_row", "main/clip_row_act", "main/max_group", "main/max_group_act", "main/max_group_act_static",
    "main/max_group_stale", "main/clip_group", "main/clip_group_act", "main/clip_group_act_static", "main/clip_group_stale", "dead/max_row",
    "dead/clip_row_act", "dead/clip_group", "dead/clip_group_act_static",
};
enum { GOLDEN = sizeof golden / sizeof *golden };

static void same_matrix(bk_golden *g, const char *path, const char *what, const double *got, double tolerance)
{
    const double *want = bk_golden_f64(g, "%s/%s", path, what);
    int64_t n = bk_golden_count(g, "%s/%s", path, what);
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) near(got[i], want[i], tolerance * top, what);
}

static void same_integers(bk_golden *g, const char *path, const char *what, const int32_t *got)
{
    const int32_t *want = bk_golden_i32(g, "%s/%s", path, what);
    for (int64_t i = 0; i < bk_golden_count(g, "%s/%s", path, what); i++)
        ck_assert_msg(got[i] == want[i], "%s/%s[%d] is %d, not %d", path, what, (int)i, got[i], want[i]);
}

/* What was factored: the order, H and U. */
static void check_factor(bk_golden *g, const char *group, problem *p)
{
    char path[64];
    double u[MOST * MOST];
    int32_t order[MOST];
    int64_t n = p->cols;
    snprintf(path, sizeof path, "%s/order_%s", group, p->opt.act_order ? "act" : "plain");
    for (int32_t i = 0; i < n; i++) order[i] = i;
    if (p->h.order) ok(bk_read_i32(p->be, p->h.order, 0, order, n, &p->err), &p->err);
    same_integers(g, path, "perm", order);
    ok(bk_read_f64(p->be, p->h.h, 0, u, n * n, &p->err), &p->err);
    for (int64_t i = 0; i < n * n; i++) u[i] = i % n < i / n ? 0 : u[i];
    same_matrix(g, path, "U", u, p->be->dtype == BK_F64 ? 1e-10 : 5e-6);
}

/* rtn_codes: the same steps without making errors good, where a group's columns lie side by side */
static void check_rtn(bk_golden *g, const char *path, problem *p, const double *w)
{
    for (int64_t j = 0; j < p->cols; j++)
        if (p->group_of[j] != j * p->groups / p->cols) return;
    const int32_t *want = bk_golden_i32(g, "%s/rtn_codes", path);
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        double s = p->step[i / p->cols * p->groups + p->group_of[i % p->cols]], code = rint((p->h.dead_at[i % p->cols] ? 0 : w[i]) / s);
        ck_assert_msg((int32_t)fmax(-8, fmin(7, code)) == want[i], "%s: rtn code %d", path, (int)i);
    }
}

/* A `stale` case fits all groups on the weights as they were at the start of a block of 128 columns, and no problem has more columns: without
 * act_order that is what static groups do. */
START_TEST(golden_case)
{
    bk_golden *g = bk_golden_open("gptq.h5");
    const char *name = golden[_i % GOLDEN];
    char group[16], path[96];
    snprintf(group, sizeof group, "%.4s", name);
    snprintf(path, sizeof path, "%s/cases/%s", group, name + 5);
    int64_t size = bk_golden_attr_i64(g, "groupsize", "%s", path), sequences = bk_golden_attr_i64(g, "n_seq", "%s", group);
    int64_t tokens = bk_golden_attr_i64(g, "tokens_per_seq", "%s", group);
    bk_gptq_options opt = {.bits = (int)bk_golden_attr_i64(g, "bits", "%s", group), .symmetric = true, .restricted = true,
                           .group = size > 0 ? size : 0, .act_order = strstr(name, "_act") != NULL,
                           .static_groups = strstr(name, "_static") || strstr(name, "_stale"), .mse_clip = strstr(name, "/clip") != NULL,
                           .percdamp = bk_golden_attr(g, "percdamp", "%s", group)};
    const double *w = bk_golden_f64(g, "%s/W", group), *x = bk_golden_f64(g, "%s/X", group);
    int64_t rows = bk_golden_attr_i64(g, "rows", "%s", group), cols = bk_golden_attr_i64(g, "cols", "%s", group);
    problem *p = open_problem(backend_of(_i / GOLDEN), opt, rows, cols, w);
    bool exact = p->be->dtype == BK_F64;
    int64_t half = sequences / 2 * tokens;
    ok(add_inputs(p, x, half, 2.0 / (double)sequences), &p->err);
    ok(add_inputs(p, x + half * p->cols, sequences * tokens - half, 2.0 / (double)sequences), &p->err);
    ok(solve(p), &p->err);
    same_matrix(g, group, "H", p->hessian, exact ? 1e-12 : 1e-6);
    check_factor(g, group, p);
    same_integers(g, path, "codes", p->codes);
    same_integers(g, path, "g_idx", p->group_of);
    same_matrix(g, path, "scales", p->step, exact ? 1e-12 : 1e-5); /* a step of clipping is 1e-2 */
    same_matrix(g, path, "W_dequant", p->after, exact ? 1e-12 : 2e-5);
    check_rtn(g, path, p, w);
    double loss = bk_golden_attr(g, "loss", "%s", path), error = bk_golden_attr(g, "output_error", "%s", path);
    near(p->report.loss, loss, (exact ? 1e-10 : 1e-5) * loss, "loss");
    near(output_error(p, false), error, (exact ? 1e-10 : 1e-5) * error, "output error");
    ck_assert_int_eq(p->report.dead, strcmp(group, "dead") ? 0 : 2);
    ck_assert(p->report.done && p->report.tries == 1 && p->report.damping == opt.percdamp && !p->report.fell_back);
    check_consistent(p);
    close_problem(p);
    bk_golden_close(g);
}
END_TEST

/* --- random problems --- */

static void normals(double *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)bk_rng_normal(seed, BK_RNG_TEST, (uint64_t)i);
}

static const bk_gptq_options plain = {.bits = 4, .symmetric = true, .restricted = true, .percdamp = 0.01};

/* Inputs whose channels go together, so that there is something to make good */
static void correlated(double *x, int64_t tokens, int64_t cols, uint64_t seed)
{
    normals(x, tokens * cols, seed);
    for (int64_t i = 0; i < tokens * cols; i++)
        if (i % cols) x[i] = (float)(0.7 * x[i] + 0.7 * x[i - 1]);
}

/* The inverse of the n x n part of h that belongs to columns >= from, by Gauss and Jordan. */
static void invert_from(const double *h, int64_t cols, int64_t from, double *out)
{
    int64_t n = cols - from;
    double m[32][64] = {{0}};
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) m[i][j] = h[(from + i) * cols + from + j];
        m[i][n + i] = 1;
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < n; i++) {
            double f = i == c ? 1 - 1 / m[c][c] : m[i][c] / m[c][c];
            for (int64_t j = 0; j < 2 * n; j++) m[i][j] -= f * m[c][j];
        }
    for (int64_t i = 0; i < n * n; i++) out[i] = m[i / n][n + i % n];
}

/* The next one for a backend: some of them where every access is slow */
static int next(const bk_backend *be, int i) { return i + (be->host_memory ? 1 : 13); }

/* --- brute force: steps, codes and what makes errors good, written down once more and in f64 --- */

enum { BRUTE_ROWS = 16, BRUTE_COLS = 32, BRUTE_GROUP = 8, BRUTE_MODES = 64 };

typedef struct brute {
    const problem *p;
    const bk_gptq_options *o;
    int mode, group, order[BRUTE_COLS];
    double w[BRUTE_ROWS * BRUTE_COLS], h[BRUTE_COLS * BRUTE_COLS]; /* in the order that columns are rounded in */
    double eps; /* what the type of the backend rounds: on a half, and between equals, either will do */
} brute;

static bk_gptq_options brute_mode(int i)
{
    return (bk_gptq_options){.bits = 4, .symmetric = i % 2, .restricted = i / 2 % 2, .mse_clip = i / 4 % 2, .group = i / 8 % 2 ? BRUTE_GROUP : 0,
                             .act_order = i / 16 % 2, .static_groups = i / 32 % 2, .percdamp = 0.01};
}

/* Step of n weights whose range shrinks to a part of it, and the zero point before it is rounded. */
static double shrunk_step(const bk_gptq_options *o, const double *w, int n, double part, double *zero)
{
    double lo = 0, hi = 0, levels = (1 << o->bits) - 1, largest_code = (1 << (o->bits - 1)) - 1;
    for (int i = 0; i < n; i++) lo = fmin(lo, part * w[i]), hi = fmax(hi, part * w[i]);
    double most = fmax(-lo, hi), step = !o->symmetric ? (hi - lo) / levels : o->restricted ? most / largest_code : 2 * most / levels;
    *zero = o->symmetric ? 0 : -lo / step;
    return step;
}

static double clamped(const bk_gptq_options *o, double code)
{
    double least = o->symmetric ? -(1 << (o->bits - 1)) : 0;
    return fmax(least, fmin(least + (1 << o->bits) - 1, code));
}

static double clip_error(const bk_gptq_options *o, const double *w, int n, double step, double zero)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += pow(fabs((clamped(o, rint(w[i] / step) + zero) - zero) * step - w[i]), 2.4);
    return sum;
}

static double zero_of(const problem *p, int row, int group) { return p->opt.symmetric ? 0 : p->zero[row * p->groups + group]; }

/* The step of the range of these weights, or with clipping the one of 80 that costs least. */
static void check_step(const brute *b, int row, int group, const double *w)
{
    double step = b->p->step[row * b->p->groups + group], zero = zero_of(b->p, row, group), least = INFINITY;
    bool found = false;
    for (int k = 0; k < (b->o->mse_clip ? 80 : 1); k++) {
        double z, s = shrunk_step(b->o, w, b->group, 1 - k / 100.0, &z);
        found |= fabs(s / step - 1) <= b->eps && fabs(zero - z) <= 0.5 + 100 * b->eps && zero == rint(zero);
        least = fmin(least, clip_error(b->o, w, b->group, s, rint(z)));
    }
    ck_assert_msg(found, "mode %d, row %d, group %d: step %g and zero point %g belong to no range", b->mode, row, group, step, zero);
    ck_assert_msg(!b->o->mse_clip || clip_error(b->o, w, b->group, step, zero) <= least * (1 + 100 * b->eps), "mode %d, row %d, group %d: step %g clips badly",
                  b->mode, row, group, step);
}

/* By falling h_jj. */
static void put_in_order(brute *b)
{
    enum { C = BRUTE_COLS };
    double w[BRUTE_ROWS * C], h[C * C];
    int *o = b->order;
    memcpy(w, b->w, sizeof w);
    memcpy(h, b->h, sizeof h);
    for (int i = 0; i < C; i++)
        for (int k = i; k > 0 && h[o[k] * (C + 1)] > h[o[k - 1] * (C + 1)]; k--) {
            int other = o[k];
            o[k] = o[k - 1], o[k - 1] = other;
        }
    for (int i = 0; i < C; i++) {
        for (int r = 0; r < BRUTE_ROWS; r++) b->w[r * C + i] = w[r * C + o[i]];
        for (int j = 0; j < C; j++) b->h[i * C + j] = h[o[i] * C + o[j]];
    }
}

static void start_brute(brute *b, const problem *p, int mode)
{
    enum { C = BRUTE_COLS };
    double mean = 0;
    *b = (brute){.p = p, .o = &p->opt, .mode = mode, .group = p->opt.group ? BRUTE_GROUP : C, .eps = p->be->dtype == BK_F64 ? 1e-10 : 2e-6};
    memcpy(b->w, p->before, sizeof b->w);
    memcpy(b->h, p->hessian, sizeof b->h);
    for (int j = 0; j < C; j++) b->order[j] = j, mean += b->h[j * C + j] / C;
    if (b->o->act_order) put_in_order(b);
    for (int j = 0; j < C; j++) b->h[j * C + j] += 0.01 * mean;
}

/* The column that comes i-th, in all rows: is its code the nearest, and the best update of the rest. */
static void round_column(brute *b, int i, int group)
{
    enum { C = BRUTE_COLS };
    double inverse[C * C];
    int column = b->order[i];
    invert_from(b->h, C, i, inverse);
    for (int r = 0; r < BRUTE_ROWS; r++) {
        double *w = b->w + r * C + i, step = b->p->step[r * b->p->groups + group], zero = zero_of(b->p, r, group), code = b->p->codes[r * C + column];
        double below = clamped(b->o, rint(*w / step - 10 * b->eps) + zero), above = clamped(b->o, rint(*w / step + 10 * b->eps) + zero);
        ck_assert_msg(code == below || code == above, "mode %d, row %d, column %d: code %g, brute force %g", b->mode, r, column, code, above);
        double e = (*w - (code - zero) * step) / inverse[0];
        for (int j = 0; j < C - i; j++) w[j] -= e * inverse[j];
    }
}

/* Optimal brain quantization, in every mode. Steps of a group are those of its weights when it is reached, after all updates; static ones, and those
 * of whole rows, those of the weights as they were. */
START_TEST(equals_brute_force)
{
    enum { R = BRUTE_ROWS, C = BRUTE_COLS, T = 80 };
    double w[R * C], x[T * C];
    normals(w, R * C, 1);
    correlated(x, T, C, 2);
    for (int mode = 0; mode < BRUTE_MODES; mode = next(backend_of(_i), mode)) {
        brute b;
        problem *p = open_problem(backend_of(_i), brute_mode(mode), R, C, w);
        ok(add_inputs(p, x, T, 1), &p->err);
        ok(solve(p), &p->err);
        start_brute(&b, p, mode);
        bool live = p->opt.group && !p->opt.static_groups;
        for (int i = 0; i < C; i++) {
            for (int r = 0; r < R && i % b.group == 0; r++) check_step(&b, r, i / b.group, (live ? b.w : p->before) + r * C + i);
            int group = (live ? i : b.order[i]) / b.group;
            ck_assert_int_eq(p->group_of[b.order[i]], group);
            round_column(&b, i, group);
        }
        close_problem(p);
    }
}
END_TEST

/* Equal diagonals: the lower index comes first. */
START_TEST(ties_of_act_order_go_by_index)
{
    enum { C = 8 };
    const double size[C] = {1, 3, 2, 3, 2, 1, 3, 2};
    const int32_t want[C] = {1, 3, 6, 2, 4, 7, 0, 5};
    double x[C * C] = {0}, w[C];
    int32_t order[C];
    bk_gptq_options opt = plain;
    opt.act_order = true;
    for (int i = 0; i < C; i++) x[i * C + i] = size[i], w[i] = 1 + i;
    problem *p = open_problem(backend_of(_i), opt, 1, C, w);
    ok(add_inputs(p, x, C, 1), &p->err);
    ok(solve(p), &p->err);
    ok(bk_read_i32(p->be, p->h.order, 0, order, C, &p->err), &p->err);
    ck_assert_mem_eq(order, want, sizeof want);
    close_problem(p);
}
END_TEST

/* All that the options can say, over weights with a row of zeros, a constant row and one that is tiny */
static bk_gptq_options combination(int i)
{
    static const int bits[] = {2, 3, 4, 8}, group[] = {0, 16, 24};
    bk_gptq_options o = {.bits = bits[i % 4], .symmetric = i / 4 % 2, .restricted = i / 8 % 2, .mse_clip = i / 16 % 2, .act_order = i / 32 % 2,
                         .static_groups = i / 64 % 2, .group = group[i / 128], .percdamp = 0.01};
    return o;
}
enum { COMBINATIONS = 4 * 2 * 2 * 2 * 2 * 2 * 3 };

static problem *solve_combination(const bk_backend *be, int i)
{
    enum { R = 12, C = 48, T = 60 };
    double w[R * C], x[T * C];
    normals(w, R * C, 3);
    correlated(x, T, C, 4);
    for (int j = 0; j < C; j++) w[j] = 0, w[C + j] = -0.37f, w[2 * C + j] *= 1e-7;
    problem *p = open_problem(be, combination(i), R, C, w);
    ok(add_inputs(p, x, T, 2), &p->err);
    ok(solve(p), &p->err);
    return p;
}

START_TEST(codes_steps_and_loss_agree)
{
    for (int i = 0; i < COMBINATIONS; i = next(backend_of(_i), i)) {
        problem *p = solve_combination(backend_of(_i), i);
        check_consistent(p);
        ck_assert_int_eq(p->report.dead, 0);
        for (int64_t k = 0; k < p->cols; k++) ck_assert_msg(p->after[k] == 0, "combination %d: a row of zeros becomes %g", i, p->after[k]);
        close_problem(p);
    }
}
END_TEST

/* `affine` with these steps maps the weights to themselves, to the bit (where its groups are those of GPTQ). */
START_TEST(affine_keeps_what_gptq_made)
{
    for (int i = 0; i < COMBINATIONS; i = next(backend_of(_i), i)) {
        problem *p = solve_combination(backend_of(_i), i);
        bk_gptq_options *o = &p->opt;
        int64_t group = o->group ? o->group : p->cols;
        bk_tensor *y = tensor(p, p->be->dtype, p->rows, p->cols);
        double again[MOST * MOST];
        bk_fakequant_fwd_args a = {.rows = p->rows, .cols = p->cols, .group = group, .per_row = 1, .x = p->w->data, .s = p->out.step->data,
                                   .z = bk_data(p->out.zero), .y = y->data};
        bk_code_range(o->bits, o->symmetric, &a.qmin, &a.qmax);
        if (!o->act_order || !o->group || o->static_groups) {
            ok(bk_k_fakequant_fwd(p->ctx, &a), &p->err);
            ok(bk_read_f64(p->be, y, 0, again, p->rows * p->cols, &p->err), &p->err);
            for (int64_t k = 0; k < p->rows * p->cols; k++)
                ck_assert_msg(again[k] == p->after[k], "combination %d: %.9g becomes %.9g", i, p->after[k], again[k]);
        }
        bk_tensor_destroy(p->be, y);
        close_problem(p);
    }
}
END_TEST

/* The whole of it makes the output better than rounding to nearest, which a Hessian that cannot be factored gives. */
START_TEST(is_better_than_rounding_to_nearest)
{
    enum { R = 20, C = 48, T = 100 };
    double w[R * C], x[T * C], error[2];
    normals(w, R * C, 5);
    correlated(x, T, C, 6);
    for (int k = 0; k < 2; k++) {
        problem *p = open_problem(backend_of(_i), plain, R, C, w);
        ok(add_inputs(p, x, T, 1), &p->err);
        ok(bk_read_f64(p->be, p->h.h, 0, p->hessian, C * C, &p->err), &p->err);
        ok(bk_hessian_factor(p->ctx, &p->h, &p->opt), &p->err);
        p->h.failed = k;
        ok(bk_gptq(p->ctx, &p->h, &p->opt, "q", p->w, &p->out, &p->report), &p->err);
        ok(bk_read_f64(p->be, p->w, 0, p->after, R * C, &p->err), &p->err);
        error[k] = output_error(p, false);
        close_problem(p);
    }
    ck_assert_msg(error[0] < 0.7 * error[1], "GPTQ %g, nearest %g", error[0], error[1]);
}
END_TEST

/* --- inputs that are no good --- */

/* One token, or one that is repeated: rank 1, and damping alone makes it definite. */
START_TEST(one_token_is_enough)
{
    enum { R = 6, C = 40 };
    double w[R * C], x[3 * C];
    normals(w, R * C, 7);
    normals(x, C, 8);
    for (int i = C; i < 3 * C; i++) x[i] = x[i % C];
    for (int tokens = 1; tokens <= 3; tokens += 2) {
        problem *p = open_problem(backend_of(_i), plain, R, C, w);
        ok(add_inputs(p, x, tokens, 1), &p->err);
        ok(solve(p), &p->err);
        check_consistent(p);
        ck_assert(p->report.tries == 1 && p->report.dead == 0 && !p->report.fell_back);
        close_problem(p);
    }
}
END_TEST

/* Without damping it takes some all the same, and the report tells how much. */
START_TEST(damping_grows_until_it_is_enough)
{
    enum { R = 4, C = 24 };
    double w[R * C], x[C];
    bk_gptq_options opt = plain;
    opt.percdamp = 0;
    normals(w, R * C, 9);
    for (int i = 0; i < C; i++) x[i] = 1;
    problem *p = open_problem(backend_of(_i), opt, R, C, w);
    ok(add_inputs(p, x, 1, 1), &p->err);
    ok(solve(p), &p->err);
    check_consistent(p);
    ck_assert_int_eq(p->report.tries, 2);
    near(p->report.damping, 0.01, 0, "damping");
    close_problem(p);
}
END_TEST

/* A matrix that no sum of squares gives: after 0.01, 0.1 and 1 weights are rounded to nearest, and the report says so. */
START_TEST(indefinite_hessians_fall_back_to_nearest)
{
    enum { R = 4, C = 8 };
    double w[R * C], x[C] = {1, 1, 1, 1, 1, 1, 1, 1};
    normals(w, R * C, 10);
    problem *p = open_problem(backend_of(_i), plain, R, C, w);
    ok(add_inputs(p, x, 1, 1), &p->err);
    for (int k = 0; k < 2; k++) ok(bk_write_f64(p->be, p->h.h, k ? C : 1, &(double){50}, 1, &p->err), &p->err);
    ok(solve(p), &p->err);
    ck_assert(p->report.fell_back && p->report.done && p->report.tries == 3 && p->report.damping == 1);
    for (int i = 0; i < R * C; i++) {
        double code = rint(p->before[i] / p->step[i / C]);
        ck_assert_msg(p->codes[i] == (int32_t)code, "weight %d has code %d, the nearest is %g", i, p->codes[i], code);
    }
    close_problem(p);
}
END_TEST

/* Channels that are always 0 get weights 0; a constant channel is one like any other. */
START_TEST(dead_channels_are_set_aside)
{
    enum { R = 5, C = 24, T = 50 };
    double w[R * C], x[T * C];
    normals(w, R * C, 11);
    correlated(x, T, C, 12);
    for (int t = 0; t < T; t++) x[t * C] = x[t * C + 7] = x[t * C + C - 1] = 0, x[t * C + 3] = 2.5;
    for (int act = 0; act < 2; act++) {
        bk_gptq_options opt = plain;
        opt.act_order = act, opt.group = 8;
        problem *p = open_problem(backend_of(_i), opt, R, C, w);
        ok(add_inputs(p, x, T, 1), &p->err);
        ok(solve(p), &p->err);
        check_consistent(p);
        ck_assert_int_eq(p->report.dead, 3);
        ck_assert_int_eq(p->report.tries, 1);
        for (int r = 0; r < R; r++) ck_assert(p->after[r * C] == 0 && p->after[r * C + 7] == 0 && p->after[r * C + C - 1] == 0);
        close_problem(p);
    }
}
END_TEST

static void fails(problem *p, bk_status st, bk_status want, const char *first, const char *second)
{
    ck_assert_msg(st == want, "%s: %s", bk_status_name(st), p->err.msg);
    ck_assert_msg(strstr(p->err.msg, first) && strstr(p->err.msg, second), "\"%s\" lacks \"%s\" or \"%s\"", p->err.msg, first, second);
    close_problem(p);
}

static problem *small(int backend, int64_t group)
{
    double w[24];
    bk_gptq_options opt = plain;
    opt.group = group;
    normals(w, 24, 13);
    return open_problem(backend_of(backend), opt, 2, 12, w);
}

START_TEST(broken_inputs_are_errors)
{
    const double broken[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        double x[24];
        problem *p = small(_i, 0);
        normals(x, 24, 14);
        x[12 + 5] = broken[k];
        ok(add_inputs(p, x, 2, 1), &p->err);
        fails(p, bk_hessian_factor(p->ctx, &p->h, &p->opt), BK_ENUMERIC, "attn_in", "channel 5");
    }
}
END_TEST

START_TEST(no_inputs_are_an_error)
{
    problem *p = small(_i, 0);
    fails(p, bk_hessian_factor(p->ctx, &p->h, &p->opt), BK_EINVAL, "attn_in", "no calibration inputs");
}
END_TEST

/* Nothing to go by: the nearest codes, and no weight is lost. */
START_TEST(inputs_of_zeros_round_to_nearest)
{
    const double zeros[24] = {0};
    problem *p = small(_i, 0);
    ok(add_inputs(p, zeros, 2, 1), &p->err);
    ok(solve(p), &p->err);
    ck_assert(p->report.fell_back && p->report.done && p->report.dead == 12);
    for (int i = 0; i < 24; i++) ck_assert_int_eq(p->codes[i], (int32_t)rint(p->before[i] / p->step[i / 12]));
    close_problem(p);
}
END_TEST

START_TEST(broken_weights_are_errors)
{
    double x[24];
    problem *p = small(_i, 4);
    normals(x, 24, 15);
    ok(bk_write_f64(p->be, p->w, 12 + 4, &(double){NAN}, 1, &p->err), &p->err);
    ok(add_inputs(p, x, 2, 1), &p->err);
    fails(p, solve(p), BK_ENUMERIC, "q: row 1", "not finite");
}
END_TEST

START_TEST(shapes_that_do_not_fit_are_errors)
{
    double x[24];
    normals(x, 24, 16);
    problem *p = small(_i, 5);
    ok(add_inputs(p, x, 2, 1), &p->err);
    fails(p, solve(p), BK_ESHAPE, "q: group size 5", "12 columns");
    p = small(_i, 4);
    p->opt.group = 6; /* not that of the tensors */
    ok(add_inputs(p, x, 2, 1), &p->err);
    fails(p, solve(p), BK_ESHAPE, "[2,2]", "[2,3]");
    p = small(_i, 4);
    bk_tensor *wrong = tensor(p, p->be->dtype, 2, 8);
    bk_status st = bk_hessian_add(p->ctx, &p->h, wrong, 1);
    bk_tensor_destroy(p->be, wrong);
    fails(p, st, BK_ESHAPE, "8 channels", "of 12");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gptq");
    TCase *good = tcase_create("results"), *bad = tcase_create("bad input");
    tcase_set_timeout(good, 120);
    tcase_add_loop_test(good, golden_case, 0, GOLDEN * BACKENDS);
    tcase_add_loop_test(good, equals_brute_force, 0, BACKENDS);
    tcase_add_loop_test(good, ties_of_act_order_go_by_index, 0, BACKENDS);
    tcase_add_loop_test(good, codes_steps_and_loss_agree, 0, BACKENDS);
    tcase_add_loop_test(good, affine_keeps_what_gptq_made, 0, BACKENDS);
    tcase_add_loop_test(good, is_better_than_rounding_to_nearest, 0, BACKENDS);
    tcase_add_loop_test(bad, one_token_is_enough, 0, BACKENDS);
    tcase_add_loop_test(bad, damping_grows_until_it_is_enough, 0, BACKENDS);
    tcase_add_loop_test(bad, indefinite_hessians_fall_back_to_nearest, 0, BACKENDS);
    tcase_add_loop_test(bad, dead_channels_are_set_aside, 0, BACKENDS);
    tcase_add_loop_test(bad, broken_inputs_are_errors, 0, BACKENDS);
    tcase_add_loop_test(bad, no_inputs_are_an_error, 0, BACKENDS);
    tcase_add_loop_test(bad, inputs_of_zeros_round_to_nearest, 0, BACKENDS);
    tcase_add_loop_test(bad, broken_weights_are_errors, 0, BACKENDS);
    tcase_add_loop_test(bad, shapes_that_do_not_fit_are_errors, 0, BACKENDS);
    suite_add_tcase(s, good);
    suite_add_tcase(s, bad);
    return run_suite(s);
}
