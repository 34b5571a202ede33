#include "experiments/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/plugin.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"

#define MAX_OPTS 64
#define HEAD_WIDTH 22 /* of the column of options in the help */

static int count(const bk_cli *cli)
{
    int n = 0;
    while (cli->opts[n].name) n++;
    return n;
}

bool bk_opt_is_positional(const bk_opt *o)
{
    return o->name[0] != '-';
}

bool bk_opt_is_required(const bk_opt *o)
{
    return o->initial && !*o->initial;
}

static bk_status bad(const bk_cli *cli, const bk_opt *o, const char *value, const char *what, bk_error *err)
{
    return bk_fail(err, BK_EINVAL, "%s: %s: %s, not '%.100s'", cli->verb, o->name, what, value);
}

static bool in_range(const bk_opt *o, double x)
{
    return (o->min == 0 && o->max == 0) || (x >= o->min && x <= o->max);
}

static bk_status take_int(const bk_cli *cli, const bk_opt *o, const char *value, bk_error *err)
{
    char *end, what[96];
    if (o->initial && isalpha((unsigned char)*o->initial) && strcmp(value, o->initial) == 0) return BK_OK; /* "all", as the help has it */
    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (!*value || *end || isspace((unsigned char)*value)) return bad(cli, o, value, "a whole number is expected", err);
    snprintf(what, sizeof what, "a whole number from %.0f to %.0f is expected", o->min, o->max);
    if (errno || !in_range(o, (double)n)) return bad(cli, o, value, errno ? "the number is too large" : what, err);
    *(int64_t *)o->to = n;
    return BK_OK;
}

static bk_status take_real(const bk_cli *cli, const bk_opt *o, const char *value, bk_error *err)
{
    char *end, what[96];
    double x = strtod(value, &end);
    if (!*value || *end || isspace((unsigned char)*value) || !isfinite(x)) return bad(cli, o, value, "a number is expected", err);
    snprintf(what, sizeof what, "a number from %g to %g is expected", o->min, o->max);
    if (!in_range(o, x)) return bad(cli, o, value, what, err);
    *(double *)o->to = x;
    return BK_OK;
}

static bk_status take_value(const bk_cli *cli, const bk_opt *o, const char *value, bk_error *err)
{
    bk_opt_list *list = o->to;
    switch (o->type) {
    case BK_OPT_FLAG: *(bool *)o->to = true; return BK_OK;
    case BK_OPT_INT: return take_int(cli, o, value, err);
    case BK_OPT_REAL: return take_real(cli, o, value, err);
    case BK_OPT_TEXT: *(const char **)o->to = value; return BK_OK;
    case BK_OPT_LIST: break;
    }
    if (list->n == BK_OPT_LIST_MAX)
        return bk_fail(err, BK_EINVAL, "%s: %s more than %d times", cli->verb, o->name, BK_OPT_LIST_MAX);
    list->item[list->n++] = value;
    return BK_OK;
}

static bk_status unknown_option(const bk_cli *cli, const char *arg, bk_error *err)
{
    const char *names[MAX_OPTS + 1] = {"--help"};
    size_t n = 1;
    char typed[64], near[128];
    for (const bk_opt *o = cli->opts; o->name && n <= MAX_OPTS; o++)
        if (!bk_opt_is_positional(o)) names[n++] = o->name;
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(arg, "="), arg);
    if (strcmp(cli->verb, "sweep") == 0 && strcmp(typed, "--set") == 0)
        return bk_fail(err, BK_EINVAL, "sweep: --set is for brick run; in a sweep, keys of all points stand in its file, under set: (docs/sweeps.md)");
    return bk_fail(err, BK_EINVAL, "%s: unknown option '%s'%s (brick %s --help lists them)", cli->verb, typed,
                   bk_suggest_text(typed, names, n, near, sizeof near), cli->verb);
}

static const bk_opt *find(const bk_cli *cli, const char *arg, size_t len)
{
    for (const bk_opt *o = cli->opts; o->name; o++)
        if (!bk_opt_is_positional(o) && strlen(o->name) == len && strncmp(o->name, arg, len) == 0) return o;
    return NULL;
}

/* The positional that argument number `i` (from 0) belongs to: the last takes the rest if it is a list. */
static const bk_opt *nth_positional(const bk_cli *cli, int i)
{
    for (const bk_opt *o = cli->opts; o->name; o++)
        if (bk_opt_is_positional(o) && (o->type == BK_OPT_LIST || i-- == 0)) return o;
    return NULL;
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] && !isdigit((unsigned char)arg[1]) && arg[1] != '.';
}

