/* Models of every shape through the program: rotations leave what they compute alone, group sizes fit or are refused at once, ties are undone. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rng.h"
#include "blocks/fitted.h"
#include "io/file.h"
#include "io/sums.h"
#include "tests/e2e.h"
#include "tests/suite.h"

static void write_model(const char *shape)
{
    e2e_synth_write(e2e_synth(shape), "m");
    e2e_config("m", NULL);
}

static double perplexity(const char *model, const char *rotate)
{
    e2e_brick(0, "eval --model %s --text ../m/eval.txt --seqlen 128 --windows 4 --threads 1 --rotate %s --json", model, rotate);
    double ppl = e2e_number("out", "ppl", NULL);
    ck_assert_double_finite(ppl);
    return ppl;
}

static void same_perplexity(double a, double b)
{
    ck_assert_msg(fabs(b / a - 1) < 5e-5, "%.8g became %.8g", a, b);
}

/* --- rotation --- */

static const char *const rotated[] = {
    "qwen2,layers=2", "qwen3,layers=2,head_dim=64", "tied,layers=2", "tiny,window=64",
    /* heads whose widths do not add up to the hidden size; one head for keys and values */
    "tiny,head_dim=32", "tiny,kv_heads=1", "tiny,head_dim=32,kv_heads=1",
    /* orders with a Hadamard matrix by Paley or Williamson, and 428, 856 and 90 without one: block-diagonal */
    "tiny,hidden=96,inter=112", "tiny,hidden=112,inter=192", "tiny,inter=288", "tiny,inter=304", "tiny,inter=352", "tiny,hidden=576", "tiny,inter=172",
    "tiny,inter=428", "tiny,inter=856", "tiny,hidden=90,inter=90",
};

START_TEST(rotation_alone_does_not_change_perplexity)
{
    write_model(rotated[_i]);
    same_perplexity(perplexity("m", "none"), perplexity("m", "all"));
}
END_TEST

/* Fused in the one order that works, however they are named; a config has no key for an order. */
START_TEST(transforms_are_fused_in_their_own_order)
{
    write_model(rotated[0]);
    ck_assert_double_eq(perplexity("m", "r4,r3,r2,r1"), perplexity("m", "all"));
    e2e_config("m", "");
    e2e_append("run.yaml", "transforms: [r4, r1]\n");
    e2e_brick(2, "run run.yaml --out a");
    e2e_said("unknown key 'transforms'");
}
END_TEST

/* Biases of q, k, v and o as large as what they are added to. */
START_TEST(biases_are_rotated_with_their_weights)
{
    bk_config c;
    bk_synth *s;
    bk_error err = {0};
    ck_assert_int_eq(bk_synth_shape("qwen2,layers=2,hidden=64,inter=96,head_dim=16", &c, &err), BK_OK);
    c.o_bias = true;
    ck_assert_int_eq(bk_synth_create(&c, 1, &s, &err), BK_OK);
    for (int64_t l = 0, counter = 0; l < c.layers; l++)
        for (bk_linear_id id = BK_W_Q; id <= BK_W_O; id++) {
            int64_t out, in;
            bk_linear_shape(&c, id, &out, &in);
            ck_assert_ptr_nonnull(s->block[l].b[id]);
            for (int64_t i = 0; i < out; i++) s->block[l].b[id][i] = (float)bk_rng_normal(3, BK_RNG_TEST, (uint64_t)counter++);
        }
    e2e_synth_write(s, "m");
    double plain = perplexity("m", "none");
    same_perplexity(plain, perplexity("m", "r1,r2"));
    same_perplexity(plain, perplexity("m", "all"));
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out a");
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set rotation.fold_v_bias=true --out b");
}
END_TEST

/* RMSNorm sees the mean of its input: taking it out of the embeddings makes another model, rotating does not. */
START_TEST(embeddings_with_a_mean_are_not_centred)
{
    bk_synth *s = e2e_synth("tiny");
    int64_t hidden = s->cfg.hidden;
    for (int64_t i = 0; i < s->cfg.vocab * hidden; i++) s->embed[i] += 0.5f;
    e2e_synth_write(s, "m");
    s = e2e_synth("tiny");
    for (int64_t id = 0; id < s->cfg.vocab; id++) {
        double mean = 0;
        for (int64_t c = 0; c < hidden; c++) mean += (double)s->embed[id * hidden + c] / (double)hidden;
        for (int64_t c = 0; c < hidden; c++) s->embed[id * hidden + c] -= (float)mean;
    }
    e2e_synth_write(s, "centred");
    double plain = perplexity("m", "none"), centred = perplexity("centred", "none");
    same_perplexity(plain, perplexity("m", "all"));
    ck_assert_msg(fabs(centred / plain - 1) > 1e-2, "%.8g and %.8g", plain, centred);
    e2e_config("m", NULL);
    e2e_brick(0, "run run.yaml --set train.epochs=0 --out a"); /* past the gate that compares the logits */
    e2e_said("rotated model: logits differ by ");
}
END_TEST

