/* brick report on runs that are not whole: unfinished, damaged, without their model or with another text. What is missing becomes a sentence. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drawn.h"
#include "tests/e2e_report.h"

/* --- what is missing becomes a sentence --- */

START_TEST(an_unfinished_run_is_shown_as_it_is)
{
    e2e_remove("r/summary.json");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("The run is not finished");
    page_shows("since the first epoch");
    ck_assert_int_eq(page_count("<svg"), 5);
}
END_TEST

START_TEST(a_run_without_prefix_says_so)
{
    e2e_brick(0, "report r");
    page_take("r/report");
    ck_assert_int_ge(page_count("with prefix</text>"), 3); /* in the pictures of activations */
    page_hides("The run has no prefix.");
    e2e_brick(0, "run run.yaml --set prefix.mode=none --out n");
    e2e_brick(0, "report n");
    page_take("n/report");
    page_shows("The run has no prefix.");
    page_hides("with prefix</text>");
    ck_assert_int_eq(page_count("<svg"), 5);
}
END_TEST

START_TEST(a_run_without_training_says_so)
{
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out n");
    e2e_brick(0, "report n --json");
    page_take("n/report");
    page_shows("The run does not train");
    ck_assert_int_eq(page_count("<svg"), 3);
    e2e_absent("n/report/losses.svg");
    char *json = e2e_text("out");
    ck_assert_msg(strstr(json, "\"svg\": null, \"png\": null, \"missing\": \"The run does not train"), "%s", json);
    free(json);
}
END_TEST

/* A picture of before does not stay beside a page that has none. */
START_TEST(files_of_a_picture_that_is_gone_go_too)
{
    e2e_brick(0, "report r");
    e2e_exists("r/report/losses.svg");
    e2e_remove("r/metrics.jsonl");
    e2e_brick(0, "report r");
    e2e_absent("r/report/losses.svg");
    e2e_absent("r/report/losses.png");
}
END_TEST

START_TEST(without_its_model_the_rest_of_a_run_is_shown)
{
    e2e_replace("r/config.yaml", "../m", "../gone");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("Not measured: ../gone");
    ck_assert_int_eq(page_count("<svg"), 2);
}
END_TEST

START_TEST(another_model_is_not_measured_as_the_run_s)
{
    e2e_copy_tree("../m", "m2");
    e2e_flip("m2/model.safetensors", -1);
    e2e_replace("r/config.yaml", "../m", "m2");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("m2 is not the model of the run any more");
}
END_TEST

START_TEST(what_was_measured_serves_when_the_model_is_gone)
{
    e2e_copy_tree("../m", "m");
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --out own");
    e2e_brick(0, "report own");
    e2e_remove("m");
    e2e_brick(0, "report own");
    page_take("own/report");
    ck_assert_int_eq(page_count("<svg"), 5);
}
END_TEST

#define OWN_TEXT "--set data.detection.text=t.txt --set train.epochs=0 "

/* The text in which the run looked for outlier tokens is not that text any more. */
START_TEST(another_text_is_not_measured_as_the_run_s)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--out own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    page_take("own/report");
    page_shows("t.txt is not the text of the run any more");
    ck_assert_int_eq(page_count("<svg"), 0);
}
END_TEST

/* A run with no need to look for them has read the text as another set. */
START_TEST(a_text_that_was_read_for_training_is_known)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml --set data.detection.text=t.txt --set data.training.text=t.txt --set prefix.mode=none --out own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    page_take("own/report");
    page_shows("t.txt is not the text of the run any more");
}
END_TEST

START_TEST(what_was_measured_serves_when_the_text_has_changed)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--out own");
    e2e_brick(0, "report own");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    e2e_silent("original: done");
    page_take("own/report");
    ck_assert_int_eq(page_count("<svg"), 3);
}
END_TEST

/* A text that the run never read has no hash in its manifest: what was measured is of the bytes of then. */
START_TEST(a_changed_text_that_the_run_did_not_read_is_measured_again)
{
    e2e_copy_tree("../m/train.txt", "t.txt");
    e2e_brick(0, "run run.yaml " OWN_TEXT "--set prefix.mode=none --out own");
    e2e_brick(0, "report own");
    e2e_said("original: done");
    e2e_append("t.txt", "One line more.\n");
    e2e_brick(0, "report own");
    e2e_said("original: done");
}
END_TEST

/* Two builds of a version may compute differently. */
START_TEST(another_build_measures_again)
{
    e2e_brick(0, "report r");
    e2e_other_build();
    e2e_brick(0, "report r");
    e2e_said("original: done");
}
END_TEST

/* --- damage --- */

START_TEST(damaged_metrics_are_shown_up_to_the_damage)
{
    e2e_append("r/metrics.jsonl", "{\"block\": 1, \"epo");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("metrics.jsonl cannot be read from line 5 on");
    ck_assert_int_eq(page_count("<svg"), 5);
}
END_TEST

START_TEST(metrics_that_are_no_metrics_are_a_sentence)
{
    e2e_write("r/metrics.jsonl",
              "{\"block\": -3, \"epoch\": 1e300}\n{\"block\": 9e15, \"epoch\": 1, \"val_loss\": 1}\n{}\n");
    e2e_brick(0, "report r");
    page_take("r/report");
    ck_assert_int_eq(page_count("<svg"), 3);
    ck_assert_int_eq(page_count("metrics.jsonl holds no epoch of the training."), 2); /* losses and gradients */
}
END_TEST

