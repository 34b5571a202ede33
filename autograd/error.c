#include "autograd/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at p, 0 if there is none or it is a control character. */
static int utf8_len(const unsigned char *p)
{
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    int n = p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (n == 3 && p[0] == 0xed && p[1] > 0x9f) return 0;
    if (n == 4 && p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (n == 4 && p[0] == 0xf4 && p[1] > 0x8f) return 0;
    return n;
}

static void make_printable(char *s)
{
    for (unsigned char *p = (unsigned char *)s; *p;) {
        int n = utf8_len(p);
        if (n == 0) *p = '?', n = 1;
        p += n;
    }
}

static bk_status record(bk_error *err, bk_status code, const char *fmt, va_list ap)
{
    if (!err || err->code) return code;
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    make_printable(err->msg);
    return code;
}

bk_status bk_fail(bk_error *err, bk_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    record(err, code, fmt, ap);
    va_end(ap);
    return code;
}

static bk_status status_of_errno(int e)
{
    switch (e) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return BK_ENOSPC;
    case EMFILE:
    case ENFILE:
    case ENOMEM: return BK_ENOMEM;
    default: return BK_EIO;
    }
}

bk_status bk_fail_errno(bk_error *err, const char *fmt, ...)
{
    int e = errno;
    bk_status code = status_of_errno(e);
    if (!err || err->code) return code;
    va_list ap;
    va_start(ap, fmt);
    record(err, code, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, ": %s%s", strerror(e), e == EMFILE ? " (ulimit -n raises their number)" : "");
    make_printable(err->msg);
    return code;
}

bk_status bk_error_prefix(bk_error *err, const char *fmt, ...)
{
    if (!err) return BK_OK;
    char head[256], tail[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    if (!err->code) return bk_fail(err, BK_EUNSUP, "%s: failed without a message", head);
    memcpy(tail, err->msg, sizeof tail);
    snprintf(err->msg, sizeof err->msg, "%.255s: %.*s", head, (int)(sizeof tail - sizeof head - 3), tail);
    make_printable(err->msg);
    return err->code;
}

void bk_error_clear(bk_error *err)
{
    err->code = BK_OK;
    err->msg[0] = 0;
}

const char *bk_status_name(bk_status code)
{
    static const char *const names[BK_STATUS_COUNT] = {
        "BK_OK", "BK_EINVAL", "BK_ESHAPE", "BK_ENOMEM", "BK_EUNSUP", "BK_EIO",
        "BK_EFORMAT", "BK_ENUMERIC", "BK_EDEVICE", "BK_ENOSPC", "BK_ECANCEL",
    };
    return (unsigned)code < BK_STATUS_COUNT ? names[code] : "BK_?";
}
