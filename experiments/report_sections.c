/* What a page says about one run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/printable.h"
#include "experiments/report.h"
#include "experiments/run_outcome.h"

/* --- facts --- */

static void fact(bk_page *page, const char *name, const char *text)
{
    bk_page_row(page);
    bk_page_cell(page, name);
    bk_page_cell(page, text);
}

static void prefix_fact(const bk_report_run *r, bk_page *page)
{
    const bk_json *prefix = bk_json_get(r->summary, "prefix"), *ids = bk_json_get(prefix, "ids"),
                  *texts = bk_json_get(prefix, "text");
    bk_text_buffer b = {0};
    for (size_t i = 0; i < bk_json_size(ids); i++) {
        char shown[64];
        size_t len = 0;
        const char *text = bk_json_bytes(bk_json_at(texts, i), &len);
        bk_buffer_add(&b, "%s\"%s\" (%lld)", i ? ", " : "",
                      bk_printable(text ? text : "?", text ? len : 1, shown, sizeof shown),
                      (long long)bk_json_int(bk_json_at(ids, i), -1));
    }
    if (r->summary) fact(page, "prefix", b.text ? b.text : "none");
    bk_buffer_free(&b);
}

static void training_fact(const bk_report_run *r, bk_page *page)
{
    char text[300];
    const bk_run_config *c = r->cfg;
    if (c->train.epochs == 0)
        snprintf(text, sizeof text, "none");
    else
        snprintf(text, sizeof text,
                 "%lld epochs, %lld samples of %lld tokens, learning rates %g (quantizers) and %g (weights)",
                 (long long)c->train.epochs, (long long)c->data.training.samples, (long long)c->data.training.seqlen,
                 c->train.lr_quant, c->train.lr_weight);
    fact(page, "training", text);
}

static void state_fact(const bk_report_run *r, bk_page *page)
{
    bk_run_outcome o = bk_run_outcome_of(r->summary);
    bk_error why = {0};
    char text[1200];
    if (!r->summary)
        snprintf(text, sizeof text, "%s", r->why_summary);
    else if (bk_run_outcome_check(&o, &why))
        snprintf(text, sizeof text, "finished; %s", why.msg);
    else if (!o.fell_back)
        snprintf(text, sizeof text, "finished");
    else
        snprintf(text, sizeof text, "finished; %lld of %lld blocks could not be trained and stay as initialised",
                 (long long)o.fell_back, (long long)o.blocks);
    fact(page, "state", text);
}

static void cost_fact(const bk_report_run *r, bk_page *page)
{
    char text[160];
    double seconds = bk_json_num(bk_json_get(bk_json_get(r->summary, "seconds"), "total"), NAN);
    double peak = bk_json_num(bk_json_get(r->summary, "peak_rss_bytes"), NAN);
    if (isnan(seconds) || isnan(peak)) return;
    snprintf(text, sizeof text, "%.0f s, %.0f MiB at most", seconds, peak / 1048576);
    fact(page, "time and memory", text);
}

static void changes_fact(const bk_report_run *r, bk_page *page)
{
    bk_text_buffer b = {0};
    bk_report_changes(r, &b);
    if (b.text || r->cfg) fact(page, "quantizers", b.text ? b.text : "the scheme's");
    bk_buffer_free(&b);
}

/* Where config.yaml cannot be read, as without its plugin. */
static void facts_of_summary(const bk_report_run *r, bk_page *page)
{
    char text[200];
    const char *scheme = bk_json_str(bk_json_get(r->summary, "scheme"), NULL);
    fact(page, "model", bk_json_str(bk_json_get(r->summary, "model"), "?"));
    if (!scheme) return;
    snprintf(text, sizeof text, "%.100s, seed %lld", scheme, (long long)bk_json_int(bk_json_get(r->summary, "seed"), -1));
    fact(page, "scheme", text);
}

static void facts(const bk_report_run *r, bk_page *page)
{
    char text[400];
    bk_page_table(page, (const char *const[]){"", "", NULL});
    if (r->cfg) {
        fact(page, "model", r->cfg->model);
        snprintf(text, sizeof text, "%s (%s), seed %lld", r->cfg->scheme, r->cfg->method, (long long)r->cfg->seed);
        fact(page, "scheme", text);
    } else if (r->summary)
        facts_of_summary(r, page);
    changes_fact(r, page);
    if (r->cfg) training_fact(r, page);
    prefix_fact(r, page);
    state_fact(r, page);
    cost_fact(r, page);
    if (r->manifest) {
        snprintf(text, sizeof text, "brick %.40s, backend %.40s, OpenBLAS core %.60s",
                 bk_json_str(bk_json_get(r->manifest, "version"), "?"),
                 bk_json_str(bk_json_get(r->manifest, "backend"), "?"),
                 bk_json_str(bk_json_get(r->manifest, "openblas_core"), "?"));
        fact(page, "made by", text);
    }
    bk_page_table_end(page);
}

