/* The page: one file of HTML that needs nothing else, in a light and a dark browser. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/report.h"

#define GENERATOR "<meta name=\"generator\" content=\"brick report\">"

/* No script, nothing from elsewhere: the browser enforces it. */
static const char head[] =
    "<meta charset=\"utf-8\">\n" GENERATOR
    "\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<style>\n"
    ":root { color-scheme: light dark; --text: #1a1a1a; --back: #fdfdfd; --line: #cccccc; --soft: #555555; }\n"
    "@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --back: #16181b; --line: #444444; --soft: #aaaaaa; "
    "} }\n"
    "body { margin: 0 auto; padding: 1rem; max-width: 61rem; font: 16px/1.5 sans-serif; color: var(--text); "
    "background: var(--back); }\n"
    "h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; }\n"
    "h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }\n"
    "figure { margin: 1.5rem 0; }\n"
    "figure svg { display: block; width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); "
    "border-radius: 4px; }\n"
    "figcaption, .sentence { color: var(--soft); font-size: 0.9rem; margin-top: 0.4rem; overflow-wrap: anywhere; }\n"
    "a { color: inherit; }\n"
    ".table { overflow-x: auto; }\n"
    "table { border-collapse: collapse; margin: 1rem 0; }\n"
    "th, td { padding: 0.25rem 0.8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; "
    "overflow-wrap: anywhere; }\n"
    "th:empty { padding: 0; border: 0; }\n"
    "td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }\n"
    "pre { overflow-x: auto; padding: 0.8rem; border: 1px solid var(--line); border-radius: 4px; font-size: 0.8rem; }\n"
    "summary { cursor: pointer; }\n"
    "</style>\n";

void bk_page_begin(bk_page *page, const char *title)
{
    bk_buffer_add(&page->html, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n%s<title>", head);
    bk_html_add(&page->html, title);
    bk_buffer_add(&page->html, "</title>\n</head>\n<body>\n");
    bk_page_heading(page, 1, title);
    page->pictures = bk_json_array();
}

void bk_page_heading(bk_page *page, int level, const char *text)
{
    bk_buffer_add(&page->html, "<h%d>", level);
    bk_html_add(&page->html, text);
    bk_buffer_add(&page->html, "</h%d>\n", level);
}

void bk_page_sentence(bk_page *page, const char *text)
{
    bk_buffer_add(&page->html, "<p class=\"sentence\">");
    bk_html_add(&page->html, text);
    bk_buffer_add(&page->html, "</p>\n");
}

void bk_page_folded(bk_page *page, const char *summary, const char *text)
{
    bk_buffer_add(&page->html, "<details>\n<summary>");
    bk_html_add(&page->html, summary);
    bk_buffer_add(&page->html, "</summary>\n<pre>");
    bk_html_add(&page->html, text);
    bk_buffer_add(&page->html, "</pre>\n</details>\n");
}

void bk_page_table(bk_page *page, const char *const *heads)
{
    bk_buffer_add(&page->html, "<div class=\"table\"><table>\n<tr>");
    for (; *heads; heads++) {
        bk_buffer_add(&page->html, **heads == '#' ? "<th class=\"n\">" : "<th>");
        bk_html_add(&page->html, *heads + (**heads == '#'));
        bk_buffer_add(&page->html, "</th>");
    }
}

void bk_page_row(bk_page *page)
{
    bk_buffer_add(&page->html, "</tr>\n<tr>");
}

void bk_page_cell(bk_page *page, const char *text)
{
    bk_buffer_add(&page->html, "<td>");
    bk_html_add(&page->html, text);
    bk_buffer_add(&page->html, "</td>");
}

void bk_page_number(bk_page *page, const char *format, double x)
{
    char text[64] = "\xe2\x80\x93";
    if (isfinite(x)) snprintf(text, sizeof text, format, x);
    bk_buffer_add(&page->html, "<td class=\"n\">%s</td>", text);
}

void bk_page_table_end(bk_page *page)
{
    bk_buffer_add(&page->html, "</tr>\n</table></div>\n");
}

static void list_picture(bk_page *page, const bk_picture *p)
{
    bk_json *o = bk_json_object();
    char file[80];
    bk_json_set(o, "name", bk_json_of_text(p->name));
    bk_json_set(o, "title", bk_json_of_text(p->title));
    snprintf(file, sizeof file, "%s.svg", p->name);
    bk_json_set(o, "svg", *p->missing ? bk_json_null() : bk_json_of_text(file));
    snprintf(file, sizeof file, "%s.png", p->name);
    bk_json_set(o, "png", *p->missing ? bk_json_null() : bk_json_of_text(file));
    bk_json_set(o, "missing", *p->missing ? bk_json_of_text(p->missing) : bk_json_null());
    bk_json_push(page->pictures, o);
}

static bk_status put_figure(bk_page *page, const bk_picture *p, bk_error *err)
{
    const char *caption;
    BK_TRY(bk_picture_draw(p, page->dir, err));
    BK_TRY(bk_buffer_text(&p->caption, &caption, err));
    bk_buffer_add(&page->html, "<figure id=\"%s\" role=\"img\" aria-label=\"", p->name);
    bk_html_add(&page->html, p->title);
    bk_buffer_add(&page->html, "\">\n");
    BK_TRY(bk_picture_inline(p, page->dir, &page->html, err));
    bk_buffer_add(&page->html,
                  "<figcaption>%s Files: <a href=\"%s.svg\">SVG</a>, <a href=\"%s.png\">PNG</a>, <a "
                  "href=\"%s.gp\">gnuplot</a>.</figcaption>\n</figure>\n",
                  caption, p->name, p->name, p->name);
    return BK_OK;
}

/* An earlier report may have drawn what is missing now. */
static void forget_files(const bk_page *page, const bk_picture *p)
{
    static const char *const suffix[] = {"gp", "svg", "png"};
    char path[BK_REPORT_PATH + 96];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.%s", page->dir, p->name, suffix[i]);
        unlink(path);
    }
}

