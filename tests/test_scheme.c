#include <check.h>
#include <string.h>

#include "experiments/scheme.h"
#include "tests/suite.h"

static bk_scheme s;

static void parse(const char *text)
{
    bk_error err = {0};
    ck_assert_msg(bk_scheme_parse(text, &s, &err) == BK_OK, "%s", err.msg);
}

static void is(const bk_qspec *q, const char *quantizer, int bits, bool symmetric, bk_granularity grain, bool clip)
{
    ck_assert_str_eq(q->quantizer, quantizer);
    ck_assert_int_eq(q->bits, bits);
    ck_assert_int_eq(q->symmetric, symmetric);
    ck_assert_int_eq(q->granularity, (int)grain);
    ck_assert_int_eq(q->clip, clip);
}

START_TEST(static_scheme)
{
    parse("W4A8KV3-static");
    is(&s.weight, "affine", 4, true, BK_PER_CHANNEL, false);
    is(&s.activation, "static", 8, true, BK_PER_TENSOR, false);
    is(&s.key, "static", 3, true, BK_PER_HEAD, false);
    is(&s.value, "static", 3, true, BK_PER_HEAD, false);
    ck_assert(!s.weight_only);
}
END_TEST

START_TEST(dynamic_scheme_clips_all_but_keys)
{
    parse("W4A4KV4-dynamic");
    is(&s.activation, "dynamic", 4, true, BK_PER_TOKEN, true);
    is(&s.key, "dynamic", 4, true, BK_PER_HEAD, false);
    is(&s.value, "dynamic", 4, true, BK_PER_HEAD, true);
}
END_TEST

START_TEST(cache_left_out_is_16_bits)
{
    parse("W8A8-static");
    ck_assert_int_eq(s.key.bits, 16);
    ck_assert_int_eq(s.value.bits, 16);
}
END_TEST

START_TEST(cache_of_8_bits_is_per_tensor_when_static_only)
{
    parse("W8A8KV8-static");
    is(&s.key, "static", 8, true, BK_PER_TENSOR, false);
    is(&s.value, "static", 8, true, BK_PER_TENSOR, false);
    parse("W8A8KV8-dynamic");
    is(&s.key, "dynamic", 8, true, BK_PER_HEAD, false);
}
END_TEST

START_TEST(asym_is_for_all_but_weights)
{
    parse("W4A4KV4-static-asym");
    is(&s.weight, "affine", 4, true, BK_PER_CHANNEL, false);
    is(&s.activation, "static", 4, false, BK_PER_TENSOR, false);
    is(&s.key, "static", 4, false, BK_PER_HEAD, false);
    is(&s.value, "static", 4, false, BK_PER_HEAD, false);
}
END_TEST

START_TEST(groups_are_of_activations_without_clipping)
{
    parse("W4A4KV4-dynamic-asym-g64");
    is(&s.activation, "dynamic", 4, false, BK_PER_GROUP, false);
    ck_assert_int_eq(s.activation.group, 64);
    is(&s.value, "dynamic", 4, false, BK_PER_HEAD, false);
    is(&s.weight, "affine", 4, true, BK_PER_CHANNEL, false);
    parse("W4A4KV4-dynamic-gauto");
    is(&s.activation, "dynamic", 4, true, BK_PER_GROUP, false);
    ck_assert_int_eq(s.activation.group, BK_GROUP_AUTO);
}
END_TEST

START_TEST(weight_only_scheme)
{
    parse("W2A16-g64");
    is(&s.weight, "affine", 2, false, BK_PER_GROUP, false);
    ck_assert_int_eq(s.weight.group, 64);
    ck_assert_int_eq(s.activation.bits, 16);
    ck_assert_int_eq(s.key.bits, 16);
    ck_assert(s.weight_only);
    parse("W4A16");
    is(&s.weight, "affine", 4, false, BK_PER_CHANNEL, false);
}
END_TEST

