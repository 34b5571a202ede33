/* The ablation of the paper on a made model with planted sinks and outliers: the rows come in the paper's order, by margins that no luck gives.
 * The config is that of configs/synth.yaml, on half of its blocks and texts. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "tests/e2e.h"
#include "tests/suite.h"

static const char config[] =
    "model: m\nmethod: prefixquant\nscheme: W4A4KV4-static\nseed: 2\nthreads: 1\n"
    "data:\n"
    "  detection:   {text: m/train.txt, samples: 8, seqlen: 512}\n"
    "  calibration: {text: m/calib.txt, samples: 8, seqlen: 128}\n"
    "  training:    {text: m/train.txt, samples: 48, seqlen: 128, validation: 8}\n"
    "  evaluation:  {text: m/eval.txt, seqlen: 256, windows: 8}\n"
    "train: {epochs: 3, batch: 4, lr_quant: 1e-3, lr_weight: 1e-3}\n"
    "evaluate: [ablation]\n";

/* What a row loses against full precision. */
static double loss(const char *row)
{
    return log(e2e_row("a", row) / e2e_row("a", "fp"));
}

START_TEST(rows_are_in_the_order_of_the_paper)
{
    e2e_brick(0, "synth --out m --shape llama,layers=2 --documents 16");
    e2e_write("run.yaml", config);
    e2e_brick(0, "run run.yaml --out a");
    double with = loss("static+search with prefix"), without = loss("static+search without prefix");
    ck_assert_double_gt(loss("RTN (dynamic)"), loss("+rotation (dynamic)"));
    ck_assert_double_gt(loss("+rotation (dynamic)"), loss("+search (dynamic)"));
    ck_assert_double_gt(with, 0);
    ck_assert_double_ge(without, 2 * with);
    ck_assert_double_le(loss("+training"), 0.8 * with);

    e2e_brick(0, "eval --model a --text m/eval.txt --seqlen 256 --windows 8 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number("a/summary.json", "ppl", "final"));
    ck_assert_double_eq(e2e_row("a", "+training"), e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_order");
    TCase *t = tcase_create("order");
    tcase_set_timeout(t, 200);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_test(t, rows_are_in_the_order_of_the_paper);
    suite_add_tcase(s, t);
    return run_suite(s);
}
