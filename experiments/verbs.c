#include "experiments/verbs.h"

#include <stddef.h>
#include <string.h>

const bk_verb bk_verbs[] = {
#define BK_VERB(name, about) {#name, about, bk_verb_##name},
#include "experiments/verbs.def"
};
const int bk_verb_count = sizeof bk_verbs / sizeof bk_verbs[0];

const char *bk_verb_heading(const char *name)
{
    static const bk_term groups[] = {
#define BK_VERB_GROUP(verb, heading) {#verb, heading},
#include "experiments/verbs.def"
    };
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (strcmp(groups[i].name, name) == 0) return groups[i].about;
    return NULL;
}

const bk_term bk_environment[] = {
    {"BRICK_LOG", "how much is said: trace, debug, info (default), warn, error"},
    {"BRICK_CACHE", "folder of the stages that runs share (default: cache)"},
    {"OMP_NUM_THREADS", "number of threads; goes before the config, --threads before both"},
    {"OMP_WAIT_POLICY", "passive: threads sleep where they would spin, for machines that do other work too"},
    {"TMPDIR", "where the hidden states of long evaluations go (default: /tmp)"},
    {"NO_COLOR", "set and not empty: no colours"},
    {NULL, NULL},
};

const bk_term bk_exit_meanings[] = {
    {"0", "done"},
    {"2", "usage or config"},
    {"3", "an input file is absent or bad"},
    {"4", "numerics: NaN or Inf, or nothing could be trained"},
    {"5", "out of memory or disk"},
    {"130", "interrupted, state saved: --resume continues"},
    {NULL, NULL},
};
