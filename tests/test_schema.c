#include <check.h>
#include <dirent.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/kernels.h"
#include "experiments/schema.h"
#include "experiments/sweep.h"
#include "experiments/scheme.h"
#include "io/store.h"
#include "tests/suite.h"

static bk_run_config c, d;
static bk_error err;

static void setup(void)
{
    unsetenv("OMP_NUM_THREADS");
    err = (bk_error){0};
}

static bk_status parse_len(const char *text, size_t len)
{
    err = (bk_error){0};
    return bk_run_config_parse(text, len, "c.yaml", NULL, 0, &c, &err);
}

static bk_status parse(const char *text)
{
    return parse_len(text, strlen(text));
}

static bk_status parse_set(const char *text, const char *set)
{
    err = (bk_error){0};
    return bk_run_config_parse(text, strlen(text), "c.yaml", &set, 1, &c, &err);
}

static void must_fail(bk_status status, const char *place, const char *word)
{
    ck_assert_msg(status == BK_EINVAL, "status %s, message '%s'", bk_status_name(status), err.msg);
    ck_assert_msg(strncmp(err.msg, place, strlen(place)) == 0, "'%s' does not begin with '%s'", err.msg, place);
    ck_assert_msg(strstr(err.msg, word) != NULL, "no '%s' in '%s'", word, err.msg);
}

static void must_parse(const char *text)
{
    bk_status status = parse(text);
    ck_assert_msg(status == BK_OK, "%s", err.msg);
}

/* Bad configs: text, where the message points, a word of it. */
static const struct {
    const char *text, *place, *word;
} bad[] = {
    {"model: x\ntrain: {epcohs: 5}\n", "c.yaml:2:9: ", "'train.epochs'"},
    {"epochs: 5\n", "c.yaml:1:1: ", "'train.epochs'"},
    {"modle: x\n", "c.yaml:1:1: ", "'model'"},
    {"trian:\n  epochs: 1\n", "c.yaml:1:1: ", "'train'"},
    {"data:\n  trainig: {samples: 1}\n", "c.yaml:2:3: ", "'data.training'"},
    {"train: {lr_quant: 1, lr_quant: 2}\n", "c.yaml:1:22: ", "twice"},
    {"seed: 1\nmodel: x\nseed: 2\n", "c.yaml:3:1: ", "line 1"},
    {"train: {epochs: 1}\ntrain: {batch: 1}\n", "c.yaml:2:1: ", "twice"},
    {"train: {epochs: 1}\ntrain.epochs: 2\n", "c.yaml:2:1: ", "'train.epochs' is set twice, first in line 1"},
    {"train:\n\tepochs: 5\n", "c.yaml:2:", "tab"},
    {"train: {lr_quant: \"1e-5\"}\n", "c.yaml:1:19: ", "quotes"},
    {"train: {epochs: 4.0}\n", "c.yaml:1:17: ", "write 4"},
    {"train: {epochs: 4.5}\n", "c.yaml:1:17: ", "whole number"},
    {"train: {epochs: 010}\n", "c.yaml:1:17: ", "whole number"},
    {"train: {epochs: 99999999999999999999}\n", "c.yaml:1:17: ", "too large"},
    {"train: {epochs: -1}\n", "c.yaml:1:17: ", "range"},
    {"train: {shuffle: yes}\n", "c.yaml:1:18: ", "true or false"},
    {"train: {shuffle: \"true\"}\n", "c.yaml:1:18: ", "quotes"},
    {"train: {lr_quant: .nan}\n", "c.yaml:1:19: ", "number"},
    {"train: {lr_quant: NaN}\n", "c.yaml:1:19: ", "number"},
    {"train: {lr_quant: 1e999}\n", "c.yaml:1:19: ", "beyond"},
    {"train: {lr_quant: 0x1p3}\n", "c.yaml:1:19: ", "number"},
    {"train: {lr_quant: 11}\n", "c.yaml:1:19: ", "range"},
    {"train: {loss: mes}\n", "c.yaml:1:15: ", "'mse'"},
    {"train: 3\n", "c.yaml:1:8: ", "section"},
    {"train: [epochs]\n", "c.yaml:1:8: ", "section"},
    {"train:\n", "c.yaml:1:7: ", "section"},
    {"model:\n", "c.yaml:1:7: ", "no value"},
    {"model: ~\n", "c.yaml:1:8: ", "no value"},
    {"model: [a]\n", "c.yaml:1:8: ", "list"},
    {"seed: {a: 1}\n", "c.yaml:1:7: ", "map"},
    {"model: &a x\nmethod: *a\n", "c.yaml:1:8: ", "anchor"},
    {"model: *a\n", "c.yaml:1:8: ", "alias"},
    {"model: !!str x\n", "c.yaml:1:8: ", "tag"},
    {"model: x\n---\nmodel: y\n", "c.yaml:2:1: ", "second document"},
    {"", "c.yaml:1:1: ", "empty"},
    {"# only a comment\n", "c.yaml:1:1: ", "empty"},
    {"just text\n", "c.yaml:1:1: ", "map"},
    {"- a\n- b\n", "c.yaml:1:1: ", "map"},
    {"? [a, b]\n: c\n", "c.yaml:1:3: ", "key"},
    {"a: [[[[[[[[[[1]]]]]]]]]]\n", "c.yaml:1:", "deeper"},
    {"model: \"a\\0b\"\n", "c.yaml:1:8: ", "NUL"},
    {"model: {\n", "c.yaml:2:1: ", "not valid YAML"},
    {"model: \"\xff\"\n", "c.yaml:1:9: ", "UTF-8"},
    {"model: x\x01\n", "c.yaml:1:9: ", "control"},
    {"method: rnt\n", "c.yaml:1:9: ", "'rtn'"},
    {"scheme: W4A4KV4\n", "c.yaml:1:9: ", "-static"},
    {"scheme: W9A4-static\n", "c.yaml:1:9: ", "W9"},
    {"quant: {weight: {bits: 12}}\n", "c.yaml:1:24: ", "12"},
    {"quant: {skip: [{block: 0, site: down_on}]}\n", "c.yaml:1:33: ", "'down_in'"},
    {"quant: {skip: [{blokc: 0}]}\n", "c.yaml:1:17: ", "'block'"},
    {"quant: {skip: [{}]}\n", "c.yaml:1:16: ", "empty"},
    {"quant: {skip: down_in}\n", "c.yaml:1:15: ", "list"},
    {"prefix: {mode: []}\n", "c.yaml:1:16: ", "none"},
    {"prefix: {mode: [1, -2]}\n", "c.yaml:1:20: ", "range"},
    {"prefix: {mode: sometimes}\n", "c.yaml:1:16: ", "auto|none"},
    {"evaluate: ppl\n", "c.yaml:1:11: ", "list"},
    {"evaluate: [ppl, ppl]\n", "c.yaml:1:17: ", "twice"},
    {"evaluate: [ablatoin]\n", "c.yaml:1:12: ", "'ablation'"},
    {"data: {evaluation: {windows: none}}\n", "c.yaml:1:30: ", "whole number"},
    {"<<: {seed: 1}\n", "c.yaml:1:1: ", "unknown key"},
};

