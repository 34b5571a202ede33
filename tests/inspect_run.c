#include "tests/inspect_run.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/verbs.h"
#include "io/file.h"

bk_error inspect_err;
static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/bk_inspect_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    bk_error_clear(&inspect_err);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

TCase *inspect_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}

const char *inspect_file(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

char *inspect_shown(bk_inspect_options o)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    DONE(bk_inspect(&o, out, &inspect_err));
    fclose(out);
    return text;
}

bk_json *inspect_json(bk_inspect_options o)
{
    o.json = true;
    char *text = inspect_shown(o);
    bk_json *j;
    DONE(bk_json_parse(text, strlen(text), "inspect", &j, &inspect_err));
    free(text);
    return j;
}

static void run_child(const char *const *args, const char *errors)
{
    const char *argv[16] = {"inspect"};
    int argc = 1;
    for (; args[argc - 1]; argc++) argv[argc] = args[argc - 1];
    int null = open("/dev/null", O_WRONLY), to = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(null, 1);
    dup2(to, 2);
    int code = bk_verb_inspect(argc, (char **)argv);
    fflush(NULL);
    _exit(code);
}

int inspect_verb(const char *const *args, char said[2048])
{
    char errors[128];
    snprintf(errors, sizeof errors, "%s/stderr", dir);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) run_child(args, errors);
    int how;
    waitpid(pid, &how, 0);
    FILE *f = fopen(errors, "r");
    size_t n = f ? fread(said, 1, 2047, f) : 0;
    said[n] = 0;
    if (f) fclose(f);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}
