/* brick dump: activations of chosen blocks and sites into one HDF5 file, sample by sample. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/runner.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/store.h"

#define SCHEMA "brick.dump"

typedef struct dump_args {
    const char *model, *text, *sites, *out, *blocks, *dtype, *bos, *join, *overflow, *backend;
    bk_runner_choice choice;
    int64_t seqlen, windows, gzip, threads;
    bool json, parse_special, strip_bos;
} dump_args;

typedef struct dump_state {
    const dump_args *a;
    unsigned sites; /* bit per bk_site_id */
    bool *wanted;   /* [layers] */
    bk_store_type type;
    bk_overflow overflow;
    bk_lab lab;
    bk_runner runner;
    bk_text text;
    bk_samples samples;
    bk_store *store;
    bk_dset *dset[BK_SITE_COUNT];   /* of the block that is running */
    int64_t written[BK_SITE_COUNT]; /* samples */
    int64_t saturated, datasets;
    float *host; /* a batch at the widest site */
    bk_block *block;
    bk_stream *h;
    bk_ctx *ctx;
    bk_progress progress;
    bk_error *err;
} dump_state;

/* Index of a word in a list; BK_EINVAL with the nearest one. */
static bk_status find_word(const char *option, const char *typed, size_t len, const char *const *words, int n, int *at,
                           bk_error *err)
{
    char word[64], near[128];
    snprintf(word, sizeof word, "%.*s", (int)(len < 60 ? len : 60), typed);
    for (*at = 0; *at < n; (*at)++)
        if (!strcmp(words[*at], word)) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: unknown value '%s'%s", option, word,
                   bk_suggest_text(word, words, (size_t)n, near, sizeof near));
}

static bk_status parse_sites(const char *text, unsigned *sites, bk_error *err)
{
    *sites = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        int at;
        BK_TRY(find_word("--sites", p, n, bk_site_name, BK_SITE_COUNT, &at, err));
        *sites |= 1u << at;
        p += n + (p[n] == ',');
    }
    return *sites ? BK_OK : bk_fail(err, BK_EINVAL, "--sites names none (brick list sites)");
}

static bk_status bad_blocks(const char *text, int64_t layers, bk_error *err)
{
    return bk_fail(err, BK_EINVAL, "--blocks '%.60s': want all, or numbers and ranges like 0,1,2-5 below %lld", text,
                   (long long)layers);
}

static bool block_number(const char **p, int64_t layers, int64_t *out)
{
    char *end;
    if (**p < '0' || **p > '9') return false;
    *out = strtoll(*p, &end, 10);
    *p = end;
    return *out < layers;
}

static bk_status parse_blocks(const char *text, int64_t layers, bool *wanted, bk_error *err)
{
    bool all = !strcmp(text, "all");
    for (int64_t l = 0; l < layers; l++) wanted[l] = all;
    if (all) return BK_OK;
    for (const char *p = text;; p++) {
        int64_t first, last;
        if (!block_number(&p, layers, &first)) return bad_blocks(text, layers, err);
        last = first;
        if (*p == '-' && (p++, !block_number(&p, layers, &last) || last < first)) return bad_blocks(text, layers, err);
        while (first <= last) wanted[first++] = true;
        if (!*p) return BK_OK;
        if (*p != ',') return bad_blocks(text, layers, err);
    }
}

/* What needs no model. */
static bk_status parse_choices(dump_state *s, bk_error *err)
{
    static const char *const dtypes[] = {"f16", "f32"}, *const overflows[] = {"warn", "f32", "error"};
    static const bk_store_type type[] = {BK_STORE_F16, BK_STORE_F32};
    static const bk_overflow overflow[] = {BK_OVERFLOW_WARN, BK_OVERFLOW_F32, BK_OVERFLOW_ERROR};
    int at;
    BK_TRY(parse_sites(s->a->sites, &s->sites, err));
    BK_TRY(find_word("--dtype", s->a->dtype, strlen(s->a->dtype), dtypes, 2, &at, err));
    s->type = type[at];
    BK_TRY(find_word("--overflow", s->a->overflow, strlen(s->a->overflow), overflows, 3, &at, err));
    s->overflow = overflow[at];
    return BK_OK;
}

