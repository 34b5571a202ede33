/* Options of quantizers as keys of configs. The quantizer is made up; of its functions setup, units and needs_range are called. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/schema.h"
#include "tests/suite.h"

static bk_run_config c, d;
static bk_error err;

static bk_status any_setup(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *e)
{
    (void)st;
    return spec->option[1] == 7 ? bk_fail(e, BK_EINVAL, "%s: not 7 levels", shape->name) : BK_OK;
}

/* Of the shapes that configs are checked with, 64 x 64 and 64. */
static int64_t units(const void *st)
{
    (void)st;
    return 64;
}

static bool no_range(const void *st)
{
    (void)st;
    return false;
}

static const bk_option own[] = {
    {.name = "alpha", .about = "a number", .type = BK_OPTION_REAL, .initial = 0.25, .min = -1, .max = 1},
    {.name = "levels", .about = "a whole number", .type = BK_OPTION_INT, .initial = 3, .min = 1, .max = 9},
    {.name = "soft", .about = "a switch", .type = BK_OPTION_BOOL, .initial = 1},
};
static const bk_option others[] = {
    {.name = "alpha", .about = "another number", .type = BK_OPTION_REAL, .initial = 5, .min = 0, .max = 10}};
static const bk_quantizer made_up = {.name = "made_up",
                                     .about = "weights",
                                     .for_weights = true,
                                     .options = own,
                                     .n_options = 3,
                                     .setup = any_setup,
                                     .units = units,
                                     .needs_range = no_range};
static const bk_quantizer other = {.name = "other",
                                   .about = "both",
                                   .for_weights = true,
                                   .for_activations = true,
                                   .options = others,
                                   .n_options = 1,
                                   .setup = any_setup,
                                   .units = units,
                                   .needs_range = no_range};

static void setup(void)
{
    unsetenv("OMP_NUM_THREADS");
    err = (bk_error){0};
    bk_quantizers[bk_quantizer_count++] = &made_up;
    bk_quantizers[bk_quantizer_count++] = &other;
    ck_assert_msg(bk_keys_complete(&err) == BK_OK, "%s", err.msg);
}

static void teardown(void)
{
    bk_quantizer_count -= 2;
    ck_assert_int_eq(bk_keys_complete(&err), BK_OK);
}

static bk_status parse(const char *text, const char *set)
{
    err = (bk_error){0};
    return bk_run_config_parse(text, strlen(text), "c.yaml", &set, set != NULL, &c, &err);
}

static void must(bk_status st)
{
    ck_assert_msg(st == BK_OK, "%s", err.msg);
}

#define CHOSEN "quant:\n  weight:\n    quantizer: made_up\n"

START_TEST(options_begin_with_their_defaults)
{
    must(parse(CHOSEN, NULL));
    ck_assert_double_eq(c.quant.weight.option[0], 0.25);
    ck_assert_double_eq(c.quant.weight.option[1], 3);
    ck_assert_double_eq(c.quant.weight.option[2], 1);
    ck_assert_double_eq(c.quant.weight.option[3], 0);
    ck_assert_double_eq(c.quant.key.option[0], 0);
}
END_TEST

START_TEST(options_arrive_in_the_order_of_the_quantizer)
{
    must(parse("quant:\n"
               "  weight: {made_up: {soft: false, levels: 9, alpha: -0.5}, quantizer: made_up}\n"
               "  key: {quantizer: other, other: {alpha: 7}}\n",
               "quant.weight.made_up.levels=4"));
    ck_assert_double_eq(c.quant.weight.option[0], -0.5);
    ck_assert_double_eq(c.quant.weight.option[1], 4);
    ck_assert_double_eq(c.quant.weight.option[2], 0);
    ck_assert_double_eq(c.quant.key.option[0], 7);
}
END_TEST

