/* Pictures through gnuplot: a program that is started with arguments, never through a shell. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/printable.h"
#include "experiments/report.h"
#include "experiments/verbs.h"

extern char **environ;

void bk_picture_begin(bk_picture *p, int width, int height)
{
    static const char *const colour[] = {"#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000"};
    p->width = width;
    p->height = height;
    bk_buffer_add(&p->script,
                  "# gnuplot -p %s.gp shows this picture\n"
                  "reset\n"
                  "set encoding utf8\n"
                  "set border 3 lc rgb '#444444'\n"
                  "set tics nomirror out textcolor rgb '#222222'\n"
                  "set grid ytics lc rgb '#dddddd' lw 0.7 dt 1\n"
                  "set key noenhanced\n",
                  p->name);
    for (int i = 0; i < 7; i++)
        bk_buffer_add(&p->script, "set style line %d lc rgb '%s' lw 1.6 pt %d ps 0.4\n", i + 1, colour[i],
                      i % 2 ? 5 : 7);
}

void bk_picture_panel(bk_picture *p, double left, double right, double bottom, double top)
{
    bk_buffer_add(&p->script,
                  "set lmargin at screen %.4f\n"
                  "set rmargin at screen %.4f\n"
                  "set bmargin at screen %.4f\n"
                  "set tmargin at screen %.4f\n",
                  left, right, bottom, top);
}

void bk_picture_linear(bk_picture *p, char axis, double lo, double hi)
{
    if (!(lo < 0)) lo = 0;
    if (!(hi > 0)) hi = lo < 0 ? 0 : 1;
    double room = 0.08 * (hi - lo);
    bk_buffer_add(&p->script,
                  "unset logscale %c\n"
                  "unset m%ctics\n"
                  "set format %c '%%g'\n"
                  "set %crange [%.6g:%.6g]\n",
                  axis, axis, axis, axis, lo < 0 ? lo - room : 0, hi > 0 ? hi + room : 0);
}

void bk_picture_log(bk_picture *p, char axis, double lo, double hi)
{
    double first = floor(log10(lo)) + 0.0, last = ceil(log10(hi)) + 0.0; /* no -0 */
    if (last <= first) last = first + 1;
    bk_buffer_add(&p->script,
                  "set logscale %c\n"
                  "set format %c '%s'\n"
                  "set %crange [1e%.0f:1e%.0f]\n"
                  "set m%ctics 10\n",
                  axis, axis, last <= 5 && first >= -4 ? "%g" : "%.0e", axis, first, last, axis);
}

void bk_picture_missing(bk_picture *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->missing, sizeof p->missing, fmt, ap);
    va_end(ap);
}

void bk_picture_free(bk_picture *p)
{
    bk_buffer_free(&p->caption);
    bk_buffer_free(&p->script);
}

/* --- the process --- */

/* Runs it in `dir` with its messages in the file `messages` there. BK_EUNSUP: it is not installed. */
static bk_status run_gnuplot(const char *dir, char *const *argv, const char *messages, int *status, bk_error *err)
{
    posix_spawn_file_actions_t fa;
    pid_t pid;
    int e = posix_spawn_file_actions_init(&fa);
    if (e) return bk_fail(err, BK_ENOMEM, "no memory to start gnuplot");
    e = posix_spawn_file_actions_addchdir_np(&fa, dir);
    if (!e) e = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&fa, 2, messages, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (!e) e = posix_spawnp(&pid, argv[0], &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    if (e == ENOENT)
        return bk_fail(
            err, BK_EUNSUP,
            "report: the pictures are drawn by gnuplot, which is not installed: apt-get install gnuplot-nox");
    errno = e;
    if (e) return bk_fail_errno(err, "starting gnuplot in %s", dir);
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR) return bk_fail_errno(err, "waiting for gnuplot");
    return bk_check_cancelled(err); /* a Ctrl-C has ended gnuplot too */
}

bk_status bk_gnuplot_check(bk_error *err)
{
    char *const argv[] = {"gnuplot", "--version", NULL};
    int status;
    BK_TRY(run_gnuplot("/", argv, "/dev/null", &status, err));
    return status == 0
               ? BK_OK
               : bk_fail(err, BK_EUNSUP, "report: gnuplot --version failed: is the program of that name gnuplot?");
}

static bk_status drawing_failed(const bk_picture *p, const char *messages, bk_error *err)
{
    char *text = NULL, line[400] = "no message";
    size_t len;
    if (bk_file_slurp(messages, 1 << 20, &text, &len, NULL) == BK_OK && len) bk_printable(text, len, line, sizeof line);
    free(text);
    return bk_fail(err, BK_EUNSUP, "gnuplot could not draw %s: %s", p->name, line);
}

