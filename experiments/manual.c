#include <stdlib.h>
#include <string.h>

#include "experiments/completion.h"
#include "experiments/verbs.h"
#include "experiments/version.h"

/* Text for roff: a minus that can be copied, and nothing that looks like a request. */
static void put_text(FILE *to, const char *text)
{
    static const char plain[] = "\\-'\"`^~";
    static const char *const roff[] = {"\\e", "\\-", "\\(aq", "\\(dq", "\\(ga", "\\(ha", "\\(ti"};
    if (*text == '.') fputs("\\&", to);
    for (const char *c = text; *c; c++) {
        const char *at = strchr(plain, *c);
        if (at)
            fputs(roff[at - plain], to);
        else
            fputc(*c, to);
    }
}

static void put_line(FILE *to, const char *macro, const char *text)
{
    fprintf(to, "%s", macro);
    put_text(to, text);
    fputc('\n', to);
}

static void put_terms(FILE *to, const char *title, const bk_term *terms)
{
    fprintf(to, ".SH %s\n", title);
    for (const bk_term *t = terms; t->name; t++) {
        put_line(to, ".TP\n.B ", t->name);
        put_line(to, "", t->about);
    }
}

static void put_option(FILE *to, const bk_opt *o)
{
    fputs(".TP\n\\fB", to);
    put_text(to, o->name);
    fputs("\\fR", to);
    if (o->type != BK_OPT_FLAG && !bk_opt_is_positional(o)) {
        fputs(" \\fI", to);
        put_text(to, o->metavar);
        fputs("\\fR", to);
    }
    fputc('\n', to);
    put_text(to, o->about);
    if (bk_opt_is_required(o)) fputs(" (required)", to);
    if (o->initial && *o->initial) {
        fputs(" (default ", to);
        put_text(to, o->initial);
        fputc(')', to);
    }
    if (o->type == BK_OPT_LIST) fputs(" (may be repeated)", to);
    fputc('\n', to);
}

static void put_examples(FILE *to, const char *examples)
{
    char line[512];
    fputs(".PP\nExamples:\n.PP\n.nf\n.RS 4\n", to);
    for (const char *at = examples; *at;) {
        int len = (int)strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", len, at);
        put_line(to, "", line);
        at += len + (at[len] == '\n');
    }
    fputs(".RE\n.fi\n", to);
}

static void put_verb(void *user, const bk_cli *cli)
{
    FILE *to = user;
    char *text;
    size_t len;
    FILE *usage = open_memstream(&text, &len);
    if (!usage) return;
    bk_cli_usage(cli, usage);
    fclose(usage);
    put_line(to, ".SS brick ", cli->verb);
    put_line(to, ".B ", strtok(text, "\n"));
    put_line(to, ".PP\n", cli->about);
    for (const bk_opt *o = cli->opts; o->name; o++) put_option(to, o);
    if (cli->examples) put_examples(to, cli->examples);
    free(text);
}

/* "a|b|c", with room for a line end behind each bar. */
static void put_choices(FILE *to, const char *choices)
{
    for (; *choices; choices++) {
        fputc(*choices, to);
        if (*choices == '|') fputs("\\:", to);
    }
}

static void put_key(FILE *to, const bk_key *k)
{
    char initial[128];
    bk_key_default(k, initial, sizeof initial);
    put_line(to, ".TP\n.B ", k->path);
    put_text(to, k->about);
    if (k->choices || *initial) fputs(" (", to);
    if (k->choices) put_choices(to, k->choices);
    if (k->choices && *initial) fputs("; ", to);
    put_text(to, initial);
    if (k->choices || *initial) fputc(')', to);
    fputc('\n', to);
}

void bk_manual(FILE *to)
{
    fputs(".\\\" Printed by `brick completion man`.\n.TH BRICK 1 \"\" \"brick " BK_VERSION "\" \"User commands\"\n"
          ".SH NAME\n"
          "brick \\- block reconstruction of quantized Llama\\-style models\n"
          ".SH SYNOPSIS\n.B brick\n.I verb\n.RI [ arguments ]\n.br\n.B brick\n.BR \\-\\-help | \\-\\-version\n"
          ".SH DESCRIPTION\n"
          "Results go to standard output, progress and messages to standard error.\n"
          "Every verb prints its options with\n.BR \\-\\-help .\n"
          "Options may be written\n.BI \\-\\-option \" value\"\nor\n.BI \\-\\-option= value\\fR;\n"
          "a lone\n.B \\-\\-\nends them.\n"
          ".SH VERBS\n",
          to);
    for (int i = 0; i < bk_verb_count; i++) bk_verb_table(bk_verbs[i].name, put_verb, to);
    fputs(".SH CONFIG\n.ad l\n"
          "A config is a YAML file; the dots of a key are levels of it.\n"
          ".B brick run \\-\\-set\n.IR key = value\noverrides a key.\n",
          to);
    for (int i = 0; i < bk_key_count; i++) put_key(to, &bk_keys[i]);
    put_terms(to, "ENVIRONMENT", bk_environment);
    put_terms(to, "EXIT STATUS", bk_exit_meanings);
}
