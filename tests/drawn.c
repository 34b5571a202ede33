#include "tests/drawn.h"

#include <check.h>
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e.h"

void drawn_by_nobody(void)
{
    char here[256], path[4096];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    e2e_write("gnuplot", "#!/bin/sh\n"
                         "[ \"$1\" = --version ] && exit 0\n"
                         "name=${4%.gp}\n" /* of: gnuplot -d -e SVG NAME.gp -e PNG NAME.gp */
                         "echo '<svg></svg>' >$name.svg.partial && echo IEND >$name.png.partial\n");
    ck_assert_int_eq(chmod("gnuplot", 0755), 0);
    snprintf(path, sizeof path, "%s:%s", here, getenv("PATH"));
    setenv("PATH", path, 1);
}

/* --- words --- */

static bool begins(const char *s, const char *word)
{
    return strncmp(s, word, strlen(word)) == 0;
}

/* A word up to a blank or comma that stands in no quotes or parentheses; "" at such a comma and at the end. Quotes stay. */
static const char *next_word(const char *s, char *word, size_t size)
{
    size_t n = 0;
    int depth = 0;
    char quote = 0;
    while (*s == ' ') s++;
    for (; *s && (quote || depth || (*s != ' ' && *s != ',')); s++) {
        if (quote) quote = *s == quote ? 0 : quote;
        else if (*s == '\'' || *s == '"') quote = *s;
        else depth += (*s == '(') - (*s == ')');
        if (n + 1 < size) word[n++] = *s;
    }
    word[n] = 0;
    return s;
}

/* The first quoted string of a line. */
static void quoted(const char *s, char *to, size_t size)
{
    size_t n = 0;
    s += strcspn(s, "'\"");
    char quote = *s;
    for (s += *s != 0; *s && (*s != quote || s[1] == quote); s++) {
        s += *s == quote;
        if (n + 1 < size) to[n++] = *s;
    }
    to[n] = 0;
}

/* --- data --- */

static drawn_rows *add_rows(drawn *d, const char *name, size_t most)
{
    drawn_rows *r = d->rows[d->n_rows++] = calloc(1, sizeof *r);
    ck_assert_uint_lt(d->n_rows, sizeof d->rows / sizeof d->rows[0]);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->x = malloc((most + 1) * sizeof *r->x);
    return r;
}

static void add_row(drawn_rows *r, const char *line)
{
    double *x = r->x[r->n];
    const char *s = line;
    for (int k = 0; k < DRAWN_COLUMNS; k++) {
        char word[64], *end = word;
        s = next_word(s, word, sizeof word);
        x[k] = *word ? strtod(word, &end) : NAN;
        if (*end) x[k] = NAN;
    }
    r->n += *line != 0; /* an empty line only breaks a curve */
}

/* Lines up to `end`, which is passed over. */
static char **take_rows(drawn *d, const char *name, char **line, const char *end)
{
    size_t most = 0;
    while (line[most] && strcmp(line[most], end)) most++;
    ck_assert_msg(line[most], "%s has no end", name);
    drawn_rows *r = add_rows(d, name, most);
    for (size_t i = 0; i < most; i++) add_row(r, line[i]);
    return line + most;
}

static const drawn_rows *rows_of(const drawn *d, const char *name)
{
    for (size_t i = d->n_rows; i-- > 0;)
        if (!strcmp(d->rows[i]->name, name)) return d->rows[i];
    return NULL;
}

/* --- plots --- */

static void read_using(const char *text, drawn_curve *c)
{
    int depth = 0, k = 0;
    size_t n = 0;
    for (; *text; text++) {
        depth += (*text == '(') - (*text == ')');
        if (*text == ':' && !depth) {
            ck_assert_int_lt(++k, 8);
            n = 0;
        } else if (n + 1 < sizeof c->use[0])
            c->use[k][n++] = *text;
    }
}

