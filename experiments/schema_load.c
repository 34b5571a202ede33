/* From texts to a config: walk the trees, then lay default, method, scheme, file, environment and command line over one another. */
#include <stdlib.h>
#include <string.h>

#include "experiments/scheme.h"
#include "experiments/schema_priv.h"
#include "experiments/suggest.h"
#include "io/file.h"

#define MAX_CONFIG_BYTES (1u << 20)

/* One "key: value" of a source, not yet in the config. */
typedef struct assignment {
    int key; /* index in bk_keys */
    bk_key_source source;
    const bk_yaml *y;
    const bk_yaml_node *value;
} assignment;

typedef struct loader {
    bk_yaml *tree; /* sources in order of precedence: the file, the environment, each --set */
    int n_trees;
    assignment *list;
    int n, room;
    bk_error *err;
} loader;

static bk_status assign(loader *l, int key, bk_key_source source, const bk_yaml *y, const bk_yaml_node *value)
{
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 64;
        assignment *more = realloc(l->list, (size_t)room * sizeof *more);
        if (!more) return bk_fail(l->err, BK_ENOMEM, "no memory for the config");
        l->list = more;
        l->room = room;
    }
    l->list[l->n++] = (assignment){key, source, y, value};
    return BK_OK;
}

bool bk_key_is_section(const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < bk_key_count; i++)
        if (strncmp(bk_keys[i].path, path, n) == 0 && bk_keys[i].path[n] == '.') return true;
    return false;
}

/* Names that can stand in a section ("" = the top), each once; the words live in `room`. */
typedef struct words {
    char room[BK_KEY_LIMIT][48];
    const char *word[BK_KEY_LIMIT];
    size_t n;
} words;

