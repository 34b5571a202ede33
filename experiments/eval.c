/* brick eval: perplexity of a model, full precision or quantized on the way. */
#include <stdlib.h>
#include <string.h>

#include "experiments/lab.h"
#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/runner.h"
#include "experiments/scheme.h"
#include "experiments/verbs.h"
#include "io/file.h"

typedef struct eval_args {
    const char *model, *text, *prefix, *calib, *bos, *rotate, *scheme, *backend, *join;
    int64_t seqlen, windows, calib_samples, calib_seqlen, threads, seed;
    double threshold;
    bool json, parse_special, strip_bos;
} eval_args;

typedef struct eval_state {
    const eval_args *a;
    bk_lab lab;
    bk_source *src;
    bk_text_policy policy;
    bk_prefix prefix;
    bk_text text, calib_text;
    bk_samples windows, calibration;
    bk_progress progress;
    bk_ppl ppl;
    const char *bos;
} eval_state;

static bk_status load_calibration(eval_state *s, bool prefixed, int64_t samples, int64_t seqlen, bk_samples *out,
                                  bk_error *err)
{
    bk_text_free(&s->calib_text);
    BK_TRY(bk_lab_text(&s->lab, s->a->calib, &s->policy, prefixed, &s->calib_text, err));
    bk_status st = bk_samples_draw(&s->calib_text, seqlen, samples, 0, (uint64_t)s->a->seed, out, err);
    return st ? bk_error_prefix(err, "%s", s->a->calib) : BK_OK;
}

/* --prefix auto: outlier tokens of the calibration text. */
static bk_status detect_prefix(eval_state *s, int32_t *ids, int64_t *n, bk_error *err)
{
    bk_samples samples = {0};
    bk_outliers found = {0};
    bk_prefix_choice choice = {0};
    bk_status st = load_calibration(s, false, s->a->calib_samples, s->a->calib_seqlen, &samples, err);
    if (!st)
        st = bk_outliers_detect(s->lab.be, s->src, samples.ids, samples.n, samples.seqlen, s->a->threshold, NULL,
                                &found, err);
    if (!st) st = bk_prefix_choose(&found, s->lab.bos, 0.1, &choice, err);
    if (!st) memcpy(ids, choice.ids, sizeof choice.ids);
    *n = choice.n;
    bk_prefix_choice_free(&choice);
    bk_outliers_free(&found);
    bk_samples_free(&samples);
    return st;
}

/* What --prefix says: ids, or that they are to be found. */
static bk_status parse_prefix(const eval_state *s, bool *automatic, int32_t *ids, int64_t *n, bk_error *err)
{
    BK_TRY(bk_prefix_parse(s->a->prefix ? s->a->prefix : "none", automatic, ids, n, err));
    if (*automatic && !s->a->calib)
        return bk_fail(err, BK_EINVAL, "--prefix auto needs --calib: nothing is measured on the evaluation text");
    return bk_prefix_check(ids, *n, bk_model_config(s->lab.model)->vocab, err);
}

static bk_status load_windows(eval_state *s, bool prefixed, bk_error *err)
{
    int64_t positions = bk_model_config(s->lab.model)->max_positions, p = s->prefix.n;
    if (s->a->seqlen + p > positions)
        return bk_fail(err, BK_EINVAL, "--seqlen %lld and a prefix of %lld go beyond the model's %lld positions",
                       (long long)s->a->seqlen, (long long)p, (long long)positions);
    BK_TRY(bk_lab_text(&s->lab, s->a->text, &s->policy, prefixed, &s->text, err));
    s->bos = bk_bos_in_force(&s->lab, &s->text.ledger, &s->policy, prefixed);
    if (bk_samples_windows(&s->text, s->a->seqlen, s->a->windows, &s->windows, err))
        return bk_error_prefix(err, "%s", s->a->text);
    if (s->windows.n < s->a->windows)
        bk_log(BK_LOG_WARN, "%s has only %lld windows of %lld tokens", s->a->text, (long long)s->windows.n,
               (long long)s->a->seqlen);
    return BK_OK;
}

static bk_status run_row(eval_state *s, const bk_block_quant *quant, const bk_init_options *init, const bk_watch *watch,
                         bk_error *err)
{
    bk_row row = {.src = s->src, .prefix = &s->prefix, .quant = quant, .init = *init};
    if (bk_row_needs_calibration(quant, init)) {
        BK_TRY(load_calibration(s, s->prefix.n > 0, s->a->calib_samples, s->a->calib_seqlen, &s->calibration, err));
        row.calibration = &s->calibration;
    }
    return bk_row_run(s->lab.be, &row, &s->windows, NULL, NULL, watch, &s->ppl, err);
}

