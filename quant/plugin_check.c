/* Is the table of a quantizer one that this build can use? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quant/quantizer.h"

#define ABOUT_MAX 200
#define OPTION_NAME_MAX 31 /* the longest key, quant.activation.<quantizer>.<option>, then fits 64 bytes */

/* Small letters, digits and underscores: names are keys of configs and of JSON objects. */
static bool is_name(const char *s, size_t longest)
{
    size_t n = s ? strnlen(s, longest + 1) : 0;
    return n > 0 && n <= longest && s[0] >= 'a' && s[0] <= 'z' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

/* One line for help and lists. */
static bool is_about(const char *s)
{
    size_t n = s ? strnlen(s, ABOUT_MAX + 1) : 0;
    if (n == 0 || n > ABOUT_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ') return false;
    return true;
}

static bool is_whole(double x)
{
    return x == floor(x) && fabs(x) < 9007199254740992.0;
}

static const char *fault_of_option(const bk_option *o)
{
    bool real = o->type == BK_OPTION_REAL, integer = o->type == BK_OPTION_INT, yes_no = o->type == BK_OPTION_BOOL;
    if (!is_about(o->about)) return "it has no line that says what it means";
    if (!real && !integer && !yes_no) return "its type is none of BK_OPTION_REAL, _INT, _BOOL";
    if (yes_no) return o->initial == 0 || o->initial == 1 ? NULL : "its default is neither 0 nor 1";
    if (!isfinite(o->min) || !isfinite(o->max) || !(o->min <= o->max)) return "its range is empty or not finite";
    if (!(o->initial >= o->min && o->initial <= o->max)) return "its default lies outside its range";
    if (integer && !(is_whole(o->initial) && is_whole(o->min) && is_whole(o->max)))
        return "default, min and max of an INT are whole numbers";
    return NULL;
}

static bk_status check_options(const bk_quantizer *q, bk_error *err)
{
    if (q->n_options < 0 || q->n_options > BK_OPTIONS_MAX || (q->n_options && !q->options))
        return bk_fail(err, BK_EFORMAT, "quantizer `%s`: %d options; there may be %d", q->name, q->n_options,
                       BK_OPTIONS_MAX);
    for (int i = 0; i < q->n_options; i++) {
        const bk_option *o = &q->options[i];
        if (!is_name(o->name, OPTION_NAME_MAX))
            return bk_fail(err, BK_EFORMAT,
                           "quantizer `%s`: option %d has no name of 1 to %d letters a-z, digits and _", q->name, i,
                           OPTION_NAME_MAX);
        for (int k = 0; k < i; k++)
            if (!strcmp(q->options[k].name, o->name))
                return bk_fail(err, BK_EFORMAT, "quantizer `%s`: two options are called `%s`", q->name, o->name);
        const char *fault = fault_of_option(o);
        if (fault) return bk_fail(err, BK_EFORMAT, "quantizer `%s`, option `%s`: %s", q->name, o->name, fault);
    }
    return BK_OK;
}

static const char *missing_function(const bk_quantizer *q)
{
    return !q->setup         ? "setup"
           : !q->params      ? "params"
           : !q->units       ? "units"
           : !q->needs_range ? "needs_range"
           : !q->init        ? "init"
           : !q->factors     ? "factors"
           : !q->apply       ? "apply"
           : q->for_weights && !q->codes ? "codes"
                             : NULL;
}

bk_status bk_quantizer_check(const bk_quantizer *q, bk_error *err)
{
    const int longest = sizeof((bk_qspec *)0)->quantizer - 1;
    if (q->struct_size != sizeof *q || q->abi != BK_QUANTIZER_ABI)
        return bk_fail(err, BK_EFORMAT,
                       "a quantizer of ABI %d and %zu bytes, this brick has ABI %d and %zu: build it again with the "
                       "headers of this one",
                       q->abi, q->struct_size, BK_QUANTIZER_ABI, sizeof *q);
    if (!is_name(q->name, (size_t)longest))
        return bk_fail(err, BK_EFORMAT, "a quantizer has no name of 1 to %d letters a-z, digits and _", longest);
    if (!is_about(q->about))
        return bk_fail(err, BK_EFORMAT, "quantizer `%s`: it has no line that says what it is", q->name);
    if (!q->for_weights && !q->for_activations)
        return bk_fail(err, BK_EFORMAT, "quantizer `%s` is neither for weights nor for activations", q->name);
    if (q->state_size > BK_QUANTIZER_STATE_MAX)
        return bk_fail(err, BK_EFORMAT, "quantizer `%s`: a state of %zu bytes; there are %d", q->name, q->state_size,
                       BK_QUANTIZER_STATE_MAX);
    const char *missing = missing_function(q);
    if (missing) return bk_fail(err, BK_EFORMAT, "quantizer `%s` has no function `%s`", q->name, missing);
    return check_options(q, err);
}