static void members(const char *section, words *w)
{
    size_t skip = *section ? strlen(section) + 1 : 0;
    w->n = 0;
    for (int i = 0; i < bk_key_count; i++) {
        const char *path = bk_keys[i].path;
        if (skip && (strncmp(path, section, skip - 1) != 0 || path[skip - 1] != '.')) continue;
        size_t len = strcspn(path + skip, ".");
        if (w->n && strlen(w->word[w->n - 1]) == len && strncmp(w->word[w->n - 1], path + skip, len) == 0) continue;
        snprintf(w->room[w->n], sizeof w->room[0], "%.*s", (int)len, path + skip);
        w->word[w->n] = w->room[w->n];
        w->n++;
    }
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* quant.weight.<x> or deeper: what is no key there may be an option of a quantizer that is not loaded. */
static bool is_of_quantizer(const char *path)
{
    char place[128];
    const char *dot = strncmp(path, "quant.", 6) == 0 ? strchr(path + 6, '.') : NULL;
    snprintf(place, sizeof place, "%.*s", dot ? (int)(dot - path) : 0, path);
    return dot && bk_key_is_section(place);
}

/* Keys of other sections that end in exactly this name, three at most; false: there are none. */
static bool keys_that_end_in(const char *leaf, char *to, size_t size)
{
    size_t n = 0;
    for (int i = 0, found = 0; i < bk_key_count && found < 3 && n < size; i++) {
        if (strcmp(leaf_of(bk_keys[i].path), leaf) != 0 || leaf_of(bk_keys[i].path) == bk_keys[i].path) continue;
        n += (size_t)snprintf(to + n, size - n, "%s'%s'", found++ ? " or " : ", did you mean ", bk_keys[i].path);
    }
    if (n && n < size) snprintf(to + n, size - n, "?");
    return n > 0;
}

/* A name without its section is that of a key; else the nearest name in the same section, else a key of that name in another one. */
const char *bk_key_nearest(const char *path, char *to, size_t size)
{
    words w;
    const char *leaf = leaf_of(path);
    char section[128];
    snprintf(section, sizeof section, "%.*s", leaf == path ? 0 : (int)(leaf - path - 1), path);
    if (!*section && keys_that_end_in(leaf, to, size)) return to;
    members(section, &w);
    const char *near = bk_suggest(leaf, w.word, w.n);
    if (near) {
        snprintf(to, size, ", did you mean '%s%s%s'?", section, *section ? "." : "", near);
        return to;
    }
    if (is_of_quantizer(path)) {
        snprintf(to, size, " (no quantizer here has it; is --plugin FILE.so missing?)");
        return to;
    }
    for (int i = 0; i < bk_key_count; i++) w.word[i] = leaf_of(bk_keys[i].path);
    near = bk_suggest(leaf, w.word, (size_t)bk_key_count);
    to[0] = 0;
    for (int i = 0; i < bk_key_count && near; i++) {
        if (strcmp(leaf_of(bk_keys[i].path), near) != 0) continue;
        snprintf(to, size, ", did you mean '%s'?", bk_keys[i].path);
        break;
    }
    return to;
}

static bk_status walk(loader *l, bk_key_source source, const bk_yaml *y, const char *path, const bk_yaml_node *at, const bk_yaml_node *value);

static bk_status walk_map(loader *l, bk_key_source source, const bk_yaml *y, const char *section, const bk_yaml_node *map)
{
    for (int k = map->child; k >= 0;) {
        const bk_yaml_node *key = &y->node[k], *value = &y->node[key->next];
        if (key->kind != BK_NODE_SCALAR) return bk_yaml_fail(y, key, l->err, "a key must be a word");
        for (int j = map->child; j != k; j = y->node[y->node[j].next].next)
            if (strcmp(y->node[j].text, key->text) == 0)
                return bk_yaml_fail(y, key, l->err, "'%.60s' stands there twice, first in line %d", key->text, y->node[j].line);
        char path[128];
        snprintf(path, sizeof path, "%s%s%.60s", section, *section ? "." : "", key->text);
        BK_TRY(walk(l, source, y, path, key, value));
        k = value->next;
    }
    return BK_OK;
}

/* `at` is the node of the key, for messages. */
static bk_status walk(loader *l, bk_key_source source, const bk_yaml *y, const char *path, const bk_yaml_node *at, const bk_yaml_node *value)
{
    int key = bk_key_find(path);
    for (int i = 0; i < l->n && key >= 0; i++) /* "a.b: 1" beside "a: {b: 2}" */
        if (l->list[i].key == key && l->list[i].y == y)
            return bk_yaml_fail(y, at, l->err, "'%s' is set twice, first in line %d", path, l->list[i].value->line);
    if (key >= 0) return assign(l, key, source, y, value);
    char near[192];
    bool told = !y->lines && at == &y->node[0]; /* "--set key" stands in front */
    if (!bk_key_is_section(path) && told) return bk_yaml_fail(y, at, l->err, "unknown key%s", bk_key_nearest(path, near, sizeof near));
    if (!bk_key_is_section(path)) return bk_yaml_fail(y, at, l->err, "unknown key '%.120s'%s", path, bk_key_nearest(path, near, sizeof near));
    if (value->kind != BK_NODE_MAP && told) return bk_yaml_fail(y, at, l->err, "a section: set one of its keys (brick run --help-config)");
    if (value->kind != BK_NODE_MAP) return bk_yaml_fail(y, value, l->err, "'%s' is a section: its keys follow, indented", path);
    return walk_map(l, source, y, path, value);
}

static bk_status take_file(loader *l, const char *text, size_t len, const char *name)
{
    bk_yaml *y = &l->tree[l->n_trees++];
    BK_TRY(bk_yaml_read(text, len, name, true, y, l->err));
    if (y->node[0].kind != BK_NODE_MAP) return bk_yaml_fail(y, &y->node[0], l->err, "a config is a map: 'key: value' lines");
    return walk_map(l, BK_FROM_FILE, y, "", &y->node[0]);
}

static bool takes_text(int key)
{
    bk_key_type t = bk_keys[key].type;
    return t == BK_KEY_PATH || t == BK_KEY_WORD || t == BK_KEY_NAME || t == BK_KEY_ENUM;
}

/* Text that is no YAML yet, as a tree of one scalar; the parser checks its encoding. */
static bk_status read_as_typed(const char *text, const char *name, bk_yaml *out, bk_error *err)
{
    char *yaml = NULL;
    size_t len;
    FILE *f = open_memstream(&yaml, &len);
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory for the config");
    bk_yaml_print_text(f, text);
    bk_status status = fclose(f) == 0 ? bk_yaml_read(yaml, len, name, false, out, err)
                                        : bk_fail(err, BK_ENOMEM, "no memory for the config");
    free(yaml);
    return status;
}

/* "key=value". Text is taken as typed unless it stands in quotes; everything else is YAML. */
static bk_status take_setting(loader *l, const char *setting, bk_key_source source, const char *name)
{
    const char *equals = strchr(setting, '=');
    char path[128];
    if (!equals) return bk_fail(l->err, BK_EINVAL, "%.200s: key=value is expected", name);
    snprintf(path, sizeof path, "%.*s", equals - setting < 127 ? (int)(equals - setting) : 127, setting);
    const char *value = equals + 1;
    int key = bk_key_find(path);
    bool as_typed = key >= 0 && takes_text(key) && *value != '"' && *value != '\'';
    bk_yaml *y = &l->tree[l->n_trees++];
    bk_status status = as_typed ? read_as_typed(value, name, y, l->err)
                                : bk_yaml_read(value, strlen(value), name, false, y, l->err);
    return status ? status : walk(l, source, y, path, &y->node[0], &y->node[0]);
}

static bk_status take_environment(loader *l)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    if (!threads || !*threads) return BK_OK;
    char setting[64];
    snprintf(setting, sizeof setting, "threads=%.*s", (int)strcspn(threads, ", "), threads); /* "4,2": of the outer level */
    return take_setting(l, setting, BK_FROM_ENV, "OMP_NUM_THREADS");
}

