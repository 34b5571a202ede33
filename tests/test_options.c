#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/list.h"
#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/progress.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "tests/suite.h"

static struct {
    const char *config, *text;
    int64_t n, windows;
    double x;
    bool json, help;
    bk_opt_list sets, rest;
} v;
static bk_error err;

static const bk_opt opts[] = {
    {.name = "CONFIG", .type = BK_OPT_TEXT, .to = &v.config, .initial = "", .about = "the config"},
    {.name = "MORE", .type = BK_OPT_LIST, .to = &v.rest, .about = "more of them"},
    {.name = "--seqlen", .type = BK_OPT_INT, .to = &v.n, .metavar = "N", .initial = "2048", .min = 1, .max = 100, .about = "tokens"},
    {.name = "--windows", .type = BK_OPT_INT, .to = &v.windows, .metavar = "N", .initial = "all", .min = 1, .max = 100, .about = "windows"},
    {.name = "--factor", .type = BK_OPT_REAL, .to = &v.x, .metavar = "X", .min = 0, .max = 1, .about = "a factor"},
    {.name = "--text", .type = BK_OPT_TEXT, .to = &v.text, .metavar = "F", .about = "a text"},
    {.name = "--set", .type = BK_OPT_LIST, .to = &v.sets, .metavar = "K=V", .about = "settings"},
    {.name = "--json", .type = BK_OPT_FLAG, .to = &v.json, .about = "JSON"},
    {0},
};
static const bk_cli cli = {"try", "tries options", opts, "brick try x\n"};

/* Splits a line at blanks and parses it as the arguments of a verb. */
static bk_status parse(const char *line)
{
    static char copy[512];
    char *argv[32] = {"try"};
    int argc = 1;
    memset(&v, 0, sizeof v);
    v.n = 2048;
    v.windows = -1;
    err = (bk_error){0};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *save, *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    return bk_cli_parse(&cli, argc, argv, &v.help, &err);
}

START_TEST(values_arrive)
{
    ck_assert_int_eq(parse("c.yaml --seqlen 12 --factor=0.5 --set a=1 --json --set b=2 --text=t=u x y"), BK_OK);
    ck_assert_str_eq(v.config, "c.yaml");
    ck_assert_int_eq(v.n, 12);
    ck_assert(v.x == 0.5 && v.json);
    ck_assert_int_eq(v.sets.n, 2);
    ck_assert_str_eq(v.sets.item[1], "b=2");
    ck_assert_str_eq(v.text, "t=u");
    ck_assert_int_eq(v.rest.n, 2);
    ck_assert_str_eq(v.rest.item[1], "y");
}
END_TEST

START_TEST(defaults_stay)
{
    ck_assert_int_eq(parse("c.yaml"), BK_OK);
    ck_assert_int_eq(v.n, 2048);
    ck_assert(!v.json && !v.text);
}
END_TEST

START_TEST(default_in_words_can_be_given)
{
    ck_assert_int_eq(parse("c.yaml --windows all"), BK_OK);
    ck_assert_int_eq(v.windows, -1);
    ck_assert_int_eq(parse("c.yaml --windows al"), BK_EINVAL);
    ck_assert_int_eq(parse("c.yaml --seqlen all"), BK_EINVAL);
}
END_TEST

START_TEST(head_too_long_for_its_column_has_a_line_for_itself)
{
    static const bk_opt wide[] = {{.name = "--rotate", .type = BK_OPT_TEXT, .metavar = "none|all|r1,r2,..", .about = "rotations"}, {0}};
    static const bk_cli long_cli = {"try", "tries options", wide, "brick try x\n"};
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bk_cli_help(&long_cli, f);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(text, "  --rotate none|all|r1,r2,..\n                         rotations\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  brick try x\n"));
    free(text);
}
END_TEST

START_TEST(two_dashes_end_options)
{
    ck_assert_int_eq(parse("-- --json -h"), BK_OK);
    ck_assert_str_eq(v.config, "--json");
    ck_assert(!v.json && !v.help);
}
END_TEST

static const struct {
    const char *line, *word;
} bad[] = {
    {"c --seqeln 5", "'--seqlen'"},
    {"c --jsno", "'--json'"},
    {"c --frobnicate", "unknown option"},
    {"c --seqlen", "missing"},
    {"c --seqlen 5.0", "whole number"},
    {"c --seqlen 0", "1 to 100"},
    {"c --seqlen 101", "1 to 100"},
    {"c --seqlen 99999999999999999999", "too large"},
    {"c --seqlen=", "whole number"},
    {"c --factor nan", "number"},
    {"c --factor 1e999", "number"},
    {"c --factor 2", "0 to 1"},
    {"c --json=yes", "no value"},
    {"c --json --json", "twice"},
    {"c --text a --text b", "twice"},
    {"--json", "CONFIG is required"},
};

START_TEST(bad_line_says_what_is_wrong)
{
    ck_assert_int_eq(parse(bad[_i].line), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, bad[_i].word) != NULL, "no '%s' in '%s'", bad[_i].word, err.msg);
}
END_TEST

START_TEST(help_shows_every_option)
{
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bk_cli_help(&cli, f);
    fclose(f);
    for (const bk_opt *o = opts; o->name; o++) ck_assert_msg(strstr(text, o->name) != NULL, "%s", o->name);
    ck_assert_ptr_nonnull(strstr(text, "default 2048"));
    ck_assert_ptr_nonnull(strstr(text, "brick try x"));
    free(text);
}
END_TEST

