/* Values: from a YAML node into a field, and from a field to text. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/names.h"
#include "experiments/schema_priv.h"
#include "experiments/suggest.h"

typedef struct target {
    void *field;
    const bk_key *key;
    const bk_yaml *y;
    bk_error *err;
} target;

#define FAIL(t, at, ...) bk_yaml_fail((t)->y, at, (t)->err, __VA_ARGS__)

static bool is_number(const char *s)
{
    s += *s == '-' || *s == '+';
    bool digits = false;
    for (; isdigit((unsigned char)*s); s++) digits = true;
    if (*s == '.')
        for (s++; isdigit((unsigned char)*s); s++) digits = true;
    if (!digits) return false;
    if (*s != 'e' && *s != 'E') return *s == 0;
    s++;
    s += *s == '-' || *s == '+';
    if (!isdigit((unsigned char)*s)) return false;
    while (isdigit((unsigned char)*s)) s++;
    return *s == 0;
}

static bool is_whole(const char *s)
{
    s += *s == '-' || *s == '+';
    if (s[0] == '0' && s[1]) return false; /* 010 is octal in one YAML and decimal in another */
    return *s && strspn(s, "0123456789") == strlen(s);
}

/* A scalar without quotes; `wanted` completes "a ... is expected". */
static bk_status plain(const target *t, const bk_yaml_node *v, const char *wanted)
{
    const char *path = t->key->path;
    if (v->kind != BK_NODE_SCALAR)
        return FAIL(t, v, "%s: %s is expected, not a %s", path, wanted, v->kind == BK_NODE_LIST ? "list" : "map");
    if (v->quoted) return FAIL(t, v, "%s: %s is expected, not text: take the quotes away from '%.60s'", path, wanted, v->text);
    if (!*v->text) return FAIL(t, v, "%s has no value: write one or leave the line out", path);
    return BK_OK;
}

static bk_status range(const target *t, const bk_yaml_node *v, double x)
{
    if (x >= t->key->min && x <= t->key->max) return BK_OK;
    return FAIL(t, v, "%s: %s is not in the range %.10g to %.10g", t->key->path, v->text, t->key->min, t->key->max);
}

/* Index of the word among the key's choices. */
static bk_status choice(const target *t, const bk_yaml_node *v, const char *word, int *out)
{
    bk_choices c;
    bk_choices_of(t->key->choices, &c);
    *out = bk_choices_find(&c, word);
    if (*out >= 0) return BK_OK;
    char near[128];
    const char *plugin = t->key->choices == bk_quantizer_choices ? " (is --plugin FILE.so missing?)" : "";
    bk_suggest_text(word, c.word, (size_t)c.n, near, sizeof near);
    return FAIL(t, v, "%s: '%.60s' is not one of %s%s%s", t->key->path, word, t->key->choices, near, plugin);
}

static bk_status whole(const target *t, const bk_yaml_node *v, int64_t *out)
{
    BK_TRY(plain(t, v, "a whole number"));
    if (!is_whole(v->text)) {
        char *end;
        double x = strtod(v->text, &end);
        bool round = is_number(v->text) && x == floor(x) && fabs(x) < 1e15;
        if (round) return FAIL(t, v, "%s: a whole number is expected, not '%.60s': write %.0f", t->key->path, v->text, x);
        return FAIL(t, v, "%s: a whole number is expected, not '%.60s'", t->key->path, v->text);
    }
    errno = 0;
    long long n = strtoll(v->text, NULL, 10);
    if (errno) return FAIL(t, v, "%s: %.60s is too large", t->key->path, v->text);
    *out = n;
    return range(t, v, (double)n);
}

static bk_status yes_or_no(const target *t, const bk_yaml_node *v, bool *yes)
{
    BK_TRY(plain(t, v, "true or false"));
    *yes = strcmp(v->text, "true") == 0;
    if (*yes || strcmp(v->text, "false") == 0) return BK_OK;
    return FAIL(t, v, "%s: true or false is expected, not '%.60s'", t->key->path, v->text);
}

