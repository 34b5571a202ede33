/* What must hold between keys, and the files that a config names. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "blocks/block.h"
#include "blocks/prefix.h"
#include "experiments/schema_priv.h"
#include "experiments/scheme.h"
#include "quant/hadamard.h"

void bk_run_config_place(const bk_run_config *c, const char *key, char *to, size_t size)
{
    int i = bk_key_find(key);
    const bk_key_place *p = i < 0 ? NULL : &c->place[i];
    switch (p ? p->source : BK_FROM_DEFAULT) {
    case BK_FROM_FILE: snprintf(to, size, "%.200s:%d:%d", c->source, p->line, p->column); return;
    case BK_FROM_SET: snprintf(to, size, "--set %s", key); return;
    case BK_FROM_ENV: snprintf(to, size, "OMP_NUM_THREADS"); return;
    case BK_FROM_METHOD: snprintf(to, size, "method %s", c->method); return;
    case BK_FROM_SCHEME: snprintf(to, size, "scheme %s", c->scheme); return;
    case BK_FROM_DEFAULT: break;
    }
    if (c->source[0])
        snprintf(to, size, "%.200s", c->source);
    else
        snprintf(to, size, "config");
}

/* "place: key: message". */
static bk_status refuse(const bk_run_config *c, bk_status code, const char *key, bk_error *err, const char *message)
{
    char place[256], text[sizeof err->msg + 80];
    bk_run_config_place(c, key, place, sizeof place);
    snprintf(text, sizeof text, "%s: %s", key, message);
    return bk_place_fail(err, code, place, text);
}

/* The option without whose value the quantizer would take the rest; NULL: none. */
static const char *faulty_option(const bk_quantizer *kind, const bk_qspec *q, const bk_qshape *shape)
{
    for (int i = 0; i < kind->n_options; i++) {
        bk_qspec without = *q;
        bk_qinst made;
        bk_error why = {0};
        without.option[i] = kind->options[i].initial;
        if (without.option[i] != q->option[i] && !bk_qinst_setup(&made, &without, shape, &why)) return kind->options[i].name;
    }
    return NULL;
}

/* Asks the quantizer itself, with a shape that every size fits; what depends on the model's shapes shows when it is read. */
static bk_status check_quant(const bk_run_config *c, const char *name, const bk_qspec *q, bk_error *err)
{
    char quantizer[64], grain[64], group[64], clip[64], option[64];
    snprintf(quantizer, sizeof quantizer, "quant.%s.quantizer", name);
    snprintf(grain, sizeof grain, "quant.%s.granularity", name);
    snprintf(group, sizeof group, "quant.%s.group", name);
    snprintf(clip, sizeof clip, "quant.%s.clip", name);
    bool weight = q == &c->quant.weight, cache = q == &c->quant.key || q == &c->quant.value;
    bool grouped = q->granularity == BK_PER_GROUP;
    if (q->bits == 16) return BK_OK;
    if (grouped && q->group == 0) return refuse(c, BK_EINVAL, grain, err, "group needs a size: write group: 128 beside it");
    if (!grouped && q->group != 0) return refuse(c, BK_EINVAL, group, err, "a group size needs granularity: group");
    int64_t cols = q->group > 0 ? q->group : 64;
    bk_qshape shape = {.rows = weight ? 64 : 0, .cols = cols, .head_dim = cache ? cols : 0, .name = name};
    bk_qinst made;
    bk_error why = {0};
    const bk_quantizer *kind = bk_quantizer_find(q->quantizer);
    bool fits = kind && (weight ? kind->for_weights : kind->for_activations);
    if (bk_qinst_setup(&made, q, &shape, &why)) {
        const char *faulty = fits ? faulty_option(kind, q, &shape) : NULL;
        if (faulty) snprintf(option, sizeof option, "quant.%s.%s.%s", name, kind->name, faulty);
        return refuse(c, BK_EINVAL, faulty ? option : fits && !kind->n_options ? grain : quantizer, err, why.msg);
    }
    if (q->clip && made.q->needs_range(made.state.bytes))
        return refuse(c, BK_EINVAL, clip, err, "only dynamic ranges have clipping factors");
    return BK_OK;
}

/* Which sample sets this run reads. */
bool bk_run_config_detects(const bk_run_config *c)
{
    return c->prefix.mode == BK_PREFIX_AUTO || c->prefix.mode == BK_PREFIX_SEARCH;
}

bool bk_run_needs_calibration(const bk_run_config *c)
{
    bk_block_quant quant = {c->quant.weight, c->quant.activation, c->quant.key, c->quant.value};
    return bk_block_needs_ranges(&quant) || c->init.search || (c->evaluate & BK_EVALUATE_ABLATION);
}

