/* Models, texts and configs that are wrong or extreme, given to the program: never a crash, never a wrong result that looks like a right one; the
 * exit status and a message that names what is to blame. What readers refuse one by one is in their own tests. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/e2e.h"
#include "tests/make_gguf.h"
#include "tests/suite.h"

/* The summary of the run a is one of a run that went well. */
static void finite_result(void)
{
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "init"));
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
}

static void scale(float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

static void scale_linear(bk_synth *s, int64_t layer, bk_linear_id id, float by)
{
    int64_t out, in;
    bk_linear_shape(&s->cfg, id, &out, &in);
    scale(s->block[layer].w[id], out * in, by);
}

/* --- numbers --- */

static const char *const schemes[] = {"W4A4KV4-static", "W4A4KV4-dynamic", "W4A8KV4-static-asym"};

START_TEST(activations_that_are_all_zero)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < s->cfg.layers; l++) scale_linear(s, l, BK_W_UP, 0);
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --set scheme=%s --set prefix.mode=none --out a", schemes[_i]);
    if (strstr(schemes[_i], "static")) {
        e2e_said("block 0, down_in: 1 of 1 measured ranges hold nothing but zeros");
        e2e_said("block 1, down_in: 1 of 1 measured ranges hold nothing but zeros");
    }
    else e2e_silent("nothing but zeros");
    finite_result();
}
END_TEST

START_TEST(channel_that_is_always_zero)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < s->cfg.layers; l++) s->block[l].norm[BK_NORM_ATTN][9] = s->block[l].norm[BK_NORM_MLP][11] = 0;
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --set scheme=%s --set rotation.r1=false --out a", schemes[_i]);
    finite_result();
}
END_TEST

START_TEST(scores_beyond_half_floats)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < s->cfg.layers; l++) {
        scale_linear(s, l, BK_W_Q, 300);
        scale_linear(s, l, BK_W_K, 300);
    }
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --set scheme=%s --out a", schemes[_i]);
    finite_result();
}
END_TEST

static const struct {
    const char *policy;
    int status;
    const char *words;
} overflows[] = {{"warn", 0, "values beyond +-65504 were stored as that"}, {"f32", 0, NULL}, {"error", 4, "65504"}};

START_TEST(targets_beyond_half_floats)
{
    bk_synth *s = e2e_synth("tiny");
    scale(s->embed, s->cfg.vocab * s->cfg.hidden, 1e6f);
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    e2e_brick(overflows[_i].status, "run run.yaml --set prefix.mode=none --set store.keep=all --set store.overflow=%s --out a", overflows[_i].policy);
    if (overflows[_i].words) e2e_said(overflows[_i].words);
    else e2e_silent("65504");
    if (overflows[_i].status) return;
    finite_result();
    e2e_brick(0, "inspect a/targets/001.h5 /blocks/001/target --json");
    char *found = e2e_text("out");
    ck_assert(strstr(found, "\"nan\": 0,") && strstr(found, "\"inf\": 0,"));
    ck_assert(!strstr(found, "\"saturated\": 0,") == (_i == 0));
    free(found);
}
END_TEST

/* What summary.json of the run a says about a block. */
static bk_json *summary_of_blocks(void)
{
    bk_json *o;
    bk_error err = {0};
    ck_assert_msg(!bk_json_load("a/summary.json", &o, &err), "%s", err.msg);
    return o;
}

static const bk_json *of_block(const bk_json *summary, size_t block, const char *key)
{
    return bk_json_get(bk_json_at(bk_json_get(summary, "blocks"), block), key);
}

static bool fell_back(const bk_json *summary, size_t block)
{
    return bk_json_bool(of_block(summary, block, "fell_back"), false);
}