static bk_status set_bool(const target *t, const bk_yaml_node *v)
{
    return yes_or_no(t, v, t->field);
}

static bk_status set_option_bool(const target *t, const bk_yaml_node *v)
{
    bool yes;
    BK_TRY(yes_or_no(t, v, &yes));
    *(double *)t->field = yes;
    return BK_OK;
}

static bk_status set_int(const target *t, const bk_yaml_node *v)
{
    return whole(t, v, t->field);
}

static bk_status set_option_int(const target *t, const bk_yaml_node *v)
{
    int64_t n;
    BK_TRY(whole(t, v, &n));
    *(double *)t->field = (double)n;
    return BK_OK;
}

static bk_status set_bits(const target *t, const bk_yaml_node *v)
{
    int64_t n;
    int unused;
    BK_TRY(whole(t, v, &n));
    BK_TRY(choice(t, v, v->text, &unused));
    *(int *)t->field = (int)n;
    return BK_OK;
}

static bk_status set_real(const target *t, const bk_yaml_node *v)
{
    BK_TRY(plain(t, v, "a number"));
    if (!is_number(v->text)) return FAIL(t, v, "%s: a number is expected, not '%.60s'", t->key->path, v->text);
    double x = strtod(v->text, NULL);
    if (!isfinite(x)) return FAIL(t, v, "%s: %.60s is beyond what a number can hold", t->key->path, v->text);
    BK_TRY(range(t, v, x));
    *(double *)t->field = x == 0 ? 0 : x; /* no negative zero */
    return BK_OK;
}

static bk_status text_of(const target *t, const bk_yaml_node *v, char *to, size_t size)
{
    if (v->kind != BK_NODE_SCALAR)
        return FAIL(t, v, "%s: text is expected, not a %s", t->key->path, v->kind == BK_NODE_LIST ? "list" : "map");
    if (!v->quoted && (!*v->text || strcmp(v->text, "~") == 0 || strcmp(v->text, "null") == 0))
        return FAIL(t, v, "%s has no value: write one or leave the line out", t->key->path);
    size_t n = strlen(v->text);
    if (n >= size) return FAIL(t, v, "%s: %zu bytes are too long, %zu fit", t->key->path, n, size - 1);
    memcpy(to, v->text, n + 1);
    return BK_OK;
}

static bk_status set_word(const target *t, const bk_yaml_node *v)
{
    return text_of(t, v, t->field, BK_WORD_SIZE);
}

static bk_status set_path(const target *t, const bk_yaml_node *v)
{
    return text_of(t, v, t->field, BK_PATH_SIZE);
}

static bk_status set_enum(const target *t, const bk_yaml_node *v)
{
    char word[BK_WORD_SIZE];
    BK_TRY(text_of(t, v, word, sizeof word));
    return choice(t, v, word, t->field);
}

static bk_status set_either(const target *t, const bk_yaml_node *v)
{
    char word[BK_WORD_SIZE];
    int which;
    BK_TRY(text_of(t, v, word, sizeof word));
    BK_TRY(choice(t, v, word, &which));
    *(bool *)t->field = which == 1;
    return BK_OK;
}

static bk_status set_name(const target *t, const bk_yaml_node *v)
{
    char word[BK_WORD_SIZE];
    int unused;
    BK_TRY(text_of(t, v, word, sizeof word));
    BK_TRY(choice(t, v, word, &unused));
    snprintf(t->field, BK_NAME_SIZE, "%.*s", BK_NAME_SIZE - 1, word);
    return BK_OK;
}

static bk_status set_int_or(const target *t, const bk_yaml_node *v)
{
    if (v->kind == BK_NODE_SCALAR && strcmp(v->text, t->key->choices) == 0) {
        *(int64_t *)t->field = -1;
        return BK_OK;
    }
    return whole(t, v, t->field);
}

/* Elements of a list value, one after the other. */
static const bk_yaml_node *first(const bk_yaml *y, const bk_yaml_node *v)
{
    return v->child < 0 ? NULL : &y->node[v->child];
}