bk_status bk_cli_parse(const bk_cli *cli, int argc, char **argv, bool *help, bk_error *err)
{
    bool given[MAX_OPTS] = {false}, options = true;
    int positionals = 0, n = count(cli);
    *help = false;
    for (int i = 1; i < argc && options && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) *help = true;
    if (*help) {
        bk_cli_help(cli, stdout);
        return BK_OK;
    }
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = arg;
        const bk_opt *o;
        if (options && strcmp(arg, "--") == 0) {
            options = false;
            continue;
        }
        if (options && is_option(arg)) {
            size_t len = strcspn(arg, "=");
            o = find(cli, arg, len);
            if (!o) return unknown_option(cli, arg, err);
            value = arg[len] ? arg + len + 1 : NULL;
            if (o->type == BK_OPT_FLAG && value) return bk_fail(err, BK_EINVAL, "%s: %s takes no value", cli->verb, o->name);
            if (o->type != BK_OPT_FLAG && !value) {
                if (i + 1 == argc)
                    return bk_fail(err, BK_EINVAL, "%s: %s %s: the value is missing", cli->verb, o->name, o->metavar);
                value = argv[++i];
            }
        } else {
            o = nth_positional(cli, positionals++);
            if (!o)
                return bk_fail(err, BK_EINVAL, "%s: one argument too many: '%.100s' (brick %s --help)", cli->verb, arg, cli->verb);
        }
        if (given[o - cli->opts] && o->type != BK_OPT_LIST)
            return bk_fail(err, BK_EINVAL, "%s: %s is given twice", cli->verb, o->name);
        given[o - cli->opts] = true;
        BK_TRY(take_value(cli, o, value, err));
    }
    for (int i = 0; i < n; i++)
        if (!given[i] && bk_opt_is_required(&cli->opts[i]))
            return bk_fail(err, BK_EINVAL, "%s: %s%s%s is required (brick %s --help)", cli->verb, cli->opts[i].name,
                           bk_opt_is_positional(&cli->opts[i]) ? "" : " ",
                           bk_opt_is_positional(&cli->opts[i]) ? "" : cli->opts[i].metavar, cli->verb);
    return BK_OK;
}

void bk_cli_usage(const bk_cli *cli, FILE *to)
{
    fprintf(to, "brick %s", cli->verb);
    bool any = false;
    for (const bk_opt *o = cli->opts; o->name; o++) {
        bool required = bk_opt_is_required(o);
        const char *more = o->type == BK_OPT_LIST && bk_opt_is_positional(o) ? "..." : "";
        any = any || (!bk_opt_is_positional(o) && !required);
        if (bk_opt_is_positional(o))
            fprintf(to, required ? " %s%s" : " [%s%s]", o->name, more);
        else if (required)
            fprintf(to, " %s %s", o->name, o->metavar);
    }
    fprintf(to, "%s\n", any ? " [options]" : "");
}

/* A head that is too long for its column has the line for itself. */
static void print_head(FILE *to, const char *head)
{
    if (strlen(head) > HEAD_WIDTH) fprintf(to, "  %s\n  %-*s ", head, HEAD_WIDTH, "");
    else fprintf(to, "  %-*s ", HEAD_WIDTH, head);
}

static void print_examples(FILE *to, const char *examples)
{
    fputs("\nexamples:\n", to);
    for (const char *line = examples; *line;) {
        int len = (int)strcspn(line, "\n");
        fprintf(to, "  %.*s\n", len, line);
        line += len + (line[len] == '\n');
    }
}

void bk_cli_help(const bk_cli *cli, FILE *to)
{
    fputs("usage: ", to);
    bk_cli_usage(cli, to);
    fprintf(to, "\n%s\n\n", cli->about);
    for (const bk_opt *o = cli->opts; o->name; o++) {
        char head[64];
        const char *metavar = !bk_opt_is_positional(o) && o->metavar ? o->metavar : "";
        snprintf(head, sizeof head, "%s%s%s", o->name, *metavar ? " " : "", metavar);
        print_head(to, head);
        fputs(o->about, to);
        if (o->initial && *o->initial) fprintf(to, " (default %s)", o->initial);
        if (bk_opt_is_required(o)) fputs(" (required)", to);
        if (o->type == BK_OPT_LIST) fputs(" (may be repeated)", to);
        fputc('\n', to);
    }
    print_head(to, "-h, --help");
    fputs("this text\n", to);
    if (cli->examples) print_examples(to, cli->examples);
}

bool bk_cli_begin(const bk_cli *cli, int argc, char **argv, int *code)
{
    bool help;
    bk_error err = {0};
    if (argc == BK_CLI_ASK) {
        const bk_cli_ask *ask = (const void *)argv;
        ask->see(ask->user, cli);
        *code = BK_EXIT_OK;
        return false;
    }
    bk_status st = bk_cli_parse(cli, argc, argv, &help, &err);
    if (!st && !help) st = bk_plugins_load(&err);
    *code = bk_exit_report(st, &err);
    return *code == BK_EXIT_OK && !help;
}
