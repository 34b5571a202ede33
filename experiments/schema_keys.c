#include <stdio.h>
#include <string.h>

#include "backends/kernels.h"
#include "experiments/schema_priv.h"
#include "io/store.h"

#define AT(field) offsetof(bk_run_config, field)
#define BITS "2|3|4|5|6|7|8|16"
#define BIG 9007199254740991.0 /* 2^53 - 1: exact in every JSON reader */
#define MILLION 1e6

static char quantizers[BK_QUANTIZERS_MAX * BK_NAME_SIZE + 1]; /* "a|b|c" */
const char *const bk_quantizer_choices = quantizers;
/* "|a|b|c" from the list itself. */
static const char methods[] =
#define BK_METHOD(name, ...) "|" #name
#include "experiments/methods.def"
    ;
static const char backends[] =
#define BK_BACKEND(name, constructor, about) "|" #name
#include "experiments/backends.def"
#undef BK_BACKEND
    ;

/* The keys of one way of quantizing. No default of their own: the scheme gives it. */
#define QUANT(f)                                                                                                  \
    {"quant." #f ".quantizer", BK_KEY_NAME, AT(quant.f.quantizer), NULL, 0, 0, quantizers, "how steps are found (brick list quantizers)"},           \
    {"quant." #f ".bits", BK_KEY_BITS, AT(quant.f.bits), NULL, 2, 16, BITS, "bits of a code; 16 = not quantized"},            \
    {"quant." #f ".symmetric", BK_KEY_BOOL, AT(quant.f.symmetric), NULL, 0, 0, NULL, "without a zero point"},                 \
    {"quant." #f ".step", BK_KEY_EITHER, AT(quant.f.restricted), "full", 0, 0, "full|restricted",                                    \
     "symmetric step: 2 max / (2^bits - 1), or max / (2^(bits-1) - 1)"},                                                     \
    {"quant." #f ".granularity", BK_KEY_ENUM, AT(quant.f.granularity), NULL, 0, 0, GRAINS, "what shares a step"},            \
    {"quant." #f ".group", BK_KEY_INT_OR, AT(quant.f.group), NULL, 0, MILLION, "auto",                                      \
     "numbers per group; 0 without groups; auto: a head at o_in, else the largest power of two up to 128 that divides "     \
     "(below 32: docs/numerics.md, OffQ)"},                                                                                 \
    {"quant." #f ".clip", BK_KEY_BOOL, AT(quant.f.clip), NULL, 0, 0, NULL, "dynamic: learned clipping factors"},             \
    {"quant." #f, BK_KEY_REAL, AT(quant.f), NULL, 0, 0, NULL, NULL} /* the options of quantizers: bk_keys_complete */

/* In the order of the enums. */
#define GRAINS "tensor|channel|token|head|group"
_Static_assert(BK_PER_TENSOR == 0 && BK_PER_GROUP == 4 && BK_GRANULARITY_COUNT == 5, "GRAINS");
_Static_assert(BK_LOSS_MSE == 0 && BK_LOSS_COSINE == 4 && BK_LOSS_COUNT == 5, "train.loss");
_Static_assert(BK_STORE_F16 == 0 && BK_STORE_F32 == 1, "store.dtype");
_Static_assert(BK_OVERFLOW_WARN == 0 && BK_OVERFLOW_F32 == 1 && BK_OVERFLOW_ERROR == 2, "store.overflow");
_Static_assert(BK_SEARCH_ERROR == 0 && BK_SEARCH_RATIO == 1 && BK_SEARCH_OBJECTIVE_COUNT == 2, "prefix.search.objective");
_Static_assert(BK_BASIS_KURTAIL == 5 && BK_BASIS_COUNT == 6 && BK_SCALES_AWQ == 2, "rotation.basis, scales.from");
_Static_assert(BK_OFFQ_TOKEN_PER_SITE == 0 && BK_OFFQ_TOP_TOKENS == 0 && BK_OFFQ_EIGENVALUE == 0 && BK_OFFQ_HADAMARD == 0 && BK_OFFQ_KEYS_OFF == 2, "offq");
_Static_assert(sizeof(bk_granularity) == sizeof(int) && sizeof(bk_offq_keys) == sizeof(int), "BK_KEY_ENUM writes an int");
_Static_assert(sizeof((bk_qspec *)0)->quantizer == BK_NAME_SIZE, "BK_KEY_NAME");

static const bk_key fixed[] = {
    {"model", BK_KEY_PATH, AT(model), "", 0, 0, NULL, "GGUF file (what it holds is dequantized) or Hugging Face folder in full precision"},
    {"method", BK_KEY_NAME, AT(method), "prefixquant", 0, 0, methods + 1,
     "a named set of defaults (brick list methods)"},
    {"scheme", BK_KEY_WORD, AT(scheme), NULL, 0, 0, NULL, "W<b>A<b>[KV<b>]-static|dynamic[-asym][-g<G>|-gauto] or W<b>A16[-g<G>] (brick list schemes)"},
    {"seed", BK_KEY_INT, AT(seed), "2", 0, BIG, NULL, "of the windows, the random signs and the order of batches"},
    {"threads", BK_KEY_INT, AT(threads), "0", 0, 4096, NULL, "0 = all; OMP_NUM_THREADS goes before the config"},
    {"backend", BK_KEY_NAME, AT(backend), "cpu", 0, 0, backends + 1, "what computes (brick list backends)"},
    {"strict", BK_KEY_BOOL, AT(strict), "false", 0, 0, NULL, "every fallback is an error"},
    {"equivalence_tolerance", BK_KEY_REAL, AT(equivalence_tolerance), "1e-3", 0, 1, NULL,
     "largest change of the full-precision logits by fusing and rotating, relative to their range"},

    {"data.detection.text", BK_KEY_PATH, AT(data.detection.text), "", 0, 0, NULL,
     ".txt or .jsonl for finding outlier tokens; empty = the training text"},
    {"data.detection.samples", BK_KEY_INT, AT(data.detection.samples), "64", 1, MILLION, NULL, "windows"},
    {"data.detection.seqlen", BK_KEY_INT, AT(data.detection.seqlen), "512", 2, MILLION, NULL, "tokens of a window"},
    {"data.calibration.text", BK_KEY_PATH, AT(data.calibration.text), "", 0, 0, NULL,
     "text for ranges and searches; empty = the first training windows"},
    {"data.calibration.samples", BK_KEY_INT, AT(data.calibration.samples), "4", 1, MILLION, NULL, "windows"},
    {"data.calibration.seqlen", BK_KEY_INT, AT(data.calibration.seqlen), "512", 1, MILLION, NULL,
     "tokens of a window; without a text of its own that of the training windows counts"},
    {"data.statistics.text", BK_KEY_PATH, AT(data.statistics.text), "", 0, 0, NULL,
     "text for what is fitted to activations: GPTQ, OffQ, SmoothQuant, AWQ, learned rotations; empty = that of calibration"},
    {"data.statistics.samples", BK_KEY_INT, AT(data.statistics.samples), "128", 1, MILLION, NULL, "windows"},
    {"data.statistics.seqlen", BK_KEY_INT, AT(data.statistics.seqlen), "2048", 1, MILLION, NULL, "tokens of a window"},
    {"data.training.text", BK_KEY_PATH, AT(data.training.text), "", 0, 0, NULL, "text for training"},
    {"data.training.samples", BK_KEY_INT, AT(data.training.samples), "64", 1, MILLION, NULL, "windows"},
    {"data.training.seqlen", BK_KEY_INT, AT(data.training.seqlen), "512", 2, MILLION, NULL, "tokens of a window"},
    {"data.training.validation", BK_KEY_INT, AT(data.validation), "8", 0, MILLION, NULL,
     "windows in addition that choose the epoch to keep"},
    {"data.evaluation.text", BK_KEY_PATH, AT(data.evaluation.text), "", 0, 0, NULL, "text for perplexity"},
    {"data.evaluation.seqlen", BK_KEY_INT, AT(data.evaluation.seqlen), "2048", 2, MILLION, NULL, "tokens of a window"},
    {"data.evaluation.windows", BK_KEY_INT_OR, AT(data.evaluation.samples), "16", 1, MILLION, "all",
     "windows from the start of the text, or all"},
    {"data.bos", BK_KEY_ENUM, AT(data.bos), "auto", 0, 0, "auto|none",
     "auto: one at the start of a text if the tokenizer says so and no prefix is active"},
    {"data.strip_bos", BK_KEY_BOOL, AT(data.strip_bos), "false", 0, 0, NULL, "take BOS ids out of texts"},
    {"data.parse_special", BK_KEY_BOOL, AT(data.parse_special), "false", 0, 0, NULL,
     "special-token strings in texts become these tokens"},
    {"data.join", BK_KEY_WORD, AT(data.join), "", 0, 0, NULL,
     "joins the lines of .txt files, as \"\\n\\n\" for WikiText; empty = bytes as they are"},

    {"rotation.r1", BK_KEY_BOOL, AT(rotation.r1), "true", 0, 0, NULL, "residual stream"},
    {"rotation.r2", BK_KEY_BOOL, AT(rotation.r2), "true", 0, 0, NULL, "values, per head"},
    {"rotation.r3", BK_KEY_BOOL, AT(rotation.r3), "true", 0, 0, NULL, "queries and keys after RoPE, online; schemes W<b>A16: off"},
    {"rotation.r4", BK_KEY_BOOL, AT(rotation.r4), "true", 0, 0, NULL, "input of down, online; schemes W<b>A16: off"},
    {"rotation.basis", BK_KEY_ENUM, AT(rotation.basis), "hadamard", 0, 0, "hadamard|offq|spinquant|dfrot|dartquant|kurtail",
     "what r1 is: a random-sign Hadamard, or fitted to data.statistics"},
    {"rotation.r2_per_head", BK_KEY_BOOL, AT(rotation.r2_per_head), "false", 0, 0, NULL, "r2 with signs of its own for each block and key/value head"},
    {"rotation.r4_group", BK_KEY_INT_OR, AT(rotation.r4_group), "0", 0, MILLION, "auto",
     "r4 in groups of so many channels; 0: one for all; auto: the largest power of two up to 128 that divides (below 32: docs/numerics.md, OffQ)"},
    {"rotation.fold_v_bias", BK_KEY_BOOL, AT(rotation.fold_v_bias), "false", 0, 0, NULL, "move the bias of v into that of o"},

    {"scales.from", BK_KEY_ENUM, AT(scales.from), "none", 0, 0, "none|smoothquant|awq",
     "per-channel scales that move between activations and weights; not with rotation.r1"},
    {"scales.alpha", BK_KEY_REAL, AT(scales.alpha), "0.8", 0, 1, NULL, "smoothquant: share of the activations' range that weights take over"},

    {"prefix.mode", BK_KEY_PREFIX, AT(prefix), "auto", 0, 2147483647, "auto|none|search",
     "auto (outlier tokens by count), search (greedy, prefix.search), none, or a list of token ids"},
    {"prefix.threshold", BK_KEY_REAL, AT(prefix.threshold), "64", 1, 1e9, NULL,
     "largest over median magnitude above which a token is an outlier"},
    {"prefix.lower_threshold", BK_KEY_REAL, AT(prefix.lower_threshold), "8", 1, 1e9, NULL,
     "median over smallest magnitude of queries and keys, reported only"},
    {"prefix.overlap", BK_KEY_BOOL, AT(prefix.overlap), "false", 0, 0, NULL,
     "text behind P prefixed tokens starts at position 0 again, not at P"},
    {"prefix.bos", BK_KEY_ENUM, AT(prefix.bos), "last", 0, 0, "last|none", "where auto puts the BOS"},
    {"prefix.search.objective", BK_KEY_ENUM, AT(prefix.search.objective), "error", 0, 0, "error|ratio",
     "what a searched prefix lowers: relative error of the run's quantizers at sites, or largest over median magnitude"},
    {"prefix.search.candidates", BK_KEY_INT, AT(prefix.search.candidates), "16", 1, 1024, NULL,
     "tokens tried at each place: BOS, EOS, outlier tokens and frequent ones in turns"},
    {"prefix.search.max_tokens", BK_KEY_INT, AT(prefix.search.max_tokens), "4", 1, BK_PREFIX_MAX, NULL, "tokens of the longest prefix"},
    {"prefix.search.samples", BK_KEY_INT, AT(prefix.search.samples), "2", 1, MILLION, NULL,
     "windows that judge a prefix: the first ones of the detection"},
    {"prefix.search.tau", BK_KEY_REAL, AT(prefix.search.tau), "0.05", 0, 1, NULL,
     "a token is appended if the objective falls by more than this share"},

    QUANT(weight),
    QUANT(activation),
    QUANT(key),
    QUANT(value),
    {"quant.skip", BK_KEY_SKIP, AT(quant.n_skip), "[]", 0, MILLION, NULL,
     "list of {block: N, site: NAME} that stay in full precision; one of the two may be left out"},

    {"init.from", BK_KEY_ENUM, AT(init.from), "minmax", 0, 0, "minmax|gptq", "first weights and steps"},
    {"init.search", BK_KEY_BOOL, AT(init.search), "true", 0, 0, NULL, "grid search of steps and clipping factors"},
    {"init.refresh", BK_KEY_BOOL, AT(init.refresh), "false", 0, 0, NULL, "search again before a block is trained, on its inputs for the first calibration.samples training samples"},
    {"init.range", BK_KEY_ENUM, AT(init.range), "max", 0, 0, "max|ema", "static ranges: true maximum, or average with weight 0.99"},

    {"train.epochs", BK_KEY_INT, AT(train.epochs), "20", 0, MILLION, NULL, "passes over the training windows; 0 = no training"},
    {"train.batch", BK_KEY_INT, AT(train.batch), "4", 1, MILLION, NULL, "windows of a step"},
    {"train.lr_quant", BK_KEY_REAL, AT(train.lr_quant), "5e-5", 0, 10, NULL, "learning rate of steps, zeros and clipping factors"},
    {"train.lr_weight", BK_KEY_REAL, AT(train.lr_weight), "5e-6", 0, 10, NULL, "learning rate of weights"},
    {"train.lr_round", BK_KEY_REAL, AT(train.lr_round), "0", 0, 10, NULL,
     "learning rate of rounding decisions and offsets; 0 = 1e-3 (adaround), or 1 / steps falling to 0 (signround)"},
    {"train.norms", BK_KEY_BOOL, AT(train.norms), "false", 0, 0, NULL, "train the gains of the two norms, at the rate of weights"},
    {"train.lr_min_factor", BK_KEY_REAL, AT(train.lr_min_factor), "10", 1, 1e9, NULL, "the cosine ends at the rate divided by this"},
    {"train.beta1", BK_KEY_REAL, AT(train.beta1), "0.9", 0, 0.999999, NULL, "AdamW: share of the mean gradient that a step keeps"},
    {"train.beta2", BK_KEY_REAL, AT(train.beta2), "0.999", 0, 0.999999, NULL, "AdamW: share of the mean squared gradient that a step keeps"},
    {"train.eps", BK_KEY_REAL, AT(train.eps), "1e-8", 1e-30, 1, NULL, "AdamW: added to the root that a step is divided by"},
    {"train.weight_decay", BK_KEY_REAL, AT(train.weight_decay), "0", 0, 1, NULL, "AdamW: share of a value that a step takes off, times the rate"},
    {"train.clip_grad", BK_KEY_REAL, AT(train.clip_grad), "0", 0, 1e9, NULL, "largest norm of the gradient; 0 = off"},
    {"train.shuffle", BK_KEY_BOOL, AT(train.shuffle), "false", 0, 0, NULL, "another order of windows in every epoch"},
    {"train.loss", BK_KEY_ENUM, AT(train.loss), "mse", 0, 0, "mse|skip_mse|clamp_mse|normalized_mse|cosine", "between block outputs"},
    {"train.target", BK_KEY_ENUM, AT(train.target), "fp", 0, 0, "fp|quant|both",
     "the full-precision block on the full-precision stream, on the quantized one, or both"},
    {"train.keep", BK_KEY_ENUM, AT(train.keep), "best", 0, 0, "best|last", "epoch to keep: best validation loss or the last"},

    {"gptq.percdamp", BK_KEY_REAL, AT(gptq.percdamp), "0.01", 0, 1, NULL, "damping: of the mean of the Hessian's diagonal"},
    {"gptq.first_weight", BK_KEY_REAL, AT(gptq.first_weight), "1", 1, 1e6, NULL,
     "how often a window's first token counts in the Hessian: all others attend to it"},
    {"gptq.act_order", BK_KEY_BOOL, AT(gptq.act_order), "false", 0, 0, NULL, "channels of large inputs first"},
    {"gptq.static_groups", BK_KEY_BOOL, AT(gptq.static_groups), "false", 0, 0, NULL, "steps of groups before the rounding begins"},
    {"gptq.mse_clip", BK_KEY_BOOL, AT(gptq.mse_clip), "true", 0, 0, NULL, "steps by the error of the weights they give, not by their range"},
    {"gptq.act_quant", BK_KEY_BOOL, AT(gptq.act_quant), "false", 0, 0, NULL, "Hessians see quantized activations"},

    {"offq.scope", BK_KEY_ENUM, AT(offq.scope), "site", 0, 0, "site|sequence", "most extreme token of a sequence: in each layer and site, or over all"},
    {"offq.sites", BK_KEY_ENUM, AT(offq.sites), "both", 0, 0, "both|attention|mlp", "inputs that these tokens are taken from"},
    {"offq.rows", BK_KEY_ENUM, AT(offq.basis), "top", 0, 0, "top|all", "tokens whose covariance gives the basis"},
    {"offq.tail", BK_KEY_REAL, AT(offq.tail), "0", 0, 1, NULL, "share of the covariance of all tokens in it; 1e-6 orders what lies behind the outliers"},
    {"offq.score", BK_KEY_ENUM, AT(offq.score), "eigenvalue", 0, 0, "eigenvalue|variance", "what sorts channels into groups"},
    {"offq.zigzag", BK_KEY_BOOL, AT(offq.zigzag), "false", 0, 0, NULL, "deal channels to the groups in turn, instead of in sorted runs"},
    {"offq.spread", BK_KEY_ENUM, AT(offq.spread), "hadamard", 0, 0, "hadamard|gaussian", "rotation of a group, its first row constant"},
    {"offq.alike", BK_KEY_BOOL, AT(offq.alike), "false", 0, 0, NULL, "one rotation for all groups, instead of one (or signs of its own) each"},
    {"offq.keys", BK_KEY_ENUM, AT(offq.keys), "auto", 0, 0, "auto|on|off", "a basis for keys too; auto: with a k bias, or where keys are spiky"},
    {"offq.spikiness", BK_KEY_REAL, AT(offq.spikiness), "4", 1, 1e9, NULL, "auto: median of max|k| sqrt(d) / |k| from which on keys are spiky"},
    {"offq.group", BK_KEY_INT, AT(offq.group), "0", 0, MILLION, NULL, "channels of a group; 0: those of quant.activation.group"},

    {"spin.steps", BK_KEY_INT, AT(spin.steps), "100", 1, MILLION, NULL, "steps of Cayley SGD that learn r1"},
    {"spin.batch", BK_KEY_INT, AT(spin.batch), "8", 1, MILLION, NULL, "windows a step"},
    {"spin.seqlen", BK_KEY_INT, AT(spin_seqlen), "0", 0, MILLION, NULL, "tokens of these windows, which data.statistics are cut into; 0: as they are"},
    {"spin.lr", BK_KEY_REAL, AT(spin.lr), "1.5", 0, 1e3, NULL, "learning rate, cosine to 0"},
    {"spin.momentum", BK_KEY_REAL, AT(spin.momentum), "0", 0, 0.999999, NULL, "of the gradient"},
    {"spin.clip_grad", BK_KEY_REAL, AT(spin.clip_grad), "1", 0, 1e9, NULL, "largest norm of all gradients; 0 = off"},
    {"spin.weights", BK_KEY_ENUM, AT(spin_weights), "auto", 0, 0, "auto|full|rounded",
     "weights while r1 is learnt: auto: full precision where GPTQ follows, else rounded as the scheme says"},
    {"spin.r2", BK_KEY_BOOL, AT(spin.r2), "false", 0, 0, NULL, "learn r2 of each block too"},

    {"norm_rotation.rows", BK_KEY_INT, AT(norm_rotation.rows), "256", 1, MILLION, NULL, "dfrot, dartquant, kurtail: tokens sampled from each norm"},
    {"norm_rotation.rounds", BK_KEY_INT, AT(norm_rotation.dfrot.rounds), "100", 1, MILLION, NULL, "dfrot: turns of codes and rotation"},
    {"norm_rotation.massive_weight", BK_KEY_REAL, AT(norm_rotation.dfrot.massive_weight), "100", 1e-9, 1e9, NULL, "dfrot: weight of massive tokens"},
    {"norm_rotation.epochs", BK_KEY_INT, AT(norm_rotation.spread.epochs), "10", 1, MILLION, NULL, "dartquant, kurtail: passes over the rows"},
    {"norm_rotation.batch", BK_KEY_INT, AT(norm_rotation.spread.batch), "64", 1, MILLION, NULL, "dartquant, kurtail: tokens of a step"},
    {"norm_rotation.lr", BK_KEY_REAL, AT(norm_rotation.spread.lr), "1e-3", 0, 1e3, NULL, "dartquant, kurtail: learning rate of SGD, constant"},
    {"norm_rotation.momentum", BK_KEY_REAL, AT(norm_rotation.spread.momentum), "0.9", 0, 0.999999, NULL, "dartquant, kurtail: momentum of SGD"},

    {"store.keep", BK_KEY_ENUM, AT(store.keep), "rolling", 0, 0, "rolling|all|shared",
     "targets: what the next block needs, all, or the full-precision ones as a stage of all runs"},
    {"store.dtype", BK_KEY_ENUM, AT(store.dtype), "f16", 0, 0, "f16|f32", "of targets in HDF5"},
    {"store.overflow", BK_KEY_ENUM, AT(store.overflow), "warn", 0, 0, "warn|f32|error",
     "a value beyond 65504 in f16: saturate and warn, store f32, or stop"},
    {"store.compression", BK_KEY_ENUM, AT(store.compression), "none", 0, 0, "none|gzip", "of targets in HDF5"},
    {"evaluate", BK_KEY_FLAGS, AT(evaluate), "[ppl]", 0, 0, "ppl|ablation", "list: the prefix and the initialised model too, the table of the ablation; [] = the model as it is and the result alone"},
};
enum { FIXED = sizeof fixed / sizeof fixed[0] };
_Static_assert(FIXED <= BK_KEY_LIMIT, "BK_KEY_LIMIT is too small");

static bk_key table[BK_KEY_LIMIT];
const bk_key *const bk_keys = table;
int bk_key_count;

/* Of the options in the table, by the same index: texts, whose they are, and the place that they are for. */
static struct {
    char path[64], initial[32];
    const bk_quantizer *owner;
    size_t spec;
} option[BK_KEY_LIMIT];

static void initial_text(const bk_option *o, char *to, size_t size)
{
    if (o->type == BK_OPTION_BOOL) snprintf(to, size, o->initial != 0 ? "true" : "false");
    else bk_real_text(o->initial, to, size);
}

static void add_option(const bk_key *place, const bk_quantizer *q, int i)
{
    static const bk_key_type types[] = {[BK_OPTION_REAL] = BK_KEY_REAL, [BK_OPTION_INT] = BK_KEY_OPTION_INT, [BK_OPTION_BOOL] = BK_KEY_OPTION_BOOL};
    const bk_option *o = &q->options[i];
    int n = bk_key_count++;
    snprintf(option[n].path, sizeof option[n].path, "%s.%s.%s", place->path, q->name, o->name);
    initial_text(o, option[n].initial, sizeof option[n].initial);
    option[n].owner = q;
    option[n].spec = place->offset;
    table[n] = (bk_key){option[n].path, types[o->type], place->offset + offsetof(bk_qspec, option) + (size_t)i * sizeof(double), option[n].initial,
                        o->min, o->max, NULL, o->about};
}

static bk_status add_options(const bk_key *place, const bk_quantizer *q, bk_error *err)
{
    char path[64];
    bool serves = strcmp(place->path, "quant.weight") == 0 ? q->for_weights : q->for_activations;
    snprintf(path, sizeof path, "%s.%s", place->path, q->name);
    if (bk_key_find(path) >= 0) return bk_fail(err, BK_EFORMAT, "a quantizer cannot be called `%s`: %s is a key of configs", q->name, path);
    if (bk_key_count + q->n_options > BK_KEY_LIMIT - FIXED) return bk_fail(err, BK_EFORMAT, "too many options of quantizers: a config has %d keys", BK_KEY_LIMIT);
    for (int i = 0; i < q->n_options && serves; i++) add_option(place, q, i);
    return BK_OK;
}

bk_status bk_keys_complete(bk_error *err)
{
    bk_key_count = 0;
    quantizers[0] = 0;
    memset(option, 0, sizeof option);
    for (int i = 0; i < bk_quantizer_count; i++) {
        size_t n = strlen(quantizers);
        snprintf(quantizers + n, sizeof quantizers - n, "%s%s", i ? "|" : "", bk_quantizers[i]->name);
    }
    for (int i = 0; i < FIXED; i++) {
        bool place = !fixed[i].about;
        if (!place) table[bk_key_count++] = fixed[i];
        for (int k = 0; k < bk_quantizer_count && place; k++) BK_TRY(add_options(&fixed[i], bk_quantizers[k], err));
    }
    return BK_OK;
}

/* Before main, so that nobody sees the table empty. Those of quantizers.def fit: tests/test_quant_options.c. */
__attribute__((constructor)) static void complete_at_start(void)
{
    bk_status st = bk_keys_complete(NULL);
    (void)st;
}

const bk_quantizer *bk_key_owner(const bk_key *k)
{
    return option[k - table].owner;
}

const bk_key *bk_key_chooser(const bk_key *k)
{
    char path[64];
    snprintf(path, sizeof path, "%.*s.quantizer", 6 + (int)strcspn(k->path + 6, "."), k->path); /* behind "quant." */
    return &table[bk_key_find(path)];
}

bool bk_key_counts(const bk_run_config *c, const bk_key *k)
{
    const bk_quantizer *owner = bk_key_owner(k);
    const bk_qspec *spec = (const void *)((const char *)c + option[k - table].spec);
    return !owner || strcmp(spec->quantizer, owner->name) == 0;
}

int bk_key_find(const char *path)
{
    for (int i = 0; i < bk_key_count; i++)
        if (strcmp(bk_keys[i].path, path) == 0) return i;
    return -1;
}

void bk_choices_of(const char *choices, bk_choices *out)
{
    out->n = 0;
    size_t n = strlen(choices);
    if (n >= sizeof out->room) return;
    memcpy(out->room, choices, n + 1);
    for (char *save, *w = strtok_r(out->room, "|", &save); w && out->n < BK_CHOICES_MAX; w = strtok_r(NULL, "|", &save))
        out->word[out->n++] = w;
}

int bk_choices_find(const bk_choices *c, const char *word)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->word[i], word) == 0) return i;
    return -1;
}