START_TEST(bad_config_names_place_and_fault)
{
    must_fail(parse(bad[_i].text), bad[_i].place, bad[_i].word);
}
END_TEST

START_TEST(bom_and_crlf_are_fine)
{
    must_parse("\xef\xbb\xbfmodel: x\r\nseed: 7\r\n");
    ck_assert_str_eq(c.model, "x");
    ck_assert_int_eq(c.seed, 7);
}
END_TEST

START_TEST(nul_byte_is_an_error)
{
    must_fail(parse_len("model: x\nseed: \0 1\n", 19), "c.yaml:2:7: ", "control");
}
END_TEST

START_TEST(line_of_ten_megabytes_is_an_error)
{
    size_t n = 10u << 20;
    char *text = malloc(n);
    memset(text, 'a', n);
    memcpy(text, "model: ", 7);
    must_fail(parse_len(text, n), "c.yaml:1:8: ", "too long");
    free(text);
}
END_TEST

START_TEST(endless_nesting_is_an_error)
{
    size_t n = 1u << 20;
    char *text = malloc(n);
    memset(text, '[', n);
    must_fail(parse_len(text, n), "c.yaml:1:", "deeper");
    free(text);
}
END_TEST

START_TEST(defaults_are_those_of_the_table)
{
    must_parse("model: x\n");
    ck_assert_str_eq(c.method, "prefixquant");
    ck_assert_str_eq(c.scheme, "W4A4KV4-static");
    ck_assert_int_eq(c.seed, 2);
    ck_assert_int_eq(c.data.evaluation.samples, 16);
    ck_assert_int_eq(c.prefix.mode, BK_PREFIX_AUTO);
    ck_assert_int_eq(c.quant.activation.granularity, BK_PER_TENSOR);
    ck_assert(!c.quant.weight.restricted);
    ck_assert(c.train.lr_quant == 5e-5 && c.train.beta2 == 0.999 && c.train.clip_grad == 0);
    ck_assert_uint_eq(c.evaluate, BK_EVALUATE_PPL);
}
END_TEST

/* --- keys and their members --- */

