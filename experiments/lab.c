#include "experiments/lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/sums.h"

/* An input file that brick cannot use, not a wrong command. */
static bk_status as_input(bk_status st, bk_error *err)
{
    if (st != BK_EUNSUP) return st;
    if (err) err->code = BK_EFORMAT;
    return BK_EFORMAT;
}

static bk_status tokenizer_of(const char *model, bk_tokenizer **out, bk_error *err)
{
    static const char *const inside[] = {"", "/model"};
    for (int i = 0; bk_is_dir(model) && i < 2; i++) {
        char dir[BK_PATH_SIZE + 8], file[BK_PATH_SIZE + 32];
        snprintf(dir, sizeof dir, "%s%s", model, inside[i]);
        snprintf(file, sizeof file, "%s/tokenizer.json", dir);
        if (bk_exists(file)) return bk_tokenizer_from_folder(dir, out, err);
    }
    if (bk_is_dir(model)) return BK_OK;
    bk_gguf *g;
    BK_TRY(bk_gguf_open(model, &g, err));
    bk_status st = bk_tokenizer_from_gguf(g, out, err);
    bk_gguf_close(g);
    return st;
}

bk_status bk_lab_tokenizer(const char *model, bk_tokenizer **out, bk_error *err)
{
    size_t n = strlen(model);
    *out = NULL;
    if (!bk_exists(model) || (n > 5 && !strcmp(model + n - 5, ".json"))) return BK_OK;
    return as_input(tokenizer_of(model, out, err), err);
}

static bk_status open_files(bk_lab *lab, const char *model, bk_error *err)
{
    BK_TRY(bk_model_open(model, &lab->model, err));
    const bk_gguf *g = bk_model_gguf(lab->model);
    BK_TRY(g ? bk_tokenizer_from_gguf(g, &lab->tok, err)
             : bk_tokenizer_from_folder(bk_model_dir(lab->model), &lab->tok, err));
    if (!bk_model_quantized(lab->model)) return BK_OK;
    const char *dir = bk_model_dir(lab->model);
    if (bk_sums_there(dir)) BK_TRY(bk_sums_check(dir, err)); /* else the run did not get so far */
    return bk_quantized_open(lab->model, &lab->quantized, err);
}

bk_status bk_lab_open(bk_lab *lab, const char *model, const bk_backend *be, bk_error *err)
{
    int64_t bos, eos;
    *lab = (bk_lab){.be = be, .bos = -1};
    BK_TRY(as_input(open_files(lab, model, err), err));
    int64_t vocab = bk_model_config(lab->model)->vocab;
    if (bk_tokenizer_size(lab->tok) > vocab)
        return bk_fail(err, BK_EFORMAT, "%s: the tokenizer has %lld tokens, the embedding %lld rows", model,
                       (long long)bk_tokenizer_size(lab->tok), (long long)vocab);
    bk_model_bos_eos(lab->model, &bos, &eos);
    int64_t candidates[] = {bk_tokenizer_bos(lab->tok), bos, bk_tokenizer_eos(lab->tok), eos};
    for (int i = 0; i < 4 && lab->bos < 0; i++) lab->bos = candidates[i];
    return BK_OK;
}

void bk_lab_close(bk_lab *lab)
{
    bk_quantized_close(lab->quantized);
    bk_tokenizer_free(lab->tok);
    bk_model_close(lab->model);
    *lab = (bk_lab){0};
}

bk_rotation_spec bk_run_rotation(const bk_run_config *c, const bk_config *shapes, const bk_fitted *fitted, const bk_backend *be)
{
    return (bk_rotation_spec){.r1 = c->rotation.r1, .r2 = c->rotation.r2, .r3 = c->rotation.r3, .r4 = c->rotation.r4,
                              .fold_v_bias = c->rotation.fold_v_bias, .r2_per_kv_head = c->rotation.r2_per_head,
                              .r4_group = bk_run_r4_group(c, shapes->inter), .seed = (uint64_t)c->seed, .fitted = fitted, .be = be};
}

bk_status bk_rotation_parse(const char *text, bk_rotation_spec *out, bk_error *err)
{
    static const char *const name[] = {"r1", "r2", "r3", "r4"};
    bool *field[] = {&out->r1, &out->r2, &out->r3, &out->r4};
    *out = (bk_rotation_spec){0};
    if (!strcmp(text, "none")) return BK_OK;
    if (!strcmp(text, "all")) {
        out->r1 = out->r2 = out->r3 = out->r4 = true;
        return BK_OK;
    }
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        int i = 0;
        while (i < 4 && (strlen(name[i]) != n || strncmp(p, name[i], n))) i++;
        if (i == 4)
            return bk_fail(err, BK_EINVAL, "rotation '%.*s': want none, all, or a list of r1, r2, r3, r4", (int)n, p);
        *field[i] = true;
        p += n + (p[n] == ',');
    }
    return BK_OK;
}

