/* brick generate: greedy text. Keys and values of the tokens so far are kept, so each token runs alone; the blocks stay
 * loaded where memory allows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/cache.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/runner.h"
#include "experiments/verbs.h"

/* Blocks are kept loaded up to this size in all; beyond it they are read again for every token. */
#define RESIDENT_BYTES ((size_t)4 << 30)

typedef struct generate_args {
    const char *model, *prompt, *bos, *backend;
    bk_runner_choice choice;
    int64_t tokens, threads;
    bool json, parse_special;
} generate_args;

typedef struct generation {
    const generate_args *a;
    bk_lab lab;
    bk_runner runner;
    bk_block **block; /* [n_blocks]: one per layer, or one for all */
    int64_t n_blocks;
    bk_cache *cache;
    bk_head head;
    bk_ctx *block_ctx, *head_ctx;
    int32_t *ids; /* prompt, then what was generated */
    int64_t n_prompt, n;
    float *logits;
    char *text; /* of what was generated */
    size_t len;
    bk_progress progress;
} generation;

static bk_status read_prompt(generation *g, bk_error *err)
{
    bool automatic;
    int32_t *ids = NULL;
    int64_t n = 0;
    BK_TRY(bk_runner_bos(g->a->bos, &automatic, err));
    bool bos = automatic && !bk_runner_prefix(&g->runner)->n && bk_tokenizer_add_bos(g->lab.tok) &&
               bk_tokenizer_bos(g->lab.tok) >= 0;
    BK_TRY(bk_tokenizer_encode(g->lab.tok, g->a->prompt, strlen(g->a->prompt), g->a->parse_special, &ids, &n, err));
    g->ids = malloc((size_t)(n + 1 + g->a->tokens) * sizeof *g->ids);
    if (g->ids) {
        if (bos && !(n && ids[0] == bk_tokenizer_bos(g->lab.tok)))
            g->ids[g->n_prompt++] = (int32_t)bk_tokenizer_bos(g->lab.tok);
        if (n) memcpy(g->ids + g->n_prompt, ids, (size_t)n * sizeof *ids);
        g->n = g->n_prompt += n;
    }
    free(ids);
    if (!g->ids) return bk_fail(err, BK_ENOMEM, "no memory for the ids of the prompt");
    return g->n ? BK_OK : bk_fail(err, BK_EINVAL, "the prompt is empty, and this model begins without a BOS");
}

/* All blocks, or one that takes the layers in turn, for a sequence of `tokens`. */
static bk_status load_blocks(generation *g, int64_t tokens, bk_error *err)
{
    const bk_config *cfg = bk_source_config(g->runner.src);
    bk_block_options opt = g->runner.block;
    opt.tokens = tokens;
    bool resident = bk_block_bytes(g->lab.be, cfg, &opt) <= RESIDENT_BYTES / (size_t)cfg->layers;
    g->n_blocks = resident ? cfg->layers : 1;
    if (!(g->block = calloc((size_t)g->n_blocks, sizeof *g->block)))
        return bk_fail(err, BK_ENOMEM, "no memory for the blocks");
    for (int64_t l = 0; l < g->n_blocks; l++) {
        BK_TRY(bk_runner_block(&g->runner, tokens, &g->block[l], err));
        if (resident) BK_TRY(bk_runner_load(&g->runner, l, g->block[l], err));
    }
    return BK_OK;
}

/* What every token needs, in memory that does not grow afterwards. */
static bk_status prepare(generation *g, bk_error *err)
{
    const bk_config *cfg = bk_source_config(g->runner.src);
    int64_t tokens = g->n_prompt + g->a->tokens - 1; /* the last one is chosen, and never run */
    BK_TRY(load_blocks(g, tokens, err));
    BK_TRY(bk_cache_create(&g->cache, g->lab.be, cfg, g->runner.block.prefix_len, tokens, err));
    BK_TRY(bk_head_open(&g->head, g->lab.be, g->runner.src, err));
    g->block_ctx = bk_ctx_new(g->lab.be, err);
    g->head_ctx = bk_ctx_new(g->lab.be, err);
    g->logits = malloc((size_t)cfg->vocab * sizeof *g->logits);
    if (!g->block_ctx || !g->head_ctx || !g->logits) return bk_fail(err, BK_ENOMEM, "no memory for the logits");
    bk_ctx_measure(g->block_ctx);
    BK_TRY(bk_cache_measure(g->block_ctx, g->block[0], g->cache, g->n_prompt));
    return bk_ctx_commit(g->block_ctx);
}

