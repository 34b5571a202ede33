#include "blocks/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bk_stream {
    int64_t samples, tokens, width;
    size_t sample_bytes;
    float *memory; /* or */
    int fd;
};

/* A file without a name in TMPDIR. */
static int nameless_file(void)
{
    const char *dir = getenv("TMPDIR");
    dir = dir && *dir ? dir : "/tmp";
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    char path[4096];
    if (strlen(dir) + 32 > sizeof path) return -1;
    strcat(strcpy(path, dir), "/brick-stream-XXXXXX");
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

bk_status bk_stream_create(bk_stream **out, int64_t samples, int64_t tokens, int64_t width, bk_error *err)
{
    bk_stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return bk_fail(err, BK_ENOMEM, "no memory for a stream");
    *s = (bk_stream){.samples = samples, .tokens = tokens, .width = width, .sample_bytes = (size_t)tokens * (size_t)width * 4, .fd = -1};
    size_t bytes = s->sample_bytes * (size_t)samples;
    if (bytes <= BK_STREAM_MEMORY) s->memory = malloc(bytes ? bytes : 1);
    else if ((s->fd = nameless_file()) < 0) {
        free(s);
        return bk_fail_errno(err, "no temporary file for %zu bytes of hidden states; set TMPDIR to a folder with room", bytes);
    }
    if (s->fd < 0 && !s->memory) {
        free(s);
        return bk_fail(err, BK_ENOMEM, "no memory for %zu bytes of hidden states", bytes);
    }
    *out = s;
    return BK_OK;
}

void bk_stream_free(bk_stream *s)
{
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s->memory);
    free(s);
}

int64_t bk_stream_samples(const bk_stream *s)
{
    return s->samples;
}

int64_t bk_stream_tokens(const bk_stream *s)
{
    return s->tokens;
}

int64_t bk_stream_width(const bk_stream *s)
{
    return s->width;
}

static bk_status check_range(const bk_stream *s, int64_t first, int64_t n, bk_error *err)
{
    if (first >= 0 && n >= 0 && first + n <= s->samples) return BK_OK;
    return bk_fail(err, BK_EINVAL, "samples %lld..%lld of a stream of %lld", (long long)first, (long long)(first + n), (long long)s->samples);
}

bk_status bk_stream_read(const bk_stream *s, int64_t first, int64_t n, float *dst, bk_error *err)
{
    BK_TRY(check_range(s, first, n, err));
    size_t at = (size_t)first * s->sample_bytes, bytes = (size_t)n * s->sample_bytes;
    if (s->memory) {
        memcpy(dst, (char *)s->memory + at, bytes);
        return BK_OK;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(s->fd, (char *)dst + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return bk_fail_errno(err, "reading hidden states from the temporary file");
        done += (size_t)got;
    }
    return BK_OK;
}

bk_status bk_stream_write(bk_stream *s, int64_t first, int64_t n, const float *src, bk_error *err)
{
    BK_TRY(check_range(s, first, n, err));
    size_t at = (size_t)first * s->sample_bytes, bytes = (size_t)n * s->sample_bytes;
    if (s->memory) {
        memcpy((char *)s->memory + at, src, bytes);
        return BK_OK;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(s->fd, (const char *)src + done, bytes - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return bk_fail_errno(err, "writing hidden states to a temporary file in TMPDIR");
        done += (size_t)put;
    }
    return BK_OK;
}
