/* brick outliers through its handler. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "experiments/verbs.h"
#include "tests/letters.h"
#include "tests/ok.h"
#include "tests/suite.h"

#define OUTLIERS(...)                                                                                                          \
    letters_call(bk_verb_outliers, "outliers", "--model", letters.folder, "--text", letters.text, "--seqlen", "32", "--samples", "4", \
                 __VA_ARGS__, NULL)

static const bk_json *stage_of(const bk_json *o, size_t i)
{
    return bk_json_at(bk_json_get(o, "stages"), i);
}

static double ratio_of(const bk_json *stage, size_t block, const char *site, const char *which)
{
    const bk_json *sites = bk_json_get(bk_json_at(bk_json_get(stage, "blocks"), block), "sites");
    return bk_json_num(bk_json_get(bk_json_get(sites, site), which), -1);
}

START_TEST(outliers_finds_the_planted_tokens)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--rotate", "none"), 0);
    bk_json *o = letters_json();
    const bk_json *s = stage_of(o, 0);
    static const char *const sides[] = {"upper", "lower"};
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "stages")), 1);
    for (int k = 0; k < 2; k++) {
        const bk_json *side = bk_json_get(s, sides[k]), *tokens = bk_json_get(side, "tokens");
        ck_assert_int_eq(bk_json_int(bk_json_get(side, "count"), -1), 4);
        for (size_t i = 0; i < bk_json_size(tokens); i++)
            ck_assert_str_eq(bk_json_str(bk_json_get(bk_json_at(tokens, i), "text"), "?"), ".");
    }
    ck_assert_int_eq(bk_json_int(bk_json_get(s, "shared"), -1), 4);
    ck_assert_double_gt(ratio_of(s, 0, "down_raw", "top1_over_median"), 64);
    ck_assert_double_gt(ratio_of(s, 0, "block_out", "top1_over_median"), 64);
    ck_assert_double_gt(ratio_of(s, 0, "query", "median_over_min1"), 8);
    ck_assert_double_lt(ratio_of(s, 0, "query", "top1_over_median"), 8);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_chooses_the_prefix_from_what_it_found)
{
    ck_assert_int_eq(OUTLIERS("--json"), 0);
    bk_json *o = letters_json();
    const bk_json *prefix = bk_json_get(o, "prefix");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "stages")), 3);
    ck_assert_uint_eq(bk_json_size(bk_json_get(prefix, "ids")), 2); /* a model without BOS ends the prefix with its LETTERS_EOS */
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(prefix, "ids"), 0), -1), '.');
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(prefix, "ids"), 1), -1), LETTERS_EOS);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(prefix, "text"), 0), "?"), ".");
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_rotation_lowers_channels_but_not_down_raw)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none"), 0);
    bk_json *o = letters_json();
    double before = ratio_of(stage_of(o, 0), 0, "down_raw", "top1_over_median"),
           after = ratio_of(stage_of(o, 1), 0, "down_raw", "top1_over_median");
    ck_assert_double_eq_tol(after / before, 1, 1e-3);
    before = ratio_of(stage_of(o, 0), 0, "block_out", "top1_over_median");
    ck_assert_double_lt(ratio_of(stage_of(o, 1), 0, "block_out", "top1_over_median"), before / 2);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_error_sits_on_the_outlier)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--rotate", "none", "--block", "1"), 0);
    bk_json *o = letters_json();
    const bk_json *e = bk_json_get(stage_of(o, 0), "error"), *share = bk_json_get(e, "share_of_worst");
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "error_block"), -1), 1);
    ck_assert_double_gt(bk_json_num(bk_json_get(e, "mse"), -1), 0);
    double one = bk_json_num(bk_json_at(share, 0), -1), two = bk_json_num(bk_json_at(share, 1), -1),
           three = bk_json_num(bk_json_at(share, 2), -1);
    ck_assert_double_gt(one, 0.5);
    ck_assert(one <= two && two <= three && three <= 1 + 1e-12);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_columns_of_a_table_align)
{
    ck_assert_int_eq(OUTLIERS("--rotate", "all"), 0);
    const char *head = strstr(letters.printed, "block site"), *row = head ? strchr(head, '\n') : NULL;
    ck_assert_ptr_nonnull(row);
    int64_t width = row - head;
    for (int i = 0; i < 2 * BK_SITE_COUNT; i++, row = strchr(row + 1, '\n'))
        ck_assert_int_eq(strchr(row + 1, '\n') - row - 1, width);
}
END_TEST

