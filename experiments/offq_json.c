#include "experiments/offq_json.h"

static bk_json *share_json(const double share[2])
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "top", bk_json_of_num(share[BK_OFFQ_TOP_TOKENS]));
    bk_json_set(o, "all", bk_json_of_num(share[BK_OFFQ_ALL_TOKENS]));
    return o;
}

bk_json *bk_offq_json(const bk_offq_report *p)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "group", bk_json_of_int(p->group));
    bk_json_set(o, "groups", bk_json_of_int(p->groups));
    bk_json_set(o, "down_group", bk_json_of_int(p->down_group));
    bk_json_set(o, "gaussian", bk_json_of_bool(p->gaussian));
    bk_json_set(o, "keys", bk_json_of_bool(p->keys));
    bk_json_set(o, "spikiness", bk_json_of_num(p->spikiness));
    bk_json_set(o, "top_basis", share_json(p->share[BK_OFFQ_TOP_TOKENS]));
    bk_json_set(o, "all_basis", share_json(p->share[BK_OFFQ_ALL_TOKENS]));
    return o;
}