static const struct {
    const char *on, *named;
} gates[] = {{"rotation.r2=false --set rotation.r3=false --set rotation.r4=false", "r1 (with fused norms)"},
             {"rotation.r1=false --set rotation.r3=false --set rotation.r4=false", "r2"},
             {"rotation.r1=false --set rotation.r2=false --set rotation.r3=false", "r4"}};

/* A tolerance that rounding alone exceeds stands for a transform that is wrong. */
START_TEST(the_gate_stops_the_run_and_names_the_transform)
{
    char words[128];
    e2e_brick(4, "run run.yaml --set %s --set equivalence_tolerance=0 --out a", gates[_i].on);
    snprintf(words, sizeof words, "brick: %s changed the full-precision logits by ", gates[_i].named);
    e2e_said(words);
    e2e_silent("outliers");
}
END_TEST

/* --- the gate of fitted transforms --- */

/* Wrong files with right sums, as a fit that goes wrong would leave them. What is not orthogonal, no order or no sign is found when it is read;
 * scales that leave f32, by the gate. */
static void scale_nothing(bk_fitted *f) { f->scale_mlp_in[5] = 1e-44f; }
static void tilt(bk_fitted *f) { f->r1[5 * f->hidden + 7] += 1e-6; }
static void tilt_keys(bk_fitted *f) { f->r3[3] += 1e-6; }
static void repeat_a_channel(bk_fitted *f) { f->down_order[f->inter + 7] = f->down_order[f->inter + 3]; }
static void lose_a_sign(bk_fitted *f) { f->down_signs[9] = 0; }

static const struct {
    const char *sets;
    void (*damage)(bk_fitted *f);
    const char *words[2];
} damaged[] = {
    {"method=smoothquant", scale_nothing, {"what was fitted (rotation.basis, scales.from) changed the full-precision logits by ", "more than equivalence_tolerance"}},
    {"method=awq", scale_nothing, {"what was fitted (rotation.basis, scales.from) changed the full-precision logits by ", "more than equivalence_tolerance"}},
    {"method=offq", tilt, {"fitted.h5: fitted r1, row ", ": the matrix is not orthogonal"}},
    {"method=offq --set offq.keys=on", tilt_keys, {"fitted.h5: fitted r3, layer 0, head 0, row ", ": the matrix is not orthogonal"}},
    {"method=offq", repeat_a_channel, {"fitted.h5: fitted down_order, layer 1, index 7: twice channel ", ""}},
    {"method=offq", lose_a_sign, {"fitted.h5: fitted down_signs, layer 0, index 9: the sign is 0", ""}},
};

static void damage_the_fit(void (*damage)(bk_fitted *f))
{
    bk_config c;
    bk_error err = {0};
    bk_fitted *f;
    char dir[256], path[300];
    ck_assert_int_eq(system("echo cache/fit-* >found"), 0);
    char *found = e2e_text("found");
    snprintf(dir, sizeof dir, "%.*s", (int)strcspn(found, " \n"), found);
    snprintf(path, sizeof path, "%s/fitted.h5", dir);
    ck_assert_int_eq(bk_synth_shape("tiny", &c, &err), BK_OK);
    ck_assert_msg(bk_fitted_load(path, &c, &f, &err) == BK_OK, "%s", err.msg);
    damage(f);
    ck_assert_msg(bk_fitted_save(f, path, &err) == BK_OK && bk_sums_write(dir, &err) == BK_OK, "%s", err.msg);
    bk_fitted_free(f);
    free(found);
}

START_TEST(damaged_transforms_are_refused_by_name)
{
    char sets[256];
    snprintf(sets, sizeof sets,
             "--set %s --set scheme=W4A4KV4-dynamic-asym-gauto --set init.from=minmax --set init.search=false --set data.statistics.samples=3 "
             "--set data.statistics.seqlen=32",
             damaged[_i].sets);
    e2e_brick(0, "run run.yaml %s --out a", sets);
    damage_the_fit(damaged[_i].damage);
    e2e_brick(4, "run run.yaml %s --out b", sets);
    e2e_said("fit: taken from cache/fit-");
    e2e_said(damaged[_i].words[0]);
    e2e_said(damaged[_i].words[1]);
    ck_assert(!bk_exists("b/summary.json") && !bk_exists("b/model"));
}
END_TEST

