#include "io/sealed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"

static const char digits[] = "0000000000000000000000000000000000000000000000000000000000000000", tail[] = "\"\n}\n";
enum { DIGITS = sizeof digits - 1, TAIL = sizeof tail - 1, LARGEST = 1 << 26 };

static bk_status seal_of(const char *text, size_t len, char hex[65], bk_error *err)
{
    return bk_sha256_bytes(text, len - DIGITS - TAIL, hex, err);
}

bk_status bk_sealed_save(bk_json *object, const char *path, bk_error *err)
{
    char hex[65], *body, *text;
    bk_json_set(object, "sha256", bk_json_of_str(digits, DIGITS));
    body = bk_json_dump(object, 2);
    int len = body ? asprintf(&text, "%s\n", body) : -1;
    free(body);
    if (len < 0) return bk_fail(err, BK_ENOMEM, "%s: out of memory", path);
    bk_status st = seal_of(text, (size_t)len, hex, err);
    if (!st) {
        memcpy(text + len - TAIL - DIGITS, hex, DIGITS);
        st = bk_write_file(path, text, (size_t)len, err);
    }
    free(text);
    return st;
}

bk_status bk_sealed_load(const char *path, bk_json **out, bk_error *err)
{
    char hex[65], *text;
    size_t len;
    *out = NULL;
    BK_TRY(bk_file_slurp(path, LARGEST, &text, &len, err));
    bool sealed = len > DIGITS + TAIL && !memcmp(text + len - TAIL, tail, TAIL);
    bk_status st = sealed ? seal_of(text, len, hex, err) : BK_OK;
    if (!st && (!sealed || memcmp(text + len - TAIL - DIGITS, hex, DIGITS)))
        st = bk_fail(err, BK_EFORMAT, "%s: was changed or damaged: it does not match the checksum at its end", path);
    if (!st) st = bk_json_parse(text, len, path, out, err);
    free(text);
    return st;
}
