/* Every method of experiments/methods.def from end to end; the stage `fit` and GPTQ: killed, damaged, shared, fed with bad input, refused. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/fitted.h"
#include "experiments/beacon.h"
#include "experiments/scheme.h"
#include "io/file.h"
#include "io/sealed.h"
#include "io/store.h"
#include "tests/e2e.h"
#include "tests/suite.h"

#define SMALL                                                                                                                       \
    "data.statistics: {samples: 3, seqlen: 32}\nspin: {steps: 2, batch: 2}\nnorm_rotation: {rounds: 3, epochs: 2, batch: 16}\n"

static bk_error err;

/* A run of this method with its own scheme, in groups that the made model has room for. `model`: NULL for the one that all tests share. */
static void method_config(const char *model, const char *method, const char *more)
{
    char text[1024];
    const char *scheme = bk_method_find(method)->scheme;
    snprintf(text, sizeof text, "method: %s\n" SMALL "%s", method, more);
    e2e_config(model ? model : "../m", text);
    e2e_replace("run.yaml", "W4A4KV4-static", strcmp(scheme, "W4A16-g128") ? scheme : "W4A16-g32");
    e2e_replace("run.yaml", "epochs: 2, batch: 2", "epochs: 0, batch: 2");
}

static void same_as_eval(const char *run)
{
    char summary[64];
    snprintf(summary, sizeof summary, "%s/summary.json", run);
    e2e_brick(0, "eval --model %s --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json", run);
    ck_assert_double_finite(e2e_number("out", "ppl", NULL));
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number(summary, "ppl", "final"));
}

static bool has(const char *path, const char *words)
{
    char *text = e2e_text(path);
    bool there = strstr(text, words) != NULL;
    free(text);
    return there;
}

/* The only stage of this name. */
static char *stage_file(const char *stage, const char *file)
{
    static char path[256];
    char words[128];
    snprintf(words, sizeof words, "ls -d cache/%s-*/%s >found", stage, file);
    ck_assert_msg(system(words) == 0, "%s", words);
    char *text = e2e_text("found");
    snprintf(path, sizeof path, "%.*s", (int)strcspn(text, "\n"), text);
    ck_assert_msg(!text[strlen(path) + 1], "more than one: %s", text);
    free(text);
    return path;
}

/* --- every method --- */

static bool trains(const bk_method *m)
{
    bool found = false;
    for (const char *const *s = m->settings; *s; s++) found |= !strncmp(*s, "train.epochs=", 13);
    return found;
}

START_TEST(every_method_runs_to_the_number_that_eval_gives)
{
    const bk_method *m = &bk_methods[_i];
    method_config(NULL, m->name, "");
    e2e_brick(0, "run run.yaml --set train.epochs=%d --out a", trains(m));
    same_as_eval("a");
    ck_assert_double_gt(e2e_number("a/summary.json", "bits", "weight"), 4);
}
END_TEST

/* The numbers of a run whose --set are these, without and with more. */
static double final_of(const char *sets, const char *more)
{
    e2e_remove("other");
    e2e_brick(0, "run run.yaml %s %s --out other", sets, more);
    return e2e_number("other/summary.json", "ppl", "final");
}

/* The result is that of `sets`, and each of the settings changes it: so much for what is switched off by them. */
static void all_take_part(double ppl, const char *sets, const char *const *without)
{
    for (; *without; without++) ck_assert_msg(fabs(final_of(sets, *without) / ppl - 1) > 1e-4, "%s: %s makes no difference", sets, *without);
}

/* Parts of a run's fitted.h5, in the order of bk_fitted_name; "" without a file. */
static const char *fitted_parts(const char *run)
{
    static char names[256], path[64];
    bk_store *s;
    names[0] = 0;
    snprintf(path, sizeof path, "%s/fitted.h5", run);
    if (!bk_exists(path)) return names;
    ck_assert_msg(bk_store_open(&s, path, "brick.fitted", &err) == BK_OK, "%s", err.msg);
    for (int i = 0; i < BK_FITTED_COUNT; i++) {
        snprintf(path, sizeof path, "/fitted/%s", bk_fitted_name[i]);
        if (bk_store_has(s, path)) snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? " " : "", bk_fitted_name[i]);
    }
    bk_store_close(s);
    return names;
}

/* A quantizer of a method that is not the scheme's. */
static void is_quantized_by(const char *place, const char *quantizer)
{
    char words[96];
    snprintf(words, sizeof words, "\"%s\": {\n      \"quantizer\": \"%s\"", place, quantizer ? quantizer : "");
    ck_assert_msg(!quantizer || has("a/model/config.json", words), "not in config.json: %s", words);
}

