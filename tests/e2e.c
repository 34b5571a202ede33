#include "tests/e2e.h"

#include <check.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "io/file.h"

#define WORDS 64
#define CHILD_SECONDS 60

static char root[64], program[4096], preload[4096];
static long limit, memory;
static int stdout_fd = -1, stderr_fd = -1;
static bool closed;
static bk_error err;

static void must(bk_status st)
{
    if (st) ck_abort_msg("%s: %s", bk_status_name(st), err.msg);
}

/* --- the program --- */

static void find_program(void)
{
    char self[2048] = "";
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    char *tests = dirname(self);
    const char *given = getenv("BRICK");
    if (given) ck_assert_ptr_nonnull(realpath(given, program));
    else snprintf(program, sizeof program, "%s/../brick", tests);
    snprintf(preload, sizeof preload, "%s/stop_at.so", tests);
    ck_assert_msg(access(program, X_OK) == 0, "%s is not there: make, or set BRICK", program);
}

static void child(char *const *argv)
{
    const char *const files[] = {NULL, "out", "err"};
    for (int fd = 1; fd <= 2; fd++) {
        int given = fd == 1 ? stdout_fd : stderr_fd, to = given >= 0 ? given : open(files[fd], O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (to < 0 || dup2(to, fd) < 0) _exit(99);
    }
    struct rlimit size = {(rlim_t)limit, (rlim_t)limit};
    if (limit && setrlimit(RLIMIT_FSIZE, &size) != 0) _exit(99);
    size = (struct rlimit){(rlim_t)memory, (rlim_t)memory};
    if (memory && setrlimit(RLIMIT_AS, &size) != 0) _exit(99);
    for (int fd = 0; closed && fd <= 2; fd++) close(fd);
    execv(program, argv);
    _exit(98);
}

static pid_t start(const char *fmt, va_list ap)
{
    char line[4096], *argv[WORDS] = {program};
    int n = 1;
    vsnprintf(line, sizeof line, fmt, ap);
    for (char *save, *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        ck_assert_int_lt(n, WORDS - 1);
        argv[n++] = w;
    }
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) child(argv);
    return pid;
}

pid_t e2e_start(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pid_t pid = start(fmt, ap);
    va_end(ap);
    return pid;
}

int e2e_wait(pid_t pid)
{
    int status = 0;
    const struct timespec pause = {0, 2000000};
    for (int i = 0; waitpid(pid, &status, WNOHANG) == 0; i++) {
        if (i == CHILD_SECONDS * 500) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            ck_abort_msg("the program ran for more than %d s", CHILD_SECONDS);
        }
        nanosleep(&pause, NULL);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void e2e_brick(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int got = e2e_wait(start(fmt, ap));
    va_end(ap);
    if (got != status) ck_abort_msg("exit status %d, want %d: brick %s\n%s", got, status, fmt, e2e_text("err"));
}

void e2e_said(const char *words)
{
    char *text = e2e_text("err");
    ck_assert_msg(strstr(text, words), "'%s' is not in:\n%s", words, text);
    free(text);
}

void e2e_silent(const char *words)
{
    char *text = e2e_text("err");
    ck_assert_msg(!strstr(text, words), "'%s' is in:\n%s", words, text);
    free(text);
}

void e2e_stop_at(const char *at, int sig)
{
    char number[16];
    snprintf(number, sizeof number, "%d", sig);
    if (!at) {
        unsetenv("LD_PRELOAD");
        return;
    }
    ck_assert_msg(access(preload, R_OK) == 0, "%s is not there: `make test-build` builds it", preload);
    setenv("LD_PRELOAD", preload, 1);
    setenv("STOP_AT", at, 1);
    setenv("STOP_SIGNAL", number, 1);
}

void e2e_limit(long bytes)
{
    limit = bytes;
}

#ifndef __has_feature
#define __has_feature(x) 0
#endif
bool e2e_memory(long bytes)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return bytes == 0;
#else
    memory = bytes;
    return true;
#endif
}

void e2e_count(long calls[3], const char *words)
{
    setenv("STOP_COUNT", "count", 1);
    e2e_stop_at("none", 0);
    e2e_brick(0, "%s", words);
    e2e_stop_at(NULL, 0);
    unsetenv("STOP_COUNT");
    char *text = e2e_text("count");
    ck_assert_int_eq(sscanf(text, "%ld %ld %ld", &calls[0], &calls[1], &calls[2]), 3);
    free(text);
}

void e2e_stdout(int fd)
{
    stdout_fd = fd;
}

