#include "experiments/scheme.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/suggest.h"

const char *const bk_method_base[] = {
    "rotation.r1=false", "rotation.r2=false", "rotation.r3=false", "rotation.r4=false", "rotation.basis=hadamard", "rotation.r2_per_head=false",
    "rotation.r4_group=0", "scales.from=none", "prefix.mode=none", "init.from=minmax", "init.search=false", "quant.weight.step=full",
    "quant.activation.step=full", "quant.key.step=full", "quant.value.step=full", "train.epochs=0", "train.batch=4", "train.lr_quant=5e-5",
    "train.lr_weight=5e-6", "train.lr_round=0", "train.lr_min_factor=10", "train.keep=best", "train.norms=false", NULL};

#define BK_METHOD(name, scheme, weights, activations, about, ...) static const char *const name##_settings[] = {__VA_ARGS__, NULL};
#include "experiments/methods.def"

const bk_method bk_methods[] = {
#define BK_METHOD(name, scheme, weights, activations, about, ...) {#name, scheme, weights, activations, about, name##_settings},
#include "experiments/methods.def"
};
const int bk_method_count = sizeof bk_methods / sizeof bk_methods[0];

const char *const bk_common_schemes[] = {
    "W4A4KV4-static", "W4A4KV4-dynamic", "W4A8KV4-static", "W4A8KV4-dynamic", "W8A8-static",
    "W8A8KV8-static", "W4A4KV4-dynamic-asym", "W4A4KV4-dynamic-asym-gauto", "W4A16-g128", "W3A16-g128", "W2A16-g128",
};
const int bk_common_scheme_count = sizeof bk_common_schemes / sizeof bk_common_schemes[0];

const bk_method *bk_method_find(const char *name)
{
    for (int i = 0; i < bk_method_count; i++)
        if (strcmp(bk_methods[i].name, name) == 0) return &bk_methods[i];
    return NULL;
}

static const char *value_in(const char *const *settings, const char *path)
{
    size_t n = strlen(path);
    for (; *settings; settings++)
        if (strncmp(*settings, path, n) == 0 && (*settings)[n] == '=') return *settings + n + 1;
    return NULL;
}

const char *bk_method_value(const bk_method *m, const char *path)
{
    const char *own = value_in(m->settings, path);
    return own ? own : value_in(bk_method_base, path);
}

#define GRAMMAR                                                                                                                      \
    "a scheme is W<bits>A<bits>[KV<bits>]-static|dynamic[-asym], with -g<size>|-gauto behind -dynamic[-asym], or W<bits>A16[-g<size>], as "  \
    "W4A4KV4-static or W3A16-g128"

/* Letters as schemes have them: large up to the first '-', small behind it. */
static void as_written(const char *text, char *to, size_t size)
{
    bool large = true;
    size_t n = 0;
    for (; text[n] && n + 1 < size; n++) {
        large = large && text[n] != '-';
        to[n] = (char)(large ? toupper((unsigned char)text[n]) : tolower((unsigned char)text[n]));
    }
    to[n] = 0;
}

static bk_status wrong(bk_error *err, const char *text, const char *what)
{
    char near[128], fixed[64];
    bk_scheme meant;
    as_written(text, fixed, sizeof fixed);
    bool letters_only = strcmp(fixed, text) != 0 && !bk_scheme_parse(fixed, &meant, NULL);
    const char *const one[] = {fixed};
    bk_suggest_text(text, letters_only ? one : bk_common_schemes, letters_only ? 1 : (size_t)bk_common_scheme_count, near, sizeof near);
    return bk_fail(err, BK_EINVAL, "scheme '%.60s': %s%s (" GRAMMAR ")", text, what, near);
}

static bool take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

static bool take_number(const char **p, int64_t *out)
{
    size_t digits = strspn(*p, "0123456789");
    if (digits == 0 || digits > 6 || **p == '0') return false;
    *out = strtoll(*p, NULL, 10);
    *p += digits;
    return true;
}

static bool good_bits(int64_t bits)
{
    return (bits >= 2 && bits <= 8) || bits == 16;
}

/* "W<b>", "A<b>", "KV<b>". */
static bk_status take_bits(const char **p, const char *letter, int64_t *bits, const char *text, bk_error *err)
{
    char what[96];
    if (!take(p, letter) || !take_number(p, bits)) {
        snprintf(what, sizeof what, "%s<bits> is expected at '%.30s'", letter, *p);
        return wrong(err, text, what);
    }
    if (good_bits(*bits)) return BK_OK;
    snprintf(what, sizeof what, "%s%lld: bits are 2 to 8, or 16 for not quantized", letter, (long long)*bits);
    return wrong(err, text, what);
}

