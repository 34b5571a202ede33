/* Completion and manual: everything that the tables have is in them, and bash does with it what is meant. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/completion.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "tests/suite.h"

static char *text; /* of what is tested: bash, zsh, man */
static const char *which;
static bk_error err;

static void make(void (*print)(FILE *))
{
    size_t len;
    FILE *f = open_memstream(&text, &len);
    ck_assert_ptr_nonnull(f);
    print(f);
    ck_assert_int_eq(fclose(f), 0);
}

static const struct {
    const char *name, *verb, *option, *key; /* formats: how a verb, an option of it and a key of a config stand there */
    void (*print)(FILE *);
} outputs[] = {
    {"bash", " %s ", "\n    \"%s %s\") ", " %s=", bk_completion_bash},
    {"zsh", "\n        '%s:", "%.0s'%s", "\n        '%s:", bk_completion_zsh},
    {"man", "\n.SS brick %s\n", "%.0s\n\\fB%s\\fR", "\n.B %s\n", bk_manual},
};

/* "--seqlen" as roff has it. */
static const char *in_roff(const char *name, char to[256])
{
    char *c = to;
    for (; *name && c < to + 250; name++) {
        if (*name == '-') *c++ = '\\';
        *c++ = *name;
    }
    *c = 0;
    return to;
}

static void contains(const char *from, const char *fmt, const char *a, const char *b)
{
    char want[600];
    ck_assert_ptr_nonnull(from);
    snprintf(want, sizeof want, fmt, a, b);
    ck_assert_msg(strstr(from, want), "no '%s' in the text for %s", want, which);
}

/* Where the part about a verb begins, so that an option of another one does not count. */
static const char *part_of(int i, const char *verb)
{
    char head[128];
    static const char *const heads[] = {"\n_brick_value() {", "\n    %s) _arguments", "\n.SS brick %s\n"};
    snprintf(head, sizeof head, heads[i], verb);
    return strstr(text, head);
}

static void check_options(void *user, const bk_cli *cli)
{
    char room[256];
    int i = *(int *)user;
    const char *part = part_of(i, cli->verb),
               *end = i && part ? strstr(part + strlen(cli->verb) + 8, i == 1 ? ") _arguments" : "\n.SS ") : NULL;
    ck_assert_msg(part, "nothing about %s", cli->verb);
    char *own = end ? strndup(part, (size_t)(end - part)) : strdup(part);
    for (const bk_opt *o = cli->opts; o->name; o++) {
        const char *name = i == 2 ? in_roff(o->name, room) : o->name;
        if (i == 0 && bk_opt_is_positional(o)) continue;
        if (i == 0 && o->type == BK_OPT_FLAG)
            contains(text, "%.0s%s", cli->verb, name);
        else if (i == 1 && bk_opt_is_positional(o))
            contains(own, "%.0s:%s:", cli->verb, name);
        else if (i == 1 && o->type == BK_OPT_LIST)
            contains(own, "%.0s'*%s=[", cli->verb, name);
        else
            contains(own, outputs[i].option, cli->verb, name);
    }
    free(own);
}

START_TEST(every_verb_and_option_is_there)
{
    which = outputs[_i].name;
    make(outputs[_i].print);
    for (int v = 0; v < bk_verb_count; v++) {
        contains(text, _i == 0 && v == 0 ? "'%s " : outputs[_i].verb, bk_verbs[v].name, NULL);
        bk_verb_table(bk_verbs[v].name, check_options, &_i);
    }
    free(text);
}
END_TEST

START_TEST(every_key_of_a_config_is_there)
{
    which = outputs[_i].name;
    make(outputs[_i].print);
    for (int k = 0; k < bk_key_count; k++)
        contains(text, k == 0 && _i == 0 ? "'%s=" : outputs[_i].key, bk_keys[k].path, NULL);
    free(text);
}
END_TEST

static void count(void *user, const bk_cli *cli)
{
    ck_assert_ptr_nonnull(cli->opts);
    ++*(int *)user;
}

START_TEST(every_verb_shows_its_table)
{
    for (int v = 0; v < bk_verb_count; v++) {
        int seen = 0;
        bk_verb_table(bk_verbs[v].name, count, &seen);
        ck_assert_msg(seen == 1, "%s", bk_verbs[v].name);
    }
}
END_TEST

/* --- examples --- */

static int examples;

/* One line of examples as the verb would parse it; quotes keep words together. */
static void check_example(const bk_cli *cli, char *line)
{
    char *argv[64], *to;
    int argc = 0;
    bool help;
    for (char *at = line; *at && argc < 63;) {
        while (*at == ' ') at++;
        if (!*at || *at == '|' || *at == '>') break;
        argv[argc++] = to = at;
        for (bool quoted = false; *at && (quoted || *at != ' '); at++)
            if (*at == '"')
                quoted = !quoted;
            else
                *to++ = *at;
        if (*at) at++;
        *to = 0;
    }
    if (argc < 2 || strcmp(argv[0], "brick") != 0) return;
    examples++;
    if (strcmp(argv[1], cli->verb) != 0) return; /* another verb prepares what this one needs */
    bk_status st = bk_cli_parse(cli, argc - 1, argv + 1, &help, &err);
    ck_assert_msg(!st, "example of %s: %s", cli->verb, err.msg);
}

