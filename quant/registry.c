#include <stdio.h>
#include <string.h>

#include "quant/hadamard.h"
#include "quant/quantizer.h"

#define BK_QUANTIZER(name) extern const bk_quantizer bk_quantizer_##name;
#include "quant/quantizers.def"
#undef BK_QUANTIZER

const bk_quantizer *bk_quantizers[BK_QUANTIZERS_MAX] = {
#define BK_QUANTIZER(name) &bk_quantizer_##name,
#include "quant/quantizers.def"
#undef BK_QUANTIZER
};
int bk_quantizer_count = 0
#define BK_QUANTIZER(name) +1
#include "quant/quantizers.def"
#undef BK_QUANTIZER
    ;

const char *const bk_granularity_name[BK_GRANULARITY_COUNT] = {"tensor", "channel", "token", "head", "group"};

const bk_quantizer *bk_quantizer_find(const char *name)
{
    for (int i = 0; i < bk_quantizer_count; i++)
        if (!strcmp(bk_quantizers[i]->name, name)) return bk_quantizers[i];
    return NULL;
}

void bk_qspec_defaults(bk_qspec *spec)
{
    const bk_quantizer *q = bk_quantizer_find(spec->quantizer);
    for (int i = 0; i < BK_OPTIONS_MAX; i++) spec->option[i] = q && i < q->n_options ? q->options[i].initial : 0;
}

static bk_status unknown(const char *name, bk_error *err)
{
    char known[512] = "";
    for (int i = 0; i < bk_quantizer_count; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", bk_quantizers[i]->name);
    }
    return bk_fail(err, BK_EINVAL, "there is no quantizer `%s`; known: %s (is --plugin FILE.so missing?)", name, known);
}

int64_t bk_qspec_group(const bk_qspec *spec, const bk_qshape *shape)
{
    if (spec->group != BK_GROUP_AUTO) return spec->group;
    return shape->head_dim ? shape->head_dim : bk_group_size(shape->cols);
}

double bk_qspec_bits(const bk_qspec *spec, const bk_qshape *shape)
{
    const int64_t share[BK_GRANULARITY_COUNT] = {[BK_PER_CHANNEL] = shape->cols, [BK_PER_TOKEN] = shape->cols,
                                                 [BK_PER_HEAD] = shape->head_dim, [BK_PER_GROUP] = bk_qspec_group(spec, shape)};
    int64_t values = share[spec->granularity];
    bool stored_once = !shape->rows && bk_qspec_needs_range(spec); /* for all tokens */
    if (spec->bits >= 16 || !values || stored_once) return spec->bits;
    return spec->bits + (spec->symmetric ? 16.0 : 32.0) / (double)values;
}

bk_status bk_units_check(int64_t units, const bk_qshape *shape, bool needs_range, bk_error *err)
{
    int64_t rows = shape->rows ? shape->rows : 1;
    if (units > 0 && units % rows == 0 && shape->cols % (units / rows) == 0) return BK_OK;
    if (units == 0 && !shape->rows && !needs_range) return BK_OK;
    if (shape->rows)
        return bk_fail(err, BK_EFORMAT, "%lld units for %lld rows of %lld columns; want rows x n, where n divides the columns", (long long)units,
                       (long long)rows, (long long)shape->cols);
    return bk_fail(err, BK_EFORMAT, "%lld units for %lld columns; want a number that divides them%s", (long long)units, (long long)shape->cols,
                   needs_range ? "" : ", or 0");
}

bk_status bk_qinst_setup(bk_qinst *i, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    memset(i, 0, sizeof *i);
    i->spec = *spec;
    i->spec.group = bk_qspec_group(spec, shape);
    i->shape = *shape;
    if (spec->bits >= 16) return BK_OK;
    if (spec->bits < 2 || spec->bits > 8) return bk_fail(err, BK_EINVAL, "%s: %d bits; want 2 to 8, or 16 for none", shape->name, spec->bits);
    const bk_quantizer *q = bk_quantizer_find(spec->quantizer);
    if (!q) return unknown(spec->quantizer, err);
    if (shape->rows ? !q->for_weights : !q->for_activations)
        return bk_fail(err, BK_EINVAL, "%s: quantizer `%s` is not for %s", shape->name, q->name, shape->rows ? "weights" : "activations");
    BK_TRY(q->setup(i->state.bytes, &i->spec, shape, err));
    if (bk_units_check(q->units(i->state.bytes), shape, q->needs_range(i->state.bytes), err))
        return bk_error_prefix(err, "%s: quantizer `%s`", shape->name, q->name);
    i->q = q;
    i->on = true;
    return BK_OK;
}

bool bk_qspec_needs_range(const bk_qspec *spec)
{
    int64_t cols = spec->group > 0 ? spec->group : 64;
    bk_qshape shape = {.cols = cols, .head_dim = cols, .name = "activations"};
    bk_qinst i;
    bk_error err = {0};
    return bk_qinst_setup(&i, spec, &shape, &err) == BK_OK && i.q && i.q->needs_range(i.state.bytes);
}

bk_tensor *bk_qinst_apply(bk_ctx *ctx, bk_qinst *i, bk_tensor *x)
{
    return i->q && i->on ? i->q->apply(ctx, i->state.bytes, x) : x;
}
