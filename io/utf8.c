#include "io/utf8.h"

#include <utf8proc.h>

size_t bk_utf8_char(const char *s, size_t n, uint32_t *cp)
{
    static const uint32_t lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0) return 0;
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        if (cp) *cp = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n) return 0;
    uint32_t c = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < lowest[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    if (cp) *cp = c;
    return len;
}

size_t bk_utf8_run(const char *s, size_t n, bool *valid)
{
    size_t at = 0;
    *valid = bk_utf8_char(s, n, NULL) > 0;
    while (at < n) {
        size_t len = bk_utf8_char(s + at, n - at, NULL);
        if ((len > 0) != *valid) break;
        at += len ? len : 1;
    }
    return at;
}

int bk_utf8_columns(uint32_t cp)
{
    return utf8proc_charwidth((utf8proc_int32_t)cp);
}

size_t bk_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> len & 0xf0u) | cp);
    return len;
}