void e2e_stderr(int fd)
{
    stderr_fd = fd;
}

int e2e_terminal(int *other)
{
    struct termios mode;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) { /* a root without /dev/pts */
        (void)e2e_skipped(1, "a test at a terminal: there are no pseudo-terminals here");
        return -1;
    }
    *other = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_eq(tcgetattr(*other, &mode), 0);
    cfmakeraw(&mode);
    ck_assert_int_eq(tcsetattr(*other, TCSANOW, &mode), 0);
    return terminal;
}

void e2e_closed(bool all_three)
{
    closed = all_three;
}

bool e2e_skipped(int tests, const char *why)
{
    const char *ci = getenv("CI");
    printf("SKIPPED %d: %s\n", tests, why);
    fflush(stdout); /* from a test it would be lost at its end */
    return ci && *ci;
}

/* --- folders --- */

void e2e_begin(void)
{
    find_program();
    unsetenv("OMP_NUM_THREADS"); /* goes before the config */
    unsetenv("BRICK_LOG");
    setenv("BRICK_CACHE", "cache", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    strcpy(root, "/tmp/bk_e2e_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_int_eq(chdir(root), 0);
    e2e_brick(0, "synth --out m --shape tiny --documents 8");
}

void e2e_begin_run(void)
{
    e2e_begin();
    e2e_enter();
    e2e_brick(0, "run run.yaml --out ../run");
    e2e_leave();
}

void e2e_end(void)
{
    ck_assert_int_eq(chdir("/tmp"), 0);
    must(bk_remove_tree(root, &err));
}

void e2e_enter(void)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/case", root);
    must(bk_remove_tree(dir, &err));
    ck_assert_int_eq(mkdir(dir, 0777), 0);
    ck_assert_int_eq(chdir(dir), 0);
    e2e_config("../m", NULL);
}

void e2e_leave(void)
{
    e2e_stop_at(NULL, 0);
    e2e_limit(0);
    (void)e2e_memory(0);
    e2e_stdout(-1);
    e2e_stderr(-1);
    ck_assert_int_eq(chdir(root), 0);
    must(bk_remove_tree("case", &err));
}

void e2e_config(const char *model, const char *more)
{
    char text[4096];
    snprintf(text, sizeof text,
             "model: %s\nscheme: W4A4KV4-static\nseed: 2\nthreads: 1\n"
             "data:\n"
             "  detection:   {text: ../m/train.txt, samples: 2, seqlen: 128}\n"
             "  calibration: {text: ../m/calib.txt, samples: 2, seqlen: 32}\n"
             "  training:    {text: ../m/train.txt, samples: 6, seqlen: 32, validation: 2}\n"
             "  evaluation:  {text: ../m/eval.txt, seqlen: 32, windows: 4}\n"
             "train: {epochs: 2, batch: 2, lr_quant: 1e-3, lr_weight: 1e-3}\n%s",
             model, more ? more : "");
    e2e_write("run.yaml", text);
}

/* --- files --- */

void e2e_exists(const char *path)
{
    ck_assert_msg(bk_exists(path), "%s is not there", path);
}

void e2e_absent(const char *path)
{
    ck_assert_msg(!bk_exists(path), "%s is there", path);
}

char *e2e_text(const char *path)
{
    char *text;
    size_t len;
    must(bk_file_slurp(path, (size_t)1 << 26, &text, &len, &err));
    return text;
}

static void put(const char *path, const char *mode, const char *text, size_t len)
{
    FILE *f = fopen(path, mode);
    ck_assert_msg(f, "%s", path);
    ck_assert_uint_eq(fwrite(text, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

void e2e_write(const char *path, const char *text)
{
    put(path, "w", text, strlen(text));
}

void e2e_append(const char *path, const char *text)
{
    put(path, "a", text, strlen(text));
}

void e2e_replace(const char *path, const char *from, const char *to)
{
    char *text = e2e_text(path), *at = strstr(text, from), *made;
    ck_assert_msg(at, "'%s' is not in %s", from, path);
    ck_assert_int_ge(asprintf(&made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    e2e_write(path, made);
    free(made);
    free(text);
}

void e2e_flip(const char *path, long offset)
{
    FILE *f = fopen(path, "r+");
    ck_assert_msg(f, "%s", path);
    int c;
    ck_assert_int_eq(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
    ck_assert_int_ne(c = fgetc(f), EOF);
    ck_assert_int_eq(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 1, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void shell(const char *fmt, const char *a, const char *b)
{
    char *line;
    ck_assert_int_ge(asprintf(&line, fmt, a, b), 0);
    ck_assert_msg(system(line) == 0, "%s", line);
    free(line);
}

void e2e_other_build(void)
{
    char other[sizeof program];
    shell("cp '%s' '%s' && echo >>other-brick", program, "other-brick");
    ck_assert_ptr_nonnull(realpath("other-brick", other));
    memcpy(program, other, sizeof program);
}

void e2e_copy_tree(const char *from, const char *to)
{
    shell("cp -R '%s' '%s'", from, to);
}

void e2e_copy_model(void)
{
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
}

void e2e_remove(const char *path)
{
    must(bk_remove_tree(path, &err));
}

char *e2e_listing(const char *dir)
{
    shell("find '%s' -type f ! -name lock ! -name '*.lock' ! -name ledger.jsonl ! -name progress.json ! -name listing "
          "-printf '%%P\\n' | "
          "LC_ALL=C sort | (cd '%s' && xargs -r sha256sum) >listing", dir, dir);
    return e2e_text("listing");
}

void e2e_same_tree(const char *a, const char *b)
{
    char *one = e2e_listing(a), *two = e2e_listing(b);
    ck_assert_str_eq(one, two);
    free(one);
    free(two);
}

/* Takes out every "key": value; a value that is an object goes whole. */
static void cut(char *text, const char *key)
{
    for (char *at = text; (at = strstr(at, key));) {
        char *end = at + strlen(key);
        end += *end == '{' ? strcspn(end, "}") + 1 : strcspn(end, ",}\n");
        memmove(at, end, strlen(end) + 1);
    }
}

static void same_text(const char *a, const char *b, const char *name)
{
    char path[512], *text[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", i ? b : a, name);
        text[i] = e2e_text(path);
        cut(text[i], "\"seconds\": ");
        cut(text[i], "\"peak_rss_bytes\": ");
    }
    ck_assert_msg(!strcmp(text[0], text[1]), "%s of %s and %s differ:\n%s\n%s", name, a, b, text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

static void same_names(const char *a, const char *b)
{
    char *text[2];
    for (int i = 0; i < 2; i++) {
        shell("find '%s' ! -name lock -printf '%%P%s\\n' | LC_ALL=C sort >listing", i ? b : a, "");
        text[i] = e2e_text("listing");
    }
    ck_assert_str_eq(text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

void e2e_same_run(const char *a, const char *b)
{
    char one[512], two[512];
    same_names(a, b);
    snprintf(one, sizeof one, "%s/model", a);
    snprintf(two, sizeof two, "%s/model", b);
    e2e_same_tree(one, two);
    snprintf(one, sizeof one, "%s/prefix.h5", a);
    snprintf(two, sizeof two, "%s/prefix.h5", b);
    if (bk_exists(one)) shell("cmp '%s' '%s'", one, two);
    same_text(a, b, "summary.json");
    same_text(a, b, "metrics.jsonl");
    same_text(a, b, "manifest.json");
}

double e2e_number(const char *json, const char *key, const char *inner)
{
    bk_json *o;
    must(bk_json_load(json, &o, &err));
    const bk_json *v = bk_json_get(o, key);
    double x = bk_json_num(inner ? bk_json_get(v, inner) : v, NAN);
    bk_json_free(o);
    return x;
}

double e2e_row(const char *dir, const char *name)
{
    char path[512];
    bk_json *o;
    double ppl = NAN;
    snprintf(path, sizeof path, "%s/summary.json", dir);
    must(bk_json_load(path, &o, &err));
    const bk_json *table = bk_json_get(o, "table");
    for (size_t i = 0; i < bk_json_size(table); i++) {
        const bk_json *row = bk_json_at(table, i);
        if (!strcmp(bk_json_str(bk_json_get(row, "row"), ""), name)) ppl = bk_json_num(bk_json_get(row, "ppl"), NAN);
    }
    bk_json_free(o);
    ck_assert_msg(!isnan(ppl), "no row '%s' in %s", name, path);
    return ppl;
}

/* --- models --- */

bk_synth *e2e_synth(const char *shape)
{
    bk_config c;
    bk_synth *s;
    must(bk_synth_shape(shape, &c, &err));
    must(bk_synth_create(&c, 1, &s, &err));
    return s;
}

void e2e_synth_write(bk_synth *s, const char *dir)
{
    must(bk_synth_write(s, dir, 0, &err));
    bk_synth_free(s);
}