/* Learning rates that destroy a deep model of two bits, an outlier channel of 1e4 in its middle: no block is worse than it was initialised. */
START_TEST(training_that_explodes_keeps_what_was_there)
{
    bk_synth *s = e2e_synth("tiny,layers=12");
    scale(s->block[3].w[BK_W_DOWN] + 9 * s->cfg.inter, s->cfg.inter, 1e4f);
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    int status = e2e_wait(e2e_start("run run.yaml --set scheme=W2A4KV4-static --set train.lr_quant=10 --set train.lr_weight=10 --out a"));
    ck_assert_msg(status == 0 || status == 4, "exit status %d:\n%s", status, e2e_text("err"));
    finite_result();
    bk_json *o = summary_of_blocks();
    for (size_t b = 0; b < 12; b++) {
        double init = bk_json_num(of_block(o, b, "loss_init"), NAN), final = bk_json_num(of_block(o, b, "loss_final"), NAN);
        ck_assert_msg(fell_back(o, b) ? final == init : final <= init, "block %zu: loss %g became %g", b, init, final);
    }
    bk_json_free(o);
}
END_TEST

/* Everything behind the fourth of twelve blocks is too large to be trained: the first ones are, the others are named and stay, the run goes on. */
START_TEST(blocks_that_fall_back_are_listed)
{
    bk_synth *s = e2e_synth("tiny,layers=12");
    scale_linear(s, 3, BK_W_DOWN, 1e25f);
    e2e_synth_write(s, "m");
    e2e_config("m", "store: {dtype: f32}\n");
    e2e_brick(0, "run run.yaml --set prefix.mode=none --out a");
    e2e_said("block 3 (4 of 12)  loss");
    e2e_said("kept as initialised: step 0: ");
    e2e_said("9 of 12 blocks could not be trained");
    finite_result();
    bk_json *o = summary_of_blocks();
    for (size_t b = 0; b < 12; b++) ck_assert_msg(fell_back(o, b) == (b >= 3), "block %zu", b);
    bk_json_free(o);
}
END_TEST

/* Values whose gradients leave f32: a block that cannot be trained stays as initialised; the run fails only if none could be. */
static void overflowing_blocks(int64_t first)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = first; l < s->cfg.layers; l++) scale_linear(s, l, BK_W_DOWN, 1e25f);
    e2e_synth_write(s, "m");
    e2e_config("m", "store: {dtype: f32}\n");
}

START_TEST(block_that_cannot_be_trained_falls_back)
{
    overflowing_blocks(1);
    e2e_brick(0, "run run.yaml --set prefix.mode=none --out a");
    e2e_said("block 1 (2 of 2)");
    e2e_said("kept as initialised: step");
    e2e_said("1 of 2 blocks");
    finite_result();
    e2e_brick(4, "run run.yaml --set prefix.mode=none --strict --out b");
    e2e_said("strict");
}
END_TEST