static const struct {
    const char *text, *set, *place, *word;
} bad[] = {
    {CHOSEN "    made_up: {alhpa: 1}\n", NULL, "c.yaml:4:15: ", "did you mean 'quant.weight.made_up.alpha'?"},
    {CHOSEN "    made_pu: {alpha: 1}\n", NULL, "c.yaml:4:5: ", "did you mean 'quant.weight.made_up'?"},
    {CHOSEN "    made_up: 3\n", NULL, "c.yaml:4:14: ", "section"},
    {CHOSEN "    made_up: {alpha: 1.5}\n", NULL,
     "c.yaml:4:22: ", "quant.weight.made_up.alpha: 1.5 is not in the range -1 to 1"},
    {CHOSEN "    made_up: {levels: 2.5}\n", NULL, "c.yaml:4:23: ", "whole number"},
    {CHOSEN "    made_up: {levels: 10}\n", NULL, "c.yaml:4:23: ", "range 1 to 9"},
    {CHOSEN "    made_up: {soft: 1}\n", NULL, "c.yaml:4:21: ", "true or false"},
    {CHOSEN "    made_up: {soft: true, soft: true}\n", NULL, "c.yaml:4:27: ", "twice"},
    {CHOSEN "    other: {alpha: 1}\n", NULL, "c.yaml:4:20: ",
     "quant.weight.other.alpha: is an option of the quantizer `other`, and quant.weight.quantizer is `made_up` here"},
    {"quant: {weight: {made_up: {soft: true}}}\n", NULL, "c.yaml:1:34: ", "is `affine` here"},
    {"seed: 1\n", "quant.weight.made_up.alpha=1", "--set quant.weight.made_up.alpha: is an option", "is `affine` here"},
    {CHOSEN "  key:\n    made_up: {alpha: 1}\n", NULL, "c.yaml:5:5: ", "unknown key"}, /* it is for weights alone */
    {"quant: {weight: {quantizer: mine}}\n", NULL, "c.yaml:1:29: ", "is --plugin FILE.so missing?"},
    {"quant: {weight: {mine: {alpha: 1}}}\n", NULL, "c.yaml:1:18: ", "is --plugin FILE.so missing?"},
    {"seed: 1\n", "quant.weight.mine.threshold=1", "--set quant.weight.mine.threshold: unknown key (",
     "is --plugin FILE.so missing?"},
};

START_TEST(bad_options_name_place_and_fault)
{
    ck_assert_int_eq(parse(bad[_i].text, bad[_i].set), BK_EINVAL);
    ck_assert_msg(strncmp(err.msg, bad[_i].place, strlen(bad[_i].place)) == 0, "'%s' does not begin with '%s'", err.msg,
                  bad[_i].place);
    ck_assert_msg(strstr(err.msg, bad[_i].word) != NULL, "no '%s' in '%s'", bad[_i].word, err.msg);
}
END_TEST

#define SET CHOSEN "    made_up: {alpha: 0.1, levels: 5}\n"
#define DATA "data: {training: {text: t}, evaluation: {text: e}}\n"

START_TEST(a_quantizer_chosen_by_a_later_layer_drops_the_options)
{
    must(parse(SET, "quant.weight.quantizer=other"));
    ck_assert_double_eq(c.quant.weight.option[0], 5);
    ck_assert_double_eq(c.quant.weight.option[1], 0);
    must(parse(SET, "scheme=W4A4-static"));
    ck_assert_str_eq(c.quant.weight.quantizer, "affine");
    ck_assert_double_eq(c.quant.weight.option[0], 0);
    /* What is dropped must still be right. */
    ck_assert_int_eq(parse(CHOSEN "    made_up: {alpha: 5}\n", "scheme=W4A4-static"), BK_EINVAL);
}
END_TEST

START_TEST(the_resolved_config_has_the_options_that_count)
{
    char in_c[64], in_d[64];
    must(parse(SET "  key: {quantizer: other}\n", NULL));
    char *text = bk_run_config_write(&c);
    ck_assert_ptr_nonnull(strstr(
        text, "    clip: false\n    made_up:\n      alpha: 0.1\n      levels: 5\n      soft: true\n  activation:\n"));
    ck_assert_ptr_nonnull(strstr(text, "    other:\n      alpha: 5\n  value:\n"));
    ck_assert_ptr_null(strstr(strstr(text, "other:") + 6, "other:"));
    ck_assert_msg(bk_run_config_parse(text, strlen(text), "again.yaml", NULL, 0, &d, &err) == BK_OK, "%s\n%s", err.msg,
                  text);
    ck_assert_ptr_null(bk_run_config_diff(&c, &d, NULL, in_c, in_d, sizeof in_c));
    char *twice = bk_run_config_write(&d);
    ck_assert_str_eq(text, twice);
    free(text);
    free(twice);
}
END_TEST

START_TEST(differences_are_those_of_options_too)
{
    char in_c[64], in_d[64];
    must(parse(SET, NULL));
    d = c;
    must(parse(SET, "quant.weight.made_up.levels=6"));
    ck_assert_str_eq(bk_run_config_diff(&d, &c, NULL, in_d, in_c, sizeof in_d), "quant.weight.made_up.levels");
    ck_assert_str_eq(in_d, "5");
    ck_assert_str_eq(in_c, "6");
    must(parse("quant: {weight: {quantizer: other}}\n", NULL));
    ck_assert_str_eq(bk_run_config_diff(&d, &c, NULL, in_d, in_c, sizeof in_d), "quant.weight.quantizer");
}
END_TEST

