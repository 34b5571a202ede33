/* The loss of a whole model as a function of its rotations: against perplexity, and its gradient against differences. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/init.h"
#include "blocks/rotated_loss.h"
#include "tests/ok.h"
#include "tests/plain_llama.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_model.h"

enum { BATCH = 3, TOKENS = 9 };

static double *room(int64_t n)
{
    double *x = calloc((size_t)(n ? n : 1), sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_error err;
    bk_config c;
    bk_model *m;
    bk_source *src; /* norms fused, no R1 */
    bk_rotated_loss *l;
    int32_t ids[BATCH * TOKENS];
    int64_t n1, n2;
    double *r1, *r2, *dr1, *dr2;
} model;

/* Every kind of weight that a rotation touches occurs in one of them. */
static bk_config variant(int i)
{
    bk_config c = bk_tiny_config();
    c.hidden = 32;
    c.inter = 48;
    c.head_dim = 8;
    c.vocab = 64;
    if (i == 1) c.tied = c.o_bias = c.mlp_bias = c.qkv_bias = true;
    if (i == 2) {
        strcpy(c.arch, "qwen3");
        c.qkv_bias = c.qk_norm = true;
        c.head_dim = 16; /* heads * head_dim is not hidden */
        c.kv_heads = 1;
    }
    return c;
}
enum { VARIANTS = 3 };

static void open_model(model *m, int which, bool r2, const bk_rotation_spec *spec)
{
    *m = (model){.c = variant(which)};
    bk_tiny_model_write(&m->c, 5, m->dir);
    ok(bk_model_open(m->dir, &m->m, &m->err), &m->err);
    ok(bk_source_open(m->m, spec, &m->src, &m->err), &m->err);
    for (int i = 0; i < BATCH * TOKENS; i++) m->ids[i] = (i * i + 17 * i + i / 7) % (int)m->c.vocab;
    m->n1 = m->c.hidden * m->c.hidden;
    m->n2 = r2 ? m->c.layers * m->c.head_dim * m->c.head_dim : 0;
    m->r1 = room(m->n1), m->r2 = room(m->n2), m->dr1 = room(m->n1), m->dr2 = room(m->n2);
    ok(bk_rotation_dense(m->c.hidden, BK_RNG_R1, 3, m->r1, &m->err), &m->err);
    for (int64_t l = 0; r2 && l < m->c.layers; l++)
        ok(bk_rotation_dense(m->c.head_dim, BK_RNG_R2, 3, m->r2 + l * m->c.head_dim * m->c.head_dim, &m->err), &m->err);
}

static void open_loss(model *m, const bk_backend *be, const bk_block_quant *quant)
{
    bk_rotated_loss_options opt = {.quant = quant, .batch = BATCH, .tokens = TOKENS, .r2 = m->n2 > 0};
    ok(bk_rotated_loss_open(&m->l, be, m->src, &opt, &m->err), &m->err);
}

static double loss_at(model *m)
{
    double loss;
    ok(bk_rotated_loss_gradient(m->l, m->ids, m->r1, m->r2, NULL, &loss, m->dr1, m->dr2), &m->err);
    return loss;
}

static void close_model(model *m)
{
    bk_rotated_loss_close(m->l);
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
    free(m->r1), free(m->r2), free(m->dr1), free(m->dr2);
}

static const bk_rotation_spec fused = {.fuse = true}, fused_r4 = {.fuse = true, .r3 = true, .r4 = true},
                              fused_r2 = {.fuse = true, .r2 = true, .r3 = true, .r4 = true, .seed = 3};

/* --- the loss --- */

/* In full precision an orthogonal R1 and R2 change nothing. */
static void check_full_precision(const bk_backend *be, int which, bool r2, double tol)
{
    model m;
    double want = 0;
    open_model(&m, which, r2, &fused_r4);
    for (int s = 0; s < BATCH; s++) {
        double *logits = bk_plain_logits(m.m, m.ids + s * TOKENS, TOKENS, NULL);
        want += bk_plain_nll(logits, m.ids + s * TOKENS, TOKENS, m.c.vocab) / BATCH;
        free(logits);
    }
    open_loss(&m, be, NULL);
    double got = loss_at(&m);
    ck_assert_msg(fabs(got - want) < tol, "%.12g, not %.12g", got, want);
    close_model(&m);
}

START_TEST(loss_in_full_precision_is_that_of_the_plain_model)
{
    check_full_precision(bk_backend_ref(BK_F64), _i, true, 1e-6); /* the streams between blocks are f32 */
    check_full_precision(bk_backend_cpu(), _i, false, 1e-5);
}
END_TEST

typedef struct student {
    const bk_source *src;
    bk_ctx *ctx;
    bk_block_weights w;
    bk_stream *inputs;
    bool ranges;
} student;

