/* brick bench: speed of a training step, and what looking for outliers adds to a forward pass, against the matrix
 * products of the same backend, process and threads; on demand, GPTQ of one linear. Machines are shared and noisy: products and steps take turns, and
 * medians count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "autograd/rng.h"
#include "blocks/init.h"
#include "blocks/outliers.h"
#include "experiments/bench_gptq.h"
#include "experiments/estimate.h"
#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/printable.h"
#include "experiments/progress.h"
#include "experiments/runner.h"
#include "experiments/scheme.h"
#include "experiments/verbs.h"

#define PREFIX 2
#define SGEMM 2048
#define SGEMM_TIMES 5
#define STEPS_MAX 1000
#define DETECTION_TOKENS 512
#define DETECTION_SAMPLES 4
#define DETECTION_BLOCKS 4
#define LINEAR_MAX 32768

typedef struct bench_shape {
    const char *name;
    bk_config cfg;
    int64_t batch; /* when none is given */
} bench_shape;

static const bench_shape shapes[] = {
    {"smollm2", {.arch = "llama", .hidden = 576, .inter = 1536, .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64,
                 .vocab = 49152, .max_positions = 8192, .eps = 1e-5, .rope_theta = 1e5, .tied = true}, 4},
    {"llama3-8b", {.arch = "llama", .hidden = 4096, .inter = 14336, .layers = 32, .heads = 32, .kv_heads = 8,
                   .head_dim = 128, .vocab = 128256, .max_positions = 8192, .eps = 1e-5, .rope_theta = 5e5}, 1},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

typedef struct bench_step {
    double seconds, mean, gflops, peak_bytes; /* median and mean step; useful work per second; parameters and arenas */
    bk_profile profile;                       /* of all steps */
} bench_step;

enum { STATIC, DYNAMIC, VARIANTS };
static const char *const variant_name[VARIANTS] = {"static", "dynamic"};
static const char *const variant_scheme[VARIANTS] = {"W4A4KV4-static", "W4A4KV4-dynamic"};

typedef struct bench {
    const char *shape_name, *backend, *linear;
    int64_t batch, tokens, steps, threads;
    bool json;
    const bk_backend *be;
    const bk_config *cfg;
    bk_rotation *rotation;
    double sgemm;              /* GFLOP/s, best of all */
    int sgemms;
    bench_step step[VARIANTS];
    double forward, detection; /* median seconds */
    bk_gptq_bench gptq;        /* rows 0: not asked for */
} bench;

/* One block and what a step works on. */
typedef struct bench_rig {
    bk_block *b;
    bk_ctx *ctx;
    float *x, *target;
} bench_rig;

static double median(double *v, int n)
{
    for (int i = 1; i < n; i++) {
        double t = v[i];
        int k = i;
        for (; k > 0 && v[k - 1] > t; k--) v[k] = v[k - 1];
        v[k] = t;
    }
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Uniform numbers of standard deviation `deviation`. */
static void fill_random(float *x, int64_t n, double deviation, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(deviation * sqrt(12) * (bk_rng_uniform(stream, BK_RNG_TEST, (uint64_t)i) - 0.5));
}

static bk_status random_weights(bk_block *b, bk_error *err)
{
    bk_block_weights w;
    BK_TRY(bk_weights_alloc(&b->cfg, &w, err));
    for (bk_linear_id i = 0; i < BK_W_COUNT; i++)
        fill_random(w.w[i], bk_numel(b->w[i]), 1 / sqrt((double)b->w[i]->dim[1]), (uint64_t)i);
    for (bk_norm_id i = 0; i < BK_NORM_COUNT; i++)
        for (int64_t k = 0; w.norm[i] && k < bk_numel(b->norm[i]); k++) w.norm[i][k] = 1;
    bk_status st = bk_block_load(b, &w, err);
    bk_weights_free(&w);
    return st;
}

static bk_status random_prefix(bk_block *b, bk_error *err)
{
    int64_t n = b->prefix_len ? bk_numel(b->prefix_k) : 0;
    float *kv = malloc((size_t)(2 * n + 1) * sizeof *kv);
    if (!kv) return bk_fail(err, BK_ENOMEM, "no memory");
    fill_random(kv, 2 * n, 1, 100);
    bk_status st = bk_block_set_prefix(b, kv, kv + n, err);
    free(kv);
    return st;
}

static bk_status make_block(const bench *s, const bk_block_quant *quant, int64_t prefix, int64_t tokens, bool trained,
                            bk_block **out, bk_error *err)
{
    bk_block_options opt = {.quant = quant, .r3 = s->rotation->head, .r4 = s->rotation->inter, .prefix_len = prefix,
                            .tokens = tokens, .trained = trained};
    BK_TRY(bk_block_create(out, s->be, s->cfg, &opt, err));
    BK_TRY(random_weights(*out, err));
    return random_prefix(*out, err);
}

/* Ranges from one sequence, without a search. */
static bk_status initialise(const bench *s, bench_rig *r, bk_error *err)
{
    bk_stream *x;
    BK_TRY(bk_stream_create(&x, 1, s->tokens, s->cfg->hidden, err));
    bk_status st = bk_stream_write(x, 0, 1, r->x, err);
    if (!st) st = bk_block_init(r->ctx, r->b, x, &(bk_init_options){.search = false}, err);
    bk_stream_free(x);
    return st;
}

/* What a training step does (blocks/recon.c): inputs in, gradients, their norm, AdamW. */
static bk_status train_step(const bench *s, bench_rig *r, int64_t t, bk_error *err)
{
    static const bk_adamw adamw = {0.9, 0.999, 1e-8, 0};
    const double lr[BK_MAX_GROUPS] = {[BK_GROUP_QUANT] = 5e-5, [BK_GROUP_WEIGHT] = 5e-6};
    int64_t dim[3] = {s->batch, s->tokens, s->cfg->hidden}, count = dim[0] * dim[1] * dim[2], floored = 0;
    bool real = !bk_ctx_measuring(r->ctx);
    double norm[BK_MAX_GROUPS];
    float loss;
    bk_step_begin(r->ctx);
    BK_TRY(bk_params_zero_grad(r->ctx, r->b->params));
    bk_tensor *x = bk_real_new(r->ctx, 3, dim, "x"), *target = bk_real_new(r->ctx, 3, dim, "target");
    BK_TRY(bk_ctx_status(r->ctx));
    if (real) BK_TRY(bk_write(s->be, x, 0, r->x, count, err));
    if (real) BK_TRY(bk_write(s->be, target, 0, r->target, count, err));
    bk_tensor *y = bk_recon_loss(r->ctx, BK_LOSS_MSE, bk_block_forward(r->ctx, r->b, x), target);
    BK_TRY(bk_ctx_status(r->ctx));
    BK_TRY(bk_backward(r->ctx, y, NULL));
    if (real) BK_TRY(bk_read(s->be, y, 0, &loss, 1, err));
    if (real && !isfinite(loss)) return bk_fail(err, BK_ENUMERIC, "the loss of the random block is not finite");
    BK_TRY(bk_params_grad_norm(r->ctx, r->b->params, norm));
    return bk_params_step(r->ctx, r->b->params, &adamw, lr, t, &floored);
}

static bk_status product(bench *s, bk_error *err)
{
    double rate;
    BK_TRY(bk_sgemm_gflops(s->be, SGEMM, 1, &rate, err));
    if (rate > s->sgemm) s->sgemm = rate;
    s->sgemms++;
    return BK_OK;
}

static bk_status time_steps(bench *s, bench_rig *r, bench_step *out, bk_error *err)
{
    double took[STEPS_MAX];
    BK_TRY(train_step(s, r, 1, err)); /* warms up */
    bk_ctx_profile(r->ctx, &out->profile);
    for (int64_t i = 0; i < s->steps; i++) {
        BK_TRY(product(s, err));
        double start = bk_seconds();
        BK_TRY(train_step(s, r, i + 2, err));
        took[i] = bk_seconds() - start;
        BK_TRY(bk_check_cancelled(err));
    }
    bk_ctx_profile(r->ctx, NULL);
    for (int64_t i = 0; i < s->steps; i++) out->mean += took[i] / (double)s->steps;
    out->seconds = median(took, (int)s->steps);
    out->gflops = 3e-9 * (double)s->batch * bk_forward_flops(s->cfg, s->tokens, PREFIX) / out->seconds;
    out->peak_bytes = (double)bk_params_bytes(r->b->params) + (double)bk_ctx_bytes(r->ctx);
    return BK_OK;
}

static bk_status prepare_steps(bench *s, bench_rig *r, const bk_block_quant *quant, bk_error *err)
{
    int64_t count = s->batch * s->tokens * s->cfg->hidden;
    BK_TRY(make_block(s, quant, PREFIX, s->tokens, true, &r->b, err));
    r->x = malloc((size_t)count * sizeof *r->x);
    r->target = malloc((size_t)count * sizeof *r->target);
    if (!r->x || !r->target) return bk_fail(err, BK_ENOMEM, "no memory for a batch");
    fill_random(r->x, count, 1, 101);
    fill_random(r->target, count, 1, 102);
    BK_TRY(initialise(s, r, err));
    BK_TRY(bk_params_start(r->b->params));
    bk_ctx_measure(r->ctx);
    bk_ctx_record(r->ctx, true);
    BK_TRY(train_step(s, r, 1, err));
    return bk_ctx_commit(r->ctx);
}

static bk_status bench_variant(bench *s, int variant, bk_error *err)
{
    bench_rig r = {0};
    bk_scheme scheme;
    BK_TRY(bk_scheme_parse(variant_scheme[variant], &scheme, err));
    bk_block_quant quant = {scheme.weight, scheme.activation, scheme.key, scheme.value};
    bk_log(BK_LOG_INFO, "%s: %lld training steps of %lld x %lld tokens", variant_scheme[variant], (long long)s->steps,
           (long long)s->batch, (long long)s->tokens);
    r.ctx = bk_ctx_new(s->be, err);
    bk_status st = r.ctx ? prepare_steps(s, &r, &quant, err) : BK_ENOMEM;
    if (!st) st = time_steps(s, &r, &s->step[variant], err);
    bk_block_free(r.b);
    bk_ctx_free(r.ctx);
    free(r.x);
    free(r.target);
    return st;
}

/* --- detection --- */

typedef struct finder {
    bk_block *b;
    bk_ctx *ctx;
    bk_stream *h;
    bk_maxima maxima;
    int32_t ids[DETECTION_SAMPLES * DETECTION_TOKENS];
    float scratch[DETECTION_TOKENS];
} finder;

/* Some blocks in a row over the same hidden states, with the search for outliers or without; seconds. */
static bk_status pass_blocks(finder *f, bool look, double *took, bk_error *err)
{
    bk_outliers found = {.sequences = DETECTION_SAMPLES, .blocks = DETECTION_BLOCKS};
    bk_status st = BK_OK;
    double start = bk_seconds();
    f->b->tap = look ? bk_maxima_tap : NULL;
    f->b->tap_user = &f->maxima;
    for (int64_t l = 0; !st && l < DETECTION_BLOCKS; l++) {
        bk_maxima_begin_block(&f->maxima);
        st = bk_block_pass(f->ctx, f->b, f->h, NULL, err);
        for (int64_t i = 0; !st && look && i < DETECTION_SAMPLES; i++)
            st = bk_outliers_add(&found, l, i, f->maxima.at[BK_SITE_DOWN_RAW] + i * DETECTION_TOKENS,
                                 f->ids + i * DETECTION_TOKENS, DETECTION_TOKENS, 64, f->scratch, err);
    }
    *took = bk_seconds() - start;
    bk_outliers_free(&found);
    return st;
}

static bk_status prepare_finder(const bench *s, finder *f, bk_error *err)
{
    int64_t width = DETECTION_TOKENS * s->cfg->hidden;
    BK_TRY(make_block(s, NULL, 0, DETECTION_TOKENS, false, &f->b, err));
    BK_TRY(bk_stream_create(&f->h, DETECTION_SAMPLES, DETECTION_TOKENS, s->cfg->hidden, err));
    float *x = malloc((size_t)width * sizeof *x);
    bk_status st = x ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for hidden states");
    for (int64_t i = 0; !st && i < DETECTION_SAMPLES; i++) {
        fill_random(x, width, 1, 103 + (uint64_t)i);
        st = bk_stream_write(f->h, i, 1, x, err);
    }
    free(x);
    BK_TRY(st);
    BK_TRY(bk_maxima_create(&f->maxima, 1u << BK_SITE_DOWN_RAW, DETECTION_SAMPLES, DETECTION_TOKENS, err));
    f->b->tap = bk_maxima_tap;
    f->b->tap_user = &f->maxima;
    bk_ctx_measure(f->ctx);
    BK_TRY(bk_block_pass_measure(f->ctx, f->b, DETECTION_SAMPLES, DETECTION_TOKENS));
    return bk_ctx_commit(f->ctx);
}

static bk_status bench_detection(bench *s, bk_error *err)
{
    double with[STEPS_MAX], without[STEPS_MAX], warm;
    finder *f = calloc(1, sizeof *f);
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory");
    f->ctx = bk_ctx_new(s->be, err);
    bk_status st = f->ctx ? prepare_finder(s, f, err) : BK_ENOMEM;
    if (!st) st = pass_blocks(f, true, &warm, err);
    for (int64_t i = 0; !st && i < s->steps; i++) {
        st = pass_blocks(f, false, &without[i], err);
        if (!st) st = pass_blocks(f, true, &with[i], err);
        if (!st) st = bk_check_cancelled(err);
    }
    if (!st) {
        s->forward = median(without, (int)s->steps);
        s->detection = median(with, (int)s->steps);
    }
    bk_block_free(f->b);
    bk_stream_free(f->h);
    bk_maxima_free(&f->maxima);
    bk_ctx_free(f->ctx);
    free(f);
    return st;
}

/* --- all of it --- */

static bk_status find_shape(bench *s, bk_error *err)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, s->shape_name) != 0) continue;
        s->cfg = &shapes[i].cfg;
        if (!s->batch) s->batch = shapes[i].batch;
        return BK_OK;
    }
    return bk_fail(err, BK_EINVAL, "--shape '%s': want smollm2 or llama3-8b", s->shape_name);
}

