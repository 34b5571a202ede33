/* Fuzz target of the reader of shared objects: any bytes are refused with a message, or the variable is found whole, in part, or not at all. */
#include <stdint.h>
#include <stdlib.h>

#include "io/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bk_error err = {0};
    char value[16];
    size_t found;
    bk_status st = bk_elf_variable("x.so", (const char *)data, size, "brick_plugin", value, sizeof value, &found, &err);
    if (st && (st != BK_EFORMAT || !err.msg[0])) abort();
    return 0;
}
