/* Perplexities of a run: the rows of the paper's ablation (table 5), and summary.json. Every row is kept in rows.json as soon as it is known. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "experiments/log.h"
#include "experiments/printable.h"
#include "experiments/run.h"
#include "io/sealed.h"

/* --- rows kept between kill and resume --- */

static bk_status save_rows(const bk_run *r, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_json *o = bk_json_object();
    for (int i = 0; i < r->n_rows; i++) bk_json_set(o, r->row[i].name, bk_json_of_num(r->row[i].ppl));
    bk_run_path(r, "rows.json", path, sizeof path);
    bk_status st = bk_sealed_save(o, path, err);
    bk_json_free(o);
    return st;
}

static bk_status known_row(const bk_run *r, const char *name, double *ppl, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_json *o;
    *ppl = NAN;
    bk_run_path(r, "rows.json", path, sizeof path);
    if (!bk_exists(path)) return BK_OK;
    bk_error why = {0};
    if (bk_sealed_load(path, &o, &why)) {
        if (why.code != BK_EFORMAT) return bk_fail(err, why.code, "%s", why.msg);
        bk_log(BK_LOG_WARN, "%s; its rows are computed again", why.msg);
        return BK_OK;
    }
    *ppl = bk_json_num(bk_json_get(o, name), NAN);
    bk_json_free(o);
    return BK_OK;
}

typedef bk_status (*row_fn)(bk_run *r, const bk_watch *watch, double *ppl, bk_error *err);

static bk_status compute(bk_run *r, const char *name, row_fn fn, double *ppl, bk_error *err)
{
    bk_watch watch = bk_run_begin_stage(r, name, 5, bk_model_config(r->lab.model)->layers);
    BK_TRY(fn(r, &watch, ppl, err));
    bk_run_end_stage(r);
    return BK_OK;
}

static bk_status save_shared(const bk_stage *s, double ppl, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *o = bk_json_object();
    bk_json_set(o, "ppl", bk_json_of_num(ppl));
    snprintf(path, sizeof path, "%s/row.json", s->work);
    bk_status st = bk_sealed_save(o, path, err);
    bk_json_free(o);
    return st;
}

static bk_status load_shared(const bk_stage *s, double *ppl, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *o;
    snprintf(path, sizeof path, "%s/row.json", s->dir);
    BK_TRY(bk_sealed_load(path, &o, err));
    *ppl = bk_json_num(bk_json_get(o, "ppl"), NAN);
    bk_json_free(o);
    return BK_OK;
}

/* A row that does not depend on the training is a stage: points of a sweep share it. */
static bk_status share(bk_run *r, bk_stage_kind kind, const char *name, row_fn fn, double *ppl, bk_error *err)
{
    bk_stage s = {.done = false};
    bk_status st = bk_run_stage_open(r, kind, &s, err);
    bool found = s.done;
    if (!st && found) bk_log(BK_LOG_INFO, "[5/5] %s: taken from %s", name, s.dir);
    if (!st && found) st = load_shared(&s, ppl, err);
    if (!st && !found) st = compute(r, name, fn, ppl, err);
    if (!st && !found) st = save_shared(&s, *ppl, err);
    if (!st && !found) st = bk_stage_commit(&s, err);
    bk_stage_close(&s);
    return st;
}

/* kind BK_STAGE_KINDS: of this run alone. */
static bk_status add_row(bk_run *r, bk_stage_kind kind, const char *name, row_fn fn, double *out, bk_error *err)
{
    double ppl;
    BK_TRY(known_row(r, name, &ppl, err));
    bool known = !isnan(ppl);
    bk_status st = known ? BK_OK : kind < BK_STAGE_KINDS ? share(r, kind, name, fn, &ppl, err) : compute(r, name, fn, &ppl, err);
    if (st) return bk_error_prefix(err, "row %s of %s on %s", name, r->cfg.model, r->cfg.data.evaluation.text);
    snprintf(r->row[r->n_rows].name, sizeof r->row[0].name, "%s", name);
    r->row[r->n_rows++].ppl = ppl;
    if (out) *out = ppl;
    return known ? BK_OK : save_rows(r, err);
}

/* --- the rows --- */

