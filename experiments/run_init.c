/* The stage `init` of a run: a file for each block with what its quantizers start from, and what GPTQ had to say (gptq.json). */
#include <stdio.h>

#include "blocks/params_file.h"
#include "experiments/log.h"
#include "experiments/run.h"

const bk_block_gptq_options *bk_run_gptq(const bk_run *r)
{
    return r->cfg.init.from == BK_INIT_GPTQ ? &r->cfg.gptq : NULL;
}

static void stage_file(const bk_run *r, const char *name, char to[BK_STAGE_FILE])
{
    snprintf(to, BK_STAGE_FILE, "%s/%s", r->init.done ? r->init.dir : r->init.work, name);
}

static void block_file(const bk_run *r, int64_t layer, char to[BK_STAGE_FILE])
{
    char name[32];
    snprintf(name, sizeof name, "%03lld.h5", (long long)layer);
    stage_file(r, name, to);
}

bk_status bk_run_load_init(bk_run *r, int64_t layer, bk_block_weights *w, bk_block *b, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_skip_masks(&r->cfg, layer, &b->skip_sites, &b->skip_weights);
    BK_TRY(bk_run_load_fp(r, layer, w, b, err));
    block_file(r, layer, path);
    BK_TRY(bk_run_own_file(bk_params_load(b, layer, bk_run_gptq(r) != NULL, path, err), err));
    bk_block_quantize(b, true, true);
    return BK_OK;
}

/* --- what GPTQ had to say --- */

static bk_json *report_json(const bk_gptq_report *g)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "loss", bk_json_of_num(g->loss));
    bk_json_set(o, "damping", bk_json_of_num(g->damping));
    bk_json_set(o, "tries", bk_json_of_int(g->tries));
    bk_json_set(o, "dead", bk_json_of_int(g->dead));
    bk_json_set(o, "fell_back", bk_json_of_bool(g->fell_back));
    return o;
}

static bk_json *block_json(const bk_gptq_report report[BK_W_COUNT])
{
    bk_json *o = bk_json_object();
    for (int w = 0; w < BK_W_COUNT; w++)
        if (report[w].done) bk_json_set(o, bk_linear_name[w], report_json(&report[w]));
    return o;
}

static void count_linear(const bk_json *of, double percdamp, bk_gptq_summary *sum)
{
    bool fell_back = bk_json_bool(bk_json_get(of, "fell_back"), false);
    sum->linears++;
    sum->fell_back += fell_back;
    sum->damped += !fell_back && bk_json_num(bk_json_get(of, "damping"), 0) > percdamp;
}

/* Dead channels count once for all linears that read them. */
static void count_block(const bk_json *block, double percdamp, bk_gptq_summary *sum)
{
    int before = -1;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        const bk_json *of = bk_json_get(block, bk_linear_name[w]);
        int site = (int)bk_linear_input(w);
        if (!of) continue;
        count_linear(of, percdamp, sum);
        if (site != before) sum->dead += bk_json_int(bk_json_get(of, "dead"), 0);
        before = site;
    }
}

static bk_status sum_up(bk_run *r, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_json *root;
    stage_file(r, "gptq.json", path);
    BK_TRY(bk_json_load(path, &root, err));
    for (size_t l = 0; l < bk_json_size(root); l++) count_block(bk_json_at(root, l), r->cfg.gptq.percdamp, &r->gptq);
    bk_json_free(root);
    const bk_gptq_summary *g = &r->gptq;
    bk_log(g->fell_back ? BK_LOG_WARN : BK_LOG_INFO, "GPTQ %lld/%lld, rounded to nearest %lld/%lld; more damping for %lld, %lld dead input channels",
           (long long)(g->linears - g->fell_back), (long long)g->linears, (long long)g->fell_back, (long long)g->linears, (long long)g->damped,
           (long long)g->dead);
    if (!g->fell_back || !r->cfg.strict) return BK_OK;
    return bk_fail(err, BK_ENUMERIC, "GPTQ fell back to rounding to nearest for %lld of %lld linears (strict)", (long long)g->fell_back,
                   (long long)g->linears);
}

/* --- the stage --- */

typedef struct initialisation {
    const bk_run *r;
    bk_json *gptq; /* an object for each block */
} initialisation;

static bk_status save_block(void *user, bk_block *b, int64_t layer, const bk_gptq_report *gptq, bk_error *err)
{
    initialisation *i = user;
    char path[BK_STAGE_FILE];
    if (gptq) bk_json_push(i->gptq, block_json(gptq));
    block_file(i->r, layer, path);
    return bk_params_save(b, layer, gptq != NULL, path, err);
}

/* A Hessian of n channels is of full rank from n tokens on. */
static void warn_few_statistics(const bk_run *r)
{
    const bk_config *c = bk_source_config(r->src);
    int64_t widest = c->inter > c->hidden ? c->inter : c->hidden, tokens = r->statistics.n * r->statistics.seqlen;
    if (tokens < widest)
        bk_log(BK_LOG_WARN, "GPTQ: %lld tokens of data.statistics for linears of up to %lld inputs: damping alone decides in the other directions",
               (long long)tokens, (long long)widest);
}

static bk_status initialise(bk_run *r, bk_error *err)
{
    char path[BK_STAGE_FILE];
    initialisation in = {r, bk_json_array()};
    bk_watch watch = bk_run_begin_stage(r, "initialise", 3, bk_model_config(r->lab.model)->layers);
    bk_row row = {.src = r->src, .prefix = &r->prefix, .quant = &r->quant, .skips = &r->cfg, .calibration = &r->calibration,
                  .gptq = bk_run_gptq(r), .statistics = &r->statistics,
                  .init = {.search = r->cfg.init.search, .ema = r->cfg.init.range == BK_RANGE_EMA}};
    if (row.gptq) warn_few_statistics(r);
    bk_status st = bk_row_run(r->lab.be, &row, NULL, save_block, &in, &watch, NULL, err);
    stage_file(r, "gptq.json", path);
    if (!st && row.gptq) st = bk_json_save(in.gptq, path, err);
    if (!st) st = bk_stage_commit(&r->init, err);
    if (!st) bk_run_end_stage(r);
    bk_json_free(in.gptq);
    return st;
}

bk_status bk_run_init(bk_run *r, bk_error *err)
{
    bk_status st = bk_run_stage_open(r, BK_STAGE_INIT, &r->init, err);
    if (!st && r->init.done) bk_log(BK_LOG_INFO, "[3/5] initialise: taken from %s", r->init.dir);
    if (!st && !r->init.done) st = initialise(r, err);
    bk_stage_close(&r->init);
    return st || !bk_run_gptq(r) ? st : sum_up(r, err);
}
