/* Fuzz target of the config loader: any bytes end in BK_OK or in one message; what loads survives being written and read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bk_run_config a, b;
    bk_error err = {0};
    char x[64], y[64];
    if (bk_run_config_parse((const char *)data, size, "fuzz.yaml", NULL, 0, &a, &err)) {
        if (!err.msg[0]) abort();
        return 0;
    }
    (void)!bk_run_config_check(&a, &err);
    char *text = bk_run_config_write(&a);
    if (!text || bk_run_config_parse(text, strlen(text), "again.yaml", NULL, 0, &b, NULL)) abort();
    if (bk_run_config_diff(&a, &b, NULL, x, y, sizeof x)) abort();
    free(text);
    return 0;
}
