/* What pictures of activations have in common: the stages of the measurement, and what their captions say about it. */
#include <string.h>

#include "experiments/report.h"

const char *const bk_report_stage_name[BK_REPORT_STAGES] = {"original", "rotated", "with prefix"};

const bk_json *bk_report_stage(const bk_report_run *r, int k)
{
    const bk_json *stages = bk_json_get(r->data, "stages");
    for (size_t i = 0; i < bk_json_size(stages); i++)
        if (!strcmp(bk_json_str(bk_json_get(bk_json_at(stages, i), "stage"), ""), bk_report_stage_name[k]))
            return bk_json_at(stages, i);
    return NULL;
}

int64_t bk_report_whole(const bk_report_run *r, const char *key)
{
    int64_t n = bk_json_int(bk_json_get(r->data, key), 0);
    return n > 0 && n <= 1000000 ? n : 0;
}

bool bk_report_measured(const bk_report_run *r, bk_picture *p)
{
    if (!r->data)
        bk_picture_missing(p, "%s", *r->why_data ? r->why_data : "Not measured.");
    else if (!bk_report_stage(r, 0))
        bk_picture_missing(p, "report/data.json does not hold what it should; remove it to measure again.");
    return !*p->missing;
}

void bk_report_say_absent(const bk_report_run *r, bk_picture *p)
{
    if (!bk_report_stage(r, 1)) bk_buffer_add(&p->caption, " The run does not rotate.");
    if (!bk_report_stage(r, 2))
        bk_buffer_add(&p->caption, r->cfg && r->cfg->prefix.mode == BK_PREFIX_NONE
                                       ? " The run has no prefix."
                                       : " The run has chosen no prefix yet.");
}

void bk_report_say_samples(const bk_report_run *r, bk_picture *p)
{
    bk_buffer_add(&p->caption, " Measured on %lld sequences of %lld tokens of ",
                  (long long)bk_report_whole(r, "samples"), (long long)bk_report_whole(r, "seqlen"));
    bk_html_add(&p->caption, bk_json_str(bk_json_get(r->data, "text"), "?"));
    bk_buffer_add(&p->caption, ".");
}