static bk_status run_row(bk_run *r, const bk_source *src, bool prefixed, const bk_block_quant *quant, bool search, const bk_watch *watch, double *ppl, bk_error *err)
{
    bk_ppl p;
    bool as_initialised = quant == &r->quant; /* the run's own initialisation, but for what the row leaves out */
    bk_row row = {.src = src, .prefix = prefixed ? &r->prefix : NULL, .quant = quant, .skips = &r->cfg, .calibration = &r->calibration,
                  .gptq = as_initialised ? bk_run_gptq(r) : NULL, .statistics = &r->statistics,
                  .init = {.search = search, .ema = r->cfg.init.range == BK_RANGE_EMA}};
    BK_TRY(bk_row_run(r->lab.be, &row, &r->evaluation, NULL, NULL, watch, &p, err));
    *ppl = p.ppl;
    return BK_OK;
}

static bk_status row_fp(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    return run_row(r, r->plain, false, NULL, false, w, ppl, err);
}

static bk_status row_fp_prefix(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    return run_row(r, r->src, true, NULL, false, w, ppl, err);
}

/* The same bits with ranges per token (and head), as the ablation's dynamic rows have them. */
static bk_block_quant dynamic_of(const bk_block_quant *q, bool clip)
{
    bk_block_quant d = *q;
    bk_qspec *spec[] = {&d.activation, &d.key, &d.value};
    for (int i = 0; i < 3; i++) {
        snprintf(spec[i]->quantizer, sizeof spec[i]->quantizer, "dynamic");
        bk_qspec_defaults(spec[i]);
        spec[i]->granularity = spec[i] == &d.activation ? BK_PER_TOKEN : BK_PER_HEAD;
        spec[i]->group = 0;
        spec[i]->clip = clip && spec[i] != &d.key;
    }
    return d;
}

static bk_status row_rtn(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    bk_block_quant d = dynamic_of(&r->quant, false);
    return run_row(r, r->plain, false, &d, false, w, ppl, err);
}

static bk_status row_rotation(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    bk_block_quant d = dynamic_of(&r->quant, false);
    return run_row(r, r->src, false, &d, false, w, ppl, err);
}

static bk_status row_search(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    bk_block_quant d = dynamic_of(&r->quant, true);
    return run_row(r, r->src, false, &d, true, w, ppl, err);
}

static bk_status row_without_prefix(bk_run *r, const bk_watch *w, double *ppl, bk_error *err)
{
    return run_row(r, r->src, false, &r->quant, r->cfg.init.search, w, ppl, err);
}

/* The initialised model: full-precision weights, parameters of the stage `init`. */
typedef struct init_loader {
    bk_run *r;
    bk_block_weights w;
    bk_ctx *ctx;
} init_loader;

static bk_status load_init(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    init_loader *l = user;
    BK_TRY(bk_run_load_init(l->r, layer, &l->w, b, err));
    bk_ctx_measure(l->ctx);
    BK_TRY(bk_block_harden(l->ctx, b));
    BK_TRY(bk_ctx_commit(l->ctx));
    bk_block_quantize(b, true, true);
    return bk_block_harden(l->ctx, b);
}

static bk_status row_init(bk_run *r, const bk_watch *watch, double *ppl, bk_error *err)
{
    bk_block *b = NULL;
    bk_ppl p = {0};
    init_loader l = {.r = r};
    l.ctx = bk_ctx_new(r->lab.be, err);
    bk_status st = l.ctx ? bk_weights_alloc(bk_source_config(r->src), &l.w, err) : BK_ENOMEM;
    if (!st) st = bk_run_block(r, true, false, false, r->evaluation.seqlen, &b, err);
    if (!st) st = bk_perplexity(r->src, b, &(bk_loader){load_init, &l}, r->evaluation.ids, r->evaluation.n, r->evaluation.seqlen, watch, &p, err);
    *ppl = p.ppl;
    bk_block_free(b);
    bk_ctx_free(l.ctx);
    bk_weights_free(&l.w);
    return st;
}

/* The model that was written, read back: the number that `brick eval` gives. */
static bk_status row_final(bk_run *r, const bk_watch *watch, double *ppl, bk_error *err)
{
    char dir[BK_RUN_PATH];
    bk_lab lab = {0};
    bk_ppl p = {0};
    bk_run_path(r, "model", dir, sizeof dir);
    bk_status st = bk_lab_open(&lab, dir, r->lab.be, err);
    if (!st) st = bk_lab_quantized_ppl(&lab, &r->evaluation, watch, &p, err);
    *ppl = p.ppl;
    bk_lab_close(&lab);
    return st;
}

/* What the initialised model is called beside the other rows. */
static const char *init_row(const bk_run *r)
{
    bool prefixed = r->prefix.n > 0;
    if (!(r->cfg.evaluate & BK_EVALUATE_ABLATION)) return "initialised";
    if (!bk_qspec_needs_range(&r->quant.activation)) return prefixed ? "+prefix" : "initialised";
    return prefixed ? "static+search with prefix" : "static+search without prefix";
}

