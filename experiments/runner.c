#include "experiments/runner.h"

#include <string.h>

#include "experiments/backends.h"

bk_status bk_runner_open_raw(bk_runner *r, const bk_lab *lab, const bk_rotation_spec *rotation, bk_error *err)
{
    *r = (bk_runner){.be = lab->be};
    BK_TRY(bk_source_open(lab->model, rotation, &r->src, err));
    r->block.r3 = bk_source_r3(r->src);
    r->block.r4 = bk_source_r4(r->src);
    return bk_weights_alloc(bk_source_config(r->src), &r->weights, err);
}

bk_status bk_runner_set_prefix(bk_runner *r, const int32_t *ids, int64_t n, bk_error *err)
{
    BK_TRY(bk_prefix_compute(r->be, r->src, ids, n, &r->prefix, err));
    r->block.prefix_len = n;
    return BK_OK;
}

static bk_status open_quantized(bk_runner *r, const bk_lab *lab, const bk_runner_choice *choice, bk_error *err)
{
    if (choice->prefix || (choice->rotate && strcmp(choice->rotate, "none")))
        return bk_fail(err, BK_EINVAL, "%s is quantized already: --rotate and --prefix are for raw models",
                       bk_model_path(lab->model));
    r->quantized = lab->quantized;
    r->block = (bk_block_options){.quant = bk_quantized_quant(r->quantized),
                                  .r3 = bk_quantized_r3(r->quantized),
                                  .r4 = bk_quantized_r4(r->quantized),
                                  .prefix_len = bk_quantized_prefix(r->quantized)->n};
    return bk_source_open(lab->model, NULL, &r->src, err);
}

bk_status bk_runner_open(bk_runner *r, const bk_lab *lab, const bk_runner_choice *choice, bk_error *err)
{
    bk_rotation_spec rotation;
    bool automatic;
    int32_t ids[BK_PREFIX_MAX];
    int64_t n;
    *r = (bk_runner){.be = lab->be};
    if (lab->quantized) return open_quantized(r, lab, choice, err);
    BK_TRY(bk_rotation_parse(choice->rotate ? choice->rotate : "none", &rotation, err));
    rotation.seed = (uint64_t)choice->seed;
    BK_TRY(bk_prefix_parse(choice->prefix ? choice->prefix : "none", &automatic, ids, &n, err));
    if (automatic)
        return bk_fail(err, BK_EINVAL,
                       "--prefix auto is not possible here: `brick outliers` prints the ids to give instead");
    BK_TRY(bk_prefix_check(ids, n, bk_model_config(lab->model)->vocab, err));
    BK_TRY(bk_runner_open_raw(r, lab, &rotation, err));
    return bk_runner_set_prefix(r, ids, n, err);
}

void bk_runner_close(bk_runner *r)
{
    bk_weights_free(&r->weights);
    bk_prefix_free(&r->prefix);
    bk_source_close(r->src);
    *r = (bk_runner){0};
}

bk_status bk_runner_block(const bk_runner *r, int64_t tokens, bk_block **out, bk_error *err)
{
    bk_block_options opt = r->block;
    opt.tokens = tokens;
    return bk_block_create(out, r->be, bk_source_config(r->src), &opt, err);
}

bk_status bk_runner_load(bk_runner *r, int64_t layer, bk_block *b, bk_error *err)
{
    if (r->quantized) return bk_quantized_load(r->quantized, layer, b, err);
    BK_TRY(bk_source_block(r->src, layer, &r->weights, err));
    BK_TRY(bk_block_load(b, &r->weights, err));
    return r->prefix.n ? bk_block_set_prefix(b, bk_prefix_k(&r->prefix, layer), bk_prefix_v(&r->prefix, layer), err)
                       : BK_OK;
}

const bk_prefix *bk_runner_prefix(const bk_runner *r)
{
    return r->quantized ? bk_quantized_prefix(r->quantized) : &r->prefix;
}

const bk_backend *bk_runner_backend(const char *name, int64_t threads, bk_error *err)
{
    const bk_backend *be = bk_backend_named(name);
    if (!be) {
        bk_fail(err, BK_EINVAL, "there is no backend '%s' (brick list backends)", name);
        return NULL;
    }
    if (be->set_threads && threads) be->set_threads((int)threads);
    bk_status st = be->start ? be->start() : BK_OK;
    if (!st) return be;
    bk_fail(err, st, "backend %s: no memory for the matrix products of %d threads: raise the limit (ulimit -v) or use fewer threads", name,
            be->threads ? be->threads() : 1);
    return NULL;
}

bk_status bk_runner_bos(const char *text, bool *automatic, bk_error *err)
{
    *automatic = !strcmp(text, "auto");
    return *automatic || !strcmp(text, "none") ? BK_OK : bk_fail(err, BK_EINVAL, "--bos '%s': want auto or none", text);
}
