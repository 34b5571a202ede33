#include "experiments/printable.h"

#include <stdlib.h>
#include <string.h>

#include "io/utf8.h"

/* Characters that move the cursor, change the direction of writing, or cannot be seen. */
static bool hidden(uint32_t cp)
{
    static const uint32_t range[][2] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},    {0x200b, 0x200f},
                                        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++)
        if (cp >= range[i][0] && cp <= range[i][1]) return true;
    return false;
}

/* One character, or one broken byte, as it is shown; returns the bytes read. */
static size_t show(const char *s, size_t n, bool quoted, char out[16])
{
    static const char plain[] = "\n\t\r\"\\", letter[] = "ntr\"\\";
    uint32_t cp;
    size_t used = bk_utf8_char(s, n, &cp);
    const char *at = *s ? strchr(plain, *s) : NULL;
    if (at && (quoted || at < plain + 3))
        snprintf(out, 16, "\\%c", letter[at - plain]);
    else if (!used || (used == 1 && hidden(cp)))
        snprintf(out, 16, "\\x%02x", (unsigned char)*s);
    else if (hidden(cp))
        snprintf(out, 16, "\\u{%x}", (unsigned)cp);
    else
        snprintf(out, 16, "%.*s", (int)used, s);
    return used ? used : 1;
}

static char *show_all(const char *s, size_t n, bool quoted, char *to, size_t size)
{
    size_t len = 0, cut = 0; /* cut: where "..." would still fit */
    for (size_t i = 0; i < n;) {
        char piece[16];
        i += show(s + i, n - i, quoted, piece);
        size_t more = strlen(piece);
        if (len + 4 <= size) cut = len;
        if (len + more + 1 > size) {
            memcpy(to + cut, "...", 4);
            return to;
        }
        memcpy(to + len, piece, more);
        len += more;
    }
    to[len] = 0;
    return to;
}

char *bk_printable(const char *s, size_t n, char *to, size_t size)
{
    return show_all(s, n, true, to, size);
}

char *bk_visible(const char *s, size_t n, char *to, size_t size)
{
    return show_all(s, n, false, to, size);
}

char *bk_bytes_text(double bytes, char to[BK_BYTES_TEXT])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int k = 0;
    for (; bytes >= 1024 && k < 4; k++) bytes /= 1024;
    snprintf(to, BK_BYTES_TEXT, k ? "%.1f %s" : "%.0f %s", bytes, unit[k]);
    return to;
}

/* The bytes of the first character, and the columns it takes. */
static size_t first_width(const char *s, int *columns)
{
    uint32_t cp;
    size_t used = bk_utf8_char(s, strnlen(s, 4), &cp);
    *columns = used ? bk_utf8_columns(cp) : 1;
    return used ? used : 1;
}

int bk_text_width(const char *s)
{
    int sum = 0, columns;
    for (; *s; sum += columns) s += first_width(s, &columns);
    return sum;
}

void bk_print_cell(FILE *to, const char *s, int width)
{
    int columns, at = 0;
    for (size_t used; *s; s += used, at += columns) {
        used = first_width(s, &columns);
        if (at + columns > width) break;
        fwrite(s, 1, used, to);
    }
    fprintf(to, "%*s", width - at, "");
}

/* Tokenizers that put a space before words take it off at the start of a text, so the token is read behind itself. */
bk_status bk_token_text(const bk_tokenizer *t, int32_t id, char **text, size_t *len, bk_error *err)
{
    char *once = NULL;
    size_t n;
    BK_TRY(bk_tokenizer_decode(t, &id, 1, false, &once, &n, err));
    free(once);
    BK_TRY(bk_tokenizer_decode(t, (int32_t[]){id, id}, 2, false, text, len, err));
    *len -= n;
    memmove(*text, *text + n, *len + 1);
    return BK_OK;
}

bk_status bk_token_printable(const bk_tokenizer *t, int32_t id, char to[BK_PRINTABLE_ROOM], bk_error *err)
{
    char *text;
    size_t len;
    BK_TRY(bk_token_text(t, id, &text, &len, err));
    bk_printable(text, len, to, BK_PRINTABLE_ROOM);
    free(text);
    return BK_OK;
}

static void print_replacing(FILE *to, const char *text, char quote, const char *quoted)
{
    fputc(quote, to);
    for (; *text; text++)
        if (*text == quote) fputs(quoted, to);
        else fputc(*text, to);
    fputc(quote, to);
}

void bk_print_word(FILE *to, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,+-:@%";
    if (*word && strspn(word, plain) == strlen(word)) fputs(word, to);
    else print_replacing(to, word, '\'', "'\\''");
}

void bk_print_field(FILE *to, const char *text)
{
    if (!strpbrk(text, ",\"\r\n") && *text != ' ') fputs(text, to);
    else print_replacing(to, text, '"', "\"\"");
}

bk_status bk_print_json(bk_json *o, bk_error *err)
{
    char *text = bk_json_dump(o, 0);
    bk_json_free(o);
    if (!text) return bk_fail(err, BK_ENOMEM, "no memory for the JSON text");
    puts(text);
    free(text);
    return BK_OK;
}