bk_status bk_prefix_parse(const char *text, bool *automatic, int32_t *ids, int64_t *n, bk_error *err)
{
    *automatic = !strcmp(text, "auto");
    *n = 0;
    if (*automatic || !strcmp(text, "none")) return BK_OK;
    for (const char *p = text; *p;) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || v < 0 || v > INT32_MAX || *n == BK_PREFIX_MAX)
            return bk_fail(err, BK_EINVAL, "prefix '%.60s': want none, auto, or at most %d token ids like 1,2,3", text,
                           BK_PREFIX_MAX);
        ids[(*n)++] = (int32_t)v;
        p = *end ? end + 1 : end;
    }
    return *n ? BK_OK : bk_fail(err, BK_EINVAL, "the prefix is empty; say none");
}

bk_status bk_lab_text(const bk_lab *lab, const char *path, const bk_text_policy *policy, bool prefixed, bk_text *out,
                      bk_error *err)
{
    bk_text_options opt = {.bos = policy->bos_auto && !prefixed && bk_tokenizer_add_bos(lab->tok),
                           .parse_special = policy->parse_special,
                           .strip_bos = policy->strip_bos,
                           .join = policy->join && *policy->join ? policy->join : NULL};
    return bk_text_load(path, lab->tok, &opt, out, err);
}

const char *bk_bos_in_force(const bk_lab *lab, const bk_ledger *text, const bk_text_policy *policy, bool prefixed)
{
    if (text->bos_inside && !policy->strip_bos) return "kept";
    if (prefixed) return "prefix";
    return policy->bos_auto && bk_tokenizer_add_bos(lab->tok) ? "added" : "none";
}

static bk_status progress_step(void *user, int64_t done, int64_t total, bk_error *err)
{
    bk_progress *p = user;
    (void)total;
    if (done > p->done) bk_progress_step(p, done - p->done);
    return bk_check_cancelled(err);
}

bk_watch bk_watch_progress(bk_progress *p)
{
    return (bk_watch){progress_step, p};
}

/* --- rows --- */

bool bk_row_needs_calibration(const bk_block_quant *q, const bk_init_options *init)
{
    return q && (init->search || bk_block_needs_ranges(q));
}

void bk_skip_masks(const bk_run_config *c, int64_t layer, unsigned *sites, unsigned *weights)
{
    *sites = *weights = 0;
    for (int i = 0; c && i < BK_SITE_COUNT; i++)
        *sites |= (unsigned)bk_run_config_skips(c, layer, bk_site_name[i]) << i;
    for (int i = 0; c && i < BK_W_COUNT; i++)
        *weights |= (unsigned)bk_run_config_skips(c, layer, bk_linear_name[i]) << i;
}

bk_status bk_skip_lists(const bk_run_config *c, int64_t layers, unsigned **out, bk_error *err)
{
    unsigned *sites = malloc(2 * (size_t)layers * sizeof *sites);
    if (!(*out = sites)) return bk_fail(err, BK_ENOMEM, "no memory for the masks of %lld blocks", (long long)layers);
    for (int64_t l = 0; l < layers; l++) bk_skip_masks(c, l, &sites[l], &sites[layers + l]);
    return BK_OK;
}

typedef struct row_run {
    const bk_backend *be;
    const bk_row *row;
    bk_row_hook hook;
    void *user;
    bk_block *b;
    bk_block_weights weights;
    bk_stream *calibration, *statistics, *eval;
    bk_ctx *init_ctx, *run_ctx;
} row_run;

static bk_status load_block(row_run *r, int64_t layer, bk_error *err)
{
    const bk_prefix *p = r->row->prefix;
    bk_skip_masks(r->row->skips, layer, &r->b->skip_sites, &r->b->skip_weights);
    BK_TRY(bk_source_block(r->row->src, layer, &r->weights, err));
    BK_TRY(bk_block_load(r->b, &r->weights, err));
    return p && p->n ? bk_block_set_prefix(r->b, bk_prefix_k(p, layer), bk_prefix_v(p, layer), err) : BK_OK;
}