/* --- perplexities --- */

static double of_ppl(const bk_report_run *r, const char *key)
{
    return bk_json_num(bk_json_get(bk_json_get(r->summary, "ppl"), key), NAN);
}

static void perplexities(const bk_report_run *r, bk_page *page)
{
    const bk_json *table = bk_json_get(r->summary, "table");
    double fp = of_ppl(r, "fp");
    bk_page_heading(page, 3, "Perplexities");
    if (!bk_json_size(table)) {
        bk_page_sentence(page, r->summary ? "summary.json holds no table of perplexities." : r->why_summary);
        return;
    }
    bk_page_table(page, (const char *const[]){"row", "#perplexity", "#ln(ppl / ppl of fp)", NULL});
    for (size_t i = 0; i < bk_json_size(table); i++) {
        const bk_json *row = bk_json_at(table, i);
        double ppl = bk_json_num(bk_json_get(row, "ppl"), NAN);
        bk_page_row(page);
        bk_page_cell(page, bk_json_str(bk_json_get(row, "row"), "?"));
        bk_page_number(page, "%.4f", ppl);
        bk_page_number(page, "%.4f", log(ppl / fp));
    }
    bk_page_table_end(page);
    bk_page_sentence(page, bk_json_str(bk_json_get(r->summary, "protocol"), ""));
}

void bk_report_overview_begin(bk_page *page)
{
    bk_page_table(page, (const char *const[]){"run", "scheme", "method", "quantizers", "#seed", "#fp", "#fp+prefix", "#initialised", "#final",
                                              "#ln(final / fp)", NULL});
}

void bk_report_overview_row(const bk_report_run *r, bk_page *page)
{
    static const char *const key[] = {"fp", "fp_prefix", "init", "final"};
    bk_text_buffer b = {0};
    bk_report_changes(r, &b);
    bk_page_row(page);
    bk_page_cell(page, r->label);
    bk_page_cell(page, r->cfg ? r->cfg->scheme : bk_json_str(bk_json_get(r->summary, "scheme"), "?"));
    bk_page_cell(page, r->cfg ? r->cfg->method : "?");
    bk_page_cell(page, b.text ? b.text : r->cfg ? "the scheme's" : "?");
    bk_page_number(page, "%.0f", r->cfg ? (double)r->cfg->seed : bk_json_num(bk_json_get(r->summary, "seed"), NAN));
    bk_buffer_free(&b);
    for (int i = 0; i < 4; i++) bk_page_number(page, "%.4f", of_ppl(r, key[i]));
    bk_page_number(page, "%.4f", log(of_ppl(r, "final") / of_ppl(r, "fp")));
}

/* --- pictures --- */

static const struct {
    const char *name, *title;
    bk_report_draw draw;
} pictures[] = {{"maxima", "Token maxima per block", bk_report_maxima},
                {"outliers", "Outlier tokens", bk_report_outliers},
                {"error", "Quantization error per token", bk_report_error},
                {"losses", "Losses of the training", bk_report_losses},
                {"gradients", "Gradient norms", bk_report_gradients}};

bk_status bk_report_run_section(bk_report_run *r, bk_page *page, int64_t samples, bk_error *err)
{
    bk_page_heading(page, 2, r->label);
    if (*r->why_sums) bk_page_sentence(page, r->why_sums);
    if (*r->why_config) bk_page_sentence(page, r->why_config);
    facts(r, page);
    perplexities(r, page);
    bk_report_fit(r, page);
    BK_TRY(bk_report_measure(r, samples, err));
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        bk_picture p = {.title = pictures[i].title};
        snprintf(p.name, sizeof p.name, "%s%s", page->prefix, pictures[i].name);
        pictures[i].draw(r, &p);
        bk_status st = bk_page_picture(page, &p, err);
        bk_picture_free(&p);
        BK_TRY(st);
    }
    bk_page_heading(page, 3, "Config and manifest");
    bk_page_folded(page, "config.yaml, every key", r->config);
    if (r->manifest_text) bk_page_folded(page, "manifest.json", r->manifest_text);
    return BK_OK;
}