#define WITHOUT(key, value) "--set " key "=" value
#define NO_R1 WITHOUT("rotation.r1", "false")
#define NO_R2 WITHOUT("rotation.r2", "false")
#define NO_R3 WITHOUT("rotation.r3", "false")
#define NO_R4 WITHOUT("rotation.r4", "false")
#define NO_PREFIX WITHOUT("prefix.mode", "none")
#define NO_BASIS WITHOUT("rotation.basis", "hadamard")
#define NO_SCALES WITHOUT("scales.from", "none")
#define NO_GPTQ WITHOUT("init.from", "minmax")
#define NO_SEARCH WITHOUT("init.search", "false")
#define NO_TRAINING WITHOUT("train.epochs", "0")
#define PLAIN_WEIGHTS WITHOUT("quant.weight.quantizer", "affine")

/* What a method consists of, and what it leaves behind. */
static const struct {
    const char *method, *fitted, *report; /* parts of fitted.h5, a word of fit.json */
    bool gptq, prefix;
    const char *without[9];
} made_of[] = {
    {"prefixquant", "", "", false, true, {NO_PREFIX, NO_SEARCH, NO_TRAINING, NO_R1, NO_R2, NO_R3, NO_R4}},
    {"offq", "r1 down_order down_signs", "\"down_group\": 32", true, false,
     {NO_BASIS, NO_GPTQ, NO_R2, NO_R3, WITHOUT("rotation.r2_per_head", "false"), WITHOUT("rotation.r4_group", "96")}},
    {"quarot", "", "", false, false, {NO_R1, NO_R2, NO_R3, NO_R4, WITHOUT("quant.weight.step", "full"), WITHOUT("quant.activation.step", "full"),
                                      WITHOUT("quant.key.step", "full"), WITHOUT("quant.value.step", "full")}},
    {"spinquant", "r1", "\"losses\"", true, false, {NO_BASIS, NO_GPTQ}},
    {"dfrot", "r1", "\"errors\"", false, false, {NO_BASIS}},
    {"dartquant", "r1", "\"losses\"", false, false, {NO_BASIS}},
    {"kurtail", "r1", "\"losses\"", false, false, {NO_BASIS, WITHOUT("rotation.basis", "dartquant")}},
    {"smoothquant", "scale_attn_in scale_mlp_in", "{", false, false, {NO_SCALES}},
    {"gptq", "", "", true, false, {NO_GPTQ}},
    {"awq", "scale_attn_in scale_mlp_in scale_down_in", "\"ratio\"", false, false, {NO_SCALES, NO_SEARCH}},
    {"omniquant", "", "", false, false, {NO_TRAINING, PLAIN_WEIGHTS}},
    {"brecq", "", "", false, false, {NO_TRAINING, NO_SEARCH, PLAIN_WEIGHTS}},
    {"signround", "", "", false, false, {NO_TRAINING, PLAIN_WEIGHTS}},
    {"lsq", "", "", false, false, {NO_TRAINING, PLAIN_WEIGHTS}}, /* AdamW makes good what it does to gradients of activations' steps */
    {"efficientqat", "", "", false, false, {NO_TRAINING, WITHOUT("train.norms", "false")}},
    {"rtn", "", "", false, false, {WITHOUT("init.search", "true")}},
};

/* A method that silently did nothing would be rounding to nearest. Rates of training are the method's own. */
START_TEST(every_method_is_more_than_rounding_to_nearest)
{
    const bk_method *m = &bk_methods[_i];
    char sets[64], rtn[64];
    int k = 0, count = (int)(sizeof made_of / sizeof made_of[0]);
    while (k < count && strcmp(made_of[k].method, m->name)) k++;
    ck_assert_msg(k < count, "what is %s made of?", m->name);
    method_config(NULL, m->name, "");
    e2e_replace("run.yaml", ", lr_quant: 1e-3, lr_weight: 1e-3", "");
    snprintf(sets, sizeof sets, "--set train.epochs=%d", trains(m) ? 6 : 0);
    e2e_brick(0, "run run.yaml %s --out a", sets);
    double ppl = e2e_number("a/summary.json", "ppl", "final");
    ck_assert_str_eq(fitted_parts("a"), made_of[k].fitted);
    ck_assert(bk_exists("a/fit.json") == (*made_of[k].report != 0) && (!*made_of[k].report || has("a/fit.json", made_of[k].report)));
    ck_assert_int_eq(system("ls cache/init-*/gptq.json >/dev/null 2>&1") == 0, made_of[k].gptq);
    ck_assert(made_of[k].gptq ? e2e_number("a/summary.json", "gptq", "linears") == 14 : isnan(e2e_number("a/summary.json", "gptq", "linears")));
    ck_assert(bk_exists("a/prefix.h5") == made_of[k].prefix);
    is_quantized_by("weight", m->weights);
    is_quantized_by("activation", m->activations);
    all_take_part(ppl, sets, made_of[k].without);
    snprintf(rtn, sizeof rtn, "--set method=rtn --set scheme=%s", strcmp(m->scheme, "W4A16-g128") ? m->scheme : "W4A16-g32");
    ck_assert((final_of("", rtn) == ppl) == !strcmp(m->name, "rtn"));
}
END_TEST