bool bk_run_fits(const bk_run_config *c)
{
    return c->rotation.basis != BK_BASIS_HADAMARD || c->scales.from != BK_SCALES_NONE;
}

bool bk_run_needs_statistics(const bk_run_config *c)
{
    return bk_run_fits(c) || c->init.from == BK_INIT_GPTQ;
}

/* Reads it for one of the sets that it stands in for. */
static bool falls_back(const bk_run_config *c, bool used, const bk_data_config *set, const bk_data_config *to)
{
    return used && !set->text[0] && bk_run_config_text(c, set) == to->text;
}

static bool uses_calibration_text(const bk_run_config *c)
{
    const bk_data_config *to = &c->data.calibration;
    return bk_run_needs_calibration(c) || falls_back(c, bk_run_needs_statistics(c), &c->data.statistics, to);
}

static bool uses_training(const bk_run_config *c)
{
    const bk_data_config *to = &c->data.training;
    return c->train.epochs > 0 || falls_back(c, bk_run_config_detects(c), &c->data.detection, to) ||
           falls_back(c, bk_run_needs_calibration(c), &c->data.calibration, to) || falls_back(c, bk_run_needs_statistics(c), &c->data.statistics, to);
}

const char *bk_run_config_text(const bk_run_config *c, const bk_data_config *set)
{
    if (!set->text[0] && set == &c->data.statistics) set = &c->data.calibration;
    return set->text[0] || set == &c->data.evaluation ? set->text : c->data.training.text;
}

static bk_status need_text(const bk_run_config *c, bool used, const bk_data_config *set, const char *key, bk_error *err)
{
    if (!used || bk_run_config_text(c, set)[0]) return BK_OK;
    return refuse(c, BK_EINVAL, key, err, "a text is needed: name a .txt or .jsonl file");
}

static bool quantizes_values(const bk_run_config *c)
{
    return c->quant.activation.bits < 16 || c->quant.key.bits < 16 || c->quant.value.bits < 16;
}

static bk_status check_gptq(const bk_run_config *c, bk_error *err)
{
    const bk_qspec *w = &c->quant.weight;
    if (c->init.from != BK_INIT_GPTQ) return BK_OK;
    if (w->bits == 16) return refuse(c, BK_EINVAL, "init.from", err, "gptq rounds weights, and this scheme leaves them at 16 bits");
    if (strcmp(w->quantizer, "affine"))
        return refuse(c, BK_EINVAL, "init.from", err, "gptq finds the steps of the quantizer affine; others round by a rule of their own");
    if (c->init.refresh) return refuse(c, BK_EINVAL, "init.refresh", err, "searching again would undo gptq");
    if (c->gptq.act_quant && !quantizes_values(c))
        return refuse(c, BK_EINVAL, "gptq.act_quant", err, "no activations are quantized that the Hessians could see");
    if (c->gptq.act_order && w->granularity == BK_PER_GROUP && !c->gptq.static_groups)
        return refuse(c, BK_EINVAL, "gptq.act_order", err,
                      "groups would be made of channels in another order, which the model's file has no place for: set gptq.static_groups: true");
    return BK_OK;
}

static bk_status check_offq(const bk_run_config *c, bk_error *err)
{
    const bk_qspec *a = &c->quant.activation;
    if (a->bits == 16)
        return refuse(c, BK_EINVAL, "rotation.basis", err, "offq turns outliers of activations into offsets, and this scheme leaves activations at 16 bits");
    if (a->symmetric || a->granularity != BK_PER_GROUP)
        return refuse(c, BK_EINVAL, "rotation.basis", err,
                      "offq turns outliers into offsets of groups, which only zero points of groups absorb: use a scheme like W4A4KV4-dynamic-asym-gauto");
    if (bk_qspec_needs_range(a))
        return refuse(c, BK_EINVAL, "rotation.basis", err,
                      "offsets differ from token to token, and stored zero points stay in the range of codes: use the quantizer dynamic for activations");
    if (!c->rotation.r4)
        return refuse(c, BK_EINVAL, "rotation.r4", err, "offq orders the input of down for r4, and takes its signs from there: leave it on");
    if (!c->rotation.r4_group)
        return refuse(c, BK_EINVAL, "rotation.r4_group", err, "one r4 for all channels makes no offsets of groups: set rotation.r4_group: auto");
    if (c->offq.keys == BK_OFFQ_KEYS_ON && !c->rotation.r3)
        return refuse(c, BK_EINVAL, "offq.keys", err, "the basis for keys is what r3 is, and rotation.r3 is off");
    if (c->offq.keys == BK_OFFQ_KEYS_ON && c->quant.key.bits == 16)
        return refuse(c, BK_EINVAL, "offq.keys", err, "the basis spreads keys that are quantized, and this scheme leaves keys at 16 bits");
    if (a->clip)
        return refuse(c, BK_EINVAL, "quant.activation.clip", err,
                      "clipping factors shrink a range about 0, and offsets move ranges far from it: they would cut off whole groups");
    return BK_OK;
}

