/* Hidden states [samples, tokens, width] in f32 that are written once and read once, sample by sample: in memory while they are small, else in a
 * temporary file that has no name and vanishes with the process. */
#ifndef BK_STREAM_H
#define BK_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "autograd/error.h"

typedef struct bk_stream bk_stream;

/* Streams up to this size stay in memory. */
#define BK_STREAM_MEMORY ((size_t)256 << 20)

bk_status bk_stream_create(bk_stream **out, int64_t samples, int64_t tokens, int64_t width, bk_error *err) BK_MUST_USE;
void bk_stream_free(bk_stream *s);
int64_t bk_stream_samples(const bk_stream *s);
int64_t bk_stream_tokens(const bk_stream *s);
int64_t bk_stream_width(const bk_stream *s);
/* Samples [first, first + n) from and to host memory. Full disk: BK_ENOSPC. */
bk_status bk_stream_read(const bk_stream *s, int64_t first, int64_t n, float *dst, bk_error *err) BK_MUST_USE;
bk_status bk_stream_write(bk_stream *s, int64_t first, int64_t n, const float *src, bk_error *err) BK_MUST_USE;

#endif
