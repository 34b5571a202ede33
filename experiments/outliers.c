/* brick outliers: token-wise outliers, original, rotated and with prefix side by side. */
#include "experiments/outliers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/scheme.h"
#include "experiments/verbs.h"

typedef struct outliers_args {
    const char *model, *text, *rotate, *prefix, *scheme, *bos, *join, *backend;
    int64_t seqlen, samples, block, seed, threads, group;
    bk_outlier_limits limits;
    bool json, parse_special, strip_bos, offq;
} outliers_args;

typedef struct outliers_state {
    const outliers_args *a;
    bk_lab lab;
    bk_rotation_spec rotation;
    bool automatic, rotated;
    bk_block_quant quant;
    bk_text text;
    bk_samples samples;
    bk_progress progress;
    bk_outlier_report report;
} outliers_state;

static bk_status parse_choices(outliers_state *s, bk_error *err)
{
    bk_scheme scheme = {0};
    BK_TRY(bk_rotation_parse(s->a->rotate, &s->rotation, err));
    BK_TRY(bk_prefix_parse(s->a->prefix, &s->automatic, s->report.prefix, &s->report.n_prefix, err));
    BK_TRY(bk_scheme_parse(s->a->scheme, &scheme, err));
    s->rotation.seed = (uint64_t)s->a->seed;
    s->rotated = s->rotation.r1 || s->rotation.r2 || s->rotation.r3 || s->rotation.r4;
    s->quant = (bk_block_quant){scheme.weight, scheme.activation, scheme.key, scheme.value};
    return BK_OK;
}

/* The same windows at all stages, so that they can be compared; so where there is a stage with prefix, none of them has a BOS. */
static bk_status read_samples(outliers_state *s, bk_error *err)
{
    bool prefixed = s->automatic || s->report.n_prefix > 0;
    bk_text_policy policy = {.parse_special = s->a->parse_special, .strip_bos = s->a->strip_bos, .join = s->a->join};
    BK_TRY(bk_runner_bos(s->a->bos, &policy.bos_auto, err));
    BK_TRY(bk_lab_text(&s->lab, s->a->text, &policy, prefixed, &s->text, err));
    s->report.bos = bk_bos_in_force(&s->lab, &s->text.ledger, &policy, prefixed);
    if (bk_samples_draw(&s->text, s->a->seqlen, s->a->samples, 0, (uint64_t)s->a->seed, &s->samples, err))
        return bk_error_prefix(err, "%s", s->a->text);
    if (s->samples.n < s->a->samples)
        bk_log(BK_LOG_WARN, "%s has %lld of the %lld samples asked for", s->a->text, (long long)s->samples.n,
               (long long)s->a->samples);
    return BK_OK;
}

/* In the first second, not behind the first stages. A prefix that is found has at least one token. */
static bk_status check_positions(const outliers_state *s, bk_error *err)
{
    int64_t positions = bk_model_config(s->lab.model)->max_positions, prefix = s->automatic ? 1 : s->report.n_prefix;
    if (s->a->seqlen + prefix <= positions) return BK_OK;
    return bk_fail(err, BK_EINVAL, "--seqlen %lld%s goes beyond the model's %lld positions", (long long)s->a->seqlen,
                   prefix ? " with a prefix" : "", (long long)positions);
}

static bk_status check_group(const outliers_state *s, bk_error *err)
{
    int64_t hidden = bk_model_config(s->lab.model)->hidden, group = s->a->group;
    if (group && !s->a->offq) return bk_fail(err, BK_EINVAL, "--offq-group is for --offq");
    if (!group || hidden % group == 0) return BK_OK;
    return bk_fail(err, BK_EINVAL, "--offq-group %lld does not divide the model's %lld channels", (long long)group, (long long)hidden);
}

/* The block whose largest token at down_raw stands out most. */
static int64_t worst_block(const bk_outlier_stage *s)
{
    int64_t worst = 0;
    for (int64_t l = 1; l < s->layers; l++)
        if (s->top[l * BK_SITE_COUNT + BK_SITE_DOWN_RAW] > s->top[worst * BK_SITE_COUNT + BK_SITE_DOWN_RAW]) worst = l;
    return worst;
}