/* Methods that come from different papers, in one model. */
static const struct {
    const char *sets, *fitted;
    bool prefix, training;
    const char *without[9];
} together[] = {
    {"--set method=offq --set scheme=W4A4KV4-dynamic-asym-gauto --set prefix.mode=auto --set init.search=true --set train.epochs=1 --set evaluate=[ablation]",
     "r1 down_order down_signs", true, true, {NO_BASIS, NO_PREFIX, NO_GPTQ, NO_TRAINING}},
    {"--set method=gptq --set scheme=W4A16-g32 --set prefix.mode=auto --set gptq.act_order=true --set gptq.static_groups=true --set train.epochs=1", "",
     true, true, {NO_PREFIX, NO_GPTQ, NO_TRAINING, WITHOUT("gptq.act_order", "false")}},
    {"--set method=efficientqat --set scheme=W3A16-g32 --set init.from=gptq --set train.epochs=6", "", false, true,
     {NO_GPTQ, NO_TRAINING, WITHOUT("train.norms", "false")}},
    {"--set method=gptq --set scheme=W4A4KV4-static --set prefix.mode=auto --set gptq.act_quant=true --set evaluate=[ablation]", "", true, false,
     {NO_PREFIX, NO_GPTQ, WITHOUT("gptq.act_quant", "false")}},
    {"--set method=spinquant --set spin.r2=true --set scheme=W4A8KV8-static --set prefix.mode=auto", "r1 r2", true, false,
     {WITHOUT("spin.r2", "false"), NO_BASIS " " WITHOUT("spin.r2", "false"), NO_PREFIX, NO_GPTQ}},
    {"--set method=smoothquant --set rotation.r2=true --set rotation.r4=true --set init.from=gptq", "scale_attn_in scale_mlp_in", false, false,
     {NO_SCALES, NO_R2, NO_R4, NO_GPTQ}},
};

START_TEST(methods_work_together)
{
    const char *sets = together[_i].sets;
    e2e_config("../m", SMALL);
    e2e_replace("run.yaml", "epochs: 2, batch: 2", "epochs: 0, batch: 2");
    e2e_brick(0, "run run.yaml %s --out a", sets);
    same_as_eval("a");
    ck_assert_str_eq(fitted_parts("a"), together[_i].fitted);
    ck_assert(e2e_number("a/summary.json", "gptq", "linears") == 14);
    ck_assert(bk_exists("a/prefix.h5") == together[_i].prefix);
    ck_assert(has("a/summary.json", "\"+training\"") == together[_i].training);
    all_take_part(e2e_number("a/summary.json", "ppl", "final"), sets, together[_i].without);
}
END_TEST

/* Keys of a fit that change what is fitted, and at last one that says nothing about it. */
static const struct {
    const char *method, *keys[14], *idle;
} fits[] = {
    {"offq", {"offq.scope=sequence", "offq.rows=all", "offq.tail=0.5", "offq.score=variance", "offq.zigzag=true", "offq.spread=gaussian", "offq.keys=on",
              "offq.sites=mlp", "offq.alike=true", "quant.activation.group=16 --set offq.group=32", "rotation.r4_group=96", "seed=5"}, "offq.spikiness=3"},
    {"offq", {"offq.spikiness=2"}, "offq.keys=off"}, /* keys of the made model have 2.5 */
    {"spinquant", {"spin.steps=3", "spin.batch=1", "spin.seqlen=16", "spin.lr=0.1", "spin.momentum=0.5", "spin.clip_grad=0.01", "spin.weights=full",
                   "spin.r2=true", "seed=5"}, "norm_rotation.lr=0.1"},
    {"dfrot", {"norm_rotation.rows=40", "norm_rotation.rounds=2", "seed=5"}, "norm_rotation.epochs=1"},
    {"dartquant", {"norm_rotation.rows=40", "norm_rotation.epochs=1", "norm_rotation.batch=8", "norm_rotation.lr=0.1", "norm_rotation.momentum=0.5",
                   "rotation.basis=kurtail", "seed=5"}, "norm_rotation.rounds=2"},
    {"smoothquant", {"scales.alpha=0.5"}, "spin.lr=0.1"},
    {"awq", {"quant.weight.bits=3"}, "scales.alpha=0.5"},
};

static void fitted_sum(const char *key, char sha[65])
{
    e2e_remove("a");
    e2e_brick(0, "run run.yaml --set init.from=minmax --set init.search=false --set evaluate=[] %s%s --out a", key ? "--set " : "", key ? key : "");
    ck_assert_int_eq(bk_sha256_file("a/fitted.h5", sha, &err), BK_OK);
}

START_TEST(keys_of_a_fit_change_what_is_fitted)
{
    char plain[65], other[65];
    method_config(NULL, fits[_i].method, "");
    fitted_sum(NULL, plain);
    for (const char *const *key = fits[_i].keys; *key; key++) {
        fitted_sum(*key, other);
        ck_assert_msg(strcmp(plain, other), "%s: %s changes nothing", fits[_i].method, *key);
    }
    fitted_sum(fits[_i].idle, other);
    ck_assert_msg(!strcmp(plain, other), "%s: %s changes what it has nothing to do with", fits[_i].method, fits[_i].idle);
}
END_TEST