/* --- tied embeddings --- */

START_TEST(tied_embeddings_are_written_apart)
{
    write_model("tied,layers=2");
    e2e_brick(0, "run run.yaml --out a");
    char *config = e2e_text("a/model/config.json"), *index = e2e_text("a/model/model.safetensors.index.json");
    ck_assert_msg(strstr(config, "\"tie_word_embeddings\": false") != NULL, "%s", config);
    ck_assert_msg(strstr(index, "\"model.embed_tokens.weight\"") && strstr(index, "\"lm_head.weight\""), "%s", index);
    free(config);
    free(index);
    e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

/* --- heads --- */

static const char *const heads[] = {"tiny,head_dim=32", "tiny,kv_heads=1", "qwen3,layers=2,hidden=64,head_dim=32,kv_heads=1", "qwen2,layers=2,kv_heads=4"};

START_TEST(heads_of_any_shape_are_trained)
{
    write_model(heads[_i]);
    e2e_brick(0, "run run.yaml --out a");
    ck_assert_double_finite(e2e_number("a/summary.json", "ppl", "final"));
    e2e_brick(0, "eval --model a --text ../m/eval.txt --seqlen 32 --windows 4 --threads 1 --json");
    ck_assert_double_eq(e2e_number("out", "ppl", NULL), e2e_number("a/summary.json", "ppl", "final"));
}
END_TEST

START_TEST(head_dim_null_is_hidden_over_heads)
{
    write_model("tiny");
    double said = perplexity("m", "none");
    e2e_replace("m/config.json", "\"head_dim\": 16", "\"head_dim\": null");
    ck_assert_double_eq(perplexity("m", "none"), said);
    e2e_replace("m/config.json", "\"head_dim\": null", "\"head_dim\": 32");
    e2e_brick(3, "eval --model m --text ../m/eval.txt --seqlen 32");
    e2e_said("q_proj");
}
END_TEST

/* --- groups --- */

static const struct {
    const char *shape, *group, *words;
} groups[] = {{"tiny", "128", "q, k, v, o, gate, up, down: "},         /* hidden 64, inter 96: wider than all columns */
              {"tiny,hidden=128", "128", "o, down: "},                 /* 128 divides what reads the hidden states alone; o reads 64, down 96 */
              {"tiny,inter=200", "64", "at down: "},
              {"tiny", "0", "group needs a size"},
              {"tiny", "-1", "quant.weight.group"}};

START_TEST(groups_that_do_not_divide_are_refused_with_their_layers)
{
    write_model(groups[_i].shape);
    e2e_brick(2, "run run.yaml --set quant.weight.granularity=group --set quant.weight.group=%s --out a", groups[_i].group);
    e2e_said(groups[_i].words);
    e2e_silent("samples of"); /* before texts are read */
    ck_assert(!bk_exists("a"));
    e2e_brick(2, "plan run.yaml --set quant.weight.granularity=group --set quant.weight.group=%s", groups[_i].group);
    e2e_said(groups[_i].words);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_shapes");
    TCase *t = tcase_create("shapes");
    tcase_set_timeout(t, 120);
    tcase_add_unchecked_fixture(t, e2e_begin, e2e_end);
    tcase_add_checked_fixture(t, e2e_enter, e2e_leave);
    tcase_add_loop_test(t, rotation_alone_does_not_change_perplexity, 0, sizeof rotated / sizeof rotated[0]);
    tcase_add_test(t, transforms_are_fused_in_their_own_order);
    tcase_add_test(t, biases_are_rotated_with_their_weights);
    tcase_add_test(t, embeddings_with_a_mean_are_not_centred);
    tcase_add_loop_test(t, the_gate_stops_the_run_and_names_the_transform, 0, sizeof gates / sizeof gates[0]);
    tcase_add_loop_test(t, damaged_transforms_are_refused_by_name, 0, sizeof damaged / sizeof damaged[0]);
    tcase_add_test(t, tied_embeddings_are_written_apart);
    tcase_add_loop_test(t, heads_of_any_shape_are_trained, 0, sizeof heads / sizeof heads[0]);
    tcase_add_test(t, head_dim_null_is_hidden_over_heads);
    tcase_add_loop_test(t, groups_that_do_not_divide_are_refused_with_their_layers, 0, sizeof groups / sizeof groups[0]);
    suite_add_tcase(s, t);
    return run_suite(s);
}