bk_status bk_outlier_report_add(bk_outlier_report *r, const bk_lab *lab, const char *name, const bk_rotation_spec *rotation,
                                bool prefixed, const bk_block_quant *quant, bk_progress *progress, int of, bk_error *err)
{
    bk_runner runner;
    bk_outlier_stage *stage = &r->stage[r->n_stages++]; /* what it holds is freed whatever happened */
    bk_watch watch = bk_watch_progress(progress);
    bk_status st = bk_runner_open_raw(&runner, lab, rotation, err);
    if (!st) bk_source_overlap_prefix(runner.src, r->overlap_prefix);
    if (!st && prefixed) st = bk_runner_set_prefix(&runner, r->prefix, r->n_prefix, err);
    bk_progress_begin(progress, name, r->n_stages, of, bk_model_config(lab->model)->layers);
    if (!st) st = bk_outlier_stage_measure(stage, name, &runner, r->samples, &r->limits, &watch, err);
    if (!st && r->block < 0) r->block = worst_block(stage);
    if (!st) st = bk_outlier_stage_error(stage, &runner, r->samples, r->block, quant, err);
    if (!st) bk_progress_end(progress);
    bk_runner_close(&runner);
    return st ? bk_error_prefix(err, "%s", name) : BK_OK;
}

void bk_outlier_report_free(bk_outlier_report *r)
{
    for (int i = 0; i < r->n_stages; i++) bk_outlier_stage_free(&r->stage[i]);
    for (int i = 0; i < r->n_offq; i++) free(r->offq[i].spikiness);
    r->n_stages = r->n_offq = 0;
}

/* Parts that there will be, for the progress. */
static int parts(const outliers_state *s)
{
    bool prefixed = s->automatic || s->report.n_prefix;
    return 1 + s->rotated + prefixed + (s->a->offq ? 1 + prefixed : 0);
}

static bk_status run_stage(outliers_state *s, const char *name, const bk_rotation_spec *rotation, bool prefixed,
                           bk_error *err)
{
    return bk_outlier_report_add(&s->report, &s->lab, name, rotation, prefixed, &s->quant, &s->progress, parts(s), err);
}

static bk_status run_offq(outliers_state *s, const char *name, bool prefixed, bk_error *err)
{
    const outliers_args *a = s->a;
    if (!a->offq) return BK_OK;
    return bk_outlier_report_add_offq(&s->report, &s->lab, name, prefixed, a->group, a->seed, &s->progress, parts(s), err);
}

static bk_status choose_prefix(outliers_state *s, bk_error *err)
{
    bk_prefix_choice choice;
    bk_status st = bk_prefix_choose(&s->report.stage[s->report.n_stages - 1].upper, s->lab.bos, 0.1, &choice, err);
    if (!st) memcpy(s->report.prefix, choice.ids, sizeof choice.ids);
    s->report.n_prefix = st ? 0 : choice.n;
    bk_prefix_choice_free(&choice);
    return st;
}

static bk_status find_outliers(outliers_state *s, bk_error *err)
{
    const bk_backend *be = bk_runner_backend(s->a->backend, s->a->threads, err);
    const bk_rotation_spec plain = {0};
    if (!be) return err->code;
    BK_TRY(parse_choices(s, err));
    BK_TRY(bk_lab_open(&s->lab, s->a->model, be, err));
    if (s->lab.quantized)
        return bk_fail(err, BK_EINVAL, "%s is quantized: outliers are looked for in raw models", s->a->model);
    int64_t layers = bk_model_config(s->lab.model)->layers;
    if (s->a->block >= layers)
        return bk_fail(err, BK_EINVAL, "--block %lld: the model has %lld", (long long)s->a->block, (long long)layers);
    BK_TRY(bk_prefix_check(s->report.prefix, s->report.n_prefix, bk_model_config(s->lab.model)->vocab, err));
    BK_TRY(check_positions(s, err));
    BK_TRY(check_group(s, err));
    BK_TRY(read_samples(s, err));
    BK_TRY(run_stage(s, "original", &plain, false, err));
    if (s->rotated) BK_TRY(run_stage(s, "rotated", &s->rotation, false, err));
    if (s->automatic) BK_TRY(choose_prefix(s, err));
    if (s->report.n_prefix) BK_TRY(run_stage(s, "with prefix", &s->rotation, true, err));
    BK_TRY(run_offq(s, "original", false, err));
    return s->report.n_prefix ? run_offq(s, "with prefix", true, err) : BK_OK;
}

static void close_state(outliers_state *s)
{
    bk_outlier_report_free(&s->report);
    bk_samples_free(&s->samples);
    bk_text_free(&s->text);
    bk_lab_close(&s->lab);
}

