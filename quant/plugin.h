/* Quantizers from a shared object that is built outside the tree:
 *
 * gcc -shared -fPIC -O2 -ffp-contract=off -I BRICK mine.c -o mine.so
 *
 * with BRICK the source tree or, of an installed copy, PREFIX/include/brick. The functions of brick that it calls
 * (bk_steps_init, bk_fakequant ...) are those of the program that loads it. docs/adding-a-quantizer.md is a walk
 * through one. */
#ifndef BK_PLUGIN_H
#define BK_PLUGIN_H

#include "autograd/version.h"
#include "quant/quantizer.h"

#define BK_PLUGINS_MAX 16 /* of one process */

/* What a plugin exports, under the name bk_plugin_exports. The first three members are read from the file before
 * anything of it is loaded; they stay as they are in every version. */
typedef struct bk_plugin {
    size_t struct_size; /* sizeof(bk_plugin) of the headers that it was built with */
    int abi;            /* their BK_QUANTIZER_ABI */
    char brick[20];     /* their BK_VERSION */
    int n;
    const bk_quantizer *const *quantizers; /* [n] */
} bk_plugin;

/* The last line of a file with quantizers: BK_PLUGIN(&bk_quantizer_mine); where quantizers.def names them it stands
 * for nothing. */
#ifdef BK_IN_TREE
#define BK_PLUGIN(...) _Static_assert(BK_QUANTIZER_ABI, "")
#else
#define BK_PLUGIN(...)                                                                    \
    static const bk_quantizer *const bk_plugin_list[] = {__VA_ARGS__};                    \
    const bk_plugin bk_plugin_exports = {sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, \
                                         sizeof bk_plugin_list / sizeof bk_plugin_list[0], bk_plugin_list}
#endif

/* Loads one and adds its quantizers to the registry, all or none. A path without a slash is a file of the working
 * directory: nothing is searched for. Before other threads run and before configs are read; what was loaded stays.
 * BK_EIO: it cannot be read. BK_EFORMAT: no plugin, one for another version of brick (both are named), or a table
 * that bk_quantizer_check refuses or whose name is taken. Code of the plugin runs here: a crash in it ends the
 * process, unless the caller tries it in another one first. */
bk_status bk_plugin_load(const char *path, bk_error *err) BK_MUST_USE;
/* SHA-256 of the plugin that a quantizer came from; NULL: it is brick's own, or there is none of that name. */
const char *bk_plugin_sha256(const char *quantizer);

/* Runs a checked quantizer once in every way that its setup accepts, on a few numbers: all its functions, backward
 * included. BK_EFORMAT: it failed, gave values that are not finite or of another shape, or wrote beyond its state.
 * doing (size bytes): what is being tried, for whoever finds the process dead. */
bk_status bk_quantizer_try(const bk_quantizer *q, const bk_backend *be, char *doing, size_t size,
                           bk_error *err) BK_MUST_USE;

#endif
