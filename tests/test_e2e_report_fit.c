/* brick report on runs with fitted transforms. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e_report.h"

#define FITTED "--set train.epochs=0 --set prefix.mode=none --set data.statistics.samples=2 --set data.statistics.seqlen=32"

START_TEST(a_run_that_fits_nothing_speaks_of_no_fit)
{
    e2e_brick(0, "report r");
    page_take("r/report");
    page_hides("Fitted transforms");
}
END_TEST

/* The numbers of the stage that the run took them from. */
START_TEST(concentration_of_offq_is_on_the_page)
{
    char share[64];
    e2e_brick(0, "run run.yaml --set method=offq --set scheme=W4A4KV4-dynamic-asym-gauto " FITTED " --out f");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("Fitted: the basis of R1 by OffQ.");
    char *text = e2e_text("f/fit.json");
    bk_json *fit = NULL;
    ck_assert_int_eq(bk_json_parse(text, strlen(text), "f/fit.json", &fit, NULL), BK_OK);
    double top = bk_json_num(bk_json_get(bk_json_get(bk_json_get(fit, "offq"), "top_basis"), "top"), -1);
    snprintf(share, sizeof share, "<td>the top tokens</td><td class=\"n\">%.2f %%</td>", 100 * top);
    page_shows(share);
    bk_json_free(fit);
    free(text);
}
END_TEST

START_TEST(ratios_of_awq_are_a_row_for_each_block)
{
    e2e_brick(0, "run run.yaml --set method=awq --set scheme=W4A16-g32 " FITTED " --out f");
    e2e_write("f/fit.json", "{\"awq\": [{\"block\": 1, \"site\": \"mlp_in\", \"ratio\": 0.35, \"error\": 0.5},"
                            " {\"block\": 0, \"site\": \"attn_in\", \"ratio\": 0.2, \"error\": 0.75}]}\n");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("<td class=\"n\">0</td><td class=\"n\">0.20</td><td class=\"n\">0.750</td><td class=\"n\">\xe2\x80\x93</td>");
    page_shows("<td class=\"n\">0.35</td><td class=\"n\">0.500</td>");
}
END_TEST

START_TEST(losses_of_a_learned_rotation_are_on_the_page)
{
    e2e_brick(0, "run run.yaml --set method=kurtail --set norm_rotation.epochs=2 --set norm_rotation.batch=16 " FITTED " --out f");
    e2e_write("f/fit.json", "{\"losses\": [3, 1.5, 2]}\n");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("<td>loss, 3 epochs</td><td class=\"n\">3</td><td class=\"n\">1.5</td><td class=\"n\">2</td>");
}
END_TEST

START_TEST(a_fit_without_its_numbers_is_a_sentence)
{
    e2e_brick(0, "run run.yaml --set method=smoothquant " FITTED " --out f");
    e2e_remove("f/fit.json");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("there is no fit.json");
}
END_TEST

START_TEST(a_damaged_fit_gives_no_numbers)
{
    e2e_brick(0, "run run.yaml --set method=smoothquant " FITTED " --out f");
    e2e_write("f/fit.json", "{\"awq\": [{\"block\": 9e15}, 7], \"offq\": 3, \"losses\": [null, \"x\"], \"errors\": {}}");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("fit.json does not hold what it should: offq.");
    page_shows("fit.json does not hold what it should: errors.");
    page_hides("directions");
    page_shows("<td>loss, 2 epochs</td><td class=\"n\">\xe2\x80\x93</td><td class=\"n\">\xe2\x80\x93</td><td class=\"n\">\xe2\x80\x93</td>");
    page_shows("<th class=\"n\">attn_in</th>"); /* AWQ's table, */
    page_hides("<tr><td class=\"n\">0</td>");     /* with no row */
    e2e_write("f/fit.json", "{\"awq\": ");
    e2e_brick(0, "report f");
    page_take("f/report");
    page_shows("f/fit.json: ");
}
END_TEST

int main(void)
{
    const TTest *const drawing[] = {
        a_run_that_fits_nothing_speaks_of_no_fit,
        concentration_of_offq_is_on_the_page,
        ratios_of_awq_are_a_row_for_each_block,
        losses_of_a_learned_rotation_are_on_the_page,
        a_fit_without_its_numbers_is_a_sentence,
        a_damaged_fit_gives_no_numbers};
    return report_tests("e2e_report_fit", NULL, 0, drawing, sizeof drawing / sizeof drawing[0]);
}
