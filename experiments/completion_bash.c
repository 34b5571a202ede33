#include "experiments/completion.h"
#include "experiments/verbs.h"
#include "experiments/version.h"

static const char functions[] =
    "_brick_words() { # LIST\n"
    "    local word\n"
    "    for word in $1; do [[ $word == \"$cur\"* ]] && COMPREPLY+=(\"$word\"); done\n"
    "}\n"
    "_brick_commas() { # LIST: some of it, with commas between\n"
    "    local word before=\n"
    "    [[ $cur == *,* ]] && before=${cur%,*},\n"
    "    for word in $1; do [[ $before$word == \"$cur\"* ]] && COMPREPLY+=(\"$before$word\"); done\n"
    "    compopt -o nospace 2>/dev/null\n"
    "}\n"
    "_brick_folders() {\n"
    "    local name\n"
    "    while IFS= read -r name; do COMPREPLY+=(\"$name\"); done < <(compgen -d -- \"$cur\")\n"
    "    compopt -o filenames 2>/dev/null\n"
    "}\n"
    "_brick_files() { # ENDING...: such files, and folders; without endings, or when there are none, any file\n"
    "    local name ending\n"
    "    (($#)) && while IFS= read -r name; do COMPREPLY+=(\"$name\"); done < <(\n"
    "        compgen -d -- \"$cur\"\n"
    "        for ending; do compgen -f -X \"!*.$ending\" -- \"$cur\"; done\n"
    "    )\n"
    "    if ((${#COMPREPLY[@]})); then compopt -o filenames 2>/dev/null; else compopt -o default 2>/dev/null; fi\n"
    "}\n";

static const char body[] =
    "_brick() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} words=() cur head='' verb options='' valued='' word option='' place=1 i\n"
    "    # shellcheck disable=SC2162 # a backslash keeps a name with a blank together\n"
    "    read -a words <<<\"$line\"\n"
    "    [[ $line == *[[:blank:]] ]] && words+=('')\n"
    "    COMPREPLY=()\n"
    "    cur=${words[${#words[@]} - 1]}\n"
    "    verb=${words[1]}\n"
    "    if ((${#words[@]} == 2)); then\n"
    "        _brick_words \"$_brick_verbs help --help --version\"\n"
    "        return\n"
    "    fi\n"
    "    _brick_table \"$verb\"\n"
    "    for ((i = 2; i < ${#words[@]} - 1; i++)); do\n"
    "        word=${words[i]}\n"
    "        if [[ $option ]]; then\n"
    "            option=\n"
    "        elif [[ $word == -* && \" $valued \" == *\" $word \"* ]]; then\n"
    "            option=$word\n"
    "        elif [[ $word != -* ]]; then\n"
    "            place=$((place + 1))\n"
    "        fi\n"
    "    done\n"
    "    if [[ $option ]]; then\n"
    "        _brick_value \"$verb\" \"$option\"\n"
    "    elif [[ $cur == --*=* ]]; then\n"
    "        option=${cur%%=*}\n"
    "        head=$option=\n"
    "        cur=${cur#*=}\n"
    "        _brick_value \"$verb\" \"$option\"\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        _brick_words \"$options --help\"\n"
    "    else\n"
    "        _brick_value \"$verb\" \"$place\"\n"
    "    fi\n"
    "    # readline replaces what stands behind the last '=' only, unless it was told not to cut words there\n"
    "    [[ $head && $COMP_WORDBREAKS != *=* ]] && COMPREPLY=(\"${COMPREPLY[@]/#/$head}\")\n"
    "    return 0\n"
    "}\n"
    "complete -F _brick brick\n";