START_TEST(digests_hold_the_options_that_count)
{
    static const char *const quant[] = {"quant.weight", NULL}, *const all[] = {"quant.", NULL};
    char *text;
    must(parse(SET, NULL));
    must(bk_config_digest_keys(&c, quant, &text, &err));
    ck_assert_ptr_nonnull(strstr(text, "quant.weight.quantizer: made_up\n"));
    ck_assert_ptr_nonnull(strstr(
        text, "quant.weight.made_up.alpha: 0.1\nquant.weight.made_up.levels: 5\nquant.weight.made_up.soft: true\n"));
    free(text);
    must(bk_config_digest_keys(&c, all, &text, &err));
    ck_assert_ptr_null(strstr(text, "other"));
    free(text);
}
END_TEST

START_TEST(a_value_that_the_quantizer_refuses_is_blamed_on_its_option)
{
    must(parse("model: m\n" DATA CHOSEN "    made_up: {levels: 7}\n", NULL));
    ck_assert_int_eq(bk_run_config_check(&c, &err), BK_EINVAL);
    ck_assert_msg(strncmp(err.msg, "c.yaml:6:23: quant.weight.made_up.levels: weight: not 7 levels", 62) == 0, "%s",
                  err.msg);
}
END_TEST

START_TEST(a_quantizer_cannot_have_the_name_of_a_key)
{
    bk_quantizer step = made_up;
    step.name = "step";
    bk_quantizers[bk_quantizer_count++] = &step;
    ck_assert_int_eq(bk_keys_complete(&err), BK_EFORMAT);
    ck_assert_msg(strstr(err.msg, "quant.weight.step is a key") != NULL, "%s", err.msg);
    bk_quantizer_count--;
    err = (bk_error){0};
}
END_TEST

START_TEST(more_options_than_there_is_room_for_are_refused)
{
    static bk_quantizer many[BK_QUANTIZERS_MAX];
    static char name[BK_QUANTIZERS_MAX][16], letter[BK_OPTIONS_MAX][2];
    bk_option eight[BK_OPTIONS_MAX];
    int before = bk_quantizer_count;
    for (int i = 0; i < BK_OPTIONS_MAX; i++) {
        letter[i][0] = (char)('a' + i);
        eight[i] = own[0];
        eight[i].name = letter[i];
    }
    for (int i = before; i < BK_QUANTIZERS_MAX; i++) {
        many[i] = other;
        snprintf(name[i], sizeof name[i], "q%d", i);
        many[i].name = name[i];
        many[i].options = eight;
        many[i].n_options = BK_OPTIONS_MAX;
        bk_quantizers[bk_quantizer_count++] = &many[i];
    }
    ck_assert_int_eq(bk_keys_complete(&err), BK_EFORMAT);
    ck_assert_msg(strstr(err.msg, "too many options") != NULL, "%s", err.msg);
    bk_quantizer_count = before;
    err = (bk_error){0};
}
END_TEST

START_TEST(those_of_the_list_fit)
{
    bk_quantizer_count -= 2;
    ck_assert_msg(bk_keys_complete(&err) == BK_OK, "%s", err.msg);
    ck_assert_int_ge(bk_key_find("evaluate"), 0);
    bk_quantizer_count += 2;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant_options");
    TCase *t = tcase_create("options");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, options_begin_with_their_defaults);
    tcase_add_test(t, options_arrive_in_the_order_of_the_quantizer);
    tcase_add_loop_test(t, bad_options_name_place_and_fault, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, a_quantizer_chosen_by_a_later_layer_drops_the_options);
    tcase_add_test(t, the_resolved_config_has_the_options_that_count);
    tcase_add_test(t, differences_are_those_of_options_too);
    tcase_add_test(t, digests_hold_the_options_that_count);
    tcase_add_test(t, a_value_that_the_quantizer_refuses_is_blamed_on_its_option);
    tcase_add_test(t, a_quantizer_cannot_have_the_name_of_a_key);
    tcase_add_test(t, more_options_than_there_is_room_for_are_refused);
    tcase_add_test(t, those_of_the_list_fit);
    suite_add_tcase(s, t);
    return run_suite(s);
}