static bk_status read_text(dump_state *s, bk_error *err)
{
    bk_text_policy policy = {.parse_special = s->a->parse_special, .strip_bos = s->a->strip_bos, .join = s->a->join};
    BK_TRY(bk_runner_bos(s->a->bos, &policy.bos_auto, err));
    BK_TRY(bk_lab_text(&s->lab, s->a->text, &policy, bk_runner_prefix(&s->runner)->n > 0, &s->text, err));
    return bk_samples_windows(&s->text, s->a->seqlen, s->a->windows, &s->samples, err) ? bk_error_prefix(err, "%s", s->a->text) : BK_OK;
}

/* The config of the run whose quantized model was opened, where it can be read here (a plugin may be missing); NULL without. */
static bk_run_config *config_of_run(const dump_state *s)
{
    char path[BK_PATH_SIZE + 32], *text = NULL;
    size_t len;
    bk_run_config *c = NULL;
    if (!s->lab.quantized) return NULL;
    snprintf(path, sizeof path, "%s/../config.yaml", bk_model_dir(s->lab.model));
    if (bk_file_slurp(path, (size_t)1 << 22, &text, &len, NULL)) return NULL;
    if ((c = calloc(1, sizeof *c)) && bk_run_config_parse(text, len, path, NULL, 0, c, NULL)) {
        free(c);
        c = NULL;
    }
    free(text);
    return c;
}

/* What --rotate is to be for the same rotation with the run's seed; "as quantized" where it cannot be: fitted, or of another kind. */
static void rotation_text(const bk_run_config *c, char to[32])
{
    const bool on[] = {c && c->rotation.r1, c && c->rotation.r2, c && c->rotation.r3, c && c->rotation.r4};
    char *at = to;
    if (!c || bk_run_fits(c) || c->rotation.fold_v_bias || (on[1] && c->rotation.r2_per_head) || (on[3] && c->rotation.r4_group)) {
        strcpy(to, "as quantized");
        return;
    }
    for (int i = 0; i < 4; i++)
        if (on[i]) at += sprintf(at, "%sr%d", at > to ? "," : "", i + 1);
    if (at == to) strcpy(to, "none");
    if (on[0] && on[1] && on[2] && on[3]) strcpy(to, "all");
}

/* All that the values depend on, beside the model: the ids hold what text, tokenizer and the options about texts made. */
static char *dump_config(const dump_state *s, const char *ids_sha256, const bk_run_config *run)
{
    const bk_prefix *p = bk_runner_prefix(&s->runner);
    bk_json *o = bk_json_object(), *ids = bk_json_array();
    char of_run[32];
    const char *rotate = s->lab.quantized ? of_run : s->a->choice.rotate ? s->a->choice.rotate : "none";
    rotation_text(run, of_run);
    for (int64_t i = 0; i < p->n; i++) bk_json_push(ids, bk_json_of_int(p->ids[i]));
    bk_json_set(o, "text_sha256", bk_json_of_text(s->text.ledger.sha256));
    bk_json_set(o, "ids_sha256", bk_json_of_text(ids_sha256));
    bk_json_set(o, "seqlen", bk_json_of_int(s->samples.seqlen));
    bk_json_set(o, "windows", bk_json_of_int(s->samples.n));
    bk_json_set(o, "prefix", ids);
    bk_json_set(o, "rotate", bk_json_of_text(rotate));
    if (s->lab.quantized) bk_json_set(o, "quantized", bk_json_of_bool(true));
    char *text = bk_json_dump(o, 0);
    bk_json_free(o);
    return text;
}

/* Like the folder of a run, that of a dump need not be there before. */
static bk_status make_folder_of(const char *path, bk_error *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return BK_OK;
    char *dir = strndup(path, (size_t)(slash - path));
    if (!dir) return bk_fail(err, BK_ENOMEM, "no memory");
    bk_status st = bk_mkdir_p(dir, err);
    free(dir);
    return st;
}