static void check_examples(void *user, const bk_cli *cli)
{
    (void)user;
    ck_assert_msg(cli->examples && *cli->examples, "%s has no examples", cli->verb);
    char *copy = strdup(cli->examples);
    examples = 0;
    for (char *save, *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        check_example(cli, line);
    ck_assert_msg(examples > 0, "%s has no example that calls it", cli->verb);
    free(copy);
}

START_TEST(every_verb_has_examples_that_parse)
{
    for (int v = 0; v < bk_verb_count; v++) bk_verb_table(bk_verbs[v].name, check_examples, NULL);
}
END_TEST

/* --- bash --- */

static char dir[64];

static void setup_bash(void)
{
    strcpy(dir, "/tmp/bk_completion_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    FILE *f = fopen("brick.bash", "w");
    bk_completion_bash(f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(system("mkdir folder && touch one.yaml two.yml three.txt 'with blank.yaml' m.gguf x.h5"), 0);
}

static void teardown_bash(void)
{
    ck_assert_int_eq(chdir("/tmp"), 0);
    ck_assert_int_eq(bk_remove_tree(dir, &err), BK_OK);
}

/* What bash would offer behind `typed`, sorted, with bars between; `settings` come before. compopt is made to say what
 * it was asked. */
static const char *offered(const char *settings, const char *typed)
{
    static char reply[8192];
    char script[2048];
    snprintf(
        script, sizeof script,
        "set -u; source ./brick.bash; compopt() { COMPREPLY+=(\"<$2>\"); }; %s COMP_LINE=$1; COMP_POINT=${#1}; _brick; "
        "printf '%%s\\n' \"${COMPREPLY[@]-}\" | LC_ALL=C sort | paste -sd'|'",
        settings);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        execlp("bash", "bash", "--norc", "-c", script, "bash", typed, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    if (!fgets(reply, sizeof reply, f)) strcpy(reply, "nothing at all");
    fclose(f);
    reply[strcspn(reply, "\n")] = 0;
    return reply;
}

static const struct {
    const char *typed, *offers;
} bash[] = {
    {"brick ev", "eval"},
    {"brick help ev", "eval"},
    {"brick eval --se", "--seed|--seqlen"},
    {"brick eval --bos ", "auto|none"},
    {"brick eval --bos=n", "none"},
    {"brick eval --prefix ", "auto|none"},
    {"brick eval --windows ", "all"},
    {"brick eval --seqlen ", ""},
    {"brick eval --text ", "<default>"},
    {"brick eval --scheme W8A8", "W8A8-static|W8A8KV8-static"},
    {"brick eval --backend ", "cpu|guard|ref"},
    {"brick eval --model m", "<filenames>|m.gguf"},
    {"brick run o", "<filenames>|one.yaml"},
    {"brick run w", "<filenames>|with blank.yaml"},
    {"brick run ", "<filenames>|folder|one.yaml|two.yml|with blank.yaml"},
    {"brick run one.yaml --set train.lo", "<nospace>|train.loss="},
    {"brick run one.yaml --set train.loss=", "clamp_mse|cosine|mse|normalized_mse|skip_mse"},
    {"brick run one.yaml --set=train.loss=m", "mse"},
    {"brick run --set seed=3 --set rotation.r1=f", "false"},
    {"brick run --set scheme=W4A4KV4-s", "W4A4KV4-static"},
    {"brick run --set data.training.text=", "<default>"},
    {"brick run --out ", "<filenames>|folder"},
    {"brick run one.yaml more", ""},
    {"brick plan --json o", "<filenames>|one.yaml"},
    {"brick list q", "quantizers"},
    {"brick dump --sites attn_in,do", "<nospace>|attn_in,down_in|attn_in,down_raw"},
    {"brick dump --out ", "<filenames>|folder|x.h5"},
    {"brick synth --shape q", "qwen2|qwen3"},
    {"brick watch ", "<filenames>|folder"},
    {"brick completion ", "bash|man|zsh"},
    {"brick frobnicate --", "--help"},
};

START_TEST(bash_offers_what_fits)
{
    const char *got = offered("", bash[_i].typed);
    ck_assert_msg(strcmp(got, bash[_i].offers) == 0, "%s: offered '%s', not '%s'", bash[_i].typed, got,
                  bash[_i].offers);
}
END_TEST

/* Some take '=' out of the characters at which readline cuts words. */
START_TEST(bash_replaces_the_whole_word_where_it_is_not_cut_at_equals)
{
    ck_assert_str_eq(offered("COMP_WORDBREAKS=' ';", "brick eval --bos=a"), "--bos=auto");
    ck_assert_str_eq(offered("COMP_WORDBREAKS=' ';", "brick run --set train.keep=l"), "train.keep=last");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("completion");
    TCase *t = tcase_create("texts"), *b = tcase_create("bash");
    tcase_add_loop_test(t, every_verb_and_option_is_there, 0, 3);
    tcase_add_loop_test(t, every_key_of_a_config_is_there, 0, 3);
    tcase_add_test(t, every_verb_shows_its_table);
    tcase_add_test(t, every_verb_has_examples_that_parse);
    tcase_add_checked_fixture(b, setup_bash, teardown_bash);
    tcase_add_loop_test(b, bash_offers_what_fits, 0, sizeof bash / sizeof bash[0]);
    tcase_add_test(b, bash_replaces_the_whole_word_where_it_is_not_cut_at_equals);
    suite_add_tcase(s, t);
    suite_add_tcase(s, b);
    return run_suite(s);
}