static bk_status put(bk_run_config *c, const assignment *a, bk_error *err)
{
    BK_TRY(bk_key_set(c, &bk_keys[a->key], a->y, a->value, err));
    c->place[a->key] = (bk_key_place){a->source, a->value->line, a->value->column};
    return BK_OK;
}

/* A setting of a table in this program: "train.epochs=20". */
static bk_status put_setting(bk_run_config *c, const char *setting, bk_key_source source, bk_error *err)
{
    bk_yaml tree[1];
    loader l = {.tree = tree, .err = err};
    bk_status status = take_setting(&l, setting, source, setting);
    for (int i = 0; i < l.n && !status; i++) status = put(c, &l.list[i], err);
    if (l.n_trees) bk_yaml_free(tree);
    free(l.list);
    return status;
}

static bk_status put_defaults(bk_run_config *c, bk_error *err)
{
    for (int i = 0; i < bk_key_count; i++) {
        char setting[128];
        if (!bk_keys[i].initial || bk_key_owner(&bk_keys[i])) continue; /* options: once the quantizer is known */
        snprintf(setting, sizeof setting, "%s=%s", bk_keys[i].path, bk_keys[i].initial);
        BK_TRY(put_setting(c, setting, BK_FROM_DEFAULT, err));
    }
    return BK_OK;
}

/* The last assignment of a key; NULL = none. */
static const assignment *last_of(const loader *l, const char *path)
{
    int key = bk_key_find(path);
    for (int i = l->n - 1; i >= 0; i--)
        if (l->list[i].key == key) return &l->list[i];
    return NULL;
}

static bool method_sets(const bk_method *m, const char *path)
{
    return bk_method_value(m, path) || (m->weights && strcmp(path, "quant.weight.quantizer") == 0) ||
           (m->activations && strcmp(path, "quant.activation.quantizer") == 0);
}

