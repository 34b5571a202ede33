#include "experiments/estimate_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/recon.h"
#include "experiments/progress.h"
#include "io/store.h"
#include "quant/search.h"

/* Share of the matrix-product rate that useful work reaches: 0.9 on a quiet core, less with several threads or
 * neighbours. */
#define FORWARD_SHARE 0.80
#define TRAIN_SHARE 0.70
#define SEARCH_SHARE 0.80
#define READ_NS 3.0             /* per weight: from the file, decoded, and into the block */
#define PROCESS_BYTES 48e6      /* code, libraries and their buffers */
#define TOKENIZER_BYTES 400.0   /* per entry of the vocabulary */
#define HEAD_TOKENS 256         /* logits at a time (blocks/pass.c) */
#define FOUND_PREFIX 1          /* tokens, where the prefix has yet to be found: the least that it can be */
#define CANDIDATES 11           /* of the grid, over its rounds */

const char *const bk_part_name[BK_PART_COUNT] = {"equivalence", "outliers", "fit", "init", "targets", "train", "rows", "evaluate"};

/* --- a backend whose memory is never there --- */

static bk_status dry_alloc(size_t bytes, void **out)
{
    (void)bytes;
    *out = (void *)(uintptr_t)64; /* aligned, and never looked at */
    return BK_OK;
}