static bk_status run_script(const bk_picture *p, const char *dir, bk_error *err)
{
    char file[80], svg[320], png[320], name[96], path[BK_REPORT_PATH + 96];
    int status;
    snprintf(file, sizeof file, "%s.gp", p->name);
    snprintf(name, sizeof name, "%s.messages.partial", p->name);
    snprintf(svg, sizeof svg,
             "set terminal svg noenhanced size %d,%d dynamic name '%s' font 'sans-serif,13' background '#ffffff'; "
             "set output '%s.svg.partial'",
             p->width, p->height, p->name, p->name);
    snprintf(png, sizeof png,
             "set output; set terminal pngcairo noenhanced size %d,%d font 'sans,10' background '#ffffff'; "
             "set output '%s.png.partial'",
             p->width, p->height, p->name);
    char *const argv[] = {"gnuplot", "-d", "-e", svg, file, "-e", png, file, NULL}; /* -d: no settings of the user's */
    BK_TRY(run_gnuplot(dir, argv, name, &status, err));
    snprintf(path, sizeof path, "%s/%s", dir, name);
    bk_status st = status == 0 ? BK_OK : drawing_failed(p, path, err);
    unlink(path);
    return st;
}

/* gnuplot does not notice a full disk: a picture that has no end is none. */
static bk_status take_picture(const char *dir, const char *name, const char *suffix, const char *end, bk_error *err)
{
    char from[BK_REPORT_PATH + 96], to[BK_REPORT_PATH + 96], *bytes;
    size_t len, want = strlen(end);
    snprintf(from, sizeof from, "%s/%s.%s.partial", dir, name, suffix);
    snprintf(to, sizeof to, "%s/%s.%s", dir, name, suffix);
    BK_TRY(bk_file_slurp(from, (size_t)1 << 28, &bytes, &len, err));
    bool whole = memmem(len > 64 ? bytes + len - 64 : bytes, len > 64 ? 64 : len, end, want) != NULL;
    free(bytes);
    return whole ? bk_rename(from, to, err)
                 : bk_fail(err, BK_ENOSPC, "%s: gnuplot did not write it to its end: is the disk full?", from);
}

bk_status bk_picture_draw(const bk_picture *p, const char *dir, bk_error *err)
{
    char path[BK_REPORT_PATH + 96];
    const char *script;
    BK_TRY(bk_buffer_text(&p->script, &script, err));
    snprintf(path, sizeof path, "%s/%s.gp", dir, p->name);
    BK_TRY(bk_write_file(path, script, p->script.len, err));
    BK_TRY(run_script(p, dir, err));
    BK_TRY(take_picture(dir, p->name, "svg", "</svg>", err));
    return take_picture(dir, p->name, "png", "IEND", err);
}

/* --- SVG inside a page --- */

/* Length of an id's beginning at s, behind which the name is put: definitions and references. */
static size_t id_mark(const char *s, size_t n)
{
    static const char *const mark[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    for (size_t i = 0; i < sizeof mark / sizeof mark[0]; i++) {
        size_t len = strlen(mark[i]);
        if (len <= n && !memcmp(s, mark[i], len)) return len;
    }
    return 0;
}

/* gnuplot escapes '<' in texts, so a '<' begins a tag, and what stands outside tags is left alone. */
static void copy_tag(const char *tag, size_t len, const char *name, bk_text_buffer *html)
{
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        size_t mark = id_mark(tag + i, len - i);
        if (!mark) continue;
        bk_buffer_add(html, "%.*s%s-", (int)(i + mark - from), tag + from, name);
        from = i + mark;
        i = from - 1;
    }
    bk_buffer_add(html, "%.*s", (int)(len - from), tag + from);
}

static bool begins(const char *s, size_t n, const char *word)
{
    return n >= strlen(word) && !memcmp(s, word, strlen(word));
}

/* Names of plots, which browsers show as tooltips, and the head of an XML file have no place in a page. */
void bk_svg_inline(const char *svg, size_t len, const char *name, bk_text_buffer *html)
{
    bool title = false;
    for (size_t i = 0; i < len;) {
        const char *at = svg + i, *end = memchr(at, *at == '<' ? '>' : '<', len - i);
        size_t n = !end ? len - i : (size_t)(end - at) + (*at == '<');
        i += n;
        if (begins(at, n, "<?") || begins(at, n, "<!")) continue;
        if (begins(at, n, "<title>")) title = true;
        if (!title && *at == '<')
            copy_tag(at, n, name, html);
        else if (!title)
            bk_buffer_add(html, "%.*s", (int)n, at);
        if (begins(at, n, "</title>")) title = false;
    }
}

bk_status bk_picture_inline(const bk_picture *p, const char *dir, bk_text_buffer *html, bk_error *err)
{
    char path[BK_REPORT_PATH + 96], *svg;
    size_t len;
    snprintf(path, sizeof path, "%s/%s.svg", dir, p->name);
    BK_TRY(bk_file_slurp(path, (size_t)1 << 28, &svg, &len, err));
    bk_svg_inline(svg, len, p->name, html);
    free(svg);
    return BK_OK;
}