/* Quantizers as bk_block_init sets them, on what the blocks before it give. */
static bk_status load_student(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    student *s = user;
    BK_TRY(bk_source_block(s->src, layer, &s->w, err));
    BK_TRY(bk_block_load(b, &s->w, err));
    BK_TRY(bk_block_init(s->ctx, b, s->inputs, &(bk_init_options){0}, err));
    if (!s->ranges || layer + 1 == b->cfg.layers) return BK_OK;
    bk_ctx_measure(s->ctx);
    BK_TRY(bk_block_pass_measure(s->ctx, b, BATCH, TOKENS));
    BK_TRY(bk_ctx_commit(s->ctx));
    return bk_block_pass(s->ctx, b, s->inputs, s->inputs, err);
}

/* The same number as perplexity of the model that is rotated while it is read. */
static void check_quantized(const bk_block_quant *quant, int which)
{
    const bk_backend *be = bk_backend_ref(BK_F64);
    const bk_rotation_spec all = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 3};
    model m;
    bk_source *src;
    bk_block *b;
    bk_ppl ppl;
    open_model(&m, which, false, &fused_r2);
    open_loss(&m, be, quant);
    double got = loss_at(&m);
    ok(bk_source_open(m.m, &all, &src, &m.err), &m.err);
    student s = {.src = src, .ranges = true};
    bk_block_options opt = {.quant = quant, .r3 = bk_source_r3(src), .r4 = bk_source_r4(src), .tokens = TOKENS};
    ok(bk_block_create(&b, be, bk_source_config(src), &opt, &m.err), &m.err);
    ck_assert_ptr_nonnull(s.ctx = bk_ctx_new(be, &m.err));
    ok(bk_weights_alloc(bk_source_config(src), &s.w, &m.err), &m.err);
    ok(bk_stream_create(&s.inputs, BATCH, TOKENS, m.c.hidden, &m.err), &m.err);
    ok(bk_embed_stream(src, m.ids, s.inputs, &m.err), &m.err);
    ok(bk_perplexity(src, b, &(bk_loader){load_student, &s}, m.ids, BATCH, TOKENS, NULL, &ppl, &m.err), &m.err);
    ck_assert_msg(fabs(got - ppl.nll) < 2e-3 * ppl.nll, "%.9g, not %.9g", got, ppl.nll); /* a code may differ where f32 rounds otherwise */
    bk_stream_free(s.inputs);
    bk_weights_free(&s.w);
    bk_ctx_free(s.ctx);
    bk_block_free(b);
    bk_source_close(src);
    close_model(&m);
}

START_TEST(loss_of_a_quantized_model_is_its_perplexity)
{
    bk_block_quant dynamic = bk_tiny_quant("dynamic", 4, 4, false), fixed = bk_tiny_quant("static", 16, 8, true);
    check_quantized(&dynamic, _i);
    check_quantized(&fixed, _i);
}
END_TEST

/* --- its gradient --- */

/* Along random directions, away from orthogonal matrices, so that the loss depends on every entry. */
static void check_gradient(int which, bool r2)
{
    const double h = 2e-3;
    model m;
    open_model(&m, which, r2, &fused_r4);
    open_loss(&m, bk_backend_ref(BK_F64), NULL);
    int64_t n = m.n1 + m.n2;
    double *start = room(n), *g = room(n), scale = 0;
    for (int64_t i = 0; i < m.n1; i++) m.r1[i] += 0.05 * bk_rng_normal(1, BK_RNG_TEST, (uint64_t)i);
    for (int64_t i = 0; i < m.n2; i++) m.r2[i] += 0.05 * bk_rng_normal(2, BK_RNG_TEST, (uint64_t)i);
    for (int64_t i = 0; i < n; i++) start[i] = i < m.n1 ? m.r1[i] : m.r2[i - m.n1];
    loss_at(&m);
    for (int64_t i = 0; i < n; i++) g[i] = i < m.n1 ? m.dr1[i] : m.dr2[i - m.n1], scale += g[i] * g[i];
    for (uint64_t k = 0; k < 6; k++) {
        double value[4], analytic = 0;
        for (int j = 0; j < 4; j++) { /* central differences with h and h / 2: errors of order h^4 */
            for (int64_t i = 0; i < n; i++) {
                bool mine = k % 2 ? i >= m.n1 : i < m.n1; /* odd directions turn R2 alone, if there is one */
                double e = mine || !r2 ? bk_rng_normal(10 + k, BK_RNG_TEST, (uint64_t)i) : 0;
                double x = start[i] + (j % 2 ? -1 : 1) * (j < 2 ? h : h / 2) * e;
                if (j == 0) analytic += e * g[i];
                *(i < m.n1 ? &m.r1[i] : &m.r2[i - m.n1]) = x;
            }
            value[j] = loss_at(&m);
        }
        double wide = (value[0] - value[1]) / (2 * h), narrow = (value[2] - value[3]) / h, numeric = narrow + (narrow - wide) / 3;
        ck_assert_msg(fabs(numeric - analytic) < 3e-4 * sqrt(scale), "variant %d, direction %d: %.9g by differences, %.9g by the tape, |g| %.3g",
                      which, (int)k, numeric, analytic, sqrt(scale));
    }
    free(start), free(g);
    close_model(&m);
}

