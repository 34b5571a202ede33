/* Bytes that change on the disk: whatever file of a run or a stage it is, the run that goes on notices, and either makes again what was lost, to
 * the same bytes, or says which file it is and what to do. */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/e2e.h"
#include "tests/suite.h"

/* HDF5 itself loses memory when a file turns out to be damaged half way. */
static void begin(void)
{
    e2e_begin();
    e2e_write("lsan", "leak:libhdf5\n");
    setenv("LSAN_OPTIONS", "suppressions=../lsan:print_suppressions=0", 1);
}

static void full(void)
{
    e2e_brick(0, "run run.yaml --out full");
}

/* A run in the folder a that was killed as soon as there was that file; `from`: the first rename to try. */
static void killed_with(const char *file, long from)
{
    for (long n = from;; n++) {
        char at[32];
        snprintf(at, sizeof at, "rename:%ld", n);
        e2e_remove("a");
        e2e_remove("cache");
        e2e_stop_at(at, SIGKILL);
        int status = e2e_wait(e2e_start("run run.yaml --out a"));
        e2e_stop_at(NULL, 0);
        ck_assert_msg(status == 128 + SIGKILL, "the run ended before there was %s", file);
        if (bk_exists(file)) return;
    }
}

/* The name of the first file of a folder that starts so. */
static char *find(const char *dir, const char *start)
{
    static char path[512];
    DIR *d = opendir(dir);
    ck_assert_msg(d, "%s", dir);
    path[0] = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, start, strlen(start)) && (!path[0] || strcmp(strrchr(path, '/') + 1, e->d_name) > 0))
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    closedir(d);
    ck_assert_msg(path[0], "%s/%s*", dir, start);
    return path;
}

static void flip_middle(const char *path)
{
    struct stat st;
    ck_assert_msg(stat(path, &st) == 0, "%s", path);
    e2e_flip(path, (long)st.st_size / 2);
}

/* --- an unfinished run --- */

/* Where the run is killed, what is damaged then, and what is said. */
static const struct {
    const char *killed_with;
    long from;
    const char *file, *said;
} unfinished[] = {
    {"a/targets/000.h5", 15, "a/targets/000.h5", "targets/000.h5"},          /* no block trained yet */
    {"a/targets/001.h5", 18, "a/targets/001.h5", "targets/001.h5"},          /* made again from block 0 on */
    {"a/targets/001.h5", 18, "a/model/model-00001-of-00003.safetensors", "training starts over at block 0"},
    {"a/checkpoint.h5", 17, "a/metrics.jsonl", "training starts over at block 0"},
    {"a/targets/001.h5", 18, "a/manifest.json", "manifest.json"},
    {"a/rows.json", 28, "a/rows.json", "rows.json"},
    {"a/rows.json", 28, "a/model/model-00002-of-00003.safetensors", "training starts over at block 1"},
    {"a/rows.json", 28, "a/model/model-00001-of-00003.safetensors", "training starts over at block 0"},
    {"a/rows.json", 28, "a/metrics.jsonl", "metrics.jsonl"},
    {"a/rows.json", 28, "a/manifest.json", "manifest.json"},
    {"a/rows.json", 28, "a/model/model-00003-of-00003.safetensors", NULL}, /* these are written anew in any case */
    {"a/rows.json", 28, "a/model/config.json", NULL},
    {"a/rows.json", 28, "a/prefix.h5", NULL},
};

START_TEST(an_unfinished_run_makes_again_what_was_damaged)
{
    full();
    killed_with(unfinished[_i].killed_with, unfinished[_i].from);
    flip_middle(unfinished[_i].file);
    e2e_brick(0, "run run.yaml --out a --resume");
    if (unfinished[_i].said) e2e_said(unfinished[_i].said);
    e2e_same_run("full", "a");
}
END_TEST

static const int missing[] = {1, 2, 3, 5};

