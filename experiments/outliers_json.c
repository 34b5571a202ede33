/* The report of brick outliers as one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/names.h"
#include "experiments/outliers.h"
#include "experiments/printable.h"

static bk_status token_text(const bk_outlier_report *r, int32_t id, bk_json **out, bk_error *err)
{
    char *text;
    size_t len;
    BK_TRY(bk_token_text(r->tok, id, &text, &len, err));
    *out = bk_json_of_str(text, len);
    free(text);
    return BK_OK;
}

static bk_json *block_ratios(const bk_outlier_stage *s, int64_t layer)
{
    bk_json *o = bk_json_object(), *sites = bk_json_object();
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        bk_json *site = bk_json_object();
        bk_json_set(site, "top1_over_median", bk_json_of_num(s->top[layer * BK_SITE_COUNT + i]));
        bk_json_set(site, "median_over_min1", bk_json_of_num(s->low[layer * BK_SITE_COUNT + i]));
        for (int k = 0; k < BK_LEVELS; k++)
            bk_json_set(site, bk_level_name[k], bk_json_of_num(s->level[(layer * BK_SITE_COUNT + i) * BK_LEVELS + k]));
        bk_json_set(sites, bk_site_name[i], site);
    }
    bk_json_set(o, "block", bk_json_of_int(layer));
    bk_json_set(o, "sites", sites);
    return o;
}

/* The two kinds of a side (upper or lower) from `first` on. */
static bk_status side(const bk_outlier_report *r, const bk_outlier_stage *s, bk_outlier_kind first, unsigned mask,
                      const char *const site[2], bk_json *o, bk_error *err)
{
    bk_json *list = bk_json_array();
    bk_json_set(o, "count", bk_json_of_int(bk_outlier_count(s, mask)));
    for (int k = 0; k < 2; k++) bk_json_set(o, site[k], bk_json_of_int(bk_outlier_count(s, 1u << (first + k))));
    bk_json_set(o, "tokens", list);
    for (int64_t i = 0; i < s->samples * s->tokens; i++) {
        if (!bk_outlier_token(s, i, mask)) continue;
        bk_json *t = bk_json_object(), *text = NULL;
        bk_json_push(list, t);
        BK_TRY(token_text(r, r->samples->ids[i], &text, err));
        bk_json_set(t, "sequence", bk_json_of_int(i / s->tokens));
        bk_json_set(t, "position", bk_json_of_int(i % s->tokens));
        bk_json_set(t, "id", bk_json_of_int(r->samples->ids[i]));
        bk_json_set(t, "text", text);
        for (int k = 0; k < 2; k++)
            bk_json_set(t, site[k], bk_json_of_int(s->blocks[first + k][i])); /* in so many blocks */
    }
    return BK_OK;
}

static bk_json *error_of(const bk_outlier_stage *s)
{
    bk_json *o = bk_json_object(), *share = bk_json_array(), *tokens = bk_json_array();
    for (int64_t i = 0; i < s->samples * s->tokens; i++) bk_json_push(tokens, bk_json_of_num(s->token_error[i]));
    for (int k = 0; k < BK_ERROR_TOP; k++) bk_json_push(share, bk_json_of_num(s->error.share[k]));
    bk_json_set(o, "mse", bk_json_of_num(s->error.mse));
    bk_json_set(o, "relative", bk_json_of_num(s->error.relative));
    bk_json_set(o, "share_of_worst", share);
    bk_json_set(o, "tokens", tokens);
    return o;
}

static bk_status stage(const bk_outlier_report *r, const bk_outlier_stage *s, bk_json *o, bk_error *err)
{
    static const char *const upper_site[] = {"down_raw", "block_out"}, *const lower_site[] = {"query", "key"};
    bk_json *blocks = bk_json_array(), *upper = bk_json_object(), *lower = bk_json_object();
    for (int64_t l = 0; l < s->layers; l++) bk_json_push(blocks, block_ratios(s, l));
    bk_json_set(o, "stage", bk_json_of_text(s->name));
    bk_json_set(o, "blocks", blocks);
    bk_json_set(o, "upper", upper);
    bk_json_set(o, "lower", lower);
    bk_json_set(o, "shared", bk_json_of_int(bk_outlier_shared(s)));
    bk_json_set(o, "error", error_of(s));
    BK_TRY(side(r, s, BK_UPPER_DOWN_RAW, BK_UPPER_KINDS, upper_site, upper, err));
    return side(r, s, BK_LOWER_QUERY, BK_LOWER_KINDS, lower_site, lower, err);
}

static bk_status prefix(const bk_outlier_report *r, bk_json *o, bk_error *err)
{
    bk_json *ids = bk_json_array(), *texts = bk_json_array();
    bk_json_set(o, "ids", ids);
    bk_json_set(o, "text", texts);
    for (int64_t i = 0; i < r->n_prefix; i++) {
        bk_json *text = NULL;
        BK_TRY(token_text(r, r->prefix[i], &text, err));
        bk_json_push(ids, bk_json_of_int(r->prefix[i]));
        bk_json_push(texts, text);
    }
    return BK_OK;
}

static bk_status build(const bk_outlier_report *r, bk_json *o, bk_error *err)
{
    bk_json *stages = bk_json_array(), *chosen = bk_json_object();
    bk_json_set(o, "model", bk_json_of_text(r->model));
    bk_json_set(o, "text", bk_json_of_text(r->text));
    bk_json_set(o, "bos", bk_json_of_text(r->bos));
    bk_json_set(o, "samples", bk_json_of_int(r->samples->n));
    bk_json_set(o, "seqlen", bk_json_of_int(r->samples->seqlen));
    bk_json_set(o, "threshold", bk_json_of_num(r->limits.upper));
    bk_json_set(o, "lower_threshold", bk_json_of_num(r->limits.lower));
    bk_json_set(o, "ratios", bk_json_of_text("per sequence, mean over sequences"));
    bk_json_set(o, "rotate", bk_json_of_text(r->rotate));
    bk_json_set(o, "prefix", chosen);
    bk_json_set(o, "scheme", bk_json_of_text(r->scheme));
    bk_json_set(o, "error_block", bk_json_of_int(r->block));
    bk_json_set(o, "stages", stages);
    if (r->n_offq) bk_json_set(o, "offq", bk_outlier_offq_json(r));
    bk_json_set(o, "seconds", bk_json_of_num(r->seconds));
    BK_TRY(prefix(r, chosen, err));
    for (int i = 0; i < r->n_stages; i++) {
        bk_json *s = bk_json_object();
        bk_json_push(stages, s);
        BK_TRY(stage(r, &r->stage[i], s, err));
    }
    return BK_OK;
}

bk_status bk_outlier_json(const bk_outlier_report *r, bk_json **out, bk_error *err)
{
    *out = bk_json_object();
    bk_status st = build(r, *out, err);
    if (st) {
        bk_json_free(*out);
        *out = NULL;
    }
    return st;
}

bk_status bk_outlier_print_json(const bk_outlier_report *r, bk_error *err)
{
    bk_json *o;
    BK_TRY(bk_outlier_json(r, &o, err));
    return bk_print_json(o, err);
}