static bk_status find_linear(bench *s, bk_error *err)
{
    long long rows, cols;
    int end = 0;
    if (!s->linear) return BK_OK;
    if (sscanf(s->linear, "%lldx%lld%n", &rows, &cols, &end) != 2 || s->linear[end] || rows < 1 || cols < 1 || rows > LINEAR_MAX || cols > LINEAR_MAX)
        return bk_fail(err, BK_EINVAL, "--gptq '%s': want ROWSxCOLS, each up to %d, for example 4096x14336", s->linear, LINEAR_MAX);
    s->gptq.rows = rows;
    s->gptq.cols = cols;
    return BK_OK;
}

static bk_status run(bench *s, bk_error *err)
{
    BK_TRY(find_shape(s, err));
    BK_TRY(find_linear(s, err));
    if (!(s->be = bk_runner_backend(s->backend, s->threads, err))) return err->code;
    float *gain = calloc((size_t)s->cfg->hidden, sizeof *gain);
    bk_status st = gain ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    if (!st) st = bk_rotation_create(s->cfg, &(bk_rotation_spec){.r3 = true, .r4 = true}, gain, &s->rotation, err);
    free(gain);
    for (int v = 0; !st && v < VARIANTS; v++) st = bench_variant(s, v, err);
    while (!st && s->sgemms < SGEMM_TIMES) st = product(s, err);
    if (!st) st = bench_detection(s, err);
    if (!st && s->gptq.rows) st = bk_bench_gptq(s->be, &s->gptq, err);
    return st;
}

