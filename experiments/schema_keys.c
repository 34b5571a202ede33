#include <string.h>

#include "backends/kernels.h"
#include "experiments/schema_priv.h"
#include "io/store.h"

#define AT(field) offsetof(bk_run_config, field)
#define BITS "2|3|4|5|6|7|8|16"
#define BIG 9007199254740991.0 /* 2^53 - 1: exact in every JSON reader */
#define MILLION 1e6

/* "|a|b|c" from the lists themselves. */
static const char quantizers[] =
#define BK_QUANTIZER(name) "|" #name
#include "quant/quantizers.def"
#undef BK_QUANTIZER
    ;
static const char backends[] =
#define BK_BACKEND(name, constructor, about) "|" #name
#include "experiments/backends.def"
#undef BK_BACKEND
    ;

/* The keys of one way of quantizing. No default of their own: the scheme gives it. */
#define QUANT(f)                                                                                                  \
    {"quant." #f ".quantizer", BK_KEY_NAME, AT(quant.f.quantizer), NULL, 0, 0, quantizers + 1, "how steps are found"},           \
    {"quant." #f ".bits", BK_KEY_BITS, AT(quant.f.bits), NULL, 2, 16, BITS, "bits of a code; 16 = not quantized"},            \
    {"quant." #f ".symmetric", BK_KEY_BOOL, AT(quant.f.symmetric), NULL, 0, 0, NULL, "without a zero point"},                 \
    {"quant." #f ".step", BK_KEY_EITHER, AT(quant.f.restricted), "full", 0, 0, "full|restricted",                                    \
     "symmetric step: 2 max / (2^bits - 1), or max / (2^(bits-1) - 1)"},                                                     \
    {"quant." #f ".granularity", BK_KEY_ENUM, AT(quant.f.granularity), NULL, 0, 0, GRAINS, "what shares a step"},            \
    {"quant." #f ".group", BK_KEY_INT, AT(quant.f.group), NULL, 0, MILLION, NULL, "numbers per group; 0 without groups"},    \
    {"quant." #f ".clip", BK_KEY_BOOL, AT(quant.f.clip), NULL, 0, 0, NULL, "dynamic: learned clipping factors"}

/* In the order of the enums. */
#define GRAINS "tensor|channel|token|head|group"
_Static_assert(BK_PER_TENSOR == 0 && BK_PER_GROUP == 4 && BK_GRANULARITY_COUNT == 5, "GRAINS");
_Static_assert(BK_LOSS_MSE == 0 && BK_LOSS_COSINE == 4 && BK_LOSS_COUNT == 5, "train.loss");
_Static_assert(BK_STORE_F16 == 0 && BK_STORE_F32 == 1, "store.dtype");
_Static_assert(BK_OVERFLOW_WARN == 0 && BK_OVERFLOW_F32 == 1 && BK_OVERFLOW_ERROR == 2, "store.overflow");
_Static_assert(sizeof(bk_granularity) == sizeof(int), "BK_KEY_ENUM writes an int");
_Static_assert(sizeof((bk_qspec *)0)->quantizer == BK_NAME_SIZE, "BK_KEY_NAME");

const bk_key bk_keys[] = {
    {"model", BK_KEY_PATH, AT(model), "", 0, 0, NULL, "GGUF file, Hugging Face folder, or model/ folder of a run"},
    {"method", BK_KEY_NAME, AT(method), "prefixquant", 0, 0, "prefixquant|quarot|rtn",
     "a named set of defaults (brick list methods)"},
    {"scheme", BK_KEY_WORD, AT(scheme), NULL, 0, 0, NULL, "W<b>A<b>[KV<b>]-static|dynamic[-asym] or W<b>A16[-g<G>] (brick list schemes)"},
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
    {"data.calibration.seqlen", BK_KEY_INT, AT(data.calibration.seqlen), "512", 2, MILLION, NULL,
     "tokens of a window; without a text of its own that of the training windows counts"},
    {"data.training.text", BK_KEY_PATH, AT(data.training.text), "", 0, 0, NULL, "text for training"},
    {"data.training.samples", BK_KEY_INT, AT(data.training.samples), "64", 1, MILLION, NULL, "windows"},
    {"data.training.seqlen", BK_KEY_INT, AT(data.training.seqlen), "512", 2, MILLION, NULL, "tokens of a window"},
    {"data.training.validation", BK_KEY_INT, AT(data.validation), "8", 0, MILLION, NULL,
     "windows in addition that choose the epoch to keep"},
    {"data.evaluation.text", BK_KEY_PATH, AT(data.evaluation.text), "", 0, 0, NULL, "text for perplexity"},
    {"data.evaluation.seqlen", BK_KEY_INT, AT(data.evaluation.seqlen), "2048", 2, MILLION, NULL, "tokens of a window"},
    {"data.evaluation.windows", BK_KEY_WINDOWS, AT(data.evaluation.samples), "16", 1, MILLION, NULL,
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
    {"rotation.r3", BK_KEY_BOOL, AT(rotation.r3), "true", 0, 0, NULL, "queries and keys after RoPE, online"},
    {"rotation.r4", BK_KEY_BOOL, AT(rotation.r4), "true", 0, 0, NULL, "input of down, online"},
    {"rotation.fold_v_bias", BK_KEY_BOOL, AT(rotation.fold_v_bias), "false", 0, 0, NULL, "move the bias of v into that of o"},

    {"prefix.mode", BK_KEY_PREFIX, AT(prefix), "auto", 0, 2147483647, "auto|none", "auto, none, or a list of token ids"},
    {"prefix.threshold", BK_KEY_REAL, AT(prefix.threshold), "64", 1, 1e9, NULL,
     "largest over median magnitude above which a token is an outlier"},
    {"prefix.lower_threshold", BK_KEY_REAL, AT(prefix.lower_threshold), "8", 1, 1e9, NULL,
     "median over smallest magnitude of queries and keys, reported only"},
    {"prefix.overlap", BK_KEY_BOOL, AT(prefix.overlap), "false", 0, 0, NULL,
     "text behind P prefixed tokens starts at position 0 again, not at P"},
    {"prefix.bos", BK_KEY_ENUM, AT(prefix.bos), "last", 0, 0, "last|none", "where auto puts the BOS"},

    QUANT(weight),
    QUANT(activation),
    QUANT(key),
    QUANT(value),
    {"quant.skip", BK_KEY_SKIP, AT(quant.n_skip), "[]", 0, MILLION, NULL,
     "list of {block: N, site: NAME} that stay in full precision; one of the two may be left out"},

    {"init.from", BK_KEY_ENUM, AT(init.from), "minmax", 0, 0, "minmax", "first weights and steps"},
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
    {"train.beta1", BK_KEY_REAL, AT(train.beta1), "0.9", 0, 0.999999, NULL, "AdamW"},
    {"train.beta2", BK_KEY_REAL, AT(train.beta2), "0.999", 0, 0.999999, NULL, "AdamW"},
    {"train.eps", BK_KEY_REAL, AT(train.eps), "1e-8", 1e-30, 1, NULL, "AdamW"},
    {"train.weight_decay", BK_KEY_REAL, AT(train.weight_decay), "0", 0, 1, NULL, "AdamW"},
    {"train.clip_grad", BK_KEY_REAL, AT(train.clip_grad), "0", 0, 1e9, NULL, "largest norm of the gradient; 0 = off"},
    {"train.shuffle", BK_KEY_BOOL, AT(train.shuffle), "false", 0, 0, NULL, "another order of windows in every epoch"},
    {"train.loss", BK_KEY_ENUM, AT(train.loss), "mse", 0, 0, "mse|skip_mse|clamp_mse|normalized_mse|cosine", "between block outputs"},
    {"train.target", BK_KEY_ENUM, AT(train.target), "fp", 0, 0, "fp|quant|both",
     "the full-precision block on the full-precision stream, on the quantized one, or both"},
    {"train.keep", BK_KEY_ENUM, AT(train.keep), "best", 0, 0, "best|last", "epoch to keep: best validation loss or the last"},

    {"store.keep", BK_KEY_ENUM, AT(store.keep), "rolling", 0, 0, "rolling|all|shared",
     "targets: what the next block needs, all, or the full-precision ones as a stage of all runs"},
    {"store.dtype", BK_KEY_ENUM, AT(store.dtype), "f16", 0, 0, "f16|f32", "of targets in HDF5"},
    {"store.overflow", BK_KEY_ENUM, AT(store.overflow), "warn", 0, 0, "warn|f32|error",
     "a value beyond 65504 in f16: saturate and warn, store f32, or stop"},
    {"store.compression", BK_KEY_ENUM, AT(store.compression), "none", 0, 0, "none|gzip", "of targets in HDF5"},
    {"evaluate", BK_KEY_FLAGS, AT(evaluate), "[ppl]", 0, 0, "ppl|ablation", "list: perplexity, the table of the ablation"},
};
const int bk_key_count = sizeof bk_keys / sizeof bk_keys[0];
_Static_assert(sizeof bk_keys / sizeof bk_keys[0] <= BK_KEY_LIMIT, "BK_KEY_LIMIT is too small");

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
