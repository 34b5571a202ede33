/* Quantizers from shared objects: real ones, built here as a user builds them, in real runs; and broken ones, which
 * must not take anything along. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/drawn.h"
#include "tests/e2e.h"
#include "tests/suite.h"

#define ODD "--plugin ./odd.so --set quant.weight.quantizer=odd --set quant.weight.step=restricted "
#define TWO_BITS "--set scheme=W2A4KV4-static " ODD
#define WIDEN "--plugin widen.so --set quant.activation.quantizer=widen "

static char tree[4096]; /* where the sources are */

static void build(const char *source, const char *flags, const char *object)
{
    const char *cc = getenv("CC");
    char line[12288];
    snprintf(line, sizeof line, "%s -shared -fPIC -O1 -ffp-contract=off -I '%s' %s '%s/%s' -o %s",
             cc && *cc ? cc : "cc", tree, flags, tree, source, object);
    ck_assert_msg(system(line) == 0, "%s", line);
}

static void enter(void)
{
    e2e_enter();
    build("examples/quantizer_odd.c", "", "odd.so");
    build("tests/plugins/widen.c", "", "widen.so");
}

/* A crash is to be one under a sanitizer too, not its report. */
static void enter_raw(void)
{
    static const char *const names[] = {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};
    e2e_enter();
    for (int i = 0; i < 3; i++) {
        char text[512];
        const char *set = getenv(names[i]);
        snprintf(text, sizeof text, "%s%shandle_segv=0", set ? set : "", set ? ":" : "");
        setenv(names[i], text, 1);
    }
}

static int count(const char *path, const char *words)
{
    int n = 0;
    char *text = e2e_text(path);
    for (char *at = text; (at = strstr(at, words)); at++) n++;
    free(text);
    return n;
}

/* --- plugins that work --- */