/* A finished run has trained: its epochs are lost, not to come. */
START_TEST(lost_metrics_of_a_finished_run_are_a_sentence)
{
    e2e_remove("r/metrics.jsonl");
    e2e_brick(0, "report r");
    page_take("r/report");
    ck_assert_int_eq(page_count("metrics.jsonl holds no epoch of the training."), 2);
    e2e_remove("r/summary.json");
    e2e_brick(0, "report r");
    page_take("r/report");
    ck_assert_int_eq(page_count("No epoch of the training is finished yet."), 2);
}
END_TEST

/* What can be drawn of them is, the rest left out. */
START_TEST(numbers_of_any_size_are_drawn)
{
    e2e_write("r/metrics.jsonl",
              "{\"block\": 0, \"epoch\": 1, \"step\": 1000000000, \"val_loss\": 1e308, \"grad_norms\": [null, 1e-290, "
              "\"x\"]}\n"
              "{\"block\": 1, \"epoch\": 1, \"step\": 0, \"val_loss\": -1, \"grad_norms\": {\"a\": 1}}\n");
    e2e_brick(0, "report r");
    page_take("r/report");
    ck_assert_int_eq(page_count("<svg"), 5);
    drawn *d = drawn_read("r/report/losses.gp");
    const drawn_curve *during = drawn_titled(&d->plot[0], "each epoch"), *before = drawn_titled(&d->plot[0], "before");
    ck_assert_uint_eq(during->rows->n, 2);
    ck_assert(isnan(drawn_at(during, 0, 1)) && isnan(drawn_at(during, 1, 1)));
    ck_assert(drawn_at(before, 0, 1) > 0 && drawn_at(before, 1, 1) > 0);
    drawn_free(d);
    d = drawn_read("r/report/gradients.gp");
    const drawn_curve *norms = &d->plot[0].curve[0];
    ck_assert_uint_eq(norms->rows->n, 1);
    ck_assert_double_eq_tol(drawn_at(norms, 0, 0), 1, 1e-3);
    ck_assert_double_eq(drawn_at(norms, 0, 1), 1e-290);
    drawn_free(d);
}
END_TEST

START_TEST(a_damaged_summary_is_a_sentence)
{
    e2e_write("r/summary.json", "{\"model\": ");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("r/summary.json");
    page_hides("<h3>Perplexities</h3>\n<div");
}
END_TEST

/* Numbers that are no longer the run's own are not passed off as them. */
START_TEST(a_file_that_was_changed_is_named)
{
    e2e_brick(0, "report r");
    page_take("r/report");
    page_hides("SHA256SUMS");
    e2e_replace("r/summary.json", "\"ppl\": 1", "\"ppl\": 2");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("SHA256SUMS");
    page_shows("summary.json");
}
END_TEST

START_TEST(a_damaged_config_is_shown_as_it_stands)
{
    e2e_write("r/config.yaml", "model: [<b>\n");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("r/config.yaml:");
    page_shows("model: [&lt;b&gt;");
    page_shows("Not measured, since config.yaml cannot be read.");
    e2e_said("r: pictures of activations are missing on the page: ");
}
END_TEST

START_TEST(damaged_measurements_are_measured_again)
{
    e2e_brick(0, "report r");
    char *before = e2e_text("r/report/index.html");
    e2e_write("r/report/data.json", "{\"depends\": 1");
    e2e_brick(0, "report r");
    e2e_said("original: done");
    page_take("r/report");
    ck_assert_str_eq(page_text(), before);
    free(before);
}
END_TEST

START_TEST(measurements_without_content_are_a_sentence)
{
    e2e_brick(0, "report r");
    e2e_replace("r/report/data.json", "\"stages\"", "\"gone\"");
    e2e_brick(0, "report r");
    page_take("r/report");
    page_shows("remove it to measure again");
    ck_assert_int_eq(page_count("<svg"), 2);
}
END_TEST

int main(void)
{
    const TTest *const drawing[] = {
        an_unfinished_run_is_shown_as_it_is,
        a_run_without_prefix_says_so,
        a_run_without_training_says_so,
        files_of_a_picture_that_is_gone_go_too,
        without_its_model_the_rest_of_a_run_is_shown,
        another_model_is_not_measured_as_the_run_s,
        what_was_measured_serves_when_the_model_is_gone,
        another_text_is_not_measured_as_the_run_s,
        a_text_that_was_read_for_training_is_known,
        what_was_measured_serves_when_the_text_has_changed,
        a_changed_text_that_the_run_did_not_read_is_measured_again,
        another_build_measures_again,
        damaged_metrics_are_shown_up_to_the_damage,
        metrics_that_are_no_metrics_are_a_sentence,
        lost_metrics_of_a_finished_run_are_a_sentence,
        numbers_of_any_size_are_drawn,
        a_damaged_summary_is_a_sentence,
        a_file_that_was_changed_is_named,
        a_damaged_config_is_shown_as_it_stands,
        damaged_measurements_are_measured_again,
        measurements_without_content_are_a_sentence};
    return report_tests("e2e_report_partial", NULL, 0, drawing, sizeof drawing / sizeof drawing[0]);
}