static bk_status run_blocks(generation *g, bk_stream *h, bk_error *err)
{
    for (int64_t l = 0; l < bk_source_config(g->runner.src)->layers; l++) {
        bk_block *b = g->block[g->n_blocks > 1 ? l : 0];
        BK_TRY(bk_check_cancelled(err));
        if (g->n_blocks == 1) BK_TRY(bk_runner_load(&g->runner, l, b, err));
        b->past = bk_cache_layer(g->cache, l);
        if (bk_block_pass(g->block_ctx, b, h, h, err)) return bk_error_prefix(err, "block %lld", (long long)l);
    }
    return BK_OK;
}

/* Runs the ids from `first` on behind those before them: logits of the last one. */
static bk_status run_tokens(generation *g, int64_t first, bk_error *err)
{
    int64_t n = g->n - first, c = bk_source_config(g->runner.src)->hidden;
    bk_stream *h = NULL;
    float *x = malloc((size_t)(n * c) * sizeof *x);
    bk_status st = x ? bk_stream_create(&h, 1, n, c, err)
                     : bk_fail(err, BK_ENOMEM, "no memory for %lld hidden states", (long long)n);
    if (!st) st = bk_embed_stream(g->runner.src, g->ids + first, h, err);
    if (!st) st = run_blocks(g, h, err);
    if (!st) st = bk_stream_read(h, 0, 1, x, err);
    if (!st) st = bk_head_logits(g->head_ctx, &g->head, x + (n - 1) * c, 1, g->logits, err);
    bk_stream_free(h);
    free(x);
    return st;
}

/* The largest logit; the smallest id among equals. Rows beyond the tokenizer's table are padding that no text stands
 * for. */
static bk_status choose(const generation *g, int32_t *id, bk_error *err)
{
    *id = 0;
    for (int64_t i = 0; i < bk_tokenizer_size(g->lab.tok); i++) {
        if (!isfinite(g->logits[i]))
            return bk_fail(err, BK_ENUMERIC, "the logit of token %lld is not finite", (long long)i);
        if (g->logits[i] > g->logits[*id]) *id = (int32_t)i;
    }
    return BK_OK;
}

/* What the generated ids add to the text of the prompt (alone, they might lose a space at their start). */
static bk_status read_text(generation *g, bk_error *err)
{
    char *prompt = NULL, *all = NULL;
    size_t n_prompt = 0, n_all = 0;
    bk_status st = bk_tokenizer_decode(g->lab.tok, g->ids, g->n_prompt, true, &prompt, &n_prompt, err);
    if (!st) st = bk_tokenizer_decode(g->lab.tok, g->ids, g->n, true, &all, &n_all, err);
    if (!st) {
        g->len = n_all - n_prompt;
        memmove(all, all + n_prompt, g->len + 1);
        g->text = all;
    }
    free(prompt);
    return st;
}