static void dry_release(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

static bk_status dry_copy(void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src, (void)bytes;
    return BK_OK;
}

static bk_backend dry_backend(const bk_backend *be)
{
    bk_backend dry = *be;
    dry.alloc = dry_alloc;
    dry.release = dry_release;
    dry.upload = dry.download = dry.copy = dry_copy;
    return dry;
}

/* --- sizes --- */

static double real_bytes(const bk_estimator *e)
{
    return (double)bk_dtype_size(e->dry.dtype);
}

static double tensor_bytes(const bk_tensor *t)
{
    return t ? (double)bk_numel(t) * (double)bk_dtype_size(t->dtype) : 0;
}

static double block_bytes(const bk_block *b)
{
    return (double)bk_params_bytes(b->params) + tensor_bytes(b->rope) + tensor_bytes(b->r3_h) + tensor_bytes(b->r4_h) +
           tensor_bytes(b->prefix_k) + tensor_bytes(b->prefix_v);
}

double bk_estimate_weights(const bk_estimator *e)
{
    return 4.0 * (double)bk_config_block_weights(e->cfg);
}

double bk_estimate_stream(const bk_estimator *e, int64_t samples, int64_t tokens)
{
    return 4.0 * (double)samples * (double)tokens * (double)e->cfg->hidden;
}

double bk_estimate_stream_memory(const bk_estimator *e, int64_t samples, int64_t tokens)
{
    double bytes = bk_estimate_stream(e, samples, tokens);
    return bytes <= (double)BK_STREAM_MEMORY ? bytes : 0;
}

double bk_estimate_head(const bk_estimator *e)
{
    return ((double)e->cfg->hidden + HEAD_TOKENS) * (double)e->cfg->vocab * real_bytes(e);
}

static bk_status make_block(const bk_estimator *e, bool quantized, bool trained, int64_t tokens, bk_block **out)
{
    bk_block_options opt = {.quant = quantized ? &e->quant : NULL,
                            .r3 = bk_rotation_r3(e->rotation),
                            .r4 = bk_rotation_r4(e->rotation),
                            .prefix_len = e->prefix, .tokens = tokens, .trained = trained,
                            .train_norms = trained && e->c->train.norms};
    return bk_block_create(out, &e->dry, e->cfg, &opt, e->err);
}

bk_status bk_estimate_pass(const bk_estimator *e, bool quantized, bool search, int64_t samples, int64_t tokens,
                            double *block, double *pass)
{
    bk_block *b = NULL;
    bk_ctx *ctx = bk_ctx_new(&e->dry, e->err);
    int64_t batch = bk_pass_batch(samples, tokens);
    bk_status st = ctx ? make_block(e, quantized, false, tokens, &b) : BK_ENOMEM;
    if (!st) {
        bk_ctx_measure(ctx);
        bk_block_values v;
        bk_tensor *x = bk_real_new(ctx, 3, (int64_t[]){batch, tokens, e->cfg->hidden}, "x");
        bk_block_quantize(b, quantized && !search, quantized && !search);
        bk_block_forward_values(ctx, b, x, &v);
        bk_block_quantize(b, false, quantized);
        if (search) bk_block_resume(ctx, b, &v, BK_SITE_ATTN_IN);
        st = bk_ctx_status(ctx);
        *block = block_bytes(b);
        *pass = (double)bk_ctx_bytes(ctx) + bk_estimate_stream(e, batch, tokens);
    }
    bk_block_free(b);
    bk_ctx_free(ctx);
    return st;
}

/* Gram matrices of the inputs of the linears. */
static double gram_bytes(const bk_estimator *e)
{
    double sum = 0;
    bool seen[BK_SITE_COUNT] = {false};
    for (bk_linear_id w = 0; e->c->init.search && w < BK_W_COUNT; w++) {
        bk_site_id site = bk_linear_input(w);
        double width = (double)bk_site_width(e->cfg, site);
        if (!seen[site]) sum += width * width * real_bytes(e);
        seen[site] = true;
    }
    return sum;
}

static void calibration_size(const bk_estimator *e, int64_t *samples, int64_t *tokens)
{
    const bk_data_config *d = &e->c->data.calibration;
    *samples = e->n.calibration > 0 ? e->n.calibration : 1; /* 0: nothing has to be measured */
    *tokens = *d->text ? d->seqlen : e->c->data.training.seqlen;
}

/* What initialising adds to a block and its weights. */
static bk_status init_memory(const bk_estimator *e, double *block, double *more)
{
    int64_t samples, tokens;
    double gptq, statistics = bk_estimate_stream_memory(e, e->n.statistics, e->c->data.statistics.seqlen);
    calibration_size(e, &samples, &tokens);
    BK_TRY(bk_estimate_pass(e, true, e->c->init.search, samples, tokens, block, more));
    BK_TRY(bk_estimate_gptq_memory(e, &gptq));
    *more = fmax(*more + gram_bytes(e), gptq) + bk_estimate_stream_memory(e, samples, tokens) + (gptq > 0 ? statistics : 0);
    return BK_OK;
}

static bool shares_targets(const bk_estimator *e)
{
    return bk_stage_used(BK_STAGE_TARGETS, e->c);
}

/* Samples that training and validation take through the blocks. */
static int64_t target_samples(const bk_estimator *e)
{
    return e->n.training + e->n.validation;
}

/* Making the targets of a block: teacher, student and three batches on their way. */
static bk_status targets_memory(const bk_estimator *e, bool with_student, double *out)
{
    int64_t samples = target_samples(e), tokens = e->c->data.training.seqlen;
    double teacher, student = 0, teach, study = 0;
    BK_TRY(bk_estimate_pass(e, false, false, samples, tokens, &teacher, &teach));
    if (with_student) BK_TRY(bk_estimate_pass(e, true, false, samples, tokens, &student, &study));
    *out = teacher + teach + student + study + bk_estimate_stream(e, bk_pass_batch(samples, tokens), tokens);
    return BK_OK;
}

/* No batch has more samples than there are. */
static int64_t train_batch(const bk_estimator *e)
{
    int64_t most = e->n.training > e->n.validation ? e->n.training : e->n.validation;
    return e->c->train.batch < most ? e->c->train.batch : most;
}

bk_status bk_estimate_step(const bk_estimator *e, int64_t samples, int64_t tokens, double *block, double *step)
{
    bk_block *b = NULL;
    size_t bytes = 0;
    bk_status st = make_block(e, true, true, tokens, &b);
    if (!st) st = bk_train_bytes(b, samples, tokens, (bk_loss_kind)e->c->train.loss, &bytes, e->err);
    if (!st) *block = block_bytes(b);
    *step = (double)bytes;
    bk_block_free(b);
    return st;
}

/* Steps of AdamW read ahead by a batch; before them the search may run again. */
static bk_status steps_memory(const bk_estimator *e, int64_t tokens, double *out)
{
    const bk_run_config *c = e->c;
    double ahead = 2.0 * (c->train.target == BK_TARGET_BOTH ? 3 : 2) * bk_estimate_stream(e, train_batch(e), tokens);
    double trained, step, block, init = 0;
    BK_TRY(bk_estimate_step(e, train_batch(e), tokens, &trained, &step));
    if (c->init.refresh) BK_TRY(init_memory(e, &block, &init));
    *out = trained + fmax(step + ahead, init);
    return BK_OK;
}

static bk_status train_memory(const bk_estimator *e, double *out)
{
    const bk_run_config *c = e->c;
    int64_t tokens = c->data.training.seqlen;
    double targets, steps;
    if (c->train.epochs == 0) return BK_OK;
    BK_TRY(targets_memory(e, true, &targets));
    BK_TRY(steps_memory(e, tokens, &steps));
    *out = bk_estimate_weights(e) + fmax(targets, steps);
    return BK_OK;
}

/* with_init: rows that are initialised for themselves. */
static bk_status evaluate_memory(const bk_estimator *e, bool with_init, double *out)
{
    double block, pass, init = 0;
    int64_t tokens = e->c->data.evaluation.seqlen;
    if (with_init) BK_TRY(init_memory(e, &block, &init));
    BK_TRY(bk_estimate_pass(e, true, false, e->n.evaluation, tokens, &block, &pass));
    *out = bk_estimate_weights(e) + block + pass + bk_estimate_stream_memory(e, e->n.evaluation, tokens) + fmax(bk_estimate_head(e), init);
    return BK_OK;
}

/* Windows that judge a prefix. */
static int64_t search_samples(const bk_estimator *e)
{
    int64_t n = e->c->prefix.search.samples;
    return n < e->n.detection ? n : e->n.detection;
}

static bk_status memory(const bk_estimator *e, bk_estimate *out)
{
    const bk_run_config *c = e->c;
    const bk_data_config *d = &c->data.detection;
    double block, pass, base = PROCESS_BYTES + TOKENIZER_BYTES * (double)e->cfg->vocab, *m = out->memory;
    BK_TRY(bk_estimate_pass(e, false, false, 1, 16, &block, &pass));
    m[BK_PART_EQUIVALENCE] = bk_estimate_weights(e) + block + pass + bk_estimate_head(e);
    if (bk_run_config_detects(c)) {
        BK_TRY(bk_estimate_pass(e, false, false, e->n.detection, d->seqlen, &block, &pass));
        m[BK_PART_OUTLIERS] = bk_estimate_weights(e) + block + pass + bk_estimate_stream_memory(e, e->n.detection, d->seqlen);
    }
    if (bk_stage_used(BK_STAGE_PREFIX, c)) {
        BK_TRY(bk_estimate_pass(e, true, false, search_samples(e), d->seqlen, &block, &pass));
        double search = bk_estimate_weights(e) + 2 * block + pass + bk_estimate_stream_memory(e, search_samples(e), d->seqlen);
        m[BK_PART_OUTLIERS] = fmax(m[BK_PART_OUTLIERS], search);
    }
    BK_TRY(bk_estimate_fit_memory(e, &m[BK_PART_FIT]));
    BK_TRY(init_memory(e, &block, &pass));
    m[BK_PART_INIT] = bk_estimate_weights(e) + block + pass;
    if (shares_targets(e)) {
        BK_TRY(targets_memory(e, false, &pass));
        m[BK_PART_TARGETS] = bk_estimate_weights(e) + pass;
    }
    BK_TRY(train_memory(e, &m[BK_PART_TRAIN]));
    BK_TRY(evaluate_memory(e, c->evaluate & BK_EVALUATE_ABLATION, &m[BK_PART_ROWS]));
    BK_TRY(evaluate_memory(e, false, &m[BK_PART_EVALUATE]));
    for (int i = 0; i < BK_PART_COUNT; i++) {
        if (m[i] > 0) m[i] += base;
        out->peak = fmax(out->peak, m[i]);
    }
    return BK_OK;
}

/* --- disk --- */

/* What the stage `init` keeps of a block: all its parameters but the weights, and these too where GPTQ found them. */
static bk_status init_disk(const bk_estimator *e, double *bytes)
{
    bk_block *b;
    *bytes = 0;
    BK_TRY(make_block(e, true, false, 1, &b));
    for (int i = 0; i < bk_params_count(b->params); i++) {
        int group;
        const bk_tensor *t = bk_params_at(b->params, i, &group);
        if (group != BK_GROUP_WEIGHT || e->c->init.from == BK_INIT_GPTQ) *bytes += 4 * (double)bk_numel(t);
    }
    bk_block_free(b);
    return BK_OK;
}

static bk_status disk(const bk_estimator *e, bk_estimate *out)
{
    const bk_run_config *c = e->c;
    const bk_config *cfg = e->cfg;
    int64_t tokens = c->data.training.seqlen, layers = cfg->layers, n, t;
    double one = (double)target_samples(e) * (double)tokens * (double)cfg->hidden *
                 (double)bk_store_type_size((bk_store_type)c->store.dtype); /* dataset of a block */
    double file = one * ((shares_targets(e) ? 1 : 3) + (c->train.target == BK_TARGET_BOTH ? 1 : 0));
    double alive = c->store.keep == BK_TARGETS_ALL ? (double)layers : layers > 1 ? 2 : 1;
    double weights = (double)bk_config_block_weights(cfg) * (double)layers,
           tables = (cfg->tied ? 4.0 : 8.0) * (double)cfg->vocab * (double)cfg->hidden;
    bool grouped = c->quant.weight.granularity == BK_PER_GROUP;
    double steps = weights / (double)(grouped ? bk_qspec_group(&c->quant.weight, &(bk_qshape){.cols = cfg->hidden}) : cfg->hidden);
    if (c->train.epochs > 0) out->targets_disk = file * alive;
    double fitted = bk_estimate_fitted_bytes(e);
    out->model_disk = weights * (c->quant.weight.bits < 16 ? 1 : 4) + tables + 4 * steps + fitted;
    out->stage_disk[BK_STAGE_FIT] = fitted;
    BK_TRY(init_disk(e, &out->stage_disk[BK_STAGE_INIT]));
    out->stage_disk[BK_STAGE_INIT] *= (double)layers;
    if (shares_targets(e)) out->stage_disk[BK_STAGE_TARGETS] = one * (double)layers;
    for (int k = 0; k < BK_STAGE_KINDS; k++) out->cache_disk += out->stage_disk[k];
    calibration_size(e, &n, &t);
    double detection = bk_estimate_stream(e, e->n.detection, c->data.detection.seqlen);
    bool learns = c->rotation.basis == BK_BASIS_SPINQUANT; /* with the inputs of all blocks */
    double streams[] = {bk_run_config_detects(c) ? detection : 0,
                        bk_estimate_stream(e, e->n.evaluation, c->data.evaluation.seqlen), bk_estimate_stream(e, n, t),
                        bk_run_needs_statistics(c) ? bk_estimate_stream(e, e->n.statistics, c->data.statistics.seqlen) : 0,
                        learns ? bk_estimate_stream(e, layers * c->spin.batch, bk_estimate_spin_tokens(c)) : 0};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        if (streams[i] > (double)BK_STREAM_MEMORY) out->temporary_disk = fmax(out->temporary_disk, streams[i]);
    return BK_OK;
}

/* --- time --- */

double bk_forward_flops(const bk_config *c, int64_t tokens, int64_t prefix)
{
    double t = (double)tokens, w = (double)c->sliding_window;
    double visible = w > 0 && w < t ? (w * (w + 1) / 2 + (t - w) * w) / t : (t + 1) / 2;
    return t * (2.0 * (double)bk_config_block_weights(c) +
                4.0 * (double)(c->heads * c->head_dim) * (visible + (double)prefix));
}

double bk_estimate_forward(const bk_estimator *e, const bk_rates *r, double samples, int64_t tokens)
{
    return samples * bk_forward_flops(e->cfg, tokens, e->prefix) / (1e9 * r->gflops * FORWARD_SHARE);
}

double bk_estimate_f64(const bk_rates *r, double flops)
{
    return flops / (0.5e9 * r->gflops * SEARCH_SHARE);
}

/* The rates know Hadamards; a fitted R1 is a product in f64. */
double bk_estimate_load(const bk_estimator *e, const bk_rates *r)
{
    bool fitted = e->c->rotation.basis != BK_BASIS_HADAMARD;
    double turn = 2 * (double)bk_config_block_weights(e->cfg) * (double)e->cfg->hidden;
    return r->load_seconds + (fitted ? bk_estimate_f64(r, turn) : 0);
}

/* Initialising one block: Gram matrices, the error of every candidate of every weight, and runs on from every site for
 * its candidates. */
static double init_seconds(const bk_estimator *e, const bk_rates *r, bool search)
{
    int64_t samples, tokens;
    double products = 0, passes;
    calibration_size(e, &samples, &tokens);
    passes = bk_estimate_forward(e, r, (double)samples, tokens);
    if (!search) return 2 * passes;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        int64_t out, in;
        bk_linear_shape(e->cfg, w, &out, &in);
        bool grouped = e->c->quant.weight.granularity == BK_PER_GROUP;
        double group = grouped ? (double)bk_qspec_group(&e->c->quant.weight, &(bk_qshape){.cols = in}) : (double)in;
        products += 2.0 * (double)out * (double)in * group * CANDIDATES;
        if (w == BK_W_Q || w == BK_W_O || w == BK_W_GATE || w == BK_W_DOWN)
            products += 2.0 * (double)(samples * tokens) * (double)in * (double)in;
    }
    /* From the six sites on: about three whole passes for each candidate. */
    return products / (1e9 * r->gflops * SEARCH_SHARE) + (2 + BK_GRID_ROUNDS + 3.0 * CANDIDATES) * passes;
}

