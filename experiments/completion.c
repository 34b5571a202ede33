/* brick completion: what a shell may offer, and the files that tell it to bash, zsh and man. */
#include "experiments/completion.h"

#include <ctype.h>
#include <string.h>

#include "blocks/names.h"
#include "experiments/backends.h"
#include "experiments/list.h"
#include "experiments/scheme.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"

static void add_word(bk_complete *c, const char *word, size_t len)
{
    size_t used = strlen(c->words);
    if (used + len + 2 > sizeof c->words) return;
    snprintf(c->words + used, sizeof c->words - used, "%s%.*s", used ? " " : "", (int)len, word);
}

static void add_schemes(bk_complete *c)
{
    for (int i = 0; i < bk_common_scheme_count; i++) add_word(c, bk_common_schemes[i], strlen(bk_common_schemes[i]));
}

static void add_backends(bk_complete *c)
{
    for (int i = 0; i < bk_backend_count; i++) add_word(c, bk_backends[i].name, strlen(bk_backends[i].name));
}

static void add_topics(bk_complete *c)
{
    for (int i = 0; i < bk_list_topic_count; i++) add_word(c, bk_list_topics[i].name, strlen(bk_list_topics[i].name));
}

static void add_sites(bk_complete *c)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) add_word(c, bk_site_name[i], strlen(bk_site_name[i]));
}

/* The words of "a|b|1,2": those that stand for themselves. */
static void add_choices(bk_complete *c, const char *choices)
{
    for (const char *w = choices; *w;) {
        size_t len = strcspn(w, "|");
        if (strcspn(w, ",.=") >= len) add_word(c, w, len);
        w += len + (w[len] == '|');
    }
}

static const struct {
    const char *metavar;
    bk_complete_kind kind;
    const char *endings;
    void (*add)(bk_complete *c);
} metavars[] = {
    {"key=value", BK_COMPLETE_SETTING, NULL, NULL},
    {"CONFIG", BK_COMPLETE_FILES, "yaml yml", NULL},
    {"SWEEP", BK_COMPLETE_FILES, "yaml yml", NULL},
    {"M", BK_COMPLETE_FILES, "gguf", NULL},
    {"FILE", BK_COMPLETE_FILES, "", NULL},
    {"DIR", BK_COMPLETE_FOLDERS, NULL, NULL},
    {"RUN", BK_COMPLETE_FOLDERS, NULL, NULL},
    {"S", BK_COMPLETE_WORDS, NULL, add_schemes},
    {"B", BK_COMPLETE_WORDS, NULL, add_backends},
    {"TOPIC", BK_COMPLETE_WORDS, NULL, add_topics},
    {"down_in,key,..", BK_COMPLETE_COMMAS, NULL, add_sites},
};

void bk_complete_option(const bk_opt *o, bk_complete *out)
{
    const char *metavar = o->metavar ? o->metavar : o->name, *dot = strrchr(metavar, '.');
    *out = (bk_complete){0};
    if (o->type == BK_OPT_FLAG) return;
    if (o->type == BK_OPT_INT || o->type == BK_OPT_REAL) {
        bool word =
            o->initial && isalpha((unsigned char)*o->initial) && !strchr(o->initial, ' '); /* "all" may be said */
        if (word) *out = (bk_complete){.kind = BK_COMPLETE_WORDS};
        if (word) add_word(out, o->initial, strlen(o->initial));
        return;
    }
    for (size_t i = 0; i < sizeof metavars / sizeof metavars[0]; i++) {
        if (strcmp(metavars[i].metavar, metavar) != 0) continue;
        out->kind = metavars[i].kind;
        if (metavars[i].endings) add_word(out, metavars[i].endings, strlen(metavars[i].endings));
        if (metavars[i].add) metavars[i].add(out);
        return;
    }
    if (strchr(metavar, '|')) {
        out->kind = BK_COMPLETE_WORDS;
        add_choices(out, metavar);
    } else if (dot && dot != metavar && dot[1] && dot[-1] != '.') { /* "X.h5" */
        out->kind = BK_COMPLETE_FILES;
        add_word(out, dot + 1, strlen(dot + 1));
    }
}

void bk_complete_key(const bk_key *k, bk_complete *out)
{
    *out = (bk_complete){.kind = BK_COMPLETE_WORDS};
    if (k->choices)
        add_choices(out, k->choices);
    else if (k->type == BK_KEY_BOOL || k->type == BK_KEY_OPTION_BOOL)
        add_choices(out, "true|false");
    else if (strcmp(k->path, "scheme") == 0)
        add_schemes(out);
    else
        out->kind = k->type == BK_KEY_PATH ? BK_COMPLETE_FILES : BK_COMPLETE_NOTHING;
}

void bk_verb_table(const char *verb, void (*see)(void *user, const bk_cli *cli), void *user)
{
    bk_cli_ask ask = {see, user};
    for (int i = 0; i < bk_verb_count; i++)
        if (strcmp(bk_verbs[i].name, verb) == 0) bk_verbs[i].run(BK_CLI_ASK, (char **)&ask);
}

int bk_verb_completion(int argc, char **argv)
{
    static const char *const names[] = {"bash", "zsh", "man"};
    static void (*const print[])(FILE *) = {bk_completion_bash, bk_completion_zsh, bk_manual};
    const char *what = NULL;
    const bk_opt opts[] = {{.name = "WHAT",
                            .type = BK_OPT_TEXT,
                            .to = &what,
                            .metavar = "bash|zsh|man",
                            .initial = "",
                            .about = "bash, zsh, or man"},
                           {0}};
    const bk_cli cli = {
        "completion", "prints completion for a shell, or the manual page; `make install` puts them where they belong",
        opts, "source <(brick completion bash)\nbrick completion zsh >_brick\nbrick completion man | man -l -\n"};
    int code;
    char near[128];
    bk_error err = {0};
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(names[i], what) != 0) continue;
        print[i](stdout);
        return BK_EXIT_OK;
    }
    return bk_exit_report(bk_fail(&err, BK_EINVAL, "completion: '%.60s' is none of bash, zsh, man%s", what,
                                  bk_suggest_text(what, names, 3, near, sizeof near)),
                          &err);
}