static const bk_yaml_node *after(const bk_yaml *y, const bk_yaml_node *v)
{
    return v->next < 0 ? NULL : &y->node[v->next];
}

static bk_status set_flags(const target *t, const bk_yaml_node *v)
{
    if (v->kind != BK_NODE_LIST) return FAIL(t, v, "%s: a list is expected, such as [%s]", t->key->path, "ppl");
    unsigned flags = 0;
    for (const bk_yaml_node *e = first(t->y, v); e; e = after(t->y, e)) {
        char word[BK_WORD_SIZE];
        int bit;
        BK_TRY(text_of(t, e, word, sizeof word));
        BK_TRY(choice(t, e, word, &bit));
        if (flags >> bit & 1) return FAIL(t, e, "%s: '%s' stands there twice", t->key->path, word);
        flags |= 1u << bit;
    }
    *(unsigned *)t->field = flags;
    return BK_OK;
}

static bk_status set_prefix(const target *t, const bk_yaml_node *v)
{
    bk_run_config *c = (bk_run_config *)((char *)t->field - offsetof(bk_run_config, prefix));
    int64_t n = 0;
    if (v->kind != BK_NODE_LIST) {
        char word[BK_WORD_SIZE];
        BK_TRY(text_of(t, v, word, sizeof word));
        BK_TRY(choice(t, v, word, &c->prefix.mode));
    } else {
        for (const bk_yaml_node *e = first(t->y, v); e; e = after(t->y, e)) {
            int64_t id = 0;
            if (n == BK_PREFIX_IDS) return FAIL(t, e, "%s: more than %d ids", t->key->path, BK_PREFIX_IDS);
            BK_TRY(whole(t, e, &id));
            c->prefix.ids[n++] = (int32_t)id;
        }
        if (n == 0) return FAIL(t, v, "%s: an empty list: write none", t->key->path);
        c->prefix.mode = BK_PREFIX_GIVEN;
    }
    c->prefix.n_ids = n;
    memset(c->prefix.ids + n, 0, (size_t)(BK_PREFIX_IDS - n) * sizeof c->prefix.ids[0]);
    return BK_OK;
}

/* What quant.skip can name: the quantized sites, then the linears. */
#define SKIP_NAMES (BK_SITE_COUNT + BK_W_COUNT)
static size_t skip_names(const char *names[SKIP_NAMES])
{
    size_t n = 0;
    for (int i = 0; i < BK_SITE_COUNT; i++)
        if (bk_site_quantized[i]) names[n++] = bk_site_name[i];
    for (int i = 0; i < BK_W_COUNT; i++) names[n++] = bk_linear_name[i];
    return n;
}

static bk_status check_skip_name(const target *t, const bk_yaml_node *v, const char *name)
{
    const char *names[SKIP_NAMES];
    size_t n = skip_names(names);
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return BK_OK;
    char near[128];
    bk_suggest_text(name, names, n, near, sizeof near);
    return FAIL(t, v, "%s: '%.60s' is no quantized site and no linear (brick list sites)%s", t->key->path, name, near);
}

static bk_status set_skip_entry(const target *t, const bk_yaml_node *map, bk_skip_entry *out)
{
    static const char *const known[] = {"block", "site"};
    *out = (bk_skip_entry){.block = -1};
    bool seen[2] = {false, false};
    if (map->kind != BK_NODE_MAP) return FAIL(t, map, "%s: a map is expected, such as {block: 0, site: down_in}", t->key->path);
    for (const bk_yaml_node *k = first(t->y, map); k;) {
        const bk_yaml_node *v = after(t->y, k);
        const char *name = k->kind == BK_NODE_SCALAR ? k->text : "";
        int which = strcmp(name, "block") == 0 ? 0 : strcmp(name, "site") == 0 ? 1 : -1;
        char near[128];
        if (which < 0)
            return FAIL(t, k, "%s: unknown key '%.60s'%s", t->key->path, name, bk_suggest_text(name, known, 2, near, sizeof near));
        if (seen[which]) return FAIL(t, k, "%s: '%s' stands there twice", t->key->path, name);
        seen[which] = true;
        if (which == 0) {
            BK_TRY(whole(t, v, &out->block));
        } else {
            BK_TRY(text_of(t, v, out->site, sizeof out->site));
            BK_TRY(check_skip_name(t, v, out->site));
        }
        k = after(t->y, v);
    }
    return seen[0] || seen[1] ? BK_OK : FAIL(t, map, "%s: an empty entry: name a block, a site or both", t->key->path);
}

