/* brick synth: writes a made model (synth.h). Here: its shapes and the command line. */
#include "experiments/synth.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/options.h"
#include "experiments/suggest.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/json.h"

#define DEFAULT .hidden = 128, .inter = 256, .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .vocab = BK_SYNTH_VOCAB, \
                .max_positions = 4096, .eps = 1e-5, .rope_theta = 1e4
#define TINY .hidden = 64, .inter = 96, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .vocab = BK_SYNTH_VOCAB, \
             .max_positions = 1024, .eps = 1e-5, .rope_theta = 1e4

static const struct {
    const char *name;
    bk_config cfg;
} shapes[] = {
    {"llama", {.arch = "llama", DEFAULT}},
    {"qwen2", {.arch = "qwen2", DEFAULT, .qkv_bias = true}},
    {"qwen3", {.arch = "qwen3", DEFAULT, .qk_norm = true}},
    {"tied", {.arch = "llama", DEFAULT, .tied = true}},
    {"tiny", {.arch = "llama", TINY}},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Sizes that --shape can change. */
static const struct {
    const char *key;
    size_t at;
    int64_t min, max;
} keys[] = {
    {"hidden", offsetof(bk_config, hidden), 16, 4096},         {"inter", offsetof(bk_config, inter), 16, 16384},
    {"layers", offsetof(bk_config, layers), 1, 256},           {"heads", offsetof(bk_config, heads), 1, 256},
    {"kv_heads", offsetof(bk_config, kv_heads), 1, 256},       {"head_dim", offsetof(bk_config, head_dim), 8, 512},
    {"vocab", offsetof(bk_config, vocab), BK_SYNTH_VOCAB, 1 << 20},
    {"positions", offsetof(bk_config, max_positions), BK_SYNTH_DOCUMENT, 1 << 20},
    {"window", offsetof(bk_config, sliding_window), 0, 1 << 20},
};
#define KEYS (sizeof keys / sizeof *keys)

static bk_status set_name(const char *name, bk_config *c, bk_error *err)
{
    const char *names[SHAPES];
    char near[96];
    for (size_t i = 0; i < SHAPES; i++) {
        names[i] = shapes[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        *c = shapes[i].cfg;
        return BK_OK;
    }
    bk_suggest_text(name, names, SHAPES, near, sizeof near);
    return bk_fail(err, BK_EINVAL, "--shape: unknown shape '%.40s'%s (llama, qwen2, qwen3, tied or tiny)", name, near);
}

static bk_status set_key(const char *key, const char *value, bk_config *c, bk_error *err)
{
    const char *names[KEYS];
    char near[96];
    for (size_t i = 0; i < KEYS; i++) {
        names[i] = keys[i].key;
        if (strcmp(key, names[i]) != 0) continue;
        char *end;
        errno = 0;
        long long v = strtoll(value, &end, 10);
        if (errno || end == value || *end || v < keys[i].min || v > keys[i].max)
            return bk_fail(err, BK_EINVAL, "--shape: %s=%.40s must be a whole number from %lld to %lld", key, value, (long long)keys[i].min,
                           (long long)keys[i].max);
        *(int64_t *)((char *)c + keys[i].at) = v;
        return BK_OK;
    }
    bk_suggest_text(key, names, KEYS, near, sizeof near);
    return bk_fail(err, BK_EINVAL, "--shape: unknown key '%.40s'%s", key, near);
}

static bk_status check(const bk_config *c, bk_error *err)
{
    if (c->heads % c->kv_heads)
        return bk_fail(err, BK_EINVAL, "--shape: heads=%lld is no multiple of kv_heads=%lld", (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim % 2) return bk_fail(err, BK_EINVAL, "--shape: head_dim=%lld must be even", (long long)c->head_dim);
    return BK_OK;
}

bk_status bk_synth_shape(const char *text, bk_config *out, bk_error *err)
{
    char room[512];
    bk_config c = shapes[0].cfg;
    if (strlen(text) >= sizeof room) return bk_fail(err, BK_EINVAL, "--shape: the text is too long");
    strcpy(room, text);
    bool first = true;
    for (char *save, *word = strtok_r(room, ",", &save); word; word = strtok_r(NULL, ",", &save), first = false) {
        char *equals = strchr(word, '=');
        if (!equals && !first) return bk_fail(err, BK_EINVAL, "--shape: '%.40s' is no key=value", word);
        if (equals) *equals++ = 0;
        BK_TRY(equals ? set_key(word, equals, &c, err) : set_name(word, &c, err));
    }
    BK_TRY(check(&c, err));
    *out = c;
    return BK_OK;
}

/* --- whose folder is it? --- */

#define RECIPE "synth.json" /* what a made model was made of; the first file of its folder */

static bk_json *recipe(const bk_config *c, uint64_t seed, int64_t documents)
{
    bk_json *o = bk_json_object();
    bk_json_set(o, "shape", bk_config_to_json(c));
    bk_json_set(o, "seed", bk_json_of_int((int64_t)seed));
    bk_json_set(o, "documents", bk_json_of_int(documents));
    return o;
}

/* Whether the file holds this very recipe. */
static bool same_recipe(const bk_json *want, const char *path)
{
    bk_json *is = NULL;
    if (!bk_exists(path) || bk_json_load(path, &is, &(bk_error){0})) return false;
    char *a = bk_json_dump(want, 0), *b = bk_json_dump(is, 0);
    bool same = a && b && strcmp(a, b) == 0;
    free(a);
    free(b);
    bk_json_free(is);
    return same;
}

/* A start that was killed leaves no more than the recipe under its other name. */
static bk_status check_empty(const char *dir, bk_error *err)
{
    static const char *const ours[] = {".", "..", RECIPE ".partial"};
    DIR *d = opendir(dir);
    bk_status st = BK_OK;
    if (!d) return bk_fail_errno(err, "%s", dir);
    for (struct dirent *e; !st && (e = readdir(d));) {
        size_t i = 0;
        while (i < sizeof ours / sizeof *ours && strcmp(e->d_name, ours[i])) i++;
        if (i == sizeof ours / sizeof *ours)
            st = bk_fail(err, BK_EINVAL, "%s is not empty (%.60s is there), and no model of this shape, seed and documents: give another --out, or "
                                         "--force to write over what is there", dir, e->d_name);
    }
    closedir(d);
    return st;
}

/* Nobody else's files are written over: the folder is new, empty, or gets the same bytes again. */
static bk_status claim(const char *dir, const bk_json *want, bool force, bk_error *err)
{
    if (bk_exists(dir) && !bk_is_dir(dir)) return bk_fail(err, BK_EINVAL, "%s is no folder", dir);
    BK_TRY(bk_mkdir_p(dir, err));
    char *path = bk_path_join(dir, RECIPE);
    bk_status st = path ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a path");
    if (!st && !force && !same_recipe(want, path)) st = check_empty(dir, err);
    if (!st) st = bk_json_save(want, path, err);
    free(path);
    return st;
}

static bk_status make(const char *shape, uint64_t seed, int64_t documents, const char *dir, bool force, bk_error *err)
{
    bk_config c;
    bk_synth *s;
    BK_TRY(bk_synth_shape(shape, &c, err));
    bk_json *want = recipe(&c, seed, documents);
    bk_status st = claim(dir, want, force, err);
    bk_json_free(want);
    BK_TRY(st);
    BK_TRY(bk_synth_create(&c, seed, &s, err));
    st = bk_synth_write(s, dir, documents, err);
    bk_synth_free(s);
    if (!st) printf("%s: a model with tokenizer%s\n", dir, documents ? ", train.txt, calib.txt and eval.txt" : "");
    return st;
}

int bk_verb_synth(int argc, char **argv)
{
    const char *dir = NULL, *shape = "llama";
    int64_t seed = 1, documents = 32;
    bool force = false;
    const bk_opt opts[] = {
        {.name = "--out", .type = BK_OPT_TEXT, .to = &dir, .metavar = "DIR", .initial = "", .about = "folder to write"},
        {.name = "--shape", .type = BK_OPT_TEXT, .to = &shape, .metavar = "llama|qwen2|qwen3|tied|tiny",
         .initial = "llama",
         .about = "a named shape and/or key=value,...: hidden inter layers heads kv_heads head_dim "
                  "vocab positions window"},
        {.name = "--seed", .type = BK_OPT_INT, .to = &seed, .metavar = "N", .initial = "1", .max = 1e15, .about = "of weights and texts"},
        {.name = "--documents", .type = BK_OPT_INT, .to = &documents, .metavar = "N", .initial = "32", .max = 1e5,
         .about = "of 512 tokens in train.txt; calib.txt and eval.txt have a quarter"},
        {.name = "--force", .type = BK_OPT_FLAG, .to = &force, .about = "write over the files of a folder that holds something else"},
        {0}};
    const bk_cli cli = {"synth", "makes a small model with attention sinks and outliers, and texts that it predicts", opts,
                        "brick synth --out /tmp/m\nbrick synth --out /tmp/m --shape qwen3,layers=12,head_dim=64 --seed 7\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    bk_error err = {0};
    return bk_exit_report(make(shape, (uint64_t)seed, documents, dir, force, &err), &err);
}