static int threads_of(const bench *s)
{
    return s->be->threads ? s->be->threads() : 1;
}

static double max_rss(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss * 1024;
}

static double kernel_seconds(const bench_step *t, int slot, int64_t steps)
{
    return t->profile.seconds[slot] / (double)steps;
}

static bk_json *json_step(const bench *s, const bench_step *t)
{
    bk_json *o = bk_json_object(), *kernels = bk_json_object();
    for (int k = 0; k < BK_SLOT_COUNT; k++)
        if (t->profile.calls[k])
            bk_json_set(kernels, bk_slot_name((bk_slot)k), bk_json_of_num(kernel_seconds(t, k, s->steps)));
    bk_json_set(o, "gflops", bk_json_of_num(t->gflops));
    bk_json_set(o, "ratio", bk_json_of_num(t->gflops / s->sgemm));
    bk_json_set(o, "seconds", bk_json_of_num(t->seconds));
    bk_json_set(o, "peak_bytes", bk_json_of_num(t->peak_bytes));
    bk_json_set(o, "kernel_seconds", kernels);
    return o;
}

static double gptq_ratio(const bk_gptq_bench *g) { return g->gptq / (g->cholesky + g->product); }

static bk_json *json_gptq(const bk_gptq_bench *g)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "rows", bk_json_of_int(g->rows));
    bk_json_set(o, "cols", bk_json_of_int(g->cols));
    bk_json_set(o, "seconds", bk_json_of_num(g->gptq));
    bk_json_set(o, "cholesky_seconds", bk_json_of_num(g->cholesky));
    bk_json_set(o, "product_seconds", bk_json_of_num(g->product));
    bk_json_set(o, "ratio", bk_json_of_num(gptq_ratio(g)));
    return o;
}