START_TEST(no_block_that_can_be_trained_is_a_failure_with_a_result)
{
    overflowing_blocks(0);
    e2e_brick(4, "run run.yaml --set prefix.mode=none --out a");
    e2e_said("no block could be trained");
    finite_result();
    ck_assert_double_eq(e2e_number("a/summary.json", "ppl", "init"), e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

START_TEST(weights_that_are_no_numbers)
{
    bk_synth *s = e2e_synth("tiny");
    s->block[1].w[BK_W_UP][7] = _i ? INFINITY : NAN;
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    e2e_brick(4, "run run.yaml --out a");
    e2e_said("model.layers.1.mlp.up_proj.weight");
    e2e_said("7");
    e2e_brick(4, "eval --model m --text ../m/eval.txt --seqlen 32 --threads 1");
    e2e_said("model.layers.1.mlp.up_proj.weight");
}
END_TEST

/* --- configs of models --- */

static const struct {
    const char *from, *to, *words;
} configs[] = {
    {"\"llama\"", "\"gemma2\"", "gemma2"},
    {"\"num_attention_heads\": 4", "\"num_attention_heads\": 5", "5"},
    {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "KV heads"},
    {"\"rms_norm_eps\": ", "\"rms_norm_eps\": -", "eps"},
    {"\"vocab_size\": 258", "\"vocab_size\": 300", "embed_tokens"},
    {"\"hidden_size\": 64", "\"hidden_size\": 0", "hidden_size"},
    {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}", "yarn"},
    {"\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", "dynamic"},
    {"\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2.0}", "longrope"},
    {"{", "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0}, ", "yarn"},
    {"{", "{\"partial_rotary_factor\": 0.5, ", "partial_rotary_factor"},
    {"{", "{\"quantization_config\": {\"quant_method\": \"awq\"}, ", "awq"},
    {"{", "{{", "config.json"},
};

START_TEST(model_config_is_refused_by_name)
{
    e2e_copy_model();
    e2e_replace("m/config.json", configs[_i].from, configs[_i].to);
    e2e_brick(3, "eval --model m --text ../m/eval.txt --seqlen 32");
    e2e_said(configs[_i].words);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said(configs[_i].words);
    ck_assert(!bk_exists("a"));
}
END_TEST

/* --- settings that do not fit the model --- */

static const struct {
    const char *set, *words;
} settings[] = {
    {"quant.weight.granularity=group --set quant.weight.group=128", "128"},
    {"quant.weight.granularity=group --set quant.weight.group=7", "7"},
    {"quant.weight.granularity=group --set quant.weight.group=-1", "quant.weight.group"},
    {"quant.weight.granularity=group", "group"},
    {"data.training.seqlen=5000", "data.training.seqlen"},
    {"data.evaluation.seqlen=5000", "data.evaluation.seqlen"},
    {"data.detection.seqlen=5000", "data.detection.seqlen"},
    {"data.calibration.seqlen=5000", "data.calibration.seqlen"},
    {"data.evaluation.seqlen=1024 --set data.evaluation.windows=1 --set prefix.mode=[46,256]", "data.evaluation.seqlen: 1024 tokens behind a prefix of 2"},
    {"data.evaluation.seqlen=1024 --set data.evaluation.windows=1", "data.evaluation.seqlen: 1024 tokens behind a prefix of 1"},
    {"quant.skip=[{\"block\":2}]", "quant.skip: there is no block 2"},
    {"prefix.mode=[258]", "258"},
    {"prefix.mode=[-1]", "-1"},
    {"data.training.samples=0", "data.training.samples"},
    {"backend=gpu", "gpu"},
};

START_TEST(settings_that_do_not_fit_are_refused)
{
    e2e_brick(2, "run run.yaml --set %s --out a", settings[_i].set);
    e2e_said(settings[_i].words);
    e2e_brick(2, "plan run.yaml --set %s", settings[_i].set);
    e2e_said(settings[_i].words);
}
END_TEST

START_TEST(a_refused_run_leaves_its_folder_free)
{
    e2e_brick(2, "run run.yaml --set data.evaluation.seqlen=5000 --out a");
    e2e_brick(0, "run run.yaml --out a");
    finite_result();
}
END_TEST

/* As it is left by a brick that was killed while it took over the lock of one that was killed before. */
START_TEST(a_lock_that_was_being_broken_is_no_file_of_others)
{
    ck_assert_int_eq(mkdir("a", 0777), 0);
    ck_assert_int_eq(symlink("1.1.1.00000001@nowhere", "a/run.lock.break"), 0);
    e2e_brick(0, "run run.yaml --out a");
}
END_TEST

START_TEST(groups_of_one_are_legal)
{
    e2e_brick(0, "run run.yaml --set quant.weight.granularity=group --set quant.weight.group=1 --out a");
    finite_result();
}
END_TEST

/* --- files of models --- */

START_TEST(shards_that_are_not_there_are_named)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out a");
    e2e_remove("a/model/model-00002-of-00003.safetensors");
    e2e_brick(3, "eval --model a --text ../m/eval.txt --seqlen 32");
    e2e_said("model-00002-of-00003.safetensors");
}
END_TEST

/* The index says what belongs to a model; a folder that holds weights already is not written into. */
START_TEST(stale_shards_are_not_mixed_in)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out a");
    double ppl = e2e_number("a/summary.json", "ppl", "final");
    ck_assert_int_eq(system("cp ../m/model.safetensors a/model/model-00001-of-00009.safetensors"), 0);
    e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), ppl);
    ck_assert_int_eq(system("mkdir -p b/model && cp ../m/model.safetensors b/model"), 0);
    e2e_brick(2, "run run.yaml --set train.epochs=0 --out b");
    e2e_said("model");
    ck_assert(!bk_exists("b/config.yaml"));
}
END_TEST

