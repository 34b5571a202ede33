/* Sweep files: what they mean, and what is refused, at which place. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/run.h"
#include "experiments/sweep.h"
#include "io/file.h"
#include "tests/suite.h"

static char dir[64], file[128];
static bk_sweep s;
static bk_error err;

static const char base[] = "model: m\nscheme: W4A4KV4-static\ndata: {training: {text: t}, evaluation: {text: e}}\n";

static void begin(void)
{
    strcpy(dir, "/tmp/bk_sweep_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(bk_write_file("base.yaml", base, strlen(base), &err), BK_OK);
    snprintf(file, sizeof file, "sweep.yaml");
}

static void end(void)
{
    bk_sweep_free(&s);
    ck_assert_int_eq(chdir("/tmp"), 0);
    ck_assert_int_eq(bk_remove_tree(dir, &err), BK_OK);
}

static bk_status load(const char *yaml)
{
    bk_error_clear(&err);
    ck_assert_int_eq(bk_write_file(file, yaml, strlen(yaml), &err), BK_OK);
    bk_status st = bk_sweep_load(file, &s, &err);
    return st ? st : bk_sweep_check(&s, &err);
}

/* Names of all points, each on a line. */
static void expect(const char *yaml, const char *names)
{
    char got[4096] = "";
    bk_status st = load(yaml);
    ck_assert_msg(!st, "%s", err.msg);
    for (int i = 0; i < s.n; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s\n", s.point[i].name);
    ck_assert_str_eq(got, names);
}

START_TEST(grid_is_a_product_whose_last_axis_is_the_fastest)
{
    expect("base: base.yaml\ngrid:\n  train.epochs: [0, 5]\n  seed: [1, 2]\n",
           "epochs=0,seed=1\nepochs=0,seed=2\nepochs=5,seed=1\nepochs=5,seed=2\n");
}
END_TEST

START_TEST(zip_walks_its_lists_together)
{
    expect("base: base.yaml\nzip:\n  train.epochs: [1, 5]\n  seed: [1, 2]\n", "epochs=1,seed=1\nepochs=5,seed=2\n");
}
END_TEST

START_TEST(points_may_name_different_keys)
{
    expect("base: base.yaml\npoints:\n  - {train.epochs: 1}\n  - {seed: 3, train.epochs: 5}\n",
           "epochs=1\nepochs=5,seed=3\n");
}
END_TEST

START_TEST(points_may_have_names_of_their_own)
{
    expect("base: base.yaml\npoints:\n  - {name: 'short, quick', train.epochs: 1}\n  - {name: long, train.epochs: 5}\n"
           "  - {name: long, train.epochs: 5, seed: 4}\n  - {seed: 5, train.epochs: 5, name: long}\ngrid: {train.batch: [1, 2]}\n",
           "epochs=1,batch=1\nepochs=1,batch=2\nepochs=5,batch=1\nepochs=5,batch=2\nepochs=5,seed=4,batch=1\nepochs=5,seed=4,batch=2\n"
           "epochs=5,seed=5,batch=1\nepochs=5,seed=5,batch=2\n"); /* folders are as they were without */
    ck_assert_str_eq(s.point[1].title, "short, quick");
    ck_assert_str_eq(s.point[7].title, "long");
    ck_assert(s.titled && s.in_title[0] && !s.in_title[1] && !s.in_title[2]);
}
END_TEST

START_TEST(grid_zip_and_points_multiply)
{
    expect("base: base.yaml\nzip: {train.epochs: [1, 5], seed: [1, 3]}\ngrid: {init.search: [true, false]}\n",
           "epochs=1,seed=1,search=true\nepochs=1,seed=1,search=false\nepochs=5,seed=3,search=true\nepochs=5,seed=3,"
           "search=false\n");
}
END_TEST

START_TEST(exclude_takes_points_that_match_all_its_pairs)
{
    expect("base: base.yaml\nexclude: [{train.epochs: 0, seed: 2}]\ngrid:\n  train.epochs: [0, 5]\n  seed: [1, 2]\n",
           "epochs=0,seed=1\nepochs=5,seed=1\nepochs=5,seed=2\n");
}
END_TEST

START_TEST(set_holds_for_every_point)
{
    const char *sets[BK_SWEEP_SETS];
    expect("base: base.yaml\nset: {train.batch: 2, quant.skip: [{block: 0, site: down_in}]}\ngrid: {train.epochs: [1, "
           "5]}\n",
           "epochs=1\nepochs=5\n");
    ck_assert_int_eq(bk_sweep_sets(&s, 1, sets), 3);
    ck_assert_str_eq(sets[0], "train.batch=2");
    ck_assert_str_eq(sets[1], "quant.skip=[{block: 0, site: down_in}]");
    ck_assert_str_eq(sets[2], "train.epochs=5");
}
END_TEST

START_TEST(log_and_linear_have_exact_ends)
{
    expect("base: base.yaml\ngrid: {train.lr_quant: {log: [1e-5, 1e-3, 5]}}\n",
           "lr_quant=1e-05\nlr_quant=3.162e-05\nlr_quant=0.0001\nlr_quant=0.0003162\nlr_quant=0.001\n");
    bk_sweep_free(&s);
    expect("base: base.yaml\ngrid: {train.epochs: {linear: [0, 10, 3]}}\n", "epochs=0\nepochs=5\nepochs=10\n");
    bk_sweep_free(&s);
    expect("base: base.yaml\ngrid: {train.epochs: {log: [1, 1e2, 3]}}\n", "epochs=1\nepochs=10\nepochs=100\n");
}
END_TEST

START_TEST(names_take_as_many_parts_of_a_key_as_tell_it_from_others)
{
    expect("base: base.yaml\ngrid: {quant.weight.bits: [3, 4], quant.key.bits: [4], train.epochs: [1]}\n",
           "weight.bits=3,key.bits=4,epochs=1\nweight.bits=4,key.bits=4,epochs=1\n");
}
END_TEST

START_TEST(names_stay_when_an_axis_gets_more_values)
{
    char before[BK_SWEEP_NAME];
    ck_assert_int_eq(
        load("base: base.yaml\ngrid: {data.evaluation.text: [a/b, 'c d'], prefix.mode: [none, [216, 1]]}\n"), BK_OK);
    strcpy(before, s.point[3].name);
    ck_assert_msg(!strncmp(before, "text=_c_d_,mode=216+1-", 22), "%s", before);
    bk_sweep_free(&s);
    ck_assert_int_eq(
        load("base: base.yaml\ngrid: {data.evaluation.text: [x, a/b, 'c d'], prefix.mode: [none, [216, 1], auto]}\n"),
        BK_OK);
    ck_assert_str_eq(s.point[7].name, before);
}
END_TEST

START_TEST(long_names_are_cut_and_stay_different)
{
    char yaml[2048], a[301], b[301];
    memset(a, 'x', 300);
    a[300] = 0;
    strcpy(b, a);
    b[299] = 'y';
    snprintf(yaml, sizeof yaml, "base: base.yaml\ngrid: {data.evaluation.text: [%s, %s]}\n", a, b);
    ck_assert_int_eq(load(yaml), BK_OK);
    ck_assert_uint_lt(strlen(s.point[0].name), BK_SWEEP_NAME);
    ck_assert_str_ne(s.point[0].name, s.point[1].name);
}
END_TEST

START_TEST(values_are_shown_as_the_config_has_them)
{
    expect("base: base.yaml\npoints: [{scheme: W8A8-static}, {quant.weight.bits: 3}]\n",
           "scheme=W8A8-static\nbits=3\n");
    ck_assert_str_eq(s.point[0].shown[1], "8");
    ck_assert_str_eq(s.point[1].shown[0], "W4A4KV4-static");
}
END_TEST

#define GRID "base: base.yaml\ngrid: {train.epochs: [1, 2]}\n"

static const struct {
    const char *yaml, *said;
} bad[] = {
    {"- 1\n", "sweep.yaml:1:1: a sweep: a map is expected"},
    {"grid: {train.epochs: [1]}\n", "base is missing"},
    {"base: none.yaml\ngrid: {train.epochs: [1]}\n", "sweep.yaml:1:7: base: 'none.yaml'"},
    {"base: [base.yaml]\ngrid: {train.epochs: [1]}\n", "sweep.yaml:1:7: base: text is expected"},
    {"base: base.yaml\n", "nothing varies"},
    {"base: base.yaml\npoints:\n  - {name: a, train.epochs: 1}\n  - {train.epochs: 2}\n",
     "sweep.yaml:4:5: points: a name for each or for none"},
    {"base: base.yaml\npoints:\n  - {name: a, train.epochs: 1}\n  - {name: a, train.epochs: 2, seed: 1}\n",
     "sweep.yaml:4:12: 'a' is the name of the point in line 3 too, which differs in more than its seed"},
    {"base: base.yaml\npoints: [{name: a}]\n", "sweep.yaml:2:10: points: a name alone sets nothing"},
    {"base: base.yaml\npoints: [{name: [a], train.epochs: 1}]\n", "sweep.yaml:2:17: name: a word or two are expected"},
    {"base: base.yaml\npoints: [{name: \"a\\nb\", train.epochs: 1}]\n", "sweep.yaml:2:17: name: characters that cannot be seen: a\\nb"},
    {"base: base.yaml\npoints: [{name: '', train.epochs: 1}]\n", "sweep.yaml:2:17: name: a word or two are expected"},
    {"base: base.yaml\npoints: [{name: 0123456789012345678901234567890123456789012345678901234567890123, train.epochs: 1}]\n",
     "sweep.yaml:2:17: name: more than 63 bytes"},
    {"base: base.yaml\nbase: base.yaml\n", "sweep.yaml:2:1: 'base' stands there twice"},
    {"base: base.yaml\ngird: {train.epochs: [1]}\n",
     "sweep.yaml:2:1: unknown key 'gird' of a sweep, did you mean 'grid'"},
    {"base: base.yaml\ngrid: {train.epoch: [1]}\n",
     "sweep.yaml:2:8: 'train.epoch' is no key of a config, did you mean 'train.epochs'"},
    {"base: base.yaml\ngrid: {train: {epochs: [1, 2]}}\n",
     "sweep.yaml:2:8: 'train' is a section: keys stand in full here, write train.epochs: ..."},
    {"base: base.yaml\ngrid: {lr_quant: [1e-4]}\n", "'lr_quant' is no key of a config, did you mean 'train.lr_quant'?"},
    {"model: x\ntrain: {epochs: 1}\n", "sweep.yaml:1:1: this is the config of one run: brick run sweep.yaml"},
    {"base: base.yaml\ntrain: {epochs: 1}\n", "sweep.yaml:2:1: 'train' is a key of a config: in a sweep it stands under set: or grid:"},
    {"base: base.yaml\ngrid: {train.epochs: 1}\n", "train.epochs: a list is expected"},
    {"base: base.yaml\ngrid: {train.epochs: []}\n", "train.epochs: a list is expected"},
    {"base: base.yaml\ngrid: {}\n", "grid: a map is expected"},
    {"base: base.yaml\ngrid: {train.epochs: [1, x]}\n", "sweep.yaml:2:26: train.epochs: a whole number is expected"},
    {"base: base.yaml\ngrid: {train.epochs: [-1]}\n", "not in the range"},
    {"base: base.yaml\ngrid: {train.epochs: ['1']}\n", "take the quotes away"},
    {"base: base.yaml\ngrid: {train.epochs: [1, 1]}\n", "sweep.yaml:2:26: the same value stands there twice"},
    {"base: base.yaml\ngrid: {train.lr_quant: [1e-3, 0.001]}\n", "the same value stands there twice"},
    {"base: base.yaml\ngrid: {train.epochs: [1], train.epochs: [2]}\n", "'train.epochs' stands there twice"},
    {"base: base.yaml\ngrid: {train.epochs: [1]}\nzip: {train.epochs: [2]}\n",
     "sweep.yaml:3:7: 'train.epochs' varies already, in line 2"},
    {"base: base.yaml\nset: {train.epochs: 3}\ngrid: {train.epochs: [1]}\n",
     "'train.epochs' is fixed by set, in line 2"},
    {"base: base.yaml\ngrid: {train.epochs: [1]}\nset: {train.epochs: 3}\n", "it cannot be fixed"},
    {"base: base.yaml\nset: {train.batch: x}\ngrid: {train.epochs: [1]}\n", "train.batch: a whole number"},
    {"base: base.yaml\nzip: {train.epochs: [1, 2], seed: [1]}\n",
     "sweep.yaml:2:35: zip: seed has 1 values, train.epochs has 2"},
    {"base: base.yaml\npoints: [{train.epochs: 1}, {train.epochs: 1}]\n",
     "sweep.yaml:2:29: the same value stands there twice"},
    {"base: base.yaml\npoints: [{train.epochs: 1}, {}]\n", "points: a map is expected"},
    {"base: base.yaml\npoints: {train.epochs: 1}\n", "points: a list is expected"},
    {"base: base.yaml\npoints: [{seed: 1}, {seed: 1, train.epochs: 20}]\n", "are the same run"},
    {"base: base.yaml\ngrid: {train.lr_quant: {log: [1e-5, 1e-3]}}\n", "three numbers are expected"},
    {"base: base.yaml\ngrid: {train.lr_quant: {log: [0, 1e-3, 3]}}\n", "log needs a lowest value above 0"},
    {"base: base.yaml\ngrid: {train.lr_quant: {log: [1e-3, 1e-5, 3]}}\n", "the lowest value comes first"},
    {"base: base.yaml\ngrid: {train.lr_quant: {log: [1e-5, 1e-3, 1]}}\n", "not in the range 2"},
    {"base: base.yaml\ngrid: {train.lr_quant: {lag: [1e-5, 1e-3, 3]}}\n", "values are a list, {log:"},
    {"base: base.yaml\ngrid: {train.lr_quant: {log: [1e-5, 100, 3]}}\n", "not in the range"},
    {"base: base.yaml\ngrid: {train.epochs: {log: [1, 3, 6]}}\n", "the same value stands there twice"},
    {"base: base.yaml\ngrid: {train.loss: {log: [1, 3, 3]}}\n", "log is for numbers"},
    {"base: base.yaml\ngrid: {train.epochs: {linear: [0.6, 10, 2]}}\n", "sweep.yaml:2:32: train.epochs: 0.6 is no whole number"},
    {"base: base.yaml\ngrid: {train.epochs: {log: [1, 10.5, 2]}}\n", "sweep.yaml:2:32: train.epochs: 10.5 is no whole number"},
    {"base: base.yaml\ngrid: {train.epochs: {linear: [0, 10, 4]}}\n",
     "sweep.yaml:2:22: train.epochs: 4 values evenly from 0 to 10 are no whole numbers: list them"},
    {GRID "exclude: [{seed: 1}]\n", "'seed' does not vary"},
    {GRID "exclude: [{train.epochs: 3}]\n", "exclude: no point has train.epochs=3"},
    {GRID "exclude: [{train.epochs: 1}, {train.epochs: 2}]\n", "exclude leaves no point"},
    {GRID "exclude: {train.epochs: 1}\n", "exclude: a list is expected"},
    {GRID "jobs: 0\n", "jobs: 0 is not in the range"},
    {GRID "halving: {blocks: [2, 2]}\n", "blocks must rise"},
    {GRID "halving: {keep: 0.5}\n", "after which blocks"},
    {GRID "halving: {blocks: [2], keep: 1.5}\n", "halving.keep: 1.5 is not in the range"},
    {GRID "halving: {blocks: [2], kep: 0.5}\n", "did you mean 'keep'"},
    {"base: base.yaml\ngrid: {seed: {linear: [1, 1000, 1000]}, train.batch: {linear: [1, 100, 100]}}\n",
     "more than 10000 points"},
    {"base: base.yaml\nset: {data.training.validation: 0}\ngrid: {train.epochs: [0, 1]}\n",
     "(point epochs=1 of sweep.yaml)"},
    {"base: sweep.yaml\ngrid: {train.epochs: [0, 1]}\n", "unknown key 'base'"},
    {"base: &a base.yaml\ngrid: {train.epochs: [0, 1]}\n", "sweep.yaml:1:7: anchors"},
};

START_TEST(bad_input_is_refused_at_its_place)
{
    bk_status st = load(bad[_i].yaml);
    ck_assert_msg(st == BK_EINVAL || st == BK_EIO, "%s: %s", bad[_i].yaml, bk_status_name(st));
    ck_assert_msg(strstr(err.msg, bad[_i].said), "'%s' is not in: %s", bad[_i].said, err.msg);
}
END_TEST

START_TEST(sweeps_are_told_from_configs)
{
    ck_assert(!bk_sweep_is("base.yaml"));
    ck_assert(!bk_sweep_is("none.yaml"));
    ck_assert_int_eq(load(GRID), BK_OK);
    ck_assert(bk_sweep_is("sweep.yaml"));
}
END_TEST

/* A folder that a plugin's quantizer made is none of brick's own of the same name, and the other way round. */
START_TEST(a_quantizer_of_a_plugin_is_not_one_of_brick)
{
    bk_run_config *c = calloc(1, sizeof *c);
    bk_json *manifest = bk_json_object(), *plugins = bk_json_object(), *none = bk_json_object();
    strcpy(c->quant.weight.quantizer, "affine");
    bk_json_set(plugins, "affine", bk_json_of_text("0123456789abcdef"));
    bk_json_set(manifest, "plugins", plugins);
    ck_assert_str_eq(bk_run_other_plugin(c, manifest), "affine");
    bk_json_set(none, "plugins", bk_json_object());
    ck_assert_ptr_null(bk_run_other_plugin(c, none));
    bk_json_free(manifest);
    bk_json_free(none);
    free(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep");
    TCase *t = tcase_create("sweep");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, grid_is_a_product_whose_last_axis_is_the_fastest);
    tcase_add_test(t, a_quantizer_of_a_plugin_is_not_one_of_brick);
    tcase_add_test(t, zip_walks_its_lists_together);
    tcase_add_test(t, points_may_name_different_keys);
    tcase_add_test(t, points_may_have_names_of_their_own);
    tcase_add_test(t, grid_zip_and_points_multiply);
    tcase_add_test(t, exclude_takes_points_that_match_all_its_pairs);
    tcase_add_test(t, set_holds_for_every_point);
    tcase_add_test(t, log_and_linear_have_exact_ends);
    tcase_add_test(t, names_take_as_many_parts_of_a_key_as_tell_it_from_others);
    tcase_add_test(t, names_stay_when_an_axis_gets_more_values);
    tcase_add_test(t, long_names_are_cut_and_stay_different);
    tcase_add_test(t, values_are_shown_as_the_config_has_them);
    tcase_add_loop_test(t, bad_input_is_refused_at_its_place, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, sweeps_are_told_from_configs);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
