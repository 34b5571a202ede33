#include "quant/steps.h"

#include <math.h>
#include <stdio.h>

#include "autograd/op.h"
#include "backends/scalar/quant.h"

void bk_code_range(int bits, bool symmetric, int *qmin, int *qmax)
{
    *qmin = symmetric ? -(1 << (bits - 1)) : 0;
    *qmax = symmetric ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
}

void bk_step_of_range(int bits, bool symmetric, bool restricted, float lo, float hi, float *s, float *z)
{
    bk_quant_step(bits, symmetric, restricted, lo, hi, s, z);
}

float bk_whole_zero(float zero, int bits)
{
    float top = (float)((1 << bits) - 1), whole = rintf(zero);
    return whole < 0 ? 0 : whole > top ? top : whole;
}

bk_status bk_steps_setup(bk_steps *q, const bk_qspec *spec, const bk_qshape *shape, int64_t group, bk_error *err)
{
    if (group < 1 || shape->cols % group)
        return bk_fail(err, BK_ESHAPE, "%s: group size %lld does not divide its %lld columns", shape->name, (long long)group,
                       (long long)shape->cols);
    *q = (bk_steps){.attr = {.group = group, .per_row = shape->rows > 0}, .rows = shape->rows, .cols = shape->cols, .bits = spec->bits,
                    .symmetric = spec->symmetric, .restricted = spec->restricted, .name = shape->name};
    bk_code_range(spec->bits, spec->symmetric, &q->attr.qmin, &q->attr.qmax);
    return BK_OK;
}

static int64_t group_of_weights(const bk_qspec *spec, const bk_qshape *shape)
{
    return spec->granularity == BK_PER_CHANNEL ? shape->cols : spec->granularity == BK_PER_GROUP ? spec->group : 0;
}

static int64_t group_of_activations(const bk_qspec *spec, const bk_qshape *shape)
{
    return spec->granularity == BK_PER_TENSOR ? shape->cols : spec->granularity == BK_PER_HEAD ? shape->head_dim
           : spec->granularity == BK_PER_GROUP ? spec->group : 0;
}

bk_status bk_steps_setup_place(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err)
{
    const char *grain = bk_granularity_name[spec->granularity];
    int64_t group = shape->rows ? group_of_weights(spec, shape) : group_of_activations(spec, shape);
    if (group < 1 && shape->rows)
        return bk_fail(err, BK_EINVAL, "%s: %s weights are per channel or per group, not per %s", shape->name, spec->quantizer, grain);
    if (group < 1) return bk_fail(err, BK_EINVAL, "%s: %s steps cannot be per %s here", shape->name, spec->quantizer, grain);
    return bk_steps_setup(st, spec, shape, group, err);
}

int64_t bk_steps_units(const void *st)
{
    const bk_steps *q = st;
    return q->cols / q->attr.group * (q->rows ? q->rows : 1);
}

bool bk_steps_needs_range(const void *st)
{
    (void)st;
    return true;
}

bk_tensor *bk_steps_param(const bk_steps *q, bk_params *p, const char *prefix, const char *name, int group, bool positive)
{
    char full[128];
    int64_t dim[2] = {q->rows, q->cols / q->attr.group};
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    return bk_params_add(p, full, group, positive, q->rows ? 2 : 1, q->rows ? dim : dim + 1);
}

bk_status bk_steps_declare(bk_steps *q, bk_params *p, const char *prefix, int group)
{
    q->s = bk_steps_param(q, p, prefix, "step", group, true);
    q->z = q->symmetric ? NULL : bk_steps_param(q, p, prefix, "zero", group, false);
    q->base = bk_steps_param(q, p, prefix, "base", BK_GROUP_CONSTANT, false);
    return q->s && q->base && (q->symmetric || q->z) ? BK_OK : BK_ENOMEM;
}

bk_status bk_steps_params(void *st, bk_params *p, const char *prefix)
{
    return bk_steps_declare(st, p, prefix, BK_GROUP_QUANT);
}

bk_status bk_steps_check_range(const bk_steps *q, int64_t unit, float lo, float hi, bk_error *err)
{
    if (isfinite(lo) && isfinite(hi)) return BK_OK;
    return bk_fail(err, BK_ENUMERIC, "%s: range %g..%g of unit %lld is not finite", q->name, (double)lo, (double)hi, (long long)unit);
}

#define CHUNK 256

bk_status bk_steps_init(bk_ctx *ctx, void *st, const float *lo, const float *hi)
{
    bk_steps *q = st;
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    int64_t n = bk_steps_units(st);
    for (int64_t i = 0; i < n; i += CHUNK) {
        float s[CHUNK], z[CHUNK];
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        for (int64_t j = 0; j < m; j++) {
            BK_TRY(bk_steps_check_range(q, i + j, lo[i + j], hi[i + j], err));
            bk_step_of_range(q->bits, q->symmetric, q->restricted, lo[i + j], hi[i + j], &s[j], &z[j]);
        }
        BK_TRY(bk_write(be, q->s, i, s, m, err));
        BK_TRY(bk_write(be, q->base, i, s, m, err));
        if (q->z) BK_TRY(bk_write(be, q->z, i, z, m, err));
    }
    return BK_OK;
}

bk_status bk_steps_factors(bk_ctx *ctx, void *st, const float *factor)
{
    bk_steps *q = st;
    const bk_backend *be = bk_ctx_backend(ctx);
    bk_error *err = bk_ctx_error(ctx);
    int64_t n = bk_steps_units(st);
    for (int64_t i = 0; i < n; i += CHUNK) {
        float s[CHUNK];
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        BK_TRY(bk_read(be, q->base, i, s, m, err));
        for (int64_t j = 0; j < m; j++) s[j] *= factor[i + j];
        BK_TRY(bk_write(be, q->s, i, s, m, err));
    }
    return BK_OK;
}

bk_tensor *bk_steps_apply(bk_ctx *ctx, void *st, bk_tensor *x)
{
    bk_steps *q = st;
    return bk_fakequant(ctx, x, q->s, q->z, &q->attr);
}

static bk_status copy_units(bk_ctx *ctx, const bk_steps *q, bk_tensor *to, const bk_tensor *from)
{
    const bk_backend *be = bk_ctx_backend(ctx);
    if (!to || bk_ctx_measuring(ctx)) return BK_OK;
    if (be->copy(to->data, from->data, (size_t)bk_steps_units(q) * bk_dtype_size(be->dtype)))
        return bk_fail(bk_ctx_error(ctx), BK_EDEVICE, "%s: copying its steps failed", q->name);
    return BK_OK;
}

bk_status bk_steps_export(bk_ctx *ctx, const bk_steps *q, const bk_tensor *x, const bk_tensor *s, const bk_tensor *z, const bk_tensor *v,
                          bk_codes *out)
{
    out->qmin = q->attr.qmin;
    if (out->codes)
        BK_TRY(bk_k_fakequant_fwd(ctx, &(bk_fakequant_fwd_args){.rows = q->rows, .cols = q->cols, .group = q->attr.group, .per_row = 1,
                                                                .qmin = q->attr.qmin, .qmax = q->attr.qmax, .x = x->data, .s = s->data,
                                                                .z = bk_data(z), .codes = out->codes->data, .rounding = q->attr.rounding,
                                                                .v = bk_data(v)}));
    BK_TRY(copy_units(ctx, q, out->step, s));
    return z ? copy_units(ctx, q, out->zero, z) : BK_OK;
}

bk_status bk_steps_codes(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out)
{
    const bk_steps *q = st;
    return bk_steps_export(ctx, q, x, q->s, q->z, NULL, out);
}