/* A k bias makes OffQ fit a basis of the keys, which comes with the weights of a block. */
START_TEST(keys_with_a_bias_get_a_basis)
{
    e2e_synth_write(e2e_synth("qwen2,layers=2,hidden=64,inter=96,head_dim=16"), "m");
    method_config("m", "offq", "prefix: {mode: auto}\n");
    e2e_brick(0, "run run.yaml --out a");
    ck_assert(has(stage_file("fit", "fit.json"), "\"keys\": true"));
    same_as_eval("a");
    e2e_brick(0, "generate --model a --prompt abc --tokens 8 --threads 1");
    char *out = e2e_text("out");
    ck_assert_int_gt((int)strlen(out), 4);
    free(out);
}
END_TEST

START_TEST(a_report_looks_through_what_was_fitted)
{
    if (system("gnuplot --version >/dev/null 2>&1")) return;
    method_config(NULL, "offq", "prefix: {mode: auto}\n");
    e2e_brick(0, "run run.yaml --out a");
    e2e_brick(0, "report a");
    e2e_silent("not measured");
    ck_assert(has("a/report/data.json", "\"rotated\""));
    e2e_flip("a/fitted.h5", -9);
    e2e_remove("a/report");
    e2e_brick(0, "report a");
    e2e_said("not measured: a/fitted.h5");
}
END_TEST

/* --- files --- */

START_TEST(sums_and_manifest_name_what_was_fitted)
{
    char sha[65], line[128];
    method_config(NULL, "offq", "");
    e2e_brick(0, "run run.yaml --set data.statistics.text=../m/eval.txt --out a");
    ck_assert_int_eq(bk_sha256_file("../m/eval.txt", sha, &err), BK_OK);
    bk_json *manifest;
    ck_assert_int_eq(bk_sealed_load("a/manifest.json", &manifest, &err), BK_OK);
    const bk_json *set = bk_json_get(manifest, "statistics");
    ck_assert_str_eq(bk_json_str(bk_json_get(set, "sha256"), ""), sha);
    ck_assert_int_eq(bk_json_int(bk_json_get(set, "kept"), 0), 3);
    bk_json_free(manifest);
    ck_assert_int_eq(bk_sha256_file("a/fitted.h5", sha, &err), BK_OK);
    snprintf(line, sizeof line, "%s  fitted.h5\n", sha);
    ck_assert(has("a/SHA256SUMS", line));
    ck_assert(has(stage_file("fit", "SHA256SUMS"), line));
    ck_assert_int_eq(bk_sha256_file(stage_file("init", "gptq.json"), sha, &err), BK_OK);
    snprintf(line, sizeof line, "%s  gptq.json\n", sha);
    ck_assert(has(stage_file("init", "SHA256SUMS"), line));
}
END_TEST

START_TEST(damage_to_what_was_fitted_is_found)
{
    method_config(NULL, "offq", "");
    e2e_brick(0, "run run.yaml --out full");
    e2e_copy_tree("full", "a");
    e2e_flip("a/fitted.h5", -9);
    e2e_brick(3, "run run.yaml --out a");
    e2e_said("fitted.h5: was changed or damaged");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run("full", "a");
    e2e_flip(stage_file("fit", "fitted.h5"), -9);
    e2e_brick(0, "run run.yaml --out b");
    e2e_said("made anew");
    e2e_same_run("full", "b");
    e2e_flip(stage_file("init", "000.h5"), -9);
    e2e_brick(0, "run run.yaml --out c");
    e2e_said("made anew");
    e2e_same_run("full", "c");
}
END_TEST

/* --- killed --- */

static void killed_at(long clock, const char *full, char *last, size_t size)
{
    char at[32];
    snprintf(at, sizeof at, "clock:%ld", clock);
    e2e_remove("a");
    e2e_remove("cache");
    e2e_stop_at(at, SIGKILL);
    ck_assert_int_eq(e2e_wait(e2e_start("run run.yaml --out a")), 128 + SIGKILL);
    e2e_stop_at(NULL, 0);
    bk_beacon_record r = {.number = 0};
    snprintf(last, size, "%s", bk_beacon_read("a", &r) ? r.stage : "");
    e2e_brick(0, "run run.yaml --out a --resume");
    e2e_same_run(full, "a");
    e2e_same_tree("full-cache", "cache");
}