START_TEST(a_run_with_a_plugin_is_complete)
{
    char sha[65];
    bk_error err = {0};
    e2e_brick(0, "run run.yaml %s--out run", TWO_BITS);
    ck_assert_int_eq(bk_sha256_file("odd.so", sha, &err), BK_OK);
    ck_assert_int_eq(count("run/manifest.json", sha), 1);
    ck_assert_int_eq(count("run/config.yaml", "    odd:\n      codes: 3\n"), 1);
    ck_assert_double_ne(e2e_row("run", "+training"), e2e_row("run", "initialised"));
    /* Weights are read as they are: no plugin. */
    e2e_brick(0, "eval --model run --text ../m/eval.txt --seqlen 32 --windows 4 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_row("run", "+training"));
    e2e_brick(0, "run run/config.yaml --plugin odd.so --out again");
    e2e_same_run("run", "again");
}
END_TEST

START_TEST(an_option_is_a_key_like_any_other)
{
    e2e_brick(0, "run run.yaml --set scheme=W3A4KV4-static " ODD "--set quant.weight.odd.codes=5 --out five");
    e2e_brick(0, "run run.yaml --set scheme=W3A4KV4-static " ODD "--set quant.weight.odd.codes=7 --out seven");
    ck_assert_double_ne(e2e_row("five", "initialised"), e2e_row("seven", "initialised"));
    e2e_brick(2, "run run.yaml --set scheme=W3A4KV4-static " ODD "--set quant.weight.odd.codes=7 --out five");
    e2e_said("quant.weight.odd.codes is 5 there and 7 here");
    e2e_brick(2, "run run.yaml --set scheme=W3A4KV4-static " ODD "--set quant.weight.odd.codes=6 --out six");
    e2e_said("--set quant.weight.quantizer: weight: 6 codes of 3 bits");
}
END_TEST

START_TEST(an_option_can_be_an_axis_of_a_sweep)
{
    e2e_write("sweep.yaml", "base: run.yaml\nset: {scheme: W3A4KV4-static, quant.weight.quantizer: odd, "
                            "quant.weight.step: restricted, train.epochs: 0}\n"
                            "grid: {quant.weight.odd.codes: [5, 7]}\n");
    e2e_brick(0, "sweep sweep.yaml --plugin odd.so --list");
    ck_assert_int_eq(count("out", " --plugin odd.so "), 2);
    e2e_brick(0, "plan sweep.yaml --plugin odd.so");
    e2e_brick(0, "sweep sweep.yaml --plugin odd.so --out s");
    ck_assert_int_eq(count("s/results.jsonl", "\"quant.weight.odd.codes\": 5,"), 1);
    ck_assert_int_eq(count("s/results.jsonl", "\"status\": \"done\""), 2);
    e2e_brick(2, "sweep sweep.yaml --out s");
    e2e_said("--plugin FILE.so");
    e2e_append("odd.so", "\n");
    static const char *const ask[] = {"sweep sweep.yaml --plugin odd.so --out s", "sweep sweep.yaml --plugin odd.so --out s --list",
                                      "plan sweep.yaml --plugin odd.so --out s"};
    for (int i = 0; i < 3; i++) { /* what the other file made is not there */
        e2e_brick(2, "%s", ask[i]);
        e2e_said("was made with another plugin for the quantizer `odd`");
    }
}
END_TEST

START_TEST(points_without_the_option_have_none_in_the_results)
{
    e2e_write(
        "sweep.yaml",
        "base: run.yaml\nset: {scheme: W3A4KV4-static, quant.weight.step: restricted, train.epochs: 0}\n"
        "points:\n- {quant.weight.quantizer: odd, quant.weight.odd.codes: 5}\n- {quant.weight.quantizer: affine}\n");
    e2e_brick(0, "sweep sweep.yaml --plugin odd.so --out s");
    ck_assert_int_eq(count("s/results.jsonl", "\"quant.weight.odd.codes\": 5,"), 1);
    ck_assert_int_eq(count("s/results.jsonl", "\"quant.weight.odd.codes\": null,"), 1);
}
END_TEST

START_TEST(another_file_of_the_same_name_finds_no_old_stage)
{
    e2e_copy_tree("odd.so", "first.so");
    e2e_brick(0, "run run.yaml %s--out a", TWO_BITS);
    e2e_append("odd.so", "\n");
    e2e_brick(0, "run run.yaml %s--out b", TWO_BITS);
    ck_assert_int_eq(count("cache/ledger.jsonl", "\"stage\": \"init\""), 2);
    ck_assert_int_eq(count("cache/ledger.jsonl", "\"stage\": \"row-fp\""), 1); /* which asks no quantizer */
    ck_assert_int_eq(count("cache/ledger.jsonl", "\"stage\": \"outliers\""), 1);
    e2e_brick(0, "run run.yaml --set scheme=W2A4KV4-static --out plain");
    e2e_brick(0, "run run.yaml --plugin odd.so --set scheme=W2A4KV4-static --out loaded"); /* loaded, and not used */
    ck_assert_int_eq(count("cache/ledger.jsonl", "\"stage\": \"init\""), 3);
    e2e_brick(2, "run run.yaml %s--out a", TWO_BITS);
    e2e_said("a was made with another plugin for the quantizer `odd`");
}
END_TEST

/* The error of its quantizer would be drawn as the run's. */
START_TEST(a_report_measures_with_the_run_s_plugin_alone)
{
    e2e_brick(0, "run run.yaml " WIDEN "--set train.epochs=0 --out a");
    e2e_append("widen.so", "\n");
    drawn_by_nobody();
    e2e_brick(0, "report a --plugin widen.so");
    e2e_said("a was made with another plugin for the quantizer `widen`");
}
END_TEST

START_TEST(a_run_goes_on_with_its_plugin_alone)
{
    e2e_brick(0, "run run.yaml %s--out whole", TWO_BITS);
    e2e_brick(0, "run run.yaml %s--out run --stop-after 1", TWO_BITS);
    e2e_brick(2, "run run/config.yaml --out run --resume");
    e2e_said("run/config.yaml:");
    e2e_said("unknown key 'quant.weight.odd' (no quantizer here has it; is --plugin FILE.so missing?)");
    e2e_brick(2, "run run.yaml --set quant.weight.quantizer=odd --out run --resume");
    e2e_said("'odd' is not one of affine|static|dynamic");
    e2e_said("is --plugin FILE.so missing?");
    e2e_copy_tree("odd.so", "kept.so");
    e2e_append("odd.so", "\n");
    e2e_brick(2, "run run.yaml %s--out run --resume", TWO_BITS);
    e2e_said("another plugin");
    e2e_brick(0, "run run/config.yaml --plugin kept.so --out run --resume");
    e2e_same_run("whole", "run");
}
END_TEST

START_TEST(a_model_keeps_the_options_of_its_activations)
{
    e2e_brick(0, "run run.yaml " WIDEN "--set quant.activation.widen.by=1.5 --set init.search=false --out run");
    e2e_brick(3, "eval --model run --text ../m/eval.txt --seqlen 32 --windows 4");
    e2e_said("there is no quantizer `widen`");
    e2e_said("--plugin");
    e2e_brick(0, "eval --model run --plugin widen.so --text ../m/eval.txt --seqlen 32 --windows 4 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_row("run", "+training"));
    ck_assert_int_eq(count("run/model/config.json", "\"by\": 1.5"), 1);
    e2e_copy_tree("widen.so", "other.so");
    e2e_append("other.so", "\n");
    e2e_brick(2, "eval --model run --plugin other.so --text ../m/eval.txt --seqlen 32 --windows 4");
    e2e_said("quantization_config.activation: the model was made with another quantizer `widen`");
    e2e_remove("run/model/SHA256SUMS");
    e2e_replace("run/model/config.json", "\"by\": 1.5", "\"bye\": 1.5");
    e2e_brick(3, "eval --model run --plugin widen.so --text ../m/eval.txt --seqlen 32 --windows 4");
    e2e_said("quantization_config.activation: the quantizer `widen` has no option `bye`");
    e2e_replace("run/model/config.json", "\"bye\": 1.5", "\"by\": 15");
    e2e_brick(3, "eval --model run --plugin widen.so --text ../m/eval.txt --seqlen 32 --windows 4");
    e2e_said("option `by` of the quantizer `widen` is not between 1 and 4");
}
END_TEST

/* Ranges of a plugin's static steps are measured without a search too. */
START_TEST(static_steps_of_a_plugin_are_those_of_static)
{
    e2e_brick(0, "run run.yaml --set init.search=false --set train.epochs=0 --out own");
    e2e_brick(0, "run run.yaml " WIDEN "--set init.search=false --set train.epochs=0 --out plugin");
    ck_assert_double_eq(e2e_row("own", "initialised"), e2e_row("plugin", "initialised"));
}
END_TEST

static const char *const verbs[] = {
    "list quantizers",
    "run --help-config",
    "plan run.yaml",
    "sweep run.yaml --list",
    "eval --model ../m --text ../m/eval.txt --seqlen 32 --windows 1",
    "generate --model ../m --prompt a --tokens 1",
    "outliers --model ../m --text ../m/train.txt --samples 1 --seqlen 64",
    "dump --model ../m --text ../m/eval.txt --sites key --windows 1 --seqlen 8 --out d.h5",
    "report none"};

START_TEST(every_verb_that_may_need_a_plugin_loads_it)
{
    e2e_brick(3, "%s --plugin absent.so", verbs[_i]);
    e2e_said("absent.so: cannot open");
}
END_TEST

START_TEST(a_name_is_a_file_of_this_folder_and_never_searched_for)
{
    setenv("LD_LIBRARY_PATH", tree, 1);
    e2e_brick(0, "list quantizers --plugin odd.so");
    ck_assert_int_eq(count("out", "quant.<place>.odd.codes: whole number 3..255 (default 3)"), 1);
    e2e_brick(3, "list quantizers --plugin libm.so.6");
    e2e_said("libm.so.6: cannot open");
    unsetenv("LD_LIBRARY_PATH");
}
END_TEST

START_TEST(options_of_plugins_are_in_the_help_where_they_count)
{
    e2e_brick(0, "run --help-config --plugin odd.so --plugin widen.so");
    ck_assert_int_eq(count("out", "\nquant.weight.odd.codes: whole number 3..255 (default 3)\n"), 1);
    ck_assert_int_eq(count("out", ".widen.by: number 1..4 (default 1)\n"), 3);
    ck_assert_int_eq(count("out", ".widen.unused: true|false (default true)\n"), 3);
    ck_assert_int_eq(count("out", "quant.weight.widen"), 0);
}
END_TEST

/* --- broken ones --- */

#define TABLE(...) "-DTABLE='" __VA_ARGS__ "' -DEXPORT='sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, 1, list'"
#define WEIGHT_UNITS(N) TABLE(".units = fixed_units") " -DUNITS='" N "'"
#define ACTIVATIONS ".for_weights = false, .for_activations = true, "
#define ACTIVATION_UNITS(N) TABLE(ACTIVATIONS ".units = fixed_units") " -DUNITS='" N "'"
#define EXPORT(...) "-DTABLE='' -DEXPORT='" __VA_ARGS__ "'"

static const struct {
    const char *flags, *says, *too; /* too: another thing that it says, or NULL */
} broken[] = {
    {TABLE(".setup = crash_setup"), "crashed when it was tried, signal 11", "quantizer `broken`, weights, 2 bits"},
    {TABLE(".init = crash_init"), "crashed when it was tried", "per channel: init)"},
    {TABLE(".init = hang_init"), "did not come back within", ": init)"},
    {TABLE(".init = leave_init"), "ended the program (exit status 7)", ": init)"},
    {TABLE(".init = failing_init"), "init failed: no steps today", NULL},
    {TABLE(".init = silent_init"), "init failed: BK_EINVAL", NULL},
    {TABLE(".apply = no_apply"), "apply failed", NULL},
    {TABLE(".apply = narrow_apply"), "apply gave a tensor of another shape", NULL},
    {TABLE(".apply = nan_apply"), "apply gave a value that is not finite", NULL},
    {WEIGHT_UNITS("0"), "units: 0 units for 4 rows of 64 columns; want rows x n, where n divides the columns", "quantizer `broken`, weights, 2 bits"},
    {WEIGHT_UNITS("-4"), "units: -4 units for 4 rows of 64 columns", NULL},
    {WEIGHT_UNITS("6"), "units: 6 units for 4 rows of 64 columns", NULL},
    {WEIGHT_UNITS("12"), "units: 12 units for 4 rows of 64 columns", NULL},
    {WEIGHT_UNITS("1LL << 40"), "units: 1099511627776 units for 4 rows of 64 columns", NULL},
    {ACTIVATION_UNITS("0"), "units: 0 units for 64 columns; want a number that divides them", "quantizer `broken`, activations, 2 bits"},
    {ACTIVATION_UNITS("3"), "units: 3 units for 64 columns", NULL},
    {ACTIVATION_UNITS("128"), "units: 128 units for 64 columns", NULL},
    {TABLE(".codes = wrong_codes"), "gave a code outside", NULL},
    {TABLE(".codes = shifted_codes"), "do not read back as what apply gave", NULL},
    {TABLE(".state_size = 8"), "setup wrote beyond the state_size", NULL},
    {TABLE(".state_size = 257"), "a state of 257 bytes; there are 256", NULL},
    {TABLE(".name = 0"), "no name of 1 to 15", NULL},
    {TABLE(".name = \"sixteen_letters_\""), "no name of 1 to 15", NULL},
    {TABLE(".name = \"a.b\""), "no name of 1 to 15", NULL},
    {TABLE(".name = \"affine\""), "there is a quantizer `affine` already", NULL},
    {TABLE(".name = \"bits\""), "cannot be called `bits`: quant.weight.bits is a key", NULL},
    {TABLE(".about = 0"), "no line that says what it is", NULL},
    {TABLE(".for_weights = false"), "neither for weights nor for activations", NULL},
    {TABLE(".init = 0"), "has no function `init`", NULL},
    {TABLE(".codes = 0"), "has no function `codes`", NULL},
    {TABLE(".abi = 1"), "of ABI 1 and", "this brick has ABI"},
    {TABLE(".struct_size = 100"), "and 100 bytes, this brick has", NULL},
    {TABLE(".options = outside"), "option `alpha`: its default lies outside its range", NULL},
    {TABLE(".options = no_number"), "option `alpha`: its range is empty or not finite", NULL},
    {TABLE(".options = half"), "default, min and max of an INT are whole numbers", NULL},
    {TABLE(".options = silent"), "no line that says what it means", NULL},
    {TABLE(".options = dotted"), "option 0 has no name", NULL},
    {TABLE(".options = twice, .n_options = 2"), "two options are called `alpha`", NULL},
    {TABLE(".n_options = 9"), "9 options; there may be 8", NULL},
    {TABLE(".options = 0"), "1 options; there may be 8", NULL},
    {EXPORT("sizeof(bk_plugin), 1, \"0.0.9\", 1, list"), "built for brick 0.0.9 (ABI 1, ",
     "this is brick 0.1.0 (ABI 3, "},
    {EXPORT("sizeof(bk_plugin), BK_QUANTIZER_ABI, \"0.0.9\", 1, list"), "built for brick 0.0.9 (ABI 3, ",
     "build it again"},
    {EXPORT("sizeof(bk_plugin) + 8, BK_QUANTIZER_ABI, BK_VERSION, 1, list"), "bk_plugin of 56 bytes", "48 bytes"},
    {EXPORT("sizeof(bk_plugin), 1, \"0.0.9\", 1, list") " -DMISSING -DCONSTRUCTOR", "built for brick 0.0.9 (ABI 1, ",
     "this is brick 0.1.0"},
    {EXPORT("sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, 0, list"), "the plugin has no quantizers", NULL},
    {EXPORT("sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, 1, 0"), "the plugin has no quantizers", NULL},
    {EXPORT("sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, 1000, list"), "1000 quantizers are too many", NULL},
    {EXPORT("sizeof(bk_plugin), BK_QUANTIZER_ABI, BK_VERSION, 2, list"), "its quantizer 1 is NULL", NULL},
    {TABLE("") " -DMISSING", "undefined symbol: bk_function_of_another_version", NULL},
    {TABLE("") " -DCONSTRUCTOR", "crashed when it was tried", "(loading it)"},
    {TABLE("") " -DGARBAGE", "its bk_plugin_exports is no bk_plugin: it has 4 bytes", NULL},
    {TABLE("") " -DNOTHING", "is no plugin of brick", NULL},
};

START_TEST(a_broken_plugin_is_refused_and_nothing_is_touched)
{
    build("tests/plugins/broken.c", broken[_i].flags, "broken.so");
    e2e_brick(3, "run run.yaml --plugin broken.so --out run");
    e2e_said("brick: broken.so: ");
    e2e_said(broken[_i].says);
    if (broken[_i].too) e2e_said(broken[_i].too);
    ck_assert(!bk_exists("run"));
    ck_assert(!bk_exists("cache"));
}
END_TEST

/* What the trial cannot see. */
START_TEST(units_that_do_not_fit_the_model_are_refused)
{
    build("tests/plugins/broken.c", TABLE(".units = small_units"), "broken.so");
    e2e_brick(2, "run run.yaml --plugin broken.so --set scheme=W2A4KV4-static --set quant.weight.quantizer=broken "
                 "--set quant.weight.step=restricted --out run");
    e2e_said("quantizers do not fit at gate, up, down: gate: quantizer `broken`: 5 units for 96 rows of 64 columns; want rows x n");
    build("tests/plugins/broken.c", TABLE(ACTIVATIONS ".units = small_units"), "broken.so");
    e2e_brick(2, "run run.yaml --plugin broken.so --set scheme=W4A2KV4-static --set quant.activation.quantizer=broken "
                 "--set quant.activation.step=restricted --set quant.activation.granularity=group --set quant.activation.group=16 --out run");
    e2e_said("quantizers do not fit at down_in: down_in: quantizer `broken`: 5 units for 96 columns; want a number that divides them");
    ck_assert(!bk_exists("run"));
}
END_TEST

START_TEST(a_sound_one_of_the_same_source_works)
{
    build("tests/plugins/broken.c", TABLE(""), "sound.so");
    e2e_brick(0, "list quantizers --plugin sound.so");
    e2e_brick(3, "list quantizers --plugin sound.so --plugin ./sound.so");
    e2e_said("there is a quantizer `broken` already");
}
END_TEST

static void refused(const char *says)
{
    e2e_brick(3, "list quantizers --plugin x.so");
    e2e_said(says);
}

START_TEST(files_that_are_no_shared_objects_are_refused)
{
    e2e_write("x.so", "");
    refused("no shared object");
    e2e_write("x.so", "\177ELF and then some text that is no ELF header at all, as long as one");
    refused("no shared object");
    e2e_remove("x.so");
    e2e_copy_tree("run.yaml", "x.so");
    refused("no shared object");
    e2e_brick(3, "list quantizers --plugin ../m");
    e2e_said("is a folder, not a file");
}
END_TEST

/* Wherever it ends: an answer, and no crash. */
START_TEST(objects_that_are_cut_off_are_refused)
{
    char line[128];
    static const int sizes[] = {1, 63, 64, 200, 1000, 4096, 8192, 12288, 14000};
    build("examples/quantizer_odd.c", "", "odd.so");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(line, sizeof line, "head -c %d odd.so >x.so", sizes[i]);
        ck_assert_int_eq(system(line), 0);
        refused("x.so: ");
    }
}
END_TEST

int main(void)
{
    if (!getcwd(tree, sizeof tree)) return EXIT_FAILURE; /* tests run in the root of the project */
    Suite *s = suite_create("e2e_plugin");
    TCase *t = tcase_create("sound");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, enter, e2e_leave);
    tcase_add_test(t, a_run_with_a_plugin_is_complete);
    tcase_add_test(t, an_option_is_a_key_like_any_other);
    tcase_add_test(t, an_option_can_be_an_axis_of_a_sweep);
    tcase_add_test(t, points_without_the_option_have_none_in_the_results);
    tcase_add_test(t, another_file_of_the_same_name_finds_no_old_stage);
    tcase_add_test(t, a_report_measures_with_the_run_s_plugin_alone);
    tcase_add_test(t, a_run_goes_on_with_its_plugin_alone);
    tcase_add_test(t, a_model_keeps_the_options_of_its_activations);
    tcase_add_test(t, static_steps_of_a_plugin_are_those_of_static);
    tcase_add_loop_test(t, every_verb_that_may_need_a_plugin_loads_it, 0, sizeof verbs / sizeof verbs[0]);
    tcase_add_test(t, a_name_is_a_file_of_this_folder_and_never_searched_for);
    tcase_add_test(t, options_of_plugins_are_in_the_help_where_they_count);
    suite_add_tcase(s, t);
    t = tcase_create("broken");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, enter_raw, e2e_leave);
    tcase_add_loop_test(t, a_broken_plugin_is_refused_and_nothing_is_touched, 0, sizeof broken / sizeof broken[0]);
    tcase_add_test(t, units_that_do_not_fit_the_model_are_refused);
    tcase_add_test(t, a_sound_one_of_the_same_source_works);
    tcase_add_test(t, files_that_are_no_shared_objects_are_refused);
    tcase_add_test(t, objects_that_are_cut_off_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