static bk_status print_json(const bench *s, bk_error *err)
{
    bk_json *o = bk_json_object(), *step = bk_json_object();
    for (int v = 0; v < VARIANTS; v++) bk_json_set(step, variant_name[v], json_step(s, &s->step[v]));
    bk_json_set(o, "shape", bk_json_of_text(s->shape_name));
    bk_json_set(o, "batch", bk_json_of_int(s->batch));
    bk_json_set(o, "tokens", bk_json_of_int(s->tokens));
    bk_json_set(o, "threads", bk_json_of_int(threads_of(s)));
    bk_json_set(o, "sgemm_gflops", bk_json_of_num(s->sgemm));
    bk_json_set(o, "step", step);
    bk_json_set(o, "forward_seconds", bk_json_of_num(s->forward));
    bk_json_set(o, "detection_over_forward", bk_json_of_num(s->detection / s->forward));
    if (s->gptq.rows) bk_json_set(o, "gptq", json_gptq(&s->gptq));
    bk_json_set(o, "max_rss_bytes", bk_json_of_num(max_rss()));
    return bk_print_json(o, err);
}

/* Kernels by falling time, and what the step spends outside of them. */
static void print_kernels(const bench *s, const bench_step *t)
{
    bool shown[BK_SLOT_COUNT] = {false};
    double kernels = 0;
    for (int k = 0; k < BK_SLOT_COUNT; k++) kernels += kernel_seconds(t, k, s->steps);
    for (;;) {
        int best = -1;
        for (int k = 0; k < BK_SLOT_COUNT; k++)
            if (!shown[k] && t->profile.calls[k] && (best < 0 || t->profile.seconds[k] > t->profile.seconds[best]))
                best = k;
        if (best < 0) break;
        shown[best] = true;
        double sec = kernel_seconds(t, best, s->steps);
        if (sec > 1e-3 * t->mean)
            printf("    %-14s %8.1f ms  %4.1f %%  %lld calls\n", bk_slot_name((bk_slot)best), 1e3 * sec,
                   100 * sec / t->mean, (long long)(t->profile.calls[best] / s->steps));
    }
    printf("    %-14s %8.1f ms  %4.1f %%\n", "outside", 1e3 * (t->mean - kernels), 100 * (1 - kernels / t->mean));
}