/* As if every place of the prefix were filled and every candidate taken through all blocks: the most that it can be.
 * Error needs the ranges first. */
static double search_seconds(const bk_estimator *e, const bk_rates *r)
{
    const bk_run_config *c = e->c;
    double windows = (double)search_samples(e) * (c->prefix.search.objective == BK_SEARCH_ERROR ? 2 : 1);
    double block = r->load_seconds + bk_estimate_forward(e, r, windows, c->data.detection.seqlen);
    int64_t candidates = c->prefix.search.candidates, tokens = c->prefix.search.max_tokens;
    return block * (double)bk_prefix_search_steps(candidates, tokens, e->cfg->layers);
}

static double train_seconds(const bk_estimator *e, const bk_rates *r)
{
    const bk_run_config *c = e->c;
    int64_t tokens = c->data.training.seqlen;
    double n = (double)e->n.training, epochs = (double)c->train.epochs, load = bk_estimate_load(e, r);
    double validation = e->n.validation ? (double)e->n.validation : n;
    double step = 3 * n * bk_forward_flops(e->cfg, tokens, e->prefix) / (1e9 * r->gflops * TRAIN_SHARE);
    bool both = c->train.target == BK_TARGET_BOTH, teaches = both || !shares_targets(e);
    int passes = (shares_targets(e) ? 1 : 2) + both;
    double targets = bk_estimate_forward(e, r, passes * (double)target_samples(e), tokens);
    double refresh = c->init.refresh ? init_seconds(e, r, c->init.search) : 0;
    double trained = targets + refresh + epochs * step + (epochs + 1) * bk_estimate_forward(e, r, validation, tokens);
    return (teaches ? 2 : 1) * load + (epochs > 0 ? trained : 0);
}