START_TEST(a_run_that_is_killed_ends_with_the_same_bytes)
{
    static const char *const stages[] = {"fit", "initialise", "train"};
    bool seen[3] = {false};
    long calls[3];
    char last[64];
    method_config(NULL, "offq", "prefix: {mode: auto}\n");
    e2e_replace("run.yaml", "epochs: 0", "epochs: 1");
    e2e_count(calls, "run run.yaml --out full");
    ck_assert_int_eq(rename("cache", "full-cache"), 0);
    for (long n = 1; n < calls[2] - 4; n += calls[2] / 9) {
        killed_at(n, "full", last, sizeof last);
        for (int i = 0; i < 3; i++) seen[i] |= !strcmp(last, stages[i]);
    }
    for (int i = 0; i < 3; i++) ck_assert_msg(seen[i], "no run was killed in the stage %s", stages[i]);
}
END_TEST

#ifndef __SANITIZE_THREAD__ /* it writes a larger file itself when it starts */
START_TEST(a_full_disk_loses_nothing_of_a_fit)
{
    static const struct {
        long size;
        const char *what;
    } limits[] = {{6000, "/fitted.h5: "}, {36000, "/fitted.h5: "}, {50000, "/000.h5: "}};
    method_config(NULL, "offq", "prefix: {mode: auto}\n");
    e2e_brick(0, "run run.yaml --out full");
    ck_assert_int_eq(rename("cache", "full-cache"), 0);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        e2e_limit(limits[i].size);
        e2e_brick(5, "run run.yaml --out a");
        e2e_limit(0);
        e2e_said(limits[i].what);
        e2e_said("File too large");
        e2e_brick(0, "run run.yaml --out a --resume");
        e2e_same_run("full", "a");
        e2e_same_tree("full-cache", "cache");
        e2e_remove("a");
        e2e_remove("cache");
    }
}
END_TEST
#endif

/* --- bad input to GPTQ --- */

static double gptq(const char *run, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "%s/summary.json", run);
    return e2e_number(path, "gptq", what);
}

/* A gain of 0 makes a column of q, k and v, and one of gate and up, that is always 0; the made model has some of its own. */
START_TEST(a_dead_column_is_set_aside)
{
    bk_synth *s = e2e_synth("tiny");
    method_config(NULL, "gptq", "");
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("block 0: input channels that are 0 on all samples, whose weights became 0: 2 of q, 2 of k, 2 of v");
    s->block[0].norm[BK_NORM_ATTN][9] = s->block[0].norm[BK_NORM_MLP][9] = 0;
    e2e_synth_write(s, "m");
    method_config("m", "gptq", "");
    e2e_brick(0, "run run.yaml --strict --out b");
    e2e_said("block 0: input channels that are 0 on all samples, whose weights became 0: 3 of q, 3 of k, 3 of v");
    e2e_said("3 of gate, 3 of up");
    e2e_said("GPTQ 14/14, rounded to nearest 0/14; more damping for 0, ");
    ck_assert_double_eq(gptq("b", "dead"), gptq("a", "dead") + 2);
    ck_assert_double_eq(gptq("b", "fell_back"), 0);
    same_as_eval("b");
}
END_TEST

static void repeated(const char *letters, int times)
{
    e2e_write("same.jsonl", "");
    for (int i = 0; i < times; i++) {
        char line[128];
        snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", letters);
        e2e_append("same.jsonl", line);
    }
}

static const struct {
    const char *letters, *sets; /* of a document; a sample is one of them */
} poor[] = {
    {"The quick brown fox jumps over it", "--set data.statistics.samples=64"}, /* the same sample 64 times: 32 different rows at most */
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "--set data.statistics.samples=4"}, /* constant columns at the first norm */
    {"a", "--set data.statistics.samples=1 --set data.statistics.seqlen=1"}, /* the least that there can be */
    {"a", "--set data.statistics.samples=1 --set data.statistics.seqlen=1 --set gptq.percdamp=0"},
};

/* Hessians of low rank: damping makes them definite, more of it where there was none. */
START_TEST(samples_that_say_little_are_enough)
{
    repeated(poor[_i].letters, 64);
    method_config(NULL, "gptq", "");
    e2e_brick(0, "run run.yaml --set data.bos=none --set data.statistics.text=same.jsonl %s --strict --out a", poor[_i].sets);
    e2e_said("GPTQ 14/14, rounded to nearest 0/14");
    bool undamped = _i == 3;
    ck_assert_double_eq(gptq("a", "damped"), undamped ? 14 : 0);
    if (undamped) e2e_said("block 0, q: the Hessian needed a damping of 0.01");
    same_as_eval("a");
}
END_TEST

START_TEST(layers_that_are_alike_are_rounded_alike)
{
    bk_synth *s = e2e_synth("tiny");
    int64_t out, in;
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        bk_linear_shape(&s->cfg, w, &out, &in);
        memcpy(s->block[1].w[w], s->block[0].w[w], (size_t)(out * in) * sizeof(float));
    }
    e2e_synth_write(s, "m");
    method_config("m", "gptq", "");
    e2e_brick(0, "run run.yaml --strict --out a");
    e2e_said("GPTQ 14/14, rounded to nearest 0/14");
    same_as_eval("a");
}
END_TEST