static void print_text(const bench *s)
{
    printf("block       %s, %lld x %lld tokens, R3, R4, prefix of %d; %d threads, backend %s\n", s->shape_name,
           (long long)s->batch, (long long)s->tokens, PREFIX, threads_of(s), s->backend);
    printf("sgemm       %.1f GFLOP/s (%d^3, best of %d)\n", s->sgemm, SGEMM, s->sgemms);
    for (int v = 0; v < VARIANTS; v++) {
        const bench_step *t = &s->step[v];
        printf("%-11s %.1f GFLOP/s = %.2f of sgemm; %.3f s a step; %.2f GiB\n", variant_name[v], t->gflops,
               t->gflops / s->sgemm, t->seconds, t->peak_bytes / 1073741824.0);
        print_kernels(s, t);
    }
    printf("detection   %.3f of a forward pass (%d blocks, %d tokens: %.3f s)\n", s->detection / s->forward, DETECTION_BLOCKS,
           DETECTION_SAMPLES * DETECTION_TOKENS, s->forward);
    if (s->gptq.rows)
        printf("gptq        %.2f of Cholesky and product (%lld x %lld: %.1f s, %.1f s and %.1f s)\n", gptq_ratio(&s->gptq),
               (long long)s->gptq.rows, (long long)s->gptq.cols, s->gptq.gptq, s->gptq.cholesky, s->gptq.product);
    printf("peak RSS    %.2f GiB\n", max_rss() / 1073741824.0);
}