static bk_status set_skip(const target *t, const bk_yaml_node *v)
{
    bk_run_config *c = (bk_run_config *)((char *)t->field - offsetof(bk_run_config, quant.n_skip));
    if (v->kind != BK_NODE_LIST) return FAIL(t, v, "%s: a list is expected, such as [{block: 0, site: down_in}]", t->key->path);
    int64_t n = 0;
    for (const bk_yaml_node *e = first(t->y, v); e; e = after(t->y, e)) {
        if (n == BK_SKIP_ENTRIES) return FAIL(t, e, "%s: more than %d entries", t->key->path, BK_SKIP_ENTRIES);
        BK_TRY(set_skip_entry(t, e, &c->quant.skip[n]));
        n++;
    }
    c->quant.n_skip = n;
    return BK_OK;
}

void bk_yaml_print_text(FILE *to, const char *text)
{
    static const char *const meaning[] = {"true", "false", "null", "all", "auto", "none"};
    bool safe = isalpha((unsigned char)*text);
    for (const char *p = text; *p && safe; p++) safe = isalnum((unsigned char)*p) || strchr("_-./", *p);
    for (size_t i = 0; i < sizeof meaning / sizeof meaning[0]; i++) safe = safe && strcasecmp(text, meaning[i]) != 0;
    if (safe) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(to, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", to);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(to, "\\x%02X", *p);
        else if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) /* C1 controls, among them a line break */
            fprintf(to, "\\x%02X", *++p);
        else if (*p == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9)) /* line and paragraph separator */
            fprintf(to, "\\u20%02X", p[2] - 0x80), p += 2;
        else if (*p == 0xef && p[1] == 0xbb && p[2] == 0xbf)
            fputs("\\uFEFF", to), p += 2;
        else if (*p == 0xef && p[1] == 0xbf && p[2] >= 0xbe)
            fprintf(to, "\\uFFF%c", p[2] == 0xbe ? 'E' : 'F'), p += 2;
        else
            fputc(*p, to);
    }
    fputc('"', to);
}

void bk_real_text(double x, char *to, size_t size)
{
    if (x == floor(x) && fabs(x) < 1e15) {
        snprintf(to, size, "%lld", (long long)x);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(to, size, "%.*g", digits, x);
        if (strtod(to, NULL) == x) break;
    }
}

static void print_bool(FILE *to, const void *field, const bk_key *key)
{
    (void)key;
    fputs(*(const bool *)field ? "true" : "false", to);
}

static void print_either(FILE *to, const void *field, const bk_key *key)
{
    bk_choices c;
    bk_choices_of(key->choices, &c);
    fputs(c.word[*(const bool *)field ? 1 : 0], to);
}

static void print_bits(FILE *to, const void *field, const bk_key *key)
{
    (void)key;
    fprintf(to, "%d", *(const int *)field);
}

static void print_int(FILE *to, const void *field, const bk_key *key)
{
    int64_t n = *(const int64_t *)field;
    if (key->type == BK_KEY_INT_OR && n < 0)
        fputs(key->choices, to);
    else
        fprintf(to, "%lld", (long long)n);
}

static void print_number(FILE *to, const void *field, const bk_key *key)
{
    char text[40];
    (void)key;
    bk_real_text(*(const double *)field, text, sizeof text);
    fputs(text, to);
}

