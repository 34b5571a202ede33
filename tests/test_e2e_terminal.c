/* What a terminal is shown that a pipe is not: colours and lines that are redrawn; and that NO_COLOR and TERM=dumb take them
 * off. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e.h"
#include "tests/suite.h"

#define RED "\033[31m"

static int terminal, other;
static char shown[65536];

static void enter(void)
{
    e2e_enter();
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    terminal = e2e_terminal(&other);
    e2e_stderr(other);
}

static void leave(void)
{
    if (terminal >= 0) {
        close(terminal);
        close(other);
    }
    e2e_leave();
}

static void take(size_t *len)
{
    struct pollfd there = {.fd = terminal, .events = POLLIN};
    while (*len + 1 < sizeof shown && poll(&there, 1, 10) == 1 && there.revents & POLLIN) {
        ssize_t n = read(terminal, shown + *len, sizeof shown - 1 - *len);
        ck_assert_int_gt(n, 0);
        *len += (size_t)n;
    }
    shown[*len] = 0;
}

/* Runs `brick <words>` and reads what it says to the terminal meanwhile, or the terminal would be full. */
static void show(int status, const char *words)
{
    int how;
    size_t len = 0;
    pid_t pid = e2e_start("%s", words), ended = 0;
    for (int i = 0; i < 6000 && !(ended = waitpid(pid, &how, WNOHANG)); i++) take(&len);
    take(&len);
    ck_assert_int_eq(ended, pid);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == status, "brick %s:\n%s", words, shown);
}

static void has(const char *words)
{
    ck_assert_msg(strstr(shown, words), "'%s' is not in:\n%s", words, shown);
}

static void has_no_control_characters(void)
{
    for (const char *c = shown; *c; c++)
        ck_assert_msg(*c == '\n' || *c >= ' ' || *c < 0, "a control character %d in:\n%s", *c, shown);
}

static const struct {
    const char *name, *value;
    bool coloured;
} colours[] = {{"TERM", "xterm", true},
               {"NO_COLOR", "", true}, /* as https://no-color.org has it: set and not empty */
               {"NO_COLOR", "1", false},
               {"NO_COLOR", "0", false},
               {"TERM", "dumb", false}};

START_TEST(errors_are_red_unless_asked_otherwise)
{
    if (terminal < 0) return;
    setenv(colours[_i].name, colours[_i].value, 1);
    show(3, "eval --model nowhere --text ../m/eval.txt");
    has(colours[_i].coloured ? RED "brick: nowhere" : "brick: nowhere");
    if (!colours[_i].coloured) has_no_control_characters();
}
END_TEST

/* A run with a stage that takes longer than the pause between two drawings. */
#define LONG "run run.yaml --set train.epochs=300 --out a"

START_TEST(progress_is_redrawn_in_place)
{
    if (terminal < 0) return;
    setenv("NO_COLOR", "1", 1); /* which is of colours alone */
    show(0, LONG);
    has("\r[4/5] train");
}
END_TEST

START_TEST(progress_on_a_dumb_terminal_is_plain_lines)
{
    if (terminal < 0) return;
    setenv("TERM", "dumb", 1);
    show(0, LONG);
    has("[4/5] train: done");
    has_no_control_characters();
}
END_TEST

START_TEST(watch_on_a_dumb_terminal_writes_plain_lines)
{
    if (terminal < 0) return;
    setenv("TERM", "dumb", 1);
    show(0, "run run.yaml --out a");
    e2e_stdout(other);
    show(0, "watch a --interval 0.1");
    has("a: finished: perplexity");
    has_no_control_characters();
}
END_TEST

START_TEST(progress_is_silent_where_only_warnings_are_wanted)
{
    if (terminal < 0) return;
    setenv("BRICK_LOG", "warn", 1);
    show(0, LONG);
    ck_assert_str_eq(shown, "");
    unsetenv("BRICK_LOG");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_terminal");
    TCase *t = tcase_create("terminal");
    tcase_set_timeout(t, 60);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, enter, leave);
    tcase_add_loop_test(t, errors_are_red_unless_asked_otherwise, 0, sizeof colours / sizeof colours[0]);
    tcase_add_test(t, progress_is_redrawn_in_place);
    tcase_add_test(t, progress_on_a_dumb_terminal_is_plain_lines);
    tcase_add_test(t, watch_on_a_dumb_terminal_writes_plain_lines);
    tcase_add_test(t, progress_is_silent_where_only_warnings_are_wanted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