/* The scheme says how, the method by which quantizer; what a scheme leaves at 16 bits stays so. */
static void replace_quantizers(bk_run_config *c, const bk_method *m)
{
    const struct {
        const char *name, *key;
        bk_qspec *spec;
    } all[] = {{m->weights, "quant.weight.quantizer", &c->quant.weight}, {m->activations, "quant.activation.quantizer", &c->quant.activation}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].name) continue;
        snprintf(all[i].spec->quantizer, sizeof all[i].spec->quantizer, "%s", all[i].name);
        c->place[bk_key_find(all[i].key)] = (bk_key_place){.source = BK_FROM_METHOD};
    }
}

/* The keys that a scheme gives: those without a default. */
static bool scheme_sets(const bk_key *k)
{
    return !k->initial && strcmp(k->path, "scheme") != 0;
}

static void spread_one(bk_qspec *to, const bk_qspec *from)
{
    bool restricted = to->restricted; /* not the scheme's to say */
    *to = *from;
    to->restricted = restricted;
}

static void spread_scheme(bk_run_config *c, const bk_scheme *s)
{
    spread_one(&c->quant.weight, &s->weight);
    spread_one(&c->quant.activation, &s->activation);
    spread_one(&c->quant.key, &s->key);
    spread_one(&c->quant.value, &s->value);
    if (s->weight_only) c->rotation.r3 = c->rotation.r4 = false;
    for (int i = 0; i < bk_key_count; i++) {
        bool online = strcmp(bk_keys[i].path, "rotation.r3") == 0 || strcmp(bk_keys[i].path, "rotation.r4") == 0;
        if (scheme_sets(&bk_keys[i]) || (s->weight_only && online)) c->place[i] = (bk_key_place){.source = BK_FROM_SCHEME};
    }
}

static bk_status read_scheme(const bk_run_config *c, const assignment *named, bk_scheme *s, bk_error *err)
{
    bk_error why = {0};
    if (!bk_scheme_parse(c->scheme, s, &why)) return BK_OK;
    if (named) return bk_yaml_fail(named->y, named->value, err, "%s", why.msg);
    return bk_fail(err, BK_EINVAL, "%s", why.msg);
}

static void put_option_defaults(bk_run_config *c)
{
    bk_qspec *const place[] = {&c->quant.weight, &c->quant.activation, &c->quant.key, &c->quant.value};
    for (int i = 0; i < 4; i++) bk_qspec_defaults(place[i]);
}

/* A later layer that chooses another quantizer, by a scheme or by name, drops the options that an earlier one sets. */
static bk_status lay_option(bk_run_config *c, bk_run_config *scratch, const assignment *a, const assignment *scheme, bk_error *err)
{
    const bk_key *k = &bk_keys[a->key], *chooser = bk_key_chooser(k);
    bool counts = bk_key_counts(c, k), dropped = scheme && a->source < scheme->source;
    dropped = dropped || (!counts && a->source < c->place[chooser - bk_keys].source);
    if (counts || dropped) return put(dropped ? scratch : c, a, err);
    const char *chosen = (const char *)c + chooser->offset;
    return bk_yaml_fail(a->y, a->value, err, "%s: is an option of the quantizer `%s`, and %s is `%s` here", k->path, bk_key_owner(k)->name,
                        chooser->path, chosen);
}

static bk_status lay_options(const loader *l, bk_run_config *c, bk_run_config *scratch, const assignment *scheme)
{
    put_option_defaults(c);
    for (int i = 0; i < l->n; i++)
        if (bk_key_owner(&bk_keys[l->list[i].key])) BK_TRY(lay_option(c, scratch, &l->list[i], scheme, l->err));
    return BK_OK;
}

static void note_replaced(bk_run_config *c, const char *key)
{
    size_t n = strlen(c->replaced);
    snprintf(c->replaced + n, sizeof c->replaced - n, "%s%s", n ? ", " : "", key);
}