static const struct {
    const char *typed, *word;
} near[] = {
    {"evla", "eval"}, {"EVAL", "eval"}, {"generaet", "generate"}, {"gen", "generate"}, {"outlier", "outliers"}, {"zzz", NULL}, {"", NULL},
    {"x", NULL}, {"e", NULL}, {"a word that is longer than any that could be compared here", NULL},
};

START_TEST(suggestion_is_the_nearest_word)
{
    static const char *const words[] = {"run", "eval", "generate", "outliers", "dump"};
    const char *got = bk_suggest(near[_i].typed, words, 5);
    ck_assert_msg(got == near[_i].word || (got && near[_i].word && strcmp(got, near[_i].word) == 0), "%s: %s", near[_i].typed, got);
}
END_TEST

START_TEST(exit_codes_are_those_of_the_contract)
{
    static const int wanted[BK_STATUS_COUNT] = {0, 2, 2, 5, 2, 3, 3, 4, 5, 5, 130};
    for (int s = 0; s < BK_STATUS_COUNT; s++) ck_assert_int_eq(bk_exit_code((bk_status)s), wanted[s]);
}
END_TEST

START_TEST(first_signal_sets_the_flag)
{
    bk_signals_install();
    ck_assert(!bk_cancelled());
    raise(SIGTERM);
    ck_assert(bk_cancelled());
    err = (bk_error){0};
    ck_assert_int_eq(bk_check_cancelled(&err), BK_ECANCEL);
}
END_TEST

START_TEST(second_signal_ends_at_once)
{
    pid_t child = fork();
    if (child == 0) {
        bk_signals_install();
        raise(SIGINT);
        raise(SIGHUP);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 130);
}
END_TEST

START_TEST(closed_pipes_do_not_kill)
{
    int ends[2];
    bk_signals_install();
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    ck_assert_int_eq(write(ends[1], "x", 1), -1);
    close(ends[1]);
}
END_TEST

START_TEST(log_file_gets_what_is_said)
{
    char path[] = "/tmp/brick_log_XXXXXX", text[256] = "";
    int fd = mkstemp(path);
    ck_assert_int_eq(bk_log_open(path, &err), BK_OK);
    bk_log(BK_LOG_WARN, "block %d", 7);
    bk_log(BK_LOG_TRACE, "nothing");
    bk_log(BK_LOG_WARN, "\x1b[31m\xff \"\\n\"");
    ck_assert_int_eq(bk_log_close(&err), BK_OK);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    ck_assert_str_eq(text, "warn  block 7\nwarn  \\x1b[31m\\xff \"\\n\"\n");
    close(fd);
    unlink(path);
}
END_TEST

START_TEST(log_on_a_full_disk_is_noticed)
{
    err = (bk_error){0};
    ck_assert_int_eq(bk_log_open("/dev/full", &err), BK_OK);
    bk_log(BK_LOG_WARN, "lost");
    ck_assert_int_eq(bk_log_close(&err), BK_ENOSPC);
}
END_TEST

START_TEST(unknown_log_level_gets_a_suggestion)
{
    err = (bk_error){0};
    setenv("BRICK_LOG", "debgu", 1);
    ck_assert_int_eq(bk_log_init(&err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "'debug'"));
    setenv("BRICK_LOG", "debug", 1);
    ck_assert_int_eq(bk_log_init(&err), BK_OK);
    ck_assert(bk_log_enabled(BK_LOG_DEBUG) && !bk_log_enabled(BK_LOG_TRACE));
    unsetenv("BRICK_LOG");
}
END_TEST

START_TEST(progress_ends_with_a_line_of_its_time)
{
    char path[] = "/tmp/brick_log_XXXXXX", text[256] = "";
    int fd = mkstemp(path);
    bk_progress p;
    ck_assert_int_eq(bk_log_open(path, &err), BK_OK);
    bk_progress_begin(&p, "train", 5, 6, 0);
    bk_progress_step(&p, 1);
    bk_progress_end(&p);
    ck_assert_int_eq(bk_log_close(&err), BK_OK);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    ck_assert_str_eq(text, "info  [5/6] train: done in 0s\n");
    close(fd);
    unlink(path);
}
END_TEST

START_TEST(every_topic_of_list_prints)
{
    for (int i = 0; i < bk_list_topic_count; i++) {
        char *text;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        bk_list_topics[i].print(f);
        fclose(f);
        ck_assert_msg(len > 0, "%s", bk_list_topics[i].name);
        free(text);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("options");
    TCase *t = tcase_create("options");
    tcase_add_test(t, values_arrive);
    tcase_add_test(t, defaults_stay);
    tcase_add_test(t, default_in_words_can_be_given);
    tcase_add_test(t, head_too_long_for_its_column_has_a_line_for_itself);
    tcase_add_test(t, two_dashes_end_options);
    tcase_add_loop_test(t, bad_line_says_what_is_wrong, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(t, help_shows_every_option);
    tcase_add_loop_test(t, suggestion_is_the_nearest_word, 0, (int)(sizeof near / sizeof near[0]));
    tcase_add_test(t, exit_codes_are_those_of_the_contract);
    tcase_add_test(t, first_signal_sets_the_flag);
    tcase_add_test(t, second_signal_ends_at_once);
    tcase_add_test(t, closed_pipes_do_not_kill);
    tcase_add_test(t, log_file_gets_what_is_said);
    tcase_add_test(t, log_on_a_full_disk_is_noticed);
    tcase_add_test(t, unknown_log_level_gets_a_suggestion);
    tcase_add_test(t, progress_ends_with_a_line_of_its_time);
    tcase_add_test(t, every_topic_of_list_prints);
    suite_add_tcase(s, t);
    return run_suite(s);
}
