#include <string.h>

#include "experiments/completion.h"
#include "experiments/verbs.h"
#include "experiments/version.h"

/* Text inside single quotes of the shell; characters of `special` get a backslash, for _arguments and _describe. */
static void put_text(FILE *to, const char *text, const char *special)
{
    for (const char *c = text; *c; c++) {
        if (strchr(special, *c)) fputc('\\', to);
        if (*c == '\'')
            fputs("'\\''", to);
        else
            fputc(*c, to);
    }
}

/* The action of _arguments, inside single quotes. */
static void put_action(FILE *to, const bk_complete *c)
{
    switch (c->kind) {
    case BK_COMPLETE_NOTHING: fputs(" ", to); return;
    case BK_COMPLETE_WORDS: fprintf(to, "(%s)", c->words); return;
    case BK_COMPLETE_COMMAS: fprintf(to, "_values -s , name %s", c->words); return;
    case BK_COMPLETE_FOLDERS: fputs("_files -/", to); return;
    case BK_COMPLETE_SETTING: fputs("_brick_setting", to); return;
    case BK_COMPLETE_FILES: break;
    }
    fputs("_files", to);
    if (!*c->words) return;
    fputs(" -g \"*.(", to);
    for (const char *w = c->words; *w; w++) fputc(*w == ' ' ? '|' : *w, to);
    fputs(")(-.)\"", to);
}

static void put_option(FILE *to, const bk_opt *o)
{
    bk_complete c;
    bk_complete_option(o, &c);
    fprintf(to, "        '%s%s%s[", o->type == BK_OPT_LIST ? "*" : "", o->name, o->type == BK_OPT_FLAG ? "" : "=");
    put_text(to, o->about, "[]:\\");
    fputs("]", to);
    if (o->type != BK_OPT_FLAG) {
        fputs(":", to);
        put_text(to, o->metavar, ":\\");
        fputs(":", to);
        put_action(to, &c);
    }
    fputs("' \\\n", to);
}

static void put_verb(void *user, const bk_cli *cli)
{
    FILE *to = user;
    int place = 0;
    fprintf(to, "    %s) _arguments -s -S \\\n", cli->verb);
    for (const bk_opt *o = cli->opts; o->name; o++)
        if (!bk_opt_is_positional(o)) put_option(to, o);
    for (const bk_opt *o = cli->opts; o->name; o++) {
        bk_complete c;
        if (!bk_opt_is_positional(o)) continue;
        bk_complete_option(o, &c);
        if (o->type == BK_OPT_LIST)
            fputs("        '*:", to);
        else
            fprintf(to, "        '%d%s:", ++place, bk_opt_is_required(o) ? "" : ":");
        put_text(to, o->name, ":\\");
        fputs(":", to);
        put_action(to, &c);
        fputs("' \\\n", to);
    }
    fputs("        '(-h --help)'{-h,--help}'[print the help]' ;;\n", to);
}

static void put_keys(FILE *to)
{
    fputs("_brick_setting() {\n    local key\n    local -a keys\n    if [[ $PREFIX == *=* ]]; then\n"
          "        key=${PREFIX%%=*}\n        compset -P 1 '*='\n        case $key in\n",
          to);
    for (int i = 0; i < bk_key_count; i++) {
        bk_complete c;
        bk_complete_key(&bk_keys[i], &c);
        if (c.kind == BK_COMPLETE_WORDS) fprintf(to, "        %s) compadd - %s ;;\n", bk_keys[i].path, c.words);
        if (c.kind == BK_COMPLETE_FILES) fprintf(to, "        %s) _files ;;\n", bk_keys[i].path);
    }
    fputs("        esac\n        return\n    fi\n    keys=(\n", to);
    for (int i = 0; i < bk_key_count; i++) {
        fprintf(to, "        '%s:", bk_keys[i].path);
        put_text(to, bk_keys[i].about, "\\");
        fputs("'\n", to);
    }
    fputs("    )\n    _describe -t keys 'key of a config' keys -S=\n}\n", to);
}

void bk_completion_zsh(FILE *to)
{
    fputs("#compdef brick\n# zsh completion of brick " BK_VERSION ", printed by `brick completion zsh`\n", to);
    put_keys(to);
    fputs("_brick_verbs() {\n    local -a verbs\n    verbs=(\n", to);
    for (int i = 0; i < bk_verb_count; i++) {
        fprintf(to, "        '%s:", bk_verbs[i].name);
        put_text(to, bk_verbs[i].about, "\\");
        fputs("'\n", to);
    }
    fputs("    )\n    _describe -t verbs verb verbs\n}\n"
          "_brick() {\n"
          "    local curcontext=$curcontext state line\n"
          "    typeset -A opt_args\n"
          "    _arguments -C '(- *)'{-h,--help}'[print the help]' '(- *)--version[print the version]' \\\n"
          "        '1:verb:_brick_verbs' '*::argument:->argument'\n"
          "    [[ $state == argument ]] || return\n"
          "    case $words[1] in\n",
          to);
    for (int i = 0; i < bk_verb_count; i++) bk_verb_table(bk_verbs[i].name, put_verb, to);
    fputs("    help) _brick_verbs ;;\n    esac\n}\n"
          "if [[ $funcstack[1] == _brick ]]; then _brick \"$@\"; else compdef _brick brick; fi\n",
          to);
}
