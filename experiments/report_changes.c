/* What a run's config says of quantizers beyond its method and scheme: by these words two runs of one scheme are told apart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/report.h"
#include "experiments/schema_priv.h"

enum { CHOSEN = 4 };
static const char *const chooser[CHOSEN] = {"quant.weight.quantizer", "quant.activation.quantizer", "quant.key.quantizer",
                                            "quant.value.quantizer"};

static bk_status value_of(const bk_run_config *c, const bk_key *k, char **text, bk_error *err)
{
    size_t len;
    *text = NULL;
    FILE *f = open_memstream(text, &len);
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory for a value of %s", k->path);
    bk_key_print(f, c, k);
    return fclose(f) ? bk_fail(err, BK_ENOMEM, "no memory for a value of %s", k->path) : BK_OK;
}

/* Method and scheme alone; with_quantizers: and the quantizers of c, whose options have their defaults then. */
static bk_status baseline(const bk_run_config *c, bool with_quantizers, bk_run_config *out, bk_error *err)
{
    const char *const name[CHOSEN] = {c->quant.weight.quantizer, c->quant.activation.quantizer, c->quant.key.quantizer,
                                      c->quant.value.quantizer};
    char text[2 + CHOSEN][96];
    const char *sets[2 + CHOSEN];
    snprintf(text[0], sizeof text[0], "method=%s", c->method);
    snprintf(text[1], sizeof text[1], "scheme=%s", c->scheme);
    for (int i = 0; i < CHOSEN; i++) snprintf(text[2 + i], sizeof text[0], "%s=%s", chooser[i], name[i]);
    for (int i = 0; i < 2 + CHOSEN; i++) sets[i] = text[i];
    return bk_run_config_parse(NULL, 0, "", sets, with_quantizers ? 2 + CHOSEN : 2, out, err);
}

static bk_status add_change(const bk_run_config *c, const bk_run_config *base, const bk_key *k, bk_text_buffer *b, bk_error *err)
{
    char *value = NULL, *was = NULL;
    bk_status st = value_of(c, k, &value, err);
    if (!st) st = value_of(base, k, &was, err);
    if (!st && strcmp(value, was)) bk_buffer_add(b, "%s%s=%s", b->text ? ", " : "", k->path + strlen("quant."), value);
    free(value);
    free(was);
    return st;
}

static bool chooses(const bk_key *k)
{
    for (int i = 0; i < CHOSEN; i++)
        if (!strcmp(k->path, chooser[i])) return true;
    return false;
}

static bk_status add_changes(const bk_run_config *c, const bk_run_config *plain, const bk_run_config *chosen, bk_text_buffer *b,
                             bk_error *err)
{
    for (int i = 0; i < bk_key_count; i++) {
        const bk_key *k = &bk_keys[i];
        if (strncmp(k->path, "quant.", strlen("quant.")) || !bk_key_counts(c, k)) continue;
        BK_TRY(add_change(c, chooses(k) ? plain : chosen, k, b, err));
    }
    return BK_OK;
}

void bk_report_changes(const bk_report_run *r, bk_text_buffer *b)
{
    const bk_json *plugins = bk_json_get(r->manifest, "plugins");
    bk_run_config *base = r->cfg ? calloc(2, sizeof *base) : NULL;
    bk_error bad = {0};
    if (base && !baseline(r->cfg, false, &base[0], &bad) && !baseline(r->cfg, true, &base[1], &bad))
        if (add_changes(r->cfg, &base[0], &base[1], b, &bad)) bk_buffer_free(b);
    free(base);
    for (void *it = r->cfg ? NULL : bk_json_first(plugins); it; it = bk_json_next(plugins, it))
        bk_buffer_add(b, "%s%s of a plugin", b->text ? ", " : "", bk_json_key(it));
}
