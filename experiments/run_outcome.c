#include "experiments/run_outcome.h"

bk_run_outcome bk_run_outcome_of(const bk_json *summary)
{
    const bk_json *blocks = bk_json_get(summary, "blocks"), *gptq = bk_json_get(summary, "gptq");
    bk_run_outcome o = {.blocks = (int64_t)bk_json_size(blocks),
                        .linears = bk_json_int(bk_json_get(gptq, "linears"), 0),
                        .not_rounded = bk_json_int(bk_json_get(gptq, "fell_back"), 0)};
    for (int64_t i = 0; i < o.blocks; i++)
        o.fell_back += bk_json_bool(bk_json_get(bk_json_at(blocks, (size_t)i), "fell_back"), false);
    return o;
}

bk_status bk_run_outcome_check(const bk_run_outcome *o, bk_error *err)
{
    if (o->linears && o->not_rounded == o->linears)
        return bk_fail(err, BK_ENUMERIC, "GPTQ rounded no linear: every one fell back to rounding to nearest");
    if (o->blocks && o->fell_back == o->blocks)
        return bk_fail(err, BK_ENUMERIC, "no block could be trained: every one fell back to its initialisation");
    return BK_OK;
}
