/* What can be known of a run's model without its weights. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/block.h"
#include "experiments/plan.h"
#include "io/file.h"
#include "io/gguf.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static bool has_safetensors(const char *dir)
{
    bool found = false;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && !found && (e = readdir(d));) found = ends_with(e->d_name, ".safetensors");
    if (d) closedir(d);
    return found;
}

static bk_status from_json(const char *path, bk_config *out, bk_error *err)
{
    bk_json *root;
    BK_TRY(bk_json_load(path, &root, err));
    bk_status st = bk_config_from_json(root, path, out, err);
    bk_json_free(root);
    return st;
}

static bk_status from_gguf(const char *path, bk_config *out, bk_error *err)
{
    bk_gguf *g;
    BK_TRY(bk_gguf_open(path, &g, err));
    bk_status st = bk_config_from_gguf(g, out, err);
    bk_gguf_close(g);
    return st;
}

/* config.json of `dir` or of the model/ in it. */
static bk_status from_folder(const char *dir, bk_config *out, bool *known, bool *weights, bk_error *err)
{
    char *inner = bk_path_join(dir, "model");
    bk_status st = inner ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    const char *candidate[] = {dir, inner};
    for (int i = 0; !st && !*known && i < 2; i++) {
        char *path = bk_path_join(candidate[i], "config.json");
        *known = path && bk_exists(path);
        *weights = *known && has_safetensors(candidate[i]);
        if (!path) st = bk_fail(err, BK_ENOMEM, "no memory");
        else if (*known) st = from_json(path, out, err);
        free(path);
    }
    free(inner);
    return st;
}

static bk_status from_any(const char *model, bk_config *out, bool *known, bool *weights, bk_error *err)
{
    if (bk_is_dir(model)) return from_folder(model, out, known, weights, err);
    *known = true;
    if (ends_with(model, ".json")) return from_json(model, out, err);
    *weights = true;
    return from_gguf(model, out, err);
}

bk_status bk_plan_shapes(const char *model, bk_config *out, bool *known, bool *weights, bk_error *err)
{
    *known = *weights = false;
    bk_status st = bk_exists(model) ? from_any(model, out, known, weights, err) : BK_OK;
    return st == BK_EUNSUP ? err->code = BK_EFORMAT : st;
}

/* --- quantizers --- */

static void try_one(const bk_qspec *spec, const bk_qshape *shape, char *list, size_t size, bk_error *first)
{
    bk_qinst q;
    bk_error err = {0};
    if (!bk_qinst_setup(&q, spec, shape, &err)) return;
    size_t at = strlen(list);
    snprintf(list + at, size - at, "%s%s", at ? ", " : "", shape->name);
    if (!first->code) *first = err;
}

bk_status bk_plan_quantizers(const bk_run_config *c, const bk_config *shapes, bk_error *err)
{
    char list[512] = "";
    bk_error first = {0};
    bk_block_quant quant = {c->quant.weight, c->quant.activation, c->quant.key, c->quant.value};
    for (bk_linear_id w = 0; w < BK_W_COUNT; w++) {
        bk_qshape shape = {.name = bk_linear_name[w]};
        bk_linear_shape(shapes, w, &shape.rows, &shape.cols);
        try_one(&c->quant.weight, &shape, list, sizeof list, &first);
    }
    for (bk_site_id s = 0; s < BK_SITE_COUNT; s++) {
        if (!bk_site_quantized[s]) continue;
        bk_qshape shape = bk_site_shape(shapes, s);
        try_one(bk_site_spec(&quant, s), &shape, list, sizeof list, &first);
    }
    return first.code ? bk_fail(err, BK_EINVAL, "quantizers do not fit at %s: %s", list, first.msg) : BK_OK;
}
