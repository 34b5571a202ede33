/* From a config to text: the resolved YAML, differences, what stages hash, the help. */
#include <stdlib.h>
#include <string.h>

#include "experiments/schema_priv.h"
#include "experiments/scheme.h"
#include "quant/plugin.h"

const char *const bk_run_result_keys[] = {"!threads", "!store.keep", NULL};

/* A value as text, malloc'd; NULL when memory is out. */
static char *value_text(const bk_run_config *c, const bk_key *key)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    if (!f) return NULL;
    bk_key_print(f, c, key);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

/* Opens the sections of `path` that `before` was not in; returns the leaf and its indentation. */
static const char *open_sections(FILE *to, const char *before, const char *path, int *indent)
{
    *indent = 0;
    for (const char *dot; (dot = strchr(path, '.'));) {
        size_t n = (size_t)(dot - path) + 1;
        bool inside = before && strncmp(before, path, n) == 0;
        if (!inside) fprintf(to, "%*s%.*s:\n", *indent, "", (int)n - 1, path);
        before = inside ? before + n : NULL;
        path += n;
        *indent += 2;
    }
    return path;
}

char *bk_run_config_write(const bk_run_config *c)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    if (!f) return NULL;
    const char *before = NULL;
    for (int i = 0; i < bk_key_count; i++) {
        int indent;
        if (!bk_key_counts(c, &bk_keys[i])) continue;
        const char *leaf = open_sections(f, before, bk_keys[i].path, &indent);
        before = bk_keys[i].path;
        fprintf(f, "%*s%s: ", indent, "", leaf);
        bk_key_print(f, c, &bk_keys[i]);
        fputc('\n', f);
    }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

static bool starts_with(const char *path, const char *prefix)
{
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

/* Whether a list of prefixes takes a key; "!prefix" leaves keys out, and a list of these alone takes all others. */
static bool taken(const char *path, const char *const *prefixes)
{
    bool in = false, only_out = true;
    for (const char *const *p = prefixes; p && *p; p++) {
        if (**p == '!') {
            if (starts_with(path, *p + 1)) return false;
            continue;
        }
        only_out = false;
        in = in || starts_with(path, *p);
    }
    return in || only_out;
}

const char *bk_run_config_diff(const bk_run_config *a, const bk_run_config *b, const char *const *prefixes, char *in_a, char *in_b,
                               size_t size)
{
    for (int i = 0; i < bk_key_count; i++) {
        if (!taken(bk_keys[i].path, prefixes)) continue;
        if (!bk_key_counts(a, &bk_keys[i]) || !bk_key_counts(b, &bk_keys[i])) continue; /* the quantizers differ, and their key comes first */
        char *x = value_text(a, &bk_keys[i]), *y = value_text(b, &bk_keys[i]);
        bool same = x && y && strcmp(x, y) == 0;
        if (!same) {
            snprintf(in_a, size, "%s", x ? x : "?");
            snprintf(in_b, size, "%s", y ? y : "?");
        }
        free(x);
        free(y);
        if (!same) return bk_keys[i].path;
    }
    return NULL;
}

static bool names_a_key(const char *prefix)
{
    for (int i = 0; i < bk_key_count; i++)
        if (starts_with(bk_keys[i].path, prefix + (*prefix == '!'))) return true;
    return false;
}

/* Quantizers of the same name from two plugins are two. */
static void print_for_hash(FILE *to, const bk_run_config *c, const bk_key *k)
{
    fprintf(to, "%s: ", k->path);
    bk_key_print(to, c, k);
    const char *plugin = k->choices == bk_quantizer_choices ? bk_plugin_sha256((const char *)c + k->offset) : NULL;
    if (plugin) fprintf(to, " of plugin %s", plugin);
    fputc('\n', to);
}

bk_status bk_config_digest_keys(const bk_run_config *c, const char *const *prefixes, char **text, bk_error *err)
{
    for (const char *const *p = prefixes; p && *p; p++)
        if (!names_a_key(*p)) return bk_fail(err, BK_EINVAL, "no key of a config starts with '%s'", *p);
    size_t len;
    *text = NULL;
    FILE *f = open_memstream(text, &len);
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory for the text of a config");
    for (int i = 0; i < bk_key_count; i++)
        if (taken(bk_keys[i].path, prefixes) && bk_key_counts(c, &bk_keys[i])) print_for_hash(f, c, &bk_keys[i]);
    if (fclose(f) == 0) return BK_OK;
    free(*text);
    *text = NULL;
    return bk_fail(err, BK_ENOMEM, "no memory for the text of a config");
}

static void print_type(FILE *to, const bk_key *k)
{
    switch (k->type) {
    case BK_KEY_OPTION_BOOL:
    case BK_KEY_BOOL: fputs("true|false", to); return;
    case BK_KEY_REAL: fprintf(to, "number %.7g..%.7g", k->min, k->max); return;
    case BK_KEY_OPTION_INT:
    case BK_KEY_INT: fprintf(to, "whole number %.0f..%.0f", k->min, k->max); return;
    case BK_KEY_INT_OR: fprintf(to, "whole number %.0f..%.0f | %s", k->min, k->max, k->choices); return;
    case BK_KEY_FLAGS: fprintf(to, "list of %s", k->choices); return;
    case BK_KEY_PREFIX: fprintf(to, "%s|[ids]", k->choices); return;
    case BK_KEY_SKIP: fputs("list of {block, site}", to); return;
    case BK_KEY_PATH: fputs("path", to); return;
    case BK_KEY_BITS:
    case BK_KEY_EITHER:
    case BK_KEY_ENUM:
    case BK_KEY_NAME: fputs(k->choices, to); return;
    case BK_KEY_WORD: fputs("text", to); return;
    }
}

/* What a method sets has no default of its own: that of the usual method is told. */
void bk_key_default(const bk_key *k, char *to, size_t size)
{
    const bk_method *usual = bk_method_find(bk_keys[bk_key_find("method")].initial);
    const char *value = strcmp(k->path, "scheme") == 0 ? usual->scheme : bk_method_value(usual, k->path);
    to[0] = 0;
    if (value) snprintf(to, size, "default: the method's; %s %s", usual->name, value);
    else if (!k->initial) snprintf(to, size, "default: the scheme's");
    else if (*k->initial) snprintf(to, size, "default %s", k->initial);
}

void bk_key_help(FILE *to, int indent, const bk_key *k)
{
    char initial[128];
    bk_key_default(k, initial, sizeof initial);
    fprintf(to, "%*s%s: ", indent, "", k->path);
    print_type(to, k);
    if (*initial) fprintf(to, " (%s)", initial);
    fprintf(to, "\n%*s%s\n", indent + 4, "", k->about);
}

void bk_run_config_help(FILE *to)
{
    for (int i = 0; i < bk_key_count; i++) bk_key_help(to, 0, &bk_keys[i]);
}