bk_status bk_page_picture(bk_page *page, const bk_picture *p, bk_error *err)
{
    bk_page_heading(page, 3, p->title);
    list_picture(page, p);
    if (!*p->missing) return put_figure(page, p, err);
    forget_files(page, p);
    bk_page_sentence(page, p->missing);
    return BK_OK;
}

static bk_status check_page(const char *path, bk_error *err)
{
    char *text;
    size_t len;
    BK_TRY(bk_file_slurp(path, (size_t)1 << 30, &text, &len, err));
    bool ours = strstr(text, GENERATOR) != NULL;
    free(text);
    return ours ? BK_OK
                : bk_fail(err, BK_EINVAL, "%s exists and was not made by brick report; give another --out", path);
}

/* Without a page there is nothing of ours but what was measured. */
static bk_status check_empty(const char *dir, bk_error *err)
{
    static const char *const ours[] = {"data.json", "data.json.partial", "index.html.partial", NULL};
    char other[61];
    BK_TRY(bk_dir_other(dir, ours, other, sizeof other, err));
    return !*other ? BK_OK
                   : bk_fail(err, BK_EINVAL,
                             "%s holds files and no page of brick report (%s is there), and pictures might overwrite "
                             "them; give another --out",
                             dir, other);
}

/* The page that is there until the whole one is: what is drawn meanwhile is known as ours by it. */
static bk_status put_placeholder(const char *dir, bk_error *err)
{
    bk_page page = {.dir = dir};
    bk_page_begin(&page, "brick report");
    bk_page_sentence(&page, "This report is not finished: brick is making it, or was interrupted.");
    bk_status st = bk_page_end(&page, err);
    bk_page_free(&page);
    return st;
}

bk_status bk_page_claim(const char *dir, bk_error *err)
{
    char path[BK_REPORT_PATH + 16];
    BK_TRY(bk_mkdir_p(dir, err));
    snprintf(path, sizeof path, "%s/index.html", dir);
    if (bk_exists(path)) return check_page(path, err);
    BK_TRY(check_empty(dir, err));
    return put_placeholder(dir, err);
}

bk_status bk_page_end(bk_page *page, bk_error *err)
{
    char path[BK_REPORT_PATH + 16];
    const char *text;
    bk_buffer_add(&page->html, "</body>\n</html>\n");
    BK_TRY(bk_buffer_text(&page->html, &text, err));
    snprintf(path, sizeof path, "%s/index.html", page->dir);
    return bk_write_file(path, text, page->html.len, err);
}

void bk_page_free(bk_page *page)
{
    bk_buffer_free(&page->html);
    bk_json_free(page->pictures);
}