/* Norms whose gains are all 0 in the first blocks. */
static void silent_model(int64_t blocks)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t l = 0; l < blocks; l++)
        for (int64_t c = 0; c < s->cfg.hidden; c++) s->block[l].norm[BK_NORM_ATTN][c] = s->block[l].norm[BK_NORM_MLP][c] = 0;
    e2e_synth_write(s, "m");
    method_config("m", "gptq", "");
}

START_TEST(some_fallbacks_are_counted_and_refused_when_strict)
{
    silent_model(1);
    e2e_brick(0, "run run.yaml --out a");
    e2e_said("block 0, down: its inputs are 0 on all samples; rounded to nearest");
    e2e_said("GPTQ 7/14, rounded to nearest 7/14");
    ck_assert_double_eq(gptq("a", "linears"), 14);
    ck_assert_double_eq(gptq("a", "fell_back"), 7);
    same_as_eval("a");
    e2e_brick(4, "run run.yaml --strict --out b");
    e2e_said("GPTQ fell back to rounding to nearest for 7 of 14 linears (strict)");
    ck_assert(!bk_exists("b/summary.json"));
}
END_TEST

START_TEST(nothing_but_fallbacks_is_a_failure_with_a_result)
{
    silent_model(2);
    e2e_brick(4, "run run.yaml --out a");
    e2e_said("GPTQ rounded no linear");
    ck_assert_double_eq(gptq("a", "fell_back"), 14);
    same_as_eval("a");
    e2e_brick(4, "run run.yaml --out a"); /* asked again */
    e2e_said("a: GPTQ rounded no linear");
    e2e_brick(0, "watch a --once");
    ck_assert(has("out", "; GPTQ rounded no linear"));
    if (system("gnuplot --version >/dev/null 2>&1")) return;
    e2e_brick(0, "report a");
    ck_assert(has("a/report/index.html", "finished; GPTQ rounded no linear"));
}
END_TEST

/* What is a failure of a run is one of a point, found when it ends and when it is there. */
START_TEST(nothing_but_fallbacks_is_a_failure_of_a_point)
{
    silent_model(2);
    e2e_write("sweep.yaml", "base: run.yaml\ngrid: {gptq.act_order: [false]}\n");
    for (int i = 0; i < 2; i++) {
        e2e_brick(4, "sweep sweep.yaml --out s");
        ck_assert(has("s/results.jsonl", "\"status\": \"failed\""));
        ck_assert(has("s/results.jsonl", "\"exit_code\": 4"));
        ck_assert(has("s/results.jsonl", "GPTQ rounded no linear"));
    }
    e2e_silent(": started");
}
END_TEST

/* --- bad input to what is fitted --- */

static const struct {
    const char *method, *where;
} fitting[] = {{"offq", "block 0: OffQ: site down_raw, sequence 0, token 0"}, {"smoothquant", "block 1: attn_in: NaN or Inf in channel 0"},
               {"awq", "block 0: down_in: NaN or Inf in channel"}, {"spinquant", "rotations, step 1"}, {"dfrot", "block 1: NaN or Inf at attn_in"},
               {"dartquant", "block 1: NaN or Inf at attn_in"}, {"kurtail", "block 1: NaN or Inf at attn_in"},
               {"gptq", "block 0: down_in: channel"}};

/* Products beyond f32 in the first block; the place is told where they are first seen. */
START_TEST(statistics_that_are_no_numbers_stop_the_run)
{
    bk_synth *s = e2e_synth("tiny");
    for (int64_t i = 0; i < s->cfg.inter * s->cfg.hidden; i++) s->block[0].w[BK_W_GATE][i] *= 1e25f, s->block[0].w[BK_W_UP][i] *= 1e25f;
    e2e_synth_write(s, "m");
    method_config("m", fitting[_i].method, "");
    e2e_brick(4, "run run.yaml --out a");
    ck_assert(!bk_exists("a/summary.json"));
    e2e_said(fitting[_i].where);
}
END_TEST

/* One window of one token: the least there is to fit to. What cannot be told from it is refused before the model runs. */
static const struct {
    const char *method, *sets, *refused;
} least[] = {
    {"offq", "", NULL},
    {"offq", "--set offq.rows=all --set offq.score=variance --set offq.keys=on", NULL},
    {"gptq", "", NULL},
    {"smoothquant", "", NULL},
    {"awq", "", NULL},
    {"spinquant", "", "--set data.statistics.seqlen: spinquant learns from the loss of next tokens, and windows of 1 token have none"},
    {"spinquant", "--set data.statistics.seqlen=2 --set spin.seqlen=1", "--set spin.seqlen: spinquant learns from the loss of next tokens"},
    {"spinquant", "--set data.statistics.seqlen=2", NULL},
    {"spinquant", "--set data.statistics.seqlen=2 --set spin.r2=true --set spin.weights=rounded", NULL},
    {"dfrot", "", "--set data.statistics.samples: 4 rows of all norms do not tell a rotation of 64 channels"},
    {"dartquant", "", "--set data.statistics.samples: 4 rows of all norms are less than a batch of 16 (norm_rotation.batch)"},
    {"kurtail", "", "--set data.statistics.samples: 4 rows of all norms are less than a batch of 16 (norm_rotation.batch)"},
    {"dartquant", "--set norm_rotation.batch=4", NULL},
    {"kurtail", "--set norm_rotation.batch=4", NULL},
};