START_TEST(outliers_refuses_a_block_that_is_not_there)
{
    ck_assert_int_eq(OUTLIERS("--block", "2"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_sequences_that_leave_no_room_for_a_prefix)
{
    ck_assert_int_eq(letters_call(bk_verb_outliers, "outliers", "--model", letters.folder, "--text", letters.text, "--seqlen", "128", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_an_unknown_scheme)
{
    ck_assert_int_eq(OUTLIERS("--scheme", "W9Z4"), BK_EXIT_USAGE);
}
END_TEST

/* --- --offq --- */

static const bk_json *offq_of(const bk_json *o, size_t i)
{
    return bk_json_at(bk_json_get(o, "offq"), i);
}

static double share_of(const bk_json *offq, const char *basis, const char *rows)
{
    return bk_json_num(bk_json_get(bk_json_get(offq, basis), rows), NAN);
}

/* What a '.' sticks out by is one channel: one direction holds nearly all of the top tokens. No other basis holds more of a set of tokens than
 * its own. */
START_TEST(outliers_offq_finds_the_planted_direction)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = letters_json();
    const bk_json *q = offq_of(o, 0);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "offq")), 1);
    ck_assert_str_eq(bk_json_str(bk_json_get(q, "stage"), "?"), "original");
    double top = share_of(q, "top_basis", "top"), all = share_of(q, "all_basis", "all");
    ck_assert_double_gt(top, 0.95);
    ck_assert_double_lt(share_of(q, "top_basis", "all"), 0.2);
    ck_assert_double_le(share_of(q, "all_basis", "top"), top);
    ck_assert_double_lt(share_of(q, "top_basis", "all"), all);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_is_measured_behind_the_prefix_too)
{
    ck_assert_int_eq(OUTLIERS("--json", "--offq"), 0);
    bk_json *o = letters_json();
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "offq")), 2);
    ck_assert_str_eq(bk_json_str(bk_json_get(offq_of(o, 1), "stage"), "?"), "with prefix");
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_takes_the_size_of_groups)
{
    double share[2];
    static const char *const group[] = {"4", "2"};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq", "--offq-group", group[i]), 0);
        bk_json *o = letters_json();
        const bk_json *q = offq_of(o, 0);
        ck_assert_int_eq(bk_json_int(bk_json_get(q, "group"), -1), atoi(group[i]));
        share[i] = share_of(q, "all_basis", "all");
        bk_json_free(o);
    }
    ck_assert_double_gt(share[1], share[0]); /* twice as many directions */
}
END_TEST

START_TEST(outliers_offq_tells_the_spikiness_of_every_head)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = letters_json();
    const bk_json *blocks = bk_json_get(offq_of(o, 0), "key_spikiness");
    double least = INFINITY, most = 0, median = bk_json_num(bk_json_get(offq_of(o, 0), "spikiness"), NAN);
    ck_assert_uint_eq(bk_json_size(blocks), 2);
    for (size_t l = 0; l < 2; l++)
        for (size_t h = 0; h < bk_json_size(bk_json_at(blocks, l)); h++) {
            double x = bk_json_num(bk_json_at(bk_json_at(blocks, l), h), NAN);
            least = fmin(least, x);
            most = fmax(most, x);
        }
    ck_assert_double_ge(least, 1); /* the largest entry is not below the root mean square */
    ck_assert(least <= median && median <= most);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_prints_what_json_has)
{
    char want[64];
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = letters_json();
    snprintf(want, sizeof want, "basis of the top tokens: top tokens  %11.2f%%\n", 100 * share_of(offq_of(o, 0), "top_basis", "top"));
    bk_json_free(o);
    ck_assert_int_eq(OUTLIERS("--prefix", "none", "--offq"), 0);
    ck_assert_msg(strstr(letters.printed, want), "'%s' is not letters.printed", want);
}
END_TEST

START_TEST(outliers_without_offq_says_nothing_of_it)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none"), 0);
    ck_assert_ptr_null(strstr(letters.printed, "offq"));
    ck_assert_int_eq(OUTLIERS("--prefix", "none"), 0);
    ck_assert_ptr_null(strstr(letters.printed, "OffQ"));
}
END_TEST

START_TEST(outliers_offq_refuses_groups_that_do_not_divide)
{
    ck_assert_int_eq(OUTLIERS("--offq", "--offq-group", "7"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_groups_without_offq)
{
    ck_assert_int_eq(OUTLIERS("--offq-group", "4"), BK_EXIT_USAGE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verb_outliers");
    TCase *t = tcase_create("outliers");
    tcase_add_checked_fixture(t, letters_begin, letters_end);
    tcase_set_timeout(t, 60); /* shared machines */
    tcase_add_test(t, outliers_finds_the_planted_tokens);
    tcase_add_test(t, outliers_chooses_the_prefix_from_what_it_found);
    tcase_add_test(t, outliers_rotation_lowers_channels_but_not_down_raw);
    tcase_add_test(t, outliers_error_sits_on_the_outlier);
    tcase_add_test(t, outliers_columns_of_a_table_align);
    tcase_add_test(t, outliers_refuses_a_block_that_is_not_there);
    tcase_add_test(t, outliers_refuses_sequences_that_leave_no_room_for_a_prefix);
    tcase_add_test(t, outliers_refuses_an_unknown_scheme);
    tcase_add_test(t, outliers_offq_finds_the_planted_direction);
    tcase_add_test(t, outliers_offq_is_measured_behind_the_prefix_too);
    tcase_add_test(t, outliers_offq_takes_the_size_of_groups);
    tcase_add_test(t, outliers_offq_tells_the_spikiness_of_every_head);
    tcase_add_test(t, outliers_offq_prints_what_json_has);
    tcase_add_test(t, outliers_without_offq_says_nothing_of_it);
    tcase_add_test(t, outliers_offq_refuses_groups_that_do_not_divide);
    tcase_add_test(t, outliers_refuses_groups_without_offq);
    suite_add_tcase(s, t);
    return run_suite(s);
}