int bk_verb_bench(int argc, char **argv)
{
    bench s = {.shape_name = "smollm2", .backend = "cpu", .tokens = 1024, .steps = 5};
    const bk_opt opts[] = {
        {"--shape", BK_OPT_TEXT, &s.shape_name, "smollm2|llama3-8b", "smollm2", 0, 0, "shape of the block"},
        {"--batch", BK_OPT_INT, &s.batch, "N", "4; llama3-8b 1", 1, 1024, "samples of a step"},
        {"--tokens", BK_OPT_INT, &s.tokens, "N", "1024", 2, 8190, "tokens of a sample"},
        {"--steps", BK_OPT_INT, &s.steps, "N", "5", 1, STEPS_MAX, "steps to take the median of"},
        {"--gptq", BK_OPT_TEXT, &s.linear, "ROWSxCOLS", NULL, 0, 0, "GPTQ of a linear of this size, too"},
        {"--backend", BK_OPT_TEXT, &s.backend, "B", "cpu", 0, 0, "what computes (brick list backends)"},
        {"--threads", BK_OPT_INT, &s.threads, "N", "all", 0, 4096, "threads"},
        {"--json", BK_OPT_FLAG, &s.json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"bench", "speed of the training step against the machine's own matrix products", opts,
                        "brick bench\nbrick bench --shape llama3-8b --json\nbrick bench --gptq 4096x14336\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    bk_error err = {0};
    bk_status st = run(&s, &err);
    if (!st && s.json) st = print_json(&s, &err);
    else if (!st) print_text(&s);
    bk_rotation_free(s.rotation);
    return bk_exit_report(st, &err);
}