static const struct {
    const char *text, *word;
} bad[] = {
    {"", "W<bits>"},          {"W9Z4", "W9"},            {"W4Z4", "A<bits>"},       {"W4A4KV4", "missing"},
    {"W4A4K4-static", "KV"},  {"W4A4KV4-statik", "-static or -dynamic"},            {"W4A4KV4-static-asymm", "more at the end"},
    {"W4A4KV9-static", "KV9"}, {"W1A4-static", "W1"},    {"W4A12-static", "A12"},   {"W4A4KV4-static ", "more at the end"},
    {"w4a4kv4-static", "W<bits>"}, {"W4A16-static", "-g<size>"}, {"W4A16-g0", "-g<size>"}, {"W4A16-g", "-g<size>"},
    {"W4A16-g128-asym", "more after"}, {"W4A4KV4-dynamic-g", "-g<size> or -gauto"}, {"W4A4KV4-dynamic-gaut", "-g<size> or -gauto"},
    {"W4A4KV4-dynamic-gauto1", "more at the end"}, {"W4A4KV4-static-g64", "more at the end"}, {"W4A4KV4-dynamic-g64-asym", "more at the end"}, {"W99999999999999999999A4-static", "W<bits>"}, {"W04A4-static", "W<bits>"}, {"WA", "W<bits>"},
};

START_TEST(bad_scheme_says_what_is_wrong)
{
    bk_error err = {0};
    ck_assert_int_eq(bk_scheme_parse(bad[_i].text, &s, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, bad[_i].word) != NULL, "no '%s' in '%s'", bad[_i].word, err.msg);
    ck_assert_msg(strstr(err.msg, "W4A4KV4-static") != NULL, "no example in '%s'", err.msg);
}
END_TEST

static const struct {
    const char *text, *meant;
} near[] = {{"w4a4kv4-static", "W4A4KV4-static"}, {"w3a5Kv7-DYNAMIC-Asym", "W3A5KV7-dynamic-asym"}, {"w3a16-G64", "W3A16-g64"},
            {"W4A4KV4-statc", "W4A4KV4-static"},  {"w4a4kv4-statc", "W4A4KV4-static"}};

START_TEST(nearly_a_scheme_is_told_the_right_one)
{
    bk_error err = {0};
    char words[64];
    snprintf(words, sizeof words, ", did you mean '%s'? (", near[_i].meant);
    ck_assert_int_eq(bk_scheme_parse(near[_i].text, &s, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, words) != NULL, "no \"%s\" in: %s", words, err.msg);
}
END_TEST

START_TEST(common_schemes_parse_and_describe_themselves)
{
    for (int i = 0; i < bk_common_scheme_count; i++) {
        char text[512];
        parse(bk_common_schemes[i]);
        bk_scheme_describe(&s, text, sizeof text);
        ck_assert_msg(strstr(text, "weight") && strstr(text, "value"), "%s: %s", bk_common_schemes[i], text);
    }
}
END_TEST

START_TEST(description_is_cut_to_fit)
{
    char text[16];
    parse("W4A4KV4-static");
    bk_scheme_describe(&s, text, sizeof text);
    ck_assert_uint_lt(strlen(text), sizeof text);
}
END_TEST

static bool in_base(const char *setting)
{
    for (const char *const *b = bk_method_base; *b; b++)
        if (strncmp(*b, setting, strcspn(setting, "=") + 1) == 0) return true;
    return false;
}

START_TEST(methods_set_only_keys_that_all_of_them_set)
{
    for (int i = 0; i < bk_method_count; i++) {
        const bk_method *m = &bk_methods[i];
        parse(m->scheme);
        ck_assert(!m->weights || bk_quantizer_find(m->weights)->for_weights);
        ck_assert(!m->activations || bk_quantizer_find(m->activations)->for_activations);
        for (const char *const *set = m->settings; *set; set++) ck_assert_msg(in_base(*set), "%s: %s", m->name, *set);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheme");
    TCase *t = tcase_create("scheme");
    tcase_add_test(t, static_scheme);
    tcase_add_test(t, dynamic_scheme_clips_all_but_keys);
    tcase_add_test(t, cache_left_out_is_16_bits);
    tcase_add_test(t, cache_of_8_bits_is_per_tensor_when_static_only);
    tcase_add_test(t, asym_is_for_all_but_weights);
    tcase_add_test(t, groups_are_of_activations_without_clipping);
    tcase_add_test(t, weight_only_scheme);
    tcase_add_loop_test(t, bad_scheme_says_what_is_wrong, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_loop_test(t, nearly_a_scheme_is_told_the_right_one, 0, (int)(sizeof near / sizeof near[0]));
    tcase_add_test(t, common_schemes_parse_and_describe_themselves);
    tcase_add_test(t, description_is_cut_to_fit);
    tcase_add_test(t, methods_set_only_keys_that_all_of_them_set);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
