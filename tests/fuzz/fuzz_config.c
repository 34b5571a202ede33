/* Fuzz target of config.json: any text is refused with a message, or makes a config that is written and read back the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bk_error err = {0};
    bk_json *root;
    bk_config a, b;
    if (bk_json_parse((const char *)data, size, "config.json", &root, &err)) {
        if (!err.msg[0] || root) abort();
        return 0;
    }
    if (bk_config_from_json(root, "config.json", &a, &err)) {
        if (!err.msg[0]) abort();
    } else {
        bk_json *one = bk_config_to_json(&a);
        if (bk_config_from_json(one, "again", &b, NULL)) abort();
        bk_json *two = bk_config_to_json(&b);
        char *x = bk_json_dump(one, 0), *y = bk_json_dump(two, 0);
        if (!x || !y || strcmp(x, y) != 0 || bk_config_block_weights(&a) <= 0) abort();
        free(x);
        free(y);
        bk_json_free(one);
        bk_json_free(two);
    }
    bk_json_free(root);
    return 0;
}