static bk_status pass(row_run *r, bk_stream *s, bk_error *err)
{
    bk_ctx_measure(r->run_ctx);
    BK_TRY(bk_block_pass_measure(r->run_ctx, r->b, bk_stream_samples(s), bk_stream_tokens(s)));
    BK_TRY(bk_ctx_commit(r->run_ctx));
    return bk_block_pass(r->run_ctx, r->b, s, s, err);
}

void bk_warn_silent(const bk_block *b, int64_t layer)
{
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (b->silent[i])
            bk_log(BK_LOG_WARN, "block %lld, %s: %lld of %lld measured ranges hold nothing but zeros on the calibration samples; their step is 1",
                   (long long)layer, bk_site_name[i], (long long)b->silent[i], (long long)b->site[i].q->units(b->site[i].state.bytes));
}

/* Hessians see rounded weights, and quantized activations only on request; so does what goes on to the next block. */
static bk_status pass_statistics(row_run *r, bk_error *err)
{
    bk_block_quantize(r->b, false, r->row->gptq->act_quant);
    bk_status st = pass(r, r->statistics, err);
    bk_block_quantize(r->b, false, true);
    return st;
}

static void warn_linear(const char *name, const bk_gptq_report *g, int64_t layer, int64_t width, double percdamp)
{
    if (g->dead == width) bk_log(BK_LOG_WARN, "block %lld, %s: its inputs are 0 on all samples; rounded to nearest", (long long)layer, name);
    else if (g->fell_back)
        bk_log(BK_LOG_WARN, "block %lld, %s: no damping made the Hessian positive definite; rounded to nearest", (long long)layer, name);
    else if (g->damping > percdamp)
        bk_log(BK_LOG_WARN, "block %lld, %s: the Hessian needed a damping of %g", (long long)layer, name, g->damping);
}

/* One line for all linears of a block. */
static void warn_dead(const bk_block *b, const bk_gptq_report report[BK_W_COUNT], int64_t layer)
{
    char list[256] = "";
    for (int w = 0; w < BK_W_COUNT; w++) {
        size_t n = strlen(list);
        if (report[w].done && report[w].dead && report[w].dead < b->w[w]->dim[1])
            snprintf(list + n, sizeof list - n, "%s%lld of %s", n ? ", " : "", (long long)report[w].dead, bk_linear_name[w]);
    }
    if (*list) bk_log(BK_LOG_WARN, "block %lld: input channels that are 0 on all samples, whose weights became 0: %s", (long long)layer, list);
}

static void warn_gptq(const bk_block *b, const bk_gptq_report report[BK_W_COUNT], int64_t layer, const bk_block_gptq_options *opt)
{
    for (int w = 0; w < BK_W_COUNT; w++)
        if (report[w].done) warn_linear(bk_linear_name[w], &report[w], layer, b->w[w]->dim[1], opt->percdamp);
    warn_dead(b, report, layer);
}

/* Weights first, the quantizers of activations on what is left of them; the other way round where the Hessians are to see quantized activations. */
static bk_status init_with_gptq(row_run *r, int64_t layer, bk_gptq_report report[BK_W_COUNT], bk_error *err)
{
    const bk_block_gptq_options *opt = r->row->gptq;
    bk_init_options rest = r->row->init;
    rest.keep_weights = true;
    if (opt->act_quant) BK_TRY(bk_block_init(r->init_ctx, r->b, r->calibration, &r->row->init, err));
    BK_TRY(bk_block_gptq(r->init_ctx, r->b, r->statistics, opt, report, err));
    warn_gptq(r->b, report, layer, opt);
    return opt->act_quant ? BK_OK : bk_block_init(r->init_ctx, r->b, r->calibration, &rest, err);
}

static bk_status row_block(row_run *r, int64_t layer, bk_error *err)
{
    bk_gptq_report report[BK_W_COUNT] = {{0}};
    BK_TRY(load_block(r, layer, err));
    if (r->row->gptq) BK_TRY(init_with_gptq(r, layer, report, err));
    else if (r->row->quant) BK_TRY(bk_block_init(r->init_ctx, r->b, r->calibration, &r->row->init, err));
    bk_warn_silent(r->b, layer);
    if (r->hook) BK_TRY(r->hook(r->user, r->b, layer, r->row->gptq ? report : NULL, err));
    bool more = layer + 1 < r->b->cfg.layers;
    if (r->row->quant && (r->eval || more)) {
        /* Weights are quantized once, not once a batch. */
        bk_ctx_measure(r->init_ctx);
        BK_TRY(bk_block_harden(r->init_ctx, r->b));
        bk_block_quantize(r->b, true, true);
        BK_TRY(bk_ctx_commit(r->init_ctx));
        BK_TRY(bk_block_harden(r->init_ctx, r->b));
    }
    if (r->calibration && more) BK_TRY(pass(r, r->calibration, err));
    if (r->statistics && more) BK_TRY(pass_statistics(r, err));
    return r->eval ? pass(r, r->eval, err) : BK_OK;
}

