/* What tests of sweeps share: files, results, plans. */
#include "tests/e2e_sweep.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "experiments/stage_kinds.h"
#include "io/file.h"
#include "tests/e2e.h"

void sweep_file(const char *yaml)
{
    e2e_write("sweep.yaml", yaml);
}

/* --- results --- */

bk_json *sweep_parse(const char *text)
{
    bk_json *o;
    bk_error err = {0};
    ck_assert_msg(!bk_json_parse(text, strlen(text), "json", &o, &err), "%s", err.msg);
    return o;
}

char *sweep_cell(const char *dir, int row, const char *column)
{
    char path[256], *save, *out;
    snprintf(path, sizeof path, "%s/results.jsonl", dir);
    char *text = e2e_text(path), *line = strtok_r(text, "\n", &save);
    while (row-- > 0) line = strtok_r(NULL, "\n", &save);
    ck_assert_ptr_nonnull(line);
    bk_json *o = sweep_parse(line);
    const bk_json *v = bk_json_get(o, column);
    ck_assert_msg(v, "no column %s", column);
    out = bk_json_str(v, NULL) ? strdup(bk_json_str(v, NULL)) : bk_json_dump(v, 0);
    bk_json_free(o);
    free(text);
    return out;
}

void sweep_expect_cell(const char *dir, int row, const char *column, const char *value)
{
    char *text = sweep_cell(dir, row, column);
    ck_assert_msg(!strcmp(text, value), "%s of row %d: '%s', want '%s'", column, row, text, value);
    free(text);
}

int sweep_count(const char *path, const char *words)
{
    int n = 0;
    if (!bk_exists(path)) return 0;
    char *text = e2e_text(path);
    for (char *at = text; (at = strstr(at, words)); at++) n++;
    free(text);
    return n;
}

/* Rows without what depends on the clock, the machine and the name of the folder. */
static char *comparable(const char *dir)
{
    char path[256], *save, *out;
    size_t len;
    snprintf(path, sizeof path, "%s/results.jsonl", dir);
    char *text = e2e_text(path);
    FILE *f = open_memstream(&out, &len);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bk_json *o = sweep_parse(line);
        for (void *it = bk_json_first(o); it; it = bk_json_next(o, it)) {
            const char *key = bk_json_key(it);
            if (!strncmp(key, "seconds", 7) || !strcmp(key, "peak_rss_bytes") || !strcmp(key, "folder")) continue;
            char *value = bk_json_dump(bk_json_value(it), 0);
            fprintf(f, "%s=%s ", key, value);
            free(value);
        }
        fputc('\n', f);
        bk_json_free(o);
    }
    fclose(f);
    free(text);
    return out;
}

void sweep_expect_same(const char *a, const char *b)
{
    char *one = comparable(a), *two = comparable(b);
    ck_assert_str_eq(one, two);
    free(one);
    free(two);
}

pid_t sweep_begin(const char *words)
{
    e2e_remove("err");
    return e2e_start("sweep sweep.yaml --out a%s", words);
}

void sweep_set_aside(void)
{
    ck_assert_int_eq(rename("a", "full"), 0);
    ck_assert_int_eq(rename("cache", "full-cache"), 0);
}

void sweep_reference(void)
{
    e2e_brick(0, "sweep sweep.yaml --out a");
    sweep_set_aside();
}

/* --- plans and the ledger --- */

void sweep_plan(void)
{
    e2e_brick(0, "plan sweep.yaml --json --out a");
    ck_assert_int_eq(rename("out", "plan"), 0);
}

int sweep_planned(const char *stage)
{
    int n = -1;
    char *text = e2e_text("plan");
    bk_json *o = sweep_parse(text);
    const bk_json *stages = bk_json_get(o, "stages");
    for (size_t i = 0; i < bk_json_size(stages); i++) {
        const bk_json *s = bk_json_at(stages, i);
        if (!strcmp(bk_json_str(bk_json_get(s, "stage"), ""), stage))
            n = (int)bk_json_int(bk_json_get(s, "to_make"), -1);
    }
    bk_json_free(o);
    free(text);
    ck_assert_int_ge(n, 0);
    return n;
}

int sweep_made(const char *stage)
{
    char words[64];
    snprintf(words, sizeof words, "\"stage\": \"%s\"", stage);
    return sweep_count("cache/ledger.jsonl", words);
}

int sweep_made_in_all(void)
{
    int n = 0;
    for (int k = 0; k < BK_STAGE_KINDS; k++) n += sweep_made(bk_stage_name((bk_stage_kind)k));
    return n;
}

/* --- waiting --- */

void sweep_wait_until(const char *path, const char *words, int n)
{
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < 6000 && sweep_count(path, words) < n; i++) nanosleep(&pause, NULL);
    ck_assert_msg(sweep_count(path, words) >= n, "%d x '%s' did not come up in %s", n, words, path);
}