START_TEST(one_token_is_enough_or_refused)
{
    repeated("ab", 1);
    method_config(NULL, least[_i].method, "");
    e2e_brick(least[_i].refused ? 2 : 0,
              "run run.yaml --set data.bos=none --set data.statistics.text=same.jsonl --set data.statistics.samples=1 --set data.statistics.seqlen=1 %s "
              "--strict --out a",
              least[_i].sets);
    ck_assert(bk_exists("a/summary.json") == !least[_i].refused);
    if (least[_i].refused) e2e_said(least[_i].refused);
    else same_as_eval("a");
}
END_TEST

static const struct {
    int status;
    const char *method, *more, *words;
} refused[] = {
    {2, "offq", "scheme_: 0\n", "run.yaml:15:1: unknown key 'scheme_'"},
    {2, "offq", "quant: {activation: {symmetric: true}}\n", "method offq: rotation.basis: offq turns outliers into offsets of groups"},
    {2, "offq", "quant: {activation: {bits: 16}}\n", "method offq: rotation.basis: offq turns outliers of activations into offsets"},
    {2, "offq", "scales: {from: smoothquant}\n", "run.yaml:15:16: scales.from: "},
    {2, "offq", "rotation: {r4: false}\n", "run.yaml:15:16: rotation.r4: offq orders the input of down for r4"},
    {2, "offq", "rotation: {r1: false}\n", "method offq: rotation.basis: it says what r1 is, and rotation.r1 is off"},
    {2, "offq", "prefix: {mode: search}\n", "run.yaml:15:16: prefix.mode: a search judges the rotated model"},
    {2, "offq", "offq: {group: 24}\n", "run.yaml:15:15: offq.group: 24 does not divide the 64 channels of the model"},
    {2, "offq", "rotation: {r4_group: 36}\n", "96 channels cannot be cut into groups of 36"},
    {2, "offq", "quant: {activation: {group: 48}}\n", "48 does not divide its 64 columns"},
    {2, "offq", "quant.activation.quantizer: static\n", "method offq: rotation.basis: offsets differ from token to token"},
    {2, "offq", "rotation: {r4_group: 0}\n", "run.yaml:15:22: rotation.r4_group: one r4 for all channels makes no offsets"},
    {2, "offq", "rotation: {r3: false}\noffq.keys: on\n", "run.yaml:16:12: offq.keys: the basis for keys is what r3 is"},
    {2, "offq", "quant: {key: {bits: 16}}\noffq.keys: on\n", "run.yaml:16:12: offq.keys: the basis spreads keys that are quantized"},
    {2, "offq", "quant: {activation: {clip: true}}\n", "run.yaml:15:28: quant.activation.clip: clipping factors shrink a range about 0"},
    {2, "offq", "offq: {group: 32}\n", "run.yaml:15:15: offq.group: 32 channels get one offset, and 64 share a zero point"},
    {2, "offq", "rotation: {r4_group: 16}\n", "run.yaml:15:22: rotation.r4_group: 16 channels get one offset, and 32 share a zero point"},
    {2, "dfrot", "quant: {activation: {bits: 16}}\n", "method dfrot: rotation.basis: it makes activations easy to quantize"},
    {2, "smoothquant", "quant: {activation: {bits: 16}}\n", "method smoothquant: scales.from: smoothquant makes activations easy to quantize"},
    {2, "awq", "rotation: {r4: true}\n", "method awq: scales.from: awq scales the columns that are rounded"},
    {2, "quarot", "rotation: {r4: false, r4_group: 32}\n", "run.yaml:15:33: rotation.r4_group: groups of what?"},
    {2, "spinquant", "quant: {activation: {bits: 16}, key: {bits: 16}, value: {bits: 16}}\n",
     "method spinquant: rotation.basis: spinquant lowers the loss that quantizing costs"},
    {2, "spinquant", "rotation: {r2: false}\nspin.r2: true\n", "run.yaml:16:10: spin.r2: it says how r2 is found"},
    {2, "spinquant", "spin.seqlen: 24\n", "run.yaml:15:14: spin.seqlen: does not divide data.statistics.seqlen"},
    {2, "dfrot", "norm_rotation.rows: 15\n", "run.yaml:15:21: norm_rotation.rows: 60 rows of all norms do not tell a rotation of 64 channels"},
    {2, "kurtail", "norm_rotation.rows: 3\n", "run.yaml:15:21: norm_rotation.rows: 12 rows of all norms are less than a batch of 16"},
    {2, "dfrot", "norm_rotation.massive_weight: 0\n", "run.yaml:15:31: norm_rotation.massive_weight: 0 is not in the range"},
    {2, "awq", "quant: {weight: {bits: 16}}\n", "method awq: scales.from: awq protects quantized weights"},
    {2, "gptq", "quant: {weight: {bits: 16}}\n", "method gptq: init.from: gptq rounds weights"},
    {2, "brecq", "init: {from: gptq}\n", "run.yaml:15:14: init.from: gptq finds the steps of the quantizer affine"},
    {2, "gptq", "init: {refresh: true}\n", "run.yaml:15:17: init.refresh: searching again would undo gptq"},
    {2, "gptq", "gptq: {act_order: true}\n", "run.yaml:15:19: gptq.act_order: groups would be made of channels in another order"},
    {2, "gptq", "gptq: {act_quant: true}\n", "run.yaml:15:19: gptq.act_quant: no activations are quantized"},
    {2, "gptq", "quant: {weight: {granularity: tensor, group: 0}}\n", "run.yaml:15:31: quant.weight.granularity: weight: affine weights are per channel or per group"},
    {2, "gptq", "quant: {weight: {group: 48}}\n", "48 does not divide its 64 columns"},
    {3, "gptq", "data.statistics.text: none.txt\n", "run.yaml:15:23: data.statistics.text: 'none.txt': No such file"},
};

