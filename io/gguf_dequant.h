/* The tensor types of GGUF files: their blocks, and how the ones that brick reads become f32. Internal to io/gguf.c. */
#ifndef BK_GGUF_DEQUANT_H
#define BK_GGUF_DEQUANT_H

#include <stdint.h>

typedef struct bk_gguf_type {
    uint32_t id;
    const char *name;
    int block, bytes;                                                    /* values and bytes of one block */
    void (*dequant)(const unsigned char *src, float *dst, int64_t blocks); /* NULL: known, but not read by brick */
} bk_gguf_type;

const bk_gguf_type *bk_gguf_type_find(uint32_t id); /* NULL if the number is not known */

#endif
