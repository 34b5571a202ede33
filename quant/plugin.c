#include "quant/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/elf.h"
#include "io/file.h"

#define MAX_BYTES ((size_t)1 << 28)
#define SYMBOL "bk_plugin_exports"

/* What was loaded: its quantizers stand in the registry from `first` on. */
static struct {
    int first, n;
    char sha256[65];
} loaded[BK_PLUGINS_MAX];
static int n_loaded;

/* By the file alone. */
static bk_status check_version(const char *path, const char *text, size_t len, bk_error *err)
{
    struct {
        size_t struct_size;
        int abi;
        char brick[sizeof((bk_plugin *)0)->brick];
    } built = {0};
    size_t found;
    BK_TRY(bk_elf_variable(path, text, len, SYMBOL, &built, sizeof built, &found, err));
    if (found == 0)
        return bk_fail(err, BK_EFORMAT,
                       "%s: is no plugin of brick: it exports no " SYMBOL " (BK_PLUGIN of quant/plugin.h does)", path);
    if (found < sizeof built)
        return bk_fail(err, BK_EFORMAT, "%s: its " SYMBOL " is no bk_plugin: it has %zu bytes", path, found);
    built.brick[sizeof built.brick - 1] = 0;
    if (built.struct_size == sizeof(bk_plugin) && built.abi == BK_QUANTIZER_ABI && strcmp(built.brick, BK_VERSION) == 0)
        return BK_OK;
    return bk_fail(err, BK_EFORMAT,
                   "%s: was built for brick %s (ABI %d, bk_plugin of %zu bytes), this is brick %s (ABI %d, %zu bytes): "
                   "build it again with the headers of this one",
                   path, built.brick, built.abi, built.struct_size, BK_VERSION, BK_QUANTIZER_ABI, sizeof(bk_plugin));
}

static bk_status check_name(const char *path, const bk_plugin *p, int i, bk_error *err)
{
    const char *name = p->quantizers[i]->name;
    bool taken = bk_quantizer_find(name) != NULL;
    for (int k = 0; k < i; k++) taken |= !strcmp(p->quantizers[k]->name, name);
    return taken ? bk_fail(err, BK_EFORMAT, "%s: there is a quantizer `%s` already: give it another name", path, name)
                 : BK_OK;
}

static bk_status check_all(const char *path, const bk_plugin *p, bk_error *err)
{
    if (p->n < 1 || !p->quantizers) return bk_fail(err, BK_EFORMAT, "%s: the plugin has no quantizers", path);
    if (p->n > BK_QUANTIZERS_MAX - bk_quantizer_count)
        return bk_fail(err, BK_EFORMAT, "%s: %d quantizers are too many, there is room for %d", path, p->n,
                       BK_QUANTIZERS_MAX - bk_quantizer_count);
    for (int i = 0; i < p->n; i++) {
        if (!p->quantizers[i]) return bk_fail(err, BK_EFORMAT, "%s: its quantizer %d is NULL", path, i);
        if (bk_quantizer_check(p->quantizers[i], err)) return bk_error_prefix(err, "%s", path);
        BK_TRY(check_name(path, p, i, err));
    }
    return BK_OK;
}

static bk_status open_object(const char *path, const bk_plugin **out, bk_error *err)
{
    char place[4096 + 2];
    bool bare = !strchr(path, '/'); /* which dlopen would search for */
    if (snprintf(place, sizeof place, "%s%s", bare ? "./" : "", path) >= (int)sizeof place)
        return bk_fail(err, BK_EINVAL, "the path of a plugin is too long");
    void *object = dlopen(place, RTLD_NOW | RTLD_LOCAL);
    *out = object ? dlsym(object, SYMBOL) : NULL;
    if (*out) return BK_OK;
    bk_status st = bk_fail(err, BK_EFORMAT, "%s: cannot be loaded: %s", path, dlerror());
    if (object) dlclose(object);
    return st;
}

bk_status bk_plugin_load(const char *path, bk_error *err)
{
    char *text, sha256[65];
    size_t len;
    const bk_plugin *p;
    if (n_loaded == BK_PLUGINS_MAX) return bk_fail(err, BK_EINVAL, "%s: more than %d plugins", path, BK_PLUGINS_MAX);
    BK_TRY(bk_file_slurp(path, MAX_BYTES, &text, &len, err));
    bk_status st = bk_sha256_bytes(text, len, sha256, err);
    if (!st) st = check_version(path, text, len, err);
    free(text);
    BK_TRY(st);
    BK_TRY(open_object(path, &p, err));
    BK_TRY(check_all(path, p, err));
    loaded[n_loaded].first = bk_quantizer_count;
    loaded[n_loaded].n = p->n;
    memcpy(loaded[n_loaded++].sha256, sha256, sizeof sha256);
    for (int i = 0; i < p->n; i++) bk_quantizers[bk_quantizer_count++] = p->quantizers[i];
    return BK_OK;
}

const char *bk_plugin_sha256(const char *quantizer)
{
    for (int i = 0; i < n_loaded; i++)
        for (int k = 0; k < loaded[i].n; k++)
            if (!strcmp(bk_quantizers[loaded[i].first + k]->name, quantizer)) return loaded[i].sha256;
    return NULL;
}
