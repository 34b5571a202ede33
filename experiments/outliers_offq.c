/* What OffQ would find in a model, with and without the prefix: one more pass over the model as it is. */
#include <stdio.h>
#include <stdlib.h>

#include "blocks/offq.h"
#include "experiments/offq_json.h"
#include "experiments/outliers.h"

/* The fit itself is thrown away: its report is what counts. */
static bk_status measure(bk_outlier_offq *m, const bk_runner *r, const bk_samples *samples, const bk_offq_options *opt, bk_fitted **fitted,
                         bk_offq_stats *stats, const bk_watch *watch, bk_error *err)
{
    const bk_config *c = bk_source_config(r->src);
    BK_TRY(bk_fitted_create(c, fitted, err));
    BK_TRY(bk_offq_measure(r->be, r->src, samples->ids, samples->n, samples->seqlen, bk_runner_prefix(r), opt, watch, stats, err));
    BK_TRY(bk_offq_fit(r->be, c, stats, opt, *fitted, &m->report, err));
    m->layers = stats->layers;
    m->heads = stats->kv_heads;
    m->spikiness = stats->spikiness;
    stats->spikiness = NULL;
    return BK_OK;
}

bk_status bk_outlier_report_add_offq(bk_outlier_report *r, const bk_lab *lab, const char *name, bool prefixed, int64_t group, int64_t seed,
                                     bk_progress *progress, int of, bk_error *err)
{
    const bk_rotation_spec plain = {0};
    bk_offq_options opt = {.group = group, .concentration = true, .seed = (uint64_t)seed};
    bk_outlier_offq *m = &r->offq[r->n_offq++];
    bk_runner runner;
    bk_fitted *fitted = NULL;
    bk_offq_stats stats = {0};
    bk_watch watch = bk_watch_progress(progress);
    m->name = name;
    bk_status st = bk_runner_open_raw(&runner, lab, &plain, err);
    if (!st) bk_source_overlap_prefix(runner.src, r->overlap_prefix);
    if (!st && prefixed) st = bk_runner_set_prefix(&runner, r->prefix, r->n_prefix, err);
    bk_progress_begin(progress, "offq", r->n_stages + r->n_offq, of, bk_model_config(lab->model)->layers);
    if (!st) st = measure(m, &runner, r->samples, &opt, &fitted, &stats, &watch, err);
    if (!st) bk_progress_end(progress);
    bk_offq_stats_free(&stats);
    bk_fitted_free(fitted);
    bk_runner_close(&runner);
    return st ? bk_error_prefix(err, "%s", name) : BK_OK;
}

int64_t bk_outlier_spikiest(const bk_outlier_offq *m)
{
    int64_t most = 0;
    for (int64_t i = 1; i < m->layers * m->heads; i++)
        if (m->spikiness[i] > m->spikiness[most]) most = i;
    return most;
}

/* --- shown --- */

static bk_json *key_spikiness(const bk_outlier_offq *m)
{
    bk_json *blocks = bk_json_array();
    for (int64_t l = 0; l < m->layers; l++) {
        bk_json *heads = bk_json_array();
        for (int64_t h = 0; h < m->heads; h++) bk_json_push(heads, bk_json_of_num(m->spikiness[l * m->heads + h]));
        bk_json_push(blocks, heads);
    }
    return blocks;
}

bk_json *bk_outlier_offq_json(const bk_outlier_report *r)
{
    bk_json *all = bk_json_array();
    for (int i = 0; i < r->n_offq; i++) {
        bk_json *o = bk_offq_json(&r->offq[i].report);
        bk_json_set(o, "stage", bk_json_of_text(r->offq[i].name));
        bk_json_set(o, "key_spikiness", key_spikiness(&r->offq[i]));
        bk_json_push(all, o);
    }
    return all;
}

static void print_shares(const bk_outlier_report *r, const char *what, bk_offq_rows basis, bk_offq_rows rows)
{
    printf("\n%-36s", what);
    for (int i = 0; i < r->n_offq; i++) printf(" %11.2f%%", 100 * r->offq[i].report.share[basis][rows]);
}

static void print_spikiest(const bk_outlier_report *r)
{
    printf("\n%-36s", "  largest");
    for (int i = 0; i < r->n_offq; i++) printf(" %12.2f", r->offq[i].spikiness[bk_outlier_spikiest(&r->offq[i])]);
    printf("\n%-36s", "  at block:head");
    for (int i = 0; i < r->n_offq; i++) {
        char place[48];
        int64_t at = bk_outlier_spikiest(&r->offq[i]), heads = r->offq[i].heads;
        snprintf(place, sizeof place, "%lld:%lld", (long long)(at / heads), (long long)(at % heads));
        printf(" %12s", place);
    }
}

void bk_outlier_print_offq(const bk_outlier_report *r)
{
    if (!r->n_offq) return;
    const bk_offq_report *p = &r->offq[0].report;
    long long hidden = (long long)(p->groups * p->group), groups = (long long)p->groups;
    printf("\nOffQ: energy of what the norms give in %lld of %lld directions, one for each group of %lld channels (groups at down_in: %lld)\n"
           "top token: the one with the largest value in a sequence, at each norm\n\n%-36s",
           groups, hidden, (long long)p->group, (long long)p->down_group, "");
    for (int i = 0; i < r->n_offq; i++) printf(" %12s", r->offq[i].name);
    print_shares(r, "basis of the top tokens: top tokens", BK_OFFQ_TOP_TOKENS, BK_OFFQ_TOP_TOKENS);
    print_shares(r, "                         all tokens", BK_OFFQ_TOP_TOKENS, BK_OFFQ_ALL_TOKENS);
    print_shares(r, "basis of all tokens:     top tokens", BK_OFFQ_ALL_TOKENS, BK_OFFQ_TOP_TOKENS);
    print_shares(r, "                         all tokens", BK_OFFQ_ALL_TOKENS, BK_OFFQ_ALL_TOKENS);
    printf("\n%-36s %11.2f%%", "any directions", 100 * (double)groups / (double)hidden);
    printf("\n%-36s", "spikiness of keys, median");
    for (int i = 0; i < r->n_offq; i++) printf(" %12.2f", r->offq[i].report.spikiness);
    print_spikiest(r);
    printf("\n%-36s", "a basis for keys (auto)");
    for (int i = 0; i < r->n_offq; i++) printf(" %12s", r->offq[i].report.keys ? "yes" : "no");
    putchar('\n');
}