static void print_option_bool(FILE *to, const void *field, const bk_key *key)
{
    (void)key;
    fputs(*(const double *)field != 0 ? "true" : "false", to);
}

static void print_string(FILE *to, const void *field, const bk_key *key)
{
    (void)key;
    bk_yaml_print_text(to, field);
}

static void print_enum(FILE *to, const void *field, const bk_key *key)
{
    bk_choices c;
    bk_choices_of(key->choices, &c);
    int i = *(const int *)field;
    fputs(i >= 0 && i < c.n ? c.word[i] : "?", to);
}

static void print_flags(FILE *to, const void *field, const bk_key *key)
{
    bk_choices c;
    bk_choices_of(key->choices, &c);
    const char *comma = "";
    fputc('[', to);
    for (int i = 0; i < c.n; i++) {
        if (!(*(const unsigned *)field >> i & 1)) continue;
        fprintf(to, "%s%s", comma, c.word[i]);
        comma = ", ";
    }
    fputc(']', to);
}

static void print_prefix(FILE *to, const void *field, const bk_key *key)
{
    const bk_run_config *c = (const bk_run_config *)((const char *)field - offsetof(bk_run_config, prefix));
    if (c->prefix.mode != BK_PREFIX_GIVEN) {
        print_enum(to, &c->prefix.mode, key);
        return;
    }
    for (int64_t i = 0; i < c->prefix.n_ids; i++) fprintf(to, "%s%d", i ? ", " : "[", c->prefix.ids[i]);
    fputc(']', to);
}

static void print_skip(FILE *to, const void *field, const bk_key *key)
{
    (void)key;
    const bk_run_config *c = (const bk_run_config *)((const char *)field - offsetof(bk_run_config, quant.n_skip));
    fputc('[', to);
    for (int64_t i = 0; i < c->quant.n_skip; i++) {
        const bk_skip_entry *e = &c->quant.skip[i];
        fprintf(to, "%s{", i ? ", " : "");
        if (e->block >= 0) fprintf(to, "block: %lld%s", (long long)e->block, e->site[0] ? ", " : "");
        if (e->site[0]) fprintf(to, "site: %s", e->site);
        fputc('}', to);
    }
    fputc(']', to);
}

/* One line per bk_key_type, in its order. */
static const struct {
    bk_status (*set)(const target *t, const bk_yaml_node *v);
    void (*print)(FILE *to, const void *field, const bk_key *key);
} types[] = {
    [BK_KEY_BOOL] = {set_bool, print_bool},
    [BK_KEY_EITHER] = {set_either, print_either},
    [BK_KEY_INT] = {set_int, print_int},
    [BK_KEY_BITS] = {set_bits, print_bits},
    [BK_KEY_REAL] = {set_real, print_number},
    [BK_KEY_ENUM] = {set_enum, print_enum},
    [BK_KEY_NAME] = {set_name, print_string},
    [BK_KEY_WORD] = {set_word, print_string},
    [BK_KEY_PATH] = {set_path, print_string},
    [BK_KEY_INT_OR] = {set_int_or, print_int},
    [BK_KEY_FLAGS] = {set_flags, print_flags},
    [BK_KEY_PREFIX] = {set_prefix, print_prefix},
    [BK_KEY_SKIP] = {set_skip, print_skip},
    [BK_KEY_OPTION_INT] = {set_option_int, print_number},
    [BK_KEY_OPTION_BOOL] = {set_option_bool, print_option_bool},
};

bk_status bk_field_set(void *field, const bk_key *key, const bk_yaml *y, const bk_yaml_node *v, bk_error *err)
{
    target t = {field, key, y, err};
    return types[key->type].set(&t, v);
}

bk_status bk_key_set(bk_run_config *c, const bk_key *key, const bk_yaml *y, const bk_yaml_node *v, bk_error *err)
{
    return bk_field_set((char *)c + key->offset, key, y, v, err);
}

void bk_key_print(FILE *to, const bk_run_config *c, const bk_key *key)
{
    types[key->type].print(to, (const char *)c + key->offset, key);
}
