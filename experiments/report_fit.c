/* What the fit of a run had to say (fit.json), as tables. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "blocks/names.h"
#include "experiments/report.h"

/* What the config has fitted, by the words of its keys: scales or a basis of R1, as they exclude each other. */
static const char *const basis_name[BK_BASIS_COUNT] = {[BK_BASIS_HADAMARD] = NULL,     [BK_BASIS_OFFQ] = "OffQ",
                                                       [BK_BASIS_SPINQUANT] = "SpinQuant", [BK_BASIS_DFROT] = "DFRot",
                                                       [BK_BASIS_DARTQUANT] = "DartQuant", [BK_BASIS_KURTAIL] = "KurTail"};
static const char *const scales_name[] = {[BK_SCALES_NONE] = NULL, [BK_SCALES_SMOOTHQUANT] = "SmoothQuant", [BK_SCALES_AWQ] = "AWQ"};

static void say_what(const bk_run_config *c, bk_page *page)
{
    char text[160];
    const char *scales = scales_name[c->scales.from];
    if (scales) snprintf(text, sizeof text, "Fitted: scales by %s.", scales);
    else snprintf(text, sizeof text, "Fitted: the basis of R1 by %s.", basis_name[c->rotation.basis]);
    bk_page_sentence(page, text);
}

/* --- OffQ --- */

static void share_row(const bk_json *offq, const char *key, const char *name, bk_page *page)
{
    const bk_json *share = bk_json_get(offq, key);
    bk_page_row(page);
    bk_page_cell(page, name);
    bk_page_number(page, "%.2f %%", 100 * bk_json_num(bk_json_get(share, "top"), NAN));
    bk_page_number(page, "%.2f %%", 100 * bk_json_num(bk_json_get(share, "all"), NAN));
}

static void offq_section(const bk_json *offq, bk_page *page)
{
    char text[300];
    long long groups = (long long)bk_json_int(bk_json_get(offq, "groups"), 0), group = (long long)bk_json_int(bk_json_get(offq, "group"), 0);
    snprintf(text, sizeof text,
             "OffQ: energy of what the norms give in %lld of %lld directions, one for each group of %lld channels. Top tokens: the one with "
             "the largest value in a sequence, at each norm.",
             groups, groups * group, group);
    bk_page_sentence(page, text);
    bk_page_table(page, (const char *const[]){"basis of", "#top tokens", "#all tokens", NULL});
    share_row(offq, "top_basis", "the top tokens", page);
    share_row(offq, "all_basis", "all tokens", page);
    bk_page_table_end(page);
    snprintf(text, sizeof text, "Groups of the input of down: %lld channels (0: as a whole). Spikiness of keys, median over heads: %.2f; %s.",
             (long long)bk_json_int(bk_json_get(offq, "down_group"), 0), bk_json_num(bk_json_get(offq, "spikiness"), NAN),
             bk_json_bool(bk_json_get(offq, "keys"), false) ? "they have a basis of their own" : "they have no basis of their own");
    bk_page_sentence(page, text);
}

/* --- losses and errors, step by step --- */

static void course(const bk_json *values, const char *what, const char *steps, bk_page *page)
{
    size_t n = bk_json_size(values);
    double least = INFINITY;
    char text[80];
    if (!n) return;
    for (size_t i = 0; i < n; i++) least = fmin(least, bk_json_num(bk_json_at(values, i), NAN));
    snprintf(text, sizeof text, "%s, %zu %s", what, n, steps);
    bk_page_table(page, (const char *const[]){"", "#first", "#smallest", "#last", NULL});
    bk_page_row(page);
    bk_page_cell(page, text);
    bk_page_number(page, "%.6g", bk_json_num(bk_json_at(values, 0), NAN));
    bk_page_number(page, "%.6g", least);
    bk_page_number(page, "%.6g", bk_json_num(bk_json_at(values, n - 1), NAN));
    bk_page_table_end(page);
}

/* --- AWQ --- */

static const bk_json *found_at(const bk_json *list, int64_t block, const char *site)
{
    for (size_t i = 0; i < bk_json_size(list); i++) {
        const bk_json *o = bk_json_at(list, i);
        if (bk_json_int(bk_json_get(o, "block"), -1) == block && !strcmp(bk_json_str(bk_json_get(o, "site"), ""), site)) return o;
    }
    return NULL;
}

static int64_t last_block(const bk_json *list)
{
    int64_t last = -1;
    for (size_t i = 0; i < bk_json_size(list); i++) {
        int64_t block = bk_json_int(bk_json_get(bk_json_at(list, i), "block"), -1);
        if (block > last) last = block;
    }
    return last < 1000 ? last : 999; /* of damaged files */
}

static bool awq_has(const bk_json *list, int64_t block, const bk_site_id *site, int sites)
{
    for (int k = 0; k < sites; k++)
        if (found_at(list, block, bk_site_name[site[k]])) return true;
    return false;
}

static void awq_row(const bk_json *list, int64_t block, const bk_site_id *site, int sites, bk_page *page)
{
    if (!awq_has(list, block, site, sites)) return;
    bk_page_row(page);
    bk_page_number(page, "%.0f", (double)block);
    for (int k = 0; k < sites; k++) {
        const bk_json *o = found_at(list, block, bk_site_name[site[k]]);
        bk_page_number(page, "%.2f", bk_json_num(bk_json_get(o, "ratio"), NAN));
        bk_page_number(page, "%.3f", bk_json_num(bk_json_get(o, "error"), NAN));
    }
}

static void awq_section(const bk_json *list, bk_page *page)
{
    static const bk_site_id site[] = {BK_SITE_ATTN_IN, BK_SITE_O_IN, BK_SITE_MLP_IN, BK_SITE_DOWN_IN};
    bk_page_sentence(page, "AWQ: the exponent of the scales that won at each site, and the error of the block's output with them, 1 being that of "
                           "plain rounding.");
    bk_page_table(page, (const char *const[]){"#block", "#attn_in", "#error", "#o_in", "#error", "#mlp_in", "#error", "#down_in", "#error", NULL});
    for (int64_t block = 0; block <= last_block(list); block++) awq_row(list, block, site, sizeof site / sizeof site[0], page);
    bk_page_table_end(page);
}

/* --- */

/* A member of fit.json; NULL if it is not there, or, with a sentence, if it is of another kind. */
static const bk_json *part(const bk_report_run *r, const char *name, bk_json_kind kind, bk_page *page)
{
    char text[100];
    const bk_json *v = bk_json_get(r->fit, name);
    if (!v || bk_json_kind_of(v) == kind) return v;
    snprintf(text, sizeof text, "fit.json does not hold what it should: %s.", name);
    bk_page_sentence(page, text);
    return NULL;
}

void bk_report_fit(const bk_report_run *r, bk_page *page)
{
    if (!r->cfg || !bk_run_fits(r->cfg)) return;
    bk_page_heading(page, 3, "Fitted transforms");
    say_what(r->cfg, page);
    if (*r->why_fit) bk_page_sentence(page, r->why_fit);
    const bk_json *awq = part(r, "awq", BK_JSON_ARRAY, page), *offq = part(r, "offq", BK_JSON_OBJECT, page);
    if (awq) awq_section(awq, page);
    if (offq) offq_section(offq, page);
    course(part(r, "losses", BK_JSON_ARRAY, page), "loss", r->cfg->rotation.basis == BK_BASIS_SPINQUANT ? "steps" : "epochs", page);
    course(part(r, "errors", BK_JSON_ARRAY, page), "weighted squared error", "values: before the first round and after each", page);
}