/* Where nothing but weights is quantized, no range is dynamic. */
static bool weights_only(const bk_block_quant *q)
{
    return q->activation.bits >= 16 && q->key.bits >= 16 && q->value.bits >= 16;
}

bk_status bk_run_rows(bk_run *r, bk_error *err)
{
    bool w = weights_only(&r->quant);
    const struct {
        bk_stage_kind kind;
        const char *name;
        row_fn fn;
        double *out;
    } all[] = {{BK_STAGE_ROW_FP, "fp", row_fp, &r->ppl_fp},
               {BK_STAGE_ROW_PREFIX, "fp+prefix", row_fp_prefix, &r->ppl_fp_prefix},
               {BK_STAGE_ROW_RTN, w ? "RTN" : "RTN (dynamic)", row_rtn, NULL},
               {BK_STAGE_ROW_ROTATION, w ? "+rotation" : "+rotation (dynamic)", row_rotation, NULL},
               {BK_STAGE_ROW_SEARCH, w ? "+search" : "+search (dynamic)", row_search, NULL},
               {BK_STAGE_ROW_NO_PREFIX, "static+search without prefix", row_without_prefix, NULL},
               {BK_STAGE_ROW_INIT, init_row(r), row_init, &r->ppl_init}};
    r->ppl_fp = r->ppl_fp_prefix = r->ppl_init = r->ppl_final = NAN;
    r->n_rows = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        bool about_prefix = all[i].kind == BK_STAGE_ROW_PREFIX || all[i].kind == BK_STAGE_ROW_NO_PREFIX;
        if (!bk_stage_used(all[i].kind, &r->cfg) || (about_prefix && r->prefix.n == 0)) continue; /* none was found */
        BK_TRY(add_row(r, all[i].kind, all[i].name, all[i].fn, all[i].out, err));
    }
    return BK_OK;
}

bk_status bk_run_evaluate(bk_run *r, bk_error *err)
{
    const char *name = r->cfg.train.epochs > 0 ? "+training" : "exported"; /* without training: the row before, read back */
    return add_row(r, BK_STAGE_KINDS, name, row_final, &r->ppl_final, err);
}

/* --- what is left of it --- */

static void print_table(const bk_json *summary)
{
    const bk_json *table = bk_json_get(summary, "table"), *prefix = bk_json_get(bk_json_get(summary, "prefix"), "text");
    double fp = bk_json_num(bk_json_get(bk_json_get(summary, "ppl"), "fp"), NAN);
    printf("\n%-30s %12s %14s\n", "row", "perplexity", "ln(ppl/ppl.fp)");
    for (size_t i = 0; i < bk_json_size(table); i++) {
        const bk_json *row = bk_json_at(table, i);
        double ppl = bk_json_num(bk_json_get(row, "ppl"), NAN);
        printf("%-30s %12.4f %14.4f\n", bk_json_str(bk_json_get(row, "row"), ""), ppl, log(ppl / fp));
    }
    char line[1024], shown[1024];
    snprintf(line, sizeof line, "%s, %s, %s; prefix of %zu tokens", bk_json_str(bk_json_get(summary, "model"), ""),
             bk_json_str(bk_json_get(summary, "scheme"), ""), bk_json_str(bk_json_get(summary, "protocol"), ""), bk_json_size(prefix));
    printf("\n%s\n", bk_visible(line, strlen(line), shown, sizeof shown));
}

bk_status bk_run_print_result(const bk_run *r, bool json, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_json *summary;
    bk_run_path(r, "summary.json", path, sizeof path);
    BK_TRY(bk_json_load(path, &summary, err));
    char *text = json ? bk_json_dump(summary, 2) : NULL;
    if (json) puts(text ? text : "");
    else print_table(summary);
    free(text);
    bk_json_free(summary);
    return BK_OK;
}