int bk_run_spin_weight_bits(const bk_run_config *c)
{
    bool rounded = c->spin_weights == BK_SPIN_WEIGHTS_AUTO ? c->init.from != BK_INIT_GPTQ : c->spin_weights == BK_SPIN_WEIGHTS_ROUNDED;
    return rounded ? c->quant.weight.bits : 16;
}

static bk_status check_spin(const bk_run_config *c, bk_error *err)
{
    if (!quantizes_values(c) && bk_run_spin_weight_bits(c) == 16)
        return refuse(c, BK_EINVAL, "rotation.basis", err,
                      "spinquant lowers the loss that quantizing costs, and nothing is quantized while it learns: set spin.weights: rounded, or another scheme");
    if (c->spin.r2 && !c->rotation.r2) return refuse(c, BK_EINVAL, "spin.r2", err, "it says how r2 is found, and rotation.r2 is off");
    if (c->spin_seqlen && c->data.statistics.seqlen % c->spin_seqlen)
        return refuse(c, BK_EINVAL, "spin.seqlen", err, "does not divide data.statistics.seqlen");
    if ((c->spin_seqlen ? c->spin_seqlen : c->data.statistics.seqlen) < 2)
        return refuse(c, BK_EINVAL, c->spin_seqlen ? "spin.seqlen" : "data.statistics.seqlen", err,
                      "spinquant learns from the loss of next tokens, and windows of 1 token have none");
    return BK_OK;
}

static bk_status check_basis(const bk_run_config *c, bk_error *err)
{
    if (c->rotation.basis == BK_BASIS_HADAMARD) return BK_OK;
    if (!c->rotation.r1) return refuse(c, BK_EINVAL, "rotation.basis", err, "it says what r1 is, and rotation.r1 is off");
    if (c->rotation.basis == BK_BASIS_OFFQ) return check_offq(c, err);
    if (c->rotation.basis == BK_BASIS_SPINQUANT) return check_spin(c, err);
    if (c->quant.activation.bits == 16)
        return refuse(c, BK_EINVAL, "rotation.basis", err, "it makes activations easy to quantize, and this scheme leaves them at 16 bits");
    return BK_OK;
}

/* Combinations that mean nothing. */
static bk_status check_transforms(const bk_run_config *c, bk_error *err)
{
    BK_TRY(check_basis(c, err));
    if (c->rotation.r4_group && !c->rotation.r4) return refuse(c, BK_EINVAL, "rotation.r4_group", err, "groups of what? rotation.r4 is off");
    if (c->scales.from == BK_SCALES_AWQ && c->quant.weight.bits == 16)
        return refuse(c, BK_EINVAL, "scales.from", err, "awq protects quantized weights, and this scheme leaves them at 16 bits");
    if (c->scales.from == BK_SCALES_SMOOTHQUANT && c->quant.activation.bits == 16)
        return refuse(c, BK_EINVAL, "scales.from", err, "smoothquant makes activations easy to quantize, and this scheme leaves them at 16 bits");
    if (c->scales.from == BK_SCALES_AWQ && (c->rotation.r2 || c->rotation.r4))
        return refuse(c, BK_EINVAL, "scales.from", err,
                      "awq scales the columns that are rounded, and r2 and r4 mix these columns afterwards: set rotation.r2 and rotation.r4: false");
    if (c->scales.from != BK_SCALES_NONE && c->rotation.r1)
        return refuse(c, BK_EINVAL, "scales.from", err,
                      "r1 wants the gains of the norms in the linears behind them, and that takes the scales of these linears back: set rotation.r1: false");
    if (bk_run_fits(c) && c->prefix.mode == BK_PREFIX_SEARCH)
        return refuse(c, BK_EINVAL, "prefix.mode", err,
                      "a search judges the rotated model, and what is fitted here is fitted behind the prefix: use auto or ids");
    return BK_OK;
}

