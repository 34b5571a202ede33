/* Option --plugin: quantizers from shared objects. */
#ifndef BK_PLUGIN_OPTION_H
#define BK_PLUGIN_OPTION_H

#include "experiments/options.h"

/* The line of a verb's table; what it names is loaded by bk_cli_begin. */
#define BK_PLUGIN_ABOUT "quantizers of a shared object (docs/adding-a-quantizer.md)"
#define BK_OPT_PLUGIN {"--plugin", BK_OPT_LIST, &bk_plugin_files, "FILE.so", NULL, 0, 0, BK_PLUGIN_ABOUT}
extern bk_opt_list bk_plugin_files;

/* Tries each plugin in a process of its own, then loads it and completes the keys of configs. A plugin that crashes,
 * hangs or fails when it is tried is BK_EFORMAT, with what it was doing. */
bk_status bk_plugins_load(bk_error *err) BK_MUST_USE;

#endif