static void put_action(FILE *to, const bk_complete *c)
{
    switch (c->kind) {
    case BK_COMPLETE_NOTHING: fputs(":", to); return;
    case BK_COMPLETE_WORDS: fprintf(to, "_brick_words '%s'", c->words); return;
    case BK_COMPLETE_COMMAS: fprintf(to, "_brick_commas '%s'", c->words); return;
    case BK_COMPLETE_FILES: fprintf(to, "_brick_files%s%s", *c->words ? " " : "", c->words); return;
    case BK_COMPLETE_FOLDERS: fputs("_brick_folders", to); return;
    case BK_COMPLETE_SETTING: fputs("_brick_setting", to); return;
    }
}

static void put_names(FILE *to, const bk_cli *cli, bool valued)
{
    const char *blank = "";
    for (const bk_opt *o = cli->opts; o->name; o++) {
        if (bk_opt_is_positional(o) || (valued && o->type == BK_OPT_FLAG)) continue;
        fprintf(to, "%s%s", blank, o->name);
        blank = " ";
    }
}

static void put_options(void *user, const bk_cli *cli)
{
    FILE *to = user;
    fprintf(to, "    %s)\n        options='", cli->verb);
    put_names(to, cli, false);
    fputs("'\n        valued='", to);
    put_names(to, cli, true);
    fputs("'\n        ;;\n", to);
}

static void put_values(void *user, const bk_cli *cli)
{
    FILE *to = user;
    int place = 0;
    for (const bk_opt *o = cli->opts; o->name; o++) {
        bk_complete c;
        bk_complete_option(o, &c);
        if (bk_opt_is_positional(o)) {
            if (o->type == BK_OPT_LIST)
                fprintf(to, "    \"%s \"[1-9]*) ", cli->verb); /* it takes the rest */
            else
                fprintf(to, "    \"%s %d\") ", cli->verb, ++place);
        } else {
            if (o->type == BK_OPT_FLAG) continue;
            fprintf(to, "    \"%s %s\") ", cli->verb, o->name);
        }
        put_action(to, &c);
        fputs(" ;;\n", to);
    }
}

static void put_keys(FILE *to)
{
    fputs("_brick_setting() { # key=value of a config\n"
          "    if [[ $cur != *=* ]]; then\n"
          "        compopt -o nospace 2>/dev/null\n"
          "        _brick_words '",
          to);
    for (int i = 0; i < bk_key_count; i++) fprintf(to, "%s%s=", i ? " " : "", bk_keys[i].path);
    fputs("'\n        return\n    fi\n    local key=${cur%%=*}\n    head=$head$key=\n    cur=${cur#*=}\n"
          "    case $key in\n",
          to);
    for (int i = 0; i < bk_key_count; i++) {
        bk_complete c;
        bk_complete_key(&bk_keys[i], &c);
        if (c.kind == BK_COMPLETE_NOTHING) continue;
        fprintf(to, "    %s) ", bk_keys[i].path);
        put_action(to, &c);
        fputs(" ;;\n", to);
    }
    fputs("    esac\n}\n", to);
}

void bk_completion_bash(FILE *to)
{
    fputs("# bash completion of brick " BK_VERSION ", printed by `brick completion bash`\n"
          "# shellcheck shell=bash\n_brick_verbs='",
          to);
    for (int i = 0; i < bk_verb_count; i++) fprintf(to, "%s%s", i ? " " : "", bk_verbs[i].name);
    fputs("'\n", to);
    fputs(functions, to);
    put_keys(to);
    fputs("_brick_table() { # VERB: its options, and those with a value\n    case $1 in\n", to);
    for (int i = 0; i < bk_verb_count; i++) bk_verb_table(bk_verbs[i].name, put_options, to);
    fputs("    esac\n}\n_brick_value() { # VERB OPTION, or VERB and the number of a positional argument\n"
          "    case \"$1 $2\" in\n",
          to);
    for (int i = 0; i < bk_verb_count; i++) bk_verb_table(bk_verbs[i].name, put_values, to);
    fputs("    \"help 1\") _brick_words \"$_brick_verbs\" ;;\n    esac\n}\n", to);
    fputs(body, to);
}