static bk_status eval_raw(eval_state *s, bk_error *err)
{
    bk_rotation_spec rotation;
    bk_scheme scheme = {0};
    bk_block_quant quant;
    bk_init_options init = {.search = s->a->calib != NULL};
    bool automatic;
    int32_t ids[BK_PREFIX_MAX];
    int64_t n;
    BK_TRY(parse_prefix(s, &automatic, ids, &n, err));
    BK_TRY(bk_rotation_parse(s->a->rotate, &rotation, err));
    rotation.seed = (uint64_t)s->a->seed;
    if (s->a->scheme) {
        BK_TRY(bk_scheme_parse(s->a->scheme, &scheme, err));
        quant = (bk_block_quant){scheme.weight, scheme.activation, scheme.key, scheme.value};
        if (bk_row_needs_calibration(&quant, &(bk_init_options){0}) && !s->a->calib)
            return bk_fail(err, BK_EINVAL,
                           "scheme %s is static and needs --calib: nothing is measured on the evaluation text",
                           s->a->scheme);
    }
    BK_TRY(bk_source_open(s->lab.model, &rotation, &s->src, err));
    if (automatic) BK_TRY(detect_prefix(s, ids, &n, err));
    BK_TRY(bk_prefix_compute(s->lab.be, s->src, ids, n, &s->prefix, err));
    BK_TRY(load_windows(s, s->prefix.n > 0, err));
    bk_progress_begin(&s->progress, "evaluate", 1, 0, bk_model_config(s->lab.model)->layers);
    bk_watch watch = bk_watch_progress(&s->progress);
    BK_TRY(run_row(s, s->a->scheme ? &quant : NULL, &init, &watch, err));
    bk_progress_end(&s->progress);
    return BK_OK;
}

static bk_status eval_quantized(eval_state *s, bk_error *err)
{
    const bk_prefix *p = bk_quantized_prefix(s->lab.quantized);
    if (s->a->scheme || strcmp(s->a->rotate, "none") || s->a->prefix)
        return bk_fail(err, BK_EINVAL, "%s is quantized already: --scheme, --rotate and --prefix are for raw models",
                       s->a->model);
    s->prefix.ids = malloc((size_t)(p->n + 1) * sizeof *p->ids);
    if (!s->prefix.ids) return bk_fail(err, BK_ENOMEM, "no memory");
    memcpy(s->prefix.ids, p->ids, (size_t)p->n * sizeof *p->ids);
    s->prefix.n = p->n;
    BK_TRY(load_windows(s, !bk_quantized_bos_before_text(s->lab.quantized), err));
    bk_progress_begin(&s->progress, "evaluate", 1, 0, bk_model_config(s->lab.model)->layers);
    bk_watch watch = bk_watch_progress(&s->progress);
    BK_TRY(bk_lab_quantized_ppl(&s->lab, &s->windows, &watch, &s->ppl, err));
    bk_progress_end(&s->progress);
    return BK_OK;
}

static bk_status print_json(const eval_state *s, double seconds, bk_error *err)
{
    bk_json *o = bk_json_object(), *ids = bk_json_array();
    for (int64_t i = 0; i < s->prefix.n; i++) bk_json_push(ids, bk_json_of_int(s->prefix.ids[i]));
    bk_json_set(o, "ppl", bk_json_of_num(s->ppl.ppl));
    bk_json_set(o, "nll", bk_json_of_num(s->ppl.nll));
    bk_json_set(o, "tokens", bk_json_of_int(s->ppl.tokens));
    bk_json_set(o, "windows", bk_json_of_int(s->windows.n));
    bk_json_set(o, "seqlen", bk_json_of_int(s->windows.seqlen));
    bk_json_set(o, "prefix", ids);
    bk_json_set(o, "bos", bk_json_of_text(s->bos));
    bk_json_set(o, "seconds", bk_json_of_num(seconds));
    return bk_print_json(o, err);
}

static void print_text(const eval_state *s, double seconds)
{
    printf("perplexity  %.6f\nnll         %.6f per token\n", s->ppl.ppl, s->ppl.nll);
    printf("scored      %lld tokens in %lld windows of %lld\n", (long long)s->ppl.tokens, (long long)s->windows.n,
           (long long)s->windows.seqlen);
    fputs("prefix      ", stdout);
    if (!s->prefix.n) fputs("none", stdout);
    for (int64_t i = 0; i < s->prefix.n; i++) printf(i ? ",%d" : "%d", s->prefix.ids[i]);
    printf("\nbos         %s\nseconds     %.1f\n", s->bos, seconds);
}