START_TEST(gradient_agrees_with_differences)
{
    check_gradient(_i, false);
}
END_TEST

START_TEST(gradient_of_both_rotations_agrees_with_differences)
{
    check_gradient(_i, true);
}
END_TEST

/* |G - R G^T R| / |G|: how far G points along the orthogonal matrices, which full precision does not see. */
static double tangent(int64_t n, const double *r, const double *g)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) { /* the skew part of R^T G */
            double a = 0, b = 0;
            for (int64_t k = 0; k < n; k++) a += r[k * n + i] * g[k * n + j], b += r[k * n + j] * g[k * n + i];
            sum += (a - b) * (a - b) / 4;
            all += a * a;
        }
    return sqrt(sum / all);
}

START_TEST(only_quantizers_see_a_rotation)
{
    model m;
    bk_block_quant coarse = bk_tiny_quant("dynamic", 16, 3, false), weights = bk_tiny_quant("dynamic", 3, 16, true),
                   fixed = bk_tiny_quant("static", 16, 3, true);
    const bk_block_quant *quant[] = {NULL, &coarse, &weights, &fixed};
    for (int i = 0; i < 4; i++) {
        open_model(&m, _i, true, &fused_r4);
        open_loss(&m, bk_backend_ref(BK_F64), quant[i]);
        loss_at(&m);
        double of_r1 = tangent(m.c.hidden, m.r1, m.dr1), of_r2 = tangent(m.c.head_dim, m.r2, m.dr2);
        ck_assert_msg(i ? of_r1 > 0.02 : of_r1 < 1e-5, "case %d: R1 %g", i, of_r1);
        ck_assert_msg(i ? of_r2 > 0.02 : of_r2 < 1e-5, "case %d: R2 %g", i, of_r2);
        close_model(&m);
    }
}
END_TEST

/* Fine quantizers are nearly the identity, and so are their straight-through gradients. */
START_TEST(gradient_through_fine_quantizers_is_nearly_that_without)
{
    bk_block_quant fine = bk_tiny_quant("dynamic", 8, 8, false);
    double *g[2], dot = 0, a = 0, b = 0;
    int64_t n = 0;
    for (int i = 0; i < 2; i++) {
        model m;
        open_model(&m, _i, false, &fused_r4);
        open_loss(&m, bk_backend_ref(BK_F64), i ? &fine : NULL);
        loss_at(&m);
        n = m.n1;
        memcpy(g[i] = room(n), m.dr1, (size_t)n * sizeof **g);
        close_model(&m);
    }
    for (int64_t i = 0; i < n; i++) dot += g[0][i] * g[1][i], a += g[0][i] * g[0][i], b += g[1][i] * g[1][i];
    ck_assert_msg(dot > 0.99 * sqrt(a * b), "cosine %g", dot / sqrt(a * b));
    free(g[0]), free(g[1]);
}
END_TEST

/* --- the rest --- */

START_TEST(what_a_block_skips_stays_in_full_precision)
{
    bk_block_quant quant = bk_tiny_quant("dynamic", 3, 3, false);
    unsigned sites[2] = {~0u, ~0u}, weights[2] = {~0u, ~0u};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        model m;
        open_model(&m, 0, false, &fused_r4);
        bk_rotated_loss_options opt = {.quant = i ? &quant : NULL, .batch = BATCH, .tokens = TOKENS, .skip_sites = sites, .skip_weights = weights};
        ok(bk_rotated_loss_open(&m.l, bk_backend_cpu(), m.src, &opt, &m.err), &m.err);
        loss[i] = loss_at(&m);
        close_model(&m);
    }
    ck_assert(loss[0] == loss[1]);
}
END_TEST

static void all_of(const bk_backend *be, double **g, double *loss)
{
    bk_block_quant quant = bk_tiny_quant("dynamic", 4, 4, false);
    model m;
    open_model(&m, 1, true, &fused_r4);
    open_loss(&m, be, &quant);
    *loss = loss_at(&m);
    *g = room(m.n1 + m.n2);
    memcpy(*g, m.dr1, (size_t)m.n1 * sizeof **g);
    memcpy(*g + m.n1, m.dr2, (size_t)m.n2 * sizeof **g);
    close_model(&m);
}