static bk_qspec part(const char *quantizer, int64_t bits, bool symmetric, bk_granularity grain, bool clip)
{
    bk_qspec q = {.bits = (int)bits, .symmetric = symmetric, .granularity = grain, .clip = clip};
    snprintf(q.quantizer, sizeof q.quantizer, "%s", quantizer);
    bk_qspec_defaults(&q);
    return q;
}

/* The rest of W<b>A16: weights in groups or per channel, asymmetric; nothing else is quantized. */
static bk_status weight_only(const char *p, int64_t bits, const char *text, bk_scheme *out, bk_error *err)
{
    int64_t group = 0;
    if (*p && (!take(&p, "-g") || !take_number(&p, &group))) return wrong(err, text, "after A16 only -g<size> can stand");
    if (*p) return wrong(err, text, "there is more after the group size");
    *out = (bk_scheme){.weight_only = true};
    out->weight = part("affine", bits, false, group ? BK_PER_GROUP : BK_PER_CHANNEL, false);
    out->weight.group = group;
    out->activation = part("dynamic", 16, true, BK_PER_TOKEN, false);
    out->key = out->value = part("dynamic", 16, true, BK_PER_HEAD, false);
    return BK_OK;
}

static void spread(bk_scheme *s, int64_t w, int64_t a, int64_t kv, bool dynamic, bool asym)
{
    bk_granularity cache = !dynamic && kv == 8 ? BK_PER_TENSOR : BK_PER_HEAD;
    const char *quantizer = dynamic ? "dynamic" : "static";
    *s = (bk_scheme){.weight_only = false};
    s->weight = part("affine", w, true, BK_PER_CHANNEL, false);
    s->activation = part(quantizer, a, !asym, dynamic ? BK_PER_TOKEN : BK_PER_TENSOR, dynamic);
    s->key = part(quantizer, kv, !asym, cache, false);
    s->value = part(quantizer, kv, !asym, cache, dynamic);
}

/* Activations in groups: nothing is clipped, since factors about 0 do not fit groups whose offset the zero point takes. */
static void in_groups(bk_scheme *s, int64_t group)
{
    s->activation.granularity = BK_PER_GROUP;
    s->activation.group = group;
    s->activation.clip = s->value.clip = false;
}

bk_status bk_scheme_parse(const char *text, bk_scheme *out, bk_error *err)
{
    const char *p = text;
    int64_t w, a, kv = 16;
    BK_TRY(take_bits(&p, "W", &w, text, err));
    BK_TRY(take_bits(&p, "A", &a, text, err));
    if (a == 16 && strncmp(p, "KV", 2) != 0) return weight_only(p, w, text, out, err);
    if (*p == 'K') BK_TRY(take_bits(&p, "KV", &kv, text, err));
    bool dynamic = take(&p, "-dynamic");
    if (!dynamic && !take(&p, "-static"))
        return wrong(err, text, *p ? "-static or -dynamic is expected" : "-static or -dynamic is missing");
    bool asym = take(&p, "-asym");
    int64_t group = 0;
    if (dynamic && take(&p, "-gauto")) group = BK_GROUP_AUTO;
    else if (dynamic && take(&p, "-g") && !take_number(&p, &group)) return wrong(err, text, "-g<size> or -gauto is expected");
    if (*p) return wrong(err, text, dynamic ? "there is more at the end" : "there is more at the end than -asym");
    spread(out, w, a, kv, dynamic, asym);
    if (group) in_groups(out, group);
    return BK_OK;
}

static void describe(FILE *to, const char *name, const bk_qspec *q)
{
    if (q->bits == 16) {
        fprintf(to, "%s 16 bit", name);
        return;
    }
    bool token_too = strcmp(q->quantizer, "dynamic") == 0 && q->granularity != BK_PER_TOKEN;
    fprintf(to, "%s %d bit %s %s per %s%s", name, q->bits, q->symmetric ? "symmetric" : "asymmetric", q->quantizer,
            token_too ? "token and " : "", bk_granularity_name[q->granularity]);
    if (q->group > 0) fprintf(to, " of %lld", (long long)q->group);
    if (q->group == BK_GROUP_AUTO) fputs(" of up to 128 (below 32: docs/numerics.md, OffQ)", to);
    if (q->clip) fputs(" with clipping factors", to);
}

void bk_scheme_describe(const bk_scheme *s, char *to, size_t size)
{
    FILE *f = fmemopen(to, size, "w");
    if (!f) {
        to[0] = 0;
        return;
    }
    describe(f, "weight", &s->weight);
    describe(f, "; activation", &s->activation);
    describe(f, "; key", &s->key);
    describe(f, "; value", &s->value);
    if (s->weight_only) fputs("; R3 and R4 off", f);
    fclose(f);
    to[size - 1] = 0;
}
