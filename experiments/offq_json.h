/* Numbers of OffQ's fit as JSON: in fit.json of a run, and in brick outliers --offq --json. */
#ifndef BK_OFFQ_JSON_H
#define BK_OFFQ_JSON_H

#include "blocks/offq.h"
#include "io/json.h"

/* Group sizes, spikiness of keys, and concentration (figure 1b of the paper): energy in as many directions as there are groups, of the top tokens
 * and of all, in the basis of either. */
bk_json *bk_offq_json(const bk_offq_report *p);

#endif
