/* Scheme strings and methods: short names for sets of config values. */
#ifndef BK_SCHEME_H
#define BK_SCHEME_H

#include "experiments/schema.h"

/* What a scheme string says. The rule of the weight's step is the method's, not the scheme's. */
typedef struct bk_scheme {
    bk_qspec weight, activation, key, value;
    bool weight_only; /* A16: R3 and R4 off */
} bk_scheme;

/* W<b>A<b>[KV<b>]-static|dynamic[-asym], -dynamic[-asym]-g<G>|-gauto (activations in groups), W<b>A16[-g<G>]. BK_EINVAL says which part is wrong. */
bk_status bk_scheme_parse(const char *text, bk_scheme *out, bk_error *err) BK_MUST_USE;
/* One line: "weight 4 bit symmetric per channel; activation ...". */
void bk_scheme_describe(const bk_scheme *s, char *to, size_t size);

/* A method sets the keys of bk_method_base, some of them to values of its own, so that one replaces another completely. */
typedef struct bk_method {
    const char *name, *scheme;         /* scheme: the one used when the config names none */
    const char *weights, *activations; /* quantizers in place of the scheme's; NULL: the scheme's */
    const char *about;
    const char *const *settings;       /* "train.epochs=20", ..., NULL */
} bk_method;

extern const char *const bk_method_base[]; /* the same for all, NULL at the end */
/* What m sets a key of bk_method_base to; NULL for other keys. */
const char *bk_method_value(const bk_method *m, const char *path);

extern const bk_method bk_methods[];
extern const int bk_method_count;
const bk_method *bk_method_find(const char *name); /* NULL if there is none */

/* Common schemes, for `brick list schemes`. */
extern const char *const bk_common_schemes[];
extern const int bk_common_scheme_count;

#endif