static bk_status open_store(dump_state *s, bk_error *err)
{
    char sha256[65], ids_sha256[65];
    BK_TRY(bk_samples_sha256(&s->samples, ids_sha256, err));
    bk_run_config *run = config_of_run(s);
    bool run_rotates = run && (run->rotation.r1 || run->rotation.r2);
    int64_t seed = run ? run->seed : s->a->choice.seed;
    char *config = dump_config(s, ids_sha256, run);
    free(run);
    if (!config) return bk_fail(err, BK_ENOMEM, "no memory to describe the dump");
    const bk_rotation *rotation = bk_source_rotation(s->runner.src);
    bk_store_meta meta = {.schema = SCHEMA,
                          .model = bk_model_name(s->lab.model),
                          .model_sha256 = sha256,
                          .config = config,
                          .has_seed = run_rotates || rotation->r1_signs || rotation->r2_signs,
                          .seed = seed,
                          .prefix_len = bk_runner_prefix(&s->runner)->n};
    bk_status st = bk_model_sha256(s->lab.model, sha256, err);
    if (!st) st = make_folder_of(s->a->out, err);
    if (!st) st = bk_store_create(&s->store, s->a->out, &meta, (int)s->a->gzip, err);
    free(config);
    return st;
}

static bk_status put_tokens(dump_state *s, bk_error *err)
{
    int64_t dim[2] = {s->samples.n, s->samples.seqlen};
    bk_dset *d;
    BK_TRY(bk_dset_create(&d, s->store, "/tokens/input_ids", BK_STORE_I32, 2, dim, BK_OVERFLOW_ERROR, err));
    bk_status st = bk_dset_write_raw(d, 0, s->samples.n, s->samples.ids, err);
    bk_dset_close(d);
    return st;
}

/* x is [samples of the batch, tokens, width]. */
static void dump_tap(bk_ctx *ctx, void *user, bk_site_id site, const bk_tensor *x)
{
    dump_state *s = user;
    if (!s->dset[site] || bk_ctx_measuring(ctx) || bk_ctx_status(ctx)) return;
    int64_t n = x->dim[0];
    if (bk_read(bk_ctx_backend(ctx), x, 0, s->host, bk_numel(x), s->err)) return;
    if (bk_dset_write(s->dset[site], s->written[site], n, s->host, s->err)) return;
    s->written[site] += n;
}

static bk_status open_datasets(dump_state *s, int64_t layer, bk_error *err)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        char path[64];
        int64_t dim[3] = {s->samples.n, s->samples.seqlen, bk_site_width(&s->block->cfg, i)};
        if (!s->wanted[layer] || !(s->sites >> i & 1)) continue;
        snprintf(path, sizeof path, "/blocks/%03lld/sites/%s", (long long)layer, bk_site_name[i]);
        BK_TRY(bk_dset_create(&s->dset[i], s->store, path, s->type, 3, dim, s->overflow, err));
        s->written[i] = 0;
        s->datasets++;
    }
    return BK_OK;
}

static void close_datasets(dump_state *s, int64_t layer)
{
    for (int i = 0; i < BK_SITE_COUNT; i++) {
        if (!s->dset[i]) continue;
        int64_t saturated = bk_dset_info_of(s->dset[i])->saturated;
        if (saturated)
            bk_log(BK_LOG_WARN,
                   "block %lld, %s: %lld values beyond what f16 holds were stored as 65504 (--dtype f32 or --overflow f32 "
                   "keeps them)",
                   (long long)layer, bk_site_name[i], (long long)saturated);
        s->saturated += saturated;
        bk_dset_close(s->dset[i]);
        s->dset[i] = NULL;
    }
}

static bk_status dump_block(dump_state *s, int64_t layer, bk_error *err)
{
    BK_TRY(bk_check_cancelled(err));
    BK_TRY(bk_runner_load(&s->runner, layer, s->block, err));
    BK_TRY(open_datasets(s, layer, err));
    bk_status st = bk_block_pass(s->ctx, s->block, s->h, s->h, err);
    close_datasets(s, layer);
    bk_progress_step(&s->progress, 1);
    return st ? st : err->code;
}

