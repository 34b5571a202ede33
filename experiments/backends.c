#include "experiments/backends.h"

#include <string.h>

#define BK_BACKEND(name, constructor, about) \
    static const bk_backend *get_##name(void) { return constructor; }
#include "experiments/backends.def"
#undef BK_BACKEND

const bk_backend_entry bk_backends[] = {
#define BK_BACKEND(name, constructor, about) {#name, about, get_##name},
#include "experiments/backends.def"
#undef BK_BACKEND
};
const int bk_backend_count = sizeof bk_backends / sizeof bk_backends[0];

const bk_backend *bk_backend_named(const char *name)
{
    for (int i = 0; i < bk_backend_count; i++)
        if (strcmp(bk_backends[i].name, name) == 0) return bk_backends[i].get();
    return NULL;
}