static bk_status report(outliers_state *s, double start, bk_error *err)
{
    bk_outlier_report *r = &s->report;
    BK_TRY(find_outliers(s, err));
    r->tok = s->lab.tok;
    r->model = bk_model_name(s->lab.model);
    r->seconds = bk_seconds() - start;
    return s->a->json ? bk_outlier_print_json(r, err) : bk_outlier_print_text(r, err);
}

int bk_verb_outliers(int argc, char **argv)
{
    outliers_args a = {.rotate = "all",
                       .prefix = "auto",
                       .scheme = "W4A4KV4-static",
                       .bos = "auto",
                       .backend = "cpu",
                       .seqlen = 512,
                       .samples = 8,
                       .block = -1,
                       .seed = 2,
                       .limits = {64, 8}};
    const bk_opt opts[] = {
        {"--model", BK_OPT_TEXT, &a.model, "M", "", 0, 0, "GGUF file or Hugging Face folder"},
        {"--text", BK_OPT_TEXT, &a.text, "FILE", "", 0, 0, ".txt or .jsonl to look at"},
        {"--seqlen", BK_OPT_INT, &a.seqlen, "N", "512", 2, 1e6, "tokens of a sequence"},
        {"--samples", BK_OPT_INT, &a.samples, "N", "8", 1, 1e6, "sequences"},
        {"--threshold", BK_OPT_REAL, &a.limits.upper, "X", "64", 1, 1e9, "upper outlier tokens: magnitude over median"},
        {"--lower-threshold", BK_OPT_REAL, &a.limits.lower, "X", "8", 1, 1e9,
         "lower outlier tokens: median over magnitude"},
        {"--rotate", BK_OPT_TEXT, &a.rotate, "none|all|r1,..", "all", 0, 0, "rotations of the second and third stage"},
        {"--prefix", BK_OPT_TEXT, &a.prefix, "none|auto|1,2,3", "auto", 0, 0,
         "prefix of the third stage; auto: from the outliers found"},
        {"--block", BK_OPT_INT, &a.block, "N", "largest ratio at down_raw", 0, 1e6, "the block whose error is measured"},
        {"--scheme", BK_OPT_TEXT, &a.scheme, "S", "W4A4KV4-static", 0, 0, "how it is quantized (brick list schemes)"},
        {"--offq", BK_OPT_FLAG, &a.offq, NULL, NULL, 0, 0, "measure what OffQ would find: how few directions hold the energy, spiky keys"},
        {"--offq-group", BK_OPT_INT, &a.group, "N", "largest power of two up to 128 that divides; below 32: docs/numerics.md, OffQ", 1, 1e6,
         "channels of a group of OffQ"},
        {"--bos", BK_OPT_TEXT, &a.bos, "auto|none", "auto", 0, 0,
         "one BOS in front of the text if the tokenizer says so and there is no prefix"},
        {"--join", BK_OPT_TEXT, &a.join, "TEXT", NULL, 0, 0, "join lines with this"},
        {"--parse-special", BK_OPT_FLAG, &a.parse_special, NULL, NULL, 0, 0,
         "special-token strings in the text become special tokens"},
        {"--strip-bos", BK_OPT_FLAG, &a.strip_bos, NULL, NULL, 0, 0, "BOS ids inside the text are removed"},
        {"--seed", BK_OPT_INT, &a.seed, "N", "2", 0, 9e15, "of windows and rotations"},
        {"--backend", BK_OPT_TEXT, &a.backend, "B", "cpu", 0, 0, "what computes (brick list backends)"},
        {"--threads", BK_OPT_INT, &a.threads, "N", "all", 0, 4096, "threads"},
        BK_OPT_PLUGIN,
        {"--json", BK_OPT_FLAG, &a.json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"outliers", "token-wise outliers of a model", opts,
                        "brick outliers --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/lcet10.txt\n"
                        "brick outliers --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/lcet10.txt --offq --samples 32\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    outliers_state s = {.a = &a,
                        .report = {.text = a.text,
                                   .samples = &s.samples,
                                   .rotate = a.rotate,
                                   .scheme = a.scheme,
                                   .limits = a.limits,
                                   .block = a.block}};
    bk_error err = {0};
    bk_status st = report(&s, bk_seconds(), &err);
    close_state(&s);
    return bk_exit_report(st, &err);
}