static bk_status prepare(dump_state *s, bk_error *err)
{
    const bk_config *cfg = bk_source_config(s->runner.src);
    int64_t n = s->samples.n, t = s->samples.seqlen, widest = 0;
    for (int i = 0; i < BK_SITE_COUNT; i++) widest = bk_site_width(cfg, i) > widest ? bk_site_width(cfg, i) : widest;
    s->host = malloc((size_t)(bk_pass_batch(n, t) * t * widest) * sizeof *s->host);
    if (!s->host) return bk_fail(err, BK_ENOMEM, "no memory for a batch of activations");
    BK_TRY(bk_runner_block(&s->runner, t, &s->block, err));
    s->block->tap = dump_tap;
    s->block->tap_user = s;
    s->err = err;
    BK_TRY(bk_stream_create(&s->h, n, t, cfg->hidden, err));
    BK_TRY(bk_embed_stream(s->runner.src, s->samples.ids, s->h, err));
    if (!(s->ctx = bk_ctx_new(s->lab.be, err))) return BK_ENOMEM;
    bk_ctx_measure(s->ctx);
    BK_TRY(bk_block_pass_measure(s->ctx, s->block, n, t));
    return bk_ctx_commit(s->ctx);
}

/* Blocks behind the last wanted one are not run. */
static bk_status dump_blocks(dump_state *s, bk_error *err)
{
    int64_t end = bk_source_config(s->runner.src)->layers;
    while (!s->wanted[end - 1]) end--;
    bk_progress_begin(&s->progress, "dump", 1, 0, end);
    for (int64_t l = 0; l < end; l++)
        if (dump_block(s, l, err)) return bk_error_prefix(err, "block %lld", (long long)l);
    bk_progress_end(&s->progress);
    return BK_OK;
}

/* --out with the name of a text, a model or another file of a run would lose it: only a dump, or an empty file, is replaced. */
static bk_status check_out(const char *path, bk_error *err)
{
    bk_file f;
    bk_store *old = NULL;
    if (bk_file_open(&f, path, NULL)) return BK_OK; /* absent or no file: bk_store_create says what it is */
    bool empty = f.size == 0;
    bk_file_close(&f);
    if (empty) return BK_OK;
    if (bk_store_open(&old, path, SCHEMA, NULL))
        return bk_fail(err, BK_EINVAL, "%s: exists and is no dump that can be read; remove it or give another --out", path);
    bk_store_close(old);
    return BK_OK;
}

static bk_status dump(dump_state *s, bk_error *err)
{
    BK_TRY(check_out(s->a->out, err));
    const bk_backend *be = bk_runner_backend(s->a->backend, s->a->threads, err);
    if (!be) return err->code;
    BK_TRY(parse_choices(s, err));
    BK_TRY(bk_lab_open(&s->lab, s->a->model, be, err));
    int64_t layers = bk_model_config(s->lab.model)->layers;
    if (!(s->wanted = calloc((size_t)layers, sizeof *s->wanted))) return bk_fail(err, BK_ENOMEM, "no memory");
    BK_TRY(parse_blocks(s->a->blocks, layers, s->wanted, err));
    BK_TRY(bk_runner_open(&s->runner, &s->lab, &s->a->choice, err));
    BK_TRY(read_text(s, err));
    BK_TRY(prepare(s, err));
    BK_TRY(open_store(s, err));
    BK_TRY(put_tokens(s, err));
    BK_TRY(dump_blocks(s, err));
    bk_store *store = s->store;
    s->store = NULL;
    return bk_store_commit(store, err);
}

static bk_status print_result(const dump_state *s, bk_error *err)
{
    if (!s->a->json) {
        printf("%s: %lld datasets, %lld samples of %lld tokens%s\n", s->a->out, (long long)s->datasets,
               (long long)s->samples.n, (long long)s->samples.seqlen, s->saturated ? ", some values saturated" : "");
        return BK_OK;
    }
    bk_json *o = bk_json_object();
    bk_json_set(o, "out", bk_json_of_text(s->a->out));
    bk_json_set(o, "datasets", bk_json_of_int(s->datasets));
    bk_json_set(o, "samples", bk_json_of_int(s->samples.n));
    bk_json_set(o, "seqlen", bk_json_of_int(s->samples.seqlen));
    bk_json_set(o, "saturated", bk_json_of_int(s->saturated));
    return bk_print_json(o, err);
}