static bk_status check_search(const bk_run_config *c, bk_error *err)
{
    char text[160];
    if (c->prefix.mode != BK_PREFIX_SEARCH) return BK_OK;
    if (c->prefix.search.objective == BK_SEARCH_ERROR && !quantizes_values(c))
        return refuse(c, BK_EINVAL, "prefix.search.objective", err,
                      "error needs quantized activations, keys or values: write ratio, or another scheme");
    if (c->prefix.search.samples <= c->data.detection.samples) return BK_OK;
    snprintf(text, sizeof text, "%lld of the %lld windows of data.detection", (long long)c->prefix.search.samples,
             (long long)c->data.detection.samples);
    return refuse(c, BK_EINVAL, "prefix.search.samples", err, text);
}

bk_status bk_run_config_check(const bk_run_config *c, bk_error *err)
{
    if (!c->model[0]) return refuse(c, BK_EINVAL, "model", err, "a model is needed: name a GGUF file or a Hugging Face folder");
    BK_TRY(need_text(c, c->train.epochs > 0, &c->data.training, "data.training.text", err));
    BK_TRY(need_text(c, bk_run_config_detects(c), &c->data.detection, "data.detection.text", err));
    BK_TRY(need_text(c, bk_run_needs_calibration(c), &c->data.calibration, "data.calibration.text", err));
    BK_TRY(need_text(c, bk_run_needs_statistics(c), &c->data.statistics, "data.statistics.text", err));
    BK_TRY(need_text(c, true, &c->data.evaluation, "data.evaluation.text", err));
    BK_TRY(check_quant(c, "weight", &c->quant.weight, err));
    BK_TRY(check_quant(c, "activation", &c->quant.activation, err));
    BK_TRY(check_quant(c, "key", &c->quant.key, err));
    BK_TRY(check_quant(c, "value", &c->quant.value, err));
    BK_TRY(check_transforms(c, err));
    BK_TRY(check_gptq(c, err));
    BK_TRY(check_search(c, err));
    if (c->train.epochs > 0 && c->train.keep == BK_KEEP_BEST && c->data.validation == 0)
        return refuse(c, BK_EINVAL, "data.training.validation", err,
                      "train.keep: best needs validation windows (or set train.keep: last)");
    return BK_OK;
}

bool bk_run_config_file(const bk_run_config *c, int i, const char **key, const char **path)
{
    const struct {
        bool used;
        const char *key, *path;
    } files[] = {
        {true, "model", c->model},
        {bk_run_config_detects(c), "data.detection.text", c->data.detection.text},
        {uses_calibration_text(c), "data.calibration.text", c->data.calibration.text},
        {bk_run_needs_statistics(c), "data.statistics.text", c->data.statistics.text},
        {uses_training(c), "data.training.text", c->data.training.text},
        {true, "data.evaluation.text", c->data.evaluation.text},
    };
    for (size_t k = 0; k < sizeof files / sizeof files[0]; k++) {
        if (!files[k].used || !files[k].path[0] || i-- > 0) continue;
        *key = files[k].key;
        *path = files[k].path;
        return true;
    }
    return false;
}

bk_status bk_run_config_check_files(const bk_run_config *c, bk_error *err)
{
    const char *key, *path;
    for (int i = 0; bk_run_config_file(c, i, &key, &path); i++) {
        if (access(path, R_OK) == 0) continue;
        char text[640];
        bool elsewhere = errno == ENOENT && path[0] != '/';
        snprintf(text, sizeof text, "'%.500s': %s%s", path, strerror(errno), elsewhere ? " (paths count from the folder that brick is started in)" : "");
        return refuse(c, BK_EIO, key, err, text);
    }
    return BK_OK;
}

static bk_status check_lengths(const bk_run_config *c, int64_t positions, int64_t prefix, bk_error *err)
{
    bool own = *c->data.calibration.text;
    int64_t searched = c->prefix.mode == BK_PREFIX_SEARCH ? c->prefix.search.max_tokens : 0;
    const struct {
        bool used;
        const char *key;
        int64_t tokens, prefix;
    } all[] = {{bk_run_config_detects(c), "data.detection.seqlen", c->data.detection.seqlen, searched},
               {own, "data.calibration.seqlen", c->data.calibration.seqlen, prefix},
               {bk_run_needs_statistics(c), "data.statistics.seqlen", c->data.statistics.seqlen, prefix},
               {c->train.epochs > 0 || !own, "data.training.seqlen", c->data.training.seqlen, prefix},
               {true, "data.evaluation.seqlen", c->data.evaluation.seqlen, prefix}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char text[160];
        if (!all[i].used || all[i].tokens + all[i].prefix <= positions) continue;
        snprintf(text, sizeof text, "%lld tokens behind a prefix of %lld go beyond the model's %lld positions", (long long)all[i].tokens,
                 (long long)all[i].prefix, (long long)positions);
        return refuse(c, BK_EINVAL, all[i].key, err, text);
    }
    return BK_OK;
}