#define FIELD(f) offsetof(bk_run_config, f), _Generic(((bk_run_config *)0)->f, bool: 'b', int64_t: 'i', double: 'd', default: 'e')
#define OF_QUANT(place)                                                                                                                          \
    {"quant." #place ".bits=3", FIELD(quant.place.bits), 3}, {"quant." #place ".symmetric=false", FIELD(quant.place.symmetric), 0},                \
        {"quant." #place ".step=restricted", FIELD(quant.place.restricted), 1}, {"quant." #place ".clip=true", FIELD(quant.place.clip), 1},        \
        {"quant." #place ".granularity=group", FIELD(quant.place.granularity), BK_PER_GROUP}, {"quant." #place ".group=48", FIELD(quant.place.group), 48}, \
        {"quant." #place ".group=auto", FIELD(quant.place.group), BK_GROUP_AUTO}

/* A value that is not the default, every word but that of the default, and where it must arrive. */
static const struct {
    const char *set;
    size_t at;
    char type;
    double want;
} arrives[] = {
    {"seed=11", FIELD(seed), 11},
    {"threads=3", FIELD(threads), 3},
    {"strict=true", FIELD(strict), 1},
    {"equivalence_tolerance=0.25", FIELD(equivalence_tolerance), 0.25},
    {"data.detection.samples=5", FIELD(data.detection.samples), 5},
    {"data.detection.seqlen=6", FIELD(data.detection.seqlen), 6},
    {"data.calibration.samples=7", FIELD(data.calibration.samples), 7},
    {"data.calibration.seqlen=8", FIELD(data.calibration.seqlen), 8},
    {"data.statistics.samples=9", FIELD(data.statistics.samples), 9},
    {"data.statistics.seqlen=10", FIELD(data.statistics.seqlen), 10},
    {"data.training.samples=11", FIELD(data.training.samples), 11},
    {"data.training.seqlen=12", FIELD(data.training.seqlen), 12},
    {"data.training.validation=13", FIELD(data.validation), 13},
    {"data.evaluation.seqlen=14", FIELD(data.evaluation.seqlen), 14},
    {"data.evaluation.windows=15", FIELD(data.evaluation.samples), 15},
    {"data.evaluation.windows=all", FIELD(data.evaluation.samples), -1},
    {"data.bos=none", FIELD(data.bos), BK_BOS_NONE},
    {"data.strip_bos=true", FIELD(data.strip_bos), 1},
    {"data.parse_special=true", FIELD(data.parse_special), 1},
    {"rotation.r1=false", FIELD(rotation.r1), 0},
    {"rotation.r2=false", FIELD(rotation.r2), 0},
    {"rotation.r3=false", FIELD(rotation.r3), 0},
    {"rotation.r4=false", FIELD(rotation.r4), 0},
    {"rotation.basis=offq", FIELD(rotation.basis), BK_BASIS_OFFQ},
    {"rotation.basis=spinquant", FIELD(rotation.basis), BK_BASIS_SPINQUANT},
    {"rotation.basis=dfrot", FIELD(rotation.basis), BK_BASIS_DFROT},
    {"rotation.basis=dartquant", FIELD(rotation.basis), BK_BASIS_DARTQUANT},
    {"rotation.basis=kurtail", FIELD(rotation.basis), BK_BASIS_KURTAIL},
    {"rotation.r2_per_head=true", FIELD(rotation.r2_per_head), 1},
    {"rotation.r4_group=16", FIELD(rotation.r4_group), 16},
    {"rotation.r4_group=auto", FIELD(rotation.r4_group), BK_GROUP_AUTO},
    {"rotation.fold_v_bias=true", FIELD(rotation.fold_v_bias), 1},
    {"scales.from=smoothquant", FIELD(scales.from), BK_SCALES_SMOOTHQUANT},
    {"scales.from=awq", FIELD(scales.from), BK_SCALES_AWQ},
    {"scales.alpha=0.375", FIELD(scales.alpha), 0.375},
    {"prefix.threshold=65", FIELD(prefix.threshold), 65},
    {"prefix.lower_threshold=9", FIELD(prefix.lower_threshold), 9},
    {"prefix.overlap=true", FIELD(prefix.overlap), 1},
    {"prefix.bos=none", FIELD(prefix.bos), BK_PREFIX_BOS_NONE},
    {"prefix.search.objective=ratio", FIELD(prefix.search.objective), BK_SEARCH_RATIO},
    {"prefix.search.candidates=17", FIELD(prefix.search.candidates), 17},
    {"prefix.search.max_tokens=5", FIELD(prefix.search.max_tokens), 5},
    {"prefix.search.samples=3", FIELD(prefix.search.samples), 3},
    {"prefix.search.tau=0.125", FIELD(prefix.search.tau), 0.125},
    OF_QUANT(weight),
    OF_QUANT(activation),
    OF_QUANT(key),
    OF_QUANT(value),
    {"init.from=gptq", FIELD(init.from), BK_INIT_GPTQ},
    {"init.search=false", FIELD(init.search), 0},
    {"init.refresh=true", FIELD(init.refresh), 1},
    {"init.range=ema", FIELD(init.range), BK_RANGE_EMA},
    {"train.epochs=21", FIELD(train.epochs), 21},
    {"train.batch=22", FIELD(train.batch), 22},
    {"train.lr_quant=0.5", FIELD(train.lr_quant), 0.5},
    {"train.lr_weight=0.25", FIELD(train.lr_weight), 0.25},
    {"train.lr_round=0.125", FIELD(train.lr_round), 0.125},
    {"train.norms=true", FIELD(train.norms), 1},
    {"train.lr_min_factor=30", FIELD(train.lr_min_factor), 30},
    {"train.beta1=0.25", FIELD(train.beta1), 0.25},
    {"train.beta2=0.5", FIELD(train.beta2), 0.5},
    {"train.eps=0.0625", FIELD(train.eps), 0.0625},
    {"train.weight_decay=0.75", FIELD(train.weight_decay), 0.75},
    {"train.clip_grad=2.5", FIELD(train.clip_grad), 2.5},
    {"train.shuffle=true", FIELD(train.shuffle), 1},
    {"train.loss=skip_mse", FIELD(train.loss), BK_LOSS_SKIP_MSE},
    {"train.loss=clamp_mse", FIELD(train.loss), BK_LOSS_CLAMP_MSE},
    {"train.loss=normalized_mse", FIELD(train.loss), BK_LOSS_NORMALIZED_MSE},
    {"train.loss=cosine", FIELD(train.loss), BK_LOSS_COSINE},
    {"train.target=quant", FIELD(train.target), BK_TARGET_QUANT},
    {"train.target=both", FIELD(train.target), BK_TARGET_BOTH},
    {"train.keep=last", FIELD(train.keep), BK_KEEP_LAST},
    {"gptq.percdamp=0.5", FIELD(gptq.percdamp), 0.5},
    {"gptq.first_weight=256", FIELD(gptq.first_weight), 256},
    {"gptq.act_order=true", FIELD(gptq.act_order), 1},
    {"gptq.static_groups=true", FIELD(gptq.static_groups), 1},
    {"gptq.mse_clip=false", FIELD(gptq.mse_clip), 0},
    {"gptq.act_quant=true", FIELD(gptq.act_quant), 1},
    {"offq.scope=sequence", FIELD(offq.scope), BK_OFFQ_TOKEN_PER_SEQUENCE},
    {"offq.sites=attention", FIELD(offq.sites), BK_OFFQ_ATTENTION},
    {"offq.sites=mlp", FIELD(offq.sites), BK_OFFQ_MLP},
    {"offq.alike=true", FIELD(offq.alike), 1},
    {"offq.rows=all", FIELD(offq.basis), BK_OFFQ_ALL_TOKENS},
    {"offq.tail=0.125", FIELD(offq.tail), 0.125},
    {"offq.score=variance", FIELD(offq.score), BK_OFFQ_VARIANCE},
    {"offq.zigzag=true", FIELD(offq.zigzag), 1},
    {"offq.spread=gaussian", FIELD(offq.spread), BK_OFFQ_GAUSSIAN},
    {"offq.keys=on", FIELD(offq.keys), BK_OFFQ_KEYS_ON},
    {"offq.keys=off", FIELD(offq.keys), BK_OFFQ_KEYS_OFF},
    {"offq.spikiness=2.5", FIELD(offq.spikiness), 2.5},
    {"offq.group=32", FIELD(offq.group), 32},
    {"spin.steps=23", FIELD(spin.steps), 23},
    {"spin.batch=24", FIELD(spin.batch), 24},
    {"spin.seqlen=25", FIELD(spin_seqlen), 25},
    {"spin.lr=0.25", FIELD(spin.lr), 0.25},
    {"spin.momentum=0.5", FIELD(spin.momentum), 0.5},
    {"spin.clip_grad=0.125", FIELD(spin.clip_grad), 0.125},
    {"spin.weights=rounded", FIELD(spin_weights), BK_SPIN_WEIGHTS_ROUNDED},
    {"spin.weights=full", FIELD(spin_weights), BK_SPIN_WEIGHTS_FULL},
    {"spin.r2=true", FIELD(spin.r2), 1},
    {"norm_rotation.rows=26", FIELD(norm_rotation.rows), 26},
    {"norm_rotation.rounds=27", FIELD(norm_rotation.dfrot.rounds), 27},
    {"norm_rotation.massive_weight=28", FIELD(norm_rotation.dfrot.massive_weight), 28},
    {"norm_rotation.epochs=29", FIELD(norm_rotation.spread.epochs), 29},
    {"norm_rotation.batch=30", FIELD(norm_rotation.spread.batch), 30},
    {"norm_rotation.lr=0.25", FIELD(norm_rotation.spread.lr), 0.25},
    {"norm_rotation.momentum=0.5", FIELD(norm_rotation.spread.momentum), 0.5},
    {"store.keep=all", FIELD(store.keep), BK_TARGETS_ALL},
    {"store.keep=shared", FIELD(store.keep), BK_TARGETS_SHARED},
    {"store.dtype=f32", FIELD(store.dtype), BK_STORE_F32},
    {"store.overflow=f32", FIELD(store.overflow), BK_OVERFLOW_F32},
    {"store.overflow=error", FIELD(store.overflow), BK_OVERFLOW_ERROR},
    {"store.compression=gzip", FIELD(store.compression), 1},
};
enum { ARRIVES = sizeof arrives / sizeof arrives[0] };

static double member(const bk_run_config *of, int i)
{
    const void *at = (const char *)of + arrives[i].at;
    switch (arrives[i].type) {
    case 'b': return *(const bool *)at;
    case 'i': return (double)*(const int64_t *)at;
    case 'd': return *(const double *)at;
    default: return *(const int *)at;
    }
}

/* The member of the key has it, and no other key has changed. */
START_TEST(every_key_arrives_at_its_member)
{
    char key[64], others[65], in_c[64], in_d[64];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(arrives[_i].set, "="), arrives[_i].set);
    snprintf(others, sizeof others, "!%s", key);
    must_parse("model: x\n");
    d = c;
    ck_assert_msg(parse_set("model: x\n", arrives[_i].set) == BK_OK, "%s", err.msg);
    ck_assert_msg(member(&d, _i) != arrives[_i].want, "%s is the default", arrives[_i].set);
    ck_assert_msg(member(&c, _i) == arrives[_i].want, "%s arrives as %g", arrives[_i].set, member(&c, _i));
    ck_assert_str_eq(bk_run_config_diff(&d, &c, NULL, in_d, in_c, sizeof in_c), key);
    const char *also = bk_run_config_diff(&d, &c, (const char *const[]){others, NULL}, in_d, in_c, sizeof in_c);
    ck_assert_msg(!also, "%s changes %s too", arrives[_i].set, also);
}
END_TEST

static bool is_tried(const char *key, const char *word)
{
    size_t n = strlen(key);
    for (int i = 0; i < ARRIVES; i++)
        if (!strncmp(arrives[i].set, key, n) && arrives[i].set[n] == '=' && (!word || !strcmp(arrives[i].set + n + 1, word))) return true;
    return false;
}

START_TEST(no_number_and_no_word_is_left_out_above)
{
    for (int i = 0; i < bk_key_count; i++) {
        const bk_key *k = &bk_keys[i];
        bool number = k->type == BK_KEY_BOOL || k->type == BK_KEY_EITHER || k->type == BK_KEY_INT || k->type == BK_KEY_BITS || k->type == BK_KEY_REAL;
        bool words = k->type == BK_KEY_ENUM || k->type == BK_KEY_INT_OR;
        if ((!number && !words) || bk_key_owner(k)) continue; /* texts and lists: above; options of quantizers: tests/test_quant_options.c */
        ck_assert_msg(is_tried(k->path, NULL), "%s", k->path);
        for (const char *w = words && k->initial ? k->choices : ""; *w; w += strcspn(w, "|"), w += *w == '|') {
            char word[32];
            snprintf(word, sizeof word, "%.*s", (int)strcspn(w, "|"), w);
            ck_assert_msg(!strcmp(word, k->initial) || is_tried(k->path, word), "%s=%s", k->path, word);
        }
    }
}
END_TEST

START_TEST(lists_maps_and_words_arrive)
{
    must_parse("quant: {skip: [{block: 3}, {site: q}, {block: 0, site: down_in}]}\nprefix: {mode: [5, 0, 1]}\n"
               "evaluate: [ablation, ppl]\ndata: {evaluation: {windows: all}, join: \"\\n\\n\"}\n");
    ck_assert_int_eq(c.prefix.mode, BK_PREFIX_GIVEN);
    ck_assert_int_eq(c.prefix.n_ids, 3);
    ck_assert_int_eq(c.prefix.ids[0], 5);
    ck_assert_int_eq(c.data.evaluation.samples, -1);
    ck_assert_str_eq(c.data.join, "\n\n");
    ck_assert_uint_eq(c.evaluate, BK_EVALUATE_PPL | BK_EVALUATE_ABLATION);
    ck_assert(bk_run_config_skips(&c, 3, "o_in") && bk_run_config_skips(&c, 9, "q") && bk_run_config_skips(&c, 0, "down_in"));
    ck_assert(!bk_run_config_skips(&c, 1, "down_in") && !bk_run_config_skips(&c, 0, "o_in"));
}
END_TEST

START_TEST(quant_section_overrides_the_scheme_in_any_order)
{
    must_parse("quant: {weight: {bits: 3}}\nscheme: W4A8KV4-dynamic\n");
    ck_assert_int_eq(c.quant.weight.bits, 3);
    ck_assert_int_eq(c.quant.activation.bits, 8);
    ck_assert_str_eq(c.quant.key.quantizer, "dynamic");
}
END_TEST

START_TEST(config_overrides_the_method)
{
    must_parse("train: {epochs: 3}\nmethod: rtn\n");
    ck_assert_int_eq(c.train.epochs, 3);
    ck_assert(!c.rotation.r1 && !c.init.search);
    ck_assert_str_eq(c.scheme, "W4A4KV4-dynamic");
}
END_TEST

START_TEST(method_on_the_command_line_overrides_the_config)
{
    ck_assert_int_eq(parse_set("train: {epochs: 3, clip_grad: 2}\nscheme: W4A8KV4-static\n", "method=rtn"), BK_OK);
    ck_assert_int_eq(c.train.epochs, 0);
    ck_assert_int_eq(c.train.batch, 4);
    ck_assert_double_eq(c.train.clip_grad, 2); /* no method says anything about it */
    ck_assert_str_eq(c.scheme, "W4A8KV4-static");
}
END_TEST

START_TEST(scheme_on_the_command_line_overrides_a_resolved_config)
{
    must_parse("scheme: W4A4KV4-static\n");
    char *text = bk_run_config_write(&c);
    ck_assert_int_eq(parse_set(text, "scheme=W8A8-dynamic"), BK_OK);
    ck_assert_int_eq(c.quant.weight.bits, 8);
    ck_assert_str_eq(c.quant.activation.quantizer, "dynamic");
    free(text);
}
END_TEST

START_TEST(what_a_later_layer_overrides_must_still_be_right)
{
    must_fail(parse_set("quant: {weight: {bits: 12}}\n", "scheme=W8A8-static"), "c.yaml:1:24: ", "12");
}
END_TEST

START_TEST(weight_only_scheme_leaves_online_rotations_out)
{
    must_parse("scheme: W3A16-g128\n");
    ck_assert(c.rotation.r1 && c.rotation.r2 && !c.rotation.r3 && !c.rotation.r4);
    ck_assert_int_eq(c.quant.weight.group, 128);
    must_parse("scheme: W3A16-g128\nrotation: {r4: true}\n");
    ck_assert(c.rotation.r4);
}
END_TEST

START_TEST(environment_goes_before_the_config_and_set_before_both)
{
    setenv("OMP_NUM_THREADS", "3,2", 1);
    must_parse("threads: 8\n");
    ck_assert_int_eq(c.threads, 3);
    ck_assert_int_eq(parse_set("threads: 8\n", "threads=5"), BK_OK);
    ck_assert_int_eq(c.threads, 5);
    setenv("OMP_NUM_THREADS", "many", 1);
    must_fail(parse("threads: 8\n"), "OMP_NUM_THREADS: ", "many");
    unsetenv("OMP_NUM_THREADS");
}
END_TEST

static const struct {
    const char *set, *word;
} bad_set[] = {
    {"train.epcohs=5", "'train.epochs'"}, {"train.epochs=4.0", "write 4"}, {"train.epochs", "key=value"}, {"=5", "unknown key"},
    {"train.shuffle=yes", "true or false"}, {"train.epochs=", "empty"}, {"train.epochs=[", "YAML"}, {"train=5", "section"},
    {"model=\xff", "UTF-8"}, {"train.epochs=*a", "alias"}, {"seed=1\n---\n2", "second document"},
};

START_TEST(bad_set_names_itself)
{
    must_fail(parse_set("model: x\n", bad_set[_i].set), "--set ", bad_set[_i].word);
    ck_assert_msg(strstr(err.msg, ":1:") == NULL, "an option has no lines: '%s'", err.msg);
}
END_TEST

static const struct {
    const char *set, *says;
} once[] = {
    {"train.batch=0", "--set train.batch: 0 is not in the range 1 to 1000000"}, {"train.epochs=x", "--set train.epochs: a whole number is expected, not 'x'"},
    {"train.epcohs=5", "--set train.epcohs: unknown key, did you mean 'train.epochs'?"}, {"scheme=W9", "--set scheme 'W9': "},
    {"train=5", "--set train: a section"}, {"lr_quant=1e-3", "--set lr_quant: unknown key, did you mean 'train.lr_quant'?"},
    {"train={epcohs: 5}", "--set train: unknown key 'train.epcohs', did you mean 'train.epochs'?"},
};

START_TEST(bad_set_names_its_key_once)
{
    ck_assert_int_eq(parse_set("model: x\n", once[_i].set), BK_EINVAL);
    ck_assert_msg(strncmp(err.msg, once[_i].says, strlen(once[_i].says)) == 0, "'%s', not '%s'", err.msg, once[_i].says);
}
END_TEST

START_TEST(set_takes_text_as_typed)
{
    ck_assert_int_eq(parse_set("seed: 1\n", "model=/a b: #c"), BK_OK);
    ck_assert_str_eq(c.model, "/a b: #c");
    ck_assert_int_eq(parse_set("seed: 1\n", "data.join=\"\\n\\n\""), BK_OK);
    ck_assert_str_eq(c.data.join, "\n\n");
    ck_assert_int_eq(parse_set("seed: 1\n", "prefix.mode=[1, 2]"), BK_OK);
    ck_assert_int_eq(c.prefix.n_ids, 2);
    ck_assert_int_eq(parse_set("seed: 1\n", "train={epochs: 7}"), BK_OK);
    ck_assert_int_eq(c.train.epochs, 7);
}
END_TEST

/* Configs that must survive being written and read. */
static const char *const round_trips[] = {
    "model: x\n",
    "method: rtn\nscheme: W4A8-dynamic-asym\nseed: 9007199254740991\n",
    "model: \"a \\\"b\\\" \\\\ c: #d\\n\\t\\u0085\\u2028\\uFEFF \\u00e9\"\ndata: {join: \"\\n\\n\", evaluation: {windows: all}}\n",
    "model: \"true\"\ndata: {training: {text: \"12\"}, detection: {text: \"- x\"}, calibration: {text: \"null\"}}\n",
    "prefix: {mode: [1, 2, 2147483647]}\nquant: {skip: [{block: 0}, {site: up}, {block: 7, site: key}]}\nevaluate: []\n",
    "prefix: {mode: search, search: {objective: ratio, candidates: 7, max_tokens: 64, samples: 3, tau: 0.3}}\n",
    "train: {lr_quant: 0.1, lr_weight: 1.2345678901234567e-7, eps: 1e-30, beta1: 0.3333333333333333}\n",
    "quant: {weight: {bits: 3, granularity: group, group: 64, step: restricted}, activation: {clip: true, quantizer: dynamic}}\n",
};

START_TEST(written_config_reads_back_the_same)
{
    char in_a[64], in_b[64];
    must_parse(round_trips[_i]);
    char *text = bk_run_config_write(&c);
    bk_status status = bk_run_config_parse(text, strlen(text), "again.yaml", NULL, 0, &d, &err);
    ck_assert_msg(status == BK_OK, "%s\n%s", err.msg, text);
    const char *key = bk_run_config_diff(&c, &d, NULL, in_a, in_b, sizeof in_a);
    ck_assert_msg(key == NULL, "%s: %s, then %s", key, in_a, in_b);
    char *twice = bk_run_config_write(&d);
    ck_assert_str_eq(text, twice);
    free(text);
    free(twice);
}
END_TEST

START_TEST(difference_names_the_first_key)
{
    char in_a[64], in_b[64];
    must_parse("seed: 1\ntrain: {lr_quant: 1e-5}\n");
    d = c;
    must_parse("seed: 2\ntrain: {lr_quant: 2e-5}\n");
    ck_assert_str_eq(bk_run_config_diff(&d, &c, NULL, in_a, in_b, sizeof in_a), "seed");
    ck_assert_str_eq(in_a, "1");
    ck_assert_str_eq(in_b, "2");
    const char *const not_seed[] = {"!seed", NULL}, *const model[] = {"model", NULL};
    ck_assert_str_eq(bk_run_config_diff(&d, &c, not_seed, in_a, in_b, sizeof in_a), "train.lr_quant");
    ck_assert_ptr_null(bk_run_config_diff(&d, &c, model, in_a, in_b, sizeof in_a));
}
END_TEST

START_TEST(digest_holds_only_what_is_asked)
{
    const char *const stage[] = {"seed", "rotation.r", "!rotation.r2_per_head", "!rotation.r4_group", NULL}, *const wrong[] = {"sead", NULL};
    char *text;
    must_parse("seed: 5\n");
    ck_assert_int_eq(bk_config_digest_keys(&c, stage, &text, &err), BK_OK);
    ck_assert_str_eq(text, "seed: 5\nrotation.r1: true\nrotation.r2: true\nrotation.r3: true\nrotation.r4: true\n");
    free(text);
    ck_assert_int_eq(bk_config_digest_keys(&c, wrong, &text, &err), BK_EINVAL);
}
END_TEST

#define TEXTS "data: {training: {text: t}, evaluation: {text: e}}\n"
static const struct {
    const char *text, *word;
} unfit[] = {
    {TEXTS, "model"},
    {"model: x\n", "data.training.text"},
    {"model: x\ndata: {training: {text: t}}\n", "data.evaluation.text"},
    {"model: x\n" TEXTS "quant: {weight: {granularity: group}}\n", "quant.weight.granularity"},
    {"model: x\n" TEXTS "quant: {weight: {group: 64}}\n", "quant.weight.group"},
    {"model: x\n" TEXTS "quant: {weight: {granularity: head}}\n", "per channel or per group"},
    {"model: x\n" TEXTS "quant: {weight: {quantizer: static}}\n", "quant.weight.quantizer"},
    {"model: x\n" TEXTS "quant: {activation: {granularity: token}}\n", "quant.activation.granularity"},
    {"model: x\n" TEXTS "quant: {key: {clip: true}}\n", "quant.key.clip"},
    {"model: x\nscheme: W4A4KV4-dynamic\n" TEXTS "rotation: {r1: true}\nscales: {from: smoothquant}\n", "rotation.r1: false"},
    {"model: x\nscheme: W4A16\n" TEXTS "prefix: {mode: search}\n", "prefix.search.objective"},
    {"model: x\n" TEXTS "prefix: {mode: search, search: {samples: 65}}\n", "prefix.search.samples"},
    {"model: x\ndata: {evaluation: {text: e}}\nprefix: {mode: search}\ntrain: {epochs: 0}\n", "data.detection.text"},
    {"model: x\ndata: {training: {text: t, validation: 0}, evaluation: {text: e}}\n", "data.training.validation"},
};

START_TEST(keys_that_do_not_fit_each_other_are_refused)
{
    must_parse(unfit[_i].text);
    bk_status status = bk_run_config_check(&c, &err);
    must_fail(status, "c.yaml", unfit[_i].word);
}
END_TEST

START_TEST(files_of_a_run_are_those_it_reads)
{
    const char *key, *path;
    must_parse("model: m\nmethod: rtn\nscheme: W4A4KV4-dynamic\n" TEXTS "evaluate: []\n");
    ck_assert_int_eq(bk_run_config_check(&c, &err), BK_OK);
    ck_assert(bk_run_config_file(&c, 0, &key, &path));
    ck_assert_str_eq(path, "m");
    must_parse("model: m\n" TEXTS);
    ck_assert(bk_run_config_file(&c, 1, &key, &path));
    ck_assert_str_eq(key, "data.training.text");
    ck_assert(bk_run_config_file(&c, 2, &key, &path));
    ck_assert_str_eq(path, "e");
    ck_assert(!bk_run_config_file(&c, 3, &key, &path));
}
END_TEST

START_TEST(file_that_is_not_there_is_named_with_its_place)
{
    must_parse("model: /nowhere/m.gguf\n" TEXTS);
    ck_assert_int_eq(bk_run_config_check_files(&c, &err), BK_EIO);
    ck_assert_msg(strncmp(err.msg, "c.yaml:1:8: model: '/nowhere/m.gguf'", 36) == 0, "%s", err.msg);
}
END_TEST

START_TEST(absent_config_is_an_input_error)
{
    ck_assert_int_eq(bk_run_config_load("/nowhere/c.yaml", NULL, 0, &c, &err), BK_EIO);
}
END_TEST

static bk_status load_sweep(const char *path)
{
    bk_sweep s;
    bk_status st = bk_sweep_load(path, &s, &err);
    if (!st) st = bk_sweep_check(&s, &err);
    bk_sweep_free(&s);
    return st;
}

static int load_folder(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    ck_assert_msg(dir != NULL, "%s: tests run in the root of the project", folder);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".yaml") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        err = (bk_error){0};
        ck_assert_msg((bk_sweep_is(path) ? load_sweep(path) : bk_run_config_load(path, NULL, 0, &c, &err)) == BK_OK, "%s", err.msg);
        n++;
    }
    closedir(dir);
    return n;
}

START_TEST(every_config_of_the_project_loads)
{
    ck_assert_int_ge(load_folder("configs"), 1);
    ck_assert_int_eq(load_folder("configs/smollm2"), 10);
    ck_assert_int_eq(load_folder("configs/paper"), 14);
    ck_assert_int_eq(load_folder("configs/methods"), 14);
    ck_assert_int_eq(load_folder("configs/sweeps"), 5);
    ck_assert_int_eq(load_folder("configs/studies"), 10);
    ck_assert_int_eq(load_folder("configs/comparison"), 6);
}
END_TEST

START_TEST(help_names_every_key)
{
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bk_run_config_help(f);
    fclose(f);
    for (int i = 0; i < bk_key_count; i++) ck_assert_msg(strstr(text, bk_keys[i].path) != NULL, "%s", bk_keys[i].path);
    free(text);
}
END_TEST

static void default_is(const char *path, const char *want)
{
    char text[128];
    bk_key_default(&bk_keys[bk_key_find(path)], text, sizeof text);
    ck_assert_str_eq(text, want);
}

START_TEST(help_says_whose_a_default_is)
{
    default_is("train.epochs", "default: the method's; prefixquant 20");
    default_is("rotation.r4", "default: the method's; prefixquant true");
    default_is("quant.weight.step", "default: the method's; prefixquant full");
    default_is("scheme", "default: the method's; prefixquant W4A4KV4-static");
    default_is("quant.weight.bits", "default: the scheme's");
    default_is("prefix.threshold", "default 64");
    default_is("data.training.text", "");
}
END_TEST

/* Nobody sees them, since a method sets these keys anew. */
START_TEST(the_table_has_the_values_of_the_usual_method)
{
    const bk_method *usual = bk_method_find(bk_keys[bk_key_find("method")].initial);
    for (int i = 0; i < bk_key_count; i++) {
        const char *value = bk_method_value(usual, bk_keys[i].path);
        if (value) ck_assert_msg(strcmp(value, bk_keys[i].initial) == 0, "%s: %s, not %s", bk_keys[i].path, bk_keys[i].initial, value);
    }
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

int main(void)
{
    Suite *s = suite_create("schema");
    TCase *t = tcase_create("schema");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, bad_config_names_place_and_fault, 0, COUNT(bad));
    tcase_add_test(t, bom_and_crlf_are_fine);
    tcase_add_test(t, nul_byte_is_an_error);
    tcase_add_test(t, line_of_ten_megabytes_is_an_error);
    tcase_add_test(t, endless_nesting_is_an_error);
    tcase_add_test(t, defaults_are_those_of_the_table);
    tcase_add_loop_test(t, every_key_arrives_at_its_member, 0, ARRIVES);
    tcase_add_test(t, no_number_and_no_word_is_left_out_above);
    tcase_add_test(t, lists_maps_and_words_arrive);
    tcase_add_test(t, quant_section_overrides_the_scheme_in_any_order);
    tcase_add_test(t, config_overrides_the_method);
    tcase_add_test(t, method_on_the_command_line_overrides_the_config);
    tcase_add_test(t, scheme_on_the_command_line_overrides_a_resolved_config);
    tcase_add_test(t, what_a_later_layer_overrides_must_still_be_right);
    tcase_add_test(t, weight_only_scheme_leaves_online_rotations_out);
    tcase_add_test(t, environment_goes_before_the_config_and_set_before_both);
    tcase_add_loop_test(t, bad_set_names_its_key_once, 0, (int)(sizeof once / sizeof once[0]));
    tcase_add_loop_test(t, bad_set_names_itself, 0, COUNT(bad_set));
    tcase_add_test(t, set_takes_text_as_typed);
    tcase_add_loop_test(t, written_config_reads_back_the_same, 0, COUNT(round_trips));
    tcase_add_test(t, difference_names_the_first_key);
    tcase_add_test(t, digest_holds_only_what_is_asked);
    tcase_add_loop_test(t, keys_that_do_not_fit_each_other_are_refused, 0, COUNT(unfit));
    tcase_add_test(t, files_of_a_run_are_those_it_reads);
    tcase_add_test(t, file_that_is_not_there_is_named_with_its_place);
    tcase_add_test(t, absent_config_is_an_input_error);
    tcase_add_test(t, every_config_of_the_project_loads);
    tcase_add_test(t, help_names_every_key);
    tcase_add_test(t, help_says_whose_a_default_is);
    tcase_add_test(t, the_table_has_the_values_of_the_usual_method);
    suite_add_tcase(s, t);
    return run_suite(s);
}
