#include "blocks/prefix_search.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/op.h"
#include "blocks/init.h"
#include "blocks/prefix.h"

const char *const bk_search_objective_name[] = {[BK_SEARCH_ERROR] = "error", [BK_SEARCH_RATIO] = "ratio"};

/* --- candidates --- */

static bool holds(const int32_t *ids, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

int64_t bk_search_candidates(const bk_id_list *lists, int n_lists, int64_t room, int32_t *out)
{
    int64_t n = 0;
    bool more = true;
    for (int64_t turn = 0; more; turn++) {
        more = false;
        for (int l = 0; l < n_lists; l++) {
            if (turn >= lists[l].n || n == room) continue;
            int32_t id = lists[l].ids[turn];
            more = true;
            if (id >= 0 && !holds(out, n, id)) out[n++] = id;
        }
    }
    return n;
}

/* --- a judge: windows behind prefixes of one length, block by block --- */

typedef struct judge judge;

typedef struct objective {
    bk_tap tap;
    bk_status (*begin)(judge *j);              /* the block is loaded */
    bk_status (*end)(judge *j, double *value); /* the windows went through it */
    double (*join)(double sum, double value);  /* of the blocks before with this one: never less than the sum */
} objective;

struct judge {
    const bk_backend *be;
    const bk_source *src;
    const bk_config *cfg;
    const int32_t *ids;
    int64_t samples, tokens;
    const bk_search_options *opt;
    const objective *o;
    bk_error *err;
    bk_block_quant quant;
    bk_block_weights weights;
    bk_stream *h;
    bk_maxima maxima; /* of ratio */
    float *scratch;
    double *power;     /* of error: |Q(x) - x|^2 and |x|^2 of the tokens of a batch */
    double sum, sites; /* of error: relative errors of the present block */
    /* Of prefixes of n tokens. */
    int64_t n;
    bk_block *b;
    bk_ctx *init, *pass;
    bk_prefix_walk walk;
    float *k, *v; /* of the block that is running, [kv_heads, n, head_dim] */
};

/* --- objective: error of the quantizers --- */

static bool quantized(const judge *j, int site)
{
    return j->b->site[site].q && !(j->b->skip_sites >> site & 1);
}

static bk_status begin_error(judge *j)
{
    BK_TRY(bk_block_init(j->init, j->b, j->h, &(bk_init_options){.ema = j->opt->ema}, j->err));
    bk_block_quantize(j->b, false, false);
    j->sum = j->sites = 0;
    for (int i = 0; i < BK_SITE_COUNT; i++) j->sites += quantized(j, i);
    return BK_OK;
}

/* |row|^2 of x [rows, cols] to the host. */
static bk_status row_powers(judge *j, const bk_tensor *x, double *out)
{
    int64_t rows = bk_rows(x);
    bk_tensor *power = bk_tensor_new(j->pass, BK_F64, 1, &rows, "powers");
    if (!power) return j->err->code;
    bk_rowdot_args a = {.rows = rows, .cols = bk_last_dim(x), .a = x->data, .b = x->data, .out = power->data};
    BK_TRY(bk_k_rowdot(j->pass, &a));
    return bk_ctx_measuring(j->pass) ? BK_OK : bk_read_f64(j->be, power, 0, out, rows, j->err);
}

/* Adds the relative errors of the tokens; y becomes the error. */
static bk_status compare(judge *j, const bk_tensor *x, bk_tensor *y)
{
    int64_t rows = bk_rows(x);
    double *noise = j->power, *signal = j->power + rows;
    BK_TRY(bk_k_axpy(j->pass, &(bk_axpy_args){.n = bk_numel(x), .alpha = -1, .x = x->data, .y = y->data}));
    BK_TRY(row_powers(j, y, noise));
    BK_TRY(row_powers(j, x, signal));
    for (int64_t t = 0; t < rows && !bk_ctx_measuring(j->pass); t++) j->sum += signal[t] > 0 ? noise[t] / signal[t] : 0;
    return BK_OK;
}

static void error_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    judge *j = user;
    bk_qinst *q = &j->b->site[site];
    if (!quantized(j, site)) return;
    size_t mark = bk_step_mark(ctx);
    bk_tensor in = *x;
    q->on = true;
    bk_tensor *y = bk_qinst_apply(ctx, q, &in);
    q->on = false;
    if (y && compare(j, x, y)) return; /* the error is in the context */
    bk_step_release(ctx, mark);
}

static bk_status end_error(judge *j, double *value)
{
    *value = j->sites > 0 ? j->sum / (j->sites * (double)(j->samples * j->tokens * j->cfg->layers)) : 0;
    return BK_OK;
}

static double add(double sum, double value)
{
    return sum + value;
}

/* --- objective: ratio of magnitudes --- */

static bk_status begin_ratio(judge *j)
{
    bk_maxima_begin_block(&j->maxima);
    return BK_OK;
}

static void ratio_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    judge *j = user;
    bk_maxima_tap(ctx, &j->maxima, site, x);
}