START_TEST(an_unfinished_run_makes_again_what_is_missing)
{
    int i = missing[_i];
    full();
    killed_with(unfinished[i].killed_with, unfinished[i].from);
    e2e_remove(unfinished[i].file);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

/* Parts of the checkpoint in turn: what counts in it is found, and the rest changes nothing. */
START_TEST(a_damaged_checkpoint_is_never_believed)
{
    struct stat st;
    full();
    killed_with("a/targets/001.h5", 18);
    e2e_copy_tree("a", "kept");
    ck_assert_int_eq(stat("a/checkpoint.h5", &st), 0);
    int over = 0;
    for (long at = 7; at < st.st_size; at += st.st_size / 20) {
        e2e_remove("a");
        e2e_copy_tree("kept", "a");
        e2e_flip("a/checkpoint.h5", at);
        e2e_brick(0, "run run.yaml --out a --resume");
        char *text = e2e_text("err");
        over += strstr(text, "checkpoint.h5") != NULL;
        free(text);
        e2e_same_run("full", "a");
    }
    ck_assert_int_gt(over, 3);
}
END_TEST

/* Damage while the run is under way: it stops, and its advice works. Some sample of each dataset is hit. */
START_TEST(targets_that_are_damaged_under_way_stop_the_run)
{
    int status;
    full();
    e2e_stop_at("rename:17", SIGSTOP);
    e2e_remove("cache");
    pid_t pid = e2e_start("run run.yaml --out a");
    e2e_stop_at(NULL, 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    for (long k = -2; k <= 2; k++) {
        struct stat st;
        ck_assert_int_eq(stat("a/targets/001.h5.partial", &st), 0);
        e2e_flip("a/targets/001.h5.partial", st.st_size / 2 + k * 4100);
    }
    kill(pid, SIGCONT);
    ck_assert_int_eq(e2e_wait(pid), 3);
    e2e_said("a/targets/001.h5");
    e2e_said("/blocks/001/");
    e2e_said("--resume makes it again");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

/* --- a finished run --- */

static const char *const finished[] = {"a/summary.json", "a/metrics.jsonl", "a/manifest.json", "a/rows.json", "a/checkpoint.h5", "a/prefix.h5",
                                       "a/SHA256SUMS", "a/model/model-00001-of-00003.safetensors", "a/model/model-00002-of-00003.safetensors",
                                       "a/model/model-00003-of-00003.safetensors", "a/model/config.json", "a/model/tokenizer.json",
                                       "a/model/model.safetensors.index.json", "a/model/SHA256SUMS"};
enum { FIRST_OF_MODEL = 7 };

START_TEST(a_finished_run_is_not_believed_when_it_is_damaged)
{
    const char *file = finished[_i];
    full();
    e2e_copy_tree("full", "a");
    flip_middle(file);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said(strrchr(file, '/') + 1);
    e2e_said("--resume");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_said(strrchr(file, '/') + 1);
    e2e_same_run("full", "a");
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("finished");
}
END_TEST

static const char *const lost[] = {"a/summary.json", "a/SHA256SUMS", "a/model/model-00002-of-00003.safetensors"};

START_TEST(a_finished_run_is_made_again_where_files_are_missing)
{
    full();
    e2e_copy_tree("full", "a");
    e2e_remove(lost[_i]);
    e2e_brick(_i ? 3 : 2, "run run.yaml --out a"); /* without a summary it is unfinished */
    e2e_said("--resume");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

START_TEST(eval_of_a_damaged_model_names_the_file)
{
    const char *file = finished[_i];
    full();
    e2e_copy_tree("full", "a");
    flip_middle(file);
    e2e_brick(3, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1");
    e2e_said(strrchr(file, '/') + 1);
    e2e_brick(3, "eval --model a/model --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

/* A resumed run that is killed again does not leave a folder that looks finished. */
START_TEST(a_repair_that_is_killed_goes_on)
{
    full();
    for (long n = 1;; n += 2) {
        char at[32];
        e2e_remove("a");
        e2e_copy_tree("full", "a");
        flip_middle("a/model/model-00001-of-00003.safetensors");
        snprintf(at, sizeof at, "rename:%ld", n);
        e2e_stop_at(at, SIGKILL);
        int status = e2e_wait(e2e_start("run run.yaml --out a --resume"));
        e2e_stop_at(NULL, 0);
        if (status == 0) break;
        ck_assert_int_eq(status, 128 + SIGKILL);
        e2e_brick(0, "run run.yaml --out a --resume");
        e2e_same_run("full", "a");
    }
}
END_TEST

/* --- stages --- */

static const struct {
    const char *stage, *file;
} stages[] = {{"outliers-", "outliers.json"}, {"outliers-", "depends.txt"}, {"init-", "000.h5"}, {"init-", "001.h5"}, {"init-", "SHA256SUMS"},
              {"row-fp-", "row.json"}, {"row-init-", "row.json"}, {"row-init-", "depends.txt"}};

START_TEST(a_damaged_stage_is_made_anew)
{
    char path[600];
    full();
    e2e_copy_tree("cache", "cache-full");
    snprintf(path, sizeof path, "%s/%s", find("cache", stages[_i].stage), stages[_i].file);
    flip_middle(path);
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("made anew");
    e2e_said(stages[_i].stage);
    e2e_same_run("full", "a");
    e2e_same_tree("cache-full", "cache");
}
END_TEST

START_TEST(runs_at_once_mend_a_stage_once)
{
    pid_t pid[3];
    full();
    e2e_copy_tree("cache", "cache-full");
    char path[600];
    snprintf(path, sizeof path, "%s/000.h5", find("cache", "init-"));
    flip_middle(path);
    for (int i = 0; i < 3; i++) pid[i] = e2e_start("run run.yaml --out r%d", i);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(e2e_wait(pid[i]), 0);
    for (int i = 0; i < 3; i++) {
        char dir[8];
        snprintf(dir, sizeof dir, "r%d", i);
        e2e_same_run("full", dir);
    }
    e2e_same_tree("cache-full", "cache");
}
END_TEST

START_TEST(who_makes_a_stage_elsewhere_is_named)
{
    char dir[512], lock[600];
    full();
    snprintf(dir, sizeof dir, "%s", find("cache", "init-"));
    snprintf(lock, sizeof lock, "%s.lock", dir);
    e2e_remove(dir);
    ck_assert_int_eq(symlink("77.1.1.00000001@elsewhere", lock), 0);
    pid_t pid = e2e_start("run run.yaml --out a");
    for (int i = 0; i < 3000; i++) {
        char *text = bk_exists("err") ? e2e_text("err") : NULL;
        bool waits = text && strstr(text, "waiting");
        free(text);
        if (waits) break;
        usleep(10000);
    }
    kill(pid, SIGINT);
    ck_assert_int_eq(e2e_wait(pid), 130);
    e2e_said("process 77 on host elsewhere");
    e2e_said(lock);
    ck_assert_int_eq(unlink(lock), 0);
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
}
END_TEST

/* --- what other verbs write --- */

START_TEST(a_damaged_dump_is_refused)
{
    e2e_brick(0, "dump --model ../m --text ../m/eval.txt --seqlen 32 --windows 2 --sites down_in --blocks 0 --out d.h5");
    e2e_brick(0, "inspect d.h5 /blocks/000/sites/down_in");
    flip_middle("d.h5");
    e2e_brick(3, "inspect d.h5 /blocks/000/sites/down_in");
    e2e_said("d.h5");
    e2e_said("down_in");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_damage");
    TCase *t = tcase_create("damage");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    int n = sizeof unfinished / sizeof unfinished[0], m = sizeof finished / sizeof finished[0];
    tcase_add_loop_test(t, an_unfinished_run_makes_again_what_was_damaged, 0, n);
    tcase_add_loop_test(t, an_unfinished_run_makes_again_what_is_missing, 0, (int)(sizeof missing / sizeof missing[0]));
    tcase_add_test(t, a_damaged_checkpoint_is_never_believed);
    tcase_add_test(t, targets_that_are_damaged_under_way_stop_the_run);
    tcase_add_loop_test(t, a_finished_run_is_not_believed_when_it_is_damaged, 0, m);
    tcase_add_loop_test(t, a_finished_run_is_made_again_where_files_are_missing, 0, (int)(sizeof lost / sizeof lost[0]));
    tcase_add_loop_test(t, eval_of_a_damaged_model_names_the_file, FIRST_OF_MODEL, m);
    tcase_add_test(t, a_repair_that_is_killed_goes_on);
    tcase_add_loop_test(t, a_damaged_stage_is_made_anew, 0, (int)(sizeof stages / sizeof stages[0]));
    tcase_add_test(t, runs_at_once_mend_a_stage_once);
    tcase_add_test(t, who_makes_a_stage_elsewhere_is_named);
    tcase_add_test(t, a_damaged_dump_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