static bk_status prepare(row_run *r, const bk_samples *eval, bk_error *err)
{
    const bk_config *cfg = bk_source_config(r->row->src);
    const bk_samples *cal = bk_row_needs_calibration(r->row->quant, &r->row->init) ? r->row->calibration : NULL;
    const bk_samples *stat = r->row->gptq ? r->row->statistics : NULL;
    int64_t tokens = eval ? eval->seqlen : 1;
    if (cal && cal->seqlen > tokens) tokens = cal->seqlen;
    if (stat && stat->seqlen > tokens) tokens = stat->seqlen;
    bk_block_options opt = {.quant = r->row->quant, .r3 = bk_source_r3(r->row->src), .r4 = bk_source_r4(r->row->src),
                            .prefix_len = r->row->prefix ? r->row->prefix->n : 0, .tokens = tokens};
    BK_TRY(bk_weights_alloc(cfg, &r->weights, err));
    BK_TRY(bk_block_create(&r->b, r->be, cfg, &opt, err));
    if (cal) BK_TRY(bk_stream_create(&r->calibration, cal->n, cal->seqlen, cfg->hidden, err));
    else if (r->row->quant) BK_TRY(bk_stream_create(&r->calibration, 0, 1, cfg->hidden, err));
    if (cal) BK_TRY(bk_embed_stream(r->row->src, cal->ids, r->calibration, err));
    if (stat) BK_TRY(bk_stream_create(&r->statistics, stat->n, stat->seqlen, cfg->hidden, err));
    if (stat) BK_TRY(bk_embed_stream(r->row->src, stat->ids, r->statistics, err));
    if (eval) BK_TRY(bk_stream_create(&r->eval, eval->n, eval->seqlen, cfg->hidden, err));
    if (eval) BK_TRY(bk_embed_stream(r->row->src, eval->ids, r->eval, err));
    r->init_ctx = bk_ctx_new(r->be, err);
    r->run_ctx = bk_ctx_new(r->be, err);
    return r->init_ctx && r->run_ctx ? BK_OK : BK_ENOMEM;
}

static bk_status row_blocks(row_run *r, const bk_watch *watch, bk_error *err)
{
    int64_t layers = r->b->cfg.layers;
    for (int64_t l = 0; l < layers; l++) {
        if (watch) BK_TRY(watch->step(watch->user, l, layers, err));
        if (row_block(r, l, err)) return bk_error_prefix(err, "block %lld", (long long)l);
    }
    return watch ? watch->step(watch->user, layers, layers, err) : BK_OK;
}

bk_status bk_row_run(const bk_backend *be, const bk_row *row, const bk_samples *eval, bk_row_hook hook, void *user,
                     const bk_watch *watch, bk_ppl *out, bk_error *err)
{
    row_run r = {.be = be, .row = row, .hook = hook, .user = user};
    bk_status st = prepare(&r, eval, err);
    if (!st) st = row_blocks(&r, watch, err);
    if (!st && eval) st = bk_score(r.run_ctx, row->src, r.eval, eval->ids, out, err);
    bk_weights_free(&r.weights);
    bk_block_free(r.b);
    bk_stream_free(r.calibration);
    bk_stream_free(r.statistics);
    bk_stream_free(r.eval);
    bk_ctx_free(r.init_ctx);
    bk_ctx_free(r.run_ctx);
    return st;
}

bk_status bk_lab_quantized_ppl(const bk_lab *lab, const bk_samples *eval, const bk_watch *watch, bk_ppl *out,
                               bk_error *err)
{
    bk_quantized *q = lab->quantized;
    bk_source *src = NULL;
    bk_block *b = NULL;
    BK_TRY(bk_source_open(lab->model, NULL, &src, err));
    bk_block_options opt = {.quant = bk_quantized_quant(q), .r3 = bk_quantized_r3(q), .r4 = bk_quantized_r4(q),
                            .prefix_len = bk_quantized_prefix(q)->n, .tokens = eval->seqlen};
    bk_status st = bk_block_create(&b, lab->be, bk_source_config(src), &opt, err);
    if (!st)
        st = bk_perplexity(src, b, &(bk_loader){bk_quantized_load, q}, eval->ids, eval->n, eval->seqlen, watch, out,
                           err);
    bk_block_free(b);
    bk_source_close(src);
    return st;
}