static bk_status end_ratio(judge *j, double *value)
{
    *value = 0;
    for (int64_t i = 0; i < j->samples; i++) {
        double median = (double)bk_lower_median(j->maxima.at[BK_SITE_DOWN_RAW] + i * j->tokens, j->tokens, j->scratch);
        double most = (double)j->scratch[j->tokens - 1]; /* they are sorted now */
        *value += (most == median ? 1 : most / median) / (double)j->samples;
    }
    return BK_OK;
}

static const objective objectives[BK_SEARCH_OBJECTIVE_COUNT] = {
    [BK_SEARCH_ERROR] = {error_tap, begin_error, end_error, add},
    [BK_SEARCH_RATIO] = {ratio_tap, begin_ratio, end_ratio, fmax},
};

/* --- one prefix --- */

static void close_length(judge *j)
{
    if (j->n) bk_prefix_walk_close(&j->walk);
    bk_block_free(j->b);
    bk_ctx_free(j->init);
    bk_ctx_free(j->pass);
    free(j->k);
    j->b = NULL;
    j->init = j->pass = NULL;
    j->k = j->v = NULL;
    j->n = 0;
}

/* From here on for prefixes of n tokens. */
static bk_status open_length(judge *j, int64_t n)
{
    close_length(j);
    bk_block_options opt = {.quant = j->opt->objective == BK_SEARCH_ERROR ? &j->quant : NULL,
                            .r3 = bk_source_r3(j->src),
                            .r4 = bk_source_r4(j->src),
                            .prefix_len = n,
                            .tokens = j->tokens};
    int64_t size = j->cfg->kv_heads * n * j->cfg->head_dim;
    j->n = n;
    if (n) BK_TRY(bk_prefix_walk_open(&j->walk, j->be, j->src, n, j->err));
    if (n && !(j->k = malloc((size_t)size * 2 * sizeof *j->k)))
        return bk_fail(j->err, BK_ENOMEM, "no memory for a prefix");
    j->v = n ? j->k + size : NULL;
    BK_TRY(bk_block_create(&j->b, j->be, j->cfg, &opt, j->err));
    j->init = bk_ctx_new(j->be, j->err);
    j->pass = bk_ctx_new(j->be, j->err);
    if (!j->init || !j->pass) return BK_ENOMEM;
    bk_block_quantize(j->b, false, false);
    j->b->tap = j->o->tap;
    j->b->tap_user = j;
    bk_ctx_measure(j->pass);
    BK_TRY(bk_block_pass_measure(j->pass, j->b, j->samples, j->tokens));
    return bk_ctx_commit(j->pass);
}

static bk_status judge_block(judge *j, int64_t layer, double *value)
{
    BK_TRY(bk_source_block(j->src, layer, &j->weights, j->err));
    BK_TRY(bk_block_load(j->b, &j->weights, j->err));
    if (j->n) BK_TRY(bk_prefix_walk_block(&j->walk, &j->weights, j->k, j->v, j->err));
    BK_TRY(bk_block_set_prefix(j->b, j->k, j->v, j->err));
    j->b->skip_sites = j->opt->skip_sites ? j->opt->skip_sites[layer] : 0;
    BK_TRY(j->o->begin(j));
    j->b->tap = j->o->tap;
    j->b->tap_user = j;
    BK_TRY(bk_block_pass(j->pass, j->b, j->h, j->h, j->err));
    BK_TRY(j->err->code);
    BK_TRY(j->o->end(j, value));
    return isfinite(*value)
               ? BK_OK
               : bk_fail(j->err, BK_ENUMERIC, "the objective is not finite: activations are not, or have the median 0");
}

typedef struct progress {
    const bk_watch *watch;
    int64_t done, total;
} progress;

static bk_status show(const progress *p, int64_t more, bk_error *err)
{
    return bk_watch_step(p->watch, p->done + more, p->total, err);
}

/* The objective behind these tokens; what is at least `enough` may be less than the whole of it. */
static bk_status judge_prefix(judge *j, const int32_t *prefix, double enough, progress *p, double *value)
{
    double block;
    *value = 0;
    if (j->n) BK_TRY(bk_prefix_walk_begin(&j->walk, prefix, j->err));
    BK_TRY(bk_embed_stream(j->src, j->ids, j->h, j->err));
    for (int64_t l = 0; l < j->cfg->layers && *value < enough; l++) {
        BK_TRY(show(p, l, j->err));
        if (judge_block(j, l, &block)) return bk_error_prefix(j->err, "block %lld", (long long)l);
        *value = j->o->join(*value, block);
    }
    p->done += j->cfg->layers;
    return BK_OK;
}

/* --- the search --- */

static bk_status try_candidates(judge *j, const bk_id_list *candidates, int32_t *prefix, progress *p,
                                bk_search_step *step)
{
    step->id = -1;
    step->after = step->before;
    for (int64_t c = 0; c < candidates->n; c++) {
        double value;
        prefix[j->n - 1] = candidates->ids[c];
        if (judge_prefix(j, prefix, step->after, p, &value))
            return bk_error_prefix(j->err, "candidate token %d", candidates->ids[c]);
        if (!(value < step->after)) continue;
        step->id = candidates->ids[c];
        step->after = value;
    }
    return BK_OK;
}