START_TEST(weights_that_are_cut_off_are_refused)
{
    char command[128];
    e2e_copy_model();
    snprintf(command, sizeof command, "truncate -s -%d m/model.safetensors", _i ? 100000 : 1);
    ck_assert_int_eq(system(command), 0);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said("model.safetensors");
}
END_TEST

/* What is wrong with a GGUF file. */
static void hostile(int kind)
{
    make_gguf m = {0};
    size_t head;
    gguf_str(&m, "general.architecture", kind == 1 ? "gemma" : "llama");
    if (kind == 2) gguf_u32(&m, "llama.block_count", 4000000000u);
    if (kind == 3) gguf_info(&m, "token_embd.weight", 0, 2, (int64_t[]){INT64_MAX / 2, 64}, 0);
    bytes file = gguf_finish(&m, &head);
    if (kind == 4) file.n = 20;
    if (kind == 5) memset(file.p + 8, 0xff, 8);  /* number of tensors */
    if (kind == 6) memset(file.p + 16, 0xff, 8); /* number of keys */
    if (kind == 7) file.p[0] = 'X';
    if (kind == 8) memset(file.p + 24, 0xff, 8); /* length of the first key */
    if (kind == 9) file.n = 0;
    bytes_save(&file, "bad.gguf");
    bytes_free(&file);
}
#define HOSTILE 10

START_TEST(hostile_gguf_files_are_refused)
{
    hostile(_i);
    e2e_brick(3, "eval --model bad.gguf --text ../m/eval.txt --seqlen 32");
    e2e_said("bad.gguf");
    setenv("OMP_TOOL", "disabled", 1); /* inspect forks, and the tool of the thread sanitizer does not live through that */
    e2e_brick(3, "inspect bad.gguf --json");
    unsetenv("OMP_TOOL");
    e2e_said("bad.gguf");
}
END_TEST

/* --- folders of made models --- */

START_TEST(synth_leaves_folders_of_others_alone)
{
    e2e_brick(0, "synth --out s --shape tiny --documents 0");
    char *made = e2e_listing("s");
    e2e_brick(0, "synth --out s --shape tiny --documents 0"); /* again: the same bytes */
    char *again = e2e_listing("s");
    ck_assert_str_eq(made, again);
    e2e_brick(2, "synth --out s --shape tiny --documents 0 --seed 2");
    e2e_said("--force");
    e2e_write("s/synth.json", "{\"seed\": [");
    e2e_brick(2, "synth --out s --shape tiny --documents 0");
    e2e_brick(0, "synth --out s --shape tiny --documents 0 --force");
    char *forced = e2e_listing("s");
    ck_assert_str_eq(made, forced);
    ck_assert_int_eq(mkdir("t", 0777), 0);
    e2e_write("t/config.json", "{}");
    e2e_brick(2, "synth --out t --shape tiny --documents 0");
    e2e_said("config.json is there");
    e2e_remove("t/config.json");
    e2e_write("t/synth.json.partial", "{");
    e2e_brick(0, "synth --out t --shape tiny --documents 0");
    e2e_brick(2, "synth --out run.yaml --shape tiny");
    e2e_said("no folder");
    free(made);
    free(again);
    free(forced);
}
END_TEST

/* --- memory --- */

