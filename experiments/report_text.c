/* Strings of others (model names, token texts, configs, paths) on their way into a page or a script. */
#include <math.h>
#include <string.h>

#include "experiments/report.h"
#include "io/utf8.h"

static bool control(uint32_t cp)
{
    return (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7f && cp < 0xa0);
}

static const char *html_entity(uint32_t cp)
{
    return cp == '&'    ? "&amp;"
           : cp == '<'  ? "&lt;"
           : cp == '>'  ? "&gt;"
           : cp == '"'  ? "&quot;"
           : cp == '\'' ? "&#39;"
                        : NULL;
}

void bk_html_add(bk_text_buffer *b, const char *s)
{
    for (size_t n = strlen(s), i = 0; i < n;) {
        uint32_t cp;
        size_t used = bk_utf8_char(s + i, n - i, &cp);
        const char *entity = used ? html_entity(cp) : NULL;
        if (!used || control(cp))
            bk_buffer_add(b, "\xef\xbf\xbd");
        else if (entity)
            bk_buffer_add(b, "%s", entity);
        else
            bk_buffer_add(b, "%.*s", (int)used, s + i);
        i += used ? used : 1;
    }
}

/* Between single quotes gnuplot knows one special thing: two of them are one. */
void bk_gnuplot_add(bk_text_buffer *b, const char *s)
{
    bk_buffer_add(b, "'");
    for (size_t n = strlen(s), i = 0; i < n;) {
        uint32_t cp;
        size_t used = bk_utf8_char(s + i, n - i, &cp);
        if (!used || control(cp))
            bk_buffer_add(b, "?");
        else if (cp == '\n' || cp == '\t')
            bk_buffer_add(b, " ");
        else if (cp == '\'')
            bk_buffer_add(b, "''");
        else
            bk_buffer_add(b, "%.*s", (int)used, s + i);
        i += used ? used : 1;
    }
    bk_buffer_add(b, "'");
}

/* gnuplot's own arithmetic needs room. */
#define LARGEST 1e300

void bk_number_add(bk_text_buffer *b, double x)
{
    bk_buffer_add(b, fabs(x) < LARGEST ? "%.6g" : "NaN", x);
}

double bk_on_log_axis(double x)
{
    return x > 1 / LARGEST && x < LARGEST ? x : NAN;
}
