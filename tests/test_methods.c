/* The list of methods: what each sets by default, and what must hold between its keys and the shapes of a model. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "experiments/schema.h"
#include "experiments/scheme.h"
#include "tests/suite.h"

static bk_run_config c;
static bk_error err;

static void parse(const char *text, const char *const *sets, int n)
{
    err = (bk_error){0};
    bk_status st = bk_run_config_parse(text, strlen(text), "c.yaml", sets, n, &c, &err);
    ck_assert_msg(st == BK_OK, "%s", err.msg);
}

static void parse_method(const char *name)
{
    char set[64];
    snprintf(set, sizeof set, "method=%s", name);
    parse("model: x\n", &(const char *){set}, 1);
}

START_TEST(every_method_is_a_choice_and_sets_known_keys)
{
    char choices[256] = "";
    for (int i = 0; i < bk_method_count; i++) {
        parse_method(bk_methods[i].name);
        snprintf(choices + strlen(choices), sizeof choices - strlen(choices), "%s%s", i ? "|" : "", bk_methods[i].name);
    }
    ck_assert_str_eq(bk_keys[bk_key_find("method")].choices, choices);
}
END_TEST

/* Steps as the code of each paper has them; all others take max over half of all codes. */
START_TEST(the_step_of_a_method_is_its_own)
{
    static const char restricted[] = " offq quarot spinquant dfrot dartquant kurtail smoothquant gptq awq omniquant ";
    for (int i = 0; i < bk_method_count; i++) {
        char word[64];
        snprintf(word, sizeof word, " %s ", bk_methods[i].name);
        bool want = strstr(restricted, word) != NULL;
        parse_method(bk_methods[i].name);
        ck_assert_msg(c.quant.weight.restricted == want && c.quant.activation.restricted == want && c.quant.key.restricted == want &&
                          c.quant.value.restricted == want,
                      "%s: step %s?", bk_methods[i].name, want ? "restricted" : "full");
    }
}
END_TEST

START_TEST(gptq_begins_as_published)
{
    parse_method("gptq");
    ck_assert(c.gptq.percdamp == 0.01 && c.gptq.first_weight == 1 && !c.gptq.act_order && !c.gptq.static_groups && !c.gptq.act_quant);
    ck_assert(c.data.statistics.samples == 128 && c.data.statistics.seqlen == 2048);
}
END_TEST

/* hidden 192, inter 384: groups of down's input are 128 by themselves. NULL: accepted. */
static const struct {
    const char *set, *why;
} offsets[] = {
    {"scheme=W4A4KV4-dynamic-asym-gauto", NULL},
    {"scheme=W4A4KV4-dynamic-asym-g64", NULL},
    {"scheme=W4A4KV4-dynamic-asym-g96", "rotation.r4_group: 128 channels get one offset, and 96 share a zero point: write a multiple of 96"},
    {"scheme=W4A4KV4-dynamic-asym-g192", "rotation.r4_group: 128 channels get one offset, and 192 share a zero point"},
    {"offq.group=32", "offq.group: 32 channels get one offset, and 64 share a zero point"},
    {"offq.group=192", NULL},
};

START_TEST(no_two_offsets_share_a_zero_point)
{
    bk_config model = {.vocab = 8, .layers = 1, .hidden = 192, .inter = 384, .heads = 3, .kv_heads = 3, .head_dim = 64, .max_positions = 4096};
    parse("model: x\nmethod: offq\n", &offsets[_i].set, 1);
    bk_status st = bk_run_config_check_model(&c, &model, 0, &err);
    ck_assert_msg(offsets[_i].why ? st == BK_EINVAL && strstr(err.msg, offsets[_i].why) : st == BK_OK, "%s: %s", offsets[_i].set, err.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("methods");
    TCase *t = tcase_create("list");
    tcase_add_test(t, every_method_is_a_choice_and_sets_known_keys);
    tcase_add_test(t, the_step_of_a_method_is_its_own);
    tcase_add_test(t, gptq_begins_as_published);
    suite_add_tcase(s, t);
    t = tcase_create("shapes");
    tcase_add_loop_test(t, no_two_offsets_share_a_zero_point, 0, (int)(sizeof offsets / sizeof offsets[0]));
    suite_add_tcase(s, t);
    return run_suite(s);
}