static bk_status check_skips(const bk_run_config *c, int64_t layers, bk_error *err)
{
    for (int64_t i = 0; i < c->quant.n_skip; i++) {
        char text[160];
        if (c->quant.skip[i].block < layers) continue;
        snprintf(text, sizeof text, "there is no block %lld: the model has %lld, counted from 0", (long long)c->quant.skip[i].block, (long long)layers);
        return refuse(c, BK_EINVAL, "quant.skip", err, text);
    }
    return BK_OK;
}

/* A group of activations with two constants has no zero point for both. group: 0 = all channels. */
static bk_status check_offsets(const bk_run_config *c, const char *key, int64_t group, int64_t channels, bk_error *err)
{
    char text[200];
    const bk_qspec *a = &c->quant.activation;
    int64_t shared = a->group == BK_GROUP_AUTO ? bk_group_size(channels) : a->group, offset = group ? group : channels;
    if (offset % shared == 0) return BK_OK;
    snprintf(text, sizeof text, "%lld channels get one offset, and %lld share a zero point: write a multiple of %lld", (long long)offset, (long long)shared,
             (long long)shared);
    return refuse(c, BK_EINVAL, key, err, text);
}

int64_t bk_run_r4_group(const bk_run_config *c, int64_t channels)
{
    int64_t size = bk_group_size(channels);
    if (c->rotation.r4_group != BK_GROUP_AUTO) return c->rotation.r4_group;
    return bk_hadamard_exists(size) ? size : 0;
}

/* What a fit would find out after its pass over the model. */
static bk_status check_fit(const bk_run_config *c, const bk_config *model, bk_error *err)
{
    char text[160];
    int64_t group = c->offq.group, tokens = c->data.statistics.samples * c->data.statistics.seqlen, batch = c->norm_rotation.spread.batch;
    bool few = tokens < c->norm_rotation.rows;
    int64_t rows = 2 * model->layers * (few ? tokens : c->norm_rotation.rows);
    const char *of_rows = few ? "data.statistics.samples" : "norm_rotation.rows";
    int basis = c->rotation.basis;
    if (basis == BK_BASIS_OFFQ && group && model->hidden % group) {
        snprintf(text, sizeof text, "%lld does not divide the %lld channels of the model", (long long)group, (long long)model->hidden);
        return refuse(c, BK_EINVAL, "offq.group", err, text);
    }
    bool groups_fit = c->quant.activation.group < 1 || (model->hidden % c->quant.activation.group == 0 && model->inter % c->quant.activation.group == 0);
    if (basis == BK_BASIS_OFFQ && groups_fit) { /* else that is refused, with the site */
        if (group) BK_TRY(check_offsets(c, "offq.group", group, model->hidden, err));
        BK_TRY(check_offsets(c, "rotation.r4_group", bk_run_r4_group(c, model->inter), model->inter, err));
    }
    if (basis == BK_BASIS_DFROT && rows < model->hidden) {
        snprintf(text, sizeof text, "%lld rows of all norms do not tell a rotation of %lld channels", (long long)rows, (long long)model->hidden);
        return refuse(c, BK_EINVAL, of_rows, err, text);
    }
    if ((basis == BK_BASIS_DARTQUANT || basis == BK_BASIS_KURTAIL) && rows < batch) {
        snprintf(text, sizeof text, "%lld rows of all norms are less than a batch of %lld (norm_rotation.batch)", (long long)rows, (long long)batch);
        return refuse(c, BK_EINVAL, of_rows, err, text);
    }
    return BK_OK;
}

bk_status bk_run_config_check_model(const bk_run_config *c, const bk_config *model, int64_t prefix, bk_error *err)
{
    bk_error why = {0};
    if (c->prefix.mode == BK_PREFIX_GIVEN && bk_prefix_check(c->prefix.ids, c->prefix.n_ids, model->vocab, &why))
        return refuse(c, BK_EINVAL, "prefix.mode", err, why.msg);
    BK_TRY(check_skips(c, model->layers, err));
    BK_TRY(check_fit(c, model, err));
    return check_lengths(c, model->max_positions, prefix, err);
}

bool bk_run_config_skips(const bk_run_config *c, int64_t block, const char *name)
{
    for (int64_t i = 0; i < c->quant.n_skip; i++) {
        const bk_skip_entry *e = &c->quant.skip[i];
        if ((e->block < 0 || e->block == block) && (!e->site[0] || strcmp(e->site, name) == 0)) return true;
    }
    return false;
}