static bk_status search(judge *j, const bk_id_list *candidates, const bk_watch *watch, bk_search_result *out)
{
    int32_t prefix[BK_PREFIX_MAX];
    progress p = {.watch = watch, .total = bk_prefix_search_steps(candidates->n, j->opt->max_tokens, j->cfg->layers)};
    bk_search_step step = {.id = -1};
    BK_TRY(open_length(j, 0));
    BK_TRY(judge_prefix(j, NULL, INFINITY, &p, &step.after));
    while (out->n < j->opt->max_tokens && !out->stopped) {
        step.before = step.after;
        BK_TRY(open_length(j, out->n + 1));
        BK_TRY(try_candidates(j, candidates, prefix, &p, &step));
        out->stopped = !(step.after < (1 - j->opt->tau) * step.before);
        prefix[out->n] = step.id;
        if (out->stopped) out->last = step;
        else out->step[out->n++] = step;
    }
    p.done = p.total;
    return show(&p, 0, j->err);
}

static bk_status check(judge *j, const bk_id_list *candidates)
{
    const bk_search_options *o = j->opt;
    int64_t longest = j->tokens + o->max_tokens;
    if (j->samples < 1 || j->tokens < 1) return bk_fail(j->err, BK_EINVAL, "there are no windows to judge a prefix by");
    if (candidates->n < 1) return bk_fail(j->err, BK_EINVAL, "there are no candidates for a prefix");
    BK_TRY(bk_prefix_check(candidates->ids, candidates->n, j->cfg->vocab, j->err));
    if (o->max_tokens < 1 || o->max_tokens > BK_PREFIX_MAX)
        return bk_fail(j->err, BK_EINVAL, "a prefix of %lld tokens: want 1 to %d", (long long)o->max_tokens,
                       BK_PREFIX_MAX);
    if (longest > j->cfg->max_positions)
        return bk_fail(j->err, BK_EINVAL,
                       "windows of %lld tokens behind a prefix of %lld go beyond the model's %lld positions",
                       (long long)j->tokens, (long long)o->max_tokens, (long long)j->cfg->max_positions);
    if (o->objective == BK_SEARCH_ERROR && j->quant.activation.bits >= 16 && j->quant.key.bits >= 16 &&
        j->quant.value.bits >= 16)
        return bk_fail(j->err, BK_EINVAL,
                       "neither activations nor keys nor values are quantized: there is no error to search by");
    return BK_OK;
}

static bk_status open_judge(judge *j)
{
    int64_t batch = bk_pass_batch(j->samples, j->tokens) * j->tokens;
    unsigned sites = j->opt->objective == BK_SEARCH_RATIO ? 1u << BK_SITE_DOWN_RAW : 0;
    BK_TRY(bk_weights_alloc(j->cfg, &j->weights, j->err));
    BK_TRY(bk_stream_create(&j->h, j->samples, j->tokens, j->cfg->hidden, j->err));
    BK_TRY(bk_maxima_create(&j->maxima, sites, j->samples, j->tokens, j->err));
    j->scratch = malloc((size_t)j->tokens * sizeof *j->scratch);
    j->power = malloc((size_t)batch * 2 * sizeof *j->power);
    return j->scratch && j->power ? BK_OK : bk_fail(j->err, BK_ENOMEM, "no memory for a search");
}

static void close_judge(judge *j)
{
    close_length(j);
    bk_weights_free(&j->weights);
    bk_stream_free(j->h);
    bk_maxima_free(&j->maxima);
    free(j->scratch);
    free(j->power);
}

bk_status bk_prefix_search(const bk_backend *be, const bk_source *src, const bk_id_list *candidates, const int32_t *ids,
                           int64_t samples, int64_t tokens, const bk_search_options *opt, const bk_watch *watch,
                           bk_search_result *out, bk_error *err)
{
    judge j = {.be = be,
               .src = src,
               .cfg = bk_source_config(src),
               .ids = ids,
               .samples = samples,
               .tokens = tokens,
               .opt = opt,
               .o = &objectives[opt->objective],
               .err = err};
    if (opt->quant) j.quant = *opt->quant;
    else j.quant.activation.bits = j.quant.key.bits = j.quant.value.bits = 16;
    j.quant.weight.bits = 16;
    *out = (bk_search_result){.n = 0};
    bk_status st = check(&j, candidates);
    if (!st) st = open_judge(&j);
    if (!st) st = search(&j, candidates, watch, out);
    close_judge(&j);
    return st ? bk_error_prefix(err, "search of a prefix") : BK_OK;
}

int64_t bk_prefix_search_steps(int64_t candidates, int64_t max_tokens, int64_t layers)
{
    return (1 + max_tokens * candidates) * layers;
}