static void seconds(const bk_estimator *e, const bk_rates *r, bk_estimate *out)
{
    const bk_run_config *c = e->c;
    const bk_data_config *d = &c->data.detection;
    double layers = (double)e->cfg->layers, load = bk_estimate_load(e, r), *s = out->seconds,
           tables = 2.0 * (double)e->cfg->vocab * (double)e->cfg->hidden;
    double head_load = load * tables / 2 / (double)bk_config_block_weights(e->cfg);
    double windows = (double)e->n.evaluation, tokens = windows * (double)c->data.evaluation.seqlen;
    double row = layers * (load + bk_estimate_forward(e, r, windows, c->data.evaluation.seqlen)) + head_load +
                 tokens * tables / (1e9 * r->gflops * FORWARD_SHARE);
    double init = layers * (load + bk_estimate_gptq_seconds(e, r) + init_seconds(e, r, c->init.search)), *stage = out->stage_seconds;
    double pass = bk_estimate_forward(e, r, (double)target_samples(e), c->data.training.seqlen);
    s[BK_PART_EQUIVALENCE] = 2 * (layers * load + head_load);
    if (c->prefix.mode != BK_PREFIX_NONE) s[BK_PART_OUTLIERS] = layers * load;
    for (int k = 0; k < BK_STAGE_KINDS; k++)
        if (bk_stage_is_row((bk_stage_kind)k) && bk_stage_used((bk_stage_kind)k, c)) stage[k] = row;
    if (bk_run_config_detects(c))
        stage[BK_STAGE_OUTLIERS] =
            layers * (load + bk_estimate_forward(e, r, (double)e->n.detection, d->seqlen));
    if (bk_stage_used(BK_STAGE_PREFIX, c)) stage[BK_STAGE_PREFIX] = search_seconds(e, r);
    stage[BK_STAGE_FIT] = bk_estimate_fit_seconds(e, r);
    stage[BK_STAGE_INIT] = init;
    if (shares_targets(e)) stage[BK_STAGE_TARGETS] = layers * (load + pass);
    if (stage[BK_STAGE_ROW_SEARCH] > 0) stage[BK_STAGE_ROW_SEARCH] += layers * init_seconds(e, r, true);
    if (stage[BK_STAGE_ROW_NO_PREFIX] > 0) stage[BK_STAGE_ROW_NO_PREFIX] += init;
    s[BK_PART_OUTLIERS] += stage[BK_STAGE_OUTLIERS] + stage[BK_STAGE_PREFIX];
    s[BK_PART_FIT] = stage[BK_STAGE_FIT];
    s[BK_PART_INIT] = stage[BK_STAGE_INIT];
    s[BK_PART_TARGETS] = stage[BK_STAGE_TARGETS];
    s[BK_PART_TRAIN] = layers * train_seconds(e, r) + 2 * head_load;
    for (int k = 0; k < BK_STAGE_KINDS; k++)
        if (bk_stage_is_row((bk_stage_kind)k)) s[BK_PART_ROWS] += stage[k];
    s[BK_PART_EVALUATE] = row;
    for (int i = 0; i < BK_PART_COUNT; i++) out->total_seconds += s[i];
}