static int64_t peak_rss(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

static bk_json *blocks_json(const bk_run *r)
{
    bk_json *a = bk_json_array();
    for (int64_t l = 0; l < bk_model_config(r->lab.model)->layers; l++) {
        const bk_block_result *b = &r->block[l];
        bool trained = r->cfg.train.epochs > 0;
        bk_json *o = bk_json_object();
        bk_json_set(o, "block", bk_json_of_int(l));
        bk_json_set(o, "loss_init", trained ? bk_json_of_num(b->loss_init) : bk_json_null());
        bk_json_set(o, "loss_final", trained ? bk_json_of_num(b->loss_final) : bk_json_null());
        bk_json_set(o, "epoch_kept", bk_json_of_int(b->epoch_kept));
        bk_json_set(o, "halvings", bk_json_of_int(b->halvings));
        bk_json_set(o, "steps_floored", bk_json_of_int(b->floored));
        bk_json_set(o, "fell_back", bk_json_of_bool(b->fell_back));
        bk_json_set(o, "seconds", bk_json_of_num(b->seconds));
        bk_json_push(a, o);
    }
    return a;
}

static bk_json *prefix_json(const bk_run *r)
{
    bk_json *o = bk_json_object(), *ids = bk_json_array(), *text = bk_json_array();
    for (int64_t i = 0; i < r->prefix.n; i++) {
        char *s = NULL;
        size_t len = 0;
        bk_json_push(ids, bk_json_of_int(r->prefix.ids[i]));
        if (bk_tokenizer_decode(r->lab.tok, &r->prefix.ids[i], 1, false, &s, &len, NULL)) s = NULL, len = 0;
        bk_json_push(text, bk_json_of_str(s ? s : "", len));
        free(s);
    }
    bk_json_set(o, "ids", ids);
    bk_json_set(o, "text", text);
    return o;
}

/* Of the quantized blocks, steps and zero points included; the file has the codes in bytes. */
static bk_json *bits_json(const bk_run *r)
{
    bk_effective_bits bits = bk_block_bits(bk_source_config(r->src), &r->quant);
    bk_json *o = bk_json_object();
    bk_json_set(o, "weight", bk_json_of_num(bits.weight));
    bk_json_set(o, "activation", bk_json_of_num(bits.activation));
    bk_json_set(o, "cache", bk_json_of_num(bits.cache));
    return o;
}

static bk_json *gptq_json(const bk_gptq_summary *g)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "linears", bk_json_of_int(g->linears));
    bk_json_set(o, "fell_back", bk_json_of_int(g->fell_back));
    bk_json_set(o, "damped", bk_json_of_int(g->damped));
    bk_json_set(o, "dead", bk_json_of_int(g->dead));
    return o;
}

const char *const bk_run_stage_name[BK_RUN_STAGES] = {"load",  "equivalence", "outliers", "fit", "init", "targets",
                                                         "train", "rows",        "evaluate", "total"};

bk_status bk_run_write_summary(bk_run *r, bk_error *err)
{
    char protocol[300];
    bk_json *root = bk_json_object(), *ppl = bk_json_object(), *table = bk_json_array(), *seconds = bk_json_object();
    const char *model = bk_model_name(r->lab.model);
    bk_json_set(ppl, "fp", bk_json_of_num(r->ppl_fp));
    bk_json_set(ppl, "fp_prefix", bk_json_of_num(r->ppl_fp_prefix));
    bk_json_set(ppl, "init", bk_json_of_num(r->ppl_init));
    bk_json_set(ppl, "final", bk_json_of_num(r->ppl_final));
    for (int i = 0; i < r->n_rows; i++) {
        bk_json *o = bk_json_object();
        bk_json_set(o, "row", bk_json_of_text(r->row[i].name));
        bk_json_set(o, "ppl", bk_json_of_num(r->row[i].ppl));
        bk_json_push(table, o);
    }
    for (int i = 0; i < BK_RUN_STAGES; i++) bk_json_set(seconds, bk_run_stage_name[i], bk_json_of_num(r->seconds[i]));
    bk_json_set(root, "model", bk_json_of_text(model));
    bk_json_set(root, "scheme", bk_json_of_text(r->cfg.scheme));
    bk_json_set(root, "seed", bk_json_of_int(r->cfg.seed));
    snprintf(protocol, sizeof protocol, "%lld windows of %lld tokens of %.200s", (long long)r->evaluation.n, (long long)r->evaluation.seqlen,
             r->cfg.data.evaluation.text);
    bk_json_set(root, "protocol", bk_json_of_text(protocol));
    bk_json_set(root, "bits", bits_json(r));
    if (bk_run_gptq(r)) bk_json_set(root, "gptq", gptq_json(&r->gptq));
    bk_json_set(root, "prefix", prefix_json(r));
    bk_json_set(root, "ppl", ppl);
    bk_json_set(root, "table", table);
    bk_json_set(root, "blocks", blocks_json(r));
    bk_json_set(root, "seconds", seconds);
    bk_json_set(root, "peak_rss_bytes", bk_json_of_int(peak_rss()));
    char *text = bk_json_dump(root, 2);
    bk_json_free(root);
    bk_status st = text ? bk_run_finish(r, text, err) : bk_fail(err, BK_ENOMEM, "no memory for summary.json");
    free(text);
    return st;
}