static bk_status evaluate(eval_state *s, bk_error *err)
{
    bool bos_auto;
    BK_TRY(bk_runner_bos(s->a->bos, &bos_auto, err));
    if (s->a->calib && !bk_exists(s->a->calib))
        return bk_fail(err, BK_EIO, "%s: the calibration text is not there", s->a->calib);
    const bk_backend *be = bk_runner_backend(s->a->backend, s->a->threads, err);
    if (!be) return err->code;
    s->policy = (bk_text_policy){bos_auto, s->a->parse_special, s->a->strip_bos, s->a->join};
    BK_TRY(bk_lab_open(&s->lab, s->a->model, be, err));
    return s->lab.quantized ? eval_quantized(s, err) : eval_raw(s, err);
}

static void close_state(eval_state *s)
{
    bk_samples_free(&s->windows);
    bk_samples_free(&s->calibration);
    bk_text_free(&s->text);
    bk_text_free(&s->calib_text);
    bk_prefix_free(&s->prefix);
    bk_source_close(s->src);
    bk_lab_close(&s->lab);
}

int bk_verb_eval(int argc, char **argv)
{
    eval_args a = {.bos = "auto", .rotate = "none", .backend = "cpu", .seqlen = 2048, .windows = -1, .calib_samples = 8,
                   .calib_seqlen = 512, .seed = 2, .threshold = 64};
    const bk_opt opts[] = {
        {"--model", BK_OPT_TEXT, &a.model, "M", "", 0, 0, "GGUF file, Hugging Face folder, or run folder"},
        {"--text", BK_OPT_TEXT, &a.text, "FILE", "", 0, 0, ".txt or .jsonl to score"},
        {"--seqlen", BK_OPT_INT, &a.seqlen, "N", "2048", 2, 1e6, "tokens of a window"},
        {"--windows", BK_OPT_INT, &a.windows, "N", "all", 1, 1e9, "number of windows"},
        {"--prefix", BK_OPT_TEXT, &a.prefix, "none|auto|1,2,3", "none; a run's own", 0, 0, "prefixed tokens; auto needs --calib"},
        {"--calib", BK_OPT_TEXT, &a.calib, "FILE", NULL, 0, 0, "text for outlier tokens, ranges and the grid search"},
        {"--calib-samples", BK_OPT_INT, &a.calib_samples, "N", "8", 1, 1e6, "windows of it"},
        {"--calib-seqlen", BK_OPT_INT, &a.calib_seqlen, "N", "512", 2, 1e6, "tokens of a window of it"},
        {"--bos", BK_OPT_TEXT, &a.bos, "auto|none", "auto", 0, 0, "one BOS in front of the text if the tokenizer says so and there is no prefix"},
        {"--join", BK_OPT_TEXT, &a.join, "TEXT", NULL, 0, 0, "join lines with this (the papers' WikiText protocol: two newlines)"},
        {"--parse-special", BK_OPT_FLAG, &a.parse_special, NULL, NULL, 0, 0, "special-token strings in the text become special tokens"},
        {"--strip-bos", BK_OPT_FLAG, &a.strip_bos, NULL, NULL, 0, 0, "BOS ids inside the text are removed"},
        {"--rotate", BK_OPT_TEXT, &a.rotate, "none|all|r1,..", "none", 0, 0, "rotations"},
        {"--scheme", BK_OPT_TEXT, &a.scheme, "S", NULL, 0, 0, "quantize first (brick list schemes); with --calib after a grid search"},
        {"--threshold", BK_OPT_REAL, &a.threshold, "X", "64", 1, 1e9, "outlier tokens: largest magnitude over median"},
        {"--seed", BK_OPT_INT, &a.seed, "N", "2", 0, 9e15, "of rotations and calibration windows"},
        {"--backend", BK_OPT_TEXT, &a.backend, "B", "cpu", 0, 0, "what computes (brick list backends)"},
        {"--threads", BK_OPT_INT, &a.threads, "N", "all", 0, 4096, "threads"},
        BK_OPT_PLUGIN,
        {"--json", BK_OPT_FLAG, &a.json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {
        "eval", "perplexity of a model", opts,
        "brick eval --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/alice29.txt --windows 8\n"
        "brick eval --model runs/demo --text data/alice29.txt --seqlen 512 --json\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    eval_state s = {.a = &a};
    bk_error err = {0};
    double start = bk_seconds();
    bk_status st = evaluate(&s, &err);
    if (!st && a.json) st = print_json(&s, bk_seconds() - start, &err);
    else if (!st) print_text(&s, bk_seconds() - start);
    close_state(&s);
    return bk_exit_report(st, &err);
}