static double gemm_seconds(bk_ctx *ctx, const bk_gemm_args *a, int times)
{
    double best = INFINITY;
    for (int i = 0; i <= times; i++) { /* the first one warms up */
        double start = bk_seconds();
        if (bk_k_gemm(ctx, a)) break;
        double took = bk_seconds() - start;
        if (i && took < best) best = took;
    }
    return best;
}

bk_status bk_sgemm_gflops(const bk_backend *be, int64_t n, int times, double *out, bk_error *err)
{
    bk_ctx *ctx = bk_ctx_new(be, err);
    bk_tensor *m[3] = {NULL};
    bk_status st = ctx ? BK_OK : BK_ENOMEM;
    for (int i = 0; !st && i < 3; i++) st = bk_tensor_create(be, be->dtype, 2, (int64_t[]){n, n}, "matrix", &m[i], err);
    bk_gemm_args a = {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .a = bk_data(m[0]), .b = bk_data(m[1])};
    if (!st) {
        a.c = m[2]->data;
        st = bk_k_fill(ctx, &(bk_fill_args){.n = n * n, .value = 1.25, .x = m[0]->data});
    }
    if (!st) st = bk_k_fill(ctx, &(bk_fill_args){.n = n * n, .value = 0.75, .x = m[1]->data});
    if (!st) bk_ctx_measure(ctx);
    if (!st) st = bk_k_gemm(ctx, &a);
    if (!st) st = bk_ctx_commit(ctx);
    if (!st) *out = 2e-9 * (double)n * (double)n * (double)n / gemm_seconds(ctx, &a, times);
    if (!st) st = bk_ctx_status(ctx);
    for (int i = 0; i < 3; i++) bk_tensor_destroy(be, m[i]);
    bk_ctx_free(ctx);
    return st;
}