static const char *read_curve(const char *s, drawn_curve *c)
{
    char word[256];
    s = next_word(s, word, sizeof word);
    if (*word == '\'') quoted(word, c->source, sizeof c->source);
    else snprintf(c->source, sizeof c->source, "%.31s", word);
    for (s = next_word(s, word, sizeof word); *word; s = next_word(s, word, sizeof word)) {
        char value[256];
        if (!strcmp(word, "using")) {
            s = next_word(s, value, sizeof value);
            read_using(value, c);
        } else if (!strcmp(word, "ls")) {
            s = next_word(s, value, sizeof value);
            c->style = atoi(value);
        } else if (!strcmp(word, "title")) {
            s = next_word(s, value, sizeof value);
            quoted(value, c->title, sizeof c->title);
        }
    }
    return s;
}

static char **read_plot(drawn *d, drawn_plot *p, char **line)
{
    const char *s = *line + strlen("plot");
    ck_assert_int_lt(++d->n, DRAWN_PLOTS);
    do {
        ck_assert_int_lt(p->n, DRAWN_CURVES);
        s = read_curve(s, &p->curve[p->n++]);
    } while (*s++ == ',');
    for (int i = 0; i < p->n; i++) { /* data in the script follow in the order of the curves */
        drawn_curve *c = &p->curve[i];
        if (!strcmp(c->source, "-")) line = take_rows(d, c->source, line + 1, "e");
        c->rows = rows_of(d, c->source);
        ck_assert_msg(c->rows || (*c->source != '$' && *c->source != '-'), "there is no %s", c->source);
    }
    return line;
}

static void read_setting(const char *line, drawn_plot *now)
{
    const struct {
        const char *name;
        char *to;
        size_t size;
    } all[] = {{"title ", now->title, sizeof now->title}, {"xlabel ", now->xlabel, sizeof now->xlabel},
               {"ylabel ", now->ylabel, sizeof now->ylabel}};
    if (begins(line, "set xtics (")) snprintf(now->xtics, sizeof now->xtics, "%s", line);
    if (begins(line, "set ytics (")) snprintf(now->ytics, sizeof now->ytics, "%s", line);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (begins(line, "set ") && begins(line + 4, all[i].name)) quoted(line, all[i].to, all[i].size);
        if (begins(line, "unset ") && !strncmp(line + 6, all[i].name, strlen(all[i].name) - 1)) *all[i].to = 0;
    }
}

/* `now` has what is set so far and no curves. */
static void read_lines(drawn *d, char **line, drawn_plot *now)
{
    for (; *line; line++) {
        if (**line == '$' && strstr(*line, " << EOD")) {
            char name[32];
            next_word(*line, name, sizeof name);
            line = take_rows(d, name, line + 1, "EOD");
        } else if (begins(*line, "plot ")) {
            d->plot[d->n] = *now;
            line = read_plot(d, &d->plot[d->n], line);
        } else
            read_setting(*line, now);
    }
}

drawn *drawn_read(const char *path)
{
    drawn *d = calloc(1, sizeof *d);
    drawn_plot now = {.n = 0};
    size_t n = 1;
    char *text = e2e_text(path), **line;
    for (char *c = text; *c; c++) n += *c == '\n';
    line = calloc(n + 1, sizeof *line);
    line[0] = text;
    for (size_t i = 1; i < n; i++) {
        line[i] = strchr(line[i - 1], '\n') + 1;
        line[i][-1] = 0;
    }
    read_lines(d, line, &now);
    free(line);
    free(text);
    return d;
}

void drawn_free(drawn *d)
{
    for (size_t i = 0; i < d->n_rows; i++) {
        free(d->rows[i]->x);
        free(d->rows[i]);
    }
    free(d);
}

double drawn_at(const drawn_curve *c, size_t row, int k)
{
    ck_assert_ptr_nonnull(c->rows);
    ck_assert_uint_lt(row, c->rows->n);
    int column = atoi(c->use[k]);
    ck_assert_msg(column > 0 && column <= DRAWN_COLUMNS && strspn(c->use[k], "0123456789") == strlen(c->use[k]),
                  "'%s' is no column of %s", c->use[k], c->source);
    return c->rows->x[row][column - 1];
}

const drawn_curve *drawn_titled(const drawn_plot *p, const char *title)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->curve[i].title, title)) return &p->curve[i];
    ck_abort_msg("no curve has the title '%s'", title);
}