/* OpenBLAS below 0.3.30 tries for ever to get its work memory. */
START_TEST(libraries_without_room_to_start_are_told)
{
    if (!e2e_memory(150l << 20)) return; /* more than the libraries, less than OpenBLAS wants beside them */
    int status = e2e_wait(e2e_start("list methods"));
    ck_assert_msg(status == 5 || status == 1, "exit status %d:\n%s", status, e2e_text("err")); /* 1: a newer one gives up itself */
    e2e_said("OpenBLAS");
}
END_TEST

START_TEST(matrix_products_without_room_are_refused)
{
    setenv("OMP_NUM_THREADS", "1", 1);
    if (!e2e_memory(250l << 20)) return; /* enough to start, not for the products */
    e2e_brick(5, "eval --model ../m --text ../m/eval.txt --seqlen 32");
    e2e_said("matrix products");
}
END_TEST

/* 10^6 samples are as many as the text has; a batch of 100 of them does not fit, and both verbs say so before anything is computed. */
START_TEST(training_without_room_is_refused)
{
    static const char more[] = "--set data.training.text=long.txt --set data.training.samples=1000000 --set data.training.seqlen=1000 --set train.batch=100";
    setenv("OMP_NUM_THREADS", "1", 1);
    ck_assert_int_eq(system("for i in $(seq 40); do cat ../m/train.txt; done >long.txt"), 0);
    if (!e2e_memory(1l << 30)) return;
    e2e_brick(5, "run run.yaml %s --out a", more);
    e2e_said("brick: the stage train needs about ");
    e2e_said("(ulimit -v)");
    e2e_silent("equivalence");
    e2e_brick(0, "plan run.yaml %s", more);
    char *out = e2e_text("out"), *err = e2e_text("err");
    ck_assert_msg(strstr(out, "the stage train needs about ") || strstr(err, "the stage train needs about "), "%s%s", out, err);
    free(out);
    free(err);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_input");
    TCase *t = tcase_create("input");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, activations_that_are_all_zero, 0, sizeof schemes / sizeof schemes[0]);
    tcase_add_loop_test(t, channel_that_is_always_zero, 0, sizeof schemes / sizeof schemes[0]);
    tcase_add_loop_test(t, scores_beyond_half_floats, 0, sizeof schemes / sizeof schemes[0]);
    tcase_add_loop_test(t, targets_beyond_half_floats, 0, sizeof overflows / sizeof overflows[0]);
    tcase_add_test(t, training_that_explodes_keeps_what_was_there);
    tcase_add_test(t, blocks_that_fall_back_are_listed);
    tcase_add_test(t, block_that_cannot_be_trained_falls_back);
    tcase_add_test(t, no_block_that_can_be_trained_is_a_failure_with_a_result);
    tcase_add_loop_test(t, weights_that_are_no_numbers, 0, 2);
    tcase_add_loop_test(t, model_config_is_refused_by_name, 0, sizeof configs / sizeof configs[0]);
    tcase_add_loop_test(t, settings_that_do_not_fit_are_refused, 0, sizeof settings / sizeof settings[0]);
    tcase_add_test(t, a_refused_run_leaves_its_folder_free);
    tcase_add_test(t, a_lock_that_was_being_broken_is_no_file_of_others);
    tcase_add_test(t, groups_of_one_are_legal);
    tcase_add_test(t, shards_that_are_not_there_are_named);
    tcase_add_test(t, stale_shards_are_not_mixed_in);
    tcase_add_loop_test(t, weights_that_are_cut_off_are_refused, 0, 2);
    tcase_add_loop_test(t, hostile_gguf_files_are_refused, 0, HOSTILE);
    tcase_add_test(t, synth_leaves_folders_of_others_alone);
    tcase_add_test(t, libraries_without_room_to_start_are_told);
    tcase_add_test(t, matrix_products_without_room_are_refused);
    tcase_add_test(t, training_without_room_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
