/* Fuzz target of the GGUF reader: any bytes are refused with a message or read to the end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocks/config.h"
#include "io/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const bk_gguf *g)
{
    size_t len;
    float row[4096];
    bk_config c;
    for (int64_t i = 0; i < bk_gguf_tensor_count(g); i++) {
        const bk_gguf_tensor *t = bk_gguf_tensor_at(g, i);
        if (bk_gguf_find(g, t->name) != t) abort();
        if (t->dim[t->ndim - 1] <= 4096) (void)!bk_gguf_read_rows(g, t, 0, 1, row, NULL);
    }
    for (int64_t i = 0; i < bk_gguf_array_len(g, "tokenizer.ggml.tokens"); i++) {
        const char *s = bk_gguf_array_str(g, "tokenizer.ggml.tokens", i, &len);
        if (s && s[len] != 0) abort();
    }
    (void)!bk_config_from_gguf(g, &c, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bk_error err = {0};
    bk_gguf *g;
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (bk_gguf_open(path, &g, &err) == BK_OK)
        read_all(g);
    else if (!err.msg[0] || g)
        abort();
    if (err.code == BK_OK) bk_gguf_close(g);
    close(fd);
    return 0;
}