START_TEST(host_code_never_touches_device_memory)
{
    double *g[2], loss[2];
    bk_config c = variant(1);
    all_of(bk_backend_ref(BK_F32), &g[0], &loss[0]);
    all_of(bk_backend_guard(BK_F32), &g[1], &loss[1]);
    ck_assert(loss[0] == loss[1] && !memcmp(g[0], g[1], (size_t)(c.hidden * c.hidden) * sizeof **g));
    free(g[0]), free(g[1]);
}
END_TEST

START_TEST(threads_do_not_change_a_bit)
{
    double *g[2], loss[2];
    bk_config c = variant(1);
    for (int i = 0; i < 2; i++) {
        bk_backend_cpu()->set_threads(i + 1);
        all_of(bk_backend_cpu(), &g[i], &loss[i]);
    }
    ck_assert(loss[0] == loss[1] && !memcmp(g[0], g[1], (size_t)(c.hidden * c.hidden + c.layers * c.head_dim * c.head_dim) * sizeof **g));
    free(g[0]), free(g[1]);
}
END_TEST

START_TEST(sources_that_are_rotated_already_are_refused)
{
    static const bk_rotation_spec wrong[] = {{0}, {.r1 = true}, {.fuse = true, .r2 = true}};
    model m;
    open_model(&m, 0, true, &wrong[_i]);
    bk_rotated_loss_options opt = {.batch = BATCH, .tokens = TOKENS, .r2 = true};
    ck_assert_int_eq(bk_rotated_loss_open(&m.l, bk_backend_cpu(), m.src, &opt, &m.err), BK_EINVAL);
    ck_assert_ptr_null(m.l);
    close_model(&m);
}
END_TEST

START_TEST(batches_without_a_prediction_are_refused)
{
    model m;
    open_model(&m, 0, false, &fused);
    bk_rotated_loss_options opt = {.batch = _i, .tokens = _i ? 1 : 9};
    ck_assert_int_eq(bk_rotated_loss_open(&m.l, bk_backend_cpu(), m.src, &opt, &m.err), BK_EINVAL);
    close_model(&m);
}
END_TEST

START_TEST(a_rotation_that_is_not_finite_is_told)
{
    model m;
    double loss;
    open_model(&m, 0, false, &fused);
    open_loss(&m, bk_backend_cpu(), NULL);
    m.r1[3] = NAN;
    ck_assert_int_eq(bk_rotated_loss_gradient(m.l, m.ids, m.r1, NULL, NULL, &loss, m.dr1, NULL), BK_ENUMERIC);
    close_model(&m);
}
END_TEST

static bk_status stop_in_the_way_back(void *user, int64_t done, int64_t total, bk_error *err)
{
    int64_t *calls = user;
    ck_assert_int_eq(done, (*calls)++);
    ck_assert_int_eq(total, 4);
    return done == 3 ? bk_fail(err, BK_ECANCEL, "stopped") : BK_OK;
}

START_TEST(every_block_asks_whether_to_stop)
{
    model m;
    double loss;
    int64_t calls = 0;
    open_model(&m, 0, false, &fused);
    open_loss(&m, bk_backend_cpu(), NULL);
    ck_assert_int_eq(bk_rotated_loss_gradient(m.l, m.ids, m.r1, NULL, &(bk_watch){stop_in_the_way_back, &calls}, &loss, m.dr1, NULL), BK_ECANCEL);
    ck_assert_int_eq(calls, 4);
    close_model(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rotated_loss");
    TCase *t = tcase_create("loss");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, loss_in_full_precision_is_that_of_the_plain_model, 0, VARIANTS);
    tcase_add_loop_test(t, loss_of_a_quantized_model_is_its_perplexity, 0, VARIANTS);
    tcase_add_test(t, what_a_block_skips_stays_in_full_precision);
    suite_add_tcase(s, t);
    t = tcase_create("gradient");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, gradient_agrees_with_differences, 0, VARIANTS);
    tcase_add_loop_test(t, gradient_of_both_rotations_agrees_with_differences, 0, VARIANTS);
    tcase_add_loop_test(t, only_quantizers_see_a_rotation, 0, VARIANTS);
    tcase_add_loop_test(t, gradient_through_fine_quantizers_is_nearly_that_without, 0, VARIANTS);
    suite_add_tcase(s, t);
    t = tcase_create("rules");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, host_code_never_touches_device_memory);
    tcase_add_test(t, threads_do_not_change_a_bit);
    tcase_add_loop_test(t, sources_that_are_rotated_already_are_refused, 0, 3);
    tcase_add_loop_test(t, batches_without_a_prediction_are_refused, 0, 2);
    tcase_add_test(t, a_rotation_that_is_not_finite_is_told);
    tcase_add_test(t, every_block_asks_whether_to_stop);
    suite_add_tcase(s, t);
    return run_suite(s);
}