/* Seconds for one value of a row that a transform turns. */
static bk_status turn_seconds(const bk_hadamard_plan *p, double *out, bk_error *err)
{
    int64_t rows = 1 + (1 << 16) / p->n;
    *out = 0;
    float *x = calloc((size_t)(rows * p->n), sizeof *x);
    if (!x) return bk_fail(err, BK_ENOMEM, "no memory to measure a rotation");
    double start = bk_seconds();
    bk_status st = bk_hadamard_apply(p, NULL, x, rows, p->n, 1, err);
    *out = (bk_seconds() - start) / (double)(rows * p->n);
    free(x);
    return st;
}

bk_status bk_rates_measure(const bk_rotation *r, const bk_backend *be, bk_rates *out, bk_error *err)
{
    const bk_config *c = &r->after;
    double weights = (double)bk_config_block_weights(c), t;
    BK_TRY(bk_sgemm_gflops(be, 768, 12, &out->gflops, err));
    out->load_seconds = weights * READ_NS * 1e-9;
    if (r->on[BK_TRANSFORM_R1]) {
        BK_TRY(turn_seconds(r->hidden, &t, err));
        out->load_seconds += weights * t;
    }
    if (r->on[BK_TRANSFORM_R2]) {
        BK_TRY(turn_seconds(r->head, &t, err));
        out->load_seconds += t * (double)((c->heads + c->kv_heads) * c->head_dim * c->hidden);
    }
    if (r->on[BK_TRANSFORM_R4]) {
        BK_TRY(turn_seconds(r->inter, &t, err));
        out->load_seconds += t * (double)(c->inter * c->hidden);
    }
    return BK_OK;
}

/* --- all of it --- */

int64_t bk_estimate_prefix(const bk_run_config *c)
{
    return c->prefix.mode == BK_PREFIX_NONE ? 0 : c->prefix.mode == BK_PREFIX_GIVEN ? c->prefix.n_ids : FOUND_PREFIX;
}

bk_status bk_estimate_run(const bk_run_config *c, const bk_sample_counts *samples, const bk_rotation *rotation,
                          const bk_backend *be, const bk_rates *rates, bk_estimate *out, bk_error *err)
{
    bk_estimator e = {.c = c, .rotation = rotation, .cfg = &rotation->after, .dry = dry_backend(be), .n = *samples,
                   .quant = {c->quant.weight, c->quant.activation, c->quant.key, c->quant.value},
                   .prefix = bk_estimate_prefix(c), .err = err};
    *out = (bk_estimate){0};
    BK_TRY(memory(&e, out));
    BK_TRY(disk(&e, out));
    if (rates) seconds(&e, rates, out);
    return BK_OK;
}
