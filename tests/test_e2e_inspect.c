/* brick inspect on every HDF5 file that brick writes: the tree with its names, and every dataset in it; and what it says when
 * the process that reads dies. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/e2e.h"
#include "tests/suite.h"

/* What a kind of file holds: its schema, attributes of the root, datasets. NNN: the block of its name. */
static const struct {
    const char *schema, *attributes[8], *datasets[8];
} kinds[] = {
    {"brick.targets",
     {"model", "model_sha256", "prefix_len", "seed", "texts"},
     {"/blocks/NNN/target", "/tokens/input_ids", "/sample", "/token", "/channel"}},
    {"brick.dump",
     {"model", "model_sha256", "prefix_len", "config", "texts"},
     {"/blocks/000/sites/down_in", "/blocks/001/sites/key", "/tokens/input_ids", "/sample", "/token", "/channel"}},
    {"brick.prefix",
     {"model", "model_sha256", "prefix_len", "config", "texts"},
     {"/prefix/ids", "/prefix/key", "/prefix/value"}},
    {"brick.checkpoint",
     {"model", "model_sha256", "config", "next_block", "texts"},
     {"/results/loss_init", "/results/loss_final", "/results/epoch_kept", "/results/shard_sha256"}},
    {"brick.init",
     {"texts"},
     {"/blocks/NNN/w_q.step", "/blocks/NNN/w_down.step", "/blocks/NNN/attn_in.step", "/blocks/NNN/key.step"}},
    {"brick.fitted", {"layers", "hidden", "kv_heads", "head_dim", "inter", "texts"}, {"/fitted/"}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int kind_of(const char *file, const bk_json *root)
{
    const char *schema = bk_json_str(bk_json_get(bk_json_get(root, "attributes"), "schema"), "none");
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(schema, kinds[k].schema)) return k;
    ck_abort_msg("%s has the schema %s", file, schema);
}

/* A dataset of that name, or one whose name begins so. */
static bool has(const bk_json *objects, const char *name, const char *file)
{
    char want[64], *block;
    const char *slash = strrchr(file, '/');
    size_t n = strlen(name);
    snprintf(want, sizeof want, "%s", name);
    if ((block = strstr(want, "NNN"))) memcpy(block, slash + 1, 3); /* targets/000.h5 */
    for (size_t i = 0; i < bk_json_size(objects); i++) {
        const bk_json *o = bk_json_at(objects, i);
        const char *path = bk_json_str(bk_json_get(o, "path"), "");
        bool dataset = !strcmp(bk_json_str(bk_json_get(o, "kind"), ""), "dataset");
        if (dataset && (name[n - 1] == '/' ? !strncmp(path, want, n) : !strcmp(path, want))) return true;
    }
    return false;
}

/* Every number of a dataset is read, so that its checksums are looked at. */
static void inspect_datasets(const char *file, const bk_json *objects)
{
    for (size_t i = 0; i < bk_json_size(objects); i++) {
        const bk_json *o = bk_json_at(objects, i);
        if (strcmp(bk_json_str(bk_json_get(o, "kind"), ""), "dataset")) continue;
        e2e_brick(0, "inspect %s %s --json", file, bk_json_str(bk_json_get(o, "path"), ""));
        bk_json *shown = NULL;
        ck_assert_int_eq(bk_json_load("out", &shown, NULL), BK_OK);
        ck_assert_msg(bk_json_int(bk_json_get(bk_json_get(shown, "statistics"), "values"), 0) > 0, "%s: nothing in %s", file,
                      bk_json_str(bk_json_get(o, "path"), ""));
        bk_json_free(shown);
    }
}

/* Datasets are read in the first file of a kind. */
static void inspect(const char *file, int seen[KINDS])
{
    bk_json *shown = NULL;
    e2e_brick(0, "inspect %s --json", file);
    ck_assert_int_eq(bk_json_load("out", &shown, NULL), BK_OK);
    const bk_json *objects = bk_json_get(shown, "objects"), *root = bk_json_at(objects, 0);
    int k = kind_of(file, root);
    for (int i = 0; kinds[k].attributes[i]; i++)
        ck_assert_msg(bk_json_get(bk_json_get(root, "attributes"), kinds[k].attributes[i]), "%s: no %s", file, kinds[k].attributes[i]);
    for (int i = 0; kinds[k].datasets[i]; i++)
        ck_assert_msg(has(objects, kinds[k].datasets[i], file), "%s: no %s", file, kinds[k].datasets[i]);
    ck_assert_int_eq(bk_json_int(bk_json_get(bk_json_get(root, "attributes"), "complete"), 0), 1);
    if (!seen[k]++) inspect_datasets(file, objects);
    bk_json_free(shown);
}

START_TEST(every_file_that_brick_writes_can_be_inspected)
{
    int seen[KINDS] = {0}, files = 0;
    e2e_brick(0, "run run.yaml --set method=kurtail --set norm_rotation.epochs=1 --set norm_rotation.batch=16 --set data.statistics.samples=2 "
                 "--set data.statistics.seqlen=32 --set prefix.mode=auto --set train.epochs=1 --set store.keep=all --out a");
    e2e_brick(0, "run run.yaml --set train.epochs=1 --set store.keep=shared --out b");
    e2e_brick(0, "dump --model ../m --text ../m/eval.txt --sites down_in,key --seqlen 32 --windows 2 --out dump.h5");
    ck_assert_int_eq(system("find $PWD -name '*.h5' | LC_ALL=C sort >files"), 0);
    char *list = e2e_text("files");
    for (char *save, *file = strtok_r(list, "\n", &save); file; file = strtok_r(NULL, "\n", &save)) {
        inspect(file, seen);
        files++;
    }
    free(list);
    for (int k = 0; k < KINDS; k++) ck_assert_msg(seen[k], "there was no file of %s", kinds[k].schema);
    /* 4 init, 2 + 2 targets (of the run, shared), 2 fitted (of run and stage), 2 prefixes, 2 checkpoints, the dump */
    ck_assert_int_eq(files, 15);
}
END_TEST

/* Beside steps, the rounded weights; beside a rotation, scales. */
START_TEST(files_of_methods_have_what_they_fitted)
{
    e2e_brick(0, "run run.yaml --set method=gptq --set scheme=W4A16-g32 --set data.statistics.samples=2 --set data.statistics.seqlen=32 "
                 "--set train.epochs=0 --out g");
    e2e_brick(0, "run run.yaml --set method=smoothquant --set data.statistics.samples=2 --set data.statistics.seqlen=32 "
                 "--set train.epochs=0 --out s");
    char path[256] = "";
    FILE *found = popen("grep -l '^init.from: gptq' cache/init-*/depends.txt", "r");
    ck_assert(found && fgets(path, sizeof path, found));
    pclose(found);
    e2e_brick(0, "inspect %.*s001.h5", (int)strcspn(path, "\n") - (int)strlen("depends.txt"), path);
    char *trees = e2e_text("out");
    ck_assert_msg(strstr(trees, "/blocks/001/w_q ") && strstr(trees, "/blocks/001/w_down "), "no weights:\n%s", trees);
    free(trees);
    e2e_brick(0, "inspect s/fitted.h5");
    trees = e2e_text("out");
    ck_assert_msg(strstr(trees, "/fitted/scale_attn_in "), "no scales:\n%s", trees);
    free(trees);
}
END_TEST

/* A model's own tokenizer goes before one in a folder `model` in it, which only that of a run is. */
START_TEST(the_tokenizer_of_a_folder_is_its_own)
{
    e2e_brick(0, "dump --model ../m --text ../m/eval.txt --sites down_in --seqlen 32 --windows 2 --out dump.h5");
    e2e_copy_model();
    ck_assert_int_eq(mkdir("m/model", 0777), 0);
    e2e_brick(0, "inspect dump.h5 /blocks/000/sites/down_in --model m --csv tokens");
    char *named = e2e_text("out");
    e2e_brick(0, "inspect dump.h5 /blocks/000/sites/down_in --model ../m --csv tokens");
    char *whole = e2e_text("out");
    ck_assert_str_eq(named, whole);
    ck_assert_ptr_nonnull(strstr(whole, "<s>"));
    free(named);
    free(whole);
}
END_TEST

/* How the child that reads can end, and the exit codes that the manual has for it. */
static const struct {
    int signal, code;
    const char *says;
} ends[] = {{SIGSEGV, 3, "dump.h5: is damaged so badly that the HDF5 library failed on it (signal 11)"},
            {SIGKILL, 5, "dump.h5: reading it was ended by signal 9 (Killed): is the memory full?"},
            {SIGALRM, 130, "dump.h5: reading it was ended by signal 14 (Alarm clock)"}};

START_TEST(a_reader_that_dies_gives_a_documented_exit_code)
{
    e2e_brick(0, "dump --model ../m --text ../m/eval.txt --sites down_in --seqlen 32 --windows 2 --out dump.h5");
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0:handle_segv=0", 1);
    e2e_stop_at("clock:1", ends[_i].signal);
    e2e_brick(ends[_i].code, "inspect dump.h5 /blocks/000/sites/down_in");
    e2e_stop_at(NULL, 0);
    e2e_said(ends[_i].says);
}
END_TEST

/* What the dump of a run says of itself is what the dump of the original model is to be given. */
START_TEST(a_run_is_compared_with_full_precision)
{
#define DUMP "--text ../m/eval.txt --sites down_in --blocks 1 --seqlen 32 --windows 2 "
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set seed=7 --set prefix.mode=[3,4] --out run");
    e2e_brick(0, "dump --model run " DUMP "--out q.h5");
    e2e_brick(0, "dump --model ../m " DUMP "--prefix 3,4 --rotate all --seed 7 --out fp.h5");
    e2e_brick(0, "dump --model ../m " DUMP "--prefix 3,4 --rotate all --out seed2.h5");
    e2e_brick(0, "dump --model ../m " DUMP "--out plain.h5");
    e2e_brick(0, "inspect q.h5 --against fp.h5");
    ck_assert_int_eq(system("grep -q note out"), 256);
    e2e_brick(0, "inspect q.h5 --against seed2.h5");
    ck_assert_int_eq(system("grep -q '^note  *seed differs: 7 against 2$' out"), 0);
    e2e_brick(0, "inspect q.h5 /blocks/001/sites/down_in --against plain.h5 --csv tokens");
    e2e_said("token ids differ at");
    e2e_said("rotate differs: \"all\" against \"none\"");
    ck_assert_int_eq(system("grep -q differ out"), 256);
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set rotation.r4_group=auto --out own");
    e2e_brick(0, "dump --model own " DUMP "--out own.h5");
    e2e_brick(0, "inspect own.h5 --against fp.h5");
    ck_assert_int_eq(system("grep -q '\"as quantized\" against \"all\"' out"), 0); /* no --rotate does that */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_inspect");
    TCase *t = tcase_create("inspect");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, every_file_that_brick_writes_can_be_inspected);
    tcase_add_test(t, a_run_is_compared_with_full_precision);
    tcase_add_test(t, files_of_methods_have_what_they_fitted);
    tcase_add_test(t, the_tokenizer_of_a_folder_is_its_own);
    tcase_add_loop_test(t, a_reader_that_dies_gives_a_documented_exit_code, 0, sizeof ends / sizeof ends[0]);
    suite_add_tcase(s, t);
    return run_suite(s);
}