/* Method and scheme first, in the layers where they are named; then every assignment that they do not override, options of quantizers last. */
static bk_status lay(const loader *l, bk_run_config *c, bk_run_config *scratch)
{
    BK_TRY(put_defaults(c, l->err));
    const assignment *method = last_of(l, "method"), *scheme = last_of(l, "scheme");
    if (method) BK_TRY(put(c, method, l->err));
    const bk_method *m = bk_method_find(c->method);
    if (!m) return bk_fail(l->err, BK_EINVAL, "method: '%s' is not in the table of methods", c->method);
    for (const char *const *s = bk_method_base; *s; s++) BK_TRY(put_setting(c, *s, BK_FROM_METHOD, l->err));
    for (const char *const *s = m->settings; *s; s++) BK_TRY(put_setting(c, *s, BK_FROM_METHOD, l->err));
    if (scheme) {
        BK_TRY(put(c, scheme, l->err));
    } else {
        snprintf(c->scheme, sizeof c->scheme, "%s", m->scheme);
        c->place[bk_key_find("scheme")].source = BK_FROM_METHOD;
    }
    bk_scheme s;
    BK_TRY(read_scheme(c, scheme, &s, l->err));
    spread_scheme(c, &s);
    replace_quantizers(c, m);
    for (int i = 0; i < l->n; i++) {
        const assignment *a = &l->list[i];
        const bk_key *k = &bk_keys[a->key];
        if (bk_key_owner(k)) continue;
        bool overridden = (method && a->source < method->source && method_sets(m, k->path)) ||
                          (scheme && a->source < scheme->source && scheme_sets(k));
        BK_TRY(put(overridden ? scratch : c, a, l->err)); /* what is overridden must still be right */
        if (overridden) note_replaced(c, k->path);
    }
    return lay_options(l, c, scratch, scheme);
}

static bk_status load_into(loader *l, const char *text, size_t len, const char *name, const char *const *sets, int n_sets,
                           bk_run_config *out)
{
    if (text) BK_TRY(take_file(l, text, len, name));
    BK_TRY(take_environment(l));
    for (int i = 0; i < n_sets; i++) {
        char where[BK_PATH_SIZE];
        snprintf(where, sizeof where, "--set %.*s", (int)strcspn(sets[i], "="), sets[i]);
        BK_TRY(take_setting(l, sets[i], BK_FROM_SET, where));
    }
    bk_run_config *scratch = calloc(1, sizeof *scratch);
    if (!scratch) return bk_fail(l->err, BK_ENOMEM, "no memory for the config");
    bk_status status = lay(l, out, scratch);
    free(scratch);
    return status;
}

bk_status bk_run_config_parse(const char *text, size_t len, const char *name, const char *const *sets, int n_sets,
                              bk_run_config *out, bk_error *err)
{
    memset(out, 0, sizeof *out);
    snprintf(out->source, sizeof out->source, "%s", text ? name : "");
    loader l = {.err = err, .tree = calloc((size_t)n_sets + 2, sizeof *l.tree)};
    if (!l.tree) return bk_fail(err, BK_ENOMEM, "no memory for the config");
    bk_status status = load_into(&l, text, len, name, sets, n_sets, out);
    for (int i = 0; i < l.n_trees; i++) bk_yaml_free(&l.tree[i]);
    free(l.tree);
    free(l.list);
    return status;
}

bk_status bk_run_config_load(const char *path, const char *const *sets, int n_sets, bk_run_config *out, bk_error *err)
{
    char *text;
    size_t len;
    bk_error why = {0};
    bk_status status = bk_file_slurp(path, MAX_CONFIG_BYTES, &text, &len, &why);
    if (status) return bk_fail(err, status == BK_EFORMAT ? BK_EINVAL : status, "%s", why.msg); /* too long: a fault of the config */
    status = bk_run_config_parse(text, len, path, sets, n_sets, out, err);
    free(text);
    return status ? status : bk_run_config_check(out, err);
}