static void close_state(dump_state *s)
{
    bk_store_close(s->store);
    bk_ctx_free(s->ctx);
    bk_stream_free(s->h);
    bk_block_free(s->block);
    free(s->host);
    free(s->wanted);
    bk_samples_free(&s->samples);
    bk_text_free(&s->text);
    bk_runner_close(&s->runner);
    bk_lab_close(&s->lab);
}

int bk_verb_dump(int argc, char **argv)
{
    dump_args a = {.blocks = "all",
                   .dtype = "f16",
                   .bos = "auto",
                   .overflow = "warn",
                   .backend = "cpu",
                   .seqlen = 512,
                   .windows = -1,
                   .choice = {.seed = 2}};
    const bk_opt opts[] = {
        {"--model", BK_OPT_TEXT, &a.model, "M", "", 0, 0, "GGUF file, Hugging Face folder, or run folder"},
        {"--text", BK_OPT_TEXT, &a.text, "FILE", "", 0, 0, ".txt or .jsonl to run through it"},
        {"--sites", BK_OPT_TEXT, &a.sites, "down_in,key,..", "", 0, 0, "sites (brick list sites)"},
        {"--out", BK_OPT_TEXT, &a.out, "X.h5", "", 0, 0, "the file to write"},
        {"--blocks", BK_OPT_TEXT, &a.blocks, "all|0,1,2-5", "all", 0, 0, "blocks"},
        {"--seqlen", BK_OPT_INT, &a.seqlen, "N", "512", 1, 1e6, "tokens of a sample"},
        {"--windows", BK_OPT_INT, &a.windows, "N", "all", 1, 1e9, "number of samples"},
        {"--dtype", BK_OPT_TEXT, &a.dtype, "f16|f32", "f16", 0, 0, "type of the stored values"},
        {"--overflow", BK_OPT_TEXT, &a.overflow, "warn|f32|error", "warn", 0, 0,
         "a value beyond f16: saturated, the dataset becomes f32, or the end"},
        {"--gzip", BK_OPT_INT, &a.gzip, "N", "0", 0, 9, "level of compression; 0 = none"},
        {"--prefix", BK_OPT_TEXT, &a.choice.prefix, "none|1,2,3", "none; a run's own", 0, 0,
         "prefixed tokens of a raw model"},
        {"--rotate", BK_OPT_TEXT, &a.choice.rotate, "none|all|r1,..", "none", 0, 0, "rotations of a raw model"},
        {"--bos", BK_OPT_TEXT, &a.bos, "auto|none", "auto", 0, 0,
         "one BOS in front of the text if the tokenizer says so and there is no prefix"},
        {"--join", BK_OPT_TEXT, &a.join, "TEXT", NULL, 0, 0, "join lines with this"},
        {"--parse-special", BK_OPT_FLAG, &a.parse_special, NULL, NULL, 0, 0,
         "special-token strings in the text become special tokens"},
        {"--strip-bos", BK_OPT_FLAG, &a.strip_bos, NULL, NULL, 0, 0, "BOS ids inside the text are removed"},
        {"--seed", BK_OPT_INT, &a.choice.seed, "N", "2", 0, 9e15, "of the rotations"},
        {"--backend", BK_OPT_TEXT, &a.backend, "B", "cpu", 0, 0, "what computes (brick list backends)"},
        {"--threads", BK_OPT_INT, &a.threads, "N", "all", 0, 4096, "threads"},
        BK_OPT_PLUGIN,
        {"--json", BK_OPT_FLAG, &a.json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {"dump", "activations of chosen blocks and sites into HDF5", opts,
                        "brick dump --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/alice29.txt --windows 4 "
                        "--sites down_in,key --out dump.h5\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    dump_state s = {.a = &a};
    bk_error err = {0};
    bk_status st = dump(&s, &err);
    if (!st) st = print_result(&s, &err);
    close_state(&s);
    return bk_exit_report(st, &err);
}
