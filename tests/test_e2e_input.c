/* Models, texts and configs that are wrong or extreme, given to the program: never a crash, never a wrong result that looks like a right one; the
 * exit status and a message that names what is to blame. What readers refuse one by one is in their own tests. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "tests/e2e.h"
#include "tests/make_gguf.h"

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

/* A copy of the made model, for changes. */
static void copy_model(void)
{
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
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
    e2e_brick(overflows[_i].status, "run run.yaml --set prefix.mode=none --set store.overflow=%s --out a", overflows[_i].policy);
    if (overflows[_i].words) e2e_said(overflows[_i].words);
    else e2e_silent("65504");
    if (!overflows[_i].status) finite_result();
}
END_TEST

/* Learning rates that destroy a deep model of two bits: blocks fall back, results stay those of the initialisation or better. */
START_TEST(training_that_explodes_falls_back)
{
    bk_synth *s = e2e_synth("tiny,layers=12");
    e2e_synth_write(s, "m");
    e2e_config("m", NULL);
    int status = e2e_wait(e2e_start("run run.yaml --set scheme=W2A4KV4-static --set train.lr_quant=10 --set train.lr_weight=10 --out a"));
    ck_assert_msg(status == 0 || status == 4, "exit status %d:\n%s", status, e2e_text("err"));
    finite_result();
    e2e_brick(0, "run run.yaml --set scheme=W2A4KV4-static --set train.lr_quant=10 --set train.lr_weight=10 --out a");
    e2e_said("finished");
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
    e2e_said("block   2/2");
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

/* --- rotation --- */

static const char *const rotated[] = {"qwen2,layers=2", "qwen3,layers=2,head_dim=64", "tied,layers=2", "tiny,window=64", "tiny,kv_heads=1", "tiny,inter=112"};

START_TEST(rotation_alone_does_not_change_perplexity)
{
    bk_synth *s = e2e_synth(rotated[_i]);
    e2e_synth_write(s, "m");
    e2e_brick(0, "eval --model m --text ../m/eval.txt --seqlen 128 --threads 1 --json");
    double plain = e2e_number("out", "ppl", NULL);
    e2e_brick(0, "eval --model m --text ../m/eval.txt --seqlen 128 --threads 1 --rotate all --json");
    double turned = e2e_number("out", "ppl", NULL);
    ck_assert_double_finite(plain);
    ck_assert_msg(fabs(turned / plain - 1) < 5e-5, "%.8g became %.8g", plain, turned);
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
    copy_model();
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
    {"data.evaluation.seqlen=1024 --set data.evaluation.windows=1 --set prefix.mode=[46,256]", "data.evaluation.seqlen: 1026 tokens"},
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

START_TEST(groups_of_one_are_legal)
{
    e2e_brick(0, "run run.yaml --set quant.weight.granularity=group --set quant.weight.group=1 --out a");
    finite_result();
}
END_TEST

/* --- texts --- */

START_TEST(text_without_a_window_is_refused)
{
    static const char *const texts[] = {"", "x", "\n\n\n", "fifteen letters"};
    e2e_write("short.txt", texts[_i]);
    e2e_brick(2, "run run.yaml --set data.evaluation.text=short.txt --out a");
    e2e_said("brick: short.txt: evaluation windows: not one window of ");
    e2e_brick(2, "eval --model ../m --text short.txt --seqlen 32");
    e2e_said("brick: short.txt: not one window of 32 tokens: the text has ");
    e2e_brick(2, "run run.yaml --set data.training.text=short.txt --out b");
    e2e_said("short.txt");
    e2e_brick(2, "run run.yaml --set data.calibration.text=short.txt --out c");
    e2e_said("short.txt");
    e2e_brick(2, "run run.yaml --set data.detection.text=short.txt --out d");
    e2e_said("short.txt");
}
END_TEST

START_TEST(line_without_a_text_is_told_by_line_and_column)
{
    e2e_write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\" x}\n");
    e2e_brick(3, "eval --model ../m --text bad.jsonl --seqlen 32");
    e2e_said("brick: bad.jsonl:2:14: ");
    e2e_brick(3, "run run.yaml --set data.evaluation.text=bad.jsonl --out a");
    e2e_said("brick: bad.jsonl:2:14: ");
}
END_TEST

START_TEST(stages_without_a_folder_are_refused_before_anything_is_computed)
{
    setenv("BRICK_CACHE", "/proc/none", 1);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said("BRICK_CACHE");
    e2e_said("/proc/none: cannot create the folder");
    e2e_silent("equivalence");
}
END_TEST

static const char *const prefixed[] = {"eval --model ../m --text ../m/eval.txt", "outliers --model ../m --text ../m/eval.txt", "generate --model ../m --prompt a",
                                       "dump --model ../m --text ../m/eval.txt --sites key --out x.h5"};

START_TEST(prefix_outside_the_vocabulary_is_refused_before_any_work)
{
    e2e_brick(2, "%s --prefix 46,258", prefixed[_i]);
    e2e_said("brick: prefix id 258 is outside the vocabulary of 258 tokens");
    e2e_brick(2, "%s run.yaml --set prefix.mode=[46,258]", _i % 2 ? "plan" : "run");
    e2e_said("brick: --set prefix.mode: prefix id 258 is outside");
    e2e_silent("samples of");
}
END_TEST

START_TEST(fewer_samples_than_asked_are_reported)
{
    char *text = e2e_text("../m/train.txt");
    text[4 * 32 + 5] = 0;
    e2e_write("short.txt", text);
    free(text);
    e2e_brick(0, "run run.yaml --set data.training.text=short.txt --out a");
    e2e_said("of 8 samples");
    finite_result();
    e2e_brick(2, "run run.yaml --set data.training.text=short.txt --strict --out b");
    e2e_said("strict");
}
END_TEST

START_TEST(a_tokenizer_without_bos_is_legal)
{
    copy_model();
    e2e_write("m/tokenizer_config.json", "{\"bos_token\": null, \"add_bos_token\": false}");
    e2e_brick(0, "run run.yaml --out a");
    finite_result();
}
END_TEST

START_TEST(bos_in_the_text_behind_a_prefix_is_told)
{
    char *text = e2e_text("../m/train.txt");
    e2e_write("bos.txt", "<s>");
    e2e_append("bos.txt", text);
    free(text);
    e2e_brick(0, "run run.yaml --set data.training.text=bos.txt --set data.parse_special=true --out a");
    e2e_said("strip_bos");
    e2e_brick(0, "run run.yaml --set data.training.text=bos.txt --set data.parse_special=true --set data.strip_bos=true --out b");
    e2e_silent("strip_bos");
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

START_TEST(weights_that_are_cut_off_are_refused)
{
    char command[128];
    copy_model();
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
    tcase_add_test(t, training_that_explodes_falls_back);
    tcase_add_test(t, block_that_cannot_be_trained_falls_back);
    tcase_add_test(t, no_block_that_can_be_trained_is_a_failure_with_a_result);
    tcase_add_loop_test(t, weights_that_are_no_numbers, 0, 2);
    tcase_add_loop_test(t, rotation_alone_does_not_change_perplexity, 0, sizeof rotated / sizeof rotated[0]);
    tcase_add_loop_test(t, model_config_is_refused_by_name, 0, sizeof configs / sizeof configs[0]);
    tcase_add_loop_test(t, settings_that_do_not_fit_are_refused, 0, sizeof settings / sizeof settings[0]);
    tcase_add_test(t, a_refused_run_leaves_its_folder_free);
    tcase_add_test(t, groups_of_one_are_legal);
    tcase_add_loop_test(t, text_without_a_window_is_refused, 0, 4);
    tcase_add_test(t, line_without_a_text_is_told_by_line_and_column);
    tcase_add_test(t, stages_without_a_folder_are_refused_before_anything_is_computed);
    tcase_add_loop_test(t, prefix_outside_the_vocabulary_is_refused_before_any_work, 0, sizeof prefixed / sizeof prefixed[0]);
    tcase_add_test(t, fewer_samples_than_asked_are_reported);
    tcase_add_test(t, a_tokenizer_without_bos_is_legal);
    tcase_add_test(t, bos_in_the_text_behind_a_prefix_is_told);
    tcase_add_test(t, shards_that_are_not_there_are_named);
    tcase_add_loop_test(t, weights_that_are_cut_off_are_refused, 0, 2);
    tcase_add_loop_test(t, hostile_gguf_files_are_refused, 0, HOSTILE);
    tcase_add_test(t, synth_leaves_folders_of_others_alone);
    tcase_add_test(t, libraries_without_room_to_start_are_told);
    tcase_add_test(t, matrix_products_without_room_are_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