START_TEST(combinations_that_mean_nothing_are_refused_with_their_place)
{
    method_config(NULL, refused[_i].method, refused[_i].more);
    e2e_brick(refused[_i].status, "run run.yaml --out a");
    e2e_said(refused[_i].words);
    e2e_silent("samples of");
}
END_TEST

/* The basis costs a product of every key and serves nothing else. */
START_TEST(keys_that_stay_as_they_are_get_no_basis)
{
    method_config(NULL, "offq", "offq.spikiness: 1\n");
    e2e_brick(0, "run run.yaml --out a");
    ck_assert(has("a/fit.json", "\"keys\": true"));
    e2e_brick(0, "run run.yaml --set quant.key.bits=16 --out b");
    ck_assert(has("b/fit.json", "\"keys\": false"));
}
END_TEST

START_TEST(windows_beyond_the_positions_are_refused)
{
    method_config(NULL, "gptq", "");
    e2e_brick(2, "run run.yaml --set data.statistics.seqlen=1025 --out a");
    e2e_said("--set data.statistics.seqlen: 1025 tokens behind a prefix of 0 go beyond the model's 1024 positions");
}
END_TEST

static TCase *new_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    suite_add_tcase(s, t);
    return t;
}

int main(void)
{
    Suite *s = suite_create("e2e_methods");
    TCase *t = new_case(s, "methods");
    tcase_add_loop_test(t, every_method_runs_to_the_number_that_eval_gives, 0, bk_method_count);
    tcase_add_loop_test(t, every_method_is_more_than_rounding_to_nearest, 0, bk_method_count);
    tcase_add_loop_test(t, methods_work_together, 0, sizeof together / sizeof together[0]);
    tcase_add_loop_test(t, keys_of_a_fit_change_what_is_fitted, 0, sizeof fits / sizeof fits[0]);
    tcase_add_test(t, keys_with_a_bias_get_a_basis);
    t = new_case(s, "files");
    tcase_add_test(t, a_report_looks_through_what_was_fitted);
    tcase_add_test(t, sums_and_manifest_name_what_was_fitted);
    tcase_add_test(t, damage_to_what_was_fitted_is_found);
    tcase_add_test(t, a_run_that_is_killed_ends_with_the_same_bytes);
#ifndef __SANITIZE_THREAD__
    tcase_add_test(t, a_full_disk_loses_nothing_of_a_fit);
#endif
    t = new_case(s, "bad input");
    tcase_add_test(t, a_dead_column_is_set_aside);
    tcase_add_loop_test(t, samples_that_say_little_are_enough, 0, sizeof poor / sizeof poor[0]);
    tcase_add_test(t, layers_that_are_alike_are_rounded_alike);
    tcase_add_test(t, some_fallbacks_are_counted_and_refused_when_strict);
    tcase_add_test(t, nothing_but_fallbacks_is_a_failure_with_a_result);
    tcase_add_test(t, nothing_but_fallbacks_is_a_failure_of_a_point);
    tcase_add_loop_test(t, statistics_that_are_no_numbers_stop_the_run, 0, sizeof fitting / sizeof fitting[0]);
    tcase_add_loop_test(t, one_token_is_enough_or_refused, 0, sizeof least / sizeof least[0]);
    tcase_add_loop_test(t, combinations_that_mean_nothing_are_refused_with_their_place, 0, sizeof refused / sizeof refused[0]);
    tcase_add_test(t, keys_that_stay_as_they_are_get_no_basis);
    tcase_add_test(t, windows_beyond_the_positions_are_refused);
    return run_suite(s);
}
