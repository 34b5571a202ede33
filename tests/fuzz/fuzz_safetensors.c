/* Fuzz target of the safetensors reader: any bytes are refused with a message, or every tensor can be read. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bk_error err = {0};
    bk_st_set *s;
    char path[64], raw[8];
    float v[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (bk_st_open(path, &s, &err)) {
        if (!err.msg[0] || s) abort();
    } else {
        for (int64_t i = 0; i < bk_st_count(s); i++) {
            const bk_st_tensor *t = bk_st_at(s, i);
            if (bk_st_find(s, t->name) != t) abort();
            if (t->count && bk_st_read_raw(s, t, t->count - 1, 1, raw, NULL)) abort();
            (void)!bk_st_read_f32(s, t, 0, t->count < 64 ? t->count : 64, v, NULL);
        }
        bk_st_close(s);
    }
    close(fd);
    return 0;
}