static bk_status generate(generation *g, bk_error *err)
{
    int64_t bos, eos;
    const bk_backend *be = bk_runner_backend(g->a->backend, g->a->threads, err);
    if (!be) return err->code;
    BK_TRY(bk_lab_open(&g->lab, g->a->model, be, err));
    BK_TRY(bk_runner_open(&g->runner, &g->lab, &g->a->choice, err));
    BK_TRY(read_prompt(g, err));
    BK_TRY(prepare(g, err));
    bk_model_bos_eos(g->lab.model, &bos, &eos);
    bk_progress_begin(&g->progress, "generate", 1, 0, g->a->tokens);
    for (int64_t i = 0; i < g->a->tokens; i++) {
        BK_TRY(run_tokens(g, i ? g->n - 1 : 0, err));
        int32_t id;
        BK_TRY(choose(g, &id, err));
        g->ids[g->n++] = id;
        bk_progress_step(&g->progress, 1);
        if (id == eos || id == bk_tokenizer_eos(g->lab.tok)) break;
    }
    bk_progress_end(&g->progress);
    return read_text(g, err);
}

static bk_status print_json(const generation *g, bk_error *err)
{
    bk_json *o = bk_json_object(), *ids = bk_json_array();
    for (int64_t i = g->n_prompt; i < g->n; i++) bk_json_push(ids, bk_json_of_int(g->ids[i]));
    bk_json_set(o, "text", bk_json_of_str(g->text, g->len));
    bk_json_set(o, "ids", ids);
    bk_json_set(o, "prompt_tokens", bk_json_of_int(g->n_prompt));
    return bk_print_json(o, err);
}

static void close_generation(generation *g)
{
    for (int64_t l = 0; g->block && l < g->n_blocks; l++) bk_block_free(g->block[l]);
    free(g->block);
    bk_cache_free(g->cache);
    bk_ctx_free(g->block_ctx);
    bk_ctx_free(g->head_ctx);
    if (g->head.be) bk_head_close(&g->head);
    free(g->ids);
    free(g->logits);
    free(g->text);
    bk_runner_close(&g->runner);
    bk_lab_close(&g->lab);
}

int bk_verb_generate(int argc, char **argv)
{
    generate_args a = {.bos = "auto", .backend = "cpu", .tokens = 64, .choice = {.seed = 2}};
    const bk_opt opts[] = {
        {"--model", BK_OPT_TEXT, &a.model, "M", "", 0, 0, "GGUF file, Hugging Face folder, or run folder"},
        {"--prompt", BK_OPT_TEXT, &a.prompt, "TEXT", "", 0, 0, "what the text begins with"},
        {"--tokens", BK_OPT_INT, &a.tokens, "N", "64", 1, 1e6, "tokens to generate; an end-of-text token stops earlier"},
        {"--bos", BK_OPT_TEXT, &a.bos, "auto|none", "auto", 0, 0,
         "one BOS in front if the tokenizer says so and there is no prefix"},
        {"--parse-special", BK_OPT_FLAG, &a.parse_special, NULL, NULL, 0, 0,
         "special-token strings in the prompt become special tokens"},
        {"--prefix", BK_OPT_TEXT, &a.choice.prefix, "none|1,2,3", "none; a run's own", 0, 0,
         "prefixed tokens of a raw model"},
        {"--rotate", BK_OPT_TEXT, &a.choice.rotate, "none|all|r1,..", "none", 0, 0, "rotations of a raw model"},
        {"--seed", BK_OPT_INT, &a.choice.seed, "N", "2", 0, 9e15, "of the rotations"},
        {"--backend", BK_OPT_TEXT, &a.backend, "B", "cpu", 0, 0, "what computes (brick list backends)"},
        {"--threads", BK_OPT_INT, &a.threads, "N", "all", 0, 4096, "threads"},
        BK_OPT_PLUGIN,
        {"--json", BK_OPT_FLAG, &a.json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"generate", "greedy text that goes on from a prompt", opts,
                        "brick generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf "
                        "--prompt \"The capital of France is\" --tokens 16\n"
                        "brick generate --model runs/demo --prompt \"Alice was\" --json\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    generation g = {.a = &a};
    bk_error err = {0};
    bk_status st = generate(&g, &err);
    if (!st && a.json) st = print_json(&g, &err);
    else if (!st) {
        fwrite(g.text, 1, g.len, stdout);
        putchar('\n');
    }
    close_generation(&g);
    return bk_exit_report(st, &err);
}
